//! Real stores of the tests' own: started in temporary folders on unix sockets, and ended with the test.
#![allow(dead_code, unreachable_pub)] // each test file uses a part of it
#![allow(clippy::print_stderr)] // what a test has to say when it is skipped

use std::future::Future;
use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use oroshi_lookup::{
    Allow, LookupSettings, MemcachedSettings, SqlSettings, SqlState, StoreKind, StoreSettings, StoreState, Stores,
};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// How long anything may take that is bound to happen.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Runs a test on a runtime like those of the cores.
pub fn run<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build().unwrap().block_on(test)
}

/// Waits for something that is bound to happen.
pub async fn until<F: Future<Output = bool>>(what: &str, is_so: impl Fn() -> F) {
    let start = Instant::now();
    while !is_so().await {
        assert!(start.elapsed() < PATIENCE, "waited in vain for: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// A process of the test's own. Dropping it kills it.
pub struct Peer {
    command: Command,
    child: Child,
    socket: PathBuf,
    pub folder: TempDir,
}

impl Peer {
    /// Starts a command that will listen on `socket`; `None` if there is no such program.
    fn start(mut command: Command, socket: PathBuf, folder: TempDir) -> Option<Peer> {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().ok()?;
        let mut peer = Peer { command, child, socket, folder };
        peer.wait();
        Some(peer)
    }

    fn wait(&mut self) {
        let start = Instant::now();
        while UnixStream::connect(&self.socket).is_err() {
            assert!(self.child.try_wait().unwrap().is_none(), "{:?} has ended", self.command.get_program());
            assert!(start.elapsed() < PATIENCE, "{:?} does not listen", self.command.get_program());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Ends it as `kill -9` does.
    pub fn kill(&mut self) {
        let processes = self.processes();
        self.signal(Signal::KILL);
        self.child.wait().unwrap();
        // Its children are init's now: gone when init has looked at them.
        let start = Instant::now();
        while processes
            .iter()
            .any(|process| Path::new(&format!("/proc/{}/exe", process.as_raw_pid())).read_link().is_ok())
        {
            assert!(start.elapsed() < PATIENCE);
            std::thread::yield_now();
        }
    }

    /// Starts it again where it was.
    pub fn restart(&mut self) {
        let _ = std::fs::remove_file(&self.socket);
        self.child = self.command.spawn().unwrap();
        self.wait();
    }

    /// It does nothing any more, nor do its own processes, but their connections stay.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
        for process in self.processes() {
            let (file, start) = (format!("/proc/{}/stat", process.as_raw_pid()), Instant::now());
            // The state stands behind the name, which is in parentheses. Some may have ended, and nobody buries them
            // now.
            let moves = |stat: String| !stat.rsplit(") ").next().unwrap().starts_with(['T', 'Z', 'X']);
            while std::fs::read_to_string(&file).is_ok_and(moves) {
                assert!(start.elapsed() < PATIENCE);
                std::thread::yield_now();
            }
        }
    }

    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    /// To all of them; the first is the one that could start more.
    fn signal(&self, signal: Signal) {
        for process in self.processes() {
            let _ = kill_process(process, signal); // it may have ended
        }
    }

    /// It and its children.
    fn processes(&self) -> Vec<Pid> {
        let own = self.child.id();
        let children = std::fs::read_to_string(format!("/proc/{own}/task/{own}/children")).unwrap();
        let children = children.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().unwrap()));
        std::iter::once(Pid::from_child(&self.child)).chain(children).collect()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // Its number is its own for as long as it has not been waited for. Frozen children would outlive it.
        if matches!(self.child.try_wait(), Ok(None)) {
            self.signal(Signal::KILL);
            let _ = self.child.wait();
        }
    }
}

/// memcached on a unix socket.
pub struct Memcached(pub Peer);

impl Memcached {
    /// `None`, and a line for whoever runs the tests, if there is no such program.
    pub fn start(test: &str) -> Option<Memcached> {
        let folder = TempDir::new().unwrap();
        let socket = folder.path().join("memcached.sock");
        let mut command = Command::new("memcached");
        command.args(["-m", "8", "-c", "64", "-t", "1", "-s"]).arg(&socket);
        if rustix::process::geteuid().is_root() {
            command.args(["-u", "root"]);
        }
        let peer = Peer::start(command, socket, folder);
        if peer.is_none() {
            skipped(test, "memcached is not installed");
        }
        peer.map(Memcached)
    }

    pub fn address(&self) -> String {
        format!("unix:{}", self.0.socket.display())
    }

    /// One of its own counters.
    pub fn stat(&self, name: &str) -> u64 {
        let answer = self.say("stats\r\n", "END\r\n");
        let line = answer.lines().find(|line| line.starts_with(&format!("STAT {name} "))).unwrap();
        line.rsplit(' ').next().unwrap().parse().unwrap()
    }

    /// Says something over a connection of its own, until the answer ends so.
    pub fn say(&self, request: &str, end: &str) -> String {
        let mut stream = UnixStream::connect(&self.0.socket).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let (mut answer, mut room) = (String::new(), [0; 4096]);
        while !answer.ends_with(end) {
            let count = stream.read(&mut room).unwrap();
            assert!(count > 0, "it was closed after {answer:?}");
            answer.push_str(std::str::from_utf8(&room[..count]).unwrap());
        }
        answer
    }

    pub fn set(&self, key: &str, value: &str) {
        self.say(&format!("set {key} 0 0 {}\r\n{value}\r\n", value.len()), "STORED\r\n");
    }
}

/// MariaDB on a unix socket, with a database `gate`, its table `domain`, and a user `gate` without a password.
pub struct MariaDb(pub Peer);

impl MariaDb {
    pub fn start(test: &str) -> Option<MariaDb> {
        MariaDb::start_with(test, &[])
    }

    /// With further options of the server.
    pub fn start_with(test: &str, options: &[String]) -> Option<MariaDb> {
        let folder = TempDir::new().unwrap();
        let (data, socket) = (folder.path().join("data"), folder.path().join("m.sock"));
        let mut install = command("mariadb-install-db");
        install.arg("--no-defaults").arg(format!("--datadir={}", data.display()));
        install.args(["--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve"]);
        install.args(["--innodb-log-file-size=4M"]);
        let mut server = command("mariadbd");
        server.args(["--no-defaults", "--skip-networking", "--skip-name-resolve", "--innodb-log-file-size=4M"]);
        server.args(["--innodb-buffer-pool-size=8M", "--innodb-flush-log-at-trx-commit=0", "--performance-schema=OFF"]);
        server.arg(format!("--datadir={}", data.display())).arg(format!("--socket={}", socket.display()));
        server.args(options);
        if rustix::process::geteuid().is_root() {
            install.arg("--user=root");
            server.arg("--user=root");
        }
        if !succeeds(&mut install) {
            skipped(test, "mariadb-install-db is not installed");
            return None;
        }
        let database = MariaDb(Peer::start(server, socket, folder)?);
        let admin = Stores::start(vec![sql("admin", &database.url("root", "mysql"))]).unwrap();
        run(async {
            for query in [
                "CREATE DATABASE gate",
                "CREATE TABLE gate.domain (domain VARCHAR(253) PRIMARY KEY, host VARCHAR(255))",
                "CREATE USER gate@localhost",
                "GRANT ALL ON gate.* TO gate@localhost",
            ] {
                admin.sql("admin").unwrap().query(query, vec![]).await.unwrap();
            }
        });
        Some(database)
    }

    pub fn url(&self, user: &str, database: &str) -> String {
        format!("mysql://{user}@localhost/{database}?socket={}", self.0.socket.display())
    }
}

/// PostgreSQL on a unix socket, with a table `domain` and a user `gate` without a password; and the port that the socket is named after.
pub struct Postgres(pub Peer, u16);

impl Postgres {
    pub fn start(test: &str) -> Option<Postgres> {
        Postgres::start_with(test, 5432, &[])
    }

    /// With another port, and with further settings of the server, each `name=value`.
    pub fn start_with(test: &str, port: u16, settings: &[String]) -> Option<Postgres> {
        // Debian keeps the servers of each version apart.
        let newest =
            |folder: PathBuf| std::fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path().join("bin")).max();
        let Some(programs) = newest("/usr/lib/postgresql".into()).filter(|folder| folder.join("initdb").exists())
        else {
            skipped(test, "postgresql is not installed");
            return None;
        };
        let folder = TempDir::new().unwrap();
        // It refuses to run as root.
        let as_somebody = |program: &str| {
            let program = programs.join(program);
            if !rustix::process::geteuid().is_root() {
                return Command::new(program);
            }
            assert!(succeeds(Command::new("chown").arg("postgres").arg(folder.path())));
            let mut command = Command::new("setpriv");
            command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups", "--"]).arg(program);
            command
        };
        let data = folder.path().join("data");
        let mut init = as_somebody("initdb");
        init.current_dir("/")
            .args(["--no-sync", "--auth=trust", "--username=admin", "--locale=C", "--encoding=UTF8", "-D"])
            .arg(&data);
        assert!(succeeds(&mut init), "initdb failed");
        let mut server = as_somebody("postgres");
        server.current_dir("/").arg("-D").arg(&data).arg("-k").arg(folder.path());
        server.args([
            "-c",
            "listen_addresses=",
            "-c",
            "fsync=off",
            "-c",
            "max_connections=20",
            "-c",
            "shared_buffers=8MB",
        ]);
        server.args(["-p", &port.to_string()]);
        for setting in settings {
            server.args(["-c", setting]);
        }
        let socket = folder.path().join(format!(".s.PGSQL.{port}"));
        let database = Postgres(Peer::start(server, socket, folder)?, port);
        let admin = Stores::start(vec![sql("admin", &database.url("admin"))]).unwrap();
        run(async {
            // It listens before it is ready.
            let ready = async || admin.sql("admin").unwrap().query("SELECT 1", vec![]).await.is_ok();
            until("PostgreSQL is ready", ready).await;
            for query in [
                "CREATE TABLE domain (domain VARCHAR(253) PRIMARY KEY, host VARCHAR(255))",
                "CREATE USER gate",
                "GRANT ALL ON domain TO gate",
            ] {
                admin.sql("admin").unwrap().query(query, vec![]).await.unwrap();
            }
        });
        Some(database)
    }

    pub fn url(&self, user: &str) -> String {
        format!("postgres://{user}@localhost:{}/postgres?host={}", self.1, self.0.folder.path().display())
    }
}

/// A database in a file, with a table `domain`.
pub struct Sqlite {
    folder: TempDir,
}

impl Sqlite {
    pub fn start() -> Sqlite {
        let database = Sqlite { folder: TempDir::new().unwrap() };
        let stores = Stores::start(vec![sql("admin", &format!("{}?mode=rwc", database.url()))]).unwrap();
        run(async {
            let table = "CREATE TABLE domain (domain TEXT PRIMARY KEY, host TEXT)";
            stores.sql("admin").unwrap().query(table, vec![]).await.unwrap();
        });
        database
    }

    pub fn url(&self) -> String {
        format!("sqlite:{}", self.folder.path().join("gate.db").display())
    }

    /// Runs a statement over a connection of its own.
    pub async fn execute(&self, statement: &str) {
        let stores = Stores::start(vec![sql("admin", &self.url())]).unwrap();
        stores.sql("admin").unwrap().query(statement, vec![]).await.unwrap();
    }
}

/// Something that listens on a unix socket, and does the same to everyone who connects.
pub struct Fake {
    pub folder: TempDir,
    connections: Arc<AtomicUsize>,
}

impl Fake {
    pub fn start(name: &str, serve: impl Fn(UnixStream) + Send + Sync + 'static) -> Fake {
        let folder = TempDir::new().unwrap();
        let listener = UnixListener::bind(folder.path().join(name)).unwrap();
        let (connections, serve) = (Arc::new(AtomicUsize::new(0)), Arc::new(serve));
        let counted = Arc::clone(&connections);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                counted.fetch_add(1, SeqCst);
                let serve = Arc::clone(&serve);
                std::thread::spawn(move || serve(stream));
            }
        });
        Fake { folder, connections }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// How many have connected.
    pub fn connections(&self) -> usize {
        self.connections.load(SeqCst)
    }
}

/// A memcached store; patient, as a busy machine is no fault of a store's.
pub fn memcached(name: &str, servers: &[String]) -> StoreSettings {
    let mut settings = MemcachedSettings::new(servers.to_vec());
    (settings.timeout, settings.connect_timeout) = (PATIENCE, PATIENCE);
    StoreSettings { name: name.to_owned(), kind: StoreKind::Memcached(settings) }
}

/// A database; patient as well.
pub fn sql(name: &str, url: &str) -> StoreSettings {
    let mut settings = SqlSettings::new(url);
    (settings.query_timeout, settings.connect_timeout) = (PATIENCE, PATIENCE);
    StoreSettings { name: name.to_owned(), kind: StoreKind::Sql(settings) }
}

/// A look-up without a store yet, which lets everything pass and waits for as long as it takes.
pub fn lookup() -> LookupSettings {
    let mut settings = LookupSettings::new("domains");
    settings.allow = Allow::any();
    settings.wait = PATIENCE;
    settings
}

/// How a database is.
pub async fn sql_state(stores: &Stores, name: &str) -> SqlState {
    let states = stores.states().await;
    match states.into_iter().find(|(its, _)| its == name).unwrap().1 {
        StoreState::Sql(state) => state,
        StoreState::Memcached(_) => panic!("`{name}` is memcached"),
    }
}

fn command(program: &str) -> Command {
    // Where Debian has it; not everyone's PATH names that.
    let path = format!("{}:/usr/sbin", std::env::var("PATH").unwrap_or_default());
    let found = path.split(':').map(|folder| Path::new(folder).join(program)).find(|path| path.exists());
    Command::new(found.unwrap_or_else(|| program.into()))
}

fn succeeds(command: &mut Command) -> bool {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Tells whoever runs the tests that this one was left out, and why.
pub fn skipped(name: &str, why: &str) {
    let line = format!("skipped: {name}: {why}\n");
    eprint!("{line}");
    if let Some(path) = std::env::var_os("OROSHI_SKIPPED") {
        let mut file = std::fs::OpenOptions::new().append(true).open(path).expect("OROSHI_SKIPPED names a file");
        file.write_all(line.as_bytes()).expect("a line in OROSHI_SKIPPED");
    }
}
