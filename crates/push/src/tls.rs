//! TLS towards clients: the certificates in force, which are read again while listeners stay.

use std::sync::{Arc, Mutex, PoisonError};

use oroshi_certificates::{
    Catalogue, CertificateCounts, Certificates, CheckedHandshakes, Current, HandshakeSettings, Tickets,
};
use oroshi_net::ServerTls;

/// TLS towards clients.
#[derive(Debug)]
pub struct Tls {
    settings: HandshakeSettings,
    /// The tickets of settings without a secret.
    own_tickets: Tickets,
    current: Arc<Current>,
    /// The certificates in force.
    catalogue: Mutex<Arc<Catalogue>>,
    /// What is odd about them.
    warnings: Vec<String>,
}

impl Tls {
    /// Puts checked settings in force. `None`: the system has no random numbers.
    pub(crate) fn new(settings: HandshakeSettings, checked: CheckedHandshakes) -> Option<Self> {
        let own_tickets = Tickets::of_this_process(settings.ticket_window)?;
        let (catalogue, warnings) = (Arc::new(checked.catalogue), with_keys(checked.warnings));
        let (current, tickets) = (Arc::<Current>::default(), settings.tickets(&own_tickets));
        let filed = settings.certificates(Arc::clone(&catalogue), tickets);
        current.set(Some(Arc::new(Certificates::new(filed, None, false))));
        Some(Tls { settings, own_tickets, current, catalogue: Mutex::new(catalogue), warnings })
    }

    /// Returns the settings.
    #[must_use]
    pub fn settings(&self) -> &HandshakeSettings {
        &self.settings
    }

    /// Returns the certificates in force.
    #[must_use]
    pub fn catalogue(&self) -> Arc<Catalogue> {
        Arc::clone(&self.catalogue.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns what is odd about the certificates at the start, each with its key.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Reads the files again. New handshakes get the new certificates; connections and tickets stay. Returns how many
    /// certificates there are, and what is odd about them.
    ///
    /// # Errors
    /// Every mistake. The certificates before stay in force then.
    pub fn read_again(&self) -> Result<(usize, Vec<String>), Vec<String>> {
        let CheckedHandshakes { catalogue, mistakes, warnings } = self.settings.check();
        if !mistakes.is_empty() {
            return Err(with_keys(mistakes));
        }
        let (count, catalogue) = (catalogue.iter().count(), Arc::new(catalogue));
        let filed = self.settings.certificates(Arc::clone(&catalogue), self.settings.tickets(&self.own_tickets));
        *self.catalogue.lock().unwrap_or_else(PoisonError::into_inner) = catalogue;
        let before = self.current.get();
        self.current.set(Some(Arc::new(Certificates::new(filed, before.as_deref(), false))));
        Ok((count, with_keys(warnings)))
    }

    /// Returns what a listener asks for the settings of each handshake.
    pub(crate) fn server(&self) -> ServerTls {
        ServerTls::chosen(Arc::clone(&self.current) as _)
    }

    /// Returns how handshakes ended.
    pub(crate) fn counts(&self) -> CertificateCounts {
        self.current.get().map(|certificates| certificates.counts()).unwrap_or_default()
    }
}

fn with_keys(findings: Vec<(&'static str, String)>) -> Vec<String> {
    findings.into_iter().map(|(key, why)| format!("{key}: {why}")).collect()
}
