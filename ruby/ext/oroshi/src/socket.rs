//! Socket system calls: one function each, errors as `io::Error`, nothing that blocks.

use std::io::{self, IoSlice};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::ptr;

/// The address of a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SocketAddress {
    /// A TCP address.
    Tcp(IpAddr, u16),
    /// A unix socket of any name.
    Unix,
}

/// Accepts a connection, non-blocking and close-on-exec, with the peer's address. Peers on a unix socket have none, so
/// the kernel need not look for it.
pub(crate) fn accept(listener: RawFd, local: &SocketAddress) -> io::Result<(OwnedFd, Option<IpAddr>)> {
    let mut address = AddressStorage::new();
    let (into, length) = match local {
        SocketAddress::Tcp(..) => (address.pointer(), &raw mut address.length),
        SocketAddress::Unix => (ptr::null_mut(), ptr::null_mut()),
    };
    // SAFETY: the buffer and its length belong together, or are both absent.
    let taken = unsafe { libc::accept4(listener, into, length, libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) };
    let descriptor = checked(taken as isize)? as RawFd;
    // SAFETY: a new descriptor that nobody else has.
    let socket = unsafe { OwnedFd::from_raw_fd(descriptor) };
    let peer = match address.decode() {
        SocketAddress::Tcp(peer, _) => Some(peer),
        SocketAddress::Unix => None,
    };
    Ok((socket, peer))
}

/// Reads the bytes that have arrived. Zero is the end.
pub(crate) fn receive(socket: RawFd, into: &mut [u8]) -> io::Result<usize> {
    // SAFETY: pointer and length of one slice.
    checked(unsafe { libc::recv(socket, into.as_mut_ptr().cast(), into.len(), 0) })
}

/// Sends what the socket takes at once. `more`: another send follows, so a packet need not leave yet.
pub(crate) fn send(socket: RawFd, bytes: &[u8], more: bool) -> io::Result<usize> {
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT | if more { libc::MSG_MORE } else { 0 };
    // SAFETY: pointer and length of one slice.
    checked(unsafe { libc::send(socket, bytes.as_ptr().cast(), bytes.len(), flags) })
}

/// Maximum pieces per call (IOV_MAX).
pub(crate) const MOST_PIECES: usize = 1024;

/// Sends several pieces, as far as the socket takes them. At most [`MOST_PIECES`].
pub(crate) fn send_pieces(socket: RawFd, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
    debug_assert!(pieces.len() <= MOST_PIECES);
    // SAFETY: all zeros is a valid msghdr.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = pieces.as_ptr().cast_mut().cast();
    message.msg_iovlen = pieces.len() as _; // its type depends on the C library
    // SAFETY: IoSlice has the layout of iovec, and the pieces outlive the call.
    checked(unsafe { libc::sendmsg(socket, &raw const message, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) })
}

/// Sends from a file without a copy through this process. Zero: the file ends before `offset`.
pub(crate) fn send_file(socket: RawFd, file: RawFd, offset: u64, count: u64) -> io::Result<usize> {
    let mut offset = offset as libc::off_t;
    // The kernel's maximum per call.
    let count = count.min(0x7fff_f000) as usize;
    // SAFETY: descriptors and a local.
    checked(unsafe { libc::sendfile(socket, file, &raw mut offset, count) })
}

/// Writes all of `bytes` to a file at `offset`.
pub(crate) fn write_at(file: RawFd, bytes: &[u8], offset: u64) -> io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        let rest = &bytes[done..];
        // SAFETY: pointer and length of one slice.
        let wrote = checked(unsafe {
            libc::pwrite(file, rest.as_ptr().cast(), rest.len(), (offset as usize + done) as libc::off_t)
        });
        match wrote {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            wrote => done += wrote?,
        }
    }
    Ok(())
}

/// Whether unread bytes have arrived. Closing over them would send a reset (RFC 9112 section 9.6), which discards an
/// unread answer.
pub(crate) fn has_unread(socket: RawFd) -> bool {
    let mut unread: i32 = 0;
    // SAFETY: an int of ours, into which the kernel writes one.
    let result = unsafe { libc::ioctl(socket, libc::FIONREAD, &raw mut unread) };
    result == 0 && unread > 0
}

/// Whether a read, or an accept, would not wait.
pub(crate) fn is_readable(socket: RawFd) -> bool {
    let mut watch = libc::pollfd { fd: socket, events: libc::POLLIN, revents: 0 };
    // SAFETY: one pollfd.
    unsafe { libc::poll(&raw mut watch, 1, 0) == 1 }
}

/// Returns the milliseconds since a TCP connection received its latest bytes; `None` for other sockets.
pub(crate) fn quiet_ms(socket: RawFd) -> Option<u64> {
    // SAFETY: all zeros is a valid tcp_info; pointer and length belong together.
    unsafe {
        let mut info: libc::tcp_info = std::mem::zeroed();
        let mut length = size_of::<libc::tcp_info>() as libc::socklen_t;
        let result =
            libc::getsockopt(socket, libc::IPPROTO_TCP, libc::TCP_INFO, (&raw mut info).cast(), &raw mut length);
        (result == 0).then_some(u64::from(info.tcpi_last_data_recv))
    }
}

/// Whether the peer has closed without unread bytes: no request waits there.
pub(crate) fn has_ended(socket: RawFd) -> bool {
    let mut byte = 0_u8;
    // SAFETY: room for one byte.
    unsafe { libc::recv(socket, (&raw mut byte).cast(), 1, libc::MSG_PEEK | libc::MSG_DONTWAIT) == 0 }
}

/// Shuts down the sending side: the peer reads the sent bytes, then the end.
pub(crate) fn shut_sending(socket: RawFd) {
    // SAFETY: a number. If it fails, the connection is gone already.
    unsafe { libc::shutdown(socket, libc::SHUT_WR) };
}

/// Shuts down both sides, in every process that has the socket open.
pub(crate) fn shut(socket: RawFd) {
    // SAFETY: as above.
    unsafe { libc::shutdown(socket, libc::SHUT_RDWR) };
}

/// Makes the peer see a reset where a plain close would look like a proper end (TCP only; unix sockets have no reset).
pub(crate) fn reset_on_close(socket: RawFd) {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    // SAFETY: a local of the size that is said. If it fails, the connection is gone already.
    unsafe {
        libc::setsockopt(
            socket,
            libc::SOL_SOCKET,
            libc::SO_LINGER,
            (&raw const linger).cast(),
            size_of::<libc::linger>() as u32,
        );
    }
}

/// Returns another descriptor of the same socket.
pub(crate) fn copy(descriptor: RawFd) -> io::Result<RawFd> {
    // SAFETY: plain numbers.
    checked(unsafe { libc::fcntl(descriptor, libc::F_DUPFD_CLOEXEC, 0) } as isize).map(|copy| copy as RawFd)
}

/// Closes a descriptor that no object owns.
pub(crate) fn close(descriptor: RawFd) {
    // SAFETY: a number; the caller guarantees that it is ours to close.
    unsafe { libc::close(descriptor) };
}

/// Prepares an inherited listener: accepting never blocks, answers leave without delay (connections inherit that), and
/// TCP connections are delivered once they have sent something.
pub(crate) fn prepare_listener(listener: RawFd) -> io::Result<SocketAddress> {
    // SAFETY: plain numbers.
    let flags = checked(unsafe { libc::fcntl(listener, libc::F_GETFL) } as isize)? as i32;
    // SAFETY: as above.
    checked(unsafe { libc::fcntl(listener, libc::F_SETFL, flags | libc::O_NONBLOCK) } as isize)?;
    let address = bound_to(listener)?;
    if matches!(address, SocketAddress::Tcp(..)) {
        for (option, value) in [(libc::TCP_NODELAY, 1i32), (libc::TCP_DEFER_ACCEPT, 1)] {
            // SAFETY: a local of the given size. Without these options it is slower, not wrong.
            unsafe { libc::setsockopt(listener, libc::IPPROTO_TCP, option, (&raw const value).cast(), 4) };
        }
    }
    Ok(address)
}

/// Refuses new clients of a listener, in all processes that have it; those that have connected can still be accepted.
/// Only for a socket that no other program continues with.
pub(crate) fn refuse_new(listener: RawFd) -> io::Result<()> {
    let SocketAddress::Tcp(..) = bound_to(listener)? else {
        // New clients are refused at once; accepting continues until none is left. SAFETY: a number.
        return checked(unsafe { libc::shutdown(listener, libc::SHUT_RD) } as isize).map(|_| ());
    };
    // Shutting down a TCP listener resets its waiting clients. So only the first packet of new connections is dropped:
    // the client retries in a second, and is refused, or reaches the listener's successor.
    const SYN_WITHOUT_ACK: [libc::sock_filter; 5] = [
        libc::sock_filter { code: 0x30, jt: 0, jf: 0, k: 13 }, // the byte of the header that has the flags
        libc::sock_filter { code: 0x54, jt: 0, jf: 0, k: 0x12 }, // & (SYN | ACK)
        libc::sock_filter { code: 0x15, jt: 0, jf: 1, k: 0x02 }, // == SYN?
        libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: 0 },  // drop it
        libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: u32::MAX },
    ];
    let filter = libc::sock_fprog { len: SYN_WITHOUT_ACK.len() as u16, filter: SYN_WITHOUT_ACK.as_ptr().cast_mut() };
    // SAFETY: a local of the given size; the kernel copies the program.
    let result = unsafe {
        let size = size_of::<libc::sock_fprog>() as u32;
        libc::setsockopt(listener, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, (&raw const filter).cast(), size)
    };
    checked(result as isize).map(|_| ())
}

/// Returns the address of a connection's peer, if it has one.
pub(crate) fn peer_of(socket: RawFd) -> Option<IpAddr> {
    let mut address = AddressStorage::new();
    // SAFETY: the buffer and its length belong together.
    let result = unsafe { libc::getpeername(socket, address.pointer(), &raw mut address.length) };
    match address.decode() {
        SocketAddress::Tcp(peer, _) if result == 0 => Some(peer),
        _ => None,
    }
}

fn bound_to(listener: RawFd) -> io::Result<SocketAddress> {
    let mut address = AddressStorage::new();
    // SAFETY: the buffer and its length belong together.
    checked(unsafe { libc::getsockname(listener, address.pointer(), &raw mut address.length) } as isize)?;
    Ok(address.decode())
}

/// Storage for an address of any family.
struct AddressStorage {
    storage: libc::sockaddr_storage,
    length: libc::socklen_t,
}

impl AddressStorage {
    fn new() -> Self {
        // SAFETY: all zeros is a valid sockaddr_storage.
        AddressStorage { storage: unsafe { std::mem::zeroed() }, length: size_of::<libc::sockaddr_storage>() as u32 }
    }

    fn pointer(&mut self) -> *mut libc::sockaddr {
        (&raw mut self.storage).cast()
    }

    fn decode(&self) -> SocketAddress {
        let storage = &raw const self.storage;
        match i32::from(self.storage.ss_family) {
            libc::AF_INET => {
                // SAFETY: the family says what it is.
                let address = unsafe { &*storage.cast::<libc::sockaddr_in>() };
                let ip = Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr));
                SocketAddress::Tcp(ip.into(), u16::from_be(address.sin_port))
            }
            libc::AF_INET6 => {
                // SAFETY: the family says what it is.
                let address = unsafe { &*storage.cast::<libc::sockaddr_in6>() };
                // A v4 client of a dual-stack listener is a v4 client.
                let ip = Ipv6Addr::from(address.sin6_addr.s6_addr).to_canonical();
                SocketAddress::Tcp(ip, u16::from_be(address.sin6_port))
            }
            _ => SocketAddress::Unix,
        }
    }
}

/// Whether an error only means that a socket is not ready.
pub(crate) fn is_for_later(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// Returns the result; -1 is the error in `errno`.
pub(crate) fn checked(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}
