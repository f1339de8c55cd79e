//! A hub on free ports, and clients that speak to it over plain blocking sockets.
#![allow(dead_code, unreachable_pub, unused_imports)] // each test file uses a part of it

mod backend;

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub use backend::{Asked, Backend};
use oroshi_net::{Peer, Shutdown};
use oroshi_push::{Bound, Door, Plan, RunError, Serves};
use oroshi_websocket::{CloseCode, Decoder, Event, Kind, Limits, Role, encode};

/// Longer than anything here takes, on a machine that has other things to do.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A hub at work. Dropping it ends it in good form.
pub struct Hub {
    pub address: SocketAddr,
    pub shutdown: Shutdown,
    thread: Option<JoinHandle<Result<(), RunError>>>,
}

impl Hub {
    /// Starts one with everything behind one door.
    pub fn start(change: impl FnOnce(&mut Plan)) -> Hub {
        let doors = vec![Door { address: "127.0.0.1:0".to_owned(), serves: Serves::Everything }];
        let mut plan = Plan { doors, ..Plan::default() };
        plan.drain.timeout = Duration::from_secs(1);
        change(&mut plan);
        let doors = Bound::bind(&plan).unwrap();
        let Peer::Tcp(address) = *doors[0].listeners[0].address() else { panic!("not a TCP door") };
        let shutdown = Shutdown::new();
        let (ready, is_ready) = mpsc::channel();
        let theirs = shutdown.clone();
        let thread = std::thread::spawn(move || {
            oroshi_push::run(plan, doors, &theirs, move || {
                let _ = ready.send(());
            })
        });
        is_ready.recv_timeout(PATIENCE).unwrap();
        Hub { address, shutdown, thread: Some(thread) }
    }

    /// Asks it to end, and waits until it has.
    pub fn stop(mut self) {
        self.shutdown.request();
        self.thread.take().unwrap().join().unwrap().unwrap();
    }

    pub fn websocket(&self, target: &str) -> WebSocket {
        WebSocket::open(self.address, target, &[]).unwrap_or_else(|answer| panic!("{answer:?}"))
    }

    /// A session that was told its key.
    pub fn session(&self) -> (WebSocket, String) {
        let mut socket = self.websocket("/connect");
        let key = key_of(&socket.text());
        (socket, key)
    }

    pub fn request(&self, method: &str, target: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        request(self.address, method, target, headers, body)
    }

    /// Publishes by the native API, and gives the receipt.
    pub fn publish(&self, envelope: serde_json::Value) -> serde_json::Value {
        let json = [("Content-Type", "application/json")];
        let answer = self.request("POST", "/publish", &json, envelope.to_string().as_bytes());
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.json()
    }

    pub fn status(&self) -> serde_json::Value {
        self.request("GET", "/status", &[], b"").json()
    }

    /// Waits until `/status` is as `is` wants it.
    pub fn until(&self, what: &str, is: impl Fn(&serde_json::Value) -> bool) -> serde_json::Value {
        let start = Instant::now();
        loop {
            let status = self.status();
            if is(&status) {
                return status;
            }
            assert!(start.elapsed() < PATIENCE, "{what}: {status}");
            std::thread::yield_now();
        }
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.shutdown.request();
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            if !std::thread::panicking() {
                ended.unwrap().unwrap();
            }
        }
    }
}

/// The key in a session's first words.
pub fn key_of(text: &str) -> String {
    let value: serde_json::Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    value["session"].as_str().unwrap().to_owned()
}

/// An HTTP answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{}: {error}", self.text()))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.head
            .lines()
            .filter_map(|line| line.split_once(": "))
            .find(|(n, _)| n.eq_ignore_ascii_case(name))
            .map(|(_, v)| v)
    }
}

/// One request on a connection of its own.
pub fn request(address: SocketAddr, method: &str, target: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
    let mut stream = connect(address);
    stream.write_all(&head(method, target, headers, Some(body.len()), true)).unwrap();
    stream.write_all(body).unwrap();
    read_answer(stream)
}

/// The answer on a connection that closes behind it.
pub fn read_answer(mut stream: TcpStream) -> Answer {
    let mut all = Vec::new();
    stream.read_to_end(&mut all).unwrap();
    let end = all.windows(4).position(|four| four == b"\r\n\r\n").unwrap_or_else(|| panic!("{all:?}"));
    let head = String::from_utf8(all[..end].to_vec()).unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Answer { status, head, body: all.split_off(end + 4) }
}

pub fn head(method: &str, target: &str, headers: &[(&str, &str)], length: Option<usize>, close: bool) -> Vec<u8> {
    let mut head = format!("{method} {target} HTTP/1.1\r\nHost: hub.test\r\n");
    if close {
        head.push_str("Connection: close\r\n");
    }
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    if let Some(length) = length.filter(|_| method != "GET") {
        head.push_str(&format!("Content-Length: {length}\r\n"));
    }
    head.push_str("\r\n");
    head.into_bytes()
}

pub fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// What a WebSocket client gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Got {
    Text(String),
    Binary(Vec<u8>),
    Ping(Vec<u8>),
    Pong(Vec<u8>),
    Close(Option<u16>, String),
    /// The connection ended.
    End,
}

/// A WebSocket client.
pub struct WebSocket {
    pub stream: TcpStream,
    decoder: Decoder,
    bytes: Vec<u8>,
    /// Whether pings are answered, and not told of.
    pub answers_pings: bool,
}

impl WebSocket {
    /// Opens one, or gives the answer that refuses it.
    pub fn open(address: SocketAddr, target: &str, headers: &[(&str, &str)]) -> Result<WebSocket, Answer> {
        let mut stream = connect(address);
        let mut all = vec![
            ("Upgrade", "websocket"),
            ("Connection", "Upgrade"),
            ("Sec-WebSocket-Version", "13"),
            ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ];
        all.extend_from_slice(headers);
        stream.write_all(&head("GET", target, &all, None, false)).unwrap();
        let (mut got, mut end) = (Vec::new(), None);
        while end.is_none() {
            let mut buffer = [0; 4096];
            let count = stream.read(&mut buffer).unwrap();
            assert!(count > 0, "{}", String::from_utf8_lossy(&got));
            got.extend_from_slice(&buffer[..count]);
            end = got.windows(4).position(|four| four == b"\r\n\r\n");
        }
        let end = end.unwrap();
        let head = String::from_utf8(got[..end].to_vec()).unwrap();
        let mut bytes = got.split_off(end + 4);
        let status: u16 = head.split(' ').nth(1).unwrap().parse().unwrap();
        if status != 101 {
            let length =
                head.lines().find_map(|line| line.strip_prefix("Content-Length: ")).map_or(0, |n| n.parse().unwrap());
            while bytes.len() < length {
                let mut buffer = [0; 4096];
                let count = stream.read(&mut buffer).unwrap();
                assert!(count > 0);
                bytes.extend_from_slice(&buffer[..count]);
            }
            return Err(Answer { status, head, body: bytes });
        }
        assert!(head.contains("Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo="), "{head}");
        Ok(WebSocket { stream, decoder: Decoder::new(Role::Client), bytes, answers_pings: true })
    }

    /// The next thing to come.
    pub fn next(&mut self) -> Got {
        loop {
            if let Some(got) = self.decode() {
                match got {
                    Got::Ping(payload) if self.answers_pings => {
                        let mut out = Vec::new();
                        encode::pong(&mut out, &payload, Some([1, 2, 3, 4]));
                        let _ = self.stream.write_all(&out);
                        continue;
                    }
                    got => return got,
                }
            }
            let mut buffer = [0; 16 * 1024];
            match self.stream.read(&mut buffer) {
                Ok(0) => return Got::End,
                Ok(count) => self.bytes.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return Got::End,
                Err(error) => panic!("nothing came: {error}"),
            }
        }
    }

    fn decode(&mut self) -> Option<Got> {
        let limits = Limits { message_bytes: 64 << 20 };
        let mut input = &mut self.bytes[..];
        let before = input.len();
        let event = self.decoder.decode(&limits, &mut input).unwrap();
        let got = event.map(|event| match event {
            Event::Message { kind: Kind::Text, data } => Got::Text(String::from_utf8(data.into_owned()).unwrap()),
            Event::Message { kind: Kind::Binary, data } => Got::Binary(data.into_owned()),
            Event::Ping(payload) => Got::Ping(payload.to_vec()),
            Event::Pong(payload) => Got::Pong(payload.to_vec()),
            Event::Close { code, reason } => Got::Close(code.map(|code| code.0), reason.to_owned()),
        });
        let left = input.len();
        self.bytes.drain(..before - left);
        got
    }

    /// The next message, which is a text.
    pub fn text(&mut self) -> String {
        match self.next() {
            Got::Text(text) => text,
            other => panic!("{other:?}"),
        }
    }

    pub fn send(&mut self, kind: Kind, data: &[u8]) {
        let mut out = Vec::new();
        encode::masked_message(&mut out, kind, data, [9, 8, 7, 6]);
        self.stream.write_all(&out).unwrap();
    }

    pub fn close(&mut self, code: u16) {
        let mut out = Vec::new();
        encode::masked_close(&mut out, CloseCode(code), "", [9, 8, 7, 6]);
        self.stream.write_all(&out).unwrap();
    }
}
