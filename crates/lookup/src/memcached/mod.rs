//! memcached: several servers, one connection to each.
//!
//! No maintained crate pipelines requests on one connection, so we have our own: `wire` is the protocol without I/O,
//! `ring` maps keys to servers, `connection` drives a connection, `update` changes values that others change too.

mod connection;
mod ring;
mod update;
pub mod wire;

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use sha2::{Digest as _, Sha256};

pub use connection::ServerState;
pub use update::Change;

use crate::answer::{Failure, StoreError};
use crate::settings::{Check, MemcachedSettings};
use connection::{Got, Server};
use ring::Ring;
use wire::Request;

/// memcached's own limit of a value (its option -I).
const MEMCACHED_VALUE: usize = 1 << 20;

/// A memcached store. It belongs to the stores' thread.
#[derive(Debug)]
pub(crate) struct Memcached {
    name: Arc<str>,
    servers: Vec<Rc<Server>>,
    ring: Ring,
    settings: Rc<MemcachedSettings>,
    /// Requests of scripts under way.
    of_scripts: Cell<usize>,
    /// Changes that wait or are being made.
    of_changes: Cell<usize>,
    changes: update::Changes,
}

impl MemcachedSettings {
    pub(crate) fn check(&self, check: &mut Check) {
        check.that(!self.servers.is_empty(), "servers", || {
            "there is no server: expected addresses such as 127.0.0.1:11211".to_owned()
        });
        for (index, server) in self.servers.iter().enumerate() {
            if let Err(problem) = parse_server(server) {
                check.add("servers", problem);
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

impl Memcached {
    /// Creates the store without connecting. Call it on the stores' thread, with valid settings.
    pub(crate) fn start(name: Arc<str>, settings: MemcachedSettings) -> Self {
        let settings = Rc::new(settings);
        let server = |server: &String| {
            let address = connection::parse_address(server).expect("the settings are valid");
            Server::start(server.clone(), address, Rc::clone(&settings))
        };
        let servers = settings.servers.iter().map(server).collect();
        let ring = Ring::new(settings.servers.iter().map(String::as_str));
        let (of_scripts, of_changes) = (Cell::new(0), Cell::new(0));
        Memcached { name, servers, ring, settings, of_scripts, of_changes, changes: update::Changes::default() }
    }

    pub(crate) async fn get(&self, key: &[u8]) -> Result<Option<Box<[u8]>>, StoreError> {
        match self.ask(Request::Get, key, |out| wire::get(key, out)).await? {
            Got::Value(value) => Ok(Some(value)),
            _ => Ok(None),
        }
    }

    /// Returns a value with its version.
    async fn gets(&self, key: &[u8]) -> Result<Option<(Box<[u8]>, u64)>, StoreError> {
        match self.ask(Request::Gets, key, |out| wire::gets(key, out)).await? {
            Got::Versioned(value, version) => Ok(Some((value, version))),
            _ => Ok(None),
        }
    }

    /// Sets a value if it still has this version (`None`: if there is no value). Returns whether it was set.
    async fn store_version(
        &self,
        key: &[u8],
        value: &[u8],
        version: Option<u64>,
        ttl: Duration,
    ) -> Result<bool, StoreError> {
        let ttl = expiry(ttl);
        let stored = match version {
            Some(version) => self.ask(Request::Cas, key, |out| wire::cas(key, value, ttl, version, out)).await?,
            None => self.ask(Request::Add, key, |out| wire::add(key, value, ttl, out)).await?,
        };
        Ok(stored == Got::Done)
    }

    /// Sets a value. A TTL of less than a second becomes one second, because 0 means for ever; so does `None`.
    pub(crate) async fn set(&self, key: &[u8], value: &[u8], ttl: Option<Duration>) -> Result<(), StoreError> {
        if value.len() > self.settings.value_bytes {
            let limit = self.settings.value_bytes;
            return Err(
                self.error(Failure::TooLarge(format!("the value has {} bytes of at most {limit}", value.len()).into()))
            );
        }
        let seconds = ttl.map_or(0, expiry);
        self.ask(Request::Set, key, |out| wire::set(key, value, 0, seconds, out)).await.map(drop)
    }

    /// Deletes a key, and returns whether it existed.
    pub(crate) async fn delete(&self, key: &[u8]) -> Result<bool, StoreError> {
        Ok(self.ask(Request::Delete, key, |out| wire::delete(key, out)).await? == Got::Done)
    }

    /// Registers a script's request. Scripts may use half of a server's limit, so that look-ups find room.
    pub(crate) fn begin_script_request(&self) -> Result<Share<'_>, StoreError> {
        self.begin(&self.of_scripts, 2)
    }

    /// Registers a change. Changes may use a quarter of a server's limit: clients choose how many keys there are, and
    /// look-ups must find room.
    fn begin_change(&self) -> Result<Share<'_>, StoreError> {
        self.begin(&self.of_changes, 4)
    }

    fn begin<'s>(&self, under_way: &'s Cell<usize>, part: usize) -> Result<Share<'s>, StoreError> {
        if under_way.get() >= (self.settings.pending / part).max(1) {
            return Err(self.error(Failure::Busy));
        }
        under_way.set(under_way.get() + 1);
        Ok(Share(under_way))
    }

    pub(crate) fn state(&self) -> Vec<ServerState> {
        self.servers.iter().map(|server| server.state()).collect()
    }

    async fn ask(&self, request: Request, key: &[u8], write: impl FnOnce(&mut Vec<u8>)) -> Result<Got, StoreError> {
        if !wire::is_key(key) {
            let refused =
                "the key is none of memcached's: expected 1 to 250 bytes without spaces and control characters";
            return Err(self.error(Failure::Refused(refused.into())));
        }
        let server = &self.servers[self.ring.server(key)];
        server.ask(request, key, write).await.map_err(|failure| self.error(failure))
    }

    fn error(&self, failure: Failure) -> StoreError {
        StoreError { store: Arc::clone(&self.name), failure }
    }
}

impl Drop for Memcached {
    fn drop(&mut self) {
        self.servers.iter().for_each(|server| server.close());
    }
}

/// A request under way of those that may use a part of a server's limit.
pub(crate) struct Share<'a>(&'a Cell<usize>);

impl Drop for Share<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// Checks the address of a server.
///
/// # Errors
/// A description of the expected form.
pub(crate) fn parse_server(text: &str) -> Result<(), String> {
    match connection::parse_address(text) {
        Some(_) => Ok(()),
        None => Err(format!("`{text}` is no server: expected host, host:port, [::1]:port or unix:/path")),
    }
}

/// Returns a key's name in memcached: the prefix and the key, or a digest of the key if the protocol cannot carry it.
pub(crate) fn key_of(prefix: &str, key: &str) -> Vec<u8> {
    let plain = [prefix.as_bytes(), key.as_bytes()].concat();
    // A key that looks like a digest becomes a digest as well, so that no two keys collide.
    if wire::is_key(&plain) && !key.starts_with(DIGEST) {
        return plain;
    }
    let digest: String = Sha256::digest(key.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
    [prefix, DIGEST, &digest].concat().into_bytes()
}

const DIGEST: &str = "sha256:";

/// Converts a TTL for memcached: seconds, at least one, because 0 means for ever. A TTL over 30 days becomes a date, in
/// seconds since 1970 (protocol.txt, "Expiration times").
fn expiry(ttl: Duration) -> u32 {
    const MOST: u64 = 30 * 24 * 60 * 60;
    let seconds = match ttl.as_secs() {
        seconds @ ..=MOST => seconds.max(1),
        seconds => SystemTime::UNIX_EPOCH.elapsed().map_or(MOST, |now| now.as_secs().saturating_add(seconds)),
    };
    // memcached reads a signed number.
    seconds.min(i32::MAX as u64) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_has_one_that_memcached_takes() {
        assert_eq!(key_of("", "example.com"), b"example.com");
        assert_eq!(key_of("gate/", "example.com"), b"gate/example.com");
        let digest = key_of("gate/", "a b");
        assert_eq!(digest, b"gate/sha256:c8687a08aa5d6ed2044328fa6a697ab8e96dc34291e8c2034ae8c38e6fcc6d65");
        for odd in
            ["a b".to_owned(), "a\u{7f}".to_owned(), "a".repeat(251), String::from_utf8(digest[5..].to_vec()).unwrap()]
        {
            let key = key_of(&"p".repeat(100), &odd);
            assert!(wire::is_key(&key) && key[100..].starts_with(b"sha256:"), "{odd:?}");
        }
        // A key that equals another key's digest must not collide with it.
        assert_ne!(key_of("", "a b"), key_of("", std::str::from_utf8(&key_of("", "a b")).unwrap()));
    }

    #[test]
    fn long_times_are_dates() {
        assert_eq!(expiry(Duration::ZERO), 1);
        assert_eq!(expiry(Duration::from_secs(2_592_000)), 2_592_000);
        let now = u32::try_from(SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs()).unwrap();
        assert!((now + 2_592_001..now + 2_592_061).contains(&expiry(Duration::from_secs(2_592_001))));
        assert_eq!(expiry(Duration::MAX), i32::MAX as u32);
    }

    #[test]
    fn servers_are_named_by_address() {
        for fine in ["127.0.0.1", "cache.internal:1", "[::1]", "[::1]:2", "unix:/run/m.sock", "unix:@m"] {
            assert_eq!(parse_server(fine), Ok(()), "{fine}");
        }
        for wrong in ["", ":1", "a:", "a:0", "a:65536", "::1", "[::1]:", "unix:", "unix:m", "a/b", "memcached://a"] {
            assert!(parse_server(wrong).is_err(), "{wrong}");
        }
    }
}
