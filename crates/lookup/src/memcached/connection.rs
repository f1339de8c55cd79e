//! One connection per memcached server for all requests. Pending requests leave in one write; replies match requests in
//! order.
//!
//! A late or malformed reply ends the connection, because later replies could be matched to the wrong requests.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::{Future as _, poll_fn};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use oroshi_core::{Incoming, Scratch};
use oroshi_net::{Connector, ConnectorOptions, Peer, Stream, UnixAddress};
use tokio::io::{AsyncRead as _, AsyncWrite as _, ReadBuf};
use tokio::sync::oneshot;
use tokio::time::{Instant, Sleep, timeout_at};

use super::wire::{self, Reply, Request};
use crate::answer::Failure;
use crate::breaker::{Breaker, ProbeSchedule, State as BreakerState};
use crate::clock;
use crate::settings::MemcachedSettings;

/// A server and its connection, which is opened on demand.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) name: String,
    address: ServerAddress,
    settings: Rc<MemcachedSettings>,
    state: RefCell<State>,
}

/// The address of a server.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum ServerAddress {
    Peer(Peer),
    Name(String, u16),
}

#[derive(Debug)]
struct State {
    breaker: Breaker,
    /// Bytes to write.
    out: Vec<u8>,
    /// Requests without a reply yet, in order.
    asked: VecDeque<Asked>,
    /// Wakes the task that drives the connection.
    driver: Option<Waker>,
    connected: bool,
    connects: u64,
    closed: bool,
    /// Whether a probe is under way.
    probing: bool,
}

#[derive(Debug)]
struct Asked {
    request: Request,
    key: Box<[u8]>,
    deadline: Instant,
    answer: oneshot::Sender<Result<Got, Failure>>,
}

/// A reply.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Got {
    Value(Box<[u8]>),
    /// A value with its version.
    Versioned(Box<[u8]>, u64),
    Missing,
    Done,
    /// Nothing was stored, because another was first.
    Changed,
}

/// The state of a server's connection, for operators.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerState {
    /// The server's address as configured.
    pub server: String,
    /// The state of its breaker.
    pub breaker: BreakerState,
    /// Whether a connection is open.
    pub connected: bool,
    /// The number of connections opened so far.
    pub connects: u64,
    /// Requests without a reply yet.
    pub pending: usize,
}

impl Server {
    /// Starts a task on this thread that drives the connection until [`Server::close`].
    pub(super) fn start(name: String, address: ServerAddress, settings: Rc<MemcachedSettings>) -> Rc<Self> {
        let state = State {
            breaker: Breaker::new(settings.breaker),
            out: Vec::new(),
            asked: VecDeque::new(),
            driver: None,
            connected: false,
            connects: 0,
            closed: false,
            probing: false,
        };
        let server = Rc::new(Server { name, address, settings, state: RefCell::new(state) });
        tokio::task::spawn_local(Rc::clone(&server).drive());
        server
    }

    /// Sends a request, and waits for the reply. If the future is dropped, the request is still sent and its reply
    /// ignored.
    pub(super) async fn ask(
        &self,
        request: Request,
        key: &[u8],
        write: impl FnOnce(&mut Vec<u8>),
    ) -> Result<Got, Failure> {
        let answer = {
            let mut state = self.state.borrow_mut();
            if state.asked.len() >= self.settings.pending {
                return Err(Failure::Busy);
            }
            if state.breaker.is_open() {
                return Err(Failure::BreakerOpen);
            }
            let (answer, answered) = oneshot::channel();
            write(&mut state.out);
            // A new connection needs time to connect first.
            let patience = if state.connected { Duration::ZERO } else { self.settings.connect_timeout };
            let deadline = Instant::now() + self.settings.timeout + patience;
            state.asked.push_back(Asked { request, key: key.into(), deadline, answer });
            if let Some(driver) = state.driver.take() {
                driver.wake();
            }
            answered
        };
        answer.await.unwrap_or(Err(Failure::Closed))
    }

    /// Ends the connection and the task.
    pub(super) fn close(&self) {
        let mut state = self.state.borrow_mut();
        state.closed = true;
        if let Some(driver) = state.driver.take() {
            driver.wake();
        }
    }

    pub(super) fn state(&self) -> ServerState {
        let state = self.state.borrow();
        ServerState {
            server: self.name.clone(),
            breaker: match (state.breaker.is_open(), state.probing) {
                (false, _) => BreakerState::Closed,
                (true, false) => BreakerState::Open,
                (true, true) => BreakerState::Probing,
            },
            connected: state.connected,
            connects: state.connects,
            pending: state.asked.len(),
        }
    }

    async fn drive(self: Rc<Self>) {
        let connector = Connector::new(ConnectorOptions::default());
        let mut probes = None;
        loop {
            let has_open_breaker = self.state.borrow().breaker.is_open();
            if has_open_breaker {
                let pause =
                    probes.get_or_insert_with(|| ProbeSchedule::new(self.settings.breaker)).next(fastrand::f64());
                self.pause(pause).await;
            } else {
                probes = None;
                poll_fn(|cx| self.poll_wanted(cx)).await;
            }
            if self.state.borrow().closed {
                break;
            }
            self.state.borrow_mut().probing = has_open_breaker;
            let failure = match self.connect(&connector).await {
                Ok(stream) => {
                    if has_open_breaker {
                        self.ask_version();
                    }
                    self.connected(true);
                    let ended = Connection::new(&self, stream).serve().await;
                    self.connected(false);
                    ended
                }
                Err(failure) => failure,
            };
            self.state.borrow_mut().probing = false;
            self.fail(&failure);
        }
        self.fail(&Failure::Closed);
    }

    /// Waits for this long, or until `close`.
    async fn pause(&self, pause: Duration) {
        let mut time = std::pin::pin!(tokio::time::sleep(pause));
        poll_fn(|cx| {
            let mut state = self.state.borrow_mut();
            state.driver = Some(cx.waker().clone());
            if state.closed { Poll::Ready(()) } else { time.as_mut().poll(cx) }
        })
        .await;
    }

    /// Sends a probe: the first request on a new connection, which later requests then use. Nobody waits for the reply.
    fn ask_version(&self) {
        let mut state = self.state.borrow_mut();
        let (answer, _) = oneshot::channel();
        wire::version(&mut state.out);
        let deadline = Instant::now() + self.settings.timeout;
        state.asked.push_back(Asked { request: Request::Version, key: Box::default(), deadline, answer });
    }

    /// Ready when there is a request, or after `close`.
    fn poll_wanted(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.state.borrow_mut();
        if state.closed || !state.asked.is_empty() {
            return Poll::Ready(());
        }
        state.driver = Some(cx.waker().clone());
        Poll::Pending
    }

    fn connected(&self, connected: bool) {
        let mut state = self.state.borrow_mut();
        state.connected = connected;
        state.connects += u64::from(connected);
    }

    async fn connect(&self, connector: &Connector) -> Result<Stream, Failure> {
        let deadline = Instant::now() + self.settings.connect_timeout;
        let connecting = async {
            let peers = match &self.address {
                ServerAddress::Peer(peer) => vec![peer.clone()],
                ServerAddress::Name(name, port) => {
                    let found = tokio::net::lookup_host((name.as_str(), *port)).await;
                    found.map_err(|error| Failure::Connect(error.to_string().into()))?.map(Peer::Tcp).collect()
                }
            };
            let mut failure = Failure::Connect("its name has no address".into());
            for peer in &peers {
                match connector.connect(peer, None).await {
                    Ok(connected) => return Ok(connected.stream),
                    Err(error) => failure = Failure::Connect(error.to_string().into()),
                }
            }
            Err(failure)
        };
        let overdue = || Failure::Connect(format!("not within {:?}", self.settings.connect_timeout).into());
        timeout_at(deadline, connecting).await.unwrap_or_else(|_| Err(overdue()))
    }

    /// Fails all waiting requests. Only the first is at fault for a timeout or an invalid reply; the others get a lost
    /// connection.
    fn fail(&self, failure: &Failure) {
        let mut state = self.state.borrow_mut();
        state.out.clear();
        let asked = std::mem::take(&mut state.asked);
        for (index, asked) in asked.into_iter().enumerate() {
            let failure = match failure {
                Failure::Timeout | Failure::InvalidReply(_) if index > 0 => {
                    Failure::Lost("given up, as an earlier answer on it did not come, or was none".into())
                }
                failure => failure.clone(),
            };
            if failure.is_its_fault()
                && let Some(change) = state.breaker.failed(clock::now())
            {
                change.tell(&format!("the memcached server `{}`", self.name), Some(&failure));
            }
            let _ = asked.answer.send(Err(failure)); // the caller may have gone
        }
    }

    /// Delivers the complete replies.
    fn answer(&self, input: &mut &[u8]) -> Result<(), Failure> {
        let mut state = self.state.borrow_mut();
        while !input.is_empty() {
            let Some(asked) = state.asked.front() else {
                return Err(Failure::InvalidReply("an answer to nothing that was asked".into()));
            };
            let garbage = |garbage: wire::ProtocolError| Failure::InvalidReply(garbage.to_string().into());
            let decoded = wire::decode(input, asked.request, self.settings.value_bytes).map_err(garbage)?;
            let Some((reply, bytes)) = decoded else { break };
            let got = match reply {
                Reply::Value { key, .. } if *key != *asked.key => {
                    return Err(Failure::InvalidReply("a value under another key".into()));
                }
                Reply::Value { data, version: Some(version), .. } => Ok(Got::Versioned(data.into(), version)),
                Reply::Value { data, .. } => Ok(Got::Value(data.into())),
                Reply::Missing => Ok(Got::Missing),
                Reply::Done => Ok(Got::Done),
                Reply::Changed => Ok(Got::Changed),
                Reply::ServerError(message) => Err(Failure::Refused(String::from_utf8_lossy(message).into())),
            };
            *input = &input[bytes..];
            if let Some(change) = state.breaker.succeeded() {
                change.tell(&format!("the memcached server `{}`", self.name), None);
            }
            if let Some(asked) = state.asked.pop_front() {
                let _ = asked.answer.send(got); // the caller may have gone
            }
        }
        Ok(())
    }
}

/// An open connection.
struct Connection<'a> {
    server: &'a Server,
    stream: Stream,
    /// The bytes being written, and how many of them are written.
    writing: Vec<u8>,
    written: usize,
    /// The beginning of an incomplete reply.
    input: Incoming,
    /// Fires at the oldest request's deadline, or earlier.
    timer: Pin<Box<Sleep>>,
    armed: bool,
}

impl<'a> Connection<'a> {
    fn new(server: &'a Server, stream: Stream) -> Self {
        let timer = Box::pin(tokio::time::sleep(Duration::ZERO));
        Connection { server, stream, writing: Vec::new(), written: 0, input: Incoming::default(), timer, armed: false }
    }

    /// Drives the connection until it fails, and returns the failure.
    async fn serve(mut self) -> Failure {
        poll_fn(|cx| self.poll(cx)).await
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Failure> {
        if self.server.state.borrow().closed {
            return Poll::Ready(Failure::Closed);
        }
        let result = self.poll_write(cx).and_then(|()| self.poll_read(cx)).and_then(|()| self.poll_timer(cx));
        match result {
            Err(failure) => Poll::Ready(failure),
            Ok(()) => {
                self.server.state.borrow_mut().driver = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    /// Writes as much as the socket takes.
    fn poll_write(&mut self, cx: &mut Context<'_>) -> Result<(), Failure> {
        loop {
            if self.written == self.writing.len() {
                self.writing.clear();
                self.written = 0;
                std::mem::swap(&mut self.writing, &mut self.server.state.borrow_mut().out);
                if self.writing.is_empty() {
                    return Ok(());
                }
            }
            match Pin::new(&mut self.stream).poll_write(cx, &self.writing[self.written..]) {
                Poll::Ready(written) => self.written += written.map_err(lost)?,
                Poll::Pending => return Ok(()),
            }
        }
    }

    /// Reads available bytes, and delivers complete replies.
    fn poll_read(&mut self, cx: &mut Context<'_>) -> Result<(), Failure> {
        let mut scratch = Scratch::take();
        loop {
            let mut buffer = ReadBuf::new(&mut scratch);
            match Pin::new(&mut self.stream).poll_read(cx, &mut buffer) {
                Poll::Pending => return Ok(()),
                Poll::Ready(Err(error)) => return Err(lost(error)),
                Poll::Ready(Ok(())) if buffer.filled().is_empty() => {
                    return Err(Failure::Lost("the server closed it".into()));
                }
                Poll::Ready(Ok(())) => {
                    let server = self.server;
                    self.input.decode(buffer.filled(), |input| server.answer(input))?;
                }
            }
        }
    }

    /// Checks the oldest request's deadline, which is the earliest, except that a request made during the connect may
    /// delay later ones a little.
    fn poll_timer(&mut self, cx: &mut Context<'_>) -> Result<(), Failure> {
        loop {
            let Some(due) = self.server.state.borrow().asked.front().map(|asked| asked.deadline) else { return Ok(()) };
            if !self.armed {
                self.timer.as_mut().reset(due);
                self.armed = true;
            }
            if self.timer.as_mut().poll(cx).is_pending() {
                return Ok(());
            }
            self.armed = false;
            if due <= Instant::now() {
                return Err(Failure::Timeout);
            }
        }
    }
}

fn lost(error: io::Error) -> Failure {
    Failure::Lost(error.to_string().into())
}

/// Parses `host`, `host:port`, `[::1]:port`, `unix:/path` or `unix:@name`.
pub(super) fn parse_address(text: &str) -> Option<ServerAddress> {
    const PORT: u16 = 11211;
    if let Some(name) = text.strip_prefix("unix:") {
        let fine = name.starts_with(['/', '@']);
        return UnixAddress::parse(name).ok().filter(|_| fine).map(|name| ServerAddress::Peer(Peer::Unix(name)));
    }
    let bracket = text.rfind(']').unwrap_or(0);
    let (host, port) = match text[bracket..].find(':') {
        None => (text, PORT),
        Some(colon) => {
            let (host, port) = text.split_at(bracket + colon);
            (host, port[1..].parse().ok().filter(|&port| port > 0)?)
        }
    };
    if let Some(address) = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        return Some(ServerAddress::Peer(Peer::Tcp(SocketAddr::new(IpAddr::V6(address.parse().ok()?), port))));
    }
    let name = crate::key::name_or_ipv4(host).ok()?;
    Some(match name.parse::<IpAddr>() {
        Ok(address) => ServerAddress::Peer(Peer::Tcp(SocketAddr::new(address, port))),
        Err(_) => ServerAddress::Name(name.into_owned(), port),
    })
}
