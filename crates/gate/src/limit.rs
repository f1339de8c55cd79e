//! Rate limits by key: how many requests with one key may pass in a time.
//!
//! The decisions are those of [`oroshi_service::rate`]. A limit that gateways share keeps the same number for each key
//! in memcached: its arrival time, in nanoseconds since 1970. Gateways change it by compare-and-swap, and not by
//! counters per window (`incr`): so the limit means the same with one gateway and with many, a burst at the edge of a
//! window cannot be twice as large, and `Retry-After` is exact. It costs two requests instead of one, but requests that
//! wait for the same key share them.

use std::fmt;
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use oroshi_http1::Headers;
use oroshi_lookup::{Change, StoreError, Stores};
use oroshi_net::monotonic_ns;
use oroshi_server::LogThrottle;
pub use oroshi_service::rate::Rate;
use oroshi_service::rate::{Decision, RateCounts, RateTable, Rule, network};
use sha2::{Digest as _, Sha256};

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
    /// to its full burst.
    pub entries: usize,
    /// Where the counts of several gateways are; `None`: this gateway counts for itself.
    pub memcached: Option<SharedCounts>,
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
            memcached: None,
            answer: Answer::text(429, "too many requests"),
        }
    }
}

/// The counts of a limit that gateways share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedCounts {
    /// The memcached store.
    pub store: String,
    /// The prefix of its keys, up to 100 bytes of visible ASCII.
    pub prefix: String,
}

impl SharedCounts {
    /// Returns whether memcached takes keys with this prefix.
    #[must_use]
    pub fn has_prefix(&self) -> bool {
        self.prefix.len() <= 100 && self.prefix.bytes().all(|byte| byte.is_ascii_graphic())
    }
}

/// A part of a limit's key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyPart {
    /// The client's address; of IPv6 the first 64 bits, which one client has to itself. Clients on unix sockets count
    /// as one.
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
    /// Requests that this gateway decided about alone, because the shared counts could not be had.
    alone: AtomicU64,
    /// Limits how often the log says so.
    told: Mutex<LogThrottle>,
}

/// A request, as a limit sees it.
#[derive(Clone, Copy)]
pub(crate) struct Limited<'r> {
    pub(crate) client: Option<IpAddr>,
    pub(crate) host: &'r str,
    pub(crate) headers: Headers<'r>,
}

impl Limiter {
    pub(crate) fn new(settings: Settings) -> Self {
        let (rule, table) = (Rule::new(settings.rate, settings.burst), RateTable::new(settings.entries));
        let told = Mutex::new(LogThrottle::every(Duration::from_secs(10)));
        Limiter { settings, rule, table, hasher: RandomState::new(), alone: AtomicU64::new(0), told }
    }

    /// Counts a request at `now`. Returns the time until one of the same key passes, if this one does not.
    pub(crate) fn check(&self, request: Limited<'_>, now: u64) -> Result<(), Duration> {
        self.table.check(self.hash(request), self.rule, 1, now).map_err(Duration::from_nanos)
    }

    /// As [`check`](Self::check), with the counts that gateways share.
    ///
    /// This gateway's own table has the last known number of each key, and refuses by that without asking: the number
    /// only grows. The table decides alone if memcached does not answer, or has the number of a clock far ahead of this
    /// one.
    pub(crate) async fn check_shared(
        &self,
        shared: &SharedCounts,
        stores: &Stores,
        request: Limited<'_>,
    ) -> Result<(), Duration> {
        let hash = self.hash(request);
        self.table.refuse(hash, self.rule, monotonic_ns()).map_err(Duration::from_nanos)?;
        let why = match self.ask(shared, stores, self.name(shared, request)).await {
            Ok(Some((decided, at))) => {
                // The number is as far ahead of the moment of the decision, and the answer has taken time since.
                self.table.learn(hash, at.saturating_add(decided.ahead), decided.wait.is_none(), monotonic_ns());
                return decided.wait.map_or(Ok(()), |wait| Err(Duration::from_nanos(wait)));
            }
            Ok(None) => "its number in memcached is of a clock that is far ahead of this machine's".to_owned(),
            Err(error) => error.to_string(),
        };
        self.alone.fetch_add(1, Ordering::Relaxed);
        self.tell(&why);
        self.table.check(hash, self.rule, 1, monotonic_ns()).map_err(Duration::from_nanos)
    }

    /// Lets memcached count a request. Returns the decision, and its moment on the monotonic clock; `None` if the
    /// number in memcached is of no use.
    async fn ask(
        &self,
        shared: &SharedCounts,
        stores: &Stores,
        key: Vec<u8>,
    ) -> Result<Option<(Decided, u64)>, StoreError> {
        let decided = Arc::new(Mutex::new(None));
        let (rule, place) = (self.rule, Arc::clone(&decided));
        let change: Change = Box::new(move |value| {
            let now = wall_ns();
            let (next, made) = decide(rule, value, now);
            *place.lock().unwrap_or_else(PoisonError::into_inner) = made.map(|made| (made, monotonic_ns()));
            // memcached counts whole seconds, and clocks differ a little.
            next.map(|next| (next.to_string().into_bytes(), Duration::from_nanos(next - now) + Duration::from_secs(2)))
        });
        stores.memcached(&shared.store)?.update(key, change).await?;
        Ok(decided.lock().unwrap_or_else(PoisonError::into_inner).take())
    }

    /// Says that this gateway decides alone.
    fn tell(&self, why: &str) {
        let due = self.told.lock().unwrap_or_else(PoisonError::into_inner).next(Instant::now());
        if let Some(count) = due {
            let name = &self.settings.name;
            tracing::warn!(count, "the limit `{name}` counts the requests of this gateway alone: {why}");
        }
    }

    /// Returns the response to a request that may pass after this time.
    pub(crate) fn refusal(&self, wait: Duration) -> Answer {
        Answer { retry_after: Some(retry_after(wait)), ..self.settings.answer.clone() }
    }

    fn hash(&self, request: Limited<'_>) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        self.parts(request, |part| match part {
            Some(value) => value.hash(&mut hasher),
            // Ends a list, so that no two requests with different parts have the same bytes.
            None => hasher.write_u64(u64::MAX),
        });
        hasher.finish()
    }

    /// Returns the key in memcached: the same one on each gateway with this rate and burst, and clients cannot make two
    /// keys the same. Numbers of another rate would be too far ahead, or not far enough.
    fn name(&self, shared: &SharedCounts, request: Limited<'_>) -> Vec<u8> {
        let mut digest = Sha256::new();
        let mut add = |part: Option<&[u8]>| {
            digest.update(part.map_or(u64::MAX, |value| value.len() as u64).to_be_bytes());
            digest.update(part.unwrap_or_default());
        };
        add(Some(self.settings.name.as_bytes()));
        self.rule.numbers().into_iter().for_each(|number| add(Some(&number.to_be_bytes())));
        self.parts(request, add);
        let mut name = shared.prefix.clone().into_bytes();
        digest.finalize().iter().for_each(|byte| name.extend_from_slice(format!("{byte:02x}").as_bytes()));
        name
    }

    /// Gives the values of the parts of the key, and `None` at the end of each part.
    fn parts(&self, request: Limited<'_>, mut add: impl FnMut(Option<&[u8]>)) {
        for part in &self.settings.key {
            match part {
                KeyPart::Client => match request.client.map(network) {
                    Some(IpAddr::V4(address)) => add(Some(&address.octets())),
                    Some(IpAddr::V6(address)) => add(Some(&address.octets())),
                    None => {}
                },
                KeyPart::Host => add(Some(request.host.as_bytes())),
                KeyPart::Header(name) => request.headers.get_all(name).for_each(|value| add(Some(value))),
            }
            add(None);
        }
    }

    /// Returns how many requests this gateway decided about alone, although gateways share the limit.
    pub(crate) fn alone(&self) -> u64 {
        self.alone.load(Ordering::Relaxed)
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

/// The decision about a request by shared counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Decided {
    /// The nanoseconds until one passes, if this one does not.
    wait: Option<u64>,
    /// How far ahead of the present the key's number is, nanoseconds.
    ahead: u64,
}

/// Decides by the number that memcached has. Returns the next number if the request passes, and the decision: none if
/// the number is so far ahead that the clocks must differ by more than a burst lasts.
fn decide(rule: Rule, value: Option<&[u8]>, now: u64) -> (Option<u64>, Option<Decided>) {
    let known: u64 = value.and_then(|text| str::from_utf8(text).ok()?.trim_ascii().parse().ok()).unwrap_or(0);
    // A gateway with this clock would write none that is later.
    let farthest = now.saturating_add(rule.farthest());
    if known > farthest.saturating_add(rule.farthest()) {
        return (None, None);
    }
    let arrival = known.min(farthest);
    match rule.decide(arrival, now) {
        Decision::Passes(next) => (Some(next), Some(Decided { wait: None, ahead: next - now })),
        Decision::Refused(wait) => (None, Some(Decided { wait: Some(wait), ahead: arrival - now })),
    }
}

/// Returns the nanoseconds since 1970; 0 before.
fn wall_ns() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}

/// Returns the value of `Retry-After`: whole seconds, at least 1.
fn retry_after(wait: Duration) -> u32 {
    let seconds = wait.as_secs().saturating_add(u64::from(wait.subsec_nanos() > 0)).max(1);
    u32::try_from(seconds).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_memcached_are_read_and_bounded() {
        const NOW: u64 = 1_000_000_000_000;
        let rule = Rule::new(Rate { count: 10, period: Duration::from_secs(1) }, 2);
        let tenth = 100_000_000;
        let passes = |next: u64| (Some(next), Some(Decided { wait: None, ahead: next - NOW }));
        for nothing in [None, Some(&b""[..]), Some(b"garbage"), Some(b"-1"), Some(b"1"), Some(b"\xff")] {
            assert_eq!(decide(rule, nothing, NOW), passes(NOW + tenth), "{nothing:?}");
        }
        let text = |number: u64| number.to_string().into_bytes();
        assert_eq!(decide(rule, Some(&text(NOW + tenth)), NOW), passes(NOW + 2 * tenth));
        let refused = Some(Decided { wait: Some(tenth), ahead: 2 * tenth });
        assert_eq!(decide(rule, Some(&text(NOW + 2 * tenth)), NOW), (None, refused));
        // Of a clock that is ahead: by less than a burst lasts, by little more, by a day.
        assert_eq!(decide(rule, Some(&text(NOW + 4 * tenth)), NOW), (None, refused));
        assert_eq!(decide(rule, Some(&text(NOW + 4 * tenth + 1)), NOW), (None, None));
        assert_eq!(decide(rule, Some(&text(NOW + 86_400_000_000_000)), NOW), (None, None));
        assert_eq!(decide(rule, Some(&text(u64::MAX)), NOW), (None, None));
    }

    /// A number that nobody renews keeps no key refused for longer than `Retry-After` said.
    #[test]
    fn who_waits_as_told_passes() {
        let rule = Rule::new(Rate { count: 20, period: Duration::from_secs(1) }, 5);
        for ahead in [0, 1_000_000, rule.farthest(), 2 * rule.farthest()] {
            let (mut now, number) = (1_000_000_000_000, 1_000_000_000_000 + ahead);
            let value = number.to_string().into_bytes();
            let mut waited = 0;
            while let (None, decided) = decide(rule, Some(&value), now) {
                let wait = decided.unwrap().wait.unwrap();
                (now, waited) = (now + wait, waited + wait);
                assert!(waited <= ahead, "{ahead}: refused after {waited}");
            }
        }
    }

    #[test]
    fn names_in_memcached_are_the_same_everywhere_and_differ_by_each_part() {
        let shared = SharedCounts { store: "cache".into(), prefix: "limit:".into() };
        let limiter = |name: &str, key: &[KeyPart]| Limiter::new(Settings { key: key.to_vec(), ..Settings::new(name) });
        let name = |limiter: &Limiter, host: &str, lines: &[u8]| {
            let headers = Headers::from_checked_lines(lines);
            String::from_utf8(limiter.name(&shared, Limited { client: None, host, headers })).unwrap()
        };
        let key = [KeyPart::Host, KeyPart::Header("a".into()), KeyPart::Header("b".into())];
        let (one, same, other) = (limiter("one", &key), limiter("one", &key), limiter("other", &key));
        let faster = Limiter::new(Settings { burst: 7, key: key.to_vec(), ..Settings::new("one") });
        let first = name(&one, "x", b"a: 1\r\n");
        assert!(first.len() == 70 && first.starts_with("limit:"), "{first}");
        assert_eq!(first, name(&same, "x", b"a: 1\r\n"));
        for (limiter, host, lines) in [
            (&other, "x", &b"a: 1\r\n"[..]),
            (&faster, "x", b"a: 1\r\n"),
            (&one, "y", b"a: 1\r\n"),
            (&one, "x", b"b: 1\r\n"),
            (&one, "x", b"a: 1\r\na: \r\n"),
            (&one, "x", b"a: 1\r\nb: 1\r\n"),
        ] {
            assert_ne!(first, name(limiter, host, lines), "{host} {lines:?}");
        }
    }

    #[test]
    fn clients_are_told_whole_seconds() {
        for (wait, told) in [(0, 1), (1, 1), (1_000_000_000, 1), (1_000_000_001, 2)] {
            assert_eq!(retry_after(Duration::from_nanos(wait)), told);
        }
        assert_eq!(retry_after(Duration::MAX), u32::MAX);
    }
}
