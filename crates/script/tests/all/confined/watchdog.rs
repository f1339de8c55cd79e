//! Calls that hold their thread for too long: reports, and the end by time.

use super::*;

#[test]
fn whoever_holds_the_thread_for_long_is_told_with_a_line() {
    let source = "function f()\nlocal x = 0\nfor i = 1, 3e6 do x = x + i end\nreturn x\nend";
    with_confines(
        source,
        |_| {},
        |engine, _, reports| {
            let engine = engine.unwrap();
            engine.introduce("f", &function(&engine, "f"));
            // On a busy machine the top level may have just been reported, which suppresses reports for a second.
            // `bounded` limits the loop.
            let (place, held) = loop {
                call(&engine, "f", u64::MAX).unwrap();
                let found = reports.lock().unwrap().iter().find_map(|report| match report {
                    Report::Slow { what: "f", place, held } => Some((place.clone(), *held)),
                    _ => None,
                });
                if let Some(found) = found {
                    break found;
                }
            };
            assert!(place.ends_with("a.lua:3") && held > Duration::from_millis(5), "{place} {held:?}");
        },
    );
}

#[test]
fn what_never_comes_back_is_told_to_be_stuck() {
    let source = "\nfunction f() block() end";
    let change = |confines: &mut ConfinedOptions| confines.limit = Duration::from_millis(50);
    with_confines(source, change, |engine, _, reports| {
        let engine = engine.unwrap();
        let (release, released) = mpsc::channel::<()>();
        let block = engine.lua().create_function(move |_, ()| Ok(released.recv().is_ok())).unwrap();
        engine.lua().globals().set("block", block).unwrap();
        engine.introduce("f", &function(&engine, "f"));
        let seen = Arc::clone(reports);
        let other = thread::spawn(move || {
            loop {
                let stuck = seen.lock().unwrap().iter().find_map(|report| match report {
                    Report::Stuck(error) => Some(error.clone()),
                    Report::Slow { .. } => None,
                });
                if let Some(error) = stuck {
                    release.send(()).unwrap();
                    return error;
                }
                thread::sleep(Duration::from_millis(5));
            }
        });
        let late = call(&engine, "f", 100_000).unwrap_err();
        assert_eq!(late.kind, Kind::Interrupted, "{late}");
        let error = other.join().unwrap();
        assert!(error.place.ends_with("a.lua:2") && error.kind == Kind::Stuck, "{error}");
        assert!(error.what.starts_with("f() did not return within 50ms, and cannot be interrupted"), "{error}");
    });
}

#[test]
fn compiled_code_is_ended_by_its_time() {
    let source = "function f()\nwhile true do end end function g() return pause(), jit.version_num > 20000, jit.on end";
    let change = |confines: &mut ConfinedOptions| (confines.jit, confines.limit) = (true, Duration::from_millis(50));
    with_confines(source, change, |engine, _, _| {
        let engine = engine.unwrap();
        let error = call(&engine, "f", 1000).unwrap_err();
        assert_eq!((told(&error), error.kind), ("a.lua:2: f() did not return within 50ms".into(), Kind::Interrupted));
        assert_eq!(text(&engine, "g"), "1 true nil");
    });
}

#[test]
fn what_runs_between_two_calls_is_ended_too() {
    let source = "function f() return setmetatable({}, { __index = function()
      while true do pcall(function() while true do end end) end end, __tostring = function() while true do end end }) \
                  end";
    with(source, |engine| {
        for _ in 0..2 {
            let (values, _) = call(engine, "f", 10_000).unwrap();
            let Some(Value::Table(table)) = values.front() else { panic!() };
            let error = table.get::<Value>("x").unwrap_err().to_string();
            assert!(error.contains("interrupted"), "{error}");
            assert!(values[0].to_string().unwrap_err().to_string().contains("interrupted"));
        }
    });
}
