//! Certificate revocation lists (CRLs, RFC 5280, section 5) of the authorities of clients.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::ring as provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, pem};
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls::{CertRevocationListError, RootCertStore};
use thiserror::Error;
use x509_parser::num_bigint::BigUint;
use x509_parser::oid_registry::OID_X509_EXT_ISSUER_DISTRIBUTION_POINT;
use x509_parser::prelude::{CertificateRevocationList, FromDer, X509Certificate};

use super::TlsConfigError;
use super::facts::distinguished_name;

/// Files with revocation lists, and what an expired list means. `Default`: no list, nothing is checked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct RevocationOptions {
    /// Each is PEM with any number of lists, or DER with one.
    pub files: Vec<PathBuf>,
    /// Whether a list counts beyond its `nextUpdate`. Otherwise its authority's certificates are refused from then on.
    pub accept_expired: bool,
}

/// A revocation list in force.
#[derive(Clone, Debug)]
pub struct RevocationList {
    path: PathBuf,
    issuer: String,
    this_update: i64,
    next_update: i64,
    revoked: usize,
    /// The issuer's name in DER, by which a handshake finds the list.
    name: Vec<u8>,
    /// The CRL number as an unsigned number in big-endian order; empty without one.
    number: Vec<u8>,
    /// The public key that signed it.
    key: Vec<u8>,
    /// The issuing distribution point: empty if the list is for all certificates of its issuer.
    part: Vec<u8>,
    der: CertificateRevocationListDer<'static>,
}

impl RevocationList {
    /// Returns the file that has the list.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the name of the authority, as RFC 4514 writes it.
    #[must_use]
    pub fn issuer(&self) -> &str {
        &self.issuer
    }

    /// Returns when the list expires (`nextUpdate`), in seconds since 1970.
    #[must_use]
    pub fn next_update(&self) -> i64 {
        self.next_update
    }

    /// Returns how many certificates the list revokes.
    #[must_use]
    pub fn revoked(&self) -> usize {
        self.revoked
    }

    /// Returns a key that is greater for a later list. Lists of the same second differ by their number.
    fn age(&self) -> (i64, usize, &[u8], &[u8]) {
        (self.this_update, self.number.len(), &self.number, &self.der)
    }

    pub(super) fn der(&self) -> &CertificateRevocationListDer<'static> {
        &self.der
    }
}

/// The reason why a file cannot be used as revocation lists.
#[derive(Debug, Error)]
pub enum RevocationListError {
    /// Check the path and its permissions.
    #[error("the file cannot be read")]
    Read(#[source] io::Error),
    /// Fetch the file again.
    #[error("the file is damaged PEM: expected what the authority has published")]
    Pem(#[source] pem::Error),
    /// Name a file with lists.
    #[error("the file has no list: expected PEM (`BEGIN X509 CRL`) or DER")]
    Missing,
    /// Fetch the list again, or ask the authority for a complete one: delta and indirect lists are not supported.
    #[error("the list is damaged or of an unsupported kind: expected a complete X.509 list of version 2")]
    Damaged(#[source] VerifierBuilderError),
    /// Give the issuer's certificate too, or remove the list.
    #[error("its issuer `{0}` is unknown: add the issuer's certificate to the authorities, or remove the list")]
    UnknownIssuer(String),
    /// Fetch the list again.
    #[error(
        "no certificate of its issuer `{0}` has the key that signed it, or the algorithm is unsupported: expected what \
         this authority has published, signed by RSA of 2048 bits or more, P-256, P-384 or Ed25519, with SHA-256 or better"
    )]
    Signature(String),
    /// Have the authority's certificate issued again, or name it in `ca` without its issuer.
    #[error("its issuer `{0}` may not sign lists: expected cRLSign in the key usage of its certificate")]
    KeyUsage(String),
    /// Give the lists of one key only. A handshake chooses a list by its issuer's name alone.
    #[error("its issuer `{0}` has lists of several keys: name those of one key, and the authority with that key")]
    SeveralKeys(String),
    /// Ask the authority for a complete list.
    #[error("its issuer `{0}` has divided its list by distribution points: expected one complete list")]
    Divided(String),
}

/// A file with more bytes is not read.
const MOST_BYTES: u64 = 256 << 20;

/// Reads lists that these authorities have issued, and keeps the latest one of each.
///
/// # Errors
/// A file cannot be read, has no list, or has a list that no handshake could use. An authority has lists that a
/// handshake could mistake for each other.
pub(super) fn read(
    files: &[PathBuf],
    authorities: &[CertificateDer<'static>],
) -> Result<Vec<RevocationList>, TlsConfigError> {
    let bad = |path: &Path, source| TlsConfigError::RevocationList { path: path.to_owned(), source };
    let mut lists: Vec<RevocationList> = Vec::new();
    for path in files {
        for der in of_file(path).map_err(|source| bad(path, source))? {
            lists.push(parse(der, path, authorities).map_err(|source| bad(path, source))?);
        }
    }
    lists.sort_by(|one, other| other.age().cmp(&one.age()));
    let mut latest: Vec<RevocationList> = Vec::new();
    for list in lists {
        // A handshake takes the first list that has the issuer's name.
        match latest.iter().find(|known| known.name == list.name) {
            None => latest.push(list),
            Some(known) if known.key != list.key => {
                return Err(bad(&list.path, RevocationListError::SeveralKeys(list.issuer)));
            }
            Some(known) if known.part != list.part => {
                return Err(bad(&list.path, RevocationListError::Divided(list.issuer)));
            }
            Some(_) => {}
        }
    }
    Ok(latest)
}

fn of_file(path: &Path) -> Result<Vec<CertificateRevocationListDer<'static>>, RevocationListError> {
    let bytes = read_file(path).map_err(RevocationListError::Read)?;
    // DER: the tag of a sequence, and a length that needs several bytes (X.690, section 8.1.3.5).
    if matches!(bytes[..], [0x30, length, ..] if length >= 0x80) {
        return Ok(vec![bytes.into()]);
    }
    let lists: Result<Vec<_>, _> = CertificateRevocationListDer::pem_slice_iter(&bytes).collect();
    let lists = lists.map_err(RevocationListError::Pem)?;
    if lists.is_empty() { Err(RevocationListError::Missing) } else { Ok(lists) }
}

/// Reads a file. A pipe, which might never end, is refused.
fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    let metadata = fs::metadata(path)?;
    if !metadata.is_file() || metadata.len() > MOST_BYTES {
        let why = format!("expected a regular file of at most {MOST_BYTES} bytes");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    fs::read(path)
}

fn parse(
    der: CertificateRevocationListDer<'static>,
    path: &Path,
    authorities: &[CertificateDer<'static>],
) -> Result<RevocationList, RevocationListError> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(authorities.iter().cloned());
    let provider = Arc::new(provider::default_provider());
    // What handshakes would refuse is refused here.
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
    verifier.with_crls([der.clone()]).build().map_err(RevocationListError::Damaged)?;
    let damaged =
        || RevocationListError::Damaged(VerifierBuilderError::InvalidCrl(CertRevocationListError::ParseError));
    let (_, list) = CertificateRevocationList::from_der(&der).map_err(|_| damaged())?;
    let next_update = list.next_update().ok_or_else(damaged)?.timestamp();
    let issuer = distinguished_name(list.issuer());
    let all: Vec<_> = authorities.iter().filter_map(|one| Some(X509Certificate::from_der(one).ok()?.1)).collect();
    let issuers: Vec<_> = all.iter().filter(|one| one.subject().as_raw() == list.issuer().as_raw()).collect();
    if issuers.is_empty() {
        return Err(RevocationListError::UnknownIssuer(issuer));
    }
    let (signed, signature) = (list.tbs_cert_list.as_ref(), &*list.signature_value.data);
    let has_signed = |issuer: &X509Certificate<'_>| {
        let key = &*issuer.public_key().subject_public_key.data;
        let algorithms = provider.signature_verification_algorithms.all;
        algorithms.iter().any(|algorithm| algorithm.verify_signature(key, signed, signature).is_ok())
    };
    let Some(signer) = issuers.iter().find(|one| has_signed(one)) else {
        return Err(RevocationListError::Signature(issuer));
    };
    // Handshakes check that of authorities below a root (RFC 5280, section 4.2.1.3).
    let has_issuer = signer.issuer().as_raw() != signer.subject().as_raw()
        && all.iter().any(|one| one.subject().as_raw() == signer.issuer().as_raw());
    if has_issuer && signer.key_usage().ok().flatten().is_some_and(|usage| !usage.value.crl_sign()) {
        return Err(RevocationListError::KeyUsage(issuer));
    }
    let part = list.extensions().iter().find(|one| one.oid == OID_X509_EXT_ISSUER_DISTRIBUTION_POINT);
    Ok(RevocationList {
        path: path.to_owned(),
        this_update: list.last_update().timestamp(),
        next_update,
        revoked: list.iter_revoked_certificates().count(),
        name: list.issuer().as_raw().to_vec(),
        number: list.crl_number().map(BigUint::to_bytes_be).unwrap_or_default(),
        key: signer.public_key().raw.to_vec(),
        part: part.map(|part| part.value.to_vec()).unwrap_or_default(),
        issuer,
        der,
    })
}
