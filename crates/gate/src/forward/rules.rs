//! A route's settings for forwarding, before and after validation.

use std::sync::Arc;
use std::time::Duration;

use oroshi_http1::Limits;
use oroshi_service::Network;

use super::compress::Compression;
use super::edits::Edits;

/// The value of `Host` for upstreams.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum HostPolicy {
    /// The client's `Host`. For an HTTP/1.0 request without it, the target's name.
    #[default]
    Preserve,
    /// The target's name or address, with its port unless 80; `localhost` for a unix socket.
    Target,
    /// A fixed value: a host, optionally with a port.
    Fixed(String),
}

/// Timeouts per phase. [`Duration::MAX`] disables one. Each fires at its time or a few milliseconds later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// In the queue for a connection. Default 5 s.
    pub queue: Duration,
    /// Resolving the target's name and connecting to any of its addresses. Default 3 s.
    pub connect: Duration,
    /// From the end of the request to the end of the response's head. Default 60 s.
    pub head: Duration,
    /// A pause of the upstream: in the response's body, or while reading the request's. Default 60 s.
    pub between: Duration,
    /// The whole exchange, from the request's head to the upstream's last byte. Upgraded connections and streams of
    /// events (`text/event-stream`) have no such limit. Default 6 h.
    pub total: Duration,
    /// A pause in both directions of an upgraded connection. Default one hour.
    pub tunnel: Duration,
    /// How long the gateway waits for the response after the client has ended its sending side. The client may still
    /// read; over TCP, a client that has left looks the same. Zero: not at all. Default 1 s.
    pub half_close: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Timeouts {
            queue: Duration::from_secs(5),
            connect: Duration::from_secs(3),
            head: Duration::from_secs(60),
            between: Duration::from_secs(60),
            total: Duration::from_secs(6 * 3600),
            tunnel: Duration::from_secs(3600),
            half_close: Duration::from_secs(1),
        }
    }
}

/// Fields about a request's origin. From an untrusted peer, the gateway drops `X-Forwarded-For`, `-Proto`, `-Host`,
/// `-Port`, `X-Real-IP` and `Forwarded`, even those that it does not write.
#[derive(Clone, Debug)]
pub struct Forwarding {
    /// `X-Forwarded-For`, `-Proto` and `-Host`. A trusted peer's are kept, and the gateway appends the peer's address
    /// to the first. Default on.
    pub x_forwarded: bool,
    /// `X-Forwarded-Port`: the gateway's port. A trusted peer's is kept.
    pub x_forwarded_port: bool,
    /// `X-Real-IP`: the peer's address. A trusted peer's is kept.
    pub x_real_ip: bool,
    /// `Forwarded` (RFC 7239) with `for`, `proto` and `host`, appended to a trusted peer's.
    pub forwarded: bool,
    /// `X-Request-Id`: a trusted peer's if it has at most 64 visible characters, otherwise a new one. If off, the field
    /// is passed on.
    pub request_id: bool,
    /// `traceparent` (W3C Trace Context): a trusted peer's if it is valid, with its `tracestate`, otherwise a new one.
    /// If off, both fields are passed on.
    pub traceparent: bool,
    /// Trusted peers.
    pub trusted: Vec<Network>,
    /// Whether clients on a unix socket are trusted.
    pub trust_unix: bool,
}

impl Default for Forwarding {
    fn default() -> Self {
        Forwarding {
            x_forwarded: true,
            x_forwarded_port: false,
            x_real_ip: false,
            forwarded: false,
            request_id: false,
            traceparent: false,
            trusted: Vec::new(),
            trust_unix: false,
        }
    }
}

/// A route's settings for forwarding. [`Rules::new`] validates them.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The value of `Host`.
    pub host: HostPolicy,
    /// The fields about the request's origin.
    pub forwarding: Forwarding,
    /// Changes to the request's fields.
    pub request: Edits,
    /// Changes to the response's fields.
    pub response: Edits,
    /// The prefix to strip from the path, in whole segments: `/api` from `/api/x`, not from `/apix`.
    pub strip_prefix: String,
    /// The prefix to add after stripping.
    pub add_prefix: String,
    /// The gateway's name in `Via`, in both directions (RFC 9110, section 7.6.3). Empty: no `Via`.
    pub via: String,
    /// Bytes of a request's body to buffer before contacting an upstream; 0: none. Default 64 KiB.
    pub buffer: usize,
    /// Whether the gateway adds itself to `CDN-Loop` (RFC 8586), which reveals loops through several gateways. Default
    /// no.
    pub marks: bool,
    /// Whether clients may switch to another protocol, such as WebSocket. Default yes.
    pub upgrade: bool,
    /// Whether the gateway retries on another connection where that is safe. Default yes.
    pub retry: bool,
    /// Whether a failure's response contains the log's detail. For development: the detail names upstreams.
    pub explain: bool,
    /// Which responses are compressed, if any.
    pub compression: Option<Arc<Compression>>,
    /// Timeouts.
    pub timeouts: Timeouts,
    /// Limits on upstreams' responses.
    pub limits: Limits,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            host: HostPolicy::default(),
            forwarding: Forwarding::default(),
            request: Edits::none(),
            response: Edits::none(),
            strip_prefix: String::new(),
            add_prefix: String::new(),
            via: String::new(),
            buffer: 64 * 1024,
            marks: false,
            upgrade: true,
            retry: true,
            explain: false,
            compression: None,
            timeouts: Timeouts::default(),
            limits: Limits::default(),
        }
    }
}

/// A mistake in a route's settings.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// The fixed `Host` is no authority.
    #[error("{0:?} is not a host with an optional port, such as app.example.org or 10.0.0.7:8080")]
    Host(String),
    /// A prefix is no path.
    #[error("{value:?} is not a path: it begins with / and has no ?, # or white space")]
    Prefix {
        /// `strip-prefix` or `add-prefix`.
        key: &'static str,
        /// The given value.
        value: String,
    },
    /// The name in `Via` is no token.
    #[error("{0:?} is not a name for this gateway: use letters, digits, hyphens, dots")]
    Via(String),
    /// A timeout is zero.
    #[error("0 leaves no time at all: expected more")]
    Timeout {
        /// `timeouts.connect`, for example.
        key: &'static str,
    },
}

impl RuleError {
    /// Returns the setting's key in a route: `host-header`, `timeouts.connect`.
    pub fn key(&self) -> &'static str {
        match self {
            RuleError::Host(_) => "host-header",
            RuleError::Via(_) => "via",
            RuleError::Prefix { key, .. } | RuleError::Timeout { key } => key,
        }
    }
}

/// A route's validated settings for forwarding. Cores share them.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    pub(crate) settings: Settings,
}

impl Rules {
    /// Validates a route's settings.
    ///
    /// # Errors
    /// All mistakes.
    pub fn new(mut settings: Settings) -> Result<Self, Vec<RuleError>> {
        let mut wrong = Vec::new();
        if let HostPolicy::Fixed(host) = &settings.host
            && !is_authority(host)
        {
            wrong.push(RuleError::Host(host.clone()));
        }
        for (key, prefix) in [("strip-prefix", &mut settings.strip_prefix), ("add-prefix", &mut settings.add_prefix)] {
            let sound = |byte: u8| byte > b' ' && byte != 0x7f && byte != b'?' && byte != b'#';
            let is_path = prefix.starts_with('/') && prefix.bytes().all(sound);
            if !prefix.is_empty() && !is_path {
                wrong.push(RuleError::Prefix { key, value: prefix.clone() });
            }
            // `/api/` and `/api` mean the same.
            prefix.truncate(prefix.trim_end_matches('/').len());
        }
        let in_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:".contains(&byte);
        if !settings.via.bytes().all(in_name) {
            wrong.push(RuleError::Via(settings.via.clone()));
        }
        let Timeouts { connect, head, between, total, tunnel, queue: _, half_close: _ } = settings.timeouts;
        for (key, time) in [
            ("timeouts.connect", connect),
            ("timeouts.head", head),
            ("timeouts.between", between),
            ("timeouts.total", total),
            ("timeouts.tunnel", tunnel),
        ] {
            if time.is_zero() {
                wrong.push(RuleError::Timeout { key });
            }
        }
        if wrong.is_empty() { Ok(Rules { settings }) } else { Err(wrong) }
    }

    /// Returns the settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }
}

/// Returns whether http1 would accept this as a request's Host.
pub(crate) fn is_authority(host: &str) -> bool {
    use oroshi_http1::{RequestDecoder, RequestEvent};
    let head = format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
    let mut input = head.as_bytes();
    let read = RequestDecoder::default().decode(&Limits::default(), &mut input);
    let same = |read: Option<&[u8]>| read == Some(host.as_bytes());
    !host.is_empty() && matches!(read, Ok(Some(RequestEvent::Head(head))) if same(head.host)) && input.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_that_is_wrong_is_told() {
        let settings = Settings {
            host: HostPolicy::Fixed("a\r\nX: y".to_owned()),
            strip_prefix: "api".to_owned(),
            add_prefix: "/a?b".to_owned(),
            via: "a b".to_owned(),
            timeouts: Timeouts { queue: Duration::ZERO, connect: Duration::ZERO, ..Timeouts::default() },
            ..Settings::default()
        };
        let keys: Vec<&str> = Rules::new(settings).unwrap_err().iter().map(RuleError::key).collect();
        assert_eq!(keys, ["host-header", "strip-prefix", "add-prefix", "via", "timeouts.connect"]);
        for host in ["a", "a:80", "[::1]:80", "10.0.0.1"] {
            let settings = Settings { host: HostPolicy::Fixed(host.to_owned()), ..Settings::default() };
            assert!(Rules::new(settings).is_ok(), "{host}");
        }
        let settings = Settings { strip_prefix: "/api/".to_owned(), add_prefix: "/".to_owned(), ..Settings::default() };
        let rules = Rules::new(settings).unwrap();
        assert_eq!((&*rules.settings.strip_prefix, &*rules.settings.add_prefix), ("/api", ""));
    }
}
