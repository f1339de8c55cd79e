//! The system calls that neither std nor the crates beneath offer.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Tells the kernel that a `bind` to port 0 only chooses the source address: the port is chosen by `connect`, when the
/// destination is known, so that one port can serve many destinations (IP_BIND_ADDRESS_NO_PORT, ip(7), Linux 4.2).
pub(crate) fn set_bind_address_no_port(socket: impl AsFd) -> io::Result<()> {
    // linux/in.h; the same numbers on every architecture.
    const IPPROTO_IP: c_int = 0;
    const IP_BIND_ADDRESS_NO_PORT: c_int = 24;
    let on: c_int = 1;
    // SAFETY: the descriptor is borrowed and so open for the length of the call; the kernel reads `size_of_val(&on)`
    // bytes from a live `c_int` and keeps no pointer to it.
    let result = unsafe {
        setsockopt(
            socket.as_fd().as_raw_fd(),
            IPPROTO_IP,
            IP_BIND_ADDRESS_NO_PORT,
            (&raw const on).cast::<c_void>(),
            size_of_val(&on) as u32,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A socket option that is a row of 32-bit numbers: as many of them as the kernel gives and `numbers` has room for.
pub(crate) fn socket_numbers(socket: impl AsFd, level: c_int, name: c_int, numbers: &mut [u32]) -> io::Result<usize> {
    let mut length = u32::try_from(size_of_val(numbers)).unwrap_or(u32::MAX);
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: the descriptor is borrowed and so open for the length of the call; the kernel writes at most `length` bytes to
    // memory that is borrowed for it, in which any bytes are numbers, and keeps no pointer to it.
    let result = unsafe { getsockopt(fd, level, name, numbers.as_mut_ptr().cast::<c_void>(), &raw mut length) };
    if result == 0 { Ok(length as usize / size_of::<u32>()) } else { Err(io::Error::last_os_error()) }
}

/// The process at the other end of a unix socket when it connected or began to listen (SO_PEERCRED, unix(7)); None when it
/// cannot be named in this process's PID namespace. (rustix's own has a type that cannot say so.)
pub(crate) fn peer_pid(socket: impl AsFd) -> Option<u32> {
    // asm-generic/socket.h, which all architectures that Rust's tier 1 and 2 have on Linux share but three old ones.
    const SO_PEERCRED: c_int = if cfg!(any(target_arch = "mips", target_arch = "mips64")) {
        18
    } else if cfg!(any(target_arch = "sparc", target_arch = "sparc64")) {
        0x40
    } else if cfg!(any(target_arch = "powerpc", target_arch = "powerpc64")) {
        21
    } else {
        17
    };
    // struct ucred: process, user, group.
    let mut credentials = [0; 3];
    let read = socket_numbers(socket, SOL_SOCKET, SO_PEERCRED, &mut credentials).ok()?;
    (read == 3 && credentials[0] != 0).then_some(credentials[0])
}

/// asm-generic/socket.h.
pub(crate) const SOL_SOCKET: c_int =
    if cfg!(any(target_arch = "mips", target_arch = "mips64", target_arch = "sparc", target_arch = "sparc64")) {
        0xffff
    } else {
        1
    };

/// The time of a clock by its number, nanoseconds: of one that rustix has no name for, such as another process's.
/// `None` when there is no such clock, or time is not 64 bits wide here.
pub(crate) fn clock_ns(clock: c_int) -> Option<u64> {
    if cfg!(not(target_pointer_width = "64")) {
        return None;
    }
    let mut time = Timespec { seconds: 0, nanoseconds: 0 };
    // SAFETY: `time` lives for the length of the call and, on a 64-bit machine, is laid out as a timespec; the kernel keeps
    // no pointer to it, and takes any number for the clock.
    let result = unsafe { clock_gettime(clock, &raw mut time) };
    (result == 0).then_some(time.seconds as u64 * 1_000_000_000 + time.nanoseconds as u64)
}

/// A timespec(3type) of a 64-bit machine.
#[repr(C)]
struct Timespec {
    seconds: i64,
    nanoseconds: i64,
}

// SAFETY: these are setsockopt(2) and getsockopt(2), with socklen_t as the u32 that it is, and clock_gettime(2), with clockid_t as an int, as
// every libc on Linux declares them; std links the libc.
unsafe extern "C" {
    fn setsockopt(socket: c_int, level: c_int, name: c_int, value: *const c_void, length: u32) -> c_int;
    fn getsockopt(socket: c_int, level: c_int, name: c_int, value: *mut c_void, length: *mut u32) -> c_int;
    fn clock_gettime(clock: c_int, time: *mut Timespec) -> c_int;
}
