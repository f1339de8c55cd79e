//! TLS errors, before and during a handshake.

use std::io;
use std::path::PathBuf;

use rustls::{AlertDescription, CertificateError};
use thiserror::Error;

use super::RevocationListError;

/// The reason why a handshake failed.
#[derive(Debug, Error)]
pub enum TlsError {
    /// The peer's certificate is not trusted. Add its CA, connect under a name in the certificate, or switch the
    /// check off, knowing that anyone can then answer.
    #[error("the peer's certificate is not accepted")]
    Certificate(#[source] rustls::Error),
    /// The server's own certificate says CA:TRUE, as `openssl req -x509` makes them by default, and this very
    /// certificate is not configured as trusted.
    #[error(
        "the server shows a CA's own certificate, which is trusted only where this very certificate is given as a CA \
         file: give it, or have the server show one that a trusted CA has signed"
    )]
    CaCertificate(#[source] rustls::Error),
    /// The peer refused and sent a reason: a missing or unknown client certificate, no common version or protocol.
    #[error("the peer refused the handshake ({0:?})")]
    Alert(AlertDescription),
    /// This side refused the ClientHello with this alert: no certificate serves the name, for example.
    #[error("the handshake was refused ({0:?})")]
    Refused(AlertDescription),
    /// The peer's answer is not TLS: check whether it is a plain HTTP port.
    #[error("the peer does not speak TLS")]
    NotTls(#[source] rustls::Error),
    /// The peer closed the connection during the handshake.
    #[error("the peer closed the connection within the handshake")]
    Closed,
    /// The handshake did not end before the deadline.
    #[error("the handshake did not end before the deadline")]
    Timeout,
    /// No TLS version, cipher suite or protocol in common, or the peer broke the protocol.
    #[error("the handshake failed")]
    Protocol(#[source] rustls::Error),
    /// The connection failed during the handshake.
    #[error("the connection failed within the handshake")]
    Io(#[source] io::Error),
}

impl TlsError {
    /// Whether the peer speaks none of the protocols that were offered by ALPN.
    #[must_use]
    pub fn is_no_protocol(&self) -> bool {
        matches!(self, TlsError::Alert(AlertDescription::NoApplicationProtocol))
    }
}

impl From<io::Error> for TlsError {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::UnexpectedEof {
            return TlsError::Closed;
        }
        match error.downcast::<rustls::Error>() {
            Ok(error) => match error {
                error if is_ca_as_server(&error) => TlsError::CaCertificate(error),
                rustls::Error::InvalidCertificate(_) | rustls::Error::NoCertificatesPresented => {
                    TlsError::Certificate(error)
                }
                rustls::Error::AlertReceived(alert) => TlsError::Alert(alert),
                rustls::Error::InvalidMessage(_) => TlsError::NotTls(error),
                other => TlsError::Protocol(other),
            },
            Err(error) => TlsError::Io(error),
        }
    }
}

/// Whether a certificate is refused because its issuer has no revocation list.
pub(super) fn is_without_list(error: &rustls::Error) -> bool {
    matches!(error, rustls::Error::InvalidCertificate(CertificateError::UnknownRevocationStatus))
}

/// Whether the error is webpki's CA-as-end-entity. rustls passes its verifier's error on as an opaque one, whose text
/// is the name of webpki's variant.
pub(super) fn is_ca_as_server(error: &rustls::Error) -> bool {
    matches!(error, rustls::Error::InvalidCertificate(CertificateError::Other(cause))
        if cause.0.to_string() == "CaUsedAsEndEntity")
}

/// The reason why TLS could not be set up.
#[derive(Debug, Error)]
pub enum TlsConfigError {
    /// The file is unreadable, or lacks such an item: check the path, and that it is PEM.
    #[error("could not read {wanted} from {path}", path = path.display())]
    Pem {
        /// The file.
        path: PathBuf,
        /// The item.
        wanted: &'static str,
        /// The cause.
        source: rustls::pki_types::pem::Error,
    },
    /// The file holds a certificate that rustls does not accept as a root.
    #[error("{path} holds a certificate that cannot be a root", path = path.display())]
    Root {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: rustls::Error,
    },
    /// No root certificates on this machine: install the package ca-certificates, or give the CA in a file.
    #[error("no root certificates were found on this machine: install ca-certificates, or give a CA file")]
    NoSystemRoots {
        /// The first error while searching, if any.
        source: Option<rustls_native_certs::Error>,
    },
    /// The CA files contain no certificate that can be a root, so no verifier for servers could be made.
    #[error("servers cannot be checked against the CA files")]
    Verifier {
        /// The cause.
        source: rustls::server::VerifierBuilderError,
    },
    /// The certificate and the key do not match, or their type is not supported.
    #[error("the certificate and private key cannot be used together")]
    Identity(#[source] rustls::Error),
    /// The name is neither a DNS name nor an IP address.
    #[error("`{name}` cannot be the name of a TLS server: expected a DNS name or an IP address")]
    Name {
        /// The given text.
        name: String,
    },
    /// The verifier for client certificates could not be made from the CA file.
    #[error("client certificates cannot be checked against {path}", path = path.display())]
    ClientRoots {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: rustls::server::VerifierBuilderError,
    },
    /// The file cannot be used as certificate revocation lists: see the cause.
    #[error("revoked certificates cannot be read from {path}", path = path.display())]
    RevocationList {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: RevocationListError,
    },
}
