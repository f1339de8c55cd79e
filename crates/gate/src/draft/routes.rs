//! Validates the destinations of requests and the routes that lead to them.

use std::collections::{HashMap, HashSet};
use std::mem;

use oroshi_lookup::key;
use oroshi_words::Mistake;

use super::authorities::Authorities;
use super::parts::{Scripts, secure};
use super::{Classes, Draft, Findings, RouteDraft, UpstreamDraft, check_answer, expected, repeated};
use crate::forward::Rules;
use crate::plan::{Action, HashBy, KeyFrom, Lookup, Route, Template, Upstream};
use crate::route::{HostPattern, Matcher, in_ascii, plain_path};
use crate::script::{Hook, HookSet, StoreNames};
use crate::upstream::{Policy, PoolSettings, Protocol, Target};

/// The keys that set a route's action.
const WAYS: [&str; 5] = ["to", "lookup", "redirect", "answer", "script"];

/// The destinations that routes may name, validated.
pub(super) struct Destinations {
    /// First the named ones, then those that routes name by an address.
    pub(super) upstreams: Vec<Upstream>,
    pub(super) lookups: Vec<Lookup>,
    pub(super) scripts: Scripts,
    /// Upstreams by the address that a route names.
    direct: HashMap<String, usize>,
    classes: Classes,
    authorities: Authorities,
}

impl Draft {
    /// Takes upstreams, scripts and look-ups out of the draft. Upstreams stay there too, for their names.
    pub(super) fn plan_destinations(&mut self, findings: &mut Findings) -> Destinations {
        let mut classes = Classes::default();
        let mut upstreams = Vec::new();
        for upstream in &self.upstreams {
            upstreams.push(upstream.plan(classes.of("upstream", &upstream.name), findings));
        }
        repeated("upstream", upstreams.iter().map(|upstream| &*upstream.name), findings);
        let names: Vec<String> = self.scripts.iter().map(|script| script.name.clone()).collect();
        repeated("script", names.iter().map(String::as_str), findings);
        let mut planned = Vec::new();
        let stores = StoreNames::of(&self.stores);
        for script in mem::take(&mut self.scripts) {
            let class = classes.of("script", &script.name);
            planned.push(script.plan(class, &stores, findings));
        }
        let scripts = Scripts { names, planned };
        let mut lookups = Vec::new();
        for lookup in mem::take(&mut self.lookups) {
            let class = classes.of("lookup", &lookup.settings.name);
            lookups.push(lookup.plan(&self.stores, &scripts, class, findings));
        }
        repeated("lookup", lookups.iter().map(|lookup| &*lookup.settings.name), findings);
        Destinations {
            upstreams,
            lookups,
            scripts,
            direct: HashMap::new(),
            classes,
            authorities: Authorities::default(),
        }
    }

    /// Takes the routes out of the draft.
    pub(super) fn plan_routes(
        &mut self,
        destinations: &mut Destinations,
        findings: &mut Findings,
    ) -> (Vec<Route>, Vec<Matcher>) {
        let (mut routes, mut matchers) = (Vec::new(), Vec::new());
        for (place, route) in mem::take(&mut self.routes).into_iter().enumerate() {
            let at = format!("route[{}]", place + 1);
            matchers.push(route.matcher(&at, findings));
            odd_hosts(&route.hosts, &at, findings);
            routes.push(self.plan_route(route, place, &at, destinations, findings));
        }
        check_names(&routes, findings);
        if routes.is_empty() {
            findings.add(
                "route",
                "there is no route: expected at least one [[route]] with `to`, `lookup`, `redirect`, `answer` or \
                 `script`",
            );
        }
        (routes, matchers)
    }

    fn plan_route(
        &self,
        route: RouteDraft,
        place: usize,
        at: &str,
        destinations: &mut Destinations,
        findings: &mut Findings,
    ) -> Route {
        let named = route.script.as_ref();
        let script = named.and_then(|name| destinations.scripts.find(name, &format!("{at}.script"), findings));
        let action = self.action_of(&route, script, at, destinations, findings);
        let mut forward = route.forward;
        forward.marks = self.limits.hops.is_some();
        (forward.limits.headers, forward.limits.head_bytes) = (self.limits.answer_headers, self.limits.head_bytes);
        let rules = Rules::new(forward).unwrap_or_else(|problems| {
            for problem in problems {
                findings.add(format!("{at}.{}", problem.key()), problem.to_string());
            }
            Rules::default()
        });
        let by_key = |lookup: &Lookup| matches!(lookup.key, KeyFrom::Script(_));
        let is_scripted = script.is_some()
            || matches!(action, Action::Lookup(place) if destinations.lookups.get(place).is_some_and(by_key));
        let name = if route.name.is_empty() { format!("route-{}", place + 1) } else { route.name };
        let mut limits = Vec::new();
        for limit in &route.limits {
            match self.limits_by_key.iter().position(|known| known.name == *limit) {
                Some(place) if limits.contains(&place) => {
                    findings.add(format!("{at}.limit"), format!("`{limit}` is given twice: expected each only once"));
                }
                Some(place) => limits.push(place),
                None => {
                    let names: Vec<&str> = self.limits_by_key.iter().map(|limit| &*limit.name).collect();
                    findings.add(format!("{at}.limit"), format!("there is no limit `{limit}`{}", expected(&names)));
                }
            }
        }
        let clients = route.clients.and_then(|clients| destinations.authorities.rule(clients, at, findings));
        Route { name, script, is_scripted, limits, clients, action, rules }
    }

    /// Returns what a route does; after a mistake, any action.
    fn action_of(
        &self,
        route: &RouteDraft,
        script: Option<usize>,
        at: &str,
        destinations: &mut Destinations,
        findings: &mut Findings,
    ) -> Action {
        match (&route.to, &route.lookup, &route.redirect, &route.answer) {
            (Some(to), None, None, None) => {
                Action::Forward(destinations.upstream(to, &format!("{at}.to"), &self.upstreams, findings))
            }
            (None, Some(lookup), None, None) => {
                Action::Lookup(destinations.lookup(lookup, &format!("{at}.lookup"), findings))
            }
            (None, None, Some((status, to)), None) => {
                if !matches!(status, 301 | 302 | 303 | 307 | 308) {
                    findings.add(
                        format!("{at}.redirect.status"),
                        format!("{status} sends nobody elsewhere: expected 301, 302, 303, 307 or 308"),
                    );
                }
                match Template::parse(to) {
                    Ok(to) => Action::Redirect { status: *status, to },
                    Err(why) => {
                        findings.add(format!("{at}.redirect.to"), why);
                        Action::Answer(self.no_route.clone())
                    }
                }
            }
            (None, None, None, Some(answer)) => {
                check_answer(answer, &format!("{at}.answer"), findings);
                Action::Answer(answer.clone())
            }
            (None, None, None, None) if route.script.is_some() => {
                let script = script.and_then(|place| destinations.scripts.planned[place].as_ref());
                if script.is_some_and(|script| !decides(script.hooks)) {
                    let why = "its script has neither on_request nor on_route, so that nothing says where \
                               requests go: expected one of `to`, `lookup`, `redirect` and `answer` beside it";
                    findings.add(format!("{at}.script"), why);
                }
                Action::Answer(script.map_or_else(|| self.no_route.clone(), |script| script.unknown.clone()))
            }
            _ => {
                let script = if route.script.is_some() { ", or none beside `script`" } else { ", or `script`" };
                let problem = format!("expected exactly one of `to`, `lookup`, `redirect` and `answer`{script}");
                let ways = WAYS.map(|way| format!("{at}.{way}"));
                findings.errors.push(Mistake::new(at, problem).looking_at(ways));
                Action::Answer(self.no_route.clone())
            }
        }
    }
}

impl Destinations {
    /// Returns the settings of all pools.
    pub(super) fn pools(&mut self) -> impl Iterator<Item = &mut PoolSettings> {
        let upstreams = self.upstreams.iter_mut().map(|upstream| &mut upstream.pool);
        let lookups = self.lookups.iter_mut().map(|lookup| &mut lookup.pool);
        let scripts = self.scripts.planned.iter_mut().flatten().map(|script| &mut script.pool);
        upstreams.chain(lookups).chain(scripts)
    }

    /// Returns the index of the upstream with this name, or of the one for this address.
    fn upstream(&mut self, to: &str, key: &str, named: &[UpstreamDraft], findings: &mut Findings) -> usize {
        let known = self.upstreams.iter().position(|upstream| upstream.name == to);
        known.or_else(|| self.direct.get(to).copied()).unwrap_or_else(|| {
            let class = self.classes.of("to", to);
            self.upstreams.push(only(to, class, key, named, findings));
            self.direct.insert(to.to_owned(), self.upstreams.len() - 1);
            self.upstreams.len() - 1
        })
    }

    fn lookup(&self, name: &str, key: &str, findings: &mut Findings) -> usize {
        let known = self.lookups.iter().position(|lookup| lookup.settings.name == name);
        if known.is_none() {
            let names: Vec<&str> = self.lookups.iter().map(|lookup| &*lookup.settings.name).collect();
            findings.add(key, format!("there is no look-up `{name}`{}", expected(&names)));
        }
        known.unwrap_or(0)
    }
}

/// Makes an upstream of the single target that a route names.
fn only(text: &str, class: u32, key: &str, named: &[UpstreamDraft], findings: &mut Findings) -> Upstream {
    let mut targets: Vec<(Target, u32)> = Vec::new();
    // A name without a port or a dot is probably that of a missing upstream.
    let is_name = !text.contains(['.', ':', '[']) && text != "localhost";
    match text.parse() {
        Ok(target) if !is_name => targets.push((target, 1)),
        Ok(_) => {
            let names: Vec<&str> = named.iter().map(|upstream| &*upstream.name).collect();
            findings.add(
                key,
                format!("there is no upstream `{text}`{}, or an address such as {text}:80", expected(&names)),
            );
        }
        Err(error) => findings.add(key, format!("{error}; nor is there an upstream of that name")),
    }
    let pool = PoolSettings { class, ..PoolSettings::default() };
    let is_secure = targets.iter().any(|(target, _)| target.protocol == Protocol::Https);
    let pool = PoolSettings { secure: secure(&pool.tls, is_secure, key, findings), ..pool };
    let (policy, hash) = (Policy::default(), HashBy::default());
    Upstream { name: text.to_owned(), targets, policy, hash, check: None, pool }
}

impl RouteDraft {
    fn matcher(&self, at: &str, findings: &mut Findings) -> Matcher {
        let mut hosts = Vec::new();
        for text in &self.hosts {
            let (name, below) = match text.strip_prefix("*.") {
                Some(name) => (name, true),
                None => (&**text, false),
            };
            match key::host(name.as_bytes()) {
                Ok(name) if below => hosts.push(HostPattern::Below(name.into_owned())),
                Ok(name) => hosts.push(HostPattern::Exact(name.into_owned())),
                Err(error) => findings.add(
                    format!("{at}.host"),
                    format!("`{text}` is no host: {error}: expected a name such as example.org, or *.example.org"),
                ),
            }
        }
        let path = in_ascii(&self.path).into_owned();
        if !path.is_empty() {
            match plain_path(&path) {
                Ok(plain) if plain == path && path.starts_with('/') && !path.contains(['?', '#', ' ', ';', '\\']) => {}
                _ => findings.add(
                    format!("{at}.path"),
                    format!(
                        "`{}` is no path in its plain form: expected one such as /api, without escapes, `//`, `..`, \
                         `;` or `\\`",
                        self.path
                    ),
                ),
            }
        }
        for method in &self.methods {
            let is_token = !method.is_empty() && method.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'-');
            if !is_token {
                findings.add(
                    format!("{at}.method"),
                    format!("`{method}` is no method: expected one such as GET, in capitals"),
                );
            }
        }
        Matcher { hosts, path, methods: self.methods.clone(), headers: self.headers.clone() }
    }
}

/// Warns of hosts with a port, which routes ignore.
fn odd_hosts(hosts: &[String], at: &str, findings: &mut Findings) {
    for text in hosts {
        let has_port = |port: &str| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
        if let Some((name, _)) = text.rsplit_once(':').filter(|(_, port)| has_port(port)) {
            findings.warn(
                format!("{at}.host"),
                format!(
                    "`{text}` has a port, which is not looked at, as hosts are compared without: expected `{name}`"
                ),
            );
        }
    }
}

/// Returns whether a script can decide a request's destination.
fn decides(hooks: HookSet) -> bool {
    hooks.has(Hook::Request) || hooks.has(Hook::Route)
}

/// Checks the names of routes, which appear in logs and metrics.
fn check_names(routes: &[Route], findings: &mut Findings) {
    let mut seen = HashSet::new();
    for (place, Route { name, .. }) in routes.iter().enumerate() {
        let at = format!("route[{}].name", place + 1);
        if name == "-" {
            findings.add(&*at, "`-` stands for requests without a route: expected another name");
        } else if name.chars().any(char::is_control) {
            findings
                .add(&*at, format!("{name:?} has characters that no line of a log has: expected a name in one line"));
        }
        if !seen.insert(name) {
            findings.add(at, format!("the name `{name}` is given twice: expected each only once"));
        }
    }
}
