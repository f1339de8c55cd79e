//! Session tickets whose keys all threads, processes and machines with one secret derive alike.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce};
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use rustls::server::ProducesTickets;
use zeroize::Zeroizing;

use crate::seal::{SecretError, aead, derive, nonce};

/// The largest ticket that is decrypted: TLS has no room for more in its field.
const TICKET_BYTES: usize = 65_535;

/// Makes session tickets for TLS 1.2 and 1.3. Keys are derived from a secret for each window of time, so nobody
/// distributes or stores them. Clones share everything.
///
/// A ticket opens during its window and the following one. A clock that is up to one window late does no harm.
#[derive(Clone)]
pub struct Tickets {
    secret: Arc<Zeroizing<[u8; 32]>>,
    window: u64,
    keys: Arc<Mutex<Vec<WindowKey>>>,
    now: fn() -> u64,
    /// Tickets of other settings, for example of other authorities for clients, do not open.
    scope: [u8; 32],
}

/// The number of a window of time, and its key.
type WindowKey = (u64, Arc<LessSafeKey>);

impl Tickets {
    /// Derives keys from a secret text. `window` is how long a key makes tickets: from a minute to 7 days.
    ///
    /// # Errors
    /// The secret has fewer than 32 characters.
    pub fn from_secret(secret: &str, window: Duration) -> Result<Self, SecretError> {
        Ok(Tickets::with(derive(secret, "oroshi tickets")?, window))
    }

    /// Makes a secret that only this process knows. `None`: the system has no random numbers.
    #[must_use]
    pub fn of_this_process(window: Duration) -> Option<Self> {
        let mut secret = Zeroizing::new([0; 32]);
        SystemRandom::new().fill(&mut *secret).ok()?;
        Some(Tickets::with(secret, window))
    }

    fn with(secret: Zeroizing<[u8; 32]>, window: Duration) -> Self {
        Tickets {
            secret: Arc::new(secret),
            window: window.as_secs().clamp(60, 7 * 24 * 3600),
            keys: Arc::default(),
            now: || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
            scope: [0; 32],
        }
    }

    /// Returns tickets of the same secret that open only among themselves.
    #[must_use]
    pub fn within(&self, scope: [u8; 32]) -> Self {
        Tickets { scope, ..self.clone() }
    }

    /// Returns the key of a window. Only the newest few are kept, so old ones are forgotten.
    fn key(&self, window: u64) -> Arc<LessSafeKey> {
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, key)) = keys.iter().find(|(known, _)| *known == window) {
            return Arc::clone(key);
        }
        let mut derived = Zeroizing::new([0; 32]);
        let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &**self.secret), &window.to_be_bytes());
        derived.copy_from_slice(tag.as_ref());
        let key = Arc::new(aead(&CHACHA20_POLY1305, &derived));
        keys.push((window, Arc::clone(&key)));
        keys.sort_by_key(|(window, _)| std::cmp::Reverse(*window));
        keys.truncate(4);
        key
    }

    fn aad(&self, window: u64) -> [u8; 40] {
        let mut aad = [0; 40];
        aad[..8].copy_from_slice(&window.to_be_bytes());
        aad[8..].copy_from_slice(&self.scope);
        aad
    }
}

impl ProducesTickets for Tickets {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        // Every ticket opens for at least one window.
        self.window as u32
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        let window = (self.now)() / self.window;
        let nonce = nonce()?;
        let mut ticket = Vec::with_capacity(8 + NONCE_LEN + plain.len() + 16);
        ticket.extend_from_slice(&window.to_be_bytes());
        ticket.extend_from_slice(&nonce);
        ticket.extend_from_slice(plain);
        let sealed = &mut ticket[8 + NONCE_LEN..];
        let (nonce, aad) = (Nonce::assume_unique_for_key(nonce), Aad::from(self.aad(window)));
        let tag = self.key(window).seal_in_place_separate_tag(nonce, aad, sealed).ok()?;
        ticket.extend_from_slice(tag.as_ref());
        Some(ticket)
    }

    fn decrypt(&self, cipher: &[u8]) -> Option<Vec<u8>> {
        if cipher.len() > TICKET_BYTES {
            return None;
        }
        let (window, rest) = cipher.split_first_chunk::<8>()?;
        let (nonce, sealed) = rest.split_first_chunk::<NONCE_LEN>()?;
        let window = u64::from_be_bytes(*window);
        let now = (self.now)() / self.window;
        // Another machine's clock may be ahead.
        if window > now + 1 || window + 1 < now {
            return None;
        }
        let mut opened = sealed.to_vec();
        let (nonce, aad) = (Nonce::assume_unique_for_key(*nonce), Aad::from(self.aad(window)));
        let length = self.key(window).open_in_place(nonce, aad, &mut opened).ok()?.len();
        opened.truncate(length);
        Some(opened)
    }
}

/// Shows no key.
impl fmt::Debug for Tickets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tickets").field("window", &self.window).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "0123456789abcdef0123456789abcdef";
    const HOUR: Duration = Duration::from_secs(3600);

    fn at(now: fn() -> u64) -> Tickets {
        Tickets { now, ..Tickets::from_secret(SECRET, HOUR).unwrap() }
    }

    #[test]
    fn tickets_open_wherever_the_secret_is_and_for_two_windows() {
        let ticket = at(|| 10 * 3600).encrypt(b"a session").unwrap();
        let opened = |tickets: Tickets| tickets.decrypt(&ticket).is_some_and(|plain| plain == b"a session");
        assert!(opened(at(|| 10 * 3600 + 3599)) && opened(at(|| 11 * 3600 + 3599)), "this window and the next");
        assert!(opened(at(|| 9 * 3600)), "a machine whose clock is late");
        assert!(!opened(at(|| 12 * 3600)) && !opened(at(|| 8 * 3600)));
        assert!(!opened(at(|| 10 * 3600).within([1; 32])), "other authorities for clients");
        let mut other = Tickets::from_secret(&SECRET.replace('0', "1"), HOUR).unwrap();
        other.now = || 10 * 3600;
        assert!(!opened(other));
        let own = Tickets::of_this_process(HOUR).unwrap();
        assert_eq!(own.decrypt(&own.encrypt(b"x").unwrap()).unwrap(), b"x");
    }

    #[test]
    fn changed_tickets_do_not_open() {
        let tickets = at(|| 10 * 3600);
        let ticket = tickets.encrypt(b"a session").unwrap();
        for at in 0..ticket.len() {
            let mut changed = ticket.clone();
            changed[at] ^= 1;
            assert_eq!(tickets.decrypt(&changed), None, "{at}");
            assert_eq!(tickets.decrypt(&ticket[..at]), None, "{at}");
        }
        assert_eq!(tickets.decrypt(&[0xff; 100]), None);
        assert_eq!(tickets.decrypt(&vec![0; TICKET_BYTES + 1]), None);
    }
}
