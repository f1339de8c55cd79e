//! A NATS server of one test.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::{daemon, need, wait_for};

/// A NATS server at a free port. Dropping it kills it.
#[derive(Debug)]
pub struct Nats {
    program: PathBuf,
    arguments: Vec<String>,
    child: Child,
    /// Its port at 127.0.0.1.
    pub port: u16,
}

impl Nats {
    /// Starts one with these further arguments, or notes that `test` was left out.
    pub fn start(test: &str, arguments: &[&str]) -> Option<Nats> {
        let program = need(test, "nats-server")?;
        let arguments: Vec<String> = arguments.iter().map(|&argument| argument.to_owned()).collect();
        let (child, port) = spawn(&program, "-1", &arguments);
        Some(Nats { program, arguments, child, port })
    }

    /// Ends it as `kill -9` does.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts it again, at the same port.
    pub fn restart(&mut self) {
        (self.child, _) = spawn(&self.program, &self.port.to_string(), &self.arguments);
    }

    /// Stops it as SIGSTOP does. Its connections stay open.
    pub fn freeze(&self) {
        daemon::freeze(&self.child);
    }

    /// Ends [`freeze`](Self::freeze).
    pub fn thaw(&self) {
        daemon::signal(&self.child, Signal::CONT);
    }

    /// Its URL.
    #[must_use]
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// Publishes a message on a connection of its own, and waits until the server has it.
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
}

impl Drop for Nats {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts the server, and waits until it says in a file at which port it listens.
fn spawn(program: &Path, port: &str, arguments: &[String]) -> (Child, u16) {
    let folder = TempDir::new().unwrap();
    let mut command = Command::new(program);
    command.args(["--addr", "127.0.0.1", "--port", port, "--ports_file_dir"]).arg(folder.path()).args(arguments);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let file = folder.path().join(format!("nats-server_{}.ports", child.id()));
    let port = wait_for(
        || "nats-server says where it listens".to_owned(),
        || {
            assert!(child.try_wait().unwrap().is_none(), "nats-server has ended");
            let ports: Value = serde_json::from_str(&std::fs::read_to_string(&file).ok()?).ok()?;
            ports["nats"][0].as_str()?.rsplit_once(':')?.1.parse().ok()
        },
    );
    (child, port)
}
