//! The client's end: which certificates it accepts, and which it shows.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WantsClientCert};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, ConfigBuilder, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio_rustls::TlsConnector;

use super::{TlsConfigError, TlsError, certificates, private_key};
use crate::stream::{Stream, TlsStream};

/// Which certificate authorities are trusted.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Roots {
    /// Those of this machine, which are loaded when TLS is first set up.
    #[default]
    System,
    /// Those of this machine, and those in these PEM files.
    SystemAnd(Vec<PathBuf>),
    /// Those in these PEM files alone.
    Only(Vec<PathBuf>),
    /// Nothing is checked: anyone can answer in the server's place.
    Insecure,
}

/// How a client does TLS.
#[derive(Debug, Clone, Default)]
pub struct ClientTlsOptions {
    /// Who is trusted.
    pub roots: Roots,
    /// PEM files with the client's own certificate chain and its private key, for servers that ask.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// The name to ask for and to check, instead of the URL's host.
    pub server_name: Option<String>,
    /// Protocols offered by ALPN, the preferred first, for example `http/1.1`.
    pub alpn: Vec<Vec<u8>>,
    /// Makes every handshake a full one. Otherwise a connection takes up an earlier session where the server allows it.
    pub no_resumption: bool,
}

/// TLS towards one server. Cheap to clone; clones share the cache of sessions.
#[derive(Debug, Clone)]
pub struct ClientTls {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
    fixed_name: bool,
}

impl ClientTls {
    /// TLS towards `host` (a URL's host, an IPv6 address without brackets), unless the options name another. Reads
    /// files, and this machine's roots where they are asked for.
    pub fn new(options: &ClientTlsOptions, host: &str) -> Result<Self, TlsConfigError> {
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(TlsConfigError::Identity)?;
        let builder = match &options.roots {
            Roots::Insecure => builder.dangerous().with_custom_certificate_verifier(Arc::new(AcceptAnyone(provider))),
            Roots::System => builder.with_root_certificates(roots(true, &[])?),
            Roots::SystemAnd(files) => builder.with_root_certificates(roots(true, files)?),
            Roots::Only(files) => builder.with_root_certificates(roots(false, files)?),
        };
        let mut config = with_identity(builder, options)?;
        config.alpn_protocols.clone_from(&options.alpn);
        if options.no_resumption {
            config.resumption = Resumption::disabled();
        }
        let name = server_name(options.server_name.as_deref().unwrap_or(host))?;
        Ok(ClientTls { config: Arc::new(config), name, fixed_name: options.server_name.is_some() })
    }

    /// The same towards another host, unless the options fixed the name.
    pub fn with_host(&self, host: &str) -> Result<Self, TlsConfigError> {
        let name = if self.fixed_name { self.name.clone() } else { server_name(host)? };
        Ok(ClientTls { config: Arc::clone(&self.config), name, fixed_name: self.fixed_name })
    }

    /// The handshake over a connected stream.
    pub async fn connect(&self, stream: Stream) -> Result<Stream, TlsError> {
        let connector = TlsConnector::from(Arc::clone(&self.config));
        let stream = connector.connect(self.name.clone(), stream).await?;
        Ok(Stream::Tls(Box::new(TlsStream(stream.into()))))
    }
}

fn server_name(name: &str) -> Result<ServerName<'static>, TlsConfigError> {
    ServerName::try_from(name.to_owned()).map_err(|_| TlsConfigError::Name { name: name.to_owned() })
}

fn roots(system: bool, files: &[PathBuf]) -> Result<RootCertStore, TlsConfigError> {
    let mut store = RootCertStore::empty();
    if system {
        let mut found = rustls_native_certs::load_native_certs();
        // Machines carry odd certificates beside good ones; what cannot be used is not trusted.
        store.add_parsable_certificates(found.certs);
        if store.is_empty() && files.is_empty() {
            return Err(TlsConfigError::NoSystemRoots { source: found.errors.drain(..).next() });
        }
    }
    for path in files {
        for certificate in certificates(path)? {
            store.add(certificate).map_err(|source| TlsConfigError::Root { path: path.clone(), source })?;
        }
    }
    Ok(store)
}

fn with_identity(
    builder: ConfigBuilder<ClientConfig, WantsClientCert>,
    options: &ClientTlsOptions,
) -> Result<ClientConfig, TlsConfigError> {
    match &options.identity {
        None => Ok(builder.with_no_client_auth()),
        Some((certificate, key)) => builder
            .with_client_auth_cert(certificates(certificate)?, private_key(key)?)
            .map_err(TlsConfigError::Identity),
    }
}

/// Takes any certificate, but still checks that the peer holds its key.
#[derive(Debug)]
struct AcceptAnyone(Arc<CryptoProvider>);

impl ServerCertVerifier for AcceptAnyone {
    fn verify_server_cert(
        &self,
        _certificate: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
