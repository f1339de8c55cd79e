//! A certificate chain with its key.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use ring::digest::{SHA256, digest};
use rustls::crypto::ring::sign::any_supported_type;
use rustls::pki_types::pem::{PemObject, SectionKind};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs1KeyDer, PrivatePkcs8KeyDer, PrivateSec1KeyDer};
use rustls::sign::{CertifiedKey, SigningKey};
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};
use zeroize::Zeroizing;

/// The most certificates of a chain.
const CHAIN: usize = 16;

/// A certificate chain with its private key, ready for handshakes.
pub struct Certificate {
    pub(crate) key: Arc<CertifiedKey>,
    names: Vec<Box<str>>,
    not_before: i64,
    not_after: i64,
    fingerprint: [u8; 32],
    bytes: usize,
}

/// The reason why a certificate cannot be used. No message shows a part of a key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CertificateError {
    /// Write it as PEM.
    #[error("it is not PEM: expected sections such as -----BEGIN CERTIFICATE-----")]
    Pem,
    /// Add the certificate.
    #[error("it has no certificate: expected the server's own certificate first, then its chain")]
    NoCertificate,
    /// Add the key, or correct the file.
    #[error("it has no private key: expected one section with a key that is not encrypted")]
    NoKey,
    /// Leave the others out.
    #[error("it has {0} private keys: expected one")]
    Keys(usize),
    /// Leave certificates out that are not of the chain.
    #[error("its chain has {0} certificates: expected at most {CHAIN}")]
    Long(usize),
    /// Issue it again: it cannot be parsed.
    #[error("its certificate cannot be read")]
    Unreadable,
    /// Use a key of ECDSA (P-256, P-384), Ed25519 or RSA (2048 bits and more).
    #[error("its private key is of no supported kind: expected ECDSA P-256 or P-384, Ed25519, or RSA from 2048 bits")]
    KeyKind,
    /// Find the key of this certificate.
    #[error("its private key belongs to another certificate")]
    OtherKey,
    /// The certificate has no DNS name.
    #[error("its certificate has no name: expected a subject alternative name")]
    NoNames,
}

impl Certificate {
    /// Reads a chain (the server's own certificate first) and its key from PEM, in any order.
    ///
    /// # Errors
    /// [`CertificateError`].
    pub fn from_pem(text: &[u8]) -> Result<Self, CertificateError> {
        let Sections { chain, mut keys } = Sections::read(text)?;
        match keys.len() {
            0 if chain.is_empty() => Err(CertificateError::NoCertificate),
            0 => Err(CertificateError::NoKey),
            1 => Certificate::new(chain, keys.remove(0)),
            count => Err(CertificateError::Keys(count)),
        }
    }

    /// Makes a certificate of a chain and its key.
    pub(crate) fn new(chain: Vec<CertificateDer<'static>>, key: Arc<dyn SigningKey>) -> Result<Self, CertificateError> {
        let leaf = chain.first().ok_or(CertificateError::NoCertificate)?;
        if chain.len() > CHAIN {
            return Err(CertificateError::Long(chain.len()));
        }
        let (_, parsed) = X509Certificate::from_der(leaf).map_err(|_| CertificateError::Unreadable)?;
        let own = key.public_key().ok_or(CertificateError::KeyKind)?;
        if own.as_ref() != parsed.public_key().raw {
            return Err(CertificateError::OtherKey);
        }
        let names = names_of(&parsed);
        if names.is_empty() {
            return Err(CertificateError::NoNames);
        }
        let (not_before, not_after) =
            (parsed.validity().not_before.timestamp(), parsed.validity().not_after.timestamp());
        let fingerprint = sha256(leaf);
        // The key, the settings of its handshakes and the names, about.
        let bytes = leaf.len() + 2048 + names.iter().map(|name| name.len() + 32).sum::<usize>();
        let chain = chain.into_iter().enumerate();
        let chain = chain.map(|(place, one)| if place == 0 { one } else { shared(one) }).collect();
        let key = Arc::new(CertifiedKey::new(chain, key));
        Ok(Certificate { key, names, not_before, not_after, fingerprint, bytes })
    }

    /// Returns the DNS names, in lower case; `*.example.org` stands for one label.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(|name| &**name)
    }

    /// Returns whether a name, in lower case, is one of the certificate's.
    #[must_use]
    pub fn covers(&self, name: &str) -> bool {
        let wildcard = wildcard_of(name);
        self.names().any(|own| own == name || wildcard.as_deref() == Some(own))
    }

    /// Returns whether the certificate is valid at a time, in seconds since 1970.
    #[must_use]
    pub fn is_valid(&self, now: i64) -> bool {
        (self.not_before..=self.not_after).contains(&now)
    }

    /// Returns whether the certificate is valid at this moment, by the system's clock.
    #[must_use]
    pub fn is_valid_now(&self) -> bool {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64);
        self.is_valid(now)
    }

    /// The begin of its validity, in seconds since 1970.
    #[must_use]
    pub fn not_before(&self) -> i64 {
        self.not_before
    }

    /// The server's own certificate.
    #[must_use]
    pub fn leaf(&self) -> &CertificateDer<'static> {
        &self.key.cert[0]
    }

    /// The end of its validity, in seconds since 1970.
    #[must_use]
    pub fn not_after(&self) -> i64 {
        self.not_after
    }

    /// The SHA-256 of the server's own certificate, in hexadecimal.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        self.fingerprint.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The bytes that it takes in a cache, about. Intermediates are shared and do not count.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn chain_length(&self) -> usize {
        self.key.cert.len()
    }
}

/// Shows no key.
impl fmt::Debug for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificate").field("names", &self.names).finish_non_exhaustive()
    }
}

/// The wildcard name that covers a name: `*.example.org` for `www.example.org`.
pub(crate) fn wildcard_of(name: &str) -> Option<String> {
    let (_, parent) = name.split_once('.')?;
    (!parent.is_empty()).then(|| format!("*.{parent}"))
}

pub(crate) fn sha256(bytes: &[u8]) -> [u8; 32] {
    let mut out = [0; 32];
    out.copy_from_slice(digest(&SHA256, bytes).as_ref());
    out
}

/// The sections of a PEM text that matter here.
pub(crate) struct Sections {
    pub(crate) chain: Vec<CertificateDer<'static>>,
    pub(crate) keys: Vec<Arc<dyn SigningKey>>,
}

impl Sections {
    pub(crate) fn read(text: &[u8]) -> Result<Self, CertificateError> {
        let mut sections = Sections { chain: Vec::new(), keys: Vec::new() };
        for section in <(SectionKind, Vec<u8>)>::pem_slice_iter(text) {
            let (kind, der) = section.map_err(|_| CertificateError::Pem)?;
            if kind == SectionKind::Certificate {
                sections.chain.push(der.into());
                continue;
            }
            // Overwritten when dropped: any other section may be a key.
            let der = Zeroizing::new(der);
            let key = match kind {
                SectionKind::PrivateKey => PrivateKeyDer::from(PrivatePkcs8KeyDer::from(&der[..])),
                SectionKind::RsaPrivateKey => PrivateKeyDer::from(PrivatePkcs1KeyDer::from(&der[..])),
                SectionKind::EcPrivateKey => PrivateKeyDer::from(PrivateSec1KeyDer::from(&der[..])),
                _ => continue,
            };
            sections.keys.push(any_supported_type(&key).map_err(|_| CertificateError::KeyKind)?);
        }
        Ok(sections)
    }
}

fn names_of(parsed: &X509Certificate<'_>) -> Vec<Box<str>> {
    let mut names: Vec<Box<str>> = Vec::new();
    let mut add = |name: &str| {
        let name = name.to_ascii_lowercase().into_boxed_str();
        if !name.is_empty() && !names.contains(&name) {
            names.push(name);
        }
    };
    if let Ok(Some(alternatives)) = parsed.subject_alternative_name() {
        for name in &alternatives.value.general_names {
            if let GeneralName::DNSName(name) = name {
                add(name);
            }
        }
    }
    if names.is_empty() {
        // As `openssl req -x509` makes them without further options. Clients decide whether they accept such a name.
        parsed.subject().iter_common_name().filter_map(|name| name.as_str().ok()).for_each(|name| {
            let name = name.to_ascii_lowercase().into_boxed_str();
            names.push(name);
        });
    }
    names
}

/// The most bytes of shared intermediates.
const SHARED_BYTES: usize = 4 << 20;

/// Returns the same certificate, in memory that all its users share.
///
/// rustls borrows or owns each certificate, so what is shared must live as long as the process. Few authorities sign
/// millions of certificates; beyond 4 MiB each user has its own copy.
fn shared(certificate: CertificateDer<'static>) -> CertificateDer<'static> {
    /// The bytes of all shared certificates, and the certificates by fingerprint.
    type Shared = (usize, HashMap<[u8; 32], &'static [u8]>);
    static SHARED: LazyLock<Mutex<Shared>> = LazyLock::new(Mutex::default);
    let mut all = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    let (bytes, known) = &mut *all;
    let fingerprint = sha256(&certificate);
    if let Some(same) = known.get(&fingerprint) {
        return CertificateDer::from(*same);
    }
    if *bytes + certificate.len() > SHARED_BYTES {
        return certificate;
    }
    *bytes += certificate.len();
    let leaked: &'static [u8] = Box::leak(certificate.as_ref().to_vec().into_boxed_slice());
    known.insert(fingerprint, leaked);
    CertificateDer::from(leaked)
}
