//! Chooses the settings of each handshake by the name that the client asks for.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};

use oroshi_lookup::{Lookup, Stores};
use oroshi_net::tls::{Choice, ChooseTls, ClientAuthorities, TlsError, TlsFacts};
use rustls::crypto::ring::default_provider;
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::version::{TLS12, TLS13};
use rustls::{AlertDescription, ServerConfig};

use crate::catalogue::Catalogue;
use crate::certificate::Certificate;
use crate::challenges::{ACME_TLS_ALPN, Challenges};
use crate::clients::ClientNames;
use crate::counts::{CertificateCounts, Counters};
use crate::finder::{Finder, FinderSettings, Found, Miss, Search};
use crate::seal::Seal;
use crate::tickets::Tickets;

/// The earliest version of TLS that clients may speak.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MinVersion {
    /// TLS 1.2.
    #[default]
    Tls12,
    /// TLS 1.3.
    Tls13,
}

/// Settings of all handshakes.
#[derive(Debug)]
pub struct CertificatesSettings {
    /// Certificates of files.
    pub catalogue: Arc<Catalogue>,
    /// The name whose certificate clients get that ask for no name, or for one without a certificate; `None`: their
    /// handshakes are refused.
    pub default: Option<String>,
    /// The look-up of certificates, with its settings.
    pub lookup: Option<(Lookup, FinderSettings)>,
    /// Opens sealed rows.
    pub seal: Option<Seal>,
    /// The earliest version.
    pub min_version: MinVersion,
    /// Protocols for ALPN, the preferred first.
    pub alpn: Vec<Vec<u8>>,
    /// Session tickets.
    pub tickets: Tickets,
    /// Answers to challenges.
    pub challenges: Arc<Challenges>,
    /// The names that ask their clients for a certificate.
    pub clients: ClientNames,
}

/// The certificates in force.
#[derive(Debug)]
pub struct Certificates {
    filed: std::collections::HashMap<Box<str>, Arc<Served>>,
    default: Option<String>,
    finder: Option<Finder>,
    challenges: Arc<Challenges>,
    template: Arc<ServerConfig>,
    clients: ClientNames,
    /// Templates that ask clients for a certificate, one for each set of authorities.
    asking: Vec<Arc<ServerConfig>>,
    counters: Arc<Counters>,
}

/// A certificate, and the settings of its handshakes.
#[derive(Debug)]
pub(crate) struct Served {
    pub(crate) certificate: Arc<Certificate>,
    /// One for each template that has been asked for.
    configs: Mutex<Vec<Made>>,
}

/// The settings, and the template that they were made from.
type Made = (Arc<ServerConfig>, Weak<ServerConfig>);

impl Served {
    pub(crate) fn new(certificate: Arc<Certificate>) -> Self {
        Served { certificate, configs: Mutex::default() }
    }

    /// Returns the settings of a handshake with this certificate.
    fn config(&self, template: &Arc<ServerConfig>) -> Arc<ServerConfig> {
        let mut made = self.configs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((config, _)) = made.iter().find(|(_, of)| of.as_ptr() == Arc::as_ptr(template)) {
            return Arc::clone(config);
        }
        // A reload drops the templates of the settings before.
        made.retain(|(_, of)| of.strong_count() > 0);
        let config = Arc::new(with_certificate(template, Arc::clone(&self.certificate.key)));
        made.push((Arc::clone(&config), Arc::downgrade(template)));
        config
    }
}

impl Certificates {
    /// Puts settings in force. `before`: the ones in force so far, whose counters go on, and whose cache goes on if
    /// its look-up is the same and `keep_cache`.
    #[must_use]
    pub fn new(settings: CertificatesSettings, before: Option<&Certificates>, keep_cache: bool) -> Self {
        let counters = before.map(|before| Arc::clone(&before.counters)).unwrap_or_default();
        let served = |certificate: &Arc<Certificate>| Arc::new(Served::new(Arc::clone(certificate)));
        let mut by_certificate: Vec<Arc<Served>> = Vec::new();
        let filed = settings.catalogue.by_name().map(|(name, certificate)| {
            let known = by_certificate.iter().find(|known| Arc::ptr_eq(&known.certificate, certificate)).cloned();
            let one = known.unwrap_or_else(|| {
                by_certificate.push(served(certificate));
                Arc::clone(&by_certificate[by_certificate.len() - 1])
            });
            (name.into(), one)
        });
        let filed = filed.collect();
        let kept = before.and_then(|before| before.finder.clone()).filter(|_| keep_cache);
        let finder = settings.lookup.map(|(lookup, finder)| {
            kept.unwrap_or_else(|| {
                Finder::new(lookup, finder, settings.seal, Arc::clone(&settings.challenges), Arc::clone(&counters))
            })
        });
        let (version, alpn, tickets) = (settings.min_version, settings.alpn, settings.tickets);
        let template_for = |clients| Arc::new(template(version, alpn.clone(), &tickets, clients));
        let (clients, template) = (settings.clients, template_for(None));
        let asking = clients.sets().iter().map(|authorities| template_for(Some(authorities))).collect();
        let default = settings.default.map(|name| name.to_ascii_lowercase());
        Certificates { filed, default, finder, challenges: settings.challenges, template, clients, asking, counters }
    }

    /// Returns the look-up, if there is one.
    #[must_use]
    pub fn lookup(&self) -> Option<&Lookup> {
        self.finder.as_ref().map(Finder::lookup)
    }

    /// Replaces the look-up's stores by others with the same names and kinds.
    pub fn set_stores(&self, stores: &Stores) {
        if let Some(finder) = &self.finder {
            finder.set_stores(stores);
        }
    }

    /// Forgets a name that was looked up, and returns whether it was known. The next handshake asks the stores.
    pub fn purge(&self, name: &str) -> bool {
        self.finder.as_ref().is_some_and(|finder| finder.purge(&name.to_ascii_lowercase()))
    }

    /// Answers to challenges, for issuing certificates.
    #[must_use]
    pub fn challenges(&self) -> &Arc<Challenges> {
        &self.challenges
    }

    /// Returns the counts.
    #[must_use]
    pub fn counts(&self) -> CertificateCounts {
        let cached = self.finder.as_ref().map(Finder::cached);
        let (entries, bytes, evictions) = cached.unwrap_or_default();
        CertificateCounts { entries: entries as u64, bytes: bytes as u64, evictions, ..self.counters.counts() }
    }

    fn filed(&self, name: &str) -> Option<&Arc<Served>> {
        let wildcard = || self.filed.get(crate::certificate::wildcard_of(name)?.as_str());
        self.filed.get(name).or_else(wildcard)
    }

    /// Returns the settings that all certificates share for this name.
    fn template_of(&self, name: Option<&str>) -> &Arc<ServerConfig> {
        self.clients.of(name).map_or(&self.template, |set| &self.asking[set])
    }

    /// Returns the settings of a found certificate, or of the default, for this name.
    fn settled(&self, name: Option<&str>, found: Found) -> Result<Arc<ServerConfig>, AlertDescription> {
        let default = || self.default.as_deref().and_then(|name| self.filed(name));
        match found {
            Ok(served) => Ok(served.config(self.template_of(name))),
            Err(miss) => match (miss, default()) {
                (Miss::Unknown, Some(served)) => Ok(served.config(self.template_of(name))),
                (Miss::Unknown, None) => Err(AlertDescription::UnrecognisedName),
                // The name may have a certificate: the wrong one would only confuse.
                (Miss::Down, _) => Err(AlertDescription::InternalError),
            },
        }
    }

    /// Returns the settings of a handshake that asks for the proof of TLS-ALPN-01.
    fn choose_proof(&self, name: Option<&str>) -> Choice {
        let template = Arc::clone(&self.template);
        let settings = move |proof: Option<Arc<CertifiedKey>>| {
            let mut config = with_certificate(&template, proof.ok_or(AlertDescription::UnrecognisedName)?);
            config.alpn_protocols = vec![ACME_TLS_ALPN.to_vec()];
            Ok(Arc::new(config))
        };
        let own = name.and_then(|name| self.challenges.tls_answer(name));
        let others = || self.challenges.issuer()?.tls_answer(name?);
        match own {
            Some(proof) => Choice::Now(settings(Some(proof))),
            None => match others() {
                Some(found) => Choice::Later(Box::pin(async move { settings(found.await) })),
                None => Choice::Now(settings(None)),
            },
        }
    }

    fn choose(self: &Arc<Self>, hello: &ClientHello<'_>) -> Choice {
        let name = hello.server_name().map(str::to_ascii_lowercase);
        if hello.alpn().is_some_and(|mut offered| offered.any(|protocol| protocol == ACME_TLS_ALPN)) {
            return self.choose_proof(name.as_deref());
        }
        let Some(name) = name else { return Choice::Now(self.settled(None, Err(Miss::Unknown))) };
        if let Some(served) = self.filed(&name) {
            return Choice::Now(self.settled(Some(&name), Ok(Arc::clone(served))));
        }
        let Some(finder) = &self.finder else { return Choice::Now(self.settled(Some(&name), Err(Miss::Unknown))) };
        match finder.find(&name) {
            Search::Now(found) => Choice::Now(self.settled(Some(&name), found)),
            Search::Later(later) => {
                let certificates = Arc::clone(self);
                Choice::Later(Box::pin(async move {
                    certificates.settled(Some(&name), later.await.unwrap_or(Err(Miss::Down)))
                }))
            }
        }
    }
}

/// Makes the settings that all certificates share. `clients`: whose certificates clients may show, if they are asked.
fn template(
    min_version: MinVersion,
    alpn: Vec<Vec<u8>>,
    tickets: &Tickets,
    clients: Option<&ClientAuthorities>,
) -> ServerConfig {
    let versions = match min_version {
        MinVersion::Tls12 => &[&TLS13, &TLS12][..],
        MinVersion::Tls13 => &[&TLS13][..],
    };
    let builder = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_protocol_versions(versions)
        .expect("ring has suites for both versions");
    // A session that began without a certificate, or under other authorities, cannot be resumed here.
    let (builder, tickets) = match clients {
        None => (builder.with_no_client_auth(), tickets.clone()),
        Some(authorities) => {
            (builder.with_client_cert_verifier(authorities.verifier()), tickets.within(authorities.id()))
        }
    };
    let mut config = builder.with_cert_resolver(Arc::new(Only(None)));
    config.alpn_protocols = alpn;
    // Sessions are in the tickets alone, so that every thread and process resumes them.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.ticketer = Arc::new(tickets);
    config
}

fn with_certificate(template: &ServerConfig, key: Arc<CertifiedKey>) -> ServerConfig {
    let mut config = template.clone();
    config.cert_resolver = Arc::new(Only(Some(key)));
    config
}

/// Resolves to one certificate.
struct Only(Option<Arc<CertifiedKey>>);

impl ResolvesServerCert for Only {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.clone()
    }
}

/// Shows no key.
impl fmt::Debug for Only {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Only")
    }
}

/// The certificates in force, which a reload replaces while listeners stay.
#[derive(Debug, Default)]
pub struct Current(RwLock<Option<Arc<Certificates>>>);

impl Current {
    /// Returns the certificates in force; `None`: handshakes are refused.
    #[must_use]
    pub fn get(&self) -> Option<Arc<Certificates>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Puts others in force. Handshakes under way end with those that they began with.
    pub fn set(&self, certificates: Option<Arc<Certificates>>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = certificates;
    }
}

impl ChooseTls for Current {
    fn choose(&self, hello: &ClientHello<'_>) -> Choice {
        match self.get() {
            Some(certificates) => certificates.choose(hello),
            None => Choice::Now(Err(AlertDescription::InternalError)),
        }
    }

    fn ended(&self, result: Result<&TlsFacts, &TlsError>) {
        let Some(certificates) = self.get() else { return };
        let counters = &certificates.counters;
        match result {
            Ok(facts) => {
                counters.handshakes.more();
                if facts.resumed {
                    counters.resumed.more();
                }
                if facts.client.is_some() {
                    counters.client_certificates.more();
                }
            }
            Err(error) => {
                counters.failed.more();
                if matches!(error, TlsError::Refused(_)) {
                    counters.refused.more();
                }
            }
        }
    }
}
