//! The part of a record that only scenarios have: score, checks, steps, journeys.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::ClockRecord;
use crate::failure::Failure;

/// What users did in their journeys, and what it was worth.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ScenarioRecord {
    /// The users and the model by which they came.
    pub users: UsersRecord,
    /// The score, if the script awards points or has a formula.
    pub score: Option<ScoreRecord>,
    /// Journeys by scenario, in the script's order.
    pub journeys: Vec<JourneyRecord>,
    /// Requests by step, in the order of their first use.
    pub steps: Vec<StepRecord>,
    /// Durations of the script's `step(name, function)`, in the order of their first use.
    pub timers: Vec<TimerRecord>,
    /// Checks by name, in the order of their first use.
    pub checks: Vec<CheckRecord>,
    /// Reasons that the script gave to `fail`, the most frequent first.
    pub fails: Vec<FailRecord>,
    /// How often one step followed another within a journey, the most frequent first.
    pub flows: Vec<FlowRecord>,
    /// Why the run was ended by the script; `None` if it was not.
    pub aborted: Option<String>,
    /// How the phases before and after the load went.
    pub phases: Vec<PhaseRecord>,
    /// The seed of all choices.
    pub seed: u64,
    /// Requests that were sent again because a kept connection had broken. The load counts each as one.
    #[serde(default)]
    pub retries: u64,
}

/// The users of a run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct UsersRecord {
    /// `closed`: users begin again; `open`: they arrive by a timetable.
    pub model: UserModel,
    /// The most users at a time.
    pub most: usize,
    /// Open model: arrivals that were due.
    pub due: u64,
    /// Open model: arrivals that found every user busy: they began late, or never.
    pub late: u64,
    /// Open model: arrivals that never began.
    pub unbegun: u64,
    /// How long late arrivals waited. `None` in the closed model.
    pub lateness: Option<ClockRecord>,
}

/// What decides when a journey begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UserModel {
    /// Each user begins its next journey after the last one.
    #[default]
    Closed,
    /// A timetable, however long other journeys take.
    Open,
}

/// The score.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScoreRecord {
    /// The score: the formula's result, else the sum of all points. 0 where it is void.
    pub value: f64,
    /// Why the result is void.
    pub void: Option<String>,
    /// Whether the script has a formula.
    pub formula: bool,
    /// The sum of all points.
    pub points: f64,
    /// Points by label, in the order of their first use.
    pub breakdown: Vec<PointsRecord>,
}

/// Points of one label.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PointsRecord {
    /// The label.
    pub label: String,
    /// How often they were awarded, or deducted.
    pub count: u64,
    /// Their sum; negative for penalties.
    pub points: f64,
}

/// Journeys of one scenario.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct JourneyRecord {
    /// The scenario's name.
    pub name: String,
    /// Its weight among the others.
    pub weight: f64,
    /// Journeys begun in the measured part: `completed + failed + cut_off`.
    pub begun: u64,
    /// Journeys that came to their end.
    pub completed: u64,
    /// Journeys ended by `fail` or by an error of the script.
    pub failed: u64,
    /// Journeys that the end of the run cut off.
    pub cut_off: u64,
    /// How long they took.
    pub duration: ClockRecord,
}

/// Requests of one step, or to one URL (`urls` of the [record](crate::Record)).
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StepRecord {
    /// The step's name, or the URL.
    pub name: String,
    /// Requests that ended in the measured part, in whatever way.
    pub count: u64,
    /// Requests per second over the measured part.
    pub per_s: f64,
    /// Requests that failed, got a status of 400 or more that the script did not expect, or were not as expected.
    pub errors: u64,
    /// Requests that the end of the run cut off; `count` lacks them.
    #[serde(default)]
    pub cut_off: u64,
    /// Failures by name.
    pub failures: BTreeMap<Failure, u64>,
    /// Responses by status.
    pub statuses: BTreeMap<u16, u64>,
    /// Requests that the user's cache answered without the network.
    pub cached: u64,
    /// Bytes of the bodies, as decoded.
    pub body_bytes: u64,
    /// From handing the first byte to the kernel to reading the last byte.
    pub service: ClockRecord,
    /// From when the user wanted the request to reading the last byte: with waiting for a connection and connecting.
    pub response: ClockRecord,
}

/// Durations of one block of a script.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TimerRecord {
    /// The block's name.
    pub name: String,
    /// How long it took. Of a block that the journey did not leave, at least how long: its failure or the end of the
    /// run ended it.
    pub time: ClockRecord,
}

/// A check.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CheckRecord {
    /// The check's name.
    pub name: String,
    /// How often it held.
    pub passed: u64,
    /// How often it did not.
    pub failed: u64,
    /// Some of those that failed.
    pub samples: Vec<SampleRecord>,
}

/// A check that failed, or a failure, with the last exchange before it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SampleRecord {
    /// Seconds since the start.
    pub at_s: f64,
    /// The user's number.
    pub user: u64,
    /// The script's line: `isucon4.lua:31`.
    pub place: String,
    /// The request's line and fields, without secrets. Empty if there was no request.
    pub request: String,
    /// The response's line and fields, without secrets. Empty if there was none.
    pub head: String,
    /// The first bytes of the body, with escapes.
    pub body: String,
}

/// A reason that the script gave to `fail`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FailRecord {
    /// The reason.
    pub reason: String,
    /// How often.
    pub count: u64,
    /// Some of them.
    pub samples: Vec<SampleRecord>,
}

/// One step after another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowRecord {
    /// The scenario.
    pub scenario: String,
    /// The step before; empty: the journey began.
    pub from: String,
    /// The step after; empty: the journey ended.
    pub to: String,
    /// How often.
    pub count: u64,
}

/// A phase beside the load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PhaseRecord {
    /// `initialize` or `final`.
    pub name: String,
    /// How long it took, seconds.
    pub elapsed_s: f64,
    /// What went wrong. `None`: nothing.
    pub error: Option<String>,
}

impl ScenarioRecord {
    /// Returns how many checks held, and how many were made.
    #[must_use]
    pub fn checks_passed(&self) -> (u64, u64) {
        let passed: u64 = self.checks.iter().map(|check| check.passed).sum();
        let failed: u64 = self.checks.iter().map(|check| check.failed).sum();
        (passed, passed + failed)
    }
}
