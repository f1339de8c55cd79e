//! `oroshi bench -s`: the examples, where what scripts print goes, and what becomes of scripts that are wrong.

use std::fs;
use std::path::Path;

use crate::common;
use crate::common::support::skipped;
use crate::common::{Ran, Recorded as _, Target, bench, oroshi};
use oroshi_bench::{Protocol, Record};

fn example(name: &str) -> String {
    format!("{}/../../examples/lua/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// `a.lua` with this text, in a folder of its own.
struct Script {
    folder: tempfile::TempDir,
    path: String,
}

impl Script {
    fn new(source: impl AsRef<[u8]>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.lua");
        fs::write(&path, source).unwrap();
        Self { path: path.display().to_string(), folder }
    }

    /// Runs it with these flags.
    fn run(&self, flags: &[&str]) -> Ran {
        let ran = bench(&[&["-s", &self.path], flags].concat());
        // The folder is another one each time.
        Ran { err: ran.err.replace(&format!("{}/", self.folder.path().display()), ""), ..ran }
    }
}

/// 50 requests on one thread and two connections.
fn fifty<'f>(url: &'f str, more: &[&'f str]) -> Vec<&'f str> {
    [&["-t1", "-c2", "-n50"], more, &[url]].concat()
}

mod examples {
    use super::*;

    /// All requests are answered, by a server that answers anything.
    #[track_caller]
    fn runs(name: &str, path: &str, args: &[&str]) -> (Record, String) {
        let (record, said) = runs_with(&[], name, path, args);
        if !["delay.lua", "pipeline.lua"].contains(&name) {
            // Over HTTP/2 too. There a stream carries one request at a time, without pauses.
            let (over_http2, _) = runs_with(&["--http2-prior-knowledge", "--streams", "3"], name, path, args);
            assert_eq!(over_http2.plan.protocol, Protocol::Http2);
            assert_eq!(first_line(&over_http2), first_line(&record));
        }
        (record, said)
    }

    #[track_caller]
    fn runs_with(flags: &[&str], name: &str, path: &str, args: &[&str]) -> (Record, String) {
        let target = Target::start(&[]);
        let (script, url) = (example(name), format!("{}{path}", target.url().trim_end_matches('/')));
        let fixed = ["-t2", "-c4", "-n200", "--format", "json", "-s", &script, &url];
        let flags = [flags, &fixed].concat();
        let args = if args.is_empty() { Vec::new() } else { [&["--"], args].concat() };
        let ran = bench(&[&flags[..], &args].concat());
        assert_eq!(ran.code, Some(0), "{name}: {ran:?}");
        let record = ran.record();
        common::support::load::all_answered(&record, 200);
        assert_eq!(record.plan.script.as_deref(), Some(name));
        (record, ran.err)
    }

    fn first_line(record: &Record) -> &str {
        &record.plan.origins[0].requests[0]
    }

    #[test]
    fn post_json() {
        let (record, _) = runs("post-json.lua", "/orders", &[]);
        assert!(first_line(&record).starts_with("POST "), "{record:?}");
    }

    #[test]
    fn counter() {
        let (record, _) = runs("counter.lua", "/items", &[]);
        assert!(first_line(&record).contains("/items/1"), "{record:?}");
    }

    #[test]
    fn token() {
        runs("token.lua", "/", &["/session"]);
    }

    #[test]
    fn urls() {
        let paths = tempfile::NamedTempFile::new().unwrap();
        fs::write(paths.path(), "# one\n\n/a\n").unwrap();
        let (record, _) = runs("urls.lua", "/", &[paths.path().to_str().unwrap()]);
        assert!(first_line(&record).contains("/a"), "{record:?}");
        let script = example("urls.lua");
        bench(&["-s", &script, "http://127.0.0.1:9/", "--", "/nonexistent"]).said(1, &["error: "]);
    }

    #[test]
    fn threads() {
        let (_, said) = runs("threads.lua", "/", &[]);
        let numbers = |line: &str| -> Vec<u64> {
            line.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse().ok()).collect()
        };
        let lines: Vec<&str> = said.lines().collect();
        let answered: Vec<u64> =
            lines.iter().filter(|line| line.starts_with("thread ")).map(|l| numbers(l)[2]).collect();
        assert_eq!((answered.len(), answered.iter().sum::<u64>()), (2, 200), "{said}");
        assert!(lines.iter().any(|line| line.starts_with("200 answers in ")), "{said}");
        assert!(lines.iter().any(|line| line.starts_with("99.9% within ")), "{said}");
        assert_eq!(lines.last(), Some(&"errors: 0 connect, 0 read, 0 write, 0 timeout, 0 status"));
    }

    #[test]
    fn delay() {
        runs("delay.lua", "/", &["1"]);
    }

    #[test]
    fn pipeline() {
        let (record, _) = runs("pipeline.lua", "/", &["10"]);
        assert!(first_line(&record).contains("request=1"), "{record:?}");
    }

    #[test]
    fn what_they_want_to_know_they_say() {
        let (delay, pipeline, urls) = (example("delay.lua"), example("pipeline.lua"), example("urls.lua"));
        let target = Target::start(&[]);
        for (script, args, words) in [
            (&delay, &["--", "soon"][..], "the mean delay in milliseconds, not soon"),
            (&pipeline, &["--", "many"], "the number of requests, not many"),
            (&urls, &[], "name a file of paths"),
        ] {
            bench(&[&["-n10", "-s", script, target.url()], args].concat()).said(1, &[words]);
        }
    }

    #[test]
    fn all_of_them_are_tested_here_and_with_wrk() {
        let (here, wrk) = (include_str!("scripts.rs"), include_str!("scripts_wrk.rs"));
        for entry in fs::read_dir(example("")).unwrap() {
            let name = format!("\"{}\"", entry.unwrap().file_name().display());
            assert!(here.contains(&name) && wrk.contains(&name), "{name}");
        }
    }
}

mod output {
    use super::*;

    const TALK: &str = "print('loading') function setup() print('setup') end function init() print('init') end
        function done() io.write('done') end";

    #[test]
    fn what_a_script_says_of_a_run_comes_after_the_report() {
        let target = Target::start(&[]);
        for format in ["text", "wrk", "ab"] {
            let ran = Script::new(TALK).run(&fifty(target.url(), &["--format", format]));
            assert_eq!(ran.code, Some(0), "{ran:?}");
            // Once in the main state and once in the thread's own, as with wrk.
            let before = "loading\nloading\nsetup\ninit\n";
            assert!(ran.out.starts_with(before) && ran.out.ends_with("\ndone"), "{format}: {ran:?}");
            assert_eq!(ran.out.matches("done").count(), if format == "ab" { 2 } else { 1 }, "{format}: {ran:?}");
        }
    }

    #[test]
    fn data_stays_data() {
        let target = Target::start(&[]);
        let script = Script::new(TALK.to_owned() + " os.execute('echo child')");
        let ran = script.run(&fifty(target.url(), &["--format", "json"]));
        assert_eq!((ran.code, ran.record().requests.completed), (Some(0), 50), "{ran:?}");
        assert!(ran.err.ends_with("setup\ninit\ndone") && ran.err.contains("child\n"), "{ran:?}");
        // In a file it is the same, and standard output is empty.
        let report = script.folder.path().join("report.json");
        let ran = script.run(&fifty(target.url(), &["--format", "json", "-o", report.to_str().unwrap()]));
        assert_eq!((ran.code, &*ran.out), (Some(0), ""), "{ran:?}");
        serde_json::from_str::<Record>(&fs::read_to_string(report).unwrap()).unwrap();
    }

    #[test]
    fn arguments_are_the_script_s() {
        let target = Target::start(&[]);
        let script = Script::new("function init(args) print(args[0], args[1], args[2], #args) end");
        let url = target.url().replace("http://", "HTTP://");
        let ran = script.run(&fifty(&url, &[]).into_iter().chain(["--", "-c", "a b"]).collect::<Vec<_>>());
        assert!(ran.out.starts_with(&format!("{url}\t-c\ta b\t2\n")), "{ran:?}");
    }

    #[test]
    fn flags_say_what_the_script_does_not() {
        let script = Script::new(
            "print(wrk.method, wrk.path, wrk.body, wrk.headers['X-A'], wrk.headers['X-B']) wrk.headers['X-B'] = 'c'",
        );
        let target = Target::start(&[]);
        let url = format!("{}p?q", target.url());
        let ran = script.run(&fifty(&url, &["-b", "text", "-H", "X-A: a", "-H", "X-B: b"]));
        assert!(ran.out.starts_with("POST\t/p?q\ttext\ta\tb\n"), "{ran:?}");
        assert_eq!(ran.code, Some(0), "{ran:?}");
    }

    #[test]
    fn a_script_may_end_the_command() {
        let target = Target::start(&[]);
        for source in ["os.exit(7)", "function request() os.exit(7) end", "function done() os.exit(7) end"] {
            let ran = Script::new(source).run(&fifty(target.url(), &[]));
            assert_eq!((ran.code, &*ran.err), (Some(7), ""), "{source}: {ran:?}");
        }
    }

    #[test]
    fn a_threshold_is_judged_with_a_script_too() {
        let target = Target::start(&["--status", "500"]);
        let ran = Script::new("function done(summary) print(summary.errors.status) end")
            .run(&fifty(target.url(), &["--fail-if", "errors>0"]));
        assert!(ran.code == Some(3) && ran.out.ends_with("\n50\n"), "{ran:?}");
    }

    #[test]
    fn modules_written_in_c_are_found_and_run() {
        let folders = [format!("/usr/lib/{}-linux-gnu/lua/5.1", std::env::consts::ARCH), "/usr/lib64/lua/5.1".into()];
        if !folders.iter().any(|folder| Path::new(folder).join("cjson.so").exists()) {
            return skipped("modules_written_in_c_are_found_and_run", "lua-cjson is not installed");
        }
        let target = Target::start(&[]);
        let source = "local json = require 'cjson'
            function request() return wrk.format('POST', nil, nil, json.encode({ list = { 1, 2 } })) end
            function done() print(json.encode({ done = true })) end";
        let ran = Script::new(source).run(&fifty(target.url(), &[]));
        assert!(ran.code == Some(0) && ran.out.ends_with("{\"done\":true}\n"), "{ran:?}");
        let ran = Script::new("\nrequire('cjson').decode('[')").run(&fifty(target.url(), &[]));
        ran.said(1, &["error: a.lua:2: Expected value but found T_END"]);
    }

    #[test]
    fn the_help_knows_scripts() {
        let help = oroshi(&["bench", "--help"]).out;
        for word in ["-s, --script <FILE>", "--script-limit <TIME>", "-- <ARGS>"] {
            assert!(help.contains(word), "{word}: {help}");
        }
    }
}

mod wrong {
    use super::*;

    /// Each is told with its place and what is wrong, and ends with code 1.
    #[track_caller]
    fn told(flags: &[&str], cases: &[(&str, &str)]) {
        let target = Target::start(&[]);
        for (source, expected) in cases {
            let ran = Script::new(source).run(&fifty(target.url(), flags));
            assert_eq!(ran.code, Some(1), "{source}: {ran:?}");
            assert!(ran.err.contains(&format!("error: {expected}")), "{source}:\n{expected}\n{ran:?}");
            assert!(ran.err.contains("\n  next: "), "{source}: {ran:?}");
        }
    }

    #[test]
    fn files_that_are_no_scripts() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("none.lua");
        let [folder, missing] = [folder.path(), &missing].map(|path| path.to_str().unwrap());
        let url = "http://127.0.0.1:9/";
        bench(&["-s", missing, url]).said(2, &["--script: ", "none.lua cannot be read", "No such file"]);
        bench(&["-s", folder, url]).said(2, &["--script: ", "is a folder"]);
        bench(&["-s", "/dev/null", url]).said(2, &["--script: ", "no regular file"]);
        let script = Script::new("");
        for (flags, words) in [
            (&[url, "http://127.0.0.1:8/"][..], &["--script: ", "there are 2"][..]),
            (&["--script-limit", "0", url], &["--script-limit: `0`"]),
            (&["--script-limit", "soon", url], &["--script-limit: `soon`"]),
            (&[], &["no URL"]),
        ] {
            script.run(flags).said(2, words);
        }
        bench(&[url, "--", "a"]).said(2, &["--script"]);
        bench(&["--script-limit", "1s", url]).said(2, &["--script"]);
    }

    #[test]
    fn what_is_no_lua() {
        told(
            &[],
            &[
                ("\nx = = 1", "a.lua:2: unexpected symbol near '='"),
                ("function init(\n", "a.lua:2: <name> or '...' expected near '<eof>'"),
                ("\u{1}\u{2}", "a.lua:1: "),
            ],
        );
    }

    #[test]
    fn loops_that_do_not_end() {
        let looping =
            |head: &str| format!("\n{head}\n  while true do end\n{}", if head.is_empty() { "" } else { "end" });
        for (head, what) in [
            ("", "the top level"),
            ("function setup()", "setup()"),
            ("function init()", "init()"),
            ("function request()", "request()"),
            ("function delay()", "delay()"),
            ("function response()", "response()"),
            ("function done()", "done()"),
        ] {
            let expected = format!("a.lua:3: {what} did not return within 100ms");
            told(&["--script-limit", "100ms"], &[(&looping(head), &expected)]);
        }
        told(
            &["--script-limit", "100ms"],
            &[(
                "function request()\n  while true do pcall(function() while true do end end) end\nend",
                "a.lua:2: request() did not return within 100ms",
            )],
        );
    }

    #[test]
    fn a_run_ends_although_a_call_does_not() {
        let target = Target::start(&[]);
        let flags = ["-t2", "-c2", "-d200ms", target.url()];
        let script = Script::new(
            "local n = 0\nfunction request()\n  n = n + 1\n  while n > 3 do end\n  return wrk.format()\nend",
        );
        let ran = script.run(&flags);
        ran.said(1, &["error: a.lua:4: request() had not returned 500ms after the end"]);
        let stuck = Script::new("function request() return string.find(('a'):rep(1e5), ('a-'):rep(40) .. 'b') end");
        let ran = stuck.run(&[&["--script-limit", "100ms"], &flags[..]].concat());
        ran.said(1, &["error: a.lua: request() did not return within 100ms", "cannot be interrupted"]);
    }

    #[test]
    fn a_slow_call_at_the_end_is_no_mistake() {
        let target = Target::start(&[]);
        // The run is over while one of these calls is under way: nearly all of it is spent in them.
        let source = "function request()
              local begun = os.clock() while os.clock() < begun + 0.005 do end
              return wrk.format()
            end";
        let ran = Script::new(source).run(&["-t1", "-c1", "-d200ms", target.url()]);
        assert!(!ran.err.contains("request()"), "{ran:?}");
    }

    #[test]
    fn requests_that_are_none() {
        let returns = |what: &str| format!("\nfunction request() return {what} end");
        for (what, expected) in [
            ("nil", "returned nil"),
            ("7", "returned a number (7)"),
            ("{}", "returned a table"),
            ("true", "returned a boolean"),
            ("''", "returned an empty string"),
            ("'garbage'", "returned a request whose head does not end"),
            ("'GET / HTTP/1.1\\r\\nHost: a\\r\\n'", "returned a request whose head does not end"),
            ("'garbage\\r\\n\\r\\n'", "returned "),
            ("'GET / HTTP/1.1\\r\\nHost: a\\r\\n\\r\\nmore'", "returned "),
            ("'POST / HTTP/1.1\\r\\nHost: a\\r\\nContent-Length: 9\\r\\n\\r\\nshort'", "returned "),
            ("'GET / HTTP/1.1\\r\\nHost: a\\r\\nA b: c\\r\\n\\r\\n'", "returned "),
        ] {
            told(&[], &[(&returns(what), &format!("a.lua:2: request() {expected}"))]);
        }
    }

    #[test]
    fn delays_that_are_none() {
        let returns = |what: &str| format!("\nfunction delay() return {what} end");
        for (what, expected) in [
            ("nil", "nil"),
            ("-1", "-1"),
            ("0/0", "NaN"),
            ("'x'", "a string"),
            ("1e300", "1e300:"),
            ("{}", "a table"),
            ("1/0", "inf"),
        ] {
            told(&[], &[(&returns(what), &format!("a.lua:2: delay() returned {expected}"))]);
        }
    }

    #[test]
    fn headers_that_cannot_be_sent() {
        told(
            &[],
            &[
                ("wrk.headers['A b'] = 'c'", "a.lua: header `A b` cannot be sent"),
                ("wrk.headers[''] = 'c'", "a.lua: header `` cannot be sent"),
                ("wrk.headers['A'] = 'c\\r\\nB: d'", "a.lua: header `A` cannot be sent: a line break"),
                ("wrk.headers['A\\r\\nB: d'] = 'c'", "a.lua: header `A\\x0d\\x0aB: d` cannot be sent"),
                ("wrk.headers['A'] = {}", "a.lua: header `A` cannot be sent: its value is a table"),
                (
                    "\nfunction request() return wrk.format(nil, nil, { ['A b'] = 'c' }) end",
                    "a.lua:2: header `A b` cannot be sent",
                ),
            ],
        );
        // What may be secret is not repeated.
        let target = Target::start(&[]);
        let ran = Script::new("wrk.headers.Authorization = 'Bearer s3cret\\n'").run(&fifty(target.url(), &[]));
        assert!(ran.code == Some(1) && ran.err.contains("`Authorization`") && !ran.err.contains("s3cret"), "{ran:?}");
    }

    #[test]
    fn errors_are_told_with_the_lines_that_led_there() {
        let source =
            "local function inner(t)\n  return t.x.y\nend\nfunction request()\n  local y = inner({})\n  return y\nend";
        told(
            &[],
            &[
                (
                    source,
                    "a.lua:2: attempt to index field 'x' (a nil value)\n  a.lua:2: in upvalue 'inner'\n  a.lua:5: in \
                     function 'request'\n",
                ),
                ("function response(status)\n  error('status ' .. status)\nend", "a.lua:2: status 200"),
                ("function setup(thread)\n  thread:set('f', print)\nend", "a.lua:2: "),
                ("function init()\n  error({})\nend", "a.lua:2: init() raised a table as its error"),
                ("function done()\n  error()\nend", "a.lua:2: done() raised an error without a message"),
                ("function request() coroutine.yield() end", "a.lua:1: attempt to yield"),
                (
                    "local function deep() string.gsub('a', 'a', deep) end function request() deep() end",
                    "a.lua:1: stack overflow",
                ),
            ],
        );
    }

    #[test]
    fn the_report_is_there_although_done_fails() {
        let target = Target::start(&[]);
        let ran = Script::new("\nfunction done() error('late') end").run(&fifty(target.url(), &["--format", "wrk"]));
        ran.said(1, &["error: a.lua:2: late"]);
        assert!(ran.out.contains("50 requests in"), "{ran:?}");
    }

    #[test]
    fn huge_bodies_are_sent() {
        let target = Target::start(&[]);
        let source = "local body = ('x'):rep(1e8) function request() return wrk.format('POST', nil, nil, body) end";
        let ran = Script::new(source).run(&["-t1", "-c1", "-n2", "-T60s", "--format", "json", target.url()]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let record = ran.record();
        assert!(record.requests.completed == 2 && record.rates.written_bytes > 200_000_000, "{record:?}");
    }
}
