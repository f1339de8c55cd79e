//! What a hub asks another node about the subscribers of channels, as that node sees it.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use oroshi_push::Plan;
use serde_json::{Value, json};

use crate::hub::{Client, Hub, PATIENCE};
use crate::nats::{Nats, knows};
use crate::presence::rules;

/// The number of the node that the test plays.
const ME: u64 = 7;

/// A node that sends heartbeats, takes all messages, and says nothing by itself.
struct MuteNode {
    stream: TcpStream,
    messages: Receiver<Vec<u8>>,
    stop: Option<Sender<()>>,
    threads: Vec<JoinHandle<()>>,
}

impl MuteNode {
    fn start(nats: &Nats) -> MuteNode {
        let mut stream = TcpStream::connect(("127.0.0.1", nats.port)).unwrap();
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        write!(stream, "CONNECT {{\"verbose\":false}}\r\nSUB oroshi.push.test.node.{ME:016x} 1\r\nPING\r\n").unwrap();
        let mut line = String::new();
        while line != "PONG\r\n" {
            line.clear();
            assert!(reader.read_line(&mut line).unwrap() > 0);
        }
        let (sender, messages) = channel();
        let mut pongs = stream.try_clone().unwrap();
        let reads = std::thread::spawn(move || {
            let mut line = String::new();
            while reader.read_line(&mut line).is_ok_and(|length| length > 0) {
                if line.starts_with("PING") {
                    pongs.write_all(b"PONG\r\n").unwrap();
                } else if line.starts_with("MSG ") {
                    let length: usize = line.trim_end().rsplit(' ').next().unwrap().parse().unwrap();
                    let mut data = vec![0; length + 2];
                    reader.read_exact(&mut data).unwrap();
                    data.truncate(length);
                    let _ = sender.send(data);
                }
                line.clear();
            }
        });
        let (stop, stopped) = channel::<()>();
        let mut beats = stream.try_clone().unwrap();
        let beat = std::thread::spawn(move || {
            // Protocol 5, a heartbeat of a node that stays and has heard nobody.
            let mut frame = head(5, 0);
            frame.extend([0, 0]);
            loop {
                publish(&mut beats, "oroshi.push.test.all", &frame);
                if stopped.recv_timeout(Duration::from_millis(500)) != Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                    return;
                }
            }
        });
        MuteNode { stream, messages, stop: Some(stop), threads: vec![reads, beat] }
    }

    /// Takes messages until one contains `text`; returns all of them.
    fn until(&self, text: &str) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        loop {
            let message = self.messages.recv_timeout(PATIENCE).unwrap();
            let is_it = contains(&message, text);
            all.push(message);
            if is_it {
                return all;
            }
        }
    }
}

impl Drop for MuteNode {
    fn drop(&mut self) {
        self.stop.take();
        // First the one that writes.
        let _ = self.threads.pop().unwrap().join();
        let _ = self.stream.shutdown(Shutdown::Both);
        let _ = self.threads.pop().unwrap().join();
    }
}

/// The head of a message of this node.
fn head(version: u8, kind: u8) -> Vec<u8> {
    let mut frame = vec![version, kind];
    [ME, 0, 0, 0, 0].iter().for_each(|field| frame.extend(field.to_le_bytes()));
    frame
}

fn publish(stream: &mut TcpStream, subject: &str, data: &[u8]) {
    let mut out = format!("PUB {subject} {}\r\n", data.len()).into_bytes();
    out.extend_from_slice(data);
    out.extend_from_slice(b"\r\n");
    // At the end the server may be gone before the node.
    let _ = stream.write_all(&out);
}

fn contains(message: &[u8], text: &str) -> bool {
    message.windows(text.len()).any(|part| part == text.as_bytes())
}

/// A hub that knows a node which never answers.
fn start(test: &str, change: impl FnOnce(&mut Plan)) -> Option<(Hub, MuteNode, Nats)> {
    let nats = Nats::start(test, &[])?;
    let node = MuteNode::start(&nats);
    let hub = nats.node(2, |plan| {
        rules(plan);
        // The node never answers.
        plan.cluster.as_mut().unwrap().receipt_timeout = Duration::from_millis(20);
        change(plan);
    });
    knows(&hub, 1);
    Some((hub, node, nats))
}

fn watch(client: &mut Client, channel: &str) -> Value {
    client.ask(json!({ "subscribe": { "channel": channel, "presence": true } }))
}

/// Once such names went to other nodes before they were refused. A message with several was too large for NATS, for
/// which the hub dropped its link.
#[test]
fn a_name_that_is_too_long_is_refused_before_other_nodes_are_asked() {
    let test = "a_name_that_is_too_long_is_refused_before_other_nodes_are_asked";
    let Some((hub, node, _nats)) = start(test, |_| {}) else { return };
    let long = format!("room:{}", "x".repeat(4000));
    let mut client = Client::open_with(hub.address, &format!("/connect?channel={long}&presence=1"));
    assert_eq!(client.next()["error"], "bad-command");
    assert_eq!(watch(&mut client, &long)["error"], "bad-command");
    assert!(watch(&mut client, "room:last").get("subscribed").is_some());
    for message in node.until("room:last") {
        assert!(!contains(&message, "room:xxx"), "{} bytes", message.len());
    }
    assert_eq!(hub.status()["cluster"]["connects"], 1);
}

/// Once a client beyond its limits had all threads and nodes asked, each time.
#[test]
fn a_subscription_that_is_refused_asks_no_other_node() {
    let test = "a_subscription_that_is_refused_asks_no_other_node";
    let Some((hub, node, _nats)) = start(test, |plan| plan.limits.session_channels = 2) else { return };
    let mut client = Client::open(&hub);
    client.subscribe("room:twice", None);
    assert_eq!(watch(&mut client, "room:twice")["error"], "already-subscribed");
    client.subscribe("room:b", None);
    assert_eq!(watch(&mut client, "room:beyond")["error"], "too-many-channels");
    let target = "/connect?channel=room:c&channel=room:d&channel=room:beyond&presence=1";
    let mut connected = Client::open_with(hub.address, target);
    let frames: Vec<Value> = (0..3).map(|_| connected.next()).collect();
    assert_eq!(frames[2]["error"], "too-many-channels", "{frames:?}");
    let mut last = Client::open(&hub);
    watch(&mut last, "room:last");
    for message in node.until("room:last") {
        assert!(!contains(&message, "room:twice") && !contains(&message, "room:beyond"), "{message:?}");
    }
}

#[test]
fn a_client_that_subscribes_too_fast_asks_no_other_node() {
    let test = "a_client_that_subscribes_too_fast_asks_no_other_node";
    let one = |plan: &mut Plan| plan.limits.client.subscribes = Some(1);
    let Some((hub, node, _nats)) = start(test, one) else { return };
    let mut client = Client::open(&hub);
    let refused = (0..)
        .map(|round| format!("room:try-{round}-"))
        .find(|channel| {
            let answer = watch(&mut client, channel);
            if answer.get("subscribed").is_some() {
                client.ask(json!({ "unsubscribe": { "channel": channel } }));
            }
            answer["error"] == "too-fast"
        })
        .unwrap();
    watch(&mut Client::open(&hub), "room:last");
    for message in node.until("room:last") {
        assert!(!contains(&message, &refused), "{message:?}");
    }
}

/// Once a node without a rule for events never spoke on a feed, which the other one then opened again for ever.
#[test]
fn a_node_without_events_answers_that_nobody_is_there_and_keeps_the_feed_alive() {
    let test = "a_node_without_events_answers_that_nobody_is_there_and_keeps_the_feed_alive";
    let silent = |plan: &mut Plan| plan.groups.iter_mut().for_each(|rule| rule.presence_events = false);
    let Some((hub, mut node, nats)) = start(test, silent) else { return };
    // The hub's number is in its heartbeats only: this one hears them.
    let mut hears = BufReader::new(TcpStream::connect(("127.0.0.1", nats.port)).unwrap());
    hears.get_mut().write_all(b"CONNECT {\"verbose\":false}\r\nSUB oroshi.push.test.all 1\r\n").unwrap();
    let number = loop {
        let mut line = String::new();
        hears.read_line(&mut line).unwrap();
        if line.starts_with("MSG ") {
            let length: usize = line.trim_end().rsplit(' ').next().unwrap().parse().unwrap();
            let mut data = vec![0; length + 2];
            hears.read_exact(&mut data).unwrap();
            let sender = u64::from_le_bytes(data[2..10].try_into().unwrap());
            if sender != ME {
                break sender;
            }
        }
    };
    let mut frame = head(6, 4);
    // Feed 3, its first message, nothing unwatched, and one channel.
    frame.extend([3, 0, 0, 1, 6]);
    frame.extend(b"room:a");
    publish(&mut node.stream, &format!("oroshi.push.test.node.{number:016x}"), &frame);
    let (mut lists, mut numbers) = (0, 0);
    while lists == 0 || numbers < 3 {
        let message = node.messages.recv_timeout(PATIENCE).unwrap();
        match message.get(42..).unwrap() {
            _ if message[..2] != [6, 5] => {}
            // Feed 3, message 1, nothing watched since, no part: all was told.
            [3, 1, 0, 0] => numbers += 1,
            [3, 1, 0, 1, 6, list @ ..] if list.starts_with(b"room:a") => lists += 1,
            // Before the answer.
            [3, 0, 0, 0] => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(lists, 1);
    assert_eq!(hub.status()["cluster"]["connected"], true);
}
