//! The server's check of client certificates.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use ring::digest::{Context, SHA256};
use rustls::crypto::ring as provider;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, RootCertStore, SignatureScheme};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::error::{is_ca_as_server, is_without_list};
use super::revocation::{self, RevocationList, RevocationOptions};
use super::{TlsConfigError, certificates};

/// The authorities whose certificates clients may show, and their revocation lists. Cheap to clone.
///
/// A certificate of the files is also accepted from a client itself, even with CA:TRUE, as `openssl req -x509` makes
/// them.
///
/// With revocation lists, each certificate below the root needs a list of its issuer that has not expired and does not
/// name the certificate. Certificates of the files are roots only if no other certificate of the files is their issuer.
#[derive(Clone)]
pub struct ClientAuthorities(Arc<Verifier>);

impl ClientAuthorities {
    /// Reads PEM files of certificates, and files of revocation lists.
    ///
    /// # Errors
    /// A file cannot be read, or has a certificate that cannot be a root, or a revocation list that is damaged or not
    /// signed by one of these authorities.
    pub fn from_files(files: &[PathBuf], revocation: &RevocationOptions) -> Result<Self, TlsConfigError> {
        let mut given = Vec::new();
        for path in files {
            for certificate in certificates(path)? {
                let added = RootCertStore::empty().add(certificate.clone());
                added.map_err(|source| TlsConfigError::Root { path: path.clone(), source })?;
                given.push(certificate);
            }
        }
        given.sort_unstable_by(|one, other| one.as_ref().cmp(other.as_ref()));
        given.dedup();
        let lists = revocation::read(&revocation.files, &given)?;
        let path = files.first().cloned().unwrap_or_default();
        let set = AuthoritySet::new(given, lists, revocation.accept_expired);
        let set = set.map_err(|source| TlsConfigError::ClientRoots { path, source })?;
        Ok(ClientAuthorities(Arc::new(Verifier::new(vec![Arc::new(set)]))))
    }

    /// Returns authorities that accept what one of these accepts; `None` if there are none.
    #[must_use]
    pub fn union<'a>(all: impl IntoIterator<Item = &'a ClientAuthorities>) -> Option<Self> {
        let mut sets: Vec<_> = all.into_iter().flat_map(|one| one.0.sets.iter().cloned()).collect();
        sets.sort_unstable_by_key(|set| set.id);
        sets.dedup_by_key(|set| set.id);
        (!sets.is_empty()).then(|| ClientAuthorities(Arc::new(Verifier::new(sets))))
    }

    /// Returns a hash of the certificates and revocation lists. The same ones have the same hash, in any order.
    #[must_use]
    pub fn id(&self) -> [u8; 32] {
        self.0.id
    }

    /// Returns the revocation lists.
    pub fn lists(&self) -> impl Iterator<Item = &RevocationList> {
        self.0.sets.iter().flat_map(|set| &set.lists)
    }

    /// Returns the check for handshakes. It lets clients without a certificate pass.
    #[must_use]
    pub fn verifier(&self) -> Arc<dyn ClientCertVerifier> {
        Arc::clone(&self.0) as Arc<dyn ClientCertVerifier>
    }

    /// Returns whether the first of these certificates is accepted at this time, with the others as intermediates.
    pub(crate) fn accept(&self, chain: &[CertificateDer<'_>], now: UnixTime) -> bool {
        let Some((own, others)) = chain.split_first() else { return false };
        self.0.verify_client_cert(own, others, now).is_ok()
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
        let count = |of: fn(&AuthoritySet) -> usize| self.0.sets.iter().map(|set| of(set)).sum::<usize>();
        let mut shown = f.debug_struct("ClientAuthorities");
        shown
            .field("certificates", &count(|set| set.roots.len() + set.intermediates.len()))
            .field("lists", &count(|set| set.lists.len()));
        shown.finish()
    }
}

/// Certificates and revocation lists that were configured together.
#[derive(Debug)]
struct AuthoritySet {
    id: [u8; 32],
    roots: Vec<CertificateDer<'static>>,
    /// With revocation lists: certificates of the files that others of them have issued, and can revoke.
    intermediates: Vec<CertificateDer<'static>>,
    lists: Vec<RevocationList>,
    signed: Arc<dyn ClientCertVerifier>,
}

impl AuthoritySet {
    fn new(
        given: Vec<CertificateDer<'static>>,
        lists: Vec<RevocationList>,
        accept_expired: bool,
    ) -> Result<Self, VerifierBuilderError> {
        let mut hash = Context::new(&SHA256);
        let mut add = |der: &[u8]| {
            hash.update(&(der.len() as u64).to_be_bytes());
            hash.update(der);
        };
        given.iter().for_each(|certificate| add(certificate));
        if !lists.is_empty() {
            add(if accept_expired { b"expired lists count" } else { b"lists" });
            lists.iter().for_each(|list| add(list.der()));
        }
        let mut id = [0; 32];
        id.copy_from_slice(hash.finish().as_ref());
        let intermediates = if lists.is_empty() { Vec::new() } else { issued_by_others(&given) };
        // Each certificate was added to an empty store before.
        let (mut anchors, mut all) = (RootCertStore::empty(), RootCertStore::empty());
        all.add_parsable_certificates(given.iter().cloned());
        let roots: Vec<_> = given.into_iter().filter(|one| !intermediates.contains(one)).collect();
        anchors.add_parsable_certificates(roots.iter().cloned());
        let provider = Arc::new(provider::default_provider());
        let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(anchors), provider).allow_unauthenticated();
        let hints = builder.clear_root_hint_subjects().add_root_hint_subjects(all.subjects());
        let listed = hints.with_crls(lists.iter().map(|list| list.der().clone()));
        let signed = if accept_expired { listed } else { listed.enforce_revocation_expiration() }.build()?;
        Ok(AuthoritySet { id, roots, intermediates, lists, signed })
    }

    fn verify(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let verified = if self.intermediates.is_empty() {
            self.signed.verify_client_cert(certificate, intermediates, now)
        } else {
            let both = intermediates.iter().chain(&self.intermediates);
            let both: Vec<CertificateDer<'_>> = both.map(|one| CertificateDer::from(&**one)).collect();
            self.signed.verify_client_cert(certificate, &both, now)
        };
        match verified {
            // As for servers: webpki refuses it only for that, after checking its validity. A root has no list of an
            // issuer above it: users remove it from the file instead.
            Err(error)
                if (is_ca_as_server(&error) || is_without_list(&error))
                    && self.roots.iter().any(|root| root == certificate) =>
            {
                Ok(ClientCertVerified::assertion())
            }
            verified => verified,
        }
    }
}

/// Returns the certificates that others of them have issued, by their names; none if no other would be left.
fn issued_by_others(all: &[CertificateDer<'static>]) -> Vec<CertificateDer<'static>> {
    let parsed: Vec<_> = all.iter().filter_map(|one| Some((one, X509Certificate::from_der(one).ok()?.1))).collect();
    let has_issuer = |of: &X509Certificate<'_>| {
        let issuer = of.issuer().as_raw();
        issuer != of.subject().as_raw() && parsed.iter().any(|(_, other)| other.subject().as_raw() == issuer)
    };
    let issued: Vec<_> = parsed.iter().filter(|(_, one)| has_issuer(one)).map(|(one, _)| (*one).clone()).collect();
    if issued.len() == all.len() { Vec::new() } else { issued }
}

/// Accepts certificates that one of several sets accepts; there is at least one set.
#[derive(Debug)]
struct Verifier {
    id: [u8; 32],
    sets: Vec<Arc<AuthoritySet>>,
    hints: Vec<DistinguishedName>,
}

impl Verifier {
    fn new(sets: Vec<Arc<AuthoritySet>>) -> Self {
        let mut hints: Vec<DistinguishedName> = Vec::new();
        for hint in sets.iter().flat_map(|set| set.signed.root_hint_subjects()) {
            if !hints.iter().any(|known| known.as_ref() == hint.as_ref()) {
                hints.push(hint.clone());
            }
        }
        let id = match &sets[..] {
            [only] => only.id,
            sets => {
                let mut hash = Context::new(&SHA256);
                sets.iter().for_each(|set| hash.update(&set.id));
                let mut id = [0; 32];
                id.copy_from_slice(hash.finish().as_ref());
                id
            }
        };
        Verifier { id, sets, hints }
    }
}

impl ClientCertVerifier for Verifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.hints
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let mut refusal = rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer);
        for set in &self.sets {
            match set.verify(certificate, intermediates, now) {
                Ok(verified) => return Ok(verified),
                // The set that knows most about the certificate chooses the alert.
                Err(error) if knowledge(&error) > knowledge(&refusal) => refusal = error,
                Err(_) => {}
            }
        }
        Err(refusal)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        self.sets[0].signed.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        self.sets[0].signed.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.sets[0].signed.supported_verify_schemes()
    }

    fn offer_client_auth(&self) -> bool {
        true
    }

    fn client_auth_mandatory(&self) -> bool {
        false
    }
}

/// Returns how much an authority that refuses a certificate knows about it.
fn knowledge(error: &rustls::Error) -> u8 {
    match error {
        rustls::Error::InvalidCertificate(CertificateError::Revoked) => 2,
        rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer) => 0,
        _ => 1,
    }
}
