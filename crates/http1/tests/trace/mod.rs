//! Feeds bytes to a decoder in pieces, as a connection would, and records the events. The conformance table, the
//! property tests and the fuzz targets compare such traces.
#![allow(dead_code)] // each of them uses what it needs of it

use oroshi_http1::{
    DecodeError, ExpectedResponse, Framing, Headers, Limits, RequestDecoder, RequestEvent, RequestHead,
    ResponseDecoder, ResponseEvent, ResponseHead, Version,
};

/// The result of a stream of bytes. Equal for equal bytes, whatever the pieces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Trace {
    pub(crate) events: Vec<Event>,
    /// The error; `UnexpectedEof` comes only from the close after the last byte.
    pub(crate) error: Option<DecodeError>,
    /// Remaining bytes without an error: those of a tunnel, or of an incomplete head.
    pub(crate) rest: Vec<u8>,
}

/// An owned copy of an event. Adjacent data is joined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Informational(Head),
    Head(Head),
    Data(Vec<u8>),
    Trailers(Vec<(String, Vec<u8>)>),
    End,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    /// `METHOD target` or the status.
    pub(crate) first: String,
    pub(crate) version: Version,
    pub(crate) framing: Framing,
    pub(crate) keep_alive: bool,
    /// `@host`, `@upgrade`, `@expect`, `@reason`, as far as present.
    pub(crate) facts: Vec<(String, Vec<u8>)>,
    pub(crate) fields: Vec<(String, Vec<u8>)>,
}

impl Head {
    /// Formats the event as in the conformance table.
    pub(crate) fn summary(&self) -> String {
        let framing = match self.framing {
            Framing::None => "none".to_owned(),
            Framing::Length(length) => format!("length={length}"),
            Framing::Chunked => "chunked".to_owned(),
            Framing::UntilClose => "until-close".to_owned(),
            Framing::Tunnel => "tunnel".to_owned(),
        };
        format!("{} {framing} {}", self.first, if self.keep_alive { "keep-alive" } else { "close" })
    }
}

/// The decoder, and the expected responses in order.
#[derive(Clone, Debug)]
pub(crate) enum Side {
    Requests,
    Responses(Vec<ExpectedResponse>),
}

/// Returns the trace of `bytes` passed at once.
pub(crate) fn whole(side: &Side, limits: &Limits, bytes: &[u8]) -> Trace {
    pieces(side, limits, [bytes])
}

/// Returns the trace of `bytes` passed one by one.
pub(crate) fn bytewise(side: &Side, limits: &Limits, bytes: &[u8]) -> Trace {
    pieces(side, limits, bytes.chunks(1))
}

/// Returns the trace of bytes passed in pieces, then a close.
pub(crate) fn pieces<'p>(side: &Side, limits: &Limits, pieces: impl IntoIterator<Item = &'p [u8]>) -> Trace {
    match side {
        Side::Requests => run(RequestDecoder::default(), limits, pieces),
        Side::Responses(expected) => {
            let mut decoder = ResponseDecoder::default();
            for &kind in expected {
                decoder.expect(kind);
            }
            run(decoder, limits, pieces)
        }
    }
}

/// The common interface of the two decoders.
trait Decoder {
    fn next(&mut self, limits: &Limits, input: &mut &[u8]) -> Result<Option<Event>, DecodeError>;
    fn close(&mut self) -> Result<Option<Event>, DecodeError>;
}

impl Decoder for RequestDecoder {
    fn next(&mut self, limits: &Limits, input: &mut &[u8]) -> Result<Option<Event>, DecodeError> {
        Ok(self.decode(limits, input)?.map(|event| match event {
            RequestEvent::Head(head) => Event::Head(request(&head)),
            RequestEvent::Data(data) => Event::Data(data.to_vec()),
            RequestEvent::Trailers(trailers) => Event::Trailers(fields(trailers)),
            RequestEvent::End => Event::End,
        }))
    }

    fn close(&mut self) -> Result<Option<Event>, DecodeError> {
        self.eof().map(|()| None)
    }
}

impl Decoder for ResponseDecoder {
    fn next(&mut self, limits: &Limits, input: &mut &[u8]) -> Result<Option<Event>, DecodeError> {
        Ok(self.decode(limits, input)?.map(|event| response_event(&event)))
    }

    fn close(&mut self) -> Result<Option<Event>, DecodeError> {
        Ok(self.eof()?.map(|event| response_event(&event)))
    }
}

fn run<'p>(mut decoder: impl Decoder, limits: &Limits, pieces: impl IntoIterator<Item = &'p [u8]>) -> Trace {
    let mut trace = Trace::default();
    let mut buffer = Vec::new();
    for piece in pieces {
        buffer.extend_from_slice(piece);
        let mut input = &buffer[..];
        if let Err(error) = events(&mut decoder, limits, &mut input, &mut trace) {
            trace.error = Some(error);
            assert_eq!(decoder.next(limits, &mut &b"GET / HTTP/1.1\r\n"[..]), Err(error), "an error is final");
            assert_eq!(decoder.close(), Err(error), "an error is final");
            return trace;
        }
        let left = input.len();
        buffer.drain(..buffer.len() - left);
    }
    let mut closes = 0;
    loop {
        match decoder.close() {
            Ok(None) => break,
            Ok(Some(event)) => trace.events.push(event),
            Err(error) => {
                trace.error = Some(error);
                break;
            }
        }
        closes += 1;
        assert!(closes < 2, "a close ends one message at most");
        // The same close cuts off outstanding responses.
    }
    trace.rest = buffer;
    trace
}

/// Records all events of `input`, until the decoder needs more.
fn events(
    decoder: &mut impl Decoder,
    limits: &Limits,
    input: &mut &[u8],
    trace: &mut Trace,
) -> Result<(), DecodeError> {
    loop {
        let before = *input;
        let event = decoder.next(limits, input)?;
        assert!(before.ends_with(input), "the decoder may only advance, and only within what it was given");
        let Some(event) = event else { return Ok(()) };
        assert!(event == Event::End || input.len() < before.len(), "every event but the end uses bytes: {event:?}");
        match (event, trace.events.last_mut()) {
            (Event::Data(data), Some(Event::Data(all))) => {
                assert!(!data.is_empty(), "data is never empty");
                all.extend(data);
            }
            (event, last) => {
                assert!(event != Event::End || last != Some(&mut Event::End), "one end for one message");
                trace.events.push(event);
            }
        }
    }
}

fn request(head: &RequestHead<'_>) -> Head {
    let mut facts = Vec::new();
    facts.extend(head.host.map(|host| ("@host".to_owned(), host.to_vec())));
    facts.extend(head.upgrade.map(|upgrade| ("@upgrade".to_owned(), upgrade.to_vec())));
    facts.extend(head.expect_continue.then(|| ("@expect".to_owned(), b"100-continue".to_vec())));
    Head {
        first: format!("{} {}", head.method, head.target),
        version: head.version,
        framing: head.framing,
        keep_alive: head.keep_alive,
        facts,
        fields: fields(head.headers),
    }
}

fn response(head: &ResponseHead<'_>) -> Head {
    Head {
        first: head.status.to_string(),
        version: head.version,
        framing: head.framing,
        keep_alive: head.keep_alive,
        facts: vec![("@reason".to_owned(), head.reason.to_vec())],
        fields: fields(head.headers),
    }
}

fn response_event(event: &ResponseEvent<'_>) -> Event {
    match event {
        ResponseEvent::Informational(head) => Event::Informational(response(head)),
        ResponseEvent::Head(head) => Event::Head(response(head)),
        ResponseEvent::Data(data) => Event::Data(data.to_vec()),
        ResponseEvent::Trailers(trailers) => Event::Trailers(fields(*trailers)),
        ResponseEvent::End => Event::End,
    }
}

/// Returns the fields of a section, and checks that lookups agree with iteration.
fn fields(headers: Headers<'_>) -> Vec<(String, Vec<u8>)> {
    for field in headers.iter() {
        assert_eq!(headers.get(field.name), headers.get_all(field.name).next());
        assert!(headers.get_all(field.name).any(|value| value == field.value));
    }
    assert_eq!(headers.is_empty(), headers.iter().next().is_none());
    headers.iter().map(|field| (field.name.to_owned(), field.value.to_vec())).collect()
}
