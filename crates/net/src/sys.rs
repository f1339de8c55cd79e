//! System calls that std and our dependencies lack.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Makes `bind` to port 0 choose only the source address (IP_BIND_ADDRESS_NO_PORT, ip(7), Linux 4.2).
///
/// `connect` then chooses the port, when the destination is known, so one port can serve many destinations.
pub(crate) fn set_bind_address_no_port(socket: impl AsFd) -> io::Result<()> {
    // linux/in.h; the same numbers on every architecture.
    const IPPROTO_IP: c_int = 0;
    const IP_BIND_ADDRESS_NO_PORT: c_int = 24;
    let on: c_int = 1;
    // SAFETY: the borrowed descriptor is open during the call; the kernel reads `size_of_val(&on)` bytes from a live
    // `c_int` and keeps no pointer to it.
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

/// Reads a socket option that is an array of 32-bit numbers: as many as the kernel has and `numbers` can hold.
pub(crate) fn socket_numbers(socket: impl AsFd, level: c_int, name: c_int, numbers: &mut [u32]) -> io::Result<usize> {
    let mut length = u32::try_from(size_of_val(numbers)).unwrap_or(u32::MAX);
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: the borrowed descriptor is open during the call; the kernel writes at most `length` bytes to borrowed
    // memory, in which any bytes are numbers, and keeps no pointer to it.
    let result = unsafe { getsockopt(fd, level, name, numbers.as_mut_ptr().cast::<c_void>(), &raw mut length) };
    if result == 0 { Ok(length as usize / size_of::<u32>()) } else { Err(io::Error::last_os_error()) }
}

/// Returns the process at the other end of a unix socket when it connected or began to listen (SO_PEERCRED, unix(7)).
/// None if it is not in this PID namespace. (The type in rustix cannot express that.)
pub(crate) fn peer_pid(socket: impl AsFd) -> Option<u32> {
    // asm-generic/socket.h, used by all of Rust's tier 1 and 2 architectures on Linux but three old ones.
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

/// Returns the time of a clock by its number, nanoseconds: for clocks without a name in rustix, such as another
/// process's. `None` without such a clock, or where time is not 64 bits wide.
pub(crate) fn clock_ns(clock: c_int) -> Option<u64> {
    if cfg!(not(target_pointer_width = "64")) {
        return None;
    }
    let mut time = Timespec { seconds: 0, nanoseconds: 0 };
    // SAFETY: `time` lives during the call and, on a 64-bit machine, has the layout of a timespec; the kernel keeps
    // no pointer to it, and accepts any clock number.
    let result = unsafe { clock_gettime(clock, &raw mut time) };
    (result == 0).then_some(time.seconds as u64 * 1_000_000_000 + time.nanoseconds as u64)
}

/// Has this process call a function when it ends by `exit`, whoever calls that (atexit(3)). False: there was no memory.
pub(crate) fn at_exit(call: extern "C" fn()) -> bool {
    // SAFETY: the function lives as long as the program, takes nothing, and a panic in it aborts.
    unsafe { atexit(call) == 0 }
}

/// A timespec(3type) of a 64-bit machine.
#[repr(C)]
struct Timespec {
    seconds: i64,
    nanoseconds: i64,
}

// SAFETY: these are setsockopt(2) and getsockopt(2), with socklen_t as u32, clock_gettime(2), with clockid_t as an int,
// and atexit(3), as every libc on Linux declares them; std links the libc.
unsafe extern "C" {
    fn setsockopt(socket: c_int, level: c_int, name: c_int, value: *const c_void, length: u32) -> c_int;
    fn getsockopt(socket: c_int, level: c_int, name: c_int, value: *mut c_void, length: *mut u32) -> c_int;
    fn clock_gettime(clock: c_int, time: *mut Timespec) -> c_int;
    fn atexit(call: extern "C" fn()) -> c_int;
}
