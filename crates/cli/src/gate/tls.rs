//! The table `[tls]`: reading its keys, writing what is in force, and sealing rows.

use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use oroshi_certificates::{Certificate, Seal};
use oroshi_config::Table;
use oroshi_config::values::{number, switch, text};
use oroshi_config::written::Toml;
use oroshi_gate::route::HostPattern;
use oroshi_gate::{ClientRule, ClientSettings, Plan, TlsDraft};
use oroshi_lookup::{MemcachedTier, SqlTier};
use oroshi_words::units::parse_time;
use zeroize::Zeroizing;

use crate::listener_keys::{self, date, validity};

/// The most bytes of a text to seal.
const ROW_BYTES: u64 = 1 << 20;

/// Reads the table. `folder` is that of the configuration: paths are relative to it.
pub(super) fn read(table: &Table<'_>, folder: &Path) -> TlsDraft {
    let mut draft = TlsDraft::default();
    let own = &mut draft.settings;
    own.handshakes = listener_keys::handshakes(table, folder);
    table.set("redirect-http", &mut own.redirects, switch);
    table.within("seal", |table| own.seal = listener_keys::key(table));
    table.within("lookup", |table| {
        let mut settings = TlsDraft::lookup_settings();
        let finder = &mut own.finder;
        table.set("ttl", &mut finder.ttl, parse_time);
        table.set("negative-ttl", &mut finder.negative_ttl, parse_time);
        table.set("stale-if-error", &mut finder.stale_if_error, parse_time);
        table.set("bytes", &mut finder.bytes, number);
        table.set("negative-bytes", &mut finder.negative_bytes, number);
        table.set("names-in-flight", &mut finder.names_in_flight, number);
        table.set("names-per-second", &mut finder.names_per_second, number);
        table.set("wildcards", &mut finder.wildcards, switch);
        finder.folder = table.text("folder").map(|path| folder.join(path));
        table.set("wait", &mut settings.wait, parse_time);
        table.within("memcached", |table| {
            let mut tier = MemcachedTier::new(table.text("store").unwrap_or_default());
            table.set("prefix", &mut tier.prefix, text);
            table.set("ttl", &mut tier.ttl, parse_time);
            // Rows have private keys.
            tier.write_back = false;
            table.set("write-back", &mut tier.write_back, switch);
            settings.memcached = Some(tier);
        });
        table.within("sql", |table| {
            let (store, query) = (table.text("store").unwrap_or_default(), table.text("query").unwrap_or_default());
            settings.sql = Some(SqlTier { store, query });
        });
        own.lookup = Some(settings);
    });
    draft
}

/// Reads what a route asks of its clients' certificates.
pub(super) fn clients(table: &Table<'_>, folder: &Path) -> ClientSettings {
    let mut clients = ClientSettings::default();
    table.set("mode", &mut clients.required, |text| match text {
        "required" => Ok(true),
        "optional" => Ok(false),
        _ => Err(format!("`{text}` is no way to ask for a certificate: expected required or optional")),
    });
    let files = |key| table.texts(key).iter().map(|file| folder.join(file)).collect();
    (clients.files, clients.revocation.files) = (files("ca"), files("crl"));
    table.set("crl-expired", &mut clients.revocation.accept_expired, |text| match text {
        "refuse" => Ok(false),
        "accept" => Ok(true),
        _ => Err(format!("`{text}` says nothing about an expired list: expected refuse or accept")),
    });
    clients
}

/// Writes what a route asks of its clients' certificates.
pub(super) fn write_clients(out: &mut Toml, rule: &ClientRule) {
    let (clients, lists) = (&rule.settings, &rule.settings.revocation);
    out.table("route.client-certificate");
    out.text("mode", if clients.required { "required" } else { "optional" });
    let names = |files: &[PathBuf]| files.iter().map(|file| file.display().to_string()).collect::<Vec<_>>();
    out.texts("ca", names(&clients.files).iter().map(String::as_str));
    if lists.files.is_empty() {
        return;
    }
    for list in rule.authorities.lists() {
        let (path, issuer, revoked) = (list.path().display(), list.issuer(), list.revoked());
        let end = date(list.next_update());
        out.comment(&format!("{path}: the list of {issuer}, {revoked} revoked, the next one is due on {end}"));
    }
    out.texts("crl", names(&lists.files).iter().map(String::as_str));
    out.text("crl-expired", if lists.accept_expired { "accept" } else { "refuse" });
}

/// Writes what is in force, and which certificate serves each host of the routes.
pub(super) fn write(out: &mut Toml, plan: &Plan) {
    let Some(tls) = &plan.tls else { return };
    let own = &tls.settings;
    out.table("tls");
    listener_keys::write_certificates(out, &own.handshakes, &tls.catalogue);
    for host in hosts(plan) {
        out.comment(&format!("{host}: {}", served_by(plan, host)));
    }
    listener_keys::write_handshakes(out, &own.handshakes);
    out.bare("redirect-http", own.redirects);
    out.comment(if own.seal.is_some() { "rows may be sealed" } else { "no key for sealed rows" });
    listener_keys::write_tickets(out, &own.handshakes);
    let Some(lookup) = &own.lookup else { return };
    let finder = &own.finder;
    out.table("tls.lookup");
    out.time("ttl", finder.ttl);
    out.time("negative-ttl", finder.negative_ttl);
    out.time("stale-if-error", finder.stale_if_error);
    out.bare("bytes", finder.bytes);
    out.bare("negative-bytes", finder.negative_bytes);
    out.bare("names-in-flight", finder.names_in_flight);
    out.bare("names-per-second", finder.names_per_second);
    out.bare("wildcards", finder.wildcards);
    if let Some(folder) = &finder.folder {
        out.text("folder", &folder.display().to_string());
    }
    out.time("wait", lookup.wait);
    if let Some(tier) = &lookup.memcached {
        out.table("tls.lookup.memcached");
        out.text("store", &tier.store);
        out.text("prefix", &tier.prefix);
        out.time("ttl", tier.ttl);
        out.bare("write-back", tier.write_back);
    }
    if let Some(tier) = &lookup.sql {
        out.table("tls.lookup.sql");
        out.text("store", &tier.store);
        out.text("query", &tier.query);
    }
}

/// Returns the hosts that routes name, without wildcards.
fn hosts(plan: &Plan) -> Vec<&str> {
    let matchers = (0..plan.routes.len()).filter_map(|number| plan.table.matcher(number));
    let mut hosts: Vec<&str> = matchers
        .flat_map(|matcher| &matcher.hosts)
        .filter_map(|host| match host {
            HostPattern::Exact(name) => Some(&**name),
            HostPattern::Below(_) => None,
        })
        .collect();
    hosts.sort_unstable();
    hosts.dedup();
    hosts
}

fn served_by(plan: &Plan, host: &str) -> String {
    let Some(tls) = &plan.tls else { return String::new() };
    match (tls.catalogue.get(host), &tls.settings.lookup, &tls.settings.handshakes.default) {
        (Some((certificate, file)), ..) => {
            format!("the certificate of {}, {}", file.display(), validity(certificate))
        }
        (None, Some(_), _) => "the certificate that tls.lookup finds in the handshake".to_owned(),
        (None, None, Some(default)) => format!("no certificate of its own: clients get the one of {default}"),
        (None, None, None) => "no certificate: handshakes are refused".to_owned(),
    }
}

/// Why a row could not be sealed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SealingError {
    /// Name a secret in the configuration.
    #[error("the configuration has no key to seal with: expected tls.seal = {{ key-env = \"NAME\" }}")]
    NoKey,
    /// Correct the secret.
    #[error("tls.seal: {0}")]
    Secret(String),
    /// Check the file.
    #[error("cannot read {0}: {1}")]
    Read(String, io::Error),
    /// Correct the chain or its key.
    #[error("{0}: {1}")]
    Certificate(String, String),
    /// The system has no random numbers.
    #[error("the system has no random numbers (getrandom)")]
    Random,
    /// The reader of the output has gone.
    #[error("cannot write the row: {0}")]
    Output(io::Error),
}

/// Seals a chain with its key, and prints the row.
pub(super) fn seal(file: Option<&PathBuf>, draft: Option<TlsDraft>) -> Result<(), SealingError> {
    let secret = draft.and_then(|draft| draft.settings.seal).ok_or(SealingError::NoKey)?;
    let seal = Seal::new(secret.reveal()).map_err(|error| SealingError::Secret(error.to_string()))?;
    let name = file.map_or("standard input".to_owned(), |file| format!("`{}`", file.display()));
    let mut text = Zeroizing::new(Vec::new());
    let read = match file {
        Some(file) => std::fs::File::open(file).and_then(|file| file.take(ROW_BYTES).read_to_end(&mut text)),
        None => io::stdin().lock().take(ROW_BYTES).read_to_end(&mut text),
    };
    read.map_err(|error| SealingError::Read(name.clone(), error))?;
    // A row that no gateway could use is of no use sealed either.
    Certificate::from_pem(&text).map_err(|error| SealingError::Certificate(name, error.to_string()))?;
    let row = seal.seal(&text).map_err(|_| SealingError::Random)?;
    let mut out = io::stdout().lock();
    writeln!(out, "{row}").and_then(|()| out.flush()).map_err(SealingError::Output)
}
