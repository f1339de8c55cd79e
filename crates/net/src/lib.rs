//! Sockets for HTTP tools on Linux: where to connect, how to connect and listen fast, and threads to do it on.
//!
//! This crate knows the kernel: sockets, TLS over them, descriptors, ports, CPUs, timers, signals. It does not know
//! HTTP (an endpoint's target is text to it), keeps no pool, retries nothing but a full unix backlog, and prints
//! nothing.
//!
//! Everything runs on tokio, one single-threaded runtime per core; types that belong to a core ([`Connector`],
//! [`Listener`], [`Timer`], [`Stream`]) are made on it, and what crosses to a core ([`BoundListener`], [`Peer`],
//! [`Shutdown`], TLS settings) is `Send`.
//!
//! In reading order:
//! - [`address`]: where a socket is; [`endpoint`]: the text that names a place to connect to;
//! - [`stream`]: a connection; [`connect`]: making one; [`tls`]: TLS at either end;
//! - [`listen`]: being connected to; [`inherit`]: sockets that a supervisor hands down; [`handover`]: handing them down;
//! - [`cores`]: a runtime per thread, pinned or not; [`signal`]: asking them to end;
//!   [`notify`]: telling whoever started this one; [`process`]: other processes, and signals by name; [`diag`]: what the kernel knows about a socket;
//! - [`clock`] and [`timer`]: time in nanoseconds; [`limits`] and [`ports`]: what the machine has room for;
//!   [`pages`]: memory in huge pages.

pub mod address;
pub mod clock;
pub mod connect;
pub mod cores;
pub mod diag;
pub mod endpoint;
pub mod handover;
pub mod inherit;
pub mod limits;
pub mod listen;
pub mod notify;
pub mod pages;
pub mod ports;
pub mod process;
pub mod signal;
pub mod stream;
mod sys;
pub mod timer;
pub mod tls;
mod unix;

pub use address::{Peer, UnixAddress};
pub use clock::monotonic_ns;
pub use connect::{ConnectError, Connected, Connector, ConnectorOptions};
pub use cores::{Core, Cores, CoresOptions, CpuList, available_cpus, two_cpus};
pub use endpoint::{Address, Endpoint, Scheme};
pub use limits::ensure_descriptors;
pub use listen::{BoundListener, ListenOptions, Listener};
pub use ports::LocalPorts;
pub use signal::Shutdown;
pub use stream::{PeerSays, Stream};
pub use timer::Timer;
pub use tls::{ClientTls, ClientTlsOptions, ServerTls};
