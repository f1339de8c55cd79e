//! Errors of streams, and why connections end.

use std::io;
use std::sync::Arc;

use oroshi_http2::{Defect, ErrorCode, SendError};

/// Why a stream failed. [`is_unprocessed`](Self::is_unprocessed) says whether its request may be sent again in any
/// case.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The peer has reset the stream, or excluded it by a GOAWAY ([`ErrorCode::REFUSED_STREAM`]). With
    /// [`ErrorCode::NO_ERROR`] after a whole response, the peer does not need the rest of the request.
    #[error("the peer has reset the stream: {0}")]
    Reset(ErrorCode),
    /// The response is invalid; this side has reset the stream. The connection goes on.
    #[error("the response cannot be used: {0}")]
    Response(Defect),
    /// The connection has ended before the stream did.
    #[error("the connection has ended")]
    Connection {
        /// Why it has ended.
        #[source]
        cause: Arc<ConnectionError>,
        /// Whether the kernel may have got a part of the request.
        written: bool,
    },
    /// A part of the request is invalid (`Encode`), the connection takes no more streams (`GoingAway`,
    /// `TooManyStreams`), or the call does not fit the stream's state (`OutOfOrder`, `Closed`). Nothing was sent.
    #[error("the request cannot be sent")]
    Send(#[from] SendError),
}

impl Error {
    /// Whether the peer has certainly not processed the request, so that it may be sent again, whatever its method (RFC
    /// 9113 section 8.7): the peer refused the stream, its GOAWAY excludes it, or nothing of it was written.
    #[must_use]
    pub fn is_unprocessed(&self) -> bool {
        match self {
            Error::Reset(code) => *code == ErrorCode::REFUSED_STREAM,
            Error::Connection { written, .. } => !written,
            Error::Send(_) => true,
            Error::Response(_) => false,
        }
    }
}

/// Why a connection has ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectionError {
    /// The peer closed the connection, without or after a GOAWAY without an error.
    #[error("the peer has closed the connection")]
    Closed,
    /// The peer ended the connection because of an error, mostly of this side.
    #[error("the peer has ended the connection: {code} {text:?}")]
    Goaway {
        /// The reason.
        code: ErrorCode,
        /// The peer's text, at most 128 bytes of it.
        text: String,
    },
    /// The peer broke the protocol or exceeded a limit.
    #[error("the peer has broken the protocol: {0}")]
    Protocol(Defect),
    /// The socket failed.
    #[error("the connection broke")]
    Io(#[source] io::Error),
    /// The peer has not answered a ping in time.
    #[error("the peer has not answered a ping")]
    PingTimeout,
    /// This side has ended it: its task or its runtime has ended.
    #[error("this side has ended the connection")]
    Dropped,
}
