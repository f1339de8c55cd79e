//! Takes over listening sockets that a supervisor opened and passed on through exec.
//!
//! Server::Starter (and `oroshi start`) names them in SERVER_STARTER_PORT, systemd in LISTEN_FDS, LISTEN_PID and
//! LISTEN_FDNAMES (sd_listen_fds(3)). The variables stay set: removing one is not safe while other threads may read
//! the environment. Children of this process then see SERVER_STARTER_PORT, but not the sockets, which are closed on
//! exec; remove the variable from a child's environment (`Command::env_remove`).
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::env;
use std::io;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::{Errno, FdFlags, fcntl_getfd, fcntl_setfd, ioctl_fionbio};
use rustix::net::{SocketType, getsockname, sockopt};
use thiserror::Error;

use crate::address::{Peer, shown};
use crate::listen::BoundListener;

/// A listening socket from the process's parent.
#[derive(Debug)]
pub struct InheritedSocket {
    /// The supervisor's name for it: the address as the user wrote it (`127.0.0.1:80`, `8080`, `/run/app.sock`), or
    /// systemd's FileDescriptorName, `unknown` without one.
    pub name: String,
    /// The variable that named it: SERVER_STARTER_PORT or LISTEN_FDS.
    pub variable: &'static str,
    /// The socket, now non-blocking and closed on exec. Dropping it leaves a unix socket's file alone.
    pub listener: BoundListener,
}

impl InheritedSocket {
    /// Whether this is the socket for an address from a configuration. `:80` equals `80`, and `unix:/run/x` equals
    /// `/run/x`, because supervisors omit these parts.
    #[must_use]
    pub fn is_at(&self, address: &str) -> bool {
        is_same(address, &self.name)
    }
}

fn is_same(address: &str, name: &str) -> bool {
    let plain = |text: &str| {
        let text = text.strip_prefix("unix:").unwrap_or(text);
        text.strip_prefix(':').unwrap_or(text).to_owned()
    };
    plain(address) == plain(name)
}

/// Returns the inherited sockets, in the supervisor's order, each once.
///
/// Empty when there are none, or when LISTEN_PID assigns systemd's to another process. A process can take them once.
/// Call it before anything else opens descriptors.
///
/// # Errors
/// [`InheritError`] names the variable and its defect. Then no socket was taken, and a server should not start.
pub fn inherited() -> Result<Vec<InheritedSocket>, InheritError> {
    take_all(named(variable, std::process::id())?)
}

/// Like [`inherited`], but only systemd's sockets. For a supervisor: SERVER_STARTER_PORT has no process number, so it
/// may be a leftover of the supervisor above.
///
/// # Errors
/// As [`inherited`].
pub fn inherited_from_systemd() -> Result<Vec<InheritedSocket>, InheritError> {
    take_all(named(without_server_starter(variable), std::process::id())?)
}

/// Whether systemd's variables name at least one socket for this process. Does not take it.
#[must_use]
pub fn has_sockets_from_systemd() -> bool {
    named(without_server_starter(variable), std::process::id()).is_ok_and(|named| !named.is_empty())
}

/// Reads an environment variable. A path outside UTF-8 may look odd in `name`; the socket itself has its true
/// address.
fn variable(name: &str) -> Option<String> {
    env::var_os(name).map(|value| value.to_string_lossy().into_owned())
}

/// Hides Server::Starter's variables.
fn without_server_starter(variable: impl Fn(&str) -> Option<String>) -> impl Fn(&str) -> Option<String> {
    move |name| variable(name).filter(|_| name != SERVER_STARTER)
}

fn take_all(named: Vec<Named>) -> Result<Vec<InheritedSocket>, InheritError> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    for named in &named {
        check(named)?;
    }
    if !named.is_empty() && TAKEN.swap(true, Ordering::Relaxed) {
        return Err(InheritError::TakenBefore);
    }
    named.into_iter().map(take).collect()
}

/// The reason why the inherited sockets are unusable.
#[derive(Debug, Error)]
pub enum InheritError {
    /// The variable does not have the supervisor's format: check whether something else sets it.
    #[error("{variable}=`{value}` is not understood: expected {expected}")]
    Format {
        /// The variable's name.
        variable: &'static str,
        /// Its value.
        value: String,
        /// The expected format.
        expected: &'static str,
    },
    /// The descriptor is not a listening stream socket from the parent. Start this process directly from the
    /// supervisor; unset the variable if it is a leftover.
    #[error("{variable} names descriptor {descriptor} ({name}), which {what}")]
    Descriptor {
        /// The variable's name.
        variable: &'static str,
        /// The descriptor.
        descriptor: RawFd,
        /// The supervisor's name for it.
        name: String,
        /// The defect.
        what: &'static str,
    },
    /// Two names for one descriptor: correct the supervisor's configuration.
    #[error("{variable} names descriptor {descriptor}, which is named before")]
    Twice {
        /// The variable's name.
        variable: &'static str,
        /// The descriptor.
        descriptor: RawFd,
    },
    /// A defect in this program: call [`inherited`] once and pass the sockets on.
    #[error("the inherited sockets were taken before")]
    TakenBefore,
    /// The kernel refused to make the socket non-blocking or closed on exec.
    #[error("descriptor {descriptor} could not be prepared")]
    Prepare {
        /// The descriptor.
        descriptor: RawFd,
        /// The kernel's error.
        source: io::Error,
    },
}

const SERVER_STARTER: &str = "SERVER_STARTER_PORT";
const SYSTEMD: &str = "LISTEN_FDS";

/// A descriptor that a variable names.
#[derive(Debug, PartialEq, Eq)]
struct Named {
    variable: &'static str,
    name: String,
    descriptor: RawFd,
}

/// Returns the descriptors that the environment names, Server::Starter's first.
fn named(variable: impl Fn(&str) -> Option<String>, process: u32) -> Result<Vec<Named>, InheritError> {
    let mut all = Vec::new();
    if let Some(value) = variable(SERVER_STARTER) {
        server_starter(&value, &mut all)?;
    }
    // sd_listen_fds(3): a process ignores both variables unless LISTEN_PID is its own.
    let meant = variable("LISTEN_PID").is_some_and(|pid| pid.parse() == Ok(process));
    if let Some(value) = variable(SYSTEMD).filter(|_| meant) {
        systemd(&value, &variable("LISTEN_FDNAMES").unwrap_or_default(), &mut all)?;
    }
    let mut seen = HashMap::new();
    let mut twice = None;
    all.retain(|Named { variable, descriptor, .. }| match seen.insert(*descriptor, *variable) {
        None => true,
        // `oroshi start` sets both variables for the same sockets: the address is the better name.
        Some(first) if first != *variable => false,
        Some(_) => {
            twice = Some(InheritError::Twice { variable, descriptor: *descriptor });
            true
        }
    });
    twice.map_or(Ok(all), Err)
}

/// Parses `127.0.0.1:80=3;/path/with=sign=4`.
fn server_starter(value: &str, all: &mut Vec<Named>) -> Result<(), InheritError> {
    for part in value.split(';').filter(|part| !part.is_empty()) {
        let named = part.rsplit_once('=').and_then(|(name, descriptor)| {
            let descriptor = descriptor.parse().ok().filter(|&descriptor: &RawFd| descriptor >= 0)?;
            Some(Named { variable: SERVER_STARTER, name: name.to_owned(), descriptor })
        });
        all.push(named.ok_or_else(|| InheritError::Format {
            variable: SERVER_STARTER,
            value: shown(value.as_bytes()),
            expected: "addresses and descriptors such as 127.0.0.1:80=3;/run/app.sock=4",
        })?);
    }
    Ok(())
}

/// Parses a count of descriptors from 3 on, and their colon-separated names.
fn systemd(value: &str, names: &str, all: &mut Vec<Named>) -> Result<(), InheritError> {
    const FIRST: RawFd = 3;
    let mut names = names.split(':');
    let bad = || InheritError::Format {
        variable: SYSTEMD,
        value: shown(value.as_bytes()),
        expected: "how many descriptors there are from 3 on",
    };
    let count: u16 = value.parse().map_err(|_| bad())?;
    for descriptor in FIRST..FIRST + RawFd::from(count) {
        let name = names.next().filter(|name| !name.is_empty()).unwrap_or("unknown").to_owned();
        all.push(Named { variable: SYSTEMD, name, descriptor });
    }
    Ok(())
}

/// Checks that the descriptor is an inherited listening stream socket.
fn check(named: &Named) -> Result<(), InheritError> {
    let Named { variable, name, descriptor } = named;
    let bad = |what| InheritError::Descriptor { variable, descriptor: *descriptor, name: name.clone(), what };
    if *descriptor < 3 {
        return Err(bad("is standard input, output or error"));
    }
    if !may_be_open(*descriptor) {
        return Err(bad("is not open: it was not inherited"));
    }
    // SAFETY: it is open, and nothing in this process owns it, so nothing closes it before the borrow ends with this
    // function: this runs before anything else opens descriptors. Without /proc to check that it is open, the first
    // action is a call to the kernel, which returns EBADF if it is not; then nothing else happens.
    let borrowed = unsafe { BorrowedFd::borrow_raw(*descriptor) };
    let flags = fcntl_getfd(borrowed).map_err(|_| bad("is not open: it was not inherited"))?;
    // An inherited descriptor cannot have this flag; descriptors that this process opened have it.
    if flags.contains(FdFlags::CLOEXEC) {
        return Err(bad("was opened by this process itself: it was not inherited"));
    }
    match sockopt::socket_acceptconn(borrowed) {
        Ok(true) => {}
        Ok(false) => return Err(bad("is a socket that does not listen")),
        Err(Errno::NOTSOCK) => return Err(bad("is not a socket")),
        Err(_) => return Err(bad("cannot be asked whether it listens")),
    }
    match sockopt::socket_type(borrowed) {
        Ok(SocketType::STREAM) => {}
        _ => return Err(bad("is not a stream socket")),
    }
    match getsockname(borrowed).ok().and_then(Peer::from_kernel) {
        Some(_) => Ok(()),
        None => Err(bad("is neither a TCP socket nor a unix socket with a name")),
    }
}

/// Whether this descriptor is open, checked without making a handle of it; true without /proc.
fn may_be_open(descriptor: RawFd) -> bool {
    let open = Path::new("/proc/self/fd");
    open.join(descriptor.to_string()).symlink_metadata().is_ok() || !open.exists()
}

/// Takes ownership of the descriptor, which [`check`] has accepted.
fn take(named: Named) -> Result<InheritedSocket, InheritError> {
    let Named { variable, name, descriptor } = named;
    // SAFETY: it is open and inherited through exec, so nothing in this process owns it except another reader of the
    // same variable. This function runs once for each descriptor: `inherited` succeeds once, and refuses duplicates.
    let socket = unsafe { OwnedFd::from_raw_fd(descriptor) };
    let prepare = || -> rustix::io::Result<Option<Peer>> {
        fcntl_setfd(&socket, FdFlags::CLOEXEC)?;
        ioctl_fionbio(&socket, true)?;
        Ok(Peer::from_kernel(getsockname(&socket)?))
    };
    let address = prepare().map_err(|errno| InheritError::Prepare { descriptor, source: errno.into() })?;
    match address {
        Some(address) => {
            Ok(InheritedSocket { name, variable, listener: BoundListener::from_listening(socket, address) })
        }
        None => Err(InheritError::Descriptor { variable, descriptor, name, what: "has lost its address" }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn supervisors_leave_out_what_is_plain() {
        for (address, name) in
            [(":9180", "9180"), ("9180", "9180"), ("127.0.0.1:1", "127.0.0.1:1"), ("unix:/a", "/a"), ("/a", "/a")]
        {
            assert!(is_same(address, name), "{address} {name}");
        }
        assert!(!is_same(":9180", "127.0.0.1:9180") && !is_same("/a", "/b"));
    }

    fn read(variables: &[(&str, &str)]) -> Result<Vec<(&'static str, String, RawFd)>, InheritError> {
        let value = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        Ok(named(value, 7)?.into_iter().map(|named| (named.variable, named.name, named.descriptor)).collect())
    }

    #[test]
    fn server_starter_names_addresses() {
        let found = read(&[(SERVER_STARTER, "127.0.0.1:80=3;8080=4;[::1]:81=5;/run/a=b.sock=6")]).unwrap();
        let expected = [("127.0.0.1:80", 3), ("8080", 4), ("[::1]:81", 5), ("/run/a=b.sock", 6)];
        assert_eq!(found, expected.map(|(name, descriptor)| (SERVER_STARTER, name.to_owned(), descriptor)));
    }

    #[test]
    fn systemd_counts_from_3() {
        let found = read(&[(SYSTEMD, "3"), ("LISTEN_PID", "7"), ("LISTEN_FDNAMES", "web::admin")]).unwrap();
        let expected = [("web", 3), ("unknown", 4), ("admin", 5)];
        assert_eq!(found, expected.map(|(name, descriptor)| (SYSTEMD, name.to_owned(), descriptor)));
    }

    #[test]
    fn what_is_meant_for_another_process_is_ignored() {
        assert_eq!(read(&[(SYSTEMD, "3"), ("LISTEN_PID", "8")]).unwrap(), []);
        assert_eq!(read(&[(SYSTEMD, "x")]).unwrap(), []);
        assert_eq!(read(&[]).unwrap(), []);
        assert_eq!(read(&[(SERVER_STARTER, "")]).unwrap(), []);
    }

    #[test]
    fn a_supervisor_takes_systemds_alone() {
        let both = [(SERVER_STARTER, "80=7"), (SYSTEMD, "1"), ("LISTEN_PID", "7")];
        let value = |name: &str| both.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        let found = named(without_server_starter(value), 7).unwrap();
        assert_eq!(found, [Named { variable: SYSTEMD, name: "unknown".into(), descriptor: 3 }]);
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for value in ["80", "80=", "80=x", "80=-1", "80=3;x"] {
            let message = read(&[(SERVER_STARTER, value)]).unwrap_err().to_string();
            assert!(message.contains(&format!("SERVER_STARTER_PORT=`{value}`")), "{message}");
        }
        for value in ["", "x", "-1", "99999999"] {
            let message = read(&[(SYSTEMD, value), ("LISTEN_PID", "7")]).unwrap_err().to_string();
            assert!(message.contains(&format!("LISTEN_FDS=`{value}`")), "{message}");
        }
    }

    #[test]
    fn what_is_open_is_told_without_a_handle() {
        use std::os::fd::AsRawFd;
        let (open, end) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(may_be_open(open.as_raw_fd()) && may_be_open(end.as_raw_fd()));
        assert!(!may_be_open(RawFd::MAX));
    }

    #[test]
    fn a_descriptor_has_one_name() {
        let error = read(&[(SERVER_STARTER, "80=3;81=3")]).unwrap_err();
        assert!(matches!(error, InheritError::Twice { variable: SERVER_STARTER, descriptor: 3 }), "{error}");
    }

    #[test]
    fn what_is_handed_down_in_both_ways_is_one_socket() {
        let both = [(SERVER_STARTER, "80=3;81=4"), (SYSTEMD, "3"), ("LISTEN_PID", "7"), ("LISTEN_FDNAMES", "a:b:c")];
        let expected = [(SERVER_STARTER, "80", 3), (SERVER_STARTER, "81", 4), (SYSTEMD, "c", 5)];
        let expected = expected.map(|(variable, name, descriptor)| (variable, name.to_owned(), descriptor));
        assert_eq!(read(&both).unwrap(), expected);
    }
}
