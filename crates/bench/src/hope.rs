//! When a run of a fixed number of requests is given up: its server may never answer them all.

/// Since when a core has waited for its servers in vain.
#[derive(Debug, Default)]
pub(crate) struct Hope {
    since: Option<u64>,
}

impl Hope {
    /// Whether something was `waiting` for more than `patience` without a sign of a server; `last_sign`: when the last one came. All in
    /// nanoseconds.
    pub(crate) fn is_lost(&mut self, now: u64, last_sign: u64, waiting: bool, patience: u64) -> bool {
        let since = self.since.get_or_insert(now);
        *since = if waiting { last_sign.max(*since) } else { now };
        now.saturating_sub(*since) > patience
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hope_is_lost_when_what_waits_hears_nothing_for_too_long() {
        let mut hope = Hope::default();
        assert!(!hope.is_lost(100, 0, true, 10), "it has only just begun");
        assert!(!hope.is_lost(110, 0, true, 10));
        assert!(hope.is_lost(111, 0, true, 10));
    }

    #[test]
    fn a_sign_or_nothing_to_wait_for_begins_it_anew() {
        let mut hope = Hope::default();
        assert!(!hope.is_lost(100, 0, true, 10));
        assert!(!hope.is_lost(115, 106, true, 10), "an answer came");
        assert!(!hope.is_lost(120, 106, false, 10), "no request was due");
        assert!(!hope.is_lost(130, 106, true, 10));
        assert!(hope.is_lost(131, 106, true, 10));
    }
}
