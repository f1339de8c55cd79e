//! TLS towards clients: settings in force, and what a reload keeps of them.

use std::sync::Arc;
use std::time::Duration;

use oroshi_certificates::{
    Catalogue, Certificates, CertificatesSettings, Challenges, ClientNames, Current, FinderSettings, MinVersion, Seal,
    Tickets,
};
use oroshi_lookup::{Lookup, LookupSettings, StartError, Stores};
use oroshi_words::Secret;

/// Validated TLS towards clients.
#[derive(Clone, Debug)]
pub struct TlsPlan {
    /// The certificates of files.
    pub catalogue: Arc<Catalogue>,
    /// The settings.
    pub settings: TlsSettings,
    /// The server names that ask their clients for a certificate.
    pub clients: ClientNames,
}

/// Settings of TLS towards clients beside the certificates of files.
#[derive(Clone, Debug)]
pub struct TlsSettings {
    /// The name whose certificate serves clients that name none, or an unknown one.
    pub default: Option<String>,
    /// The look-up of certificates in stores, without a memory tier.
    pub lookup: Option<LookupSettings>,
    /// Its settings.
    pub finder: FinderSettings,
    /// The secret of sealed rows.
    pub seal: Option<Secret>,
    /// The earliest version.
    pub min_version: MinVersion,
    /// The secret of session tickets; `None`: only this process knows it.
    pub ticket_secret: Option<Secret>,
    /// How long a key of tickets is used.
    pub ticket_window: Duration,
    /// Whether requests over plain HTTP are redirected to TLS.
    pub redirects: bool,
}

impl Default for TlsSettings {
    fn default() -> Self {
        TlsSettings {
            default: None,
            lookup: None,
            finder: FinderSettings::default(),
            seal: None,
            min_version: MinVersion::default(),
            ticket_secret: None,
            ticket_window: TlsPlan::WINDOW,
            redirects: false,
        }
    }
}

/// State of TLS that all generations share.
#[derive(Debug)]
pub(crate) struct TlsState {
    /// What listeners ask.
    pub(crate) current: Arc<Current>,
    pub(crate) challenges: Arc<Challenges>,
    /// Tickets for settings without a secret.
    tickets: Tickets,
}

impl TlsState {
    /// `None`: the system has no random numbers.
    pub(crate) fn new() -> Option<Self> {
        let tickets = Tickets::of_this_process(TlsPlan::WINDOW)?;
        Some(TlsState { current: Arc::default(), challenges: Arc::default(), tickets })
    }
}

impl TlsPlan {
    /// How long a key of tickets is used, by default.
    pub const WINDOW: Duration = Duration::from_secs(12 * 3600);

    /// Prepares the certificates of a plan. The cache of the ones before stays if the look-up is the same.
    pub(crate) fn start(
        &self,
        stores: &Stores,
        state: &TlsState,
        before: Option<(&TlsPlan, &Certificates)>,
    ) -> Result<Arc<Certificates>, StartError> {
        let own = &self.settings;
        let was = before.map(|(plan, _)| &plan.settings);
        let same = was.is_some_and(|was| was.lookup == own.lookup && was.finder == own.finder);
        let keeps = same && was.is_some_and(|was| was.seal == own.seal);
        let lookup = match (&own.lookup, before.and_then(|(_, before)| before.lookup()).filter(|_| keeps)) {
            (None, _) => None,
            (Some(_), Some(known)) => Some(known.clone()),
            (Some(settings), None) => Some(Lookup::start(settings.clone(), stores)?),
        };
        // Drafts check the length of both secrets.
        let tickets = own.ticket_secret.as_ref();
        let tickets = tickets.and_then(|secret| Tickets::from_secret(secret.reveal(), own.ticket_window).ok());
        let settings = CertificatesSettings {
            catalogue: Arc::clone(&self.catalogue),
            default: own.default.clone(),
            lookup: lookup.map(|lookup| (lookup, own.finder.clone())),
            seal: own.seal.as_ref().and_then(|secret| Seal::new(secret.reveal()).ok()),
            min_version: own.min_version,
            alpn: vec![b"h2".to_vec(), b"http/1.1".to_vec()],
            tickets: tickets.unwrap_or_else(|| state.tickets.clone()),
            challenges: Arc::clone(&state.challenges),
            clients: self.clients.clone(),
        };
        Ok(Arc::new(Certificates::new(settings, before.map(|(_, before)| before), keeps)))
    }
}
