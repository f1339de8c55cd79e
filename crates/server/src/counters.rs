//! A core's counters: connections, requests, answers, and failures by kind.

use std::iter::Sum;
use std::ops::AddAssign;
use std::sync::atomic::{AtomicU64, Ordering};

use oroshi_words::named::values;

/// Why a connection ended other than between two requests, or an exchange other than with its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The request was invalid or over a limit, and got its 4xx or 5xx.
    Refused,
    /// The peer closed or reset the connection inside a request or an answer.
    Disconnected,
    /// The head (or the TLS handshake) took longer than `head_timeout`.
    HeadTimeout,
    /// The body paused longer than `body_timeout`, or the request took longer than `request_timeout`.
    BodyTimeout,
    /// The peer did not read its answer for `write_timeout`.
    WriteTimeout,
    /// The TLS handshake failed.
    Tls,
    /// The connection did not begin with the header of the PROXY protocol that its peer must send.
    ProxyHeader,
    /// The handler failed, gave no answer, or cut its answer off.
    Handler,
    /// A shutdown's `drain_timeout` passed, and the exchange was cut off.
    Shutdown,
    /// Descriptors or memory ran out, and accepting paused, or a stream of HTTP/2 was not handed off; or the listener
    /// was closed by someone else.
    Accept,
    /// The connection waited without a whole request head, and was ended to make room for others.
    Crowded,
}

impl ErrorKind {
    /// All of them with their names, in order.
    const NAMED: [(Self, &'static str); 11] = [
        (ErrorKind::Refused, "refused"),
        (ErrorKind::Disconnected, "disconnected"),
        (ErrorKind::HeadTimeout, "head-timeout"),
        (ErrorKind::BodyTimeout, "body-timeout"),
        (ErrorKind::WriteTimeout, "write-timeout"),
        (ErrorKind::Tls, "tls"),
        (ErrorKind::ProxyHeader, "proxy-header"),
        (ErrorKind::Handler, "handler"),
        (ErrorKind::Shutdown, "shutdown"),
        (ErrorKind::Accept, "accept"),
        (ErrorKind::Crowded, "crowded"),
    ];

    /// All kinds, in the order of [`Counts::errors`].
    pub const ALL: [Self; 11] = values(&Self::NAMED);

    /// Returns a stable kebab-case name, for metrics and logs.
    pub fn name(self) -> &'static str {
        Self::NAMED[self as usize].1
    }
}

/// One core's counters. Only that core writes them; any thread may read them.
///
/// They have cache lines of their own, so that a reader does not slow its neighbours.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Counters {
    accepted: Tally,
    closed: Tally,
    requests: Tally,
    answers: Tally,
    errors: [Tally; ErrorKind::ALL.len()],
}

impl Counters {
    /// Returns the current counts. It reads them one after another, so a concurrent request may be in one count and not
    /// yet in the next.
    pub fn counts(&self) -> Counts {
        // `closed` first, so that a connection that ends meanwhile cannot make `alive` negative.
        let closed = self.closed.get();
        let accepted = self.accepted.get();
        Counts {
            accepted,
            alive: accepted.saturating_sub(closed),
            requests: self.requests.get(),
            answers: self.answers.get(),
            errors: std::array::from_fn(|kind| self.errors[kind].get()),
        }
    }

    pub(crate) fn count_accepted(&self) {
        self.accepted.add();
    }

    pub(crate) fn count_closed(&self) {
        self.closed.add();
    }

    pub(crate) fn count_request(&self) {
        self.requests.add();
    }

    pub(crate) fn count_answer(&self) {
        self.answers.add();
    }

    pub(crate) fn count_error(&self, kind: ErrorKind) {
        self.errors[kind as usize].add();
    }
}

/// The counts of one or more cores. Add them up with `+=` or `.sum()`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Connections accepted.
    pub accepted: u64,
    /// Connections open now.
    pub alive: u64,
    /// Requests with a valid head, which the handler got.
    pub requests: u64,
    /// Requests that the handler answered completely: the last byte is buffered or sent.
    pub answers: u64,
    /// Failures, in the order of [`ErrorKind::ALL`].
    pub errors: [u64; ErrorKind::ALL.len()],
}

impl Counts {
    /// Returns the failures of one kind.
    pub fn error(&self, kind: ErrorKind) -> u64 {
        self.errors[kind as usize]
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Counts) {
        self.accepted += other.accepted;
        self.alive += other.alive;
        self.requests += other.requests;
        self.answers += other.answers;
        for (mine, others) in self.errors.iter_mut().zip(other.errors) {
            *mine += others;
        }
    }
}

impl Sum for Counts {
    fn sum<I: Iterator<Item = Counts>>(counts: I) -> Counts {
        counts.fold(Counts::default(), |mut sum, counts| {
            sum += counts;
            sum
        })
    }
}

/// A counter with one writer and any readers: a plain load and store, no locked instruction.
#[derive(Debug, Default)]
struct Tally(AtomicU64);

impl Tally {
    fn add(&self) {
        self.0.store(self.get() + 1, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_add_up() {
        let one = Counters::default();
        one.count_accepted();
        one.count_accepted();
        one.count_closed();
        one.count_request();
        one.count_error(ErrorKind::Tls);
        let two = Counters::default();
        two.count_accepted();
        two.count_request();
        two.count_answer();
        two.count_error(ErrorKind::Tls);
        let sum: Counts = [one.counts(), two.counts()].into_iter().sum();
        assert_eq!((sum.accepted, sum.alive, sum.requests, sum.answers), (3, 2, 2, 1));
        assert_eq!(sum.error(ErrorKind::Tls), 2);
        assert_eq!(sum.errors.iter().sum::<u64>(), 2);
    }

    #[test]
    fn kinds_are_listed_in_their_order() {
        for (place, kind) in ErrorKind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, place, "{}", kind.name());
        }
    }
}
