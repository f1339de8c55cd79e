//! Puts the record of a run together from what workers, receiver and meters have found.

use std::time::SystemTime;

use oroshi_stats::{Throughput, WindowCount};
use oroshi_words::units;

use crate::arrivals::Spacing;
use crate::ending::{self, RunFacts, ServerEnding, ServerState};
use crate::environment::Environment;
use crate::failure::Failure;
use crate::first::FirstResponse;
use crate::grade::{Bottleneck, Evidence, Utilisation, grade};
use crate::hints;
use crate::machine::GENERATOR_BOUND;
use crate::plan::{Load, Origin, Plan, Protocol};
use crate::record::scenario::StepRecord;
use crate::record::{
    Answers, ConnectionTimesRecord, Connections, Generator, LostServers, MachineRecord, PlanRecord, Rates, Record,
    Requests, SCHEMA, SeriesRecord, per_second, unix_seconds,
};
use crate::request_counts::RequestCounts;
use crate::shared::Outcome;
use crate::tally::{ConnectionTimes, Tally};
use crate::watch::ServerUsage;
use crate::worker::patience_with_servers;

/// A process's clock does not move in less time than this, nanoseconds.
const LEAST_TO_LOOK_AT: u64 = 1_000_000;
/// From this share of the requests on, requests without a response at the end are worth a warning.
const IN_DOUBT: f64 = 0.01;
/// From this share of the rate on, an error of the rate is worth a warning.
const FEW: f64 = 0.05;

/// A run that has ended.
pub(crate) struct Finished {
    pub(crate) outcomes: Vec<Outcome>,
    /// What all workers counted.
    pub(crate) tally: Tally,
    pub(crate) series: SeriesRecord,
    pub(crate) fewest_alive: Option<usize>,
    /// The server's usage, or why it is not known.
    pub(crate) server: Result<ServerUsage, String>,
    pub(crate) machine: MachineRecord,
    pub(crate) started: SystemTime,
    pub(crate) environment: Environment,
    pub(crate) warnings: Vec<String>,
}

/// The sum of the workers' outcomes.
struct Totals {
    tally: Tally,
    /// Length of the measured part, nanoseconds and seconds.
    elapsed: u64,
    elapsed_s: f64,
    /// When the measured part ended, nanoseconds of the monotonic clock.
    until: u64,
    throughput: Throughput,
    /// How far an open loop's rate may be off its timetable's.
    rate_error: Option<f64>,
    /// CPU time of all threads, nanoseconds; and of each, as a share of one core.
    cpu: u64,
    thread_cpu: Vec<f64>,
}

/// How the servers were when the run ended.
struct Servers {
    gone: Option<LostServers>,
    /// A server was silent at the end, though requests were waiting.
    stalled: bool,
}

/// Puts the record together.
pub(crate) fn assemble(plan: &Plan, first: &FirstResponse, finished: Finished) -> Record {
    let Finished { outcomes, tally, series, fewest_alive, server, mut machine, started, environment, mut warnings } =
        finished;
    let totals = Totals::of(plan, &outcomes, tally);
    warnings.extend(in_doubt(&totals.throughput));
    warnings.extend(few_were_due(plan, &totals));
    warnings.extend(totals.tally.http2.warning(plan));
    let server = server.and_then(|usage| {
        let long_enough = totals.elapsed >= LEAST_TO_LOOK_AT;
        long_enough.then_some(usage).ok_or_else(|| "the measured part was too short to look at its processes".into())
    });
    let servers = Servers::of(plan, &outcomes, &totals, &mut warnings);
    let grade = grade(&evidence(plan, &totals, &servers, server.as_ref().ok(), &machine));
    if grade.bottleneck == Bottleneck::GeneratorBound {
        machine.disturb(GENERATOR_BOUND);
    }
    let Totals { tally, elapsed_s, throughput, rate_error, cpu, thread_cpu, .. } = totals;
    let alive_at_end: usize = outcomes.iter().flat_map(|outcome| &outcome.servers).map(|server| server.alive).sum();
    let (server, server_unknown) = match server {
        Ok(usage) => (Some(usage), None),
        Err(why) => (None, Some(why)),
    };
    let urls = urls(plan, &tally, elapsed_s);
    let mut record = Record {
        schema: SCHEMA.to_owned(),
        started_unix_s: unix_seconds(started),
        plan: plan_record(plan, &outcomes),
        elapsed_s,
        cut_short: outcomes.iter().any(|outcome| outcome.stopped_early),
        gone: servers.gone,
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
            read_bytes_per_s: per_second(tally.bytes_read, elapsed_s),
            written_bytes_per_s: per_second(tally.bytes_written, elapsed_s),
            read_bytes: tally.bytes_read,
            written_bytes: tally.bytes_written,
            requests_per_s_error: rate_error,
        },
        failures: tally.failures.iter().collect(),
        errors: tally.failures.errors(),
        parse: tally.unreadable.records(),
        http2: (plan.protocol == Protocol::Http2).then(|| tally.http2.record()),
        statuses: tally.statuses.iter().enumerate().filter(|s| *s.1 > 0).map(|(s, &n)| (s as u16, n)).collect(),
        connections: Connections {
            opened: tally.opened,
            closed_by_server: tally.closed_by_server,
            alive_at_end,
            fewest_alive: fewest_alive.unwrap_or(alive_at_end),
            held_at_end: outcomes.iter().map(|outcome| outcome.held).sum(),
        },
        answers: Answers {
            server: first.server.get().cloned().flatten(),
            first_body_bytes: first.body_bytes.get().copied(),
            tls: first.tls.get().cloned(),
            body_bytes: tally.answers.body_bytes,
            other_lengths: tally.answers.other_lengths,
            kept: tally.answers.kept,
        },
        connection_times: tally.connection_times.map(|times| {
            let ConnectionTimes { connect, total } = *times;
            ConnectionTimesRecord { connect: connect.into(), total: total.into() }
        }),
        series,
        generator: Generator {
            cpu_us_per_request: (throughput.requests > 0.0).then(|| cpu as f64 / 1e3 / throughput.requests),
            thread_cpu,
            lag: tally.lag.summary(),
        },
        latency: tally.clocks.into(),
        server,
        server_unknown,
        server_watched_by: None,
        grade,
        warnings,
        machine: Some(machine),
        fail_if: Vec::new(),
        environment,
        scenario: None,
        urls,
        agents: Vec::new(),
    };
    record.warnings.extend(hints::of(&record, plan, first));
    record
}

/// The requests by URL, if the plan has several.
fn urls(plan: &Plan, tally: &Tally, elapsed_s: f64) -> Vec<StepRecord> {
    let none = RequestCounts::default();
    let each = plan.urls.iter().enumerate();
    each.map(|(index, name)| tally.urls.get(index).unwrap_or(&none).record(name, elapsed_s)).collect()
}

impl Totals {
    fn of(plan: &Plan, outcomes: &[Outcome], tally: Tally) -> Self {
        let elapsed = outcomes.iter().map(|outcome| outcome.elapsed).max().unwrap_or(0);
        let elapsed_s = elapsed as f64 / 1e9;
        let windows: Vec<WindowCount> = outcomes.iter().map(|outcome| outcome.window).collect();
        let throughput = if plan.requests.is_some() || (plan.journeys.is_some() && plan.duration.is_none()) {
            Throughput::of_number(&windows)
        } else {
            Throughput::of(&windows)
        };
        let share = |outcome: &Outcome| match outcome.elapsed {
            0 => 0.0,
            elapsed => outcome.cpu as f64 / elapsed as f64,
        };
        Self {
            tally,
            elapsed,
            elapsed_s,
            until: outcomes.iter().map(|outcome| outcome.until).max().unwrap_or(0),
            throughput,
            rate_error: rate_error(plan, &throughput, elapsed_s),
            cpu: outcomes.iter().map(|outcome| outcome.cpu).sum(),
            thread_cpu: outcomes.iter().map(share).collect(),
        }
    }
}

impl Servers {
    /// Judges the servers, and warns of those that were not there all the time.
    fn of(plan: &Plan, outcomes: &[Outcome], totals: &Totals, warnings: &mut Vec<String>) -> Self {
        let tally = &totals.tally;
        let states: Vec<&[ServerState]> = outcomes.iter().map(|outcome| outcome.servers.as_slice()).collect();
        let span = RunFacts {
            from: totals.until.saturating_sub(totals.elapsed),
            until: totals.until,
            timeout: plan.timeout,
            connects_per_request: plan.connects_per_request(),
            unsent: tally.unsent,
        };
        let endings = ending::endings(plan.origins.iter().map(Origin::name).collect(), &states, &span);
        let gone = ending::gone(&endings, &span);
        let doubts = ending::doubts(&endings, &span);
        let stalled = !doubts.is_empty();
        if outcomes.iter().any(|outcome| outcome.gave_up) {
            warnings.push(ended_early(&endings, plan));
        }
        let refused = tally.failures.get(Failure::ConnectRefused);
        let since_the_last: u64 = endings.iter().map(ServerEnding::refused_last).sum();
        match &gone {
            Some(gone) => warnings.push(gone.words()),
            // Refused before a connect that succeeded: it is known only where there is one server.
            None if refused > since_the_last && plan.origins.len() == 1 && tally.completed > 0 => {
                warnings.push(format!(
                    "the server refused {refused} connections and took others after that: it was started again, or was \
                     not there for a time; the rate counts that time as well"
                ));
            }
            None if refused > 0 && tally.completed > 0 => warnings.push(format!(
                "{refused} connections were refused: {} not there for a time, or to the end; the rate counts that time \
                 as well",
                if plan.origins.len() == 1 { "the server was" } else { "one of the servers was" }
            )),
            None => {}
        }
        warnings.extend(doubts);
        Self { gone, stalled }
    }
}

fn evidence(
    plan: &Plan,
    totals: &Totals,
    servers: &Servers,
    server: Option<&ServerUsage>,
    machine: &MachineRecord,
) -> Evidence {
    let Totals { tally, elapsed_s, .. } = totals;
    let of = |failure| tally.failures.get(failure);
    Evidence {
        elapsed_s: *elapsed_s,
        gone: servers.gone.as_ref().map(LostServers::words),
        stalled: servers.stalled,
        unsent: tally.unsent,
        needed: needed_connections(tally, *elapsed_s),
        others_cpus: machine.others_cpus.unwrap_or(0.0),
        wrong: of(Failure::Status) + of(Failure::Check),
        sides: Utilisation::of(totals.thread_cpu.iter().copied().fold(0.0, f64::max), server, Some(machine)),
        started: tally.started,
        failed: tally.failed,
        completed: tally.completed,
        ports_exhausted: of(Failure::PortsExhausted),
        achieved: match plan.load {
            Load::Open { .. } if tally.started > 0 => {
                // Requests that were sent and are still young at the end were on time as well.
                Some((tally.completed + tally.cut_off.min(plan.lanes() as u64)) as f64 / tally.started as f64)
            }
            _ => None,
        },
        lanes: plan.lanes(),
        http2: plan.protocol == Protocol::Http2,
        journeys: plan.journeys.is_some(),
    }
}

/// The plan's record, with a script's first request in place of the plan's.
fn plan_record(plan: &Plan, outcomes: &[Outcome]) -> PlanRecord {
    let mut record = PlanRecord::of(plan);
    if plan.script.is_some()
        && let Some(origin) = record.origins.first_mut()
    {
        let first = outcomes.iter().find_map(|outcome| outcome.first_request.clone());
        (origin.requests, origin.request_bytes) = first.map(|(line, bytes)| (vec![line], bytes)).unwrap_or_default();
    }
    record
}

/// Warns where requests without a response leave much of the rate open.
fn in_doubt(throughput: &Throughput) -> Option<String> {
    let Throughput { requests, unknown, per_second } = *throughput;
    (requests > 0.0 && unknown > IN_DOUBT * requests).then(|| {
        let most = per_second * (requests + unknown) / requests;
        format!(
            "requests had still no answer when they were given up after the end of the run: had it come then, the rate \
             would be {most:.1}/s instead of {per_second:.1}/s; a longer run (-d) leaves less open"
        )
    })
}

/// Why a run was given up.
fn ended_early(servers: &[ServerEnding], plan: &Plan) -> String {
    if servers.iter().any(|server| server.refused_last() > 0) {
        return "ended early: no connection could be made any more".into();
    }
    format!(
        "ended early: for {} (twice --timeout, 2 s at least) no sign of the server came, though requests were waiting",
        ending::seconds(patience_with_servers(plan.timeout))
    )
}

/// How far a rate may be off its timetable's, which asks for whole requests.
///
/// With constant gaps, by one request of each thread; with random ones, by the standard deviation of their number.
fn rate_error(plan: &Plan, throughput: &Throughput, elapsed_s: f64) -> Option<f64> {
    let Load::Open { spacing, .. } = plan.load else { return None };
    let requests = match spacing {
        Spacing::Constant => plan.position(0).1 as f64,
        Spacing::Poisson => throughput.requests.sqrt(),
    };
    (elapsed_s > 0.0).then_some(requests / elapsed_s)
}

/// Warns where too few requests were due to tell the timetable's rate.
fn few_were_due(plan: &Plan, totals: &Totals) -> Option<String> {
    let (due, elapsed_s, error) = (totals.tally.started, totals.elapsed_s, totals.rate_error?);
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

/// Connections that suffice for what was due, at the mean response time (Little's law). `None` without responses.
fn needed_connections(tally: &Tally, elapsed_s: f64) -> Option<f64> {
    let service = tally.clocks.service.summary();
    (service.count > 0 && elapsed_s > 0.0).then(|| tally.started as f64 / elapsed_s * service.mean_ns / 1e9)
}
