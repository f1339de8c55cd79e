//! `docs/bench.md` against a real report: every field of the JSON stands in its table.

mod common;

use std::collections::BTreeMap;

use common::{Target, bench};
use serde_json::Value;

/// By the path in a row's first column, what its rows say. An empty first column continues the row above.
fn rows() -> BTreeMap<String, String> {
    let page = include_str!("../../../docs/bench.md");
    let table = page.split("### JSON").nth(1).unwrap().split("\n## ").next().unwrap();
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
                // Their keys are statuses and names of failures.
                if !["statuses", "failures"].contains(&&*below) {
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
    let rows = rows();
    for load in [&["-n", "20"][..], &["-R", "1000", "-d", "200ms"], &["--stages", "0s:500,200ms:500"]] {
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
