//! What the kernel knows about a socket that the socket's owner cannot see otherwise: how many connections wait in a listener's
//! queue, how many it turned away, and which socket is at the other end of a connection on this machine.
//!
//! By sock_diag(7), a question and an answer over netlink, where the kernel has it (`tcp_diag`, `unix_diag`); TCP's by
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

/// A listening socket's queue of connections that are complete and wait for accept(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queue {
    /// How many wait.
    pub waiting: u32,
    /// How many may wait, as the kernel has cut it down (net.core.somaxconn).
    pub limit: u32,
}

/// The queue of a listening TCP or unix socket; `None` where the kernel does not tell: for a unix socket without `unix_diag`.
pub fn queue(listener: impl AsFd) -> Option<Queue> {
    match getsockname(listener.as_fd()).ok()?.address_family() {
        AddressFamily::UNIX => unix_queue(listener),
        // A unix socket that is not bound would be no listener; what else there is are TCP's two families.
        _ => tcp_queue(listener),
    }
}

/// How many packets the kernel has dropped at this socket since it was made (SO_MEMINFO, Linux 4.12). For UDP these are datagrams
/// for which there was no room. For a TCP listener they are packets of the handshake: all those for which the queue had no
/// room, and some others, such as resets in the middle of it; `None` where TCP_DEFER_ACCEPT drops some for each connection.
/// A unix socket drops nothing: whoever connects waits.
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

/// A TCP socket of this network namespace that listens, of whatever process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listener {
    /// By which it is told from others: the inode that `/proc/PID/fd` names.
    pub inode: u64,
    /// Its queue.
    pub queue: Queue,
    /// Packets that it has dropped since it was made, as [`dropped`] counts them; `None`: the kernel does not tell.
    pub dropped: Option<u32>,
}

/// The TCP sockets of this network namespace that take connections to `address`: those bound to it, or else those bound to its port on all
/// addresses. Empty: nobody listens there, or somebody on another machine or in another network namespace does.
///
/// # Errors
/// When the kernel does not tell (no `tcp_diag`).
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

/// How often a connection found the queue of a TCP listener full, on all sockets of this network namespace since it was made
/// (TcpExt's ListenOverflows in `/proc/net/netstat`).
pub fn listen_overflows() -> Option<u64> {
    // Two lines each: names, and numbers in the same order.
    let text = std::fs::read_to_string("/proc/self/net/netstat").ok()?;
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("TcpExt: "));
    let (names, numbers) = (lines.next()?, lines.next()?);
    let mut pairs = names.split(' ').zip(numbers.split(' '));
    pairs.find(|(name, _)| *name == "ListenOverflows")?.1.parse().ok()
}

/// The inode of the socket at the other end of a connection on this machine, by which `/proc/PID/fd` names it; `None` while
/// nobody has accepted it.
///
/// # Errors
/// When the kernel does not tell: the other end is on another machine or in another network namespace, or for a unix
/// socket there is no `unix_diag`.
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

/// A file: the number of its file system, and its own number there, as far as sock_diag(7) gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileId {
    device: u64,
    inode: u32,
}

impl FileId {
    /// The file at a path; links are followed.
    ///
    /// # Errors
    /// Those of stat(2).
    pub fn at(path: &Path) -> io::Result<Self> {
        let file = std::fs::metadata(path)?;
        Ok(FileId { device: file.dev(), inode: file.ino() as u32 })
    }

    /// The file to which a unix socket is bound, wherever that file is by now; `None` for a socket without one, and where the kernel has no
    /// `unix_diag`.
    pub fn of_socket(socket: impl AsFd) -> Option<Self> {
        let attribute = ask_unix(socket, SHOW_VFS, VFS).ok()?;
        // The kernel's own form of a device number (linux/kdev_t.h): 20 bits are the minor one.
        let device = number(&attribute, 4)?;
        let device = rustix::fs::makedev(device >> 20, device & 0xf_ffff);
        Some(FileId { device, inode: number(&attribute, 0)? })
    }
}

/// By TCP_INFO, which for a listening socket has the queue in two of its fields (`tcp_get_info` in the kernel's net/ipv4/tcp.c).
fn tcp_queue(listener: impl AsFd) -> Option<Queue> {
    // linux/tcp.h.
    const TCP_INFO: c_int = 11;
    // tcpi_state is the first byte; tcpi_unacked and tcpi_sacked come after eight bytes and four numbers.
    const UNACKED: usize = 6;
    const SACKED: usize = 7;
    let mut numbers = [0; 8];
    let read = socket_numbers(listener, IPPROTO_TCP, TCP_INFO, &mut numbers).ok()?;
    let listens = numbers[0].to_ne_bytes()[0] == LISTEN;
    (read > SACKED && listens).then(|| Queue { waiting: numbers[UNACKED], limit: numbers[SACKED] })
}

/// linux/in.h.
const IPPROTO_TCP: c_int = 6;

/// SK_MEMINFO_DROPS in linux/sock_diag.h: its place among the numbers on a socket's memory.
const DROPS: usize = 8;

/// TCP_LISTEN in the kernel's net/tcp_states.h.
const LISTEN: u8 = 10;

// linux/unix_diag.h: what is asked for, and the attributes that answer.
const SHOW_VFS: u32 = 0x02;
const SHOW_PEER: u32 = 0x04;
const SHOW_QUEUE: u32 = 0x10;
const VFS: u16 = 1;
const PEER: u16 = 2;
const QUEUE: u16 = 4;
/// Where they begin, behind struct unix_diag_msg.
const UNIX_ATTRIBUTES: usize = 16;

fn unix_queue(listener: impl AsFd) -> Option<Queue> {
    let attribute = ask_unix(listener, SHOW_QUEUE, QUEUE).ok()?;
    Some(Queue { waiting: number(&attribute, 0)?, limit: number(&attribute, 4)? })
}

fn unix_other_end(connection: impl AsFd) -> io::Result<u64> {
    let attribute = ask_unix(connection, SHOW_PEER, PEER)?;
    number(&attribute, 0).map(u64::from).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// One attribute of a unix socket of this process.
fn ask_unix(socket: impl AsFd, show: u32, wanted: u16) -> io::Result<Vec<u8>> {
    let inode = inode(socket)?;
    // struct unix_diag_req: family, protocol, padding; states; inode; what to show; no cookie.
    let mut request = vec![AF_UNIX, 0, 0, 0];
    for part in [u32::MAX, inode, show, u32::MAX, u32::MAX] {
        request.extend(part.to_ne_bytes());
    }
    let answer = ask(&request)?;
    // struct unix_diag_msg, then attributes. Where the socket has none such, the other end is gone.
    let found = attribute(answer.get(UNIX_ATTRIBUTES..).unwrap_or_default(), wanted);
    found.map(<[u8]>::to_vec).ok_or_else(|| io::ErrorKind::NotConnected.into())
}

/// An attribute's value, of several behind one another: length, kind, value, up to a multiple of four.
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

/// The inode of the connection from `local` to `other`; 0 while it is not accepted.
fn tcp_inode(local: SocketAddr, other: SocketAddr) -> io::Result<u64> {
    match ask_tcp(local, other) {
        Err(error) if error.kind() != io::ErrorKind::NotConnected => tcp_inode_in_proc(local, other),
        answered => answered,
    }
}

// Where struct inet_diag_msg (linux/inet_diag.h) has the state, the address, the two numbers of the queue and the inode; its attributes
// come after it.
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
        // There is no such connection, and the kernel found who would take one.
        return Err(io::ErrorKind::NotConnected.into());
    }
    number(&answer, INODE).map(u64::from).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// All sockets of a family that listen at a port, each with the address that it is bound to.
fn listening(family: u8, port: u16) -> io::Result<Vec<(IpAddr, Listener)>> {
    const MEMORY: u16 = 7;
    // As in `ask_tcp`: with the attribute for memory, of those that listen, at this port.
    let mut request = vec![family, IPPROTO_TCP as u8, 1 << (MEMORY - 1), 0];
    request.extend((1u32 << LISTEN).to_ne_bytes());
    request.extend(port.to_be_bytes());
    request.extend([0; 2 + 2 * 16 + 4]);
    request.extend([u8::MAX; 8]);
    let read = |message: &Vec<u8>| {
        let address: [u8; 16] = message.get(ADDRESS..ADDRESS + 16)?.try_into().ok()?;
        let [a, b, c, d, ..] = address;
        let bound = if family == AF_INET { [a, b, c, d].into() } else { IpAddr::from(address).to_canonical() };
        let queue = Queue { waiting: number(message, WAITING)?, limit: number(message, LIMIT)? };
        let memory = attribute(message.get(ATTRIBUTES..)?, MEMORY);
        let dropped = memory.and_then(|memory| number(memory, DROPS * size_of::<u32>()));
        Some((bound, Listener { inode: number(message, INODE)?.into(), queue, dropped }))
    };
    Ok(ask_for_all(&request)?.iter().filter_map(read).collect())
}

fn tcp_inode_in_proc(local: SocketAddr, other: SocketAddr) -> io::Result<u64> {
    // An IPv6 socket may take IPv4 too, and stands in the other table then.
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
/// Length of a message's header: its length, kind, flags, sequence number and sender.
const HEAD: usize = 16;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST: u16 = 0x1;
const NLM_F_DUMP: u16 = 0x300;

/// A question about one socket, and the answer behind its netlink header.
fn ask(request: &[u8]) -> io::Result<Vec<u8>> {
    let kernel = question(request, NLM_F_REQUEST)?;
    let mut answer = [0; 4096];
    // The kernel has answered when it has taken the question.
    let (length, _) = recv(&kernel, &mut answer, RecvFlags::DONTWAIT)?;
    let answer = &answer[..length];
    match short(answer, 4).ok_or_else(bad)? {
        NLMSG_ERROR => Err(refusal(answer)),
        _ => Ok(answer.get(HEAD..).ok_or_else(bad)?.to_vec()),
    }
}

/// A question about all sockets of a kind, and each answer behind its netlink header.
fn ask_for_all(request: &[u8]) -> io::Result<Vec<Vec<u8>>> {
    let kernel = question(request, NLM_F_REQUEST | NLM_F_DUMP)?;
    let mut answers = Vec::new();
    // What the kernel sends at once is no longer.
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

/// Puts a question to the kernel; the answer is read from what this returns.
fn question(request: &[u8], flags: u16) -> io::Result<OwnedFd> {
    let kernel = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, Some(netlink::SOCK_DIAG))?;
    let length = u32::try_from(HEAD + request.len()).unwrap_or(u32::MAX);
    let mut message = length.to_ne_bytes().to_vec();
    message.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    message.extend(flags.to_ne_bytes());
    // A sequence number, and ours: there is but one question on this socket.
    message.extend([0; 8]);
    message.extend(request);
    send(&kernel, &message, SendFlags::empty())?;
    Ok(kernel)
}

/// Why the kernel does not answer, by its message of that kind.
fn refusal(message: &[u8]) -> io::Error {
    let Some(code) = number(message, HEAD) else { return bad() };
    match Errno::from_raw_os_error(-code.cast_signed()) {
        // There is no such socket; or no such module, which is told in the same way. Ours are there.
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

    /// Connections that nobody accepts, then one that somebody does.
    fn fills(listener: &impl AsFd, connect: impl Fn() -> OwnedFd, accept: impl Fn() -> OwnedFd) {
        assert_eq!(queue(listener).unwrap().waiting, 0);
        let clients = [connect(), connect()];
        let Queue { waiting, limit } = queue(listener).unwrap();
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
            // A kernel without `unix_diag`: the other way to tell is none.
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
            // It is under way, and some never come to an end.
            let _ = rustix::net::connect(&socket, &address);
            socket
        };
        let _clients: Vec<OwnedFd> = (0..8).map(|_| connect()).collect();
        assert!(dropped(&listener).unwrap() > 0);
        assert!(listen_overflows().unwrap() > before);
        // The same of a listener that may be another process's.
        let Ok(seen) = listeners(address) else { return };
        let inode = inode(&listener).unwrap().into();
        assert_eq!(seen, [Listener { inode, queue: queue(&listener).unwrap(), dropped: dropped(&listener) }]);
    }

    #[test]
    fn a_listener_is_found_by_the_address_that_it_takes_connections_to() {
        let all = TcpListener::bind("0.0.0.0:0").unwrap();
        let port = all.local_addr().unwrap().port();
        // A kernel without `tcp_diag` says nothing of anybody.
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
