//! Keys about the listeners of a service: `[tls]` with certificates of files, `[proxy-protocol]`. The gateway and the
//! hub have them.

use std::path::Path;

use oroshi_certificates::{Catalogue, Certificate, HandshakeSettings, MinVersion, Source};
use oroshi_config::values::switch;
use oroshi_config::written::Toml;
use oroshi_config::{SecretSource, Table, secret};
use oroshi_service::{Network, Proxies};
use oroshi_words::Secret;
use oroshi_words::date::http_date;
use oroshi_words::units::parse_time;

/// Reads the keys of `[tls]` that every service has. `folder` is that of the configuration: paths are relative to it.
pub(crate) fn handshakes(table: &Table<'_>, folder: &Path) -> HandshakeSettings {
    let mut own = HandshakeSettings { default: table.text("default"), ..HandshakeSettings::default() };
    for element in table.get("certificates").map(|field| field.each()).unwrap_or_default() {
        if let Some(path) = element.quiet_text() {
            own.sources.push(Source::Path(folder.join(path)));
        } else if let Some(table) = element.table() {
            let path = |key, expected| table.required(key, expected).map(|path| folder.join(path));
            let certificate = path("certificate", "a file with the chain (PEM)");
            let key = path("key", "a file with the private key (PEM)");
            table.finish();
            if let (Some(certificate), Some(key)) = (certificate, key) {
                own.sources.push(Source::Pair { certificate, key });
            }
        }
    }
    table.set("min-version", &mut own.min_version, |text| match text {
        "1.2" => Ok(MinVersion::Tls12),
        "1.3" => Ok(MinVersion::Tls13),
        _ => Err(format!("`{text}` is no version of TLS that can be chosen: expected 1.2 or 1.3")),
    });
    table.within("tickets", |table| {
        own.ticket_secret = key(table);
        table.set("window", &mut own.ticket_window, parse_time);
    });
    own
}

/// Reads a secret from which keys are derived.
pub(crate) fn key(table: &Table<'_>) -> Option<Secret> {
    secret(table, &[("key-env", SecretSource::Variable), ("key-file", SecretSource::File)])
}

/// Writes where certificates of files come from; as comments, what was read there.
pub(crate) fn write_certificates(out: &mut Toml, own: &HandshakeSettings, catalogue: &Catalogue) {
    for (certificate, file) in catalogue.iter() {
        let names: Vec<&str> = certificate.names().take(4).collect();
        out.comment(&format!("{}: {} ({})", file.display(), names.join(", "), validity(certificate)));
    }
    let quoted = |path: &Path| Toml::quoted(&path.display().to_string());
    let source = |source: &Source| match source {
        Source::Path(path) => quoted(path),
        Source::Pair { certificate, key } => {
            format!("{{ certificate = {}, key = {} }}", quoted(certificate), quoted(key))
        }
    };
    if !own.sources.is_empty() {
        let sources: Vec<String> = own.sources.iter().map(source).collect();
        out.bare("certificates", format!("[{}]", sources.join(", ")));
    }
}

/// Writes the default certificate's name, and the earliest version.
pub(crate) fn write_handshakes(out: &mut Toml, own: &HandshakeSettings) {
    if let Some(default) = &own.default {
        out.text("default", default);
    }
    out.text("min-version", if own.min_version == MinVersion::Tls13 { "1.3" } else { "1.2" });
}

/// Writes the table of tickets.
pub(crate) fn write_tickets(out: &mut Toml, own: &HandshakeSettings) {
    out.table("tls.tickets");
    let secret = own.ticket_secret.is_some();
    out.comment(if secret { "a key is set" } else { "without a key, tickets end with this process" });
    out.time("window", own.ticket_window);
}

/// Says until when a certificate is valid.
pub(crate) fn validity(certificate: &Certificate) -> String {
    let end = date(certificate.not_after());
    if certificate.is_valid_now() { format!("valid until {end}") } else { format!("NOT VALID NOW, its end is {end}") }
}

/// Writes a time in seconds since 1970.
pub(crate) fn date(time: i64) -> String {
    String::from_utf8_lossy(&http_date(u64::try_from(time).unwrap_or_default())).into_owned()
}

/// Reads the load balancers in front.
pub(crate) fn proxies(root: &Table<'_>, proxies: &mut Proxies) {
    root.within("proxy-protocol", |table| {
        networks(table, &mut proxies.trusted);
        table.set("trust-unix", &mut proxies.trust_unix, switch);
    });
}

/// Writes the load balancers in front.
pub(crate) fn write_proxies(out: &mut Toml, proxies: &Proxies) {
    out.table("proxy-protocol");
    write_networks(out, &proxies.trusted);
    out.bare("trust-unix", proxies.trust_unix);
}

/// Reads the networks of trusted peers.
pub(crate) fn networks(table: &Table<'_>, trusted: &mut Vec<Network>) {
    let Some(field) = table.get("trusted") else { return };
    for text in field.texts().unwrap_or_default() {
        match text.parse() {
            Ok(network) => trusted.push(network),
            Err(error) => field.wrong(format!("{error}")),
        }
    }
}

/// Writes the networks of trusted peers.
pub(crate) fn write_networks(out: &mut Toml, trusted: &[Network]) {
    let trusted: Vec<String> = trusted.iter().map(ToString::to_string).collect();
    out.texts("trusted", trusted.iter().map(String::as_str));
}
