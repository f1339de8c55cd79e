//! Conclusions of `compare` and `lab run` from a result: whether everything could be compared, `--fail-if`, the exit
//! code.

use std::io;
use std::str::FromStr;

use oroshi_lab::LabResult;
use oroshi_lab::baseline::BaselineComparison;
use oroshi_lab::result::CellResult;
use oroshi_report::ci::{Finding, placed};
use oroshi_stats::compare::Verdict;
use oroshi_words::nearest;

use crate::terminal;
use crate::{interrupt, say};

/// A --fail-if condition held.
pub(crate) const EXIT_CONDITION: u8 = 3;
/// Only `--fail-if undecided` held.
const EXIT_UNDECIDED: u8 = 4;
/// There is no verdict, because the machine had other work.
pub(crate) const EXIT_DISTURBED: u8 = 5;

/// Says which conditions held, and whether something failed or could not be compared, and gives the exit code for it.
/// A missing comparison outranks a condition that held. The messages go to standard error, so that the report is the
/// same with and without conditions. `findings`: those of the result.
pub(crate) fn judge(
    result: &LabResult,
    against: Option<&BaselineComparison>,
    findings: &[Finding],
    conditions: &[Condition],
) -> u8 {
    let missing = missing(result, against, findings, conditions);
    let code = tell(findings, conditions, missing.is_some().then_some(PARTIAL));
    match missing {
        Some((missing, words)) => {
            say(&words);
            missing
        }
        None => code,
    }
}

/// Why a condition that did not hold is unknown.
pub(crate) const PARTIAL: &str = "not everything was compared";

/// Says which conditions held, and gives the exit code for it: 0, 3, or 4 if only `undecided` held. `unknown`: why a
/// condition that did not hold is unknown.
pub(crate) fn tell(findings: &[Finding], conditions: &[Condition], unknown: Option<&str>) -> u8 {
    let paint = terminal::paint(&io::stderr());
    let mut code = 0;
    for condition in conditions {
        let (name, held) = (condition.name(), condition.held(findings));
        if held.is_empty() {
            say(&match unknown {
                None => format!("{}  --fail-if {name}", paint.green("passed")),
                Some(why) => format!("{}  --fail-if {name}: {why}", paint.yellow("unknown")),
            });
        }
        for finding in held {
            say(&format!("{}  --fail-if {name}: {}", paint.red("FAILED"), finding.sentence()));
            code = match condition {
                Condition::Undecided if code == 0 => EXIT_UNDECIDED,
                Condition::Undecided => code,
                _ => EXIT_CONDITION,
            };
        }
    }
    code
}

/// Returns the subjects of conditions: the primary metric's verdicts on each later set-up beside the first; or on
/// today's beside those that were saved.
pub(crate) fn findings(
    result: &LabResult,
    against: Option<&BaselineComparison>,
    conditions: &[Condition],
) -> Vec<Finding> {
    let finding = |place: String, pair: String, verdict: Verdict, words: &str| {
        let fails = conditions.iter().any(|condition| condition.is(verdict));
        Finding { place, pair, verdict, words: words.to_owned(), fails }
    };
    if let Some(against) = against {
        let primary = result.metrics.first().map(|m| m.metric);
        let rows = against.comparisons.iter().filter(|row| Some(row.metric) == primary);
        return rows.map(|row| finding(String::new(), row.variant.clone(), row.verdict, &row.words)).collect();
    }
    let name = |cell: &CellResult, index: usize| cell.variants.get(index).map_or("?", |v| v.name.as_str()).to_owned();
    let decisive = result.decisive().map(|(cell, c)| {
        let pair = format!("{} / {}", name(cell, c.variant), name(cell, c.base));
        finding(result.cell_name(cell), pair, c.verdict, &c.words)
    });
    decisive.collect()
}

/// A missing part of the result: an exit code, and words.
fn missing(
    result: &LabResult,
    against: Option<&BaselineComparison>,
    judged: &[Finding],
    conditions: &[Condition],
) -> Option<(u8, String)> {
    let variants = result.cells.iter().flat_map(|cell| cell.variants.iter().map(move |variant| (cell, variant)));
    let failed = variants.filter(|(_, variant)| variant.failed.is_some());
    let failed: Vec<String> = failed.map(|(cell, v)| placed(&result.cell_name(cell), &v.name)).collect();
    if !failed.is_empty() {
        return Some((1, format!("error: {} failed", failed.join(", "))));
    }
    // A variant alone is only measured, unless there were to be others.
    let several = result.cells.iter().any(|cell| cell.variants.len() > 1);
    let asked = against.is_some() || !conditions.is_empty() || several || !result.skipped.is_empty();
    let compared = |found: &Finding| !matches!(found.verdict, Verdict::NotCompared | Verdict::Disturbed);
    let there = match asked {
        // A point of a sweep at which nothing can be said does not take the others' worth away.
        true if conditions.is_empty() && against.is_none() => judged.iter().any(compared),
        true => !judged.is_empty() && judged.iter().all(compared),
        false => result.cells.iter().any(|cell| !cell.runs.is_empty()),
    };
    match (there, result.cut_short) {
        (true, _) => None,
        (false, true) => Some((interrupt::EXIT_CODE, "ended by Ctrl-C before there was enough to compare".into())),
        (false, false) => {
            let disturbed = judged.iter().any(|found| found.verdict == Verdict::Disturbed);
            let code = if disturbed { EXIT_DISTURBED } else { 1 };
            Some((code, why_not(result, judged, several)))
        }
    }
}

/// Why there is no verdict.
fn why_not(result: &LabResult, judged: &[Finding], several: bool) -> String {
    if judged.is_empty() && !several && !result.skipped.is_empty() {
        let skipped = result.skipped.iter().map(|skipped| format!("{} ({})", skipped.name, skipped.why));
        let skipped = skipped.collect::<Vec<_>>().join(", ");
        return format!("error: nothing was compared: what was to be compared with it was left out: {skipped}");
    }
    if judged.iter().any(|found| found.verdict == Verdict::Disturbed) {
        return "error: no verdict: the machine was disturbed, or the load generator at its limit; the report says how \
                (--primary cpu compares CPU time per request)"
            .into();
    }
    "error: not everything could be compared; the report says why".into()
}

/// A verdict that is not wanted, on any of the later ones beside the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    /// One is worse.
    Slower,
    /// One is better.
    Faster,
    /// One is worse or better.
    Different,
    /// Of one it is not known.
    Undecided,
}

impl Condition {
    const ALL: [(&'static str, Self); 4] = [
        ("slower", Self::Slower),
        ("faster", Self::Faster),
        ("different", Self::Different),
        ("undecided", Self::Undecided),
    ];

    fn name(self) -> &'static str {
        Self::ALL.iter().find(|known| known.1 == self).map_or("", |known| known.0)
    }

    fn is(self, verdict: Verdict) -> bool {
        match self {
            Self::Slower => verdict == Verdict::Slower,
            Self::Faster => verdict == Verdict::Faster,
            Self::Different => matches!(verdict, Verdict::Slower | Verdict::Faster),
            Self::Undecided => matches!(verdict, Verdict::Undecided | Verdict::Disturbed | Verdict::NotCompared),
        }
    }

    /// The findings for which it holds.
    fn held(self, findings: &[Finding]) -> Vec<&Finding> {
        findings.iter().filter(|found| self.is(found.verdict)).collect()
    }
}

impl FromStr for Condition {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.iter().find(|known| known.0 == text).map(|known| known.1).ok_or_else(|| {
            let names = Self::ALL.map(|known| known.0);
            let near = nearest(text, names).map(|near| format!(" (did you mean {near}?)")).unwrap_or_default();
            format!("`{text}` is no verdict{near}: expected one of {}", names.join(", "))
        })
    }
}

#[cfg(test)]
mod tests {
    use oroshi_lab::Metric;
    use oroshi_lab::baseline::BaselineRow;
    use oroshi_lab::result::{Failure, Skipped};

    use super::*;
    use oroshi_report::sample::lab as sample;

    fn against(verdicts: &[Verdict]) -> BaselineComparison {
        let row = |verdict: &Verdict| BaselineRow {
            variant: "A".into(),
            metric: Metric::Rps,
            ratio: None,
            p: None,
            verdict: *verdict,
            words: format!("{verdict:?}"),
        };
        let other = BaselineRow { metric: Metric::P99, ..row(&Verdict::Slower) };
        BaselineComparison { comparisons: verdicts.iter().map(row).chain([other]).collect(), caveats: Vec::new() }
    }

    #[test]
    fn names_read_as_conditions() {
        for (name, condition) in Condition::ALL {
            assert_eq!((name.parse(), condition.name()), (Ok(condition), name));
        }
        assert!("slow".parse::<Condition>().unwrap_err().contains("did you mean slower?"));
    }

    #[test]
    fn each_condition_holds_for_its_verdicts() {
        use Verdict::{Disturbed, Equivalent, Faster, NotCompared, Slower, Undecided};
        let all = [Faster, Slower, Equivalent, Undecided, NotCompared, Disturbed];
        let found = |(verdict, words): (Verdict, &str)| Finding {
            place: String::new(),
            pair: String::new(),
            verdict,
            words: words.into(),
            fails: false,
        };
        let found: Vec<_> = all.into_iter().zip(["f", "s", "e", "u", "n", "d"]).map(found).collect();
        let held = |condition: Condition| condition.held(&found).iter().map(|f| f.words.as_str()).collect::<String>();
        let conditions = Condition::ALL.map(|known| held(known.1));
        assert_eq!(conditions, ["s", "f", "fs", "und"]);
    }

    #[test]
    fn only_the_primary_metric_beside_the_first_counts() {
        let many = sample::many();
        assert_eq!(findings(&many, None, &[]).len(), 4, "one for each later variant");
        let mut two = sample::two();
        two.cells[0].comparisons[0].verdict = Verdict::Equivalent;
        let found = findings(&two, None, &[Condition::Slower]);
        assert_eq!((found.len(), found[0].verdict, found[0].fails), (1, Verdict::Equivalent, false));
        assert_eq!((found[0].pair.as_str(), found[0].name().as_str()), ("new / old", "new / old"));
        two.cells[0].comparisons[0].base = 1;
        assert!(findings(&two, None, &[]).is_empty());
    }

    #[test]
    fn with_a_baseline_it_is_about_today_against_then() {
        let against = against(&[Verdict::Faster, Verdict::Undecided]);
        let two = sample::two();
        let found = findings(&two, Some(&against), &[Condition::Undecided]);
        let verdicts: Vec<_> = found.iter().map(|found| (found.verdict, found.fails)).collect();
        assert_eq!(verdicts, [(Verdict::Faster, false), (Verdict::Undecided, true)]);
    }

    #[test]
    fn verdicts_say_where_they_came_out() {
        let found = findings(&sample::groups(), None, &[]);
        assert_eq!(found.len(), 2);
        assert!(found[0].sentence().starts_with("kept connections: number 1"), "{found:?}");
    }

    fn code(change: impl FnOnce(&mut LabResult), conditions: &[Condition]) -> u8 {
        let mut result = sample::two();
        change(&mut result);
        judge(&result, None, &findings(&result, None, conditions), conditions)
    }

    fn fails(result: &mut LabResult) {
        let failure = Failure { block: 4, why: "it ended".into(), output: Vec::new() };
        result.cells[0].variants[1].failed = Some(failure);
    }

    #[test]
    fn conditions_and_failures_have_their_codes() {
        use Condition::{Different, Slower, Undecided};
        assert_eq!(code(|_| (), &[]), 0);
        assert_eq!(code(|_| (), &[Slower, Undecided]), 0, "it is faster");
        assert_eq!(code(|_| (), &[Slower, Different]), 3);
        assert_eq!(code(fails, &[]), 1, "whatever had been compared before");
        assert_eq!(code(fails, &[Slower]), 1, "a set-up that failed has not passed");
        assert_eq!(code(fails, &[Different]), 1, "of one that failed nothing is proven");
        let nothing = |result: &mut LabResult| sample::not_compared(&mut result.cells[0].comparisons[0], "");
        assert_eq!((code(nothing, &[]), code(nothing, &[Slower])), (1, 1), "latencies at different rates, say");
        let early = |result: &mut LabResult| {
            nothing(result);
            result.cut_short = true;
        };
        assert_eq!(code(early, &[]), 130);
        assert_eq!(code(|result| result.cut_short = true, &[]), 0, "what there was is enough");
        // One group of two was compared, the other one was not.
        let partly = |result: &mut LabResult| {
            *result = sample::groups();
            sample::not_compared(&mut result.cells[1].comparisons[0], "");
        };
        assert_eq!(code(partly, &[Slower]), 1);
    }

    #[test]
    fn what_the_machine_forbids_to_conclude_is_no_success() {
        let disturbed = |result: &mut LabResult| result.cells[0].comparisons[0].verdict = Verdict::Disturbed;
        assert_eq!((code(disturbed, &[]), code(disturbed, &[Condition::Slower])), (5, 5));
        assert_eq!(code(disturbed, &[Condition::Undecided]), 5, "told as FAILED, and yet not everything was compared");
        let undecided = |result: &mut LabResult| result.cells[0].comparisons[0].verdict = Verdict::Undecided;
        assert_eq!((code(undecided, &[]), code(undecided, &[Condition::Undecided])), (0, 4));
        let both = |result: &mut LabResult| {
            *result = sample::groups();
            result.cells[0].comparisons[0].verdict = Verdict::Undecided;
            result.cells[1].comparisons[0].verdict = Verdict::Slower;
        };
        assert_eq!(code(both, &[Condition::Slower, Condition::Undecided]), 3, "worse outranks unknown");
        assert_eq!(code(both, &[Condition::Undecided, Condition::Slower]), 3);
        let mut result = sample::two();
        disturbed(&mut result);
        let words = missing(&result, None, &findings(&result, None, &[]), &[]).unwrap().1;
        assert!(words.contains("the machine was disturbed") && words.contains("--primary cpu"), "{words}");
    }

    #[test]
    fn one_that_is_left_of_several_is_nothing_compared() {
        let mut result = sample::two();
        result.cells[0].variants.truncate(1);
        result.cells[0].comparisons.clear();
        let skipped = |name: &str| Skipped { name: name.into(), why: format!("{name} is not installed") };
        result.skipped = vec![skipped("puma"), skipped("falcon")];
        assert_eq!(judge(&result, None, &[], &[]), 1);
        let words = missing(&result, None, &[], &[]).unwrap().1;
        assert!(words.contains("left out: puma (puma is not installed), falcon ("), "{words}");
        let mut two = sample::two();
        two.skipped = vec![skipped("puma")];
        assert_eq!(judge(&two, None, &findings(&two, None, &[]), &[]), 0, "the others were compared");
    }

    #[test]
    fn a_variant_alone_is_only_measured() {
        let alone = |result: &mut LabResult| {
            result.cells[0].variants.truncate(1);
            result.cells[0].comparisons.clear();
        };
        assert_eq!(code(alone, &[]), 0);
        assert_eq!(code(alone, &[Condition::Slower]), 1, "nothing was compared that could have passed");
        let never = |result: &mut LabResult| {
            alone(result);
            result.cells[0].runs.clear();
        };
        assert_eq!(code(never, &[]), 1);
    }
}
