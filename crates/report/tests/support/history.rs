//! A history by hand: steps, disturbed measurements, intervals, names that others chose.

use std::collections::BTreeMap;

use oroshi_history::Entry;
use oroshi_history::entry::{Commit, Figure, Machine, SCHEMA, Subject, Unit};

/// Forty commits with a step in CPU time at the twenty-fifth, where the kernel changed as well.
pub fn stepped() -> Vec<Entry> {
    (0..40).map(entry).collect()
}

fn entry(number: usize) -> Entry {
    let unix_s = 1.77e9 + 3600.0 * number as f64;
    let scatter = 1.0 + 0.01 * ((number * 7919 % 13) as f64 - 6.0) / 6.0;
    let step = if number >= 25 { 1.08 } else { 1.0 };
    let figure = |value: f64, unit, higher_is_better| Figure {
        value,
        interval: Some([value * 0.99, value * 1.01]),
        runs: 12,
        unit,
        higher_is_better,
        sensitive: higher_is_better,
    };
    let figures = BTreeMap::from([
        ("cpu".to_owned(), figure(12_000.0 * scatter * step, Unit::Nanoseconds, false)),
        ("rps".to_owned(), figure(81_000.0 / scatter, Unit::PerSecond, true)),
        ("memory".to_owned(), figure(3e7 * scatter, Unit::Bytes, false)),
    ]);
    let subject = Subject {
        name: "GET /<script>alert(1)</script>".into(),
        plan: "0123456789ab".into(),
        load: "10 connections, closed loop".into(),
        disturbed: (number % 9 == 4).then(|| "other-processes".into()),
        figures,
    };
    let kernel = if number >= 25 { "6.2" } else { "6.1" };
    Entry {
        schema: SCHEMA.into(),
        commit: Commit {
            id: format!("{:040x}", number * 0x1234_5678_9abc),
            unix_s,
            subject: format!("Change {number} & <b>more</b>"),
            changed: number == 39,
            ..Commit::default()
        },
        measured_unix_s: unix_s,
        machine: Machine {
            fingerprint: "abcdef012345".into(),
            words: "A Fast One, 2 CPUs".into(),
            conditions: BTreeMap::from([("kernel".into(), kernel.into())]),
        },
        source: format!("{number:064x}"),
        subjects: vec![subject],
    }
}
