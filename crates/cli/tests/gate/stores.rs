//! Real stores behind the gateway, each behind a relay, with what can befall them.
#![allow(dead_code, unreachable_pub, reason = "a module of each test file, which uses its part")]

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use oroshi_lookup::{SqlStore, Stores, Value};

use super::peers::{self, MariaDb, Memcached, Peer, Postgres, Sqlite, run, sql};
use super::relay::{Mode, Relay};

/// A store of the table, until it is dropped.
pub struct Store {
    real: Real,
    relay: Option<Relay>,
    admin: Option<SqlStore>,
    rows: Vec<(String, String)>,
    /// What is held while a fault lasts: sessions, connections, a file's contents.
    sessions: Option<SqlStore>,
    connections: Vec<UnixStream>,
    contents: Vec<u8>,
}

enum Real {
    Memcached(Memcached),
    MariaDb(MariaDb),
    Postgres(Postgres),
    Sqlite(Sqlite),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    /// Nobody listens.
    Down,
    /// It does nothing any more, but its connections stay. A database in a file: somebody has locked it.
    Frozen,
    /// It answers so much later.
    Slow(Duration),
    /// It takes no more connections, and has closed the gateway's.
    Full,
    /// It has closed the gateway's sessions as they were idle, by its own setting.
    ClosesIdle,
    /// Somebody has ended the gateway's sessions.
    Killed,
    /// What it says is not its protocol. A database in a file: the file is none.
    Garbage(&'static [u8]),
}

impl Store {
    pub fn memcached(test: &str) -> Option<Store> {
        let real = Memcached::start(test)?;
        let relay = Relay::to(&real.0.folder.path().join("memcached.sock"));
        Some(Store::new(Real::Memcached(real), Some(relay), None))
    }

    pub fn mariadb(test: &str) -> Option<Store> {
        let real = MariaDb::start(test)?;
        let relay = Relay::to(&real.0.folder.path().join("m.sock"));
        let admin = admin(&real.url("root", "gate"));
        let store = Store::new(Real::MariaDb(real), Some(relay), Some(admin));
        // What was written has to be there after a kill.
        store.execute("SET GLOBAL innodb_flush_log_at_trx_commit = 1");
        Some(store)
    }

    pub fn postgres(test: &str) -> Option<Store> {
        let real = Postgres::start(test)?;
        let relay = Relay::to(&real.0.folder.path().join(".s.PGSQL.5432"));
        let admin = admin(&real.url("admin"));
        Some(Store::new(Real::Postgres(real), Some(relay), Some(admin)))
    }

    pub fn sqlite() -> Store {
        let real = Sqlite::start();
        let admin = admin(&real.url());
        Store::new(Real::Sqlite(real), None, Some(admin))
    }

    fn new(real: Real, relay: Option<Relay>, admin: Option<SqlStore>) -> Store {
        let (sessions, connections, contents) = (None, Vec::new(), Vec::new());
        Store { real, relay, admin, rows: Vec::new(), sessions, connections, contents }
    }

    /// The store `name` in the gateway's configuration, with this limit on each answer and connect.
    pub fn section(&self, name: &str, limit: &str) -> String {
        let port = self.relay.as_ref().map_or(0, |relay| relay.port);
        let breaker = "breaker = { failures = 3, pause = \"20ms\", pause-max = \"50ms\" }";
        let of_sql = |url: String| {
            format!(
                "[sql.{name}]\nurl = \"{url}\"\nquery-timeout = \"{limit}\"\nconnect-timeout = \"{limit}\"\n{breaker}\n"
            )
        };
        match &self.real {
            Real::Memcached(_) => format!(
                "[memcached.{name}]\nservers = [\"127.0.0.1:{port}\"]\ntimeout = \"{limit}\"\n\
                 connect-timeout = \"{limit}\"\n{breaker}\n"
            ),
            Real::MariaDb(_) => of_sql(format!("mysql://gate@127.0.0.1:{port}/gate")),
            Real::Postgres(_) => of_sql(format!("postgres://gate@127.0.0.1:{port}/postgres")),
            Real::Sqlite(database) => of_sql(database.url()),
        }
    }

    /// The tier of a look-up that asks it.
    pub fn tier(&self, name: &str) -> String {
        let parameter = if matches!(self.real, Real::Postgres(_)) { "$1" } else { "?" };
        match self.kind() {
            "memcached" => format!("memcached = {{ store = \"{name}\" }}\n"),
            _ => format!(
                "sql = {{ store = \"{name}\", query = \"SELECT host FROM domain WHERE domain = {parameter}\" }}\n"
            ),
        }
    }

    /// `memcached` or `sql`, as metrics call the tier.
    pub fn kind(&self) -> &'static str {
        if matches!(self.real, Real::Memcached(_)) { "memcached" } else { "sql" }
    }

    /// Whether it is a file, and no process.
    pub fn is_a_file(&self) -> bool {
        matches!(self.real, Real::Sqlite(_))
    }

    /// Puts a value under a key.
    pub fn put(&mut self, key: &str, value: &str) {
        self.rows.push((key.to_owned(), value.to_owned()));
        match &self.real {
            Real::Memcached(memcached) => memcached.set(key, value),
            _ => drop(self.execute(&format!("INSERT INTO domain VALUES ('{key}', '{value}')"))),
        }
    }

    /// The first column of what a statement brings, as text.
    pub fn execute(&self, statement: &str) -> Vec<Vec<Value>> {
        let admin = self.admin.as_ref().expect("a database");
        run(admin.query(statement, vec![])).unwrap().rows
    }

    /// How often it was asked for a value, by its own count, where it counts.
    pub fn asked(&self) -> u64 {
        match &self.real {
            Real::Memcached(memcached) => memcached.stat("cmd_get"),
            Real::MariaDb(_) => {
                let rows = self.execute("SHOW GLOBAL STATUS LIKE 'Com_stmt_execute'");
                let Value::Text(count) = &rows[0][1] else { panic!("{rows:?}") };
                count.parse().unwrap()
            }
            _ => panic!("it does not count"),
        }
    }

    pub fn memcached_stat(&self, name: &str) -> u64 {
        let Real::Memcached(memcached) = &self.real else { panic!("it is no memcached") };
        memcached.stat(name)
    }

    /// What must be so before the gateway connects.
    pub fn prepare(&self, fault: Fault) {
        if fault == Fault::ClosesIdle {
            match &self.real {
                Real::MariaDb(_) => drop(self.execute("SET GLOBAL wait_timeout = 1")),
                Real::Postgres(_) => drop(self.execute("ALTER ROLE gate SET idle_session_timeout = '100ms'")),
                Real::Memcached(_) | Real::Sqlite(_) => {}
            }
        }
    }

    /// Lets a fault begin.
    pub fn begin(&mut self, fault: Fault) {
        match fault {
            Fault::Down => self.peer().kill(),
            Fault::Frozen if self.relay.is_none() => drop(self.execute("BEGIN EXCLUSIVE")),
            Fault::Frozen => self.peer().freeze(),
            Fault::Slow(_) if self.relay.is_none() => self.lock_for_a_moment(),
            Fault::Slow(by) => self.relay().set(Mode::Late(by)),
            Fault::Full => self.fill(),
            Fault::ClosesIdle if self.admin.is_some() => self.until_no_session(),
            Fault::ClosesIdle | Fault::Killed if self.admin.is_none() => assert!(self.relay().cut() > 0),
            Fault::ClosesIdle | Fault::Killed => self.kill_sessions(),
            Fault::Garbage(garbage) if self.relay.is_none() => {
                self.contents = std::fs::read(self.file()).unwrap();
                std::fs::write(self.file(), garbage.repeat(self.contents.len() / garbage.len())).unwrap();
            }
            Fault::Garbage(garbage) => self.relay().set(Mode::Garbage(garbage)),
        }
    }

    /// Ends it.
    pub fn end(&mut self, fault: Fault) {
        match fault {
            Fault::Down => self.restart(),
            Fault::Frozen if self.relay.is_none() => drop(self.execute("COMMIT")),
            Fault::Frozen => self.peer().thaw(),
            Fault::Full => {
                (self.sessions, self.connections) = (None, Vec::new());
                match &self.real {
                    Real::MariaDb(_) => drop(self.execute("ALTER USER gate@localhost WITH MAX_USER_CONNECTIONS 0")),
                    Real::Postgres(_) => drop(self.execute("ALTER ROLE gate CONNECTION LIMIT -1")),
                    Real::Memcached(_) | Real::Sqlite(_) => {}
                }
            }
            Fault::ClosesIdle => match &self.real {
                Real::MariaDb(_) => drop(self.execute("SET GLOBAL wait_timeout = 28800")),
                Real::Postgres(_) => drop(self.execute("ALTER ROLE gate RESET idle_session_timeout")),
                Real::Memcached(_) | Real::Sqlite(_) => {}
            },
            Fault::Slow(_) | Fault::Garbage(_) => match &self.relay {
                Some(relay) => relay.set(Mode::Pass),
                None if matches!(fault, Fault::Slow(_)) => {}
                None => std::fs::write(self.file(), &self.contents).unwrap(),
            },
            Fault::Killed => {}
        }
    }

    /// Starts it again after its end, with what it had.
    pub fn restart(&mut self) {
        self.peer().restart();
        match &self.real {
            Real::Memcached(memcached) => self.rows.iter().for_each(|(key, value)| memcached.set(key, value)),
            // PostgreSQL listens before it is ready.
            _ => {
                let admin = self.admin.as_ref().unwrap();
                run(peers::until("it is ready", async || admin.query("SELECT 1", vec![]).await.is_ok()));
            }
        }
    }

    pub fn peer(&mut self) -> &mut Peer {
        match &mut self.real {
            Real::Memcached(real) => &mut real.0,
            Real::MariaDb(real) => &mut real.0,
            Real::Postgres(real) => &mut real.0,
            Real::Sqlite(_) => panic!("a file is no process"),
        }
    }

    pub fn relay(&self) -> &Relay {
        self.relay.as_ref().expect("it is behind a relay")
    }

    fn file(&self) -> PathBuf {
        let Real::Sqlite(database) = &self.real else { panic!("it is no file") };
        database.url().strip_prefix("sqlite:").unwrap().into()
    }

    fn lock_for_a_moment(&self) {
        self.execute("BEGIN EXCLUSIVE");
        let admin = self.admin.clone().unwrap();
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            run(admin.query("COMMIT", vec![])).unwrap();
        });
    }

    /// Takes all the connections there are.
    fn fill(&mut self) {
        let url = match &self.real {
            Real::Sqlite(_) => panic!("a file has no limit"),
            Real::Memcached(memcached) => {
                let address = memcached.address();
                let socket = address.strip_prefix("unix:").unwrap();
                // Until nobody is served any more, and then the gateway's own place too, once it is free.
                for places in [0, 1] {
                    let (began, enough) = (Instant::now(), self.connections.len() + places);
                    if places > 0 {
                        self.relay.as_ref().unwrap().cut();
                    }
                    loop {
                        match served(socket) {
                            Some(stream) => self.connections.push(stream),
                            None if self.connections.len() >= enough => break,
                            None => std::thread::sleep(Duration::from_millis(2)),
                        }
                        assert!(self.connections.len() < 64 && began.elapsed() < peers::PATIENCE);
                    }
                }
                return;
            }
            Real::MariaDb(database) => {
                self.execute("ALTER USER gate@localhost WITH MAX_USER_CONNECTIONS 1");
                database.url("gate", "gate")
            }
            Real::Postgres(database) => {
                self.execute("ALTER ROLE gate CONNECTION LIMIT 1");
                database.url("gate")
            }
        };
        self.kill_sessions();
        let holder = admin(&url);
        run(peers::until("it has the one session", async || holder.query("SELECT 1", vec![]).await.is_ok()));
        self.sessions = Some(holder);
    }

    fn kill_sessions(&self) {
        match &self.real {
            Real::MariaDb(_) => {
                let ids = self.execute("SELECT id FROM information_schema.processlist WHERE user = 'gate'");
                assert!(!ids.is_empty(), "the gateway has a session");
                for id in ids {
                    let Value::Int(id) = id[0] else { panic!("{id:?}") };
                    self.execute(&format!("KILL {id}"));
                }
            }
            Real::Postgres(_) => {
                let ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'gate'";
                assert!(!self.execute(ended).is_empty(), "the gateway has a session");
            }
            Real::Memcached(_) | Real::Sqlite(_) => panic!("it has no sessions"),
        }
        self.until_no_session();
    }

    fn until_no_session(&self) {
        let sessions = match &self.real {
            Real::MariaDb(_) => "SELECT id FROM information_schema.processlist WHERE user = 'gate'",
            _ => "SELECT pid FROM pg_stat_activity WHERE usename = 'gate'",
        };
        let began = Instant::now();
        while !self.execute(sessions).is_empty() {
            assert!(began.elapsed() < peers::PATIENCE, "the sessions stay");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// A connection that memcached serves.
fn served(socket: &str) -> Option<UnixStream> {
    let mut stream = UnixStream::connect(socket).ok()?;
    let mut answer = [0; 7];
    stream.write_all(b"version\r\n").and_then(|()| stream.read_exact(&mut answer)).ok()?;
    (answer == *b"VERSION").then_some(stream)
}

fn admin(url: &str) -> SqlStore {
    // The thread lives for as long as the store that is handed out.
    Stores::start(vec![sql("admin", url)]).unwrap().sql("admin").unwrap()
}
