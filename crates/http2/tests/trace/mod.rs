//! Feeds bytes and commands to a connection, in pieces, and records events and frames as text. The conformance table,
//! the property tests and the fuzz targets compare such traces.
#![allow(dead_code)] // each of them uses what it needs of it

use std::sync::Arc;

use oroshi_http1::{Framing, Limits, RequestDecoder, RequestEvent};
use oroshi_http2::{
    Config, Connection, Defect, ErrorCode, Event, HeadBuffer, PREFACE, Request, RequestHead, ResponseHead, Role,
    StreamRef,
};

/// One step of a script.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// Bytes from the peer.
    In(Vec<u8>),
    /// A command of the caller: its words.
    Do(Vec<String>),
}

/// How the bytes from the peer are cut.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Cut {
    Whole,
    Bytewise,
    /// In two, at this offset of all bytes together.
    At(usize),
    /// In pieces of this length.
    Every(usize),
}

/// The result of a script.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Trace {
    pub(crate) events: Vec<String>,
    /// Field lines of all heads and trailers, in order.
    pub(crate) fields: Vec<String>,
    /// Everything that the connection has written.
    pub(crate) out: Vec<u8>,
    pub(crate) error: Option<Defect>,
    /// Most bytes that had to be kept between two reads.
    pub(crate) kept: usize,
}

/// A connection whose handshake is done, except for `out`.
pub(crate) fn connection(role: Role, config: &Arc<Config>) -> (Connection, Vec<u8>) {
    let mut out = Vec::new();
    let connection = match role {
        Role::Client => Connection::client(config.clone(), &mut out),
        Role::Server => Connection::server(config.clone(), &mut out),
    };
    (connection, out)
}

/// The peer's part of the handshake: preface, empty settings, acknowledgement of ours.
pub(crate) fn handshake(role: Role) -> Vec<u8> {
    let mut bytes = if role == Role::Server { PREFACE.to_vec() } else { Vec::new() };
    bytes.extend_from_slice(b"\0\0\0\x04\0\0\0\0\0\0\0\0\x04\x01\0\0\0\0");
    bytes
}

/// Runs a script. With `shake`, the handshake comes first and leaves no trace.
pub(crate) fn run(role: Role, config: &Config, shake: bool, script: &[Step], cut: Cut) -> Trace {
    let (mut connection, mut first) = connection(role, &Arc::new(config.clone()));
    let mut trace = Trace::default();
    let mut heads = HeadBuffer::default();
    if shake {
        let bytes = handshake(role);
        let mut input = &bytes[..];
        while connection.receive(&mut input, &mut heads, &mut first).expect("a sound handshake").is_some() {}
        assert!(input.is_empty() && connection.is_ready());
    }
    let (mut kept, mut offset) = (Vec::new(), 0);
    for step in script {
        match step {
            Step::Do(words) => command(&mut connection, words, &mut trace),
            Step::In(bytes) => {
                for piece in pieces(bytes, cut, offset) {
                    kept.extend_from_slice(piece);
                    let mut input = &kept[..];
                    receive(&mut connection, &mut input, &mut heads, &mut trace);
                    let used = kept.len() - input.len();
                    kept.drain(..used);
                    trace.kept = trace.kept.max(kept.len());
                }
                offset += bytes.len();
            }
        }
    }
    trace
}

fn pieces(bytes: &[u8], cut: Cut, offset: usize) -> Vec<&[u8]> {
    match cut {
        Cut::Whole => vec![bytes],
        Cut::Bytewise => bytes.chunks(1).collect(),
        Cut::Every(length) => bytes.chunks(length.max(1)).collect(),
        Cut::At(place) => {
            let (first, second) = bytes.split_at(place.saturating_sub(offset).min(bytes.len()));
            vec![first, second]
        }
    }
}

pub(crate) fn receive(connection: &mut Connection, input: &mut &[u8], heads: &mut HeadBuffer, trace: &mut Trace) {
    if trace.error.is_some() {
        *input = &[];
        return;
    }
    loop {
        match connection.receive(input, heads, &mut trace.out) {
            Ok(Some(event)) => record(&event, trace),
            Ok(None) => return,
            Err(defect) => {
                trace.error = Some(defect);
                *input = &[];
                assert_eq!(connection.receive(input, heads, &mut Vec::new()), Err(defect), "an error is final");
                return;
            }
        }
    }
}

fn record(event: &Event<'_>, trace: &mut Trace) {
    let ended = |end: bool| if end { " end" } else { "" };
    let line = match event {
        Event::Request { stream, head, end } => {
            goes_on_as_one_http1_request(head);
            trace.fields.extend(lines(head.headers.as_bytes()));
            format!("request {}{}", request(stream, head), ended(*end))
        }
        Event::Response { stream, head, end } => {
            trace.fields.extend(lines(head.headers.as_bytes()));
            format!("response {}{}", response(stream, head), ended(*end))
        }
        Event::Informational { stream, head } => {
            trace.fields.extend(lines(head.headers.as_bytes()));
            format!("informational {}", response(stream, head))
        }
        Event::Data { stream, data, end } => {
            assert!(!data.is_empty() || *end);
            // Pieces of one stream's data that follow each other are joined.
            let start = format!("data {} ", stream.id);
            let mut line = match trace.events.last() {
                Some(last) if last.starts_with(&start) && !last.ends_with(" end") => trace.events.pop().unwrap(),
                _ => start,
            };
            line.push_str(&data.escape_ascii().to_string());
            line + ended(*end)
        }
        Event::Trailers { stream, headers } => {
            trace.fields.extend(lines(headers.as_bytes()));
            format!("trailers {}", stream.id)
        }
        Event::Reset { stream, code, defect } => {
            let by = defect.map_or("peer", Defect::name);
            format!("reset {} {code} {by}", stream.id)
        }
        Event::Refused { id, defect } => format!("refused {id} {}", defect.name()),
        Event::WindowOpen { stream } => match stream {
            Some(stream) => format!("window {}", stream.id),
            None => "window *".to_owned(),
        },
        Event::Settings => "settings".to_owned(),
        Event::Pong { data } => format!("pong {}", data.escape_ascii()),
        Event::GoAway { last_stream, code, debug } => {
            format!("goaway {last_stream} {code} {}", debug.escape_ascii()).trim_end().to_owned()
        }
    };
    trace.events.push(line);
}

/// A request that this crate accepts is exactly one for HTTP/1.1, with the same parts.
fn goes_on_as_one_http1_request(head: &RequestHead<'_>) {
    if head.protocol.is_some() {
        return;
    }
    let line = format!("{} {} HTTP/1.1\r\n", head.method, head.target);
    let bytes = [line.as_bytes(), head.headers.as_bytes(), b"\r\n"].concat();
    let (mut input, mut decoder) = (&bytes[..], RequestDecoder::default());
    let limits = Limits { head_bytes: usize::MAX, headers: 1_000, ..Limits::default() };
    let event = decoder.decode(&limits, &mut input);
    let Ok(Some(RequestEvent::Head(read))) = event else { panic!("{event:?} from {}", bytes.escape_ascii()) };
    assert_eq!((read.method, read.target), (head.method, head.target));
    assert_eq!(read.host, Some(head.authority.as_bytes()));
    assert_eq!(read.headers, head.headers);
    assert_eq!(read.headers.get_all("host").count(), 1);
    assert!(read.headers.get_all("cookie").count() <= 1 && input.is_empty());
    match read.framing {
        Framing::None => assert_eq!(head.content_length, None),
        Framing::Length(length) => assert_eq!(head.content_length, Some(length)),
        other => panic!("{other:?}"),
    }
}

fn request(stream: &StreamRef, head: &RequestHead<'_>) -> String {
    let mut text = format!("{} {} {} {}", stream.id, head.method, head.authority, head.target);
    if !head.scheme.is_empty() && head.scheme != "http" {
        text += &format!(" scheme={}", head.scheme);
    }
    if let Some(protocol) = head.protocol {
        text += &format!(" protocol={protocol}");
    }
    if let Some(length) = head.content_length {
        text += &format!(" length={length}");
    }
    text + if head.expect_continue { " expect" } else { "" }
}

fn response(stream: &StreamRef, head: &ResponseHead<'_>) -> String {
    let length = head.content_length.map(|length| format!(" length={length}")).unwrap_or_default();
    format!("{} {}{length}", stream.id, head.status)
}

fn lines(section: &[u8]) -> Vec<String> {
    section
        .split_inclusive(|&byte| byte == b'\n')
        .map(|line| line.trim_ascii_end().escape_ascii().to_string())
        .collect()
}

/// Carries out a command, and records its result if it has one.
fn command(connection: &mut Connection, words: &[String], trace: &mut Trace) {
    let word = |place: usize| words.get(place).map_or("", String::as_str);
    let number = |place: usize| word(place).parse().unwrap_or(0u32);
    let end = words.last().is_some_and(|last| last == "end");
    let out = &mut trace.out;
    let result = match word(0) {
        "request" => {
            let (method, path) = (word(1), word(2));
            let request = Request { method, scheme: "http", authority: "a", path, protocol: None };
            connection.send_request(out, &request, [], end, 0).map(|id| format!("opened {id}"))
        }
        "response" => connection.send_response(out, number(1), number(2) as u16, [], end).map(|()| String::new()),
        "data" => {
            let data = vec![b'x'; number(2) as usize];
            connection.send_data(out, number(1), &data, end).map(|sent| format!("sent {} {sent}", number(1)))
        }
        "trailers" => connection.send_trailers(out, number(1), [("x-sum", &b"1"[..])]).map(|()| String::new()),
        other => {
            match other {
                "reset" => connection.reset(out, number(1), ErrorCode(number(2))),
                "grant" => connection.grant(out, number(1), number(2) as usize),
                "goaway" => connection.goaway(out, words.get(1).map(|_| number(1)), ErrorCode::NO_ERROR),
                "ping" => connection.ping(out, *b"12345678"),
                "tick" => connection.tick(),
                _ => panic!("unknown command {words:?}"),
            }
            Ok(String::new())
        }
    };
    match result {
        Ok(line) if line.is_empty() => {}
        Ok(line) => trace.events.push(line),
        Err(error) => trace.events.push(format!("failed {error}")),
    }
}
