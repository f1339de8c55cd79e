//! Kernel information about sockets: the length of a listener's queue, the connections it dropped, and the socket at
//! the other end of a local connection.
//!
//! Uses sock_diag(7), a netlink protocol, where the kernel has it (`tcp_diag`, `unix_diag`). TCP queues come from
//! getsockopt(2), and from `/proc/net/tcp` where netlink has no answer.

use std::ffi::c_int;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, getpeername, getsockname, netlink, recv, send,
    socket_with,
};

use crate::address::Peer;
use crate::sys::{SOL_SOCKET, socket_numbers};

/// A listening socket's queue of established connections that wait for accept(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AcceptQueue {
    /// Number of waiting connections.
    pub waiting: u32,
    /// The most that may wait, after the kernel's limit (net.core.somaxconn).
    pub limit: u32,
}

/// Returns the queue of a listening TCP or unix socket; `None` for a unix socket if the kernel has no `unix_diag`.
pub fn queue(listener: impl AsFd) -> Option<AcceptQueue> {
    match getsockname(listener.as_fd()).ok()?.address_family() {
        AddressFamily::UNIX => unix_queue(listener),
        // An unbound unix socket would not be a listener; the other families are TCP's two.
        _ => tcp_queue(listener),
    }
}

/// Returns the number of packets that the kernel has dropped at this socket since it was made (SO_MEMINFO, Linux
/// 4.12).
///
/// For UDP, these are datagrams without room. For a TCP listener, they are packets of the handshake: all without room
/// in the queue, and some others, such as resets during the handshake. `None` where TCP_DEFER_ACCEPT drops some for
/// each connection. A unix socket drops nothing: clients wait.
pub fn dropped(socket: impl AsFd) -> Option<u32> {
    // asm-generic/socket.h and linux/sock_diag.h.
    const SO_MEMINFO: c_int = if cfg!(any(target_arch = "sparc", target_arch = "sparc64")) { 0x39 } else { 55 };
    // linux/tcp.h.
    const TCP_DEFER_ACCEPT: c_int = 9;
    let mut deferred = [0];
    if socket_numbers(socket.as_fd(), IPPROTO_TCP, TCP_DEFER_ACCEPT, &mut deferred).is_ok() && deferred[0] > 0 {
        return None;
    }
    let mut numbers = [0; 9];
    let read = socket_numbers(socket, SOL_SOCKET, SO_MEMINFO, &mut numbers).ok()?;
    (read > DROPS).then_some(numbers[DROPS])
}

/// A listening TCP socket of this network namespace, of any process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listener {
    /// Identifies the socket: the inode that `/proc/PID/fd` shows.
    pub inode: u64,
    /// Its queue.
    pub queue: AcceptQueue,
    /// Packets dropped since the socket was made, as in [`dropped`]; `None` if the kernel does not report it.
    pub dropped: Option<u32>,
}

/// Returns the TCP sockets of this network namespace that accept connections to `address`.
///
/// These are the sockets bound to it, or else those bound to its port on all addresses. Empty if there is none, or if
/// the listener is on another machine or in another network namespace.
///
/// # Errors
/// When the kernel has no `tcp_diag`.
pub fn listeners(address: SocketAddr) -> io::Result<Vec<Listener>> {
    let mut found = listening(AF_INET6, address.port())?;
    if address.ip().to_canonical().is_ipv4() {
        found.extend(listening(AF_INET, address.port())?);
    }
    let ip = address.ip().to_canonical();
    let bound_to_it = found.iter().any(|(bound, _)| *bound == ip);
    let takes = |bound: &IpAddr| if bound_to_it { *bound == ip } else { bound.is_unspecified() };
    Ok(found.into_iter().filter(|(bound, _)| takes(bound)).map(|(_, listener)| listener).collect())
}

/// Returns how often a connection found the queue of a TCP listener full (TcpExt's ListenOverflows in
/// `/proc/net/netstat`).
///
/// Counts all sockets of this network namespace since it was made.
pub fn listen_overflows() -> Option<u64> {
    // Two lines each: names, and numbers in the same order.
    let text = std::fs::read_to_string("/proc/self/net/netstat").ok()?;
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("TcpExt: "));
    let (names, numbers) = (lines.next()?, lines.next()?);
    let mut pairs = names.split(' ').zip(numbers.split(' '));
    pairs.find(|(name, _)| *name == "ListenOverflows")?.1.parse().ok()
}

/// Returns the inode of the socket at the other end of a local connection, as in `/proc/PID/fd`; `None` while it is
/// not accepted.
///
/// # Errors
/// When the other end is on another machine or in another network namespace, or for a unix socket without
/// `unix_diag`.
pub fn other_end(connection: impl AsFd) -> io::Result<Option<u64>> {
    let local = getsockname(connection.as_fd())?;
    let inode = if local.address_family() == AddressFamily::UNIX {
        unix_other_end(connection)?
    } else {
        let other = getpeername(connection.as_fd())?.and_then(Peer::from_kernel);
        match (Peer::from_kernel(local), other) {
            (Some(Peer::Tcp(local)), Some(Peer::Tcp(other))) => tcp_inode(other, local)?,
            _ => return Err(io::ErrorKind::NotConnected.into()),
        }
    };
    Ok((inode != 0).then_some(inode))
}

/// Identifies a file: the number of its file system, and its inode, as far as sock_diag(7) has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileId {
    device: u64,
    inode: u32,
}

impl FileId {
    /// Identifies the file at a path; follows links.
    ///
    /// # Errors
    /// Those of stat(2).
    pub fn at(path: &Path) -> io::Result<Self> {
        let file = std::fs::metadata(path)?;
        Ok(FileId { device: file.dev(), inode: file.ino() as u32 })
    }

    /// Identifies the file to which a unix socket is bound, wherever that file is now. `None` for a socket without
    /// one, or without `unix_diag`.
    pub fn of_socket(socket: impl AsFd) -> Option<Self> {
        let attribute = ask_unix(socket, SHOW_VFS, VFS).ok()?;
        // The kernel's internal device number (linux/kdev_t.h): 20 bits for the minor number.
        let device = number(&attribute, 4)?;
        let device = rustix::fs::makedev(device >> 20, device & 0xf_ffff);
        Some(FileId { device, inode: number(&attribute, 0)? })
    }
}

/// Reads TCP_INFO, which for a listening socket has the queue in two of its fields (`tcp_get_info` in the kernel's
/// net/ipv4/tcp.c).
fn tcp_queue(listener: impl AsFd) -> Option<AcceptQueue> {
    // linux/tcp.h.
    const TCP_INFO: c_int = 11;
    // tcpi_state is the first byte; tcpi_unacked and tcpi_sacked come after eight bytes and four numbers.
    const UNACKED: usize = 6;
    const SACKED: usize = 7;
    let mut numbers = [0; 8];
    let read = socket_numbers(listener, IPPROTO_TCP, TCP_INFO, &mut numbers).ok()?;
    let listens = numbers[0].to_ne_bytes()[0] == LISTEN;
    (read > SACKED && listens).then(|| AcceptQueue { waiting: numbers[UNACKED], limit: numbers[SACKED] })
}

/// linux/in.h.
const IPPROTO_TCP: c_int = 6;

/// SK_MEMINFO_DROPS in linux/sock_diag.h: its index among the memory values.
const DROPS: usize = 8;

/// TCP_LISTEN in the kernel's net/tcp_states.h.
const LISTEN: u8 = 10;

// linux/unix_diag.h: request flags, and the attributes that answer them.
const SHOW_VFS: u32 = 0x02;
const SHOW_PEER: u32 = 0x04;
const SHOW_QUEUE: u32 = 0x10;
const VFS: u16 = 1;
const PEER: u16 = 2;
const QUEUE: u16 = 4;
/// Offset of the attributes after struct unix_diag_msg.
const UNIX_ATTRIBUTES: usize = 16;

fn unix_queue(listener: impl AsFd) -> Option<AcceptQueue> {
    let attribute = ask_unix(listener, SHOW_QUEUE, QUEUE).ok()?;
    Some(AcceptQueue { waiting: number(&attribute, 0)?, limit: number(&attribute, 4)? })
}

fn unix_other_end(connection: impl AsFd) -> io::Result<u64> {
    let attribute = ask_unix(connection, SHOW_PEER, PEER)?;
    number(&attribute, 0).map(u64::from).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Returns one attribute of a unix socket of this process.
fn ask_unix(socket: impl AsFd, show: u32, wanted: u16) -> io::Result<Vec<u8>> {
    let inode = inode(socket)?;
    // struct unix_diag_req: family, protocol, padding; states; inode; what to show; no cookie.
    let mut request = vec![AF_UNIX, 0, 0, 0];
    for part in [u32::MAX, inode, show, u32::MAX, u32::MAX] {
        request.extend(part.to_ne_bytes());
    }
    let answer = ask(&request)?;
    // struct unix_diag_msg, then attributes. Without the attribute, the other end is gone.
    let found = attribute(answer.get(UNIX_ATTRIBUTES..).unwrap_or_default(), wanted);
    found.map(<[u8]>::to_vec).ok_or_else(|| io::ErrorKind::NotConnected.into())
}

/// Returns the value of an attribute from a sequence: length, kind, value, padded to four bytes.
fn attribute(mut rest: &[u8], wanted: u16) -> Option<&[u8]> {
    while let Some((length, kind)) = short(rest, 0).zip(short(rest, 2)) {
        let length = usize::from(length);
        if length < 4 || length > rest.len() {
            break;
        }
        if kind == wanted {
            return Some(&rest[4..length]);
        }
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    None
}

/// Returns the inode of the connection from `local` to `other`; 0 while it is not accepted.
fn tcp_inode(local: SocketAddr, other: SocketAddr) -> io::Result<u64> {
    match ask_tcp(local, other) {
        Err(error) if error.kind() != io::ErrorKind::NotConnected => tcp_inode_in_proc(local, other),
        answered => answered,
    }
}

// Offsets in struct inet_diag_msg (linux/inet_diag.h): state, address, the queue's two numbers, inode; attributes
// follow.
const STATE: usize = 1;
const ADDRESS: usize = 8;
const WAITING: usize = 56;
const LIMIT: usize = 60;
const INODE: usize = 68;
const ATTRIBUTES: usize = 72;

fn ask_tcp(local: SocketAddr, other: SocketAddr) -> io::Result<u64> {
    // struct inet_diag_req_v2: family, protocol, extensions, padding; states; ports, addresses, interface, no cookie.
    let family = if local.is_ipv4() { AF_INET } else { AF_INET6 };
    let mut request = vec![family, IPPROTO_TCP as u8, 0, 0];
    request.extend(u32::MAX.to_ne_bytes());
    request.extend(local.port().to_be_bytes());
    request.extend(other.port().to_be_bytes());
    for address in [local.ip(), other.ip()] {
        let mut field = [0; 16];
        match address {
            IpAddr::V4(ip) => field[..4].copy_from_slice(&ip.octets()),
            IpAddr::V6(ip) => field.copy_from_slice(&ip.octets()),
        }
        request.extend(field);
    }
    for part in [0, u32::MAX, u32::MAX] {
        request.extend(part.to_ne_bytes());
    }
    let answer = ask(&request)?;
    if answer.get(STATE) == Some(&LISTEN) {
        // There is no such connection; the kernel returned a listener that would accept it.
        return Err(io::ErrorKind::NotConnected.into());
    }
    number(&answer, INODE).map(u64::from).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Returns all sockets of a family that listen at a port, with their bound addresses.
fn listening(family: u8, port: u16) -> io::Result<Vec<(IpAddr, Listener)>> {
    const MEMORY: u16 = 7;
    // As in `ask_tcp`, with the memory attribute, for listeners at this port.
    let mut request = vec![family, IPPROTO_TCP as u8, 1 << (MEMORY - 1), 0];
    request.extend((1u32 << LISTEN).to_ne_bytes());
    request.extend(port.to_be_bytes());
    request.extend([0; 2 + 2 * 16 + 4]);
    request.extend([u8::MAX; 8]);
    let read = |message: &Vec<u8>| {
        let address: [u8; 16] = message.get(ADDRESS..ADDRESS + 16)?.try_into().ok()?;
        let [a, b, c, d, ..] = address;
        let bound = if family == AF_INET { [a, b, c, d].into() } else { IpAddr::from(address).to_canonical() };
        let queue = AcceptQueue { waiting: number(message, WAITING)?, limit: number(message, LIMIT)? };
        let memory = attribute(message.get(ATTRIBUTES..)?, MEMORY);
        let dropped = memory.and_then(|memory| number(memory, DROPS * size_of::<u32>()));
        Some((bound, Listener { inode: number(message, INODE)?.into(), queue, dropped }))
    };
    Ok(ask_for_all(&request)?.iter().filter_map(read).collect())
}

fn tcp_inode_in_proc(local: SocketAddr, other: SocketAddr) -> io::Result<u64> {
    // An IPv6 socket may also accept IPv4, and is in the other table then.
    let tables = [procfs::net::tcp(), procfs::net::tcp6()];
    let same = |a: SocketAddr, b: SocketAddr| a.port() == b.port() && a.ip().to_canonical() == b.ip().to_canonical();
    let mut entries = tables.into_iter().flatten().flatten();
    let found = entries.find(|entry| same(entry.local_address, local) && same(entry.remote_address, other));
    found.map(|entry| entry.inode).ok_or_else(|| io::ErrorKind::NotConnected.into())
}

// linux/socket.h; the same on every architecture.
const AF_UNIX: u8 = 1;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;

// linux/netlink.h, linux/sock_diag.h.
/// Length of a message header: its length, type, flags, sequence number and sender.
const HEAD: usize = 16;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST: u16 = 0x1;
const NLM_F_DUMP: u16 = 0x300;

/// Sends a request about one socket; returns the answer after its netlink header.
fn ask(request: &[u8]) -> io::Result<Vec<u8>> {
    let kernel = question(request, NLM_F_REQUEST)?;
    let mut answer = [0; 4096];
    // The kernel has answered by the time it has taken the request.
    let (length, _) = recv(&kernel, &mut answer, RecvFlags::DONTWAIT)?;
    let answer = &answer[..length];
    match short(answer, 4).ok_or_else(bad)? {
        NLMSG_ERROR => Err(refusal(answer)),
        _ => Ok(answer.get(HEAD..).ok_or_else(bad)?.to_vec()),
    }
}

/// Sends a request about all sockets of a kind; returns each answer after its netlink header.
fn ask_for_all(request: &[u8]) -> io::Result<Vec<Vec<u8>>> {
    let kernel = question(request, NLM_F_REQUEST | NLM_F_DUMP)?;
    let mut answers = Vec::new();
    // The kernel never sends more at once.
    let mut buffer = vec![0; 32 * 1024];
    loop {
        let (length, _) = recv(&kernel, &mut buffer[..], RecvFlags::DONTWAIT)?;
        let mut rest = &buffer[..length];
        while !rest.is_empty() {
            let length = number(rest, 0).ok_or_else(bad)? as usize;
            let message = rest.get(..length).filter(|message| message.len() >= HEAD).ok_or_else(bad)?;
            match short(message, 4).ok_or_else(bad)? {
                NLMSG_DONE => return Ok(answers),
                NLMSG_ERROR => return Err(refusal(message)),
                _ => answers.push(message[HEAD..].to_vec()),
            }
            rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        }
    }
}

/// Sends a request to the kernel; the answer arrives on the returned descriptor.
fn question(request: &[u8], flags: u16) -> io::Result<OwnedFd> {
    let kernel = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, Some(netlink::SOCK_DIAG))?;
    let length = u32::try_from(HEAD + request.len()).unwrap_or(u32::MAX);
    let mut message = length.to_ne_bytes().to_vec();
    message.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    message.extend(flags.to_ne_bytes());
    // Sequence number and our address: this socket has a single request.
    message.extend([0; 8]);
    message.extend(request);
    send(&kernel, &message, SendFlags::empty())?;
    Ok(kernel)
}

/// Converts an error message of the kernel.
fn refusal(message: &[u8]) -> io::Error {
    let Some(code) = number(message, HEAD) else { return bad() };
    match Errno::from_raw_os_error(-code.cast_signed()) {
        // There is no such socket, or no such kernel module; the error is the same. Our sockets exist.
        Errno::NOENT => io::Error::new(
            io::ErrorKind::NotFound,
            "the kernel knows of no such socket, or has no module to tell (tcp_diag, unix_diag)",
        ),
        errno => errno.into(),
    }
}

fn bad() -> io::Error {
    io::ErrorKind::InvalidData.into()
}

fn inode(socket: impl AsFd) -> io::Result<u32> {
    let inode = rustix::fs::fstat(socket)?.st_ino;
    u32::try_from(inode).map_err(|_| io::ErrorKind::InvalidData.into())
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn short(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    /// Makes connections that nothing accepts, then accepts one.
    fn fills(listener: &impl AsFd, connect: impl Fn() -> OwnedFd, accept: impl Fn() -> OwnedFd) {
        assert_eq!(queue(listener).unwrap().waiting, 0);
        let clients = [connect(), connect()];
        let AcceptQueue { waiting, limit } = queue(listener).unwrap();
        assert!(waiting == 2 && limit >= 2, "{waiting} of {limit}");
        assert_eq!(other_end(&clients[0]).unwrap(), None, "nobody has accepted it");
        let accepted = accept();
        assert_eq!(other_end(&clients[0]).unwrap(), inode(&accepted).ok().map(u64::from));
        assert_eq!(other_end(&accepted).unwrap(), inode(&clients[0]).ok().map(u64::from));
        assert_eq!(queue(listener).unwrap().waiting, 1);
        assert_eq!(dropped(listener), Some(0));
    }

    #[test]
    fn a_tcp_listener_and_its_connections_are_seen() {
        for address in ["127.0.0.1:0", "[::1]:0", "[::]:0"] {
            // A machine may have no IPv6.
            let Ok(listener) = TcpListener::bind(address) else { continue };
            let port = listener.local_addr().unwrap().port();
            let to = if address.starts_with("[::1]") { "::1" } else { "127.0.0.1" };
            let connect = || TcpStream::connect((to, port)).unwrap().into();
            fills(&listener, connect, || listener.accept().unwrap().0.into());
        }
    }

    #[test]
    fn a_tcp_connection_is_found_in_proc_too() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (local, other) = (client.peer_addr().unwrap(), client.local_addr().unwrap());
        assert_eq!(tcp_inode_in_proc(local, other).unwrap(), 0);
        let accepted = listener.accept().unwrap().0;
        assert_eq!(tcp_inode_in_proc(local, other).unwrap(), u64::from(inode(&accepted).unwrap()));
        drop(client);
        let nobody = "127.0.0.1:1".parse().unwrap();
        assert_eq!(tcp_inode_in_proc(nobody, other).unwrap_err().kind(), io::ErrorKind::NotConnected);
    }

    #[test]
    fn a_unix_listener_and_its_connections_are_seen() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        if queue(&listener).is_none() {
            // Without `unix_diag` there is no other way.
            let client = UnixStream::connect(&path).unwrap();
            assert!(other_end(&client).is_err());
            return;
        }
        fills(&listener, || UnixStream::connect(&path).unwrap().into(), || listener.accept().unwrap().0.into());
    }

    #[test]
    fn a_unix_socket_s_file_is_known_wherever_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let listener = UnixListener::bind(at("socket")).unwrap();
        let _other = UnixListener::bind(at("other")).unwrap();
        if queue(&listener).is_none() {
            // A kernel without `unix_diag`.
            assert_eq!(FileId::of_socket(&listener), None);
            return;
        }
        let file = FileId::of_socket(&listener).unwrap();
        assert_eq!(FileId::at(&at("socket")).unwrap(), file);
        std::fs::rename(at("socket"), at("moved")).unwrap();
        assert_eq!(FileId::at(&at("moved")).unwrap(), file);
        assert_ne!(FileId::at(&at("other")).unwrap(), file);
        assert_eq!(FileId::of_socket(&UnixStream::pair().unwrap().0), None);
    }

    #[test]
    fn a_queue_that_is_full_shows() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let before = listen_overflows().unwrap();
        let address = listener.local_addr().unwrap();
        let connect = || {
            let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::NONBLOCK, None).unwrap();
            // In progress; some never complete.
            let _ = rustix::net::connect(&socket, &address);
            socket
        };
        let _clients: Vec<OwnedFd> = (0..8).map(|_| connect()).collect();
        assert!(dropped(&listener).unwrap() > 0);
        assert!(listen_overflows().unwrap() > before);
        // The same, as seen for a listener of another process.
        let Ok(seen) = listeners(address) else { return };
        let inode = inode(&listener).unwrap().into();
        assert_eq!(seen, [Listener { inode, queue: queue(&listener).unwrap(), dropped: dropped(&listener) }]);
    }

    #[test]
    fn a_listener_is_found_by_the_address_that_it_takes_connections_to() {
        let all = TcpListener::bind("0.0.0.0:0").unwrap();
        let port = all.local_addr().unwrap().port();
        // A kernel without `tcp_diag` reports no listeners.
        let Ok(found) = listeners(SocketAddr::from(([127, 0, 0, 1], port))) else { return };
        let inodes = |found: Vec<Listener>| found.iter().map(|listener| listener.inode).collect::<Vec<_>>();
        assert_eq!(inodes(found), [u64::from(inode(&all).unwrap())]);
        let one = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, port) = (one.local_addr().unwrap(), one.local_addr().unwrap().port());
        assert_eq!(inodes(listeners(address).unwrap()), [u64::from(inode(&one).unwrap())]);
        assert_eq!(listeners(SocketAddr::from(([127, 0, 0, 2], port))).unwrap(), []);
        drop(one);
        assert_eq!(listeners(address).unwrap(), []);
    }

    #[test]
    fn what_does_not_listen_has_no_queue() {
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        assert_eq!(queue(&udp), None);
        assert_eq!(dropped(&udp), Some(0));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        assert_eq!(queue(TcpStream::connect(listener.local_addr().unwrap()).unwrap()), None);
    }
}
