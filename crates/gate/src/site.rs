//! A plan on one core: handles a request from its route to its log line. `limited`: rate limits. `scripted`: requests
//! on routes with scripts. `secure`: challenges of authorities, the redirect to TLS.

mod limited;
mod scripted;
mod secure;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Instant;

use limited::{has_shared, over_limit, over_shared_limit};
use oroshi_lookup::{LookupResult, Outcome as Found, Targets, key};
use oroshi_net::tls::ClientCertificate;
use oroshi_net::{Peer, UnixAddress, monotonic_ns};
use oroshi_server::{Error, Exchange, LogThrottle, RefusedRequest};
use secure::{answer_challenge, is_secure, redirect_to_tls};

use crate::access::Sink;
use crate::clients::VerifiedClients;
use crate::forward::{Call, CallTargets, Edits, Inspect, forward, hops, leads_out};
use crate::generation::{GateCounters, Generation, RouteCounters};
use crate::plan::{Action, Answer, HashBy, KeyFrom, Route, TemplateValues};
use crate::record::{self, Record};
use crate::route::{PathReadings, Repeated, RouteQuery, readings};
use crate::script::hooks::ScriptInstance;
use crate::upstream::{Balancer, Place, Policy, Pool, PoolSettings, Pools, Target, hash};

/// The message for a path that takes two routes.
const TWO_WAYS: &str =
    "the path can be read in two ways (`..`, `//`, `;`, `\\`, escapes), which lead to different places";

/// The message for a request that takes two routes because it repeats a field.
const TWO_FIELDS: &str =
    "a field that decides where this request goes is there more than once, with values that lead to different places";

/// The message for a path that leads above the prefix that its route adds.
const LEADS_OUT: &str = "`..` in the path leads out of where this route goes";

/// The paths of challenges of certificate authorities (RFC 8555, section 8.3).
const CHALLENGES: &str = "/.well-known/acme-challenge/";

/// The most pools that a finder caches by looked-up target. A full cache is cleared.
const MOST_CACHED: usize = 16_384;

/// One core's part of a plan in force.
pub(crate) struct Site {
    pub(crate) generation: Arc<Generation>,
    pools: Pools,
    /// One per upstream of the plan.
    upstreams: Vec<Balancer>,
    /// One per look-up of the plan.
    lookups: Vec<Finder>,
    /// One per script of the plan: the script, and the pools of targets that it names.
    scripts: Vec<(Rc<ScriptInstance>, Finder)>,
    /// One per route of the plan, and one for requests without a route.
    counters: Vec<Arc<RouteCounters>>,
    hosts: Option<Rc<Hosts>>,
    clients: VerifiedClients,
    /// The response above the limit per host.
    too_many: Answer,
    sink: Option<Rc<Sink>>,
    /// Limits how often the log warns of loops.
    loops: Cell<LogThrottle>,
}

/// Finds the pools of targets that a look-up or a script names.
struct Finder {
    settings: Rc<PoolSettings>,
    policy: Policy,
    /// Pools by target, so that a request neither formats a target nor allocates.
    one: RefCell<HashMap<oroshi_lookup::Target, Weak<Pool>>>,
    many: RefCell<HashMap<Targets, Rc<Balancer>>>,
}

/// The destination of a request: one target or several.
enum Destination {
    One(Rc<Pool>),
    Many(Rc<Balancer>),
}

/// The parts of a request that decide its route and destination.
#[derive(Clone, Copy)]
struct Parts<'a> {
    /// In canonical form; empty if the request names none.
    host: &'a str,
    read: &'a PathReadings<'a>,
    /// As received.
    path: &'a str,
    /// With its `?`; empty if there is none.
    query: &'a str,
    /// The client's certificate, if the route has accepted one.
    client: Option<&'a ClientCertificate>,
}

/// A request with its route and action.
struct RoutedRequest<'a> {
    route: &'a Route,
    /// The route's action, or the script's.
    action: &'a Action,
    parts: Parts<'a>,
    extras: &'a Extras<'a>,
}

/// A script's changes to a request.
#[derive(Clone, Copy)]
struct Extras<'a> {
    edits: &'a Edits,
    target: Option<&'a str>,
    inspect: Option<&'a dyn Inspect>,
    /// The key of the look-up, if a script gives it.
    key: Option<&'a str>,
}

impl Extras<'_> {
    const NONE: &'static Extras<'static> =
        &Extras { edits: const { &Edits::none() }, target: None, inspect: None, key: None };
}

impl Site {
    /// Makes a site from `instances`, one per script of the plan.
    pub(crate) fn new(
        generation: Arc<Generation>,
        core: usize,
        pools: Pools,
        hosts: Rc<Hosts>,
        sink: Option<Rc<Sink>>,
        instances: Vec<Rc<ScriptInstance>>,
    ) -> Self {
        let plan = &generation.plan;
        let upstreams = plan.upstreams.iter().zip(&generation.checked).map(|(upstream, checked)| {
            let settings = Rc::new(PoolSettings { version: generation.number, ..upstream.pool.clone() });
            let members = upstream.targets.iter().enumerate().map(|(place, (target, weight))| {
                let pool = pools.pool(target, &settings);
                pool.set_checked(checked.get(place).cloned());
                (pool, *weight)
            });
            Balancer::new(members, upstream.policy)
        });
        // Authors of rows and scripts need not know where the gateway listens, and must not send requests there.
        let own = Some(generation.own.clone());
        let finder = |pool: &PoolSettings, policy: Policy| Finder {
            settings: Rc::new(PoolSettings { version: generation.number, own: own.clone(), ..pool.clone() }),
            policy,
            one: RefCell::default(),
            many: RefCell::default(),
        };
        let lookups = plan.lookups.iter().map(|lookup| finder(&lookup.pool, lookup.policy));
        let scripts = plan.scripts.iter().map(|script| finder(&script.pool, script.policy));
        let names = plan.routes.iter().map(|route| &*route.name).chain(["-"]);
        // Each thread gets an equal share of the limit, at least 1.
        let limit = plan.limits.per_host.map(|limit| (limit / plan.threads).max(1));
        hosts.limit.set(limit.unwrap_or(usize::MAX));
        Site {
            upstreams: upstreams.collect(),
            lookups: lookups.collect(),
            scripts: instances.into_iter().zip(scripts).collect(),
            counters: names.map(|name| generation.counters.route(name, core)).collect(),
            hosts: limit.map(|_| hosts),
            clients: VerifiedClients::default(),
            too_many: Answer {
                retry_after: Some(1),
                ..Answer::text(503, "too many requests for this host are under way")
            },
            sink,
            loops: Cell::default(),
            generation,
            pools,
        }
    }

    /// Hands the collected log lines to the log's writer.
    pub(crate) fn flush(&self) {
        if let Some(sink) = &self.sink {
            sink.flush();
        }
    }

    /// Handles a client's request.
    pub(crate) async fn answer(&self, exchange: &mut Exchange<'_>) -> Result<(), Error> {
        let plan = &self.generation.plan;
        let mut record = Record::new(exchange, self.sink.as_deref(), &self.counters[plan.routes.len()]);
        let result = self.take_route(exchange, &mut record).await;
        if let Err(error) = &result
            && let Some(status) = error.status()
            && !exchange.reply.is_begun()
        {
            // The server sends this response: the body is too long or too slow.
            record.own = Some((status, 0));
        }
        result
    }

    /// Logs a response of the server to bytes that never became a request.
    pub(crate) fn tell_refused(&self, refused: &RefusedRequest<'_>) {
        if let Some(sink) = &self.sink {
            record::tell_refused(sink, refused);
        }
    }

    /// Responds 508 to a request that passed through too many gateways, most likely in a loop.
    #[cold]
    async fn end_loop(
        &self,
        exchange: &mut Exchange<'_>,
        hops: usize,
        record: &mut Record<'_, '_>,
    ) -> Result<(), Error> {
        let mut loops = self.loops.get();
        if let Some(count) = loops.next(Instant::now()) {
            let host = String::from_utf8_lossy(exchange.head.host.unwrap_or_default()).escape_default().to_string();
            tracing::warn!(
                count,
                "a request for `{host}` has come through {hops} gateways of this kind, and is answered 508: see where \
                 its route leads (limits.hops is {})",
                self.generation.plan.limits.hops.unwrap_or_default()
            );
        }
        self.loops.set(loops);
        record.why = "loop";
        record.outcome.detail = format!("it has come through {hops} gateways of this kind (CDN-Loop)");
        send_answer(exchange, &Answer::text(508, "this request goes in circles"), record).await
    }

    async fn take_route<'s>(&'s self, exchange: &mut Exchange<'_>, record: &mut Record<'s, '_>) -> Result<(), Error> {
        let plan = &self.generation.plan;
        if let Some(token) = exchange.head.target.strip_prefix(CHALLENGES)
            && let Some(proof) = Box::pin(answer_challenge(&self.generation.tls.challenges, token)).await
        {
            let content_type = "application/octet-stream".to_owned();
            let answer = Answer { body: proof.into_bytes().into(), content_type, ..Answer::text(200, "") };
            return Box::pin(send_answer(exchange, &answer, record)).await;
        }
        if matches!(exchange.head.method, "CONNECT" | "TRACE") {
            // The gateway is no proxy that clients may choose, and TRACE would expose headers that the gateway adds.
            record.why = "method";
            return Box::pin(not_allowed(exchange, record)).await;
        }
        if let Some(most) = plan.limits.hops {
            let hops = hops(exchange.head.headers);
            if hops >= most {
                return Box::pin(self.end_loop(exchange, hops, record)).await;
            }
        }
        let (path, query) = parts(exchange.head.target);
        let host = key::host(exchange.head.host.unwrap_or_default());
        let read = readings(path);
        let (host, read) = match (&host, &read) {
            (Ok(host), Ok(read)) => (&**host, read),
            // HTTP/1.1 clients send an empty Host if the URI has no authority (RFC 9112, section 3.2).
            (Err(_), Ok(read)) if exchange.head.host.is_none_or(<[u8]>::is_empty) => ("", read),
            (Err(error), _) => {
                let why = format!("the Host cannot be understood: {error}");
                return Box::pin(refuse(exchange, &why, record)).await;
            }
            (_, Err(error)) => return Box::pin(refuse(exchange, &error.to_string(), record)).await,
        };
        let (method, headers) = (exchange.head.method, exchange.head.headers);
        let asked = RouteQuery { host, path: &read.plain, method, headers, repeated: Repeated::Any };
        let found = plan.table.find(&asked);
        if read.others().any(|path| plan.table.find(&RouteQuery { path, ..asked }) != found) {
            return Box::pin(refuse(exchange, TWO_WAYS, record)).await;
        }
        // The upstream may use another of these fields.
        if plan.table.is_repeated(headers) && plan.table.find(&RouteQuery { repeated: Repeated::All, ..asked }) != found
        {
            return Box::pin(refuse(exchange, TWO_FIELDS, record)).await;
        }
        let Some(place) = found else {
            record.why = "no-route";
            return Box::pin(send_answer(exchange, &plan.no_route, record)).await;
        };
        let route = &plan.routes[place];
        (record.route, record.counters) = (&route.name, &self.counters[place]);
        if leads_out(&route.rules, path) {
            return Box::pin(refuse(exchange, LEADS_OUT, record)).await;
        }
        if plan.tls.as_ref().is_some_and(|tls| tls.settings.redirects) && !is_secure(exchange, &route.rules) {
            return Box::pin(redirect_to_tls(exchange, host, record)).await;
        }
        if !route.limits.is_empty()
            && let Some(answer) = match has_shared(&self.generation, route) {
                false => over_limit(&self.generation, route, exchange, host),
                true => Box::pin(over_shared_limit(&self.generation, route, exchange, host)).await,
            }
        {
            record.why = "rate-limit";
            return Box::pin(send_answer(exchange, &answer, record)).await;
        }
        let client = match &route.clients {
            None => None,
            Some(rule) => match self.clients.of(rule, exchange, host, monotonic_ns()) {
                Ok(client) => client,
                Err((answer, why)) => {
                    record.why = why;
                    return Box::pin(send_answer(exchange, &answer, record)).await;
                }
            },
        };
        let _in_flight = match self.hosts.as_ref().map(|hosts| hosts.enter(host)) {
            None => None,
            Some(Some(guard)) => Some(guard),
            Some(None) => {
                record.counters.count_limited();
                record.why = "host-limit";
                return Box::pin(send_answer(exchange, &self.too_many, record)).await;
            }
        };
        let parts = Parts { host, read, path, query, client };
        if route.is_scripted {
            return Box::pin(self.run_scripts(exchange, record, route, parts)).await;
        }
        let routed = RoutedRequest { route, action: &route.action, parts, extras: Extras::NONE };
        self.act(exchange, record, &routed).await
    }

    async fn act(
        &self,
        exchange: &mut Exchange<'_>,
        record: &mut Record<'_, '_>,
        routed: &RoutedRequest<'_>,
    ) -> Result<(), Error> {
        let (plan, RoutedRequest { route, parts, extras, .. }) = (&self.generation.plan, routed);
        let host = parts.host;
        match routed.action {
            Action::Forward(upstream) => {
                let to = CallTargets::Any(&self.upstreams[*upstream]);
                let upstream = &plan.upstreams[*upstream];
                let key = hash_by(&upstream.hash, upstream.policy, exchange, host);
                let call = extras.call(route, parts, (to, key), &self.generation.counters);
                forward(exchange, &call, &mut record.outcome).await
            }
            Action::Lookup(lookup) => match self.look_up(*lookup, exchange, routed).await {
                Ok(destination) => {
                    let found = &plan.lookups[*lookup];
                    let key = hash_by(&found.hash, found.policy, exchange, host);
                    let call = extras.call(route, parts, (destination.to(), key), &self.generation.counters);
                    forward(exchange, &call, &mut record.outcome).await
                }
                Err((answer, why)) => {
                    record.why = why;
                    Box::pin(send_answer(exchange, answer, record)).await
                }
            },
            Action::Redirect { status, to } => {
                let host = String::from_utf8_lossy(exchange.head.host.unwrap_or_default());
                if host.is_empty() && to.names_host() {
                    return Box::pin(refuse(
                        exchange,
                        "this redirect goes by the host, and the request names none",
                        record,
                    ))
                    .await;
                }
                let scheme = if exchange.is_tls() { "https" } else { "http" };
                let place = to.fill(&TemplateValues { host: &host, path: parts.path, query: parts.query, scheme });
                Box::pin(redirect(exchange, *status, &place, record)).await
            }
            Action::Answer(answer) => Box::pin(send_answer(exchange, answer, record)).await,
        }
    }

    /// Looks the request's destination up. On failure, returns the response and the reason's name for the log.
    async fn look_up(
        &self,
        place: usize,
        exchange: &Exchange<'_>,
        routed: &RoutedRequest<'_>,
    ) -> Result<Destination, (&Answer, &'static str)> {
        let plan = &self.generation.plan.lookups[place];
        let key = match &plan.key {
            KeyFrom::Host => Some(routed.parts.host),
            // With two fields, the gateway cannot know which one the upstream uses.
            KeyFrom::Header(name) => {
                let mut values = exchange.head.headers.get_all(name);
                let one = values.next().filter(|_| values.next().is_none());
                one.and_then(|value| str::from_utf8(value).ok())
            }
            // If the readings of the path differ in this segment, there is no key.
            KeyFrom::Segment(number) => {
                let path = routed.parts.read;
                let key = path.plain.split('/').nth(*number);
                key.filter(|key| path.others().all(|other| other.split('/').nth(*number) == Some(key)))
            }
            KeyFrom::Script(_) => routed.extras.key,
        };
        let Some(key) = key.filter(|key| is_key(key)) else { return Err((&plan.unknown, "no-key")) };
        let answer = match self.generation.lookups[place].get(key) {
            LookupResult::Now(answer) => answer,
            // Boxed, so that connections' tasks reserve no space for this rare case.
            LookupResult::Later(later) => Box::pin(later).await,
        };
        match &answer.outcome {
            Found::Hit(targets) | Found::Stale(targets, _) => {
                self.lookups[place].destination(&self.pools, targets).ok_or((&plan.invalid, "invalid"))
            }
            Found::Negative => Err((&plan.unknown, "unknown")),
            Found::Invalid(_) => Err((&plan.invalid, "invalid")),
            Found::StoreDown(_) => Err((&plan.down, "store-down")),
            Found::Overloaded => Err((&plan.down, "overloaded")),
        }
    }
}

impl Extras<'_> {
    fn call<'c>(
        &'c self,
        route: &'c Route,
        parts: &Parts<'c>,
        (to, key): (CallTargets<'c>, u64),
        counters: &'c GateCounters,
    ) -> Call<'c> {
        let Extras { edits, target, inspect, .. } = *self;
        let encoders = &counters.encoders;
        Call { key, request: edits, target, inspect, client: parts.client, encoders, ..Call::new(&route.rules, to) }
    }
}

impl Destination {
    fn to(&self) -> CallTargets<'_> {
        match self {
            Destination::One(pool) => CallTargets::One(pool),
            Destination::Many(balancer) => CallTargets::Any(balancer),
        }
    }
}

impl Finder {
    /// Returns the destination for `targets`, or `None` if one has an invalid unix socket path; look-ups reject these.
    fn destination(&self, pools: &Pools, targets: &Targets) -> Option<Destination> {
        match targets {
            Targets::One(target) => {
                if let Some(pool) = self.one.borrow().get(target).and_then(Weak::upgrade) {
                    return Some(Destination::One(pool));
                }
                let pool = pools.pool(&pool_target(target)?, &self.settings);
                let mut one = self.one.borrow_mut();
                if one.len() >= MOST_CACHED {
                    one.clear();
                }
                one.insert(target.clone(), Rc::downgrade(&pool));
                Some(Destination::One(pool))
            }
            Targets::Many(_) => {
                if let Some(balancer) = self.many.borrow().get(targets) {
                    return Some(Destination::Many(Rc::clone(balancer)));
                }
                let member = |(target, weight)| Some((pools.pool(&pool_target(target)?, &self.settings), weight));
                let members: Option<Vec<_>> = targets.iter().map(member).collect();
                let balancer = Rc::new(Balancer::new(members?, self.policy));
                let mut many = self.many.borrow_mut();
                if many.len() >= MOST_CACHED / 64 {
                    many.clear();
                }
                many.insert(targets.clone(), Rc::clone(&balancer));
                Some(Destination::Many(balancer))
            }
        }
    }
}

/// Counts the requests in progress for each host, on one core.
#[derive(Debug, Default)]
pub(crate) struct Hosts {
    limit: Cell<usize>,
    /// Hosts with a count of zero stay until the map is large, so that requests seldom allocate.
    under_way: RefCell<HashMap<Box<str>, Rc<Cell<usize>>>>,
}

/// Above this size the map drops hosts without requests.
const KNOWN_HOSTS: usize = 8192;

impl Hosts {
    /// Counts a request, or returns `None` if its host is at the limit.
    fn enter(&self, host: &str) -> Option<InFlight> {
        let mut under_way = self.under_way.borrow_mut();
        let count = match under_way.get(host) {
            Some(count) => Rc::clone(count),
            None => {
                if under_way.len() >= KNOWN_HOSTS {
                    under_way.retain(|_, count| count.get() > 0);
                }
                Rc::clone(under_way.entry(host.into()).or_default())
            }
        };
        let free = count.get() < self.limit.get();
        free.then(|| {
            count.set(count.get() + 1);
            InFlight(count)
        })
    }
}

/// A counted request. Dropping this ends the count.
struct InFlight(Rc<Cell<usize>>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

#[cold]
async fn refuse(exchange: &mut Exchange<'_>, why: &str, record: &mut Record<'_, '_>) -> Result<(), Error> {
    record.why = "bad-request";
    send_answer(exchange, &Answer::text(400, why), record).await
}

/// Sends a response of the gateway itself.
async fn send_answer(exchange: &mut Exchange<'_>, answer: &Answer, record: &mut Record<'_, '_>) -> Result<(), Error> {
    let after = answer.retry_after.map(|seconds| seconds.to_string());
    let mut fields = Vec::with_capacity(2);
    if !answer.body.is_empty() {
        fields.push(("Content-Type", answer.content_type.as_bytes()));
    }
    if let Some(after) = &after {
        fields.push(("Retry-After", after.as_bytes()));
    }
    record.own = Some((answer.status, answer.body.len() as u64));
    exchange.reply.send(answer.status, fields, &answer.body).await
}

async fn not_allowed(exchange: &mut Exchange<'_>, record: &mut Record<'_, '_>) -> Result<(), Error> {
    const TEXT: &[u8] = b"this gateway does not carry requests with this method\n";
    let fields: [(&str, &[u8]); 2] =
        [("Allow", b"GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"), ("Content-Type", b"text/plain; charset=utf-8")];
    record.own = Some((405, TEXT.len() as u64));
    exchange.reply.send(405, fields, TEXT).await
}

async fn redirect(
    exchange: &mut Exchange<'_>,
    status: u16,
    place: &str,
    record: &mut Record<'_, '_>,
) -> Result<(), Error> {
    record.own = Some((status, 0));
    exchange.reply.send(status, [("Location", place.as_bytes())], b"").await
}

/// Splits a request target into its path and its query (with its `?`).
fn parts(target: &str) -> (&str, &str) {
    // Absolute form: the path begins at the first slash after the authority (RFC 9112, section 3.2.2).
    let absolute = if target.starts_with('/') { None } else { target.split_once("://") };
    let target = absolute.map_or(target, |(_, rest)| rest.find(['/', '?']).map_or("/", |at| &rest[at..]));
    match memchr::memchr(b'?', target.as_bytes()) {
        // `OPTIONS *` addresses the server as a whole.
        None if target == "*" => ("/", ""),
        Some(0) => ("/", target),
        Some(at) => target.split_at(at),
        None => (target, ""),
    }
}

/// Returns whether a text can be looked up: stores receive it unchanged.
pub(crate) fn is_key(text: &str) -> bool {
    (1..=1024).contains(&text.len()) && !text.chars().any(char::is_control)
}

fn hash_by(by: &HashBy, policy: Policy, exchange: &Exchange<'_>, host: &str) -> u64 {
    if policy != Policy::ConsistentHash {
        return 0;
    }
    match by {
        HashBy::Host => hash(host.as_bytes()),
        HashBy::Target => hash(exchange.head.target.as_bytes()),
        HashBy::Client => {
            client(exchange).map_or(0, |address| hash(address.ip().to_canonical().to_string().as_bytes()))
        }
        HashBy::Header(name) => hash(exchange.head.headers.get(name).unwrap_or_default()),
    }
}

fn client(exchange: &Exchange<'_>) -> Option<SocketAddr> {
    exchange.remote()
}

/// Converts a looked-up target for the pools.
fn pool_target(target: &oroshi_lookup::Target) -> Option<Target> {
    use oroshi_lookup::Target as Looked;
    let place = match target {
        Looked::V4 { address, port, .. } => Place::Peer(Peer::Tcp(SocketAddr::new((*address).into(), *port))),
        Looked::V6 { address, port, .. } => Place::Peer(Peer::Tcp(SocketAddr::new((*address).into(), *port))),
        Looked::Name { name, port, .. } => Place::Name { host: (&**name).into(), port: *port },
        Looked::Unix { path, .. } => Place::Peer(Peer::Unix(UnixAddress::path(&**path).ok()?)),
    };
    Some(Target { place, protocol: target.protocol() })
}
