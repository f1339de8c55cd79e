//! The two system calls that neither std nor the crates beneath offer.
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

// SAFETY: these are setsockopt(2), with socklen_t as the u32 that it is, and clock_gettime(2), with clockid_t as an int, as
// every libc on Linux declares them; std links the libc.
unsafe extern "C" {
    fn setsockopt(socket: c_int, level: c_int, name: c_int, value: *const c_void, length: u32) -> c_int;
    fn clock_gettime(clock: c_int, time: *mut Timespec) -> c_int;
}
