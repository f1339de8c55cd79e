//! HTTP/1.1 on the wire, without any I/O: decodes bytes to events, and encodes messages.
//!
//! **Knows**: RFC 9112: where a message ends, its framing, which bytes to refuse and with which status, and how to
//! write heads and chunks. There is one strict reading: a message that two readers could split differently is an
//! error, never a guess.
//!
//! **Does not know**: sockets, clocks, timeouts, TLS, the meaning of a method or of most fields, content codings,
//! WebSocket. It copies nothing: the caller owns the buffer, and events borrow it.
//!
//! # Decoding
//!
//! [`RequestDecoder`] and [`ResponseDecoder`] take the bytes that a connection has received so far and return one
//! event at a time. They advance the slice past the bytes that they used. Remaining bytes belong to an incomplete
//! head or trailer section; the caller passes them again with more bytes after them. Body bytes are never held back.
//! The events of a stream, and its final error, do not depend on how the bytes were cut.
//!
//! ```
//! use oroshi_http1::{Limits, RequestDecoder, RequestEvent};
//!
//! let limits = Limits::default();
//! let mut decoder = RequestDecoder::default();
//! let mut input: &[u8] = b"POST /a HTTP/1.1\r\nHost: example.org\r\nContent-Length: 5\r\n\r\nhello";
//! let mut body = Vec::new();
//! while let Some(event) = decoder.decode(&limits, &mut input)? {
//!     match event {
//!         RequestEvent::Head(head) => assert_eq!((head.method, head.target), ("POST", "/a")),
//!         RequestEvent::Data(data) => body.extend_from_slice(data),
//!         RequestEvent::Trailers(_) => {}
//!         RequestEvent::End => break,
//!     }
//! }
//! assert_eq!(body, b"hello");
//! # Ok::<(), oroshi_http1::DecodeError>(())
//! ```
//!
//! # Where to read
//!
//! 1. `head`: the basic types: [`Version`], [`Framing`], [`Headers`], [`Limits`].
//! 2. `error`: every defect of a message, with its status and its name.
//! 3. `request` and `response`: the two decoders, from bytes to events.
//! 4. `fields`: one pass over a head's fields: framing, persistence, Host, Expect, Upgrade.
//! 5. `target`: request targets and authorities.
//! 6. `body`: a body by its framing; chunks and trailers.
//! 7. `scan` and `syntax`: where a head ends; the exact defect of a bad one.
//! 8. [`encode`]: heads and chunks to bytes.
//! 9. [`check`]: single parts of a message, for HTTP/2.
//!
//! The rules are data in `conformance/cases.txt`, each with its reason.

mod body;
pub mod check;
pub mod encode;
mod error;
mod fields;
mod head;
mod request;
mod response;
mod scan;
mod syntax;
mod target;

pub use error::DecodeError;
pub use fields::{is_connection_field, keep_alive_timeout};
pub use head::{Framing, Header, Headers, Limits, Version};
pub use request::{RequestDecoder, RequestEvent, RequestHead};
pub use response::{ExpectedResponse, MAX_EXPECTED, ResponseDecoder, ResponseEvent, ResponseHead};
pub use syntax::{is_field_value, is_token, is_token_byte};
