//! The result of an experiment: every run, ratio and verdict. This is the JSON schema; `docs/lab.md` explains it.

use std::collections::BTreeMap;

use oroshi_bench::Record;
use oroshi_bench::environment::Environment;
use oroshi_bench::grade::Bottleneck;
use oroshi_stats::compare::{Interval, Verdict};
use serde::{Deserialize, Serialize};

use crate::metric::{Better, Metric, Unit};
use crate::network::NetworkRecord;

/// Version of the schema. The first number changes when a field changes meaning or is removed, the second when one is
/// added.
pub const SCHEMA: &str = "oroshi-lab/1.4";

/// An experiment and its result.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LabResult {
    /// [`SCHEMA`].
    pub schema: String,
    /// The experiment's short name.
    pub name: String,
    /// The title.
    pub title: String,
    /// The question; may be empty.
    pub question: String,
    /// Start time: seconds since 1970, UTC.
    pub started_unix_s: f64,
    /// Duration, seconds.
    pub elapsed_s: f64,
    /// Ended early (Ctrl-C): the cells hold the results so far.
    pub cut_short: bool,
    /// A quick look: short runs, few blocks.
    pub quick: bool,
    /// The command that repeats it.
    pub rerun: Vec<String>,
    /// The experiment's file, without secrets; `None` if it came from flags.
    pub source: Option<String>,
    /// The compared metrics, the primary one first.
    pub metrics: Vec<MetricRecord>,
    /// The rules, fixed before the first run.
    pub rules: RulesRecord,
    /// The sweep, if there is one.
    pub sweep: Option<SweepRecord>,
    /// The servers' CPUs.
    pub server_cpus: Option<String>,
    /// The load's CPUs.
    pub load_cpus: Option<String>,
    /// The machines of servers and loads; `None`: one machine, as always before 1.4.
    #[serde(default)]
    pub network: Option<NetworkRecord>,
    /// The machine. Records of runs leave out what this contains.
    pub environment: Environment,
    /// Reasons to doubt the figures, in words, each once.
    pub warnings: Vec<String>,
    /// Variants that were left out.
    pub skipped: Vec<Skipped>,
    /// The comparisons, in order.
    pub cells: Vec<CellResult>,
}

impl CellResult {
    /// Returns the base of a cell: the first variant that did not fail, or the first if all did.
    #[must_use]
    pub fn base(&self) -> usize {
        self.variants.iter().position(|variant| variant.failed.is_none()).unwrap_or(0)
    }
}

impl LabResult {
    /// Returns the name that tells a cell from others: `puma, connections 100`. Empty with one group and no sweep.
    #[must_use]
    pub fn cell_name(&self, cell: &CellResult) -> String {
        let sweep = self.sweep.as_ref().map(|sweep| (sweep.label.as_str(), sweep.values.as_slice()));
        cell_name(&cell.group, cell.point, sweep)
    }

    /// Returns the comparisons that decide: by the primary metric, beside the base of their cell.
    pub fn decisive(&self) -> impl Iterator<Item = (&CellResult, &Comparison)> {
        let primary = self.metrics.first().map(|m| m.metric);
        self.cells.iter().flat_map(move |cell| {
            let decides = move |c: &&Comparison| Some(c.metric) == primary && c.base == cell.base();
            cell.comparisons.iter().filter(decides).map(move |comparison| (cell, comparison))
        })
    }
}

/// Names a cell by its group, and by its sweep value and label.
pub(crate) fn cell_name(group: &str, point: Option<usize>, sweep: Option<(&str, &[String])>) -> String {
    let at = sweep.zip(point).and_then(|((label, values), point)| Some(format!("{label} {}", values.get(point)?)));
    let parts = [Some(group), at.as_deref()].into_iter().flatten().filter(|part| !part.is_empty());
    parts.collect::<Vec<_>>().join(", ")
}

/// A metric, with a description for readers of the JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MetricRecord {
    /// The metric.
    pub metric: Metric,
    /// Its label.
    pub label: String,
    /// Its unit.
    pub unit: Unit,
    /// The better direction.
    pub better: Better,
}

/// [`Rules`](crate::plan::Rules) as JSON shows them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RulesRecord {
    /// Smaller differences than this share do not matter.
    pub smallest_effect: f64,
    /// Half-width of the primary ratio's interval at which a cell ends.
    pub precision: f64,
    /// Minimum number of blocks.
    pub min_blocks: usize,
    /// Maximum number of blocks.
    pub max_blocks: usize,
    /// Time for the whole experiment, seconds.
    pub max_time_s: Option<f64>,
    /// Blocks until the servers restarted.
    pub blocks_per_start: Option<usize>,
    /// No verdict on rates and latencies if more than this share of one side's runs were disturbed; 1 in results before
    /// 1.2.
    #[serde(default = "never")]
    pub disturbed: f64,
    /// Variants were compared even if their answers differed in kind; always in results before 1.2.
    #[serde(default = "yes")]
    pub any_answers: bool,
    /// Names of processes that belong to the set-ups but were started elsewhere; none in results before 1.2.
    #[serde(default)]
    pub processes: Vec<String>,
    /// Seed of the order of runs.
    pub seed: u64,
    /// Confidence of all intervals: 0.95.
    pub confidence: f64,
}

/// The number that varied.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SweepRecord {
    /// Its name.
    pub name: String,
    /// Its label.
    pub label: String,
    /// Its values, as written.
    pub values: Vec<String>,
}

/// A variant that was left out, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skipped {
    /// The variant, with its group if there are several: `puma / unix`.
    pub name: String,
    /// Why: `puma is not installed`.
    pub why: String,
}

/// One comparison's result.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CellResult {
    /// The group of variants.
    pub group: String,
    /// Its value of the sweep: an index.
    pub point: Option<usize>,
    /// The variants with their figures.
    pub variants: Vec<VariantResult>,
    /// Every run in order. A compact result has them as columns.
    #[serde(deserialize_with = "crate::compact::read_runs")]
    pub runs: Vec<Run>,
    /// Every ratio: by metric, then by pair, pairs with the first variant as base first.
    pub comparisons: Vec<Comparison>,
    /// The open loop's rate, requests per second, if it was a share of the slowest variant's throughput.
    pub rate: Option<f64>,
    /// The lengths of runs, if servers were too slow for the usual ones and the user set none. `None` otherwise, and in
    /// results before 1.2.
    #[serde(default)]
    pub lengthened: Option<Lengthened>,
    /// Blocks that measured every variant that had not failed.
    pub blocks: usize,
    /// Blocks repeated because the machine had other work; their first runs are not among `runs`. 0 in results before
    /// 1.2.
    #[serde(default)]
    pub repeated: usize,
    /// Why the cell ended.
    pub ended: Ended,
}

/// Lengths of runs chosen for slow servers: enough response times of the slowest variant.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lengthened {
    /// The measured part, seconds; `None`: every load has its own.
    pub duration_s: Option<f64>,
    /// The warm-up, seconds; `None`: every load has its own.
    pub warmup_s: Option<f64>,
    /// The slowest variant's mean response time, nanoseconds, which decides the lengths.
    pub response_ns: f64,
}

/// Why a cell ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ended {
    /// The primary ratios have the precision of the rules.
    Precise,
    /// The maximum number of blocks.
    MaxBlocks,
    /// Its time is over.
    MaxTime,
    /// Fewer than two variants are left; each one's `failed` says why.
    Failed,
    /// Ctrl-C.
    Interrupted,
}

/// One variant in one cell.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct VariantResult {
    /// Its name.
    pub name: String,
    /// The URLs, as written.
    pub urls: Vec<String>,
    /// The command that started its server, as written.
    pub start: Option<String>,
    /// The load in words.
    pub load: String,
    /// The file that its server's command started last; `None`: an external server, or unknown.
    pub program: Option<Program>,
    /// The file of its load program, if its load is one.
    pub load_program: Option<Program>,
    /// Its figures: median over the runs, with interval.
    pub figures: BTreeMap<Metric, Interval>,
    /// In a compact result: all response times, as a base64 HdrHistogram. In a full one each run has a histogram.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response: Option<String>,
    /// Why it was given up.
    pub failed: Option<Failure>,
}

/// A program's file, which identifies its version.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Program {
    /// Its path, links resolved.
    pub path: String,
    /// Its size.
    pub bytes: u64,
    /// Modification time: seconds since 1970, UTC.
    pub modified_unix_s: f64,
}

/// Why a variant was given up; its earlier runs remain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The block of the failure, from 0.
    pub block: usize,
    /// The reason, in words.
    pub why: String,
    /// The last lines of its server's or load program's output.
    pub output: Vec<String>,
}

/// One run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Run {
    /// An index into [`CellResult::variants`].
    pub variant: usize,
    /// The block, from 0.
    pub block: usize,
    /// Number of server restarts before it.
    pub session: usize,
    /// Its position in the block, from 0.
    pub place: usize,
    /// Its start: seconds since the experiment began.
    pub at_s: f64,
    /// The figures that it has.
    pub figures: BTreeMap<Metric, f64>,
    /// Throughput or latency shifted within the run, and how.
    pub shift: Option<String>,
    /// Reasons to doubt it.
    pub warnings: Vec<String>,
    /// Other work of the machine; missing in results before 1.2.
    #[serde(default)]
    pub machine: Option<MachineUse>,
    /// Agents that did not carry out their whole part; the run has no figures then. 0 without agents.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unfinished_agents: usize,
    /// The bottleneck, in a compact result; a full one has it in `record`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grade: Option<Bottleneck>,
    /// The record of our own load; `environment` is empty. Not in a compact result.
    pub record: Option<Box<Record>>,
    /// The record of a load program.
    pub command: Option<CommandRun>,
}

impl Run {
    /// Returns the bottleneck; `None` for a load program.
    #[must_use]
    pub fn grade(&self) -> Option<Bottleneck> {
        self.record.as_ref().map(|record| record.grade.bottleneck).or(self.grade)
    }
}

/// Work that a run's CPUs did for others.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MachineUse {
    /// The number of these CPUs.
    pub cpus: usize,
    /// CPUs' worth of time that processes of neither side took; `None`: unknown.
    pub others: Option<f64>,
    /// The largest share of one CPU that other machines on this host took (steal); `None`: unknown.
    pub stolen: Option<f64>,
}

/// A run of a load program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CommandRun {
    /// The command, templates filled in.
    pub words: Vec<String>,
    /// Its duration, seconds.
    pub elapsed_s: f64,
    /// CPU time of the program and its children, seconds, in steps of 10 ms.
    pub cpu_s: f64,
    /// Answered requests, if its output has them.
    pub requests: Option<f64>,
    /// Requests sent at the same moment, if it is a burst; missing in results before 1.1.
    #[serde(default)]
    pub burst: Option<u64>,
    /// Its output, at most the last 16 KiB.
    pub output: String,
}

/// A ratio between two variants, and its verdict.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Comparison {
    /// The metric.
    pub metric: Metric,
    /// The base: an index into [`CellResult::variants`].
    pub base: usize,
    /// The variant: the ratio is `variant / base`.
    pub variant: usize,
    /// The ratio with its interval; `None` with too few blocks, or if it would say nothing.
    pub ratio: Option<Interval>,
    /// Number of blocks.
    pub blocks: usize,
    /// Probability of a ratio at least this far from 1 if there were no difference; corrected for the number of
    /// questions (Holm 1979).
    pub p: Option<f64>,
    /// The verdict on `variant`.
    pub verdict: Verdict,
    /// The verdict as a sentence, with the reason if there is none.
    pub words: String,
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}

fn never() -> f64 {
    1.0
}

fn yes() -> bool {
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_is_named_by_what_there_is_of_group_and_sweep() {
        let values = ["10".to_owned(), "100".to_owned()];
        let sweep = Some(("connections", &values[..]));
        assert_eq!(cell_name("puma", Some(1), sweep), "puma, connections 100");
        assert_eq!(cell_name("", Some(0), sweep), "connections 10");
        assert_eq!(cell_name("puma", None, sweep), "puma");
        // A hand-written file may contain any index.
        assert_eq!(cell_name("puma", Some(7), sweep), "puma");
        assert_eq!(cell_name("", None, None), "");
    }
}
