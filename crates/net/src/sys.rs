//! The one system call that neither std nor the socket crates offer.
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

// SAFETY: this is setsockopt(2) as every libc on Linux declares it, with socklen_t as the u32 that it is; std links
// the libc.
unsafe extern "C" {
    fn setsockopt(socket: c_int, level: c_int, name: c_int, value: *const c_void, length: u32) -> c_int;
}
