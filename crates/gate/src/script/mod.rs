//! Scripts in Lua: one state per core and script, called where a route asks for it.
//!
//! 1. [`ScriptSettings`], [`Hook`], [`ScriptError`] (here): a script, its hooks and its errors.
//! 2. `vm`: a state, its calls and their limits.
//! 3. `hooks`: calls of hooks and their results. `request`, `response` and `fields`: the hooks' arguments.
//! 4. `api` and `prelude.lua`: the table `gate` of a script. `cache`: the part of it that all cores share.

mod api;
mod cache;
mod fields;
pub(crate) mod hooks;
mod request;
mod response;
mod vm;

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use oroshi_lookup::{Lookup, StoreKind, StoreSettings, Stores};

pub(crate) use api::{Reply, http_client};
pub(crate) use cache::Cache;
pub(crate) use request::Request;
pub(crate) use vm::Script;

/// A script's source and limits, the same for every core.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptSettings {
    /// Its name in the configuration, messages and metrics.
    pub name: String,
    /// Its file. `require` looks for modules beside it.
    pub file: PathBuf,
    /// The file's contents.
    pub source: Arc<[u8]>,
    /// The modules that it has required.
    pub modules: Modules,
    /// The most instructions of a hook's call, over all its waits. Counted only without the JIT compiler.
    pub instructions: u64,
    /// The longest time of a hook's call, including waiting.
    pub wall: Duration,
    /// The memory limit of each state, bytes.
    pub memory: usize,
    /// Whether LuaJIT compiles. Instructions are then not counted; only time ends a call.
    pub jit: bool,
}

impl ScriptSettings {
    /// Reads a script's file, with default limits: 1,000,000 instructions, 5 s, 64 MiB, no JIT.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read(name: impl Into<String>, file: impl Into<PathBuf>) -> io::Result<Self> {
        let file = file.into();
        let source = std::fs::read(&file)?.into();
        Ok(Self {
            name: name.into(),
            file,
            source,
            modules: Modules::default(),
            instructions: 1_000_000,
            wall: Duration::from_secs(5),
            memory: 64 << 20,
            jit: false,
        })
    }
}

/// Required files by path. Each is read once, so that every core runs the same bytes. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Modules(Arc<Mutex<BTreeMap<PathBuf, Arc<[u8]>>>>);

impl Modules {
    /// Returns a file's contents as of the first request for it.
    pub(crate) fn read(&self, path: &Path) -> io::Result<Arc<[u8]>> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(source) = known.get(path) {
            return Ok(Arc::clone(source));
        }
        let source: Arc<[u8]> = std::fs::read(path)?.into();
        known.insert(path.to_owned(), Arc::clone(&source));
        Ok(source)
    }

    fn all(&self) -> BTreeMap<PathBuf, Arc<[u8]>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl PartialEq for Modules {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.all() == other.all()
    }
}

impl Eq for Modules {}

/// A function of a script that the gateway calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// Once per state, before it serves.
    Init,
    /// Before the route's action.
    Request,
    /// Chooses the request's destination.
    Route,
    /// After the head of the upstream's response.
    Response,
    /// After the request.
    Log,
    /// Gives a look-up's key.
    Key,
}

impl Hook {
    /// All hooks, in numerical order.
    pub const ALL: [Hook; 6] = [Hook::Init, Hook::Request, Hook::Route, Hook::Response, Hook::Log, Hook::Key];

    /// Returns the function's name in the script: `init`, `on_request`, ...
    pub fn name(self) -> &'static str {
        match self {
            Hook::Init => "init",
            Hook::Request => "on_request",
            Hook::Route => "on_route",
            Hook::Response => "on_response",
            Hook::Log => "on_log",
            Hook::Key => "on_key",
        }
    }
}

/// The hooks that a script defines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HookSet(u8);

impl HookSet {
    /// Returns whether the set contains this hook.
    pub fn has(self, hook: Hook) -> bool {
        self.0 & (1 << hook as u8) != 0
    }

    fn add(&mut self, hook: Hook) {
        self.0 |= 1 << hook as u8;
    }
}

/// An error of a script, with its position.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {what}")]
pub struct ScriptError {
    /// File, and line if known: `route.lua:12`.
    pub place: String,
    /// The message. Further lines, if any, begin with two spaces: the stack trace, innermost call first.
    pub what: String,
    /// The kind of error.
    pub kind: ErrorKind,
}

/// The kind of a script's error. All but the first are exceeded limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The script failed, or returned an unusable value. Correct the line.
    Error,
    /// The call exceeded its instructions. Look for a loop at that line, or raise `instructions`.
    Instructions,
    /// The call exceeded its time. Check what it waits for, or raise `wall`.
    Wall,
    /// The state's memory is full. Look for growing data, or raise `memory`.
    Memory,
    /// The call does not return to Lua, so that nothing can end it.
    Stuck,
    /// Too many calls are in progress in this state. Check what they wait for.
    Overload,
}

impl ErrorKind {
    /// Returns the name in logs and metrics.
    pub fn name(self) -> &'static str {
        match self {
            ErrorKind::Error => "error",
            ErrorKind::Instructions => "instructions",
            ErrorKind::Wall => "wall",
            ErrorKind::Memory => "memory",
            ErrorKind::Stuck => "stuck",
            ErrorKind::Overload => "overload",
        }
    }
}

/// The resources behind the functions of `gate`.
#[derive(Clone, Debug)]
pub(crate) struct ApiResources {
    pub(crate) stores: Stores,
    /// Look-ups by their names in the configuration.
    pub(crate) lookups: Rc<HashMap<String, DeclaredLookup>>,
    /// Shared by all cores; outlives reloads.
    pub(crate) cache: Arc<Cache>,
    /// The core's HTTP client, which all its scripts share; outlives reloads.
    pub(crate) http: oroshi_client::local::Client,
    /// This core, from 0.
    pub(crate) core: usize,
    /// The script's counters on this core; they outlive reloads.
    pub(crate) counters: Arc<Counters>,
}

/// The names of the stores of a configuration.
#[derive(Clone, Debug, Default)]
pub(crate) struct StoreNames {
    pub(crate) memcached: Vec<String>,
    pub(crate) sql: Vec<String>,
}

impl StoreNames {
    pub(crate) fn of(stores: &[StoreSettings]) -> Self {
        let (sql, memcached): (Vec<_>, Vec<_>) =
            stores.iter().partition(|store| matches!(store.kind, StoreKind::Sql(_)));
        let names = |stores: Vec<&StoreSettings>| stores.into_iter().map(|store| store.name.clone()).collect();
        StoreNames { memcached: names(memcached), sql: names(sql) }
    }
}

/// A look-up from the configuration.
#[derive(Clone, Debug)]
pub(crate) struct DeclaredLookup {
    pub(crate) lookup: Lookup,
    /// Whether its keys are hosts, which have a canonical form.
    pub(crate) by_host: bool,
}

/// A script's counters on one core, which is the only writer.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Counters([HookCounters; Hook::ALL.len()]);

#[derive(Debug, Default)]
struct HookCounters {
    calls: AtomicU64,
    errors: AtomicU64,
    breaches: AtomicU64,
    busy_ns: AtomicU64,
    wall_ns: AtomicU64,
    instructions: AtomicU64,
}

/// The counts of one hook.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HookCounts {
    /// Completed calls, with any result.
    pub(crate) calls: u64,
    /// Calls that failed by an error of the script.
    pub(crate) errors: u64,
    /// Calls that exceeded a limit.
    pub(crate) breaches: u64,
    /// Running time of Lua.
    pub(crate) busy: Duration,
    /// Total time, including waiting.
    pub(crate) wall: Duration,
    /// Instructions, if counted.
    pub(crate) instructions: u64,
}

impl Counters {
    /// Returns the counts of a hook.
    pub(crate) fn counts(&self, hook: Hook) -> HookCounts {
        let of = &self.0[hook as usize];
        let read = |cell: &AtomicU64| cell.load(Ordering::Relaxed);
        HookCounts {
            calls: read(&of.calls),
            errors: read(&of.errors),
            breaches: read(&of.breaches),
            busy: Duration::from_nanos(read(&of.busy_ns)),
            wall: Duration::from_nanos(read(&of.wall_ns)),
            instructions: read(&of.instructions),
        }
    }

    /// Adds a call.
    fn add(&self, hook: Hook, call: &HookCounts) {
        let of = &self.0[hook as usize];
        // A plain load and store suffices, because there is one writer.
        let add = |cell: &AtomicU64, more| cell.store(cell.load(Ordering::Relaxed) + more, Ordering::Relaxed);
        add(&of.calls, call.calls);
        add(&of.errors, call.errors);
        add(&of.breaches, call.breaches);
        add(&of.busy_ns, call.busy.as_nanos() as u64);
        add(&of.wall_ns, call.wall.as_nanos() as u64);
        add(&of.instructions, call.instructions);
    }
}
