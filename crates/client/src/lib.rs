//! An event-driven HTTP/1.1 client that stays fast at thousands of connections.
//!
//! **What it knows**: which connection a request goes out on, and when there may be another; names and addresses; how long each
//! phase may take and how long it took; what may be sent again; redirects; content codings. TCP, unix and abstract sockets, TLS.
//!
//! **What it does not know**: how bytes are read as HTTP (`oroshi-http1`) and how sockets are opened (`oroshi-net`); HTTP/2,
//! proxies, cookies, multipart; what a body means, beyond text and JSON. It prints nothing and logs nothing.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let client = oroshi_client::Client::builder().build()?;
//! let response = client.get("https://example.org/").send().await?;
//! println!("{} after {:?}", response.status(), response.timings().first_byte);
//! println!("{}", response.text().await?);
//! # Ok(())
//! # }
//! ```
//!
//! # Two clients
//!
//! - [`local::Client`] is the thing itself. It belongs to one thread, and whoever polls a request carries it out. A program with a
//!   thread per core has one on each; they share nothing.
//! - [`Client`] can be used from any thread and any runtime. It has a thread of its own with a `local::Client` on it.
//!
//! Both have the same [`Builder`], the same requests and the same responses.
//!
//! # What it promises
//!
//! - *Bounded*: connections per origin and in all, requests that wait, names, head, trailers, unpacked bodies. Beyond the caps on connections
//!   a request waits in line; it does not fail.
//! - *Every failure has a phase* ([`Error::phase`]), a cause that says what to do, and says whether the request may be sent again
//!   ([`Error::retry_is_safe`]). A request goes out a second time only if a connection broke and nothing can come of it: it was
//!   not sent, or it is idempotent and nothing was answered.
//! - *Cancel safety*: any future may be dropped at any time. The request ends, its connection is closed if it was begun, and its place in
//!   line or among the connections is free.
//! - *Secrets do not show*: neither errors nor `Debug` hold `Authorization`, `Cookie`, query strings or bodies. (An error about a URL
//!   that cannot be read repeats what the caller wrote, but never a password in it.)
//!
//! # Where to read
//!
//! 1. [`Client`] (`client`) and [`local::Client`] (`local`), [`RequestBuilder`] (`request`), [`Response`] (`response`): what a user sees;
//!    [`Builder`] (`settings`): what can be set.
//! 2. [`Phase`], [`Deadlines`], [`Timings`] (`deadline`) and [`Error`] (`error`): time, and what can go wrong.
//! 3. `run`: a request from the call to the response's head. `retry` and `redirect`: the rules for sending it again.
//! 4. `connect`: from an origin to a connection. `pool` and `eyeballs`: where it comes from; names are looked up by `oroshi-core`.
//! 5. `exchange`: one request on one connection. `outgoing` and `body`: what it sends; `incoming` and `decode`: what comes back.
//! 6. `core`: what the requests of a core share. `headers`, `form`.

mod body;
mod client;
mod connect;
mod core;
mod deadline;
mod decode;
mod error;
mod exchange;
mod eyeballs;
mod form;
mod headers;
mod incoming;
pub mod local;
mod outgoing;
mod pool;
mod redirect;
mod request;
mod response;
mod retry;
mod run;
mod settings;

/// What docs/client.md shows in Rust, so that it is compiled.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/client.md")]
struct Page;

pub use bytes::Bytes;
pub use client::{Body, Client, Response};
pub use core::Counts;
pub use deadline::{Deadlines, Phase, Timings};
pub use decode::Coding;
pub use error::{Cause, Error};
pub use headers::Headers;
pub use oroshi_core::{Addresses, Lookup};
pub use request::{Handle, IntoUrl, RequestBuilder};
pub use response::{Chunks, Response as AnyResponse, Source};
pub use retry::is_idempotent;
pub use settings::{BuildError, Builder};

/// The methods that have a name of their own, for both clients.
macro_rules! methods {
    () => {
        /// A GET request.
        pub fn get(&self, url: impl IntoUrl) -> RequestBuilder<Self> {
            self.request("GET", url)
        }

        /// A HEAD request.
        pub fn head(&self, url: impl IntoUrl) -> RequestBuilder<Self> {
            self.request("HEAD", url)
        }

        /// A POST request.
        pub fn post(&self, url: impl IntoUrl) -> RequestBuilder<Self> {
            self.request("POST", url)
        }

        /// A PUT request.
        pub fn put(&self, url: impl IntoUrl) -> RequestBuilder<Self> {
            self.request("PUT", url)
        }

        /// A PATCH request.
        pub fn patch(&self, url: impl IntoUrl) -> RequestBuilder<Self> {
            self.request("PATCH", url)
        }

        /// A DELETE request.
        pub fn delete(&self, url: impl IntoUrl) -> RequestBuilder<Self> {
            self.request("DELETE", url)
        }
    };
}
use methods;
