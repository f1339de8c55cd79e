//! The control socket: HTTP on a unix socket that only this user may connect to.
//!
//! - `GET /status`: [`Status`] as JSON.
//! - `GET /metrics`: the same for Prometheus.
//! - `POST /restart`: starts a new generation. The response is an [`Outcome`], sent when the generation serves and
//!   the older ones have ended, or when it has failed for good. `POST /restart?first` also responds when the first
//!   attempt has failed, even if another follows.

use std::cell::Cell;
use std::path::Path;
use std::pin::Pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use oroshi_net::listen::ListenError;
use oroshi_net::{BoundListener, ConnectError, Connector, ConnectorOptions, ListenOptions, Peer, UnixAddress};
use oroshi_server::{Error, Exchange, Server, Settings};
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc::UnboundedSender, oneshot};

use crate::http::{HttpError, answer, request, write};
use crate::status::Status;

/// The result of a requested restart.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "kebab-case")]
pub enum Outcome {
    /// The new generation serves, and the older ones have ended.
    Replaced {
        /// Its number.
        generation: u64,
        /// Its process.
        pid: u32,
    },
    /// The new generation failed.
    Failed {
        /// Its number.
        generation: u64,
        /// The reason.
        why: String,
        /// The generation that keeps serving, if any.
        stays: Option<u64>,
        /// Whether another attempt follows automatically.
        again: bool,
    },
    /// The superdaemon is ending.
    Ending,
}

/// A request to the superdaemon.
#[derive(Debug)]
pub(crate) enum Request {
    Status(oneshot::Sender<Status>),
    Restart {
        /// Whether to report the first attempt, even if another follows.
        first: bool,
        reply: oneshot::Sender<Outcome>,
    },
}

/// The reason why the superdaemon cannot be reached.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// Nothing listens there: check that it is running, and that this is its socket.
    #[error("no superdaemon answers at {}", .path)]
    Connect {
        /// The socket.
        path: String,
        /// The kernel's error.
        source: Box<ConnectError>,
    },
    /// The path cannot be a socket's: use the right one.
    #[error("`{path}` cannot be a control socket")]
    Path {
        /// The path.
        path: String,
        /// The defect.
        source: oroshi_net::address::UnixAddressError,
    },
    /// It ended meanwhile, or another program listens there.
    #[error("the superdaemon at {path} gave no answer")]
    Http {
        /// The socket.
        path: String,
        /// The cause.
        source: HttpError,
    },
    /// It is stuck, perhaps because its log is not read: check what it waits for.
    #[error("the superdaemon at {path} took a connection, and gave no answer within {seconds}s")]
    Late {
        /// The socket.
        path: String,
        /// Seconds waited.
        seconds: u64,
    },
    /// Another program listens there, or another version.
    #[error("what listens at {path} is no superdaemon of this version: it answered with status {status}")]
    Answer {
        /// The socket.
        path: String,
        /// The status of its response.
        status: u16,
    },
    /// No runtime could be made: no descriptors are left.
    #[error("cannot prepare to connect")]
    Runtime(#[source] std::io::Error),
}

/// Binds the socket.
pub(crate) fn bind(address: &UnixAddress) -> Result<BoundListener, ListenError> {
    let options = ListenOptions { backlog: 16, unix_mode: Some(0o600), ..ListenOptions::default() };
    BoundListener::bind_unix(address.clone(), &options)
}

/// The most simultaneous connections.
const CONNECTIONS: usize = 64;
/// The most connections that may wait for a restart; the others remain for status requests.
const WAITING: usize = 48;

/// Serves requests until `end` resolves.
pub(crate) async fn serve(
    listener: oroshi_net::Listener,
    asks: impl Fn(Request) + 'static,
    end: impl Future<Output = ()>,
) {
    let settings = Settings { connections: CONNECTIONS, drain_timeout: Duration::from_secs(1), ..Settings::default() };
    let waiting = Cell::new(0);
    let handler = async move |exchange: &mut Exchange<'_>| handle(exchange, &asks, &waiting).await;
    Server::new(handler, settings).serve([listener.into()], end).await;
}

const JSON: (&str, &[u8]) = ("Content-Type", b"application/json");
const TEXT: (&str, &[u8]) = ("Content-Type", b"text/plain; charset=utf-8");
const PROMETHEUS: (&str, &[u8]) = ("Content-Type", b"text/plain; version=0.0.4");

async fn handle(exchange: &mut Exchange<'_>, asks: &impl Fn(Request), waiting: &Cell<usize>) -> Result<(), Error> {
    let head = &exchange.head;
    let (path, query) = head.target.split_once('?').unwrap_or((head.target, ""));
    match (head.method, path) {
        ("GET", "/status" | "/metrics") => {
            let (reply, status) = oneshot::channel();
            asks(Request::Status(reply));
            let is_status = path == "/status";
            match status.await {
                Ok(status) if is_status => exchange.reply.send(200, [JSON], json(&status).as_bytes()).await,
                Ok(status) => exchange.reply.send(200, [PROMETHEUS], status.metrics().as_bytes()).await,
                Err(_) => exchange.reply.send(503, [TEXT], b"ending\n").await,
            }
        }
        ("POST", "/restart") if waiting.get() >= WAITING => {
            let why = format!("{WAITING} wait for a restart already\n");
            exchange.reply.send(503, [TEXT], why.as_bytes()).await
        }
        ("POST", "/restart") => {
            let (reply, mut outcome) = oneshot::channel();
            asks(Request::Restart { first: query == "first", reply });
            waiting.set(waiting.get() + 1);
            let mut gone = std::pin::pin!(exchange.body.peer_closed());
            let outcome = std::future::poll_fn(|context| match Pin::new(&mut outcome).poll(context) {
                Poll::Ready(outcome) => Poll::Ready(Some(outcome.unwrap_or(Outcome::Ending))),
                // The client has gone; the restart continues.
                Poll::Pending => gone.as_mut().poll(context).map(|()| None),
            })
            .await;
            waiting.set(waiting.get() - 1);
            match outcome {
                Some(outcome) => exchange.reply.send(200, [JSON], json(&outcome).as_bytes()).await,
                None => exchange.reply.send(503, [TEXT], b"the client has gone away\n").await,
            }
        }
        (_, "/status" | "/metrics") => exchange.reply.send(405, [TEXT, ("Allow", b"GET")], b"GET alone\n").await,
        (_, "/restart") => exchange.reply.send(405, [TEXT, ("Allow", b"POST")], b"POST alone\n").await,
        _ => exchange.reply.send(404, [TEXT], b"expected /status, /metrics or /restart\n").await,
    }
}

fn json(value: &impl Serialize) -> String {
    // JSON can represent all of it.
    let mut text = serde_json::to_string_pretty(value).unwrap_or_default();
    text.push('\n');
    text
}

/// Asks the superdaemon at this socket for its status.
///
/// # Errors
/// [`ControlError`] if it cannot be reached.
pub fn ask_status(path: &Path) -> Result<Status, ControlError> {
    ask(path, "GET", "/status", Some(ANSWER))
}

/// Makes the superdaemon at this socket start a new generation, and waits for the outcome; with `first`, for that of
/// the first attempt.
///
/// # Errors
/// [`ControlError`] if it cannot be reached.
pub fn ask_restart(path: &Path, first: bool) -> Result<Outcome, ControlError> {
    ask(path, "POST", if first { "/restart?first" } else { "/restart" }, None)
}

/// Timeout for connecting, and for answers that need no wait.
const CONNECT: Duration = Duration::from_secs(10);
const ANSWER: Duration = Duration::from_secs(10);

fn ask<T: for<'de> Deserialize<'de>>(
    path: &Path,
    method: &str,
    target: &str,
    patience: Option<Duration>,
) -> Result<T, ControlError> {
    let shown = || path.display().to_string();
    let address = UnixAddress::path(path).map_err(|source| ControlError::Path { path: shown(), source })?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(ControlError::Runtime)?;
    let http = |source| ControlError::Http { path: shown(), source };
    runtime.block_on(async {
        let connector = Connector::new(ConnectorOptions::default());
        let deadline = Instant::now() + CONNECT;
        let connected = connector.connect(&Peer::Unix(address), Some(deadline)).await;
        let mut stream =
            connected.map_err(|source| ControlError::Connect { path: shown(), source: Box::new(source) })?.stream;
        let request = request(method, "localhost", target).map_err(http)?;
        write(&mut stream, &request).await.map_err(|error| http(error.into()))?;
        let answering = answer(&mut stream);
        let answer = match patience {
            None => answering.await.map_err(http)?,
            Some(patience) => {
                let late = |_| ControlError::Late { path: shown(), seconds: patience.as_secs() };
                tokio::time::timeout(patience, answering).await.map_err(late)?.map_err(http)?
            }
        };
        let read = serde_json::from_slice(&answer.body).ok().filter(|_| answer.status == 200);
        read.ok_or_else(|| ControlError::Answer { path: shown(), status: answer.status })
    })
}

/// Sends requests into a channel.
pub(crate) fn into_channel<T: 'static>(
    sender: UnboundedSender<T>,
    wrap: impl Fn(Request) -> T + 'static,
) -> impl Fn(Request) + 'static {
    move |ask| {
        // After the end the reply is dropped, which tells the client.
        let _ = sender.send(wrap(ask));
    }
}
