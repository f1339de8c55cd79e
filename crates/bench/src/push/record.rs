//! The record of a load on a hub, as data. This is the JSON schema; `docs/bench-push.md` explains it.

use std::collections::BTreeMap;

use oroshi_stats::Latency;
use serde::{Deserialize, Serialize};

use super::plan::{Mode, Plan, Publication};
use super::published::PublishTally;
use super::tally::Tally;
use crate::environment::Environment;
use crate::failure::Failure;
use crate::grade::Grade;
use crate::plan::Load;
use crate::record::{self as requests, AgentRecord, ClockRecord, Condition, MachineRecord, per_second};
use crate::watch::ServerUsage;

/// Version of the schema. The first number changes when a field goes or changes its meaning, the second when one comes.
pub const SCHEMA: &str = "oroshi-bench-push/1.3";

/// A run and its result.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    /// [`SCHEMA`].
    pub schema: String,
    /// When the run began: seconds since 1970, UTC.
    pub started_unix_s: f64,
    /// The plan.
    pub plan: PlanRecord,
    /// Length of the measured part, seconds: until the last message came or was published.
    pub elapsed_s: f64,
    /// Whether the run was ended before its time.
    pub cut_short: bool,
    /// The subscriptions.
    pub subscriptions: Subscriptions,
    /// Messages for all, as they were published.
    pub published: Option<PublishCounts>,
    /// Deliveries of messages for all.
    pub deliveries: Deliveries,
    /// Messages for one connection each, as they were published.
    pub published_to_one: Option<PublishCounts>,
    /// Deliveries of messages for one.
    pub deliveries_to_one: Option<DeliveriesToOne>,
    /// The load's own side.
    pub generator: Generator,
    /// The server's side, when it is on this machine: over the measured part.
    pub server: Option<ServerUsage>,
    /// Why `server` is `None`.
    pub server_unknown: Option<String>,
    /// The server's cost of the subscriptions while nothing was published.
    pub idle: Option<Idle>,
    /// The bottleneck of the run.
    pub grade: Grade,
    /// Reasons to doubt the figures, as sentences.
    pub warnings: Vec<String>,
    /// Other activity of the machine in the measured part. `None` in records before 1.1.
    #[serde(default)]
    pub machine: Option<MachineRecord>,
    /// The user's conditions and their outcomes, in the user's order.
    #[serde(default)]
    pub fail_if: Vec<Condition>,
    /// The parts that load machines had, in their order; none without agents.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub agents: Vec<AgentRecord>,
    /// The machine.
    pub environment: Environment,
}

/// The plan, as in JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PlanRecord {
    /// How messages came.
    pub mode: Mode,
    /// Where the subscriptions went: host and port, or the unix socket.
    pub address: String,
    /// `http` or `https`.
    pub scheme: String,
    /// Path and query.
    pub target: String,
    /// Subscriptions asked for.
    pub connections: usize,
    /// Threads that hold them.
    pub threads: usize,
    /// Connections that were being opened at the same time.
    pub connecting: usize,
    /// The most connections begun per second.
    pub connect_rate: Option<f64>,
    /// Planned length, seconds; `None`: until a number was published.
    pub duration_s: Option<f64>,
    /// Messages for all that were to be published.
    pub publishes: Option<u64>,
    /// Warm-up before the measured part, seconds.
    pub warmup_s: f64,
    /// Timeout, seconds.
    pub timeout_s: f64,
    /// Messages for all.
    pub publish: Option<PublishRecord>,
    /// Messages for one each.
    pub publish_to: Option<PublishRecord>,
}

/// How messages were published.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PublishRecord {
    /// Host and port, or the unix socket.
    pub address: String,
    /// The request's line: `POST /publish`.
    pub request: String,
    /// Number of publishers.
    pub publishers: usize,
    /// Closed or open loop.
    pub load: Load,
}

/// Subscriptions.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Subscriptions {
    /// Subscriptions that the server accepted.
    pub opened: u64,
    /// Subscriptions that failed, by name.
    pub failures: BTreeMap<Failure, u64>,
    /// Refused subscriptions by status.
    pub statuses: BTreeMap<u16, u64>,
    /// By failure, what the server sent on the first subscription that failed so.
    #[serde(default)]
    pub came: BTreeMap<Failure, String>,
    /// How long opening all of them took, seconds.
    pub opening_s: f64,
    /// How long opening each took, from connecting to the response that accepts it.
    pub opening: ClockRecord,
    /// Subscriptions that ended before the run did, by how: `close-1001`, `eof`, `end-of-response`, `reset`,
    /// `protocol-error`.
    pub ended: BTreeMap<String, u64>,
}

impl Subscriptions {
    pub(crate) fn of(parts: RecordParts) -> Self {
        let Tally { failures, statuses, came, opening, ended, .. } = parts.tally;
        Self {
            opened: parts.opened,
            failures: failures.iter().collect(),
            statuses,
            came,
            opening_s: parts.opening_s,
            opening: opening.into(),
            ended,
        }
    }

    /// Returns how many ended before the run did.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.ended.values().sum()
    }

    /// Returns how many could not be opened.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.failures.values().sum()
    }
}

/// Messages as they were published: `due = confirmed + failed + unsent`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PublishCounts {
    /// Due in the measured part.
    pub due: u64,
    /// With a response of status 200 to 299.
    pub confirmed: u64,
    /// With another response, or none.
    pub failed: u64,
    /// Due, and never sent, because every publisher was busy.
    pub unsent: u64,
    /// Responses by status.
    pub statuses: BTreeMap<u16, u64>,
    /// Failures by name.
    pub failures: BTreeMap<Failure, u64>,
    /// Confirmed messages per second.
    pub per_s: f64,
    /// From the first byte of the request to the last of the response.
    pub service: ClockRecord,
    /// From when the message was due to the last byte of the response.
    pub response: ClockRecord,
}

/// Deliveries of messages for all: `expected = delivered + lost`, except for deliveries of unconfirmed messages.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Deliveries {
    /// Confirmed messages times opened subscriptions. `None` where somebody else published.
    pub expected: Option<u64>,
    /// Messages that came, counted once per subscription.
    pub delivered: u64,
    /// Confirmed messages that did not come. Where somebody else published: the gaps in what came.
    pub lost: u64,
    /// Lost messages on subscriptions that had ended.
    pub lost_on_ended: u64,
    /// Messages that came again.
    pub duplicated: u64,
    /// Messages that came after one that the same publisher had sent later.
    pub reordered: u64,
    /// Deliveries per second.
    pub per_s: f64,
    /// From sending a message to reading it.
    pub delay: ClockRecord,
    /// Messages of any kind: frames, events or lines.
    pub messages: u64,
    /// Messages without a stamp: greetings, heartbeats.
    pub unstamped: u64,
    /// Stamps of another run.
    pub foreign: u64,
    /// Bytes read on subscriptions.
    pub bytes: u64,
}

impl Deliveries {
    /// Returns the deliveries of messages for one connection each in this form.
    fn of_one(self, to_one: DeliveriesToOne, elapsed_s: f64) -> Self {
        let DeliveriesToOne { delivered, lost, duplicated, delay, .. } = to_one;
        let per_s = per_second(delivered, elapsed_s);
        Self { expected: Some(delivered + lost), delivered, lost, duplicated, per_s, delay, ..self }
    }
}

/// Deliveries of messages for one connection each.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DeliveriesToOne {
    /// Messages that came to the connection that they were for.
    pub delivered: u64,
    /// Confirmed messages that did not.
    pub lost: u64,
    /// Messages that came twice in a row.
    pub duplicated: u64,
    /// Messages that came to another connection.
    pub misdirected: u64,
    /// From sending a message to reading it.
    pub delay: ClockRecord,
}

/// CPU time and memory of the load itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Generator {
    /// CPU time of each thread that holds subscriptions, as a share of one core over the measured part.
    pub thread_cpu: Vec<f64>,
    /// The same for the publishers' thread.
    pub publisher_cpu: f64,
    /// CPU microseconds per delivery, of the threads that hold subscriptions.
    pub cpu_us_per_delivery: Option<f64>,
}

/// The server's cost of open subscriptions.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Idle {
    /// The server's resident memory before the first was opened, bytes.
    pub rss_before_bytes: u64,
    /// The same when all were open.
    pub rss_after_bytes: u64,
    /// The difference per subscription, bytes. Memory that the server reuses is not in it: restart the server for this
    /// figure.
    pub rss_bytes_per_subscription: f64,
    /// The server's CPU microseconds per opened subscription.
    pub cpu_us_per_subscription: f64,
}

/// The parts of a record.
pub(crate) struct RecordParts {
    pub(crate) tally: Tally,
    pub(crate) opened: u64,
    pub(crate) opening_s: f64,
    pub(crate) elapsed_s: f64,
    pub(crate) thread_cpu: Vec<f64>,
}

impl PlanRecord {
    pub(crate) fn of(plan: &Plan) -> Self {
        let origin = &plan.connect.origins[0];
        Self {
            mode: plan.mode,
            address: origin.name(),
            scheme: origin.scheme.as_str().to_owned(),
            target: plan.request.target().to_owned(),
            connections: plan.connect.connections,
            threads: plan.connect.threads,
            connecting: plan.connecting,
            connect_rate: plan.connect_rate,
            duration_s: plan.duration().map(|length| length.as_secs_f64()),
            publishes: plan.publish.as_ref().and_then(|publish| publish.plan.requests),
            warmup_s: plan.connect.warmup.as_secs_f64(),
            timeout_s: plan.connect.timeout.as_secs_f64(),
            publish: plan.publish.as_ref().map(PublishRecord::of),
            publish_to: plan.publish_to.as_ref().map(PublishRecord::of),
        }
    }
}

impl PublishRecord {
    fn of(publication: &Publication) -> Self {
        Self {
            address: publication.plan.origins[0].name(),
            request: format!("{} {}", publication.method, publication.url.target),
            publishers: publication.plan.connections,
            load: publication.plan.load.clone(),
        }
    }
}

impl PublishCounts {
    pub(crate) fn of(posted: &PublishTally, elapsed_s: f64) -> Self {
        Self {
            due: posted.due,
            confirmed: posted.confirmed,
            failed: posted.due - posted.confirmed - posted.unsent,
            unsent: posted.unsent,
            statuses: posted.statuses.clone(),
            failures: posted.failures.iter().collect(),
            per_s: per_second(posted.confirmed, elapsed_s),
            service: clock(&posted.service),
            response: clock(&posted.response),
        }
    }
}

impl Deliveries {
    pub(crate) fn of(parts: &RecordParts, published: Option<&PublishTally>) -> Self {
        let Tally { flow, lost, lost_on_ended, delivered, .. } = &parts.tally;
        Self {
            expected: published.map(|posted| posted.confirmed * parts.opened),
            delivered: *delivered,
            lost: *lost,
            lost_on_ended: *lost_on_ended,
            duplicated: flow.duplicated,
            reordered: flow.reordered,
            per_s: per_second(*delivered, parts.elapsed_s),
            delay: clock(&flow.delay),
            messages: flow.messages,
            unstamped: flow.unstamped,
            foreign: flow.foreign,
            bytes: flow.bytes,
        }
    }
}

impl DeliveriesToOne {
    pub(crate) fn of(parts: &RecordParts, posted: &PublishTally) -> Self {
        let to_one = &parts.tally.flow.to_one;
        Self {
            delivered: to_one.delivered,
            lost: posted.confirmed.saturating_sub(to_one.delivered),
            duplicated: to_one.duplicated,
            misdirected: to_one.misdirected,
            delay: clock(&to_one.delay),
        }
    }
}

impl Generator {
    pub(crate) fn of(parts: &RecordParts, publisher_cpu: u64) -> Self {
        let busy: f64 = parts.thread_cpu.iter().sum::<f64>() * parts.elapsed_s;
        Self {
            thread_cpu: parts.thread_cpu.clone(),
            publisher_cpu: if parts.elapsed_s > 0.0 { publisher_cpu as f64 / 1e9 / parts.elapsed_s } else { 0.0 },
            cpu_us_per_delivery: (parts.tally.delivered > 0).then(|| busy * 1e6 / parts.tally.delivered as f64),
        }
    }

    /// Returns the share of a core that the busiest thread used.
    #[must_use]
    pub fn busiest(&self) -> f64 {
        self.thread_cpu.iter().copied().fold(self.publisher_cpu, f64::max)
    }
}

impl Record {
    /// Returns the record in terms of a load of requests, for comparisons.
    ///
    /// A delivered message is a completed request, a lost one a failed request, the delay a response time. Messages for
    /// one connection each count if they are the only ones.
    #[must_use]
    pub fn as_requests(self) -> requests::Record {
        let cpu_us_per_delivery = self.generator.cpu_us_per_delivery;
        let busiest = self.generator.busiest();
        let Self { plan, mut deliveries, subscriptions, mut published, .. } = self;
        let mut load = plan.publish.as_ref().map_or(Load::Closed, |publish| publish.load.clone());
        let mut misdirected = 0;
        if let (None, Some(plan), Some(to_one)) = (&plan.publish, &plan.publish_to, self.deliveries_to_one) {
            (load, published, misdirected) = (plan.load.clone(), self.published_to_one, to_one.misdirected);
            deliveries = deliveries.of_one(to_one, self.elapsed_s);
        }
        let started = deliveries.expected.unwrap_or(deliveries.delivered + deliveries.lost);
        let mut warnings = self.warnings;
        let faults = [
            (subscriptions.failed(), "subscriptions could not be opened"),
            (subscriptions.ended.values().sum(), "subscriptions ended early"),
            (deliveries.lost, "messages were lost"),
            (deliveries.duplicated, "messages came twice"),
            (deliveries.reordered, "messages came in another order than they were sent"),
            (misdirected, "messages came to another connection than theirs"),
        ];
        warnings.extend(faults.iter().filter(|fault| fault.0 > 0).map(|(count, what)| format!("{count} {what}")));
        let none = || ClockRecord::from(Latency::new());
        requests::Record {
            schema: requests::SCHEMA.to_owned(),
            started_unix_s: self.started_unix_s,
            plan: requests::PlanRecord {
                origins: vec![requests::OriginRecord {
                    address: plan.address,
                    scheme: plan.scheme,
                    authority: String::new(),
                    connections: plan.connections,
                    requests: vec![format!("GET {} ({})", plan.target, plan.mode.name())],
                    request_count: 1,
                    request_bytes: 0,
                }],
                threads: plan.threads,
                connections: plan.connections,
                hold: 0,
                load,
                duration_s: plan.duration_s,
                requests: plan.publishes,
                warmup_s: plan.warmup_s,
                timeout_s: plan.timeout_s,
                requests_per_connection: None,
                pipeline: 1,
                protocol: crate::plan::Protocol::Http1,
                streams: 1,
                gather_s: 0.0,
                script: None,
            },
            elapsed_s: self.elapsed_s,
            cut_short: self.cut_short,
            gone: None,
            requests: requests::Requests {
                started,
                completed: deliveries.delivered,
                failed: deliveries.lost,
                answered: deliveries.delivered,
                ..requests::Requests::default()
            },
            rates: requests::Rates {
                requests: Some(deliveries.delivered as f64),
                requests_per_s: deliveries.per_s,
                read_bytes_per_s: per_second(deliveries.bytes, self.elapsed_s),
                read_bytes: deliveries.bytes,
                ..requests::Rates::default()
            },
            latency: requests::ClockRecords {
                service: deliveries.delay.clone(),
                response: deliveries.delay,
                lateness: none(),
                connect: subscriptions.opening,
                tls: none(),
                first_byte: none(),
            },
            failures: published.map(|posted| posted.failures).unwrap_or_default(),
            errors: deliveries.lost,
            parse: Vec::new(),
            http2: None,
            statuses: BTreeMap::new(),
            connections: requests::Connections { opened: subscriptions.opened, ..requests::Connections::default() },
            answers: requests::Answers::default(),
            connection_times: None,
            series: requests::SeriesRecord { width_s: 0.1, points: Vec::new(), heat: None },
            generator: requests::Generator {
                thread_cpu: vec![busiest],
                cpu_us_per_request: cpu_us_per_delivery,
                lag: Latency::new().summary(),
            },
            server: self.server,
            server_unknown: self.server_unknown,
            server_watched_by: None,
            grade: self.grade,
            warnings,
            machine: self.machine,
            fail_if: self.fail_if,
            environment: self.environment,
            scenario: None,
            urls: Vec::new(),
            agents: self.agents,
        }
    }

    /// Returns the server's CPU microseconds per delivery, messages for one included.
    #[must_use]
    pub fn server_cpu_us_per_delivery(&self) -> Option<f64> {
        let to_one = self.deliveries_to_one.as_ref().map_or(0, |deliveries| deliveries.delivered);
        self.server.as_ref()?.cpu_us_per_request(self.deliveries.delivered + to_one)
    }
}

fn clock(latency: &Latency) -> ClockRecord {
    latency.clone().into()
}
