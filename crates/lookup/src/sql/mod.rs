//! A database: a few connections, opened on demand, each used by one query at a time.
//!
//! Each user has its own breaker, and scripts have a share of the connections, so that one user's queries do not affect
//! others. While a breaker is open, and after a timeout of a script's query, `watch` probes the store in the
//! background.
//!
//! sqlx speaks the protocols. We do not use its pool: after a timeout, that pool reads the rest of the answer before it
//! reuses the connection, however long that takes. We drop such a connection.

mod connection;
mod contained;
mod statement;
mod trial;
mod watch;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio::time::timeout;

pub(crate) use connection::parse_url;
pub use connection::{Rows, Value};
pub use contained::panics_are_contained;

use crate::answer::{Failure, StoreError};
use crate::breaker::{Breaker, State as BreakerState};
use crate::clock;
use crate::health::HealthChange;
use crate::settings::SqlSettings;
use crate::user::StoreUser;
use connection::{Bounds, Connection, Database, Secrets};
use contained::contained;

/// A database. It belongs to the stores' thread.
#[derive(Debug)]
pub(crate) struct Sql {
    name: Arc<str>,
    settings: SqlSettings,
    database: Database,
    /// Secrets that no message may show.
    secrets: Secrets,
    /// Permits for connections: for all, and for those that scripts may use.
    places: Semaphore,
    for_scripts: Semaphore,
    /// Queries that wait for a connection, of look-ups and of scripts.
    waiting: Cell<usize>,
    scripts_waiting: Cell<usize>,
    /// Last in, first out, so that as few as possible stay warm.
    idle: RefCell<Vec<Idle>>,
    users: RefCell<HashMap<StoreUser, Rc<Standing>>>,
    /// Whether a task watches the store, and whether a probe is under way.
    is_watched: Cell<bool>,
    is_asked: Cell<bool>,
    connects: Cell<u64>,
    queries: Cell<u64>,
    /// Refused queries that were logged.
    refusals: trial::Refusals,
}

/// The state of one user's queries.
#[derive(Debug)]
struct Standing {
    breaker: RefCell<Breaker>,
    /// Timeouts of a script's queries. A probe decides whether the store is at fault.
    timeouts: Cell<u32>,
}

#[derive(Debug)]
struct Idle {
    connection: Connection,
    since: u64,
}

/// The state of a database's connections, for operators.
#[derive(Clone, Debug, PartialEq)]
pub struct SqlState {
    /// The database, without user and password.
    pub database: String,
    /// The breaker's state: the most restrictive of its users' breakers.
    pub breaker: BreakerState,
    /// Connections in use.
    pub busy: usize,
    /// Idle connections.
    pub idle: usize,
    /// The maximum of connections.
    pub connections: usize,
    /// Queries that wait for a connection.
    pub waiting: usize,
    /// The number of connections opened so far.
    pub connects: u64,
    /// The number of queries sent so far.
    pub queries: u64,
}

/// See [`SqlSettings::objection`].
pub(crate) fn objection(settings: &SqlSettings, query: &str, parameters: usize) -> Option<String> {
    match parse_url(settings) {
        Ok(Database::Sqlite(_)) => statement::objection(query, parameters),
        _ => None,
    }
}

/// The idle time after which the server may have closed a connection. A query that must not be sent twice is sent after
/// a ping.
const PING_AFTER_MS: u64 = 1000;

impl Sql {
    /// Creates the store without connecting. The settings must be valid.
    pub(crate) fn new(name: Arc<str>, settings: SqlSettings) -> Self {
        let database = parse_url(&settings).expect("the settings are valid");
        Sql {
            name,
            places: Semaphore::new(settings.connections),
            for_scripts: Semaphore::new(settings.for_scripts()),
            secrets: Secrets::of(&settings),
            settings,
            database,
            waiting: Cell::new(0),
            scripts_waiting: Cell::new(0),
            idle: RefCell::default(),
            users: RefCell::default(),
            is_watched: Cell::new(false),
            is_asked: Cell::new(false),
            connects: Cell::new(0),
            queries: Cell::new(0),
            refusals: trial::Refusals::default(),
        }
    }

    /// Returns the first column of a query's first row, as bytes; `None`: no row, or NULL. The query only reads, so it
    /// may be sent twice.
    pub(crate) async fn look_up(
        self: &Rc<Self>,
        user: &StoreUser,
        query: &Arc<str>,
        key: &str,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        // Further rows stay unread.
        let bounds = Bounds { rows: 1, bytes: self.settings.row_bytes, first_only: true };
        let parameters = [Value::Text(key.to_owned())];
        let found = self.run(user, query, &parameters, bounds, true).await;
        self.note(query, found.as_ref().err().map(|error| &error.failure), clock::now());
        let rows = found?;
        Ok(rows.rows.into_iter().next().and_then(|row| row.into_iter().next()).and_then(Value::into_bytes))
    }

    /// Returns all rows of a query, within the limits of the settings.
    pub(crate) async fn query(
        self: &Rc<Self>,
        user: &StoreUser,
        query: &Arc<str>,
        parameters: &[Value],
    ) -> Result<Rows, StoreError> {
        if matches!(self.database, Database::Sqlite(_))
            && let Some(why) = statement::objection(query, parameters.len())
        {
            return Err(StoreError { store: Arc::clone(&self.name), failure: Failure::Refused(why.into()) });
        }
        let bounds = Bounds { rows: self.settings.rows, bytes: self.settings.row_bytes, first_only: false };
        let start = query.trim_start().get(..6).unwrap_or_default();
        self.run(user, query, parameters, bounds, start.eq_ignore_ascii_case("select")).await
    }

    pub(crate) fn state(&self) -> SqlState {
        SqlState {
            database: self.database.to_string(),
            breaker: match (self.has_open_breaker(), self.is_asked.get()) {
                (false, _) => BreakerState::Closed,
                (true, false) => BreakerState::Open,
                (true, true) => BreakerState::Probing,
            },
            busy: self.settings.connections - self.places.available_permits(),
            idle: self.idle.borrow().len(),
            connections: self.settings.connections,
            waiting: self.waiting.get() + self.scripts_waiting.get(),
            connects: self.connects.get(),
            queries: self.queries.get(),
        }
    }

    async fn run(
        self: &Rc<Self>,
        user: &StoreUser,
        query: &Arc<str>,
        parameters: &[Value],
        bounds: Bounds,
        reads: bool,
    ) -> Result<Rows, StoreError> {
        let error = |failure| StoreError { store: Arc::clone(&self.name), failure };
        let standing = self.standing(user);
        // Refuse now what the breaker would refuse later.
        if standing.breaker.borrow().is_open() {
            return Err(error(Failure::BreakerOpen));
        }
        let waiting = if user.is_script() { &self.scripts_waiting } else { &self.waiting };
        let _places = {
            if waiting.get() >= self.settings.pending {
                return Err(error(Failure::Busy));
            }
            let _waiting = Counted::new(waiting);
            let closed = |_| error(Failure::Closed);
            let share = if user.is_script() { Some(self.for_scripts.acquire().await.map_err(closed)?) } else { None };
            (share, self.places.acquire().await.map_err(closed)?)
        };
        if standing.breaker.borrow().is_open() {
            return Err(error(Failure::BreakerOpen));
        }
        // Queries that are dropped from here on count as timeouts.
        let verdict = Verdict { store: self, user, standing: &standing, failure: Some(Failure::Timeout) };
        let result =
            self.on_a_connection(query, parameters, bounds, reads).await.map_err(|failure| self.hidden(failure));
        verdict.is(result.as_ref().err());
        result.map_err(error)
    }

    fn standing(&self, user: &StoreUser) -> Rc<Standing> {
        if let Some(known) = self.users.borrow().get(user) {
            return Rc::clone(known);
        }
        let breaker = RefCell::new(Breaker::new(self.settings.breaker));
        let standing = Rc::new(Standing { breaker, timeouts: Cell::new(0) });
        self.users.borrow_mut().insert(user.clone(), Rc::clone(&standing));
        standing
    }

    /// Whether any user's breaker is open.
    fn has_open_breaker(&self) -> bool {
        self.users.borrow().values().any(|user| user.breaker.borrow().is_open())
    }

    async fn on_a_connection(
        &self,
        query: &Arc<str>,
        parameters: &[Value],
        bounds: Bounds,
        reads: bool,
    ) -> Result<Rows, Failure> {
        if let Some(Idle { mut connection, since }) = self.take_idle() {
            let fresh = clock::now() < since + PING_AFTER_MS;
            let alive = reads || fresh || self.in_time(connection.ping()).await.is_ok();
            if alive {
                match self.send(&mut connection, query, parameters, bounds).await {
                    // The server has closed the connection meanwhile, and most likely the other idle ones too.
                    Err(Failure::Lost(_)) if reads => self.idle.borrow_mut().clear(),
                    result => return self.done(connection, result),
                }
            }
        }
        let mut connection = self.connect().await?;
        let result = self.send(&mut connection, query, parameters, bounds).await;
        self.done(connection, result)
    }

    async fn connect(&self) -> Result<Connection, Failure> {
        let limit = self.settings.connect_timeout;
        let connecting = timeout(limit, contained(self.database.connect(self.settings.query_timeout * 2))).await;
        let overdue = || Failure::Connect(format!("not within {limit:?}").into());
        let connection = connecting.unwrap_or_else(|_| Err(overdue()))?;
        self.connects.set(self.connects.get() + 1);
        Ok(connection)
    }

    async fn send(
        &self,
        connection: &mut Connection,
        query: &Arc<str>,
        parameters: &[Value],
        bounds: Bounds,
    ) -> Result<Rows, Failure> {
        self.queries.set(self.queries.get() + 1);
        self.in_time(connection.query(query, parameters, bounds)).await
    }

    /// Keeps a reusable connection for the next query.
    fn done(&self, connection: Connection, result: Result<Rows, Failure>) -> Result<Rows, Failure> {
        if matches!(result, Ok(_) | Err(Failure::Refused(_))) {
            self.idle.borrow_mut().push(Idle { connection, since: clock::now() });
        }
        result
    }

    fn take_idle(&self) -> Option<Idle> {
        self.idle.borrow_mut().pop()
    }

    async fn in_time<T>(&self, work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
        timeout(self.settings.query_timeout, contained(work)).await.unwrap_or(Err(Failure::Timeout))
    }
}

/// Reports a request's result to the user's breaker, even if the request is dropped.
struct Verdict<'a> {
    store: &'a Rc<Sql>,
    user: &'a StoreUser,
    standing: &'a Standing,
    failure: Option<Failure>,
}

impl Verdict<'_> {
    fn is(mut self, failure: Option<&Failure>) {
        self.failure = failure.cloned();
    }
}

impl Drop for Verdict<'_> {
    fn drop(&mut self) {
        let Verdict { store, user, standing, failure } = self;
        match failure {
            // A script's query may be slow by itself. A probe decides whether the store is at fault.
            Some(Failure::Timeout) if user.is_script() => {
                standing.timeouts.set(standing.timeouts.get().saturating_add(1));
                store.watch();
            }
            Some(failure) if failure.is_its_fault() => store.count_failure(user, standing, failure),
            // A refusal shows that the store is up.
            _ => {
                standing.timeouts.set(0);
                if let Some(change) = standing.breaker.borrow_mut().succeeded() {
                    store.tell(change, user, None);
                }
            }
        }
    }
}

impl Sql {
    fn count_failure(self: &Rc<Self>, user: &StoreUser, standing: &Standing, failure: &Failure) {
        let change = standing.breaker.borrow_mut().failed(clock::now());
        if let Some(change) = change {
            self.tell(change, user, Some(failure));
        }
        if standing.breaker.borrow().is_open() {
            self.watch();
        }
    }

    fn tell(&self, change: HealthChange, user: &StoreUser, failure: Option<&Failure>) {
        change.tell(&format!("the SQL store `{}` ({}), asked by {user},", self.name, self.database), failure);
    }
}

/// A counter's increment, undone on drop.
struct Counted<'a>(&'a Cell<usize>);

impl<'a> Counted<'a> {
    fn new(count: &'a Cell<usize>) -> Self {
        count.set(count.get() + 1);
        Counted(count)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}
