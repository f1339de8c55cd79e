//! Peers for the client's tests: ones that do as they are told byte by byte, and a real server.
#![allow(dead_code, unreachable_pub, unused_imports)] // a module of each test file, which uses its part

pub mod nginx;
#[path = "../../../server/tests/support/running.rs"]
mod running;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use oroshi_client::{Builder, Client, Deadlines, Error};
use oroshi_net::ServerTls;
use oroshi_net::tls::ServerTlsOptions;
use oroshi_server::Settings;
use oroshi_testkit::http2::server::Server;
use oroshi_testkit::http2::{Config, Grants};
pub use oroshi_testkit::{HANG, Identity, skipped};
pub use running::Running;
use socket2::{Domain, SockAddr, Socket, Type};

/// Short enough to wait for.
pub const SHORT: Duration = Duration::from_millis(50);

/// Runs a future where `spawn_local` works.
pub fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().enable_all().build_local(Default::default()).unwrap().block_on(future)
}

/// Deadlines that no test reaches by accident.
pub fn patient() -> Deadlines {
    Deadlines {
        queue: HANG,
        dns: HANG,
        connect: HANG,
        tls: HANG,
        write: HANG,
        first_byte: HANG,
        between_bytes: HANG,
        total: HANG * 2,
    }
}

pub fn builder() -> Builder {
    Client::builder().deadlines(patient())
}

/// Everything that an error and its causes say.
pub fn told(error: &Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

/// A server that does whatever the test says, on threads of its own. Connections are counted from 0.
pub struct Peer {
    pub address: SocketAddr,
    accepted: Arc<AtomicUsize>,
}

impl Peer {
    pub fn start(serve: impl Fn(Conversation, usize) + Send + Sync + 'static) -> Peer {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let accepted = Arc::new(AtomicUsize::new(0));
        let (counter, serve) = (Arc::clone(&accepted), Arc::new(serve));
        // It ends with the process: nothing tells it to end before.
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let number = counter.fetch_add(1, Ordering::SeqCst);
                let serve = Arc::clone(&serve);
                std::thread::spawn(move || serve(Conversation::new(stream.unwrap()), number));
            }
        });
        Peer { address, accepted }
    }

    /// Answers each request on each connection with the same bytes, and closes after the first if told to.
    pub fn answering(answer: impl Into<Vec<u8>>, close: bool) -> Peer {
        let answer = answer.into();
        Peer::start(move |mut peer, _| {
            while peer.request().is_some() {
                peer.send(&answer);
                if close {
                    return;
                }
            }
        })
    }

    pub fn url(&self, target: &str) -> String {
        format!("http://{}{target}", self.address)
    }

    /// How many connections there were.
    pub fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }
}

/// One connection of a [`Peer`].
pub struct Conversation {
    pub stream: TcpStream,
    ahead: Vec<u8>,
}

impl Conversation {
    fn new(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(HANG * 2)).unwrap();
        stream.set_nodelay(true).unwrap();
        Conversation { stream, ahead: Vec::new() }
    }

    /// The next request's head; `None` when the client has closed.
    pub fn request(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.ahead.windows(4).position(|window| window == b"\r\n\r\n") {
                let head: Vec<u8> = self.ahead.drain(..end + 4).collect();
                return Some(String::from_utf8(head).unwrap());
            }
            if !self.more() {
                return None;
            }
        }
    }

    /// As many bytes of a body.
    pub fn body(&mut self, length: usize) -> Vec<u8> {
        while self.ahead.len() < length {
            assert!(self.more(), "the client closed within its body");
        }
        self.ahead.drain(..length).collect()
    }

    /// Everything until the client closes, however it does.
    pub fn rest(&mut self) -> Vec<u8> {
        while self.more() {}
        std::mem::take(&mut self.ahead)
    }

    fn more(&mut self) -> bool {
        let mut buffer = [0; 64 * 1024];
        let count = self.stream.read(&mut buffer).unwrap_or(0);
        self.ahead.extend_from_slice(&buffer[..count]);
        count > 0
    }

    /// Sends, unless the client has gone: then it does not want it.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        self.stream.write_all(bytes.as_ref()).is_ok()
    }

    /// Closes with a reset.
    pub fn reset(self) {
        socket2::SockRef::from(&self.stream).set_linger(Some(Duration::ZERO)).unwrap();
    }
}

/// A listener whose line of connections is full, so that a connect neither succeeds nor fails.
pub struct Full {
    pub url: String,
    _sockets: Vec<Socket>,
}

impl Full {
    pub fn tcp() -> Full {
        let listener = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        listener.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        listener.listen(0).unwrap();
        let address = listener.local_addr().unwrap();
        // Linux keeps one more than it is told to; it drops what asks for more.
        let first = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        first.connect(&address).unwrap();
        let url = format!("http://{}/", address.as_socket().unwrap());
        Full { url, _sockets: vec![listener, first] }
    }

    pub fn unix() -> Full {
        let name = oroshi_testkit::ports::abstract_name();
        let address = SockAddr::unix(format!("\0{name}")).unwrap();
        let listener = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
        listener.bind(&address).unwrap();
        listener.listen(0).unwrap();
        let mut sockets = vec![listener];
        loop {
            let socket = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
            socket.set_nonblocking(true).unwrap();
            match socket.connect(&address) {
                Ok(()) => sockets.push(socket),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                Err(error) => panic!("{error}"),
            }
        }
        Full { url: format!("unix:@{name}:/"), _sockets: sockets }
    }
}

/// Settings of a [`Running`] server that keeps idle connections.
pub fn keeping() -> Settings {
    Settings { idle_timeout: HANG * 3, drain_timeout: SHORT, ..Settings::default() }
}

/// A server of HTTP/2 that does whatever the test says, on threads of its own. Connections are counted from 0.
pub struct Http2Peer {
    pub address: SocketAddr,
    accepted: Arc<AtomicUsize>,
}

impl Http2Peer {
    pub fn start(serve: impl Fn(Server, usize) + Send + Sync + 'static) -> Http2Peer {
        Http2Peer::with(Server::on, serve)
    }

    /// A server with at most so many streams at once.
    pub fn limited(streams: u32, serve: impl Fn(Server, usize) + Send + Sync + 'static) -> Http2Peer {
        let config = Config { streams, grants: Grants::Automatic, ..Config::default() };
        Http2Peer::with(move |socket| Server::with(socket, config.clone()), serve)
    }

    fn with(
        begin: impl Fn(TcpStream) -> Server + Send + Sync + 'static,
        serve: impl Fn(Server, usize) + Send + Sync + 'static,
    ) -> Http2Peer {
        let peer = Peer::start(move |conversation, number| serve(begin(conversation.stream), number));
        Http2Peer { address: peer.address, accepted: peer.accepted }
    }

    pub fn url(&self, target: &str) -> String {
        format!("http://{}{target}", self.address)
    }

    pub fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }
}

/// Answers each request with its target.
pub fn echoes(mut server: Server, _: usize) {
    while let Some(asked) = server.request() {
        server.answer(asked.id, 200, asked.target.as_bytes());
    }
}

/// A builder that speaks HTTP/2 without TLS.
pub fn http2() -> Builder {
    builder().http2_prior_knowledge()
}

/// Settings of TLS with both versions, as `oroshi target` has them.
pub fn both_versions(identity: &Identity) -> ServerTls {
    let (certificate, key) = identity.files();
    let options = ServerTlsOptions { alpn: vec![b"h2".to_vec(), b"http/1.1".to_vec()], ..Default::default() };
    ServerTls::from_files(certificate, key, &options).unwrap()
}
