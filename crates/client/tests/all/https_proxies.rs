//! Requests through proxies behind TLS: tinyproxy behind nginx, and scripted ones.

use std::net::SocketAddr;
use std::sync::Arc;

use oroshi_client::{Builder, Error, Phase, Proxies, Version};
use oroshi_net::tls::Roots;
use oroshi_net::{ClientTlsOptions, Stream};
use oroshi_server::Exchange;
use oroshi_testkit::nginx::{Setup, load_module};
use oroshi_testkit::test_name;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::proxies::{Program, server, text};
use crate::support::{Identity, Peer, Running, SHORT, block_on, both_versions, builder, http2, keeping, patient, told};

fn through(user: &str, address: SocketAddr) -> Builder {
    builder().proxies(Proxies::all(&format!("https://{user}{address}")).unwrap())
}

/// TLS within TLS, and plain requests within TLS, by programs that others wrote.
#[test]
fn tinyproxy_behind_nginx_with_a_password() {
    let test = test_name!("tinyproxy_behind_nginx_with_a_password");
    let Some(load) = load_module(test, "ngx_stream_module", "libnginx-mod-stream") else { return };
    let Some(proxy) = Program::tinyproxy(test, "BasicAuth me pass\n") else { return };
    let stream = format!(
        "{load} stream {{ server {{
            listen @TLS@ ssl; ssl_certificate @CERTIFICATE@; ssl_certificate_key @KEY@; proxy_pass {};
        }} }}",
        proxy.address
    );
    let Some(nginx) = Setup { main: &stream, ..Setup::default() }.start(test) else { return };
    // Another authority than that of the proxy.
    let identity = Identity::new();
    let (plain, secure) = (server(None, keeping()), server(Some(both_versions(&identity)), keeping()));
    let url = format!("https://localhost:{}/b", secure.tcp().port());
    block_on(async {
        let with = |user| through(user, nginx.tls).tls(identity.trusted()).proxy_tls(nginx.identity.trusted());
        let client = with("me:p%61ss@").build_local().unwrap();
        // tinyproxy closes the connections of plain requests without notice: the second request may be sent again.
        for request in [client.post(plain.url("/a?b")).body("hello"), client.get(plain.url("/a?b"))] {
            let seen = text(request).await;
            assert!(seen.starts_with("1.1 /a?b\n") && seen.contains("tinyproxy"), "{seen}");
            assert!(!seen.to_lowercase().contains("proxy-authorization"), "it is the proxy's: {seen}");
            let seen = text(client.get(&*url)).await;
            assert!(seen.starts_with("2.0 /b\n") && !seen.contains("tinyproxy"), "{seen}");
        }
        let (connects, tunnels) = (client.counts().connects, client.counts().open);
        assert!(text(client.get(&*url)).await.starts_with("2.0 /b\n"));
        assert_eq!((client.counts().connects, client.counts().open), (connects, tunnels), "a tunnel is kept");
        let client = with("me:pass@").http2(false).build_local().unwrap();
        assert!(text(client.get(&*url)).await.starts_with("1.1 /b\n"));
        let client = http2().proxies(Proxies::all(&format!("https://me:pass@{}", nginx.tls)).unwrap());
        let client = client.proxy_tls(nginx.identity.trusted()).build_local().unwrap();
        let response = client.get(plain.url("/c")).send().await.map_err(|error| told(&error)).unwrap();
        assert_eq!(response.version(), Version::Http2);
        let client = with("me:hidden@").build_local().unwrap();
        assert!(matches!(client.get(plain.url("/")).send().await.unwrap().status(), 401 | 407));
        let error = client.get(&*url).send().await.unwrap_err();
        assert!(matches!(error.name(), "proxy-auth" | "proxy-refused"), "{}", told(&error));
        assert!(!told(&error).contains("hidden"));
    });
    plain.stop();
    secure.stop();
}

/// The action of a scripted proxy after the handshake.
enum Then {
    /// Closes it.
    Close,
    /// Reads a head, answers so, and closes the connection.
    Answer(&'static [u8]),
    /// Reads a head, and connects to this server.
    Connect(SocketAddr),
}

/// A proxy behind TLS with the name `localhost`.
fn proxy(identity: &Identity, then: Then) -> Peer {
    let tls = identity.server();
    let then = Arc::new(then);
    Peer::start(move |peer, _| {
        let (tls, then) = (tls.clone(), Arc::clone(&then));
        block_on(async move {
            peer.stream.set_nonblocking(true).unwrap();
            let socket = TcpStream::from_std(peer.stream).unwrap();
            // Clients that do not trust it leave within the handshake.
            if let Ok(stream) = tls.accept(socket.into()).await {
                let _ = serve(stream, &then).await;
            }
        });
    })
}

async fn serve(mut stream: Stream, then: &Then) -> std::io::Result<()> {
    if matches!(then, Then::Close) {
        return Ok(());
    }
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    match then {
        Then::Close => {}
        Then::Answer(answer) => stream.write_all(answer).await?,
        Then::Connect(address) => {
            assert!(head.starts_with(b"CONNECT "), "{}", head.escape_ascii());
            stream.write_all(b"HTTP/1.1 200 Connected\r\n\r\n").await?;
            stream.flush().await?;
            let mut server = TcpStream::connect(address).await?;
            tokio::io::copy_bidirectional(&mut stream, &mut server).await?;
        }
    }
    stream.shutdown().await
}

async fn echo(exchange: &mut Exchange<'_>) -> Result<(), oroshi_server::Error> {
    let mut body = Vec::new();
    while let Some(piece) = exchange.body.chunk().await? {
        body.extend_from_slice(piece);
    }
    exchange.reply.send(200, [], &body).await
}

/// Both layers buffer: nothing may stay in either of them.
#[test]
fn large_bodies_go_both_ways_within_two_layers_of_tls() {
    let identity = Identity::new();
    let body: Vec<u8> = (0..3_000_000_u32).map(|number| (number % 251) as u8).collect();
    for tls in [identity.server(), both_versions(&identity)] {
        let server = Running::start_at("127.0.0.1:0", Some(tls), keeping(), async |exchange: &mut Exchange<'_>| {
            echo(exchange).await
        });
        let outer = Identity::new();
        let proxy = proxy(&outer, Then::Connect(server.tcp()));
        block_on(async {
            let client = through("", proxy.address).tls(identity.trusted()).proxy_tls(outer.trusted());
            let client = client.build_local().unwrap();
            for length in [0, 1, 100_000, body.len(), 16_384] {
                let request = client.post("https://localhost:1/").body(body[..length].to_vec());
                let response = request.send().await.map_err(|error| told(&error)).unwrap();
                assert!(response.bytes().await.unwrap()[..] == body[..length], "{length} bytes");
            }
            assert_eq!(proxy.accepted(), 1, "one tunnel carries them all");
        });
        server.stop();
    }
}

/// The failure of a request through an `https://` proxy.
fn failure(client: Builder, url: &str) -> Error {
    let client = client.build_local().unwrap();
    block_on(async { client.get(url).send().await.unwrap_err() })
}

#[test]
fn a_proxy_without_a_valid_certificate_gets_no_request() {
    let (identity, other) = (Identity::new(), Identity::new());
    let proxy = proxy(&identity, Then::Answer(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"));
    let says =
        format!("no connection through the proxy https://{}: the TLS handshake with the proxy failed", proxy.address);
    let insecure = || ClientTlsOptions { roots: Roots::Insecure, ..ClientTlsOptions::default() };
    for url in ["http://server.invalid/", "https://server.invalid/"] {
        for client in [
            // By default: the machine's authorities.
            through("me:hidden@", proxy.address),
            through("me:hidden@", proxy.address).proxy_tls(other.trusted()),
            // These are for servers.
            through("me:hidden@", proxy.address).tls(identity.trusted()).proxy_tls(other.trusted()),
            through("me:hidden@", proxy.address).tls(insecure()).proxy_tls(other.trusted()),
        ] {
            let error = failure(client, url);
            // A machine may have no authorities at all.
            if error.name() != "tls-setup" {
                assert_eq!(error.name(), "proxy-tls", "{}", told(&error));
                assert!(told(&error).contains(&says), "{}", told(&error));
                assert!(told(&error).contains("certificate is not accepted"), "{}", told(&error));
            }
            assert_eq!((error.phase(), error.retry_is_safe()), (Phase::Connect, true));
            assert!(!told(&error).contains("hidden"));
        }
    }
    block_on(async {
        for trust in [identity.trusted(), insecure()] {
            let client = through("", proxy.address).proxy_tls(trust).build_local().unwrap();
            assert_eq!(client.get("http://server.invalid/").send().await.unwrap().status(), 200);
        }
    });
    // The certificate is for other names.
    let elsewhere =
        Running::start_at("127.0.0.2:0", Some(identity.server()), keeping(), async |exchange: &mut Exchange<'_>| {
            echo(exchange).await
        });
    let error = failure(through("", elsewhere.tcp()).proxy_tls(identity.trusted()), "http://server.invalid/");
    assert_eq!(error.name(), "proxy-tls", "{}", told(&error));
    elsewhere.stop();
}

/// The server behind a good proxy has to be the right one too.
#[test]
fn the_server_within_the_tunnel_is_checked_by_itself() {
    let (outer, inner) = (Identity::new(), Identity::new());
    let server = server(Some(inner.server()), keeping());
    let proxy = proxy(&outer, Then::Connect(server.tcp()));
    let client = || through("", proxy.address).proxy_tls(outer.trusted());
    for (client, url) in [
        (client().tls(outer.trusted()), "https://localhost/"),
        (client().tls(inner.trusted()), "https://server.invalid/"),
    ] {
        let error = failure(client, url);
        assert_eq!((error.name(), error.phase()), ("tls", Phase::Tls), "{}", told(&error));
    }
    server.stop();
}

#[test]
fn hostile_proxies_end_in_errors() {
    let identity = Identity::new();
    let secure = |then| proxy(&identity, then);
    // Before or within the handshake, what is no TLS, and after it.
    let closing = Peer::start(|peer, _| drop(peer));
    let leaving = Peer::start(|mut peer, _| {
        let mut hello = [0; 5];
        let _ = std::io::Read::read_exact(&mut peer.stream, &mut hello);
        peer.reset();
    });
    let talking = Peer::start(|mut peer, _| {
        peer.send(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        peer.rest();
    });
    for (peer, both, name) in [
        (&closing, true, "proxy-tls"),
        (&leaving, true, "proxy-tls"),
        (&talking, true, "proxy-tls"),
        (&secure(Then::Close), false, "proxy"),
        (&secure(Then::Answer(b"")), false, "proxy"),
        (&secure(Then::Answer(b"HTTP/1.1 200 OK\r\n")), false, "proxy"),
        (&secure(Then::Answer(b"HTTP/1.1 403 No\r\n\r\n")), false, "proxy-refused"),
        (&secure(Then::Answer(b"HTTP/1.1 407 Who\r\n\r\n")), false, "proxy-auth"),
        (&secure(Then::Answer(b"HTTP/1.1 200 OK\r\n\r\nnot TLS")), false, "tls"),
        (&secure(Then::Answer(b"HTTP/1.1 200 OK\r\n\r\n")), false, "tls"),
    ] {
        let client = || through("", peer.address).proxy_tls(identity.trusted());
        let error = failure(client(), "https://server.invalid/");
        let phase = if name == "tls" { Phase::Tls } else { Phase::Connect };
        assert_eq!((error.name(), error.phase(), error.retry_is_safe()), (name, phase, true), "{}", told(&error));
        if both {
            let error = failure(client(), "http://server.invalid/");
            assert_eq!((error.name(), error.phase()), (name, phase), "{}", told(&error));
        }
    }
    // A plain request's answer is cut off.
    let peer = secure(Then::Answer(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"));
    block_on(async {
        let client = through("", peer.address).proxy_tls(identity.trusted()).build_local().unwrap();
        let response = client.get("http://server.invalid/").send().await.unwrap();
        assert_eq!(response.bytes().await.unwrap_err().phase(), Phase::BetweenBytes);
    });
}

#[test]
fn a_proxy_that_is_silent_in_its_handshake_has_as_long_as_a_connect() {
    let (identity, peer) = (Identity::new(), Peer::start(|mut peer, _| drop(peer.rest())));
    let deadlines = oroshi_client::Deadlines { connect: SHORT, ..patient() };
    for url in ["http://server.invalid/", "https://server.invalid/"] {
        block_on(async {
            let client = through("", peer.address).deadlines(deadlines);
            let client = client.proxy_tls(identity.trusted()).build_local().unwrap();
            let error = client.get(url).send().await.unwrap_err();
            assert_eq!(error.name(), "connect-timeout");
            assert_eq!(client.counts().open, 0);
        });
    }
}

/// Files that cannot be used are the proxy's, as the error says.
#[test]
fn unusable_files_for_the_proxy_are_named() {
    let peer = Peer::start(|mut peer, _| drop(peer.rest()));
    let options =
        ClientTlsOptions { roots: Roots::Only(vec!["/nonexistent/ca.pem".into()]), ..ClientTlsOptions::default() };
    let error = failure(through("", peer.address).proxy_tls(options), "http://server.invalid/");
    assert_eq!((error.name(), error.phase()), ("tls-setup", Phase::Connect));
    assert!(
        told(&error).contains("the proxy https://") && told(&error).contains("/nonexistent/ca.pem"),
        "{}",
        told(&error)
    );
}
