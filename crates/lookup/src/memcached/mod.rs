//! memcached: several servers, one connection to each.
//!
//! No maintained crate keeps more than one request under way on a connection, so this is our own: `wire` the protocol
//! without I/O, `ring` which server has a key, `connection` a connection at work.

mod connection;
mod ring;
pub mod wire;

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use sha2::{Digest as _, Sha256};

pub use connection::ServerState;

use crate::answer::{Failure, StoreError};
use crate::settings::MemcachedSettings;
use connection::{Got, Server};
use ring::Ring;
use wire::Request;

/// A memcached store. It belongs to the stores' thread.
#[derive(Debug)]
pub(crate) struct Memcached {
    name: Arc<str>,
    servers: Vec<Rc<Server>>,
    ring: Ring,
    settings: Rc<MemcachedSettings>,
    /// Requests of scripts that are under way.
    of_scripts: Cell<usize>,
}

impl Memcached {
    /// Nothing is connected yet. To be called on the stores' thread, with settings that are valid.
    pub(crate) fn start(name: Arc<str>, settings: MemcachedSettings) -> Self {
        let settings = Rc::new(settings);
        let server = |server: &String| {
            let place = connection::parse_place(server).expect("the settings are valid");
            Server::start(server.clone(), place, Rc::clone(&settings))
        };
        let servers = settings.servers.iter().map(server).collect();
        let ring = Ring::new(settings.servers.iter().map(String::as_str));
        Memcached { name, servers, ring, settings, of_scripts: Cell::new(0) }
    }

    pub(crate) async fn get(&self, key: &[u8]) -> Result<Option<Box<[u8]>>, StoreError> {
        match self.ask(Request::Get, key, |out| wire::get(key, out)).await? {
            Got::Value(value) => Ok(Some(value)),
            Got::Missing | Got::Done => Ok(None),
        }
    }

    /// A TTL of less than a second counts as one, as 0 would be for ever; `None` is for ever.
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

    /// Whether there was anything.
    pub(crate) async fn delete(&self, key: &[u8]) -> Result<bool, StoreError> {
        Ok(self.ask(Request::Delete, key, |out| wire::delete(key, out)).await? == Got::Done)
    }

    /// A place for a request of a script: they may take half of those that one server has, so that look-ups find room.
    pub(crate) fn enter(&self) -> Result<Place<'_>, StoreError> {
        if self.of_scripts.get() >= (self.settings.pending / 2).max(1) {
            return Err(self.error(Failure::Busy));
        }
        self.of_scripts.set(self.of_scripts.get() + 1);
        Ok(Place(&self.of_scripts))
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

/// A script's request that is under way.
pub(crate) struct Place<'a>(&'a Cell<usize>);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// Whether this is where a server can be.
///
/// # Errors
/// What was expected.
pub(crate) fn parse_server(text: &str) -> Result<(), String> {
    match connection::parse_place(text) {
        Some(_) => Ok(()),
        None => Err(format!("`{text}` is no server: expected host, host:port, [::1]:port or unix:/path")),
    }
}

/// What a key of a look-up is called in memcached: with the prefix in front, and by its digest where the protocol could
/// not carry it.
pub(crate) fn key_of(prefix: &str, key: &str) -> Vec<u8> {
    let plain = [prefix.as_bytes(), key.as_bytes()].concat();
    // What looks like a digest is made one as well, so that no key can stand for another.
    if wire::is_key(&plain) && !key.starts_with(DIGEST) {
        return plain;
    }
    let digest: String = Sha256::digest(key.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
    [prefix, DIGEST, &digest].concat().into_bytes()
}

const DIGEST: &str = "sha256:";

/// A TTL as memcached takes it: seconds, at least one, as 0 would be for ever; from more than 30 days on a date, seconds since 1970 (protocol.txt,
/// "Expiration times").
fn expiry(ttl: Duration) -> u32 {
    const MOST: u64 = 30 * 24 * 60 * 60;
    let seconds = match ttl.as_secs() {
        seconds @ ..=MOST => seconds.max(1),
        seconds => SystemTime::UNIX_EPOCH.elapsed().map_or(MOST, |now| now.as_secs().saturating_add(seconds)),
    };
    // memcached reads it as a signed number.
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
        // A key that is another's digest does not stand for it.
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
