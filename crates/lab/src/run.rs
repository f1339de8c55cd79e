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

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use oroshi_bench::record::AgentState;
    use oroshi_bench::{Draft, Load, Observer, Record, push};

    use super::*;
    use crate::plan::{AgentsError, AgentsLoad, Variant};
    use crate::result::Run;
    use crate::sample;

    /// Two agents, one of which is lost in the runs with these numbers.
    #[derive(Debug)]
    struct Two {
        runs: AtomicUsize,
        lost_in: &'static [usize],
        refused_from: usize,
    }

    impl AgentsLoad for Two {
        fn run(&self, draft: Draft, _: &mut dyn Observer) -> Result<Record, AgentsError> {
            let run = self.runs.fetch_add(1, Ordering::Relaxed);
            if run >= self.refused_from {
                return Err(AgentsError::Failed("--agents: 2 wanted, and found: a".to_owned()));
            }
            assert_eq!(draft.urls.len(), 1);
            // Half of the requests are missing, and the rate with them.
            let is_lost = self.lost_in.contains(&run);
            let mut record = sample::record(&Load::Closed, if is_lost { 500 } else { 1000 }, "server-bound");
            let agent = |name: &str, state| {
                serde_json::json!({
                    "name": name, "state": state, "elapsed_s": 1.0, "started": 1, "completed": 1, "failed": 0,
                    "unsent": 0, "errors": 0, "thread_cpu": [], "p99_ns": null, "lateness_p99_ns": null,
                    "clock_bound_ns": null, "start_late_ns": null
                })
            };
            let state = if is_lost { AgentState::Lost } else { AgentState::Done };
            let agents = [agent("a", AgentState::Done), agent("b", state)];
            record.agents = serde_json::from_value(agents.into()).unwrap();
            if is_lost {
                record.warnings.push("short by 1/2 from 0.5 s: agent b was lost".to_owned());
            }
            Ok(record)
        }

        fn subscribe(&self, _: push::Draft, _: &mut dyn Observer) -> Result<push::Record, AgentsError> {
            unreachable!("the experiment has requests")
        }
    }

    struct Quiet;

    impl ExperimentObserver for Quiet {
        fn bench(&mut self) -> &mut dyn Observer {
            Box::leak(Box::new(()))
        }
    }

    fn carried_out(lost_in: &'static [usize], refused_from: usize) -> LabResult {
        let agents: Arc<dyn AgentsLoad> = Arc::new(Two { runs: AtomicUsize::new(0), lost_in, refused_from });
        let mut experiment = sample::experiment();
        let cell = &mut experiment.cells[0];
        cell.servers.clear();
        for variant in &mut cell.variants {
            *variant = Variant {
                server: None,
                urls: vec!["http://127.0.0.1:1/".into()],
                agents: Some(Arc::clone(&agents)),
                ..variant.clone()
            };
        }
        experiment.rules = Rules { min_blocks: 3, max_blocks: 3, disturbed: 1.0, ..Rules::default() };
        let folder = tempfile::tempdir().unwrap();
        let output = folder.path().to_owned();
        let tools = Tools { keeper: Vec::new(), oroshi: PathBuf::new(), output };
        run(experiment, &tools, &mut Quiet).unwrap()
    }

    #[test]
    fn a_block_that_lost_an_agent_is_repeated() {
        let result = carried_out(&[3], usize::MAX);
        let cell = &result.cells[0];
        assert_eq!((cell.repeated, cell.blocks, cell.runs.len()), (1, 3, 6));
        assert!(cell.runs.iter().all(|run| run.unfinished_agents == 0 && run.figures[&Metric::Rps] > 999.0));
    }

    #[test]
    fn a_run_that_lost_an_agent_has_no_figures_and_says_why() {
        // Each of the two repetitions loses one as well.
        let result = carried_out(&[0, 2, 4], usize::MAX);
        let cell = &result.cells[0];
        assert_eq!((cell.repeated, cell.blocks), (2, 3));
        let short: Vec<&Run> = cell.runs.iter().filter(|run| run.unfinished_agents > 0).collect();
        assert!(short.len() == 1 && short[0].figures.is_empty() && short[0].record.is_some());
        assert!(short[0].warnings[0].starts_with("short by 1/2 from 0.5 s"), "{:?}", short[0].warnings);
        let rps = cell.comparisons.iter().find(|c| c.metric == Metric::Rps).unwrap();
        assert!(rps.words.contains("2 blocks"), "the third has one figure only: {}", rps.words);
    }

    #[test]
    fn agents_that_cannot_begin_end_the_comparison_with_their_reason() {
        let result = carried_out(&[], 4);
        let cell = &result.cells[0];
        assert_eq!((cell.ended, cell.runs.len()), (Ended::Failed, 4));
        let why = cell.variants.iter().find_map(|variant| variant.failed.as_ref()).unwrap();
        assert!(why.why.contains("2 wanted, and found: a"), "{}", why.why);
    }
}
