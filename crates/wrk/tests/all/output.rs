//! A script's output in its order, and its environment.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::common;
use crate::common::{case, record};
use oroshi_testkit::test_name;

const CHILD: &str = "OROSHI_WRK_TEST_CHILD";

/// Prints from the script and from Rust in turn. The next test runs it in a process of its own, because Lua's output
/// cannot be captured.
#[test]
fn a_child_prints() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let case = case(
        "io.write('1 file ') print('main')
         function setup() io.write('3 setup ') end
         function init() io.write('4 init ') end
         function request() io.write('5 request ') return wrk.request() end
         function done() io.write('8 done ') end",
        1,
    );
    let say = |text: &str| {
        let mut out = std::io::stdout();
        out.write_all(text.as_bytes()).and_then(|()| out.flush()).unwrap();
    };
    let results = case.run_then(
        move |_, part| {
            say("6 run ");
            common::next(part);
            common::next(part);
        },
        move |wrk| {
            wrk.flush();
            say("7 report ");
            wrk.done(&record::nothing()).unwrap();
            say("9 end ");
        },
    );
    results.into_iter().for_each(|result| result.unwrap());
}

#[test]
fn what_is_printed_comes_in_order_with_what_we_print() {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test_name!("a_child_prints"), "--nocapture", "--test-threads", "1"])
        .env(CHILD, "1")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = String::from_utf8(child.stdout).unwrap();
    assert!(child.status.success(), "{text}");
    // Each state runs the file; output of `request` during the run is written at the end.
    let expected = "1 file main\n1 file main\n3 setup 4 init 5 request 6 run 5 request 7 report 8 done 9 end ";
    assert!(text.contains(expected), "{text}");
}

#[test]
fn modules_beside_the_script_are_found() {
    let case = case(
        "local words, more = require('words'), require('deep.more')
         assert(words.hello == 'hello' and more == 'more' and require('wrk') == wrk)
         assert(package.path:find('./?.lua', 1, true) == 1, package.path)",
        2,
    );
    std::fs::write(case.folder().join("words.lua"), "return { hello = 'hello' }").unwrap();
    std::fs::create_dir_all(case.folder().join("deep/more")).unwrap();
    std::fs::write(case.folder().join("deep/more/init.lua"), "return 'more'").unwrap();
    case.run(|_, _| ()).into_iter().for_each(|result| result.unwrap());
}

#[test]
fn luajit_s_libraries_are_open() {
    let script = "
        local ffi, bit = require('ffi'), require('bit')
        assert(ffi.sizeof('int') == 4 and bit.band(6, 3) == 2 and jit and debug.getinfo(1) and os.time() > 0)
        assert(table.concat({ 1, 2 }, ',') == '1,2' and math.random() < 1 and string.rep('a', 3) == 'aaa')
        assert(io.open(LOG) == nil)";
    case(script, 1).one(|_| ());
}
