//! Settings of look-ups and stores: plain data with defaults, and a check that returns all mistakes at once.

use std::time::Duration;

use oroshi_words::{Mistake, Secret};

use crate::allow::Allow;
use crate::breaker::BreakerSettings;

/// Settings of a look-up: tiers, asked in the order memory, memcached, SQL. Each tier is optional, but one store is
/// required.
#[derive(Clone, Debug, PartialEq)]
pub struct LookupSettings {
    /// The name in messages and metrics.
    pub name: String,
    /// The memory tier; `None`: every look-up asks the stores.
    pub memory: Option<MemoryTier>,
    /// The memcached tier.
    pub memcached: Option<MemcachedTier>,
    /// The SQL tier.
    pub sql: Option<SqlTier>,
    /// The allowed targets. None by default.
    pub allow: Allow,
    /// How long a look-up waits for the stores in total. 3 s by default.
    pub wait: Duration,
    /// The maximum of keys being looked up at the same time; further look-ups are refused. 1,000 by default.
    pub keys_in_flight: usize,
    /// The maximum of look-ups waiting for an answer; further ones are refused. 100,000 by default.
    pub waiting: usize,
}

impl LookupSettings {
    /// Creates settings with this name, default memory and no store yet.
    pub fn new(name: impl Into<String>) -> Self {
        LookupSettings {
            name: name.into(),
            memory: Some(MemoryTier::default()),
            memcached: None,
            sql: None,
            allow: Allow::default(),
            wait: Duration::from_secs(3),
            keys_in_flight: 1000,
            waiting: 100_000,
        }
    }
}

/// The memory tier. Its limits are for all cores together.
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryTier {
    /// The maximum of values. 1,000,000 by default.
    pub entries: usize,
    /// The maximum of bytes of values, including keys and index. 256 MiB by default.
    pub bytes: usize,
    /// The maximum of refusals: keys without a value, or with an invalid one. 100,000 by default.
    pub negative_entries: usize,
    /// The maximum of bytes of refusals. 32 MiB by default.
    pub negative_bytes: usize,
    /// The TTL of a value. 60 s by default.
    pub ttl: Duration,
    /// The TTL of a refusal. 5 s by default.
    pub negative_ttl: Duration,
    /// The share by which TTLs vary at random, so that entries made together do not expire together; 0 to 0.5. 0.1 by
    /// default.
    pub jitter: f64,
    /// The share of its TTL after which a hit refreshes a value in the background; `None`: never. 0.8 by default.
    pub refresh_ahead: Option<f64>,
    /// How long after its TTL a value may be used while the stores are down. 1 h by default.
    pub stale_if_error: Duration,
}

impl Default for MemoryTier {
    fn default() -> Self {
        MemoryTier {
            entries: 1_000_000,
            bytes: 256 << 20,
            negative_entries: 100_000,
            negative_bytes: 32 << 20,
            ttl: Duration::from_secs(60),
            negative_ttl: Duration::from_secs(5),
            jitter: 0.1,
            refresh_ahead: Some(0.8),
            stale_if_error: Duration::from_secs(3600),
        }
    }
}

/// The memcached tier. Answers of SQL are written back to it with a TTL. Reads do not extend that TTL, so an entry in
/// memory is at most as old as both TTLs together.
#[derive(Clone, Debug, PartialEq)]
pub struct MemcachedTier {
    /// The store's name.
    pub store: String,
    /// The prefix of its keys, up to 100 bytes of visible ASCII. Empty by default.
    pub prefix: String,
    /// The TTL of a written-back value, from 1 s to 30 days. 300 s by default.
    pub ttl: Duration,
    /// The TTL of a written-back refusal, from 1 s to 30 days; `None`: refusals are not written. 30 s by default.
    pub negative_ttl: Option<Duration>,
    /// Whether answers of SQL are written back. True by default.
    pub write_back: bool,
}

impl MemcachedTier {
    /// Creates a tier on this store with defaults.
    pub fn new(store: impl Into<String>) -> Self {
        MemcachedTier {
            store: store.into(),
            prefix: String::new(),
            ttl: Duration::from_secs(300),
            negative_ttl: Some(Duration::from_secs(30)),
            write_back: true,
        }
    }
}

/// The SQL tier.
#[derive(Clone, Debug, PartialEq)]
pub struct SqlTier {
    /// The store's name.
    pub store: String,
    /// A query with one parameter, the key as text: `SELECT host FROM domain WHERE domain = ?`, for PostgreSQL `... =
    /// $1`. The first column of the first row is the value; no row, or NULL, means no value.
    pub query: String,
}

/// A store with its name.
#[derive(Clone, Debug, PartialEq)]
pub struct StoreSettings {
    /// The name that look-ups and scripts use.
    pub name: String,
    /// The kind, with its settings.
    pub kind: StoreKind,
}

/// The kind of a store.
#[derive(Clone, Debug, PartialEq)]
pub enum StoreKind {
    /// memcached servers.
    Memcached(MemcachedSettings),
    /// A database.
    Sql(SqlSettings),
}

/// memcached servers that share the keys. One connection to each serves all cores and requests.
#[derive(Clone, Debug, PartialEq)]
pub struct MemcachedSettings {
    /// `host:port`, `unix:/path`; the default port is 11211. A key's server depends on these texts alone, not on their
    /// order.
    pub servers: Vec<String>,
    /// The timeout of a reply. 250 ms by default.
    pub timeout: Duration,
    /// The timeout of a connect. 500 ms by default.
    pub connect_timeout: Duration,
    /// The largest value to read or write, up to 1 MiB, memcached's own limit. 1 MiB by default.
    pub value_bytes: usize,
    /// The maximum of requests that wait for one server; further ones are refused. 10,000 by default.
    pub pending: usize,
    /// The breaker of each server.
    pub breaker: BreakerSettings,
}

impl MemcachedSettings {
    /// Creates settings for these servers with defaults.
    pub fn new(servers: Vec<String>) -> Self {
        MemcachedSettings {
            servers,
            timeout: Duration::from_millis(250),
            connect_timeout: Duration::from_millis(500),
            value_bytes: 1 << 20,
            pending: 10_000,
            breaker: BreakerSettings::default(),
        }
    }
}

/// A database, with a few connections for all cores.
#[derive(Clone, Debug, PartialEq)]
pub struct SqlSettings {
    /// `sqlite:/path/file.db`, `mysql://user@host/database`, `mysql://user@localhost/database?socket=/path`,
    /// `postgres://user@host/database`, `postgres://user@localhost/database?host=/folder/of/the/socket`. Options after
    /// `?` are sqlx's. Never shown in full.
    pub url: Secret,
    /// The password; better here than in the URL.
    pub password: Option<Secret>,
    /// The maximum of connections, and one more while a store behind an open breaker is probed. 2 by default.
    pub connections: usize,
    /// The maximum of connections for queries of scripts; the others are for look-ups alone. Half by default, and at
    /// least one.
    pub script_connections: Option<usize>,
    /// The timeout of a query, from the moment that it has a connection. 1 s by default.
    pub query_timeout: Duration,
    /// The timeout of a connect. 1 s by default.
    pub connect_timeout: Duration,
    /// The maximum of queries that wait for a connection; further ones are refused. 10,000 by default.
    pub pending: usize,
    /// The maximum of rows of a script's query. 1,000 by default.
    pub rows: usize,
    /// The maximum of bytes of values of a script's query. 1 MiB by default.
    pub row_bytes: usize,
    /// The breaker of each user.
    pub breaker: BreakerSettings,
}

impl SqlSettings {
    /// Returns why a query with this many parameters would be refused, as far as known without the database: for
    /// SQLite, which itself would run it.
    pub fn objection(&self, query: &str, parameters: usize) -> Option<String> {
        crate::sql::objection(self, query, parameters)
    }

    /// Returns the maximum of connections for queries of scripts.
    pub fn for_scripts(&self) -> usize {
        self.script_connections.unwrap_or((self.connections / 2).max(1))
    }

    /// Creates settings for the database at this URL with defaults.
    pub fn new(url: impl Into<String>) -> Self {
        SqlSettings {
            url: Secret::new(url),
            password: None,
            connections: 2,
            script_connections: None,
            query_timeout: Duration::from_secs(1),
            connect_timeout: Duration::from_secs(1),
            pending: 10_000,
            rows: 1000,
            row_bytes: 1 << 20,
            breaker: BreakerSettings::default(),
        }
    }
}

/// The longest TTL that memcached takes for a duration (protocol.txt, "Expiration times").
const MEMCACHED_TTL: Duration = Duration::from_secs(30 * 24 * 3600);
/// The longest TTL in memory: ticks of 32 ms in 32 bits allow more than four years, and one is plenty.
const MEMORY_TTL: Duration = Duration::from_secs(366 * 24 * 3600);
const PREFIX_BYTES: usize = 100;
/// memcached's own limit of a value (its option -I).
const MEMCACHED_VALUE: usize = 1 << 20;

impl LookupSettings {
    /// Returns all mistakes. Starting the look-up checks whether its stores exist.
    pub fn validate(&self) -> Vec<Mistake> {
        let mut check = Check::default();
        check.that(self.memcached.is_some() || self.sql.is_some(), "tiers", || {
            "there is no store to look in: expected memcached, sql or both".to_owned()
        });
        check.that(!self.allow.is_empty(), "allow", || {
            "no target is allowed: expected networks (10.0.0.0/8), names (.internal), folders of unix sockets \
             (unix:/run/apps/) or `any`"
                .to_owned()
        });
        check.positive("wait", self.wait);
        check.count("keys-in-flight", self.keys_in_flight);
        check.count("waiting", self.waiting);
        if let Some(memory) = &self.memory {
            memory.check(&mut check);
        }
        if let Some(memcached) = &self.memcached {
            memcached.check(&mut check);
        }
        if let Some(sql) = &self.sql {
            check.that(!sql.query.trim().is_empty(), "sql.query", || {
                "there is no query: expected one with one parameter, such as \
                 SELECT host FROM domain WHERE domain = ?"
                    .to_owned()
            });
        }
        check.0
    }
}

impl MemoryTier {
    fn check(&self, check: &mut Check) {
        check.count("memory.entries", self.entries);
        check.count("memory.bytes", self.bytes);
        check.count("memory.negative-entries", self.negative_entries);
        check.count("memory.negative-bytes", self.negative_bytes);
        for (key, ttl) in [("memory.ttl", self.ttl), ("memory.negative-ttl", self.negative_ttl)] {
            check.positive(key, ttl);
        }
        for (key, time) in [
            ("memory.ttl", self.ttl),
            ("memory.negative-ttl", self.negative_ttl),
            ("memory.stale-if-error", self.stale_if_error),
        ] {
            check.that(time <= MEMORY_TTL, key, || format!("{time:?} is too long: expected at most a year"));
        }
        check.that((0.0..=0.5).contains(&self.jitter), "memory.jitter", || {
            format!("{} is not a share that makes sense: expected 0 to 0.5", self.jitter)
        });
        if let Some(share) = self.refresh_ahead {
            check.that(share > 0.0 && share < 1.0, "memory.refresh-ahead", || {
                format!("{share} is not a share of the TTL: expected more than 0 and less than 1")
            });
        }
    }
}

impl MemcachedTier {
    fn check(&self, check: &mut Check) {
        let fine = self.prefix.len() <= PREFIX_BYTES && self.prefix.bytes().all(|byte| byte.is_ascii_graphic());
        check.that(fine, "memcached.prefix", || {
            format!(
                "{:?} cannot begin memcached's keys: expected up to {PREFIX_BYTES} bytes of visible ASCII",
                self.prefix
            )
        });
        for (key, ttl) in [("memcached.ttl", Some(self.ttl)), ("memcached.negative-ttl", self.negative_ttl)] {
            let Some(ttl) = ttl else { continue };
            check.that((Duration::from_secs(1)..=MEMCACHED_TTL).contains(&ttl), key, || {
                format!("{ttl:?} is no time that memcached can keep: expected 1 s to 30 days")
            });
        }
    }
}

impl StoreSettings {
    /// Returns all mistakes.
    pub fn validate(&self) -> Vec<Mistake> {
        let mut check = Check::default();
        check.that(!self.name.is_empty(), "name", || "the store has no name".to_owned());
        match &self.kind {
            StoreKind::Memcached(memcached) => memcached.check(&mut check),
            StoreKind::Sql(sql) => sql.check(&mut check),
        }
        check.0
    }
}

impl MemcachedSettings {
    fn check(&self, check: &mut Check) {
        check.that(!self.servers.is_empty(), "servers", || {
            "there is no server: expected addresses such as 127.0.0.1:11211".to_owned()
        });
        for (index, server) in self.servers.iter().enumerate() {
            if let Err(problem) = crate::memcached::parse_server(server) {
                check.0.push(Mistake::new("servers", problem));
            }
            check.that(!self.servers[..index].contains(server), "servers", || format!("`{server}` is named twice"));
        }
        check.positive("timeout", self.timeout);
        check.positive("connect-timeout", self.connect_timeout);
        check.that((1..=MEMCACHED_VALUE).contains(&self.value_bytes), "value-bytes", || {
            format!("{} is no size of a value: expected 1 to {MEMCACHED_VALUE}", self.value_bytes)
        });
        check.count("pending", self.pending);
        self.breaker.check(check);
    }
}

impl SqlSettings {
    fn check(&self, check: &mut Check) {
        if let Err(problem) = crate::sql::parse_url(self) {
            check.0.push(Mistake::new("url", problem));
        }
        check.count("connections", self.connections);
        check.that(self.connections <= 1000, "connections", || {
            format!("{} are too many: expected at most 1000", self.connections)
        });
        if let Some(share) = self.script_connections {
            check.that((1..=self.connections).contains(&share), "script-connections", || {
                format!("{share} is no share of {} connections: expected 1 to {0}", self.connections)
            });
        }
        check.positive("query-timeout", self.query_timeout);
        check.positive("connect-timeout", self.connect_timeout);
        check.count("pending", self.pending);
        check.count("rows", self.rows);
        check.count("row-bytes", self.row_bytes);
        self.breaker.check(check);
    }
}

impl BreakerSettings {
    fn check(&self, check: &mut Check) {
        check.count("breaker.failures", self.failures as usize);
        check.positive("breaker.pause", self.pause);
        check.that(self.pause_max >= self.pause, "breaker.pause-max", || {
            format!("{:?} is shorter than the first pause, {:?}", self.pause_max, self.pause)
        });
    }
}

/// Collects mistakes.
#[derive(Default)]
struct Check(Vec<Mistake>);

impl Check {
    fn that(&mut self, fine: bool, key: &'static str, problem: impl FnOnce() -> String) {
        if !fine {
            self.0.push(Mistake::new(key, problem()));
        }
    }

    fn positive(&mut self, key: &'static str, time: Duration) {
        self.that(!time.is_zero(), key, || "0 leaves no time at all: expected more".to_owned());
    }

    fn count(&mut self, key: &'static str, count: usize) {
        self.that(count > 0, key, || "0 leaves room for nothing: expected at least 1".to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(errors: &[Mistake]) -> Vec<&str> {
        errors.iter().map(|error| error.key.as_str()).collect()
    }

    #[test]
    fn the_defaults_are_fine() {
        let mut lookup = LookupSettings::new("domains");
        assert_eq!(keys(&lookup.validate()), ["tiers", "allow"], "these are the user's to say");
        lookup.sql = Some(SqlTier { store: "db".to_owned(), query: "SELECT 1 WHERE ?".to_owned() });
        lookup.memcached = Some(MemcachedTier::new("cache"));
        lookup.allow = Allow::any();
        assert_eq!(lookup.validate(), []);
        let store = |kind| StoreSettings { name: "a".to_owned(), kind };
        let servers = ["127.0.0.1", "cache.internal:11212", "[::1]:1", "unix:/run/m.sock"].map(str::to_owned).to_vec();
        assert_eq!(store(StoreKind::Memcached(MemcachedSettings::new(servers))).validate(), []);
        for url in ["sqlite:/a/b.db", "mysql://user@localhost/db?socket=/run/m.sock", "postgres://user@[::1]:5433/db"] {
            assert_eq!(store(StoreKind::Sql(SqlSettings::new(url))).validate(), [], "{url}");
        }
    }

    #[test]
    fn every_mistake_is_told() {
        let mut lookup = LookupSettings::new("domains");
        lookup.memory = Some(MemoryTier {
            entries: 0,
            ttl: Duration::ZERO,
            jitter: 0.6,
            refresh_ahead: Some(1.0),
            stale_if_error: Duration::MAX,
            ..MemoryTier::default()
        });
        lookup.memcached = Some(MemcachedTier {
            prefix: "a b".to_owned(),
            ttl: Duration::from_millis(999),
            ..MemcachedTier::new("c")
        });
        lookup.sql = Some(SqlTier { store: "db".to_owned(), query: " ".to_owned() });
        lookup.wait = Duration::ZERO;
        let expected = [
            "allow",
            "wait",
            "memory.entries",
            "memory.ttl",
            "memory.stale-if-error",
            "memory.jitter",
            "memory.refresh-ahead",
            "memcached.prefix",
            "memcached.ttl",
            "sql.query",
        ];
        assert_eq!(keys(&lookup.validate()), expected);

        let mut memcached = MemcachedSettings::new(["a:0", "a:0", "unix:a", "[::1", ""].map(str::to_owned).to_vec());
        memcached.value_bytes = 2 << 20;
        let store = StoreSettings { name: String::new(), kind: StoreKind::Memcached(memcached) };
        assert_eq!(
            keys(&store.validate()),
            ["name", "servers", "servers", "servers", "servers", "servers", "servers", "value-bytes"]
        );
        let sql = SqlSettings { connections: 0, ..SqlSettings::new("redis://user:hunter2@a/") };
        let errors = StoreSettings { name: "a".to_owned(), kind: StoreKind::Sql(sql) }.validate();
        assert_eq!(keys(&errors), ["url", "connections"]);
    }

    #[test]
    fn secrets_are_not_shown() {
        let mut sql = SqlSettings::new("mysql://user:hunter2@host/db?unknown=1");
        sql.password = Some(Secret::new("hunter2"));
        let store = StoreSettings { name: "a".to_owned(), kind: StoreKind::Sql(sql) };
        let shown = format!("{store:?} {:?}", store.validate());
        assert!(!shown.contains("hunter2"), "{shown}");
        for url in [
            "mysql://user:hunter2@host:x/db",
            "hunter2",
            "postgres://u:hunter2@h/d?sslmode=x",
            "mysql:///hunter2?ssl-mode=hunter2",
        ] {
            let store = StoreSettings { name: "a".to_owned(), kind: StoreKind::Sql(SqlSettings::new(url)) };
            assert!(!format!("{:?}", store.validate()).contains("hunter2"), "{url}");
        }
    }
}
