//! Settings: plain data with defaults, and a check that returns all mistakes at once.

use std::path::PathBuf;
use std::time::Duration;

use oroshi_net::tls::Roots;
use oroshi_words::{Mistake, Secret};

/// Settings of ACME.
#[derive(Clone, Debug, PartialEq)]
pub struct AcmeSettings {
    /// The URL of the authority's directory, with `https`.
    pub directory: String,
    /// URLs by which the authority reaches the operator, such as `mailto:admin@example.org`.
    pub contact: Vec<String>,
    /// Whether the operator agrees to the authority's terms of service.
    pub agrees_to_terms: bool,
    /// The file with the account's private key (PEM, PKCS#8, P-256). It is made if there is none.
    pub account_key: PathBuf,
    /// The account at the authority's own site that a new account is bound to.
    pub external_account: Option<ExternalAccount>,
    /// The challenge that proves control over a name.
    pub challenge: ChallengeKind,
    /// The authority's profile of certificates, for example `shortlived`.
    pub profile: Option<String>,
    /// The authorities that are trusted for the directory's own certificate.
    pub roots: Roots,
    /// The SQL store with the tables.
    pub store: String,
    /// Names that get a certificate before a client asks.
    pub names: Vec<String>,
    /// The look-up that allows further names: those that it has a value for.
    pub lookup: Option<String>,
    /// The most orders within `orders_window`, of all machines with this store together. 250 by default: Let's Encrypt
    /// permits 300 in 3 hours.
    pub orders: u32,
    /// 3 hours by default.
    pub orders_window: Duration,
    /// The most names that clients bring within `new_names_window`, of all machines together. 100 by default.
    pub new_names: u32,
    /// An hour by default.
    pub new_names_window: Duration,
    /// The most orders that one machine has under way. 4 by default.
    pub orders_at_once: usize,
    /// How long an order may take. 2 minutes by default. The lock of a name lasts twice as long.
    pub order_timeout: Duration,
}

/// An account at the authority's own site (RFC 8555, section 7.3.4).
#[derive(Clone, Debug, PartialEq)]
pub struct ExternalAccount {
    /// The key's identifier.
    pub key_id: String,
    /// The MAC key in base64 (URL-safe), as authorities give it.
    pub mac_key: Secret,
}

/// The way in which control over a name is proved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChallengeKind {
    /// A request over plain HTTP at port 80 (RFC 8555, section 8.3).
    #[default]
    Http01,
    /// A handshake at port 443 (RFC 8737).
    TlsAlpn01,
}

impl ChallengeKind {
    /// Returns the name that RFC 8555 gives.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            ChallengeKind::Http01 => "http-01",
            ChallengeKind::TlsAlpn01 => "tls-alpn-01",
        }
    }
}

impl Default for AcmeSettings {
    fn default() -> Self {
        AcmeSettings {
            directory: String::new(),
            contact: Vec::new(),
            agrees_to_terms: false,
            account_key: PathBuf::new(),
            external_account: None,
            challenge: ChallengeKind::default(),
            profile: None,
            roots: Roots::default(),
            store: String::new(),
            names: Vec::new(),
            lookup: None,
            orders: 250,
            orders_window: Duration::from_secs(3 * 3600),
            new_names: 100,
            new_names_window: Duration::from_secs(3600),
            orders_at_once: 4,
            order_timeout: Duration::from_secs(120),
        }
    }
}

impl AcmeSettings {
    /// Returns whether a name is one of `names`.
    pub(crate) fn has_name(&self, name: &str) -> bool {
        self.names.iter().any(|own| own.eq_ignore_ascii_case(name))
    }

    /// Returns all mistakes that the settings show by themselves; keys are relative to the table.
    #[must_use]
    pub fn validate(&self) -> Vec<Mistake> {
        let mut mistakes = Vec::new();
        let mut add = |key: &str, text: String| mistakes.push(Mistake::new(key, text));
        if !self.directory.starts_with("https://") || self.directory.parse::<oroshi_net::Endpoint>().is_err() {
            add("directory", format!("`{}` is no directory of an authority: expected an https URL", self.directory));
        }
        for contact in &self.contact {
            if !contact.starts_with("mailto:") || !contact.contains('@') {
                add("contact", format!("`{contact}` is no contact: expected one such as mailto:admin@example.org"));
            }
        }
        if !self.agrees_to_terms {
            add(
                "agree-to-terms",
                "the authority issues only if you agree to its terms of service: read them, and set true".to_owned(),
            );
        }
        if self.account_key.as_os_str().is_empty() {
            add("account-key", "there is no file for the account's key: expected a path".to_owned());
        }
        if let Some(external) = &self.external_account
            && crate::material::mac_key(&external.mac_key).is_none()
        {
            add("external-account", "the MAC key is no base64: expected it as the authority gives it".to_owned());
        }
        if self.names.is_empty() && self.lookup.is_none() {
            add("names", "no name is allowed: expected `names`, or `lookup`".to_owned());
        }
        for name in self.names.iter().filter(|name| dns_name(name).is_none()) {
            add("names", no_name(name));
        }
        for (key, is_zero) in [
            ("orders", self.orders == 0 || self.orders_window.as_secs() == 0),
            ("new-names", self.new_names_window.as_secs() == 0),
            ("orders-at-once", self.orders_at_once == 0),
            ("order-timeout", self.order_timeout.as_secs() == 0),
        ] {
            if is_zero {
                add(key, "0 is too little: expected more (times of a second or more)".to_owned());
            }
        }
        mistakes
    }
}

fn no_name(name: &str) -> String {
    let why = if name.starts_with("*.") {
        "only DNS-01 proves control over a wildcard, which the gateway does not do; other clients can write the row"
    } else {
        "expected a DNS name such as www.example.org"
    };
    format!("`{name}` cannot be ordered: {why}")
}

/// Returns a name in lower case if an authority could issue for it: a DNS name of at least two labels, whose last one
/// is no number.
#[must_use]
pub fn dns_name(name: &str) -> Option<String> {
    let name = name.to_ascii_lowercase();
    let is_label = |label: &str| {
        let bytes = label.as_bytes();
        (1..=63).contains(&bytes.len())
            && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'-')
            && bytes[0] != b'-'
            && bytes[bytes.len() - 1] != b'-'
    };
    let last = name.rsplit('.').next().unwrap_or_default();
    let fits = name.len() <= 253 && name.contains('.') && name.split('.').all(is_label);
    (fits && !last.bytes().all(|byte| byte.is_ascii_digit())).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_that_authorities_issue_for() {
        assert_eq!(dns_name("WWW.Example.org").as_deref(), Some("www.example.org"));
        assert_eq!(dns_name("xn--bcher-kva.example").as_deref(), Some("xn--bcher-kva.example"));
        let long = format!("{}.example", "a".repeat(64));
        let longest = format!("{}org", "abcdefgh.".repeat(28));
        for bad in ["", "localhost", "*.example.org", "192.0.2.1", "a..b", ".a.b", "a.b.", "a_b.c", "-a.b", "a-.b"] {
            assert_eq!(dns_name(bad), None, "{bad}");
        }
        assert_eq!((dns_name(&long), dns_name(&longest)), (None, None));
    }

    #[test]
    fn all_mistakes_are_found() {
        let keys = |settings: AcmeSettings| -> Vec<String> {
            settings.validate().into_iter().map(|mistake| mistake.key).collect()
        };
        assert_eq!(keys(AcmeSettings::default()), ["directory", "agree-to-terms", "account-key", "names"]);
        let good = AcmeSettings {
            directory: "https://acme-staging-v02.api.letsencrypt.org/directory".to_owned(),
            agrees_to_terms: true,
            account_key: "account.pem".into(),
            names: vec!["www.example.org".to_owned()],
            ..AcmeSettings::default()
        };
        assert!(keys(good.clone()).is_empty());
        let mac_key = Secret::new("not base64!");
        let bad = AcmeSettings {
            directory: "http://127.0.0.1/".to_owned(),
            contact: vec!["admin@example.org".to_owned()],
            external_account: Some(ExternalAccount { key_id: "1".to_owned(), mac_key }),
            names: vec!["*.example.org".to_owned()],
            orders: 0,
            orders_at_once: 0,
            order_timeout: Duration::ZERO,
            ..good
        };
        assert_eq!(
            keys(bad),
            ["directory", "contact", "external-account", "names", "orders", "orders-at-once", "order-timeout"]
        );
    }
}
