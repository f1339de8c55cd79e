//! Violations of the protocol.

use thiserror::Error;

use crate::close::CloseCode;

/// A peer's violation of the protocol (RFC 6455). Close the connection with [`code`](Violation::code).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Violation {
    /// A reserved bit is set that no agreed extension uses there.
    #[error("a reserved bit is set that no agreed extension uses there")]
    ReservedBits,
    /// The opcode is 3 to 7, or 11 to 15.
    #[error("a frame of an unknown kind")]
    Opcode,
    /// A ping, pong or close that does not end its message.
    #[error("a control frame in fragments")]
    FragmentedControl,
    /// A control frame of more than 125 bytes.
    #[error("a control frame of more than 125 bytes")]
    LargeControl,
    /// A length not in its shortest form, or beyond 63 bits.
    #[error("a length that is not written in its shortest form")]
    Length,
    /// A client's frame without a mask.
    #[error("a frame without a mask")]
    Unmasked,
    /// A server's frame with a mask.
    #[error("a frame with a mask")]
    Masked,
    /// A continuation frame without a message to continue.
    #[error("a continuation of nothing")]
    Continuation,
    /// A new message before the previous one ended.
    #[error("a message within a message")]
    Interleaved,
    /// A close frame with one byte of payload, or with a code that may not be sent.
    #[error("a close frame with no or a reserved code")]
    Close,
    /// Invalid UTF-8 in a text or a close reason.
    #[error("a text that is not UTF-8")]
    Utf8,
    /// A compressed message that is no DEFLATE, or is cut (RFC 7692, section 7.2.2).
    #[error("a compressed message that cannot be inflated")]
    Deflate,
    /// A message beyond [`Limits`](crate::Limits).
    #[error("a message that is too large")]
    TooLarge,
}

impl Violation {
    /// Returns the code to close with (RFC 6455 section 7.4.1).
    #[must_use]
    pub fn code(self) -> CloseCode {
        match self {
            Violation::Utf8 | Violation::Deflate => CloseCode::INVALID_DATA,
            Violation::TooLarge => CloseCode::TOO_LARGE,
            _ => CloseCode::PROTOCOL_ERROR,
        }
    }
}
