//! Connections that are switched to another protocol, such as WebSocket.

use std::sync::mpsc;

use crate::support::{Behind, GET, OK, SHORT, Setup, Upstream};
use oroshi_gate::forward::Failure;

const ASK: &str = "GET /chat HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: keep-alive, Upgrade\r\n\
                   Sec-WebSocket-Key: x\r\n\r\n";
const AGREE: &str =
    "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: y\r\n\r\n";

/// Agrees, and sends everything back until the client ends; then says a last word.
fn echo(_: usize, behind: &mut Behind) {
    let head = behind.head().unwrap();
    assert!(head.contains("\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n"), "{head}");
    assert!(head.contains("\r\nSec-WebSocket-Key: x\r\n"), "{head}");
    behind.send(format!("{AGREE}hello"));
    while let Some(byte) = behind.exactly(1) {
        behind.send(byte);
    }
    behind.send("bye");
}

#[test]
fn bytes_go_both_ways_until_both_sides_have_ended() {
    let upstream = Upstream::start(echo);
    let gate = Setup::to(&upstream.target).start();
    let mut client = gate.connect();
    // What the client sends ahead waits for the 101.
    client.send(format!("{ASK}early"));
    let head = client.until_head();
    assert!(head.starts_with("HTTP/1.1 101 Switching Protocols\r\n"), "{head}");
    assert!(head.contains("\r\nUpgrade: websocket\r\n") && head.contains("\r\nConnection: upgrade\r\n"), "{head}");
    assert!(head.contains("\r\nSec-WebSocket-Accept: y\r\n"));
    assert_eq!(client.exactly(10), b"helloearly");
    for byte in 0..200_u8 {
        client.send([byte]);
        assert_eq!(client.exactly(1), [byte]);
    }
    // The one side ends; the other still speaks.
    client.half_close();
    assert_eq!(client.rest(), b"bye");
    let record = &gate.records(1)[0];
    assert_eq!((record.status, record.failure, record.bytes, record.bytes_up), (101, None, 213, 205));
    assert_eq!(gate.until("closed", |counts| counts.open == 0).failures.iter().sum::<u64>(), 0);
    gate.stop();
    upstream.end();
}

#[test]
fn much_goes_both_ways_at_once() {
    const BYTES: usize = 8 << 20;
    let upstream = Upstream::start(|_, behind| {
        behind.head().unwrap();
        behind.send(AGREE);
        let mut writer = behind.stream.try_clone().unwrap();
        let writing = std::thread::spawn(move || {
            for number in 0..BYTES / 65536 {
                std::io::Write::write_all(&mut writer, &[number as u8; 65536]).unwrap();
            }
        });
        for number in 0..BYTES / 65536 {
            assert!(behind.exactly(65536).unwrap().iter().all(|&byte| byte == number as u8));
        }
        writing.join().unwrap();
    });
    let gate = Setup::to(&upstream.target).start();
    let mut client = gate.connect();
    client.send(ASK).until_head();
    let socket = std::sync::Arc::clone(&client.socket);
    let writing = std::thread::spawn(move || {
        for number in 0..BYTES / 65536 {
            std::io::Write::write_all(&mut &*socket, &[number as u8; 65536]).unwrap();
        }
    });
    for number in 0..BYTES / 65536 {
        assert!(client.exactly(65536).iter().all(|&byte| byte == number as u8), "piece {number}");
    }
    writing.join().unwrap();
    drop(client);
    gate.until("closed", |counts| counts.open == 0);
    gate.stop();
    upstream.end();
}

#[test]
fn a_server_that_does_not_switch_answers_as_usual() {
    let upstream = Upstream::answering(OK);
    let gate = Setup::to(&upstream.target).start();
    let mut client = gate.connect();
    // What follows the request is the next one then.
    client.send(format!("{ASK}{GET}"));
    assert_eq!((client.answer().text(), client.answer().text()), ("ok", "ok"));
    assert_eq!(upstream.accepted(), 1);
    drop(client);
    gate.stop();
    upstream.end();
}

#[test]
fn nobody_switches_to_what_was_not_asked_for() {
    for answer in [
        AGREE.replace("websocket", "h2c"),
        AGREE.replace("websocket", "websocket, h2c"),
        AGREE.replace("Upgrade: websocket\r\n", ""),
    ] {
        let upstream = Upstream::start(move |_, behind| {
            behind.head().unwrap();
            behind.send(&answer);
            behind.closed();
        });
        let gate = Setup::to(&upstream.target).start();
        assert_eq!(gate.ask(ASK).status, 502);
        assert_eq!(gate.records(1)[0].failure, Some(Failure::Malformed));
        gate.stop();
        upstream.end();
    }
    // A route that allows none does not even ask.
    let upstream = Upstream::start(|_, behind| {
        let head = behind.head().unwrap();
        assert!(!head.to_lowercase().contains("upgrade"), "{head}");
        behind.send(OK);
        behind.closed();
    });
    let mut setup = Setup::to(&upstream.target);
    setup.rules.upgrade = false;
    let gate = setup.start();
    assert_eq!(gate.ask(ASK).text(), "ok");
    gate.stop();
    upstream.end();
}

#[test]
fn tunnels_that_are_silent_end() {
    let upstream = Upstream::start(|_, behind| {
        behind.head().unwrap();
        behind.send(AGREE);
        behind.closed();
    });
    let mut setup = Setup::to(&upstream.target);
    setup.rules.timeouts.tunnel = SHORT;
    let gate = setup.start();
    let mut client = gate.connect();
    client.send(ASK).until_head();
    assert_eq!(client.end(), b"");
    assert_eq!(gate.records(1)[0].failure, Some(Failure::BodyTimeout));
    gate.stop();
    upstream.end();
}

#[test]
fn a_tunnel_counts_as_a_connection_and_ends_with_either_side() {
    let (close, closing) = mpsc::channel::<()>();
    let closing = std::sync::Mutex::new(closing);
    let upstream = Upstream::start(move |number, behind| {
        behind.head().unwrap();
        behind.send(AGREE);
        if number == 0 {
            behind.rest();
        } else {
            closing.lock().unwrap().recv().unwrap();
            behind.reset();
        }
    });
    let mut setup = Setup::to(&upstream.target);
    setup.pool.connections = 1;
    setup.rules.timeouts.queue = SHORT;
    let gate = setup.start();
    let mut client = gate.connect();
    client.send(ASK).until_head();
    assert_eq!(gate.ask(GET).status, 503);
    client.reset();
    gate.until("closed", |counts| counts.open == 0);
    let mut client = gate.connect();
    client.send(ASK).until_head();
    close.send(()).unwrap();
    client.end();
    gate.until("closed", |counts| counts.open == 0);
    gate.stop();
    upstream.end();
}
