//! Phases of a request, their deadlines and their timings.

use std::fmt;
use std::time::Duration;

/// The phase in which a request failed, in the order of a request's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Phase {
    /// Building the request: its URL, a field, its body.
    Request,
    /// Waiting for a connection at the cap.
    Queue,
    /// Resolving the host's name.
    Dns,
    /// Connecting.
    Connect,
    /// The TLS handshake, including its set-up.
    Tls,
    /// Sending the head and the body.
    Write,
    /// Waiting for the response's head.
    FirstByte,
    /// Receiving the body.
    BetweenBytes,
    /// Any of the above, when the total deadline passed.
    Total,
    /// Following a redirect.
    Redirect,
    /// Interpreting a complete body: text, JSON.
    Content,
}

impl Phase {
    /// Returns the phase's stable name.
    pub const fn name(self) -> &'static str {
        match self {
            Phase::Request => "request",
            Phase::Queue => "queue",
            Phase::Dns => "dns",
            Phase::Connect => "connect",
            Phase::Tls => "tls",
            Phase::Write => "write",
            Phase::FirstByte => "first-byte",
            Phase::BetweenBytes => "between-bytes",
            Phase::Total => "total",
            Phase::Redirect => "redirect",
            Phase::Content => "content",
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The deadlines of a request's phases. [`Duration::MAX`] means for ever.
///
/// A deadline fires at its time or some milliseconds later, never earlier. Bytes that arrive in time are not late, even
/// if nobody has read them yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadlines {
    /// Waiting for a connection at the cap. Default 30 s.
    pub queue: Duration,
    /// Resolving the host's name. Default 10 s.
    pub dns: Duration,
    /// Connecting to any of the host's addresses. Default 10 s.
    pub connect: Duration,
    /// The TLS handshake. Default 10 s.
    pub tls: Duration,
    /// The longest time without the server taking a byte of the request. Default 30 s.
    pub write: Duration,
    /// From the last byte of the request to the end of the response's head, so a server that drips its head gains no
    /// time. Default 60 s.
    pub first_byte: Duration,
    /// The longest pause within a response's body while it is read. Default 30 s.
    pub between_bytes: Duration,
    /// The whole request with its redirects and retry, from the call to the last byte of the body. Default: for ever,
    /// because a stream may be meant to last.
    pub total: Duration,
}

impl Default for Deadlines {
    fn default() -> Self {
        Deadlines {
            queue: Duration::from_secs(30),
            dns: Duration::from_secs(10),
            connect: Duration::from_secs(10),
            tls: Duration::from_secs(10),
            write: Duration::from_secs(30),
            first_byte: Duration::from_secs(60),
            between_bytes: Duration::from_secs(30),
            total: Duration::MAX,
        }
    }
}

impl Deadlines {
    /// Returns the limit of a phase.
    pub(crate) fn limit(&self, phase: Phase) -> Duration {
        match phase {
            Phase::Queue => self.queue,
            Phase::Dns => self.dns,
            Phase::Connect => self.connect,
            Phase::Tls => self.tls,
            Phase::Write => self.write,
            Phase::FirstByte => self.first_byte,
            Phase::BetweenBytes => self.between_bytes,
            Phase::Request | Phase::Total | Phase::Redirect | Phase::Content => self.total,
        }
    }
}

/// How long the phases of a request took. After a redirect or a retry, the phases are those of the last attempt;
/// `total` covers all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timings {
    /// Waiting for a connection: almost zero below the cap.
    pub queue: Duration,
    /// Resolving the name; `None` for an address, a unix socket, or a reused connection.
    pub dns: Option<Duration>,
    /// Connecting; `None` for a reused connection.
    pub connect: Option<Duration>,
    /// The TLS handshake; `None` without one.
    pub tls: Option<Duration>,
    /// From having a connection to the last byte of the request.
    pub write: Duration,
    /// From the last byte of the request to the response's head. Zero if the head came earlier.
    pub first_byte: Duration,
    /// From the response's head to its last byte, or until now.
    pub body: Duration,
    /// From the call to the last byte of the response, or until now.
    pub total: Duration,
    /// The time of the call, in nanoseconds of the monotonic clock (`oroshi_net::monotonic_ns`).
    pub called: u64,
    /// From the call until the kernel got the first byte of the last attempt; `None` if it did not.
    pub sent: Option<Duration>,
}

/// Times of a request, in nanoseconds of the monotonic clock; zero for a step that was not reached.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Timestamps {
    /// The call.
    pub(crate) called: u64,
    /// The start of this attempt.
    pub(crate) began: u64,
    /// The attempt got a connection, or the permit to open one.
    pub(crate) leased: u64,
    pub(crate) resolved: u64,
    pub(crate) connected: u64,
    pub(crate) secured: u64,
    /// The connection was ready.
    pub(crate) ready: u64,
    /// The kernel got the first byte.
    pub(crate) first_sent: u64,
    pub(crate) sent: u64,
    pub(crate) head: u64,
    pub(crate) ended: u64,
}

impl Timestamps {
    /// Returns the timings at `now`.
    pub(crate) fn timings(&self, now: u64) -> Timings {
        let between = |from: u64, to: u64| Duration::from_nanos(to.saturating_sub(from));
        let or_now = |at: u64| if at == 0 { now } else { at };
        let since = |from: u64, to: u64| if from == 0 { Duration::ZERO } else { between(from, or_now(to)) };
        let optional = |from: u64, to: u64| (to != 0).then(|| between(from, to));
        let end = or_now(self.ended);
        // A server may respond before it has the whole request.
        let sent = if self.sent == 0 || self.head == 0 { self.sent.max(self.head) } else { self.sent.min(self.head) };
        let named = if self.resolved == 0 { self.leased } else { self.resolved };
        Timings {
            queue: since(self.began, self.leased),
            dns: optional(self.leased, self.resolved),
            connect: optional(named, self.connected),
            tls: optional(self.connected, self.secured),
            write: since(self.ready, sent),
            first_byte: since(sent, self.head),
            body: if self.head == 0 { Duration::ZERO } else { between(self.head, end) },
            total: between(self.called, end),
            called: self.called,
            sent: optional(self.called, self.first_sent),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timings_name_only_what_happened() {
        let reused = Timestamps {
            called: 5,
            began: 10,
            leased: 30,
            ready: 30,
            first_sent: 35,
            sent: 40,
            head: 100,
            ended: 110,
            ..Timestamps::default()
        };
        let timings = reused.timings(1000);
        assert_eq!((timings.dns, timings.connect, timings.tls), (None, None, None));
        let ns = Duration::from_nanos;
        assert_eq!((timings.queue, timings.write, timings.first_byte), (ns(20), ns(10), ns(60)));
        assert_eq!((timings.body, timings.total), (ns(10), ns(105)));
        assert_eq!((timings.called, timings.sent), (5, Some(ns(30))));

        let fresh = Timestamps {
            called: 1,
            began: 1,
            leased: 2,
            resolved: 10,
            connected: 30,
            secured: 70,
            ..Timestamps::default()
        };
        let timings = fresh.timings(100);
        assert_eq!((timings.dns, timings.connect, timings.tls), (Some(ns(8)), Some(ns(20)), Some(ns(40))));
        assert_eq!((timings.write, timings.first_byte, timings.total), (ns(0), ns(0), ns(99)));
        assert_eq!((timings.called, timings.sent), (1, None));
    }
}
