//! The head of an answer: writes Rack's status and headers, and reads what they say about the body.
//!
//! The server adds `Date`, `Connection`, and the framing if the application leaves it open. An answer whose values
//! could end a line early is refused as a whole.

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

use oroshi_http1::Version;
use oroshi_http1::encode::{self, EncodeError};
use rb_sys::VALUE;

use crate::clock::DateLine;
use crate::rb;

/// Facts in the application's headers, besides the written lines.
#[derive(Debug)]
pub(crate) struct AppHeaders {
    /// Content-Length.
    pub(crate) length: Option<u64>,
    /// Transfer-Encoding: the body is framed already.
    pub(crate) coding: Option<Coding>,
    /// Connection lists `close`.
    pub(crate) close: bool,
    /// `rack.hijack`: the object that receives the socket, or nil.
    pub(crate) hijack: VALUE,
    date: bool,
}

/// The application's own Transfer-Encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Coding {
    /// `chunked`: the body ends by itself.
    Chunked,
    /// Another coding: the body ends with the connection.
    Other,
}

/// Why headers could not be written.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum HeaderError {
    /// They are not a Hash of Strings and Arrays of Strings: convert them first.
    Odd,
    /// They must not be sent, for this reason.
    Bad(String),
}

/// How a client finds the end of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    /// By its length.
    Length(u64),
    /// In chunks, which the server writes.
    Chunked,
    /// By the close of the connection.
    Close,
    /// As the application's Transfer-Encoding says: it frames the body itself.
    Own(Coding),
    /// There is no body (1xx, 204, 304, and a HEAD of unknown length).
    None,
}

impl Framing {
    /// Whether only the close marks the end.
    pub(crate) fn needs_close(self) -> bool {
        matches!(self, Framing::Close | Framing::Own(Coding::Other))
    }
}

/// Statuses whose answers have no body (RFC 9110 sections 6.4.1, 15.2, 15.3.5, 15.4.5).
pub(crate) fn is_bodiless(status: u16) -> bool {
    matches!(status, 100..=199 | 204 | 304)
}

/// Writes the status line and the application's fields. `headers` is a Hash.
pub(crate) fn begin(out: &mut Vec<u8>, status: u16, headers: VALUE) -> Result<AppHeaders, HeaderError> {
    if status == 200 {
        out.extend_from_slice(b"HTTP/1.1 200 OK\r\n");
    } else {
        encode::status_line(out, Version::Http11, status, None)
            .map_err(|_| HeaderError::Bad(format!("the status is {status}; one of 100 to 999 can be sent")))?;
    }
    let from_app = AppHeaders { length: None, coding: None, close: false, hijack: rb::NIL, date: false };
    let mut scan = Scan { out, status, from_app, refused: None };
    // SAFETY: a Hash. `field` does not raise and runs no Ruby code; the argument lives in this frame.
    unsafe { rb_sys::rb_hash_foreach(headers, Some(field), (&raw mut scan).expose_provenance() as VALUE) };
    match scan.refused {
        Some(refused) => Err(refused),
        None => Ok(scan.from_app),
    }
}

/// Writes the framing's fields, and the end of the head.
pub(crate) fn finish(out: &mut Vec<u8>, from_app: &AppHeaders, date: &mut DateLine, framing: Framing, end: End) {
    if !from_app.date {
        out.extend_from_slice(date.now());
    }
    match framing {
        Framing::Length(length) => encode::content_length(out, length),
        Framing::Chunked => encode::chunked(out),
        Framing::Close | Framing::Own(_) | Framing::None => {}
    }
    match end {
        End::Close => out.extend_from_slice(b"Connection: close\r\n"),
        End::Keep { http11: false } => out.extend_from_slice(b"Connection: keep-alive\r\n"),
        End::Keep { http11: true } | End::Switch => {}
    }
    encode::end_of_head(out);
}

/// The next state of the connection, as the head states it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Close,
    Keep {
        http11: bool,
    },
    /// 101: the application has written it.
    Switch,
}

struct Scan<'o> {
    out: &'o mut Vec<u8>,
    status: u16,
    from_app: AppHeaders,
    refused: Option<HeaderError>,
}

const CONTINUE: c_int = 0;
const STOP: c_int = 1;

unsafe extern "C" fn field(name: VALUE, value: VALUE, scan: VALUE) -> c_int {
    // SAFETY: the pointer given to `rb_hash_foreach`, whose frame waits.
    let scan = unsafe { &mut *std::ptr::with_exposed_provenance_mut::<Scan<'_>>(scan as usize) };
    // A panic must not cross Ruby's frames.
    let done = catch_unwind(AssertUnwindSafe(|| scan.field(name, value)))
        .unwrap_or_else(|_| Err(HeaderError::Bad("a defect of the server: a panic in writing the headers".to_owned())));
    match done {
        Ok(()) => CONTINUE,
        Err(refused) => {
            scan.refused = Some(refused);
            STOP
        }
    }
}

impl Scan<'_> {
    fn field(&mut self, name: VALUE, value: VALUE) -> Result<(), HeaderError> {
        if !rb::is_string(name) {
            return Err(HeaderError::Odd);
        }
        // SAFETY: a String of the Hash; no Ruby code runs here.
        let name = unsafe { rb::bytes(name) };
        if name.starts_with(b"rack.") {
            return self.for_the_server(name, value);
        }
        if rb::is_string(value) {
            // SAFETY: as above.
            return self.lines(name, unsafe { rb::bytes(value) });
        }
        if value == rb::NIL {
            return Ok(());
        }
        if !rb::is_array(value) {
            return Err(HeaderError::Odd);
        }
        // SAFETY: as above.
        for &line in unsafe { rb::elements(value) } {
            if !rb::is_string(line) {
                return Err(HeaderError::Odd);
            }
            // SAFETY: as above.
            self.lines(name, unsafe { rb::bytes(line) })?;
        }
        Ok(())
    }

    /// Reads `rack.` names: messages to the server, which are not sent.
    fn for_the_server(&mut self, name: &[u8], value: VALUE) -> Result<(), HeaderError> {
        match name {
            b"rack.hijack" => self.from_app.hijack = value,
            // Rack 3: the connection's new protocol.
            b"rack.protocol" if rb::is_string(value) && self.status == 101 => {
                // SAFETY: a String; no Ruby code runs here.
                self.line("Upgrade", unsafe { rb::bytes(value) })?;
                self.out.extend_from_slice(b"Connection: upgrade\r\n");
            }
            _ => {}
        }
        Ok(())
    }

    /// Writes a field with one value, or with several that Rack 2 has joined by line feeds.
    fn lines(&mut self, name: &[u8], value: &[u8]) -> Result<(), HeaderError> {
        let text = std::str::from_utf8(name).map_err(|_| bad_name(name))?;
        if memchr::memchr(b'\n', value).is_some() {
            return value
                .split(|&byte| byte == b'\n')
                .filter(|line| !line.is_empty())
                .try_for_each(|line| self.field_line(text, line));
        }
        self.field_line(text, value)
    }

    fn field_line(&mut self, name: &str, value: &[u8]) -> Result<(), HeaderError> {
        match name.len() {
            4 if name.eq_ignore_ascii_case("date") => self.from_app.date = true,
            10 if name.eq_ignore_ascii_case("connection") && self.status != 101 => {
                let mut options = value.split(|&byte| byte == b',');
                self.from_app.close |= options.any(|option| option.trim_ascii().eq_ignore_ascii_case(b"close"));
                return Ok(());
            }
            14 if name.eq_ignore_ascii_case("content-length") => {
                self.from_app.length = Some(length(value)?);
                return Ok(());
            }
            17 if name.eq_ignore_ascii_case("transfer-encoding") => {
                let chunked = value.trim_ascii().eq_ignore_ascii_case(b"chunked");
                self.from_app.coding = Some(if chunked { Coding::Chunked } else { Coding::Other });
                if is_bodiless(self.status) {
                    return Ok(());
                }
            }
            _ => {}
        }
        self.line(name, value)
    }

    fn line(&mut self, name: &str, value: &[u8]) -> Result<(), HeaderError> {
        encode::header(self.out, name, value).map_err(|error| match error {
            EncodeError::Value => HeaderError::Bad(format!("the value of the header {name:?} has a control character")),
            _ => bad_name(name.as_bytes()),
        })
    }
}

fn bad_name(name: &[u8]) -> HeaderError {
    HeaderError::Bad(format!("the header name \"{}\" is not a token", name.escape_ascii()))
}

/// RFC 9110 section 8.6.
fn length(value: &[u8]) -> Result<u64, HeaderError> {
    let digits = std::str::from_utf8(value).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    digits.and_then(|text| text.parse().ok()).ok_or_else(|| {
        HeaderError::Bad(format!("Content-Length is \"{}\"; a number of bytes was expected", value.escape_ascii()))
    })
}
