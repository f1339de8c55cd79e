//! The table `[tls]`: reading its keys, writing what is in force, and sealing rows.

use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use oroshi_certificates::{Certificate, MinVersion, Seal, Source};
use oroshi_config::values::{number, switch, text};
use oroshi_config::written::Toml;
use oroshi_config::{SecretSource, Table, secret};
use oroshi_gate::route::HostPattern;
use oroshi_gate::{ClientRule, ClientSettings, Plan, TlsDraft};
use oroshi_lookup::{MemcachedTier, SqlTier};
use oroshi_words::Secret;
use oroshi_words::date::http_date;
use oroshi_words::units::parse_time;
use zeroize::Zeroizing;

/// The most bytes of a text to seal.
const ROW_BYTES: u64 = 1 << 20;

/// Reads the table. `folder` is that of the configuration: paths are relative to it.
pub(super) fn read(table: &Table<'_>, folder: &Path) -> TlsDraft {
    let mut draft = TlsDraft::default();
    let own = &mut draft.settings;
    own.default = table.text("default");
    for element in table.get("certificates").map(|field| field.each()).unwrap_or_default() {
        if let Some(path) = element.quiet_text() {
            draft.certificates.push(Source::Path(folder.join(path)));
        } else if let Some(table) = element.table() {
            let path = |key, expected| table.required(key, expected).map(|path| folder.join(path));
            let certificate = path("certificate", "a file with the chain (PEM)");
            let key = path("key", "a file with the private key (PEM)");
            table.finish();
            if let (Some(certificate), Some(key)) = (certificate, key) {
                draft.certificates.push(Source::Pair { certificate, key });
            }
        }
    }
    table.set("min-version", &mut own.min_version, |text| match text {
        "1.2" => Ok(MinVersion::Tls12),
        "1.3" => Ok(MinVersion::Tls13),
        _ => Err(format!("`{text}` is no version of TLS that can be chosen: expected 1.2 or 1.3")),
    });
    table.set("redirect-http", &mut own.redirects, switch);
    table.within("seal", |table| own.seal = key(table));
    table.within("tickets", |table| {
        own.ticket_secret = key(table);
        table.set("window", &mut own.ticket_window, parse_time);
    });
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

fn key(table: &Table<'_>) -> Option<Secret> {
    secret(table, &[("key-env", SecretSource::Variable), ("key-file", SecretSource::File)])
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
    for (certificate, file) in tls.catalogue.iter() {
        let names: Vec<&str> = certificate.names().take(4).collect();
        out.comment(&format!("{}: {} ({})", file.display(), names.join(", "), validity(certificate)));
    }
    for host in hosts(plan) {
        out.comment(&format!("{host}: {}", served_by(plan, host)));
    }
    if let Some(default) = &own.default {
        out.text("default", default);
    }
    out.text("min-version", if own.min_version == MinVersion::Tls13 { "1.3" } else { "1.2" });
    out.bare("redirect-http", own.redirects);
    out.comment(if own.seal.is_some() { "rows may be sealed" } else { "no key for sealed rows" });
    out.table("tls.tickets");
    let secret = own.ticket_secret.is_some();
    out.comment(if secret { "a key is set" } else { "without a key, tickets end with this process" });
    out.time("window", own.ticket_window);
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
    match (tls.catalogue.get(host), &tls.settings.lookup, &tls.settings.default) {
        (Some((certificate, file)), ..) => {
            format!("the certificate of {}, {}", file.display(), validity(certificate))
        }
        (None, Some(_), _) => "the certificate that tls.lookup finds in the handshake".to_owned(),
        (None, None, Some(default)) => format!("no certificate of its own: clients get the one of {default}"),
        (None, None, None) => "no certificate: handshakes are refused".to_owned(),
    }
}

fn validity(certificate: &Certificate) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64);
    let end = date(certificate.not_after());
    if certificate.is_valid(now) { format!("valid until {end}") } else { format!("NOT VALID NOW, its end is {end}") }
}

/// Writes a time in seconds since 1970.
fn date(time: i64) -> String {
    String::from_utf8_lossy(&http_date(u64::try_from(time).unwrap_or_default())).into_owned()
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
