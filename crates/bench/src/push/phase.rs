//! The phases of a run. All threads enter each of them.

use tokio::sync::watch;

/// Where a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Subscriptions are being opened.
    Connecting,
    /// Publishers publish; nothing is counted.
    WarmUp,
    /// Every core resets its counters, and says so.
    Counting,
    /// Publishers publish, and everything is counted.
    Measuring,
    Over,
}

/// Follows the phases of a run, beginning with the current one: a thread that starts late must not wait for it again.
pub(crate) fn follow_phases(run: &watch::Sender<Phase>) -> watch::Receiver<Phase> {
    let mut phases = run.subscribe();
    phases.mark_changed();
    phases
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A publisher whose thread started after a short warm-up had begun once waited for it for ever, and the run with
    /// it.
    #[test]
    fn a_thread_that_starts_late_learns_of_the_phase_that_has_begun() {
        let run = watch::Sender::new(Phase::Connecting);
        run.send_replace(Phase::WarmUp);
        let mut late = follow_phases(&run);
        assert!(late.has_changed().unwrap());
        assert_eq!(*late.borrow_and_update(), Phase::WarmUp);
        assert!(!late.has_changed().unwrap());
    }
}
