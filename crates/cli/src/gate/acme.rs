//! The table `[acme]`: reading its keys, and writing what is in force.

use std::path::Path;
use std::time::Duration;

use oroshi_acme::{AcmeSettings, ChallengeKind, ExternalAccount};
use oroshi_config::values::{number, switch, text};
use oroshi_config::written::Toml;
use oroshi_config::{SecretSource, Table, secret};
use oroshi_gate::Plan;
use oroshi_net::tls::Roots;
use oroshi_words::units::parse_time;

use super::keys::rate;

/// Reads the table. `folder` is that of the configuration: paths are relative to it.
pub(super) fn read(table: &Table<'_>, folder: &Path) -> AcmeSettings {
    let mut settings = AcmeSettings { store: table.text("store").unwrap_or_default(), ..AcmeSettings::default() };
    table.set("directory", &mut settings.directory, text);
    settings.contact = table.texts("contact");
    table.set("agree-to-terms", &mut settings.agrees_to_terms, switch);
    settings.account_key = table.text("account-key").map(|path| folder.join(path)).unwrap_or_default();
    table.within("external-account", |table| {
        let key_id = table.required("key-id", "the identifier that the authority gave");
        let key = secret(table, &[("mac-key-env", SecretSource::Variable), ("mac-key-file", SecretSource::File)]);
        if let (Some(key_id), Some(mac_key)) = (key_id, key) {
            settings.external_account = Some(ExternalAccount { key_id, mac_key });
        }
    });
    table.set("challenge", &mut settings.challenge, |text| {
        let known = [ChallengeKind::Http01, ChallengeKind::TlsAlpn01];
        let found = known.into_iter().find(|kind| kind.name() == text);
        found.ok_or_else(|| format!("`{text}` is no challenge: expected http-01 or tls-alpn-01"))
    });
    settings.profile = table.text("profile");
    let files: Vec<_> = table.texts("ca").iter().map(|file| folder.join(file)).collect();
    settings.roots = match table.read("system-roots", switch) {
        _ if files.is_empty() => Roots::System,
        Some(true) => Roots::SystemAnd(files),
        _ => Roots::Only(files),
    };
    settings.names = table.texts("names");
    settings.lookup = table.text("lookup");
    for (key, count, window) in [
        ("orders", &mut settings.orders, &mut settings.orders_window),
        ("new-names", &mut settings.new_names, &mut settings.new_names_window),
    ] {
        if let Some(rate) = table.read(key, rate) {
            (*count, *window) = (rate.count, rate.period);
        }
    }
    table.set("orders-at-once", &mut settings.orders_at_once, number);
    table.set("order-timeout", &mut settings.order_timeout, parse_time);
    settings
}

/// Writes what is in force.
pub(super) fn write(out: &mut Toml, plan: &Plan) {
    let Some(acme) = plan.tls.as_ref().and_then(|tls| tls.acme.as_ref()) else { return };
    out.table("acme");
    out.text("directory", &acme.directory);
    out.texts("contact", acme.contact.iter().map(String::as_str));
    out.bare("agree-to-terms", acme.agrees_to_terms);
    out.text("account-key", &acme.account_key.display().to_string());
    out.comment(if acme.external_account.is_some() { "an external account is set" } else { "no external account" });
    out.text("challenge", acme.challenge.name());
    if let Some(profile) = &acme.profile {
        out.text("profile", profile);
    }
    if let Roots::Only(files) | Roots::SystemAnd(files) = &acme.roots {
        let files: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
        out.texts("ca", files.iter().map(String::as_str));
    }
    out.bare("system-roots", matches!(acme.roots, Roots::System | Roots::SystemAnd(_)));
    out.text("store", &acme.store);
    out.texts("names", acme.names.iter().map(String::as_str));
    if let Some(lookup) = &acme.lookup {
        out.text("lookup", lookup);
    }
    let rate = |count: u32, window: Duration| format!("{count}/{}s", window.as_secs());
    out.text("orders", &rate(acme.orders, acme.orders_window));
    out.text("new-names", &rate(acme.new_names, acme.new_names_window));
    out.bare("orders-at-once", acme.orders_at_once);
    out.time("order-timeout", acme.order_timeout);
}
