//! WebSocket through a stream of HTTP/2 to the server behind (RFC 8441).

use std::time::Duration;

use oroshi_gate::forward::Failure;

use crate::support::{Asked, Config, ErrorCode, Grants, OK, Setup, Upstream};

const ASK: &str = "GET /chat HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: keep-alive, Upgrade\r\n\
                   Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
                   Sec-WebSocket-Protocol: chat\r\n\r\n";

/// A server that allows WebSocket, agrees, says `hello`, and sends everything back.
fn echo() -> Upstream {
    let config = Config { extended_connect: true, grants: Grants::Automatic, ..Config::default() };
    Upstream::http2_with(config, |_, behind| {
        while let Some(request) = behind.request() {
            assert_eq!((&*request.method, &*request.target), ("CONNECT", "/chat"));
            assert!(!request.lines.contains("sec-websocket-key") && !request.lines.contains("upgrade"), "{request:?}");
            assert!(request.lines.contains("sec-websocket-version: 13\r\n"), "{request:?}");
            behind.head(request.id, 200, &[("sec-websocket-protocol", b"chat")], false);
            behind.data(request.id, b"hello", false);
            loop {
                match behind.next(request.id) {
                    Some(Asked::Data(id, data, end)) => {
                        behind.data(id, &data, end);
                        if end {
                            break;
                        }
                    }
                    other => return assert_eq!(other, Some(Asked::Reset(request.id, ErrorCode::CANCEL))),
                }
            }
        }
    })
}

#[test]
fn a_websocket_of_http_1_is_a_stream_of_http_2() {
    let upstream = echo();
    let gate = Setup::to(&upstream.target).start();
    let mut client = gate.connect();
    client.send(ASK);
    let head = client.until_head();
    assert!(head.starts_with("HTTP/1.1 101 Switching Protocols\r\n"), "{head}");
    // The example of RFC 6455, section 1.3.
    assert!(head.contains("\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"), "{head}");
    assert!(head.contains("\r\nsec-websocket-protocol: chat\r\n") && head.contains("\r\nUpgrade: websocket\r\n"));
    assert_eq!(client.exactly(5), b"hello");
    for byte in 0..100_u8 {
        client.send([byte]);
        assert_eq!(client.exactly(1), [byte]);
    }
    let much: Vec<u8> = (0..1_000_000_u32).map(|place| (place / 3) as u8).collect();
    let socket = std::sync::Arc::clone(&client.socket);
    let sent = much.clone();
    let writing = std::thread::spawn(move || std::io::Write::write_all(&mut &*socket, &sent).unwrap());
    assert!(client.exactly(much.len()) == much);
    writing.join().unwrap();
    client.half_close();
    client.closed();
    let record = &gate.records(1)[0];
    assert_eq!((record.status, record.failure, record.bytes, record.bytes_up), (101, None, 1_000_105, 1_000_100));
    gate.stop();
    upstream.end();
}

#[test]
fn a_websocket_of_http_2_goes_on_as_one() {
    let upstream = echo();
    let mut setup = Setup::to(&upstream.target);
    setup.server.extended_connect = true;
    let gate = setup.start();
    let mut client = gate.connect_http2();
    let (id, head) = client.websocket("/chat");
    assert!(!head.contains("sec-websocket-accept") && head.contains("sec-websocket-protocol: chat\r\n"), "{head}");
    assert_eq!(client.bytes(id, 5), b"hello");
    client.data(id, b"through", true);
    assert_eq!(client.bytes(id, usize::MAX), b"through");
    assert_eq!((gate.records(1)[0].status, gate.records(1)[0].failure), (101, None));
    drop(client);
    gate.stop();
    upstream.end();
}

#[test]
fn a_client_that_leaves_its_websocket_resets_the_stream() {
    let upstream = echo();
    let gate = Setup::to(&upstream.target).start();
    let mut client = gate.connect();
    client.send(ASK).until_head();
    client.reset();
    assert_eq!(gate.records(1)[0].status, 101);
    gate.stop();
    upstream.end();
}

#[test]
fn without_the_servers_setting_there_is_no_websocket_and_a_reason() {
    let upstream = Upstream::http2(|_, behind| {
        while let Some(request) = behind.request() {
            behind.answer(request.id, 200, b"ok");
        }
    });
    let mut setup = Setup::to(&upstream.target);
    setup.rules.explain = true;
    let gate = setup.start();
    let mut client = gate.connect();
    let answer = client.send(ASK).answer();
    assert_eq!(answer.status, 501);
    assert!(answer.text().contains("takes no WebSocket") && answer.text().contains("RFC 8441"), "{}", answer.text());
    // The connection goes on, and the target is as healthy as before.
    assert_eq!(client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").answer().text(), "ok");
    // A handshake that is none is the client's mistake.
    let asked = ASK.replace("Sec-WebSocket-Version: 13\r\n", "");
    assert_eq!(client.send(asked).answer().status, 426);
    drop(client);
    assert_eq!(gate.records(1)[0].failure, Some(Failure::NoWebSocket));
    gate.stop();
    upstream.end();
}

#[test]
fn a_server_that_declines_a_websocket_answers_as_usual() {
    let config = Config { extended_connect: true, grants: Grants::Automatic, ..Config::default() };
    let upstream = Upstream::http2_with(config, |_, behind| {
        while let Some(request) = behind.request() {
            behind.answer(request.id, 403, b"no");
        }
    });
    let gate = Setup::to(&upstream.target).start();
    let answer = gate.ask(ASK);
    assert_eq!((answer.status, answer.text()), (403, "no"));
    gate.stop();
    upstream.end();
}

#[test]
fn an_idle_websocket_ends() {
    let upstream = echo();
    let mut setup = Setup::to(&upstream.target);
    setup.rules.timeouts.tunnel = Duration::from_millis(50);
    let gate = setup.start();
    let mut client = gate.connect();
    client.send(ASK).until_head();
    client.rest();
    assert_eq!(gate.records(1)[0].failure, Some(Failure::BodyTimeout));
    drop(client);
    gate.stop();
    upstream.end();
}

#[test]
fn of_two_targets_the_one_that_allows_it_gets_the_websocket() {
    let refuses = Upstream::http2(|_, behind| drop(behind.rest()));
    let agrees = Upstream::start(|_, behind| {
        while behind.head().is_some() {
            behind.send(OK);
        }
    });
    let mut setup = Setup::to(&refuses.target);
    setup.targets.push((agrees.target.clone(), 1));
    let gate = setup.start();
    for _ in 0..2 {
        assert_eq!(gate.ask(ASK).text(), "ok");
    }
    gate.stop();
    refuses.end();
    agrees.end();
}
