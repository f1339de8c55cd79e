//! What the tests of `oroshi start` share: a superdaemon, ours or Debian's, with a [probe](probe.pl) behind it that
//! writes down what it was given and which signals it gets.
#![allow(dead_code, unreachable_pub, unused_imports, reason = "a module of each test file, which uses its part")]

pub mod compare;

use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::net::{Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

pub use oroshi_testkit::wait_for;
use oroshi_testkit::{Port, find, skipped};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, getsockname, socket_with, sockopt};
use rustix::process::{Pid, Signal, kill_process};
use rustix::time::{ClockId, clock_gettime};

use crate::common::{OROSHI, Ran, to_the_end};

/// A superdaemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Debian's `start_server`.
    Theirs,
    /// `oroshi start`.
    Ours,
}

impl Kind {
    /// The command, with what is left of a clean environment.
    pub fn command(self) -> Command {
        let mut command = match self {
            Self::Theirs => Command::new(find("start_server").unwrap()),
            Self::Ours => {
                let mut command = Command::new(OROSHI);
                command.arg("start");
                command
            }
        };
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command
    }
}

/// Whether what a test needs is there; if not, it is noted that the test is left out. A program is named alone, or with
/// flags by which it shows that it is whole.
pub fn have(test: &str, programs: &[&str]) -> bool {
    let is_there = |program: &str| {
        let mut words = program.split(' ');
        let Some(path) = find(words.next().unwrap()) else { return false };
        let flags: Vec<_> = words.collect();
        flags.is_empty() || Command::new(path).args(flags).stderr(Stdio::null()).status().unwrap().success()
    };
    let missing: Vec<_> = programs.iter().filter(|program| !is_there(program)).collect();
    for program in &missing {
        skipped(test, &format!("{program} is not installed"));
    }
    missing.is_empty()
}

/// Seconds of the clock that the probe writes down.
pub fn now() -> f64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

/// One superdaemon in a folder of its own, with all that a test knows about it. With the value goes every process of
/// it.
pub struct World {
    pub kind: Kind,
    /// Seconds of `--interval`, where a test does not say its own.
    pub interval: u32,
    folder: tempfile::TempDir,
    env: Vec<(String, String)>,
    umask: Option<u32>,
    daemon: Option<Child>,
    /// The superdaemon's pid: who is started, unless a test says otherwise.
    pub superdaemon: u32,
    reserved: Vec<Box<dyn std::any::Any + Send>>,
    /// Ports, by the names that stand for them in an account.
    ports: Vec<(u16, String)>,
    notes: Vec<String>,
}

/// One line of the probe's journal.
#[derive(Clone, Debug)]
pub struct Event {
    pub at: f64,
    pub pid: u32,
    /// `-`: the variable was not there.
    pub generation: String,
    pub what: String,
    pub more: Vec<String>,
}

impl World {
    pub fn new(kind: Kind) -> Self {
        LazyLock::force(&INHERITED);
        let folder = tempfile::Builder::new().prefix("oroshi-start-").tempdir().unwrap();
        fs::write(folder.path().join("probe.pl"), include_str!("probe.pl")).unwrap();
        fs::write(folder.path().join("stdin"), "").unwrap();
        Self {
            kind,
            interval: 1,
            folder,
            env: Vec::new(),
            umask: None,
            daemon: None,
            superdaemon: 0,
            reserved: Vec::new(),
            ports: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// A file in its folder, as text for a command line.
    pub fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    pub fn write(&self, name: &str, text: &str) {
        fs::write(self.folder.path().join(name), text).unwrap();
    }

    pub fn read(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.folder.path().join(name)).ok()
    }

    /// A free port of IPv4, which nobody else gets as long as the value lives.
    pub fn port(&mut self) -> u16 {
        let port = Port::reserve();
        let number = port.address().port();
        self.keep(Box::new(port), number)
    }

    /// The same of IPv6, if this machine has it.
    pub fn port6(&mut self) -> Option<u16> {
        let socket = socket_with(AddressFamily::INET6, SocketType::STREAM, SocketFlags::CLOEXEC, None).ok()?;
        sockopt::set_socket_reuseaddr(&socket, true).unwrap();
        bind(&socket, &SocketAddr::from((Ipv6Addr::LOCALHOST, 0))).ok()?;
        let number = SocketAddr::try_from(getsockname(&socket).unwrap()).unwrap().port();
        Some(self.keep(Box::<OwnedFd>::new(socket), number))
    }

    fn keep(&mut self, reserved: Box<dyn std::any::Any + Send>, number: u16) -> u16 {
        self.reserved.push(reserved);
        self.ports.push((number, format!("PORT{}", self.ports.len() + 1)));
        number
    }

    /// A variable of the superdaemon's environment.
    pub fn env(&mut self, name: &str, value: &str) {
        self.env.push((name.into(), value.into()));
    }

    pub fn umask(&mut self, umask: u32) {
        self.umask = Some(umask);
    }

    /// The probe as a command, with these words.
    pub fn probe(&self, words: &[&str]) -> Vec<String> {
        let mut command = vec!["perl".to_owned(), self.path("probe.pl"), self.path("")];
        command.extend(words.iter().map(|word| (*word).to_owned()));
        command
    }

    /// The command with these flags, not yet started.
    pub fn command(&self, flags: &[&str]) -> Command {
        let mut command = self.kind.command();
        if let Some(umask) = self.umask {
            let inner = command;
            command = Command::new("sh");
            command.args(["-c", &format!("umask {umask:o}; exec \"$0\" \"$@\"")]).arg(inner.get_program());
            command.args(inner.get_args()).env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        }
        command.args(flags).envs(self.env.iter().map(|(name, value)| (name, value)));
        command.current_dir(self.folder.path());
        command
    }

    /// Starts the superdaemon with these flags and a probe with these words behind it.
    pub fn start(&mut self, flags: &[&str], words: &[&str]) {
        let probe = self.probe(words);
        let interval = self.interval.to_string();
        let mut all = if flags.contains(&"--interval") { Vec::new() } else { vec!["--interval", &interval] };
        all.extend(flags);
        all.push("--");
        all.extend(probe.iter().map(String::as_str));
        self.start_as(&all);
    }

    /// Starts it with this command line.
    pub fn start_as(&mut self, words: &[&str]) {
        let command = self.command(words);
        self.spawn(command);
    }

    /// Starts another program, which then starts it.
    pub fn start_by(&mut self, program: &str, words: &[&str]) {
        let mut command = Command::new(program);
        command.args(words).current_dir(self.folder.path());
        self.spawn(command);
    }

    /// Starts another program, which finds these sockets as its standard input and output, and then starts it.
    pub fn start_with_sockets(&mut self, program: &str, words: &[&str], [first, second]: [OwnedFd; 2]) {
        let mut command = Command::new(program);
        command.args(words).current_dir(self.folder.path());
        self.spawn_between(command, first.into(), second.into());
    }

    fn spawn(&mut self, command: Command) {
        let input = File::open(self.path("stdin")).unwrap();
        let log = self.log();
        self.spawn_between(command, input.into(), log.into());
    }

    fn log(&self) -> File {
        OpenOptions::new().create(true).append(true).open(self.path("log")).unwrap()
    }

    fn spawn_between(&mut self, mut command: Command, input: Stdio, output: Stdio) {
        command.stdin(input).stdout(output).stderr(self.log()).process_group(0);
        let daemon = command.spawn().unwrap();
        self.superdaemon = daemon.id();
        self.daemon = Some(daemon);
    }

    /// Runs it to its end with these flags: `--restart`, or a mistake.
    pub fn run(&self, flags: &[&str]) -> Ran {
        to_the_end(self.command(flags))
    }

    /// The same by the other superdaemon's command.
    pub fn run_by(&self, kind: Kind, flags: &[&str]) -> Ran {
        let mut command = kind.command();
        command.args(flags).current_dir(self.folder.path());
        to_the_end(command)
    }

    pub fn send(&self, signal: Signal) {
        send(self.superdaemon, signal);
    }

    /// All that the probes have written down so far.
    pub fn journal(&self) -> Vec<Event> {
        let text = self.read("journal").unwrap_or_default();
        let whole = text.rfind('\n').map_or("", |end| &text[..=end]);
        whole.lines().map(|line| event(line).unwrap_or_else(|| panic!("not an event: `{line}`"))).collect()
    }

    /// Waits for the n-th event of this kind of a generation, counted from one. `what` may go on with its details:
    /// `signal TERM`.
    #[track_caller]
    pub fn nth(&self, n: usize, generation: u32, what: &str) -> Event {
        let generation = generation.to_string();
        wait_for(
            || format!("{:?}: generation {generation}: {what} ({n})\n{}", self.kind, self.told()),
            || self.journal().into_iter().filter(|e| e.generation == generation && e.line() == what).nth(n - 1),
        )
    }

    #[track_caller]
    pub fn until(&self, generation: u32, what: &str) -> Event {
        self.nth(1, generation, what)
    }

    /// Waits until the superdaemon has ended. Its exit code.
    #[track_caller]
    pub fn end(&mut self) -> Option<i32> {
        let mut daemon = self.daemon.take().expect("a superdaemon was started");
        let status = wait_for(
            || format!("{:?}: the superdaemon's end\n{}", self.kind, self.told()),
            || daemon.try_wait().unwrap(),
        );
        status.code()
    }

    /// Waits until a file of its folder says what is wanted. `what` is for the message.
    #[track_caller]
    pub fn file(&self, name: &str, what: &str, mut wanted: impl FnMut(&str) -> bool) -> String {
        wait_for(
            || format!("{:?}: {name}: {what}: {:?}\n{}", self.kind, self.read(name), self.told()),
            || self.read(name).filter(|text| wanted(text)),
        )
    }

    /// Everything for a message.
    pub fn told(&self) -> String {
        let log = self.read("log").unwrap_or_default();
        let last: Vec<_> = log.lines().rev().take(40).collect();
        let log: String = last.into_iter().rev().map(|line| format!("    {line}\n")).collect();
        format!(
            "  journal:\n{}  log:\n{log}",
            self.journal().iter().fold(String::new(), |mut text, e| {
                let _ = writeln!(text, "    {} {}", e.generation, e.line());
                text
            })
        )
    }

    /// The processes that have this world's folder in their command line, or are in it.
    pub fn processes(&self) -> Vec<u32> {
        let folder = self.folder.path().as_os_str().as_encoded_bytes();
        let all = fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        all.filter(|pid: &u32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let is_in = fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd.starts_with(self.folder.path()));
            is_in || line.windows(folder.len()).any(|part| part == folder)
        })
        .collect()
    }

    /// Adds a line to the account.
    pub fn note(&mut self, text: impl Into<String>) {
        let text = self.plain(&text.into());
        self.notes.push(text);
    }

    /// A text with names in the place of what differs from run to run.
    fn plain(&self, text: &str) -> String {
        let mut text = text.replace(self.folder.path().to_str().unwrap(), "DIR");
        for (port, name) in &self.ports {
            text = text.replace(&port.to_string(), name);
        }
        text
    }

    /// What happened, in words that are the same each time: the notes, then by generation what the probe was given and
    /// got. Beside a signal stands which generations had started by then.
    pub fn account(&self) -> Vec<String> {
        let journal = self.journal();
        let mut lines = self.notes.clone();
        let mut generations: Vec<_> = journal.iter().map(|event| event.generation.clone()).collect();
        generations.sort_by_key(|generation| generation.parse::<u32>().unwrap_or(0));
        generations.dedup();
        for generation in generations {
            for (i, event) in journal.iter().enumerate().filter(|(_, event)| event.generation == generation) {
                let mut line = self.plain(&event.line());
                match event.what.as_str() {
                    "port" if event.more.len() == 3 => {
                        // Numbers are the superdaemon's choice, unless they were asked for.
                        let pinned = event.more[1].parse().is_ok_and(|fd: u32| fd >= PINNED);
                        let fd = if pinned { &event.more[1] } else { "FD" };
                        line = self.plain(&format!("port {} {fd} {}", event.more[0], event.more[2]));
                    }
                    "parent" => {
                        let parent =
                            if event.more[0] == self.superdaemon.to_string() { "the superdaemon" } else { "somebody" };
                        line = format!("parent {parent}, {}", event.more[1]);
                    }
                    "left-open" if INHERITED.descriptors.contains(&event.more[0]) => continue,
                    "left-open" => line = format!("left-open {}", event.more[0].split(':').next().unwrap()),
                    "ignored" => line = format!("ignored {:x}", mask(&event.more[0]) & !INHERITED.ignored),
                    "env" if event.more[0].starts_with("PATH=") => continue,
                    "listen" | "listen-fd" => continue,
                    "signal" => {
                        let before = journal[..i].iter().filter(|e| e.what == "started");
                        let started: Vec<_> = before.map(|e| e.generation.as_str()).collect();
                        let _ = write!(line, ", {} started", started.join(" "));
                    }
                    _ => {}
                }
                lines.push(format!("{generation} {line}"));
            }
        }
        lines
    }
}

/// What the tests themselves were started with, which is in every process below them.
struct Inherited {
    /// Descriptors beyond the first three, by what they are.
    descriptors: Vec<String>,
    /// Signals that are ignored.
    ignored: u64,
}

static INHERITED: LazyLock<Inherited> = LazyLock::new(|| {
    let descriptors = fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| {
        let path = entry.ok()?.path();
        Some(fs::read_link(path).ok()?.to_str()?.to_owned())
    });
    let ignored = status(std::process::id(), "SigIgn").map_or(0, |ignored| mask(&ignored));
    // Rust ignores PIPE for itself alone; Perl ignores FPE; the C library's posix_spawn leaves its own two signals
    // ignored.
    let ignored = ignored & !bit(Signal::PIPE) | bit(Signal::FPE) | 0b11 << 31;
    Inherited { descriptors: descriptors.collect(), ignored }
});

fn bit(signal: Signal) -> u64 {
    1 << (signal.as_raw() - 1)
}

fn mask(hex: &str) -> u64 {
    u64::from_str_radix(hex, 16).unwrap_or_else(|error| panic!("`{hex}`: {error}"))
}

/// A line of what the kernel says about a process.
fn status(pid: u32, name: &str) -> Option<String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(line.trim().to_owned())
}

/// Descriptors from here on are ones that a test asked for.
pub const PINNED: u32 = 40;

impl Event {
    /// What happened, with its details.
    pub fn line(&self) -> String {
        [std::slice::from_ref(&self.what), &self.more].concat().join(" ")
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // Whoever starts others first; then what it may have started meanwhile.
        for _ in 0..100 {
            let processes = self.processes();
            for &pid in &processes {
                let _ = kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::KILL);
            }
            if processes.is_empty() {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        if let Some(mut daemon) = self.daemon.take() {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}

fn event(line: &str) -> Option<Event> {
    let mut words = line.split('\t').map(str::to_owned);
    Some(Event {
        at: words.next()?.parse().ok()?,
        pid: words.next()?.parse().ok()?,
        generation: words.next()?,
        what: words.next()?,
        more: words.collect(),
    })
}

pub fn send(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid as i32).unwrap(), signal).unwrap_or_else(|error| panic!("{pid}: {error}"));
}

/// Whether a process has ended. One that nobody has asked about yet counts.
pub fn gone(pid: u32) -> bool {
    state(pid).is_none_or(|state| "ZX".contains(state))
}

/// A process's state, as the kernel's letter.
pub fn state(pid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(')').next()?.trim_start().chars().next()
}

/// Whether all signals that it was sent have reached it.
pub fn has_taken_its_signals(pid: u32) -> bool {
    ["SigPnd", "ShdPnd"].iter().all(|name| status(pid, name).is_none_or(|pending| mask(&pending) == 0))
}

pub fn exists(path: &str) -> bool {
    Path::new(path).exists()
}
