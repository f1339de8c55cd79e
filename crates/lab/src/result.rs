//! What came out: every run, every ratio, every verdict, as data. This is the JSON schema; `docs/lab.md` explains it.

use std::collections::BTreeMap;

use oroshi_bench::Record;
use oroshi_bench::environment::Environment;
use oroshi_bench::grade::Bottleneck;
use oroshi_stats::compare::{Interval, Verdict};
use serde::{Deserialize, Serialize};

use crate::metric::{Better, Metric, Unit};

/// Version of the schema: the first number changes when a field changes meaning or goes, the second when one comes.
pub const SCHEMA: &str = "oroshi-lab/1.3";

/// An experiment and its result.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LabResult {
    /// [`SCHEMA`].
    pub schema: String,
    /// The experiment's short name.
    pub name: String,
    /// What it is about.
    pub title: String,
    /// What it asks; may be empty.
    pub question: String,
    /// When it began: seconds since 1970, UTC.
    pub started_unix_s: f64,
    /// How long it took, seconds.
    pub elapsed_s: f64,
    /// It was ended before its time (Ctrl-C): the cells hold what there was until then.
    pub cut_short: bool,
    /// A fast look: short runs, few blocks.
    pub quick: bool,
    /// The command that runs it again.
    pub rerun: Vec<String>,
    /// The experiment's file, without what may be secret in it; `None` when it came from flags.
    pub source: Option<String>,
    /// What is compared; the first is the primary one.
    pub metrics: Vec<MetricRecord>,
    /// The rules, fixed before the first run.
    pub rules: RulesRecord,
    /// The sweep, if there is one.
    pub sweep: Option<SweepRecord>,
    /// CPUs the servers were pinned to.
    pub server_cpus: Option<String>,
    /// CPUs the load was pinned to.
    pub load_cpus: Option<String>,
    /// The machine; what runs repeat of it is left out of their records.
    pub environment: Environment,
    /// What makes the figures doubtful, in words, each once.
    pub warnings: Vec<String>,
    /// Variants that were left out.
    pub skipped: Vec<Skipped>,
    /// The comparisons, in order.
    pub cells: Vec<CellResult>,
}

impl CellResult {
    /// What the others are compared with: the first variant that did not fail, or the first if all did.
    #[must_use]
    pub fn base(&self) -> usize {
        self.variants.iter().position(|variant| variant.failed.is_none()).unwrap_or(0)
    }
}

impl LabResult {
    /// What tells a cell from the others: `puma, connections 100`; empty where there is one group and no sweep.
    #[must_use]
    pub fn cell_name(&self, cell: &CellResult) -> String {
        let sweep = self.sweep.as_ref().map(|sweep| (sweep.label.as_str(), sweep.values.as_slice()));
        cell_name(&cell.group, cell.point, sweep)
    }
}

/// A cell's group and place in the sweep, which is told by its label and values.
pub(crate) fn cell_name(group: &str, point: Option<usize>, sweep: Option<(&str, &[String])>) -> String {
    let at = sweep.zip(point).and_then(|((label, values), point)| Some(format!("{label} {}", values.get(point)?)));
    let parts = [Some(group), at.as_deref()].into_iter().flatten().filter(|part| !part.is_empty());
    parts.collect::<Vec<_>>().join(", ")
}

/// A metric, with what a reader of the JSON needs to know about it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MetricRecord {
    /// Which.
    pub metric: Metric,
    /// What it is, in words.
    pub label: String,
    /// Its unit.
    pub unit: Unit,
    /// Which way is better.
    pub better: Better,
}

/// [`Rules`](crate::plan::Rules) as JSON shows them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RulesRecord {
    /// Differences of less than this share do not matter.
    pub smallest_effect: f64,
    /// Half-width of the primary ratio's interval at which a cell ends.
    pub precision: f64,
    /// Blocks run in any case.
    pub min_blocks: usize,
    /// Blocks after which it ended in any case.
    pub max_blocks: usize,
    /// Time for the whole, seconds.
    pub max_time_s: Option<f64>,
    /// Blocks until the servers were started anew.
    pub blocks_per_start: Option<usize>,
    /// No verdict on rates and latencies where more than this share of one side's runs were disturbed; 1 in results before 1.2.
    #[serde(default = "never")]
    pub disturbed: f64,
    /// Variants were compared although their answers were of different kinds; in results before 1.2 that was not asked.
    #[serde(default = "yes")]
    pub any_answers: bool,
    /// Names of processes that belong to the set-ups although they were not started here; none in results before 1.2.
    #[serde(default)]
    pub processes: Vec<String>,
    /// Seed of the order of runs.
    pub seed: u64,
    /// Confidence of all intervals: 0.95.
    pub confidence: f64,
}

/// The number that was swept over.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SweepRecord {
    /// Its name.
    pub name: String,
    /// What it is.
    pub label: String,
    /// Its values, as they were written.
    pub values: Vec<String>,
}

/// A variant that was left out, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skipped {
    /// The variant, with its group where there are several: `puma / unix`.
    pub name: String,
    /// Why: `puma is not installed`.
    pub why: String,
}

/// One comparison's result.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CellResult {
    /// Which variants belong together.
    pub group: String,
    /// Where it stands in the sweep: an index into its values.
    pub point: Option<usize>,
    /// What was compared, with each one's own figures.
    pub variants: Vec<VariantResult>,
    /// Every run, in the order in which they were made. A compact result has them as columns.
    #[serde(deserialize_with = "crate::compact::read_runs")]
    pub runs: Vec<Run>,
    /// Every ratio: for each metric each pair, the first variant being the base first.
    pub comparisons: Vec<Comparison>,
    /// The rate of the open loop that was found for it, requests per second, where it was to be a share of what the slowest can.
    pub rate: Option<f64>,
    /// What became of lengths that nobody had asked for, where the servers were too slow for the usual ones. `None` otherwise, and in
    /// results before 1.2.
    #[serde(default)]
    pub lengthened: Option<Lengthened>,
    /// Blocks in which every variant that had not failed was measured.
    pub blocks: usize,
    /// How often a block was made anew because the machine had other work; its first runs are not among `runs`. 0 in results before 1.2.
    #[serde(default)]
    pub repeated: usize,
    /// Why it ended there.
    pub ended: Ended,
}

/// Lengths of runs that follow the servers: enough response times of the slowest variant.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lengthened {
    /// Of the measured part, seconds; `None`: every load has its own.
    pub duration_s: Option<f64>,
    /// Of the warm-up, seconds; `None`: every load has its own.
    pub warmup_s: Option<f64>,
    /// The slowest variant's mean response time, which they follow; nanoseconds.
    pub response_ns: f64,
}

/// Why a cell made no further block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ended {
    /// The primary ratios are as precise as was asked.
    Precise,
    /// The most blocks that were allowed.
    MaxBlocks,
    /// Its time was over.
    MaxTime,
    /// Fewer than two variants were left, or none; each one's `failed` says why.
    Failed,
    /// Ctrl-C.
    Interrupted,
}

/// One variant in one cell.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct VariantResult {
    /// Its name.
    pub name: String,
    /// Where requests went, as written.
    pub urls: Vec<String>,
    /// The command that started its server, as written.
    pub start: Option<String>,
    /// The load in words.
    pub load: String,
    /// The file that the command of its server started, the last time; `None`: not a server of ours, or it was not found.
    pub program: Option<Program>,
    /// The same of its load, when that is a program.
    pub load_program: Option<Program>,
    /// Its own figures: median over the runs, with interval.
    pub figures: BTreeMap<Metric, Interval>,
    /// In a compact result: all response times, as a base64 HdrHistogram. A full one has a histogram for each run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response: Option<String>,
    /// Why it was given up.
    pub failed: Option<Failure>,
}

/// A program's file, by which another version of it is told.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Program {
    /// Where it is, links followed.
    pub path: String,
    /// Its size.
    pub bytes: u64,
    /// When it was last written: seconds since 1970, UTC.
    pub modified_unix_s: f64,
}

/// Why a variant was given up; its runs until then stand.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The block in which it happened, from 0.
    pub block: usize,
    /// What happened, in words.
    pub why: String,
    /// The last lines that its server, or its load command, had written.
    pub output: Vec<String>,
}

/// One run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Run {
    /// An index into [`CellResult::variants`].
    pub variant: usize,
    /// The block, from 0.
    pub block: usize,
    /// How often the servers had been started before, from 0.
    pub session: usize,
    /// Its place within the block, from 0.
    pub place: usize,
    /// When it began: seconds since the experiment began.
    pub at_s: f64,
    /// Its figures; those it does not have are left out.
    pub figures: BTreeMap<Metric, f64>,
    /// It did not stay as it began: throughput or latency shifted within the run.
    pub shift: Option<String>,
    /// What makes it doubtful.
    pub warnings: Vec<String>,
    /// What else the machine did meanwhile; not in results before 1.2.
    #[serde(default)]
    pub machine: Option<MachineUse>,
    /// What set the pace, in a compact result; a full one has it in `record`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grade: Option<Bottleneck>,
    /// All of it, when the load was ours. `environment` is left empty. Not in a compact result.
    pub record: Option<Box<Record>>,
    /// All of it, when the load was a program.
    pub command: Option<CommandRun>,
}

impl Run {
    /// What set the pace; `None`: the load was a program.
    #[must_use]
    pub fn grade(&self) -> Option<Bottleneck> {
        self.record.as_ref().map(|record| record.grade.bottleneck).or(self.grade)
    }
}

/// What the CPUs that a run could use did for others.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MachineUse {
    /// How many CPUs these are.
    pub cpus: usize,
    /// How many CPUs' worth of time processes took that belong to neither side; `None`: not known.
    pub others: Option<f64>,
    /// The greatest share of one of these CPUs that other machines on this host took (steal); `None`: not known.
    pub stolen: Option<f64>,
}

/// A run of a load program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CommandRun {
    /// The command, with everything filled in.
    pub words: Vec<String>,
    /// How long it took, seconds.
    pub elapsed_s: f64,
    /// CPU time of it and its children, seconds, in steps of 10 ms.
    pub cpu_s: f64,
    /// Requests answered, if its output tells.
    pub requests: Option<f64>,
    /// Requests that it was to send at the same moment, if it is a burst; not in results before 1.1.
    #[serde(default)]
    pub burst: Option<u64>,
    /// What it printed, at most the last 16 KiB.
    pub output: String,
}

/// A ratio between two variants and what follows from it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Comparison {
    /// Of which figure.
    pub metric: Metric,
    /// What it is compared with: an index into [`CellResult::variants`].
    pub base: usize,
    /// What is compared: the ratio is `variant / base`.
    pub variant: usize,
    /// The ratio, with its interval; `None` when there were too few blocks, or it would say nothing.
    pub ratio: Option<Interval>,
    /// Blocks that it rests on.
    pub blocks: usize,
    /// Probability of a ratio at least so far from 1 if there were no difference; corrected for the number of questions asked
    /// (Holm 1979).
    pub p: Option<f64>,
    /// What follows for `variant`.
    pub verdict: Verdict,
    /// The verdict as a sentence, with its reason when there is none.
    pub words: String,
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
        // A file that was written by hand may point anywhere.
        assert_eq!(cell_name("puma", Some(7), sweep), "puma");
        assert_eq!(cell_name("", None, None), "");
    }
}
