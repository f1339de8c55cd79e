//! `oroshi gate` with real stores that are down, frozen, slow, full, rude, wrong, or come back: what clients see, for
//! how long they wait, what is served on, and that all is well again afterwards. And how often a store is asked at all.

use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use crate::gate::{Answer, Gate, HANG, server};
use crate::metrics::{Metrics, until};
use crate::stores::{Fault, Store};

/// What a fault comes to.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Seen {
    /// Nobody notices anything.
    Nothing,
    /// What was known is served on; what was not is 503, as soon as the store's own limits are over.
    StaleByLimit,
    /// The same, where the store's limits are a minute: as soon as the look-up's `wait` is over.
    StaleByWait,
}

const LATE: Fault = Fault::Slow(Duration::from_secs(50));
const A_LITTLE: Fault = Fault::Slow(Duration::from_millis(15));
const HTTP: Fault = Fault::Garbage(b"HTTP/1.1 400 Bad Request\r\n\r\n");
const NOISE: Fault = Fault::Garbage(b"\xff\x00\x5a\xff\xff\xff\xff\xff\n");

/// For each store that is a process.
const TABLE: [(Fault, Seen); 11] = [
    (Fault::Down, Seen::StaleByLimit),
    (Fault::Frozen, Seen::StaleByLimit),
    (Fault::Frozen, Seen::StaleByWait),
    (A_LITTLE, Seen::Nothing),
    (LATE, Seen::StaleByLimit),
    (LATE, Seen::StaleByWait),
    (Fault::Full, Seen::StaleByLimit),
    (Fault::ClosesIdle, Seen::Nothing),
    (Fault::Killed, Seen::Nothing),
    (HTTP, Seen::StaleByLimit),
    (NOISE, Seen::StaleByLimit),
];

#[test]
fn memcached_may_fail_in_every_way() {
    if let Some(mut store) = Store::memcached("memcached_may_fail_in_every_way") {
        table(&mut store, &TABLE);
    }
}

#[test]
fn mariadb_may_fail_in_every_way() {
    if let Some(mut store) = Store::mariadb("mariadb_may_fail_in_every_way") {
        table(&mut store, &TABLE);
    }
}

#[test]
fn postgresql_may_fail_in_every_way() {
    if let Some(mut store) = Store::postgres("postgresql_may_fail_in_every_way") {
        table(&mut store, &TABLE);
    }
}

/// A file has no connections that could end, and nobody who restarts it.
#[test]
fn sqlite_may_fail_in_every_way() {
    let rows = [
        (Fault::Frozen, Seen::StaleByLimit),
        (Fault::Frozen, Seen::StaleByWait),
        (A_LITTLE, Seen::Nothing),
        (HTTP, Seen::StaleByLimit),
    ];
    table(&mut Store::sqlite(), &rows);
}

fn table(store: &mut Store, rows: &[(Fault, Seen)]) {
    let folder = tempfile::tempdir().unwrap();
    let _app = server(folder.path(), "app.sock", 11);
    let target = format!("unix:{}/app.sock", folder.path().display());
    store.put("known.example", &target);
    store.put("kept.example", &target);
    for (number, &(fault, seen)) in rows.iter().enumerate() {
        store.put(&format!("new-{number}.example"), &target);
        row(store, number, fault, seen, folder.path());
    }
    restarted(store, folder.path());
}

/// A gateway with two look-ups in the same store: `/long` remembers for a minute, `/short` for a moment.
fn start(store: &Store, app: &Path, limit: &str, wait: &str) -> Gate {
    let lookup = |name: &str, memory: &str| {
        format!(
            "[lookup.{name}]\nallow = [\"unix:{}/\"]\nwait = \"{wait}\"\nmemory = {{ {memory} }}\n{}\n\
             [[route]]\nname = \"{name}\"\npath = \"/{name}\"\nlookup = \"{name}\"\n",
            app.display(),
            store.tier("store"),
        )
    };
    let short = "ttl = \"50ms\", negative-ttl = \"50ms\", jitter = 0, refresh-ahead = \"off\"";
    let other = format!("[[route]]\nname = \"static\"\npath = \"/static\"\nto = \"unix:{}/app.sock\"\n", app.display());
    let store = store.section("store", limit);
    let config = format!("{store}{}{}{other}", lookup("short", short), lookup("long", ""));
    Gate::start(tempfile::tempdir().unwrap(), &config)
}

/// Asks, and keeps account of the answers.
struct Clients {
    socket: PathBuf,
    answers: Mutex<BTreeMap<(String, u16), u64>>,
}

impl Clients {
    fn of(gate: &Gate) -> Clients {
        Clients { socket: gate.path("public.sock"), answers: Mutex::default() }
    }

    fn ask(&self, route: &str, host: &str) -> Answer {
        let mut stream = UnixStream::connect(&self.socket).unwrap();
        stream.set_read_timeout(Some(HANG)).unwrap();
        write!(stream, "GET /{route} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").unwrap();
        let answer = Answer::read(stream);
        *self.answers.lock().unwrap().entry((route.to_owned(), answer.status / 100)).or_default() += 1;
        answer
    }

    /// Asks until it is answered by the server behind.
    #[track_caller]
    fn until_served(&self, what: &str, route: &str, host: &str) {
        let began = Instant::now();
        loop {
            let answer = self.ask(route, host);
            if answer.status == 200 {
                return;
            }
            assert!(answer.status == 503 && began.elapsed() < HANG, "{what}: {answer:?}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// The gateway has counted what the clients have seen, to the last one.
    #[track_caller]
    fn agree_with(&self, gate: &Gate, what: &str) {
        let answers = self.answers.lock().unwrap();
        let all: u64 = answers.values().sum();
        let metrics = until(gate, what, |metrics| metrics.sum("requests_total", "") == all);
        for ((route, class), count) in &*answers {
            let series = format!("requests_total{{route=\"{route}\",status=\"{class}xx\"}}");
            assert_eq!(metrics.get(&series), *count, "{what}: {series}");
        }
    }
}

/// The most memory that the gateway has had, in bytes.
fn peak(gate: &Gate) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", gate.process.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1024
}

/// Stale answers of `/short`.
fn stale(gate: &Gate) -> u64 {
    Metrics::of(gate).get("lookup_stale_total{lookup=\"short\"}")
}

fn row(store: &mut Store, number: usize, fault: Fault, seen: Seen, app: &Path) {
    let what = format!("{} {fault:?} {seen:?}", store.kind());
    // Where nothing is to be noticed, no limit is reached by accident; where a limit is to be reached, it is short.
    let (limit, wait) = match seen {
        Seen::Nothing => ("30s", "30s"),
        Seen::StaleByLimit => ("200ms", "30s"),
        Seen::StaleByWait => ("60s", "200ms"),
    };
    store.prepare(fault);
    let gate = &start(store, app, limit, wait);
    let clients = Clients::of(gate);
    clients.until_served(&what, "short", "known.example");
    clients.until_served(&what, "long", "kept.example");
    let asked = "lookup_asked_total{lookup=\"long\"}";
    let asked_before = Metrics::of(gate).get(asked);
    store.begin(fault);

    let new = format!("new-{number}.example");
    if seen == Seen::Nothing {
        assert_eq!(clients.ask("short", &new).status, 200, "{what}");
        for _ in 0..5 {
            assert_eq!(clients.ask("short", "known.example").status, 200, "{what}");
        }
        assert_eq!(stale(gate), 0, "{what}");
    } else {
        let before = stale(gate);
        let began = Instant::now();
        while stale(gate) == before {
            assert_eq!(clients.ask("short", "known.example").status, 200, "{what}: what has expired is served");
            assert!(began.elapsed() < HANG, "{what}: it never expires");
        }
        let answer = clients.ask("short", &new);
        assert_eq!((answer.status, answer.field("Retry-After")), (503, Some("1")), "{what}: {answer:?}");
        assert_eq!(answer.body, "it cannot be found out now which server this host is at\n", "{what}");
        // Many at once, each for a key of its own. Meanwhile others are served.
        std::thread::scope(|scope| {
            let asking: Vec<_> = (0..20)
                .map(|client| {
                    let clients = &clients;
                    scope.spawn(move || clients.ask("short", &format!("unheard-{client}.example")).status)
                })
                .collect();
            for _ in 0..3 {
                assert_eq!(clients.ask("static", "a").status, 200, "{what}");
                assert_eq!(clients.ask("long", "kept.example").status, 200, "{what}");
                assert_eq!(clients.ask("short", "known.example").status, 200, "{what}");
            }
            for asking in asking {
                assert_eq!(asking.join().unwrap(), 503, "{what}");
            }
        });
    }
    if seen == Seen::StaleByWait {
        // Also a store whose own limit is not over is told of as one that did not answer.
        let timeouts = format!("lookup_results_total{{lookup=\"short\",tier=\"{}\",result=\"timeout\"}}", store.kind());
        until(gate, &what, |metrics| metrics.get(&timeouts) > 0);
    }
    // What stands in memory asks nobody.
    assert_eq!(clients.ask("long", "kept.example").status, 200, "{what}");
    assert_eq!(Metrics::of(gate).get(asked), asked_before, "{what}");

    store.end(fault);
    clients.until_served(&what, "short", &new);
    let hits = format!("lookup_results_total{{lookup=\"short\",tier=\"{}\",result=\"hit\"}}", store.kind());
    let (began, before) = (Instant::now(), Metrics::of(gate).get(&hits));
    if number > 1 {
        // What was stale is not asked for again for a second, which is seen often enough with the first two.
        assert_eq!(gate.ask(&["purge", "--key", "known.example"]).code, Some(0), "{what}");
    }
    while Metrics::of(gate).get(&hits) == before {
        assert_eq!(clients.ask("short", "known.example").status, 200, "{what}");
        assert!(began.elapsed() < HANG, "{what}: it is not asked again");
    }
    until(gate, &what, |metrics| {
        metrics.sum("store_breaker_open", "") == 0
            && metrics.sum("store_waiting", "") == 0
            && metrics.sum("lookup_keys_in_flight", "") == 0
    });
    clients.agree_with(gate, &what);
    assert!(peak(gate) < 100 << 20, "{what}: {} bytes", peak(gate));
}

/// The store ends and comes back while requests come without a pause: those whose server is known notice nothing.
fn restarted(store: &mut Store, app: &Path) {
    if store.is_a_file() {
        return;
    }
    let what = format!("{} restarted", store.kind());
    let gate = &start(store, app, "200ms", "30s");
    let clients = Clients::of(gate);
    clients.until_served(&what, "short", "known.example");
    clients.until_served(&what, "long", "kept.example");
    let (ending, served) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !ending.load(SeqCst) {
                    for (route, host) in [("short", "known.example"), ("long", "kept.example")] {
                        assert_eq!(clients.ask(route, host).status, 200, "{what}");
                        served.fetch_add(1, SeqCst);
                    }
                }
            });
        }
        let some = |more: u64| {
            let (began, before) = (Instant::now(), served.load(SeqCst));
            while served.load(SeqCst) < before + more && began.elapsed() < HANG {
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        some(20);
        store.peer().kill();
        let (began, before) = (Instant::now(), stale(gate));
        while stale(gate) == before && began.elapsed() < HANG {
            std::thread::sleep(Duration::from_millis(1));
        }
        some(20);
        store.restart();
        let hits = format!("lookup_results_total{{lookup=\"short\",tier=\"{}\",result=\"hit\"}}", store.kind());
        let (began, before) = (Instant::now(), Metrics::of(gate).get(&hits));
        while Metrics::of(gate).get(&hits) == before && began.elapsed() < HANG {
            std::thread::sleep(Duration::from_millis(1));
        }
        some(20);
        ending.store(true, SeqCst);
    });
    until(gate, &what, |metrics| metrics.sum("store_breaker_open", "") == 0);
    assert!(stale(gate) > 0, "{what}");
    clients.agree_with(gate, &what);
}
