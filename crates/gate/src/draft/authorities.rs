//! Validates the rules for certificates of clients, and reads the files of their authorities.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use oroshi_net::tls::{ClientAuthorities, RevocationOptions, TlsConfigError};

use super::Findings;
use crate::clients::{ClientRule, ClientSettings};
use crate::failure::chain;

/// The authorities that routes named so far, by their files. Routes with the same files share them.
#[derive(Default)]
pub(super) struct Authorities(HashMap<(Vec<PathBuf>, RevocationOptions), ClientAuthorities>);

impl Authorities {
    /// Returns a route's rule; `None` after a mistake.
    pub(super) fn rule(&mut self, settings: ClientSettings, at: &str, findings: &mut Findings) -> Option<ClientRule> {
        let key = |name: &str| format!("{at}.client-certificate.{name}");
        let revocation = &settings.revocation;
        if settings.files.is_empty() {
            let why = "there is none: expected a PEM file with the authority that signs clients' certificates";
            findings.add(key("ca"), why);
            return None;
        }
        if revocation.accept_expired && revocation.files.is_empty() {
            let why = "there is no list that could expire: expected a file in `crl`, or no `crl-expired`";
            findings.add(key("crl-expired"), why);
        }
        let files = (settings.files.clone(), revocation.clone());
        let authorities = match self.0.get(&files) {
            Some(known) => known.clone(),
            None => match ClientAuthorities::from_files(&settings.files, revocation) {
                Ok(authorities) => authorities,
                Err(error) => {
                    let is_list = matches!(error, TlsConfigError::RevocationList { .. });
                    findings.add(key(if is_list { "crl" } else { "ca" }), chain(&error));
                    return None;
                }
            },
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64);
        for list in authorities.lists().filter(|list| list.next_update() < now) {
            let (issuer, path) = (list.issuer(), list.path().display());
            let effect = if revocation.accept_expired {
                "it still counts, as crl-expired = \"accept\" says"
            } else {
                "certificates of this authority are refused"
            };
            let why = format!("the list of `{issuer}` in `{path}` has expired, and {effect}: fetch the next list");
            findings.warn(key("crl"), why);
        }
        self.0.insert(files, authorities.clone());
        Some(ClientRule { settings, authorities })
    }
}
