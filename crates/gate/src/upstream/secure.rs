//! TLS towards targets: settings, and the same prepared for handshakes.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use oroshi_net::tls::{Roots, TlsConfigError, TlsError};
use oroshi_net::{ClientTls, ClientTlsOptions, Stream};
use oroshi_words::named::values;
use sha2::{Digest, Sha256};

use super::pool::Pool;
use super::target::Place;
use crate::failure::{Failure, ForwardError, chain};

/// How many servers' sessions are kept for each group of targets.
const SESSIONS: usize = 1024;

/// How targets with `https://` are reached. `Default`: the server's certificate must be signed by an authority that
/// this machine trusts, for the target's host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsSettings {
    /// Whether to check the server's certificate.
    pub verify: bool,
    /// The trusted authorities.
    pub roots: CaRoots,
    /// The name for SNI and for the check, instead of the target's host.
    pub server_name: Option<String>,
    /// A PEM file with the gateway's own certificate and its chain, for servers that ask.
    pub certificate: Option<PathBuf>,
    /// A PEM file with its private key.
    pub key: Option<PathBuf>,
    /// The version of HTTP.
    pub protocol: TlsProtocol,
    /// Whether new connections resume the session of an earlier one.
    pub resume: bool,
}

impl Default for TlsSettings {
    fn default() -> Self {
        TlsSettings {
            verify: true,
            roots: CaRoots::default(),
            server_name: None,
            certificate: None,
            key: None,
            protocol: TlsProtocol::default(),
            resume: true,
        }
    }
}

/// The trusted authorities.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CaRoots {
    /// PEM files.
    pub files: Vec<PathBuf>,
    /// Whether those of this machine are trusted too; `None`: only if there are no files.
    pub system: Option<bool>,
}

impl CaRoots {
    /// Returns whether this machine's authorities are trusted.
    #[must_use]
    pub fn has_system(&self) -> bool {
        self.system.unwrap_or(self.files.is_empty())
    }
}

/// The version of HTTP over TLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TlsProtocol {
    /// The server chooses by ALPN.
    #[default]
    Auto,
    /// HTTP/1.1.
    Http1,
    /// HTTP/2.
    Http2,
}

impl TlsProtocol {
    const NAMED: [(Self, &'static str); 3] =
        [(TlsProtocol::Auto, "auto"), (TlsProtocol::Http1, "http/1.1"), (TlsProtocol::Http2, "h2")];

    /// Every protocol.
    pub const ALL: [Self; 3] = values(&Self::NAMED);

    /// Returns the stable name.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::NAMED[self as usize].1
    }
}

/// A mistake in [`TlsSettings`].
#[derive(Debug, thiserror::Error)]
pub enum TlsMistake {
    /// The settings contradict each other, or are incomplete.
    #[error("{problem}")]
    Settings {
        /// The key.
        key: &'static str,
        /// The mistake and the next step.
        problem: String,
    },
    /// A file cannot be used.
    #[error("{}", chain(source))]
    File {
        /// The key.
        key: &'static str,
        /// The cause.
        source: TlsConfigError,
    },
}

impl TlsMistake {
    /// Returns the key of the setting.
    #[must_use]
    pub fn key(&self) -> &'static str {
        match self {
            TlsMistake::Settings { key, .. } | TlsMistake::File { key, .. } => key,
        }
    }
}

/// Prepared TLS towards a group of targets. All threads share it, with the sessions that can be resumed.
pub struct UpstreamTls {
    id: u64,
    protocol: TlsProtocol,
    /// Offers both versions of HTTP, and one alone.
    both: ClientTls,
    http1: ClientTls,
    http2: ClientTls,
}

impl UpstreamTls {
    /// Reads the files.
    ///
    /// # Errors
    /// The first mistake.
    pub fn new(settings: &TlsSettings) -> Result<Self, TlsMistake> {
        settings.check()?;
        let base = ClientTls::new(&settings.options(), "localhost").map_err(|source| {
            let key = match &source {
                TlsConfigError::Name { .. } => "server-name",
                TlsConfigError::Identity(_) => "certificate",
                TlsConfigError::Pem { path, .. } if Some(path) == settings.certificate.as_ref() => "certificate",
                TlsConfigError::Pem { path, .. } if Some(path) == settings.key.as_ref() => "key",
                _ => "ca",
            };
            TlsMistake::File { key, source }
        })?;
        Ok(UpstreamTls {
            id: settings.id(),
            protocol: settings.protocol,
            both: base.offering(&[b"h2", b"http/1.1"]),
            http1: base.offering(&[b"http/1.1"]),
            http2: base.offering(&[b"h2"]),
        })
    }

    /// Returns a number that differs if settings or the contents of their files differ; never 0.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Performs the handshake with `host`: a name, or an address without brackets.
    pub(super) async fn connect(&self, host: &str, offer: TlsProtocol, stream: Stream) -> Result<Stream, TlsError> {
        let offered = match (self.protocol, offer) {
            (TlsProtocol::Auto, offer) | (offer, _) => match offer {
                TlsProtocol::Auto => &self.both,
                TlsProtocol::Http1 => &self.http1,
                TlsProtocol::Http2 => &self.http2,
            },
        };
        let tls = offered.with_host(host).map_err(|error| TlsError::Io(std::io::Error::other(error)))?;
        tls.connect(stream).await
    }
}

impl fmt::Debug for UpstreamTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UpstreamTls").field("id", &self.id).finish_non_exhaustive()
    }
}

impl TlsSettings {
    /// Returns the same for a client.
    pub(super) fn options(&self) -> ClientTlsOptions {
        let roots = match (self.verify, self.roots.has_system()) {
            (false, _) => Roots::Insecure,
            (true, true) if self.roots.files.is_empty() => Roots::System,
            (true, true) => Roots::SystemAnd(self.roots.files.clone()),
            (true, false) => Roots::Only(self.roots.files.clone()),
        };
        ClientTlsOptions {
            roots,
            identity: self.certificate.clone().zip(self.key.clone()),
            server_name: self.server_name.clone(),
            sessions: SESSIONS,
            no_resumption: !self.resume,
            ..ClientTlsOptions::default()
        }
    }

    fn check(&self) -> Result<(), TlsMistake> {
        let wrong = |key, problem: &str| Err(TlsMistake::Settings { key, problem: problem.to_owned() });
        match (&self.certificate, &self.key) {
            (Some(_), None) => {
                return wrong("key", "there is none beside `certificate`: expected the file with its key");
            }
            (None, Some(_)) => return wrong("certificate", "there is none beside `key`: expected its file"),
            _ => {}
        }
        if !self.verify && (!self.roots.files.is_empty() || self.roots.system == Some(true)) {
            let problem = "certificates are not checked (`verify` is false): expected no `ca` and no `system-roots`, or \
                           `verify = true`";
            return wrong("verify", problem);
        }
        if self.verify && !self.roots.has_system() && self.roots.files.is_empty() {
            return wrong("system-roots", "false leaves no authority to trust: expected `ca` files beside it");
        }
        Ok(())
    }

    /// Hashes the settings and the contents of their files.
    fn id(&self) -> u64 {
        let mut hash = Sha256::new();
        hash.update(format!("{self:?}"));
        let files = self.roots.files.iter().chain(&self.certificate).chain(&self.key);
        for file in files {
            hash.update(contents(file));
        }
        let digest = hash.finalize();
        u64::from_le_bytes(std::array::from_fn(|place| digest[place])).max(1)
    }
}

/// Returns the digest of a file, so that one file's end cannot be taken for the next file's beginning.
fn contents(file: &Path) -> [u8; 32] {
    Sha256::digest(std::fs::read(file).unwrap_or_default()).into()
}

/// TLS with the default settings, for targets of rows and scripts without settings of their own. It is prepared when
/// the
/// first of them asks for TLS, so that a machine without root certificates can serve all others.
fn usual() -> Result<Arc<UpstreamTls>, String> {
    static USUAL: OnceLock<Result<Arc<UpstreamTls>, String>> = OnceLock::new();
    let usual = || UpstreamTls::new(&TlsSettings::default()).map(Arc::new).map_err(|error| error.to_string());
    USUAL.get_or_init(usual).clone()
}

impl Pool {
    /// Returns TLS towards the target, and the target's host.
    pub(super) fn tls(&self) -> Result<(Arc<UpstreamTls>, String), ForwardError> {
        let prepared = self.settings.borrow().secure.clone();
        let tls = match prepared {
            Some(tls) => tls,
            None => usual().map_err(|error| ForwardError::unsent(Failure::Tls, || error))?,
        };
        let host = match &self.target().place {
            Place::Peer(oroshi_net::Peer::Tcp(address)) => address.ip().to_string(),
            Place::Peer(_) => "localhost".to_owned(),
            Place::Name { host, .. } => host.to_string(),
        };
        Ok((tls, host))
    }

    /// Returns [`UpstreamTls::id`] of the current settings; 0 for a target without TLS.
    pub(super) fn tls_id(&self) -> u64 {
        if !self.is_secure() {
            return 0;
        }
        let settings = self.settings.borrow();
        match &settings.secure {
            Some(tls) => tls.id(),
            None => usual().map_or(0, |tls| tls.id()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mistake(settings: &TlsSettings) -> (&'static str, String) {
        let mistake = UpstreamTls::new(settings).unwrap_err();
        (mistake.key(), mistake.to_string())
    }

    #[test]
    fn what_cannot_be_used_names_its_key() {
        let none = || Some(PathBuf::from("/nonexistent/file.pem"));
        let files = CaRoots { files: vec!["/nonexistent/ca.pem".into()], system: None };
        let usual = TlsSettings::default;
        for (settings, key, part) in [
            (TlsSettings { certificate: none(), ..usual() }, "key", "beside `certificate`"),
            (TlsSettings { key: none(), ..usual() }, "certificate", "beside `key`"),
            (TlsSettings { verify: false, roots: files.clone(), ..usual() }, "verify", "not checked"),
            (
                TlsSettings { roots: CaRoots { files: Vec::new(), system: Some(false) }, ..usual() },
                "system-roots",
                "no authority",
            ),
            (TlsSettings { roots: files, ..usual() }, "ca", "/nonexistent/ca.pem"),
            (
                TlsSettings { verify: false, certificate: none(), key: none(), ..usual() },
                "certificate",
                "/nonexistent/file.pem",
            ),
            (TlsSettings { verify: false, server_name: Some("a b".to_owned()), ..usual() }, "server-name", "`a b`"),
        ] {
            let (found, text) = mistake(&settings);
            assert_eq!(found, key, "{text}");
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn another_setting_or_other_contents_are_another_identity() {
        let identity = oroshi_testkit::Identity::new();
        let file = identity.path("copy.pem");
        std::fs::copy(identity.ca(), &file).unwrap();
        let settings =
            TlsSettings { roots: CaRoots { files: vec![file.clone()], system: None }, ..TlsSettings::default() };
        let id = |settings: &TlsSettings| UpstreamTls::new(settings).unwrap().id();
        let before = id(&settings);
        assert_eq!(before, id(&settings));
        assert_ne!(before, id(&TlsSettings { resume: false, ..settings.clone() }));
        std::fs::copy(oroshi_testkit::Identity::new().ca(), &file).unwrap();
        assert_ne!(before, id(&settings));
    }
}
