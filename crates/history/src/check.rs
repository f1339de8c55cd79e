//! A commit against the level before it, or the level at another commit.
//!
//! The question is fixed before the data: one commit, and one level to compare it with. So there is no search for a
//! place, and a single measurement of the commit can be judged if the machine's noise is known. p values are corrected
//! for the number of figures (Holm).

use oroshi_stats::compare::{Interval, Verdict, holm, verdict};
use oroshi_stats::steps::change;
use oroshi_words::units::plural;
use serde::Serialize;

use crate::entry::{Commit, Entry};
use crate::series::{Series, as_change, same_commit, short};

/// What a commit is compared with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Against {
    /// The level right before it.
    Before,
    /// The level at this commit: its name, or the beginning of it.
    Commit(String),
}

/// One figure of the commit, compared.
#[derive(Clone, Debug, Serialize)]
pub struct Checked {
    /// The machine's fingerprint.
    pub machine: String,
    /// The subject.
    pub subject: String,
    /// The load in words.
    pub load: String,
    /// The metric.
    pub metric: String,
    /// The commit's name.
    pub commit: String,
    /// Number of measurements before it, at the level that it is compared with.
    pub before: usize,
    /// Number of its own measurements.
    pub after: usize,
    /// The commit's figure over that level, with its 95 % interval.
    pub ratio: Option<Interval>,
    /// Probability of a ratio at least this far from 1 without a change; corrected for the number of figures.
    pub p: Option<f64>,
    /// The verdict.
    pub verdict: Verdict,
    /// The verdict as a sentence, or the reason why there is none.
    pub words: String,
}

/// Why nothing was checked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckError {
    /// Add results first.
    #[error("the history has no figures")]
    Empty,
    /// Name a commit that is in the history.
    #[error("`{0}` is no commit of this history")]
    Unknown(String),
    /// Give more of its name.
    #[error("`{0}` begins the names of several commits of this history")]
    Ambiguous(String),
}

/// Compares a commit, or the last one of the history, in every series that has it. Changes smaller than
/// `smallest_effect` (0.03 is 3 %) do not matter.
///
/// # Errors
/// A commit is not in the history.
pub fn check(
    series: &[Series<'_>],
    commit: Option<&str>,
    against: &Against,
    smallest_effect: f64,
) -> Result<Vec<Checked>, CheckError> {
    let entries: Vec<&Entry> = series.iter().flat_map(|series| &series.points).map(|point| point.entry).collect();
    let subject = match commit {
        Some(name) => find(&entries, name)?,
        None => last(&entries).ok_or(CheckError::Empty)?,
    };
    let reference = match against {
        Against::Before => None,
        Against::Commit(name) => Some(find(&entries, name)?),
    };
    let found: Vec<Finding<'_>> =
        series.iter().filter_map(|series| finding(series, subject, reference, smallest_effect)).collect();
    let raw: Vec<f64> = found.iter().filter_map(|found| found.change.map(|change| change.1)).collect();
    let mut adjusted = holm(&raw).into_iter();
    Ok(found
        .into_iter()
        .map(|found| {
            let p = found.change.and_then(|_| adjusted.next());
            judge(found, &subject.commit, p, smallest_effect)
        })
        .collect())
}

/// A series' answer before its verdict.
struct Finding<'s> {
    series: &'s Series<'s>,
    before: Vec<f64>,
    after: Vec<f64>,
    change: Option<(Interval, f64)>,
    /// Why there is none.
    nothing: Option<(Verdict, String)>,
}

fn finding<'s>(
    series: &'s Series<'s>,
    subject: &Entry,
    reference: Option<&Entry>,
    least_change: f64,
) -> Option<Finding<'s>> {
    let own: Vec<usize> =
        (0..series.points.len()).filter(|index| same_commit(series.points[*index].entry, subject)).collect();
    let first = *own.first()?;
    let after: Vec<usize> = own.iter().copied().filter(|index| series.points[*index].disturbed.is_none()).collect();
    let before = match reference {
        None => {
            let before = series.before(first, least_change / 2.0);
            before.levels().pop().map(|level| before.values(&level)).unwrap_or_default()
        }
        Some(reference) => {
            let at = |index: &usize| same_commit(series.points[*index].entry, reference);
            let level = series.levels().into_iter().find(|level| level.iter().any(at)).unwrap_or_default();
            // Later measurements may have crept away in changes too small for a step.
            let last = level.iter().copied().filter(|index| at(index)).max();
            let until: Vec<usize> =
                level.into_iter().filter(|index| Some(*index) <= last && !own.contains(index)).collect();
            series.values(&until)
        }
    };
    let after_values = series.values(&after);
    let found = change(&before, &after_values, series.noise.as_ref());
    let nothing = if after.is_empty() {
        let why = own.iter().find_map(|index| series.points[*index].disturbed).unwrap_or_default();
        Some((Verdict::Disturbed, format!("the measurement was disturbed: {why}")))
    } else if before.is_empty() {
        Some((Verdict::Undecided, "there is no sound measurement to compare it with".to_owned()))
    } else if found.is_none() {
        let have = plural(before.len() as u64, "earlier measurement");
        let why = "and the noise of this machine is not known: three measurements are needed";
        Some((Verdict::Undecided, format!("there is {have}, {why}")))
    } else {
        None
    };
    let change = found.filter(|_| nothing.is_none()).map(|change| (change.ratio, change.p));
    Some(Finding { series, before, after: after_values, change, nothing })
}

fn judge(found: Finding<'_>, commit: &Commit, p: Option<f64>, smallest_effect: f64) -> Checked {
    let Finding { series, before, after, change, nothing } = found;
    let text = |value: f64| series.unit.text(value);
    let (verdict, words) = match (change, nothing) {
        (Some((ratio, _)), _) => {
            let verdict = verdict(&ratio, p.unwrap_or(1.0), smallest_effect, series.higher_is_better, 0.95);
            let (old, new) = (geometric_mean(&before), geometric_mean(&after));
            let word = match verdict {
                Verdict::Faster => "better",
                Verdict::Slower => "worse",
                Verdict::Equivalent => "no difference that matters",
                _ => "undecided",
            };
            let [low, high] = [ratio.low, ratio.high].map(as_change);
            let words = format!(
                "{word}: {} at {}, {} before: {} ({low} to {high})",
                text(new),
                short(commit),
                text(old),
                as_change(ratio.estimate)
            );
            (verdict, words)
        }
        (None, nothing) => nothing.unwrap_or((Verdict::Undecided, String::new())),
    };
    Checked {
        machine: series.machine.fingerprint.clone(),
        subject: series.subject.to_owned(),
        load: series.load.to_owned(),
        metric: series.metric.to_owned(),
        commit: commit.id.clone(),
        before: before.len(),
        after: after.len(),
        ratio: change.map(|change| change.0),
        p,
        verdict,
        words,
    }
}

fn geometric_mean(values: &[f64]) -> f64 {
    (values.iter().map(|value| value.ln()).sum::<f64>() / values.len().max(1) as f64).exp()
}

fn last<'h>(entries: &[&'h Entry]) -> Option<&'h Entry> {
    let key = |entry: &Entry| (entry.commit.id.clone(), entry.commit.changed);
    entries
        .iter()
        .copied()
        .max_by(|one, other| one.commit.unix_s.total_cmp(&other.commit.unix_s).then_with(|| key(one).cmp(&key(other))))
}

/// Finds the commit whose name is this, or begins with it.
fn find<'h>(entries: &[&'h Entry], name: &str) -> Result<&'h Entry, CheckError> {
    if let Some(exact) = entries.iter().find(|entry| entry.commit.id == name) {
        return Ok(exact);
    }
    let mut begins = entries.iter().filter(|entry| entry.commit.id.starts_with(name));
    let first = begins.next().ok_or_else(|| CheckError::Unknown(name.to_owned()))?;
    if begins.any(|entry| entry.commit.id != first.commit.id) {
        return Err(CheckError::Ambiguous(name.to_owned()));
    }
    Ok(first)
}
