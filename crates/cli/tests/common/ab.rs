//! ab's report, whoever wrote it: run, taken apart, compared.

use std::collections::BTreeMap;
use std::process::Command;

use super::support::nginx::find;
use super::support::skipped;
use super::{bench, to_the_end};

/// Fields that must be the same whatever is measured.
pub const SAME: [&str; 11] = [
    "Server Software",
    "Server Hostname",
    "Server Port",
    "Document Path",
    "Document Length",
    "Concurrency Level",
    "Complete requests",
    "Failed requests",
    "Non-2xx responses",
    "Keep-Alive requests",
    "HTML transferred",
];

/// ab's own run, if it is there.
pub fn ab(test: &str, args: &[&str]) -> Option<Report> {
    let Some(program) = find("ab") else {
        skipped(test, "ab is not installed");
        return None;
    };
    let mut command = Command::new(program);
    command.arg("-q").args(args).env("TZ", "UTC");
    let ran = to_the_end(command);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    Some(Report::read(&ran.out))
}

/// The same by us.
#[track_caller]
pub fn ours(args: &[&str]) -> Report {
    let ran = bench(&[&["--format", "ab"], args].concat());
    assert_eq!((ran.code, &*ran.err), (Some(0), ""), "{ran:?}");
    Report::read(&ran.out)
}

/// A report of either.
pub struct Report {
    pub text: String,
    fields: BTreeMap<String, String>,
}

impl Report {
    #[track_caller]
    pub fn read(text: &str) -> Self {
        let at = text.find("Server Software:").unwrap_or_else(|| panic!("{text}"));
        let text = text[at..].to_owned();
        let head = text.split("\nConnection Times").next().unwrap();
        let fields = head.lines().filter_map(|line| line.split_once(':'));
        let fields = fields.map(|(label, value)| (label.trim().to_owned(), value.trim().to_owned())).collect();
        Self { text, fields }
    }

    pub fn field(&self, label: &str) -> Option<&str> {
        self.fields.get(label).map(String::as_str)
    }

    /// The number at the beginning of a field.
    #[track_caller]
    pub fn number(&self, label: &str) -> u64 {
        let value = self.field(label).unwrap_or_else(|| panic!("no {label}: {}", self.text));
        value.split(' ').next().unwrap().parse().unwrap_or_else(|_| panic!("{label}: {value}"))
    }

    /// What stands in each line but for the values, and in which columns: what scripts look for.
    pub fn shape(&self) -> Vec<String> {
        let mut shape: Vec<String> = Vec::new();
        for line in self.text.lines() {
            // ab's warnings come from rounding (docs/bench.md); it alone knows what keys were exchanged with.
            let of_a_warning = line.starts_with("       ") && line.trim_start().starts_with(char::is_alphabetic);
            if line.starts_with("WARNING:") || line.starts_with("ERROR:") || line.starts_with("Server Temp Key:") {
                continue;
            }
            if of_a_warning && !line.contains("mean[+/-sd]") {
                continue;
            }
            shape.push(shape_of(line));
        }
        shape
    }

    /// min, mean, sd, median, max of a row of the table.
    #[track_caller]
    pub fn row(&self, label: &str) -> [f64; 5] {
        let line = self.text.lines().find(|line| line.starts_with(label)).unwrap_or_else(|| panic!("{}", self.text));
        let numbers: Vec<f64> = line.split_whitespace().skip(1).map(|word| word.parse().unwrap()).collect();
        numbers.try_into().unwrap_or_else(|_| panic!("{line}"))
    }

    /// The time that stands behind a percentage.
    #[track_caller]
    pub fn percentage(&self, percent: &str) -> f64 {
        let line = self.text.lines().find(|line| line.trim_start().starts_with(percent)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }
}

/// A line with its numbers taken out. Those of the tables keep the columns that they end in.
fn shape_of(line: &str) -> String {
    let row = ["Connect: ", "Processing: ", "Waiting: ", "Total: "].iter().any(|label| line.starts_with(label));
    let percentage = line.trim_start().split_once('%').is_some_and(|(n, _)| n.parse::<u32>().is_ok());
    let mut shape = String::new();
    let mut chars = line.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        if !c.is_ascii_digit() {
            shape.push(c);
            continue;
        }
        let mut end = at + 1;
        while let Some((at, _)) = chars.next_if(|(_, c)| c.is_ascii_digit() || *c == '.') {
            end = at + 1;
        }
        match line[end..].starts_with('%') {
            true => shape.push_str(&line[at..end]),
            false if row || percentage => {
                shape.truncate(shape.trim_end().len());
                shape.push_str(&format!(" ..{end}"));
            }
            false => shape.push('N'),
        }
    }
    // What stands behind a label is compared by itself, where it must be the same.
    match shape.split_once(':') {
        Some((label, value)) if !row && !line.starts_with("   (") && !label.is_empty() => {
            let words: Vec<&str> = value.split_whitespace().filter(|word| word.starts_with(['[', '('])).collect();
            format!("{label}:{} {}", value.len() - value.trim_start().len(), words.join(" "))
        }
        _ => shape,
    }
}

/// All that both must say alike; `transferred` is by how many bytes more ab's answers are in all.
#[track_caller]
pub fn agree(theirs: &Report, ours: &Report, transferred: u64) {
    let both = || format!("\n{}\n{}", theirs.text, ours.text);
    for label in SAME {
        assert_eq!(theirs.field(label), ours.field(label), "{label}:{}", both());
    }
    assert_eq!(theirs.shape(), ours.shape(), "{}", both());
    assert_eq!(theirs.number("Total transferred"), ours.number("Total transferred") + transferred, "{}", both());
}
