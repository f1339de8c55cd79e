//! The interface: starts a worker, learns of wanted names, finds other machines' answers, counts.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc as std_mpsc};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use oroshi_certificates::{Challenges, Issuer, PendingAnswer, Seal};
use oroshi_lookup::{Lookup, StoreError, Stores};
use oroshi_net::Shutdown;
use rustls::sign::CertifiedKey;
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::{Notify, mpsc};

use crate::answers::FoundAnswers;
use crate::authority::tls_id;
use crate::http::Http;
use crate::material::{digest_of, proof};
use crate::schedule::seconds;
use crate::settings::{AcmeSettings, dns_name};
use crate::store::Store;
use crate::worker::Worker;

/// The most names that wait for their check.
const WANTED: usize = 1000;

/// How long the end waits for locks to be released.
const END: Duration = Duration::from_secs(3);

/// What ACME uses of its process.
pub struct Tools {
    /// The stores, one of which the settings name.
    pub stores: Stores,
    /// The URL of that store, which names the kind of database.
    pub store_url: String,
    /// The look-up that allows names, if the settings name one.
    pub lookup: Option<Lookup>,
    /// Seals chains with their keys before they are written.
    pub seal: Option<Seal>,
    /// Where answers to challenges are entered.
    pub challenges: Arc<Challenges>,
    /// Called with each name that has a new certificate in the store.
    pub issued: Box<dyn Fn(&str) + Send>,
}

/// Why ACME did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Name a configured SQL store.
    #[error("ACME needs the SQL store `{0}`: {1}")]
    Store(String, StoreError),
    /// The settings of the client to the authority.
    #[error("cannot make the client to the authority: {0}")]
    Client(#[from] oroshi_client::BuildError),
    /// Check the system's limits on threads and memory.
    #[error("cannot start the thread of ACME: {0}")]
    Thread(#[from] io::Error),
}

/// What happened so far on this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AcmeCounts {
    /// Orders that began.
    pub orders: u64,
    /// Certificates that were issued and written.
    pub issued: u64,
    /// Orders that failed because of the name.
    pub failed: u64,
    /// Attempts that failed because of the authority, the account or the store.
    pub troubles: u64,
    /// Orders and names that wait because of the limits.
    pub limited: u64,
    /// Names of clients that the look-up does not allow.
    pub refused: u64,
    /// Orders under way.
    pub under_way: u64,
    /// Until when this machine leaves the authority alone, in seconds since 1970; 0: it does not.
    pub paused_until: i64,
    /// When the next name is due, in seconds since 1970; 0: none is, or it is not known.
    pub next_due: i64,
    /// The latest failure, if there was one since the latest success.
    pub last_error: Option<String>,
}

/// A running client of ACME. Dropping it ends orders under way, and releases their locks.
pub struct Acme {
    settings: AcmeSettings,
    shared: Arc<Shared>,
    wanted: mpsc::Sender<Box<str>>,
    begin: Arc<Notify>,
    stop: Shutdown,
    ended: Mutex<std_mpsc::Receiver<()>>,
    is_ended: AtomicBool,
}

/// When the worker begins and ends.
#[derive(Clone)]
pub(crate) struct Running {
    begin: Arc<Notify>,
    stop: Shutdown,
    shutdown: Shutdown,
}

impl Running {
    /// Waits for the begin. False: the end came first.
    pub(crate) async fn begun(&self) -> bool {
        tokio::select! {
            biased;
            () = self.ended() => false,
            () = self.begin.notified() => true,
        }
    }

    /// Waits for the end.
    pub(crate) async fn ended(&self) {
        tokio::select! {
            () = self.stop.reached(1) => {}
            () = self.shutdown.reached(1) => {}
        }
    }
}

/// State that the worker and the serving threads share.
pub(crate) struct Shared {
    store: Mutex<Store>,
    pub(crate) orders: AtomicU64,
    pub(crate) issued: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) troubles: AtomicU64,
    pub(crate) limited: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) under_way: AtomicU64,
    pub(crate) paused_until: AtomicI64,
    pub(crate) next_due: AtomicI64,
    pub(crate) last_error: Mutex<Option<String>>,
    found: FoundAnswers,
}

impl Shared {
    pub(crate) fn store(&self) -> Store {
        locked(&self.store).clone()
    }
}

impl Acme {
    /// Starts a thread that orders and renews after [`Acme::begin`], until `shutdown`. It creates the tables and the
    /// account when it first needs them.
    ///
    /// # Errors
    /// There is no such store, or the thread does not start.
    pub fn start(settings: AcmeSettings, tools: Tools, shutdown: &Shutdown) -> Result<Arc<Self>, StartError> {
        let Tools { stores, store_url, lookup, seal, challenges, issued } = tools;
        let sql = stores.sql(&settings.store).map_err(|error| StartError::Store(settings.store.clone(), error))?;
        let (found, sender) = FoundAnswers::new();
        let shared = Arc::new(Shared {
            store: Mutex::new(Store::new(sql, &store_url)),
            orders: AtomicU64::new(0),
            issued: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            troubles: AtomicU64::new(0),
            limited: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            under_way: AtomicU64::new(0),
            paused_until: AtomicI64::new(0),
            next_due: AtomicI64::new(0),
            last_error: Mutex::new(None),
            found,
        });
        let http = Http::new(&settings.roots)?;
        let worker =
            Worker { settings: settings.clone(), shared: Arc::clone(&shared), lookup, seal, challenges, issued, http };
        let (wanted, names) = mpsc::channel(WANTED);
        let (begin, stop) = (Arc::new(Notify::new()), Shutdown::new());
        let (end, ended) = std_mpsc::channel();
        let runtime = || Builder::new_current_thread().enable_time().build_local(LocalOptions::default());
        let (ready, is_ready) = std_mpsc::channel();
        let reader = Arc::clone(&shared);
        let running = Running { begin: Arc::clone(&begin), stop: stop.clone(), shutdown: shutdown.clone() };
        std::thread::Builder::new().name("oroshi-acme".to_owned()).spawn(move || {
            match runtime() {
                Ok(runtime) => {
                    let _ = ready.send(Ok(())); // `start` waits for it
                    runtime.block_on(async {
                        tokio::select! {
                            () = reader.found.read_all(sender, || reader.store(), unix_now) => {}
                            () = worker.run(names, running) => {}
                        }
                    });
                }
                Err(error) => drop(ready.send(Err(error))),
            }
            drop(end);
        })?;
        is_ready.recv().unwrap_or_else(|_| Err(io::Error::other("it ended at once")))?;
        let (ended, is_ended) = (Mutex::new(ended), AtomicBool::new(false));
        Ok(Arc::new(Acme { settings, shared, wanted, begin, stop, ended, is_ended }))
    }

    /// Lets the thread order. Before that it does nothing, so that a plan that is not put in force orders nothing.
    pub fn begin(&self) {
        self.begin.notify_one();
    }

    /// Returns the settings.
    #[must_use]
    pub fn settings(&self) -> &AcmeSettings {
        &self.settings
    }

    /// Replaces the stores by others with the same names and kinds.
    ///
    /// # Errors
    /// There is no such store; the one before stays.
    pub fn set_stores(&self, stores: &Stores, store_url: &str) -> Result<(), StartError> {
        let wrong = |error| StartError::Store(self.settings.store.clone(), error);
        *locked(&self.shared.store) = Store::new(stores.sql(&self.settings.store).map_err(wrong)?, store_url);
        Ok(())
    }

    /// Ends orders under way and releases their locks, within 3 s. Blocks meanwhile.
    pub fn end(&self) {
        self.stop.request();
        if !self.is_ended.swap(true, Relaxed) {
            // The sender is dropped at the thread's end.
            let _ = locked(&self.ended).recv_timeout(END);
        }
    }

    /// Returns the counts.
    #[must_use]
    pub fn counts(&self) -> AcmeCounts {
        let shared = &self.shared;
        let paused_until = shared.paused_until.load(Relaxed);
        AcmeCounts {
            orders: shared.orders.load(Relaxed),
            issued: shared.issued.load(Relaxed),
            failed: shared.failed.load(Relaxed),
            troubles: shared.troubles.load(Relaxed),
            limited: shared.limited.load(Relaxed),
            refused: shared.refused.load(Relaxed),
            under_way: shared.under_way.load(Relaxed),
            paused_until: if paused_until > unix_now() { paused_until } else { 0 },
            next_due: shared.next_due.load(Relaxed),
            last_error: locked(&shared.last_error).clone(),
        }
    }
}

impl Issuer for Acme {
    fn wanted(&self, name: &str) {
        // Without a look-up, only the names of the settings are allowed, and these are in the table already.
        if self.settings.lookup.is_none() {
            return;
        }
        if let Some(name) = dns_name(name)
            && self.wanted.try_send(name.into()).is_err()
        {
            self.shared.limited.fetch_add(1, Relaxed);
        }
    }

    fn http_answer(&self, token: &str) -> Option<PendingAnswer<String>> {
        // At least 128 bits in base64url (RFC 8555, section 8.1).
        let is_coded = token.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'));
        if !is_coded || !(22..=200).contains(&token.len()) {
            return None;
        }
        let (shared, token) = (Arc::clone(&self.shared), token.to_owned());
        Some(Box::pin(async move { shared.found.find(&token).await }))
    }

    fn tls_answer(&self, name: &str) -> Option<PendingAnswer<Arc<CertifiedKey>>> {
        let name = dns_name(name)?;
        let shared = Arc::clone(&self.shared);
        Some(Box::pin(async move {
            let digest = digest_of(&shared.found.find(&tls_id(&name)).await?)?;
            let (certificate, key) = proof(&name, &digest).ok()?;
            let key = rustls::crypto::ring::sign::any_supported_type(&key).ok()?;
            Some(Arc::new(CertifiedKey::new(vec![certificate], key)))
        }))
    }
}

impl Drop for Acme {
    fn drop(&mut self) {
        self.end();
    }
}

impl fmt::Debug for Acme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acme").field("directory", &self.settings.directory).finish_non_exhaustive()
    }
}

impl fmt::Debug for Tools {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tools")
    }
}

pub(crate) fn locked<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn unix_now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, seconds)
}
