//! The server side of TLS.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;

use super::{TlsConfigError, TlsError, certificates, private_key};
use crate::stream::{Stream, TlsStream};

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
pub struct ServerTls {
    config: Arc<ServerConfig>,
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
        Ok(ServerTls { config: Arc::new(config) })
    }

    /// Performs the handshake over an accepted stream.
    pub async fn accept(&self, stream: Stream) -> Result<Stream, TlsError> {
        let stream = TlsAcceptor::from(Arc::clone(&self.config)).accept(stream).await?;
        Ok(Stream::Tls(Box::new(TlsStream(stream.into()))))
    }
}
