//! Counts and times of some of the requests: those of one URL, or of one step of a scenario.

use std::collections::BTreeMap;

use oroshi_stats::Latency;
use serde::{Deserialize, Serialize};

use crate::failure::{Failure, FailureCounts};
use crate::record::scenario::StepRecord;

/// Counts and times of requests of the measured part. Times are nanoseconds.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RequestCounts {
    /// Requests that ended in whatever way, but by the end of the run.
    pub count: u64,
    /// Those that failed, or got a response that was not as expected.
    pub errors: u64,
    /// Requests that the end of the run cut off.
    pub cut_off: u64,
    /// Failures by name.
    pub failures: FailureCounts,
    /// Responses by status.
    pub statuses: BTreeMap<u16, u64>,
    /// Requests that a cache answered without the network.
    pub cached: u64,
    /// Bytes of the bodies.
    pub body_bytes: u64,
    /// From handing the first byte to the kernel to reading the last byte.
    pub service: Latency,
    /// From when the request was due to reading the last byte.
    pub response: Latency,
}

impl RequestCounts {
    /// Counts a request that got no response.
    pub(crate) fn fail(&mut self, failure: Failure) {
        self.count += 1;
        self.errors += u64::from(failure.is_error());
        self.failures.add(failure);
    }

    /// Adds the counts of another thread.
    pub fn merge(&mut self, other: &Self) {
        self.count += other.count;
        self.errors += other.errors;
        self.cut_off += other.cut_off;
        self.failures.merge(&other.failures);
        for (status, n) in &other.statuses {
            *self.statuses.entry(*status).or_default() += n;
        }
        self.cached += other.cached;
        self.body_bytes += other.body_bytes;
        self.service.merge(&other.service);
        self.response.merge(&other.response);
    }

    /// Whether there was any request.
    #[must_use]
    pub fn is_used(&self) -> bool {
        self.count > 0 || !self.response.is_empty()
    }

    /// Makes the record, for a measured part of so many seconds.
    #[must_use]
    pub fn record(&self, name: &str, elapsed_s: f64) -> StepRecord {
        StepRecord {
            name: name.to_owned(),
            count: self.count,
            per_s: if elapsed_s > 0.0 { self.count as f64 / elapsed_s } else { 0.0 },
            errors: self.errors,
            cut_off: self.cut_off,
            failures: self.failures.iter().collect(),
            statuses: self.statuses.clone(),
            cached: self.cached,
            body_bytes: self.body_bytes,
            service: self.service.clone().into(),
            response: self.response.clone().into(),
        }
    }

    /// Whether no count is above `most`.
    pub(crate) fn is_plausible(&self, most: u64) -> bool {
        let counts = [self.count, self.errors, self.cut_off, self.cached, self.body_bytes];
        let failures = self.failures.iter().map(|(_, count)| count);
        counts.into_iter().chain(failures).chain(self.statuses.values().copied()).all(|count| count <= most)
    }
}
