//! Active health checks of `oroshi gate`: backends that turn bad and good, stall, go and come back; one check for each,
//! however many threads serve; reloads; HTTP/2 and TLS.

use std::io::Write;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering::SeqCst};
use std::thread;

use crate::gate::{Gate, Ran, oroshi, port, server};
use oroshi_testkit::nginx::Setup;
use oroshi_testkit::{Process, wait_until};
use serde_json::Value;

/// A backend whose health a test chooses.
#[derive(Default)]
struct Backend {
    /// What `/health` answers; 0: nothing at all.
    health: AtomicU16,
    checks: AtomicU64,
    /// The last check, as it came.
    asked: std::sync::Mutex<String>,
}

impl Backend {
    fn start(folder: &Path, name: &'static str) -> Arc<Backend> {
        let listener = UnixListener::bind(folder.join(format!("{name}.sock"))).unwrap();
        let backend = Arc::new(Backend { health: 200.into(), ..Backend::default() });
        let own = Arc::clone(&backend);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let own = Arc::clone(&own);
                thread::spawn(move || own.serve(stream, name));
            }
        });
        backend
    }

    fn serve(&self, mut stream: UnixStream, name: &str) {
        let (mut head, mut room) = (Vec::new(), [0; 4096]);
        while !head.ends_with(b"\r\n\r\n") {
            match oroshi_testkit::http::read(&mut stream, &mut room) {
                Ok(count) if count > 0 => head.extend_from_slice(&room[..count]),
                _ => return,
            }
        }
        let head = String::from_utf8(head).unwrap();
        let mut status = 200;
        if head.starts_with("GET /health?from=gate ") {
            self.checks.fetch_add(1, SeqCst);
            *self.asked.lock().unwrap() = head;
            status = self.health.load(SeqCst);
            if status == 0 {
                // Until the gateway gives up.
                let _ = oroshi_testkit::http::read(&mut stream, &mut room);
                return;
            }
        }
        let answer =
            format!("HTTP/1.1 {status} X\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{name}", name.len());
        let _ = stream.write_all(answer.as_bytes());
    }
}

const CONFIG: &str = r#"
threads = 4
[listen]
public = "unix:{dir}/public.sock"
admin = "unix:{dir}/admin.sock"
[upstream.app]
targets = ["unix:{dir}/one.sock", "unix:{dir}/two.sock"]
[upstream.app.health]
path = "/health?from=gate"
host = "app.test"
interval = "20ms"
timeout = "60s"
statuses = [200, "300-399"]
rise = 2
fall = 2
[[route]]
to = "app"
"#;

/// The configuration without its checks.
fn without_checks() -> String {
    let (before, rest) = CONFIG.split_once("[upstream.app.health]").unwrap();
    format!("{before}[[route]]{}", rest.split_once("[[route]]").unwrap().1)
}

/// The state of the target with this socket.
fn health(gate: &Gate, name: &str) -> Value {
    let status = gate.status();
    let mut targets = status["targets"].as_array().unwrap().iter();
    let is_it = |target: &str| target == name || target.ends_with(&format!("/{name}"));
    let found = targets.find(|target| target["target"].as_str().is_some_and(is_it));
    found.unwrap_or_else(|| panic!("{name}: {status:#}"))["health"].clone()
}

fn until_state(gate: &Gate, name: &str, state: &str) {
    wait_until(&format!("{name} is {state}"), || health(gate, name)["state"] == state);
}

/// The backends that answer so many requests.
fn answers(gate: &Gate, count: usize) -> Vec<String> {
    let mut bodies: Vec<String> = (0..count).map(|_| gate.get("a.test", "/").body).collect();
    bodies.sort();
    bodies.dedup();
    bodies
}

#[test]
fn requests_go_where_checks_pass() {
    let folder = tempfile::tempdir().unwrap();
    let (one, two) = (Backend::start(folder.path(), "one"), Backend::start(folder.path(), "two"));
    let mut gate = Gate::start(folder, CONFIG);
    wait_until("checks", || one.checks.load(SeqCst) > 2 && two.checks.load(SeqCst) > 2);
    assert_eq!(answers(&gate, 32), ["one", "two"]);
    let asked = one.asked.lock().unwrap().to_ascii_lowercase();
    assert!(asked.contains("\r\nhost: app.test\r\n") && asked.contains("user-agent: oroshi-gate-health"), "{asked}");
    // Bad, with a status that is not expected; and good again, with another one that is.
    one.health.store(503, SeqCst);
    until_state(&gate, "one.sock", "down");
    assert_eq!(answers(&gate, 32), ["two"]);
    assert_eq!(health(&gate, "one.sock")["last_failure"], "status 503");
    gate.process.until("is left out");
    let metrics = gate.get_at("admin.sock", "a", "/metrics").body;
    let up = |name: &str| {
        let found = metrics.lines().find(|line| line.starts_with("oroshi_gate_target_up{") && line.contains(name));
        found.unwrap_or_else(|| panic!("{metrics}")).rsplit(' ').next().unwrap().to_owned()
    };
    assert_eq!((up("one.sock"), up("two.sock")), ("0".to_owned(), "1".to_owned()));
    one.health.store(302, SeqCst);
    until_state(&gate, "one.sock", "up");
    assert_eq!(answers(&gate, 32), ["one", "two"]);
    // The last one is better than none.
    one.health.store(500, SeqCst);
    two.health.store(404, SeqCst);
    until_state(&gate, "one.sock", "down");
    until_state(&gate, "two.sock", "down");
    assert_eq!(answers(&gate, 32), ["one", "two"]);
    two.health.store(200, SeqCst);
    until_state(&gate, "two.sock", "up");
    // A reload keeps what is known, also with other settings; without checks, targets take requests.
    let before = health(&gate, "one.sock")["failed"].as_u64().unwrap();
    gate.reload(CONFIG);
    assert!(health(&gate, "one.sock")["failed"].as_u64().unwrap() >= before);
    assert_eq!(answers(&gate, 32), ["two"]);
    gate.reload(&CONFIG.replace("rise = 2", "rise = 1000"));
    assert_eq!(answers(&gate, 32), ["two"]);
    gate.reload(&without_checks());
    assert_eq!(answers(&gate, 32), ["one", "two"]);
    assert_eq!(health(&gate, "one.sock"), Value::Null);
}

#[test]
fn a_backend_gets_one_check_per_interval_however_many_threads_serve() {
    let folder = tempfile::tempdir().unwrap();
    let (one, two) = (Backend::start(folder.path(), "one"), Backend::start(folder.path(), "two"));
    let config = CONFIG.replace("20ms", "1h");
    let mut gate = Gate::start(folder, &config);
    for name in ["one.sock", "two.sock"] {
        wait_until("the first check", || health(&gate, name)["passed"] == 1);
    }
    assert_eq!(answers(&gate, 64), ["one", "two"], "all threads serve");
    gate.reload(&config);
    assert_eq!(answers(&gate, 64), ["one", "two"]);
    assert_eq!((one.checks.load(SeqCst), two.checks.load(SeqCst)), (1, 1));
}

#[test]
fn backends_that_stall_or_are_gone_are_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let (one, _two) = (Backend::start(folder.path(), "one"), Backend::start(folder.path(), "two"));
    let config = CONFIG.replace("timeout = \"60s\"", "timeout = \"1s\"");
    let config = config.replace("\"unix:{dir}/two.sock\"", "\"unix:{dir}/two.sock\", \"unix:{dir}/three.sock\"");
    one.health.store(0, SeqCst);
    let gate = Gate::start(folder, &config);
    until_state(&gate, "one.sock", "down");
    until_state(&gate, "three.sock", "down");
    assert_eq!(answers(&gate, 32), ["two"]);
    let why = |name: &str| health(&gate, name)["last_failure"].as_str().unwrap().to_owned();
    assert!(why("one.sock").contains("timeout") && why("three.sock").contains("connect"), "{}", why("three.sock"));
    let _three = Backend::start(gate.folder.path(), "three");
    until_state(&gate, "three.sock", "up");
    assert_eq!(answers(&gate, 32), ["three", "two"]);
}

#[test]
fn servers_of_http2_and_of_tls_are_checked_in_their_protocol() {
    let test = "servers_of_http2_and_of_tls_are_checked_in_their_protocol";
    let folder = tempfile::tempdir().unwrap();
    let _app = server(folder.path(), "app.sock", 3);
    let mut command = oroshi();
    let app = Process::start(command.args(["target", "--listen", "127.0.0.1:0", "--size", "3"]), "listening");
    let port = port(app.said.iter().find(|line| line.contains("http://")).unwrap());
    let gate = Gate::start(
        folder,
        &format!(
            r#"
            [upstream.app]
            targets = ["h2c+unix:{{dir}}/app.sock", "h2c://127.0.0.1:{port}", "127.0.0.1:{port}"]
            health = {{ interval = "10ms", timeout = "60s" }}
            [[route]]
            to = "app"
            "#
        ),
    );
    for name in ["app.sock", &format!("h2c://127.0.0.1:{port}"), &format!("127.0.0.1:{port}")] {
        gate.get("a.test", "/");
        wait_until("checks", || health(&gate, name)["passed"].as_u64().is_some_and(|count| count > 3));
        assert_eq!(health(&gate, name)["failed"], 0, "{name}");
    }
    let http = "server { listen @TLS@ ssl http2; ssl_certificate @CERTIFICATE@; ssl_certificate_key @KEY@;
        location / { return 200 '$server_protocol'; } }";
    let Some(nginx) = (Setup { http, ..Setup::default() }).start(test) else { return };
    let (folder, port) = (tempfile::tempdir().unwrap(), nginx.tls.port());
    std::fs::copy(nginx.identity.ca(), folder.path().join("ca.pem")).unwrap();
    let group = |name: &str, tls: &str| {
        format!(
            "[upstream.{name}]\ntargets = [\"https://localhost:{port}\"]\ntls = {{ {tls} }}\n\
             health = {{ interval = \"10ms\", timeout = \"60s\" }}\n[[route]]\npath = \"/{name}\"\nto = \"{name}\"\n"
        )
    };
    let config = [
        group("both", "ca = \"ca.pem\""),
        group("two", "ca = \"ca.pem\", protocol = \"h2\""),
        group("one", "ca = \"ca.pem\", protocol = \"http/1.1\""),
        group("strange", ""),
    ];
    let gate = Gate::start(folder, &config.concat());
    let of = |name: &str| {
        let status = gate.status();
        let targets = status["targets"].as_array().unwrap();
        targets.iter().find(|target| target["of"] == name).unwrap()["health"].clone()
    };
    for name in ["both", "two", "one"] {
        wait_until("checks", || of(name)["passed"].as_u64().is_some_and(|count| count > 3));
        assert_eq!(of(name)["failed"], 0, "{name}");
    }
    // This machine's authorities have not signed the certificate.
    wait_until("strange is down", || of("strange")["state"] == "down");
}

#[test]
fn mistakes_of_checks_name_their_key() {
    for (given, part) in [
        ("path = \"health\"", "line 3: upstream.a.health.path: \"health\" is no path"),
        ("host = \"a b\"", "line 3: upstream.a.health.host: \"a b\" is not a host"),
        ("interval = \"0s\"", "line 3: upstream.a.health.interval: 0 leaves no time"),
        ("timeout = \"0s\"", "line 3: upstream.a.health.timeout: 0 leaves no time"),
        ("jitter = 2", "line 3: upstream.a.health.jitter: 2 is no share"),
        ("rise = 0", "line 3: upstream.a.health.rise: 0 checks decide nothing"),
        ("statuses = [\"ok\"]", "line 3: upstream.a.health.statuses: `ok` is no status"),
        ("statuses = [\"399-200\"]", "line 3: upstream.a.health.statuses: expected statuses from 200 to 599"),
        ("statuses = []", "line 3: upstream.a.health.statuses: expected statuses"),
        ("paths = \"/\"", "did you mean `path`?"),
        ("}\nproxy-protocol = \"v1\"\nqueue = { ", "upstream.a.health.path: checks have no client"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let config = format!(
            "[upstream.a]\ntargets = ['a']\nhealth = {{ {given} }}\n[listen]\npublic = '127.0.0.1:0'\n\
             [[route]]\nto = 'a'\n"
        );
        std::fs::write(folder.path().join("gate.toml"), config).unwrap();
        let mut command = oroshi();
        let checked = Ran::of(command.args(["gate", "--check"]).current_dir(folder.path()).output().unwrap());
        assert!(checked.code == Some(2) && checked.err.contains(part), "{given}: {checked:?}");
    }
}
