//! What happened: everything a report says, as data. This is the JSON schema; `docs/bench.md` explains it to its readers.

use std::collections::BTreeMap;

use oroshi_stats::{Latency, LatencySummary};
use serde::{Deserialize, Serialize};

use crate::environment::Environment;
use crate::failure::Failure;
use crate::grade::Grade;
use crate::plan::{Load, Plan};
use crate::tally::Clocks;
use crate::watch::{FoundBy, ServerUsage};

/// Version of the schema: the first number changes when a field changes meaning or goes, the second when one comes.
pub const SCHEMA: &str = "oroshi-bench/1.3";

/// A run and its result.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    /// [`SCHEMA`].
    pub schema: String,
    /// When the run began: seconds since 1970, UTC.
    pub started_unix_s: f64,
    /// What was asked for.
    pub plan: PlanRecord,
    /// Length of the measured part, seconds.
    pub elapsed_s: f64,
    /// It was ended before its time.
    pub cut_short: bool,
    /// How the server had gone before the run ended; `None`: it was there, or never answered, and in records before 1.3.
    #[serde(default)]
    pub gone: Option<Gone>,
    /// Where every request went.
    pub requests: Requests,
    /// Rates over the measured part.
    pub rates: Rates,
    /// The clocks, each with its histogram.
    pub latency: ClockRecords,
    /// Failures by name; those that did not happen are left out. `status`, `check` and failed attempts to connect are among
    /// them, so the sum can differ from `requests.failed`.
    pub failures: BTreeMap<Failure, u64>,
    /// The sum of `failures` without `cut-off-at-end`.
    pub errors: u64,
    /// Failures called `parse` by broken rule, the most frequent first; empty in records before 1.3.
    #[serde(default)]
    pub parse: Vec<ParseRecord>,
    /// Answers by status.
    pub statuses: BTreeMap<u16, u64>,
    /// What became of the connections.
    pub connections: Connections,
    /// What the answers were like; empty in records before 1.2.
    #[serde(default)]
    pub answers: Answers,
    /// Each request's connecting time and its whole, when they were asked for.
    #[serde(default)]
    pub connection_times: Option<ConnectionTimesRecord>,
    /// How it went over time.
    pub series: SeriesRecord,
    /// The load's own side.
    pub generator: Generator,
    /// The server's side, when it is on this machine.
    pub server: Option<ServerUsage>,
    /// Why there is none.
    pub server_unknown: Option<String>,
    /// Who was the bottleneck.
    pub grade: Grade,
    /// What makes the figures doubtful, in words.
    pub warnings: Vec<String>,
    /// What else the machine did in the measured part. `None` in records before 1.3.
    #[serde(default)]
    pub machine: Option<MachineRecord>,
    /// The conditions that the run was held against, in the order in which they were given.
    #[serde(default)]
    pub fail_if: Vec<Condition>,
    /// The machine.
    pub environment: Environment,
}

/// How the server had gone before the run ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gone {
    /// From the last answer to the end of the run, seconds; of several servers that had gone, the first one's, as the two below.
    pub silent_s: f64,
    /// Attempts to connect that failed since the last one that did not.
    pub failed_attempts: u64,
    /// What tells it, in words.
    pub why: String,
    /// Where requests went to several servers: the addresses of those that had gone. Empty where there was one server.
    #[serde(default)]
    pub servers: Vec<String>,
}

impl Gone {
    /// Which servers were missing, and what tells it.
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

/// Failures called `parse` that broke the same rule of HTTP/1.1.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParseRecord {
    /// Its stable name: `length-and-transfer-encoding`, `head-too-large`, `bare-lf`.
    pub rule: String,
    /// In words, with what the sender seems to speak instead.
    pub what: String,
    /// How many.
    pub count: u64,
    /// How the first of them began: at most 64 bytes, with escapes as in a C string, and cut off at a cookie.
    pub first_bytes: String,
}

/// What else the machine did while it was measured on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MachineRecord {
    /// CPUs that are online.
    pub cpus: usize,
    /// The share of their time that was used, by anybody, other machines included. `None`: not known.
    pub busy_share: Option<f64>,
    /// The share of a CPU's time that other machines took, of the CPU that lost most. `None`: not known.
    pub steal_share: Option<f64>,
    /// CPUs' worth of time that processes used which are neither the server's nor ours. `None`: not known, as the server is not.
    pub others_cpus: Option<f64>,
    /// Something took what the two sides needed: rates and latencies are not those of an idle machine.
    pub disturbed: bool,
    /// The causes: `steal`, `other-processes`, `generator-bound`.
    pub why: Vec<String>,
}

/// A condition that a run was held against.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Condition {
    /// As it was typed: `p99>10ms`.
    pub condition: String,
    /// The metric: `p99`.
    pub metric: String,
    /// What became of it.
    pub outcome: ConditionOutcome,
    /// The measured value: nanoseconds for times, otherwise a count or a rate. `None`: not measured.
    pub value: Option<f64>,
    /// Whether the true value may be greater than `value`.
    pub at_least: bool,
    /// In words: `measured 8.123ms`.
    pub measured: String,
}

/// What became of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ConditionOutcome {
    /// It does not hold, whatever the requests without an answer would have taken.
    Passed,
    /// It holds, whatever they would have taken.
    Failed,
    /// That depends on them, or nothing was measured. The run has failed.
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
    /// How many requests rates and CPU times per request are about: those in the measured part, by the share of each one's time that
    /// lies in it.
    #[must_use]
    pub fn requests_done(&self) -> f64 {
        self.rates.requests.unwrap_or(self.requests.answered as f64)
    }

    /// Requests per second and thread, rounded down: a sample per point of the time series that has answers. wrk's `Req/Sec` is about
    /// such samples.
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

    /// The server's CPU microseconds per request; `None` where it is not known, or nothing was done. Of several servers the first is watched,
    /// and how many of the requests were its own is not counted: then there is none, unless the user named the processes.
    #[must_use]
    pub fn server_cpu_us_per_request(&self) -> Option<f64> {
        let server = self.server.as_ref()?;
        let is_of_all = self.plan.origins.len() <= 1 || server.found_by == FoundBy::Pid;
        if is_of_all { server.cpu_us_each(self.requests_done()) } else { None }
    }
}

/// The plan, as JSON shows it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PlanRecord {
    /// Where connections went, each with its first request's line.
    pub origins: Vec<OriginRecord>,
    /// Threads.
    pub threads: usize,
    /// Connections under load.
    pub connections: usize,
    /// Idle connections beside them.
    pub hold: usize,
    /// Closed or open loop.
    pub load: Load,
    /// Length asked for, seconds.
    pub duration_s: Option<f64>,
    /// Number of requests asked for.
    pub requests: Option<u64>,
    /// Warm-up before the measured part, seconds.
    pub warmup_s: f64,
    /// Timeout, seconds.
    pub timeout_s: f64,
    /// Requests per connection; `None`: no limit.
    pub requests_per_connection: Option<u64>,
    /// Requests in flight per connection.
    pub pipeline: usize,
    /// The script that made the requests, where there was one.
    #[serde(default)]
    pub script: Option<String>,
}

/// One place that was connected to.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct OriginRecord {
    /// Host and port, or the unix socket.
    pub address: String,
    /// `http` or `https`.
    pub scheme: String,
    /// The host and port of the URL, where connections went elsewhere (`--connect-to`, `--unix`); otherwise empty, as in
    /// records before 1.3.
    #[serde(default)]
    pub authority: String,
    /// Connections that went there.
    pub connections: usize,
    /// The first line of each request, at most a hundred of them; of a script's, the first one that it made.
    pub requests: Vec<String>,
    /// How many requests there are, sent in turn. 0 in records before 1.3.
    #[serde(default)]
    pub request_count: usize,
    /// Size of the first request, bytes.
    pub request_bytes: usize,
}

impl OriginRecord {
    /// How many requests there are, in records of any version.
    #[must_use]
    pub fn count(&self) -> usize {
        self.request_count.max(self.requests.len())
    }
}

/// Requests of the measured part: `started = completed + failed + cut_off + unsent`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Requests {
    /// Due in the measured part.
    pub started: u64,
    /// Answered in whole, whatever the status.
    pub completed: u64,
    /// Ended by a failure.
    pub failed: u64,
    /// On the wire when the run ended, and still without an answer when that was given up.
    pub cut_off: u64,
    /// Due, and never sent, as no connection was free.
    pub unsent: u64,
    /// Due while every connection was busy.
    pub waited: u64,
    /// Answers within the measured part, those to requests of the warm-up included.
    pub answered: u64,
}

/// Rates over the measured part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// Requests in the measured part, each by the share of its time that lies in it ([`oroshi_stats::window`]). `None` in records
    /// before 1.3, which counted answers.
    #[serde(default)]
    pub requests: Option<f64>,
    /// `requests` per second; of several threads, the sum of their rates.
    pub requests_per_s: f64,
    /// Bytes read per second.
    pub read_bytes_per_s: f64,
    /// Bytes written per second.
    pub written_bytes_per_s: f64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// How far `requests_per_s` may be off what the timetable of an open loop asks for, as only whole requests are due: a request of each
    /// thread more or less, or the standard deviation of random arrivals. `None` in a closed loop, and in earlier records.
    #[serde(default)]
    pub requests_per_s_error: Option<f64>,
}

/// The six clocks.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ClockRecords {
    /// First byte handed to the kernel until last byte read.
    pub service: ClockRecord,
    /// Due until last byte read.
    pub response: ClockRecord,
    /// Due, and free to go, until handed over: the generator's own fault. Open loop only.
    pub lateness: ClockRecord,
    /// Socket connect.
    pub connect: ClockRecord,
    /// TLS handshake.
    pub tls: ClockRecord,
    /// First byte handed to the kernel until first byte read.
    pub first_byte: ClockRecord,
}

/// One histogram.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ClockRecord {
    /// Its figures.
    pub summary: LatencySummary,
    /// The histogram itself; in JSON as HdrHistogram V2 blobs (compressed, base64, in nanoseconds) of its recorded and its
    /// censored values, with the exact figures beside them.
    pub histogram: Latency,
}

/// Connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connections {
    /// Opened under load in the measured part, and before it where there was no warm-up; those that are only held are apart.
    pub opened: u64,
    /// Ended by the server between requests.
    pub closed_by_server: u64,
    /// Up at the end, or when nothing was left to send on them, of `plan.connections`. Not meaningful with a connection per
    /// request.
    pub alive_at_end: usize,
    /// The fewest that were up at any tick.
    pub fewest_alive: usize,
    /// Idle ones up at the end, of `plan.hold`.
    pub held_at_end: usize,
}

/// What the whole answers of the measured part were like.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answers {
    /// The `Server` header of the run's first answer.
    pub server: Option<String>,
    /// Length of that answer's body, bytes; of this section everything is about bodies with their chunks put together.
    pub first_body_bytes: Option<u64>,
    /// Bytes of all bodies.
    pub body_bytes: u64,
    /// Answers whose body is not as long as the first one's.
    pub other_lengths: u64,
    /// Answers after which the server leaves the connection open.
    pub kept: u64,
    /// TLS as the first connection negotiated it.
    pub tls: Option<TlsRecord>,
}

/// What a TLS connection is made of.
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
    /// Connecting, TLS handshake included, for the first request of a connection; 0 for those after it.
    pub connect: ClockRecord,
    /// That and the service time.
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
    pub heat: Option<HeatRecord>,
}

/// How many answers took how long, when: a heat map. Rows are ranges of service time, four to each doubling.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HeatRecord {
    /// Width of a column, seconds: that of some of the series' points together. The last one may be narrower.
    pub column_s: f64,
    /// The rows' edges, nanoseconds, ascending, one more than there are rows: row `i` has times from `bounds_ns[i]` on and
    /// below `bounds_ns[i + 1]`. Only as many rows as the run needs. Below 256 ns there is one row; the row that ends at
    /// 2^40 ns (18 minutes) has all longer times too.
    pub bounds_ns: Vec<u64>,
    /// Answers by column and row, at most 120 columns. A column ends with its last row that is not zero: those that are
    /// missing are zeros. Together they are `requests.answered`.
    pub counts: Vec<Vec<u64>>,
}

/// One point of the series.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct PointRecord {
    /// Where it begins, seconds.
    pub at_s: f64,
    /// Answers.
    pub requests: u64,
    /// Errors.
    pub errors: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Median service time, nanoseconds, within some percent; `None` without answers.
    pub p50_ns: Option<u64>,
    /// 99th percentile of the service time, the same way.
    pub p99_ns: Option<u64>,
    /// Longest service time.
    pub max_ns: Option<u64>,
    /// The fewest connections that were up at any tick in it; like `connections.fewest_alive` not meaningful with a
    /// connection per request. `None` in records before 1.1.
    #[serde(default)]
    pub alive: Option<usize>,
}

/// What the load itself cost.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Generator {
    /// CPU time of each thread, as a share of one core over the measured part.
    pub thread_cpu: Vec<f64>,
    /// CPU microseconds per answer, all threads.
    pub cpu_us_per_request: Option<f64>,
    /// How late the threads' own timers fired.
    pub lag: LatencySummary,
}

impl PlanRecord {
    pub(crate) fn of(plan: &Plan) -> Self {
        let first_line = |bytes: &[u8]| {
            let end = bytes.iter().position(|&b| b == b'\r').unwrap_or(bytes.len());
            String::from_utf8_lossy(&bytes[..end]).into_owned()
        };
        Self {
            origins: plan
                .origins
                .iter()
                .map(|o| OriginRecord {
                    address: o.name(),
                    scheme: o.scheme.as_str().to_owned(),
                    authority: o.elsewhere.clone().unwrap_or_default(),
                    connections: o.connections,
                    requests: o.requests.iter().take(100).map(|r| first_line(&r.keep)).collect(),
                    request_count: o.requests.len(),
                    request_bytes: o.requests.first().map_or(0, crate::request::Request::size),
                })
                .collect(),
            threads: plan.threads,
            connections: plan.connections,
            hold: plan.hold,
            load: plan.load.clone(),
            duration_s: plan.duration.map(|d| d.as_secs_f64()),
            requests: plan.requests,
            warmup_s: plan.warmup.as_secs_f64(),
            timeout_s: plan.timeout.as_secs_f64(),
            requests_per_connection: if plan.connects_per_request() { Some(1) } else { plan.requests_per_connection },
            pipeline: plan.pipeline,
            script: plan.script.as_ref().map(|script| script.name()),
        }
    }
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
    /// Each with its name.
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
