//! The kinds of answers. A server that redirects, or sends another body, does different work.

use std::collections::BTreeMap;

use oroshi_bench::Record;
use oroshi_words::units;

/// Answers differ in kind if the share of a status class differs by more than this.
const OTHER_CLASS: f64 = 0.1;
/// Answers also differ in kind if one side's bodies are more than this many times longer, and longer by
/// [`OTHER_BYTES`].
const OTHER_LENGTH: f64 = 2.0;
const OTHER_BYTES: f64 = 256.0;
/// Bodies that differ by more than this share are mentioned.
const LENGTH_WORTH_A_WORD: f64 = 0.1;
/// Statuses with a smaller share are not named.
const NAMED: f64 = 0.05;

/// The kind of a variant's answers, over all runs of our own load.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Kind {
    /// Answers by status.
    statuses: BTreeMap<u16, u64>,
    /// Mean length of a body in the median run, bytes; `None` if unknown.
    body_bytes: Option<f64>,
}

impl Kind {
    pub(super) fn of(records: &[&Record]) -> Self {
        let mut statuses = BTreeMap::new();
        for (status, count) in records.iter().flat_map(|record| &record.statuses) {
            *statuses.entry(*status).or_insert(0) += count;
        }
        let mean = |record: &&Record| {
            let known = record.answers.first_body_bytes.is_some() && record.requests.completed > 0;
            known.then(|| record.answers.body_bytes as f64 / record.requests.completed as f64)
        };
        let mut means: Vec<f64> = records.iter().filter_map(mean).collect();
        means.sort_by(f64::total_cmp);
        Self { statuses, body_bytes: means.get(means.len() / 2).copied() }
    }

    /// Returns the share of answers with a status of this class: 2 for 200 to 299.
    fn share(&self, class: u16) -> f64 {
        let all: u64 = self.statuses.values().sum();
        let of_class: u64 =
            self.statuses.iter().filter(|(status, _)| **status / 100 == class).map(|found| found.1).sum();
        of_class as f64 / all.max(1) as f64
    }

    /// `200`, or `200 (70 %) and 304 (30 %)`.
    fn named(&self) -> String {
        let all: u64 = self.statuses.values().sum();
        let share = |count: &u64| *count as f64 / all.max(1) as f64;
        let named: Vec<_> = self.statuses.iter().filter(|(_, count)| share(count) >= NAMED).collect();
        match named.as_slice() {
            [(only, _)] => only.to_string(),
            several => {
                let each = several.iter().map(|(status, n)| format!("{status} ({})", units::percent(share(n))));
                each.collect::<Vec<_>>().join(" and ")
            }
        }
    }
}

/// Says how the answers of two sides, each with its name, differ in kind, if they do.
pub(super) fn different(base: (&str, &Kind), variant: (&str, &Kind)) -> Option<String> {
    let ((one, base), (other, variant)) = (base, variant);
    let known = !base.statuses.is_empty() && !variant.statuses.is_empty();
    if known && (1..=9).any(|class| (base.share(class) - variant.share(class)).abs() > OTHER_CLASS) {
        return Some(format!("{one} answered with status {}, and {other} with {}", base.named(), variant.named()));
    }
    let (least, most) = lengths(base, variant)?;
    (most > OTHER_LENGTH * least && most - least > OTHER_BYTES).then(|| lengths_in_words((one, base), (other, variant)))
}

/// Says how the lengths of two sides' bodies differ, if that is worth mentioning.
pub(super) fn lengths_differ(base: (&str, &Kind), variant: (&str, &Kind)) -> Option<String> {
    let (least, most) = lengths(base.1, variant.1)?;
    (most > (1.0 + LENGTH_WORTH_A_WORD) * least).then(|| lengths_in_words(base, variant))
}

/// Returns the shorter and the longer mean length, if both are known.
fn lengths(base: &Kind, variant: &Kind) -> Option<(f64, f64)> {
    let (one, other) = base.body_bytes.zip(variant.body_bytes)?;
    Some((one.min(other), one.max(other)))
}

fn lengths_in_words((one, base): (&str, &Kind), (other, variant): (&str, &Kind)) -> String {
    let bytes = |kind: &Kind| units::bytes(kind.body_bytes.unwrap_or_default());
    format!("the bodies that {one} sent have {} on average, and those of {other} {}", bytes(base), bytes(variant))
}

#[cfg(test)]
mod tests {
    use oroshi_bench::Load;

    use super::*;
    use crate::sample::record;

    fn kind(statuses: &[(u16, u64)], body_bytes: Option<u64>) -> Kind {
        let mut run = record(&Load::Closed, 1000, "server-bound");
        run.statuses = statuses.iter().copied().collect();
        run.answers.first_body_bytes = body_bytes;
        run.answers.body_bytes = body_bytes.unwrap_or(0) * run.requests.completed;
        Kind::of(&[&run])
    }

    fn said(one: &Kind, other: &Kind) -> String {
        different(("A", one), ("B", other)).unwrap_or_default()
    }

    #[test]
    fn another_status_class_is_another_kind() {
        let ok = kind(&[(200, 1000)], None);
        let mixed = kind(&[(200, 700), (304, 300)], None);
        assert_eq!(said(&ok, &kind(&[(302, 1000)], None)), "A answered with status 200, and B with 302");
        assert_eq!(said(&ok, &mixed), "A answered with status 200, and B with 200 (70 %) and 304 (30 %)");
        for same in [kind(&[(200, 950), (304, 50)], None), kind(&[(201, 1000)], None), kind(&[], None)] {
            assert_eq!(said(&ok, &same), "", "{same:?}");
        }
    }

    #[test]
    fn bodies_of_quite_another_length_are_another_kind_where_both_are_known() {
        let of = |bytes| kind(&[(200, 1000)], bytes);
        let page = of(Some(10_240));
        assert_eq!(said(&page, &of(Some(2))), "the bodies that A sent have 10.0 KiB on average, and those of B 2 B");
        for like in [of(None), of(Some(10_240)), of(Some(6000)), of(Some(20_480))] {
            assert_eq!(said(&page, &like), "", "{like:?}");
        }
        assert_eq!(said(&of(Some(5)), &of(Some(200))), "", "a few bytes are hardly any work");
        assert!(said(&of(Some(0)), &page).contains("0 B"));

        let differ = |bytes| lengths_differ(("A", &page), ("B", &of(bytes))).is_some();
        assert_eq!([Some(11_000), Some(12_000), None].map(differ), [false, true, false]);
    }
}
