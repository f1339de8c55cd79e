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

use super::message::{Done, Ended, Order, Reply};
use super::process::TEARDOWN;

/// How long a keeper may take for what takes it an instant, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// Why a keeper does not do its work.
#[derive(Debug, thiserror::Error)]
pub enum KeeperError {
    /// The program's file is gone, no process can be made, or the output cannot be written: see the cause.
    #[error("could not start the process that keeps the servers, {program}")]
    Start {
        /// The command.
        program: String,
        /// What the system said.
        source: io::Error,
    },
    /// The program is not ours, or of another version: see its last words, in the file.
    #[error("{program} did not begin to keep processes: its last words are in {}", .output.display())]
    Silent {
        /// The command.
        program: String,
        /// The file.
        output: PathBuf,
    },
    /// What it could not do is in the text: CPUs that are not available, a folder that cannot be made.
    #[error("{0}")]
    Failed(String),
    /// Somebody killed it: see what ended it, the kernel's log for example.
    #[error("the process that keeps the server has ended by itself")]
    Lost,
    /// The program is not ours, or of another version: name the right one.
    #[error("the process that keeps the servers said `{said}`")]
    Said {
        /// What it said.
        said: String,
    },
}

/// A keeper, which ends with everything below it when this is dropped.
#[derive(Debug)]
pub(crate) struct Keeper {
    child: Child,
    orders: Option<ChildStdin>,
    replies: Receiver<Result<Reply, String>>,
    folder: Option<PathBuf>,
    /// The last command's leading process, while there is something in its group.
    leader: Option<u32>,
    /// Its last reply.
    done: Option<Done>,
    teardown_steps: u32,
}

impl Keeper {
    /// Starts one, and waits until its folder is there.
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
        // A group of its own: Ctrl-C is for us, and we tell it in our own time.
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(errors).process_group(0);
        let mut child = command.spawn().map_err(failed)?;
        let (sender, replies) = channel();
        let mut said = BufReader::new(child.stdout.take().ok_or_else(|| failed(io::ErrorKind::BrokenPipe.into()))?);
        let orders = child.stdin.take();
        let folder = folder.map(Path::to_owned);
        let mut keeper = Self { child, orders, replies, folder, leader: None, done: None, teardown_steps: 0 };
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
                // The folder may be somebody else's.
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

    /// Its process. Everything that it started is below it.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Tells it something.
    pub(crate) fn tell(&mut self, order: &Order) -> Result<(), KeeperError> {
        self.teardown_steps += u32::from(matches!(order, Order::Teardown(_)));
        let orders = self.orders.as_mut().ok_or(KeeperError::Lost)?;
        orders.write_all(&order.line()).map_err(|_| KeeperError::Lost)
    }

    /// Its next reply; `None` when there is none within this time.
    pub(crate) fn next(&mut self, patience: Duration) -> Result<Option<Reply>, KeeperError> {
        match self.replies.recv_timeout(patience) {
            Ok(Ok(reply)) => {
                match &reply {
                    Reply::Started(pid) => self.leader = Some(*pid),
                    Reply::Ended(Ended { others: false, .. }) | Reply::Gone(_) => self.leader = None,
                    // All is ended and removed.
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

    /// Starts a command, and gives its process.
    pub(crate) fn run(&mut self, words: &[String]) -> Result<u32, KeeperError> {
        self.tell(&Order::Run(words.iter().map(OsString::from).collect()))?;
        loop {
            match self.next(PATIENCE)? {
                Some(Reply::Started(pid)) => return Ok(pid),
                Some(Reply::Failed(why)) => return Err(KeeperError::Failed(why)),
                // Of a command before.
                Some(Reply::Ended(_) | Reply::Gone(_)) => {}
                Some(reply @ (Reply::Ready | Reply::Done(_))) => {
                    return Err(KeeperError::Said { said: format!("{reply:?}") });
                }
                None => return Err(KeeperError::Lost),
            }
        }
    }

    /// Has everything ended: this signal, so much time, then by force.
    pub(crate) fn stop(mut self, signal: Signal, grace: Duration) -> Result<Done, KeeperError> {
        // One that has ended already has said so, or is gone: the end tells which.
        let _ = self.tell(&Order::Stop { signal: signal.as_raw(), grace });
        self.end(grace)
    }

    /// Waits for the last reply and the end of the keeper.
    fn end(&mut self, grace: Duration) -> Result<Done, KeeperError> {
        // A killing and the steps after the end take their time too.
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
        self.orders = None;
        match failed {
            // It ends of its own accord.
            None => _ = self.child.wait(),
            Some(_) => self.destroy(),
        }
        match self.done.take() {
            Some(done) => Ok(done),
            None => Err(failed.unwrap_or(KeeperError::Lost)),
        }
    }

    /// What remains possible when a keeper does not do its work.
    fn destroy(&mut self) {
        // Both fail only when it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(group) = self.leader.take().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?)) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        if let Some(folder) = self.folder.take() {
            // It made this folder, or would not have said that it is ready.
            let _ = std::fs::remove_dir_all(folder);
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        // Closing the pipe tells it to end everything. After an end in order that has been done.
        if self.orders.take().is_some() {
            let _ = self.end(Duration::ZERO);
        }
    }
}

/// Open files that each process may have, as this process was started. What we allow ourselves later, for many connections, must
/// not decide what servers get: they would differ by when they are started.
fn descriptors() -> Option<u64> {
    static AT_FIRST: OnceLock<Option<u64>> = OnceLock::new();
    *AT_FIRST.get_or_init(|| getrlimit(Resource::Nofile).current)
}
