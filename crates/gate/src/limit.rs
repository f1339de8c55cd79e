//! Rate limits by key: how many requests with one key may pass in a time.
//!
//! The decisions are those of [`oroshi_service::rate`].

use std::fmt;
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::net::IpAddr;
use std::time::Duration;

use oroshi_http1::Headers;
pub use oroshi_service::rate::Rate;
use oroshi_service::rate::{RateCounts, RateTable, Rule, network};

use crate::plan::Answer;

/// The most keys that a limit may remember: 256 MiB.
pub const MOST_ENTRIES: usize = 1 << 24;

/// A rate limit. Routes name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Its name.
    pub name: String,
    /// The parts of the key. Requests with the same parts share the limit; without parts, all requests do.
    pub key: Vec<KeyPart>,
    /// The rate.
    pub rate: Rate,
    /// How many requests may pass at once, at least 1.
    pub burst: u32,
    /// The most keys to remember, rounded up to the size of the table. A further key replaces the one that is nearest
    /// to
    /// its full burst.
    pub entries: usize,
    /// The response beyond the limit. `Retry-After` is the time until the next request of this key passes.
    pub answer: Answer,
}

impl Settings {
    /// Makes a limit with this name, and defaults but for the rate.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Settings {
            name: name.into(),
            key: vec![KeyPart::Client],
            rate: Rate { count: 0, period: Duration::from_secs(1) },
            burst: 0,
            entries: 100_000,
            answer: Answer::text(429, "too many requests"),
        }
    }
}

/// A part of a limit's key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyPart {
    /// The client's address; of IPv6 the first 64 bits, which one client has to itself. Clients on unix sockets count
    /// as
    /// one.
    Client,
    /// The requested host in canonical form.
    Host,
    /// All values of a header field, in order. Without one, the value is empty.
    Header(String),
}

impl fmt::Display for KeyPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeyPart::Client => f.write_str("client"),
            KeyPart::Host => f.write_str("host"),
            KeyPart::Header(name) => write!(f, "header {name}"),
        }
    }
}

/// A limit in force, shared by all threads.
pub(crate) struct Limiter {
    pub(crate) settings: Settings,
    rule: Rule,
    table: RateTable,
    /// Secret, so that clients cannot choose keys that share a bucket.
    hasher: RandomState,
}

impl Limiter {
    pub(crate) fn new(settings: Settings) -> Self {
        let (rule, table) = (Rule::new(settings.rate, settings.burst), RateTable::new(settings.entries));
        Limiter { settings, rule, table, hasher: RandomState::new() }
    }

    /// Counts a request at `now`. Returns the time until one of the same key passes, if this one does not.
    pub(crate) fn check(
        &self,
        client: Option<IpAddr>,
        host: &str,
        headers: Headers<'_>,
        now: u64,
    ) -> Result<(), Duration> {
        let mut hasher = self.hasher.build_hasher();
        for part in &self.settings.key {
            match part {
                KeyPart::Client => client.map(network).hash(&mut hasher),
                KeyPart::Host => host.hash(&mut hasher),
                KeyPart::Header(name) => {
                    headers.get_all(name).for_each(|value| value.hash(&mut hasher));
                    // Ends the list, so that no two requests with different parts have the same bytes.
                    hasher.write_u64(u64::MAX);
                }
            }
        }
        self.table.check(hasher.finish(), self.rule, 1, now).map_err(Duration::from_nanos)
    }

    pub(crate) fn counts(&self) -> RateCounts {
        self.table.counts()
    }
}

impl fmt::Debug for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limiter").field("settings", &self.settings).finish_non_exhaustive()
    }
}

/// Returns the value of `Retry-After`: whole seconds, at least 1.
pub(crate) fn retry_after(wait: Duration) -> u32 {
    let seconds = wait.as_secs().saturating_add(u64::from(wait.subsec_nanos() > 0)).max(1);
    u32::try_from(seconds).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_told_whole_seconds() {
        for (wait, told) in [(0, 1), (1, 1), (1_000_000_000, 1), (1_000_000_001, 2)] {
            assert_eq!(retry_after(Duration::from_nanos(wait)), told);
        }
        assert_eq!(retry_after(Duration::MAX), u32::MAX);
    }
}
