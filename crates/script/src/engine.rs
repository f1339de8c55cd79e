//! One state, from its file to its calls.

use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use mlua::{FromLuaMulti, Function, IntoLuaMulti, Lua, Table};

use crate::error::{Context, Error, Kind, TOP_LEVEL};
use crate::guard::{self, Guard, Handle};
use crate::watchdog;

/// A LuaJIT state, for the thread that made it. All of LuaJIT's libraries are open in it.
#[derive(Debug)]
pub struct Engine {
    // Closed before the guard goes, which looks on.
    lua: Lua,
    guard: Guard,
    path: PathBuf,
    /// The path as text, and how LuaJIT shortens it in messages.
    file: String,
    short: String,
    own: Own,
    /// Names of chunks that are not the script's.
    preludes: RefCell<Vec<String>>,
}

/// How many arguments a function takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// Those that have names.
    pub count: usize,
    /// Whether it takes others beside them (`...`). True for functions that are not Lua's.
    pub varargs: bool,
}

/// Functions of the state, taken before a script could put others in their places.
#[derive(Debug)]
struct Own {
    getinfo: Function,
    flush: Function,
}

impl Engine {
    /// A state for a script. `limit` is the longest that one call into it may take.
    ///
    /// # Errors
    /// When the state cannot be made.
    pub fn new(file: &Path, limit: Duration) -> Result<Self, Error> {
        Self::with_memory(file, limit, watchdog::memory())
    }

    /// `memory`: what this process may use, bytes, before states that use much of it are told so.
    fn with_memory(path: &Path, limit: Duration, memory: u64) -> Result<Self, Error> {
        let file = path.display().to_string();
        let made = guard::new_state().and_then(|lua| {
            let guard = Guard::new(&lua, &file, limit, memory)?;
            let own = Own::take(&lua)?;
            Ok((lua, guard, own))
        });
        let (lua, guard, own) = made.map_err(|error| {
            let what = format!("no Lua state can be made: {error}");
            Error { place: file.clone(), what, kind: Kind::Memory }
        })?;
        let short = shortened(&file);
        Ok(Self { lua, guard, path: path.to_owned(), file, short, own, preludes: RefCell::default() })
    }

    /// The state itself, to put functions and values into it.
    pub fn lua(&self) -> &Lua {
        &self.lua
    }

    /// Runs Lua that is not the script's, before the script. What goes wrong in it is told at the script's line that called it.
    ///
    /// # Errors
    /// When something is wrong with it.
    pub fn prelude(&self, name: &str, source: &str) -> Result<(), Error> {
        let name = guard::own_chunk(name);
        self.preludes.borrow_mut().push(guard::chunk(&name).to_owned());
        self.run(source.as_bytes(), name)
    }

    /// Reads the file and runs it from its first line to its last.
    ///
    /// # Errors
    /// When it cannot be read, is not Lua, or fails.
    pub fn load(&self) -> Result<(), Error> {
        let source = fs::read(&self.path).map_err(|error| {
            let what = format!("the script cannot be read: {error}");
            Error { place: self.file.clone(), what, kind: Kind::File }
        })?;
        self.run(&source, format!("@{}", self.file))
    }

    fn run(&self, source: &[u8], name: String) -> Result<(), Error> {
        let function = self.lua.load(source).set_name(name).into_function();
        let function = function.map_err(|error| self.explain(TOP_LEVEL, &error, || self.file.clone()))?;
        self.call(TOP_LEVEL, &function, ())
    }

    /// Calls a function of the script. `what` is its name, for a message: `request`.
    ///
    /// # Errors
    /// When it fails, does not return in time, or returns something that is no `R`.
    #[inline]
    pub fn call<R: FromLuaMulti>(
        &self,
        what: &'static str,
        function: &Function,
        args: impl IntoLuaMulti,
    ) -> Result<R, Error> {
        let call = self.guard.enter(what);
        if call.is_refused() {
            return Err(self.failed(what, function, None));
        }
        let result = function.call::<R>(args);
        match result {
            Ok(value) if !call.was_interrupted() => Ok(value),
            result => Err(self.failed(what, function, result.err())),
        }
    }

    /// Calls that are still under way at `end` (nanoseconds of CLOCK_MONOTONIC) or begin after it are interrupted soon.
    pub fn until(&self, end: Option<u64>) {
        self.guard.until(end);
    }

    /// What other threads may do to calls into this state.
    pub fn handle(&self) -> Handle {
        self.guard.handle()
    }

    /// Where a function stands: `counter.lua:12`; the script's file, if it is none of the script's.
    pub fn place(&self, function: &Function) -> String {
        let info = function.info();
        match (info.source, info.line_defined) {
            (Some(source), Some(line @ 1..)) if !guard::is_own(&source) => format!("{}:{line}", guard::chunk(&source)),
            _ => self.file.clone(),
        }
    }

    /// How many arguments a function takes.
    pub fn parameters(&self, function: &Function) -> Parameters {
        let any = Parameters { count: 0, varargs: true };
        let Ok(info) = self.own.getinfo.call::<Table>((function, "u")) else { return any };
        let (count, varargs) = (info.raw_get("nparams"), info.raw_get("isvararg"));
        Parameters { count: count.unwrap_or(any.count), varargs: varargs.unwrap_or(any.varargs) }
    }

    /// Writes out what the script has printed so far: Lua's output has a buffer of its own.
    pub fn flush(&self) {
        // A script may have closed it.
        let _ = self.own.flush.call::<()>(());
    }

    #[cold]
    fn failed(&self, what: &'static str, function: &Function, error: Option<mlua::Error>) -> Error {
        let error = error.unwrap_or_else(|| mlua::Error::runtime("interrupted"));
        let interrupted = self.guard.interrupted(what, || self.place(function));
        interrupted.unwrap_or_else(|| self.explain(what, &error, || self.place(function)))
    }

    fn explain(&self, what: &'static str, error: &mlua::Error, place: impl FnOnce() -> String) -> Error {
        Context { file: &self.file, short: &self.short, preludes: &self.preludes.borrow(), what }.explain(error, place)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.guard.close();
    }
}

/// Modules that the system's packages install, which LuaJIT as its authors release it does not look for: their Lua, and what is written
/// in C.
const PACKAGES: &str = "/usr/share/lua/5.1/?.lua;/usr/share/lua/5.1/?/init.lua";
const C_PACKAGES: &str = "/usr/lib/<arch>-linux-gnu/lua/5.1/?.so;/usr/lib64/lua/5.1/?.so;/usr/lib/lua/5.1/?.so";

/// Looks for those as well, after all else; not where the environment says where to look.
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

impl Own {
    fn take(lua: &Lua) -> mlua::Result<Self> {
        look_for_packages(lua)?;
        let debug: Table = lua.globals().get("debug")?;
        let flush = lua.load("local out, flush = io.stdout, io.stdout.flush return function() flush(out) end");
        Ok(Self { getinfo: debug.get("getinfo")?, flush: flush.set_name("=flush").eval()? })
    }
}

/// A file's name as LuaJIT writes it before a message (lj_debug.c): its end, if it is long.
fn shortened(file: &str) -> String {
    const MOST: usize = 60;
    if file.len() < MOST {
        return file.to_owned();
    }
    // It cuts bytes; half a character comes to us as the sign for that.
    let end = &file.as_bytes()[file.len() + 4 - MOST..];
    format!("...{}", String::from_utf8_lossy(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A script in a state that may use `memory` bytes.
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
        // What a state is, with its libraries, is less than its share.
        let engine = Engine::with_memory(file.path(), Duration::from_secs(3600), 4 << 20).unwrap();
        engine.load().unwrap();
        let f: Function = engine.lua().globals().get("f").unwrap();
        assert_eq!(engine.call::<f64>("f", &f, ()).unwrap(), 5_000_000_050_000_000.0);
    }

    #[test]
    fn names_are_shortened_as_luajit_does() {
        let lua = guard::new_state().unwrap();
        for length in [1, 58, 59, 60, 61, 200] {
            let name: String = ('a'..='z').cycle().take(length).collect();
            let function = lua.load("").set_name(format!("@{name}")).into_function().unwrap();
            assert_eq!(function.info().short_src, Some(shortened(&name)), "{length}");
        }
    }
}
