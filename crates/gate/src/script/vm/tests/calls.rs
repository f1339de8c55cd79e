//! Tests of calls: limits, errors, concurrency.

use std::sync::Mutex;

use tokio::time::timeout;

use super::*;

#[test]
fn hooks_are_found_and_called() {
    let bench = Bench::new();
    let source = "function init() started = gate.core end function on_request(...) return started, ... end function \
        on_log() end";
    let hooks = Script::check(&bench.settings(source), None).unwrap();
    let found: Vec<_> = Hook::ALL.into_iter().filter(|&hook| hooks.has(hook)).collect();
    assert_eq!(found, [Hook::Init, Hook::Request, Hook::Log]);
    run(async {
        let script = bench.load(source).unwrap();
        assert!(script.has(Hook::Log) && !script.has(Hook::Key));
        script.call::<_, ()>(Hook::Init, ()).await.unwrap();
        let given: (u32, String, bool) = script.call(Hook::Request, ("a", true)).await.unwrap();
        assert_eq!(given, (3, "a".to_owned(), true));
        assert_eq!(script.call::<_, Option<String>>(Hook::Key, ()).await.unwrap(), None);
        let error = script.call::<_, u32>(Hook::Request, "x").await.map(drop);
        assert_eq!(error, Ok(()), "the first value counts");
        let error = script.call::<_, (u32, u32)>(Hook::Request, "x").await.unwrap_err();
        assert_eq!(
            told(&error),
            "error a.lua:1: on_request() returned a string: expected a u32 (expected number or string coercible to \
             number)"
        );
    });
}

#[test]
fn a_check_tells_what_is_wrong_and_asks_nobody() {
    let bench = Bench::new();
    let told_of = |source| Script::check(&bench.settings(source), None).map(|_| ()).map_err(|error| told(&error));
    assert_eq!(told_of("db, cache = gate.sql('any'), gate.memcached('any') gate.info('hello')"), Ok(()));
    let wrong = [
        ("\nx = = 1", "error a.lua:2: unexpected symbol near '='"),
        ("\nerror('bad')", "error a.lua:2: bad"),
        ("on_request = 7", "error a.lua: the global on_request is not a function, as is expected of a hook"),
        ("\ngate.sleep(1)", "error a.lua:2: the top level of a script cannot wait: do it in init()"),
        (
            "\n\ngate.sql('any'):row('SELECT 1')",
            "error a.lua:3: sql:row: it is a method: expected sql:row(...) on what it is of",
        ),
        (
            "gate.lookup('any', 'key')",
            "error a.lua:1: gate.lookup: this is a check, in which nothing can be asked: expected it in init() or in \
             a hook",
        ),
        ("\nwhile true do end", "instructions a.lua:2: the top level took more than 1000000 instructions"),
        ("local s = ('x'):rep(1e9)", "memory a.lua: not enough memory"),
    ];
    for (source, expected) in wrong {
        assert_eq!(told_of(source), Err(expected.to_owned()), "{source}");
    }
}

#[test]
fn errors_have_their_lines_and_the_state_goes_on() {
    let bench = Bench::with(|settings| settings.instructions = 5_000);
    std::fs::write(
        bench.settings("").file.with_file_name("lib.lua"),
        "return { bad = function(t)\n  return t.x.y\nend }",
    )
    .unwrap();
    let source = "lib = require('lib')
function on_request(t)
  local y = lib.bad({})
  return y
end
function on_route() gate.sleep('x') end
function on_log() while true do gate.sleep(0) end end
function on_key() return 7 end";
    run(async {
        let script = bench.load(source).unwrap();
        let call = async |hook| script.call::<_, ()>(hook, ()).await.map_err(|error| told(&error)).unwrap_err();
        let expected = "error lib.lua:2: attempt to index field 'x' (a nil value)";
        let error = call(Hook::Request).await;
        assert!(error.starts_with(expected) && error.contains("a.lua:3: in function"), "{error}");
        assert_eq!(call(Hook::Route).await, "error a.lua:6: gate.sleep: seconds is a string: expected a number");
        assert_eq!(call(Hook::Log).await, "instructions a.lua:7: on_log() took more than 5000 instructions");
        assert_eq!(script.call::<_, u32>(Hook::Key, ()).await.unwrap(), 7);
        let counts = |hook| {
            let counts = script.counters().counts(hook);
            (counts.calls, counts.errors, counts.breaches)
        };
        assert_eq!(counts(Hook::Request), (1, 1, 0));
        assert_eq!(counts(Hook::Log), (1, 0, 1));
        assert_eq!(counts(Hook::Key), (1, 0, 0));
        let log = script.counters().counts(Hook::Log);
        assert!(log.instructions == 5_000 && log.busy <= log.wall && !log.busy.is_zero(), "{log:?}");
    });
}

#[test]
fn a_call_that_waits_too_long_is_ended_where_it_waits() {
    let bench = Bench::with(|settings| settings.wall = SHORT);
    let shapes = [
        "gate.sleep(3600)",
        "pcall(gate.sleep, 3600)",
        "while true do pcall(gate.sleep, 0.001) end",
        "coroutine.wrap(gate.sleep)(3600)",
    ];
    for shape in shapes {
        let error = given(&bench, &format!("function on_request()\n{shape}\nend"));
        // A short call is counted only if the machine is fast enough.
        assert!(
            error == "wall a.lua:2: on_request() had not returned after 50ms, and waited here"
                || error.starts_with("instructions"),
            "{shape}: {error}"
        );
    }
}

#[test]
fn calls_take_turns_in_one_state() {
    let bench = Bench::new();
    let source = "local order = {}
function on_request(n)
  local mine = 0
  for i = 1, 20 do gate.sleep(0.001) mine = mine + i end
  order[#order + 1] = n
  return n, mine, #order
end";
    run(async {
        let script = bench.load(source).unwrap();
        let calls = (0..200).map(|n: u64| {
            let script = Rc::clone(&script);
            tokio::task::spawn_local(async move { script.call::<_, (u64, u64, u64)>(Hook::Request, n).await })
        });
        let calls: Vec<_> = calls.collect();
        let mut orders = Vec::new();
        for (n, call) in calls.into_iter().enumerate() {
            let (given, sum, order) = call.await.unwrap().unwrap();
            assert_eq!((given, sum), (n as u64, 210));
            orders.push(order);
        }
        orders.sort_unstable();
        assert_eq!(orders, (1..=200).collect::<Vec<_>>());
        let counts = script.counters().counts(Hook::Request);
        assert_eq!((counts.calls, counts.errors, counts.breaches), (200, 0, 0));
        // All calls are equal, whatever happened between.
        assert_eq!(counts.instructions % 200, 0, "{counts:?}");
    });
}

#[test]
fn one_that_is_ended_does_not_hurt_those_beside_it() {
    let bench = Bench::with(|settings| settings.instructions = 20_000);
    let source = "function on_request(bad) for i = 1, 10 do gate.sleep(0.002) end if bad then while true do end end \
        return 'fine' end";
    run(async {
        let script = bench.load(source).unwrap();
        let call = |n: u32| {
            let script = Rc::clone(&script);
            tokio::task::spawn_local(async move { shown(script.call(Hook::Request, n.is_multiple_of(3)).await) })
        };
        let calls: Vec<_> = (0..60).map(call).collect();
        for (n, call) in calls.into_iter().enumerate() {
            let expected = if n % 3 == 0 {
                "instructions a.lua:1: on_request() took more than 20000 instructions"
            } else {
                "fine"
            };
            assert_eq!(call.await.unwrap(), expected, "{n}");
        }
    });
}

#[test]
fn a_call_that_is_dropped_goes_on_nowhere() {
    let bench = Bench::new();
    let source = "seen = 0 function on_request(seconds) gate.sleep(seconds) seen = seen + 1 end function on_key() \
        return seen end";
    run(async {
        let script = bench.load(source).unwrap();
        for _ in 0..10 {
            assert!(timeout(Duration::from_millis(1), script.call::<_, ()>(Hook::Request, 3600)).await.is_err());
        }
        script.call::<_, ()>(Hook::Request, 0.001).await.unwrap();
        assert_eq!(script.call::<_, u32>(Hook::Key, ()).await.unwrap(), 1);
        assert_eq!((script.calls.get(), script.counters().counts(Hook::Request).calls), (0, 11));
    });
}

#[test]
fn as_many_calls_as_may_be_are_under_way() {
    let bench = Bench::new();
    run(async {
        let script = bench.load("function on_request() gate.sleep(3600) end").unwrap();
        let calls: Vec<_> = (0..MOST_CALLS)
            .map(|_| {
                let script = Rc::clone(&script);
                tokio::task::spawn_local(async move { script.call::<_, ()>(Hook::Request, ()).await })
            })
            .collect();
        peers::until("they have begun", async || script.calls.get() == MOST_CALLS).await;
        let error = script.call::<_, ()>(Hook::Request, ()).await.unwrap_err();
        assert_eq!(told(&error), "overload a.lua:1: 2000 calls are under way in this state: expected no more");
        calls.iter().for_each(tokio::task::JoinHandle::abort);
        for call in calls {
            assert!(call.await.is_err());
        }
        assert_eq!(script.calls.get(), 0);
    });
}

#[test]
fn a_text_that_has_no_room_as_values_is_not_called_wrong() {
    let bench = Bench::with(|settings| settings.memory = 8 << 20);
    let source = "function on_request() return gate.json_decode('[' .. ('{},'):rep(200000) .. '{}]') end
        function on_key() return gate.json_decode('\"fine\"') end";
    run(async {
        let script = bench.load(source).unwrap();
        let error = script.call::<_, MultiValue>(Hook::Request, ()).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Memory, "{error}");
        assert_eq!(script.call::<_, String>(Hook::Key, ()).await.unwrap(), "fine");
    });
}

#[test]
fn a_state_that_was_full_serves_the_next_request() {
    let database = peers::Sqlite::start();
    let mut bench = Bench::new().sqlite("main", &database);
    bench.change = |settings| (settings.memory, settings.instructions) = (4 << 20, 100_000_000);
    // Fills the memory completely, catches the error, and waits for a result without room.
    let source = "local d = gate.sql('main')
local function strings(f) while true do f[#f + 1] = ('x'):rep(1000) .. #f end end
local function tables(f) while true do f[#f + 1] = {} end end
function on_request() local f = {} pcall(strings, f) pcall(tables, f) return d:value('SELECT hex(zeroblob(100000))'), \
#f end
function on_route() local f = {} pcall(strings, f) pcall(tables, f) return 'left' end
function on_key(request) return request.name .. #tostring({}):rep(1000) end";
    run(async {
        let script = bench.load(source).unwrap();
        for _ in 0..3 {
            let error = script.call::<_, MultiValue>(Hook::Request, ()).await.unwrap_err();
            assert_eq!(error.kind, ErrorKind::Memory, "{error}");
            let plain = async || {
                let request = script.make(|lua| {
                    let request = lua.create_table()?;
                    request.raw_set("name", "a")?;
                    Ok(request)
                });
                shown(script.call(Hook::Key, request.unwrap()).await)
            };
            assert!(plain().await.starts_with('a'));
            assert_eq!(shown(script.call(Hook::Route, ()).await), "left");
            assert!(plain().await.starts_with('a'));
        }
        assert_eq!(script.counters().counts(Hook::Request).breaches, 3);
        assert_eq!(script.counters().counts(Hook::Key).breaches, 0);
    });
}

#[test]
fn garbage_alone_does_not_fill_the_memory() {
    let bench = Bench::with(|settings| (settings.memory, settings.instructions) = (8 << 20, 100_000_000));
    let source = "keep = {} for i = 1, 30 do keep[i] = ('x'):rep(1e5) .. i end
function on_request() for i = 1, 300 do local s = ('y'):rep(1e5) .. i end gate.sleep(0) return 'fine' end";
    run(async {
        let script = bench.load(source).unwrap();
        for _ in 0..20 {
            assert_eq!(shown(script.call(Hook::Request, ()).await), "fine");
        }
    });
}

/// Collects log lines.
#[derive(Clone, Default)]
struct Taken(Arc<Mutex<Vec<String>>>);

struct Fields<'a>(&'a mut String);

impl tracing::field::Visit for Fields<'_> {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        *self.0 += &format!(" {field}={value:?}");
    }
}

impl tracing::Subscriber for Taken {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target().starts_with("oroshi_gate::script")
    }
    fn event(&self, event: &tracing::Event<'_>) {
        let mut line = event.metadata().level().to_string();
        event.record(&mut Fields(&mut line));
        self.0.lock().unwrap().push(line);
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn what_scripts_say_and_hold_their_core_for_is_logged() {
    let bench = Bench::with(|settings| settings.instructions = 1_000_000_000);
    let source =
        "function on_request() print('a', nil, {} ~= nil, 1.5) gate.warn('line\\nbreak') gate.log('error', 'e')
gate.log('loud') end
function on_key()
for i = 1, 3e6 do end
end";
    let taken = Taken::default();
    let lines = || taken.0.lock().unwrap().clone();
    tracing::subscriber::with_default(taken.clone(), || {
        run(async {
            let script = bench.load(source).unwrap();
            let loud = "error a.lua:2: gate.log: level is \"loud\": expected error, warn, info or debug";
            assert_eq!(shown(script.call(Hook::Request, ()).await), loud);
            // A busy machine may delay other calls as well, and the log is silent for a second after each warning.
            let slow = |line: &String| {
                line.starts_with("WARN message=") && line.contains("a.lua:4: on_key() held its core for ")
            };
            let began = Instant::now();
            while !lines().iter().any(slow) {
                assert!(began.elapsed() < peers::PATIENCE, "{:?}", lines());
                script.call::<_, ()>(Hook::Key, ()).await.unwrap();
            }
        });
    });
    let said: Vec<_> = lines().into_iter().filter(|line| !line.contains(" held its core for ")).collect();
    assert_eq!(
        said,
        [
            "INFO message=a\tnil\ttrue\t1.5 script=\"test\"",
            "WARN message=line\nbreak script=\"test\"",
            "ERROR message=e script=\"test\"",
        ]
    );
}
