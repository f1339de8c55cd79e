//! Counters of handshakes and look-ups.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What happened so far. All threads share the counters: a handshake costs far more than an atomic addition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CertificateCounts {
    /// Handshakes that ended well, the resumed ones included.
    pub handshakes: u64,
    /// Handshakes that resumed an earlier session.
    pub resumed: u64,
    /// Handshakes whose client has a certificate that was asked for, the resumed ones included.
    pub client_certificates: u64,
    /// Handshakes that failed, the refused ones included.
    pub failed: u64,
    /// Handshakes that were refused because no certificate serves the name.
    pub refused: u64,
    /// Names found in the cache.
    pub hits: u64,
    /// Names that the cache knows to have no certificate.
    pub negatives: u64,
    /// Look-ups in the stores.
    pub asked: u64,
    /// Handshakes that joined a look-up under way.
    pub joined: u64,
    /// Names that were not looked up, because of the limits.
    pub limited: u64,
    /// Rows that are no certificate for their name.
    pub invalid: u64,
    /// Look-ups that failed because of a store.
    pub store_down: u64,
    /// Certificates in the cache.
    pub entries: u64,
    /// The bytes that they take, about.
    pub bytes: u64,
    /// Certificates that made room for others.
    pub evictions: u64,
}

/// Counters that only grow.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) handshakes: Counter,
    pub(crate) resumed: Counter,
    pub(crate) client_certificates: Counter,
    pub(crate) failed: Counter,
    pub(crate) refused: Counter,
    pub(crate) hits: Counter,
    pub(crate) negatives: Counter,
    pub(crate) asked: Counter,
    pub(crate) joined: Counter,
    pub(crate) limited: Counter,
    pub(crate) invalid: Counter,
    pub(crate) store_down: Counter,
}

#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn more(&self) {
        self.0.fetch_add(1, Relaxed);
    }
}

impl Counters {
    pub(crate) fn counts(&self) -> CertificateCounts {
        let read = |counter: &Counter| counter.0.load(Relaxed);
        CertificateCounts {
            handshakes: read(&self.handshakes),
            resumed: read(&self.resumed),
            client_certificates: read(&self.client_certificates),
            failed: read(&self.failed),
            refused: read(&self.refused),
            hits: read(&self.hits),
            negatives: read(&self.negatives),
            asked: read(&self.asked),
            joined: read(&self.joined),
            limited: read(&self.limited),
            invalid: read(&self.invalid),
            store_down: read(&self.store_down),
            ..CertificateCounts::default()
        }
    }
}
