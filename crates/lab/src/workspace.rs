//! The workspace of a server: its own folder, free ports, and socket paths.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use oroshi_net::LocalPorts;

use crate::template::{Values, is_place};

/// Prefix of all such folders. No other folder is ever removed.
pub const PREFIX: &str = "oroshi-";
/// The longest path of a unix socket, in bytes (unix(7): 108 with the zero at its end).
const LONGEST_SOCKET: usize = 107;
/// Bytes reserved below the temporary folder for our folder's name and a socket's.
const ROOM: usize = 60;
/// Lower ports belong to well-known services.
const LOWEST: u16 = 10_000;
/// With fewer ports than this outside the kernel's range for connections, ports inside it are used too.
const FEW: usize = 256;

/// The workspace for one start of one server. The keeper makes the folder, not this value, so that the keeper may
/// remove it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workspace {
    folder: PathBuf,
}

impl Workspace {
    /// Chooses a folder that does not exist, with a path short enough for sockets in it.
    #[must_use]
    pub fn choose() -> Self {
        Self::below(&std::env::temp_dir())
    }

    fn below(base: &Path) -> Self {
        let fits = base.is_absolute() && base.to_str().is_some_and(|text| text.len() + ROOM <= LONGEST_SOCKET);
        let base = if fits { base } else { Path::new("/tmp") };
        let end: String = std::iter::repeat_with(fastrand::alphanumeric).take(8).collect();
        Self { folder: base.join(format!("{PREFIX}{}-{end}", std::process::id())) }
    }

    /// The folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Sets `dir`, and each port and socket among the names.
    ///
    /// # Errors
    /// When no port is free, or a socket's path is too long.
    pub fn provide<'n>(
        &self,
        names: impl IntoIterator<Item = &'n str>,
        values: &mut Values,
    ) -> Result<(), WorkspaceError> {
        let folder = self.folder.to_string_lossy();
        values.set("dir", &*folder);
        for name in names.into_iter().filter(|name| is_place(name)) {
            if values.get(name).is_some() {
                continue;
            }
            let text = match name.strip_prefix("socket") {
                None => free_port()?.to_string(),
                Some(rest) => {
                    let file = rest.strip_prefix('.').unwrap_or("socket");
                    let path = format!("{folder}/{file}.sock");
                    if path.len() > LONGEST_SOCKET {
                        return Err(WorkspaceError::Socket { name: name.to_owned(), path });
                    }
                    path
                }
            };
            values.set(name, text);
        }
        Ok(())
    }
}

/// Why a server has no workspace.
#[derive(Debug, thiserror::Error)]
pub enum WorkspaceError {
    /// All ports are taken, or binding is forbidden: see the cause.
    #[error("no TCP port is free for a server: {tried} were tried")]
    Ports {
        /// Number of ports tried.
        tried: usize,
        /// The kernel's error for the last one.
        source: Option<io::Error>,
    },
    /// Give the socket a shorter name, or set TMPDIR to a shorter path.
    #[error(
        "`{{{{{name}}}}}`: the path {path} is longer than the {LONGEST_SOCKET} bytes that a unix socket's may have"
    )]
    Socket {
        /// The name in the template.
        name: String,
        /// The path that it would have.
        path: String,
    },
}

/// Returns a TCP port that is free on all addresses. It lies outside the kernel's range for local ports of connections
/// if any such port is free. This process hands no port out again before all others.
///
/// # Errors
/// When none is free.
pub fn free_port() -> Result<u16, WorkspaceError> {
    let ports = candidates(&LocalPorts::read_or_default());
    // Each process starts at its own position, because several may search at the same time.
    static NEXT: Mutex<Option<usize>> = Mutex::new(None);
    let mut next = NEXT.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let mut at = next.unwrap_or_else(|| fastrand::usize(..ports.len().max(1)));
    let mut source = None;
    for _ in 0..ports.len() {
        at = (at + 1) % ports.len();
        match is_free(ports[at]) {
            Ok(()) => {
                *next = Some(at);
                return Ok(ports[at]);
            }
            Err(error) => source = Some(error),
        }
    }
    Err(WorkspaceError::Ports { tried: ports.len(), source })
}

/// Returns the candidate ports: outside the kernel's range for connections, if there are enough.
fn candidates(local: &LocalPorts) -> Vec<u16> {
    let from = |lowest: u16| (lowest..=u16::MAX).filter(|port| !local.range.contains(port)).collect::<Vec<u16>>();
    let few = |ports: &Vec<u16>| ports.len() < FEW;
    let mut ports = from(LOWEST);
    if few(&ports) {
        ports = from(1024);
    }
    if few(&ports) {
        ports = (LOWEST..=u16::MAX).collect();
    }
    ports
}

fn is_free(port: u16) -> io::Result<()> {
    TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))?;
    match TcpListener::bind(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port))) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => Err(error),
        // A machine without IPv6.
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::time::Duration;

    use oroshi_net::ports::TimeWaitReuse;

    use super::*;

    fn local(range: std::ops::RangeInclusive<u16>) -> LocalPorts {
        LocalPorts { range, reserved: 0, reuse: TimeWaitReuse::Loopback, fin_timeout: Duration::from_secs(60) }
    }

    #[test]
    fn ports_are_distinct_and_can_be_bound() {
        let ports: Vec<u16> = (0..50).map(|_| free_port().unwrap()).collect();
        assert_eq!(ports.iter().collect::<HashSet<_>>().len(), 50, "{ports:?}");
        let listeners: Vec<_> =
            ports.iter().map(|&port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap()).collect();
        assert!(listeners.iter().all(|listener| is_free(listener.local_addr().unwrap().port()).is_err()));
    }

    #[test]
    fn ports_are_not_those_that_connections_are_given() {
        let usual = candidates(&local(32768..=60999));
        assert!(usual.contains(&32767) && usual.contains(&61000) && usual.len() > 20_000);
        assert!(!usual.iter().any(|port| (32768..=60999).contains(port) || *port < LOWEST));
        // If nearly all ports are given away, lower ones serve, and finally any.
        assert!(candidates(&local(9000..=65535)).iter().all(|port| (1024..9000).contains(port)));
        assert_eq!(candidates(&local(1024..=65535)).len(), usize::from(u16::MAX - LOWEST) + 1);
    }

    #[test]
    fn each_name_has_one_value_and_each_place_its_own() {
        let (one, other) = (Workspace::choose(), Workspace::choose());
        assert_ne!(one, other);
        assert!(!one.folder().exists());
        let mut values = Values::default();
        values.set("port.kept", "1");
        let names = ["port", "socket", "oroshi", "port.admin", "socket.x", "port", "portal", "port.kept"];
        one.provide(names, &mut values).unwrap();
        let dir = values.get("dir").unwrap();
        assert_eq!(values.get("socket").unwrap(), format!("{dir}/socket.sock"));
        assert_eq!(values.get("socket.x").unwrap(), format!("{dir}/x.sock"));
        assert!(values.get("port").unwrap().parse::<u16>().is_ok());
        assert_ne!(values.get("port"), values.get("port.admin"));
        assert_eq!(values.get("port.kept"), Some("1"));
        assert_eq!((values.get("portal"), values.get("oroshi")), (None, None));
    }

    #[test]
    fn a_path_too_long_for_sockets_is_not_taken() {
        let deep = PathBuf::from("/").join("x".repeat(60));
        assert!(Workspace::below(&deep).folder().starts_with("/tmp"));
        assert!(Workspace::below(Path::new("relative")).folder().starts_with("/tmp"));
        let place = Workspace::below(Path::new("/var/tmp"));
        assert!(place.folder().starts_with("/var/tmp"));
        let name = format!("socket.{}", "n".repeat(100));
        let error = place.provide([name.as_str()], &mut Values::default()).unwrap_err().to_string();
        assert!(error.contains(&name) && error.contains("107 bytes"), "{error}");
    }
}
