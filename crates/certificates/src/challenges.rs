//! The interface for issuing certificates by ACME: answers to the challenges of an authority.
//!
//! The code that orders a certificate enters its answers here, asks the authority to validate, and removes them. The
//! server answers from all threads: HTTP-01 by [`Challenges::http_answer`] to `/.well-known/acme-challenge/TOKEN`,
//! TLS-ALPN-01 in the handshake, as [`Certificates`](crate::Certificates) does. An issued chain is written to the store
//! of the look-up; [`Certificates::purge`](crate::Certificates::purge) makes the next handshake find it.
//!
//! An [`Issuer`] learns of names without a certificate, and finds the answers that other machines entered.

use std::collections::HashMap;
use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use rustls::InconsistentKeys;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use x509_parser::prelude::{FromDer, X509Certificate};

/// The protocol of TLS-ALPN-01 (RFC 8737, section 6.2).
pub const ACME_TLS_ALPN: &[u8] = b"acme-tls/1";

/// The most answers of each kind at the same time.
const ANSWERS: usize = 10_000;

/// The answer of another machine, which is being looked for.
pub type PendingAnswer<T> = Pin<Box<dyn Future<Output = Option<T>> + Send>>;

/// Orders certificates. Any thread may call it; it must not block.
pub trait Issuer: Send + Sync {
    /// A client asked for this name, in lower case, and no store has a certificate for it.
    fn wanted(&self, name: &str);

    /// Looks for the key authorization of a token of HTTP-01 that another machine may have entered. `None`: it cannot
    /// be a token, or the limits on such look-ups are reached.
    fn http_answer(&self, token: &str) -> Option<PendingAnswer<String>>;

    /// Looks for the certificate that proves control over a name (TLS-ALPN-01), likewise.
    fn tls_answer(&self, name: &str) -> Option<PendingAnswer<Arc<CertifiedKey>>>;
}

/// Answers to challenges that are under way. All threads share them.
#[derive(Default)]
pub struct Challenges {
    issuer: RwLock<Option<Arc<dyn Issuer>>>,
    http: Mutex<HashMap<String, String>>,
    tls: Mutex<HashMap<String, Arc<CertifiedKey>>>,
    /// The number of answers for HTTP-01, so that requests pay for one load while there are none.
    http_count: AtomicUsize,
}

impl Challenges {
    /// Sets who orders certificates; `None`: nobody does.
    pub fn set_issuer(&self, issuer: Option<Arc<dyn Issuer>>) {
        *self.issuer.write().unwrap_or_else(PoisonError::into_inner) = issuer;
    }

    /// Returns who orders certificates.
    #[must_use]
    pub fn issuer(&self) -> Option<Arc<dyn Issuer>> {
        self.issuer.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Enters the key authorization for a token of HTTP-01 (RFC 8555, section 8.3). False: there are too many.
    pub fn enter_http(&self, token: &str, key_authorization: &str) -> bool {
        let mut all = locked(&self.http);
        let fits = all.len() < ANSWERS || all.contains_key(token);
        if fits {
            all.insert(token.to_owned(), key_authorization.to_owned());
        }
        self.http_count.store(all.len(), Relaxed);
        fits
    }

    /// Removes a token of HTTP-01.
    pub fn remove_http(&self, token: &str) {
        let mut all = locked(&self.http);
        all.remove(token);
        self.http_count.store(all.len(), Relaxed);
    }

    /// Returns the key authorization of a token.
    #[must_use]
    pub fn http_answer(&self, token: &str) -> Option<String> {
        if self.http_count.load(Relaxed) == 0 {
            return None;
        }
        locked(&self.http).get(token).cloned()
    }

    /// Enters the certificate that proves control over a name to TLS-ALPN-01 (RFC 8737, section 3). False: there are
    /// too many.
    ///
    /// # Errors
    /// The key is of no supported kind, or belongs to another certificate.
    pub fn enter_tls(
        &self,
        name: &str,
        certificate: CertificateDer<'static>,
        key: &PrivateKeyDer<'_>,
    ) -> Result<bool, rustls::Error> {
        let key = rustls::crypto::ring::sign::any_supported_type(key)?;
        // rustls itself would reject the extension of RFC 8737, which is critical.
        let own = key.public_key();
        let fits = X509Certificate::from_der(&certificate)
            .is_ok_and(|(_, parsed)| own.is_some_and(|own| own.as_ref() == parsed.public_key().raw));
        if !fits {
            return Err(InconsistentKeys::KeyMismatch.into());
        }
        let certified = CertifiedKey::new(vec![certificate], key);
        let mut all = locked(&self.tls);
        let name = name.to_ascii_lowercase();
        let fits = all.len() < ANSWERS || all.contains_key(&name);
        if fits {
            all.insert(name, Arc::new(certified));
        }
        Ok(fits)
    }

    /// Removes the certificate of a name.
    pub fn remove_tls(&self, name: &str) {
        locked(&self.tls).remove(&name.to_ascii_lowercase());
    }

    pub(crate) fn tls_answer(&self, name: &str) -> Option<Arc<CertifiedKey>> {
        locked(&self.tls).get(name).cloned()
    }
}

fn locked<T>(answers: &Mutex<T>) -> MutexGuard<'_, T> {
    answers.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for Challenges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (http, tls) = (locked(&self.http).len(), locked(&self.tls).len());
        f.debug_struct("Challenges").field("http", &http).field("tls", &tls).finish()
    }
}
