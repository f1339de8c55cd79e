//! Rate limits by key: how many requests with one key may pass in a time.
//!
//! Each limit follows the generic cell rate algorithm (GCRA, ITU-T I.371): a key has one number, the *theoretical
//! arrival
//! time* of its next request. It passes evenly spaced requests, and a burst of `burst` at once. The decision is pure
//! and takes the time as an argument; `table` keeps the numbers of all keys.

mod table;

use std::fmt;
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::net::IpAddr;
use std::time::Duration;

use oroshi_http1::Headers;

use crate::plan::Answer;
use table::Table;

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

/// A rate: `count` requests in each `period`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Requests.
    pub count: u32,
    /// The time for so many.
    pub period: Duration,
}

impl Rate {
    /// Returns the time between two requests in nanoseconds, at least 1.
    fn interval(self) -> u64 {
        let nanoseconds = self.period.as_nanos() / u128::from(self.count.max(1));
        u64::try_from(nanoseconds).unwrap_or(u64::MAX).max(1)
    }
}

/// The rule for one key.
#[derive(Clone, Copy, Debug)]
struct Rule {
    /// The time between two requests.
    interval: u64,
    /// How far ahead of the present the arrival time may be.
    tolerance: u64,
}

/// The decision about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Decision {
    /// It passes; the key's next arrival time.
    Passes(u64),
    /// It is refused. A request passes after so many nanoseconds.
    Refused(u64),
}

impl Rule {
    fn new(settings: &Settings) -> Self {
        let interval = settings.rate.interval();
        Rule { interval, tolerance: interval.saturating_mul(u64::from(settings.burst.max(1)) - 1) }
    }

    /// Decides about a request at `now`. `arrival` is the key's number; any time until `now` means a full burst.
    fn decide(self, arrival: u64, now: u64) -> Decision {
        let due = arrival.saturating_sub(self.tolerance);
        match now < due {
            true => Decision::Refused(due - now),
            false => Decision::Passes(arrival.max(now).saturating_add(self.interval)),
        }
    }
}

/// A limit in force, shared by all threads.
pub(crate) struct Limiter {
    pub(crate) settings: Settings,
    rule: Rule,
    table: Table,
    /// Secret, so that clients cannot choose keys that share a bucket.
    hasher: RandomState,
}

/// The counts of a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LimitCounts {
    /// Requests that passed.
    pub(crate) passed: u64,
    /// Requests that were refused.
    pub(crate) refused: u64,
    /// Keys that were forgotten before their burst was full again, because the table had no room.
    pub(crate) forgotten: u64,
}

impl Limiter {
    pub(crate) fn new(settings: Settings) -> Self {
        let (rule, table) = (Rule::new(&settings), Table::new(settings.entries));
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
        self.table.check(hasher.finish(), self.rule, now).map_err(Duration::from_nanos)
    }

    pub(crate) fn counts(&self) -> LimitCounts {
        self.table.counts()
    }
}

impl fmt::Debug for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limiter").field("settings", &self.settings).finish_non_exhaustive()
    }
}

/// Returns what counts as one client: an IPv4 address, or the first 64 bits of an IPv6 address.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6((address.to_bits() >> 64 << 64).into()),
        address => address,
    }
}

/// Returns the value of `Retry-After`: whole seconds, at least 1.
pub(crate) fn retry_after(wait: Duration) -> u32 {
    let seconds = wait.as_secs().saturating_add(u64::from(wait.subsec_nanos() > 0)).max(1);
    u32::try_from(seconds).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rule(count: u32, period: Duration, burst: u32) -> Rule {
        Rule::new(&Settings { rate: Rate { count, period }, burst, ..Settings::new("a") })
    }

    #[test]
    fn a_burst_passes_at_once_and_then_one_by_one() {
        let rule = rule(10, Duration::from_secs(1), 3);
        let (mut arrival, mut passed) = (0, Vec::new());
        for tenth in [0, 0, 0, 0, 1, 1, 3, 3, 3, 100, 100, 100, 100] {
            let now = 1_000_000_000 + tenth * 100_000_000;
            match rule.decide(arrival, now) {
                Decision::Passes(next) => {
                    arrival = next;
                    passed.push(tenth);
                }
                Decision::Refused(wait) => assert_eq!(wait, 100_000_000, "at {tenth}"),
            }
        }
        assert_eq!(passed, [0, 0, 0, 1, 3, 3, 100, 100, 100]);
    }

    #[test]
    fn clients_are_told_whole_seconds() {
        for (wait, told) in [(0, 1), (1, 1), (1_000_000_000, 1), (1_000_000_001, 2)] {
            assert_eq!(retry_after(Duration::from_nanos(wait)), told);
        }
        assert_eq!(retry_after(Duration::MAX), u32::MAX);
    }

    #[test]
    fn a_client_of_ipv6_is_its_network() {
        let of = |text: &str| network(text.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:1.2.3.4"), of("1.2.3.4"));
        assert_ne!(of("1.2.3.4"), of("1.2.3.5"));
    }

    proptest! {
        /// Over any stretch of time no more pass than the burst and the rate allow, and one that waits as told passes.
        #[test]
        fn no_stretch_has_more_than_burst_and_rate(
            count in 1..1000_u32, period in 1..10_000_000_u64, burst in 1..50_u32,
            pauses in prop::collection::vec(0..2_000_000_u64, 1..200)
        ) {
            let rule = rule(count, Duration::from_nanos(period), burst);
            let (mut now, mut arrival, mut passed) = (0, 0, Vec::new());
            for pause in pauses {
                now += pause;
                match rule.decide(arrival, now) {
                    Decision::Passes(next) => {
                        prop_assert!(next > arrival && next > now);
                        arrival = next;
                        passed.push(now);
                    }
                    Decision::Refused(wait) => {
                        prop_assert!(wait > 0 && wait <= arrival - now);
                        prop_assert!(matches!(rule.decide(arrival, now + wait), Decision::Passes(_)));
                        prop_assert!(matches!(rule.decide(arrival, now + wait - 1), Decision::Refused(1)));
                    }
                }
            }
            for first in 0..passed.len() {
                for last in first..passed.len() {
                    let time = passed[last] - passed[first];
                    prop_assert!((last - first + 1) as u64 <= u64::from(burst) + time / rule.interval);
                }
            }
        }

        #[test]
        fn nothing_overflows(arrival: u64, now: u64, count: u32, period: u64, burst: u32) {
            let decision = rule(count, Duration::from_nanos(period), burst).decide(arrival, now);
            prop_assert!(arrival > now || matches!(decision, Decision::Passes(_)));
        }
    }
}
