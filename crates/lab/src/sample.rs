//! Hand-made runs and records for this crate's tests.

use std::collections::BTreeMap;

use oroshi_bench::{Load, Record};
use oroshi_stats::Latency;
use serde_json::json;

use crate::metric::Metric;
use crate::plan::{self, Cell, Experiment, Server, Variant};
use crate::result::{CellResult, Ended, Run, VariantResult};

/// A run of one variant in one block; each block is a session.
pub(crate) fn run(variant: usize, block: usize, figures: &[(Metric, f64)]) -> Run {
    Run {
        variant,
        block,
        session: block,
        place: variant,
        at_s: block as f64,
        figures: BTreeMap::from_iter(figures.iter().copied()),
        ..Run::default()
    }
}

/// A record of one second with this load, in which everything due was answered; `grade` is a bottleneck's name.
pub(crate) fn record(load: &Load, rate: u64, grade: &str) -> Record {
    let clock = json!({ "summary": Latency::new().summary(), "histogram": Latency::new() });
    let json = json!({
        "schema": "oroshi-bench/1.0",
        "started_unix_s": 1.7e9,
        "plan": {
            "origins": [{ "address": "127.0.0.1:80", "scheme": "http", "connections": 10,
              "requests": ["GET / HTTP/1.1"], "request_bytes": 40 }],
            "threads": 1, "connections": 10, "hold": 0, "load": load, "duration_s": 1.0, "requests": null,
            "warmup_s": 0.1,
            "timeout_s": 2.0, "requests_per_connection": null, "pipeline": 1,
        },
        "elapsed_s": 1.0,
        "cut_short": false,
        "requests": { "started": rate, "completed": rate, "failed": 0, "cut_off": 0, "unsent": 0, "waited": 0,
          "answered": rate },
        "rates": { "requests_per_s": rate as f64, "read_bytes_per_s": 0.0, "written_bytes_per_s": 0.0,
          "read_bytes": 0, "written_bytes": 0 },
        "latency": { "service": clock, "response": clock, "lateness": clock, "connect": clock, "tls": clock,
          "first_byte": clock },
        "failures": {},
        "errors": 0,
        "statuses": { "200": rate },
        "connections": { "opened": 10, "closed_by_server": 0, "alive_at_end": 10, "fewest_alive": 10,
          "held_at_end": 0 },
        "series": { "width_s": 0.1, "points": [] },
        "generator": { "thread_cpu": [0.5], "cpu_us_per_request": 5.0, "lag": Latency::new().summary() },
        "server": null,
        "server_unknown": null,
        "grade": { "bottleneck": grade, "because": "of the sample", "advice": null },
        "warnings": [],
        "environment": {},
    });
    serde_json::from_value(json).expect("the sample is a record")
}

/// Reproducible noise around 1: `share` to either side.
pub(crate) fn noise(share: f64) -> impl FnMut() -> f64 {
    let mut random = fastrand::Rng::with_seed(7);
    move || 1.0 + share * (2.0 * random.f64() - 1.0)
}

/// A cell with these variants and runs, and no conclusions.
pub(crate) fn cell(names: &[&str], runs: Vec<Run>) -> CellResult {
    let variant = |name: &&str| VariantResult {
        name: (*name).to_owned(),
        urls: vec!["http://127.0.0.1:{{port}}/".into()],
        start: Some(format!("serve {name}")),
        load: "10 connections, 1s".into(),
        ..VariantResult::default()
    };
    let blocks = runs.iter().map(|run| run.block + 1).max().unwrap_or(0);
    let variants = names.iter().map(variant).collect();
    CellResult {
        group: String::new(),
        point: None,
        variants,
        runs,
        comparisons: Vec::new(),
        rate: None,
        lengthened: None,
        blocks,
        repeated: 0,
        ended: Ended::MaxBlocks,
    }
}

/// Two variants of one server, ten connections each.
pub(crate) fn experiment() -> Experiment {
    let start = vec!["serve".into(), "{{port}}".into()];
    let server = Server::new("server", start, vec!["http://127.0.0.1:{{port}}/".into()]);
    let variant = |name: &str| Variant {
        name: name.to_owned(),
        server: Some(0),
        urls: vec!["http://127.0.0.1:{{port}}/".into()],
        load: plan::Load::Bench(Box::default()),
        load_words: "10 connections".into(),
        machine: None,
        agents: None,
    };
    Experiment {
        name: "sample".into(),
        title: "A sample".into(),
        rerun: vec!["oroshi".into(), "lab".into(), "run".into(), "sample.toml".into()],
        metrics: vec![Metric::Rps],
        cells: vec![Cell { servers: vec![server], variants: vec![variant("A"), variant("B")], ..Cell::default() }],
        ..Experiment::default()
    }
}
