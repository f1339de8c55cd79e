//! A coordinator with its record: carries out what the state machine says, and adds up what comes.

use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use oroshi_bench::part::{PartFate, PartProgress};
use oroshi_bench::record::AgentState;
use oroshi_bench::{Delta, Observer, Plan, Record, ServerWatch, Watching, Whole};
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
}

/// Follows a run on agents.
pub trait LeadObserver: Observer {
    /// Called about ten times per second, with the name and the progress of each agent, and whether it is lost.
    fn agents(&mut self, agents: &[(String, PartProgress, bool)]);

    /// Takes something that happened, for people.
    fn note(&mut self, text: &str);
}

/// Leads a run to its end. `plan`: that of the whole, with [`Plan::part`] for the number of parts.
///
/// # Errors
/// There is no record.
pub fn lead(
    bus: &Bus,
    key: &Key,
    group: &str,
    mut coordinator: Coordinator,
    plan: Plan,
    observer: &mut dyn LeadObserver,
) -> Result<Record, LeadError> {
    let (warmup, length) = (plan.warmup.as_nanos() as u64, plan.duration.map(|duration| duration.as_nanos() as u64));
    let server = ServerWatch::find(&plan);
    if let (Watching::Pid(_), Some(why)) = (plan.watch, server.unknown()) {
        return Err(LeadError::Refused(vec![format!("the server cannot be watched: {why}")]));
    }
    let mut leading = Leading {
        bus,
        key,
        group,
        warmup,
        length,
        server,
        whole: Whole::new(plan),
        notes: Vec::new(),
        start: 0,
        over: None,
    };
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
        Ok(()) => leading.record(&coordinator).ok_or(LeadError::NothingHeard),
    }
}

struct Leading<'l> {
    bus: &'l Bus,
    key: &'l Key,
    group: &'l str,
    /// Lengths of the warm-up and of the measured part, nanoseconds.
    warmup: u64,
    length: Option<u64>,
    server: ServerWatch,
    whole: Whole,
    notes: Vec<String>,
    start: u64,
    over: Option<Result<(), Vec<String>>>,
}

impl Leading<'_> {
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
                Order::Add(index, bytes) => {
                    let delta = wire::decode::<Delta>(&bytes).ok();
                    let last = delta.as_ref().is_some_and(Delta::is_last);
                    if delta.is_none_or(|delta| self.whole.add(index, delta).is_err()) {
                        let name = &coordinator.agents()[index].name;
                        let note = format!("{name} sent counts that contradict themselves: a part of them is missing");
                        observer.note(&note);
                        self.notes.push(note);
                    } else if last {
                        coordinator.ended(index);
                    }
                }
                Order::Starts(at) => {
                    self.start = at;
                    let from = at + self.warmup;
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

    fn record(mut self, coordinator: &Coordinator) -> Option<Record> {
        self.whole.watched(self.server.finish(monotonic_ns()));
        let parts: Vec<(String, Offset)> =
            coordinator.agents().iter().map(|known| (known.name.clone(), known.clock)).collect();
        finished(self.whole, &parts, self.notes)
    }
}

/// Makes the record of parts with these names and clocks.
fn finished(whole: Whole, parts: &[(String, Offset)], notes: Vec<String>) -> Option<Record> {
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
struct Keeper {
    name: String,
    session: u64,
    job: Box<Job>,
    wanted: u32,
    deltas: Vec<Vec<u8>>,
}

/// Collects the results of a run whose coordinator ended, from all agents that keep some. `read` makes the plan from the
/// job of one.
///
/// # Errors
/// No agent keeps the run, or its plan cannot be read.
pub fn collect(
    bus: &Bus,
    key: &Key,
    group: &str,
    run: u64,
    read: impl FnOnce(&Job) -> Result<Plan, Vec<String>>,
) -> Result<Record, LeadError> {
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
    let Some(first) = keepers.first() else { return Err(LeadError::NotKept(format!("{run:x}"))) };
    let mut plan = read(&first.job).map_err(LeadError::Refused)?;
    plan.part = Some(oroshi_bench::Part { index: 0, of: first.job.of });
    let mut whole = Whole::new(plan);
    let mut parts: Vec<(String, Offset)> =
        (0..first.job.of).map(|index| (format!("number {}", index + 1), Offset::default())).collect();
    let mut notes = vec![format!("collected from what the agents keep of run {run:x}, whose coordinator had ended")];
    for keeper in &keepers {
        let Some(part) = parts.get_mut(keeper.job.index) else { continue };
        part.0.clone_from(&keeper.name);
        let added = keeper
            .deltas
            .iter()
            .all(|bytes| wire::decode::<Delta>(bytes).is_ok_and(|delta| whole.add(keeper.job.index, delta).is_ok()));
        if !added {
            notes.push(format!("{} sent counts that contradict themselves", keeper.name));
        }
    }
    finished(whole, &parts, notes).ok_or(LeadError::NothingHeard)
}
