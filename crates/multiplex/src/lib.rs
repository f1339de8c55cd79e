//! Client connections of HTTP/2: many requests at a time over one socket, on one thread.
//!
//! **What it knows**: the task that owns a socket and the codec; streams with their heads, bodies, trailers and
//! back-pressure; how many streams may begin now; pings; which requests may be sent again after a failure.
//!
//! **What it does not know**: frames (`oroshi-http2`) and sockets (`oroshi-net`); how a connection is made; pools; the
//! deadlines of requests; what a message means.
//!
//! ```no_run
//! # async fn example(stream: oroshi_net::Stream) -> Result<(), Box<dyn std::error::Error>> {
//! use std::future::poll_fn;
//!
//! use oroshi_multiplex::{Config, Connection, Request};
//!
//! // Inside a runtime whose tasks stay on their thread.
//! let connection = Connection::start(stream, &Config::default(), ());
//! let get = Request { method: "GET", scheme: "http", authority: "example.org", path: "/", protocol: None };
//! let place = connection.reserve().ok_or("as many streams as the server allows")?;
//! let mut stream = place.begin(&get, [("accept", &b"*/*"[..])], true)?;
//! let status = poll_fn(|cx| stream.poll_head(cx, |head| head.status)).await?;
//! let mut body = Vec::new();
//! while poll_fn(|cx| stream.poll_data(cx, &mut body)).await? {}
//! println!("{status}, {} bytes", body.len());
//! # Ok(())
//! # }
//! ```
//!
//! # What it promises
//!
//! - *One write per turn*: the requests of all tasks that run in a turn of the thread's loop leave in one write.
//! - *Bounded*: a stream keeps at most its window of unread bytes, the output at most [`OUTPUT_BYTES`] of bodies. The
//!   codec's limits and budgets bound the rest.
//! - *Fair*: a body writes at most 16 KiB before the other bodies of its connection have their turn. A body that nobody
//!   reads holds up no other.
//! - *Cancel safety*: a [`Stream`] that is dropped early is reset; the connection goes on.
//!
//! # Where to read
//!
//! 1. [`Connection`] and [`Place`] (`connection`), [`Stream`] (`stream`), [`Config`] (`config`), [`Error`] (`error`):
//!    the interface.
//! 2. `shared`: the state of a connection. `slots`: that of its streams.
//! 3. `driver`: the task that reads, decodes and writes.

mod config;
mod connection;
mod driver;
mod error;
mod shared;
mod slots;
mod stream;

pub use config::{Config, OUTPUT_BYTES, Ping};
pub use connection::{Connection, Place, Watch};
pub use error::{ConnectionError, Error};
pub use oroshi_http2::{Defect, ErrorCode, Request, ResponseHead, SendError};
pub use stream::{Sent, Stream};
