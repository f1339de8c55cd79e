//! A result small enough to keep for years: runs' figures as columns, and one histogram per variant.
//!
//! A full result holds every run's record: histograms, series, server processes. Reports and comparisons need few of
//! these. [`LabResult::compact`] keeps those; [`LabResult`] reads both forms.

use std::collections::BTreeMap;
use std::fmt;

use oroshi_bench::grade::Bottleneck;
use oroshi_stats::Latency;
use oroshi_stats::compare::Interval;
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{Error as _, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::metric::Metric;
use crate::result::{CommandRun, LabResult, MachineUse, Run};

/// Significant digits of the histograms: enough for a curve, at a quarter of the size.
const HISTOGRAM_DIGITS: u8 = 2;
/// Significant digits of figures: a thousand times finer than the repeatability of runs.
const FIGURE_DIGITS: i32 = 7;

impl LabResult {
    /// Returns the compact form as JSON. Each run keeps its place, figures, grade and warnings. Each variant gets the
    /// histogram of all its response times: HdrHistogram's V2 encoding, DEFLATE, base64, nanoseconds, two significant
    /// digits.
    ///
    /// # Errors
    /// When JSON cannot hold a figure.
    pub fn compact(&self) -> Result<Value, serde_json::Error> {
        let mut small = self.clone();
        for (cell, whole) in small.cells.iter_mut().zip(&self.cells) {
            for (index, variant) in cell.variants.iter_mut().enumerate() {
                let mut response = Latency::new();
                let records =
                    whole.runs.iter().filter(|run| run.variant == index).filter_map(|run| run.record.as_ref());
                records.for_each(|record| response.merge(&record.latency.response.histogram));
                if !response.is_empty() {
                    variant.response = Some(response.to_base64_v2_with(HISTOGRAM_DIGITS));
                }
            }
            let figures = cell.variants.iter_mut().flat_map(|variant| variant.figures.values_mut());
            figures.chain(cell.comparisons.iter_mut().filter_map(|c| c.ratio.as_mut())).for_each(round_interval);
            cell.comparisons.iter_mut().for_each(|comparison| comparison.p = comparison.p.map(rounded));
            cell.runs.clear();
        }
        let mut json = serde_json::to_value(&small)?;
        let cells = json["cells"].as_array_mut().into_iter().flatten();
        for (cell, whole) in cells.zip(&self.cells) {
            cell["runs"] = serde_json::to_value(Columns::from(whole.runs.as_slice()))?;
        }
        Ok(json)
    }
}

/// Reads runs in either form.
///
/// # Errors
/// When they have neither form, or columns differ in length.
pub(crate) fn read_runs<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Run>, D::Error> {
    from.deserialize_any(EitherForm)
}

/// Tells rows from columns by the kind of value. An untagged enum would buffer them and fail on numeric keys.
struct EitherForm;

impl<'de> Visitor<'de> for EitherForm {
    type Value = Vec<Run>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("runs, as an array or as columns")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, rows: A) -> Result<Vec<Run>, A::Error> {
        Vec::deserialize(SeqAccessDeserializer::new(rows))
    }

    fn visit_map<A: MapAccess<'de>>(self, columns: A) -> Result<Vec<Run>, A::Error> {
        Columns::deserialize(MapAccessDeserializer::new(columns))?.into_runs().map_err(A::Error::custom)
    }
}

/// Runs as columns: one index is one run in every column. A column without any value is left out.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct Columns {
    variant: Vec<usize>,
    block: Vec<usize>,
    session: Vec<usize>,
    place: Vec<usize>,
    at_s: Vec<f64>,
    figures: BTreeMap<Metric, Vec<Option<f64>>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    grade: Vec<Option<Bottleneck>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    cpus: Vec<Option<usize>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    others: Vec<Option<f64>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    stolen: Vec<Option<f64>>,
    /// By run, because few have any.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    shift: BTreeMap<usize, String>,
    /// By run, because few have any.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    unfinished_agents: BTreeMap<usize, usize>,
    /// By run, because few have any.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    warnings: BTreeMap<usize, Vec<String>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    command: Vec<Option<CommandRun>>,
    /// The outputs of the load programs by key, if each run's is one JSON object. Then `command` is without outputs.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    printed: BTreeMap<String, Vec<Option<Value>>>,
}

impl From<&[Run]> for Columns {
    fn from(runs: &[Run]) -> Self {
        let machine =
            |of: fn(&MachineUse) -> Option<f64>| column(runs, |run| run.machine.as_ref().and_then(of).map(rounded));
        let printed = printed(runs).unwrap_or_default();
        let of_metric = |metric: Metric| column(runs, |run| run.figures.get(&metric).copied().map(rounded));
        Self {
            variant: runs.iter().map(|run| run.variant).collect(),
            block: runs.iter().map(|run| run.block).collect(),
            session: runs.iter().map(|run| run.session).collect(),
            place: runs.iter().map(|run| run.place).collect(),
            at_s: runs.iter().map(|run| rounded(run.at_s)).collect(),
            figures: Metric::ALL.into_iter().map(|m| (m, of_metric(m))).filter(|(_, c)| !c.is_empty()).collect(),
            grade: column(runs, Run::grade),
            cpus: column(runs, |run| run.machine.as_ref().map(|machine| machine.cpus)),
            others: machine(|machine| machine.others),
            stolen: machine(|machine| machine.stolen),
            shift: runs.iter().enumerate().filter_map(|(index, run)| Some((index, run.shift.clone()?))).collect(),
            unfinished_agents: (runs.iter().enumerate().filter(|(_, run)| run.unfinished_agents > 0))
                .map(|(index, run)| (index, run.unfinished_agents))
                .collect(),
            warnings: (runs.iter().enumerate().filter(|(_, run)| !run.warnings.is_empty()))
                .map(|(index, run)| (index, run.warnings.clone()))
                .collect(),
            command: column(runs, |run| {
                let command = run.command.as_ref()?;
                Some(CommandRun {
                    // Commands differ between runs by a port only; the variant has them as they were written.
                    words: Vec::new(),
                    elapsed_s: rounded(command.elapsed_s),
                    output: if printed.is_empty() { command.output.clone() } else { String::new() },
                    ..*command
                })
            }),
            printed,
        }
    }
}

impl Columns {
    fn into_runs(mut self) -> Result<Vec<Run>, String> {
        let runs = self.variant.len();
        let lengths = [("block", self.block.len()), ("session", self.session.len()), ("place", self.place.len())];
        let figures = self.figures.iter().map(|(metric, column)| (metric.name(), column.len()));
        let all = lengths.into_iter().chain([("at_s", self.at_s.len())]).chain(figures);
        let optional = [
            ("grade", self.grade.len()),
            ("cpus", self.cpus.len()),
            ("others", self.others.len()),
            ("stolen", self.stolen.len()),
        ];
        let optional = optional.into_iter().chain([("command", self.command.len())]);
        let printed = self.printed.iter().map(|(key, column)| (key.as_str(), column.len()));
        let optional = optional.chain(printed).filter(|(_, length)| *length > 0);
        if let Some((name, length)) = all.chain(optional).find(|(_, length)| *length != runs) {
            return Err(format!(
                "the column `{name}` of the runs has {length} values: expected {runs}, as many as `variant`"
            ));
        }
        let at = |index: usize| Run {
            variant: self.variant[index],
            block: self.block[index],
            session: self.session[index],
            place: self.place[index],
            at_s: self.at_s[index],
            figures: self.figures.iter().filter_map(|(metric, column)| Some((*metric, column[index]?))).collect(),
            shift: self.shift.remove(&index),
            warnings: self.warnings.remove(&index).unwrap_or_default(),
            machine: value(&self.cpus, index).map(|cpus| MachineUse {
                cpus,
                others: value(&self.others, index),
                stolen: value(&self.stolen, index),
            }),
            unfinished_agents: self.unfinished_agents.remove(&index).unwrap_or_default(),
            grade: value(&self.grade, index),
            record: None,
            command: self.command.get_mut(index).and_then(Option::take).map(|mut command| {
                let line = |(key, column): (&String, &Vec<Option<Value>>)| Some((key.clone(), column[index].clone()?));
                if !self.printed.is_empty() {
                    command.output = Value::Object(self.printed.iter().filter_map(line).collect()).to_string();
                }
                command
            }),
        };
        Ok((0..runs).map(at).collect())
    }
}

/// Returns the outputs of all runs as columns by key; `None` unless each is one JSON object.
fn printed(runs: &[Run]) -> Option<BTreeMap<String, Vec<Option<Value>>>> {
    let mut columns = BTreeMap::new();
    for (index, run) in runs.iter().enumerate() {
        let output = &run.command.as_ref()?.output;
        for (key, value) in serde_json::from_str::<BTreeMap<String, Value>>(output).ok()? {
            columns.entry(key).or_insert_with(|| vec![None; runs.len()])[index] = Some(value);
        }
    }
    Some(columns)
}

/// Returns a column of one value per run; empty if no run has one.
fn column<T>(runs: &[Run], of: impl Fn(&Run) -> Option<T>) -> Vec<Option<T>> {
    let values: Vec<Option<T>> = runs.iter().map(of).collect();
    if values.iter().all(Option::is_none) { Vec::new() } else { values }
}

fn value<T: Copy>(column: &[Option<T>], index: usize) -> Option<T> {
    column.get(index).copied().flatten()
}

fn round_interval(interval: &mut Interval) {
    let Interval { estimate, low, high } = interval;
    [estimate, low, high].into_iter().for_each(|end| *end = rounded(*end));
}

/// Rounds to [`FIGURE_DIGITS`] significant digits.
fn rounded(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let digits = FIGURE_DIGITS - 1 - value.abs().log10().floor() as i32;
    // Through text, because a power of ten is not exact.
    format!("{value:.*}", digits.clamp(0, 17) as usize).parse().unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use oroshi_bench::Load;

    use super::*;
    use crate::result::LabResult;
    use crate::sample::{cell, record, run};

    fn result(runs: Vec<Run>) -> LabResult {
        serde_json::from_value(serde_json::json!({
            "schema": crate::result::SCHEMA, "name": "n", "title": "t", "question": "", "started_unix_s": 1.7e9,
            "elapsed_s": 9.0,
            "cut_short": false, "quick": false, "rerun": [], "source": null, "metrics": [], "sweep": null,
            "rules": { "smallest_effect": 0.03, "precision": 0.01, "min_blocks": 10, "max_blocks": 20,
              "max_time_s": null,
                "blocks_per_start": null, "seed": 1, "confidence": 0.95 },
            "server_cpus": null, "load_cpus": null, "environment": {}, "warnings": [], "skipped": [],
            "cells": [cell(&["A", "B"], runs)],
        }))
        .unwrap()
    }

    fn full() -> LabResult {
        let mut runs: Vec<Run> =
            (0..6).map(|n| run(n % 2, n / 2, &[(Metric::Rps, 1000.123456789 * (n + 1) as f64)])).collect();
        for run in &mut runs[..4] {
            let mut record = record(&Load::Closed, 1000, "server-bound");
            (0..10).for_each(|_| record.latency.response.histogram.record(1_234_567));
            run.record = Some(Box::new(record));
        }
        runs[1].shift = Some("it got slower".into());
        runs[1].unfinished_agents = 2;
        runs[2].warnings = vec!["a".into(), "b".into()];
        runs[3].machine = Some(MachineUse { cpus: 2, others: Some(0.25), stolen: None });
        runs[4].figures.insert(Metric::Cpu, 12_000.0);
        runs[5].command = Some(CommandRun {
            words: vec!["wrk".into()],
            elapsed_s: 1.0,
            cpu_s: 0.5,
            requests: Some(3.0),
            burst: None,
            output: "done".into(),
        });
        result(runs)
    }

    #[test]
    fn a_compact_result_has_all_figures_and_reads_as_the_full_one() {
        let full = full();
        let json = full.compact().unwrap();
        let small: LabResult = serde_json::from_value(json.clone()).unwrap();
        let [before, after] = [&full, &small].map(|result| &result.cells[0].runs);
        assert_eq!(after.len(), before.len());
        for (before, after) in before.iter().zip(after) {
            assert_eq!(
                (after.variant, after.block, after.session, after.place, after.at_s),
                (before.variant, before.block, before.session, before.place, before.at_s)
            );
            assert_eq!(after.figures.keys().collect::<Vec<_>>(), before.figures.keys().collect::<Vec<_>>());
            for (metric, value) in &before.figures {
                assert!((after.figures[metric] / value - 1.0).abs() < 1e-6, "{metric}");
            }
            assert_eq!(
                (&after.shift, &after.warnings, after.machine, after.unfinished_agents),
                (&before.shift, &before.warnings, before.machine, before.unfinished_agents)
            );
            assert_eq!(after.grade(), before.grade());
            assert!(after.record.is_none());
        }
        assert_eq!(after[0].grade(), Some(Bottleneck::ServerBound));
        assert_eq!(after[5].command.as_ref().unwrap().output, "done");
        // A second time changes nothing.
        let again = small.compact().unwrap();
        assert_eq!(again["cells"][0]["runs"], json["cells"][0]["runs"]);
        assert_eq!(again["cells"][0]["variants"], json["cells"][0]["variants"]);
    }

    #[test]
    fn lines_of_json_that_programs_printed_become_columns() {
        let output = |n: usize| match n {
            0 => r#"{"client":"go", "mean_ms":101.5, "failed":[1,2]}"#.to_owned() + "\n",
            n => format!(r#"{{"client":"curl","mean_ms":{n}}}"#),
        };
        let runs = (0..3).map(|n| Run {
            command: Some(CommandRun {
                words: vec!["burst".into()],
                elapsed_s: 0.123_456_789,
                cpu_s: 0.5,
                requests: Some(3.0),
                burst: Some(3),
                output: output(n),
            }),
            ..run(n, 0, &[(Metric::Mean, 1.0)])
        });
        let full = result(runs.collect());
        let json = full.compact().unwrap();
        let columns = &json["cells"][0]["runs"];
        assert_eq!(columns["printed"]["client"], serde_json::json!(["go", "curl", "curl"]));
        assert_eq!(columns["printed"]["failed"], serde_json::json!([[1, 2], null, null]));
        assert_eq!(columns["command"][0]["output"], "");
        let small: LabResult = serde_json::from_value(json.clone()).unwrap();
        for (n, run) in small.cells[0].runs.iter().enumerate() {
            let command = run.command.as_ref().unwrap();
            let [before, after] =
                [&output(n), &command.output].map(|text| serde_json::from_str::<Value>(text).unwrap());
            assert_eq!(after, before);
            assert_eq!(command.elapsed_s, 0.123_456_8);
        }
        assert_eq!(small.compact().unwrap(), json);
        let mut short = json;
        short["cells"][0]["runs"]["printed"]["client"].as_array_mut().unwrap().pop();
        let error = serde_json::from_value::<LabResult>(short).unwrap_err().to_string();
        assert!(error.contains("column `client` of the runs has 2 values: expected 3"), "{error}");
    }

    #[test]
    fn a_full_result_is_read_as_it_was_written() {
        let text = serde_json::to_string(&full()).unwrap();
        let read: LabResult = serde_json::from_str(&text).unwrap();
        assert_eq!(serde_json::to_string(&read).unwrap(), text);
        assert_eq!(read.cells[0].runs[0].record.as_ref().unwrap().statuses[&200], 1000);
    }

    #[test]
    fn a_variant_keeps_the_response_times_of_all_its_runs() {
        let json = full().compact().unwrap();
        let blob = json["cells"][0]["variants"][0]["response"].as_str().unwrap();
        let response = Latency::from_base64(blob).unwrap();
        assert_eq!(response.len(), 20);
        let p50 = response.summary().p50.unwrap().value_ns as f64;
        assert!((p50 / 1_234_567.0 - 1.0).abs() < 0.01, "{p50}");
    }

    #[test]
    fn columns_of_unequal_length_are_refused() {
        let mut json = full().compact().unwrap();
        json["cells"][0]["runs"]["block"].as_array_mut().unwrap().pop();
        let error = serde_json::from_value::<LabResult>(json).unwrap_err().to_string();
        assert!(error.contains("column `block` of the runs has 5 values: expected 6"), "{error}");
    }

    #[test]
    fn figures_keep_seven_digits() {
        assert_eq!(rounded(123_456_789.4), 123_456_789.0);
        assert_eq!(rounded(1.234_567_89), 1.234_568);
        assert_eq!(rounded(0.000_012_345_678_9), 0.000_012_345_68);
        assert_eq!(rounded(0.0), 0.0);
    }
}
