//! Reports this process's state to its service manager (sd_notify(3)): systemd with `Type=notify`, `oroshi start
//! --ready notify`.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The variable with the manager's socket.
pub const NOTIFY_SOCKET: &str = "NOTIFY_SOCKET";

/// The service manager, if there is one.
#[derive(Debug, Default)]
pub struct ServiceManager(Option<(UnixDatagram, SocketAddr)>);

impl ServiceManager {
    /// Finds the manager that [`NOTIFY_SOCKET`] names.
    pub fn find() -> Self {
        let Some(name) = std::env::var_os(NOTIFY_SOCKET).filter(|name| !name.is_empty()) else { return Self(None) };
        let address = match name.as_bytes().strip_prefix(b"@") {
            Some(name) => SocketAddr::from_abstract_name(name),
            None => SocketAddr::from_pathname(&name),
        };
        let socket = UnixDatagram::unbound().and_then(|socket| socket.set_nonblocking(true).map(|()| socket));
        Self(socket.ok().zip(address.ok()))
    }

    /// Sends a message, such as `READY=1`. It is lost if the manager does not listen.
    pub fn tell(&self, message: &str) {
        if let Some((socket, address)) = &self.0 {
            let _ = socket.send_to_addr(message.as_bytes(), address);
        }
    }
}
