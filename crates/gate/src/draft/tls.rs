//! Validates the settings of TLS towards clients.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use oroshi_certificates::{Catalogue, ClientNames, Seal, Source, Tickets};
use oroshi_lookup::{Allow, LookupSettings, StoreKind, StoreSettings};

use super::{Findings, expected};
use crate::tls::{TlsPlan, TlsSettings};

/// TLS towards clients, unvalidated.
#[derive(Clone, Debug, Default)]
pub struct TlsDraft {
    /// Files and folders with certificates.
    pub certificates: Vec<Source>,
    /// The settings.
    pub settings: TlsSettings,
}

impl TlsDraft {
    /// Returns settings for a look-up of certificates without a tier.
    #[must_use]
    pub fn lookup_settings() -> LookupSettings {
        // Rows are no targets, and certificates have a cache of their own.
        LookupSettings { memory: None, allow: Allow::any(), ..LookupSettings::new("certificates") }
    }

    pub(super) fn plan(self, stores: &[StoreSettings], findings: &mut Findings) -> TlsPlan {
        let settings = &self.settings;
        let catalogue = Catalogue::read(&self.certificates).unwrap_or_else(|errors| {
            errors.iter().for_each(|error| findings.add("tls.certificates", error.to_string()));
            Catalogue::default()
        });
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64);
        for (certificate, file) in catalogue.iter().filter(|(certificate, _)| !certificate.is_valid(now)) {
            let name = certificate.names().next().unwrap_or_default();
            let why = format!("the certificate of {name} in `{}` is not valid now: see its dates", file.display());
            findings.warn("tls.certificates", why);
        }
        if self.certificates.is_empty() && settings.lookup.is_none() {
            findings.add("tls", "there is no certificate: expected `certificates` or `lookup`");
        }
        if let Some(name) = &settings.default
            && catalogue.get(&name.to_ascii_lowercase()).is_none()
        {
            findings.add(
                "tls.default",
                format!("no certificate of `certificates` is for `{name}`: expected one of their names"),
            );
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
        if let Some(secret) = &settings.ticket_secret
            && let Err(error) = Tickets::from_secret(secret.reveal(), settings.ticket_window)
        {
            findings.add("tls.tickets", error.to_string());
        }
        if !(Duration::from_secs(60)..=Duration::from_secs(7 * 24 * 3600)).contains(&settings.ticket_window) {
            findings.add(
                "tls.tickets.window",
                format!("{:?} is no time for a key: expected 1m to 7d", settings.ticket_window),
            );
        }
        TlsPlan { catalogue: Arc::new(catalogue), settings: self.settings, clients: ClientNames::default() }
    }
}
