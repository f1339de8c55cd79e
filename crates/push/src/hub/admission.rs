//! Limits on new clients: a token bucket per second, and the log lines about a hub that is full.

use tokio::time::Instant;

use crate::node::Node;

/// A token bucket that holds the clients of one second.
#[derive(Debug)]
pub(crate) struct Admission {
    rate: f64,
    tokens: f64,
    filled: Instant,
}

impl Admission {
    /// Creates a full bucket for `rate` clients per second.
    pub(crate) fn new(rate: f64) -> Self {
        Admission { rate, tokens: rate.max(1.0), filled: Instant::now() }
    }

    /// Returns whether one more client may connect now, and counts it if so.
    pub(crate) fn admit(&mut self) -> bool {
        self.admit_at(Instant::now())
    }

    fn admit_at(&mut self, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.filled).as_secs_f64();
        self.filled = now;
        self.tokens = (self.tokens + passed * self.rate).min(self.rate.max(1.0));
        let may = self.tokens >= 1.0;
        if may {
            self.tokens -= 1.0;
        }
        may
    }
}

/// Logs when the hub becomes full, and when it has room again.
#[derive(Debug, Default)]
pub(crate) struct CapacityLog {
    is_full: bool,
    rejected: usize,
}

impl CapacityLog {
    /// Checks whether there is room for more clients, and logs a change.
    pub(crate) fn check(&mut self, node: &Node) {
        let (sessions, most_sessions) = (node.sessions(), node.plan.limits.sessions);
        let (held, most) =
            node.capacity.as_ref().map_or((0, usize::MAX), |capacity| (capacity.held(), capacity.most()));
        let rejected = node.rejected();
        let before = std::mem::replace(&mut self.rejected, rejected);
        let is_full = sessions >= most_sessions || held >= most || rejected > before;
        let has_room = sessions < most_sessions - most_sessions / 8 && held < most - most / 8 && rejected == before;
        if is_full && !self.is_full {
            self.is_full = true;
            let connections =
                if most == usize::MAX { String::new() } else { format!(", {held} of {most} connections") };
            tracing::warn!(
                "no room for more clients: {sessions} of {most_sessions} sessions{connections}. They wait, or are \
                 answered 503: raise the limit on descriptors (LimitNOFILE=, ulimit -Hn) or limits.sessions, or run \
                 more hubs"
            );
        } else if has_room && self.is_full {
            self.is_full = false;
            tracing::info!(
                "there is room for clients again: {sessions} of {most_sessions} sessions; {rejected} were turned away \
                 since the start"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_second_holds_so_many() {
        let mut admission = Admission::new(10.0);
        let start = admission.filled;
        assert_eq!((0..20).filter(|_| admission.admit_at(start)).count(), 10);
        assert!(!admission.admit_at(start + Duration::from_millis(50)));
        assert!(admission.admit_at(start + Duration::from_millis(101)));
        let later = start + Duration::from_secs(60);
        assert_eq!((0..20).filter(|_| admission.admit_at(later)).count(), 10, "what was not used is not saved up");
    }

    #[test]
    fn less_than_one_per_second_still_lets_one_in() {
        let mut admission = Admission::new(0.5);
        let start = admission.filled;
        assert!(admission.admit_at(start) && !admission.admit_at(start + Duration::from_secs(1)));
        assert!(admission.admit_at(start + Duration::from_secs(2)));
    }
}
