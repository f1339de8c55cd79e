//! A look-up: from a key to an answer, through the tiers.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::answer::{Answer, Failure, Outcome, StoreError, Tier};
use crate::clock;
use crate::counts::{Counter, LookupCounts, Tally};
use crate::explain::{self, Explanation};
use crate::fly;
use crate::memory::{Memory, MemoryResult, StoreAnswer};
use crate::settings::{LookupSettings, StoreKind};
use crate::stores::{StartError, Stores};
use crate::user::StoreUser;
use crate::value::Targets;

/// A look-up that all cores share. Cloning it is cheap; clones share everything.
#[derive(Clone, Debug)]
pub struct Lookup(Arc<Shared>);

/// The result of [`Lookup::get`].
#[derive(Debug)]
pub enum LookupResult {
    /// The answer was in memory.
    Now(Answer),
    /// The stores are being asked.
    Later(PendingAnswer),
}

/// A pending answer, which arrives after [`LookupSettings::wait`] at the latest. Poll it on a tokio runtime with its
/// timer. Dropping it does not stop the request to the stores: later look-ups use its answer.
pub struct PendingAnswer(Pin<Box<dyn Future<Output = Answer> + Send>>);

impl Lookup {
    /// Starts a look-up in these stores.
    ///
    /// # Errors
    /// All mistakes in the settings, or a missing store.
    pub fn start(settings: LookupSettings, stores: &Stores) -> Result<Self, StartError> {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let errors = settings.validate();
        if !errors.is_empty() {
            return Err(StartError::Settings(errors.into_iter().map(|error| (settings.name.clone(), error)).collect()));
        }
        let memcached = settings.memcached.as_ref().map(|tier| tier.store.as_str());
        let sql = settings.sql.as_ref().map(|tier| tier.store.as_str());
        let no_store = |expected, store: &str| StartError::NoStore {
            lookup: settings.name.clone(),
            expected,
            store: store.to_owned(),
        };
        if let Some(store) =
            memcached.filter(|store| !stores.has(store, |kind| matches!(kind, StoreKind::Memcached(_))))
        {
            return Err(no_store("memcached", store));
        }
        if let Some(store) = sql.filter(|store| !stores.has(store, |kind| matches!(kind, StoreKind::Sql(_)))) {
            return Err(no_store("sql", store));
        }
        Ok(Lookup(Arc::new(Shared {
            number: NUMBERS.fetch_add(1, Relaxed),
            memory: settings.memory.clone().map(Memory::new),
            memcached_store: memcached.map(Into::into),
            sql_store: sql.map(Into::into),
            query: settings.sql.as_ref().map_or("", |tier| &tier.query).into(),
            user: StoreUser::Lookup(settings.name.as_str().into()),
            stores: Mutex::new(stores.clone()),
            settings,
            waiting: AtomicUsize::new(0),
            last_failure: Mutex::new(None),
            memcached: Tally::default(),
            sql: Tally::default(),
            asked: Counter::default(),
            joined: Counter::default(),
            overloaded: Counter::default(),
            overdue: Counter::default(),
            stale: Counter::default(),
            keys_in_flight: AtomicU64::new(0),
        })))
    }

    /// Looks up a key in canonical form (see [`crate::key`]), from any thread. A hit in memory allocates nothing.
    #[inline]
    pub fn get(&self, key: &str) -> LookupResult {
        let mut expired = None;
        if let Some(memory) = &self.0.memory {
            match memory.find(key, clock::now) {
                MemoryResult::Fresh { answer, refresh } => {
                    if refresh {
                        self.refresh(key);
                    }
                    return LookupResult::Now(answer);
                }
                MemoryResult::Expired { targets, age, ask: false } => {
                    return LookupResult::Now(self.0.stale(targets, age));
                }
                MemoryResult::Expired { targets, age, ask: true } => expired = Some((targets, age)),
                MemoryResult::Missing => {}
            }
        }
        self.ask(key, expired)
    }

    /// Returns the value of a key as the stores have it, uninterpreted: from memcached, or else from SQL, whose value
    /// is
    /// written back. For users that interpret and cache values themselves: the memory tier takes no part, and nothing
    /// deduplicates requests.
    ///
    /// # Errors
    /// A failure of the stores, or no answer within [`LookupSettings::wait`].
    pub async fn value(&self, key: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let (shared, key): (_, Box<str>) = (Arc::clone(&self.0), key.into());
        shared.asked.more();
        let asked = self.0.stores().run(move |thread| fly::value(thread, shared, key));
        match timeout(self.0.settings.wait, asked).await {
            Ok(answered) => answered.unwrap_or_else(|| Err(self.0.error(Failure::Closed))),
            Err(_) => {
                self.0.overdue.more();
                Err(self.0.error(Failure::Timeout))
            }
        }
    }

    /// Prepares the query in the database without running it: `None` without an SQL tier. Logs nothing, and does not
    /// affect the breaker.
    ///
    /// # Errors
    /// In the result: [`Failure::Refused`] if the database refuses the query; any other failure if the trial itself
    /// failed.
    pub async fn try_query(&self) -> Option<Result<(), StoreError>> {
        let name = self.0.sql_store.clone()?;
        let (stores, query) = (self.0.stores(), Arc::clone(&self.0.query));
        let number = stores.number();
        let asked = stores.run(move |thread| {
            let store = thread.sql(number, &name);
            async move { store?.try_out(&query).await }
        });
        Some(asked.await.unwrap_or_else(|| Err(self.0.error(Failure::Closed))))
    }

    /// Runs [`try_query`](Self::try_query) in the background, and logs a refused query or a failed trial.
    pub fn tell_trial(&self) {
        let Some(name) = self.0.sql_store.clone() else { return };
        let (stores, query, lookup) = (self.0.stores(), Arc::clone(&self.0.query), self.0.settings.name.clone());
        let number = stores.number();
        stores.job(move |thread| {
            let Ok(store) = thread.sql(number, &name) else { return };
            tokio::task::spawn_local(async move {
                match store.try_out(&query).await {
                    Ok(()) => {}
                    Err(error) if matches!(error.failure, Failure::Refused(_)) => {
                        // So that the first request does not log it again.
                        store.remember(&query, &error.failure);
                        tracing::warn!("the query of the look-up `{lookup}` is of no use: {error}");
                    }
                    Err(error) => tracing::warn!("the query of the look-up `{lookup}` could not be tried: {error}"),
                }
            });
        });
    }

    /// Replaces the stores by others with the same names and kinds. Entries in memory stay.
    pub fn set_stores(&self, stores: &Stores) {
        let before = std::mem::replace(&mut *self.0.locked_stores(), stores.clone());
        drop(before);
    }

    /// Stores targets in memory, as if a store had just returned them, for a warm start. Does nothing without a memory
    /// tier.
    pub fn keep(&self, key: &str, targets: Targets) {
        if let Some(memory) = &self.0.memory {
            let said = StoreAnswer::Targets(targets);
            memory.keep(key, &said, Tier::Memory, clock::now(), fastrand::f64(), memory.purges());
        }
    }

    /// Explains a key: returns the state of every tier, and asks the stores. For operators.
    pub async fn explain(&self, key: &str) -> Explanation {
        explain::explain(&self.0, key).await
    }

    /// Removes a key from memory, and returns whether it was there. Answers of look-ups under way are not kept.
    pub fn purge(&self, key: &str) -> bool {
        self.0.memory.as_ref().is_some_and(|memory| memory.purge(key))
    }

    /// Removes a key from memory and memcached, and returns whether either had it.
    ///
    /// # Errors
    /// memcached could not delete the key. Memory has forgotten it.
    pub async fn purge_everywhere(&self, key: &str) -> Result<bool, StoreError> {
        let Some(tier) = &self.0.settings.memcached else { return Ok(self.purge(key)) };
        let deleted = self.0.stores().memcached(&tier.store)?.delete(crate::memcached::key_of(&tier.prefix, key)).await;
        // Last, so that no look-up fetches the old value from memcached in between.
        Ok(self.purge(key) | deleted?)
    }

    /// Removes all keys with this prefix from memory, and returns how many. The empty prefix removes all.
    pub fn purge_prefix(&self, prefix: &str) -> usize {
        self.0.memory.as_ref().map_or(0, |memory| memory.purge_prefix(prefix))
    }

    /// Returns the settings.
    pub fn settings(&self) -> &LookupSettings {
        &self.0.settings
    }

    /// Returns the counts. Visits every shard of memory, so call it for monitoring, not for every request.
    pub fn counts(&self) -> LookupCounts {
        let shared = &self.0;
        LookupCounts {
            memory: shared.memory.as_ref().map(Memory::counts).unwrap_or_default(),
            memcached: shared.memcached.counts(),
            sql: shared.sql.counts(),
            asked: shared.asked.get(),
            joined: shared.joined.get(),
            overloaded: shared.overloaded.get(),
            overdue: shared.overdue.get(),
            stale: shared.stale.get(),
            keys_in_flight: shared.keys_in_flight.load(Relaxed),
        }
    }

    /// Asks the stores in the background.
    #[cold]
    fn refresh(&self, key: &str) {
        let (shared, key): (_, Box<str>) = (Arc::clone(&self.0), key.into());
        shared.asked.more();
        self.0.stores().job(move |thread| fly::ask(thread, &shared, key, None));
    }

    /// Asks the stores, or returns the reason why not.
    #[cold]
    fn ask(&self, key: &str, expired: Option<(Targets, Duration)>) -> LookupResult {
        let shared = Arc::clone(&self.0);
        shared.asked.more();
        if shared.waiting.fetch_add(1, Relaxed) >= shared.settings.waiting {
            shared.waiting.fetch_sub(1, Relaxed);
            shared.overloaded.more();
            return LookupResult::Now(shared.or_stale(Outcome::Overloaded, expired));
        }
        let (answer, answered) = oneshot::channel();
        let waiter = Waiter { answer: Some(answer), shared: Arc::clone(&shared) };
        let (asking, key): (_, Box<str>) = (Arc::clone(&shared), key.into());
        self.0.stores().job(move |thread| fly::ask(thread, &asking, key, Some(waiter)));
        LookupResult::Later(PendingAnswer(Box::pin(async move {
            let failure = match timeout(shared.settings.wait, answered).await {
                Ok(Ok(Answer { outcome: outcome @ (Outcome::StoreDown(_) | Outcome::Overloaded), .. })) => outcome,
                Ok(Ok(answer)) => return answer,
                Ok(Err(_)) => Outcome::StoreDown(shared.error(Failure::Closed)),
                Err(_) => {
                    shared.overdue.more();
                    Outcome::StoreDown(shared.error(Failure::Timeout))
                }
            };
            shared.or_stale(failure, expired)
        })))
    }
}

impl LookupResult {
    /// Waits for the answer if necessary.
    pub async fn answer(self) -> Answer {
        match self {
            LookupResult::Now(answer) => answer,
            LookupResult::Later(later) => later.await,
        }
    }
}

impl Future for PendingAnswer {
    type Output = Answer;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Answer> {
        self.0.as_mut().poll(cx)
    }
}

impl fmt::Debug for PendingAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PendingAnswer")
    }
}

/// State that clones of a look-up and its requests under way share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) number: u64,
    pub(crate) settings: LookupSettings,
    pub(crate) memory: Option<Memory>,
    stores: Mutex<Stores>,
    pub(crate) memcached_store: Option<Arc<str>>,
    pub(crate) sql_store: Option<Arc<str>>,
    pub(crate) query: Arc<str>,
    /// The user whose breaker counts.
    pub(crate) user: StoreUser,
    waiting: AtomicUsize,
    last_failure: Mutex<Option<StoreError>>,
    pub(crate) memcached: Tally,
    pub(crate) sql: Tally,
    asked: Counter,
    pub(crate) joined: Counter,
    pub(crate) overloaded: Counter,
    overdue: Counter,
    stale: Counter,
    pub(crate) keys_in_flight: AtomicU64,
}

impl Shared {
    /// Returns the current stores.
    pub(crate) fn stores(&self) -> Stores {
        self.locked_stores().clone()
    }

    fn locked_stores(&self) -> MutexGuard<'_, Stores> {
        self.stores.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Falls back to the expired targets, if there are any; otherwise returns `outcome`.
    fn or_stale(&self, outcome: Outcome, expired: Option<(Targets, Duration)>) -> Answer {
        match (expired, outcome) {
            (Some((targets, age)), Outcome::StoreDown(error)) => {
                self.failed(&error);
                self.stale(targets, age)
            }
            (Some((targets, age)), _) => {
                self.failed(&self.error(Failure::Busy));
                self.stale(targets, age)
            }
            (None, outcome) => Answer { outcome, tier: Tier::None, age: Duration::ZERO, ttl_left: Duration::ZERO },
        }
    }

    fn stale(&self, targets: Targets, age: Duration) -> Answer {
        self.stale.more();
        let last = self.last_failure.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let error = last.unwrap_or_else(|| self.error(Failure::Timeout));
        Answer { outcome: Outcome::Stale(targets, error), tier: Tier::Memory, age, ttl_left: Duration::ZERO }
    }

    /// Remembers the last failure of the stores.
    pub(crate) fn failed(&self, error: &StoreError) {
        *self.last_failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.clone());
    }

    /// Returns a failure of the last store, which is authoritative.
    pub(crate) fn error(&self, failure: Failure) -> StoreError {
        let store = self.sql_store.as_ref().or(self.memcached_store.as_ref());
        StoreError { store: store.map_or_else(|| "".into(), Arc::clone), failure }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let number = self.number;
        self.stores().job(move |thread| drop(thread.flights.borrow_mut().remove(&number)));
    }
}

/// A waiter for an answer, counted while it waits.
#[derive(Debug)]
pub(crate) struct Waiter {
    answer: Option<oneshot::Sender<Answer>>,
    shared: Arc<Shared>,
}

impl Waiter {
    pub(crate) fn answer(mut self, answer: Answer) {
        let to = self.answer.take();
        // Ends the count before the waiter gets its answer.
        drop(self);
        if let Some(to) = to {
            let _ = to.send(answer); // it may have gone
        }
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.shared.waiting.fetch_sub(1, Relaxed);
    }
}
