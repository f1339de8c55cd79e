//! Heads of messages: from decoded fields to a validated request, response or trailer section.
//!
//! A head is stored as HTTP/1.1 would carry it: field lines, Host among them, cookie crumbs joined. Everything that
//! reads [`Headers`] therefore reads HTTP/2 too, and a gateway forwards the lines unchanged.

use std::ops::Range;

use oroshi_http1::{DecodeError, Headers, check};

use crate::Defect;
use crate::config::Limits;
use crate::hpack::ENTRY_BYTES;
use crate::hpack::name::Kind;
use crate::hpack::{Decoder, Field};

/// The head of a request, validated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestHead<'b> {
    /// The method, a token of at most 32 bytes.
    pub method: &'b str,
    /// `http` or `https`, as the client spells it; empty for a CONNECT without `protocol`.
    pub scheme: &'b str,
    /// `host [":" port]`, never empty: from `:authority`, else from Host. If both are there they agree.
    pub authority: &'b str,
    /// The request target as HTTP/1.1 has it: `/path?query`, `*` for OPTIONS, the authority for CONNECT.
    pub target: &'b str,
    /// The protocol of an extended CONNECT (RFC 8441), as `websocket`.
    pub protocol: Option<&'b str>,
    /// The fields, with exactly one Host line and at most one Cookie line.
    pub headers: Headers<'b>,
    /// Content-Length, if sent: the body will have this length, or the stream is reset.
    pub content_length: Option<u64>,
    /// Whether the client waits for a 100 before the body.
    pub expect_continue: bool,
}

/// The head of a response, validated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseHead<'b> {
    /// The status, 100 to 999 and not 101.
    pub status: u16,
    /// The fields.
    pub headers: Headers<'b>,
    /// Content-Length, if sent. For a response to HEAD, and with 304, it does not announce a body.
    pub content_length: Option<u64>,
}

/// The buffer of decoded heads: one per thread serves all its connections.
///
/// Events borrow it, so an event's head is valid until the next call of
/// [`receive`](crate::Connection::receive). It holds at most the limits on heads, three times.
#[derive(Debug, Default)]
pub struct HeadBuffer {
    lines: Vec<u8>,
    /// The values of pseudo-headers, one after the other.
    pseudo: String,
    /// Cookie crumbs, joined.
    cookie: Vec<u8>,
    /// For the decoder of HPACK.
    scratch: Vec<u8>,
    parts: Parts,
}

/// Where the parts of the head are, and what is wrong with it.
#[derive(Debug, Default)]
struct Parts {
    method: Option<Range<usize>>,
    scheme: Option<Range<usize>>,
    authority: Option<Range<usize>>,
    path: Option<Range<usize>>,
    protocol: Option<Range<usize>>,
    status: Option<u16>,
    /// The value of the Host field, in `lines`.
    host: Option<Range<usize>>,
    content_length: Option<u64>,
    expect_continue: bool,
    any_field: bool,
    defect: Option<Defect>,
}

/// The kind of a header block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Section {
    Request {
        extended_connect: bool,
    },
    /// `keep`: whether the fields that frame nothing are kept.
    Response {
        keep: bool,
    },
    Trailers,
    /// Of a stream that is not wanted: only HPACK's state counts.
    Ignored,
}

impl HeadBuffer {
    /// Decodes a whole block into this buffer. The outer error is HPACK's and ends the connection; the inner one is the
    /// message's.
    pub(crate) fn decode(
        &mut self,
        decoder: &mut Decoder,
        block: &[u8],
        section: Section,
        limits: &Limits,
    ) -> Result<Result<(), Defect>, Defect> {
        let HeadBuffer { lines, pseudo, cookie, scratch, parts } = self;
        lines.clear();
        pseudo.clear();
        cookie.clear();
        *parts = Parts::default();
        if section == Section::Ignored {
            return decoder.decode_wanted(block, scratch, |_| true, |_| ()).map(Ok);
        }
        let (bytes_left, fields_left) = match section {
            Section::Trailers => (limits.trailer_bytes, limits.trailers),
            _ => (limits.head_bytes, limits.headers),
        };
        let mut collector = Collector { lines, pseudo, cookie, parts, section, limits, bytes_left, fields_left };
        let keep = section != Section::Response { keep: false };
        decoder.decode_wanted(block, scratch, |kind| keep || kind != Kind::Other, |field| collector.field(&field))?;
        Ok(collector.finish())
    }

    /// The request that the last call of `decode` has accepted.
    pub(crate) fn request(&self) -> RequestHead<'_> {
        let parts = &self.parts;
        let authority = match &parts.authority {
            Some(_) => self.pseudo(&parts.authority),
            None => {
                let host = self.lines.get(parts.host.clone().unwrap_or_default()).unwrap_or_default();
                str::from_utf8(host).unwrap_or_default()
            }
        };
        RequestHead {
            method: self.pseudo(&parts.method),
            scheme: self.pseudo(&parts.scheme),
            authority,
            target: if parts.path.is_some() { self.pseudo(&parts.path) } else { authority },
            protocol: parts.protocol.is_some().then(|| self.pseudo(&parts.protocol)),
            headers: self.headers(),
            content_length: parts.content_length,
            expect_continue: parts.expect_continue,
        }
    }

    /// The response that the last call of `decode` has accepted.
    pub(crate) fn response(&self) -> ResponseHead<'_> {
        ResponseHead {
            status: self.parts.status.unwrap_or_default(),
            headers: self.headers(),
            content_length: self.parts.content_length,
        }
    }

    /// The fields that the last call of `decode` has accepted.
    pub(crate) fn headers(&self) -> Headers<'_> {
        Headers::from_checked_lines(&self.lines)
    }

    pub(crate) fn content_length(&self) -> Option<u64> {
        self.parts.content_length
    }

    pub(crate) fn status(&self) -> u16 {
        self.parts.status.unwrap_or_default()
    }

    pub(crate) fn method(&self) -> &str {
        self.pseudo(&self.parts.method)
    }

    fn pseudo(&self, range: &Option<Range<usize>>) -> &str {
        range.clone().and_then(|range| self.pseudo.get(range)).unwrap_or_default()
    }
}

/// Collects the fields of one section.
struct Collector<'c> {
    lines: &'c mut Vec<u8>,
    pseudo: &'c mut String,
    cookie: &'c mut Vec<u8>,
    parts: &'c mut Parts,
    section: Section,
    limits: &'c Limits,
    bytes_left: usize,
    fields_left: usize,
}

impl Collector<'_> {
    /// Takes a field. After the first defect it takes no more; the decoder goes on for its own state.
    #[inline]
    fn field(&mut self, field: &Field<'_>) {
        if self.parts.defect.is_none()
            && let Err(defect) = self.take(field)
        {
            self.parts.defect = Some(defect);
        }
    }

    #[inline]
    fn take(&mut self, field: &Field<'_>) -> Result<(), Defect> {
        self.count(field)?;
        if let Some(defect) = field.defect {
            return Err(defect);
        }
        if field.kind as u8 <= Kind::UnknownPseudo as u8 {
            return self.pseudo_header(field);
        }
        if !self.parts.any_field {
            self.parts.any_field = true;
            self.host_line();
        }
        match field.kind {
            Kind::Other if self.section == (Section::Response { keep: false }) => return Ok(()),
            Kind::Other => {}
            Kind::Connection => return Err(Defect::ConnectionField),
            Kind::Underscore => return Err(DecodeError::UnderscoreFraming.into()),
            Kind::Te if !field.value.eq_ignore_ascii_case(b"trailers") => return Err(Defect::BadTe),
            _ if self.section == Section::Trailers => {}
            Kind::ContentLength => self.content_length(field.value)?,
            Kind::Host if self.is_request() => return self.host(field),
            Kind::Cookie if self.is_request() => {
                // RFC 9113 section 8.2.3: HTTP/1.1 has one Cookie line.
                if !self.cookie.is_empty() {
                    self.cookie.extend_from_slice(b"; ");
                }
                self.cookie.extend_from_slice(field.value);
                return Ok(());
            }
            Kind::Expect if self.is_request() => {
                if !field.value.eq_ignore_ascii_case(b"100-continue") {
                    return Err(DecodeError::UnknownExpectation.into());
                }
                self.parts.expect_continue = true;
            }
            _ => {}
        }
        if self.section == Section::Trailers && str::from_utf8(field.name).is_ok_and(check::is_forbidden_trailer) {
            return Err(DecodeError::ForbiddenTrailer.into());
        }
        line(self.lines, field.name, field.value);
        Ok(())
    }

    /// Counts a field, whether it is kept or not.
    #[inline]
    fn count(&mut self, field: &Field<'_>) -> Result<(), Defect> {
        let in_trailers = self.section == Section::Trailers;
        let bytes = field.name.len() + field.value.len() + ENTRY_BYTES;
        let Some(left) = self.bytes_left.checked_sub(bytes) else {
            return Err(if in_trailers { DecodeError::TrailersTooLarge } else { DecodeError::HeadTooLarge }.into());
        };
        self.bytes_left = left;
        if field.kind as u8 > Kind::UnknownPseudo as u8 {
            let Some(left) = self.fields_left.checked_sub(1) else {
                return Err(if in_trailers { DecodeError::TooManyTrailers } else { DecodeError::TooManyHeaders }.into());
            };
            self.fields_left = left;
        }
        Ok(())
    }

    #[inline]
    fn pseudo_header(&mut self, field: &Field<'_>) -> Result<(), Defect> {
        if self.section == Section::Trailers {
            return Err(Defect::PseudoInTrailers);
        }
        if self.parts.any_field {
            return Err(Defect::PseudoAfterField);
        }
        let parts = &mut *self.parts;
        let part = match (self.section, field.kind) {
            (Section::Response { .. }, Kind::Status) => {
                let status = status(field.value).ok_or(Defect::BadStatus)?;
                return if parts.status.replace(status).is_some() { Err(Defect::RepeatedPseudo) } else { Ok(()) };
            }
            (Section::Request { .. }, Kind::Method) => &mut parts.method,
            (Section::Request { .. }, Kind::Scheme) => &mut parts.scheme,
            (Section::Request { .. }, Kind::Authority) => &mut parts.authority,
            (Section::Request { .. }, Kind::Path) => &mut parts.path,
            (Section::Request { extended_connect: true }, Kind::Protocol) => &mut parts.protocol,
            _ => return Err(Defect::UnknownPseudo),
        };
        let start = self.pseudo.len();
        self.pseudo.push_str(str::from_utf8(field.value).map_err(|_| not_text(field.kind))?);
        if part.replace(start..self.pseudo.len()).is_some() { Err(Defect::RepeatedPseudo) } else { Ok(()) }
    }

    fn content_length(&mut self, value: &[u8]) -> Result<(), Defect> {
        if self.parts.content_length.replace(check::content_length(value)?).is_some() {
            return Err(DecodeError::RepeatedContentLength.into());
        }
        Ok(())
    }

    /// Writes the Host line that HTTP/1.1 requires, before the first field.
    fn host_line(&mut self) {
        if let Some(range) = &self.parts.authority {
            line(self.lines, b"host", self.pseudo[range.clone()].as_bytes());
        }
    }

    /// Takes a Host field. One that repeats `:authority` has its line already.
    fn host(&mut self, field: &Field<'_>) -> Result<(), Defect> {
        if self.parts.host.is_some() {
            return Err(DecodeError::RepeatedHost.into());
        }
        let start = self.lines.len() + b"host: ".len();
        self.parts.host = Some(start..start + field.value.len());
        let Some(range) = &self.parts.authority else {
            line(self.lines, field.name, field.value);
            return Ok(());
        };
        let default_port = match self.parts.scheme.clone().and_then(|range| self.pseudo.get(range)) {
            Some(scheme) if scheme.eq_ignore_ascii_case("https") => 443,
            _ => 80,
        };
        let authority = self.pseudo[range.clone()].as_bytes();
        match (check::is_authority(field.value), check::is_same_authority(authority, field.value, default_port)) {
            (false, _) => Err(DecodeError::BadHost.into()),
            (true, false) => Err(DecodeError::HostMismatch.into()),
            (true, true) => Ok(()),
        }
    }

    fn is_request(&self) -> bool {
        matches!(self.section, Section::Request { .. })
    }

    /// Checks what only the whole section shows.
    fn finish(&mut self) -> Result<(), Defect> {
        if let Some(defect) = self.parts.defect {
            return Err(defect);
        }
        match self.section {
            Section::Request { .. } => self.finish_request(),
            Section::Response { .. } => self.parts.status.map(|_| ()).ok_or(Defect::WrongPseudos),
            Section::Trailers | Section::Ignored => Ok(()),
        }
    }

    fn finish_request(&mut self) -> Result<(), Defect> {
        if !self.parts.any_field {
            self.host_line();
        }
        if !self.cookie.is_empty() {
            line(self.lines, b"cookie", self.cookie);
        }
        let (parts, pseudo) = (&*self.parts, &self.pseudo[..]);
        let get = |range: &Option<Range<usize>>| range.clone().map(|range| &pseudo[range]);
        let method = get(&parts.method).ok_or(Defect::WrongPseudos)?;
        check::method(method)?;
        let authority = get(&parts.authority);
        let host = || str::from_utf8(self.lines.get(parts.host.clone()?)?).ok();
        let Some(host) = authority.or_else(host) else {
            let error = if parts.host.is_some() { DecodeError::BadHost } else { DecodeError::MissingHost };
            return Err(error.into());
        };
        // RFC 9113 section 8.3.1: with http and https the authority is not empty.
        if host.is_empty() || host.starts_with(':') || !check::is_authority(host.as_bytes()) {
            return Err(DecodeError::BadHost.into());
        }
        let (scheme, path) = (get(&parts.scheme), get(&parts.path));
        if method == "CONNECT" {
            // RFC 9113 section 8.5; RFC 8441 section 4 for the extended form.
            let extended = parts.protocol.is_some();
            if authority.is_none() || scheme.is_some() != extended || path.is_some() != extended {
                return Err(Defect::WrongPseudos);
            }
            if parts.content_length.is_some_and(|length| length > 0) {
                return Err(DecodeError::BodyOnConnect.into());
            }
            if !extended {
                return Ok(check::target(method, host, self.limits.target_bytes)?);
            }
        } else if parts.protocol.is_some() {
            return Err(Defect::WrongPseudos);
        }
        let (Some(scheme), Some(path)) = (scheme, path) else { return Err(Defect::WrongPseudos) };
        if !scheme.eq_ignore_ascii_case("http") && !scheme.eq_ignore_ascii_case("https") {
            return Err(DecodeError::BadTarget.into());
        }
        // Extended CONNECT has the path of a GET. The absolute form of HTTP/1.1 has no place here.
        let method = if method == "CONNECT" { "GET" } else { method };
        check::target(method, path, self.limits.target_bytes)?;
        if !path.starts_with('/') && path != "*" {
            return Err(DecodeError::BadTarget.into());
        }
        if get(&parts.protocol).is_some_and(|protocol| !oroshi_http1::is_token(protocol.as_bytes())) {
            return Err(Defect::WrongPseudos);
        }
        Ok(())
    }
}

/// The defect of a pseudo-header that is not UTF-8.
fn not_text(kind: Kind) -> Defect {
    match kind {
        Kind::Method => DecodeError::BadRequestLine.into(),
        Kind::Authority => DecodeError::BadHost.into(),
        Kind::Protocol => Defect::WrongPseudos,
        _ => DecodeError::BadTarget.into(),
    }
}

#[inline]
fn line(lines: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    lines.reserve(name.len() + value.len() + 4);
    lines.extend_from_slice(name);
    lines.extend_from_slice(b": ");
    lines.extend_from_slice(value);
    lines.extend_from_slice(b"\r\n");
}

/// Three digits from 100; not 101, which HTTP/2 does not have (RFC 9113 section 8.6).
fn status(value: &[u8]) -> Option<u16> {
    let &[a @ b'1'..=b'9', b @ b'0'..=b'9', c @ b'0'..=b'9'] = value else { return None };
    let status = u16::from(a - b'0') * 100 + u16::from(b - b'0') * 10 + u16::from(c - b'0');
    (status != 101).then_some(status)
}
