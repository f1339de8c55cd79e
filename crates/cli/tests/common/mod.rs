//! What the tests of this folder share: the command, run to its end, and `oroshi target` as a server.
//! Peers of other kinds are those of the load's own tests.
#![allow(dead_code, unreachable_pub, unused_imports, reason = "a module of each test file, which uses its part")]

pub mod recorder;
#[path = "../../../bench/tests/support/mod.rs"]
pub mod support;

pub mod ab;

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Stdio};

use oroshi_bench::{Failure, Record};
pub use oroshi_testkit::process::{Ran, to_the_end, to_the_end_with_input};
use rustix::process::{Pid, Signal, kill_process};
pub use support::load::failed;
use support::{OK, peer::Peer};

/// The command.
pub const OROSHI: &str = env!("CARGO_BIN_EXE_oroshi");

/// The record that a run of the command wrote.
pub trait Recorded {
    /// The report of `--format json`, which must be there.
    fn record(&self) -> Record;
}

impl Recorded for Ran {
    #[track_caller]
    fn record(&self) -> Record {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// Runs `oroshi` to its end.
pub fn oroshi(args: &[&str]) -> Ran {
    let mut command = Command::new(OROSHI);
    command.args(args);
    to_the_end(command)
}

/// `oroshi bench` with these flags.
pub fn bench(args: &[&str]) -> Ran {
    oroshi(&[&["bench"], args].concat())
}

/// A run that succeeds, and its record.
#[track_caller]
pub fn measured(args: &[&str]) -> Record {
    let ran = bench(&[&["--format", "json"], args].concat());
    assert_eq!(ran.code, Some(0), "{ran:?}");
    ran.record()
}

/// The same where all `n` requests are answered with 200.
#[track_caller]
pub fn all_answered(n: u64, args: &[&str]) -> Record {
    let record = measured(&[&["-n", &n.to_string()], args].concat());
    support::load::all_answered(&record, n);
    record
}

/// `oroshi target`, until it is dropped.
pub struct Target {
    child: Child,
    out: BufReader<ChildStdout>,
    /// Where it says that it listens.
    pub urls: Vec<String>,
}

impl Target {
    /// Starts it at one free port.
    pub fn start(args: &[&str]) -> Self {
        Self::at(1, &[&["--listen", "http://127.0.0.1:0/"], args].concat())
    }

    /// Starts it with all of its flags, and waits until it listens at so many places.
    pub fn at(places: usize, args: &[&str]) -> Self {
        let mut command = Command::new(OROSHI);
        command.arg("target").args(args).stdin(Stdio::null());
        Self::by(places, command)
    }

    /// The same by a command that ends in becoming `oroshi target`.
    pub fn by(places: usize, mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut line = || {
            let mut line = String::new();
            out.read_line(&mut line).unwrap();
            let url = line.strip_prefix("listening on ").unwrap_or_else(|| panic!("{command:?} said `{line}`"));
            url.trim().to_owned()
        };
        let urls = (0..places).map(|_| line()).collect();
        Self { child, out, urls }
    }

    pub fn url(&self) -> &str {
        &self.urls[0]
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends it in order: how many requests it says to have answered, and on how many connections.
    pub fn stop(mut self) -> (u64, u64) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        let mut rest = String::new();
        self.out.read_to_string(&mut rest).unwrap();
        assert!(self.child.wait().unwrap().success());
        let numbers: Vec<u64> = rest.split(' ').filter_map(|word| word.parse().ok()).collect();
        assert_eq!(rest, format!("served {} requests on {} connections\n", numbers[0], numbers[1]));
        (numbers[0], numbers[1])
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A server that answers everything, in this process.
pub fn answering() -> Peer {
    Peer::answering(|_| OK.into())
}

/// How often each failure happened.
#[track_caller]
pub fn only_failed(record: &Record, failure: Failure, n: u64) {
    assert_eq!((failed(record, failure), record.errors), (n, n), "{:?}", record.failures);
}
