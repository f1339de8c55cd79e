//! The certificates of a server, by the name that a client asks for.
//!
//! **What it knows**: certificates with their names and keys, files, rows of stores (plain or sealed), the settings of
//! a handshake, session tickets, who asks clients for certificates, answers to challenges of certificate authorities.
//!
//! **What it does not know**: HTTP, listeners, configuration files, how certificates are issued.
//!
//! # Where to read
//!
//! 1. [`Certificates`] (`certificates`): chooses the settings of each handshake. [`CertificatesSettings`].
//! 2. [`Certificate`] (`certificate`): a chain with its key. [`Catalogue`] (`catalogue`): those of files and folders.
//! 3. `finder`: looks names up in the stores, once for all handshakes that wait, on `cache`, which has no I/O and no
//!    clock. [`Seal`] (`seal`): encrypted rows.
//! 4. [`Tickets`] (`tickets`): resumption across threads, processes and machines.
//! 5. [`Challenges`] (`challenges`): the interface for issuing certificates.
//! 6. [`HandshakeSettings`] (`handshakes`): what every service with TLS sets, checked.
//! 7. [`ClientNames`] (`clients`): which names ask their clients for certificates.

mod cache;
mod catalogue;
mod certificate;
mod certificates;
mod challenges;
mod clients;
mod counts;
mod finder;
mod handshakes;
mod seal;
mod tickets;

pub use catalogue::{Catalogue, CatalogueError, Source};
pub use certificate::{Certificate, CertificateError};
pub use certificates::{Certificates, CertificatesSettings, Current, MinVersion};
pub use challenges::{ACME_TLS_ALPN, Challenges, Issuer, PendingAnswer};
pub use clients::{ClientNames, NamePattern};
pub use counts::CertificateCounts;
pub use finder::FinderSettings;
pub use handshakes::{CheckedHandshakes, HandshakeSettings};
pub use seal::{Seal, SealError, SecretError};
pub use tickets::Tickets;
