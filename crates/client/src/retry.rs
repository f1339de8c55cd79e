//! Whether a request may be sent again after a failure, and when.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use crate::deadline::Phase;
use crate::error::{Cause, Error};

/// Refusals after which a request is sent again: connections of a server that restarts can end one after the other.
const MOST_REFUSALS: u32 = 2;

/// Whether and when failed requests are sent again.
///
/// A request is sent again only if that cannot process it twice: none of it was sent, or it is idempotent. Then a
/// failure to connect, a broken connection or a passed deadline of a phase counts, and so do the statuses 429, 502, 503
/// and 504. Before each retry the client waits, twice as long each time, less a random part of up to a half, so that
/// clients do not come back together. A server's `Retry-After` in seconds is obeyed if it is not longer than
/// [`longest`](Self::longest); otherwise its response stands. The total deadline covers all of it: a retry that would
/// begin after it is not waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retries {
    /// The maximum of retries. 0, the default: none but those after a broken connection.
    pub most: u32,
    /// The wait before the first retry. Default 100 ms.
    pub first: Duration,
    /// The longest wait. Default 30 s.
    pub longest: Duration,
}

impl Default for Retries {
    fn default() -> Self {
        Retries { most: 0, first: Duration::from_millis(100), longest: Duration::from_secs(30) }
    }
}

impl Retries {
    /// Returns how long to wait before retry number `number`, from 1. `asked`: the server's [`retry_after`]. `None`: it
    /// asks for more than [`longest`](Self::longest).
    #[must_use]
    pub fn wait(&self, number: u32, asked: Option<Duration>) -> Option<Duration> {
        if asked.is_some_and(|asked| asked > self.longest) {
            return None;
        }
        let doubled = self
            .first
            .saturating_mul(1_u32.checked_shl(number.saturating_sub(1)).unwrap_or(u32::MAX))
            .min(self.longest);
        // Seeded by the system; nobody has to be surprised by it.
        let share = (RandomState::new().hash_one(number) >> 32) as f64 / f64::from(u32::MAX);
        let less = doubled.mul_f64(share / 2.0);
        Some(doubled.saturating_sub(less).max(asked.unwrap_or_default()))
    }

    /// Whether a server with this status may answer otherwise after a while.
    pub(crate) fn is_passing(status: u16) -> bool {
        matches!(status, 429 | 502 | 503 | 504)
    }

    /// Whether a failure may pass.
    pub(crate) fn may_pass(error: &Error) -> bool {
        let is_lasting = match error.cause() {
            Cause::Tls(_) | Cause::TlsSetup(_) => true,
            Cause::Proxy(error) => error.is_lasting(),
            _ => false,
        };
        !is_lasting && !matches!(error.phase(), Phase::Request | Phase::Total | Phase::Redirect | Phase::Content)
    }
}

/// Reads `Retry-After` in seconds (RFC 9110, section 10.2.3). A date is not read: clocks differ.
#[must_use]
pub fn retry_after(value: &[u8]) -> Option<Duration> {
    let text = str::from_utf8(value).ok()?.trim();
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten().map(Duration::from_secs)
}

/// The progress of a request until it failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    /// Whether the kernel got a byte of the request.
    pub(crate) sent: bool,
    /// Whether a byte of the response has come, even of an interim one.
    pub(crate) answered: bool,
    /// Whether the connection ended or broke, as it does when a server closes it while a request is on its way.
    pub(crate) broke: bool,
    /// Whether the server has said that it has not processed the request (RFC 9113, section 8.7): by `REFUSED_STREAM`,
    /// or by a GOAWAY that excludes it.
    pub(crate) refused: bool,
}

impl Progress {
    /// Whether sending it again cannot process it twice.
    pub(crate) fn is_safe(self, idempotent: bool) -> bool {
        !self.sent || self.refused || (idempotent && !self.answered)
    }

    /// Whether the client retries by itself: once, and only after a broken connection. A refused connect or a missed
    /// deadline would fail again. A request that the server has refused is sent three times at most.
    pub(crate) fn retries(self, idempotent: bool, body_is_there: bool, attempts: u32) -> bool {
        let most = if self.refused { MOST_REFUSALS } else { 1 };
        (self.broke || self.refused) && attempts <= most && body_is_there && self.is_safe(idempotent)
    }
}

/// Whether a method is idempotent (RFC 9110, section 9.2.2). Methods are case-sensitive.
pub fn is_idempotent(method: &str) -> bool {
    matches!(method, "GET" | "HEAD" | "OPTIONS" | "TRACE" | "PUT" | "DELETE")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_safe_is_sent_again_and_only_once() {
        let broke = Progress { sent: true, broke: true, ..Progress::default() };
        // sent, answered, idempotent: safe
        for (sent, answered, idempotent, safe) in [
            (false, false, false, true),
            (false, false, true, true),
            (true, false, true, true),
            (true, false, false, false),
            (true, true, true, false),
            (true, true, false, false),
        ] {
            let progress = Progress { sent, answered, ..broke };
            assert_eq!(progress.is_safe(idempotent), safe, "{progress:?} {idempotent}");
            assert_eq!(progress.retries(idempotent, true, 1), safe, "{progress:?} {idempotent}");
            assert!(!progress.retries(idempotent, true, 2), "never a third time");
            assert!(!progress.retries(idempotent, false, 1), "a reader's body is used up");
            assert!(!Progress { broke: false, ..progress }.retries(idempotent, true, 1), "not after a deadline");
        }
    }

    #[test]
    fn a_request_that_the_server_has_refused_is_always_safe_and_sent_three_times_at_most() {
        let refused = Progress { sent: true, refused: true, ..Progress::default() };
        for idempotent in [false, true] {
            assert!(refused.is_safe(idempotent));
            let again: Vec<bool> = (1..5).map(|attempts| refused.retries(idempotent, true, attempts)).collect();
            assert_eq!(again, [true, true, false, false]);
            assert!(!refused.retries(idempotent, false, 1), "a reader's body is used up");
        }
    }

    #[test]
    fn waits_double_within_bounds_and_obey_the_server() {
        let second = Duration::from_secs(1);
        let retries = Retries { most: 9, first: second, longest: 10 * second };
        for number in 1..=40 {
            let whole = second.saturating_mul(1 << (number - 1).min(8)).min(10 * second);
            let wait = retries.wait(number, None).unwrap();
            assert!(wait > whole / 2 - second / 100 && wait <= whole, "{number}: {wait:?}");
        }
        let endless = Retries { most: 9, first: Duration::MAX, longest: Duration::MAX };
        assert!(endless.wait(1, None).unwrap() >= Duration::MAX / 3);
        assert_eq!(retries.wait(1, Some(7 * second)), Some(7 * second));
        assert_eq!(retries.wait(1, Some(11 * second)), None);
        assert_eq!(retry_after(b" 120 "), Some(Duration::from_secs(120)));
        for odd in [&b"Fri, 31 Dec 1999 23:59:59 GMT"[..], b"-1", b"", b"1.5", b"99999999999999999999", b"\xff"] {
            assert_eq!(retry_after(odd), None, "{odd:?}");
        }
    }

    #[test]
    fn methods() {
        assert!(["GET", "HEAD", "PUT", "DELETE", "OPTIONS", "TRACE"].into_iter().all(is_idempotent));
        assert!(!["POST", "PATCH", "CONNECT", "get", "LOCK"].into_iter().any(is_idempotent));
    }
}
