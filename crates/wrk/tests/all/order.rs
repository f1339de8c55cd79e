//! The order of a script's functions, their states, and the shared data.

use std::sync::{Arc, Barrier};

use crate::common;
use crate::common::{case, next};
use oroshi_bench::CoreScript;

#[test]
fn the_order_is_wrks() {
    // The output of wrk 4.1.0 with this script and three threads, except for its first request, which it makes twice.
    let case = case(
        r#"
        local log = io.open(LOG, "a")
        function say(...) log:write(table.concat({...}, " "), "\n") log:flush() end
        say("file", tostring(wrk.thread))
        local resolve, made, threads = wrk.resolve, wrk.init, 0
        function wrk.resolve(host, service) say("resolve", host, service) resolve(host, service) end
        function wrk.init(args) say("wrk.init", type(wrk.thread)) made(args) end
        function setup(thread)
            threads = threads + 1
            say("setup", tostring(wrk.thread), threads)
            thread:set("id", threads)
        end
        function init(args) say("init", id, tostring(wrk.request)) end
        function request() say("request", id) return wrk.request() end
        function done() say("done", tostring(wrk.thread), threads, tostring(id)) end
        "#,
        3,
    );
    let (tell, told) = std::sync::mpsc::channel();
    let results =
        case.run_then(|_, _| (), move |wrk| tell.send((wrk.has_done(), wrk.done(&common::record::nothing()))).unwrap());
    results.into_iter().for_each(|result| result.unwrap());
    let (has_done, done) = told.recv().unwrap();
    assert!(has_done);
    done.unwrap();
    let expected = [
        "file nil",
        "resolve 127.0.0.1 8080",
        "file nil",
        "setup nil 1",
        "wrk.init userdata",
        "init 1 nil",
        "request 1",
        "file nil",
        "setup nil 2",
        "wrk.init userdata",
        "init 2 nil",
        "file nil",
        "setup nil 3",
        "wrk.init userdata",
        "init 3 nil",
        "done nil 3 nil",
    ];
    assert_eq!(case.log(), expected);
}

#[test]
fn nobody_begins_before_all_are_set_up() {
    let case = case(
        r#"
        local log = io.open(LOG, "a")
        function setup(thread) n = (n or 0) + 1 thread:set("n", n) end
        function init() log:write("init ", n, "\n") log:flush() end
        function request() log:write("request ", n, "\n") log:flush() return wrk.request() end
        "#,
        3,
    );
    case.run(|_, part| next(part)).into_iter().for_each(|result| drop(result.unwrap()));
    let mut log = case.log();
    assert_eq!(log[..4], ["init 1", "request 1", "init 2", "init 3"]);
    log[4..].sort();
    // The first thread first sends the request that `request` returned before the run.
    assert_eq!(log[4..], ["request 2", "request 3"]);
}

#[test]
fn the_first_request_is_not_thrown_away() {
    let case = case("n = 0 function request() n = n + 1 return wrk.format(nil, '/' .. n) end", 2);
    let lines = case.run(|_, part| [next(part), next(part), next(part)].map(|r| r.lines().next().unwrap().to_owned()));
    for result in lines {
        assert_eq!(result.unwrap(), ["GET /1 HTTP/1.1", "GET /2 HTTP/1.1", "GET /3 HTTP/1.1"]);
    }
}

#[test]
fn globals_are_each_thread_s_own() {
    let case = case(
        "n = 0 function request() n = n + 1 return wrk.format(nil, '/' .. n) end
         threads = {} function setup(thread) table.insert(threads, thread) end
         function done()
            assert(n == 0, 'the main state has one too')
            assert(threads[1]:get('n') == 5 and threads[2]:get('n') == 7, threads[2]:get('n'))
         end",
        2,
    );
    let (tell, told) = std::sync::mpsc::channel();
    let work = |core: usize, part: &mut dyn CoreScript| (0..5 + 2 * core).for_each(|_| drop(next(part)));
    let results = case.run_then(work, move |wrk| tell.send(wrk.done(&common::record::nothing())).unwrap());
    results.into_iter().for_each(|result| result.unwrap());
    told.recv().unwrap().unwrap();
}

#[test]
fn values_are_copied_between_threads() {
    let case = case(
        r#"
        threads = {}
        function setup(thread)
            table.insert(threads, thread)
            local list = { "a", { b = true, [1.5] = "x\0y" }, n = 1 }
            thread:set("list", list)
            thread:set("text", "a\0b")
            thread:set("yes", true)
            thread:set("number", 1 / 3)
            thread:set("nothing", nil)
            thread:set("wrk_body", wrk.body)
            list[1] = "changed"
            assert(thread:get("list")[1] == "a" and thread:get("list")[2][1.5] == "x\0y", "a copy")
            assert(thread:get("text") == "a\0b" and #thread:get("text") == 3)
            assert(thread:get("yes") == true and thread:get("number") == 1 / 3 and thread:get("nothing") == nil)
            if threads[2] then threads[1]:set("second", threads[2]:get("text")) end
        end
        function init()
            assert(list[1] == "a" and list[2].b == true and list.n == 1 and #text == 3 and yes and nothing == nil)
            -- A thread's own object copies as well.
            local own = wrk.thread:get("list")
            own[1] = "z"
            assert(list[1] == "a")
            wrk.thread:set("mine", own)
            own[1] = "y"
            assert(mine[1] == "z" and wrk.thread:get("undefined") == nil)
        end
        function request() return wrk.format(nil, "/" .. #tostring(second)) end
        function done()
            assert(threads[1]:get("second") == "a\0b")
            threads[2]:set("late", { 1, 2 })
            assert(#threads[2]:get("late") == 2)
        end
        "#,
        2,
    );
    case.done(common::record::nothing()).unwrap();
}

#[test]
fn what_cannot_be_copied_is_said() {
    for (call, what) in [
        ("thread:set('f', print)", "a function cannot be copied"),
        ("thread:set('t', { { coroutine.create(print) } })", "a thread cannot be copied"),
        ("local t = {} t.t = t thread:set('t', t)", "a table that contains itself"),
        ("thread:set('f', thread)", "cannot be copied"),
        ("thread:get('print')", "a function cannot be copied"),
        ("thread:get()", "expected"),
        ("thread.addr = 'localhost'", "a string is not an address: expected one of those that wrk.lookup returns"),
        ("thread.address = 1", "a thread's `address` cannot be set: only its addr can"),
        ("local a = thread.adr", "a thread has no `adr`: expected addr, get, set or stop"),
    ] {
        let case = case(&format!("\nfunction setup(thread) {call} end"), 1);
        let told = case.told();
        assert!(told.starts_with("a.lua:2: ") && told.contains(what), "{call}: {told}");
    }
}

#[test]
fn scripts_may_put_functions_in_place_of_wrks() {
    let case = case(
        r#"
        function wrk.resolve(host, service) wrk.addrs = wrk.lookup("127.0.0.3", "81") end
        function wrk.setup(thread) thread.addr = wrk.addrs[1] thread:set("by", "hand") end
        function wrk.init(args) wrk.headers["X-By"] = by wrk.request = function() return wrk.format(nil, "/own") end end
        local format = wrk.format
        function wrk.format(method, path, ...) return format("PUT", path, ...) end
        "#,
        1,
    );
    let features = case.one(|part| part.features());
    let request = String::from_utf8(features.request.unwrap()).unwrap();
    assert_eq!(request, "PUT /own HTTP/1.1\r\nHost: 127.0.0.1:8080\r\nX-By: hand\r\n\r\n");
    assert_eq!(features.peer, Some(common::peer("127.0.0.3:81")));

    let wrapped = "
        local made = wrk.init
        function wrk.init(args) wrk.headers['X-A'] = '1' made(args) wrk.path = '/later' end
        function init(args) wrk.path = '/mine' end";
    let request = common::case(wrapped, 1).one(|part| part.features().request.unwrap());
    assert_eq!(request, b"GET /mine HTTP/1.1\r\nHost: 127.0.0.1:8080\r\nX-A: 1\r\n\r\n");
}

#[test]
fn a_thread_can_be_stopped_from_both_sides() {
    let from_main = case("function setup(thread) n = (n or 0) + 1 if n == 2 then thread:stop() end end", 3);
    let stopped: Vec<bool> = from_main.run(|_, part| part.stopped()).into_iter().map(Result::unwrap).collect();
    assert_eq!(stopped, [false, true, false]);

    let own = case(
        "function setup(thread) id = (id or 0) + 1 thread:set('id', id) end
         n = 0 function request() n = n + 1 if n == 2 * id then wrk.thread:stop() end return wrk.request() end",
        2,
    );
    let both = Arc::new(Barrier::new(2));
    let sent = own.run(move |_, part| {
        let mut sent = 0;
        while !part.stopped() {
            next(part);
            sent += 1;
        }
        both.wait();
        sent
    });
    assert_eq!(sent.into_iter().map(Result::unwrap).collect::<Vec<_>>(), [2, 4]);
}

#[test]
fn init_gets_the_url_as_typed_and_the_arguments() {
    let mut case = case(
        "function init(args)
            assert(args[0] == 'http://LocalHost:80/a', args[0])
            assert(#args == 3 and args[1] == '' and args[2] == '--x' and args[3] == 'ä')
         end",
        1,
    )
    .at("http://LocalHost:80/a");
    case.options.args = ["", "--x", "ä"].map(str::to_owned).to_vec();
    case.one(|_| ());
}
