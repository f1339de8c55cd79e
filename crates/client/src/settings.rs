//! What can be set: caps, times, limits.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use oroshi_core::{Addresses, Lookup, Ttl, system};
use oroshi_http1::Limits;
use oroshi_net::ClientTlsOptions;
use thiserror::Error;

use crate::client::Client;
use crate::deadline::Deadlines;
use crate::headers::Headers;
use crate::local;
use crate::pool::Caps;

/// How a client behaves; every default is said at its setting. Made into a client by [`build`](Self::build) (one that can be used
/// from any thread) or [`build_local`](Self::build_local) (one of this core alone).
#[derive(Clone)]
#[must_use = "a builder does nothing until it builds"]
pub struct Builder {
    pub(crate) caps: Caps,
    pub(crate) idle: Duration,
    pub(crate) age: Duration,
    pub(crate) deadlines: Deadlines,
    pub(crate) dns: Ttl,
    pub(crate) lookup: Lookup,
    pub(crate) attempt_delay: Duration,
    pub(crate) redirects: u32,
    pub(crate) decode: bool,
    pub(crate) keep_alive: bool,
    pub(crate) collect_bytes: u64,
    pub(crate) stream_bytes: u64,
    pub(crate) limits: Limits,
    pub(crate) tls: ClientTlsOptions,
    pub(crate) headers: Headers,
    /// The first default field that cannot be sent: its name, and why.
    pub(crate) mistake: Option<(String, String)>,
}

impl Default for Builder {
    fn default() -> Self {
        Builder {
            caps: Caps { total: 10_000, per_host: 10_000, idle_per_host: 10_000, waiting: 100_000 },
            idle: Duration::from_secs(30),
            age: Duration::from_secs(600),
            deadlines: Deadlines::default(),
            dns: Ttl { positive: Duration::from_secs(30), negative: Duration::from_secs(5) },
            lookup: Arc::new(system),
            attempt_delay: Duration::from_millis(250),
            redirects: 10,
            decode: true,
            keep_alive: true,
            collect_bytes: 64 << 20,
            stream_bytes: u64::MAX,
            limits: Limits::default(),
            tls: ClientTlsOptions { alpn: vec![b"http/1.1".to_vec()], ..ClientTlsOptions::default() },
            headers: Headers::new(),
            mistake: None,
        }
    }
}

impl Builder {
    /// The most connections there may be, idle ones included; requests beyond it wait in line. Default 10,000.
    ///
    /// Building raises the process's limit of file descriptors as far as this takes. Where the hard limit is lower, the cap is lowered to
    /// what there is room for, and requests wait that would otherwise fail.
    pub fn connections(mut self, most: usize) -> Self {
        self.caps.total = most;
        self
    }

    /// The most connections to one origin: scheme, host and port, or unix socket. Default 10,000.
    pub fn connections_per_host(mut self, most: usize) -> Self {
        self.caps.per_host = most;
        self
    }

    /// The most idle connections of one origin; those that come back beyond it are closed. Default 10,000.
    pub fn idle_per_host(mut self, most: usize) -> Self {
        self.caps.idle_per_host = most;
        self
    }

    /// The most requests that may wait for a connection; one more fails at once. Default 100,000.
    pub fn waiting(mut self, most: usize) -> Self {
        self.caps.waiting = most;
        self
    }

    /// How long an idle connection is kept. Default 30 s. A server that says how long it keeps one (`Keep-Alive: timeout=5`) is
    /// believed, less a second, where that is shorter.
    pub fn idle_timeout(mut self, limit: Duration) -> Self {
        self.idle = limit;
        self
    }

    /// How old a connection may get and still be used for another request, so that changes of names and of servers are noticed. Default
    /// 10 minutes.
    pub fn max_age(mut self, limit: Duration) -> Self {
        self.age = limit;
        self
    }

    /// Whether connections are used for more than one request. Default true; false sends `Connection: close`.
    pub fn keep_alive(mut self, on: bool) -> Self {
        self.keep_alive = on;
        self
    }

    /// How long each phase may take: [`Deadlines`]. A request can have its own.
    pub fn deadlines(mut self, deadlines: Deadlines) -> Self {
        self.deadlines = deadlines;
        self
    }

    /// How long a request may take as a whole: [`Deadlines::total`]. Default: for ever.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.deadlines.total = limit;
        self
    }

    /// How long the addresses of a name are kept when the resolver does not say, as the system's does not. Default 30 s.
    pub fn dns_ttl(mut self, ttl: Duration) -> Self {
        self.dns.positive = ttl;
        self
    }

    /// How long it is remembered that a name could not be resolved. Default 5 s.
    pub fn dns_negative_ttl(mut self, ttl: Duration) -> Self {
        self.dns.negative = ttl;
        self
    }

    /// Looks names up by a function of your own, which may block: it runs on at most 32 threads of the client's. Default:
    /// getaddrinfo(3).
    pub fn resolver(mut self, lookup: impl Fn(&str) -> std::io::Result<Addresses> + Send + Sync + 'static) -> Self {
        self.lookup = Arc::new(lookup);
        self
    }

    /// How long one of several addresses gets before the next is tried beside it (RFC 8305, section 5). Default 250 ms; at least
    /// 10 ms.
    pub fn attempt_delay(mut self, delay: Duration) -> Self {
        self.attempt_delay = delay.max(Duration::from_millis(10));
        self
    }

    /// How many redirects are followed; with 0 their responses are given as they are. Default 10.
    pub fn redirects(mut self, most: u32) -> Self {
        self.redirects = most;
        self
    }

    /// Whether compressed bodies are asked for and unpacked: gzip, br, zstd. Default true.
    pub fn decode(mut self, on: bool) -> Self {
        self.decode = on;
        self
    }

    /// The most bytes that `bytes`, `text` and `json` gather, unpacked. Default 64 MiB.
    pub fn collect_bytes(mut self, most: u64) -> Self {
        self.collect_bytes = most;
        self
    }

    /// The most bytes that `chunks` gives of one body, unpacked. Default: no limit, as whoever reads a piece at a time holds none.
    pub fn stream_bytes(mut self, most: u64) -> Self {
        self.stream_bytes = most;
        self
    }

    /// What a response's head, chunk lines and trailers may be at most: [`Limits`]. `body_bytes` counts packed bytes.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Whom to trust, and what to show: [`ClientTlsOptions`]. ALPN is the client's own: `http/1.1`.
    pub fn tls(mut self, options: ClientTlsOptions) -> Self {
        self.tls = ClientTlsOptions { alpn: self.tls.alpn, ..options };
        self
    }

    /// A field that every request carries that does not have one of this name itself; for example `User-Agent`. One that holds a secret
    /// (`Authorization`, `Cookie` and their like) goes to every origin that is asked, but to none that a redirect leads to.
    pub fn header(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        let added = match crate::request::check_field(name) {
            Ok(()) if name.eq_ignore_ascii_case("host") => Err("it is another for each URL".to_owned()),
            Ok(()) => self.headers.append(name, value).map_err(|error| error.to_string()),
            Err(why) => Err(why.to_owned()),
        };
        if let Err(why) = added {
            self.mistake.get_or_insert((name.escape_default().to_string(), why));
        }
        self
    }

    /// A client for any thread and any runtime. Starts its thread.
    ///
    /// # Errors
    /// [`BuildError`]: a setting that makes no sense, or no thread.
    pub fn build(self) -> Result<Client, BuildError> {
        Client::build(self)
    }

    /// A client of this thread alone.
    ///
    /// # Errors
    /// [`BuildError`]: a setting that makes no sense.
    pub fn build_local(self) -> Result<local::Client, BuildError> {
        local::Client::build(self)
    }

    /// The settings, if they make sense.
    pub(crate) fn checked(mut self) -> Result<Self, BuildError> {
        if let Some((name, why)) = self.mistake.take() {
            return Err(BuildError::Header { name, why });
        }
        if self.caps.total == 0 || self.caps.per_host == 0 {
            return Err(BuildError::NoConnections);
        }
        self.caps.per_host = self.caps.per_host.min(self.caps.total);
        Ok(self)
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("caps", &self.caps)
            .field("deadlines", &self.deadlines)
            .field("headers", &self.headers)
            .finish_non_exhaustive()
    }
}

/// Why a client could not be built.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BuildError {
    /// Allow at least one.
    #[error("connections and connections_per_host must be at least 1: with 0 no request could ever be sent")]
    NoConnections,
    /// Correct the default field.
    #[error("the default field `{name}` cannot be sent: {why}")]
    Header {
        /// Its name, escaped.
        name: String,
        /// What is wrong with it.
        why: String,
    },
    /// The client's thread could not be started: look at the limits on threads and memory.
    #[error("the client's thread could not be started")]
    Thread(#[source] oroshi_net::cores::CoresError),
}
