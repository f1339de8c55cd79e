//! `oroshi gate` as a process: routes, look-ups in SQLite, what operators ask, reloads under load, limits, the log, how
//! it ends.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;

use crate::gate;
use crate::gate::{Answer, Gate, HANG, Process, oroshi, server, sqlite};
use rustix::process::Signal;
use serde_json::Value;

const DOMAINS: &str = "CREATE TABLE domain (domain TEXT PRIMARY KEY, host TEXT)";
const LOOKUP: &str = r#"
[sql.domains]
url = "sqlite:{dir}/domains.db"
[lookup.domains]
allow = ["127.0.0.0/8", "unix:{dir}/"]
sql = { store = "domains", query = "SELECT host FROM domain WHERE domain = ?" }
[[route]]
lookup = "domains"
"#;

#[test]
fn each_host_goes_where_the_database_says() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().to_owned();
    let (one, two) = (dir.join("one.sock"), dir.join("two.sock"));
    let rows = format!(
        "INSERT INTO domain VALUES ('one.example', 'unix:{0}'), ('two.example', 'unix:{1}'), ('xn--bcher-kva.example', \
         '[\"unix:{0}\"]'), ('inside.example', '169.254.169.254'), ('odd.example', 'what?'), ('null.example', NULL), \
         ('down.example', 'unix:{0}.none')",
        one.display(),
        two.display()
    );
    let test = "each_host_goes_where_the_database_says";
    if !sqlite(test, &dir.join("domains.db"), &format!("{DOMAINS}; {rows}")) {
        return;
    }
    let _servers = (server(&dir, "one.sock", 11), server(&dir, "two.sock", 22));
    let gate = Gate::start(folder, LOOKUP);
    for (host, status, length) in [
        ("one.example", 200, 11),
        ("ONE.example.:8080", 200, 11),
        ("two.example", 200, 22),
        ("b\u{fc}cher.example", 400, 0), // no byte of a Host is above ASCII
        ("xn--bcher-kva.example", 200, 11),
        ("none.example", 503, 0),
        ("null.example", 503, 0),
        ("inside.example", 502, 0),
        ("odd.example", 502, 0),
        ("down.example", 502, 0),
        ("", 503, 0),
    ] {
        let answer = gate.get(host, "/");
        assert_eq!(answer.status, status, "{host}: {answer:?}");
        if length > 0 {
            assert_eq!(answer.body.len(), length, "{host}");
        }
    }
    // Nothing inside is told to clients.
    assert_eq!(gate.get("inside.example", "/").body, "the server of this host is not set up correctly\n");
    assert_eq!(gate.get("none.example", "/").body, "no server is known for this host\n");

    let before = asked(&gate.status());
    for _ in 0..50 {
        assert_eq!(gate.get("one.example", "/").status, 200);
        assert_eq!(gate.get("none.example", "/").status, 503);
    }
    assert_eq!(asked(&gate.status()), before, "both stand in memory");

    // Operators see why, and have it forgotten.
    let explained = gate.ask(&["explain", "inside.example"]);
    assert_eq!(explained.code, Some(0), "{explained:?}");
    assert!(explained.out.contains("`169.254.169.254:80` is not among the allowed targets"), "{explained:?}");
    let explained = gate.ask(&["explain", "TWO.example"]).out;
    for words in
        ["look-up    domains", "key        two.example", "outcome    hit from memory", "unix:", "breaker closed"]
    {
        assert!(explained.contains(words), "{words}: {explained}");
    }
    sqlite(
        test,
        &gate.path("domains.db"),
        &format!("UPDATE domain SET host = 'unix:{}' WHERE domain = 'one.example'", two.display()),
    );
    assert_eq!(gate.get("one.example", "/").body.len(), 11, "for as long as it is remembered");
    assert_eq!(gate.ask(&["purge", "--key", "One.Example"]).out, "forgotten: 1\n");
    assert_eq!(gate.get("one.example", "/").body.len(), 22);
    assert_eq!(gate.ask(&["purge", "--prefix", "tw"]).out, "forgotten: 1\n");
    let left = gate.ask(&["purge", "--all"]).out;
    assert!(left.starts_with("forgotten: ") && left != "forgotten: 0\n", "{left}");
}

/// How often SQL was asked.
fn asked(status: &Value) -> u64 {
    let sql = &status["lookups"]["domains"]["sql"];
    ["hits", "negatives", "invalid", "errors"].iter().map(|name| sql[name].as_u64().unwrap()).sum()
}

#[test]
fn a_database_that_is_gone_costs_only_those_who_ask_for_the_first_time() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().to_owned();
    let test = "a_database_that_is_gone_costs_only_those_who_ask_for_the_first_time";
    let row = format!("{DOMAINS}; INSERT INTO domain VALUES ('one.example', 'unix:{}/one.sock')", dir.display());
    if !sqlite(test, &dir.join("domains.db"), &row) {
        return;
    }
    let _server = server(&dir, "one.sock", 11);
    // Every answer counts for a moment only.
    let gate = Gate::start(
        folder,
        &LOOKUP.replace("allow =", "memory = { ttl = \"50ms\", negative-ttl = \"50ms\" }\nallow ="),
    );
    assert_eq!(gate.get("one.example", "/").status, 200);
    sqlite(test, &gate.path("domains.db"), "DROP TABLE domain");
    let mut stale = 0;
    while stale == 0 {
        assert_eq!(gate.get("one.example", "/").status, 200, "what has expired is better than nothing");
        stale = gate.status()["lookups"]["domains"]["stale"].as_u64().unwrap();
    }
    let answer = gate.get("other.example", "/");
    assert_eq!((answer.status, answer.field("Retry-After")), (503, Some("1")), "{answer:?}");
    assert!(!answer.body.contains("domain WHERE") && !answer.body.contains("no such table"), "{answer:?}");
    let explained = gate.ask(&["explain", "other.example"]).out;
    assert!(explained.contains("store-down") && explained.contains("no such table"), "{explained}");
}

#[test]
fn routes_by_host_path_method_and_field() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().to_owned();
    let _servers = (server(&dir, "app.sock", 11), server(&dir, "api.sock", 22));
    let gate = Gate::start(
        folder,
        r#"
[upstream.app]
targets = ["unix:{dir}/app.sock"]
[[route]]
to = "app"
host = ["example.org", "*.example.org"]
[[route]]
host = "example.org"
path = "/api"
to = "unix:{dir}/api.sock"
[[route]]
host = "example.org"
path = "/api"
method = "DELETE"
answer = { status = 403, body = "no\n" }
[[route]]
host = "old.example.org"
redirect = { to = "https://example.org{target}", status = 308 }
"#,
    );
    for (host, target, status, length) in [
        ("example.org", "/", 200, 11),
        ("a.b.example.org", "/api", 200, 11),
        ("example.org", "/api/x", 200, 22),
        ("example.org", "/apix", 200, 11),
        // Another spelling is no way around.
        ("example.org", "/%61pi", 200, 22),
        // What one server would take for /api, and another would not, goes to neither.
        ("example.org", "/x/../api/", 400, 0),
        ("example.org", "//api", 400, 0),
        ("example.org", "/api/../x", 400, 0),
        ("example.org", "/api%2f..%2fx", 400, 0),
        ("example.org", "/x/../y", 200, 11),
        ("example.org", "/x%2fy", 200, 11),
        ("example.org", "/..", 400, 0),
        ("other.org", "/", 404, 0),
    ] {
        let answer = gate.get(host, target);
        assert_eq!(answer.status, status, "{host}{target}: {answer:?}");
        if length > 0 {
            assert_eq!(answer.body.len(), length, "{host}{target}");
        }
    }
    let answer = gate.get("old.example.org", "/a?b=c");
    assert_eq!((answer.status, answer.field("Location")), (308, Some("https://example.org/a?b=c")));
    let mut stream = UnixStream::connect(gate.path("public.sock")).unwrap();
    stream.write_all(b"DELETE /api/1 HTTP/1.1\r\nHost: example.org\r\nConnection: close\r\n\r\n").unwrap();
    let answer = Answer::read(stream);
    assert_eq!((answer.status, &*answer.body), (403, "no\n"));
    // These two are carried nowhere, whatever the route.
    for request in
        ["CONNECT example.org:443 HTTP/1.1\r\nHost: example.org:443\r\n", "TRACE / HTTP/1.1\r\nHost: example.org\r\n"]
    {
        let mut stream = UnixStream::connect(gate.path("public.sock")).unwrap();
        write!(stream, "{request}Connection: close\r\n\r\n").unwrap();
        let answer = Answer::read(stream);
        assert_eq!(answer.status, 405, "{request}: {answer:?}");
        assert!(answer.field("Allow").is_some());
    }
    let explained = gate.ask(&["explain", "example.org", "--path", "/api/1", "--method", "DELETE"]).out;
    assert!(explained.contains("route-3") && explained.contains("403"), "{explained}");
    // What was asked is counted by route.
    let status = gate.status();
    assert_eq!(status["routes"]["route-2"]["requests"], 2);
    assert_eq!(status["routes"]["-"]["by_status"]["4xx"], 8);
}

#[test]
fn a_reload_under_load_fails_no_request() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().to_owned();
    let _servers = (server(&dir, "one.sock", 11), server(&dir, "two.sock", 22));
    let config = |target: &str, more: &str| format!("{more}\n[[route]]\nto = \"unix:{{dir}}/{target}.sock\"\n");
    let mut gate = Gate::start(folder, &config("one", ""));
    let url = format!("unix:{}", gate.path("public.sock").display());
    let mut load = oroshi();
    load.args(["bench", "-c", "8", "-d", "60s", "-n", "20000", "--format", "json", "--watch", "none", &url]);
    let load = load.stdout(std::process::Stdio::piped()).spawn().unwrap();
    for reload in 0..20 {
        let target = if reload % 2 == 0 { "two" } else { "one" };
        gate.reload(&config(target, ""));
        let expected = if reload % 2 == 0 { 22 } else { 11 };
        assert_eq!(gate.get("a", "/").body.len(), expected, "it is in force when it says so");
    }
    let output = load.wait_with_output().unwrap();
    let record: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(record["requests"]["completed"], 20_000, "{}", record["requests"]);
    assert_eq!(record["failures"], serde_json::json!({}), "{}", record["failures"]);
    assert_eq!(gate.status()["generation"], 21);

    // A mistake changes nothing, and is told with its line.
    fs::write(gate.path("gate.toml"), "[[route]]\nto = 'nobody'\nhots = 'a'\n").unwrap();
    gate.process.signal(Signal::HUP);
    let told = gate.process.until("not reloaded: gate.toml: line 3");
    assert!(told.contains("route[1].hots: there is no such key: did you mean `host`?"), "{told}");
    assert_eq!(gate.get("a", "/").status, 200);
}

#[test]
fn a_reload_opens_and_closes_addresses() {
    let folder = tempfile::tempdir().unwrap();
    let config = |public: &str| {
        format!(
            "threads = 2\n[listen]\npublic = [{public}]\nadmin = \"unix:{{dir}}/admin.sock\"\n\
             [[route]]\nanswer = {{ status = 200, body = \"x\" }}\n"
        )
    };
    let mut gate = Gate::start(folder, &config("\"unix:{dir}/a.sock\""));
    assert_eq!(gate.get_at("a.sock", "a", "/").status, 200);
    // A connection that is there stays, although nobody else gets one.
    let mut kept = UnixStream::connect(gate.path("a.sock")).unwrap();
    kept.set_read_timeout(Some(HANG)).unwrap();
    let mut ask = |close: &str| {
        write!(kept, "GET / HTTP/1.1\r\nHost: a\r\n{close}\r\n").unwrap();
        let mut bytes = [0; 512];
        let length = kept.read(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    };
    assert!(ask("").starts_with("HTTP/1.1 200 "));
    gate.reload(&config("\"unix:{dir}/a.sock\", \"unix:{dir}/b.sock\""));
    assert_eq!(gate.get_at("b.sock", "a", "/").status, 200);
    assert!(ask("").starts_with("HTTP/1.1 200 "));
    gate.reload(&config("\"unix:{dir}/b.sock\""));
    assert_eq!(gate.get_at("b.sock", "a", "/").status, 200);
    while UnixStream::connect(gate.path("a.sock")).is_ok() {
        std::thread::yield_now();
    }
    assert_eq!(fs::metadata(gate.path("admin.sock")).unwrap().permissions().mode() & 0o777, 0o600);
    gate.process.signal(Signal::TERM);
    assert_eq!(gate.process.ended().code(), Some(0));
    assert!(!gate.path("b.sock").exists() && !gate.path("admin.sock").exists(), "their files stay behind");
}

#[test]
fn one_host_cannot_take_all() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().to_owned();
    let listen = format!("unix:{}", dir.join("slow.sock").display());
    let _slow = Process::start(oroshi().args(["target", "--listen", &listen, "--stall-one-in", "1"]), "listening");
    let _fast = server(&dir, "fast.sock", 11);
    let gate = Gate::start(
        folder,
        "threads = 1\nlisten = { public = \"unix:{dir}/public.sock\", admin = \"unix:{dir}/admin.sock\" }\n\
         limits.per-host = 3\n\
         [[route]]\nhost = \"slow.example\"\nto = \"unix:{dir}/slow.sock\"\n[[route]]\nto = \"unix:{dir}/fast.sock\"\n",
    );
    let stuck: Vec<UnixStream> = (0..3)
        .map(|_| {
            let mut stream = UnixStream::connect(gate.path("public.sock")).unwrap();
            stream.write_all(b"GET / HTTP/1.1\r\nHost: slow.example\r\n\r\n").unwrap();
            stream
        })
        .collect();
    let answer = loop {
        // Until all three are under way.
        let mut stream = UnixStream::connect(gate.path("public.sock")).unwrap();
        stream.set_read_timeout(Some(std::time::Duration::from_millis(200))).unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: slow.example\r\nConnection: close\r\n\r\n").unwrap();
        let mut text = String::new();
        if stream.read_to_string(&mut text).is_ok() {
            break text;
        }
    };
    assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("Retry-After: 1"), "{answer}");
    assert_eq!(gate.get("fast.example", "/").status, 200, "others are served");
    drop(stuck);
}

/// Each has carried a request, and waits for the next.
#[test]
fn an_idle_connection_takes_little_memory() {
    const CONNECTIONS: usize = 5000;
    oroshi_net::ensure_descriptors(CONNECTIONS as u64 + 100).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().to_owned();
    let _server = server(&dir, "one.sock", 11);
    let gate = Gate::start(folder, "[[route]]\nto = \"unix:{dir}/one.sock\"\n");
    let resident = || {
        let status = fs::read_to_string(format!("/proc/{}/status", gate.process.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1024
    };
    let open = |count: usize| -> Vec<UnixStream> {
        let connect = |_| {
            let mut stream = UnixStream::connect(gate.path("public.sock")).unwrap();
            stream.set_read_timeout(Some(HANG)).unwrap();
            stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
            assert!(stream.read(&mut [0; 512]).unwrap() > 0);
            stream
        };
        (0..count).map(connect).collect()
    };
    let some = open(100);
    let before = resident();
    let all = open(CONNECTIONS);
    let each = resident().saturating_sub(before) / CONNECTIONS;
    assert!(each <= 4096, "{each} bytes for each connection");
    drop((some, all));
}

#[test]
fn the_log_tells_every_request_and_is_opened_anew() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().to_owned();
    let _server = server(&dir, "one.sock", 11);
    let config = "access-log = { file = \"{dir}/access.log\" }\n[[route]]\nname = \"app\"\n\
                  to = \"unix:{dir}/one.sock\"\n\
                  [[route]]\npath = \"/none\"\nto = \"unix:{dir}/none.sock\"\n";
    let mut gate = Gate::start(folder, config);
    for _ in 0..3 {
        assert_eq!(gate.get("a.example", "/x?y").status, 200);
    }
    assert_eq!(gate.get("a.example", "/none").status, 502);
    assert_eq!(gate.get("a.example", "/..").status, 400);
    let lines = |name: &str, count: usize| -> Vec<Value> {
        loop {
            let text = fs::read_to_string(dir.join(name)).unwrap_or_default();
            if text.lines().count() >= count {
                return text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
            }
            std::thread::yield_now();
        }
    };
    let told = lines("access.log", 5);
    assert_eq!(told.len(), 5);
    // Each thread writes its own lines, so those of several may come in another order.
    let line = told.iter().find(|line| line["target"] == "/x?y").unwrap();
    assert_eq!(line["host"], "a.example");
    assert_eq!((&line["target"], &line["status"], &line["bytes"]), (&"/x?y".into(), &200.into(), &11.into()));
    assert_eq!(
        (&line["route"], &line["upstream"]),
        (&"app".into(), &format!("unix:{}", dir.join("one.sock").display()).into())
    );
    let failures: Vec<&str> = told.iter().filter_map(|line| line["failure"].as_str()).collect();
    assert_eq!(failures.len(), 2, "{told:?}");
    assert!(failures.contains(&"connect") && failures.contains(&"bad-request"), "{failures:?}");
    fs::rename(dir.join("access.log"), dir.join("access.log.1")).unwrap();
    gate.reload(config);
    assert_eq!(gate.get("b.example", "/").status, 200);
    assert_eq!(lines("access.log", 1)[0]["host"], "b.example");
    gate.process.signal(Signal::TERM);
    assert_eq!(gate.process.ended().code(), Some(0));
}

#[test]
fn prometheus_reads_its_metrics() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().to_owned();
    let _server = server(&dir, "one.sock", 11);
    let gate = Gate::start(folder, "[[route]]\nname = \"app\"\nto = \"unix:{dir}/one.sock\"\n");
    assert_eq!(gate.get("a", "/").status, 200);
    let answer = gate.get_at("admin.sock", "a", "/metrics");
    assert_eq!(answer.field("Content-Type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    let mut names = std::collections::BTreeSet::new();
    for line in answer.body.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            assert!(names.insert(rest.split(' ').next().unwrap().to_owned()), "twice: {line}");
        } else if !line.starts_with('#') {
            let name = line.split(['{', ' ']).next().unwrap();
            let family = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
            assert!(names.contains(name) || names.contains(family), "{line}");
            line.rsplit(' ').next().unwrap().parse::<f64>().unwrap();
        }
    }
    assert!(answer.body.contains("oroshi_gate_requests_total{route=\"app\",status=\"2xx\"} 1\n"), "{}", answer.body);
    assert!(answer.body.contains("oroshi_gate_target_connects_total{target=\"unix:"), "{}", answer.body);
    for (target, status) in [("/purge", 405), ("/none", 404), ("/explain?hots=a", 400), ("/explain?host=..", 400)] {
        assert_eq!(gate.get_at("admin.sock", "a", target).status, status, "{target}");
    }
    // A page in a browser on this machine may ask for nothing.
    let mut stream = UnixStream::connect(gate.path("admin.sock")).unwrap();
    write!(stream, "POST /purge?all=1 HTTP/1.1\r\nHost: a\r\nOrigin: http://evil.example\r\nConnection: close\r\n\r\n")
        .unwrap();
    assert_eq!(Answer::read(stream).status, 403);
    // What is for operators is not there for clients.
    assert_eq!(gate.get("a", "/metrics").body.len(), 11);
}

#[test]
fn a_second_signal_ends_it_at_once_and_all_is_told() {
    const REQUESTS: usize = 4;
    for _ in 0..3 {
        let folder = tempfile::tempdir().unwrap();
        let listen = format!("unix:{}/never.sock", folder.path().display());
        let _never = Process::start(oroshi().args(["target", "--listen", &listen, "--stall-one-in", "1"]), "listening");
        let config =
            "drain = \"1h\"\naccess-log = { file = \"{dir}/access.log\" }\n[[route]]\nto = \"unix:{dir}/never.sock\"\n";
        let mut gate = Gate::start(folder, config);
        let waiting: Vec<UnixStream> = (0..REQUESTS)
            .map(|_| {
                let mut stream = UnixStream::connect(gate.path("public.sock")).unwrap();
                stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
                stream
            })
            .collect();
        let never = gate.path("never.sock").display().to_string();
        let under_way = |status: &Value| {
            let targets = status["targets"].as_array().unwrap().iter();
            targets
                .filter(|target| target["target"] == format!("unix:{never}"))
                .map(|target| target["open"].as_u64().unwrap())
                .sum::<u64>()
        };
        while under_way(&gate.status()) < REQUESTS as u64 {
            std::thread::yield_now();
        }
        gate.process.signal(Signal::TERM);
        while UnixStream::connect(gate.path("public.sock")).is_ok() {
            std::thread::yield_now();
        }
        gate.process.signal(Signal::TERM);
        assert_eq!(gate.process.ended().code(), Some(0), "{:?}", gate.process.said);
        let told = fs::read_to_string(gate.path("access.log")).unwrap();
        assert_eq!(told.lines().filter(|line| line.contains("\"host\":\"a\"")).count(), REQUESTS, "{told}");
        drop(waiting);
    }
}

#[test]
fn a_restart_takes_both_addresses_over() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    fs::write(
        dir.join("gate.toml"),
        "[listen]\npublic = \"unix:public.sock\"\nadmin = \"unix:admin.sock\"\n[[route]]\n\
         answer = { status = 200, body = \"x\" }\n",
    )
    .unwrap();
    let start = |mode: &str| {
        let mut command = oroshi();
        command.args([
            "start",
            "--path",
            "public.sock",
            "--path",
            "admin.sock",
            "--path-mode",
            mode,
            "--ready",
            "notify",
        ]);
        command.args(["--pid-file", "gate.pid", "--"]).arg(env!("CARGO_BIN_EXE_oroshi")).args([
            "gate",
            "--config",
            "gate.toml",
        ]);
        command.current_dir(dir);
        command
    };
    let mut master = Process::start(&mut start("0600"), "serving");
    let ask = |socket: &str, target: &str| {
        let mut stream = UnixStream::connect(dir.join(socket)).unwrap();
        stream.set_read_timeout(Some(HANG)).unwrap();
        write!(stream, "GET {target} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
        Answer::read(stream)
    };
    let process = || {
        let status: Value = serde_json::from_str(&ask("admin.sock", "/status").body).unwrap();
        status["pid"].as_u64().unwrap()
    };
    let first = process();
    let restarted = oroshi().args(["start", "--restart", "--wait", "--pid-file", "gate.pid"]).current_dir(dir).output();
    let restarted = gate::Ran::of(restarted.unwrap());
    assert_eq!(restarted.code, Some(0), "{}{}", restarted.out, restarted.err);
    assert_eq!(ask("public.sock", "/").body, "x");
    assert_ne!(process(), first);
    master.signal(Signal::TERM);
    assert_eq!(master.ended().code(), Some(0));
    // One that all on this machine may write to is refused.
    let mut open = Process::start(&mut start("0666"), "would let others purge and look: expected 0600");
    open.signal(Signal::TERM);
    open.ended();
}

#[test]
fn operators_ask_by_this_machine_s_names() {
    let folder = tempfile::tempdir().unwrap();
    let config = format!("listen = {{ public = \"unix:{{dir}}/public.sock\", admin = \"127.0.0.1:0\" }}\n{LOOKUP}");
    if !sqlite("operators_ask_by_this_machine_s_names", &folder.path().join("domains.db"), DOMAINS) {
        return;
    }
    let mut gate = Gate::start(folder, &config);
    gate.process.said.retain(|line| line.contains("admin: "));
    let port = gate::port(&gate.process.said[0]);
    let own = format!("127.0.0.1:{port}");
    for host in ["localhost", "LOCALHOST:80", "[::1]", &own] {
        assert_eq!(gate::tcp(port, host, "/status").status, 200, "{host}");
    }
    for host in ["evil.example", "localhost.evil.example", "10.0.0.1", "[::2]"] {
        let refused = gate::tcp(port, host, "/status");
        assert_eq!(refused.status, 403, "{host}");
        assert!(refused.body.contains("expected localhost or a loopback address in Host"), "{}", refused.body);
    }
    let asked = |target: &str| gate::tcp(port, "localhost", target);
    assert_eq!(asked("/explain?host=a.example&key=a%00b").status, 400);
    let purge = |field: &str| {
        let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_read_timeout(Some(HANG)).unwrap();
        let target = "/purge?all=1&everywhere=1";
        write!(stream, "POST {target} HTTP/1.1\r\nHost: localhost\r\n{field}Connection: close\r\n\r\n").unwrap();
        Answer::read(stream)
    };
    let refused = purge("");
    assert!(refused.status == 400 && refused.body.contains("goes with key=... alone"), "{}", refused.body);
    for page in ["Origin: http://localhost\r\n", "Sec-Fetch-Site: cross-site\r\n", "Sec-Fetch-Site: same-site\r\n"] {
        assert_eq!(purge(page).status, 403, "{page}");
    }
}

#[test]
fn a_redirect_by_host_needs_one() {
    let folder = tempfile::tempdir().unwrap();
    let gate = Gate::start(folder, "[[route]]\nredirect = { to = \"https://{host}{target}\" }\n");
    for (request, status, place) in [
        ("GET /x?y HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n", 302, Some("https://a.example/x?y")),
        ("GET /x?y HTTP/1.0\r\n\r\n", 400, None),
    ] {
        let mut stream = UnixStream::connect(gate.path("public.sock")).unwrap();
        stream.set_read_timeout(Some(HANG)).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let answer = Answer::read(stream);
        assert_eq!((answer.status, answer.field("Location")), (status, place), "{request}");
    }
}

#[test]
fn a_key_that_is_there_twice_is_none() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    let _server = server(dir, "one.sock", 11);
    let domains = format!("{DOMAINS}; INSERT INTO domain VALUES ('a', 'unix:{}/one.sock');", dir.display());
    if !sqlite("a_key_that_is_there_twice_is_none", &dir.join("domains.db"), &domains) {
        return;
    }
    let gate =
        Gate::start(folder, &LOOKUP.replace("[lookup.domains]\n", "[lookup.domains]\nkey = \"header X-Tenant\"\n"));
    for (fields, status) in [("X-Tenant: a\r\n", 200), ("X-Tenant: a\r\nX-Tenant: a\r\n", 503), ("", 503)] {
        let mut stream = UnixStream::connect(gate.path("public.sock")).unwrap();
        stream.set_read_timeout(Some(HANG)).unwrap();
        write!(stream, "GET / HTTP/1.1\r\nHost: a\r\n{fields}Connection: close\r\n\r\n").unwrap();
        assert_eq!(Answer::read(stream).status, status, "{fields}");
    }
}
