//! Turns flags into a plan; reports every problem at once.

use std::path::PathBuf;

use oroshi_net::Endpoint;
use oroshi_net::process::{signal_named, signal_names};
use oroshi_start::environment::{AUTO_RESTART_INTERVAL, ENABLE_AUTO_RESTART, ENVDIR, KILL_OLD_DELAY};
use oroshi_start::{Child, ControlAddress, Draft, LogDestination, Plan, Ready, SocketSpec};
use oroshi_words::Mistake;
use oroshi_words::nearest;
use oroshi_words::units::{parse_count, parse_time};
use rustix::process::Signal;

use super::args::{Args, ChildArgs};
use super::owner;
use crate::problems::Problems;

/// This program, even if its file was replaced since the start.
const OWN_PROGRAM: &str = "/proc/self/exe";

/// Reads the flags into the superdaemon's plan.
///
/// # Errors
/// Everything that is wrong, one line each: the flag, its value, and what was expected.
pub(super) fn plan(args: Args) -> Result<Plan, Vec<String>> {
    let mut problems = Problems::of_flags();
    let mut draft = Draft::default();
    let control = control_path(&args);
    let Args { port, path, path_mode, path_owner, backlog, .. } = args;
    draft.sockets.extend(port.iter().filter_map(|text| problems.take("--port", SocketSpec::port(text))));
    draft.sockets.extend(path.iter().filter_map(|text| {
        problems.take("--path", SocketSpec::path(text).map_err(|error| format!("`{text}`: {error}")))
    }));
    let listening = &mut draft.listening;
    problems.set(&mut listening.path_mode, "--path-mode", path_mode.as_deref().map(mode));
    problems.set(&mut listening.path_owner, "--path-owner", path_owner.as_deref().map(owner::find));
    problems.set(&mut listening.backlog, "--backlog", backlog.as_deref().map(queue).and_then(Result::transpose));

    problems.set(&mut draft.interval, "--interval", args.interval.as_deref().map(parse_time));
    problems.set(&mut draft.signal_on_hup, "--signal-on-hup", args.signal_on_hup.as_deref().map(signal));
    problems.set(&mut draft.signal_on_term, "--signal-on-term", args.signal_on_term.as_deref().map(signal));
    draft.stop_timeout = args.stop_timeout.and_then(|text| problems.take("--stop-timeout", parse_time(&text)));
    draft.ready = args.ready.and_then(|text| problems.take("--ready", ready(&text)));
    problems.set(&mut draft.ready_timeout, "--ready-timeout", args.ready_timeout.as_deref().map(parse_time));

    // The command sees these settings as variables, and the superdaemon reads them from there.
    for (flag, name, value) in [
        ("--kill-old-delay", KILL_OLD_DELAY, args.kill_old_delay),
        ("--auto-restart-interval", AUTO_RESTART_INTERVAL, args.auto_restart_interval),
    ] {
        if let Some(value) = value {
            problems.take(flag, parse_time(&value));
            draft.variables.push((name, value.into()));
        }
    }
    if args.enable_auto_restart {
        draft.variables.push((ENABLE_AUTO_RESTART, "1".into()));
    }
    draft.variables.extend(args.envdir.map(|folder| (ENVDIR, folder)));

    draft.command = args.command;
    draft.helper = vec![OWN_PROGRAM.into(), "start-child".into()];
    draft.guard = vec![OWN_PROGRAM.into(), "start-guard".into()];
    draft.folder = args.dir;
    draft.die_together = args.die_together;
    draft.pid_file = args.pid_file;
    draft.status_file = args.status_file;
    draft.log = args.log_file.filter(|text| !text.is_empty()).map(|text| LogDestination::parse(&text));
    draft.control = control.map(|path| ControlAddress { path, asked_for: args.control.is_some() });
    draft.daemonize = args.daemonize;
    match draft.plan() {
        Ok(plan) if problems.found.is_empty() => Ok(plan),
        planned => {
            let more = planned.err().unwrap_or_default();
            Err(problems.lines().into_iter().chain(more.iter().map(in_flags)).collect())
        }
    }
}

/// Returns the path of the control socket: as given, or beside the pid file, or else beside the status file.
pub(super) fn control_path(args: &Args) -> Option<PathBuf> {
    let beside = || {
        let mut path = args.pid_file.clone().or_else(|| args.status_file.clone())?.into_os_string();
        path.push(".control");
        Some(PathBuf::from(path))
    };
    args.control.clone().or_else(beside)
}

/// Reads the flags of a generation's process.
///
/// # Errors
/// The problem, in words.
pub(super) fn child(args: ChildArgs) -> Result<Child, String> {
    Ok(Child {
        sockets: args.socket.iter().map(|text| Child::socket(text)).collect::<Result<_, _>>()?,
        folder: args.dir,
        command: args.command,
    })
}

/// Describes a problem of the plan in the words of the command line.
fn in_flags(mistake: &Mistake) -> String {
    match mistake.key.as_str() {
        "" => mistake.text.clone(),
        "daemonize" => format!("--daemonize: {}: expected --log-file FILE", mistake.text),
        flag => format!("--{flag}: {}", mistake.text),
    }
}

fn ready(text: &str) -> Result<Ready, String> {
    match text {
        "notify" => Ok(Ready::Notify),
        "alive" => Ok(Ready::Alive),
        _ if text.contains(':') => {
            text.parse::<Endpoint>().map(Box::new).map(Ready::Answers).map_err(|error| error.to_string())
        }
        _ => Err(format!("`{text}`: expected notify, alive, or a URL such as http://localhost:8080/health")),
    }
}

fn signal(text: &str) -> Result<Signal, String> {
    signal_named(text).ok_or_else(|| {
        let near = nearest(text.trim_start_matches("SIG"), signal_names());
        let near = near.map_or_else(String::new, |name| format!("; did you mean {name}?"));
        format!("`{text}` is no signal: expected a name such as TERM or QUIT, or a number{near}")
    })
}

/// Reads an octal number, as chmod(1) takes it.
fn mode(text: &str) -> Result<u32, String> {
    let digits = text.strip_prefix("0o").unwrap_or(text);
    let octal = !digits.is_empty() && digits.bytes().all(|byte| (b'0'..=b'7').contains(&byte));
    let mode = octal.then(|| u32::from_str_radix(digits, 8).ok()).flatten().filter(|mode| *mode <= 0o777);
    mode.ok_or_else(|| format!("`{text}` is no mode: expected an octal number such as 0660 or 0777"))
}

/// Reads a backlog; 0 means the default, as in start_server.
fn queue(text: &str) -> Result<Option<u32>, String> {
    match parse_count(text)? {
        0 => Ok(None),
        n => u32::try_from(n).map(Some).map_err(|_| format!("`{text}` is too large: expected a number such as 1024")),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn read(words: &[&str]) -> Result<Plan, Vec<String>> {
        plan(Line::try_parse_from([&["start"], words].concat()).unwrap().args)
    }

    #[test]
    fn options_stand_before_and_behind_the_command_until_two_dashes() {
        for words in [
            &["--port", "80", "--", "cmd", "--port", "81"][..],
            &["--port=80", "cmd", "--", "--port", "81"],
            &["cmd", "--po", "80", "--", "--port", "81"],
        ] {
            let plan = read(words).unwrap();
            assert_eq!(plan.command(), ["cmd", "--port", "81"], "{words:?}");
        }
        assert!(Line::try_parse_from(["start", "cmd", "--unknown"]).is_err());
    }

    #[test]
    fn every_problem_is_told_with_its_flag_and_value() {
        let problems = read(&[
            "--port",
            "x",
            "--path",
            "",
            "--path-mode",
            "0888",
            "--path-owner",
            "no-such-user",
            "--backlog",
            "many",
            "--interval",
            "soon",
            "--signal-on-hup",
            "TREM",
            "--signal-on-term",
            "SIGX",
            "--stop-timeout=-1",
            "--ready",
            "maybe",
            "--ready-timeout",
            "y",
            "--kill-old-delay",
            "z",
            "--auto-restart-interval",
            "w",
            "--daemonize",
        ])
        .unwrap_err();
        let expected = [
            ("--port", "x"),
            ("--path", ""),
            ("--path-mode", "0888"),
            ("--path-owner", "no-such-user"),
            ("--backlog", "many"),
            ("--interval", "soon"),
            ("--signal-on-hup", "TERM?"),
            ("--signal-on-term", "SIGX"),
            ("--stop-timeout", "-1"),
            ("--ready", "maybe"),
            ("--ready-timeout", "y"),
            ("--kill-old-delay", "z"),
            ("--auto-restart-interval", "w"),
            ("there is no command", ""),
            ("--daemonize", "--log-file"),
        ];
        assert_eq!(problems.len(), expected.len(), "{problems:#?}");
        for (problem, (flag, value)) in problems.iter().zip(expected) {
            assert!(problem.starts_with(flag) && problem.contains(value), "{problem}");
            assert!(problem.contains("expected"), "{problem}");
        }
    }

    #[test]
    fn the_control_socket_is_beside_the_pid_file() {
        let at = |words: &[&str]| control_path(&Line::try_parse_from([&["start"], words].concat()).unwrap().args);
        assert_eq!(at(&["--pid-file", "/a", "--status-file", "/b"]), Some("/a.control".into()));
        assert_eq!(at(&["--status-file", "/b"]), Some("/b.control".into()));
        assert_eq!(at(&["--pid-file", "/a", "--control", "/c"]), Some("/c".into()));
        assert_eq!(at(&["--port", "80"]), None);
    }
}
