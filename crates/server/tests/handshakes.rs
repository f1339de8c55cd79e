//! Clients that stop within a TLS handshake, by the thousand. Alone in its process, whose memory it reads and whose
//! limit of descriptors it raises.

mod support;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::net::UnixStream;
use std::path::Path;

use oroshi_net::{ClientTls, Connector, ConnectorOptions, Peer, ensure_descriptors};
use oroshi_server::{ErrorKind, Settings};
use oroshi_testkit::{HANG, Identity};
use rustix::process::{Resource, getrlimit};
use support::{Running, SHORT, describe, patient};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// The most handshakes that the server has under way.
const HANDSHAKES: usize = 500;

/// What one of them may take of the server's memory, and what everything else may.
const EACH_KIB: usize = 32;
const OTHERS_KIB: usize = 16 * 1024;

#[test]
fn thousands_of_clients_that_stop_within_a_handshake_leave_room_for_others() {
    // Both ends of each connection are in this process.
    let most = getrlimit(Resource::Nofile).maximum.map_or(usize::MAX, |most| most as usize);
    let count = 10_000.min(most.saturating_sub(500) / 2);
    ensure_descriptors(2 * count as u64).unwrap();
    let (identity, folder) = (Identity::new(), tempfile::tempdir().unwrap());
    let socket = folder.path().join("tls.sock");
    let settings = Settings {
        handshakes: HANDSHAKES,
        crowded_timeout: SHORT,
        head_timeout: std::time::Duration::from_secs(5),
        // Nothing lingers here; a short time makes the server look often.
        linger_timeout: 4 * SHORT,
        ..patient()
    };
    let address = format!("unix:{}", socket.display());
    let server = Running::start_at(&address, Some(identity.server()), settings, describe);
    let client = ClientTls::new(&identity.trusted(), "localhost").unwrap();
    let hello = client_hello(&client);

    let before = highest_kib();
    let stopped: Vec<UnixStream> = (0..count)
        .map(|number| {
            let mut stream = UnixStream::connect(&socket).unwrap();
            stream.set_read_timeout(Some(HANG)).unwrap();
            // Nothing at all, half a ClientHello, or all of it and no answer to the server's flight. The server may
            // have ended it.
            let _ = stream.write_all(&hello[..[0, hello.len() / 2, hello.len()][number % 3]]);
            stream
        })
        .collect();
    assert_eq!(ask(&server.address, &client), "GET / 0");
    let grown = highest_kib() - before;
    assert!(grown <= HANDSHAKES * EACH_KIB + OTHERS_KIB, "{grown} KiB for {count} clients");
    for mut stream in stopped {
        let _ = stream.read_to_end(&mut Vec::new()); // the server's flight and the end, or a reset
    }
    assert_eq!(ask(&server.address, &client), "GET / 0");
    let counts = server.stop();
    let (crowded, late) = (counts.error(ErrorKind::Crowded), counts.error(ErrorKind::HeadTimeout));
    assert!(crowded as usize >= count - 2 * HANDSHAKES, "{crowded} made room, {late} were too late");
    // The wait for the others' end may have taken some of the client's own attempts.
    assert!(crowded + late >= count as u64, "{crowded} made room, {late} were too late");
}

/// Returns the ClientHello that a client begins with.
fn client_hello(client: &ClientTls) -> Vec<u8> {
    let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
    let address = Peer::Tcp(listener.local_addr().unwrap());
    let accepted = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut head = [0; 5];
        stream.read_exact(&mut head).unwrap();
        let mut body = vec![0; usize::from(u16::from_be_bytes([head[3], head[4]]))];
        stream.read_exact(&mut body).unwrap();
        [&head[..], &body].concat()
    });
    runtime().block_on(connector(client).connect(&address, None)).unwrap_err();
    accepted.join().unwrap()
}

/// How often a client tries. Each attempt waits for the server, which ends an eighth of its handshakes at a time, so
/// that few are needed: a busy server may take this client for one that has stopped.
const ATTEMPTS: usize = 200;

/// Sends a request until it is answered, and returns the answer's body.
fn ask(address: &Peer, client: &ClientTls) -> String {
    runtime().block_on(async {
        for _ in 0..ATTEMPTS {
            let Ok(connected) = connector(client).connect(address, None).await else { continue };
            let (mut stream, mut answer) = (connected.stream, Vec::new());
            let request = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
            if stream.write_all(request).await.is_ok() && stream.read_to_end(&mut answer).await.is_ok() {
                let answer = String::from_utf8(answer).unwrap();
                return answer.split("\r\n\r\n").nth(1).unwrap_or_default().to_owned();
            }
        }
        panic!("{ATTEMPTS} attempts were not answered");
    })
}

fn connector(client: &ClientTls) -> Connector {
    Connector::new(ConnectorOptions { tls: Some(client.clone()), ..ConnectorOptions::default() })
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build().unwrap()
}

/// Returns the most memory that this process has had, KiB.
fn highest_kib() -> usize {
    let status = std::fs::read_to_string(Path::new("/proc/self/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}
