//! The state that all cores share: the plan in force, look-ups, stores, the log, and all counters.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use oroshi_acme::Acme;
use oroshi_certificates::Certificates;
use oroshi_lookup::{Lookup, Stores};

use crate::access;
use crate::forward::EncoderBudget;
use crate::limit::Limiter;
use crate::plan::Plan;
use crate::script::hooks::ScriptCounters;
use crate::script::{Cache, Hook, HookCounts};
use crate::tls::TlsState;
use crate::upstream::{CheckCounts, Checked, CheckedUpstream, Checks, OwnSockets, Registry};

/// A plan in force, with its look-ups, stores and log. A reload makes a new generation, which takes over unchanged
/// parts.
#[derive(Debug)]
pub(crate) struct Generation {
    pub(crate) plan: Plan,
    /// One per look-up of the plan, in the plan's order.
    pub(crate) lookups: Vec<Lookup>,
    pub(crate) stores: Stores,
    /// The certificates, if the plan has any.
    pub(crate) certificates: Option<Arc<Certificates>>,
    pub(crate) tls: Arc<TlsState>,
    /// For each upstream of the plan, the results of active checks: one per target, or none.
    pub(crate) checked: Vec<Vec<Arc<Checked>>>,
    /// The client of ACME, if the plan has one.
    pub(crate) acme: Option<Arc<Acme>>,
    /// One per rate limit of the plan, in the plan's order.
    pub(crate) limiters: Vec<Arc<Limiter>>,
    /// Values that scripts share (`gate.cache`).
    pub(crate) cache: Arc<Cache>,
    pub(crate) log: Option<Arc<access::Log>>,
    pub(crate) counters: Arc<GateCounters>,
    /// Sockets on which this process listens. All generations share them; a reload replaces their contents.
    pub(crate) own: OwnSockets,
    /// 1 for the first plan; each reload adds 1.
    pub(crate) number: u64,
    pub(crate) since: SystemTime,
}

impl Generation {
    /// Returns what the active checks of a target have found out, by its pool's class; `None` without checks.
    pub(crate) fn check_counts(&self, class: u32, target: &str) -> Option<CheckCounts> {
        let place = self.plan.upstreams.iter().position(|upstream| upstream.pool.class == class)?;
        let mut targets = self.plan.upstreams[place].targets.iter().zip(self.checked.get(place)?);
        targets.find(|((known, _), _)| known.to_string() == target).map(|(_, checked)| checked.counts())
    }
}

/// The counters of all routes, scripts, targets and servers. They survive reloads.
#[derive(Debug, Default)]
pub(crate) struct GateCounters {
    pub(crate) targets: Arc<Registry>,
    pub(crate) checks: Checks,
    /// The memory of compressed responses.
    pub(crate) encoders: Arc<EncoderBudget>,
    routes: Mutex<BTreeMap<String, Vec<Arc<RouteCounters>>>>,
    scripts: Mutex<BTreeMap<String, Vec<Arc<ScriptCounters>>>>,
    servers: Mutex<Vec<Arc<oroshi_server::Counters>>>,
}

impl GateCounters {
    /// Begins the active checks of a plan, or goes on with those that are the same.
    ///
    /// # Errors
    /// The thread of the checks cannot be started.
    pub(crate) fn check(&self, plan: &Plan) -> io::Result<Vec<Vec<Arc<Checked>>>> {
        let checked = plan.upstreams.iter().map(|upstream| {
            let Some(settings) = &upstream.check else { return Ok(Vec::new()) };
            let pool = &upstream.pool;
            let tls_id = pool.secure.as_ref().map_or(0, |tls| tls.id());
            let (name, class, tls) = (&*upstream.name, pool.class, &pool.tls);
            let of = CheckedUpstream { name, class, settings, tls, tls_id };
            upstream.targets.iter().map(|(target, _)| self.checks.of(target, of)).collect()
        });
        checked.collect()
    }

    /// Returns one core's counters of a route. Routes with the same name share them, across reloads.
    pub(crate) fn route(&self, name: &str, core: usize) -> Arc<RouteCounters> {
        of_core(&self.routes, name, core)
    }

    /// Sums each route's counters over all cores, by route name.
    pub(crate) fn routes(&self) -> BTreeMap<String, RouteCounts> {
        let routes = self.routes.lock().unwrap_or_else(PoisonError::into_inner);
        let sum = |cores: &Vec<Arc<RouteCounters>>| {
            let mut sum = RouteCounts::default();
            cores.iter().for_each(|core| core.add_to(&mut sum));
            sum
        };
        routes.iter().map(|(name, cores)| (name.clone(), sum(cores))).collect()
    }

    /// Returns one core's counters of a script. Scripts with the same name share them, across reloads.
    pub(crate) fn script(&self, name: &str, core: usize) -> Arc<ScriptCounters> {
        of_core(&self.scripts, name, core)
    }

    /// Sums each script's counters over all cores, by script name.
    pub(crate) fn scripts(&self) -> BTreeMap<String, ScriptCounts> {
        let scripts = self.scripts.lock().unwrap_or_else(PoisonError::into_inner);
        let sum = |cores: &Vec<Arc<ScriptCounters>>| ScriptCounts {
            hooks: Hook::ALL.map(|hook| cores.iter().map(|core| core.hooks.counts(hook)).sum()),
            logs_dropped: cores.iter().map(|core| core.logs_dropped.load(Ordering::Relaxed)).sum(),
        };
        scripts.iter().map(|(name, cores)| (name.clone(), sum(cores))).collect()
    }

    /// Adds the counters of a server.
    pub(crate) fn enter(&self, server: Arc<oroshi_server::Counters>) {
        self.servers.lock().unwrap_or_else(PoisonError::into_inner).push(server);
    }

    /// Sums the counters of all servers: client connections and requests.
    pub(crate) fn clients(&self) -> oroshi_server::Counts {
        let servers = self.servers.lock().unwrap_or_else(PoisonError::into_inner);
        servers.iter().map(|server| server.counts()).sum()
    }
}

/// Returns one core's counters under a name, which it makes on the first call.
fn of_core<T: Default>(all: &Mutex<BTreeMap<String, Vec<Arc<T>>>>, name: &str, core: usize) -> Arc<T> {
    let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
    let cores = all.entry(name.to_owned()).or_default();
    cores.resize_with(cores.len().max(core + 1), Arc::default);
    Arc::clone(&cores[core])
}

/// One core's counters of a route. Only that core writes them.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct RouteCounters {
    /// Requests on the route, by the first digit of the response's status. Index 0: without a response.
    by_status: [AtomicU64; 6],
    limited: AtomicU64,
    bytes: AtomicU64,
}

impl RouteCounters {
    pub(crate) fn count(&self, status: u16, bytes: u64) {
        let place = usize::from(status / 100).min(5);
        add(&self.by_status[place], 1);
        add(&self.bytes, bytes);
    }

    pub(crate) fn count_limited(&self) {
        add(&self.limited, 1);
    }

    fn add_to(&self, sum: &mut RouteCounts) {
        for (sum, cell) in sum.by_status.iter_mut().zip(&self.by_status) {
            *sum += cell.load(Ordering::Relaxed);
        }
        sum.limited += self.limited.load(Ordering::Relaxed);
        sum.bytes += self.bytes.load(Ordering::Relaxed);
    }
}

/// Adds with a plain load and store: each counter has one writer.
fn add(cell: &AtomicU64, count: u64) {
    cell.store(cell.load(Ordering::Relaxed) + count, Ordering::Relaxed);
}

/// The counts of a script, over all cores.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ScriptCounts {
    /// In the order of [`Hook::ALL`].
    pub(crate) hooks: [HookCounts; Hook::ALL.len()],
    /// Requests that `on_log` missed.
    pub(crate) logs_dropped: u64,
}

/// The counts of a route, over all cores.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RouteCounts {
    /// Requests by the first digit of the response's status. Index 0: without a response, because the client was gone.
    pub(crate) by_status: [u64; 6],
    /// Requests refused because their host had too many in progress.
    pub(crate) limited: u64,
    /// Bytes of response bodies.
    pub(crate) bytes: u64,
}
