//! Listening sockets: bound once, accepted from on every thread.

mod accept;
mod unix_file;

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, getsockname, listen, socket_with, sockopt};
use thiserror::Error;

pub use accept::{AcceptError, Listener};

use crate::address::{Peer, UnixAddress, UnixAddressError, shown};
use unix_file::UnixFile;

/// Options of a listener.
#[derive(Debug, Clone)]
pub struct ListenOptions {
    /// The most connections that wait for accept: 1024. The kernel caps it at net.core.somaxconn.
    pub backlog: u32,
    /// SO_REUSEPORT: every thread binds its own socket and the kernel distributes new TCP connections over them. Any
    /// process of the same user can then join.
    pub reuse_port: bool,
    /// The mode of a unix socket's file, for example 0o600; None leaves it to the umask. Write permission allows
    /// connecting.
    pub unix_mode: Option<u32>,
    /// The user and group of a unix socket's file; None leaves either unchanged. Changing the user requires root.
    pub unix_owner: (Option<u32>, Option<u32>),
    /// TCP_NODELAY on accepted connections, which inherit it from the listener without a system call: on.
    pub nodelay: bool,
    /// IPV6_V6ONLY: an IPv6 socket accepts only IPv6, so `[::]:80` and `0.0.0.0:80` are two sockets: off.
    pub v6_only: bool,
}

impl Default for ListenOptions {
    fn default() -> Self {
        ListenOptions {
            backlog: 1024,
            reuse_port: false,
            unix_mode: None,
            unix_owner: (None, None),
            nodelay: true,
            v6_only: false,
        }
    }
}

/// A listening socket outside any runtime: it can be sent to the thread that accepts from it.
///
/// Dropping the last clone of a unix listener removes the socket's file, but only in the process that bound it, and
/// only if no other server has replaced the file.
#[derive(Debug)]
pub struct BoundListener {
    socket: OwnedFd,
    address: Peer,
    /// Removes the file on drop.
    file: Option<Arc<UnixFile>>,
}

impl BoundListener {
    /// Binds and listens.
    ///
    /// The address is `127.0.0.1:0` (port 0: a free one), `[::]:80` (IPv6 and IPv4), `:8080` or `8080` (every address
    /// of this machine), `localhost:8080` (the name's first address), `unix:/run/app.sock` or `unix:@abstract-name`;
    /// `/run/app.sock` and `@name` are unix sockets too.
    ///
    /// A unix socket's file without a listener is replaced. If two servers start at the same instant on the same
    /// leftover file, both can replace it; the later one then has the path.
    ///
    /// # Errors
    /// [`ListenError`]; it never touches a live unix socket or any other file at the path.
    pub fn bind(address: &str, options: &ListenOptions) -> Result<Self, ListenError> {
        match parse(address)? {
            Wanted::Unix(unix) => Self::bind_unix(unix, options),
            Wanted::Tcp(tcp) => Self::bind_tcp(address, tcp, options),
            Wanted::EveryAddress(port) => {
                // One IPv6 socket also accepts IPv4, unless IPv6 is switched off.
                match Self::bind_tcp(address, (Ipv6Addr::UNSPECIFIED, port).into(), options) {
                    Err(ListenError::NoSuchAddress { .. }) => {
                        Self::bind_tcp(address, (Ipv4Addr::UNSPECIFIED, port).into(), options)
                    }
                    bound => bound,
                }
            }
        }
    }

    /// Makes one listener for each of `count` threads: separate sockets with `reuse_port` on TCP, else clones of one
    /// socket.
    pub fn bind_for_cores(address: &str, options: &ListenOptions, count: usize) -> Result<Vec<Self>, ListenError> {
        let first = Self::bind(address, options)?;
        let mut all = Vec::with_capacity(count);
        for _ in 1..count {
            all.push(match &first.address {
                // Binds to the actual address, which has the port assigned for port 0.
                Peer::Tcp(tcp) if options.reuse_port => Self::bind_tcp(address, *tcp, options)?,
                _ => first.try_clone().map_err(|source| ListenError::Other { address: address.to_owned(), source })?,
            });
        }
        all.insert(0, first);
        Ok(all)
    }

    /// Wraps a listening socket made by another process, which also owns any file of it.
    pub(crate) fn from_listening(socket: OwnedFd, address: Peer) -> Self {
        BoundListener { socket, address, file: None }
    }

    fn bind_tcp(text: &str, address: SocketAddr, options: &ListenOptions) -> Result<Self, ListenError> {
        let fail = |errno| ListenError::from_errno(errno, text);
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let socket = new_socket(family).map_err(fail)?;
        // A restarted server must not wait for the TIME_WAIT of its earlier connections.
        sockopt::set_socket_reuseaddr(&socket, true).map_err(fail)?;
        if address.is_ipv6() {
            sockopt::set_ipv6_v6only(&socket, options.v6_only).map_err(fail)?;
        }
        if options.reuse_port {
            sockopt::set_socket_reuseport(&socket, true).map_err(fail)?;
        }
        if options.nodelay {
            sockopt::set_tcp_nodelay(&socket, true).map_err(fail)?;
        }
        let in_use = |errno| match errno {
            Errno::ADDRINUSE => {
                ListenError::InUse { address: text.to_owned(), pid: crate::process::who_listens(address) }
            }
            errno => fail(errno),
        };
        bind(&socket, &address).map_err(in_use)?;
        listen(&socket, backlog(options)).map_err(in_use)?;
        let bound = getsockname(&socket).map_err(fail)?;
        let address = Peer::from_kernel(bound).unwrap_or(Peer::Tcp(address));
        Ok(BoundListener { socket, address, file: None })
    }

    /// Binds a unix socket and listens, as [`bind`](Self::bind) does for a text.
    ///
    /// # Errors
    /// [`ListenError`]; it never touches a live unix socket or any other file at the path.
    pub fn bind_unix(address: UnixAddress, options: &ListenOptions) -> Result<Self, ListenError> {
        let text = format!("unix:{address}");
        let fail = |errno| ListenError::from_errno(errno, &text);
        let socket = new_socket(AddressFamily::UNIX).map_err(fail)?;
        match bind(&socket, address.kernel()) {
            Err(Errno::ADDRINUSE) => {
                unix_file::remove_stale(&address)?;
                bind(&socket, address.kernel()).map_err(fail)?;
            }
            bound => bound.map_err(fail)?,
        }
        let file = match address.as_path() {
            None => None,
            Some(path) => {
                let file =
                    UnixFile::own(path).map_err(|source| ListenError::Other { address: text.clone(), source })?;
                // Before `listen`, so that no client can connect while the mode is still the umask's.
                let (user, group) = options.unix_owner;
                if user.is_some() || group.is_some() {
                    file.set_owner(user, group).map_err(|source| ListenError::owner(&text, user, group, source))?;
                }
                if let Some(mode) = options.unix_mode {
                    file.set_mode(mode).map_err(|source| ListenError::Other { address: text.clone(), source })?;
                }
                Some(Arc::new(file))
            }
        };
        listen(&socket, backlog(options)).map_err(fail)?;
        Ok(BoundListener { socket, address: Peer::Unix(address), file })
    }

    /// Another handle on the same socket.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(BoundListener { socket: self.socket.try_clone()?, address: self.address.clone(), file: self.file.clone() })
    }

    /// The bound address, with the actual port for port 0.
    pub fn address(&self) -> &Peer {
        &self.address
    }

    /// The bound address as text: `127.0.0.1:8080` (the authority of a URL), `unix:/run/app.sock`.
    pub fn local_address(&self) -> LocalAddress<'_> {
        LocalAddress(&self.address)
    }

    /// Registers the listener in the current runtime.
    ///
    /// # Panics
    /// Outside a tokio runtime with I/O enabled.
    pub fn into_listener(self) -> io::Result<Listener> {
        let BoundListener { socket, address, file } = self;
        Listener::new(socket, address, file)
    }
}

impl AsFd for BoundListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The address of a listener as seen from this machine, as text.
///
/// The authority of a URL for TCP (loopback for an unspecified address), `unix:/run/app.sock` for a unix socket.
#[derive(Debug, Clone, Copy)]
pub struct LocalAddress<'a>(&'a Peer);

impl LocalAddress<'_> {
    /// The address as a URL with the path `/`: `http://127.0.0.1:8080/`, `unix:/run/app.sock`.
    pub fn url(&self) -> String {
        match self.0 {
            Peer::Tcp(_) => format!("http://{self}/"),
            Peer::Unix(_) => self.to_string(),
        }
    }

    /// The address for display: like [`url`](Self::url), but `http://*:8080/` for all addresses of this machine,
    /// `http://0.0.0.0:8080/` for all of IPv4. Not for connecting. `scheme` is `http` or `https`.
    pub fn shown(&self, scheme: &str) -> String {
        match self.0 {
            Peer::Tcp(SocketAddr::V6(address)) if address.ip().is_unspecified() => {
                format!("{scheme}://*:{}/", address.port())
            }
            Peer::Tcp(address) => format!("{scheme}://{address}/"),
            Peer::Unix(_) => self.to_string(),
        }
    }

    /// The address to connect to.
    pub fn peer(&self) -> Peer {
        match self.0 {
            Peer::Tcp(address) if address.ip().is_unspecified() => {
                let ip = if address.is_ipv4() {
                    IpAddr::from(Ipv4Addr::LOCALHOST)
                } else {
                    IpAddr::from(Ipv6Addr::LOCALHOST)
                };
                Peer::Tcp(SocketAddr::new(ip, address.port()))
            }
            other => other.clone(),
        }
    }
}

impl fmt::Display for LocalAddress<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.peer().fmt(f)
    }
}

/// The reason why a listener could not be made.
#[derive(Debug, Error)]
pub enum ListenError {
    /// Write the address in one of the forms in the message.
    #[error(
        "`{address}` is no address to listen on: expected 127.0.0.1:8080, [::]:8080, :8080, unix:/run/app.sock \
         or unix:@name"
    )]
    Address {
        /// The given text.
        address: String,
    },
    /// Correct the socket's name; the cause says what is wrong with it.
    #[error("`{address}` names no unix socket")]
    Unix {
        /// The given text.
        address: String,
        /// The defect of the name.
        source: UnixAddressError,
    },
    /// Check the spelling, or listen on an IP address.
    #[error("could not resolve the host of `{address}`")]
    Resolve {
        /// The given text.
        address: String,
        /// The resolver's error.
        source: io::Error,
    },
    /// Another process listens there: stop it (`ss -ltnp` or `ss -lxp` names it), or choose another address.
    #[error("{} already listens on {address}", process_text(*.pid))]
    InUse {
        /// The address.
        address: String,
        /// The process, if the kernel reports it: the one that made a live unix socket, or a visible one with a TCP
        /// socket of that port.
        pid: Option<u32>,
    },
    /// The process that made the unix socket has ended, but its children still listen on it: end them, or choose
    /// another path.
    #[error(
        "{address} is in use: process {pid}, which made it, has ended, but what it started still listens there \
         (`ss -lxp` names it)"
    )]
    LeftOver {
        /// The address.
        address: String,
        /// The ended process.
        pid: u32,
    },
    /// The file at the path is not a socket: move it away, or choose another path.
    #[error("cannot listen on {address}: {what}")]
    NotASocket {
        /// The address.
        address: String,
        /// A sentence that describes the file.
        what: String,
    },
    /// Ports below 1024 need root or CAP_NET_BIND_SERVICE (or net.ipv4.ip_unprivileged_port_start); a unix socket
    /// needs a folder that this user may write to.
    #[error("not permitted to listen on {address}")]
    Permission {
        /// The address.
        address: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// The owner of the socket's file cannot be changed: that requires root, or a group of this user.
    #[error("cannot make {owner} the owner of {address}")]
    Owner {
        /// The address.
        address: String,
        /// User and group.
        owner: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// The address is not one of this machine's: choose one that `ip address` lists, or `:PORT` for all of them.
    #[error("{address} is not an address of this machine")]
    NoSuchAddress {
        /// The address.
        address: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// The folder of the unix socket does not exist: create it.
    #[error("the folder of {address} does not exist")]
    NoFolder {
        /// The address.
        address: String,
    },
    /// The process or the system has no file descriptor left: raise `ulimit -n`.
    #[error("no file descriptor is left to listen on {address}: raise the limit (ulimit -n)")]
    Descriptors {
        /// The address.
        address: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// Any other error of the kernel.
    #[error("could not listen on {address}")]
    Other {
        /// The address.
        address: String,
        /// The kernel's error.
        source: io::Error,
    },
}

/// Describes the listening process.
fn process_text(pid: Option<u32>) -> String {
    pid.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"))
}

impl ListenError {
    fn owner(address: &str, user: Option<u32>, group: Option<u32>, source: io::Error) -> Self {
        let part = |id: Option<u32>| id.map_or_else(String::new, |id| id.to_string());
        ListenError::Owner { address: address.to_owned(), owner: format!("{}:{}", part(user), part(group)), source }
    }

    fn from_errno(errno: Errno, address: &str) -> Self {
        let (address, source) = (address.to_owned(), io::Error::from(errno));
        match errno {
            Errno::ADDRINUSE => ListenError::InUse { address, pid: None },
            Errno::ACCESS | Errno::PERM | Errno::ROFS => ListenError::Permission { address, source },
            Errno::ADDRNOTAVAIL | Errno::AFNOSUPPORT => ListenError::NoSuchAddress { address, source },
            Errno::NOENT | Errno::NOTDIR => ListenError::NoFolder { address },
            Errno::MFILE | Errno::NFILE => ListenError::Descriptors { address, source },
            _ => ListenError::Other { address, source },
        }
    }
}

/// Parses an address as [`BoundListener::bind`] does, without listening; returns where it would listen.
///
/// Every address of this machine becomes the unspecified one of IPv6. Names are looked up.
///
/// # Errors
/// [`ListenError::Address`], [`ListenError::Unix`] and [`ListenError::Resolve`] for addresses that cannot be listened
/// on; [`ListenError::NoFolder`] if the folder of a unix socket does not exist.
pub fn check(address: &str) -> Result<Peer, ListenError> {
    Ok(match parse(address)? {
        Wanted::Tcp(tcp) => Peer::Tcp(tcp),
        Wanted::EveryAddress(port) => Peer::Tcp((Ipv6Addr::UNSPECIFIED, port).into()),
        Wanted::Unix(unix) => {
            let folder = unix.as_path().and_then(|path| path.parent());
            if folder.is_some_and(|folder| !folder.as_os_str().is_empty() && !folder.is_dir()) {
                return Err(ListenError::NoFolder { address: shown(address.as_bytes()) });
            }
            Peer::Unix(unix)
        }
    })
}

enum Wanted {
    Tcp(SocketAddr),
    EveryAddress(u16),
    Unix(UnixAddress),
}

fn parse(text: &str) -> Result<Wanted, ListenError> {
    let address = || shown(text.as_bytes());
    if text.starts_with(['/', '@']) || text.get(..5).is_some_and(|scheme| scheme.eq_ignore_ascii_case("unix:")) {
        let name = if text.starts_with(['/', '@']) { text } else { &text[5..] };
        // `unix:///run/app.sock` is the URL form of `unix:/run/app.sock`.
        let name = if name.starts_with("///") { &name[2..] } else { name };
        let unix = UnixAddress::parse(name).map_err(|source| ListenError::Unix { address: address(), source })?;
        return Ok(Wanted::Unix(unix));
    }
    if let Ok(tcp) = text.parse() {
        return Ok(Wanted::Tcp(tcp));
    }
    let (host, port) = text.rsplit_once(':').unwrap_or(("", text));
    let bad = || ListenError::Address { address: address() };
    if !port.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(bad());
    }
    let port = port.parse().map_err(|_| bad())?;
    if host.is_empty() {
        return Ok(Wanted::EveryAddress(port));
    }
    if !host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte)) {
        return Err(bad());
    }
    let mut found =
        (host, port).to_socket_addrs().map_err(|source| ListenError::Resolve { address: address(), source })?;
    found.next().map(Wanted::Tcp).ok_or_else(bad)
}

fn new_socket(family: AddressFamily) -> Result<OwnedFd, Errno> {
    socket_with(family, SocketType::STREAM, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC, None)
}

fn backlog(options: &ListenOptions) -> i32 {
    i32::try_from(options.backlog).unwrap_or(i32::MAX)
}
