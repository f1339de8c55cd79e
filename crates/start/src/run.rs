//! The superdaemon at work: what happens goes into the machine, and what it decides is done.

mod ending;
mod logging;

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::rc::Rc;
use std::time::{Duration, Instant};

use oroshi_net::inherit::{Inherited, inherited_from_systemd};
use oroshi_net::listen::ListenError;
use oroshi_net::monotonic_ns;
use oroshi_net::notify::Manager;
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
use crate::control::{self, Ask};
use crate::environment::{AUTO_RESTART_INTERVAL, Environment};
use crate::files::{FileError, PidFile, StatusFile};
use crate::guard::{Guarded, OWN_NAME};
use crate::machine::{Action, Cause, ENDING, Event, Machine, News, Verdict};
use crate::output::{Log, LogError, LogTo, no_input};
use crate::plan::{Plan, Ready};
use crate::sockets::{Socket, SocketError, hold_all, variables};
use crate::status::{Began, Status};
use crate::waiting::Waiting;
use crate::watch::{Watch, Watchers};

/// The folder of variables is looked at so often while it decides when to restart, as `start_server` does.
const LOOK: Duration = Duration::from_secs(1);
/// The first generation is looked at so often until it has become the command: two calls of exec away.
const LOOK_AT_EXEC: Duration = Duration::from_millis(5);
/// The guard is started again no sooner than this.
const PAUSE: Duration = Duration::from_secs(1);

/// Why there is no superdaemon.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The pid file or the status file cannot be used; the cause says which and why.
    #[error(transparent)]
    File(#[from] FileError),
    /// One of the sockets cannot be made; the cause says which and why.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The log cannot be opened; the cause says why.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The control socket cannot be made; the cause says why.
    #[error("cannot listen for --status and --restart")]
    Control(#[source] ListenError),
    /// The first generation ended with 126 or 127, by which shells say that a command cannot be run: its output, in the log, says why.
    #[error("the command cannot be run: {why}")]
    Command {
        /// How it ended, in words.
        why: String,
    },
    /// The system refused what every process needs: descriptors, signals.
    #[error("{what}")]
    System {
        /// What could not be done.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

/// Runs the command behind its sockets until INT or TERM ends it all.
///
/// Sockets of systemd (LISTEN_FDS) are handed on before those of the plan.
///
/// `say` is given each line of the log. `settled` is called once nothing is left that a user may have got wrong: files, sockets and the log are
/// there, and the first generation has become the command. By then standard output and error lead to the plan's log. For a
/// process of its own, whose main thread calls this: it changes how signals are taken and where output goes, and waits for
/// every child there is.
///
/// # Errors
/// [`StartError`]: before anything was started, or because the command could not be run; whatever was made is removed, and `settled` was not
/// called.
pub fn run(plan: &Plan, say: &mut dyn FnMut(&str), settled: impl FnOnce() + 'static) -> Result<(), StartError> {
    // Before anything else is opened.
    let inherited = inherited_from_systemd().map_err(SocketError::Inherited)?;
    let system = |what| move |source| StartError::System { what, source };
    let mut builder = Builder::new_current_thread();
    let runtime = builder.enable_all().build_local(LocalOptions::default());
    let runtime = runtime.map_err(system("cannot prepare for events"))?;
    runtime.block_on(async {
        let (sender, events) = unbounded_channel();
        // First of all: from here on a signal no longer ends this process with its files left behind.
        listen(&sender).map_err(system("cannot prepare for signals"))?;
        let mut superdaemon = Superdaemon::new(plan, inherited, say, sender, events)?;
        superdaemon.redirect()?;
        superdaemon.introduce();
        superdaemon.have_the_log_read().await?;
        superdaemon.settled = Some(Box::new(settled));
        superdaemon.live().await;
        let never_ran = superdaemon.never_ran.take();
        superdaemon.end().await;
        never_ran.map_or(Ok(()), |why| Err(StartError::Command { why }))
    })
}

/// Something that happens.
enum Input {
    /// A signal.
    Signal(SignalKind),
    /// News for the machine.
    Event(Event),
    /// A question through the control socket.
    Ask(Ask),
}

/// The control socket at work.
struct Control {
    task: JoinHandle<()>,
    end: Rc<Notify>,
}

struct Superdaemon<'a> {
    plan: &'a Plan,
    say: &'a mut dyn FnMut(&str),
    events: UnboundedReceiver<Input>,
    sender: UnboundedSender<Input>,
    began: Began,
    environment: Environment,
    /// What was wrong with the environment when it was last looked at.
    problems: Vec<String>,
    machine: Machine,
    watchers: Watchers,
    waiting: Waiting,
    manager: Manager,
    control: Option<Control>,
    guarded: Option<Guarded>,
    log: Option<Log>,
    /// When the guard is started again.
    guard_at: Option<Instant>,
    status_file: Option<StatusFile>,
    sockets: Vec<Socket>,
    /// To be called when the first generation is the command, or has failed in a way that another attempt may mend.
    settled: Option<Box<dyn FnOnce()>>,
    /// Why the command cannot be run at all.
    never_ran: Option<String>,
    /// Held for its lock; the last to go.
    _pid_file: Option<PidFile>,
}

impl<'a> Superdaemon<'a> {
    /// Makes everything that it owns.
    fn new(
        plan: &'a Plan,
        inherited: Vec<Inherited>,
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
        let log = draft.log.as_ref().map(LogTo::open).transpose()?;
        let sockets = hold_all(inherited, &draft.places, &draft.listening)?;
        let machine = Machine::new(plan.policy(), tunables);
        let mut superdaemon = Self {
            plan,
            say,
            events,
            sender,
            began: Began::now(),
            environment,
            problems: Vec::new(),
            machine,
            watchers: Watchers::default(),
            waiting: Waiting::default(),
            manager: Manager::find(),
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
        let (asks, ending) = (control::into_channel(self.sender.clone(), Input::Ask), Rc::clone(&end));
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
            // Here, as it writes to the log too.
            let patience = draft.stop_timeout.unwrap_or(ENDING);
            let guarded = Guarded::new(&draft.guard, draft.signal_on_term, patience);
            let what = "cannot start the process that ends the command when this one dies";
            self.guarded = Some(guarded.map_err(|source| StartError::System { what, source })?);
        }
        Ok(())
    }

    /// Says what it listens at.
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
            self.look_whether_it_runs();
            let input = self.next().await;
            // Before anything is decided: that a generation has ended may be told later than what happened after it, such as
            // that its time to be ready has come.
            if !self.reap() {
                return;
            }
            self.look_at_environment();
            let goes_on = match input {
                None => self.happens(Event::Due),
                Some(Input::Event(event)) => self.happens(event),
                Some(Input::Ask(ask)) => self.answer(ask),
                Some(Input::Signal(kind)) => self.signal(kind),
            };
            if !goes_on {
                return;
            }
        }
    }

    /// The next thing that happens, or `None` when something is due.
    async fn next(&mut self) -> Option<Input> {
        let now = Instant::now();
        let watched = self.environment.envdir().is_some() && self.environment.tunables().0.auto_restart.is_some();
        let look = watched.then(|| now + LOOK);
        let look = self.settled.is_some().then(|| now + LOOK_AT_EXEC).or(look);
        match self.machine.due().into_iter().chain(look).chain(self.log_due()).chain(self.guard_at).min() {
            Some(due) => tokio::time::timeout_at(due.into(), self.events.recv()).await.ok().flatten(),
            // We hold the other end ourselves.
            None => self.events.recv().await,
        }
    }

    /// Tells whoever started this process that all is well, once the first generation has become the command. Until then a process of
    /// a generation goes by a name of ours.
    fn look_whether_it_runs(&mut self) {
        if self.settled.is_some()
            && let Some(first) = self.machine.generations().first()
            && has_become_the_command(first.pid, &self.plan.draft.helper)
            && let Some(settled) = self.settled.take()
        {
            settled();
        }
    }

    /// Whether there is something left to live for.
    fn signal(&mut self, kind: SignalKind) -> bool {
        match kind {
            // They have been seen to.
            kind if kind == SignalKind::child() => true,
            kind if kind == SignalKind::hangup() => self.happens(Event::Restart(Cause::Hup)),
            kind if kind == SignalKind::user_defined1() => {
                self.reopen_log("received USR1: the log file is opened anew");
                true
            }
            // Only so that it does no harm: start_server takes no notice of it either.
            kind if kind == SignalKind::alarm() => true,
            kind => {
                let named = Signal::from_named_raw(kind.as_raw_value()).unwrap_or(Signal::TERM);
                self.happens(Event::Stop(named))
            }
        }
    }

    fn answer(&mut self, ask: Ask) -> bool {
        match ask {
            Ask::Status(reply) => {
                let command = self.plan.command().iter().map(|word| word.to_string_lossy().into_owned()).collect();
                // Whoever asked may have gone.
                let reader = self.log.as_ref().and_then(Log::reader);
                let _ = reply.send(Status::now(&self.machine, &self.sockets, command, reader, &self.began));
                true
            }
            Ask::Restart { first, reply } => {
                self.waiting.add(&self.machine, first, reply);
                self.happens(Event::Restart(Cause::Control))
            }
        }
    }

    /// Takes note of every process that has ended.
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
                // Nobody has ended, or there is nobody.
                Ok(None) | Err(_) => return goes_on,
            }
        }
    }

    /// Tells the machine, and does what it says. False: all is done.
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
                Action::Tell(news) => self.news(&news),
                Action::Verdict(verdict) => self.come_out(&verdict),
                Action::Leave => goes_on = false,
            }
        }
        self.waiting.look(&self.machine);
        goes_on
    }

    /// Into the log, and to whoever started this process.
    fn news(&mut self, news: &News) {
        match news {
            News::Asked { .. } | News::Again => {
                let now = monotonic_ns() / 1000;
                self.manager.tell(&format!("RELOADING=1\nMONOTONIC_USEC={now}"));
            }
            News::Stop { .. } => self.manager.tell("STOPPING=1"),
            _ => {}
        }
        self.tell(&news.to_string());
    }

    fn come_out(&mut self, verdict: &Verdict) {
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
        self.waiting.come_out(verdict);
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
                // We hold the other end for as long as we live.
                let tell = move |event| _ = sender.send(Input::Event(event));
                self.watchers.begin(number, pid, ready, watch, tell);
                Event::Started { number, pid }
            }
            Err(error) => Event::NotStarted { number, why: format!("no process could be made: {error}") },
        }
    }

    fn launch(&mut self, number: u64, watch: &Watch) -> io::Result<u32> {
        self.look_at_environment();
        // A file that was moved away meanwhile is followed by a new one here.
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
        if let Some((name, mark)) = self.guarded.as_ref().map(Guarded::variable) {
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

    /// The guard is never left out for long.
    fn restart_guard(&mut self) {
        self.guard_at = None;
        match self.guarded.as_mut().map(Guarded::start) {
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

    /// Reads the folder of variables again.
    fn look_at_environment(&mut self) {
        let mut problems = self.environment.reload();
        let (tunables, more) = self.environment.tunables();
        problems.extend(more);
        self.machine.tune(tunables);
        self.complain(problems);
    }

    /// Tells problems that were not there the last time.
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

/// Everything that is of interest goes into one channel.
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

/// Kills a process and everything below it. Its children would become ours when it is gone, so they are looked for first; and
/// once more, as they may have had children themselves meanwhile.
fn kill(pid: u32) {
    let below = descendants(pid);
    signal_to(pid, Signal::KILL);
    below.iter().for_each(|pid| _ = signal_to(*pid, Signal::KILL));
    below.iter().flat_map(|pid| descendants(*pid)).for_each(|pid| _ = signal_to(pid, Signal::KILL));
}

/// Whether a generation's process has become the command. Until then it goes by our name and the helper's words. False where it has ended.
fn has_become_the_command(pid: u32, helper: &[OsString]) -> bool {
    let Ok(line) = std::fs::read(format!("/proc/{pid}/cmdline")) else { return false };
    let mut words = line.split(|byte| *byte == 0);
    let expected = std::iter::once(OWN_NAME.as_bytes()).chain(helper.iter().skip(1).map(|word| word.as_bytes()));
    !line.is_empty() && !expected.into_iter().all(|word| words.next() == Some(word))
}
