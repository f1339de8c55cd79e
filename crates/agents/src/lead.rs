//! A coordinator with its record: carries out what the state machine says, and adds up what comes.

use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use oroshi_bench::part::{Implausible, PartFate, PartProgress, Parts};
use oroshi_bench::record::AgentState;
use oroshi_bench::{Observer, ScriptError, ServerWatch, Watching};
use oroshi_net::monotonic_ns;

use crate::bus::{Arrival, Bus};
use crate::clock::Offset;
use crate::coordinator::{Coordinator, Order};
use crate::wire::{self, Direction, Key, Up};

/// How often the coordinator looks at the time: before the start, when clocks are measured, and after it.
pub(crate) const BEFORE: Duration = Duration::from_millis(5);
const AFTER: Duration = Duration::from_millis(50);
/// How often the observer sees the progress, nanoseconds.
const SHOWN: u64 = 100_000_000;

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
    let (after, length) = (measured.after.as_nanos() as u64, measured.length.map(|length| length.as_nanos() as u64));
    let mut leading =
        Leading { bus, key, group, after, length, server, whole, notes: Vec::new(), start: 0, over: None };
    let mut shown = 0;
    let mut stopped = false;
    // The coordinator has every message that came before this moment.
    let mut taken = 0;
    let result = loop {
        match bus.arrivals().recv_timeout(leading.patience(&coordinator)) {
            Ok(Arrival::Frame(frame, at)) => {
                taken = at;
                if let Ok(up) = wire::open::<Up>(key, Direction::Up, group, &frame) {
                    let orders = coordinator.message(up, at);
                    leading.obey(&mut coordinator, orders, observer)?;
                }
            }
            Ok(Arrival::Note(note)) => observer.note(&note),
            Ok(Arrival::Link(is_up)) => coordinator.link(is_up, monotonic_ns()),
            Ok(Arrival::Woken) => {}
            Err(RecvTimeoutError::Timeout) => taken = monotonic_ns(),
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
        let orders = coordinator.tick(now, taken);
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
                Order::Add(index, bytes) => match add(&mut self.whole, index, &bytes) {
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
        let parts = self.whole.parts();
        let agents = coordinator.agents().iter().zip(parts);
        let agents: Vec<_> = agents.map(|(known, part)| (known.name.clone(), part, known.lost.is_some())).collect();
        observer.agents(&agents);
        observer.progress(&self.whole.progress());
        if let Some(course) = self.whole.course() {
            observer.course(&course);
        }
    }

    fn record(mut self, coordinator: &Coordinator) -> Result<Option<W::Record>, ScriptError> {
        self.whole.watched(self.server.finish(monotonic_ns()));
        let parts: Vec<(String, Offset)> =
            coordinator.agents().iter().map(|known| (known.name.clone(), known.clock)).collect();
        finished(self.whole, &parts, self.notes)
    }
}

/// Adds a delta as it came.
pub(crate) fn add<W: Parts>(whole: &mut W, index: usize, delta: &[u8]) -> Result<bool, Implausible> {
    whole.add(index, wire::decode(delta).map_err(|_| Implausible)?)
}

/// Makes the record of parts with these names and clocks.
pub(crate) fn finished<W: Parts>(
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
