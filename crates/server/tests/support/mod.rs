//! A server on a thread of its own, and clients that write raw bytes.
#![allow(dead_code, unreachable_pub)] // a module of each test file, which uses its part

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use oroshi_net::{BoundListener, Cores, CoresOptions, ListenOptions, Peer, ServerTls, Shutdown};
use oroshi_server::{Counts, Door, Error, Exchange, Handler, Server, Settings};

/// A test that hangs fails by this, and no other test depends on it.
pub const HANG: Duration = Duration::from_secs(30);

pub struct Running {
    pub address: Peer,
    pub shutdown: Shutdown,
    cores: Cores<Counts>,
}

impl Running {
    pub fn start<H: Handler + Clone + Send + Sync>(settings: Settings, handler: H) -> Running {
        Running::start_at("127.0.0.1:0", None, settings, handler)
    }

    pub fn start_at<H: Handler + Clone + Send + Sync>(
        address: &str,
        tls: Option<ServerTls>,
        settings: Settings,
        handler: H,
    ) -> Running {
        let bound = BoundListener::bind(address, &ListenOptions::default()).unwrap();
        let address = bound.address().clone();
        let shutdown = Shutdown::new();
        let ending = shutdown.clone();
        // Taken out by the thread: a listener that stayed here would keep its socket open after the shutdown.
        let bound = Mutex::new(Some(bound));
        let cores = Cores::start(&CoresOptions::new("server", 1), move |_| {
            let server = Server::new(handler.clone(), settings.clone());
            let (bound, tls, ending) = (bound.lock().unwrap().take().unwrap(), tls.clone(), ending.clone());
            async move {
                let listener = bound.into_listener().unwrap();
                server.serve([Door { listener, tls }], ending.reached(1)).await;
                server.counters().counts()
            }
        });
        Running { address, shutdown, cores: cores.unwrap() }
    }

    pub fn tcp(&self) -> SocketAddr {
        match &self.address {
            Peer::Tcp(address) => *address,
            Peer::Unix(_) => panic!("a unix socket"),
        }
    }

    pub fn connect(&self) -> Client {
        Client::new(TcpStream::connect(self.tcp()).unwrap())
    }

    /// Shuts down, waits for the end, and gives what was counted.
    pub fn stop(self) -> Counts {
        self.shutdown.request();
        let counts = self.cores.join().unwrap();
        counts[0]
    }
}

#[derive(Debug)]
pub enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Read for &Socket {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Socket::Tcp(stream) => (&mut &*stream).read(buffer),
            Socket::Unix(stream) => (&mut &*stream).read(buffer),
        }
    }
}

impl Write for &Socket {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self {
            Socket::Tcp(stream) => (&mut &*stream).write(bytes),
            Socket::Unix(stream) => (&mut &*stream).write(bytes),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

pub struct Client {
    pub socket: Arc<Socket>,
    /// Read, and not yet asked for.
    ahead: Vec<u8>,
    /// How often something was read.
    pub reads: usize,
}

impl Client {
    pub fn new(stream: TcpStream) -> Client {
        stream.set_read_timeout(Some(HANG)).unwrap();
        stream.set_write_timeout(Some(HANG)).unwrap();
        stream.set_nodelay(true).unwrap();
        Client { socket: Arc::new(Socket::Tcp(stream)), ahead: Vec::new(), reads: 0 }
    }

    pub fn unix(path: &std::path::Path) -> Client {
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(HANG)).unwrap();
        Client { socket: Arc::new(Socket::Unix(stream)), ahead: Vec::new(), reads: 0 }
    }

    /// To send from another thread, until it fails: what that thread does then.
    pub fn send_until_refused(&self, bytes: &'static [u8]) -> std::thread::JoinHandle<()> {
        let socket = Arc::clone(&self.socket);
        std::thread::spawn(move || while (&*socket).write_all(bytes).is_ok() {})
    }

    pub fn send(&mut self, bytes: impl AsRef<[u8]>) -> &mut Self {
        (&*self.socket).write_all(bytes.as_ref()).unwrap();
        self
    }

    /// Ends this side; the other may still send.
    pub fn half_close(&mut self) -> &mut Self {
        self.shut(std::net::Shutdown::Write);
        self
    }

    /// Ends both sides, for a thread that still sends.
    pub fn give_up(&mut self) {
        self.shut(std::net::Shutdown::Both);
    }

    /// Closes with a reset.
    pub fn reset(self) {
        let Socket::Tcp(stream) = &*self.socket else { panic!("a unix socket cannot") };
        socket2::SockRef::from(stream).set_linger(Some(Duration::ZERO)).unwrap();
    }

    fn shut(&self, how: std::net::Shutdown) {
        // It fails when the server was first, which is as good.
        let _ = match &*self.socket {
            Socket::Tcp(stream) => stream.shutdown(how),
            Socket::Unix(stream) => stream.shutdown(how),
        };
    }

    /// The next answer, with the body that its framing says.
    pub fn answer(&mut self) -> Answer {
        self.answer_to("GET")
    }

    pub fn answer_to(&mut self, method: &str) -> Answer {
        let head = String::from_utf8(self.until(b"\r\n\r\n")).unwrap();
        let status: u16 = head.strip_prefix("HTTP/1.1 ").and_then(|rest| rest[..3].parse().ok()).expect(&head);
        let mut answer = Answer { status, head, body: Vec::new() };
        if method == "HEAD" || status < 200 || status == 204 || status == 304 {
            return answer;
        }
        if let Some(length) = answer.field("content-length") {
            answer.body = self.exactly(length.parse().unwrap());
        } else if answer.field("transfer-encoding").as_deref() == Some("chunked") {
            loop {
                let line = String::from_utf8(self.until(b"\r\n")).unwrap();
                let length = usize::from_str_radix(line.trim(), 16).unwrap();
                if length == 0 {
                    while self.until(b"\r\n") != b"\r\n" {}
                    break;
                }
                answer.body.extend(self.exactly(length));
                assert_eq!(self.exactly(2), b"\r\n");
            }
        } else {
            answer.body = self.rest();
        }
        answer
    }

    /// Everything until the server closes, which it must do without an error.
    pub fn rest(&mut self) -> Vec<u8> {
        let mut rest = std::mem::take(&mut self.ahead);
        (&*self.socket).read_to_end(&mut rest).expect("a proper close");
        rest
    }

    /// Asserts that the server has nothing more to say, and closes.
    pub fn closed(&mut self) {
        let rest = self.rest();
        assert!(rest.is_empty(), "{}", rest.escape_ascii());
    }

    /// Everything until the connection ends, however it does.
    pub fn end(&mut self) -> Vec<u8> {
        let mut rest = std::mem::take(&mut self.ahead);
        match (&*self.socket).read_to_end(&mut rest) {
            Err(error) if error.kind() != std::io::ErrorKind::ConnectionReset => panic!("{error}"),
            _ => rest,
        }
    }

    /// Asserts that the connection ends with an error instead of a proper close; gives what came before.
    pub fn was_reset(&mut self) -> Vec<u8> {
        let mut rest = std::mem::take(&mut self.ahead);
        let error = (&*self.socket).read_to_end(&mut rest).expect_err("a reset");
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
        rest
    }

    /// The head of an answer whose body is read by other means.
    pub fn until_head(&mut self) -> String {
        String::from_utf8(self.until(b"\r\n\r\n")).unwrap()
    }

    fn until(&mut self, mark: &[u8]) -> Vec<u8> {
        loop {
            if let Some(place) = self.ahead.windows(mark.len()).position(|window| window == mark) {
                return self.exactly(place + mark.len());
            }
            self.more();
        }
    }

    pub fn exactly(&mut self, length: usize) -> Vec<u8> {
        while self.ahead.len() < length {
            self.more();
        }
        self.ahead.drain(..length).collect()
    }

    fn more(&mut self) {
        let mut buffer = [0; 64 * 1024];
        let count = (&*self.socket).read(&mut buffer).expect("an answer");
        self.reads += 1;
        assert_ne!(count, 0, "closed in the middle: {}", self.ahead.escape_ascii());
        self.ahead.extend_from_slice(&buffer[..count]);
    }
}

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn field(&self, name: &str) -> Option<String> {
        let line = self.head.lines().find(|line| line.to_ascii_lowercase().starts_with(&format!("{name}:")))?;
        Some(line[name.len() + 1..].trim().to_owned())
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }
}

/// Answers with what was asked: method, target, and the body's length.
pub async fn describe(exchange: &mut Exchange<'_>) -> Result<(), Error> {
    let mut length = 0;
    while let Some(piece) = exchange.body.chunk().await? {
        length += piece.len();
    }
    let text = format!("{} {} {length}", exchange.head.method, exchange.head.target);
    exchange.reply.send(200, [("Content-Type", &b"text/plain"[..])], text.as_bytes()).await
}

/// Waits for something that happens on the server's thread.
pub fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

/// Limits that no test reaches by accident.
pub fn patient() -> Settings {
    Settings {
        idle_timeout: HANG * 2,
        head_timeout: HANG * 2,
        body_timeout: HANG * 2,
        write_timeout: HANG * 2,
        linger_timeout: HANG * 2,
        ..Settings::default()
    }
}

/// Short enough to wait for.
pub const SHORT: Duration = Duration::from_millis(50);
