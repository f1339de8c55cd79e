//! A database: a few connections, made when they are needed, each used by one query at a time.
//!
//! sqlx speaks the protocols. Its pool is not used: it gives a connection back after a query that took too long by
//! reading what is left of the answer, however long that takes. Here such a connection is dropped.

mod connection;
mod contained;
mod statement;
mod trial;

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio::time::timeout;

pub(crate) use connection::parse_url;
pub use connection::{Rows, Value};
pub use contained::panics_are_contained;

use crate::answer::{Failure, StoreError};
use crate::breaker::{Breaker, State as BreakerState};
use crate::clock;
use crate::settings::SqlSettings;
use connection::{Bounds, Connection, Database};
use contained::contained;

/// A database. It belongs to the stores' thread.
#[derive(Debug)]
pub(crate) struct Sql {
    name: Arc<str>,
    settings: SqlSettings,
    database: Database,
    /// As many as there may be connections.
    places: Semaphore,
    waiting: Cell<usize>,
    /// Last in, first out, so that the fewest stay warm.
    idle: RefCell<Vec<Idle>>,
    breaker: RefCell<Breaker>,
    connects: Cell<u64>,
    queries: Cell<u64>,
    /// What operators were told of queries that the database does not take.
    refusals: trial::Refusals,
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
    /// What its breaker does.
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
            breaker: RefCell::new(Breaker::new(settings.breaker)),
            settings,
            database,
            waiting: Cell::new(0),
            idle: RefCell::default(),
            connects: Cell::new(0),
            queries: Cell::new(0),
            refusals: trial::Refusals::default(),
        }
    }

    /// The first column of a query's first row, as bytes; `None`: no row, or NULL. The query only reads, so that it may
    /// be sent twice.
    pub(crate) async fn look_up(&self, query: &Arc<str>, key: &str) -> Result<Option<Vec<u8>>, StoreError> {
        // One row more than is looked at: what comes after it is left where it is.
        let bounds = Bounds { rows: 1, bytes: self.settings.row_bytes, first_only: true };
        let parameters = [Value::Text(key.to_owned())];
        let found = self.run(query, &parameters, bounds, true).await;
        self.note(query, found.as_ref().err().map(|error| &error.failure), clock::now());
        let rows = found?;
        Ok(rows.rows.into_iter().next().and_then(|row| row.into_iter().next()).and_then(Value::into_bytes))
    }

    /// All rows of a query, within the bounds of the settings.
    pub(crate) async fn query(&self, query: &Arc<str>, parameters: &[Value]) -> Result<Rows, StoreError> {
        if matches!(self.database, Database::Sqlite(_))
            && let Some(why) = statement::objection(query, parameters.len())
        {
            return Err(StoreError { store: Arc::clone(&self.name), failure: Failure::Refused(why.into()) });
        }
        let bounds = Bounds { rows: self.settings.rows, bytes: self.settings.row_bytes, first_only: false };
        let start = query.trim_start().get(..6).unwrap_or_default();
        self.run(query, parameters, bounds, start.eq_ignore_ascii_case("select")).await
    }

    pub(crate) fn state(&self) -> SqlState {
        SqlState {
            database: self.database.to_string(),
            breaker: self.breaker.borrow().state(clock::now()),
            busy: self.settings.connections - self.places.available_permits(),
            idle: self.idle.borrow().len(),
            connections: self.settings.connections,
            waiting: self.waiting.get(),
            connects: self.connects.get(),
            queries: self.queries.get(),
        }
    }

    async fn run(
        &self,
        query: &Arc<str>,
        parameters: &[Value],
        bounds: Bounds,
        reads: bool,
    ) -> Result<Rows, StoreError> {
        let error = |failure| StoreError { store: Arc::clone(&self.name), failure };
        // Who would be refused when its turn comes is refused now.
        if !self.breaker.borrow().would_pass(clock::now()) {
            return Err(error(Failure::BreakerOpen));
        }
        let _place = {
            if self.waiting.get() >= self.settings.pending {
                return Err(error(Failure::Busy));
            }
            let _waiting = Counted::new(&self.waiting);
            self.places.acquire().await.map_err(|_| error(Failure::Closed))?
        };
        if !self.breaker.borrow_mut().may_pass(clock::now()) {
            return Err(error(Failure::BreakerOpen));
        }
        // Whoever is dropped from here on has waited in vain.
        let verdict = Verdict(self, Some(Failure::Timeout));
        let result =
            self.on_a_connection(query, parameters, bounds, reads).await.map_err(|failure| self.hidden(failure));
        verdict.is(result.as_ref().err());
        result.map_err(error)
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
        let connecting =
            timeout(self.settings.connect_timeout, contained(self.database.connect(self.settings.query_timeout * 2)))
                .await;
        let overdue = || Failure::Connect(format!("not within {:?}", self.settings.connect_timeout).into());
        let mut connection = connecting.unwrap_or_else(|_| Err(overdue()))?;
        self.connects.set(self.connects.get() + 1);
        let result = self.send(&mut connection, query, parameters, bounds).await;
        self.done(connection, result)
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

/// Tells the breaker what became of a request, also when the request is dropped.
struct Verdict<'a>(&'a Sql, Option<Failure>);

impl Verdict<'_> {
    fn is(mut self, failure: Option<&Failure>) {
        self.1 = failure.cloned();
    }
}

impl Drop for Verdict<'_> {
    fn drop(&mut self) {
        let mut breaker = self.0.breaker.borrow_mut();
        let news = match &self.1 {
            Some(failure) if failure.is_its_fault() => breaker.failed(clock::now(), fastrand::f64()),
            // That it refuses something shows that it is there.
            _ => breaker.succeeded(),
        };
        if let Some(news) = news {
            news.tell(&format!("the SQL store `{}` ({})", self.0.name, self.0.database), self.1.as_ref());
        }
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
