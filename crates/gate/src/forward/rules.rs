//! What a route asks of forwarding: settings as they are given, and as they are used.

use std::time::Duration;

use oroshi_http1::Limits;

use super::edits::Edits;
use super::network::Network;

/// What a server behind the gateway is told in `Host`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum HostPolicy {
    /// Whom the client asked for. To a client of HTTP/1.0 that does not say, the target's name.
    #[default]
    Preserve,
    /// The target's name or address, with its port unless it is 80; `localhost` for a unix socket.
    Target,
    /// Always this. Must be an authority: a host, perhaps with a port.
    Fixed(String),
}

/// How long each phase may take. [`Duration::MAX`] is never. Each fires at its time or a few milliseconds later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// Waiting in line for a connection. Default 5 s.
    pub queue: Duration,
    /// InspectFuture the target's name up, and connecting; several addresses share it. Default 3 s.
    pub connect: Duration,
    /// From the end of the request to the end of the answer's head. Default 60 s.
    pub head: Duration,
    /// A pause of the server behind: in its answer's body, or while it does not take the request's. Default 60 s.
    pub between: Duration,
    /// The whole exchange, from the request's head to the last byte from the server behind. Neither an upgraded connection nor a stream of
    /// events (`text/event-stream`) has this limit. Default 6 h.
    pub total: Duration,
    /// A pause in both directions of an upgraded connection. Default one hour.
    pub tunnel: Duration,
    /// For how long a client that has ended its sending side is still waited for with an answer: it may read on, and over TCP one that has
    /// left looks the same. Zero: not at all. Default 1 s.
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

/// What is said of where a request comes from. From a peer that is not trusted, whatever it says itself in `X-Forwarded-For`, `-Proto`,
/// `-Host`, `-Port`, `X-Real-IP` and `Forwarded` is left out, also where the gateway does not write that field.
#[derive(Clone, Debug)]
pub struct Forwarding {
    /// `X-Forwarded-For`, `-Proto` and `-Host`. What a trusted peer says is kept, its own address is appended to the first. Default on.
    pub x_forwarded: bool,
    /// `X-Forwarded-Port`: the port at which the gateway was asked. A trusted peer's is kept.
    pub x_forwarded_port: bool,
    /// `X-Real-IP`: the peer's address. A trusted peer's is kept.
    pub x_real_ip: bool,
    /// `Forwarded` (RFC 7239) with `for`, `proto` and `host`, appended to a trusted peer's.
    pub forwarded: bool,
    /// `X-Request-Id`: a trusted peer's if it is of at most 64 visible characters, otherwise a new one. When off, the field is passed on.
    pub request_id: bool,
    /// Who is trusted.
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
            trusted: Vec::new(),
            trust_unix: false,
        }
    }
}

/// What a route asks of forwarding, as it is given. [`Rules::new`] checks it.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What `Host` says.
    pub host: HostPolicy,
    /// Who the request is said to come from.
    pub forwarding: Forwarding,
    /// Changes to the request's fields.
    pub request: Edits,
    /// Changes to the answer's fields.
    pub response: Edits,
    /// Taken off the front of the path, if it is there as whole segments: `/api` from `/api/x`, not from `/apix`.
    pub strip_prefix: String,
    /// Put in front of the path after that.
    pub add_prefix: String,
    /// The gateway's name in `Via`, in both directions (RFC 9110, section 7.6.3); none is written where this is empty.
    pub via: String,
    /// So many bytes of a request's body are waited for, if it has as many, before anything is sent to the server behind; 0: none. Default 64 KiB.
    pub buffer: usize,
    /// Whether the gateway adds itself to `CDN-Loop` (RFC 8586), by which a loop over several gateways is known. Default no.
    pub marks: bool,
    /// Whether a client may switch to another protocol, such as WebSocket. Default yes.
    pub upgrade: bool,
    /// Whether a request is sent again on another connection where that is safe. Default yes.
    pub retry: bool,
    /// Whether the text of a failure's answer says all that the log is told. For development: it names what is behind the gateway.
    pub explain: bool,
    /// Time limits.
    pub timeouts: Timeouts,
    /// Limits on the answers of the server behind.
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
            timeouts: Timeouts::default(),
            limits: Limits::default(),
        }
    }
}

/// What is wrong with a route's settings.
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
        /// What was given.
        value: String,
    },
    /// The name in `Via` is no token.
    #[error("{0:?} is not a name for this gateway: use letters, digits, hyphens, dots")]
    Via(String),
    /// No time at all is left for a phase.
    #[error("0 leaves no time at all: expected more")]
    Timeout {
        /// `timeouts.connect` and the like.
        key: &'static str,
    },
}

impl RuleError {
    /// The setting's key in a route: `host-header`, `timeouts.connect`.
    pub fn key(&self) -> &'static str {
        match self {
            RuleError::Host(_) => "host-header",
            RuleError::Via(_) => "via",
            RuleError::Prefix { key, .. } | RuleError::Timeout { key } => key,
        }
    }
}

/// What a route asks of forwarding, checked. It belongs to no core and can be shared.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    pub(crate) settings: Settings,
}

impl Rules {
    /// Checks a route's settings.
    ///
    /// # Errors
    /// Everything that is wrong with them.
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

    /// The settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }
}

/// Whether http1 would read this as a request's Host.
fn is_authority(host: &str) -> bool {
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
