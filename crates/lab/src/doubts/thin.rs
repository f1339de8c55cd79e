//! Percentiles that rest on too few answers.

use oroshi_words::units;

use crate::metric::Metric;
use crate::plan::Experiment;
use crate::result::{CellResult, Run, cell_name};

/// With fewer answers beyond a percentile than this, over all runs of a variant, its value is chance.
const LEAST_BEYOND: f64 = 100.0;

/// Warns for each compared percentile of the variant with the fewest answers beyond it, if those are too few.
#[must_use]
pub fn thin(experiment: &Experiment, cells: &[CellResult]) -> Vec<String> {
    let of = |metric: &Metric| {
        let found = cells.iter().flat_map(|cell| percentiles(*metric, cell)).collect::<Vec<_>>();
        let worst = found.iter().min_by(|one, other| one.beyond.total_cmp(&other.beyond))?;
        let sweep = experiment.sweep.as_ref().map(|sweep| (sweep.label.as_str(), sweep.values.as_slice()));
        let at = cell_name(&worst.cell.group, worst.cell.point, sweep);
        let at = if at.is_empty() { at } else { format!(" ({at})") };
        let others = match found.len() - 1 {
            0 => String::new(),
            others => format!(", and in {others} other percentiles on fewer than {LEAST_BEYOND}"),
        };
        Some(format!(
            "{metric} of {}{at} rests on {} beyond it in {}{others}: longer runs or a lower percentile say more",
            worst.cell.variants[worst.variant].name,
            units::plural(worst.beyond.round() as u64, "answer"),
            units::plural(worst.runs as u64, "run"),
        ))
    };
    experiment.metrics.iter().filter_map(of).collect()
}

/// A variant with too few answers beyond a percentile.
struct ThinPercentile<'a> {
    cell: &'a CellResult,
    variant: usize,
    beyond: f64,
    runs: usize,
}

fn percentiles<'a>(metric: Metric, cell: &'a CellResult) -> impl Iterator<Item = ThinPercentile<'a>> {
    let compared = move |variant: usize| {
        cell.comparisons
            .iter()
            .any(|c| c.metric == metric && c.ratio.is_some() && (c.base == variant || c.variant == variant))
    };
    let percentile = move |variant: usize| {
        let runs = cell.runs.iter().filter(|run| run.variant == variant && run.figures.contains_key(&metric));
        // A program tells the number of answers for all its runs or for none.
        let answers: Vec<f64> = runs.filter_map(answers).collect();
        let beyond = answers.iter().sum::<f64>() * (1.0 - metric.quantile()?);
        let percentile = ThinPercentile { cell, variant, beyond, runs: answers.len() };
        (!answers.is_empty() && beyond < LEAST_BEYOND).then_some(percentile)
    };
    (0..cell.variants.len()).filter(move |variant| compared(*variant)).filter_map(percentile)
}

/// Returns a run's answers, if known.
fn answers(run: &Run) -> Option<f64> {
    match (&run.record, &run.command) {
        (Some(record), _) => Some(record.latency.response.summary.count as f64),
        (None, command) => command.as_ref()?.requests,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::{ComparisonOptions, comparisons};
    use crate::result::CommandRun;
    use crate::sample::{cell, experiment, run};

    /// Ten runs of each variant with this many answers.
    fn cell_of(answers: &[(&str, Option<f64>)], metrics: &[Metric]) -> CellResult {
        let command = |requests| CommandRun {
            words: Vec::new(),
            elapsed_s: 1.0,
            cpu_s: 0.1,
            requests,
            burst: None,
            output: String::new(),
        };
        let runs = (0..10).flat_map(|block| {
            answers.iter().enumerate().map(move |(variant, (_, requests))| Run {
                command: Some(command(*requests)),
                ..run(variant, block, &[(Metric::Rps, 1000.0), (Metric::P99, 1e6), (Metric::P99_9, 2e6)])
            })
        });
        let names: Vec<&str> = answers.iter().map(|(name, _)| *name).collect();
        let mut cell = cell(&names, runs.collect());
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let alive = vec![true; names.len()];
        let asked = ComparisonOptions {
            names: &names,
            alive: &alive,
            metrics,
            smallest_effect: 0.03,
            disturbed: 0.2,
            any_answers: false,
            stopped_at: None,
        };
        cell.comparisons = comparisons(&asked, &cell.runs);
        cell
    }

    #[test]
    fn a_percentile_that_hardly_any_answer_is_beyond_is_named() {
        let metrics = vec![Metric::P99, Metric::P99_9, Metric::Rps];
        let experiment = Experiment { metrics: metrics.clone(), ..experiment() };
        let said = |answers: &[(&str, Option<f64>)]| thin(&experiment, &[cell_of(answers, &metrics)]);
        // A hundred beyond p99, ten beyond p99.9; the other variant has more than enough.
        assert_eq!(
            said(&[("tcp", Some(1000.0)), ("unix", Some(1e6))]),
            ["p99.9 of tcp rests on 10 answers beyond it in 10 runs: longer runs or a lower percentile say more"]
        );
        let both = said(&[("tcp", Some(500.0)), ("unix", Some(300.0))]);
        assert_eq!(both.len(), 2);
        assert!(
            both[1].starts_with("p99.9 of unix rests on 3 answers beyond it in 10 runs, and in 1 other"),
            "{both:?}"
        );
        assert_eq!(said(&[("tcp", None), ("unix", Some(1e6))]), Vec::<String>::new(), "nobody knows how many");
        // Percentiles that are not compared need no advice.
        assert_eq!(said(&[("tcp", Some(10.0))]), Vec::<String>::new());
    }
}
