//! Scripts of scenarios on agents: their data split, their counts and shared values as one.

use std::fs;

use oroshi_bench::Record;
use oroshi_bench::record::AgentState;

use crate::agents::{Group, Process, ledger};
use crate::common::{Recorded as _, Target};

/// Each of 60 rows is used once, whichever agent has it; what `initialize` left is there, and `final` sees it all.
const SHOP: &str = r#"
local names = require("lib.names")
local logins = data.csv("data/users.csv", { split = true })
local goods = data.list({ "tea", "rice", "soap" })
options { users = 6 }
initialize(function(user)
  check("the server is there", user:get("/", { name = "init" }).status == 200)
  shared.set("base", 1000)
  shared.set("begun", "at nine")
end)
scenario("shop", function(user)
  local row = logins:next()
  local response = user:get("/" .. row.name, { name = names.step })
  check("ok", response.status == 200)
  check("goods", #goods == 3)
  check("it was initialized", shared.get("begun") == "at nine")
  shared.add("base", 1)
  shared.add("row " .. row.name)
  award(2, "visit")
  if row.name == "user7" then fail("sold out") end
end)
final(function(user)
  check("all are counted", shared.get("base") == 1060)
  local rows = shared.keys("row ")
  check("all rows", #rows == 60)
  for _, key in ipairs(rows) do check("each row once", shared.get(key) == 1) end
end)
score(function(result) return result.points + result.steps.visit.count end)
"#;

fn shop(group: &Group, script: &str) -> String {
    let folder = group.folder.path();
    for name in ["lib", "data"] {
        fs::create_dir_all(folder.join(name)).unwrap();
    }
    fs::write(folder.join("lib/names.lua"), "return { step = \"visit\" }").unwrap();
    let rows: String = (0..60).map(|number| format!("user{number}\n")).collect();
    fs::write(folder.join("data/users.csv"), format!("name\n{rows}")).unwrap();
    let path = folder.join("shop.lua");
    fs::write(&path, script).unwrap();
    path.display().to_string()
}

#[test]
fn scenarios_on_agents_are_one_run_with_one_score() {
    let test = "scenarios_on_agents_are_one_run_with_one_score";
    let Some(group) = Group::start(test, &["a", "b", "c"], &[]) else { return };
    let target = Target::start(&[]);
    let script = shop(&group, SHOP);
    let ran = group.bench(&["--agents", "3", "-s", &script, "-n", "60", "-d", "1h", target.url()]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let record = ran.record();
    ledger(&record);
    let scenario = record.scenario.as_deref().unwrap();
    let score = scenario.score.as_ref().unwrap();
    assert_eq!((score.value, score.points, &score.void), (180.0, 120.0, &None));
    assert_eq!(scenario.users.most, 6);
    let journeys = &scenario.journeys[0];
    assert_eq!((journeys.begun, journeys.completed, journeys.failed), (60, 59, 1));
    assert_eq!((scenario.steps.len(), &*scenario.steps[0].name, scenario.steps[0].count), (1, "visit", 60));
    assert_eq!(scenario.steps[0].service.histogram.len(), 60);
    let check = |name: &str| {
        let check = scenario.checks.iter().find(|check| check.name == name);
        check.map(|check| (check.passed, check.failed)).unwrap_or_default()
    };
    assert_eq!((check("ok"), check("it was initialized"), check("goods")), ((60, 0), (60, 0), (60, 0)));
    assert_eq!((check("all are counted"), check("all rows"), check("each row once")), ((1, 0), (1, 0), (60, 0)));
    assert_eq!(
        (&*scenario.fails[0].reason, scenario.fails[0].count, scenario.fails[0].samples.len()),
        ("sold out", 1, 1)
    );
    assert_eq!(scenario.phases.iter().map(|phase| &*phase.name).collect::<Vec<_>>(), ["initialize", "final"]);
    assert_eq!(record.requests.completed, 60);
    assert_eq!(target.stop().0, 61, "and one of initialize");
}

#[test]
fn mistakes_of_scenarios_on_agents_are_told_before_the_load() {
    let test = "mistakes_of_scenarios_on_agents_are_told_before_the_load";
    let Some(group) = Group::start(test, &["a", "b"], &["--allow", "127.0.0.1"]) else { return };
    let target = Target::start(&[]);
    let refused = |script: &str, args: &[&str], code: i32, texts: &[&str]| {
        let script = shop(&group, script);
        let ran = group.bench(&[&["--agents", "2", "-s", &script, target.url()], args].concat());
        assert_eq!(ran.code, Some(code), "{ran:?}");
        assert!(texts.iter().all(|text| ran.err.contains(text)), "{}", ran.err);
    };
    refused("scenario(\"s\", 5)", &[], 1, &["shop.lua:1"]);
    refused(
        &SHOP.replace("== 200)\n  shared", "== 500)\n  shared"),
        &[],
        1,
        &["the check \"the server is there\" failed"],
    );
    refused("function request() end", &["-d1s"], 1, &["a: --script: a wrk script", "b: --script", "--wrk-scripts"]);
    refused(SHOP, &["--verbose"], 2, &["--verbose: "]);
    // The agents permit one address. The coordinator has no such rule, and this script asks nothing before.
    let elsewhere = "scenario(\"s\", function(user) fail(user:get(\"http://127.0.0.2:1/\").error) end)";
    let ran = group.bench(&["--agents", "2", "-s", &shop(&group, elsewhere), "-n", "4", "-d", "1h", target.url()]);
    let record = ran.record();
    assert_eq!((record.requests.completed, record.requests.failed), (0, 4), "{ran:?}");
    let reason = &record.scenario.as_deref().unwrap().fails[0].reason;
    assert_eq!(reason, "connect-permission");
    // Rows that every machine has are nobody's alone.
    let lease = "local d = data.list({1,2})\nscenario(\"s\", function(user) d:lease() end)";
    let ran = group.bench(&["--agents", "2", "-s", &shop(&group, lease), "-n", "4", "-d", "1h", target.url()]);
    let record = ran.record();
    let scenario = record.scenario.as_deref().unwrap();
    assert!(scenario.fails[0].reason.contains("split = true"), "{:?}", scenario.fails);
}

#[test]
fn wrk_scripts_run_on_agents_that_permit_them() {
    let test = "wrk_scripts_run_on_agents_that_permit_them";
    let Some(group) = Group::start(test, &["a", "b"], &["--wrk-scripts"]) else { return };
    let target = Target::start(&[]);
    let script = r#"
function init(args) path = args[1] end
function request() return wrk.format("GET", path) end
function done(summary, latency, requests) io.stderr:write("done: " .. summary.requests .. "\n") end
"#;
    let run = |script: &str| {
        let script = shop(&group, script);
        group.bench(&["--agents", "2", "-c", "4", "-n", "500", "-d", "1h", "-s", &script, target.url(), "--", "/own"])
    };
    let ran = run(script);
    let record = ran.record();
    ledger(&record);
    assert_eq!((ran.code, record.requests.completed), (Some(0), 500), "{ran:?}");
    assert!(ran.err.contains("done: 500"), "{}", ran.err);
    let ran = run(&format!("{script}\nfunction setup(thread) end"));
    assert!(ran.code == Some(0) && ran.err.contains("done() was not called"), "{ran:?}");
    assert_eq!(target.stop().0, 1000);
}

#[test]
fn a_script_that_aborts_on_one_agent_ends_all() {
    let test = "a_script_that_aborts_on_one_agent_ends_all";
    let Some(group) = Group::start(test, &["a", "b"], &[]) else { return };
    let target = Target::start(&[]);
    let script = r#"
options { users = 4 }
local rows = data.list({ "a", "b" }, { split = true })
scenario("s", function(user)
  user:get("/")
  think("5ms")
  if rows:get(1) == "b" and user.journey > 20 then abort("enough") end
end)
"#;
    let ran = group.bench(&["--agents", "2", "-s", &shop(&group, script), "-d", "1h", target.url()]);
    let record = ran.record();
    let scenario = record.scenario.as_deref().unwrap();
    assert_eq!(scenario.aborted.as_deref(), Some("enough"), "{ran:?}");
    assert!(record.agents.iter().all(|agent| agent.state != AgentState::Lost && agent.completed > 0));
    assert_eq!(ran.code, Some(1));
}

#[test]
fn what_agents_keep_of_scenarios_can_be_collected() {
    let test = "what_agents_keep_of_scenarios_can_be_collected";
    let Some(group) = Group::start(test, &["a", "b"], &[]) else { return };
    let target = Target::start(&[]);
    // Too much for one message.
    let mut random = fastrand::Rng::with_seed(9);
    let rows: String = (0..100_000).map(|_| format!("{:016x}{:016x}\n", random.u64(..), random.u64(..))).collect();
    fs::create_dir_all(group.folder.path().join("data")).unwrap();
    fs::write(group.folder.path().join("data/large.csv"), format!("id\n{rows}")).unwrap();
    let script = r#"
options { users = 4 }
local names = require("lib.names")
local rows = data.csv("data/large.csv")
initialize(function(user) shared.set("n", 5) end)
scenario("s", function(user) user:get("/", { name = names.step }); shared.add("n"); award(1, "p"); think("2ms") end)
final(function(user) check("it was more", shared.get("n") > 5 and #rows == 100000); check(names.step, user:get("/").status == 200) end)
"#;
    let mut command = group.command("bench");
    command.args(["--agents", "2", "-s", &shop(&group, script), "-d", "10m", target.url()]);
    let run = Process::start(command);
    let ran = group.kill_and_collect(run);
    let record: Record = ran.record();
    assert_eq!(ran.code, Some(0), "{ran:?}");
    ledger(&record);
    let scenario = record.scenario.as_deref().unwrap();
    assert_eq!(scenario.steps[0].count, record.requests.completed);
    assert!(scenario.checks.iter().all(|check| (check.passed, check.failed) == (1, 0)), "{:?}", scenario.checks);
    let points = scenario.score.as_ref().unwrap().points;
    assert!(points > 0.0 && points <= record.requests.completed as f64);
}
