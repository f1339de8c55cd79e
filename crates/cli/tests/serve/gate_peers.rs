//! `oroshi gate` in front of nginx, Puma, gunicorn, Node and Go: where a message ends, the client, the gateway and the
//! server behind read in one and the same way, and what a client tries to slip past one of them reaches nobody.
//!
//! Each server has the same application (`gate/apps/app.go`), which tells what it has read: in its answer, and in a
//! list of all that it has ever read. Behind each case comes a marker, on the same connection and on another client's:
//! each must get its own answer.

#[path = "../gate/smuggling.rs"]
mod smuggling;

use std::time::Instant;

use crate::gate::Gate;
use crate::servers::{Kind, Server};
use crate::support::{Answer, Client, HANG};
use oroshi_testkit::conformance::{self, Case, Kind as CaseKind, Verdict};

/// What a server does not take by a taste of its own, which is none of the gateway's business: it answers 4xx or 5xx,
/// or, as `OPTIONS *` in Go, without asking the application.
fn own_answers(kind: Kind) -> &'static [&'static str] {
    match kind {
        Kind::Nginx => {
            &["custom-method", "lower-case-method", "options-asterisk", "host-empty", "headers-beyond-the-usual-table"]
        }
        Kind::Puma | Kind::Gunicorn => &[],
        Kind::Node => &["get-with-utf8-target", "custom-method", "lower-case-method", "method-of-32-bytes"],
        Kind::Go => &["options-asterisk"],
    }
}

/// What is not sent to a server: Puma does not take these either, but on a kept connection it says so by closing after
/// twenty seconds.
fn left_out(kind: Kind) -> &'static [&'static str] {
    match kind {
        Kind::Puma => &["get-with-odd-but-harmless-target", "custom-method", "lower-case-method", "method-of-32-bytes"],
        _ => &[],
    }
}

#[test]
fn nginx_reads_what_the_gateway_has_read() {
    all(Kind::Nginx, "nginx_reads_what_the_gateway_has_read");
}

#[test]
fn puma_reads_what_the_gateway_has_read() {
    all(Kind::Puma, "puma_reads_what_the_gateway_has_read");
}

#[test]
fn gunicorn_reads_what_the_gateway_has_read() {
    all(Kind::Gunicorn, "gunicorn_reads_what_the_gateway_has_read");
}

#[test]
fn node_reads_what_the_gateway_has_read() {
    all(Kind::Node, "node_reads_what_the_gateway_has_read");
}

#[test]
fn go_reads_what_the_gateway_has_read() {
    all(Kind::Go, "go_reads_what_the_gateway_has_read");
}

/// Everything, at the server's port with each case in one write, and at its unix socket byte by byte.
fn all(kind: Kind, test: &str) {
    let Some(server) = Server::start(kind, test) else { return };
    let mut expected = Vec::new();
    for (target, pace) in [(server.tcp.clone(), Pace::AtOnce), (server.unix.clone(), Pace::ByteByByte)] {
        let mut run = Run::start(&server, &target, "", pace, std::mem::take(&mut expected));
        let mut cases = 0;
        for case in conformance::cases().iter().filter(|case| case.kind == CaseKind::Request) {
            // The gateway speaks HTTP/2 to clients that begin so.
            let is_http2 = case.bytes.starts_with(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
            if case.limits.is_empty() && !is_http2 && !left_out(kind).contains(&case.id.as_str()) {
                cases += 1;
                run.case(&from_the_table(case));
            }
        }
        assert!(cases > 200, "only {cases} requests were found in the table");
        for case in smuggling::cases() {
            run.case(&case);
        }
        if pace == Pace::AtOnce {
            run.bodies();
            run.upgrades();
        }
        expected = run.end();
    }
    let mut cases = 0;
    for case in conformance::cases().iter().filter(|case| case.kind == CaseKind::Request && !case.limits.is_empty()) {
        let Some(limits) = limits_of(case) else { continue };
        cases += 1;
        let mut run = Run::start(&server, &server.unix, &limits, Pace::AtOnce, std::mem::take(&mut expected));
        run.alone(&from_the_table(case));
        expected = run.end();
    }
    assert!(cases >= 9, "only {cases} cases with limits were found in the table");
    // Nothing that was smuggled turns up late, either.
    let read = server.end();
    assert_eq!(read.len(), expected.len());
}

/// The limits of a case, as the gateway's configuration has them; `None` where it has none of the kind.
fn limits_of(case: &Case) -> Option<String> {
    let limit = |(name, most): &(String, u64)| {
        let name = name.replace('_', "-");
        ["headers", "target-bytes", "body-bytes"].contains(&&*name).then(|| format!("limits.{name} = {most}\n"))
    };
    case.limits.iter().map(limit).collect()
}

/// How a client sends.
#[derive(Clone, Copy, PartialEq)]
enum Pace {
    AtOnce,
    ByteByByte,
}

/// What a client sends on a connection, and what must come of it.
struct Sent {
    name: String,
    bytes: Vec<u8>,
    /// Requests that go to the server behind: method, target, body.
    through: Vec<(String, String, Vec<u8>)>,
    then: Then,
}

/// What must become of the connection.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Then {
    /// It goes on.
    KeepAlive,
    /// It is closed, properly.
    Close,
    /// It is closed after this status of the gateway's own.
    Refused(u16),
    /// The client ends in the middle, and gets 400.
    Incomplete,
}

fn from_the_table(case: &Case) -> Sent {
    let complete = case.messages.iter().filter(|message| message.complete);
    let through = complete.map(|message| {
        let mut words = message.summary.split(' ');
        let (method, target) = (words.next().unwrap(), words.next().unwrap());
        (method.to_owned(), origin_form(method, target), message.body.clone())
    });
    let closes = case.messages.last().is_some_and(|message| message.summary.ends_with(" close"));
    Sent {
        name: case.id.clone(),
        bytes: case.bytes.clone(),
        through: through.collect(),
        then: match case.verdict {
            Verdict::Accept if closes => Then::Close,
            Verdict::Accept => Then::KeepAlive,
            Verdict::Incomplete => Then::Incomplete,
            Verdict::Reject(_, status) => Then::Refused(status),
        },
    }
}

/// What goes to a server (RFC 9112, section 3.2.1).
fn origin_form(method: &str, target: &str) -> String {
    let Some(scheme) = target.find("://").filter(|_| !target.starts_with('/')) else { return target.to_owned() };
    let rest = &target[scheme + 3..];
    match rest.find(['/', '?']).map(|place| &rest[place..]) {
        None if method == "OPTIONS" => "*".to_owned(),
        None => "/".to_owned(),
        Some(rest) if rest.starts_with('?') => format!("/{rest}"),
        Some(rest) => rest.to_owned(),
    }
}

/// A gateway in front of a server, and a client beside the one whose turn it is.
struct Run<'s> {
    server: &'s Server,
    gate: Gate,
    other: Client,
    pace: Pace,
    markers: usize,
    /// What the server must have read so far.
    expected: Vec<Vec<u8>>,
}

impl<'s> Run<'s> {
    fn start(server: &'s Server, target: &str, limits: &str, pace: Pace, expected: Vec<Vec<u8>>) -> Run<'s> {
        let config = format!("{limits}[[route]]\nto = \"{target}\"\n");
        let gate = Gate::start(tempfile::tempdir().unwrap(), &config);
        let other = Client::unix(&gate.path("public.sock"));
        Run { server, gate, other, pace, markers: 0, expected }
    }

    fn client(&self) -> Client {
        Client::unix(&self.gate.path("public.sock"))
    }

    /// A case with its markers.
    fn case(&mut self, case: &Sent) {
        let name = &case.name;
        let mut client = self.client();
        let mut bytes = case.bytes.clone();
        let marker = self.marker();
        // Behind what is refused in any case. Behind what is not, at once or after the answer: who is still sending
        // when the other side closes gets a reset, which may come before an answer of HTTP/1.0 is read to its end.
        let pipelined = match case.then {
            Then::Incomplete => false,
            Then::Refused(_) => true,
            Then::KeepAlive | Then::Close => self.pace == Pace::AtOnce,
        };
        if pipelined {
            bytes.extend(marker.request());
        }
        self.send(&mut client, &bytes);
        if case.then == Then::Incomplete {
            client.half_close();
        }
        match self.answers(&mut client, case) {
            Then::KeepAlive => {
                if !pipelined {
                    client.send(marker.request());
                }
                self.expect("GET", &marker.0, 0);
                marker.is_answered_by(&client.answer(), name);
            }
            then => is_over(&mut client, then, name),
        }
        drop(client);
        let marker = self.marker();
        self.expect("GET", &marker.0, 0);
        marker.is_answered_by(&self.other.send(marker.request()).answer(), name);
        self.has_read(name);
    }

    /// A case under limits that no marker would keep to.
    fn alone(&mut self, case: &Sent) {
        let mut client = self.client();
        client.send(&case.bytes);
        match self.answers(&mut client, case) {
            Then::KeepAlive => is_over(client.half_close(), Then::Close, &case.name),
            then => is_over(&mut client, then, &case.name),
        }
        self.has_read(&case.name);
    }

    /// The answers to what goes through, and what must become of the connection then.
    fn answers(&mut self, client: &mut Client, case: &Sent) -> Then {
        let name = &case.name;
        let mut then = case.then;
        for (method, target, body) in &case.through {
            let answer = final_answer(client, method);
            if ["CONNECT", "TRACE"].contains(&method.as_str()) {
                assert_eq!(answer.status, 405, "{name}");
                if method == "CONNECT" {
                    // What follows would be the tunnel's, and is read by nobody.
                    then = Then::Close;
                }
            } else if name == "host-percent-encoded" {
                // Sound on the wire, but the name of no host.
                assert_eq!(answer.status, 400, "{name}");
            } else if own_answers(self.server.kind).contains(&name.as_str()) {
                assert!(answer.field("x-read").is_none(), "{name}: {answer:?}");
            } else {
                self.expect(method, target, body.len());
                assert_eq!(read_of(&answer), self.expected.last().unwrap().escape_ascii().to_string(), "{name}");
                if method != "HEAD" {
                    let framed =
                        answer.field("content-length").is_some() || answer.field("transfer-encoding").is_some();
                    if !framed {
                        // To a client of HTTP/1.0, where the server gives no length: the close is the end.
                        then = Then::Close;
                    }
                    assert!(answer.body == *body, "{name}: {}", answer.body.escape_ascii());
                }
            }
        }
        then
    }

    fn send(&self, client: &mut Client, bytes: &[u8]) {
        match self.pace {
            Pace::AtOnce => drop(client.send(bytes)),
            // The gateway may have closed already, after what was too much.
            Pace::ByteByByte => {
                let socket = std::sync::Arc::clone(&client.socket);
                let step = if bytes.len() > 4096 { 256 } else { 1 };
                let _ = bytes.chunks(step).try_for_each(|bytes| std::io::Write::write_all(&mut &*socket, bytes));
            }
        }
    }

    fn marker(&mut self) -> Marker {
        self.markers += 1;
        Marker(format!("/marker/{}", self.markers))
    }

    fn expect(&mut self, method: &str, target: &str, length: usize) {
        // gunicorn takes `get` for GET.
        let method = if self.server.kind == Kind::Gunicorn { method.to_uppercase() } else { method.to_owned() };
        self.expected.push(format!("{method} {target} {length}").into_bytes());
    }

    /// The server has read what it should have, and nothing else.
    fn has_read(&self, name: &str) {
        let began = Instant::now();
        let mut read = self.server.read();
        while read.len() < self.expected.len() {
            assert!(began.elapsed() < HANG, "{name}: {} requests of {}", read.len(), self.expected.len());
            std::thread::yield_now();
            read = self.server.read();
        }
        if read != self.expected {
            let shown = |lines: &[Vec<u8>]| -> Vec<String> {
                lines.iter().rev().take(8).map(|line| line.escape_ascii().to_string()).collect()
            };
            panic!("{name}: the server has read {:#?} and not {:#?}", shown(&read), shown(&self.expected));
        }
    }

    /// Large bodies in every framing, on one connection.
    fn bodies(&mut self) {
        let body: Vec<u8> = (0..500_000_u32).flat_map(u32::to_le_bytes).collect();
        let mut client = self.client();
        for (number, method) in ["POST", "PUT", "DELETE", "PATCH"].into_iter().enumerate() {
            for chunks in [0, 1 << 20, 4096, 333] {
                let target = format!("/body/{number}/{chunks}");
                let head = format!("{method} {target} HTTP/1.1\r\nHost: a\r\nTrailer: X-Check\r\nTE: trailers\r\n");
                // Chunks that are as small as this are many.
                let body = if chunks == 333 { &body[..100_000] } else { &body[..] };
                let mut message = head.into_bytes();
                if chunks == 0 {
                    message.extend(format!("Content-Length: {}\r\n\r\n", body.len()).as_bytes());
                    message.extend(body);
                } else {
                    message.extend(b"Transfer-Encoding: chunked\r\n\r\n");
                    for piece in body.chunks(chunks) {
                        message.extend(format!("{:x};ext=\"a\"\r\n", piece.len()).as_bytes());
                        message.extend(piece);
                        message.extend(b"\r\n");
                    }
                    message.extend(b"0\r\n");
                    if self.server.kind.skips_trailers() {
                        message.extend(b"X-Check: all\r\nX-Forwarded-For: 6.6.6.6\r\n");
                    }
                    message.extend(b"\r\n");
                }
                // From another thread, as the answer may begin before all is sent.
                let socket = std::sync::Arc::clone(&client.socket);
                let sending = std::thread::spawn(move || std::io::Write::write_all(&mut &*socket, &message).unwrap());
                let answer = client.answer();
                sending.join().unwrap();
                self.expect(method, &target, body.len());
                assert_eq!(read_of(&answer).as_bytes(), self.expected.last().unwrap());
                assert!(answer.body == body, "{target}: {} bytes", answer.body.len());
                if self.server.kind.has_trailers() && chunks > 0 {
                    let trailers = answer.field("x-trailers").unwrap();
                    assert_eq!(trailers.to_ascii_lowercase(), "x-check=all", "{target}");
                }
            }
        }
        self.has_read("bodies");
    }

    /// A WebSocket where the server knows how, and what is sent too early where it does not.
    fn upgrades(&mut self) {
        let ask = oroshi_testkit::http::head("GET", "/socket", "a", &oroshi_testkit::websocket::UPGRADE);
        // What is no request is the new protocol's, or nobody's.
        let early = "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n";
        let mut client = self.client();
        client.send([&ask, early.as_bytes()].concat());
        let answer = client.answer();
        self.expect("GET", "/socket", 0);
        if self.server.kind.upgrades() {
            assert_eq!(answer.status, 101, "{answer:?}");
            assert_eq!(answer.field("sec-websocket-accept"), Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
            assert_eq!(client.exactly(early.len()), early.as_bytes(), "sent back by the socket, read by no HTTP");
            for size in [1, 100, 100_000] {
                let piece = vec![b'x'; size];
                client.send(&piece);
                assert_eq!(client.exactly(size), piece);
            }
            client.half_close().closed();
        } else {
            // The server stays with HTTP, and so it is a request like others.
            assert_eq!((answer.status, read_of(&answer)), (200, "GET /socket 0".to_owned()));
            self.expect("GET", "/smuggled", 0);
            assert_eq!(read_of(&client.answer()), "GET /smuggled 0");
        }
        let marker = self.marker();
        self.expect("GET", &marker.0, 0);
        marker.is_answered_by(&self.other.send(marker.request()).answer(), "upgrade");
        self.has_read("upgrade");
    }

    /// Ends the gateway, whose own count is the same; gives what the server must have read.
    fn end(mut self) -> Vec<Vec<u8>> {
        drop(self.other);
        self.gate.process.signal(rustix::process::Signal::TERM);
        assert_eq!(self.gate.process.ended().code(), Some(0));
        self.expected
    }
}

/// A request that can be told from all others.
struct Marker(String);

impl Marker {
    fn request(&self) -> Vec<u8> {
        format!("GET {} HTTP/1.1\r\nHost: marker\r\n\r\n", self.0).into_bytes()
    }

    fn is_answered_by(&self, answer: &Answer, name: &str) {
        assert_eq!(answer.status, 200, "{name}: {answer:?}");
        assert_eq!(read_of(answer), format!("GET {} 0", self.0), "{name}: another's answer");
    }
}

/// What the server says that it has read.
fn read_of(answer: &Answer) -> String {
    let read = answer.field("x-read").unwrap_or_else(|| panic!("{answer:?}"));
    // nginx has no length where there is no body. The space at the end is lost.
    let read = if read.split(' ').count() == 2 { format!("{read} 0") } else { read.to_owned() };
    read.as_bytes().escape_ascii().to_string()
}

/// The connection ends, after the gateway's own answer if there is one, without another byte; with a reset where the
/// client still sends.
fn is_over(client: &mut Client, then: Then, name: &str) {
    match then {
        Then::KeepAlive | Then::Close => {}
        Then::Refused(status) => assert_eq!(client.answer().status, status, "{name}"),
        Then::Incomplete => assert_eq!(client.answer().status, 400, "{name}"),
    }
    let rest = client.end();
    assert!(rest.is_empty(), "{name}: {}", rest.escape_ascii());
}

fn final_answer(client: &mut Client, method: &str) -> Answer {
    loop {
        let answer = client.answer_to(method);
        if answer.status >= 200 {
            return answer;
        }
        assert_eq!(answer.status, 100, "{answer:?}");
    }
}
