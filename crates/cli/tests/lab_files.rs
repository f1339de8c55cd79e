//! `oroshi lab` with files: what it says of them, what it does with them, what it leaves behind.

mod common;

use std::fs;
use std::path::Path;
use std::process::Command;

use common::{OROSHI, Ran, to_the_end};
use oroshi_lab::LabResult;
use oroshi_stats::compare::Verdict;
use tempfile::TempDir;

/// `oroshi lab` in a folder.
fn lab(folder: &Path, args: &[&str]) -> Ran {
    let mut command = Command::new(OROSHI);
    command.current_dir(folder).arg("lab").args(args);
    to_the_end(command)
}

fn folder(files: &[(&str, &str)]) -> TempDir {
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

/// The page's example, as its reader would copy it.
#[test]
fn the_documented_example_is_an_experiment() {
    let page = include_str!("../../../docs/lab.md");
    let example = page.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
    let folder = folder(&[("workers.toml", example)]);
    let ran = lab(folder.path(), &["check", "workers.toml"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.out.starts_with("Two workers or one?\n"), "{ran:?}");
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

#[test]
fn what_cannot_be_done_has_its_exit_code() {
    let failing = "title = \"x\"\ncpus = \"any\"\n[[variant]]\nname = \"a\"\nstart = \"sh -c 'echo no such database; exit 3' {{port}}\"\n\
                   url = \"http://127.0.0.1:{{port}}/\"\n";
    let missing = "title = \"x\"\n[[variant]]\nname = \"a\"\nrequires = [\"surely-not-installed\"]\nurl = \"http://127.0.0.1:1/\"\n";
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
        (&["run", "failing.toml", "--out", "failing.toml"], 1, &["failing.toml/output cannot be written"]),
        (&["report", "not-here.json"], 2, &["not-here.json cannot be read"]),
        (&["report", "record.json"], 2, &["record.json is no result of an experiment"]),
        (&["check"], 2, &["FILE|NAME"]),
    ] {
        lab(folder.path(), args).said(code, words);
    }
    let ran = lab(folder.path(), &["run", "failing.toml", "--out", "kept"]);
    ran.said(1, &["nothing could be compared: variants failed"]);
    assert!(ran.out.contains("no such database"), "what the server said is in the report: {ran:?}");
    assert!(folder.path().join("kept/result.json").is_file() && folder.path().join("kept/report.html").is_file());
    // Into the same folder again: what is there of the last time is replaced.
    let log = folder.path().join("kept/output/old.log");
    fs::write(&log, "old").unwrap();
    lab(folder.path(), &["run", "failing.toml", "--out", "kept"]).said(1, &["variants failed"]);
    assert!(!log.exists());
}
