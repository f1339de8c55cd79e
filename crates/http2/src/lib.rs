//! HTTP/2 on the wire, without any I/O: takes bytes and commands, returns events, and writes bytes.
//!
//! **Knows**: RFC 9113: frames, the states of streams, both windows, settings; RFC 7541: HPACK; RFC 8441: extended
//! CONNECT. There is one strict reading of a message, the same as in `http1`: a request that HTTP/1.1 would refuse is
//! refused here, and an accepted request goes on as exactly one request of HTTP/1.1. Everything that a peer can make
//! this side keep or do has a limit.
//!
//! **Does not know**: sockets, clocks, TLS and ALPN, the `Upgrade: h2c` of RFC 7540, server push, priorities (RFC
//! 9218's fields pass through, its frames are ignored), what to answer.
//!
//! # A connection
//!
//! [`Connection`] is one side, client or server. [`receive`](Connection::receive) takes the bytes that have arrived
//! and returns one event at a time; commands such as [`send_response`](Connection::send_response) append frames to a
//! buffer. All buffers are the caller's, so one of each serves all connections of a thread: the received bytes, the
//! [`HeadBuffer`] of decoded heads, the output.
//!
//! ```
//! use std::sync::Arc;
//!
//! use oroshi_http2::{Config, Connection, Event, HeadBuffer, Request};
//!
//! let (config, mut heads) = (Arc::new(Config::default()), HeadBuffer::default());
//! let (mut to_server, mut to_client) = (Vec::new(), Vec::new());
//! let mut client = Connection::client(config.clone(), &mut to_server);
//! let mut server = Connection::server(config, &mut to_client);
//!
//! let get = Request { method: "GET", scheme: "http", authority: "example.org", path: "/a", protocol: None };
//! let id = client.send_request(&mut to_server, &get, [("accept", &b"*/*"[..])], true, 7)?;
//!
//! let mut input = &to_server[..];
//! while let Some(event) = server.receive(&mut input, &mut heads, &mut to_client)? {
//!     if let Event::Request { stream, head, end: true } = event {
//!         assert_eq!((head.method, head.authority, head.target), ("GET", "example.org", "/a"));
//!         assert_eq!(head.headers.get("accept"), Some(&b"*/*"[..]));
//!         server.send_response(&mut to_client, stream.id, 200, [("content-length", &b"5"[..])], false)?;
//!         assert_eq!(server.send_data(&mut to_client, stream.id, b"hello", true)?, 5);
//!     }
//! }
//!
//! let (mut input, mut body) = (&to_client[..], Vec::new());
//! while let Some(event) = client.receive(&mut input, &mut heads, &mut to_server)? {
//!     match event {
//!         Event::Response { stream, head, .. } => assert_eq!((stream.id, stream.tag, head.status), (id, 7, 200)),
//!         Event::Data { data, .. } => body.extend_from_slice(data),
//!         _ => {}
//!     }
//! }
//! assert_eq!(body, b"hello");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Duties of the caller
//!
//! - **Write the output** once per turn of its loop, whichever call filled it. While it cannot be written, do not read:
//!   otherwise answers to the peer's frames pile up.
//! - **Keep the rest** of the input, less than 16,393 bytes, and pass it again with more bytes behind it
//!   (`core::Incoming` does this).
//! - After an **error**, write the output, which ends with a GOAWAY, and close.
//! - **Grant** what it has consumed, unless [`Grants::Automatic`] is set. Bytes of ended streams count too.
//! - Send the **rest of a body** after [`Event::WindowOpen`] and [`Event::Settings`]. The caller decides which stream
//!   sends first, and how much per turn, so that a large body does not hold up the others.
//! - Call **[`tick`](Connection::tick)** about once a second, and reset streams that are
//!   [`stalled`](Connection::stalled) for too long.
//! - Enforce **times**: a handshake, a request, an idle connection without end are not errors of the protocol.
//!
//! # Where to read
//!
//! 1. [`Event`] (`event`) and the head of a message (`head`): what a caller sees.
//! 2. `config`: what a connection announces and tolerates. `error`: every defect, with its code and name.
//! 3. [`Connection`] (`connection`): the loop over frames. Below it: `frames` (all but the following), `messages`
//!    (header blocks: who may send which, and when), `data` (DATA and the windows for it), `commands` (what the caller
//!    does).
//! 4. `stream`: the table of open streams, and the streams that closed lately.
//! 5. `frame`: frames to bytes and back.
//! 6. [`hpack`]: the decoder, the encoder, their tables, the Huffman code.
//!
//! The rules are data in `conformance/cases.txt`, each with its reason. `examples/hello_server.rs` is a whole server
//! for h2spec and other clients. `docs/http2.md` says why this codec exists, with measurements beside the crate h2.

mod config;
mod connection;
mod error;
mod event;
mod frame;
mod head;
pub mod hpack;
mod stream;

pub use config::{Config, Grants, Heads, Limits};
pub use connection::{Connection, EncodedRequest, EncodedResponse, PeerSettings, Request, Role, SendError};
pub use error::{Defect, ErrorCode};
pub use event::{Event, StreamRef};
pub use frame::{FRAME_HEAD_BYTES, MAX_FRAME_BYTES, PREFACE};
pub use head::{HeadBuffer, RequestHead, ResponseHead};
pub use oroshi_http1::encode::EncodeError;
