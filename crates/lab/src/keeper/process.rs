//! The keeper process itself.

use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::{self, BufRead, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use oroshi_net::CpuList;
use oroshi_net::process::{children, descendants, how_it_ended, signal_to};
use rustix::process::{Resource, Signal, WaitOptions, WaitStatus};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::bounded::BoundedFile;
use super::message::{Done, Ended, Reply, Request};
use crate::workspace::PREFIX;

/// Extra time for other processes after the leading one's grace period.
const REST: Duration = Duration::from_millis(200);
/// How long to wait for processes that cannot be killed, for example in disk wait.
const KILLING: Duration = Duration::from_secs(10);
/// How often to look for processes that remain to be killed: no signal tells of another parent's children.
const LOOK: Duration = Duration::from_millis(5);
/// How often to check the size of the output.
const LOOK_AT_OUTPUT: Duration = Duration::from_millis(50);
/// Limit for a teardown step.
pub(super) const TEARDOWN: Duration = Duration::from_secs(30);

/// A keeper's settings at its start. Requests on standard input bring everything else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeeperSettings {
    /// The CPUs of the keeper and everything below it; `None`: any.
    pub cpus: Option<CpuList>,
    /// Open files per process (the soft limit); `None`: as inherited.
    pub descriptors: Option<u64>,
    /// The folder to make, and to remove in the end with its content. Its name begins with [`PREFIX`].
    pub folder: Option<PathBuf>,
    /// The file that receives all processes' standard output and error. Beyond 8 MiB its middle is cut out: the first
    /// and the last MiB stay.
    pub output: PathBuf,
}

/// Keeps processes until standard input says stop or closes. Returns the exit code.
///
/// The caller must be a process of its own and its leader: the function changes CPU affinity and signal handling, and
/// waits for every child.
#[must_use]
pub fn keep(options: &KeeperSettings) -> u8 {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let code = match runtime {
        Ok(runtime) => {
            let code = runtime.block_on(live(options));
            // A thread may wait for standard input for ever.
            runtime.shutdown_background();
            code
        }
        Err(error) => Err(format!("could not prepare for signals: {error}")),
    };
    match code {
        Ok(done) => u8::from(!done.troubles.is_empty()),
        Err(why) => {
            tell(&Reply::Failed(why));
            1
        }
    }
}

/// An event that the keeper handles.
#[derive(Clone, Debug)]
enum Event {
    Request(Request),
    /// A child ended.
    Child,
    /// The pipe closed, or a signal asks for the end.
    End,
}

async fn live(options: &KeeperSettings) -> Result<Done, String> {
    let mut keeper = Keeper::new(options)?;
    tell(&Reply::Ready);
    let stop = loop {
        let event = tokio::time::timeout(LOOK_AT_OUTPUT, keeper.events.recv()).await;
        // A full disk must not end a server.
        let _ = keeper.output.look();
        let Ok(event) = event else { continue };
        match event {
            Some(Event::Request(Request::Stop { signal, grace })) => {
                break Signal::from_named_raw(signal).zip(Some(grace));
            }
            Some(Event::Request(request)) => keeper.obey(request),
            Some(Event::Child) => keeper.reap(),
            Some(Event::End) | None => break None,
        }
    };
    let done = keeper.end(stop).await;
    tell(&Reply::Done(done.clone()));
    Ok(done)
}

struct Keeper {
    events: UnboundedReceiver<Event>,
    output: BoundedFile,
    /// The folder that the keeper made.
    folder: Option<PathBuf>,
    env: Vec<(OsString, OsString)>,
    working_folder: Option<OsString>,
    teardown: Vec<Vec<OsString>>,
    /// The last command.
    command: Option<StartedCommand>,
}

/// A command that was started.
struct StartedCommand {
    pid: u32,
    begun: Instant,
    /// Processes that existed before.
    before: Vec<u32>,
    /// How its leading process ended.
    ended: Option<WaitStatus>,
    /// It left processes behind whose end is not reported yet.
    others: bool,
}

impl Keeper {
    fn new(options: &KeeperSettings) -> Result<Self, String> {
        let failed = |what: &'static str| move |error: &dyn std::fmt::Display| format!("could not {what}: {error}");
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
            .map_err(|error| failed("become the parent of orphans (PR_SET_CHILD_SUBREAPER)")(&error))?;
        if let Some(cpus) = &options.cpus {
            pin(cpus)?;
        }
        if let Some(soft) = options.descriptors {
            let mut limit = rustix::process::getrlimit(Resource::Nofile);
            limit.current = Some(limit.maximum.map_or(soft, |hard| hard.min(soft)));
            rustix::process::setrlimit(Resource::Nofile, limit)
                .map_err(|error| failed("set the limit of open files")(&error))?;
        }
        let output = OpenOptions::new().read(true).append(true).create(true).open(&options.output);
        let output = output.map_err(|error| format!("could not open {}: {error}", options.output.display()))?;
        let output = BoundedFile::new(output);
        let (sender, events) = unbounded_channel();
        listen(&sender).map_err(|error| failed("prepare for signals")(&error))?;
        if let Some(folder) = &options.folder {
            make(folder)?;
        }
        let env = Vec::new();
        let folder = options.folder.clone();
        Ok(Self { events, output, folder, env, working_folder: None, teardown: Vec::new(), command: None })
    }

    fn obey(&mut self, request: Request) {
        match request {
            Request::Env(name, value) => self.env.push((name, value)),
            Request::Folder(path) => self.working_folder = Some(path),
            Request::Teardown(words) => self.teardown.push(words),
            Request::Run(words) => match self.start(&words) {
                Ok(pid) => tell(&Reply::Started(pid)),
                Err(why) => tell(&Reply::Failed(why)),
            },
            // Handled before.
            Request::Stop { .. } => {}
        }
    }

    fn start(&mut self, words: &[OsString]) -> Result<u32, String> {
        let Some((program, args)) = words.split_first() else { return Err("the command is empty".to_owned()) };
        let output = || self.output.file().try_clone().map(Stdio::from).map_err(|error| format!("no output: {error}"));
        let mut command = Command::new(program);
        command.args(args).envs(self.env.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(output()?).stderr(output()?).process_group(0);
        if let Some(folder) = &self.working_folder {
            command.current_dir(folder);
        }
        let before = descendants(std::process::id());
        let begun = Instant::now();
        let child = command.spawn().map_err(|error| self.why_not(program, &error))?;
        // From now on `collect` waits for it, not its handle.
        self.command = Some(StartedCommand { pid: child.id(), begun, before, ended: None, others: false });
        Ok(child.id())
    }

    /// Says why a program could not be started.
    fn why_not(&self, program: &OsString, error: &io::Error) -> String {
        let name = program.to_string_lossy();
        let folder = self.working_folder.as_ref().map_or(Path::new("."), Path::new);
        if !folder.is_dir() {
            return format!("cannot start {name}: the working folder {} is not there", folder.display());
        }
        match error.kind() {
            io::ErrorKind::NotFound if name.contains('/') && folder.join(program).exists() => {
                format!("cannot start {name}: the interpreter that its first line names is not there")
            }
            io::ErrorKind::NotFound if name.contains('/') => format!("cannot start {name}: no such file"),
            io::ErrorKind::NotFound => {
                let own = self.env.iter().rev().find(|(name, _)| name == "PATH").map(|(_, value)| value.clone());
                let path = own.or_else(|| std::env::var_os("PATH")).unwrap_or_default();
                let path = path.to_string_lossy();
                format!("cannot start {name}: it is in none of the folders of PATH ({path}); is it installed?")
            }
            io::ErrorKind::PermissionDenied => format!("cannot start {name}: its file may not be executed"),
            _ => format!("cannot start {name}: {error}"),
        }
    }

    /// Collects ended children. False: no process is left below the keeper.
    fn collect(&mut self) -> bool {
        loop {
            match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) => {
                    if let Some(command) = &mut self.command
                        && pid.as_raw_pid() == command.pid as i32
                    {
                        command.ended = Some(status);
                    }
                }
                Ok(None) => return true,
                Err(rustix::io::Errno::INTR) => {}
                // ECHILD: orphans would be children of the keeper.
                Err(_) => return false,
            }
        }
    }

    /// Collects ended children, and reports the command's end.
    fn reap(&mut self) {
        let running = self.command.as_ref().is_some_and(|command| command.ended.is_none());
        self.collect();
        let Some(command) = &mut self.command else { return };
        let Some(status) = command.ended else { return };
        let left = running || command.others;
        let others = left && descendants(std::process::id()).iter().any(|pid| !command.before.contains(pid));
        if running {
            let how = how_it_ended(status);
            tell(&Reply::Ended(Ended { code: status.exit_status(), elapsed: command.begun.elapsed(), others, how }));
        } else if command.others && !others {
            tell(&Reply::Gone("the processes that it left behind have ended".to_owned()));
        }
        command.others = others;
    }

    /// Ends everything, runs the teardown steps, and removes the folder.
    async fn end(&mut self, stop: Option<(Signal, Duration)>) -> Done {
        let mut troubles = Vec::new();
        let _ = self.output.look();
        if let Some((signal, grace)) = stop.filter(|(signal, _)| *signal != Signal::KILL) {
            self.ask(signal, grace).await;
        }
        self.kill_all(&mut troubles).await;
        for words in std::mem::take(&mut self.teardown) {
            let failed = match self.start(&words) {
                Ok(_) => {
                    self.run_out(TEARDOWN).await;
                    match self.command.as_ref().and_then(|command| command.ended) {
                        Some(status) if status.exit_status() == Some(0) => None,
                        Some(status) => Some(how_it_ended(status)),
                        None => Some(format!("not done within {} s", TEARDOWN.as_secs())),
                    }
                }
                Err(why) => Some(why),
            };
            self.kill_all(&mut troubles).await;
            troubles.extend(failed.map(|why| format!("teardown `{}`: {why}", shown(&words))));
        }
        // Every child was waited for, so its time is in our account.
        let cpu_s = cpu_of_children().unwrap_or_default();
        if let Some(folder) = self.folder.take()
            && let Err(error) = fs::remove_dir_all(&folder)
        {
            troubles.push(format!("could not remove {}: {error}", folder.display()));
        }
        Done { cpu_s, troubles }
    }

    /// Asks the command to end: first its leading process (or, if it has ended, its orphans), then the rest.
    async fn ask(&mut self, signal: Signal, grace: Duration) {
        let deadline = Instant::now() + grace;
        self.collect();
        let leader = self.command.as_ref().filter(|command| command.ended.is_none()).map(|command| command.pid);
        let first = leader.map_or_else(|| children(std::process::id()), |pid| vec![pid]);
        first.iter().for_each(|pid| _ = signal_to(*pid, signal));
        let ended = self.wait(deadline, |left| !first.iter().any(|pid| left.contains(pid))).await;
        let Ok(some_left) = ended else { return };
        if some_left {
            descendants(std::process::id()).into_iter().for_each(|pid| _ = signal_to(pid, signal));
            let _ = self.wait(deadline.max(Instant::now() + REST), |_| false).await;
        }
    }

    /// Waits until `enough` accepts the remaining processes, none remain, or the deadline passes. Returns whether any
    /// remain.
    ///
    /// # Errors
    /// When no time is left: everything must end at once.
    async fn wait(&mut self, deadline: Instant, enough: impl Fn(&[u32]) -> bool) -> Result<bool, NoTimeLeft> {
        loop {
            if !self.collect() {
                return Ok(false);
            }
            if Instant::now() >= deadline || enough(&descendants(std::process::id())) {
                return Ok(true);
            }
            let _ = self.output.look();
            let next = deadline.min(Instant::now() + LOOK_AT_OUTPUT);
            match tokio::time::timeout_at(next.into(), self.events.recv()).await {
                Ok(Some(Event::End) | None) => return Err(NoTimeLeft),
                Ok(Some(Event::Child | Event::Request(_))) | Err(_) => {}
            }
        }
    }

    /// Waits for the command's leading process.
    async fn run_out(&mut self, patience: Duration) {
        let deadline = Instant::now() + patience;
        let running = |keeper: &Self| keeper.command.as_ref().is_some_and(|command| command.ended.is_none());
        while self.collect() && running(self) && Instant::now() < deadline {
            // A teardown step that began is finished even if the pipe is closed.
            let _ = tokio::time::timeout_at(deadline.into(), self.events.recv()).await;
        }
    }

    /// Kills until no process is left.
    async fn kill_all(&mut self, troubles: &mut Vec<String>) {
        let deadline = Instant::now() + KILLING;
        while self.collect() {
            let left = descendants(std::process::id());
            if Instant::now() >= deadline {
                let left: Vec<String> = left.iter().map(u32::to_string).collect();
                troubles.push(format!("cannot be ended, not even by SIGKILL: process {}", left.join(", ")));
                return;
            }
            left.into_iter().for_each(|pid| _ = signal_to(pid, Signal::KILL));
            let _ = tokio::time::timeout(LOOK, self.events.recv()).await;
        }
    }
}

/// The pipe closed: no time is left.
struct NoTimeLeft;

/// Sends a reply; the reader may be gone.
fn tell(reply: &Reply) {
    let mut out = io::stdout().lock();
    let _ = out.write_all(&reply.line()).and_then(|()| out.flush());
}

/// Sends all events into one channel: requests, ended children, signals.
fn listen(sender: &UnboundedSender<Event>) -> io::Result<()> {
    let signals = [
        (SignalKind::child(), Event::Child),
        (SignalKind::terminate(), Event::End),
        (SignalKind::interrupt(), Event::End),
        (SignalKind::hangup(), Event::End),
        (SignalKind::quit(), Event::End),
    ];
    for (kind, event) in signals {
        let mut arrivals = signal(kind)?;
        let sender = sender.clone();
        tokio::spawn(async move { while arrivals.recv().await.is_some() && sender.send(event.clone()).is_ok() {} });
    }
    let sender = sender.clone();
    std::thread::Builder::new().name("orders".to_owned()).spawn(move || {
        let mut input = io::stdin().lock();
        let mut line = Vec::new();
        loop {
            line.clear();
            let event = match input.read_until(b'\n', &mut line) {
                // A line without an end was cut off when its writer ended.
                Ok(_) if line.ends_with(b"\n") => Request::read(&line).map(Event::Request),
                _ => None,
            };
            let last = event.is_none();
            if sender.send(event.unwrap_or(Event::End)).is_err() || last {
                return;
            }
        }
    })?;
    Ok(())
}

fn pin(cpus: &CpuList) -> Result<(), String> {
    let mut set = rustix::thread::CpuSet::new();
    cpus.iter().for_each(|cpu| set.set(cpu));
    rustix::thread::sched_setaffinity(None, &set).map_err(|error| {
        let available = oroshi_net::available_cpus().map_or_else(|error| error.to_string(), |cpus| cpus.to_string());
        format!("cannot run on CPU {cpus}: {error}; available are {available}")
    })
}

/// Makes the folder, which must not exist: the keeper removes only its own.
fn make(folder: &Path) -> Result<(), String> {
    let ours = folder.file_name().is_some_and(|name| name.to_string_lossy().starts_with(PREFIX));
    if !ours || !folder.is_absolute() {
        return Err(format!(
            "{} is no folder for a server: expected a path from /, and a name that begins with {PREFIX}",
            folder.display()
        ));
    }
    let failed = |error: io::Error| format!("could not make the folder {}: {error}", folder.display());
    fs::create_dir(folder).map_err(failed)?;
    // Servers that start as root continue as another user, who must be able to read here.
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).map_err(failed)
}

/// Returns the CPU time of all children that were waited for, including theirs, seconds.
fn cpu_of_children() -> Option<f64> {
    let stat = procfs::process::Process::myself().ok()?.stat().ok()?;
    Some((stat.cutime + stat.cstime) as f64 / procfs::ticks_per_second() as f64)
}

fn shown(words: &[OsString]) -> String {
    shell_words::join(words.iter().map(|word| word.to_string_lossy()))
}
