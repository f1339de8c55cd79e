//! The table `gate` of a script. Scripts call its Lua part, `prelude.lua`. The prelude calls the functions here, which
//! return `true` and results, `false` and an argument's error, or nothing if the call must wait.

mod args;
mod http;
mod json;
mod kept;
mod reply;
mod stores;
mod text;

use std::cell::RefCell;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use mlua::{IntoLua, IntoLuaMulti, Lua, MultiValue, Table, Value};
use oroshi_lookup::{Answer, Rows};
use oroshi_script::{Data, Engine, Error};

use super::cache::{CacheLookup, Ticket};
use super::{ApiResources, StoreNames};
use args::{Args, CallError};

pub(crate) use http::client as http_client;
pub(crate) use reply::Reply;

/// The Lua part.
const PRELUDE: &str = include_str!("../prelude.lua");

/// The longest `gate.sleep`, seconds. The call's own limit is shorter.
const MOST_SECONDS: f64 = 366.0 * 24.0 * 3600.0;

/// The resources behind the functions of a state.
pub(crate) struct ApiContext {
    script: String,
    /// `None` while a script is checked.
    tools: Option<ApiResources>,
    /// The configured stores, if known, while a script is checked.
    names: Option<StoreNames>,
    /// The future that the stopped call waits for.
    pending: RefCell<Option<Pending>>,
    /// Tickets of the running call.
    tickets: RefCell<Vec<Ticket>>,
}

/// The future that a call waits for.
pub(crate) type Pending = Pin<Box<dyn Future<Output = WaitResult>>>;

/// The result of waiting.
#[derive(Debug)]
pub(crate) enum WaitResult {
    Nothing,
    Boolean(bool),
    Bytes(Option<Box<[u8]>>),
    Rows(Rows, stores::ResultShape),
    Answer(Answer),
    Response(http::Received),
    /// The result of asking for a cached value.
    Asked(CacheLookup),
    /// Results that another caller made.
    Made(Arc<[Data]>),
    /// `nil`, a message, and the failure's name.
    Failure(String, &'static str),
    /// An error at the calling line.
    Raised(String),
}

/// The immediate result of a function.
pub(crate) enum FunctionResult {
    Now(MultiValue),
    Later(Pending),
}

impl ApiContext {
    pub(crate) fn new(script: &str, tools: Option<ApiResources>) -> Self {
        ApiContext {
            script: script.to_owned(),
            tools,
            names: None,
            pending: RefCell::default(),
            tickets: RefCell::default(),
        }
    }

    /// Makes a host for checking a script; `names` are the configured stores.
    pub(crate) fn to_check(script: &str, names: Option<&StoreNames>) -> Self {
        ApiContext { names: names.cloned(), ..ApiContext::new(script, None) }
    }

    /// During a check: returns whether a store of this name is configured, as far as known.
    fn expects(&self, name: &str, kind: impl Fn(&StoreNames) -> &Vec<String>) -> bool {
        self.names.as_ref().is_none_or(|names| kind(names).iter().any(|known| known == name))
    }

    /// Takes the future to wait for.
    pub(crate) fn take(&self) -> Option<Pending> {
        self.pending.take()
    }

    /// Runs `work` for a call with these tickets.
    pub(crate) fn during<T>(&self, tickets: &mut Vec<Ticket>, work: impl FnOnce() -> T) -> T {
        drop(self.pending.take());
        std::mem::swap(&mut *self.tickets.borrow_mut(), tickets);
        let result = work();
        std::mem::swap(&mut *self.tickets.borrow_mut(), tickets);
        result
    }

    /// Returns the tools. A check has none.
    fn tools(&self) -> Result<&ApiResources, CallError> {
        self.tools.as_ref().ok_or_else(|| {
            CallError::new("this is a check, in which nothing can be asked: expected it in init() or in a hook")
        })
    }
}

impl fmt::Debug for ApiContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiContext").field("script", &self.script).field("tools", &self.tools).finish_non_exhaustive()
    }
}

/// Adds `gate` to a state.
pub(crate) fn install(engine: &Engine, host: &Rc<ApiContext>) -> Result<(), Error> {
    let lua = engine.lua();
    let filled = engine.own().ok_or_else(|| mlua::Error::runtime("the state is not confined"));
    let filled = filled.and_then(|own| {
        let cancelled = Rc::clone(host);
        let cancel = move |_: &Lua, ()| {
            drop(cancelled.pending.take());
            Ok(())
        };
        own.raw_set("cancel", lua.create_function(cancel)?)?;
        own.raw_set("core", host.tools.as_ref().map_or(0, |tools| tools.core))?;
        own.raw_set("version", env!("CARGO_PKG_VERSION"))?;
        let library = Library { lua, own, host };
        time(&library)?;
        stores::add(&library)?;
        http::add(&library)?;
        kept::add(&library)?;
        json::add(&library)?;
        text::add(&library)?;
        reply::add(&library)
    });
    filled.map_err(|error| {
        let what = format!("the API cannot be put into the state: {error}");
        Error { place: host.script.clone(), what, kind: oroshi_script::Kind::Memory }
    })?;
    engine.prelude("gate", PRELUDE)
}

/// The table for functions.
struct Library<'a> {
    lua: &'a Lua,
    own: &'a Table,
    host: &'a Rc<ApiContext>,
}

impl Library<'_> {
    /// Adds a function that scripts call `called`. Its name here lacks dots and colons.
    fn add(
        &self,
        called: &'static str,
        work: impl Fn(&Lua, &ApiContext, &mut Args) -> Result<FunctionResult, CallError> + 'static,
    ) -> mlua::Result<()> {
        self.add_as(called, called, work)
    }

    /// Adds a part of a function that scripts call.
    fn add_as(
        &self,
        name: &'static str,
        called: &'static str,
        work: impl Fn(&Lua, &ApiContext, &mut Args) -> Result<FunctionResult, CallError> + 'static,
    ) -> mlua::Result<()> {
        let host = Rc::clone(self.host);
        let function = self.lua.create_function(move |lua, values: MultiValue| {
            let mut args = Args::new(called, values);
            match work(lua, &host, &mut args) {
                Ok(FunctionResult::Now(mut values)) => {
                    values.push_front(Value::Boolean(true));
                    Ok(values)
                }
                Ok(FunctionResult::Later(pending)) => {
                    host.pending.replace(Some(pending));
                    Ok(MultiValue::new())
                }
                Err(CallError::Argument(what)) => (false, format!("{called}: {what}")).into_lua_multi(lua),
                Err(CallError::Lua(error)) => Err(error),
            }
        })?;
        self.own.raw_set(name.replace(['.', ':'], "_"), function)
    }
}

/// Charges work to a call's instructions, after the amount is known.
struct Charge(mlua::Function);

impl Charge {
    fn new(library: &Library<'_>) -> mlua::Result<Self> {
        library.own.raw_get("pay").map(Charge)
    }

    /// Charges for bytes written or copied.
    fn bytes(&self, bytes: usize) -> mlua::Result<()> {
        self.0.call(bytes as f64)
    }
}

/// Returns immediate results.
fn now(lua: &Lua, values: impl IntoLuaMulti) -> Result<FunctionResult, CallError> {
    Ok(FunctionResult::Now(values.into_lua_multi(lua)?))
}

/// Returns results that need waiting.
fn later(work: impl Future<Output = WaitResult> + 'static) -> Result<FunctionResult, CallError> {
    Ok(FunctionResult::Later(Box::pin(work)))
}

fn time(library: &Library<'_>) -> mlua::Result<()> {
    library.add("gate.sleep", |_, _, args| {
        let seconds = args.number("seconds")?;
        if !(0.0..=MOST_SECONDS).contains(&seconds) {
            return Err(args.wrong("seconds", &format!("is {seconds}: expected 0 to {MOST_SECONDS}")));
        }
        let pause = Duration::from_secs_f64(seconds);
        later(async move {
            tokio::time::sleep(pause).await;
            WaitResult::Nothing
        })
    })?;
    library.add("gate.now", |lua, _, _| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        now_number(lua, now)
    })?;
    let start = std::time::Instant::now();
    library.add("gate.monotonic", move |lua, _, _| now_number(lua, start.elapsed()))
}

fn now_number(lua: &Lua, time: Duration) -> Result<FunctionResult, CallError> {
    now(lua, time.as_secs_f64())
}

impl WaitResult {
    /// Converts to the called function's results. If memory is full, the caller may try again.
    pub(crate) fn hand_over(&mut self, lua: &Lua, host: &ApiContext) -> mlua::Result<MultiValue> {
        // The prelude expects success or failure first.
        let results: MultiValue = match self {
            WaitResult::Nothing => return true.into_lua_multi(lua),
            WaitResult::Boolean(value) => (*value).into_lua_multi(lua)?,
            WaitResult::Bytes(None) => Value::Nil.into_lua_multi(lua)?,
            WaitResult::Bytes(Some(bytes)) => lua.create_string(&*bytes)?.into_lua_multi(lua)?,
            WaitResult::Rows(rows, shape) => shape.to_lua(rows, lua)?.into_lua_multi(lua)?,
            WaitResult::Answer(answer) => stores::answer(lua, answer)?,
            WaitResult::Response(received) => received.to_lua(lua)?.into_lua_multi(lua)?,
            WaitResult::Asked(asked) => kept::asked(lua, host, asked)?,
            WaitResult::Made(values) => {
                let values = values.iter().map(|value| value.to_lua(lua)).collect::<mlua::Result<Vec<_>>>()?;
                let mut values = MultiValue::from_vec(values);
                values.push_front("made".into_lua(lua)?);
                values
            }
            WaitResult::Failure(what, kind) => (Value::Nil, &**what, *kind).into_lua_multi(lua)?,
            WaitResult::Raised(what) => return (false, &**what).into_lua_multi(lua),
        };
        let mut results = results;
        results.push_front(Value::Boolean(true));
        Ok(results)
    }
}
