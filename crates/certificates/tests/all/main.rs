//! Certificates in real handshakes over TCP: names, files, rows of SQLite, tickets, challenges.

mod handshakes;
mod rows;

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use oroshi_certificates::{
    Catalogue, Certificates, CertificatesSettings, Challenges, ClientNames, Current, MinVersion, Source, Tickets,
};
use oroshi_net::tls::{Roots, TlsError, TlsFacts};
use oroshi_net::{ClientTls, ClientTlsOptions, ServerTls, Stream};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const SECRET: &str = "0123456789abcdef0123456789abcdef";

/// An authority, whose certificate is a file.
struct Authority {
    folder: tempfile::TempDir,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        fs::write(folder.path().join("ca.crt"), issuer.pem()).unwrap();
        Authority { folder, issuer }
    }

    /// Signs a certificate for these names: chain and key.
    fn sign(&self, names: &[&str]) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let certificate = CertificateParams::new(names).unwrap().signed_by(&key, &self.issuer).unwrap();
        (format!("{}{}", certificate.pem(), self.issuer.pem()), key.serialize_pem())
    }

    /// Returns a client that asks for this name.
    fn client(&self, name: &str) -> ClientTls {
        let roots = Roots::Only(vec![self.folder.path().join("ca.crt")]);
        ClientTls::new(&ClientTlsOptions { roots, ..ClientTlsOptions::default() }, name).unwrap()
    }
}

fn settings(catalogue: Catalogue) -> CertificatesSettings {
    CertificatesSettings {
        catalogue: Arc::new(catalogue),
        default: None,
        lookup: None,
        seal: None,
        min_version: MinVersion::Tls12,
        alpn: vec![b"h2".to_vec(), b"http/1.1".to_vec()],
        tickets: Tickets::from_secret(SECRET, Duration::from_secs(3600)).unwrap(),
        challenges: Arc::new(Challenges::default()),
        clients: ClientNames::default(),
    }
}

fn in_force(settings: CertificatesSettings) -> Arc<Current> {
    let current = Current::default();
    current.set(Some(Arc::new(Certificates::new(settings, None, false))));
    Arc::new(current)
}

fn catalogue(path: &Path) -> Catalogue {
    Catalogue::read(&[Source::Path(path.to_owned())]).unwrap()
}

/// Runs a test on a runtime such as a thread of the engine has.
fn run(test: impl Future<Output = ()>) {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().build_local(Default::default()).unwrap().block_on(test);
}

/// Performs a handshake. Returns the facts of the server, or the client's error.
async fn shake(current: &Arc<Current>, client: &ClientTls) -> Result<TlsFacts, TlsError> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let tls = ServerTls::chosen(Arc::clone(current) as _);
    let server = tokio::task::spawn_local(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let mut stream = tls.accept(Stream::from(stream)).await.ok()?;
        // Behind the tickets, so that a client that has read this has them.
        stream.write_all(b"x").await.unwrap();
        stream.flush().await.unwrap();
        let _ = stream.read(&mut [0; 1]).await;
        stream.tls_facts()
    });
    let stream = TcpStream::connect(address).await.unwrap();
    let mut stream = client.connect(Stream::from(stream)).await?;
    stream.read_exact(&mut [0; 1]).await.unwrap();
    drop(stream);
    Ok(server.await.unwrap().unwrap())
}

fn was_refused(result: &Result<TlsFacts, TlsError>, alert: &str) -> bool {
    matches!(result, Err(TlsError::Alert(found)) if format!("{found:?}") == alert)
}
