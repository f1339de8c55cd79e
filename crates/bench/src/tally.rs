//! The counters of one core. One owner, no sharing; merged when the run is over.

use oroshi_stats::{Latency, Sketch, WindowCount};
use serde::{Deserialize, Serialize};

use crate::failure::{Failure, FailureCounts};
pub use crate::http2::Http2Counts;
use crate::plan::MOST_URLS;
use crate::request_counts::RequestCounts;
use crate::unreadable::Unreadable;

/// Histograms of the six times of a request, in nanoseconds.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Clocks {
    /// From handing the first byte to the kernel to reading the last byte of the response.
    pub service: Latency,
    /// From when the request was due to reading the last byte of the response.
    pub response: Latency,
    /// How long a due request with a free connection waited for the generator. Open loop only.
    pub lateness: Latency,
    /// Until the socket was connected.
    pub connect: Latency,
    /// TLS handshake after that.
    pub tls: Latency,
    /// From handing the first byte to the kernel to reading the first byte of the response.
    pub first_byte: Latency,
}

impl Clocks {
    /// Adds the values of another core.
    pub fn merge(&mut self, other: &Self) {
        self.service.merge(&other.service);
        self.response.merge(&other.response);
        self.lateness.merge(&other.lateness);
        self.connect.merge(&other.connect);
        self.tls.merge(&other.tls);
        self.first_byte.merge(&other.first_byte);
    }
}

/// Counts and clocks of the measured part of a run.
///
/// Every due request ends in exactly one way: `started = completed + failed + cut_off + unsent`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Tally {
    /// Requests that were due in the measured part.
    pub started: u64,
    /// Requests with a whole response, whatever its status.
    pub completed: u64,
    /// Requests that failed without a whole response.
    pub failed: u64,
    /// Requests on the wire when the run ended.
    pub cut_off: u64,
    /// Requests that were due and never sent, because no connection was free (open loop).
    pub unsent: u64,
    /// Responses within the measured part, also to requests of the warm-up.
    pub answered: u64,
    /// Requests by the share of each one's time that lies in the measured part; throughput is computed from it.
    pub window: WindowCount,
    /// Arrivals that found every connection busy and waited for one (open loop).
    pub waited: u64,
    /// Failures by name, of requests and of attempts to connect: the sum can exceed `failed`.
    pub failures: FailureCounts,
    /// Answers by status, 0 to 999.
    pub statuses: Box<[u64]>,
    /// Bytes read, including heads, without TLS records.
    pub bytes_read: u64,
    /// Bytes written, including heads, without TLS records.
    pub bytes_written: u64,
    /// Connections opened.
    pub opened: u64,
    /// Connections that the server closed between requests, as it may.
    pub closed_by_server: u64,
    /// The clocks.
    pub clocks: Clocks,
    /// Properties of the responses.
    pub answers: AnswerCounts,
    /// Connect time and total time of each request, when the plan wants them.
    pub connection_times: Option<Box<ConnectionTimes>>,
    /// How late the core's timer fired: a busy core adds this to every time.
    pub lag: Latency,
    /// Details of the failures called `parse`.
    pub unreadable: Unreadable,
    /// How servers ended streams and connections of HTTP/2.
    pub http2: Http2Counts,
    /// Requests by URL, in the order of the plan's; as many as were used. Empty if the plan has one URL.
    pub urls: Vec<RequestCounts>,
}

/// Properties of whole responses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnswerCounts {
    /// Bytes of the bodies, with their chunks put together.
    pub body_bytes: u64,
    /// Responses whose body is not as long as that of the run's first.
    pub other_lengths: u64,
    /// Responses after which the server leaves the connection open.
    pub kept: u64,
}

/// Times per completed request, as `ab` shows them, in nanoseconds.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ConnectionTimes {
    /// Connect time, TLS handshake included, for the first request of a connection; 0 for later ones.
    pub connect: Latency,
    /// Connect time and service time together.
    pub total: Latency,
}

/// Statuses have three digits.
const STATUSES: usize = 1000;
/// The highest plausible count of a part of a run.
const MOST: u64 = 1 << 48;

impl Default for Tally {
    fn default() -> Self {
        Self {
            started: 0,
            completed: 0,
            failed: 0,
            cut_off: 0,
            unsent: 0,
            answered: 0,
            window: WindowCount::default(),
            waited: 0,
            failures: FailureCounts::default(),
            statuses: vec![0; STATUSES].into_boxed_slice(),
            bytes_read: 0,
            bytes_written: 0,
            opened: 0,
            closed_by_server: 0,
            clocks: Clocks::default(),
            answers: AnswerCounts::default(),
            connection_times: None,
            lag: Latency::default(),
            unreadable: Unreadable::default(),
            http2: Http2Counts::default(),
            urls: Vec::new(),
        }
    }
}

impl Tally {
    /// Adds the values of another core, except `window`: each core has a measured part of its own length.
    pub fn merge(&mut self, other: &Self) {
        self.started += other.started;
        self.completed += other.completed;
        self.failed += other.failed;
        self.cut_off += other.cut_off;
        self.unsent += other.unsent;
        self.answered += other.answered;
        self.waited += other.waited;
        self.failures.merge(&other.failures);
        for (to, from) in self.statuses.iter_mut().zip(&other.statuses) {
            *to += from;
        }
        self.bytes_read += other.bytes_read;
        self.bytes_written += other.bytes_written;
        self.opened += other.opened;
        self.closed_by_server += other.closed_by_server;
        self.clocks.merge(&other.clocks);
        self.answers.body_bytes += other.answers.body_bytes;
        self.answers.other_lengths += other.answers.other_lengths;
        self.answers.kept += other.answers.kept;
        if let Some(times) = &other.connection_times {
            let to = self.connection_times.get_or_insert_default();
            to.connect.merge(&times.connect);
            to.total.merge(&times.total);
        }
        self.lag.merge(&other.lag);
        self.unreadable.merge(&other.unreadable);
        self.http2.merge(&other.http2);
        for (index, url) in other.urls.iter().enumerate() {
            self.url(index).merge(url);
        }
    }

    /// The counts of the URL with this number.
    pub(crate) fn url(&mut self, index: usize) -> &mut RequestCounts {
        if index >= self.urls.len() {
            self.urls.resize_with(index + 1, RequestCounts::default);
        }
        &mut self.urls[index]
    }

    /// Whether the counts are those of a run, and not garbage whose sum could overflow.
    pub(crate) fn is_plausible(&self) -> bool {
        let counts = [
            self.started,
            self.completed,
            self.failed,
            self.cut_off,
            self.unsent,
            self.answered,
            self.waited,
            self.bytes_read,
            self.bytes_written,
            self.opened,
            self.closed_by_server,
            self.answers.body_bytes,
            self.answers.other_lengths,
            self.answers.kept,
        ];
        let failures = self.failures.iter().map(|(_, count)| count);
        counts.into_iter().chain(failures).chain(self.statuses.iter().copied()).all(|count| count <= MOST)
            && self.statuses.len() == STATUSES
            && self.http2.is_plausible(MOST)
            && self.urls.len() <= MOST_URLS
            && self.urls.iter().all(|url| url.is_plausible(MOST))
    }

    /// Counts the failure of a request.
    pub(crate) fn fail(&mut self, failure: Failure) {
        self.failed += 1;
        self.failures.add(failure);
    }
}

/// Counts of one core since its last report: for the live line and the time series.
#[derive(Clone, Debug)]
pub(crate) struct Interval {
    pub(crate) requests: u64,
    pub(crate) errors: u64,
    pub(crate) bytes: u64,
    pub(crate) service: Sketch,
    /// Full histograms of service and response time, when the plan wants a log of them.
    pub(crate) full: Option<Box<(Latency, Latency)>>,
    /// Every completed request of the measured part, when the plan wants each.
    pub(crate) each: Vec<Times>,
}

/// The times of one completed request: its begin on the monotonic clock, and the lengths of its parts; nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Times {
    pub(crate) began: u64,
    pub(crate) connect: u64,
    pub(crate) wait: u64,
    pub(crate) total: u64,
}

impl Interval {
    pub(crate) fn new(full: bool) -> Self {
        Self {
            requests: 0,
            errors: 0,
            bytes: 0,
            service: Sketch::default(),
            full: full.then(|| Box::new((Latency::default(), Latency::default()))),
            each: Vec::new(),
        }
    }
}
