//! Whether a request may be sent again after a failure.

/// Refusals after which a request is sent again: connections of a server that restarts can end one after the other.
const MOST_REFUSALS: u32 = 2;

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
    fn methods() {
        assert!(["GET", "HEAD", "PUT", "DELETE", "OPTIONS", "TRACE"].into_iter().all(is_idempotent));
        assert!(!["POST", "PATCH", "CONNECT", "get", "LOCK"].into_iter().any(is_idempotent));
    }
}
