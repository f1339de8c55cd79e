//! What becomes of processes behind `oroshi start`: those that are killed, those that will not end, orphans, and a
//! thousand generations one after the other.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

use crate::common::OROSHI;
use crate::common::support::{HANG, skipped};
use crate::superdaemon::{Kind, World, gone, have, send, state, wait_for};
use rustix::process::Signal;

/// A world for `oroshi start`; or it is noted that the test is left out.
fn world(test: &str) -> Option<World> {
    have(test, &["perl"]).then(|| World::new(Kind::Ours))
}

#[test]
fn a_child_that_is_killed_is_replaced() {
    let Some(mut w) = world("a_child_that_is_killed_is_replaced") else { return };
    let pid = w.path("pid");
    w.start(&["--pid-file", &pid, "--ready", "notify", "--interval", "0"], &["notify=all"]);
    for generation in 1..=3 {
        let child = w.until(generation, "told").pid;
        // Before it is ready it would have failed, and not died.
        w.file("log", "it is ready", |log| log.contains(&format!("generation {generation} (pid {child}): ready")));
        send(child, Signal::KILL);
        w.file("log", "its end", |log| {
            log.contains(&format!("generation {generation} (pid {child}): ended unexpectedly"))
        });
        // Waited for, and not left as a zombie.
        wait_for(|| format!("{child}: {:?}", state(child)), || state(child).is_none().then_some(()));
    }
    w.until(4, "told");
    let ran = w.run(&["--status", "--json", "--pid-file", &pid]);
    let status: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!((&status["died"], &status["killed"]), (&3.into(), &0.into()), "{status:#}");
    w.send(Signal::TERM);
    assert_eq!(w.end(), Some(0));
}

#[test]
fn orphans_are_taken_in_and_waited_for() {
    let Some(mut w) = world("orphans_are_taken_in_and_waited_for") else { return };
    w.start(&[], &["spawn=1"]);
    let orphan = w.until(1, "grandchild").pid;
    w.until(1, "started");
    w.write("go", "");
    let end = wait_for(|| w.told(), || w.journal().into_iter().find(|event| event.what == "grandchild ends"));
    assert_eq!(end.more[0], w.superdaemon.to_string(), "its parent is the superdaemon");
    wait_for(|| format!("{orphan}: {:?}", state(orphan)), || state(orphan).is_none().then_some(()));
    w.send(Signal::TERM);
    assert_eq!(w.end(), Some(0));
}

#[test]
fn a_child_that_ignores_its_signal_is_killed_if_that_is_asked_for() {
    let Some(mut w) = world("a_child_that_ignores_its_signal_is_killed_if_that_is_asked_for") else { return };
    w.start(&["--stop-timeout", "200ms"], &["deaf=all", "spawn=1"]);
    let first = w.until(1, "started").pid;
    let orphan = w.until(1, "grandchild").pid;
    w.send(Signal::HUP);
    w.until(1, "signal TERM");
    wait_for(|| w.told(), || state(first).is_none().then_some(()));
    // What it had started is not its process any more, and nobody told it to end.
    assert!(!gone(orphan), "{}", w.told());
    let second = w.until(2, "started").pid;
    w.send(Signal::TERM);
    w.until(2, "signal TERM");
    assert_eq!(w.end(), Some(0));
    assert!(gone(second));
    let log = w.read("log").unwrap();
    for pid in [first, second] {
        assert!(log.lines().any(|line| line.contains(&format!("pid {pid}")) && line.contains("kill")), "{log}");
    }
    w.write("go", "");
}

/// Ctrl-C twice.
#[test]
fn a_second_int_ends_everything_at_once() {
    let Some(mut w) = world("a_second_int_ends_everything_at_once") else { return };
    w.start(&[], &["deaf=1"]);
    let child = w.until(1, "started").pid;
    w.send(Signal::INT);
    w.until(1, "signal TERM");
    w.send(Signal::INT);
    w.end();
    assert!(gone(child));
}

#[test]
fn with_die_together_nothing_outlives_the_superdaemon() {
    // Obedient children, and deaf ones.
    for words in [&["spawn=1"][..], &["deaf=all", "spawn=1"]] {
        let Some(mut w) = world("with_die_together_nothing_outlives_the_superdaemon") else { return };
        w.start(&["--die-together", "--stop-timeout", "300ms"], words);
        let child = w.until(1, "started").pid;
        let orphan = w.until(1, "grandchild").pid;
        w.send(Signal::KILL);
        w.end();
        wait_for(|| format!("{child} ends\n{}", w.told()), || gone(child).then_some(()));
        wait_for(|| format!("{orphan} ends\n{}", w.told()), || gone(orphan).then_some(()));
        assert!(w.journal().iter().any(|event| event.pid == child && event.line() == "signal TERM"), "{}", w.told());
        wait_for(|| format!("nothing is left: {:?}", w.processes()), || w.processes().is_empty().then_some(()));
    }
}

/// What a generation has started is of its group, also when its first process has ended long ago.
#[test]
fn with_die_together_what_earlier_generations_left_ends_too() {
    let Some(mut w) = world("with_die_together_what_earlier_generations_left_ends_too") else { return };
    w.start(&["--die-together", "--stop-timeout", "300ms"], &["spawn=1"]);
    let first = w.until(1, "started").pid;
    let orphan = w.until(1, "grandchild").pid;
    w.send(Signal::HUP);
    w.until(2, "started");
    wait_for(|| w.told(), || state(first).is_none().then_some(()));
    assert!(!gone(orphan), "{}", w.told());
    w.send(Signal::KILL);
    w.end();
    wait_for(|| format!("{orphan} ends\n{}", w.told()), || gone(orphan).then_some(()));
}

#[test]
fn with_die_together_what_has_left_its_group_ends_too() {
    let Some(mut w) = world("with_die_together_what_has_left_its_group_ends_too") else { return };
    let who = w.path("who");
    let script = r#"setsid sh -c 'echo $$ >"$0"; exec sleep 600' "$0" & wait"#;
    w.start_as(&["--die-together", "--interval", "0", "--", "sh", "-c", script, &who]);
    let escaped: u32 = w.file("who", "a number", |text| text.ends_with('\n')).trim().parse().unwrap();
    w.send(Signal::KILL);
    w.end();
    wait_for(|| format!("{escaped} ends\n{}", w.told()), || gone(escaped).then_some(()));
}

#[test]
fn the_guard_is_started_again() {
    let Some(mut w) = world("the_guard_is_started_again") else { return };
    w.start(&["--die-together"], &[]);
    let child = w.until(1, "started").pid;
    let guard = || {
        let name =
            |pid: &u32| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "oroshi-guard\n");
        w.processes().into_iter().find(name)
    };
    send(wait_for(|| w.told(), guard), Signal::KILL);
    w.file("log", "its end", |log| log.contains("when this one dies had ended, and was started again"));
    wait_for(|| w.told(), guard);
    w.send(Signal::KILL);
    w.end();
    wait_for(|| format!("{child} ends\n{}", w.told()), || gone(child).then_some(()));
}

/// Its end and the time at which it would have been ready are known at the same moment: that of the first counts.
#[test]
fn one_that_has_ended_is_not_ready_however_late_that_is_noticed() {
    let Some(mut w) = world("one_that_has_ended_is_not_ready_however_late_that_is_noticed") else { return };
    w.start(&["--interval", "1"], &[]);
    let first = w.until(1, "started").pid;
    w.file("log", "generation 1 is ready", |log| log.contains("ready after"));
    w.send(Signal::HUP);
    let second = w.until(2, "started").pid;
    w.send(Signal::STOP);
    wait_for(|| w.told(), || (state(w.superdaemon) == Some('T')).then_some(()));
    send(second, Signal::KILL);
    wait_for(|| w.told(), || (state(second) == Some('Z')).then_some(()));
    // The time that is to be missed.
    std::thread::sleep(std::time::Duration::from_millis(1200));
    w.send(Signal::CONT);
    w.file("log", "generation 2 has failed", |log| log.contains(&format!("generation 2 (pid {second}): failed")));
    w.file("log", "generation 3 is ready", |log| {
        log.contains("generation 3 ") && log.contains("; stopping generation 1")
    });
    let log = w.read("log").unwrap();
    assert!(!log.contains(&format!("generation 2 (pid {second}): ready")), "{log}");
    wait_for(|| w.told(), || gone(first).then_some(()));
    w.send(Signal::TERM);
    assert_eq!(w.end(), Some(0));
}

/// In a container there is nobody above it: what becomes an orphan anywhere is its child, and a signal that it does not
/// handle is lost.
#[test]
fn as_process_1_it_waits_for_orphans_and_obeys_signals() {
    let test = "as_process_1_it_waits_for_orphans_and_obeys_signals";
    let alone = ["--user", "--map-root-user", "--pid", "--fork", "--mount-proc"];
    if Command::new("unshare")
        .args(alone)
        .arg("true")
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
    {
        let Some(mut w) = world(test) else { return };
        let probe = w.probe(&["spawn=1"]);
        let mut words = alone.to_vec();
        words.extend(["--kill-child", OROSHI, "start", "--interval", "0", "--"]);
        words.extend(probe.iter().map(String::as_str));
        w.start_by("unshare", &words);
        w.until(1, "started");
        assert_eq!(
            w.until(1, "grandchild").pid,
            4,
            "1 itself, the probe, the process between, the orphan: {}",
            w.told()
        );
        let process_1: u32 =
            fs::read_to_string(format!("/proc/{0}/task/{0}/children", w.superdaemon)).unwrap().trim().parse().unwrap();
        w.write("go", "");
        let end = wait_for(|| w.told(), || w.journal().into_iter().find(|event| event.what == "grandchild ends"));
        assert_eq!(end.more[0], "1");
        let below = || fs::read_to_string(format!("/proc/{process_1}/task/{process_1}/children")).unwrap();
        wait_for(
            || format!("the orphan is still there: {}", below()),
            || (below().split_whitespace().count() == 1).then_some(()),
        );
        send(process_1, Signal::HUP);
        w.until(1, "ended");
        w.until(2, "started");
        send(process_1, Signal::TERM);
        w.until(2, "ended");
        assert_eq!(w.end(), Some(0));
    } else {
        skipped(test, "unshare cannot make a namespace of processes here");
    }
}

/// A child that is as quick as can be: it says that it is ready, and ends at TERM.
const QUICK: &str = r#"
    use Socket;
    $SIG{TERM} = sub { exit 0 };
    socket my $socket, AF_UNIX, SOCK_DGRAM, 0 or die $!;
    send $socket, "READY=1", 0, pack_sockaddr_un($ENV{NOTIFY_SOCKET}) or die $!;
    sleep 1 while 1;
"#;

#[test]
fn a_thousand_restarts_leave_nothing_behind() {
    restarts_leave_nothing_behind("a_thousand_restarts_leave_nothing_behind", 1000);
}

fn restarts_leave_nothing_behind(test: &str, restarts: u64) {
    let Some(mut w) = world(test) else { return };
    // Where it puts its sockets.
    fs::create_dir(w.path("tmp")).unwrap();
    let tmp = w.path("tmp");
    w.env("TMPDIR", &tmp);
    w.write("quick.pl", QUICK);
    let port = w.port().to_string();
    let (pid, control, socket, quick) = (w.path("pid"), w.path("control"), w.path("socket"), w.path("quick.pl"));
    w.start_as(&[
        "--port",
        &port,
        "--path",
        &socket,
        "--pid-file",
        &pid,
        "--control",
        &control,
        "--ready",
        "notify",
        "--interval",
        "0",
        "--log-file",
        &w.path("own.log"),
        "--",
        "perl",
        &quick,
    ]);
    let mut asked = wait_for(|| w.told(), || Asked::at(&control));
    // The first ones fill what is filled once.
    (0..20).for_each(|_| asked.restart());
    let before = Left::by(&w, &tmp);
    (0..restarts).for_each(|_| asked.restart());
    let after = Left::by(&w, &tmp);
    assert_eq!(before, after, "{}", w.told());
    drop(asked);
    w.send(Signal::TERM);
    assert_eq!(w.end(), Some(0));
    assert_eq!(fs::read_dir(&tmp).unwrap().count(), 0);
    assert!(w.processes().is_empty());
}

/// What a superdaemon has.
#[derive(Debug, PartialEq, Eq)]
struct Left {
    descriptors: Vec<String>,
    threads: usize,
    processes: usize,
    files: usize,
}

impl Left {
    fn by(w: &World, tmp: &str) -> Self {
        let own = format!("/proc/{}", w.superdaemon);
        let count = |folder: &str| fs::read_dir(folder).unwrap().count();
        let links =
            fs::read_dir(format!("{own}/fd")).unwrap().filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
        // Of what kind, without the numbers.
        let mut descriptors: Vec<String> =
            links.map(|link| link.to_str().unwrap().split(':').next().unwrap().to_owned()).collect();
        descriptors.sort();
        Self { descriptors, threads: count(&format!("{own}/task")), processes: w.processes().len(), files: count(tmp) }
    }
}

/// A kept connection to the control socket: HTTP, of which this is as much as it takes.
struct Asked(BufReader<UnixStream>);

impl Asked {
    /// `None`: nobody listens there yet.
    fn at(control: &str) -> Option<Self> {
        let stream = UnixStream::connect(control).ok()?;
        stream.set_read_timeout(Some(HANG)).unwrap();
        Some(Self(BufReader::new(stream)))
    }

    /// One restart, which is over when the old generation has ended.
    #[track_caller]
    fn restart(&mut self) {
        self.0.get_mut().write_all(b"POST /restart HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        let mut length = 0;
        loop {
            let mut line = String::new();
            self.0.read_line(&mut line).unwrap();
            match line.trim_end().split_once(": ") {
                Some((name, value)) if name.eq_ignore_ascii_case("content-length") => length = value.parse().unwrap(),
                None if line == "\r\n" => break,
                _ => {}
            }
        }
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).unwrap();
        let body = String::from_utf8(body).unwrap();
        assert!(body.contains("\"replaced\""), "{body}");
    }
}
