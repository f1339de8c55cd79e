//! `--die-together`: ends the command when the superdaemon dies, for any reason.
//!
//! Each generation has its own process group. A small process beside the superdaemon, the guard, knows all groups. It
//! reads a pipe that closes when the superdaemon dies, and then ends the groups. It also ends processes that have
//! left their group, which it finds by an environment variable. At a normal end, the superdaemon itself ends the
//! remaining processes below it.
//!
//! (The kernel can send a signal to a process whose parent dies, PR_SET_PDEATHSIG. But it signals only the first
//! process of a generation, not after a change of user, and in addition to our signal: for many programs a second
//! signal means "at once".)

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use oroshi_net::process::{group, signal_to, with_variable};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::notify::secret;

/// Interval for checking whether a group has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The variable in the environment of all processes of one superdaemon.
const TOGETHER: &str = "OROSHI_START_TOGETHER";

/// The guard's name in a list of processes.
pub(crate) const OWN_NAME: &str = "oroshi";

/// The superdaemon's handle on the guard.
#[derive(Debug)]
pub(crate) struct GuardProcess {
    program: Vec<OsString>,
    signal: Signal,
    patience: Duration,
    /// The value of [`TOGETHER`] for this superdaemon.
    mark: String,
    /// The first process of each group.
    groups: BTreeSet<u32>,
    /// The groups whose first process has ended, while others have not.
    headless: BTreeSet<u32>,
    guard: Option<(u32, ChildStdin)>,
}

impl GuardProcess {
    /// Starts the guard.
    pub(crate) fn new(program: &[OsString], signal: Signal, patience: Duration) -> io::Result<Self> {
        let mark = secret(8)?;
        let mut guarded = Self {
            mark,
            program: program.to_vec(),
            signal,
            patience,
            groups: BTreeSet::new(),
            headless: BTreeSet::new(),
            guard: None,
        };
        guarded.start()?;
        Ok(guarded)
    }

    /// Starts the guard, and sends it all groups.
    pub(crate) fn start(&mut self) -> io::Result<()> {
        let (program, words) = self.program.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let mut command = Command::new(program);
        command.arg0(OWN_NAME).args(words).arg("--signal").arg(self.signal.as_raw().to_string());
        command.arg("--patience-ms").arg(self.patience.as_millis().to_string());
        let mut child: Child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn()?;
        let input = child.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
        self.guard = Some((child.id(), input));
        let mark = format!("={}\n", self.mark);
        self.write(&mark);
        let groups: Vec<u32> = self.groups.iter().copied().collect();
        groups.iter().for_each(|pid| self.tell('+', *pid));
        Ok(())
    }

    /// Process number of the guard.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.guard.as_ref().map(|(pid, _)| *pid)
    }

    pub(crate) fn add(&mut self, pid: u32) {
        self.groups.insert(pid);
        self.tell('+', pid);
    }

    /// Handles a reaped process, which may be the last of a group whose first process ended before. A group's number
    /// is not reused while the group has a process.
    pub(crate) fn ended(&mut self, pid: u32) {
        if self.groups.contains(&pid) {
            self.headless.insert(pid);
        }
        let empty: Vec<u32> = self.headless.iter().copied().filter(|leader| group(*leader).is_empty()).collect();
        for leader in empty {
            self.headless.remove(&leader);
            self.groups.remove(&leader);
            self.tell('-', leader);
        }
    }

    /// The variable that identifies the command and its descendants.
    pub(crate) fn variable(&self) -> (&'static str, &str) {
        (TOGETHER, &self.mark)
    }

    fn tell(&mut self, sign: char, pid: u32) {
        self.write(&format!("{sign}{pid}\n"));
    }

    fn write(&mut self, line: &str) {
        if let Some((_, input)) = &mut self.guard {
            // If the guard has ended, the superdaemon notices and restarts it.
            let _ = input.write_all(line.as_bytes());
        }
    }
}

/// Runs the guard until its input closes and all its groups have ended. Returns the processes that it had to end: the
/// first of each group, and those that had left their group.
///
/// Call it in a process of its own.
///
/// # Errors
/// When its input cannot be read.
pub fn guard(signal: Signal, patience: Duration) -> io::Result<Vec<u32>> {
    // Away from the terminal: Ctrl-C is for the others. It fails for a group leader, which is separate already.
    let _ = rustix::process::setsid();
    // Instead of `exe`, the name that it was started with.
    let _ = rustix::thread::set_name(c"oroshi-guard");
    let mut groups: BTreeSet<u32> = BTreeSet::new();
    let mut mark = None;
    for line in BufReader::new(io::stdin()).lines() {
        let line = line?;
        let pid = line.get(1..).and_then(|number| number.parse().ok());
        match (line.get(..1), pid) {
            (Some("="), _) => mark = line.get(1..).map(str::to_owned),
            (Some("+"), Some(pid)) => _ = groups.insert(pid),
            (Some("-"), Some(pid)) => _ = groups.remove(&pid),
            _ => {}
        }
    }
    let in_groups = || -> BTreeSet<u32> { groups.iter().flat_map(|leader| group(*leader)).collect() };
    let outside = || -> Vec<u32> {
        let marked = mark.as_ref().map(|mark| with_variable(TOGETHER, mark)).unwrap_or_default();
        let inside = in_groups();
        marked.into_iter().filter(|pid| !inside.contains(pid)).collect()
    };
    let tell_all = |signal: Signal, outside: &[u32]| {
        for leader in groups.iter().filter_map(|pid| Pid::from_raw(i32::try_from(*pid).ok()?)) {
            let _ = kill_process_group(leader, signal);
        }
        outside.iter().for_each(|pid| _ = signal_to(*pid, signal));
    };
    let left = outside();
    tell_all(signal, &left);
    let deadline = Instant::now() + patience;
    while !(in_groups().is_empty() && outside().is_empty()) && Instant::now() < deadline {
        sleep(POLL_INTERVAL);
    }
    tell_all(Signal::KILL, &outside());
    Ok(groups.iter().copied().chain(left).collect())
}
