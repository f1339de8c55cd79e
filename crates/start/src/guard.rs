//! `--die-together`: the command ends when the superdaemon dies, however that comes about.
//!
//! Each generation is a process group of its own, and a small process beside the superdaemon, the guard, knows them all: it
//! reads a pipe that closes when the superdaemon is gone, and then ends the groups, and whatever has left its group: that it finds by
//! a variable that they all have from the superdaemon. At an end in order the superdaemon itself ends what is left below it.
//!
//! (The kernel can send a signal to a process whose parent dies, PR_SET_PDEATHSIG. But it tells only the first process of a
//! generation, forgets about it when that changes its user, and would come on top of ours: for many programs a second
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

/// How often to look whether a group has ended.
const LOOK: Duration = Duration::from_millis(20);

/// What all that belongs to one superdaemon has in its environment.
const TOGETHER: &str = "OROSHI_START_TOGETHER";

/// What it is called in a list of processes.
pub(crate) const OWN_NAME: &str = "oroshi";

/// The superdaemon's side.
#[derive(Debug)]
pub(crate) struct Guarded {
    program: Vec<OsString>,
    signal: Signal,
    patience: Duration,
    /// What the variable [`TOGETHER`] says in all of them.
    mark: String,
    /// The first process of each group.
    groups: BTreeSet<u32>,
    /// Those of them that have ended, while others of their group have not.
    headless: BTreeSet<u32>,
    guard: Option<(u32, ChildStdin)>,
}

impl Guarded {
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

    /// Starts it, and tells it all that there is.
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

    /// Its process.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.guard.as_ref().map(|(pid, _)| *pid)
    }

    pub(crate) fn add(&mut self, pid: u32) {
        self.groups.insert(pid);
        self.tell('+', pid);
    }

    /// A process has been waited for: any, as it may be the last of a group whose first has ended before it. The number of a group
    /// is not given to another as long as there is a process in it.
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

    /// The variable that the command is given, by which it and all that it starts is known.
    pub(crate) fn variable(&self) -> (&'static str, &str) {
        (TOGETHER, &self.mark)
    }

    fn tell(&mut self, sign: char, pid: u32) {
        self.write(&format!("{sign}{pid}\n"));
    }

    fn write(&mut self, line: &str) {
        if let Some((_, input)) = &mut self.guard {
            // A guard that has ended is started again when that is noticed.
            let _ = input.write_all(line.as_bytes());
        }
    }
}

/// The guard itself: until its input closes, and everything that it was told of has ended. Gives what it had to end: the first process of
/// each group, and those that had left theirs.
///
/// For a process of its own.
///
/// # Errors
/// When its input cannot be read.
pub fn guard(signal: Signal, patience: Duration) -> io::Result<Vec<u32>> {
    // Away from the terminal: Ctrl-C is for the others. It fails for whoever leads a group already, and is apart by that.
    let _ = rustix::process::setsid();
    // Not `exe`, by which it was started.
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
        sleep(LOOK);
    }
    tell_all(Signal::KILL, &outside());
    Ok(groups.iter().copied().chain(left).collect())
}
