//! Settings of handshakes that every service with TLS has: certificates of files, the default one, the version,
//! tickets.

use std::sync::Arc;
use std::time::Duration;

use oroshi_words::Secret;

use crate::catalogue::{Catalogue, Source};
use crate::certificates::{CertificatesSettings, MinVersion};
use crate::clients::ClientNames;
use crate::tickets::Tickets;

/// Settings of handshakes with certificates of files.
#[derive(Clone, Debug)]
pub struct HandshakeSettings {
    /// Files and folders with certificates.
    pub sources: Vec<Source>,
    /// The name whose certificate serves clients that name none, or an unknown one.
    pub default: Option<String>,
    /// The earliest version.
    pub min_version: MinVersion,
    /// The secret of session tickets; `None`: only this process knows it.
    pub ticket_secret: Option<Secret>,
    /// How long a key of tickets is used.
    pub ticket_window: Duration,
}

impl Default for HandshakeSettings {
    fn default() -> Self {
        HandshakeSettings {
            sources: Vec::new(),
            default: None,
            min_version: MinVersion::default(),
            ticket_secret: None,
            ticket_window: HandshakeSettings::WINDOW,
        }
    }
}

/// The certificates of [`HandshakeSettings`], and what is wrong with them.
#[derive(Debug, Default)]
pub struct CheckedHandshakes {
    /// The certificates of all files; empty if a file has a mistake.
    pub catalogue: Catalogue,
    /// Mistakes: the key, as in `tls.certificates`, and what is wrong.
    pub mistakes: Vec<(&'static str, String)>,
    /// Warnings: the key, and what the user may not have meant.
    pub warnings: Vec<(&'static str, String)>,
}

impl HandshakeSettings {
    /// How long a key of tickets is used, by default.
    pub const WINDOW: Duration = Duration::from_secs(12 * 3600);

    /// Reads the files, and checks the settings.
    #[must_use]
    pub fn check(&self) -> CheckedHandshakes {
        let mut checked = CheckedHandshakes::default();
        match Catalogue::read(&self.sources) {
            Ok(catalogue) => checked.catalogue = catalogue,
            Err(errors) => checked.mistakes.extend(errors.iter().map(|error| ("tls.certificates", error.to_string()))),
        }
        let is_read = checked.mistakes.is_empty();
        for (certificate, file) in checked.catalogue.iter().filter(|(certificate, _)| !certificate.is_valid_now()) {
            let name = certificate.names().next().unwrap_or_default();
            let why = format!("the certificate of {name} in `{}` is not valid now: see its dates", file.display());
            checked.warnings.push(("tls.certificates", why));
        }
        if let Some(name) = self.default.as_ref().filter(|_| is_read)
            && checked.catalogue.get(&name.to_ascii_lowercase()).is_none()
        {
            let why = format!("no certificate of `certificates` is for `{name}`: expected one of their names");
            checked.mistakes.push(("tls.default", why));
        }
        if let Some(secret) = &self.ticket_secret
            && let Err(error) = Tickets::from_secret(secret.reveal(), self.ticket_window)
        {
            checked.mistakes.push(("tls.tickets", error.to_string()));
        }
        if !(Duration::from_secs(60)..=Duration::from_secs(7 * 24 * 3600)).contains(&self.ticket_window) {
            let why = format!("{:?} is no time for a key: expected 1m to 7d", self.ticket_window);
            checked.mistakes.push(("tls.tickets.window", why));
        }
        checked
    }

    /// Returns the tickets of the secret; without one, `of_this_process`.
    #[must_use]
    pub fn tickets(&self, of_this_process: &Tickets) -> Tickets {
        let secret = self.ticket_secret.as_ref();
        let tickets = secret.and_then(|secret| Tickets::from_secret(secret.reveal(), self.ticket_window).ok());
        tickets.unwrap_or_else(|| of_this_process.clone())
    }

    /// Returns settings of all handshakes, for HTTP/2 and HTTP/1.1, with these certificates and no others.
    #[must_use]
    pub fn certificates(&self, catalogue: Arc<Catalogue>, tickets: Tickets) -> CertificatesSettings {
        CertificatesSettings {
            catalogue,
            default: self.default.clone(),
            lookup: None,
            seal: None,
            min_version: self.min_version,
            alpn: vec![b"h2".to_vec(), b"http/1.1".to_vec()],
            tickets,
            challenges: Arc::default(),
            clients: ClientNames::default(),
        }
    }
}
