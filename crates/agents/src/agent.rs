//! An agent as a state machine: messages and events in, actions out. The caller passes the time.

use std::collections::VecDeque;

use crate::clock::ClockId;
use crate::parcel::{Assembly, PLAN_BYTES, Packed, WINDOW};
use crate::wire::{Down, FromAgent, Job, ToAgent, Up};

/// An agent that hears nothing of its coordinator for this long ends its load, nanoseconds.
pub const PATIENCE: u64 = 4_000_000_000;
/// How long an agent waits for the confirmation of its last delta before it keeps the run for later.
const LINGER: u64 = 2 * PATIENCE;
/// Runs that are kept for later, and the bytes of all their deltas.
const KEPT_RUNS: usize = 4;
const KEPT_BYTES: usize = 256 << 20;
/// Deltas that are sent again at a time.
const AGAIN: usize = 8;
/// How long a delta may be unconfirmed before it is sent again, nanoseconds; twice as long after each time, up to
/// [`PATIENCE`]. A coordinator that is behind has more to do with each delta that comes twice.
const UNCONFIRMED: u64 = 1_000_000_000;

/// What the agent's surroundings are to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Send this.
    Send(Up),
    /// Read the job, and open its connections. The load says [`Agent::prepared`] or [`Agent::failed`].
    Prepare(Box<Job>),
    /// Start the load at this moment of this machine's monotonic clock, nanoseconds.
    Start(u64),
    /// Another agent has published this.
    Published(Vec<u8>),
    /// End the load, or its preparation.
    Stop,
}

/// The part of a run that an agent has, or keeps.
#[derive(Debug)]
struct Task {
    run: u64,
    session: u64,
    job: Box<Job>,
    /// The job, while it comes in pieces.
    assembly: Option<Assembly>,
    /// The job as it travels, for a coordinator that collects the run.
    packed: Option<Packed>,
    phase: Phase,
    /// When the coordinator was last heard.
    heard: u64,
    deltas: Vec<Vec<u8>>,
    /// Deltas that the coordinator has.
    confirmed: usize,
    /// When the agent sends the others again, unless the coordinator confirms one of them; `None`: there are no others.
    again: Option<u64>,
    /// How long the agent waits before it does, nanoseconds.
    pause: u64,
    /// A new coordinator collects the run: it asks for the next deltas by confirming those before.
    is_collected: bool,
    /// The messages that it has published, and whether the coordinator has told the published messages.
    published: Option<Vec<u8>>,
    knows_published: bool,
    /// Mistakes that it told, and whether the coordinator knows them.
    refused: Option<Vec<String>>,
    is_known: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The plan is on its way.
    Fetching,
    Preparing,
    Ready,
    Running,
    /// The load was told to end.
    Stopping,
    /// The load has ended.
    Ended,
}

/// An agent.
#[derive(Debug)]
pub struct Agent {
    name: String,
    /// Drawn anew after each run.
    session: u64,
    task: Option<Task>,
    /// The last runs, for a coordinator that collects them.
    kept: VecDeque<Task>,
    random: fn() -> u64,
    /// The largest plan that it takes, bytes.
    most_plan: u64,
    clock: Option<ClockId>,
}

impl Agent {
    /// An agent without a run. `random` draws sessions. `most_plan`: the largest plan that it takes, bytes.
    pub fn new(name: String, random: fn() -> u64, most_plan: u64) -> Self {
        let most_plan = most_plan.min(PLAN_BYTES);
        Self { name, session: random(), task: None, kept: VecDeque::new(), random, most_plan, clock: None }
    }

    /// Names the clock that this agent reads; without a name it is one that nobody else reads.
    #[must_use]
    pub fn with_clock(mut self, clock: Option<ClockId>) -> Self {
        self.clock = clock;
        self
    }

    /// Whether it prepares or carries out a load.
    #[must_use]
    pub fn is_loading(&self) -> bool {
        self.task.as_ref().is_some_and(|task| !matches!(task.phase, Phase::Fetching | Phase::Ended))
    }

    /// Takes a message of a coordinator.
    pub fn message(&mut self, down: Down, now: u64) -> Vec<Action> {
        let Down { run, session, body } = down;
        match body {
            ToAgent::Who => {
                let busy = self.task.as_ref().is_some_and(|task| task.run != run);
                let (run, session) = (0, self.task.as_ref().map_or(self.session, |task| task.session));
                let body = FromAgent::Here { name: self.name.clone(), busy, clock: self.clock };
                vec![Action::Send(Up { run, session, body })]
            }
            ToAgent::Collect => self.collect(run, now),
            ToAgent::Plan(job) if self.task.is_none() && session == self.session => {
                let task = self.task.insert(Task::new(run, session, job, now));
                task.prepare()
            }
            ToAgent::Large(index, of, parcel) if self.task.is_none() && session == self.session => {
                let job = Box::new(Job { index, of, ..Job::default() });
                let task = self.task.insert(Task::new(run, session, job, now));
                let (bytes, most) = (parcel.plain, self.most_plan);
                match Assembly::new(parcel, most) {
                    Ok(assembly) => task.assembly = Some(assembly),
                    Err(_) => {
                        return task.refuse(format!("a plan of {bytes} bytes: this agent's --max-plan is {most}"));
                    }
                }
                vec![task.says(FromAgent::Wants(0))]
            }
            body => {
                let own = |task: &&mut Task| task.run == run && task.session == session;
                if let Some(task) = self.task.as_mut().filter(own) {
                    return task.hear(body, now);
                }
                // A run that is kept takes confirmations alone.
                let kept = self.kept.iter_mut().find(|task| task.run == run && task.session == session);
                kept.map_or_else(Vec::new, |task| task.hear(body, now))
            }
        }
    }

    /// The job was read, and all connections are open.
    pub fn prepared(&mut self) -> Vec<Action> {
        let Some(task) = self.task.as_mut().filter(|task| task.phase == Phase::Preparing) else { return Vec::new() };
        task.phase = Phase::Ready;
        vec![task.says(FromAgent::Ready)]
    }

    /// The load cannot be carried out, or ended without a result.
    pub fn failed(&mut self, mistakes: Vec<String>) -> Vec<Action> {
        self.task.as_mut().map_or_else(Vec::new, |task| task.fail(mistakes))
    }

    /// The load has published this.
    pub fn published(&mut self, sent: Vec<u8>) -> Vec<Action> {
        let Some(task) = &mut self.task else { return Vec::new() };
        task.published = Some(sent.clone());
        vec![task.says(FromAgent::Published(sent))]
    }

    /// The load counted something. `last`: it has ended.
    pub fn delta(&mut self, delta: Vec<u8>, last: bool) -> Vec<Action> {
        let Some(task) = &mut self.task else { return Vec::new() };
        let number = task.deltas.len() as u32;
        let said = task.says(FromAgent::Delta(number, delta.clone()));
        task.deltas.push(delta);
        if last {
            task.phase = Phase::Ended;
        }
        vec![said]
    }

    /// Time passes: to be called several times per second.
    pub fn tick(&mut self, now: u64) -> Vec<Action> {
        let mut actions = Vec::new();
        let Some(task) = &mut self.task else { return actions };
        let silence = now.saturating_sub(task.heard);
        match task.phase {
            Phase::Ended => {
                let is_confirmed = task.confirmed == task.deltas.len() && task.refused.is_none();
                let is_refused = task.refused.is_some() && (task.is_known || silence > PATIENCE);
                if is_confirmed || silence > LINGER || is_refused {
                    self.leave();
                }
            }
            Phase::Stopping => {}
            Phase::Fetching if silence > PATIENCE => self.leave(),
            _ if silence > PATIENCE => {
                task.phase = Phase::Stopping;
                actions.push(Action::Stop);
            }
            _ => {}
        }
        actions
    }

    /// Ends the run, and keeps it: the coordinator may end before it has written its report.
    fn leave(&mut self) {
        let Some(task) = self.task.take() else { return };
        self.session = (self.random)();
        if task.refused.is_some() || task.deltas.is_empty() {
            return;
        }
        self.kept.push_back(task);
        let bytes = |kept: &VecDeque<Task>| kept.iter().flat_map(|task| &task.deltas).map(Vec::len).sum::<usize>();
        while self.kept.len() > KEPT_RUNS || self.kept.len() > 1 && bytes(&self.kept) > KEPT_BYTES {
            self.kept.pop_front();
        }
    }

    /// Gives a run from its beginning to a new coordinator.
    fn collect(&mut self, run: u64, now: u64) -> Vec<Action> {
        let ended = |task: &&mut Task| task.run == run && task.phase == Phase::Ended && !task.deltas.is_empty();
        let Some(task) = self.task.iter_mut().chain(&mut self.kept).find(ended) else { return Vec::new() };
        (task.confirmed, task.heard, task.is_collected) = (0, now, true);
        let (name, deltas) = (self.name.clone(), task.deltas.len() as u32);
        if task.packed.is_none() {
            // It was packed before, so it is not too large.
            task.packed = Packed::new((*task.job).clone()).ok();
        }
        let keeps = match &task.packed {
            Some(Packed::Pieces(parcel, _)) => {
                FromAgent::KeepsLarge(name, task.job.index, task.job.of, parcel.clone(), deltas)
            }
            _ => FromAgent::Keeps(name, task.job.clone(), deltas),
        };
        vec![task.says(keeps)]
    }
}

impl Task {
    fn new(run: u64, session: u64, job: Box<Job>, now: u64) -> Self {
        Self {
            run,
            session,
            job,
            assembly: None,
            packed: None,
            phase: Phase::Fetching,
            heard: now,
            deltas: Vec::new(),
            confirmed: 0,
            again: None,
            pause: UNCONFIRMED,
            is_collected: false,
            published: None,
            knows_published: false,
            refused: None,
            is_known: false,
        }
    }

    /// The job is here.
    fn prepare(&mut self) -> Vec<Action> {
        self.phase = Phase::Preparing;
        vec![self.says(FromAgent::Preparing), Action::Prepare(self.job.clone())]
    }

    fn refuse(&mut self, mistake: String) -> Vec<Action> {
        self.fail(vec![mistake])
    }

    fn fail(&mut self, mistakes: Vec<String>) -> Vec<Action> {
        self.phase = Phase::Ended;
        self.refused = Some(mistakes.clone());
        vec![self.says(FromAgent::Refused(mistakes))]
    }

    /// Takes a piece of the plan.
    fn piece(&mut self, number: u32, piece: &[u8]) -> Vec<Action> {
        let Some(assembly) = self.assembly.as_mut().filter(|assembly| assembly.next() == number) else {
            return Vec::new();
        };
        match assembly.take(number, piece) {
            Ok(None) => {
                let next = assembly.next();
                vec![self.says(FromAgent::Wants(next))]
            }
            Ok(Some(job)) => {
                self.assembly = None;
                *self.job = Job { index: self.job.index, of: self.job.of, ..job };
                self.prepare()
            }
            Err(error) => {
                self.assembly = None;
                self.refuse(format!("the plan came in pieces, and {error}"))
            }
        }
    }

    fn says(&self, body: FromAgent) -> Action {
        Action::Send(Up { run: self.run, session: self.session, body })
    }

    /// The coordinator has so many deltas. Returns whether the next ones are to be sent again.
    fn confirm(&mut self, confirmed: usize, now: u64) -> bool {
        let confirmed = confirmed.min(self.deltas.len());
        let is_progress = confirmed > self.confirmed;
        self.confirmed = self.confirmed.max(confirmed);
        if self.is_collected || self.confirmed == self.deltas.len() {
            self.again = None;
            return self.is_collected;
        }
        match self.again {
            Some(at) if !is_progress && now < at => false,
            Some(_) if !is_progress => {
                self.pause = (self.pause * 2).min(PATIENCE);
                self.again = Some(now + self.pause);
                true
            }
            _ => {
                self.pause = UNCONFIRMED;
                self.again = Some(now + self.pause);
                false
            }
        }
    }

    fn hear(&mut self, body: ToAgent, now: u64) -> Vec<Action> {
        self.heard = now;
        match body {
            // The answer was lost.
            ToAgent::Plan(_) | ToAgent::Large(..) => match (&self.refused, self.phase) {
                (Some(mistakes), _) => vec![self.says(FromAgent::Refused(mistakes.clone()))],
                (None, Phase::Fetching) => {
                    let next = self.assembly.as_ref().map_or(0, Assembly::next);
                    vec![self.says(FromAgent::Wants(next))]
                }
                (None, Phase::Preparing) => vec![self.says(FromAgent::Preparing)],
                (None, _) => vec![self.says(FromAgent::Ready)],
            },
            ToAgent::Ping(number) => vec![self.says(FromAgent::Pong(number, now))],
            ToAgent::Start(at) => {
                let started = self.says(FromAgent::Started);
                if self.phase == Phase::Ready {
                    self.phase = Phase::Running;
                    return vec![started, Action::Start(at)];
                }
                if self.phase == Phase::Running { vec![started] } else { Vec::new() }
            }
            ToAgent::Beat(confirmed) => {
                let again = if self.confirm(confirmed as usize, now) { AGAIN } else { 0 };
                let again = self.deltas.iter().enumerate().skip(self.confirmed).take(again);
                let again = again.map(|(number, delta)| self.says(FromAgent::Delta(number as u32, delta.clone())));
                // What was said before may be lost.
                let state = match (&self.refused, self.phase) {
                    (Some(mistakes), _) => Some(FromAgent::Refused(mistakes.clone())),
                    (None, Phase::Ready) => Some(FromAgent::Ready),
                    // It lives, though a warm-up has no deltas.
                    (None, Phase::Running | Phase::Stopping) => Some(FromAgent::Started),
                    _ => None,
                };
                let published = self.published.as_ref().filter(|_| !self.knows_published);
                let published = published.map(|sent| self.says(FromAgent::Published(sent.clone())));
                state.map(|state| self.says(state)).into_iter().chain(published).chain(again).collect()
            }
            ToAgent::Published(sent) => {
                let is_news = !std::mem::replace(&mut self.knows_published, true) && self.published.is_none();
                if is_news { vec![Action::Published(sent)] } else { Vec::new() }
            }
            ToAgent::Stop if matches!(self.phase, Phase::Ended | Phase::Stopping) => {
                self.is_known = self.phase == Phase::Ended;
                Vec::new()
            }
            ToAgent::Stop if self.phase == Phase::Fetching => self.refuse("ended before it began".to_owned()),
            ToAgent::Stop => {
                self.phase = Phase::Stopping;
                vec![Action::Stop]
            }
            ToAgent::Piece(number, piece) => self.piece(number, &piece),
            ToAgent::Wants(from) => {
                let Some(Packed::Pieces(_, pieces)) = &self.packed else { return Vec::new() };
                let window = (from..).zip(pieces.iter().skip(from as usize)).take(WINDOW as usize);
                window.map(|(number, piece)| self.says(FromAgent::Piece(number, piece.clone()))).collect()
            }
            ToAgent::Who | ToAgent::Collect => Vec::new(),
        }
    }
}
