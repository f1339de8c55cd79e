//! Published messages, with the responses of the hub.

use std::collections::BTreeMap;

use oroshi_stats::Latency;
use serde::{Deserialize, Serialize};

use super::sequences::Sequences;
use super::stamp::target;
use crate::failure::FailureCounts;

/// The messages of one kind, by how they ended.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct PublishTally {
    /// Messages that were due, and those of them never sent, because every publisher was busy.
    pub(crate) due: u64,
    pub(crate) unsent: u64,
    /// Messages that the hub has confirmed, with a status of 200 to 299.
    pub(crate) confirmed: u64,
    pub(crate) statuses: BTreeMap<u16, u64>,
    pub(crate) failures: FailureCounts,
    /// From the first byte of the request to the last of the response.
    pub(crate) service: Latency,
    /// The same from when the message was due.
    pub(crate) response: Latency,
    /// By publisher: how many were sent, and the numbers of the unconfirmed ones, ascending.
    pub(crate) sent: Vec<u64>,
    pub(super) unconfirmed: Vec<Vec<u64>>,
}

impl PublishTally {
    pub(super) fn of(publishers: usize) -> Self {
        Self { sent: vec![0; publishers], unconfirmed: vec![Vec::new(); publishers], ..Self::default() }
    }
}

/// All that was published in one part of the run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Published {
    pub(crate) to_all: PublishTally,
    pub(crate) to_one: PublishTally,
    /// CPU time of the publishers, nanoseconds; and when the last one ended.
    pub(crate) cpu: u64,
    pub(crate) ended: u64,
}

impl Published {
    /// Returns the most deliveries that so many subscriptions can get. It includes unconfirmed messages, which the hub
    /// may have sent all the same.
    pub(crate) fn most(&self, subscriptions: u64) -> u64 {
        self.to_all.sent.iter().sum::<u64>() * subscriptions + self.to_one.sent.iter().sum::<u64>()
    }

    /// Returns the most deliveries to a part of the subscriptions: so many of them are up, and `is_own` says which
    /// numbers the part has, of those to which messages for one go.
    pub(super) fn most_of(&self, subscriptions: u64, targets: &[u32], is_own: impl Fn(u32) -> bool) -> u64 {
        let to_one: u64 = self.to_one.sent.iter().sum();
        // Messages go through all targets before any gets another one.
        let rounds = to_one / targets.len().max(1) as u64;
        let each = targets.iter().filter(|&&number| is_own(number)).count() as u64;
        let begun = if targets.is_empty() { to_one } else { rounds * targets.len() as u64 };
        let last = (begun..to_one).filter_map(|sequence| target(targets, sequence));
        self.to_all.sent.iter().sum::<u64>() * subscriptions
            + rounds * each
            + last.filter(|&n| is_own(n)).count() as u64
    }

    /// Whether another process can have sent it: its counts add up, and no sum of them overflows.
    pub(super) fn is_plausible(&self) -> bool {
        /// The highest plausible number of messages.
        const MOST: u64 = 1 << 40;
        [&self.to_all, &self.to_one].into_iter().all(|posted| {
            let sent = posted.sent.iter().fold(0u64, |sum, sent| sum.saturating_add(*sent));
            sent <= MOST
                && posted.due <= MOST
                && posted.confirmed.saturating_add(posted.unsent) <= posted.due
                && posted.sent.len() == posted.unconfirmed.len()
        })
    }

    /// Returns how many confirmed messages for all did not come to a subscription that received these.
    pub(crate) fn missing(&self, received: &[Option<Sequences>]) -> u64 {
        let nothing = Sequences::default();
        let each = self.to_all.sent.iter().zip(&self.to_all.unconfirmed).enumerate();
        each.map(|(publisher, (sent, unconfirmed))| {
            let sequences = received.get(publisher).and_then(Option::as_ref).unwrap_or(&nothing);
            sequences.missing(*sent, unconfirmed)
        })
        .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_expect_together_as_many_as_the_whole() {
        let sent = |to_one| Published {
            to_one: PublishTally { sent: vec![to_one], unconfirmed: vec![Vec::new()], ..PublishTally::default() },
            ..Published::default()
        };
        let targets: Vec<u32> = (0..7).collect();
        for count in [0, 1, 6, 7, 8, 1000] {
            let parts = (0..3).map(|part| sent(count).most_of(0, &targets, |number| number % 3 == part));
            assert_eq!(parts.sum::<u64>(), count);
        }
        // At once, however many another process claims.
        let many = sent(1 << 40);
        assert!(many.is_plausible() && many.most_of(0, &targets, |number| number == 0) > 1 << 36);
        assert!(!sent(1 << 41).is_plausible() && !sent(u64::MAX).is_plausible());
        assert_eq!(sent(5).most_of(0, &[], |_| true), 0);
    }
}
