//! Decodes requests from bytes to events.

use std::mem::MaybeUninit;

use crate::body::{Body, BodyEvent};
use crate::fields::Fields;
use crate::head::{Headers, STACK_HEADERS, table_length};
use crate::syntax::{self, METHOD_BYTES};
use crate::target::{Authority, Target};
use crate::{DecodeError, Framing, Limits, Version, scan};

/// The head of a request, validated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestHead<'b> {
    /// The method, a token of at most 32 bytes, as received: methods are case-sensitive.
    pub method: &'b str,
    /// The request target in a form that the method allows (RFC 9112 section 3.2).
    ///
    /// Usually `/path?query`, but `http://host/path` from a client that uses a proxy, `*` for OPTIONS, `host:port`
    /// for CONNECT.
    pub target: &'b str,
    /// The version.
    pub version: Version,
    /// The header section.
    pub headers: Headers<'b>,
    /// How the body ends: `None`, `Length` or `Chunked`.
    pub framing: Framing,
    /// Whether the client lets the connection stay open after the response.
    pub keep_alive: bool,
    /// The authority of the request: from the target if it has one (Host then agrees), else Host. `host [":" port]`,
    /// validated, spelled as received. May be empty; `None` only in HTTP/1.0.
    pub host: Option<&'b [u8]>,
    /// Whether the client waits for a 100 before the body: HTTP/1.1, `Expect: 100-continue`, and a body follows.
    pub expect_continue: bool,
    /// The (first) Upgrade value, if the version is 1.1 and Connection lists `upgrade` (RFC 9110 section 7.8).
    pub upgrade: Option<&'b [u8]>,
}

/// An event of a [`RequestDecoder`], in this order: `Head`, any number of `Data`, perhaps `Trailers`, `End`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestEvent<'b> {
    /// A request begins.
    Head(RequestHead<'b>),
    /// Bytes of its body, without any framing. Never empty.
    Data(&'b [u8]),
    /// The fields after a chunked body. Never empty.
    Trailers(Headers<'b>),
    /// The request is complete; the next call reads the next one.
    End,
}

/// The most empty lines before a request.
const EMPTY_LINES: u8 = 8;

/// Decodes the requests of one connection. Small, without heap; [`Default`] is the start of a connection.
///
/// The bytes after a CONNECT or an Upgrade request may not be HTTP. The server must not call
/// [`decode`](RequestDecoder::decode) again until it has answered such a request, and not at all if it agreed.
#[derive(Clone, Debug, Default)]
pub struct RequestDecoder {
    body: Body,
    /// Number of bytes already searched for the end of the head.
    scanned: u32,
    state: State,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// Before or in a head.
    #[default]
    Head,
    /// As `Head`, after this many empty lines.
    HeadAfterEmptyLines(u8),
    /// As `Head`, with its first line checked.
    HeadAfterFirstLine,
    Body,
    Failed(DecodeError),
}

impl RequestDecoder {
    /// Returns the next event, or `None` when more bytes are needed.
    ///
    /// Advances `input` past the bytes used. After `None` the caller keeps the rest of `input`, appends new bytes and
    /// calls again: the rest must come back unchanged at the front. Call until `None`: events can be due without
    /// further input.
    ///
    /// # Errors
    ///
    /// The first defect of the bytes. An error is final: every later call returns it again.
    pub fn decode<'b>(
        &mut self,
        limits: &Limits,
        input: &mut &'b [u8],
    ) -> Result<Option<RequestEvent<'b>>, DecodeError> {
        let result = match self.state {
            State::Body => self.body.decode(limits, input).map(|event| event.map(|event| self.body_event(event))),
            State::Failed(error) => Err(error),
            _ => self.head(limits, input).map(|head| head.map(RequestEvent::Head)),
        };
        if let Err(error) = result {
            self.state = State::Failed(error);
        }
        result
    }

    /// Checks that the peer may close here. Call it when the peer has closed, after the last
    /// [`decode`](RequestDecoder::decode).
    ///
    /// # Errors
    ///
    /// [`UnexpectedEof`](DecodeError::UnexpectedEof) within a request; the error of `decode` if there was one.
    pub fn eof(&self) -> Result<(), DecodeError> {
        match self.state {
            State::Failed(error) => Err(error),
            State::Body if self.body.ends_at_eof() => Ok(()),
            _ if self.is_idle() => Ok(()),
            _ => Err(DecodeError::UnexpectedEof),
        }
    }

    /// Whether the decoder is between two requests, without a byte of the next one.
    pub fn is_idle(&self) -> bool {
        matches!(self.state, State::Head | State::HeadAfterEmptyLines(_)) && self.scanned == 0
    }

    fn head<'b>(&mut self, limits: &Limits, input: &mut &'b [u8]) -> Result<Option<RequestHead<'b>>, DecodeError> {
        // A lone CR from an earlier call may turn out to be an empty line.
        if self.scanned <= 1 && !self.skip_empty_lines(input)? {
            return Ok(None);
        }
        let most = limits.head_bytes.min(u32::MAX as usize);
        let window = &input[..input.len().min(most)];
        // The usual case first: the whole head is here and valid.
        if self.scanned == 0
            && let Some((head, length)) = parse(window, limits)?
        {
            return self.accept(head, length, limits, input).map(Some);
        }
        match scan::find_end(window, &mut self.scanned) {
            Ok(Some(end)) => match parse(&window[..end], limits)? {
                Some((head, length)) => self.accept(head, length, limits, input).map(Some),
                None => Err(syntax::explain_request(&window[..end], limits)),
            },
            unfinished => {
                self.check_first_line(window, limits)?;
                unfinished?;
                if window.len() == most { Err(DecodeError::HeadTooLarge) } else { Ok(None) }
            }
        }
    }

    fn accept<'b>(
        &mut self,
        head: RequestHead<'b>,
        length: usize,
        limits: &Limits,
        input: &mut &'b [u8],
    ) -> Result<RequestHead<'b>, DecodeError> {
        self.body = Body::new(head.framing, limits)?;
        self.state = State::Body;
        self.scanned = 0;
        *input = &input[length..];
        Ok(head)
    }

    /// Returns whether a head begins at the first byte, after skipping a few empty lines.
    ///
    /// RFC 9112 section 2.2: some old clients send one after a body; nginx and HAProxy skip more. Each ends in CRLF
    /// and no request lies between them, so no other reader can find a request there.
    fn skip_empty_lines(&mut self, input: &mut &[u8]) -> Result<bool, DecodeError> {
        loop {
            match **input {
                [] => return Ok(false),
                [byte, ..] if syntax::is_token_byte(byte) => return Ok(true),
                [b'\r', b'\n', ref rest @ ..] => {
                    let taken = match self.state {
                        State::HeadAfterEmptyLines(taken) => taken,
                        _ => 0,
                    };
                    if taken == EMPTY_LINES {
                        return Err(DecodeError::BadRequestLine);
                    }
                    *input = rest;
                    self.scanned = 0;
                    self.state = State::HeadAfterEmptyLines(taken + 1);
                }
                [b'\r'] => {
                    self.scanned = 1;
                    return Ok(false);
                }
                [b'\r', ..] => return Err(DecodeError::BareCr),
                [b'\n', ..] => return Err(DecodeError::BareLf),
                [0, ..] => return Err(DecodeError::Nul),
                _ => return Err(DecodeError::BadRequestLine),
            }
        }
    }

    /// Checks the first line of an unfinished head as far as received, and once more when it is complete.
    #[cold]
    fn check_first_line(&mut self, window: &[u8], limits: &Limits) -> Result<(), DecodeError> {
        if self.state == State::HeadAfterFirstLine {
            return Ok(());
        }
        match memchr::memchr(b'\n', window) {
            Some(end) if end > 0 && window[end - 1] == b'\r' => {
                self.state = State::HeadAfterFirstLine;
                syntax::request_line(&window[..end], limits)
            }
            Some(end) => syntax::request_line_lengths(&window[..end], limits),
            None => syntax::request_line_lengths(window, limits),
        }
    }

    fn body_event<'b>(&mut self, event: BodyEvent<'b>) -> RequestEvent<'b> {
        match event {
            BodyEvent::Data(data) => RequestEvent::Data(data),
            BodyEvent::Trailers(trailers) => RequestEvent::Trailers(trailers),
            BodyEvent::End => {
                self.state = State::Head;
                RequestEvent::End
            }
        }
    }
}

/// Parses the head at the start of `input`, and returns its length too.
///
/// `None` if the head is incomplete or invalid; the slow path finds out which, and names the defect.
fn parse<'b>(input: &'b [u8], limits: &Limits) -> Result<Option<(RequestHead<'b>, usize)>, DecodeError> {
    let length = table_length(input, limits);
    if length <= STACK_HEADERS {
        let mut table = [const { MaybeUninit::uninit() }; STACK_HEADERS];
        return parse_with(input, limits, &mut table[..length]);
    }
    parse_with(input, limits, &mut Box::new_uninit_slice(length))
}

#[inline]
fn parse_with<'b>(
    input: &'b [u8],
    limits: &Limits,
    table: &mut [MaybeUninit<httparse::Header<'b>>],
) -> Result<Option<(RequestHead<'b>, usize)>, DecodeError> {
    let mut request = httparse::Request::new(&mut []);
    let parsed = request.parse_with_uninit_headers(input, table);
    let (Ok(httparse::Status::Complete(length)), Some(method), Some(target), Some(minor)) =
        (parsed, request.method, request.path, request.version)
    else {
        return Ok(None);
    };
    let Some(lines) = scan::field_lines(&input[..length], request.headers) else { return Ok(None) };
    if method.len() > METHOD_BYTES || target.len() > limits.target_bytes {
        return Ok(None);
    }
    let version = if minor == 0 { Version::Http10 } else { Version::Http11 };
    let form = Target::parse(method, target)?;
    let fields = Fields::collect::<true>(request.headers, version)?;
    let host = host(&form, &fields, version)?;
    let framing = fields.framing(Framing::None);
    let has_body = !matches!(framing, Framing::None | Framing::Length(0));
    if has_body && matches!(form, Target::Authority(_)) {
        return Err(DecodeError::BodyOnConnect);
    }
    let head = RequestHead {
        method,
        target,
        version,
        headers: Headers::validated(lines),
        framing,
        keep_alive: fields.keep_alive(version),
        host,
        expect_continue: fields.expect_continue && has_body,
        upgrade: fields.upgrade.filter(|_| fields.connection_upgrade && version == Version::Http11),
    };
    Ok(Some((head, length)))
}

/// Returns the authority of a request (RFC 9112 section 3.2).
fn host<'b>(form: &Target<'b>, fields: &Fields<'b>, version: Version) -> Result<Option<&'b [u8]>, DecodeError> {
    let from_target = match form {
        Target::Absolute(authority, _) | Target::Authority(authority) => Some(authority),
        Target::Origin | Target::Asterisk => None,
    };
    let Some(text) = fields.host else {
        return match version {
            Version::Http11 | Version::Http2 => Err(DecodeError::MissingHost),
            Version::Http10 => Ok(from_target.map(|authority| authority.text)),
        };
    };
    // For CONNECT, a Host without a port means the target's port: only some clients repeat it.
    let default_port = match form {
        Target::Absolute(_, port) => *port,
        Target::Authority(authority) => authority.port(),
        _ => 0,
    };
    let host = Authority::parse(text, default_port).ok_or(DecodeError::BadHost)?;
    match from_target {
        Some(authority) if !authority.is_same_as(&host) => Err(DecodeError::HostMismatch),
        Some(authority) => Ok(Some(authority.text)),
        None => Ok(Some(text)),
    }
}
