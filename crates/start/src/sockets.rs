//! The sockets: made once, held until the superdaemon ends.

use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use oroshi_net::handover::DescriptorMove;
use oroshi_net::inherit::{InheritError, InheritedSocket};
use oroshi_net::listen::ListenError;
use oroshi_net::{BoundListener, ListenOptions, Peer, UnixAddress};
use rustix::io::{FdFlags, fcntl_setfd, ioctl_fionbio};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, getsockname, socket_with, sockopt};
use rustix::process::{Resource, getrlimit};

use crate::socket_spec::{Kind, SocketSpec, descriptors};

/// Options of the sockets.
#[derive(Clone, Debug)]
pub struct SocketOptions {
    /// The most connections that wait for accept. The kernel caps it at net.core.somaxconn.
    pub backlog: u32,
    /// The mode of unix sockets' files: write permission allows connecting.
    pub path_mode: u32,
    /// The user and group of unix sockets' files; `None` leaves either unchanged.
    pub path_owner: (Option<u32>, Option<u32>),
}

impl Default for SocketOptions {
    /// As in `start_server`: SOMAXCONN, and a socket open to all users.
    fn default() -> Self {
        Self { backlog: 4096, path_mode: 0o777, path_owner: (None, None) }
    }
}

/// A socket with its name and its descriptor in the command.
#[derive(Debug)]
pub(crate) struct Socket {
    pub(crate) spec: SocketSpec,
    pub(crate) descriptor: RawFd,
    held: Held,
    /// systemd's name for it, for LISTEN_FDNAMES; `None` for our own sockets.
    label: Option<String>,
}

#[derive(Debug)]
enum Held {
    /// Dropping it removes a unix socket's file.
    Listener(BoundListener),
    Udp(OwnedFd, SocketAddr),
}

/// A resolved listening address.
enum Resolved<'a> {
    Tcp(SocketAddr),
    Unix(&'a UnixAddress),
}

/// The reason why a socket could not be made.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// See the cause.
    #[error("cannot listen on {name}")]
    Listen {
        /// The name of the socket.
        name: String,
        /// The cause.
        source: ListenError,
    },
    /// Check the spelling, or give an IP address.
    #[error("the host of {name} has no address")]
    Resolve {
        /// The name of the socket.
        name: String,
        /// The resolver's error.
        source: io::Error,
    },
    /// Another process has the port, or this user lacks permission.
    #[error("cannot bind the UDP port {name}")]
    Udp {
        /// The name of the socket.
        name: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// Request for a lower number, or raise the limit (`ulimit -n`).
    #[error("{name} cannot be descriptor {descriptor}: this process may have numbers below {limit} (ulimit -n)")]
    Descriptor {
        /// The name of the socket.
        name: String,
        /// The configured number.
        descriptor: RawFd,
        /// The first number beyond the limit.
        limit: u64,
    },
    /// systemd passed on something other than a listening stream socket, or its variables are invalid: correct the
    /// unit.
    #[error("cannot take over the sockets of systemd")]
    Inherited(#[source] InheritError),
    /// An unexpected error of the kernel.
    #[error("cannot prepare the socket of {name}")]
    Prepare {
        /// The name of the socket.
        name: String,
        /// The kernel's error.
        source: io::Error,
    },
}

/// Makes all sockets: systemd's first, so that they keep their numbers; then ours, ports first, as in `start_server`.
pub(crate) fn hold_all(
    inherited: Vec<InheritedSocket>,
    specs: &[SocketSpec],
    listening: &SocketOptions,
) -> Result<Vec<Socket>, SocketError> {
    let named = inherited.iter().filter_map(|socket| spec_of(socket.listener.address()));
    let all: Vec<SocketSpec> = named.chain(specs.iter().cloned()).collect();
    let (of_systemd, ours) = all.split_at(inherited.len());
    check_numbers(&all)?;
    let mut numbers = descriptors(&all).into_iter();
    let mut sockets = Vec::with_capacity(all.len());
    for ((socket, spec), number) in inherited.into_iter().zip(of_systemd).zip(numbers.by_ref().take(of_systemd.len())) {
        let InheritedSocket { name, listener, .. } = socket;
        make_blocking(&listener, &spec.name)?;
        let held = Held::Listener(listener);
        sockets.push(Socket { spec: spec.clone(), descriptor: number, held, label: Some(name) });
    }
    for (spec, number) in ours.iter().zip(numbers) {
        sockets.push(Socket::bind(spec.clone(), number, listening)?);
    }
    Ok(sockets)
}

/// Describes an inherited socket, named by its address as in Server::Starter.
fn spec_of(address: &Peer) -> Option<SocketSpec> {
    match address {
        Peer::Tcp(address) => SocketSpec::port(&address.to_string()).ok(),
        Peer::Unix(address) => SocketSpec::path(address.to_string().trim_start_matches("unix:")).ok(),
    }
}

/// Makes accept(2) block, as many programs expect. Other programs change it for themselves and, because it belongs to
/// the socket, for all; so this happens once and not per generation.
fn make_blocking(listener: &BoundListener, name: &str) -> Result<(), SocketError> {
    ioctl_fionbio(listener, false).map_err(|errno| SocketError::Prepare { name: name.to_owned(), source: errno.into() })
}

/// Checks that each socket can have its number.
fn check_numbers(specs: &[SocketSpec]) -> Result<(), SocketError> {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    for (spec, descriptor) in specs.iter().zip(descriptors(specs)) {
        if u64::try_from(descriptor).is_ok_and(|descriptor| descriptor >= limit) {
            return Err(SocketError::Descriptor { name: spec.name.clone(), descriptor, limit });
        }
    }
    Ok(())
}

impl Socket {
    fn bind(spec: SocketSpec, descriptor: RawFd, listening: &SocketOptions) -> Result<Self, SocketError> {
        let name = || spec.name.clone();
        let resolve = |host: &crate::socket_spec::Host, port| {
            host.resolve(port).map_err(|source| SocketError::Resolve { name: name(), source })
        };
        let listen = |to: Resolved<'_>| -> Result<Held, SocketError> {
            let options = ListenOptions {
                backlog: listening.backlog,
                unix_mode: Some(listening.path_mode),
                unix_owner: listening.path_owner,
                // The command sets the options of accepted connections.
                nodelay: false,
                v6_only: true,
                ..ListenOptions::default()
            };
            let bound = match to {
                Resolved::Tcp(address) => BoundListener::bind(&address.to_string(), &options),
                Resolved::Unix(address) => BoundListener::bind_unix(address.clone(), &options),
            };
            let bound = bound.map_err(|source| SocketError::Listen { name: name(), source })?;
            make_blocking(&bound, &spec.name)?;
            Ok(Held::Listener(bound))
        };
        let held = match &spec.kind {
            Kind::Tcp(host, port) => listen(Resolved::Tcp(resolve(host, *port)?))?,
            Kind::Unix(address) => listen(Resolved::Unix(address))?,
            Kind::Udp(host, port) => {
                let address = resolve(host, *port)?;
                let (socket, address) =
                    udp(address).map_err(|errno| SocketError::Udp { name: name(), source: errno.into() })?;
                Held::Udp(socket, address)
            }
        };
        Ok(Socket { spec, descriptor, held, label: None })
    }

    /// The listening address, with the actual port for port 0: `127.0.0.1:8080`, `unix:/run/app.sock`, `udp
    /// 0.0.0.0:53`.
    pub(crate) fn address(&self) -> String {
        match &self.held {
            Held::Listener(bound) => bound.address().to_string(),
            Held::Udp(_, address) => format!("udp {address}"),
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.held {
            Held::Listener(bound) => bound.as_fd(),
            Held::Udp(socket, _) => socket.as_fd(),
        }
    }
}

fn udp(address: SocketAddr) -> rustix::io::Result<(OwnedFd, SocketAddr)> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    bind(&socket, &address)?;
    let bound = getsockname(&socket)?;
    Ok((socket, SocketAddr::try_from(bound).unwrap_or(address)))
}

/// Sockets that survive an exec; dropping this makes them close-on-exec again. Nothing else may be started meanwhile.
pub(crate) struct Inheritable<'a>(&'a [Socket]);

impl<'a> Inheritable<'a> {
    pub(crate) fn new(sockets: &'a [Socket]) -> io::Result<Self> {
        let opened = Inheritable(sockets);
        for socket in sockets {
            fcntl_setfd(socket, FdFlags::empty())?;
        }
        Ok(opened)
    }
}

impl Drop for Inheritable<'_> {
    fn drop(&mut self) {
        for socket in self.0 {
            // The opposite change succeeded before.
            let _ = fcntl_setfd(socket, FdFlags::CLOEXEC);
        }
    }
}

/// Returns the present and future number of each socket.
pub(crate) fn moves(sockets: &[Socket]) -> Vec<DescriptorMove> {
    sockets.iter().map(|socket| DescriptorMove { from: socket.as_fd().as_raw_fd(), to: socket.descriptor }).collect()
}

/// Returns the variables that name a command's sockets: Server::Starter's, and systemd's if the descriptors are
/// contiguous from 3, as its protocol requires. `None`: to be removed.
pub(crate) fn variables(sockets: &[Socket]) -> Vec<(&'static str, Option<OsString>)> {
    let named = sockets.iter().map(|socket| format!("{}={}", socket.spec.name, socket.descriptor));
    let mut in_order: Vec<&Socket> = sockets.iter().collect();
    in_order.sort_by_key(|socket| socket.descriptor);
    let contiguous = in_order.iter().zip(3..).all(|(socket, number)| socket.descriptor == number);
    let systemd = !sockets.is_empty() && contiguous;
    let name = |socket: &&Socket| descriptor_name(socket.label.as_ref().unwrap_or(&socket.spec.name));
    let names: Vec<String> = in_order.iter().map(name).collect();
    vec![
        ("SERVER_STARTER_PORT", Some(named.collect::<Vec<_>>().join(";").into())),
        ("LISTEN_FDS", systemd.then(|| sockets.len().to_string().into())),
        ("LISTEN_FDNAMES", systemd.then(|| names.join(":").into())),
        // The process sets this itself when it knows its number.
        ("LISTEN_PID", None),
    ]
}

/// Makes a name valid for sd_listen_fds_with_names(3): up to 255 ASCII characters, without controls and colons.
fn descriptor_name(name: &str) -> String {
    let allowed = |c: char| if c.is_ascii_graphic() && c != ':' { c } else { '_' };
    name.chars().take(255).map(allowed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sockets(ports: &[&str]) -> Vec<Socket> {
        let specs: Vec<SocketSpec> = ports.iter().map(|port| SocketSpec::port(port).unwrap()).collect();
        hold_all(Vec::new(), &specs, &SocketOptions::default()).unwrap()
    }

    fn value<'v>(variables: &'v [(&'static str, Option<OsString>)], name: &str) -> Option<&'v str> {
        variables.iter().find(|(known, _)| *known == name).and_then(|(_, value)| value.as_ref()?.to_str())
    }

    #[test]
    fn a_command_is_told_in_both_ways() {
        let all = variables(&sockets(&["127.0.0.1:0", "0=3", "u0"]));
        assert_eq!(value(&all, "SERVER_STARTER_PORT"), Some("127.0.0.1:0=4;0=3;0=5"));
        assert_eq!(value(&all, "LISTEN_FDS"), Some("3"));
        assert_eq!(value(&all, "LISTEN_FDNAMES"), Some("0:127.0.0.1_0:0"));
    }

    #[test]
    fn systemds_way_is_left_out_where_descriptors_are_not_as_it_wants_them() {
        for ports in [&["127.0.0.1:0=9"][..], &["127.0.0.1:0", "127.0.0.1:0=5"], &["127.0.0.1:0=0"], &[]] {
            let all = variables(&sockets(ports));
            assert_eq!(value(&all, "LISTEN_FDS"), None, "{ports:?}");
        }
        assert_eq!(value(&variables(&[]), "SERVER_STARTER_PORT"), Some(""));
    }

    #[test]
    fn sockets_wait_in_accept_and_are_closed_on_exec_but_while_opened() {
        use rustix::fs::{OFlags, fcntl_getfl};
        use rustix::io::fcntl_getfd;
        let sockets = sockets(&["127.0.0.1:0", "u0"]);
        let closed = |sockets: &[Socket]| {
            let flags = |socket: &Socket| fcntl_getfd(socket).unwrap().contains(FdFlags::CLOEXEC);
            sockets.iter().map(flags).collect::<Vec<_>>()
        };
        assert!(!fcntl_getfl(&sockets[0]).unwrap().contains(OFlags::NONBLOCK));
        assert_eq!(closed(&sockets), [true, true]);
        let opened = Inheritable::new(&sockets).unwrap();
        assert_eq!(closed(&sockets), [false, false]);
        drop(opened);
        assert_eq!(closed(&sockets), [true, true]);
    }

    #[test]
    fn unix_sockets_have_the_mode_that_is_asked_for() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.sock");
        let specs = [SocketSpec::path(path.to_str().unwrap()).unwrap()];
        for mode in [0o777, 0o600] {
            let listening = SocketOptions { path_mode: mode, ..SocketOptions::default() };
            let sockets = hold_all(Vec::new(), &specs, &listening).unwrap();
            assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, mode);
            let error = hold_all(Vec::new(), &specs, &listening).unwrap_err();
            let SocketError::Listen { source, .. } = &error else { panic!("{error}") };
            assert!(source.to_string().contains(&std::process::id().to_string()), "{source}");
            drop(sockets);
            assert!(!path.exists());
        }
    }
}
