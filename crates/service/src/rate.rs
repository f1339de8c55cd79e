//! Rates by key: how much with one key may pass in a time.
//!
//! Each rate follows the generic cell rate algorithm (GCRA, ITU-T I.371): a key has one number, the *theoretical
//! arrival time* of what comes next. It passes evenly spaced requests, and a burst at once. The decision ([`Rule`]) is
//! pure and takes the time as an argument; [`RateTable`] keeps the numbers of many keys.

mod table;

use std::net::IpAddr;
use std::time::Duration;

pub use table::{RateCounts, RateTable};

/// A rate: `count` in each `period`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Requests, messages or bytes.
    pub count: u32,
    /// The time for so many.
    pub period: Duration,
}

impl Rate {
    /// Returns a rate of so many per second.
    #[must_use]
    pub fn per_second(count: u32) -> Self {
        Rate { count, period: Duration::from_secs(1) }
    }

    /// Returns the time between two in nanoseconds, at least 1.
    #[must_use]
    pub fn interval(self) -> u64 {
        let nanoseconds = self.period.as_nanos() / u128::from(self.count.max(1));
        u64::try_from(nanoseconds).unwrap_or(u64::MAX).max(1)
    }
}

/// The rule for one key.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// The time between two, nanoseconds.
    interval: u64,
    /// How far ahead of the present the arrival time may be, nanoseconds.
    tolerance: u64,
}

/// The decision about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It passes; the key's next arrival time.
    Passes(u64),
    /// It is refused. It passes after so many nanoseconds.
    Refused(u64),
}

impl Rule {
    /// Makes a rule. `burst`: how much may pass at once, at least 1.
    #[must_use]
    pub fn new(rate: Rate, burst: u32) -> Self {
        let interval = rate.interval();
        Rule { interval, tolerance: interval.saturating_mul(u64::from(burst.max(1)) - 1) }
    }

    /// Returns what the rule consists of: the time between two and the tolerance, nanoseconds.
    #[must_use]
    pub fn numbers(self) -> [u64; 2] {
        [self.interval, self.tolerance]
    }

    /// Returns how far ahead of the present a key's arrival time can be, nanoseconds.
    #[must_use]
    pub fn farthest(self) -> u64 {
        self.tolerance.saturating_add(self.interval)
    }

    /// Decides about a request at `now`, nanoseconds. `arrival` is the key's number; any time until `now` means a full
    /// burst.
    #[must_use]
    pub fn decide(self, arrival: u64, now: u64) -> Decision {
        self.decide_cost(arrival, now, 1)
    }

    /// Decides about a request that counts as `cost`. One that is more than the burst never passes.
    #[must_use]
    pub fn decide_cost(self, arrival: u64, now: u64, cost: u64) -> Decision {
        // All but the last of it must fit into the tolerance, as its first does where it costs 1.
        let ahead = self.interval.saturating_mul(cost.max(1) - 1);
        let due = arrival.max(now).saturating_add(ahead).saturating_sub(self.tolerance);
        match now < due {
            true => Decision::Refused(due - now),
            false => Decision::Passes(arrival.max(now).saturating_add(ahead).saturating_add(self.interval)),
        }
    }
}

/// Returns what counts as one client: an IPv4 address, or the first 64 bits of an IPv6 address.
#[must_use]
pub fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6((address.to_bits() >> 64 << 64).into()),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rule(count: u32, period: Duration, burst: u32) -> Rule {
        Rule::new(Rate { count, period }, burst)
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
        fn nothing_overflows(arrival: u64, now: u64, count: u32, period: u64, burst: u32, cost: u64) {
            let rule = rule(count, Duration::from_nanos(period), burst);
            let decision = rule.decide(arrival, now);
            prop_assert!(arrival > now || matches!(decision, Decision::Passes(_)));
            let _ = rule.decide_cost(arrival, now, cost);
        }

        /// One request of some cost passes when so many of cost 1 would pass at once, and leaves the same number.
        #[test]
        fn a_cost_is_as_many_requests(
            arrival in 0..10_000_u64, now in 0..10_000_u64, burst in 1..50_u32, cost in 1..60_u64
        ) {
            let rule = rule(1_000_000, Duration::from_secs(1), burst);
            let mut one_by_one = Some(arrival);
            for _ in 0..cost {
                one_by_one = one_by_one.and_then(|arrival| match rule.decide(arrival, now) {
                    Decision::Passes(next) => Some(next),
                    Decision::Refused(_) => None,
                });
            }
            match rule.decide_cost(arrival, now, cost) {
                Decision::Passes(next) => prop_assert_eq!(one_by_one, Some(next)),
                Decision::Refused(wait) => {
                    prop_assert_eq!(one_by_one, None);
                    prop_assert!(wait > 0);
                }
            }
        }
    }
}
