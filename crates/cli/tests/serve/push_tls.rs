//! TLS at `oroshi push`, and the PROXY protocol: each transport, clients that do not read, certificates that are read
//! again, mistakes.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;

use oroshi_testkit::websocket::WebSocket;
use oroshi_testkit::{Identity, need, skipped};
use rustix::process::Signal;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::json;

use crate::push;
use crate::push::{Got, HANG, Process, request};
use crate::push_client::Node;

/// A hub with a TLS listener, and one for backends on a unix socket.
struct Hub {
    folder: tempfile::TempDir,
    process: Process,
    port: u16,
}

impl Hub {
    /// Starts one with this certificate, and these lines after its listeners.
    fn start(identity: &Identity, rest: &str) -> Hub {
        let folder = tempfile::tempdir().unwrap();
        for name in ["server.pem", "server.key"] {
            fs::copy(identity.path(name), folder.path().join(name)).unwrap();
        }
        let text = format!(
            "threads = 2\n[listen]\ntls = \"127.0.0.1:0\"\nadmin = \"{}\"\n[tls]\n\
             certificates = [{{ certificate = \"server.pem\", key = \"server.key\" }}]\n\
             default = \"localhost\"\n{rest}",
            folder.path().join("admin.sock").display()
        );
        fs::write(folder.path().join("push.toml"), text).unwrap();
        let mut process = push::start(oroshi().arg("--config").arg(folder.path().join("push.toml"))).unwrap();
        let port = process.ports(2)[0];
        Hub { folder, process, port }
    }

    fn admin(&self) -> PathBuf {
        self.folder.path().join("admin.sock")
    }

    fn publish(&self, query: &str, body: &[u8]) -> serde_json::Value {
        let answer = request(&self.admin(), "POST", &format!("/publish/raw?{query}"), &[], body);
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()
    }

    fn status(&self) -> serde_json::Value {
        request(&self.admin(), "GET", "/status", &[], b"").json()
    }

    fn tls(&self, identity: &Identity) -> StreamOwned<ClientConnection, TcpStream> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(identity.ca()).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let config = config.with_root_certificates(roots).with_no_client_auth();
        let name = ServerName::try_from("localhost").unwrap();
        let socket = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        socket.set_read_timeout(Some(HANG)).unwrap();
        StreamOwned::new(ClientConnection::new(Arc::new(config), name).unwrap(), socket)
    }

    /// Opens a WebSocket over TLS.
    fn websocket(&self, identity: &Identity) -> WebSocket<StreamOwned<ClientConnection, TcpStream>> {
        let head = push::head("GET", "/connect", &push::UPGRADE);
        let mut client = WebSocket::handshake(self.tls(identity), &head).unwrap();
        assert!(client.text().contains("\"session\""));
        client
    }

    fn curl(&self, identity: &Identity, args: &[&str], target: &str) -> Command {
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--show-error", "--no-buffer", "--max-time", "20", "--cacert"]).arg(identity.ca());
        curl.args(args).arg(format!("https://localhost:{}{target}", self.port));
        curl
    }
}

fn oroshi() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_oroshi"));
    command.arg("push");
    command
}

#[test]
fn every_transport_works_over_tls() {
    let test = "every_transport_works_over_tls";
    if need(test, "curl").is_none() {
        return;
    }
    let identity = Identity::new();
    let mut hub = Hub::start(&identity, "[drain]\ntimeout = \"2s\"\n");
    assert!(hub.process.said.iter().any(|line| line.contains("listening on https://127.0.0.1:")), "{:?}", hub.process);
    let mut client = hub.websocket(&identity);
    client.send(oroshi_websocket::Kind::Text, b"nobody reads this");
    // Each ends with the session that it has opened, which the hub ends after its last message.
    let events: Vec<_> = ["--http1.1", "--http2"]
        .into_iter()
        .flat_map(|version| [(version, "text/event-stream", "data: one\n"), (version, "text/plain", "one\n")])
        .collect();
    std::thread::scope(|scope| {
        let readers: Vec<_> = events
            .iter()
            .map(|&(version, accept, expected)| {
                let field = format!("Accept: {accept}");
                let mut curl = hub.curl(&identity, &[version, "-H", &field], "/connect");
                scope.spawn(move || {
                    let got = curl.output().unwrap();
                    let text = String::from_utf8_lossy(&got.stdout).into_owned();
                    assert!(text.contains(expected), "{version} {accept}: {text} {got:?}");
                })
            })
            .collect();
        oroshi_testkit::wait_until("five sessions", || hub.status()["sessions"]["current"] == 5);
        let receipt = hub.publish("all=1&wait=written", b"one");
        assert_eq!((&receipt["matched"], &receipt["written"]), (&5.into(), &5.into()), "{receipt}");
        let keys = request(&hub.admin(), "GET", "/sessions", &[], b"").json();
        for key in keys["sessions"].as_array().unwrap() {
            let target = format!("/sessions/{}", key.as_str().unwrap());
            assert_eq!(request(&hub.admin(), "DELETE", &target, &[], b"").status, 204);
        }
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
    assert_eq!(client.text(), "one");
    assert!(matches!(client.next(), Got::Close(..)));
    // The end of TLS comes, too: without it, rustls returns an error. So it does if the client closes first.
    assert_eq!(client.stream.read(&mut [0; 16]).unwrap(), 0);
    let mut closes = hub.websocket(&identity);
    let mut close = Vec::new();
    oroshi_websocket::encode::close(&mut close, oroshi_websocket::CloseCode::NORMAL, "");
    // The frame of a client is masked; with a mask of zeros its payload stays.
    close.splice(1..2, [close[1] | 0x80, 0, 0, 0, 0]);
    closes.stream.write_all(&close).unwrap();
    assert!(matches!(closes.next(), Got::Close(Some(1000), _)));
    assert_eq!(closes.stream.read(&mut [0; 16]).unwrap(), 0);
    let opened = hub.curl(&identity, &["--fail"], "/connect?transport=poll").output().unwrap();
    let opened: serde_json::Value = serde_json::from_slice(&opened.stdout).unwrap();
    hub.publish("all=1", b"two");
    let of = |name: &str| opened[name].as_str().unwrap().to_owned();
    let target = format!("/poll?session={}&token={}&after=0", of("session"), of("token"));
    let polled = hub.curl(&identity, &["--fail"], &target).output().unwrap();
    assert!(String::from_utf8_lossy(&polled.stdout).contains("{\"text\":\"two\"}"), "{polled:?}");
    // Backends have no way in here.
    let refused = hub
        .curl(&identity, &["-o", "/dev/null", "-w", "%{http_code}", "-d", "x"], "/publish/raw?all=1")
        .output()
        .unwrap();
    assert_eq!(refused.stdout, b"404", "{refused:?}");
    // A client that speaks plain HTTP gets no answer, and `failed` counts it.
    let mut plain = TcpStream::connect(("127.0.0.1", hub.port)).unwrap();
    plain.set_read_timeout(Some(HANG)).unwrap();
    plain.write_all(&push::head("GET", "/ping", &[])).unwrap();
    let mut got = Vec::new();
    let _ = plain.read_to_end(&mut got);
    assert!(!got.starts_with(b"HTTP"), "{}", got.escape_ascii());
    oroshi_testkit::wait_until("a failed handshake", || hub.status()["tls"]["failed"] == 1);
    let metrics = request(&hub.admin(), "GET", "/metrics", &[], b"");
    let metrics = String::from_utf8(metrics.body).unwrap();
    assert!(metrics.contains("oroshi_push_tls_handshakes_total{result=\"failed\"} 1\n"), "{metrics}");
    hub.process.signal(Signal::TERM);
    assert_eq!(hub.process.ended().code(), Some(0));
}

/// What has become records of TLS and is not sent yet must go out when there is room, although nothing more comes.
#[test]
fn a_client_that_stops_to_read_gets_all_over_tls() {
    let identity = Identity::new();
    let mut rest = String::from("[limits]\nsession-queue-bytes = 67108864\npublish-bytes = 4000000\nping = \"off\"\n");
    rest += "[[group]]\npattern = \"*\"\nclient-may-join = true\n";
    let hub = Hub::start(&identity, &rest);
    let mut client = hub.websocket(&identity);
    // Larger than what the two kernels hold, in messages from less than a record to many.
    let sizes = [10, 1_000, 20_000, 300_000, 3_000_000, 70_000, 16_384, 5, 400_000, 9];
    let text = |number: usize| format!("{number}:{}", "x".repeat(sizes[number % sizes.len()]));
    for number in 0..40 {
        hub.publish("all=1", text(number).as_bytes());
    }
    oroshi_testkit::wait_until("a queue", || hub.status()["queues"]["bytes"].as_u64() > Some(1_000_000));
    for number in 0..40 {
        let got = client.text();
        assert!(got == text(number), "message {number} begins with {:?}", &got[..got.len().min(20)]);
    }
    assert_eq!(hub.status()["queues"]["bytes"], 0);
    // The session is no longer blocked.
    hub.publish("all=1", b"the last");
    assert_eq!(client.text(), "the last");
}

#[test]
fn subscriptions_of_bench_lose_nothing_over_tls() {
    let identity = Identity::new();
    let hub = Hub::start(&identity, "");
    let mut bench = Command::new(env!("CARGO_BIN_EXE_oroshi"));
    bench.args([
        "bench", "--mode", "ws", "-c", "50", "-R", "50", "-d", "2s", "-w", "0s", "--format", "json", "--cacert",
    ]);
    bench.arg(identity.ca()).arg("--publish").arg(format!("unix:{}:/publish/raw?all=1", hub.admin().display()));
    let run = bench.arg(format!("wss://localhost:{}/connect", hub.port)).output().unwrap();
    assert!(run.status.success(), "{run:?}");
    let record: serde_json::Value = serde_json::from_slice(&run.stdout).unwrap();
    let deliveries = &record["deliveries"];
    let counts = ["delivered", "lost", "duplicated", "reordered"].map(|name| deliveries[name].as_u64().unwrap());
    assert!(counts[0] >= 2_500 && deliveries["expected"] == counts[0] && counts[1..] == [0; 3], "{deliveries}");
    assert!(hub.status()["tls"]["handshakes"].as_u64() >= Some(50), "{deliveries}");
}

#[test]
fn the_client_of_clients_js_works_over_tls() {
    let test = "the_client_of_clients_js_works_over_tls";
    if need(test, "node").is_none() {
        return;
    }
    let identity = Identity::new();
    let hub = Hub::start(&identity, "[[group]]\npattern = \"*\"\nsubscribe = \"anyone\"\nhistory-messages = 10\n");
    for transport in ["websocket", "sse", "poll"] {
        if transport == "websocket" && !Node::has_websocket() {
            skipped(test, "this Node has no WebSocket");
            continue;
        }
        let url = format!("https://localhost:{}/connect", hub.port);
        let mut client = Node::start(&json!({ "url": url, "transports": [transport], "ca": identity.ca() }));
        client.send(&json!({ "subscribe": transport }));
        assert_eq!(client.until("connected")["transport"], transport);
        client.next("subscribed");
        for text in ["one", "two"] {
            hub.publish(&format!("group={transport}"), text.as_bytes());
        }
        assert_eq!(client.texts(), ["one", "two"]);
    }
}

#[test]
fn certificates_are_read_again_at_hup() {
    let (identity, other) = (Identity::new(), Identity::new());
    let mut hub = Hub::start(&identity, "");
    let mut client = hub.websocket(&identity);
    let file = |name: &str| hub.folder.path().join(name);
    fs::write(file("server.pem"), "no certificate\n").unwrap();
    hub.process.signal(Signal::HUP);
    hub.process.until_said("error: the certificates before stay in force: tls.certificates: ");
    hub.publish("all=1", b"still here");
    assert_eq!(client.text(), "still here");
    drop(hub.websocket(&identity));
    for name in ["server.pem", "server.key"] {
        fs::copy(other.path(name), hub.folder.path().join(name)).unwrap();
    }
    hub.process.signal(Signal::HUP);
    hub.process.until_said("info: certificates were read again: 1 in force for new handshakes");
    drop(hub.websocket(&other));
    let mut stale = hub.tls(&identity);
    assert!(stale.write_all(&push::head("GET", "/ping", &[])).is_err(), "the certificate before is still in force");
    hub.publish("all=1", b"and still");
    assert_eq!(client.text(), "and still");
    assert_eq!(client_count(&hub), 1);
}

fn client_count(hub: &Hub) -> u64 {
    let mut current = 0;
    oroshi_testkit::wait_until("one session", || {
        current = hub.status()["sessions"]["current"].as_u64().unwrap();
        current == 1
    });
    current
}

#[test]
fn limits_of_addresses_are_those_of_clients_behind_a_proxy() {
    let identity = Identity::new();
    let rest = "[proxy-protocol]\ntrusted = [\"127.0.0.0/8\"]\n[limits]\naddress-messages = 1\n[[group]]\n\
                pattern = \"*\"\n\
                subscribe = \"anyone\"\npublish = \"anyone\"\n";
    let hub = Hub::start(&identity, rest);
    let connect = |address: &str| {
        let mut stream = hub.tls(&identity);
        stream.sock.write_all(format!("PROXY TCP4 {address} 198.51.100.1 4711 443\r\n").as_bytes()).unwrap();
        let head = push::head("GET", "/connect?protocol=oroshi.v1", &push::UPGRADE);
        let mut client = WebSocket::handshake(stream, &head).unwrap();
        assert!(client.text().contains("\"session\""));
        client
    };
    let (mut one, mut same, mut other) = (connect("192.0.2.7"), connect("192.0.2.7"), connect("192.0.2.8"));
    let ask = |client: &mut WebSocket<_>| {
        client.send(oroshi_websocket::Kind::Text, b"{\"id\":1,\"publish\":{\"channel\":\"a\",\"text\":\"x\"}}");
        client.text()
    };
    assert!(!ask(&mut one).contains("too-fast"));
    let limited = ask(&mut same);
    assert!(limited.contains("too-fast"), "{limited}");
    let answer = ask(&mut other);
    assert!(!answer.contains("too-fast"), "{answer}");
    // A connection from a trusted proxy without the header is closed.
    let mut bare = hub.tls(&identity);
    assert!(bare.write_all(&push::head("GET", "/ping", &[])).and_then(|()| bare.read(&mut [0; 16])).is_err());
}

#[test]
fn mistakes_about_tls_name_their_key() {
    let identity = Identity::new();
    let (certificate, key) = identity.files();
    let good = format!("certificates = [{{ certificate = {certificate:?}, key = {key:?} }}]");
    let listen = "[listen]\ntls = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\n";
    let plain = "[listen]\neverything = \"127.0.0.1:0\"\n";
    for (text, expected) in [
        (listen.to_owned(), "listen.tls: there is no certificate for it"),
        (format!("{listen}[tls]\n"), "tls.certificates: there is no certificate"),
        (format!("{plain}[tls]\n{good}\n"), "tls: no listener uses it"),
        (format!("{listen}[tls]\ncertificates = [\"none.pem\"]\n"), "none.pem"),
        (format!("{listen}[tls]\n{good}\ndefault = \"other.test\"\n"), "tls.default: no certificate"),
        (format!("{listen}[tls]\n{good}\nmin-version = \"1.1\"\n"), "expected 1.2 or 1.3"),
        (format!("{listen}[tls]\n{good}\ntickets = {{ window = \"1s\" }}\n"), "tls.tickets.window"),
        (format!("{listen}[tls]\n{good}\nseal = {{}}\n"), "seal"),
        (format!("{plain}[proxy-protocol]\ntrusted = [\"10.0.0.1/8\"]\n"), "is no network"),
    ] {
        let checked = check(&text);
        assert_eq!(checked.status.code(), Some(2), "{text}");
        let said = String::from_utf8_lossy(&checked.stderr).into_owned();
        assert!(said.contains(expected), "{text}\n{said}");
    }
    // What --check prints is a configuration.
    let shown = check(&format!("{listen}[tls]\n{good}\n[proxy-protocol]\ntrusted = [\"10.0.0.0/8\"]\n"));
    assert_eq!(shown.status.code(), Some(0), "{shown:?}");
    let shown = String::from_utf8(shown.stdout).unwrap();
    for line in
        ["tls = [\"127.0.0.1:0\"]", "min-version = \"1.2\"", "trusted = [\"10.0.0.0/8\"]", "server.pem: localhost"]
    {
        assert!(shown.contains(line), "{line} is not in\n{shown}");
    }
    assert!(!shown.contains("PRIVATE KEY"));
}

fn check(text: &str) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let config: &Path = &folder.path().join("push.toml");
    fs::write(config, text).unwrap();
    oroshi().arg("--check").arg("--config").arg(config).output().unwrap()
}
