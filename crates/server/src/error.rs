//! Why an exchange failed.

use std::io;

use oroshi_http1::DecodeError;

use crate::counters::ErrorKind;

/// Why an exchange failed. Handlers pass it on with `?`. If no answer has begun, the connection then answers
/// [`Error::status`]; otherwise it is cut off, so that the peer sees an incomplete answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The request's body is invalid, over a limit, or truncated ([`DecodeError::UnexpectedEof`]). The handler can only
    /// give up.
    #[error("the request is not valid")]
    Request(#[source] DecodeError),
    /// The request breaks the rules of HTTP/2, and was refused before it became an exchange. Handlers get it in
    /// [`RefusedRequest`](crate::RefusedRequest) alone.
    #[error("the request is not valid HTTP/2")]
    Http2(#[source] oroshi_http2::Defect),
    /// A deadline for the peer passed. Give up; or raise the limit in [`Settings`](crate::Settings) if the peers are
    /// known to be slow.
    #[error("the peer let the time limit for {0} pass")]
    Timeout(Wait),
    /// Reading from or writing to the peer failed: it reset the connection or is gone. Give up.
    #[error("the connection to the peer broke")]
    Io(#[source] io::Error),
    /// A header cannot be sent: its name is no token, its value holds CR, LF or NUL, or the connection sets it itself
    /// (`Connection`, `Content-Length`, `Transfer-Encoding`). Correct it or leave it out.
    #[error("the header {0:?} cannot be sent")]
    Header(String),
    /// The protocol does not allow the handler's call, as the text says. Correct the handler.
    #[error("{0}")]
    Misuse(&'static str),
    /// A stream of HTTP/2 is not handed off, because the server's [`Capacity`](crate::Capacity) or the process's
    /// descriptors are used up. Give up; or raise the limit.
    #[error("there is no room for another connection")]
    Full(#[source] io::Error),
    /// The handler itself failed. The source says why.
    #[error("the handler failed")]
    Handler(#[source] Box<dyn std::error::Error>),
    /// The handler asks to cut the connection off without an answer.
    #[error("the handler cut the connection off")]
    Cut,
}

/// The input or output that a wait was for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// The rest of a head, or of a TLS handshake.
    Head,
    /// More of a body, or its end.
    Body,
    /// Room to write an answer.
    Write,
}

impl std::fmt::Display for Wait {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Wait::Head => "sending a request's head",
            Wait::Body => "sending a request's body",
            Wait::Write => "reading its answer",
        })
    }
}

impl Error {
    /// Returns the connection's answer when a handler returns this error before any answer has begun; `None` if nobody
    /// is left to answer, or no answer applies.
    pub fn status(&self) -> Option<u16> {
        match self {
            Error::Request(error) => Some(error.status()),
            Error::Http2(defect) => Some(defect.status().unwrap_or(400)),
            Error::Timeout(Wait::Head | Wait::Body) => Some(408),
            Error::Timeout(Wait::Write) | Error::Io(_) | Error::Cut => None,
            Error::Full(_) => Some(503),
            Error::Header(_) | Error::Misuse(_) | Error::Handler(_) => Some(500),
        }
    }

    /// Returns the kind that counts the failure.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Error::Request(DecodeError::UnexpectedEof) | Error::Io(_) => ErrorKind::Disconnected,
            Error::Request(_) | Error::Http2(_) => ErrorKind::Refused,
            Error::Timeout(Wait::Head) => ErrorKind::HeadTimeout,
            Error::Timeout(Wait::Body) => ErrorKind::BodyTimeout,
            Error::Timeout(Wait::Write) => ErrorKind::WriteTimeout,
            Error::Full(_) => ErrorKind::Accept,
            Error::Header(_) | Error::Misuse(_) | Error::Handler(_) | Error::Cut => ErrorKind::Handler,
        }
    }
}
