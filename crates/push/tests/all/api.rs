//! The API for backends: batches, publishes that come again, users, lists.

use std::time::{Duration, Instant};

use oroshi_push::{Access, GroupRule, HistoryRule, Jwt, Plan};
use oroshi_words::Secret;
use serde_json::{Value, json};

use super::tokens::{SECRET, token};
use crate::hub::{Answer, Backend, Got, Hub, WebSocket, key_of};
use crate::nats::{Nats, knows};

const JSON: (&str, &str) = ("Content-Type", "application/json");

fn rules(plan: &mut Plan) {
    plan.threads = 2;
    plan.jwt = Some(Jwt { secret: Some(Secret::new(SECRET)), required: false, ..Jwt::default() });
    let subscribe = Access::Anyone;
    plan.groups = vec![GroupRule { pattern: "c*".into(), subscribe, client_may_join: true, ..GroupRule::default() }];
}

/// A session of this user, with its key.
fn user(hub: &Hub, name: &str, target: &str) -> (WebSocket, String) {
    let field = format!("Bearer {}", token(name, &json!({})));
    let mut socket = WebSocket::open(hub.address, target, &[("Authorization", &field)]).unwrap();
    let key = key_of(&socket.text());
    (socket, key)
}

fn post(hub: &Hub, path: &str, body: &Value, fields: &[(&str, &str)]) -> Answer {
    hub.request("POST", path, &[&[JSON], fields].concat(), body.to_string().as_bytes())
}

#[test]
fn a_batch_is_published_in_order_with_a_receipt_for_each_or_not_at_all() {
    let hub = Hub::start(rules);
    let mut socket = hub.websocket("/connect?group=c1");
    let key = key_of(&socket.text());
    let batch: Vec<Value> = (0..50)
        .map(|number| match number % 3 {
            0 => json!({ "all": true, "text": number.to_string() }),
            1 => json!({ "groups": ["c1"], "json": number }),
            _ => json!({ "sessions": [key, "nobody"], "text": number.to_string() }),
        })
        .collect();
    let answer = post(&hub, "/publish/batch", &json!(batch), &[]);
    let receipts = answer.json()["receipts"].as_array().unwrap().clone();
    assert_eq!(receipts.len(), 50);
    for (number, receipt) in receipts.iter().enumerate() {
        assert_eq!((socket.text(), &receipt["matched"]), (number.to_string(), &json!(1)), "{receipt}");
        assert_eq!(receipt["unknown"], if number % 3 == 2 { json!(["nobody"]) } else { json!([]) });
    }
    let mut wrong = batch.clone();
    wrong[7] = json!({ "all": true });
    let answer = post(&hub, "/publish/batch", &json!(wrong), &[]);
    assert_eq!((answer.status, &answer.json()["index"]), (400, &json!(7)), "{answer:?}");
    for wrong in [json!([]), json!({}), json!("x"), json!(vec![json!({ "all": true, "text": "" }); 1001])] {
        assert_eq!(post(&hub, "/publish/batch", &wrong, &[]).status, 400);
    }
    hub.publish(json!({ "all": true, "text": "last" }));
    assert_eq!(socket.text(), "last", "nothing of a wrong batch was published");
}

#[test]
fn a_publish_that_comes_again_is_done_once() {
    let hub = Hub::start(rules);
    let mut socket = hub.websocket("/connect");
    socket.text();
    let key = [("Idempotency-Key", "order 66")];
    let publish = json!({ "all": true, "text": "once", "wait": "written" });
    let first = post(&hub, "/publish", &publish, &key);
    assert_eq!((first.status, first.field("Idempotent-Replayed")), (200, None));
    let again = post(&hub, "/publish", &publish, &key);
    assert_eq!((again.json(), again.field("Idempotent-Replayed")), (first.json(), Some("true")));
    // Another publish, by its body or its query, needs another key.
    let other = post(&hub, "/publish", &json!({ "all": true, "text": "other" }), &key);
    assert_eq!((other.status, &other.json()["error"]), (422, &json!("other-publish")));
    assert_eq!(hub.request("POST", "/publish/raw?all=1", &key, b"once").status, 422);
    // Twenty at once, on two threads.
    let raw = [("Idempotency-Key", "raw")];
    let ids: Vec<Value> = std::thread::scope(|scope| {
        let ask = || hub.request("POST", "/publish/raw?all=1", &raw, b"raw").json()["id"].clone();
        let all: Vec<_> = (0..20).map(|_| scope.spawn(ask)).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    let batch = [("Idempotency-Key", "batch")];
    let two = json!([{ "all": true, "text": "1" }, { "all": true, "text": "2" }]);
    let (first, again) =
        (post(&hub, "/publish/batch", &two, &batch).json(), post(&hub, "/publish/batch", &two, &batch).json());
    assert_eq!(first, again);
    for wrong in ["", &"x".repeat(256)] {
        assert_eq!(post(&hub, "/publish", &publish, &[("Idempotency-Key", wrong)]).status, 400);
    }
    hub.publish(json!({ "all": true, "text": "last" }));
    assert_eq!([(); 5].map(|()| socket.text()), ["once", "raw", "1", "2", "last"]);
}

#[test]
fn a_publisher_that_leaves_may_come_again_with_its_key() {
    let hub = Hub::start(rules);
    let mut socket = hub.websocket("/connect");
    socket.text();
    let body = json!({ "all": true, "text": "once" }).to_string();
    let fields = [JSON, ("Idempotency-Key", "k")];
    for _ in 0..3 {
        let mut stream = crate::hub::connect(hub.address);
        let head = crate::hub::head("POST", "/publish", &fields, Some(body.len()), true);
        std::io::Write::write_all(&mut stream, &[&head, body.as_bytes()].concat()).unwrap();
        // It does not wait for the answer.
    }
    hub.until("it is published", |status| status["published"]["messages"] == 1);
    assert_eq!(hub.request("POST", "/publish", &fields, body.as_bytes()).status, 200);
    hub.publish(json!({ "all": true, "text": "last" }));
    assert_eq!([(); 2].map(|()| socket.text()), ["once", "last"]);
}

#[test]
fn a_user_is_all_of_its_sessions() {
    let hub = Hub::start(rules);
    let (mut one, key) = user(&hub, "ann", "/connect");
    let (mut two, _) = user(&hub, "ann", "/connect?protocol=oroshi.v1");
    let (mut bob, _) = user(&hub, "bob", "/connect");
    let mut nobody = hub.websocket("/connect?group=c-ann");
    nobody.text();
    assert_eq!(hub.request("GET", &format!("/sessions/{key}"), &[], b"").json()["user"], "ann");
    assert_eq!(hub.request("GET", "/users/ann", &[], b"").json(), json!({ "user": "ann", "sessions": 2 }));
    let receipt = hub.publish(json!({ "users": ["ann", "cat"], "sessions": [key], "text": "hello" }));
    assert_eq!((&receipt["matched"], &receipt["written"]), (&json!(2), &json!(2)), "{receipt}");
    assert_eq!((one.text(), two.text()), ("hello".into(), r#"{"text":"hello"}"#.into()));
    let raw = hub.request("POST", "/publish/raw?user=bob", &[], b"raw").json();
    assert_eq!((&raw["matched"], bob.text()), (&json!(1), "raw".into()));
    // The backend's user, and one that a token names later.
    let backend = Backend::start(|_| (200, "X-Kuiperbelt-Session: s\r\nX-Oroshi-User: dan\r\n".into(), String::new()));
    let other = Hub::start(|plan| {
        rules(plan);
        plan.callbacks.connect = backend.url("/");
    });
    let _dan = other.websocket("/connect");
    assert_eq!(other.publish(json!({ "users": ["dan"], "text": "x" }))["matched"], 1);
    let mut late = WebSocket::open(hub.address, "/connect?protocol=oroshi.v1", &[]).unwrap();
    late.text();
    late.send(
        oroshi_websocket::Kind::Text,
        json!({ "id": 1, "token": token("late", &json!({})) }).to_string().as_bytes(),
    );
    late.text();
    assert_eq!(hub.publish(json!({ "users": ["late"], "text": "x" }))["matched"], 1);

    let ended = hub.request("DELETE", "/users/ann?code=4003&reason=logged+out", &[], b"");
    assert_eq!(ended.json(), json!({ "user": "ann", "sessions": 2 }));
    for socket in [&mut one, &mut two] {
        assert_eq!(socket.next(), Got::Close(Some(4003), "logged out".into()));
    }
    hub.until("they are gone", |_| hub.request("GET", "/users/ann", &[], b"").json()["sessions"] == 0);
    assert_eq!(hub.request("DELETE", "/users/ann", &[], b"").json()["sessions"], 0);
    assert_eq!(hub.request("DELETE", "/users/ann?code=1", &[], b"").status, 400);
    hub.publish(json!({ "all": true, "text": "all" }));
    assert_eq!((bob.text(), nobody.text()), ("all".into(), "all".into()));
}

/// Waits until messages that may wait for a millisecond have expired.
fn expire() {
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(3) {
        std::thread::yield_now();
    }
}

#[test]
fn a_message_waits_no_longer_than_it_may() {
    let hub = Hub::start(|plan| {
        rules(plan);
        plan.groups[0].keeps = Some(HistoryRule::default());
    });
    let opened = hub.request("GET", "/connect?transport=poll", &[], b"").json();
    let (key, secret) = (opened["session"].as_str().unwrap(), opened["token"].as_str().unwrap());
    hub.publish(json!({ "sessions": [key], "text": "late", "ttl": "1ms" }));
    hub.publish(json!({ "sessions": [key], "text": "patient", "ttl": "1h" }));
    expire();
    let polled = hub.request("GET", &format!("/poll?session={key}&token={secret}"), &[], b"").json();
    assert_eq!(polled["messages"], json!([{ "gap": 1 }, { "text": "patient" }]));
    hub.until("it counts as dropped", |status| status["deliveries"]["dropped"] == 1);
    // One that reads gets it.
    let (mut socket, _) = user(&hub, "ann", "/connect");
    let receipt = hub.request("POST", "/publish/raw?user=ann&ttl=1h&wait=written", &[], b"now").json();
    assert_eq!((&receipt["written"], socket.text()), (&json!(1), "now".into()));
    // Who comes back to a channel gets its place alone, so that nothing seems to be missing.
    let place = {
        let target = "/connect?protocol=oroshi.v1&channel=c";
        let mut first = WebSocket::open(hub.address, target, &[]).unwrap();
        first.text();
        serde_json::from_str::<Value>(&first.text()).unwrap()["subscribed"].clone()
    };
    for (text, ttl) in [("a", "1h"), ("typing", "1ms"), ("b", "1h")] {
        hub.publish(json!({ "groups": ["c"], "text": text, "ttl": ttl }));
    }
    expire();
    let target = format!("/connect?protocol=oroshi.v1&channel=c&since={}:0", place["epoch"].as_str().unwrap());
    let mut back = WebSocket::open(hub.address, &target, &[]).unwrap();
    back.text();
    let mut next = || serde_json::from_str::<Value>(&back.text()).unwrap();
    assert_eq!(next()["subscribed"]["recovered"], true);
    let texts = [next(), next(), next()].map(|frame| (frame["offset"].clone(), frame.get("text").cloned()));
    assert_eq!(texts, [(json!(1), Some(json!("a"))), (json!(2), None), (json!(3), Some(json!("b")))]);
    for wrong in ["0", "25h", "soon"] {
        let answer = post(&hub, "/publish", &json!({ "all": true, "text": "x", "ttl": wrong }), &[]);
        assert_eq!(answer.status, 400, "{wrong}");
    }
}

#[test]
fn lists_come_in_pages() {
    let hub = Hub::start(rules);
    let mut sockets: Vec<(WebSocket, String)> = Vec::new();
    for number in 0..25 {
        let mut socket = hub.websocket(&format!("/connect?group=c{:02}&group=c-all", number % 10));
        let key = key_of(&socket.text());
        sockets.push((socket, key));
    }
    let mut client = WebSocket::open(hub.address, "/connect?protocol=oroshi.v1&channel=c00", &[]).unwrap();
    let first = key_of(&client.text());
    client.text();
    let mut keys: Vec<String> = sockets.iter().map(|(_, key)| key.clone()).chain([first]).collect();
    keys.sort();
    let pages = |path: &str, limit: usize| {
        let (mut all, mut after) = (Vec::new(), String::new());
        loop {
            let page = hub.request("GET", &format!("/{path}?limit={limit}{after}"), &[], b"").json();
            let list = page[path].as_array().unwrap();
            assert!(list.len() <= limit);
            all.extend(list.iter().cloned());
            match page["next"].as_str() {
                Some(next) => after = format!("&after={next}"),
                None => return all,
            }
        }
    };
    for limit in [1, 7, 25, 26, 1000] {
        assert_eq!(pages("sessions", limit), keys, "{limit}");
        let groups = pages("groups", limit);
        assert_eq!(groups.len(), 11, "{groups:?}");
        assert_eq!(groups[0], json!({ "group": "c-all", "sessions": 25, "subscribers": 0 }));
        assert_eq!(groups[1], json!({ "group": "c00", "sessions": 4, "subscribers": 1 }));
    }
    let some = hub.request("GET", "/groups?prefix=c0&after=c08", &[], b"").json();
    assert_eq!(some, json!({ "groups": [{ "group": "c09", "sessions": 2, "subscribers": 0 }] }));
    for wrong in ["limit=0", "limit=1001", "limit=x", "page=2"] {
        for path in ["sessions", "groups"] {
            assert_eq!(hub.request("GET", &format!("/{path}?{wrong}"), &[], b"").status, 400, "{wrong}");
        }
    }
}

#[test]
fn users_reach_over_nodes() {
    let Some(nats) = Nats::start("users_reach_over_nodes", &[]) else { return };
    let (here, there) = (nats.node(2, rules), nats.node(2, rules));
    [&here, &there].into_iter().for_each(|node| knows(node, 1));
    let (mut one, _) = user(&here, "ann", "/connect");
    let (mut two, key) = user(&there, "ann", "/connect");
    let receipt = here.publish(json!({ "users": ["ann"], "text": "hello" }));
    assert_eq!((&receipt["matched"], &receipt["nodes"]["answered"]), (&json!(2), &json!(2)), "{receipt}");
    assert_eq!((one.text(), two.text()), ("hello".into(), "hello".into()));
    assert_eq!(here.request("GET", "/users/ann", &[], b"").json()["sessions"], 2);
    assert_eq!(here.request("GET", &format!("/sessions/{key}"), &[], b"").json()["user"], "ann");
    assert_eq!(here.request("DELETE", "/users/ann", &[], b"").json()["sessions"], 2);
    assert!(matches!((one.next(), two.next()), (Got::Close(Some(1000), _), Got::Close(Some(1000), _))));
}
