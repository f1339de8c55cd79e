//! The shell of a long-running service: what push hub, gateway and test server share around their handlers.
//!
//! Knows listeners with their roles, inherited sockets, the descriptors and threads of a service, rates by key, load
//! balancers in front. Does not know flags, configuration files, or what a role serves.
//!
//! `listener` opens sockets: a [`Listener`] of the plan becomes a [`OpenListener`], by binding or from an
//! [`InheritedSocket`] socket. `descriptors` estimates what a service needs beside its clients, and limits admin
//! connections. `threads` has the options and the end of a service's threads. [`rate`] decides how much with one key
//! may pass in a time. `proxies` says which peers are load balancers, by their networks (`network`).
//!
//! [`InheritedSocket`]: oroshi_net::inherit::InheritedSocket

mod descriptors;
mod listener;
mod network;
mod proxies;
pub mod rate;
mod threads;

pub use descriptors::{admin_capacity, admin_connections, descriptor_limit, engine_descriptors, handshakes_per_thread};
pub use listener::{Listener, OpenListener, Role, SocketError, bind, is_wrong_address, share};
pub use network::{Network, NetworkError};
pub use proxies::Proxies;
pub use threads::{notify_ready, thread_options, until_second_request};
