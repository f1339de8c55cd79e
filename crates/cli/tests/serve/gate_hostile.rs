//! `oroshi gate` under hostile use: paths that are spelled oddly, rows and scripts that name the gateway itself, loops
//! over several gateways, queries that a database refuses, configurations that could not serve, heads that are too
//! large or none, clients that leave.

mod checks;
mod leaving;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Instant;

use crate::gate::{Answer, Gate, HANG, Process, Ran, oroshi, port, server};
use crate::peers;
use serde_json::Value;

const LOG: &str = "access-log = { file = \"{dir}/access.log\" }\n";

/// The lines of the access log, once there are so many.
#[track_caller]
fn told(dir: &Path, count: usize) -> Vec<Value> {
    let begun = Instant::now();
    loop {
        let text = fs::read_to_string(dir.join("access.log")).unwrap_or_default();
        if text.lines().count() >= count {
            return text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        }
        assert!(begun.elapsed() < HANG, "{count} lines: {text}");
        thread::sleep(std::time::Duration::from_millis(2));
    }
}

/// What comes back for these bytes, to the end of the connection.
fn raw(gate: &Gate, bytes: &[u8]) -> String {
    let mut stream = UnixStream::connect(gate.path("public.sock")).unwrap();
    stream.set_read_timeout(Some(HANG)).unwrap();
    stream.write_all(bytes).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

/// Checks a configuration that stands in this folder.
fn check(folder: &Path, config: &str) -> Ran {
    fs::write(folder.join("gate.toml"), config.replace("{dir}", folder.to_str().unwrap())).unwrap();
    Ran::of(oroshi().args(["gate", "--check"]).current_dir(folder).output().unwrap())
}

/// The ports of what a gateway listens on, in its order.
fn ports(gate: &Gate) -> Vec<u16> {
    gate.process.said.iter().filter(|line| line.contains("listening on http")).map(|line| port(line)).collect()
}

// Paths.

#[test]
fn a_path_rule_holds_for_every_spelling_of_its_path() {
    let folder = tempfile::tempdir().unwrap();
    let _app = server(folder.path(), "app.sock", 11);
    let config = "[[route]]\nto = \"unix:{dir}/app.sock\"\n[[route]]\npath = \"/admin\"\nanswer = { status = 403 }\n\
                  [[route]]\npath = \"/verw\u{e4}ltung\"\nanswer = { status = 403 }\n";
    let gate = Gate::start(folder, config);
    for path in [
        "/admin",
        "/admin/",
        "/admin/x",
        "/%61dmin",
        "//admin",
        "/x/../admin",
        "/./admin",
        "/x//../admin",
        // Parameters of segments.
        "/admin;x",
        "/admin;x/y",
        "/;/admin",
        "/x/..;/admin",
        "/x/..;a=b/admin",
        "/%2e;/admin",
        "/x/%2e%2e;/admin",
        "/admin%3bx",
        "/x/..%3b/admin",
        "/%61dmin;x",
        "/;a/;b/admin;c",
        "/admin;%2f..",
        "/.;/admin",
        // Other slashes.
        "/\\admin",
        "/x\\..\\admin",
        "/%5cadmin",
        "/%5Cadmin",
        "/x%5c..%5cadmin",
        "/x/..\\admin",
        "\\admin",
        "/admin\\x",
        "/x;\\..\\admin",
        // What ends a path once it is no escape any more.
        "/admin%3fx",
        "/admin%23x",
        // White space and control characters at the ends of a segment.
        "/admin%09",
        "/admin%0a",
        "/admin%0D%0a/x",
        "/admin%20",
        "/%20admin%7F",
        "/x/..%20/admin",
        "/%61dmin%0b;x",
        // What is not ASCII, escaped or not.
        "/verw\u{e4}ltung",
        "/verw%c3%a4ltung/x",
        "/verw%C3%a4ltung%20",
        // One server's segment is another's two.
        "/x%2fy/../admin",
        "/x/../admin//../y",
        "//admin/../x",
        "/admin/..",
        "/admin/../x",
        "/admin/..;/x",
    ] {
        let answer = gate.get("a", path);
        assert!([400, 403].contains(&answer.status), "{path}: {answer:?}");
    }
    for path in [
        "/",
        "/x",
        "/adminx",
        "/x/admin",
        "/x;admin",
        "/a%20b",
        "/a%2fb",
        "/x/../y",
        "/.well-known/x",
        "/x\\y",
        "/%3b",
        "/x%20/y%0a",
    ] {
        assert_eq!(gate.get("a", path).status, 200, "{path}");
    }
    // docs/gate.md says that these are others.
    for path in ["/ADMIN", "/%2561dmin", "/admin.", "/admin%2509", "/admin%0ax", "/x%0a/admin", "/admin%c2%a0"] {
        assert_eq!(gate.get("a", path).status, 200, "{path}");
    }
}

#[test]
fn a_field_that_is_there_twice_cannot_walk_around_a_rule() {
    let folder = tempfile::tempdir().unwrap();
    let _app = server(folder.path(), "app.sock", 11);
    let to = "to = \"unix:{dir}/app.sock\"\n";
    let config = format!(
        "[[route]]\nheader = {{ X-Role = \"user\" }}\n{to}[[route]]\nheader = {{ X-Debug = \"*\" }}\n\
         answer = {{ status = 403 }}\n\
         [[route]]\npath = \"/open\"\n{to}[[route]]\nheader = {{ X-Role = \"admin\" }}\nanswer = {{ status = 401 }}\n\
         [[route]]\nanswer = {{ status = 404 }}\n"
    );
    let gate = Gate::start(folder, &config);
    for (path, fields, status) in [
        ("/", "X-Role: user", 200),
        ("/", "X-Role: user\r\nx-role: user", 200),
        ("/", "X-Role: admin\r\nX-Role: admin", 401),
        ("/", "X-Role: guest\r\nX-Role: guest2", 404),
        ("/", "X-Debug: 1\r\nX-Debug: 2", 403),
        // The server behind may see another value than the rule.
        ("/", "X-Role: user\r\nX-Role: admin", 400),
        ("/", "X-Role: admin\r\nX-Role: user", 400),
        ("/", "X-Role: guest\r\nx-role: admin", 400),
        // A value is compared whole.
        ("/", "X-Role: user, admin", 404),
        // Where no value decides, several are fine.
        ("/open", "X-Role: admin\r\nX-Role: guest", 200),
        ("/", "Accept: a\r\nAccept: b", 404),
    ] {
        let answer =
            raw(&gate, format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{fields}\r\n\r\n").as_bytes());
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{path} {fields}: {answer}");
        assert!(status != 400 || answer.contains("is there more than once"), "{fields}: {answer}");
    }
}

#[test]
fn a_path_cannot_lead_out_of_what_is_put_in_front_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let _app = server(folder.path(), "app.sock", 11);
    let config = format!(
        "{LOG}[[route]]\nto = \"unix:{{dir}}/app.sock\"\nstrip-prefix = \"/api\"\nadd-prefix = \"/tenant-1\"\n"
    );
    let gate = Gate::start(folder, &config);
    for path in ["/api/../tenant-2", "/api/%2e%2e/tenant-2", "/%61pi/x/../../tenant-2", "/api/..;/tenant-2"] {
        assert_eq!(gate.get("a", path).status, 400, "{path}");
    }
    for path in ["/api/x", "/api/x/../y", "/x", "/api"] {
        assert_eq!(gate.get("a", path).status, 200, "{path}");
    }
    let lines = told(gate.folder.path(), 8);
    assert_eq!(lines.iter().filter(|line| line["failure"] == "bad-request").count(), 4, "{lines:#?}");
}

// The gateway itself.

#[test]
fn rows_and_scripts_that_name_the_gateway_itself_are_refused() {
    let database = peers::Sqlite::start();
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().to_owned();
    fs::write(dir.join("route.lua"), "function on_route(request) return request.headers['X-To'] end").unwrap();
    let config = format!(
        "threads = 2\n[listen]\npublic = [\"127.0.0.1:0\", \":0\", \"unix:{{dir}}/public.sock\"]\n\
         admin = [\"127.0.0.2:0\", \"unix:{{dir}}/admin.sock\"]\n\
         [access-log]\nfile = \"{{dir}}/access.log\"\n[sql.s]\nurl = \"{}\"\n\
         [lookup.l]\nallow = \"any\"\nmemory = \"off\"\nsql = {{ store = \"s\", query = \"SELECT host FROM domain \
         WHERE domain = ?\" }}\n\
         [script.s]\nfile = \"route.lua\"\nallow = \"any\"\n\
         [[route]]\nlookup = \"l\"\n[[route]]\npath = \"/scripted\"\nscript = \"s\"\n",
        database.url()
    );
    let gate = Gate::start(folder, &config);
    let [one, every, admin] = ports(&gate)[..] else { panic!("{:?}", gate.process.said) };
    std::os::unix::fs::symlink(dir.join("admin.sock"), dir.join("link.sock")).unwrap();
    let places = [
        format!("127.0.0.1:{one}"),
        format!("[::ffff:127.0.0.1]:{one}"),
        format!("0.0.0.0:{one}"),
        format!("localhost:{one}"),
        format!("127.0.0.1:{every}"),
        format!("127.8.8.8:{every}"),
        format!("[::1]:{every}"),
        format!("127.0.0.2:{admin}"),
        format!("unix:{}/public.sock", dir.display()),
        format!("unix:{}/admin.sock", dir.display()),
        format!("unix:{}/link.sock", dir.display()),
    ];
    for (number, place) in places.iter().enumerate() {
        peers::run(database.execute(&format!("INSERT INTO domain VALUES ('own-{number}.example', '{place}')")));
        // `/purge` is the operators'.
        let request = format!(
            "POST /purge?all=1 HTTP/1.1\r\nHost: own-{number}.example\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        );
        let answer = raw(&gate, request.as_bytes());
        assert!(answer.starts_with("HTTP/1.1 502 ") && !answer.contains("forgotten"), "{place}: {answer}");
        let request = format!("GET /scripted HTTP/1.1\r\nHost: a\r\nX-To: {place}\r\nConnection: close\r\n\r\n");
        let answer = raw(&gate, request.as_bytes());
        assert!(answer.starts_with("HTTP/1.1 502 "), "{place}: {answer}");
    }
    let lines = told(&dir, 2 * places.len());
    assert_eq!(lines.len(), 2 * places.len(), "none of them came in again: {lines:#?}");
    assert!(lines.iter().all(|line| line["failure"] == "own-address"), "{lines:#?}");
    assert!(lines[0]["detail"].as_str().unwrap().contains("this gateway itself listens"), "{}", lines[0]);
    let mut gate = gate;
    gate.process.until("where this gateway itself listens");
    // What else listens there is no matter.
    let _app = server(&dir, "app.sock", 11);
    peers::run(
        database.execute(&format!("INSERT INTO domain VALUES ('app.example', 'unix:{}/app.sock')", dir.display())),
    );
    assert_eq!(gate.get("app.example", "/").status, 200);
    // An address that a reload adds is the gateway's own from then on.
    let more = config.replace("admin = [", "admin = [\"unix:{dir}/more.sock\", ");
    peers::run(
        database.execute(&format!("INSERT INTO domain VALUES ('more.example', 'unix:{}/more.sock')", dir.display())),
    );
    gate.reload(&more);
    let answer = gate.get("more.example", "/status");
    assert_eq!(answer.status, 502, "{answer:?}");
}

#[test]
fn a_loop_over_several_gateways_ends() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let dirs = folders.each_ref().map(|folder| folder.path().to_owned());
    let [one, two] = folders;
    let to =
        |dir: &Path| format!("limits = {{ hops = 4 }}\n{LOG}[[route]]\nto = \"unix:{}/public.sock\"\n", dir.display());
    let (one, _two) = (Gate::start(one, &to(&dirs[1])), Gate::start(two, &to(&dirs[0])));
    // Nobody can have its name left out.
    let answer =
        raw(&one, b"GET / HTTP/1.1\r\nHost: a.example\r\nConnection: close, CDN-Loop\r\nCDN-Loop: other; v=1\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 508 ") && answer.contains("goes in circles"), "{answer}");
    let lines: Vec<Value> = [told(&dirs[0], 3), told(&dirs[1], 2)].concat();
    assert_eq!(lines.len(), 5, "{lines:#?}");
    assert_eq!(lines.iter().filter(|line| line["failure"] == "loop").count(), 1, "{lines:#?}");
    let mut one = one;
    one.process.until("has come through 4 gateways");
    // Others' gateways are not ours.
    let answer =
        raw(&one, b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nCDN-Loop: a, b, c, d, e; oroshi\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 508 "), "{answer}");
    assert_eq!([told(&dirs[0], 6), told(&dirs[1], 4)].concat().len(), 10);
}

#[test]
fn allow_holds_for_the_ports_that_stand_behind_a_place() {
    let database = peers::Sqlite::start();
    let folder = tempfile::tempdir().unwrap();
    let mut apps = ["11", "22"].map(|size| {
        let mut command = oroshi();
        Process::start(command.args(["target", "--listen", "127.0.0.1:0", "--size", size]), "listening")
    });
    let [open, shut] = apps.each_mut().map(|app| port(app.said.last().unwrap()));
    let config = format!(
        "[sql.s]\nurl = \"{}\"\n[lookup.l]\nallow = [\"127.0.0.0/8:{open}\"]\n\
         sql = {{ store = \"s\", query = \"SELECT host FROM domain WHERE domain = ?\" }}\n[[route]]\nlookup = \"l\"\n",
        database.url()
    );
    for (name, place) in [
        ("open", format!("127.0.0.1:{open}")),
        ("shut", format!("127.0.0.1:{shut}")),
        ("named-open", format!("localhost:{open}")),
        ("named-shut", format!("localhost:{shut}")),
    ] {
        peers::run(database.execute(&format!("INSERT INTO domain VALUES ('{name}.example', '{place}')")));
    }
    let gate = Gate::start(folder, &config);
    for (name, status) in [("open", 200), ("shut", 502), ("named-open", 200), ("named-shut", 502)] {
        assert_eq!(gate.get(&format!("{name}.example"), "/").status, status, "{name}");
    }
    let wrong = check(
        gate.folder.path(),
        &config.replace(&format!("/8:{open}"), "/8:80-70").replace("[sql.s]", "[listen]\npublic = ':0'\n[sql.s]"),
    );
    assert!(
        wrong.code == Some(2) && wrong.err.contains("does not end in ports: expected one from 1 to 65535"),
        "{wrong:?}"
    );
}

// Heads.

/// A server behind that answers each request with as many fields as its path says.
fn many_fields(dir: &Path) {
    let listener = UnixListener::bind(dir.join("fields.sock")).unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            thread::spawn(move || {
                while let Some(head) = head(&mut stream) {
                    let count: usize = head.split(' ').nth(1).unwrap()[1..].parse().unwrap();
                    let fields: String = (1..count).map(|n| format!("X-{n}: {n}\r\n")).collect();
                    let _ =
                        stream.write_all(format!("HTTP/1.1 200 OK\r\n{fields}Content-Length: 0\r\n\r\n").as_bytes());
                }
            });
        }
    });
}

/// A head from a connection; `None` at its end.
fn head(stream: &mut (impl Read + ?Sized)) -> Option<String> {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read(&mut byte) {
            Ok(1) => head.push(byte[0]),
            _ => return None,
        }
    }
    Some(String::from_utf8(head).unwrap())
}

#[test]
fn an_answer_may_have_as_many_fields_as_the_limits_say() {
    for (limits, fine, over) in [
        ("", 1000, 1001),
        ("headers = 50", 50, 51),
        ("headers = 2000", 2000, 2001),
        ("headers = 50\nanswer-headers = 300", 300, 301),
    ] {
        let folder = tempfile::tempdir().unwrap();
        many_fields(folder.path());
        let gate = Gate::start(
            folder,
            &format!(
                "{LOG}limits = {{ {} }}\n[[route]]\nto = \"unix:{{dir}}/fields.sock\"\n",
                limits.replace('\n', ", ")
            ),
        );
        for count in [2, 40, fine] {
            let answer = gate.get("a", &format!("/{count}"));
            assert_eq!(answer.status, 200, "{limits}: {count}: {}", answer.head.len());
            assert_eq!(answer.head.matches("\r\nX-").count(), count - 1);
        }
        assert_eq!(gate.get("a", &format!("/{over}")).status, 502, "{limits}: {over}");
        let lines = told(gate.folder.path(), 4);
        let line = lines.iter().find(|line| line["status"] == 502).unwrap();
        assert!(line["detail"].as_str().unwrap().starts_with("too-many-headers"), "{line}");
    }
}

#[test]
fn a_refused_connect_ends_the_connection() {
    let folder = tempfile::tempdir().unwrap();
    let _app = server(folder.path(), "app.sock", 11);
    let gate = Gate::start(folder, &format!("{LOG}[[route]]\nto = \"unix:{{dir}}/app.sock\"\n"));
    // What follows is for the tunnel, whatever it looks like.
    let bytes =
        b"CONNECT a.example:443 HTTP/1.1\r\nHost: a.example:443\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n";
    let answer = raw(&gate, bytes);
    assert!(answer.starts_with("HTTP/1.1 405 ") && answer.contains("Connection: close\r\n"), "{answer}");
    assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{answer}");
    assert_eq!(gate.get("a", "/").status, 200);
    let lines = told(gate.folder.path(), 2);
    let mut targets: Vec<&str> = lines.iter().map(|line| line["target"].as_str().unwrap()).collect();
    targets.sort_unstable();
    assert_eq!(targets, ["/", "a.example:443"]);
    // So does every server of ours.
    let mut stream = UnixStream::connect(gate.path("app.sock")).unwrap();
    stream.set_read_timeout(Some(HANG)).unwrap();
    stream.write_all(bytes).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{answer}");
}

#[test]
fn heads_that_are_refused_stand_in_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let gate = Gate::start(
        folder,
        &format!(
            "threads = 1\nlisten = {{ public = \"unix:{{dir}}/public.sock\" }}\n\
             {LOG}limits = {{ headers = 3, head = \"50ms\" }}\n[[route]]\nanswer = {{ status = 200 }}\n"
        ),
    );
    let cases: [(&[u8], u64, &str, &str, &str); 6] = [
        (b"GET /a HTTP/1.1\r\n\r\n", 400, "GET", "/a", "missing-host: "),
        (b"GET /b HTTP/1.1\r\nHost: a\r\nA: 1\r\nB: 2\r\nC: 3\r\n\r\n", 431, "GET", "/b", "too-many-headers: "),
        (
            b"POST /c HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
            400,
            "POST",
            "/c",
            "length-and-transfer-encoding: ",
        ),
        (b"\x16\x03\x01\x02\x00\x01\x00\"\r\n", 400, "", "", "bad-request-line: "),
        (b"GET /d HTTP/2.0\r\nHost: a\r\n\r\n", 505, "", "", "unsupported-version: "),
        (
            b"GET /slow HTTP/1.1\r\nHost: a\r\n",
            408,
            "GET",
            "/slow",
            "the peer let the time limit for sending a request's head pass",
        ),
    ];
    for (number, (bytes, status, method, target, detail)) in cases.into_iter().enumerate() {
        let answer = raw(&gate, bytes);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
        let line = &told(gate.folder.path(), number + 1)[number];
        assert_eq!(line["status"], status, "{line}");
        assert_eq!((&line["method"], &line["target"]), (&Value::from(method), &Value::from(target)), "{line}");
        assert_eq!(line["failure"], "client-head", "{line}");
        assert!(line["detail"].as_str().unwrap().starts_with(detail), "{line}");
    }
    assert!(told(gate.folder.path(), 6)[3]["detail"].as_str().unwrap().contains(r#"it begins with "\x16\x03"#));
}

#[test]
fn a_few_empty_lines_before_a_request_are_taken() {
    let folder = tempfile::tempdir().unwrap();
    let gate = Gate::start(folder, "[[route]]\nanswer = { status = 200 }\n");
    let asked = |lines: usize| {
        raw(&gate, format!("{}GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", "\r\n".repeat(lines)).as_bytes())
    };
    for lines in [0, 1, 2, 8] {
        assert!(asked(lines).starts_with("HTTP/1.1 200 "), "{lines}");
    }
    for lines in [9, 1000] {
        assert!(asked(lines).starts_with("HTTP/1.1 400 "), "{lines}");
    }
}

// Clients that leave.

#[test]
fn scripts_are_told_their_mistakes_in_words_of_lua() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().to_owned();
    let script = "function on_request(request)
        local f = loadstring((request:cookie('code'):gsub('~', ' ')))
        return gate.answer(200, tostring(f()(request)))
    end";
    fs::write(dir.join("route.lua"), script).unwrap();
    let gate = Gate::start(
        folder,
        &format!("{LOG}[script.s]\nfile = \"route.lua\"\n[[route]]\nscript = \"s\"\nexplain = true\n"),
    );
    for (code, expected) in [
        ("request.nope", "there is no request.nope: expected one of args, client"),
        ("request.hots", "there is no request.hots: did you mean request.host?"),
        ("request[1]", "request has named parts alone"),
        ("request.values('a')", "it is a method: expected a colon before its name"),
        ("request:values({})", "expected a string, not a table"),
        ("request:cookie(nil)", "expected a string, not nil"),
        ("request.headers[{}]", "expected a string, not a table"),
        ("os.getenv('PATH')", "os.getenv is not there"),
        ("#request.method", ""),
        ("request.id", ""),
        ("request.client", ""),
    ] {
        let code = format!("return~function(request)~return~{}~end", code.replace(' ', "~"));
        let request = format!("GET / HTTP/1.1\r\nHost: a\r\nCookie: code={code}\r\nConnection: close\r\n\r\n");
        let answer = raw(&gate, request.as_bytes());
        let status = if expected.is_empty() { "200" } else { "500" };
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")) && answer.contains(expected), "{code}: {answer}");
        for rust in ["LuaString", "RequestView", "String", "Userdata", "userdata `", "::"] {
            assert!(!answer.contains(rust), "{code}: {rust}: {answer}");
        }
    }
    let lines = told(&dir, 11);
    assert!(
        lines
            .iter()
            .any(|line| line["detail"].as_str().is_some_and(|detail| detail.contains("there is no request.nope"))),
        "{lines:#?}"
    );
}
