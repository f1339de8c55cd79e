//! Tests the hub's floor with raw sockets: a correct handshake, and every message to every subscriber, in order.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

struct Floor {
    process: Child,
    address: String,
}

impl Floor {
    fn start() -> Self {
        let mut process =
            Command::new(env!("CARGO_BIN_EXE_floor-fanout")).arg("127.0.0.1:0").stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().rsplit(' ').next().unwrap().to_owned();
        Self { process, address }
    }

    fn connect(&self) -> BufReader<TcpStream> {
        BufReader::new(TcpStream::connect(&self.address).unwrap())
    }

    fn subscribe(&self) -> BufReader<TcpStream> {
        let mut stream = self.connect();
        // The example of RFC 6455, section 1.3.
        let key = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==";
        write!(stream.get_mut(), "GET /sub HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\n{key}\r\n\r\n").unwrap();
        let head = head(&mut stream);
        assert!(head.starts_with("HTTP/1.1 101 ") && head.contains("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="), "{head}");
        stream
    }
}

impl Drop for Floor {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn head(stream: &mut impl BufRead) -> String {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert!(stream.read_line(&mut head).unwrap() > 0, "{head}");
    }
    head
}

#[test]
fn every_message_goes_to_everybody_in_order() {
    let floor = Floor::start();
    let mut subscribers = [floor.subscribe(), floor.subscribe()];
    let mut publisher = floor.connect();
    let messages = ["short".to_owned(), "x".repeat(1000)];
    for message in &messages {
        // In two pieces: a body may follow its head later.
        write!(publisher.get_mut(), "POST /pub HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", message.len())
            .unwrap();
        write!(publisher.get_mut(), "{message}").unwrap();
        let head = head(&mut publisher);
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        publisher.read_exact(&mut [0; 2]).unwrap();
    }
    for subscriber in &mut subscribers {
        let mut frames = [0; 2 + 5 + 4 + 1000];
        subscriber.read_exact(&mut frames).unwrap();
        assert_eq!(frames[..7], *b"\x81\x05short");
        assert_eq!(frames[7..11], [0x81, 126, 3, 0xe8]);
        assert!(frames[11..].iter().all(|&byte| byte == b'x'));
    }
}

#[test]
fn a_subscriber_that_has_gone_is_no_trouble_to_the_others() {
    let floor = Floor::start();
    drop(floor.subscribe());
    let mut stays = floor.subscribe();
    let mut publisher = floor.connect();
    for _ in 0..3 {
        write!(publisher.get_mut(), "POST /pub HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\na").unwrap();
        head(&mut publisher);
        publisher.read_exact(&mut [0; 2]).unwrap();
    }
    let mut frames = [0; 9];
    stays.read_exact(&mut frames).unwrap();
    assert_eq!(frames, *b"\x81\x01a\x81\x01a\x81\x01a");
}
