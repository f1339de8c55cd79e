//! An event-driven client of HTTP/1.1 and HTTP/2 that stays fast at thousands of connections.
//!
//! **What it knows**: the choice of a connection for a request, and the caps on connections; names and addresses;
//! deadlines and timings of each phase; retries; proxies; redirects; content codings; cookies and multipart bodies.
//! TCP, unix and abstract sockets, TLS.
//!
//! **What it does not know**: parsing of HTTP (`oroshi-http1`), connections of HTTP/2 (`oroshi-multiplex`) and opening
//! of sockets (`oroshi-net`); the meaning of a body, beyond text and JSON. It prints nothing and logs nothing.
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
//! - [`local::Client`] does the work. It belongs to one thread, and the task that polls a request also runs it. A
//!   program with a thread per core has one on each; they share nothing.
//! - [`Client`] can be used from any thread and any runtime. It has a thread of its own with a `local::Client` on it.
//!
//! Both have the same [`Builder`], the same requests and the same responses.
//!
//! # What it promises
//!
//! - *Bounded*: connections per origin and in total, waiting requests, names, heads, trailers, decoded bodies. At the
//!   caps on connections a request queues; it does not fail.
//! - *Every failure has a phase* ([`Error::phase`]), a cause that says what to do, and says whether the request may be
//!   sent again ([`Error::retry_is_safe`]). The client retries only if the retry is harmless: the request was not sent,
//!   or it is idempotent. By default it does so only after a broken connection; see [`Retries`].
//! - *Cancel safety*: any future may be dropped at any time. This ends the request, closes its connection if the
//!   request was begun, and frees its place in the queue or the pool.
//! - *Secrets do not show*: neither errors nor `Debug` hold `Authorization`, `Cookie`, query strings or bodies. (An
//!   error about an invalid URL repeats the caller's text, but never a password in it.)
//!
//! # Where to read
//!
//! 1. [`Client`] (`client`) and [`local::Client`] (`local`), [`RequestBuilder`] (`request`), [`Response`]
//!    (`response`): the interface; [`Builder`] (`settings`): the settings.
//! 2. [`Phase`], [`Deadlines`], [`Timings`] (`deadline`) and [`Error`] (`error`): time and failures.
//! 3. `run`: a request from the call to the response's head. `retry` and `redirect`: the rules for sending it
//!    again.
//! 4. `connect`: from an origin to a connection; `proxy`: the way through a proxy. `pool` and `eyeballs`: the source of
//!    connections; `oroshi-core` resolves names.
//! 5. `exchange`: one request on one connection, in `exchange::http2` on a stream. `outgoing` and `body`: the request;
//!    `incoming` and `decode`: the response.
//! 6. `core`: state that the requests of a core share. `headers`, `form`, `multipart`, [`cookies`].
//!
//! **Circles.** None: no two files import each other. Each client implements its own `build` of [`Builder`].

mod body;
mod client;
mod connect;
pub mod cookies;
mod core;
mod deadline;
mod decode;
mod error;
mod exchange;
mod eyeballs;
pub mod form;
mod headers;
mod incoming;
pub mod local;
mod multipart;
mod outgoing;
mod pool;
mod proxy;
mod redirect;
mod request;
mod response;
mod retry;
mod run;
mod settings;

/// The Rust examples of docs/client.md, so that they are compiled.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/client.md")]
struct Page;

pub use bytes::Bytes;
pub use client::{Body, Client, Response};
pub use cookies::CookieJar;
pub use core::Counts;
pub use deadline::{Deadlines, Phase, Timings};
pub use decode::Coding;
pub use error::{Cause, Error};
pub use headers::Headers;
pub use multipart::Multipart;
pub use oroshi_core::{Addresses, Lookup};
pub use oroshi_http1::Version;
pub use proxy::{EnvironmentError, Proxies, ProxyCause, ProxyError, ProxyUrlError, SocksError};
pub use redirect::Redirect;
pub use request::{Handle, IntoUrl, RequestBuilder};
pub use response::{Chunks, Response as AnyResponse, Source, Whole};
pub use retry::{Retries, is_idempotent, retry_after};
pub use settings::{BuildError, Builder, check_field};

/// The methods with functions of their own, for both clients.
macro_rules! methods {
    () => {
        /// Starts a GET request.
        pub fn get(&self, url: impl IntoUrl) -> RequestBuilder<Self> {
            self.request("GET", url)
        }

        /// Starts a HEAD request.
        pub fn head(&self, url: impl IntoUrl) -> RequestBuilder<Self> {
            self.request("HEAD", url)
        }

        /// Starts a POST request.
        pub fn post(&self, url: impl IntoUrl) -> RequestBuilder<Self> {
            self.request("POST", url)
        }

        /// Starts a PUT request.
        pub fn put(&self, url: impl IntoUrl) -> RequestBuilder<Self> {
            self.request("PUT", url)
        }

        /// Starts a PATCH request.
        pub fn patch(&self, url: impl IntoUrl) -> RequestBuilder<Self> {
            self.request("PATCH", url)
        }

        /// Starts a DELETE request.
        pub fn delete(&self, url: impl IntoUrl) -> RequestBuilder<Self> {
            self.request("DELETE", url)
        }
    };
}
use methods;
