//! The server of a core: accepts connections, and shuts down.

use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use oroshi_net::{Listener, ServerTls, Stream};
use tokio::task::JoinSet;

use crate::connection::{self, Accepted, Begin, Http2, Turns};
use crate::core::{ConnectionGuard, Core};
use crate::counters::{Counters, ErrorKind};
use crate::error::Error;
use crate::exchange::{Handler, RefusedRequest};
use crate::http2::{self, BeginStream, StreamTurns};
use crate::settings::Settings;
use crate::wire::Wire;

/// The server of one core: a handler, and the connections it serves.
///
/// It lives on one thread, in a tokio [`LocalRuntime`](tokio::runtime::LocalRuntime) with I/O and time. For more cores,
/// make one on each.
#[derive(Debug)]
pub struct Server<H> {
    core: Rc<Core>,
    handler: Rc<H>,
}

/// A listener, with its TLS settings, if any.
#[derive(Debug)]
pub struct HttpListener {
    /// The listener.
    pub listener: Listener,
    /// The certificate and settings of an `https` listener.
    pub tls: Option<ServerTls>,
    /// Which peers begin with a header of the PROXY protocol, if any.
    pub proxied: Option<Proxied>,
}

/// Decides about each accepted connection whether its peer is a proxy that begins with a header of the PROXY protocol.
///
/// A connection without its header is closed. Bytes of other peers are read as they are, so that such a header from
/// them is a malformed request.
#[derive(Clone)]
pub struct Proxied(Rc<dyn Fn(&Stream) -> bool>);

impl Proxied {
    /// Makes a decision from the new connection.
    pub fn new(decide: impl Fn(&Stream) -> bool + 'static) -> Self {
        Proxied(Rc::new(decide))
    }

    pub(crate) fn expects_header(&self, stream: &Stream) -> bool {
        (self.0)(stream)
    }
}

impl fmt::Debug for Proxied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxied").finish_non_exhaustive()
    }
}

impl From<Listener> for HttpListener {
    fn from(listener: Listener) -> Self {
        HttpListener { listener, tls: None, proxied: None }
    }
}

impl<H: Handler> Server<H> {
    /// Creates a server with this handler.
    pub fn new(handler: H, settings: Settings) -> Self {
        Server { core: Rc::new(Core::new(settings)), handler: Rc::new(handler) }
    }

    /// Returns this core's counters, readable from any thread, during and after the work.
    pub fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.core.counters)
    }

    /// Accepts connections and serves them until `shutdown` resolves; then shuts down gracefully. It still accepts
    /// connections that already wait in the backlog (at the cap on connections, as others end), and closes idle
    /// connections (at once, or after [`last_request_timeout`](Settings::last_request_timeout)). Requests in progress
    /// get their answer (with `Connection: close`), all within [`drain_timeout`](Settings::drain_timeout). Returns when
    /// no connection is left.
    ///
    /// Call it once in a server's life. When descriptors run out it pauses and retries ([`ErrorKind::Accept`] counts
    /// it). Dropping the future cuts everything off.
    ///
    /// # Panics
    ///
    /// Outside a `LocalRuntime` with I/O and time.
    pub async fn serve(&self, listeners: impl IntoIterator<Item = HttpListener>, shutdown: impl Future<Output = ()>) {
        let _cut = CutOff(&self.core);
        let mut accepting = JoinSet::new();
        for listener in listeners {
            accepting.spawn_local(accept(Rc::clone(&self.core), Rc::clone(&self.handler), listener));
        }
        let core = Rc::clone(&self.core);
        let mut sweeping = JoinSet::new();
        sweeping.spawn_local(async move { core.sweep().await });

        shutdown.await;
        // Bytes that arrived before this moment count: the next poll of the sockets finds them.
        tokio::task::yield_now().await;
        self.core.close();
        let drained = async {
            // Listeners first, so that a client whose idle connection is closed reaches the next server.
            while accepting.join_next().await.is_some() {}
            self.core.wake_idle();
            while self.core.connections() > 0 {
                self.core.permit_freed.notified().await;
            }
        };
        if tokio::time::timeout(self.core.settings.drain_timeout, drained).await.is_err() {
            accepting.shutdown().await;
            for _ in 0..self.core.abort() {
                self.core.counters.count_error(ErrorKind::Shutdown);
            }
            while self.core.connections() > 0 {
                self.core.permit_freed.notified().await;
            }
        }
    }
}

/// Accepts from one listener until the shutdown.
async fn accept<H: Handler>(core: Rc<Core>, handler: Rc<H>, HttpListener { listener, tls, proxied }: HttpListener) {
    let serve_http2 = serve_http2(Rc::clone(&handler));
    let begin = move |wire, input| connection::take_turn(wire, Rc::clone(&handler), input);
    let turns = Rc::new(Turns::new(begin, serve_http2));
    let serve = |guard: ConnectionGuard, stream: Stream| {
        if tls.is_some() {
            guard.begin_handshake();
        }
        let is_proxied = proxied.as_ref().is_some_and(|proxied| proxied.expects_header(&stream));
        spawn(Accepted { guard, stream, is_proxied, tls: tls.clone() }, &turns);
    };
    while !core.closing.get() {
        if core.is_full() {
            until_room(&core, listener.has_waiting(), Core::make_room).await;
            continue;
        }
        if tls.is_some() && core.has_all_handshakes() {
            until_room(&core, listener.has_waiting(), Core::end_handshakes).await;
            continue;
        }
        match until(listener.accept(), core.until_closing()).await {
            Some(Ok(stream)) => serve(register(&core).await, stream),
            Some(Err(error)) => {
                core.counters.count_error(ErrorKind::Accept);
                if error.is_fatal() {
                    return;
                }
            }
            None => break,
        }
    }
    // The kernel has connected these clients already; closing the listener would reset them.
    for taken in 1..=DRAINED {
        while core.connections() >= core.settings.connections {
            core.wake_idle();
            core.permit_freed.notified().await;
        }
        // Unconstrained, because tokio's budget sometimes returns pending although a connection is there; here this
        // would end the loop.
        let waiting = tokio::task::unconstrained(listener.accept());
        match until(waiting, std::future::ready(())).await {
            Some(Ok(stream)) => serve(core.register(), stream),
            _ => return,
        }
        if taken % TURN == 0 {
            tokio::task::yield_now().await;
        }
    }
}

/// Returns what serves connections that may be HTTP/2.
fn serve_http2<H: Handler>(handler: Rc<H>) -> Box<dyn Fn(Rc<Wire>, Vec<u8>) -> Http2> {
    let teller = Rc::clone(&handler);
    let refused = move |refused: &RefusedRequest<'_>| teller.refused(refused);
    let begin = move |stream, head| http2::take_turn(stream, head, Rc::clone(&handler));
    let turns: Rc<dyn BeginStream<_>> = Rc::new(StreamTurns::new(begin, Box::new(refused)));
    Box::new(move |wire, input| Box::pin(http2::serve(wire, Rc::clone(&turns), input)))
}

/// Registers an accepted connection: another core may have taken the last permit meanwhile. After the shutdown has
/// begun, every accepted connection gets a permit.
async fn register(core: &Rc<Core>) -> ConnectionGuard {
    while !core.closing.get() {
        if let Some(guard) = core.try_register() {
            return guard;
        }
        until_room(core, true, Core::make_room).await;
    }
    core.register()
}

/// Waits until there may be room, or the shutdown has begun. `has_waiting`: a client waits, so `make_room` ends
/// connections.
async fn until_room(core: &Core, has_waiting: bool, make_room: impl FnOnce(&Core) -> usize) {
    let freed = core.permit_freed.notified();
    let _waiting = core.settings.capacity.as_ref().filter(|_| has_waiting).map(|capacity| capacity.wait_for_permit());
    if has_waiting {
        make_room(core);
    }
    // Another core's connections do not notify this core, and some become old enough meanwhile.
    let _ = tokio::time::timeout(core.ticks.length.min(LOOK_AGAIN), freed).await;
}

/// How long a listener without room waits before it checks again.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Serves a connection in a task of its own.
fn spawn<F, M>(accepted: Accepted, turns: &Rc<Turns<M, F>>)
where
    F: Future<Output = Result<bool, Error>> + 'static,
    M: Fn(Rc<Wire>, Vec<u8>) -> F + 'static,
{
    let connection = Rc::clone(accepted.guard.connection());
    let turns: Rc<dyn Begin<F>> = Rc::<Turns<M, F>>::clone(turns);
    let task = connection::run(Box::new(accepted), turns);
    connection.set_task(tokio::task::spawn_local(task).abort_handle());
}

/// The maximum of connections accepted from a listener's backlog at the shutdown: an end even if clients never stop.
/// Backlogs are shorter (`net.core.somaxconn` is 4096 by default).
const DRAINED: usize = 65_536;

/// Connections accepted before the core's other tasks run.
const TURN: usize = 64;

/// Returns the future's output, or `None` if `end` resolves first. It polls the future first, so available output is
/// taken.
async fn until<T>(future: impl Future<Output = T>, end: impl Future<Output = ()>) -> Option<T> {
    let (mut future, mut end) = (pin!(future), pin!(end));
    poll_fn(|context| {
        if let Poll::Ready(output) = future.as_mut().poll(context) {
            return Poll::Ready(Some(output));
        }
        end.as_mut().poll(context).map(|()| None)
    })
    .await
}

/// Cuts off all connections when `serve` is dropped before its end.
struct CutOff<'a>(&'a Core);

impl Drop for CutOff<'_> {
    fn drop(&mut self) {
        self.0.abort();
    }
}
