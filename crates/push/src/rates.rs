//! What clients may send per second: each connection, each user, each address.
//!
//! A connection keeps its own numbers. Those of users and addresses stand in tables that all threads share.

use std::cell::Cell;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;

use oroshi_net::monotonic_ns;
use oroshi_service::rate::{Decision, Rate, RateTable, Rule, network};

use crate::plan::{ClientRates, Limits};

/// The users or addresses that a table remembers. Beyond it, the one nearest to its full burst is forgotten.
const ENTRIES: usize = 100_000;

/// What is limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Messages,
    Bytes,
    Subscribes,
    Publishes,
}

/// The names of the limits, as in the configuration: of each scope, [`What`]'s variants in their order.
pub(crate) const LIMITS: [[&str; 4]; 3] = [
    ["client-messages", "client-bytes", "client-subscribes", "client-publishes"],
    ["user-messages", "user-bytes", "user-subscribes", ""],
    ["address-messages", "address-bytes", "address-subscribes", ""],
];

/// The numbers of one connection.
#[derive(Debug, Default)]
pub(crate) struct Arrivals([Cell<u64>; 4]);

/// The client of a request, as its limits see it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sender<'a> {
    pub(crate) arrivals: &'a Arrivals,
    pub(crate) user: Option<&'a str>,
    /// The hash of its address, or 0.
    pub(crate) address: u64,
}

/// The limits in force. One for all threads.
#[derive(Debug)]
pub(crate) struct Rates {
    client: [Option<Rule>; 4],
    user: [Option<Shared>; 3],
    address: [Option<Shared>; 3],
    /// Secret, so that clients cannot choose keys that share a place.
    hasher: RandomState,
}

#[derive(Debug)]
struct Shared {
    rule: Rule,
    table: RateTable,
}

impl Rates {
    /// Creates the limits of a plan, with nothing counted.
    pub(crate) fn new(limits: &Limits) -> Self {
        let rules = |rates: ClientRates| {
            let rule = |rate: Option<u32>, least| rate.map(|rate| Rule::new(Rate::per_second(rate), rate.max(least)));
            let largest = u32::try_from(limits.message_bytes).unwrap_or(u32::MAX);
            [rule(rates.messages, 1), rule(rates.bytes, largest), rule(rates.subscribes, 1)]
        };
        let shared = |rates| rules(rates).map(|rule| Some(Shared { rule: rule?, table: RateTable::new(ENTRIES) }));
        let [messages, bytes, subscribes] = rules(limits.client);
        let publishes = limits.client_publishes.map(|rate| Rule::new(Rate::per_second(rate), rate));
        Rates {
            client: [messages, bytes, subscribes, publishes],
            user: shared(limits.user),
            address: shared(limits.address),
            hasher: RandomState::new(),
        }
    }

    /// Returns the hash of a client's address; 0 if it is not needed.
    pub(crate) fn address(&self, address: Option<IpAddr>) -> u64 {
        match address {
            Some(address) if self.needs_address() => self.hasher.hash_one(network(address)).max(1),
            _ => 0,
        }
    }

    /// Returns whether addresses have limits.
    pub(crate) fn needs_address(&self) -> bool {
        self.address.iter().any(Option::is_some)
    }

    /// Returns whether something has a limit in any scope.
    pub(crate) fn limits(&self, what: What) -> bool {
        let at = what as usize;
        let is_shared = |all: &[Option<Shared>; 3]| all.get(at).is_some_and(Option::is_some);
        self.client[at].is_some() || is_shared(&self.user) || is_shared(&self.address)
    }

    /// Counts something that a client sends. An error names the limit that it exceeds.
    pub(crate) fn check(&self, sender: Sender<'_>, what: What, cost: u64) -> Result<(), (usize, What)> {
        let at = what as usize;
        let now = monotonic_ns();
        if let Some(rule) = self.client[at] {
            let arrival = &sender.arrivals.0[at];
            match rule.decide_cost(arrival.get(), now, cost) {
                Decision::Passes(next) => arrival.set(next),
                Decision::Refused(_) => return Err((0, what)),
            }
        }
        let user = sender.user.map_or(0, |user| self.hasher.hash_one(user).max(1));
        for (scope, key, all) in [(1, user, &self.user), (2, sender.address, &self.address)] {
            if key != 0
                && let Some(Some(Shared { rule, table })) = all.get(at)
                && table.check(key, *rule, cost, now).is_err()
            {
                return Err((scope, what));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passes(rates: &Rates, arrivals: &Arrivals, user: Option<&str>, address: u64, what: What, cost: u64) -> usize {
        let sender = Sender { arrivals, user, address };
        (0..100).filter(|_| rates.check(sender, what, cost).is_ok()).count()
    }

    #[test]
    fn each_scope_has_its_own_count() {
        // So slow that the time of this test counts for nothing.
        let once = |rate| Rule::new(Rate { count: 1, period: std::time::Duration::from_secs(1 << 20) }, rate);
        let shared = |rate| Some(Shared { rule: once(rate), table: RateTable::new(10) });
        let rates = Rates {
            client: [Some(once(2)), None, None, Some(once(1))],
            user: [shared(5), None, None],
            address: [shared(7), shared(1000), None],
            hasher: RandomState::new(),
        };
        let count = |arrivals, user, address| passes(&rates, arrivals, user, address, What::Messages, 1);
        let mine: [Arrivals; 5] = Default::default();
        assert_eq!(count(&mine[0], Some("ann"), 7), 2);
        assert_eq!(count(&mine[1], Some("ann"), 8), 2);
        assert_eq!(count(&mine[2], Some("ann"), 9), 1, "ann has five on all connections");
        assert_eq!(count(&mine[3], None, 0), 2, "neither user nor address");
        let address = rates.address("192.0.2.1".parse().ok());
        let all: Vec<Arrivals> = (0..5).map(|_| Arrivals::default()).collect();
        assert_eq!(all.iter().map(|one| count(one, None, address)).sum::<usize>(), 7);
        assert_eq!(passes(&rates, &mine[4], None, address, What::Bytes, 400), 2);
        assert_eq!(passes(&rates, &mine[4], None, address, What::Bytes, 200), 1);
        assert_eq!(passes(&rates, &mine[4], None, address, What::Publishes, 1), 1);
        assert_eq!(passes(&rates, &mine[4], None, address, What::Subscribes, 1), 100, "no limit");
        assert_eq!(
            rates.check(Sender { arrivals: &mine[4], user: None, address }, What::Bytes, 1001),
            Err((2, What::Bytes))
        );
        assert!(rates.limits(What::Bytes) && !rates.limits(What::Subscribes));
    }

    #[test]
    fn the_largest_message_fits_into_any_rate_of_bytes() {
        let client = ClientRates { bytes: Some(10), ..ClientRates::default() };
        let rates = Rates::new(&Limits { message_bytes: 5000, client, ..Limits::default() });
        let (small, large) = (Arrivals::default(), Arrivals::default());
        assert_eq!(passes(&rates, &small, None, 0, What::Bytes, 5000), 1);
        assert_eq!(passes(&rates, &large, None, 0, What::Bytes, 5001), 0);
        assert_eq!(rates.address("::1".parse().ok()), 0, "no address has a limit");
    }
}
