//! WebSocket on the wire (RFC 6455), without any I/O: bytes in, events out, and the way back.
//!
//! **What it knows**: the opening handshake of both sides, frames, how fragments become messages, what a control frame may be,
//! UTF-8, close codes. What breaks the protocol is an error that knows the close code to answer with.
//!
//! **What it does not know**: sockets, clocks, when to ping, how long a closing peer is waited for, extensions.
//!
//! An idle connection costs a [`Decoder`] of 32 bytes and no heap: only a message that has come in part is kept.
//! A message that is here as a whole, in one frame, is unmasked in place and handed out as it lies.
//!
//! Autobahn's cases for what is here, its groups 1 to 10, pass: `crates/push` runs them against its hub.
//!
//! # Where to read
//!
//! 1. [`handshake`]: from an HTTP/1.1 request to a connection that speaks frames.
//! 2. [`Decoder`]: bytes to [`Event`]s, and [`Violation`], each way in which they can be wrong.
//! 3. [`encode`]: the way back; frames are written once and sent to many.
//! 4. [`CloseCode`]: which may be sent. `utf8`: text that comes in pieces.

mod close;
mod decode;
pub mod encode;
mod error;
mod frame;
pub mod handshake;
mod utf8;

pub use close::CloseCode;
pub use decode::{Decoder, Event, Limits, Role};
pub use error::Violation;
pub use frame::Kind;
