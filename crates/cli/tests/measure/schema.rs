//! `docs/bench.md` and `docs/lab.md` against real results: every field of the JSON stands in its page's table.

use std::collections::BTreeMap;

use crate::common;
use crate::common::support::hub::{Hub, Settings};
use crate::common::support::tls::Identity;
use crate::common::{Target, bench};
use serde_json::Value;

/// By the path in a row's first column, what its rows say. An empty first column continues the row above.
fn rows(page: &str, heading: &str) -> BTreeMap<String, String> {
    let table = page.split(heading).nth(1).unwrap().split("\n## ").next().unwrap();
    let (mut rows, mut paths) = (BTreeMap::<String, String>::new(), Vec::new());
    for line in table.lines().filter(|line| line.starts_with('|')) {
        let [_, first, second, _] = line.split('|').collect::<Vec<_>>()[..] else { panic!("not two columns: {line}") };
        if first.contains('`') {
            paths = first.split('`').skip(1).step_by(2).map(str::to_owned).collect();
        }
        for path in &paths {
            *rows.entry(path.clone()).or_default() += second;
        }
    }
    rows
}

const ELSEWHERE: [&str; 5] =
    ["statuses", "failures", "cells.variants.figures", "cells.runs.figures", "cells.runs.record"];

/// Fields of the value at `path` that no row tells of.
fn undocumented(rows: &BTreeMap<String, String>, path: &str, value: &Value, missing: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let below = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                let told = if path.is_empty() {
                    rows.contains_key(name)
                } else {
                    rows.get(&as_in_table(path)).is_some_and(|row| row.contains(&format!("`{name}`")))
                };
                if !told {
                    missing.push(below.clone());
                }
                // Their keys are statuses, names of failures and of metrics; or another table tells of them.
                if !ELSEWHERE.contains(&&*below) {
                    undocumented(rows, &below, value, missing);
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| undocumented(rows, path, item, missing)),
        _ => {}
    }
}

/// A path as the table writes it, which has one row for what occurs several times.
fn as_in_table(path: &str) -> String {
    let path = path.replacen("generator.lag", "latency.*.summary", 1);
    let path =
        path.replacen("connection_times.connect", "latency.*", 1).replacen("connection_times.total", "latency.*", 1);
    let mut parts: Vec<&str> = path.split('.').collect();
    if parts.len() > 1 && parts[0] == "latency" {
        parts[1] = "*";
    }
    if parts.len() > 3 && parts[2] == "summary" {
        parts.splice(3.., ["p*"]);
    }
    if parts == ["latency", "*"] {
        parts.pop();
    }
    parts.join(".")
}

#[test]
fn every_field_of_the_json_is_documented() {
    let server = Target::start(&[]);
    let rows = rows(include_str!("../../../../docs/bench.md"), "### JSON");
    // Twenty requests can be over before a server's processes are looked at, which takes a millisecond.
    for load in [&["-n", "5000"][..], &["-R", "1000", "-d", "200ms"], &["--stages", "0s:500,200ms:500"]] {
        let ran = bench(&[&["--format", "json"], load, &[server.url()]].concat());
        let report: Value = serde_json::from_str(&ran.out).unwrap_or_else(|error| panic!("{error}: {ran:?}"));
        assert!(report["server"].is_object(), "{}", report["server_unknown"]);
        assert_eq!(report["plan"]["load"]["loop"], if load[0] == "-n" { "closed" } else { "open" });
        assert!(report["series"]["heat"].is_object() && report["server"]["samples"][0].is_object());
        let mut missing = Vec::new();
        undocumented(&rows, "", &report, &mut missing);
        assert_eq!(missing, Vec::<String>::new());
    }
}

/// No load of these tests has scenarios: this one is made by hand.
#[test]
fn every_field_of_a_record_of_scenarios_is_documented() {
    fn without_clocks(value: &mut Value) {
        match value {
            Value::Object(fields) => fields.values_mut().for_each(|value| {
                if value.get("histogram").is_some() {
                    *value = Value::Null;
                }
                without_clocks(value);
            }),
            Value::Array(items) => items.iter_mut().for_each(without_clocks),
            _ => {}
        }
    }
    let rows = rows(include_str!("../../../../docs/bench.md"), "### JSON");
    let mut missing = Vec::new();
    let mut record = serde_json::to_value(oroshi_report::sample::scenario::void()).unwrap();
    for step in record["scenario"]["steps"].as_array_mut().unwrap() {
        // Their keys are statuses and names of failures.
        (step["failures"], step["statuses"]) = (Value::Null, Value::Null);
    }
    without_clocks(&mut record["scenario"]);
    assert!(record["scenario"]["checks"][0]["samples"][0].is_object() && rows.contains_key("scenario"));
    undocumented(&rows, "scenario", &record["scenario"], &mut missing);
    assert_eq!(missing, Vec::<String>::new());
}

/// Those that are there only where they are asked for, or where there is TLS.
#[test]
fn fields_that_are_not_always_there_are_documented_too() {
    let identity = Identity::new();
    let (cert, key) = identity.files();
    let flags = ["--listen", "https://127.0.0.1:0/", "--cert", cert.to_str().unwrap(), "--key", key.to_str().unwrap()];
    let server = Target::at(1, &flags);
    let percentiles = tempfile::NamedTempFile::new().unwrap();
    let load = ["-n", "20", "--insecure", "-e", percentiles.path().to_str().unwrap(), server.url()];
    let ran = bench(&[&["--format", "json"], &load[..]].concat());
    let report: Value = serde_json::from_str(&ran.out).unwrap_or_else(|error| panic!("{error}: {ran:?}"));
    assert!(report["answers"]["tls"].is_object() && report["connection_times"]["total"].is_object(), "{report}");
    let mut missing = Vec::new();
    undocumented(&rows(include_str!("../../../../docs/bench.md"), "### JSON"), "", &report, &mut missing);
    assert_eq!(missing, Vec::<String>::new());
}

/// Clocks, the server and the like are told of in the page of bench.
#[test]
fn every_field_of_a_record_of_subscriptions_is_documented() {
    fn forget_what_is_told_elsewhere(value: &mut Value) {
        let Value::Object(fields) = value else { return };
        for (name, value) in fields {
            let elsewhere = ["server", "grade", "environment", "load", "statuses", "failures", "ended", "machine"];
            if elsewhere.contains(&&**name) || value.get("histogram").is_some() {
                *value = Value::Null;
            }
            forget_what_is_told_elsewhere(value);
        }
    }
    let hub = Hub::start(Settings::default());
    let (publish, to_one) = (hub.publish("publish"), hub.publish("send/{n}"));
    let flags = ["--mode", "ws", "-c", "3", "-n", "5", "--publish", &publish, "--publish-to", &to_one];
    let ran = bench(
        &[&flags[..], &["--watch", &std::process::id().to_string(), "--format", "json", &hub.url("ws")]].concat(),
    );
    let mut report: Value = serde_json::from_str(&ran.out).unwrap_or_else(|error| panic!("{error}: {ran:?}"));
    assert!(report["idle"].is_object() && report["deliveries_to_one"].is_object(), "{report}");
    forget_what_is_told_elsewhere(&mut report);
    let mut missing = Vec::new();
    undocumented(&rows(include_str!("../../../../docs/bench-push.md"), "### JSON"), "", &report, &mut missing);
    assert_eq!(missing, Vec::<String>::new());
}

#[test]
fn every_field_of_an_experiments_json_is_documented() {
    let folder = tempfile::tempdir().unwrap();
    // A server of ours, one that fails, one that is missing, and a load program.
    let experiment = r#"
title = "All that a result can hold"
metrics = ["rps"]
blocks = 3
blocks-per-start = "all"
cpus = "any"
[load]
connections = "{{connections}}"
duration = "30ms"
warmup = "0ms"
[sweep]
name = "connections"
values = [1]
[[server]]
name = "target"
start = "{{oroshi}} target --threads 1 --listen unix:{{socket}}"
[[variant]]
name = "a"
server = "target"
url = "unix:{{socket}}"
[[variant]]
name = "b"
server = "target"
url = "unix:{{socket}}"
[[variant]]
name = "program"
server = "target"
url = "unix:{{socket}}"
[variant.load]
command = "sh -c 'echo requests/s: 12, 34 requests'"
figures.rps = 'requests/s: (\d+)'
requests = '(\d+) requests'
[[variant]]
name = "fails"
url = "unix:/nonexistent/socket"
[[variant]]
name = "missing"
requires = ["surely-not-installed"]
url = "unix:/nonexistent/other"
"#;
    let file = folder.path().join("all.toml");
    std::fs::write(&file, experiment).unwrap();
    let mut command = std::process::Command::new(common::OROSHI);
    command.current_dir(folder.path()).args(["lab", "run", "all.toml", "--out", "out"]);
    let ran = common::to_the_end(command);
    let kept = std::fs::read(folder.path().join("out/result.json")).unwrap_or_else(|error| panic!("{error}: {ran:?}"));
    let mut result: Value = serde_json::from_slice(&kept).unwrap();
    let cell = &result["cells"][0];
    assert!(cell["comparisons"][0]["ratio"].is_object() && cell["variants"][3]["failed"].is_object(), "{ran:?}");
    assert!(cell["runs"].as_array().unwrap().iter().any(|run| run["command"].is_object()), "{ran:?}");
    // It is that of a record, whose table has it.
    result["environment"] = Value::Null;
    let mut missing = Vec::new();
    undocumented(&rows(include_str!("../../../../docs/lab.md"), "### The JSON"), "", &result, &mut missing);
    assert_eq!(missing, Vec::<String>::new());
}
