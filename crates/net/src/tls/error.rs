//! What goes wrong with TLS, before and during a handshake.

use std::io;
use std::path::PathBuf;

use rustls::{AlertDescription, CertificateError};
use thiserror::Error;

/// Why a handshake failed.
#[derive(Debug, Error)]
pub enum TlsError {
    /// The peer's certificate is not accepted: give its CA, connect under the name that it carries, or, knowing that
    /// anyone can then answer, leave the check out.
    #[error("the peer's certificate is not accepted")]
    Certificate(#[source] rustls::Error),
    /// The server shows as its own a certificate that says CA:TRUE, as `openssl req -x509` makes them unless told otherwise, and
    /// this very certificate was not given as trusted.
    #[error(
        "the server shows a CA's own certificate, which is trusted only where this very certificate is given as a CA file: give it, or have \
         the server show one that a trusted CA has signed"
    )]
    CaCertificate(#[source] rustls::Error),
    /// The peer refused and said why: a missing or unknown client certificate, no common version or protocol.
    #[error("the peer refused the handshake ({0:?})")]
    Alert(AlertDescription),
    /// The peer answered with something that is not TLS: is it a plain HTTP port?
    #[error("the peer does not speak TLS")]
    NotTls(#[source] rustls::Error),
    /// The peer closed the connection within the handshake.
    #[error("the peer closed the connection within the handshake")]
    Closed,
    /// The handshake did not end before the deadline.
    #[error("the handshake did not end before the deadline")]
    Timeout,
    /// No TLS version, cipher suite or protocol in common, or the peer broke the protocol.
    #[error("the handshake failed")]
    Protocol(#[source] rustls::Error),
    /// The connection failed within the handshake.
    #[error("the connection failed within the handshake")]
    Io(#[source] io::Error),
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

/// rustls hands on its verifier's error as an opaque one, whose text is the name of webpki's variant.
pub(super) fn is_ca_as_server(error: &rustls::Error) -> bool {
    matches!(error, rustls::Error::InvalidCertificate(CertificateError::Other(cause))
        if cause.0.to_string() == "CaUsedAsEndEntity")
}

/// Why TLS could not be set up.
#[derive(Debug, Error)]
pub enum TlsConfigError {
    /// The file cannot be read, or holds no such thing: check the path, and that it is PEM.
    #[error("could not read {wanted} from {path}", path = path.display())]
    Pem {
        /// The file.
        path: PathBuf,
        /// What was looked for.
        wanted: &'static str,
        /// What is wrong.
        source: rustls::pki_types::pem::Error,
    },
    /// The file holds a certificate that rustls does not accept as a root.
    #[error("{path} holds a certificate that cannot be a root", path = path.display())]
    Root {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: rustls::Error,
    },
    /// No root certificates on this machine: install the package ca-certificates, or give the CA in a file.
    #[error("no root certificates were found on this machine: install ca-certificates, or give a CA file")]
    NoSystemRoots {
        /// The first thing that went wrong while looking, if anything did.
        source: Option<rustls_native_certs::Error>,
    },
    /// The verifier for servers' certificates could not be made from the CA files: they hold no certificate that can be a root.
    #[error("servers cannot be checked against the CA files")]
    Verifier {
        /// What is wrong.
        source: rustls::server::VerifierBuilderError,
    },
    /// The certificate and the key do not belong together, or are of a kind that is not supported.
    #[error("the certificate and private key cannot be used together")]
    Identity(#[source] rustls::Error),
    /// Neither a DNS name nor an IP address.
    #[error("`{name}` cannot be the name of a TLS server: expected a DNS name or an IP address")]
    Name {
        /// What was given.
        name: String,
    },
    /// The verifier for client certificates could not be made from the CA file.
    #[error("client certificates cannot be checked against {path}", path = path.display())]
    ClientRoots {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: rustls::server::VerifierBuilderError,
    },
}
