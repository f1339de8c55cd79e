//! The coordinator as a state machine: messages and time in, messages out.
//!
//! It finds its agents, gives each its part, measures their clocks, lets all start at one moment, confirms their
//! deltas, and notes who is lost. The caller adds the deltas up.

use crate::clock::{ClockId, Offset};
use crate::parcel::{Packed, WINDOW};
use crate::wire::{Down, FromAgent, Job, ToAgent, Up};

/// An agent that says nothing for this long is lost, nanoseconds: it has ended its load by then.
pub const LOST: u64 = crate::agent::PATIENCE + 1_000_000_000;
/// How long the coordinator waits for NATS, and for an agent after NATS has come back, nanoseconds. An agent that heard
/// nothing meanwhile has ended its load, and has its counts still.
pub const OUTAGE: u64 = 60_000_000_000;
const BACK: u64 = 10_000_000_000;
/// How long finding the agents may take.
pub const FINDING: u64 = 10_000_000_000;
/// Rounds of question and reply for each clock, and the pause between them.
const ROUNDS: u32 = 30;
const PAUSE: u64 = 10_000_000;
/// How many agents are asked at once, of those asked within this time: at least 2,400 questions per second, however
/// long a round trip is. More would only wait for each other here: their round trips would be longer, and where the
/// coordinator or NATS is slow, questions would come faster than their replies.
const ASKED: usize = 48;
const JUST_NOW: u64 = 20_000_000;
/// How often messages without an answer are sent again, and how often the coordinator says that it lives.
const AGAIN: u64 = 500_000_000;
/// How often it asks who is there: agents of a run that has just ended are free a moment later.
const ASK: u64 = 100_000_000;
/// From the message to the start.
const AHEAD: u64 = 400_000_000;
/// The longest list of mistakes that is taken from one agent.
const MISTAKES: usize = 20;

/// Which agents a run wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// The first so many that are free.
    Count(usize),
    /// Those with these names.
    Names(Vec<String>),
}

impl Wanted {
    /// How many they are.
    #[must_use]
    pub fn count(&self) -> usize {
        match self {
            Self::Count(count) => *count,
            Self::Names(names) => names.len(),
        }
    }

    fn wants(&self, name: &str) -> bool {
        match self {
            Self::Count(_) => true,
            Self::Names(names) => names.iter().any(|wanted| wanted == name),
        }
    }
}

/// What to do when an agent is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnLoss {
    /// End the run, and report what there is.
    #[default]
    Abort,
    /// Let the others go on.
    Continue,
}

/// What the coordinator's surroundings are to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Order {
    /// Send this.
    Send(Down),
    /// Add this delta of agent `index`: it is the next one. Call [`Coordinator::ended`] if it is the last.
    Add(usize, Vec<u8>),
    /// All are ready, and will start at this moment of this machine's monotonic clock.
    Starts(u64),
    /// An agent was lost, or is back.
    Note(String),
    /// The run is over, or cannot begin.
    Over(Result<(), Vec<String>>),
}

/// One agent, as the coordinator knows it.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// Its name.
    pub name: String,
    /// Its clock.
    pub clock: Offset,
    /// Since when it is lost, nanoseconds of the coordinator's clock.
    pub lost: Option<u64>,
    session: u64,
    heard: u64,
    /// When it was asked for its time, and whether it has not replied to that.
    asked: u64,
    waits: bool,
    has_plan: bool,
    /// The pieces of the plan that it has, and the next one to send.
    pieces: u32,
    next_piece: u32,
    ready: bool,
    started: bool,
    ended: bool,
    /// Deltas that came, in order.
    deltas: u32,
    refused: Option<Vec<String>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Finding,
    Preparing,
    Running,
    Over,
}

/// A coordinator of one run.
#[derive(Debug)]
pub struct Coordinator {
    run: u64,
    wanted: Wanted,
    job: Packed,
    on_loss: OnLoss,
    /// How long preparing may take.
    preparing: u64,
    clock: Option<ClockId>,
    agents: Vec<Known>,
    /// Names of agents that are there and have another run.
    busy: Vec<String>,
    phase: Phase,
    since: u64,
    last: u64,
    start: u64,
    stopping: Option<u64>,
    /// The messages of the publishing agent, for the others.
    published: Option<Vec<u8>>,
    /// Since when the connection to NATS is lost.
    cut_off: Option<u64>,
}

impl Coordinator {
    /// A coordinator of `run` that begins at `now`. `preparing`: how long the agents may prepare.
    #[must_use]
    pub fn new(run: u64, wanted: Wanted, job: Packed, on_loss: OnLoss, preparing: u64, now: u64) -> Self {
        Self {
            run,
            wanted,
            job,
            on_loss,
            preparing,
            clock: None,
            agents: Vec::new(),
            busy: Vec::new(),
            phase: Phase::Finding,
            since: now,
            last: 0,
            start: 0,
            stopping: None,
            published: None,
            cut_off: None,
        }
    }

    /// Names the clock that this coordinator reads: agents that read the same one start without an error of clocks.
    #[must_use]
    pub fn with_clock(mut self, clock: Option<ClockId>) -> Self {
        self.clock = clock;
        self
    }

    /// The connection to NATS is there again, or is lost. While it is lost, silence says nothing about agents.
    pub fn link(&mut self, is_up: bool, now: u64) {
        if !is_up {
            self.cut_off.get_or_insert(now);
        } else if self.cut_off.take().is_some() {
            self.agents.iter_mut().for_each(|agent| agent.heard = now + BACK - LOST);
        }
    }

    /// The agents, in the order of their parts.
    #[must_use]
    pub fn agents(&self) -> &[Known] {
        &self.agents
    }

    /// The name of the agent with this session; `None`: all are meant.
    #[must_use]
    pub fn name_of(&self, session: u64) -> Option<&str> {
        self.agents.iter().find(|agent| agent.session == session).map(|agent| agent.name.as_str())
    }

    /// Whether the load has begun.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.phase == Phase::Running
    }

    /// Agent `index` has sent its last delta.
    pub fn ended(&mut self, index: usize) {
        self.agents[index].ended = true;
    }

    /// Ends the run early.
    pub fn stop(&mut self, now: u64) -> Vec<Order> {
        if self.stopping.is_none() {
            self.stopping = Some(now);
        }
        let mut orders = self.to_all(|_| Some(ToAgent::Stop));
        if self.phase != Phase::Running {
            self.phase = Phase::Over;
            orders.push(Order::Over(Err(Vec::new())));
        }
        orders
    }

    /// Takes a message of an agent.
    pub fn message(&mut self, up: Up, now: u64) -> Vec<Order> {
        let Up { run, session, body } = up;
        if let FromAgent::Here { name, busy, clock } = body {
            let clock = Offset::new(clock.is_some() && clock == self.clock);
            return self.here(Known { name, clock, session, heard: now, ..Known::default() }, busy, now);
        }
        let Some(index) = self.agents.iter().position(|agent| agent.session == session) else { return Vec::new() };
        if run != self.run || self.phase == Phase::Over {
            return Vec::new();
        }
        let agent = &mut self.agents[index];
        agent.heard = now;
        let mut orders = Vec::new();
        if agent.lost.take().is_some() {
            orders.push(Order::Note(format!("{} is heard again", agent.name)));
        }
        match body {
            FromAgent::Preparing => agent.has_plan = true,
            FromAgent::Wants(from) => {
                if from > agent.pieces {
                    agent.pieces = from;
                    // Sending the plan does not count as preparing.
                    self.since = now;
                }
                orders.extend(self.send_pieces(index));
            }
            FromAgent::Ready => agent.ready = true,
            FromAgent::Refused(mut mistakes) => {
                mistakes.truncate(MISTAKES);
                agent.refused = Some(mistakes);
            }
            // A question has the time as its number.
            FromAgent::Pong(asked, theirs) if asked <= now => {
                agent.waits &= asked != agent.asked;
                agent.clock.round(asked, theirs, now);
            }
            FromAgent::Started => agent.started = true,
            FromAgent::Published(sent) if self.published.is_none() => {
                self.published = Some(sent);
                orders.extend(self.tell_published());
            }
            FromAgent::Delta(number, delta) if number == agent.deltas => {
                agent.deltas += 1;
                orders.push(Order::Add(index, delta));
            }
            FromAgent::Pong(..)
            | FromAgent::Published(_)
            | FromAgent::Delta(..)
            | FromAgent::Here { .. }
            | FromAgent::Keeps(..)
            | FromAgent::KeepsLarge(..)
            | FromAgent::Piece(..) => {}
        }
        orders
    }

    /// An agent says that it is there.
    fn here(&mut self, known: Known, busy: bool, now: u64) -> Vec<Order> {
        let name = &known.name;
        if self.phase != Phase::Finding || !self.wanted.wants(name) {
            return Vec::new();
        }
        if self.agents.iter().any(|agent| agent.name == *name) || self.agents.len() == self.wanted.count() {
            return Vec::new();
        }
        if busy {
            if !self.busy.contains(name) {
                self.busy.push(known.name);
            }
            return Vec::new();
        }
        self.busy.retain(|busy| busy != name);
        self.agents.push(known);
        if self.agents.len() < self.wanted.count() {
            return Vec::new();
        }
        // The order of the parts does not depend on who answered first.
        self.agents.sort_by(|one, other| one.name.cmp(&other.name));
        (self.phase, self.since, self.last) = (Phase::Preparing, now, now);
        self.plans()
    }

    /// Time passes: to be called every few milliseconds before the start, and several times per second after that.
    /// `taken`: all that came before this moment was passed to [`Coordinator::message`]. A coordinator that is behind
    /// knows nothing of the time after it, and takes no agent for silent because its messages wait.
    pub fn tick(&mut self, now: u64, taken: u64) -> Vec<Order> {
        let pause = if self.phase == Phase::Finding { ASK } else { AGAIN };
        let again = now.saturating_sub(self.last) >= pause;
        if again {
            self.last = now;
        }
        match self.phase {
            Phase::Finding if now - self.since > FINDING => self.over(Err(vec![self.missing()])),
            Phase::Finding if again => vec![Order::Send(Down { run: self.run, session: 0, body: ToAgent::Who })],
            Phase::Preparing => self.prepare(now, again),
            Phase::Running => self.run(now, taken, again),
            Phase::Finding | Phase::Over => Vec::new(),
        }
    }

    fn prepare(&mut self, now: u64, again: bool) -> Vec<Order> {
        let refused = self.agents.iter().all(|agent| agent.ready || agent.refused.is_some());
        let late = now - self.since > self.preparing;
        if refused && self.agents.iter().any(|agent| agent.refused.is_some()) || late {
            let mut mistakes: Vec<String> = Vec::new();
            for agent in &self.agents {
                match &agent.refused {
                    Some(lines) => mistakes.extend(lines.iter().map(|line| format!("{}: {line}", agent.name))),
                    None if !agent.ready => mistakes.push(format!("{}: it did not get ready in time", agent.name)),
                    None if late && agent.clock.rounds() < ROUNDS => {
                        mistakes.push(format!("{}: it did not tell its clock in time", agent.name));
                    }
                    None => {}
                }
            }
            let mut orders = self.to_all(|_| Some(ToAgent::Stop));
            orders.extend(self.over(Err(mistakes)));
            return orders;
        }
        if self.agents.iter().all(|agent| agent.ready && agent.clock.rounds() >= ROUNDS) {
            self.start = now + AHEAD;
            (self.phase, self.last) = (Phase::Running, now);
            self.agents.iter_mut().for_each(|agent| agent.heard = now);
            let mut orders = self.starts();
            orders.push(Order::Starts(self.start));
            return orders;
        }
        let mut orders = if again { self.plans() } else { Vec::new() };
        if again {
            // Pieces that were asked for may be lost.
            self.agents.iter_mut().for_each(|agent| agent.next_piece = agent.pieces);
        }
        orders.extend(self.ask(now));
        if again {
            orders.extend(self.to_all(|_| Some(ToAgent::Beat(0))));
        }
        orders
    }

    /// Asks agents for their time: each again once it has replied, or its reply is late, and those first that waited
    /// longest.
    fn ask(&mut self, now: u64) -> Vec<Order> {
        let waits = |agent: &Known| agent.waits && now - agent.asked < JUST_NOW;
        let free = ASKED.saturating_sub(self.agents.iter().filter(|agent| waits(agent)).count());
        let is_due = |agent: &&mut Known| {
            agent.ready && agent.clock.rounds() < ROUNDS && !waits(agent) && now - agent.asked >= PAUSE
        };
        let mut due: Vec<&mut Known> = self.agents.iter_mut().filter(is_due).collect();
        due.sort_by_key(|agent| agent.asked);
        let asked = due.into_iter().take(free).map(|agent| {
            (agent.asked, agent.waits) = (now, true);
            Order::Send(Down { run: self.run, session: agent.session, body: ToAgent::Ping(now) })
        });
        asked.collect()
    }

    fn run(&mut self, now: u64, taken: u64, again: bool) -> Vec<Order> {
        let mut orders = Vec::new();
        if again {
            orders.extend(self.starts());
            orders.extend(self.to_all(|agent| Some(ToAgent::Beat(agent.deltas))));
            orders.extend(self.tell_published());
            if self.stopping.is_some() {
                orders.extend(self.to_all(|_| Some(ToAgent::Stop)));
            }
        }
        let mut lost = false;
        let waits = self.cut_off.is_some_and(|since| now.saturating_sub(since) < OUTAGE);
        for agent in &mut self.agents {
            if let Some(mistakes) = agent.refused.take() {
                // Its load broke down.
                agent.ended = true;
                agent.lost = Some(now);
                orders.push(Order::Note(format!("{}: {}", agent.name, mistakes.join("; "))));
                lost = true;
            }
            if !agent.ended && agent.lost.is_none() && !waits && taken.saturating_sub(agent.heard) > LOST {
                agent.lost = Some(now);
                orders.push(Order::Note(format!("{} is not heard any more", agent.name)));
                lost = true;
            }
        }
        if lost && self.on_loss == OnLoss::Abort && self.stopping.is_none() {
            self.stopping = Some(now);
            orders.extend(self.to_all(|_| Some(ToAgent::Stop)));
        }
        if self.agents.iter().all(|agent| agent.ended || agent.lost.is_some()) {
            // The last confirmations: agents that miss them keep their results for later.
            orders.extend(self.to_all(|agent| Some(ToAgent::Beat(agent.deltas))));
            orders.extend(self.over(Ok(())));
        }
        orders
    }

    fn over(&mut self, result: Result<(), Vec<String>>) -> Vec<Order> {
        self.phase = Phase::Over;
        vec![Order::Over(result)]
    }

    /// Plans for agents that have not said that they are ready.
    fn plans(&self) -> Vec<Order> {
        let of = self.agents.len();
        let plan = |(index, agent): (usize, &Known)| {
            if agent.has_plan || agent.ready || agent.refused.is_some() {
                return None;
            }
            let body = match &self.job {
                Packed::Whole(job) => ToAgent::Plan(Box::new(Job { index, of, ..(**job).clone() })),
                Packed::Pieces(parcel, _) => ToAgent::Large(index, of, parcel.clone()),
            };
            Some(Order::Send(Down { run: self.run, session: agent.session, body }))
        };
        self.agents.iter().enumerate().filter_map(plan).collect()
    }

    /// The pieces of the plan that agent `index` may get now.
    fn send_pieces(&mut self, index: usize) -> Vec<Order> {
        let (Packed::Pieces(_, pieces), agent) = (&self.job, &mut self.agents[index]) else { return Vec::new() };
        let until = agent.pieces.saturating_add(WINDOW).min(pieces.len() as u32);
        let numbers = agent.next_piece.max(agent.pieces)..until;
        agent.next_piece = agent.next_piece.max(until);
        let piece = |number: u32| {
            let body = ToAgent::Piece(number, pieces[number as usize].clone());
            Order::Send(Down { run: self.run, session: agent.session, body })
        };
        numbers.map(piece).collect()
    }

    /// The moment to start, for agents that have not said that they know it.
    fn starts(&self) -> Vec<Order> {
        let start = |agent: &Known| agent.clock.theirs(self.start).filter(|_| !agent.started).map(ToAgent::Start);
        self.to_all(start)
    }

    /// Tells all agents that have not ended what was published.
    fn tell_published(&self) -> Vec<Order> {
        let Some(sent) = &self.published else { return Vec::new() };
        self.to_all(|agent| (!agent.ended && agent.lost.is_none()).then(|| ToAgent::Published(sent.clone())))
    }

    fn to_all(&self, body: impl Fn(&Known) -> Option<ToAgent>) -> Vec<Order> {
        let send = |agent: &Known| {
            let body = body(agent)?;
            Some(Order::Send(Down { run: self.run, session: agent.session, body }))
        };
        self.agents.iter().filter_map(send).collect()
    }

    fn missing(&self) -> String {
        let found: Vec<&str> = self.agents.iter().map(|agent| agent.name.as_str()).collect();
        let found = if found.is_empty() { "none".to_owned() } else { found.join(", ") };
        let busy = if self.busy.is_empty() { String::new() } else { format!("; busy: {}", self.busy.join(", ")) };
        let wanted = match &self.wanted {
            Wanted::Count(count) => format!("{count} agents"),
            Wanted::Names(names) => names.join(", "),
        };
        format!(
            "--agents: {wanted} wanted, and found: {found}{busy}; start `oroshi agent` with the same --nats, --group and --key-file"
        )
    }
}
