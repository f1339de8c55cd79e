//! Journeys of a script in place of requests: scores are compared, and a void one is a failed run.

use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use oroshi_bench::journey::{CoreJourneys, Exchange, Journeys, Meter};
use oroshi_bench::part::Implausible;
use oroshi_bench::record::scenario::{FlowRecord, ScenarioRecord, ScoreRecord, UsersRecord};
use oroshi_bench::{Draft, Record, ScriptError};
use oroshi_lab::Metric;
use oroshi_lab::plan::{Load, Script, Variant};
use oroshi_lab::result::Ended;
use oroshi_stats::compare::Verdict;

use super::{Bench, Seen, blocks, experiment, load, variant};

/// The score of a run, by its number from 1; an error voids it.
type Score = fn(usize) -> Result<Option<f64>, &'static str>;

/// A script whose users answer their own requests, at once.
#[derive(Clone, Debug)]
struct Fake {
    score: Score,
    prepared: Arc<AtomicUsize>,
    initialized: Arc<AtomicUsize>,
}

impl Script for Fake {
    fn name(&self) -> String {
        "fake.lua".into()
    }

    fn prepare(&self, draft: &mut Draft) -> Result<(), ScriptError> {
        assert_eq!(draft.urls.len(), 1, "the run's URL");
        self.prepared.fetch_add(1, Ordering::Relaxed);
        draft.journeys = Some(Arc::new(self.clone()));
        Ok(())
    }
}

impl Journeys for Fake {
    fn name(&self) -> String {
        Script::name(self)
    }

    fn initialize(&self, _: usize) -> Result<(), ScriptError> {
        self.initialized.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn enter(&self, _: usize, meter: Meter) -> Result<Rc<dyn CoreJourneys>, ScriptError> {
        Ok(Rc::new(Users(meter)))
    }

    fn interrupt(&self) {}

    fn stuck(&self) -> Option<ScriptError> {
        None
    }

    fn lead(&self) -> Result<Vec<u8>, ScriptError> {
        self.initialize(1).map(|()| Vec::new())
    }

    fn files(&self) -> Vec<(String, PathBuf)> {
        Vec::new()
    }

    fn take_counts(&self) -> Vec<u8> {
        Vec::new()
    }

    fn absorb(&self, _: &[u8]) -> Result<bool, Implausible> {
        Err(Implausible)
    }

    fn conclude(&self, _: &Record) -> Result<ScenarioRecord, ScriptError> {
        let (value, void) = match (self.score)(self.initialized.load(Ordering::Relaxed)) {
            Ok(value) => (value, None),
            Err(why) => (Some(0.0), Some(why.to_owned())),
        };
        let score = |value| ScoreRecord { value, void, formula: true, points: value, breakdown: Vec::new() };
        Ok(ScenarioRecord {
            users: UsersRecord::default(),
            score: value.map(score),
            journeys: Vec::new(),
            steps: Vec::new(),
            timers: Vec::new(),
            checks: Vec::new(),
            fails: Vec::new(),
            flows: vec![FlowRecord { scenario: "s".into(), from: String::new(), to: "a".into(), count: 1 }],
            aborted: None,
            phases: Vec::new(),
            seed: 0,
            retries: 0,
        })
    }
}

#[derive(Debug)]
struct Users(Meter);

impl CoreJourneys for Users {
    fn begin(&self, _: u64, _: Option<u64>) {}

    fn measure(&self, from: u64) {
        for i in 1..=100 {
            self.0.began(from + i);
            let (due, done) = (from + i, from + i + 1_000);
            self.0.completed(&Exchange { due, sent: due, head: done, done, status: 200, ..Exchange::default() });
        }
    }

    fn close(&self, _: u64) {}

    fn finish(&self, _: u64) {
        self.0.all_ended();
    }

    fn hand_over(&self) {}

    fn leave(&self) -> Result<(), ScriptError> {
        Ok(())
    }
}

fn scripted(name: &str, score: Score) -> (Fake, Variant) {
    let fake = Fake { score, prepared: Arc::default(), initialized: Arc::default() };
    (fake.clone(), Variant { load: Load::Script(Box::new(load()), Arc::new(fake)), ..variant(name, 0, load()) })
}

#[test]
fn scores_are_compared_run_by_run_and_each_run_begins_anew() {
    let bench = Bench::new();
    let (low, first) = scripted("low", |run| Ok(Some(1_000.0 + run as f64)));
    let (_, second) = scripted("high", |run| Ok(Some(2_000.0 + run as f64)));
    let servers = vec![bench.target("target", &[])];
    let mut experiment = experiment(&[Metric::Score, Metric::Rps], servers, vec![first, second], blocks(4, None));
    experiment.score_if_any = true;
    let result = bench.run(experiment, &mut Seen::default()).unwrap();
    let cell = &result.cells[0];
    let found = &cell.comparisons[0];
    assert_eq!((found.metric, found.verdict, result.metrics.len()), (Metric::Score, Verdict::Faster, 2));
    assert!(found.words.starts_with("high scores higher than low: 2.00 times the score"), "{}", found.words);
    assert_eq!((low.prepared.load(Ordering::Relaxed), low.initialized.load(Ordering::Relaxed)), (4, 4));
    // The runs kept their length, and their records lack what would be most of the result.
    assert!(cell.lengthened.is_none());
    let scenario = cell.runs[0].record.as_ref().unwrap().scenario.as_ref().unwrap();
    assert!(scenario.flows.is_empty() && scenario.score.is_some());
}

#[test]
fn a_script_without_a_score_is_compared_by_the_next_metric() {
    let bench = Bench::new();
    let variants = vec![scripted("A", |_| Ok(None)).1, scripted("B", |_| Ok(None)).1];
    let mut experiment =
        experiment(&[Metric::Score, Metric::Rps], vec![bench.target("target", &[])], variants, blocks(3, None));
    experiment.score_if_any = true;
    let result = bench.run(experiment, &mut Seen::default()).unwrap();
    let metrics: Vec<Metric> = result.metrics.iter().map(|metric| metric.metric).collect();
    assert_eq!((metrics, result.cells[0].blocks), (vec![Metric::Rps], 3));
}

#[test]
fn a_void_score_is_a_failed_run_and_says_why() {
    let bench = Bench::new();
    let void: Score = |run| if run < 2 { Ok(Some(9_000.0)) } else { Err("the report differs") };
    let variants = vec![scripted("good", |_| Ok(Some(1_000.0))).1, scripted("cheat", void).1];
    let experiment = experiment(&[Metric::Score], vec![bench.target("target", &[])], variants, blocks(5, None));
    let mut seen = Seen::default();
    let result = bench.run(experiment, &mut seen).unwrap();
    let cell = &result.cells[0];
    assert_eq!(seen.failures, ["cheat: its score is void: the report differs"]);
    let failed = cell.variants[1].failed.as_ref().unwrap();
    assert_eq!((failed.block, &*failed.why, cell.ended), (1, "its score is void: the report differs", Ended::Failed));
    assert!(cell.comparisons.iter().all(|found| found.verdict == Verdict::NotCompared));
}
