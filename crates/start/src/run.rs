//! The running superdaemon: feeds events to the machine, and carries out its decisions.

mod ending;
mod logging;

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::rc::Rc;
use std::time::{Duration, Instant};

use oroshi_net::inherit::{InheritedSocket, inherited_from_systemd};
use oroshi_net::listen::ListenError;
use oroshi_net::monotonic_ns;
use oroshi_net::notify::ServiceManager;
use oroshi_net::process::{descendants, how_it_ended, signal_to};
use oroshi_words::with_causes;
use rustix::io::Errno;
use rustix::process::{Signal, WaitOptions};
use tokio::runtime::{Builder, LocalOptions};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;

use crate::child::Launch;
use crate::control::{self, Request};
use crate::environment::{AUTO_RESTART_INTERVAL, Environment};
use crate::files::{FileError, PidFile, StatusFile};
use crate::guard::{GuardProcess, OWN_NAME};
use crate::machine::{Action, Cause, ENDING, Event, LogMessage, Machine, Verdict};
use crate::output::{Log, LogDestination, LogError, no_input};
use crate::plan::{Plan, Ready};
use crate::sockets::{Socket, SocketError, hold_all, variables};
use crate::status::{StartInfo, Status};
use crate::waiting::Waiting;
use crate::watch::{Watch, Watchers};

/// Interval for reading the folder of variables while it controls restarts, as in `start_server`.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Interval for checking whether the first generation has become the command, which takes two calls of exec.
const EXEC_POLL_INTERVAL: Duration = Duration::from_millis(5);
/// The minimum time between starts of the guard.
const PAUSE: Duration = Duration::from_secs(1);

/// The reason why the superdaemon did not start or run.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The pid file or the status file is unusable; see the cause.
    #[error(transparent)]
    File(#[from] FileError),
    /// A socket cannot be made; see the cause.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The log cannot be opened; see the cause.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The control socket cannot be made; see the cause.
    #[error("cannot listen for --status and --restart")]
    Control(#[source] ListenError),
    /// The first generation ended with 126 or 127, the shells' codes for a command that cannot run: see its output in
    /// the log.
    #[error("the command cannot be run: {why}")]
    Command {
        /// A description of its end.
        why: String,
    },
    /// The system refused a basic resource: descriptors, signals.
    #[error("{what}")]
    System {
        /// The failed operation.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

/// Runs the command behind its sockets until INT or TERM ends it.
///
/// Sockets from systemd (LISTEN_FDS) come before those of the plan.
///
/// `say` gets each line of the log. `settled` is called once no user error is possible any more: files, sockets and
/// the log exist, and the first generation has become the command. Standard output and error then go to the plan's
/// log. Call it on the main thread of a process of its own: it changes signal handling and output, and reaps every
/// child.
///
/// # Errors
/// [`StartError`], before anything was started, or because the command could not run. Everything made is removed, and
/// `settled` is not called.
pub fn run(plan: &Plan, say: &mut dyn FnMut(&str), settled: impl FnOnce() + 'static) -> Result<(), StartError> {
    // Before opening any descriptor.
    let inherited = inherited_from_systemd().map_err(SocketError::Inherited)?;
    let system = |what| move |source| StartError::System { what, source };
    let mut builder = Builder::new_current_thread();
    let runtime = builder.enable_all().build_local(LocalOptions::default());
    let runtime = runtime.map_err(system("cannot prepare for events"))?;
    runtime.block_on(async {
        let (sender, events) = unbounded_channel();
        // First of all: a signal no longer ends this process with its files left behind.
        listen(&sender).map_err(system("cannot prepare for signals"))?;
        let mut superdaemon = Superdaemon::new(plan, inherited, say, sender, events)?;
        superdaemon.redirect()?;
        superdaemon.introduce();
        superdaemon.wait_for_log_reader().await?;
        superdaemon.settled = Some(Box::new(settled));
        superdaemon.live().await;
        let never_ran = superdaemon.never_ran.take();
        superdaemon.end().await;
        never_ran.map_or(Ok(()), |why| Err(StartError::Command { why }))
    })
}

/// An input to the superdaemon.
enum Input {
    /// A signal.
    Signal(SignalKind),
    /// An event for the machine.
    Event(Event),
    /// A request through the control socket.
    Request(Request),
}

/// The running control socket.
struct Control {
    task: JoinHandle<()>,
    end: Rc<Notify>,
}

struct Superdaemon<'a> {
    plan: &'a Plan,
    say: &'a mut dyn FnMut(&str),
    events: UnboundedReceiver<Input>,
    sender: UnboundedSender<Input>,
    began: StartInfo,
    environment: Environment,
    /// Problems in the environment at the last check.
    problems: Vec<String>,
    machine: Machine,
    watchers: Watchers,
    waiting: Waiting,
    manager: ServiceManager,
    control: Option<Control>,
    guarded: Option<GuardProcess>,
    log: Option<Log>,
    /// Time to restart the guard.
    guard_at: Option<Instant>,
    status_file: Option<StatusFile>,
    sockets: Vec<Socket>,
    /// Called when the first generation is the command, or has failed in a way that another attempt may fix.
    settled: Option<Box<dyn FnOnce()>>,
    /// The reason why the command cannot run at all.
    never_ran: Option<String>,
    /// Holds the lock; dropped last.
    _pid_file: Option<PidFile>,
}

impl<'a> Superdaemon<'a> {
    /// Makes all resources.
    fn new(
        plan: &'a Plan,
        inherited: Vec<InheritedSocket>,
        say: &'a mut dyn FnMut(&str),
        sender: UnboundedSender<Input>,
        events: UnboundedReceiver<Input>,
    ) -> Result<Self, StartError> {
        let system = |what| move |errno: Errno| StartError::System { what, source: errno.into() };
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
            .map_err(system("cannot become the parent of orphans (PR_SET_CHILD_SUBREAPER)"))?;
        let draft = &plan.draft;
        let (environment, mut problems) = Environment::new(std::env::vars_os(), draft.variables.iter().cloned());
        let (tunables, more) = environment.tunables();
        problems.extend(more);
        let pid_file = draft.pid_file.as_deref().map(PidFile::claim).transpose()?;
        let status_file = draft.status_file.as_deref().map(StatusFile::new).transpose()?;
        let log = draft.log.as_ref().map(LogDestination::open).transpose()?;
        let sockets = hold_all(inherited, &draft.sockets, &draft.listening)?;
        let machine = Machine::new(plan.policy(), tunables);
        let mut superdaemon = Self {
            plan,
            say,
            events,
            sender,
            began: StartInfo::now(),
            environment,
            problems: Vec::new(),
            machine,
            watchers: Watchers::default(),
            waiting: Waiting::default(),
            manager: ServiceManager::find(),
            control: None,
            guarded: None,
            log,
            guard_at: None,
            status_file,
            sockets,
            settled: None,
            never_ran: None,
            _pid_file: pid_file,
        };
        superdaemon.complain(problems);
        superdaemon.listen_for_control()?;
        Ok(superdaemon)
    }

    fn listen_for_control(&mut self) -> Result<(), StartError> {
        if let Some(why) = self.plan.without_control.clone() {
            self.tell(&why);
        }
        let Some(address) = &self.plan.control else { return Ok(()) };
        let asked_for = self.plan.draft.control.as_ref().is_some_and(|control| control.asked_for);
        let bound = match control::bind(address) {
            Ok(bound) => bound,
            Err(error) if asked_for => return Err(StartError::Control(error)),
            Err(error) => {
                self.tell(&format!("there is no control socket: {}", with_causes(&error)));
                return Ok(());
            }
        };
        let listener = bound.into_listener();
        let what = "cannot listen for --status and --restart";
        let listener = listener.map_err(|source| StartError::System { what, source })?;
        let end = Rc::new(Notify::new());
        let (asks, ending) = (control::into_channel(self.sender.clone(), Input::Request), Rc::clone(&end));
        let task = tokio::task::spawn_local(control::serve(listener, asks, async move { ending.notified().await }));
        self.control = Some(Control { task, end });
        Ok(())
    }

    fn redirect(&mut self) -> Result<(), StartError> {
        if let Some(log) = &self.log {
            log.redirect()?;
        }
        if self.plan.draft.daemonize {
            no_input().map_err(|source| StartError::System { what: "cannot leave standard input", source })?;
        }
        let draft = &self.plan.draft;
        if draft.die_together {
            // Here, because it writes to the log too.
            let patience = draft.stop_timeout.unwrap_or(ENDING);
            let guarded = GuardProcess::new(&draft.guard, draft.signal_on_term, patience);
            let what = "cannot start the process that ends the command when this one dies";
            self.guarded = Some(guarded.map_err(|source| StartError::System { what, source })?);
        }
        Ok(())
    }

    /// Logs the listening addresses.
    fn introduce(&mut self) {
        let listing = |socket: &Socket| format!("{} as {}", socket.address(), socket.descriptor);
        let sockets: Vec<String> = self.sockets.iter().map(listing).collect();
        let sockets = if sockets.is_empty() { "without sockets".to_owned() } else { sockets.join(", ") };
        self.tell(&format!("starting (pid {}): {sockets}", std::process::id()));
    }

    async fn live(&mut self) {
        if !self.happens(Event::Begin) {
            return;
        }
        loop {
            self.check_first_generation();
            let input = self.next().await;
            // Before any decision: the end of a generation may be reported later than subsequent events, such as its
            // readiness timeout.
            if !self.reap() {
                return;
            }
            self.reload_environment();
            let goes_on = match input {
                None => self.happens(Event::Due),
                Some(Input::Event(event)) => self.happens(event),
                Some(Input::Request(ask)) => self.answer(ask),
                Some(Input::Signal(kind)) => self.signal(kind),
            };
            if !goes_on {
                return;
            }
        }
    }

    /// Returns the next input, or `None` when something is due.
    async fn next(&mut self) -> Option<Input> {
        let now = Instant::now();
        let watched = self.environment.envdir().is_some() && self.environment.tunables().0.auto_restart.is_some();
        let look = watched.then(|| now + POLL_INTERVAL);
        let look = self.settled.is_some().then(|| now + EXEC_POLL_INTERVAL).or(look);
        match self.machine.due().into_iter().chain(look).chain(self.log_due()).chain(self.guard_at).min() {
            Some(due) => tokio::time::timeout_at(due.into(), self.events.recv()).await.ok().flatten(),
            // We hold the other end.
            None => self.events.recv().await,
        }
    }

    /// Reports success to the parent once the first generation has become the command. Until then its process has a
    /// name of ours.
    fn check_first_generation(&mut self) {
        if self.settled.is_some()
            && let Some(first) = self.machine.generations().first()
            && has_become_the_command(first.pid, &self.plan.draft.helper)
            && let Some(settled) = self.settled.take()
        {
            settled();
        }
    }

    /// Handles a signal; returns whether to continue.
    fn signal(&mut self, kind: SignalKind) -> bool {
        match kind {
            // Already reaped.
            kind if kind == SignalKind::child() => true,
            kind if kind == SignalKind::hangup() => self.happens(Event::Restart(Cause::Hup)),
            kind if kind == SignalKind::user_defined1() => {
                self.reopen_log("received USR1: the log file is opened anew");
                true
            }
            // Handled only so that it has no effect: start_server ignores it too.
            kind if kind == SignalKind::alarm() => true,
            kind => {
                let named = Signal::from_named_raw(kind.as_raw_value()).unwrap_or(Signal::TERM);
                self.happens(Event::Stop(named))
            }
        }
    }

    fn answer(&mut self, ask: Request) -> bool {
        match ask {
            Request::Status(reply) => {
                let command = self.plan.command().iter().map(|word| word.to_string_lossy().into_owned()).collect();
                // The client may have gone.
                let reader = self.log.as_ref().and_then(Log::reader);
                let _ = reply.send(Status::now(&self.machine, &self.sockets, command, reader, &self.began));
                true
            }
            Request::Restart { first, reply } => {
                self.waiting.add(&self.machine, first, reply);
                self.happens(Event::Restart(Cause::Control))
            }
        }
    }

    /// Handles every ended process.
    fn reap(&mut self) -> bool {
        let mut goes_on = true;
        loop {
            match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) => {
                    let pid = u32::try_from(pid.as_raw_pid()).unwrap_or_default();
                    let (how, code) = (how_it_ended(status), status.exit_status());
                    self.log_may_have_ended(pid, &how);
                    if self.guarded.as_ref().is_some_and(|guarded| guarded.pid() == Some(pid)) {
                        self.guard_at = Some(Instant::now() + PAUSE);
                    }
                    if let Some(number) = self.number_of(pid) {
                        self.watchers.end(number);
                    }
                    self.guarded.iter_mut().for_each(|guarded| guarded.ended(pid));
                    goes_on &= self.happens(Event::Exited { pid, how, code });
                }
                Err(Errno::INTR) => {}
                // No child has ended, or there is none.
                Ok(None) | Err(_) => return goes_on,
            }
        }
    }

    /// Passes an event to the machine, and carries out its actions. False: everything is done.
    fn happens(&mut self, event: Event) -> bool {
        let now = Instant::now();
        if self.log_due().is_some_and(|at| at <= now) {
            self.restart_log();
        }
        if self.guard_at.is_some_and(|at| at <= now) {
            self.restart_guard();
        }
        let mut goes_on = true;
        let mut actions = VecDeque::from(self.machine.handle(Instant::now(), event));
        while let Some(action) = actions.pop_front() {
            match action {
                Action::Start { number } => {
                    let event = self.start(number);
                    actions.extend(self.machine.handle(Instant::now(), event));
                }
                Action::Signal { pid, signal } => _ = signal_to(pid, signal),
                Action::Kill { pid } => kill(pid),
                Action::Write => self.write(),
                Action::Log(news) => self.news(&news),
                Action::Verdict(verdict) => self.attempt_ended(&verdict),
                Action::Leave => goes_on = false,
            }
        }
        self.waiting.look(&self.machine);
        goes_on
    }

    /// Writes a message to the log, and to the parent of this process.
    fn news(&mut self, news: &LogMessage) {
        match news {
            LogMessage::Asked { .. } | LogMessage::Again => {
                let now = monotonic_ns() / 1000;
                self.manager.tell(&format!("RELOADING=1\nMONOTONIC_USEC={now}"));
            }
            LogMessage::Stop { .. } => self.manager.tell("STOPPING=1"),
            _ => {}
        }
        self.tell(&news.to_string());
    }

    fn attempt_ended(&mut self, verdict: &Verdict) {
        match verdict {
            Verdict::Ready(who) => {
                if let Some(settled) = self.settled.take() {
                    settled();
                }
                self.manager.tell(&format!("READY=1\nSTATUS={who} serves"));
                if !matches!(self.plan.draft.ready, Some(Ready::Notify)) {
                    self.watchers.end(who.number);
                }
            }
            Verdict::Failed { number, why, stays, again } => {
                self.watchers.end(*number);
                if stays.is_none() && !again {
                    self.never_ran = Some(why.clone());
                } else if let Some(settled) = self.settled.take() {
                    settled();
                }
                if let Some(stays) = stays {
                    self.manager.tell(&format!("READY=1\nSTATUS={stays} serves; generation {number} failed: {why}"));
                }
            }
        }
        self.waiting.attempt_ended(verdict);
    }

    fn number_of(&self, pid: u32) -> Option<u64> {
        self.machine.generations().iter().find(|generation| generation.pid == pid).map(|generation| generation.number)
    }

    /// Starts a generation.
    fn start(&mut self, number: u64) -> Event {
        let ready = self.plan.draft.ready.as_ref();
        let watch = match Watch::new(ready) {
            Ok(watch) => watch,
            Err(error) => {
                let folder = std::env::temp_dir();
                let folder = folder.display();
                let why = format!("no socket for READY=1 could be made in {folder} (TMPDIR): {error}");
                return Event::NotStarted { number, why };
            }
        };
        match self.launch(number, &watch) {
            Ok(pid) => {
                self.guarded.iter_mut().for_each(|guarded| guarded.add(pid));
                let sender = self.sender.clone();
                // We hold the other end until our end.
                let tell = move |event| _ = sender.send(Input::Event(event));
                self.watchers.begin(number, pid, ready, watch, tell);
                Event::Started { number, pid }
            }
            Err(error) => Event::NotStarted { number, why: format!("no process could be made: {error}") },
        }
    }

    fn launch(&mut self, number: u64, watch: &Watch) -> io::Result<u32> {
        self.reload_environment();
        // Follows a moved file by a new one.
        if let Some(Err(error)) = self.log.as_mut().map(Log::reopen) {
            self.tell(&format!("{error}: writing to the one before"));
        }
        let draft = &self.plan.draft;
        let mut all: Vec<(OsString, OsString)> =
            self.environment.variables().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        let mut set = |name: &str, value: Option<OsString>| {
            all.retain(|(known, _)| known != name);
            all.extend(value.map(|value| (name.into(), value)));
        };
        for (name, value) in variables(&self.sockets).into_iter().chain(watch.variables()) {
            set(name, value);
        }
        if let Some((name, mark)) = self.guarded.as_ref().map(GuardProcess::variable) {
            set(name, Some(mark.into()));
        }
        set("SERVER_STARTER_GENERATION", Some(number.to_string().into()));
        if let (tunables, _) = self.environment.tunables()
            && let Some(interval) = tunables.auto_restart
        {
            set(AUTO_RESTART_INTERVAL, Some(interval.as_secs().to_string().into()));
        }
        let launch = Launch {
            helper: &draft.helper,
            command: &draft.command,
            sockets: &self.sockets,
            folder: draft.folder.as_deref(),
            own_group: draft.die_together,
            variables: all,
            no_input: draft.daemonize,
        };
        launch.start()
    }

    fn write(&mut self) {
        let listed = self.machine.generations().iter().filter(|generation| generation.was_ready());
        let listed: Vec<(u64, u32)> = listed.map(|generation| (generation.number, generation.pid)).collect();
        if let Some(Err(error)) = self.status_file.as_mut().map(|file| file.write(&listed)) {
            self.tell(&with_causes(&error));
        }
    }

    /// Restarts the guard after a short pause.
    fn restart_guard(&mut self) {
        self.guard_at = None;
        match self.guarded.as_mut().map(GuardProcess::start) {
            Some(Ok(())) => {
                self.tell("the process that ends the command when this one dies had ended, and was started again");
            }
            Some(Err(error)) => {
                self.guard_at = Some(Instant::now() + PAUSE);
                self.tell(&format!("cannot start the process that ends the command when this one dies: {error}"));
            }
            None => {}
        }
    }

    /// Rereads the folder of variables.
    fn reload_environment(&mut self) {
        let mut problems = self.environment.reload();
        let (tunables, more) = self.environment.tunables();
        problems.extend(more);
        self.machine.tune(tunables);
        self.complain(problems);
    }

    /// Reports new problems only.
    fn complain(&mut self, problems: Vec<String>) {
        for problem in &problems {
            if !self.problems.contains(problem) {
                self.tell(problem);
            }
        }
        self.problems = problems;
    }

    fn tell(&mut self, line: &str) {
        (self.say)(line);
    }
}

/// Sends all signals of interest into one channel.
fn listen(sender: &UnboundedSender<Input>) -> io::Result<()> {
    let kinds = [
        SignalKind::child(),
        SignalKind::hangup(),
        SignalKind::terminate(),
        SignalKind::interrupt(),
        SignalKind::quit(),
        SignalKind::user_defined1(),
        SignalKind::alarm(),
    ];
    for kind in kinds {
        let mut arrivals = signal(kind)?;
        let sender = sender.clone();
        tokio::task::spawn_local(async move {
            while arrivals.recv().await.is_some() && sender.send(Input::Signal(kind)).is_ok() {}
        });
    }
    Ok(())
}

/// Kills a process and all its descendants. Its children become ours when it ends, so they are found first; and again
/// afterwards, because they may have had children meanwhile.
fn kill(pid: u32) {
    let below = descendants(pid);
    signal_to(pid, Signal::KILL);
    below.iter().for_each(|pid| _ = signal_to(*pid, Signal::KILL));
    below.iter().flat_map(|pid| descendants(*pid)).for_each(|pid| _ = signal_to(pid, Signal::KILL));
}

/// Whether a generation's process has become the command. Until then it has our name and the helper's arguments.
/// False if it has ended.
fn has_become_the_command(pid: u32, helper: &[OsString]) -> bool {
    let Ok(line) = std::fs::read(format!("/proc/{pid}/cmdline")) else { return false };
    let mut words = line.split(|byte| *byte == 0);
    let expected = std::iter::once(OWN_NAME.as_bytes()).chain(helper.iter().skip(1).map(|word| word.as_bytes()));
    !line.is_empty() && !expected.into_iter().all(|word| words.next() == Some(word))
}
