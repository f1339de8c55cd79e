//! `oroshi gate` with memcached in front of MariaDB: one of them may fail, a thousand clients ask for one key once, and
//! ten thousand hosts that nobody knows push none out that somebody does. The stores count for themselves.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::gate::{Answer, Gate, HANG, server};
use crate::metrics::{Metrics, until};
use crate::relay::Mode;
use crate::stores::{Fault, Store};

const TEST: &str = "memcached_in_front_of_mariadb";

#[test]
fn memcached_in_front_of_mariadb() {
    let (Some(mut cache), Some(mut database)) = (Store::memcached(TEST), Store::mariadb(TEST)) else { return };
    let folder = tempfile::tempdir().unwrap();
    let _app = server(folder.path(), "app.sock", 11);
    let app = folder.path();
    a_thousand_clients_ask_once(&cache, &mut database, app);
    unknown_hosts_push_nobody_out(&mut cache, &mut database, app);
    either_may_fail(&mut cache, &mut database, app);
}

/// A gateway with one look-up in both.
fn start(cache: &Store, database: &Store, app: &Path, limits: [&str; 2], memory: &str) -> Gate {
    let config = format!(
        "{}{}[lookup.domains]\nallow = [\"unix:{}/\"]\nwait = \"30s\"\nmemory = {{ {memory} }}\n{}{}[[route]]\n\
         lookup = \"domains\"\n",
        cache.section("cache", limits[0]),
        database.section("database", limits[1]),
        app.display(),
        cache.tier("cache"),
        database.tier("database"),
    );
    Gate::start(tempfile::tempdir().unwrap(), &config)
}

fn target(app: &Path) -> String {
    format!("unix:{}/app.sock", app.display())
}

fn said(metrics: &Metrics, tier: &str, result: &str) -> u64 {
    metrics.get(&format!("lookup_results_total{{lookup=\"domains\",tier=\"{tier}\",result=\"{result}\"}}"))
}

/// On two threads; nobody is answered before all have asked.
fn a_thousand_clients_ask_once(cache: &Store, database: &mut Store, app: &Path) {
    const CLIENTS: u64 = 1000;
    oroshi_net::ensure_descriptors(CLIENTS + 200).unwrap();
    database.put("cold.example", &target(app));
    let gate = start(cache, database, app, ["30s", "30s"], "ttl = \"1h\"");
    database.relay().set(Mode::Hold);
    let queries = database.asked();
    let (gets, sets) = (cache.asked(), cache.memcached_stat("cmd_set"));
    let clients: Vec<UnixStream> = (0..CLIENTS)
        .map(|_| {
            let mut client = UnixStream::connect(gate.path("public.sock")).unwrap();
            client.set_read_timeout(Some(HANG)).unwrap();
            client.write_all(b"GET / HTTP/1.1\r\nHost: cold.example\r\nConnection: close\r\n\r\n").unwrap();
            client
        })
        .collect();
    until(&gate, "all wait for one", |metrics| metrics.sum("lookup_joined_total", "") == CLIENTS - 1);
    database.relay().set(Mode::Pass);
    for client in clients {
        assert_eq!(Answer::read(client).status, 200);
    }
    assert_eq!(gate.get("cold.example", "/").status, 200);
    let metrics = until(&gate, "written back", |_| cache.memcached_stat("cmd_set") == sets + 1);
    assert_eq!(database.asked() - queries, 2, "the query, and the question how many there were");
    assert_eq!(cache.asked() - gets, 1);
    assert_eq!((metrics.sum("lookup_asked_total", ""), said(&metrics, "sql", "hit")), (CLIENTS, 1));
    assert_eq!((said(&metrics, "memcached", "miss"), said(&metrics, "memory", "hit")), (1, 1));
}

/// As many real hosts as there is room for.
fn unknown_hosts_push_nobody_out(cache: &mut Store, database: &mut Store, app: &Path) {
    const KNOWN: u64 = 1000;
    const UNKNOWN: u64 = 10_000;
    let rows: Vec<String> = (0..KNOWN).map(|host| format!("('real-{host}.example', '{}')", target(app))).collect();
    database.execute(&format!("INSERT INTO domain VALUES {}", rows.join(",")));
    let memory = format!("entries = {KNOWN}, negative-entries = 500, ttl = \"1h\", negative-ttl = \"1h\"");
    let gate = start(cache, database, app, ["30s", "30s"], &memory);
    assert_eq!(ask_all(&gate, "real", KNOWN, 200), KNOWN);
    let queries = database.asked();
    assert_eq!(ask_all(&gate, "made-up", UNKNOWN, 503), UNKNOWN);
    assert_eq!(database.asked() - queries, UNKNOWN + 1, "each once, and the question how many there were");
    // Nobody can say anything any more: what is answered stands in memory.
    cache.begin(Fault::Frozen);
    database.begin(Fault::Frozen);
    let before = Metrics::of(&gate);
    assert_eq!(ask_all(&gate, "real", KNOWN, 200), KNOWN);
    let metrics = Metrics::of(&gate);
    cache.end(Fault::Frozen);
    database.end(Fault::Frozen);
    assert_eq!(said(&metrics, "memory", "hit") - said(&before, "memory", "hit"), KNOWN);
    assert_eq!(metrics.sum("lookup_asked_total", ""), KNOWN + UNKNOWN);
    assert_eq!((said(&metrics, "sql", "hit"), said(&metrics, "sql", "negative")), (KNOWN, UNKNOWN));
    assert_eq!(metrics.sum("lookup_evictions_total", "values"), 0);
    assert_eq!((metrics.sum("lookup_entries", ""), metrics.sum("lookup_stale_total", "")), (KNOWN, 0));
    let negatives = metrics.sum("lookup_negative_entries", "");
    assert_eq!(metrics.sum("lookup_evictions_total", "negatives"), UNKNOWN - negatives);
    assert!((1..=500).contains(&negatives), "{negatives}");
}

/// Asks for so many hosts on a few connections, pipelined. How many answers have this status.
fn ask_all(gate: &Gate, name: &str, hosts: u64, status: u16) -> u64 {
    const CONNECTIONS: u64 = 20;
    let each = hosts / CONNECTIONS;
    let connections: Vec<UnixStream> = (0..CONNECTIONS)
        .map(|connection| {
            let mut requests = String::new();
            for host in connection * each..(connection + 1) * each {
                let close = if host + 1 == (connection + 1) * each { "Connection: close\r\n" } else { "" };
                requests += &format!("GET / HTTP/1.1\r\nHost: {name}-{host}.example\r\n{close}\r\n");
            }
            let mut stream = UnixStream::connect(gate.path("public.sock")).unwrap();
            stream.set_read_timeout(Some(HANG)).unwrap();
            stream.write_all(requests.as_bytes()).unwrap();
            stream
        })
        .collect();
    let answers = connections.into_iter().map(|mut stream| {
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text.matches(&format!("HTTP/1.1 {status} ")).count() as u64
    });
    answers.sum()
}

/// What the one has is served while the other is gone; and a cache that fails costs a moment, and no answer.
fn either_may_fail(cache: &mut Store, database: &mut Store, app: &Path) {
    let target = target(app);
    let moment = "ttl = \"20ms\", negative-ttl = \"20ms\", jitter = 0, refresh-ahead = \"off\"";
    let late = Fault::Slow(Duration::from_secs(50));
    let garbage = Fault::Garbage(b"HTTP/1.1 400 Bad Request\r\n\r\n");
    for (number, fault) in
        [Fault::Down, Fault::Frozen, late, Fault::Full, Fault::Killed, garbage].into_iter().enumerate()
    {
        let new = [format!("cache-{number}.example"), format!("database-{number}.example")];
        new.iter().for_each(|host| database.put(host, &target));
        let gate = start(cache, database, app, ["100ms", "30s"], moment);
        served(&gate, "cold.example");
        cache.begin(fault);
        // First from the database, then on until the cache is left alone, and beyond.
        for _ in 0..10 {
            assert_eq!(gate.get(&new[0], "/").status, 200, "{fault:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
        let metrics = Metrics::of(&gate);
        assert_eq!(metrics.sum("lookup_stale_total", ""), 0, "{fault:?}");
        assert!(said(&metrics, "sql", "hit") > 0, "{fault:?}");
        cache.end(fault);
        let hits = said(&Metrics::of(&gate), "memcached", "hit");
        until(&gate, "memcached is asked again", |metrics| {
            assert_eq!(gate.get(&new[0], "/").status, 200, "{fault:?}");
            said(metrics, "memcached", "hit") > hits && metrics.sum("store_breaker_open", "") == 0
        });

        let gate = start(cache, database, app, ["30s", "100ms"], moment);
        served(&gate, "cold.example");
        served(&gate, &new[0]);
        // The database must have been asked, so that it has a session to lose.
        assert_eq!(gate.get(&format!("nobody-{number}.example"), "/").status, 503);
        let writes = said(&Metrics::of(&gate), "memcached", "hit");
        database.begin(fault);
        for _ in 0..5 {
            // Both stand in the cache: the one with its target, of the other that there is none.
            assert_eq!(gate.get(&new[0], "/").status, 200, "{fault:?}");
            let answer = gate.get(&format!("nobody-{number}.example"), "/");
            assert_eq!((answer.status, &*answer.body), (503, "no server is known for this host\n"), "{fault:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
        let answer = gate.get(&new[1], "/");
        if fault == Fault::Killed {
            assert_eq!(answer.status, 200, "{answer:?}");
        } else {
            assert_eq!((answer.status, answer.field("Retry-After")), (503, Some("1")), "{fault:?}: {answer:?}");
        }
        let metrics = Metrics::of(&gate);
        assert!(said(&metrics, "memcached", "hit") > writes, "{fault:?}");
        assert_eq!(metrics.sum("lookup_stale_total", ""), 0, "{fault:?}");
        database.end(fault);
        served(&gate, &new[1]);
        until(&gate, "the breaker is closed", |metrics| metrics.sum("store_breaker_open", "") == 0);
    }
}

/// Asks until it is answered by the server behind: a store may take its time to begin.
#[track_caller]
fn served(gate: &Gate, host: &str) {
    let began = Instant::now();
    while gate.get(host, "/").status != 200 {
        assert!(began.elapsed() < HANG, "{host} is not served");
        std::thread::sleep(Duration::from_millis(2));
    }
}
