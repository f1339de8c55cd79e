//! Entries in the order of their commits, as series with steps.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};

use oroshi_stats::compare::Interval;
use oroshi_stats::steps::{self, Noise, Scatter};

use crate::entry::{Commit, Entry, Figure, Machine, Subject, Unit};

/// A series knows its own scatter from so many degrees of freedom on.
const KNOWN: usize = 5;
/// A series scatters as its machine does if its spread is at most so many times the machine's.
const ALIKE: f64 = 1.5;

/// One figure of one subject on one machine, over commits.
#[derive(Clone, Debug)]
pub struct Series<'h> {
    /// The machine, as of the last measurement.
    pub machine: &'h Machine,
    /// The subject's name.
    pub subject: &'h str,
    /// The load in words.
    pub load: &'h str,
    /// Digest of the load.
    pub plan: &'h str,
    /// The metric.
    pub metric: &'h str,
    /// Its unit.
    pub unit: Unit,
    /// Whether more is better.
    pub higher_is_better: bool,
    /// The measurements, in the order of commits, then of time.
    pub points: Vec<Point<'h>>,
    /// Changes of level, in order.
    pub steps: Vec<Step>,
    /// The machine's noise, from its other series of this metric. `None` if there are too few, or if this series
    /// scatters more than those.
    pub noise: Option<Noise>,
}

/// One measurement.
#[derive(Clone, Copy, Debug)]
pub struct Point<'h> {
    /// Its entry.
    pub entry: &'h Entry,
    /// The figure.
    pub figure: &'h Figure,
    /// Why the figure says nothing; such points belong to no level.
    pub disturbed: Option<&'h str>,
}

/// A change of level.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// The first point at the new level: an index into [`Series::points`].
    pub at: usize,
    /// The new level over the old one, with its 95 % interval.
    pub ratio: Interval,
    /// Probability that a series without a step looks like this; below 0.01.
    pub p: f64,
    /// Whether the new level is better.
    pub is_better: bool,
    /// Conditions of the machine that changed at the same place: `kernel: 6.1 to 6.2`. The step may be theirs.
    pub changed: Vec<String>,
}

/// What tells a series from others: machine, subject, load, metric.
pub(crate) type Key<'h> = (&'h str, &'h str, &'h str, &'h str);

impl<'h> Series<'h> {
    pub(crate) fn key(&self) -> Key<'h> {
        (&self.machine.fingerprint, self.subject, self.plan, self.metric)
    }

    /// Whether the series has no step, and is so short that even a large one could stay unfound: without the noise of
    /// the machine a series needs more measurements.
    #[must_use]
    pub fn is_too_short(&self) -> bool {
        let least = if self.noise.is_some() { steps::LEAST_POINTS } else { steps::LEAST_ALONE };
        self.steps.is_empty() && self.sound().len() < least
    }

    /// Returns the indexes of the points that belong to a level.
    #[must_use]
    pub fn sound(&self) -> Vec<usize> {
        (0..self.points.len()).filter(|index| self.points[*index].disturbed.is_none()).collect()
    }

    /// Returns the values at these indexes.
    #[must_use]
    pub fn values(&self, indexes: &[usize]) -> Vec<f64> {
        indexes.iter().map(|index| self.points[*index].figure.value).collect()
    }

    /// Returns the levels: the sound points from one step to the next, as indexes.
    #[must_use]
    pub fn levels(&self) -> Vec<Vec<usize>> {
        let ends: Vec<usize> = self.steps.iter().map(|step| step.at).collect();
        let level_of = |index: &usize| ends.iter().filter(|at| *at <= index).count();
        let mut levels = vec![Vec::new(); ends.len() + 1];
        for index in self.sound() {
            levels[level_of(&index)].push(index);
        }
        levels
    }

    fn divide(&mut self, least_change: f64) {
        let sound = self.sound();
        let begins = |place: usize| {
            place == 0 || !self.points[sound[place - 1]].entry.commit.is_same(&self.points[sound[place]].entry.commit)
        };
        let may_begin: Vec<bool> = (0..sound.len()).map(begins).collect();
        let found = steps::steps(&self.values(&sound), &may_begin, self.noise.as_ref(), least_change);
        let step = |step: steps::Step| {
            let (before, after) = (sound[step.at - 1], sound[step.at]);
            let of = |index: usize| &self.points[index].entry.machine.conditions;
            Step {
                at: after,
                ratio: step.ratio,
                p: step.p,
                is_better: (step.ratio.estimate > 1.0) == self.higher_is_better,
                changed: changes(of(before), of(after)),
            }
        };
        self.steps = found.into_iter().map(step).collect();
    }

    fn scatter(&self) -> Scatter {
        Scatter::of(&self.values(&self.sound()), &self.steps_of_sound())
    }

    /// The steps, with places among the sound points.
    fn steps_of_sound(&self) -> Vec<steps::Step> {
        let sound = self.sound();
        let place = |at: usize| sound.iter().position(|index| *index >= at).unwrap_or(sound.len());
        self.steps.iter().map(|step| steps::Step { at: place(step.at), ratio: step.ratio, p: step.p }).collect()
    }
}

/// Returns entries in the order of their commits, then of time.
///
/// Of commits with the same date, the one with the smaller number in git comes first; without numbers, the one that was
/// measured first. A tree with changes follows its commit.
#[must_use]
pub fn ordered<'h>(entries: impl IntoIterator<Item = &'h Entry>) -> Vec<&'h Entry> {
    let mut ordered: Vec<&Entry> = entries.into_iter().collect();
    // Measurements of one commit stay together, whenever they were made.
    let mut commits: HashMap<&str, (Option<u64>, f64)> = HashMap::new();
    let mut trees = HashMap::new();
    for entry in &ordered {
        let (number, first_s) = commits.entry(&entry.commit.id).or_insert((None, f64::INFINITY));
        *number = entry.commit.number.max(*number);
        *first_s = entry.measured_unix_s.min(*first_s);
        let first_s = trees.entry(entry.commit.tree()).or_insert(f64::INFINITY);
        *first_s = entry.measured_unix_s.min(*first_s);
    }
    let of_commit = |entry: &Entry| commits.get(entry.commit.id.as_str()).copied().unwrap_or((None, 0.0));
    let of_tree = |entry: &Entry| trees.get(&entry.commit.tree()).copied().unwrap_or(0.0);
    let compare = |one: &&Entry, other: &&Entry| -> Ordering {
        let ((number, first_s), (other_number, other_first_s)) = (of_commit(one), of_commit(other));
        let (commit, other_commit) = (&one.commit, &other.commit);
        let by_commit = commit
            .unix_s
            .total_cmp(&other_commit.unix_s)
            .then(number.cmp(&other_number))
            .then(first_s.total_cmp(&other_first_s))
            .then_with(|| commit.id.cmp(&other_commit.id));
        let by_tree = || {
            let by_time = || of_tree(one).total_cmp(&of_tree(other));
            commit.changed.cmp(&other_commit.changed).then_with(by_time).then(commit.tree().cmp(&other_commit.tree()))
        };
        let by_time = || one.measured_unix_s.total_cmp(&other.measured_unix_s);
        by_commit.then_with(by_tree).then_with(by_time).then_with(|| one.source.cmp(&other.source))
    };
    ordered.sort_by(compare);
    ordered
}

/// Returns pairs of commits with the same date whose order git's numbers do not tell either, so that the time of
/// measurement decided.
#[must_use]
pub fn unclear_order(entries: &[Entry]) -> Vec<(&Commit, &Commit)> {
    let ordered = ordered(entries);
    let commits = ordered.windows(2).map(|two| (&two[0].commit, &two[1].commit));
    let is_unclear = |(one, other): &(&Commit, &Commit)| {
        let is_same_date = one.unix_s.total_cmp(&other.unix_s).is_eq();
        let is_numbered = one.number.is_some() && other.number.is_some() && one.number != other.number;
        one.id != other.id && is_same_date && !is_numbered
    };
    commits.filter(is_unclear).collect()
}

/// Two entries that cannot share a series: one says that more is better, or has another unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mixed {
    /// The index of one entry.
    pub one: usize,
    /// The index of the other.
    pub other: usize,
    /// The subject and the metric.
    pub name: String,
    /// What differs: `unit` or `direction`.
    pub what: &'static str,
}

/// Looks for a series with different units or directions.
#[must_use]
pub fn mixed(entries: &[Entry]) -> Option<Mixed> {
    let mut seen: HashMap<Key<'_>, (usize, &Figure)> = HashMap::new();
    for (index, entry) in entries.iter().enumerate() {
        for subject in &entry.subjects {
            for (metric, figure) in &subject.figures {
                let (one, first) = *seen.entry(key(entry, subject, metric)).or_insert((index, figure));
                let what = (first.unit != figure.unit)
                    .then_some("unit")
                    .or((first.higher_is_better != figure.higher_is_better).then_some("direction"));
                if let Some(what) = what {
                    return Some(Mixed { one, other: index, name: format!("{}: {metric}", subject.name), what });
                }
            }
        }
    }
    None
}

fn key<'h>(entry: &'h Entry, subject: &'h Subject, metric: &'h str) -> Key<'h> {
    (&entry.machine.fingerprint, &subject.name, &subject.plan, metric)
}

/// Returns all series of a history, with their steps: by machine, subject, load and metric. Steps smaller than
/// `least_change` (0.01 is 1 %) are left out.
///
/// First each series is divided by its own noise; then again with the noise of the machine's other series.
#[must_use]
pub fn all<'h>(entries: impl IntoIterator<Item = &'h Entry>, least_change: f64) -> Vec<Series<'h>> {
    let mut all = undivided(entries);
    all.iter_mut().for_each(|series| series.divide(least_change));
    let noises = noises(&all);
    for (series, noise) in all.iter_mut().zip(noises) {
        if noise.is_some() {
            series.noise = noise;
            series.divide(least_change);
        }
    }
    all
}

/// Returns all series of a history without looking for steps.
#[must_use]
pub fn undivided<'h>(entries: impl IntoIterator<Item = &'h Entry>) -> Vec<Series<'h>> {
    let mut found: BTreeMap<Key<'_>, Series<'_>> = BTreeMap::new();
    for entry in ordered(entries) {
        for subject in &entry.subjects {
            for (metric, figure) in &subject.figures {
                let machine = &entry.machine;
                let series = found.entry(key(entry, subject, metric)).or_insert_with(|| Series {
                    machine,
                    subject: &subject.name,
                    load: &subject.load,
                    plan: &subject.plan,
                    metric,
                    unit: figure.unit,
                    higher_is_better: figure.higher_is_better,
                    points: Vec::new(),
                    steps: Vec::new(),
                    noise: None,
                });
                series.machine = machine;
                let disturbed = subject.disturbed.as_deref().filter(|_| figure.sensitive);
                series.points.push(Point { entry, figure, disturbed });
            }
        }
    }
    found.into_values().collect()
}

/// Returns for each series the noise of its machine, from the other series of the metric and unit.
fn noises(all: &[Series<'_>]) -> Vec<Option<Noise>> {
    let own: Vec<Scatter> = all.iter().map(Series::scatter).collect();
    let mut groups: HashMap<(&str, &str, Unit), Vec<usize>> = HashMap::new();
    for (index, series) in all.iter().enumerate() {
        groups.entry((&series.machine.fingerprint, series.metric, series.unit)).or_default().push(index);
    }
    // The sum of what stands before a series and of what stands behind it. Subtracting its own from a sum of all would
    // lose the digits of quiet series beside a wild one.
    let mut others = vec![Scatter::default(); all.len()];
    for group in groups.into_values() {
        let mut add = |sum: Scatter, index: &usize| {
            others[*index] = others[*index] + sum;
            sum + own[*index]
        };
        group.iter().fold(Scatter::default(), &mut add);
        group.iter().rev().fold(Scatter::default(), &mut add);
    }
    let known = |(own, others): (&Scatter, &Scatter)| {
        let known = others.noise()?;
        let own = own.noise().filter(|own| own.freedom >= KNOWN);
        own.is_none_or(|own| own.spread <= ALIKE * known.spread).then_some(known)
    };
    own.iter().zip(&others).map(known).collect()
}

fn changes(before: &BTreeMap<String, String>, after: &BTreeMap<String, String>) -> Vec<String> {
    let changed = before.iter().filter_map(|(name, old)| {
        let new = after.get(name).filter(|new| *new != old)?;
        Some(format!("{name}: {old} to {new}"))
    });
    changed.collect()
}

/// Writes a ratio as a change: `+4.2 %`, or `x 3.2` from a factor of two on.
#[must_use]
pub fn as_change(ratio: f64) -> String {
    if !(0.5..2.0).contains(&ratio) {
        return format!("x {}", oroshi_words::units::number(ratio));
    }
    let share = oroshi_words::units::percent((ratio - 1.0).abs());
    format!("{}{share}", if ratio < 1.0 { "-" } else { "+" })
}

/// Returns the first letters of a commit's name. If the tree had changes, a plus and the beginning of their digest
/// follow.
#[must_use]
pub fn short(commit: &Commit) -> String {
    let is_hash = commit.id.len() >= 20 && commit.id.bytes().all(|byte| byte.is_ascii_hexdigit());
    let name = if is_hash { &commit.id[..10] } else { &commit.id };
    let difference: String = commit.difference.iter().flat_map(|digest| digest.chars().take(4)).collect();
    format!("{name}{}{difference}", if commit.changed { "+" } else { "" })
}
