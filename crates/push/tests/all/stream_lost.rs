//! What a stream in JetStream loses: by a crash, a backup, its bounds. Nobody is told more than the truth.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use oroshi_push::StreamSettings;
use oroshi_testkit::daemon;
use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::cluster_faults::{FarNode, STREAM};
use crate::hub::{self, Client, Hub};
use crate::nats::{Nats, freeze, knows, nodes};
use crate::stream::{follows, jetstream, numbered, publish, stored, texts};

/// A node with histories in JetStream that can stand still.
fn far(nats: &Nats) -> FarNode {
    let node = FarNode::with(nats, &[(STREAM, Path::new("1"))]);
    following(&node);
    node
}

fn following(node: &FarNode) {
    node.until("the stream", |cluster| cluster["following"] == true);
}

/// Publishes on a node, once it is stored.
fn say(address: SocketAddr, channel: &str, text: &str) {
    let target = format!("/publish/raw?group={channel}&wait=queued&deadline=30s");
    let answer = hub::request(address, "POST", &target, &[("Content-Type", "text/plain")], text.as_bytes());
    assert_eq!(answer.status, 200, "{}", answer.text());
}

/// Copies a folder, which must not be there yet.
fn copy(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg("-a").args([from, to]).status().unwrap().success());
}

/// The next frame that is no gap.
fn next(client: &mut Client) -> Value {
    loop {
        let frame = client.next();
        if frame.get("gap").is_none() {
            return frame;
        }
    }
}

/// The stream is put back to an earlier state, and gives its numbers to other messages, before a node is back that has
/// handed out messages with these numbers. That node begins another epoch, also on the nodes that noticed nothing.
#[test]
fn a_stream_that_lost_its_newest_messages_gets_another_epoch_whoever_publishes_first() {
    let test = "a_stream_that_lost_its_newest_messages_gets_another_epoch_whoever_publishes_first";
    let Some((mut nats, folder)) = jetstream(test) else { return };
    let (files, backup) = (folder.path().join("jetstream"), TempDir::new().unwrap());
    let kept = backup.path().join("jetstream");
    let far = far(&nats);
    say(far.address, "kept:a", "first");
    nats.kill();
    copy(&files, &kept);
    nats.restart();
    far.until("no NATS", |cluster| cluster["connects"] == 2);
    following(&far);
    let mut client = Client::open_with(far.address, "/connect");
    let mut place = client.subscribe("kept:a", None);
    for text in numbered("lost", 3) {
        say(far.address, "kept:a", &text);
        assert_eq!(texts(&mut client, 1, &mut place), [text]);
    }

    freeze(&far.child);
    nats.kill();
    std::fs::remove_dir_all(&files).unwrap();
    copy(&kept, &files);
    nats.restart();
    let fresh = nats.node(2, stored);
    follows(&fresh);
    let mut reader = Client::open(&fresh);
    let before = reader.subscribe("kept:a", None);
    for text in numbered("new", 5) {
        publish(&fresh, "kept:a", &text);
        assert_eq!(reader.next()["text"], text);
    }
    daemon::signal(&far.child, Signal::CONT);

    // The change comes in the stream, so the node that noticed nothing has each message in one epoch or the other.
    let changed = loop {
        publish(&fresh, "kept:a", "after");
        let frame = next(&mut reader);
        assert_eq!(frame["text"], "after", "{frame}");
        if frame["epoch"] != before["epoch"] {
            break frame;
        }
    };
    following(&far);
    for address in [far.address, fresh.address] {
        let mut back = Client::open_with(address, "/connect");
        let answer = back.subscribe("kept:a", Some(&place));
        assert_eq!((&answer["recovered"], &answer["epoch"]), (&json!(false), &changed["epoch"]), "{answer}");
        // What the nodes say now holds on all of them.
        let mut back = Client::open_with(address, "/connect");
        assert_eq!(back.subscribe("kept:a", Some(&changed))["recovered"], true);
    }
    // A node that begins later knows it from the stream.
    let last = nats.node(2, stored);
    follows(&last);
    let mut back = Client::open(&last);
    assert_eq!(back.subscribe("kept:a", Some(&changed))["recovered"], true);
    assert_eq!(Client::open(&last).subscribe("kept:a", Some(&place))["recovered"], false);
}

/// A node stands still while a busy channel pushes out its own oldest messages, between those of other channels.
///
/// It tells its sessions of the holes a few times at most, however many there are, and each channel shows its own. The
/// last message that the node had is gone, too. But NATS ran on, so nothing was lost, and the epoch stays.
#[test]
fn a_hundred_holes_are_told_a_few_times_and_end_no_epoch() {
    const BUSY: usize = 600;
    const EVERY: usize = 3;
    let Some((nats, _folder)) = jetstream("a_hundred_holes_are_told_a_few_times_and_end_no_epoch") else { return };
    let far = far(&nats);
    let fresh = nats.node(2, stored);
    follows(&fresh);
    knows(&fresh, 1);
    let mut client = Client::open_with(far.address, "/connect");
    let place = client.subscribe("short", None);
    let rare: Vec<String> = (0..BUSY / EVERY).map(|number| format!("kept:{number}")).collect();
    // Behind what NATS may have sent to the node before it noticed that it stands still.
    let some = &rare[60..110];
    for channel in some {
        client.subscribe(channel, None);
    }
    publish(&fresh, "short", "before");
    assert_eq!(client.next()["text"], "before");
    freeze(&far.child);
    knows(&fresh, 0);
    for number in 0..BUSY {
        if number % EVERY == 0 {
            say(fresh.address, &rare[number / EVERY], "rare");
        }
        say(fresh.address, "short", &format!("busy {number}"));
    }
    daemon::signal(&far.child, Signal::CONT);
    let (mut gaps, mut came, mut has_hole, mut at) = (0, 0, false, place["offset"].as_u64().unwrap() + 1);
    loop {
        let frame = client.next();
        if frame.get("gap").is_some() {
            gaps += 1;
            continue;
        }
        assert_eq!(frame["epoch"], place["epoch"], "{frame}");
        if frame["text"] == "rare" {
            came += 1;
            continue;
        }
        has_hole |= frame["prev"].as_u64().unwrap() > at;
        at = frame["offset"].as_u64().unwrap();
        if frame["text"] == format!("busy {}", BUSY - 1) {
            break;
        }
    }
    assert_eq!((came, has_hole), (some.len(), true));
    assert!((1..some.len() / 4).contains(&gaps), "{gaps} gaps");
}

/// A session that subscribed before its node ever reached the stream has no position: it is told that it may lack
/// something. And a subscription that the history does not count is not counted off, either.
#[test]
fn sessions_from_before_the_stream_was_reached_are_told() {
    let Some((mut nats, _folder)) = jetstream("sessions_from_before_the_stream_was_reached_are_told") else { return };
    nats.kill();
    let hub = nats.node(1, |plan| {
        stored(plan);
        // Clients that wait do not answer pings.
        plan.limits.ping = None;
        for rule in &mut plan.groups {
            rule.keeps.as_mut().unwrap().time = std::time::Duration::from_millis(100);
        }
    });
    let mut early = Client::open(&hub);
    let answer = early.subscribe("kept:a", None);
    assert_eq!(answer.get("epoch"), None, "{answer}");
    nats.restart();
    follows(&hub);
    assert_eq!(early.next(), json!({ "gap": null }));
    let mut late = Client::open(&hub);
    let mut place = late.subscribe("kept:a", None);
    assert!(place.get("epoch").is_some(), "{place}");
    publish(&hub, "kept:a", "first");
    assert_eq!(early.next()["text"], "first");
    assert_eq!(texts(&mut late, 1, &mut place), ["first"]);
    drop(early);
    hub.until("that it has gone", |status| status["sessions"]["current"] == 1);
    // Another channel is forgotten after its time; this one has a subscriber.
    publish(&hub, "kept:b", "unheard");
    hub.until("that a channel is forgotten", |status| status["histories"]["channels"] == 1);
    publish(&hub, "kept:c", "unheard");
    hub.until("that another one is", |status| status["histories"]["channels"] == 1);
    publish(&hub, "kept:a", "second");
    let frame = late.next();
    assert_eq!((&frame["text"], &frame["prev"]), (&json!("second"), &place["offset"]), "nobody is alarmed");
}

/// A publish to several channels is stored in none of them if it cannot be in all.
#[test]
fn a_publish_that_does_not_fit_into_each_channel_reaches_none() {
    let Some((nats, _folder)) = jetstream("a_publish_that_does_not_fit_into_each_channel_reaches_none") else { return };
    let hub: Hub = nats.node(2, stored);
    follows(&hub);
    let mut client = Client::open(&hub);
    client.subscribe("kept:a", None);
    let long = format!("kept:{}", "x".repeat(3000));
    let envelope = json!({ "groups": ["kept:a", long], "text": "lost" });
    let json = [("Content-Type", "application/json")];
    let answer = hub.request("POST", "/publish", &json, envelope.to_string().as_bytes());
    assert_eq!((answer.status, &answer.json()["error"]), (413, &json!("too-large")));
    publish(&hub, "kept:a", "after");
    assert_eq!(client.next()["text"], "after");
}

/// A stream that another plan made: a node says what it would have made differently, and works with it.
#[test]
fn a_stream_with_other_settings_is_said() {
    let Some((nats, _folder)) = jetstream("a_stream_with_other_settings_is_said") else { return };
    let first = nats.node(2, stored);
    follows(&first);
    let other = nats.node(2, |plan| {
        stored(plan);
        plan.cluster.as_mut().unwrap().history = Some(StreamSettings { in_memory: true, ..StreamSettings::default() });
        plan.limits.history_bytes *= 2;
    });
    follows(&other);
    let says = |hub: &Hub, what: &str| hub.status()["cluster"]["trouble"].as_str().unwrap().contains(what);
    other.until("what differs", |_| {
        says(&other, "storage is File, expected Memory") && says(&other, "max_bytes is 268435456, expected 536870912")
    });
    assert!(!says(&first, "other settings"), "{}", first.status()["cluster"]);
    knows(&first, 1);
    assert_eq!(nodes(&publish(&other, "kept:a", "one")), (2, 2));
}
