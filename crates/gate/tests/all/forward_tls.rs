//! The gateway in front of servers that speak TLS: nginx with good and bad certificates, and servers that never finish
//! a
//! handshake.

use std::io::{Read, Write};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use oroshi_gate::forward::Failure;
use oroshi_gate::upstream::{CaRoots, PoolSettings, Target, TlsProtocol, TlsSettings, UpstreamTls};
use oroshi_testkit::nginx::{self, Nginx};
use oroshi_testkit::{Identity, need};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd};

use crate::support::{GET, Gate, HANG, SHORT, Setup, Upstream};

/// `@TLS@` speaks HTTP/2 too, `@TCP@` HTTP/1.1 alone, both over TLS.
const SERVERS: &str = "ssl_certificate @CERTIFICATE@; ssl_certificate_key @KEY@; client_max_body_size 200m;
    server { listen @TLS@ ssl http2; listen @TCP@ ssl; root @FOLDER@; keepalive_requests 100000;
        location = / { return 200 '$server_protocol $scheme $http_host $ssl_server_name'; }
        location /put/ { dav_methods PUT; create_full_put_path on; } }";

fn start(test: &str, http: &str) -> Option<Nginx> {
    nginx::Setup { http, ..nginx::Setup::default() }.start(test)
}

/// Trust in one file alone.
fn trusting(file: &Path) -> TlsSettings {
    TlsSettings { roots: CaRoots { files: vec![file.to_owned()], system: None }, ..TlsSettings::default() }
}

fn setup(target: &Target, tls: &TlsSettings) -> Setup {
    let secure = Some(Arc::new(UpstreamTls::new(tls).unwrap()));
    let setup = Setup::to(target);
    Setup { pool: PoolSettings { tls: tls.clone(), secure, ..setup.pool.clone() }, ..setup }
}

fn target(port: u16) -> Target {
    format!("https://localhost:{port}").parse().unwrap()
}

/// One request that fails, with the failure and its detail.
fn failing(gate: &Gate, status: u16) -> (Failure, String) {
    assert_eq!(gate.ask(GET).status, status);
    let records = gate.records(1);
    let record = records.last().unwrap();
    (record.failure.unwrap(), record.detail.clone())
}

#[test]
fn alpn_or_the_settings_choose_the_version_of_http() {
    let Some(nginx) = start("alpn_or_the_settings_choose_the_version_of_http", SERVERS) else { return };
    let ca = trusting(&nginx.identity.ca());
    let (both, old) = (nginx.tls.port(), nginx.tcp.port());
    for (port, protocol, version) in [
        (both, TlsProtocol::Auto, "HTTP/2.0"),
        (both, TlsProtocol::Http2, "HTTP/2.0"),
        (both, TlsProtocol::Http1, "HTTP/1.1"),
        (old, TlsProtocol::Auto, "HTTP/1.1"),
        (old, TlsProtocol::Http1, "HTTP/1.1"),
    ] {
        let gate = setup(&target(port), &TlsSettings { protocol, ..ca.clone() }).start();
        let mut client = gate.connect();
        for _ in 0..20 {
            assert_eq!(client.send(GET).answer().text(), format!("{version} https a localhost"));
        }
        let counts = gate.until("done", |counts| counts.answers == 20);
        assert_eq!((counts.connects, counts.handshakes, counts.reuses), (1, 1, 19), "{version} by {protocol:?}");
        assert_eq!((counts.requests, counts.failures.iter().sum::<u64>(), counts.stale), (20, 0, 0));
        gate.stop();
    }
    let gate = setup(&target(old), &TlsSettings { protocol: TlsProtocol::Http2, ..ca }).start();
    assert_eq!(failing(&gate, 502).0, Failure::Tls);
    gate.stop();
}

#[test]
fn many_first_requests_find_out_the_version_together() {
    let Some(nginx) = start("many_first_requests_find_out_the_version_together", SERVERS) else { return };
    let ca = trusting(&nginx.identity.ca());
    for (port, connections) in [(nginx.tls.port(), 1), (nginx.tcp.port(), 41)] {
        let gate = setup(&target(port), &ca).start();
        std::thread::scope(|scope| {
            for _ in 0..40 {
                scope.spawn(|| {
                    let mut client = gate.connect();
                    for _ in 0..5 {
                        assert_eq!(client.send(GET).answer().status, 200);
                        let body =
                            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n";
                        assert_eq!(client.send(body).answer().status, 200);
                    }
                });
            }
        });
        let counts = gate.until("done", |counts| counts.answers == 400);
        assert!(counts.connects <= connections, "{} connections", counts.connects);
        assert_eq!(counts.failures.iter().sum::<u64>(), 0);
        gate.stop();
    }
}

#[test]
fn a_request_that_may_become_a_tunnel_goes_over_http_1() {
    let Some(nginx) = start("a_request_that_may_become_a_tunnel_goes_over_http_1", SERVERS) else { return };
    let gate = setup(&target(nginx.tls.port()), &trusting(&nginx.identity.ca())).start();
    let socket = "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                  Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n";
    assert!(gate.ask(socket).text().starts_with("HTTP/1.1 "));
    assert!(gate.ask(GET).text().starts_with("HTTP/2.0 "));
    assert!(gate.ask(socket).text().starts_with("HTTP/1.1 "));
    assert!(gate.ask(GET).text().starts_with("HTTP/2.0 "));
    assert_eq!(gate.until("done", |counts| counts.answers == 4).connects, 2);
    gate.stop();
}

#[test]
fn a_server_that_changes_its_version_of_http_loses_no_request() {
    let test = "a_server_that_changes_its_version_of_http_loses_no_request";
    let Some(nginx) = (nginx::Setup { workers: 1, http: SERVERS, ..nginx::Setup::default() }).start(test) else {
        return;
    };
    let gate = setup(&target(nginx.tls.port()), &trusting(&nginx.identity.ca())).start();
    let file = nginx.path("nginx.conf");
    let first = std::fs::read_to_string(&file).unwrap();
    for (text, version) in
        [(first.clone(), "HTTP/2.0"), (first.replace(" ssl http2", " ssl"), "HTTP/1.1"), (first, "HTTP/2.0")]
    {
        std::fs::write(&file, text).unwrap();
        let pid = rustix::process::Pid::from_raw(nginx.pid() as i32).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::HUP).unwrap();
        let began = std::time::Instant::now();
        loop {
            let answer = gate.ask(GET);
            assert_eq!(answer.status, 200, "{}", answer.text());
            if answer.text().starts_with(version) {
                break;
            }
            assert!(began.elapsed() < HANG, "{}", answer.text());
        }
    }
    let counts = gate.counts();
    assert_eq!(counts.failure(Failure::Protocol) + counts.failure(Failure::Tls), 0);
    gate.stop();
}

#[test]
fn large_bodies_pass_both_ways() {
    let Some(nginx) = start("large_bodies_pass_both_ways", SERVERS) else { return };
    let body: Vec<u8> = (0..3_000_000_u32).flat_map(u32::to_le_bytes).collect();
    for protocol in [TlsProtocol::Http1, TlsProtocol::Http2] {
        let tls = TlsSettings { protocol, ..trusting(&nginx.identity.ca()) };
        let gate = setup(&target(nginx.tls.port()), &tls).start();
        let mut client = gate.connect();
        let name = protocol.name().replace('/', "-");
        client
            .send(format!("PUT /put/{name} HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", body.len()))
            .send(&body);
        assert_eq!(client.answer().status, 201);
        for _ in 0..3 {
            let answer = client.send(format!("GET /put/{name} HTTP/1.1\r\nHost: a\r\n\r\n")).answer();
            assert!(answer.body == body, "{} bytes of {}", answer.body.len(), body.len());
        }
        assert_eq!(gate.until("done", |counts| counts.answers == 4).handshakes, 1);
        gate.stop();
    }
}

#[test]
fn new_connections_resume_the_session_unless_told_not_to() {
    let Some(nginx) = start("new_connections_resume_the_session_unless_told_not_to", SERVERS) else { return };
    for (resume, resumed) in [(true, 9), (false, 0)] {
        let tls = TlsSettings { resume, ..trusting(&nginx.identity.ca()) };
        let mut setup = setup(&target(nginx.tcp.port()), &tls);
        setup.pool.max_requests = 1;
        let gate = setup.start();
        for _ in 0..10 {
            assert_eq!(gate.ask(GET).status, 200);
        }
        let counts = gate.until("done", |counts| counts.answers == 10);
        assert_eq!((counts.handshakes, counts.resumed), (10, resumed));
        gate.stop();
    }
}

#[test]
fn the_gateway_shows_its_own_certificate_where_the_server_asks() {
    let http = "server { listen @TLS@ ssl; ssl_certificate @CERTIFICATE@; ssl_certificate_key @KEY@;
        ssl_verify_client on; ssl_client_certificate @FOLDER@/clients.pem; ssl_verify_depth 2;
        location / { return 200 '$ssl_client_verify'; } }";
    // OpenSSL takes a certificate whose issuer has its own name for one that signed itself.
    let folder = tempfile::tempdir().unwrap();
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority.distinguished_name.push(DnType::CommonName, "clients");
    let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate().unwrap()).unwrap();
    let (mut client, client_key) = (CertificateParams::new(Vec::new()).unwrap(), KeyPair::generate().unwrap());
    client.distinguished_name.push(DnType::CommonName, "gateway");
    let (certificate, key) = (folder.path().join("client.pem"), folder.path().join("client.key"));
    std::fs::write(&certificate, client.signed_by(&client_key, &authority).unwrap().pem()).unwrap();
    std::fs::write(&key, client_key.serialize_pem()).unwrap();
    let ca = authority.pem();
    let files: &[(&str, &[u8])] = &[("clients.pem", ca.as_bytes())];
    let test = "the_gateway_shows_its_own_certificate_where_the_server_asks";
    let Some(nginx) = (nginx::Setup { http, files, ..nginx::Setup::default() }).start(test) else { return };
    let without = trusting(&nginx.identity.ca());
    let with = TlsSettings { certificate: Some(certificate), key: Some(key), ..without.clone() };
    for (tls, status, text) in [(with, 200, "SUCCESS"), (without, 400, "No required SSL certificate")] {
        let gate = setup(&target(nginx.tls.port()), &tls).start();
        let answer = gate.ask(GET);
        assert_eq!(answer.status, status);
        assert!(answer.text().contains(text), "{}", answer.text());
        gate.stop();
    }
}

/// Writes a certificate signed by itself, and its key.
fn self_signed(folder: &Path, name: &str, change: impl FnOnce(&mut CertificateParams)) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec![format!("{name}.test")]).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    change(&mut params);
    std::fs::write(folder.join(format!("{name}.pem")), params.self_signed(&key).unwrap().pem()).unwrap();
    std::fs::write(folder.join(format!("{name}.key")), key.serialize_pem()).unwrap();
}

#[test]
fn certificates_that_are_not_trusted_are_refused_by_name() {
    let test = "certificates_that_are_not_trusted_are_refused_by_name";
    let Some(openssl) = need(test, "openssl") else { return };
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    self_signed(folder, "self", |_| {});
    self_signed(folder, "expired", |params| {
        (params.not_before, params.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2021, 1, 1));
    });
    let file = |name: &str| folder.join(name).display().to_string();
    let made = Command::new(openssl)
        .args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "30", "-subj", "/CN=ca.test"])
        .args(["-addext", "subjectAltName=DNS:ca.test", "-out", &file("ca.pem"), "-keyout", &file("ca.key")])
        .output();
    assert!(made.unwrap().status.success());
    let server = |name: &str| {
        format!(
            "server {{ listen @TLS@ ssl; server_name {name}.test; ssl_certificate {}; ssl_certificate_key {};
            return 200 $ssl_server_name; }} ",
            file(&format!("{name}.pem")),
            file(&format!("{name}.key"))
        )
    };
    let http = format!(
        "server {{ listen @TLS@ ssl default_server; ssl_certificate @CERTIFICATE@; ssl_certificate_key @KEY@;
        return 200 default; }} {}",
        ["self", "expired", "ca"].map(server).concat()
    );
    let Some(nginx) = start(test, &http) else { return };
    for (host, ca, part) in [
        ("self.test", nginx.identity.ca(), "UnknownIssuer"),
        ("self.test", folder.join("self.pem"), ""),
        ("expired.test", folder.join("expired.pem"), "expired"),
        ("ca.test", nginx.identity.ca(), "CA's own certificate"),
        ("ca.test", folder.join("ca.pem"), ""),
        ("elsewhere.test", nginx.identity.ca(), "not valid for name"),
        ("localhost", nginx.identity.ca(), ""),
    ] {
        let tls = TlsSettings { server_name: Some(host.to_owned()), ..trusting(&ca) };
        let gate = setup(&target(nginx.tls.port()), &tls).start();
        if part.is_empty() {
            assert_eq!(gate.ask(GET).status, 200, "{host} by {}", ca.display());
        } else {
            let (failure, detail) = failing(&gate, 502);
            assert_eq!(failure, Failure::TlsCertificate, "{host}: {detail}");
            assert!(detail.contains(part), "{host}: {detail}");
            assert_eq!(gate.counts().handshakes, 0);
        }
        gate.stop();
        let gate = setup(
            &target(nginx.tls.port()),
            &TlsSettings { server_name: Some(host.to_owned()), verify: false, ..TlsSettings::default() },
        )
        .start();
        assert_eq!(gate.ask(GET).status, 200, "{host} without a check");
        gate.stop();
    }
    // An address is checked against the addresses in the certificate.
    let by_address: Target = format!("https://127.0.0.1:{}", nginx.tls.port()).parse().unwrap();
    let gate = setup(&by_address, &trusting(&nginx.identity.ca())).start();
    assert_eq!(gate.ask(GET).text(), "default");
    gate.stop();
}

/// The same place, with TLS.
fn secured(upstream: &Upstream) -> Target {
    Target { protocol: oroshi_gate::upstream::Protocol::Https, ..upstream.target.clone() }
}

#[test]
fn servers_that_never_finish_the_handshake_have_their_failures() {
    let identity = Identity::new();
    let tls = trusting(&identity.ca());
    let silent = Upstream::start(|_, behind| drop(behind.stream.read_to_end(&mut Vec::new())));
    let mut stalled = setup(&secured(&silent), &tls);
    stalled.rules.timeouts.connect = SHORT;
    let gate = stalled.start();
    assert_eq!(failing(&gate, 504).0, Failure::TlsTimeout);
    gate.stop();
    let closing = Upstream::start(|_, behind| drop(behind.stream.read(&mut [0; 16])));
    let resetting = Upstream::start(|_, behind| {
        let _ = behind.stream.read(&mut [0; 16]);
        socket2::SockRef::from(&behind.stream).set_linger(Some(Duration::ZERO)).unwrap();
    });
    let plain = Upstream::start(|_, behind| {
        let _ = behind.stream.read(&mut [0; 16]);
        let _ = behind.stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
        let _ = behind.stream.read_to_end(&mut Vec::new());
    });
    for (upstream, part) in [(&closing, ""), (&resetting, "within the handshake"), (&plain, "does not speak TLS")] {
        let gate = setup(&secured(upstream), &tls).start();
        let (failure, detail) = failing(&gate, 502);
        assert_eq!(failure, Failure::Tls, "{detail}");
        assert!(detail.contains(part), "{detail}");
        gate.stop();
    }
}

#[test]
fn another_target_answers_if_the_handshake_fails() {
    let Some(nginx) = start("another_target_answers_if_the_handshake_fails", SERVERS) else { return };
    let closing = Upstream::start(|_, behind| drop(behind.stream.read(&mut [0; 16])));
    let mut setup = setup(&secured(&closing), &trusting(&nginx.identity.ca()));
    setup.targets.push((target(nginx.tls.port()), 1));
    let gate = setup.start();
    for _ in 0..4 {
        let post = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nab";
        assert_eq!(gate.ask(post).status, 200);
    }
    assert!(
        gate.records(4).iter().all(|record| record.target.as_deref() == Some(&*target(nginx.tls.port()).to_string()))
    );
    gate.stop();
}
