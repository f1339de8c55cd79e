//! Nodes that know each other through NATS: what reaches whom, exactly once and in order, and what receipts say of it.

use std::collections::HashMap;
use std::net::TcpListener;
use std::time::{Duration, Instant};

use crate::hub::{Backend, Got, Hub, PATIENCE, WebSocket};
use crate::nats;
use crate::nats::{Nats, knows, nodes};
use oroshi_push::{Access, GroupRule, Plan, SlowPolicy};
use serde_json::{Value, json};

#[test]
fn everybody_on_every_node_gets_everything_once_and_in_order() {
    const SESSIONS: usize = 5;
    const MESSAGES: usize = 100;
    let Some(nats) = Nats::start("everybody_on_every_node_gets_everything_once_and_in_order", &[]) else { return };
    let hubs = nats.nodes(3);
    let mut sessions: Vec<WebSocket> =
        hubs.iter().flat_map(|hub| (0..SESSIONS).map(|_| hub.session().0).collect::<Vec<_>>()).collect();
    let all = sessions.len();
    std::thread::scope(|scope| {
        for (publisher, hub) in hubs.iter().enumerate() {
            scope.spawn(move || {
                for number in 0..MESSAGES {
                    let wait = ["queued", "attempted", "written"][number % 3];
                    let text = format!("{publisher} {number}");
                    let receipt = hub.publish(json!({ "all": true, "text": text, "wait": wait, "deadline": "30s" }));
                    assert_eq!((&receipt["matched"], nodes(&receipt)), (&json!(all), (3, 3)), "{receipt}");
                    if wait == "written" {
                        assert_eq!(receipt["written"], all, "{receipt}");
                    }
                }
            });
        }
    });
    hubs[1].publish(json!({ "all": true, "text": "end" }));
    for session in &mut sessions {
        let mut next = HashMap::new();
        for _ in 0..hubs.len() * MESSAGES {
            let text = session.text();
            let (publisher, number) = text.split_once(' ').unwrap();
            let due = next.entry(publisher.to_owned()).or_insert(0);
            assert_eq!(number.parse::<usize>().unwrap(), *due, "of publisher {publisher}");
            *due += 1;
        }
        assert_eq!(session.text(), "end");
    }
    for hub in &hubs {
        let status = hub.status();
        let cluster = &status["cluster"];
        // Another node's claims to keys are received too.
        assert!(cluster["received"].as_u64().unwrap() >= 2 * MESSAGES as u64, "{cluster}");
        for nothing in ["incomplete", "unsent", "late", "stale", "repeated", "missed", "refused"] {
            assert_eq!(cluster[nothing], 0, "{nothing}: {cluster}");
        }
    }
}

#[test]
fn sessions_are_reached_from_any_node() {
    let Some(nats) = Nats::start("sessions_are_reached_from_any_node", &[]) else { return };
    let hubs = nats.nodes(2);
    let [(mut here, here_key), (mut there, there_key)] = [hubs[0].session(), hubs[1].session()];
    let ask = |method: &str, target: &str| hubs[0].request(method, target, &[], b"");

    let receipt =
        hubs[0].publish(json!({ "sessions": [here_key, there_key, "nobody"], "text": "both", "wait": "written" }));
    assert_eq!((&receipt["matched"], &receipt["written"]), (&json!(2), &json!(2)), "{receipt}");
    assert_eq!((&receipt["unknown"], nodes(&receipt)), (&json!(["nobody"]), (2, 2)), "{receipt}");
    assert_eq!((here.text(), there.text()), ("both".to_owned(), "both".to_owned()));
    let receipt = hubs[0].publish(json!({ "sessions": [here_key], "text": "near" }));
    assert_eq!(nodes(&receipt), (1, 1), "it concerns no other node: {receipt}");
    assert_eq!(receipt["nodes"]["connected"], true, "{receipt}");
    let receipt = hubs[0].publish(json!({ "all": true, "except": [there_key, here_key], "text": "nobody's" }));
    assert_eq!((&receipt["matched"], nodes(&receipt)), (&json!(0), (2, 2)), "{receipt}");

    assert_eq!(ask("GET", &format!("/sessions/{there_key}")).json()["transport"], "websocket");
    assert_eq!(ask("GET", "/sessions/nobody").status, 404);
    assert_eq!(ask("PUT", &format!("/sessions/{there_key}/groups/g")).status, 204);
    assert_eq!(ask("PUT", &format!("/sessions/{here_key}/groups/g")).status, 204);
    assert_eq!(ask("PUT", "/sessions/nobody/groups/g").status, 404);
    assert_eq!(ask("GET", "/groups/g").json()["sessions"], 2);
    let receipt = hubs[1].publish(json!({ "groups": ["g"], "base64": "AAE=" }));
    assert_eq!((&receipt["matched"], nodes(&receipt)), (&json!(2), (2, 2)), "{receipt}");
    assert_eq!(
        (here.text(), here.next(), there.next()),
        ("near".to_owned(), Got::Binary(vec![0, 1]), Got::Binary(vec![0, 1]))
    );
    assert_eq!(ask("DELETE", &format!("/sessions/{there_key}/groups/g")).status, 204);
    assert_eq!(ask("DELETE", &format!("/sessions/{there_key}/groups/g")).status, 204, "twice is once");
    assert_eq!(ask("GET", "/groups/g").json()["sessions"], 1);

    let session = |key: &str| [("X-Kuiperbelt-Session", key.to_owned())];
    let send = |target: &str, key: &str, body: &[u8]| {
        let [(name, key)] = session(key);
        hubs[0].request("POST", target, &[(name, &key)], body)
    };
    assert_eq!(send("/send", &there_key, b"by header").text(), r#"{"result":"OK"}"#);
    assert!(send("/send", "nobody", b"x").text().contains("session is not found"));
    assert_eq!(send("/close", &there_key, b"last").text(), r#"{"result":"OK"}"#);
    assert_eq!((there.text(), there.text()), ("by header".to_owned(), "last".to_owned()));
    assert!(matches!(there.next(), Got::Close(Some(1000), _)));
    there.close(1000);
    hubs[1].until("its end", |status| status["sessions"]["current"] == 0);
    assert_eq!(ask("DELETE", &format!("/sessions/{there_key}")).status, 404);
    let (mut other, other_key) = hubs[1].session();
    assert_eq!(ask("DELETE", &format!("/sessions/{other_key}?code=4321&reason=enough")).status, 204);
    assert_eq!(other.next(), Got::Close(Some(4321), "enough".to_owned()));
}

/// A strict `/send` looks for all keys on all nodes first.
#[test]
fn strict_sends_know_the_keys_of_other_nodes() {
    let Some(nats) = Nats::start("strict_sends_know_the_keys_of_other_nodes", &[]) else { return };
    let hubs = [nats.node(1, |plan| plan.send.strict = true), nats.node(1, |_| {})];
    hubs.iter().for_each(|hub| knows(hub, 1));
    let (mut there, key) = hubs[1].session();
    let send = |keys: &[&str]| {
        let headers: Vec<(&str, &str)> = keys.iter().map(|&key| ("X-Kuiperbelt-Session", key)).collect();
        hubs[0].request("POST", "/send", &headers, b"to all or nobody").text().to_owned()
    };
    assert!(send(&[&key, "nobody"]).contains("session is not found"));
    assert_eq!(send(&[&key]), r#"{"result":"OK"}"#);
    assert_eq!(there.text(), "to all or nobody");
    hubs[0].publish(json!({ "all": true, "text": "end" }));
    assert_eq!(there.text(), "end", "once");
}

#[test]
fn a_key_that_connects_elsewhere_has_moved() {
    let Some(nats) = Nats::start("a_key_that_connects_elsewhere_has_moved", &[]) else { return };
    // Every client has the key that it asks for.
    let backend = Backend::start(|asked| {
        let key = asked.target.split_once("key=").map_or("", |(_, key)| key);
        (200, format!("X-Kuiperbelt-Session: {key}\r\n"), String::new())
    });
    let with_backend = |plan: &mut Plan| {
        plan.callbacks.connect = backend.url("/connect");
        // The tick, by which ages are compared, is an eighth of the shortest limit.
        plan.limits.close = Duration::from_millis(80);
    };
    let hubs = [nats.node(2, with_backend), nats.node(2, with_backend)];
    hubs.iter().for_each(|hub| knows(hub, 1));
    let mut old = hubs[0].websocket("/connect?key=k");
    // Older than what is known of ages to a tick, by the hub's own word.
    let start = Instant::now();
    while hubs[0].request("GET", "/sessions/k", &[], b"").json()["age_seconds"].as_f64().unwrap() < 0.2 {
        assert!(start.elapsed() < PATIENCE);
    }
    let mut new = hubs[1].websocket("/connect?key=k");
    assert!(matches!(old.next(), Got::Close(Some(4000), _)));
    drop(old);
    hubs[0].until("the end of the older one", |status| status["sessions"]["current"] == 0);
    assert_eq!(hubs[0].status()["sessions"]["ended"]["replaced"], 1);
    let receipt = hubs[0].publish(json!({ "sessions": ["k"], "text": "moved" }));
    assert_eq!(receipt["matched"], 1, "{receipt}");
    assert_eq!(new.text(), "moved");
}

/// A node says that it takes longer, and is waited for; another could be dead for all that is known.
#[test]
fn a_node_with_slow_readers_is_waited_for() {
    let Some(nats) = Nats::start("a_node_with_slow_readers_is_waited_for", &[]) else { return };
    let quick = |plan: &mut Plan| {
        plan.limits.session_queue_bytes = 8 << 20;
        plan.cluster.as_mut().unwrap().receipt_timeout = Duration::from_secs(2);
    };
    let hubs = [nats.node(1, quick), nats.node(1, quick)];
    hubs.iter().for_each(|hub| knows(hub, 1));
    let (mut slow, key) = hubs[1].session();
    let large = "x".repeat(500_000);
    // More than two kernels hold.
    for _ in 0..10 {
        hubs[0].publish(json!({ "sessions": [key], "text": large, "wait": "queued" }));
    }
    let receipt = hubs[0].publish(json!({ "sessions": [key], "text": "in vain", "wait": "written", "deadline": "3s" }));
    assert_eq!((&receipt["queued"], nodes(&receipt)), (&json!(1), (2, 2)), "{receipt}");
    let read = std::thread::spawn(move || (0..12).map(|_| slow.text()).collect::<Vec<_>>());
    let receipt =
        hubs[0].publish(json!({ "sessions": [key], "text": "at last", "wait": "written", "deadline": "60s" }));
    assert_eq!((&receipt["written"], nodes(&receipt)), (&json!(1), (2, 2)), "{receipt}");
    assert_eq!(read.join().unwrap()[10..], ["in vain", "at last"]);
}

#[test]
fn messages_that_nats_does_not_take_stay_here() {
    let Some(nats) = Nats::start("messages_that_nats_does_not_take_stay_here", &[]) else { return };
    let roomy = |plan: &mut Plan| {
        plan.limits.session_queue_bytes = 8 << 20;
        plan.groups = vec![GroupRule {
            pattern: "*".into(),
            slow: SlowPolicy::DropOldest,
            client_may_join: false,
            ..GroupRule::default()
        }];
    };
    let hubs = [nats.node(1, roomy), nats.node(1, roomy)];
    hubs.iter().for_each(|hub| knows(hub, 1));
    let [(mut here, _), (mut there, _)] = [hubs[0].session(), hubs[1].session()];
    // NATS' default is 1 MiB, and there is something around each message.
    let large = "x".repeat(1 << 20);
    let receipt = hubs[0].publish(json!({ "all": true, "text": large }));
    assert_eq!((&receipt["matched"], nodes(&receipt)), (&json!(1), (2, 1)), "{receipt}");
    assert_eq!(here.text().len(), large.len());
    let status = hubs[0].status();
    assert_eq!((&status["cluster"]["unsent"], &status["cluster"]["incomplete"]), (&json!(1), &json!(1)), "{status}");
    assert!(status["cluster"]["trouble"].as_str().unwrap().contains("max_payload"), "{status}");
    let receipt = hubs[0].publish(json!({ "all": true, "text": "small" }));
    assert_eq!((&receipt["matched"], nodes(&receipt)), (&json!(2), (2, 2)), "{receipt}");
    assert_eq!([there.text(), there.text(), here.text()], ["{\"gap\":null}", "small", "small"]);
}

#[test]
fn what_is_no_nodes_is_refused() {
    let Some(nats) = Nats::start("what_is_no_nodes_is_refused", &[]) else { return };
    let hubs = nats.nodes(2);
    nats.say("oroshi.push.test.all", b"hello");
    nats.say("oroshi.push.test.all", &[]);
    // A stranger's question: version 2, a request.
    let mut stranger = vec![2, 1];
    stranger.extend_from_slice(&[9; 16]);
    stranger.extend_from_slice(&[0; 24]);
    stranger.extend_from_slice(&[100, 5, 1, b'g']);
    nats.say("oroshi.push.test.all", &stranger);
    for hub in &hubs {
        hub.until("what was refused", |status| status["cluster"]["refused"] == 3);
        knows(hub, 1);
    }
    let (mut session, _) = hubs[1].session();
    assert_eq!(nodes(&hubs[0].publish(json!({ "all": true, "text": "still there" }))), (2, 2));
    assert_eq!(session.text(), "still there");
}

#[test]
fn credentials_are_used_and_never_shown() {
    let hub_with = |nats: &Nats, userinfo: &str| {
        let url = format!("nats://{userinfo}127.0.0.1:{}", nats.port);
        Hub::start(move |plan| plan.cluster = Some(nats::cluster(&url)))
    };
    for (arguments, right, wrong) in [
        (&["--user", "push", "--pass", "s3:cret"][..], "push:s3%3Acret@", "push:wr0ng@"),
        (&["--auth", "t0ken-of-many-letters"][..], "t0ken-of-many-letters@", "wr0ng@"),
    ] {
        let Some(nats) = Nats::start("credentials_are_used_and_never_shown", arguments) else { return };
        let good = hub_with(&nats, right);
        knows(&good, 0);
        let bad = hub_with(&nats, wrong);
        let status =
            bad.until("the refusal", |status| status["cluster"]["trouble"].as_str().unwrap().contains("authorization"));
        assert_eq!(status["cluster"]["connected"], false);
        assert!(!status.to_string().contains("wr0ng"), "{status}");
        assert!(bad.request("GET", "/metrics", &[], b"").text().contains("oroshi_push_cluster_connected 0\n"));
        assert!(good.request("GET", "/metrics", &[], b"").text().contains("oroshi_push_cluster_connected 1\n"));
    }
}

#[test]
fn the_status_is_as_the_api_says() {
    let Some(nats) = Nats::start("the_status_is_as_the_api_says", &[]) else { return };
    let hub = &nats.nodes(1)[0];
    let api: Value = serde_json::from_str(include_str!("../../openapi.json")).unwrap();
    let said = &api["components"]["schemas"]["Status"]["properties"]["cluster"]["properties"];
    let (said, status) = (said.as_object().unwrap(), hub.status());
    let is = status["cluster"].as_object().unwrap();
    assert_eq!(is.keys().collect::<Vec<_>>(), said.keys().collect::<Vec<_>>());
    for (name, value) in is {
        let kind = if value.is_u64() {
            "integer"
        } else if value.is_string() {
            "string"
        } else {
            "boolean"
        };
        assert_eq!(said[name]["type"], kind, "{name}");
    }
}

#[test]
fn the_next_server_is_tried() {
    let Some(nats) = Nats::start("the_next_server_is_tried", &[]) else { return };
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let url = format!("nats://{nobody}, {}", nats.url());
    knows(&Hub::start(|plan| plan.cluster = Some(nats::cluster(&url))), 0);
}

/// Without the right to speak nothing comes back, and the operator is told why.
#[test]
fn what_nats_forbids_is_told() {
    let folder = tempfile::TempDir::new().unwrap();
    let config = folder.path().join("nats.conf");
    let user = r#"{ user: "push", password: "push", permissions: { publish: "nothing" } }"#;
    std::fs::write(&config, format!("authorization: {{ users: [{user}] }}")).unwrap();
    let arguments = ["--config", config.to_str().unwrap()];
    let Some(nats) = Nats::start("what_nats_forbids_is_told", &arguments) else { return };
    let hub = Hub::start(|plan| plan.cluster = Some(nats::cluster(&nats.url().replace("//", "//push:push@"))));
    let status = hub.until("the reason", |status| {
        let trouble = status["cluster"]["trouble"].as_str().unwrap().to_lowercase();
        trouble.contains("permissions violation for publish to \"oroshi.push.test.all\"")
    });
    assert_eq!(status["cluster"]["connected"], false);
}

/// A client without a connection of its own may ask any node.
#[test]
fn polls_and_commands_reach_a_session_from_any_node() {
    let Some(nats) = Nats::start("polls_and_commands_reach_a_session_from_any_node", &[]) else { return };
    let open = |plan: &mut Plan| {
        plan.limits.poll_wait = Duration::from_millis(300);
        plan.limits.session_queue_bytes = 4 << 20;
        let anyone = Access::Anyone;
        plan.groups = vec![GroupRule { pattern: "*".into(), subscribe: anyone, ..GroupRule::default() }];
    };
    let hubs = [nats.node(2, open), nats.node(2, open)];
    hubs.iter().for_each(|hub| knows(hub, 1));
    let first = hubs[0].request("GET", "/connect?transport=poll&protocol=oroshi.v1", &[], b"").json();
    let [key, token] = ["session", "token"].map(|name| first[name].as_str().unwrap());
    let poll_at = |hub: &Hub, after: u64| {
        hub.request("GET", &format!("/poll?session={key}&token={token}&after={after}"), &[], b"")
    };
    let poll = |after| poll_at(&hubs[1], after);
    let command = |token: &str, command: &Value| {
        let target = format!("/command?session={key}&token={token}");
        hubs[1].request("POST", &target, &[], command.to_string().as_bytes())
    };
    let subscribe = json!([{ "id": 1, "subscribe": { "channel": "c" } }, { "id": 2, "ping": {} }]);
    let answers = command(token, &subscribe).json();
    assert_eq!((&answers[0]["subscribed"]["channel"], &answers[1]), (&json!("c"), &json!({ "id": 2, "pong": {} })));
    hubs[1].publish(json!({ "groups": ["c"], "text": "far" }));
    let batch = poll(0).json();
    assert_eq!((&batch["messages"][1]["text"], &batch["next"]), (&json!("far"), &json!(1)), "{batch}");
    assert_eq!(poll(0).json(), batch, "again");
    assert_eq!(poll(1).json(), json!({ "messages": [], "next": 1 }), "nothing has come");
    assert_eq!((poll(7).status, poll(7).json()["next"].clone()), (409, json!(1)));
    // The answer is larger than a message of NATS may be. The session lives on, and its own node has the answer.
    let large = "x".repeat(600_000);
    (0..2).for_each(|_| drop(hubs[0].publish(json!({ "groups": ["c"], "text": large, "wait": "queued" }))));
    let refused = poll(1);
    assert_eq!((refused.status, &refused.json()["error"]), (503, &json!("answer-too-large")));
    assert_eq!(refused.field("Retry-After"), None, "it would be the same again");
    let batch = poll_at(&hubs[0], 1).json();
    let lengths: Vec<usize> =
        batch["messages"].as_array().unwrap().iter().map(|one| one["text"].as_str().unwrap().len()).collect();
    assert_eq!((lengths, &batch["next"]), (vec![600_000; 2], &json!(2)), "nothing is lost");
    // A wrong token is as good as none, and so is a session that nobody has.
    assert_eq!(command("wrong", &subscribe).status, 404);
    let unknown = hubs[1].request("GET", "/poll?session=nobody&token=x&after=0", &[], b"");
    assert_eq!(unknown.json()["error"], "unknown-session");
    assert_eq!(nodes(&hubs[0].publish(json!({ "all": true, "text": "still together" }))), (2, 2));
}
