//! Lua files for what is special: one state per core and script, entered where a route asks.
//!
//! 1. [`ScriptSettings`], [`Hook`], [`ScriptError`] (here): what a script is, when it is called, what can go wrong with it.
//! 2. `vm`: a state, its calls, their limits.
//! 3. `hooks`: what the gateway asks, and what it takes for an answer. `request`, `response` and `fields`: what hooks are given.
//! 4. `api` and `prelude.lua`: the table `gate` of a script. `cache`: its part that all cores share.

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

/// A script, as every core runs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptSettings {
    /// What it is called in the configuration, in messages and metrics.
    pub name: String,
    /// Its file; what it requires is looked for beside it.
    pub file: PathBuf,
    /// What stands in the file.
    pub source: Arc<[u8]>,
    /// What stands in the files that it requires, as far as it has.
    pub modules: Modules,
    /// How many instructions a call of a hook may take, however often it waits. Counted with the JIT compiler off alone.
    pub instructions: u64,
    /// How long a call of a hook may take, waiting included.
    pub wall: Duration,
    /// What each state may use, bytes.
    pub memory: usize,
    /// Whether LuaJIT compiles. Instructions are not counted then; a call is still ended by its time.
    pub jit: bool,
}

impl ScriptSettings {
    /// Reads a script's file; its limits are the defaults: 1,000,000 instructions, 5 s, 64 MiB, no JIT.
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

/// Files that a script has required, by path: read once, so that every core runs the same bytes. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Modules(Arc<Mutex<BTreeMap<PathBuf, Arc<[u8]>>>>);

impl Modules {
    /// What stands in a file; as it stood there when it was first asked for.
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
    /// Where a request goes.
    Route,
    /// Once the server's head is there.
    Response,
    /// After the end.
    Log,
    /// A look-up's key.
    Key,
}

impl Hook {
    /// All of them, in the order of their numbers.
    pub const ALL: [Hook; 6] = [Hook::Init, Hook::Request, Hook::Route, Hook::Response, Hook::Log, Hook::Key];

    /// The function's name in the script: `init`, `on_request`, ...
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

/// The hooks that a script has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HookSet(u8);

impl HookSet {
    /// Whether this one is among them.
    pub fn has(self, hook: Hook) -> bool {
        self.0 & (1 << hook as u8) != 0
    }

    fn add(&mut self, hook: Hook) {
        self.0 |= 1 << hook as u8;
    }
}

/// What a script did wrong, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {what}")]
pub struct ScriptError {
    /// File and line, as far as the line is known: `route.lua:12`.
    pub place: String,
    /// What happened. Further lines, if any, begin with two spaces: the calls that led there, innermost first.
    pub what: String,
    /// What kind of mistake it is.
    pub kind: ErrorKind,
}

/// Kinds of mistakes. All but the first are breaches of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// It failed, or gave what cannot be used: correct the line.
    Error,
    /// It took more instructions than it may: look for a loop at that line, or raise `instructions`.
    Instructions,
    /// It took longer than it may: see what it waits for, or raise `wall`.
    Wall,
    /// Its state has no more memory: look for what grows, or raise `memory`.
    Memory,
    /// It does not come back to Lua, so that nothing can end it.
    Stuck,
    /// As many calls as may be are under way in this state: see what they wait for.
    Overload,
}

impl ErrorKind {
    /// Its name in logs and metrics.
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

/// What the functions of `gate` work with.
#[derive(Clone, Debug)]
pub(crate) struct Tools {
    pub(crate) stores: Stores,
    /// By their names in the configuration.
    pub(crate) lookups: Rc<HashMap<String, Declared>>,
    /// Shared by all cores; outlives reloads.
    pub(crate) cache: Arc<Cache>,
    /// One for each core, so that its connections serve all scripts; outlives reloads.
    pub(crate) http: oroshi_client::local::Client,
    /// This core, from 0.
    pub(crate) core: usize,
    /// What is counted of the script on this core; outlives reloads.
    pub(crate) counters: Arc<Counters>,
}

/// The names of the stores of a configuration.
#[derive(Clone, Debug, Default)]
pub(crate) struct Names {
    pub(crate) memcached: Vec<String>,
    pub(crate) sql: Vec<String>,
}

impl Names {
    pub(crate) fn of(stores: &[StoreSettings]) -> Self {
        let (sql, memcached): (Vec<_>, Vec<_>) =
            stores.iter().partition(|store| matches!(store.kind, StoreKind::Sql(_)));
        let names = |stores: Vec<&StoreSettings>| stores.into_iter().map(|store| store.name.clone()).collect();
        Names { memcached: names(memcached), sql: names(sql) }
    }
}

/// A look-up that is declared in the configuration.
#[derive(Clone, Debug)]
pub(crate) struct Declared {
    pub(crate) lookup: Lookup,
    /// Whether its keys are hosts, which have a canonical form.
    pub(crate) by_host: bool,
}

/// What is counted of a script on one core, which alone writes it.
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

/// What was counted of one hook.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HookCounts {
    /// Calls that have ended, in whatever way.
    pub(crate) calls: u64,
    /// Those of them that failed by an error of the script.
    pub(crate) errors: u64,
    /// Those that failed by a limit.
    pub(crate) breaches: u64,
    /// How long Lua ran in them.
    pub(crate) busy: Duration,
    /// How long they took, waiting included.
    pub(crate) wall: Duration,
    /// Instructions, as far as they are counted.
    pub(crate) instructions: u64,
}

impl Counters {
    /// The figures of a hook.
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

    /// Takes note of a call.
    fn add(&self, hook: Hook, call: &HookCounts) {
        let of = &self.0[hook as usize];
        // One writer: a plain load and store.
        let add = |cell: &AtomicU64, more| cell.store(cell.load(Ordering::Relaxed) + more, Ordering::Relaxed);
        add(&of.calls, call.calls);
        add(&of.errors, call.errors);
        add(&of.breaches, call.breaches);
        add(&of.busy_ns, call.busy.as_nanos() as u64);
        add(&of.wall_ns, call.wall.as_nanos() as u64);
        add(&of.instructions, call.instructions);
    }
}
