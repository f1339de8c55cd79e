//! `oroshi fetch` where things go wrong: failures by name, retries, interrupted lists, few descriptors, a full disk.

use std::fs;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::common::support::nginx::find;
use crate::common::support::peer::{Conn, Peer, Place, Port};
use crate::common::support::{OK, skipped, wait_until};
use crate::common::{OROSHI, Target, to_the_end, to_the_end_with_input};
use crate::fetching::{Running, each, fetch, fetch_list, only, records, records_in};
use rustix::process::Signal;
use serde_json::{Value, json};

/// A peer that answers with the statuses in turn, the last one from then on.
fn statuses(statuses: &'static [u16], more: &'static str) -> Peer {
    Peer::answering(move |request| {
        let status = statuses[(request.number as usize).min(statuses.len() - 1)];
        format!("HTTP/1.1 {status} -\r\n{more}Content-Length: 0\r\n\r\n").into()
    })
}

#[test]
fn every_failure_has_its_phase_and_its_name() {
    let silent = Peer::start(Place::Tcp, Conn::stall);
    let garbage = Peer::answering(|_| b"220 mail.example ESMTP\r\n".to_vec());
    let slow = Peer::start(Place::Tcp, |mut conn: Conn| {
        conn.request();
        conn.send("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello");
        conn.stall();
    });
    let bomb =
        Peer::answering(|_| format!("HTTP/1.1 200 OK\r\nContent-Length: 9000\r\n\r\n{}", "x".repeat(9000)).into());
    let port = Port::reserve();
    for (args, phase, kind, retry_safe) in [
        (&[&*port.url()][..], "connect", "connect-refused", true),
        (&["http://nobody.invalid/"], "dns", "dns", true),
        (&["--first-byte-timeout", "50ms", &silent.url], "first-byte", "first-byte-timeout", true),
        (&["--timeout", "50ms", &silent.url], "total", "total-timeout", true),
        (
            &["--between-bytes-timeout", "50ms", "-X", "POST", &slow.url],
            "between-bytes",
            "between-bytes-timeout",
            false,
        ),
        (&[&garbage.url], "first-byte", "parse", true),
        (&["--max-body", "1k", &bomb.url], "between-bytes", "body-too-large", true),
    ] {
        let record = only(&fetch(args), 1);
        let error = &record["error"];
        assert_eq!((&error["phase"], &error["kind"]), (&json!(phase), &json!(kind)), "{args:?}: {record}");
        assert_eq!((&error["retry_safe"], &record["ok"]), (&json!(retry_safe), &json!(false)), "{record}");
        assert!(!error["message"].as_str().unwrap().is_empty() && record["timings"].is_object(), "{record}");
    }
    let missing = statuses(&[404], "");
    let ran = fetch(&[&missing.url, &port.url()]);
    assert!(ran.err.contains("Failed      1 x connect-refused (connect), 1 x status 404"), "{ran:?}");
}

#[test]
fn a_bad_line_costs_itself_alone() {
    let peer = Peer::answering(|_| OK.into());
    let list = format!("{0}\nnowhere\n{{\"url\":7}}\nhttp://me:secret@h/\n{0}\n", peer.url);
    let ran = fetch_list(&list, &[]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let records = records(&ran.out);
    assert_eq!(each(&records, "ok"), [true, false, false, false, true]);
    let kinds: Vec<&Value> = records[1..4].iter().map(|record| &record["error"]["kind"]).collect();
    assert_eq!(kinds, ["request", "line", "request"]);
    assert_eq!(each(&records, "method"), [&json!("GET"), &json!("GET"), &Value::Null, &json!("GET"), &json!("GET")]);
    assert_eq!((&records[1]["url"], &records[2]["url"]), (&json!("nowhere"), &Value::Null));
    let message = |at: usize| records[at]["error"]["message"].as_str().unwrap();
    assert!(message(1).contains("did you mean http://nowhere/") && message(2).contains("no request in JSON"));
    assert!(!message(3).contains("secret"), "{}", message(3));
}

/// It counted as an attempt, with a time at which it began.
#[test]
fn a_request_that_cannot_be_sent_was_no_attempt() {
    let peer = Peer::answering(|_| OK.into());
    let list = format!(r#"{{"url":"{}","headers":{{"A":"b\u0001"}}}}"#, peer.url);
    let record = only(&fetch_list(&list, &["--retry", "2", "--retry-wait", "1ms"]), 1);
    assert_eq!((&record["error"]["kind"], &record["error"]["phase"]), (&json!("request"), &json!("request")));
    assert_eq!((&record["attempts"], &record["redirects"]), (&json!(0), &json!(0)), "{record}");
    assert_eq!((&record["started_unix_s"], &record["timings"]), (&Value::Null, &Value::Null), "{record}");
    assert_eq!(peer.seen().requests, 0);
}

#[test]
fn what_may_fare_better_is_tried_again() {
    let retry = ["--retry", "3", "--retry-wait", "1ms"];
    let run = |args: &[&str], code| only(&fetch(&[&retry, args].concat()), code);
    let record = run(&[&statuses(&[503, 500, 200], "Retry-After: 0\r\n").url], 0);
    assert_eq!((&record["attempts"], &record["status"]), (&json!(3), &json!(200)));
    let record = run(&[&statuses(&[503], "").url], 1);
    assert_eq!((&record["attempts"], &record["status"], &record["error"]), (&json!(4), &json!(503), &Value::Null));
    for (method, status, attempts) in [("GET", 404, 1), ("POST", 503, 1), ("POST", 429, 4), ("PUT", 503, 4)] {
        let peer = Peer::answering(move |_| format!("HTTP/1.1 {status} -\r\nContent-Length: 0\r\n\r\n").into());
        assert_eq!(run(&["-X", method, &peer.url], 1)["attempts"], attempts, "{method} {status}");
    }
    assert_eq!(run(&[&statuses(&[503, 200], "Retry-After: 3600\r\n").url], 1)["attempts"], 1);
    assert_eq!(run(&[&Port::reserve().url()], 1)["attempts"], 4);
    // A body that is cut is begun anew, and its file too.
    let peer = Peer::start(Place::Tcp, |mut conn: Conn| {
        let Some(request) = conn.request() else { return };
        conn.send("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello");
        if request.number > 0 {
            conn.send("world");
        }
        conn.close_gently();
    });
    let bodies = tempfile::tempdir().unwrap();
    let record = run(&["--bodies", bodies.path().to_str().unwrap(), &peer.url], 0);
    assert_eq!((&record["attempts"], &record["body_bytes"]), (&json!(2), &json!(10)));
    let body = fs::read_to_string(bodies.path().join(record["body_file"].as_str().unwrap())).unwrap();
    assert_eq!(body, "helloworld");
}

#[test]
fn a_wait_for_the_next_attempt_holds_up_nobody() {
    let free = Arc::new(AtomicBool::new(false));
    let opens = Arc::clone(&free);
    // The first is answered well only when the second has been asked for.
    let peer = Peer::answering(move |request| {
        if request.target == "/second" {
            opens.store(true, Ordering::SeqCst);
        }
        let status = if opens.load(Ordering::SeqCst) { 200 } else { 503 };
        format!("HTTP/1.1 {status} -\r\nContent-Length: 0\r\n\r\n").into()
    });
    let list = format!("{0}first\n{0}second\n", peer.url);
    let ran = fetch_list(&list, &["-c", "1", "--retry", "20", "--retry-wait", "1ms"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(free.load(Ordering::SeqCst));
}

#[test]
fn an_interrupted_list_is_gone_on_with() {
    let well = Arc::new(AtomicBool::new(false));
    let now = Arc::clone(&well);
    let peer = Peer::answering(move |request| {
        let status = match &*request.target {
            "/gone" => 410,
            "/busy" if !now.load(Ordering::SeqCst) => 503,
            _ => 200,
        };
        format!("HTTP/1.1 {status} -\r\nContent-Length: 1\r\n\r\nx").into()
    });
    let folder = tempfile::tempdir().unwrap();
    let (output, bodies) = (folder.path().join("out"), folder.path().join("bodies"));
    let port = Port::reserve();
    let list = |last: &str| format!("{0}a\n\n{0}busy\n{0}gone\n{1}\nnowhere\n{0}{last}\n", peer.url, port.url());
    let flags = ["-o", output.to_str().unwrap(), "--bodies", bodies.to_str().unwrap(), "-c", "1"];
    let run = |list: &str, more: &[&str]| fetch_list(list, &[&flags, more].concat());
    let asked = |target: &str| peer.seen().targets.get(target).copied().unwrap_or(0);

    // With --resume from the beginning: then the same command does for every run.
    assert_eq!(run(&list("last"), &["--resume"]).code, Some(1));
    let first = fs::read_to_string(&output).unwrap();
    assert_eq!(records(&first).len(), 6);

    run(&list("last"), &[]).said(2, &["is not empty", "--resume"]);
    assert_eq!(fs::read_to_string(&output).unwrap(), first, "it is as it was");

    // The last line was being written when the machine went down.
    let cut = first.len() - 40;
    fs::write(&output, &first[..cut]).unwrap();
    well.store(true, Ordering::SeqCst);
    let ran = run(&list("last"), &["--resume"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let whole = |target| asked(target);
    assert_eq!((whole("/a"), whole("/gone"), whole("/busy"), whole("/last")), (1, 1, 2, 2));
    assert!(ran.err.contains("Skipped     2 done before, 1 of them with a status of 400 or more"), "{ran:?}");
    let again = fs::read_to_string(&output).unwrap();
    assert!(again.starts_with(&first[..first[..cut].rfind('\n').unwrap() + 1]));
    assert_eq!(each(&records(&again), "n"), [1, 3, 3, 4, 5, 5, 6, 6, 7], "each line of its own");

    // What was done is done, but the list is another one now.
    let ran = run(&list("other"), &["--resume"]);
    assert!(ran.err.contains("Skipped     3 done before") && ran.err.contains("Changed     1 line"), "{ran:?}");
    assert_eq!((asked("/other"), asked("/busy")), (1, 2));

    fs::write(&output, "http://h/\n").unwrap();
    run(&list("last"), &["--resume"]).said(2, &["line 1 is no record", "next: "]);
}

#[test]
fn two_runs_cannot_write_one_file() {
    let gate = Arc::new(AtomicBool::new(false));
    let opens = Arc::clone(&gate);
    let peer = Peer::answering(move |_| {
        wait_until("the gate opens", || opens.load(Ordering::SeqCst));
        OK.into()
    });
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("out");
    let out = output.to_str().unwrap();
    let mut running = Running::start(&["-o", out, &peer.url]);
    peer.wait_for("the request", |seen| seen.requests == 1);
    for more in [&[][..], &["--resume"]] {
        let ran = fetch(&[&["-o", out, &peer.url][..], more].concat());
        ran.said(2, &["another run of oroshi fetch writes", out, "next: wait until that run has ended"]);
    }
    gate.store(true, Ordering::SeqCst);
    assert_eq!((running.end(), peer.seen().requests), (Some(0), 1));
    assert_eq!(records_in(&output).len(), 1);
    assert_eq!(fetch(&["-o", out, &peer.url, "--resume"]).code, Some(0), "the lock has ended with the run");
}

#[test]
fn only_a_file_can_be_gone_on_with() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, 0o600.into()).unwrap();
    fetch(&["-o", pipe.to_str().unwrap(), "--resume", "http://h/"])
        .said(2, &["--resume: ", "/pipe", "no regular file", "next: name the output of an earlier run"]);
}

/// Records look like requests of their own: the run would read what it writes.
#[test]
fn the_list_cannot_be_the_output_by_whatever_name() {
    let peer = Peer::answering(|_| OK.into());
    let folder = tempfile::tempdir().unwrap();
    let (output, link) = (folder.path().join("out"), folder.path().join("link"));
    let (out, linked) = (output.to_str().unwrap(), link.to_str().unwrap());
    assert_eq!(fetch(&["-o", out, &peer.url]).code, Some(0));
    fs::hard_link(&output, &link).unwrap();
    let before = fs::read_to_string(&output).unwrap();
    let words = &["--output: ", "/out is the list ", " too: expected another file"];
    for list in [out, linked] {
        fetch(&["-o", out, "--resume", "-i", list]).said(2, words);
    }
    let mut command = Command::new(OROSHI);
    command.args(["fetch", "-o", out, "--resume", "-"]).stdin(fs::File::open(&output).unwrap());
    to_the_end_with_input(command).said(2, words);
    assert_eq!(fs::read_to_string(&output).unwrap(), before, "it is as it was");
    // What is empty so far is no better.
    fs::write(&output, "").unwrap();
    fetch(&["-o", out, "-i", linked]).said(2, words);
    // A device is no file: it may be both.
    fetch(&["-q", "-o", "/dev/null", "-i", "/dev/null"]).said(0, &[]);
    assert_eq!(peer.seen().requests, 1);
}

#[test]
fn a_line_whose_body_is_not_there_is_not_done() {
    let peer = Peer::answering(|_| OK.into());
    let folder = tempfile::tempdir().unwrap();
    let (output, bodies) = (folder.path().join("out"), folder.path().join("bodies"));
    let list = format!("{0}a\n{0}b\n", peer.url);
    let run = |more: &[&str]| {
        let ran = fetch_list(&list, &[&["-o", output.to_str().unwrap(), "--resume"], more].concat());
        assert_eq!(ran.code, Some(0), "{ran:?}");
        peer.seen().requests
    };
    let with_bodies = ["--bodies", bodies.to_str().unwrap()];
    assert_eq!(run(&[]), 2);
    assert_eq!((run(&with_bodies), fs::read_dir(&bodies).unwrap().count()), (4, 2), "added later");
    fs::remove_file(fs::read_dir(&bodies).unwrap().next().unwrap().unwrap().path()).unwrap();
    assert_eq!((run(&with_bodies), fs::read_dir(&bodies).unwrap().count()), (5, 2), "removed");
    assert_eq!((run(&with_bodies), run(&[])), (5, 5));
}

#[test]
fn the_pages_recipe_gives_the_last_record_of_each_line() {
    let test = "the_pages_recipe_gives_the_last_record_of_each_line";
    let Some(jq) = find("jq") else { return skipped(test, "jq is not installed") };
    let page = include_str!("../../../../docs/fetch.md");
    let recipe = page.split("jq -sc '").nth(1).and_then(|rest| rest.split('\'').next()).unwrap();
    let peer = statuses(&[503, 200, 200], "");
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("out");
    let list = format!("{0}a\n{0}b\n", peer.url);
    for code in [1, 0] {
        let ran = fetch_list(&list, &["-c", "1", "-o", output.to_str().unwrap(), "--resume"]);
        assert_eq!(ran.code, Some(code), "{ran:?}");
    }
    assert_eq!(each(&records_in(&output), "status"), [503, 200, 200]);
    let mut command = Command::new(jq);
    command.args(["-sc", recipe, output.to_str().unwrap()]);
    let last = records(&to_the_end(command).out);
    assert_eq!((each(&last, "n"), each(&last, "status")), (vec![&json!(1), &json!(2)], vec![&json!(200), &json!(200)]));
}

#[test]
fn killed_at_any_moment_the_output_is_a_list_of_records_and_the_rest_is_fetched() {
    const N: u64 = 300;
    let peer = Peer::answering(|_| OK.into());
    let folder = tempfile::tempdir().unwrap();
    let (list, output) = (folder.path().join("list"), folder.path().join("out"));
    fs::write(&list, (0..N).map(|i| format!("{}{i}\n", peer.url)).collect::<String>()).unwrap();
    let (list, out) = (list.to_str().unwrap(), output.to_str().unwrap());
    let mut running = Running::start(&["-o", out, "-i", list, "-c", "3"]);
    peer.wait_for("some of it", |seen| seen.requests > 50);
    running.signal(Signal::KILL);
    running.end();
    let before = peer.seen().requests;
    let ran = fetch(&["-o", out, "-i", list, "--resume"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let records = records_in(&output);
    assert_eq!(each(&records, "n"), (1..=N).collect::<Vec<_>>(), "each line once");
    assert!(peer.seen().requests <= N + before, "{:?}", peer.seen().requests);
}

#[test]
fn a_second_ctrl_c_waits_for_nobody() {
    let peer = Peer::start(Place::Tcp, Conn::stall);
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("out");
    let mut running = Running::start(&["-o", output.to_str().unwrap(), "-"]);
    running.give(&format!("{}\n", peer.url));
    peer.wait_for("the connection", |seen| seen.accepted == 1);
    running.signal(Signal::INT);
    // The two may reach it as one, if they come together.
    wait_until("it has ended", || {
        let _ = running.child.try_wait().unwrap().is_none().then(|| running.signal(Signal::INT));
        running.child.try_wait().unwrap().is_some()
    });
    assert_eq!(running.end(), Some(130));
    assert_eq!(fs::read_to_string(&output).unwrap(), "", "nothing has come of it");
}

#[test]
fn an_output_that_takes_nothing_ends_the_work() {
    let peer = Peer::answering(|_| OK.into());
    let ran = fetch(&["-o", "/dev/full", &peer.url]);
    ran.said(1, &["/dev/full cannot be written", "No space", "next: name another place"]);
    assert!(!ran.err.contains("what has a record is done"), "nothing has: {ran:?}");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    fetch(&["--bodies", file.to_str().unwrap(), &peer.url]).said(1, &["cannot be written", "file"]);
    // A folder where the body's file should be.
    let name = format!("00000001-{}", peer.url.trim_start_matches("http://").trim_end_matches('/').replace(':', "_"));
    fs::create_dir_all(folder.path().join("bodies").join(&name).join("x")).unwrap();
    let bodies = folder.path().join("bodies");
    fetch(&["--bodies", bodies.to_str().unwrap(), &peer.url]).said(1, &["the body of", &peer.url, "next: "]);
    assert_eq!(fs::read_dir(&bodies).unwrap().count(), 1, "nothing unfinished is left");
    // The same when something has been done.
    fs::rename(bodies.join(&name), bodies.join(name.replacen('1', "2", 1))).unwrap();
    let ran = fetch(&["-c", "1", "--bodies", bodies.to_str().unwrap(), &peer.url, &peer.url]);
    ran.said(1, &["the body of", "next: what has a record is done"]);
    assert_eq!(records(&ran.out).len(), 1);
}

#[test]
fn beyond_the_descriptors_requests_wait() {
    const N: usize = 400;
    let test = "beyond_the_descriptors_requests_wait";
    let Some(setpriv) = find("setpriv") else { return skipped(test, "setpriv is not installed") };
    let server = Target::start(&["--delay", "1ms"]);
    let folder = tempfile::tempdir().unwrap();
    let (list, bodies) = (folder.path().join("list"), folder.path().join("bodies"));
    fs::write(&list, (0..N).map(|i| format!("{}{i}\n", server.url())).collect::<String>()).unwrap();
    // The superuser could raise the hard limit.
    let limited = r#"ulimit -n 200; exec "$@""#;
    for more in [&["--bodies", bodies.to_str().unwrap()][..], &["--burst"]] {
        let mut command = Command::new(&setpriv);
        command.args(["--bounding-set=-sys_resource", "--inh-caps=-sys_resource", "sh", "-c", limited, "sh"]);
        command.args([OROSHI, "fetch", "-c", &N.to_string(), "-i", list.to_str().unwrap()]).args(more);
        let ran = to_the_end(command);
        if ran.err.contains("setpriv:") {
            return skipped(test, "setpriv may not take a capability away");
        }
        assert_eq!(ran.code, Some(0), "{}", ran.err);
        assert!(ran.err.contains("warning: ") && ran.err.contains("ulimit -Hn"), "{}", ran.err);
        assert_eq!(records(&ran.out).len(), N);
    }
    assert_eq!(fs::read_dir(&bodies).unwrap().count(), N);
    assert_eq!(server.stop().0, 2 * N as u64);
}

#[test]
fn requests_that_wait_for_their_host_end_with_ctrl_c_without_a_record() {
    let gate = Arc::new(AtomicU64::new(0));
    let opens = Arc::clone(&gate);
    let peer = Peer::answering(move |_| {
        wait_until("the gate opens", || opens.load(Ordering::SeqCst) > 0);
        OK.into()
    });
    let mut running = Running::start(&["-c", "4", "--per-host", "1", "-"]);
    running.give(&format!("{}\n", peer.url).repeat(4));
    peer.wait_for("the first", |seen| seen.requests == 1);
    running.signal(Signal::TERM);
    gate.store(1, Ordering::SeqCst);
    let mut out = String::new();
    std::io::Read::read_to_string(&mut running.out, &mut out).unwrap();
    assert_eq!(running.end(), Some(130));
    assert_eq!(records(&out).len() as u64, peer.seen().requests, "{out}");
}
