//! One connection to one server for all requests: what has gathered goes out in one write, and answers are matched in
//! order.
//!
//! An answer that does not come in time, or that is none, ends the connection: what came after it could be taken for
//! another's.

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
use crate::breaker::{Breaker, Looks, State as BreakerState};
use crate::clock;
use crate::settings::MemcachedSettings;

/// A server and the connection to it, which is made when it is needed.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) name: String,
    place: Place,
    settings: Rc<MemcachedSettings>,
    state: RefCell<State>,
}

/// Where a server is.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Place {
    Peer(Peer),
    Name(String, u16),
}

#[derive(Debug)]
struct State {
    breaker: Breaker,
    /// What is to be written.
    out: Vec<u8>,
    /// What was asked, in order, and not yet answered.
    asked: VecDeque<Asked>,
    /// Wakes the task that drives the connection.
    driver: Option<Waker>,
    connected: bool,
    connects: u64,
    closed: bool,
    /// It is being asked whether it is back.
    probing: bool,
}

#[derive(Debug)]
struct Asked {
    request: Request,
    key: Box<[u8]>,
    deadline: Instant,
    answer: oneshot::Sender<Result<Got, Failure>>,
}

/// An answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Got {
    Value(Box<[u8]>),
    Missing,
    Done,
}

/// What the connection is about, for those who ask.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerState {
    /// As configured.
    pub server: String,
    /// What its breaker does.
    pub breaker: BreakerState,
    /// Whether there is a connection.
    pub connected: bool,
    /// How often one was made.
    pub connects: u64,
    /// Requests without an answer yet.
    pub pending: usize,
}

impl Server {
    /// A server, and a task on this thread that drives its connection until [`Server::close`].
    pub(super) fn start(name: String, place: Place, settings: Rc<MemcachedSettings>) -> Rc<Self> {
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
        let server = Rc::new(Server { name, place, settings, state: RefCell::new(state) });
        tokio::task::spawn_local(Rc::clone(&server).drive());
        server
    }

    /// Asks, and waits for the answer. Dropping the future leaves the request on its way and its answer unheard.
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
            // A new connection takes its time first.
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
        let mut looks = None;
        loop {
            let is_left_alone = self.state.borrow().breaker.is_open();
            if is_left_alone {
                let pause = looks.get_or_insert_with(|| Looks::new(self.settings.breaker)).next(fastrand::f64());
                self.pause(pause).await;
            } else {
                looks = None;
                poll_fn(|cx| self.poll_wanted(cx)).await;
            }
            if self.state.borrow().closed {
                break;
            }
            self.state.borrow_mut().probing = is_left_alone;
            let failure = match self.connect(&connector).await {
                Ok(stream) => {
                    if is_left_alone {
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

    /// Until then, or until it is closed.
    async fn pause(&self, pause: Duration) {
        let mut time = std::pin::pin!(tokio::time::sleep(pause));
        poll_fn(|cx| {
            let mut state = self.state.borrow_mut();
            state.driver = Some(cx.waker().clone());
            if state.closed { Poll::Ready(()) } else { time.as_mut().poll(cx) }
        })
        .await;
    }

    /// Asks whether it is back: the first thing on a new connection, which requests then go on with. Nobody waits for the answer.
    fn ask_version(&self) {
        let mut state = self.state.borrow_mut();
        let (answer, _) = oneshot::channel();
        wire::version(&mut state.out);
        let deadline = Instant::now() + self.settings.timeout;
        state.asked.push_back(Asked { request: Request::Version, key: Box::default(), deadline, answer });
    }

    /// Until something is asked, or it is closed.
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
            let peers = match &self.place {
                Place::Peer(peer) => vec![peer.clone()],
                Place::Name(name, port) => {
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

    /// Whoever waits is told. The first of them had its time; what the others were asked broke off with it.
    fn fail(&self, failure: &Failure) {
        let mut state = self.state.borrow_mut();
        state.out.clear();
        let asked = std::mem::take(&mut state.asked);
        for (index, asked) in asked.into_iter().enumerate() {
            let failure = match failure {
                Failure::Timeout | Failure::Garbage(_) if index > 0 => {
                    Failure::Lost("given up, as an earlier answer on it did not come, or was none".into())
                }
                failure => failure.clone(),
            };
            if failure.is_its_fault()
                && let Some(news) = state.breaker.failed(clock::now())
            {
                news.tell(&format!("the memcached server `{}`", self.name), Some(&failure));
            }
            let _ = asked.answer.send(Err(failure)); // whoever asked may have gone
        }
    }

    /// Hands out the answers that are whole.
    fn answer(&self, input: &mut &[u8]) -> Result<(), Failure> {
        let mut state = self.state.borrow_mut();
        while !input.is_empty() {
            let Some(asked) = state.asked.front() else {
                return Err(Failure::Garbage("an answer to nothing that was asked".into()));
            };
            let garbage = |garbage: wire::Garbage| Failure::Garbage(garbage.to_string().into());
            let decoded = wire::decode(input, asked.request, self.settings.value_bytes).map_err(garbage)?;
            let Some((reply, bytes)) = decoded else { break };
            let got = match reply {
                Reply::Value { key, .. } if *key != *asked.key => {
                    return Err(Failure::Garbage("a value under another key".into()));
                }
                Reply::Value { data, .. } => Ok(Got::Value(data.into())),
                Reply::Missing => Ok(Got::Missing),
                Reply::Done => Ok(Got::Done),
                Reply::ServerError(message) => Err(Failure::Refused(String::from_utf8_lossy(message).into())),
            };
            *input = &input[bytes..];
            if let Some(news) = state.breaker.succeeded() {
                news.tell(&format!("the memcached server `{}`", self.name), None);
            }
            if let Some(asked) = state.asked.pop_front() {
                let _ = asked.answer.send(got); // whoever asked may have gone
            }
        }
        Ok(())
    }
}

/// A connection at work.
struct Connection<'a> {
    server: &'a Server,
    stream: Stream,
    /// What is being written, and how much of it is out.
    writing: Vec<u8>,
    written: usize,
    /// The beginning of an answer.
    input: Incoming,
    /// Fires when the oldest request has had its time, or earlier.
    timer: Pin<Box<Sleep>>,
    armed: bool,
}

impl<'a> Connection<'a> {
    fn new(server: &'a Server, stream: Stream) -> Self {
        let timer = Box::pin(tokio::time::sleep(Duration::ZERO));
        Connection { server, stream, writing: Vec::new(), written: 0, input: Incoming::default(), timer, armed: false }
    }

    /// Until it is of no use any more; why.
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

    /// Writes what there is, as far as the socket takes it.
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

    /// Reads what there is, and answers what can be.
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

    /// The oldest is due first; one that was asked during the connect at most keeps the next ones a little longer.
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

/// `host`, `host:port`, `[::1]:port`, `unix:/path`, `unix:@name`.
pub(super) fn parse_place(text: &str) -> Option<Place> {
    const PORT: u16 = 11211;
    if let Some(name) = text.strip_prefix("unix:") {
        let fine = name.starts_with(['/', '@']);
        return UnixAddress::parse(name).ok().filter(|_| fine).map(|name| Place::Peer(Peer::Unix(name)));
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
        return Some(Place::Peer(Peer::Tcp(SocketAddr::new(IpAddr::V6(address.parse().ok()?), port))));
    }
    let name = crate::key::name_or_ipv4(host).ok()?;
    Some(match name.parse::<IpAddr>() {
        Ok(address) => Place::Peer(Peer::Tcp(SocketAddr::new(address, port))),
        Err(_) => Place::Name(name.into_owned(), port),
    })
}
