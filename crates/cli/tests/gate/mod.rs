//! What the tests of `oroshi gate` share: the gateway and the servers behind it as processes, and a client.
#![allow(dead_code, unreachable_pub, clippy::print_stderr, reason = "a module of each test file, which uses its part")]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// A test that hangs fails by this, and no other test depends on it.
pub const HANG: Duration = Duration::from_secs(30);

pub fn oroshi() -> Command {
    Command::new(env!("CARGO_BIN_EXE_oroshi"))
}

/// A process that says line by line what it does. Dropping it kills it.
pub struct Process {
    child: Child,
    lines: Receiver<String>,
    /// What it has said so far.
    pub said: Vec<String>,
}

impl Process {
    /// Starts a command, and waits until it has said something with these words.
    pub fn start(command: &mut Command, words: &str) -> Process {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (tell, lines) = mpsc::channel();
        let tells = tell.clone();
        let (out, err) = (BufReader::new(child.stdout.take().unwrap()), BufReader::new(child.stderr.take().unwrap()));
        std::thread::spawn(move || out.lines().map_while(Result::ok).all(|line| tell.send(line).is_ok()));
        std::thread::spawn(move || err.lines().map_while(Result::ok).all(|line| tells.send(line).is_ok()));
        let mut process = Process { child, lines, said: Vec::new() };
        process.until(words);
        process
    }

    /// Waits until it says something with these words.
    #[track_caller]
    pub fn until(&mut self, words: &str) -> String {
        loop {
            match self.lines.recv_timeout(HANG) {
                Ok(line) => self.said.push(line.clone()),
                Err(error) => panic!("no `{words}`: {error}: {}", self.said.join("\n")),
            }
            if let Some(line) = self.said.last().filter(|line| line.contains(words)) {
                return line.clone();
            }
        }
    }

    /// How many lines with these words it has said by now, from this line on.
    pub fn heard(&mut self, from: usize, words: &str) -> usize {
        self.said.extend(self.lines.try_iter());
        self.said[from..].iter().filter(|line| line.contains(words)).count()
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for its end.
    #[track_caller]
    pub fn ended(&mut self) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                self.said.extend(self.lines.iter());
                return status;
            }
            assert!(start.elapsed() < HANG, "it does not end: {:?}", self.said);
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A gateway with its configuration in a folder.
pub struct Gate {
    pub process: Process,
    pub folder: tempfile::TempDir,
}

impl Gate {
    /// Starts one that listens at `public.sock` and, for operators, at `admin.sock`. `{dir}` in the configuration is the folder.
    pub fn start(folder: tempfile::TempDir, config: &str) -> Gate {
        Gate::start_by(oroshi(), folder, config)
    }

    /// As [`start`](Self::start), behind a hard limit on descriptors.
    pub fn start_with_descriptors(descriptors: u32, folder: tempfile::TempDir, config: &str) -> Gate {
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(format!("ulimit -n {descriptors} && exec \"$0\" \"$@\"")).arg(oroshi().get_program());
        Gate::start_by(shell, folder, config)
    }

    fn start_by(mut command: Command, folder: tempfile::TempDir, config: &str) -> Gate {
        configure(folder.path(), config);
        command.args(["gate", "--config", "gate.toml"]).current_dir(folder.path());
        Gate { process: Process::start(&mut command, "serving"), folder }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Puts another configuration in force.
    #[track_caller]
    pub fn reload(&mut self, config: &str) {
        configure(self.folder.path(), config);
        self.process.signal(Signal::HUP);
        self.process.until("is in force");
    }

    /// Asks it by the command line.
    pub fn ask(&self, args: &[&str]) -> Ran {
        let mut command = oroshi();
        command.args(["gate", "--config", "gate.toml"]).args(args).current_dir(self.folder.path());
        Ran::of(command.output().unwrap())
    }

    /// What its admin address says.
    pub fn status(&self) -> serde_json::Value {
        serde_json::from_str(&self.get_at("admin.sock", "a", "/status").body).unwrap()
    }

    pub fn get(&self, host: &str, target: &str) -> Answer {
        self.get_at("public.sock", host, target)
    }

    pub fn get_at(&self, socket: &str, host: &str, target: &str) -> Answer {
        let mut stream = std::os::unix::net::UnixStream::connect(self.path(socket)).unwrap();
        stream.set_read_timeout(Some(HANG)).unwrap();
        write!(stream, "GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").unwrap();
        Answer::read(stream)
    }
}

fn configure(folder: &Path, config: &str) {
    let listen = "threads = 2\nlisten = { public = \"unix:{dir}/public.sock\", admin = \"unix:{dir}/admin.sock\" }\n";
    let listen = if config.contains("listen") { "" } else { listen };
    let config = format!("{listen}{config}").replace("{dir}", folder.to_str().unwrap());
    fs::write(folder.join("gate.toml"), config).unwrap();
}

/// A server behind the gateway: its answers say who it is by their length.
pub fn server(folder: &Path, name: &str, size: usize) -> Process {
    let listen = format!("unix:{}", folder.join(name).display());
    let mut command = oroshi();
    command.args(["target", "--listen", &listen, "--size", &size.to_string()]);
    Process::start(&mut command, "listening")
}

/// An answer, read to the end of its connection.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Answer {
    pub fn read(mut stream: impl Read) -> Answer {
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no head: {text:?}"));
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Answer { status, head: head.to_owned(), body: body.to_owned() }
    }

    pub fn field(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }
}

/// A command that has ended.
#[derive(Debug)]
pub struct Ran {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Ran {
    pub fn of(output: Output) -> Ran {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Ran { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    }
}

/// The address of a server that said where it listens.
pub fn port(line: &str) -> u16 {
    let address = line.split("http://").nth(1).unwrap_or_else(|| panic!("{line}"));
    address.split(['/', ' ']).next().unwrap().rsplit(':').next().unwrap().parse().unwrap()
}

pub fn tcp(port: u16, host: &str, target: &str) -> Answer {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(HANG)).unwrap();
    write!(stream, "GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").unwrap();
    Answer::read(stream)
}

/// Runs statements in a database of SQLite; whether there is the program for it.
pub fn sqlite(test: &str, file: &Path, statements: &str) -> bool {
    match Command::new("sqlite3").arg(file).arg(statements).status() {
        Ok(status) => {
            assert!(status.success(), "{statements}");
            true
        }
        Err(_) => {
            skip(test, "sqlite3 is not installed");
            false
        }
    }
}

fn skip(test: &str, why: &str) {
    eprintln!("skipped: {test}: {why}");
    if let Some(list) = std::env::var_os("OROSHI_SKIPPED") {
        let mut list = fs::OpenOptions::new().append(true).create(true).open(list).unwrap();
        writeln!(list, "skipped: {test}: {why}").unwrap();
    }
}
