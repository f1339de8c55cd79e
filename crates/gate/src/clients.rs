//! Certificates of clients, on routes that ask for them.
//!
//! A handshake knows the server name alone, so it accepts a certificate of any route that the name may lead to. The
//! route then checks the certificate again, with its own authorities.

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::PathBuf;

use oroshi_certificates::{ClientNames, NamePattern};
use oroshi_net::tls::{ClientAuthorities, ClientCertificate, RevocationList, RevocationOptions};
use oroshi_server::Exchange;

use crate::plan::{Answer, Route};
use crate::route::{HostPattern, Matcher};

/// How long a certificate that a route has accepted is not checked again, in nanoseconds. It may expire meanwhile.
const FRESH: u64 = 60_000_000_000;

/// The most certificates to remember on a thread.
const MOST: usize = 4096;

/// A route's rule for client certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientSettings {
    /// Whether requests without a certificate are refused.
    pub required: bool,
    /// The PEM files of the authorities.
    pub files: Vec<PathBuf>,
    /// Their revocation lists.
    pub revocation: RevocationOptions,
}

impl Default for ClientSettings {
    fn default() -> Self {
        ClientSettings { required: true, files: Vec::new(), revocation: RevocationOptions::default() }
    }
}

/// A route's rule for client certificates, with its authorities.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientRule {
    /// The settings.
    pub settings: ClientSettings,
    /// The authorities of the files.
    pub authorities: ClientAuthorities,
}

/// Returns the server names that ask their clients for a certificate.
pub(crate) fn names<'p>(routes: impl Iterator<Item = (&'p Route, &'p Matcher)>) -> ClientNames {
    let mut rules = Vec::new();
    for (route, matcher) in routes {
        let Some(rule) = &route.clients else { continue };
        if matcher.hosts.is_empty() {
            rules.push((NamePattern::Any, rule.authorities.clone()));
        }
        for host in &matcher.hosts {
            let pattern = match host {
                HostPattern::Exact(name) => NamePattern::Exact(name.clone()),
                HostPattern::Below(name) => NamePattern::Below(name.clone()),
            };
            rules.push((pattern, rule.authorities.clone()));
        }
    }
    ClientNames::new(&rules)
}

/// Returns when the first revocation list of these routes expires, in seconds since 1970.
pub(crate) fn first_expiry(routes: &[Route]) -> Option<i64> {
    let rules = routes.iter().filter_map(|route| route.clients.as_ref());
    rules.flat_map(|rule| rule.authorities.lists()).map(RevocationList::next_update).min()
}

/// Checked certificates by their fingerprint, each with the time of its next check and whether it was accepted; by
/// [`ClientAuthorities::id`].
type Checked = HashMap<[u8; 32], HashMap<Box<str>, (u64, bool)>>;

/// The certificates that were checked for routes lately, on one core. Refused ones are kept too: a check reads whole
/// revocation lists, and a client may repeat its request as often as it likes.
#[derive(Debug, Default)]
pub(crate) struct VerifiedClients(RefCell<Checked>);

impl VerifiedClients {
    /// Returns the certificate of a request's client, if the route accepts it. `Err`: the response, and the reason's
    /// name for the log.
    pub(crate) fn of<'a>(
        &self,
        rule: &ClientRule,
        exchange: &Exchange<'a>,
        host: &str,
        now: u64,
    ) -> Result<Option<&'a ClientCertificate>, (Answer, &'static str)> {
        let facts = exchange.tls_facts();
        let client = facts.and_then(|facts| facts.client.as_ref());
        if let Some(client) = client
            && self.accepts(&rule.authorities, client, now, || exchange.is_client_of(&rule.authorities))
        {
            return Ok(Some(client));
        }
        match facts {
            _ if !rule.settings.required => Ok(None),
            // The handshake was for another name, whose clients may not have been asked. Browsers then open a
            // connection for this one (RFC 9110, section 15.5.20).
            Some(facts) if client.is_none() && facts.sni.as_deref() != Some(host) => {
                let text = "this host asks its clients for a certificate: connect with its name";
                Err((Answer::text(421, text), "misdirected"))
            }
            _ => Err((Answer::text(403, "a client certificate is required here"), "client-certificate")),
        }
    }

    fn accepts(
        &self,
        authorities: &ClientAuthorities,
        client: &ClientCertificate,
        now: u64,
        check: impl FnOnce() -> bool,
    ) -> bool {
        let id = authorities.id();
        let known = |all: &Checked| all.get(&id)?.get(&*client.fingerprint).copied();
        if let Some((until, is_accepted)) = known(&self.0.borrow())
            && now < until
        {
            return is_accepted;
        }
        let is_accepted = check();
        let mut all = self.0.borrow_mut();
        if all.values().map(HashMap::len).sum::<usize>() >= MOST {
            all.clear();
        }
        let next = (now.saturating_add(FRESH), is_accepted);
        all.entry(id).or_default().insert(client.fingerprint.as_str().into(), next);
        is_accepted
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use oroshi_testkit::Identity;

    use super::*;

    #[test]
    fn a_certificate_is_checked_once_a_minute_and_for_each_set_of_authorities() {
        let read = || ClientAuthorities::from_files(&[Identity::new().ca()], &RevocationOptions::default()).unwrap();
        let (one, two) = (read(), read());
        let client = |name: &str| ClientCertificate { subject: String::new(), fingerprint: name.to_owned() };
        let (verified, checks) = (VerifiedClients::default(), Cell::new(0));
        let ask = |authorities: &ClientAuthorities, name: &str, now: u64, is_good: bool| {
            verified.accepts(authorities, &client(name), now, || {
                checks.set(checks.get() + 1);
                is_good
            })
        };
        assert!(ask(&one, "a", 0, true) && ask(&one, "a", FRESH - 1, false));
        assert_eq!(checks.get(), 1);
        assert!(!ask(&one, "a", FRESH, false), "it has expired");
        assert!(!ask(&two, "a", 1, false) && !ask(&one, "b", 1, false));
        assert_eq!(checks.get(), 4);
        assert!(!ask(&two, "a", 2, true) && !ask(&one, "b", 2, true));
        assert_eq!(checks.get(), 4, "a refusal is not checked again at once");
        for number in 0..2 * MOST {
            assert!(ask(&one, &number.to_string(), 0, true));
        }
        assert!(verified.0.borrow().values().map(HashMap::len).sum::<usize>() <= MOST);
    }
}
