//! How today compares with a saved result, for people.

use std::path::Path;

use oroshi_lab::LabResult;
use oroshi_lab::baseline::BaselineComparison;
use oroshi_lab::result::Comparison;

use super::lab::{Table, grouped_reasons, in_colour};
use crate::paint::Paint;
use crate::table::wrap;

/// No line is longer, but for those that cannot be broken.
const WIDTH: usize = 100;
/// Width of the names on the left.
const NAME: usize = 10;

/// What follows the report.
#[must_use]
pub fn against(against: &BaselineComparison, result: &LabResult, file: &Path, paint: Paint) -> String {
    let primary = result.metrics.first().map(|m| m.metric);
    let mut text = format!("\n{}\n", paint.bold(&format!("Against {}", file.display())));
    let (first, others): (Vec<_>, Vec<_>) = against.comparisons.iter().partition(|row| Some(row.metric) == primary);
    for row in &first {
        for line in wrap(&row.words, WIDTH) {
            text += &(in_colour(paint, row.verdict, &line) + "\n");
        }
    }
    text.push('\n');
    let mut table = Table::new(paint);
    table.head(&["today / saved", "ratio", "95 % interval"]);
    let mut last = "";
    for row in against.comparisons.iter().filter(|row| row.ratio.is_some()) {
        let label = row.metric.label();
        if label != last {
            table.plain(label);
        }
        last = label;
        let comparison = Comparison {
            metric: row.metric,
            base: 0,
            variant: 0,
            ratio: row.ratio,
            blocks: 0,
            p: row.p,
            verdict: row.verdict,
            words: String::new(),
        };
        table.ratio(&format!("  {}", row.variant), &comparison);
    }
    if !last.is_empty() {
        text += &table.text();
    }
    let said: Vec<&str> = first.iter().map(|row| row.words.as_str()).collect();
    let without = others.into_iter().filter(|row| row.ratio.is_none());
    let reasons = grouped_reasons(&said, without.map(|row| (row.metric.label(), row.words.as_str())));
    for line in reasons.iter().flat_map(|reason| wrap(reason, WIDTH)) {
        text += &(paint.dim(&line) + "\n");
    }
    if !last.is_empty() || !reasons.is_empty() {
        text.push('\n');
    }
    for caveat in &against.caveats {
        for (i, line) in wrap(caveat, WIDTH - NAME).iter().enumerate() {
            text += &format!("{:<NAME$}{}\n", if i == 0 { "Caveat" } else { "" }, paint.yellow(line));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use oroshi_lab::Metric;
    use oroshi_lab::baseline::BaselineRow;
    use oroshi_stats::compare::{Interval, Verdict};

    use super::*;
    use crate::sample::lab as sample;

    #[test]
    fn the_primary_verdict_comes_first_and_the_caveats_last() {
        let row = |metric, verdict, ratio| BaselineRow {
            variant: "app".into(),
            metric,
            ratio,
            p: Some(0.01),
            verdict,
            words: format!("{metric} of app as saved and app is not compared: why"),
        };
        let interval = Some(Interval { estimate: 1.2, low: 1.1, high: 1.3 });
        let against = BaselineComparison {
            comparisons: vec![
                BaselineRow { words: "app is faster".into(), ..row(Metric::Rps, Verdict::Faster, interval) },
                row(Metric::P50, Verdict::NotCompared, None),
                row(Metric::P99, Verdict::NotCompared, None),
                row(Metric::Cpu, Verdict::Slower, interval),
            ],
            caveats: vec!["another machine".into(), "another day".into()],
        };
        let text = super::against(&against, &sample::two(), Path::new("saved.json"), Paint::PLAIN);
        let expected = "
Against saved.json
app is faster

today / saved         ratio  95 % interval
requests/s
  app               x 1.200  1.100 … 1.300  faster
server CPU/request
  app               x 1.200  1.100 … 1.300  more
p50, p99 not compared: why

Caveat    another machine
Caveat    another day
";
        assert_eq!(text, expected, "\n{text}");
    }
}
