//! Computes how many connections this machine can open to one destination before it runs out of ports.

use std::fs;
use std::io;
use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Duration;

use thiserror::Error;

/// The kernel's settings for local ports of outgoing TCP connections, for IPv4 and IPv6 alike.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalPorts {
    /// The ephemeral ports (net.ipv4.ip_local_port_range).
    pub range: RangeInclusive<u16>,
    /// Number of reserved ports in the range (net.ipv4.ip_local_reserved_ports).
    pub reserved: usize,
    /// Condition for reusing a port in TIME_WAIT for the same destination (net.ipv4.tcp_tw_reuse).
    pub reuse: TimeWaitReuse,
    /// Time in FIN-WAIT-2 of a connection whose peer never closes (net.ipv4.tcp_fin_timeout). TIME_WAIT itself is
    /// always [`TIME_WAIT`].
    pub fin_timeout: Duration,
}

/// Time that Linux keeps the side that closed first in TIME_WAIT (TCP_TIMEWAIT_LEN): no setting changes it.
pub const TIME_WAIT: Duration = Duration::from_secs(60);

/// net.ipv4.tcp_tw_reuse. Reuse is possible after a second, and needs TCP timestamps on both sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeWaitReuse {
    /// 0: a port stays in TIME_WAIT for [`TIME_WAIT`].
    Never,
    /// 1: any destination.
    Always,
    /// 2, the default since Linux 4.19: connections over loopback.
    Loopback,
}

impl LocalPorts {
    /// Reads the settings of this network namespace from /proc.
    pub fn read() -> Result<Self, PortsError> {
        Self::read_from(Path::new("/proc/sys/net/ipv4"))
    }

    /// Like [`LocalPorts::read`], or the kernel's defaults if /proc is unreadable.
    pub fn read_or_default() -> Self {
        Self::read().unwrap_or(LocalPorts {
            range: 32768..=60999,
            reserved: 0,
            reuse: TimeWaitReuse::Loopback,
            fin_timeout: Duration::from_secs(60),
        })
    }

    /// Number of ports for one source address and one destination (address and port).
    pub fn count(&self) -> usize {
        self.range.len().saturating_sub(self.reserved)
    }

    fn read_from(folder: &Path) -> Result<Self, PortsError> {
        let read = |name: &'static str| {
            let path = folder.join(name);
            fs::read_to_string(&path).map_err(|source| PortsError::Read { path: path.display().to_string(), source })
        };
        let bad = |name: &'static str, text: &str| PortsError::Format {
            path: folder.join(name).display().to_string(),
            text: text.trim().to_owned(),
        };
        let range_text = read("ip_local_port_range")?;
        let mut numbers = range_text.split_whitespace().map(str::parse::<u16>);
        let (Some(Ok(low)), Some(Ok(high))) = (numbers.next(), numbers.next()) else {
            return Err(bad("ip_local_port_range", &range_text));
        };
        // Absent in old kernels and some containers; no port is reserved then.
        let reserved_text = read("ip_local_reserved_ports").unwrap_or_default();
        let reserved = reserved_ports(reserved_text.trim(), &(low..=high))
            .ok_or_else(|| bad("ip_local_reserved_ports", &reserved_text))?;
        let reuse = match read("tcp_tw_reuse")?.trim() {
            "0" => TimeWaitReuse::Never,
            "1" => TimeWaitReuse::Always,
            "2" => TimeWaitReuse::Loopback,
            other => return Err(bad("tcp_tw_reuse", other)),
        };
        let fin_text = read("tcp_fin_timeout")?;
        let fin_timeout = fin_text.trim().parse().map_err(|_| bad("tcp_fin_timeout", &fin_text))?;
        Ok(LocalPorts { range: low..=high, reserved, reuse, fin_timeout: Duration::from_secs(fin_timeout) })
    }
}

/// The reason why the settings are unreadable. Continue with [`LocalPorts::read_or_default`], and say that it is a
/// guess.
#[derive(Debug, Error)]
pub enum PortsError {
    /// Check that /proc is mounted and readable.
    #[error("could not read {path}")]
    Read {
        /// The file.
        path: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// The file has an unknown format.
    #[error("{path} holds `{text}`, which is not understood")]
    Format {
        /// The file.
        path: String,
        /// Its text.
        text: String,
    },
}

/// Counts the ports of `1,5-9` within the range.
fn reserved_ports(list: &str, range: &RangeInclusive<u16>) -> Option<usize> {
    let mut count = 0;
    for part in list.split(',').filter(|part| !part.is_empty()) {
        let (low, high) = part.split_once('-').unwrap_or((part, part));
        let (low, high): (u16, u16) = (low.parse().ok()?, high.parse().ok()?);
        count += (low.max(*range.start())..=high.min(*range.end())).len();
    }
    Some(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(range: &str, reserved: &str, reuse: &str, fin: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in [
            ("ip_local_port_range", range),
            ("ip_local_reserved_ports", reserved),
            ("tcp_tw_reuse", reuse),
            ("tcp_fin_timeout", fin),
        ] {
            fs::write(folder.path().join(name), text).unwrap();
        }
        folder
    }

    #[test]
    fn this_machine_has_ports() {
        let ports = LocalPorts::read().unwrap();
        assert!(ports.count() > 0, "{ports:?}");
        assert!(ports.range.contains(ports.range.end()));
    }

    #[test]
    fn reserved_ports_outside_the_range_do_not_count() {
        let folder = settings("100\t200\n", "50-101,150,199-300,301\n", "2\n", "30\n");
        let ports = LocalPorts::read_from(folder.path()).unwrap();
        let expected = LocalPorts {
            range: 100..=200,
            reserved: 2 + 1 + 2,
            reuse: TimeWaitReuse::Loopback,
            fin_timeout: Duration::from_secs(30),
        };
        assert_eq!(ports, expected);
        assert_eq!(ports.count(), 96);
    }

    #[test]
    fn a_file_that_is_not_understood_is_named() {
        for (folder, name) in [
            (settings("100\n", "\n", "2\n", "30\n"), "ip_local_port_range"),
            (settings("100 200\n", "x\n", "2\n", "30\n"), "ip_local_reserved_ports"),
            (settings("100 200\n", "\n", "7\n", "30\n"), "tcp_tw_reuse"),
            (settings("100 200\n", "\n", "0\n", "\n"), "tcp_fin_timeout"),
        ] {
            let error = LocalPorts::read_from(folder.path()).unwrap_err().to_string();
            assert!(error.contains(name), "{name}: {error}");
        }
        let error = LocalPorts::read_from(Path::new("/nonexistent")).unwrap_err().to_string();
        assert!(error.contains("/nonexistent/ip_local_port_range"), "{error}");
    }
}
