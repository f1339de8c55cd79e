//! Scripts that fail, scripts that do not return, and interrupted runs: every waiting thread gets an error, and none
//! hangs.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::common;
use crate::common::{Case, PATIENCE, bounded, case};
use oroshi_bench::{Script, ScriptError};

/// Waits until the script has written into its log.
fn has_written(case: &Case) {
    let end = Instant::now() + PATIENCE;
    while case.log().is_empty() {
        assert!(Instant::now() < end, "it writes nothing");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Enters on all threads, and interrupts the run as soon as the script has written into its log.
fn interrupted(script: &str, threads: usize) -> Vec<ScriptError> {
    let case = case(script, threads);
    let wrk = case.load().unwrap();
    let peers = case.peers.clone();
    bounded(move || {
        let enter = |core| {
            let (wrk, peers) = (Arc::clone(&wrk), peers.clone());
            thread::spawn(move || wrk.enter(core, &peers).expect_err("it was interrupted"))
        };
        let cores: Vec<_> = (0..threads).map(enter).collect();
        has_written(&case);
        wrk.interrupt();
        cores.into_iter().map(|core| core.join().unwrap()).collect()
    })
}

const WRITE: &str = "local function write() local log = io.open(LOG, 'a') log:write('here\\n') log:close() end\n";

#[test]
fn errors_before_the_run_reach_every_core() {
    for (script, told) in [
        ("\nif wrk.own == nil and n == nil then error('top') end", "a.lua:2: top"),
        ("\nfunction setup() error('in setup') end", "a.lua:2: in setup"),
        ("\nfunction init() local x = nothing.more end", "a.lua:2: attempt to index global 'nothing' (a nil value)"),
        ("\nfunction setup(t) n = (n or 0) + 1 if n == 2 then error('second') end end", "a.lua:2: second"),
        ("\nfunction setup(t) t:set('f', 1) t:set('f', print) end", "a.lua:2: a function cannot be copied"),
        ("\nfunction request() error('no request') end", "a.lua:2: no request"),
        ("wrk.setup = nil", "a.lua: wrk.setup is nil: expected a function"),
        ("wrk.init = 5", "a.lua: wrk.init is a number: expected a function"),
        ("function wrk.resolve() end", "a.lua: wrk.resolve has left no address in wrk.addrs: expected a list"),
        ("function wrk.resolve() wrk.addrs = {} end", "a.lua: wrk.resolve has left no address in wrk.addrs"),
    ] {
        let case = case(script, 3);
        let results = case.run(|_, _| ());
        for result in results {
            let told_here = case.without_folder(&result.unwrap_err());
            assert!(told_here.starts_with(told), "{script}: {told_here}");
        }
    }
}

#[test]
fn what_is_no_lua_is_told_when_it_is_loaded() {
    let broken = case("\nfunction request( return end", 1);
    let told = broken.without_folder(&broken.load().unwrap_err());
    assert!(told.starts_with("a.lua:2: "), "{told}");
    let mut missing = case("", 1);
    missing.options.file = missing.folder().join("missing.lua");
    let told = missing.without_folder(&missing.load().unwrap_err());
    assert!(told.starts_with("missing.lua: ") && told.contains("No such file"), "{told}");
}

#[test]
fn a_run_may_be_given_up_while_cores_come_up() {
    for body in [
        "function setup() write() while true do end end",
        "function init() write() while true do end end",
        "function init() write() while true do pcall(function() while true do end end) end end",
        "function request() write() repeat until false end",
        "setmetatable(_G, { __index = function(_, name) if name == 'loop' then write() while true do end end end })
         function setup(thread) thread:get('loop') end",
        "function wrk.resolve() write() while true do end end",
    ] {
        for error in interrupted(&format!("{WRITE}{body}"), 3) {
            assert!(error.what.contains("interrupted"), "{body}: {error}");
        }
    }
}

#[test]
fn a_run_may_be_given_up_before_anybody_enters() {
    let case = case("", 2);
    let wrk = case.load().unwrap();
    wrk.interrupt();
    let peers = case.peers.clone();
    bounded(move || {
        for core in 0..2 {
            let error = wrk.enter(core, &peers).unwrap_err();
            assert!(error.what.contains("interrupted"), "{error}");
        }
    });
}

#[test]
fn cores_that_wait_for_a_missing_one_are_freed() {
    let case = case("", 3);
    let wrk = case.load().unwrap();
    let peers = case.peers.clone();
    bounded(move || {
        let cores: Vec<_> = (0..2)
            .map(|core| {
                let (wrk, peers) = (Arc::clone(&wrk), peers.clone());
                thread::spawn(move || wrk.enter(core, &peers).err())
            })
            .collect();
        wrk.interrupt();
        assert!(cores.into_iter().all(|core| core.join().unwrap().is_some()));
    });
}

#[test]
fn a_run_may_be_given_up_while_requests_flow_and_afterwards() {
    // All in the second line: between its last line in the log and its loop, a call may still be in `write`.
    let body =
        "n = 0 function request() n = n + 1 if n > 1 then write() while true do end end return wrk.request() end";
    let case = case(&format!("\n{} {body}", WRITE.trim_end()), 1);
    let wrk = case.load().unwrap();
    let peers = case.peers.clone();
    bounded(move || {
        let core = {
            let wrk = Arc::clone(&wrk);
            thread::spawn(move || {
                let mut part = wrk.enter(0, &peers).unwrap();
                part.request(&mut Vec::new()).unwrap();
                let error = part.request(&mut Vec::new()).unwrap_err();
                // No more calls are made, and none waits.
                assert!(part.request(&mut Vec::new()).is_err());
                part.leave();
                error
            })
        };
        has_written(&case);
        wrk.interrupt();
        let error = core.join().unwrap();
        assert!(error.what.contains("request() was interrupted"), "{error}");
        assert!(error.place.ends_with("a.lua:2"), "{error}");
        assert!(wrk.done(&common::record::nothing()).is_ok(), "there is no done");
    });
}

/// Longer than an empty call takes, even on a busy machine.
const LIMIT: Duration = Duration::from_secs(1);

#[test]
fn a_call_that_does_not_return_is_ended_by_the_limit() {
    let limited = [
        ("\nwhile true do end", "a.lua:2: the top level did not return within 1s"),
        ("\nfunction setup() while true do end end", "a.lua:2: setup() did not return within 1s"),
        ("\nfunction init() while true do end end", "a.lua:2: init() did not return within 1s"),
        ("\nfunction request() while true do end end", "a.lua:2: request() did not return within 1s"),
    ]
    .map(|(script, told)| {
        thread::spawn(move || {
            let mut case = case(script, 2);
            case.options.limit = LIMIT;
            assert_eq!(case.told(), told, "{script}");
        })
    });
    limited.into_iter().for_each(|limited| limited.join().unwrap());
}

#[test]
fn a_call_is_ended_with_the_run() {
    let case =
        case("\nn = 0 function request() n = n + 1 if n > 1 then while true do end end return wrk.request() end", 1);
    let error = case.one(|part| {
        part.begin(Some(oroshi_net::monotonic_ns()));
        part.request(&mut Vec::new()).unwrap();
        part.request(&mut Vec::new()).unwrap_err()
    });
    let told = case.without_folder(&error);
    assert!(told.starts_with("a.lua:2: request() ") && told.contains("after the end"), "{told}");
}

#[test]
fn values_can_be_asked_for_after_the_end() {
    let case = case(
        "threads = {} function setup(thread) threads[#threads + 1] = thread end
         n = 0 function request() n = n + 1 return wrk.request() end
         function done() assert(threads[1]:get('n') == 3) threads[2]:set('n', 5) assert(threads[2]:get('n') == 5) end",
        2,
    );
    let (tell, told) = std::sync::mpsc::channel();
    let results = case.run_then(
        |_, part| {
            (0..3).for_each(|_| drop(common::next(part)));
            part.begin(Some(oroshi_net::monotonic_ns()));
        },
        move |wrk| tell.send(wrk.done(&common::record::nothing())).unwrap(),
    );
    results.into_iter().for_each(|result| result.unwrap());
    told.recv().unwrap().unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn a_call_that_is_stuck_outside_of_lua_is_told() {
    // A FIFO without a writer: the end of the test frees the call.
    let mut case = case("function setup() io.open(LOG):read('*a') end", 2);
    case.options.limit = LIMIT;
    let fifo = case.folder().join("log");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let wrk = case.load().unwrap();
    let peers = case.peers.clone();
    bounded(move || {
        let cores: Vec<_> = (0..2)
            .map(|core| {
                let (wrk, peers) = (Arc::clone(&wrk), peers.clone());
                thread::spawn(move || wrk.enter(core, &peers).err())
            })
            .collect();
        let end = Instant::now() + PATIENCE;
        let stuck = loop {
            if let Some(error) = wrk.stuck() {
                break error;
            }
            assert!(Instant::now() < end, "it is not told");
            thread::sleep(Duration::from_millis(1));
        };
        assert!(stuck.what.contains("setup()") && stuck.what.contains("cannot be interrupted"), "{stuck}");
        // Frees every waiting thread; later requests for values do not wait.
        wrk.interrupt();
        assert!(cores.into_iter().all(|core| core.join().unwrap().is_some()));
        assert!(wrk.done(&common::record::nothing()).is_err());
        assert!(!wrk.has_done());
        drop(std::fs::OpenOptions::new().write(true).open(&fifo).unwrap());
    });
}

#[test]
fn a_script_is_for_one_run() {
    let case = case("", 1);
    let wrk = case.load().unwrap();
    let peers = case.peers.clone();
    bounded(move || {
        assert_eq!(wrk.name(), "a.lua");
        drop(wrk.enter(0, &peers).unwrap());
        for core in [0, 1] {
            let error = wrk.enter(core, &peers).unwrap_err();
            assert!(error.what.contains("one run of 1 threads"), "{error}");
        }
    });
}

#[test]
fn a_part_that_nobody_releases_ends_with_the_script() {
    let case = case("", 1);
    let wrk = case.load().unwrap();
    let peers = case.peers.clone();
    bounded(move || {
        let mut part = wrk.enter(0, &peers).unwrap();
        drop(wrk);
        part.leave();
    });
}
