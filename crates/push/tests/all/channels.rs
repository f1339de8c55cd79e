//! The protocol of channels: subscriptions, recovery, publishing clients, presence, on every transport.

use oroshi_push::{Access, GroupRule, HistoryRule, Plan, SlowPolicy};
use oroshi_websocket::Kind;
use serde_json::{Value, json};

use crate::hub::{Backend, Chunks, Client, Got, Hub, WebSocket, connect, frame};
use crate::nats::{Nats, knows};

/// A channel that everybody may use in every way.
fn open(pattern: &str) -> GroupRule {
    let anyone = Access::Anyone;
    GroupRule {
        pattern: pattern.into(),
        subscribe: anyone,
        subscribe_patterns: true,
        publish: anyone,
        history: anyone,
        presence: anyone,
        ..GroupRule::default()
    }
}

/// The same with a history.
fn kept(pattern: &str) -> GroupRule {
    GroupRule { keeps: Some(HistoryRule::default()), ..open(pattern) }
}

fn rules(plan: &mut Plan) {
    plan.threads = 2;
    plan.limits.client_publishes = None;
    plan.groups = vec![
        GroupRule { keeps: Some(HistoryRule { messages: 3, ..HistoryRule::default() }), ..open("short") },
        GroupRule { keeps: Some(HistoryRule { latest: true, ..HistoryRule::default() }), ..open("price") },
        GroupRule { subscribe: Access::Users, publish: Access::Nobody, ..open("users") },
        kept("kept:*"),
        open("live:*"),
    ];
}

fn publish(hub: &Hub, channel: &str, text: &str) -> Value {
    hub.publish(json!({ "groups": [channel], "text": text }))
}

#[test]
fn clients_subscribe_and_unsubscribe_while_they_are_connected() {
    let hub = Hub::start(rules);
    let mut client = Client::open(&hub);
    let mut member = WebSocket::open(hub.address, "/connect", &[]).unwrap();
    let key = frame(&member.text())["session"].as_str().unwrap().to_owned();
    assert_eq!(hub.request("PUT", &format!("/sessions/{key}/groups/live:a"), &[], b"").status, 204);

    assert_eq!(publish(&hub, "live:a", "early")["matched"], 1);
    assert_eq!(client.subscribe("live:a", None), json!({ "channel": "live:a" }));
    let place = client.subscribe("kept:a", None);
    assert_eq!((&place["offset"], place.get("recovered")), (&json!(0), None), "{place}");
    let again = client.ask(json!({ "subscribe": { "channel": "live:a" } }));
    assert_eq!(again["error"], "already-subscribed");

    assert_eq!(publish(&hub, "live:a", "one")["written"], 2);
    assert_eq!(client.next(), json!({ "channel": "live:a", "text": "one" }));
    assert_eq!((member.text(), member.text()), ("early".into(), "one".into()), "members get messages as they are");
    assert_eq!(publish(&hub, "kept:a", "two")["written"], 1);
    let epoch = &place["epoch"];
    assert_eq!(client.next(), json!({ "channel": "kept:a", "epoch": epoch, "offset": 1, "text": "two" }));
    let bytes =
        hub.request("POST", "/publish/raw?group=kept:a", &[("Content-Type", "application/octet-stream")], b"\xff");
    assert_eq!(bytes.status, 200);
    assert_eq!(client.next(), json!({ "channel": "kept:a", "epoch": epoch, "offset": 2, "base64": "/w==" }));

    // To the session, to all, to two channels of the same client.
    let key = client.first["session"].as_str().unwrap().to_owned();
    hub.publish(json!({ "sessions": [key], "text": "to you" }));
    assert_eq!(client.next(), json!({ "text": "to you" }));
    hub.publish(json!({ "all": true, "json": { "a": 1 } }));
    assert_eq!((client.next(), member.text()), (json!({ "text": "{\"a\":1}" }), "{\"a\":1}".into()));
    let receipt = hub.publish(json!({ "groups": ["live:a", "kept:a", "kept:a"], "text": "both" }));
    assert_eq!(receipt["matched"], 3, "{receipt}");
    let mut both = [client.next()["channel"].clone(), client.next()["channel"].clone()];
    both.sort_by_key(Value::to_string);
    assert_eq!(both, [json!("kept:a"), json!("live:a")]);

    // A session that is left out learns the position.
    let receipt = hub.publish(json!({ "groups": ["kept:a"], "except": [key], "text": "not you" }));
    assert_eq!(receipt["matched"], 0);
    assert_eq!(client.next(), json!({ "channel": "kept:a", "epoch": epoch, "offset": 4 }));

    assert_eq!(client.ask(json!({ "unsubscribe": { "channel": "kept:a" } }))["unsubscribed"]["channel"], "kept:a");
    assert_eq!(client.ask(json!({ "unsubscribe": { "channel": "kept:a" } }))["error"], "not-subscribed");
    assert_eq!(publish(&hub, "kept:a", "gone")["matched"], 0);
    let info = hub.request("GET", &format!("/sessions/{key}"), &[], b"").json();
    assert_eq!(info["groups"], json!(["live:a"]));
    assert_eq!(hub.request("GET", "/groups/live:a", &[], b"").json()["sessions"], 2);
}

#[test]
fn what_is_no_command_is_refused_and_the_session_lives_on() {
    let hub = Hub::start(|plan| {
        rules(plan);
        plan.limits.session_channels = 2;
    });
    let mut client = Client::open(&hub);
    for wrong in [
        "",
        "[]",
        "null",
        "{",
        "{}",
        r#"{"id":0,"ping":{}}"#,
        r#"{"id":-1,"ping":{}}"#,
        r#"{"id":1.5,"ping":{}}"#,
        r#"{"id":9007199254740993,"ping":{}}"#,
        r#"{"id":1,"ping":{},"history":{"channel":"a"}}"#,
        r#"{"ping":{"a":1}}"#,
        r#"{"subscribe":{}}"#,
        r#"{"subscribe":{"channel":""}}"#,
        r#"{"subscribe":{"channel":"a","x":1}}"#,
        r#"{"publish":{"channel":"live:a"}}"#,
        r#"{"publish":{"channel":"live:a","text":"a","json":1}}"#,
        r#"{"publish":{"channel":"live:*","text":"a"}}"#,
        r#"{"publish":{"channel":"live:a","base64":"?"}}"#,
        r#"{"pung":{}}"#,
    ] {
        client.socket.send(Kind::Text, wrong.as_bytes());
        let answer = client.next();
        assert_eq!(answer["error"], "bad-command", "{wrong}: {answer}");
        assert!(answer["message"].is_string(), "{answer}");
    }
    for forbidden in [
        json!({ "subscribe": { "channel": "users" } }),
        json!({ "subscribe": { "channel": "other" } }),
        json!({ "subscribe": { "channel": "*" } }),
        json!({ "publish": { "channel": "users", "text": "a" } }),
        json!({ "presence": { "channel": "other" } }),
        json!({ "history": { "channel": "other" } }),
        json!({ "history": { "channel": "live:a" } }),
    ] {
        assert_eq!(client.ask(forbidden.clone())["error"], "forbidden", "{forbidden}");
    }
    client.subscribe("live:a", None);
    client.subscribe("live:b", None);
    assert_eq!(client.ask(json!({ "subscribe": { "channel": "live:c" } }))["error"], "too-many-channels");
    assert_eq!(client.ask(json!({ "ping": {} }))["pong"], json!({}));
    // Without an id there is no answer: the next frame answers the next command.
    client.send(&json!({ "ping": {} }));
    assert_eq!(client.ask(json!({ "ping": {} }))["pong"], json!({}));
    client.socket.send(Kind::Binary, b"x");
    assert!(matches!(client.socket.next(), Got::Close(Some(1003), _)));
}

#[test]
fn without_a_rule_nobody_speaks_the_protocol() {
    let hub = Hub::start(|_| {});
    let mut socket = WebSocket::open(hub.address, "/connect?protocol=oroshi.v1&channel=a", &[]).unwrap();
    assert!(frame(&socket.text()).get("client").is_none());
    assert_eq!(hub.request("POST", "/command", &[], b"{}").status, 404);
    // Nor does a client that does not ask for it.
    let hub = Hub::start(rules);
    let mut socket = WebSocket::open(hub.address, "/connect?channel=live:a", &[]).unwrap();
    assert!(frame(&socket.text()).get("client").is_none());
    assert_eq!(publish(&hub, "live:a", "x")["matched"], 0);
}

#[test]
fn a_client_gets_all_that_it_missed_or_is_told() {
    let hub = Hub::start(rules);
    let mut client = Client::open(&hub);
    let start = client.subscribe("short", None);
    publish(&hub, "short", "1");
    let one = client.next();
    drop(client);
    ["2", "3", "4"].into_iter().for_each(|text| drop(publish(&hub, "short", text)));

    let mut client = Client::open(&hub);
    let subscribed = client.subscribe("short", Some(&one));
    assert_eq!((&subscribed["recovered"], &subscribed["offset"]), (&json!(true), &json!(4)));
    for text in ["2", "3", "4"] {
        assert_eq!(
            client.next(),
            json!({ "channel": "short", "epoch": one["epoch"], "offset": text.parse::<u64>().unwrap(), "text": text })
        );
    }
    let mut late = Client::open(&hub);
    let subscribed = late.subscribe("short", Some(&start));
    assert_eq!((&subscribed["recovered"], &subscribed["offset"]), (&json!(false), &json!(4)), "the first one is gone");
    for since in [json!({ "epoch": "0", "offset": 1 }), json!({ "epoch": one["epoch"], "offset": 5 })] {
        let mut client = Client::open(&hub);
        assert_eq!(client.subscribe("short", Some(&since))["recovered"], false, "{since}");
    }
    publish(&hub, "short", "5");
    assert_eq!((client.next()["offset"].clone(), late.next()["offset"].clone()), (json!(5), json!(5)));
    let history = client.ask(json!({ "history": { "channel": "short", "limit": 2 } }))["history"].clone();
    let texts: Vec<&Value> = history["messages"].as_array().unwrap().iter().map(|message| &message["text"]).collect();
    assert_eq!((texts, &history["offset"]), (vec![&json!("4"), &json!("5")], &json!(5)));

    // The newest value alone.
    ["10", "11"].into_iter().for_each(|text| drop(publish(&hub, "price", text)));
    let place = client.subscribe("price", None);
    let newest = client.next();
    assert_eq!((&newest["text"], &newest["offset"]), (&json!("11"), &place["offset"]));
    let status = hub.status();
    assert_eq!(status["histories"]["channels"], 2, "{status}");
}

#[test]
fn a_recovery_that_does_not_fit_the_queue_is_none() {
    let hub = Hub::start(|plan| {
        rules(plan);
        plan.limits.session_queue_messages = 10;
    });
    let mut client = Client::open(&hub);
    let start = client.subscribe("kept:a", None);
    drop(client);
    (0..6).for_each(|number| drop(publish(&hub, "kept:a", &number.to_string())));
    let mut client = Client::open(&hub);
    let subscribed = client.subscribe("kept:a", Some(&start));
    assert_eq!((&subscribed["recovered"], &subscribed["offset"]), (&json!(false), &json!(6)));
}

#[test]
fn events_streams_and_polls_subscribe_recover_and_send_commands() {
    let hub = Hub::start(rules);
    publish(&hub, "kept:a", "1");
    let target = "/connect?protocol=oroshi.v1&channel=kept:a";
    let mut events = Chunks::open(connect(hub.address), target, &[("Accept", "text/event-stream")]);
    let data = |event: String| frame(event.trim_end().rsplit("data: ").next().unwrap());
    let first = data(events.next().unwrap());
    let place = data(events.next().unwrap())["subscribed"].clone();
    assert_eq!(place["offset"], 1);
    publish(&hub, "kept:a", "2");
    let event = events.next().unwrap();
    let id = format!("{}:2", place["epoch"].as_str().unwrap());
    assert!(event.starts_with(&format!("id: {id}\ndata: {{")), "{event}");

    // A command beside it: the answer to a subscription is a frame too, before what was missed.
    let (key, token) = (first["session"].as_str().unwrap(), first["token"].as_str().unwrap());
    let command = format!("/command?session={key}&token={token}");
    publish(&hub, "kept:b", "b1");
    let since = json!({ "epoch": "0123456789abcdef", "offset": 0 });
    let body = json!([{ "id": 4, "subscribe": { "channel": "kept:b", "since": since } }, { "id": 5, "ping": {} }]);
    let answers = hub.request("POST", &command, &[], body.to_string().as_bytes()).json();
    assert_eq!((&answers[0]["subscribed"]["recovered"], &answers[1]["id"]), (&json!(false), &json!(5)), "{answers}");
    assert_eq!(data(events.next().unwrap()), answers[0]);
    let wrong = format!("/command?session={key}&token={token}x");
    assert_eq!(hub.request("POST", &wrong, &[], br#"{"id":1,"ping":{}}"#).status, 404);

    // A browser comes back with the last id.
    drop(events);
    publish(&hub, "kept:a", "3");
    let fields = [("Accept", "text/event-stream"), ("Last-Event-ID", &id)];
    let mut events = Chunks::open(connect(hub.address), target, &fields);
    events.next().unwrap();
    assert_eq!(data(events.next().unwrap())["subscribed"]["recovered"], true);
    assert_eq!(data(events.next().unwrap())["text"], "3");

    // A stream and a poll recover by the query.
    let since = format!("{target}&since={id}&channel=live:a");
    let mut lines = Chunks::open(connect(hub.address), &since, &[]);
    let mut next = || frame(&lines.next().unwrap());
    assert!(next()["token"].is_string());
    assert_eq!((next()["subscribed"]["recovered"].clone(), next()["text"].clone()), (json!(true), json!("3")));
    assert_eq!(next()["subscribed"], json!({ "channel": "live:a" }));
    let polling = hub.request("GET", &format!("{since}&transport=poll"), &[], b"").json();
    assert!(polling["client"].is_string(), "{polling}");
    let (key, token) = (polling["session"].as_str().unwrap(), polling["token"].as_str().unwrap());
    let messages =
        hub.request("GET", &format!("/poll?session={key}&token={token}"), &[], b"").json()["messages"].clone();
    assert_eq!(
        (&messages[0]["subscribed"]["recovered"], &messages[1]["text"]),
        (&json!(true), &json!("3")),
        "{messages}"
    );
    let pong = hub.request("POST", &format!("/command?session={key}&token={token}"), &[], br#"{"id":1,"ping":{}}"#);
    assert_eq!(pong.json(), json!({ "id": 1, "pong": {} }));
}

#[test]
fn patterns_reach_all_channels_with_a_prefix_and_each_message_once() {
    let hub = Hub::start(rules);
    let mut client = Client::open(&hub);
    assert_eq!(client.subscribe("kept:*", None), json!({ "channel": "kept:*" }));
    assert_eq!(client.subscribe("kept:a", None)["offset"], 0);
    assert_eq!(publish(&hub, "kept:a", "1")["matched"], 1, "once, although both fit");
    assert_eq!(publish(&hub, "kept:b", "2")["matched"], 1);
    assert_eq!(publish(&hub, "live:a", "no")["matched"], 0);
    assert_eq!((client.next()["text"].clone(), client.next()["channel"].clone()), (json!("1"), json!("kept:b")));
    client.ask(json!({ "unsubscribe": { "channel": "kept:*" } }));
    assert_eq!(publish(&hub, "kept:b", "3")["matched"], 0);
}

#[test]
fn clients_publish_within_their_rate_and_see_each_other() {
    let hub = Hub::start(|plan| {
        rules(plan);
        plan.limits.client_publishes = Some(1);
    });
    let (mut one, mut two) = (Client::open(&hub), Client::open(&hub));
    one.subscribe("kept:a", None);
    two.subscribe("kept:a", None);
    one.send(&json!({ "publish": { "channel": "kept:a", "json": { "n": 1 } } }));
    let from = json!({ "client": one.client() });
    for client in [&mut one, &mut two] {
        let message = client.next();
        assert_eq!((&message["from"], &message["text"]), (&from, &json!("{\"n\":1}")), "{message}");
    }
    // As many as it likes, until the rate is reached.
    let refused = (0..).find_map(|_| {
        let answer = two.ask(json!({ "publish": { "channel": "live:nobody", "text": "x" } }));
        answer["error"].as_str().map(str::to_owned)
    });
    assert_eq!(refused.as_deref(), Some("too-fast"));

    let presence = one.ask(json!({ "presence": { "channel": "kept:a" } }))["presence"].clone();
    let mut list: Vec<&str> =
        presence["list"].as_array().unwrap().iter().map(|who| who["client"].as_str().unwrap()).collect();
    let mut expected = [one.client(), two.client()];
    list.sort_unstable();
    expected.sort_unstable();
    assert_eq!((list, &presence["clients"]), (expected.to_vec(), &json!(2)));
}

#[test]
fn the_backend_names_the_user_its_rights_and_its_channels() {
    let backend = Backend::start(|_| {
        let fields = "X-Kuiperbelt-Session: k\r\nX-Oroshi-Groups: kept:mine\r\nX-Oroshi-User: ann\r\n\
                      X-Oroshi-Rights: room:* subscribe publish, kept:x history\r\n";
        (200, fields.to_owned(), "hello".to_owned())
    });
    let hub = Hub::start(|plan| {
        rules(plan);
        plan.callbacks.connect = backend.url("/connect");
    });
    let mut client = Client::open(&hub);
    assert_eq!(client.first["session"], "k");
    let frames = [client.next(), client.next()];
    assert!(frames.contains(&json!({ "text": "hello" })), "{frames:?}");
    assert!(frames.iter().any(|frame| frame["subscribed"]["channel"] == "kept:mine"), "{frames:?}");
    client.subscribe("users", None);
    client.subscribe("room:1", None);
    client.send(&json!({ "publish": { "channel": "room:1", "text": "hi" } }));
    assert_eq!(client.next()["from"]["user"], "ann");
    assert_eq!(client.ask(json!({ "publish": { "channel": "users", "text": "hi" } }))["error"], "forbidden");
    assert_eq!(hub.request("DELETE", "/sessions/k/groups/kept:mine", &[], b"").status, 204);
    assert_eq!(client.next(), json!({ "channel": "kept:mine", "unsubscribed": "forbidden" }));
}

#[test]
fn a_storm_of_clients_comes_back_and_each_gets_all_that_it_missed_without_the_backend() {
    const CLIENTS: usize = 200;
    const MISSED: u64 = 50;
    let hub = Hub::start(rules);
    let mut first = Client::open(&hub);
    let start = first.subscribe("kept:a", None);
    (0..MISSED).for_each(|number| drop(publish(&hub, "kept:a", &number.to_string())));
    std::thread::scope(|scope| {
        // Live messages arrive while the clients come back.
        let publisher = scope.spawn(|| {
            (MISSED..2 * MISSED).for_each(|number| drop(publish(&hub, "kept:a", &number.to_string())));
        });
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..CLIENTS / 8 {
                    let mut client = Client::open(&hub);
                    let subscribed = client.subscribe("kept:a", Some(&start));
                    assert_eq!(subscribed["recovered"], true, "{subscribed}");
                    for number in 0..2 * MISSED {
                        let message = client.next();
                        assert_eq!(
                            (&message["text"], &message["offset"]),
                            (&json!(number.to_string()), &json!(number + 1))
                        );
                    }
                }
            });
        }
        publisher.join().unwrap();
    });
}

#[test]
fn nodes_share_channels_and_presence_and_a_history_that_missed_something_recovers_nobody() {
    let Some(mut nats) = Nats::start("nodes_share_channels", &[]) else { return };
    let change = |plan: &mut Plan| {
        rules(plan);
        plan.groups.iter_mut().for_each(|rule| rule.slow = SlowPolicy::DropOldest);
    };
    let hubs = [nats.node(2, change), nats.node(2, change)];
    hubs.iter().for_each(|hub| knows(hub, 1));
    let (mut near, mut far) = (Client::open(&hubs[0]), Client::open(&hubs[1]));
    near.subscribe("kept:a", None);
    let place = far.subscribe("kept:a", None);
    near.send(&json!({ "publish": { "channel": "kept:a", "text": "1" } }));
    let message = far.next();
    assert_eq!((&message["text"], &message["from"]["client"]), (&json!("1"), &json!(near.client())));
    assert_eq!(near.next()["text"], "1");
    let presence = far.ask(json!({ "presence": { "channel": "kept:a" } }));
    assert_eq!(presence["presence"]["clients"], 2, "{presence}");

    // The same node recovers, another one says that it cannot.
    let mut again = Client::open(&hubs[1]);
    assert_eq!(again.subscribe("kept:a", Some(&place))["recovered"], true);
    assert_eq!(again.next()["text"], "1");
    let mut elsewhere = Client::open(&hubs[0]);
    assert_eq!(elsewhere.subscribe("kept:a", Some(&message))["recovered"], false);

    nats.kill();
    hubs[1].until("the link is lost", |status| status["cluster"]["connected"] == false);
    hubs[0].until("the link is lost", |status| status["cluster"]["connected"] == false);
    assert_eq!(publish(&hubs[0], "kept:a", "missed")["matched"], 2);
    nats.restart();
    hubs.iter().for_each(|hub| knows(hub, 1));
    assert_eq!(far.next(), json!({ "gap": null }), "the hub tells connected clients of the gap");
    let mut back = Client::open(&hubs[1]);
    assert_eq!(back.subscribe("kept:a", Some(&message))["recovered"], false, "and those that come back");
}

/// Channels that come and go leave nothing behind beyond `limits.history-bytes`. `OROSHI_CHANNELS` says how many, of
/// which a million is worth a run now and then.
#[test]
fn channels_that_come_and_go_leave_nothing_behind() {
    const AT_A_TIME: usize = 50;
    let count = std::env::var("OROSHI_CHANNELS").ok().and_then(|text| text.parse().ok()).unwrap_or(3000);
    // Room for a tenth of the channels, or for 10,000.
    let most = (count / 10).min(10_000) * 1000;
    let hub = Hub::start(|plan| {
        rules(plan);
        plan.limits.history_bytes = most;
    });
    let mut client = Client::open(&hub);
    for first in (0..count).step_by(AT_A_TIME) {
        let names: Vec<String> = (first..count.min(first + AT_A_TIME)).map(|number| format!("kept:{number}")).collect();
        for channel in &names {
            client.send(&json!({ "id": 1, "subscribe": { "channel": channel } }));
            client.send(&json!({ "publish": { "channel": channel, "text": "a message" } }));
            client.send(&json!({ "id": 2, "unsubscribe": { "channel": channel } }));
        }
        for channel in &names {
            for member in ["subscribed", "text", "unsubscribed"] {
                let frame = client.next();
                let of = if member == "text" { &frame["channel"] } else { &frame[member]["channel"] };
                assert!(of == channel.as_str() && frame.get(member).is_some(), "{channel} {member}: {frame}");
            }
        }
        let status = hub.status();
        assert!(status["histories"]["bytes"].as_u64().unwrap() <= most as u64, "{status}");
    }
    let status = hub.status();
    let channels = status["histories"]["channels"].as_u64().unwrap();
    assert!(channels > 0 && channels < count as u64, "the oldest are forgotten: {status}");
    assert_eq!(hub.request("GET", "/groups", &[], b"").json(), json!({ "groups": [] }));
    // The newest is still remembered.
    let place = client.subscribe(&format!("kept:{}", count - 1), None);
    assert_eq!(place["offset"], 1, "{place}");
}
