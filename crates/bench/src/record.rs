//! The record of a run: everything a report says, as data. This is the JSON schema; `docs/bench.md` explains it.

mod plan;
pub mod scenario;

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use oroshi_stats::{Latency, LatencySummary};
use serde::{Deserialize, Serialize};

use crate::environment::Environment;
use crate::failure::Failure;
use crate::grade::Grade;
pub use crate::http2::{Http2Record, StreamEnds};
pub use crate::machine::MachineRecord;
use crate::tally::Clocks;
pub use crate::unreadable::ParseRecord;
use crate::watch::{FoundBy, ServerUsage};
pub use plan::{OriginRecord, PlanRecord};

/// Version of the schema. The first number changes when a field goes or changes its meaning, the second when one comes.
pub const SCHEMA: &str = "oroshi-bench/1.8";

/// A run and its result.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    /// [`SCHEMA`].
    pub schema: String,
    /// When the run began: seconds since 1970, UTC.
    pub started_unix_s: f64,
    /// The plan.
    pub plan: PlanRecord,
    /// Length of the measured part, seconds.
    pub elapsed_s: f64,
    /// Whether the run was ended before its time.
    pub cut_short: bool,
    /// How the server had gone before the run ended. `None` if it was there or never responded, and in records before
    /// 1.3.
    #[serde(default)]
    pub gone: Option<LostServers>,
    /// Requests by how they ended.
    pub requests: Requests,
    /// Rates over the measured part.
    pub rates: Rates,
    /// The clocks, each with its histogram.
    pub latency: ClockRecords,
    /// Failures by name, without those that did not happen. They include `status`, `check` and failed attempts to
    /// connect, so the sum can differ from `requests.failed`.
    pub failures: BTreeMap<Failure, u64>,
    /// The sum of `failures` without `cut-off-at-end`.
    pub errors: u64,
    /// Failures called `parse` by broken rule, the most frequent first; empty in records before 1.3.
    #[serde(default)]
    pub parse: Vec<ParseRecord>,
    /// How the server ended streams, and how many it allows. `None` over HTTP/1.1, and in records before 1.6.
    #[serde(default)]
    pub http2: Option<Http2Record>,
    /// Responses by status.
    pub statuses: BTreeMap<u16, u64>,
    /// Connections by how they ended.
    pub connections: Connections,
    /// Properties of the responses; empty in records before 1.2.
    #[serde(default)]
    pub answers: Answers,
    /// Connect time and total time of each request, when the plan wants them.
    #[serde(default)]
    pub connection_times: Option<ConnectionTimesRecord>,
    /// Returns the measured part over time.
    pub series: SeriesRecord,
    /// The load's own side.
    pub generator: Generator,
    /// The server's side, when it is on this machine.
    pub server: Option<ServerUsage>,
    /// Why `server` is `None`.
    pub server_unknown: Option<String>,
    /// Who watched the server in a run with agents: `coordinator` or `agent NAME`. `None` for other runs.
    #[serde(default)]
    pub server_watched_by: Option<String>,
    /// The bottleneck of the run.
    pub grade: Grade,
    /// Reasons to doubt the figures, as sentences.
    pub warnings: Vec<String>,
    /// Other activity of the machine in the measured part. `None` in records before 1.3.
    #[serde(default)]
    pub machine: Option<MachineRecord>,
    /// The user's conditions and their outcomes, in the user's order.
    #[serde(default)]
    pub fail_if: Vec<Condition>,
    /// The machine.
    pub environment: Environment,
    /// Score, checks and steps of a run of scenarios. `None` for other runs, and in records before 1.4.
    #[serde(default)]
    pub scenario: Option<Box<scenario::ScenarioRecord>>,
    /// Requests by URL, in the order of the first use of each, if there are several; the first hundred, and all others
    /// together. Requests that were due and got no connection belong to no URL. Empty in records before 1.8.
    #[serde(default)]
    pub urls: Vec<scenario::StepRecord>,
    /// The load machines of a run with agents. Empty for other runs, and in records before 1.5.
    #[serde(default)]
    pub agents: Vec<AgentRecord>,
}

/// One load machine's part of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AgentRecord {
    /// Its name.
    pub name: String,
    /// How its part ended.
    pub state: AgentState,
    /// Length of its measured part as far as it was heard of, seconds.
    pub elapsed_s: f64,
    /// Requests of the measured part, as far as it was heard of: see [`Requests`].
    pub started: u64,
    /// With a whole response.
    pub completed: u64,
    /// Ended by a failure.
    pub failed: u64,
    /// Due, and never sent.
    pub unsent: u64,
    /// Failures of all kinds.
    pub errors: u64,
    /// CPU time of its threads, as a share of one core each.
    pub thread_cpu: Vec<f64>,
    /// 99th percentile of its service time, nanoseconds, within some percent.
    pub p99_ns: Option<u64>,
    /// 99th percentile of its lateness (open loop), nanoseconds, within some percent.
    pub lateness_p99_ns: Option<u64>,
    /// How far the coordinator's idea of its clock may be off, nanoseconds: half of the least round trip.
    pub clock_bound_ns: Option<u64>,
    /// How long after the agreed moment its last thread began, nanoseconds. `None` until it is known.
    pub start_late_ns: Option<u64>,
    /// How much of that the thread was ready to run and waited for a CPU, nanoseconds, by the kernel's account. `None`
    /// if that is not known, and in records before 1.7.
    #[serde(default)]
    pub start_queued_ns: Option<u64>,
}

/// How an agent's part of a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AgentState {
    /// It carried out its part.
    Done,
    /// It ended its part early: Ctrl-C, the loss of another agent, or a coordinator that it no longer heard.
    Stopped,
    /// It was not heard of any more.
    Lost,
}

impl AgentState {
    /// The name in reports and JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Stopped => "stopped",
            Self::Lost => "lost",
        }
    }
}

/// How one or more servers had gone before the run ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LostServers {
    /// Time from the last response to the end of the run, seconds. Of several servers, this and the next two fields
    /// describe the first.
    pub silent_s: f64,
    /// Failed attempts to connect since the last success.
    pub failed_attempts: u64,
    /// The evidence, in words.
    pub why: String,
    /// Of several servers, the addresses of those that had gone. Empty where there was one server.
    #[serde(default)]
    pub servers: Vec<String>,
}

impl LostServers {
    /// Says which servers had gone, and the evidence.
    #[must_use]
    pub fn words(&self) -> String {
        let (who, were) = match self.servers.as_slice() {
            [] => ("the server".to_owned(), "was"),
            [only] => (only.clone(), "was"),
            [first @ .., last] => (format!("{} and {last}", first.join(", ")), "were"),
        };
        let first = if self.servers.len() > 1 { format!("of {}: ", self.servers[0]) } else { String::new() };
        format!("{who} {were} not there any more when the run ended: {first}{}", self.why)
    }
}

/// A condition of the user's, and its outcome.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Condition {
    /// The condition as typed: `p99>10ms`.
    pub condition: String,
    /// The metric: `p99`.
    pub metric: String,
    /// The outcome.
    pub outcome: ConditionOutcome,
    /// Measured value: nanoseconds for times, otherwise a count or a rate. `None`: not measured.
    pub value: Option<f64>,
    /// Whether the true value may be greater than `value`.
    pub at_least: bool,
    /// In words: `measured 8.123ms`.
    pub measured: String,
}

/// The outcome of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ConditionOutcome {
    /// The condition does not hold, however long the requests without a response would have taken.
    Passed,
    /// The condition holds, however long they would have taken.
    Failed,
    /// The outcome depends on them, or nothing was measured. The run has failed.
    Undecided,
}

impl ConditionOutcome {
    /// The name in reports and JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed => "failed",
            Self::Undecided => "undecided",
        }
    }
}

impl Record {
    /// Returns the number of requests in the measured part, each by the share of its time that lies in it.
    ///
    /// Rates and CPU time per request are about this number.
    #[must_use]
    pub fn requests_done(&self) -> f64 {
        self.rates.requests.unwrap_or(self.requests.answered as f64)
    }

    /// Returns requests per second and thread, rounded down: a sample per point of the time series with responses.
    ///
    /// wrk's `Req/Sec` describes these samples.
    #[must_use]
    pub fn rates_per_thread(&self) -> Vec<f64> {
        let width = self.series.width_s;
        let points = self.series.points.iter().filter(|point| point.requests > 0);
        points
            .filter_map(|point| {
                let length = width.min(self.elapsed_s - point.at_s);
                // The last point may be a sliver, whose rate says nothing.
                (length > width / 2.0).then(|| (point.requests as f64 / length / self.plan.threads as f64).floor())
            })
            .collect()
    }

    /// Returns the server's CPU microseconds per request; `None` if unknown, or without requests.
    ///
    /// Of several servers only the first is watched, and its requests are not counted apart: the result is `None` then,
    /// unless the user named the processes.
    #[must_use]
    pub fn server_cpu_us_per_request(&self) -> Option<f64> {
        let server = self.server.as_ref()?;
        let is_of_all = self.plan.origins.len() <= 1 || server.found_by == FoundBy::Pid;
        if is_of_all { server.cpu_us_each(self.requests_done()) } else { None }
    }
}

/// Requests of the measured part: `started = completed + failed + cut_off + unsent`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Requests {
    /// Due in the measured part.
    pub started: u64,
    /// With a whole response, whatever its status.
    pub completed: u64,
    /// Ended by a failure.
    pub failed: u64,
    /// On the wire when the run ended, and without a response when the load stopped waiting.
    pub cut_off: u64,
    /// Due, and never sent, because no connection was free.
    pub unsent: u64,
    /// Due while every connection was busy.
    pub waited: u64,
    /// Responses within the measured part, including those to requests of the warm-up.
    pub answered: u64,
}

/// Rates over the measured part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// Requests in the measured part, each by the share of its time that lies in it ([`oroshi_stats::window`]). `None`
    /// in records before 1.3, which counted responses.
    #[serde(default)]
    pub requests: Option<f64>,
    /// `requests` per second: the sum of the threads' rates.
    pub requests_per_s: f64,
    /// Bytes read per second.
    pub read_bytes_per_s: f64,
    /// Bytes written per second.
    pub written_bytes_per_s: f64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// How far `requests_per_s` may be off the timetable's rate, because only whole requests are due.
    ///
    /// One request of each thread with constant gaps, the standard deviation of random arrivals. `None` in a closed
    /// loop, and in records before 1.3.
    #[serde(default)]
    pub requests_per_s_error: Option<f64>,
}

/// The six clocks.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ClockRecords {
    /// From handing the first byte to the kernel to reading the last byte.
    pub service: ClockRecord,
    /// From when the request was due to reading the last byte.
    pub response: ClockRecord,
    /// From when the request was due and a connection free until it was handed over: the generator's own delay. Open
    /// loop only.
    pub lateness: ClockRecord,
    /// Socket connect.
    pub connect: ClockRecord,
    /// TLS handshake.
    pub tls: ClockRecord,
    /// From handing the first byte to the kernel to reading the first byte.
    pub first_byte: ClockRecord,
}

/// One histogram.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ClockRecord {
    /// Its figures.
    pub summary: LatencySummary,
    /// The histogram. In JSON: HdrHistogram V2 blobs (compressed, base64, nanoseconds) of its recorded and its censored
    /// values, with the exact figures beside them.
    pub histogram: Latency,
}

/// Connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connections {
    /// Opened under load in the measured part, and before it where there was no warm-up. Held connections are not
    /// counted.
    pub opened: u64,
    /// Ended by the server between requests.
    pub closed_by_server: u64,
    /// Up at the end, or when nothing was left to send on them, of `plan.connections`. Meaningless with a connection
    /// per request.
    pub alive_at_end: usize,
    /// The fewest that were up at any tick.
    pub fewest_alive: usize,
    /// Held connections that were up at the end, of `plan.hold`.
    pub held_at_end: usize,
}

/// Properties of the whole responses of the measured part.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answers {
    /// The `Server` header of the run's first response.
    pub server: Option<String>,
    /// Length of that response's body, bytes. Lengths are of bodies with their chunks put together.
    pub first_body_bytes: Option<u64>,
    /// Bytes of all bodies.
    pub body_bytes: u64,
    /// Responses whose body is not as long as that of the first.
    pub other_lengths: u64,
    /// Responses after which the server leaves the connection open.
    pub kept: u64,
    /// TLS as the first connection negotiated it.
    pub tls: Option<TlsRecord>,
}

/// The protocol and cipher of a TLS connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TlsRecord {
    /// Its version: `TLSv1.3`.
    pub protocol: String,
    /// Its cipher suite: `TLS_AES_256_GCM_SHA384`.
    pub cipher: String,
}

/// Times of requests rather than of connections, one of each per completed request.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ConnectionTimesRecord {
    /// Connect time, TLS handshake included, for the first request of a connection; 0 for later ones.
    pub connect: ClockRecord,
    /// Connect time and service time together.
    pub total: ClockRecord,
}

/// The time series.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SeriesRecord {
    /// Width of each point, seconds.
    pub width_s: f64,
    /// In order, from the start of the measured part. The last one may be narrower.
    pub points: Vec<PointRecord>,
    /// Service times over time. `None` without answers, and in records before 1.1.
    #[serde(default)]
    pub heat: Option<HeatMapRecord>,
}

/// How many answers took how long, when: a heat map. Rows are ranges of service time, four to each doubling.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HeatMapRecord {
    /// Width of a column, seconds: that of some of the series' points together. The last one may be narrower.
    pub column_s: f64,
    /// The rows' edges, nanoseconds, ascending, one more than there are rows: row `i` has times from `bounds_ns[i]` on
    /// and below `bounds_ns[i + 1]`. Only as many rows as the run needs. Below 256 ns there is one row; the row that
    /// ends at 2^40 ns (18 minutes) has all longer times too.
    pub bounds_ns: Vec<u64>,
    /// Responses by column and row, at most 120 columns. A column ends with its last row that is not zero. The sum is
    /// `requests.answered`.
    pub counts: Vec<Vec<u64>>,
}

/// One point of the series.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct PointRecord {
    /// Where it begins, seconds.
    pub at_s: f64,
    /// Responses.
    pub requests: u64,
    /// Errors.
    pub errors: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Median service time, nanoseconds, within some percent; `None` without responses.
    pub p50_ns: Option<u64>,
    /// 99th percentile of the service time, the same way.
    pub p99_ns: Option<u64>,
    /// Longest service time.
    pub max_ns: Option<u64>,
    /// The fewest connections that were up at any tick in it; meaningless with a connection per request. `None` in
    /// records before 1.1.
    #[serde(default)]
    pub alive: Option<usize>,
}

/// CPU time and memory of the load itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Generator {
    /// CPU time of each thread, as a share of one core over the measured part.
    pub thread_cpu: Vec<f64>,
    /// CPU microseconds per request, all threads.
    pub cpu_us_per_request: Option<f64>,
    /// How late the threads' timers fired.
    pub lag: LatencySummary,
}

impl From<Clocks> for ClockRecords {
    fn from(clocks: Clocks) -> Self {
        Self {
            service: clocks.service.into(),
            response: clocks.response.into(),
            lateness: clocks.lateness.into(),
            connect: clocks.connect.into(),
            tls: clocks.tls.into(),
            first_byte: clocks.first_byte.into(),
        }
    }
}

impl ClockRecords {
    /// Returns each clock with its name.
    #[must_use]
    pub fn each(&self) -> [(&'static str, &ClockRecord); 6] {
        [
            ("service", &self.service),
            ("response", &self.response),
            ("lateness", &self.lateness),
            ("connect", &self.connect),
            ("tls", &self.tls),
            ("first_byte", &self.first_byte),
        ]
    }
}

impl From<Latency> for ClockRecord {
    fn from(histogram: Latency) -> Self {
        Self { summary: histogram.summary(), histogram }
    }
}

/// A count over so many seconds, per second; 0 over no time.
pub(crate) fn per_second(count: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { count as f64 / seconds } else { 0.0 }
}

/// A moment as seconds since 1970, UTC.
pub(crate) fn unix_seconds(at: SystemTime) -> f64 {
    at.duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}
