//! What all cores of a gateway share: the plan in force, look-ups, stores, the log, and where everybody's counters are found.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use oroshi_lookup::{Lookup, Stores};

use crate::access;
use crate::plan::Plan;
use crate::script::hooks::ScriptCounters;
use crate::script::{Cache, Hook, HookCounts};
use crate::upstream::{OwnSockets, Registry};

/// A plan at work. A reload makes another one, which takes over what has not changed.
#[derive(Debug)]
pub(crate) struct Generation {
    pub(crate) plan: Plan,
    /// One for each of the plan's look-ups, in their order.
    pub(crate) lookups: Vec<Lookup>,
    pub(crate) stores: Stores,
    /// What scripts keep in common.
    pub(crate) cache: Arc<Cache>,
    pub(crate) log: Option<Arc<access::Log>>,
    pub(crate) counters: Arc<GateCounters>,
    /// Where this process listens: the same for all reloads, which change what is in it.
    pub(crate) own: OwnSockets,
    /// Counted from 1, by reloads.
    pub(crate) number: u64,
    pub(crate) since: SystemTime,
}

/// Everybody's counters, over all reloads.
#[derive(Debug, Default)]
pub(crate) struct GateCounters {
    pub(crate) targets: Arc<Registry>,
    routes: Mutex<BTreeMap<String, Vec<Arc<RouteCounters>>>>,
    scripts: Mutex<BTreeMap<String, Vec<Arc<ScriptCounters>>>>,
    servers: Mutex<Vec<Arc<oroshi_server::Counters>>>,
}

impl GateCounters {
    /// One core's counters of a route: the same ones for as long as a route of this name is there.
    pub(crate) fn route(&self, name: &str, core: usize) -> Arc<RouteCounters> {
        let mut routes = self.routes.lock().unwrap_or_else(PoisonError::into_inner);
        let cores = routes.entry(name.to_owned()).or_default();
        while cores.len() <= core {
            cores.push(Arc::default());
        }
        Arc::clone(&cores[core])
    }

    /// All routes' figures, each over all cores, by name.
    pub(crate) fn routes(&self) -> BTreeMap<String, RouteCounts> {
        let routes = self.routes.lock().unwrap_or_else(PoisonError::into_inner);
        let sum = |cores: &Vec<Arc<RouteCounters>>| {
            let mut sum = RouteCounts::default();
            cores.iter().for_each(|core| core.add_to(&mut sum));
            sum
        };
        routes.iter().map(|(name, cores)| (name.clone(), sum(cores))).collect()
    }

    /// One core's counters of a script: the same ones for as long as a script of this name is there.
    pub(crate) fn script(&self, name: &str, core: usize) -> Arc<ScriptCounters> {
        let mut scripts = self.scripts.lock().unwrap_or_else(PoisonError::into_inner);
        let cores = scripts.entry(name.to_owned()).or_default();
        while cores.len() <= core {
            cores.push(Arc::default());
        }
        Arc::clone(&cores[core])
    }

    /// All scripts' figures, each over all cores, by name.
    pub(crate) fn scripts(&self) -> BTreeMap<String, ScriptCounts> {
        let scripts = self.scripts.lock().unwrap_or_else(PoisonError::into_inner);
        let sum = |cores: &Vec<Arc<ScriptCounters>>| ScriptCounts {
            hooks: Hook::ALL.map(|hook| cores.iter().map(|core| core.hooks.counts(hook)).sum()),
            logs_dropped: cores.iter().map(|core| core.logs_dropped.load(Ordering::Relaxed)).sum(),
        };
        scripts.iter().map(|(name, cores)| (name.clone(), sum(cores))).collect()
    }

    /// Takes note of a server's counters.
    pub(crate) fn enter(&self, server: Arc<oroshi_server::Counters>) {
        self.servers.lock().unwrap_or_else(PoisonError::into_inner).push(server);
    }

    /// What all servers count together: clients' connections.
    pub(crate) fn clients(&self) -> oroshi_server::Counts {
        let servers = self.servers.lock().unwrap_or_else(PoisonError::into_inner);
        servers.iter().map(|server| server.counts()).sum()
    }
}

/// One core's counters of a route: written by that core alone.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct RouteCounters {
    /// Requests that took the route, by the first digit of their answer's status; the first place: without an answer.
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

/// A plain load and store: each has one writer.
fn add(cell: &AtomicU64, count: u64) {
    cell.store(cell.load(Ordering::Relaxed) + count, Ordering::Relaxed);
}

/// A script's figures.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ScriptCounts {
    /// In the order of [`Hook::ALL`].
    pub(crate) hooks: [HookCounts; Hook::ALL.len()],
    /// Requests that `on_log` was not told of.
    pub(crate) logs_dropped: u64,
}

/// A route's figures.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RouteCounts {
    /// Requests by the first digit of their answer's status; the first place: without an answer, as the client was gone.
    pub(crate) by_status: [u64; 6],
    /// Requests that were refused as too many were under way for their host.
    pub(crate) limited: u64,
    /// Bytes of bodies that were answered.
    pub(crate) bytes: u64,
}
