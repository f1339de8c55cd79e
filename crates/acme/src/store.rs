//! The tables of the database: names with their certificates and a lock for each, and answers to challenges.
//!
//! A machine that wants to order for a name writes a random word into its row, if the row's lock has ended, and reads
//! the row by that word. Whoever finds the word has the lock. Locks end by themselves, so that a machine that fails
//! blocks no name.

use std::collections::HashMap;
use std::sync::Arc;

use oroshi_lookup::{Failure, Rows, SqlStore, StoreError, Value};
use zeroize::Zeroizing;

use crate::material::hex;

/// The most answers that are read at a time, and how many with one query: stores limit the rows of a result.
const MOST_ANSWERS: usize = 10_000;
const PAGE_ROWS: usize = 50;

/// The tables on one database.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    sql: SqlStore,
    dialect: Dialect,
}

/// The kind of database, where their SQL differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dialect {
    Sqlite,
    MySql,
    Postgres,
}

/// A row whose lock this machine has.
#[derive(Debug)]
pub(crate) struct Claimed {
    pub(crate) name: String,
    /// The word that holds the lock.
    owner: String,
    /// The chain and its key, as in the table.
    pub(crate) pem: Option<Zeroizing<Vec<u8>>>,
    pub(crate) renew_at: i64,
    pub(crate) failures: i64,
}

/// What becomes of a claimed row. Each releases the lock. Times are seconds since 1970.
#[derive(Debug)]
pub(crate) enum Verdict<'a> {
    /// A new certificate.
    Issued { pem: &'a str, due_at: i64, renew_at: i64 },
    /// A failed attempt.
    Failed { due_at: i64, failures: i64, error: &'a str },
    /// Nothing was tried, or not the name was at fault.
    Later { due_at: i64 },
    /// A certificate that is not due, and advice about it.
    Planned { due_at: i64, renew_at: i64 },
    /// The name may have no certificate, and has none.
    Removed,
}

const CERTIFICATES: &str = "CREATE TABLE IF NOT EXISTS acme_certificate (name VARCHAR(255) NOT NULL PRIMARY KEY, \
                            pem TEXT, due_at BIGINT NOT NULL, renew_at BIGINT NOT NULL, failures BIGINT NOT NULL, \
                            lock_until BIGINT NOT NULL, lock_owner VARCHAR(64) NOT NULL, ordered_at BIGINT NOT NULL, \
                            added_at BIGINT NOT NULL, last_error VARCHAR(1000) NOT NULL";

const CHALLENGES: &str = "CREATE TABLE IF NOT EXISTS acme_challenge (id VARCHAR(255) NOT NULL PRIMARY KEY, \
                          answer VARCHAR(1000) NOT NULL, until_at BIGINT NOT NULL)";

/// Every order counts, also those of a name that failed, or is gone.
const ORDERS: &str = "CREATE TABLE IF NOT EXISTS acme_order (id VARCHAR(64) NOT NULL PRIMARY KEY, ordered_at BIGINT NOT \
                      NULL)";

/// The columns by which rows are looked for.
const INDEXED: [&str; 3] = ["due_at", "ordered_at", "added_at"];

/// The most characters of an error in the table.
const ERROR_CHARS: usize = 500;

impl Store {
    /// `url`: that of the store's settings, which names the kind of database.
    pub(crate) fn new(sql: SqlStore, url: &str) -> Self {
        let dialect = match url.split(':').next().unwrap_or_default() {
            "sqlite" => Dialect::Sqlite,
            "postgres" | "postgresql" => Dialect::Postgres,
            _ => Dialect::MySql,
        };
        Store { sql: sql.used_by("acme"), dialect }
    }

    /// Creates the tables, unless they exist.
    pub(crate) async fn create_tables(&self) -> Result<(), StoreError> {
        match self.dialect {
            Dialect::MySql => {
                let indexes: String = INDEXED.iter().map(|column| format!(", INDEX ({column})")).collect();
                self.query(&format!("{CERTIFICATES}{indexes})"), vec![]).await?;
            }
            Dialect::Sqlite | Dialect::Postgres => {
                self.query(&format!("{CERTIFICATES})"), vec![]).await?;
                for column in INDEXED {
                    let name = format!("acme_certificate_{column}");
                    let index = format!("CREATE INDEX IF NOT EXISTS {name} ON acme_certificate ({column})");
                    self.query(&index, vec![]).await?;
                }
            }
        }
        self.query(ORDERS, vec![]).await?;
        self.query(CHALLENGES, vec![]).await.map(drop)
    }

    /// Adds a name that is due now, unless it is there. `added_at`: 0 for names that do not count as new.
    pub(crate) async fn add(&self, name: &str, now: i64, added_at: i64) -> Result<(), StoreError> {
        let (ignore, conflict) = match self.dialect {
            Dialect::MySql => (" IGNORE", ""),
            Dialect::Sqlite | Dialect::Postgres => ("", " ON CONFLICT DO NOTHING"),
        };
        let insert = format!(
            "INSERT{ignore} INTO acme_certificate (name, due_at, renew_at, failures, lock_until, lock_owner, \
             ordered_at, added_at, last_error) VALUES (?, ?, 0, 0, 0, '', 0, ?, ''){conflict}"
        );
        self.query(&insert, vec![text(name), Value::Int(now), Value::Int(added_at)]).await.map(drop)
    }

    /// Returns names that are due and not locked, the longest due first.
    pub(crate) async fn due(&self, now: i64, most: usize) -> Result<Vec<String>, StoreError> {
        let select = format!(
            "SELECT name FROM acme_certificate WHERE due_at <= ? AND lock_until <= ? ORDER BY due_at LIMIT {most}"
        );
        let rows = self.query(&select, vec![Value::Int(now), Value::Int(now)]).await?;
        Ok(rows.rows.into_iter().filter_map(|row| into_text(row.into_iter().next())).collect())
    }

    /// Returns when the next name is due after `now`.
    pub(crate) async fn next_due(&self, now: i64) -> Result<Option<i64>, StoreError> {
        let select = "SELECT MIN(due_at) FROM acme_certificate WHERE due_at > ?";
        self.number(select, vec![Value::Int(now)]).await
    }

    /// Returns how many orders began after `since`.
    pub(crate) async fn ordered(&self, since: i64) -> Result<i64, StoreError> {
        let select = "SELECT COUNT(*) FROM acme_order WHERE ordered_at > ?";
        Ok(self.number(select, vec![Value::Int(since)]).await?.unwrap_or_default())
    }

    /// Returns how many names clients brought after `since`.
    pub(crate) async fn added(&self, since: i64) -> Result<i64, StoreError> {
        let select = "SELECT COUNT(*) FROM acme_certificate WHERE added_at > ?";
        Ok(self.number(select, vec![Value::Int(since)]).await?.unwrap_or_default())
    }

    /// Takes the lock of a name that is due. `None`: another machine was faster.
    pub(crate) async fn claim(&self, name: &str, now: i64, until: i64) -> Result<Option<Claimed>, StoreError> {
        let owner = hex(&std::array::from_fn::<u8, 16, _>(|_| fastrand::u8(..)));
        let update = "UPDATE acme_certificate SET lock_until = ?, lock_owner = ? WHERE name = ? AND due_at <= ? AND \
                      lock_until <= ?";
        let parameters = vec![Value::Int(until), text(&owner), text(name), Value::Int(now), Value::Int(now)];
        self.query(update, parameters).await?;
        let select = "SELECT pem, renew_at, failures FROM acme_certificate WHERE name = ? AND lock_owner = ?";
        let rows = self.query(select, vec![text(name), text(&owner)]).await?;
        let Some(row) = rows.rows.into_iter().next() else { return Ok(None) };
        let mut row = row.into_iter();
        let pem = into_text(row.next()).map(|pem| Zeroizing::new(pem.into_bytes()));
        let (renew_at, failures) = (into_number(row.next()), into_number(row.next()));
        let (renew_at, failures) = (renew_at.unwrap_or_default(), failures.unwrap_or_default());
        Ok(Some(Claimed { name: name.to_owned(), owner, pem, renew_at, failures }))
    }

    /// Notes that an order begins. Orders before `since` are forgotten.
    pub(crate) async fn begin(&self, row: &Claimed, now: i64, since: i64) -> Result<(), StoreError> {
        let id = hex(&std::array::from_fn::<u8, 16, _>(|_| fastrand::u8(..)));
        self.query("DELETE FROM acme_order WHERE ordered_at <= ?", vec![Value::Int(since)]).await?;
        let insert = "INSERT INTO acme_order (id, ordered_at) VALUES (?, ?)";
        self.query(insert, vec![text(&id), Value::Int(now)]).await?;
        let update = "UPDATE acme_certificate SET ordered_at = ? WHERE name = ? AND lock_owner = ?";
        self.query(update, vec![Value::Int(now), text(&row.name), text(&row.owner)]).await.map(drop)
    }

    /// Writes what became of a row, and releases its lock. Does nothing if the lock has ended and another machine has
    /// it.
    pub(crate) async fn finish(&self, row: &Claimed, verdict: Verdict<'_>) -> Result<(), StoreError> {
        let (set, mut parameters) = match verdict {
            Verdict::Issued { pem, due_at, renew_at } => (
                "pem = ?, due_at = ?, renew_at = ?, failures = 0, last_error = '', ",
                vec![text(pem), Value::Int(due_at), Value::Int(renew_at)],
            ),
            Verdict::Failed { due_at, failures, error } => {
                let error: String = error.chars().take(ERROR_CHARS).collect();
                (
                    "due_at = ?, failures = ?, last_error = ?, ",
                    vec![Value::Int(due_at), Value::Int(failures), text(&error)],
                )
            }
            Verdict::Later { due_at } => ("due_at = ?, ", vec![Value::Int(due_at)]),
            Verdict::Planned { due_at, renew_at } => {
                ("due_at = ?, renew_at = ?, ", vec![Value::Int(due_at), Value::Int(renew_at)])
            }
            Verdict::Removed => {
                let delete = "DELETE FROM acme_certificate WHERE name = ? AND lock_owner = ?";
                return self.query(delete, vec![text(&row.name), text(&row.owner)]).await.map(drop);
            }
        };
        parameters.extend([text(&row.name), text(&row.owner)]);
        let update = format!(
            "UPDATE acme_certificate SET {set}lock_until = 0, lock_owner = '' WHERE name = ? AND lock_owner = ?"
        );
        self.query(&update, parameters).await.map(drop)
    }

    /// Enters the answer to a challenge for all machines.
    pub(crate) async fn enter_answer(&self, id: &str, answer: &str, until: i64) -> Result<(), StoreError> {
        self.remove_answer(id).await?;
        let insert = "INSERT INTO acme_challenge (id, answer, until_at) VALUES (?, ?, ?)";
        self.query(insert, vec![text(id), text(answer), Value::Int(until)]).await.map(drop)
    }

    /// Returns the answers that machines entered, by their ids, up to [`MOST_ANSWERS`].
    pub(crate) async fn answers(&self, now: i64) -> Result<HashMap<String, String>, StoreError> {
        let select = format!(
            "SELECT id, answer FROM acme_challenge WHERE until_at > ? AND id > ? ORDER BY id LIMIT {PAGE_ROWS}"
        );
        let (mut answers, mut last) = (HashMap::new(), String::new());
        loop {
            let page = self.query(&select, vec![Value::Int(now), text(&last)]).await?.rows;
            let is_last = page.len() < PAGE_ROWS;
            for row in page {
                let mut row = row.into_iter();
                if let (Some(id), Some(answer)) = (into_text(row.next()), into_text(row.next())) {
                    last.clone_from(&id);
                    answers.insert(id, answer);
                }
            }
            if is_last || answers.len() >= MOST_ANSWERS {
                return Ok(answers);
            }
        }
    }

    pub(crate) async fn remove_answer(&self, id: &str) -> Result<(), StoreError> {
        self.query("DELETE FROM acme_challenge WHERE id = ?", vec![text(id)]).await.map(drop)
    }

    /// Removes the answers that machines left behind.
    pub(crate) async fn remove_old_answers(&self, now: i64) -> Result<(), StoreError> {
        self.query("DELETE FROM acme_challenge WHERE until_at <= ?", vec![Value::Int(now)]).await.map(drop)
    }

    async fn number(&self, select: &str, parameters: Vec<Value>) -> Result<Option<i64>, StoreError> {
        let rows = self.query(select, parameters).await?;
        Ok(rows.rows.into_iter().next().and_then(|row| into_number(row.into_iter().next())))
    }

    async fn query(&self, query: &str, parameters: Vec<Value>) -> Result<Rows, StoreError> {
        let query: Arc<str> = match self.dialect {
            Dialect::Postgres => numbered(query).into(),
            Dialect::Sqlite | Dialect::MySql => query.into(),
        };
        self.sql.query(query, parameters).await
    }
}

/// Whether an error says that a query itself is wrong, so that repeating it does not help.
pub(crate) fn is_refusal(error: &StoreError) -> bool {
    matches!(error.failure, Failure::Refused(_))
}

/// Writes the parameters as PostgreSQL wants them. No query here has a `?` in a text.
fn numbered(query: &str) -> String {
    let mut parts = query.split('?');
    let mut numbered = parts.next().unwrap_or_default().to_owned();
    for (place, part) in parts.enumerate() {
        numbered.push_str(&format!("${}{part}", place + 1));
    }
    numbered
}

fn text(text: &str) -> Value {
    Value::Text(text.to_owned())
}

fn into_text(value: Option<Value>) -> Option<String> {
    match value? {
        Value::Text(text) => Some(text),
        Value::Bytes(bytes) => String::from_utf8(bytes).ok(),
        _ => None,
    }
}

fn into_number(value: Option<Value>) -> Option<i64> {
    match value? {
        Value::Int(number) => Some(number),
        _ => None,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use oroshi_lookup::{SqlSettings, StoreKind, StoreSettings, Stores};
    use oroshi_testkit::stores::{MariaDb, Postgres};

    use tokio::runtime::LocalOptions;

    use super::*;

    /// Runs a test in each kind of database, with two machines.
    pub(crate) fn in_each_database(test: &str, work: impl AsyncFn(&Store, &Store)) {
        let folder = tempfile::tempdir().unwrap();
        let (mariadb, postgres) = (MariaDb::start(test), Postgres::start(test));
        let mut urls = vec![format!("sqlite:{}?mode=rwc", folder.path().join("acme.db").display())];
        urls.extend(mariadb.as_ref().map(|database| database.url("root", "gate")));
        urls.extend(postgres.as_ref().map(|database| database.url("admin")));
        for url in urls {
            let ((_one, here), (_other, there)) = (store(&url), store(&url));
            run(async {
                here.create_tables().await.unwrap();
                there.create_tables().await.unwrap();
                work(&here, &there).await;
            });
        }
    }

    fn store(url: &str) -> (Stores, Store) {
        let long = std::time::Duration::from_secs(30);
        let settings = SqlSettings { query_timeout: long, connect_timeout: long, ..SqlSettings::new(url) };
        let settings = StoreSettings { name: "acme".to_owned(), kind: StoreKind::Sql(settings) };
        let stores = Stores::start(vec![settings]).unwrap();
        let store = Store::new(stores.sql("acme").unwrap(), url);
        (stores, store)
    }

    fn run<T>(work: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build_local(LocalOptions::default());
        runtime.unwrap().block_on(work)
    }

    #[test]
    fn one_of_many_machines_gets_the_lock_until_it_ends() {
        in_each_database("one_of_many_machines_gets_the_lock_until_it_ends", async |here, there| {
            here.add("a.example", 100, 0).await.unwrap();
            there.add("a.example", 200, 0).await.unwrap();
            assert_eq!(here.due(99, 8).await.unwrap(), [""; 0]);
            assert_eq!(there.due(100, 8).await.unwrap(), ["a.example"]);
            // Both ask at the same time, many times.
            for round in 0..20 {
                let now = 100 + 20 * round;
                let (first, second) =
                    tokio::join!(here.claim("a.example", now, now + 10), there.claim("a.example", now, now + 10));
                let (first, second) = (first.unwrap(), second.unwrap());
                assert!(first.is_some() != second.is_some(), "{first:?} {second:?}");
                assert_eq!(here.due(now + 9, 8).await.unwrap(), [""; 0], "locked");
                assert_eq!(here.due(now + 10, 8).await.unwrap(), ["a.example"], "the lock has ended");
            }
            let late = here.claim("a.example", 1000, 1010).await.unwrap().unwrap();
            let next = there.claim("a.example", 1010, 1020).await.unwrap().unwrap();
            here.finish(&late, Verdict::Issued { pem: "old", due_at: 1, renew_at: 1 }).await.unwrap();
            assert!(here.claim("a.example", 1015, 1016).await.unwrap().is_none(), "the lock is not the first one's");
            there.finish(&next, Verdict::Issued { pem: "new", due_at: 2000, renew_at: 3000 }).await.unwrap();
            let row = here.claim("a.example", 2000, 2010).await.unwrap().unwrap();
            let pem = row.pem.as_deref().map(Vec::as_slice);
            assert_eq!((pem, row.renew_at, row.failures), (Some(&b"new"[..]), 3000, 0));
        });
    }

    #[test]
    fn rows_keep_what_became_of_them() {
        in_each_database("rows_keep_what_became_of_them", async |store, _| {
            store.add("a.example", 100, 0).await.unwrap();
            store.add("b.example", 101, 101).await.unwrap();
            assert_eq!((store.added(100).await.unwrap(), store.added(101).await.unwrap()), (1, 0));
            let row = store.claim("a.example", 150, 200).await.unwrap().unwrap();
            store.begin(&row, 150, 0).await.unwrap();
            assert_eq!((store.ordered(149).await.unwrap(), store.ordered(150).await.unwrap()), (1, 0));
            store.begin(&row, 160, 0).await.unwrap();
            assert_eq!(store.ordered(149).await.unwrap(), 2, "each order of a name counts");
            store.begin(&row, 170, 155).await.unwrap();
            assert_eq!(store.ordered(0).await.unwrap(), 2, "old ones are forgotten");
            let error = "é".repeat(2000);
            store.finish(&row, Verdict::Failed { due_at: 300, failures: 1, error: &error }).await.unwrap();
            assert_eq!(store.next_due(150).await.unwrap(), Some(300));
            let row = store.claim("a.example", 300, 400).await.unwrap().unwrap();
            assert_eq!((row.failures, row.pem.is_none()), (1, true));
            store.finish(&row, Verdict::Later { due_at: 350 }).await.unwrap();
            let row = store.claim("a.example", 350, 400).await.unwrap().unwrap();
            assert_eq!(row.failures, 1, "it was not the name's fault");
            store.finish(&row, Verdict::Planned { due_at: 360, renew_at: 370 }).await.unwrap();
            let row = store.claim("a.example", 360, 400).await.unwrap().unwrap();
            assert_eq!(row.renew_at, 370);
            store.finish(&row, Verdict::Removed).await.unwrap();
            assert_eq!(store.due(1000, 8).await.unwrap(), ["b.example"]);
        });
    }

    #[test]
    fn answers_are_there_for_all_machines_until_they_end() {
        in_each_database("answers_are_there_for_all_machines_until_they_end", async |here, there| {
            here.enter_answer("token", "first", 100).await.unwrap();
            here.enter_answer("token", "answer", 200).await.unwrap();
            let only = HashMap::from([("token".to_owned(), "answer".to_owned())]);
            assert_eq!(there.answers(199).await.unwrap(), only);
            assert!(there.answers(200).await.unwrap().is_empty());
            there.remove_old_answers(200).await.unwrap();
            assert!(here.answers(0).await.unwrap().is_empty());
            for number in 0..2 * PAGE_ROWS {
                here.enter_answer(&format!("token-{number}"), "answer", 300).await.unwrap();
            }
            assert_eq!(there.answers(299).await.unwrap().len(), 2 * PAGE_ROWS);
        });
    }

    #[test]
    fn postgresql_counts_its_parameters() {
        assert_eq!(numbered("a = ? AND b = ?, ?"), "a = $1 AND b = $2, $3");
        assert_eq!(numbered("a"), "a");
    }
}
