//! What one core counts while it works. One owner, no sharing; merged when the run is over.

use oroshi_stats::{Latency, Sketch, WindowCount};

use crate::failure::{Failure, FailureCounts};
use crate::unreadable::Unreadable;

/// The six clocks that run on a request, each a histogram in nanoseconds.
#[derive(Clone, Debug, Default)]
pub struct Clocks {
    /// First byte handed to the kernel until the answer's last byte was read.
    pub service: Latency,
    /// From when the request was due until the answer's last byte was read.
    pub response: Latency,
    /// How long a request that was due, with a connection free to carry it, waited for the generator. Open loop only.
    pub lateness: Latency,
    /// Until the socket was connected.
    pub connect: Latency,
    /// TLS handshake after that.
    pub tls: Latency,
    /// First byte handed to the kernel until the answer's first byte was read.
    pub first_byte: Latency,
}

impl Clocks {
    /// Adds another core's.
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
/// Every request that was due is in exactly one of four places: `started = completed + failed + cut_off + unsent`.
#[derive(Clone, Debug)]
pub struct Tally {
    /// Requests that were due in the measured part.
    pub started: u64,
    /// Those with a whole answer, whatever its status.
    pub completed: u64,
    /// Those that failed without a whole answer.
    pub failed: u64,
    /// Those on the wire, unanswered, when the run ended.
    pub cut_off: u64,
    /// Those that were due and never sent, because no connection was free (open loop).
    pub unsent: u64,
    /// Answers that came within the measured part, also to requests of the warm-up.
    pub answered: u64,
    /// Requests by the share of each one's time that lies in the measured part: what throughput is made of.
    pub window: WindowCount,
    /// Arrivals that found every connection busy and waited for one (open loop).
    pub waited: u64,
    /// Failures by name. Besides requests it counts attempts to connect, so its sum can exceed `failed`.
    pub failures: FailureCounts,
    /// Answers by status, 0 to 999.
    pub statuses: Box<[u64]>,
    /// Bytes read, heads included, TLS records not.
    pub bytes_read: u64,
    /// Bytes written, the same way.
    pub bytes_written: u64,
    /// Connections opened.
    pub opened: u64,
    /// Connections that ended because the server closed them, as it may, between requests.
    pub closed_by_server: u64,
    /// The clocks.
    pub clocks: Clocks,
    /// What the answers were like.
    pub answers: AnswerCounts,
    /// Per request, when the plan wants it: connecting and the whole.
    pub connection_times: Option<Box<ConnectionTimes>>,
    /// How late the core's own timer fired: what a busy core adds to every figure.
    pub lag: Latency,
    /// What the failures called `parse` were.
    pub unreadable: Unreadable,
}

/// What whole answers were like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AnswerCounts {
    /// Bytes of their bodies, chunks put together.
    pub body_bytes: u64,
    /// Those whose body is not as long as that of the run's first answer.
    pub other_lengths: u64,
    /// Those after which the server leaves the connection open.
    pub kept: u64,
}

/// Times that only a request has, not a connection: what `ab` shows. In nanoseconds, one of each per completed request.
#[derive(Clone, Debug, Default)]
pub struct ConnectionTimes {
    /// Connecting, TLS handshake included, for the first request of a connection; 0 for those after it.
    pub connect: Latency,
    /// That and the service time.
    pub total: Latency,
}

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
            statuses: vec![0; 1000].into_boxed_slice(),
            bytes_read: 0,
            bytes_written: 0,
            opened: 0,
            closed_by_server: 0,
            clocks: Clocks::default(),
            answers: AnswerCounts::default(),
            connection_times: None,
            lag: Latency::default(),
            unreadable: Unreadable::default(),
        }
    }
}

impl Tally {
    /// Adds another core's. Windows stay apart: each core has its own length.
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
    }

    /// A failure of a request: it ends there.
    pub(crate) fn fail(&mut self, failure: Failure) {
        self.failed += 1;
        self.failures.add(failure);
    }
}

/// What happened on one core since it last said so: the material of the live line and of the time series.
#[derive(Clone, Debug)]
pub(crate) struct Interval {
    pub(crate) requests: u64,
    pub(crate) errors: u64,
    pub(crate) bytes: u64,
    pub(crate) service: Sketch,
    /// Full histograms of service and response time, when a log of them is wanted.
    pub(crate) full: Option<Box<(Latency, Latency)>>,
    /// Every completed request of the measured part, when they are wanted one by one.
    pub(crate) each: Vec<Times>,
}

/// One completed request: when, on the monotonic clock, it began, and how long its parts took; nanoseconds.
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
