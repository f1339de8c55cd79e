//! Clients that speak HTTP/2, and servers of HTTP/1.1 behind the gateway.

use oroshi_gate::forward::Failure;
use oroshi_testkit::http2::{ErrorCode, Seen};

use crate::support::{OK, Setup, Upstream};

#[test]
fn a_request_goes_on_as_one_of_http_1_and_trailers_come_back() {
    let upstream = Upstream::start(|_, behind| {
        while let Some(request) = behind.request() {
            if request.line().starts_with("GET") {
                assert!(request.body.is_empty() && request.field("transfer-encoding").is_none(), "{request:?}");
                behind.send(OK);
                continue;
            }
            assert_eq!(request.line(), "POST /grpc HTTP/1.1");
            assert_eq!((request.field("te"), request.field("cookie")), (Some("trailers"), Some("a=1; b=2")));
            assert_eq!(request.field("priority"), Some("u=1, i"), "RFC 9218 section 8: it passes");
            assert_eq!((&*request.body, &*request.trailers), (&b"in two pieces"[..], "checksum: 7\r\n"));
            behind.send(
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: keep-alive\r\nTrailer: grpc-status\r\n\
                 Priority: u=5\r\n\r\n\
                 4\r\nbody\r\n0\r\ngrpc-status: 0\r\n\r\n",
            );
        }
    });
    let gate = Setup::to(&upstream.target).start();
    let mut client = gate.connect_http2();
    let fields: [(&str, &[u8]); 4] =
        [("te", b"trailers"), ("priority", b"u=1, i"), ("cookie", b"a=1"), ("cookie", b"b=2")];
    let id = client.request("POST", "/grpc", &fields, false);
    client.data(id, b"in two ", false);
    client.data(id, b"pieces", false);
    client.trailers(id, &[("checksum", b"7")]);
    let (answer, trailers) = client.whole_answer(id);
    assert_eq!((answer.status, answer.text(), &*trailers), (200, "body", "grpc-status: 0\r\n"));
    assert_eq!(answer.field("priority"), Some("u=5"));
    assert_eq!((answer.field("connection"), answer.field("transfer-encoding")), (None, None));
    let ids: Vec<u32> = (0..50).map(|_| client.get("/")).collect();
    ids.into_iter().for_each(|id| assert_eq!(client.answer(id).text(), "ok"));
    drop(client);
    assert_eq!(gate.stop().answers, 51);
    upstream.end();
}

#[test]
fn a_response_that_is_cut_off_resets_its_stream_alone() {
    let upstream = Upstream::start(|_, behind| {
        while let Some(request) = behind.request() {
            if request.line().starts_with("GET /cut") {
                behind.send("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf");
                return;
            }
            behind.send(OK);
        }
    });
    let gate = Setup::to(&upstream.target).start();
    let mut client = gate.connect_http2();
    let id = client.get("/cut");
    let reset = client.find(|seen| matches!(seen, Seen::Reset(..)));
    assert_eq!(reset, Some(Seen::Reset(id, ErrorCode::INTERNAL_ERROR)));
    let id = client.get("/");
    assert_eq!(client.answer(id).text(), "ok");
    assert_eq!(gate.records(1)[0].failure, Some(Failure::Cut));
    drop(client);
    gate.stop();
    upstream.end();
}

#[test]
fn a_websocket_goes_on_as_an_upgrade() {
    let upstream = Upstream::start(|_, behind| {
        let head = behind.head().unwrap();
        assert!(head.starts_with("GET /chat HTTP/1.1\r\n"), "{head}");
        assert!(head.contains("\r\nUpgrade: websocket\r\nConnection: upgrade\r\n"), "{head}");
        assert!(head.to_lowercase().contains("\r\nsec-websocket-key: "), "{head}");
        behind.send(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Accept: y\r\n\r\nhello",
        );
        while let Some(byte) = behind.exactly(1) {
            behind.send(byte);
        }
    });
    let mut setup = Setup::to(&upstream.target);
    setup.server.extended_connect = true;
    let gate = setup.start();
    let mut client = gate.connect_http2();
    let (id, head) = client.websocket("/chat");
    assert!(!head.contains("sec-websocket-accept"), "{head}");
    assert_eq!(client.bytes(id, 5), b"hello");
    client.data(id, b"through", true);
    assert_eq!(client.bytes(id, usize::MAX), b"through");
    assert_eq!((gate.records(1)[0].status, gate.records(1)[0].failure), (101, None));
    drop(client);
    gate.stop();
    upstream.end();
}
