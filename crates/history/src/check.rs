//! A commit against the level before it, or the level at another commit.
//!
//! The commit is fixed before the data, so the place of a step is not searched for, and a single measurement of the
//! commit can be judged if the machine's noise is known. The level before it is what the search for earlier steps left:
//! an early end of it makes the interval a little too narrow (`tests/all/checks.rs` has the rate of false alarms). p
//! values are corrected for the number of figures (Holm).
//!
//! The judged commit's own measurements tell nothing about the noise: levels and noise come from the others.

use std::collections::{BTreeSet, HashMap};

use oroshi_stats::compare::{Interval, Verdict, holm, verdict};
use oroshi_stats::steps::change;
use oroshi_words::units::plural;
use serde::Serialize;

use crate::entry::{Commit, Entry};
use crate::series::{Key, Series, all, as_change, ordered, short};

/// A series counts as left out at a commit if one of so many commits before was measured on the machine. Loads and
/// names change: without such an end each given-up series would be reported for ever.
const RECENT: usize = 10;
/// The fewest measurements that show how they scatter.
const NEEDED: usize = 4;

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
    /// Number of measurements at the level that it is compared with.
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

/// A judged commit.
#[derive(Clone, Debug)]
pub struct Judged {
    /// The commit.
    pub commit: Commit,
    /// Its figures.
    pub figures: Vec<Checked>,
}

impl Judged {
    /// Whether a figure has a verdict.
    #[must_use]
    pub fn has_verdict(&self) -> bool {
        self.figures.iter().any(|one| matches!(one.verdict, Verdict::Faster | Verdict::Slower | Verdict::Equivalent))
    }
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
    /// Give more of the tree's name.
    #[error("`{name}` has several trees with changes: expected one of {}", trees.join(", "))]
    Trees {
        /// The name.
        name: String,
        /// The trees' names.
        trees: Vec<String>,
    },
}

/// Compares a commit, or the last one of the history, in the chosen series: in those that have it, and in those of its
/// machines that were measured shortly before and not at it. Changes smaller than `smallest_effect` (0.03 is 3 %) do
/// not matter.
///
/// # Errors
/// A commit is not in the history.
pub fn check(
    entries: &[Entry],
    chosen: &[Series<'_>],
    commit: Option<&str>,
    against: &Against,
    smallest_effect: f64,
) -> Result<Judged, CheckError> {
    let ordered = ordered(entries);
    let subject = match commit {
        Some(name) => find(&ordered, name)?,
        None => ordered.last().copied().ok_or(CheckError::Empty)?,
    };
    let reference = match against {
        Against::Before => None,
        Against::Commit(name) => Some(&find(&ordered, name)?.commit),
    };
    let place_of = |commit: &Commit| ordered.iter().position(|entry| entry.commit.is_same(commit));
    let place = place_of(&subject.commit).unwrap_or_default();
    let is_later = reference.is_some_and(|reference| place_of(reference) > Some(place));
    let (before, after) = ordered.split_at(place);
    let after = after.iter().filter(|entry| is_later && !entry.commit.is_same(&subject.commit));
    // Smaller steps than those that matter separate levels too.
    let others = all(before.iter().chain(after).copied(), smallest_effect / 2.0);
    let question = Question {
        commit: &subject.commit,
        reference,
        others: others.iter().map(|series| (series.key(), series)).collect(),
        recent: recent(&ordered, place, &subject.commit),
    };
    let found: Vec<Finding<'_>> = chosen.iter().filter_map(|series| question.finding(series)).collect();
    let raw: Vec<f64> = found.iter().filter_map(|found| found.change.map(|change| change.1)).collect();
    let mut adjusted = holm(&raw).into_iter();
    let figures = found.into_iter().map(|found| {
        let p = found.change.and_then(|_| adjusted.next());
        judge(found, &subject.commit, reference, p, smallest_effect)
    });
    Ok(Judged { commit: subject.commit.clone(), figures: figures.collect() })
}

/// For each machine that measured the commit at this place of the order: the trees that it measured before, the latest
/// [`RECENT`] ones.
fn recent<'h>(ordered: &[&'h Entry], place: usize, commit: &Commit) -> HashMap<&'h str, BTreeSet<Tree<'h>>> {
    let own = ordered.iter().filter(|entry| entry.commit.is_same(commit));
    let mut recent: HashMap<&str, BTreeSet<_>> =
        own.map(|entry| (entry.machine.fingerprint.as_str(), BTreeSet::new())).collect();
    for entry in ordered[..place].iter().rev() {
        if let Some(trees) = recent.get_mut(entry.machine.fingerprint.as_str()).filter(|trees| trees.len() < RECENT) {
            trees.insert(entry.commit.tree());
        }
    }
    recent
}

/// A commit, and the changes beside it.
type Tree<'h> = (&'h str, bool, Option<&'h str>);

/// A series' answer before its verdict.
struct Finding<'s> {
    series: &'s Series<'s>,
    before: Vec<f64>,
    after: Vec<f64>,
    change: Option<(Interval, f64)>,
    /// Why there is none.
    nothing: Option<(Verdict, String)>,
}

/// The commit, and what it is compared with.
struct Question<'q> {
    commit: &'q Commit,
    reference: Option<&'q Commit>,
    /// The series without the commit's own measurements.
    others: HashMap<Key<'q>, &'q Series<'q>>,
    recent: HashMap<&'q str, BTreeSet<Tree<'q>>>,
}

impl Question<'_> {
    fn finding<'s>(&self, series: &'s Series<'s>) -> Option<Finding<'s>> {
        let own: Vec<usize> =
            (0..series.points.len()).filter(|index| series.points[*index].entry.commit.is_same(self.commit)).collect();
        if own.is_empty() {
            return self.left_out(series);
        }
        let after: Vec<usize> = own.iter().copied().filter(|index| series.points[*index].disturbed.is_none()).collect();
        let others = self.others.get(&series.key()).copied();
        let before = others.map(|others| others.values(&self.level(others))).unwrap_or_default();
        let after_values = series.values(&after);
        let found = change(&before, &after_values, others.and_then(|others| others.noise.as_ref()));
        let nothing = if after.is_empty() {
            let why = own.iter().find_map(|index| series.points[*index].disturbed).unwrap_or_default();
            Some((Verdict::Disturbed, format!("the measurement was disturbed: {why}")))
        } else if before.is_empty() {
            let at = self.reference.map(|reference| format!(" at {}", short(reference))).unwrap_or_default();
            Some((Verdict::Undecided, format!("there is no sound measurement{at} to compare it with")))
        } else if found.is_none() {
            Some((Verdict::Undecided, self.too_few(before.len(), after.len())))
        } else {
            None
        };
        let change = found.filter(|_| nothing.is_none()).map(|change| (change.ratio, change.p));
        Some(Finding { series, before, after: after_values, change, nothing })
    }

    /// The last level before the commit, or the level at the reference up to there.
    fn level(&self, others: &Series<'_>) -> Vec<usize> {
        let Some(reference) = self.reference else { return others.levels().pop().unwrap_or_default() };
        let is_at = |index: &usize| others.points[*index].entry.commit.is_same(reference);
        let level = others.levels().into_iter().find(|level| level.iter().any(is_at)).unwrap_or_default();
        // Later measurements may have crept away in changes too small for a step.
        let last = level.iter().copied().filter(|index| is_at(index)).max();
        level.into_iter().filter(|index| Some(*index) <= last).collect()
    }

    fn left_out<'s>(&self, series: &'s Series<'s>) -> Option<Finding<'s>> {
        let recent = self.recent.get(series.machine.fingerprint.as_str())?;
        let last = series.points.iter().rev().find(|point| recent.contains(&point.entry.commit.tree()))?;
        let (commit, last) = (short(self.commit), short(&last.entry.commit));
        let words = format!("not measured at {commit}; the last measurement is of {last}");
        let nothing = Some((Verdict::Undecided, words));
        Some(Finding { series, before: Vec::new(), after: Vec::new(), change: None, nothing })
    }

    fn too_few(&self, before: usize, after: usize) -> String {
        let (what, at) = match self.reference {
            Some(reference) => ("measurement", format!(" at the level of {}", short(reference))),
            None => ("earlier measurement", String::new()),
        };
        let are = if before == 1 { "is" } else { "are" };
        let have = plural(before as u64, what);
        let why = format!("and the noise of this machine is not known: {NEEDED} in all are needed");
        format!("there {are} {have}{at} and {after} of this commit, {why}")
    }
}

fn judge(
    found: Finding<'_>,
    commit: &Commit,
    reference: Option<&Commit>,
    p: Option<f64>,
    smallest_effect: f64,
) -> Checked {
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
            let then = reference.map_or_else(|| "before".into(), |reference| format!("at {}", short(reference)));
            let words = format!(
                "{word}: {} at {}, {} {then}: {} ({low} to {high})",
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

/// Finds the commit whose name is this, or begins with it. `X+`, with or without the beginning of a digest behind it,
/// names a tree with changes; `X` the clean one, if it was measured.
fn find<'h>(ordered: &[&'h Entry], name: &str) -> Result<&'h Entry, CheckError> {
    let tree = name.rsplit_once('+');
    let is_tree = |commit: &Commit, is_id: &dyn Fn(&str) -> bool, difference: &str| {
        commit.changed && is_id(&commit.id) && commit.difference.as_deref().unwrap_or_default().starts_with(difference)
    };
    let is_exact = |commit: &Commit| {
        commit.id == name || tree.is_some_and(|(id, difference)| is_tree(commit, &|own| own == id, difference))
    };
    let begins = |commit: &Commit| {
        commit.id.starts_with(name)
            || tree.is_some_and(|(id, difference)| is_tree(commit, &|own| own.starts_with(id), difference))
    };
    let matching =
        |is: &dyn Fn(&Commit) -> bool| ordered.iter().copied().filter(|entry| is(&entry.commit)).collect::<Vec<_>>();
    let exact = matching(&is_exact);
    let found = if exact.is_empty() { matching(&begins) } else { exact };
    let first = *found.first().ok_or_else(|| CheckError::Unknown(name.to_owned()))?;
    if found.iter().any(|entry| entry.commit.id != first.commit.id) {
        return Err(CheckError::Ambiguous(name.to_owned()));
    }
    if let Some(clean) = found.iter().find(|entry| !entry.commit.changed) {
        return Ok(clean);
    }
    if found.iter().any(|entry| !entry.commit.is_same(&first.commit)) {
        let trees: BTreeSet<String> = found.iter().map(|entry| short(&entry.commit)).collect();
        return Err(CheckError::Trees { name: name.to_owned(), trees: trees.into_iter().collect() });
    }
    Ok(first)
}
