//! Properties of all messages: decoding reverses encoding, cuts change nothing, and no bytes do harm.

use oroshi_http1::{ExpectedResponse, Framing, Limits, Version, encode};
use oroshi_testkit::conformance;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

use crate::trace;
use crate::trace::{Event, Side, Trace};

type Fields = Vec<(String, Vec<u8>)>;

/// A message to write, and the division of its body into chunks, if it is chunked.
#[derive(Clone, Debug)]
struct Message {
    method: String,
    target: String,
    status: u16,
    reason: Option<Vec<u8>>,
    fields: Fields,
    body: Body,
}

#[derive(Clone, Debug)]
enum Body {
    None,
    Length(Vec<u8>),
    Chunked(Vec<Vec<u8>>, Fields),
}

/// Generates field names without influence on framing, Host and the like, and allowed in trailers: all begin with
/// `X-`.
fn fields(most: usize) -> impl Strategy<Value = Fields> {
    let name = "[Xx]-[!#$%&'*+.^_`|~0-9a-zA-Z-]{0,20}";
    // White space at the ends is not part of a value.
    let value =
        vec(prop_oneof![Just(b'\t'), b' '..=b'~', 0x80u8..], 0..40).prop_map(|value| value.trim_ascii().to_vec());
    vec((name, value), 0..most)
}

fn body() -> impl Strategy<Value = Body> {
    let bytes = || vec(any::<u8>(), 0..60);
    prop_oneof![
        Just(Body::None),
        bytes().prop_map(Body::Length),
        (vec(bytes(), 0..5), fields(3)).prop_map(|(chunks, trailers)| Body::Chunked(chunks, trailers)),
    ]
}

fn message() -> impl Strategy<Value = Message> {
    let method = "[!#$%&'*+.^_`|~0-9a-zA-Z-]{1,32}".prop_filter("not a tunnel", |method| method != "CONNECT");
    let target = "/[!\"$-~é]{0,30}";
    let reason = proptest::option::of(vec(prop_oneof![Just(b'\t'), b' '..=b'~', 0x80u8..], 0..20));
    (method, target, 200u16..1000, reason, fields(6), body()).prop_map(
        |(method, target, status, reason, fields, body)| Message { method, target, status, reason, fields, body },
    )
}

impl Message {
    fn all_fields(&self, host: bool) -> Fields {
        let mut all = self.fields.clone();
        if host {
            all.insert(0, ("Host".to_owned(), b"example.org".to_vec()));
        }
        match &self.body {
            Body::None => {}
            Body::Length(bytes) => all.push(("Content-Length".to_owned(), bytes.len().to_string().into_bytes())),
            Body::Chunked(..) => all.push(("Transfer-Encoding".to_owned(), b"chunked".to_vec())),
        }
        all
    }

    fn framing(&self, otherwise: Framing) -> Framing {
        match &self.body {
            Body::None => otherwise,
            Body::Length(bytes) => Framing::Length(bytes.len() as u64),
            Body::Chunked(..) => Framing::Chunked,
        }
    }

    fn write_body(&self, out: &mut Vec<u8>) {
        match &self.body {
            Body::None => {}
            Body::Length(bytes) => out.extend_from_slice(bytes),
            Body::Chunked(chunks, trailers) => {
                for chunk in chunks {
                    encode::chunk(out, chunk);
                }
                encode::last_chunk(out, borrow(trailers)).expect("sound");
            }
        }
    }

    /// The events after the head.
    fn events(&self) -> Vec<Event> {
        let mut events = Vec::new();
        let data = match &self.body {
            Body::None => Vec::new(),
            Body::Length(bytes) => bytes.clone(),
            Body::Chunked(chunks, _) => chunks.concat(),
        };
        if !data.is_empty() {
            events.push(Event::Data(data));
        }
        match &self.body {
            Body::Chunked(_, trailers) if !trailers.is_empty() => events.push(Event::Trailers(trailers.clone())),
            _ => {}
        }
        events.push(Event::End);
        events
    }
}

fn borrow(fields: &Fields) -> impl Iterator<Item = (&str, &[u8])> {
    fields.iter().map(|(name, value)| (name.as_str(), value.as_slice()))
}

/// Cuts `bytes` into pieces.
fn pieces<'b>(bytes: &'b [u8], cuts: &[Index]) -> Vec<&'b [u8]> {
    let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
    at.sort_unstable();
    at.push(bytes.len());
    let mut start = 0;
    at.into_iter().map(|end| &bytes[std::mem::replace(&mut start, end)..end]).collect()
}

/// Returns the trace of `bytes`, and checks that it is the same whole, byte by byte and with these cuts.
fn trace(side: &Side, limits: &Limits, bytes: &[u8], cuts: &[Index]) -> Result<Trace, TestCaseError> {
    let whole = trace::whole(side, limits, bytes);
    prop_assert_eq!(&trace::bytewise(side, limits, bytes), &whole, "byte by byte: {}", bytes.escape_ascii());
    let cut = trace::pieces(side, limits, pieces(bytes, cuts));
    prop_assert_eq!(&cut, &whole, "cut: {}", bytes.escape_ascii());
    Ok(whole)
}

/// Generates almost valid messages: a case of the table, or pieces of heads, with a change.
fn nearly_a_message() -> impl Strategy<Value = Vec<u8>> {
    let known: Vec<Vec<u8>> =
        conformance::cases().into_iter().map(|case| case.bytes).filter(|bytes| bytes.len() < 400).collect();
    let lines = select(vec![
        "GET / HTTP/1.1\r\n",
        "HTTP/1.1 200 OK\r\n",
        "Host: a\r\n",
        "Content-Length: 3\r\n",
        "Transfer-Encoding: chunked\r\n",
        "Connection: close\r\n",
        "\r\n",
        "\n",
        "\r",
        "3\r\nabc\r\n",
        "0\r\n",
        "0\r\n\r\n",
        "HTTP/1.1 100 Continue\r\n\r\n",
        "X: y\r\n",
        " ",
        ":",
        ";a=b",
        "CONNECT a:1 HTTP/1.1\r\n",
    ]);
    let base = prop_oneof![
        2 => select(known),
        1 => vec(lines, 0..8).prop_map(|lines| lines.concat().into_bytes()),
        1 => vec(any::<u8>(), 0..40),
    ];
    let change = (any::<Index>(), any::<Index>(), select(b"\r\n\0 \t:;,05aA+-_\x7f\xe9".to_vec()), 0u8..5);
    (base, vec(change, 0..4)).prop_map(|(mut bytes, changes)| {
        for (at, other, byte, kind) in changes {
            let (at, other) = (at.index(bytes.len() + 1), other.index(bytes.len() + 1));
            match kind {
                0 => bytes.insert(at, byte),
                1 if at < bytes.len() => bytes[at] = byte,
                2 if at < bytes.len() => drop(bytes.remove(at)),
                3 => drop(bytes.drain(at.min(other)..at.max(other).min(at.min(other) + 9))),
                _ => bytes.splice(at..at, bytes[at.min(other)..at.max(other)].to_vec()).for_each(drop),
            }
        }
        bytes
    })
}

fn expectation() -> impl Strategy<Value = ExpectedResponse> {
    select(vec![ExpectedResponse::Body, ExpectedResponse::Head, ExpectedResponse::Connect, ExpectedResponse::Upgrade])
}

/// Generates small limits, so that messages exceed them.
fn limits() -> impl Strategy<Value = Limits> {
    let small = (1usize..120, 1usize..4, 1usize..12, 1usize..8, 1usize..20, 1usize..30, 1usize..3, 1u64..9, 1usize..3);
    prop_oneof![
        Just(Limits::default()),
        small.prop_map(|(head, headers, target, line, extensions, trailer, trailers, body, informational)| Limits {
            head_bytes: head,
            headers,
            target_bytes: target,
            chunk_line_bytes: line,
            extension_bytes: extensions,
            trailer_bytes: trailer,
            trailers,
            body_bytes: body,
            informational,
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn requests_are_read_as_they_were_written(messages in vec(message(), 1..4), cuts in vec(any::<Index>(), 0..5)) {
        let mut bytes = Vec::new();
        let mut expected = Vec::new();
        for message in &messages {
            let fields = message.all_fields(true);
            let (method, target) = (&message.method, &message.target);
            encode::request_head(&mut bytes, method, target, Version::Http11, borrow(&fields)).expect("sound");
            message.write_body(&mut bytes);
            expected.push(Event::Head(trace::Head {
                first: format!("{} {}", message.method, message.target),
                version: Version::Http11,
                framing: message.framing(Framing::None),
                keep_alive: true,
                facts: vec![("@host".to_owned(), b"example.org".to_vec())],
                fields,
            }));
            expected.extend(message.events());
        }
        let trace = trace(&Side::Requests, &Limits::default(), &bytes, &cuts)?;
        prop_assert_eq!(trace, Trace { events: expected, ..Trace::default() });
    }

    #[test]
    fn responses_are_read_as_they_were_written(
        messages in vec((message(), expectation()), 1..4),
        cuts in vec(any::<Index>(), 0..5),
    ) {
        let mut bytes = Vec::new();
        let mut expected = Vec::new();
        let mut kinds = Vec::new();
        for (message, kind) in &messages {
            let fields = message.all_fields(false);
            let (status, reason) = (message.status, message.reason.as_deref());
            encode::response_head(&mut bytes, Version::Http11, status, reason, borrow(&fields)).expect("sound");
            let tunnel = *kind == ExpectedResponse::Connect && message.status < 300;
            let bodiless = *kind == ExpectedResponse::Head || [204, 304].contains(&message.status);
            let framing = match message.framing(Framing::UntilClose) {
                _ if tunnel => Framing::Tunnel,
                _ if bodiless => Framing::None,
                framing => framing,
            };
            let standard = encode::standard_reason(message.status).as_bytes().to_vec();
            kinds.push(*kind);
            expected.push(Event::Head(trace::Head {
                first: message.status.to_string(),
                version: Version::Http11,
                framing,
                keep_alive: !matches!(framing, Framing::Tunnel | Framing::UntilClose),
                facts: vec![("@reason".to_owned(), message.reason.clone().unwrap_or(standard))],
                fields,
            }));
            if bodiless && !tunnel {
                expected.push(Event::End);
                continue;
            }
            if tunnel {
                break;
            }
            message.write_body(&mut bytes);
            expected.extend(message.events());
            if framing == Framing::UntilClose {
                break;
            }
        }
        let trace = trace(&Side::Responses(kinds), &Limits::default(), &bytes, &cuts)?;
        prop_assert_eq!(trace, Trace { events: expected, ..Trace::default() });
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn cuts_change_nothing_about_requests(
        bytes in nearly_a_message(),
        limits in limits(),
        cuts in vec(any::<Index>(), 0..5),
    ) {
        trace(&Side::Requests, &limits, &bytes, &cuts)?;
    }

    #[test]
    fn cuts_change_nothing_about_responses(
        bytes in nearly_a_message(),
        limits in limits(),
        kinds in vec(expectation(), 0..4),
        cuts in vec(any::<Index>(), 0..5),
    ) {
        trace(&Side::Responses(kinds), &limits, &bytes, &cuts)?;
    }
}
