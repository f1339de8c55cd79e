//! WebSocket on the wire (RFC 6455), without any I/O: decodes bytes to events, and encodes messages.
//!
//! **Knows**: the opening handshake of both sides, frames, fragments, control frames, UTF-8, close codes. A violation
//! of the protocol is an error that has the close code for the answer.
//!
//! **Does not know**: sockets, clocks, when to ping, how long to wait for a closing peer, extensions other than
//! permessage-deflate (RFC 7692).
//!
//! An idle connection costs a [`Decoder`] of 32 bytes and no heap: it stores only an incomplete message. A message
//! that arrives whole in one frame is unmasked in place and borrowed from the input.
//!
//! Autobahn's groups 1 to 10 pass, and the cases of groups 12 and 13 up to 8 KiB: `crates/push` runs them against its
//! hub.
//!
//! # Where to read
//!
//! 1. [`handshake`]: from an HTTP/1.1 request to a connection with frames.
//! 2. [`Decoder`]: bytes to [`Event`]s, and [`Violation`].
//! 3. [`encode`]: messages to frames; one frame can go to many clients.
//! 4. [`deflate`]: compressed messages, without any state of a connection.
//! 5. [`CloseCode`]: which may be sent. `utf8`: text in pieces.

mod close;
mod decode;
pub mod deflate;
pub mod encode;
mod error;
mod frame;
pub mod handshake;
mod utf8;

pub use close::CloseCode;
pub use decode::{Decoder, Event, Limits, Role};
pub use error::Violation;
pub use frame::Kind;
