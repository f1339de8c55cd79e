//! memcached: the real one, and what stands in its place.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::peers::{Fake, Memcached, PATIENCE, Sqlite, lookup, memcached, run, sql, sql_state, until};
use oroshi_lookup::{
    Allow, BreakerState, Failure, Lookup, LookupSettings, MemcachedStore, MemcachedTier, Outcome, ServerState, SqlTier,
    StoreEntry, StoreKind, StoreSettings, StoreState, Stores, Tier,
};

fn store(servers: &[String], change: impl FnOnce(&mut oroshi_lookup::MemcachedSettings)) -> (MemcachedStore, Stores) {
    let mut settings = memcached("cache", servers);
    let StoreKind::Memcached(its) = &mut settings.kind else { panic!("it is memcached") };
    change(its);
    let stores = Stores::start(vec![settings]).unwrap();
    (stores.memcached("cache").unwrap(), stores)
}

/// memcached in front of SQLite.
fn both(
    cache: &str,
    database: &Sqlite,
    change: impl FnOnce(&mut LookupSettings, &mut Vec<StoreSettings>),
) -> (Lookup, Stores) {
    let mut settings = lookup();
    settings.memcached = Some(MemcachedTier { prefix: "gate/".to_owned(), ..MemcachedTier::new("cache") });
    settings.sql =
        Some(SqlTier { store: "db".to_owned(), query: "SELECT host FROM domain WHERE domain = ?".to_owned() });
    let mut stores = vec![memcached("cache", &[cache.to_owned()]), sql("db", &database.url())];
    change(&mut settings, &mut stores);
    let stores = Stores::start(stores).unwrap();
    (Lookup::start(settings, &stores).unwrap(), stores)
}

async fn servers(stores: &Stores) -> Vec<ServerState> {
    match stores.states().await.remove(0).1 {
        StoreState::Memcached(servers) => servers,
        StoreState::Sql(_) => panic!("the first is memcached"),
    }
}

fn quick(settings: &mut oroshi_lookup::MemcachedSettings) {
    (settings.timeout, settings.connect_timeout) = (Duration::from_millis(30), Duration::from_millis(30));
    settings.breaker.failures = 3;
}

/// As two gateways do it: each has one connection, and makes many changes at a time.
#[test]
fn changes_by_several_programs_are_all_made() {
    let Some(real) = Memcached::start("memcached: changes") else { return };
    let programs = [(); 2].map(|()| store(&[real.address()], |_| ()));
    run(async {
        let mut changes = tokio::task::JoinSet::new();
        for number in 0..200 {
            let store = programs[number % 2].0.clone();
            let more = |value: Option<&[u8]>| {
                let count: u32 = value.map_or(0, |text| str::from_utf8(text).unwrap().parse().unwrap());
                Some(((count + 1).to_string().into_bytes(), Duration::from_secs(60)))
            };
            changes.spawn(async move { store.update("count", Box::new(more)).await });
        }
        while let Some(made) = changes.join_next().await {
            assert_eq!(made.unwrap(), Ok(()));
        }
        let (store, _) = &programs[0];
        assert_eq!(store.get("count").await, Ok(Some(b"200".as_slice().into())));
        // One that changes nothing writes nothing.
        assert_eq!(store.update("other", Box::new(|_| None)).await, Ok(()));
        assert_eq!(store.get("other").await, Ok(None));
        assert!(matches!(store.update("a b", Box::new(|_| None)).await.unwrap_err().failure, Failure::Refused(_)));
    });
}

#[test]
fn values_go_in_and_come_out() {
    let Some(real) = Memcached::start("memcached: values") else { return };
    let (store, stores) = store(&[real.address()], |settings| settings.value_bytes = 1 << 20);
    run(async {
        assert_eq!(store.get("a").await, Ok(None));
        for value in [
            b"".to_vec(),
            b"10.0.0.1".to_vec(),
            b"END\r\n\r\nSTORED\r\n".to_vec(),
            (0..=255).collect(),
            vec![b'x'; 500_000],
        ] {
            store.set("a", value.clone(), None).await.unwrap();
            assert_eq!(store.get("a").await.unwrap().as_deref(), Some(&*value));
        }
        assert_eq!((store.delete("a").await, store.delete("a").await), (Ok(true), Ok(false)));
        for key in ["", "a b", "a\r\nflush_all\r\n", &"a".repeat(251)] {
            assert!(matches!(store.get(key).await.unwrap_err().failure, Failure::Refused(_)), "{key:?}");
        }
        assert!(matches!(
            store.set("a", vec![0; (1 << 20) + 1], None).await.unwrap_err().failure,
            Failure::TooLarge(_)
        ));
        // memcached's limit is for the key and what it adds too: it says so itself, and the connection lives on.
        assert!(matches!(store.set("a", vec![0; 1 << 20], None).await.unwrap_err().failure, Failure::Refused(_)));
        assert_eq!(store.get("a").await, Ok(None));
        assert_eq!(servers(&stores).await[0].connects, 1);
    });
}

#[test]
fn one_connection_carries_all_and_mixes_nothing_up() {
    let Some(real) = Memcached::start("memcached: one connection") else { return };
    let (store, _stores) = store(&[real.address()], |_| {});
    let threads: Vec<_> = (0..4)
        .map(|thread| {
            let store = store.clone();
            std::thread::spawn(move || {
                run(async {
                    for n in 0..200 {
                        let key = format!("{thread}-{n}");
                        // Dropped on its way: its answer must not be taken for the next one's.
                        let _ = tokio::time::timeout(Duration::ZERO, store.get(format!("gone-{key}"))).await;
                        store.set(key.clone(), key.clone(), None).await.unwrap();
                        assert_eq!(store.get(key.clone()).await.unwrap().as_deref(), Some(key.as_bytes()));
                    }
                });
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(real.stat("cmd_set"), 800);
    assert_eq!(real.stat("curr_connections"), 2, "the one that asks, and the one that all of them had");
}

#[test]
fn keys_are_divided_among_servers() {
    let (Some(one), Some(two)) =
        (Memcached::start("memcached: two servers"), Memcached::start("memcached: two servers"))
    else {
        return;
    };
    let (store, stores) = store(&[one.address(), two.address()], |_| {});
    run(async {
        for n in 0..200 {
            store.set(format!("{n}"), "x", None).await.unwrap();
        }
        let (at_one, at_two) = (one.stat("curr_items"), two.stat("curr_items"));
        assert_eq!(at_one + at_two, 200);
        assert!(at_one > 20 && at_two > 20, "{at_one} and {at_two}");
        // With one of them gone, what the other has is still found, and nothing moves to it.
        drop(two);
        let mut found = 0;
        for n in 0..200 {
            found += u64::from(store.get(format!("{n}")).await.is_ok_and(|value| value.is_some()));
        }
        assert_eq!(found, at_one);
        let states = servers(&stores).await;
        assert_eq!((states[0].breaker, states[1].breaker), (BreakerState::Closed, BreakerState::Open));
    });
}

#[test]
fn what_the_database_says_is_written_down_for_others() {
    let Some(real) = Memcached::start("memcached: write-back") else { return };
    let database = Sqlite::start();
    let (lookup, stores) = both(&real.address(), &database, |_, _| {});
    run(async {
        database.execute("INSERT INTO domain VALUES ('a.example', '10.0.0.1:81'), ('bad.example', 'a b')").await;
        let tier = async |lookup: &Lookup, key: &str| {
            let answer = lookup.get(key).answer().await;
            format!("{} {}", answer.outcome.name(), answer.tier)
        };
        assert_eq!(tier(&lookup, "a.example").await, "hit sql");
        assert_eq!(tier(&lookup, "none.example").await, "negative sql");
        assert_eq!(tier(&lookup, "bad.example").await, "invalid sql");
        until("both are written", async || lookup.counts().memcached.writes == 2).await;
        assert_eq!((real.stat("cmd_set"), real.stat("cmd_get")), (2, 3), "what is invalid is not written");
        assert!(real.say("get gate/a.example\r\n", "END\r\n").contains("\r\n10.0.0.1:81\r\n"));
        assert!(real.say("get gate/none.example\r\n", "END\r\n").contains("\r\n!none\r\n"));
        // With a time to live (`t` of the meta protocol), which reading does not make longer.
        for (key, most) in [("gate/a.example", 300), ("gate/none.example", 30)] {
            let answer = real.say(&format!("mg {key} t\r\n"), "\r\n");
            let left: u64 = answer.trim_end().strip_prefix("HD t").unwrap().parse().unwrap();
            assert!((1..=most).contains(&left), "{answer}");
        }
        // Another process.
        let mut settings = lookup.settings().clone();
        settings.name = "other".to_owned();
        let other = Lookup::start(settings, &stores).unwrap();
        assert_eq!(tier(&other, "a.example").await, "hit memcached");
        assert_eq!(tier(&other, "a.example").await, "hit memory");
        assert_eq!(tier(&other, "none.example").await, "negative memcached");
        assert_eq!(sql_state(&stores, "db").await.queries, 3);
        assert_eq!(real.stat("cmd_set"), 2, "what was read is not written again");
        // A purge takes it away everywhere.
        assert_eq!(other.purge_everywhere("a.example").await, Ok(true));
        assert_eq!(tier(&other, "a.example").await, "hit sql");
        let explanation = other.explain("none.example").await;
        assert_eq!(explanation.memcached.unwrap().0, StoreEntry::Negative);
    });
}

#[test]
fn a_poisoned_cache_points_nowhere() {
    let Some(real) = Memcached::start("memcached: poisoned") else { return };
    let database = Sqlite::start();
    let (lookup, _stores) =
        both(&real.address(), &database, |settings, _| settings.allow = Allow::parse(["10.0.0.0/8"]).unwrap());
    run(async {
        database.execute("INSERT INTO domain VALUES ('a.example', '10.0.0.1')").await;
        real.set("gate/a.example", "127.0.0.1:22");
        real.set("gate/b.example", "http://169.254.169.254/");
        let answer = lookup.get("a.example").answer().await;
        assert_eq!((answer.outcome.targets().unwrap().to_string().as_str(), answer.tier), ("10.0.0.1:80", Tier::Sql));
        assert_eq!(lookup.get("b.example").answer().await.outcome, Outcome::Negative);
        assert_eq!(lookup.counts().memcached.invalid, 2);
        until("it is put right", async || lookup.counts().memcached.writes == 2).await;
        assert!(real.say("get gate/a.example\r\n", "END\r\n").contains("\r\n10.0.0.1\r\n"));
    });
    // Without a database behind it, it is what there is.
    let stores = Stores::start(vec![memcached("cache", &[real.address()])]).unwrap();
    let mut settings = lookup.settings().clone();
    settings.sql = None;
    let alone = Lookup::start(settings, &stores).unwrap();
    run(async {
        real.set("gate/c.example", "127.0.0.1:22");
        assert_eq!(alone.get("c.example").answer().await.outcome.name(), "invalid");
        assert_eq!(alone.get("d.example").answer().await.outcome, Outcome::Negative);
        assert_eq!(alone.get("a.example").answer().await.outcome.name(), "hit");
    });
}

#[test]
fn one_that_is_down_is_left_alone_and_found_again() {
    let Some(mut real) = Memcached::start("memcached: down") else { return };
    let (store, stores) = store(&[real.address()], |settings| {
        settings.breaker.failures = 3;
        settings.breaker.pause = Duration::from_millis(20);
    });
    run(async {
        store.set("a", "1", None).await.unwrap();
        real.0.kill();
        let failures = async |count: usize| {
            let mut names = Vec::new();
            for _ in 0..count {
                names.push(store.get("a").await.unwrap_err().failure.name());
            }
            names
        };
        let names = failures(4).await;
        assert_eq!(names.last(), Some(&"breaker-open"), "{names:?}");
        real.0.restart();
        // Nobody asks meanwhile: it is found in the background, on a connection that is kept.
        until("it is found again", async || servers(&stores).await[0].breaker == BreakerState::Closed).await;
        assert_eq!((servers(&stores).await[0].connects, servers(&stores).await[0].connected), (2, true));
        assert_eq!(store.get("a").await, Ok(None));
        assert_eq!(servers(&stores).await[0].connects, 2);
    });
}

#[test]
fn one_that_accepts_and_does_not_answer_is_not_back() {
    let Some(real) = Memcached::start("memcached: back") else { return };
    let (store, stores) = store(&[real.address()], |settings| {
        quick(settings);
        (settings.breaker.pause, settings.breaker.pause_max) = (Duration::from_millis(5), Duration::from_millis(5));
    });
    let is_open = async || servers(&stores).await[0].breaker != BreakerState::Closed;
    run(async {
        real.0.freeze();
        until("it is left alone", async || store.get("a").await.is_err() && is_open().await).await;
        // The kernel goes on to accept for it.
        until("it was asked some times", async || servers(&stores).await[0].connects > 8).await;
        assert!(is_open().await);
        real.0.thaw();
        until("it is found again", async || !is_open().await).await;
    });
}

#[test]
fn a_restart_between_requests_is_not_noticed() {
    let Some(mut real) = Memcached::start("memcached: restart") else { return };
    let (store, stores) = store(&[real.address()], |_| {});
    run(async {
        store.set("a", "1", None).await.unwrap();
        real.0.kill();
        real.0.restart();
        until("the old connection is known to be closed", async || !servers(&stores).await[0].connected).await;
        assert_eq!(store.get("a").await, Ok(None));
        assert_eq!((servers(&stores).await[0].connects, servers(&stores).await[0].breaker), (2, BreakerState::Closed));
    });
}

#[test]
fn one_that_is_frozen_costs_a_moment_and_then_nothing() {
    let Some(real) = Memcached::start("memcached: frozen") else { return };
    let database = Sqlite::start();
    let (lookup, stores) = both(&real.address(), &database, |settings, stores| {
        settings.memory = None;
        let StoreKind::Memcached(cache) = &mut stores[0].kind else { panic!("the first is memcached") };
        quick(cache);
        (cache.breaker.pause, cache.breaker.pause_max) = (PATIENCE, PATIENCE);
    });
    run(async {
        database.execute("INSERT INTO domain VALUES ('a.example', '10.0.0.1')").await;
        real.0.freeze();
        for _ in 0..10 {
            assert_eq!(lookup.get("a.example").answer().await.tier, Tier::Sql);
        }
        let counts = lookup.counts();
        assert_eq!((counts.memcached.timeouts, counts.memcached.errors), (3, 7), "after three it is left alone");
        assert_eq!((counts.sql.hits, counts.memcached.writes), (10, 0));
        assert_eq!(servers(&stores).await[0].breaker, BreakerState::Open);
        real.0.thaw();
    });
}

#[test]
fn an_answer_that_comes_late_is_not_taken_for_the_next_ones() {
    // It answers the first request of a connection when the second comes, and so on: always one behind.
    let fake = Fake::start("m.sock", |mut stream| {
        let mut room = [0; 4096];
        let mut late: Option<Vec<u8>> = None;
        while let Ok(count @ 1..) = stream.read(&mut room) {
            for request in String::from_utf8_lossy(&room[..count]).lines() {
                let key = request.strip_prefix("get ").unwrap().to_owned();
                let answer = format!("VALUE {key} 0 {}\r\n{key}\r\nEND\r\n", key.len()).into_bytes();
                if let Some(late) = late.replace(answer) {
                    let _ = stream.write_all(&late);
                }
            }
        }
    });
    let (store, _stores) = store(&[format!("unix:{}", fake.path("m.sock").display())], |settings| {
        quick(settings);
        settings.breaker.failures = 1000;
    });
    run(async {
        for n in 0..5 {
            let key = format!("key-{n}");
            match store.get(key.clone()).await {
                Ok(value) => assert_eq!(value.as_deref(), Some(key.as_bytes())),
                Err(error) => assert!(matches!(error.failure, Failure::Timeout), "{error}"),
            }
        }
        assert_eq!(fake.connections(), 5, "a connection that is late is given up");
    });
}

#[test]
fn garbage_ends_the_connection_and_is_told() {
    let cases: [&[u8]; 7] = [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"VALUE a 0 3\r\nabcdef\r\nEND\r\n",
        b"VALUE other 0 1\r\nx\r\nEND\r\n",
        b"VALUE a 0 99999999\r\n",
        b"END\r\nEND\r\n",
        b"ERROR\r\n",
        &[0xff; 5000],
    ];
    for garbage in cases {
        let fake = Fake::start("m.sock", move |mut stream: UnixStream| {
            let mut room = [0; 4096];
            while stream.read(&mut room).is_ok_and(|count| count > 0) && stream.write_all(garbage).is_ok() {}
        });
        let (store, stores) = store(&[format!("unix:{}", fake.path("m.sock").display())], |_| {});
        run(async {
            let told = store.get("a").await;
            // What is a whole answer is one; that more comes, unasked, is noticed then.
            let whole = garbage.starts_with(b"END");
            assert!(
                whole && told == Ok(None) || matches!(told, Err(ref error) if error.failure.name() == "garbage"),
                "{told:?}"
            );
            until("the connection is closed", async || !servers(&stores).await[0].connected).await;
            let _ = store.get("a").await;
            assert_eq!(fake.connections(), 2);
        });
    }
}

#[test]
fn one_that_closes_at_once_is_told() {
    let fake = Fake::start("m.sock", drop);
    let (store, _stores) =
        store(&[format!("unix:{}", fake.path("m.sock").display())], |settings| settings.breaker.failures = 2);
    run(async {
        for expected in ["connection-lost", "connection-lost", "breaker-open"] {
            assert_eq!(store.get("a").await.unwrap_err().failure.name(), expected);
        }
    });
}

#[test]
fn its_connection_limit_is_a_failure_like_others() {
    let Some(real) = Memcached::start("memcached: connection limit") else { return };
    let mut held = Vec::new();
    // Until one is not served any more.
    loop {
        let mut stream = UnixStream::connect(real.address().strip_prefix("unix:").unwrap()).unwrap();
        let mut answer = [0; 7];
        let served = stream.write_all(b"version\r\n").and_then(|()| stream.read_exact(&mut answer));
        if served.is_err() || answer != *b"VERSION" {
            break;
        }
        held.push(stream);
    }
    assert!(held.len() < 64);
    let (store, _stores) = store(&[real.address()], |settings| settings.breaker.pause = Duration::from_millis(1));
    run(async {
        // It says so before anything was asked, and closes; which of these is seen first is open.
        let failure = store.get("a").await.unwrap_err().failure;
        assert!(
            matches!(failure, Failure::Lost(_)) || failure.to_string().contains("too many open connections"),
            "{failure}"
        );
        drop(held);
        until("there is room again", async || store.get("a").await == Ok(None)).await;
    });
}

#[test]
fn more_than_may_wait_is_refused() {
    let fake = Fake::start("m.sock", |mut stream| while stream.read(&mut [0; 4096]).is_ok_and(|count| count > 0) {});
    let (store, stores) = store(&[format!("unix:{}", fake.path("m.sock").display())], |settings| settings.pending = 20);
    run(async {
        // Half of what may wait is for scripts, which this is.
        let waiting: Vec<_> = (0..10)
            .map(|n| {
                let store = store.clone();
                Box::pin(async move { store.get(format!("{n}")).await })
            })
            .collect();
        for one in waiting {
            // Polled once, so that it is asked; nobody will answer.
            assert!(tokio::time::timeout(Duration::ZERO, one).await.is_err());
        }
        until("they wait", async || servers(&stores).await[0].pending == 10).await;
        assert_eq!(store.get("x").await.unwrap_err().failure, Failure::Busy);
    });
}
