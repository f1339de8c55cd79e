//! Requests of HTTP/2 that HTTP/1 would read in another way: none of them reaches the server behind, and none becomes
//! two requests there. The codec's conformance table has the rules; this is what remains of them behind the gateway.

use std::sync::{Arc, Mutex};

use oroshi_testkit::http2::{Client, frame};

use crate::support::{OK, Seen, Setup, Upstream};

const HEADERS: u8 = 1;
const DATA: u8 = 0;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// A header block without compression: literal fields with their names (RFC 7541, section 6.2.2).
fn block(fields: &[(&[u8], &[u8])]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0);
        for text in [name, value] {
            block.push(u8::try_from(text.len()).ok().filter(|length| *length < 127).expect("a short text"));
            block.extend_from_slice(text);
        }
    }
    block
}

/// A request: a name, its fields beside `:method`, `:scheme`, and its frames of DATA. Each is refused.
struct Case {
    name: &'static str,
    method: &'static [u8],
    path: &'static [u8],
    authority: &'static [u8],
    fields: &'static [(&'static [u8], &'static [u8])],
    data: &'static [&'static [u8]],
}

impl Case {
    const NONE: Case = Case { name: "", method: b"POST", path: b"/", authority: b"a", fields: &[], data: &[] };
}

const SECOND: &[u8] = b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n";

const CASES: &[Case] = &[
    Case { name: "content-length-below-data", fields: &[(b"content-length", b"0")], data: &[SECOND], ..Case::NONE },
    Case { name: "content-length-above-data", fields: &[(b"content-length", b"50")], data: &[b"x"], ..Case::NONE },
    Case {
        name: "content-length-twice",
        fields: &[(b"content-length", b"0"), (b"content-length", b"35")],
        data: &[SECOND],
        ..Case::NONE
    },
    Case { name: "content-length-list", fields: &[(b"content-length", b"35, 0")], data: &[SECOND], ..Case::NONE },
    Case { name: "content-length-sign", fields: &[(b"content-length", b"+35")], data: &[SECOND], ..Case::NONE },
    Case {
        name: "chunked",
        fields: &[(b"transfer-encoding", b"chunked")],
        data: &[b"0\r\n\r\n", SECOND],
        ..Case::NONE
    },
    Case { name: "chunked-te", fields: &[(b"te", b"trailers, chunked")], data: &[b"0\r\n\r\n", SECOND], ..Case::NONE },
    Case { name: "underscore", fields: &[(b"transfer_encoding", b"chunked")], data: &[b"0\r\n\r\n"], ..Case::NONE },
    Case { name: "connection", fields: &[(b"connection", b"content-length")], data: &[SECOND], ..Case::NONE },
    Case { name: "upgrade", fields: &[(b"upgrade", b"h2c")], ..Case::NONE },
    Case { name: "crlf-in-value", fields: &[(b"x", b"1\r\nTransfer-Encoding: chunked")], ..Case::NONE },
    Case { name: "lf-in-value", fields: &[(b"x", b"1\n\nGET /smuggled HTTP/1.1")], ..Case::NONE },
    Case { name: "cr-in-value", fields: &[(b"x", b"1\rContent-Length: 9")], ..Case::NONE },
    Case { name: "nul-in-value", fields: &[(b"x", b"1\0")], ..Case::NONE },
    Case { name: "crlf-in-name", fields: &[(b"x: 1\r\ntransfer-encoding", b"chunked")], ..Case::NONE },
    Case { name: "colon-in-name", fields: &[(b"transfer-encoding: chunked\r\nx", b"1")], ..Case::NONE },
    Case { name: "space-in-name", fields: &[(b"content-length ", b"0")], ..Case::NONE },
    Case { name: "upper-case-name", fields: &[(b"Transfer-Encoding", b"chunked")], ..Case::NONE },
    Case { name: "space-before-value", fields: &[(b"content-length", b" 0")], ..Case::NONE },
    Case { name: "crlf-in-path", path: b"/ HTTP/1.1\r\nHost: b\r\n\r\nGET /smuggled", ..Case::NONE },
    Case { name: "space-in-path", path: b"/ HTTP/1.1", ..Case::NONE },
    Case { name: "fragment-in-path", path: b"/#x", ..Case::NONE },
    Case { name: "empty-path", path: b"", ..Case::NONE },
    Case { name: "absolute-form", path: b"http://b/smuggled", ..Case::NONE },
    Case { name: "authority-form", path: b"b:80", ..Case::NONE },
    Case { name: "asterisk-of-post", path: b"*", ..Case::NONE },
    Case { name: "crlf-in-method", method: b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\nPOST", ..Case::NONE },
    Case { name: "space-in-method", method: b"GET /smuggled", ..Case::NONE },
    Case { name: "crlf-in-authority", authority: b"a\r\nX: y", ..Case::NONE },
    Case { name: "path-in-authority", authority: b"a/smuggled", ..Case::NONE },
    Case { name: "user-in-authority", authority: b"u@a", ..Case::NONE },
    Case { name: "two-hosts", fields: &[(b"host", b"a"), (b"host", b"b")], ..Case::NONE },
    Case { name: "other-host", fields: &[(b"host", b"b")], ..Case::NONE },
    Case { name: "second-path", fields: &[(b":path", b"/smuggled")], ..Case::NONE },
    Case { name: "late-pseudo", fields: &[(b"x", b"1"), (b":authority", b"b")], ..Case::NONE },
];

fn is_refusal(seen: &Seen, id: u32) -> bool {
    match seen {
        Seen::Reset(stream, _) => *stream == id,
        // 417, 431 and 501 are answers; the gateway's own route answers 400.
        Seen::Head(stream, status, ..) => *stream == id && (400..=501).contains(status),
        _ => false,
    }
}

#[test]
fn a_request_that_http_1_would_refuse_reaches_nobody() {
    let received = Arc::new(Mutex::new(Vec::<String>::new()));
    let noted = Arc::clone(&received);
    let upstream = Upstream::start(move |_, behind| {
        while let Some(request) = behind.request() {
            noted.lock().unwrap().push(request.line().to_owned());
            behind.send(OK);
        }
    });
    let mut setup = Setup::to(&upstream.target);
    // The whole body comes before the request goes on; a body that streams has a test of its own.
    setup.rules.buffer = 1 << 20;
    let gate = setup.start();
    let send = |case: &Case| -> (Client, u32) {
        let mut client = gate.connect_http2();
        // Opens stream 1 by the codec, so that the raw stream is one that it knows.
        let mut fields: Vec<(&[u8], &[u8])> = vec![
            (b":method", case.method),
            (b":scheme", b"http"),
            (b":path", case.path),
            (b":authority", case.authority),
        ];
        fields.extend(case.fields);
        let end = if case.data.is_empty() { END_STREAM } else { 0 };
        let id = client.codec.send_request(
            &mut Vec::new(),
            &oroshi_testkit::http2::Request {
                method: "POST",
                scheme: "http",
                authority: "a",
                path: "/",
                protocol: None,
            },
            [],
            case.data.is_empty(),
            0,
        );
        let id = id.unwrap();
        assert!(client.raw(&frame(HEADERS, END_HEADERS | end, id, &block(&fields))));
        for (place, data) in case.data.iter().enumerate() {
            let end = if place + 1 == case.data.len() { END_STREAM } else { 0 };
            client.raw(&frame(DATA, end, id, data));
        }
        (client, id)
    };
    for case in CASES {
        let (mut client, id) = send(case);
        let seen =
            client.find(|seen| is_refusal(seen, id) || matches!(seen, Seen::GoAway(..) | Seen::Head(_, 200, ..)));
        assert!(seen.as_ref().is_some_and(|seen| is_refusal(seen, id)), "{}: {seen:?}", case.name);
    }
    assert_eq!(*received.lock().unwrap(), Vec::<String>::new());
    // The same means send a request that is valid.
    let (mut client, id) = send(&Case { fields: &[(b"content-length", b"1")], data: &[b"x"], ..Case::NONE });
    assert!(matches!(client.next(id), Seen::Head(_, 200, ..)));
    assert_eq!(*received.lock().unwrap(), ["POST / HTTP/1.1"]);
    drop(client);
    gate.stop();
    upstream.end();
}

/// A body that streams has begun when its length turns out wrong: the request ends with the connection, so that the
/// bytes behind it are no request.
#[test]
fn a_streamed_body_of_the_wrong_length_ends_its_connection() {
    for (length, data) in [("4", "too many"), ("9", "few")] {
        let upstream = Upstream::start(move |_, behind| {
            let head = behind.head().unwrap();
            assert!(head.contains(&format!("Content-Length: {length}\r\n")), "{head}");
            let rest = behind.rest();
            assert!(rest.len() <= 4 && data.as_bytes().starts_with(&rest), "{}", rest.escape_ascii());
        });
        let mut setup = Setup::to(&upstream.target);
        setup.rules.buffer = 0;
        let gate = setup.start();
        let mut client = gate.connect_http2();
        let id = client.request("POST", "/", &[("content-length", length.as_bytes())], false);
        gate.until("connected", |counts| counts.open == 1);
        assert!(client.raw(&frame(DATA, END_STREAM, id, data.as_bytes())));
        assert!(client.find(|seen| is_refusal(seen, id)).is_some());
        gate.until("closed", |counts| counts.open == 0);
        drop(client);
        gate.stop();
        upstream.end();
    }
}
