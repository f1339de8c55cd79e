//! Settings: caps, deadlines, limits.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use oroshi_core::{Addresses, Lookup, Ttl, system};
use oroshi_http1::Limits;
use oroshi_net::{ClientTlsOptions, Endpoint, Permitted, Scheme};
use thiserror::Error;

use crate::cookies::CookieJar;
use crate::deadline::Deadlines;
use crate::headers::Headers;
use crate::pool::Caps;
use crate::proxy::{Proxies, Proxy};
use crate::retry::Retries;

/// The settings of a client; each method has its default. [`build`](Self::build) makes a client for any thread,
/// [`build_local`](Self::build_local) a client for this core alone.
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
    pub(crate) http2: Http2,
    pub(crate) tls: ClientTlsOptions,
    pub(crate) proxy_tls: ClientTlsOptions,
    pub(crate) permitted: Option<Arc<Permitted>>,
    pub(crate) proxies: Proxies,
    pub(crate) cookies: Option<CookieJar>,
    pub(crate) retries: Retries,
    pub(crate) headers: Headers,
    /// The first default field that cannot be sent: its name, and the reason.
    pub(crate) mistake: Option<(String, String)>,
}

/// Which connections speak HTTP/2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Http2 {
    Off,
    /// Those over TLS whose server chooses it by ALPN.
    Negotiated,
    /// All.
    PriorKnowledge,
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
            http2: Http2::Negotiated,
            tls: ClientTlsOptions::default(),
            proxy_tls: ClientTlsOptions::default(),
            permitted: None,
            proxies: Proxies::none(),
            cookies: None,
            retries: Retries::default(),
            headers: Headers::new(),
            mistake: None,
        }
    }
}

impl Builder {
    /// Sets the maximum of connections, including idle ones; further requests queue. Default 10,000.
    ///
    /// Building raises the process's limit of file descriptors as far as necessary. If the hard limit is lower, it
    /// lowers the cap, and requests queue that would otherwise fail.
    pub fn connections(mut self, most: usize) -> Self {
        self.caps.total = most;
        self
    }

    /// Sets the only servers to which the client connects; `None`: all. Default `None`. With [`proxies`](Self::proxies)
    /// the rules are for the proxy: where it connects is its own affair.
    pub fn permitted(mut self, permitted: Option<Arc<Permitted>>) -> Self {
        self.permitted = permitted;
        self
    }

    /// Sets which requests go through a proxy: [`Proxies`]. Default: none, whatever the environment says.
    pub fn proxies(mut self, proxies: Proxies) -> Self {
        self.proxies = proxies;
        self
    }

    /// Keeps cookies in this jar: responses fill it, and requests carry its cookies, redirects too. A request or a
    /// client with a `Cookie` field of its own sends that one alone. Default: none.
    pub fn cookies(mut self, jar: CookieJar) -> Self {
        self.cookies = Some(jar);
        self
    }

    /// Sets whether and when a failed request is sent again: [`Retries`]. Default: only after a broken connection. A
    /// request can have its own number.
    pub fn retries(mut self, retries: Retries) -> Self {
        self.retries = retries;
        self
    }

    /// Sets the maximum of connections to one origin: scheme, host and port, or unix socket. Default 10,000.
    pub fn connections_per_host(mut self, most: usize) -> Self {
        self.caps.per_host = most;
        self
    }

    /// Sets the maximum of idle connections of one origin; further ones are closed. Default 10,000.
    pub fn idle_per_host(mut self, most: usize) -> Self {
        self.caps.idle_per_host = most;
        self
    }

    /// Sets the maximum of requests that wait for a connection; further ones fail at once. Default 100,000.
    pub fn waiting(mut self, most: usize) -> Self {
        self.caps.waiting = most;
        self
    }

    /// Sets how long to keep an idle connection. Default 30 s. A server's shorter announcement (`Keep-Alive:
    /// timeout=5`) has priority, less a second.
    pub fn idle_timeout(mut self, limit: Duration) -> Self {
        self.idle = limit;
        self
    }

    /// Sets the maximum age of a reusable connection, so that changes of names and servers take effect. Default 10
    /// minutes.
    pub fn max_age(mut self, limit: Duration) -> Self {
        self.age = limit;
        self
    }

    /// Sets whether connections carry more than one request. Default true; false sends `Connection: close`.
    pub fn keep_alive(mut self, on: bool) -> Self {
        self.keep_alive = on;
        self
    }

    /// Sets the deadlines of all phases: [`Deadlines`]. A request can have its own.
    pub fn deadlines(mut self, deadlines: Deadlines) -> Self {
        self.deadlines = deadlines;
        self
    }

    /// Sets the total timeout of a request: [`Deadlines::total`]. Default: for ever.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.deadlines.total = limit;
        self
    }

    /// Sets how long to keep a name's addresses if the resolver gives no TTL, as the system's gives none. Default 30 s.
    pub fn dns_ttl(mut self, ttl: Duration) -> Self {
        self.dns.positive = ttl;
        self
    }

    /// Sets how long to cache a failure to resolve a name. Default 5 s.
    pub fn dns_negative_ttl(mut self, ttl: Duration) -> Self {
        self.dns.negative = ttl;
        self
    }

    /// Sets a function that resolves names. It may block: at most 32 threads of the client run it. Default:
    /// getaddrinfo(3).
    pub fn resolver(mut self, lookup: impl Fn(&str) -> std::io::Result<Addresses> + Send + Sync + 'static) -> Self {
        self.lookup = Arc::new(lookup);
        self
    }

    /// Sets the head start of one address before the next is tried in parallel (RFC 8305, section 5). Default 250 ms;
    /// at least 10 ms.
    pub fn attempt_delay(mut self, delay: Duration) -> Self {
        self.attempt_delay = delay.max(Duration::from_millis(10));
        self
    }

    /// Sets the maximum of redirects to follow; with 0 the caller gets the redirect's response. Default 10.
    pub fn redirects(mut self, most: u32) -> Self {
        self.redirects = most;
        self
    }

    /// Sets whether to request and decode compressed bodies: gzip, br, zstd. Default true.
    pub fn decode(mut self, on: bool) -> Self {
        self.decode = on;
        self
    }

    /// Sets the maximum of decoded bytes that `bytes`, `text` and `json` collect. Default 64 MiB.
    pub fn collect_bytes(mut self, most: u64) -> Self {
        self.collect_bytes = most;
        self
    }

    /// Sets the maximum of decoded bytes that `chunks` returns per body. Default: no limit, because the pieces are not
    /// kept.
    pub fn stream_bytes(mut self, most: u64) -> Self {
        self.stream_bytes = most;
        self
    }

    /// Sets the limits on a response's head, chunk lines and trailers: [`Limits`]. `body_bytes` counts compressed
    /// bytes.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Sets whether servers may choose HTTP/2 by ALPN, over TLS. Default true. Without [`keep_alive`](Self::keep_alive)
    /// the client does not offer it.
    pub fn http2(mut self, on: bool) -> Self {
        self.http2 = if on { Http2::Negotiated } else { Http2::Off };
        self
    }

    /// Makes all connections speak HTTP/2, also those without TLS (RFC 9113, section 3.3). A server that does not know
    /// HTTP/2 then answers nothing that can be used.
    pub fn http2_prior_knowledge(mut self) -> Self {
        self.http2 = Http2::PriorKnowledge;
        self
    }

    /// Sets trusted roots and client certificates: [`ClientTlsOptions`]. The client itself sets ALPN: `h2` and
    /// `http/1.1`, or what [`http2`](Self::http2) leaves of them.
    pub fn tls(mut self, options: ClientTlsOptions) -> Self {
        self.tls = options;
        self
    }

    /// Sets trusted roots and client certificates for `https://` proxies: [`ClientTlsOptions`]. Default: the machine's
    /// roots, no certificate. [`tls`](Self::tls) is for servers alone, behind a proxy too. The client itself sets ALPN.
    pub fn proxy_tls(mut self, options: ClientTlsOptions) -> Self {
        self.proxy_tls = options;
        self
    }

    /// Adds a default field, for example `User-Agent`. A request's own field of this name replaces it. A default that
    /// holds a secret (`Authorization`, `Cookie` and similar) goes to every requested origin, but not to redirects'
    /// other origins.
    pub fn header(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        let added = match check_field(name) {
            Ok(()) if name.eq_ignore_ascii_case("host") => Err("it is another for each URL".to_owned()),
            Ok(()) => self.headers.append(name, value).map_err(|error| error.to_string()),
            Err(why) => Err(why.to_owned()),
        };
        if let Err(why) = added {
            self.mistake.get_or_insert((name.escape_default().to_string(), why));
        }
        self
    }

    /// Returns the proxy to which a request goes in absolute form.
    pub(crate) fn forwarding_proxy(&self, endpoint: &Endpoint) -> Option<&Arc<Proxy>> {
        let is_plain = endpoint.scheme == Scheme::Http && self.http2 != Http2::PriorKnowledge;
        self.proxies.of(endpoint).filter(|proxy| is_plain && proxy.forwards())
    }

    /// Returns the settings if they are valid.
    pub(crate) fn checked(mut self) -> Result<Self, BuildError> {
        if let Some((name, why)) = self.mistake.take() {
            return Err(BuildError::Header { name, why });
        }
        if self.caps.total == 0 || self.caps.per_host == 0 {
            return Err(BuildError::NoConnections);
        }
        self.caps.per_host = self.caps.per_host.min(self.caps.total);
        if !self.keep_alive && self.http2 == Http2::Negotiated {
            self.http2 = Http2::Off;
        }
        let protocols: &[&[u8]] = match self.http2 {
            Http2::Off => &[b"http/1.1"],
            Http2::Negotiated => &[b"h2", b"http/1.1"],
            Http2::PriorKnowledge => &[b"h2"],
        };
        self.tls.alpn = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        self.proxy_tls.alpn = vec![b"http/1.1".to_vec()];
        Ok(self)
    }
}

/// Checks whether the caller may set a field of this name.
///
/// # Errors
/// The client writes the field itself; the text says why.
pub fn check_field(name: &str) -> Result<(), &'static str> {
    const OWN: [&str; 10] = [
        "content-length",
        "transfer-encoding",
        "connection",
        "keep-alive",
        "proxy-connection",
        "upgrade",
        "te",
        "trailer",
        "expect",
        "content_length",
    ];
    if OWN.iter().any(|own| name.eq_ignore_ascii_case(own)) {
        return Err("it says how the message is sent, which is the client's to write");
    }
    Ok(())
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
        /// The mistake.
        why: String,
    },
    /// The client's thread could not be started: check the limits on threads and memory.
    #[error("the client's thread could not be started")]
    Thread(#[source] oroshi_net::threads::ThreadsError),
}
