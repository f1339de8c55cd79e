//! Descriptors beside those of clients: the engine's own, and the reserve of admin connections.

use std::sync::Arc;

use oroshi_server::{Capacity, CapacityReport};
use rustix::process::{Resource, getrlimit};

use crate::listener::{OpenListener, Role};

/// The least connections of an admin listener: one can come while another goes.
const LEAST_ADMINS: usize = 2;

/// Returns the hard limit on this process's descriptors.
#[must_use]
pub fn descriptor_limit() -> u64 {
    getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX)
}

/// Returns how many descriptors listeners and runtimes take.
///
/// A listener has a socket on each thread, and there a connection that waits for room.
#[must_use]
pub fn engine_descriptors(listeners: usize, threads: usize) -> u64 {
    2 * listeners as u64 * threads as u64 + 4 * (threads as u64 + 1)
}

/// Returns how many TLS handshakes may be under way on a thread: its share of `most`, and of half of the connections.
///
/// Handshakes must not take all connections: room is made by ending those that wait, handshakes or not.
#[must_use]
pub fn handshakes_per_thread(most: usize, connections: usize, threads: usize) -> usize {
    most.min(connections / 2).max(1).div_ceil(threads)
}

/// Returns how many connections to reserve for operators: an eighth of the hard limit, from 8 to `most`.
#[must_use]
pub fn admin_connections(most: u64) -> u64 {
    (descriptor_limit() / 8).clamp(8, most)
}

/// Limits the connections of an admin listener, on all threads together; logs when there is no room.
///
/// `proof` is what protects a connection from being closed for another one: a valid `token` or `request`.
pub fn admin_capacity<R: Role>(bound: &OpenListener<R>, share: usize, proof: &'static str) -> Arc<Capacity> {
    let address = bound.address();
    Capacity::with_report(share.max(LEAST_ADMINS), move |CapacityReport { held, most, ended }| {
        tracing::warn!(
            "no room at the admin listener {address}: {held} of {most} connections, and others wait. {ended} were \
             closed to make room, first those without a valid {proof}: see who connects there, or raise the limit on \
             descriptors (LimitNOFILE=, ulimit -Hn)"
        );
    })
}
