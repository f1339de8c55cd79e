//! `oroshi start` where it does more than `start_server`: readiness, restarts that fail, what it tells, socket files,
//! LISTEN_FDS, and what it says about mistakes.

mod systemd;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};

use crate::common;
use crate::common::support::HANG;
use crate::common::support::load::all_answered;
use crate::common::{OROSHI, Recorded as _, bench};
use crate::superdaemon::{Kind, World, exists, have, send, wait_for};
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};
use rustix::process::Signal;
use serde_json::Value;

/// A world for `oroshi start`; or it is noted that the test is left out.
fn world(test: &str) -> Option<World> {
    have(test, &["perl"]).then(|| World::new(Kind::Ours))
}

/// `oroshi target` behind it, whose second generation answers with 500.
const SECOND_IS_ILL: &str =
    r#"case $SERVER_STARTER_GENERATION in 2) exec "$0" target --status 500=1;; *) exec "$0" target;; esac"#;

/// What `--status --json` says.
#[track_caller]
fn status(w: &World) -> Value {
    let ran = w.run(&["--status", "--json", "--pid-file", &w.path("pid")]);
    assert_eq!(ran.code, Some(0), "{ran:?}\n{}", w.told());
    serde_json::from_str(&ran.out).unwrap()
}

/// Waits until `--status` says this.
#[track_caller]
fn until_status(w: &World, what: &str, mut wanted: impl FnMut(&Value) -> bool) -> Value {
    wait_for(|| format!("{what}: {:#}\n{}", status(w), w.told()), || Some(status(w)).filter(&mut wanted))
}

/// `--restart --wait`: its exit code and what it said.
fn restart(w: &World, code: i32, words: &[&str]) {
    w.run(&["--restart", "--wait", "--pid-file", &w.path("pid")]).said(code, words);
}

#[test]
fn the_old_generation_is_told_to_stop_when_the_new_one_says_that_it_is_ready() {
    let Some(mut w) = world("the_old_generation_is_told_to_stop_when_the_new_one_says_that_it_is_ready") else {
        return;
    };
    let pid = w.path("pid");
    // Were it to go by the interval, nothing would ever be ready.
    w.start(&["--pid-file", &pid, "--ready", "notify", "--interval", "1000h"], &["notify=1", "late=2"]);
    w.until(1, "told");
    until_status(&w, "generation 1 serves", |status| status["state"] == "serving");
    w.send(Signal::HUP);
    w.until(2, "started");
    let seen = status(&w);
    assert_eq!(seen["state"], "restarting", "{seen:#}");
    let states: Vec<_> = seen["generations"].as_array().unwrap().iter().map(|one| &one["state"]).collect();
    assert_eq!(states, ["serving", "starting"], "{seen:#}");
    let was_told_to_stop = |w: &World| w.journal().iter().any(|e| e.generation == "1" && e.line() == "signal TERM");
    assert!(!was_told_to_stop(&w), "{}", w.told());
    // It becomes ready by this file alone. It notes that it has told so after the old one may have ended.
    w.write("ready", "");
    w.until(1, "ended");
    assert!(was_told_to_stop(&w), "{}", w.told());
    w.until(2, "told");
    let seen = until_status(&w, "generation 2 alone", |status| status["generations"].as_array().unwrap().len() == 1);
    assert_eq!((&seen["state"], &seen["restarts"], &seen["failed"]), (&"serving".into(), &1.into(), &0.into()));
    assert_eq!(seen["generations"][0]["generation"], 2);
    w.send(Signal::TERM);
    assert_eq!(w.end(), Some(0));
}

#[test]
fn a_generation_that_does_not_become_ready_is_ended_and_the_old_one_stays() {
    let Some(mut w) = world("a_generation_that_does_not_become_ready_is_ended_and_the_old_one_stays") else { return };
    let (pid, file) = (w.path("pid"), w.path("status"));
    // The second says nothing, the third dies, the fourth is well.
    let flags = ["--pid-file", &pid, "--status-file", &file, "--ready", "notify", "--ready-timeout", "1.5"];
    w.start(&flags, &["notify=1,4", "die=3"]);
    w.until(1, "told");
    until_status(&w, "generation 1 serves", |status| status["state"] == "serving");
    restart(&w, 1, &["generation 2", "not ready within 1.5s", "old generation keeps serving"]);
    w.until(2, "signal TERM");
    w.until(2, "ended");
    let seen = until_status(&w, "generation 1 alone", |status| status["generations"].as_array().unwrap().len() == 1);
    assert_eq!((&seen["generations"][0]["generation"], &seen["failed"]), (&1.into(), &1.into()), "{seen:#}");
    assert!(seen["last_failure"]["why"].as_str().unwrap().contains("not ready"), "{seen:#}");
    restart(&w, 1, &["generation 3", "exit code 3", "old generation keeps serving"]);
    // The status file never named either.
    let first = w.until(1, "started").pid;
    assert_eq!(w.read("status").unwrap(), format!("1:{first}\n"));
    // Nothing follows by itself, and the old one has heard of nothing.
    assert!(w.journal().iter().all(|event| event.generation != "1" || event.what != "signal"), "{}", w.told());
    let log = w.read("log").unwrap();
    for (generation, why) in [(2, "not ready within 1.5s"), (3, "exit code 3")] {
        let line =
            log.lines().find(|line| line.contains(&format!("generation {generation} ")) && line.contains("failed"));
        assert!(line.is_some_and(|line| line.contains(why) && line.contains("generation 1 ")), "{log}");
    }
    restart(&w, 0, &["generation 4"]);
    w.until(1, "ended");
    w.send(Signal::TERM);
    assert_eq!(w.end(), Some(0));
}

#[test]
fn a_generation_is_ready_when_it_answers_and_not_when_the_old_one_does() {
    // What is ill is given all of `--ready-timeout` to get well.
    std::thread::scope(|scope| {
        for is_unix in [false, true] {
            scope.spawn(move || only_its_own_answers_count(is_unix));
        }
    });
}

fn only_its_own_answers_count(is_unix: bool) {
    let mut w = World::new(Kind::Ours);
    let port = w.port();
    let (pid, socket) = (w.path("pid"), w.path("socket"));
    let url = if is_unix { format!("unix:{socket}") } else { format!("http://127.0.0.1:{port}/") };
    let place = format!("127.0.0.1:{port}");
    w.start_as(&[
        "--port",
        &place,
        "--path",
        &socket,
        "--pid-file",
        &pid,
        "--ready",
        &url,
        "--ready-timeout",
        "15",
        "--interval",
        "0",
        "--",
        "sh",
        "-c",
        SECOND_IS_ILL,
        OROSHI,
    ]);
    // Its file is there a moment before anybody listens at it.
    w.file("log", "the first start", |log| log.contains("generation 1 "));
    until_status(&w, "generation 1 serves", |status| status["state"] == "serving");
    // The old one answers with 200 at the same address.
    restart(&w, 1, &["generation 2", "status 500", "old generation keeps serving"]);
    restart(&w, 0, &["generation 3"]);
    let ran = bench(&["--format", "json", "-n", "50", &url]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    all_answered(&ran.record(), 50);
    w.send(Signal::TERM);
    assert_eq!(w.end(), Some(0), "{}", w.told());
    assert!(!exists(&socket) && !exists(&pid));
}

#[test]
fn the_log_file_can_be_moved_away() {
    let Some(mut w) = world("the_log_file_can_be_moved_away") else { return };
    let log = w.path("own.log");
    w.start(&["--log-file", &log], &[]);
    w.until(1, "started");
    fs::rename(&log, w.path("own.log.1")).unwrap();
    w.send(Signal::USR1);
    w.file("own.log", "a new file", |text| text.contains("received USR1"));
    w.send(Signal::TERM);
    assert_eq!(w.end(), Some(0));
    assert!(w.read("own.log").unwrap().contains("all generations have ended"));
}

#[test]
fn a_log_command_that_ends_is_started_again() {
    let Some(mut w) = world("a_log_command_that_ends_is_started_again") else { return };
    // It says who it is, so that it can be killed.
    w.start(&["--log-file", &format!("| echo $$ >>{}; exec cat >>{}", w.path("who"), w.path("piped.log"))], &[]);
    w.until(1, "started");
    let who = w.file("who", "a number", |text| text.ends_with('\n'));
    send(who.trim().parse().unwrap(), Signal::KILL);
    w.file("piped.log", "its end", |text| text.contains("ended by signal KILL") && text.contains(": started again"));
    w.send(Signal::TERM);
    assert_eq!(w.end(), Some(0));
}

/// The exit code was 0, and each line that the command wrote failed.
#[test]
fn a_log_command_that_cannot_be_run_ends_the_start() {
    let w = World::new(Kind::Ours);
    let ran = w.path("ran");
    for flags in [&[][..], &["--daemonize"]] {
        for (command, how, said) in
            [("| /nonexistent/logger", "exit code 127", "logger"), ("|echo sorry >&2; exit 3", "exit code 3", "sorry")]
        {
            let words = [flags, &["--log-file", command, "--", "touch", &ran]].concat();
            w.run(&words).said(
                1,
                &["the log command `", how, "expected one that reads", said, "next: read the log command's output"],
            );
        }
    }
    assert!(!exists(&ran), "nothing was started");
}

/// The command was killed by PIPE, or its lines were lost, until its next generation.
#[test]
fn what_is_written_while_the_log_command_is_down_waits_for_it() {
    let mut w = World::new(Kind::Ours);
    let [pid, down, who, log, go] = ["pid", "down", "who", "piped.log", "go"].map(|name| w.path(name));
    let logger = format!("| [ -e {down} ] && exit 4; echo $$ >>{who}; exec cat >>{log}");
    let service =
        r#"echo first; until [ -e "$0" ]; do sleep 0.01; done; echo second; echo third >&2; exec sleep 1000000"#;
    w.start_as(&["--pid-file", &pid, "--log-file", &logger, "--interval", "0", "--", "sh", "-c", service, &go]);
    w.file("piped.log", "its first line", |text| text.contains("first\n"));
    let seen = status(&w);
    assert_eq!((&seen["log_command"]["ends"], &seen["log_command"]["last_end"]), (&0.into(), &Value::Null), "{seen:#}");
    fs::write(&down, "").unwrap();
    send(w.read("who").unwrap().trim().parse().unwrap(), Signal::KILL);
    let seen = until_status(&w, "it goes down again and again", |status| {
        status["log_command"]["ends"].as_u64() >= Some(3) && status["log_command"]["pid"].is_null()
    });
    assert_eq!(seen["log_command"]["last_end"], "exit code 4", "{seen:#}");
    assert!(seen["log_command"]["next_start_in_s"].is_number(), "{seen:#}");
    let text = w.run(&["--status", "--pid-file", &pid]).out;
    assert!(text.contains("\nlog command: ") && text.contains("ago: exit code 4\n"), "{text}");
    fs::write(&go, "").unwrap();
    let runs = |status: &Value| fs::read_to_string(format!("/proc/{}/cmdline", status["generations"][0]["pid"]));
    until_status(&w, "the command has written", |status| runs(status).is_ok_and(|line| line.starts_with("sleep")));
    fs::remove_file(&down).unwrap();
    let text = w.file("piped.log", "all of it", |text| text.contains(": started again"));
    for line in ["\nsecond\n", "\nthird\n", "exit code 4, "] {
        assert!(text.contains(line), "{line:?} is not in {text}");
    }
    let seen = status(&w);
    assert_eq!((&seen["generations"][0]["generation"], &seen["died"]), (&1.into(), &0.into()), "{seen:#}");
    w.send(Signal::TERM);
    assert_eq!(w.end(), Some(0));
    assert!(w.read("piped.log").unwrap().ends_with("all generations have ended\n"));
}

/// A log command that reads nothing: a full pipe keeps whoever writes to it waiting.
#[test]
fn a_log_that_nobody_reads_stops_nobody() {
    let Some(mut w) = world("a_log_that_nobody_reads_stops_nobody") else { return };
    let (pid, log, full) = (w.path("pid"), format!("| exec sleep {}", HANG.as_secs()), w.path("full"));
    // It writes until it is kept waiting, and is so for more than a moment.
    let chatter = r#"perl -e 'use IO::Poll; open STDOUT, ">&", 2; my $p = IO::Poll->new; $p->mask(\*STDOUT => POLLOUT);
        syswrite STDOUT, "x" x 4096 while $p->poll(0.2) > 0; open F, ">", $ARGV[0]; close F; sleep 1 while 1' "$0""#;
    w.start_as(&["--pid-file", &pid, "--log-file", &log, "--interval", "0", "--", "sh", "-c", chatter, &full]);
    wait_for(|| w.told(), || exists(&full).then_some(()));
    assert_eq!(status(&w)["state"], "serving");
    w.send(Signal::TERM);
    assert_eq!(w.end(), Some(0));
}

#[test]
fn metrics_are_told_to_prometheus() {
    let Some(mut w) = world("metrics_are_told_to_prometheus") else { return };
    let control = w.path("control");
    w.start(&["--control", &control, "--path", &w.path("socket")], &[]);
    w.file("log", "it is ready", |log| log.contains("ready after"));
    let mut stream = UnixStream::connect(&control).unwrap();
    stream.set_read_timeout(Some(HANG)).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 ") && head.contains("text/plain; version=0.0.4"), "{head}");
    let samples: Vec<&str> = body.lines().filter(|line| !line.starts_with('#')).collect();
    let socket = format!("oroshi_start_waiting_connections{{socket=\"unix:{}\"}} 0", w.path("socket"));
    for wanted in [
        "oroshi_start_restarts_total 0",
        "oroshi_start_generation_processes{generation=\"1\",state=\"serving\"} 1",
        &socket,
    ] {
        assert!(samples.contains(&wanted), "{wanted}\n{body}");
    }
    assert!(body.ends_with('\n'));
    w.send(Signal::TERM);
    assert_eq!(w.end(), Some(0));
}

#[test]
fn a_crash_loop_slows_down() {
    let Some(mut w) = world("a_crash_loop_slows_down") else { return };
    let pid = w.path("pid");
    w.start(&["--pid-file", &pid, "--interval", "0", "--ready", "notify"], &["die=all"]);
    let log = w.file("log", "five failures", |text| text.matches("failed: exit code 3").count() >= 5);
    // The pause is counted from start to start: 0.1 s, and twice as long each time. On a busy machine a start may come
    // later than that, never sooner.
    let told_at = |what| log.lines().filter(move |line| line.contains(what)).map(seconds_of_the_minute);
    let begun = told_at(": starting (pid").next().unwrap();
    let starts: Vec<f64> = told_at(": started").map(|at| (at - begun).rem_euclid(60.0)).collect();
    assert!(starts.len() >= 5, "{log}");
    for (start, least) in starts.iter().zip([0.0, 0.1, 0.3, 0.7, 1.5]) {
        assert!(*start >= least - 0.001, "{starts:?}\n{log}");
    }
    let seen = status(&w);
    assert_eq!(seen["state"], "starting");
    assert!(seen["failed"].as_u64().unwrap() >= 5 && seen["last_failure"]["why"].is_string(), "{seen:#}");
    w.send(Signal::TERM);
    assert_eq!(w.end(), Some(0));
}

/// Of a line of the log: `2026-11-22T00:20:54.204Z oroshi start[23224]: ...`.
fn seconds_of_the_minute(line: &str) -> f64 {
    line[17..23].parse().unwrap()
}

#[test]
fn status_tells_generations_and_sockets() {
    let Some(mut w) = world("status_tells_generations_and_sockets") else { return };
    let port = w.port();
    let (pid, socket, place) = (w.path("pid"), w.path("socket"), format!("127.0.0.1:{port}"));
    // The probe never accepts.
    w.start(&["--pid-file", &pid, "--port", &place, "--path", &socket, "--backlog", "3"], &[]);
    let child = w.until(1, "started").pid;
    let _waiting: Vec<_> = (0..2).map(|_| UnixStream::connect(&socket).unwrap()).collect();
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], port));
    // More than there is room for: the kernel drops the others, whose clients try again.
    let knocking: Vec<_> = (0..8)
        .map(|_| {
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).unwrap();
            let _ = connect(&socket, &address); // EINPROGRESS
            socket
        })
        .collect();
    let seen =
        until_status(&w, "packets are dropped", |status| status["sockets"][0]["dropped_packets"].as_u64() > Some(0));
    assert_eq!((&seen["schema"], &seen["pid"]), (&"oroshi-start-status/1.1".into(), &w.superdaemon.into()));
    let tcp = &seen["sockets"][0];
    assert_eq!((&tcp["name"], &tcp["kind"], &tcp["descriptor"]), (&place.as_str().into(), &"tcp".into(), &3.into()));
    assert_eq!((&tcp["waiting"], &tcp["backlog"]), (&4.into(), &3.into()), "the kernel takes one more: {tcp:#}");
    let unix = &seen["sockets"][1];
    assert_eq!((&unix["waiting"], &unix["backlog"], &unix["kind"]), (&2.into(), &3.into(), &"unix".into()), "{unix:#}");
    let one = until_status(&w, "it serves", |status| status["state"] == "serving")["generations"][0].clone();
    assert_eq!((&one["generation"], &one["pid"], &one["processes"]), (&1.into(), &child.into(), &1.into()), "{one:#}");
    assert!(
        one["age_s"].as_f64() >= one["ready_after_s"].as_f64() && one["ready_after_s"].as_f64() >= Some(1.0),
        "{one:#}"
    );
    // The same for people.
    let ran = w.run(&["--status", "--pid-file", &pid]);
    for words in ["serving", &place, &format!("unix:{socket}"), &child.to_string(), "waiting", "dropped"] {
        assert!(ran.code == Some(0) && ran.out.contains(words), "`{words}` is not in {ran:?}");
    }
    drop(knocking);
    w.send(Signal::TERM);
    w.end();
    w.run(&["--status", "--pid-file", &pid]).said(1, &["no superdaemon", "pid"]);
}

#[test]
fn sockets_files_are_taken_over_only_from_nobody() {
    let Some(mut w) = world("sockets_files_are_taken_over_only_from_nobody") else { return };
    let (live, plain, socket) = (w.path("live.sock"), w.path("plain"), w.path("socket"));
    let _listens = UnixListener::bind(&live).unwrap();
    w.write("plain", "not to be lost\n");
    let holder = format!("process {} already listens", std::process::id());
    for (path, words) in [(&live, &holder[..]), (&plain, "regular file")] {
        let ran = w.run(&["--path", path, "--", "true"]);
        ran.said(1, &[path, words]);
        assert!(exists(path), "{ran:?}");
    }
    assert_eq!(w.read("plain").unwrap(), "not to be lost\n");
    // Nobody but its group may come in.
    w.start(&["--path", &socket, "--path-mode", "0660"], &[]);
    w.until(1, "started");
    let metadata = fs::metadata(&socket).unwrap();
    assert_eq!(metadata.permissions().mode() & 0o7777, 0o660);
    if rustix::process::geteuid().is_root() {
        let owned = w.path("owned.sock");
        let mut other = World::new(Kind::Ours);
        other.start(&["--path", &owned, "--path-owner", "65534:65533"], &[]);
        other.until(1, "started");
        let metadata = fs::metadata(&owned).unwrap();
        assert_eq!((metadata.uid(), metadata.gid()), (65534, 65533));
    }
    // A second one beside it is told who is there.
    w.run(&["--path", &socket, "--", "true"]).said(1, &[&socket, &format!("process {}", w.superdaemon)]);
    assert!(UnixStream::connect(&socket).is_ok(), "{}", w.told());
    w.send(Signal::TERM);
    w.end();
    assert!(!exists(&socket));
}

#[test]
fn abstract_names_are_served() {
    let Some(mut w) = world("abstract_names_are_served") else { return };
    let name = format!("@oroshi-start-{}", std::process::id());
    w.start(&["--path", &name], &[]);
    w.until(1, "started");
    let port = w.journal().into_iter().find(|event| event.what == "port").unwrap();
    assert_eq!((&port.more[0], &port.more[2]), (&name, &format!("{name} listens")));
    w.send(Signal::TERM);
    w.end();
    w.start_as(&["--path", &name, "--", OROSHI, "target"]);
    w.file("log", "it listens", |log| log.contains("listening on unix:"));
    all_answered(&bench(&["--format", "json", "-n", "20", &format!("unix:{name}")]).record(), 20);
    w.send(Signal::TERM);
    assert_eq!(w.end(), Some(0));
}

#[test]
fn mistakes_are_told_with_what_was_expected() {
    let Some(mut w) = world("mistakes_are_told_with_what_was_expected") else { return };
    let listens = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = listens.local_addr().unwrap().to_string();
    let missing = w.path("no/folder/file");
    let usage: &[(&[&str], &[&str])] = &[
        (&[], &["no command", "-- ./server"]),
        (&["--prot", "80", "--", "true"], &["--prot", "--port"]),
        (&["--port", "http", "--", "true"], &["--port", "`http`", "127.0.0.1:8080"]),
        (&["--port", "70000", "--", "true"], &["--port", "`70000`", "65535"]),
        (&["--port", "80=x", "--", "true"], &["--port", "`80=x`"]),
        (&["--port", "80=5", "--port", "81=5", "--", "true"], &["descriptor 5"]),
        (&["--interval", "soon", "--", "true"], &["--interval", "`soon`"]),
        (&["--backlog", "many", "--", "true"], &["--backlog", "`many`"]),
        (&["--signal-on-hup", "BOO", "--", "true"], &["--signal-on-hup", "`BOO`"]),
        (&["--path-mode", "999", "--", "true"], &["--path-mode", "`999`"]),
        (&["--path-owner", "no-such-user", "--", "true"], &["no-such-user"]),
        (&["--ready", "perhaps", "--", "true"], &["--ready", "`perhaps`", "notify"]),
        (&["--ready", "https://localhost/", "--", "true"], &["https", "http://"]),
        (&["--daemonize", "--", "true"], &["--log-file"]),
        (&["--restart"], &["--restart", "--pid-file"]),
        (&["--stop"], &["--stop", "--pid-file"]),
        (&["--status"], &["--status", "--pid-file"]),
        (&["--json", "--", "true"], &["--json", "--status"]),
    ];
    for (flags, words) in usage {
        w.run(flags).said(2, words);
    }
    // All at once.
    w.run(&["--port", "x", "--interval", "y", "--ready", "z"]).said(2, &["`x`", "`y`", "`z`", "no command"]);
    let failures: &[(&[&str], &[&str])] = &[
        (&["--port", &taken, "--", "true"], &[&taken, "already listens"]),
        (&["--port", "nobody.invalid:80", "--", "true"], &["nobody.invalid:80", "no address"]),
        (&["--path", &missing, "--", "true"], &[&missing]),
        (&["--pid-file", &missing, "--", "true"], &[&missing]),
        (&["--status-file", &missing, "--", "true"], &[&missing]),
        (&["--log-file", &missing, "--", "true"], &[&missing]),
        (&["--stop", "--pid-file", &missing], &[&missing]),
    ];
    for (flags, words) in failures {
        w.run(flags).said(1, words);
    }
    // A pid file that somebody holds, and one whose process has ended.
    let (pid, status) = (w.path("pid"), w.path("status"));
    w.start(&["--pid-file", &pid, "--status-file", &status], &[]);
    w.until(1, "started");
    w.file("pid", "a number", |text| text.ends_with('\n'));
    w.run(&["--pid-file", &pid, "--", "true"]).said(1, &[&pid, &format!("process {}", w.superdaemon)]);
    w.send(Signal::KILL);
    w.end();
    w.run(&["--stop", "--pid-file", &pid]).said(1, &[&pid, &w.superdaemon.to_string(), "has ended"]);
    send(w.until(1, "started").pid, Signal::KILL);
}

/// `start_server` tries for ever, and says nothing.
#[test]
fn a_command_that_cannot_be_run_ends_it_at_once_also_in_the_background() {
    let w = World::new(Kind::Ours);
    fs::write(w.path("no-program"), "").unwrap();
    let no_program = w.path("no-program");
    let cases = [
        (
            "no-such-program-of-oroshi",
            "cannot start `no-such-program-of-oroshi`: it is in none of the folders of PATH",
            "127",
        ),
        ("/nonexistent", "cannot start `/nonexistent`: there is no such file", "127"),
        (&no_program, "its file may not be executed", "126"),
    ];
    for (command, why, code) in cases {
        let code = format!("the command cannot be run: exit code {code}");
        for ready in ["alive", "notify"] {
            w.run(&["--ready", ready, "--", command]).said(1, &[why, &code, "next: "]);
        }
        let log = w.path("background.log");
        w.run(&["--daemonize", "--log-file", &log, "--", command]).said(1, &[&code, "the log says more"]);
        assert!(w.read("background.log").unwrap().contains(why));
        fs::remove_file(log).unwrap();
    }
}

/// What became of a command that was there, and is gone while it is being replaced, is no reason to end.
#[test]
fn a_command_that_has_served_is_tried_again_when_its_file_is_gone() {
    let mut w = World::new(Kind::Ours);
    let (program, pid) = (w.path("program"), w.path("pid"));
    let install = |text: &str| {
        fs::write(&program, text).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    };
    install("#!/bin/sh\nexec sleep 1000000\n");
    w.start_as(&["--ready", "alive", "--pid-file", &pid, "--", &program]);
    w.file("log", "it serves", |log| log.contains("generation 1 ") && log.contains("ready after"));
    fs::remove_file(&program).unwrap();
    restart(&w, 1, &["generation 2", "exit code 127", "old generation keeps serving"]);
    install("#!/bin/sh\nexec sleep 1000000\n");
    restart(&w, 0, &["generation 3"]);
    w.send(Signal::TERM);
    assert_eq!(w.end(), Some(0));
}
