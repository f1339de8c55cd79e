//! Scripts of scenarios from end to end: exact counts, users, phases, ends.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Mutex;

use oroshi_bench::record::scenario::{CheckRecord, ScenarioRecord, StepRecord, UserModel};
use oroshi_bench::{Failure, Record};
use tempfile::TempDir;

use crate::common::support::peer::{Conn, Peer, Place, Port, Request};
use crate::common::{OROSHI, Ran, Recorded as _, bench};

/// A script in a folder of its own, with the files beside it.
pub(crate) struct Script {
    folder: TempDir,
}

impl Script {
    pub(crate) fn new(text: &str) -> Self {
        let script = Script { folder: tempfile::tempdir().unwrap() };
        fs::write(script.path(), text).unwrap();
        script
    }

    pub(crate) fn with(self, name: &str, text: &str) -> Self {
        fs::write(self.folder.path().join(name), text).unwrap();
        self
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("shop.lua")
    }

    pub(crate) fn run(&self, flags: &[&str]) -> Ran {
        let path = self.path();
        bench(&[&["-s", path.to_str().unwrap()], flags].concat())
    }

    /// Runs it to a result.
    #[track_caller]
    pub(crate) fn record(&self, flags: &[&str]) -> Record {
        let ran = self.run(&[flags, &["--format", "json"]].concat());
        assert_eq!(ran.code, Some(0), "{ran:?}");
        ran.record()
    }
}

pub(crate) fn scenario(record: &Record) -> &ScenarioRecord {
    record.scenario.as_deref().expect("a run of scenarios")
}

#[track_caller]
fn step<'r>(record: &'r Record, name: &str) -> &'r StepRecord {
    let steps = &scenario(record).steps;
    steps.iter().find(|step| step.name == name).unwrap_or_else(|| panic!("no {name}: {steps:?}"))
}

#[track_caller]
pub(crate) fn check<'r>(record: &'r Record, name: &str) -> &'r CheckRecord {
    let checks = &scenario(record).checks;
    checks.iter().find(|check| check.name == name).unwrap_or_else(|| panic!("no {name}: {checks:?}"))
}

pub(crate) fn response(status: &str, fields: &str, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n{fields}\r\n{body}", body.len()).into_bytes()
}

/// A field of a request's head.
pub(crate) fn field<'r>(request: &'r Request, name: &str) -> Option<&'r str> {
    request.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

/// A shop: a page with assets, a login that redirects, an account for those who logged in.
pub(crate) fn shop(request: &Request) -> Vec<u8> {
    match (request.method.as_str(), request.target.split('?').next().unwrap()) {
        ("GET", "/") => response(
            "200 OK",
            "Content-Type: text/html\r\n",
            "<html><head><link rel=stylesheet href=/a.css><link rel=icon href=/i.png><script src='/s.js'></script></head>\
             <body><h1 class=title>The  Shop</h1><img src=/p.png><img src=/p.png loading=lazy>\
             <form id=login action=/login method=post><input name=user value=x><input type=hidden name=csrf value='t&amp;1'>\
             </form></body></html>",
        ),
        ("GET", "/a.css") => match field(request, "If-None-Match") {
            Some("\"1\"") => response("304 Not Modified", "ETag: \"1\"\r\n", ""),
            _ => response("200 OK", "ETag: \"1\"\r\n", "body{}"),
        },
        ("GET", "/s.js") => response("200 OK", "Cache-Control: max-age=60\r\n", "1"),
        ("GET", "/i.png" | "/p.png") => response("200 OK", "Cache-Control: no-store\r\n", "png"),
        ("POST", "/login") => response("303 See Other", "Location: /account\r\nSet-Cookie: id=7; Path=/\r\n", ""),
        ("GET", "/account") => match field(request, "Cookie") {
            Some("id=7") => response("200 OK", "", "{\"name\":\"x\",\"items\":[1,2]}"),
            other => response("403 Forbidden", "", &format!("{other:?}")),
        },
        _ => response("404 Not Found", "", "nothing"),
    }
}

const JOURNEY: &str = r##"
options { users = 2, iterations = 5, timeout = "20s" }
scenario("buy", function(user)
  local page = user:html(user:get("/", { name = "front", expect = 200 }))
  check("title", page:text("h1.title") == "The Shop")
  check("csrf", page:attr("#login input[name=csrf]", "value") == "t&1")
  check("assets", #user:assets(page) == 4)
  award(10, "front")
  local account = step("login", function()
    return user:submit(page, "#login", { user = "me" }, { name = "account" })
  end)
  check("redirected", account.redirects == 1 and account.url:match("/account$"))
  check("account", account:json().items[2] == 2)
  user:get("/none", { query = { a = "b c" } })
  penalty(1, "none")
end)
score(function(result) return result.points / #result.users end)
"##;

#[test]
fn every_request_check_and_point_is_counted_once() {
    let server = Peer::answering(shop);
    let record = Script::new(JOURNEY).record(&[&server.url]);
    let seen = server.seen();
    // Ten journeys of two users: each fetches the page, four assets, the login with its redirect, and what is not
    // there.
    let targets: Vec<(&str, u64)> = seen.targets.iter().map(|(target, n)| (target.as_str(), *n)).collect();
    let expected = [
        ("/", 10),
        ("/a.css", 10),
        ("/account", 10),
        ("/i.png", 10),
        ("/login", 10),
        ("/none?a=b+c", 10),
        ("/p.png", 10),
        ("/s.js", 10),
    ];
    assert_eq!(targets, expected);
    assert_eq!(
        (record.requests.started, record.requests.completed, seen.requests),
        (80, 80, 80),
        "{:?}",
        record.failures
    );
    assert_eq!((record.requests.failed, record.requests.cut_off), (0, 0));
    let s = scenario(&record);
    assert_eq!((s.users.model, s.users.most), (UserModel::Closed, 2));
    let names: Vec<(&str, u64, u64)> =
        s.steps.iter().map(|step| (step.name.as_str(), step.count, step.errors)).collect();
    assert_eq!(names, [("front", 10, 0), ("assets", 40, 0), ("account", 10, 0), ("GET /none", 10, 10)]);
    assert_eq!(
        step(&record, "account").response.summary.count,
        10,
        "a step is what the user asked for, with its redirect"
    );
    assert_eq!(step(&record, "GET /none").statuses, [(404, 10)].into());
    assert_eq!(record.failures, [(Failure::Status, 10)].into());
    for name in ["front status", "title", "csrf", "assets", "redirected", "account"] {
        let check = check(&record, name);
        assert_eq!((check.passed, check.failed), (10, 0), "{check:?}");
    }
    let journey = &s.journeys[0];
    assert_eq!((journey.begun, journey.completed, journey.failed, journey.cut_off), (10, 10, 0, 0));
    assert_eq!(journey.duration.summary.count, 10);
    assert_eq!((s.timers[0].name.as_str(), s.timers[0].time.summary.count), ("login", 10));
    let score = s.score.as_ref().unwrap();
    assert_eq!((score.points, score.value, score.formula), (90.0, 45.0, true), "of each user");
    let labels: Vec<(&str, u64, f64)> = score.breakdown.iter().map(|p| (p.label.as_str(), p.count, p.points)).collect();
    assert_eq!(labels, [("front", 10, 100.0), ("none", 10, -10.0)]);
    let flow = |from: &str, to: &str| s.flows.iter().find(|f| f.from == from && f.to == to).map_or(0, |f| f.count);
    for (from, to) in [("", "front"), ("front", "account"), ("account", "GET /none"), ("GET /none", "")] {
        assert_eq!(flow(from, to), 10, "{from} to {to}: {:?}", s.flows);
    }
}

#[test]
fn a_user_that_stays_has_a_cache_cookies_and_its_connections() {
    let server = Peer::answering(shop);
    let script = Script::new(
        r#"
options { users = 1, iterations = 4, fresh = false }
scenario("stay", function(user)
  local page = user:html(user:get("/"))
  local assets = user:assets(page, { digests = { ["/a.css"] = "900150983cd24fb0d6963f7d28e17f72", ["/s.js"] = "c4ca4238a0b923820dcc509a6f75849b" } })
  if user.journey == 1 then user:post("/login", { form = { a = 1 }, redirects = 0 }) end
  check("has cookie", user:cookie("id") == "7")
  user:get("/account", { expect = 200 })
end)
"#,
    );
    let record = script.record(&[&server.url]);
    let seen = server.seen();
    let count = |target: &str| seen.targets.get(target).copied().unwrap_or(0);
    // The style sheet is validated each time, the script is fresh for a minute, images are not stored.
    assert_eq!((count("/a.css"), count("/s.js"), count("/p.png"), count("/login")), (4, 1, 4, 1));
    let assets = step(&record, "assets");
    assert_eq!((assets.count, assets.cached), (16, 3));
    assert_eq!(record.statuses.get(&304), Some(&3));
    let digests = check(&record, "assets digest");
    assert_eq!(
        (digests.passed, digests.failed),
        (4, 4),
        "a wrong digest of the style sheet, a right one of the script"
    );
    assert_eq!(check(&record, "has cookie").passed, 4);
    assert_eq!(step(&record, "GET /account").errors, 0);
    // A connection for the page, and up to five more for assets at the same time; the first of all is the load's own.
    assert!((2..=7).contains(&seen.accepted), "{seen:?}");
    assert_eq!(record.connections.opened, seen.accepted as u64 - 1);

    let fresh = Script::new(&fs::read_to_string(script.path()).unwrap().replace("fresh = false", "reconnect = true"));
    let before = server.seen();
    fresh.record(&[&server.url]);
    let after = server.seen();
    let more = |target: &str| after.targets[target] - before.targets[target];
    assert_eq!((more("/s.js"), more("/a.css")), (4, 4), "each journey begins without a cache");
    assert!(after.accepted - before.accepted > 4, "and without connections: {before:?} {after:?}");
}

#[test]
fn the_same_seed_makes_the_same_choices_whatever_the_threads() {
    let text = r#"
options { users = 4, iterations = 20 }
local words = data.csv("words.csv")
local top = math.random(1e9)
for _, name in ipairs { "a", "b" } do
  scenario(name, { weight = name == "a" and 3 or 1 }, function(user)
    think { uniform = { 0, 0.001 } }
    local list = user:shuffle { 1, 2, 3 }
    user:get("/" .. name .. "/" .. user.id .. "/" .. user.journey .. "/" .. user:random(1000) .. "/" .. user:pick { "x", "y" }
      .. "/" .. words:random().word .. table.concat(list) .. words:own().word
      .. "/" .. math.random(1000) .. "/" .. math.random(5, 9.5) .. "/" .. top)
  end)
end
"#;
    let script = Script::new(text).with("words.csv", "word\none\ntwo\nthree\n");
    let run = |flags: &[&str]| {
        let server = Peer::answering(|_| response("200 OK", "", ""));
        let record = script.record(&[&[server.url.as_str()], flags].concat());
        (server.seen().targets, scenario(&record).seed)
    };
    let (first, seed) = run(&["--seed", "7", "-t1"]);
    assert_eq!((first.values().sum::<u64>(), seed), (80, 7));
    let parts = |index: usize| first.keys().map(move |target| target.split('/').nth(index).unwrap()).collect();
    let (drawn, top): (BTreeSet<&str>, BTreeSet<&str>) = (parts(7), parts(9));
    assert!(drawn.len() > 60, "a thousand numbers, drawn eighty times: {drawn:?}");
    assert_eq!(top.len(), 1, "the top level is the same on all threads: {top:?}");
    let of_a = first.keys().filter(|target| target.starts_with("/a/")).count();
    assert!((45..=75).contains(&of_a), "three of four: {of_a}");
    assert_eq!(run(&["--seed", "7", "-t2"]).0, first);
    assert_ne!(run(&["--seed", "8", "-t2"]).0, first);
}

#[test]
fn a_leased_row_is_nobody_else_s_and_shared_values_are_everybody_s() {
    let under_way = Mutex::new(BTreeSet::new());
    let clashes = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    let seen_clashes = std::sync::Arc::clone(&clashes);
    let server = Peer::answering(move |request| {
        // The same account logs in and out again before another user has it.
        let mut under_way = under_way.lock().unwrap();
        let (what, name) = request.target.trim_start_matches('/').split_once('/').unwrap();
        let fits = if what == "in" { under_way.insert(name.to_owned()) } else { under_way.remove(name) };
        seen_clashes.fetch_add(u64::from(!fits), std::sync::atomic::Ordering::Relaxed);
        response("200 OK", "", "")
    });
    let script = Script::new(
        r#"
options { users = 8, iterations = 25 }
local accounts = data.jsonl("accounts.jsonl")
scenario("login", function(user)
  local account = accounts:lease()
  if not account then shared.add("none") think(0.001) return end
  user:get("/in/" .. account.name)
  user:get("/out/" .. account.name)
  shared.add("journeys")
  if user:random() < 0.5 then accounts:release(account) end
end)
final(function()
  check("all counted", (shared.get("journeys") or 0) + (shared.get("none") or 0) == 200)
  check("keys", #shared.keys("jour") == 1)
end)
"#,
    )
    .with("accounts.jsonl", "{\"name\":\"a\"}\n{\"name\":\"b\"}\n{\"name\":\"c\"}\n");
    let record = script.record(&["-t2", &server.url]);
    assert_eq!(clashes.load(std::sync::atomic::Ordering::Relaxed), 0);
    assert_eq!((check(&record, "all counted").passed, check(&record, "keys").passed), (1, 1));
    assert_eq!(scenario(&record).journeys[0].completed, 200);
}

#[test]
fn arrivals_are_due_and_what_begins_late_or_never_is_counted() {
    let server = Peer::answering(shop);
    let script = Script::new("scenario('x', function(user) user:get('/none') think(0.05) end)");
    // One journey at a time takes 50 ms: of 100 that are due in a second, most find no user.
    let record = script.record(&["--rate", "100", "--users", "1", "-d", "1s", "-t1", &server.url]);
    let users = &scenario(&record).users;
    assert_eq!((users.model, users.due), (UserModel::Open, 100));
    let begun = scenario(&record).journeys[0].begun;
    assert_eq!(begun + users.unbegun, 100, "{users:?}");
    assert!(users.unbegun >= 75 && users.late >= 90, "{users:?}");
    let lateness = users.lateness.as_ref().unwrap();
    assert_eq!(lateness.summary.count + lateness.histogram.censored(), 100, "the unbegun are at least so late");

    // Enough users: each arrival has one, and a number of journeys ends the run.
    let record = script.record(&["--rate", "500", "--users", "200", "-n", "50", &server.url]);
    let users = &scenario(&record).users;
    assert_eq!((users.due, users.unbegun), (50, 0), "{users:?}");
    assert_eq!(scenario(&record).journeys[0].completed, 50);
}

/// A server whose redirect comes at once, and whose target hangs.
fn redirecting_to_nowhere() -> Peer {
    Peer::start(Place::Tcp, |mut conn: Conn| {
        while let Some(request) = conn.request() {
            if request.target == "/hangs" {
                conn.request();
                return;
            }
            conn.send(response("302 Found", "Location: /hangs\r\n", ""));
        }
    })
}

#[test]
fn a_redirect_that_the_end_cuts_off_is_neither_counted_nor_an_error() {
    let server = redirecting_to_nowhere();
    let script = Script::new(
        "options { users = 2, timeout = '30s' }\n\
         scenario('x', function(user) user:get('/', { expect = 200 }) end)",
    );
    let record = script.record(&["-d", "300ms", "-t1", &server.url]);
    let cut = step(&record, "GET /");
    assert_eq!((cut.count, cut.errors, cut.cut_off), (0, 0, 2));
    assert_eq!((cut.service.histogram.censored(), cut.response.histogram.censored()), (2, 2));
}

#[test]
fn a_score_that_fails_is_void_and_the_run_is_reported() {
    let server = Peer::answering(shop);
    for (formula, why) in [
        ("return result.points / result.fails", "score() returned"),
        ("return nil + 1", "shop.lua:1"),
        ("void('not today') return 5", "not today"),
        ("while true do end", "did not return within"),
    ] {
        let text = format!(
            "score(function(result) {formula} end)\n\
             scenario('x', function(user) user:get('/none') end)"
        );
        let ran = Script::new(&text).run(&["-n", "3", "--script-limit", "300ms", "--format", "json", &server.url]);
        assert_eq!(ran.code, Some(1), "{formula}: {ran:?}");
        let record = ran.record();
        let score = scenario(&record).score.as_ref().unwrap();
        assert!(
            score.value == 0.0 && score.void.as_ref().is_some_and(|void| void.contains(why)),
            "{formula}: {score:?}"
        );
        assert_eq!(record.requests.completed, 3);
    }
}

#[test]
fn a_caught_fail_hides_no_later_error() {
    let server = Peer::answering(shop);
    let ends = Script::new("scenario('x', function(user)\n pcall(fail, 'caught')\n while true do end\nend)");
    ends.run(&["-d", "5s", "--script-limit", "300ms", &server.url]).said(1, &["shop.lua:3", "did not return within"]);
    let counted = Script::new("scenario('x', function(user) user:get('/none') pcall(fail, 'caught') end)");
    let record = counted.record(&["-n", "4", "-t1", &server.url]);
    let s = scenario(&record);
    assert_eq!((s.journeys[0].failed, s.fails[0].reason.as_str(), s.fails[0].count), (4, "caught", 4));
    let last = Script::new(
        "final(function(user) pcall(fail, 'wrong totals') end)\nscenario('x', function(user) user:get('/none') award(1) end)",
    );
    last.run(&["-n", "2", &server.url]).said(1, &["wrong totals"]);
    // A block that failed took until it failed, whatever the script does then.
    let timed = Script::new(
        "scenario('x', function(user)\n local ok = pcall(step, 'inner', function() error('no') end)\n\
         check('rethrown', not ok) check('value', step('outer', function(a, b) return b end, 1, 2) == 2)\n\
         user:get('/none')\nend)",
    );
    let record = timed.record(&["-n", "2", &server.url]);
    assert_eq!((check(&record, "rethrown").passed, check(&record, "value").passed), (2, 2));
    let timers = &scenario(&record).timers;
    let counts = |name: &str| {
        let timer = timers.iter().find(|timer| timer.name == name).unwrap();
        (timer.time.summary.count, timer.time.histogram.censored())
    };
    assert_eq!((counts("inner"), counts("outer")), ((0, 2), (2, 0)));
}

/// Runs a command, and sends it SIGINT once standard error has this text.
fn interrupted_when_it_says(text: &str, args: &[String]) -> (Option<i32>, String) {
    let mut child =
        Command::new(OROSHI).args(args).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("oroshi");
    let (mut err, mut lines) = (String::new(), BufReader::new(child.stderr.take().unwrap()));
    while !err.contains(text) && lines.read_line(&mut err).unwrap() > 0 {}
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::INT).unwrap();
    lines.read_to_string(&mut err).unwrap();
    (child.wait().unwrap().code(), err)
}

#[test]
fn an_interrupt_ends_loops_and_voids_what_final_did_not_check() {
    let server = Peer::answering(shop);
    for phase in ["initialize", "final", "scenario"] {
        let text = match phase {
            "scenario" => {
                "scenario('x', function(user) user:get('/none') print('here') while true do end end)".to_owned()
            }
            _ => format!(
                "{phase}(function(user) print('here') while true do end end)\n\
                 scenario('x', function(user) user:get('/none') end)"
            ),
        };
        let script = Script::new(&text);
        let duration = if phase == "final" { "100ms" } else { "60s" };
        let args =
            ["bench", "-s", script.path().to_str().unwrap(), "-d", duration, "--script-limit", "60s", &server.url]
                .map(str::to_owned);
        let (code, err) = interrupted_when_it_says("here", &args);
        assert!(code == Some(1) && !err.contains("did not return within"), "{phase}: {code:?} {err}");
    }
}

#[test]
fn the_end_cuts_journeys_off_and_loses_no_count() {
    // Every second request hangs for good.
    let server = Peer::start(Place::Tcp, |mut conn: Conn| {
        while let Some(request) = conn.request() {
            if request.target == "/hangs" {
                conn.request();
                return;
            }
            conn.send(response("200 OK", "", ""));
        }
    });
    let script = Script::new(
        "options { users = 3, timeout = '30s' }\n\
         scenario('x', function(user) user:get('/') step('wait', function() user:get('/hangs') end) award(1) end)",
    );
    let record = script.record(&["-d", "400ms", "-t2", &server.url]);
    let requests = record.requests;
    assert_eq!((requests.started, requests.completed, requests.failed, requests.cut_off), (6, 3, 0, 3), "{requests:?}");
    let journey = &scenario(&record).journeys[0];
    assert_eq!((journey.begun, journey.completed, journey.failed, journey.cut_off), (3, 0, 0, 3));
    assert_eq!(journey.duration.histogram.censored(), 3);
    let hangs = step(&record, "GET /hangs");
    assert_eq!((hangs.count, hangs.cut_off), (0, 3));
    let timer = &scenario(&record).timers[0];
    for (what, clock) in [
        ("response", &hangs.response),
        ("service", &hangs.service),
        ("wait", &timer.time),
        ("all", &record.latency.service),
    ] {
        assert_eq!(clock.histogram.censored(), 3, "{what}: they take at least so long");
    }
    assert!(scenario(&record).score.is_none(), "no points, no score");
}

#[test]
fn phases_decide_whether_there_is_a_run_and_whether_it_counts() {
    let server = Peer::answering(shop);
    let journey = "\nscenario('x', function(user) user:get('/none') award(1) end)";
    let run =
        |text: &str, flags: &[&str]| Script::new(&(text.to_owned() + journey)).run(&[flags, &[&server.url]].concat());
    let ran = run("initialize(function(user) user:get('/none', { expect = 200 }) end)", &["-n", "3"]);
    ran.said(1, &["initialize", "GET /none status"]);
    let ran = run("initialize(function(user) fail('no database') end)", &["-n", "3"]);
    ran.said(1, &["shop.lua:1", "no database"]);
    let ran = run("initialize({ timeout = '50ms' }, function(user) think(30) end)", &["-n", "3"]);
    ran.said(1, &["initialize() had not ended after 50ms"]);
    let before = server.seen().targets["/none"];
    let ran = run(
        "final(function(user) if shared.get('x') ~= 1 then void('the report differs') end end)",
        &["-n", "3", "--format", "json"],
    );
    let record = ran.record();
    let score = scenario(&record).score.clone().unwrap();
    assert_eq!((score.value, score.points, score.void.as_deref()), (0.0, 3.0, Some("the report differs")));
    assert_eq!(server.seen().targets["/none"] - before, 3);
    let ran = run(
        "final(function(user) user:get('/none', { expect = 204, name = 'report' }) end)",
        &["-n", "3", "--format", "json"],
    );
    let void = scenario(&ran.record()).score.clone().unwrap().void.unwrap();
    assert!(void.contains("report status"), "{void}");
    let ran = run("final(function(user) local x = nil; return x.y end)", &["-n", "3", "--format", "json"]);
    let void = scenario(&ran.record()).score.clone().unwrap().void.unwrap();
    assert!(void.contains("shop.lua:1"), "{void}");
    let ran = run("score(function(result) return 'many' end)", &["-n", "3"]);
    ran.said(1, &["shop.lua"]);
}

#[test]
fn a_script_may_end_the_run_and_change_the_number_of_users() {
    let server = Peer::answering(shop);
    let script = Script::new(
        "options { users = 2, duration = '60s' }\n\
         scenario('x', function(user) user:get('/none') if shared.add('n') == 20 then abort('enough') end end)",
    );
    let ran = script.run(&["-t2", "--format", "json", &server.url]);
    ran.said(1, &["the score is void: the script ended the run: enough"]);
    let record = ran.record();
    assert_eq!(scenario(&record).aborted.as_deref(), Some("enough"));
    assert!(record.elapsed_s < 30.0);
    assert!(scenario(&record).score.as_ref().unwrap().void.as_ref().unwrap().contains("enough"));

    let script = Script::new(
        "options { users = 1, duration = '60s' }\n\
         every(0.02, function(now) if now.errors > 5 then users(9) end if now.users >= 9 then abort('nine') end end)\n\
         scenario('x', function(user) user:get('/none') think(0.01) end)",
    );
    let record = script.run(&["-t2", "--format", "json", &server.url]).record();
    assert_eq!(scenario(&record).aborted.as_deref(), Some("nine"));
}

#[test]
fn what_comes_at_once_keeps_no_end_from_coming() {
    let server = Peer::answering(shop);
    // Nobody listens at the second server, which says nothing about the first.
    let closed = Port::reserve().url();
    let nowhere = format!("user:get('{closed}')");
    let cases = [
        "think(0)".to_owned(),
        nowhere.clone(),
        // A script that catches its mistakes.
        "pcall(user.get, user, '/', { headers = { ['bad name'] = 'x' } })".to_owned(),
        "user:get('/s.js', { cache = true })".to_owned(),
    ];
    for journey in cases {
        let text = format!(
            "options {{ users = 2, fresh = false }}\n\
             scenario('a', function(user) if user.journey == 1 then user:get('/') end {journey} end)"
        );
        let record = Script::new(&text).run(&["-d", "300ms", "-t2", "--format", "json", &server.url]).record();
        let s = scenario(&record);
        assert!(s.journeys[0].completed > 10 && record.gone.is_none(), "{journey}: {:?} {:?}", s.journeys, record.gone);
        assert!(record.elapsed_s < 30.0, "{journey}");
    }
    let text = format!(
        "initialize({{ timeout = '100ms' }}, function(user) repeat local r = {nowhere} until r.ok end)\n\
         scenario('a', function(user) end)"
    );
    Script::new(&text).run(&["-n", "1", &server.url]).said(1, &["initialize() had not ended after 100ms"]);
}

#[test]
fn counted_and_staged_runs_last_as_long_as_they_must() {
    let server = Peer::answering(shop);
    // One of two threads has no arrival.
    let script = Script::new("scenario('a', function(user) user:get('/none') end)");
    let record = script.record(&["--rate", "10", "-n", "1", "-t", "2", &server.url]);
    let s = scenario(&record);
    assert_eq!((s.users.due, s.journeys[0].completed, record.requests.completed), (1, 1, 1));
    assert_eq!(record.plan.duration_s, None);
    let record = script.record(&["--ramp", "200ms:3,200ms:0", &server.url]);
    assert_eq!(record.plan.duration_s, Some(0.4));
    let record = script.record(&["--stages", "300ms:20", &server.url]);
    assert_eq!((record.plan.duration_s, scenario(&record).users.due), (Some(0.3), 6));
    let thinks =
        Script::new("options { users = 1, iterations = 1 } scenario('a', function(user) user:get('/none') end)");
    assert_eq!(thinks.record(&[&server.url]).plan.duration_s, None);
}

#[test]
fn every_request_and_check_is_shown_while_a_script_is_written() {
    let server = Peer::answering(shop);
    let ran = Script::new(JOURNEY).run(&["--users", "1", "--iterations", "1", "--verbose", &server.url]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    for line in [
        "GET http://",
        "/: 200 in",
        "check passed: title",
        "+10 points: front",
        "/none?a=b+c: 404 in",
        "-1 points: none",
    ] {
        assert!(ran.err.contains(line), "{line}: {}", ran.err);
    }
    assert!(ran.err.lines().all(|line| line.starts_with("user 1, journey 1:")), "{}", ran.err);
}

#[test]
fn a_wrk_script_stays_one() {
    let server = Peer::answering(shop);
    let script = Script::new("-- scenario('a', f)\nwrk.path = '/account'\nlocal text = \"scenario('b', f)\"");
    let record = script.record(&["-n", "10", "-c2", &server.url]);
    assert!(record.scenario.is_none());
    assert_eq!(server.seen().targets["/account"], 10);
}
