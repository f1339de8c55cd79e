//! Many cores at once: everybody comes back with the key of before while messages go out, and then the hub ends.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::hub::{Asked, Backend, Got, Hub, PATIENCE, WebSocket};
use serde_json::{Value, json};

/// Sessions that come back.
const RESTLESS: usize = 1000;

/// Sessions that stay.
const STAYING: usize = 100;

/// How many publish at the same time.
const PUBLISHERS: usize = 2;

/// Gives each client the key that it asks for.
fn by_key(asked: &Asked) -> (u16, String, String) {
    let (_, key) = asked.target.split_once("key=").expect("a key");
    (200, format!("X-Kuiperbelt-Session: {key}\r\n"), String::new())
}

fn open(hub: &Hub, key: &str) -> WebSocket {
    hub.websocket(&format!("/connect?key={key}"))
}

/// What a client got, up to its close frame, whose code is the second; it answers that.
fn all_of(socket: &mut WebSocket) -> (Vec<String>, u16) {
    let mut texts = Vec::new();
    loop {
        match socket.next() {
            Got::Text(text) => texts.push(text),
            Got::Close(Some(code), _) => {
                socket.close(code);
                return (texts, code);
            }
            other => panic!("{other:?} after {texts:?}"),
        }
    }
}

/// Sees that the messages of each publisher come in order, and none of them twice.
fn in_order(key: &str, texts: &[String]) {
    let mut last: HashMap<&str, usize> = HashMap::new();
    for text in texts {
        let (publisher, number) = text.split_once(' ').unwrap();
        let number = number.parse().unwrap();
        let before = last.insert(publisher, number);
        assert!(before.is_none_or(|before| before < number), "{key}: {text} behind {before:?}");
    }
}

#[test]
fn a_storm_of_takeovers_loses_nothing_and_doubles_nothing() {
    let backend = Backend::start(by_key);
    let connect = backend.url("/connect");
    let hub = Hub::start(|plan| {
        plan.threads = 4;
        plan.callbacks.connect = connect;
        plan.limits.close = PATIENCE;
        plan.drain.timeout = PATIENCE;
    });
    let keys: Vec<String> = (0..RESTLESS).map(|number| format!("k{number}")).collect();
    let staying: Vec<String> = (0..STAYING).map(|number| format!("s{number}")).collect();
    let everybody: Vec<&String> = keys.iter().chain(&staying).collect();
    let mut stayed: Vec<WebSocket> = staying.iter().map(|key| open(&hub, key)).collect();
    let first: Vec<WebSocket> = keys.iter().map(|key| open(&hub, key)).collect();

    // While they come back, everybody is published to by name: a key always has a session, and never two.
    let (over, returned) = (AtomicBool::new(false), AtomicUsize::new(0));
    let (mut receipts, second) = std::thread::scope(|scope| {
        let publishing: Vec<_> = (0..PUBLISHERS)
            .map(|publisher| {
                let (hub, everybody, over) = (&hub, &everybody, &over);
                scope.spawn(move || {
                    let mut receipts = Vec::new();
                    while !over.load(Ordering::Relaxed) {
                        let text = format!("{publisher} {}", receipts.len());
                        receipts.push(hub.publish(json!({ "sessions": everybody, "text": text })));
                    }
                    receipts
                })
            })
            .collect();
        let returning: Vec<_> = keys
            .chunks(RESTLESS / 4)
            .map(|keys| {
                let (hub, returned) = (&hub, &returned);
                scope.spawn(move || {
                    let open = |key: &String| {
                        let socket = open(hub, key);
                        returned.fetch_add(1, Ordering::Relaxed);
                        socket
                    };
                    keys.iter().map(open).collect::<Vec<_>>()
                })
            })
            .collect();
        let second: Vec<WebSocket> = returning.into_iter().flat_map(|returning| returning.join().unwrap()).collect();
        over.store(true, Ordering::Relaxed);
        let receipts: Vec<Value> = publishing.into_iter().flat_map(|publishing| publishing.join().unwrap()).collect();
        (receipts, second)
    });
    assert_eq!(returned.into_inner(), RESTLESS);
    receipts.push(hub.publish(json!({ "all": true, "text": "2 0" })));
    for receipt in &receipts[..receipts.len() - 1] {
        assert_eq!((&receipt["matched"], &receipt["unknown"]), (&json!(everybody.len()), &json!([])), "{receipt}");
    }

    // The hub ends, on all cores, with the last message still to be read.
    hub.shutdown.request();
    let (mut got, mut sockets) = (0, first.into_iter().zip(second));
    for (key, (mut first, mut second)) in keys.iter().zip(&mut sockets) {
        let (mut texts, code) = all_of(&mut first);
        assert_eq!(code, 4000, "{key}");
        let (later, code) = all_of(&mut second);
        assert_eq!((code, later.last().map(String::as_str)), (1012, Some("2 0")), "{key}");
        texts.extend(later);
        in_order(key, &texts);
        got += texts.len();
    }
    for (key, socket) in staying.iter().zip(&mut stayed) {
        let (texts, code) = all_of(socket);
        in_order(key, &texts);
        assert_eq!((code, texts.len()), (1012, receipts.len()), "{key}");
        got += texts.len();
    }
    hub.stop();
    let sum = |name: &str| receipts.iter().map(|receipt| receipt[name].as_u64().unwrap()).sum::<u64>();
    // A session that was about to go when it was published to is counted as closed; what still waited then was written.
    assert_eq!(sum("matched"), got as u64 + sum("closed"));
    assert_eq!(sum("dropped"), 0);
}
