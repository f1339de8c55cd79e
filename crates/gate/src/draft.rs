//! A gateway as somebody described it: typed, not yet checked for sense. [`Draft::plan`] finds all that is wrong with it.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use oroshi_lookup::{LookupSettings, StoreKind, StoreSettings, key};
use oroshi_net::{CpuList, available_cpus};

use crate::access;
use crate::forward::{self, Rules};
use crate::plan::{Action, Answer, Door, HashBy, KeyFrom, Limits, Lookup, Plan, Route, Serves, Template, Upstream};
use crate::route::{HeaderPattern, HostPattern, Matcher, Table};
use crate::upstream::{Policy, PoolSettings, Target};

/// A gateway as somebody described it. `Default` is one that listens nowhere and does nothing.
#[derive(Clone, Debug)]
pub struct Draft {
    /// How many threads serve; `None`: one for each CPU of `cpus`, or of those available.
    pub threads: Option<usize>,
    /// The CPUs that the threads are pinned to, if any.
    pub cpus: Option<CpuList>,
    /// Where it listens, and what for.
    pub doors: Vec<Door>,
    /// Whether sockets are handed down as well, so that there need not be a door.
    pub inherits: bool,
    /// Limits on clients.
    pub limits: Limits,
    /// The stores.
    pub stores: Vec<StoreSettings>,
    /// Ways from a key to targets.
    pub lookups: Vec<LookupDraft>,
    /// Groups of targets.
    pub upstreams: Vec<UpstreamDraft>,
    /// The routes, in their order.
    pub routes: Vec<RouteDraft>,
    /// What a request is answered that takes no route.
    pub no_route: Answer,
    /// Requests that are told, if any.
    pub access_log: Option<access::Settings>,
    /// How long requests may take to finish after the end was asked for.
    pub drain: Duration,
}

impl Default for Draft {
    fn default() -> Self {
        Draft {
            threads: None,
            cpus: None,
            doors: Vec::new(),
            inherits: false,
            limits: Limits::default(),
            stores: Vec::new(),
            lookups: Vec::new(),
            upstreams: Vec::new(),
            routes: Vec::new(),
            no_route: Answer::text(404, "there is no route for this request"),
            access_log: None,
            drain: Duration::from_secs(30),
        }
    }
}

/// A way from a key to targets.
#[derive(Clone, Debug)]
pub struct LookupDraft {
    /// The tiers, with the name.
    pub settings: LookupSettings,
    /// What is looked up.
    pub key: KeyFrom,
    /// How one of several targets is chosen.
    pub policy: Policy,
    /// What the consistent hash goes by.
    pub hash: HashBy,
    /// How connections to targets are kept.
    pub pool: PoolSettings,
    /// What is answered when nothing stands under the key, or what is no key at all.
    pub unknown: Answer,
    /// What is answered when the stores cannot say.
    pub down: Answer,
    /// What is answered when what stands there cannot be used.
    pub invalid: Answer,
}

impl LookupDraft {
    /// A look-up of this name that has no store yet, all else as by default.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        let down = Answer {
            retry_after: Some(1),
            ..Answer::text(503, "it cannot be found out now which server this host is at")
        };
        LookupDraft {
            settings: LookupSettings::new(name),
            key: KeyFrom::default(),
            policy: Policy::default(),
            hash: HashBy::default(),
            pool: PoolSettings::default(),
            unknown: Answer::text(503, "no server is known for this host"),
            down,
            invalid: Answer::text(502, "the server of this host is not set up correctly"),
        }
    }
}

/// A group of targets.
#[derive(Clone, Debug, Default)]
pub struct UpstreamDraft {
    /// What it is called.
    pub name: String,
    /// Its targets, as text, with their weights.
    pub targets: Vec<(String, u32)>,
    /// How one is chosen.
    pub policy: Policy,
    /// What the consistent hash goes by.
    pub hash: HashBy,
    /// How connections are kept.
    pub pool: PoolSettings,
}

/// A route.
#[derive(Clone, Debug, Default)]
pub struct RouteDraft {
    /// What it is called; empty: after its place, `route-1`.
    pub name: String,
    /// Hosts, as text: `example.org`, `*.example.org`. None: any.
    pub hosts: Vec<String>,
    /// The beginning of its path; empty: any.
    pub path: String,
    /// Methods. None: any.
    pub methods: Vec<String>,
    /// Header fields that must be there.
    pub headers: Vec<HeaderPattern>,
    /// Where requests go: exactly one of these.
    pub to: Option<String>,
    /// The name of a look-up.
    pub lookup: Option<String>,
    /// Where the client is sent, and with which status.
    pub redirect: Option<(u16, String)>,
    /// What is answered.
    pub answer: Option<Answer>,
    /// What is changed on the way.
    pub forward: forward::Settings,
}

/// What is wrong with a draft.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {problem}")]
pub struct DraftError {
    /// The key's path: `route[2].host`, `lookup.domains.memory.ttl`. Elements of lists are counted from 1.
    pub key: String,
    /// What is wrong, and what was expected.
    pub problem: String,
}

impl Draft {
    /// Checks it, and fills the defaults in.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn plan(self) -> Result<Plan, Vec<DraftError>> {
        let mut wrong = Wrong::default();
        self.check_doors(&mut wrong);
        let threads = self.threads.unwrap_or_else(|| match &self.cpus {
            Some(cpus) => cpus.len(),
            None => available_cpus().map_or(1, |cpus| cpus.len()),
        });
        if threads == 0 || threads > 1024 {
            wrong.add("threads", format!("{threads} threads cannot serve: expected 1 to 1024"));
        }
        self.check_limits(threads, &mut wrong);
        self.check_stores(&mut wrong);
        let mut upstreams = Vec::new();
        let mut classes = Classes::default();
        for upstream in &self.upstreams {
            upstreams.push(upstream.plan(classes.of("upstream", &upstream.name), &mut wrong));
        }
        repeated("upstream", upstreams.iter().map(|upstream| &*upstream.name), &mut wrong);
        let mut lookups = Vec::new();
        for lookup in self.lookups {
            let class = classes.of("lookup", &lookup.settings.name);
            lookups.push(lookup.plan(&self.stores, class, &mut wrong));
        }
        repeated("lookup", lookups.iter().map(|lookup| &*lookup.settings.name), &mut wrong);

        let (mut routes, mut matchers) = (Vec::new(), Vec::new());
        let mut direct = HashMap::new();
        for (place, route) in self.routes.into_iter().enumerate() {
            let at = format!("route[{}]", place + 1);
            let name = if route.name.is_empty() { format!("route-{}", place + 1) } else { route.name.clone() };
            matchers.push(route.matcher(&at, &mut wrong));
            let to = route.to.clone();
            let action = match (to, &route.lookup, &route.redirect, &route.answer) {
                (Some(to), None, None, None) => {
                    let known =
                        upstreams.iter().position(|upstream| upstream.name == to).or_else(|| direct.get(&to).copied());
                    Action::Forward(known.unwrap_or_else(|| {
                        let class = classes.of("to", &to);
                        let upstream = only(&to, class, &format!("{at}.to"), &self.upstreams, &mut wrong);
                        upstreams.push(upstream);
                        direct.insert(to, upstreams.len() - 1);
                        upstreams.len() - 1
                    }))
                }
                (None, Some(lookup), None, None) => {
                    let known = lookups.iter().position(|known| known.settings.name == *lookup);
                    if known.is_none() {
                        let names: Vec<&str> = lookups.iter().map(|lookup| &*lookup.settings.name).collect();
                        wrong
                            .add(format!("{at}.lookup"), format!("there is no look-up `{lookup}`{}", expected(&names)));
                    }
                    Action::Lookup(known.unwrap_or(0))
                }
                (None, None, Some((status, to)), None) => {
                    if !matches!(status, 301 | 302 | 303 | 307 | 308) {
                        wrong.add(
                            format!("{at}.redirect.status"),
                            format!("{status} sends nobody elsewhere: expected 301, 302, 303, 307 or 308"),
                        );
                    }
                    match Template::parse(to) {
                        Ok(to) => Action::Redirect { status: *status, to },
                        Err(why) => {
                            wrong.add(format!("{at}.redirect.to"), why);
                            Action::Answer(self.no_route.clone())
                        }
                    }
                }
                (None, None, None, Some(answer)) => {
                    check_answer(answer, &format!("{at}.answer"), &mut wrong);
                    Action::Answer(answer.clone())
                }
                _ => {
                    wrong.add(&*at, "expected exactly one of `to`, `lookup`, `redirect` and `answer`");
                    Action::Answer(self.no_route.clone())
                }
            };
            let rules = Rules::new(route.forward).unwrap_or_else(|problems| {
                for problem in problems {
                    wrong.add(&*at, problem.to_string());
                }
                Rules::default()
            });
            routes.push(Route { name, action, rules });
        }
        repeated("route", routes.iter().map(|route| &*route.name), &mut wrong);
        if routes.is_empty() {
            wrong.add(
                "route",
                "there is no route: expected at least one [[route]] with `to`, `lookup`, `redirect` or `answer`",
            );
        }
        check_answer(&self.no_route, "no-route", &mut wrong);
        if let Some(log) = &self.access_log
            && !(0.0..=1.0).contains(&log.sample)
        {
            wrong.add("access-log.sample", format!("{} is no share: expected 0 to 1", log.sample));
        }
        if !wrong.0.is_empty() {
            return Err(wrong.0);
        }
        Ok(Plan {
            threads,
            cpus: self.cpus,
            doors: self.doors,
            limits: self.limits,
            stores: self.stores,
            lookups,
            upstreams,
            table: Table::new(matchers),
            routes,
            no_route: self.no_route,
            access_log: self.access_log,
            drain: self.drain,
        })
    }

    fn check_doors(&self, wrong: &mut Wrong) {
        if !self.inherits && !self.doors.iter().any(|door| door.serves == Serves::Public) {
            wrong.add(
                "listen.public",
                "there is nowhere to listen: expected an address such as :8080 or unix:/run/gate.sock",
            );
        }
        let mut seen = HashSet::new();
        for door in &self.doors {
            if !seen.insert(&door.address) {
                wrong.add("listen", format!("`{}` stands here twice: expected each address only once", door.address));
            }
            if door.serves == Serves::Admin && !is_local(&door.address) {
                wrong.add(
                    "listen.admin",
                    format!(
                        "`{}` would let others purge and look: expected an address of this machine alone, such as \
                         127.0.0.1:8081 or unix:/run/gate-admin.sock",
                        door.address
                    ),
                );
            }
        }
    }

    fn check_limits(&self, threads: usize, wrong: &mut Wrong) {
        let limits = &self.limits;
        for (key, count) in
            [("connections", limits.connections), ("headers", limits.headers), ("target-bytes", limits.target_bytes)]
        {
            if count == 0 {
                wrong.add(format!("limits.{key}"), "0 leaves room for nothing: expected at least 1");
            }
        }
        if limits.head_bytes < 256 {
            wrong.add(
                "limits.head-bytes",
                format!("{} bytes are less than a request needs: expected at least 256", limits.head_bytes),
            );
        }
        if let Some(per_host) = limits.per_host
            && per_host < threads
        {
            wrong.add(
                "limits.per-host",
                format!("{per_host} cannot be divided among {threads} threads: expected at least {threads}, or off"),
            );
        }
        for (key, time) in [
            ("idle", limits.idle),
            ("head", limits.head),
            ("body", limits.body),
            ("write", limits.write),
            ("drain", self.drain),
        ] {
            if time.is_zero() && key != "drain" {
                wrong.add(format!("limits.{key}"), "0 leaves no time at all: expected more");
            }
        }
    }

    fn check_stores(&self, wrong: &mut Wrong) {
        for store in &self.stores {
            let kind = match store.kind {
                StoreKind::Memcached(_) => "memcached",
                StoreKind::Sql(_) => "sql",
            };
            for error in store.validate() {
                wrong.add(format!("{kind}.{}.{}", store.name, error.key), error.problem);
            }
        }
        repeated("store", self.stores.iter().map(|store| &*store.name), wrong);
    }
}

impl UpstreamDraft {
    fn plan(&self, class: u32, wrong: &mut Wrong) -> Upstream {
        let at = format!("upstream.{}", self.name);
        let mut targets = Vec::new();
        for (text, weight) in &self.targets {
            match text.parse() {
                Ok(target) => targets.push((target, *weight)),
                Err(error) => wrong.add(format!("{at}.targets"), format!("{error}")),
            }
            if !(1..=1000).contains(weight) {
                wrong.add(format!("{at}.targets"), format!("the weight of `{text}` is {weight}: expected 1 to 1000"));
            }
        }
        if self.targets.is_empty() {
            wrong.add(
                format!("{at}.targets"),
                "there is none: expected at least one such as 10.0.0.7:8080 or unix:/run/app.sock",
            );
        }
        check_pool(&self.pool, &at, wrong);
        let pool = PoolSettings { class, ..self.pool.clone() };
        Upstream { name: self.name.clone(), targets, policy: self.policy, hash: self.hash.clone(), pool }
    }
}

/// An upstream of one target that a route names directly.
fn only(text: &str, class: u32, key: &str, named: &[UpstreamDraft], wrong: &mut Wrong) -> Upstream {
    let mut targets: Vec<(Target, u32)> = Vec::new();
    // A name without a port or a dot is more likely that of an upstream which is missing.
    let is_name = !text.contains(['.', ':', '[']) && text != "localhost";
    match text.parse() {
        Ok(target) if !is_name => targets.push((target, 1)),
        Ok(_) => {
            let names: Vec<&str> = named.iter().map(|upstream| &*upstream.name).collect();
            wrong.add(
                key,
                format!("there is no upstream `{text}`{}, or an address such as {text}:80", expected(&names)),
            );
        }
        Err(error) => wrong.add(key, format!("{error}; nor is there an upstream of that name")),
    }
    let pool = PoolSettings { class, ..PoolSettings::default() };
    Upstream { name: text.to_owned(), targets, policy: Policy::default(), hash: HashBy::default(), pool }
}

impl LookupDraft {
    fn plan(self, stores: &[StoreSettings], class: u32, wrong: &mut Wrong) -> Lookup {
        let at = format!("lookup.{}", self.settings.name);
        for error in self.settings.validate() {
            wrong.add(format!("{at}.{}", error.key), error.problem);
        }
        let mut store = |key: &str, name: &str, is_it: fn(&StoreKind) -> bool| {
            let fit: Vec<&str> = stores.iter().filter(|store| is_it(&store.kind)).map(|store| &*store.name).collect();
            if !fit.contains(&name) {
                wrong.add(format!("{at}.{key}.store"), format!("there is no such store `{name}`{}", expected(&fit)));
            }
        };
        if let Some(tier) = &self.settings.memcached {
            store("memcached", &tier.store, |kind| matches!(kind, StoreKind::Memcached(_)));
        }
        if let Some(tier) = &self.settings.sql {
            store("sql", &tier.store, |kind| matches!(kind, StoreKind::Sql(_)));
        }
        if self.key == KeyFrom::Segment(0) {
            wrong.add(format!("{at}.key"), "segments of a path are counted from 1");
        }
        for (key, answer) in [("unknown", &self.unknown), ("down", &self.down), ("invalid", &self.invalid)] {
            check_answer(answer, &format!("{at}.{key}"), wrong);
        }
        check_pool(&self.pool, &at, wrong);
        let allow = self.settings.allow.clone();
        let pool =
            PoolSettings { class, allow: Some(Arc::new(move |address: IpAddr| allow.resolved(address))), ..self.pool };
        Lookup {
            settings: self.settings,
            key: self.key,
            policy: self.policy,
            hash: self.hash,
            pool,
            unknown: self.unknown,
            down: self.down,
            invalid: self.invalid,
        }
    }
}

impl RouteDraft {
    fn matcher(&self, at: &str, wrong: &mut Wrong) -> Matcher {
        let mut hosts = Vec::new();
        for text in &self.hosts {
            let (name, below) = match text.strip_prefix("*.") {
                Some(name) => (name, true),
                None => (&**text, false),
            };
            match key::host(name.as_bytes()) {
                Ok(name) if below => hosts.push(HostPattern::Below(name.into_owned())),
                Ok(name) => hosts.push(HostPattern::Exact(name.into_owned())),
                Err(error) => wrong.add(
                    format!("{at}.host"),
                    format!("`{text}` is no host: {error}: expected a name such as example.org, or *.example.org"),
                ),
            }
        }
        if !self.path.is_empty() {
            match crate::route::plain_path(&self.path) {
                Ok(plain)
                    if plain == self.path && self.path.starts_with('/') && !self.path.contains(['?', '#', ' ']) => {}
                _ => wrong.add(
                    format!("{at}.path"),
                    format!(
                        "`{}` is no path in its plain form: expected one such as /api, without escapes, `//` or `..`",
                        self.path
                    ),
                ),
            }
        }
        for method in &self.methods {
            let is_token = !method.is_empty() && method.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'-');
            if !is_token {
                wrong.add(
                    format!("{at}.method"),
                    format!("`{method}` is no method: expected one such as GET, in capitals"),
                );
            }
        }
        Matcher { hosts, path: self.path.clone(), methods: self.methods.clone(), headers: self.headers.clone() }
    }
}

fn check_pool(pool: &PoolSettings, at: &str, wrong: &mut Wrong) {
    if pool.connections == 0 {
        wrong.add(format!("{at}.connections"), "0 leaves room for nothing: expected at least 1");
    }
    if pool.max_requests == 0 {
        wrong.add(format!("{at}.max-requests"), "0 leaves room for nothing: expected at least 1, or off");
    }
}

fn check_answer(answer: &Answer, at: &str, wrong: &mut Wrong) {
    if !(200..600).contains(&answer.status) {
        wrong.add(format!("{at}.status"), format!("{} is no status of an answer: expected 200 to 599", answer.status));
    }
    if matches!(answer.status, 204 | 304) && !answer.body.is_empty() {
        wrong.add(format!("{at}.body"), format!("an answer of {} has no body: leave it empty", answer.status));
    }
    if answer.content_type.bytes().any(|byte| !(b' '..=b'~').contains(&byte)) {
        wrong.add(
            format!("{at}.content-type"),
            format!("{:?} is no media type: expected one such as text/html", answer.content_type),
        );
    }
}

fn repeated<'a>(what: &str, names: impl Iterator<Item = &'a str>, wrong: &mut Wrong) {
    let mut seen = HashSet::new();
    for name in names {
        if !seen.insert(name) {
            wrong.add(what, format!("the name `{name}` is given twice: expected each only once"));
        }
    }
}

fn expected(names: &[&str]) -> String {
    match names {
        [] => ": none is configured".to_owned(),
        names => format!(": expected one of {}", names.join(", ")),
    }
}

/// Whether only this machine can connect there.
fn is_local(address: &str) -> bool {
    if address.starts_with("unix:") || address.starts_with(['/', '@']) {
        // An abstract socket has no owner and no mode: whoever is on this machine may connect.
        return !address.trim_start_matches("unix:").starts_with('@');
    }
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host).trim_matches(['[', ']']);
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Numbers for the pools of upstreams and look-ups, whose settings differ. They are made of the names, so that a reload that puts another one before
/// leaves each its pools and what was counted.
#[derive(Default)]
struct Classes(HashSet<u32>);

impl Classes {
    fn of(&mut self, kind: &str, name: &str) -> u32 {
        let mut class = crate::upstream::hash(format!("{kind} {name}").as_bytes()) as u32;
        while !self.0.insert(class) {
            class = class.wrapping_add(1);
        }
        class
    }
}

/// Gathers what is wrong.
#[derive(Default)]
struct Wrong(Vec<DraftError>);

impl Wrong {
    fn add(&mut self, key: impl Into<String>, problem: impl Into<String>) {
        self.0.push(DraftError { key: key.into(), problem: problem.into() });
    }
}
