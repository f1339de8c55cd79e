//! A validated gateway: everything checked, defaults filled in, names replaced by indexes.

use std::sync::Arc;
use std::time::Duration;

use oroshi_lookup::{Allow, LookupSettings, StoreSettings};
use oroshi_net::CpuList;
use oroshi_service::{Proxies, Role};
use oroshi_words::Mistake;

use crate::access;
use crate::clients::ClientRule;
use crate::forward::{EncoderBudget, Rules};
use crate::limit;
use crate::route::Table;
use crate::script::{HookSet, ScriptSettings};
use crate::tls::TlsPlan;
use crate::upstream::{CheckSettings, Policy, PoolSettings, Target};

/// A validated gateway. [`Draft::plan`](crate::Draft::plan) makes one.
#[derive(Debug)]
pub struct Plan {
    /// The number of serving threads.
    pub threads: usize,
    /// The CPUs to pin the threads to, if any.
    pub cpus: Option<CpuList>,
    /// The listeners.
    pub listeners: Vec<Listener>,
    /// TLS towards clients, if any.
    pub tls: Option<TlsPlan>,
    /// The proxies in front that send a header of the PROXY protocol.
    pub proxies: Proxies,
    /// Limits on clients.
    pub limits: Limits,
    /// The limit on operators' connections, shared equally by all admin listeners; `None`: no limit.
    pub admin_connections: Option<usize>,
    /// The stores that look-ups and scripts use by name.
    pub stores: Vec<StoreSettings>,
    /// The look-ups.
    pub lookups: Vec<Lookup>,
    /// Groups of targets.
    pub upstreams: Vec<Upstream>,
    /// Scripts that routes and look-ups call.
    pub scripts: Vec<Script>,
    /// The limit on the bytes of `gate.cache`, which all scripts of the process share.
    pub script_cache: usize,
    /// The rate limits that routes name.
    pub limits_by_key: Vec<limit::Settings>,
    /// Finds a request's route, as an index into `routes`.
    pub table: Table,
    /// The routes.
    pub routes: Vec<Route>,
    /// The response to requests without a route.
    pub no_route: Answer,
    /// The access log, if any.
    pub access_log: Option<access::Settings>,
    /// How long requests may take to finish at shutdown.
    pub drain: Duration,
    /// Probable mistakes that are valid: each has a key and a message.
    pub warnings: Vec<Mistake>,
}

impl Plan {
    /// Takes over TLS towards upstreams, with the sessions that can be resumed, where settings and files are the same.
    pub(crate) fn keep_tls(&mut self, was: &Plan) {
        let known: Vec<_> = was.pools().filter_map(|pool| pool.secure.clone()).collect();
        let upstreams = self.upstreams.iter_mut().map(|upstream| &mut upstream.pool);
        let lookups = self.lookups.iter_mut().map(|lookup| &mut lookup.pool);
        let scripts = self.scripts.iter_mut().map(|script| &mut script.pool);
        for secure in upstreams.chain(lookups).chain(scripts).filter_map(|pool| pool.secure.as_mut()) {
            if let Some(same) = known.iter().find(|known| known.id() == secure.id()) {
                *secure = Arc::clone(same);
            }
        }
    }

    fn pools(&self) -> impl Iterator<Item = &PoolSettings> {
        let upstreams = self.upstreams.iter().map(|upstream| &upstream.pool);
        let lookups = self.lookups.iter().map(|lookup| &lookup.pool);
        upstreams.chain(lookups).chain(self.scripts.iter().map(|script| &script.pool))
    }
}

/// A listener: an address, and what is served there.
pub type Listener = oroshi_service::Listener<Serves>;

/// The requests that a listener serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Serves {
    /// Client requests, which the gateway forwards.
    Public,
    /// Client requests over TLS.
    Tls,
    /// `/status`, `/metrics`, `/explain`, `/purge`.
    Admin,
}

impl Role for Serves {
    const NAMED: &'static [(&'static str, Self)] =
        &[("public", Serves::Public), ("tls", Serves::Tls), ("admin", Serves::Admin)];

    fn is_admin(self) -> bool {
        self == Serves::Admin
    }

    fn scheme(self) -> &'static str {
        if self == Serves::Tls { "https" } else { "http" }
    }

    fn description(self) -> &'static str {
        match self {
            Serves::Public => "public: requests are forwarded",
            Serves::Tls => "tls: requests over TLS are forwarded",
            Serves::Admin => "admin: status, metrics, explain, purge",
        }
    }
}

/// Limits on clients. The number in brackets is the status of the response beyond a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Client connections per listener; further ones wait to be accepted.
    pub connections: usize,
    /// TLS handshakes under way per TLS listener; further clients wait to be accepted.
    pub handshakes: usize,
    /// Requests in progress for one host (503); `None`: no limit. Each thread gets an equal share.
    pub per_host: Option<usize>,
    /// Bytes of a request's head (431), its fields (431), its target (414), its body (413).
    pub head_bytes: usize,
    /// Header fields of a request.
    pub headers: usize,
    /// Header fields of an upstream's response (502).
    pub answer_headers: usize,
    /// Gateways of this kind that a request may have passed through (508); `None`: not checked.
    pub hops: Option<usize>,
    /// Bytes of memory that the compression of responses takes; further responses go as they are.
    pub compression_bytes: usize,
    /// Bytes of a request's target.
    pub target_bytes: usize,
    /// Bytes of a request's body.
    pub body_bytes: u64,
    /// How long a connection may wait for a request.
    pub idle: Duration,
    /// How long a request's head may take (408).
    pub head: Duration,
    /// How long a request's body may take in all, from the end of the head (408).
    pub body: Duration,
    /// How long a request's body may pause (408).
    pub body_pause: Duration,
    /// The lowest rate of a request's body, bytes per second, over each `body_rate_window` of waiting for it (408); 0:
    /// any.
    pub body_rate: u64,
    /// The window over which `body_rate` is measured.
    pub body_rate_window: Duration,
    /// How long a client may read nothing at all.
    pub write: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            connections: 100_000,
            handshakes: 10_000,
            per_host: None,
            head_bytes: 64 * 1024,
            headers: 100,
            answer_headers: 1000,
            hops: Some(10),
            compression_bytes: EncoderBudget::DEFAULT_BYTES,
            target_bytes: 8 * 1024,
            body_bytes: u64::MAX,
            idle: Duration::from_secs(60),
            head: Duration::from_secs(10),
            body: Duration::from_secs(3600),
            body_pause: Duration::from_secs(30),
            body_rate: 500,
            body_rate_window: Duration::from_secs(20),
            write: Duration::from_secs(30),
        }
    }
}

/// A group of targets that share requests.
#[derive(Clone, Debug)]
pub struct Upstream {
    /// Its name.
    pub name: String,
    /// The targets with their weights, at least one.
    pub targets: Vec<(Target, u32)>,
    /// The balancing policy.
    pub policy: Policy,
    /// The input of [`Policy::ConsistentHash`].
    pub hash: HashBy,
    /// How its targets are checked, if they are.
    pub check: Option<CheckSettings>,
    /// Connection settings. Each upstream has a class of its own.
    pub pool: PoolSettings,
}

/// The input of the consistent hash: requests with the same value go to the same target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum HashBy {
    /// The requested host.
    #[default]
    Host,
    /// The path and query.
    Target,
    /// The client's address.
    Client,
    /// The value of a header field.
    Header(String),
}

/// A look-up from a key to targets.
#[derive(Clone, Debug)]
pub struct Lookup {
    /// The tiers and their settings.
    pub settings: LookupSettings,
    /// Where the key comes from.
    pub key: KeyFrom,
    /// The balancing policy for several targets.
    pub policy: Policy,
    /// The input of [`Policy::ConsistentHash`].
    pub hash: HashBy,
    /// Connection settings. Each look-up has a class of its own; `allow` is the look-up's.
    pub pool: PoolSettings,
    /// The response if no store has the key, or the request has no valid key.
    pub unknown: Answer,
    /// The response if the stores are down.
    pub down: Answer,
    /// The response if the stored value is invalid.
    pub invalid: Answer,
}

/// The source of a look-up's key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum KeyFrom {
    /// The requested host, in canonical form.
    #[default]
    Host,
    /// The value of a header field.
    Header(String),
    /// A segment of the path, counted from 1.
    Segment(usize),
    /// The result of a script's `on_key`: an index into [`Plan::scripts`].
    Script(usize),
}

/// A script, with the settings for targets that it names.
#[derive(Clone, Debug)]
pub struct Script {
    /// Its file and limits.
    pub settings: ScriptSettings,
    /// The hooks that the script defines.
    pub hooks: HookSet,
    /// The targets that `on_route` may name.
    pub allow: Allow,
    /// The balancing policy for several targets.
    pub policy: Policy,
    /// The input of [`Policy::ConsistentHash`].
    pub hash: HashBy,
    /// Connection settings. Each script has a class of its own; `allow` is the script's.
    pub pool: PoolSettings,
    /// The response if the script names no target, and the route has no other action.
    pub unknown: Answer,
    /// The response if the script names an invalid target, or one that is not allowed.
    pub invalid: Answer,
}

/// A route's name, action and rules.
#[derive(Debug)]
pub struct Route {
    /// Its name in logs and metrics.
    pub name: String,
    /// The script to call first, if any: an index into [`Plan::scripts`].
    pub script: Option<usize>,
    /// Whether a script takes part: the route's own, or one that gives its look-up's key.
    pub is_scripted: bool,
    /// The rate limits that its requests must pass, in this order: indexes into [`Plan::limits_by_key`].
    pub limits: Vec<usize>,
    /// The rule for client certificates, if any.
    pub clients: Option<ClientRule>,
    /// The action. A route with only a script has the script's `unknown`.
    pub action: Action,
    /// The rules for forwarding.
    pub rules: Rules,
}

/// The action for a route's requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Forward to an upstream: an index into [`Plan::upstreams`].
    Forward(usize),
    /// Forward to the targets of a look-up: an index into [`Plan::lookups`].
    Lookup(usize),
    /// Redirect the client.
    Redirect {
        /// 301, 302, 303, 307 or 308.
        status: u16,
        /// The value of `Location`, as a template.
        to: Template,
    },
    /// Respond directly.
    Answer(Answer),
}

/// A constant response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// 200 to 599.
    pub status: u16,
    /// The value of `Content-Type`.
    pub content_type: String,
    /// The body.
    pub body: Arc<[u8]>,
    /// The value of `Retry-After` in seconds, if sent.
    pub retry_after: Option<u32>,
}

impl Answer {
    /// Makes a response of one line of text.
    #[must_use]
    pub fn text(status: u16, line: &str) -> Self {
        Answer {
            status,
            content_type: "text/plain; charset=utf-8".to_owned(),
            body: format!("{line}\n").into_bytes().into(),
            retry_after: None,
        }
    }
}

/// A text with placeholders: `{host}`, `{path}`, `{query}` (with its `?`), `{target}` (path and query), `{scheme}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template(Vec<Part>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Host,
    Path,
    Query,
    Scheme,
}

/// The values of a [`Template`]'s placeholders.
#[derive(Clone, Copy, Debug)]
pub struct TemplateValues<'a> {
    /// The requested host, with its port.
    pub host: &'a str,
    /// The requested path.
    pub path: &'a str,
    /// The query with its `?`; empty if there is none.
    pub query: &'a str,
    /// `http` or `https`.
    pub scheme: &'a str,
}

impl Template {
    /// Parses a template.
    ///
    /// # Errors
    /// A message with the mistake and the expected form.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((before, behind)) = rest.split_once('{') {
            let (name, after) = behind.split_once('}').ok_or_else(|| format!("`{text}` has a `{{` without a `}}`"))?;
            parts.push(Part::Text(before.to_owned()));
            match name {
                "host" => parts.push(Part::Host),
                "path" => parts.push(Part::Path),
                "query" => parts.push(Part::Query),
                "target" => parts.extend([Part::Path, Part::Query]),
                "scheme" => parts.push(Part::Scheme),
                _ => {
                    return Err(format!(
                        "`{{{name}}}` is no part of a request: expected {{host}}, {{path}}, {{query}}, {{target}} or \
                         {{scheme}}"
                    ));
                }
            }
            rest = after;
        }
        parts.push(Part::Text(rest.to_owned()));
        parts.retain(|part| !matches!(part, Part::Text(text) if text.is_empty()));
        match parts
            .iter()
            .all(|part| !matches!(part, Part::Text(text) if text.bytes().any(|byte| !byte.is_ascii_graphic())))
        {
            true if !parts.is_empty() => Ok(Template(parts)),
            _ => Err(format!(
                "`{text}` is no place to go to: expected a URL or a path, with no white space and ASCII only"
            )),
        }
    }

    /// Returns whether the template uses the request's host.
    pub fn names_host(&self) -> bool {
        self.0.iter().any(|part| matches!(part, Part::Host))
    }

    /// Fills the placeholders in.
    #[must_use]
    pub fn fill(&self, filling: &TemplateValues<'_>) -> String {
        let text = |(place, part): (usize, &'_ Part)| match part {
            Part::Text(text) => text.clone(),
            Part::Host => filling.host.to_owned(),
            // In place of a URL, `//name` means another host (RFC 3986, section 4.2); browsers read `/\name` likewise.
            Part::Path if place == 0 => format!("/{}", filling.path.trim_start_matches(['/', '\\'])),
            Part::Path => filling.path.to_owned(),
            Part::Query => filling.query.to_owned(),
            Part::Scheme => filling.scheme.to_owned(),
        };
        self.0.iter().enumerate().map(text).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_take_the_requests_parts() {
        let filling = TemplateValues { host: "a.example:81", path: "/x", query: "?y=1", scheme: "http" };
        for (text, filled) in [
            ("https://{host}{target}", "https://a.example:81/x?y=1"),
            ("https://b.example{path}", "https://b.example/x"),
            ("{scheme}://b/{query}", "http://b/?y=1"),
            ("/plain", "/plain"),
        ] {
            assert_eq!(Template::parse(text).unwrap().fill(&filling), filled);
        }
        let elsewhere = TemplateValues { path: "//evil.example/", ..filling };
        assert_eq!(Template::parse("{target}").unwrap().fill(&elsewhere), "/evil.example/?y=1");
        let elsewhere = TemplateValues { path: "/\\/evil.example", ..filling };
        assert_eq!(Template::parse("{path}").unwrap().fill(&elsewhere), "/evil.example");
        for bad in ["", "https://{host", "{port}", "/a b", "/\r\nX: y", "/é"] {
            assert!(Template::parse(bad).is_err(), "{bad}");
        }
    }
}
