//! Requests through proxies: tinyproxy, microsocks, and scripted ones.

use std::fmt::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};

use oroshi_client::{Error, Phase, Proxies, Version};
use oroshi_server::{Exchange, Settings};
use oroshi_testkit::{Port, need, test_name, wait_until};

use crate::support::{Identity, Peer, Running, SHORT, block_on, both_versions, builder, http2, keeping, patient, told};

/// A proxy as a process; it ends with the value.
pub(super) struct Program {
    process: Child,
    pub(super) address: SocketAddr,
    _port: Port,
}

impl Program {
    fn start(command: &mut Command, port: Port) -> Self {
        let address = port.address();
        let process = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        wait_until("the proxy listens", || TcpStream::connect(address).is_ok());
        Self { process, address, _port: port }
    }

    pub(super) fn tinyproxy(test: &str, more: &str) -> Option<Self> {
        let program = need(test, "tinyproxy")?;
        let (folder, port) = (tempfile::tempdir().unwrap(), Port::reserve());
        let mut config = format!("Port {}\nListen 127.0.0.1\nTimeout 60\nAllow 127.0.0.1\n", port.address().port());
        config.push_str(more);
        let path = folder.path().join("tinyproxy.conf");
        std::fs::write(&path, config).unwrap();
        // It has read its configuration when it listens.
        Some(Self::start(Command::new(program).arg("-d").arg("-c").arg(&path), port))
    }

    fn microsocks(test: &str, more: &[&str]) -> Option<Self> {
        let (program, port) = (need(test, "microsocks")?, Port::reserve());
        let number = port.address().port().to_string();
        Some(Self::start(Command::new(program).args(["-i", "127.0.0.1", "-p", &number]).args(more), port))
    }

    fn through(&self, scheme: &str, user: &str) -> Proxies {
        Proxies::all(&format!("{scheme}://{user}{}", self.address)).unwrap()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Says the version, the target and the fields of the request.
async fn describe(exchange: &mut Exchange<'_>) -> Result<(), oroshi_server::Error> {
    let mut text = format!("{} {}\n", exchange.head.version.number(), exchange.head.target);
    for field in exchange.head.headers.iter() {
        let _ = writeln!(text, "{}: {}", field.name, String::from_utf8_lossy(field.value));
    }
    exchange.reply.send(200, [], text.as_bytes()).await
}

pub(super) fn server(tls: Option<oroshi_net::ServerTls>, settings: Settings) -> Running {
    Running::start_at("127.0.0.1:0", tls, settings, async |exchange: &mut Exchange<'_>| describe(exchange).await)
}

pub(super) async fn text(request: oroshi_client::RequestBuilder<oroshi_client::local::Client>) -> String {
    let response = request.send().await.map_err(|error| told(&error)).unwrap();
    assert_eq!(response.status(), 200);
    response.text().await.unwrap()
}

#[test]
fn tinyproxy_forwards_plain_requests_and_makes_tunnels_for_tls_and_http2() {
    let test = test_name!("tinyproxy_forwards_plain_requests_and_makes_tunnels_for_tls_and_http2");
    let Some(proxy) = Program::tinyproxy(test, "") else { return };
    let identity = Identity::new();
    let (plain, secure) = (server(None, keeping()), server(Some(both_versions(&identity)), keeping()));
    let port = secure.tcp().port();
    block_on(async {
        let client = builder().proxies(proxy.through("http", "")).tls(identity.trusted());
        let client = client.build_local().unwrap();
        let seen = text(client.post(plain.url("/a?b")).body("hello")).await;
        assert!(seen.starts_with("1.1 /a?b\n") && seen.contains("tinyproxy") && seen.contains("ength: 5\n"), "{seen}");
        // A name, which the proxy looks up.
        let url = format!("https://localhost:{port}/c");
        let seen = text(client.get(&*url)).await;
        assert!(seen.starts_with("2.0 /c\n") && !seen.contains("tinyproxy"), "{seen}");
        let connects = client.counts().connects;
        assert!(text(client.get(&*url)).await.starts_with("2.0 /c\n"));
        assert_eq!(client.counts().connects, connects, "a tunnel is kept");
        // Fields for the proxy do not reach the server.
        let own = builder().proxies(proxy.through("http", "")).tls(identity.trusted());
        let own = own.header("Proxy-Authorization", "Basic ZGVmYXVsdA==").build_local().unwrap();
        for request in [own.get(&*url), client.get(&*url).header("proxy-authorization", "Basic b3du").header("X", "y")]
        {
            let seen = text(request).await.to_lowercase();
            assert!(seen.starts_with("2.0 /c\n") && !seen.contains("proxy-authorization"), "{seen}");
        }
        let direct = builder().tls(identity.trusted()).build_local().unwrap();
        let seen = text(direct.get(&*url).header("Proxy-Authorization", "Basic b3du")).await;
        assert!(seen.to_lowercase().contains("proxy-authorization: basic b3du\n"), "the server is the proxy: {seen}");
        // Without TLS, by prior knowledge.
        let client = http2().proxies(proxy.through("http", "")).build_local().unwrap();
        let response = client.get(plain.url("/d")).send().await.map_err(|error| told(&error)).unwrap();
        assert_eq!(response.version(), Version::Http2);
        // An exception.
        let proxies = proxy.through("http", "").except("127.0.0.0/8");
        let client = builder().proxies(proxies).build_local().unwrap();
        assert!(!text(client.get(plain.url("/"))).await.contains("tinyproxy"));
    });
    plain.stop();
    secure.stop();
}

#[test]
fn tinyproxy_wants_a_password() {
    let Some(proxy) = Program::tinyproxy(test_name!("tinyproxy_wants_a_password"), "BasicAuth me pass\n") else {
        return;
    };
    let identity = Identity::new();
    let (plain, secure) = (server(None, keeping()), server(Some(identity.server()), keeping()));
    let url = format!("https://127.0.0.1:{}/", secure.tcp().port());
    block_on(async {
        let with = |user| builder().proxies(proxy.through("http", user)).tls(identity.trusted()).build_local().unwrap();
        let client = with("me:p%61ss@");
        let seen = text(client.get(plain.url("/"))).await;
        assert!(!seen.to_lowercase().contains("proxy-authorization"), "it is the proxy's: {seen}");
        assert!(text(client.get(&*url)).await.starts_with("1.1 /\n"));
        for wrong in ["", "me:hidden@"] {
            let client = with(wrong);
            // Its own response, as of any server.
            assert!(matches!(client.get(plain.url("/")).send().await.unwrap().status(), 401 | 407));
            let error = client.get(&*url).send().await.unwrap_err();
            assert_eq!((error.phase(), error.retry_is_safe()), (Phase::Connect, true));
            assert!(matches!(error.name(), "proxy-auth" | "proxy-refused"), "{}", told(&error));
            assert!(told(&error).contains(&format!("http://{}", proxy.address)), "{}", told(&error));
            assert!(!told(&error).contains("hidden"));
        }
    });
    plain.stop();
    secure.stop();
}

#[test]
fn microsocks_carries_everything() {
    let test = test_name!("microsocks_carries_everything");
    let Some(open) = Program::microsocks(test, &[]) else { return };
    let Some(closed) = Program::microsocks(test, &["-u", "me", "-P", "secret"]) else { return };
    let identity = Identity::new();
    let (plain, secure) = (server(None, keeping()), server(Some(both_versions(&identity)), keeping()));
    let nobody = Port::reserve();
    block_on(async {
        for (proxy, scheme, user) in [
            (&open, "socks5", ""),
            (&open, "socks5h", "me:x@"),
            (&closed, "socks5", "me:secret@"),
            (&closed, "socks5h", "me:secret@"),
        ] {
            let client = builder().proxies(proxy.through(scheme, user)).tls(identity.trusted()).build_local().unwrap();
            for url in [plain.url("/a"), format!("http://localhost:{}/a", plain.tcp().port())] {
                assert!(text(client.get(&*url)).await.starts_with("1.1 /a\n"), "{scheme} {url}");
            }
            let url = format!("https://localhost:{}/b", secure.tcp().port());
            assert!(text(client.get(&*url)).await.starts_with("2.0 /b\n"));
            let error = client.get(nobody.url()).send().await.unwrap_err();
            assert_eq!((error.name(), error.phase()), ("proxy-refused", Phase::Connect), "{}", told(&error));
        }
        for user in ["", "me:wrong@"] {
            let client = builder().proxies(closed.through("socks5", user)).build_local().unwrap();
            let error = client.get(plain.url("/")).send().await.unwrap_err();
            assert_eq!(error.name(), "proxy-auth", "{}", told(&error));
            assert!(!told(&error).contains("wrong"));
        }
    });
    plain.stop();
    secure.stop();
}

/// The failure of a request through a proxy that answers so.
fn failure(scheme: &str, answer: &'static [u8]) -> Error {
    let peer = Peer::start(move |mut peer, _| {
        peer.send(answer);
        peer.stream.shutdown(std::net::Shutdown::Write).unwrap();
        peer.rest();
    });
    let proxies = Proxies::all(&format!("{scheme}://{}", peer.address)).unwrap();
    block_on(async {
        let client = builder().proxies(proxies).build_local().unwrap();
        client.get("https://server.invalid/").send().await.unwrap_err()
    })
}

#[test]
fn answers_of_hostile_proxies_end_in_errors() {
    let answers: &[(&str, &[u8], &str)] = &[
        ("http", b"", "proxy"),
        ("http", b"SSH-2.0-OpenSSH_9.2\r\n\r\n", "proxy"),
        ("http", b"HTTP/1.1 200 Connection est", "proxy"),
        ("http", b"HTTP/1.1 200 OK\n\n", "proxy"),
        ("http", b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno", "proxy-refused"),
        ("http", b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 502 Bad Gateway\r\n\r\n", "proxy-refused"),
        ("http", b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", "proxy-auth"),
        // Then the server, whose handshake this is not.
        ("http", b"HTTP/1.1 102 Wait\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nnot TLS", "tls"),
        ("socks5h", b"HTTP/1.1 400 Bad Request\r\n\r\n", "proxy"),
        ("socks5h", b"\x05", "proxy"),
        ("socks5h", b"\x05\xff", "proxy-auth"),
        ("socks5h", b"\x05\x02", "proxy-auth"),
        ("socks5h", b"\x04\x00", "proxy"),
        ("socks5h", b"\x05\x00\x05\x02\x00\x01\0\0\0\0\0\0", "proxy-refused"),
        ("socks5h", b"\x05\x00\x05\x00\x00\x07\0\0\0\0\0\0", "proxy"),
        ("socks5h", b"\x05\x00\x05\x00\x00\x03\xffshort", "proxy"),
        ("socks5h", b"\x05\x00\x05\x00\x00\x03\x02ab\0\0not TLS", "tls"),
    ];
    for (scheme, answer, name) in answers {
        let error = failure(scheme, answer);
        let phase = if *name == "tls" { Phase::Tls } else { Phase::Connect };
        assert_eq!((error.name(), error.phase()), (*name, phase), "{scheme} {answer:?}: {}", told(&error));
        assert!(error.retry_is_safe());
    }
    static ENDLESS: [u8; 20_000] = [b'a'; 20_000];
    assert_eq!(failure("http", &ENDLESS).name(), "proxy");
}

#[test]
fn a_proxy_that_nobody_serves_is_named() {
    let nobody = Port::reserve();
    for (scheme, url) in
        [("http", "http://server.invalid/"), ("http", "https://server.invalid/"), ("socks5h", "http://h/")]
    {
        let proxies = Proxies::all(&format!("{scheme}://me:hidden@{}", nobody.address())).unwrap();
        block_on(async {
            let client = builder().proxies(proxies).build_local().unwrap();
            let error = client.get(url).send().await.unwrap_err();
            assert_eq!((error.name(), error.phase()), ("connect-refused", Phase::Connect));
            let says = format!("no connection through the proxy {scheme}://{}: connection refused", nobody.address());
            assert!(told(&error).contains(&says), "{}", told(&error));
        });
    }
}

#[test]
fn a_silent_proxy_has_as_long_as_a_connect() {
    for scheme in ["http", "socks5h"] {
        let peer = Peer::start(|mut peer, _| drop(peer.rest()));
        let proxies = Proxies::all(&format!("{scheme}://{}", peer.address)).unwrap();
        let deadlines = oroshi_client::Deadlines { connect: SHORT, ..patient() };
        block_on(async {
            let client = builder().proxies(proxies).deadlines(deadlines).build_local().unwrap();
            let error = client.get("https://server.invalid/").send().await.unwrap_err();
            assert_eq!(error.name(), "connect-timeout");
            assert_eq!(client.counts().open, 0);
        });
    }
}
