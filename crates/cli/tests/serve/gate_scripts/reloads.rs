//! Scripts that are loaded anew while others are at work, and their limits.

use super::*;

#[test]
fn a_reload_under_load_fails_nothing_and_mixes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().to_owned();
    for name in ["one", "two"] {
        echo(&dir, name);
    }
    let script = |version: usize| {
        let server = if version.is_multiple_of(2) { "one" } else { "two" };
        format!(
            r#"
local version
function init() gate.sleep(0.002) version = "{version}" end
function on_request(request) request.headers["X-Version"] = version gate.sleep(0.0005) end
function on_route(request) return "unix:{}/{server}.sock" end
function on_response(request, response)
  gate.sleep(0.0005)
  response.headers["X-Version"] = version
  gate.cache.incr("answers", 1)
end
"#,
            dir.display()
        )
    };
    const CONFIG: &str = "[script.s]\nfile = \"route.lua\"\nallow = [\"unix:{dir}/\"]\n[[route]]\nscript = \"s\"\n";
    fs::write(dir.join("route.lua"), script(0)).unwrap();
    let mut gate = Gate::start(folder, CONFIG);
    let over = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..4)
        .map(|_| {
            let (over, path) = (Arc::clone(&over), gate.path("public.sock"));
            thread::spawn(move || {
                let mut count = 0;
                while !over.load(Ordering::Relaxed) {
                    let mut stream = UnixStream::connect(&path).unwrap();
                    stream.set_read_timeout(Some(HANG)).unwrap();
                    stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
                    let answer = Answer::read(stream);
                    assert_eq!(answer.status, 200, "{answer:?}");
                    let version = answer.field("X-Version").unwrap();
                    assert!(answer.body.contains(&format!("\r\nX-Version: {version}\r\n")), "a mix: {answer:?}");
                    let server = if version.parse::<usize>().unwrap() % 2 == 0 { "one\n" } else { "two\n" };
                    assert!(answer.body.starts_with(server), "a mix: {answer:?}");
                    count += 1;
                }
                count
            })
        })
        .collect();
    for version in 1..=20 {
        fs::write(dir.join("route.lua"), script(version)).unwrap();
        gate.reload(CONFIG);
        assert_eq!(gate.get("a", "/").field("X-Version"), Some(&*version.to_string()), "in force when it says so");
    }
    // Those that do not come up: the one before stays.
    for (broken, told) in [
        ("function on_route(", "route.lua:1: "),
        ("function on_route() end\nfunction init()\n  error('no start')\nend", "route.lua:3: no start"),
        ("function on_route() end\nfunction init()\n  while true do end\nend", "route.lua:3: "),
        ("function on_route() end\nerror('at once')", "route.lua:2: at once"),
    ] {
        fs::write(dir.join("route.lua"), broken).unwrap();
        gate.process.signal(Signal::HUP);
        let line = gate.process.until("not reloaded: ");
        assert!(line.contains(told), "{told}: {line}");
        assert_eq!(gate.get("a", "/").field("X-Version"), Some("20"));
    }
    over.store(true, Ordering::Relaxed);
    let count: usize = clients.into_iter().map(|client| client.join().unwrap()).sum();
    assert!(count > 0);
    let status = gate.status();
    assert_eq!(status["generation"], 21);
    // Pools and what is counted outlive reloads.
    let calls = status["scripts"]["s"]["hooks"]["on_response"]["calls"].as_u64().unwrap();
    assert_eq!(calls, (count + 24) as u64);
    let connects: u64 =
        status["targets"].as_array().unwrap().iter().map(|target| target["connects"].as_u64().unwrap()).sum();
    assert!(connects < calls / 2 || calls < 100, "{connects} connections for {calls} requests");
}

#[test]
fn values_in_common_outlive_reloads() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().to_owned();
    let script = "function on_request() return gate.answer(200, tostring(gate.cache.incr(\"n\", 1))) end";
    fs::write(dir.join("route.lua"), script).unwrap();
    const CONFIG: &str = "[script.s]\nfile = \"route.lua\"\n[[route]]\nscript = \"s\"\n";
    let mut gate = Gate::start(folder, CONFIG);
    for n in 1..=10 {
        assert_eq!(gate.get("a", "/").body, n.to_string(), "one count for all threads");
        if n % 3 == 0 {
            gate.reload(CONFIG);
        }
    }
}

#[test]
fn a_reload_that_fails_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().to_owned();
    let test = "a_reload_that_fails_changes_nothing";
    let rows = format!(
        "CREATE TABLE t (k TEXT PRIMARY KEY, host TEXT); INSERT INTO t VALUES ('a', 'unix:{}/one.sock')",
        dir.display()
    );
    if !gate::sqlite(test, &dir.join("t.db"), &rows) {
        return;
    }
    echo(&dir, "one");
    fs::write(dir.join("route.lua"), "function on_route() end function init() error('never') end").unwrap();
    const LOOKUP: &str = "[sql.db]\nurl = \"sqlite:{dir}/t.db\"\n[lookup.t]\nallow = [\"unix:{dir}/\"]\n\
                          memory = \"off\"\n\
                          sql = { store = \"db\", query = \"SELECT host FROM t WHERE k = ?\" }\n[[route]]\n\
                          lookup = \"t\"\n";
    let mut gate = Gate::start(folder, LOOKUP);
    assert_eq!(gate.get("a", "/").status, 200);
    let mut fails = |config: &str, told: &str| {
        fs::write(gate.path("gate.toml"), config.replace("{dir}", dir.to_str().unwrap())).unwrap();
        gate.process.signal(Signal::HUP);
        let line = gate.process.until("not reloaded: ");
        assert!(line.contains(told), "{line}");
        // The store is asked for each request, as nothing is kept in memory.
        assert_eq!(gate.get("a", "/").status, 200, "{told}");
        let status = gate.status();
        assert_eq!(status["stores"].as_object().unwrap().keys().collect::<Vec<_>>(), ["db"], "{told}");
        assert_eq!(status["generation"], 1);
    };
    let listen = "listen = { public = [\"unix:{dir}/public.sock\", \"unix:{dir}/more.sock\"], admin = \
                  \"unix:{dir}/admin.sock\" }\n";
    // Without the store, with another one, and with another address.
    let other =
        "[sql.other]\nurl = \"sqlite:{dir}/other.db\"\n[script.s]\nfile = \"route.lua\"\n[[route]]\nscript = \"s\"\n";
    fails(&format!("threads = 2\n{listen}{other}"), "script `s`: init: ");
    fails(
        &format!("threads = 2\ncpus = \"0\"\n{listen}{LOOKUP}"),
        "the CPUs that threads are pinned to change from none to 0",
    );
    fails(&format!("threads = 3\n{listen}{LOOKUP}"), "the number of threads changes from 2 to 3");
    assert!(UnixStream::connect(dir.join("more.sock")).is_err(), "an address that was opened for nothing");
}

#[test]
fn a_reload_that_fails_has_asked_no_other_store_for_those_who_are_served() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().to_owned();
    let test = "a_reload_that_fails_has_asked_no_other_store_for_those_who_are_served";
    let table = "CREATE TABLE t (k TEXT PRIMARY KEY, host TEXT)";
    let rows = |host: &str| format!("{table}; INSERT INTO t VALUES ('{host}', 'unix:{}/one.sock')", dir.display());
    if !gate::sqlite(test, &dir.join("a.db"), &rows("a")) || !gate::sqlite(test, &dir.join("b.db"), &rows("b")) {
        return;
    }
    echo(&dir, "one");
    // What is asked in `init` is what the new plan would ask. It fails once a request of the old one was answered.
    let script = |first: &str| {
        format!(
            "function on_request() if {first} then return gate.answer(200, tostring(gate.cache.get('count'))) end end\n\
             function init()\n  if {first} then return end\n\
             gate.cache.set('count', gate.sql('db'):value(\"SELECT count(*) FROM t WHERE k = 'b'\"))\n\
             while not gate.cache.get('asked') do gate.sleep(0.01) end\n  error('never')\nend\n"
        )
    };
    const CONFIG: &str = "[sql.db]\nurl = \"sqlite:{dir}/a.db\"\n[lookup.t]\nallow = [\"unix:{dir}/\"]\n\
                          memory = { ttl = \"1h\", negative-ttl = \"1h\" }\n\
                          sql = { store = \"db\", query = \"SELECT host FROM t WHERE k = ?\" }\n\
                          [script.s]\nfile = \"route.lua\"\nwall = \"20s\"\ninstructions = 100000000\n\
                          [[route]]\npath = \"/count\"\nscript = \"s\"\n\
                          [[route]]\npath = \"/asked\"\nscript = \"s\"\n[[route]]\nlookup = \"t\"\n";
    let first = script("true").replace(
        "function on_request()",
        "function on_request(r) if r.path == '/asked' then gate.cache.set('asked', true) end",
    );
    fs::write(dir.join("route.lua"), first).unwrap();
    let mut gate = Gate::start(folder, CONFIG);
    let listen = "threads = 2\nlisten = { public = \"unix:{dir}/public.sock\", admin = \"unix:{dir}/admin.sock\" }\n";
    let other = format!("{listen}{}", CONFIG.replace("a.db", "b.db")).replace("{dir}", dir.to_str().unwrap());
    fs::write(dir.join("route.lua"), script("false")).unwrap();
    fs::write(gate.path("gate.toml"), other).unwrap();
    gate.process.signal(Signal::HUP);
    until("init, with its store", || gate.get("x", "/count").body == "1");
    assert_eq!((gate.get("a", "/").status, gate.get("b", "/").status), (200, 503), "as the plan in force has it");
    gate.get("x", "/asked");
    let line = gate.process.until("not reloaded: ");
    assert!(line.contains("route.lua") && line.contains("never"), "{line}");
    assert_eq!((gate.get("a", "/").status, gate.get("b", "/").status), (200, 503));
}

#[test]
fn a_gateway_whose_script_fails_does_not_start() {
    let folder = tempfile::tempdir().unwrap();
    let script = "function on_route() end\nfunction init()\n  error('no start')\nend\n";
    fs::write(folder.path().join("route.lua"), script).unwrap();
    let config =
        "listen = { public = \"unix:public.sock\" }\n[script.s]\nfile = \"route.lua\"\n[[route]]\nscript = \"s\"\n";
    fs::write(folder.path().join("gate.toml"), config).unwrap();
    let ran = gate::Ran::of(oroshi().arg("gate").current_dir(folder.path()).output().unwrap());
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.err.contains("script `s`: init: route.lua:3: no start"), "{ran:?}");
    assert!(!folder.path().join("public.sock").exists());
}

#[test]
fn the_time_to_finish_is_that_of_the_plan_in_force() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().to_owned();
    let listen = format!("unix:{}", dir.join("slow.sock").display());
    let _slow = Process::start(oroshi().args(["target", "--listen", &listen, "--stall-one-in", "1"]), "listening");
    let config = |drain: &str| {
        let listen = "listen = { public = \"unix:{dir}/public.sock\", admin = \"unix:{dir}/admin.sock\" }";
        format!("threads = 1\ndrain = \"{drain}\"\n{listen}\n[[route]]\nto = \"unix:{{dir}}/slow.sock\"\n")
    };
    let mut gate = Gate::start(folder, &config("1h"));
    let mut stuck = UnixStream::connect(gate.path("public.sock")).unwrap();
    stuck.set_read_timeout(Some(HANG)).unwrap();
    stuck.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    until("the request", || gate.status()["clients"]["requests"] == 1);
    gate.reload(&config("50ms"));
    gate.process.signal(Signal::TERM);
    assert_eq!(gate.process.ended().code(), Some(0));
    assert_eq!(stuck.read_to_string(&mut String::new()).unwrap_or(0), 0, "it was cut off");
}

#[test]
fn what_a_script_is_told_late_is_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().to_owned();
    let script = r#"
function on_request(request)
  if request.path == "/go" then gate.cache.set("go", true) end
  return gate.answer(200, tostring(gate.cache.get("told")))
end
function on_log(request)
  while not gate.cache.get("go") do gate.sleep(0.02) end
  gate.cache.incr("told", 1)
end
"#;
    fs::write(dir.join("route.lua"), script).unwrap();
    let gate = Gate::start(
        folder,
        "threads = 1\nlisten = { public = \"unix:{dir}/public.sock\", admin = \"unix:{dir}/admin.sock\" }\n\
         [script.s]\nfile = \"route.lua\"\nwall = \"60s\"\ninstructions = 100000000\n[[route]]\nscript = \"s\"\n",
    );
    let url = format!("unix:{}", gate.path("public.sock").display());
    let load = oroshi().args(["bench", "-c", "2", "-n", "3000", "--format", "json", &url]).output().unwrap();
    let record: Value = serde_json::from_slice(&load.stdout).unwrap();
    assert_eq!(record["requests"]["completed"], 3000, "{}", record["failures"]);
    let dropped = || gate.status()["scripts"]["s"]["logs_dropped"].as_u64().unwrap();
    until("the last requests to end", || dropped() == 2000);
    gate.get("a", "/go");
    until("those that waited", || gate.get("a", "/").body.parse::<f64>().is_ok_and(|told| told >= 1000.0));
}

/// A pattern that would try its ways for minutes: a 500 for its own request, and nobody else waits for it.
#[test]
fn a_pattern_that_would_run_for_ever_ends_its_request_alone() {
    let folder = tempfile::tempdir().unwrap();
    let script = "function on_request(request)
  if request.path == '/evil' then
    local found = string.find(('a'):rep(40), '.-.-.-.-.-.-.-.-b')
  end
  return gate.answer(200, 'fine')
end";
    fs::write(folder.path().join("route.lua"), script).unwrap();
    let config = "threads = 1\nlisten = { public = \"unix:{dir}/public.sock\", admin = \"unix:{dir}/admin.sock\" }
[script.s]
[[route]]
script = \"s\"
";
    let gate = Gate::start(folder, &configured(config));
    for count in 1..=3 {
        assert_eq!(gate.get("a", "/evil").status, 500);
        assert_eq!(gate.get("a", "/fine").body, "fine");
        let line = &told(gate.folder.path(), 2 * count)[2 * count - 2];
        assert_eq!(line["failure"], "script");
        let detail = line["detail"].as_str().unwrap();
        assert!(detail.ends_with("route.lua:3: on_request() took more than 1000000 instructions"), "{detail}");
    }
}
