//! A database: a few connections, made when they are needed, each used by one query at a time.
//!
//! Each user has a breaker of its own, and scripts have a share of the connections, so that nobody's queries are held against others.
//! While a breaker is open, and when a script's query took too long, the store is asked in the background whether it is there (`watch`).
//!
//! sqlx speaks the protocols. Its pool is not used: it gives a connection back after a query that took too long by
//! reading what is left of the answer, however long that takes. Here such a connection is dropped.

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
use crate::news::News;
use crate::settings::SqlSettings;
use crate::user::User;
use connection::{Bounds, Connection, Database, Secrets};
use contained::contained;

/// A database. It belongs to the stores' thread.
#[derive(Debug)]
pub(crate) struct Sql {
    name: Arc<str>,
    settings: SqlSettings,
    database: Database,
    /// What no message may show.
    secrets: Secrets,
    /// As many as there may be connections, and those of them that scripts may take.
    places: Semaphore,
    for_scripts: Semaphore,
    /// Queries that wait for a connection, of look-ups and of scripts.
    waiting: Cell<usize>,
    scripts_waiting: Cell<usize>,
    /// Last in, first out, so that the fewest stay warm.
    idle: RefCell<Vec<Idle>>,
    users: RefCell<HashMap<User, Rc<Standing>>>,
    /// Whether somebody looks after the store, and whether it is being asked at this moment whether it is there.
    is_watched: Cell<bool>,
    is_asked: Cell<bool>,
    connects: Cell<u64>,
    queries: Cell<u64>,
    /// What operators were told of queries that the database does not take.
    refusals: trial::Refusals,
}

/// What is known of one user's queries.
#[derive(Debug)]
struct Standing {
    breaker: RefCell<Breaker>,
    /// Queries of a script that took too long: it is being found out whether that was the store's fault.
    unclear: Cell<u32>,
}

#[derive(Debug)]
struct Idle {
    connection: Connection,
    since: u64,
}

/// What the connections are about, for those who ask.
#[derive(Clone, Debug, PartialEq)]
pub struct SqlState {
    /// Which database, without user and password.
    pub database: String,
    /// What its breaker does: of those of its users the one that keeps the most away.
    pub breaker: BreakerState,
    /// Connections that are in use.
    pub busy: usize,
    /// Connections that are not.
    pub idle: usize,
    /// How many connections there may be.
    pub connections: usize,
    /// Queries that wait for a connection.
    pub waiting: usize,
    /// How often a connection was made.
    pub connects: u64,
    /// How many queries were sent.
    pub queries: u64,
}

/// As [`SqlSettings::objection`].
pub(crate) fn objection(settings: &SqlSettings, query: &str, parameters: usize) -> Option<String> {
    match parse_url(settings) {
        Ok(Database::Sqlite(_)) => statement::objection(query, parameters),
        _ => None,
    }
}

/// A connection that was idle for so long may have been closed by the server. What may not be sent twice is sent after
/// a look.
const LOOK_AFTER_MS: u64 = 1000;

impl Sql {
    /// Nothing is connected yet. With settings that are valid.
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

    /// The first column of a query's first row, as bytes; `None`: no row, or NULL. The query only reads, so that it may
    /// be sent twice.
    pub(crate) async fn look_up(
        self: &Rc<Self>,
        user: &User,
        query: &Arc<str>,
        key: &str,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        // One row more than is looked at: what comes after it is left where it is.
        let bounds = Bounds { rows: 1, bytes: self.settings.row_bytes, first_only: true };
        let parameters = [Value::Text(key.to_owned())];
        let found = self.run(user, query, &parameters, bounds, true).await;
        self.note(query, found.as_ref().err().map(|error| &error.failure), clock::now());
        let rows = found?;
        Ok(rows.rows.into_iter().next().and_then(|row| row.into_iter().next()).and_then(Value::into_bytes))
    }

    /// All rows of a query, within the bounds of the settings.
    pub(crate) async fn query(
        self: &Rc<Self>,
        user: &User,
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
            breaker: match (self.is_left_alone(), self.is_asked.get()) {
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
        user: &User,
        query: &Arc<str>,
        parameters: &[Value],
        bounds: Bounds,
        reads: bool,
    ) -> Result<Rows, StoreError> {
        let error = |failure| StoreError { store: Arc::clone(&self.name), failure };
        let standing = self.standing(user);
        // Who would be refused when its turn comes is refused now.
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
        // Whoever is dropped from here on has waited in vain.
        let verdict = Verdict { store: self, user, standing: &standing, failure: Some(Failure::Timeout) };
        let result =
            self.on_a_connection(query, parameters, bounds, reads).await.map_err(|failure| self.hidden(failure));
        verdict.is(result.as_ref().err());
        result.map_err(error)
    }

    fn standing(&self, user: &User) -> Rc<Standing> {
        if let Some(known) = self.users.borrow().get(user) {
            return Rc::clone(known);
        }
        let breaker = RefCell::new(Breaker::new(self.settings.breaker));
        let standing = Rc::new(Standing { breaker, unclear: Cell::new(0) });
        self.users.borrow_mut().insert(user.clone(), Rc::clone(&standing));
        standing
    }

    /// Whether any of its users is kept away.
    fn is_left_alone(&self) -> bool {
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
            let fresh = clock::now() < since + LOOK_AFTER_MS;
            let alive = reads || fresh || self.in_time(connection.ping()).await.is_ok();
            if alive {
                match self.send(&mut connection, query, parameters, bounds).await {
                    // The server has ended it meanwhile, and the others that were idle as well, most likely.
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

    /// Keeps a connection for the next one, if it is as it was.
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

/// Tells the user's breaker what became of a request, also when the request is dropped.
struct Verdict<'a> {
    store: &'a Rc<Sql>,
    user: &'a User,
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
            // A script's query may take as long as the script likes: whether that is the store's fault, the store is asked.
            Some(Failure::Timeout) if user.is_script() => {
                standing.unclear.set(standing.unclear.get().saturating_add(1));
                store.watch();
            }
            Some(failure) if failure.is_its_fault() => store.count_failure(user, standing, failure),
            // That it refuses something shows that it is there.
            _ => {
                standing.unclear.set(0);
                if let Some(news) = standing.breaker.borrow_mut().succeeded() {
                    store.tell(news, user, None);
                }
            }
        }
    }
}

impl Sql {
    fn count_failure(self: &Rc<Self>, user: &User, standing: &Standing, failure: &Failure) {
        let news = standing.breaker.borrow_mut().failed(clock::now());
        if let Some(news) = news {
            self.tell(news, user, Some(failure));
        }
        if standing.breaker.borrow().is_open() {
            self.watch();
        }
    }

    fn tell(&self, news: News, user: &User, failure: Option<&Failure>) {
        news.tell(&format!("the SQL store `{}` ({}), asked by {user},", self.name, self.database), failure);
    }
}

/// One more, for as long as this lives.
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
