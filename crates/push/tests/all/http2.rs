//! Every transport on one HTTP/2 connection.

use oroshi_push::{GroupRule, SlowPolicy};
use oroshi_testkit::http2::{Client, Config, Grants, Seen};
use serde_json::json;

use crate::hub::{Hub, key_of};

/// A frame of WebSocket from the server: a short text.
fn text(client: &mut Client, id: u32, held: &mut Vec<u8>) -> String {
    while held.len() < 2 || held.len() < 2 + usize::from(held[1]) {
        held.extend(client.bytes(id, 1));
    }
    assert!(held[0] == 0x81 && held[1] < 126, "{}", held.escape_ascii());
    let length = 2 + usize::from(held[1]);
    String::from_utf8(held.drain(..length).skip(2).collect()).unwrap()
}

/// Reads a stream until it ends with these bytes.
fn until(client: &mut Client, id: u32, end: &str) -> String {
    let mut got = Vec::new();
    while !got.ends_with(end.as_bytes()) {
        got.extend(client.bytes(id, 1));
    }
    String::from_utf8(got).unwrap()
}

#[test]
fn each_transport_carries_the_messages() {
    let hub = Hub::start(|_| ());
    let mut client = Client::connect(hub.address);
    let (socket, _) = client.websocket("/connect");
    let mut held = Vec::new();
    let key = key_of(&text(&mut client, socket, &mut held));
    let events = client.request("GET", "/connect", &[("accept", b"text/event-stream")], true);
    let lines = client.get("/connect?transport=stream");
    assert!(until(&mut client, events, "\n\n").starts_with("event: session\ndata: "));
    key_of(&until(&mut client, lines, "\n"));
    let polling = client.get("/connect?transport=poll");
    let polling = client.answer(polling).json();

    let publish = client.request("POST", "/publish", &[("content-type", b"application/json")], false);
    client.data(publish, json!({ "all": true, "text": "to all" }).to_string().as_bytes(), true);
    let receipt = client.answer(publish).json();
    assert_eq!((&receipt["matched"], &receipt["written"]), (&json!(4), &json!(3)), "{receipt}");
    assert_eq!(text(&mut client, socket, &mut held), "to all");
    assert_eq!(until(&mut client, events, "\n\n"), "data: to all\n\n");
    assert_eq!(until(&mut client, lines, "\n"), "to all\n");
    let target = format!(
        "/poll?session={}&token={}&after=0",
        polling["session"].as_str().unwrap(),
        polling["token"].as_str().unwrap()
    );
    let poll = client.get(&target);
    assert!(client.answer(poll).text().contains("to all"));

    // A stream that its client resets ends its session alone.
    client.reset(lines);
    hub.until("three sessions", |status| status["sessions"]["current"] == 3);
    hub.publish(json!({ "sessions": [key], "text": "still here" }));
    assert_eq!(text(&mut client, socket, &mut held), "still here");
    // The end of the connection is the end of all sessions but the polling one.
    drop(client);
    hub.until("one session", |status| status["sessions"]["current"] == 1);
    hub.stop();
}

/// A feed whose client opens no window is slow like a socket that nobody reads; its neighbour on the connection is not.
#[test]
fn a_slow_feed_ends_and_leaves_the_others_of_its_connection() {
    const MESSAGE: usize = 16 * 1024;
    let hub = Hub::start(|plan| {
        plan.limits.session_queue_bytes = 4 * MESSAGE;
        let slow = SlowPolicy::Disconnect;
        plan.groups = vec![GroupRule { pattern: "g".into(), slow, client_may_join: true, ..GroupRule::default() }];
    });
    let config = Config { grants: Grants::Manual, connection_window: 1 << 30, ..Config::default() };
    let mut client = Client::with(hub.address, config);
    let [reader, slow] = [(); 2].map(|()| {
        let id = client.get("/connect?transport=stream&group=g");
        key_of(&until(&mut client, id, "\n"));
        id
    });
    let mut closed = 0;
    for number in 0.. {
        assert!(number < 1_000, "nobody was ever slow");
        let sent = format!("{number} {}", "x".repeat(MESSAGE));
        let receipt = hub.publish(json!({ "groups": ["g"], "text": sent }));
        let got = client.bytes(reader, sent.len() + 1);
        client.grant(reader, got.len());
        assert!(got == format!("{sent}\n").as_bytes(), "message {number}: {}", got.escape_ascii());
        if closed > 0 {
            assert_eq!((&receipt["matched"], &receipt["written"]), (&json!(1), &json!(1)), "{receipt}");
            break;
        }
        closed += receipt["closed"].as_u64().unwrap();
        if closed > 0 {
            hub.until("one session", |status| status["sessions"]["current"] == 1);
        }
    }
    // What had left for it waits for a window, until the limit for writes.
    client.reset(slow);
    client.reset(reader);
    hub.stop();
}

#[test]
fn a_drain_ends_the_sessions_of_a_connection_in_good_form() {
    let hub = Hub::start(|_| ());
    let mut client = Client::connect(hub.address);
    let (socket, _) = client.websocket("/connect");
    let mut held = Vec::new();
    text(&mut client, socket, &mut held);
    hub.shutdown.request();
    // A close frame with 1012 (RFC 6455 section 7.4): the service restarts.
    let close = client.bytes(socket, 4);
    assert_eq!((close[0], &close[2..4]), (0x88, &1012_u16.to_be_bytes()[..]), "{}", close.escape_ascii());
    // The client agrees, and ends its side.
    client.data(socket, &[0x88, 0x82, 0, 0, 0, 0, 0x03, 0xf4], true);
    assert!(client.find(|seen| matches!(seen, Seen::GoAway(..))).is_some());
    client.closed();
    hub.stop();
}
