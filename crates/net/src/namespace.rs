//! Network namespaces: network stacks of their own for threads and processes of this machine.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;
use std::thread;

use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

/// The calling thread's network namespace.
const OWN: &str = "/proc/thread-self/ns/net";

/// A network namespace without a name (network_namespaces(7)).
///
/// It lives while this value, a thread or a process is in it. Then the kernel removes it with its interfaces, however
/// these ended: nothing remains that somebody must clean up.
#[derive(Debug)]
pub struct NetworkNamespace(File);

impl NetworkNamespace {
    /// Makes a namespace. It has a loopback interface that is down, and nothing else.
    ///
    /// # Errors
    /// `PermissionDenied` without CAP_SYS_ADMIN; also when the kernel has no network namespaces.
    #[allow(unsafe_code)]
    pub fn new() -> io::Result<Self> {
        // A thread of its own, so that the caller stays where it is.
        let made = thread::Builder::new().name("namespace".to_owned()).spawn(|| {
            // SAFETY: only CLONE_FILES could invalidate descriptors of others; CLONE_NEWNET moves this thread alone.
            unsafe { unshare_unsafe(UnshareFlags::NEWNET) }?;
            File::open(OWN).map(Self)
        })?;
        made.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))
    }

    /// Runs `work` in this namespace. Sockets, threads and processes that `work` starts belong to it, also later.
    ///
    /// # Errors
    /// When the thread cannot enter the namespace, and nothing ran; or when it cannot go back, and `work` did run: then
    /// the thread stays in the namespace.
    pub fn within<T>(&self, work: impl FnOnce() -> T) -> io::Result<T> {
        let own = File::open(OWN)?;
        enter(&self.0)?;
        // Goes back even if `work` panics.
        let mut back = Back(Some(own));
        let done = work();
        back.go()?;
        Ok(done)
    }

    /// Returns a path that means this namespace to other processes, such as `ip`, while this value lives.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd()))
    }
}

/// The namespace to which the thread returns.
struct Back(Option<File>);

impl Back {
    fn go(&mut self) -> io::Result<()> {
        self.0.take().map_or(Ok(()), |own| enter(&own))
    }
}

impl Drop for Back {
    fn drop(&mut self) {
        // After a panic; its message matters more.
        let _ = self.go();
    }
}

fn enter(namespace: &File) -> io::Result<()> {
    Ok(move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::net::{Ipv4Addr, TcpListener, TcpStream};

    use oroshi_testkit::{skipped, test_name};

    use super::*;

    fn own() -> PathBuf {
        fs::read_link(OWN).unwrap()
    }

    /// A namespace, or a note that the test was left out.
    fn namespace(test: &str) -> Option<NetworkNamespace> {
        match NetworkNamespace::new() {
            Ok(namespace) => Some(namespace),
            Err(error) => {
                skipped(test, &format!("no network namespace can be made: {error}"));
                None
            }
        }
    }

    #[test]
    fn work_sees_another_network_and_the_caller_stays_in_its_own() {
        let Some(namespace) = namespace(test_name!("work_sees_another_network_and_the_caller_stays_in_its_own")) else {
            return;
        };
        let before = own();
        let (inside, thread, child) = namespace
            .within(|| {
                let thread = thread::spawn(own).join().unwrap();
                let child = std::process::Command::new("readlink").arg("/proc/self/ns/net").output().unwrap();
                (own(), thread, String::from_utf8(child.stdout).unwrap())
            })
            .unwrap();
        assert_ne!(inside, before);
        assert_eq!((&thread, child.trim()), (&inside, inside.to_str().unwrap()));
        assert_eq!(own(), before);
        assert_eq!(namespace.within(own).unwrap(), inside, "the same namespace each time");
        assert_eq!(fs::read_link(namespace.path()).unwrap(), inside);
    }

    #[test]
    fn a_namespace_reaches_nothing_until_somebody_connects_it() {
        let Some(namespace) = namespace(test_name!("a_namespace_reaches_nothing_until_somebody_connects_it")) else {
            return;
        };
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let error = namespace.within(|| TcpStream::connect(address)).unwrap().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NetworkUnreachable);
        TcpStream::connect(address).unwrap();
    }

    #[test]
    fn a_panic_leaves_the_namespace() {
        let Some(namespace) = namespace(test_name!("a_panic_leaves_the_namespace")) else { return };
        let before = own();
        let work = std::panic::AssertUnwindSafe(|| namespace.within(|| panic!("for a test")));
        assert!(std::panic::catch_unwind(work).is_err());
        assert_eq!(own(), before);
    }
}
