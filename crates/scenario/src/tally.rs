//! What one thread counts of its users; merged when the run is over.

use std::collections::{BTreeMap, HashMap};

use oroshi_bench::RequestCounts;
use oroshi_bench::record::scenario::{
    CheckRecord, FailRecord, FlowRecord, JourneyRecord, PointsRecord, StepRecord, TimerRecord,
};
use oroshi_stats::Latency;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::sample::Samples;

/// The most steps, checks, timers, labels and reasons, each: what comes later is counted under [`OTHERS`].
const MOST_NAMES: usize = 1_000;

/// The most ways between steps; others are not counted.
const MOST_FLOWS: usize = 10_000;

/// The name of what comes after [`MOST_NAMES`].
const OTHERS: &str = "(others)";

/// The longest name, bytes; longer ones are cut.
const NAME_BYTES: usize = 200;

/// No step: the begin or the end of a journey.
pub(crate) const NO_STEP: u32 = u32::MAX;

/// Values by name, in the order of their first use.
#[derive(Debug)]
pub(crate) struct Named<T> {
    index: HashMap<Box<str>, u32>,
    values: Vec<(Box<str>, T)>,
}

impl<T> Default for Named<T> {
    fn default() -> Self {
        Self { index: HashMap::new(), values: Vec::new() }
    }
}

impl<T: Serialize> Serialize for Named<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.values.serialize(serializer)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Named<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let values = Vec::<(Box<str>, T)>::deserialize(deserializer)?;
        let index = values.iter().zip(0..).map(|((name, _), id)| (name.clone(), id)).collect();
        Ok(Self { index, values })
    }
}

impl<T: Default> Named<T> {
    /// Takes the values, and keeps the names with their numbers.
    fn split_off(&mut self) -> Self {
        let names = self.values.iter().map(|(name, _)| (name.clone(), T::default())).collect();
        Self { index: self.index.clone(), values: std::mem::replace(&mut self.values, names) }
    }

    /// Returns the number of a name.
    pub(crate) fn id(&mut self, name: &str) -> u32 {
        if let Some(&id) = self.index.get(name) {
            return id;
        }
        let name = match self.values.len() {
            0..MOST_NAMES => &name[..name.floor_char_boundary(NAME_BYTES)],
            _ => OTHERS,
        };
        if let Some(&id) = self.index.get(name) {
            return id;
        }
        let id = self.values.len() as u32;
        self.index.insert(name.into(), id);
        self.values.push((name.into(), T::default()));
        id
    }

    /// Returns the value of a number.
    pub(crate) fn at(&mut self, id: u32) -> &mut T {
        &mut self.values[id as usize].1
    }

    /// Returns the value of a name.
    pub(crate) fn get(&mut self, name: &str) -> &mut T {
        let id = self.id(name);
        self.at(id)
    }

    /// Returns the name of a number; empty for none.
    pub(crate) fn name(&self, id: u32) -> &str {
        self.values.get(id as usize).map_or("", |(name, _)| name)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &T)> {
        self.values.iter().map(|(name, value)| (&**name, value))
    }

    fn merge(&mut self, other: Self, mut add: impl FnMut(&mut T, T)) {
        for (name, value) in other.values {
            add(self.get(&name), value);
        }
    }

    /// Forgets the values, and keeps the names with their numbers.
    fn clear(&mut self) {
        self.values.iter_mut().for_each(|(_, value)| *value = T::default());
    }
}

/// A check.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Check {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
}

/// Points of a label.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Points {
    pub(crate) count: u64,
    pub(crate) sum: f64,
}

/// Journeys of a scenario.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Journeys {
    pub(crate) begun: u64,
    pub(crate) completed: u64,
    pub(crate) failed: u64,
    pub(crate) cut_off: u64,
    pub(crate) duration: Latency,
}

/// What a thread counts, or all of them.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Tally {
    pub(crate) steps: Named<RequestCounts>,
    pub(crate) timers: Named<Latency>,
    pub(crate) checks: Named<Check>,
    pub(crate) fails: Named<u64>,
    pub(crate) check_samples: Samples,
    pub(crate) fail_samples: Samples,
    pub(crate) points: Named<Points>,
    /// By the scenario's number.
    pub(crate) journeys: Vec<Journeys>,
    /// Scenario, step before, step after.
    pub(crate) flows: HashMap<(u16, u32, u32), u64>,
    /// Points of each user that has any.
    pub(crate) users: BTreeMap<u64, f64>,
    /// Requests that the client sent again because a kept connection had broken.
    pub(crate) retries: u64,
    /// Arrivals of users: due, begun late, never begun; and how late.
    pub(crate) due: u64,
    pub(crate) late: u64,
    pub(crate) unbegun: u64,
    pub(crate) lateness: Latency,
}

impl Tally {
    /// A tally of so many scenarios.
    pub(crate) fn new(scenarios: usize) -> Self {
        Self { journeys: (0..scenarios).map(|_| Journeys::default()).collect(), ..Self::default() }
    }

    /// Takes what was counted so far. Numbers of names stay.
    pub(crate) fn split_off(&mut self) -> Self {
        let scenarios = self.journeys.len();
        Self {
            steps: self.steps.split_off(),
            timers: self.timers.split_off(),
            checks: self.checks.split_off(),
            fails: self.fails.split_off(),
            check_samples: std::mem::take(&mut self.check_samples),
            fail_samples: std::mem::take(&mut self.fail_samples),
            points: self.points.split_off(),
            journeys: std::mem::replace(&mut self.journeys, Tally::new(scenarios).journeys),
            flows: std::mem::take(&mut self.flows),
            users: std::mem::take(&mut self.users),
            retries: std::mem::take(&mut self.retries),
            due: std::mem::take(&mut self.due),
            late: std::mem::take(&mut self.late),
            unbegun: std::mem::take(&mut self.unbegun),
            lateness: std::mem::take(&mut self.lateness),
        }
    }

    /// Whether the counts are those of a run of so many scenarios, and not garbage whose sum could overflow.
    pub(crate) fn is_plausible(&self, scenarios: usize) -> bool {
        /// The highest plausible count of a part of a run.
        const MOST: u64 = 1 << 48;
        let named = [self.steps.values.len(), self.timers.values.len(), self.checks.values.len()];
        let others = [self.fails.values.len(), self.points.values.len()];
        let counts = self.steps.iter().flat_map(|(_, step)| {
            let counts = [step.count, step.errors, step.cut_off, step.cached, step.body_bytes];
            counts.into_iter().chain(step.statuses.values().copied()).chain(step.failures.iter().map(|(_, n)| n))
        });
        let checks = self.checks.iter().flat_map(|(_, check)| [check.passed, check.failed]);
        let fails = self.fails.iter().map(|(_, count)| *count);
        let points = self.points.iter().map(|(_, points)| points.count);
        let journeys = self.journeys.iter().flat_map(|j| [j.begun, j.completed, j.failed, j.cut_off]);
        let rest = [self.retries, self.due, self.late, self.unbegun];
        named.into_iter().chain(others).all(|names| names <= MOST_NAMES + 1)
            && self.journeys.len() == scenarios
            && self.flows.len() <= MOST_FLOWS
            && self.points.iter().all(|(_, points)| points.sum.is_finite())
            && self.users.values().all(|points| points.is_finite())
            && counts
                .chain(checks)
                .chain(fails)
                .chain(points)
                .chain(journeys)
                .chain(rest)
                .chain(self.flows.values().copied())
                .all(|count| count <= MOST)
    }

    /// Forgets what was counted. Numbers of names stay.
    pub(crate) fn reset(&mut self) {
        self.steps.clear();
        self.timers.clear();
        self.checks.clear();
        self.fails.clear();
        (self.check_samples, self.fail_samples) = Default::default();
        self.points.clear();
        self.journeys.iter_mut().for_each(|journeys| *journeys = Journeys::default());
        self.flows.clear();
        self.users.clear();
        (self.due, self.late, self.unbegun) = (0, 0, 0);
        self.lateness.clear();
    }

    /// Counts that a user went from one step to another.
    pub(crate) fn flow(&mut self, scenario: u16, from: u32, to: u32) {
        if let Some(count) = self.flows.get_mut(&(scenario, from, to)) {
            *count += 1;
        } else if self.flows.len() < MOST_FLOWS {
            self.flows.insert((scenario, from, to), 1);
        }
    }

    /// Adds the counts of another thread.
    pub(crate) fn merge(&mut self, mut other: Self) {
        for ((scenario, from, to), count) in std::mem::take(&mut other.flows) {
            let mut id = |id: u32| match id {
                NO_STEP => NO_STEP,
                id => self.steps.id(other.steps.name(id)),
            };
            let key = (scenario, id(from), id(to));
            *self.flows.entry(key).or_default() += count;
        }
        self.steps.merge(other.steps, |to, from| to.merge(&from));
        self.timers.merge(other.timers, |to, from| to.merge(&from));
        self.checks.merge(other.checks, |to, from| {
            to.passed += from.passed;
            to.failed += from.failed;
        });
        self.fails.merge(other.fails, |to, from| *to += from);
        let mut random = fastrand::Rng::with_seed(self.users.len() as u64);
        self.check_samples.merge(other.check_samples, &mut random);
        self.fail_samples.merge(other.fail_samples, &mut random);
        self.points.merge(other.points, |to, from| {
            to.count += from.count;
            to.sum += from.sum;
        });
        if self.journeys.is_empty() {
            self.journeys = other.journeys.iter().map(|_| Journeys::default()).collect();
        }
        for (to, from) in self.journeys.iter_mut().zip(other.journeys) {
            to.begun += from.begun;
            to.completed += from.completed;
            to.failed += from.failed;
            to.cut_off += from.cut_off;
            to.duration.merge(&from.duration);
        }
        other.users.into_iter().for_each(|(user, points)| *self.users.entry(user).or_default() += points);
        self.retries += other.retries;
        self.due += other.due;
        self.late += other.late;
        self.unbegun += other.unbegun;
        self.lateness.merge(&other.lateness);
    }

    /// The sum of all points.
    pub(crate) fn sum(&self) -> f64 {
        self.points.iter().map(|(_, points)| points.sum).sum()
    }

    /// How many checks held, and how many did not.
    pub(crate) fn checked(&self) -> (u64, u64) {
        self.checks.iter().fold((0, 0), |sum, (_, check)| (sum.0 + check.passed, sum.1 + check.failed))
    }

    /// Steps that were used, over so many seconds.
    pub(crate) fn step_records(&self, elapsed_s: f64) -> Vec<StepRecord> {
        let used = self.steps.iter().filter(|(_, step)| step.is_used());
        used.map(|(name, step)| step.record(name, elapsed_s)).collect()
    }

    /// Timers that were used.
    pub(crate) fn timer_records(&self) -> Vec<TimerRecord> {
        let used = self.timers.iter().filter(|(_, time)| !time.is_empty());
        used.map(|(name, time)| TimerRecord { name: name.to_owned(), time: time.clone().into() }).collect()
    }

    /// Takes the checks that were made.
    pub(crate) fn check_records(&mut self) -> Vec<CheckRecord> {
        let samples = &mut self.check_samples;
        let made = self.checks.iter().filter(|(_, check)| check.passed + check.failed > 0);
        let record = |(name, check): (&str, &Check)| CheckRecord {
            name: name.to_owned(),
            passed: check.passed,
            failed: check.failed,
            samples: samples.take(name),
        };
        made.map(record).collect()
    }

    /// Takes the failures by reason, the most frequent first.
    pub(crate) fn fail_records(&mut self) -> Vec<FailRecord> {
        let samples = &mut self.fail_samples;
        let seen = self.fails.iter().filter(|(_, count)| **count > 0);
        let record = |(reason, count): (&str, &u64)| FailRecord {
            reason: reason.to_owned(),
            count: *count,
            samples: samples.take(reason),
        };
        let mut records: Vec<FailRecord> = seen.map(record).collect();
        records.sort_by_key(|record| std::cmp::Reverse(record.count));
        records
    }

    /// Points by label.
    pub(crate) fn point_records(&self) -> Vec<PointsRecord> {
        let given = self.points.iter().filter(|(_, points)| points.count > 0);
        let record = |(label, points): (&str, &Points)| PointsRecord {
            label: label.to_owned(),
            count: points.count,
            points: points.sum,
        };
        given.map(record).collect()
    }

    /// Journeys by scenario.
    pub(crate) fn journey_records(&self, scenarios: &[(String, f64)]) -> Vec<JourneyRecord> {
        let record = |((name, weight), journeys): (&(String, f64), &Journeys)| JourneyRecord {
            name: name.clone(),
            weight: *weight,
            begun: journeys.begun,
            completed: journeys.completed,
            failed: journeys.failed,
            cut_off: journeys.cut_off,
            duration: journeys.duration.clone().into(),
        };
        scenarios.iter().zip(&self.journeys).map(record).collect()
    }

    /// Flows between steps, the most frequent first.
    pub(crate) fn flow_records(&self, scenarios: &[(String, f64)]) -> Vec<FlowRecord> {
        let record = |(&(scenario, from, to), &count): (&(u16, u32, u32), &u64)| FlowRecord {
            scenario: scenarios.get(usize::from(scenario)).map(|(name, _)| name.clone()).unwrap_or_default(),
            from: self.steps.name(from).to_owned(),
            to: self.steps.name(to).to_owned(),
            count,
        };
        let mut records: Vec<FlowRecord> = self.flows.iter().map(record).collect();
        let key = |record: &FlowRecord| (record.scenario.clone(), record.from.clone(), record.to.clone());
        records.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| key(a).cmp(&key(b))));
        records
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_merge_by_name_whatever_their_order() {
        let (mut one, mut other) = (Tally::new(1), Tally::new(1));
        let (a, b) = (one.steps.id("a"), one.steps.id("b"));
        one.flow(0, NO_STEP, a);
        one.flow(0, a, b);
        one.steps.at(a).count = 3;
        let (b, a) = (other.steps.id("b"), other.steps.id("a"));
        other.flow(0, a, b);
        other.flow(0, b, NO_STEP);
        other.steps.at(a).count = 4;
        other.users.insert(7, 1.5);
        one.users.insert(7, 2.0);
        one.merge(other);
        let steps = one.step_records(2.0);
        assert_eq!(steps.len(), 1, "b was not requested");
        assert_eq!((steps[0].name.as_str(), steps[0].count, steps[0].per_s), ("a", 7, 3.5));
        let flows = one.flow_records(&[("s".into(), 1.0)]);
        let flow =
            |from: &str, to: &str, count| FlowRecord { scenario: "s".into(), from: from.into(), to: to.into(), count };
        assert_eq!(flows, [flow("a", "b", 2), flow("", "a", 1), flow("b", "", 1)]);
        assert_eq!(one.users[&7], 3.5);
    }

    #[test]
    fn counts_travel_in_pieces_that_add_up_and_garbage_is_refused() {
        let (mut thread, mut whole) = (Tally::new(1), Tally::default());
        let a = thread.steps.id("a");
        for round in 1..=3 {
            thread.steps.at(a).count += round;
            thread.steps.at(a).service.record(round * 1000);
            thread.flow(0, NO_STEP, a);
            thread.users.insert(7, 0.5);
            thread.journeys[0].begun += 1;
            let piece = postcard::to_stdvec(&thread.split_off()).unwrap();
            let piece: Tally = postcard::from_bytes(&piece).unwrap();
            assert!(piece.is_plausible(1) && !piece.is_plausible(2));
            whole.merge(piece);
            // The users know their steps by number.
            assert_eq!((thread.steps.at(a).count, thread.steps.name(a), thread.journeys.len()), (0, "a", 1));
        }
        let step = &whole.step_records(1.0)[0];
        assert_eq!((step.count, step.service.histogram.len()), (6, 3));
        assert_eq!((whole.users[&7], whole.journeys[0].begun, whole.flows.values().sum::<u64>()), (1.5, 3, 3));

        thread.steps.at(a).count = u64::MAX;
        assert!(!thread.is_plausible(1));
        let mut points = Tally::new(1);
        points.points.get("x").sum = f64::NAN;
        assert!(!points.is_plausible(1));
    }

    #[test]
    fn names_without_end_are_counted_together() {
        let mut steps = Named::<u64>::default();
        (0..5_000).for_each(|n| *steps.get(&format!("GET /{n}")) += 1);
        assert_eq!(steps.iter().count(), MOST_NAMES + 1);
        assert_eq!(*steps.get(OTHERS), 4_000);
        assert_eq!(steps.iter().map(|(_, n)| n).sum::<u64>(), 5_000);
        let long = "é".repeat(500);
        let mut names = Named::<u64>::default();
        *names.get(&long) += 1;
        *names.get(&long) += 1;
        assert_eq!(names.iter().map(|(name, n)| (name.len(), *n)).collect::<Vec<_>>(), [(200, 2)]);
    }
}
