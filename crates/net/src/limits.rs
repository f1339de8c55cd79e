//! Ensures in advance that there are enough file descriptors.

use std::fs;
use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use thiserror::Error;

/// Extra descriptors: each runtime has three, and name look-ups and libraries open some briefly.
const SPARE: u64 = 64;

/// Ensures `needed` file descriptors beyond those open now (and a few spare ones); returns the limit in force.
///
/// Raises this process's soft limit as far as necessary and no further, because some programs iterate over every
/// descriptor up to the limit. A process with CAP_SYS_RESOURCE also raises its hard limit if necessary.
///
/// # Errors
/// [`DescriptorError`] when the hard limit is too low; the soft limit is then unchanged.
pub fn ensure_descriptors(needed: u64) -> Result<u64, DescriptorError> {
    let open = open_descriptors();
    let total = needed.saturating_add(open).saturating_add(SPARE);
    let limit = getrlimit(Resource::Nofile);
    // None is "unlimited", which the kernel never grants for descriptors, but may report.
    let Some(soft) = limit.current.filter(|&soft| soft < total) else {
        return Ok(limit.current.unwrap_or(u64::MAX));
    };
    let hard = limit.maximum.map(|hard| hard.max(total));
    match setrlimit(Resource::Nofile, Rlimit { current: Some(total), maximum: hard }) {
        Ok(()) => Ok(total),
        Err(errno) => {
            let hard = limit.maximum.unwrap_or(soft);
            Err(DescriptorError { needed, open, total, hard, source: errno.into() })
        }
    }
}

/// The number of connections that the descriptor limit allows, from [`connection_limit`].
#[derive(Debug)]
pub struct ConnectionLimit {
    /// The most connections: the wanted number, or fewer.
    pub connections: u64,
    /// The reason why there are fewer than wanted.
    pub lacking: Option<DescriptorError>,
}

/// Ensures descriptors for `wanted` connections of `each` descriptors, beside `others` for other purposes.
///
/// Raises the soft limit as far as necessary. A lower hard limit allows fewer connections, at least one. A server
/// that accepted more would let clients use up the descriptors of everything else.
pub fn connection_limit(wanted: u64, each: u64, others: u64) -> ConnectionLimit {
    let each = each.max(1);
    let counted = open_descriptors() + SPARE;
    let total = wanted.saturating_mul(each).saturating_add(others);
    let Err(error) = ensure_descriptors(total.saturating_sub(counted)) else {
        return ConnectionLimit { connections: wanted, lacking: None };
    };
    let hard = error.hard;
    // As many as the hard limit allows.
    let _ = ensure_descriptors(hard.saturating_sub(open_descriptors() + SPARE));
    let most = (hard.saturating_sub(others) / each).max(1);
    ConnectionLimit { connections: wanted.min(most), lacking: (most < wanted).then_some(error) }
}

/// The process may not open as many descriptors as the work needs. Raise the hard limit where the process is started,
/// as the message says, or ask for fewer connections.
#[derive(Debug, Error)]
#[error(
    "{needed} file descriptors are needed beside the {open} that are open, but this process may have {hard}: \
     raise the limit to {total} (`ulimit -Hn {total}` as root, LimitNOFILE={total} in a systemd unit, \
     --ulimit nofile={total} for a container), or use fewer connections"
)]
pub struct DescriptorError {
    /// The caller's number.
    pub needed: u64,
    /// Number of open descriptors at that moment.
    pub open: u64,
    /// A sufficient limit.
    pub total: u64,
    /// The hard limit in force.
    pub hard: u64,
    /// The kernel's error.
    pub source: io::Error,
}

/// Returns the number of open descriptors of this process; 0 without /proc.
pub fn open_descriptors() -> u64 {
    // One of them is the folder that this reads.
    fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.count() as u64 - 1)
}
