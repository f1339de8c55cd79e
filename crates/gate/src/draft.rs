//! A gateway's unvalidated configuration. [`Draft::plan`] finds all mistakes; `parts` checks the parts that have no
//! others, `routes` checks destinations and the routes to them, and `odd` finds valid but probably unintended settings.

mod authorities;
mod odd;
mod parts;
mod routes;
mod tls;

use std::collections::HashSet;
use std::time::Duration;

use oroshi_acme::ChallengeKind;
use oroshi_http1 as http1;
use oroshi_lookup::{Allow, LookupSettings, StoreKind, StoreSettings};
use oroshi_net::{CpuList, Peer, available_cpus, listen};
use oroshi_server::page::names_this_machine;
use oroshi_service::Proxies;
use oroshi_words::Mistake;

use crate::access;
use crate::clients::{self, ClientSettings};
use crate::forward;
use crate::limit;
use crate::plan::{Answer, HashBy, KeyFrom, Limits, Listener, Plan, Route, Serves};
use crate::route::{HeaderPattern, Table};
use crate::script::ScriptSettings;
use crate::upstream::{CheckSettings, Policy, PoolSettings};

use odd::{is_one_socket, same_routes, unused, unused_limits, without_counts};
use routes::Destinations;
pub use tls::TlsDraft;

/// A gateway's unvalidated configuration. `Default` has no listeners and no routes.
#[derive(Clone, Debug)]
pub struct Draft {
    /// The number of serving threads; `None`: one per CPU of `cpus`, or per available CPU.
    pub threads: Option<usize>,
    /// The CPUs to pin the threads to, if any.
    pub cpus: Option<CpuList>,
    /// The listeners.
    pub listeners: Vec<Listener>,
    /// Whether the process inherits sockets, so that `listeners` may be empty.
    pub inherits: bool,
    /// TLS towards clients, if any.
    pub tls: Option<TlsDraft>,
    /// The proxies in front that send a header of the PROXY protocol.
    pub proxies: Proxies,
    /// Limits on clients.
    pub limits: Limits,
    /// The stores.
    pub stores: Vec<StoreSettings>,
    /// The look-ups.
    pub lookups: Vec<LookupDraft>,
    /// Groups of targets.
    pub upstreams: Vec<UpstreamDraft>,
    /// Scripts.
    pub scripts: Vec<ScriptDraft>,
    /// The limit on the bytes of `gate.cache`.
    pub script_cache: usize,
    /// The rate limits.
    pub limits_by_key: Vec<limit::Settings>,
    /// The routes, in order.
    pub routes: Vec<RouteDraft>,
    /// The response to requests without a route.
    pub no_route: Answer,
    /// The access log, if any.
    pub access_log: Option<access::Settings>,
    /// How long requests may take to finish at shutdown.
    pub drain: Duration,
}

impl Default for Draft {
    fn default() -> Self {
        Draft {
            threads: None,
            cpus: None,
            listeners: Vec::new(),
            inherits: false,
            tls: None,
            proxies: Proxies::default(),
            limits: Limits::default(),
            stores: Vec::new(),
            lookups: Vec::new(),
            upstreams: Vec::new(),
            scripts: Vec::new(),
            script_cache: 64 << 20,
            limits_by_key: Vec::new(),
            routes: Vec::new(),
            no_route: Answer::text(404, "there is no route for this request"),
            access_log: None,
            drain: Duration::from_secs(30),
        }
    }
}

/// A look-up, unvalidated.
#[derive(Clone, Debug)]
pub struct LookupDraft {
    /// The name, the tiers and their settings.
    pub settings: LookupSettings,
    /// Where the key comes from.
    pub key: KeyDraft,
    /// The balancing policy for several targets.
    pub policy: Policy,
    /// The input of the consistent hash.
    pub hash: HashBy,
    /// Connection settings.
    pub pool: PoolSettings,
    /// The response if no store has the key, or the request has no valid key.
    pub unknown: Answer,
    /// The response if the stores are down.
    pub down: Answer,
    /// The response if the stored value is invalid.
    pub invalid: Answer,
}

impl LookupDraft {
    /// Makes a look-up with this name, no store, and defaults.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        let down = Answer {
            retry_after: Some(1),
            ..Answer::text(503, "it cannot be found out now which server this host is at")
        };
        LookupDraft {
            settings: LookupSettings::new(name),
            key: KeyDraft::default(),
            policy: Policy::default(),
            hash: HashBy::default(),
            pool: PoolSettings::default(),
            unknown: Answer::text(503, "no server is known for this host"),
            down,
            invalid: Answer::text(502, "the server of this host is not set up correctly"),
        }
    }
}

/// The source of a look-up's key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyDraft {
    /// From the request. Not [`KeyFrom::Script`].
    Request(KeyFrom),
    /// From `on_key` of the script with this name.
    Script(String),
}

impl Default for KeyDraft {
    fn default() -> Self {
        KeyDraft::Request(KeyFrom::default())
    }
}

/// A script, unvalidated.
#[derive(Clone, Debug)]
pub struct ScriptDraft {
    /// Its name.
    pub name: String,
    /// The file's contents and the limits; `None` if there is no file.
    pub settings: Option<ScriptSettings>,
    /// The targets that the script may name.
    pub allow: Allow,
    /// The balancing policy for several targets.
    pub policy: Policy,
    /// The input of the consistent hash.
    pub hash: HashBy,
    /// Connection settings.
    pub pool: PoolSettings,
    /// The response if the script names no target, and the route has no other action.
    pub unknown: Answer,
    /// The response if the script names an invalid target, or one that is not allowed.
    pub invalid: Answer,
}

impl ScriptDraft {
    /// Makes a script with this name and defaults.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        let LookupDraft { policy, hash, pool, unknown, invalid, .. } = LookupDraft::new("");
        ScriptDraft { name: name.into(), settings: None, allow: Allow::default(), policy, hash, pool, unknown, invalid }
    }
}

/// A group of targets, unvalidated.
#[derive(Clone, Debug, Default)]
pub struct UpstreamDraft {
    /// Its name.
    pub name: String,
    /// The targets as text, with their weights.
    pub targets: Vec<(String, u32)>,
    /// The balancing policy.
    pub policy: Policy,
    /// The input of the consistent hash.
    pub hash: HashBy,
    /// How the targets are checked, if they are.
    pub check: Option<CheckSettings>,
    /// Connection settings.
    pub pool: PoolSettings,
}

/// A route, unvalidated.
#[derive(Clone, Debug, Default)]
pub struct RouteDraft {
    /// Its name; empty: from its position, `route-1`.
    pub name: String,
    /// Hosts as text: `example.org`, `*.example.org`. None: any.
    pub hosts: Vec<String>,
    /// The path's prefix; empty: any path.
    pub path: String,
    /// Methods. None: any.
    pub methods: Vec<String>,
    /// Required header fields.
    pub headers: Vec<HeaderPattern>,
    /// The name of the script to call first.
    pub script: Option<String>,
    /// The name or address of an upstream. A route has exactly one of `to`, `lookup`, `redirect` and `answer`, or none
    /// if it has a script.
    pub to: Option<String>,
    /// The name of a look-up.
    pub lookup: Option<String>,
    /// A redirect's status and location.
    pub redirect: Option<(u16, String)>,
    /// A constant response.
    pub answer: Option<Answer>,
    /// The names of the rate limits that its requests must pass.
    pub limits: Vec<String>,
    /// The rule for client certificates, if any.
    pub clients: Option<ClientSettings>,
    /// The rules for forwarding.
    pub forward: forward::Settings,
}

impl Draft {
    /// Validates the draft and fills in the defaults.
    ///
    /// # Errors
    /// All mistakes.
    pub fn plan(mut self) -> Result<Plan, Vec<Mistake>> {
        let mut findings = Findings::default();
        let threads = self.threads.unwrap_or_else(|| match &self.cpus {
            Some(cpus) => cpus.len(),
            None => available_cpus().map_or(1, |cpus| cpus.len()),
        });
        if threads == 0 || threads > 1024 {
            findings.add("threads", format!("{threads} threads cannot serve: expected 1 to 1024"));
        }
        self.check_listeners(threads, &mut findings);
        self.check_challenge(&mut findings);
        self.check_limits(threads, &mut findings);
        self.check_stores(&mut findings);
        let has_tls = self.tls.is_some();
        let mut tls = self.tls.take().map(|tls| tls.plan(&self.stores, &self.lookups, &mut findings));
        let mut destinations = self.plan_destinations(&mut findings);
        let (routes, matchers) = self.plan_routes(&mut destinations, &mut findings);
        check_clients(&routes, has_tls, &mut findings);
        if let Some(tls) = &mut tls {
            tls.clients = clients::names(routes.iter().zip(&matchers));
        }
        check_answer(&self.no_route, "no-route", &mut findings);
        self.check_rates(&mut findings);
        if self.script_cache == 0 {
            findings.add("script-cache", "0 bytes leave room for nothing: expected at least 1");
        }
        self.check_access_log(&mut findings);
        if !findings.errors.is_empty() {
            return Err(findings.errors);
        }
        same_routes(&matchers, &routes, &mut findings);
        let limits = http1::Limits {
            headers: self.limits.answer_headers,
            head_bytes: self.limits.head_bytes,
            ..http1::Limits::default()
        };
        destinations.pools().for_each(|pool| pool.limits = limits.clone());
        let Destinations { upstreams, lookups, scripts, .. } = destinations;
        let named = self.upstreams.len();
        // Scripts with mistakes are missing; the mistakes are already recorded.
        let scripts: Vec<_> = scripts.planned.into_iter().flatten().collect();
        unused_limits(&routes, &self.limits_by_key, &mut findings);
        let stores = without_counts(&self.stores, &self.limits_by_key);
        unused(&routes, &lookups, &upstreams[..named], &scripts, &stores, tls.as_ref(), &mut findings);
        Ok(Plan {
            threads,
            cpus: self.cpus,
            listeners: self.listeners,
            tls,
            proxies: self.proxies,
            limits: self.limits,
            admin_connections: None,
            stores: self.stores,
            lookups,
            upstreams,
            scripts,
            script_cache: self.script_cache,
            limits_by_key: self.limits_by_key,
            table: Table::new(matchers),
            routes,
            no_route: self.no_route,
            access_log: self.access_log,
            drain: self.drain,
            warnings: findings.warnings,
        })
    }

    fn check_listeners(&self, threads: usize, findings: &mut Findings) {
        if !self.inherits && !self.listeners.iter().any(|listener| listener.serves != Serves::Admin) {
            findings.add(
                "listen.public",
                "there is nowhere to listen: expected an address such as :8080 or unix:/run/gate.sock",
            );
        }
        let mut seen: Vec<(&str, Peer)> = Vec::new();
        for listener in &self.listeners {
            let key = match listener.serves {
                Serves::Admin => "listen.admin",
                Serves::Public => "listen.public",
                Serves::Tls => "listen.tls",
            };
            if listener.serves == Serves::Tls && self.tls.is_none() {
                findings.add(key, "there is no certificate: expected a table [tls] with `certificates` or `lookup`");
            }
            match listen::check(&listener.address) {
                Ok(socket) => {
                    let twice = seen.iter().find(|(address, known)| {
                        *address == listener.address || is_one_socket(known, &socket, threads)
                    });
                    match twice {
                        Some((same, _)) if *same == listener.address => {
                            findings.add("listen", format!("`{same}` is given twice: expected each address only once"));
                        }
                        Some((other, _)) => findings.add(
                            "listen",
                            format!(
                                "`{}` and `{other}` are one place to listen: expected each only once",
                                listener.address
                            ),
                        ),
                        None => {}
                    }
                    seen.push((&listener.address, socket));
                }
                Err(error) => {
                    let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
                    findings.add(key, format!("{error}{cause}"));
                }
            }
            if listener.serves == Serves::Admin && !is_local(&listener.address) {
                findings.add(
                    "listen.admin",
                    format!(
                        "`{}` would let others purge and look: expected an address of this machine alone, such as \
                         127.0.0.1:8081 or unix:/run/gate-admin.sock",
                        listener.address
                    ),
                );
            }
        }
    }

    /// Warns if the authority cannot reach the answers to its challenges.
    fn check_challenge(&self, findings: &mut Findings) {
        let Some(acme) = self.tls.as_ref().and_then(|tls| tls.acme.as_ref()) else { return };
        let (wanted, key) = match acme.challenge {
            ChallengeKind::Http01 => (Serves::Public, "listen.public"),
            ChallengeKind::TlsAlpn01 => (Serves::Tls, "listen.tls"),
        };
        if !self.inherits && !self.listeners.iter().any(|listener| listener.serves == wanted) {
            let why = format!("the authority cannot ask for {}: expected {key}", acme.challenge.name());
            findings.warn("acme.challenge", why);
        }
    }

    fn check_limits(&self, threads: usize, findings: &mut Findings) {
        let limits = &self.limits;
        for (key, count) in [
            ("connections", limits.connections),
            ("handshakes", limits.handshakes),
            ("headers", limits.headers),
            ("answer-headers", limits.answer_headers),
            ("target-bytes", limits.target_bytes),
            ("hops", limits.hops.unwrap_or(1)),
        ] {
            if count == 0 {
                findings.add(format!("limits.{key}"), "0 leaves room for nothing: expected at least 1");
            }
        }
        if limits.head_bytes < 256 {
            findings.add(
                "limits.head-bytes",
                format!("{} bytes are less than a request needs: expected at least 256", limits.head_bytes),
            );
        }
        if let Some(per_host) = limits.per_host
            && per_host < threads
        {
            findings.add(
                "limits.per-host",
                format!("{per_host} cannot be divided among {threads} threads: expected at least {threads}, or off"),
            );
        }
        for (key, time) in [
            ("idle", limits.idle),
            ("head", limits.head),
            ("body", limits.body),
            ("body-pause", limits.body_pause),
            ("body-rate-window", limits.body_rate_window),
            ("write", limits.write),
            ("drain", self.drain),
        ] {
            if time.is_zero() && key != "drain" {
                findings.add(format!("limits.{key}"), "0 leaves no time at all: expected more");
            }
        }
    }

    fn check_stores(&self, findings: &mut Findings) {
        for store in &self.stores {
            let kind = match store.kind {
                StoreKind::Memcached(_) => "memcached",
                StoreKind::Sql(_) => "sql",
            };
            for error in store.validate() {
                findings.add(format!("{kind}.{}.{}", store.name, error.key), error.text);
            }
        }
        repeated("store", self.stores.iter().map(|store| &*store.name), findings);
    }

    /// Checks the rate limits. A burst that is not given is the count of the rate.
    fn check_rates(&mut self, findings: &mut Findings) {
        repeated("limit", self.limits_by_key.iter().map(|limit| &*limit.name), findings);
        for limit in &mut self.limits_by_key {
            let at = format!("limit.{}", limit.name);
            if limit.rate.count == 0 {
                findings.add(format!("{at}.rate"), "there is none: expected requests per time such as 100/s or 5/10m");
            }
            if limit.rate.period.is_zero() {
                findings.add(format!("{at}.rate"), "0 leaves no time at all: expected more");
            }
            if !(1..=limit::MOST_ENTRIES).contains(&limit.entries) {
                let most = limit::MOST_ENTRIES;
                findings.add(format!("{at}.entries"), format!("{} keys: expected 1 to {most}", limit.entries));
            }
            if limit.burst == 0 {
                limit.burst = limit.rate.count;
            }
            check_answer(&limit.answer, &format!("{at}.answer"), findings);
            let Some(shared) = &limit.memcached else { continue };
            let fit = self.stores.iter().filter(|store| matches!(store.kind, StoreKind::Memcached(_)));
            let fit: Vec<&str> = fit.map(|store| &*store.name).collect();
            if !fit.contains(&&*shared.store) {
                let problem = format!("there is no such store `{}`{}", shared.store, expected(&fit));
                findings.add(format!("{at}.memcached.store"), problem);
            }
            if !shared.has_prefix() {
                let problem =
                    format!("{:?} is no prefix: expected up to 100 visible characters of ASCII", shared.prefix);
                findings.add(format!("{at}.memcached.prefix"), problem);
            }
        }
    }

    fn check_access_log(&self, findings: &mut Findings) {
        let Some(log) = &self.access_log else { return };
        if let Some(file) = &log.file
            && let Err(why) = access::check(file)
        {
            findings.add("access-log.file", format!("cannot append to `{}`: {why}", file.display()));
        }
        if !(0.0..=1.0).contains(&log.sample) {
            findings.add("access-log.sample", format!("{} is no share: expected 0 to 1", log.sample));
        }
    }
}

fn check_answer(answer: &Answer, at: &str, findings: &mut Findings) {
    if !(200..600).contains(&answer.status) {
        findings
            .add(format!("{at}.status"), format!("{} is no status of an answer: expected 200 to 599", answer.status));
    }
    if matches!(answer.status, 204 | 304) && !answer.body.is_empty() {
        findings.add(format!("{at}.body"), format!("an answer of {} has no body: leave it empty", answer.status));
    }
    if answer.content_type.bytes().any(|byte| !(b' '..=b'~').contains(&byte)) {
        findings.add(
            format!("{at}.content-type"),
            format!("{:?} is no media type: expected one such as text/html", answer.content_type),
        );
    }
}

/// Clients show certificates over TLS alone.
fn check_clients(routes: &[Route], has_tls: bool, findings: &mut Findings) {
    for (place, _) in routes.iter().enumerate().filter(|(_, route)| route.clients.is_some() && !has_tls) {
        findings.add(
            format!("route[{}].client-certificate", place + 1),
            "clients show certificates over TLS alone: expected `listen.tls` and a table [tls]",
        );
    }
}

fn repeated<'a>(what: &str, names: impl Iterator<Item = &'a str>, findings: &mut Findings) {
    let mut seen = HashSet::new();
    for name in names {
        if !seen.insert(name) {
            findings.add(what, format!("the name `{name}` is given twice: expected each only once"));
        }
    }
}

fn expected(names: &[&str]) -> String {
    match names {
        [] => ": none is configured".to_owned(),
        names => format!(": expected one of {}", names.join(", ")),
    }
}

/// Returns whether an address admits only this machine and, at a unix socket, only permitted users.
fn is_local(address: &str) -> bool {
    if address.starts_with("unix:") || address.starts_with(['/', '@']) {
        // An abstract socket has no owner and no mode: every local user may connect.
        return !address.trim_start_matches("unix:").starts_with('@');
    }
    names_this_machine(address.rsplit_once(':').map_or(address, |(host, _)| host))
}

/// Assigns pool classes to upstreams, look-ups and scripts. Classes derive from names, so that reloads keep pools and
/// counters when the order changes.
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

/// Collects mistakes and warnings.
#[derive(Default)]
struct Findings {
    errors: Vec<Mistake>,
    /// Valid but probably unintended settings.
    warnings: Vec<Mistake>,
}

impl Findings {
    fn add(&mut self, key: impl Into<String>, problem: impl Into<String>) {
        self.errors.push(Mistake::new(key, problem));
    }

    fn warn(&mut self, key: impl Into<String>, problem: impl Into<String>) {
        self.warnings.push(Mistake::new(key, problem));
    }
}
