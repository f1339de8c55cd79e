//! A script's state on one core, and calls into it.

use std::cell::Cell;
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use mlua::{FromLuaMulti, Function, IntoLuaMulti, Lua, MultiValue};
use oroshi_script::{ConfinedOptions, Coroutine, Engine, Kind, Progress, Report};
use tokio::time::{Instant, timeout_at};

use super::api::{self, ApiContext};
use super::{
    ApiResources, Counters, ErrorKind, Hook, HookCounts, HookSet, Modules, ScriptError, ScriptSettings, StoreNames,
};

/// The most concurrent calls in a state. Each call is one of the about 8,000 values of a state that Rust can hold
/// (LUAI_MAXCSTACK).
const MOST_CALLS: usize = 2_000;

/// Above 1/`EAGER_FROM` of its memory limit, a state collects garbage more eagerly, so that garbage alone does not fill
/// it.
const EAGER_FROM: usize = 4;

/// A state with less than 1/`FULL_SHARE` of its memory free is collected at once.
const FULL_SHARE: usize = 8;

/// How far memory may grow until the next collection, percent of the memory in use.
const PAUSE: i32 = 200;
const EAGER_PAUSE: i32 = 110;

/// A state and its hooks, on one core.
#[derive(Debug)]
pub(crate) struct Script {
    engine: Engine,
    hooks: [Option<Function>; Hook::ALL.len()],
    host: Rc<ApiContext>,
    counters: Arc<Counters>,
    instructions: u64,
    wall: Duration,
    memory: usize,
    /// Calls in progress.
    calls: Cell<usize>,
    is_eager: Cell<bool>,
    /// Memory in use after the last collection of a nearly full state; 0 if none since.
    full: Cell<usize>,
}

impl Script {
    /// Runs a script's top level in a temporary state and returns the hooks that it defines. Waiting is refused. With
    /// `stores`, the script may name no others.
    pub(crate) fn check(settings: &ScriptSettings, stores: Option<&StoreNames>) -> Result<HookSet, ScriptError> {
        let script = Self::new(settings, ApiContext::to_check(&settings.name, stores), Arc::default())?;
        let mut hooks = HookSet::default();
        Hook::ALL.into_iter().filter(|&hook| script.has(hook)).for_each(|hook| hooks.add(hook));
        Ok(hooks)
    }

    /// Makes a core's state and runs the top level. The caller calls `init`.
    pub(crate) fn load(settings: &ScriptSettings, tools: ApiResources) -> Result<Rc<Self>, ScriptError> {
        let counters = Arc::clone(&tools.counters);
        Self::new(settings, ApiContext::new(&settings.name, Some(tools)), counters).map(Rc::new)
    }

    fn new(settings: &ScriptSettings, host: ApiContext, counters: Arc<Counters>) -> Result<Self, ScriptError> {
        let host = Rc::new(host);
        let engine = Engine::confined(&settings.file, confines(settings)).map_err(told)?;
        api::install(&engine, &host).map_err(told)?;
        engine.load_source(&settings.source).map_err(told)?;
        let mut hooks = [const { None }; Hook::ALL.len()];
        for hook in Hook::ALL {
            match engine.lua().globals().raw_get::<Option<Function>>(hook.name()) {
                Ok(function) => hooks[hook as usize] = function,
                Err(_) => {
                    let what = format!("the global {} is not a function, as is expected of a hook", hook.name());
                    let place = settings.file.display().to_string();
                    return Err(ScriptError { place, what, kind: ErrorKind::Error });
                }
            }
            if let Some(function) = &hooks[hook as usize] {
                engine.introduce(hook.name(), function);
            }
        }
        let ScriptSettings { instructions, wall, memory, .. } = *settings;
        let (calls, is_eager, full) = (Cell::new(0), Cell::new(false), Cell::new(0));
        Ok(Script { engine, hooks, host, counters, instructions, wall, memory, calls, is_eager, full })
    }

    /// Returns whether the script has this hook.
    pub(crate) fn has(&self, hook: Hook) -> bool {
        self.hooks[hook as usize].is_some()
    }

    /// Returns the state, for making values in it.
    pub(crate) fn lua(&self) -> &Lua {
        self.engine.lua()
    }

    /// Makes values in the state. If memory is full, collects garbage and tries once more.
    ///
    /// # Errors
    /// The errors of `make`.
    pub(crate) fn make<T>(&self, make: impl FnMut(&Lua) -> mlua::Result<T>) -> mlua::Result<T> {
        self.engine.with_room(make)
    }

    /// Returns the script's counters on this core.
    #[cfg(test)]
    pub(crate) fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// Calls a hook, and waits as it waits. A missing hook returns nothing.
    ///
    /// # Errors
    /// The hook failed, exceeded a limit, or returned no `R`. The state can be called again.
    ///
    /// # Cancel safety
    /// Dropping the future ends the call where it waits: no further line runs.
    pub(crate) async fn call<A: IntoLuaMulti, R: FromLuaMulti>(
        self: &Rc<Self>,
        hook: Hook,
        args: A,
    ) -> Result<R, ScriptError> {
        let Some(function) = &self.hooks[hook as usize] else {
            return R::from_lua_multi(MultiValue::new(), self.lua()).map_err(|error| self.unusable(hook, &error));
        };
        let mut call = Call {
            script: self,
            hook,
            coroutine: None,
            ended: Default::default(),
            began: Instant::now(),
            failed: None,
        };
        self.calls.set(self.calls.get() + 1);
        let result = self.run(&mut call, function, args).await;
        // An unusable result is an error of the script as well.
        let result = result
            .and_then(|values| R::from_lua_multi(values, self.lua()).map_err(|error| self.unusable(hook, &error)));
        call.failed = result.as_ref().err().map(|error| error.kind);
        if call.failed == Some(ErrorKind::Memory) {
            // Frees the call's values first.
            call.end();
            self.engine.collect();
        }
        result
    }

    async fn run<A: IntoLuaMulti>(
        &self,
        call: &mut Call<'_>,
        function: &Function,
        args: A,
    ) -> Result<MultiValue, ScriptError> {
        if self.calls.get() > MOST_CALLS {
            let what = format!("{MOST_CALLS} calls are under way in this state: expected no more");
            return Err(ScriptError { place: self.engine.place(function), what, kind: ErrorKind::Overload });
        }
        let coroutine = self.engine.coroutine(call.hook.name(), function, self.instructions).map_err(told)?;
        let coroutine = call.coroutine.insert(coroutine);
        let mut tickets = Vec::new();
        let mut progress = self.host.during(&mut tickets, || self.engine.resume(coroutine, args));
        self.look_at_memory();
        let end = call.began + self.wall;
        loop {
            match progress.map_err(told)? {
                Progress::Returned(values) => return Ok(values),
                Progress::Waits => {}
            }
            let Some(pending) = self.host.take() else {
                let what = "it waits for nothing".to_owned();
                return Err(ScriptError { place: self.engine.place(function), what, kind: ErrorKind::Error });
            };
            // An immediate result does not count as waiting.
            let got = if Instant::now() < end { timeout_at(end, pending).await.ok() } else { None };
            let Some(got) = got else {
                let place = coroutine.place().unwrap_or_else(|| self.engine.place(function));
                let what = format!("{}() had not returned after {:?}, and waited here", call.hook.name(), self.wall);
                return Err(ScriptError { place, what, kind: ErrorKind::Wall });
            };
            let mut got = got;
            let values = self.host.during(&mut tickets, || self.make(|lua| got.hand_over(lua, &self.host)));
            let values = values.map_err(|error| self.no_room(coroutine, function, &error))?;
            progress = self.host.during(&mut tickets, || self.engine.resume(coroutine, values));
            self.look_at_memory();
        }
    }

    /// LuaJIT collects when memory has doubled, which may exceed the limit.
    fn look_at_memory(&self) {
        let is_eager = self.lua().used_memory() > self.memory / EAGER_FROM;
        if is_eager != self.is_eager.replace(is_eager) {
            let pause = if is_eager { EAGER_PAUSE } else { PAUSE };
            let parameters = mlua::state::GcIncParams::default().pause(pause);
            self.lua().gc_set_mode(mlua::state::GcMode::Incremental(parameters));
        }
        // LuaJIT does not collect when memory is full either, and this call's garbage must not fail the next call. A
        // state that needs its memory is not collected again until it grows.
        let used = self.lua().used_memory();
        if used < self.memory - self.memory / FULL_SHARE {
            self.full.set(0);
        } else if used > self.full.get() + self.memory / FULL_SHARE / 2 {
            self.engine.collect();
            self.full.set(self.lua().used_memory());
        }
    }

    fn no_room(&self, coroutine: &Coroutine, function: &Function, error: &mlua::Error) -> ScriptError {
        let place = coroutine.place().unwrap_or_else(|| self.engine.place(function));
        let kind = if matches!(error, mlua::Error::MemoryError(_)) { ErrorKind::Memory } else { ErrorKind::Error };
        ScriptError { place, what: format!("what it waited for cannot be handed over: {error}"), kind }
    }

    fn unusable(&self, hook: Hook, error: &mlua::Error) -> ScriptError {
        let function = self.hooks[hook as usize].as_ref();
        let place = function.map_or_else(|| hook.name().to_owned(), |function| self.engine.place(function));
        let what = match error {
            mlua::Error::FromLuaConversionError { from, to, message } => {
                let why = message.as_ref().map(|why| format!(" ({why})")).unwrap_or_default();
                format!("{}() returned a {from}: expected a {to}{why}", hook.name())
            }
            other => format!("{}() returned what cannot be used: {other}", hook.name()),
        };
        ScriptError { place, what, kind: ErrorKind::Error }
    }
}

/// A call in progress.
struct Call<'a> {
    script: &'a Script,
    hook: Hook,
    coroutine: Option<Coroutine>,
    /// Running time and instructions of an ended call.
    ended: (Duration, u64),
    began: Instant,
    failed: Option<ErrorKind>,
}

impl Call<'_> {
    fn end(&mut self) {
        if let Some(coroutine) = self.coroutine.take() {
            self.ended = (coroutine.busy(), coroutine.instructions());
        }
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.end();
        let script = self.script;
        script.calls.set(script.calls.get() - 1);
        let (busy, instructions) = self.ended;
        let of = |kind: fn(&ErrorKind) -> bool| u64::from(self.failed.as_ref().is_some_and(kind));
        script.counters.add(
            self.hook,
            &HookCounts {
                calls: 1,
                errors: of(|kind| *kind == ErrorKind::Error),
                breaches: of(|kind| *kind != ErrorKind::Error),
                busy,
                wall: self.began.elapsed(),
                instructions,
            },
        );
    }
}

fn confines(settings: &ScriptSettings) -> ConfinedOptions {
    let name = settings.name.clone();
    let modules = settings.modules.clone();
    ConfinedOptions {
        memory: settings.memory,
        jit: settings.jit,
        instructions: settings.instructions,
        limit: settings.wall,
        tell: Box::new(move |report| tell(&name, &report)),
        read: Box::new(move |path| read(&modules, path)),
    }
}

fn read(modules: &Modules, path: &Path) -> io::Result<Arc<[u8]>> {
    modules.read(path)
}

fn tell(script: &str, report: &Report) {
    match report {
        Report::Slow { what, place, held } => {
            // The top level is not a function.
            let brackets = if what.contains(' ') { "" } else { "()" };
            tracing::warn!(
                script,
                "{place}: {what}{brackets} held its core for {held:?}, in which it served nobody else"
            );
        }
        Report::Stuck(error) => tracing::error!(script, kind = ErrorKind::Stuck.name(), "{error}"),
    }
}

fn told(error: oroshi_script::Error) -> ScriptError {
    let kind = match error.kind {
        Kind::Instructions => ErrorKind::Instructions,
        Kind::Interrupted => ErrorKind::Wall,
        Kind::Memory => ErrorKind::Memory,
        Kind::Stuck => ErrorKind::Stuck,
        Kind::File | Kind::Syntax | Kind::Runtime | Kind::Value => ErrorKind::Error,
    };
    ScriptError { place: error.place, what: error.what, kind }
}

#[cfg(test)]
mod tests;
