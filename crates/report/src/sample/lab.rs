//! Experiments as they might have come out, for tests.

use oroshi_bench::environment::{Cpu, Environment};
use oroshi_lab::Metric;
use oroshi_lab::plan::Rules;
use oroshi_lab::result::{
    CellResult, Comparison, Ended, Failure, LabResult, MetricRecord, RulesRecord, Run, SCHEMA, Skipped, SweepRecord,
    VariantResult,
};
use oroshi_stats::compare::{Interval, Verdict};

/// Two commands, compared once.
#[must_use]
pub fn two() -> LabResult {
    let old = variant("old", Some("puma -p 3000"), 81_234.0, 1.0);
    let new = variant("new", Some("puma -p {{port}} --workers 2"), 95_100.0, 0.86);
    let mut comparisons = vec![
        comparison(Metric::Rps, (0, 1), 1.171, 0.011, Verdict::Faster),
        comparison(Metric::P50, (0, 1), 0.861, 0.012, Verdict::Faster),
        comparison(Metric::P99, (0, 1), 0.994, 0.06, Verdict::Undecided),
        comparison(Metric::Cpu, (0, 1), 0.853, 0.009, Verdict::Faster),
    ];
    let why =
        "old answered 81,234/s and new answered 95,100/s, and latency depends on the rate: run both at the same one";
    comparisons[1..3].iter_mut().for_each(|c| not_compared(c, why));
    result(&[Metric::Rps, Metric::P50, Metric::P99, Metric::Cpu], vec![cell("", None, vec![old, new], comparisons)])
}

/// Six commands, of which one crashed, one was not installed, and one could not be told from the first.
#[must_use]
pub fn many() -> LabResult {
    let names = ["oroshi", "wrk", "ab", "h2load", "hey"];
    let mut variants: Vec<VariantResult> =
        names.iter().enumerate().map(|(i, name)| variant(name, None, 90e3 / (i + 1) as f64, 1.0)).collect();
    variants[4].figures.clear();
    variants[4].failed = Some(Failure {
        block: 2,
        why: "it ended by signal SEGV".into(),
        output: (1..=12).map(|n| format!("goroutine {n} [running]: {}", "main.main() ".repeat(n))).collect(),
    });
    let mut comparisons = Vec::new();
    for metric in [Metric::Rps, Metric::P50, Metric::LoadCpu, Metric::Memory] {
        // With so many, each is compared with the first only.
        for variant in 1..5 {
            let mut c = comparison(metric, (0, variant), 1.0 / (variant + 1) as f64, 0.02, Verdict::Slower);
            if variant == 4 {
                not_compared(&mut c, "there are only 2 blocks in which both were measured, and it takes 3");
            }
            comparisons.push(c);
        }
    }
    let mut result = result(
        &[Metric::Rps, Metric::P50, Metric::LoadCpu, Metric::Memory],
        vec![cell("", None, variants, comparisons)],
    );
    result.skipped = vec![Skipped { name: "oha".into(), why: "oha is not installed".into() }];
    result
}

/// Two groups without a sweep.
#[must_use]
pub fn groups() -> LabResult {
    let cells = ["kept connections", "one connection per request"].into_iter().enumerate().map(|(i, group)| {
        let factor = 1.2 + i as f64;
        let variants =
            vec![variant("tcp", Some("nginx"), 50e3, 1.0), variant("unix", Some("nginx"), 50e3 * factor, 0.8)];
        let comparisons =
            [Metric::Rps, Metric::Cpu].map(|metric| comparison(metric, (0, 1), factor, 0.01, Verdict::Faster)).to_vec();
        let mut cell = cell(group, None, variants, comparisons);
        cell.variants.iter_mut().for_each(|v| v.load = format!("20 connections, {group}, 1s"));
        cell
    });
    result(&[Metric::Rps, Metric::Cpu], cells.collect())
}

/// So many variants over four numbers of connections.
#[must_use]
pub fn sweep(variants: usize) -> LabResult {
    let values = ["10", "100", "1000", "5000"];
    let names = ["tcp", "unix", "abstract", "tls"];
    let cells = values.iter().enumerate().map(|(point, value)| {
        let mut each: Vec<VariantResult> = names[..variants]
            .iter()
            .enumerate()
            .map(|(i, name)| variant(name, None, 50e3 * (1.0 + i as f64 / 3.0) / (1.0 + point as f64), 1.0))
            .collect();
        each.iter_mut().for_each(|v| v.load = format!("{value} connections, 1s"));
        let comparisons = [Metric::Rps, Metric::P99].into_iter().flat_map(|metric| {
            let verdicts = [Verdict::Faster, Verdict::Equivalent, Verdict::Undecided, Verdict::Slower];
            (1..variants).map(move |v| comparison(metric, (0, v), 1.0 + v as f64 / 3.0, 0.02, verdicts[point]))
        });
        let comparisons = comparisons.collect();
        cell("", Some(point), each, comparisons)
    });
    let mut result = result(&[Metric::Rps, Metric::P99, Metric::Memory], cells.collect());
    result
        .cells
        .iter_mut()
        .flat_map(|c| &mut c.variants)
        .for_each(|v| v.figures.retain(|metric, _| *metric != Metric::Memory));
    let values = values.map(str::to_owned).to_vec();
    result.sweep = Some(SweepRecord { name: "connections".into(), label: "connections".into(), values });
    result
}

fn result(metrics: &[Metric], cells: Vec<CellResult>) -> LabResult {
    let environment = Environment {
        kernel: "6.18.0".into(),
        cpu: Cpu { model: Some("A Fast One".into()), online: Some(2), ..Cpu::default() },
        ..Environment::default()
    };
    LabResult {
        schema: SCHEMA.into(),
        name: "sample".into(),
        title: "Which is faster?".into(),
        question: String::new(),
        started_unix_s: 1.7e9,
        elapsed_s: 34.2,
        cut_short: false,
        quick: false,
        rerun: ["oroshi", "compare", "-c", "20", "a b"].map(str::to_owned).to_vec(),
        source: None,
        metrics: metrics
            .iter()
            .map(|m| MetricRecord { metric: *m, label: m.label().into(), unit: m.unit(), better: m.better() })
            .collect(),
        rules: RulesRecord::from(&Rules::default()),
        sweep: None,
        server_cpus: Some("1".into()),
        load_cpus: Some("0".into()),
        network: None,
        environment,
        warnings: vec!["steal: up to 7 % of the time somebody else had the CPUs".into()],
        skipped: Vec::new(),
        cells,
    }
}

fn cell(group: &str, point: Option<usize>, variants: Vec<VariantResult>, comparisons: Vec<Comparison>) -> CellResult {
    let run = |variant| Run { variant, place: variant, ..Run::default() };
    let runs = (0..12).flat_map(|_| 0..variants.len()).map(run).collect();
    let group = group.to_owned();
    CellResult {
        group,
        point,
        variants,
        runs,
        comparisons,
        rate: None,
        lengthened: None,
        blocks: 12,
        repeated: 0,
        ended: Ended::Precise,
    }
}

fn variant(name: &str, start: Option<&str>, rps: f64, slowness: f64) -> VariantResult {
    let around = |estimate: f64, share: f64| Interval {
        estimate,
        low: estimate / (1.0 + share),
        high: estimate * (1.0 + share),
    };
    let figures = [
        (Metric::Rps, around(rps, 0.012)),
        (Metric::P50, around(94_100.0 * slowness, 0.008)),
        (Metric::P99, around(241_000.0 * slowness, 0.053)),
        (Metric::Cpu, around(10_200.0 * slowness, 0.0006)),
        (Metric::LoadCpu, around(6_200.0, 0.01)),
        (Metric::Memory, around(40e6, 0.001)),
    ];
    VariantResult {
        name: name.to_owned(),
        urls: vec!["http://127.0.0.1:3000/".into()],
        start: start.map(str::to_owned),
        load: "10 connections, closed loop, 1s after 250ms of warm-up".into(),
        figures: figures.into(),
        ..VariantResult::default()
    }
}

/// Takes the ratio away.
pub fn not_compared(comparison: &mut Comparison, why: &str) {
    comparison.verdict = Verdict::NotCompared;
    (comparison.ratio, comparison.p) = (None, None);
    comparison.words = format!("{} of this and that is not compared: {why}", comparison.metric.label());
}

fn comparison(
    metric: Metric,
    (base, variant): (usize, usize),
    estimate: f64,
    share: f64,
    verdict: Verdict,
) -> Comparison {
    let ratio = Interval { estimate, low: estimate / (1.0 + share), high: estimate * (1.0 + share) };
    let words = format!("number {variant} has {estimate:.3} times the {} of number {base}", metric.label());
    Comparison { metric, base, variant, ratio: Some(ratio), blocks: 12, p: Some(0.04), verdict, words }
}
