//! Entries in the order of their commits, as series with steps.

use std::collections::BTreeMap;

use oroshi_stats::compare::Interval;
use oroshi_stats::steps::{self, Noise};

use crate::entry::{Commit, Entry, Figure, Machine, Unit};

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

impl<'h> Series<'h> {
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

    /// Whether this and another series are of one machine, metric and unit, so that their noise is comparable.
    fn is_beside(&self, other: &Self) -> bool {
        self.machine.fingerprint == other.machine.fingerprint
            && self.metric == other.metric
            && self.unit == other.unit
            && (self.subject, self.plan) != (other.subject, other.plan)
    }

    /// Returns the series of the points before this index, with steps of its own.
    pub(crate) fn before(&self, end: usize, least_change: f64) -> Self {
        let mut before = Self { points: self.points[..end].to_vec(), steps: Vec::new(), ..self.clone() };
        before.divide(least_change);
        before
    }

    fn divide(&mut self, least_change: f64) {
        let sound = self.sound();
        let begins = |place: usize| {
            place == 0 || !same_commit(self.points[sound[place - 1]].entry, self.points[sound[place]].entry)
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

    fn own_noise(&self) -> Option<Noise> {
        let values = self.values(&self.sound());
        steps::noise([(values.as_slice(), self.steps_of_sound().as_slice())])
    }

    /// The steps, with places among the sound points.
    fn steps_of_sound(&self) -> Vec<steps::Step> {
        let sound = self.sound();
        let place = |at: usize| sound.iter().position(|index| *index >= at).unwrap_or(sound.len());
        self.steps.iter().map(|step| steps::Step { at: place(step.at), ratio: step.ratio, p: step.p }).collect()
    }
}

/// Whether two entries measured the same tree.
#[must_use]
pub fn same_commit(one: &Entry, other: &Entry) -> bool {
    let key = |commit: &Commit| (commit.id.clone(), commit.changed);
    key(&one.commit) == key(&other.commit)
}

/// Returns all series of a history, with their steps: by machine, subject, load and metric. Steps smaller than
/// `least_change` (0.01 is 1 %) are left out.
///
/// First each series is divided by its own noise; then again with the noise of the machine's other series.
#[must_use]
pub fn all(entries: &[Entry], least_change: f64) -> Vec<Series<'_>> {
    let mut ordered: Vec<&Entry> = entries.iter().collect();
    let rank = |entry: &Entry| (entry.commit.id.clone(), entry.commit.changed);
    ordered.sort_by(|one, other| {
        let by_date = one.commit.unix_s.total_cmp(&other.commit.unix_s);
        by_date.then_with(|| rank(one).cmp(&rank(other))).then(one.measured_unix_s.total_cmp(&other.measured_unix_s))
    });
    let mut found: BTreeMap<_, Series<'_>> = BTreeMap::new();
    for entry in ordered {
        for subject in &entry.subjects {
            for (metric, figure) in &subject.figures {
                let machine = &entry.machine;
                let key = (machine.fingerprint.as_str(), subject.name.as_str(), subject.plan.as_str(), metric.as_str());
                let series = found.entry(key).or_insert_with(|| Series {
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
    let mut all: Vec<Series<'_>> = found.into_values().collect();
    all.iter_mut().for_each(|series| series.divide(least_change));
    let noises: Vec<Option<Noise>> = all.iter().map(|series| of_machine(series, &all)).collect();
    for (series, noise) in all.iter_mut().zip(noises) {
        if noise.is_some() {
            series.noise = noise;
            series.divide(least_change);
        }
    }
    all
}

/// Returns the noise of a series' machine without the series itself.
fn of_machine(series: &Series<'_>, all: &[Series<'_>]) -> Option<Noise> {
    let others: Vec<(Vec<f64>, Vec<steps::Step>)> = all
        .iter()
        .filter(|other| series.is_beside(other))
        .map(|other| (other.values(&other.sound()), other.steps_of_sound()))
        .collect();
    let known = steps::noise(others.iter().map(|(values, steps)| (values.as_slice(), steps.as_slice())))?;
    let own = series.own_noise().filter(|own| own.freedom >= KNOWN);
    own.is_none_or(|own| own.spread <= ALIKE * known.spread).then_some(known)
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

/// Returns the first letters of a commit's name, with a plus if the tree had changes.
#[must_use]
pub fn short(commit: &Commit) -> String {
    let is_hash = commit.id.len() >= 20 && commit.id.bytes().all(|byte| byte.is_ascii_hexdigit());
    let name = if is_hash { &commit.id[..10] } else { &commit.id };
    format!("{name}{}", if commit.changed { "+" } else { "" })
}
