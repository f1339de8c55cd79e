//! The guard without a script's file: hooks, and calls within calls.

use std::sync::mpsc;
use std::thread;

use super::*;

#[test]
fn only_a_call_that_stays_is_interrupted() {
    let lua = new_state().unwrap();
    let guard = Guard::new(&lua, "a.lua", Duration::from_secs(3600), u64::MAX).unwrap();
    // The watchdog checks as well, and sees almost no time pass.
    let most_of_the_limit = Check { passed: Duration::from_secs(3000), now_ns: 0, memory: 0 };
    let is_ordered = || guard.watched.seen().order.is_some();
    for _ in 0..10 {
        let _short = guard.enter("f");
        guard.watched.check(&most_of_the_limit);
        assert!(!is_ordered());
    }
    guard.watched.check(&most_of_the_limit);
    let _long = guard.enter("f");
    for _ in 0..3 {
        let _within = guard.enter("g");
        guard.watched.check(&most_of_the_limit);
    }
    assert!(is_ordered());
}

/// LuaJIT constantly compiles, and enters and leaves hooks, while another thread constantly requests a hook. Bug:
/// some of these loops were never ended.
#[test]
fn a_hook_that_another_thread_asks_for_is_set_whatever_luajit_does_meanwhile() {
    const CALLS: usize = 100;
    for source in [
        "while true do jit.flush() for i = 1, 100 do end end",
        "while true do pcall(function() while true do end end) end",
        "local f = load('for i = 1, 100 do end') while true do f() end",
    ] {
        let (tell, told) = mpsc::channel();
        thread::spawn(move || {
            let lua = new_state().unwrap();
            let guard = Guard::new(&lua, "a.lua", Duration::from_secs(3600), u64::MAX).unwrap();
            let function = lua.load(source).into_function().unwrap();
            let (handle, is_over) = (guard.handle(), Arc::new(AtomicBool::new(false)));
            let over = Arc::clone(&is_over);
            let other = thread::spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    handle.watched.check(&Check { passed: Duration::from_secs(2000), now_ns: 0, memory: 0 });
                    thread::yield_now();
                }
            });
            for _ in 0..CALLS {
                let _call = guard.enter("f");
                function.call::<()>(()).unwrap_err();
                let error = guard.interrupted("f", 0, String::new).unwrap();
                assert_eq!(error.kind, Kind::Interrupted);
            }
            is_over.store(true, Ordering::Relaxed);
            other.join().unwrap();
            tell.send(()).unwrap();
        });
        // Longer than needed, however busy the machine is.
        assert!(told.recv_timeout(Duration::from_secs(120)).is_ok(), "a call was not ended: {source}");
    }
}
