//! Sockets as the kernel has them: one function per system call, errors as `io::Error`, nothing that blocks.

use std::io::{self, IoSlice};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::ptr;

/// What a listener is bound to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// A TCP address.
    Tcp(IpAddr, u16),
    /// A unix socket, whatever its name.
    Unix,
}

/// Takes a connection, non-blocking and closed on exec, and the peer's address if it has one: on a unix socket it has
/// none, and the kernel need not look for it.
pub(crate) fn accept(listener: RawFd, place: &Place) -> io::Result<(OwnedFd, Option<IpAddr>)> {
    let mut address = Address::new();
    let (into, length) = match place {
        Place::Tcp(..) => (address.pointer(), &raw mut address.length),
        Place::Unix => (ptr::null_mut(), ptr::null_mut()),
    };
    // SAFETY: the buffer and its length belong together, or are both absent.
    let taken = unsafe { libc::accept4(listener, into, length, libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) };
    let descriptor = checked(taken as isize)? as RawFd;
    // SAFETY: a descriptor that the kernel has just made, and nobody else has.
    let socket = unsafe { OwnedFd::from_raw_fd(descriptor) };
    let peer = match address.place() {
        Place::Tcp(peer, _) => Some(peer),
        Place::Unix => None,
    };
    Ok((socket, peer))
}

/// Reads what has come. Zero is the end.
pub(crate) fn receive(socket: RawFd, into: &mut [u8]) -> io::Result<usize> {
    // SAFETY: pointer and length of one slice.
    checked(unsafe { libc::recv(socket, into.as_mut_ptr().cast(), into.len(), 0) })
}

/// Sends what goes out at once. `more`: something follows directly, so a packet need not leave yet.
pub(crate) fn send(socket: RawFd, bytes: &[u8], more: bool) -> io::Result<usize> {
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT | if more { libc::MSG_MORE } else { 0 };
    // SAFETY: pointer and length of one slice.
    checked(unsafe { libc::send(socket, bytes.as_ptr().cast(), bytes.len(), flags) })
}

/// The most pieces that one call sends (IOV_MAX).
pub(crate) const MOST_PIECES: usize = 1024;

/// Sends of several pieces what goes out at once. No more than [`MOST_PIECES`].
pub(crate) fn send_pieces(socket: RawFd, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
    debug_assert!(pieces.len() <= MOST_PIECES);
    // SAFETY: all zeros is a valid msghdr.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = pieces.as_ptr().cast_mut().cast();
    message.msg_iovlen = pieces.len();
    // SAFETY: IoSlice has the layout of iovec, and the pieces outlive the call.
    checked(unsafe { libc::sendmsg(socket, &raw const message, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) })
}

/// Sends from a file without a copy through this process. Zero: the file ends before `offset`.
pub(crate) fn send_file(socket: RawFd, file: RawFd, offset: u64, count: u64) -> io::Result<usize> {
    let mut offset = offset as libc::off_t;
    // The kernel takes no more than this at once.
    let count = count.min(0x7fff_f000) as usize;
    // SAFETY: descriptors and a local.
    checked(unsafe { libc::sendfile(socket, file, &raw mut offset, count) })
}

/// Writes all of `bytes` to a file, from `offset` on.
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

/// Whether bytes have come that nobody has read. To close over them would make of it a reset (RFC 9112 section 9.6), which takes an answer
/// along that is not read yet.
pub(crate) fn has_unread(socket: RawFd) -> bool {
    let mut unread: i32 = 0;
    // SAFETY: an int of ours, into which the kernel writes one.
    let result = unsafe { libc::ioctl(socket, libc::FIONREAD, &raw mut unread) };
    result == 0 && unread > 0
}

/// Ends the sending side: the peer reads what was sent, then the end.
pub(crate) fn shut_sending(socket: RawFd) {
    // SAFETY: a number. If it fails, the connection is gone already.
    unsafe { libc::shutdown(socket, libc::SHUT_WR) };
}

/// Ends both sides, in whatever processes else the socket is open.
pub(crate) fn shut(socket: RawFd) {
    // SAFETY: as above.
    unsafe { libc::shutdown(socket, libc::SHUT_RDWR) };
}

/// Has the peer see a reset where a plain close would look like a proper end (TCP; a unix socket has no such thing).
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

/// Closes a descriptor that nobody here owns as an object.
pub(crate) fn close(descriptor: RawFd) {
    // SAFETY: a number; the caller says that it is ours to close.
    unsafe { libc::close(descriptor) };
}

/// Prepares an inherited listener: accepting never blocks, answers leave without delay (connections inherit that),
/// and a TCP connection is handed over once it has something to say.
pub(crate) fn prepare_listener(listener: RawFd) -> io::Result<Place> {
    // SAFETY: plain numbers.
    let flags = checked(unsafe { libc::fcntl(listener, libc::F_GETFL) } as isize)? as i32;
    // SAFETY: as above.
    checked(unsafe { libc::fcntl(listener, libc::F_SETFL, flags | libc::O_NONBLOCK) } as isize)?;
    let place = bound_to(listener)?;
    if matches!(place, Place::Tcp(..)) {
        for (option, value) in [(libc::TCP_NODELAY, 1i32), (libc::TCP_DEFER_ACCEPT, 1)] {
            // SAFETY: a local of the size that is said. Without these options it is slower, not wrong.
            unsafe { libc::setsockopt(listener, libc::IPPROTO_TCP, option, (&raw const value).cast(), 4) };
        }
    }
    Ok(place)
}

/// Refuses whoever connects to a listener from now on, in all processes that have it; who has connected before can still
/// be accepted. To be used only where nobody else goes on with the socket.
pub(crate) fn refuse_new(listener: RawFd) -> io::Result<()> {
    let Place::Tcp(..) = bound_to(listener)? else {
        // Whoever connects is refused at once; accepting goes on until none is left.
        // SAFETY: a number.
        return checked(unsafe { libc::shutdown(listener, libc::SHUT_RD) } as isize).map(|_| ());
    };
    // A TCP listener that is shut down resets those who wait in it. So only the first packet of a new connection is
    // dropped: its sender tries again in a second, and is refused, or finds who listens there by then.
    const SYN_WITHOUT_ACK: [libc::sock_filter; 5] = [
        libc::sock_filter { code: 0x30, jt: 0, jf: 0, k: 13 }, // the byte of the header that has the flags
        libc::sock_filter { code: 0x54, jt: 0, jf: 0, k: 0x12 }, // & (SYN | ACK)
        libc::sock_filter { code: 0x15, jt: 0, jf: 1, k: 0x02 }, // == SYN?
        libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: 0 },  // drop it
        libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: u32::MAX },
    ];
    let filter = libc::sock_fprog { len: SYN_WITHOUT_ACK.len() as u16, filter: SYN_WITHOUT_ACK.as_ptr().cast_mut() };
    // SAFETY: a local of the size that is said; the kernel copies the program.
    let result = unsafe {
        let size = size_of::<libc::sock_fprog>() as u32;
        libc::setsockopt(listener, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, (&raw const filter).cast(), size)
    };
    checked(result as isize).map(|_| ())
}

/// The address of a connection's peer, if it has one.
pub(crate) fn peer_of(socket: RawFd) -> Option<IpAddr> {
    let mut address = Address::new();
    // SAFETY: the buffer and its length belong together.
    let result = unsafe { libc::getpeername(socket, address.pointer(), &raw mut address.length) };
    match address.place() {
        Place::Tcp(peer, _) if result == 0 => Some(peer),
        _ => None,
    }
}

fn bound_to(listener: RawFd) -> io::Result<Place> {
    let mut address = Address::new();
    // SAFETY: the buffer and its length belong together.
    checked(unsafe { libc::getsockname(listener, address.pointer(), &raw mut address.length) } as isize)?;
    Ok(address.place())
}

/// Room for an address of any family.
struct Address {
    storage: libc::sockaddr_storage,
    length: libc::socklen_t,
}

impl Address {
    fn new() -> Self {
        // SAFETY: all zeros is a valid sockaddr_storage.
        Address { storage: unsafe { std::mem::zeroed() }, length: size_of::<libc::sockaddr_storage>() as u32 }
    }

    fn pointer(&mut self) -> *mut libc::sockaddr {
        (&raw mut self.storage).cast()
    }

    fn place(&self) -> Place {
        let storage = &raw const self.storage;
        match i32::from(self.storage.ss_family) {
            libc::AF_INET => {
                // SAFETY: the family says what it is.
                let address = unsafe { &*storage.cast::<libc::sockaddr_in>() };
                let ip = Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr));
                Place::Tcp(ip.into(), u16::from_be(address.sin_port))
            }
            libc::AF_INET6 => {
                // SAFETY: the family says what it is.
                let address = unsafe { &*storage.cast::<libc::sockaddr_in6>() };
                // A v4 client of a listener for both is a v4 client.
                let ip = Ipv6Addr::from(address.sin6_addr.s6_addr).to_canonical();
                Place::Tcp(ip, u16::from_be(address.sin6_port))
            }
            _ => Place::Unix,
        }
    }
}

/// Whether a socket is not ready, and nothing else is wrong.
pub(crate) fn is_for_later(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// -1 is the error in `errno`.
pub(crate) fn checked(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}
