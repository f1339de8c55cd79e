//! The head of an answer: its framing, and its form over HTTP/1.

use oroshi_http1::Version;
use oroshi_http1::encode::{self, EncodeError};

use crate::error::Error;
use crate::wire::Wire;

/// The framing of an answer's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transfer {
    /// This many bytes are still to come.
    Length(u64),
    Chunked,
    UntilClose,
    /// HTTP/2: the end of the stream ends the body.
    UntilEnd,
    /// 204 and 304 have no body.
    None,
    /// HEAD: the body is discarded.
    Discard,
}

impl Transfer {
    /// Returns the value of `Content-Length` for a body of this length, if the head has one.
    pub(super) fn announced(self, length: Option<u64>) -> Option<u64> {
        match self {
            Transfer::Length(_) | Transfer::Discard => length,
            _ => None,
        }
    }

    /// Whether the head is the whole answer, over HTTP/2.
    pub(super) fn is_over(self) -> bool {
        matches!(self, Transfer::None | Transfer::Discard | Transfer::Length(0))
    }
}

/// The lines of the head of a final answer over HTTP/1 beside the handler's fields.
pub(super) struct FinalHead {
    pub(super) client: Version,
    pub(super) transfer: Transfer,
    /// The length of the body, if known.
    pub(super) length: Option<u64>,
    pub(super) close: bool,
    /// Whether a missing `Date` is added.
    pub(super) date: bool,
}

impl FinalHead {
    /// Writes the head.
    pub(super) fn write(
        self,
        wire: &Wire,
        status: u16,
        reason: Option<&[u8]>,
        fields: impl FnOnce(&mut Vec<u8>) -> Result<bool, Error>,
    ) -> Result<(), Error> {
        let FinalHead { client, transfer, length, close, date } = self;
        let close = close || transfer == Transfer::UntilClose;
        write_head(wire, status, reason, fields, |out, has_date| {
            if date && !has_date {
                out.extend_from_slice(b"Date: ");
                out.extend_from_slice(&wire.core().date());
                out.extend_from_slice(b"\r\n");
            }
            match (transfer, transfer.announced(length)) {
                (Transfer::Chunked, _) => encode::chunked(out),
                (_, Some(length)) => encode::content_length(out, length),
                (_, None) => {}
            }
            if close {
                out.extend_from_slice(b"Connection: close\r\n");
            } else if client == Version::Http10 {
                out.extend_from_slice(b"Connection: keep-alive\r\n");
            }
        })?;
        wire.progress.close.set(close);
        Ok(())
    }
}

/// Writes a head completely or not at all. `rest` adds the connection's fields, and is told whether there was a `Date`.
pub(super) fn write_head(
    wire: &Wire,
    status: u16,
    reason: Option<&[u8]>,
    fields: impl FnOnce(&mut Vec<u8>) -> Result<bool, Error>,
    rest: impl FnOnce(&mut Vec<u8>, bool),
) -> Result<(), Error> {
    wire.append(|out| {
        let start = out.len();
        let written = (|| {
            encode::status_line(out, Version::Http11, status, reason).map_err(|error| unsendable(error, ""))?;
            let has_date = fields(out)?;
            rest(out, has_date);
            encode::end_of_head(out);
            Ok(())
        })();
        if written.is_err() {
            out.truncate(start);
        }
        written
    })
}

/// Whether a status has no body (RFC 9110 sections 15.3.5 and 15.4.5).
pub(super) fn has_no_body(status: u16) -> bool {
    matches!(status, 204 | 304)
}

/// Writes a handler's fields, and returns whether a `Date` is among them.
pub(super) fn write_fields<'f>(
    out: &mut Vec<u8>,
    fields: impl IntoIterator<Item = (&'f str, &'f [u8])>,
) -> Result<bool, Error> {
    let mut has_date = false;
    for (name, value) in fields {
        if is_managed(name) {
            return Err(Error::Header(name.to_owned()));
        }
        has_date |= name.eq_ignore_ascii_case("date");
        encode::header(out, name, value).map_err(|error| unsendable(error, name))?;
    }
    Ok(has_date)
}

/// Whether only this module may write this field.
pub(crate) fn is_managed(name: &str) -> bool {
    match name.len() {
        10 => name.eq_ignore_ascii_case("connection"),
        14 => name.eq_ignore_ascii_case("content-length"),
        17 => name.eq_ignore_ascii_case("transfer-encoding"),
        _ => false,
    }
}

pub(crate) fn unsendable(error: EncodeError, name: &str) -> Error {
    match error {
        EncodeError::Status => Error::Misuse("a status has three digits"),
        _ => Error::Header(name.to_owned()),
    }
}
