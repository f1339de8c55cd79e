//! An HTTP/1.1 server for one core: connections in, exchanges out to a handler.
//!
//! **What it knows**: the life of a connection. Keep-alive, pipelining, time limits by phase, sizes, refusing with the
//! right status, `100 Continue`, how an answer is framed, upgrades, closing so that the peer gets its answer, ending in
//! good order. It counts what happened.
//!
//! **What it does not know**: what is asked and what is answered, routes, files, content codings, WebSocket, logs. How
//! bytes are read as HTTP is `oroshi-http1`'s, sockets and threads are `oroshi-net`'s.
//!
//! ```no_run
//! use std::sync::Mutex;
//!
//! use oroshi_net::{BoundListener, Cores, CoresOptions, ListenOptions, Shutdown};
//! use oroshi_server::{Exchange, Server, Settings};
//!
//! let shutdown = Shutdown::on_signals()?;
//! let options = ListenOptions { reuse_port: true, ..ListenOptions::default() };
//! let bound = Mutex::new(BoundListener::bind_for_cores("127.0.0.1:8080", &options, 2)?);
//! Cores::run(&CoresOptions::new("hello", 2), move |_| {
//!     // Taken out, so that nothing listens any more once the server has stopped to.
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
//! - Everything of a core stays on its thread; handlers need not be `Send`.
//! - An idle connection holds no buffer. Reads go to the core's one scratch buffer; what is left of a message that is
//!   not complete is kept in a spare buffer until it is.
//! - What a handler writes leaves in one write as soon as it waits for anything: `wire`.
//! - Time limits cost no timer: a sweep looks at all connections of the core now and then: `core`.
//!
//! # Where to read
//!
//! 1. [`Exchange`] (`exchange`), with [`RequestBody`] (`body`) and [`Reply`] (`reply`): what a handler sees.
//! 2. [`Error`] (`error`) and [`Settings`] (`settings`): what can go wrong, and what can be set.
//! 3. [`Server`] (`serve`): accepting, shutting down. `connection`: one connection's life.
//! 4. [`page`]: which requests pages in browsers make, for servers that take orders.
//! 5. `wire`: reads and writes. `core`: what connections share; [`Room`] (`room`): what cores share. `counters`.
//! 6. [`Seldom`] (`seldom`): lines of a log that come now and then.

mod body;
mod connection;
mod core;
mod counters;
mod error;
mod exchange;
pub mod page;
mod reply;
mod room;
mod seldom;
mod serve;
mod settings;
mod wire;

pub use body::RequestBody;
pub use counters::{Counters, Counts, ErrorKind};
pub use error::{Error, Wait};
pub use exchange::{Closing, Exchange, Handler, Refused};
pub use reply::Reply;
pub use room::{Crowding, Place, Room};
pub use seldom::Seldom;
pub use serve::{Door, Server};
pub use settings::Settings;
