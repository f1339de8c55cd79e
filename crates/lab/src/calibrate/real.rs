//! Comparisons of real servers, each beside simulated ones of the same kind.
//!
//! A real comparison is an ordinary experiment: two of `oroshi target`, restarted for each block, under the usual rules
//! within [`CELL`]. Its true ratio is the ratio of the configured delays, each plus the cost of sockets and timers,
//! which the runs show.

use std::collections::BTreeMap;
use std::time::Duration;

use fastrand::Rng;
use oroshi_stats::Shape;
use oroshi_stats::compare::Verdict;
use serde::{Deserialize, Serialize};

use super::report::COVERAGE;
use super::simulated::{Noise, cpu_rules};
use super::{CONNECTIONS, DELAYS_MS, Scenario, Trial, simulate_one, usual_load};
use crate::follow::ExperimentObserver;
use crate::metric::Metric;
use crate::plan::{Cell, Experiment, Load, Rules, Server, Variant};
use crate::result::{CellResult, LabResult};
use crate::run::{LabError, Tools, run};

/// Time for a comparison, including server starts.
pub const CELL: Duration = Duration::from_secs(36);
/// Time for a comparison of CPU time per request.
pub const CPU_CELL: Duration = Duration::from_secs(60);
/// Simulated comparisons for each real one.
const BESIDE: usize = 40;
/// Rounds of arithmetic per answer where CPU time is compared: about a millisecond, a hundred times the rest of a
/// request.
const WORK: u64 = 600_000;

/// The subject of a real comparison.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "of")]
pub enum RealSubject {
    /// Rates of servers that wait.
    Rate(Scenario),
    /// CPU time per request of servers that compute; the second computes `ratio` times as much.
    Cpu {
        /// The second's work over the first's.
        ratio: f64,
    },
}

/// One real comparison.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RealCell {
    /// The subject.
    pub asked: RealSubject,
    /// The outcome; `None` if there is none, see `why`.
    pub trial: Option<Trial>,
    /// Why there is no outcome.
    pub why: Option<String>,
    /// The largest error of simulated comparisons of the same kind, as a logarithm; 0 for CPU time.
    pub simulated_error: f64,
    /// The widest reach of their intervals, as a logarithm.
    pub simulated_reach: f64,
    /// Warnings of the experiment.
    pub warnings: Vec<String>,
}

/// Real comparisons, and whether they agree with simulated ones.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RealReport {
    /// The comparisons so far.
    pub cells: Vec<RealCell>,
}

/// Returns at most so many comparisons: every shape, delay and kind of load, with itself and with another; then CPU
/// time.
#[must_use]
pub fn plan(most: usize) -> Vec<RealSubject> {
    const OTHERS: [f64; 6] = [0.95, 1.03, 0.985, 1.05, 0.97, 1.10];
    let mut all = Vec::new();
    // The order gives even a short list something of everything.
    for round in 0..3 {
        for (place, delay_ms) in DELAYS_MS.into_iter().enumerate() {
            for (index, shape) in Shape::ALL.into_iter().enumerate() {
                let number = all.len();
                let connections = match CONNECTIONS[(place + index + round) % 3] {
                    100 if delay_ms < 5.0 => 10,
                    connections => connections,
                };
                let ratio = if round == 1 { OTHERS[number % OTHERS.len()] } else { 1.0 };
                let (threads, close) = (if connections > 1 { 1 + number % 2 } else { 1 }, number % 3 == 0);
                let scenario = Scenario { shape, delay_ms, ratio, cpu_ratio: 1.0, connections, threads, close };
                all.push(RealSubject::Rate(scenario));
            }
        }
    }
    let cpu = [1.01, 1.0, 1.01, 1.0].map(|ratio| RealSubject::Cpu { ratio });
    all.splice(2..2, cpu);
    all.truncate(most.max(1));
    all
}

/// Returns the maximum total time, including server starts.
#[must_use]
pub fn length(asked: &[RealSubject]) -> Duration {
    asked.iter().map(|asked| if matches!(asked, RealSubject::Rate(_)) { CELL } else { CPU_CELL }).sum()
}

/// Runs the comparisons one after the other and calls `going_on` after each. Takes results from `earlier` where it has
/// them. If `follow` cancels, the report ends with the last finished comparison.
///
/// # Errors
/// When there is no result at all.
pub fn carry_out(
    asked: &[RealSubject],
    earlier: &RealReport,
    seed: u64,
    tools: &Tools,
    follow: &mut dyn ExperimentObserver,
    going_on: &mut dyn FnMut(usize, &RealCell),
) -> Result<RealReport, LabError> {
    let mut report = RealReport::default();
    for (number, &asked) in asked.iter().enumerate() {
        if let Some(cell) = earlier.result(number, asked) {
            report.cells.push(cell.clone());
            continue;
        }
        let result = match run(experiment(asked, seed.wrapping_add(number as u64)), tools, follow) {
            Ok(result) if result.cut_short => break,
            Ok(result) => result,
            Err(LabError::Cancelled) if number > 0 => break,
            Err(error) => return Err(error),
        };
        let cell = cell(asked, &result, seed.wrapping_add(number as u64));
        going_on(number, &cell);
        report.cells.push(cell);
    }
    Ok(report)
}

fn rules(asked: RealSubject, seed: u64) -> Rules {
    match asked {
        RealSubject::Rate(_) => Rules { max_time: Some(CELL), seed, ..Rules::default() },
        RealSubject::Cpu { .. } => Rules { max_time: Some(CPU_CELL), seed, ..cpu_rules() },
    }
}

fn experiment(asked: RealSubject, seed: u64) -> Experiment {
    let mut words = [vec!["{{oroshi}}".to_owned(), "target".into()], vec!["{{oroshi}}".to_owned(), "target".into()]];
    let mut draft = usual_load();
    match asked {
        RealSubject::Rate(scenario) => {
            for (variant, words) in words.iter_mut().enumerate() {
                let ns = scenario.delay_ns(variant, &Noise::default());
                let shape = scenario.shape.name();
                words.extend(["--delay".into(), format!("{}ns", ns as u64), "--delay-shape".into(), shape.into()]);
            }
            draft.connections = scenario.connections;
            draft.threads = Some(scenario.threads);
            draft.requests_per_connection = scenario.close.then_some(1);
        }
        RealSubject::Cpu { ratio } => {
            for (words, work) in words.iter_mut().zip([WORK, (WORK as f64 * ratio) as u64]) {
                words.extend(["--work".into(), work.to_string()]);
            }
            (draft.connections, draft.threads) = (4, Some(1));
        }
    }
    let server = |name: &str, mut start: Vec<String>| {
        start.extend(["--listen".into(), "127.0.0.1:{{port}}".into()]);
        let server = Server::new(name, start, vec!["http://127.0.0.1:{{port}}/".into()]);
        Server { stop_timeout: Duration::from_secs(10), ..server }
    };
    let variant = |index: usize, name: &str| Variant {
        name: name.to_owned(),
        server: Some(index),
        urls: vec!["http://127.0.0.1:{{port}}/".into()],
        load: Load::Bench(Box::new(draft.clone())),
        load_words: String::new(),
        machine: None,
        agents: None,
    };
    let [one, other] = words;
    Experiment {
        name: "calibration".into(),
        title: "Calibration".into(),
        metrics: match asked {
            RealSubject::Rate(_) => vec![Metric::Rps],
            RealSubject::Cpu { .. } => vec![Metric::Cpu],
        },
        score_if_any: false,
        rules: rules(asked, seed),
        cells: vec![Cell {
            servers: vec![server("one", one), server("other", other)],
            variants: vec![variant(0, "one"), variant(1, "other")],
            ..Cell::default()
        }],
        ..Experiment::default()
    }
}

fn cell(asked: RealSubject, result: &LabResult, seed: u64) -> RealCell {
    let found = result.cells.first();
    let comparison = found.and_then(|cell| cell.comparisons.first());
    let trial = found.zip(comparison).and_then(|(cell, comparison)| {
        let interval = comparison.ratio?;
        Some(Trial {
            truth: truth(asked, cell)?,
            estimate: interval.estimate,
            low: interval.low,
            high: interval.high,
            verdict: comparison.verdict,
            blocks: cell.blocks,
        })
    });
    let failed = found.and_then(|cell| cell.variants.iter().find_map(|v| Some(v.failed.as_ref()?.why.clone())));
    let why = match &trial {
        Some(_) => None,
        None => {
            failed.or(comparison.map(|comparison| comparison.words.clone())).or(Some("nothing was compared".into()))
        }
    };
    let (simulated_error, simulated_reach) = beside(asked, found, seed);
    RealCell { asked, trial, why, simulated_error, simulated_reach, warnings: result.warnings.clone() }
}

/// Returns the true ratio. Sockets and timers add the same to both sides. The runs show how much: with constant delays,
/// the rest of the response time; otherwise the amount that simulated servers get.
fn truth(asked: RealSubject, cell: &CellResult) -> Option<f64> {
    let scenario = match asked {
        RealSubject::Rate(scenario) => scenario,
        // Part of a request's cost is not the server's work; where the work dominates, the ratio is known well enough.
        RealSubject::Cpu { ratio } => return Some(ratio),
    };
    if scenario.ratio == 1.0 {
        return Some(1.0);
    }
    let noise = Noise::default();
    let delays = [0, 1].map(|variant| (scenario.delay_ns(variant, &noise) as u64) as f64);
    let added = match scenario.shape {
        Shape::Constant => {
            let of = |variant: usize| {
                let own = cell.runs.iter().filter(|run| run.variant == variant);
                let means = own.filter_map(|run| Some(run.record.as_ref()?.latency.response.summary.mean_ns));
                let (sum, count) = means.fold((0.0, 0.0), |(sum, count), mean| (sum + mean, count + 1.0));
                (count > 0.0).then(|| sum / count - delays[variant])
            };
            0.5 * (of(0)? + of(1)?)
        }
        _ => noise.overhead_ns * if scenario.close { 2.0 } else { 1.0 },
    };
    Some((delays[0] + added) / (delays[1] + added))
}

/// Runs simulated comparisons of the same kind with as many blocks. Returns their largest error and the widest reach of
/// their intervals.
fn beside(asked: RealSubject, found: Option<&CellResult>, seed: u64) -> (f64, f64) {
    let (RealSubject::Rate(scenario), Some(found)) = (asked, found) else { return (0.0, 0.0) };
    let mut rng = Rng::with_seed(seed);
    let rules = Rules { max_time: Some(CELL), ..Rules::default() };
    let (mut error, mut reach): (f64, f64) = (0.0, 0.0);
    for _ in 0..BESIDE {
        let trials = simulate_one(&scenario, &rules, &Noise::default(), found.blocks.max(3), &mut rng);
        let rate: BTreeMap<Metric, Trial> = trials.into_iter().collect();
        let Some(trial) = rate.get(&Metric::Rps) else { continue };
        error = error.max((trial.estimate / trial.truth).ln().abs());
        reach = reach.max((trial.high / trial.estimate).ln());
    }
    (error, reach)
}

/// Tolerance beyond a real estimate's interval and the simulated errors: a machine does more than the simulation.
const MACHINE: f64 = 0.01;

impl RealReport {
    /// Returns the comparison of this number if it compared the same and came to a result.
    #[must_use]
    pub fn result(&self, number: usize, asked: RealSubject) -> Option<&RealCell> {
        self.cells.get(number).filter(|cell| cell.asked == asked && cell.trial.is_some())
    }

    /// Lists disagreements, in words; empty if there are none.
    #[must_use]
    pub fn failures(&self) -> Vec<String> {
        let mut failures = Vec::new();
        for cell in &self.cells {
            let name = name(&cell.asked);
            let Some(trial) = cell.trial else {
                failures.push(format!("{name}: {}", cell.why.as_deref().unwrap_or("nothing")));
                continue;
            };
            let error = (trial.estimate / trial.truth).ln().abs();
            let most = cell.simulated_error.max(cell.simulated_reach).max((trial.high / trial.estimate).ln()) + MACHINE;
            if error > most {
                failures.push(format!(
                    "{name}: {:.4} where the truth is {:.4}: off by {:.2} %, where simulated ones are by {:.2} % at \
                     most",
                    trial.estimate,
                    trial.truth,
                    error * 100.0,
                    most * 100.0
                ));
            }
        }
        let trials: Vec<Trial> = self.cells.iter().filter_map(|cell| cell.trial).collect();
        let covered = trials.iter().filter(|trial| trial.covered()).count();
        let least = least_likely(trials.len(), COVERAGE.0);
        if covered < least {
            failures.push(format!("{covered} of {} intervals hold the truth, expected {least} at least", trials.len()));
        }
        let same: Vec<&Trial> = trials.iter().filter(|trial| trial.truth == 1.0).collect();
        let alarms = same.iter().filter(|trial| trial.is_false_alarm()).count();
        let most = same.len() - least_likely(same.len(), 1.0 - super::report::FALSE);
        if alarms > most {
            failures.push(format!("{alarms} false alarms in {}, expected {most} at most", same.len()));
        }
        failures
    }

    /// Returns the tables in Markdown.
    #[must_use]
    pub fn markdown(&self) -> String {
        let mut text = String::from(
            "| real servers | true ratio | found | 95 % interval | verdict | blocks | off by | simulated: at most |\n\
             | :--- | ---: | ---: | ---: | :--- | ---: | ---: | ---: |\n",
        );
        for cell in &self.cells {
            let name = name(&cell.asked);
            text += &match &cell.trial {
                Some(trial) => format!(
                    "| {name} | {:.4} | {:.4} | {:.4} to {:.4}{} | {} | {} | {:+.2} % | {:.2} % |\n",
                    trial.truth,
                    trial.estimate,
                    trial.low,
                    trial.high,
                    if trial.covered() { "" } else { " (not the truth)" },
                    verdict(trial.verdict),
                    trial.blocks,
                    (trial.estimate / trial.truth).ln() * 100.0,
                    cell.simulated_error * 100.0
                ),
                None => format!("| {name} | | {} | | | | | |\n", cell.why.as_deref().unwrap_or("nothing")),
            };
        }
        let trials: Vec<Trial> = self.cells.iter().filter_map(|cell| cell.trial).collect();
        let count = |of: fn(&Trial) -> bool| trials.iter().filter(|trial| of(trial)).count();
        text += &format!(
            "\n{} of {} intervals hold the truth; false alarms: {} of {}.\n",
            count(Trial::covered),
            trials.len(),
            count(Trial::is_false_alarm),
            count(|trial| trial.truth == 1.0)
        );
        text
    }
}

fn verdict(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Faster => "better",
        Verdict::Slower => "worse",
        Verdict::Equivalent => "equivalent",
        Verdict::Undecided => "undecided",
        _ => "not compared",
    }
}

fn name(asked: &RealSubject) -> String {
    match asked {
        RealSubject::Rate(scenario) => format!(
            "{}, {} ms, {} connections, {} threads, {}",
            scenario.shape.name(),
            scenario.delay_ms,
            scenario.connections,
            scenario.threads,
            if scenario.close { "new" } else { "kept" }
        ),
        RealSubject::Cpu { ratio } => format!("CPU time per request x {ratio}"),
    }
}

/// Returns the least number of successes among `count` trials of this probability that occurs more often than once in a
/// thousand times.
fn least_likely(count: usize, probability: f64) -> usize {
    let mut of = vec![0.0; count + 1];
    of[0] = 1.0;
    for done in 0..count {
        for successes in (0..=done).rev() {
            of[successes + 1] += of[successes] * probability;
            of[successes] *= 1.0 - probability;
        }
    }
    let mut below = 0.0;
    for (successes, share) in of.iter().enumerate() {
        below += share;
        if below > 0.001 {
            return successes;
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plan_has_something_of_everything() {
        let all = plan(usize::MAX);
        assert!(all.len() >= 60 && length(&all) <= Duration::from_secs(2400), "{} in {:?}", all.len(), length(&all));
        let rates: Vec<Scenario> =
            all.iter().filter_map(|a| if let RealSubject::Rate(s) = a { Some(*s) } else { None }).collect();
        for shape in Shape::ALL {
            assert!(rates.iter().filter(|scenario| scenario.shape == shape).count() >= 15);
        }
        for connections in CONNECTIONS {
            assert!(rates.iter().any(|scenario| scenario.connections == connections && scenario.close));
            assert!(rates.iter().any(|scenario| scenario.connections == connections && !scenario.close));
        }
        assert!(rates.iter().any(|scenario| scenario.threads == 2));
        assert_eq!(rates.iter().filter(|scenario| scenario.ratio != 1.0).count(), 20);
        assert_eq!(plan(3).len(), 3);
    }

    #[test]
    fn what_came_to_a_result_is_not_made_again() {
        let asked = RealSubject::Cpu { ratio: 1.0 };
        let trial = Trial { truth: 1.0, estimate: 1.0, low: 0.9, high: 1.1, verdict: Verdict::Undecided, blocks: 3 };
        let cell = |trial| RealCell {
            asked,
            trial,
            why: None,
            simulated_error: 0.0,
            simulated_reach: 0.0,
            warnings: Vec::new(),
        };
        let earlier = RealReport { cells: vec![cell(Some(trial)), cell(None)] };
        assert!(earlier.result(0, asked).is_some());
        assert!(earlier.result(0, RealSubject::Cpu { ratio: 1.01 }).is_none(), "another comparison");
        assert!(earlier.result(1, asked).is_none() && earlier.result(2, asked).is_none());
    }

    #[test]
    fn chance_is_told_from_a_defect() {
        assert_eq!(least_likely(0, 0.95), 0);
        assert_eq!(least_likely(64, 0.95), 54);
        assert_eq!(least_likely(10, 1.0), 10);
        let trial = |estimate: f64| Trial {
            truth: 1.0,
            estimate,
            low: estimate / 1.01,
            high: estimate * 1.01,
            verdict: Verdict::Equivalent,
            blocks: 10,
        };
        let cell = |estimate| RealCell {
            asked: RealSubject::Cpu { ratio: 1.0 },
            trial: Some(trial(estimate)),
            why: None,
            simulated_error: 0.004,
            simulated_reach: 0.01,
            warnings: Vec::new(),
        };
        assert_eq!(RealReport { cells: vec![cell(1.0), cell(1.015)] }.failures(), Vec::<String>::new());
        let report = RealReport { cells: vec![cell(1.0), cell(1.03)] };
        assert_eq!(report.failures().len(), 1, "{:?}", report.failures());
        assert_eq!(RealReport { cells: (0..20).map(|_| cell(1.015)).collect() }.failures().len(), 1, "none is covered");
        assert!(report.markdown().contains("1 of 2 intervals"), "{}", report.markdown());
    }
}
