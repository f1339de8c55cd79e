//! Debian's `start_server` and `oroshi start` through the same situations: what the program behind them is
//! given, and which signals it gets and when.
//!
//! A situation is a function that does something to a superdaemon. The probe behind it writes everything down; both
//! accounts must agree, up to the differences that stand here by name.
//!
//! The files beside it, and its settings, are in `start_differential_settings.rs`.

use std::process::Command;

use crate::superdaemon::compare::{Difference, Situation, compare, ends};
use crate::superdaemon::{World, exists, has_taken_its_signals, send, wait_for};
use rustix::process::Signal;

#[test]
fn both_give_a_child_the_same_sockets_and_surroundings() {
    compare("both_give_a_child_the_same_sockets_and_surroundings", GIVEN);
}

#[test]
fn both_replace_generations_alike() {
    compare("both_replace_generations_alike", GENERATIONS);
}

const GIVEN: &[Situation] = &[
    ("one port", one_port, &[]),
    ("ports and paths", ports_and_paths, &[]),
    ("descriptors that are asked for", pinned, &[]),
    ("nothing to listen at", |w| first_start_with(w, &[]), &[]),
    ("a port of UDP", udp, &[]),
    ("a backlog", backlog, &[]),
    (
        "a working folder",
        |w| {
            std::fs::create_dir(w.path("elsewhere")).unwrap();
            let elsewhere = w.path("elsewhere");
            first_start_with(w, &["--dir", &elsewhere]);
        },
        &[],
    ),
    ("a umask", umask, &[]),
    ("words with blanks, and no --", words, &[]),
    ("a socket's file that was left", stale_path, &[]),
];

/// `start_server` repeats a signal that a generation has got already; for many programs a second one means "at once".
const TOLD_ONCE: &[Difference] = &[(Some("1 signal TERM, 1 2 started"), None)];

const GENERATIONS: &[Situation] = &[
    ("HUP", |w| hup_with(w, &[], "TERM"), &[]),
    ("HUP, another signal", |w| hup_with(w, &["--signal-on-hup=USR1"], "USR1"), &[]),
    ("HUP, a signal in small letters", |w| hup_with(w, &["--signal-on-hup", "sigquit"], "QUIT"), &[]),
    ("TERM, another signal", |w| ended_with(w, &["--signal-on-term=SIGQUIT"], Signal::TERM, "QUIT"), &[]),
    (
        "TERM, where only HUP has another signal",
        |w| ended_with(w, &["--signal-on-hup=USR1"], Signal::TERM, "TERM"),
        &[],
    ),
    ("INT", |w| ended_with(w, &[], Signal::INT, "TERM"), &[]),
    ("INT, where TERM has another signal", |w| ended_with(w, &["--signal-on-term=QUIT"], Signal::INT, "TERM"), &[]),
    ("a child that dies at the start", dies_at_start, &[]),
    ("a new generation that dies at its start", dies_at_hup, &[]),
    ("a child that is killed", killed, &[]),
    ("a child that ends by itself, while an older one drains", ends_while_old_drains, &[]),
    ("TERM while nothing stays up", term_in_a_crash_loop, &[]),
    ("TERM while an old generation drains", |w| term_while_draining(w, &[], "TERM"), TOLD_ONCE),
    (
        "TERM while an old generation drains that was told something else",
        |w| term_while_draining(w, &["--signal-on-hup=USR1"], "USR1"),
        &[],
    ),
    ("more signals while it ends", signals_while_ending, &[]),
    ("HUP while an old generation drains", hup_while_draining, &[(Some("1 signal TERM, 1 2 3 started"), None)]),
    ("HUP while a new generation starts", hup_while_starting, &[]),
    ("a child that ignores what it is told", deaf, TOLD_ONCE),
    ("the superdaemon is killed", superdaemon_killed, &[]),
];

// What the situations do. What they note must not depend on time.

/// Starts one, sees its first generation, and ends it.
fn first_start_with(w: &mut World, flags: &[&str]) {
    w.start(flags, &["one word", ""]);
    w.until(1, "started");
    ends(w);
}

fn one_port(w: &mut World) {
    let port = w.port();
    first_start_with(w, &["--port", &port.to_string()]);
}

fn ports_and_paths(w: &mut World) {
    let ports = [w.port(), w.port(), w.port()];
    let mut flags = vec![
        format!("--port=127.0.0.1:{}", ports[0]),
        format!("--path={}", w.path("one.sock")),
        format!("--port={}", ports[1]),
        format!("--port=localhost:{}", ports[2]),
    ];
    if let Some(port) = w.port6() {
        flags.push(format!("--port=[::1]:{port}"));
    }
    flags.push(format!("--path={}", w.path("two=2.sock")));
    let flags: Vec<_> = flags.iter().map(String::as_str).collect();
    first_start_with(w, &flags);
    let left = ["one.sock", "two=2.sock"].map(|name| exists(&w.path(name)));
    w.note(format!("the sockets' files are there: {left:?}"));
}

fn pinned(w: &mut World) {
    let (one, two) = (w.port(), w.port());
    first_start_with(w, &["--port", &format!("{one}=41"), "--port", &format!("127.0.0.1:{two}=50")]);
}

fn udp(w: &mut World) {
    let port = w.port();
    first_start_with(w, &["--port", &format!("u{port}"), "--port", &format!("127.0.0.1:u{port}")]);
}

fn backlog(w: &mut World) {
    let port = w.port();
    first_start_with(w, &["--backlog=7", "--port", &format!("127.0.0.1:{port}")]);
}

fn umask(w: &mut World) {
    w.umask(0o027);
    let path = w.path("umask.sock");
    first_start_with(w, &["--path", &path]);
}

fn words(w: &mut World) {
    let port = w.port();
    let probe = w.probe(&["a  b", "'", "$HOME", "*"]);
    let mut line = vec!["--interval".to_owned(), w.interval.to_string(), "--port".to_owned(), port.to_string()];
    line.extend(probe);
    w.start_as(&line.iter().map(String::as_str).collect::<Vec<_>>());
    w.until(1, "started");
    ends(w);
}

fn stale_path(w: &mut World) {
    let path = w.path("stale.sock");
    // By a process of its own: a child that another test is just starting would hold a listener of ours for a moment.
    let left = "IO::Socket::UNIX->new(Listen => 1, Local => shift) or die $!";
    assert!(Command::new("perl").args(["-MIO::Socket::UNIX", "-e", left, &path]).status().unwrap().success());
    first_start_with(w, &["--path", &path]);
}

/// HUP, with flags that make it this signal.
fn hup_with(w: &mut World, flags: &[&str], signal: &str) {
    let port = w.port();
    w.start(&[&["--port", &port.to_string()], flags].concat(), &[]);
    w.until(1, "started");
    w.send(Signal::HUP);
    w.until(1, &format!("signal {signal}"));
    w.until(1, "ended");
    w.until(2, "started");
    ends(w);
}

fn ended_with(w: &mut World, flags: &[&str], by: Signal, signal: &str) {
    w.start(flags, &[]);
    w.until(1, "started");
    w.send(by);
    w.until(1, &format!("signal {signal}"));
    let code = w.end();
    w.note(format!("ended with {code:?}"));
}

fn dies_at_start(w: &mut World) {
    let status = w.path("status");
    w.start(&["--status-file", &status], &["die=1,2"]);
    let third = w.until(3, "started");
    w.file("status", "generation 3 alone", |text| text == format!("3:{}\n", third.pid));
    ends(w);
}

fn dies_at_hup(w: &mut World) {
    let status = w.path("status");
    w.start(&["--status-file", &status], &["die=2,3"]);
    w.until(1, "started");
    w.send(Signal::HUP);
    let fourth = w.until(4, "started");
    w.until(1, "ended");
    w.file("status", "generation 4 alone", |text| text == format!("4:{}\n", fourth.pid));
    ends(w);
}

fn killed(w: &mut World) {
    let port = w.port();
    w.start(&["--port", &port.to_string()], &[]);
    let first = w.until(1, "started");
    send(first.pid, Signal::KILL);
    w.until(2, "started");
    ends(w);
}

fn ends_while_old_drains(w: &mut World) {
    let status = w.path("status");
    w.start(&["--status-file", &status], &["hold=1"]);
    let first = w.until(1, "started");
    w.send(Signal::HUP);
    w.until(1, "signal TERM");
    send(w.until(2, "started").pid, Signal::QUIT);
    let third = w.until(3, "started");
    w.file("status", "generations 1 and 3", |text| text == format!("1:{}\n3:{}\n", first.pid, third.pid));
    w.write("go", "");
    w.file("status", "generation 3 alone", |text| text == format!("3:{}\n", third.pid));
    ends(w);
}

fn term_in_a_crash_loop(w: &mut World) {
    w.start(&[], &["die=all"]);
    w.until(2, "died");
    w.send(Signal::TERM);
    let code = w.end();
    let most = w.journal().iter().filter_map(|event| event.generation.parse::<u32>().ok()).max().unwrap();
    w.note(format!("ended with {code:?}"));
    w.write("journal", ""); // How many there were by then is a matter of time.
    w.note(format!("at least two generations: {}", most >= 2));
}

fn term_while_draining(w: &mut World, flags: &[&str], first: &str) {
    let status = w.path("status");
    w.start(&[&["--status-file", &status], flags].concat(), &["hold=1"]);
    w.until(1, "started");
    w.send(Signal::HUP);
    w.until(1, &format!("signal {first}"));
    w.until(2, "started");
    w.send(Signal::TERM);
    w.until(2, "ended");
    // By then whatever was to be sent has been sent.
    w.file("status", "generation 1", |text| text.starts_with("1:") && text.lines().count() == 1);
    w.write("go", "");
    let code = w.end();
    w.note(format!("ended with {code:?}"));
}

fn signals_while_ending(w: &mut World) {
    w.start(&[], &["hold=1"]);
    w.until(1, "started");
    w.send(Signal::TERM);
    w.until(1, "signal TERM");
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        w.send(signal);
        wait_for(|| "it took the signal".into(), || has_taken_its_signals(w.superdaemon).then_some(()));
    }
    w.write("go", "");
    let code = w.end();
    w.note(format!("ended with {code:?}"));
}

fn hup_while_draining(w: &mut World) {
    let status = w.path("status");
    w.start(&["--status-file", &status], &["hold=1"]);
    w.until(1, "started");
    w.send(Signal::HUP);
    w.until(1, "signal TERM");
    w.until(2, "started");
    w.send(Signal::HUP);
    w.until(2, "ended");
    w.until(3, "started");
    w.file("status", "generations 1 and 3", |text| {
        text.starts_with("1:") && text.contains("\n3:") && text.lines().count() == 2
    });
    w.write("go", "");
    w.until(1, "ended");
    ends(w);
}

fn hup_while_starting(w: &mut World) {
    w.start(&[], &[]);
    w.until(1, "started");
    w.send(Signal::HUP);
    w.until(2, "started");
    w.send(Signal::HUP);
    w.until(3, "started");
    w.until(1, "ended");
    w.until(2, "ended");
    ends(w);
}

fn deaf(w: &mut World) {
    let status = w.path("status");
    w.start(&["--status-file", &status], &["deaf=1"]);
    let first = w.until(1, "started");
    w.send(Signal::HUP);
    w.until(1, "signal TERM");
    let second = w.until(2, "started");
    w.file("status", "both", |text| text == format!("1:{}\n2:{}\n", first.pid, second.pid));
    w.send(Signal::TERM);
    w.until(2, "ended");
    w.file("status", "the old one alone", |text| text == format!("1:{}\n", first.pid));
    // It takes signals as they come: when it has this one, it has those before.
    send(first.pid, Signal::WINCH);
    w.until(1, "signal WINCH");
    send(first.pid, Signal::KILL);
    let code = w.end();
    w.note(format!("ended with {code:?}"));
}

fn superdaemon_killed(w: &mut World) {
    w.start(&[], &[]);
    let first = w.until(1, "started");
    w.send(Signal::KILL);
    w.end();
    // It still hears, so it is there.
    send(first.pid, Signal::USR2);
    w.until(1, "signal USR2");
    send(first.pid, Signal::TERM);
    w.until(1, "ended");
}
