//! The server's check of client certificates.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use ring::digest::{Context, SHA256};
use rustls::crypto::ring as provider;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, RootCertStore, SignatureScheme};

use super::error::is_ca_as_server;
use super::{TlsConfigError, certificates};

/// The authorities whose certificates clients may show. Cheap to clone.
///
/// A certificate of the files is also accepted from a client itself, even with CA:TRUE, as `openssl req -x509` makes
/// them.
#[derive(Clone)]
pub struct ClientAuthorities(Arc<Authorities>);

struct Authorities {
    id: [u8; 32],
    given: Vec<CertificateDer<'static>>,
    verifier: Arc<dyn ClientCertVerifier>,
}

impl ClientAuthorities {
    /// Reads PEM files.
    ///
    /// # Errors
    /// A file cannot be read, or has a certificate that cannot be a root.
    pub fn from_files(files: &[PathBuf]) -> Result<Self, TlsConfigError> {
        let mut given = Vec::new();
        for path in files {
            for certificate in certificates(path)? {
                let added = RootCertStore::empty().add(certificate.clone());
                added.map_err(|source| TlsConfigError::Root { path: path.clone(), source })?;
                given.push(certificate);
            }
        }
        let path = files.first().cloned().unwrap_or_default();
        ClientAuthorities::new(given).map_err(|source| TlsConfigError::ClientRoots { path, source })
    }

    /// Returns the authorities of all of these; `None` if there are none.
    #[must_use]
    pub fn union<'a>(all: impl IntoIterator<Item = &'a ClientAuthorities>) -> Option<Self> {
        let given = all.into_iter().flat_map(|one| one.0.given.iter().cloned()).collect();
        ClientAuthorities::new(given).ok()
    }

    fn new(mut given: Vec<CertificateDer<'static>>) -> Result<Self, rustls::server::VerifierBuilderError> {
        given.sort_unstable_by(|one, other| one.as_ref().cmp(other.as_ref()));
        given.dedup();
        let mut roots = RootCertStore::empty();
        let mut hash = Context::new(&SHA256);
        for certificate in &given {
            // Each was added to an empty store before.
            let _ = roots.add(certificate.clone());
            hash.update(&(certificate.len() as u64).to_be_bytes());
            hash.update(certificate);
        }
        let provider = Arc::new(provider::default_provider());
        let signed = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
        let verifier = Verifier { signed: signed.allow_unauthenticated().build()?, given: given.clone() };
        let mut id = [0; 32];
        id.copy_from_slice(hash.finish().as_ref());
        Ok(ClientAuthorities(Arc::new(Authorities { id, given, verifier: Arc::new(verifier) })))
    }

    /// Returns a hash of the certificates. The same certificates have the same one, in any order.
    #[must_use]
    pub fn id(&self) -> [u8; 32] {
        self.0.id
    }

    /// Returns the check for handshakes. It lets clients without a certificate pass.
    #[must_use]
    pub fn verifier(&self) -> Arc<dyn ClientCertVerifier> {
        Arc::clone(&self.0.verifier)
    }

    /// Returns whether the first of these certificates is accepted at this time, with the others as intermediates.
    pub(crate) fn accept(&self, chain: &[CertificateDer<'_>], now: UnixTime) -> bool {
        let Some((own, others)) = chain.split_first() else { return false };
        self.0.verifier.verify_client_cert(own, others, now).is_ok()
    }
}

impl PartialEq for ClientAuthorities {
    fn eq(&self, other: &Self) -> bool {
        self.0.id == other.0.id
    }
}

impl Eq for ClientAuthorities {}

impl fmt::Debug for ClientAuthorities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientAuthorities").field("certificates", &self.0.given.len()).finish()
    }
}

/// Accepts certificates that an authority has signed, and the configured certificates themselves.
#[derive(Debug)]
struct Verifier {
    signed: Arc<dyn ClientCertVerifier>,
    given: Vec<CertificateDer<'static>>,
}

impl ClientCertVerifier for Verifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.signed.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        match self.signed.verify_client_cert(certificate, intermediates, now) {
            // As for servers: webpki refuses it only for that, after checking its validity.
            Err(error) if is_ca_as_server(&error) && self.given.iter().any(|given| given == certificate) => {
                Ok(ClientCertVerified::assertion())
            }
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        self.signed.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        self.signed.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.signed.supported_verify_schemes()
    }

    fn offer_client_auth(&self) -> bool {
        true
    }

    fn client_auth_mandatory(&self) -> bool {
        false
    }
}
