//! Histories in JetStream: one order for all nodes, positions that every node knows, and what outlives nodes and NATS.

use std::collections::HashSet;
use std::time::Instant;

use oroshi_push::{Access, GroupRule, HistoryRule, Plan, SlowPolicy, StreamSettings};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::hub::{Answer, Client, Hub, PATIENCE};
use crate::nats::{Nats, knows, nodes};

/// The most messages that `short` keeps.
const SHORT: usize = 3;

/// A rule for a channel that everybody may use in every way.
fn rule(pattern: &str, keeps: HistoryRule) -> GroupRule {
    let anyone = Access::Anyone;
    GroupRule {
        pattern: pattern.into(),
        subscribe: anyone,
        publish: anyone,
        history: anyone,
        presence: anyone,
        keeps: Some(keeps),
        // A session that is told of a loss stays.
        slow: SlowPolicy::DropOldest,
        ..GroupRule::default()
    }
}

/// A node whose histories are in JetStream.
pub(crate) fn stored(plan: &mut Plan) {
    plan.cluster.as_mut().unwrap().history = Some(StreamSettings::default());
    plan.limits.client_publishes = None;
    plan.groups = vec![
        rule("short", HistoryRule { messages: SHORT, ..HistoryRule::default() }),
        rule("price", HistoryRule { latest: true, ..HistoryRule::default() }),
        rule("kept:*", HistoryRule::default()),
    ];
}

/// A NATS server with JetStream, whose files are in a folder.
pub(crate) fn jetstream(test: &str) -> Option<(Nats, TempDir)> {
    let folder = TempDir::new().unwrap();
    Nats::start(test, &["-js", "-sd", folder.path().to_str().unwrap()]).map(|nats| (nats, folder))
}

pub(crate) fn follows(hub: &Hub) {
    hub.until("the stream", |status| status["cluster"]["following"] == true);
}

/// Nodes that know each other, and the stream.
fn start(nats: &Nats, count: usize) -> Vec<Hub> {
    let hubs: Vec<Hub> = (0..count).map(|_| nats.node(2, stored)).collect();
    for hub in &hubs {
        knows(hub, count - 1);
        follows(hub);
    }
    hubs
}

pub(crate) fn publish(hub: &Hub, channel: &str, text: &str) -> Value {
    hub.publish(json!({ "groups": [channel], "text": text, "wait": "written", "deadline": "30s" }))
}

/// The next so many publications of a client, each of which names the one before it.
pub(crate) fn texts(client: &mut Client, count: usize, at: &mut Value) -> Vec<String> {
    let one = |_| {
        let frame = client.next();
        let [prev, offset] = ["prev", "offset"].map(|name| frame[name].as_u64().unwrap_or_else(|| panic!("{frame}")));
        assert!(prev <= at["offset"].as_u64().unwrap() && at["offset"].as_u64().unwrap() < offset, "{at} {frame}");
        assert_eq!(frame["epoch"], at["epoch"], "{frame}");
        *at = frame.clone();
        frame["text"].as_str().unwrap().to_owned()
    };
    (0..count).map(one).collect()
}

pub(crate) fn numbered(what: &str, count: usize) -> Vec<String> {
    (0..count).map(|number| format!("{what} {number}")).collect()
}

#[test]
fn all_nodes_have_one_order_and_a_client_recovers_on_any_of_them() {
    const EACH: usize = 30;
    let test = "all_nodes_have_one_order_and_a_client_recovers_on_any_of_them";
    let Some((nats, _folder)) = jetstream(test) else { return };
    let hubs = start(&nats, 3);
    let mut clients: Vec<Client> = hubs.iter().map(Client::open).collect();
    let mut places: Vec<Value> = clients.iter_mut().map(|client| client.subscribe("kept:a", None)).collect();
    std::thread::scope(|scope| {
        for (publisher, hub) in hubs.iter().enumerate() {
            scope.spawn(move || {
                for number in 0..EACH {
                    let receipt = publish(hub, "kept:a", &format!("{publisher} {number}"));
                    assert_eq!((&receipt["written"], nodes(&receipt)), (&json!(3), (3, 3)), "{receipt}");
                }
            });
        }
    });
    let all: Vec<Vec<String>> =
        clients.iter_mut().zip(&mut places).map(|(client, place)| texts(client, 3 * EACH, place)).collect();
    assert!(all[0] == all[1] && all[1] == all[2], "one order");
    for publisher in 0..3 {
        let of: Vec<_> = all[0].iter().filter(|text| text.starts_with(&format!("{publisher} "))).cloned().collect();
        assert_eq!(of, numbered(&publisher.to_string(), EACH), "each publisher's own order");
    }
    assert_eq!(places[0]["offset"], places[1]["offset"]);

    // It leaves one node, misses something, and comes to another one, on which nobody has subscribed before.
    drop(clients.remove(0));
    let fresh = nats.node(2, stored);
    follows(&fresh);
    let missed = numbered("missed", 5);
    missed.iter().for_each(|text| drop(publish(&hubs[1], "kept:a", text)));
    for hub in [&hubs[1], &hubs[2], &fresh] {
        let mut client = Client::open(hub);
        let mut place = places[0].clone();
        assert_eq!(client.subscribe("kept:a", Some(&place))["recovered"], true);
        assert_eq!(texts(&mut client, 5, &mut place), missed);
        // And by the parameters of `/connect`, from before this node began.
        let since = format!("{}:{}", places[0]["epoch"].as_str().unwrap(), places[0]["offset"]);
        let target = format!("/connect?channel=kept:a&since={since}");
        let mut other = Client::open_with(hub.address, &target);
        let answer = other.next();
        assert_eq!(answer["subscribed"]["recovered"], true, "{answer}");
        assert_eq!(texts(&mut other, 5, &mut places[0].clone()), missed);
    }
    // The position of the future is nobody's.
    let mut client = Client::open(&hubs[0]);
    let future = json!({ "epoch": places[0]["epoch"], "offset": 1_000_000 });
    assert_eq!(client.subscribe("kept:a", Some(&future))["recovered"], false);
}

#[test]
fn histories_outlive_all_nodes_and_a_nats_that_is_killed() {
    let test = "histories_outlive_all_nodes_and_a_nats_that_is_killed";
    let Some((mut nats, _folder)) = jetstream(test) else { return };
    let channels = ["kept:a", "short", "price"];
    let mut places: Vec<Value> = Vec::new();
    {
        let hubs = start(&nats, 2);
        let mut client = Client::open(&hubs[0]);
        for channel in channels {
            publish(&hubs[1], channel, "before");
            places.push(client.subscribe(channel, None));
        }
        for channel in channels {
            numbered(channel, 4).iter().for_each(|text| drop(publish(&hubs[1], channel, text)));
        }
    }
    nats.kill();
    nats.restart();
    let hub = nats.node(2, stored);
    follows(&hub);
    let mut client = Client::open(&hub);
    let recover = |client: &mut Client, at: usize| client.subscribe(channels[at], Some(&places[at]));
    assert_eq!(recover(&mut client, 0)["recovered"], true);
    assert_eq!(texts(&mut client, 4, &mut places[0].clone()), numbered("kept:a", 4));
    assert_eq!(recover(&mut client, 1)["recovered"], false, "more than it keeps");
    assert_eq!(recover(&mut client, 2)["recovered"], true);
    assert_eq!(client.next()["text"], "price 3", "the newest value");
    let history = client.ask(json!({ "history": { "channel": "short" } }));
    let kept: Vec<_> = history["history"]["messages"].as_array().unwrap().iter().map(|one| &one["text"]).collect();
    assert_eq!(kept, ["short 1", "short 2", "short 3"]);
    // What follows continues it.
    publish(&hub, "kept:a", "after");
    assert_eq!(client.next()["text"], "after");

    // Another stream has another epoch.
    drop(client);
    drop(hub);
    nats.kill();
    let empty = TempDir::new().unwrap();
    let nats = Nats::start(test, &["-js", "-sd", empty.path().to_str().unwrap()]).unwrap();
    let hub = nats.node(2, stored);
    follows(&hub);
    numbered("other", 9).iter().for_each(|text| drop(publish(&hub, "kept:a", text)));
    let place = Client::open(&hub).subscribe("kept:a", Some(&places[0]));
    assert_eq!((&place["recovered"], place["epoch"] == places[0]["epoch"]), (&json!(false), false), "{place}");
}

/// While NATS is away, a publish to such a channel fails and reaches nobody; what is confirmed reaches everybody once.
#[test]
fn a_publish_without_nats_fails_and_what_is_confirmed_comes_once() {
    let test = "a_publish_without_nats_fails_and_what_is_confirmed_comes_once";
    let Some((mut nats, _folder)) = jetstream(test) else { return };
    let hubs = start(&nats, 2);
    let mut clients: Vec<Client> = hubs.iter().map(Client::open).collect();
    let mut places: Vec<Value> = clients.iter_mut().map(|client| client.subscribe("kept:a", None)).collect();
    publish(&hubs[0], "kept:a", "before");
    let mut confirmed = vec!["before".to_owned()];
    for outage in 0..2 {
        nats.kill();
        hubs.iter().for_each(|hub| drop(hub.until("no NATS", |status| status["cluster"]["following"] == false)));
        let answer = try_publish(&hubs[0], "lost");
        assert_eq!((answer.status, answer.json()["error"].clone()), (503, json!("history-unreached")));
        let answer = Client::open(&hubs[1]).ask(json!({ "publish": { "channel": "kept:a", "text": "lost" } }));
        assert_eq!(answer["error"], "busy", "{answer}");
        // Who comes back meanwhile has what this node knows.
        let (mut back, mut at) = (Client::open(&hubs[1]), places[1].clone());
        assert_eq!(back.subscribe("kept:a", Some(&at))["recovered"], true);
        nats.restart();
        hubs.iter().for_each(follows);
        let text = format!("after {outage}");
        publish(&hubs[outage], "kept:a", &text);
        confirmed.push(text);
        assert_eq!(texts(&mut back, confirmed.len(), &mut at), confirmed, "in this order, outage {outage}");
    }
    for (client, place) in clients.iter_mut().zip(&mut places) {
        assert_eq!(texts(client, confirmed.len(), place), confirmed);
    }
    // Nobody was told of a gap: nothing was missed.
    publish(&hubs[0], "kept:a", "end");
    clients.iter_mut().for_each(|client| assert_eq!(client.next()["text"], "end"));
}

/// Nothing is lost while NATS stands still. A publish that was not confirmed may come or not, but once.
#[test]
fn a_nats_that_stands_still_loses_nothing_that_was_confirmed() {
    let test = "a_nats_that_stands_still_loses_nothing_that_was_confirmed";
    let Some((nats, _folder)) = jetstream(test) else { return };
    let quick = |plan: &mut Plan| {
        stored(plan);
        plan.cluster.as_mut().unwrap().receipt_timeout = std::time::Duration::from_millis(300);
    };
    let hubs: Vec<Hub> = (0..2).map(|_| nats.node(2, quick)).collect();
    for hub in &hubs {
        knows(hub, 1);
        follows(hub);
    }
    let mut client = Client::open(&hubs[1]);
    let mut place = client.subscribe("kept:a", None);
    nats.freeze();
    let mut unconfirmed = HashSet::new();
    let start = Instant::now();
    for number in 0.. {
        let text = format!("frozen {number}");
        let answer = try_publish(&hubs[0], &text);
        match answer.json()["error"].as_str() {
            Some("unconfirmed") => drop(unconfirmed.insert(text)),
            Some("history-unreached") => break,
            _ => panic!("{}", answer.text()),
        }
        assert!(start.elapsed() < PATIENCE, "it never notices");
    }
    assert!(!unconfirmed.is_empty());
    nats.thaw();
    hubs.iter().for_each(follows);
    let mut confirmed = Vec::new();
    for number in 0..20 {
        let text = format!("after {number}");
        if try_publish(&hubs[0], &text).status == 200 {
            confirmed.push(text);
        }
    }
    let mut came = Vec::new();
    while came.len() < confirmed.len() {
        let text = texts(&mut client, 1, &mut place).remove(0);
        if text.starts_with("frozen") {
            assert!(unconfirmed.remove(&text), "{text} came twice");
        } else if confirmed.contains(&text) {
            came.push(text);
        }
    }
    assert_eq!(came, confirmed);
}

fn try_publish(hub: &Hub, text: &str) -> Answer {
    hub.request("POST", "/publish/raw?group=kept:a&deadline=30s", &[("Content-Type", "text/plain")], text.as_bytes())
}
