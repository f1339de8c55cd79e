//! Validates the settings of TLS towards clients.

use std::sync::Arc;

use oroshi_acme::AcmeSettings;
use oroshi_certificates::{ClientNames, Seal};
use oroshi_lookup::{Allow, LookupSettings, SqlTier, StoreKind, StoreSettings};

use super::{Findings, KeyDraft, LookupDraft, expected};
use crate::plan::KeyFrom;
use crate::tls::{TlsPlan, TlsSettings};

/// TLS towards clients, unvalidated.
#[derive(Clone, Debug, Default)]
pub struct TlsDraft {
    /// The settings.
    pub settings: TlsSettings,
    /// ACME, if the gateway orders certificates. Without a look-up in `settings`, certificates are looked up in its
    /// tables.
    pub acme: Option<AcmeSettings>,
}

impl TlsDraft {
    /// Returns settings for a look-up of certificates without a tier.
    #[must_use]
    pub fn lookup_settings() -> LookupSettings {
        // Rows are no targets, and certificates have a cache of their own.
        LookupSettings { memory: None, allow: Allow::any(), ..LookupSettings::new("certificates") }
    }

    pub(super) fn plan(
        mut self,
        stores: &[StoreSettings],
        lookups: &[LookupDraft],
        findings: &mut Findings,
    ) -> TlsPlan {
        let mut looks_in_acme = false;
        if let Some(acme) = &self.acme {
            check_acme(acme, stores, lookups, findings);
            if self.settings.lookup.is_none() {
                looks_in_acme = true;
                self.settings.lookup = Some(lookup_in_acme(acme, stores));
            }
        }
        let settings = &self.settings;
        let checked = settings.handshakes.check();
        checked.mistakes.into_iter().for_each(|(key, why)| findings.add(key, why));
        checked.warnings.into_iter().for_each(|(key, why)| findings.warn(key, why));
        if settings.handshakes.sources.is_empty() && settings.lookup.is_none() {
            findings.add("tls", "there is no certificate: expected `certificates` or `lookup`");
        }
        if let Some(lookup) = &settings.lookup {
            for error in lookup.validate() {
                findings.add(format!("tls.lookup.{}", error.key), error.text);
            }
            let mut store = |key: &str, name: &str, is_it: fn(&StoreKind) -> bool| {
                let fit: Vec<&str> =
                    stores.iter().filter(|store| is_it(&store.kind)).map(|store| &*store.name).collect();
                if !fit.contains(&name) {
                    findings.add(
                        format!("tls.lookup.{key}.store"),
                        format!("there is no such store `{name}`{}", expected(&fit)),
                    );
                }
            };
            if let Some(tier) = &lookup.memcached {
                store("memcached", &tier.store, |kind| matches!(kind, StoreKind::Memcached(_)));
            }
            if let Some(tier) = &lookup.sql {
                store("sql", &tier.store, |kind| matches!(kind, StoreKind::Sql(_)));
            }
            let finder = &settings.finder;
            for (key, is_zero) in [
                ("ttl", finder.ttl.is_zero()),
                ("negative-ttl", finder.negative_ttl.is_zero()),
                ("bytes", finder.bytes == 0),
                ("negative-bytes", finder.negative_bytes == 0),
                ("names-in-flight", finder.names_in_flight == 0),
                ("names-per-second", finder.names_per_second == 0),
            ] {
                if is_zero {
                    findings.add(format!("tls.lookup.{key}"), "0 is too little: expected more");
                }
            }
            if let Some(tier) = lookup.memcached.as_ref().filter(|tier| tier.write_back && settings.seal.is_none()) {
                findings.warn(
                    "tls.lookup.memcached.write-back",
                    format!(
                        "private keys are written to `{}` as they are: expected `tls.seal`, or write-back = false",
                        tier.store
                    ),
                );
            }
        }
        if let Some(secret) = &settings.seal
            && let Err(error) = Seal::new(secret.reveal())
        {
            findings.add("tls.seal", error.to_string());
        }
        let (catalogue, clients) = (Arc::new(checked.catalogue), ClientNames::default());
        TlsPlan { catalogue, settings: self.settings, clients, acme: self.acme, looks_in_acme }
    }
}

/// Returns the look-up of certificates in the tables of ACME.
fn lookup_in_acme(acme: &AcmeSettings, stores: &[StoreSettings]) -> LookupSettings {
    let is_postgres = |store: &StoreSettings| match &store.kind {
        StoreKind::Sql(sql) => sql.url.reveal().starts_with("postgres"),
        StoreKind::Memcached(_) => false,
    };
    let parameter = if stores.iter().any(|store| store.name == acme.store && is_postgres(store)) { "$1" } else { "?" };
    let query = format!("SELECT pem FROM acme_certificate WHERE name = {parameter}");
    LookupSettings { sql: Some(SqlTier { store: acme.store.clone(), query }), ..TlsDraft::lookup_settings() }
}

fn check_acme(acme: &AcmeSettings, stores: &[StoreSettings], lookups: &[LookupDraft], findings: &mut Findings) {
    for mistake in acme.validate() {
        findings.add(format!("acme.{}", mistake.key), mistake.text);
    }
    let is_sql = |store: &&StoreSettings| matches!(store.kind, StoreKind::Sql(_));
    let fit: Vec<&str> = stores.iter().filter(is_sql).map(|store| &*store.name).collect();
    if !fit.contains(&&*acme.store) {
        findings.add("acme.store", format!("there is no SQL store `{}`{}", acme.store, expected(&fit)));
    }
    if let Some(name) = &acme.lookup {
        let by_host = |lookup: &&LookupDraft| lookup.key == KeyDraft::Request(KeyFrom::Host);
        let fit: Vec<&str> = lookups.iter().filter(by_host).map(|lookup| &*lookup.settings.name).collect();
        if !fit.contains(&&**name) {
            findings.add("acme.lookup", format!("there is no look-up `{name}` by host{}", expected(&fit)));
        }
    }
}
