//! Databases: the real ones, and what stands in their place. Each server is started once, so its cases are one test.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::peers::{Fake, MariaDb, PATIENCE, Peer, Postgres, Sqlite, lookup, run, sql, sql_state, until};
use oroshi_lookup::{
    BreakerState, Failure, Lookup, LookupSettings, MemoryTier, Outcome, SqlSettings, SqlStore, SqlTier, StoreKind,
    StoreSettings, Stores, Value,
};
use oroshi_words::Secret;

/// What differs between the servers.
struct Dialect<'a> {
    query: &'static str,
    /// A query that takes longer than any limit here.
    slow: &'static str,
    /// The same for a script, and a query of one that needs a parameter.
    sleeps: &'static str,
    needs_one: &'static str,
    /// Ends all sessions of the user `gate`.
    kill_sessions: &'a dyn Fn(SqlStore),
    /// Lets the user `gate` have one session alone, and as many as it likes.
    close: &'static str,
    open: &'static str,
    /// How many statements the server has executed, by its own count; the question is one of them.
    executed: Option<&'static str>,
    url: String,
    admin: SqlStore,
}

/// A look-up on a server as the user `gate`.
fn start(dialect: &Dialect<'_>, change: impl FnOnce(&mut SqlSettings, &mut LookupSettings)) -> (Lookup, Stores) {
    let mut store = sql("db", &dialect.url);
    let mut settings = lookup();
    settings.sql = Some(SqlTier { store: "db".to_owned(), query: dialect.query.to_owned() });
    let StoreKind::Sql(its) = &mut store.kind else { panic!("it is SQL") };
    change(its, &mut settings);
    let stores = Stores::start(vec![store]).unwrap();
    (Lookup::start(settings, &stores).unwrap(), stores)
}

async fn name(lookup: &Lookup, key: &str) -> &'static str {
    lookup.get(key).answer().await.outcome.name()
}

async fn execute(store: &SqlStore, statements: &[&str]) {
    for &statement in statements {
        store.query(statement, vec![]).await.unwrap();
    }
}

fn is_pending<F: Future + Unpin>(future: &mut F) -> bool {
    std::pin::Pin::new(future).poll(&mut std::task::Context::from_waker(std::task::Waker::noop())).is_pending()
}

fn quick(settings: &mut SqlSettings) {
    (settings.query_timeout, settings.connect_timeout) = (Duration::from_millis(100), Duration::from_millis(100));
    settings.breaker.failures = 3;
}

/// What holds for each server.
fn cases(dialect: &Dialect<'_>, server: &mut Peer) {
    run(async {
        let rows =
            "INSERT INTO domain VALUES ('a.example', '10.0.0.1:81'), ('null.example', NULL), ('bad.example', 'a b')";
        execute(&dialect.admin, &[rows]).await;
        outcomes(dialect).await;
        one_query(dialect).await;
        killed_sessions(dialect).await;
        slow(dialect).await;
        connection_limit(dialect).await;
        frozen(dialect, server).await;
        mistakes(dialect).await;
        scripts_that_sleep(dialect).await;
        restarted(dialect, server).await;
        found_again(dialect, server).await;
    });
}

async fn outcomes(dialect: &Dialect<'_>) {
    let (lookup, stores) = start(dialect, |_, _| {});
    for _ in 0..2 {
        assert_eq!(lookup.get("a.example").answer().await.outcome.targets().unwrap().to_string(), "10.0.0.1:81");
        assert_eq!(name(&lookup, "null.example").await, "negative");
        assert_eq!(name(&lookup, "' OR '1'='1").await, "negative");
        assert_eq!(name(&lookup, "bad.example").await, "invalid");
    }
    let state = sql_state(&stores, "db").await;
    assert_eq!((state.queries, state.connects, state.idle, state.busy), (4, 1, 1, 0));
}

/// A thousand ask on four threads; the server counts.
async fn one_query(dialect: &Dialect<'_>) {
    let Some(executed) = dialect.executed else { return };
    let count = async || {
        let rows = dialect.admin.query(executed, vec![]).await.unwrap().rows;
        match &rows[0][1] {
            Value::Text(count) => count.parse::<u64>().unwrap(),
            other => panic!("{other:?}"),
        }
    };
    let (lookup, _stores) = start(dialect, |_, _| {});
    // Connected, so that what a connect executes is not counted.
    name(&lookup, "other.example").await;
    let before = count().await;
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let lookup = lookup.clone();
            std::thread::spawn(move || {
                run(async {
                    let all: Vec<_> = (0..250).map(|_| lookup.get("a.example")).collect();
                    for one in all {
                        assert_eq!(one.answer().await.outcome.name(), "hit");
                    }
                });
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(count().await - before, 2, "the query, and the one that counts");
}

/// The server ends idle sessions: nobody notices.
async fn killed_sessions(dialect: &Dialect<'_>) {
    let (lookup, stores) = start(dialect, |settings, lookup| {
        lookup.memory = None;
        settings.connections = 1;
    });
    for round in 1..4 {
        assert_eq!(name(&lookup, "a.example").await, "hit");
        assert_eq!(sql_state(&stores, "db").await.connects, round);
        let admin = dialect.admin.clone();
        (dialect.kill_sessions)(admin);
    }
    // What may change something is not sent twice, but to a connection that was looked at.
    let store = stores.sql("db").unwrap();
    tokio::time::sleep(Duration::from_millis(1100)).await; // the time after which a look is taken
    execute(&store, &["INSERT INTO domain VALUES ('once.example', '10.0.0.2')"]).await;
    assert_eq!(name(&lookup, "once.example").await, "hit");
    assert_eq!(sql_state(&stores, "db").await.breaker, BreakerState::Closed);
}

/// Queries that take too long are given up, and after some of them the store is left alone.
async fn slow(dialect: &Dialect<'_>) {
    let (lookup, stores) = start(dialect, |settings, lookup| {
        quick(settings);
        settings.breaker.pause = PATIENCE;
        settings.breaker.pause_max = PATIENCE;
        lookup.sql.as_mut().unwrap().query = dialect.slow.to_owned();
    });
    // Connecting may take long as well, on a busy machine: either way it is slow.
    for _ in 0..3 {
        let Outcome::StoreDown(error) = lookup.get("a.example").answer().await.outcome else { panic!("it is slow") };
        assert!(matches!(error.failure, Failure::Timeout | Failure::Connect(_)), "{error}");
    }
    let Outcome::StoreDown(error) = lookup.get("a.example").answer().await.outcome else { panic!("it is left alone") };
    assert_eq!(error.to_string(), "store `db`: left alone for a while after failures in a row (its breaker is open)");
    let state = sql_state(&stores, "db").await;
    assert_eq!((state.breaker, state.busy, state.idle), (BreakerState::Open, 0, 0));
}

async fn connection_limit(dialect: &Dialect<'_>) {
    execute(&dialect.admin, &[dialect.close]).await;
    let (_, stores) = start(dialect, |settings, _| settings.breaker.pause = Duration::from_millis(1));
    let holder = stores.sql("db").unwrap();
    // Sessions of before may not have ended yet.
    until("somebody has the one session", async || holder.query("SELECT 1", vec![]).await.is_ok()).await;
    let (lookup, _stores) = start(dialect, |settings, _| settings.breaker.pause = Duration::from_millis(1));
    let Outcome::StoreDown(error) = lookup.get("a.example").answer().await.outcome else { panic!("there is no room") };
    assert!(matches!(&error.failure, Failure::Connect(why) if why.contains("onnections")), "{error}");
    execute(&dialect.admin, &[dialect.open]).await;
    until("there is room again", async || name(&lookup, "a.example").await == "hit").await;
}

/// While it is frozen, what was known goes on, marked as stale; what was not is down.
async fn frozen(dialect: &Dialect<'_>, server: &Peer) {
    let (lookup, stores) = start(dialect, |settings, lookup| {
        quick(settings);
        settings.breaker.pause = Duration::from_millis(10);
        let short = Duration::from_millis(64);
        lookup.memory = Some(MemoryTier {
            ttl: short,
            negative_ttl: short,
            jitter: 0.0,
            refresh_ahead: None,
            ..MemoryTier::default()
        });
    });
    until("it is known", async || name(&lookup, "a.example").await == "hit").await;
    server.freeze();
    until("it has expired", async || name(&lookup, "a.example").await == "stale").await;
    let answer = lookup.get("a.example").answer().await;
    let Outcome::Stale(targets, error) = answer.outcome else { panic!("{answer:?}") };
    assert_eq!(targets.to_string(), "10.0.0.1:81");
    assert!(matches!(error.failure, Failure::Timeout | Failure::Connect(_) | Failure::BreakerOpen), "{error}");
    assert_eq!(name(&lookup, "unknown.example").await, "store-down");
    assert!(answer.age >= Duration::from_millis(64) && answer.ttl_left.is_zero());
    server.thaw();
    until("it is fetched anew", async || name(&lookup, "a.example").await == "hit").await;
    assert!(lookup.counts().stale > 0 && sql_state(&stores, "db").await.connects > 1);
}

async fn restarted(dialect: &Dialect<'_>, server: &mut Peer) {
    let (lookup, stores) = start(dialect, |settings, lookup| {
        settings.breaker.pause = Duration::from_millis(10);
        lookup.memory = None;
    });
    assert_eq!(name(&lookup, "a.example").await, "hit");
    server.kill();
    let Outcome::StoreDown(error) = lookup.get("a.example").answer().await.outcome else { panic!("it is down") };
    assert_eq!(error.failure.name(), "connect");
    until("it is left alone", async || {
        name(&lookup, "a.example").await;
        sql_state(&stores, "db").await.breaker != BreakerState::Closed
    })
    .await;
    server.restart();
    until("it is back", async || name(&lookup, "a.example").await == "hit").await;
    assert_eq!(sql_state(&stores, "db").await.breaker, BreakerState::Closed);
}

/// A server that is back is found although nobody asks, and requests find a connection that works.
async fn found_again(dialect: &Dialect<'_>, server: &mut Peer) {
    let (lookup, stores) = start(dialect, |settings, lookup| {
        (settings.breaker.failures, settings.breaker.pause) = (2, Duration::from_millis(20));
        lookup.memory = None;
    });
    assert_eq!(name(&lookup, "a.example").await, "hit");
    server.kill();
    until("it is left alone", async || {
        name(&lookup, "a.example").await;
        sql_state(&stores, "db").await.breaker != BreakerState::Closed
    })
    .await;
    // For longer than any pause that grows without a bound would stay short.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let (queries, connects) = (sql_state(&stores, "db").await.queries, sql_state(&stores, "db").await.connects);
    assert_eq!(name(&lookup, "a.example").await, "store-down");
    assert_eq!(sql_state(&stores, "db").await.queries, queries, "no request finds out");
    server.restart();
    until("it is found", async || sql_state(&stores, "db").await.breaker == BreakerState::Closed).await;
    let found = sql_state(&stores, "db").await;
    assert_eq!((found.queries, found.connects, found.idle), (queries, connects + 1, 1));
    assert_eq!(name(&lookup, "a.example").await, "hit");
    assert_eq!(sql_state(&stores, "db").await.connects, connects + 1, "the connection was kept");
}

/// A caller's mistake is no failure of the store, nor of the connection.
async fn mistakes(dialect: &Dialect<'_>) {
    let (lookup, stores) = start(dialect, |settings, _| {
        (settings.breaker.failures, settings.connections) = (2, 1);
        (settings.query_timeout, settings.connect_timeout) = (PATIENCE, PATIENCE);
    });
    let script = stores.sql("db").unwrap().used_by("route");
    for _ in 0..5 {
        for (query, parameters) in [
            (dialect.needs_one, vec![]),
            (dialect.needs_one, vec![Value::Int(1), Value::Int(2)]),
            ("SELEKT 1", vec![]),
            ("SELECT 1 FROM nowhere", vec![]),
        ] {
            let error = script.query(query, parameters).await.unwrap_err();
            assert!(matches!(error.failure, Failure::Refused(_)), "{query}: {error}");
        }
        assert!(script.query(dialect.needs_one, vec![Value::Text("x".to_owned())]).await.is_ok());
    }
    assert_eq!(name(&lookup, "a.example").await, "hit");
    let state = sql_state(&stores, "db").await;
    assert_eq!((state.breaker, state.connects), (BreakerState::Closed, 1));
}

/// Scripts have a share of the connections and breakers of their own.
async fn scripts_that_sleep(dialect: &Dialect<'_>) {
    let script = |stores: &Stores| stores.sql("db").unwrap().used_by("route");
    // However long they sleep, look-ups find a connection.
    let (lookup, stores) = start(dialect, |settings, lookup| {
        (settings.query_timeout, settings.connect_timeout) = (PATIENCE, PATIENCE);
        (lookup.memory, lookup.wait) = (None, PATIENCE);
    });
    // They are carried out, whether anybody waits for them or not.
    let sleeper = script(&stores);
    let mut asleep: Vec<_> = (0..5).map(|_| Box::pin(sleeper.query(dialect.sleeps, vec![]))).collect();
    assert!(asleep.iter_mut().all(is_pending));
    for _ in 0..10 {
        assert_eq!(name(&lookup, "a.example").await, "hit");
    }
    let state = sql_state(&stores, "db").await;
    assert_eq!((state.busy, state.waiting, state.breaker), (1, 4, BreakerState::Closed));
    drop(asleep);
    drop((lookup, sleeper, stores));
    // Nor is it held against the store that they take too long, as it answers.
    let (_, stores) = start(dialect, |settings, _| {
        quick(settings);
        settings.connect_timeout = PATIENCE;
    });
    for _ in 0..5 {
        assert_eq!(script(&stores).query(dialect.sleeps, vec![]).await.unwrap_err().failure, Failure::Timeout);
    }
    assert_eq!(sql_state(&stores, "db").await.breaker, BreakerState::Closed);
}

#[test]
fn mariadb() {
    let Some(mut database) = MariaDb::start("sql: mariadb") else { return };
    let stores = Stores::start(vec![sql("admin", &database.url("root", "gate"))]).unwrap();
    let admin = stores.sql("admin").unwrap();
    let kill = |admin: SqlStore| {
        // Of its own runtime, as it is called between two steps of a test.
        std::thread::spawn(move || {
            run(async {
                let sessions = "SELECT id FROM information_schema.processlist WHERE user = 'gate'";
                let ids = admin.query(sessions, vec![]).await.unwrap().rows;
                assert!(!ids.is_empty());
                for id in ids {
                    let Value::Int(id) = id[0] else { panic!("{id:?}") };
                    admin.query(format!("KILL {id}"), vec![]).await.unwrap();
                }
                until("they are gone", async || admin.query(sessions, vec![]).await.unwrap().rows.is_empty()).await;
            });
        })
        .join()
        .unwrap();
    };
    let dialect = Dialect {
        query: "SELECT host FROM domain WHERE domain = ?",
        slow: "SELECT host FROM domain WHERE domain = ? AND SLEEP(30) = 0",
        sleeps: "SELECT SLEEP(30)",
        needs_one: "SELECT ?",
        kill_sessions: &kill,
        close: "ALTER USER gate@localhost WITH MAX_USER_CONNECTIONS 1",
        open: "ALTER USER gate@localhost WITH MAX_USER_CONNECTIONS 0",
        executed: Some("SHOW GLOBAL STATUS LIKE 'Com_stmt_execute'"),
        url: database.url("gate", "gate"),
        admin,
    };
    passwords(&dialect);
    run(types(
        &dialect.admin,
        "SELECT 1, -2, 18446744073709551615, 1.5e0, 1.5, 'x', x'00ff', TRUE, NULL, CAST('{\"a\":1}' AS CHAR), \
         YEAR('2026-11-22')",
        "SELECT NOW()",
    ));
    cases(&dialect, &mut database.0);
}

/// A user with a password: from its own setting, and never told.
fn passwords(dialect: &Dialect<'_>) {
    run(execute(
        &dialect.admin,
        &["CREATE USER secretive@localhost IDENTIFIED BY 'hunter2'", "GRANT ALL ON gate.* TO secretive@localhost"],
    ));
    let url = dialect.url.replace("gate@", "secretive@");
    for (password, fine) in [("hunter2", true), ("hunter3", false)] {
        let mut settings = SqlSettings::new(url.clone());
        settings.password = Some(Secret::new(password));
        let stores =
            Stores::start(vec![StoreSettings { name: "db".to_owned(), kind: StoreKind::Sql(settings) }]).unwrap();
        let result = run(stores.sql("db").unwrap().query("SELECT 1", vec![]));
        assert_eq!(result.is_ok(), fine, "{result:?}");
        let shown = format!("{result:?} {stores:?} {:?}", run(stores.states()));
        assert!(!shown.contains("hunter"), "{shown}");
    }
}

/// What comes back as what, and what cannot be read.
async fn types(store: &SqlStore, query: &str, unreadable: &str) {
    let row = store.query(query, vec![]).await.unwrap().rows.remove(0);
    let text = |text: &str| Value::Text(text.to_owned());
    assert_eq!(row[0], Value::Int(1));
    assert_eq!(row[1], Value::Int(-2));
    assert_eq!(row[2], text("18446744073709551615"));
    assert_eq!(row[3], Value::Float(1.5));
    assert_eq!(row[4], text("1.5"));
    assert_eq!(row[5], text("x"));
    assert_eq!(row[6], Value::Bytes(vec![0, 255]));
    assert!(matches!(row[7], Value::Bool(true) | Value::Int(1)));
    assert_eq!(row[8], Value::Null);
    assert_eq!(row[9], text("{\"a\":1}"));
    let error = store.query(unreadable, vec![]).await.unwrap_err();
    assert!(error.to_string().contains("cast it to text"), "{error}");
}

#[test]
fn postgres() {
    let Some(mut database) = Postgres::start("sql: postgres") else { return };
    let stores = Stores::start(vec![sql("admin", &database.url("admin"))]).unwrap();
    let admin = stores.sql("admin").unwrap();
    let kill = |admin: SqlStore| {
        std::thread::spawn(move || {
            run(async {
                let ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'gate'";
                assert!(!admin.query(ended, vec![]).await.unwrap().rows.is_empty());
                until("they are gone", async || admin.query(ended, vec![]).await.unwrap().rows.is_empty()).await;
            });
        })
        .join()
        .unwrap();
    };
    let dialect = Dialect {
        query: "SELECT host FROM domain WHERE domain = $1",
        slow: "SELECT host FROM domain, pg_sleep(30) WHERE domain = $1",
        sleeps: "SELECT pg_sleep(30)::text",
        needs_one: "SELECT $1::text",
        kill_sessions: &kill,
        close: "ALTER ROLE gate CONNECTION LIMIT 1",
        open: "ALTER ROLE gate CONNECTION LIMIT -1",
        executed: None,
        url: database.url("gate"),
        admin,
    };
    run(types(
        &dialect.admin,
        "SELECT 1, -2::int8, '18446744073709551615'::text, 1.5::float8, '1.5'::varchar, 'x'::char(1), \
         '\\x00ff'::bytea, TRUE, NULL::text, '{\"a\":1}'::json",
        "SELECT NOW()",
    ));
    run(async {
        let row = dialect
            .admin
            .query("SELECT '[1]'::jsonb, 'n'::name, 1::int2, 0.5::float4", vec![])
            .await
            .unwrap()
            .rows
            .remove(0);
        assert_eq!(row, [Value::Text("[1]".to_owned()), Value::Text("n".to_owned()), Value::Int(1), Value::Float(0.5)]);
    });
    cases(&dialect, &mut database.0);
}

#[test]
fn sqlite_has_rows_and_parameters_of_every_type() {
    let database = Sqlite::start();
    let mut store = sql("db", &database.url());
    let StoreKind::Sql(settings) = &mut store.kind else { panic!("it is SQL") };
    (settings.rows, settings.row_bytes) = (100, 1000);
    let stores = Stores::start(vec![store]).unwrap();
    let store = stores.sql("db").unwrap();
    run(async {
        let text = |text: &str| Value::Text(text.to_owned());
        let parameters = vec![
            Value::Null,
            Value::Int(-7),
            Value::Float(0.5),
            text("ü"),
            Value::Bytes(vec![0, 255]),
            Value::Bool(true),
        ];
        let rows = store.query("SELECT ? AS a, ?, ?, ?, ?, ?", parameters).await.unwrap();
        let expected =
            [Value::Null, Value::Int(-7), Value::Float(0.5), text("ü"), Value::Bytes(vec![0, 255]), Value::Int(1)];
        assert_eq!((rows.columns[0].as_str(), rows.rows), ("a", vec![expected.to_vec()]));
        let count = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?) SELECT i FROM n";
        assert_eq!(store.query(count, vec![Value::Int(100)]).await.unwrap().rows.len(), 100);
        let error = store.query(count, vec![Value::Int(101)]).await.unwrap_err();
        assert_eq!(error.to_string(), "store `db`: the result has more than 100 rows");
        let error = store.query("SELECT hex(zeroblob(501))", vec![]).await.unwrap_err();
        assert_eq!(error.failure.name(), "too-large");
        let error = store.query("SELEKT 1", vec![]).await.unwrap_err();
        assert!(matches!(&error.failure, Failure::Refused(why) if why.contains("SELEKT")), "{error}");
        assert_eq!(sql_state(&stores, "db").await.breaker, BreakerState::Closed, "that was not the store's fault");
    });
}

#[test]
fn a_locked_sqlite_is_a_store_that_does_not_answer() {
    let database = Sqlite::start();
    let mut store = sql("db", &database.url());
    let StoreKind::Sql(settings) = &mut store.kind else { panic!("it is SQL") };
    settings.query_timeout = Duration::from_millis(50);
    let stores = Stores::start(vec![store, sql("admin", &database.url())]).unwrap();
    run(async {
        let admin = stores.sql("admin").unwrap();
        execute(&admin, &["BEGIN EXCLUSIVE"]).await;
        let error = stores.sql("db").unwrap().query("SELECT * FROM domain", vec![]).await.unwrap_err();
        assert_eq!(error.failure, Failure::Timeout);
        execute(&admin, &["COMMIT"]).await;
        let again = async || stores.sql("db").unwrap().query("SELECT * FROM domain", vec![]).await.is_ok();
        until("it is free again", again).await;
    });
}

#[test]
fn a_database_that_is_not_there_says_so() {
    for url in [
        "sqlite:/nowhere/gate.db",
        "mysql://gate@localhost/gate?socket=/nowhere/m.sock",
        "postgres://gate@localhost/gate?host=/nowhere",
    ] {
        let mut store = sql("db", url);
        let StoreKind::Sql(settings) = &mut store.kind else { panic!("it is SQL") };
        (settings.breaker.failures, settings.breaker.pause, settings.breaker.pause_max) = (2, PATIENCE, PATIENCE);
        let stores = Stores::start(vec![store]).unwrap();
        run(async {
            let mut names = Vec::new();
            for _ in 0..3 {
                names.push(stores.sql("db").unwrap().query("SELECT 1", vec![]).await.unwrap_err().failure.name());
            }
            assert_eq!(names, ["connect", "connect", "breaker-open"], "{url}");
        });
    }
}

#[test]
fn garbage_and_silence_are_told() {
    let serve = |garbage: &'static [u8]| {
        move |mut stream: UnixStream| {
            let _ = stream.write_all(garbage);
            while stream.read(&mut [0; 4096]).is_ok_and(|count| count > 0) {}
        }
    };
    let cases: [&[u8]; 5] = [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\x05\x00\x00\x00\x0a5.5\x00",
        b"\xff\xff\xff\xff\xff\xff",
        b"E\x00\x00\x00\x03",
        b"",
    ];
    for garbage in cases {
        let fake = Fake::start(".s.PGSQL.5432", serve(garbage));
        let mysql = format!("mysql://gate@localhost/gate?socket={}", fake.path(".s.PGSQL.5432").display());
        let postgres = format!("postgres://gate@localhost/gate?host={}", fake.folder.path().display());
        for url in [mysql, postgres] {
            let mut store = sql("db", &url);
            let StoreKind::Sql(settings) = &mut store.kind else { panic!("it is SQL") };
            quick(settings);
            let stores = Stores::start(vec![store]).unwrap();
            let error = run(stores.sql("db").unwrap().query("SELECT 1", vec![])).unwrap_err();
            assert!(
                matches!(error.failure, Failure::InvalidReply(_) | Failure::Connect(_)),
                "{url}: {garbage:?}: {error}"
            );
        }
    }
}
