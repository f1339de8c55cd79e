//! Real stores of the tests' own, and look-ups that ask them.
#![allow(dead_code, unreachable_pub, unused_imports)] // each test file uses a part of it

use std::future::Future;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use oroshi_lookup::{
    Allow, LookupSettings, MemcachedSettings, SqlSettings, SqlState, StoreKind, StoreSettings, StoreState, Stores,
};
pub use oroshi_testkit::stores::{MariaDb, Memcached, Postgres};
pub use oroshi_testkit::{Daemon as Peer, HANG as PATIENCE, skipped};
use tempfile::TempDir;

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
