//! `oroshi bench --tui` on a terminal, which is always given back.
#![cfg(feature = "tui")]

use std::process::{Command, Stdio};

use oroshi_bench::Record;
use oroshi_testkit::pty::{OnTerminal, Outputs};
use oroshi_testkit::{need, wait_until};
use rustix::fs::{CWD, Mode, mkfifoat};
use rustix::process::Signal;
use rustix::termios::LocalModes;
use tempfile::NamedTempFile;

#[cfg(feature = "agents")]
use crate::agents::Group;
use crate::common::{OROSHI, Target, bench};

const ENTER: &str = "\x1b[?1049h";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// `oroshi bench --tui` as the command of a terminal.
fn command(test: &str, args: &[&str]) -> Option<Command> {
    let mut command = Command::new(need(test, "setsid")?);
    command.args(["--ctty", OROSHI, "bench", "--tui"]).args(args);
    command.env("TERM", "xterm-256color").env_remove("NO_COLOR");
    Some(command)
}

fn start(test: &str, args: &[&str]) -> Option<OnTerminal> {
    Some(OnTerminal::start(command(test, args)?, Outputs::Both, (80, 24)))
}

/// Panics unless the other screen was entered and left once; returns what was printed after that.
#[track_caller]
fn after(terminal: &OnTerminal) -> String {
    let printed = terminal.printed();
    assert_eq!((printed.matches(ENTER).count(), printed.matches(LEAVE).count()), (1, 1), "{printed:?}");
    let (before, after) = printed.split_once(LEAVE).unwrap();
    assert!(before.contains(ENTER) && !after.contains("\x1b[?"), "{printed:?}");
    after.to_owned()
}

/// A wrk script with this text.
fn script(text: &str) -> NamedTempFile {
    let file = NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    file
}

#[test]
fn the_view_is_gone_when_the_run_is_over_and_the_report_follows() {
    let target = Target::start(&[]);
    let Some(mut terminal) = start("bench --tui", &["-d1h", "-c3", target.url()]) else { return };
    let screen = terminal.shows(" answered  0 errors");
    assert!(screen[0].contains(target.url()) && screen[0].trim_end().ends_with("3/3 connections"), "{screen:?}");
    assert!(screen.iter().any(|line| line.starts_with(" p99.9 ")), "{screen:?}");
    terminal.types("q");
    assert_eq!(terminal.ends().code(), Some(0));
    let report = after(&terminal);
    assert!(report.contains("Throughput") && report.contains("3 of 3 alive"), "{report}");
}

#[test]
fn the_histogram_and_the_heat_map_grow_and_follow_the_size_of_the_terminal() {
    let target = Target::start(&[]);
    let Some(mut terminal) = start("bench --tui resized", &["-d1h", target.url()]) else { return };
    terminal.shows("└─");
    terminal.shows("█");
    terminal.resize((60, 9));
    terminal.shows("60 x 9: the view needs 50 x 11");
    terminal.resize((60, 12));
    terminal.shows("histogram and heat map: 2 more rows needed");
    terminal.resize((160, 48));
    let screen = terminal.shows("q or Ctrl-C ends the run");
    assert_eq!(screen.len(), 48, "{screen:?}");
    terminal.types("q");
    assert_eq!(terminal.ends().code(), Some(0));
    after(&terminal);
}

#[test]
fn ctrl_c_q_and_term_end_the_run_in_order_and_hangup_at_once() {
    let target = Target::start(&[]);
    type End = fn(&mut OnTerminal);
    let ends: [(End, Option<i32>); 5] = [
        (|terminal| terminal.types("\x03"), Some(0)),
        // F2 is no `q`, and two at once are one.
        (|terminal| terminal.types("xyz\x1bOQqq"), Some(0)),
        (|terminal| terminal.signal(Signal::TERM), Some(0)),
        (|terminal| terminal.signal(Signal::HUP), Some(129)),
        (|terminal| terminal.types("\x1c"), Some(131)),
    ];
    for (number, (end, code)) in ends.into_iter().enumerate() {
        let Some(mut terminal) = start("the end of bench --tui", &["-d1h", target.url()]) else { return };
        terminal.shows("measuring ");
        let (now, _) = terminal.states();
        assert!(!now.local_modes.intersects(LocalModes::ICANON | LocalModes::ECHO), "{now:?}");
        assert!(now.local_modes.contains(LocalModes::ISIG), "Ctrl-C is a signal: {now:?}");
        end(&mut terminal);
        assert_eq!(terminal.ends().code(), code, "{number}");
        let report = after(&terminal);
        assert_eq!(report.contains("Throughput"), code == Some(0), "{number}: {report}");
    }
}

#[test]
fn a_second_ctrl_c_and_an_error_give_the_terminal_back() {
    let target = Target::start(&[]);
    // Once the script has removed this file, the run takes its time to end: open(2) waits for a writer.
    let folder = tempfile::tempdir().unwrap();
    let (file, pipe) = (folder.path().join("file"), folder.path().join("pipe"));
    mkfifoat(CWD, &pipe, Mode::RWXU).unwrap();
    let script = script(&format!(
        "function request() if os.remove('{}') then io.open('{}') end\nreturn wrk.format() end",
        file.display(),
        pipe.display()
    ));
    let args = ["-d1h", "-c1", "-R100", "-s", script.path().to_str().unwrap(), target.url()];
    let Some(mut terminal) = start("bench --tui, ended twice", &args) else { return };
    terminal.shows("measuring ");
    std::fs::write(&file, "").unwrap();
    wait_until("the script waits", || !file.exists());
    terminal.types("\x03");
    terminal.shows("ending");
    terminal.types("\x03");
    assert_eq!(terminal.ends().code(), Some(130));
    let said = after(&terminal);
    assert!(!said.contains("Throughput"), "{said}");
    // Nobody listens at the port of a target that has ended.
    let url = target.url().to_owned();
    drop(target);
    let Some(mut terminal) = start("bench --tui without a server", &[&url]) else { return };
    assert_eq!(terminal.ends().code(), Some(1));
    let error = after(&terminal);
    assert!(error.contains("error: connect-refused"), "{error}");
}

#[test]
fn json_on_standard_output_is_the_report_alone() {
    let target = Target::start(&[]);
    let Some(mut command) = command("bench --tui --format json", &["-d1h", "--format=json", target.url()]) else {
        return;
    };
    let file = NamedTempFile::new().unwrap();
    command.stdout(Stdio::from(file.reopen().unwrap())).env("NO_COLOR", "1");
    let mut terminal = OnTerminal::start(command, Outputs::Errors, (80, 24));
    terminal.shows("measuring ");
    terminal.types("q");
    assert_eq!(terminal.ends().code(), Some(0));
    let record: Record = serde_json::from_slice(&std::fs::read(file.path()).unwrap()).unwrap();
    assert!(record.requests.completed > 0);
    after(&terminal);
    let printed = terminal.printed();
    assert!(printed.contains("\x1b[0;1m") && !printed.contains("\x1b[0;3"), "NO_COLOR: {printed:?}");
}

#[test]
fn what_a_script_prints_appears_after_the_view() {
    let target = Target::start(&[]);
    let text = "function request() if not said then said = true; print('it was printed') end\nreturn wrk.format() end";
    let script = script(text);
    let args = ["-d1s", "-c1", "-s", script.path().to_str().unwrap(), target.url()];
    let Some(mut terminal) = start("bench --tui with a script", &args) else { return };
    assert_eq!(terminal.ends().code(), Some(0));
    let (during, after) = (terminal.printed(), after(&terminal));
    assert!(after.contains("it was printed") && during.matches("it was printed").count() == 1, "{during}");
}

#[test]
fn a_script_that_exits_gives_the_terminal_back() {
    let target = Target::start(&[]);
    let script = script(
        "n = 0\nfunction request() n = n + 1\nif n > 50 then print('bye') os.exit(7) end\nreturn wrk.format() end",
    );
    let args = ["-d1h", "-c1", "-R100", "-s", script.path().to_str().unwrap(), target.url()];
    let Some(mut terminal) = start("bench --tui with a script that exits", &args) else { return };
    assert_eq!(terminal.ends().code(), Some(7));
    assert!(after(&terminal).contains("bye"));
}

#[test]
fn without_a_terminal_the_run_takes_place_and_a_note_says_what_is_missing() {
    let target = Target::start(&[]);
    let ran = bench(&["--tui", "-n", "10", target.url()]);
    ran.said(0, &["note: --tui: standard error is no terminal: figures follow as a line each 10 s"]);
    assert!(ran.out.contains("10 answered") && !ran.err.contains('\x1b'), "{ran:?}");
    let Some(mut command) = command("bench --tui on a dumb terminal", &["-n", "10", target.url()]) else { return };
    command.env("TERM", "dumb");
    let mut terminal = OnTerminal::start(command, Outputs::Both, (80, 24));
    assert_eq!(terminal.ends().code(), Some(0));
    let printed = terminal.printed();
    assert!(printed.contains("this terminal shows lines alone (TERM)") && !printed.contains(ENTER), "{printed}");
}

#[cfg(feature = "agents")]
#[test]
fn a_run_of_agents_has_the_same_view_and_a_line_for_each() {
    let test = "bench --tui --agents";
    let target = Target::start(&[]);
    let Some(group) = Group::start(test, &["a", "b"], &[]) else { return };
    let flags = group.command("bench");
    let flags = flags.get_args().skip(1).map(|flag| flag.to_str().unwrap());
    let args: Vec<&str> = flags.chain(["--agents", "2", "-c2", "-R", "200", "-d1h", target.url()]).collect();
    let Some(mut terminal) = start(test, &args) else { return };
    terminal.shows("└─");
    let screen = terminal.shows("  1 connection");
    assert!(screen.iter().any(|line| line.starts_with("   a: ")), "{screen:?}");
    assert!(screen.iter().any(|line| line.starts_with("   b: ")), "{screen:?}");
    terminal.types("q");
    terminal.ends();
    let report = after(&terminal);
    assert!(report.contains("Throughput"), "{report}");
}

#[test]
fn loads_that_have_no_such_view_are_refused() {
    for args in [&["--mode", "ws"][..], &["--self-test"], &["-s", "x.lua", "--verbose"]] {
        let ran = bench(&[&["--tui"], args, &["http://127.0.0.1:9/"]].concat());
        ran.said(2, &["'--tui' cannot be used with"]);
    }
}
