//! The check of clients' tokens, with keys that all threads share, and that are read again when their issuer changes
//! them.
//!
//! One task of the process reads the keys, so that any number of clients with a new key cause one request. Known keys
//! remain in use while their file or URL cannot be read.

use std::io::Read;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use oroshi_client::local::Client;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout};

use crate::jwt::keys::{Key, KeySet, SET_BYTES};
use crate::jwt::{Identity, TOKEN_RESULTS, TokenError, TokenResult, check};
use crate::plan::{Jwt, KeySource};

/// The longest time that a request for keys may take.
const FETCH_TIMEOUT: Duration = Duration::from_secs(5);

/// The shortest time between two readings because of unknown keys, so that forged tokens cause few.
const ASK_PAUSE: Duration = Duration::from_secs(10);

/// The pause after a failed reading. It doubles up to [`LONGEST_PAUSE`], or the time between two readings.
const FIRST_PAUSE: Duration = Duration::from_secs(1);

/// The longest pause after a failed reading.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// What a client is told while no key has been read.
pub(crate) const NO_KEYS: &str = "the keys that verify tokens cannot be read: try again in a second";

/// Checks tokens. One for all threads.
#[derive(Debug)]
pub(crate) struct Verifier {
    rules: Jwt,
    secret: Option<Key>,
    keys: Mutex<Keys>,
    /// How often keys were read, or could not be.
    readings: watch::Sender<u64>,
    /// Notified when keys are wanted at once.
    wanted: Notify,
    read: AtomicU64,
    failed: AtomicU64,
    results: [AtomicU64; TOKEN_RESULTS.len()],
}

#[derive(Debug, Default)]
struct Keys {
    set: Option<Arc<KeySet>>,
    /// When the set was read.
    since: Option<Instant>,
    /// When a token with an unknown key last had them read.
    asked: Option<Instant>,
    /// Whether they are being read.
    is_reading: bool,
    /// The last failure that was logged, and has not passed.
    trouble: Option<String>,
}

/// Why a client was not identified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// Its token is refused.
    Token(TokenError),
    /// No keys could be read yet. The client may try again.
    NoKeys,
}

/// The state of a [`Verifier`], for `/status` and metrics.
#[derive(Clone, Debug)]
pub(crate) struct VerifierCounts {
    /// Tokens by result, as in [`TOKEN_RESULTS`].
    pub(crate) tokens: [u64; TOKEN_RESULTS.len()],
    /// Usable keys, with the secret.
    pub(crate) keys: usize,
    /// The time since the set was read.
    pub(crate) age: Option<Duration>,
    /// Readings of the set that succeeded.
    pub(crate) read: u64,
    /// Readings that failed.
    pub(crate) failed: u64,
    /// Why the last reading failed.
    pub(crate) trouble: Option<String>,
}

impl Verifier {
    /// Creates a verifier that has read no keys yet.
    pub(crate) fn new(rules: Jwt) -> Self {
        Verifier {
            secret: rules.secret.as_ref().and_then(Key::secret),
            rules,
            keys: Mutex::default(),
            readings: watch::Sender::new(0),
            wanted: Notify::new(),
            read: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            results: Default::default(),
        }
    }

    /// Checks a token. If its key is unknown, waits for one reading of the keys.
    pub(crate) async fn verify(&self, token: &[u8]) -> Result<Identity, Refused> {
        let mut checked = self.check(token);
        if matches!(checked, Err(Refused::NoKeys | Refused::Token(TokenError::UnknownKey))) && self.read_again().await {
            checked = self.check(token);
        }
        let result = match checked {
            Ok(_) => TokenResult::Accepted,
            Err(Refused::Token(error)) => error.result(),
            Err(Refused::NoKeys) => TokenResult::NoKeys,
        };
        self.results[result as usize].fetch_add(1, Ordering::Relaxed);
        checked
    }

    /// Returns its counters and keys.
    pub(crate) fn counts(&self) -> VerifierCounts {
        let keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        VerifierCounts {
            tokens: self.results.each_ref().map(|count| count.load(Ordering::Relaxed)),
            keys: usize::from(self.secret.is_some()) + keys.set.as_ref().map_or(0, |set| set.all().len()),
            age: keys.since.map(|since| since.elapsed()),
            read: self.read.load(Ordering::Relaxed),
            failed: self.failed.load(Ordering::Relaxed),
            trouble: keys.trouble.clone(),
        }
    }

    /// Reads the keys, again and again, for as long as the hub lives. One task of the process runs this.
    pub(crate) async fn keep_reading(&self) {
        let Some(source) = &self.rules.keys else { return };
        let client = oroshi_client::Client::builder()
            .connections(1)
            .timeout(FETCH_TIMEOUT)
            .redirects(0)
            .collect_bytes(SET_BYTES as u64)
            .build_local()
            .unwrap_or_default();
        let mut pause = FIRST_PAUSE;
        loop {
            self.keys.lock().unwrap_or_else(PoisonError::into_inner).is_reading = true;
            let read = read(&client, source).await;
            let next = match &read {
                Ok(_) => {
                    pause = FIRST_PAUSE;
                    self.rules.refresh
                }
                Err(_) => {
                    let next = pause.min(self.rules.refresh);
                    pause = (pause * 2).min(LONGEST_PAUSE);
                    next
                }
            };
            self.store(read);
            let _ = timeout(next, self.wanted.notified()).await;
        }
    }

    fn check(&self, token: &[u8]) -> Result<Identity, Refused> {
        let keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner).set.clone();
        match check(token, self.secret.as_ref(), keys.as_deref(), &self.rules, unix_time()) {
            Err(TokenError::UnknownKey) if self.rules.keys.is_some() && keys.is_none() => Err(Refused::NoKeys),
            checked => checked.map_err(Refused::Token),
        }
    }

    /// Waits until the keys have been read once more. Returns false if that is not due.
    async fn read_again(&self) -> bool {
        let mut readings = self.readings.subscribe();
        {
            let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
            if self.rules.keys.is_none() {
                return false;
            }
            if !keys.is_reading {
                if keys.asked.is_some_and(|asked| asked.elapsed() < ASK_PAUSE) {
                    return false;
                }
                keys.asked = Some(Instant::now());
                keys.is_reading = true;
                self.wanted.notify_one();
            }
        }
        timeout(FETCH_TIMEOUT * 2, readings.changed()).await.is_ok()
    }

    fn store(&self, read: Result<KeySet, String>) {
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        keys.is_reading = false;
        match read {
            Ok(set) => {
                self.read.fetch_add(1, Ordering::Relaxed);
                if keys.set.is_none() || keys.trouble.is_some() {
                    tracing::info!(keys = set.all().len(), "the keys of clients' tokens were read");
                }
                (keys.set, keys.since, keys.trouble) = (Some(Arc::new(set)), Some(Instant::now()), None);
            }
            Err(why) => {
                self.failed.fetch_add(1, Ordering::Relaxed);
                // Once for each reason.
                if keys.trouble.as_ref() != Some(&why) {
                    let state =
                        if keys.set.is_some() { "the known ones remain in use" } else { "no token is accepted" };
                    tracing::warn!("the keys of clients' tokens cannot be read, {state}: {why}");
                }
                keys.trouble = Some(why);
            }
        }
        drop(keys);
        self.readings.send_modify(|count| *count += 1);
    }
}

/// Returns the time in seconds since 1970. It may jump, as tokens' times are those of clocks on walls.
pub(crate) fn unix_time() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

async fn read(client: &Client, source: &KeySource) -> Result<KeySet, String> {
    let (data, takes_secrets) = match source {
        KeySource::File(path) => {
            let mut data = Vec::new();
            let read =
                std::fs::File::open(path).and_then(|file| file.take(SET_BYTES as u64 + 1).read_to_end(&mut data));
            read.map_err(|error| format!("`{}`: {error}", path.display()))?;
            (data, true)
        }
        KeySource::Url(url) => {
            let request = client.get(url.as_str()).header("Accept", "application/jwk-set+json, application/json");
            let response = request.send().await.map_err(|error| error.to_string())?;
            if response.status() != 200 {
                return Err(format!("the server answers {}: expected 200", response.status()));
            }
            (response.bytes().await.map_err(|error| error.to_string())?, false)
        }
    };
    KeySet::read(&data, takes_secrets).map_err(|error| error.to_string())
}
