//! Peers that others wrote, over TCP: nginx answers our client; curl and h2load ask `examples/hello_server.rs`.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::Arc;

use oroshi_http2::hpack::Compression;
use oroshi_http2::{Config, Connection, EncodedRequest, Event, Grants, HeadBuffer, Heads, Request};
use oroshi_testkit::{HANG, need, nginx, test_name};

#[path = "../../examples/hello_server.rs"]
#[allow(dead_code)] // its main
mod hello_server;

/// Requests of the test with nginx: more than it allows at once.
const REQUESTS: u32 = 400;

/// Bodies come whole, in windows of the client that are smaller than they, for each way to encode and to decode heads.
#[test]
fn nginx_answers_many_requests_on_one_connection() {
    let body = vec![b'x'; 100_000];
    let http = "server { listen @TCP@ http2; root @FOLDER@; keepalive_requests 10000; }";
    let setup = nginx::Setup { http, files: &[("large", &body), ("small", b"hello world\n")], ..Default::default() };
    let Some(nginx) = setup.start(test_name!("nginx_answers_many_requests_on_one_connection")) else { return };
    for (compression, heads) in [(Compression::Static, Heads::All), (Compression::Dynamic, Heads::Framing)] {
        for (path, length) in [("/small", 12), ("/large", body.len())] {
            let config = Config { compression, heads, grants: Grants::Automatic, ..Config::default() };
            let received = get_all(nginx.tcp, path, config);
            assert_eq!(received, vec![(200, length); REQUESTS as usize], "{path}, {compression:?}, {heads:?}");
        }
    }
}

/// Returns status and length of each response.
fn get_all(address: SocketAddr, path: &str, config: Config) -> Vec<(u16, usize)> {
    let mut stream = TcpStream::connect(address).expect("nginx listens");
    stream.set_read_timeout(Some(HANG)).unwrap();
    let (mut out, mut kept, mut buffer, mut heads) = (Vec::new(), Vec::new(), vec![0; 10_000], HeadBuffer::default());
    let mut connection = Connection::client(Arc::new(config), &mut out);
    let request = Request { method: "GET", scheme: "http", authority: "a", path, protocol: None };
    let fields = [("User-Agent", &b"oroshi"[..]), ("x-test", b"1")];
    let encoded = EncodedRequest::new(&request, fields).unwrap();
    let (mut sent, mut ended, mut received) = (0, 0, vec![(0, 0); REQUESTS as usize]);
    while ended < REQUESTS {
        while connection.is_ready() && sent < REQUESTS && connection.can_open().is_ok() {
            if sent % 2 == 0 {
                connection.send_encoded_request(&mut out, &encoded, true, sent).unwrap();
            } else {
                connection.send_request(&mut out, &request, fields, true, sent).unwrap();
            }
            sent += 1;
        }
        stream.write_all(&out).unwrap();
        out.clear();
        let count = stream.read(&mut buffer).unwrap();
        assert!(count > 0, "nginx has closed");
        kept.extend_from_slice(&buffer[..count]);
        let mut input = &kept[..];
        while let Some(event) = connection.receive(&mut input, &mut heads, &mut out).expect("nginx keeps the rules") {
            match event {
                Event::Response { stream, head, .. } => received[stream.tag as usize].0 = head.status,
                Event::Data { stream, data, end } => {
                    received[stream.tag as usize].1 += data.len();
                    ended += u32::from(end);
                }
                Event::Settings | Event::WindowOpen { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        let used = kept.len() - input.len();
        kept.drain(..used);
    }
    received
}

/// Starts the example's server, which ends with the test's process.
fn server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let stream = stream.unwrap();
            std::thread::spawn(move || hello_server::serve(stream, Arc::new(Config::default())));
        }
    });
    address
}

#[test]
fn curl_gets_and_posts() {
    let Some(curl) = need(test_name!("curl_gets_and_posts"), "curl") else { return };
    let (address, body) = (server(), "x".repeat(300_000));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("body");
    std::fs::write(&file, &body).unwrap();
    for arguments in [vec![], vec!["--data-binary".to_owned(), format!("@{}", file.display())], vec!["-I".to_owned()]] {
        let mut command = Command::new(&curl);
        command.args(["-s", "-S", "-w", " %{http_version} %{http_code}", "--http2-prior-knowledge"]).args(&arguments);
        let output = command.arg(format!("http://{address}/")).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.ends_with(" 2 200"), "{arguments:?}: {text} {output:?}");
        assert_eq!(text.starts_with("hello world\n"), arguments.first().is_none_or(|first| first != "-I"), "{text}");
    }
}

#[test]
fn h2load_gets_all_its_answers() {
    let Some(h2load) = need(test_name!("h2load_gets_all_its_answers"), "h2load") else { return };
    let url = format!("http://{}/", server());
    let output = Command::new(h2load).args(["-n", "5000", "-c", "3", "-m", "64", &url]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("5000 succeeded, 0 failed, 0 errored"), "{text}");
}
