//! What came of what was published, exactly: nothing twice, nothing in the wrong place, nothing missing, or how often.

/// The most gaps that one publisher's messages may have on one connection until the oldest is taken for lost for good: it bounds the
/// memory of a connection on which little arrives.
const GAPS: usize = 1024;

/// What came to one subscription of what one publisher has sent.
///
/// Kept as the next sequence number and the gaps below it, so that a subscription to which everything comes in order costs 40 bytes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ledger {
    /// All below have come, but for the gaps.
    next: u64,
    /// Ranges that are missing, in order: the first of them, and the first behind them.
    gaps: Vec<(u64, u64)>,
    /// How many were in gaps that are not kept any more. One of them that comes after all is taken for a repetition.
    given_up: u64,
}

/// How a message came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// For the first time, behind all that came before.
    InOrder,
    /// For the first time, after one that was sent later.
    Late,
    /// Once more.
    Again,
}

impl Ledger {
    /// One that knows nothing of what was sent before this message.
    pub(crate) fn from(sequence: u64) -> Self {
        Self { next: sequence, ..Self::default() }
    }

    /// All that came, and all that is missing between: what was sent, as far as this subscription can know.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// Notes a message.
    pub(crate) fn note(&mut self, sequence: u64) -> Arrival {
        if sequence >= self.next {
            if sequence > self.next {
                if self.gaps.len() == GAPS {
                    let (from, to) = self.gaps.remove(0);
                    self.given_up += to - from;
                }
                self.gaps.push((self.next, sequence));
            }
            self.next = sequence + 1;
            return Arrival::InOrder;
        }
        let at = self.gaps.partition_point(|gap| gap.1 <= sequence);
        match self.gaps.get(at).copied() {
            Some((from, to)) if from <= sequence => {
                let left = [(from, sequence), (sequence + 1, to)];
                self.gaps.splice(at..=at, left.into_iter().filter(|(from, to)| from < to));
                Arrival::Late
            }
            _ => Arrival::Again,
        }
    }

    /// How many are missing of the first `issued` messages, those in `unconfirmed` (ascending) not counted: nobody knows whether
    /// the hub has taken them.
    pub(crate) fn missing(&self, issued: u64, unconfirmed: &[u64]) -> u64 {
        let tail = (self.next.min(issued), issued);
        let gaps = self.gaps.iter().copied().chain([tail]);
        let below = |bound: u64| unconfirmed.partition_point(|&sequence| sequence < bound) as u64;
        gaps.map(|(from, to)| (to - from) - (below(to) - below(from))).sum::<u64>() + self.given_up
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn order_gaps_and_repetitions() {
        let mut ledger = Ledger::default();
        let came: Vec<Arrival> = [0, 1, 4, 4, 2, 2, 7, 6, 0].map(|n| ledger.note(n)).into();
        use Arrival::{Again, InOrder, Late};
        assert_eq!(came, [InOrder, InOrder, InOrder, Again, Late, Again, InOrder, Late, Again]);
        // 3, 5, 8 and 9 of ten.
        assert_eq!(ledger.missing(10, &[]), 4);
        assert_eq!(ledger.missing(10, &[0, 5, 9, 12]), 2);
        assert_eq!(ledger.missing(8, &[]), 2);
        assert!(size_of::<Ledger>() <= 40);
    }

    #[test]
    fn memory_is_bounded_and_what_is_missing_stays_known() {
        let mut ledger = Ledger::default();
        (0..10_000).filter(|n| n % 2 == 1).for_each(|n| assert_eq!(ledger.note(n), Arrival::InOrder));
        assert_eq!((ledger.gaps.len(), ledger.missing(10_000, &[])), (GAPS, 5_000));
    }

    proptest! {
        #[test]
        fn it_is_what_a_set_would_say(came in prop::collection::vec(0..40u64, 0..100), unconfirmed in prop::collection::btree_set(0..50u64, 0..10)) {
            let (mut ledger, mut seen) = (Ledger::default(), std::collections::BTreeSet::new());
            for sequence in came {
                let expected = match (seen.contains(&sequence), seen.last().is_some_and(|last| *last > sequence)) {
                    (true, _) => Arrival::Again,
                    (false, true) => Arrival::Late,
                    (false, false) => Arrival::InOrder,
                };
                prop_assert_eq!(ledger.note(sequence), expected);
                seen.insert(sequence);
            }
            let missing = (0..45).filter(|n| !seen.contains(n) && !unconfirmed.contains(n)).count() as u64;
            let unconfirmed: Vec<u64> = unconfirmed.into_iter().collect();
            prop_assert_eq!(ledger.missing(45, &unconfirmed), missing);
        }
    }
}
