//! A command that prints lines about its work, such as `oroshi gate`.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};

use rustix::process::{Pid, Signal, kill_process};

use crate::{HANG, wait_for};

/// A process, and the lines of its standard output and standard error. Dropping it kills it.
#[derive(Debug)]
pub struct Process {
    child: Child,
    lines: Receiver<String>,
    /// The lines so far.
    pub said: Vec<String>,
}

impl Process {
    /// Starts a command, and waits for a line with these words.
    #[track_caller]
    pub fn start(command: &mut Command, words: &str) -> Process {
        let mut process = Process::spawn(command.stdin(Stdio::null()));
        process.until(words);
        process
    }

    /// Starts a command, and waits for a line with one of these words. Returns all that it said if it ends before.
    pub fn try_start(command: &mut Command, words: &[&str]) -> Result<Process, String> {
        Process::try_start_with_stdin(command.stdin(Stdio::null()), words)
    }

    /// As [`try_start`](Self::try_start), and the command keeps the standard input that it was given.
    pub fn try_start_with_stdin(command: &mut Command, words: &[&str]) -> Result<Process, String> {
        let mut process = Process::spawn(command);
        match process.next_with(words) {
            Ok(_) => Ok(process),
            Err(error) => Err(format!("{error}: {}", process.said.join("\n"))),
        }
    }

    fn spawn(command: &mut Command) -> Process {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (tell, lines) = mpsc::channel();
        let tells = tell.clone();
        let (out, err) = (BufReader::new(child.stdout.take().unwrap()), BufReader::new(child.stderr.take().unwrap()));
        std::thread::spawn(move || out.lines().map_while(Result::ok).all(|line| tell.send(line).is_ok()));
        std::thread::spawn(move || err.lines().map_while(Result::ok).all(|line| tells.send(line).is_ok()));
        Process { child, lines, said: Vec::new() }
    }

    /// Waits for the next line with these words, and returns it.
    #[track_caller]
    pub fn until(&mut self, words: &str) -> String {
        self.next_with(&[words]).unwrap_or_else(|error| panic!("no `{words}`: {error}: {}", self.said.join("\n")))
    }

    /// Waits for a line with these words, unless there was one.
    #[track_caller]
    pub fn until_said(&mut self, words: &str) {
        if !self.said.iter().any(|line| line.contains(words)) {
            self.until(words);
        }
    }

    fn next_with(&mut self, words: &[&str]) -> Result<String, RecvTimeoutError> {
        loop {
            let line = self.lines.recv_timeout(HANG)?;
            self.said.push(line.clone());
            if words.iter().any(|words| line.contains(words)) {
                return Ok(line);
            }
        }
    }

    /// Counts the lines with these words, from line `from` on, that it has printed by now.
    pub fn heard(&mut self, from: usize, words: &str) -> usize {
        self.said.extend(self.lines.try_iter());
        self.said[from..].iter().filter(|line| line.contains(words)).count()
    }

    /// The port in the first line with a URL.
    #[must_use]
    pub fn port(&self) -> u16 {
        let url = self.said.iter().find_map(|line| line.split_once("http://"));
        port_in(url.unwrap_or_else(|| panic!("no URL: {:?}", self.said)).1)
    }

    /// Waits for so many lines with `listening on`. Returns the ports of those with a URL, in their order.
    #[track_caller]
    pub fn ports(&mut self, lines: usize) -> Vec<u16> {
        const WORDS: &str = "listening on ";
        while self.said.iter().filter(|line| line.contains(WORDS)).count() < lines {
            self.until(WORDS);
        }
        let urls = self.said.iter().filter_map(|line| line.split_once("listening on http"));
        urls.filter_map(|(_, url)| url.split_once("://")).map(|(_, url)| port_in(url)).collect()
    }

    /// Its process number.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for its end, and for the rest of its lines.
    #[track_caller]
    pub fn ended(&mut self) -> ExitStatus {
        let status = wait_for(|| format!("the end of {:?}", self.said), || self.child.try_wait().unwrap());
        self.said.extend(self.lines.iter());
        status
    }
}

/// The port at the beginning of a URL without its scheme.
fn port_in(url: &str) -> u16 {
    let address = url.split(['/', ' ']).next().unwrap();
    address.rsplit(':').next().unwrap().parse().unwrap_or_else(|_| panic!("no port: {url}"))
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A command that has ended.
#[derive(Debug)]
pub struct Ran {
    /// Its exit code; `None` if a signal ended it.
    pub code: Option<i32>,
    /// Its standard output.
    pub out: String,
    /// Its standard error.
    pub err: String,
}

impl Ran {
    /// Takes what `Command::output` returned.
    #[must_use]
    pub fn of(output: Output) -> Ran {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Ran { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    }

    /// Panics unless it ended with this code, and said all of this on standard error.
    #[track_caller]
    pub fn said(&self, code: i32, words: &[&str]) {
        assert_eq!(self.code, Some(code), "{self:?}");
        for word in words {
            assert!(self.err.contains(word), "`{word}` is not in: {self:?}");
        }
    }
}

/// Runs a command to its end with an empty standard input. Kills it after [`HANG`].
pub fn to_the_end(mut command: Command) -> Ran {
    command.stdin(Stdio::null());
    to_the_end_with_input(command)
}

/// The same with the standard input that the command has.
pub fn to_the_end_with_input(mut command: Command) -> Ran {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let pid = Pid::from_child(&child);
    let (done, ended) = mpsc::channel::<()>();
    let watchdog = std::thread::spawn(move || {
        if ended.recv_timeout(HANG) == Err(RecvTimeoutError::Timeout) {
            let _ = kill_process(pid, Signal::KILL);
        }
    });
    let output = child.wait_with_output().unwrap();
    drop(done);
    watchdog.join().unwrap();
    Ran::of(output)
}
