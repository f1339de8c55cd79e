//! A Lua state: loads a file, and calls its functions.

use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use mlua::chunk::ChunkMode;
use mlua::{FromLuaMulti, Function, IntoLuaMulti, Lua, Table, Thread};

use crate::confined::{Confined, ConfinedOptions};
use crate::contained::contained;
use crate::error::{Context, Error, Kind, TOP_LEVEL, shortened};
use crate::guard::{self, Guard, Handle, Reporter};
use crate::watchdog;

/// A LuaJIT state, for the thread that made it. All of LuaJIT's libraries are open, unless it is
/// [confined](Self::confined).
#[derive(Debug)]
pub struct Engine {
    // Dropped before the guard, which watches it.
    lua: Lua,
    pub(crate) guard: Guard,
    path: PathBuf,
    /// The path as text, and LuaJIT's short form in messages.
    file: String,
    short: String,
    own: SavedFunctions,
    /// Names of chunks outside the script.
    preludes: Rc<RefCell<Vec<String>>>,
    pub(crate) confined: Option<Confined>,
    /// Finished coroutines, for reuse.
    pub(crate) kept: RefCell<Vec<Thread>>,
}

/// The number of a function's arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// Number of named arguments.
    pub count: usize,
    /// Whether it takes more arguments (`...`). True for functions not written in Lua.
    pub varargs: bool,
}

/// Functions of the state, saved before a script can replace them.
#[derive(Debug)]
struct SavedFunctions {
    getinfo: Function,
    /// None if nothing can be written.
    flush: Option<Function>,
}

impl Engine {
    /// Makes a state for a script. `limit` is the longest time for one call.
    ///
    /// # Errors
    /// When the state cannot be made.
    pub fn new(file: &Path, limit: Duration) -> Result<Self, Error> {
        Self::with_memory(file, limit, watchdog::memory())
    }

    /// `memory`: memory of this process, bytes, beyond which large states are stopped.
    fn with_memory(path: &Path, limit: Duration, memory: u64) -> Result<Self, Error> {
        let file = path.display().to_string();
        let made = guard::new_state().and_then(|lua| {
            let guard = Guard::new(&lua, &file, limit, memory)?;
            look_for_packages(&lua)?;
            let flush = lua.load("local out, flush = io.stdout, io.stdout.flush return function() flush(out) end");
            let flush = flush.set_name("=flush").eval()?;
            let own = SavedFunctions { getinfo: getinfo(&lua)?, flush: Some(flush) };
            Ok(Self::made(lua, guard, path, own, None))
        });
        made.map_err(|error| no_state(&file, &error))
    }

    /// Makes a confined state, with only what its script needs.
    ///
    /// It has no `io`, `ffi`, C modules or bytecode, and only parts of `os` and `debug`; `require` searches beside
    /// the script only. After a failure, the state can be called again.
    ///
    /// # Errors
    /// When the state cannot be made.
    pub fn confined(path: &Path, confines: ConfinedOptions) -> Result<Self, Error> {
        let file = path.display().to_string();
        let ConfinedOptions { memory, jit, instructions, limit, tell, read } = confines;
        let made = guard::new_confined_state(memory, jit).and_then(|lua| {
            let guard = Guard::confined(&lua, &file, limit, jit, Reporter(tell))?;
            let own = SavedFunctions { getinfo: getinfo(&lua)?, flush: None };
            let confined = Confined::new(&lua, path, (instructions, memory), read, guard.handle())?;
            Ok(Self::made(lua, guard, path, own, Some(confined)))
        });
        let engine = made.map_err(|error| no_state(&file, &error))?;
        engine.confine()?;
        Ok(engine)
    }

    fn made(lua: Lua, guard: Guard, path: &Path, own: SavedFunctions, confined: Option<Confined>) -> Self {
        let file = path.display().to_string();
        let short = shortened(&file);
        let preludes = confined.as_ref().map(|confined| Rc::clone(&confined.preludes)).unwrap_or_default();
        let kept = RefCell::default();
        Self { lua, guard, path: path.to_owned(), file, short, own, preludes, confined, kept }
    }

    /// The Lua state, to add functions and values.
    pub fn lua(&self) -> &Lua {
        &self.lua
    }

    /// Runs Lua that is not part of the script, before the script.
    ///
    /// Errors in it are reported at the script's line that called it. In a confined state it gets the table
    /// [`own`](Self::own) as its argument.
    ///
    /// # Errors
    /// When the prelude fails.
    pub fn prelude(&self, name: &str, source: &str) -> Result<(), Error> {
        let name = guard::own_chunk(name);
        self.preludes.borrow_mut().push(guard::chunk(&name).to_owned());
        self.run(source.as_bytes(), name, self.own())
    }

    /// Reads the file and runs it.
    ///
    /// # Errors
    /// When it cannot be read, is not Lua, or fails.
    pub fn load(&self) -> Result<(), Error> {
        let source = fs::read(&self.path).map_err(|error| {
            let what = format!("the script cannot be read: {error}");
            Error { place: self.file.clone(), what, kind: Kind::File }
        })?;
        self.load_source(&source)
    }

    /// Runs the text of the file.
    ///
    /// # Errors
    /// When it is not Lua, or fails.
    pub fn load_source(&self, source: &[u8]) -> Result<(), Error> {
        self.set_top_level(true);
        let done = self.run(source, format!("@{}", self.file), ());
        self.set_top_level(false);
        done
    }

    fn run(&self, source: &[u8], name: String, args: impl IntoLuaMulti) -> Result<(), Error> {
        let mut chunk = self.lua.load(source).set_name(name);
        if self.confined.is_some() {
            chunk = chunk.set_mode(ChunkMode::Text);
        }
        let function = chunk.into_function();
        let function = function.map_err(|error| self.explain(TOP_LEVEL, &error, || self.file.clone()))?;
        self.call(TOP_LEVEL, &function, args)
    }

    /// Calls a function of the script. `what` is its name in messages: `request`.
    ///
    /// # Errors
    /// When it fails, does not return in time, or returns something other than `R`.
    #[inline]
    pub fn call<R: FromLuaMulti>(
        &self,
        what: &'static str,
        function: &Function,
        args: impl IntoLuaMulti,
    ) -> Result<R, Error> {
        if let Some(confined) = &self.confined {
            return self.call_confined(confined, what, function, args);
        }
        let call = self.guard.enter(what);
        if call.is_refused() {
            return Err(self.failed(what, function, 0, None));
        }
        let result = function.call::<R>(args);
        match result {
            Ok(value) if !call.was_interrupted() => Ok(value),
            result => Err(self.failed(what, function, 0, result.err())),
        }
    }

    /// Calls without waiting, in one slice.
    fn call_confined<R: FromLuaMulti>(
        &self,
        confined: &Confined,
        what: &'static str,
        function: &Function,
        args: impl IntoLuaMulti,
    ) -> Result<R, Error> {
        let slice = self.guard.slice(what, confined.instructions);
        if slice.is_refused() {
            return Err(self.failed(what, function, confined.instructions, None));
        }
        let result = contained(|| function.call::<R>(args));
        slice.end();
        match result {
            Ok(value) if !slice.was_interrupted() => Ok(value),
            result => {
                let error = self.failed(what, function, confined.instructions, result.err());
                self.clean_up(error.kind);
                Err(error)
            }
        }
    }

    /// Sets the end: calls in progress at `end` (nanoseconds of CLOCK_MONOTONIC), and later ones, are interrupted
    /// soon.
    pub fn until(&self, end: Option<u64>) {
        self.guard.until(end);
    }

    /// Returns a handle for other threads.
    pub fn handle(&self) -> Handle {
        self.guard.handle()
    }

    /// Returns the position of a function: `counter.lua:12`; the script's file for functions of others.
    pub fn place(&self, function: &Function) -> String {
        let info = function.info();
        match (info.source, info.line_defined) {
            (Some(source), Some(line @ 1..)) if !guard::is_own(&source) => format!("{}:{line}", guard::chunk(&source)),
            _ => self.file.clone(),
        }
    }

    /// Returns the number of a function's arguments.
    pub fn parameters(&self, function: &Function) -> Parameters {
        let any = Parameters { count: 0, varargs: true };
        let Ok(info) = self.own.getinfo.call::<Table>((function, "u")) else { return any };
        let (count, varargs) = (info.raw_get("nparams"), info.raw_get("isvararg"));
        Parameters { count: count.unwrap_or(any.count), varargs: varargs.unwrap_or(any.varargs) }
    }

    /// Writes out the script's output: Lua buffers it.
    pub fn flush(&self) {
        if let Some(flush) = &self.own.flush {
            // A script may have closed it.
            let _ = flush.call::<()>(());
        }
    }

    fn failed(&self, what: &'static str, function: &Function, allowed: u64, error: Option<mlua::Error>) -> Error {
        self.failed_at(what, allowed, error, || self.place(function))
    }

    /// `place`: the reported position if there is no better one.
    #[cold]
    pub(crate) fn failed_at(
        &self,
        what: &'static str,
        allowed: u64,
        error: Option<mlua::Error>,
        place: impl Fn() -> String,
    ) -> Error {
        let error = error.unwrap_or_else(|| mlua::Error::runtime("interrupted"));
        let interrupted = self.guard.interrupted(what, allowed, &place);
        interrupted.unwrap_or_else(|| self.explain(what, &error, &place))
    }

    pub(crate) fn explain(&self, what: &'static str, error: &mlua::Error, place: impl FnOnce() -> String) -> Error {
        let modules = self.confined.as_ref().map(Confined::modules).unwrap_or_default();
        let preludes = self.preludes.borrow();
        let context = Context { file: &self.file, short: &self.short, modules: &modules, preludes: &preludes, what };
        context.explain(error, place)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.guard.close();
    }
}

/// Modules from the system's packages, in Lua and in C. LuaJIT as released does not search there.
const PACKAGES: &str = "/usr/share/lua/5.1/?.lua;/usr/share/lua/5.1/?/init.lua";
const C_PACKAGES: &str = "/usr/lib/<arch>-linux-gnu/lua/5.1/?.so;/usr/lib64/lua/5.1/?.so;/usr/lib/lua/5.1/?.so";

/// Adds these folders after all others, unless the environment sets the path.
fn look_for_packages(lua: &Lua) -> mlua::Result<()> {
    let package: Table = lua.globals().get("package")?;
    let c_packages = C_PACKAGES.replace("<arch>", std::env::consts::ARCH);
    for (field, variable, more) in [("path", "LUA_PATH", PACKAGES), ("cpath", "LUA_CPATH", &c_packages)] {
        if std::env::var_os(variable).is_none() {
            let known: String = package.get(field)?;
            package.set(field, format!("{known};{more}"))?;
        }
    }
    Ok(())
}

fn getinfo(lua: &Lua) -> mlua::Result<Function> {
    lua.globals().get::<Table>("debug")?.get("getinfo")
}

fn no_state(file: &str, error: &mlua::Error) -> Error {
    Error { place: file.to_owned(), what: format!("no Lua state can be made: {error}"), kind: Kind::Memory }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a script in a state that may use `memory` bytes.
    fn failed(source: &str, memory: u64) -> Error {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), source).unwrap();
        let engine = Engine::with_memory(file.path(), Duration::from_secs(3600), memory).unwrap();
        let error = engine.load().expect_err("it takes ever more memory");
        assert!(error.place.ends_with(":2"), "{error}");
        error
    }

    #[test]
    fn memory_without_an_end_is_ended() {
        let grows = [
            "local t = {}\nwhile true do t[#t + 1] = ('x'):rep(1000) .. #t end",
            "local t = {}\nwhile true do t[#t + 1] = { #t } end",
            "local s = 'x'\nwhile true do pcall(function() s = s:sub(1, 8e6) .. s end) end",
            "local t = {}\nwhile true do pcall(function() t[#t + 1] = ('x'):rep(1000) .. #t end) end",
        ];
        for source in grows {
            let error = failed(source, 64 << 20);
            assert_eq!(error.kind, Kind::Memory, "{error}");
            assert!(error.what.starts_with("the top level takes too much memory: "), "{error}");
        }
    }

    #[test]
    fn a_state_that_uses_little_is_left_alone_however_full_the_machine_is() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "function f() local x = 0 for i = 1, 1e8 do x = x + i end return x end").unwrap();
        // A state with its libraries is smaller than its share.
        let engine = Engine::with_memory(file.path(), Duration::from_secs(3600), 4 << 20).unwrap();
        engine.load().unwrap();
        let f: Function = engine.lua().globals().get("f").unwrap();
        assert_eq!(engine.call::<f64>("f", &f, ()).unwrap(), 5_000_000_050_000_000.0);
    }
}
