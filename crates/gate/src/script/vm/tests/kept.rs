//! Tests of `gate.cache`.

use std::sync::Barrier;
use std::thread;

use super::*;

#[test]
fn values_are_kept_as_they_are() {
    let bench = Bench::new();
    let told = body(
        &bench,
        "local c = gate.cache
         c.set('t', { 1, 'two', deep = { true } }) local t = c.get('t') t[1] = 'changed'
         c.set('n', nil) c.set('short', 1, 0.01) local soon = c.get('short') gate.sleep(0.03)
         return t[2], t.deep[1], c.get('t')[1], select('#', c.get('n')), (select(2, c.get('n'))), (select(2, \
         c.get('none'))), soon, (c.get('short'))",
    );
    assert_eq!(told, "two true 1 2 true false 1 nil");
    let told = body(
        &bench,
        "local c = gate.cache return c.incr('i'), c.incr('i', 2.5), c.incr('i', -1, 60), c.delete('i'), \
         c.delete('i'), c.incr('i')",
    );
    assert_eq!(told, "1 3.5 2.5 true false 1");
    assert_eq!(body(&bench, "return gate.cache.incr('t')"), "nil what stands there is not a number not-a-number");
    let large = body(&bench, "return gate.cache.set('large', ('x'):rep(2e6))");
    assert_eq!(large, "nil the value takes more than 524288 bytes, half of one of the cache's parts too-large");
    // 2^90 copies of one table.
    let many = "local t = { 1 } for i = 1, 90 do t = { t, t } end";
    assert_eq!(body(&bench, &format!("{many} return gate.cache.set('large', t)")), large);
    // The value is not cached, but its maker has it, and so has every later maker.
    let made = format!("{many} return #gate.cache.fetch('large', 1, function() return t end), gate.cache.get('large')");
    assert_eq!(body(&bench, &made), "2 nil false");
    let wrong = [
        (
            "gate.cache.set('f', print)",
            "error a.lua:1: gate.cache.set: value: a function cannot be copied from one Lua state to another: only \
             nil, booleans, numbers, strings and tables of them can",
        ),
        ("gate.cache.get()", "error a.lua:1: gate.cache.get: key is nil: expected a string"),
        ("gate.cache.get(('x'):rep(2000))", "error a.lua:1: gate.cache.get: key has 2000 bytes: expected at most 1024"),
        (
            "gate.cache.set('k', 1, -1)",
            "error a.lua:1: gate.cache.set: ttl is -1: expected more than 0 seconds, or nil",
        ),
        (
            "gate.cache.set('k', 1, 0/0)",
            "error a.lua:1: gate.cache.set: ttl is NaN: expected more than 0 seconds, or nil",
        ),
        (
            "gate.cache.fetch('k', 1)",
            "error a.lua:1: gate.cache.fetch: expected a key, seconds or nil, and a function that makes the value",
        ),
    ];
    for (shape, expected) in wrong {
        assert_eq!(body(&bench, shape), expected);
    }
}

#[test]
fn a_value_is_made_once_for_all_cores() {
    let bench = Arc::new(Bench::new());
    let source = "function on_request() return gate.cache.fetch('key', 60, function(key)
      local n = gate.cache.incr('calls') gate.sleep(0.02) return { key .. n } end)[1] end";
    let together = Arc::new(Barrier::new(4));
    let core = |_| {
        let (settings, cache) = (bench.settings(source), Arc::clone(&bench.cache));
        let together = Arc::clone(&together);
        thread::spawn(move || {
            let bench = Bench { cache, ..Bench::new() };
            run(async {
                let script = Script::load(&settings, bench.tools()).unwrap();
                together.wait();
                let call = |_| {
                    let script = Rc::clone(&script);
                    tokio::task::spawn_local(async move { shown(script.call(Hook::Request, ()).await) })
                };
                let calls: Vec<_> = (0..100).map(call).collect();
                for call in calls {
                    assert_eq!(call.await.unwrap(), "key1");
                }
            });
        })
    };
    let cores: Vec<_> = (0..4).map(core).collect();
    cores.into_iter().for_each(|core| core.join().unwrap());
    assert_eq!(body(&bench, "return gate.cache.get('calls')"), "1 true");
}

#[test]
fn what_fails_is_told_to_all_and_not_kept() {
    let bench = Bench::new();
    let source = "function on_request() return gate.cache.fetch('key', 60, function()
      gate.cache.incr('calls') gate.sleep(0.02) error('no way') end) end
function on_route() return gate.cache.fetch('key', 60, function() gate.cache.incr('calls') gate.sleep(0.02) return \
nil, 'it is down', 'timeout' end) end
function on_key() return gate.cache.fetch('key', 60, function() gate.cache.incr('calls') return nil end) end
function init() local ok, why = pcall(function() local v = gate.cache.fetch('key', 60, function() \
gate.cache.incr('calls') gate.sleep(0.02) error('no way') end) end)
  return ok, (why:gsub('[^ ]*/', '')) end";
    run(async {
        let script = bench.load(source).unwrap();
        let together = async |hook| {
            let call = |_| {
                let script = Rc::clone(&script);
                tokio::task::spawn_local(async move { shown(script.call(hook, ()).await) })
            };
            let calls: Vec<_> = (0..20).map(call).collect();
            let mut told = Vec::new();
            for call in calls {
                told.push(call.await.unwrap());
            }
            told
        };
        let calls =
            || shown(Ok(MultiValue::from_vec(vec![bench.cache.get(b"calls").unwrap().to_lua(script.lua()).unwrap()])));
        let told = together(Hook::Request).await;
        assert_eq!(told[0], "error a.lua:2: no way");
        assert!(
            told[1].starts_with("error a.lua:1: gate.cache.fetch: its function failed elsewhere: ")
                && told[1].contains("a.lua:2: no way"),
            "{}",
            told[1]
        );
        assert!(told[2..].iter().all(|other| *other == told[1]));
        assert_eq!(calls(), "1");
        // A caught error has the script's own lines.
        let caught = together(Hook::Init).await;
        assert_eq!(caught[1], "false a.lua:5: gate.cache.fetch: its function failed elsewhere: a.lua:5: no way");
        assert_eq!(calls(), "2");
        bench.cache.delete(b"calls");
        bench.cache.incr(b"calls", 1.0, None).unwrap();
        // Later callers ask again.
        assert_eq!(together(Hook::Route).await, ["nil it is down timeout"; 20]);
        assert_eq!(calls(), "2");
        // Absence is cached.
        assert_eq!(together(Hook::Key).await, ["nil"; 20]);
        assert_eq!(calls(), "3");
        assert_eq!(together(Hook::Key).await, ["nil"; 20]);
        assert_eq!(calls(), "3");
    });
}

#[test]
fn when_whoever_makes_it_goes_the_next_one_does() {
    let bench = Bench::new();
    let source = "function on_request() return gate.cache.fetch('key', 60, function()
      local n = gate.cache.incr('calls') if n == 1 then gate.sleep(3600) end return n end) end
function on_route() return gate.cache.fetch('other', 60, function() while true do end end) end";
    run(async {
        let script = bench.load(source).unwrap();
        let first = script.call::<_, u32>(Hook::Request, ());
        let mut first = Box::pin(first);
        assert!(tokio::time::timeout(Duration::from_millis(1), &mut first).await.is_err());
        let call = |_| {
            let script = Rc::clone(&script);
            tokio::task::spawn_local(async move { script.call::<_, u32>(Hook::Request, ()).await.unwrap() })
        };
        let calls: Vec<_> = (0..10).map(call).collect();
        tokio::task::yield_now().await;
        drop(first);
        for call in calls {
            assert_eq!(call.await.unwrap(), 2);
        }
        // A maker that exceeds its limit gives up its ticket, too.
        for _ in 0..2 {
            let error = script.call::<_, ()>(Hook::Route, ()).await.unwrap_err();
            assert_eq!(error.kind, ErrorKind::Instructions);
        }
    });
    // A value that cannot be cached, or an error without text, blocks nobody.
    let odd = "local function odd() error(setmetatable({}, { __tostring = error })) end
        return pcall(gate.cache.fetch, 'k', -1, function() end), (pcall(gate.cache.fetch, 'k', 1, odd)),
            (gate.cache.fetch('k', 1e-9, function() return 7 end))";
    assert_eq!(given(&bench, &format!("function on_request() {odd} end")), "false false 7");
    let own = "return gate.cache.fetch('k', 1, function() return gate.cache.fetch('k', 1, function() end) end)";
    let told = body(&bench, own);
    assert_eq!(
        told,
        "error a.lua:1: gate.cache.fetch: this is called by its own function for the same key, and would wait for \
         itself"
    );
}
