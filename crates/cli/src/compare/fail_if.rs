//! `--fail-if`: verdicts that make the comparison a failure.

use std::str::FromStr;

use oroshi_lab::LabResult;
use oroshi_lab::baseline::Against;
use oroshi_stats::compare::Verdict;
use oroshi_words::nearest;

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

    pub(crate) fn name(self) -> &'static str {
        Self::ALL.iter().find(|known| known.1 == self).map_or("", |known| known.0)
    }

    fn is(self, verdict: Verdict) -> bool {
        match self {
            Self::Slower => verdict == Verdict::Slower,
            Self::Faster => verdict == Verdict::Faster,
            Self::Different => matches!(verdict, Verdict::Slower | Verdict::Faster),
            Self::Undecided => matches!(verdict, Verdict::Undecided | Verdict::NotCompared),
        }
    }

    /// The sentences for which it holds.
    pub(crate) fn held<'j>(self, judged: &[(Verdict, &'j str)]) -> Vec<&'j str> {
        judged.iter().filter(|(verdict, _)| self.is(*verdict)).map(|(_, words)| *words).collect()
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

/// What conditions are about: the primary metric's verdicts on each later one beside the first, or on today's beside those that
/// were saved.
pub(super) fn judged<'r>(result: &'r LabResult, against: Option<&'r Against>) -> Vec<(Verdict, &'r str)> {
    let Some(primary) = result.metrics.first().map(|m| m.metric) else { return Vec::new() };
    match against {
        Some(against) => {
            let rows = against.comparisons.iter().filter(|row| row.metric == primary);
            rows.map(|row| (row.verdict, row.words.as_str())).collect()
        }
        None => {
            let all = result.cells.iter().flat_map(|cell| &cell.comparisons);
            all.filter(|c| c.metric == primary && c.base == 0).map(|c| (c.verdict, c.words.as_str())).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use oroshi_lab::Metric;
    use oroshi_lab::baseline::AgainstRow;

    use super::*;
    use crate::lab_text::sample;

    fn against(verdicts: &[Verdict]) -> Against {
        let row = |verdict: &Verdict| AgainstRow {
            variant: "A".into(),
            metric: Metric::Rps,
            ratio: None,
            p: None,
            verdict: *verdict,
            words: format!("{verdict:?}"),
        };
        let other = AgainstRow { metric: Metric::P99, ..row(&Verdict::Slower) };
        Against { comparisons: verdicts.iter().map(row).chain([other]).collect(), caveats: Vec::new() }
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
        use Verdict::{Equivalent, Faster, NotCompared, Slower, Undecided};
        let all = [Faster, Slower, Equivalent, Undecided, NotCompared];
        let judged: Vec<(Verdict, &str)> = all.into_iter().zip(["f", "s", "e", "u", "n"]).collect();
        let held = |condition: Condition| condition.held(&judged).concat();
        let conditions = Condition::ALL.map(|known| held(known.1));
        assert_eq!(conditions, ["s", "f", "fs", "un"]);
    }

    #[test]
    fn only_the_primary_metric_beside_the_first_counts() {
        let many = sample::many();
        assert_eq!(judged(&many, None).len(), 4, "one for each later variant");
        let mut two = sample::two();
        two.cells[0].comparisons[0].verdict = Verdict::Equivalent;
        let verdicts: Vec<Verdict> = judged(&two, None).into_iter().map(|j| j.0).collect();
        assert_eq!(verdicts, [Verdict::Equivalent], "the others are not asked");
        two.cells[0].comparisons[0].base = 1;
        assert!(judged(&two, None).is_empty());
    }

    #[test]
    fn with_a_baseline_it_is_about_today_against_then() {
        let against = against(&[Verdict::Faster, Verdict::Undecided]);
        let two = sample::two();
        let verdicts: Vec<Verdict> = judged(&two, Some(&against)).into_iter().map(|j| j.0).collect();
        assert_eq!(verdicts, [Verdict::Faster, Verdict::Undecided]);
    }
}
