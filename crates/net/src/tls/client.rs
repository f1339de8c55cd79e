//! The client side of TLS: trusted and own certificates.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WantsClientCert, WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{ClientConfig, ConfigBuilder, DigitallySignedStruct, RootCertStore, SignatureScheme, WantsVerifier};
use tokio_rustls::TlsConnector;

use super::error::is_ca_as_server;
use super::{TlsConfigError, TlsError, certificates, private_key};
use crate::stream::{End, Stream, TlsStream};

/// The trusted certificate authorities.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Roots {
    /// Those of this machine, loaded when TLS is first set up.
    #[default]
    System,
    /// Those of this machine, and those in these PEM files.
    SystemAnd(Vec<PathBuf>),
    /// Only those in these PEM files.
    Only(Vec<PathBuf>),
    /// No check: anyone can impersonate the server.
    Insecure,
}

/// TLS options of a client.
#[derive(Debug, Clone, Default)]
pub struct ClientTlsOptions {
    /// The trusted authorities.
    pub roots: Roots,
    /// PEM files with the client's own certificate chain and its private key, for servers that ask.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// The name for SNI and for the check, instead of the URL's host.
    pub server_name: Option<String>,
    /// Protocols offered by ALPN, the preferred first, for example `http/1.1`.
    pub alpn: Vec<Vec<u8>>,
    /// How many servers' sessions are kept; 0 means rustls's own number, 256.
    pub sessions: usize,
    /// Makes every handshake a full one. Otherwise connections resume an earlier session if the server allows it.
    pub no_resumption: bool,
}

/// TLS towards one server. Cheap to clone; clones share the session cache.
#[derive(Debug, Clone)]
pub struct ClientTls {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
    fixed_name: bool,
}

impl ClientTls {
    /// Prepares TLS towards `host` (a URL's host, an IPv6 address without brackets), unless the options set another
    /// name. Reads files, and this machine's roots if requested.
    pub fn new(options: &ClientTlsOptions, host: &str) -> Result<Self, TlsConfigError> {
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(TlsConfigError::Identity)?;
        let builder = match &options.roots {
            Roots::Insecure => Verifier { accepts: Accepts::Anyone, provider }.put_into(builder),
            Roots::System => builder.with_root_certificates(roots(true, &[])?.authorities),
            Roots::SystemAnd(files) => roots(true, files)?.verified_by(builder, provider)?,
            Roots::Only(files) => roots(false, files)?.verified_by(builder, provider)?,
        };
        let mut config = with_identity(builder, options)?;
        config.alpn_protocols.clone_from(&options.alpn);
        if options.no_resumption {
            config.resumption = Resumption::disabled();
        } else if options.sessions > 0 {
            config.resumption = Resumption::in_memory_sessions(options.sessions);
        }
        let name = server_name(options.server_name.as_deref().unwrap_or(host))?;
        Ok(ClientTls { config: Arc::new(config), name, fixed_name: options.server_name.is_some() })
    }

    /// Returns the same towards another host, unless the options set the name.
    pub fn with_host(&self, host: &str) -> Result<Self, TlsConfigError> {
        let name = if self.fixed_name { self.name.clone() } else { server_name(host)? };
        Ok(ClientTls { config: Arc::clone(&self.config), name, fixed_name: self.fixed_name })
    }

    /// Returns the same with other protocols offered by ALPN. Both share the session cache.
    #[must_use]
    pub fn offering(&self, alpn: &[&[u8]]) -> Self {
        let mut config = ClientConfig::clone(&self.config);
        config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
        ClientTls { config: Arc::new(config), name: self.name.clone(), fixed_name: self.fixed_name }
    }

    /// Performs the handshake over a connected stream.
    pub async fn connect(&self, stream: Stream) -> Result<Stream, TlsError> {
        let connector = TlsConnector::from(Arc::clone(&self.config));
        let stream = connector.connect(self.name.clone(), stream).await?;
        Ok(Stream::Tls(TlsStream(End::Client(Box::new(stream)))))
    }
}

fn server_name(name: &str) -> Result<ServerName<'static>, TlsConfigError> {
    ServerName::try_from(name.to_owned()).map_err(|_| TlsConfigError::Name { name: name.to_owned() })
}

/// The trusted certificates.
struct Trusted {
    authorities: RootCertStore,
    /// The certificates from the configured files, unchanged.
    given: Vec<CertificateDer<'static>>,
}

fn roots(system: bool, files: &[PathBuf]) -> Result<Trusted, TlsConfigError> {
    let mut authorities = RootCertStore::empty();
    let mut given = Vec::new();
    if system {
        let mut found = rustls_native_certs::load_native_certs();
        // System stores have some odd certificates; unusable ones are not trusted.
        authorities.add_parsable_certificates(found.certs);
        if authorities.is_empty() && files.is_empty() {
            return Err(TlsConfigError::NoSystemRoots { source: found.errors.drain(..).next() });
        }
    }
    for path in files {
        for certificate in certificates(path)? {
            let added = authorities.add(certificate.clone());
            added.map_err(|source| TlsConfigError::Root { path: path.clone(), source })?;
            given.push(certificate);
        }
    }
    Ok(Trusted { authorities, given })
}

impl Trusted {
    fn verified_by(
        self,
        builder: ConfigBuilder<ClientConfig, WantsVerifier>,
        provider: Arc<CryptoProvider>,
    ) -> Result<ConfigBuilder<ClientConfig, WantsClientCert>, TlsConfigError> {
        // Without any authority nothing is trusted; the builder below would fail instead.
        if self.authorities.is_empty() {
            return Ok(builder.with_root_certificates(self.authorities));
        }
        let authorities =
            WebPkiServerVerifier::builder_with_provider(Arc::new(self.authorities), Arc::clone(&provider));
        let authorities = authorities.build().map_err(|source| TlsConfigError::Verifier { source })?;
        let accepts = Accepts::SignedOrGiven { authorities, given: self.given };
        Ok(Verifier { accepts, provider }.put_into(builder))
    }
}

/// Checks a server's certificate, and that the server has its key.
#[derive(Debug)]
struct Verifier {
    accepts: Accepts,
    provider: Arc<CryptoProvider>,
}

/// The accepted certificates.
#[derive(Debug)]
enum Accepts {
    /// Any certificate.
    Anyone,
    /// Certificates signed by an authority, and the configured certificates themselves, even with CA:TRUE: `openssl
    /// req -x509` makes such certificates. The authorities' verifier refuses them only for that, after checking their
    /// validity. Trust in a certificate that may sign others includes trust in itself (RFC 5280, section 6.1: it is
    /// the trust anchor).
    SignedOrGiven { authorities: Arc<WebPkiServerVerifier>, given: Vec<CertificateDer<'static>> },
}

impl Verifier {
    fn put_into(
        self,
        builder: ConfigBuilder<ClientConfig, WantsVerifier>,
    ) -> ConfigBuilder<ClientConfig, WantsClientCert> {
        builder.dangerous().with_custom_certificate_verifier(Arc::new(self))
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let Accepts::SignedOrGiven { authorities, given } = &self.accepts else {
            return Ok(ServerCertVerified::assertion());
        };
        match authorities.verify_server_cert(certificate, intermediates, name, ocsp, now) {
            Err(error) if is_ca_as_server(&error) && given.contains(certificate) => {
                verify_server_name(&ParsedCertificate::try_from(certificate)?, name)?;
                Ok(ServerCertVerified::assertion())
            }
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
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
