//! Debian's `start_server` and `oroshi start` through the same situations: what stands in the files beside
//! them, what their own clients do, and what their flags and variables mean.
//!
//! A situation is a function that does something to a superdaemon. The probe behind it writes everything down; both
//! accounts must agree, up to the differences that stand here by name.

use std::process::Stdio;

use crate::superdaemon::compare::{Situation, compare, ends};
use crate::superdaemon::{Event, Kind, World, exists, gone, now, send, wait_for};
use rustix::process::Signal;

#[test]
fn both_keep_the_same_files_and_settings() {
    compare("both_keep_the_same_files_and_settings", SETTINGS);
}

const SETTINGS: &[Situation] = &[
    ("files of status and pid", files, &[]),
    ("--restart", |w| restart(w, w.kind), &[]),
    ("--stop", |w| stop(w, w.kind), &[]),
    ("--restart and --stop by the other's command", by_the_other, &[]),
    ("--restart where nobody is", nobody_is_there, &[]),
    ("--kill-old-delay", |w| delayed(w, &["--kill-old-delay=2"], 2.0), &[]),
    (
        "KILL_OLD_DELAY",
        |w| {
            w.env("KILL_OLD_DELAY", "2");
            delayed(w, &[], 2.0);
        },
        &[],
    ),
    (
        "a flag against its variable",
        |w| {
            w.env("KILL_OLD_DELAY", "1000");
            delayed(w, &["--kill-old-delay", "0"], 0.0);
        },
        &[],
    ),
    (
        "--enable-auto-restart",
        |w| {
            let interval = format!("--auto-restart-interval={}", w.interval);
            auto_restart(w, &["--enable-auto-restart", &interval, "--kill-old-delay=0"]);
        },
        &[],
    ),
    (
        "ENABLE_AUTO_RESTART",
        |w| {
            w.env("ENABLE_AUTO_RESTART", "1");
            w.env("AUTO_RESTART_INTERVAL", &w.interval.to_string());
            w.env("KILL_OLD_DELAY", "0");
            auto_restart(w, &[]);
        },
        &[],
    ),
    (
        "--enable-auto-restart waits before it kills",
        |w| delayed(w, &["--enable-auto-restart"], 5.0),
        // start_server fills the default in after its first start.
        &[(None, Some("1 env AUTO_RESTART_INTERVAL=360"))],
    ),
    (
        "--envdir",
        |w| {
            let envdir = w.path("env");
            envdir_changes(w, &["--envdir", &envdir]);
        },
        &[],
    ),
    (
        "ENVDIR",
        |w| {
            let envdir = w.path("env");
            w.env("ENVDIR", &envdir);
            envdir_changes(w, &[]);
        },
        &[],
    ),
    ("settings from --envdir", settings_from_envdir, &[]),
    ("--log-file", log_file, &[]),
    ("--log-file, a command", log_command, &[]),
    ("--daemonize", daemonize, &[]),
    ("what cannot be done", mistakes, &[]),
];

// What the situations do. What they note must not depend on time.

fn files(w: &mut World) {
    let (pid, status) = (w.path("pid"), w.path("status"));
    w.start(&["--pid-file", &pid, "--status-file", &status], &["hold=1,2"]);
    let first = w.until(1, "started");
    let seen = w.file("pid", "the superdaemon's pid", |text| !text.is_empty());
    w.note(format!("pid file is right: {}", seen == format!("{}\n", w.superdaemon)));
    w.file("status", "generation 1", |text| text == format!("1:{}\n", first.pid));
    w.send(Signal::HUP);
    let second = w.until(2, "started");
    w.file("status", "both", |text| text == format!("1:{}\n2:{}\n", first.pid, second.pid));
    w.until(1, "signal TERM");
    w.write("go", "");
    w.file("status", "generation 2", |text| text == format!("2:{}\n", second.pid));
    std::fs::remove_file(w.path("go")).unwrap();
    w.send(Signal::TERM);
    w.until(2, "signal TERM");
    // While it ends, both files are still there.
    w.file("status", "generation 2", |text| text == format!("2:{}\n", second.pid));
    w.note(format!("pid file while it ends: {}", w.read("pid") == Some(format!("{}\n", w.superdaemon))));
    w.write("go", "");
    let code = w.end();
    w.note(format!("ended with {code:?}, files: {:?}", (exists(&pid), exists(&status))));
}

/// A restart and one more by a client of this kind. It waits until the new generation is alone.
fn restart(w: &mut World, client: Kind) {
    let (pid, status) = (w.path("pid"), w.path("status"));
    let flags = ["--pid-file", &pid, "--status-file", &status];
    w.start(&flags, &[]);
    w.file("status", "a generation", |text| text.starts_with("1:"));
    for (old, new) in [(1, 2), (2, 3)] {
        let ran = w.run_by(client, &[&["--restart"], &flags[..]].concat());
        w.until(new, "started");
        let has_ended = |event: &Event| event.generation == old.to_string() && event.what == "ended";
        let ended = w.journal().iter().any(has_ended);
        let alone =
            w.read("status").is_some_and(|text| text.starts_with(&format!("{new}:")) && text.lines().count() == 1);
        w.note(format!("--restart: {:?}, the old one has ended: {ended}, the new one is alone: {alone}", ran.code));
    }
    ends(w);
}

/// The end by a client of this kind, which waits for it.
fn stop(w: &mut World, client: Kind) {
    let pid = w.path("pid");
    w.start(&["--pid-file", &pid], &["hold=1"]);
    w.until(1, "started");
    w.file("pid", "a number", |text| text.ends_with('\n'));
    let mut stopping = client.command();
    stopping.args(["--stop", "--pid-file", &pid]).stderr(Stdio::null()).current_dir(w.path(""));
    let mut stopping = stopping.spawn().unwrap();
    w.until(1, "signal TERM");
    w.note(format!("--stop waits: {}", stopping.try_wait().unwrap().is_none()));
    w.write("go", "");
    let code = wait_for(|| format!("--stop is done\n{}", w.told()), || stopping.try_wait().unwrap()).code();
    w.note(format!("--stop: {code:?}, the pid file is there: {}", exists(&pid)));
    let code = w.end();
    w.note(format!("ended with {code:?}"));
}

fn by_the_other(w: &mut World) {
    let other = if w.kind == Kind::Ours { Kind::Theirs } else { Kind::Ours };
    restart(w, other);
    std::fs::remove_file(w.path("journal")).unwrap();
    stop(w, other);
}

fn nobody_is_there(w: &mut World) {
    let (pid, status) = (w.path("pid"), w.path("status"));
    for flags in [
        &["--restart"][..],
        &["--restart", "--pid-file", &pid],
        &["--restart", "--pid-file", &pid, "--status-file", &status],
        &["--stop"],
        &["--stop", "--pid-file", &pid],
    ] {
        let ran = w.run(flags);
        w.note(format!("{flags:?} fails: {}, says something: {}", ran.code != Some(0), !ran.err.is_empty()));
    }
}

/// The old generation is told to end so many seconds after the new one was found to be well, or later.
fn delayed(w: &mut World, flags: &[&str], seconds: f64) {
    w.start(flags, &[]);
    w.until(1, "started");
    let begun = now();
    w.send(Signal::HUP);
    let told = w.until(1, "signal TERM");
    let least = f64::from(w.interval) + seconds;
    w.note(format!("told after the interval and the delay: {}", told.at - begun >= least));
    w.until(1, "ended");
    w.until(2, "started");
    ends(w);
}

fn auto_restart(w: &mut World, flags: &[&str]) {
    w.start(flags, &[]);
    w.until(2, "ended");
    w.until(3, "started");
    w.send(Signal::TERM);
    let code = w.end();
    w.note(format!("ended with {code:?}"));
    // When the last ones came and went is a matter of time; of the first two it is not.
    let text = w.read("journal").unwrap();
    let early = text.lines().filter(|line| ["1", "2"].contains(&line.split('\t').nth(2).unwrap()));
    let early: String = early.map(|line| format!("{line}\n")).collect();
    w.write("journal", &early);
}

fn envdir_changes(w: &mut World, flags: &[&str]) {
    std::fs::create_dir(w.path("env")).unwrap();
    w.env("INHERITED", "from outside");
    w.env("REPLACED", "from outside");
    for (name, value) in [
        ("env/REPLACED", "from the folder\n"),
        ("env/CHANGED", "one"),
        ("env/LINES", "first\nsecond\n"),
        ("env/BLANKS", "  a b \t\n"),
        ("env/EMPTY", ""),
        ("env/EMPTY_LINE", "\nsecond\n"),
        ("env/.HIDDEN", "no"),
    ] {
        w.write(name, value);
    }
    std::fs::create_dir(w.path("env/FOLDER")).unwrap();
    w.start(flags, &["die=3"]);
    w.until(1, "started");
    w.write("env/CHANGED", "two");
    w.write("env/ADDED", "late");
    w.send(Signal::HUP);
    w.until(1, "ended");
    w.until(2, "started");
    // A generation that follows by itself reads it too, and what was added can go away again.
    w.write("env/CHANGED", "three");
    std::fs::remove_file(w.path("env/ADDED")).unwrap();
    w.send(Signal::HUP);
    w.until(2, "ended");
    send(w.until(4, "started").pid, Signal::KILL);
    w.until(5, "started");
    ends(w);
}

fn settings_from_envdir(w: &mut World) {
    std::fs::create_dir(w.path("env")).unwrap();
    w.write("env/KILL_OLD_DELAY", "2\n");
    let envdir = w.path("env");
    // The file has the last word.
    delayed(w, &["--envdir", &envdir, "--kill-old-delay", "0"], 2.0);
}

fn log_file(w: &mut World) {
    let log = w.path("own.log");
    w.write("own.log", "what was there\n");
    w.start(&["--log-file", &log], &[]);
    logged(w, "own.log");
    let stays = w.read("own.log").unwrap().starts_with("what was there\n");
    w.note(format!("what was there stays: {stays}"));
}

fn log_command(w: &mut World) {
    let log = w.path("piped.log");
    w.start(&["--log-file", &format!("| cat >{log}")], &[]);
    logged(w, "piped.log");
}

/// What both generations write, on both outputs, comes to the log, and nowhere else.
fn logged(w: &mut World, log: &str) {
    w.until(1, "started");
    w.send(Signal::HUP);
    w.until(1, "ended");
    w.until(2, "started");
    ends(w);
    let wanted = ["out of 1\n", "err of 1\n", "out of 2\n", "err of 2\n"];
    w.file(log, "all that was written", |text| wanted.iter().all(|line| text.contains(line)));
    let elsewhere = w.read("log").unwrap();
    w.note(format!("written elsewhere: {}", wanted.iter().any(|line| elsewhere.contains(line))));
}

fn daemonize(w: &mut World) {
    let (pid, log) = (w.path("pid"), w.path("own.log"));
    let port = w.port();
    w.start(&["--daemonize", "--pid-file", &pid, "--log-file", &log, "--port", &port.to_string()], &[]);
    let started = w.superdaemon;
    let code = w.end();
    w.note(format!("the command itself ended with {code:?}"));
    w.superdaemon = w.file("pid", "a number", |text| text.ends_with('\n')).trim().parse().unwrap();
    w.until(1, "started");
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", w.superdaemon)).unwrap();
    let fields: Vec<u32> =
        stat.rsplit(')').next().unwrap().split_whitespace().skip(1).take(4).map(|f| f.parse().unwrap_or(0)).collect();
    let (group, session, terminal) = (fields[1], fields[2], fields[3]);
    w.note(format!("another process: {}", w.superdaemon != started));
    w.note(format!(
        "a session of its own, without leading it or a terminal: {}",
        session != std::process::id() && session != w.superdaemon && group == session && terminal == 0
    ));
    w.send(Signal::HUP);
    w.until(1, "ended");
    w.until(2, "started");
    let daemon = w.superdaemon;
    w.send(Signal::TERM);
    wait_for(|| "the daemon's end".into(), || gone(daemon).then_some(()));
    w.note(format!("the pid file is there: {}", exists(&pid)));
}

fn mistakes(w: &mut World) {
    let port = w.port();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let port = port.to_string();
    for flags in [
        &["--port", &port][..],
        &["--port", "http", "--", "true"],
        &["--port", "127.0.0.1:http", "--", "true"],
        &["--port", "nobody.invalid:80", "--", "true"],
        &["--port", &taken, "--", "true"],
        &["--path", "no/such/folder/socket", "--", "true"],
        &["--log-file", "no/such/folder/log", "--", "true"],
        &["--pid-file", "no/such/folder/pid", "--", "true"],
        &["--daemonize", "--", "true"],
        &["--no-such-flag", "--", "true"],
        &["--interval", "soon", "--", "true"],
    ] {
        let ran = w.run(flags);
        let flags = flags.join(" ").replace(&taken, "TAKEN");
        w.note(format!("{flags}: fails: {}, says something: {}", ran.code != Some(0), !ran.err.is_empty()));
    }
}
