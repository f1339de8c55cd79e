//! How long a look-up takes that is answered from memory, with two million keys in it:
//! `cargo run --release -p oroshi-lookup --example hits`.
#![allow(clippy::print_stdout)] // it is what this is for

use std::hint::black_box;
use std::time::{Duration, Instant};

use oroshi_lookup::{
    Allow, Lookup, LookupResult, LookupSettings, MemoryTier, SqlSettings, SqlTier, StoreKind, StoreSettings, Stores,
    Targets,
};

const KEYS: usize = 2_000_000;
const LOOKUPS: usize = 2_000_000;
/// Look-ups that are timed together.
const BATCH: usize = 100;

fn main() {
    let names: Vec<String> = (0..KEYS).map(host).collect();
    let address = |n: usize| format!("10.{}.{}.{}:8080", n >> 16 & 255, n >> 8 & 255, n & 255);
    println!("An address for each key:");
    let lookup = fill(&names, address);
    for (label, among) in [("any of all keys", KEYS), ("any of 100,000 keys", 100_000), ("any of 1,000 keys", 1000)] {
        measure(&lookup, label, || &names[fastrand::usize(..among)]);
    }
    // As hosts are asked for: the n-th most popular a n-th as often as the first (Zipf's law).
    measure(&lookup, "some more often than others", || &names[(KEYS as f64).powf(fastrand::f64()) as usize - 1]);
    println!("One of 1,000 names for each key:");
    let lookup = fill(&names, |n| format!("app-{}.internal:8080", n % 1000));
    measure(&lookup, "any of all keys", || &names[fastrand::usize(..KEYS)]);
    println!("A socket of its own for each key:");
    let lookup = fill(&names, |n| format!("unix:/run/{n}.sock"));
    measure(&lookup, "any of all keys", || &names[fastrand::usize(..KEYS)]);
}

/// Domains from 9 to 36 bytes, with and without a name in front.
fn host(n: usize) -> String {
    let front = ["", "www.", "shop.", "m."][n % 4];
    format!("{front}{}{n}.{}", &"meadow-and-flowers"[..n / 4 % 19], ["com", "org", "co.uk"][n % 3])
}

fn fill(names: &[String], target: impl Fn(usize) -> String) -> Lookup {
    let database =
        StoreSettings { name: "db".to_owned(), kind: StoreKind::Sql(SqlSettings::new("sqlite:/nowhere/gate.db")) };
    let stores = Stores::start(vec![database]).expect("the settings are fine");
    let mut settings = LookupSettings::new("hits");
    settings.allow = Allow::any();
    // For longer than this takes: what is measured is neither a refresh nor what has expired.
    let ttl = Duration::from_secs(24 * 3600);
    settings.memory = Some(MemoryTier { entries: KEYS * 11 / 10, bytes: 800 << 20, ttl, ..MemoryTier::default() });
    settings.sql = Some(SqlTier { store: "db".to_owned(), query: "SELECT 1 WHERE ?".to_owned() });
    let lookup = Lookup::start(settings, &stores).expect("the settings are fine");
    let start = Instant::now();
    for (n, name) in names.iter().enumerate() {
        lookup.keep(name, Targets::parse(target(n).as_bytes(), &Allow::any()).expect("a target"));
    }
    let taken = start.elapsed().as_nanos() as usize / names.len();
    let memory = lookup.counts().memory;
    let (megabytes, each) = (memory.bytes >> 20, memory.bytes / memory.entries);
    println!("  {} keys, {megabytes} MiB, {each} bytes each; {taken} ns to read and keep one", memory.entries);
    lookup
}

fn measure<'a>(lookup: &Lookup, label: &str, pick: impl Fn() -> &'a String) {
    // Copies in the order of their use: what is measured is the look-up, not how the name comes into the CPU's cache.
    let asked: Vec<String> = (0..LOOKUPS).map(|_| pick().clone()).collect();
    let mut each: Vec<u64> = asked.iter().map(|name| time(|| hit(lookup, name))).collect();
    let mut nothing: Vec<u64> = asked.iter().map(|name| time(|| _ = black_box(name.len()))).collect();
    let mut batches: Vec<u64> =
        asked.chunks(BATCH).map(|names| time(|| names.iter().for_each(|name| hit(lookup, name)))).collect();
    for times in [&mut each, &mut nothing, &mut batches] {
        times.sort_unstable();
    }
    let at = |times: &[u64], share: usize| times[(times.len() - 1) * share / 100];
    // Reading the clock twice is in each single time.
    let clock = at(&nothing, 50);
    let [p50, p99] = [50, 99].map(|share| at(&each, share).saturating_sub(clock));
    let [low, middle, high] = [10, 50, 90].map(|share| at(&batches, share) / BATCH as u64);
    println!(
        "  {label}: p50 {p50} ns, p99 {p99} ns, the clock's {clock} ns taken off; mean of {BATCH}: p10 {low} ns, \
         p50 {middle} ns, p90 {high} ns"
    );
}

fn hit(lookup: &Lookup, name: &str) {
    match black_box(lookup.get(name)) {
        LookupResult::Now(answer) => assert!(answer.outcome.targets().is_some()),
        LookupResult::Later(_) => panic!("{name} is not there"),
    }
}

fn time(work: impl FnOnce()) -> u64 {
    let start = Instant::now();
    work();
    start.elapsed().as_nanos() as u64
}
