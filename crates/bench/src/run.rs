//! A run from beginning to end: prepare, start the workers, listen to them, put the record together.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Barrier, OnceLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use oroshi_net::connect::ConnectError;
use oroshi_net::cores::CoresError;
use oroshi_net::endpoint::ResolveError;
use oroshi_net::limits::{DescriptorError, ensure_descriptors};
use oroshi_net::{Connector, Cores, CoresOptions, Peer};
use oroshi_stats::{Throughput, WindowCount};
use oroshi_words::units;

use crate::arrivals::Spacing;
use crate::ending::{self, Ending, Place, Span};
use crate::environment::Environment;
use crate::failure::Failure;
use crate::follow::{Listener, Observer};
use crate::grade::{Bottleneck, Evidence, ServerEvidence, grade};
use crate::hints;
use crate::machine::{GENERATOR_BOUND, Machine};
use crate::plan::{Load, Origin, Plan, Watching};
use crate::ports;
use crate::record::{
    Answers, ConnectionTimesRecord, Connections, Generator, Gone, MachineRecord, PlanRecord, Rates, Record, Requests,
    SCHEMA,
};
use crate::script::ScriptError;
use crate::tally::{ConnectionTimes, Tally};
use crate::watch::{ServerUsage, Watch};
use crate::worker::{Outcome, Shared, patience_with_servers, work};

/// In less time a process's clock does not move, nanoseconds.
const LEAST_TO_LOOK_AT: u64 = 1_000_000;
/// How often somebody who wants to end the run is listened to before it has begun.
const LOOK: Duration = Duration::from_millis(2);
/// The same once the measured part is over, while answers are awaited.
const LISTEN: Duration = Duration::from_millis(20);
/// Share of a run's requests that may be in doubt without a word: those that had no answer when it was given up.
const IN_DOUBT: f64 = 0.01;
/// An error of the rate, as a share of it, that needs no word.
const FEW: f64 = 0.05;
/// A thread's runtime and its two timers.
const DESCRIPTORS_PER_THREAD: usize = 8;
/// The stack of a thread that calls a script: a recursion without an end is to come to the script language's own limit first.
const SCRIPT_STACK: usize = 64 * 1024 * 1024;

/// Why a run did not take place.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A name does not resolve: correct the URL, or use --connect-to.
    #[error("dns: {0}")]
    Dns(#[source] ResolveError),
    /// The first connection could not be made: is the server running, and is it there?
    #[error("{}: cannot connect to {origin}", source.name())]
    Connect {
        /// Where to.
        origin: String,
        /// What kept it.
        source: ConnectError,
    },
    /// Too few file descriptors for the connections asked for: the text says how to get more.
    #[error(transparent)]
    Descriptors(#[from] DescriptorError),
    /// Threads could not be started, pinned or joined.
    #[error(transparent)]
    Cores(#[from] CoresError),
    /// The observer ended it before it began.
    #[error("ended before the run began")]
    Cancelled,
    /// The observer ended it in its warm-up.
    #[error("ended in the warm-up: nothing was measured")]
    EndedInWarmUp,
    /// The kernel gave no timer.
    #[error("a timer could not be made")]
    Timer(#[source] io::Error),
    /// The script is wrong, or failed while requests flowed: the text has its file and line.
    #[error(transparent)]
    Script(#[from] ScriptError),
    /// `--watch PID` names no process that can be watched.
    #[error("cannot watch process {pid}: {why}")]
    Watch {
        /// The process.
        pid: u32,
        /// What kept it.
        why: String,
    },
}

/// Carries out a plan.
///
/// # Errors
/// When it cannot begin: a name, a port, a socket, a limit. Once requests flow, whatever happens is in the record.
pub fn run(plan: Plan, observer: &mut dyn Observer) -> Result<Record, RunError> {
    run_then(plan, observer, |_| {})
}

/// Carries out a plan, and calls `after` with the record while the cores' parts of the plan's script can still be asked for their
/// values.
///
/// # Errors
/// As [`run`]; `after` is not called then.
pub fn run_then(plan: Plan, observer: &mut dyn Observer, after: impl FnOnce(&Record)) -> Result<Record, RunError> {
    let wanted = plan.connections + plan.hold + DESCRIPTORS_PER_THREAD * plan.threads;
    ensure_descriptors(wanted as u64)?;
    let mut warnings: Vec<String> = ports::forecast(&plan).into_iter().collect();
    warnings.iter().for_each(|w| observer.warning(w));
    let environment = Environment::capture();

    let found = find(&plan, observer)?;
    if plan.origins.len() > 1 && plan.watch == Watching::Auto {
        warnings.push(format!(
            "several servers: the CPU time shown is that of {}, and there is none per request",
            plan.origins[0].name()
        ));
    }
    let (mut watch, mut server_unknown) = match found.watch {
        Ok(watch) => (Some(watch), None),
        Err(why) => (None, Some(why)),
    };
    let threads = plan.threads;
    let warmup = plan.warmup;
    let shared = Arc::new(Shared {
        peers: found.peers,
        ready: Barrier::new(threads + 1),
        start: OnceLock::new(),
        stop: AtomicBool::new(false),
        prepared: AtomicUsize::new(0),
        server: watch.as_ref().map_or_else(Vec::new, Watch::pids),
        first: Arc::default(),
        plan,
    });
    let (sender, reports) = channel();
    let (outcome_sender, outcomes) = channel();
    let options = CoresOptions {
        cpus: shared.plan.cpus.clone(),
        event_interval: Some(1024),
        stack_bytes: shared.plan.script.is_some().then_some(SCRIPT_STACK),
        ..CoresOptions::new("load", threads)
    };
    let cores = {
        let shared = Arc::clone(&shared);
        Cores::start(&options, move |core| {
            work(Arc::clone(&shared), core.index, sender.clone(), outcome_sender.clone())
        })?
    };
    // Once all is said and done, or cannot be: the threads end.
    let script = shared.plan.script.clone();
    let end = || -> Result<(), RunError> {
        if let Some(script) = &script {
            script.release();
            // Whatever a script does when its state is closed may not return either.
            while !cores.is_finished() {
                script.stuck().map_or(Ok(()), Err)?;
                std::thread::sleep(LOOK);
            }
        }
        cores.join()?;
        Ok(())
    };
    while shared.prepared.load(Ordering::Relaxed) < threads {
        if observer.cancelled() {
            shared.stop.store(true, Ordering::Relaxed);
            if let Some(script) = &script {
                script.interrupt();
            }
        }
        if let Some(error) = script.as_ref().and_then(|script| script.stuck()) {
            return Err(error.into());
        }
        std::thread::sleep(LOOK);
    }
    if shared.stop.load(Ordering::Relaxed) {
        shared.meet();
        end()?;
        // The first to fail is the one that knows why.
        let failed = outcomes.try_iter().find_map(|(_, outcome)| outcome.err());
        return Err(if observer.cancelled() { RunError::Cancelled } else { failed.unwrap_or(RunError::Cancelled) });
    }
    let started = SystemTime::now();
    // Taken while the workers wait: in a run without warm-up nothing of it is missed.
    let mut machine = Machine::begin(&shared.peers, watch.as_mut());
    let start = shared.meet();
    let mut listener = Listener::new(threads, start);
    if !warmup.is_zero() {
        listener.listen(&reports, &shared, observer, Some(warmup), watch.as_mut())?;
        machine = Machine::begin(&shared.peers, watch.as_mut());
    }
    listener.listen(&reports, &shared, observer, None, watch.as_mut())?;
    let mut machine = machine.finish(watch.as_mut(), &listener.clocks);
    let outcomes = match collect(&outcomes, &shared, observer) {
        Ok(outcomes) => outcomes,
        // Without its outcome a thread has panicked, which the join tells.
        Err(error) => return Err(end().err().or(error).unwrap_or(RunError::Cancelled)),
    };
    listener.listen_late(&reports, observer, &shared.plan);
    drop(reports);
    listener.last_second(observer);
    if machine.server.is_none() && server_unknown.is_none() {
        server_unknown = Some("its processes ended during the run".into());
    } else if machine.elapsed < listener.clocks.length / 2 && machine.server.take().is_some() {
        server_unknown = Some("this machine was too busy to look at its processes in time".into());
    }
    if outcomes.iter().all(|outcome| outcome.stopped_early && outcome.elapsed == 0) {
        end()?;
        return Err(RunError::EndedInWarmUp);
    }
    warnings.extend(machine.warnings);
    let plan = &shared.plan;
    let mut record = assemble(
        plan,
        &outcomes,
        &listener,
        machine.server,
        server_unknown,
        machine.state,
        started,
        environment,
        warnings,
    );
    let first = &shared.first;
    record.warnings.extend(hints::of(&record, plan, first));
    record.answers.server = first.server.get().cloned().flatten();
    record.answers.first_body_bytes = first.body_bytes.get().copied();
    record.answers.tls = first.tls.get().cloned();
    after(&record);
    end()?;
    Ok(record)
}

/// What all workers have at the end, in their order: once what was on its way is answered, or the user wants no more. An error that one had, or none if one has gone without a word.
fn collect(
    outcomes: &Receiver<(usize, Result<Outcome, RunError>)>,
    shared: &Shared,
    observer: &mut dyn Observer,
) -> Result<Vec<Outcome>, Option<RunError>> {
    let mut all: Vec<Option<Outcome>> = (0..shared.plan.threads).map(|_| None).collect();
    while all.iter().any(Option::is_none) {
        match outcomes.recv_timeout(LISTEN) {
            Ok((index, outcome)) => all[index] = Some(outcome.map_err(Some)?),
            Err(RecvTimeoutError::Disconnected) => return Err(None),
            Err(RecvTimeoutError::Timeout) => {
                if observer.cancelled() {
                    shared.stop.store(true, Ordering::Relaxed);
                }
                if let Some(error) = shared.plan.script.as_ref().and_then(|script| script.stuck()) {
                    return Err(Some(error.into()));
                }
            }
        }
    }
    Ok(all.into_iter().flatten().collect())
}

/// What is known before the run: where to connect, and who listens there.
pub(crate) struct Found {
    pub(crate) peers: Vec<Vec<Peer>>,
    pub(crate) watch: Result<Watch, String>,
}

/// Resolves every name, makes one connection to each place, and finds the server's processes.
pub(crate) fn find(plan: &Plan, observer: &mut dyn Observer) -> Result<Found, RunError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(RunError::Timer)?;
    let found = runtime.block_on(async {
        tokio::select! {
            found = find_each(plan) => found,
            () = cancelled(observer) => Err(RunError::Cancelled),
        }
    });
    // The look-up of a name that hangs must not keep us.
    runtime.shutdown_background();
    found
}

async fn find_each(plan: &Plan) -> Result<Found, RunError> {
    let mut peers = Vec::new();
    let mut watch = None;
    for origin in &plan.origins {
        let mut found = origin.peers().await.map_err(RunError::Dns)?;
        let pid = probe(plan, origin, &mut found).await?;
        if watch.is_none() {
            watch = Some(match plan.watch {
                Watching::Auto => look_for(&found[0], pid),
                Watching::Pid(pid) => Ok(Watch::for_pid(pid).map_err(|e| RunError::Watch { pid, why: e.to_string() })?),
                Watching::None => Err("not watched (--watch none)".to_owned()),
            });
        }
        peers.push(found);
    }
    Ok(Found { peers, watch: watch.unwrap_or_else(|| Err("nothing to watch".into())) })
}

async fn cancelled(observer: &mut dyn Observer) {
    while !observer.cancelled() {
        tokio::time::sleep(LOOK).await;
    }
}

/// One connection before the run: a closed port, a path that is no socket or a bad certificate ends it here, with a reason.
/// Addresses of a name that do not answer, such as `::1` of a server on IPv4, are left out. Gives the listener's process
/// where the kernel tells it.
async fn probe(plan: &Plan, origin: &Origin, peers: &mut Vec<Peer>) -> Result<Option<u32>, RunError> {
    let connector = Connector::new(plan.connector_options(origin));
    let mut pid = None;
    let mut answered = Vec::new();
    let mut first_error = None;
    for peer in peers.iter() {
        match connector.connect(peer, Some(Instant::now() + plan.timeout)).await {
            Ok(connected) => {
                pid = pid.or(connected.stream.peer_pid());
                answered.push(peer.clone());
            }
            Err(error) => first_error = first_error.or(Some(error)),
        }
    }
    match first_error {
        Some(source) if answered.is_empty() => Err(RunError::Connect { origin: origin.name(), source }),
        _ => {
            *peers = answered;
            Ok(pid)
        }
    }
}

fn look_for(peer: &Peer, pid: Option<u32>) -> Result<Watch, String> {
    match (peer, pid) {
        (Peer::Tcp(address), _) => Watch::for_tcp(*address).map_err(|e| e.to_string()),
        (Peer::Unix(address), pid) => Watch::for_unix(address, pid).map_err(|e| e.to_string()),
    }
}

/// Says so where requests without an answer leave much of the rate open.
fn in_doubt(throughput: &Throughput) -> Option<String> {
    let Throughput { requests, unknown, per_second } = *throughput;
    (requests > 0.0 && unknown > IN_DOUBT * requests).then(|| {
        let most = per_second * (requests + unknown) / requests;
        format!(
            "requests had still no answer when they were given up after the end of the run: had it come then, the rate would be \
             {most:.1}/s instead of {per_second:.1}/s; a longer run (-d) leaves less open"
        )
    })
}

/// Why a run was given up.
fn ended_early(servers: &[Ending], plan: &Plan) -> String {
    if servers.iter().any(|server| server.refused_last() > 0) {
        return "ended early: no connection could be made any more".into();
    }
    format!(
        "ended early: for {} (twice --timeout, 2 s at least) no sign of the server came, though requests were waiting",
        ending::seconds(patience_with_servers(plan.timeout))
    )
}

/// How far a rate may be off its timetable's, which asks for whole requests: a request of each thread more or less; of random arrivals the
/// standard deviation of their number.
fn rate_error(plan: &Plan, throughput: &Throughput, elapsed_s: f64) -> Option<f64> {
    let Load::Open { spacing, .. } = plan.load else { return None };
    let requests = match spacing {
        Spacing::Constant => plan.threads as f64,
        Spacing::Poisson => throughput.requests.sqrt(),
    };
    (elapsed_s > 0.0).then_some(requests / elapsed_s)
}

/// Says so where so few requests were due that their rate is not that of the timetable.
fn few_were_due(plan: &Plan, tally: &Tally, elapsed_s: f64, error: f64) -> Option<String> {
    let due = tally.started;
    (due > 0 && error * elapsed_s > FEW * due as f64).then(|| {
        let asked = match &plan.load {
            Load::Open { stages, .. } if stages.len() == 1 => {
                format!(", where the timetable asks for {}/s", units::number(stages[0].rate))
            }
            _ => String::new(),
        };
        format!(
            "only {} due in {}: the rate is known to ±{}/s{asked}; a longer run (-d) comes closer",
            if due == 1 { "1 request was".to_owned() } else { format!("{} requests were", units::count(due)) },
            units::time(elapsed_s * 1e9),
            units::number(error)
        )
    })
}

/// Connections that suffice for what was due, at the mean time of an answer (Little's law). `None`: nothing was answered.
fn needed_connections(tally: &Tally, elapsed_s: f64) -> Option<f64> {
    let service = tally.clocks.service.summary();
    (service.count > 0 && elapsed_s > 0.0).then(|| tally.started as f64 / elapsed_s * service.mean_ns / 1e9)
}

#[allow(clippy::too_many_arguments, reason = "the parts of a record, each used once")]
fn assemble(
    plan: &Plan,
    outcomes: &[Outcome],
    listener: &Listener,
    server: Option<ServerUsage>,
    mut server_unknown: Option<String>,
    mut machine: MachineRecord,
    started: SystemTime,
    environment: Environment,
    mut warnings: Vec<String>,
) -> Record {
    let mut tally = Tally::default();
    outcomes.iter().for_each(|outcome| tally.merge(&outcome.tally));
    let elapsed = outcomes.iter().map(|o| o.elapsed).max().unwrap_or(0);
    let elapsed_s = elapsed as f64 / 1e9;
    let mut server = server;
    if elapsed < LEAST_TO_LOOK_AT && server.take().is_some() {
        server_unknown = Some("the measured part was too short to look at its processes".into());
    }
    let per_second = |n: u64| if elapsed_s > 0.0 { n as f64 / elapsed_s } else { 0.0 };
    let windows: Vec<WindowCount> = outcomes.iter().map(|outcome| outcome.tally.window).collect();
    let throughput = if plan.requests.is_some() { Throughput::of_number(&windows) } else { Throughput::of(&windows) };
    warnings.extend(in_doubt(&throughput));
    let rate_error = rate_error(plan, &throughput, elapsed_s);
    warnings.extend(rate_error.and_then(|error| few_were_due(plan, &tally, elapsed_s, error)));
    let thread_cpu: Vec<f64> =
        outcomes.iter().map(|o| if o.elapsed > 0 { o.cpu as f64 / o.elapsed as f64 } else { 0.0 }).collect();
    let cpu: u64 = outcomes.iter().map(|o| o.cpu).sum();
    let places: Vec<&[Place]> = outcomes.iter().map(|outcome| outcome.places.as_slice()).collect();
    let alive_at_end: usize = places.iter().copied().flatten().map(|place| place.alive).sum();
    let until = outcomes.iter().map(|outcome| outcome.until).max().unwrap_or(0);
    let span = Span {
        from: until.saturating_sub(elapsed),
        until,
        timeout: plan.timeout,
        connects_per_request: plan.connects_per_request(),
        unsent: tally.unsent,
    };
    let servers = ending::endings(plan.origins.iter().map(Origin::name).collect(), &places, &span);
    let gone = ending::gone(&servers, &span);
    let doubts = ending::doubts(&servers, &span);
    let stalled = !doubts.is_empty();
    if outcomes.iter().any(|outcome| outcome.gave_up) {
        warnings.push(ended_early(&servers, plan));
    }
    let refused = tally.failures.get(Failure::ConnectRefused);
    let since_the_last: u64 = servers.iter().map(Ending::refused_last).sum();
    match &gone {
        Some(gone) => warnings.push(gone.words()),
        // Refused before a connect that succeeded: it is known only where there is one server.
        None if refused > since_the_last && plan.origins.len() == 1 && tally.completed > 0 => warnings.push(format!(
            "the server refused {refused} connections and took others after that: it was started again, or was not there for a time; \
             the rate counts that time as well"
        )),
        None if refused > 0 && tally.completed > 0 => warnings.push(format!(
            "{refused} connections were refused: {} not there for a time, or to the end; the rate counts that time as well",
            if plan.origins.len() == 1 { "the server was" } else { "one of the servers was" }
        )),
        None => {}
    }
    warnings.extend(doubts);
    let of = |failure| tally.failures.get(failure);
    let evidence = Evidence {
        elapsed_s,
        gone: gone.as_ref().map(Gone::words),
        stalled,
        unsent: tally.unsent,
        needed: needed_connections(&tally, elapsed_s),
        machine_busy: machine.busy_share,
        others_cpus: machine.others_cpus.unwrap_or(0.0),
        wrong: of(Failure::Status) + of(Failure::Check),
        generator_busiest: thread_cpu.iter().copied().fold(0.0, f64::max),
        server: server
            .as_ref()
            .map(|s| ServerEvidence { busiest_thread: s.busiest_thread, of_allowed: s.of_allowed_cpus }),
        started: tally.started,
        failed: tally.failed,
        completed: tally.completed,
        ports_exhausted: tally.failures.get(Failure::PortsExhausted),
        achieved: match plan.load {
            Load::Open { .. } if tally.started > 0 => {
                // What was sent and is still young at the end was on time as well.
                Some((tally.completed + tally.cut_off.min(plan.connections as u64)) as f64 / tally.started as f64)
            }
            _ => None,
        },
        connections: plan.connections,
    };
    let grade = grade(&evidence);
    if grade.bottleneck == Bottleneck::GeneratorBound {
        machine.disturb(GENERATOR_BOUND);
    }
    let mut plan_record = PlanRecord::of(plan);
    if plan.script.is_some()
        && let Some(origin) = plan_record.origins.first_mut()
    {
        let first = outcomes.iter().find_map(|outcome| outcome.first_request.clone());
        (origin.requests, origin.request_bytes) = first.map(|(line, bytes)| (vec![line], bytes)).unwrap_or_default();
    }
    Record {
        schema: SCHEMA.to_owned(),
        started_unix_s: started.duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64()),
        plan: plan_record,
        elapsed_s,
        cut_short: outcomes.iter().any(|o| o.stopped_early),
        gone,
        requests: Requests {
            started: tally.started,
            completed: tally.completed,
            failed: tally.failed,
            cut_off: tally.cut_off,
            unsent: tally.unsent,
            waited: tally.waited,
            answered: tally.answered,
        },
        rates: Rates {
            requests: Some(throughput.requests),
            requests_per_s: throughput.per_second,
            read_bytes_per_s: per_second(tally.bytes_read),
            written_bytes_per_s: per_second(tally.bytes_written),
            read_bytes: tally.bytes_read,
            written_bytes: tally.bytes_written,
            requests_per_s_error: rate_error,
        },
        failures: tally.failures.iter().collect(),
        errors: tally.failures.errors(),
        parse: tally.unreadable.records(),
        statuses: tally.statuses.iter().enumerate().filter(|s| *s.1 > 0).map(|(s, &n)| (s as u16, n)).collect(),
        connections: Connections {
            opened: tally.opened,
            closed_by_server: tally.closed_by_server,
            alive_at_end,
            fewest_alive: listener.fewest_alive.unwrap_or(alive_at_end),
            held_at_end: outcomes.iter().map(|o| o.held).sum(),
        },
        answers: Answers {
            body_bytes: tally.answers.body_bytes,
            other_lengths: tally.answers.other_lengths,
            kept: tally.answers.kept,
            ..Answers::default()
        },
        connection_times: tally.connection_times.map(|times| {
            let ConnectionTimes { connect, total } = *times;
            ConnectionTimesRecord { connect: connect.into(), total: total.into() }
        }),
        series: listener.series(),
        generator: Generator {
            cpu_us_per_request: (throughput.requests > 0.0).then(|| cpu as f64 / 1e3 / throughput.requests),
            thread_cpu,
            lag: tally.lag.summary(),
        },
        latency: tally.clocks.into(),
        server,
        server_unknown,
        grade,
        warnings,
        machine: Some(machine),
        fail_if: Vec::new(),
        environment,
    }
}
