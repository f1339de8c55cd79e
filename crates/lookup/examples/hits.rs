//! How long a look-up takes that is answered from memory, with two million keys in it:
//! `cargo run --release -p oroshi-lookup --example hits`.
#![allow(clippy::print_stdout)] // it is what this is for

use std::hint::black_box;
use std::time::Instant;

use oroshi_lookup::{
    Allow, Get, Lookup, LookupSettings, MemoryTier, SqlSettings, SqlTier, StoreKind, StoreSettings, Stores, Targets,
};

const KEYS: usize = 2_000_000;
const LOOKUPS: usize = 2_000_000;

fn main() {
    let database =
        StoreSettings { name: "db".to_owned(), kind: StoreKind::Sql(SqlSettings::new("sqlite:/nowhere/gate.db")) };
    let stores = Stores::start(vec![database]).expect("the settings are fine");
    let mut settings = LookupSettings::new("hits");
    settings.allow = Allow::any();
    settings.memory = Some(MemoryTier { entries: KEYS * 11 / 10, bytes: 400 << 20, ..MemoryTier::default() });
    settings.sql = Some(SqlTier { store: "db".to_owned(), query: "SELECT 1 WHERE ?".to_owned() });
    let lookup = Lookup::start(settings, &stores).expect("the settings are fine");
    let names: Vec<String> = (0..KEYS).map(|n| format!("site{n}.example.com")).collect();
    for (n, name) in names.iter().enumerate() {
        let target = format!("10.{}.{}.{}:8080", n >> 16 & 255, n >> 8 & 255, n & 255);
        lookup.keep(name, Targets::parse(target.as_bytes(), &Allow::any()).expect("a target"));
    }
    let memory = lookup.counts().memory;
    println!("{} keys, {} MB, {} bytes each", memory.entries, memory.bytes >> 20, memory.bytes / memory.entries);
    for (label, among) in [("any of all keys", KEYS), ("any of 100,000 keys", 100_000), ("any of 1,000 keys", 1000)] {
        measure(&lookup, label, || &names[fastrand::usize(..among)]);
    }
    // As hosts are asked for: the n-th most popular a n-th as often as the first (Zipf's law).
    measure(&lookup, "some more often than others", || &names[(KEYS as f64).powf(fastrand::f64()) as usize - 1]);
}

fn measure<'a>(lookup: &Lookup, label: &str, pick: impl Fn() -> &'a String) {
    // Copies in the order of their use: what is measured is the look-up, not how the name comes into the CPU's cache.
    let asked: Vec<String> = (0..LOOKUPS).map(|_| pick().clone()).collect();
    let mut times: Vec<u64> = asked.iter().map(|name| time(|| hit(lookup, name))).collect();
    let mut nothing: Vec<u64> = asked.iter().map(|name| time(|| _ = black_box(name.len()))).collect();
    let start = Instant::now();
    asked.iter().for_each(|name| hit(lookup, name));
    let mean = start.elapsed().as_nanos() as usize / LOOKUPS;
    times.sort_unstable();
    nothing.sort_unstable();
    // Reading the clock twice is in each single time, and not in the mean.
    let clock = nothing[LOOKUPS / 2];
    let at = |share: usize| times[LOOKUPS * share / 100].saturating_sub(clock);
    println!("{label}: p50 {} ns, p99 {} ns, mean {mean} ns (the clock's {clock} ns are taken off)", at(50), at(99));
}

fn hit(lookup: &Lookup, name: &str) {
    match black_box(lookup.get(name)) {
        Get::Now(answer) => assert!(answer.outcome.targets().is_some()),
        Get::Later(_) => panic!("{name} is not there"),
    }
}

fn time(work: impl FnOnce()) -> u64 {
    let start = Instant::now();
    work();
    start.elapsed().as_nanos() as u64
}
