//! A certificate authority for one test, and what it signs.

use std::path::PathBuf;
use std::sync::Arc;

use oroshi_net::ClientTlsOptions;
use oroshi_net::tls::Roots;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::crypto::ring;

/// A certificate for `localhost` and `127.0.0.1`, signed by an authority of its own. The files go with it.
pub struct Identity {
    folder: tempfile::TempDir,
    chain: Vec<u8>,
    key: Vec<u8>,
}

impl Identity {
    pub fn new() -> Self {
        let mut authority = CertificateParams::new(Vec::new()).unwrap();
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority_key = KeyPair::generate().unwrap();
        let authority_certificate = authority.self_signed(&authority_key).unwrap();
        let key = KeyPair::generate().unwrap();
        let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
        let issuer = Issuer::new(authority, authority_key);
        let certificate = CertificateParams::new(names).unwrap().signed_by(&key, &issuer).unwrap();

        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("ca.pem"), authority_certificate.pem()).unwrap();
        std::fs::write(folder.path().join("server.pem"), certificate.pem()).unwrap();
        std::fs::write(folder.path().join("server.key"), key.serialize_pem()).unwrap();
        Self { folder, chain: certificate.der().to_vec(), key: key.serialize_der() }
    }

    /// The authority's certificate, PEM.
    pub fn ca(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    /// The server's certificate and its private key, PEM.
    pub fn files(&self) -> (PathBuf, PathBuf) {
        (self.folder.path().join("server.pem"), self.folder.path().join("server.key"))
    }

    /// How a client comes to trust it.
    pub fn client(&self) -> ClientTlsOptions {
        ClientTlsOptions { roots: Roots::Only(vec![self.ca()]), ..ClientTlsOptions::default() }
    }

    /// How a server shows it.
    pub fn server(&self) -> Arc<rustls::ServerConfig> {
        let chain = vec![rustls::pki_types::CertificateDer::from(self.chain.clone())];
        let key = rustls::pki_types::PrivateKeyDer::try_from(self.key.clone()).unwrap();
        let builder = rustls::ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let builder = builder.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
        Arc::new(builder.with_single_cert(chain, key).unwrap())
    }
}
