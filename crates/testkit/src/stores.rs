//! memcached, MariaDB and PostgreSQL, each on a unix socket in a temporary folder.
//!
//! The databases have a table `domain` (`domain`, `host`) and a user `gate` without a password. The servers make both
//! by themselves, so that no client is needed for it.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;

use rustix::process::geteuid;
use tempfile::TempDir;

use crate::{Daemon, find, need, skipped, wait_until};

/// memcached on a unix socket.
#[derive(Debug)]
pub struct Memcached(pub Daemon);

impl Memcached {
    /// Starts one, or notes that `test` was left out.
    pub fn start(test: &str) -> Option<Memcached> {
        let folder = TempDir::new().unwrap();
        let socket = folder.path().join("memcached.sock");
        let mut command = Command::new(need(test, "memcached")?);
        command.args(["-m", "8", "-c", "64", "-t", "1", "-s"]).arg(&socket);
        if geteuid().is_root() {
            command.args(["-u", "root"]);
        }
        Daemon::start(command, socket, folder).map(Memcached)
    }

    /// Its address: `unix:PATH`.
    #[must_use]
    pub fn address(&self) -> String {
        format!("unix:{}", self.0.socket().display())
    }

    /// One of its own counters.
    #[must_use]
    pub fn stat(&self, name: &str) -> u64 {
        let answer = self.say("stats\r\n", "END\r\n");
        let line = answer.lines().find(|line| line.starts_with(&format!("STAT {name} "))).unwrap();
        line.rsplit(' ').next().unwrap().parse().unwrap()
    }

    /// Sends a request on a connection of its own, and reads until the answer ends with `end`.
    pub fn say(&self, request: &str, end: &str) -> String {
        let mut stream = UnixStream::connect(self.0.socket()).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let (mut answer, mut room) = (String::new(), [0; 4096]);
        while !answer.ends_with(end) {
            let count = stream.read(&mut room).unwrap();
            assert!(count > 0, "memcached closed the connection after {answer:?}");
            answer.push_str(std::str::from_utf8(&room[..count]).unwrap());
        }
        answer
    }

    /// Sets a value.
    pub fn set(&self, key: &str, value: &str) {
        self.say(&format!("set {key} 0 0 {}\r\n{value}\r\n", value.len()), "STORED\r\n");
    }
}

/// MariaDB on a unix socket. Its database is called `gate`; `root` has no password either.
#[derive(Debug)]
pub struct MariaDb(pub Daemon);

/// Carried out at each start, before it takes connections.
const MARIADB: &str = "\
CREATE DATABASE IF NOT EXISTS gate;
CREATE TABLE IF NOT EXISTS gate.domain (domain VARCHAR(253) PRIMARY KEY, host VARCHAR(255));
CREATE USER IF NOT EXISTS gate@localhost;
GRANT ALL ON gate.* TO gate@localhost;
";

impl MariaDb {
    /// Starts one, or notes that `test` was left out.
    pub fn start(test: &str) -> Option<MariaDb> {
        MariaDb::start_with(test, &[])
    }

    /// The same with further options of the server.
    pub fn start_with(test: &str, options: &[String]) -> Option<MariaDb> {
        let (installer, program) = (need(test, "mariadb-install-db")?, need(test, "mariadbd")?);
        let folder = TempDir::new().unwrap();
        let (data, socket, first) =
            (folder.path().join("data"), folder.path().join("m.sock"), folder.path().join("first.sql"));
        std::fs::write(&first, MARIADB).unwrap();
        let mut install = Command::new(installer);
        install.arg("--no-defaults").arg(format!("--datadir={}", data.display()));
        install.args(["--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve"]);
        install.args(["--innodb-log-file-size=4M"]);
        let mut server = Command::new(program);
        server.args(["--no-defaults", "--skip-networking", "--skip-name-resolve", "--innodb-log-file-size=4M"]);
        server.args(["--innodb-buffer-pool-size=8M", "--innodb-flush-log-at-trx-commit=0", "--performance-schema=OFF"]);
        server.arg(format!("--datadir={}", data.display())).arg(format!("--socket={}", socket.display()));
        server.arg(format!("--init-file={}", first.display())).args(options);
        if geteuid().is_root() {
            install.arg("--user=root");
            server.arg("--user=root");
        }
        // Each deletes the temporary tables that it finds in its folder when it starts: those of others too.
        install.env("TMPDIR", folder.path());
        server.env("TMPDIR", folder.path());
        succeeds(&mut install);
        Daemon::start(server, socket, folder).map(MariaDb)
    }

    /// The URL of a database for a user.
    #[must_use]
    pub fn url(&self, user: &str, database: &str) -> String {
        format!("mysql://{user}@localhost/{database}?socket={}", self.0.socket().display())
    }
}

/// PostgreSQL on a unix socket, and the port that the socket is named after. The superuser is called `admin`.
#[derive(Debug)]
pub struct Postgres(pub Daemon, u16);

/// Carried out once, by the server alone.
const POSTGRES: &str = "\
CREATE TABLE domain (domain VARCHAR(253) PRIMARY KEY, host VARCHAR(255))
CREATE USER gate
GRANT ALL ON domain TO gate
";

impl Postgres {
    /// Starts one, or notes that `test` was left out.
    pub fn start(test: &str) -> Option<Postgres> {
        Postgres::start_with(test, 5432, &[])
    }

    /// The same with another port, and with further settings of the server, each `name=value`.
    pub fn start_with(test: &str, port: u16, settings: &[String]) -> Option<Postgres> {
        let Some(programs) = newest_postgres() else {
            skipped(test, "postgresql is not installed");
            return None;
        };
        let folder = TempDir::new().unwrap();
        // It refuses to run as root.
        let as_somebody = |program: &str| {
            let program = programs.join(program);
            let mut command = if geteuid().is_root() {
                let mut command = Command::new("setpriv");
                command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups", "--"]).arg(program);
                command
            } else {
                Command::new(program)
            };
            command.current_dir("/");
            command
        };
        if geteuid().is_root() {
            succeeds(Command::new("chown").arg("postgres").arg(folder.path()));
        }
        let data = folder.path().join("data");
        succeeds(
            as_somebody("initdb")
                .args(["--no-sync", "--auth=trust", "--username=admin", "--locale=C", "--encoding=UTF8", "-D"])
                .arg(&data),
        );
        let mut alone = as_somebody("postgres");
        alone.args(["--single", "-c", "fsync=off", "-D"]).arg(&data).arg("postgres");
        succeeds_with(&mut alone, POSTGRES);
        let mut server = as_somebody("postgres");
        server.arg("-D").arg(&data).arg("-k").arg(folder.path()).args(["-p", &port.to_string()]);
        for setting in ["listen_addresses=", "fsync=off", "max_connections=20", "shared_buffers=8MB"] {
            server.args(["-c", setting]);
        }
        for setting in settings {
            server.args(["-c", setting]);
        }
        let socket = folder.path().join(format!(".s.PGSQL.{port}"));
        let database = Postgres(Daemon::start(server, socket, folder)?, port);
        database.until_ready();
        Some(database)
    }

    /// Waits until it takes sessions: it listens before that.
    pub fn until_ready(&self) {
        let file = self.0.folder.path().join("data/postmaster.pid");
        // The last line of the file is its state.
        wait_until("PostgreSQL is ready", || {
            std::fs::read_to_string(&file)
                .is_ok_and(|text| text.lines().last().is_some_and(|line| line.trim() == "ready"))
        });
    }

    /// Its URL for a user.
    #[must_use]
    pub fn url(&self, user: &str) -> String {
        format!("postgres://{user}@localhost:{}/postgres?host={}", self.1, self.0.folder.path().display())
    }
}

/// Returns the folder with PostgreSQL's programs. Debian keeps the servers of each version apart.
fn newest_postgres() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok();
    let folders = versions.into_iter().flatten().flatten().map(|entry| entry.path().join("bin"));
    let newest = folders.filter(|folder| folder.join("initdb").exists()).max();
    newest.or_else(|| Some(find("initdb")?.parent()?.to_owned()))
}

/// Runs a command to its end, which must be a success.
#[track_caller]
fn succeeds(command: &mut Command) {
    succeeds_with(command, "");
}

/// The same with this standard input. PostgreSQL goes on after an error, and exits with 0.
#[track_caller]
fn succeeds_with(command: &mut Command, input: &str) {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(input.as_bytes()).unwrap();
    std::io::Seek::rewind(&mut file).unwrap();
    let output = command.stdin(file).output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let told = String::from_utf8_lossy(&output.stderr);
    let failed = !input.is_empty() && ["ERROR:", "FATAL:", "PANIC:"].iter().any(|level| told.contains(level));
    assert!(output.status.success() && !failed, "{command:?}: {}\n{told}", output.status);
}
