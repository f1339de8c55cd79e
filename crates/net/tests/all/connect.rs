//! Every way to connect, and every name of a failure, from a real cause.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::common::{
    abstract_address, connect, has_ipv6, in_a_process, listener, must_pass, narrow_listener, on_a_core, skipped,
    unix_address,
};
use oroshi_net::{
    ConnectError, Connector, ConnectorOptions, Endpoint, LocalPorts, NetworkNamespace, Peer, Stream, UnixAddress,
    monotonic_ns,
};
use oroshi_testkit::test_name;
use rustix::process::{Resource, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Sends some bytes each way, with a plain and a vectored write, and reads to the end of the stream.
async fn talk(mut client: Stream, mut server: Stream) {
    assert_eq!(client.try_write(b"").unwrap_or(0), 0);
    client.write_all(b"hello").await.unwrap();
    let mut buffer = [0; 16];
    assert_eq!(server.read(&mut buffer).await.unwrap(), 5);
    assert_eq!(&buffer[..5], b"hello");
    let parts = [std::io::IoSlice::new(b"good"), std::io::IoSlice::new(b"bye")];
    assert!(server.is_write_vectored());
    assert_eq!(server.write_vectored(&parts).await.unwrap(), 7);
    server.shutdown().await.unwrap();
    let mut rest = Vec::new();
    client.read_to_end(&mut rest).await.unwrap();
    assert_eq!(rest, b"goodbye");
}

#[test]
fn a_connection_that_is_kept_tells_when_it_is_not_to_be_used_again() {
    let (_folder, unix) = unix_address();
    for address in ["127.0.0.1:0", &unix] {
        for closes in [true, false] {
            on_a_core(async {
                let listener = listener(address).into_listener().unwrap();
                let mut client = connect(&listener.local_address().peer()).await.unwrap().stream;
                let mut server = listener.accept().await.unwrap();
                // After some use the socket is known to be drained.
                server.write_all(b"hello").await.unwrap();
                assert_eq!(client.read(&mut [0; 16]).await.unwrap(), 5);
                assert!(client.seems_quiet() && client.seems_quiet() && client.is_quiet());
                if closes {
                    drop(server);
                } else {
                    server.write_all(b"x").await.unwrap();
                }
                // Loopback also delivers with a delay.
                while client.is_quiet() {
                    tokio::task::yield_now().await;
                }
                // The runtime polls its sockets only now and then.
                while client.seems_quiet() {
                    tokio::task::yield_now().await;
                }
            });
        }
    }
}

#[test]
fn connections_over_tcp_unix_and_abstract_sockets_carry_bytes() {
    let (_folder, unix) = unix_address();
    for address in ["127.0.0.1:0", "[::1]:0", &unix, &abstract_address()] {
        if address == "[::1]:0" && !has_ipv6() {
            continue;
        }
        on_a_core(async {
            let listener = listener(address).into_listener().unwrap();
            let connected = connect(&listener.local_address().peer()).await.unwrap();
            assert!(connected.tls.is_none());
            let server = listener.accept().await.unwrap();
            assert_eq!(connected.stream.peer_address().unwrap().as_ref(), Some(listener.address()), "{address}");
            assert_eq!(server.local_address().unwrap().as_ref(), Some(listener.address()), "{address}");
            assert_eq!(server.peer_address().unwrap(), connected.stream.local_address().unwrap(), "{address}");
            let pid = connected.stream.peer_pid();
            assert_eq!(pid, matches!(listener.address(), Peer::Unix(_)).then(std::process::id), "{address}");
            talk(connected.stream, server).await;
        });
    }
}

#[test]
fn a_listener_can_be_reached_by_the_url_it_gives() {
    let (_folder, unix) = unix_address();
    for address in ["127.0.0.1:0", ":0", &unix, &abstract_address()] {
        on_a_core(async {
            let listener = listener(address).into_listener().unwrap();
            let endpoint: Endpoint = listener.local_address().url().parse().unwrap();
            let peers = endpoint.peers().await.unwrap();
            let client = connect(&peers[0]).await.unwrap().stream;
            talk(client, listener.accept().await.unwrap()).await;
        });
    }
}

#[test]
fn the_first_bytes_go_out_with_the_connection() {
    let (_folder, unix) = unix_address();
    for address in ["127.0.0.1:0", &unix, &abstract_address()] {
        on_a_core(async {
            let listener = listener(address).into_listener().unwrap();
            let connector = Connector::new(ConnectorOptions::default());
            for first in [&b"hello"[..], b""] {
                let before = monotonic_ns();
                let connected = connector.connect_sending(listener.address(), None, first).await.unwrap();
                assert_eq!(connected.sent, first.len(), "{address}: loopback is connected at once");
                assert!(before < connected.at && connected.at <= monotonic_ns());
                let (mut client, mut server) = (connected.stream, listener.accept().await.unwrap());
                client.write_all(b" again").await.unwrap();
                let mut received = vec![0; first.len() + 6];
                server.read_exact(&mut received).await.unwrap();
                assert_eq!(received, [first, b" again"].concat());
            }
            // The caller has to write the rest.
            let large = vec![7; 20_000_000];
            let connected = connector.connect_sending(listener.address(), None, &large).await.unwrap();
            assert!((1..large.len()).contains(&connected.sent), "{}", connected.sent);
        });
    }
}

#[test]
fn try_write_says_when_the_socket_is_full() {
    on_a_core(async {
        let listener = listener("127.0.0.1:0").into_listener().unwrap();
        let mut client = connect(listener.address()).await.unwrap().stream;
        let mut server = listener.accept().await.unwrap();
        let block = [7; 65536];
        let mut sent = 0;
        let error = loop {
            match client.try_write(&block) {
                Ok(bytes) => sent += bytes,
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
        let mut received = vec![0; sent];
        server.read_exact(&mut received).await.unwrap();
        assert!(received.iter().all(|&byte| byte == 7));
    });
}

#[test]
fn options_reach_the_socket() {
    use rustix::net::sockopt;
    on_a_core(async {
        let listener = listener("127.0.0.1:0").into_listener().unwrap();
        let options = ConnectorOptions {
            nodelay: false,
            recv_buffer: Some(100_000),
            send_buffer: Some(200_000),
            ..ConnectorOptions::default()
        };
        let stream = Connector::new(options).connect(listener.address(), None).await.unwrap().stream;
        assert!(!sockopt::tcp_nodelay(&stream).unwrap());
        // The kernel doubles the value, for its own bookkeeping (socket(7)).
        assert_eq!(sockopt::socket_recv_buffer_size(&stream).unwrap(), 200_000);
        assert_eq!(sockopt::socket_send_buffer_size(&stream).unwrap(), 400_000);
        let stream = connect(listener.address()).await.unwrap().stream;
        assert!(sockopt::tcp_nodelay(&stream).unwrap());
        assert!(sockopt::tcp_nodelay(listener.accept().await.unwrap()).unwrap(), "accepted sockets inherit it");
    });
}

#[test]
fn sources_are_used_in_turn() {
    on_a_core(async {
        let listener = listener("127.0.0.1:0").into_listener().unwrap();
        let sources: Vec<IpAddr> = ["127.0.0.2", "::1", "127.0.0.3"].map(|source| source.parse().unwrap()).into();
        let connector = Connector::new(ConnectorOptions { sources, ..ConnectorOptions::default() });
        let mut used = Vec::new();
        for _ in 0..4 {
            let stream = connector.connect(listener.address(), None).await.unwrap().stream;
            let Some(Peer::Tcp(local)) = stream.local_address().unwrap() else { panic!("not TCP") };
            used.push(local.ip().to_string());
        }
        assert_eq!(used, ["127.0.0.2", "127.0.0.3", "127.0.0.2", "127.0.0.3"]);
    });
}

#[test]
fn a_deadline_that_is_far_does_not_matter() {
    let (_folder, unix) = unix_address();
    for address in ["127.0.0.1:0", &unix] {
        on_a_core(async {
            let listener = listener(address).into_listener().unwrap();
            let connector = Connector::new(ConnectorOptions::default());
            let deadline = Some(Instant::now() + Duration::from_secs(3600));
            let client = connector.connect(listener.address(), deadline).await.unwrap().stream;
            talk(client, listener.accept().await.unwrap()).await;
        });
    }
}

/// Returns the error of a connect, and checks that it is the same with and without bytes to send.
#[track_caller]
fn fails(peer: &Peer) -> ConnectError {
    let connector = Connector::new(ConnectorOptions::default());
    let sending = on_a_core(connector.connect_sending(peer, None, b"hello")).unwrap_err();
    let error = on_a_core(connector.connect(peer, None)).unwrap_err();
    assert_eq!(error.name(), sending.name());
    assert!(ConnectError::NAMES.contains(&error.name()), "{error}");
    error
}

fn unix_peer(path: impl Into<std::path::PathBuf>) -> Peer {
    Peer::Unix(UnixAddress::path(path).unwrap())
}

#[test]
fn refused_where_nobody_listens() {
    // Bound, so that no other socket gets the port, but not listening.
    let socket = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM, None).unwrap();
    rustix::net::bind(&socket, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
    let address = SocketAddr::try_from(rustix::net::getsockname(&socket).unwrap()).unwrap();
    assert_eq!(fails(&Peer::Tcp(address)).name(), "connect-refused");

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("leftover");
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    assert_eq!(fails(&unix_peer(path)).name(), "connect-refused");
    assert_eq!(fails(&Peer::Unix(UnixAddress::parse("@oroshi-net-nobody").unwrap())).name(), "connect-refused");
}

#[test]
fn a_path_without_a_socket_says_what_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let missing = fails(&unix_peer(folder.path().join("missing")));
    assert_eq!(missing.name(), "connect-not-found");
    assert!(missing.to_string().ends_with("/missing"), "{missing}");

    let file = fails(&unix_peer("/etc/passwd"));
    assert_eq!(file.name(), "connect-not-a-socket");
    assert_eq!(file.to_string(), "/etc/passwd is a regular file, not a socket");

    let path = folder.path().join("datagram");
    let _socket = UnixDatagram::bind(&path).unwrap();
    let datagram = fails(&unix_peer(path));
    assert_eq!(datagram.name(), "connect-not-a-socket");
    assert!(datagram.to_string().contains("datagram"), "{datagram}");
}

#[test]
fn a_socket_without_permission_is_named_so() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let _listener = UnixListener::bind(&path).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o000)).unwrap();
    // These two capabilities let root connect anywhere. They belong to a thread, and this one ends with the test.
    let mut sets = capabilities(None).unwrap();
    sets.effective -= CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH;
    set_capabilities(None, sets).unwrap();
    assert_eq!(fails(&unix_peer(path)).name(), "connect-permission");
}

#[test]
fn a_destination_without_a_way_is_unreachable() {
    // TCP cannot reach a multicast group, whatever the routes.
    assert_eq!(fails(&Peer::Tcp("224.0.0.1:80".parse().unwrap())).name(), "connect-unreachable");
}

#[test]
fn a_source_that_is_not_here_is_named() {
    let listener = listener("127.0.0.1:0");
    // TEST-NET-1 (RFC 5737) is never assigned.
    for (source, text) in [("192.0.2.1", "192.0.2.1"), ("::1", "127.0.0.1")] {
        let sources = vec![source.parse().unwrap()];
        let connector = Connector::new(ConnectorOptions { sources, ..ConnectorOptions::default() });
        let error = on_a_core(connector.connect(listener.address(), None)).unwrap_err();
        assert_eq!(error.name(), "connect-source");
        assert!(error.to_string().contains(text), "{error}");
    }
}

/// Opens connections until a unix listener's backlog is full.
async fn fill(connector: &Connector, peer: &Peer) -> (Vec<Stream>, ConnectError) {
    let mut waiting = Vec::new();
    loop {
        match connector.connect(peer, Some(Instant::now())).await {
            Ok(connected) => waiting.push(connected.stream),
            Err(error) => return (waiting, error),
        }
    }
}

#[test]
fn a_full_unix_backlog_is_waited_for() {
    let (_folder, unix) = unix_address();
    for address in [unix, abstract_address()] {
        on_a_core(async {
            let listener = narrow_listener(&address).into_listener().unwrap();
            let connector = Rc::new(Connector::new(ConnectorOptions::default()));
            let peer = listener.address().clone();
            let (waiting, error) = fill(&connector, &peer).await;
            assert_eq!(error.name(), "connect-backlog", "{error}");
            assert!(!waiting.is_empty());
            assert_eq!(ConnectError::overdue(&peer).name(), "connect-backlog");

            // With room, the waiting connect succeeds, with a deadline or without.
            for deadline in [None, Some(Instant::now() + Duration::from_secs(3600))] {
                let (connector, peer) = (Rc::clone(&connector), peer.clone());
                let late = tokio::task::spawn_local(async move { connector.connect(&peer, deadline).await });
                tokio::task::yield_now().await;
                assert!(!late.is_finished());
                listener.accept().await.unwrap();
                late.await.unwrap().unwrap();
            }
        });
    }
}

#[test]
fn a_full_tcp_backlog_times_out() {
    on_a_core(async {
        let listener = narrow_listener("127.0.0.1:0").into_listener().unwrap();
        let connector = Connector::new(ConnectorOptions::default());
        let mut waiting = Vec::new();
        // The kernel accepts the backlog and one more, then drops packets.
        let error = loop {
            let deadline = Some(Instant::now() + Duration::from_millis(200));
            match connector.connect(listener.address(), deadline).await {
                Ok(connected) => waiting.push(connected.stream),
                Err(error) => break error,
            }
            assert!(waiting.len() < 100, "the backlog never fills");
        };
        assert_eq!(error.name(), "connect-timeout", "{error}");
        assert!(!waiting.is_empty());
        let soon = Some(Instant::now() + Duration::from_millis(20));
        let error = connector.connect_sending(listener.address(), soon, b"hello").await.unwrap_err();
        assert_eq!(error.name(), "connect-timeout", "{error}");
        assert_eq!(ConnectError::overdue(listener.address()).name(), "connect-timeout");
    });
}

/// Does the work in a network of its own, with two local ports; skips the test if that is not allowed.
fn in_a_small_network(test: &str, work: impl FnOnce()) {
    let prepare = || {
        std::fs::write("/proc/sys/net/ipv4/ip_local_port_range", "40000 40001").map_err(|_| "sysctls are read-only")?;
        let up = std::process::Command::new("ip").args(["link", "set", "lo", "up"]).status();
        if up.is_ok_and(|status| status.success()) { Ok(()) } else { Err("`ip` (iproute2) is missing, or failed") }
    };
    match NetworkNamespace::new() {
        Ok(network) => network.within(|| prepare().map_or_else(|why| skipped(test, why), |()| work())).unwrap(),
        Err(_) => skipped(test, "a network namespace needs root (CAP_SYS_ADMIN)"),
    }
}

/// Needs CAP_SYS_ADMIN and iproute2; otherwise skipped, because a port range belongs to the whole machine.
#[test]
fn used_up_ports_are_named_so() {
    in_a_small_network("used_up_ports_are_named_so", || {
        assert_eq!(LocalPorts::read().unwrap().count(), 2);
        on_a_core(use_up_ports());
    });
}

async fn use_up_ports() {
    let listener = TcpListener::bind("127.0.0.1:80").unwrap();
    let peer = Peer::Tcp(listener.local_addr().unwrap());
    let connector = Connector::new(ConnectorOptions::default());
    let _held = [connector.connect(&peer, None).await.unwrap(), connector.connect(&peer, None).await.unwrap()];
    let error = connector.connect(&peer, None).await.unwrap_err();
    assert_eq!(error.name(), "ports-exhausted", "{error}");

    // Another destination, or another source with late binding, has all ports again.
    let other = TcpListener::bind("127.0.0.1:81").unwrap();
    connector.connect(&Peer::Tcp(other.local_addr().unwrap()), None).await.unwrap();
    let sources = vec!["127.0.0.2".parse().unwrap()];
    let bound = Connector::new(ConnectorOptions { sources, ..ConnectorOptions::default() });
    let _also_held = [bound.connect(&peer, None).await.unwrap(), bound.connect(&peer, None).await.unwrap()];
    let error = bound.connect(&peer, None).await.unwrap_err();
    assert_eq!(error.name(), "ports-exhausted", "{error}");
}

/// Without a listener, a connect whose source port equals its destination would meet itself and seem to succeed.
#[test]
fn a_connection_to_itself_is_refused() {
    in_a_small_network("a_connection_to_itself_is_refused", || {
        let connector = Connector::new(ConnectorOptions::default());
        for port in [40000, 40001, 40000, 40001] {
            let peer = Peer::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
            let error = on_a_core(connector.connect(&peer, None)).unwrap_err();
            assert_eq!(error.name(), "connect-refused", "{error}");
        }
    });
}

#[test]
fn used_up_descriptors_are_named_so() {
    must_pass(in_a_process(test_name!("without_descriptors"), ""));
}

#[test]
#[ignore = "changes the process's limit: used_up_descriptors_are_named_so runs it"]
fn without_descriptors() {
    let listener = listener("127.0.0.1:0");
    on_a_core(async {
        let before = getrlimit(Resource::Nofile);
        let mut held = Vec::new();
        let limit = 64.min(before.current.unwrap_or(64));
        setrlimit(Resource::Nofile, rustix::process::Rlimit { current: Some(limit), maximum: before.maximum }).unwrap();
        let error = loop {
            match connect(listener.address()).await {
                Ok(connected) => held.push(connected),
                Err(error) => break error,
            }
        };
        assert_eq!(error.name(), "descriptors-exhausted", "{error}");
        // The connector continues once there is room.
        held.pop();
        connect(listener.address()).await.unwrap();
    });
}
