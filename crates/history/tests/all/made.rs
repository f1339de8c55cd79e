//! Entries made by hand.

use std::collections::BTreeMap;

use fastrand::Rng;
use oroshi_history::entry::{Commit, Entry, Figure, Machine, SCHEMA, Subject, Unit};

/// The date of the first commit.
const FIRST: f64 = 1_770_000_000.0;

/// A figure in nanoseconds, of which less is better.
pub(crate) fn figure(value: f64) -> Figure {
    Figure { value, interval: None, runs: 10, unit: Unit::Nanoseconds, higher_is_better: false, sensitive: false }
}

/// An entry of the commit of this number, an hour after the one before, with a figure for each subject.
pub(crate) fn entry(commit: usize, figures: &[(&str, f64)]) -> Entry {
    let subject = |(name, value): &(&str, f64)| Subject {
        name: (*name).to_owned(),
        plan: "0123456789ab".into(),
        load: "10 connections, closed loop".into(),
        disturbed: None,
        figures: BTreeMap::from([("cpu".to_owned(), figure(*value))]),
    };
    let unix_s = FIRST + 3600.0 * commit as f64;
    Entry {
        schema: SCHEMA.into(),
        commit: Commit {
            id: format!("{commit:040x}"),
            unix_s,
            subject: format!("change {commit}"),
            ..Commit::default()
        },
        measured_unix_s: unix_s + 60.0,
        machine: Machine { fingerprint: "abcdef012345".into(), words: "a machine".into(), conditions: BTreeMap::new() },
        source: format!("{commit:064x}"),
        subjects: figures.iter().map(subject).collect(),
    }
}

/// Entries of so many commits with three subjects and 1 % of noise; that of the first subject is multiplied by each
/// factor from its commit on.
pub(crate) fn noisy(commits: usize, factors: &[(usize, f64)], seed: u64) -> Vec<Entry> {
    correlated(commits, factors, seed, 0.0)
}

/// The same with noise of this lag-1 autocorrelation.
pub(crate) fn correlated(commits: usize, factors: &[(usize, f64)], seed: u64, autocorrelation: f64) -> Vec<Entry> {
    let mut rng = Rng::with_seed(seed);
    // A sum of twelve uniform numbers is close enough to a normal one.
    let mut normal = move || (0..12).map(|_| rng.f64()).sum::<f64>() - 6.0;
    let mut last = [normal(), normal(), normal()];
    let fresh = (1.0 - autocorrelation * autocorrelation).sqrt();
    let one = |commit: usize| {
        let level: f64 = factors.iter().filter(|(at, _)| commit >= *at).map(|(_, factor)| factor).product();
        last = last.map(|last| autocorrelation * last + fresh * normal());
        let [a, b, c] = last.map(|noise| (0.01 * noise).exp());
        entry(commit, &[("a", 10_000.0 * level * a), ("b", 25_000.0 * b), ("c", 40_000.0 * c)])
    };
    (0..commits).map(one).collect()
}
