//! Trials of queries: asks the database to prepare a query without running it. Also logs queries that the database
//! refuses.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use sqlx::{AssertSqlSafe, Either, Executor as _, SqlSafeStr as _, Statement as _};
use tokio::time::timeout;

use super::connection::{Connection, Database, failure};
use super::contained::contained;
use super::{Sql, statement};
use crate::answer::{Failure, StoreError};
use crate::clock;

/// How soon at the earliest a refusal in other words is logged again.
const OTHER_WORDS_MS: u64 = 1000;

/// The same for words that differ only in quoted parts, such as a key.
const OTHER_KEYS_MS: u64 = 60_000;

/// The maximum of remembered queries; each look-up has one.
const MOST_QUERIES: usize = 1000;

/// The maximum of characters logged of a database's message, and of a query.
const SHOWN_CHARS: usize = 300;

impl Sql {
    /// Prepares a look-up's query over a connection of its own, and checks the result. Ignores the breaker, and does
    /// not affect it.
    ///
    /// # Errors
    /// [`Failure::Refused`] in the database's words, or in ours if the query takes not one parameter or returns no
    /// columns. Any other failure: the trial itself failed.
    pub(crate) async fn try_out(&self, query: &Arc<str>) -> Result<(), StoreError> {
        self.prepared(query)
            .await
            .map_err(|failure| StoreError { store: Arc::clone(&self.name), failure: self.hidden(failure) })
    }

    async fn prepared(&self, query: &Arc<str>) -> Result<(), Failure> {
        if matches!(self.database, Database::Sqlite(_))
            && let Some(why) = statement::objection(query, 1)
        {
            return Err(Failure::Refused(why.into()));
        }
        let (connect, answer) = (self.settings.connect_timeout, self.settings.query_timeout);
        // One query may hold a connection for this long; the trial does not wait behind more of them.
        let place = timeout(connect + answer, self.places.acquire()).await.map_err(|_| Failure::Busy)?;
        let _place = place.map_err(|_| Failure::Closed)?;
        let connected = timeout(connect, contained(self.database.connect(answer * 2))).await;
        let mut connection =
            connected.unwrap_or_else(|_| Err(Failure::Connect(format!("not within {connect:?}").into())))?;
        let Prepared { places, columns } =
            timeout(answer, contained(connection.prepare(query))).await.unwrap_or(Err(Failure::Timeout))?;
        if let Some(places) = places.filter(|&places| places != 1) {
            let why = format!("the query has places for {places} parameters: expected one, for the key");
            return Err(Failure::Refused(why.into()));
        }
        if columns == 0 {
            return Err(Failure::Refused("the query brings no column: expected a SELECT of the target".into()));
        }
        Ok(())
    }

    /// Records the result of a look-up's query, and logs a refusal.
    pub(super) fn note(&self, query: &Arc<str>, failure: Option<&Failure>, now: u64) {
        let name = &self.name;
        match failure {
            None => {
                if self.refusals.taken(query) {
                    tracing::info!("the SQL store `{name}` takes the query `{}` again", shown(query));
                }
            }
            Some(Failure::Refused(words) | Failure::TooLarge(words)) => {
                if self.refusals.is_news(query, words, now) {
                    let (database, query, words) = (&self.database, shown(query), shown(words));
                    tracing::warn!("the SQL store `{name}` ({database}) refuses the query `{query}`: {words}");
                }
            }
            // The breaker handles these.
            Some(_) => {}
        }
    }

    /// Marks a refusal as logged.
    pub(crate) fn remember(&self, query: &Arc<str>, failure: &Failure) {
        if let Failure::Refused(words) = failure {
            self.refusals.tell(query, words, clock::now());
        }
    }

    /// Returns the same failure without the user and the password.
    pub(super) fn hidden(&self, failure: Failure) -> Failure {
        let hide = |words: Box<str>| self.database.hide(words, &self.secrets);
        match failure {
            Failure::Connect(words) => Failure::Connect(hide(words)),
            Failure::Lost(words) => Failure::Lost(hide(words)),
            Failure::Refused(words) => Failure::Refused(hide(words)),
            Failure::InvalidReply(words) => Failure::InvalidReply(hide(words)),
            other => other,
        }
    }
}

/// A prepared query.
pub(super) struct Prepared {
    /// The number of its parameters, if the database says so.
    places: Option<usize>,
    columns: usize,
}

/// The three databases have the same calls and no common type for them.
macro_rules! prepared {
    ($connection:expr, $query:expr, $types:expr) => {{
        let query = AssertSqlSafe(Arc::clone($query)).into_sql_str();
        let statement = $connection.prepare_with(query, $types).await.map_err(failure)?;
        let places = match statement.parameters() {
            Some(Either::Left(types)) => Some(types.len()),
            Some(Either::Right(count)) => Some(count),
            None => None,
        };
        Ok(Prepared { places, columns: statement.columns().len() })
    }};
}

impl Connection {
    pub(super) async fn prepare(&mut self, query: &Arc<str>) -> Result<Prepared, Failure> {
        match self {
            Connection::Sqlite(connection) => prepared!(connection, query, &[]),
            Connection::MySql(connection) => prepared!(connection, query, &[]),
            Connection::Postgres(connection) => {
                // The type of keys: the database refuses a query that compares a key with a number.
                let text = [<str as sqlx::Type<sqlx::Postgres>>::type_info()];
                prepared!(connection, query, &text)
            }
        }
    }
}

/// Refused queries of look-ups, as far as they were logged.
#[derive(Debug, Default)]
pub(super) struct Refusals(RefCell<HashMap<Arc<str>, Told>>);

#[derive(Debug)]
struct Told {
    words: String,
    at: u64,
    /// Whether the database has since accepted the query, and the log says so.
    is_taken: bool,
}

impl Refusals {
    /// Notes that a query is accepted. Returns whether the log last said that it is refused.
    fn taken(&self, query: &Arc<str>) -> bool {
        let mut told = self.0.borrow_mut();
        told.get_mut(query).is_some_and(|told| !std::mem::replace(&mut told.is_taken, true))
    }

    /// Whether to log that a query is refused in these words.
    ///
    /// Strangers choose keys, and the key may decide whether a query is refused. Logged refusals are therefore
    /// remembered when a query is accepted.
    fn is_news(&self, query: &Arc<str>, words: &str, now: u64) -> bool {
        let told = self.0.borrow();
        if let Some(told) = told.get(query) {
            let pause = match told.words == words {
                true if !told.is_taken => return false,
                false if without_quoted(&told.words) == without_quoted(words) => OTHER_KEYS_MS,
                _ => OTHER_WORDS_MS,
            };
            if now < told.at + pause {
                return false;
            }
        }
        drop(told);
        self.tell(query, words, now);
        true
    }

    /// Logs that a query is refused in these words.
    fn tell(&self, query: &Arc<str>, words: &str, now: u64) {
        let mut told = self.0.borrow_mut();
        if told.len() >= MOST_QUERIES && !told.contains_key(query) {
            told.clear();
        }
        told.insert(Arc::clone(query), Told { words: words.to_owned(), at: now, is_taken: false });
    }
}

/// Returns the words without quoted parts, which may be a request's key.
fn without_quoted(words: &str) -> String {
    words.split(['"', '\'', '`']).step_by(2).collect::<Vec<_>>().join("\"")
}

/// Returns as much of a text as a log line may show.
fn shown(text: &str) -> String {
    let mut shown: String =
        text.chars().take(SHOWN_CHARS).map(|char| if char.is_control() { ' ' } else { char }).collect();
    if text.chars().nth(SHOWN_CHARS).is_some() {
        shown.push_str("...");
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_told_once_and_again_when_it_changes() {
        let (refusals, query): (_, Arc<str>) = (Refusals::default(), "SELECT 1".into());
        let other: Arc<str> = "SELECT 2".into();
        assert!(!refusals.taken(&query));
        assert!(refusals.is_news(&query, "no such table: a", 0) && refusals.is_news(&other, "no such table: a", 0));
        assert!(!refusals.is_news(&query, "no such table: a", 100_000));
        assert!(refusals.is_news(&query, "no such column: b", 100_000));
        assert!(!refusals.is_news(&query, "no such column: c", 100_000 + OTHER_WORDS_MS - 1));
        assert!(refusals.is_news(&query, "no such column: c", 100_000 + OTHER_WORDS_MS));
        // Accepted, then refused again in the same words.
        assert!(refusals.taken(&query) && !refusals.taken(&query));
        assert!(refusals.is_news(&query, "no such column: c", 200_000));
        assert!(refusals.taken(&query));
    }

    #[test]
    fn a_query_that_is_refused_for_some_keys_alone_is_told_seldom() {
        let query: Arc<str> = "SELECT $1::inet".into();
        for (words, most) in [("division by zero", 10), ("invalid input syntax for type inet: \"host-{}\"", 1)] {
            let refusals = Refusals::default();
            // Ten seconds, in which every other key is refused.
            let (mut refused, mut taken) = (0, 0);
            for now in (0..10_000).step_by(10) {
                refused += usize::from(refusals.is_news(&query, &words.replace("{}", &now.to_string()), now));
                taken += usize::from(refusals.taken(&query));
            }
            assert!((1..=most).contains(&refused) && taken <= refused, "{refused}, {taken}");
        }
    }

    #[test]
    fn words_that_name_the_key_are_told_once_a_minute() {
        let (refusals, query): (_, Arc<str>) = (Refusals::default(), "SELECT 1".into());
        let words = |key: u64| format!("invalid input syntax for type integer: \"host-{key}\"");
        let told = (0..180_000).step_by(100).filter(|&now| refusals.is_news(&query, &words(now), now)).count();
        assert_eq!(told, 3);
        for number in 0..MOST_QUERIES as u64 * 2 {
            let _ = refusals.is_news(&number.to_string().into(), "no", number);
        }
        assert!(refusals.0.borrow().len() <= MOST_QUERIES);
    }

    #[test]
    fn a_trial_waits_no_longer_than_one_query_may_take() {
        let short = std::time::Duration::from_millis(10);
        let mut settings = crate::settings::SqlSettings::new("sqlite::memory:");
        (settings.connect_timeout, settings.query_timeout) = (short, short);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let store = Sql::new("db".into(), settings);
            let _all = store.places.acquire_many(2).await.unwrap();
            // Makes a hanging test fail.
            let tried = timeout(std::time::Duration::from_secs(60), store.try_out(&"SELECT ?".into())).await;
            assert_eq!(tried.expect("it ends by itself").unwrap_err().failure, Failure::Busy);
        });
    }

    #[test]
    fn what_is_told_is_one_short_line() {
        assert_eq!(shown("a\nb"), "a b");
        assert_eq!(shown(&"x".repeat(1000)).len(), SHOWN_CHARS + 3);
    }
}
