//! Rows of a database: every kind of row, one query for all who wait, limits, a store that is gone.

use std::process::Command;

use oroshi_certificates::{FinderSettings, Seal};
use oroshi_lookup::{Allow, Lookup, LookupSettings, SqlSettings, SqlTier, StoreKind, StoreSettings, Stores};

use super::*;

struct Database {
    folder: tempfile::TempDir,
    stores: Stores,
}

impl Database {
    /// `None` if sqlite3 is not installed.
    fn new(test: &str) -> Option<Self> {
        oroshi_testkit::need(test, "sqlite3")?;
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", folder.path().join("c.db").display());
        let store = StoreSettings { name: "db".to_owned(), kind: StoreKind::Sql(SqlSettings::new(url)) };
        let database = Database { folder, stores: Stores::start(vec![store]).unwrap() };
        database.run("CREATE TABLE certificate (name TEXT PRIMARY KEY, pem TEXT)");
        Some(database)
    }

    fn run(&self, statement: &str) {
        let status = Command::new("sqlite3").arg(self.folder.path().join("c.db")).arg(statement).status().unwrap();
        assert!(status.success(), "{statement}");
    }

    fn put(&self, name: &str, row: &str) {
        self.run(&format!("INSERT OR REPLACE INTO certificate VALUES ('{name}', '{row}')"));
    }

    fn certificates(&self, finder: FinderSettings) -> Arc<Current> {
        let query = "SELECT pem FROM certificate WHERE name = ?".to_owned();
        let lookup = LookupSettings {
            memory: None,
            allow: Allow::any(),
            sql: Some(SqlTier { store: "db".to_owned(), query }),
            ..LookupSettings::new("certificates")
        };
        let lookup = Lookup::start(lookup, &self.stores).unwrap();
        let mut settings = settings(Catalogue::default());
        (settings.lookup, settings.seal) = (Some((lookup, finder)), Some(Seal::new(SECRET).unwrap()));
        in_force(settings)
    }
}

#[test]
fn rows_are_plain_sealed_or_name_a_file_and_others_are_refused() {
    let Some(database) = Database::new("rows_are_plain_sealed_or_name_a_file_and_others_are_refused") else { return };
    let authority = Authority::new();
    let sign = |names: &[&str]| {
        let (chain, key) = authority.sign(names);
        format!("{chain}{key}")
    };
    database.put("plain.example", &sign(&["plain.example"]));
    let seal = Seal::new(SECRET).unwrap();
    database.put("sealed.example", &seal.seal(sign(&["sealed.example"]).as_bytes()).unwrap());
    let other = Seal::new(&SECRET.replace('0', "1")).unwrap();
    database.put("other-seal.example", &other.seal(sign(&["other-seal.example"]).as_bytes()).unwrap());
    database.put("*.wild.example", &sign(&["*.wild.example"]));
    fs::write(database.folder.path().join("filed.pem"), sign(&["filed.example"])).unwrap();
    database.put("filed.example", "file:filed.pem");
    database.put("outside.example", "file:../etc/site.pem");
    database.put("absolute.example", "file:/etc/site.pem");
    database.put("wrong.example", &sign(&["plain.example"]));
    database.put("keyless.example", &authority.sign(&["keyless.example"]).0);
    database.put("garbage.example", "what?");
    let folder = Some(database.folder.path().to_owned());
    let current = database.certificates(FinderSettings { folder, ..FinderSettings::default() });
    run(async {
        for name in ["plain.example", "sealed.example", "a.wild.example", "filed.example", "plain.example"] {
            shake(&current, &authority.client(name)).await.unwrap_or_else(|error| panic!("{name}: {error}"));
        }
        let refused = [
            "other-seal.example",
            "outside.example",
            "absolute.example",
            "wrong.example",
            "keyless.example",
            "garbage.example",
            "none.example",
            "none.example",
        ];
        for name in refused {
            let result = shake(&current, &authority.client(name)).await;
            assert!(was_refused(&result, "UnrecognisedName"), "{name}: {result:?}");
        }
        let counts = current.get().unwrap().counts();
        assert_eq!((counts.invalid, counts.negatives, counts.hits, counts.asked), (6, 1, 1, 11), "{counts:?}");
        assert_eq!((counts.entries, counts.handshakes, counts.refused), (4, 5, 8));
    });
}

#[test]
fn many_who_wait_cost_one_query_and_a_changed_row_comes_into_force() {
    let Some(database) = Database::new("many_who_wait_cost_one_query") else { return };
    let authority = Authority::new();
    let (chain, key) = authority.sign(&["one.example"]);
    database.put("one.example", &format!("{chain}{key}"));
    let current = database.certificates(FinderSettings::default());
    run(async {
        let mut all = tokio::task::JoinSet::new();
        for _ in 0..50 {
            let (current, client) = (Arc::clone(&current), authority.client("one.example"));
            all.spawn_local(async move { shake(&current, &client).await.map(|facts| facts.resumed) });
        }
        while let Some(result) = all.join_next().await {
            assert!(!result.unwrap().unwrap());
        }
        let certificates = current.get().unwrap();
        let counts = certificates.counts();
        assert_eq!((counts.asked, counts.handshakes, counts.hits + counts.joined), (1, 50, 49), "{counts:?}");
        // The row changes: the cache has the old one until it is purged or its time ends.
        let (chain, key) = authority.sign(&["one.example", "two.example"]);
        let row = format!("{chain}{key}");
        database.put("one.example", &row);
        database.put("two.example", &row);
        assert!(certificates.purge("ONE.example") && !certificates.purge("one.example"));
        shake(&current, &authority.client("one.example")).await.unwrap();
        shake(&current, &authority.client("two.example")).await.unwrap();
        assert_eq!(certificates.counts().asked, 3);
    });
}

#[test]
fn unknown_names_reach_the_store_within_limits() {
    let Some(database) = Database::new("unknown_names_reach_the_store_within_limits") else { return };
    let authority = Authority::new();
    // So slow that no allowance comes back within this test.
    let finder = FinderSettings { names_per_second: 5, wildcards: false, ..FinderSettings::default() };
    let current = database.certificates(finder);
    run(async {
        let began = std::time::Instant::now();
        for number in 0..100 {
            let result = shake(&current, &authority.client(&format!("{number}.example"))).await;
            assert!(was_refused(&result, "UnrecognisedName") || was_refused(&result, "InternalError"), "{result:?}");
        }
        let counts = current.get().unwrap().counts();
        let most = 5 + 5 * (began.elapsed().as_secs() + 1);
        assert!((5..=most).contains(&counts.asked), "{counts:?} of at most {most}");
        assert_eq!(counts.asked + counts.limited, 100);
    });
}

#[test]
fn what_is_cached_goes_on_while_the_store_is_gone() {
    let Some(database) = Database::new("what_is_cached_goes_on_while_the_store_is_gone") else { return };
    let authority = Authority::new();
    for name in ["one.example", "two.example"] {
        let (chain, key) = authority.sign(&[name]);
        database.put(name, &format!("{chain}{key}"));
    }
    // Each handshake finds the time of its certificate over.
    let finder = FinderSettings { ttl: Duration::from_millis(1), ..FinderSettings::default() };
    let current = database.certificates(finder);
    run(async {
        shake(&current, &authority.client("one.example")).await.unwrap();
        database.run("DROP TABLE certificate");
        for _ in 0..3 {
            shake(&current, &authority.client("one.example")).await.unwrap();
        }
        let result = shake(&current, &authority.client("two.example")).await;
        assert!(was_refused(&result, "InternalError"), "{result:?}");
        let counts = current.get().unwrap().counts();
        assert!(counts.store_down >= 2, "{counts:?}");
    });
}
