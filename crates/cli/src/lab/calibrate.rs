//! `oroshi lab calibrate`: measures how often the intervals of `lab` and `compare` contain the true ratio.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::Instant;

use clap::ValueHint;
use oroshi_bench::environment::Environment;
use oroshi_lab::calibrate::real::{self, RealReport};
use oroshi_lab::calibrate::{Report, simulate};
use oroshi_lab::{LabError, Tools};
use oroshi_net::Shutdown;
use oroshi_words::units;
use serde::{Deserialize, Serialize};

use super::{Error, ResultsError};
use crate::interrupt::{self, Temporary};
use crate::lab_live::LabLive;
use crate::say;

/// The defaults of a calibration.
const TRIALS: usize = 1000;
const SEED: u64 = 1;

#[derive(Debug, clap::Args)]
pub(super) struct CalibrateArgs {
    /// Run only the simulated comparisons, on a virtual clock
    #[arg(long, conflicts_with = "real")]
    simulated: bool,

    /// Run only the comparisons of real servers; the machine must be quiet
    #[arg(long)]
    real: bool,

    /// Simulate this many comparisons in each row of the tables [default: 1000, some twenty minutes on two CPUs]
    #[arg(long, value_name = "N")]
    trials: Option<usize>,

    /// Run at most this many real comparisons [default: 64, which take 40 minutes]
    #[arg(long, value_name = "N")]
    cells: Option<usize>,

    /// Take the real comparisons that have a result from this file of --out, and run only the others
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    again: Option<PathBuf>,

    /// Draw all random numbers from this seed [default: 1]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,

    /// Simulate on this many threads [default: one per CPU]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,

    /// Write the whole result to a file, as JSON
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    out: Option<PathBuf>,
}

/// The result, as JSON shows it.
#[derive(Serialize)]
struct Calibration {
    schema: &'static str,
    environment: Environment,
    elapsed_s: f64,
    simulated: Option<Report>,
    real: Option<RealReport>,
    /// Rows beyond their limits.
    failures: Vec<String>,
}

/// Calibrates, prints the tables, and reports rows beyond their limits, with exit code 3.
///
/// # Errors
/// There is no result.
pub(super) fn run(args: &CalibrateArgs) -> Result<ExitCode, Error> {
    let earlier = earlier(args.again.as_deref())?;
    let file = match &args.out {
        Some(path) => {
            let failed = |source| ResultsError::Write { path: path.clone(), source };
            Some((path, File::create(path).map_err(failed)?))
        }
        None => None,
    };
    let shutdown = interrupt::shutdown().map_err(Error::Signals)?;
    let begun = Instant::now();
    let seed = args.seed.unwrap_or(SEED);
    let simulated = (!args.real).then(|| simulated(args, seed, &shutdown));
    let real =
        if args.simulated || shutdown.count() > 0 { None } else { Some(carry_out(args, &earlier, seed, shutdown)?) };
    let mut text = String::new();
    let mut failures = Vec::new();
    if let Some(report) = &simulated {
        text += &format!("{} simulated comparisons\n\n{}\n", units::count(report.cells() as u64), report.markdown());
        failures.extend(report.failures());
    }
    if let Some(report) = &real {
        text += &format!("{} real comparisons\n\n{}\n", report.cells.len(), report.markdown());
        failures.extend(report.failures());
    }
    let calibration = Calibration {
        schema: "oroshi-calibration/1.0",
        environment: Environment::capture(),
        elapsed_s: begun.elapsed().as_secs_f64(),
        simulated,
        real,
        failures,
    };
    if let Some((path, file)) = file {
        let failed = |error: serde_json::Error| ResultsError::Write { path: path.clone(), source: error.into() };
        serde_json::to_writer_pretty(file, &calibration).map_err(failed)?;
    }
    super::print(&text)?;
    for failure in &calibration.failures {
        say(&format!("out of bounds: {failure}"));
    }
    Ok(if calibration.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(3) })
}

/// Reads the real comparisons of an earlier calibration.
fn earlier(path: Option<&Path>) -> Result<RealReport, Error> {
    #[derive(Deserialize)]
    struct Earlier {
        real: Option<RealReport>,
    }
    let Some(path) = path else { return Ok(RealReport::default()) };
    let wrong = |why: String| Error::Usage(vec![format!("--again {}: {why}", path.display())]);
    let text = std::fs::read_to_string(path).map_err(|error| wrong(format!("cannot read it: {error}")))?;
    let read: Earlier = serde_json::from_str(&text)
        .map_err(|error| wrong(format!("it is no calibration: {error}: expected what --out wrote")))?;
    read.real.ok_or_else(|| wrong("it has no real comparisons: expected what --real --out wrote".to_owned()))
}

fn simulated(args: &CalibrateArgs, seed: u64, shutdown: &Shutdown) -> Report {
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let told = Mutex::new(Instant::now());
    simulate(args.trials.unwrap_or(TRIALS), seed, args.threads.unwrap_or(cpus), &|done, all| {
        let mut told = told.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if told.elapsed().as_secs() >= 20 {
            *told = Instant::now();
            say(&format!("{} of {} simulated", units::count(done as u64), units::count(all as u64)));
        }
        shutdown.count() == 0
    })
}

fn carry_out(args: &CalibrateArgs, earlier: &RealReport, seed: u64, shutdown: Shutdown) -> Result<RealReport, Error> {
    let path = std::env::temp_dir().join(format!("oroshi-calibrate-{}", std::process::id()));
    let failed = |source| ResultsError::Write { path: path.clone(), source };
    std::fs::create_dir(&path).map_err(failed)?;
    let folder = Temporary::new(path.clone());
    let oroshi = std::env::current_exe().map_err(ResultsError::Program)?;
    let keeper = vec![oroshi.clone().into_os_string(), "keep".into()];
    let tools = Tools { keeper, oroshi, output: path };
    let asked = real::plan(args.cells.unwrap_or(usize::MAX));
    let left: Vec<real::RealSubject> = asked
        .iter()
        .enumerate()
        .filter(|(number, asked)| earlier.result(*number, **asked).is_none())
        .map(|(_, a)| *a)
        .collect();
    say(&format!(
        "{} real comparisons: {} at most; keep the machine quiet",
        left.len(),
        units::length(real::length(&left).as_secs_f64())
    ));
    let mut live = LabLive::new(shutdown);
    let count = asked.len();
    let report = real::carry_out(&asked, earlier, seed, &tools, &mut live, &mut |number, cell| {
        let found = match &cell.trial {
            Some(trial) => format!("{:.4} where the truth is {:.4}", trial.estimate, trial.truth),
            None => cell.why.clone().unwrap_or_default(),
        };
        say(&format!("{} of {count}: {found}", number + 1));
    });
    live.finish();
    drop(folder);
    report.map_err(|error: LabError| ResultsError::Lab(error).into())
}
