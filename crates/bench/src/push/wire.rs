//! Reads a subscription in each of the three modes: bytes in, messages out.

use oroshi_core::Incoming;
use oroshi_http1::{DecodeError, Limits, ResponseDecoder, ResponseEvent};
use oroshi_websocket::{CloseCode, Decoder, Event, encode};

use super::plan::Mode;
use super::stamp::{self, Stamp};

/// The largest message that is accepted.
const MESSAGE: oroshi_websocket::Limits = oroshi_websocket::Limits { message_bytes: 16 << 20 };

/// How a subscription is read.
///
/// WebSocket is decoded by our own crate. Other crates keep a buffer of some kilobytes, and often a task, per
/// connection, where a subscription should cost some hundred bytes; and none returns a message in place, in the buffer
/// that all connections share.
#[derive(Debug)]
pub(crate) enum Wire {
    WebSocket(Decoder),
    /// The body of an endless response.
    Body(ResponseDecoder, TextScanner),
}

/// How a subscription ended, before the run did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum End {
    /// With a close frame; a frame without a code counts as 1005 (RFC 6455, section 7.1.5).
    Closed(u16),
    /// The connection was closed, without a close frame or in the middle of a response.
    Eof,
    /// The response ended in order.
    Complete,
    /// The connection was reset.
    Reset,
    /// The bytes are no WebSocket or no HTTP.
    Protocol,
}

impl End {
    /// The name in reports and JSON.
    pub(crate) fn name(self) -> String {
        match self {
            Self::Closed(code) => format!("close-{code}"),
            Self::Eof => "eof".into(),
            Self::Complete => "end-of-response".into(),
            Self::Reset => "reset".into(),
            Self::Protocol => "protocol-error".into(),
        }
    }
}

/// Takes the messages of a subscription.
pub(crate) trait MessageSink {
    /// Takes a message, after its stamps.
    fn message(&mut self, stamps: usize);
    /// Takes a stamp.
    fn stamp(&mut self, stamp: Stamp);
}

impl Wire {
    /// Decodes `input`, and leaves incomplete bytes in it, to be offered again with more behind them.
    ///
    /// Appends bytes to send to `out`: pongs, and the reply to a close.
    pub(crate) fn read(
        &mut self,
        input: &mut &mut [u8],
        out: &mut Vec<u8>,
        sink: &mut impl MessageSink,
    ) -> Result<(), End> {
        match self {
            Self::WebSocket(decoder) => frames(decoder, input, out, sink),
            Self::Body(decoder, text) => {
                let mut rest: &[u8] = input;
                let result = body(decoder, text, &mut rest, sink);
                let read = input.len() - rest.len();
                *input = &mut std::mem::take(input)[read..];
                result
            }
        }
    }

    /// Returns how the subscription ended when the server closed the connection.
    pub(crate) fn eof(&mut self) -> End {
        match self {
            Self::WebSocket(_) => End::Eof,
            Self::Body(decoder, _) => match decoder.eof() {
                Ok(Some(ResponseEvent::End)) => End::Complete,
                _ => End::Eof,
            },
        }
    }
}

fn frames(
    decoder: &mut Decoder,
    input: &mut &mut [u8],
    out: &mut Vec<u8>,
    sink: &mut impl MessageSink,
) -> Result<(), End> {
    let key = || std::array::from_fn(|_| fastrand::u8(..));
    loop {
        match decoder.decode(&MESSAGE, input) {
            Ok(None) => return Ok(()),
            Ok(Some(Event::Message { data, .. })) => {
                let mut stamps = 0;
                stamp::find(&data, |stamp| {
                    stamps += 1;
                    sink.stamp(stamp);
                });
                sink.message(stamps);
            }
            Ok(Some(Event::Ping(payload))) => encode::pong(out, payload, Some(key())),
            Ok(Some(Event::Pong(_))) => {}
            Ok(Some(Event::Close { code, .. })) => {
                encode::masked_close(out, code.unwrap_or(CloseCode::NORMAL), "", key());
                return Err(End::Closed(code.map_or(1005, |code| code.0)));
            }
            Err(violation) => {
                encode::masked_close(out, violation.code(), "", key());
                return Err(End::Protocol);
            }
        }
    }
}

fn body(
    decoder: &mut ResponseDecoder,
    text: &mut TextScanner,
    input: &mut &[u8],
    sink: &mut impl MessageSink,
) -> Result<(), End> {
    loop {
        match decoder.decode(&Limits::default(), input) {
            Ok(None) => return Ok(()),
            Ok(Some(ResponseEvent::Data(data))) => text.read(data, sink),
            Ok(Some(ResponseEvent::End)) => return Err(End::Complete),
            Ok(Some(_)) => {}
            Err(DecodeError::UnexpectedEof) => return Err(End::Eof),
            Err(_) => return Err(End::Protocol),
        }
    }
}

/// Counts events or lines in a body's text and finds stamps, wherever the text is cut.
#[derive(Debug)]
pub(crate) struct TextScanner {
    events: bool,
    /// Bytes that may begin a stamp.
    kept: Incoming,
    /// First byte of the current line; `None` at its start.
    first: Option<u8>,
    /// The current event has a line of data.
    data: bool,
    /// Stamps in the current message.
    stamps: u32,
}

impl TextScanner {
    pub(crate) fn new(mode: Mode) -> Self {
        Self { events: mode == Mode::Sse, kept: Incoming::default(), first: None, data: false, stamps: 0 }
    }

    fn read(&mut self, mut data: &[u8], sink: &mut impl MessageSink) {
        while !data.is_empty() {
            let end = memchr::memchr(b'\n', data);
            let line = &data[..end.unwrap_or(data.len())];
            self.piece(line, sink);
            data = &data[line.len()..];
            if end.is_some() {
                data = &data[1..];
                self.end_of_line(sink);
            }
        }
    }

    /// Takes a piece of a line.
    fn piece(&mut self, piece: &[u8], sink: &mut impl MessageSink) {
        let Some(&first) = piece.first() else { return };
        // The carriage return of an empty line is not its text.
        if self.first.is_none() && first != b'\r' {
            self.first = Some(first);
        }
        self.kept.decode(piece, |input| {
            let left = stamp::find(input, |stamp| {
                self.stamps += 1;
                sink.stamp(stamp);
            });
            *input = &input[input.len() - left..];
        });
    }

    fn end_of_line(&mut self, sink: &mut impl MessageSink) {
        self.kept.clear();
        let complete = match (self.events, self.first.take()) {
            (false, first) => first.is_some(),
            // An empty line ends an event; comments and an event without data are none (HTML, 9.2.6).
            (true, None) => std::mem::take(&mut self.data),
            (true, Some(first)) => {
                self.data |= first == b'd';
                false
            }
        };
        if complete {
            sink.message(std::mem::take(&mut self.stamps) as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use oroshi_http1::ExpectedResponse;
    use oroshi_websocket::{Kind, Role};

    use super::*;

    #[derive(Debug, Default, PartialEq)]
    struct ResponseView {
        messages: Vec<usize>,
        sequences: Vec<u64>,
    }

    impl MessageSink for ResponseView {
        fn message(&mut self, stamps: usize) {
            self.messages.push(stamps);
        }

        fn stamp(&mut self, stamp: Stamp) {
            self.sequences.push(stamp.sequence);
        }
    }

    fn stamp(sequence: u64) -> String {
        let mut out = Vec::new();
        Stamp { run: 1, publisher: 0, sequence, sent: 12_345 }.write(&mut out);
        String::from_utf8(out).unwrap()
    }

    /// What is heard of `bytes` in pieces of every size, how it ends, and what is answered.
    #[track_caller]
    fn response(wire: impl Fn() -> Wire, bytes: &[u8]) -> (ResponseView, Option<End>, Vec<u8>) {
        let in_pieces = |size: usize| {
            let (mut wire, mut response, mut out, mut kept) = (wire(), ResponseView::default(), Vec::new(), Vec::new());
            for piece in bytes.chunks(size) {
                kept.extend_from_slice(piece);
                let mut input = &mut kept[..];
                if let Err(end) = wire.read(&mut input, &mut out, &mut response) {
                    return (response, Some(end), out);
                }
                kept = input.to_vec();
            }
            (response, None, out)
        };
        let whole = in_pieces(bytes.len());
        for size in 1..bytes.len() {
            let (response, end, _) = in_pieces(size);
            assert_eq!((&response, end), (&whole.0, whole.1), "in pieces of {size}");
        }
        whole
    }

    fn body_of(mode: Mode) -> impl Fn() -> Wire {
        move || {
            let mut decoder = ResponseDecoder::default();
            decoder.expect(ExpectedResponse::Body);
            Wire::Body(decoder, TextScanner::new(mode))
        }
    }

    #[test]
    fn events_are_counted_and_comments_are_not() {
        let body = format!(
            "HTTP/1.1 200 OK\r\n\r\n: hi\n\nid: 5\ndata: {{\"text\":\"{}\"}}\n\nretry: 100\n\r\n\n\
             data: two\r\ndata: {}\r\n\r\ndata: cut",
            stamp(1),
            stamp(2)
        );
        let (response, end, out) = response(body_of(Mode::Sse), body.as_bytes());
        assert_eq!(response, ResponseView { messages: vec![1, 1], sequences: vec![1, 2] });
        assert_eq!((end, out), (None, Vec::new()));
    }

    #[test]
    fn lines_are_messages_and_chunks_may_cut_them_anywhere() {
        let lines = format!("{{\"id\":7}}\n{} and {}\n\n{}", stamp(1), stamp(2), stamp(3));
        let mut body = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
        for chunk in lines.as_bytes().chunks(7) {
            oroshi_http1::encode::chunk(&mut body, chunk);
        }
        body.extend_from_slice(b"0\r\n\r\n");
        let (response, end, _) = response(body_of(Mode::Stream), &body);
        assert_eq!(response, ResponseView { messages: vec![0, 2], sequences: vec![1, 2, 3] });
        assert_eq!(end, Some(End::Complete));
    }

    #[test]
    fn frames_are_messages_pings_are_answered_and_the_close_code_is_told() {
        let mut bytes = Vec::new();
        encode::message(&mut bytes, Kind::Text, b"welcome");
        encode::message(&mut bytes, Kind::Binary, format!("{{{}}}", stamp(9)).as_bytes());
        encode::ping(&mut bytes, b"now?", None);
        encode::close(&mut bytes, CloseCode::RESTART, "bye");
        let (response, end, out) = response(|| Wire::WebSocket(Decoder::new(Role::Client)), &bytes);
        assert_eq!(response, ResponseView { messages: vec![0, 1], sequences: vec![9] });
        assert_eq!(end, Some(End::Closed(1012)));
        let mut answers = Vec::new();
        let (mut server, mut out) = (Decoder::new(Role::Server), out);
        let mut input = &mut out[..];
        while let Some(event) = server.decode(&MESSAGE, &mut input).unwrap() {
            answers.push(format!("{event:?}"));
        }
        assert!(answers[0].starts_with("Pong"), "{answers:?}");
        assert!(answers[1].contains("1012"), "{answers:?}");
        let mut broken = [0xc1, 0];
        let mut wire = Wire::WebSocket(Decoder::new(Role::Client));
        assert_eq!(wire.read(&mut &mut broken[..], &mut Vec::new(), &mut ResponseView::default()), Err(End::Protocol));
    }
}
