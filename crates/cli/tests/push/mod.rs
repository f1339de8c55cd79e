//! What the tests of `oroshi push` share: the hub as a process, a backend that records its callbacks, clients on a unix
//! socket.
#![allow(dead_code, unreachable_pub, unused_imports, reason = "a module of each test file, which uses its part")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;

use oroshi_net::{BoundListener, ListenOptions, Peer, Shutdown, Threads, ThreadsOptions};
use oroshi_server::{Error, Exchange, Server, Settings};
use oroshi_testkit::http::{self, read_more};
pub use oroshi_testkit::http::{Answer, connect_unix as connect, end_of_head};
pub use oroshi_testkit::websocket::Got;
pub use oroshi_testkit::websocket::UPGRADE;
use oroshi_testkit::websocket::WebSocket;
pub use oroshi_testkit::{HANG, Process};
use tokio::sync::Notify;

/// Starts a command that says when it listens: ours, or kuiperbelt. `Err`: what it said instead, until its end.
pub fn start(command: &mut Command) -> Result<Process, String> {
    Process::try_start(command, &LISTENS)
}

/// As [`start`], and the command keeps the standard input that it was given.
pub fn start_with_stdin(command: &mut Command) -> Result<Process, String> {
    Process::try_start_with_stdin(command, &LISTENS)
}

/// Words of the line that says where the hub listens: of ours, and of kuiperbelt's.
const LISTENS: [&str; 2] = ["listening on ", "listen start"];

/// A request that the backend got.
#[derive(Clone, Debug)]
pub struct Called {
    pub callback: String,
    pub method: String,
    pub target: String,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Called {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    pub fn has(&self, name: &str, value: &str) -> bool {
        self.headers.iter().any(|(known, found)| known.eq_ignore_ascii_case(name) && found == value)
    }
}

/// A backend: it answers the connect callback as its query says, and records everything.
pub struct Backend {
    pub address: SocketAddr,
    called: Receiver<Called>,
    /// What came while something else was waited for.
    kept: Vec<Called>,
    held: Arc<Notify>,
    shutdown: Shutdown,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Backend {
    pub fn start() -> Backend {
        let bound = BoundListener::bind("127.0.0.1:0", &ListenOptions::default()).unwrap();
        let Peer::Tcp(address) = *bound.address() else { panic!("not TCP") };
        let (tell, called) = mpsc::channel();
        let (shutdown, bound) = (Shutdown::new(), std::sync::Mutex::new(Some((bound, tell))));
        let (theirs, held) = (shutdown.clone(), Arc::new(Notify::new()));
        let holds = Arc::clone(&held);
        let thread = std::thread::spawn(move || {
            let serve = move |_| {
                let (bound, tell) = bound.lock().unwrap().take().unwrap();
                let (shutdown, held) = (theirs.clone(), Arc::clone(&holds));
                async move {
                    let answer = async move |exchange: &mut Exchange<'_>| answer(exchange, &tell, &held).await;
                    let settings = Settings { drain_timeout: Duration::ZERO, ..Settings::default() };
                    let server = Server::new(answer, settings);
                    server.serve([bound.into_listener().unwrap().into()], shutdown.reached(1)).await;
                }
            };
            Threads::run(&ThreadsOptions::new("backend", 1), serve).unwrap();
        });
        Backend { address, called, kept: Vec::new(), held, shutdown, thread: Some(thread) }
    }

    /// Lets an establish callback go that is held.
    pub fn release(&self) {
        self.held.notify_one();
    }

    /// The next callback of a name.
    pub fn next(&mut self, name: &str) -> Result<Called, String> {
        if let Some(at) = self.kept.iter().position(|called| called.callback == name) {
            return Ok(self.kept.remove(at));
        }
        loop {
            match self.called.recv_timeout(HANG) {
                Ok(called) if called.callback == name => return Ok(called),
                Ok(other) => self.kept.push(other),
                Err(_) => return Err(format!("no {name} callback has come")),
            }
        }
    }

    /// A callback of a name that has come and was not asked for.
    pub fn left(&mut self, name: &str) -> Option<&Called> {
        self.kept.extend(self.called.try_iter());
        self.kept.iter().find(|called| called.callback == name)
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        self.shutdown.request();
        let ended = self.thread.take().map(std::thread::JoinHandle::join);
        assert!(std::thread::panicking() || matches!(ended, Some(Ok(()))));
    }
}

async fn answer(exchange: &mut Exchange<'_>, tell: &Sender<Called>, held: &Notify) -> Result<(), Error> {
    let head = exchange.head;
    let (path, query) = head.target.split_once('?').unwrap_or((head.target, ""));
    let mut body = Vec::new();
    while let Some(piece) = exchange.body.chunk().await? {
        body.extend_from_slice(piece);
    }
    let called = Called {
        callback: path[1..].to_owned(),
        method: head.method.to_owned(),
        target: head.target.to_owned(),
        headers: head
            .headers
            .iter()
            .map(|h| (h.name.to_owned(), String::from_utf8_lossy(h.value).into_owned()))
            .collect(),
        body,
    };
    let session = called.header("X-Kuiperbelt-Session").unwrap_or_default().to_owned();
    let refuses = (path == "/establish" && session.starts_with("unwanted")) || called.body == b"refuse me";
    let _ = tell.send(called);
    if path == "/establish" && session.starts_with("held") {
        held.notified().await;
    }
    if path != "/connect" {
        return exchange.reply.send(if refuses { 403 } else { 200 }, [], b"").await;
    }
    let value = |name: &str| {
        query.split('&').filter_map(|pair| pair.split_once('=')).find(|pair| pair.0 == name).map(|pair| pair.1)
    };
    if value("redirect").is_some() {
        return exchange.reply.send(302, [("Location", &b"/connect?key=redirected&hello=hi"[..])], b"").await;
    }
    if value("hang").is_some() {
        exchange.body.peer_closed().await;
        return Err(Error::Cut);
    }
    let status = value("status").map_or(200, |status| status.parse().unwrap());
    let mut fields = vec![("Content-Type", value("type").unwrap_or("text/plain").as_bytes())];
    let cookie = head.headers.get("Cookie").and_then(|cookie| str::from_utf8(cookie).ok()?.strip_prefix("key="));
    if let Some(key) = value("key").or(cookie) {
        let header = if exchange.head.headers.get("X-Wants-My-Session").is_some() {
            "X-My-Session"
        } else {
            "X-Kuiperbelt-Session"
        };
        fields.push((header, key.as_bytes()));
    }
    if let Some(groups) = value("groups") {
        fields.push(("X-Oroshi-Groups", groups.as_bytes()));
    }
    if let Some(protocol) = value("protocol") {
        fields.push(("Sec-WebSocket-Protocol", protocol.as_bytes()));
    }
    exchange.reply.send(status, fields, value("hello").unwrap_or_default().as_bytes()).await
}

/// One request on a connection of its own. `headers` are whole lines.
pub fn request(socket: &Path, method: &str, target: &str, headers: &[&str], body: &[u8]) -> Answer {
    let mut stream = connect(socket);
    let length = format!("Content-Length: {}", body.len());
    let mut all = vec!["Connection: close", &length];
    all.extend(headers);
    stream.write_all(&head(method, target, &all)).unwrap();
    stream.write_all(body).unwrap();
    Answer::read(stream)
}

/// One request over TCP, on a connection of its own. `headers` are whole lines.
pub fn request_at(port: u16, method: &str, target: &str, headers: &[&str], body: &[u8]) -> Answer {
    let length = format!("Content-Length: {}", body.len());
    let mut all = vec!["Connection: close"];
    if !body.is_empty() {
        all.push(&length);
    }
    all.extend(headers);
    let mut stream = connect_to(port);
    stream.write_all(&head(method, target, &all)).unwrap();
    stream.write_all(body).unwrap();
    Answer::read(stream)
}

pub fn connect_to(port: u16) -> TcpStream {
    http::connect(SocketAddr::from(([127, 0, 0, 1], port)))
}

/// Asks for a session by GET: the head of the answer, and its connection, which stays open where there is a stream.
pub fn opening(port: u16, target: &str, headers: &[&str]) -> (Answer, TcpStream) {
    let mut stream = connect_to(port);
    stream.write_all(&head("GET", target, headers)).unwrap();
    let mut got = Vec::new();
    loop {
        if let Some(end) = end_of_head(&got) {
            return (Answer::new(&got, end), stream);
        }
        assert!(read_more(&mut stream, &mut got), "{:?}", String::from_utf8_lossy(&got));
    }
}

/// A WebSocket over TCP, without Origin unless `headers` have one; or the answer that refuses it.
pub fn websocket_at(port: u16, target: &str, headers: &[&str]) -> Result<WebSocket<TcpStream>, Answer> {
    let all = [&UPGRADE[..], headers].concat();
    WebSocket::handshake(connect_to(port), &head("GET", target, &all))
}

/// A request's head; a Host of its own goes before the usual one.
pub fn head(method: &str, target: &str, headers: &[&str]) -> Vec<u8> {
    http::head(method, target, "push.test", headers)
}

/// A WebSocket client on a unix socket.
pub type Client = WebSocket<UnixStream>;

/// A client of the first version: a stream of lines, in chunks.
pub struct Lines {
    stream: BufReader<UnixStream>,
    rest: String,
}

impl Lines {
    pub fn open(socket: &Path, target: &str) -> Lines {
        let mut stream = connect(socket);
        stream.write_all(&head("GET", target, &[])).unwrap();
        let mut stream = BufReader::new(stream);
        let mut line = String::new();
        while line != "\r\n" {
            line.clear();
            assert!(stream.read_line(&mut line).unwrap() > 0, "no answer");
        }
        Lines { stream, rest: String::new() }
    }

    /// The next line, without its end.
    pub fn next(&mut self) -> String {
        while !self.rest.contains('\n') {
            let mut size = String::new();
            self.stream.read_line(&mut size).unwrap();
            let mut chunk = vec![0; usize::from_str_radix(size.trim(), 16).unwrap() + 2];
            self.stream.read_exact(&mut chunk).unwrap();
            self.rest.push_str(str::from_utf8(&chunk[..chunk.len() - 2]).unwrap());
        }
        let line = self.rest.split_once('\n').unwrap().0.to_owned();
        self.rest.drain(..=line.len());
        line
    }
}
