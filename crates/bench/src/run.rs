//! A run from beginning to end: prepare, start the workers, listen to them, put the record together.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, SystemTime};

use oroshi_net::{Threads, ThreadsOptions};
use oroshi_words::units;

use crate::assemble::{Finished, assemble};
pub use crate::error::RunError;
use crate::follow::{Observer, ReportReceiver};
use crate::machine::Machine;
use crate::part::{Alone, PartEnd, PartObserver, Recorder};
use crate::plan::{Plan, Watching};
use crate::prepare::{LOOK, Prepared, prepare, thread_options, usage_of};
use crate::record::Record;
use crate::script::ScriptError;
use crate::shared::{Outcome, Report, Shared, WorkerOutcome};
use crate::tally::Tally;
use crate::watch::Watch;
use crate::worker::work;

/// How often the observer may end a run whose measured part is over, while responses are awaited.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// The stack of a thread that calls a script: endless recursion shall meet the script language's own limit first.
const SCRIPT_STACK: usize = 64 * 1024 * 1024;

/// Carries out a plan.
///
/// # Errors
/// When the run cannot begin: a name, a port, a socket, a limit. Later errors are part of the record.
pub fn run(plan: Plan, observer: &mut dyn Observer) -> Result<Record, RunError> {
    run_then(plan, observer, |_| {})
}

/// Carries out a plan, and calls `after` with the record while the workers' parts of the script still answer questions.
///
/// # Errors
/// As [`run`]; `after` is not called then.
pub fn run_then(plan: Plan, observer: &mut dyn Observer, after: impl FnOnce(&Record)) -> Result<Record, RunError> {
    carry_out(Plan { part: None, ..plan }, &mut Alone(observer), after)
}

/// Carries out a part of a plan ([`Plan::part`]), as one of several processes. The observer says when to start, and
/// gets what was counted.
///
/// # Errors
/// As [`run`].
pub fn run_part(plan: Plan, observer: &mut dyn PartObserver) -> Result<Record, RunError> {
    carry_out(plan, observer, |_| {})
}

fn carry_out(plan: Plan, observer: &mut dyn PartObserver, after: impl FnOnce(&Record)) -> Result<Record, RunError> {
    let prepared = prepare(&plan, plan.connections + plan.hold, plan.threads, observer)?;
    let Prepared { environment, mut warnings, peers, server: mut watch } = prepared;
    warnings.extend(several_servers(&plan));
    let server = watch.as_ref().map_or_else(|_| Vec::new(), Watch::pids);
    if let Some(journeys) = &plan.journeys {
        journeys.initialize(plan.threads)?;
    }
    let workers = Workers::start(Arc::new(Shared::new(plan, peers, server)))?;
    let shared = Arc::clone(&workers.shared);
    if !workers.await_connections(observer)? {
        return Err(workers.abandon(observer));
    }
    let Some(moment) = observer.ready() else {
        workers.shared.stop();
        return Err(workers.abandon(observer));
    };
    let started = SystemTime::now();
    // Starts before the workers, so a run without warm-up is measured from its start.
    let mut machine = Machine::begin(&shared.peers, watch.as_mut().ok());
    let start = shared.meet(moment);
    let mut receiver = ReportReceiver::new(shared.plan.threads, start);
    receiver.recorder = shared.plan.part.is_some().then(|| Recorder::new(&shared, start));
    let warmup = shared.plan.warmup;
    if !warmup.is_zero() {
        receiver.listen(&workers.reports, &shared, observer, Some(warmup), watch.as_mut().ok())?;
        machine = Machine::begin(&shared.peers, watch.as_mut().ok());
    }
    receiver.listen(&workers.reports, &shared, observer, None, watch.as_mut().ok())?;
    let mut machine = machine.finish(watch.as_mut().ok(), &receiver.clocks);
    let (outcomes, mut tally) = match workers.collect(observer) {
        Ok(outcomes) => outcomes,
        // A worker without an outcome has panicked, which the join reports.
        Err(error) => return Err(workers.end().err().or(error).unwrap_or(RunError::Cancelled)),
    };
    receiver.listen_late(&workers.reports, observer, &shared.plan);
    receiver.last_second(observer);
    let server = usage_of(watch, machine.server.take()).and_then(|usage| {
        let in_time = machine.elapsed >= receiver.clocks.length / 2;
        in_time.then_some(usage).ok_or_else(|| "this machine was too busy to look at its processes in time".into())
    });
    if outcomes.iter().all(|outcome| outcome.stopped_early && outcome.elapsed == 0) {
        workers.end()?;
        return Err(RunError::EndedInWarmUp);
    }
    warnings.append(&mut machine.warnings);
    let handed = receiver.recorder.take();
    if let Some(recorder) = handed {
        let end = PartEnd {
            server: server.clone(),
            machine: machine.state.clone(),
            cpu_cpus: machine.cpu_cpus,
            environment: environment.clone(),
            warnings: warnings.clone(),
        };
        let (last, total) = recorder.finish(outcomes.clone(), tally, end);
        tally = total;
        observer.delta(last);
    }
    let (series, fewest_alive) = (receiver.series(), receiver.fewest_alive);
    let machine = machine.state;
    let finished = Finished { outcomes, tally, series, fewest_alive, server, machine, started, environment, warnings };
    let mut record = assemble(&shared.plan, &shared.first, finished);
    if shared.plan.part.is_none() {
        conclude(&shared.plan, &mut record)?;
    }
    after(&record);
    workers.end()?;
    Ok(record)
}

/// Lets the plan's journeys do what comes after the load, and adds their part of the record.
pub(crate) fn conclude(plan: &Plan, record: &mut Record) -> Result<(), ScriptError> {
    if let Some(journeys) = &plan.journeys {
        let scenario = journeys.conclude(record)?;
        record.warnings.extend(sent_again(scenario.retries));
        record.scenario = Some(Box::new(scenario));
    }
    Ok(())
}

/// Says that users' requests were sent twice.
fn sent_again(retries: u64) -> Option<String> {
    (retries > 0).then(|| {
        format!(
            "{} sent again, because the server had closed the kept connection: the counts have each once",
            if retries == 1 { "1 request was".to_owned() } else { format!("{} requests were", units::count(retries)) }
        )
    })
}

/// Warns that one of several servers is watched.
fn several_servers(plan: &Plan) -> Option<String> {
    (plan.origins.len() > 1 && plan.watch == Watching::Auto).then(|| {
        let watched = plan.origins[0].name();
        format!("several servers: the CPU time shown is that of {watched}, and there is none per request")
    })
}

/// The threads of a run, and what they send.
struct Workers {
    shared: Arc<Shared>,
    threads: Threads<()>,
    reports: Receiver<Report>,
    outcomes: Receiver<WorkerOutcome>,
}

impl Workers {
    fn start(shared: Arc<Shared>) -> Result<Self, RunError> {
        let (report_sender, reports) = channel();
        let (outcome_sender, outcomes) = channel();
        let plan = &shared.plan;
        let stack_bytes = (plan.script.is_some() || plan.journeys.is_some()).then_some(SCRIPT_STACK);
        let options = ThreadsOptions { stack_bytes, ..thread_options(plan, plan.threads) };
        let threads = {
            let shared = Arc::clone(&shared);
            Threads::start(&options, move |core| {
                work(Arc::clone(&shared), core.index, report_sender.clone(), outcome_sender.clone())
            })?
        };
        Ok(Self { shared, threads, reports, outcomes })
    }

    /// Waits until each worker has opened its connections. False when the run is not to begin.
    fn await_connections(&self, observer: &mut dyn Observer) -> Result<bool, RunError> {
        while self.shared.prepared.load(Ordering::Relaxed) < self.shared.plan.threads {
            if observer.cancelled() {
                self.shared.stop();
                self.shared.interrupt_script();
            }
            self.check_script()?;
            std::thread::sleep(LOOK);
        }
        Ok(!self.shared.is_stopped())
    }

    /// Returns all outcomes in the workers' order, once responses on their way have come or the observer wants no more.
    ///
    /// The error is a worker's own, or `None` if a worker ended without an outcome.
    fn collect(&self, observer: &mut dyn Observer) -> Result<(Vec<Outcome>, Tally), Option<RunError>> {
        let mut all: Vec<Option<Outcome>> = (0..self.shared.plan.threads).map(|_| None).collect();
        let mut tally = Tally::default();
        while all.iter().any(Option::is_none) {
            match self.outcomes.recv_timeout(POLL_INTERVAL) {
                Ok((index, outcome)) => {
                    let (outcome, counted) = outcome.map_err(Some)?;
                    tally.merge(&counted);
                    all[index] = Some(outcome);
                }
                Err(RecvTimeoutError::Disconnected) => return Err(None),
                Err(RecvTimeoutError::Timeout) => {
                    if observer.cancelled() {
                        self.shared.stop();
                    }
                    self.check_script()?;
                }
            }
        }
        Ok((all.into_iter().flatten().collect(), tally))
    }

    /// Fails when a call into the script cannot be ended.
    fn check_script(&self) -> Result<(), RunError> {
        self.shared.stuck().map_or(Ok(()), |error| Err(error.into()))
    }

    /// Ends workers whose run is not to begin, and says why it is not.
    fn abandon(self, observer: &mut dyn Observer) -> RunError {
        self.shared.meet(0);
        let outcomes = match self.end() {
            Ok(outcomes) => outcomes,
            Err(error) => return error,
        };
        // The first to fail is the one that knows why.
        let failed = outcomes.try_iter().find_map(|(_, outcome)| outcome.err());
        if observer.cancelled() { RunError::Cancelled } else { failed.unwrap_or(RunError::Cancelled) }
    }

    /// Waits for the threads to end, and returns the outcomes that nobody has collected.
    fn end(self) -> Result<Receiver<WorkerOutcome>, RunError> {
        if let Some(script) = &self.shared.plan.script {
            script.release();
            // A script's code that runs when its state is closed may hang too.
            while !self.threads.is_finished() {
                self.check_script()?;
                std::thread::sleep(LOOK);
            }
        }
        self.threads.join()?;
        Ok(self.outcomes)
    }
}
