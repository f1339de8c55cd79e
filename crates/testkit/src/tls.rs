//! Certificates for one test.

use std::path::PathBuf;

use oroshi_net::tls::Roots;
use oroshi_net::{ClientTlsOptions, ServerTls};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tempfile::TempDir;

/// A certificate authority of its own, and two certificates that it signed: one for the server at `localhost` and
/// `127.0.0.1`, one for a client. All are PEM files in a temporary folder, which goes with the value.
#[derive(Debug)]
pub struct Identity {
    folder: TempDir,
    chain: Vec<u8>,
    key: Vec<u8>,
}

impl Identity {
    /// Makes keys and certificates.
    #[must_use]
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: String| std::fs::write(folder.path().join(name), text).unwrap();
        // OpenSSL takes a certificate whose issuer has the same name for a self-signed one.
        let named = |names: Vec<String>, name: &str| {
            let mut params = CertificateParams::new(names).unwrap();
            params.distinguished_name.push(DnType::CommonName, name);
            params
        };
        let mut authority = named(Vec::new(), "authority of a test");
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate().unwrap()).unwrap();
        write("ca.pem", authority.pem());
        let sign = |name: &str, names: Vec<String>| {
            let key = KeyPair::generate().unwrap();
            let certificate = named(names, name).signed_by(&key, &authority).unwrap();
            write(&format!("{name}.pem"), certificate.pem());
            write(&format!("{name}.key"), key.serialize_pem());
            (certificate.der().to_vec(), key.serialize_der())
        };
        let (chain, key) = sign("server", vec!["localhost".to_owned(), "127.0.0.1".to_owned()]);
        sign("client", Vec::new());
        Self { folder, chain, key }
    }

    /// Returns a file of the folder: `ca.pem`, `server.pem`, `server.key`, `client.pem`, `client.key`.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The authority's certificate.
    #[must_use]
    pub fn ca(&self) -> PathBuf {
        self.path("ca.pem")
    }

    /// The server's certificate and its private key.
    #[must_use]
    pub fn files(&self) -> (PathBuf, PathBuf) {
        (self.path("server.pem"), self.path("server.key"))
    }

    /// The server's certificate and its private key as DER.
    #[must_use]
    pub fn der(&self) -> (Vec<u8>, Vec<u8>) {
        (self.chain.clone(), self.key.clone())
    }

    /// Options of a client that trusts this authority alone.
    #[must_use]
    pub fn trusted(&self) -> ClientTlsOptions {
        ClientTlsOptions { roots: Roots::Only(vec![self.ca()]), ..ClientTlsOptions::default() }
    }

    /// Settings of a server with this certificate.
    #[must_use]
    pub fn server(&self) -> ServerTls {
        let (certificate, key) = self.files();
        ServerTls::from_files(certificate, key, &Default::default()).unwrap()
    }
}
