//! TLS over TCP and unix sockets: negotiated parameters, and every way in which a handshake fails.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{abstract_address, listener, on_a_core};
use oroshi_net::tls::{Roots, ServerTlsOptions, TlsConfigError, TlsError};
use oroshi_net::{
    ClientTls, ClientTlsOptions, ConnectError, Connected, Connector, ConnectorOptions, Peer, ServerTls, Stream,
};
use oroshi_testkit::{Identity, need};
use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// A certificate authority, a server's certificate for `localhost` and 127.0.0.1, and a client's.
struct TestCa(Identity);

impl TestCa {
    fn new() -> Self {
        TestCa(Identity::new())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path(name)
    }

    fn server(&self, options: &ServerTlsOptions) -> ServerTls {
        ServerTls::from_files(self.path("server.pem"), self.path("server.key"), options).unwrap()
    }

    /// Client options that trust only this authority.
    fn options(&self) -> ClientTlsOptions {
        self.0.trusted()
    }

    fn identity(&self) -> Option<(PathBuf, PathBuf)> {
        Some((self.path("client.pem"), self.path("client.key")))
    }
}

/// Makes one connection: both ends of the handshake at once.
async fn meet(
    address: &str,
    server: &ServerTls,
    connector: &Connector,
) -> (Result<Connected, ConnectError>, Result<Stream, TlsError>) {
    let listener = listener(address).into_listener().unwrap();
    let server = server.clone();
    let peer = listener.address().clone();
    let accepting = tokio::task::spawn_local(async move { server.accept(listener.accept().await.unwrap()).await });
    (connector.connect(&peer, None).await, accepting.await.unwrap())
}

fn connector(options: &ClientTlsOptions, host: &str) -> Connector {
    let tls = Some(ClientTls::new(options, host).unwrap());
    Connector::new(ConnectorOptions { tls, ..ConnectorOptions::default() })
}

/// Returns the client's result of a handshake with these options.
fn handshake(ca: &TestCa, server: &ServerTlsOptions, options: &ClientTlsOptions, host: &str) -> Result<(), TlsError> {
    let (server, connector) = (ca.server(server), connector(options, host));
    match on_a_core(meet("127.0.0.1:0", &server, &connector)).0 {
        Ok(connected) => {
            assert!(connected.tls.is_some());
            Ok(())
        }
        Err(ConnectError::Tls(error)) => Err(error),
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn bytes_go_through_tcp_unix_and_abstract_sockets() {
    let ca = TestCa::new();
    let unix = format!("unix:{}", ca.path("socket").display());
    let server = ca.server(&ServerTlsOptions { alpn: vec![b"http/1.1".to_vec()], ..ServerTlsOptions::default() });
    let options = ClientTlsOptions { alpn: vec![b"h2".to_vec(), b"http/1.1".to_vec()], ..ca.options() };
    for address in ["127.0.0.1:0", &unix, &abstract_address()] {
        on_a_core(async {
            let (client, accepted) = meet(address, &server, &connector(&options, "localhost")).await;
            let (mut client, mut accepted) = (client.unwrap().stream, accepted.unwrap());
            assert!(client.is_tls() && accepted.is_tls());
            assert_eq!(client.alpn(), Some(b"http/1.1".as_slice()));
            assert_eq!(client.peer_address().unwrap(), accepted.local_address().unwrap());
            let pid = address.starts_with("unix:").then(std::process::id);
            assert_eq!(client.peer_pid(), pid);
            let Stream::Tls(tls) = &client else { panic!("not TLS") };
            assert_eq!(tls.version().as_deref(), Some("TLSv1_3"));

            assert_eq!(client.try_write(b"ping").unwrap(), 4);
            client.flush().await.unwrap();
            let mut buffer = [0; 4];
            accepted.read_exact(&mut buffer).await.unwrap();
            assert_eq!(&buffer, b"ping");

            // More than one record and more than a socket's buffer, so that both sides must wait.
            let sent: Vec<u8> = (0..3_000_000_u32).map(|number| number as u8).collect();
            let expected = sent.clone();
            let sender = tokio::task::spawn_local(async move {
                accepted.write_all(&sent).await.unwrap();
                accepted.shutdown().await.unwrap();
            });
            let mut received = Vec::new();
            client.read_to_end(&mut received).await.unwrap();
            assert!(received == expected);
            sender.await.unwrap();
        });
    }
}

/// rustls only queues its answer; it must go out although the server writes nothing.
#[test]
fn a_client_that_renegotiates_is_told_that_this_is_refused() {
    let Some(openssl) = need("a_client_that_renegotiates_is_told_that_this_is_refused", "openssl") else { return };
    let ca = TestCa::new();
    let server = ca.server(&ServerTlsOptions::default());
    let said = on_a_core(async move {
        let listener = listener("127.0.0.1:0").into_listener().unwrap();
        let mut command = Command::new(openssl);
        command.args(["s_client", "-tls1_2", "-connect", &listener.address().to_string()]);
        let mut client = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stream = server.accept(listener.accept().await.unwrap()).await.unwrap();
        let mut input = client.stdin.take().unwrap();
        // The first is read by the client as text, the second as an order.
        input.write_all(b"text\n").unwrap();
        let mut text = [0; 5];
        stream.read_exact(&mut text).await.unwrap();
        assert_eq!(&text, b"text\n");
        input.write_all(b"R\n").unwrap();
        // The client ends the connection, as it could not renegotiate.
        let ended = stream.read(&mut text).await;
        assert!(matches!(ended, Ok(0) | Err(_)), "{ended:?}");
        drop((stream, input));
        client.wait_with_output().unwrap()
    });
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.contains("no renegotiation"), "{said}");
}

/// Passes a client's records on in small pieces, with a damaged byte: in the record of this number, after this share of
/// thousandths. Headers stay, as a longer record would only be waited for.
fn damaging(to: SocketAddr, damaged: (usize, usize)) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let (mut client, mut server) = (listener.accept().unwrap().0, TcpStream::connect(to).unwrap());
        let (mut back, mut forth) = (server.try_clone().unwrap(), client.try_clone().unwrap());
        std::thread::spawn(move || {
            let _ = std::io::copy(&mut back, &mut forth);
            let _ = forth.shutdown(Shutdown::Both);
        });
        for number in 0.. {
            let mut record = vec![0; 5];
            if client.read_exact(&mut record).is_err() {
                break;
            }
            record.resize(5 + usize::from(u16::from_be_bytes([record[3], record[4]])), 0);
            client.read_exact(&mut record[5..]).unwrap();
            if number == damaged.0 {
                // Not the length of the ClientHello.
                let first = if number == 0 { 9 } else { 5 };
                let at = first + (record.len() - first - 1) * damaged.1 / 1000;
                record[at] ^= 0x41;
            }
            if record.chunks(1 + 100 * number).any(|piece| server.write_all(piece).is_err()) {
                break;
            }
        }
        let _ = server.shutdown(Shutdown::Write);
    });
    address
}

/// rustls indexes into the bytes that it gets again, and panics where they are not the same.
#[test]
fn damaged_bytes_end_a_session_and_nothing_else() {
    let ca = TestCa::new();
    // So that the client sends several messages in its second flight.
    let asking = ServerTlsOptions { client_roots: Some(ca.path("ca.pem")), ..ServerTlsOptions::default() };
    let (server, options) = (ca.server(&asking), ClientTlsOptions { identity: ca.identity(), ..ca.options() });
    let whole = |damaged: (usize, usize)| {
        let (server, connector) = (server.clone(), connector(&options, "localhost"));
        on_a_core(async move {
            let listener = listener("127.0.0.1:0").into_listener().unwrap();
            let Peer::Tcp(address) = *listener.address() else { panic!("not TCP") };
            let through = Peer::Tcp(damaging(address, damaged));
            let serving = tokio::task::spawn_local(async move {
                let Ok(mut stream) = server.accept(listener.accept().await.unwrap()).await else { return false };
                let mut received = Vec::new();
                let is_whole = stream.read_to_end(&mut received).await.is_ok() && received == [7; 50_000];
                // The session does not read damaged bytes again.
                let again = stream.read(&mut [0; 100]).await;
                assert!(is_whole || !matches!(again, Ok(1..)), "{again:?}");
                let _ = stream.write_all(b"answer").await;
                let _ = stream.shutdown().await;
                is_whole
            });
            if let Ok(Connected { stream: mut client, .. }) = connector.connect(&through, None).await {
                let _ = client.write_all(&[7; 50_000]).await;
                let _ = client.shutdown().await;
                let _ = client.read_to_end(&mut Vec::new()).await;
            }
            serving.await.unwrap()
        })
    };
    for record in 0..7 {
        for share in [0, 10, 100, 300, 500, 900, 1000] {
            assert!(!whole((record, share)), "record {record}, {share} thousandths");
        }
    }
    assert!(whole((1000, 0)), "nothing is damaged");
}

#[test]
fn try_write_stops_when_the_buffers_are_full() {
    let ca = TestCa::new();
    let server = ca.server(&ServerTlsOptions::default());
    on_a_core(async {
        let (client, accepted) = meet("127.0.0.1:0", &server, &connector(&ca.options(), "localhost")).await;
        let (mut client, mut accepted) = (client.unwrap().stream, accepted.unwrap());
        let block = [7; 65536];
        let mut sent = 0;
        let error = loop {
            match client.try_write(&block) {
                Ok(bytes) => sent += bytes,
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
        // All accepted bytes arrive after the flush.
        let flushing = tokio::task::spawn_local(async move {
            client.flush().await.unwrap();
            client
        });
        let mut received = vec![0; sent];
        accepted.read_exact(&mut received).await.unwrap();
        assert!(received.iter().all(|&byte| byte == 7));
        flushing.await.unwrap();
    });
}

#[test]
fn the_servers_certificate_is_checked() {
    let ca = TestCa::new();
    let none = ServerTlsOptions::default();
    handshake(&ca, &none, &ca.options(), "localhost").unwrap();
    handshake(&ca, &none, &ca.options(), "127.0.0.1").unwrap();

    let error = handshake(&ca, &none, &ca.options(), "example.com").unwrap_err();
    assert!(matches!(error, TlsError::Certificate(_)), "{error:?}");
    let named = ClientTlsOptions { server_name: Some("localhost".to_owned()), ..ca.options() };
    handshake(&ca, &none, &named, "example.com").unwrap();

    let stranger = TestCa::new();
    let error = handshake(&ca, &none, &stranger.options(), "localhost").unwrap_err();
    assert!(matches!(error, TlsError::Certificate(_)), "{error:?}");
    let insecure = ClientTlsOptions { roots: Roots::Insecure, ..ClientTlsOptions::default() };
    handshake(&ca, &none, &insecure, "example.com").unwrap();
}

/// A self-signed certificate for `localhost`, with its server.
struct SelfSigned {
    folder: TempDir,
}

impl SelfSigned {
    fn new(change: impl FnOnce(&mut CertificateParams)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        change(&mut params);
        fs::write(folder.path().join("own.key"), key.serialize_pem()).unwrap();
        fs::write(folder.path().join("own.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
        SelfSigned { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn meets(&self, roots: Roots, host: &str) -> Result<(), TlsError> {
        let server = ServerTls::from_files(self.path("own.pem"), self.path("own.key"), &ServerTlsOptions::default());
        let options = ClientTlsOptions { roots, ..ClientTlsOptions::default() };
        match on_a_core(meet("127.0.0.1:0", &server.unwrap(), &connector(&options, host))).0 {
            Ok(_) => Ok(()),
            Err(ConnectError::Tls(error)) => Err(error),
            Err(other) => panic!("{other}"),
        }
    }
}

#[test]
fn a_self_signed_certificate_that_says_ca_true_is_accepted_where_it_is_given() {
    let own = SelfSigned::new(|_| {});
    let given = |of: &SelfSigned| Roots::Only(vec![of.path("own.pem")]);
    own.meets(given(&own), "localhost").unwrap();
    own.meets(Roots::SystemAnd(vec![own.path("own.pem")]), "localhost").unwrap();
    // Its name and validity are still checked; and other certificates do not count.
    let error = own.meets(given(&own), "example.com").unwrap_err();
    assert!(matches!(error, TlsError::Certificate(_)), "{error:?}");
    let expired = SelfSigned::new(|params| params.not_after = rcgen::date_time_ymd(2001, 1, 1));
    let error = expired.meets(given(&expired), "localhost").unwrap_err();
    assert!(matches!(error, TlsError::Certificate(_)), "{error:?}");
    let error = own.meets(given(&SelfSigned::new(|_| {})), "localhost").unwrap_err();
    assert!(matches!(error, TlsError::CaCertificate(_)), "{error:?}");
    assert!(error.to_string().contains("given as a CA file"), "{error}");
    let error = own.meets(Roots::Only(Vec::new()), "localhost").unwrap_err();
    assert!(matches!(error, TlsError::CaCertificate(_)), "{error:?}");
    // A certificate with CA:FALSE was accepted all along.
    let no_ca = SelfSigned::new(|params| params.is_ca = IsCa::ExplicitNoCa);
    no_ca.meets(given(&no_ca), "localhost").unwrap();
}

#[test]
fn files_add_to_the_systems_roots_or_replace_them() {
    let ca = TestCa::new();
    let stranger = TestCa::new();
    let none = ServerTlsOptions::default();
    let files = vec![stranger.path("ca.pem"), ca.path("ca.pem")];
    for roots in [Roots::SystemAnd(files.clone()), Roots::Only(files)] {
        handshake(&ca, &none, &ClientTlsOptions { roots, ..ClientTlsOptions::default() }, "localhost").unwrap();
    }
}

#[test]
fn one_setting_serves_several_hosts() {
    let ca = TestCa::new();
    let tls = ClientTls::new(&ca.options(), "localhost").unwrap();
    let server = ca.server(&ServerTlsOptions::default());
    for (host, fits) in [("127.0.0.1", true), ("example.com", false)] {
        let tls = Some(tls.with_host(host).unwrap());
        let connector = Connector::new(ConnectorOptions { tls, ..ConnectorOptions::default() });
        let (client, _) = on_a_core(meet("127.0.0.1:0", &server, &connector));
        assert_eq!(client.is_ok(), fits, "{host}");
    }
    assert!(matches!(tls.with_host("a b"), Err(TlsConfigError::Name { .. })));
}

#[test]
fn sessions_are_resumed_unless_switched_off() {
    let ca = TestCa::new();
    let server = ca.server(&ServerTlsOptions::default());
    for no_resumption in [false, true] {
        let connector = connector(&ClientTlsOptions { no_resumption, ..ca.options() }, "localhost");
        let mut resumed = Vec::new();
        for _ in 0..2 {
            on_a_core(async {
                let (client, accepted) = meet("127.0.0.1:0", &server, &connector).await;
                let (mut client, mut accepted) = (client.unwrap().stream, accepted.unwrap());
                // The ticket comes with the first bytes after the handshake.
                accepted.write_all(b"x").await.unwrap();
                accepted.flush().await.unwrap();
                client.read_exact(&mut [0]).await.unwrap();
                let Stream::Tls(tls) = &client else { panic!("not TLS") };
                resumed.push(tls.is_resumed());
            });
        }
        assert_eq!(resumed, [false, !no_resumption]);
    }
}

#[test]
fn the_clients_certificate_is_checked_where_asked_for() {
    let ca = TestCa::new();
    let asking = ServerTlsOptions { client_roots: Some(ca.path("ca.pem")), ..ServerTlsOptions::default() };
    let server = ca.server(&asking);
    let stranger = TestCa::new();
    for (identity, accepted) in [(ca.identity(), true), (stranger.identity(), false), (None, false)] {
        let connector = connector(&ClientTlsOptions { identity, ..ca.options() }, "localhost");
        let (_, server_end) = on_a_core(meet("127.0.0.1:0", &server, &connector));
        assert_eq!(server_end.is_ok(), accepted);
    }
}

#[test]
fn a_refusal_by_the_peer_is_an_alert() {
    let ca = TestCa::new();
    let server = ServerTlsOptions { alpn: vec![b"h2".to_vec()], ..ServerTlsOptions::default() };
    let options = ClientTlsOptions { alpn: vec![b"http/1.1".to_vec()], ..ca.options() };
    let error = handshake(&ca, &server, &options, "localhost").unwrap_err();
    assert!(matches!(error, TlsError::Alert(_)), "{error:?}");
    assert!(error.to_string().contains("NoApplicationProtocol"), "{error}");
}

/// Returns the result of the handshake with a server that treats the connection like this.
fn against<F: Future<Output = ()> + 'static>(
    deadline: Option<Instant>,
    serve: impl FnOnce(Stream) -> F + 'static,
) -> ConnectError {
    let options = ClientTlsOptions { roots: Roots::Insecure, ..ClientTlsOptions::default() };
    let connector = connector(&options, "localhost");
    on_a_core(async {
        let listener = listener("127.0.0.1:0").into_listener().unwrap();
        let peer = listener.address().clone();
        tokio::task::spawn_local(async move { serve(listener.accept().await.unwrap()).await });
        connector.connect(&peer, deadline).await.unwrap_err()
    })
}

#[test]
fn a_peer_without_tls_is_told_apart_from_one_that_is_silent_or_gone() {
    let garbage = against(None, |mut stream| async move {
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n").await.unwrap();
        std::future::pending::<()>().await;
    });
    let gone = against(None, |mut stream| async move {
        // Reading first makes the close send an end and not a reset.
        assert_ne!(stream.read(&mut [0; 4096]).await.unwrap(), 0);
    });
    let reset = against(None, |mut stream| async move {
        stream.read_exact(&mut [0]).await.unwrap();
        stream.reset_on_close().unwrap();
    });
    let silent = against(Some(Instant::now() + Duration::from_millis(50)), |stream| async move {
        std::future::pending::<()>().await;
        drop(stream);
    });
    for error in [&garbage, &gone, &reset, &silent] {
        assert_eq!(error.name(), "tls", "{error}");
    }
    assert!(matches!(garbage, ConnectError::Tls(TlsError::NotTls(_))), "{garbage:?}");
    assert!(matches!(gone, ConnectError::Tls(TlsError::Closed)), "{gone:?}");
    assert!(matches!(reset, ConnectError::Tls(TlsError::Io(_))), "{reset:?}");
    assert!(matches!(silent, ConnectError::Tls(TlsError::Timeout)), "{silent:?}");
}

#[test]
fn nothing_goes_out_before_the_handshake() {
    let ca = TestCa::new();
    let server = ca.server(&ServerTlsOptions::default());
    on_a_core(async {
        let listener = listener("127.0.0.1:0").into_listener().unwrap();
        let peer = listener.address().clone();
        let accepting = tokio::task::spawn_local(async move { server.accept(listener.accept().await.unwrap()).await });
        let connector = connector(&ca.options(), "localhost");
        assert_eq!(connector.connect_sending(&peer, None, b"secret").await.unwrap().sent, 0);
        accepting.await.unwrap().unwrap();
    });
}

#[test]
fn a_client_without_tls_is_told_to_the_server() {
    let ca = TestCa::new();
    let server = ca.server(&ServerTlsOptions::default());
    let plain = Connector::new(ConnectorOptions::default());
    on_a_core(async {
        let listener = listener("127.0.0.1:0").into_listener().unwrap();
        let mut client = plain.connect(listener.address(), None).await.unwrap().stream;
        client.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
        let error = server.accept(listener.accept().await.unwrap()).await.unwrap_err();
        assert!(matches!(error, TlsError::NotTls(_)), "{error:?}");
    });
}

#[test]
fn bad_files_are_named() {
    let ca = TestCa::new();
    fs::write(ca.path("empty.pem"), "nothing here").unwrap();
    let client = |options: &ClientTlsOptions| ClientTls::new(options, "localhost").unwrap_err().to_string();
    let only = |name: &str| ClientTlsOptions { roots: Roots::Only(vec![ca.path(name)]), ..ca.options() };
    for name in ["missing.pem", "empty.pem"] {
        let message = client(&only(name));
        assert!(message.contains(name) && message.contains("certificate"), "{message}");
    }
    let identity = Some((ca.path("client.pem"), ca.path("empty.pem")));
    let message = client(&ClientTlsOptions { identity, ..ca.options() });
    assert!(message.contains("a private key from") && message.contains("empty.pem"), "{message}");

    let mismatched = Some((ca.path("client.pem"), ca.path("server.key")));
    let error = ClientTls::new(&ClientTlsOptions { identity: mismatched, ..ca.options() }, "localhost").unwrap_err();
    assert!(matches!(error, TlsConfigError::Identity(_)), "{error:?}");

    let server = ServerTls::from_files(ca.path("server.key"), ca.path("server.key"), &ServerTlsOptions::default());
    let message = server.unwrap_err().to_string();
    assert!(message.contains("server.key"), "{message}");
    let error = ClientTls::new(&ca.options(), "not a name").unwrap_err();
    assert!(matches!(error, TlsConfigError::Name { .. }), "{error:?}");
}

#[test]
fn a_server_can_be_made_from_der() {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let key = made.signing_key.serialize_der();
    let server = ServerTls::from_der(vec![made.cert.der().to_vec()], key, &ServerTlsOptions::default()).unwrap();
    let options = ClientTlsOptions { roots: Roots::Insecure, ..ClientTlsOptions::default() };
    let (client, _) = on_a_core(meet("127.0.0.1:0", &server, &connector(&options, "localhost")));
    client.unwrap();
    ServerTls::from_der(vec![made.cert.der().to_vec()], vec![1, 2, 3], &ServerTlsOptions::default()).unwrap_err();
}
