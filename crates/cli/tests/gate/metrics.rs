//! What `/metrics` says, by the names of the series.
#![allow(dead_code, unreachable_pub, reason = "a module of each test file, which uses its part")]

use std::collections::HashMap;
use std::time::Instant;

use super::gate::{Gate, HANG};

/// All series at one moment.
pub struct Metrics(HashMap<String, f64>);

impl Metrics {
    pub fn of(gate: &Gate) -> Metrics {
        let text = gate.get_at("admin.sock", "a", "/metrics").body;
        let samples = text.lines().filter(|line| !line.starts_with('#')).map(|line| {
            let (series, value) = line.rsplit_once(' ').unwrap();
            (series.strip_prefix("oroshi_gate_").unwrap().to_owned(), value.parse().unwrap())
        });
        Metrics(samples.collect())
    }

    /// A series by its name, without `oroshi_gate_`, and its labels; 0 if there is none yet.
    pub fn get(&self, series: &str) -> u64 {
        self.0.get(series).map_or(0, |value| *value as u64)
    }

    /// All series of this name whose labels hold these words.
    pub fn sum(&self, name: &str, words: &str) -> u64 {
        let of = |series: &str| series.split('{').next() == Some(name) && series.contains(words);
        self.0.iter().filter(|(series, _)| of(series)).map(|(_, value)| *value as u64).sum()
    }
}

/// Waits until the gateway's figures are as asked for.
#[track_caller]
pub fn until(gate: &Gate, what: &str, fits: impl Fn(&Metrics) -> bool) -> Metrics {
    let began = Instant::now();
    loop {
        let metrics = Metrics::of(gate);
        if fits(&metrics) {
            return metrics;
        }
        assert!(began.elapsed() < HANG, "{what}: {:#?}", metrics.0);
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}
