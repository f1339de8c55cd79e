//! Scripts of `oroshi gate`, in real processes: the example with its stores, each hook, what goes wrong.

mod reloads;

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use crate::echo::echo;
use crate::gate;
use crate::gate::{Answer, Gate, HANG, Process, oroshi};
use crate::peers;
use rustix::process::Signal;
use serde_json::Value;

/// With the script, and a log.
fn configured(config: &str) -> String {
    const SCRIPT: &str = "access-log = { file = \"{dir}/access.log\" }\n[script.s]\nfile = \"route.lua\"\n";
    config.replace("[script.s]\n", SCRIPT)
}

/// The answer to a request, of which this is all but the end of its head.
fn ask(gate: &Gate, request: &str) -> Answer {
    let mut stream = UnixStream::connect(gate.path("public.sock")).unwrap();
    stream.set_read_timeout(Some(HANG)).unwrap();
    write!(stream, "{request}Connection: close\r\n\r\n").unwrap();
    Answer::read(stream)
}

/// The lines of the access log, once there are so many.
#[track_caller]
fn told(dir: &Path, count: usize) -> Vec<Value> {
    let begun = std::time::Instant::now();
    loop {
        let text = fs::read_to_string(dir.join("access.log")).unwrap_or_default();
        if text.lines().count() >= count {
            return text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        }
        assert!(begun.elapsed() < HANG, "{text}");
        thread::yield_now();
    }
}

/// Waits for something that is bound to be so.
#[track_caller]
fn until(what: &str, is_so: impl Fn() -> bool) {
    let begun = std::time::Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < HANG, "waited in vain for: {what}");
        thread::yield_now();
    }
}

#[test]
fn the_example_finds_each_domain_in_memcached_and_mariadb() {
    let test = "the_example_finds_each_domain_in_memcached_and_mariadb";
    let (Some(memcached), Some(database)) = (peers::Memcached::start(test), peers::MariaDb::start(test)) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().to_owned();
    for name in ["one", "two"] {
        echo(&dir, name);
    }
    let stores = oroshi_lookup::Stores::start(vec![peers::sql("gate", &database.url("gate", "gate"))]).unwrap();
    let sql = |query: String| {
        peers::run(async { stores.sql("gate").unwrap().query(query, vec![]).await.unwrap() });
    };
    let place = |name: &str| format!("unix:{}/{name}.sock", dir.display());
    sql(format!(
        "INSERT INTO domain VALUES ('shop.example', '{}'), ('inside.example', '169.254.169.254')",
        place("one")
    ));

    // The files as they stand there, with this test's places in them.
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/gate");
    let script = fs::read_to_string(examples.join("route.lua")).unwrap();
    fs::write(dir.join("route.lua"), &script).unwrap();
    let mut config = fs::read_to_string(examples.join("gate.toml")).unwrap();
    for (there, here) in [
        ("\"127.0.0.1:8080\"", "\"unix:{dir}/public.sock\"".to_owned()),
        ("\"127.0.0.1:8081\"", "\"unix:{dir}/admin.sock\"".to_owned()),
        ("\"127.0.0.1:11211\"", format!("\"{}\"", memcached.address())),
        (
            "\"mysql://gate@localhost/hosting?socket=/run/mysqld/mysqld.sock\"",
            format!("\"{}\"", database.url("gate", "gate")),
        ),
        ("\"10.0.0.0/8\"", "\"unix:{dir}/\"".to_owned()),
    ] {
        assert!(config.contains(there), "{there} is not in {config}");
        config = config.replace(there, &here);
    }
    let gate = Gate::start(folder, &config);
    assert!(gate.get("Shop.Example.:80", "/a?b").body.starts_with("one\nGET /a?b "));
    assert_eq!(memcached.say("get shop.example\r\n", "END\r\n").lines().nth(1), Some(&*place("one")));
    // From now on the row does not matter.
    sql(format!("UPDATE domain SET host = '{}' WHERE domain = 'shop.example'", place("two")));
    assert!(gate.get("shop.example", "/").body.starts_with("one\n"));
    memcached.say("delete shop.example\r\n", "DELETED\r\n");
    assert!(gate.get("shop.example", "/").body.starts_with("two\n"));

    let unknown = gate.get("none.example", "/");
    assert_eq!((unknown.status, &*unknown.body), (503, "no server is known for this host\n"));
    assert_eq!(gate.get("inside.example", "/").status, 502, "not where the example allows");
    let connections = |gate: &Gate| gate.status()["stores"]["domains"]["sql"]["connections"].clone();
    let before = (memcached.stat("total_connections"), connections(&gate));
    for _ in 0..100 {
        assert_eq!(gate.get("shop.example", "/").status, 200);
    }
    // But for the one that asks.
    assert_eq!(memcached.stat("total_connections"), before.0 + 1, "a script opens none");
    assert_eq!(connections(&gate), before.1);
    // Without memcached the database is asked.
    drop(memcached);
    assert!(gate.get("shop.example", "/").body.starts_with("two\n"));
}

const EVERY_HOOK: &str = include_str!("../gate/every-hook.lua");

const EVERY_HOOK_CONFIG: &str = r#"
forwarding = { request-id = true }
[script.s]
allow = ["unix:{dir}/"]
[upstream.both]
targets = ["unix:{dir}/two.sock"]
[[route]]
name = "scripted"
script = "s"
to = "unix:{dir}/own.sock"
[[route]]
name = "open"
path = "/open"
script = "s"
explain = true
"#;

fn every_hook() -> (Gate, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().to_owned();
    for name in ["one", "two", "own"] {
        echo(&dir, name);
    }
    fs::write(dir.join("route.lua"), EVERY_HOOK.replace("gate_dir", &format!("\"{}\"", dir.display()))).unwrap();
    (Gate::start(folder, &configured(EVERY_HOOK_CONFIG)), dir)
}

#[test]
fn a_script_answers_and_changes_requests() {
    let (gate, _) = every_hook();
    let answer = gate.get("a", "/refused");
    assert_eq!((answer.status, &*answer.body, answer.field("X-Why")), (403, "no\n", Some("because")));
    let answer = gate.get("a", "/old?x=y");
    assert_eq!((answer.status, answer.field("Location")), (308, Some("/new?x=y")));
    let facts = "GET /x/../%66acts?a=1%202&b=%zz&a=3 HTTP/1.1\r\nHost: EXAMPLE.org:80\r\nX-One: 1\r\nx-one: 2\r\n\
                 Cookie: a=b; session=c=d\r\n";
    assert_eq!(
        ask(&gate, facts).body,
        "GET|/x/../%66acts?a=1%202&b=%zz&a=3|/facts|a=1%202&b=%zz&a=3|example.org|http|1.1|nil|true|scripted|1 \
         2|%zz|-|c=d|1|2|none"
    );
    // What goes on: the fields and the target as the script has made them.
    let request = "GET /x?to=/other%3fq HTTP/1.1\r\nHost: a\r\nX-One: 1\r\nx-script: forged\r\nX-Two: 2\r\n";
    let answer = ask(&gate, request);
    let echoed = &answer.body;
    assert!(echoed.starts_with("own\nGET /other?q HTTP/1.1\r\nHost: a\r\n"), "{echoed}");
    assert!(echoed.contains("\r\nX-Script: 1\r\n") && echoed.contains("\r\nX-Two: 2\r\n"), "{echoed}");
    assert!(!echoed.contains("X-One") && !echoed.contains("forged"), "{echoed}");
}

#[test]
fn a_script_says_where_requests_go_within_what_is_allowed() {
    let (gate, dir) = every_hook();
    for (way, server) in
        [("one", "one"), ("list", "two"), ("weights", "two"), ("upstream", "two"), ("none of these", "own")]
    {
        for _ in 0..3 {
            let answer = gate.get("a", &format!("/?way={}", way.replace(' ', "+")));
            assert!(answer.status == 200 && answer.body.starts_with(server), "{way}: {answer:?}");
        }
    }
    let answer = gate.get("a", "/?way=answer");
    assert_eq!((answer.status, &*answer.body), (418, "a teapot\n"));
    for way in ["outside", "odd", "nowhere"] {
        let answer = gate.get("a", &format!("/?way={way}"));
        assert_eq!((answer.status, &*answer.body), (502, "the server of this host is not set up correctly\n"), "{way}");
    }
    let answer = gate.get("a", "/?way=number");
    assert_eq!((answer.status, &*answer.body), (500, "a script of this gateway failed\n"));
    // A route without a way of its own.
    assert_eq!(gate.get("a", "/open").status, 503);
    let answer = gate.get("a", "/open?way=outside");
    assert!(answer.body.contains("`192.0.2.1:80` is not among the allowed targets"), "{answer:?}");
    let failures: Vec<(String, String)> = told(&dir, 22)
        .iter()
        .filter_map(|line| Some((line["failure"].as_str()?.to_owned(), line["detail"].as_str()?.to_owned())))
        .collect();
    let count = |name: &str| failures.iter().filter(|(failure, _)| failure == name).count();
    assert_eq!((count("invalid"), count("script")), (4, 1), "{failures:?}");
    assert!(
        failures.iter().any(|(failure, detail)| failure == "script"
            && detail.contains("route.lua:")
            && detail.contains("on_route() returned a number: expected a target")),
        "{failures:?}"
    );
    let targets = gate.status()["targets"].clone();
    let of = |name: &str| targets.as_array().unwrap().iter().any(|target| target["of"] == name);
    assert!(of("s") && of("both"), "{targets}");
    let explained = gate.ask(&["explain", "a"]).out;
    assert!(explained.contains("script     s (route.lua): on_request, on_route may decide otherwise"), "{explained}");
    assert!(explained.contains("own.sock"), "{explained}");
}

#[test]
fn a_script_looks_at_answers_before_clients_do() {
    let (gate, _) = every_hook();
    let answer = gate.get("a", "/plain");
    assert!(answer.head.starts_with("HTTP/1.1 200 Fine\r\n"), "{answer:?}");
    assert_eq!(answer.field("X-Seen"), Some(&*format!("own 200 {}", answer.body.len())));
    assert_eq!(answer.field("X-Secret"), None);
    assert!(answer.head.contains("Set-Cookie: a=1\r\nSet-Cookie: b=2"), "{answer:?}");
    assert_eq!(answer.head.matches("Date: ").count(), 1);
    let answer = gate.get("a", "/plain?status=404");
    assert!(answer.head.starts_with("HTTP/1.1 404 Not Found\r\n") && answer.body.starts_with("own\n"), "{answer:?}");
    let answer = gate.get("a", "/plain?replace=1");
    assert_eq!((answer.status, &*answer.body, answer.field("X-From")), (200, "replaced\n", None));

    // Bodies that are none, and those in pieces.
    let answer = ask(&gate, "HEAD /plain HTTP/1.1\r\nHost: a\r\n");
    assert_eq!((answer.status, &*answer.body), (200, ""));
    let length = answer.field("Content-Length").unwrap();
    assert_eq!(answer.field("X-Seen"), Some(&*format!("own 200 {length}")));
    let answer = ask(&gate, "HEAD /plain?replace=1 HTTP/1.1\r\nHost: a\r\n");
    assert_eq!((answer.status, answer.field("Content-Length"), &*answer.body), (200, Some("9"), ""));
    let answer = gate.get("a", "/204");
    assert_eq!((answer.status, answer.field("X-Seen"), &*answer.body), (204, Some("own 204 0"), ""));
    assert_eq!(answer.field("Content-Length"), None);
    let answer = gate.get("a", "/304");
    assert_eq!((answer.status, answer.field("ETag"), &*answer.body), (304, Some("\"1\""), ""));
    let answer = gate.get("a", "/chunked");
    assert_eq!((answer.status, answer.field("X-Seen")), (200, Some("own 200 nil")));
    // What the script removes is not in the trailers either.
    assert_eq!(answer.body, "5\r\nhello\r\n6\r\n world\r\n0\r\nX-End: 1\r\n\r\n");
    // Interim answers and switches of the protocol are not looked at.
    let answer = gate.get("a", "/early");
    assert!(answer.head.starts_with("HTTP/1.1 103 ") && answer.body.contains("X-Seen: own 200 2\r\n"), "{answer:?}");
    let mut socket = UnixStream::connect(gate.path("public.sock")).unwrap();
    socket.set_read_timeout(Some(HANG)).unwrap();
    socket.write_all(b"GET /socket HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n").unwrap();
    let answer = Answer::read(socket);
    assert_eq!((answer.status, answer.field("X-Secret"), &*answer.body), (101, Some("1"), "hello"));
    // A status whose answer has no body, for one that may have one: an error of the script.
    assert_eq!(gate.get("a", "/chunked?status=204").status, 500);
    assert_eq!(gate.get("a", "/plain?status=99").status, 500);

    // Connections on both sides go on after each of these.
    let mut kept = UnixStream::connect(gate.path("public.sock")).unwrap();
    kept.set_read_timeout(Some(HANG)).unwrap();
    let connects = |gate: &Gate| {
        let status = gate.status();
        let targets = status["targets"].as_array().unwrap().iter();
        targets.map(|target| target["connects"].as_u64().unwrap()).sum::<u64>()
    };
    let mut before = None;
    for path in ["/plain", "/204", "/304", "/chunked", "/plain?replace=1", "/plain"] {
        write!(kept, "GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        let mut text = String::new();
        let is_whole = |text: &str| {
            let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
            match head.lines().find_map(|line| line.strip_prefix("Content-Length: ")) {
                Some(length) => body.len() == length.parse::<usize>().unwrap(),
                None => !head.contains("chunked") || body.ends_with("\r\n\r\n"),
            }
        };
        while !is_whole(&text) {
            let mut room = [0; 4096];
            let count = kept.read(&mut room).unwrap();
            assert!(count > 0, "{path}: {text}");
            text.push_str(str::from_utf8(&room[..count]).unwrap());
        }
        assert!(text.starts_with("HTTP/1.1 "), "{path}: {text}");
        // On this core's own connection.
        before.get_or_insert_with(|| connects(&gate));
    }
    assert_eq!(Some(connects(&gate)), before, "a server's connection is used again");
}

#[test]
fn a_script_is_told_of_every_end() {
    let (gate, dir) = every_hook();
    let told = || gate.get("a", "/told").body;
    for (path, expected) in [
        ("/refused", "/refused 403 3 - - request true".to_owned()),
        ("/204", format!("/204 204 0 unix:{}/own.sock - route true", dir.display())),
        ("/?way=number", "/ 500 32 - script route true".to_owned()),
        ("/?way=odd", "/ 502 48 - invalid route true".to_owned()),
    ] {
        gate.get("a", path);
        until(&expected, || told() == expected);
    }
    let status = gate.status();
    let hooks = &status["scripts"]["s"]["hooks"];
    assert_eq!(hooks["init"]["calls"], 2, "once for each thread: {hooks}");
    assert_eq!((&hooks["on_route"]["errors"], &hooks["on_route"]["breaches"]), (&1.into(), &0.into()), "{hooks}");
    let metrics = gate.get_at("admin.sock", "a", "/metrics").body;
    for line in [
        "oroshi_gate_script_calls_total{script=\"s\",hook=\"init\"} 2\n",
        "oroshi_gate_script_failures_total{script=\"s\",hook=\"on_route\",failure=\"error\"} 1\n",
        "oroshi_gate_script_logs_dropped_total{script=\"s\"} 0\n",
    ] {
        assert!(metrics.contains(line), "{line} is not in {metrics}");
    }
}

#[test]
fn a_script_makes_the_key_of_a_look_up() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().to_owned();
    let test = "a_script_makes_the_key_of_a_look_up";
    let rows = format!(
        "CREATE TABLE t (k TEXT PRIMARY KEY, host TEXT); INSERT INTO t VALUES ('eu:shop', 'unix:{}/one.sock')",
        dir.display()
    );
    if !gate::sqlite(test, &dir.join("t.db"), &rows) {
        return;
    }
    echo(&dir, "one");
    let script = r#"
function on_key(request)
  local tenant = request.headers["X-Tenant"]
  if tenant == "raise" then error("no tenant today") end
  request.headers["X-Tenant"] = nil
  return tenant and "eu:" .. tenant:lower()
end
function on_request(request) -- of routes with this script alone
  local target, outcome = gate.lookup("tenants", "eu:shop")
  return gate.answer(200, tostring(target) .. " " .. tostring(outcome))
end
"#;
    fs::write(dir.join("route.lua"), script).unwrap();
    let gate = Gate::start(
        folder,
        r#"
[sql.db]
url = "sqlite:{dir}/t.db"
[script.keys]
file = "route.lua"
[lookup.tenants]
key = "script keys"
allow = ["unix:{dir}/"]
sql = { store = "db", query = "SELECT host FROM t WHERE k = ?" }
[[route]]
lookup = "tenants"
[[route]]
path = "/lookup"
script = "keys"
"#,
    );
    let asked = |tenant: &str| ask(&gate, &format!("GET / HTTP/1.1\r\nHost: a\r\n{tenant}"));
    let answer = asked("X-Tenant: SHOP\r\n");
    assert!(answer.status == 200 && !answer.body.contains("X-Tenant"), "{answer:?}");
    assert_eq!(asked("X-Tenant: other\r\n").status, 503);
    assert_eq!(asked("").status, 503, "nil is no key");
    let answer = asked("X-Tenant: raise\r\n");
    assert_eq!((answer.status, &*answer.body), (500, "a script of this gateway failed\n"));
    let answer = gate.get("a", "/lookup");
    assert_eq!(answer.body, format!("unix:{}/one.sock hit", dir.display()));
    let explained = gate.ask(&["explain", "a", "--key", "eu:shop"]).out;
    assert!(explained.contains("one.sock"), "{explained}");
    let refused = gate.ask(&["explain", "a"]);
    assert!(refused.err.contains("what the script `keys` says: expected its key in key="), "{refused:?}");
}

const FAILING: &str = include_str!("../gate/failing.lua");

#[test]
fn what_goes_wrong_in_a_script_costs_that_request_alone() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().to_owned();
    echo(&dir, "own");
    fs::write(dir.join("route.lua"), FAILING).unwrap();
    let config = configured(
        "threads = 1\nlisten = { public = \"unix:{dir}/public.sock\", admin = \"unix:{dir}/admin.sock\" }\n[script.s]\n\
         wall = \"300ms\"\n\
         instructions = 2000000\nmemory = 8000000\n[[route]]\nscript = \"s\"\nto = \"unix:{dir}/own.sock\"\n\
         [[route]]\nhost = \"explained\"\nscript = \"s\"\nexplain = true\nto = \"unix:{dir}/own.sock\"\n",
    );
    let mut gate = Gate::start(folder, &config);
    // Others go on at the same time, on the same thread.
    let (over, others) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let steady = {
        let (over, others, path) = (Arc::clone(&over), Arc::clone(&others), gate.path("public.sock"));
        thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                let mut stream = UnixStream::connect(&path).unwrap();
                stream.set_read_timeout(Some(HANG)).unwrap();
                stream.write_all(b"GET /fine HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
                let answer = Answer::read(stream);
                assert_eq!((answer.status, &*answer.body), (200, "fine\n"));
                others.fetch_add(1, Ordering::Relaxed);
            }
        })
    };
    for (path, told) in [
        ("/nil", "route.lua:3: attempt to index"),
        ("/raise", "route.lua:9: on purpose"),
        ("/loop", "route.lua:10: "),
        ("/caught", "route.lua:11: "),
        ("/sleep", "route.lua:12: "),
        ("/memory", "route.lua:"),
        (
            "/table",
            "route.lua:5: on_request() returned a table: expected a value of gate.answer or gate.redirect, or nil",
        ),
        ("/framing", "route.lua:15: Content-Length is written by the gateway itself"),
        ("/host", "route.lua:16: Host is written by the gateway itself"),
        ("/split", "route.lua:17: the value for X-A holds a control character"),
        ("/target", "route.lua:18: "),
        ("/nopath", "route.lua:19: \"http://b/\" cannot be asked for"),
        ("/answer-split", "route.lua:20: "),
        ("/answer-framing", "route.lua:21: "),
        ("/answer-status", "route.lua:22: "),
        ("/redirect-split", "route.lua:23: "),
        ("/kept", "route.lua:24: the request is over"),
        ("/no-body", "route.lua:5: on_request() returned a userdata: expected a gate.answer without a body"),
        ("/response-raise", "route.lua:28: too late"),
        ("/response-split", "route.lua:29: the value for X-A"),
        ("/response-framing", "route.lua:30: Content-Length is written"),
    ] {
        let answer = gate.get("a", path);
        assert_eq!((answer.status, &*answer.body), (500, "a script of this gateway failed\n"), "{path}: {answer:?}");
        let explained = gate.get("explained", path);
        assert!(explained.status == 500 && explained.body.contains(told), "{path}: {told}: {explained:?}");
        for _ in 0..2 {
            gate.process.until(&format!("error: {told}"));
        }
    }
    over.store(true, Ordering::Relaxed);
    steady.join().unwrap();
    assert!(others.load(Ordering::Relaxed) > 0);
    // What the client sees, the log has with its place.
    let lines = told(&dir, others.load(Ordering::Relaxed) + 2 * 21);
    let failed: Vec<&Value> = lines.iter().filter(|line| line["failure"] == "script").collect();
    assert_eq!(failed.len(), 2 * 21);
    assert!(failed.iter().all(|line| line["status"] == 500 && line["detail"].as_str().unwrap().contains("route.lua")));
    let hooks = gate.status()["scripts"]["s"]["hooks"].clone();
    assert_eq!(hooks["on_request"]["breaches"], 8, "{hooks}");
    assert_eq!(gate.get("a", "/own").status, 200);
}
