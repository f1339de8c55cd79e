//! The stores that look-ups and scripts share: one thread owns all connections to them.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::future::Future;
use std::io;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use oroshi_words::Mistake;
use tokio::runtime::{Builder, LocalOptions, LocalRuntime};
use tokio::sync::{mpsc, oneshot};
use tokio::task::spawn_local;

use crate::answer::{Failure, StoreError};
use crate::flight::Flights;
use crate::lookup::Waiter;
use crate::memcached::{Change, Memcached, ServerState};
use crate::settings::{StoreKind, StoreSettings};
use crate::sql::{Rows, Sql, SqlState, Value};
use crate::user::StoreUser;

/// The stores, by name. Clones share the same stores; the thread ends with the last clone and the last handle.
#[derive(Clone)]
pub struct Stores(Arc<StoreSet>);

/// The stores of one configuration. Other configurations may be in use on the same thread.
struct StoreSet {
    number: u64,
    jobs: mpsc::UnboundedSender<Job>,
    settings: Mutex<Vec<StoreSettings>>,
}

/// A job for the stores' thread.
type Job = Box<dyn FnOnce(&Rc<ThreadState>) + Send>;

/// Why stores or a look-up could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Correct the settings.
    #[error("{}", Settings(.0))]
    Settings(Vec<(String, Mistake)>),
    /// Give each store a name of its own.
    #[error("two stores are called `{0}`: expected a name for each")]
    SameName(String),
    /// Name an existing store of the right kind.
    #[error("`{lookup}` asks the {expected} store `{store}`, and there is none of this name and kind")]
    NoStore {
        /// The look-up.
        lookup: String,
        /// `memcached` or `sql`.
        expected: &'static str,
        /// The store that it names.
        store: String,
    },
    /// Check the system's limits on threads and memory.
    #[error("cannot start the stores' thread: {0}")]
    Thread(#[source] io::Error),
}

struct Settings<'a>(&'a [(String, Mistake)]);

impl fmt::Display for Settings<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (name, error)) in self.0.iter().enumerate() {
            let comma = if index > 0 { "; " } else { "" };
            write!(f, "{comma}{name}: {error}")?;
        }
        Ok(())
    }
}

/// The state of a store.
#[derive(Clone, Debug, PartialEq)]
pub enum StoreState {
    /// The state of each memcached server.
    Memcached(Vec<ServerState>),
    /// The state of a database.
    Sql(SqlState),
}

impl Stores {
    /// Starts the thread. Connections are opened on demand.
    ///
    /// # Errors
    /// All mistakes in the settings, or a failure to start the thread.
    pub fn start(stores: Vec<StoreSettings>) -> Result<Self, StartError> {
        validate(&stores)?;
        let (jobs, work) = mpsc::unbounded_channel();
        let runtime = || -> io::Result<LocalRuntime> {
            Builder::new_current_thread().enable_io().enable_time().build_local(LocalOptions::default())
        };
        let (ready, is_ready) = std::sync::mpsc::channel();
        let thread = move || match runtime() {
            Ok(runtime) => {
                let _ = ready.send(Ok(())); // `start` waits for it
                runtime.block_on(serve(work));
            }
            Err(error) => drop(ready.send(Err(error))),
        };
        std::thread::Builder::new().name("oroshi-stores".to_owned()).spawn(thread).map_err(StartError::Thread)?;
        let ended = || Err(io::Error::other("it ended at once"));
        is_ready.recv().unwrap_or_else(|_| ended()).map_err(StartError::Thread)?;
        Ok(Stores::new(jobs, stores, None))
    }

    /// Creates another set of stores beside this one, on the same thread; the two are independent. Stores with
    /// unchanged settings are shared, with their connections. A store ends when neither set needs it.
    ///
    /// # Errors
    /// All mistakes in the settings.
    pub fn beside(&self, stores: Vec<StoreSettings>) -> Result<Self, StartError> {
        validate(&stores)?;
        Ok(Stores::new(self.0.jobs.clone(), stores, Some(self.0.number)))
    }

    fn new(jobs: mpsc::UnboundedSender<Job>, settings: Vec<StoreSettings>, before: Option<u64>) -> Self {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let number = NUMBERS.fetch_add(1, Relaxed);
        let stores = Stores(Arc::new(StoreSet { number, jobs, settings: Mutex::new(settings.clone()) }));
        stores.job(move |thread| thread.set(number, settings, before));
        stores
    }

    /// Applies new settings. Stores with unchanged settings keep their connections; requests to other stores are ended.
    ///
    /// # Errors
    /// All mistakes in the settings; then nothing changes.
    pub fn update(&self, stores: Vec<StoreSettings>) -> Result<(), StartError> {
        validate(&stores)?;
        self.locked().clone_from(&stores);
        let number = self.0.number;
        self.job(move |thread| thread.set(number, stores, Some(number)));
        Ok(())
    }

    /// Returns the memcached store of this name, usable while it is configured.
    ///
    /// # Errors
    /// There is no such store.
    pub fn memcached(&self, name: &str) -> Result<MemcachedStore, StoreError> {
        let known = self.has(name, |kind| matches!(kind, StoreKind::Memcached(_)));
        let name: Arc<str> = name.into();
        if known { Ok(MemcachedStore { stores: self.clone(), name }) } else { Err(unknown(&name)) }
    }

    /// Returns the SQL store of this name, usable while it is configured.
    ///
    /// # Errors
    /// There is no such store.
    pub fn sql(&self, name: &str) -> Result<SqlStore, StoreError> {
        let known = self.has(name, |kind| matches!(kind, StoreKind::Sql(_)));
        let name: Arc<str> = name.into();
        if known {
            Ok(SqlStore { stores: self.clone(), name, user: StoreUser::Script("".into()) })
        } else {
            Err(unknown(&name))
        }
    }

    /// Returns the state of each store, in the order of the settings.
    pub async fn states(&self) -> Vec<(String, StoreState)> {
        let names: Vec<String> = self.locked().iter().map(|store| store.name.clone()).collect();
        let number = self.0.number;
        let state = move |thread: Rc<ThreadState>| async move {
            names.into_iter().filter_map(|name| Some((name.clone(), thread.store(number, &name)?.state()))).collect()
        };
        self.run(state).await.unwrap_or_default()
    }

    pub(crate) fn has(&self, name: &str, wanted: impl Fn(&StoreKind) -> bool) -> bool {
        self.locked().iter().any(|store| store.name == name && wanted(&store.kind))
    }

    /// Runs a job on the stores' thread.
    pub(crate) fn job(&self, job: impl FnOnce(&Rc<ThreadState>) + Send + 'static) {
        let _ = self.0.jobs.send(Box::new(job)); // the thread lives for as long as this does, unless it has panicked
    }

    /// Runs a future on the stores' thread. It continues if the returned future is dropped; `None` if the thread has
    /// ended.
    pub(crate) fn run<T: Send + 'static, F: Future<Output = T> + 'static>(
        &self,
        work: impl FnOnce(Rc<ThreadState>) -> F + Send + 'static,
    ) -> impl Future<Output = Option<T>> + Send + 'static {
        let (answer, answered) = oneshot::channel();
        self.job(move |thread| {
            let work = work(Rc::clone(thread));
            spawn_local(async move { drop(answer.send(work.await)) });
        });
        async move { answered.await.ok() }
    }

    /// The number by which the thread knows this set.
    pub(crate) fn number(&self) -> u64 {
        self.0.number
    }

    fn locked(&self) -> std::sync::MutexGuard<'_, Vec<StoreSettings>> {
        self.0.settings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for StoreSet {
    fn drop(&mut self) {
        let number = self.number;
        let _ = self.jobs.send(Box::new(move |thread| thread.forget(number))); // as in `job`
    }
}

impl fmt::Debug for Stores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stores").field("settings", &*self.locked()).finish_non_exhaustive()
    }
}

/// A memcached store, usable from any thread and runtime. Keys are used as they are, without a look-up's prefix.
#[derive(Clone, Debug)]
pub struct MemcachedStore {
    stores: Stores,
    name: Arc<str>,
}

impl MemcachedStore {
    /// Returns a key's value.
    ///
    /// # Errors
    /// A failure of the store, or an invalid key.
    pub async fn get(&self, key: impl Into<Vec<u8>>) -> Result<Option<Box<[u8]>>, StoreError> {
        let key = key.into();
        self.with(|store| async move { store.get(&key).await }).await
    }

    /// Sets a key's value, with a TTL of at least a second, or for ever with `None`.
    ///
    /// # Errors
    /// A failure of the store, or an invalid key or value.
    pub async fn set(
        &self,
        key: impl Into<Vec<u8>>,
        value: impl Into<Vec<u8>>,
        ttl: Option<Duration>,
    ) -> Result<(), StoreError> {
        let (key, value) = (key.into(), value.into());
        self.with(move |store| async move { store.set(&key, &value, ttl).await }).await
    }

    /// Deletes a key, and returns whether it existed.
    ///
    /// # Errors
    /// A failure of the store, or an invalid key.
    pub async fn delete(&self, key: impl Into<Vec<u8>>) -> Result<bool, StoreError> {
        let key = key.into();
        self.with(|store| async move { store.delete(&key).await }).await
    }

    /// Changes a key's value, also if other programs change it at the same time (`gets`, then `cas` or `add`). Changes
    /// of the same key that wait at the same time share these requests.
    ///
    /// # Errors
    /// A failure of the store, an invalid key, too many waiting changes, or too many other writers. Nothing may be
    /// concluded about the value.
    pub async fn update(&self, key: impl Into<Vec<u8>>, change: Change) -> Result<(), StoreError> {
        let (key, name, number) = (key.into(), Arc::clone(&self.name), self.stores.number());
        let work = self.stores.run(move |thread| {
            let store = thread.memcached(number, &name);
            async move { store?.update(&key, change).await }
        });
        work.await.unwrap_or_else(|| Err(closed(&self.name)))
    }

    async fn with<T, F>(&self, work: impl FnOnce(Rc<Memcached>) -> F + Send + 'static) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, StoreError>> + 'static,
    {
        let (name, number) = (Arc::clone(&self.name), self.stores.number());
        // Resolve the store before the set can be dropped, so that the request runs in any case.
        let work = self.stores.run(move |thread| {
            let store = thread.memcached(number, &name);
            async move {
                let store = store?;
                let _request = store.begin_script_request()?;
                work(Rc::clone(&store)).await
            }
        });
        work.await.unwrap_or_else(|| Err(closed(&self.name)))
    }
}

/// A database, usable from any thread and runtime.
#[derive(Clone, Debug)]
pub struct SqlStore {
    stores: Stores,
    name: Arc<str>,
    user: StoreUser,
}

impl SqlStore {
    /// Returns this store for a script: the results of its queries affect only that script's breaker.
    #[must_use]
    pub fn used_by(self, script: &str) -> Self {
        SqlStore { user: StoreUser::Script(script.into()), ..self }
    }

    /// Sends a query with its parameters (`?`, in PostgreSQL `$1`...), and returns its rows, within the limits of the
    /// settings. A query that begins with `SELECT` may be sent twice, if the connection broke; any other is sent once.
    ///
    /// # Errors
    /// A failure of the store, or an invalid query.
    pub async fn query(&self, query: impl Into<Arc<str>>, parameters: Vec<Value>) -> Result<Rows, StoreError> {
        let (name, query, number) = (Arc::clone(&self.name), query.into(), self.stores.number());
        let user = self.user.clone();
        let work = self.stores.run(move |thread| {
            let store = thread.sql(number, &name);
            async move { store?.query(&user, &query, &parameters).await }
        });
        work.await.unwrap_or_else(|| Err(closed(&self.name)))
    }
}

/// The stores of one set, by name.
type ByName = HashMap<Arc<str>, (StoreSettings, Store)>;

/// The state of the stores' thread.
#[derive(Default)]
pub(crate) struct ThreadState {
    /// Stores by the number of their set.
    stores: RefCell<HashMap<u64, ByName>>,
    /// Look-ups under way, by the number of their look-up.
    pub(crate) flights: RefCell<HashMap<u64, Flights<Option<Waiter>>>>,
}

#[derive(Clone)]
pub(crate) enum Store {
    Memcached(Rc<Memcached>),
    Sql(Rc<Sql>),
}

impl Store {
    fn state(&self) -> StoreState {
        match self {
            Store::Memcached(store) => StoreState::Memcached(store.state()),
            Store::Sql(store) => StoreState::Sql(store.state()),
        }
    }
}

impl ThreadState {
    pub(crate) fn memcached(&self, set: u64, name: &Arc<str>) -> Result<Rc<Memcached>, StoreError> {
        match self.store(set, name) {
            Some(Store::Memcached(store)) => Ok(store),
            _ => Err(unknown(name)),
        }
    }

    pub(crate) fn sql(&self, set: u64, name: &Arc<str>) -> Result<Rc<Sql>, StoreError> {
        match self.store(set, name) {
            Some(Store::Sql(store)) => Ok(store),
            _ => Err(unknown(name)),
        }
    }

    fn store(&self, set: u64, name: &str) -> Option<Store> {
        self.stores.borrow().get(&set)?.get(name).map(|(_, store)| store.clone())
    }

    /// Applies settings on the stores' thread, where stores must be created. Takes unchanged stores over from the set
    /// `before`.
    fn set(&self, set: u64, settings: Vec<StoreSettings>, before: Option<u64>) {
        let before = before.and_then(|before| self.stores.borrow().get(&before).cloned()).unwrap_or_default();
        let mut after = HashMap::new();
        for settings in settings {
            let name: Arc<str> = settings.name.as_str().into();
            let store = match before.get(&name) {
                Some((same, store)) if *same == settings => store.clone(),
                _ => match settings.kind.clone() {
                    StoreKind::Memcached(memcached) => {
                        Store::Memcached(Rc::new(Memcached::start(Arc::clone(&name), memcached)))
                    }
                    StoreKind::Sql(sql) => Store::Sql(Rc::new(Sql::new(Arc::clone(&name), sql))),
                },
            };
            after.insert(name, (settings, store));
        }
        let replaced = self.stores.borrow_mut().insert(set, after);
        drop(replaced);
    }

    fn forget(&self, set: u64) {
        let forgotten = self.stores.borrow_mut().remove(&set);
        drop(forgotten);
    }
}

async fn serve(mut work: mpsc::UnboundedReceiver<Job>) {
    let thread = Rc::new(ThreadState::default());
    while let Some(job) = work.recv().await {
        job(&thread);
    }
}

fn validate(stores: &[StoreSettings]) -> Result<(), StartError> {
    let mut names = HashSet::new();
    if let Some(twice) = stores.iter().find(|store| !names.insert(&store.name)) {
        return Err(StartError::SameName(twice.name.clone()));
    }
    let wrong = |store: &StoreSettings| {
        store.validate().into_iter().map(|error| (store.name.clone(), error)).collect::<Vec<_>>()
    };
    let errors: Vec<_> = stores.iter().flat_map(wrong).collect();
    if errors.is_empty() { Ok(()) } else { Err(StartError::Settings(errors)) }
}

fn unknown(name: &Arc<str>) -> StoreError {
    StoreError { store: Arc::clone(name), failure: Failure::Unknown }
}

fn closed(name: &Arc<str>) -> StoreError {
    StoreError { store: Arc::clone(name), failure: Failure::Closed }
}
