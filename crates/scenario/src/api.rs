//! The functions that scripts call. `prelude.lua` is their Lua part.

mod data;
mod library;
mod page;
mod user;

pub(crate) use data::Lease;

use std::rc::Rc;
use std::time::Duration;

use mlua::{AnyUserData, FromLuaMulti, Function, IntoLuaMulti, Lua, LuaString, Table, Value};
use oroshi_net::{Endpoint, monotonic_ns};
use oroshi_script::library::Json;
use oroshi_script::{Engine, Error, Kind};

use crate::random::Think;
use crate::request::{Last, Spec};
use crate::settings::{Settings, kind, number_of, shown, text, time};
use crate::thread::{Stage, Thread, Wish};

/// The Lua part.
const PRELUDE: &str = include_str!("prelude.lua");

/// The most scenarios of a script.
const MOST_SCENARIOS: usize = 1_000;
/// The most functions of `every`.
const MOST_WATCHERS: usize = 100;
/// The shortest time between two calls of such a function, seconds.
const LEAST_PERIOD: f64 = 0.01;
/// The most blocks within each other that a journey times.
const MOST_BLOCKS: usize = 100;
/// The most points that one award can have.
const MOST_POINTS: f64 = 1e12;

/// What a script declares at its top level.
#[derive(Clone, Debug, Default)]
pub(crate) struct Declared {
    pub(crate) settings: Settings,
    pub(crate) initialize: Option<Phase>,
    pub(crate) last: Option<Phase>,
    pub(crate) has_score: bool,
    has_options: bool,
}

/// A phase before or after the load.
#[derive(Clone, Debug)]
pub(crate) struct Phase {
    /// How long it may take.
    pub(crate) timeout: Duration,
}

impl Phase {
    const TIMEOUT: Duration = Duration::from_secs(60);
}

/// Adds the API to a state. What the script declares goes to `declared`.
pub(crate) fn install(
    engine: &Engine,
    thread: &Rc<Thread>,
    declared: &Rc<std::cell::RefCell<Declared>>,
) -> Result<(), Error> {
    let added = engine.own().ok_or_else(|| mlua::Error::runtime("the state is not confined"));
    let added = added.and_then(|own| {
        engine.lua().set_app_data(Json::new(engine.lua(), own)?);
        let library = Library { lua: engine.lua(), own, thread };
        declarations(&library, declared)?;
        results(&library)?;
        requests(&library)?;
        user::add(&library)?;
        page::add(&library)?;
        data::add(&library)?;
        library::add(&library)
    });
    added.map_err(|error| Error {
        place: thread.base.to_string(),
        what: format!("the API cannot be put into the state: {error}"),
        kind: Kind::Memory,
    })?;
    engine.prelude("scenario", PRELUDE)
}

/// Where functions are added.
struct Library<'a> {
    lua: &'a Lua,
    own: &'a Table,
    thread: &'a Rc<Thread>,
}

impl Library<'_> {
    /// Adds a function to those that the Lua part sees.
    fn add<A: FromLuaMulti, R: IntoLuaMulti>(
        &self,
        name: &str,
        work: impl Fn(&Lua, &Rc<Thread>, A) -> mlua::Result<R> + 'static,
    ) -> mlua::Result<()> {
        self.own.raw_set(name, self.function(work)?)
    }

    fn function<A: FromLuaMulti, R: IntoLuaMulti>(
        &self,
        work: impl Fn(&Lua, &Rc<Thread>, A) -> mlua::Result<R> + 'static,
    ) -> mlua::Result<Function> {
        let thread = Rc::clone(self.thread);
        self.lua.create_function(move |lua, args: A| work(lua, &thread, args))
    }
}

/// An error at the script's line.
fn wrong(what: impl std::fmt::Display) -> mlua::Error {
    mlua::Error::runtime(what.to_string())
}

/// What belongs at the top level.
fn at_top_level(thread: &Thread, called: &str) -> mlua::Result<()> {
    if thread.stage.get() == Stage::Loading {
        return Ok(());
    }
    Err(wrong(format!("{called} was called while users are under way: expected it at the script's top level")))
}

fn function_of(called: &str, value: &Value, example: &str) -> mlua::Result<()> {
    match value {
        Value::Function(_) => Ok(()),
        other => Err(wrong(format!("{called}: expected a function, as in {example}; this is {}", kind(other)))),
    }
}

fn declarations(library: &Library<'_>, declared: &Rc<std::cell::RefCell<Declared>>) -> mlua::Result<()> {
    let to = Rc::clone(declared);
    library.add("options", move |_, thread, given: Value| {
        at_top_level(thread, "options")?;
        let Value::Table(given) = given else {
            return Err(wrong(format!(
                "options: this is {}: expected a table, as in options {{ users = 10 }}",
                kind(&given)
            )));
        };
        let mut declared = to.borrow_mut();
        if std::mem::replace(&mut declared.has_options, true) {
            return Err(wrong("options was called twice: expected one table"));
        }
        declared.settings = Settings::read(&given)?;
        Ok(())
    })?;
    library.add("scenario", |_, thread, (name, settings, run): (Value, Value, Value)| {
        at_top_level(thread, "scenario")?;
        let name = text("scenario: the name", &name).map_err(wrong)?;
        function_of("scenario", &run, "scenario(\"browse\", function(user) ... end)")?;
        let weight = match &settings {
            Value::Nil => 1.0,
            Value::Table(table) => {
                let mut weight = 1.0;
                for pair in table.pairs::<LuaString, Value>() {
                    let (key, value) = pair?;
                    match &*key.to_string_lossy() {
                        "weight" => weight = number_of("weight", &value, 0.0, 1e9).map_err(wrong)?,
                        other => {
                            let other = shown(other);
                            return Err(wrong(format!("scenario: `{other}` is unknown: expected `weight`")));
                        }
                    }
                }
                weight
            }
            other => {
                return Err(wrong(format!(
                    "scenario: expected a table such as {{ weight = 3 }}; this is {}",
                    kind(other)
                )));
            }
        };
        let mut scenarios = thread.scenarios.borrow_mut();
        if scenarios.len() >= MOST_SCENARIOS {
            return Err(wrong(format!("there are more than {MOST_SCENARIOS} scenarios")));
        }
        if scenarios.iter().any(|(known, _)| *known == name) {
            return Err(wrong(format!("there are two scenarios called \"{}\"", shown(&name))));
        }
        scenarios.push((name, weight));
        Ok(())
    })?;
    let to = Rc::clone(declared);
    library.add("declare_phase", move |_, thread, (name, settings, run): (String, Value, Value)| {
        at_top_level(thread, &name)?;
        function_of(&name, &run, &format!("{name}(function(user) ... end)"))?;
        let mut phase = Phase { timeout: Phase::TIMEOUT };
        match &settings {
            Value::Nil => {}
            Value::Table(table) => {
                for pair in table.pairs::<LuaString, Value>() {
                    let (key, value) = pair?;
                    match &*key.to_string_lossy() {
                        "timeout" => phase.timeout = time("timeout", &value).map_err(wrong)?,
                        other => {
                            let other = shown(other);
                            return Err(wrong(format!("{name}: `{other}` is unknown: expected `timeout`")));
                        }
                    }
                }
            }
            other => {
                return Err(wrong(format!(
                    "{name}: expected a table such as {{ timeout = \"60s\" }}; this is {}",
                    kind(other)
                )));
            }
        }
        let mut declared = to.borrow_mut();
        let is_second = match name.as_str() {
            "initialize" => declared.initialize.replace(phase).is_some(),
            "final" => declared.last.replace(phase).is_some(),
            _ => std::mem::replace(&mut declared.has_score, true),
        };
        if is_second { Err(wrong(format!("{name} was given twice: expected one function"))) } else { Ok(()) }
    })?;
    library.add("every", |_, thread, (seconds, run): (Value, Value)| {
        at_top_level(thread, "every")?;
        let seconds = time("every: the time", &seconds).map_err(wrong)?.as_secs_f64().max(LEAST_PERIOD);
        function_of("every", &run, "every(\"1s\", function(now) ... end)")?;
        let mut watchers = thread.watchers.borrow_mut();
        if watchers.len() >= MOST_WATCHERS {
            return Err(wrong(format!("`every` was called more than {MOST_WATCHERS} times")));
        }
        watchers.push(seconds);
        Ok(())
    })
}

/// Checks, points, failures.
fn results(library: &Library<'_>) -> mlua::Result<()> {
    library.add("check", |lua, thread, (name, condition, more): (Value, Value, Value)| {
        let user = thread.user("check")?;
        if !more.is_nil() {
            return Err(wrong("check: there is a third argument: expected a name and a condition"));
        }
        let name = text("check: the name", &name).map_err(wrong)?;
        let holds = !matches!(condition, Value::Nil | Value::Boolean(false));
        thread.check(&user, &name, holds, || Last::sample(thread, &user, place(lua)));
        Ok(holds)
    })?;
    let points = |called: &'static str, sign: f64| {
        move |_: &Lua, thread: &Rc<Thread>, (points, label): (Value, Value)| {
            let user = thread.user(called)?;
            let points = number_of("points", &points, -MOST_POINTS, MOST_POINTS);
            let points = points.map_err(|why| wrong(format!("{called}: {why}")))?;
            let label = match &label {
                Value::Nil => called.to_owned(),
                label => text("the label", label).map_err(|why| wrong(format!("{called}: {why}")))?,
            };
            thread.award(&user, sign * points, &label);
            Ok(())
        }
    };
    library.add("award", points("award", 1.0))?;
    library.add("penalty", points("penalty", -1.0))?;
    library.add("fail", |_, thread, reason: Value| -> mlua::Result<()> {
        let user = thread.user("fail")?;
        let reason = text("fail: the reason", &reason).map_err(wrong)?;
        user.failed.replace(Some(reason.clone()));
        Err(wrong(reason))
    })?;
    library.add("abort", |_, thread, reason: Value| -> mlua::Result<()> {
        let reason = text("abort: the reason", &reason).map_err(wrong)?;
        thread.run.abort(&reason);
        if let Some(meter) = &thread.meter {
            meter.halt();
        }
        if let Some(user) = &*thread.current.borrow() {
            user.failed.replace(Some(reason.clone()));
        }
        Err(wrong(reason))
    })?;
    library.add("void", |_, thread, reason: Value| {
        let reason = text("void: the reason", &reason).map_err(wrong)?;
        thread.run.void(&reason);
        Ok(())
    })?;
    library.add("users", |_, thread, number: Value| {
        if !matches!(number, Value::Nil) {
            if thread.run.settings.stages.is_some() {
                return Err(wrong("users: users come by rate or stages here: expected no number"));
            }
            let most = thread.run.settings.most_users() as f64;
            let number = number_of("users", &number, 1.0, most.max(crate::ramp::MAX_USERS as f64)).map_err(wrong)?;
            thread.run.ask_users(number as usize);
        }
        Ok(thread.run.users())
    })?;
    library.add("begin_block", |_, thread, name: Value| {
        let user = thread.user("step")?;
        let name = text("step: the name", &name).map_err(wrong)?;
        let mut timers = user.timers.borrow_mut();
        if timers.len() >= MOST_BLOCKS {
            return Err(wrong(format!("step: {MOST_BLOCKS} blocks within each other: expected fewer")));
        }
        timers.push((monotonic_ns(), name));
        Ok(timers.len())
    })?;
    library.add("end_block", |_, thread, (depth, is_whole): (usize, bool)| {
        let user = thread.user("step")?;
        if !is_whole {
            thread.end_blocks(&user, depth.saturating_sub(1));
            return Ok(());
        }
        let ended = user.timers.borrow_mut().pop();
        if let Some((began, name)) = ended.filter(|(began, _)| thread.measures(*began)) {
            thread.tally.borrow_mut().timers.get(&name).record(monotonic_ns().saturating_sub(began));
        }
        Ok(())
    })?;
    library.add("tell", |_, thread, line: LuaString| {
        (thread.tell)(&line.to_string_lossy());
        Ok(())
    })
}

fn requests(library: &Library<'_>) -> mlua::Result<()> {
    // `name` alone saves reading a table.
    library.add("request", |lua, thread, (method, url, options, name): (LuaString, Value, Value, Value)| {
        thread.user("request")?;
        let options = table_of("request", &options)?;
        let Value::String(url) = &url else {
            let example = "as in user:get(\"/\")";
            return Err(wrong(format!("request: the URL is {}: expected a text, {example}", kind(&url))));
        };
        let url = endpoint(thread, url)?;
        let method = method.to_str().map_err(|_| wrong("request: the method is not UTF-8"))?;
        let spec = Spec::read(lua, &method, url, options, &name).map_err(|why| wrong(format!("request: {why}")))?;
        thread.wish.replace(Some(Wish::Request(Box::new(spec))));
        Ok(())
    })?;
    library.add("assets", |_, thread, (page, options): (AnyUserData, Value)| {
        thread.user("assets")?;
        let options = crate::assets::Options::read(table_of("assets", &options)?);
        let options = options.map_err(|why| wrong(format!("assets: {why}")))?;
        let resources = page::resources(thread, &page, &options)?;
        thread.wish.replace(Some(Wish::Assets(Box::new(options.of(resources)))));
        Ok(())
    })?;
    library.add("think", |_, thread, pause: Value| {
        thread.user("think")?;
        let pause = think(&pause).and_then(Think::check).map_err(|why| wrong(format!("think: {why}")))?;
        thread.wish.replace(Some(Wish::Think(pause)));
        Ok(())
    })
}

/// Takes a table of options, or nothing.
fn table_of<'v>(called: &str, options: &'v Value) -> mlua::Result<Option<&'v Table>> {
    match options {
        Value::Nil => Ok(None),
        Value::Table(table) => Ok(Some(table)),
        other => Err(wrong(format!("{called}: the options are {}: expected a table", kind(other)))),
    }
}

/// A path or a URL of a script.
fn endpoint(thread: &Thread, url: &LuaString) -> mlua::Result<Endpoint> {
    let url = url.as_bytes();
    let text = || shown(&String::from_utf8_lossy(&url));
    if url.first() == Some(&b'/')
        && url.get(1) != Some(&b'/')
        && url.iter().all(|byte| byte.is_ascii_graphic() && *byte != b'#')
    {
        // The usual case, in which nothing is to be resolved.
        let target = String::from_utf8(url.to_vec())
            .map_err(|_| wrong(format!("request: the URL \"{}\" is not ASCII", text())))?;
        return Ok(Endpoint { target, ..thread.base.clone() });
    }
    thread.base.join(&url).map_err(|why| wrong(format!("request: the URL \"{}\": {why}", text())))
}

/// Takes a pause: seconds, a time, or a distribution.
fn think(value: &Value) -> Result<Think, String> {
    const EXPECTED: &str = "expected seconds, \"500ms\", or one of { uniform = {1, 3} }, { exponential = 2 }, \
                            { normal = {2, 0.5} }, { lognormal = {2, 0.5} }";
    let Value::Table(table) = value else {
        return time("the pause", value).map(|pause| Think::Constant(pause.as_secs_f64()));
    };
    let mut pairs = table.pairs::<LuaString, Value>();
    let (Some(Ok((kind, value))), None) = (pairs.next(), pairs.next()) else { return Err(EXPECTED.to_owned()) };
    let kind = kind.to_string_lossy();
    let seconds = |value: &Value| time(&kind, value).map(|time| time.as_secs_f64());
    let two = || -> Result<(Value, Value), String> {
        let Value::Table(pair) = &value else { return Err(format!("{kind}: {EXPECTED}")) };
        let part = |index: i64| pair.raw_get::<Value>(index).unwrap_or(Value::Nil);
        Ok((part(1), part(2)))
    };
    match kind.as_str() {
        "constant" => Ok(Think::Constant(seconds(&value)?)),
        "exponential" => Ok(Think::Exponential { mean: seconds(&value)? }),
        "uniform" => two().and_then(|(least, most)| Ok(Think::Uniform(seconds(&least)?, seconds(&most)?))),
        "normal" => two().and_then(|(mean, sd)| Ok(Think::Normal { mean: seconds(&mean)?, sd: seconds(&sd)? })),
        "lognormal" => two().and_then(|(median, sigma)| {
            Ok(Think::Lognormal { median: seconds(&median)?, sigma: number_of("sigma", &sigma, 0.0, 100.0)? })
        }),
        other => Err(format!("`{}` is unknown: {EXPECTED}", shown(other))),
    }
}

/// Returns the script's line that called a function here.
pub(crate) fn place(lua: &Lua) -> String {
    (0..20)
        .find_map(|level| {
            lua.inspect_stack(level, |frame| {
                let (source, line) = (frame.source(), frame.current_line()?);
                let name = source.source?;
                Some(format!("{}:{line}", name.strip_prefix('@')?))
            })
            .flatten()
        })
        .unwrap_or_default()
}
