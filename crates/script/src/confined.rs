//! Confined states: their rights and their modules.

use std::cell::RefCell;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use mlua::chunk::ChunkMode;
use mlua::{Function, Lua, Table, Value};

use crate::Engine;
use crate::contained::contained;
use crate::error::{Context, Error, Kind, TOP_LEVEL, shortened};
use crate::guard::{self, Handle, Report};
use crate::strings;

/// The Lua part; [`strings`] has another.
const CONFINE: &str = include_str!("confine.lua");
const STRINGS: &str = include_str!("strings.lua");

/// The largest file of a module, bytes.
const MODULE_BYTES: usize = 1 << 20;

/// The most slots that `table.new` allocates in advance.
const MOST_SLOTS: f64 = 1e6;

/// Memory that a collection may use beyond the state's limit, bytes.
const COLLECT_BYTES: usize = 1 << 20;

/// The longest name of a module, bytes.
const NAME_BYTES: usize = 200;

/// Reads a whole file.
pub type Read = dyn Fn(&Path) -> io::Result<Arc<[u8]>>;

/// Limits and callbacks of a confined state.
pub struct ConfinedOptions {
    /// Memory limit, bytes; LuaJIT's own libraries use about 200 KB of it.
    pub memory: usize,
    /// Whether LuaJIT compiles. Instructions are not counted then.
    pub jit: bool,
    /// Instruction limit for the top level, and for a call by [`Engine::call`].
    pub instructions: u64,
    /// The longest uninterrupted run of a call.
    pub limit: Duration,
    /// Receives reports that no call returns; called from any thread.
    pub tell: Box<dyn Fn(Report) + Send + Sync>,
    /// Reads a module's file.
    pub read: Box<Read>,
}

impl fmt::Debug for ConfinedOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ConfinedOptions { memory, jit, instructions, limit, .. } = self;
        f.debug_struct("ConfinedOptions")
            .field("memory", memory)
            .field("jit", jit)
            .field("instructions", instructions)
            .field("limit", limit)
            .finish_non_exhaustive()
    }
}

/// State of the confinement.
#[derive(Debug)]
pub(crate) struct Confined {
    pub(crate) instructions: u64,
    /// Memory limit, bytes.
    memory: usize,
    /// Shared by Rust and the preludes.
    own: Table,
    /// The value that a waiting coroutine yields.
    pub(crate) waits: RefCell<Value>,
    modules: Rc<RefCell<Vec<(String, String)>>>,
    /// Names of chunks outside the script.
    pub(crate) preludes: Rc<RefCell<Vec<String>>>,
}

impl Confined {
    pub(crate) fn new(
        lua: &Lua,
        file: &Path,
        (instructions, memory): (u64, usize),
        read: Box<Read>,
        handle: Handle,
    ) -> mlua::Result<Self> {
        let own = lua.create_table()?;
        strings::install(lua, &own, handle.clone(), instructions, memory)?;
        own.raw_set("ending", lua.create_function(move |_, ()| Ok(handle.is_ending()))?)?;
        own.raw_set("count", lua.create_function(|lua, ()| Ok(lua.used_memory() as f64 / 1024.0))?)?;
        let preludes = Rc::<RefCell<Vec<String>>>::default();
        let modules = Rc::<RefCell<Vec<(String, String)>>>::default();
        let (named, known, others) = (file.display().to_string(), Rc::clone(&modules), Rc::clone(&preludes));
        let short = shortened(&named);
        let plain = move |_: &Lua, error: Value| {
            let Value::Error(error) = error else { return error.to_string() };
            let (modules, preludes) = (known.borrow(), others.borrow());
            let context =
                Context { file: &named, short: &short, modules: &modules, preludes: &preludes, what: TOP_LEVEL };
            let Error { place, what, .. } = context.explain(&error, String::new);
            let what = what.lines().next().unwrap_or_default();
            Ok(if place.is_empty() { what.to_owned() } else { format!("{place}: {what}") })
        };
        own.raw_set("plain", lua.create_function(plain)?)?;
        own.raw_set("stack_ends", guard::stack_ends(lua)?)?;
        let new = |lua: &Lua, (list, named): (f64, f64)| {
            lua.create_table_with_capacity(list.clamp(0.0, MOST_SLOTS) as usize, named.clamp(0.0, MOST_SLOTS) as usize)
        };
        own.raw_set("table.new", lua.create_function(new)?)?;
        own.raw_set("table.clear", lua.create_function(|_, table: Table| table.clear())?)?;
        let (folder, known) = (file.parent().unwrap_or(Path::new("")).to_owned(), Rc::clone(&modules));
        let module = move |lua: &Lua, name: mlua::LuaString| {
            let (path, source) = match find(&folder, &name.as_bytes(), &read) {
                Ok(found) => found,
                Err(why) => return Ok((None, Some(why))),
            };
            let file = path.display().to_string();
            let short = shortened(&file);
            if short != file && !known.borrow().iter().any(|(_, known)| *known == file) {
                known.borrow_mut().push((short, file.clone()));
            }
            let chunk = lua.load(&*source).set_name(format!("@{file}")).set_mode(ChunkMode::Text);
            match chunk.into_function() {
                Ok(function) => Ok((Some(function), None)),
                Err(mlua::Error::SyntaxError { message, .. }) => Ok((None, Some(message))),
                Err(other) => Err(other),
            }
        };
        own.raw_set("module", lua.create_function(module)?)?;
        Ok(Confined { instructions, memory, own, waits: RefCell::new(Value::Nil), modules, preludes })
    }

    /// File names that LuaJIT shortens: short form, and full name.
    pub(crate) fn modules(&self) -> Vec<(String, String)> {
        self.modules.borrow().clone()
    }
}

impl Engine {
    /// The table shared by Rust and the preludes of a confined state, invisible to scripts.
    ///
    /// It contains `wait`, which suspends a call until it is [resumed](Self::resume). If a call cannot wait, its
    /// function `cancel` is called instead.
    pub fn own(&self) -> Option<&Table> {
        self.confined.as_ref().map(|confined| &confined.own)
    }

    /// Records the position of a function, for reports while it runs.
    pub fn introduce(&self, what: &'static str, function: &Function) {
        self.guard.introduce(what, self.place(function));
    }

    /// Sets whether the script's top level is running.
    pub(crate) fn set_top_level(&self, is: bool) {
        if let Some(own) = self.own() {
            // The key exists already, so this does not allocate.
            let _ = own.raw_set("top_level", is);
        }
    }

    /// Cleans up after a failed call, so that it does not affect other calls.
    #[cold]
    pub(crate) fn clean_up(&self, kind: Kind) {
        if let Some(own) = self.own() {
            let _ = own.raw_set("level", 0); // as above
        }
        if kind == Kind::Memory {
            self.collect();
        }
    }

    /// Frees unreachable values: LuaJIT does not do so when it runs out of memory.
    pub fn collect(&self) {
        if let Some(confined) = &self.confined {
            // Starting a collection takes some memory too.
            let _ = self.lua().set_memory_limit(confined.memory + COLLECT_BYTES);
            // All finalisers are ours, and do not fail.
            let _ = self.lua().gc_collect();
            let _ = self.lua().set_memory_limit(confined.memory);
        }
    }

    /// Makes values in the state; if memory is short, collects garbage and retries once.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn with_room<T>(&self, mut make: impl FnMut(&Lua) -> mlua::Result<T>) -> mlua::Result<T> {
        match contained(|| make(self.lua())) {
            Err(error) if is_memory(&error) => {
                self.collect();
                contained(|| make(self.lua()))
            }
            made => made,
        }
    }

    pub(crate) fn confine(&self) -> Result<(), Error> {
        self.prelude("confine", CONFINE)?;
        self.prelude("strings", STRINGS)?;
        if let Some(confined) = &self.confined {
            let waits = confined.own.raw_get("waits");
            *confined.waits.borrow_mut() = waits.unwrap_or(Value::Nil);
        }
        Ok(())
    }

    /// Whether the yielded value is the mark of a waiting coroutine.
    pub(crate) fn is_waiting(&self, yielded: &mlua::MultiValue) -> bool {
        let Some(confined) = &self.confined else { return false };
        yielded.front().is_some_and(|first| matches!(first, Value::Table(_)) && *first == *confined.waits.borrow())
    }
}

/// Whether the error is a lack of memory.
fn is_memory(error: &mlua::Error) -> bool {
    match error {
        mlua::Error::MemoryError(_) => true,
        mlua::Error::CallbackError { cause, .. } | mlua::Error::WithContext { cause, .. } => is_memory(cause),
        _ => false,
    }
}

/// Finds a module's file and reads it: `a.b` is `a/b.lua` or `a/b/init.lua`, beside the script.
fn find(folder: &Path, name: &[u8], read: &Read) -> Result<(PathBuf, Arc<[u8]>), String> {
    let shown = String::from_utf8_lossy(&name[..name.len().min(NAME_BYTES)]).escape_default().to_string();
    let is_part =
        |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b));
    let name = std::str::from_utf8(name).ok().filter(|name| name.len() <= NAME_BYTES && name.split('.').all(is_part));
    let Some(name) = name else {
        return Err(format!(
            "require: '{shown}' names no module: expected letters, digits, _ and -, with dots between folders"
        ));
    };
    let stem: PathBuf = folder.join(name.split('.').collect::<PathBuf>());
    let paths = [stem.with_extension("lua"), stem.join("init.lua")];
    for path in &paths {
        match read(path) {
            Ok(source) if source.len() > MODULE_BYTES => {
                return Err(format!(
                    "require: {} has {} bytes: expected at most {MODULE_BYTES}",
                    path.display(),
                    source.len()
                ));
            }
            Ok(source) => return Ok((path.clone(), source)),
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {}
            Err(error) => return Err(format!("require: {} cannot be read: {error}", path.display())),
        }
    }
    Err(format!("require: there is no module '{name}': expected {} or {}", paths[0].display(), paths[1].display()))
}
