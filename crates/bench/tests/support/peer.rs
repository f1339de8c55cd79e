//! Servers of some lines, on threads of their own, which do to each connection what their test says.
//!
//! The generator makes one connection to each place before its run, without a request: a peer's connection 0.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

pub use oroshi_testkit::ports::{Port, abstract_name, unix_listener};
use rustix::net::sockopt;
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use super::tls::Identity;
use super::{HANG, wait_until};

/// Where a peer listens.
pub enum Place {
    /// A port of 127.0.0.1.
    Tcp,
    /// A unix socket in a temporary folder.
    Unix,
    /// A unix socket in the abstract namespace.
    Abstract,
}

/// A server on threads of its own, until it is dropped.
pub struct Peer {
    pub url: String,
    shared: Arc<Shared>,
    thread: Option<std::thread::JoinHandle<()>>,
    /// What must live as long: a port, a folder.
    keeps: Option<Box<dyn std::any::Any>>,
}

struct Shared {
    seen: Mutex<Seen>,
    changed: Condvar,
    listener: Mutex<Option<Arc<Listening>>>,
}

/// What a peer has seen.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// Connections accepted, the generator's first included.
    pub accepted: usize,
    /// Those that are open now, the generator's first left out, and the most that were.
    pub open: usize,
    pub most_open: usize,
    /// Requests read whole, or their head where a test asks for that alone.
    pub requests: u64,
    /// The same by target.
    pub targets: BTreeMap<String, u64>,
    /// Requests that said `Connection: close`.
    pub last_requests: u64,
    /// Who connected, in order (TCP).
    pub sources: Vec<IpAddr>,
    /// The most requests on one connection.
    pub most_on_one: u64,
}

impl Peer {
    /// Answers each request on a TCP socket.
    pub fn answering(answer: impl Fn(&Request) -> Vec<u8> + Send + Sync + 'static) -> Self {
        Self::start(Place::Tcp, answers(answer))
    }

    /// Hands each connection to `serve`, on a thread of its own.
    pub fn start(place: Place, serve: impl Fn(Conn) + Send + Sync + 'static) -> Self {
        match place {
            Place::Tcp => {
                let port = Port::reserve();
                let mut peer = Self::listening(port.url(), Listening::Tcp(port.listen(1024)), serve);
                peer.keeps = Some(Box::new(port));
                peer
            }
            Place::Unix => {
                let folder = tempfile::tempdir().unwrap();
                let path = folder.path().join("socket");
                let listener = Listening::Unix(unix_listener(&path, 1024));
                let mut peer = Self::listening(format!("unix:{}", path.display()), listener, serve);
                peer.keeps = Some(Box::new(folder));
                peer
            }
            Place::Abstract => {
                let name = abstract_name();
                let address = std::os::unix::net::SocketAddr::from_abstract_name(&name).unwrap();
                let listener = UnixListener::bind_addr(&address).unwrap();
                Self::listening(format!("unix:@{name}"), Listening::Unix(listener), serve)
            }
        }
    }

    /// The same in TLS.
    pub fn start_tls(place: Place, identity: &Identity, serve: impl Fn(Conn) + Send + Sync + 'static) -> Self {
        let config = server_config(identity);
        let mut peer = Self::start(place, move |conn: Conn| {
            if let Some(conn) = conn.into_tls(&config) {
                serve(conn);
            }
        });
        peer.url = match peer.url.strip_prefix("unix:") {
            None => peer.url.replace("http:", "https:"),
            Some(path) => format!("https+unix://{}/", path.replace('/', "%2F")),
        };
        peer
    }

    /// With a listener of the test's own making.
    pub fn listening(url: String, listener: Listening, serve: impl Fn(Conn) + Send + Sync + 'static) -> Self {
        let listener = Arc::new(listener);
        let shared = Arc::new(Shared {
            seen: Mutex::default(),
            changed: Condvar::new(),
            listener: Mutex::new(Some(Arc::clone(&listener))),
        });
        let thread = {
            let shared = Arc::clone(&shared);
            Some(std::thread::spawn(move || accept(listener, &shared, Arc::new(serve))))
        };
        Self { url, shared, thread, keeps: None }
    }

    /// What it has seen so far.
    pub fn seen(&self) -> Seen {
        self.shared.seen().clone()
    }

    /// Waits until it has seen something.
    #[track_caller]
    pub fn wait_for(&self, what: &str, happened: impl Fn(&Seen) -> bool) {
        assert!(self.shared.wait(|seen| happened(seen)), "never saw {what}: {:?}", self.seen());
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.shared.close_listener();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap()
    }

    fn note(&self, note: impl FnOnce(&mut Seen)) {
        note(&mut self.seen());
        self.changed.notify_all();
    }

    fn wait(&self, happened: impl Fn(&Seen) -> bool) -> bool {
        !self.changed.wait_timeout_while(self.seen(), HANG, |seen| !happened(seen)).unwrap().1.timed_out()
    }

    /// Nobody listens any more; waits until that is so.
    fn close_listener(&self) {
        if let Some(listener) = self.listener.lock().unwrap().take() {
            let _ = rustix::net::shutdown(listener.as_fd(), rustix::net::Shutdown::Both);
            // The accepting thread lets go of it as soon as it wakes up.
            wait_until("the listener is closed", || Arc::strong_count(&listener) == 1);
        }
    }
}

/// How a server of rustls shows its certificate.
pub fn server_config(identity: &Identity) -> Arc<ServerConfig> {
    let (chain, key) = identity.der();
    let chain = vec![rustls::pki_types::CertificateDer::from(chain)];
    let key = rustls::pki_types::PrivateKeyDer::try_from(key).unwrap();
    let builder = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
    Arc::new(builder.with_single_cert(chain, key).unwrap())
}

/// A listening socket.
pub enum Listening {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listening {
    fn accept(&self) -> io::Result<Plain> {
        Ok(match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nodelay(true)?;
                Plain::Tcp(stream)
            }
            Self::Unix(listener) => Plain::Unix(listener.accept()?.0),
        })
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(listener) => listener.as_fd(),
            Self::Unix(listener) => listener.as_fd(),
        }
    }
}

fn accept<F: Fn(Conn) + Send + Sync + 'static>(listener: Arc<Listening>, shared: &Arc<Shared>, serve: Arc<F>) {
    while let Ok(stream) = listener.accept() {
        let source = stream.peer();
        let mut index = 0;
        shared.note(|seen| {
            index = seen.accepted;
            seen.accepted += 1;
            seen.open += usize::from(index > 0);
            seen.most_open = seen.most_open.max(seen.open);
            seen.sources.extend(source.map(|address| address.ip()));
        });
        let conn = Conn {
            index,
            wire: Wire::Plain(stream),
            ahead: Vec::new(),
            read: 0,
            pause: Duration::ZERO,
            shared: Arc::clone(shared),
        };
        let serve = Arc::clone(&serve);
        std::thread::spawn(move || serve(conn));
    }
}

/// Serves a connection by answering each request.
pub fn answers(answer: impl Fn(&Request) -> Vec<u8> + Send + Sync + 'static) -> impl Fn(Conn) + Send + Sync + 'static {
    move |mut conn| {
        while let Some(request) = conn.request() {
            if !conn.send(answer(&request)) {
                return;
            }
        }
    }
}

/// A request, as a peer sees it.
#[derive(Clone, Debug)]
pub struct Request {
    /// Which one it is of all that the peer has read, from 0.
    pub number: u64,
    /// Which one it is on its connection, from 0.
    pub on_connection: u64,
    pub method: String,
    pub target: String,
    /// All of the head.
    pub head: String,
    /// Content-Length.
    pub length: usize,
}

/// A connection as a peer sees it. Dropping it closes it in order; unread bytes make that a reset (RFC 1122, 4.2.2.13).
pub struct Conn {
    /// In the order of their coming, from 0, which is the generator's first.
    pub index: usize,
    wire: Wire,
    ahead: Vec<u8>,
    read: u64,
    pause: Duration,
    shared: Arc<Shared>,
}

impl Conn {
    /// From here on each read of some kilobytes takes at least so long.
    pub fn slow_down(&mut self, pause: Duration) {
        self.pause = pause;
    }

    /// The next request with its body, or `None` when the other side is gone.
    pub fn request(&mut self) -> Option<Request> {
        let request = self.parse_head()?;
        let mut left = request.length;
        while left > 0 {
            if self.ahead.is_empty() && !self.more() {
                return None;
            }
            let n = left.min(self.ahead.len());
            self.ahead.drain(..n);
            left -= n;
        }
        Some(self.count(request))
    }

    /// The next request's head; what comes after it is not read.
    pub fn head(&mut self) -> Option<Request> {
        let request = self.parse_head()?;
        Some(self.count(request))
    }

    fn parse_head(&mut self) -> Option<Request> {
        let end = loop {
            if let Some(at) = self.ahead.windows(4).position(|w| w == b"\r\n\r\n") {
                break at + 4;
            }
            if !self.more() {
                return None;
            }
        };
        let head = String::from_utf8(self.ahead.drain(..end).collect()).unwrap();
        let mut words = head.split(' ').map(str::to_owned);
        let (method, target) = (words.next().unwrap(), words.next().unwrap());
        let length = head.lines().find_map(|l| l.strip_prefix("Content-Length: ")).map_or(0, |l| l.parse().unwrap());
        Some(Request { number: 0, on_connection: 0, method, target, head, length })
    }

    fn count(&mut self, mut request: Request) -> Request {
        request.on_connection = self.read;
        self.read += 1;
        self.shared.note(|seen| {
            request.number = seen.requests;
            seen.requests += 1;
            seen.most_on_one = seen.most_on_one.max(self.read);
            seen.last_requests += u64::from(request.head.contains("\r\nConnection: close\r\n"));
            match seen.targets.get_mut(&request.target) {
                Some(n) => *n += 1,
                None => drop(seen.targets.insert(request.target.clone(), 1)),
            }
        });
        request
    }

    /// The next bytes, whatever they are, or `None` when the other side is gone.
    pub fn bytes(&mut self) -> Option<Vec<u8>> {
        (!self.ahead.is_empty() || self.more()).then(|| std::mem::take(&mut self.ahead))
    }

    /// Counts a request that was read in another way.
    pub fn counted(&mut self, method: &str, target: &str) -> Request {
        let (method, target) = (method.to_owned(), target.to_owned());
        self.count(Request { number: 0, on_connection: 0, method, target, head: String::new(), length: 0 })
    }

    fn more(&mut self) -> bool {
        let mut buffer = [0; 16384];
        if !self.pause.is_zero() {
            std::thread::sleep(self.pause);
        }
        match oroshi_testkit::http::read(&mut self.wire, &mut buffer) {
            Ok(0) | Err(_) => false,
            Ok(n) => {
                self.ahead.extend_from_slice(&buffer[..n]);
                true
            }
        }
    }

    /// Waits until the peer has seen something, on whichever connection.
    pub fn wait_for(&self, happened: impl Fn(&Seen) -> bool) -> bool {
        self.shared.wait(happened)
    }

    /// Sends all of it; false when the other side is gone.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        self.wire.write_all(bytes.as_ref()).and_then(|()| self.wire.flush()).is_ok()
    }

    /// Sends byte by byte. A unix socket waits until all but one have been read, before each.
    pub fn trickle(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        use rustix::event::{PollFd, PollFlags, poll};
        let plain = self.wire.plain_mut();
        // The least that there can be, which is one byte's bookkeeping or two (unix_writable in the kernel's
        // af_unix.c).
        let _ = sockopt::set_socket_send_buffer_size(plain.as_fd(), 1);
        bytes.as_ref().iter().all(|&byte| {
            let ready = poll(&mut [PollFd::from_borrowed_fd(plain.as_fd(), PollFlags::OUT)], None);
            ready.is_ok() && plain.write_all(&[byte]).is_ok()
        })
    }

    /// Bytes that go past TLS.
    pub fn send_raw(&mut self, bytes: &[u8]) {
        let _ = self.wire.plain_mut().write_all(bytes);
    }

    /// Tells the other side that TLS ends here.
    pub fn notify_close(&mut self) {
        if let Wire::Tls(session) = &mut self.wire {
            session.conn.send_close_notify();
            let _ = session.flush();
        }
    }

    /// Sends nothing more, and lets the other side close: whatever it still sends is no cause for a reset.
    pub fn close_gently(mut self) {
        let _ = self.wire.flush();
        self.wire.plain().shutdown(Shutdown::Write);
        while self.more() {
            self.ahead.clear();
        }
    }

    /// Neither reads nor writes until the other side is gone, of which it learns without reading anything.
    pub fn ignore(self) {
        let _ = self.wire.plain().wait_for_hangup();
    }

    /// Reads, and never answers, until the other side is gone.
    pub fn stall(mut self) {
        while self.more() {
            self.ahead.clear();
        }
    }

    /// Closes with a reset (SO_LINGER of zero). What was sent and not yet received may be lost.
    pub fn reset(self) {
        sockopt::set_socket_linger(self.wire.plain().as_fd(), Some(Duration::ZERO)).unwrap();
    }

    /// Tells the kernel that nothing more will be read. On a unix socket the other side's writes then fail.
    pub fn stop_reading(&self) {
        self.wire.plain().shutdown(Shutdown::Read);
    }

    /// Closes the peer's listener: whoever connects from here on is refused.
    pub fn close_listener(&self) {
        self.shared.close_listener();
    }

    /// Does the TLS handshake; `None` when it fails.
    pub fn into_tls(mut self, config: &Arc<ServerConfig>) -> Option<Self> {
        let wire = std::mem::replace(&mut self.wire, Wire::Gone);
        let Wire::Plain(plain) = wire else { return None };
        let mut session = StreamOwned::new(ServerConnection::new(Arc::clone(config)).unwrap(), plain);
        session.conn.complete_io(&mut session.sock).ok()?;
        self.wire = Wire::Tls(Box::new(session));
        Some(self)
    }
}

impl Drop for Conn {
    fn drop(&mut self) {
        self.wire = Wire::Gone;
        self.shared.note(|seen| seen.open -= usize::from(self.index > 0));
    }
}

/// A connected socket.
enum Plain {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Plain {
    fn peer(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(stream) => stream.peer_addr().ok(),
            Self::Unix(_) => None,
        }
    }

    fn shutdown(&self, how: Shutdown) {
        // Fails when the other side was quicker, and then there is nothing to do.
        let _ = match self {
            Self::Tcp(stream) => stream.shutdown(how),
            Self::Unix(stream) => stream.shutdown(how),
        };
    }

    fn wait_for_hangup(&self) -> rustix::io::Result<usize> {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let hang = Timespec { tv_sec: HANG.as_secs() as i64, tv_nsec: 0 };
        let fd = self.as_fd();
        poll(&mut [PollFd::new(&fd, PollFlags::RDHUP | PollFlags::HUP)], Some(&hang))
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Unix(stream) => stream.as_fd(),
        }
    }
}

impl Read for Plain {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(buffer),
            Self::Unix(stream) => stream.read(buffer),
        }
    }
}

impl Write for Plain {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

enum Wire {
    Plain(Plain),
    Tls(Box<StreamOwned<ServerConnection, Plain>>),
    Gone,
}

impl Wire {
    fn plain(&self) -> &Plain {
        match self {
            Self::Plain(plain) => plain,
            Self::Tls(session) => &session.sock,
            Self::Gone => panic!("closed"),
        }
    }

    fn plain_mut(&mut self) -> &mut Plain {
        match self {
            Self::Plain(plain) => plain,
            Self::Tls(session) => &mut session.sock,
            Self::Gone => panic!("closed"),
        }
    }
}

impl Read for Wire {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(plain) => plain.read(buffer),
            Self::Tls(session) => session.read(buffer),
            Self::Gone => Ok(0),
        }
    }
}

impl Write for Wire {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(plain) => plain.write(bytes),
            Self::Tls(session) => session.write(bytes),
            Self::Gone => Ok(0),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(_) | Self::Gone => Ok(()),
            Self::Tls(session) => session.flush(),
        }
    }
}
