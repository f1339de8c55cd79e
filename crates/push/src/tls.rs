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
    /// Warnings about the certificates at the start.
    warnings: Vec<String>,
}

impl Tls {
    /// Puts checked settings in force. `None`: the system has no random numbers.
    pub(crate) fn new(settings: HandshakeSettings, checked: CheckedHandshakes) -> Option<Self> {
        let own_tickets = Tickets::of_this_process(settings.ticket_window)?;
        let (current, catalogue, warnings) = (Arc::default(), Mutex::default(), with_keys(checked.warnings));
        let tls = Tls { settings, own_tickets, current, catalogue, warnings };
        tls.put_in_force(checked.catalogue);
        Some(tls)
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

    /// Returns the warnings about the certificates at the start, each with its key.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Reads the files again. New handshakes get the new certificates; connections and tickets stay. Returns how many
    /// certificates there are, and the warnings about them.
    ///
    /// # Errors
    /// Every mistake. The certificates before stay in force then.
    pub fn read_again(&self) -> Result<(usize, Vec<String>), Vec<String>> {
        let CheckedHandshakes { catalogue, mistakes, warnings } = self.settings.check();
        if !mistakes.is_empty() {
            return Err(with_keys(mistakes));
        }
        let count = catalogue.iter().count();
        self.put_in_force(catalogue);
        Ok((count, with_keys(warnings)))
    }

    fn put_in_force(&self, catalogue: Catalogue) {
        let catalogue = Arc::new(catalogue);
        let filed = self.settings.certificates(Arc::clone(&catalogue), self.settings.tickets(&self.own_tickets));
        let before = self.current.get();
        self.current.set(Some(Arc::new(Certificates::new(filed, before.as_deref(), false))));
        *self.catalogue.lock().unwrap_or_else(PoisonError::into_inner) = catalogue;
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
