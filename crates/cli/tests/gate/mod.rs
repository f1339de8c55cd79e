//! What the tests of `oroshi gate` share: the gateway and the servers behind it as processes, and a client.
#![allow(dead_code, unreachable_pub, unused_imports, reason = "a module of each test file, which uses its part")]

use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;

pub use oroshi_testkit::http::TextAnswer as Answer;
pub use oroshi_testkit::process::Ran;
use oroshi_testkit::skipped;
pub use oroshi_testkit::{HANG, Process};
use rustix::process::Signal;

pub fn oroshi() -> Command {
    Command::new(env!("CARGO_BIN_EXE_oroshi"))
}

/// A gateway with its configuration in a folder.
pub struct Gate {
    pub process: Process,
    pub folder: tempfile::TempDir,
}

impl Gate {
    /// Starts one that listens at `public.sock` and, for operators, at `admin.sock`. `{dir}` in the configuration is
    /// the folder.
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
            skipped(test, "sqlite3 is not installed");
            false
        }
    }
}
