//! What was published, with the responses of the hub.

use std::collections::BTreeMap;

use oroshi_stats::Latency;

use super::sequences::Sequences;
use crate::failure::FailureCounts;

/// The messages of one kind, by how they ended.
#[derive(Debug, Default)]
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
#[derive(Debug, Default)]
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
