//! Whether to retry a request, and after which wait.

use std::time::Duration;

use oroshi_client::{Retries, retry_after};

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

/// Returns the wait before the next attempt; `None`: no retry.
pub(crate) fn wait(retries: &Retries, attempts: u32, outcome: Outcome<'_>, idempotent: bool) -> Option<Duration> {
    if attempts > retries.most {
        return None;
    }
    match outcome {
        Outcome::Failed { passing: true, safe: true } => retries.wait(attempts, None),
        // A server that answers "too many requests" has not processed the request (RFC 6585, section 4).
        Outcome::Status(status, after) if is_passing(status) && (idempotent || status == 429) => {
            retries.wait(attempts, after.and_then(|text| retry_after(text.as_bytes())))
        }
        _ => None,
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
    const RETRIES: Retries = Retries { most: 9, first: SECOND, longest: Duration::from_secs(60) };

    #[test]
    fn there_are_so_many_retries() {
        let failed = Outcome::Failed { passing: true, safe: true };
        let waits = (1..=10).map(|attempts| wait(&RETRIES, attempts, failed, true));
        assert_eq!(waits.map(|wait| wait.is_some()).collect::<Vec<_>>(), [[true; 9].as_slice(), &[false]].concat());
        assert_eq!(wait(&Retries { most: 0, ..RETRIES }, 1, failed, true), None);
    }

    #[test]
    fn only_what_is_safe_and_may_fare_better_is_tried_again() {
        for (passing, safe, again) in [(true, true, true), (true, false, false), (false, true, false)] {
            let outcome = Outcome::Failed { passing, safe };
            assert_eq!(wait(&RETRIES, 1, outcome, false).is_some(), again, "{outcome:?}");
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
            assert_eq!(wait(&RETRIES, 1, outcome, idempotent).is_some(), again, "{status} {idempotent}");
        }
    }

    #[test]
    fn a_server_says_how_long_to_wait_within_reason() {
        let wait = |text| wait(&RETRIES, 2, Outcome::Status(503, Some(text)), true);
        assert_eq!((wait("30"), wait("60"), wait("61")), (Some(30 * SECOND), Some(60 * SECOND), None));
        for own in [" 1 ", "Fri, 31 Dec 1999 23:59:59 GMT"] {
            assert!(wait(own).is_some_and(|wait| (SECOND..=2 * SECOND).contains(&wait)), "{own}");
        }
    }
}
