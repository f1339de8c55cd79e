//! A coordinator with its record: carries out what the state machine says, and adds up what comes.

use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use oroshi_bench::part::{Implausible, PartFate, PartProgress};
use oroshi_bench::record::AgentState;
use oroshi_bench::watch::ServerUsage;
use oroshi_bench::{Delta, Observer, Plan, Progress, Record, ScriptError, ServerWatch, Watching, Whole, push};
use oroshi_net::monotonic_ns;

use crate::bus::{Arrival, Bus};
use crate::clock::Offset;
use crate::coordinator::{Coordinator, Order};
use crate::wire::{self, Direction, Down, FromAgent, Job, Key, ToAgent, Up};

/// How often the coordinator looks at the time: before the start, when clocks are measured, and after it.
const BEFORE: Duration = Duration::from_millis(5);
const AFTER: Duration = Duration::from_millis(50);
/// How often the observer sees the progress, nanoseconds.
const SHOWN: u64 = 100_000_000;
/// How long agents that keep a run may take to say so, and then to send it, nanoseconds.
const COLLECTING: u64 = 3_000_000_000;
const SENDING: u64 = 30_000_000_000;
const AGAIN: u64 = 500_000_000;

/// Why there is no record.
#[derive(Debug, thiserror::Error)]
pub enum LeadError {
    /// The agents could not begin: each line is a mistake of one.
    #[error("{}", .0.join("\n"))]
    Refused(Vec<String>),
    /// The user ended the run before it began.
    #[error("ended before the run began")]
    Cancelled,
    /// All agents were lost before any was heard of.
    #[error("no agent was heard of after the start: nothing was measured")]
    NothingHeard,
    /// The plan's files are too large, or the key is wrong.
    #[error("a message cannot be sent: {0}")]
    Wire(#[from] wire::WireError),
    /// The connection to NATS ended for good.
    #[error("the connection to NATS has ended")]
    Ended,
    /// No agent keeps the run.
    #[error("no agent keeps run {0}: agents keep their last four runs while they live")]
    NotKept(String),
    /// The script failed after the load.
    #[error(transparent)]
    Script(#[from] ScriptError),
}

/// The measured part of a run, as its plan says.
#[derive(Debug)]
pub struct Measured<'p> {
    /// The plan of the requests, or of the subscriptions.
    pub plan: &'p Plan,
    /// How long after the start it begins, nanoseconds.
    pub after: u64,
    /// Its length, nanoseconds.
    pub length: Option<u64>,
}

impl<'p> Measured<'p> {
    fn new(plan: &'p Plan, after: Duration, length: Option<Duration>) -> Self {
        Self { plan, after: after.as_nanos() as u64, length: length.map(|length| length.as_nanos() as u64) }
    }
}

/// Adds up what the parts of a run have counted.
pub trait Parts {
    /// The result.
    type Record;

    /// The run begins now.
    fn begin(&mut self);

    /// Adds the next delta of part `index`, as it came. Returns whether it is the part's last.
    ///
    /// # Errors
    /// It is no delta of this run; nothing is added then.
    fn add(&mut self, index: usize, delta: &[u8]) -> Result<bool, Implausible>;

    /// Returns what is known of the measured part.
    fn measured(&self) -> Measured<'_>;

    /// Takes the server's usage as the coordinator saw it.
    fn watched(&mut self, usage: Result<ServerUsage, String>);

    /// Whether the run is to end on all agents.
    fn is_halted(&self) -> bool;

    /// Whether part `index` has handed over its last delta.
    fn has_ended(&self, index: usize) -> bool;

    /// How far part `index` was heard of, nanoseconds.
    fn heard_until(&self, index: usize) -> u64;

    /// The progress of each part, and of the whole.
    fn parts(&self) -> Vec<PartProgress>;

    /// See `parts`.
    fn progress(&self) -> Progress;

    /// Puts the record together. `None` if no part was heard of.
    ///
    /// # Errors
    /// The script failed after the load.
    fn finish(self, fates: &[PartFate], warnings: Vec<String>) -> Result<Option<Self::Record>, ScriptError>;
}

/// The parts' own methods under the names of the trait.
macro_rules! parts {
    ($whole:ty, $delta:ty, $record:ty, $measured:expr, $halted:expr, $finish:expr) => {
        impl Parts for $whole {
            type Record = $record;

            fn begin(&mut self) {
                self.begin();
            }

            fn add(&mut self, index: usize, delta: &[u8]) -> Result<bool, Implausible> {
                let delta = wire::decode::<$delta>(delta).map_err(|_| Implausible)?;
                let last = delta.is_last();
                self.add(index, delta).map(|()| last)
            }

            fn measured(&self) -> Measured<'_> {
                let (plan, after, length) = $measured(self);
                Measured::new(plan, after, length)
            }

            fn watched(&mut self, usage: Result<ServerUsage, String>) {
                self.watched(usage);
            }

            fn is_halted(&self) -> bool {
                $halted(self)
            }

            fn has_ended(&self, index: usize) -> bool {
                self.has_ended(index)
            }

            fn heard_until(&self, index: usize) -> u64 {
                self.heard_until(index)
            }

            fn parts(&self) -> Vec<PartProgress> {
                self.parts()
            }

            fn progress(&self) -> Progress {
                self.progress()
            }

            fn finish(self, fates: &[PartFate], warnings: Vec<String>) -> Result<Option<$record>, ScriptError> {
                $finish(self, fates, warnings)
            }
        }
    };
}

parts!(Whole, Delta, Record, Whole::measured, Whole::is_halted, Whole::finish);
parts!(
    push::Whole,
    push::Delta,
    push::Record,
    push::Whole::measured,
    |_: &Self| false,
    |whole: Self, fates: &_, warnings| Ok(push::Whole::finish(whole, fates, warnings))
);

/// Follows a run on agents.
pub trait LeadObserver: Observer {
    /// Called about ten times per second, with the name and the progress of each agent, and whether it is lost.
    fn agents(&mut self, agents: &[(String, PartProgress, bool)]);

    /// Takes something that happened, for people.
    fn note(&mut self, text: &str);
}

/// Leads a run to its end. `whole`: of the run's plan, with nothing added yet.
///
/// # Errors
/// There is no record.
pub fn lead<W: Parts>(
    bus: &Bus,
    key: &Key,
    group: &str,
    mut coordinator: Coordinator,
    whole: W,
    observer: &mut dyn LeadObserver,
) -> Result<W::Record, LeadError> {
    let measured = whole.measured();
    let server = ServerWatch::find(measured.plan);
    if let (Watching::Pid(_), Some(why)) = (measured.plan.watch, server.unknown()) {
        return Err(LeadError::Refused(vec![format!("the server cannot be watched: {why}")]));
    }
    let (after, length) = (measured.after, measured.length);
    let mut leading =
        Leading { bus, key, group, after, length, server, whole, notes: Vec::new(), start: 0, over: None };
    let mut shown = 0;
    let mut stopped = false;
    let result = loop {
        match bus.arrivals().recv_timeout(leading.patience(&coordinator)) {
            Ok(Arrival::Frame(frame, at)) => {
                if let Ok(up) = wire::open::<Up>(key, Direction::Up, group, &frame) {
                    let orders = coordinator.message(up, at);
                    leading.obey(&mut coordinator, orders, observer)?;
                }
            }
            Ok(Arrival::Note(note)) => observer.note(&note),
            Ok(Arrival::Link(is_up)) => coordinator.link(is_up, monotonic_ns()),
            Ok(Arrival::Woken) | Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Err(LeadError::Ended),
        }
        let now = monotonic_ns();
        leading.server.tick(now);
        if observer.cancelled() && !stopped {
            stopped = true;
            let orders = coordinator.stop(now);
            leading.obey(&mut coordinator, orders, observer)?;
        }
        if leading.whole.is_halted() && !stopped {
            stopped = true;
            let orders = coordinator.stop(now);
            leading.obey(&mut coordinator, orders, observer)?;
        }
        let orders = coordinator.tick(now);
        leading.obey(&mut coordinator, orders, observer)?;
        if let Some(result) = leading.over.take() {
            break result;
        }
        if coordinator.is_running() && now - shown >= SHOWN {
            shown = now;
            leading.show(&coordinator, observer);
        }
    };
    match result {
        Err(mistakes) if mistakes.is_empty() => Err(LeadError::Cancelled),
        Err(mistakes) => Err(LeadError::Refused(mistakes)),
        Ok(()) => leading.record(&coordinator)?.ok_or(LeadError::NothingHeard),
    }
}

struct Leading<'l, W> {
    bus: &'l Bus,
    key: &'l Key,
    group: &'l str,
    /// How long after the start the measured part begins, and its length, nanoseconds.
    after: u64,
    length: Option<u64>,
    server: ServerWatch,
    whole: W,
    notes: Vec<String>,
    start: u64,
    over: Option<Result<(), Vec<String>>>,
}

impl<W: Parts> Leading<'_, W> {
    /// Returns how long nothing is to be done unless a message comes.
    fn patience(&self, coordinator: &Coordinator) -> Duration {
        let patience = if coordinator.is_running() { AFTER } else { BEFORE };
        let due = self.server.due().map(|due| Duration::from_nanos(due.saturating_sub(monotonic_ns())));
        due.map_or(patience, |due| patience.min(due))
    }

    fn obey(
        &mut self,
        coordinator: &mut Coordinator,
        orders: Vec<Order>,
        observer: &mut dyn LeadObserver,
    ) -> Result<(), LeadError> {
        for order in orders {
            match order {
                Order::Send(down) => {
                    let to = coordinator.name_of(down.session);
                    let frame = wire::seal(self.key, Direction::Down, self.group, &down)?;
                    self.bus.send(to, frame);
                }
                Order::Add(index, bytes) => match self.whole.add(index, &bytes) {
                    Ok(true) => coordinator.ended(index),
                    Ok(false) => {}
                    Err(Implausible) => {
                        let name = &coordinator.agents()[index].name;
                        let note = format!("{name} sent counts that contradict themselves: a part of them is missing");
                        observer.note(&note);
                        self.notes.push(note);
                    }
                },
                Order::Starts(at) => {
                    self.start = at;
                    let from = at + self.after;
                    self.server.measure(from, self.length.map(|length| from + length));
                    self.whole.begin();
                }
                Order::Note(note) => {
                    observer.note(&note);
                    let at = monotonic_ns().saturating_sub(self.start) as f64 / 1e9;
                    self.notes.push(format!("{note} ({at:.1} s after the start)"));
                }
                Order::Over(result) => self.over = Some(result),
            }
        }
        Ok(())
    }

    fn show(&self, coordinator: &Coordinator, observer: &mut dyn LeadObserver) {
        observer.progress(&self.whole.progress());
        let parts = self.whole.parts();
        let agents = coordinator.agents().iter().zip(parts);
        let agents: Vec<_> = agents.map(|(known, part)| (known.name.clone(), part, known.lost.is_some())).collect();
        observer.agents(&agents);
    }

    fn record(mut self, coordinator: &Coordinator) -> Result<Option<W::Record>, ScriptError> {
        self.whole.watched(self.server.finish(monotonic_ns()));
        let parts: Vec<(String, Offset)> =
            coordinator.agents().iter().map(|known| (known.name.clone(), known.clock)).collect();
        finished(self.whole, &parts, self.notes)
    }
}

/// Makes the record of parts with these names and clocks.
fn finished<W: Parts>(
    whole: W,
    parts: &[(String, Offset)],
    notes: Vec<String>,
) -> Result<Option<W::Record>, ScriptError> {
    let mut warnings = Vec::new();
    let mut fates = Vec::new();
    for (index, (name, clock)) in parts.iter().enumerate() {
        let ended = whole.has_ended(index);
        if !ended {
            let until = whole.heard_until(index) as f64 / 1e9;
            warnings.push(format!("short by 1/{} from {until:.1} s: agent {name} was lost", parts.len()));
        }
        let state = if ended { AgentState::Done } else { AgentState::Lost };
        fates.push(PartFate { name: name.clone(), state, clock_bound_ns: clock.bound() });
    }
    warnings.extend(notes);
    whole.finish(&fates, warnings)
}

/// An agent that keeps a part of the run.
#[derive(Debug)]
struct Keeper {
    name: String,
    session: u64,
    job: Box<Job>,
    wanted: u32,
    deltas: Vec<Vec<u8>>,
}

/// The results that agents keep of a run whose coordinator ended.
#[derive(Debug)]
pub struct Kept {
    run: u64,
    keepers: Vec<Keeper>,
}

impl Kept {
    /// The job of the first part that is kept.
    #[must_use]
    pub fn job(&self) -> &Job {
        &self.keepers[0].job
    }

    /// Adds it up. `whole`: of the run's plan, with nothing added yet.
    ///
    /// # Errors
    /// There is no record.
    pub fn add_up<W: Parts>(self, mut whole: W) -> Result<W::Record, LeadError> {
        let of = self.job().of;
        let mut parts: Vec<(String, Offset)> =
            (0..of).map(|index| (format!("number {}", index + 1), Offset::default())).collect();
        let mut notes =
            vec![format!("collected from what the agents keep of run {:x}, whose coordinator had ended", self.run)];
        for keeper in &self.keepers {
            let Some(part) = parts.get_mut(keeper.job.index) else { continue };
            part.0.clone_from(&keeper.name);
            if keeper.deltas.iter().any(|bytes| whole.add(keeper.job.index, bytes).is_err()) {
                notes.push(format!("{} sent counts that contradict themselves", keeper.name));
            }
        }
        finished(whole, &parts, notes)?.ok_or(LeadError::NothingHeard)
    }
}

/// Collects what agents keep of a run whose coordinator ended.
///
/// # Errors
/// No agent keeps the run.
pub fn collect(bus: &Bus, key: &Key, group: &str, run: u64) -> Result<Kept, LeadError> {
    let began = monotonic_ns();
    let mut keepers: Vec<Keeper> = Vec::new();
    let mut asked = 0;
    loop {
        let now = monotonic_ns();
        let complete = keepers.iter().all(|keeper| keeper.deltas.len() as u32 == keeper.wanted);
        let known = keepers.first().is_some_and(|keeper| keepers.len() == keeper.job.of);
        if complete && (known || now - began > COLLECTING) || now - began > SENDING {
            break;
        }
        if now - asked >= AGAIN {
            asked = now;
            if !known {
                let all = Down { run, session: 0, body: ToAgent::Collect };
                bus.send(None, wire::seal(key, Direction::Down, group, &all)?);
            }
            for keeper in &keepers {
                let body = ToAgent::Beat(keeper.deltas.len() as u32);
                let beat = wire::seal(key, Direction::Down, group, &Down { run, session: keeper.session, body })?;
                bus.send(Some(&keeper.name), beat);
            }
        }
        let Ok(Arrival::Frame(frame, _)) = bus.arrivals().recv_timeout(BEFORE) else { continue };
        let Ok(up) = wire::open::<Up>(key, Direction::Up, group, &frame) else { continue };
        let keeper = keepers.iter_mut().find(|keeper| keeper.session == up.session);
        match (up.body, keeper) {
            (FromAgent::Keeps(name, job, wanted), None) if up.run == run => {
                keepers.push(Keeper { name, session: up.session, job, wanted, deltas: Vec::new() });
            }
            (FromAgent::Delta(number, delta), Some(keeper))
                if up.run == run && number as usize == keeper.deltas.len() =>
            {
                keeper.deltas.push(delta);
            }
            _ => {}
        }
    }
    keepers.sort_by_key(|keeper| keeper.job.index);
    if keepers.is_empty() { Err(LeadError::NotKept(format!("{run:x}"))) } else { Ok(Kept { run, keepers }) }
}
