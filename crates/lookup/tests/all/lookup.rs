//! Look-ups as their users see them, on SQLite: what is asked once, what is kept, what is told.

use std::io::Read as _;
use std::sync::Arc;
use std::time::Duration;

use crate::peers::{Fake, Sqlite, lookup, memcached, run, sql, sql_state, until};
use oroshi_lookup::{
    Lookup, LookupResult, LookupSettings, MemcachedTier, MemoryEntry, MemoryTier, Outcome, SqlTier, StartError,
    StoreEntry, Stores, Tier,
};

const QUERY: &str = "SELECT host FROM domain WHERE domain = ?";

fn start(database: &Sqlite, change: impl FnOnce(&mut LookupSettings)) -> (Lookup, Stores) {
    let stores = Stores::start(vec![sql("db", &database.url())]).unwrap();
    let mut settings = in_db();
    change(&mut settings);
    (Lookup::start(settings, &stores).unwrap(), stores)
}

/// Of what stands in the store `db`.
fn in_db() -> LookupSettings {
    let mut settings = lookup();
    settings.sql = Some(SqlTier { store: "db".to_owned(), query: QUERY.to_owned() });
    settings
}

/// `hit 10.0.0.1:80`, `negative`...
async fn get(lookup: &Lookup, key: &str) -> String {
    let answer = lookup.get(key).answer().await;
    match answer.outcome.targets() {
        Some(targets) => format!("{} {targets} from {}", answer.outcome.name(), answer.tier),
        None => format!("{} from {}", answer.outcome.name(), answer.tier),
    }
}

#[test]
fn every_outcome_has_its_own_type() {
    let database = Sqlite::start();
    let (lookup, stores) =
        start(&database, |settings| settings.allow = oroshi_lookup::Allow::parse(["10.0.0.0/8"]).unwrap());
    run(async {
        database
            .execute(
                "INSERT INTO domain VALUES ('a.example', '10.0.0.1:81'), ('null.example', NULL), \
                          ('bad.example', 'a b')",
            )
            .await;
        database
            .execute(
                "INSERT INTO domain VALUES ('inside.example', '127.0.0.1:22'), ('blob.example', x'31302E302E302E33')",
            )
            .await;
        for turn in ["sql", "memory"] {
            assert_eq!(get(&lookup, "a.example").await, format!("hit 10.0.0.1:81 from {turn}"));
            assert_eq!(get(&lookup, "blob.example").await, format!("hit 10.0.0.3:80 from {turn}"));
            assert_eq!(get(&lookup, "none.example").await, format!("negative from {turn}"));
            assert_eq!(get(&lookup, "null.example").await, format!("negative from {turn}"));
            assert_eq!(get(&lookup, "bad.example").await, format!("invalid from {turn}"));
            assert_eq!(get(&lookup, "inside.example").await, format!("invalid from {turn}"));
        }
        let Outcome::Invalid(reason) = lookup.get("inside.example").answer().await.outcome else {
            panic!("it is inside")
        };
        assert_eq!(&*reason, "`127.0.0.1:22` is not among the allowed targets");
        assert_eq!(sql_state(&stores, "db").await.queries, 6, "each key once");
        let counts = lookup.counts();
        assert_eq!((counts.sql.hits, counts.sql.negatives, counts.sql.invalid, counts.sql.errors), (2, 2, 2, 0));
        assert_eq!((counts.memory.hits, counts.memory.negatives, counts.memory.misses), (2, 5, 6));
        assert_eq!((counts.asked, counts.joined, counts.keys_in_flight), (6, 0, 0));
        assert_eq!(counts.sql.latency.buckets.iter().sum::<u64>(), 6);
    });
}

#[test]
fn a_thousand_who_ask_for_one_key_cause_one_query() {
    let database = Sqlite::start();
    let (lookup, stores) = start(&database, |_| {});
    run(database.execute("INSERT INTO domain VALUES ('a.example', '10.0.0.1')"));
    let start = Arc::new(std::sync::Barrier::new(4));
    let ask = |_| {
        let (lookup, start) = (lookup.clone(), Arc::clone(&start));
        std::thread::spawn(move || {
            start.wait();
            run(async {
                let all: Vec<LookupResult> = (0..250).map(|_| lookup.get("a.example")).collect();
                let mut hits = 0;
                for one in all {
                    hits += u32::from(one.answer().await.outcome.name() == "hit");
                }
                hits
            })
        })
    };
    let threads: Vec<_> = (0..4).map(ask).collect();
    assert_eq!(threads.into_iter().map(|thread| thread.join().unwrap()).sum::<u32>(), 1000);
    assert_eq!(run(sql_state(&stores, "db")).queries, 1);
    let counts = lookup.counts();
    assert_eq!(counts.asked - counts.joined, 1);
}

#[test]
fn who_goes_away_costs_nothing_and_what_was_asked_is_kept() {
    let database = Sqlite::start();
    let (lookup, stores) = start(&database, |settings| settings.waiting = 100);
    run(async {
        database.execute("INSERT INTO domain VALUES ('a.example', '10.0.0.1')").await;
        for _ in 0..50 {
            drop(lookup.get("a.example"));
        }
        assert_eq!(lookup.get("a.example").answer().await.outcome.name(), "hit");
        // They have left their room to others.
        for n in 0..100 {
            assert!(matches!(lookup.get(&format!("{n}.example")), LookupResult::Later(_)));
        }
        until("all is answered", async || lookup.counts().memory.negative_entries == 100).await;
        assert_eq!((sql_state(&stores, "db").await.queries, lookup.counts().overloaded), (101, 0));
    });
}

#[test]
fn too_much_at_once_is_refused() {
    // It takes what it is asked, and never answers.
    let silent = Fake::start("m.sock", |mut stream| while stream.read(&mut [0; 4096]).is_ok_and(|count| count > 0) {});
    let stores =
        Stores::start(vec![memcached("cache", &[format!("unix:{}", silent.path("m.sock").display())])]).unwrap();
    let start = |change: fn(&mut LookupSettings)| {
        let mut settings = lookup();
        settings.memcached = Some(MemcachedTier::new("cache"));
        settings.wait = Duration::from_millis(300);
        change(&mut settings);
        Lookup::start(settings, &stores).unwrap()
    };
    run(async {
        let lookup = start(|settings| settings.keys_in_flight = 5);
        let all: Vec<LookupResult> = (0..20).map(|n| lookup.get(&format!("{n}.example"))).collect();
        let mut names = Vec::new();
        // The last first: they are told at once, the others when their time is up.
        for one in all.into_iter().rev() {
            names.push(one.answer().await.outcome.name());
        }
        assert_eq!(names[..15], ["overloaded"; 15]);
        assert_eq!(names[15..], ["store-down"; 5]);
        assert_eq!(lookup.counts().overloaded, 15);
        until("nothing is asked for any more", async || lookup.counts().keys_in_flight == 0).await;

        let lookup = start(|settings| settings.waiting = 3);
        let all: Vec<LookupResult> = (0..10).map(|n| lookup.get(&format!("{n}.example"))).collect();
        let now = all
            .iter()
            .filter(|one| matches!(one, LookupResult::Now(answer) if answer.outcome == Outcome::Overloaded))
            .count();
        assert_eq!((now, lookup.counts().overloaded), (7, 7));
    });
}

#[test]
fn a_hit_that_grows_old_is_fetched_anew_once() {
    let database = Sqlite::start();
    let (lookup, stores) = start(&database, |settings| {
        let memory = MemoryTier {
            ttl: Duration::from_secs(3600),
            refresh_ahead: Some(1e-6),
            jitter: 0.0,
            ..MemoryTier::default()
        };
        settings.memory = Some(memory);
    });
    run(async {
        database.execute("INSERT INTO domain VALUES ('a.example', '10.0.0.1')").await;
        assert_eq!(get(&lookup, "a.example").await, "hit 10.0.0.1:80 from sql");
        database.execute("UPDATE domain SET host = '10.0.0.2'").await;
        until("the new value", async || {
            let answer = lookup.get("a.example");
            assert!(matches!(answer, LookupResult::Now(_)), "nobody waits for it");
            answer.answer().await.outcome.targets().unwrap().to_string() == "10.0.0.2:80"
        })
        .await;
        assert_eq!(lookup.counts().memory.refreshes + 1, sql_state(&stores, "db").await.queries);
    });
}

#[test]
fn what_is_purged_is_asked_for_again() {
    let database = Sqlite::start();
    let (lookup, _stores) = start(&database, |_| {});
    run(async {
        database
            .execute(
                "INSERT INTO domain VALUES ('a.example', '10.0.0.1'), ('ab.example', '10.0.0.1'), \
                          ('b.example', '10.0.0.1')",
            )
            .await;
        let tiers = async || {
            let mut tiers = Vec::new();
            for key in ["a.example", "ab.example", "b.example"] {
                tiers.push(lookup.get(key).answer().await.tier.as_str());
            }
            tiers.join(" ")
        };
        assert_eq!(tiers().await, "sql sql sql");
        assert!(lookup.purge("b.example") && !lookup.purge("c.example"));
        assert_eq!(tiers().await, "memory memory sql");
        assert_eq!(lookup.purge_prefix("a"), 2);
        assert_eq!(tiers().await, "sql sql memory");
        assert_eq!(lookup.purge_prefix(""), 3);
        assert_eq!(tiers().await, "sql sql sql");
        assert_eq!(lookup.purge_everywhere("a.example").await, Ok(true));
    });
}

#[test]
fn a_key_is_explained_tier_by_tier() {
    let database = Sqlite::start();
    let (lookup, _stores) = start(&database, |_| {});
    run(async {
        database.execute("INSERT INTO domain VALUES ('a.example', '10.0.0.1'), ('bad.example', 'a b')").await;
        let before = lookup.explain("a.example").await;
        assert_eq!((before.memory, before.in_flight, before.memcached), (None, false, None));
        get(&lookup, "a.example").await;
        database.execute("UPDATE domain SET host = '10.0.0.2' WHERE domain = 'a.example'").await;
        let after = lookup.explain("a.example").await;
        let Some(MemoryEntry { from: Tier::Sql, value: Ok(kept), ttl_left, .. }) = after.memory else {
            panic!("{after:?}")
        };
        assert_eq!(kept.to_string(), "10.0.0.1:80");
        assert!(ttl_left > Duration::ZERO && ttl_left <= Duration::from_secs(66));
        let Some((StoreEntry::Targets(held), state)) = after.sql else { panic!("it is there") };
        assert_eq!(
            (held.to_string().as_str(), state.breaker.as_str(), state.busy, state.connects),
            ("10.0.0.2:80", "closed", 0, 1)
        );
        let Some((StoreEntry::Invalid(reason), _)) = lookup.explain("bad.example").await.sql else {
            panic!("it is invalid")
        };
        assert!(reason.contains("`a b` is not a target"), "{reason}");
        assert!(matches!(lookup.explain("none.example").await.sql, Some((StoreEntry::Negative, _))));
    });
}

#[test]
fn without_memory_the_stores_are_asked_each_time() {
    let database = Sqlite::start();
    let (lookup, stores) = start(&database, |settings| settings.memory = None);
    run(async {
        for _ in 0..3 {
            assert_eq!(get(&lookup, "a.example").await, "negative from sql");
        }
        assert_eq!(sql_state(&stores, "db").await.queries, 3);
        assert_eq!((lookup.purge("a.example"), lookup.purge_prefix("")), (false, 0));
    });
}

#[test]
fn what_cannot_work_does_not_start() {
    let stores = Stores::start(vec![sql("db", "sqlite:/nowhere/a.db")]).unwrap();
    let errors = Lookup::start(lookup(), &stores).unwrap_err().to_string();
    assert!(errors.contains("domains: tiers:"), "{errors}");
    let mut settings = lookup();
    settings.memcached = Some(MemcachedTier::new("db"));
    let error = Lookup::start(settings, &stores).unwrap_err();
    assert_eq!(error.to_string(), "`domains` asks the memcached store `db`, and there is none of this name and kind");
    assert!(matches!(Stores::start(vec![memcached("a", &[])]), Err(StartError::Settings(_))));
    let twice = vec![sql("db", "sqlite:/a"), sql("db", "sqlite:/a")];
    assert!(matches!(Stores::start(twice), Err(StartError::SameName(_))));
    assert!(stores.memcached("db").is_err() && stores.sql("db").is_ok() && stores.sql("x").is_err());
}

#[test]
fn other_settings_replace_what_they_change() {
    let (one, two) = (Sqlite::start(), Sqlite::start());
    let (lookup, stores) = start(&one, |settings| settings.memory = None);
    run(async {
        one.execute("INSERT INTO domain VALUES ('a.example', '10.0.0.1')").await;
        two.execute("INSERT INTO domain VALUES ('a.example', '10.0.0.2')").await;
        assert_eq!(get(&lookup, "a.example").await, "hit 10.0.0.1:80 from sql");
        stores.update(vec![sql("db", &one.url()), sql("other", &two.url())]).unwrap();
        assert_eq!(get(&lookup, "a.example").await, "hit 10.0.0.1:80 from sql");
        assert_eq!(sql_state(&stores, "db").await.connects, 1, "it was left as it is");
        assert!(stores.update(vec![sql("db", "nonsense:")]).is_err());
        stores.update(vec![sql("db", &two.url())]).unwrap();
        assert_eq!(get(&lookup, "a.example").await, "hit 10.0.0.2:80 from sql");
        stores.update(vec![]).unwrap();
        assert_eq!(get(&lookup, "a.example").await, "store-down from none");
    });
}

#[test]
fn stores_beside_others_are_apart_from_them() {
    let (one, two, three) = (Sqlite::start(), Sqlite::start(), Sqlite::start());
    let stores = Stores::start(vec![sql("db", &one.url()), sql("same", &three.url())]).unwrap();
    let look_up = Lookup::start(in_db(), &stores).unwrap();
    run(async {
        one.execute("INSERT INTO domain VALUES ('a.example', '10.0.0.1')").await;
        two.execute("INSERT INTO domain VALUES ('a.example', '10.0.0.2'), ('b.example', '10.0.0.2')").await;
        let first = async |stores: &Stores, name: &str| {
            let rows = stores.sql(name).unwrap().query("SELECT count(*) FROM domain", vec![]).await.unwrap();
            format!("{:?}", rows.rows[0][0])
        };
        assert_eq!((first(&stores, "db").await, first(&stores, "same").await), ("Int(1)".into(), "Int(0)".into()));
        assert!(stores.beside(vec![sql("db", "nonsense:")]).is_err());
        let others = stores.beside(vec![sql("db", &two.url()), sql("same", &three.url())]).unwrap();
        let fresh = Lookup::start(in_db(), &others).unwrap();
        // The ones go on as they were, and what they say is what is kept.
        assert_eq!((first(&others, "db").await, first(&stores, "db").await), ("Int(2)".into(), "Int(1)".into()));
        assert_eq!(get(&fresh, "a.example").await, "hit 10.0.0.2:80 from sql");
        assert_eq!(get(&look_up, "a.example").await, "hit 10.0.0.1:80 from sql");
        assert_eq!(first(&others, "same").await, "Int(0)");
        assert_eq!(sql_state(&others, "same").await.connects, 1, "it is the same store");
        // Whatever becomes of the others.
        let third = stores.beside(vec![]).unwrap();
        assert!(third.sql("db").is_err());
        drop(third);
        assert_eq!(get(&look_up, "b.example").await, "negative from sql");
        look_up.set_stores(&others);
        drop(stores);
        assert_eq!(get(&look_up, "a.example").await, "hit 10.0.0.1:80 from memory");
        look_up.purge("a.example");
        assert_eq!(get(&look_up, "a.example").await, "hit 10.0.0.2:80 from sql");
        assert_eq!(sql_state(&others, "same").await.connects, 1);
    });
}
