//! Why an exchange failed.

use std::io;

use oroshi_http1::DecodeError;

use crate::counters::ErrorKind;

/// Why an exchange failed. A handler passes what it gets on with `?`: as long as no answer has begun, the connection
/// then answers with [`Error::status`]; once one has begun it is cut off, so that the peer sees that it is not whole.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The request's body breaks the rules of HTTP, goes over a limit, or ended before its end
    /// ([`DecodeError::UnexpectedEof`]). Nothing to do for the handler but to give up what the request was for.
    #[error("the request is not valid")]
    Request(#[source] DecodeError),
    /// The peer let a time limit pass. Give up; or raise the limit in [`Settings`](crate::Settings) if its peers are
    /// known to be that slow.
    #[error("the peer let the time limit for {0} pass")]
    Timeout(Wait),
    /// Reading from or writing to the peer failed: it reset the connection or is gone. Give up.
    #[error("the connection to the peer broke")]
    Io(#[source] io::Error),
    /// A header cannot be sent: its name is no token, its value holds CR, LF or NUL, or it is one that the connection
    /// sets itself (`Connection`, `Content-Length`, `Transfer-Encoding`). Correct it or leave it out.
    #[error("the header {0:?} cannot be sent")]
    Header(String),
    /// The handler did what the protocol does not allow here, as the text says. Correct the handler.
    #[error("{0}")]
    Misuse(&'static str),
    /// The handler itself failed. The source says why.
    #[error("the handler failed")]
    Handler(#[source] Box<dyn std::error::Error>),
    /// The handler wants the connection cut off without an answer.
    #[error("the handler cut the connection off")]
    Cut,
}

/// What the peer was waited for.
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
    /// The status that the connection answers when a handler returns this error before any answer has begun; `None`
    /// where there is nobody left to answer, or nothing to be said.
    pub fn status(&self) -> Option<u16> {
        match self {
            Error::Request(error) => Some(error.status()),
            Error::Timeout(Wait::Head | Wait::Body) => Some(408),
            Error::Timeout(Wait::Write) | Error::Io(_) | Error::Cut => None,
            Error::Header(_) | Error::Misuse(_) | Error::Handler(_) => Some(500),
        }
    }

    /// The kind under which the failure is counted.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Error::Request(DecodeError::UnexpectedEof) | Error::Io(_) => ErrorKind::Disconnected,
            Error::Request(_) => ErrorKind::Refused,
            Error::Timeout(Wait::Head) => ErrorKind::HeadTimeout,
            Error::Timeout(Wait::Body) => ErrorKind::BodyTimeout,
            Error::Timeout(Wait::Write) => ErrorKind::WriteTimeout,
            Error::Header(_) | Error::Misuse(_) | Error::Handler(_) | Error::Cut => ErrorKind::Handler,
        }
    }
}
