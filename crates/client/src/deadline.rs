//! Time: the phases of a request, how long each may take, and how long each took.

use std::fmt;
use std::time::Duration;

/// What a request was at when it failed. In the order in which a request goes through them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Phase {
    /// Being put together: its URL, a field, its body.
    Request,
    /// Waiting for a connection, because as many are open as may be.
    Queue,
    /// Looking the host's name up.
    Dns,
    /// Connecting.
    Connect,
    /// The TLS handshake, and setting TLS up before it.
    Tls,
    /// Sending the head and the body.
    Write,
    /// Waiting for the response's head.
    FirstByte,
    /// Receiving the body.
    BetweenBytes,
    /// Any of the above, when the time for all of them together was over.
    Total,
    /// Following a redirect.
    Redirect,
    /// Making sense of a body that came whole: text, JSON.
    Content,
}

impl Phase {
    /// The phase's stable name.
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

/// How long each phase of a request may take. [`Duration::MAX`] means for ever.
///
/// A deadline fires at its time or some milliseconds later, never earlier; and what has come by then, though nobody has read it
/// yet, is not late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadlines {
    /// Waiting for a connection while as many are open as may be. Default 30 s.
    pub queue: Duration,
    /// Looking the host's name up. Default 10 s.
    pub dns: Duration,
    /// Connecting, to whichever of the host's addresses. Default 10 s.
    pub connect: Duration,
    /// The TLS handshake. Default 10 s.
    pub tls: Duration,
    /// The longest time in which the server takes no byte of the request. Default 30 s.
    pub write: Duration,
    /// From the last byte of the request to the end of the response's head: a server that drips its head byte by byte gains
    /// nothing by it. Default 60 s.
    pub first_byte: Duration,
    /// The longest pause within a response's body, while it is being read. Default 30 s.
    pub between_bytes: Duration,
    /// Everything, redirects and a retry included, from the call to the last byte of the body. Default: for ever, as a
    /// stream may be meant to last.
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
    /// The limit of a phase.
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

/// How long the phases of a request took. After a redirect or a retry the phases are those of the last attempt, and `total`
/// is that of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timings {
    /// Waiting for a connection: next to nothing unless as many were open as may be.
    pub queue: Duration,
    /// Looking the name up; `None` for an address, a unix socket, or a connection that was there already.
    pub dns: Option<Duration>,
    /// Connecting; `None` for a connection that was there already.
    pub connect: Option<Duration>,
    /// The TLS handshake; `None` without one.
    pub tls: Option<Duration>,
    /// From having a connection to the last byte of the request.
    pub write: Duration,
    /// From the last byte of the request to the response's head. Zero if the server answered before.
    pub first_byte: Duration,
    /// From the response's head to its last byte, or until now.
    pub body: Duration,
    /// From the call to the last byte of the response, or until now.
    pub total: Duration,
}

/// Moments of a request, in nanoseconds by the monotonic clock; zero where one was not reached.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stamps {
    /// The call.
    pub(crate) called: u64,
    /// This attempt's start.
    pub(crate) began: u64,
    /// It was given a connection, or the right to make one.
    pub(crate) leased: u64,
    pub(crate) resolved: u64,
    pub(crate) connected: u64,
    pub(crate) secured: u64,
    /// There was a connection to send on.
    pub(crate) ready: u64,
    pub(crate) sent: u64,
    pub(crate) head: u64,
    pub(crate) ended: u64,
}

impl Stamps {
    /// What the moments say at `now`.
    pub(crate) fn timings(&self, now: u64) -> Timings {
        let between = |from: u64, to: u64| Duration::from_nanos(to.saturating_sub(from));
        let or_now = |at: u64| if at == 0 { now } else { at };
        let since = |from: u64, to: u64| if from == 0 { Duration::ZERO } else { between(from, or_now(to)) };
        let optional = |from: u64, to: u64| (to != 0).then(|| between(from, to));
        let end = or_now(self.ended);
        // A server may answer before it has the whole request.
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
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timings_name_only_what_happened() {
        let reused = Stamps {
            called: 5,
            began: 10,
            leased: 30,
            ready: 30,
            sent: 40,
            head: 100,
            ended: 110,
            ..Stamps::default()
        };
        let timings = reused.timings(1000);
        assert_eq!((timings.dns, timings.connect, timings.tls), (None, None, None));
        let ns = Duration::from_nanos;
        assert_eq!((timings.queue, timings.write, timings.first_byte), (ns(20), ns(10), ns(60)));
        assert_eq!((timings.body, timings.total), (ns(10), ns(105)));

        let fresh =
            Stamps { called: 1, began: 1, leased: 2, resolved: 10, connected: 30, secured: 70, ..Stamps::default() };
        let timings = fresh.timings(100);
        assert_eq!((timings.dns, timings.connect, timings.tls), (Some(ns(8)), Some(ns(20)), Some(ns(40))));
        assert_eq!((timings.write, timings.first_byte, timings.total), (ns(0), ns(0), ns(99)));
    }
}
