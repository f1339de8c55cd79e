//! `oroshi compare` from end to end: verdicts, exit codes, and what is said when something is wrong.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::support::HANG;
use crate::common::{OROSHI, Ran, Recorded as _, Target, bench, oroshi, to_the_end};
use oroshi_bench::Record;
use oroshi_lab::LabResult;
use oroshi_lab::result::Comparison;
use oroshi_stats::compare::Verdict;
use oroshi_testkit::need;
use rustix::process::{Pid, Signal, kill_process};

/// Few short runs: the verdicts asked for here are far from any border, also beside other tests.
const QUICK: [&str; 12] =
    ["--disturbed", "100%", "-c2", "-t1", "-d", "300ms", "-w", "20ms", "--blocks", "4", "--format", "json"];

fn compare(args: &[&str]) -> Ran {
    oroshi(&[&["compare"], &QUICK[..], args].concat())
}

/// A server started for the comparison.
fn target(name: &str, flags: &str) -> [String; 2] {
    let start = format!("{name}={{{{oroshi}}}} target --threads 1 {flags} --listen 127.0.0.1:{{{{port}}}}");
    [start, "@http://127.0.0.1:{{port}}/".into()]
}

#[track_caller]
fn result(ran: &Ran) -> LabResult {
    serde_json::from_str(&ran.out).unwrap_or_else(|error| panic!("{error}: {ran:?}"))
}

/// What was found of the primary metric for the second beside the first.
#[track_caller]
fn first_comparison(result: &LabResult) -> &Comparison {
    &result.cells[0].comparisons[0]
}

#[test]
fn the_same_server_twice_is_not_different() {
    // It takes its time, so that the load generator is at no limit.
    let target = Target::start(&["--delay", "2ms"]);
    let ran = compare(&["--smallest-effect", "50%", target.url(), target.url()]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let result = result(&ran);
    let cell = &result.cells[0];
    assert_eq!((cell.blocks, cell.runs.len(), result.name.as_str()), (4, 8, "compare"));
    let names: Vec<&str> = cell.variants.iter().map(|v| v.name.as_str()).collect();
    assert_eq!(names, ["A", "B"]);
    // A difference that does not matter may come out as such: with four blocks in twenty it would, by chance.
    let comparison = first_comparison(&result);
    let ratio = comparison.ratio.unwrap();
    assert!(ratio.low < 1.5 && ratio.high > 1.0 / 1.5, "{comparison:?}");
    assert!(cell.variants.iter().all(|v| v.figures.len() >= 3), "{:?}", cell.variants);
    assert_eq!(result.rerun[..2], ["oroshi", "compare"], "and not where it lies");
    assert!(!ran.err.contains("failed"), "{ran:?}");
}

#[test]
fn a_slower_server_is_found_and_fails_the_condition() {
    let (fast, slow) = (target("fast", ""), target("slow", "--delay 5ms"));
    let words = [&fast[0], &fast[1], &slow[0], &slow[1]].map(String::as_str);
    let flags = ["--fail-if", "slower", "--blocks-per-start", "all"];
    let ran = compare(&[&flags, &words[..]].concat());
    ran.said(3, &["FAILED  --fail-if slower", "slow is slower than fast"]);
    let result = result(&ran);
    let comparison = first_comparison(&result);
    assert_eq!((comparison.verdict, comparison.blocks), (Verdict::Slower, 4), "{comparison:?}");
    assert!(result.cells[0].variants[1].start.as_ref().is_some_and(|start| start.contains("--delay 5ms")));
}

/// Ten connections that got in step: whole rounds of answers in a second were 5 or 6 of them, where there was time for
/// 5.6.
#[test]
fn a_rate_does_not_depend_on_where_the_edges_of_the_run_fall() {
    let target = Target::start(&["--delay", "180ms"]);
    for flags in [&[][..], &["-w", "170ms"], &["-w", "170ms", "-t2"], &["-w", "170ms", "--close"]] {
        let record = bench(&[&["-c10", "-d1s", "--format", "json", target.url()], flags].concat()).record();
        is_rate_of_responses(&record, 10.0);
        assert_eq!((record.requests.cut_off, record.errors), (0, 0), "what was on its way was awaited");
        assert_eq!(record.requests.started, record.requests.completed);
    }
}

/// Each connection's next request follows the answer to the one before, however late this machine is. If it is late
/// with some answers alone, the mean and the rate may differ by as much as the answers do.
fn is_rate_of_responses(record: &Record, connections: f64) {
    let expected = connections / (record.latency.response.summary.mean_ns / 1e9);
    let (rate, most) = (record.rates.requests_per_s, f64::max(0.05, spread(record)));
    assert!((rate / expected - 1.0).abs() < most, "{rate}/s instead of {expected}");
}

/// Returns by how much of their mean the response times differ.
fn spread(record: &Record) -> f64 {
    let times = &record.latency.response.summary;
    (times.max_ns - times.min_ns) as f64 / times.mean_ns
}

/// The run is shorter than an answer takes: it holds a part of each request, and waits for the rest to know which.
#[test]
fn a_run_shorter_than_an_answer_has_a_rate() {
    // So long that what a busy machine takes to begin is little of it.
    let target = Target::start(&["--delay", "1500ms"]);
    let record = bench(&["-c4", "-d1s", "--format", "json", target.url()]).record();
    assert_eq!((record.requests.started, record.requests.completed, record.requests.answered), (4, 4, 0));
    is_rate_of_responses(&record, 4.0);
    assert!(record.latency.response.summary.p50.is_some_and(|p50| !p50.at_least), "nothing was cut off");
}

/// Servers that were once called equivalent, as both had time for five rounds.
#[test]
fn the_ratio_of_rates_is_that_of_the_response_times() {
    let (one, other) = (target("one", "--delay 96ms"), target("other", "--delay 103ms"));
    let words = [&one[0], &one[1], &other[0], &other[1]].map(String::as_str);
    let run =
        ["compare", "-c10", "-d500ms", "-w50ms", "--blocks", "3", "--blocks-per-start", "all", "--format", "json"];
    let result = result(&oroshi(&[&run[..], &words].concat()));
    let cell = &result.cells[0];
    for block in 0..cell.blocks {
        let of = |variant| cell.runs.iter().find(|run| (run.variant, run.block) == (variant, block)).unwrap();
        let record = |variant| of(variant).record.as_ref().unwrap();
        let ratio = record(1).rates.requests_per_s / record(0).rates.requests_per_s;
        let times = [0, 1].map(|variant| record(variant).latency.response.summary.mean_ns);
        let most = f64::max(0.04, spread(record(0)) + spread(record(1)));
        assert!((ratio * times[1] / times[0] - 1.0).abs() < most, "block {block}: {ratio}, {times:?}");
    }
    assert!(cell.lengthened.is_none(), "lengths that were asked for stay");
    let few = "requests per connection";
    assert!(result.warnings.iter().any(|warning| warning.contains(few)), "{:?}", result.warnings);
}

#[test]
fn runs_are_longer_where_servers_are_slow() {
    let (one, other) = (target("one", "--delay 10ms"), target("other", "--delay 120ms"));
    let words = [&one[0], &one[1], &other[0], &other[1]].map(String::as_str);
    let run = ["compare", "-c2", "--blocks", "3", "--blocks-per-start", "all", "--format", "json"];
    let found = result(&oroshi(&[&run[..], &words].concat()));
    let cell = &found.cells[0];
    let lengths = cell.lengthened.expect("an answer takes 120 ms");
    assert!(lengths.duration_s >= Some(1.2) && lengths.response_ns >= 120e6, "{lengths:?}");
    for run in &cell.runs {
        let record = run.record.as_ref().unwrap();
        assert_eq!((record.plan.duration_s, Some(record.plan.warmup_s)), (lengths.duration_s, lengths.warmup_s));
    }
    assert!(cell.variants.iter().all(|variant| variant.load.contains("lengthened to ")), "{}", cell.variants[0].load);
    // Where the time for all of it is short, runs are as long as usual.
    let ran = oroshi(&[&run[..], &["--max-time", "1s"], &words].concat());
    assert!(result(&ran).cells[0].lengthened.is_none(), "{ran:?}");
}

#[test]
fn a_short_calibration_is_within_its_bounds_or_says_what_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("calibration.json");
    let file = file.to_str().unwrap();
    let ran = oroshi(&["lab", "calibrate", "--simulated", "--trials", "2", "--threads", "1", "--out", file]);
    let data: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    // Of two comparisons in each row chance alone breaks the bounds: then that is said.
    let failures = data["failures"].as_array().unwrap();
    assert_eq!(
        (ran.code, ran.err.matches("out of bounds: ").count()),
        (Some(if failures.is_empty() { 0 } else { 3 }), failures.len())
    );
    assert!(ran.out.contains("**The rate, by server**") && ran.out.contains("| bimodal, 500 ms | 2 | "), "{ran:?}");
    assert!(data["real"].is_null() && data["simulated"]["tables"][0]["rows"].as_array().unwrap().len() == 20);
}

/// It was faster, as redirecting is little work.
#[test]
fn answers_of_another_kind_are_not_compared_unless_that_is_wanted() {
    let ok = Target::start(&["--delay", "1ms"]);
    let [moved, large] = [["--status", "302"], ["--size", "20000"]].map(|flags| Target::start(&flags));
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.html").to_str().unwrap().to_owned();
    for (other, words) in
        [(&moved, "with status 200, and B with 302"), (&large, "have 12 B on average, and those of B")]
    {
        let urls = [ok.url(), other.url()];
        let ran = compare(&[&["--report", &page, "--fail-if", "slower"], &urls[..]].concat());
        ran.said(
            1,
            &["unknown  --fail-if slower: not everything was compared", "error: not everything could be compared"],
        );
        let found = result(&ran);
        let comparison = first_comparison(&found);
        assert_eq!((comparison.verdict, comparison.ratio), (Verdict::NotCompared, None), "{comparison:?}");
        assert!(comparison.words.contains(words), "{comparison:?}");
        assert!(std::fs::read_to_string(&page).unwrap().contains("that is not the same work"));
        let text = oroshi(&[&["compare"], &QUICK[..10], &urls].concat());
        assert_eq!(text.code, Some(1), "{text:?}");
        assert!(text.out.contains("--any-answers") && !text.out.contains(" is faster than "), "{text:?}");

        let ran = compare(&[&["--any-answers"], &urls[..]].concat());
        let found = result(&ran);
        let comparison = first_comparison(&found);
        assert!(found.rules.any_answers && comparison.ratio.is_some(), "{comparison:?}");
        assert!(comparison.verdict == Verdict::Disturbed || comparison.words.contains(words), "{comparison:?}");
    }
}

#[test]
fn latency_is_compared_at_one_rate() {
    // Far more than what a server waits for a CPU that others use.
    let (fast, slow) = (target("fast", ""), target("slow", "--delay 200ms"));
    let words = [&slow[0], &slow[1], &fast[0], &fast[1]].map(String::as_str);
    // Of a hundred requests in a run, one at its edge does not make it another rate.
    let run = ["compare", "-c64", "-t1", "-d", "500ms", "-w", "20ms", "--blocks", "4", "--format", "json", "-R", "200"];
    let run = [&run[..], &["--disturbed", "100%"]].concat();
    let flags = ["--primary", "p50", "--fail-if", "slower,different", "--blocks-per-start", "all"];
    let ran = oroshi(&[&run[..], &flags, &words].concat());
    ran.said(3, &["passed  --fail-if slower", "FAILED  --fail-if different", "fast answers sooner than slow"]);
    let result = result(&ran);
    let ratio = first_comparison(&result).ratio.unwrap();
    assert!(ratio.high < 0.5, "{ratio:?}");
    assert_eq!(result.metrics[0].label, "p50");
}

#[test]
fn a_command_that_ends_at_once_is_told_with_its_last_words() {
    let (good, other) = (target("good", ""), target("other", ""));
    let bad = ["bad=sh -c 'echo no licence; exit 7'", "@http://127.0.0.1:1/"];
    let ran = oroshi(&[&["compare"], &QUICK[..10], &[&good[0], &good[1]], &bad, &[&other[0], &other[1]]].concat());
    ran.said(1, &["error: bad failed", "what the servers wrote is in "]);
    for words in ["Failed", "bad", "no licence", "7"] {
        assert!(ran.out.contains(words), "`{words}`: {ran:?}");
    }
    // The others are compared all the same.
    assert!(ran.out.contains("other / good "), "{ran:?}");
    assert!(ran.out.lines().any(|line| line.starts_with("good ") && line.contains('±')), "{ran:?}");
    let folder = ran.err.split("what the servers wrote is in ").nth(1).unwrap().lines().next().unwrap();
    let folder = std::path::Path::new(folder);
    assert!(folder.is_dir(), "{folder:?}");
    std::fs::remove_dir_all(folder.parent().unwrap()).unwrap();
}

#[test]
fn two_signals_leave_no_folder_behind() {
    let temporary = tempfile::tempdir().unwrap();
    // It does not end by itself, so that the second signal comes before it is gone.
    let start = "deaf=sh -c 'trap \"\" TERM; echo is up; while :; do sleep 1; done'";
    let mut command = Command::new(OROSHI);
    command.args(["compare", start, "@http://127.0.0.1:1/", "http://127.0.0.1:2/", "--ready-timeout", "60s"]);
    let mut child =
        command.env("TMPDIR", temporary.path()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let folders = || {
        let entries = std::fs::read_dir(temporary.path()).unwrap().flatten().map(|entry| entry.path());
        entries.filter(|path| path.to_string_lossy().contains("oroshi-compare-")).collect::<Vec<_>>()
    };
    let is_up = || {
        let output = folders().first().map(|folder| folder.join("output"))?;
        let logs = std::fs::read_dir(output).ok()?.flatten();
        logs.filter_map(|log| std::fs::read_to_string(log.path()).ok()).find(|log| log.contains("is up"))
    };
    let deadline = Instant::now() + HANG;
    while is_up().is_none() {
        assert!(Instant::now() < deadline && child.try_wait().unwrap().is_none(), "{:?}", folders());
        std::thread::sleep(Duration::from_millis(5));
    }
    // Two that cannot be taken for one.
    for signal in [Signal::INT, Signal::TERM] {
        kill_process(Pid::from_child(&child), signal).unwrap();
    }
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(folders().is_empty(), "{:?}", folders());
}

/// A loop that takes a CPU for as long as this is there.
struct Burner(std::process::Child);

impl Drop for Burner {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn burners_beside_give_no_false_verdict() {
    let cpus = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
    let burn = || Burner(Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap());
    let _burners: Vec<Burner> = (0..cpus).map(|_| burn()).collect();
    let target = Target::start(&[]);
    let ran = oroshi(
        &[
            &["compare", "-c4", "-t1", "-d", "200ms", "-w", "20ms", "--blocks", "4", "--format", "json"][..],
            &[target.url(), target.url()],
        ]
        .concat(),
    );
    let result = result(&ran);
    let cell = &result.cells[0];
    let disturbed = |variant: usize| {
        let of = cell.runs.iter().filter(|run| run.variant == variant);
        of.filter(|run| oroshi_lab::disturbed::is_disturbed(run)).count() as f64 / cell.blocks as f64
    };
    if cell.variants.iter().any(|variant| variant.failed.is_some()) {
        // Nothing was answered in a run: that is told, and compares nothing.
        return assert_eq!(ran.code, Some(1), "{ran:?}");
    }
    let (limit, comparison) = (result.rules.disturbed, first_comparison(&result));
    // Whatever share of the CPUs they got: with a verdict, the machine was quiet.
    if disturbed(0) > limit || disturbed(1) > limit {
        assert_eq!((comparison.verdict, ran.code), (Verdict::Disturbed, Some(5)), "{comparison:?}");
        assert!(comparison.words.starts_with("disturbed: no verdict on requests/s of B beside A: "), "{comparison:?}");
        assert!(ran.err.contains("error: no verdict: the machine was disturbed"), "{ran:?}");
        assert!(result.warnings.iter().any(|text| text.contains("disturbed: other")), "{:?}", result.warnings);
        assert_eq!(cell.repeated, 2, "half as often as there are blocks");
        let cpu = cell.comparisons.iter().find(|c| c.metric == oroshi_lab::Metric::Cpu).unwrap();
        assert_ne!(cpu.verdict, Verdict::Disturbed, "{cpu:?}");
    }
}

#[test]
fn one_alone_is_measured_and_saved_to_be_compared_with_later() {
    let target = Target::start(&["--delay", "2ms"]);
    let folder = tempfile::tempdir().unwrap();
    let saved = folder.path().join("saved.json").to_str().unwrap().to_owned();
    let app = format!("app={}", target.url());
    let ran = compare(&["-o", &saved, &app]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let ran = oroshi(&[&["compare"], &QUICK[..10], &["--baseline", &saved, "--smallest-effect", "90%", &app]].concat());
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.out.contains("Against "), "{ran:?}");
}

/// nginx before 1.25.1 speaks nothing else on a cleartext port with `http2`.
#[test]
fn a_server_of_http2_alone_becomes_ready() {
    let test = "a_server_of_http2_alone_becomes_ready";
    if need(test, "nginx").is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let conf = folder.path().join("nginx.conf");
    let text = "daemon off; pid PID; worker_processes 1; error_log stderr crit; events {}\n\
        http { access_log off; server { listen 127.0.0.1:PORT http2; location / { return 200 x; } } }";
    std::fs::write(&conf, text).unwrap();
    let start = format!(
        "nginx=sh -c 'sed -e \"s|PORT|{{{{port}}}}|; s|PID|{{{{dir}}}}/pid|\" {} > {{{{dir}}}}/conf; \
         exec nginx -p {{{{dir}}}} -e stderr -c {{{{dir}}}}/conf'",
        conf.display()
    );
    let saved = folder.path().join("saved.json").to_str().unwrap().to_owned();
    let flags = ["--http2-prior-knowledge", "--streams", "2", "-o", &saved];
    let ran = compare(&[&flags[..], &[&start, "@http://127.0.0.1:{{port}}/"]].concat());
    assert_eq!(ran.code, Some(0), "{ran:?}");
}

#[test]
fn a_dead_url_is_told() {
    let target = Target::start(&[]);
    // Nobody listens at this name.
    let ran = compare(&[target.url(), "dead=unix:@oroshi-test-nobody-is-here"]);
    ran.said(1, &["dead failed"]);
    let result = result(&ran);
    let dead = &result.cells[0].variants[1];
    assert!(dead.failed.is_some() && dead.figures.is_empty(), "{dead:?}");
}

#[test]
fn all_mistakes_are_told_at_once_and_nothing_is_started() {
    let marker = tempfile::tempdir().unwrap();
    let file = marker.path().join("started");
    let command = format!("x=touch {}", file.display());
    let ran = oroshi(&[
        "compare",
        "-c0",
        "--primary",
        "speed",
        "--blocks",
        "2",
        "--fail-if",
        "slow",
        &command,
        "@http://h/",
        "x=http://h/",
        "y=puma",
    ]);
    ran.said(
        2,
        &[
            "connections is 0",
            "--primary",
            "--blocks",
            "--fail-if",
            "did you mean slower?",
            "called x",
            "y: ",
            "next: ",
        ],
    );
    assert!(!file.exists());
    oroshi(&["compare", "http://h/"]).said(2, &["needs two"]);
    oroshi(&["compare", "--baseline", "/nonexistent/x.json", "http://h/"]).said(2, &["/nonexistent/x.json"]);
    oroshi(&["compare", "-o", "/nonexistent/x", "http://h/", "http://h/"]).said(1, &["/nonexistent/x"]);
}

#[test]
fn a_saved_result_is_a_baseline_with_caveats() {
    let target = Target::start(&["--delay", "2ms"]);
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (saved, again, page) = (path("saved.json"), path("again.json"), path("page.html"));
    let ran = compare(&["-o", &saved, &format!("other={}", target.url()), &format!("now={}", target.url())]);
    assert_eq!(ran.code, Some(0), "{ran:?}");

    let now = format!("now={}", target.url());
    let secret = ["-H", "Authorization: Bearer s3cret", "--report", &page, "-o", &again];
    let ran = compare(&[&["--baseline", &saved, "--smallest-effect", "90%"], &secret[..], &[&now]].concat());
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let text = std::fs::read_to_string(&again).unwrap();
    assert!(!text.contains("s3cret"));
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(value["against"]["comparisons"][0]["variant"], "now", "{}", value["against"]);
    assert!(value["against"]["caveats"].as_array().is_some_and(|caveats| !caveats.is_empty()));
    assert!(std::fs::read_to_string(&page).unwrap().starts_with("<!DOCTYPE html>"));

    // Names are known before anything is run.
    let unknown = format!("then={}", target.url());
    oroshi(&["compare", "--baseline", &saved, &unknown])
        .said(2, &["then is not among what is saved there (now, other)"]);

    // One saved run has no interval.
    let one = path("one.json");
    assert_eq!(bench(&["-n", "20", "--format", "json", "-o", &one, target.url()]).code, Some(0));
    let ran = oroshi(&[&["compare"], &QUICK[..10], &["--baseline", &one, &now]].concat());
    ran.said(1, &["could be compared"]);
    assert!(ran.out.contains("Against ") && ran.out.contains("Caveat"), "{ran:?}");
}

#[test]
fn help_gives_the_defaults_of_this_command() {
    let ran = oroshi(&["compare", "--help"]);
    assert_eq!(ran.code, Some(0));
    for words in ["[default: 1s]", "[default: 250ms]", "--order-seed", "--server-cpus", "{{port}}", "--fail-if"] {
        assert!(ran.out.contains(words), "{words}: {}", ran.out);
    }
    assert!(!ran.out.contains("[default: 10s, or until"), "{}", ran.out);
    assert!(std::path::Path::new(OROSHI).is_file());
}

const FAST: &str = "exec \"$1\" target --threads 1 --delay 2ms --listen 127.0.0.1:$2\n";

/// A git repository with one commit, tagged v1, whose server takes 2 ms for an answer; in the tree it takes 20 ms.
/// A faster one would keep the load generator at its limit: then nothing is compared.
fn repository(folder: &std::path::Path) {
    let git = |arguments: &[&str]| {
        let own = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "init.defaultBranch=main"];
        let ran = Command::new("git").args(own).args(arguments).current_dir(folder).output().unwrap();
        assert!(ran.status.success(), "{arguments:?}: {ran:?}");
    };
    std::fs::create_dir_all(folder.join("web")).unwrap();
    // The build writes what the server starts; the source alone starts nothing.
    std::fs::write(
        folder.join("web/build"),
        "#!/bin/sh\nset -e\n(echo '#!/bin/sh'; cat serve.in) > serve\nchmod +x serve\n",
    )
    .unwrap();
    std::fs::write(folder.join("web/serve.in"), FAST).unwrap();
    git(&["init", "--quiet"]);
    git(&["add", "."]);
    git(&["commit", "--quiet", "--message", "fast"]);
    git(&["tag", "v1"]);
    std::fs::write(folder.join("web/serve.in"), FAST.replace("2ms", "20ms")).unwrap();
}

fn against(folder: &std::path::Path, cache: &std::path::Path, arguments: &[&str]) -> Ran {
    let mut command = Command::new(OROSHI);
    // Runs long enough that even a busy machine answers in each.
    let long = ["--disturbed", "100%", "-c2", "-t1", "-d", "1s", "-w", "100ms", "--blocks", "4", "--format", "json"];
    command.current_dir(folder.join("web")).env("XDG_CACHE_HOME", cache).arg("compare").args(long).args(arguments);
    command.args(["./serve {{oroshi}} {{port}}", "@http://127.0.0.1:{{port}}/"]);
    to_the_end(command)
}

#[test]
fn a_tree_is_compared_with_an_earlier_commit_which_is_built_once() {
    if need("compare --against", "git").is_none() {
        return;
    }
    let (folder, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    repository(folder.path());
    let also = |name: &str| cache.path().join(name);
    let [markdown, junit] =
        [("markdown", "a.md"), ("junit", "a.xml")].map(|(f, n)| format!("{f}={}", also(n).display()));
    let flags =
        ["--against", "v1", "--build", "sh ./build", "--fail-if", "slower", "--also", &markdown, "--also", &junit];
    let ran = against(folder.path(), cache.path(), &flags);
    ran.said(3, &["FAILED  --fail-if slower", "this is slower than v1", "checking out"]);
    let found = result(&ran);
    let names: Vec<&str> = found.cells[0].variants.iter().map(|v| v.name.as_str()).collect();
    assert_eq!((names, first_comparison(&found).verdict), (vec!["v1", "this"], Verdict::Slower));
    let text = std::fs::read_to_string(also("a.md")).unwrap();
    assert!(text.contains("**this is slower than v1") && text.contains("| this / v1 |"), "{text}");
    let text = std::fs::read_to_string(also("a.xml")).unwrap();
    assert!(text.contains("failures=\"1\" errors=\"0\"") && text.contains("name=\"this / v1\""), "{text}");

    // The earlier tree is kept with its build; the present one is built anew, and is the same now.
    std::fs::write(folder.path().join("web/serve.in"), FAST).unwrap();
    let flags = ["--against", "v1", "--build", "sh ./build", "--smallest-effect", "60%"];
    let ran = against(folder.path(), cache.path(), &flags);
    assert!(ran.code == Some(0) && !ran.err.contains("checking out"), "{ran:?}");
    assert_eq!(ran.err.matches("building in").count(), 1, "{ran:?}");

    let flags = ["--against", "v1", "--build", "sh -c 'exit 7'"];
    against(folder.path(), cache.path(), &flags).said(1, &["--build: `sh -c 'exit 7'` failed in", "exit status: 7"]);
    against(folder.path(), cache.path(), &["--against", "v2"]).said(2, &["`v2` is no commit, tag or branch of"]);
    against(folder.path(), cache.path(), &["--against", "--help"]).said(2, &["--against"]);
}
