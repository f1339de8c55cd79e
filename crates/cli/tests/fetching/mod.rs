//! What the tests of `oroshi fetch` share.
#![allow(dead_code, unreachable_pub, reason = "a module of each test file, which uses its part")]

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::common::{OROSHI, Ran, oroshi, to_the_end_with_input};

/// `oroshi fetch` with these flags.
pub fn fetch(args: &[&str]) -> Ran {
    oroshi(&[&["fetch"], args].concat())
}

/// The same with a list on standard input.
pub fn fetch_list(list: &str, args: &[&str]) -> Ran {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(list.as_bytes()).unwrap();
    std::io::Seek::rewind(&mut file).unwrap();
    let mut command = Command::new(OROSHI);
    command.arg("fetch").args(args).arg("-").stdin(Stdio::from(file));
    to_the_end_with_input(command)
}

/// The records among lines of JSON, in the order of the list.
#[track_caller]
pub fn records(lines: &str) -> Vec<Value> {
    let read = |line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    let mut records: Vec<Value> = lines.lines().map(read).collect();
    records.sort_by_key(|record| record["n"].as_u64());
    records
}

/// The records of an output.
#[track_caller]
pub fn records_in(file: &Path) -> Vec<Value> {
    records(&std::fs::read_to_string(file).unwrap())
}

/// The only record, of a run with this exit code.
#[track_caller]
pub fn only(ran: &Ran, code: i32) -> Value {
    assert_eq!(ran.code, Some(code), "{ran:?}");
    let mut records = records(&ran.out);
    assert_eq!(records.len(), 1, "{ran:?}");
    records.remove(0)
}

/// A field of each record.
pub fn each<'r>(records: &'r [Value], field: &str) -> Vec<&'r Value> {
    records.iter().map(|record| &record[field]).collect()
}

/// `oroshi fetch`, while it runs.
pub struct Running {
    pub child: Child,
    pub list: Option<ChildStdin>,
    pub out: BufReader<ChildStdout>,
}

impl Running {
    /// Starts it with a pipe for standard input.
    pub fn start(args: &[&str]) -> Self {
        let mut command = Command::new(OROSHI);
        command.arg("fetch").args(args);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(File::create("/dev/null").unwrap())
            .spawn()
            .unwrap();
        let (list, out) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, list, out }
    }

    pub fn give(&mut self, lines: &str) {
        let list = self.list.as_mut().unwrap();
        list.write_all(lines.as_bytes()).and_then(|()| list.flush()).unwrap();
    }

    /// The next record.
    pub fn record(&mut self) -> Value {
        let mut line = String::new();
        self.out.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for its end: the exit code.
    pub fn end(&mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
