//! HTTP/1.1 on the wire, without any I/O: bytes in, events out, and the way back.
//!
//! **What it knows**: RFC 9112. Where a message ends, what its framing is, which bytes are refused and with
//! which status, and how to write heads and chunks. One strict reading: a message that two readers could
//! cut in two different ways is an error here, never a guess.
//!
//! **What it does not know**: sockets, clocks, timeouts, TLS, the meaning of a method or of most fields,
//! content codings, WebSocket. It keeps no copy of what it reads: the caller owns the buffer, and events borrow it.
//!
//! # Decoding
//!
//! [`RequestDecoder`] and [`ResponseDecoder`] take the bytes that a connection has received so far and give
//! one event at a time. They advance the slice past what they used; what is left over belongs to an incomplete
//! head or trailer section, and the caller offers it again with more bytes behind it. Body bytes are
//! never held back. The events of a stream of bytes, and the error it ends with, do not depend on how it was cut.
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
//! 1. `head`: the words of this crate: [`Version`], [`Framing`], [`Headers`], [`Limits`].
//! 2. `error`: every way a message can be wrong, with its status and its name.
//! 3. `request` and `response`: the two decoders, from bytes to events.
//! 4. `fields`: one pass over a head's fields: framing, persistence, Host, Expect, Upgrade.
//! 5. `target`: request targets and authorities.
//! 6. `body`: a body by its framing; chunks and trailers.
//! 7. `scan` and `syntax`: where a head ends; what exactly is wrong with a bad one.
//! 8. [`encode`]: the way back.
//!
//! The rules stand as data in `conformance/cases.txt`, each with its reason.

mod body;
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
pub use head::{Framing, Header, Headers, Limits, Version};
pub use request::{RequestDecoder, RequestEvent, RequestHead};
pub use response::{Expect, MAX_EXPECTED, ResponseDecoder, ResponseEvent, ResponseHead};
pub use syntax::{is_field_value, is_token};
