//! permessage-deflate (RFC 7692): its offers, the bytes of its messages, and what clients may not do with it.

use std::io::Write as _;

use oroshi_push::{Access, GroupRule, Plan};
use oroshi_testkit::{http2, in_a_process, must_pass, skipped, test_name};
use oroshi_websocket::deflate::{OFFER, Window};
use oroshi_websocket::{Kind, encode};
use serde_json::json;

use crate::hub::{Got, Hub, WebSocket};

/// JSON of 1,000 bytes, as a backend publishes it.
fn document() -> String {
    let rows: Vec<_> = (0..18).map(|n| json!({ "id": n, "name": "sencha", "price": 1200 + n * 7 })).collect();
    let mut text = json!({ "teas": rows, "note": "" }).to_string();
    let missing = 1000 - text.len();
    text.insert_str(text.len() - 2, &"n".repeat(missing));
    text
}

fn compressing(plan: &mut Plan) {
    plan.compress_from_bytes = Some(100);
    plan.threads = 2;
}

fn open(hub: &Hub, offer: &str) -> WebSocket {
    open_with(hub, &[("Sec-WebSocket-Extensions", offer)])
}

fn open_with(hub: &Hub, fields: &[(&str, &str)]) -> WebSocket {
    let mut socket = WebSocket::open(hub.address, "/connect", fields).unwrap_or_else(|answer| panic!("{answer:?}"));
    socket.text();
    socket
}

/// The extensions that a response accepts.
fn accepted(socket: &WebSocket) -> Option<&str> {
    socket.head.lines().find_map(|line| line.strip_prefix("Sec-WebSocket-Extensions: "))
}

/// The frame of a text with this agreement.
fn frame(text: &str, window: Option<Window>) -> Vec<u8> {
    let mut bytes = Vec::new();
    match window {
        Some(window) => assert!(encode::deflated_message(&mut bytes, Kind::Text, text.as_bytes(), window)),
        None => encode::message(&mut bytes, Kind::Text, text.as_bytes()),
    }
    bytes
}

/// How many messages the hub has compressed.
fn compressed(hub: &Hub) -> u64 {
    hub.status()["compression"]["messages"].as_u64().unwrap()
}

#[test]
fn offers_are_accepted_declined_or_refused() {
    let hub = Hub::start(compressing);
    assert_eq!(accepted(&open(&hub, "permessage-deflate; client_max_window_bits")), Some(OFFER));
    let small = format!("{OFFER}; server_max_window_bits=9");
    assert_eq!(accepted(&open(&hub, "permessage-deflate; server_max_window_bits=10")), Some(&*small));
    assert_eq!(accepted(&open(&hub, "permessage-deflate; server_max_window_bits=8")), None);
    assert_eq!(accepted(&open_with(&hub, &[])), None);
    // Two fields are one list.
    let two = [("Sec-WebSocket-Extensions", "permessage-other"), ("Sec-WebSocket-Extensions", "permessage-deflate")];
    assert_eq!(accepted(&open_with(&hub, &two)), Some(OFFER));
    let wrong = [("Sec-WebSocket-Extensions", "permessage-deflate; =")];
    let refusal = WebSocket::open(hub.address, "/connect", &wrong).unwrap_err();
    assert_eq!((refusal.status, &refusal.json()["error"]), (400, &json!("bad-handshake")));
    // Without the setting, no offer is accepted.
    let off = Hub::start(|_| ());
    let mut socket = open(&off, "permessage-deflate");
    assert_eq!(accepted(&socket), None);
    off.publish(json!({ "all": true, "text": document() }));
    let expected = frame(&document(), None);
    assert_eq!(socket.raw(expected.len()), expected);
}

/// The same bytes go to a thousand sessions on two threads. The hub compresses them once for each window.
#[test]
fn a_broadcast_is_compressed_once_for_a_thousand() {
    must_pass(in_a_process(&[], test_name!("a_thousand_sessions")));
}

#[test]
#[ignore = "takes many descriptors: a_broadcast_is_compressed_once_for_a_thousand runs it"]
fn a_thousand_sessions() {
    // Both ends of each connection, and some for the rest.
    if let Err(error) = oroshi_net::ensure_descriptors(2 * 1000 + 200) {
        return skipped("a_broadcast_is_compressed_once_for_a_thousand", &error.to_string());
    }
    let hub = Hub::start(compressing);
    let mut all: Vec<_> = (0..1000).map(|_| open(&hub, "permessage-deflate")).collect();
    let text = document();
    let before = compressed(&hub);
    let receipt = hub.publish(json!({ "all": true, "text": text }));
    assert_eq!((&receipt["matched"], &receipt["written"]), (&json!(1000), &json!(1000)), "{receipt}");
    let expected = frame(&text, Some(Window::Full));
    assert_eq!(expected[0], 0xc1, "the first reserved bit");
    assert!(expected.len() < 350, "{} bytes of 1,000", expected.len());
    for socket in &mut all {
        assert_eq!(socket.raw(expected.len()), expected);
    }
    let status = hub.status();
    assert_eq!(compressed(&hub), before + 1);
    assert_eq!(status["compression"]["before_bytes"], 1000);
    assert_eq!(status["compression"]["after_bytes"], expected.len() as u64);
    // Each other form is one more: a client with a small window, and one without compression.
    let (mut small, mut plain) = (open(&hub, "permessage-deflate; server_max_window_bits=9"), open_with(&hub, &[]));
    hub.publish(json!({ "all": true, "text": text }));
    for (socket, window) in [(&mut small, Some(Window::Small)), (&mut plain, None), (&mut all[0], Some(Window::Full))] {
        let expected = frame(&text, window);
        assert_eq!(socket.raw(expected.len()), expected, "{window:?}");
    }
    assert_eq!(compressed(&hub), before + 3);
    let metrics = hub.request("GET", "/metrics", &[], b"");
    let metrics = metrics.text();
    assert!(metrics.contains("\noroshi_push_compressed_messages_total 3\n"), "{metrics}");
    assert!(metrics.contains("\noroshi_push_compressed_before_bytes_total 3000\n"), "{metrics}");
}

/// Subscribers of a channel get an envelope, which is framed and compressed once for all threads.
#[test]
fn a_publication_is_compressed_once_for_all_threads() {
    let hub = Hub::start(|plan| {
        compressing(plan);
        plan.groups = vec![GroupRule { pattern: "*".into(), subscribe: Access::Anyone, ..GroupRule::default() }];
    });
    let fields = [("Sec-WebSocket-Protocol", "oroshi.v1"), ("Sec-WebSocket-Extensions", "permessage-deflate")];
    let mut all: Vec<_> = (0..32)
        .map(|_| {
            let mut socket = WebSocket::open(hub.address, "/connect?channel=tea", &fields).unwrap();
            socket.text();
            socket
        })
        .collect();
    for socket in &mut all {
        assert!(socket.text().contains("\"channel\":\"tea\""), "the answer to its subscription");
    }
    let before = compressed(&hub);
    let receipt = hub.publish(json!({ "groups": ["tea"], "text": document() }));
    assert_eq!(receipt["written"], 32, "{receipt}");
    let envelope = format!("{{\"channel\":\"tea\",\"text\":{}}}", json!(document()));
    let expected = frame(&envelope, Some(Window::Full));
    for socket in &mut all {
        assert_eq!(socket.raw(expected.len()), expected);
    }
    assert_eq!(compressed(&hub), before + 1);
}

#[test]
fn short_messages_and_noise_stay_as_they_are() {
    let hub = Hub::start(compressing);
    let mut socket = open(&hub, "permessage-deflate");
    let (short, long) = ("a".repeat(99), "a".repeat(100));
    let mut random = fastrand::Rng::with_seed(7);
    let noise: String = (0..100).map(|_| char::from(random.u8(b'!'..=b'~'))).collect();
    let before = compressed(&hub);
    for (text, window) in [(&short, None), (&long, Some(Window::Full)), (&noise, None)] {
        hub.publish(json!({ "all": true, "text": text }));
        let expected = frame(text, window);
        assert_eq!(socket.raw(expected.len()), expected, "{text}");
    }
    assert_eq!(compressed(&hub), before + 1);
}

#[test]
fn what_a_client_compresses_is_inflated_within_its_limit() {
    let hub = Hub::start(|plan| {
        compressing(plan);
        plan.echo = true;
        plan.limits.message_bytes = 10_000;
    });
    let opened = || open_echo(&hub);
    let mut socket = opened();
    let mut out = Vec::new();
    assert!(encode::masked_deflated_message(&mut out, Kind::Text, document().as_bytes(), [1, 2, 3, 4]));
    socket.stream.write_all(&out).unwrap();
    assert_eq!(socket.text(), document());
    // Ten megabytes in ten kilobytes end the session that sent them, and no other.
    let mut bomb = Vec::new();
    assert!(encode::masked_deflated_message(&mut bomb, Kind::Binary, &vec![0; 10_000_000], [1, 2, 3, 4]));
    assert!(bomb.len() < 11_000, "{}", bomb.len());
    let mut bomber = opened();
    bomber.stream.write_all(&bomb).unwrap();
    assert!(matches!(bomber.next(), Got::Close(Some(1009), _)));
    let mut broken = opened();
    broken.stream.write_all(&[0xc1, 0x81, 0, 0, 0, 0, 0xff]).unwrap();
    assert!(matches!(broken.next(), Got::Close(Some(1007), _)));
    // A reserved bit without an agreement.
    let mut plain = WebSocket::open(hub.address, "/connect", &[]).unwrap();
    plain.stream.write_all(&out).unwrap();
    assert!(matches!(plain.next(), Got::Close(Some(1002), _)));
    socket.send(Kind::Text, b"still here");
    assert_eq!(socket.text(), "still here");
}

fn open_echo(hub: &Hub) -> WebSocket {
    let fields = [("Sec-WebSocket-Extensions", "permessage-deflate")];
    WebSocket::open(hub.address, "/connect", &fields).unwrap()
}

/// RFC 8441: the same on a stream of HTTP/2.
#[test]
fn it_is_the_same_over_http2() {
    let hub = Hub::start(compressing);
    let mut client = http2::Client::connect(hub.address);
    let (socket, head) = client.websocket_with("/connect", &[("sec-websocket-extensions", b"permessage-deflate")]);
    assert!(head.contains(OFFER), "{head}");
    let mut got = client.bytes(socket, 2);
    let first = 2 + usize::from(got[1]);
    got.extend(client.bytes(socket, first - got.len()));
    hub.publish(json!({ "all": true, "text": document() }));
    let expected = frame(&document(), Some(Window::Full));
    let mut came = got.split_off(first);
    while came.len() < expected.len() {
        came.extend(client.bytes(socket, 1));
    }
    assert_eq!(came, expected);
}
