//! A Lua state with wrk's API: the main one, and one for each load thread.
//!
//! Scripts hold Lua objects (`wrk.lua`), which refer to texts and numbers; none is a userdata of mlua. LuaJIT reads
//! all 64 bits of the `int` that a C function returns, and compilers may leave anything in the upper half. mlua's
//! destructors of userdata do, and the process crashes.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use mlua::{FromLuaMulti, Function, IntoLuaMulti, Lua, LuaString, Table, Value};
use oroshi_bench::ScriptError;
use oroshi_net::{Peer, Scheme};
use oroshi_script::{Data, Engine};

use crate::addr::{connect, from_text, lookup, text};
use crate::threads::{Message, Threads};
use crate::{Options, execute, script_error};

/// The API's Lua part.
const API: &str = include_str!("wrk.lua");

/// Prefix of positions in it.
const OURS: &str = "[wrk]:";

/// The inputs of every state of a script.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) options: Options,
    /// Addresses of the URL's host that answered, after the run has found them.
    pub(crate) peers: OnceLock<Vec<Peer>>,
    pub(crate) threads: Threads,
}

/// A Lua state with the API.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) engine: Engine,
    source: Arc<Source>,
    /// The global `wrk`.
    wrk: Table,
    /// Functions of the API for internal use.
    own: Table,
}

impl State {
    /// Makes a state; the script has not run in it.
    pub(crate) fn new(source: &Arc<Source>) -> Result<Self, ScriptError> {
        let engine = Engine::new(&source.options.file, source.options.limit).map_err(script_error)?;
        source.threads.register(engine.handle());
        let made = library(engine.lua(), source).and_then(|(wrk, own)| {
            let globals = engine.lua().globals();
            globals.raw_set("wrk", &wrk)?;
            find_modules_beside(&globals, &source.options.file)?;
            execute::replace(engine.lua(), &globals, source.options.shutdown.clone())?;
            Ok((wrk, own))
        });
        let (wrk, own) = made.map_err(|error| source.threads.error(error.to_string()))?;
        engine.prelude("wrk", API).map_err(script_error)?;
        Ok(Self { engine, source: Arc::clone(source), wrk, own })
    }

    /// Runs the script's file.
    pub(crate) fn load(&self) -> Result<(), ScriptError> {
        self.printed(self.engine.load().map_err(script_error))
    }

    /// Calls a function of the table `wrk`, which the script may have replaced.
    pub(crate) fn call_wrk(&self, name: &'static str, args: impl IntoLuaMulti) -> Result<(), ScriptError> {
        match self.raw(&self.wrk, name)? {
            Value::Function(function) => self.printed(self.call_own(name, &function, args)),
            other => Err(self.source.threads.error(format!("wrk.{name} is {}: expected a function", kind(&other)))),
        }
    }

    /// Calls a function of the script, if it exists.
    pub(crate) fn call_global(&self, name: &'static str, args: impl IntoLuaMulti) -> Result<(), ScriptError> {
        match self.global(name) {
            Some(function) => self.printed(self.call_own(name, &function, args)),
            None => Ok(()),
        }
    }

    /// Calls an internal function that calls the script's function `name`. Errors without a line of the script are
    /// reported at that function.
    #[inline]
    pub(crate) fn call_own<R: FromLuaMulti>(
        &self,
        name: &'static str,
        function: &Function,
        args: impl IntoLuaMulti,
    ) -> Result<R, ScriptError> {
        self.engine.call(name, function, args).map_err(|error| {
            let mut error = script_error(error);
            if error.place == self.source.threads.file() || error.place.starts_with(OURS) {
                error.place = self.place(name);
            }
            error
        })
    }

    /// Returns the position of a function of the script; the file, if there is none.
    pub(crate) fn place(&self, name: &str) -> String {
        let function = self.global(name);
        function.map_or_else(|| self.source.threads.file().to_owned(), |function| self.engine.place(&function))
    }

    /// Returns an internal function.
    pub(crate) fn own(&self, name: &'static str) -> Result<Function, ScriptError> {
        self.own.raw_get(name).map_err(|error| self.ours(&error))
    }

    /// Returns a global, if it is a function.
    pub(crate) fn global(&self, name: &str) -> Option<Function> {
        self.engine.lua().globals().raw_get(name).ok()
    }

    /// Returns a value of the table `wrk`.
    pub(crate) fn wrk(&self, name: &str) -> Result<Value, ScriptError> {
        self.raw(&self.wrk, name)
    }

    /// Returns a script's object for a thread.
    pub(crate) fn thread(&self, core: usize) -> Result<Value, ScriptError> {
        self.own("thread")?.call(core).map_err(|error| self.ours(&error))
    }

    /// Assigns the state to a load thread.
    pub(crate) fn begin(&self, core: usize) -> Result<(), ScriptError> {
        self.own("begin")?.call(core).map_err(|error| self.ours(&error))
    }

    /// Returns a global's value, for another state.
    pub(crate) fn get(&self, name: &[u8]) -> Result<Data, String> {
        let name = self.string(name)?;
        let get = self.own("get").map_err(|error| error.to_string())?;
        let value: Value = self.call_own("thread:get", &get, name).map_err(|error| error.to_string())?;
        Data::from_lua(&value).map_err(|error| error.to_string())
    }

    /// Sets a global to a value from another state.
    pub(crate) fn set(&self, name: &[u8], value: Data) -> Result<(), String> {
        let name = self.string(name)?;
        let value = value.into_lua(self.engine.lua()).map_err(|error| error.to_string())?;
        let set = self.own("set").map_err(|error| error.to_string())?;
        self.call_own("thread:set", &set, (name, value)).map_err(|error| error.to_string())
    }

    /// Converts an error of the binding that is not the script's fault.
    pub(crate) fn ours(&self, error: &mlua::Error) -> ScriptError {
        self.source.threads.error(error.to_string())
    }

    fn string(&self, bytes: &[u8]) -> Result<LuaString, String> {
        self.engine.lua().create_string(bytes).map_err(|error| error.to_string())
    }

    fn raw(&self, table: &Table, name: &str) -> Result<Value, ScriptError> {
        table.raw_get(name).map_err(|error| self.ours(&error))
    }

    /// Flushes the output after a call, so that later output follows it.
    fn printed(&self, result: Result<(), ScriptError>) -> Result<(), ScriptError> {
        self.engine.flush();
        result
    }
}

/// Names the type of a value for messages.
pub(crate) fn kind(value: &Value) -> String {
    match value {
        Value::Nil => "nil".into(),
        Value::Integer(_) | Value::Number(_) => "a number".into(),
        other => format!("a {}", other.type_name()),
    }
}

/// Makes the table `wrk` for the API's Lua part, and the table of internal functions.
fn library(lua: &Lua, source: &Arc<Source>) -> mlua::Result<(Table, Table)> {
    let options = &source.options;
    let headers = lua.create_table()?;
    for (i, (name, value)) in options.headers.iter().enumerate() {
        // The last one of a name counts, in any case.
        if !options.headers[i + 1..].iter().any(|(later, _)| later.eq_ignore_ascii_case(name)) {
            headers.raw_set(name.as_str(), value.as_str())?;
        }
    }
    let (host, port) = options.host_and_port();
    let wrk = lua.create_table()?;
    wrk.raw_set("scheme", options.url.scheme.as_str())?;
    wrk.raw_set("host", host.as_str())?;
    wrk.raw_set("port", port.as_deref())?;
    wrk.raw_set("method", options.method.as_deref().unwrap_or("GET"))?;
    wrk.raw_set("path", options.url.target.as_str())?;
    wrk.raw_set("headers", headers)?;
    wrk.raw_set("body", options.body.as_ref().map(|body| lua.create_string(body)).transpose()?)?;

    let own = lua.create_table()?;
    functions(lua, source, &own)?;
    wrk.raw_set("own", &own)?;
    Ok((wrk, own))
}

/// Adds our functions. On failure they return a text beside the result: Lua raises it, at the line of the caller.
fn functions(lua: &Lua, source: &Arc<Source>, own: &Table) -> mlua::Result<()> {
    let add = |name: &str, function: mlua::Result<Function>| own.raw_set(name, function?);
    let of = || Arc::clone(source);

    add(
        "connect",
        lua.create_function(|_, addr: LuaString| Ok(from_text(&addr.as_bytes()).is_ok_and(|a| connect(&a)))),
    )?;
    let lookup = |lua: &Lua, (host, service): (LuaString, Option<LuaString>)| {
        let service = service.map(|service| service.to_string_lossy());
        Ok(match lookup(&host.as_bytes(), service.as_deref()) {
            Ok(peers) => (Some(texts(lua, &peers)?), None),
            Err(error) => (None, Some(error)),
        })
    };
    add("lookup", lua.create_function(lookup))?;
    let source = of();
    let found = move |lua: &Lua, (host, service): (Value, Value)| {
        source.found(&host, &service).map(|peers| texts(lua, peers)).transpose()
    };
    add("found", lua.create_function(found))?;

    let source = of();
    let peer =
        move |lua: &Lua, core: usize| source.threads.peer(core).map(|peer| lua.create_string(text(&peer))).transpose();
    add("peer", lua.create_function(peer))?;
    let source = of();
    let choose = move |_: &Lua, (core, addr): (usize, LuaString)| {
        let chosen = from_text(&addr.as_bytes()).and_then(|peer| source.threads.set_peer(core, peer));
        Ok(chosen.err())
    };
    add("choose", lua.create_function(choose))?;
    let source = of();
    let stop = move |_: &Lua, core: usize| {
        source.threads.stop(core);
        Ok(())
    };
    add("stop", lua.create_function(stop))?;

    let copied = |lua: &Lua, copied: Result<Data, String>| {
        Ok(match copied {
            Ok(data) => (None, data.into_lua(lua)?),
            Err(error) => (Some(error), Value::Nil),
        })
    };
    let copy = move |lua: &Lua, value: Value| copied(lua, Data::from_lua(&value).map_err(|error| error.to_string()));
    add("copy", lua.create_function(copy))?;
    let source = of();
    let ask = move |lua: &Lua, (core, name): (usize, LuaString)| {
        copied(lua, source.threads.ask(core, |reply| Message::Get(name.as_bytes().to_vec(), reply)))
    };
    add("ask", lua.create_function(ask))?;
    let source = of();
    let tell = move |_: &Lua, (core, name, value): (usize, LuaString, Value)| {
        let data = Data::from_lua(&value).map_err(|error| error.to_string());
        let told =
            data.and_then(|data| source.threads.ask(core, |reply| Message::Set(name.as_bytes().to_vec(), data, reply)));
        Ok(told.err())
    };
    add("tell", lua.create_function(tell))
}

/// Converts addresses for Lua.
fn texts(lua: &Lua, peers: &[Peer]) -> mlua::Result<Table> {
    let list = lua.create_table()?;
    for (i, peer) in peers.iter().enumerate() {
        list.raw_set(i + 1, lua.create_string(text(peer))?)?;
    }
    Ok(list)
}

impl Source {
    /// Returns the addresses that the run found to answer, if these are its own host and service.
    fn found(&self, host: &Value, service: &Value) -> Option<&[Peer]> {
        let is =
            |value: &Value, other: &str| value.as_string().is_some_and(|value| value.as_bytes() == other.as_bytes());
        let (own_host, own_service) = self.options.host_and_service();
        let peers = self.peers.get().filter(|_| is(host, &own_host) && is(service, &own_service))?;
        Some(peers)
    }
}

/// Lets `require` find modules beside the script, from any current folder. (LuaJIT searches the current folder
/// first.)
fn find_modules_beside(globals: &Table, script: &Path) -> mlua::Result<()> {
    let Some(folder) = script.parent().filter(|folder| !folder.as_os_str().is_empty()) else { return Ok(()) };
    let folder = folder.display();
    let package: Table = globals.raw_get("package")?;
    let path: LuaString = package.raw_get("path")?;
    let path = path.to_string_lossy();
    package.raw_set("path", format!("{path};{folder}/?.lua;{folder}/?/init.lua"))
}

impl Options {
    /// Splits the URL as wrk does: a port only if it was typed, an IPv6 address without its brackets.
    pub(crate) fn host_and_port(&self) -> (String, Option<String>) {
        let typed = self.typed.split_once("://").filter(|(scheme, rest)| {
            let plain = [Scheme::Http, Scheme::Https].iter().any(|known| scheme.eq_ignore_ascii_case(known.as_str()));
            plain && !rest.starts_with("unix:")
        });
        let Some((_, rest)) = typed else { return (self.url.host().to_owned(), None) };
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let (host, port) = match authority.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((host, rest)) => (host, rest.strip_prefix(':')),
            None => authority.split_once(':').map_or((authority, None), |(host, port)| (host, Some(port))),
        };
        (host.to_owned(), port.map(str::to_owned))
    }

    /// The arguments of `wrk.resolve`.
    pub(crate) fn host_and_service(&self) -> (String, String) {
        let (host, port) = self.host_and_port();
        (host, port.unwrap_or_else(|| self.url.scheme.as_str().to_owned()))
    }
}
