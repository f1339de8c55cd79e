//! A server of one test: a process that listens on a unix socket, and can be killed, frozen and started again.

use std::fmt;
use std::fs::File;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::{wait_for, wait_until};

/// A server. Dropping it kills it and its children.
pub struct Daemon {
    command: Command,
    child: Child,
    socket: PathBuf,
    /// Its folder, which goes with it. `errors` is what it wrote to standard error.
    pub folder: TempDir,
}

impl Daemon {
    /// Starts a command, and waits until it listens on `socket`. Returns `None` if there is no such program.
    #[must_use]
    pub fn start(mut command: Command, socket: PathBuf, folder: TempDir) -> Option<Daemon> {
        let errors = File::create(folder.path().join("errors")).unwrap();
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(errors);
        let child = command.spawn().ok()?;
        let mut daemon = Daemon { command, child, socket, folder };
        daemon.wait();
        Some(daemon)
    }

    fn wait(&mut self) {
        let errors = self.folder.path().join("errors");
        let told = || std::fs::read_to_string(&errors).unwrap_or_default();
        let program = self.command.get_program().to_owned();
        wait_for(
            || format!("{program:?} listens: {}", told()),
            || {
                let ended = self.child.try_wait().unwrap();
                assert!(ended.is_none(), "{program:?} has ended: {ended:?}: {}", told());
                UnixStream::connect(&self.socket).ok()
            },
        );
    }

    /// The socket where it listens.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Its process; it may have children.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Ends it and its children as `kill -9` does.
    pub fn kill(&mut self) {
        let processes = self.processes();
        self.signal(Signal::KILL);
        self.child.wait().unwrap();
        // Its children now belong to init, which reaps them later.
        let is_there = |pid: &Pid| Path::new(&format!("/proc/{}/exe", pid.as_raw_pid())).read_link().is_ok();
        wait_until("its children are gone", || !processes.iter().any(is_there));
    }

    /// Starts it again, with the same command in the same folder.
    pub fn restart(&mut self) {
        let _ = std::fs::remove_file(&self.socket);
        self.child = self.command.spawn().unwrap();
        self.wait();
    }

    /// Stops it and its children as SIGSTOP does. Their connections stay open.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
        self.processes().into_iter().for_each(until_still);
    }

    /// Ends [`freeze`](Self::freeze).
    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    /// Sends a signal to it and its children, to itself first: only it starts more of them.
    pub fn signal(&self, signal: Signal) {
        for process in self.processes() {
            let _ = kill_process(process, signal); // a child may have ended
        }
    }

    fn processes(&self) -> Vec<Pid> {
        let own = self.child.id();
        let children = std::fs::read_to_string(format!("/proc/{own}/task/{own}/children")).unwrap();
        let children = children.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().unwrap()));
        std::iter::once(Pid::from_child(&self.child)).chain(children).collect()
    }
}

impl fmt::Debug for Daemon {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Daemon").field("program", &self.command.get_program()).finish_non_exhaustive()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // The process number stays valid until it is waited for. Frozen children would outlive it.
        if matches!(self.child.try_wait(), Ok(None)) {
            self.signal(Signal::KILL);
            let _ = self.child.wait();
        }
    }
}

/// Stops a process as SIGSTOP does, and waits until it stands still.
pub fn freeze(child: &Child) {
    signal(child, Signal::STOP);
    until_still(Pid::from_child(child));
}

/// Sends a signal to a process.
pub fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

/// Waits until a process is stopped, or has ended.
fn until_still(process: Pid) {
    let file = format!("/proc/{}/stat", process.as_raw_pid());
    // The state follows the name, which is in parentheses.
    let moves = |stat: String| !stat.rsplit(") ").next().unwrap().starts_with(['T', 'Z', 'X']);
    wait_until("the process stands still", || !std::fs::read_to_string(&file).is_ok_and(moves));
}
