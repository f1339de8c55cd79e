//! The PROXY protocol at `oroshi gate`: who the client is, as a proxy in front says it, and as nginx behind reads it.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::Command;

use oroshi_testkit::need;
use oroshi_testkit::nginx::{Nginx, Setup};

use crate::gate::{Answer, Gate, HANG};
use crate::metrics;

/// An nginx that takes connections with such a header alone, and tells what it has read.
const BEHIND: &str = r#"server { listen @TCP@ proxy_protocol; listen unix:@FOLDER@/proxied.sock proxy_protocol;
    location / { return 200
    "$proxy_protocol_addr $proxy_protocol_port $proxy_protocol_server_addr $http_x_forwarded_for $connection\n"; } }"#;

const ONE_THREAD: &str =
    "threads = 1\nlisten = { public = \"unix:{dir}/public.sock\", admin = \"unix:{dir}/admin.sock\" }\n";

const V1: &[u8] = b"PROXY TCP4 192.0.2.7 198.51.100.1 4711 443\r\n";
const V1_OTHER: &[u8] = b"PROXY TCP6 2001:db8::9 2001:db8::1 4712 443\r\n";
const V2: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xc0\0\x02\x08\xc6\x33\x64\x01\x12\x67\x01\xbb";
const LOCAL: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0";
const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";

/// A connection that begins with these bytes.
fn connect(gate: &Gate, begin: &[u8]) -> UnixStream {
    let mut stream = UnixStream::connect(gate.path("public.sock")).unwrap();
    stream.set_read_timeout(Some(HANG)).unwrap();
    stream.write_all(begin).unwrap();
    stream
}

/// The words of the answer to one more request.
fn ask(stream: &mut UnixStream) -> Vec<String> {
    stream.write_all(REQUEST).unwrap();
    let (mut answer, mut byte) = (Vec::new(), [0]);
    while !answer.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).unwrap();
        answer.push(byte[0]);
    }
    let head = String::from_utf8(answer).unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    let length = head.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
    let mut body = vec![0; length.unwrap_or_else(|| panic!("{head}"))];
    stream.read_exact(&mut body).unwrap();
    String::from_utf8(body).unwrap().split(' ').map(|word| word.trim().to_owned()).collect()
}

fn behind(nginx: &Nginx, version: &str, target: &str) -> String {
    let target = match target {
        "tcp" => nginx.tcp.to_string(),
        _ => format!("unix:{}", nginx.path("proxied.sock").display()),
    };
    format!(
        "[proxy-protocol]\ntrust-unix = true\n[access-log]\nfile = \"{{dir}}/access.log\"\n[upstream.app]\n\
         targets = [\"{target}\"]\nproxy-protocol = \"{version}\"\n[[route]]\nto = \"app\"\n"
    )
}

#[test]
fn a_client_is_told_on_to_nginx_and_its_connection_is_its_own() {
    let test = "a_client_is_told_on_to_nginx_and_its_connection_is_its_own";
    let Some(nginx) = (Setup { http: BEHIND, ..Setup::default() }).start(test) else { return };
    for (version, target) in [("v1", "tcp"), ("v2", "tcp"), ("v1", "unix"), ("v2", "unix")] {
        let mut gate = Gate::start(tempfile::tempdir().unwrap(), &behind(&nginx, version, target));
        let (mut one, mut other) = (connect(&gate, V1), connect(&gate, V1_OTHER));
        let (first, foreign, second) = (ask(&mut one), ask(&mut other), ask(&mut one));
        assert_eq!(first[..4], ["192.0.2.7", "4711", "198.51.100.1", "192.0.2.7"], "{version} {target}");
        assert_eq!(foreign[..4], ["2001:db8::9", "4712", "2001:db8::1", "2001:db8::9"], "{version} {target}");
        // A client keeps its connection, and no other client gets it, busy or idle.
        assert_eq!(first, second);
        assert_ne!(first[4], foreign[4]);
        assert_ne!(ask(&mut connect(&gate, V2))[4], first[4]);
        drop((one, other));
        gate.process.signal(rustix::process::Signal::TERM);
        gate.process.ended();
        let log = fs::read_to_string(gate.path("access.log")).unwrap();
        assert!(log.contains("\"client\":\"192.0.2.7\"") && log.contains("\"client\":\"2001:db8::9\""), "{log}");
    }
}

#[test]
fn kept_connections_of_other_clients_make_room() {
    let test = "kept_connections_of_other_clients_make_room";
    let Some(nginx) = (Setup { http: BEHIND, ..Setup::default() }).start(test) else { return };
    let config =
        behind(&nginx, "v2", "tcp").replace("proxy-protocol = \"v2\"", "proxy-protocol = \"v2\"\nconnections = 1");
    let gate = Gate::start(tempfile::tempdir().unwrap(), &format!("{ONE_THREAD}{config}"));
    let (mut one, mut other) = (connect(&gate, V1), connect(&gate, V1_OTHER));
    for _ in 0..3 {
        assert_eq!(ask(&mut one)[0], "192.0.2.7");
        assert_eq!(ask(&mut other)[0], "2001:db8::9");
    }
}

#[test]
fn only_what_is_a_header_to_its_last_byte_opens_a_connection() {
    let folder = tempfile::tempdir().unwrap();
    let config = "[proxy-protocol]\ntrust-unix = true\n[limits]\nhead = \"1s\"\n[[route]]\nanswer = { status = 200, body = \"x\" }\n";
    let gate = Gate::start(folder, config);
    for begin in [V1, V2, LOCAL, b"PROXY UNKNOWN\r\n"] {
        ask(&mut connect(&gate, begin));
    }
    // Header and request may come byte by byte.
    let mut slow = connect(&gate, b"");
    for byte in V2 {
        slow.write_all(&[*byte]).unwrap();
    }
    ask(&mut slow);
    let closed = |mut stream: UnixStream| {
        let mut rest = Vec::new();
        // A close with unread bytes is a reset.
        let _ = stream.read_to_end(&mut rest);
        assert!(rest.is_empty(), "{}", rest.escape_ascii());
    };
    for begin in
        [REQUEST, b"PROXY TCP4 1.2.3.4 1.2.3.4 1 99999\r\n", b"\r\n\r\n\0\r\nQUIT\n\x31\x11\0\0", b"\x16\x03\x01\0"]
    {
        closed(connect(&gate, begin));
    }
    // One that stops within its header, and one that never begins, are closed when a head would be overdue.
    closed(connect(&gate, &V1[..20]));
    closed(connect(&gate, b""));
    let errors = metrics::until(&gate, "errors are counted", |metrics| {
        metrics.get("client_errors_total{error=\"head-timeout\"}") == 2
    });
    assert_eq!(errors.get("client_errors_total{error=\"proxy-header\"}"), 4);
}

#[test]
fn a_header_of_others_is_a_malformed_request_and_reloads_change_who_is_believed() {
    let route = "[[route]]\nanswer = { status = 200, body = \"x\" }\n";
    let mut gate =
        Gate::start(tempfile::tempdir().unwrap(), &format!("[proxy-protocol]\ntrusted = [\"127.0.0.1\"]\n{route}"));
    let refused = |gate: &Gate| {
        let mut stream = connect(gate, V1);
        stream.write_all(REQUEST).unwrap();
        Answer::read(stream).status
    };
    assert_eq!(refused(&gate), 400);
    ask(&mut connect(&gate, b""));
    gate.reload(&format!("[proxy-protocol]\ntrust-unix = true\n{route}"));
    ask(&mut connect(&gate, V1));
}

#[test]
fn curl_is_believed() {
    let Some(curl) = need("curl_is_believed", "curl") else { return };
    let config = "[proxy-protocol]\ntrust-unix = true\n[[route]]\nanswer = { status = 200, body = \"hello\" }\n";
    let gate = Gate::start(tempfile::tempdir().unwrap(), config);
    let ran = Command::new(curl)
        .args(["--silent", "--haproxy-protocol", "--unix-socket"])
        .arg(gate.path("public.sock"))
        .arg("http://a/")
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&ran.stdout), "hello", "{ran:?}");
}
