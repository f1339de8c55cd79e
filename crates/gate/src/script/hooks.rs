//! Calls of a script's hooks, and the conversion of their results.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::iter::Sum;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mlua::{AnyUserData, FromLua, IntoLua, Lua, Table, Value};
use oroshi_lookup::value;
use oroshi_server::LogThrottle;
use tokio::task::JoinSet;

use super::request::Request;
use super::response::Response;
use super::{Counters, ErrorKind, Hook, HookCounts, Reply, Script, ScriptError, ScriptSettings};
use crate::forward::{Inspect, InspectFuture, InspectedHead, Verdict};

/// The most concurrent calls of `on_log` on one core. Beyond it, `on_log` misses requests.
const MOST_LOGS: usize = 1000;

/// The longest name of a target or upstream, bytes: no host, socket or name is longer.
const TARGET_BYTES: usize = 4096;

/// A script loaded on one core for a plan.
#[derive(Debug)]
pub(crate) struct ScriptInstance {
    pub(crate) script: Rc<Script>,
    pub(crate) settings: ScriptSettings,
    pub(crate) counters: Arc<ScriptCounters>,
    pub(crate) logs: Rc<LogCalls>,
    /// The requests that the script knows.
    known: KnownRequests,
    refused: Cell<LogThrottle>,
    invalid: Cell<LogThrottle>,
}

/// One request's calls of a script's hooks. Clones refer to the same request.
#[derive(Clone, Debug)]
pub(crate) struct RequestHooks {
    instance: Rc<ScriptInstance>,
    request: Request,
    place: Rc<KnownRequest>,
}

/// A state's table of requests by number, so that all hooks get the same object. Rust can hold only about 8,000 values
/// of a state, fewer than there may be requests. So Rust holds this table, and a request only during a call.
#[derive(Debug)]
struct KnownRequests {
    table: Table,
    /// Free numbers, for reuse.
    free: RefCell<Vec<u32>>,
    used: Cell<u32>,
}

/// A request's number in the table. Dropping it removes the request.
#[derive(Debug)]
struct KnownRequest {
    instance: Rc<ScriptInstance>,
    number: u32,
}

/// The result of `on_route`.
#[derive(Debug)]
pub(crate) enum RouteDecision {
    /// No decision.
    Own,
    /// Send this reply to the client.
    Reply(Reply),
    /// Forward to the upstream with this name.
    Upstream(String),
    /// Forward to these unvalidated targets with their weights.
    Targets(Vec<(String, u32)>),
}

impl RequestHooks {
    /// Makes the request known to a script. The script's state gets it at the first call.
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

    /// Returns whether these hooks belong to this script.
    pub(crate) fn is_to(&self, instance: &Rc<ScriptInstance>) -> bool {
        Rc::ptr_eq(&self.instance, instance)
    }

    pub(crate) fn instance(&self) -> &ScriptInstance {
        &self.instance
    }

    /// Calls `on_request`. Returns the reply that replaces forwarding, if any.
    pub(crate) async fn on_request(&self) -> Result<Option<Reply>, ScriptError> {
        let OptionalReply(reply) = self.call(Hook::Request).await?;
        Ok(reply)
    }

    /// Calls `on_route`.
    pub(crate) async fn on_route(&self) -> Result<RouteDecision, ScriptError> {
        self.call(Hook::Route).await
    }

    /// Calls `on_key`. Returns the look-up's key.
    pub(crate) async fn on_key(&self) -> Result<Option<String>, ScriptError> {
        let OptionalKey(key) = self.call(Hook::Key).await?;
        Ok(key)
    }

    /// Returns an inspector if the script has `on_response`.
    pub(crate) fn inspector(&self) -> Option<Inspector> {
        self.has(Hook::Response).then(|| Inspector(self.clone()))
    }

    async fn call<R: FromLua>(&self, hook: Hook) -> Result<R, ScriptError> {
        self.instance.script.call(hook, self).await
    }

    /// Returns the request's object in the state.
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

/// Converts during the call, so that a lack of memory fails the call.
impl IntoLua for &RequestHooks {
    fn into_lua(self, lua: &Lua) -> mlua::Result<Value> {
        let object = match self.object(lua) {
            Err(mlua::Error::MemoryError(_)) => {
                // LuaJIT does not collect garbage when memory runs out.
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
        // If the state has no room for even this, the entry stays, and the number must not be reused.
        if known.table.raw_set(self.number, Value::Nil).is_ok() {
            known.free.borrow_mut().push(self.number);
        }
    }
}

impl ScriptInstance {
    /// Makes an instance; `logs` belongs to the core.
    ///
    /// # Errors
    /// The script has used all its memory.
    pub(crate) fn new(
        script: Rc<Script>,
        settings: ScriptSettings,
        counters: Arc<ScriptCounters>,
        logs: Rc<LogCalls>,
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

    /// Warns that the script names an invalid or forbidden target. Limited in rate, because clients may decide what it
    /// names.
    pub(crate) fn tell_invalid(&self, why: &str) {
        let mut invalid = self.invalid.get();
        if let Some(count) = invalid.next(Instant::now()) {
            tracing::warn!(count, "{why}");
        }
        self.invalid.set(invalid);
    }

    /// Logs a failed call. Calls refused for overload are logged once a second.
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

/// Calls `on_response` to inspect a response.
#[derive(Debug)]
pub(crate) struct Inspector(RequestHooks);

impl Inspect for Inspector {
    fn inspect(&self, head: InspectedHead) -> InspectFuture {
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

/// Converts nil or a reply.
struct OptionalReply(Option<Reply>);

impl FromLua for OptionalReply {
    fn from_lua(value: Value, _: &Lua) -> mlua::Result<Self> {
        if value.is_nil() {
            return Ok(OptionalReply(None));
        }
        reply(&value, "value of gate.answer or gate.redirect, or nil").map(|reply| OptionalReply(Some(reply)))
    }
}

/// Converts nil or a key.
struct OptionalKey(Option<String>);

impl FromLua for OptionalKey {
    fn from_lua(value: Value, _: &Lua) -> mlua::Result<Self> {
        match &value {
            Value::Nil => Ok(OptionalKey(None)),
            _ => text(&value, "key as a string, or nil").map(|key| OptionalKey(Some(key))),
        }
    }
}

impl FromLua for RouteDecision {
    fn from_lua(value: Value, _: &Lua) -> mlua::Result<Self> {
        const EXPECTED: &str = "target such as \"10.0.0.7:8080\", a list of targets, { upstream = \"name\" }, a value \
                                of gate.answer or gate.redirect, or nil";
        match &value {
            Value::Nil => Ok(RouteDecision::Own),
            Value::Table(table) => match table.raw_get::<Value>("upstream")? {
                Value::Nil => targets(&value, table).map(RouteDecision::Targets),
                name => place(&name, "name of an upstream").map(RouteDecision::Upstream),
            },
            Value::String(_) => place(&value, EXPECTED).map(|to| RouteDecision::Targets(vec![(to, 1)])),
            _ => reply(&value, EXPECTED).map(RouteDecision::Reply),
        }
    }
}

/// Converts a list of targets: each a string, or a table with `to` and an optional `weight`.
fn targets(all: &Value, list: &Table) -> mlua::Result<Vec<(String, u32)>> {
    const EXPECTED: &str = "list of up to 64 targets, each such as \"10.0.0.7:8080\" or { to = \"10.0.0.7:8080\", \
        weight = 3 }, or { upstream = \"name\" }";
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

/// Converts the name of a target or upstream, and limits its length.
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
    // Lua has only one number type; mlua represents whole numbers as integers.
    let from = if value.is_integer() { "number" } else { value.type_name() };
    mlua::Error::FromLuaConversionError { from, to: expected.to_owned(), message: None }
}

/// A script's counters on one core, over all reloads.
#[derive(Debug, Default)]
pub(crate) struct ScriptCounters {
    pub(crate) hooks: Arc<Counters>,
    /// Requests that `on_log` missed because too many of its calls were in progress.
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

/// Calls of `on_log` in progress on one core.
#[derive(Default)]
pub(crate) struct LogCalls {
    tasks: RefCell<JoinSet<()>>,
    /// Whether the core has ended and starts no more calls.
    is_over: Cell<bool>,
}

impl fmt::Debug for LogCalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogCalls").field("under_way", &self.tasks.borrow().len()).finish_non_exhaustive()
    }
}

impl LogCalls {
    /// Waits for the calls in progress, up to `patience`.
    pub(crate) async fn finish(&self, patience: Duration) {
        self.is_over.set(true);
        let mut tasks = self.tasks.take();
        let _ = tokio::time::timeout(patience, async { while tasks.join_next().await.is_some() {} }).await;
    }
}

/// The argument of `on_log`: a completed request.
#[derive(Debug)]
pub(crate) struct LogEntry {
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
    /// Calls `on_log` in a separate task.
    pub(crate) fn end(self, entry: LogEntry) {
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

impl IntoLua for LogEntry {
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
