//! What `oroshi bench` says of runs that went wrong: nothing that is false, the gravest first, and the same in each of
//! its outputs.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common;
use crate::common::support::hub::{Does, Hub, Settings};
use crate::common::support::peer::{Conn, Peer, Place, Port};
use crate::common::support::tls::Identity;
use crate::common::support::{OK, wait_until};
use crate::common::{OROSHI, Ran, Recorded as _, Target, answering, bench, oroshi, to_the_end};
use oroshi_bench::Bottleneck;
use oroshi_bench::record::ConditionOutcome;
use oroshi_net::diag;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// The same run as text, as JSON and as a page: what each says, and the exit codes.
struct Told {
    text: Ran,
    json: Ran,
    page: String,
}

/// `serve` answers both runs, each with a peer of its own.
fn told(flags: &[&str], serve: impl Fn(Conn) + Clone + Send + Sync + 'static) -> Told {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.html");
    let (one, other) = (Peer::start(Place::Tcp, serve.clone()), Peer::start(Place::Tcp, serve));
    let text = bench(&[flags, &["--watch", "none", "--report", page.to_str().unwrap(), &one.url]].concat());
    let json = bench(&[flags, &["--watch", "none", "--format", "json", &other.url]].concat());
    Told { text, json, page: std::fs::read_to_string(&page).unwrap_or_default() }
}

fn first_line(ran: &Ran) -> &str {
    ran.out.lines().next().unwrap_or_default()
}

/// However its lines are broken.
fn in_one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Answers, and is gone with the 200th request: it listens no more, and closes whatever it has.
fn dies(mut conn: Conn) {
    while let Some(request) = conn.request() {
        if request.number >= 200 {
            conn.close_listener();
            return;
        }
        conn.send(OK);
    }
}

// Ends.

/// It read as `latency-bound`, with 0.3 % errors and exit code 0.
#[test]
fn a_server_that_dies_within_a_run_is_said_first_and_everywhere() {
    for load in [&["-d", "1s"][..], &["-n", "400"], &["-d", "1s", "--close"], &["-R", "2000", "-d", "1s"]] {
        let flags = [load, &["-c", "4", "--fail-if", "status>0"]].concat();
        let Told { text, json, page } = told(&flags, dies);
        text.said(1, &["error: the server was not there any more when the run ended", "connect-refused"]);
        assert!(first_line(&text).starts_with("SERVER GONE: "), "{load:?}: {}", text.out);
        assert!(in_one_line(&text.out).contains("Bottleneck server-gone: "), "{load:?}: {}", text.out);
        assert!(page.contains("SERVER GONE: ") && page.contains("server-gone"), "{load:?}");
        json.said(1, &[]);
        let record = json.record();
        assert_eq!(record.grade.bottleneck, Bottleneck::ServerGone, "{load:?}");
        assert!(record.gone.is_some_and(|gone| gone.failed_attempts > 0), "{load:?}");
        assert!(record.warnings.iter().any(|warning| warning.contains("not there any more")), "{:?}", record.warnings);
    }
}

/// Answers until the 200th request, and then never again, on whichever connection.
fn freezes(mut conn: Conn) {
    while let Some(request) = conn.request() {
        if request.number >= 200 {
            return conn.stall();
        }
        conn.send(OK);
    }
}

fn address(url: &str) -> &str {
    url.trim_start_matches("http://").trim_end_matches('/')
}

/// The others answered, so nothing was said.
#[test]
fn of_several_servers_each_is_judged_by_itself() {
    for (how, end) in [("dies", dies as fn(Conn)), ("freezes", freezes)] {
        for load in [&["-t", "2"][..], &["--close"], &["-R", "1000"]] {
            let (good, bad) = (answering(), Peer::start(Place::Tcp, end));
            let flags = ["-d", "2s", "-c", "4", "-T", "250ms", "--watch", "none", "--format", "json"];
            let ran = bench(&[load, &flags, &[&good.url, &bad.url]].concat());
            let missing = format!("error: {} was not there any more when the run ended", address(&bad.url));
            ran.said(1, &[&missing]);
            let record = ran.record();
            assert_eq!(record.grade.bottleneck, Bottleneck::ServerGone, "{how} {load:?}");
            assert_eq!(record.gone.unwrap().servers, [address(&bad.url)], "{how} {load:?}");
        }
    }
    let (one, other) = (answering(), answering());
    let record = common::measured(&["-d", "300ms", "-c", "4", "--watch", "none", &one.url, &other.url]);
    assert_eq!(record.gone, None);
}

/// Each request took its whole timeout, one after the other.
#[test]
fn a_number_of_requests_is_given_up_before_a_server_that_hangs() {
    let flags = ["-n", "1M", "-c", "4", "-T", "250ms", "--watch", "none", "--format", "json"];
    for load in [&["-t", "2"][..], &["--close"], &["-R", "1k"]] {
        let peer = Peer::start(Place::Tcp, freezes);
        let ran = bench(&[load, &flags, &[&peer.url]].concat());
        ran.said(1, &["the server answered nothing any more, so the run was given up"]);
        let record = ran.record();
        assert!(record.cut_short && record.requests.completed > 0, "{load:?}: {:?}", record.requests);
        assert_eq!(record.grade.bottleneck, Bottleneck::ServerGone, "{load:?}");
        let peer = Peer::start(Place::Tcp, Conn::stall);
        let ran = bench(&[load, &flags, &[&peer.url]].concat());
        ran.said(1, &["not one request was answered"]);
        let warnings = ran.record().warnings;
        assert!(warnings.iter().any(|text| text.starts_with("ended early: for 2.0 s ")), "{load:?}: {warnings:?}");
    }
    // Where nothing is due, nothing is missed. It was given up, as no connection was up in between.
    let peer = answering();
    let record = common::measured(&["-n", "2", "-R", "0.4", "--close", "-T", "250ms", "--watch", "none", &peer.url]);
    assert_eq!((record.requests.completed, record.cut_short), (2, false));
}

/// There was no word on it where the run was over before a request could time out.
#[test]
fn a_run_that_is_shorter_than_its_timeout_says_what_it_cannot_tell() {
    let Told { text, json, page } = told(&["-d", "300ms", "-c", "2", "-T", "20s"], Conn::stall);
    text.said(1, &["not one request was answered"]);
    let words = "before --timeout (20.0 s) could end a request";
    assert!(in_one_line(&text.out).contains(words) && page.contains(words), "{}", text.out);
    assert!(json.record().warnings.iter().any(|text| text.contains(words)), "{json:?}");
    let Told { text, .. } = told(&["-d", "800ms", "-c", "2", "-T", "20s"], freezes);
    assert!(in_one_line(&text.out).contains("the server answered nothing in the last "), "{}", text.out);
    assert!(!text.out.contains("use more connections"), "{}", text.out);
}

/// "use more connections", where each request had one.
#[test]
fn a_server_that_stalls_wants_no_more_connections() {
    let stalls = |mut conn: Conn| {
        while let Some(request) = conn.request() {
            if (100..110).contains(&request.number) {
                return conn.stall();
            }
            conn.send(OK);
        }
    };
    // All was sent, and ten requests of three hundred have no answer.
    let (peer, flags) = (Peer::start(Place::Tcp, stalls), ["-R", "300", "-c", "60", "-d", "1s", "-T", "100ms"]);
    let ran = bench(&[&flags[..], &["--format", "json", &peer.url]].concat());
    let record = ran.record();
    let advice = record.grade.advice.clone().unwrap_or_default();
    assert!(!advice.contains("use more connections"), "{:?}", record.grade);
    let quiet = record.requests.unsent == 0 && record.requests.failed <= 30;
    let busy = [Bottleneck::ServerBound, Bottleneck::GeneratorBound, Bottleneck::MachineBound];
    if quiet && !busy.contains(&record.grade.bottleneck) {
        assert_eq!(record.grade.bottleneck, Bottleneck::RateBound, "{:?} {:?}", record.grade, record.requests);
        assert!(record.grade.because.starts_with("all of "), "{:?}", record.grade);
    }
    // The last of them could not be sent, as all connections were stuck.
    let peer = Peer::start(Place::Tcp, freezes);
    let ran = bench(&["-R", "400", "-c", "4", "-d", "900ms", "-T", "20s", "--format", "json", &peer.url]);
    let record = ran.record();
    assert!(record.requests.unsent > 0, "{:?}", record.requests);
    assert!(!record.grade.advice.clone().unwrap_or_default().contains("use more connections"), "{:?}", record.grade);
}

/// Connects until it is dropped to a port whose queue is full.
struct Overflowing {
    port: Port,
    ended: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Overflowing {
    fn start() -> Self {
        let port = Port::reserve();
        let (listener, address, ended) = (port.listen(0), port.address(), Arc::new(AtomicBool::new(false)));
        let over = Arc::clone(&ended);
        let connects = move || {
            let _listener = listener;
            // The first waits in the queue, and is never accepted.
            let _first = std::net::TcpStream::connect(address).unwrap();
            while !over.load(Ordering::Relaxed) {
                let _ = std::net::TcpStream::connect_timeout(&address, Duration::from_millis(5));
            }
        };
        Self { port, ended, thread: Some(std::thread::spawn(connects)) }
    }
}

impl Drop for Overflowing {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

/// The kernel's counter is of all listeners of the machine together, and any of it was said to be the server's.
#[test]
fn an_overflow_of_another_listener_is_not_the_server_s() {
    let (peer, other) = (answering(), Overflowing::start());
    let before = diag::listen_overflows().unwrap();
    wait_until("it overflows", || diag::listen_overflows().unwrap() > before + 2);
    let backlogs = |url: &str| {
        let ran = bench(&["-d", "600ms", "-c", "2", "-T", "150ms", "--watch", "none", "--format", "json", url]);
        let warnings = ran.record().warnings;
        warnings.into_iter().filter(|text| text.contains("backlog")).collect::<Vec<_>>()
    };
    if diag::listeners(peer.url[7..].trim_end_matches('/').parse().unwrap()).is_err() {
        let said = backlogs(&peer.url);
        return assert!(said[0].contains("of whatever program on this machine"), "{said:?}");
    }
    assert_eq!(backlogs(&peer.url), [""; 0]);
    // Its own is told, with its address.
    let full = Port::reserve();
    let listener = full.listen(1);
    let said = backlogs(&full.url());
    assert!(
        said.iter().any(|text| text.contains(&format!("of the server at {} was full", full.address()))),
        "{said:?}"
    );
    drop((listener, other.port.address()));
}

/// One request in a second was 1.00/s, where 0.5/s were asked for.
#[test]
fn a_rate_of_few_requests_has_its_error() {
    let Told { text, json, page } =
        told(&["-R", "0.5", "-d", "1s"], |mut conn: Conn| while conn.request().is_some() && conn.send(OK) {});
    let record = json.record();
    let error = record.rates.requests_per_s_error.unwrap();
    assert!((error * record.elapsed_s - 1.0).abs() < 1e-6, "{error}");
    let said = in_one_line(&text.out);
    for words in [" ±", "only 1 request was due in 1.0", "where the timetable asks for 0.500/s"] {
        assert!(said.contains(words), "`{words}`: {said}");
    }
    assert!(page.contains('±') && page.contains("only 1 request was due"));
    let many = told(&["-R", "500", "-d", "400ms"], |mut conn: Conn| while conn.request().is_some() && conn.send(OK) {});
    assert!(!many.text.out.contains('±') || many.json.record().requests.started < 100, "{}", many.text.out);
}

/// It printed "50,690 cores used", and whatever else comes of a length of nothing.
#[test]
fn what_is_ended_in_its_warm_up_has_no_result() {
    let peer = answering();
    for format in ["text", "json"] {
        let mut command = Command::new(OROSHI);
        command.args(["bench", "-w", "1h", "-d", "1h", "--format", format, &peer.url]);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let before = peer.seen().requests;
        peer.wait_for("requests", |seen| seen.requests > before + 50);
        kill_process(Pid::from_child(&child), Signal::INT).unwrap();
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(130), "{said}");
        assert!(output.stdout.is_empty() && said.contains("ended in the warm-up: nothing was measured"), "{output:?}");
    }
}

/// The C library's `system` has the process ignore SIGINT for as long as the command runs.
#[test]
fn an_interrupt_ends_a_script_s_command() {
    let peer = answering();
    let folder = tempfile::tempdir().unwrap();
    let (script, began) = (folder.path().join("a.lua"), folder.path().join("began"));
    let text = format!(
        "function request()\n  assert(os.execute('exit 3') == 768 and os.execute() == 1)\n  \
         os.execute('touch {}; exec sleep 3600')\n  return wrk.format()\nend\n",
        began.display()
    );
    std::fs::write(&script, text).unwrap();
    let mut command = Command::new(OROSHI);
    command.args(["bench", "-d", "1h", "--script-limit", "1h", "-c", "1", "-s", script.to_str().unwrap(), &peer.url]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_until("the command runs", || began.exists());
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    wait_until("the run has ended", || child.try_wait().unwrap().is_some());
    let output = child.wait_with_output().unwrap();
    assert_ne!(output.status.code(), None, "{output:?}");
}

/// Five requests were "generator-bound", or wanted more connections.
#[test]
fn a_run_that_is_too_short_or_failed_is_not_graded() {
    let short = told(&["-n", "5", "-c", "2"], |mut conn: Conn| while conn.request().is_some() && conn.send(OK) {});
    // On a busy machine five requests may take longer than that.
    let record = short.json.record();
    assert!(record.grade.bottleneck == Bottleneck::NotGraded || record.elapsed_s >= 0.1, "{:?}", record.grade);
    let text = in_one_line(&short.text.out);
    assert!(!text.contains("use more connections"), "{text}");
    let failed = told(&["-d", "300ms", "-c", "2", "-T", "40ms"], |mut conn: Conn| {
        while let Some(request) = conn.request() {
            if request.number % 2 == 1 {
                return conn.stall();
            }
            conn.send(OK);
        }
    });
    assert!(!failed.text.out.contains("use more connections"), "{}", failed.text.out);
    assert_eq!(failed.json.record().grade.bottleneck, Bottleneck::NotGraded);
}

// Percentiles and conditions.

/// Four of five requests timed out, and p50 was 20.1 ms.
#[test]
fn what_the_unanswered_could_move_is_a_bound_and_decides_nothing() {
    let flags = [
        "-n",
        "50",
        "-c",
        "5",
        "-T",
        "100ms",
        "--fail-if",
        "service.p99>1h",
        "--fail-if",
        "p50<1ns",
        "--fail-if",
        "max>1ns",
    ];
    let Told { text, json, page } = told(&flags, |mut conn: Conn| {
        while let Some(request) = conn.request() {
            if request.number % 5 != 0 {
                return conn.stall();
            }
            conn.send(OK);
        }
    });
    text.said(
        3,
        &[
            "UNDECIDED  --fail-if service.p99>1h: cannot be decided: measured >= ",
            "passed  --fail-if p50<1ns: measured >= ",
            "FAILED  --fail-if max>1ns: measured >= ",
        ],
    );
    let record = json.record();
    let service = &record.latency.service.summary;
    for percentile in [service.p50, service.p99].map(Option::unwrap) {
        assert!(percentile.at_least && percentile.at_most_ns.is_none(), "{percentile:?}");
    }
    let outcomes: Vec<_> = record.fail_if.iter().map(|condition| condition.outcome).collect();
    assert_eq!(outcomes, [ConditionOutcome::Undecided, ConditionOutcome::Passed, ConditionOutcome::Failed]);
    let value: Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(
        (&value["fail_if"][0]["condition"], &value["fail_if"][0]["outcome"]),
        (&"service.p99>1h".into(), &"undecided".into())
    );
    assert!(page.contains("service.p99&gt;1h") && page.contains("undecided") && page.contains("cannot be decided"));
    let wrk = Peer::start(Place::Tcp, Conn::stall);
    let ran = bench(&["--format", "wrk", "-L", "-n", "2", "-c", "2", "-T", "100ms", &wrk.url]);
    assert!(ran.err.contains("lower bounds, for which wrk's format has no sign"), "{ran:?}");
}

// Failures.

/// All of them were one word, `parse`.
#[test]
fn an_answer_that_is_no_http_is_told_by_the_rule_it_broke_and_its_first_bytes() {
    let mut large = b"HTTP/1.1 200 OK\r\nX: ".to_vec();
    large.resize(70_000, b'x');
    let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "A: b\r\n".repeat(101)).into_bytes();
    let answers: [(&str, &str, Vec<u8>); 6] = [
        (
            "length-and-transfer-encoding",
            r"HTTP/1.1 200 OK\r\nContent-Length: 5",
            b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec(),
        ),
        ("head-too-large", r"HTTP/1.1 200 OK\r\nX: xxx", large),
        ("too-many-headers", r"HTTP/1.1 200 OK\r\nA: b", many),
        ("bare-lf", r"HTTP/1.1 200 OK\nContent", b"HTTP/1.1 200 OK\nContent-Length: 0\n\n".to_vec()),
        (
            "bad-status-line",
            r"\x00\x00\x06\x04",
            b"\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00\x64".to_vec(),
        ),
        ("bad-status-line", r"SSH-2.0-OpenSSH_9.2\r\n", b"SSH-2.0-OpenSSH_9.2\r\n".to_vec()),
    ];
    for (rule, begins, answer) in answers {
        let flags = ["-n", "6", "-c", "2", "-T", "2s"];
        let Told { text, json, page } = told(&flags, move |mut conn: Conn| {
            while let Some(request) = conn.request() {
                if request.number % 2 == 1 {
                    conn.send(&answer[..]);
                    return conn.close_gently();
                }
                conn.send(OK);
            }
        });
        let record = json.record();
        let [kind] = &record.parse[..] else { panic!("{rule}: {:?} {:?}", record.parse, record.failures) };
        assert_eq!((kind.rule.as_str(), kind.count), (rule, record.failures[&oroshi_bench::Failure::Parse]));
        assert!(kind.first_bytes.starts_with(begins) && kind.first_bytes.len() < 300, "{rule}: {kind:?}");
        let (text, page) = (in_one_line(&text.out), page.replace("&quot;", "\""));
        assert!(text.contains(rule) && text.contains(begins), "{rule}: {text}");
        assert!(page.contains(rule) && page.contains(begins), "{rule}");
    }
}

#[test]
fn redirects_and_ports_for_tls_are_hinted_at() {
    let moved = |mut conn: Conn| {
        while conn.request().is_some() {
            conn.send("HTTP/1.1 302 Found\r\nLocation: https://elsewhere.example/\r\nContent-Length: 0\r\n\r\n");
        }
    };
    let Told { text, .. } = told(&["-n", "10"], moved);
    text.said(0, &[]);
    let said = in_one_line(&text.out);
    assert!(
        said.contains("every answer was a redirect (302)") && said.contains("led to https://elsewhere.example/"),
        "{said}"
    );

    // A server that says nothing but TLS, and one that knows what has come.
    let identity = Identity::new();
    let tls = Peer::start_tls(Place::Tcp, &identity, drop);
    let ran = bench(&["-n", "4", "-c", "1", "-T", "2s", &tls.url.replace("https:", "http:")]);
    ran.said(1, &["not one request was answered"]);
    assert!(in_one_line(&ran.out).contains("https://"), "{}", ran.out);
    let knows = |mut conn: Conn| {
        let page = "<title>400 The plain HTTP request was sent to HTTPS port</title>";
        while conn.request().is_some() {
            conn.send(format!("HTTP/1.1 400 Bad Request\r\nContent-Length: {}\r\n\r\n{page}", page.len()));
        }
    };
    let Told { text, .. } = told(&["-n", "4", "-c", "1"], knows);
    assert!(in_one_line(&text.out).contains("this port is for TLS: use https://"), "{}", text.out);
}

// Hubs.

/// `ws` was "GENERATOR-BOUND 97 %" after 0.6 ms, and `sse` said only "10 x check".
#[test]
fn what_is_no_hub_is_told_by_what_came_back() {
    let server = Target::start(&[]);
    for (mode, words) in [
        ("ws", "the answer is 200 of type text/plain, where 101 would open a WebSocket"),
        ("sse", "the answer is 200 of type text/plain, where text/event-stream would begin the events"),
    ] {
        let flags = ["--mode", mode, "-c", "3", "-d", "1s", server.url()];
        let ran = bench(&flags);
        ran.said(1, &["not one subscription was opened: 3 x ", words]);
        let said = in_one_line(&ran.out);
        assert!(said.starts_with("NO SUBSCRIPTION: ") && said.contains(words), "{}", ran.out);
        assert!(said.contains("Bottleneck not-graded: no subscription was opened"), "{}", ran.out);
        let json: Value = serde_json::from_str(&bench(&[&["--format", "json"], &flags[..]].concat()).out).unwrap();
        assert_eq!(json["grade"]["bottleneck"], "not-graded");
        let came = json["subscriptions"]["came"].as_object().unwrap();
        assert!(came.values().any(|came| came == words), "{came:?}");
    }
    let ssh = Peer::start(Place::Tcp, |mut conn| {
        conn.send("SSH-2.0-OpenSSH_9.2\r\n");
        conn.close_gently();
    });
    let ran = bench(&["--mode", "ws", "-c", "1", "-d", "1s", &ssh.url]);
    ran.said(1, &["SSH server's greeting", r"SSH-2.0-OpenSSH_9.2\r\n"]);
}

/// 62 of 100 subscriptions ended, the exit code was 0, and more publishers were advised.
#[test]
fn subscriptions_that_ended_are_said_first_and_in_the_exit_code() {
    let start = || {
        Hub::start(Settings {
            does: |index, n| if index == 3 && n % 2 == 1 { Does::Close(1012) } else { Does::Deliver },
            ..Settings::default()
        })
    };
    let (ending, again) = (start(), start());
    let publish = ending.publish("publish");
    let flags = ["--mode", "ws", "-c", "6", "-n", "20", "-T", "250ms", "--watch", "none", "--publish", &publish];
    let ran = bench(&[&flags[..], &[&ending.url("ws")]].concat());
    ran.said(1, &["error: 3 of 6 subscriptions ended before the run did (3 x close-1012)"]);
    assert!(first_line(&ran).starts_with("SUBSCRIPTIONS ENDED: 3 of 6"), "{}", ran.out);
    assert!(!ran.out.contains("use more --publishers"), "{}", ran.out);
    let publish = again.publish("publish");
    let flags = ["--mode", "ws", "-c", "6", "-n", "20", "-T", "250ms", "--watch", "none", "--publish", &publish];
    let json = bench(&[&flags[..], &["--format", "json", "--fail-if", "ended>3", &again.url("ws")]].concat());
    json.said(0, &["passed  --fail-if ended>3"]);
    let value: Value = serde_json::from_str(&json.out).unwrap();
    assert!(value["warnings"][0].as_str().unwrap().starts_with("SUBSCRIPTIONS ENDED: 3 of 6"), "{}", value["warnings"]);
    assert_eq!(value["fail_if"][0]["outcome"], "passed");
}

// What was typed.

#[test]
fn flags_of_other_tools_are_told_what_they_are_here() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("data.json");
    std::fs::write(&file, "{}").unwrap();
    let (at, format) = (format!("@{}", file.display()), format!("-o ./{}", "json"));
    let cases: &[(&[&str], &[&str])] = &[
        (&["-z", "1s"], &["oha's -z is -d here", "hey's -z is -d here"]),
        (&["--redirects", "3"], &["vegeta's --redirects", "none is followed"]),
        (&["--vus", "10"], &["k6's --vus is -c here"]),
        (&["--http2"], &["--http2 agrees on HTTP/2 within TLS", "--http2-prior-knowledge"]),
        (&["-disable-keepalive"], &["hey's -disable-keepalive is --close here"]),
        (&["-o", "json"], &["--output", "--format json", &format]),
        (&["-k"], &["--insecure", "no URL is https", "ab's -k"]),
        (&["-b", &at], &["--body", "--body-file", "data.json"]),
        (&["-d", r#"{"a":1}"#], &["--duration", "a body is -b"]),
        (&["-T", "text/plain"], &["--timeout", "Content-Type: text/plain"]),
        (&["-H", "Content-Length: 5"], &["Content-Length: 5", "0 bytes"]),
        (&["--close", "--pipeline", "4"], &["--pipeline 4", "--close"]),
    ];
    for (flags, words) in cases {
        let ran = bench(&[flags, &["http://127.0.0.1:1/"][..]].concat());
        ran.said(2, words);
        assert!(!ran.err.contains("tip:"), "{ran:?}");
    }
    assert!(oroshi(&["bench", "--conections", "5", "http://h/"]).err.contains("--connections"));
}

/// The parser said that `-1` was a flag, and advised `-- -1`.
#[test]
fn values_below_zero_are_told_to_be_so() {
    for (flags, words) in [
        (["-R", "-1"], "error: --rate: `-1` is below 0: expected a number such as 100"),
        (["-d", "-1"], "error: --duration: `-1` is below 0: expected a time such as 30s"),
        (["--timeout=-1s", "-L"], "--timeout: `-1s` is below 0"),
        (["-n", "-5"], "--requests: `-5` is below 0"),
        (["-b", "-5"], "write --body=-5, if that is what is meant"),
    ] {
        let ran = bench(&[&flags[..], &["http://127.0.0.1:1/"]].concat());
        ran.said(2, &[words]);
        assert!(!ran.err.contains("tip:"), "{ran:?}");
    }
    oroshi(&["compare", "-R", "-1", "http://h/", "http://i/"]).said(2, &["--rate: `-1` is below 0"]);
}

#[test]
fn help_tells_every_exit_code() {
    let help = in_one_line(&bench(&["--help"]).out);
    for words in ["a server was gone when the run ended", "condition held, or could not be decided"] {
        assert!(help.contains(words), "`{words}`: {help}");
    }
}

#[test]
fn the_headline_says_what_was_done() {
    let server = Target::start(&[]);
    let address = server.url().trim_start_matches("http://").trim_end_matches('/').to_owned();
    let ran = bench(&["-n", "5", "--connect-to", &format!("::{address}"), "http://app.example/path?a"]);
    assert!(in_one_line(&ran.out).contains(&format!("GET http://app.example/path?a at {address} ")), "{}", ran.out);

    let folder = tempfile::tempdir().unwrap();
    let urls = folder.path().join("urls");
    std::fs::write(&urls, (0..250).map(|n| format!("{}{n}\n", server.url())).collect::<String>()).unwrap();
    let ran = bench(&["-n", "5", "--urls", urls.to_str().unwrap()]);
    assert!(in_one_line(&ran.out).contains("250 requests to http://"), "{}", ran.out);

    // A body of nothing is a body.
    let peer = Peer::answering(|request| {
        let said = request.head.to_ascii_lowercase().contains("content-length: 0");
        if said { OK.into() } else { b"HTTP/1.1 411 Length Required\r\nContent-Length: 0\r\n\r\n".to_vec() }
    });
    assert_eq!(common::measured(&["-n", "3", "-b", "", &peer.url]).statuses.keys().collect::<Vec<_>>(), [&200]);

    let mut command = Command::new(OROSHI);
    command.args(["bench", "-n", "20", "-L", server.url()]).env("COLUMNS", "50");
    let ran = to_the_end(command);
    let broken = |line: &&str| line.chars().count() <= 50 || !line.trim().contains(' ');
    assert!(ran.out.lines().all(|line| broken(&line)), "{}", ran.out);
}

/// The CPU time of one server, divided by the requests of all, would be too low for any of them.
#[test]
fn of_several_servers_none_has_a_cpu_time_per_request() {
    let (one, other) = (Target::start(&[]), Target::start(&[]));
    let limits = ["--fail-if", "server.cpu>1s"];
    let run = |urls: &[&str]| bench(&[&["-c2", "-n400", "--format", "json"], &limits[..], urls].concat());
    let alone = run(&[one.url()]);
    assert_eq!(alone.code, Some(0), "{alone:?}");
    assert!(alone.record().server_cpu_us_per_request().is_some());
    let both = run(&[one.url(), other.url()]);
    both.said(3, &["UNDECIDED", "of several servers one is watched"]);
    assert_eq!(both.record().server_cpu_us_per_request(), None);
    assert!(both.record().warnings.iter().any(|warning| warning.contains("none per request")), "{both:?}");
}
