//! Exact counts of lost, duplicated and reordered messages, by their sequence numbers.

/// The most gaps kept per publisher and connection; beyond that, the oldest gap counts as lost for good. This bounds
/// memory where little arrives.
const GAPS: usize = 1024;

/// Which messages of one publisher came to one subscription.
///
/// Keeps the next sequence number and the gaps below it: 40 bytes while everything comes in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sequences {
    /// All below have come, but for the gaps.
    next: u64,
    /// Missing ranges in ascending order: first number, and first number behind.
    gaps: Vec<(u64, u64)>,
    /// Messages in gaps that are not kept any more. One of them that comes after all counts as a duplicate.
    given_up: u64,
}

/// How a message came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// For the first time, in order.
    InOrder,
    /// For the first time, after one that was sent later.
    Late,
    /// Once more.
    Again,
}

impl Sequences {
    /// Begins with this message: earlier ones do not count.
    pub(crate) fn from(sequence: u64) -> Self {
        Self { next: sequence, ..Self::default() }
    }

    /// Returns how many are missing between the first message that came and the last one.
    pub(crate) fn gaps(&self) -> u64 {
        self.missing(self.next, &[])
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

    /// Returns how many of the first `issued` messages are missing, without those in `unconfirmed` (ascending).
    ///
    /// It is not known whether the hub accepted the unconfirmed ones.
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
        let mut sequences = Sequences::default();
        let came: Vec<Arrival> = [0, 1, 4, 4, 2, 2, 7, 6, 0].map(|n| sequences.note(n)).into();
        use Arrival::{Again, InOrder, Late};
        assert_eq!(came, [InOrder, InOrder, InOrder, Again, Late, Again, InOrder, Late, Again]);
        // 3, 5, 8 and 9 of ten.
        assert_eq!(sequences.missing(10, &[]), 4);
        assert_eq!(sequences.missing(10, &[0, 5, 9, 12]), 2);
        assert_eq!(sequences.missing(8, &[]), 2);
        assert!(size_of::<Sequences>() <= 40);
    }

    #[test]
    fn memory_is_bounded_and_what_is_missing_stays_known() {
        let mut sequences = Sequences::default();
        (0..10_000).filter(|n| n % 2 == 1).for_each(|n| assert_eq!(sequences.note(n), Arrival::InOrder));
        assert_eq!((sequences.gaps.len(), sequences.missing(10_000, &[])), (GAPS, 5_000));
    }

    proptest! {
        #[test]
        fn it_is_what_a_set_would_say(
            came in prop::collection::vec(0..40u64, 0..100),
            unconfirmed in prop::collection::btree_set(0..50u64, 0..10),
        ) {
            let (mut sequences, mut seen) = (Sequences::default(), std::collections::BTreeSet::new());
            for sequence in came {
                let expected = match (seen.contains(&sequence), seen.last().is_some_and(|last| *last > sequence)) {
                    (true, _) => Arrival::Again,
                    (false, true) => Arrival::Late,
                    (false, false) => Arrival::InOrder,
                };
                prop_assert_eq!(sequences.note(sequence), expected);
                seen.insert(sequence);
            }
            let missing = (0..45).filter(|n| !seen.contains(n) && !unconfirmed.contains(n)).count() as u64;
            let unconfirmed: Vec<u64> = unconfirmed.into_iter().collect();
            prop_assert_eq!(sequences.missing(45, &unconfirmed), missing);
        }
    }
}
