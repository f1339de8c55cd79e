//! The counters of one core; merged when the run is over.

use std::collections::BTreeMap;

use oroshi_stats::Latency;
use serde::{Deserialize, Serialize};

use crate::failure::{Failure, FailureCounts};

/// The counts of one core.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Tally {
    /// Failed attempts by name, and refused ones by status.
    pub(crate) failures: FailureCounts,
    pub(crate) statuses: BTreeMap<u16, u64>,
    /// By failure, what the server sent on the first attempt that ended so.
    pub(crate) came: BTreeMap<Failure, String>,
    /// From the beginning of an attempt to the response that accepts it.
    pub(crate) opening: Latency,
    pub(crate) ended: BTreeMap<String, u64>,
    pub(crate) flow: DeliveryTally,
    /// Messages for all that did not come, and those of them on subscriptions that had ended.
    pub(crate) lost: u64,
    pub(crate) lost_on_ended: u64,
    pub(crate) delivered: u64,
}

impl Tally {
    /// Adds the values of another core.
    pub(crate) fn merge(&mut self, other: &Self) {
        let Self { failures, statuses, came, opening, ended, flow, lost, lost_on_ended, delivered } = self;
        failures.merge(&other.failures);
        other.statuses.iter().for_each(|(status, n)| *statuses.entry(*status).or_default() += n);
        for (failure, text) in &other.came {
            came.entry(*failure).or_insert_with(|| text.clone());
        }
        opening.merge(&other.opening);
        other.ended.iter().for_each(|(end, n)| *ended.entry(end.clone()).or_default() += n);
        flow.merge(&other.flow);
        *lost += other.lost;
        *lost_on_ended += other.lost_on_ended;
        *delivered += other.delivered;
    }
}

impl Tally {
    /// Whether the counts are those of a run, and not garbage whose sum could overflow.
    pub(crate) fn is_plausible(&self) -> bool {
        /// The highest plausible count of a part of a run.
        const MOST: u64 = 1 << 48;
        /// The most different ends of subscriptions.
        const ENDS: usize = 10_000;
        let flow = &self.flow;
        let counts = [self.lost, self.lost_on_ended, self.delivered, flow.messages, flow.bytes, flow.unstamped];
        let more = [flow.foreign, flow.duplicated, flow.reordered, flow.to_one.delivered, flow.to_one.duplicated];
        let rest = [flow.to_one.misdirected, self.failures.iter().map(|(_, n)| n).max().unwrap_or(0)];
        let maps = self.statuses.values().chain(self.ended.values()).copied();
        self.ended.len() <= ENDS && counts.into_iter().chain(more).chain(rest).chain(maps).all(|count| count <= MOST)
    }
}

/// Messages received in the measured part.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct DeliveryTally {
    /// Messages and bytes, stamped or not.
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
    pub(crate) unstamped: u64,
    /// Stamps of other runs.
    pub(crate) foreign: u64,
    pub(crate) duplicated: u64,
    pub(crate) reordered: u64,
    pub(crate) delay: Latency,
    /// When the last one came.
    pub(crate) last: u64,
    pub(crate) to_one: ToOne,
}

impl DeliveryTally {
    fn merge(&mut self, other: &Self) {
        self.messages += other.messages;
        self.bytes += other.bytes;
        self.unstamped += other.unstamped;
        self.foreign += other.foreign;
        self.duplicated += other.duplicated;
        self.reordered += other.reordered;
        self.delay.merge(&other.delay);
        self.last = self.last.max(other.last);
        self.to_one.delivered += other.to_one.delivered;
        self.to_one.duplicated += other.to_one.duplicated;
        self.to_one.misdirected += other.to_one.misdirected;
        self.to_one.delay.merge(&other.to_one.delay);
    }
}

/// Messages for one connection each.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct ToOne {
    pub(crate) delivered: u64,
    pub(crate) duplicated: u64,
    /// Messages that came to another connection.
    pub(crate) misdirected: u64,
    pub(crate) delay: Latency,
}
