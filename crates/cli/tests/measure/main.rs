//! The command where it measures: `bench`, `compare`, `lab`, `report`, `fetch`, `target`.
//!
//! All modules share one process, and run at the same time. A test that changes limits, variables or signals of its
//! process, or counts its memory or descriptors, runs in another process (`oroshi_testkit::in_a_process`) or stands in
//! another binary.

mod ab;
mod ab_files;
mod agents;
mod agents_compared;
mod agents_faults;
#[cfg(feature = "agents")]
mod agents_many;
mod agents_scenarios;
mod agents_subscribe;
mod bench_truth;
mod bench_urls;
#[path = "../common/mod.rs"]
mod common;
mod compare;
mod differential;
mod fetch;
mod fetch_faults;
#[path = "../fetching/mod.rs"]
mod fetching;
mod flags;
mod formats;
mod history;
mod keep;
mod lab_files;
mod lab_machines;
mod lab_runs;
mod pages;
mod refusals;
mod reports;
mod scenario_import;
mod scenarios;
mod scenarios_compared;
mod scenarios_faults;
mod schema;
mod scripts;
mod scripts_wrk;
mod self_test;
mod subscribe;
mod target;
mod target_client;
mod tui;
