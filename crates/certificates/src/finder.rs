//! Looks certificates up in the stores: once for all handshakes that wait for a name.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use oroshi_lookup::{Lookup, Stores};
use oroshi_net::permit::is_plain;
use tokio::sync::oneshot;
use zeroize::Zeroizing;

use crate::cache::{Cache, Cached};
use crate::certificate::{Certificate, sha256, wildcard_of};
use crate::certificates::Served;
use crate::challenges::Challenges;
use crate::counts::Counters;
use crate::seal::{Seal, is_sealed};

/// Settings of the look-up of certificates.
#[derive(Clone, Debug, PartialEq)]
pub struct FinderSettings {
    /// How long a certificate is used before the stores are asked again. They are asked in the background from four
    /// fifths of this time on. 5 minutes by default.
    pub ttl: Duration,
    /// How long a name without a certificate is not looked up again. 30 s by default.
    pub negative_ttl: Duration,
    /// How long beyond `ttl` a certificate is used while the stores are down. A day by default.
    pub stale_if_error: Duration,
    /// The most bytes of cached certificates, about. 64 MiB by default.
    pub bytes: usize,
    /// The most bytes of names that have none. 4 MiB by default.
    pub negative_bytes: usize,
    /// The most names that are looked up at the same time. 1,000 by default.
    pub names_in_flight: usize,
    /// The most names that are looked up per second, all threads together. 1,000 by default.
    pub names_per_second: u32,
    /// Whether a name without a row gets the row of its wildcard, such as `*.example.org`. True by default.
    pub wildcards: bool,
    /// The folder of the files that rows may name; `None`: rows name no files.
    pub folder: Option<PathBuf>,
}

impl Default for FinderSettings {
    fn default() -> Self {
        FinderSettings {
            ttl: Duration::from_secs(300),
            negative_ttl: Duration::from_secs(30),
            stale_if_error: Duration::from_secs(24 * 3600),
            bytes: 64 << 20,
            negative_bytes: 4 << 20,
            names_in_flight: 1000,
            names_per_second: 1000,
            wildcards: true,
            folder: None,
        }
    }
}

/// Why a name has no certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Miss {
    /// No store has one, or its row is of no use.
    Unknown,
    /// The stores, or this gateway, could not find out.
    Down,
}

/// The answer to a name.
pub(crate) type Found = Result<Arc<Served>, Miss>;

/// The result of [`Finder::find`].
pub(crate) enum Search {
    Now(Found),
    Later(oneshot::Receiver<Found>),
}

/// Finds certificates by name. All threads share it.
#[derive(Clone, Debug)]
pub(crate) struct Finder(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    lookup: Lookup,
    settings: FinderSettings,
    seal: Option<Seal>,
    /// Learns of names without a certificate.
    challenges: Arc<Challenges>,
    counters: Arc<Counters>,
    state: Mutex<State>,
    began: Instant,
}

#[derive(Debug)]
struct State {
    cache: Cache<Cert>,
    /// Names that are being looked up, with the handshakes that wait.
    flights: HashMap<Box<str>, Vec<oneshot::Sender<Found>>>,
    /// Certificates in use by the digest of their row, so that names with the same row share one.
    by_row: HashMap<[u8; 32], Weak<Cert>>,
    /// Look-ups that may begin, in thousandths, and when this was counted.
    allowance: (u64, u64),
}

/// A cached certificate.
#[derive(Debug)]
struct Cert {
    row: [u8; 32],
    served: Arc<Served>,
}

impl Finder {
    pub(crate) fn new(
        lookup: Lookup,
        settings: FinderSettings,
        seal: Option<Seal>,
        challenges: Arc<Challenges>,
        counters: Arc<Counters>,
    ) -> Self {
        let cache = Cache::new(settings.bytes, settings.negative_bytes);
        let allowance = (u64::from(settings.names_per_second) * 1000, 0);
        let state = State { cache, flights: HashMap::new(), by_row: HashMap::new(), allowance };
        let state = Mutex::new(state);
        Finder(Arc::new(Inner { lookup, settings, seal, challenges, counters, state, began: Instant::now() }))
    }

    /// Finds the certificate of a name in lower case. Call it on a thread with a `LocalRuntime`.
    pub(crate) fn find(&self, name: &str) -> Search {
        let inner = &self.0;
        let now = inner.now();
        let mut state = inner.locked();
        let before = match state.cache.get(name, now) {
            Cached::Value(cert, until) => {
                inner.counters.hits.more();
                let refresh_from = until.saturating_sub(millis(inner.settings.ttl) / 5);
                if now >= refresh_from && !state.flights.contains_key(name) && inner.may_begin(&mut state, now) {
                    state.flights.insert(name.into(), Vec::new());
                    inner.begin(name, Some(Arc::clone(&cert)));
                }
                return Search::Now(Ok(Arc::clone(&cert.served)));
            }
            Cached::Negative => {
                inner.counters.negatives.more();
                return Search::Now(Err(Miss::Unknown));
            }
            Cached::Missing(before) => before,
        };
        let (answer, answered) = oneshot::channel();
        if let Some(waiting) = state.flights.get_mut(name) {
            inner.counters.joined.more();
            // Handshakes that were given up wait no more.
            if waiting.len() >= 64 {
                waiting.retain(|waiter| !waiter.is_closed());
            }
            waiting.push(answer);
            return Search::Later(answered);
        }
        if !inner.may_begin(&mut state, now) {
            inner.counters.limited.more();
            return Search::Now(before.map(|cert| Arc::clone(&cert.served)).ok_or(Miss::Down));
        }
        state.flights.insert(name.into(), vec![answer]);
        inner.begin(name, before);
        Search::Later(answered)
    }

    /// Forgets a name, and returns whether it was known.
    pub(crate) fn purge(&self, name: &str) -> bool {
        self.0.locked().cache.forget(name)
    }

    /// Replaces the stores by others with the same names and kinds.
    pub(crate) fn set_stores(&self, stores: &Stores) {
        self.0.lookup.set_stores(stores);
    }

    pub(crate) fn lookup(&self) -> &Lookup {
        &self.0.lookup
    }

    /// Entries, bytes and evictions of the cache.
    pub(crate) fn cached(&self) -> (usize, usize, u64) {
        self.0.locked().cache.counts()
    }
}

impl Inner {
    fn locked(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> u64 {
        millis(self.began.elapsed())
    }

    /// Whether the limits permit a look-up; counts it.
    fn may_begin(&self, state: &mut State, now: u64) -> bool {
        if state.flights.len() >= self.settings.names_in_flight {
            return false;
        }
        let rate = u64::from(self.settings.names_per_second);
        let (left, since) = state.allowance;
        let left = (left + (now - since.min(now)) * rate).min(rate * 1000);
        let begins = left >= 1000;
        state.allowance = (if begins { left - 1000 } else { left }, now);
        begins
    }

    /// Looks a name up in a task of its own, so that no handshake's end stops it.
    fn begin(self: &Arc<Self>, name: &str, before: Option<Arc<Cert>>) {
        self.counters.asked.more();
        let mut flight = Flight { inner: Arc::clone(self), name: name.into(), result: None };
        tokio::task::spawn_local(async move {
            let result = flight.inner.fetch(&flight.name, before).await;
            flight.result = Some(result);
            drop(flight);
        });
    }

    async fn fetch(&self, name: &str, before: Option<Arc<Cert>>) -> Found {
        let mut value = self.lookup.value(name).await;
        if let (Ok(None), true, Some(wildcard)) = (&value, self.settings.wildcards, wildcard_of(name)) {
            value = self.lookup.value(&wildcard).await;
        }
        let row = match value {
            Ok(Some(row)) => Zeroizing::new(row),
            Ok(None) => {
                self.locked().cache.keep_negative(name, self.now() + millis(self.settings.negative_ttl));
                if let Some(issuer) = self.challenges.issuer() {
                    issuer.wanted(name);
                }
                return Err(Miss::Unknown);
            }
            Err(error) => {
                self.counters.store_down.more();
                let usable = before.filter(|_| !self.settings.stale_if_error.is_zero());
                return match usable {
                    Some(cert) if self.is_usable(name) => {
                        tracing::warn!(
                            "the certificate of `{name}` could not be looked up, and goes on as it is: {error}"
                        );
                        Ok(Arc::clone(&cert.served))
                    }
                    _ => {
                        tracing::warn!("the certificate of `{name}` could not be looked up: {error}");
                        Err(Miss::Down)
                    }
                };
            }
        };
        match self.read(name, &row, before) {
            Ok(cert) => {
                let served = Arc::clone(&cert.served);
                let mut state = self.locked();
                let bytes = served.certificate.bytes();
                state.cache.keep(name, cert, bytes, self.now() + millis(self.settings.ttl));
                Ok(served)
            }
            Err(why) => {
                self.counters.invalid.more();
                tracing::warn!("the certificate of `{name}` cannot be used: {why}");
                self.locked().cache.keep_negative(name, self.now() + millis(self.settings.negative_ttl));
                Err(Miss::Unknown)
            }
        }
    }

    /// While the stores are down: lets a cached certificate go on for a tenth of a TTL, up to the limit.
    fn is_usable(&self, name: &str) -> bool {
        let now = self.now();
        let mut state = self.locked();
        let Some(until) = state.cache.first_end(name) else { return false };
        if now > until.saturating_add(millis(self.settings.stale_if_error)) {
            return false;
        }
        let pause = millis(self.settings.ttl.min(Duration::from_secs(10)));
        state.cache.extend(name, now + pause.max(1));
        true
    }

    /// Reads a row. A row that has not changed, or that another name has, is not parsed again.
    fn read(&self, name: &str, row: &[u8], before: Option<Arc<Cert>>) -> Result<Arc<Cert>, String> {
        let file = self.file(row)?;
        let text: &[u8] = file.as_deref().map_or(row, |text| &text[..]);
        let digest = sha256(text);
        let known = before.filter(|cert| cert.row == digest);
        let known = known.or_else(|| self.locked().by_row.get(&digest).and_then(Weak::upgrade));
        let cert = match known {
            Some(cert) => cert,
            None => {
                let opened = match (is_sealed(text), &self.seal) {
                    (false, _) => None,
                    (true, Some(seal)) => Some(seal.open(text).map_err(|error| error.to_string())?),
                    (true, None) => return Err("it is sealed, and tls.seal names no key".to_owned()),
                };
                let text = opened.as_deref().map_or(text, |text| &text[..]);
                let certificate = Certificate::from_pem(text).map_err(|error| error.to_string())?;
                let cert = Arc::new(Cert { row: digest, served: Arc::new(Served::new(Arc::new(certificate))) });
                let mut state = self.locked();
                if state.by_row.len() >= 2 * state.cache.counts().0 + 64 {
                    state.by_row.retain(|_, cert| cert.strong_count() > 0);
                }
                state.by_row.insert(digest, Arc::downgrade(&cert));
                cert
            }
        };
        let certificate = &cert.served.certificate;
        if !certificate.covers(name) {
            let names: Vec<&str> = certificate.names().take(3).collect();
            return Err(format!("it is for other names: {}", names.join(", ")));
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64);
        if !certificate.is_valid(now) {
            tracing::warn!("the certificate of `{name}` is served although it is not valid now: see its dates");
        }
        Ok(cert)
    }

    /// Reads the file that a row names, if it names one.
    fn file(&self, row: &[u8]) -> Result<Option<Zeroizing<Vec<u8>>>, String> {
        let Some(path) = row.strip_prefix(b"file:") else { return Ok(None) };
        let Some(folder) = &self.settings.folder else {
            return Err("it names a file, and tls.lookup.folder permits none".to_owned());
        };
        let path = std::str::from_utf8(path).map_err(|_| "it names no file: its path is not text".to_owned())?.trim();
        if path.starts_with('/') || !is_plain(&format!("/{path}")) {
            return Err("it names no file: expected a path below tls.lookup.folder, without `..`".to_owned());
        }
        let path = folder.join(path);
        match std::fs::metadata(&path) {
            Ok(found) if found.len() > 1 << 20 => return Err("its file has more than 1 MiB".to_owned()),
            _ => {}
        }
        match std::fs::read(&path) {
            Ok(text) => Ok(Some(Zeroizing::new(text))),
            Err(error) => Err(format!("cannot read `{}`: {error}", path.display())),
        }
    }
}

/// A look-up under way. Dropping it answers all who wait, however it ends.
struct Flight {
    inner: Arc<Inner>,
    name: Box<str>,
    result: Option<Found>,
}

impl Drop for Flight {
    fn drop(&mut self) {
        let waiting = {
            let mut state = self.inner.locked();
            let waiting = state.flights.remove(&self.name).unwrap_or_default();
            if state.flights.is_empty() {
                // Without this, the table would keep its size after a burst.
                state.flights.shrink_to(64);
            }
            waiting
        };
        let result = self.result.take().unwrap_or(Err(Miss::Down));
        for waiter in waiting {
            let _ = waiter.send(result.clone());
        }
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX / 4)
}
