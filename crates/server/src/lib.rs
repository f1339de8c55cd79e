//! A server of HTTP/1.1 and HTTP/2 for one core: connections in, exchanges out to a handler.
//!
//! **What it knows**: the life of a connection. Keep-alive, pipelining, streams, time limits by phase, sizes, refusals
//! with the right status, `100 Continue`, framing of answers, upgrades, closing so that the peer gets its answer,
//! graceful shutdown. It counts what happened.
//!
//! **What it does not know**: the meaning of requests and answers, routes, files, content codings, WebSocket, logs.
//! `oroshi-http1` and `oroshi-http2` parse HTTP; `oroshi-net` has sockets and threads.
//!
//! ```no_run
//! use std::sync::Mutex;
//!
//! use oroshi_net::{BoundListener, ListenOptions, Shutdown, Threads, ThreadsOptions};
//! use oroshi_server::{Exchange, Server, Settings};
//!
//! let shutdown = Shutdown::on_signals()?;
//! let options = ListenOptions { reuse_port: true, ..ListenOptions::default() };
//! let bound = Mutex::new(BoundListener::bind_for_cores("127.0.0.1:8080", &options, 2)?);
//! Threads::run(&ThreadsOptions::new("hello", 2), move |_| {
//!     // Taken out, so that nothing listens after the server has stopped accepting.
//!     let bound = bound.lock().unwrap().pop().unwrap();
//!     let shutdown = shutdown.clone();
//!     async move {
//!         let hello = async |exchange: &mut Exchange<'_>| exchange.reply.send(200, [], b"Hello, world").await;
//!         let server = Server::new(hello, Settings::default());
//!         server.serve([bound.into_listener().unwrap().into()], shutdown.reached(1)).await;
//!         server.counters().counts()
//!     }
//! })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # How it works
//!
//! - All state of a core stays on its thread; handlers need not be `Send`.
//! - Idle connections hold no buffer. Reads go to the core's one scratch buffer; a spare buffer keeps the bytes of an
//!   incomplete message.
//! - A handler's output leaves in one write as soon as the handler waits for anything: `wire`.
//! - A connection that begins with the preface of HTTP/2 has another life, boxed: `http2`. Each of its streams is an
//!   exchange too; `transport` is what exchanges need of either.
//! - Time limits need no timers: a sweep checks all connections of the core periodically: `core`.
//!
//! # Where to read
//!
//! 1. [`Exchange`] (`exchange`), with [`RequestBody`] (`body`) and [`Reply`] (`reply`): the handler's view.
//! 2. [`Error`] (`error`) and [`Settings`] (`settings`): failures and settings.
//! 3. [`Server`] (`serve`): accepting, shutting down. `connection`: one connection's life.
//!    `http2`: the life of a connection with streams.
//! 4. [`page`]: recognises requests that pages in browsers make, for servers that act on requests.
//! 5. `wire`: reads and writes. `core`: state that connections share; [`Capacity`] (`capacity`): state that cores
//!    share; `counters`.
//! 6. [`LogThrottle`] (`log_throttle`): rate-limited log lines.

mod body;
mod capacity;
mod connection;
mod core;
mod counters;
mod error;
mod exchange;
mod http2;
mod log_throttle;
pub mod page;
mod reply;
mod serve;
mod settings;
mod transport;
mod wire;

pub use body::RequestBody;
pub use capacity::{Capacity, CapacityReport, Permit};
pub use counters::{Counters, Counts, ErrorKind};
pub use error::{Error, Wait};
pub use exchange::{Exchange, Handler, RefusedRequest, ShutdownObserver};
pub use log_throttle::LogThrottle;
pub use reply::Reply;
pub use serve::{HttpListener, Proxied, Server};
pub use settings::Settings;
