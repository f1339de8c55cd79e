//! What the command says of a run: the report in each of its formats, thresholds, logs, and a run that is ended early.

use std::process::{Command, Stdio};

use crate::common::support::peer::{Peer, Place, Port};
use crate::common::support::{OK, nginx, skipped};
use crate::common::{OROSHI, Ran, Recorded as _, answering, bench, measured, to_the_end};
use oroshi_bench::Record;
use oroshi_stats::Latency;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::pipe::fcntl_setpipe_size;
use rustix::process::{Pid, Signal, kill_process};

#[test]
fn json_is_the_record_with_its_schema() {
    let peer = answering();
    let ran = bench(&["--format", "json", "-n", "50", "-c", "2", "-H", "Authorization: Bearer s3cret", &peer.url]);
    ran.said(0, &[]);
    assert_eq!(ran.err, "", "nothing but the report, where nothing is wrong");
    let value: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(value["schema"], "oroshi-bench/1.8");
    assert_eq!(value["requests"]["completed"], 50);
    assert_eq!(value["environment"]["command"][1], "bench");
    assert!(!ran.out.contains("s3cret"), "what may be secret is not recorded");
    let record = ran.record();
    assert_eq!(serde_json::to_value(&record).unwrap(), value, "every field is one of the record's");
}

#[test]
fn the_report_goes_where_it_is_told() {
    let peer = answering();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("report.json");
    let flags = ["--format", "json", "-n", "20", "-o", file.to_str().unwrap(), &peer.url];
    let ran = bench(&flags);
    assert_eq!((ran.code, &*ran.out, &*ran.err), (Some(0), "", ""));
    let record: Record = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(record.requests.completed, 20);
}

#[test]
fn a_report_that_cannot_be_written_goes_to_standard_output_and_the_earlier_one_stays() {
    let peer = answering();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keep.json");
    std::fs::write(&file, "an earlier report").unwrap();
    // No file may grow: as on a disk that is full.
    let mut command = Command::new("sh");
    let line =
        format!("trap '' XFSZ; ulimit -f 0; exec {} bench --format json -n 20 -o keep.json {}", OROSHI, peer.url);
    command.current_dir(folder.path()).args(["-c", &line]);
    let ran = to_the_end(command);
    ran.said(1, &["the report cannot be written to keep.json", "it goes to standard output"]);
    assert_eq!(ran.record().requests.completed, 20);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "an earlier report");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left behind");
    let ran = bench(&["--format", "json", "-n", "20", "-o", "/dev/full", &peer.url]);
    ran.said(1, &["cannot be written to /dev/full"]);
    assert_eq!(ran.record().requests.completed, 20);
}

#[test]
fn the_text_says_what_was_counted() {
    let peer = Peer::answering(|request| match request.number % 5 {
        0 => b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n".to_vec(),
        _ => OK.to_vec(),
    });
    let ran = bench(&["-n", "100", "-c", "4", "-t", "1", "-L", &peer.url]);
    ran.said(0, &[]);
    for words in
        ["100 requests", "4 connections on 1 thread", "closed loop", "100 answered", "20", "status", "4 of 4 alive"]
    {
        assert!(ran.out.contains(words), "`{words}`: {}", ran.out);
    }
    for name in ["Throughput", "Requests", "Latency", "Connections", "Server", "Generator", "Machine", "Bottleneck"] {
        assert!(ran.out.lines().any(|line| line.starts_with(name)), "{name}: {}", ran.out);
    }
    assert!(!ran.out.contains('\x1b'), "colours are for terminals");
}

#[test]
fn a_threshold_that_does_not_hold_is_3_and_named() {
    let peer = answering();
    let run = |conditions: &[&str]| {
        let flags: Vec<&str> = conditions.iter().flat_map(|condition| ["--fail-if", condition]).collect();
        bench(&[&["--format", "json", "-n", "50"], &flags[..], &[&peer.url]].concat())
    };
    let lines = |ran: &Ran| ran.err.lines().map(|l| l.split(':').next().unwrap().to_owned()).collect::<Vec<_>>();

    let passed = run(&["errors>0", "p99>60s"]);
    assert_eq!(
        (passed.code, lines(&passed)),
        (Some(0), vec!["passed  --fail-if errors>0".into(), "passed  --fail-if p99>60s".into()])
    );
    let failed = run(&["errors>0", "rps<1000M", "p50>1ns", "timeout>0"]);
    let words = [
        "passed  --fail-if errors>0",
        "FAILED  --fail-if rps<1000M",
        "FAILED  --fail-if p50>1ns",
        "passed  --fail-if timeout>0",
    ];
    assert_eq!((failed.code, lines(&failed)), (Some(3), words.map(str::to_owned).to_vec()));
    assert_eq!(failed.record().requests.completed, 50, "the report is the same");
    assert!(failed.err.contains("p50>1ns: measured "), "{}", failed.err);
}

/// What is only known to be at least something may not pass a gate.
#[test]
fn a_threshold_that_cannot_be_decided_is_3() {
    let peer = Peer::start(Place::Tcp, |mut conn| {
        while let Some(request) = conn.request() {
            if request.number % 5 == 4 {
                return conn.stall();
            }
            conn.send(OK);
        }
    });
    let flags =
        ["-n", "20", "--timeout", "200ms", "--fail-if", "p50>60s", "--fail-if", "p99>60s", "--fail-if", "p99>100ms"];
    let ran = bench(&[&flags[..], &[&peer.url]].concat());
    ran.said(
        3,
        &[
            "passed  --fail-if p50>60s",
            "UNDECIDED  --fail-if p99>60s: cannot be decided",
            "FAILED  --fail-if p99>100ms",
        ],
    );
}

/// Numbers with their units become `N`: what is left is what scripts look for.
fn shape(line: &str) -> String {
    let word = |word: &str| {
        let number = word.trim_end_matches([',', ':']);
        let digits = number.trim_end_matches(|c: char| c.is_ascii_alphabetic() || c == '%');
        if !digits.is_empty() && digits.parse::<f64>().is_ok() { word.replace(number, "N") } else { word.to_owned() }
    };
    line.split_whitespace().map(word).collect::<Vec<_>>().join(" ")
}

#[test]
fn the_wrk_format_has_the_lines_of_wrk() {
    let test = "the_wrk_format_has_the_lines_of_wrk";
    let Some(wrk) = nginx::find("wrk") else { return skipped(test, "wrk is not installed") };
    let Some(nginx) = nginx::start(test, 1) else { return };
    for path in ["", "missing"] {
        let url = format!("{}{path}", nginx.http);
        let flags = ["-t2", "-c8", "-d1s", "--latency", &url];
        let mut theirs = Command::new(&wrk);
        theirs.args(flags);
        let (theirs, ours) = (to_the_end(theirs), bench(&[&["--format", "wrk"], &flags[..]].concat()));
        assert_eq!((theirs.code, ours.code), (Some(0), Some(0)));
        let shapes = |ran: &Ran| ran.out.lines().map(shape).collect::<Vec<_>>();
        assert_eq!(shapes(&ours), shapes(&theirs), "{}\n{}", ours.out, theirs.out);
        // Columns too, but for the headline with its numbers.
        for (ours, theirs) in ours.out.lines().zip(theirs.out.lines()) {
            let indent = |line: &str| line.len() - line.trim_start().len();
            if !theirs.trim_start().starts_with(|c: char| c.is_ascii_digit()) {
                assert_eq!(indent(ours), indent(theirs), "{ours}\n{theirs}");
            }
        }
        assert_eq!(ours.out.contains("  Non-2xx or 3xx responses: "), path == "missing");
    }
}

#[test]
fn the_wrk_format_has_its_line_of_socket_errors() {
    let peer = Peer::start(Place::Tcp, |mut conn| {
        while let Some(request) = conn.request() {
            match request.number % 10 {
                3 => return conn.reset(),
                7 => return conn.stall(),
                _ => conn.send(OK),
            };
        }
    });
    let ran = bench(&["--format", "wrk", "-n", "40", "-c", "2", "-t", "1", "--timeout", "200ms", &peer.url]);
    assert!(ran.out.contains("\n  Socket errors: connect 0, read 4, write 0, timeout 4\n"), "{}", ran.out);
    assert!(ran.out.contains("\n  32 requests in "), "{}", ran.out);
}

/// As HdrHistogram's own tools read it: a line per second and tag, with a compressed histogram at its end.
#[test]
fn the_histogram_log_holds_every_answer() {
    let peer = answering();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("log.hlog");
    let record = measured(&["-d", "1200ms", "-c", "2", "--hdr", file.to_str().unwrap(), &peer.url]);
    let text = std::fs::read_to_string(file).unwrap();
    assert!(text.starts_with("#[Histogram log format version 1.3]\n"), "{text}");
    for (tag, clock) in [("service", &record.latency.service), ("response", &record.latency.response)] {
        let prefix = format!("Tag={tag},");
        let mut all = Latency::new();
        for line in text.lines().filter(|line| line.starts_with(&prefix)) {
            let fields: Vec<&str> = line.splitn(5, ',').collect();
            assert!(fields[1].parse::<f64>().is_ok() && fields[2].parse::<f64>().is_ok(), "{line}");
            all.merge(&Latency::from_base64(fields[4]).unwrap());
        }
        assert_eq!(all.len(), record.requests.completed, "{tag}");
        assert_eq!(all.histogram().value_at_quantile(0.9), clock.histogram.histogram().value_at_quantile(0.9), "{tag}");
    }
}

#[test]
fn whoever_stops_reading_the_report_is_no_failure() {
    let peer = answering();
    let mut command = Command::new(OROSHI);
    command.args(["bench", "--format", "json", "-n", "10", &peer.url]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

// Ended early.

#[test]
fn one_interrupt_ends_the_run_and_reports_what_there_is() {
    for (signal, format) in [(Signal::INT, "json"), (Signal::TERM, "text")] {
        let peer = answering();
        let mut command = Command::new(OROSHI);
        command.args(["bench", "-d", "1h", "-c", "4", "--format", format, &peer.url]);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        peer.wait_for("requests", |seen| seen.requests > 100);
        kill_process(Pid::from_child(&child), signal).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0));
        let text = String::from_utf8(output.stdout).unwrap();
        if format == "text" {
            assert!(text.contains("ended early, after "), "{text}");
            continue;
        }
        let record: Record = serde_json::from_str(&text).unwrap();
        let r = record.requests;
        assert!(record.cut_short && r.completed > 0 && r.cut_off <= 4, "{r:?}");
        assert_eq!((record.errors, record.connections.alive_at_end), (0, 4));
        let seen = peer.seen().requests;
        assert!((r.completed..=r.completed + r.cut_off).contains(&seen), "{seen} of {r:?}");
    }
}

/// The run waits for connections that nobody accepts, for an hour if it is let.
#[test]
fn an_interrupt_before_the_run_has_begun_ends_it_without_a_report() {
    let port = Port::reserve();
    let listener = port.listen(0);
    let mut command = Command::new(OROSHI);
    command.args(["bench", "-c", "4", "--timeout", "1h", "-d", "1h", &port.url()]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // The generator's first connection comes when signals are taken, and room for one more is then in the queue.
    let _first = listener.accept().unwrap();
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    assert!(output.stdout.is_empty() && String::from_utf8_lossy(&output.stderr).contains("ended"), "{output:?}");
}

/// The first ends the run, and nobody reads its report; the second does not wait for that.
#[test]
fn a_second_interrupt_ends_it_at_once() {
    let peer = answering();
    let (unread, pipe) = std::io::pipe().unwrap();
    fcntl_setpipe_size(&pipe, 4096).unwrap();
    let mut command = Command::new(OROSHI);
    command.args(["bench", "-d", "1h", "--format", "json", &peer.url]).stdout(pipe).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let pid = Pid::from_child(&child);
    peer.wait_for("requests", |seen| seen.requests > 0);
    kill_process(pid, Signal::INT).unwrap();
    poll(&mut [PollFd::new(&unread, PollFlags::IN)], None).unwrap();
    assert_eq!(child.try_wait().unwrap(), None, "its report is longer than the pipe");
    kill_process(pid, Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
}
