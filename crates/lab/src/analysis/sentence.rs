//! Verdicts as sentences.

use oroshi_stats::compare::{Interval, RatioEstimate, Verdict};
use oroshi_words::units;

use super::{CONFIDENCE, Facts, Finding, kinds};
use crate::metric::{Better, Metric};

/// With fewer blocks than this the sentence gives their number.
const FEW_BLOCKS: usize = 10;
/// Ratios between these are written with more digits.
const NEAR_LOW: f64 = 0.9;
const NEAR_HIGH: f64 = 1.1;

/// The subject of a verdict.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sentence<'a> {
    /// The figure.
    pub(crate) metric: Metric,
    /// The base's name.
    pub(crate) base: &'a str,
    /// The variant's name.
    pub(crate) variant: &'a str,
    /// Smaller differences than this share do not matter.
    pub(crate) smallest_effect: f64,
    /// Questions among which the p values are corrected.
    pub(crate) questions: usize,
    /// The unit of observation, in the plural: `blocks`.
    pub(crate) unit: &'a str,
}

impl Sentence<'_> {
    /// Writes the verdict with its reason. `p` is corrected for the number of questions; `facts` are those of base and
    /// variant.
    pub(crate) fn say(&self, finding: &Finding, p: Option<f64>, verdict: Verdict, facts: [&Facts<'_>; 2]) -> String {
        let Self { base, variant, .. } = self;
        let label = self.metric.label();
        match finding {
            Finding::Nothing(why) => format!("{label} of {base} and {variant} is not compared: {why}"),
            Finding::Timetable { rate } => format!(
                "{base} and {variant} both kept the timetable of {} {}/s: which can do more, only a closed loop shows",
                units::number(*rate),
                if facts[0].journeys { "journeys" } else { "requests" }
            ),
            Finding::Disturbed(_, why) => format!("disturbed: no verdict on {label} of {variant} beside {base}: {why}"),
            Finding::Ratio(estimate) => {
                let mut words = match verdict {
                    Verdict::Faster | Verdict::Slower => self.difference(&estimate.interval, verdict),
                    Verdict::Equivalent => self.equivalence(&estimate.interval),
                    Verdict::Undecided | Verdict::Disturbed | Verdict::NotCompared => self.doubt(&estimate.interval, p),
                };
                words.extend(self.at_limit(verdict, facts));
                words.extend(self.answers(facts));
                words.extend(self.few(estimate));
                words
            }
        }
    }

    fn difference(&self, interval: &Interval, verdict: Verdict) -> String {
        let Self { base, variant, metric, .. } = self;
        let label = metric.label();
        let beginning = match (metric, verdict) {
            (Metric::Score, Verdict::Faster) => format!("{variant} scores higher than {base}: "),
            (Metric::Score, _) => format!("{variant} scores lower than {base}: "),
            (Metric::Rps, Verdict::Faster) => format!("{variant} is faster than {base}: "),
            (Metric::Rps, _) => format!("{variant} is slower than {base}: "),
            (_, Verdict::Faster) if metric.is_latency() => format!("{variant} answers sooner than {base}: {label} is "),
            _ if metric.is_latency() => format!("{variant} answers later than {base}: {label} is "),
            _ => format!("{variant} needs "),
        };
        let (amount, range) = self.amount(interval);
        let end = match metric {
            Metric::Score => " the score".to_owned(),
            Metric::Rps => " the requests/s".to_owned(),
            _ if metric.is_latency() && amount.ends_with("times") => " as high".to_owned(),
            _ if metric.is_latency() => String::new(),
            _ if amount.ends_with("times") => format!(" the {label} of {base}"),
            _ => format!(" {label} than {base}"),
        };
        let near = self.smallest_effect;
        let perhaps = if interval.low < 1.0 + near && interval.high > 1.0 / (1.0 + near) {
            format!("; it may be less than the {} that matter", asked(near))
        } else {
            String::new()
        };
        format!("{beginning}{amount}{end} ({} interval {range}){perhaps}", units::percent(CONFIDENCE))
    }

    /// Writes the difference and its interval in the same terms: `1.52 times` and `1.49 to 1.55`, or `34 % less` and
    /// `31 to 36 %`.
    fn amount(&self, interval: &Interval) -> (String, String) {
        let Interval { estimate, low, high } = *interval;
        if self.metric.better() == Better::Higher || estimate >= 2.0 {
            let [from, to] = ends(interval);
            return (format!("{} times", ratio(estimate)), format!("{from} to {to}"));
        }
        let (less, more) = if self.metric.is_latency() { ("lower", "higher") } else { ("less", "more") };
        let (share, from, to, word) = if estimate < 1.0 {
            (1.0 - estimate, 1.0 - high, 1.0 - low, less)
        } else {
            (estimate - 1.0, low - 1.0, high - 1.0, more)
        };
        let bare = units::percent(from);
        let bare = bare.trim_end_matches(" %");
        (format!("{} {word}", units::percent(share)), format!("{bare} to {}", units::percent(to)))
    }

    fn equivalence(&self, interval: &Interval) -> String {
        let Self { base, variant, .. } = self;
        let [low, high] = ends(interval);
        format!(
            "no difference that matters between {base} and {variant} in {}: {variant}/{base} is {low} to {high}, \
             within {}",
            self.metric.label(),
            asked(self.smallest_effect)
        )
    }

    fn doubt(&self, interval: &Interval, p: Option<f64>) -> String {
        let Self { base, variant, .. } = self;
        let label = self.metric.label();
        let [low, high] = ends(interval);
        let between = format!("undecided: {label} of {variant} is between {low} and {high} times that of {base}");
        match p {
            Some(p) if interval.low > 1.0 || interval.high < 1.0 => {
                let asked = units::plural(self.questions as u64, "question");
                format!(
                    "{between}, but with {asked} asked that may be chance (p {}, corrected by Holm); more {} decide it",
                    units::number(p),
                    self.unit
                )
            }
            _ => format!("{between}; more {} or longer runs narrow it", self.unit),
        }
    }

    /// Warns that a generator was at its limit, so that the servers' true ratio may differ.
    fn at_limit(&self, verdict: Verdict, [base, variant]: [&Facts<'_>; 2]) -> Option<String> {
        let bound = base.generator_bound + variant.generator_bound;
        if !self.metric.is_throughput() || bound == 0 {
            return None;
        }
        let (winner, loser) = if verdict == Verdict::Faster { (variant, base) } else { (base, variant) };
        let truth = match (verdict, winner.generator_bound > 0, loser.generator_bound > 0) {
            (Verdict::Faster | Verdict::Slower, true, false) => "the true difference may be greater",
            // In less than half of the runs; above that the ratio has no verdict.
            (Verdict::Faster | Verdict::Slower, false, true) => "the true difference may be smaller",
            (Verdict::Faster | Verdict::Slower, ..) => "the true difference may be another one",
            _ => "the servers may differ by more than this shows",
        };
        let graded = base.graded + variant.graded;
        Some(format!("; the generator was at its limit in {bound} of {graded} runs: {truth}"))
    }

    /// Says how the answers differ, so that nobody takes the figures for the same work.
    fn answers(&self, [base, variant]: [&Facts<'_>; 2]) -> Option<String> {
        let (base, variant) = ((base.name, &base.kind), (variant.name, &variant.kind));
        let differ = || kinds::different(base, variant).or_else(|| kinds::lengths_differ(base, variant));
        // A script judges the answers by its own checks before it awards points.
        let how = if matches!(self.metric, Metric::Memory | Metric::Score) { None } else { differ() };
        how.map(|how| format!("; {how}"))
    }

    fn few(&self, estimate: &RatioEstimate) -> Option<String> {
        (estimate.blocks < FEW_BLOCKS).then(|| format!("; this rests on {} {}", estimate.blocks, self.unit))
    }
}

/// Writes a ratio, with more digits near 1: `0.995`, `1.52`, `12.3`.
fn ratio(value: f64) -> String {
    match value {
        NEAR_LOW..NEAR_HIGH => format!("{value:.3}"),
        0.1..9.995 => format!("{value:.2}"),
        _ => units::number(value),
    }
}

/// Writes two ratios with as many digits as the one nearer to 1 needs.
fn ends(interval: &Interval) -> [String; 2] {
    let ends = [interval.low, interval.high];
    let fine =
        ends.iter().any(|end| (NEAR_LOW..NEAR_HIGH).contains(end)) && interval.high < 9.995 && interval.low >= 0.1;
    ends.map(|end| if fine { format!("{end:.3}") } else { ratio(end) })
}

/// Writes a share as a user would: `3 %`, `2.5 %`.
fn asked(share: f64) -> String {
    units::percent(share).replace(".0 %", " %")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_finer_near_one() {
        let written = [0.0123, 0.34, 0.9951, 1.0, 1.0962, 1.523, 12.34, 2345.0].map(ratio);
        assert_eq!(written, ["0.012", "0.34", "0.995", "1.000", "1.096", "1.52", "12.3", "2,345"]);
    }
}
