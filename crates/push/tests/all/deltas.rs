//! Deltas: a client that asks for them gets what differs from the publication that it has, and only then.

use oroshi_push::{Access, GroupRule, HistoryRule, Plan, SlowPolicy};
use oroshi_websocket::Kind;
use serde_json::{Value, json};

use crate::hub::{Client, Hub};
use crate::nats::knows;
use crate::stream::{follows, jetstream, stored};

fn rule(pattern: &str, keeps: HistoryRule) -> GroupRule {
    let (subscribe, slow) = (Access::Anyone, SlowPolicy::DropOldest);
    GroupRule {
        pattern: pattern.into(),
        subscribe,
        subscribe_patterns: true,
        slow,
        keeps: Some(keeps),
        ..GroupRule::default()
    }
}

fn rules(plan: &mut Plan) {
    plan.threads = 2;
    let delta = HistoryRule { delta: true, ..HistoryRule::default() };
    plan.groups = vec![
        rule("price", HistoryRule { latest: true, ..delta }),
        rule("whole", HistoryRule::default()),
        rule("*", delta),
    ];
}

/// A text of which little changes.
fn text(number: u32) -> String {
    format!(
        "{{\"name\":\"something with a long name\",\"place\":\"far away\",\"value\":{number},\"unit\":\"\u{e9}\u{1f600}\"}}"
    )
}

fn publish(hub: &Hub, channel: &str, text: &str) -> Value {
    hub.publish(json!({ "groups": [channel], "text": text, "wait": "written" }))
}

/// A client that takes deltas, with what it has of one channel.
struct Taker {
    client: Client,
    has: Option<(Value, String)>,
}

impl Taker {
    fn open(hub: &Hub, channel: &str, since: Option<&Value>) -> (Taker, Value) {
        let mut client = Client::open(hub);
        let mut subscribe = json!({ "channel": channel, "delta": true });
        if let Some(since) = since {
            subscribe["since"] = json!({ "epoch": since["epoch"], "offset": since["offset"] });
        }
        let answer = client.ask(json!({ "subscribe": subscribe }))["subscribed"].clone();
        (Taker { client, has: None }, answer)
    }

    /// Takes the next frame, and returns its text and whether it was a delta.
    fn next(&mut self) -> (String, bool) {
        let frame = self.client.next();
        let Some(steps) = frame.get("delta") else {
            let text = frame["text"].as_str().unwrap_or_else(|| panic!("{frame}")).to_owned();
            self.has = Some((frame["offset"].clone(), text.clone()));
            return (text, false);
        };
        let (offset, old) = self.has.take().unwrap();
        assert!(frame["base"] == offset && frame.get("text").is_none(), "{frame}");
        let old: Vec<u16> = old.encode_utf16().collect();
        let (mut at, mut new) = (0, Vec::new());
        for step in steps.as_array().unwrap() {
            match (step.as_i64(), step.as_str()) {
                (Some(count), _) if count > 0 => {
                    new.extend_from_slice(&old[at..at + count as usize]);
                    at += count as usize;
                }
                (Some(count), _) => at += count.unsigned_abs() as usize,
                (_, Some(text)) => new.extend(text.encode_utf16()),
                _ => panic!("{frame}"),
            }
        }
        let text = String::from_utf16(&new).unwrap();
        self.has = Some((frame["offset"].clone(), text.clone()));
        (text, true)
    }
}

#[test]
fn whoever_has_the_message_before_gets_what_differs() {
    let hub = Hub::start(rules);
    publish(&hub, "price", &text(1));
    let (mut early, answer) = Taker::open(&hub, "price", None);
    assert_eq!((&answer["delta"], &answer["latest"]), (&json!(true), &json!(true)), "{answer}");
    assert_eq!(early.next(), (text(1), false), "the newest value");
    let mut plain = Client::open(&hub);
    plain.subscribe("price", None);
    assert_eq!(plain.next()["text"], text(1));
    let (mut late, _) = Taker::open(&hub, "a", None);

    for number in 2..=4 {
        assert_eq!(publish(&hub, "price", &text(number))["written"], 2);
        assert_eq!(early.next(), (text(number), true));
        assert_eq!(plain.next()["text"], text(number));
        publish(&hub, "a", &text(number));
        assert_eq!(late.next(), (text(number), number > 2), "the first it has nothing for");
    }
    // Nothing in common: the text itself. Bytes: no delta to them, and none from them.
    publish(&hub, "price", "x");
    assert_eq!(early.next(), ("x".into(), false));
    let bytes = hub.publish(json!({ "groups": ["price"], "base64": "AAAA", "wait": "written" }));
    assert_eq!((&bytes["written"], &early.client.next()["base64"]), (&json!(2), &json!("AAAA")));
    for (number, is_delta) in [(5, false), (6, true)] {
        publish(&hub, "price", &text(number));
        assert_eq!(early.next(), (text(number), is_delta));
    }
}

#[test]
fn whoever_may_lack_the_message_before_gets_the_whole_one() {
    let hub = Hub::start(rules);
    let (mut taker, place) = Taker::open(&hub, "a", None);
    for (number, is_delta) in [(1, false), (2, true)] {
        publish(&hub, "a", &text(number));
        assert_eq!(taker.next(), (text(number), is_delta));
    }
    // It is left out of one, and learns only its place.
    let key = taker.client.first["session"].clone();
    hub.publish(json!({ "groups": ["a"], "text": text(3), "except": [key] }));
    let position = taker.client.next();
    assert!(position["offset"] == 3 && position.get("text").is_none(), "{position}");
    for (number, is_delta) in [(4, false), (5, true)] {
        publish(&hub, "a", &text(number));
        assert_eq!(taker.next(), (text(number), is_delta));
    }
    // A message that expires may never arrive.
    hub.publish(json!({ "groups": ["a"], "text": text(6), "ttl": "1h", "wait": "written" }));
    assert_eq!(taker.next(), (text(6), true));
    for (number, is_delta) in [(7, false), (8, true)] {
        publish(&hub, "a", &text(number));
        assert_eq!(taker.next(), (text(number), is_delta));
    }
    // What it missed comes whole, and is then a base.
    let (mut back, answer) = Taker::open(&hub, "a", Some(&json!({ "epoch": place["epoch"], "offset": 7 })));
    assert_eq!((&answer["recovered"], back.next()), (&json!(true), (text(8), false)));
    // Whether a client has kept its last message, the hub does not know.
    let (mut again, _) = Taker::open(&hub, "a", Some(&json!({ "epoch": place["epoch"], "offset": 8 })));
    publish(&hub, "a", &text(9));
    assert_eq!((back.next(), again.next()), ((text(9), true), (text(9), false)));

    // Whoever begins again has nothing.
    assert!(back.client.ask(json!({ "unsubscribe": { "channel": "a" } })).get("error").is_none());
    let answer = back.client.ask(json!({ "subscribe": { "channel": "a", "delta": true } }));
    assert_eq!(answer["subscribed"]["delta"], true);
    publish(&hub, "a", &text(10));
    assert_eq!((back.next(), again.next()), ((text(10), false), (text(10), true)));
}

#[test]
fn channels_without_deltas_say_so() {
    let hub = Hub::start(rules);
    for channel in ["whole", "w*"] {
        let (mut taker, answer) = Taker::open(&hub, channel, None);
        assert!(answer["channel"] == channel && answer.get("delta").is_none(), "{answer}");
        for number in [1, 2] {
            publish(&hub, "whole", &text(number));
            assert_eq!(taker.next(), (text(number), false));
        }
    }
    let mut client = Client::open(&hub);
    client.socket.send(Kind::Text, br#"{"subscribe":{"channel":"a","delta":1}}"#);
    assert_eq!(client.next()["error"], "bad-command");
}

#[test]
fn every_node_makes_deltas_in_the_order_of_the_stream() {
    let Some((nats, _folder)) = jetstream("every_node_makes_deltas_in_the_order_of_the_stream") else { return };
    let start = |plan: &mut Plan| {
        stored(plan);
        let keeps = HistoryRule { delta: true, ..HistoryRule::default() };
        plan.groups.insert(0, rule("a", keeps));
    };
    let hubs = [nats.node(2, start), nats.node(1, start)];
    for hub in &hubs {
        knows(hub, 1);
        follows(hub);
    }
    let mut takers = [0, 1].map(|at: usize| Taker::open(&hubs[at], "a", None).0);
    for number in 1..=4_u32 {
        // Another channel's messages take numbers of the stream.
        publish(&hubs[0], "kept:b", "between");
        publish(&hubs[number as usize % 2], "a", &text(number));
        for taker in &mut takers {
            assert_eq!(taker.next(), (text(number), number > 1));
        }
    }
}
