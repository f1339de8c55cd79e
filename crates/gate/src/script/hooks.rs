//! What the gateway asks of a script, and what it takes for an answer.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::iter::Sum;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mlua::{AnyUserData, FromLua, IntoLua, Lua, Table, Value};
use oroshi_lookup::value;
use oroshi_server::Seldom;
use tokio::task::JoinSet;

use super::request::Request;
use super::response::Response;
use super::{Counters, ErrorKind, Hook, HookCounts, Reply, Script, ScriptError, ScriptSettings};
use crate::forward::{Inspect, InspectFuture, Inspected, Verdict};

/// How many calls of `on_log` may be under way on one core. Beyond that requests are not told.
const MOST_LOGS: usize = 1000;

/// The longest text that says where a request goes, bytes: no host, socket or name is longer.
const TARGET_BYTES: usize = 4096;

/// A script on one core, at work for a plan.
#[derive(Debug)]
pub(crate) struct ScriptInstance {
    pub(crate) script: Rc<Script>,
    pub(crate) settings: ScriptSettings,
    pub(crate) counters: Arc<ScriptCounters>,
    pub(crate) logs: Rc<Logs>,
    /// The requests that the script knows.
    known: KnownRequests,
    refused: Cell<Seldom>,
    invalid: Cell<Seldom>,
}

/// One request's hooks to a script. Clones are the same hooks.
#[derive(Clone, Debug)]
pub(crate) struct RequestHooks {
    instance: Rc<ScriptInstance>,
    request: Request,
    place: Rc<KnownRequest>,
}

/// The requests of a state, each by its number: the same one in all its hooks. Rust can hold some 8,000 values of a state, and far more requests
/// than that may be under way; so that it holds this table alone, and a request while a hook is called.
#[derive(Debug)]
struct KnownRequests {
    table: Table,
    /// Numbers that are in use no more, so that the table grows no longer than it must.
    free: RefCell<Vec<u32>>,
    used: Cell<u32>,
}

/// A number in a state's table of requests, for as long as the request is known there.
#[derive(Debug)]
struct KnownRequest {
    instance: Rc<ScriptInstance>,
    number: u32,
}

/// Where `on_route` has a request go.
#[derive(Debug)]
pub(crate) enum Direction {
    /// It does not say.
    Own,
    /// The client gets this.
    Reply(Reply),
    /// To a group of targets, by its name.
    Upstream(String),
    /// To these places, as text, with their weights; none of them was checked.
    Targets(Vec<(String, u32)>),
}

impl RequestHooks {
    /// Makes the request known to a script, which sees it when a hook is first called.
    pub(crate) fn begin(instance: &Rc<ScriptInstance>, request: &Request) -> Self {
        let known = &instance.known;
        let number = known.free.borrow_mut().pop().unwrap_or_else(|| {
            known.used.set(known.used.get() + 1);
            known.used.get()
        });
        let place = Rc::new(KnownRequest { instance: Rc::clone(instance), number });
        RequestHooks { instance: Rc::clone(instance), request: request.clone(), place }
    }

    pub(crate) fn has(&self, hook: Hook) -> bool {
        self.instance.script.has(hook)
    }

    /// Whether it is to this script.
    pub(crate) fn is_to(&self, instance: &Rc<ScriptInstance>) -> bool {
        Rc::ptr_eq(&self.instance, instance)
    }

    pub(crate) fn instance(&self) -> &ScriptInstance {
        &self.instance
    }

    /// What the client gets before anything else happens, if anything.
    pub(crate) async fn on_request(&self) -> Result<Option<Reply>, ScriptError> {
        let OptionalReply(reply) = self.call(Hook::Request).await?;
        Ok(reply)
    }

    /// Where the request goes.
    pub(crate) async fn on_route(&self) -> Result<Direction, ScriptError> {
        self.call(Hook::Route).await
    }

    /// What is looked up.
    pub(crate) async fn on_key(&self) -> Result<Option<String>, ScriptError> {
        let OptionalKey(key) = self.call(Hook::Key).await?;
        Ok(key)
    }

    /// Looks at the answer, where the script wants to.
    pub(crate) fn inspector(&self) -> Option<Inspector> {
        self.has(Hook::Response).then(|| Inspector(self.clone()))
    }

    async fn call<R: FromLua>(&self, hook: Hook) -> Result<R, ScriptError> {
        self.instance.script.call(hook, self).await
    }

    /// The request in the script's state.
    fn object(&self, lua: &Lua) -> mlua::Result<AnyUserData> {
        let (table, number) = (&self.instance.known.table, self.place.number);
        if let Some(object) = table.raw_get(number)? {
            return Ok(object);
        }
        let object = lua.create_userdata(self.request.view())?;
        table.raw_set(number, &object)?;
        Ok(object)
    }
}

/// Made while the call is under way, so that a lack of room is a failure of the call.
impl IntoLua for &RequestHooks {
    fn into_lua(self, lua: &Lua) -> mlua::Result<Value> {
        let object = match self.object(lua) {
            Err(mlua::Error::MemoryError(_)) => {
                // LuaJIT does not collect when it runs out.
                lua.gc_collect()?;
                self.object(lua)?
            }
            other => other?,
        };
        Ok(Value::UserData(object))
    }
}

impl Drop for KnownRequest {
    fn drop(&mut self) {
        let known = &self.instance.known;
        // A number that is still taken, as the state has no room for anything, would be another request's.
        if known.table.raw_set(self.number, Value::Nil).is_ok() {
            known.free.borrow_mut().push(self.number);
        }
    }
}

impl ScriptInstance {
    /// `logs`: of this core.
    ///
    /// # Errors
    /// The script has taken all its memory.
    pub(crate) fn new(
        script: Rc<Script>,
        settings: ScriptSettings,
        counters: Arc<ScriptCounters>,
        logs: Rc<Logs>,
    ) -> Result<Self, ScriptError> {
        let table = script.lua().create_table().map_err(|error| ScriptError {
            place: settings.file.display().to_string(),
            what: format!("there is no room for requests: {error}"),
            kind: ErrorKind::Memory,
        })?;
        let known = KnownRequests { table, free: RefCell::default(), used: Cell::new(0) };
        Ok(ScriptInstance {
            script,
            settings,
            counters,
            logs,
            known,
            refused: Cell::default(),
            invalid: Cell::default(),
        })
    }

    /// Tells operators, now and then, that the script names what is no target, or none that is allowed: requests may decide what it names.
    pub(crate) fn tell_invalid(&self, why: &str) {
        let mut invalid = self.invalid.get();
        if let Some(count) = invalid.next(Instant::now()) {
            tracing::warn!(count, "{why}");
        }
        self.invalid.set(invalid);
    }

    /// Tells operators of a call that failed. Those that were refused as too many are under way are told once a second.
    pub(crate) fn tell(&self, hook: Hook, error: &ScriptError) {
        if error.kind == ErrorKind::Overload {
            let mut refused = self.refused.get();
            let count = refused.next(Instant::now());
            self.refused.set(refused);
            if let Some(count) = count {
                let (script, hook, kind) = (&self.settings.name, hook.name(), error.kind.name());
                tracing::error!(script, hook, kind, count, "{error}");
            }
            return;
        }
        tracing::error!(script = self.settings.name, hook = hook.name(), kind = error.kind.name(), "{error}");
    }
}

/// Has `on_response` look at an answer.
#[derive(Debug)]
pub(crate) struct Inspector(RequestHooks);

impl Inspect for Inspector {
    fn inspect(&self, head: Inspected) -> InspectFuture {
        let hooks = self.0.clone();
        Box::pin(async move {
            let response = Response::new(head);
            let called = hooks.instance.script.call(Hook::Response, (&hooks, response.view())).await;
            match called {
                Ok(OptionalReply(None)) => {
                    Verdict::Pass { status: response.status(), changes: response.fields().edits() }
                }
                Ok(OptionalReply(Some(Reply { status, headers, body }))) => {
                    Verdict::Replace { status, fields: headers, body }
                }
                Err(error) => {
                    hooks.instance.tell(Hook::Response, &error);
                    Verdict::Fail(error.to_string())
                }
            }
        })
    }
}

/// Nothing, or an answer.
struct OptionalReply(Option<Reply>);

impl FromLua for OptionalReply {
    fn from_lua(value: Value, _: &Lua) -> mlua::Result<Self> {
        if value.is_nil() {
            return Ok(OptionalReply(None));
        }
        reply(&value, "value of gate.answer or gate.redirect, or nil").map(|reply| OptionalReply(Some(reply)))
    }
}

/// Nothing, or a key.
struct OptionalKey(Option<String>);

impl FromLua for OptionalKey {
    fn from_lua(value: Value, _: &Lua) -> mlua::Result<Self> {
        match &value {
            Value::Nil => Ok(OptionalKey(None)),
            _ => text(&value, "key as a string, or nil").map(|key| OptionalKey(Some(key))),
        }
    }
}

impl FromLua for Direction {
    fn from_lua(value: Value, _: &Lua) -> mlua::Result<Self> {
        const EXPECTED: &str = "target such as \"10.0.0.7:8080\", a list of targets, { upstream = \"name\" }, a value of gate.answer or \
                                gate.redirect, or nil";
        match &value {
            Value::Nil => Ok(Direction::Own),
            Value::Table(table) => match table.raw_get::<Value>("upstream")? {
                Value::Nil => targets(&value, table).map(Direction::Targets),
                name => place(&name, "name of an upstream").map(Direction::Upstream),
            },
            Value::String(_) => place(&value, EXPECTED).map(|to| Direction::Targets(vec![(to, 1)])),
            _ => reply(&value, EXPECTED).map(Direction::Reply),
        }
    }
}

/// A list of places: each a text, or a table with `to` and perhaps `weight`.
fn targets(all: &Value, list: &Table) -> mlua::Result<Vec<(String, u32)>> {
    const EXPECTED: &str = "list of up to 64 targets, each such as \"10.0.0.7:8080\" or { to = \"10.0.0.7:8080\", weight = 3 }, or { upstream = \"name\" }";
    let one = |one: Value| match &one {
        Value::Table(table) => {
            let weight = match table.raw_get::<Value>("weight")? {
                Value::Nil => Some(1),
                weight => weight.as_u32().filter(|weight| (1..=value::WEIGHT).contains(weight)),
            };
            let weight = weight.ok_or_else(|| unexpected(&one, "target with a weight from 1 to 1000"))?;
            Ok((place(&table.raw_get("to")?, EXPECTED)?, weight))
        }
        one => Ok((place(one, EXPECTED)?, 1)),
    };
    let targets = list.sequence_values::<Value>().take(value::TARGETS + 1);
    let targets: Vec<_> = targets.map(|target| one(target?)).collect::<mlua::Result<_>>()?;
    if (1..=value::TARGETS).contains(&targets.len()) { Ok(targets) } else { Err(unexpected(all, EXPECTED)) }
}

fn reply(value: &Value, expected: &str) -> mlua::Result<Reply> {
    match Reply::of(value)? {
        // RFC 9110, sections 15.3.5 and 15.4.5.
        Some(Reply { status: 204 | 304, body, .. }) if !body.is_empty() => {
            Err(unexpected(value, "gate.answer without a body, as 204 and 304 have none"))
        }
        Some(reply) => Ok(reply),
        None => Err(unexpected(value, expected)),
    }
}

fn text(value: &Value, expected: &str) -> mlua::Result<String> {
    let text = value.as_string().and_then(|text| text.to_str().ok().map(|text| text.to_owned()));
    text.ok_or_else(|| unexpected(value, expected))
}

/// A text that says where a request goes.
fn place(value: &Value, expected: &str) -> mlua::Result<String> {
    let length = value.as_string().map_or(0, |text| text.as_bytes().len());
    if length > TARGET_BYTES {
        let to = format!("{expected}, each of at most {TARGET_BYTES} bytes");
        return Err(mlua::Error::FromLuaConversionError {
            from: "string",
            to,
            message: Some(format!("it has {length}")),
        });
    }
    text(value, expected)
}

fn unexpected(value: &Value, expected: &str) -> mlua::Error {
    // Lua has numbers alone; integers are mlua's way to hand over those that are whole.
    let from = if value.is_integer() { "number" } else { value.type_name() };
    mlua::Error::FromLuaConversionError { from, to: expected.to_owned(), message: None }
}

/// What is counted of a script on one core, over all reloads.
#[derive(Debug, Default)]
pub(crate) struct ScriptCounters {
    pub(crate) hooks: Arc<Counters>,
    /// Requests that `on_log` was not told of, as too many calls of it were under way.
    pub(crate) logs_dropped: AtomicU64,
}

impl Sum for HookCounts {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(HookCounts::default(), |sum, one| HookCounts {
            calls: sum.calls + one.calls,
            errors: sum.errors + one.errors,
            breaches: sum.breaches + one.breaches,
            busy: sum.busy + one.busy,
            wall: sum.wall + one.wall,
            instructions: sum.instructions + one.instructions,
        })
    }
}

/// Calls of `on_log` that are under way on one core.
#[derive(Default)]
pub(crate) struct Logs {
    tasks: RefCell<JoinSet<()>>,
    /// The core has ended: nothing is begun any more.
    is_over: Cell<bool>,
}

impl fmt::Debug for Logs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Logs").field("under_way", &self.tasks.borrow().len()).finish_non_exhaustive()
    }
}

impl Logs {
    /// Waits for what is under way, but no longer than this.
    pub(crate) async fn finish(&self, patience: Duration) {
        self.is_over.set(true);
        let mut tasks = self.tasks.take();
        let _ = tokio::time::timeout(patience, async { while tasks.join_next().await.is_some() {} }).await;
    }
}

/// What `on_log` is told of a request that is over.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) status: u16,
    pub(crate) bytes: u64,
    pub(crate) took: Duration,
    pub(crate) upstream: Option<String>,
    pub(crate) upstream_took: Option<Duration>,
    pub(crate) retries: u32,
    pub(crate) failure: &'static str,
    pub(crate) detail: String,
}

impl RequestHooks {
    /// Has `on_log` told that the request is over, in a task of its own.
    pub(crate) fn end(self, entry: Entry) {
        let ScriptInstance { logs, counters, .. } = &*self.instance;
        if logs.is_over.get() {
            return;
        }
        let mut tasks = logs.tasks.borrow_mut();
        while tasks.try_join_next().is_some() {}
        if tasks.len() >= MOST_LOGS {
            counters.logs_dropped.store(counters.logs_dropped.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            return;
        }
        let hooks = self.clone();
        tasks.spawn_local(async move {
            hooks.request.fields().seal();
            let called: Result<(), ScriptError> = hooks.instance.script.call(Hook::Log, (&hooks, entry)).await;
            if let Err(error) = called {
                hooks.instance.tell(Hook::Log, &error);
            }
        });
    }
}

impl IntoLua for Entry {
    fn into_lua(self, lua: &Lua) -> mlua::Result<Value> {
        let table = lua.create_table()?;
        table.raw_set("status", self.status)?;
        table.raw_set("bytes", self.bytes as f64)?;
        table.raw_set("seconds", self.took.as_secs_f64())?;
        table.raw_set("upstream", self.upstream)?;
        table.raw_set("upstream_seconds", self.upstream_took.map(|took| took.as_secs_f64()))?;
        table.raw_set("retries", self.retries)?;
        let text = |text: String| Some(text).filter(|text| !text.is_empty());
        table.raw_set("failure", text(self.failure.to_owned()))?;
        table.raw_set("detail", text(self.detail))?;
        Ok(Value::Table(table))
    }
}

#[cfg(test)]
mod tests;
