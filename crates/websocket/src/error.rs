//! How a peer can break the protocol.

use thiserror::Error;

use crate::close::CloseCode;

/// How the peer broke the protocol (RFC 6455). Close the connection with [`code`](Violation::code).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Violation {
    /// One of the three bits that only extensions use.
    #[error("a reserved bit is set, and no extension was agreed on")]
    ReservedBits,
    /// 3 to 7, or 11 to 15.
    #[error("a frame of an unknown kind")]
    Opcode,
    /// A ping, pong or close that does not end its message.
    #[error("a control frame in fragments")]
    FragmentedControl,
    /// More than 125 bytes.
    #[error("a control frame of more than 125 bytes")]
    LargeControl,
    /// Not in its shortest form, or beyond 63 bits.
    #[error("a length that is not written in its shortest form")]
    Length,
    /// From a client.
    #[error("a frame without a mask")]
    Unmasked,
    /// From a server.
    #[error("a frame with a mask")]
    Masked,
    /// There is no message to go on with.
    #[error("a continuation of nothing")]
    Continuation,
    /// The one before is not at its end.
    #[error("a message within a message")]
    Interleaved,
    /// One byte where a close code has two, or a code that may not be sent.
    #[error("a close frame with no or a reserved code")]
    Close,
    /// A text, or a close frame's reason.
    #[error("a text that is not UTF-8")]
    Utf8,
    /// See [`Limits`](crate::Limits).
    #[error("a message that is too large")]
    TooLarge,
}

impl Violation {
    /// Returns the code to close with (RFC 6455 section 7.4.1).
    #[must_use]
    pub fn code(self) -> CloseCode {
        match self {
            Violation::Utf8 => CloseCode::INVALID_DATA,
            Violation::TooLarge => CloseCode::TOO_LARGE,
            _ => CloseCode::PROTOCOL_ERROR,
        }
    }
}
