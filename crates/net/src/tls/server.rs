//! The server side of TLS.

use std::fmt;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{Accepted, Acceptor, ClientHello, WebPkiClientVerifier};
use rustls::{AlertDescription, RootCertStore, ServerConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::session::{ServerSession, invalid};
use super::{TlsConfigError, TlsError, TlsFacts, certificates, private_key};
use crate::stream::{End, Stream, TlsStream};

/// TLS options of a server.
#[derive(Debug, Clone, Default)]
pub struct ServerTlsOptions {
    /// Protocols accepted by ALPN, the preferred first.
    pub alpn: Vec<Vec<u8>>,
    /// A PEM file of CAs: clients must show a certificate from one of them.
    pub client_roots: Option<PathBuf>,
}

/// TLS for a server. Cheap to clone; clones share the session cache.
#[derive(Debug, Clone)]
pub struct ServerTls(Source);

/// The room for a ClientHello; larger ones get more. Usual ones have 200 to 2,000 bytes.
const HELLO_BYTES: usize = 2048;

/// Where the settings of a handshake come from.
#[derive(Debug, Clone)]
enum Source {
    /// All handshakes have these.
    Fixed(Arc<ServerConfig>),
    /// The ClientHello decides.
    Chosen(Arc<dyn ChooseTls>),
}

/// Chooses the settings of a handshake by its ClientHello.
pub trait ChooseTls: fmt::Debug + Send + Sync {
    /// Returns the settings, or a future of them. Call it on the thread that serves the connection.
    fn choose(&self, hello: &ClientHello<'_>) -> Choice;

    /// Notes the end of a handshake: the facts, or the reason why it failed.
    fn ended(&self, result: Result<&TlsFacts, &TlsError>);
}

/// The settings of a handshake.
pub enum Choice {
    /// They are known.
    Now(Result<Arc<ServerConfig>, AlertDescription>),
    /// They must be looked up.
    Later(Pin<Box<dyn Future<Output = Result<Arc<ServerConfig>, AlertDescription>>>>),
}

impl fmt::Debug for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Choice::Now(settings) => f.debug_tuple("Now").field(settings).finish(),
            Choice::Later(_) => f.write_str("Later"),
        }
    }
}

impl ServerTls {
    /// Loads PEM files: the certificate with its chain, the server's own first, and the private key.
    pub fn from_files(
        certificate: impl Into<PathBuf>,
        key: impl Into<PathBuf>,
        options: &ServerTlsOptions,
    ) -> Result<Self, TlsConfigError> {
        Self::new(certificates(&certificate.into())?, private_key(&key.into())?, options)
    }

    /// Loads DER: the certificate with its chain, the server's own first, and the private key (PKCS#8, PKCS#1 or
    /// SEC1).
    pub fn from_der(chain: Vec<Vec<u8>>, key: Vec<u8>, options: &ServerTlsOptions) -> Result<Self, TlsConfigError> {
        let key = PrivateKeyDer::try_from(key)
            .map_err(|why| TlsConfigError::Identity(rustls::Error::General(why.to_owned())))?;
        Self::new(chain.into_iter().map(CertificateDer::from).collect(), key, options)
    }

    fn new(
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
        options: &ServerTlsOptions,
    ) -> Result<Self, TlsConfigError> {
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(TlsConfigError::Identity)?;
        let builder = match &options.client_roots {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let mut roots = RootCertStore::empty();
                for certificate in certificates(path)? {
                    roots.add(certificate).map_err(|source| TlsConfigError::Root { path: path.clone(), source })?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                    .build()
                    .map_err(|source| TlsConfigError::ClientRoots { path: path.clone(), source })?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let mut config = builder.with_single_cert(chain, key).map_err(TlsConfigError::Identity)?;
        config.alpn_protocols.clone_from(&options.alpn);
        Ok(ServerTls(Source::Fixed(Arc::new(config))))
    }

    /// Lets the ClientHello of each handshake decide about its settings.
    #[must_use]
    pub fn chosen(by: Arc<dyn ChooseTls>) -> Self {
        ServerTls(Source::Chosen(by))
    }

    /// Performs the handshake over an accepted stream.
    pub async fn accept(&self, stream: Stream) -> Result<Stream, TlsError> {
        let by = match &self.0 {
            Source::Fixed(config) => return shake(stream, async |_: &Accepted| Ok(Arc::clone(config))).await,
            Source::Chosen(by) => &**by,
        };
        let choose = async |hello: &Accepted| {
            // In a statement of its own: the hello borrows what the future must not hold.
            let choice = by.choose(&hello.client_hello());
            match choice {
                Choice::Now(settings) => settings,
                Choice::Later(later) => later.await,
            }
        };
        match shake(stream, choose).await {
            Ok(stream) => {
                if let Some(facts) = stream.tls_facts() {
                    by.ended(Ok(&facts));
                }
                Ok(stream)
            }
            Err(error) => {
                by.ended(Err(&error));
                Err(error)
            }
        }
    }
}

/// Performs a handshake whose ClientHello may decide about its settings.
async fn shake(
    mut stream: Stream,
    choose: impl AsyncFnOnce(&Accepted) -> Result<Arc<ServerConfig>, AlertDescription>,
) -> Result<Stream, TlsError> {
    let mut received = Vec::new();
    let hello = client_hello(&mut stream, &mut received).await?;
    let sni = hello.client_hello().server_name().map(Box::from);
    match choose(&hello).await {
        Ok(settings) => {
            drop(hello);
            let mut session = ServerSession::new(settings, stream, sni, received).map_err(invalid)?;
            session.shake().await?;
            Ok(Stream::Tls(TlsStream(End::Server(Box::new(session)))))
        }
        Err(alert) => {
            // A fatal alert in a record of its own (RFC 8446, sections 5.1 and 6). The handshake fails in any case, so
            // a failed write changes nothing.
            let _ = stream.write_all(&[21, 3, 3, 0, 2, 2, alert.into()]).await;
            let _ = stream.shutdown().await;
            Err(TlsError::Refused(alert))
        }
    }
}

/// Reads until the whole ClientHello is received. Other bytes are refused with an alert.
async fn client_hello(stream: &mut Stream, received: &mut Vec<u8>) -> Result<Accepted, TlsError> {
    let mut acceptor = Acceptor::default();
    loop {
        let before = received.len();
        // Not more than the hello needs: an idle client holds it.
        received.reserve_exact(HELLO_BYTES);
        if stream.read_buf(received).await? == 0 {
            return Err(TlsError::Closed);
        }
        let mut new = &received[before..];
        while !new.is_empty() {
            // It takes 4 KiB at a time, and 64 KiB at most.
            acceptor.read_tls(&mut new)?;
            match acceptor.accept() {
                Ok(Some(hello)) => return Ok(hello),
                Ok(None) => {}
                Err((error, mut alert)) => {
                    let mut record = Vec::new();
                    // Writing into memory cannot fail; for the socket see above.
                    let _ = alert.write_all(&mut record);
                    let _ = stream.write_all(&record).await;
                    let _ = stream.shutdown().await;
                    return Err(invalid(error).into());
                }
            }
        }
    }
}
