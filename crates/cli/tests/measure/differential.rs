//! wrk, ab and h2load against the same server, which counts for itself: all of them must agree with it.

use std::process::Command;

use crate::common::support::nginx::{self, find};
use crate::common::support::skipped;
use crate::common::{Ran, all_answered, bench, measured, to_the_end};
use oroshi_testkit::nginx::Nginx;

/// A whole number that stands before or behind these words.
#[track_caller]
fn number(text: &str, before: &str, after: &str) -> u64 {
    let line =
        text.lines().find(|line| line.contains(before) && line.contains(after)).unwrap_or_else(|| panic!("{text}"));
    let rest = &line[line.find(before).unwrap() + before.len()..];
    let digits: String = rest.trim_start().chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or_else(|_| panic!("{line}"))
}

/// Runs another load generator, if it is there.
fn other(test: &str, program: &str, args: &[&str]) -> Option<Ran> {
    let Some(path) = find(program) else {
        skipped(test, &format!("{program} is not installed"));
        return None;
    };
    let mut command = Command::new(path);
    command.args(args);
    let ran = to_the_end(command);
    assert_eq!(ran.code, Some(0), "{program}: {ran:?}");
    Some(ran)
}

#[test]
fn a_number_of_requests_is_that_number_for_everybody() {
    let test = "a_number_of_requests_is_that_number_for_everybody";
    let Some(mut nginx) = nginx::start(test, 1) else { return };
    let url = nginx.http.clone();
    let mut counted = nginx.requests();
    let mut since = |nginx: &mut Nginx| {
        let now = nginx.requests();
        now - std::mem::replace(&mut counted, now)
    };

    all_answered(2000, &["-c", "8", "-t", "2", &url]);
    assert_eq!(since(&mut nginx), 2000, "oroshi");
    all_answered(500, &["-c", "8", "--close", &url]);
    assert_eq!(since(&mut nginx), 500, "oroshi --close");
    let unix = nginx.unix.to_str().unwrap().to_owned();
    all_answered(2000, &["-c", "8", "-P", &unix, "http://localhost/"]);
    assert_eq!(since(&mut nginx), 2000, "oroshi -P");

    if let Some(ab) = other(test, "ab", &["-n", "2000", "-c", "8", "-k", &url]) {
        assert_eq!(number(&ab.out, "Complete requests:", ""), 2000);
        assert_eq!(since(&mut nginx), 2000, "ab");
    }
    if let Some(h2load) = other(test, "h2load", &["--h1", "-n", "2000", "-c", "8", "-t", "2", &url]) {
        assert_eq!(number(&h2load.out, "requests:", "2000 succeeded"), 2000);
        assert_eq!(since(&mut nginx), 2000, "h2load");
    }
}

#[test]
fn a_time_is_what_the_server_counted_but_for_what_was_on_the_wire() {
    let test = "a_time_is_what_the_server_counted_but_for_what_was_on_the_wire";
    let Some(mut nginx) = nginx::start(test, 1) else { return };
    let flags = ["-t2", "-c8", "-d1s", &nginx.http.clone()];

    let before = nginx.requests();
    let record = measured(&flags);
    let (r, counted) = (record.requests, nginx.requests() - before);
    assert!((r.completed..=r.completed + r.cut_off).contains(&counted), "{counted} of {r:?}");
    assert!(r.cut_off <= 8 && record.errors == 0, "{r:?}");

    let before = nginx.requests();
    let text = bench(&[&["--format", "wrk"], &flags[..]].concat()).out;
    let ours = number(&text, "", " requests in ");
    let counted = nginx.requests() - before;
    assert!((ours..=ours + 8).contains(&counted), "oroshi says {ours}, nginx {counted}");

    let before = nginx.requests();
    if let Some(wrk) = other(test, "wrk", &flags) {
        let theirs = number(&wrk.out, "", " requests in ");
        let counted = nginx.requests() - before;
        assert!((theirs..=theirs + 8).contains(&counted), "wrk says {theirs}, nginx {counted}");
    }
}
