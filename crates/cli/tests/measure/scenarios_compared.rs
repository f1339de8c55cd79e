//! Scripts of scenarios as the load of comparisons and experiments, and conditions on what users did.

use std::fs;

use oroshi_lab::LabResult;
use oroshi_lab::Metric;
use oroshi_stats::compare::Verdict;
use tempfile::TempDir;

use crate::common::{Ran, Target, bench, oroshi};

/// Awards a point for each page. `initialize` would fail the run if it reached nobody.
const PAGES: &str = r#"options { users = 2, duration = "100ms", timeout = "20s" }
initialize(function(user) user:get("/", { expect = 200 }) end)
scenario("read", function(user)
  check("answered", user:get("/").ok)
  award(1, "page")
end)
score(function(result) return result.points / result.elapsed end)
"#;

fn folder(script: &str) -> (TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pages.lua");
    fs::write(&file, script).unwrap();
    let file = file.to_str().unwrap().to_owned();
    (folder, file)
}

#[track_caller]
fn result(ran: &Ran) -> LabResult {
    serde_json::from_str(&ran.out).unwrap_or_else(|error| panic!("{error}: {ran:?}"))
}

fn compare(script: &str, flags: &[&str], urls: &[&str]) -> Ran {
    let few = ["--disturbed", "100%", "--blocks", "4", "--format", "json", "--any-answers"];
    oroshi(&[&["compare", "-s", script], &few[..], flags, urls].concat())
}

#[test]
fn the_score_of_a_script_is_compared() {
    let (fast, slow) = (Target::start(&[]), Target::start(&["--delay", "10ms"]));
    let (_folder, script) = folder(PAGES);
    let ran = compare(&script, &[], &[fast.url(), slow.url()]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let result = result(&ran);
    let cell = &result.cells[0];
    let found = &cell.comparisons[0];
    assert_eq!((found.metric, found.verdict), (Metric::Score, Verdict::Slower), "{found:?}");
    assert!(cell.variants[0].load.contains("pages.lua"), "{:?}", cell.variants[0].load);
    let record = cell.runs[0].record.as_ref().unwrap();
    // The script's own users and length; each run begins with its phase.
    assert_eq!((record.plan.connections, record.plan.duration_s), (2, Some(0.1)));
    assert_eq!(record.scenario.as_ref().unwrap().phases[0].name, "initialize");
    assert!(
        record.plan.origins[0].requests.iter().all(|line| !line.contains("localhost")),
        "{:?}",
        record.plan.origins
    );
}

#[test]
fn flags_of_a_comparison_win_over_the_script_s_options() {
    let target = Target::start(&["--delay", "1ms"]);
    let (_folder, script) = folder(PAGES);
    let flags = ["--users", "5", "-d", "50ms", "--seed", "9"];
    let ran = compare(&script, &flags, &[target.url(), target.url()]);
    let result = result(&ran);
    let record = result.cells[0].runs[0].record.as_ref().unwrap();
    let scenario = record.scenario.as_ref().unwrap();
    assert_eq!((scenario.users.most, record.plan.duration_s, scenario.seed), (5, Some(0.05), 9));
}

#[test]
fn mistakes_of_a_script_are_told_before_any_run() {
    let (_folder, script) = folder("scenario('a', function(user) end)\nnonsense()\n");
    compare(&script, &[], &["http://127.0.0.1:1/", "http://127.0.0.1:2/"])
        .said(2, &["--script: ", "pages.lua:2", "nonsense", "docs/scenarios.md"]);
    let ran = bench(&["-s", &script, "http://127.0.0.1:1/"]);
    ran.said(1, &["pages.lua:2", "correct the script; docs/scenarios.md describes its API"]);
}

#[test]
fn an_experiment_runs_a_script_beside_its_file() {
    let (fast, slow) = (Target::start(&[]), Target::start(&["--delay", "10ms"]));
    let (folder, _) = folder(PAGES);
    let file = folder.path().join("two.toml");
    let text = format!(
        "title = \"Two\"\nblocks = 3\ndisturbed = \"100%\"\n[load]\nscript = \"pages.lua\"\nusers = \"{{{{users}}}}\"\n\
         [sweep]\nname = \"users\"\nvalues = [1, 3]\n[[variant]]\nname = \"fast\"\nurl = \"{}\"\n\
         [[variant]]\nname = \"slow\"\nurl = \"{}\"\n",
        fast.url(),
        slow.url()
    );
    fs::write(&file, text).unwrap();
    let file = file.to_str().unwrap();
    let checked = oroshi(&["lab", "check", file]);
    assert!(checked.code == Some(0) && checked.out.contains("load: pages.lua, 1 user"), "{checked:?}");
    let output = folder.path().join("result");
    let ran = oroshi(&["lab", "run", file, "--out", output.to_str().unwrap()]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let saved = fs::read_to_string(output.join("result.json")).unwrap();
    let result: LabResult = serde_json::from_str(&saved).unwrap();
    let users = |cell: usize| result.cells[cell].runs[0].record.as_ref().unwrap().scenario.as_ref().unwrap().users.most;
    assert_eq!((users(0), users(1)), (1, 3));
    for cell in &result.cells {
        // Three blocks beside other tests may not suffice for a verdict.
        let found = &cell.comparisons[0];
        assert!(found.metric == Metric::Score && found.ratio.unwrap().estimate < 0.9, "{found:?}");
    }
}

#[test]
fn conditions_limit_what_users_did() {
    let target = Target::start(&[]);
    let (_folder, script) = folder(PAGES);
    let run = |conditions: &[&str]| {
        let flags: Vec<&str> = conditions.iter().flat_map(|condition| ["--fail-if", condition]).collect();
        bench(&[&["-s", &script, target.url()], &flags[..]].concat())
    };
    let ran = run(&["score<10", "checks<99%", "check.answered<100%", "journeys.failed>0", "step.\"GET /\".errors>0"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.out.contains("100ms, 2 users on") && ran.out.contains("1 scenario of pages.lua to http://"), "{ran:?}");
    assert!(!ran.out.contains("connections on") && !ran.out.contains("(-c)"), "{ran:?}");
    run(&["step.\"GET /\".p99>1ns"]).said(3, &["FAILED  --fail-if step.\"GET /\".p99>1ns"]);
    run(&["score<1000M"]).said(3, &["FAILED"]);
    run(&["step.\"GET /x\".p99>1s"]).said(3, &["no step is named `GET /x`", "`GET /`"]);
    let (_folder, void) = folder("scenario('a', function(user) user:get('/') void('no stock') end)");
    let ran = bench(&["-s", &void, "-d", "50ms", target.url(), "--fail-if", "score<1"]);
    ran.said(1, &["the score is void: no stock", "FAILED  --fail-if score<1"]);
}
