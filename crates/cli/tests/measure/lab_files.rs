//! `oroshi lab` with files: what it says of them, what it does with them, what it leaves behind.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::common::{OROSHI, Ran, to_the_end};
use oroshi_lab::LabResult;
use oroshi_stats::compare::Verdict;
use oroshi_testkit::{need, test_name};
use tempfile::TempDir;

/// `oroshi lab` in a folder.
pub(crate) fn lab(folder: &Path, args: &[&str]) -> Ran {
    let mut command = Command::new(OROSHI);
    command.current_dir(folder).arg("lab").args(args);
    to_the_end(command)
}

/// Returns a folder with these files.
pub(crate) fn folder(files: &[(&str, &str)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    folder
}

/// A server that is asked in two ways, and another one that answers late.
const DELAYED: &str = r#"
title = "A delay that is known"
question = "Is it found?"
metrics = ["rps"]
blocks = 6
blocks-per-start = "all"
disturbed = "100%"
cpus = "any"
[load]
connections = 2
duration = "{{milliseconds}}ms"
warmup = "20ms"
[sweep]
name = "milliseconds"
label = "length in ms"
values = [80]
[[variant]]
name = "at once"
start = "{{oroshi}} target --threads 1 --listen 127.0.0.1:{{port}}"
url = "http://127.0.0.1:{{port}}/"
[[variant]]
name = "late"
start = ["{{oroshi}}", "target", "--threads", "1", "--delay", "5ms", "--listen", "unix:{{socket}}"]
url = "unix:{{socket}}"
[[variant]]
name = "elsewhere"
requires = ["surely-not-installed"]
url = "http://127.0.0.1:1/"
"#;

#[test]
fn a_run_is_told_kept_and_told_again() {
    let folder = folder(&[("experiments/delayed.toml", DELAYED)]);
    let ran = lab(folder.path(), &["run", "delayed", "--fail-if", "slower", "--fail-if", "undecided", "--seed", "5"]);
    ran.said(3, &["FAILED  --fail-if slower: ", "late", "passed  --fail-if undecided"]);
    for words in [
        "A delay that is known",
        "Is it found?",
        "at once",
        "late",
        "surely-not-installed",
        "report.html",
        "result.json",
    ] {
        assert!(ran.out.contains(words), "`{words}` is not in: {ran:?}");
    }

    let results: Vec<_> = fs::read_dir(folder.path().join("oroshi-results")).unwrap().collect();
    let [Ok(kept)] = &results[..] else { panic!("{results:?}") };
    let kept = kept.path();
    assert!(kept.file_name().unwrap().to_str().unwrap().starts_with("delayed-20"), "{kept:?}");
    let result: LabResult = serde_json::from_slice(&fs::read(kept.join("result.json")).unwrap()).unwrap();
    assert_eq!((result.name.as_str(), result.source.as_deref()), ("delayed", Some(DELAYED)));
    let again = ["oroshi", "lab", "run", "delayed", "--seed", "5", "--fail-if", "slower", "--fail-if", "undecided"];
    assert_eq!(result.rerun, again);
    assert_eq!(result.skipped[0].name, "elsewhere");
    let [cell] = &result.cells[..] else { panic!("{:?}", result.cells) };
    assert_eq!((cell.blocks, cell.runs.len()), (6, 12));
    assert_eq!(cell.comparisons[0].verdict, Verdict::Slower);
    let page = fs::read_to_string(kept.join("report.html")).unwrap();
    assert!(page.contains("A delay that is known"));
    let logs: Vec<_> = fs::read_dir(kept.join("output")).unwrap().map(|file| file.unwrap().path()).collect();
    assert!(!logs.is_empty() && logs.iter().all(|log| log.extension().unwrap() == "log"), "{logs:?}");
    assert!(logs.iter().any(|log| fs::read_to_string(log).unwrap().contains("listening on")), "{logs:?}");

    let place = kept.to_str().unwrap();
    let told = lab(folder.path(), &["report", place]);
    assert_eq!(told.code, Some(0), "{told:?}");
    assert!(ran.out.starts_with(&told.out), "{told:?}\n{ran:?}");
    let drawn = lab(folder.path(), &["report", &format!("{place}/result.json"), "--html", "again.html"]);
    assert_eq!((drawn.code, drawn.out.as_str()), (Some(0), ""), "{drawn:?}");
    assert_eq!(fs::read_to_string(folder.path().join("again.html")).unwrap(), page);
}

#[test]
fn mistakes_in_a_file_are_told_with_their_lines_before_anything_is_started() {
    let wrong = "title = \"x\"\nmetrics = [\"rsp\"]\nblocks = \"9-3\"\n[load]\nclos = true\n[[variant]]\nname = \"a\"\n\
                 start = \"touch started {{prot}}\"\nurl = \"ftp://h/\"\n";
    let folder = folder(&[("wrong.toml", wrong)]);
    for command in ["check", "run"] {
        let ran = lab(folder.path(), &[command, "wrong.toml"]);
        ran.said(
            2,
            &[
                "error: wrong.toml line 2: metrics: `rsp` is no metric (did you mean rps?)",
                "error: wrong.toml line 3: blocks: `9-3`",
                "error: wrong.toml line 5: load.clos: there is no such key: did you mean `close`?",
                "error: wrong.toml line 8: variant.start: `{{prot}}` is unknown (did you mean {{port}}?)",
                "error: wrong.toml line 9: variant.url: `ftp://h/`",
                "next: docs/lab.md",
            ],
        );
        assert_eq!((ran.out.as_str(), ran.err.matches("error: ").count()), ("", 5), "{ran:?}");
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing was made");
}

#[test]
fn check_says_what_would_be_done_and_does_nothing() {
    let folder = folder(&[("delayed.toml", DELAYED)]);
    let ran = lab(folder.path(), &["check", "delayed.toml", "--quick", "--only", "late", "--max-time", "7s"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    for words in [
        "A delay that is known",
        "by rps",
        "at most 7s",
        "late",
        "unix:{{socket}}",
        "servers are started once",
        "2 connections",
    ] {
        assert!(ran.out.contains(words), "`{words}` is not in: {ran:?}");
    }
    assert!(!ran.out.contains("at once"), "{ran:?}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

/// The page's examples, as their reader would copy them.
#[test]
fn the_documented_examples_are_experiments() {
    let page = include_str!("../../../../docs/lab.md");
    let examples: Vec<&str> = page.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    let [workers, bursts, apart] = examples[..] else { panic!("{examples:?}") };
    let bursts = format!("title = \"Bursts\"\nmetrics = [\"mean\"]\n{}", bursts.replace("burst-go", "true"));
    let folder = folder(&[("workers.toml", workers), ("bursts.toml", &bursts), ("apart.toml", apart)]);
    for (file, words) in [
        ("workers.toml", "Two workers or one?\n"),
        ("bursts.toml", "true {{url}} 100"),
        ("apart.toml", "server target on server: {{oroshi}} target"),
    ] {
        let ran = lab(folder.path(), &["check", file]);
        assert!(ran.code == Some(0) && ran.out.contains(words), "{ran:?}");
    }
}

#[test]
fn list_names_files_and_what_is_built_in() {
    let folder = folder(&[
        ("experiments/mine.toml", DELAYED),
        ("experiments/keepalive.toml", "title = 1"),
        ("experiments/x.txt", ""),
    ]);
    let ran = lab(folder.path(), &["list"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let line =
        |name: &str| ran.out.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name}: {ran:?}"));
    assert!(line("mine ").contains("experiments/mine.toml") && line("mine ").contains("A delay that is known"));
    assert!(line("keepalive ").contains("1 mistake") && line("unix-or-tcp ").contains("built in"));
    assert!(!ran.out.contains("x.txt"));
    let ran = lab(folder.path(), &["list", "experiments"]);
    assert!(!ran.out.contains("built in") && ran.out.contains("mine"), "{ran:?}");
    // Those built in need no folder.
    let ran = lab(tempfile::tempdir().unwrap().path(), &["check", "keepalive"]);
    assert!(ran.code == Some(0) && ran.out.contains("built in"), "{ran:?}");
}

/// A record of `oroshi bench`.
const RUN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../bench/tests/records/oroshi-bench-1.0.json");

#[test]
fn what_cannot_be_done_has_its_exit_code() {
    let failing = "title = \"x\"\ncpus = \"any\"\n[[variant]]\nname = \"a\"\n\
                   start = \"sh -c 'echo no such database; exit 3' {{port}}\"\n\
                   url = \"http://127.0.0.1:{{port}}/\"\n";
    let missing = "title = \"x\"\n[[variant]]\nname = \"a\"\nrequires = [\"surely-not-installed\"]\n\
                   url = \"http://127.0.0.1:1/\"\n";
    let folder = folder(&[
        ("failing.toml", failing),
        ("missing.toml", missing),
        ("record.json", "{\"schema\": \"oroshi-bench/1.0\"}"),
    ]);
    for (args, code, words) in [
        (&["run", "keepalvie"][..], 2, &["`keepalvie`", "did you mean keepalive?"][..]),
        (&["run", "not-here.toml"], 2, &["not-here.toml cannot be read"]),
        (&["list", "not-here"], 2, &["not-here cannot be read"]),
        (&["run", "missing.toml"], 1, &["nothing is left to run", "a: surely-not-installed is not installed"]),
        (&["run", "failing.toml", "--only", "b"], 2, &["--only", "`b`", "a"]),
        (
            &["run", "failing.toml", "--max-time", "soon", "--seed", "x", "--fail-if", "slow"],
            2,
            &["`soon`", "`x`", "mean slower?"],
        ),
        (&["run", "failing.toml", "--out", "failing.toml"], 2, &["failing.toml is in the way", "--out"]),
        (&["report", "not-here.json"], 2, &["not-here.json cannot be read"]),
        (&["report", "record.json"], 2, &["record.json: it cannot be understood"]),
        (&["report", RUN], 2, &["holds runs of `oroshi bench`", "next: `oroshi report`"]),
        (&["check"], 2, &["FILE|NAME"]),
    ] {
        lab(folder.path(), args).said(code, words);
    }
    let ran = lab(folder.path(), &["run", "failing.toml", "--out", "kept"]);
    ran.said(1, &["error: a failed"]);
    assert!(ran.out.contains("no such database"), "what the server said is in the report: {ran:?}");
    assert!(folder.path().join("kept/result.json").is_file() && folder.path().join("kept/report.html").is_file());
}

#[test]
fn only_an_earlier_result_is_replaced() {
    let alone = "title = \"x\"\ncpus = \"any\"\nblocks = 3\nblocks-per-start = \"all\"\n[load]\nrequests = 20\n\
                 warmup = \"0s\"\n\
                 [[variant]]\nname = \"a\"\nstart = \"{{oroshi}} target --threads 1 --listen unix:{{socket}}\"\n\
                 url = \"unix:{{socket}}\"\n";
    let folder = folder(&[("alone.toml", alone), ("mine/output/01-a.log", "mine"), ("mine/report.html", "mine")]);
    let at = |path: &str| folder.path().join(path);
    lab(folder.path(), &["run", "alone.toml", "--out", "mine"]).said(2, &["is in the way: mine holds no result"]);
    for path in ["mine/output/01-a.log", "mine/report.html"] {
        assert_eq!(fs::read_to_string(at(path)).unwrap(), "mine");
    }
    let ran = lab(folder.path(), &["run", "alone.toml", "--out", "kept"]);
    assert_eq!(ran.code, Some(0), "a variant alone is measured: {ran:?}");
    let first = fs::read(at("kept/result.json")).unwrap();
    fs::write(at("kept/output/02-old.log"), "of another variant").unwrap();
    fs::write(at("kept/output/mine.log"), "mine").unwrap();
    let ran = lab(folder.path(), &["run", "alone.toml", "--out", "kept"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_ne!(fs::read(at("kept/result.json")).unwrap(), first);
    assert!(!at("kept/output/02-old.log").exists() && at("kept/output/01-a.log").is_file());
    assert_eq!(fs::read_dir(at("kept")).unwrap().count(), 3, "result, page and output");
    assert_eq!(fs::read_to_string(at("kept/output/mine.log")).unwrap(), "mine");
    // Nothing was compared that could have passed.
    lab(folder.path(), &["run", "alone.toml", "--out", "kept", "--fail-if", "slower"])
        .said(1, &["unknown  --fail-if slower"]);

    let kept = at("kept/result.json");
    let before = fs::read(&kept).unwrap();
    lab(folder.path(), &["report", "kept", "--html", "kept/result.json"])
        .said(2, &["the page would replace kept/result.json"]);
    assert_eq!(fs::read(&kept).unwrap(), before);
}

#[test]
fn a_set_up_that_crashes_does_not_pass() {
    let crashes = "title = \"x\"\ncpus = \"any\"\nblocks = 3\n[load]\nrequests = 20\nwarmup = \"0s\"\n\
                   [[variant]]\nname = \"a\"\nstart = \"{{oroshi}} target --threads 1 --listen unix:{{socket}}\"\n\
                   url = \"unix:{{socket}}\"\n\
                   [[variant]]\nname = \"b\"\nserver = \"b\"\nurl = \"unix:{{socket}}\"\n\
                   [[variant]]\nname = \"c\"\nstart = \"{{oroshi}} target --threads 1 --listen unix:{{socket}}\"\n\
                   url = \"unix:{{socket}}\"\n\
                   [[server]]\nname = \"b\"\nstart = \"sh -c 'exit 3' {{socket}}\"\n";
    let folder = folder(&[("crashes.toml", crashes)]);
    let ran = lab(folder.path(), &["run", "crashes.toml", "--out", "kept", "--fail-if", "slower"]);
    ran.said(1, &["error: b failed"]);
    assert!(!ran.err.contains("passed"), "{ran:?}");
}

#[test]
fn with_one_left_of_two_nothing_was_compared() {
    let text = "title = \"x\"\ncpus = \"any\"\nblocks = 3\nblocks-per-start = \"all\"\n[load]\nrequests = 20\n\
                warmup = \"0s\"\n\
                [[variant]]\nname = \"a\"\nstart = \"{{oroshi}} target --threads 1 --listen unix:{{socket}}\"\n\
                url = \"unix:{{socket}}\"\n\
                [[variant]]\nname = \"b\"\nrequires = [\"surely-not-installed\"]\nurl = \"http://127.0.0.1:1/\"\n";
    let folder = folder(&[("x.toml", text)]);
    let words = ["error: nothing was compared", "b (surely-not-installed is not installed)"];
    lab(folder.path(), &["run", "x.toml"]).said(1, &words);
    let ran = lab(folder.path(), &["run", "x.toml", "--only", "a"]);
    assert_eq!(ran.code, Some(0), "it was asked for alone: {ran:?}");
}

#[test]
fn an_unknown_key_at_the_beginning_is_told_beside_what_is_missing() {
    let text = "titel = \"x\"\n[[variant]]\nname = \"a\"\nurl = \"http://127.0.0.1:1/\"\n";
    let folder = folder(&[("x.toml", text), ("y.toml", &format!("{}title = \"x\"\n{}", &text[..12], &text[12..]))]);
    let unknown = "line 1: titel: there is no such key: did you mean `title`?";
    lab(folder.path(), &["check", "x.toml"]).said(2, &["line 1: `title` is missing", unknown]);
    lab(folder.path(), &["check", "y.toml"]).said(2, &[unknown]);
}

#[test]
fn a_result_that_cannot_be_kept_goes_to_standard_output() {
    let text = "title = \"x\"\ncpus = \"any\"\nblocks = 3\nblocks-per-start = \"all\"\n[load]\nrequests = 20\n\
                warmup = \"0s\"\n\
                [[variant]]\nname = \"a\"\nstart = \"{{oroshi}} target --threads 1 --listen unix:{{socket}}\"\n\
                url = \"unix:{{socket}}\"\n";
    let folder = folder(&[("x.toml", text)]);
    assert_eq!(lab(folder.path(), &["run", "x.toml", "--out", "kept"]).code, Some(0));
    let kept = folder.path().join("kept/result.json");
    let before = fs::read(&kept).unwrap();
    // No file may grow beyond 8 KiB: as on a disk that is full.
    let mut command = Command::new("sh");
    let line = format!("trap '' XFSZ; ulimit -f 16; exec {OROSHI} lab run x.toml --out kept");
    command.current_dir(folder.path()).args(["-c", &line]);
    let ran = to_the_end(command);
    ran.said(1, &["goes to standard output", "cannot be written"]);
    let json = ran.out.lines().find(|line| line.starts_with('{')).unwrap_or_else(|| panic!("{ran:?}"));
    assert_eq!(serde_json::from_str::<LabResult>(json).unwrap().title, "x");
    assert_eq!(fs::read(&kept).unwrap(), before, "the earlier result stays");
}

/// Runs `packaging/training.toml`, which makes the profile of released binaries, with short loads.
#[test]
fn the_training_of_released_binaries_runs() {
    let test = test_name!("the_training_of_released_binaries_runs");
    if need(test, "openssl").is_none() || need(test, "sqlite3").is_none() {
        return;
    }
    let mut text = include_str!("../../../../packaging/training.toml").to_owned();
    for (long, short) in [
        ("warmup = \"100ms\"", "duration = \"200ms\"\nwarmup = \"0s\""),
        ("connections = 50\n", "connections = 4\n"),
        ("connections = 500\n", "connections = 10\n"),
    ] {
        assert!(text.contains(long), "{long}");
        text = text.replace(long, short);
    }
    let folder = folder(&[("training.toml", &text)]);
    let ran = lab(folder.path(), &["run", "training.toml", "--out", "kept"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
}

#[test]
fn list_and_check_run_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let touched = folder.path().join("touched");
    let text = format!(
        "title = \"x\"\n[[variant]]\nname = \"a\"\nrequires = [\"sh -c 'touch {}'\"]\nurl = \"http://127.0.0.1:1/\"\n",
        touched.display()
    );
    fs::create_dir(folder.path().join("experiments")).unwrap();
    fs::write(folder.path().join("experiments/x.toml"), text).unwrap();
    assert_eq!(lab(folder.path(), &["list"]).code, Some(0));
    let ran = lab(folder.path(), &["check", "x"]);
    assert!(ran.code == Some(0) && ran.out.contains("would be tried"), "{ran:?}");
    assert!(!touched.exists());
}

#[test]
fn secrets_are_not_kept() {
    let text = "title = \"x\"\ncpus = \"any\"\nblocks = 3\nblocks-per-start = \"all\"\n[load]\nduration = \"300ms\"\n\
                warmup = \"0s\"\n\
                [[server]]\nname = \"s\"\nstart = \"{{oroshi}} target --threads 1 --listen unix:{{socket}}\"\n\
                env.TOKEN = \"s3cret\"\n\
                [[variant]]\nname = \"ours\"\nserver = \"s\"\nurl = \"unix:{{socket}}\"\n\
                load = { header = \"Authorization: Bearer s3cret\", body = \"s3cret\" }\n\
                [[variant]]\nname = \"theirs\"\nserver = \"s\"\nurl = \"unix:{{socket}}\"\n\
                load = { command = [\"sh\", \"-c\", \"echo 100 $#\", \"sh\", \"-H\", \"Cookie: s3cret\"], figures.rps \
                = '(\\d+) 2' }\n";
    let folder = folder(&[("x.toml", text)]);
    let ran = lab(folder.path(), &["run", "x.toml", "--out", "kept"]);
    let json = fs::read_to_string(folder.path().join("kept/result.json")).unwrap();
    let result: LabResult = serde_json::from_str(&json).unwrap();
    assert!(result.cells[0].variants.iter().all(|variant| variant.failed.is_none()), "it is given to them: {ran:?}");
    assert!(result.source.unwrap().contains("Authorization: ***"));
    let page = fs::read_to_string(folder.path().join("kept/report.html")).unwrap();
    assert!(![&json, &page, &ran.out, &ran.err].iter().any(|text| text.contains("s3cret")), "{ran:?}");
}
