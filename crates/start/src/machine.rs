//! The superdaemon's decisions: events in, actions out. No process, no clock, no file: time is an argument.
//!
//! A generation is *starting* until it is ready, then *serving*, then *stopping* until its process has ended. At most
//! one is starting. Serving generations accept from the same sockets. Usually one serves; two while the older waits
//! to be told to stop (`--kill-old-delay`).

mod event;
mod generation;
mod message;

use std::time::{Duration, Instant};

use rustix::process::Signal;

pub use event::{Action, Event, Verdict};
pub use generation::{Generation, Stage};
pub(crate) use message::seconds;
pub use message::{AfterFailure, Cause, GenerationEnd, GenerationId, LogMessage};

use generation::later;

/// Settings that never change while the superdaemon runs.
#[derive(Clone, Debug)]
pub struct Policy {
    /// The minimum time between starts after a failure; for [`Readiness::Alive`], also the time that a generation
    /// must live to be ready.
    pub interval: Duration,
    /// The condition for readiness.
    pub readiness: Readiness,
    /// Whether a failed restart is retried until it succeeds, as `start_server` does. Otherwise the older generation
    /// stays until the next request.
    pub keep_trying: bool,
    /// The signal to older generations when a newer one is ready.
    pub signal_on_hup: Signal,
    /// The signal to all generations when TERM stops the superdaemon.
    pub signal_on_term: Signal,
    /// Time for a generation to end before it is killed; `None`: unlimited.
    pub stop_timeout: Option<Duration>,
}

/// The condition for a generation's readiness.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// It is still alive after the interval.
    Alive,
    /// [`Event::Ready`] arrives before the timeout; otherwise it has failed.
    Notified {
        /// Longest time until it is ready.
        timeout: Duration,
    },
}

/// Settings that variables may change while the superdaemon runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tunables {
    /// How long older generations keep serving beside a ready one before they are told to stop.
    pub kill_old_delay: Duration,
    /// Interval of automatic restarts; `None`: none.
    pub auto_restart: Option<Duration>,
}

/// A generation that did not become ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Its number.
    pub number: u64,
    /// The reason.
    pub why: String,
    /// The time of the failure.
    pub at: Instant,
}

/// Counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Restarts that produced a new generation.
    pub restarts: u64,
    /// Generations that did not become ready.
    pub failed: u64,
    /// Generations that ended without being told to.
    pub died: u64,
    /// Generations that had to be killed.
    pub killed: u64,
}

/// Default time for a failing generation to end before it is killed: it never had work to finish.
pub const ENDING: Duration = Duration::from_secs(10);
/// A generation that has served this long is not part of a crash loop.
pub const STABLE: Duration = Duration::from_secs(10);
/// The pause after the first failure, unless the interval is longer; each further failure doubles it.
pub const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The longest pause, unless the interval is longer.
pub const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Returns the time between starts after this many failures in a row.
pub(crate) fn pause(failures: u32) -> Duration {
    LONGEST_PAUSE.min(FIRST_PAUSE * (1 << failures.saturating_sub(1).min(16)))
}

/// Exit codes for a command that is not executable or does not exist (POSIX.1-2017, Shell Command Language, section
/// 2.8.2). Our own child process uses them too.
pub const CANNOT_RUN: [i32; 2] = [126, 127];

/// The state of all decisions.
#[derive(Debug)]
pub struct Machine {
    policy: Policy,
    tunables: Tunables,
    /// From the oldest to the newest.
    generations: Vec<Generation>,
    /// The number of the last start.
    last: u64,
    last_start: Option<Instant>,
    /// Time when the last start succeeded or failed; None before the first success.
    last_restart: Option<Instant>,
    /// Time of the next start.
    start_at: Option<Instant>,
    /// Whether a start was requested, and neither [`Event::Started`] nor [`Event::NotStarted`] has arrived.
    launching: bool,
    /// Whether a restart was requested while a generation was starting.
    again: bool,
    /// Failures in a row: a generation that serves for [`STABLE`] after the last of them ends the row.
    failures: u32,
    /// Time of the last failure.
    failed_at: Option<Instant>,
    /// The signal that requested the end.
    stopping: Option<Signal>,
    /// Number of INT signals.
    interrupts: u32,
    counts: Counts,
    last_failure: Option<Failure>,
    actions: Vec<Action>,
}

impl Machine {
    /// Makes a machine without events.
    pub fn new(policy: Policy, tunables: Tunables) -> Self {
        Self {
            policy,
            tunables,
            generations: Vec::new(),
            last: 0,
            last_start: None,
            last_restart: None,
            start_at: None,
            launching: false,
            again: false,
            failures: 0,
            failed_at: None,
            stopping: None,
            interrupts: 0,
            counts: Counts::default(),
            last_failure: None,
            actions: Vec::new(),
        }
    }

    /// Returns the actions for an event.
    pub fn handle(&mut self, now: Instant, event: Event) -> Vec<Action> {
        match event {
            Event::Begin => self.start(now),
            Event::Restart(cause) => self.restart(now, cause),
            Event::Stop(signal) => self.stop(now, signal),
            Event::Started { number, pid } => self.started(now, number, pid),
            Event::NotStarted { number, why } => {
                self.launching = false;
                self.failed(now, GenerationId { number, pid: None }, GenerationEnd::NotStarted(why));
            }
            Event::Ready { number } => self.told_ready(now, number),
            Event::Found { number, what } => {
                if let Some(generation) = self.generations.iter_mut().find(|one| one.number == number) {
                    generation.found = Some(what);
                }
            }
            Event::Exited { pid, how, code } => self.exited(now, pid, how, code),
            Event::Due => {}
        }
        self.due_now(now);
        std::mem::take(&mut self.actions)
    }

    /// Updates the settings from the variables.
    pub fn tune(&mut self, tunables: Tunables) {
        self.tunables = tunables;
    }

    /// Returns the latest time for the next [`Event::Due`].
    pub fn due(&self) -> Option<Instant> {
        let stages = self.generations.iter().filter_map(|generation| match generation.stage {
            Stage::Starting { until } => Some(until),
            Stage::Serving => generation.hand_over_at,
            Stage::Stopping { kill_at, .. } => kill_at,
        });
        stages.chain(self.start_at).chain(self.auto_restart_at()).min()
    }

    /// The generations from the oldest to the newest.
    pub fn generations(&self) -> &[Generation] {
        &self.generations
    }

    /// The counters.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Returns the time of the next start, while nothing is starting.
    pub fn next_start(&self) -> Option<Instant> {
        self.start_at
    }

    /// Whether another generation is starting, or will start without a request.
    pub fn will_start(&self) -> bool {
        self.start_at.is_some() || self.launching || self.starting().is_some()
    }

    /// Whether the end was requested.
    pub fn is_stopping(&self) -> bool {
        self.stopping.is_some()
    }

    /// The number of the next start.
    pub fn next_number(&self) -> u64 {
        self.last + 1
    }

    /// The last generation that did not become ready.
    pub fn last_failure(&self) -> Option<&Failure> {
        self.last_failure.as_ref()
    }

    /// The newest serving generation.
    pub fn current(&self) -> Option<&Generation> {
        self.generations.iter().rfind(|generation| generation.is_serving())
    }

    fn starting(&self) -> Option<&Generation> {
        self.generations.iter().find(|generation| matches!(generation.stage, Stage::Starting { .. }))
    }

    fn tell(&mut self, news: LogMessage) {
        self.actions.push(Action::Log(news));
    }

    fn restart(&mut self, now: Instant, cause: Cause) {
        if self.is_stopping() {
            return self.tell(LogMessage::TooLate { cause });
        }
        if let Some(who) = self.starting().map(Generation::who) {
            self.again = true;
            return self.tell(LogMessage::Queued { cause, after: who });
        }
        self.tell(LogMessage::Asked { cause });
        self.start(now);
    }

    fn start(&mut self, now: Instant) {
        self.again = false;
        self.start_at = None;
        self.launching = true;
        self.last += 1;
        self.last_start = Some(now);
        self.actions.push(Action::Start { number: self.last });
    }

    fn started(&mut self, now: Instant, number: u64, pid: u32) {
        self.launching = false;
        let wait = match self.policy.readiness {
            Readiness::Alive => self.policy.interval,
            Readiness::Notified { timeout } => timeout,
        };
        let stage = Stage::Starting { until: later(now, wait) };
        let generation = Generation { number, pid, started: now, ready: None, stage, hand_over_at: None, found: None };
        self.generations.push(generation);
        self.tell(LogMessage::Started { who: GenerationId { number, pid: Some(pid) } });
    }

    fn told_ready(&mut self, now: Instant, number: u64) {
        // A late or repeated message changes nothing.
        if self.starting().is_some_and(|generation| generation.number == number) {
            self.ready(now);
        }
    }

    /// Makes the starting generation ready.
    fn ready(&mut self, now: Instant) {
        let Some(generation) =
            self.generations.iter_mut().find(|generation| matches!(generation.stage, Stage::Starting { .. }))
        else {
            return;
        };
        generation.stage = Stage::Serving;
        generation.ready = Some(now);
        let (who, after) = (generation.who(), now.saturating_duration_since(generation.started));
        if self.older_serving().next().is_some() {
            self.counts.restarts += 1;
        }
        self.last_restart = Some(now);
        let delay = self.tunables.kill_old_delay;
        // Older generations with a scheduled end keep that time.
        let mut older = Vec::new();
        for generation in self.older_serving_mut().filter(|generation| generation.hand_over_at.is_none()) {
            generation.hand_over_at = Some(later(now, delay));
            older.push(generation.who());
        }
        self.actions.push(Action::Write);
        self.tell(LogMessage::Ready { who: who.clone(), after, older, delay, signal: self.policy.signal_on_hup });
        self.actions.push(Action::Verdict(Verdict::Ready(who)));
        if delay.is_zero() {
            self.hand_over(now);
        }
        if self.again {
            self.tell(LogMessage::Again);
            self.start(now);
        }
    }

    /// Returns the generations that serve beside a newer one.
    fn older_serving(&self) -> impl Iterator<Item = &Generation> {
        let newest = self.current().map(|generation| generation.number);
        self.generations.iter().filter(move |one| one.is_serving() && Some(one.number) != newest)
    }

    fn older_serving_mut(&mut self) -> impl Iterator<Item = &mut Generation> {
        let newest = self.current().map(|generation| generation.number);
        self.generations.iter_mut().filter(move |one| one.is_serving() && Some(one.number) != newest)
    }

    /// Tells the older generations that are due to stop, and returns them. Each is told once: for many programs a
    /// second signal means "at once".
    fn hand_over(&mut self, now: Instant) -> Vec<GenerationId> {
        let (signal, patience) = (self.policy.signal_on_hup, self.policy.stop_timeout);
        let mut told = Vec::new();
        for generation in self.older_serving_mut().filter(|one| one.hand_over_at.is_some_and(|at| at <= now)) {
            generation.stop(now, signal, patience);
            told.push(generation.who());
        }
        self.actions.extend(told.iter().filter_map(|who| Some(Action::Signal { pid: who.pid?, signal })));
        told
    }

    fn exited(&mut self, now: Instant, pid: u32, how: String, code: Option<i32>) {
        let Some(index) = self.generations.iter().position(|generation| generation.pid == pid) else { return };
        let newest = self.current().map(|generation| generation.number);
        let generation = self.generations.remove(index);
        let (who, age) = (generation.who(), now.saturating_duration_since(generation.started));
        match generation.stage {
            Stage::Starting { .. } if self.never_ready() && code.is_some_and(|code| CANNOT_RUN.contains(&code)) => {
                self.give_up(now, who, GenerationEnd::Died { how, after: age });
            }
            Stage::Starting { .. } => self.failed(now, who, GenerationEnd::Died { how, after: age }),
            Stage::Stopping { since, signal, .. } => {
                if generation.was_ready() {
                    self.actions.push(Action::Write);
                }
                self.tell(LogMessage::Stopped { who, how, signal, after: now.saturating_duration_since(since) });
            }
            Stage::Serving => {
                self.actions.push(Action::Write);
                self.died(now, who, &how, generation.ready.unwrap_or(now), newest);
            }
        }
        if self.is_stopping() && self.generations.is_empty() {
            self.actions.push(Action::Leave);
        }
    }

    /// Handles the unexpected end of a serving generation.
    fn died(&mut self, now: Instant, who: GenerationId, how: &str, since: Instant, newest: Option<u64>) {
        self.counts.died += 1;
        let (how, served) = (how.to_owned(), now.saturating_duration_since(since));
        if newest != Some(who.number) {
            // It was about to be told to stop.
            return self.tell(LogMessage::Gone { who, how, after: served });
        }
        if let Some(stays) = self.generations.iter_mut().rfind(|one| one.is_serving()) {
            // The previous generation was not told to stop yet: it continues.
            stays.hand_over_at = None;
            let stays = stays.who();
            let why = GenerationEnd::Died { how, after: served };
            self.tell(LogMessage::Relapse { who: who.clone(), stays });
            return self.failed(now, who, why);
        }
        self.count_failure(now, served >= STABLE);
        let next = match self.starting().map(Generation::who) {
            Some(after) => AfterFailure::Starting(after),
            None => self.start_later(now),
        };
        self.tell(LogMessage::Died { who, how, served, next });
    }

    /// Whether no generation has been ready so far.
    fn never_ready(&self) -> bool {
        self.last_restart.is_none() && self.generations.is_empty()
    }

    /// Stops trying: the command cannot run, and never could, so another attempt would fail too.
    fn give_up(&mut self, now: Instant, who: GenerationId, ended: GenerationEnd) {
        self.counts.failed += 1;
        let why = ended.to_string();
        self.last_failure = Some(Failure { number: who.number, why: why.clone(), at: now });
        let verdict = Verdict::Failed { number: who.number, why, stays: None, again: false };
        self.tell(LogMessage::Failed { who, ended, stays: None, next: AfterFailure::Nothing });
        self.actions.extend([Action::Verdict(verdict), Action::Leave]);
    }

    /// Handles a generation that will not become ready.
    fn failed(&mut self, now: Instant, who: GenerationId, ended: GenerationEnd) {
        self.counts.failed += 1;
        let proven = |one: &Generation| {
            let ready = one.ready.filter(|ready| self.failed_at.is_none_or(|failed| failed < *ready))?;
            Some(now.saturating_duration_since(ready) >= STABLE)
        };
        let ends_a_row = self.current().and_then(proven).unwrap_or(false);
        self.count_failure(now, ends_a_row);
        // A failed automatic restart is due again after the same interval as a successful one.
        self.last_restart = self.last_restart.map(|_| now);
        let stays = self.current().map(Generation::who);
        let next = if stays.is_none() || self.policy.keep_trying || self.again {
            self.start_later(now)
        } else {
            AfterFailure::Nothing
        };
        let again = next != AfterFailure::Nothing;
        let why = ended.to_string();
        self.last_failure = Some(Failure { number: who.number, why: why.clone(), at: now });
        let verdict = Verdict::Failed { number: who.number, why, stays: stays.clone(), again };
        self.tell(LogMessage::Failed { who, ended, stays, next });
        self.actions.push(Action::Verdict(verdict));
    }

    /// Counts a failure: as part of the row, or as the first of a new one.
    fn count_failure(&mut self, now: Instant, is_first: bool) {
        self.failures = if is_first { 1 } else { self.failures.saturating_add(1) };
        self.failed_at = Some(now);
    }

    /// Schedules the next start: at once, or later after failures.
    fn start_later(&mut self, now: Instant) -> AfterFailure {
        let pause = pause(self.failures).max(self.policy.interval);
        let at = self.last_start.map_or(now, |start| later(start, pause)).max(now);
        self.start_at = Some(at);
        AfterFailure::Start { after: at - now }
    }

    fn stop(&mut self, now: Instant, signal: Signal) {
        self.interrupts += u32::from(signal == Signal::INT);
        if self.is_stopping() {
            let left: Vec<GenerationId> = self.generations.iter().map(Generation::who).collect();
            // A user pressed Ctrl-C twice to avoid waiting. TERM may arrive twice automatically, as from systemd
            // after an ExecStop that does not wait.
            let at_once = signal == Signal::INT && self.interrupts >= 2;
            self.tell(LogMessage::StopAgain { signal, left, at_once });
            if at_once {
                for generation in &mut self.generations {
                    self.actions.push(Action::Kill { pid: generation.pid });
                    generation.killed(now);
                    self.counts.killed += 1;
                }
            }
            return;
        }
        self.stopping = Some(signal);
        (self.start_at, self.again) = (None, false);
        // As in start_server: the setting for TERM applies to TERM only.
        let to_send = if signal == Signal::TERM { self.policy.signal_on_term } else { Signal::TERM };
        let told: Vec<GenerationId> = self.generations.iter().map(Generation::who).collect();
        self.tell(LogMessage::Stop { signal, to_send, told });
        for generation in &mut self.generations {
            // A generation that got the same signal before is already stopping.
            if !matches!(generation.stage, Stage::Stopping { signal, .. } if signal == to_send) {
                self.actions.push(Action::Signal { pid: generation.pid, signal: to_send });
            }
            generation.stop(now, to_send, self.policy.stop_timeout);
        }
        if self.generations.is_empty() {
            self.actions.push(Action::Leave);
        }
    }

    /// Does everything that is due.
    fn due_now(&mut self, now: Instant) {
        for index in 0..self.generations.len() {
            let generation = &mut self.generations[index];
            match generation.stage {
                Stage::Stopping { kill_at: Some(at), since, signal, .. } if at <= now => {
                    generation.killed(now);
                    let (who, pid) = (generation.who(), generation.pid);
                    self.counts.killed += 1;
                    self.tell(LogMessage::Killed { who, signal, after: now.saturating_duration_since(since) });
                    self.actions.push(Action::Kill { pid });
                }
                Stage::Starting { until } if until <= now => match self.policy.readiness {
                    Readiness::Alive => self.ready(now),
                    Readiness::Notified { timeout } => self.timed_out(now, index, timeout),
                },
                _ => {}
            }
        }
        let older = self.hand_over(now);
        if !older.is_empty() {
            self.tell(LogMessage::HandOver { older, signal: self.policy.signal_on_hup });
        }
        if self.start_at.is_some_and(|at| at <= now) {
            self.start(now);
        }
        if self.auto_restart_at().is_some_and(|at| at <= now) {
            self.restart(now, Cause::Time);
        }
    }

    /// Handles a generation that was not ready in time.
    fn timed_out(&mut self, now: Instant, index: usize, timeout: Duration) {
        let signal = self.policy.signal_on_term;
        let generation = &mut self.generations[index];
        let (who, pid, found) = (generation.who(), generation.pid, generation.found.take());
        generation.stop(now, signal, Some(self.policy.stop_timeout.unwrap_or(ENDING)));
        self.failed(now, who, GenerationEnd::NotReady { timeout, found });
        self.actions.push(Action::Signal { pid, signal });
    }

    /// Returns the time of the next automatic restart: later while an older generation exists, as in start_server.
    fn auto_restart_at(&self) -> Option<Instant> {
        let interval = self.tunables.auto_restart?;
        let busy = self.is_stopping() || self.launching || self.start_at.is_some() || self.starting().is_some();
        if busy || self.current().is_none() {
            return None;
        }
        let wait = if self.generations.len() > 1 { interval.saturating_mul(2) } else { interval };
        Some(later(self.last_restart?, wait))
    }
}

#[cfg(test)]
mod tests;
