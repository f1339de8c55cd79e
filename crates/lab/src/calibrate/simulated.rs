//! Comparisons with simulated servers and sockets.
//!
//! [`Noise`] holds the figures of the simulation, from runs of `oroshi target`.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use fastrand::Rng;
use oroshi_stats::compare::Verdict;
use oroshi_stats::{Shape, Throughput, WindowCount, window};
use serde::{Deserialize, Serialize};

use super::report::{Power, Report, Row, Table};
use super::{CONNECTIONS, DELAYS_MS, RATIOS, Trial, usual_load};
use crate::decide;
use crate::metric::Metric;
use crate::plan::Rules;
use crate::result::Run;
use crate::run::lengths;

/// Nanoseconds in a millisecond.
const MS: f64 = 1e6;
/// Above this rate the CPU sets the pace, not the delay: such cases are left out.
const MOST_RATE: f64 = 25_000.0;

/// The noise of a machine: figures of a quiet virtual machine with two CPUs (`docs/benchmarks`, 2026-11-21). There an
/// answer took 0.14 ms longer than its delay at the median, and runs of one block differed by 0.5 to 3.5 % in CPU time
/// per request.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Noise {
    /// Mean cost of sockets and timers per answer, nanoseconds. A new connection costs as much again.
    pub overhead_ns: f64,
    /// The exponential share of this cost, drawn per request.
    pub jitter: f64,
    /// Its spread between runs: standard deviation of the logarithm.
    pub overhead_spread: f64,
    /// Spread of CPU time per request between runs of one block: standard deviation of the logarithm.
    pub cpu_spread: f64,
    /// Spread between blocks, common to all runs of a block.
    pub block_spread: f64,
    /// The server's CPU time per request, nanoseconds.
    pub cpu_ns: f64,
}

impl Default for Noise {
    fn default() -> Self {
        Self {
            overhead_ns: 130_000.0,
            jitter: 0.3,
            overhead_spread: 0.10,
            cpu_spread: 0.02,
            block_spread: 0.10,
            cpu_ns: 15_000.0,
        }
    }
}

/// Two set-ups; the second has `ratio` times the first's rate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scenario {
    /// Distribution of both sides' delays.
    pub shape: Shape,
    /// Mean delay of the first, milliseconds.
    pub delay_ms: f64,
    /// True ratio of the rates: second by first.
    pub ratio: f64,
    /// CPU time per request of the second over the first.
    pub cpu_ratio: f64,
    /// Connections.
    pub connections: usize,
    /// Threads of the load.
    pub threads: usize,
    /// Opens a connection for each request.
    pub close: bool,
}

impl Scenario {
    /// Returns the mean cost of a request besides its delay, nanoseconds.
    fn overhead_ns(&self, noise: &Noise) -> f64 {
        if self.close { 2.0 * noise.overhead_ns } else { noise.overhead_ns }
    }

    /// Returns a variant's mean delay in nanoseconds, such that the rates including overhead have the true ratio.
    pub(super) fn delay_ns(&self, variant: usize, noise: &Noise) -> f64 {
        let overhead = self.overhead_ns(noise) * mean_of_log_normal(noise.overhead_spread.hypot(noise.block_spread));
        let base = self.delay_ms * MS + overhead;
        if variant == 0 { self.delay_ms * MS } else { (base / self.ratio - overhead).max(0.0) }
    }
}

fn mean_of_log_normal(spread: f64) -> f64 {
    (0.5 * spread * spread).exp()
}

/// Draws a standard normal number.
fn normal(rng: &mut Rng) -> f64 {
    (-2.0 * (1.0 - rng.f64()).ln()).sqrt() * (std::f64::consts::TAU * rng.f64()).cos()
}

/// Lengths of a run, nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Lengths {
    warmup: u64,
    duration: u64,
    timeout: u64,
}

/// A server's properties within one run.
struct Server {
    shape: Shape,
    delay_ns: f64,
    overhead_ns: f64,
    jitter: f64,
    cpu_ns: f64,
}

impl Server {
    fn time(&self, rng: &mut Rng) -> u64 {
        let luck = 1.0 - self.jitter - self.jitter * (1.0 - rng.f64()).ln();
        (self.delay_ns * self.shape.draw(rng) + self.overhead_ns * luck) as u64
    }
}

/// Simulates one run: rate, and the server's CPU time per request.
fn run(server: &Server, connections: usize, threads: usize, lengths: Lengths, rng: &mut Rng) -> (f64, f64) {
    let from = lengths.warmup;
    let mut windows = Vec::with_capacity(threads);
    // Half of the CPU time is spent when a request arrives, half when its answer leaves.
    let mut halves = 0_u64;
    for thread in 0..threads {
        // Each thread notices the end a little later.
        let until = from + lengths.duration + (rng.f64() * 60_000.0) as u64;
        let mut window = WindowCount::from(from);
        window.close(until);
        let (mut longest, mut open) = (None, Vec::new());
        let own = connections / threads + usize::from(thread < connections % threads);
        let shift = rng.f64();
        for id in 0..own {
            let mut began = 0;
            let mut first = true;
            while began < until {
                let ended = began + server.time(rng);
                halves += u64::from((from..until).contains(&began)) + u64::from((from..until).contains(&ended));
                if ended <= until {
                    window.answered(began, ended);
                    longest = longest.max((began >= from).then(|| ended - began));
                } else {
                    open.push((began, ended));
                }
                // A pause in the warm-up puts the connections out of step.
                let place = ((id as f64 + thread as f64 / threads as f64) / own as f64 + shift).fract();
                let pause = if first { (place * (ended - began) as f64) as u64 } else { 0 };
                first = false;
                began = if ended < from { (ended + pause).min(from) } else { ended };
            }
        }
        let given_up = until + window::patience(until - from, longest, lengths.timeout);
        for (began, ended) in open {
            if ended <= given_up && ended - began <= lengths.timeout {
                window.answered(began, ended);
            } else {
                window.unanswered(began, given_up);
            }
        }
        windows.push(window);
    }
    let throughput = Throughput::of(&windows);
    (throughput.per_second, halves as f64 / 2.0 * server.cpu_ns / throughput.requests)
}

/// A run's place in a comparison.
fn as_run(variant: usize, block: usize, session: usize, figures: BTreeMap<Metric, f64>) -> Run {
    Run { variant, block, session, place: variant, at_s: block as f64, figures, ..Run::default() }
}

/// Runs block after block until the rules stop, then compares all pairs. `block` makes each variant's figures.
fn compare(
    rules: &Rules,
    metrics: &[Metric],
    variants: usize,
    most: usize,
    mut block: impl FnMut(usize, usize) -> Vec<BTreeMap<Metric, f64>>,
) -> Vec<(Metric, usize, usize, Trial)> {
    let alive = vec![true; variants];
    let names: Vec<String> = (0..variants).map(|variant| format!("v{variant}")).collect();
    let mut runs = Vec::new();
    let ended = loop {
        let number = runs.len() / variants;
        let session = rules.blocks_per_start.map_or(0, |blocks| number / blocks.max(1));
        for (variant, figures) in block(number, session).into_iter().enumerate() {
            runs.push(as_run(variant, number, session, figures));
        }
        let over = number + 1 >= most;
        if let Some(ended) = decide::ended(rules, metrics[0], &runs, &alive, number + 1, over) {
            break ended;
        }
    };
    let found = decide::comparisons(rules, metrics, &names, &alive, ended, &runs);
    let trial = |comparison: &crate::result::Comparison| {
        let interval = comparison.ratio?;
        let trial = Trial {
            truth: 1.0,
            estimate: interval.estimate,
            low: interval.low,
            high: interval.high,
            verdict: comparison.verdict,
            blocks: runs.len() / variants,
        };
        Some((comparison.metric, comparison.base, comparison.variant, trial))
    };
    found.iter().filter_map(trial).collect()
}

/// Compares two simulated servers, from lengths to verdicts, by rate and CPU time per request. `most` is the maximum
/// number of blocks.
pub fn simulate_one(
    scenario: &Scenario,
    rules: &Rules,
    noise: &Noise,
    most: usize,
    rng: &mut Rng,
) -> Vec<(Metric, Trial)> {
    let delays = [0, 1].map(|variant| scenario.delay_ns(variant, noise));
    let overhead = scenario.overhead_ns(noise);
    let slowest = Duration::from_nanos((delays[0].max(delays[1]) + overhead) as u64);
    let usual = usual_load();
    let mut draft = usual.clone();
    if let Some(found) = lengths::lengthened(&[&usual], slowest, rules, 2, 1) {
        lengths::apply(&mut draft, &found);
    }
    let lengths = Lengths {
        warmup: draft.warmup.as_nanos() as u64,
        duration: draft.duration.unwrap_or_default().as_nanos() as u64,
        timeout: draft.timeout.as_nanos() as u64,
    };
    let found = compare(rules, &[Metric::Rps, Metric::Cpu], 2, most, |_, _| {
        let shared = (noise.block_spread * normal(rng)).exp();
        let mut of = |variant: usize| {
            let server = Server {
                shape: scenario.shape,
                delay_ns: delays[variant],
                overhead_ns: overhead * shared * (noise.overhead_spread * normal(rng)).exp(),
                jitter: noise.jitter,
                cpu_ns: noise.cpu_ns
                    * shared
                    * (noise.cpu_spread * normal(rng)).exp()
                    * if variant == 0 { 1.0 } else { scenario.cpu_ratio },
            };
            let (rate, cpu) = run(&server, scenario.connections, scenario.threads, lengths, rng);
            BTreeMap::from([(Metric::Rps, rate), (Metric::Cpu, cpu)])
        };
        vec![of(0), of(1)]
    });
    let truth = |metric| if metric == Metric::Cpu { scenario.cpu_ratio } else { scenario.ratio };
    found.into_iter().map(|(metric, _, _, trial)| (metric, Trial { truth: truth(metric), ..trial })).collect()
}

/// Compares figures with normal noise of this standard deviation: `variants` equal ones, except that the last has
/// `truth` times the figure; sessions of `each` blocks, which differ by `luck`.
fn plain(variants: usize, spread: f64, truth: f64, each: usize, luck: f64, rng: &mut Rng) -> Vec<Trial> {
    let rules = Rules { blocks_per_start: Some(each), ..Rules::default() };
    let mut fortune = (usize::MAX, vec![0.0; variants]);
    let found = compare(&rules, &[Metric::Rps], variants, usize::MAX, |_, session| {
        if fortune.0 != session {
            fortune = (session, (0..variants).map(|_| luck * normal(rng)).collect());
        }
        let figure = |variant: usize| {
            let true_one = if variant + 1 == variants { truth } else { 1.0 };
            let figure = 1000.0 * true_one * (spread * normal(rng) + fortune.1[variant]).exp();
            BTreeMap::from([(Metric::Rps, figure)])
        };
        (0..variants).map(figure).collect()
    });
    let truth_of = |variant: usize| if variant + 1 == variants { truth } else { 1.0 };
    found
        .into_iter()
        .map(|(_, base, variant, trial)| Trial { truth: truth_of(variant) / truth_of(base), ..trial })
        .collect()
}

/// A comparison to make, and its row.
struct Task {
    seed: u64,
    what: TrialKind,
}

enum TrialKind {
    Servers(Scenario),
    Plain { row: usize, variants: usize, spread: f64, truth: f64, each: usize, luck: f64 },
    Cpu { row: usize, cpu_ratio: f64, spread: f64 },
}

/// Spreads of the runs in the table of the stopping rule.
const SPREADS: [f64; 8] = [0.001, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06];
/// Spreads of CPU time per request between runs in the table of power.
const CPU_SPREADS: [f64; 3] = [0.005, 0.01, 0.02];
/// Blocks per minute: two runs of 1.25 s each, and the starts of their servers.
const BLOCKS_IN_A_MINUTE: usize = 21;

pub(super) fn all(
    trials: usize,
    seed: u64,
    workers: usize,
    going_on: &(dyn Fn(usize, usize) -> bool + Sync),
) -> Report {
    let tasks = tasks(trials, seed);
    let (next, stopped) = (AtomicUsize::new(0), AtomicBool::new(false));
    type Found = Vec<(Metric, Trial)>;
    let done: Mutex<Vec<(usize, Found)>> = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(task) = tasks.get(index).filter(|_| !stopped.load(Ordering::Relaxed)) else { return };
                    let found = carry_out(task);
                    let mut done = done.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                    done.push((index, found));
                    if !going_on(done.len(), tasks.len()) {
                        stopped.store(true, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    done.sort_by_key(|(index, _)| *index);
    let mut tables = Tables::default();
    for (index, found) in done {
        tables.add(&tasks[index], &found);
    }
    tables.report(seed)
}

/// Returns all comparisons, ordered so that an early end leaves some in every row.
fn tasks(trials: usize, seed: u64) -> Vec<Task> {
    let mut rng = Rng::with_seed(seed);
    let mut tasks = Vec::new();
    for trial in 0..trials {
        for shape in Shape::ALL {
            for delay_ms in DELAYS_MS {
                let scenario = scenario(shape, delay_ms, trial, &mut rng);
                tasks.push(Task { seed: rng.u64(..), what: TrialKind::Servers(scenario) });
            }
        }
        for (row, spread) in SPREADS.into_iter().enumerate() {
            let truth = if trial % 2 == 0 { 1.0 } else { RATIOS[rng.usize(..RATIOS.len())] };
            tasks.push(Task {
                seed: rng.u64(..),
                what: TrialKind::Plain { row, variants: 2, spread, truth, each: 1, luck: 0.0 },
            });
        }
        let others = [(3, 0.02, 1, 0.0), (4, 0.02, 1, 0.0), (2, 0.02, 5, 0.01), (2, 0.01, 2, 0.02)];
        for (row, (variants, spread, each, luck)) in others.into_iter().enumerate() {
            let row = SPREADS.len() + row;
            tasks.push(Task {
                seed: rng.u64(..),
                what: TrialKind::Plain { row, variants, spread, truth: 1.0, each, luck },
            });
        }
        for (row, spread) in CPU_SPREADS.into_iter().enumerate() {
            let cpu_ratio = if trial % 2 == 0 { 1.0 } else { 1.01 };
            tasks.push(Task { seed: rng.u64(..), what: TrialKind::Cpu { row, cpu_ratio, spread } });
        }
    }
    tasks
}

/// Half of them compare a set-up with itself.
fn scenario(shape: Shape, delay_ms: f64, trial: usize, rng: &mut Rng) -> Scenario {
    let ratio = if trial.is_multiple_of(2) { 1.0 } else { RATIOS[rng.usize(..RATIOS.len())] };
    let connections = loop {
        let connections = CONNECTIONS[rng.usize(..CONNECTIONS.len())];
        if connections as f64 / (delay_ms / 1e3) <= MOST_RATE {
            break connections;
        }
    };
    let threads = if connections > 1 { rng.usize(1..=2) } else { 1 };
    Scenario { shape, delay_ms, ratio, cpu_ratio: 1.0, connections, threads, close: rng.bool() }
}

fn carry_out(task: &Task) -> Vec<(Metric, Trial)> {
    let mut rng = Rng::with_seed(task.seed);
    match task.what {
        TrialKind::Servers(scenario) => {
            simulate_one(&scenario, &Rules::default(), &Noise::default(), usize::MAX, &mut rng)
        }
        TrialKind::Plain { variants, spread, truth, each, luck, .. } => {
            plain(variants, spread, truth, each, luck, &mut rng).into_iter().map(|trial| (Metric::Rps, trial)).collect()
        }
        TrialKind::Cpu { cpu_ratio, spread, .. } => vec![(Metric::Cpu, cpu_in_a_minute(cpu_ratio, spread, &mut rng))],
    }
}

/// Rules for CPU time per request: one minute, smallest effect half a per cent.
pub(super) fn cpu_rules() -> Rules {
    Rules { smallest_effect: 0.005, precision: 0.003, ..Rules::default() }
}

fn cpu_in_a_minute(cpu_ratio: f64, spread: f64, rng: &mut Rng) -> Trial {
    let found = compare(&cpu_rules(), &[Metric::Cpu], 2, BLOCKS_IN_A_MINUTE, |_, _| {
        let mut figure = |ratio: f64| BTreeMap::from([(Metric::Cpu, ratio * (spread * normal(rng)).exp())]);
        vec![figure(1.0), figure(cpu_ratio)]
    });
    Trial { truth: cpu_ratio, ..found[0].3 }
}

#[derive(Default)]
struct Tables {
    servers: BTreeMap<(Shape, u64), Vec<Trial>>,
    kinds: BTreeMap<(usize, usize, bool), Vec<Trial>>,
    cpu: BTreeMap<(Shape, u64), Vec<Trial>>,
    plain: BTreeMap<usize, Vec<Vec<Trial>>>,
    power: BTreeMap<usize, Vec<Trial>>,
}

impl Tables {
    fn add(&mut self, task: &Task, found: &[(Metric, Trial)]) {
        match task.what {
            TrialKind::Servers(scenario) => {
                let of = |wanted| found.iter().filter(move |(metric, _)| *metric == wanted).map(|(_, trial)| *trial);
                let place = (scenario.shape, scenario.delay_ms as u64);
                self.servers.entry(place).or_default().extend(of(Metric::Rps));
                self.cpu.entry(place).or_default().extend(of(Metric::Cpu));
                let kind = (scenario.connections, scenario.threads, scenario.close);
                self.kinds.entry(kind).or_default().extend(of(Metric::Rps));
            }
            TrialKind::Plain { row, .. } => {
                self.plain.entry(row).or_default().push(found.iter().map(|(_, trial)| *trial).collect());
            }
            TrialKind::Cpu { row, .. } => {
                self.power.entry(row).or_default().extend(found.iter().map(|(_, trial)| *trial));
            }
        }
    }

    fn report(self, seed: u64) -> Report {
        let one = |trials: &[Trial]| trials.iter().map(|trial| vec![*trial]).collect::<Vec<_>>();
        let by_server = |of: &BTreeMap<(Shape, u64), Vec<Trial>>| -> Vec<Row> {
            of.iter().map(|((shape, ms), trials)| Row::of(format!("{}, {ms} ms", shape.name()), &one(trials))).collect()
        };
        let kind = |(connections, threads, close): &(usize, usize, bool)| {
            let [thread, new] =
                [if *threads == 1 { "1 thread" } else { "2 threads" }, if *close { "new" } else { "kept" }];
            format!("{connections} connections, {thread}, {new}")
        };
        let spread = |share: f64| format!("{} %", share * 100.0);
        let plain = |row: &usize| match SPREADS.get(*row) {
            Some(share) => format!("runs differ by {}", spread(*share)),
            None => [
                "3 variants",
                "4 variants",
                "5 blocks per start, starts differ by 1 %",
                "2 blocks per start, starts differ by 2 %",
            ][row - SPREADS.len()]
            .to_owned(),
        };
        let power = self.power.iter().map(|(row, trials)| {
            let (same, more): (Vec<&Trial>, Vec<&Trial>) = trials.iter().partition(|trial| trial.truth == 1.0);
            Power {
                name: format!("runs differ by {}", spread(CPU_SPREADS[*row])),
                cells: more.len(),
                found: more.iter().filter(|trial| trial.verdict == Verdict::Slower).count(),
                same: same.len(),
                false_alarms: same.iter().filter(|trial| trial.is_false_alarm()).count(),
            }
        });
        Report {
            seed,
            noise: Noise::default(),
            tables: vec![
                Table { name: "The rate, by server".into(), rows: by_server(&self.servers) },
                Table {
                    name: "The rate, by load".into(),
                    rows: self.kinds.iter().map(|(of, trials)| Row::of(kind(of), &one(trials))).collect(),
                },
                Table { name: "CPU time per request, by server".into(), rows: by_server(&self.cpu) },
                Table {
                    name: "Any figure, by how much runs differ".into(),
                    rows: self.plain.iter().map(|(row, trials)| Row::of(plain(row), trials)).collect(),
                },
            ],
            power: power.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calibrate::simulate;

    const QUIET: Noise =
        Noise { overhead_ns: 1e5, jitter: 0.0, overhead_spread: 0.0, cpu_spread: 0.0, block_spread: 0.0, cpu_ns: 1e4 };

    fn scenario(shape: Shape, delay_ms: f64, ratio: f64, connections: usize) -> Scenario {
        Scenario { shape, delay_ms, ratio, cpu_ratio: 1.0, connections, threads: 1, close: false }
    }

    /// These servers were once called equivalent, or far too slow.
    #[test]
    fn the_ratio_of_constant_servers_is_the_true_one_whatever_the_delay() {
        for (one, other) in [(96.0, 103.0), (103.0, 104.5), (49.0, 50.5), (10.0, 10.5), (490.0, 500.0)] {
            let ratio = (one + 0.1) / (other + 0.1);
            let scenario = scenario(Shape::Constant, one, ratio, 10);
            let found = simulate_one(&scenario, &Rules::default(), &QUIET, usize::MAX, &mut Rng::with_seed(1));
            let rate = found.iter().find(|(metric, _)| *metric == Metric::Rps).unwrap().1;
            assert!((rate.estimate / ratio - 1.0).abs() < 1e-6, "{one} beside {other} ms: {rate:?} instead of {ratio}");
        }
    }

    /// A hundred comparisons (`make calibrate` runs many thousands), within bounds that chance alone does not break.
    #[test]
    fn intervals_hold_the_truth_and_verdicts_are_not_false() {
        let report = simulate(4, 3, 2, &|_, _| true);
        let all: Vec<&Row> = report.tables.iter().flat_map(|table| &table.rows).collect();
        let sum = |of: fn(&Row) -> usize| all.iter().map(|row| of(row)).sum::<usize>();
        let (intervals, covered) = (sum(|row| row.intervals), sum(|row| row.covered));
        assert!(intervals > 280, "{intervals}");
        let share = covered as f64 / intervals as f64;
        assert!((0.88..0.995).contains(&share), "{covered} of {intervals}: {report:#?}");
        let (same, alarms) = (sum(|row| row.same), sum(|row| row.false_alarms));
        assert!(same > 130 && alarms as f64 <= 0.12 * same as f64, "{alarms} of {same}");
        let (different, equivalent) = (sum(|row| row.beyond), sum(|row| row.false_equivalent));
        assert!(equivalent as f64 <= 0.15 * different as f64, "{equivalent} of {different}");
    }

    #[test]
    fn ending_early_leaves_what_there_is() {
        let report = simulate(50, 1, 2, &|done, _| done < 20);
        let made: usize = report.tables[0].rows.iter().map(|row| row.cells).sum();
        assert!((10..=25).contains(&made), "{made}");
    }
}
