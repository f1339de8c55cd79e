//! TLS towards clients: settings in force, and what a reload keeps of them.

use std::sync::Arc;

use oroshi_acme::{Acme, AcmeSettings, Tools};
use oroshi_certificates::{
    Catalogue, Certificates, CertificatesSettings, Challenges, ClientNames, Current, FinderSettings, HandshakeSettings,
    Issuer, Seal, Tickets,
};
use oroshi_lookup::{Lookup, LookupSettings, StartError, StoreKind, StoreSettings, Stores};
use oroshi_net::Shutdown;
use oroshi_words::Secret;

use crate::plan::Plan;

/// Validated TLS towards clients.
#[derive(Clone, Debug)]
pub struct TlsPlan {
    /// The certificates of files.
    pub catalogue: Arc<Catalogue>,
    /// The settings.
    pub settings: TlsSettings,
    /// The server names that ask their clients for a certificate.
    pub clients: ClientNames,
    /// ACME, if the gateway orders certificates.
    pub acme: Option<AcmeSettings>,
    /// Whether `lookup` is the default one, in the tables of ACME: these may not exist yet.
    pub looks_in_acme: bool,
}

/// Settings of TLS towards clients.
#[derive(Clone, Debug, Default)]
pub struct TlsSettings {
    /// Certificates of files, the default one, the version, tickets.
    pub handshakes: HandshakeSettings,
    /// The look-up of certificates in stores, without a memory tier.
    pub lookup: Option<LookupSettings>,
    /// Its settings.
    pub finder: FinderSettings,
    /// The secret of sealed rows.
    pub seal: Option<Secret>,
    /// Whether requests over plain HTTP are redirected to TLS.
    pub redirects: bool,
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
        let tickets = Tickets::of_this_process(HandshakeSettings::WINDOW)?;
        Some(TlsState { current: Arc::default(), challenges: Arc::default(), tickets })
    }
}

impl TlsPlan {
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
        // Drafts check the length of the secrets.
        let filed = own.handshakes.certificates(Arc::clone(&self.catalogue), own.handshakes.tickets(&state.tickets));
        let settings = CertificatesSettings {
            lookup: lookup.map(|lookup| (lookup, own.finder.clone())),
            seal: own.seal.as_ref().and_then(|secret| Seal::new(secret.reveal()).ok()),
            challenges: Arc::clone(&state.challenges),
            clients: self.clients.clone(),
            ..filed
        };
        Ok(Arc::new(Certificates::new(settings, before.map(|(_, before)| before), keeps)))
    }
}

/// Parts of the plan that ACME depends on, beside its settings.
pub(crate) struct AcmeParts<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) lookups: &'a [Lookup],
    pub(crate) stores: &'a Stores,
    pub(crate) state: &'a TlsState,
    pub(crate) shutdown: &'a Shutdown,
}

impl AcmeParts<'_> {
    /// Prepares the ACME of a plan, if it has any. It orders nothing before [`AcmeParts::put_in_force`].
    ///
    /// `before`: the plan before and its ACME, which goes on if nothing that it depends on changes.
    pub(crate) fn start(
        &self,
        before: Option<(&Plan, &Arc<Acme>, &[Lookup])>,
    ) -> Result<Option<Arc<Acme>>, oroshi_acme::StartError> {
        let Some((tls, settings)) = self.plan.tls.as_ref().and_then(|tls| Some((tls, tls.acme.as_ref()?))) else {
            return Ok(None);
        };
        let seal = tls.settings.seal.as_ref();
        let lookup = named(self.lookups, settings);
        if let Some((was, acme, lookups)) = before
            && acme.settings() == settings
            && was.tls.as_ref().and_then(|tls| tls.settings.seal.as_ref()) == seal
            && named(lookups, settings).map(Lookup::settings) == lookup.map(Lookup::settings)
        {
            return Ok(Some(Arc::clone(acme)));
        }
        let current = Arc::clone(&self.state.current);
        let tools = Tools {
            stores: self.stores.clone(),
            store_url: url(&self.plan.stores, &settings.store),
            lookup: lookup.cloned(),
            // Drafts check its length.
            seal: seal.and_then(|secret| Seal::new(secret.reveal()).ok()),
            challenges: Arc::clone(&self.state.challenges),
            issued: Box::new(move |name| {
                if let Some(certificates) = current.get() {
                    certificates.purge(name);
                }
            }),
        };
        Acme::start(settings.clone(), tools, self.shutdown).map(Some)
    }

    /// Lets the prepared ACME order, and ends the one before if it is another.
    pub(crate) fn put_in_force(&self, acme: Option<&Arc<Acme>>, before: Option<&Arc<Acme>>) {
        if let Some(before) = before.filter(|before| acme.is_none_or(|acme| !Arc::ptr_eq(acme, before))) {
            before.end();
        }
        self.state.challenges.set_issuer(acme.map(|acme| Arc::clone(acme) as Arc<dyn Issuer>));
        if let Some(acme) = acme {
            if let Err(error) = acme.set_stores(self.stores, &url(&self.plan.stores, &acme.settings().store)) {
                tracing::error!("{error}");
            }
            acme.begin();
        }
    }
}

/// Returns the look-up that allows names.
fn named<'l>(lookups: &'l [Lookup], settings: &AcmeSettings) -> Option<&'l Lookup> {
    let name = settings.lookup.as_deref()?;
    lookups.iter().find(|lookup| lookup.settings().name == name)
}

/// Returns the URL of an SQL store.
fn url(stores: &[StoreSettings], name: &str) -> String {
    let found = stores.iter().find(|store| store.name == name);
    match found.map(|store| &store.kind) {
        Some(StoreKind::Sql(sql)) => sql.url.reveal().to_owned(),
        _ => String::new(),
    }
}
