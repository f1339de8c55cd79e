//! File descriptors: making sure beforehand that there are enough.

use std::fs;
use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use thiserror::Error;

/// Beside what the caller counts: each runtime has three, name look-ups and libraries open some for a moment.
const SPARE: u64 = 64;

/// Makes room for `needed` file descriptors more than are open now (and a few to spare), by raising this process's
/// soft limit as far as that takes, and no further: some programs that it may start walk over every descriptor up to
/// the limit. Gives back the limit in force. A process with CAP_SYS_RESOURCE raises its hard limit where it must.
///
/// # Errors
/// [`DescriptorError`] when the hard limit is too low; the soft limit is then left as it was.
pub fn ensure_descriptors(needed: u64) -> Result<u64, DescriptorError> {
    let open = open_descriptors();
    let total = needed.saturating_add(open).saturating_add(SPARE);
    let limit = getrlimit(Resource::Nofile);
    // None is "unlimited", which the kernel never grants for descriptors, but may say.
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

/// Room for connections, as [`room_for`] found it.
#[derive(Debug)]
pub struct Room {
    /// So many connections there may be: as many as were wanted, or less.
    pub connections: u64,
    /// Why there is room for less than was wanted.
    pub lacking: Option<DescriptorError>,
}

/// Makes room for `wanted` connections that take `each` descriptors, beside `others` that the process has or will have for something else:
/// raises the soft limit as far as that takes. Where the hard limit is lower, there is room for fewer connections, at least one: whoever
/// accepts more would have clients take the descriptors of everything else.
pub fn room_for(wanted: u64, each: u64, others: u64) -> Room {
    let each = each.max(1);
    let counted = open_descriptors() + SPARE;
    let total = wanted.saturating_mul(each).saturating_add(others);
    let Err(error) = ensure_descriptors(total.saturating_sub(counted)) else {
        return Room { connections: wanted, lacking: None };
    };
    let hard = error.hard;
    // As many as may be.
    let _ = ensure_descriptors(hard.saturating_sub(open_descriptors() + SPARE));
    let most = (hard.saturating_sub(others) / each).max(1);
    Room { connections: wanted.min(most), lacking: (most < wanted).then_some(error) }
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
    /// What the caller asked for.
    pub needed: u64,
    /// How many were open at that moment.
    pub open: u64,
    /// The limit that would do.
    pub total: u64,
    /// The hard limit in force.
    pub hard: u64,
    /// What the kernel said.
    pub source: io::Error,
}

/// How many descriptors this process has open; 0 where /proc is not mounted.
pub fn open_descriptors() -> u64 {
    // One of them is the folder being read.
    fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.count() as u64 - 1)
}
