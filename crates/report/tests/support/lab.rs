//! Results of experiments.

use std::collections::BTreeMap;

use oroshi_lab::metric::Metric;
use oroshi_lab::result::{
    CellResult, CommandRun, Comparison, Ended, Failure, LabResult, MetricRecord, RulesRecord, Run, SCHEMA, Skipped,
    SweepRecord, VariantResult,
};
use oroshi_stats::compare::{Bootstrap, Interval, Pair, Value, Verdict, level, ratio};

use super::{Chance, closed, environment};

/// The metrics of the synthetic experiments.
const METRICS: [Metric; 4] = [Metric::Rps, Metric::P50, Metric::P99, Metric::Cpu];
const EFFECT: f64 = 0.03;

/// Two variants, no sweep, ten blocks; two runs are doubtful.
pub fn pair() -> LabResult {
    let mut result = empty("unix-or-tcp", "Is a unix socket faster than TCP?");
    result.question = "nginx on the same machine, 20 kept connections: how much does the socket matter?".into();
    let mut cell = cell(7, "", None, &[("TCP", 41_000.0), ("unix", 60_500.0)], 10);
    cell.runs[5].shift = Some("throughput fell from 61,000/s to 52,000/s after 0.9s".into());
    cell.runs[12].warnings = vec!["3.4 % of the CPU time was stolen".into()];
    cell.runs[0].record = Some(Box::new(closed(3, 400_000.0)));
    result.cells = vec![cell];
    result
}

/// Two groups of three variants over five numbers of connections; one variant fails on its way, one was skipped.
pub fn sweep() -> LabResult {
    let mut result = empty("concurrency", "What do many connections cost?");
    result.sweep = Some(SweepRecord {
        name: "connections".into(),
        label: "connections".into(),
        values: ["10", "100", "500", "1000", "5000"].map(str::to_owned).to_vec(),
    });
    for (g, group) in ["nginx", "puma, 2 workers of 5 threads"].into_iter().enumerate() {
        for point in 0..5 {
            let scale = (1.0 - 0.12 * point as f64) * if g == 0 { 1.0 } else { 0.22 };
            let variants =
                [("TCP", 41_000.0 * scale), ("unix", 59_000.0 * scale), ("unix, abstract name", 59_400.0 * scale)];
            let seed = 100 + (g * 10 + point) as u64;
            result.cells.push(cell(seed, group, Some(point), &variants, 6));
        }
    }
    let last = result.cells.last_mut().unwrap();
    last.ended = Ended::MaxTime;
    last.variants[2].failed = Some(Failure {
        block: 3,
        why: "the server ended by signal SEGV".into(),
        output: vec!["[4711] + Worker 1 (PID: 4713) booted".into(), "puma: Segmentation fault".into()],
    });
    result.skipped = vec![Skipped { name: "rhebok / unix".into(), why: "rackup is not installed".into() }];
    result.warnings = vec!["load and server share CPU 1: each takes time from the other".into()];
    result.quick = true;
    result
}

/// Two variants over two values that are no numbers.
pub fn named() -> LabResult {
    let mut result = empty("workers", "Does a second worker help?");
    result.sweep = Some(SweepRecord {
        name: "requests".into(),
        label: "requests per connection".into(),
        values: ["unlimited", "1"].map(str::to_owned).to_vec(),
    });
    for (point, scale) in [1.0, 0.15].into_iter().enumerate() {
        let variants = [("one", 170_000.0 * scale), ("two", 163_000.0 * scale)];
        result.cells.push(cell(7 + point as u64, "", Some(point), &variants, 6));
    }
    let cell = &mut result.cells[1];
    cell.repeated = 2;
    cell.comparisons[0].verdict = Verdict::Disturbed;
    cell.comparisons[0].words = "disturbed: no verdict on requests/s of two beside one: in 5 of 6 runs of two other \
                                 processes took more than 10 % of the CPUs; run it again when the machine is quiet, or \
                                 compare CPU time per request"
        .into();
    result
}

/// An experiment without any result.
pub fn nothing() -> LabResult {
    let mut result = empty("nothing", "What if nothing works?");
    let mut cell = cell(1, "", None, &[("a", 1.0), ("b", 1.0)], 0);
    cell.ended = Ended::Failed;
    cell.comparisons = vec![Comparison {
        metric: Metric::Rps,
        base: 0,
        variant: 1,
        ratio: None,
        blocks: 0,
        p: None,
        verdict: Verdict::NotCompared,
        words: "requests/s of a and b is not compared: there are only 0 blocks, and it takes 3".into(),
    }];
    result.cells = vec![cell];
    result.cut_short = true;
    result
}

fn empty(name: &str, title: &str) -> LabResult {
    LabResult {
        schema: SCHEMA.into(),
        name: name.into(),
        title: title.into(),
        question: String::new(),
        started_unix_s: 1.772e9,
        elapsed_s: 312.4,
        cut_short: false,
        quick: false,
        rerun: ["oroshi", "lab", "run", "experiments/unix-or-tcp.toml"].map(str::to_owned).to_vec(),
        source: Some(
            "title = \"Is a unix socket faster than TCP?\"\n\n[[variant]]\nname = \"TCP\"\n\
                      url = \"http://127.0.0.1:{{port}}/\"\n"
                .into(),
        ),
        metrics: METRICS
            .map(|metric| MetricRecord {
                metric,
                label: metric.label().into(),
                unit: metric.unit(),
                better: metric.better(),
            })
            .to_vec(),
        rules: RulesRecord {
            smallest_effect: EFFECT,
            precision: 0.02,
            min_blocks: 10,
            max_blocks: 50,
            max_time_s: Some(600.0),
            blocks_per_start: Some(3),
            disturbed: 0.2,
            any_answers: false,
            processes: Vec::new(),
            seed: 1,
            confidence: 0.95,
        },
        sweep: None,
        server_cpus: Some("1".into()),
        load_cpus: None,
        network: None,
        environment: environment(),
        warnings: Vec::new(),
        skipped: Vec::new(),
        cells: Vec::new(),
    }
}

/// Makes runs with this throughput, three per cent of noise, and other metrics derived from it.
fn cell(seed: u64, group: &str, point: Option<usize>, variants: &[(&str, f64)], blocks: usize) -> CellResult {
    let mut chance = Chance(seed);
    let mut runs = Vec::new();
    for block in 0..blocks {
        for place in 0..variants.len() {
            let variant = if block % 2 == 0 { place } else { variants.len() - 1 - place };
            let mut near = |value: f64| value * (1.0 + 0.012 * chance.normal());
            let rps = near(variants[variant].1);
            let figures = BTreeMap::from([
                (Metric::Rps, rps),
                (Metric::P50, near(20.0 / rps * 1e9)),
                (Metric::P99, near(48.0 / rps * 1e9)),
                (Metric::Cpu, near(0.93 / rps * 1e9)),
            ]);
            runs.push(Run {
                variant,
                block,
                session: block / 3,
                place,
                at_s: (block * variants.len() + place) as f64 * 1.4,
                figures,
                shift: None,
                warnings: Vec::new(),
                machine: None,
                unfinished_agents: 0,
                grade: None,
                record: None,
                command: Some(CommandRun {
                    words: vec!["wrk".into(), "-t1".into()],
                    elapsed_s: 1.0,
                    cpu_s: 0.5,
                    requests: Some(rps),
                    burst: None,
                    output: String::new(),
                }),
            });
        }
    }
    let values = |variant: usize, metric: Metric| -> Vec<Value> {
        runs.iter()
            .filter(|r| r.variant == variant)
            .map(|r| Value { session: r.session, value: r.figures[&metric] })
            .collect()
    };
    let figures = |variant| {
        METRICS.into_iter().filter_map(|m| Some((m, level(&values(variant, m), &Bootstrap::default())?))).collect()
    };
    let results = variants.iter().enumerate().map(|(index, (name, _))| VariantResult {
        name: (*name).into(),
        urls: vec![if name.starts_with("unix") {
            "unix:{{socket}}:/".into()
        } else {
            "http://127.0.0.1:{{port}}/".into()
        }],
        start: Some("nginx -p {{dir}} -e stderr -c nginx.conf".into()),
        load: "20 connections, 1s".into(),
        figures: figures(index),
        response: None,
        failed: None,
        program: None,
        load_program: None,
    });
    let mut comparisons = Vec::new();
    for metric in METRICS {
        for base in 0..variants.len() {
            for variant in base + 1..variants.len() {
                comparisons.push(compared(&runs, metric, base, variant, variants));
            }
        }
    }
    CellResult {
        group: group.into(),
        point,
        variants: results.collect(),
        runs,
        comparisons,
        rate: point.map(|_| 12_000.0),
        lengthened: None,
        blocks,
        repeated: 0,
        ended: Ended::Precise,
    }
}

fn compared(runs: &[Run], metric: Metric, base: usize, variant: usize, names: &[(&str, f64)]) -> Comparison {
    let find = |run: &Run| runs.iter().find(|other| other.variant == variant && other.block == run.block);
    let pairs: Vec<Pair> = runs
        .iter()
        .filter(|run| run.variant == base)
        .filter_map(|run| {
            Some(Pair { session: run.session, base: run.figures[&metric], variant: find(run)?.figures[&metric] })
        })
        .collect();
    let found = ratio(&pairs, &Bootstrap::default());
    let interval: Option<Interval> = found.map(|found| found.interval);
    let verdict = match interval {
        None => Verdict::NotCompared,
        Some(i) if i.low > 1.0 / (1.0 + EFFECT) && i.high < 1.0 + EFFECT => Verdict::Equivalent,
        Some(i) if i.low <= 1.0 && i.high >= 1.0 => Verdict::Undecided,
        Some(i) if (i.estimate > 1.0) == (metric == Metric::Rps) => Verdict::Faster,
        Some(_) => Verdict::Slower,
    };
    let (one, other) = (names[variant].0, names[base].0);
    let words = match (verdict, interval) {
        (Verdict::Faster, Some(i)) => {
            format!(
                "{one} is faster than {other}: {:.2} times the {} (95 % interval {:.2} to {:.2})",
                i.estimate,
                metric.label(),
                i.low,
                i.high
            )
        }
        (Verdict::Slower, Some(i)) => {
            format!("{one} is slower than {other}: {:.2} times the {}", i.estimate, metric.label())
        }
        (Verdict::Equivalent, _) => {
            format!("no difference that matters between {other} and {one} in {}", metric.label())
        }
        _ => format!("undecided: {} of {one} beside {other}; more blocks or longer runs narrow it", metric.label()),
    };
    Comparison { metric, base, variant, ratio: interval, blocks: pairs.len(), p: found.map(|f| f.p), verdict, words }
}
