//! Our side of the pipe to a keeper.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use oroshi_net::CpuList;
use rustix::process::{Pid, Resource, Signal, getrlimit, kill_process_group};

use super::message::{Done, Ended, Reply, Request};
use super::process::TEARDOWN;

/// Limit for steps that take a keeper an instant, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// Why a keeper does not work.
#[derive(Debug, thiserror::Error)]
pub enum KeeperError {
    /// The program is missing, no process can start, or the output cannot be written: see the cause.
    #[error("could not start the process that keeps the servers, {program}")]
    Start {
        /// The command.
        program: String,
        /// The system's error.
        source: io::Error,
    },
    /// The program is not ours, or of another version: read its last words in the file.
    #[error("{program} did not begin to keep processes: its last words are in {}", .output.display())]
    Silent {
        /// The command.
        program: String,
        /// The file.
        output: PathBuf,
    },
    /// The text says what failed: unavailable CPUs, or a folder that cannot be made.
    #[error("{0}")]
    Failed(String),
    /// Something killed it: look for the cause, for example in the kernel's log.
    #[error("the process that keeps the server has ended by itself")]
    Lost,
    /// The program is not ours, or of another version: name the right one.
    #[error("the process that keeps the servers said `{said}`")]
    Said {
        /// Its words.
        said: String,
    },
}

/// A running keeper. Dropping it ends everything below it.
#[derive(Debug)]
pub(crate) struct Keeper {
    child: Child,
    requests: Option<ChildStdin>,
    replies: Receiver<Result<Reply, String>>,
    folder: Option<PathBuf>,
    /// The last command's leading process, while its group has any.
    leader: Option<u32>,
    /// Its last reply.
    done: Option<Done>,
    teardown_steps: u32,
}

impl Keeper {
    /// Starts a keeper, and waits until its folder exists.
    pub(crate) fn start(
        program: &[OsString],
        cpus: Option<&CpuList>,
        folder: Option<&Path>,
        output: &Path,
    ) -> Result<Self, KeeperError> {
        let name = || program.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
        let failed = |source| KeeperError::Start { program: name(), source };
        let (first, rest) = program.split_first().ok_or_else(|| failed(io::ErrorKind::InvalidInput.into()))?;
        let errors = OpenOptions::new().append(true).create(true).open(output).map_err(failed)?;
        let mut command = Command::new(first);
        command.args(rest).arg("--output").arg(output);
        if let Some(cpus) = cpus {
            command.args(["--cpus", &cpus.to_string()]);
        }
        if let Some(limit) = descriptors() {
            command.args(["--descriptors", &limit.to_string()]);
        }
        if let Some(folder) = folder {
            command.arg("--folder").arg(folder);
        }
        // Its own process group, so that Ctrl-C reaches only us; we stop it later.
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(errors).process_group(0);
        let mut child = command.spawn().map_err(failed)?;
        let (sender, replies) = channel();
        let mut said = BufReader::new(child.stdout.take().ok_or_else(|| failed(io::ErrorKind::BrokenPipe.into()))?);
        let requests = child.stdin.take();
        let folder = folder.map(Path::to_owned);
        let mut keeper = Self { child, requests, replies, folder, leader: None, done: None, teardown_steps: 0 };
        let listener = std::thread::Builder::new().name("keeper".to_owned()).spawn(move || {
            let mut line = Vec::new();
            while said.read_until(b'\n', &mut line).is_ok_and(|length| length > 0) {
                let reply = Reply::read(&line).ok_or_else(|| String::from_utf8_lossy(&line).trim().to_owned());
                if sender.send(reply).is_err() {
                    return;
                }
                line.clear();
            }
        });
        listener.map_err(failed)?;
        match keeper.next(PATIENCE) {
            Ok(Some(Reply::Ready)) => Ok(keeper),
            other => {
                // The folder may belong to another process.
                keeper.folder = None;
                Err(match other {
                    Ok(Some(Reply::Failed(why))) => KeeperError::Failed(why),
                    Ok(Some(reply)) => KeeperError::Said { said: format!("{reply:?}") },
                    Ok(None) | Err(KeeperError::Lost) => {
                        KeeperError::Silent { program: name(), output: output.to_owned() }
                    }
                    Err(error) => error,
                })
            }
        }
    }

    /// Returns its pid. Everything that it started is below it.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a request.
    pub(crate) fn tell(&mut self, request: &Request) -> Result<(), KeeperError> {
        self.teardown_steps += u32::from(matches!(request, Request::Teardown(_)));
        let requests = self.requests.as_mut().ok_or(KeeperError::Lost)?;
        requests.write_all(&request.line()).map_err(|_| KeeperError::Lost)
    }

    /// Returns the next reply; `None` if none arrives within this time.
    pub(crate) fn next(&mut self, patience: Duration) -> Result<Option<Reply>, KeeperError> {
        match self.replies.recv_timeout(patience) {
            Ok(Ok(reply)) => {
                match &reply {
                    Reply::Started(pid) => self.leader = Some(*pid),
                    Reply::Ended(Ended { others: false, .. }) | Reply::Gone(_) => self.leader = None,
                    // Everything has ended and is removed.
                    Reply::Done(done) => (self.done, self.leader, self.folder) = (Some(done.clone()), None, None),
                    Reply::Ended(_) | Reply::Ready | Reply::Failed(_) => {}
                }
                Ok(Some(reply))
            }
            Ok(Err(said)) => Err(KeeperError::Said { said }),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(KeeperError::Lost),
        }
    }

    /// Starts a command, and returns its pid.
    pub(crate) fn run(&mut self, words: &[String]) -> Result<u32, KeeperError> {
        self.tell(&Request::Run(words.iter().map(OsString::from).collect()))?;
        loop {
            match self.next(PATIENCE)? {
                Some(Reply::Started(pid)) => return Ok(pid),
                Some(Reply::Failed(why)) => return Err(KeeperError::Failed(why)),
                // A previous command's.
                Some(Reply::Ended(_) | Reply::Gone(_)) => {}
                Some(reply @ (Reply::Ready | Reply::Done(_))) => {
                    return Err(KeeperError::Said { said: format!("{reply:?}") });
                }
                None => return Err(KeeperError::Lost),
            }
        }
    }

    /// Ends everything: sends the signal, waits for the grace period, then kills.
    pub(crate) fn stop(mut self, signal: Signal, grace: Duration) -> Result<Done, KeeperError> {
        // A keeper that has ended already said so, or is gone: `end` finds out.
        let _ = self.tell(&Request::Stop { signal: signal.as_raw(), grace });
        self.end(grace)
    }

    /// Waits for the last reply and the keeper's exit.
    fn end(&mut self, grace: Duration) -> Result<Done, KeeperError> {
        // Killing and the teardown steps need time too.
        let steps = 1 + self.teardown_steps;
        let deadline = Instant::now() + grace + PATIENCE + (TEARDOWN + PATIENCE) * steps;
        let mut failed = None;
        while self.done.is_none() && failed.is_none() {
            match self.next(deadline.saturating_duration_since(Instant::now())) {
                Ok(Some(_)) => {}
                Ok(None) => failed = Some(KeeperError::Lost),
                Err(error) => failed = Some(error),
            }
        }
        self.requests = None;
        match failed {
            // It exits by itself.
            None => _ = self.child.wait(),
            Some(_) => self.destroy(),
        }
        match self.done.take() {
            Some(done) => Ok(done),
            None => Err(failed.unwrap_or(KeeperError::Lost)),
        }
    }

    /// Kills what it can of a keeper that does not work.
    fn destroy(&mut self) {
        // Both fail only if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(group) = self.leader.take().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?)) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        if let Some(folder) = self.folder.take() {
            // The keeper made this folder; otherwise it would not have reported ready.
            let _ = std::fs::remove_dir_all(folder);
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        // Closing the pipe makes it end everything. After an orderly end nothing is left.
        if self.requests.take().is_some() {
            let _ = self.end(Duration::ZERO);
        }
    }
}

/// Open files per process, as this process inherited the limit. If servers got our raised limit, they would differ by
/// when they start.
fn descriptors() -> Option<u64> {
    static AT_FIRST: OnceLock<Option<u64>> = OnceLock::new();
    *AT_FIRST.get_or_init(|| getrlimit(Resource::Nofile).current)
}
