//! Whether to retry a request, and after which wait.

use std::time::Duration;

/// The longest wait; if the server asks for more, there is no retry.
const LONGEST: Duration = Duration::from_secs(60);

/// The number of retries, and the first wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retries {
    /// The maximum of retries.
    pub most: u32,
    /// The first wait; each later one is twice the previous.
    pub wait: Duration,
}

/// The result of an attempt, as far as retries depend on it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Outcome<'a> {
    /// An answer, with the value of `Retry-After`, if any.
    Status(u16, Option<&'a str>),
    /// No complete answer.
    Failed {
        /// Whether the cause is temporary.
        passing: bool,
        safe: bool,
    },
}

impl Retries {
    /// Returns the wait before the next attempt; `None`: no retry.
    pub(crate) fn after(self, attempts: u32, outcome: Outcome<'_>, idempotent: bool) -> Option<Duration> {
        if attempts > self.most {
            return None;
        }
        let wait = self.wait.saturating_mul(1 << (attempts - 1).min(20)).min(LONGEST);
        match outcome {
            Outcome::Failed { passing, safe } => (passing && safe).then_some(wait),
            // A server that answers "too many requests" has not processed the request (RFC 6585, section 4).
            Outcome::Status(status, after) if is_passing(status) && (idempotent || status == 429) => {
                let asked = after.and_then(|text| text.trim().parse().ok()).map_or(wait, Duration::from_secs);
                (asked <= LONGEST).then_some(asked.max(wait))
            }
            Outcome::Status(..) => None,
        }
    }
}

/// Whether a status is temporary.
pub(crate) fn is_passing(status: u16) -> bool {
    matches!(status, 408 | 429 | 500 | 502 | 503 | 504)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const RETRIES: Retries = Retries { most: 9, wait: SECOND };

    #[test]
    fn each_wait_is_twice_the_one_before_up_to_a_minute() {
        let failed = Outcome::Failed { passing: true, safe: true };
        let waits: Vec<_> = (1..=10).map(|attempts| RETRIES.after(attempts, failed, true)).collect();
        let seconds = |n| Some(SECOND * n);
        assert_eq!(waits[..8], [1, 2, 4, 8, 16, 32, 60, 60].map(seconds));
        assert_eq!(waits[8..], [seconds(60), None]);
        assert_eq!(Retries { most: 0, wait: SECOND }.after(1, failed, true), None);
    }

    #[test]
    fn only_what_is_safe_and_may_fare_better_is_tried_again() {
        for (passing, safe, again) in [(true, true, true), (true, false, false), (false, true, false)] {
            let outcome = Outcome::Failed { passing, safe };
            assert_eq!(RETRIES.after(1, outcome, false).is_some(), again, "{outcome:?}");
        }
        for (status, idempotent, again) in [
            (200, true, false),
            (404, true, false),
            (501, true, false),
            (503, true, true),
            (503, false, false),
            (429, false, true),
        ] {
            let outcome = Outcome::Status(status, None);
            assert_eq!(RETRIES.after(1, outcome, idempotent).is_some(), again, "{status} {idempotent}");
        }
    }

    #[test]
    fn a_server_says_how_long_to_wait_within_reason() {
        let wait = |text| RETRIES.after(2, Outcome::Status(503, Some(text)), true).map(|wait| wait.as_secs());
        assert_eq!((wait("30"), wait(" 1 "), wait("60"), wait("61")), (Some(30), Some(2), Some(60), None));
        assert_eq!(wait("Fri, 31 Dec 1999 23:59:59 GMT"), Some(2), "a date is not read");
    }
}
