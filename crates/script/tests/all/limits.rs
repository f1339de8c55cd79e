//! Calls that do not return: each kind is ended, and reported with its line.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::common::{bounded, function, told, with};
use oroshi_script::{Engine, Kind};

const SHORT: Duration = Duration::from_millis(100);
const LONG: Duration = Duration::from_secs(3600);

/// Returns the error for a script of these lines, of which the first is 1.
fn interrupted(source: &str) -> String {
    let source = source.to_owned();
    with(source, SHORT, |loaded| {
        let error = loaded.expect_err("it does not end");
        assert_eq!(error.kind, Kind::Interrupted, "{error}");
        told(&error)
    })
}

#[test]
fn every_shape_of_loop_is_ended_and_names_its_line() {
    let shapes = [
        "\nlocal i = 0\nwhile true do i = i + 1 end",
        "\n\nrepeat until false",
        "\n\n::again:: goto again",
        "\n\nfor i = 1, math.huge do end",
        "\n\nlocal function f() return f() end f()",
        "\n\nlocal function f() local ok = pcall(f) return f() end f()",
        "\n\nwhile true do pcall(function() while true do end end) end",
        "\n\nwhile true do xpcall(function() while true do end end, debug.traceback) end",
        "\n\nwhile true do coroutine.wrap(function() while true do coroutine.yield() end end)() end",
        "\n\nlocal co = coroutine.create(function() while true do end end) while true do coroutine.resume(co) end",
        "\n\nlocal t = setmetatable({}, { __index = function(t, k) while true do end end }) local x = t.y",
        "\n\ntable.sort({ 2, 1, 3 }, function() while true do end end)",
        "\n\nstring.gsub('aaa', 'a', function() while true do end end)",
        "\n\nlocal s = '' while true do s = tostring(#s) end",
        "\n\njit.off() while true do end",
        "\n\nwhile true do debug.sethook() end",
        "\n\nload('while true do end', '=(load)')() ",
    ];
    for shape in shapes {
        let told = interrupted(shape);
        let expected = if shape.contains("(load)") { "(load):1" } else { "a.lua:3" };
        assert_eq!(told, format!("{expected}: the top level did not return within 100ms"), "{shape}");
    }
}

#[test]
fn an_interruption_cannot_be_caught_and_the_state_can_be_called_again() {
    let source = "function catch() return pcall(function() while true do end end) end function fine() return 7 end";
    with(source, SHORT, |loaded| {
        let engine = loaded.unwrap();
        let (catch, fine) = (function(&engine, "catch"), function(&engine, "fine"));
        for _ in 0..2 {
            let error = engine.call::<bool>("catch", &catch, ()).unwrap_err();
            assert_eq!(told(&error), "a.lua:1: catch() did not return within 100ms");
            assert_eq!(engine.call::<u32>("fine", &fine, ()).unwrap(), 7);
        }
    });
}

#[test]
fn the_end_interrupts_what_is_under_way_and_can_be_lifted() {
    with("function forever()\nwhile true do end end function fine() return 7 end", LONG, |loaded| {
        let engine = loaded.unwrap();
        let forever = function(&engine, "forever");
        // CLOCK_MONOTONIC began earlier.
        engine.until(Some(1));
        let error = engine.call::<()>("forever", &forever, ()).unwrap_err();
        assert_eq!(told(&error), "a.lua:2: forever() had not returned 500ms after the end");
        engine.until(None);
        assert_eq!(engine.call::<u32>("fine", &function(&engine, "fine"), ()).unwrap(), 7);
    });
}

#[test]
fn an_end_that_has_come_does_not_hurt_short_calls() {
    with("function fine() return 7 end", LONG, |loaded| {
        let engine = loaded.unwrap();
        engine.until(Some(1));
        let fine = function(&engine, "fine");
        for _ in 0..10_000 {
            assert_eq!(engine.call::<u32>("fine", &fine, ()).unwrap(), 7);
        }
    });
}

#[test]
fn another_thread_ends_all_calls_for_good() {
    with("function forever() told() while true do end end", LONG, |loaded| {
        let engine = loaded.unwrap();
        let (began, begins) = mpsc::channel();
        let told_of = engine.lua().create_function(move |_, ()| Ok(began.send(()).is_ok())).unwrap();
        engine.lua().globals().set("told", told_of).unwrap();
        let handle = engine.handle();
        let other = thread::spawn(move || {
            begins.recv().unwrap();
            handle.interrupt();
        });
        let forever = function(&engine, "forever");
        for _ in 0..2 {
            let error = engine.call::<()>("forever", &forever, ()).unwrap_err();
            assert_eq!((told(&error), error.kind), ("a.lua:1: forever() was interrupted".into(), Kind::Interrupted));
        }
        other.join().unwrap();
    });
}

/// Waits until the handle reports a stuck call.
fn wait_until_stuck(handle: &oroshi_script::Handle) -> oroshi_script::Error {
    loop {
        match handle.stuck() {
            Some(error) => return error,
            None => thread::sleep(Duration::from_millis(10)),
        }
    }
}

#[test]
fn what_is_stuck_outside_of_lua_is_told() {
    with("function sleep() wait() end", SHORT, |loaded| {
        let engine = loaded.unwrap();
        let (release, released) = mpsc::channel::<()>();
        // Like a system call: no Lua runs in it.
        let wait = engine.lua().create_function(move |_, ()| Ok(released.recv().is_ok())).unwrap();
        engine.lua().globals().set("wait", wait).unwrap();
        let handle = engine.handle();
        assert_eq!(handle.stuck(), None);
        let other = thread::spawn(move || {
            let error = wait_until_stuck(&handle);
            release.send(()).unwrap();
            (error, handle)
        });
        // It returns after all, too late.
        let late = engine.call::<()>("sleep", &function(&engine, "sleep"), ()).unwrap_err();
        assert_eq!(told(&late), "a.lua:1: sleep() did not return within 100ms");
        let (error, handle) = other.join().unwrap();
        assert_eq!(error.kind, Kind::Stuck);
        assert!(told(&error).starts_with("a.lua: sleep() did not return within 100ms, and cannot be"), "{error}");
        assert_eq!(handle.stuck(), None);
    });
}

#[test]
fn what_nothing_interrupts_is_stuck() {
    // Their threads end only with the process.
    let finaliser = "p = newproxy(true) getmetatable(p).__gc = function() while true do end end";
    let handler = "local function loop() while true do end end xpcall(loop, loop)";
    for (source, what) in [(finaliser, "__gc()"), (handler, "the top level")] {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), source).unwrap();
        let (tell, told_of) = mpsc::channel();
        thread::spawn(move || {
            let engine = Engine::new(file.path(), SHORT).unwrap();
            tell.send(engine.handle()).unwrap();
            let _ = engine.load();
            drop(engine);
        });
        let error = bounded(move || wait_until_stuck(&told_of.recv().unwrap()));
        assert!(error.what.starts_with(&format!("{what} did not return within 100ms, and cannot")), "{error}");
    }
}

#[test]
fn a_loop_in_our_own_lines_is_told_at_the_script_s() {
    with("function go()\n  ours(function() end)\nend", SHORT, |loaded| {
        let engine = loaded.unwrap();
        engine
            .prelude("api", "function ours(f) while true do f() end end function alone() while true do end end")
            .unwrap();
        let error = engine.call::<()>("go", &function(&engine, "go"), ()).unwrap_err();
        assert!(error.place.contains("a.lua:"), "{error}");
        let error = engine.call::<()>("alone", &function(&engine, "alone"), ()).unwrap_err();
        assert_eq!(told(&error), "a.lua: alone() did not return within 100ms");
    });
}

#[test]
fn a_call_within_a_call_is_part_of_it() {
    let source = "function outer() while true do inner() end end function small() end";
    with(source, SHORT, |loaded| {
        let engine = std::rc::Rc::new(loaded.unwrap());
        let weak = std::rc::Rc::downgrade(&engine);
        let small = function(&engine, "small");
        let inner = move |_: &mlua::Lua, ()| Ok(weak.upgrade().unwrap().call::<()>("small", &small, ()).is_ok());
        let inner = engine.lua().create_function(inner).unwrap();
        engine.lua().globals().set("inner", inner).unwrap();
        let error = engine.call::<()>("outer", &function(&engine, "outer"), ()).unwrap_err();
        assert_eq!(told(&error), "a.lua:1: outer() did not return within 100ms");
    });
}
