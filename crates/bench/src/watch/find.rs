//! Finds the processes that accept connections at an address.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use oroshi_net::UnixAddress;
use procfs::FromBufReadSI;
use procfs::net::{TcpNetEntries, TcpNetEntry, TcpState};

use super::process::{self, Look};

/// Why no process can be watched. The run takes place all the same; its report lacks the server's side.
#[derive(Debug, thiserror::Error)]
pub enum NotFound {
    /// The server is on another machine: watch it there.
    #[error("{0} is not an address of this machine")]
    Remote(IpAddr),
    /// No socket listens there in this network namespace: for a server in a container or behind a port forward, use
    /// `--watch PID`.
    #[error("no socket of this network namespace listens on {0}")]
    NoListener(String),
    /// The processes that hold the socket belong to another user: run as that user or as root, or use `--watch PID`.
    #[error("the process that listens on {0} belongs to another user, and may not be looked at")]
    Permission(String),
    /// Only a service manager holds the socket, and starts the server at the first connection: connect once, then try
    /// again.
    #[error("{0} is held by process 1, which has not started a server for it yet")]
    NotStarted(String),
    /// Our own process listens there: its CPU time belongs to the load as well.
    #[error("the server is this very process")]
    OwnProcess,
    /// The process ended, or is in another pid namespace: look up its id again.
    #[error("there is no process {0}")]
    NoProcess(u32),
    /// `/proc` cannot be read: it must be mounted.
    #[error("{path} cannot be read")]
    Unreadable {
        /// The file.
        path: &'static str,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// Finds the process with this id.
pub(super) fn pid(pid: u32) -> Result<Vec<u32>, NotFound> {
    if pid == std::process::id() {
        return Err(NotFound::OwnProcess);
    }
    match process::look(pid) {
        // Process 0 is what the kernel calls one in another pid namespace.
        Look::Here(_) if pid != 0 => Ok(vec![pid]),
        Look::Unknown => Err(NotFound::Permission(format!("process {pid}"))),
        _ => Err(NotFound::NoProcess(pid)),
    }
}

/// Finds the processes that hold the socket to which the kernel gives connections to `address`.
pub(super) fn tcp(address: SocketAddr) -> Result<Vec<u32>, NotFound> {
    let address = SocketAddr::new(reached(address.ip()), address.port());
    if !is_local(address.ip()) {
        return Err(NotFound::Remote(address.ip()));
    }
    let mut listeners = listening("/proc/net/tcp")?;
    match listening("/proc/net/tcp6") {
        Ok(more) => listeners.extend(more),
        // A kernel without IPv6.
        Err(NotFound::Unreadable { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let best = listeners.iter().filter_map(|socket| score(socket.local_address, address)).max();
    let inodes = listeners
        .iter()
        .filter(|socket| best.is_some() && score(socket.local_address, address) == best)
        .map(|socket| socket.inode)
        .collect();
    holders(&inodes, &address.to_string())
}

/// Finds the processes that hold the listening socket of this name.
pub(super) fn unix(address: &UnixAddress) -> Result<Vec<u32>, NotFound> {
    let path = "/proc/net/unix";
    let table = fs::read(path).map_err(|source| NotFound::Unreadable { path, source })?;
    let inodes = table
        .split(|byte| *byte == b'\n')
        .skip(1)
        .filter_map(listening_unix)
        .filter(|(_, name)| is_same(name, address))
        .map(|(inode, _)| inode)
        .collect();
    holders(&inodes, &address.to_string())
}

/// Where a connection to this address arrives: the unspecified address means this machine.
fn reached(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    }
}

/// Only an address of this machine can be bound to.
fn is_local(ip: IpAddr) -> bool {
    ip.is_loopback() || UdpSocket::bind((ip, 0)).is_ok()
}

/// The listening sockets of a table.
fn listening(path: &'static str) -> Result<Vec<TcpNetEntry>, NotFound> {
    let text = File::open(path).and_then(|table| listener_lines(BufReader::new(table)));
    let text = text.map_err(|source| NotFound::Unreadable { path, source })?;
    let entries = TcpNetEntries::from_buf_read(text.as_bytes(), procfs::current_system_info())
        .map_err(|error| NotFound::Unreadable { path, source: io::Error::other(error) })?;
    Ok(entries.0.into_iter().filter(|entry| entry.state == TcpState::Listen).collect())
}

/// The part of a table with the listening sockets.
///
/// They come before all others, which may be hundreds of thousands. Kernels before 4.4 list half-open connections among
/// them.
fn listener_lines(table: impl BufRead) -> io::Result<String> {
    let mut lines = table.lines();
    let mut text = lines.next().transpose()?.unwrap_or_default() + "\n";
    for line in lines {
        let line = line?;
        // Listening, or a SYN received.
        if !matches!(line.split_whitespace().nth(3), Some("0A" | "03")) {
            break;
        }
        text.extend([&line, "\n"]);
    }
    Ok(text)
}

/// How well a listening socket fits an address; `None` if it does not.
///
/// As in the kernel, its own address wins over any address, and for any address IPv4 wins over an IPv6 socket that
/// takes both.
fn score(listener: SocketAddr, wanted: SocketAddr) -> Option<u8> {
    if listener.port() != wanted.port() {
        return None;
    }
    match (listener.ip(), wanted.ip()) {
        (listener, wanted) if listener.to_canonical() == wanted => Some(3),
        (IpAddr::V4(listener), IpAddr::V4(_)) if listener.is_unspecified() => Some(2),
        (IpAddr::V6(listener), _) if listener.is_unspecified() => Some(1),
        _ => None,
    }
}

/// Reads inode and name from a line of `/proc/net/unix`, if it is a listening stream socket.
///
/// Names are bytes and may have spaces; the reader in `procfs` supports neither.
fn listening_unix(line: &[u8]) -> Option<(u64, &[u8])> {
    let mut fields = line.splitn(7, |byte| *byte == b' ');
    let (flags, kind) = (fields.nth(3)?, fields.next()?);
    let rest = fields.nth(1)?.trim_ascii_start();
    let (inode, name) = rest.split_at(rest.iter().position(|byte| *byte == b' ')?);
    // __SO_ACCEPTCON in include/linux/net.h; SOCK_STREAM.
    let listens = u32::from_str_radix(std::str::from_utf8(flags).ok()?, 16).ok()? & 0x10000 != 0 && kind == b"0001";
    let inode = std::str::from_utf8(inode).ok()?.parse().ok()?;
    listens.then_some((inode, &name[1..]))
}

/// Whether a name in `/proc/net/unix` is this address.
///
/// An abstract name has `@` for each NUL there. A path is as the server bound it, and may be another path to the same
/// file. Relative paths are not resolved, because the server's folder is not known.
fn is_same(name: &[u8], address: &UnixAddress) -> bool {
    if let Some(wanted) = address.as_abstract() {
        return name.first() == Some(&b'@')
            && name[1..].iter().copied().eq(wanted.iter().map(|byte| if *byte == 0 { b'@' } else { *byte }));
    }
    let Some(wanted) = address.as_path() else { return false };
    let bound = Path::new(std::ffi::OsStr::from_bytes(name));
    let real = |path: &Path| -> Option<PathBuf> { path.canonicalize().ok() };
    bound == wanted
        || (bound.is_absolute()
            && bound.file_name().is_some()
            && real(wanted).is_some_and(|wanted| real(bound) == Some(wanted)))
}

/// Finds the processes that hold one of these sockets.
fn holders(inodes: &HashSet<u64>, place: &str) -> Result<Vec<u32>, NotFound> {
    if inodes.is_empty() {
        return Err(NotFound::NoListener(place.to_owned()));
    }
    let pids =
        process::all_pids().map_err(|error| NotFound::Unreadable { path: "/proc", source: io::Error::other(error) })?;
    let (mut found, mut hidden) = (Vec::new(), false);
    for pid in pids {
        match holds(pid, inodes) {
            Ok(true) => found.push(pid),
            Ok(false) => {}
            Err(error) => hidden |= error.kind() == io::ErrorKind::PermissionDenied,
        }
    }
    let (own, manager) = (std::process::id(), is_ancestor_of_ours(1));
    let servers = servers_among(&found, own, manager);
    if !servers.is_empty() {
        return Ok(servers);
    }
    Err(if found.contains(&own) {
        NotFound::OwnProcess
    } else if hidden {
        NotFound::Permission(place.to_owned())
    } else if found.contains(&1) {
        NotFound::NotStarted(place.to_owned())
    } else {
        // The last holder has just ended, or is in another pid namespace.
        NotFound::NoListener(place.to_owned())
    })
}

/// Keeps the holders of a socket that can be its server: not our process, and not a service manager.
///
/// A service manager holds the sockets of its services and is the parent of everything. In a container, the server may
/// be process 1.
fn servers_among(holders: &[u32], own: u32, one_is_our_ancestor: bool) -> Vec<u32> {
    let others = holders.iter().filter(|pid| ![own, 1].contains(pid)).count();
    let one_is_manager = one_is_our_ancestor || others > 0;
    holders.iter().copied().filter(|pid| *pid != own && !(*pid == 1 && one_is_manager)).collect()
}

fn holds(pid: u32, inodes: &HashSet<u64>) -> io::Result<bool> {
    for descriptor in fs::read_dir(format!("/proc/{pid}/fd"))? {
        // A descriptor that was closed meanwhile is no reason to stop.
        let Ok(target) = descriptor.and_then(|descriptor| fs::read_link(descriptor.path())) else { continue };
        let inode = target.to_str().and_then(|target| target.strip_prefix("socket:[")?.strip_suffix(']'));
        if inode.and_then(|inode| inode.parse().ok()).is_some_and(|inode: u64| inodes.contains(&inode)) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn is_ancestor_of_ours(ancestor: u32) -> bool {
    let mut pid = std::process::id();
    while let Look::Here(process) = process::look(pid) {
        if process.parent == ancestor {
            return true;
        }
        if process.parent == 0 {
            return false;
        }
        pid = process.parent;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_manager_is_no_server() {
        assert_eq!(servers_among(&[1, 20, 30, 40], 30, true), [20, 40]);
        assert!(servers_among(&[1, 30], 30, true).is_empty());
        // The main process of a container, with the load started beside it, and one that hands its sockets to workers.
        assert_eq!(servers_among(&[1], 30, false), [1]);
        assert_eq!(servers_among(&[1, 20], 30, false), [20]);
    }

    #[test]
    fn a_table_is_read_as_far_as_it_lists_listeners() {
        let table = "  sl  local_address rem_address   st\n\
            0: 0100007F:1F90 00000000:0000 0A 0:0 0:0 0 0 0 11\n\
            1: 0100007F:1F90 0100007F:9999 03 0:0 0:0 0 0 0 0\n\
            2: 00000000:1F90 00000000:0000 0A 0:0 0:0 0 0 0 12\n\
            3: 0100007F:1F90 0100007F:9999 06 0:0 0:0 0 0 0 0\n\
            4: 00000000:1F91 00000000:0000 0A 0:0 0:0 0 0 0 13\n";
        let lines = listener_lines(table.as_bytes()).unwrap();
        assert_eq!(lines, table[..table.find("3:").unwrap()]);
        assert_eq!(listener_lines(&b""[..]).unwrap(), "\n");
    }

    #[test]
    fn the_listener_that_the_kernel_would_choose_fits_best() {
        let fit = |listener: &str, wanted: &str| score(listener.parse().unwrap(), wanted.parse().unwrap());
        let wanted = "127.0.0.1:80";
        let fits: Vec<_> =
            ["127.0.0.1:80", "[::ffff:127.0.0.1]:80", "0.0.0.0:80", "[::]:80"].map(|one| fit(one, wanted)).into();
        assert_eq!(fits, [Some(3), Some(3), Some(2), Some(1)]);
        for listener in ["127.0.0.1:81", "127.0.0.2:80", "[::1]:80"] {
            assert_eq!(fit(listener, wanted), None, "{listener}");
        }
        assert_eq!((fit("0.0.0.0:80", "[::1]:80"), fit("[::]:80", "[::1]:80")), (None, Some(1)));
    }

    #[test]
    fn listening_unix_sockets_are_told_from_others() {
        let line = |text: &'static str| listening_unix(text.as_bytes()).map(|(inode, name)| (inode, name.to_vec()));
        let listener = line("0000000000000000: 00000002 00000000 00010000 0001 01    77 /run/with a space");
        assert_eq!(listener, Some((77, b"/run/with a space".to_vec())));
        assert_eq!(line("0000000000000000: 00000003 00000000 00000000 0001 03 78 /run/connected"), None);
        assert_eq!(line("0000000000000000: 00000002 00000000 00010000 0005 01 79 /run/seqpacket"), None);
        assert_eq!(line("0000000000000000: 00000002 00000000 00010000 0001 01 80"), None);
        assert_eq!(line(""), None);
    }

    #[test]
    fn an_abstract_name_shows_its_nuls() {
        let address = UnixAddress::abstract_name(b"a\0b".to_vec()).unwrap();
        assert!(is_same(b"@a@b", &address));
        assert!(!is_same(b"a@b", &address) && !is_same(b"@a@b@", &address));
        assert!(!is_same(b"@a", &UnixAddress::path("./@a").unwrap()));
    }
}
