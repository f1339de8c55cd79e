//! HTML reports from end to end: `bench --report`, and `oroshi report` on what was saved.

use std::fs;
use std::path::Path;

use crate::common::support::hub::{Hub, Settings};
use crate::common::{Target, bench, oroshi};
use oroshi_testkit::chromium as browser;
use oroshi_words::units;

/// A record from before heat maps and samples of the server.
const OLD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../bench/tests/records/oroshi-bench-1.0.json");

#[test]
fn a_run_is_drawn_when_it_is_made_and_again_from_what_was_saved() {
    let server = Target::start(&[]);
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (json, page) = (path("first.json"), path("page.html"));
    let outputs = ["--format", "json", "-o", &json, "--report", &page];
    let ran = bench(&[&outputs[..], &["-c", "3", "-d", "400ms", "-H", "X-Key: s3cret", server.url()]].concat());
    assert_eq!((ran.code, &*ran.out, &*ran.err), (Some(0), "", ""));
    let record: oroshi_bench::Record = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    let drawn = fs::read_to_string(&page).unwrap();
    let rate = units::number(record.rates.requests_per_s);
    assert!(
        drawn.contains(&rate) && drawn.contains(record.grade.bottleneck.name()) && !drawn.contains("s3cret"),
        "{rate}"
    );

    oroshi(&["report", &json]).said(0, &["wrote", "first.html"]);
    assert_eq!(fs::read_to_string(path("first.html")).unwrap(), drawn, "the same page");

    let both = path("both.html");
    oroshi(&["report", &json, OLD, "--html", &both]).said(0, &["both.html"]);
    let both = fs::read_to_string(both).unwrap();
    assert!(both.contains(">first<") && both.contains(">oroshi-bench-1.0<"), "each by its name");

    let Some(program) = browser::need("pages") else { return };
    let seen = browser::look(program, &[(&drawn, 390), (&both, 390)], false, &["#time .heat", "#latency .plot .mark"]);
    assert_eq!(seen.console, Vec::<String>::new());
    for page in &seen.pages {
        assert_eq!(
            (&page["overflow"], &page["loaded"], page["overlapping"].as_array().map(Vec::len)),
            (&0.into(), &0.into(), Some(0))
        );
        assert!(browser::count(page, "#time .heat") > 0 && browser::count(page, "#latency .plot .mark") > 0);
        assert!(page["text"].as_str().unwrap().contains(&rate));
    }
}

#[test]
fn subscriptions_have_a_page_too() {
    let hub = Hub::start(Settings::default());
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (json, page) = (path("hub.json"), path("page.html"));
    for mode in ["ws", "sse"] {
        let publish = hub.publish("publish");
        let load =
            ["--mode", mode, "-c", "5", "-n", "20", "--watch", "none", "-H", "X-Key: s3cret", "--publish", &publish];
        let outputs = ["--format", "json", "-o", &json, "--report", &page];
        let ran = bench(&[&load[..], &outputs, &[&hub.url(mode)]].concat());
        assert_eq!((ran.code, &*ran.out), (Some(0), ""), "{ran:?}");
        let drawn = fs::read_to_string(&page).unwrap();
        for words in ["deliveries/s", "5 subscriptions", "all 100", "Faults: none", "from publishing to delivery"] {
            assert!(drawn.contains(words), "{mode}: `{words}`: {drawn}");
        }
        assert!(!drawn.contains("s3cret"));
        oroshi(&["report", &json]).said(0, &["wrote", "hub.html"]);
        assert_eq!(fs::read_to_string(path("hub.html")).unwrap(), drawn, "the same page");
    }
    let drawn = fs::read_to_string(&page).unwrap();
    let Some(program) = browser::need("pages") else { return };
    let seen = browser::look(program, &[(&drawn, 390), (&drawn, 1280)], false, &["#latency .plot .mark"]);
    assert_eq!(seen.console, Vec::<String>::new());
    for page in &seen.pages {
        assert_eq!((&page["overflow"], &page["loaded"]), (&0.into(), &0.into()));
        assert!(browser::count(page, "#latency .plot .mark") > 0);
    }
}

#[test]
fn several_results_are_drawn_beside_what_is_there_and_not_over_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    for name in ["a.json", "b.json"] {
        fs::copy(OLD, path(name)).unwrap();
    }
    fs::write(path("a.html"), "my notes").unwrap();
    let (a, b) = (path("a.json"), path("b.json"));
    let (a, b) = (a.to_str().unwrap(), b.to_str().unwrap());
    for _ in 0..2 {
        oroshi(&["report", a, b]).said(0, &["wrote", "a-b.html"]);
    }
    oroshi(&["report", a]).said(2, &["a.html exists and is no page of oroshi", "next: name the page with --html FILE"]);
    assert_eq!(fs::read_to_string(path("a.html")).unwrap(), "my notes");
}

#[test]
fn a_record_of_an_earlier_version_has_a_page() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("old.html");
    oroshi(&["report", OLD, "--html", page.to_str().unwrap()]).said(0, &["old.html"]);
    let text = fs::read_to_string(page).unwrap();
    assert!(text.contains("Latency over time") && !text.contains("class=\"heat"), "curves in place of a heat map");
}

#[test]
fn what_cannot_be_drawn_is_named_with_what_was_expected() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let copy = file("copy.html", &fs::read_to_string(OLD).unwrap());
    for (words, expected) in [
        (vec!["report", "/nonexistent/a.json"], vec!["/nonexistent/a.json", "cannot be read"]),
        (vec!["report", &file("text.json", "not JSON")], vec!["text.json", "no JSON", "expected a result"]),
        (vec!["report", &file("other.json", "{\"schema\":\"k6\"}")], vec!["other.json", "no schema of ours", "next:"]),
        (vec!["report", &copy], vec!["the page would replace", "copy.html", "--html"]),
    ] {
        oroshi(&words).said(2, &expected);
    }
    assert_eq!(fs::read_to_string(&copy).unwrap(), fs::read_to_string(OLD).unwrap(), "it is still what it was");
    assert!(!Path::new(&folder.path().join("text.html")).exists());
    oroshi(&["report", OLD, "--html", "/nonexistent/page.html"]).said(1, &["/nonexistent/page.html"]);
    bench(&["--report", "/nonexistent/page.html", "-n", "1", "http://127.0.0.1:1/"])
        .said(1, &["/nonexistent/page.html"]);
}

/// The name of a grade reached the terminal as it was, and a device was read without end.
#[test]
fn what_a_file_holds_neither_steers_the_terminal_nor_fills_the_memory() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("evil.json").to_str().unwrap().to_owned();
    let mut record: serde_json::Value = serde_json::from_str(&fs::read_to_string(OLD).unwrap()).unwrap();
    record["grade"]["bottleneck"] = "\u{1b}]0;mine\u{7}".into();
    fs::write(&file, record.to_string()).unwrap();
    let server = Target::start(&[]);
    for args in [&["report", &file][..], &["compare", "--baseline", &file, server.url()]] {
        let ran = oroshi(args);
        ran.said(2, &["\\u{1b}]0;mine\\u{7}"]);
        assert!(!ran.err.contains(['\u{1b}', '\u{7}']), "{ran:?}");
    }
    oroshi(&["report", "/dev/zero"]).said(2, &["/dev/zero cannot be read", "holds more than 256 MiB"]);
    oroshi(&["compare", "--baseline", "/dev/zero", server.url()]).said(2, &["/dev/zero", "256 MiB"]);
    // Nor is what stands where the page is to go read to its end.
    let zero = folder.path().join("zero.html");
    std::os::unix::fs::symlink("/dev/zero", &zero).unwrap();
    record["grade"]["bottleneck"] = "latency-bound".into();
    let file = folder.path().join("zero.json");
    fs::write(&file, record.to_string()).unwrap();
    oroshi(&["report", file.to_str().unwrap()]).said(2, &["zero.html exists and is no page of oroshi"]);
}
