//! A NATS server of the test's own, and nodes that meet there.
#![allow(dead_code, unreachable_pub)] // each test file uses a part of it

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use oroshi_push::{Cluster, Plan};
use oroshi_words::Secret;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::hub::{Hub, PATIENCE, skipped};

/// A NATS server. Dropping it kills it.
pub struct Nats {
    child: Child,
    arguments: Vec<String>,
    pub port: u16,
}

impl Nats {
    /// Starts one; `None`, and a line for whoever runs the tests, if there is no such program.
    pub fn start(test: &str, arguments: &[&str]) -> Option<Nats> {
        let arguments: Vec<String> = arguments.iter().map(|&argument| argument.to_owned()).collect();
        let folder = TempDir::new().unwrap();
        let Some(child) = spawn("-1", &folder, &arguments) else {
            skipped(test, "nats-server is not installed");
            return None;
        };
        let mut nats = Nats { child, arguments, port: 0 };
        nats.port = nats.port_in(&folder);
        Some(nats)
    }

    /// Ends it as `kill -9` does.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts it again, on the same port.
    pub fn restart(&mut self) {
        let folder = TempDir::new().unwrap();
        self.child = spawn(&self.port.to_string(), &folder, &self.arguments).unwrap();
        self.port_in(&folder);
    }

    /// It does nothing any more, but its connections stay.
    pub fn freeze(&self) {
        freeze(&self.child);
    }

    pub fn thaw(&self) {
        signal(&self.child, Signal::CONT);
    }

    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// A node here, with as many threads.
    pub fn node(&self, threads: usize, change: impl FnOnce(&mut Plan)) -> Hub {
        Hub::start(|plan| {
            plan.threads = threads;
            plan.cluster = Some(cluster(&self.url()));
            change(plan);
        })
    }

    /// Nodes that know each other.
    pub fn nodes(&self, count: usize) -> Vec<Hub> {
        let nodes: Vec<Hub> = (0..count).map(|_| self.node(2, |_| {})).collect();
        nodes.iter().for_each(|node| knows(node, count - 1));
        nodes
    }

    /// Says something that is no node's.
    pub fn say(&self, subject: &str, data: &[u8]) {
        let mut stream = BufReader::new(TcpStream::connect(("127.0.0.1", self.port)).unwrap());
        let mut line = String::new();
        stream.read_line(&mut line).unwrap();
        assert!(line.starts_with("INFO "), "{line}");
        let mut out = format!("CONNECT {{\"verbose\":false}}\r\nPUB {subject} {}\r\n", data.len()).into_bytes();
        out.extend_from_slice(data);
        out.extend_from_slice(b"\r\nPING\r\n");
        stream.get_mut().write_all(&out).unwrap();
        line.clear();
        stream.read_line(&mut line).unwrap();
        assert_eq!(line, "PONG\r\n");
    }

    /// The port that it listens on, once it does.
    fn port_in(&mut self, folder: &TempDir) -> u16 {
        let file = folder.path().join(format!("nats-server_{}.ports", self.child.id()));
        let start = Instant::now();
        loop {
            let text = std::fs::read_to_string(&file).unwrap_or_default();
            if let Ok(ports) = serde_json::from_str::<Value>(&text) {
                return ports["nats"][0].as_str().unwrap().rsplit_once(':').unwrap().1.parse().unwrap();
            }
            assert!(self.child.try_wait().unwrap().is_none(), "nats-server has ended");
            assert!(start.elapsed() < PATIENCE, "nats-server does not say where it listens");
            std::thread::yield_now();
        }
    }
}

impl Drop for Nats {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a node is told of the others.
pub fn cluster(url: &str) -> Cluster {
    // Long enough for a busy machine, where it is not what a test is about.
    Cluster { nats: Secret::new(url), name: "test".to_owned(), receipt_timeout: Duration::from_secs(10) }
}

/// Waits until a node knows so many others.
pub fn knows(node: &Hub, others: usize) {
    node.until("the other nodes", |status| {
        status["cluster"]["connected"] == true && status["cluster"]["nodes"] == others
    });
}

/// How many nodes a receipt knows of, and how many of them answered.
pub fn nodes(receipt: &Value) -> (u64, u64) {
    (receipt["nodes"]["known"].as_u64().unwrap(), receipt["nodes"]["answered"].as_u64().unwrap())
}

/// A counter of a node's `/status`.
pub fn counter(node: &Hub, name: &str) -> u64 {
    node.status()["cluster"][name].as_u64().unwrap()
}

/// Stops a process as SIGSTOP does, and waits until it stands still.
pub fn freeze(child: &Child) {
    signal(child, Signal::STOP);
    let (file, start) = (format!("/proc/{}/stat", child.id()), Instant::now());
    // The state stands behind the name, which is in parentheses.
    while !std::fs::read_to_string(&file).unwrap().rsplit(')').next().unwrap().starts_with(" T") {
        assert!(start.elapsed() < PATIENCE);
        std::thread::yield_now();
    }
}

pub fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

fn spawn(port: &str, folder: &TempDir, arguments: &[String]) -> Option<Child> {
    // Where Debian has it; not everyone's PATH names that.
    let path = format!("{}:/usr/sbin", std::env::var("PATH").unwrap_or_default());
    let mut command = Command::new("nats-server");
    command.env("PATH", path).args(["--addr", "127.0.0.1", "--port", port, "--ports_file_dir"]).arg(folder.path());
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().ok()
}
