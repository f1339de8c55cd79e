//! Sockets for HTTP tools on Linux: endpoints, fast connects and listeners, and threads.
//!
//! Knows the kernel: sockets, TLS over them, descriptors, ports, CPUs, timers, signals. Does not know HTTP (an
//! endpoint's target is just text). It keeps no pool, retries only a full unix backlog, and prints nothing.
//!
//! Everything runs on tokio, one single-threaded runtime per core. Types of one thread ([`Connector`], [`Listener`],
//! [`Timer`], [`Stream`]) are made on it; types that move to a thread ([`BoundListener`], [`Peer`], [`Shutdown`], TLS
//! settings) are `Send`.
//!
//! In reading order:
//! - [`address`]: socket addresses; [`endpoint`]: URLs and their grammar;
//! - [`stream`]: a connection; [`connect`]: opening one, where
//!   [`permit`] lets it; [`tls`]: TLS at either end; [`proxy_protocol`]: what a proxy in front says of it;
//! - [`listen`]: accepting connections; [`inherit`]: sockets from a supervisor; [`handover`]: passing sockets on;
//! - [`threads`]: a runtime per thread, pinned or not; [`signal`]: shutdown; [`notify`]: sd_notify; [`process`]: other
//!   processes, and signals by name; [`diag`]: kernel information about sockets;
//! - [`clock`] and [`timer`]: time in nanoseconds; [`limits`] and [`ports`]: limits of the machine; [`namespace`]:
//!   network stacks of their own; [`pages`]: memory in huge pages.

pub mod address;
pub mod clock;
pub mod connect;
pub mod diag;
pub mod endpoint;
pub mod handover;
pub mod inherit;
pub mod limits;
pub mod listen;
pub mod namespace;
pub mod notify;
pub mod pages;
pub mod permit;
pub mod ports;
pub mod process;
pub mod proxy_protocol;
pub mod signal;
pub mod stream;
mod sys;
pub mod threads;
pub mod timer;
pub mod tls;
mod unix;

pub use address::{Peer, UnixAddress};
pub use clock::monotonic_ns;
pub use connect::{ConnectError, Connected, Connector, ConnectorOptions};
pub use endpoint::{Address, Endpoint, Scheme};
pub use limits::ensure_descriptors;
pub use listen::{BoundListener, ListenOptions, Listener};
pub use namespace::NetworkNamespace;
pub use permit::Permitted;
pub use ports::LocalPorts;
pub use signal::Shutdown;
pub use stream::{PeerState, Stream};
pub use threads::{CpuList, ThreadPosition, Threads, ThreadsOptions, available_cpus, two_cpus};
pub use timer::Timer;
pub use tls::{ClientTls, ClientTlsOptions, ServerTls};
