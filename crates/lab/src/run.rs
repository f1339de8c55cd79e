//! Carries out an experiment: cell by cell, block by block, run by run, until its rules say that it is enough.
//!
//! Nothing that goes wrong with one variant ends the others: it is given up, with the reason, and what was measured of it until
//! then stands. A variant is given up when
//!
//! - its server does not start, or ends by itself;
//! - a run cannot begin: a name that does not resolve, a port that nobody listens at;
//! - nothing is answered, or more than half of the requests of a run fail, wrong statuses and failed checks included: what such a
//!   run measures is the failing;
//! - none of its first three runs has the figure that is compared first: a server out of sight has no CPU time, say;
//! - its load command fails, does not end in time, or prints no figure where one is looked for.
//!
//! Variants that share a server share its end. Read it in this order: this file, the whole; `cell`, one comparison; `servers`, what
//! is up for it; `measure`, one run; `lengths`, how long it is; `verify` and `pick`, what a run says, from a record or from a program's output; `stop`, when
//! it is enough.

mod cell;
pub(crate) mod lengths;
mod measure;
mod pick;
mod servers;
pub(crate) mod stop;
mod verify;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use oroshi_bench::environment::Environment;

use crate::analysis::CONFIDENCE;
use crate::doubts::{self, Machine};
use crate::follow::{Event, Follow};
use crate::metric::Metric;
use crate::plan::{Experiment, Rules};
use crate::result::{CellResult, Ended, LabResult, MetricRecord, RulesRecord, SCHEMA, SweepRecord};
use crate::template::Values;

/// What an experiment is carried out with.
#[derive(Clone, Debug)]
pub struct Tools {
    /// The program, and its words, that is to [keep](crate::keeper::keep) servers: `oroshi keep`.
    pub keeper: Vec<OsString>,
    /// The program `oroshi`, which `{{oroshi}}` stands for.
    pub oroshi: PathBuf,
    /// An existing folder, for what servers and load programs write.
    pub output: PathBuf,
}

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// It was ended before the first run was over: there is nothing to report.
    #[error("ended before the first run was over")]
    Cancelled,
    /// All variants are left out, or none was given: the experiment's list of skipped variants says why.
    #[error("there is nothing to run: no variant is left")]
    Empty,
    /// Make the folder, or name another.
    #[error("{} is no folder that the servers' output can be written to", path.display())]
    Output {
        /// The folder.
        path: PathBuf,
        /// What the system said, if anything.
        source: Option<io::Error>,
    },
}

/// Carries out an experiment. It takes as long as its rules allow; whoever follows it can end it at any moment, and then gets what
/// there is by then. Everything that is started is ended before this returns.
///
/// # Errors
/// [`LabError`], when there is nothing to report. Variants that fail are part of the result.
pub fn run(experiment: Experiment, tools: &Tools, follow: &mut dyn Follow) -> Result<LabResult, LabError> {
    if experiment.cells.iter().all(|cell| cell.variants.is_empty()) {
        return Err(LabError::Empty);
    }
    match tools.output.metadata() {
        Ok(folder) if folder.is_dir() => {}
        other => return Err(LabError::Output { path: tools.output.clone(), source: other.err() }),
    }
    let began = SystemTime::now();
    let begun = Instant::now();
    let environment = Environment { command: experiment.rerun.clone(), ..Environment::capture() };
    let machine = Machine::begin();
    let mut warnings = doubts::beforehand(&experiment, &environment);
    warnings.extend(machine.beforehand());
    for warning in &warnings {
        follow.event(&experiment, Event::Warning(warning));
    }
    let values = own_values(&experiment, tools);
    let mut stage = Stage {
        experiment: &experiment,
        tools,
        follow,
        begun,
        machine,
        values,
        runs: 0,
        told: BTreeSet::new(),
        troubles: Vec::new(),
    };
    let mut cells = Vec::new();
    let mut cut_short = false;
    for index in 0..experiment.cells.len() {
        cut_short = cut_short || stage.cancelled();
        if cut_short {
            break;
        }
        let cell = cell::carry_out(&mut stage, index);
        cut_short = cell.ended == Ended::Interrupted;
        if !cut_short || has_something(&cell) {
            cells.push(cell);
        }
    }
    let Stage { machine, troubles, .. } = stage;
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
        metrics: experiment.metrics.iter().copied().map(described).collect(),
        rules: RulesRecord::from(&experiment.rules),
        sweep: experiment.sweep.map(|sweep| SweepRecord { name: sweep.name, label: sweep.label, values: sweep.values }),
        // What runs already is where somebody else has put it.
        server_cpus: experiment.server_cpus.filter(|_| ours).map(|cpus| cpus.to_string()),
        load_cpus: experiment.load_cpus.map(|cpus| cpus.to_string()),
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

/// What all parts of an experiment share.
struct Stage<'a> {
    experiment: &'a Experiment,
    tools: &'a Tools,
    follow: &'a mut dyn Follow,
    begun: Instant,
    machine: Machine,
    /// What names stand for everywhere: `oroshi`, `cpus.server`, `cpus.load`.
    values: Values,
    /// Runs made so far.
    runs: usize,
    /// Kinds of warnings that whoever follows was told.
    told: BTreeSet<String>,
    /// What went wrong without ending anything: servers that did not end as they should.
    troubles: Vec<String>,
}

impl Stage<'_> {
    fn event(&mut self, event: Event<'_>) {
        self.follow.event(self.experiment, event);
    }

    fn cancelled(&mut self) -> bool {
        self.follow.cancelled()
    }

    fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Tells of a run's warnings, of each kind once.
    fn warn(&mut self, warnings: &[String]) {
        for warning in warnings {
            if self.told.insert(doubts::shape(warning)) {
                self.event(Event::Warning(warning));
            }
        }
    }

    fn trouble(&mut self, text: String) {
        if !self.troubles.contains(&text) {
            self.event(Event::Warning(&text));
            self.troubles.push(text);
        }
    }
}

fn own_values(experiment: &Experiment, tools: &Tools) -> Values {
    let mut values = Values::default();
    values.set("oroshi", tools.oroshi.display().to_string());
    let cpus = [("cpus.server", &experiment.server_cpus), ("cpus.load", &experiment.load_cpus)];
    for (name, cpus) in cpus {
        if let Some(cpus) = cpus {
            values.set(name, cpus.to_string());
        }
    }
    values
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
