//! Carries out an experiment: cell by cell, block by block, run by run, until its rules end it.
//!
//! A failing variant is given up with the reason; its earlier runs remain, and the others continue. A variant is given
//! up when
//!
//! - its server does not start, or ends by itself;
//! - a run cannot begin: a name does not resolve, nothing listens at a port;
//! - nothing is answered, or more than half of a run's requests fail, including wrong statuses and failed checks: such
//!   a run measures failing;
//! - its first three runs lack the primary figure: an unknown server has no CPU time, for example;
//! - its load program fails, exceeds its limit, or prints no figure.
//!
//! All variants of a server end with it. Read it in this order: this file; `cell`, one comparison; `launcher` and
//! `servers`, its processes; `measure`, one run; `lengths`, its length; `verify` and `pick`, its figures, from a record
//! or a program's output; `reporter`, its warnings; `stop`, the end.

mod cell;
mod launcher;
pub(crate) mod lengths;
mod measure;
mod pick;
mod reporter;
mod servers;
pub(crate) mod stop;
mod verify;

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use oroshi_bench::environment::Environment;

use crate::analysis::CONFIDENCE;
use crate::doubts::{self, Machine};
use crate::follow::{Event, ExperimentObserver};
use crate::machines::{Machines, MachinesError};
use crate::metric::Metric;
use crate::network::NetworkRecord;
use crate::plan::{Experiment, Rules};
use crate::result::{CellResult, Ended, LabResult, MetricRecord, RulesRecord, SCHEMA, SweepRecord};
use cell::CellRun;
use launcher::Launcher;
use reporter::Reporter;

/// Programs and folders for an experiment.
#[derive(Clone, Debug)]
pub struct Tools {
    /// The command that [keeps](crate::keeper::keep) servers: `oroshi keep`.
    pub keeper: Vec<OsString>,
    /// The program `oroshi`, for `{{oroshi}}`.
    pub oroshi: PathBuf,
    /// An existing folder for the output of servers and load programs.
    pub output: PathBuf,
}

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// The experiment was ended before the first run was over: there is nothing to report.
    #[error("ended before the first run was over")]
    Cancelled,
    /// All variants are left out, or none was given: see the experiment's skipped variants.
    #[error("there is nothing to run: no variant is left")]
    Empty,
    /// Its machines cannot be made.
    #[error(transparent)]
    Machines(#[from] MachinesError),
    /// Make the folder, or name another.
    #[error("{} is no folder that the servers' output can be written to", path.display())]
    Output {
        /// The folder.
        path: PathBuf,
        /// The system's error, if any.
        source: Option<io::Error>,
    },
}

/// Carries out an experiment for as long as its rules allow. `follow` can end it at any moment; the result then holds
/// what was measured. All processes that it started have ended when this returns.
///
/// # Errors
/// [`LabError`], when there is nothing to report. Failed variants are part of the result.
pub fn run(experiment: Experiment, tools: &Tools, follow: &mut dyn ExperimentObserver) -> Result<LabResult, LabError> {
    if experiment.cells.iter().all(|cell| cell.variants.is_empty()) {
        return Err(LabError::Empty);
    }
    match tools.output.metadata() {
        Ok(folder) if folder.is_dir() => {}
        other => return Err(LabError::Output { path: tools.output.clone(), source: other.err() }),
    }
    let machines = experiment.network.as_ref().map(Machines::join).transpose()?;
    let began = SystemTime::now();
    let begun = Instant::now();
    let environment = Environment { command: experiment.rerun.clone(), ..Environment::capture() };
    let mut machine = Machine::begin();
    let mut warnings = doubts::beforehand(&experiment, &environment);
    warnings.extend(machine.beforehand());
    for warning in &warnings {
        follow.event(&experiment, Event::Warning(warning));
    }
    let launcher = Launcher::new(&experiment, tools, machines.as_ref());
    let mut reporter = Reporter::new(&experiment, follow);
    let mut pace = Pace { begun, runs: 0, metrics: experiment.metrics.clone() };
    let mut cells = Vec::new();
    let mut cut_short = false;
    for index in 0..experiment.cells.len() {
        cut_short = cut_short || reporter.cancelled();
        if cut_short {
            break;
        }
        let cell = CellRun::new(&experiment, index, &launcher, &mut reporter, &mut machine, &mut pace).carry_out();
        cut_short = cell.ended == Ended::Interrupted;
        if !cut_short || has_something(&cell) {
            cells.push(cell);
        }
    }
    let troubles = reporter.into_troubles();
    if cut_short && !cells.iter().any(has_something) {
        return Err(LabError::Cancelled);
    }
    warnings.extend(machine.finish());
    warnings.extend(doubts::here(&experiment, &cells));
    warnings.extend(doubts::thin(&experiment, &cells));
    warnings.extend(troubles);
    warnings.extend(doubts::summed(&cells));
    let ours = experiment.cells.iter().any(|cell| !cell.servers.is_empty());
    Ok(LabResult {
        schema: SCHEMA.to_owned(),
        started_unix_s: began.duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64()),
        elapsed_s: begun.elapsed().as_secs_f64(),
        cut_short,
        quick: experiment.quick,
        metrics: pace.metrics.into_iter().map(described).collect(),
        rules: RulesRecord::from(&experiment.rules),
        sweep: experiment.sweep.map(|sweep| SweepRecord { name: sweep.name, label: sweep.label, values: sweep.values }),
        // External servers run on CPUs that others chose.
        server_cpus: experiment.server_cpus.filter(|_| ours).map(|cpus| cpus.to_string()),
        load_cpus: experiment.load_cpus.map(|cpus| cpus.to_string()),
        network: experiment.network.as_ref().map(NetworkRecord::from),
        name: experiment.name,
        title: experiment.title,
        question: experiment.question,
        rerun: experiment.rerun,
        source: experiment.source,
        skipped: experiment.skipped,
        environment,
        warnings,
        cells,
    })
}

/// How far an experiment has come.
struct Pace {
    begun: Instant,
    /// Runs made so far.
    runs: usize,
    /// The metrics to compare: those of the plan, without a score if there is none.
    metrics: Vec<Metric>,
}

fn has_something(cell: &CellResult) -> bool {
    !cell.runs.is_empty() || cell.variants.iter().any(|variant| variant.failed.is_some())
}

fn described(metric: Metric) -> MetricRecord {
    MetricRecord { metric, label: metric.label().to_owned(), unit: metric.unit(), better: metric.better() }
}

impl From<&Rules> for RulesRecord {
    fn from(rules: &Rules) -> Self {
        Self {
            smallest_effect: rules.smallest_effect,
            precision: rules.precision,
            min_blocks: rules.min_blocks,
            max_blocks: rules.max_blocks,
            max_time_s: rules.max_time.map(|time| time.as_secs_f64()),
            blocks_per_start: rules.blocks_per_start,
            disturbed: rules.disturbed,
            any_answers: rules.any_answers,
            processes: rules.processes.clone(),
            seed: rules.seed,
            confidence: CONFIDENCE,
        }
    }
}
