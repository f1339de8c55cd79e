//! `oroshi compare` and `oroshi lab` with agents.

use std::fs;

use oroshi_bench::Record;
use oroshi_bench::record::AgentState;
use oroshi_lab::{LabResult, Metric};
use oroshi_stats::compare::Verdict;
use oroshi_testkit::process::to_the_end;

use crate::agents::Group;
use crate::common::Target;
use crate::common::support::hub::{Hub, Settings};
use crate::lab_files::{folder, lab};

/// The records of all runs, in which two agents had their parts and somebody saw the server.
#[track_caller]
fn on_two_agents(result: &LabResult) -> Vec<&Record> {
    let runs = result.cells.iter().flat_map(|cell| &cell.runs);
    let records: Vec<&Record> = runs.map(|run| run.record.as_deref().unwrap()).collect();
    for record in &records {
        let agents: Vec<_> = record.agents.iter().map(|agent| (&*agent.name, agent.state)).collect();
        assert_eq!(agents, [("a", AgentState::Done), ("b", AgentState::Done)]);
        assert_eq!(record.agents.iter().map(|agent| agent.completed).sum::<u64>(), record.requests.completed);
        // A coordinator that came too late leaves it to an agent.
        assert!(record.server_watched_by.is_some(), "{:?}", record.server_unknown);
    }
    records
}

#[test]
fn compare_lets_agents_make_the_load_of_every_run() {
    let Some(group) = Group::start("compare_lets_agents_make_the_load_of_every_run", &["a", "b"], &[]) else { return };
    let mut command = group.command("compare");
    command.args(["--agents", "2", "--disturbed", "100%", "-c4", "-t1", "-w", "20ms", "-d", "100ms", "--blocks", "6"]);
    command.args(["--blocks-per-start", "all", "--format", "json"]);
    // A delay that a busy machine does not hide.
    for (name, flags) in [("fast", ""), ("slow", "--delay 50ms")] {
        let start = format!("{name}={{{{oroshi}}}} target --threads 1 {flags} --listen 127.0.0.1:{{{{port}}}}");
        command.args([&start, "@http://127.0.0.1:{{port}}/"]);
    }
    let ran = to_the_end(command);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let result: LabResult = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(on_two_agents(&result).len(), 12);
    let cell = &result.cells[0];
    assert_eq!((cell.blocks, cell.comparisons[0].verdict), (6, Verdict::Slower), "{:?}", cell.comparisons[0]);
    assert!(cell.variants[1].load.ends_with(", on 2 agents"), "{}", cell.variants[1].load);
    assert!(cell.runs.iter().all(|run| run.figures.contains_key(&Metric::Cpu)), "{:?}", cell.runs[0].figures);
}

#[test]
fn a_share_of_the_capacity_is_found_by_agents_and_asked_of_them() {
    let test = "a_share_of_the_capacity_is_found_by_agents_and_asked_of_them";
    let Some(group) = Group::start(test, &["a", "b"], &[]) else { return };
    let target = Target::start(&["--delay", "2ms"]);
    let mut command = group.command("compare");
    command.args(["--agents", "a,b", "--disturbed", "100%", "-c4", "-w", "20ms", "-d", "200ms", "--blocks", "3"]);
    command.args(["--primary", "p99", "--format", "json", target.url(), target.url()]);
    // A busy machine may allow no verdict, and the exit code says so.
    let ran = to_the_end(command);
    let result: LabResult = serde_json::from_str(&ran.out).unwrap_or_else(|error| panic!("{error}: {ran:?}"));
    let rate = result.cells[0].rate.unwrap();
    for record in on_two_agents(&result) {
        // Both agents together, within the request that each thread may be off.
        assert!((record.requests.started as f64 - rate * 0.2).abs() <= 4.0, "{rate}/s: {:?}", record.requests);
    }
}

#[test]
fn an_experiment_names_its_agents() {
    let Some(group) = Group::start("an_experiment_names_its_agents", &["a", "b"], &[]) else { return };
    let file = format!(
        r#"
title = "On agents"
blocks = 6
blocks-per-start = "all"
disturbed = "100%"
cpus = "any"
[load]
agents = ["a", "b"]
nats = "{}"
key-file = "keys/agents"
connections = 4
duration = "100ms"
warmup = "20ms"
[[variant]]
name = "at once"
start = "{{{{oroshi}}}} target --threads 1 --listen 127.0.0.1:{{{{port}}}}"
url = "http://127.0.0.1:{{{{port}}}}/"
[[variant]]
name = "late"
start = "{{{{oroshi}}}} target --threads 1 --delay 50ms --listen 127.0.0.1:{{{{port}}}}"
url = "http://127.0.0.1:{{{{port}}}}/"
[variant.load]
agents = 2
"#,
        group.nats.url().replace("nats://", "nats://user:secret@")
    );
    let here = folder(&[("on-agents.toml", &file), ("keys/agents", &group.key())]);
    let checked = lab(here.path(), &["check", "on-agents.toml"]);
    assert!(checked.code == Some(0) && checked.out.contains("on 2 agents"), "{checked:?}");
    let ran = lab(here.path(), &["run", "on-agents.toml", "--out", "out"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let text = fs::read_to_string(here.path().join("out/result.json")).unwrap();
    assert!(!text.contains("secret") && text.contains("nats://***@127.0.0.1"));
    let result: LabResult = serde_json::from_str(&text).unwrap();
    assert_eq!((on_two_agents(&result).len(), result.cells[0].comparisons[0].verdict), (12, Verdict::Slower));
}

#[test]
fn scripts_are_compared_on_agents_with_their_files_and_phases() {
    let test = "scripts_are_compared_on_agents_with_their_files_and_phases";
    let Some(group) = Group::start(test, &["a", "b"], &[]) else { return };
    let here = folder(&[
        ("rows.csv", "page\n1\n2\n3\n4\n"),
        (
            "pages.lua",
            r#"options { users = 4, duration = "100ms" }
local rows = data.csv("rows.csv", { split = true, wrap = true })
initialize(function(user) user:get("/", { expect = 200 }); shared.set("begun", 1) end)
scenario("read", function(user)
  check("begun", shared.get("begun") == 1)
  check("answered", user:get("/" .. rows:next().page).ok)
  shared.add("pages")
  award(1, "page")
end)
final(function(user) check("all add up", shared.get("pages") > 1) end)
score(function(result) return result.points / result.elapsed end)
"#,
        ),
    ]);
    let script = here.path().join("pages.lua").display().to_string();
    let (fast, slow) = (Target::start(&[]), Target::start(&["--delay", "40ms"]));
    let mut command = group.command("compare");
    command.args(["--agents", "2", "-s", &script, "--disturbed", "100%", "--blocks", "6", "--any-answers"]);
    command.args(["--format", "json", fast.url(), slow.url()]);
    let ran = to_the_end(command);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let result: LabResult = serde_json::from_str(&ran.out).unwrap();
    let cell = &result.cells[0];
    assert!(cell.variants[0].load.contains("pages.lua") && cell.variants[0].load.ends_with(", on 2 agents"));
    let found = &cell.comparisons[0];
    assert_eq!((found.metric, found.verdict), (Metric::Score, Verdict::Slower), "{found:?}");
    let records = on_two_agents(&result);
    assert_eq!(records.len(), 12);
    for record in records {
        let scenario = record.scenario.as_deref().unwrap();
        assert_eq!((scenario.users.most, record.plan.duration_s), (4, Some(0.1)));
        assert!(scenario.checks.iter().all(|check| check.passed > 0 && check.failed == 0), "{:?}", scenario.checks);
        let phases: Vec<_> = scenario.phases.iter().map(|phase| (&*phase.name, &phase.error)).collect();
        assert_eq!(phases, [("initialize", &None), ("final", &None)]);
        assert!(record.agents.iter().all(|agent| agent.completed > 0), "{:?}", record.agents);
    }
}

#[test]
fn an_experiment_has_the_users_of_its_script_on_agents() {
    let test = "an_experiment_has_the_users_of_its_script_on_agents";
    let Some(group) = Group::start(test, &["a", "b"], &[]) else { return };
    let target = Target::start(&["--delay", "1ms"]);
    let variant =
        |name: &str, load: &str| format!("[[variant]]\nname = \"{name}\"\nurl = \"{}\"\n{load}\n", target.url());
    let head = "title = \"Users\"\nblocks = 3\ndisturbed = \"100%\"\ncpus = \"any\"\nmetrics = [\"rps\"]\n";
    let load = format!(
        "[load]\nagents = 2\nnats = \"{}\"\nkey-file = \"key\"\nscript = \"s.lua\"\nduration = \"80ms\"\n",
        group.nats.url()
    );
    // In an experiment `connections` are users too.
    let file = [head, &load, &variant("two", "load.connections = 2"), &variant("six", "load.users = 6")].concat();
    let script = "options { users = 50 }\nscenario(\"s\", function(user) user:get(\"/\") end)";
    let here = folder(&[("users.toml", &file), ("key", &group.key()), ("s.lua", script)]);
    let ran = lab(here.path(), &["run", "users.toml", "--out", "out"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let result: LabResult =
        serde_json::from_str(&fs::read_to_string(here.path().join("out/result.json")).unwrap()).unwrap();
    assert_eq!(on_two_agents(&result).len(), 6);
    for run in &result.cells[0].runs {
        let record = run.record.as_deref().unwrap();
        let users = record.scenario.as_deref().unwrap().users.most;
        assert_eq!((users, record.plan.duration_s), ([2, 6][run.variant], Some(0.08)));
    }
}

#[test]
fn an_experiment_has_its_subscriptions_on_agents() {
    let test = "an_experiment_has_its_subscriptions_on_agents";
    let Some(group) = Group::start(test, &["a", "b"], &[]) else { return };
    let hub = Hub::start(Settings::default());
    let file = format!(
        r#"
title = "Push"
metrics = ["rps", "p99"]
blocks = 3
disturbed = "100%"
cpus = "any"
[load]
agents = ["a", "b"]
nats = "{}"
key-file = "key"
mode = "ws"
connections = 5
requests = 20
warmup = "10ms"
publish = "{}"
publishers = 2
[[variant]]
name = "ws"
url = "{}"
[[variant]]
name = "sse"
url = "{}"
load.mode = "sse"
"#,
        group.nats.url(),
        hub.publish("publish"),
        hub.url("ws"),
        hub.url("sse")
    );
    let here = folder(&[("push.toml", &file), ("key", &group.key())]);
    let ran = lab(here.path(), &["run", "push.toml", "--out", "out"]);
    let kept =
        fs::read_to_string(here.path().join("out/result.json")).unwrap_or_else(|error| panic!("{error}: {ran:?}"));
    let result: LabResult = serde_json::from_str(&kept).unwrap();
    let cell = &result.cells[0];
    assert!(cell.variants.iter().all(|variant| variant.load.ends_with(", on 2 agents")), "{:?}", cell.variants);
    assert_eq!(cell.runs.len(), 6, "{ran:?}");
    for run in &cell.runs {
        let record = run.record.as_deref().unwrap();
        assert_eq!(record.requests.completed, 100, "{:?}", record.requests);
        let agents: Vec<_> = record.agents.iter().map(|agent| (&*agent.name, agent.state)).collect();
        assert_eq!(agents, [("a", AgentState::Done), ("b", AgentState::Done)]);
        assert!(run.figures[&Metric::Rps] > 0.0 && run.figures[&Metric::P99] > 0.0);
    }
}

#[test]
fn mistakes_about_agents_name_their_flags_and_keys() {
    let key = tempfile::NamedTempFile::new().unwrap();
    fs::write(key.path(), "0123456789abcdef").unwrap();
    let key = key.path().to_str().unwrap();
    let compare = |args: &[&str]| {
        let ran =
            crate::common::oroshi(&[&["compare"], args, &["http://127.0.0.1:1/", "http://127.0.0.1:2/"]].concat());
        assert_eq!(ran.code, Some(2), "{ran:?}");
        ran.err
    };
    let nats = ["--nats", "nats://127.0.0.1:1", "--key-file", key];
    assert!(compare(&[&nats[..], &["--agents", "0"]].concat()).contains("--agents: `0`: expected a number"));
    assert!(compare(&nats).contains("--nats: it is about agents"));
    assert!(compare(&[&nats[..], &["--agents", "3", "-c", "2"]].concat()).contains("threads"));
    let text = |load: &str| {
        format!("title = \"x\"\n[load]\n{load}\n[[variant]]\nname = \"a\"\nurl = \"http://127.0.0.1:1/\"\n")
    };
    for (load, expected) in [
        ("agents = 2", "agents: it wants `nats` and `key-file` as well"),
        ("agents = [\"a\", \"a\"]\nnats = \"nats://h\"\nkey-file = \"k\"", "agents: `a` stands there twice"),
        ("agents = 2\nnats = \"nats://h\"\nkey-file = \"missing\"", "key-file"),
        (
            "agents = 2\nnats = \"nats://h\"\nkey-file = \"k\"\n[network]\nmachines = [\"one\", \"two\"]",
            "agents: the machines of [network] reach nothing but each other",
        ),
        ("agents = 2\nnats = \"nats://h\"\nkey-file = \"k\"\ncommand = \"wrk {{url}}\"", "the program in `command`"),
    ] {
        let here = folder(&[("x.toml", &text(load)), ("k", "0123456789abcdef")]);
        let ran = lab(here.path(), &["check", "x.toml"]);
        assert!(ran.code == Some(2) && ran.err.contains(expected), "{load}: {ran:?}");
    }
}
