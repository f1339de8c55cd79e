//! Two million keys in memory: what they take, by the process's own account. A file of its own, so that nothing else is
//! in the process.

mod peers;

use oroshi_lookup::{Allow, Lookup, LookupResult, LookupSettings, MemoryTier, SqlTier, Stores, Targets};
use procfs::process::Process;

const KEYS: usize = 2_000_000;
const MIB: usize = 1 << 20;

/// Hosts from 11 to 34 bytes, half of them too long to stand in their entries.
fn host(n: usize) -> String {
    format!("{}{n}.example", &"customer-of-the-shop"[..n % 21])
}

fn resident_bytes() -> usize {
    let pages = Process::myself().unwrap().statm().unwrap().resident;
    usize::try_from(pages * procfs::page_size()).unwrap()
}

fn start(memory: MemoryTier) -> Lookup {
    let stores = Stores::start(vec![peers::sql("db", "sqlite:/nowhere/gate.db")]).unwrap();
    let settings = LookupSettings {
        memory: Some(memory),
        sql: Some(SqlTier { store: "db".to_owned(), query: "SELECT 1 WHERE ?".to_owned() }),
        ..peers::lookup()
    };
    Lookup::start(settings, &stores).unwrap()
}

#[test]
fn two_million_keys_take_less_than_400_mb() {
    let before = resident_bytes();
    let target = |n: usize| {
        Targets::parse(format!("10.{}.{}.{}:8080", n >> 16 & 255, n >> 8 & 255, n & 255).as_bytes(), &Allow::any())
    };
    let lookup = start(MemoryTier { entries: KEYS * 11 / 10, bytes: 400 * MIB, ..MemoryTier::default() });
    for n in 0..KEYS {
        lookup.keep(&host(n), target(n).unwrap());
    }
    let (counts, taken) = (lookup.counts().memory, resident_bytes() - before);
    assert_eq!((counts.entries, counts.evictions), (KEYS, 0));
    assert!(taken < 400 * MIB, "{taken}");
    // What it says that it takes is what it takes.
    assert!(
        counts.bytes < taken * 11 / 10 && taken < counts.bytes * 11 / 10,
        "{} counted, {taken} taken",
        counts.bytes
    );
    for n in (0..KEYS).step_by(1009) {
        let LookupResult::Now(answer) = lookup.get(&host(n)) else { panic!("{n} is not there") };
        assert_eq!(answer.outcome.targets(), Some(&target(n).unwrap()));
    }
    drop(lookup);

    // Names as targets, each with an allocation of its own; twice as much as fits. The bound is one on bytes here.
    let bound = 64 * MIB;
    let lookup = start(MemoryTier { entries: usize::MAX, bytes: bound, ..MemoryTier::default() });
    let before = resident_bytes();
    for n in 0..KEYS / 2 {
        lookup.keep(&host(n), Targets::parse(format!("app-{n}.internal").as_bytes(), &Allow::any()).unwrap());
    }
    let counts = lookup.counts().memory;
    assert!(counts.bytes <= bound && counts.bytes > bound / 2 && counts.evictions > 0, "{counts:?}");
    // What was freed above is used again first, so that there may be no growth at all.
    let taken = resident_bytes().saturating_sub(before);
    assert!(taken <= bound * 5 / 4, "{taken}");
}
