//! Confined states: accessible functions, limits of calls, and waits.

mod watchdog;

use std::path::Path;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use crate::common::{bounded, function, told};
use mlua::{MultiValue, Value};
use oroshi_script::{ConfinedOptions, Engine, Error, Kind, Progress, Report};

const LONG: Duration = Duration::from_secs(3600);

/// Available to the tests' scripts: `pause(...)` waits, and returns the values with which the test resumes it.
const API: &str = "local own = ...
function pause() return own.wait() end";

type Reports = Arc<Mutex<Vec<Report>>>;

fn confines(reports: &Reports) -> ConfinedOptions {
    let reports = Arc::clone(reports);
    ConfinedOptions {
        memory: 32 << 20,
        jit: false,
        instructions: 100_000,
        limit: LONG,
        tell: Box::new(move |report| reports.lock().unwrap().push(report)),
        read: Box::new(|path| std::fs::read(path).map(Into::into)),
    }
}

/// Makes a state in which a script has run, with its reports.
fn with_confines<R: Send + 'static>(
    source: &str,
    change: impl FnOnce(&mut ConfinedOptions) + Send + 'static,
    work: impl FnOnce(Result<Engine, Error>, &Path, &Reports) -> R + Send + 'static,
) -> R {
    let folder = tempfile::tempdir().unwrap();
    let source = source.to_owned();
    bounded(move || {
        let (file, reports) = (folder.path().join("a.lua"), Reports::default());
        let mut confines = confines(&reports);
        change(&mut confines);
        let engine = Engine::confined(&file, confines).unwrap();
        engine.prelude("api", API).unwrap();
        work(engine.load_source(source.as_bytes()).map(|()| engine), folder.path(), &reports)
    })
}

fn with<R: Send + 'static>(source: &str, work: impl FnOnce(&Engine) -> R + Send + 'static) -> R {
    with_confines(source, |_| {}, |engine, _, _| work(&engine.unwrap()))
}

/// Calls a function, and resumes each wait with its number.
fn call(engine: &Engine, name: &'static str, instructions: u64) -> Result<(MultiValue, u64), Error> {
    let mut call = engine.coroutine(name, &function(engine, name), instructions)?;
    let mut progress = engine.resume(&mut call, ())?;
    for wait in 1.. {
        match progress {
            Progress::Returned(values) => return Ok((values, call.instructions())),
            Progress::Waits => progress = engine.resume(&mut call, wait)?,
        }
    }
    unreachable!()
}

fn text(engine: &Engine, name: &'static str) -> String {
    let (values, _) = call(engine, name, 1_000_000).unwrap();
    let shown = values.iter().map(|value| value.to_string().unwrap());
    shown.collect::<Vec<_>>().join(" ")
}

fn failed(source: &str, instructions: u64) -> Error {
    let shown = source.to_owned();
    with(source, move |engine| {
        let error = call(engine, "f", instructions).expect_err(&shown);
        // After any failure, the state serves other calls.
        engine.lua().load("function fine() return pause() + 6 end").exec().unwrap();
        assert_eq!(text(engine, "fine"), "7");
        error
    })
}

#[test]
fn every_shape_of_loop_is_ended_by_its_instructions_and_names_its_line() {
    let shapes = [
        "while true do end",
        "repeat until false",
        "::again:: goto again",
        "for i = 1, math.huge do end",
        "local function g() return g() end g()",
        "while true do pcall(function() while true do end end) end",
        "while true do xpcall(function() while true do end end, debug.traceback) end",
        "local function loop() while true do end end xpcall(loop, loop)",
        "while true do xpcall(error, function() while true do end end) end",
        "while true do coroutine.wrap(function() while true do coroutine.yield() end end)() end",
        "local co = coroutine.create(function() while true do end end) while true do coroutine.resume(co) end",
        "local co = coroutine.wrap(function() pcall(coroutine.wrap(function() while true do end end)) while true do \
         end end) co()",
        "local t = setmetatable({}, { __index = function() while true do end end }) local x = t.y",
        "table.sort({ 2, 1, 3 }, function() while true do end end)",
        "string.gsub('aaa', 'a', function() while true do end end)",
        "local s = '' while true do s = tostring(#s) end",
        "while true do pause() end",
        "while true do pcall(pause) end",
        "while true do coroutine.wrap(pause)() end",
        "local function g() pause() return g() end coroutine.wrap(g)()",
    ];
    for shape in shapes {
        let error = failed(&format!("\nfunction f()\n{shape}\nend"), 50_000);
        assert_eq!(error.kind, Kind::Instructions, "{shape}: {error}");
        assert_eq!(told(&error), "a.lua:3: f() took more than 50000 instructions", "{shape}");
    }
    // At the end of the stack nothing is counted.
    let error = failed("\nfunction f()\nlocal function g() local ok = pcall(g) return g() end g()\nend", 100_000);
    assert_eq!(told(&error), "a.lua:3: f() calls itself to the end of its stack, again and again");
    assert_eq!(error.kind, Kind::Instructions);
}

#[test]
fn the_top_level_has_a_budget_and_cannot_wait() {
    let error = with_confines("\nwhile true do end", |_| {}, |engine, _, _| engine.unwrap_err());
    assert_eq!(told(&error), "a.lua:2: the top level took more than 100000 instructions");
    for source in ["\npause()", "\nlocal co = coroutine.wrap(function() pause() end)\nco()"] {
        let error = with_confines(source, |_| {}, |engine, _, _| engine.unwrap_err());
        assert!(error.what.contains("the top level of a script cannot wait: do it in init()"), "{error}");
        assert!(!error.place.ends_with("a.lua"), "{error}");
    }
}

#[test]
fn instructions_are_counted_exactly_and_for_each_call_apart() {
    let source =
        "function f(n) local x = 0 for i = 1, 37 do x = x + pause() for j = 1, i * 10 do x = x + j end end return x end
function g() for i = 1, 500 do pause() end end";
    with(source, |engine| {
        let (_, alone) = call(engine, "f", 1_000_000).unwrap();
        assert!((10_000..60_000).contains(&alone), "{alone}");
        // Alternating with two others, it uses the same number as alone.
        let start = |name| {
            let mut call = engine.coroutine(name, &function(engine, name), 1_000_000).unwrap();
            assert!(matches!(engine.resume(&mut call, ()), Ok(Progress::Waits)));
            call
        };
        let (mut first, mut second, mut other) = (start("f"), start("f"), start("g"));
        let mut taken = Vec::new();
        for wait in 1..=500 {
            assert!(engine.resume(&mut other, wait).is_ok());
            if taken.is_empty() {
                let (one, two) = (engine.resume(&mut first, wait), engine.resume(&mut second, wait));
                if let (Ok(Progress::Returned(one)), Ok(Progress::Returned(two))) = (one, two) {
                    assert_eq!(one.into_vec(), two.into_vec());
                    taken = vec![first.instructions(), second.instructions()];
                }
            }
        }
        assert_eq!(taken, [alone, alone]);
        // Exact to the instruction.
        assert!(call(engine, "f", alone + 1).is_ok());
        let error = call(engine, "f", alone - 10).unwrap_err();
        assert_eq!(error.kind, Kind::Instructions);
    });
}

#[test]
fn memory_that_grows_is_ended_at_its_line_and_the_state_goes_on() {
    let shapes = [
        "local t = {} for i = 1, 1e9 do t[i] = ('x'):rep(1000) .. i end",
        "local t = {} for i = 1, 1e9 do t[i] = { i } end",
        "local s = ('x'):rep(1e9)",
        "local s = 'x' while true do s = s .. s end",
        "local t = {} for i = 1, 1e9 do t[i] = coroutine.create(function() end) end",
        // Without upvalues: if memory ends between a closure and its upvalue, LuaJIT counts 8 bytes too few when it
        // frees the closure, which its debug build reports as a leak.
        "local t = {} for i = 1, 1e9 do t[i] = function() end end",
        "local s = string.format('%99s', 'x'):rep(1e7)",
        "local t = table.concat({ ('x'):rep(2e7), ('y'):rep(2e7) })",
        "local function g(...) return g(1, ...) end g()",
    ];
    for shape in shapes {
        let error = failed(&format!("\nfunction f()\n{shape}\nend"), 100_000_000);
        if !shape.contains("...") {
            assert_eq!(error.kind, Kind::Memory, "{shape}: {error}");
        }
        // LuaJIT does not report the line outside the functions of its own library.
        assert!(error.place.ends_with(":3") || error.place.ends_with(":2"), "{shape}: {error}");
    }
    // If the script catches it, the instructions end the call.
    let error = failed(
        "\nfunction f() local t = {} while true do\npcall(function() t[#t + 1] = ('x'):rep(1e6) end) end end",
        50_000,
    );
    assert_eq!(error.kind, Kind::Instructions, "{error}");
}

#[test]
fn recursion_without_an_end_is_an_error() {
    let shapes = [
        "local function g() return 1 + g() end g()",
        "local function g() string.gsub('a', 'a', g) end g()",
        "local t local function g() string.format('%s', t) return '' end t = setmetatable({}, { __tostring = g }) g()",
        "local function g() table.sort({ 2, 1 }, g) end g()",
        "local function g() coroutine.wrap(g)() end g()",
        "local function g() pause() coroutine.wrap(g)() end g()",
        "local function g() pcall(g) error('x') end g()",
    ];
    for shape in shapes {
        let error = failed(&format!("\nfunction f()\n{shape}\nend"), 10_000_000);
        assert!(matches!(error.kind, Kind::Runtime | Kind::Memory | Kind::Instructions), "{shape}: {error}");
    }
}

/// C functions that call the script use the thread's own stack; coroutines multiply the depth.
const DEEP: &str = "local function g() return coroutine.wrap(function()
  local depth, t = 0
  local function h() depth = depth + 1 if depth < 1500 then string.format('%s', t) else g() end return '' end
  t = setmetatable({}, { __tostring = h })
  h() end)() end g()";

#[test]
fn the_thread_s_own_stack_does_not_overflow() {
    let error = failed(&format!("\nfunction f()\n{DEEP}\nend"), 10_000_000);
    assert_eq!(error.kind, Kind::Runtime);
    assert!(error.what.starts_with("C stack overflow"), "{error}");
    assert!(error.place.contains("a.lua:"), "{error}");
    // A script that catches the error continues, and may meet it again.
    let caught = format!(
        "function f() local said for i = 1, 3 do local ok, why = pcall(function() {DEEP} end) said = why end return \
         said, pause() end"
    );
    let said = with(&caught, |engine| text(engine, "f"));
    assert!(said.contains("C stack overflow") && said.ends_with(" 1"), "{said}");
    // Also in callbacks of LuaJIT's own libraries: a missing field, when other calls have nearly reached the limit.
    for depth in (0..3000).step_by(100) {
        let shape = format!(
            "local n, g = 0, 0
            local function down() local function co(k) local d, t = 0 t = setmetatable({{}}, {{ __index = function()
              d = d + 1 if d < 6000 then return os.time(t) end if k > 0 then coroutine.wrap(co)(k - 1) end return 1 \
             end }})
              os.time(t) end coroutine.wrap(co)(5) end
            local function f() return coroutine.wrap(function() local d, t = 0 local function h() g = g + 1 d = d + 1
              if g >= {depth} then down() elseif d < 1500 then string.format('%s', t) else f() end return '' end
              t = setmetatable({{}}, {{ __tostring = h }}) h() end)() end
            return (pcall(f)), pause()"
        );
        let ended = with(&format!("function f() {shape} end"), |engine| call(engine, "f", 100_000_000).map(drop));
        assert!(ended.is_ok(), "{depth}: {ended:?}");
    }
    // Also at the top level.
    let error = with_confines(DEEP, |confines| confines.instructions = 10_000_000, |engine, _, _| engine.unwrap_err());
    assert!(error.what.starts_with("C stack overflow"), "{error}");
}

#[test]
fn no_call_changes_the_environment_of_those_that_come_later() {
    let source = "function f(level) return pcall(setfenv, level, {}) end
        function g() local env = { pcall = pcall } setfenv(1, env) x = 1 return env.x, pause ~= nil end
        function h() local function inner() return y end setfenv(inner, { y = 2 }) return inner(), pause() end";
    with(source, |engine| {
        for level in ["0", "0.5", "'0'", "-1"] {
            engine.load_source(format!("function e() return f({level}) end").as_bytes()).unwrap();
            assert!(text(engine, "e").starts_with("false setfenv: expected a function"), "{level}");
        }
        assert_eq!(text(engine, "g"), "1 false");
        assert_eq!(text(engine, "h"), "2 1");
    });
}

#[test]
fn a_panic_ends_its_call_alone() {
    with("\nfunction f()\nreturn pcall(odd)\nend\nfunction g() return pause() end", |engine| {
        // As mlua's own functions do without room for another reference.
        let odd = engine.lua().create_function(|lua, ()| {
            assert!(oroshi_script::panics_are_contained());
            let tables: Vec<_> = (0..100_000).map(|_| lua.create_table().unwrap()).collect();
            Ok(tables.len())
        });
        engine.lua().globals().set("odd", odd.unwrap()).unwrap();
        for _ in 0..2 {
            let error = call(engine, "f", 100_000).unwrap_err();
            assert!(error.what.starts_with("a defect of this program, not of the script: "), "{error}");
            assert!(!oroshi_script::panics_are_contained());
            assert_eq!(text(engine, "g"), "1");
        }
    });
}

#[test]
fn what_is_caught_of_ours_is_a_text_with_the_script_s_line() {
    let source = "\nfunction f()\nlocal ok, why = pcall(function()\nlocal x = refuse() end) return ok, why end
function g() local co = coroutine.create(function()\nlocal x = refuse() end) return coroutine.resume(co) end
function h() return xpcall(function()\nlocal x = refuse() end, function(why) return why .. '!' end) end
function i() return select('#', pcall(function() end)), pcall(error, nil) end";
    with(source, |engine| {
        let refuse = engine.lua().create_function(|_, ()| Err::<(), _>(mlua::Error::runtime("not this")));
        engine.lua().globals().set("refuse", refuse.unwrap()).unwrap();
        for (name, line, end) in [("f", 4, ""), ("g", 6, ""), ("h", 8, "!")] {
            let told = text(engine, name);
            assert!(told.starts_with("false ") && told.ends_with(&format!("a.lua:{line}: not this{end}")), "{told}");
        }
        assert_eq!(text(engine, "i"), "1 false nil");
    });
}

#[test]
fn waiting_goes_through_whatever_calls_it() {
    let shapes = [
        ("return pause(), pause()", "1 2"),
        ("return pcall(pause)", "true 1"),
        ("return tostring(setmetatable({}, { __tostring = function() return 'x' .. pause() end }))", "x1"),
        ("return pcall(pcall, pause)", "true true 1"),
        ("return string.gsub('ab', '.', pause)", "12 2"),
        ("return (string.gsub('ab', '.', function(c) return c .. coroutine.wrap(pause)() end))", "a1b2"),
        ("local t = { 1, 2, 3 } table.sort(t, function(a, b) pause() return a > b end) return unpack(t)", "3 2 1"),
        ("return xpcall(function() return pause() + pause() end, error)", "true 3"),
        ("local ok, err = pcall(function() pause() error('x', 0) end) return ok, err, pause()", "false x 2"),
        ("local co = coroutine.wrap(function() return pause() end) return co(), pause()", "1 2"),
        ("local co = coroutine.create(function(a) local b = coroutine.yield(a, pause()) return b, pause() end)
          local r = { coroutine.resume(co, 'a') } r[4] = pause() r[5], r[6], r[7] = coroutine.resume(co, 'b') return \
          unpack(r)", "true a 1 2 true b 3"),
        ("local function each() return coroutine.wrap(function() for i = 1, 3 do coroutine.yield(i * 10 + pause()) end \
          end) end
          local sum = 0 for n in each() do sum = sum + n end return sum, pause()", "66 4"),
        ("local function next() local n = pause() if n < 4 then return n end end local sum = 0 for n in next do sum = \
          sum + n end return sum", "6"),
        ("local t = setmetatable({}, { __index = function(_, k) return k .. pause() end, __add = function() return \
          pause() end,
          __call = function() return pause() end, __lt = function() return pause() == 4 end }) return t.x, t + 1, t(), \
          t < t", "x1 2 3 true"),
        ("local deep = pause for i = 1, 20 do local inner = deep deep = function() return coroutine.wrap(function() \
          return pcall(inner) end)() end end
          return select('#', deep()), (select(21, deep()))", "21 2"),
        ("local co = coroutine.wrap(function() error({ 'raised' }) end) local ok, err = pcall(co) return ok, \
          err[1]", "false raised"),
        ("local co = coroutine.create(pause) coroutine.resume(co) return coroutine.status(co), \
          coroutine.resume(co)", "dead false cannot resume dead coroutine"),
    ];
    for (shape, expected) in shapes {
        assert_eq!(with(&format!("function f() {shape} end"), |engine| text(engine, "f")), expected, "{shape}");
    }
}

#[test]
fn waiting_where_that_cannot_be_is_an_error_that_says_so() {
    let shapes = [
        "assert(load(pause))",
        "os.time(setmetatable({}, { __index = function() pause() end }))",
        "assert(load(function() pause() end))",
        "assert(load(function() coroutine.wrap(pause)() end))",
    ];
    for shape in shapes {
        let error = failed(&format!("\nfunction f()\n{shape}\nend"), 100_000);
        assert_eq!(error.kind, Kind::Runtime);
        assert!(error.place.ends_with("a.lua:3"), "{shape}: {error}");
        assert!(error.what.contains("cannot wait here: "), "{shape}: {error}");
    }
    let caught = "function f() local ok, why = pcall(os.time, setmetatable({}, { __index = function() pause() end })) \
                  return ok, pause(), why end";
    assert!(with(caught, |engine| text(engine, "f")).starts_with("false 1 "));
}

#[test]
fn a_yield_to_nobody_is_an_error_and_who_waits_is_left_alone() {
    let error = failed("\nfunction f()\ncoroutine.yield(1)\nend", 100_000);
    assert_eq!(told(&error), "a.lua:3: f() has yielded: coroutine.yield belongs in a coroutine of the script's own");

    let source =
        "function f() me = coroutine.running() inner = coroutine.create(function() return pause() end) return \
                  coroutine.resume(inner) end
function g() return coroutine.status(inner), coroutine.resume(inner) end
function h() return coroutine.status(me), coroutine.resume(me) end";
    with(source, |engine| {
        let mut waits = engine.coroutine("f", &function(engine, "f"), 100_000).unwrap();
        assert!(matches!(engine.resume(&mut waits, ()), Ok(Progress::Waits)));
        for other in ["g", "h"] {
            assert_eq!(text(engine, other), "normal false cannot resume a coroutine that waits", "{other}");
        }
        let Ok(Progress::Returned(values)) = engine.resume(&mut waits, "there") else { panic!() };
        assert_eq!(values.iter().map(|value| value.to_string().unwrap()).collect::<Vec<_>>(), ["true", "there"]);
        let error = engine.resume(&mut waits, ()).unwrap_err();
        assert_eq!(error.what, "f() has ended already");
    });
}

#[test]
fn a_call_that_is_dropped_has_ended_and_its_memory_comes_back() {
    let source = "log = {} function f() local big = ('x'):rep(1e6) .. tostring(log) pause() log[1] = big end";
    with(source, |engine| {
        // Many times more than there is room for.
        for _ in 0..200 {
            let mut call = engine.coroutine("f", &function(engine, "f"), 100_000).unwrap();
            assert!(matches!(engine.resume(&mut call, ()), Ok(Progress::Waits)));
            drop(call);
        }
        assert_eq!(engine.lua().load("return #log").eval::<usize>().unwrap(), 0);
        engine.lua().gc_collect().unwrap();
        assert!(engine.lua().used_memory() < 4 << 20, "{}", engine.lua().used_memory());
    });
}

#[test]
fn there_is_no_way_out() {
    let nothing = [
        "io",
        "ffi",
        "newproxy",
        "dofile",
        "loadfile",
        "module",
        "gcinfo",
        "package.loadlib",
        "package.cpath",
        "package.path",
        "package.preload",
        "package.loaders",
        "package.searchers",
        "package.seeall",
        "os.execute",
        "os.exit",
        "os.remove",
        "os.rename",
        "os.tmpname",
        "os.setlocale",
        "debug.getregistry",
        "debug.sethook",
        "debug.getinfo",
        "debug.getupvalue",
        "debug.setmetatable",
        "debug.upvaluejoin",
        "string.dump",
        "jit",
    ];
    for name in nothing {
        let shown = with(&format!("function f() return tostring({name}) end"), |engine| text(engine, "f"));
        assert_eq!(shown, "nil", "{name}");
    }
    let refused = [
        ("return pcall(require, 'ffi')", "there is no module"),
        ("return pcall(require, 'io')", "there is no module"),
        ("return pcall(require, 'jit.util')", "there is no module"),
        ("return pcall(require, 'string.buffer')", "there is no module"),
        ("return pcall(require, '../x')", "names no module"),
        ("return pcall(require, '..x')", "names no module"),
        ("return pcall(require, '/etc/passwd')", "names no module"),
        ("return pcall(require, 'a/b')", "names no module"),
        ("return pcall(require, 'a\\0b')", "names no module"),
        ("return pcall(require, '')", "names no module"),
        ("return pcall(require)", "expected the name of a module"),
        ("return load('\\27LJ\\2')", "attempt to load chunk with wrong mode"),
        ("return loadstring('\\27LJ\\2')", "attempt to load chunk with wrong mode"),
        ("return pcall(load, '\\27LJ\\2', 'x', 'b')", "expected text"),
        ("return load(function() return '\\27LJ\\2' end)", "attempt to load chunk with wrong mode"),
        ("return pcall(collectgarbage, 'stop')", "expected \"count\""),
        // It may contain passwords.
        ("return pcall(os.getenv, 'PATH')", "os.getenv is not there"),
    ];
    for (shape, part) in refused {
        let shown = with(&format!("function f() {shape} end"), |engine| text(engine, "f"));
        assert!(shown.contains(part) && !shown.starts_with("true"), "{shape}: {shown}");
    }
    let fine = [
        ("return load('return 7')()", "7"),
        ("return load('return x', 'c', 't', { x = 8 })()", "8"),
        ("return setfenv(loadstring('return x'), { x = 9 })()", "9"),
        ("return type(os.time()), type(os.clock()), type(os.date())", "number number string"),
        ("return collectgarbage('count') > 10", "true"),
        ("return require('bit') == bit, bit.band(6, 3), require('table.new')(1, 1)[1]", "true 2 nil"),
        ("return type(debug.traceback('x'))", "string"),
    ];
    for (shape, expected) in fine {
        assert_eq!(with(&format!("function f() {shape} end"), |engine| text(engine, "f")), expected, "{shape}");
    }
}

#[test]
fn a_script_that_breaks_its_libraries_breaks_nothing_of_ours() {
    let source = "getmetatable('').__index = nil
for _, library in ipairs { string, table, coroutine, math, os, debug } do for name in pairs(library) do library[name] \
                  = nil end end
for _, name in ipairs { 'error', 'pcall', 'select', 'type', 'tostring', 'setmetatable', 'getmetatable', 'next', \
                  'pairs', 'unpack' } do _G[name] = nil end
function f() return pause() end
function g() return require('none') end
function h() while true do end end";
    with(source, |engine| {
        assert_eq!(text(engine, "f"), "1");
        let error = call(engine, "g", 1000).unwrap_err();
        assert!(error.place.ends_with(":5") && error.what.contains("there is no module 'none'"), "{error}");
        assert_eq!(call(engine, "h", 1000).unwrap_err().kind, Kind::Instructions);
    });
}

#[test]
fn modules_are_found_beside_the_script_and_their_errors_have_their_lines() {
    let source = "function f(name) return require(name) end";
    with_confines(
        source,
        |_| {},
        |engine, folder, _| {
            let engine = engine.unwrap();
            let deep = "a-folder-with-a-long-name.and-one-more-of-them.so-that-it-is-shortened";
            let path = |name: &str| folder.join(name.replace('.', "/")).with_extension("lua");
            std::fs::create_dir_all(path(deep).with_extension("")).unwrap();
            let deeper = format!("{deep}.bad");
            let files = [
                ("fine", "count = (count or 0) + 1 return { name = ..., count = count }".to_owned()),
                ("nothing", "local x = 1".to_owned()),
                ("waits", "return pause() * 7".to_owned()),
                ("loops", "local x = require('loops') return x".to_owned()),
                ("syntax", "\n\nx = = 1".to_owned()),
                ("runtime", "\nlocal t = nil\nreturn t.x".to_owned()),
                (&deeper, "\n\n\nerror('bad')".to_owned()),
                ("bytecode", "\u{1b}LJ\u{2}".to_owned()),
                ("large", format!("return '{}'", "x".repeat(1 << 20))),
            ];
            for (name, source) in &files {
                std::fs::write(path(name), source).unwrap();
            }
            std::fs::write(path(deep).with_extension("").join("init.lua"), "return 'init'").unwrap();
            let require = |name: &str| -> Result<Value, Error> {
                let mut call = engine.coroutine("f", &function(&engine, "f"), 100_000)?;
                let mut progress = engine.resume(&mut call, name)?;
                loop {
                    match progress {
                        Progress::Returned(values) => return Ok(values.into_iter().next().unwrap_or(Value::Nil)),
                        Progress::Waits => progress = engine.resume(&mut call, 6)?,
                    }
                }
            };
            for _ in 0..2 {
                let Ok(Value::Table(fine)) = require("fine") else { panic!() };
                assert_eq!(
                    (fine.get::<String>("name").unwrap(), fine.get::<u32>("count").unwrap()),
                    ("fine".into(), 1)
                );
            }
            assert_eq!(require("nothing").unwrap(), Value::Boolean(true));
            assert_eq!(require("waits").unwrap(), Value::Number(42.0));
            assert_eq!(require(deep).unwrap().to_string().unwrap(), "init");
            let error = |name: &str| {
                let error = require(name).unwrap_err();
                (error.place.clone(), error.what)
            };
            let at = |name: &str, line| format!("{}:{line}", path(name).display());
            assert_eq!(error("loops"), (at("loops", 1), "require: module 'loops' requires itself".into()));
            assert_eq!(error("syntax"), (at("syntax", 3), "unexpected symbol near '='".into()));
            assert_eq!(error("runtime"), (at("runtime", 3), "attempt to index local 't' (a nil value)".into()));
            assert_eq!(error(&deeper), (at(&deeper, 4), "bad".into()));
            assert_eq!(error("bytecode").1, "attempt to load a binary chunk (mode is 't')");
            assert!(error("large").1.contains("expected at most 1048576"));
            let (place, what) = error("none");
            assert!(
                place.ends_with("a.lua:1") && what.contains("none.lua or ") && what.contains("none/init.lua"),
                "{place}: {what}"
            );
        },
    );
}
