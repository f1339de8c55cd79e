//! What the tests of `oroshi push` share: the hub as a process, a backend that records its callbacks, clients on a unix socket.
#![allow(dead_code, unreachable_pub, unused_imports, reason = "a module of each test file, which uses its part")]

#[path = "../../../push/tests/hub/websocket.rs"]
mod websocket;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use oroshi_net::{BoundListener, Cores, CoresOptions, ListenOptions, Peer, Shutdown};
use oroshi_server::{Error, Exchange, Server, Settings};
use rustix::process::{Pid, Signal, kill_process};
use tokio::sync::Notify;
use websocket::WebSocket;
pub use websocket::{Answer, Got, end_of_head};

/// A test that hangs fails by this, and no other test depends on it.
pub const HANG: Duration = Duration::from_secs(30);

/// A hub as a process of its own. Dropping it kills it.
pub struct Process {
    child: Child,
    lines: Receiver<String>,
    /// What it has said so far.
    pub said: Vec<String>,
}

impl Process {
    /// Starts a command whose standard error says when it listens. `Err`: what it said instead, until its end.
    pub fn start(command: &mut Command) -> Result<Process, String> {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let (tell, lines) = mpsc::channel();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        std::thread::spawn(move || stderr.lines().map_while(Result::ok).all(|line| tell.send(line).is_ok()));
        let mut process = Process { child, lines, said: Vec::new() };
        loop {
            match process.lines.recv_timeout(HANG) {
                Ok(line) => process.said.push(line),
                Err(error) => return Err(format!("{error}: {}", process.said.join("\n"))),
            }
            // Ours, and kuiperbelt's.
            let listens = |line: &String| line.contains("listening on ") || line.contains("listen start");
            if process.said.last().is_some_and(listens) {
                return Ok(process);
            }
        }
    }

    /// The port in what it said about where it listens.
    pub fn port(&self) -> u16 {
        let line =
            self.said.iter().find_map(|line| line.split_once("http://")).unwrap_or_else(|| panic!("{:?}", self.said)).1;
        let port = line.split('/').next().unwrap().rsplit(':').next().unwrap();
        port.parse().unwrap()
    }

    /// Waits until it has said this.
    pub fn until_said(&mut self, what: &str) {
        while !self.said.iter().any(|line| line.contains(what)) {
            match self.lines.recv_timeout(HANG) {
                Ok(line) => self.said.push(line),
                Err(error) => panic!("{error}: nothing of `{what}`: {}", self.said.join("\n")),
            }
        }
    }

    /// The ports of its TCP listeners, in the order in which it said them; it says so many lines about where it listens.
    pub fn ports(&mut self, lines: usize) -> Vec<u16> {
        while self.said.iter().filter(|line| line.contains("listening on ")).count() < lines {
            let line = self.lines.recv_timeout(HANG).unwrap_or_else(|error| panic!("{error}: {:?}", self.said));
            self.said.push(line);
        }
        let urls = self.said.iter().filter_map(|line| line.split_once("listening on http://"));
        urls.map(|(_, url)| url.split('/').next().unwrap().rsplit(':').next().unwrap().parse().unwrap()).collect()
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for its end.
    pub fn ended(&mut self) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                self.said.extend(self.lines.iter());
                return status;
            }
            assert!(start.elapsed() < HANG, "it does not end: {:?}", self.said);
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

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
            Cores::run(&CoresOptions::new("backend", 1), serve).unwrap();
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
    let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(HANG)).unwrap();
    stream
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
        assert!(websocket::read_more(&mut stream, &mut got), "{:?}", String::from_utf8_lossy(&got));
    }
}

/// A WebSocket over TCP, without Origin unless `headers` have one; or the answer that refuses it.
pub fn websocket_at(port: u16, target: &str, headers: &[&str]) -> Result<WebSocket<TcpStream>, Answer> {
    let all = [&UPGRADE[..], headers].concat();
    WebSocket::handshake(connect_to(port), &head("GET", target, &all))
}

pub fn connect(socket: &Path) -> UnixStream {
    let stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(HANG)).unwrap();
    stream
}

/// A request's head; a Host of its own goes before the usual one.
pub fn head(method: &str, target: &str, headers: &[&str]) -> Vec<u8> {
    let mut head = format!("{method} {target} HTTP/1.1\r\n");
    if !headers.iter().any(|line| line.starts_with("Host: ")) {
        head.push_str("Host: push.test\r\n");
    }
    for line in headers {
        head.push_str(line);
        head.push_str("\r\n");
    }
    head.push_str("\r\n");
    head.into_bytes()
}

/// The header lines that ask for a WebSocket.
pub const UPGRADE: [&str; 4] = [
    "Upgrade: websocket",
    "Connection: Upgrade",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
];

/// A WebSocket client on a unix socket.
pub type Client = WebSocket<UnixStream>;

impl Client {
    /// Opens one, or gives the answer that refuses it. `headers` are whole lines.
    pub fn open(socket: &Path, target: &str, headers: &[&str]) -> Result<Client, Answer> {
        let mut all = UPGRADE.to_vec();
        if !headers.iter().any(|line| line.starts_with("Origin: ")) {
            all.push("Origin: http://push.test");
        }
        all.extend(headers);
        Client::handshake(connect(socket), &head("GET", target, &all))
    }
}

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
