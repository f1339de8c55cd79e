//! A gateway as it is carried out: everything checked, every default filled in, names resolved to places in lists.

use std::sync::Arc;
use std::time::Duration;

use oroshi_lookup::{Allow, LookupSettings, StoreSettings};
use oroshi_net::CpuList;
use oroshi_service::Role;
use oroshi_words::Mistake;

use crate::access;
use crate::forward::Rules;
use crate::route::Table;
use crate::script::{HookSet, ScriptSettings};
use crate::upstream::{Policy, PoolSettings, Target};

/// A gateway as it is carried out. [`Draft::plan`](crate::Draft::plan) makes one.
#[derive(Debug)]
pub struct Plan {
    /// How many threads serve.
    pub threads: usize,
    /// The CPUs that they are pinned to, if any.
    pub cpus: Option<CpuList>,
    /// Where it listens, and what for.
    pub listeners: Vec<Listener>,
    /// Limits on clients.
    pub limits: Limits,
    /// Connections that operators may have at all admin addresses together, of which each has its share; `None`: as many as come.
    pub admin_connections: Option<usize>,
    /// The stores that look-ups and scripts know by their names.
    pub stores: Vec<StoreSettings>,
    /// Ways from a key to targets.
    pub lookups: Vec<Lookup>,
    /// Groups of targets.
    pub upstreams: Vec<Upstream>,
    /// Scripts that routes and look-ups ask.
    pub scripts: Vec<Script>,
    /// What they keep in common (`gate.cache`) takes so many bytes at most, for the whole process.
    pub script_cache: usize,
    /// Which request goes which way; the numbers are places in `routes`.
    pub table: Table,
    /// What is done on each way.
    pub routes: Vec<Route>,
    /// What a request is answered that takes no route.
    pub no_route: Answer,
    /// Requests that are told, if any.
    pub access_log: Option<access::Settings>,
    /// How long requests may take to finish after the end was asked for.
    pub drain: Duration,
    /// What is most likely not meant so: each a key, and what is odd about it.
    pub warnings: Vec<Mistake>,
}

/// A listener: an address, and what is served there.
pub type Listener = oroshi_service::Listener<Serves>;

/// The requests that a listener serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Serves {
    /// Requests to be forwarded.
    Public,
    /// `/status`, `/metrics`, `/explain`, `/purge`.
    Admin,
}

impl Role for Serves {
    const NAMED: &'static [(&'static str, Self)] = &[("public", Serves::Public), ("admin", Serves::Admin)];

    fn is_admin(self) -> bool {
        self == Serves::Admin
    }

    fn description(self) -> &'static str {
        match self {
            Serves::Public => "public: requests are forwarded",
            Serves::Admin => "admin: status, metrics, explain, purge",
        }
    }
}

/// What clients may do. Each limit is answered with the status that says which.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Client connections at each address; further ones wait to be accepted.
    pub connections: usize,
    /// Requests under way for one host in all, answered 503 beyond; `None`: as many as come. Each thread has its share of them.
    pub per_host: Option<usize>,
    /// Bytes of a request's head (431), its fields (431), its target (414), its body (413).
    pub head_bytes: usize,
    /// Fields of a request's head.
    pub headers: usize,
    /// Fields of the head of an answer from behind (502).
    pub answer_headers: usize,
    /// How many gateways of this kind a request may have come through (508); `None`: as many as there are, and nobody counts.
    pub hops: Option<usize>,
    /// Bytes of a request's target.
    pub target_bytes: usize,
    /// Bytes of a request's body.
    pub body_bytes: u64,
    /// How long a connection may wait for a request.
    pub idle: Duration,
    /// How long a request's head may take (408).
    pub head: Duration,
    /// How long a request's body may take in all, from the head on (408).
    pub body: Duration,
    /// How long it may pause (408).
    pub body_pause: Duration,
    /// The fewest bytes a second that it must bring, over each `body_rate_window` in which it is waited for (408); 0 is any.
    pub body_rate: u64,
    /// Over how much time its rate is taken.
    pub body_rate_window: Duration,
    /// How long a client may not read at all.
    pub write: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            connections: 100_000,
            per_host: None,
            head_bytes: 64 * 1024,
            headers: 100,
            answer_headers: 1000,
            hops: Some(10),
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

/// A group of targets among which requests are divided.
#[derive(Clone, Debug)]
pub struct Upstream {
    /// What it is called.
    pub name: String,
    /// Its targets with their weights, at least one.
    pub targets: Vec<(Target, u32)>,
    /// How one is chosen.
    pub policy: Policy,
    /// What [`Policy::ConsistentHash`] goes by.
    pub hash: HashBy,
    /// How connections are kept. Its class is the upstream's own.
    pub pool: PoolSettings,
}

/// What requests have in common that go to the same target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum HashBy {
    /// The host that they are for.
    #[default]
    Host,
    /// Their path and query.
    Target,
    /// The client's address.
    Client,
    /// The value of a header field.
    Header(String),
}

/// A way from a key to targets.
#[derive(Clone, Debug)]
pub struct Lookup {
    /// The tiers.
    pub settings: LookupSettings,
    /// What is looked up.
    pub key: KeyFrom,
    /// How one of several targets is chosen.
    pub policy: Policy,
    /// What [`Policy::ConsistentHash`] goes by.
    pub hash: HashBy,
    /// How connections to targets are kept. Its class is the look-up's own, and it allows what the look-up does.
    pub pool: PoolSettings,
    /// What is answered when nothing stands under the key, or what is no key at all.
    pub unknown: Answer,
    /// What is answered when the stores cannot say.
    pub down: Answer,
    /// What is answered when what stands there cannot be used.
    pub invalid: Answer,
}

/// Where a key comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum KeyFrom {
    /// The host that the request is for, in canonical form.
    #[default]
    Host,
    /// The value of a header field.
    Header(String),
    /// A segment of the path, from 1.
    Segment(usize),
    /// What the `on_key` of a script says: a place in [`Plan::scripts`].
    Script(usize),
}

/// A script, and what may be done with the targets that it names.
#[derive(Clone, Debug)]
pub struct Script {
    /// Its file and its limits.
    pub settings: ScriptSettings,
    /// The hooks that it has.
    pub hooks: HookSet,
    /// Where targets may be that `on_route` names.
    pub allow: Allow,
    /// How one of several targets is chosen.
    pub policy: Policy,
    /// What [`Policy::ConsistentHash`] goes by.
    pub hash: HashBy,
    /// How connections to these targets are kept. Its class is the script's own, and it allows what the script may name.
    pub pool: PoolSettings,
    /// What is answered when the script names nothing, and the route has no other way.
    pub unknown: Answer,
    /// What is answered when what the script names is no target, or not allowed.
    pub invalid: Answer,
}

/// What is done with the requests of a route.
#[derive(Debug)]
pub struct Route {
    /// What it is called in logs and metrics.
    pub name: String,
    /// The script that is asked first, if any: a place in [`Plan::scripts`].
    pub script: Option<usize>,
    /// Whether a script has to do with it: that one, or one that makes the key of its look-up.
    pub is_scripted: bool,
    /// Where they go. Of a route that has nothing but a script: the script's `unknown`.
    pub action: Action,
    /// What is changed on the way.
    pub rules: Rules,
}

/// Where requests go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// To a group of targets: a place in [`Plan::upstreams`].
    Forward(usize),
    /// To where a look-up says: a place in [`Plan::lookups`].
    Lookup(usize),
    /// Elsewhere, by the client itself.
    Redirect {
        /// 301, 302, 303, 307 or 308.
        status: u16,
        /// The new place, with the request's parts put in.
        to: Template,
    },
    /// Nowhere.
    Answer(Answer),
}

/// An answer that is always the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// 200 to 599.
    pub status: u16,
    /// The value of `Content-Type`.
    pub content_type: String,
    /// The body.
    pub body: Arc<[u8]>,
    /// The value of `Retry-After`, in seconds, if it is said.
    pub retry_after: Option<u32>,
}

impl Answer {
    /// A line of text.
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

/// A text with parts of the request in it: `{host}`, `{path}`, `{query}` (with its `?`), `{target}` (both), `{scheme}`.
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

/// What a [`Template`] is filled with.
#[derive(Clone, Copy, Debug)]
pub struct Filling<'a> {
    /// The host as it was asked for, with its port.
    pub host: &'a str,
    /// The path as it was asked for.
    pub path: &'a str,
    /// The query with its `?`, or nothing.
    pub query: &'a str,
    /// `http` or `https`.
    pub scheme: &'a str,
}

impl Template {
    /// Reads a template.
    ///
    /// # Errors
    /// What is wrong with it, and what was expected.
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
                        "`{{{name}}}` is no part of a request: expected {{host}}, {{path}}, {{query}}, {{target}} or {{scheme}}"
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

    /// Whether it takes a host of the request.
    pub fn names_host(&self) -> bool {
        self.0.iter().any(|part| matches!(part, Part::Host))
    }

    /// Puts a request's parts in.
    #[must_use]
    pub fn fill(&self, filling: &Filling<'_>) -> String {
        let text = |(place, part): (usize, &'_ Part)| match part {
            Part::Text(text) => text.clone(),
            Part::Host => filling.host.to_owned(),
            // `//name` in the place of a URL is another host (RFC 3986, section 4.2), and to browsers so is `/\name`.
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
        let filling = Filling { host: "a.example:81", path: "/x", query: "?y=1", scheme: "http" };
        for (text, filled) in [
            ("https://{host}{target}", "https://a.example:81/x?y=1"),
            ("https://b.example{path}", "https://b.example/x"),
            ("{scheme}://b/{query}", "http://b/?y=1"),
            ("/plain", "/plain"),
        ] {
            assert_eq!(Template::parse(text).unwrap().fill(&filling), filled);
        }
        let elsewhere = Filling { path: "//evil.example/", ..filling };
        assert_eq!(Template::parse("{target}").unwrap().fill(&elsewhere), "/evil.example/?y=1");
        let elsewhere = Filling { path: "/\\/evil.example", ..filling };
        assert_eq!(Template::parse("{path}").unwrap().fill(&elsewhere), "/evil.example");
        for bad in ["", "https://{host", "{port}", "/a b", "/\r\nX: y", "/é"] {
            assert!(Template::parse(bad).is_err(), "{bad}");
        }
    }
}
