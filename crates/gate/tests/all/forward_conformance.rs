//! The conformance table of `oroshi-http1` through the gateway, in front of nginx: what the gateway refuses never
//! reaches the server behind, and what it passes on both read in the same way. And the other way round: what a server
//! behind may answer, and what not.

use crate::support;
use crate::support::nginx::Nginx;
use crate::support::{Setup, Upstream};
use oroshi_http1::{DecodeError, ExpectedResponse, Framing, Limits, ResponseDecoder, ResponseEvent};
use oroshi_testkit::conformance::{self, Case, Kind, Verdict};
use oroshi_testkit::http2::Request;

/// nginx takes a whole request in before it passes it on to itself, where it is logged with the length that it has
/// found.
const NGINX: &str = "location / { proxy_pass http://unix:@FOLDER@/inner.sock; proxy_set_header Host inner; } }
    server { listen unix:@FOLDER@/inner.sock; access_log @FOLDER@/access case; location / { return 200 read; }";

#[test]
fn what_goes_through_is_read_the_same_and_what_is_refused_goes_nowhere() {
    let Some(nginx) = Nginx::start("what_goes_through_is_read_the_same_and_what_is_refused_goes_nowhere", NGINX) else {
        return;
    };
    let (mut expected, mut requests) = (Vec::new(), 0);
    let cases = conformance::cases();
    let cases = cases.iter().filter(|case| case.kind == Kind::Request);
    // Over both versions of HTTP to the server behind.
    for (case, server) in cases.flat_map(|case| [(case, &nginx.unix), (case, &nginx.h2c)]) {
        // Over HTTP/2 nginx takes 1,000 fields, pseudo-headers among them.
        if server == &nginx.h2c && case.limits.iter().any(|(name, most)| name == "headers" && *most >= 1000) {
            continue;
        }
        requests += 1;
        let mut setup = Setup::to(server);
        // The table has the preface of HTTP/2 as a request that is refused.
        setup.server.http2 = false;
        setup.server.limits = limits(case);
        setup.rules.forwarding.x_forwarded = false;
        setup.rules.upgrade = false;
        setup.rules.request.set("X-Case", case.id.as_bytes()).unwrap();
        let gate = setup.start();
        let mut client = gate.connect();
        client.send(&case.bytes).half_close();
        for message in case.messages.iter().filter(|message| message.complete) {
            let mut words = message.summary.split(' ');
            let (method, target) = (words.next().unwrap(), words.next().unwrap());
            // nginx takes no trailers in requests over HTTP/2: it ends the connection.
            if server == &nginx.h2c && !message.trailers.is_empty() {
                assert_eq!(client.answer_to(method).status, 502);
                continue;
            }
            let answer = client.answer_to(method);
            if ["CONNECT", "TRACE"].contains(&method) {
                assert_eq!(answer.status, 405, "{}", case.id);
                continue;
            }
            // nginx knows methods of capital letters alone, and a few targets of its own taste it does not.
            if answer.status == 400 && answer.field("server").is_some_and(|server| server.starts_with("nginx")) {
                continue;
            }
            assert_eq!(answer.status, 200, "{}: {answer:?}", case.id);
            let path = match target.find("://") {
                None => target.to_owned(),
                Some(scheme) => {
                    let rest = &target[scheme + 3..];
                    let path = rest.find(['/', '?']).map_or("", |place| &rest[place..]);
                    format!("{}{path}", if path.starts_with('/') { "" } else { "/" })
                }
            };
            let length = if message.body.is_empty() { String::new() } else { message.body.len().to_string() };
            expected.push((case.id.clone(), method.to_owned(), path.into_bytes(), length));
        }
        match &case.verdict {
            Verdict::Accept => {}
            Verdict::Incomplete => assert_eq!(client.answer().status, 400, "{}", case.id),
            Verdict::Reject(_, status) => assert_eq!(client.answer().status, *status, "{}", case.id),
        }
        client.closed();
        drop(client);
        gate.stop();
    }
    assert!(requests > 160, "only {requests} requests were found in the table");
    check_log(&nginx, expected);
}

#[test]
fn requests_of_http_2_are_read_the_same() {
    let Some(nginx) = Nginx::start("requests_of_http_2_are_read_the_same", NGINX) else { return };
    let (mut expected, mut requests) = (Vec::new(), 0);
    for target in [&nginx.unix, &nginx.h2c] {
        let mut setup = Setup::to(target);
        setup.rules.forwarding.x_forwarded = false;
        let gate = setup.start();
        let mut client = gate.connect_http2();
        for case in conformance::cases().iter().filter(|case| case.kind == Kind::Request) {
            for message in case.messages.iter().filter(|message| message.complete) {
                let mut words = message.summary.split(' ');
                let (method, path) = (words.next().unwrap(), words.next().unwrap());
                let host = message.has.iter().find(|(name, _)| name == "@host").map(|(_, host)| host.clone());
                let authority = String::from_utf8(host.unwrap_or_else(|| b"a".to_vec())).unwrap();
                let request = Request { method, scheme: "http", authority: &authority, path, protocol: None };
                let fields = [("x-case", case.id.as_bytes())];
                let end = message.body.is_empty();
                // HTTP/2 has neither absolute targets nor an empty authority, and CONNECT is another thing there.
                let is_plain = !["CONNECT", "TRACE"].contains(&method);
                let Some(id) = is_plain
                    .then(|| client.codec.send_request(&mut client.out, &request, fields, end, 0).ok())
                    .flatten()
                else {
                    continue;
                };
                client.flush();
                if !end {
                    client.data(id, &message.body, true);
                }
                let answer = client.answer(id);
                if answer.status == 400 && answer.field("server").is_some_and(|server| server.starts_with("nginx")) {
                    continue;
                }
                assert_eq!(answer.status, 200, "{}: {answer:?}", case.id);
                requests += 1;
                let length = if end { String::new() } else { message.body.len().to_string() };
                expected.push((case.id.clone(), method.to_owned(), path.as_bytes().to_vec(), length));
            }
        }
        drop(client);
        gate.stop();
    }
    assert!(requests > 60, "only {requests} requests were sent");
    check_log(&nginx, expected);
}

/// Checks that nginx has logged these requests and no others.
fn check_log(nginx: &Nginx, mut expected: Vec<(String, String, Vec<u8>, String)>) {
    // One more, behind which nothing is under way any more; a line may still be written a moment after its answer.
    let last = Setup::to(&nginx.unix).start();
    last.ask("GET /the-last-one HTTP/1.1\r\nHost: a\r\n\r\n");
    expected.push(("-".to_owned(), "GET".to_owned(), b"/the-last-one".to_vec(), String::new()));
    let began = std::time::Instant::now();
    while nginx.log().lines().count() < expected.len() {
        assert!(began.elapsed() < support::HANG, "{} lines of {}", nginx.log().lines().count(), expected.len());
        std::thread::yield_now();
    }
    let mut found: Vec<_> = nginx.log().lines().map(logged).collect();
    found.sort();
    expected.sort();
    let unexpected: Vec<_> = found.iter().filter(|line| !expected.contains(line)).collect();
    assert!(unexpected.is_empty(), "{unexpected:?}");
    for (found, expected) in found.iter().zip(&expected) {
        assert_eq!(found, expected);
    }
    assert_eq!(found.len(), expected.len());
    last.stop();
}

/// A line of the log: case, method, target, length.
fn logged(line: &str) -> (String, String, Vec<u8>, String) {
    let mut words = line.split(' ').map(str::to_owned);
    let mut word = || words.next().unwrap_or_else(|| panic!("{line}"));
    let (case, method, target, length) = (word(), word(), unescaped(&word()), word());
    (case, method, target, if length == "-" || length == "0" { String::new() } else { length })
}

/// nginx writes some bytes as `\xHH` in its log.
fn unescaped(text: &str) -> Vec<u8> {
    let mut parts = text.split("\\x");
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        bytes.push(u8::from_str_radix(&part[..2], 16).unwrap());
        bytes.extend_from_slice(&part.as_bytes()[2..]);
    }
    bytes
}

#[test]
fn answers_that_are_not_valid_never_look_valid_to_the_client() {
    let mut answers = 0;
    for case in conformance::cases().iter().filter(|case| case.kind == Kind::Response) {
        let kind = case.to.first().map_or("body", String::as_str);
        let (method, expect) = match kind {
            "body" => ("GET", ExpectedResponse::Body),
            "head" => ("HEAD", ExpectedResponse::Head),
            _ => continue, // Tunnels have tests of their own.
        };
        answers += 1;
        let bytes = case.bytes.clone();
        let upstream = Upstream::start(move |_, behind| {
            behind.request().unwrap();
            behind.send(&bytes);
            behind.half_close();
            behind.rest();
        });
        let mut setup = Setup::to(&upstream.target);
        setup.rules.limits = limits(case);
        let gate = setup.start();
        let mut client = gate.connect();
        client.send(format!("{method} / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"));
        let got = client.end();
        let read = read(&got, expect);
        match case.messages.first() {
            Some(message) if !message.summary.is_empty() && !message.summary.contains("tunnel") => {
                let status: u16 = message.summary.split(' ').next().unwrap().parse().unwrap();
                let (got_status, body, end) = read.unwrap_or_else(|error| panic!("{}: {error}", case.id));
                assert_eq!((got_status, end), (status, message.complete), "{}: {}", case.id, got.escape_ascii());
                if message.complete {
                    assert!(body == message.body, "{}: {}", case.id, body.escape_ascii());
                } else {
                    assert!(message.body.starts_with(&body), "{}: {}", case.id, body.escape_ascii());
                }
            }
            // No final answer has come, or one that is none.
            _ => assert_eq!(
                read,
                Ok((502, b"".to_vec(), true)).map(|(status, _, end)| (status, gateway_text(&got), end)),
                "{}",
                case.id
            ),
        }
        drop(client);
        gate.stop();
        upstream.end();
    }
    assert!(answers > 50, "only {answers} answers were found in the table");
}

/// The text of an answer that the gateway gives itself.
fn gateway_text(got: &[u8]) -> Vec<u8> {
    let place = got.windows(4).rposition(|window| window == b"\r\n\r\n").unwrap();
    got[place + 4..].to_vec()
}

/// The final answer's status and body, and whether it looks complete.
fn read(got: &[u8], expect: ExpectedResponse) -> Result<(u16, Vec<u8>, bool), DecodeError> {
    let mut decoder = ResponseDecoder::default();
    decoder.expect(expect);
    let limits = Limits { head_bytes: 1 << 20, headers: 10_000, ..Limits::default() };
    let (mut input, mut status, mut body) = (got, 0, Vec::new());
    while let Some(event) = decoder.decode(&limits, &mut input)? {
        match event {
            ResponseEvent::Head(head) => {
                status = head.status;
                assert_ne!(head.framing, Framing::UntilClose, "a client of HTTP/1.1 gets a length or chunks");
            }
            ResponseEvent::Data(data) => body.extend_from_slice(data),
            ResponseEvent::End => return Ok((status, body, true)),
            _ => {}
        }
    }
    Ok((status, body, false))
}

fn limits(case: &Case) -> Limits {
    let mut limits = Limits::default();
    for (name, most) in &case.limits {
        let size = usize::try_from(*most).unwrap();
        match name.as_str() {
            "head_bytes" => limits.head_bytes = size,
            "headers" => limits.headers = size,
            "target_bytes" => limits.target_bytes = size,
            "chunk_line_bytes" => limits.chunk_line_bytes = size,
            "extension_bytes" => limits.extension_bytes = size,
            "trailer_bytes" => limits.trailer_bytes = size,
            "trailers" => limits.trailers = size,
            "body_bytes" => limits.body_bytes = *most,
            "informational" => limits.informational = size,
            other => panic!("{}: unknown limit `{other}`", case.id),
        }
    }
    limits
}
