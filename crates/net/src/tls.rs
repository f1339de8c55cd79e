//! TLS at either end, with rustls.

mod client;
mod clients;
mod error;
mod facts;
mod revocation;
mod server;
mod session;

pub use client::{ClientTls, ClientTlsOptions, Roots};
pub use clients::ClientAuthorities;
pub use error::{TlsConfigError, TlsError};
pub use facts::{ClientCertificate, TlsFacts};
pub use revocation::{RevocationList, RevocationListError, RevocationOptions};
pub use server::{Choice, ChooseTls, ServerTls, ServerTlsOptions};
pub(crate) use session::ServerSession;

use std::path::Path;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// Reads every certificate in a PEM file, in order; at least one.
fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsConfigError> {
    let bad = |source| TlsConfigError::Pem { path: path.to_owned(), wanted: "a certificate", source };
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_file_iter(path).map_err(bad)?.collect();
    let certificates = certificates.map_err(bad)?;
    if certificates.is_empty() {
        return Err(bad(rustls::pki_types::pem::Error::NoItemsFound));
    }
    Ok(certificates)
}

/// Reads the first private key in a PEM file.
fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsConfigError> {
    PrivateKeyDer::from_pem_file(path).map_err(|source| TlsConfigError::Pem {
        path: path.to_owned(),
        wanted: "a private key",
        source,
    })
}
