//! Records of scenarios made by hand, for the tests of reports.

use std::collections::BTreeMap;

use oroshi_bench::record::scenario::{
    CheckRecord, FailRecord, FlowRecord, JourneyRecord, PhaseRecord, PointsRecord, SampleRecord, ScenarioRecord,
    ScoreRecord, StepRecord, TimerRecord, UserModel, UsersRecord,
};
use oroshi_bench::{Failure, Load, Record, Spacing};
use oroshi_stats::Latency;

use super::bench;

/// A text that would leave its place in a page, a terminal or a table.
pub const HOSTILE: &str = "<script>alert('x')</script>\"&\u{1b}[31m\u{202e}\r\n| 名前 a-name-without-a-space-that-goes-on-and-on-and-on-and-on";

/// A shop in the closed model: two scenarios, five steps, some failed checks, a score of 43,933.
#[must_use]
pub fn shop() -> Record {
    let mut record = bench::closed();
    record.plan.connections = 20;
    record.plan.script = Some("shop.lua".into());
    record.latency.service = times(13_709, 100, 0).into();
    record.latency.response = times(13_709, 200, 0).into();
    record.latency.first_byte = times(13_709, 90, 0).into();
    record.scenario = Some(Box::new(ScenarioRecord {
        users: UsersRecord { most: 20, ..UsersRecord::default() },
        score: Some(ScoreRecord {
            value: 43_933.0,
            void: None,
            formula: true,
            points: 44_043.0,
            breakdown: vec![
                PointsRecord { label: "login".into(), count: 439, points: 43_900.0 },
                PointsRecord { label: "asset".into(), count: 1_253, points: 2_506.0 },
                PointsRecord { label: "late answer".into(), count: 11, points: -2_363.0 },
            ],
        }),
        journeys: vec![
            JourneyRecord {
                name: "browse".into(),
                weight: 3.0,
                begun: 1_000,
                completed: 968,
                failed: 12,
                cut_off: 20,
                duration: times(968, 2_000_000, 20).into(),
            },
            JourneyRecord {
                name: "buy".into(),
                weight: 1.0,
                begun: 333,
                completed: 333,
                failed: 0,
                cut_off: 0,
                duration: times(333, 5_000_000, 0).into(),
            },
        ],
        steps: vec![
            step("top", 1_333, 12, 0),
            step("item", 2_400, 0, 3),
            step("login", 333, 0, 0),
            step("assets", 9_331, 0, 0),
            step("cart", 312, 1, 0),
        ],
        timers: vec![TimerRecord { name: "checkout".into(), time: times(310, 900_000, 2).into() }],
        checks: vec![
            CheckRecord { name: "title".into(), passed: 1_321, failed: 12, samples: vec![sample(); 2] },
            CheckRecord { name: "logged in".into(), passed: 333, failed: 0, samples: Vec::new() },
            CheckRecord { name: "top status".into(), passed: 9_999, failed: 1, samples: Vec::new() },
        ],
        fails: vec![FailRecord { reason: "no login".into(), count: 12, samples: vec![sample()] }],
        flows: [
            ("browse", "", "top", 1_000),
            ("browse", "top", "assets", 9_000),
            ("browse", "assets", "item", 980),
            ("browse", "item", "item", 1_420),
            ("browse", "item", "top", 20),
            ("browse", "item", "", 968),
            ("browse", "top", "", 12),
            ("buy", "", "login", 333),
            ("buy", "login", "cart", 312),
            ("buy", "login", "", 21),
            ("buy", "cart", "", 312),
        ]
        .map(|(scenario, from, to, count)| flow(scenario, from, to, count))
        .into(),
        aborted: None,
        phases: vec![
            PhaseRecord { name: "initialize".into(), elapsed_s: 1.25, error: None },
            PhaseRecord { name: "final".into(), elapsed_s: 0.031, error: None },
        ],
        seed: 7,
        retries: 0,
    }));
    record
}

/// The same in the open model, in which journeys began late; its score is void, and the last phase failed.
#[must_use]
pub fn void() -> Record {
    let mut record = shop();
    record.plan.load = Load::rate(50.0, Spacing::Poisson, 3);
    change(&mut record, |scenario| {
        scenario.users = UsersRecord {
            model: UserModel::Open,
            most: 20,
            due: 500,
            late: 40,
            unbegun: 3,
            lateness: Some(times(40, 1_000_000, 3).into()),
        };
        if let Some(score) = &mut scenario.score {
            (score.value, score.void) = (0.0, Some("the report names other accounts than were locked".into()));
        }
        scenario.phases[1].error = Some("shop.lua:60: the report names other accounts".into());
    });
    record
}

/// A scenario of this many steps in a chain, each with the same figures.
#[must_use]
pub fn chain(steps: usize) -> Record {
    let name = |i: usize| format!("GET /part/{i}/of/the/shop");
    let mut record = shop();
    change(&mut record, |scenario| {
        scenario.steps = (0..steps).map(|i| step(&name(i), 1_000 - i as u64, 0, 0)).collect();
        let end = |i: usize| if i < steps { name(i) } else { String::new() };
        scenario.flows = (0..steps).map(|i| flow("browse", &end(i), &end(i + 1), 1_000 - i as u64)).collect();
        scenario.flows.insert(0, flow("browse", "", &end(0), 1_000));
    });
    record
}

/// A script in which nothing happened: no score, no step, no check.
#[must_use]
pub fn idle() -> Record {
    let mut record = bench::nothing();
    record.plan.script = Some("shop.lua".into());
    record.scenario = Some(Box::new(ScenarioRecord {
        users: UsersRecord::default(),
        score: None,
        journeys: Vec::new(),
        steps: Vec::new(),
        timers: Vec::new(),
        checks: Vec::new(),
        fails: Vec::new(),
        flows: Vec::new(),
        aborted: Some("no accounts are left".into()),
        phases: Vec::new(),
        seed: 0,
        retries: 0,
    }));
    record
}

/// [`void`] with a hostile text in every place that a script or a server fills.
#[must_use]
pub fn hostile() -> Record {
    let mut record = void();
    record.plan.script = Some(HOSTILE.into());
    let text = || HOSTILE.to_owned();
    change(&mut record, |scenario| {
        let samples =
            vec![
                SampleRecord { place: text(), request: text(), head: text(), body: text().repeat(500), ..sample() };
                3
            ];
        let score = scenario.score.as_mut().expect("the shop has one");
        score.void = Some(text());
        score.breakdown.iter_mut().for_each(|points| points.label = text());
        scenario.aborted = Some(text());
        scenario.journeys.iter_mut().for_each(|journey| journey.name = text());
        scenario.steps.iter_mut().for_each(|step| step.name = text());
        scenario.timers.iter_mut().for_each(|timer| timer.name = text());
        for check in &mut scenario.checks {
            (check.name, check.samples, check.failed) = (text(), samples.clone(), 1);
        }
        scenario.fails = vec![FailRecord { reason: text(), count: 2, samples }];
        scenario.flows.iter_mut().for_each(|flow| {
            flow.scenario = text();
            for step in [&mut flow.from, &mut flow.to].into_iter().filter(|step| !step.is_empty()) {
                step.push_str(HOSTILE);
            }
        });
        scenario.phases.iter_mut().for_each(|phase| (phase.name, phase.error) = (text(), Some(text())));
    });
    record
}

/// A request that the server answered with an error.
#[must_use]
pub fn sample() -> SampleRecord {
    SampleRecord {
        at_s: 1.25,
        user: 7,
        place: "shop.lua:31".into(),
        request: "GET / HTTP/1.1\r\nHost: 127.0.0.1:8080\r\nCookie: ...\r\n".into(),
        head: "HTTP/1.1 500 Internal Server Error\r\nContent-Type: text/html\r\n".into(),
        body: "<h1>Out of <em>stock</em></h1>\\n".into(),
    }
}

/// Changes the scenario of a record.
pub fn change(record: &mut Record, change: impl FnOnce(&mut ScenarioRecord)) {
    change(record.scenario.as_mut().expect("a record of scenarios"));
}

/// A step whose response times are twice its service times; `unanswered` requests timed out.
fn step(name: &str, count: u64, errors: u64, unanswered: u64) -> StepRecord {
    let answered = count - unanswered;
    let failures = [(Failure::Status, errors), (Failure::Timeout, unanswered)];
    StepRecord {
        name: name.to_owned(),
        count,
        per_s: count as f64 / 10.0,
        errors: errors + unanswered,
        cut_off: 0,
        failures: failures.into_iter().filter(|(_, n)| *n > 0).collect(),
        statuses: [(200, answered - errors), (500, errors)]
            .into_iter()
            .filter(|(_, n)| *n > 0)
            .collect::<BTreeMap<_, _>>(),
        cached: if name == "assets" { 8_000 } else { 0 },
        body_bytes: answered * 2_048,
        service: times(answered, 1_000, unanswered).into(),
        response: times(answered, 2_000, unanswered).into(),
    }
}

fn flow(scenario: &str, from: &str, to: &str, count: u64) -> FlowRecord {
    FlowRecord { scenario: scenario.into(), from: from.into(), to: to.into(), count }
}

/// Times of 1 ms and more, `step_ns` apart, and some that are only known to have been longer than a second.
fn times(count: u64, step_ns: u64, unanswered: u64) -> Latency {
    let mut times = Latency::new();
    (0..count).for_each(|i| times.record(1_000_000 + i * step_ns));
    (0..unanswered).for_each(|_| times.record_censored(1_000_000_000));
    times
}
