//! When a core gives a run of a fixed number of requests up: the servers may never respond to all of them.

/// Since when a core has waited for its servers in vain.
#[derive(Debug, Default)]
pub(crate) struct Silence {
    since: Option<u64>,
}

impl Silence {
    /// Whether requests were `waiting` for more than `patience` since the last contact with a server. All in
    /// nanoseconds.
    pub(crate) fn is_too_long(&mut self, now: u64, last_contact: u64, waiting: bool, patience: u64) -> bool {
        let since = self.since.get_or_insert(now);
        *since = if waiting { last_contact.max(*since) } else { now };
        now.saturating_sub(*since) > patience
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silence_is_too_long_when_requests_wait_for_more_than_the_patience() {
        let mut silence = Silence::default();
        assert!(!silence.is_too_long(100, 0, true, 10), "it has only just begun");
        assert!(!silence.is_too_long(110, 0, true, 10));
        assert!(silence.is_too_long(111, 0, true, 10));
    }

    #[test]
    fn a_contact_or_nothing_to_wait_for_begins_it_anew() {
        let mut silence = Silence::default();
        assert!(!silence.is_too_long(100, 0, true, 10));
        assert!(!silence.is_too_long(115, 106, true, 10), "an answer came");
        assert!(!silence.is_too_long(120, 106, false, 10), "no request was due");
        assert!(!silence.is_too_long(130, 106, true, 10));
        assert!(silence.is_too_long(131, 106, true, 10));
    }
}
