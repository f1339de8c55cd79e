//! A connection's life: it waits for a request and serves it, repeatedly, and then closes.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};

use oroshi_core::{HasDeadlines, spares};
use oroshi_http1::{DecodeError, RequestDecoder, RequestEvent};
use oroshi_net::proxy_protocol::ProxyHeader;
use oroshi_net::{ServerTls, Stream};

use crate::body::Leftover;
use crate::core::ConnectionGuard;
use crate::counters::ErrorKind;
use crate::error::{Error, Wait};
use crate::exchange::{Exchange, Handler, RefusedRequest};
use crate::http2;
use crate::reply::Reply;
use crate::transport::Transport;
use crate::wire::{Addresses, Wire};

/// An accepted connection. Boxed, because only the start needs it.
pub(crate) struct Accepted {
    pub(crate) guard: ConnectionGuard,
    pub(crate) stream: Stream,
    /// Whether the peer begins with a header of the PROXY protocol.
    pub(crate) is_proxied: bool,
    pub(crate) tls: Option<ServerTls>,
}

/// Serves a connection to its end. A waiting connection consists of this future alone; a turn holds what a request
/// needs.
///
/// One block, because a nested future would have its own copies of what it uses, and so would arguments of an
/// `async fn`. With tokio's 96 bytes, a task of up to 256 bytes takes a third less memory than a larger one.
#[allow(clippy::manual_async_fn, reason = "an `async fn` holds its arguments twice")]
pub(crate) fn run<F: Future<Output = Result<bool, Error>> + 'static>(
    accepted: Box<Accepted>,
    turns: Rc<dyn Begin<F>>,
) -> impl Future<Output = ()> {
    async move {
        let Some(wire) = Box::pin(begin(accepted)).await else { return };
        let (mut input, mut is_new) = (Vec::new(), true);
        let ended = loop {
            wire.wait_for_request();
            if !poll_fn(|context| wire.poll_request(context, &mut input)).await {
                break Box::pin(wire.finish()).await;
            }
            if std::mem::take(&mut is_new) && http2::may_begin(&wire, &input) {
                match turns.serve_http2(Rc::clone(&wire), std::mem::take(&mut input)).await {
                    Ok(Some(received)) => input = received,
                    Ok(None) => return,
                    Err(error) => break Err(error),
                }
            }
            match Turn::begin(&turns, Rc::clone(&wire), std::mem::take(&mut input)).await {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => break Err(error),
            }
        };
        if let Err(error) = ended {
            wire.core().counters.count_error(error.kind());
        }
    }
}

/// Starts a connection. `None`: the peer is gone, which is counted.
async fn begin(accepted: Box<Accepted>) -> Option<Rc<Wire>> {
    let Accepted { guard, mut stream, is_proxied, tls } = *accepted;
    let core = Rc::clone(guard.core());
    if core.closing.get() || core.settings.vouching {
        // The connection was accepted just before the shutdown, or its request decides about it: the next poll of the
        // sockets shows whether the request is here.
        tokio::task::yield_now().await;
        guard.doubt();
    }
    let started = async {
        let origin = if is_proxied { Some(origin(&guard, &mut stream).await?) } else { None };
        match tls {
            None => Ok((stream, origin)),
            Some(tls) => Ok((handshake(&guard, &tls, stream).await?, origin)),
        }
    };
    match started.await {
        Ok((stream, origin)) => {
            guard.end_handshake();
            Some(Rc::new(Wire::new(guard, stream, origin.flatten())))
        }
        Err(kind) => {
            core.counters.count_error(kind);
            None
        }
    }
}

/// Reads the header of a proxy. Returns the local and the remote address of its client, `None` for a connection of the
/// proxy itself.
async fn origin(guard: &ConnectionGuard, stream: &mut Stream) -> Result<Option<Addresses>, ErrorKind> {
    let read = within_head_timeout(guard, ProxyHeader::read(stream)).await;
    match read.ok_or(ErrorKind::HeadTimeout)? {
        Ok(ProxyHeader::Local) => Ok(None),
        Ok(ProxyHeader::Unknown) => Ok(Some((None, None))),
        Ok(ProxyHeader::Tcp { source, destination }) => Ok(Some((Some(destination), Some(source)))),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => Err(ErrorKind::ProxyHeader),
        Err(_) => Err(ErrorKind::Disconnected),
    }
}

/// Begins turns, and keeps the memory of ended ones, so that a request allocates nothing.
pub(crate) trait Begin<F> {
    /// Begins a turn in its slot: returned, its future of some kilobytes would be copied once more.
    fn begin(&self, slot: &mut TurnSlot<F>, wire: Rc<Wire>, input: Vec<u8>);
    /// Serves a connection that may be HTTP/2. Its output is the received bytes if it is not.
    fn serve_http2(&self, wire: Rc<Wire>, input: Vec<u8>) -> Http2;
    fn slots(&self) -> &RefCell<Vec<TurnSlot<F>>>;
}

/// The life of an HTTP/2 connection. Boxed, so that a connection of HTTP/1 has no room for it.
pub(crate) type Http2 = Pin<Box<dyn Future<Output = Result<Option<Vec<u8>>, Error>>>>;

/// The memory of a turn, which may be empty.
pub(crate) type TurnSlot<F> = Pin<Box<Option<F>>>;

/// The turns of connections with the same handler.
pub(crate) struct Turns<M, F> {
    begin: M,
    http2: Box<dyn Fn(Rc<Wire>, Vec<u8>) -> Http2>,
    slots: RefCell<Vec<TurnSlot<F>>>,
}

impl<M: Fn(Rc<Wire>, Vec<u8>) -> F, F> Turns<M, F> {
    pub(crate) fn new(begin: M, http2: Box<dyn Fn(Rc<Wire>, Vec<u8>) -> Http2>) -> Self {
        Turns { begin, http2, slots: RefCell::default() }
    }
}

impl<M: Fn(Rc<Wire>, Vec<u8>) -> F, F> Begin<F> for Turns<M, F> {
    fn begin(&self, slot: &mut TurnSlot<F>, wire: Rc<Wire>, input: Vec<u8>) {
        slot.set(Some((self.begin)(wire, input)));
    }

    fn serve_http2(&self, wire: Rc<Wire>, input: Vec<u8>) -> Http2 {
        (self.http2)(wire, input)
    }

    fn slots(&self) -> &RefCell<Vec<TurnSlot<F>>> {
        &self.slots
    }
}

/// The maximum of kept slots: with fewer concurrent turns, a request allocates nothing.
const KEPT_SLOTS: usize = 256;

/// A turn: from the first bytes of a request until no more have come. Dropping it anywhere returns its slot.
struct Turn<'t, F> {
    turns: &'t Rc<dyn Begin<F>>,
    slot: Option<TurnSlot<F>>,
}

impl<'t, F: Future> Turn<'t, F> {
    fn begin(turns: &'t Rc<dyn Begin<F>>, wire: Rc<Wire>, input: Vec<u8>) -> Self {
        let kept = turns.slots().borrow_mut().pop();
        let mut slot = kept.unwrap_or_else(|| Box::pin(None));
        turns.begin(&mut slot, wire, input);
        Turn { turns, slot: Some(slot) }
    }
}

impl<F: Future> Future for Turn<'_, F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        match self.get_mut().slot.as_mut().and_then(|slot| slot.as_mut().as_pin_mut()) {
            Some(turn) => turn.poll(context),
            // The slot has a turn until this is dropped.
            None => Poll::Pending,
        }
    }
}

impl<F> Drop for Turn<'_, F> {
    fn drop(&mut self) {
        let Some(mut slot) = self.slot.take() else { return };
        slot.set(None);
        let mut slots = self.turns.slots().borrow_mut();
        if slots.len() < KEPT_SLOTS {
            slots.push(slot);
        }
    }
}

async fn handshake(guard: &ConnectionGuard, tls: &ServerTls, stream: Stream) -> Result<Stream, ErrorKind> {
    let shaken = within_head_timeout(guard, Box::pin(tls.accept(stream))).await;
    shaken.ok_or(ErrorKind::HeadTimeout)?.map_err(|_| ErrorKind::Tls)
}

/// Runs a step before the first request. `None`: it took longer than a request's head may.
async fn within_head_timeout<F: Future>(guard: &ConnectionGuard, step: F) -> Option<F::Output> {
    let (core, deadline) = (guard.core(), &guard.connection().read);
    core.deadlines().set(deadline, core.now().saturating_add(core.ticks.head));
    let mut step = pin!(step);
    poll_fn(|context| {
        if let Poll::Ready(output) = step.as_mut().poll(context) {
            deadline.clear();
            return Poll::Ready(Some(output));
        }
        match deadline.poll_over(core.now(), context) {
            true => Poll::Ready(None),
            false => Poll::Pending,
        }
    })
    .await
}

/// Serves requests until no more have come, and returns true. Returns false if the connection is to be closed, by
/// dropping it. An error is for counting: the peer has got its answer, if one was possible.
pub(crate) async fn take_turn<H: Handler>(wire: Rc<Wire>, handler: Rc<H>, mut input: Vec<u8>) -> Result<bool, Error> {
    let (wire, handler) = (&*wire, &*handler);
    let core = wire.core();
    let mut decoder = wire.decoder.take();
    let mut at = 0; // where in `input` the next request begins
    let mut head_due = None;
    loop {
        let mut rest = &input[at..];
        // Matched by reference: a moved exchange would take its space twice in the turn.
        let mut next = next(wire, &mut decoder, &mut rest);
        let left = rest.len();
        let after = match &mut next {
            Ok(Some(exchange)) => match answer(wire, handler, exchange).await? {
                Some(leftover) => Some(leftover),
                None => return Ok(false),
            },
            Ok(None) => None,
            Err(error) => {
                let error = Error::Request(*error);
                tell_refused(wire, handler, &error, &input[at..]);
                return refuse(wire, error).await.map(|()| false);
            }
        };
        drop(next);
        if after.is_some() && left > 0 {
            // Lets the core's other connections run, however many requests come in one read.
            tokio::task::consume_budget().await;
        }
        match after {
            Some(Leftover::Rest(length)) => (at, head_due) = (input.len() - length, None),
            Some(Leftover::More(buffer, place)) => {
                spares::give(std::mem::replace(&mut input, buffer));
                (at, head_due) = (place, None);
            }
            None => {
                wire.flush().await?;
                if left == 0 {
                    // The decoder counts empty lines before a request, however slowly they come.
                    wire.decoder.set(decoder);
                    spares::give(input);
                    return Ok(true);
                }
                input.drain(..input.len() - left);
                at = 0;
                let due = *head_due.get_or_insert_with(|| {
                    wire.connection().waits(core.now());
                    core.now().saturating_add(core.ticks.head)
                });
                match wire.read(&mut input, Wait::Head, due).await {
                    Ok(0) => match decoder.eof() {
                        Err(error) => {
                            let error = Error::Request(error);
                            tell_refused(wire, handler, &error, &input);
                            return refuse(wire, error).await.map(|()| false);
                        }
                        Ok(()) => return wire.finish().await.map(|()| false),
                    },
                    Ok(_) => {}
                    Err(error @ Error::Timeout(_)) => {
                        tell_refused(wire, handler, &error, &input);
                        return refuse(wire, error).await.map(|()| false);
                    }
                    Err(error) => return Err(error),
                }
            }
        }
    }
}

/// Begins the exchange of the next request; `None` while its head is incomplete.
fn next<'a>(
    wire: &'a Wire,
    decoder: &'a mut RequestDecoder,
    input: &mut &'a [u8],
) -> Result<Option<Exchange<'a>>, DecodeError> {
    let core = wire.core();
    // Other events belong to a body, and come within its exchange.
    let Some(RequestEvent::Head(head)) = decoder.decode(&core.settings.limits, input)? else { return Ok(None) };
    wire.connection().works();
    core.counters.count_request();
    let due = core.now().saturating_add(core.ticks.request);
    Ok(Some(Exchange::new(Transport::Http1(wire), Some(decoder), head, input, due)))
}

/// Calls the handler. Returns the input behind the request, or `None` if the connection ends.
async fn answer<H: Handler>(wire: &Wire, handler: &H, exchange: &mut Exchange<'_>) -> Result<Option<Leftover>, Error> {
    let core = wire.core();
    let handled = wire.drive(pin!(handler.handle(exchange))).await?;
    let Exchange { body, reply, .. } = exchange;
    if reply.is_complete() {
        core.counters.count_answer();
    }
    let failure = failure_of(handled, reply);
    if wire.with_stream(|_| ()).is_none() {
        // The connection was handed off; this module no longer owns it.
        return failure.map_or(Ok(None), Err);
    }
    if let Some(error) = failure {
        Box::pin(fail(wire, reply, &error)).await;
        return Err(error);
    }
    if !wire.progress.close.get() {
        let ended = match body.take_end() {
            Ok(true) => true,
            _ => wire.drive(pin!(body.drain(core.settings.drain_bytes))).await?.unwrap_or(false),
        };
        if ended {
            return Ok(Some(body.leftover()));
        }
    }
    let all_read = body.take_end().unwrap_or(false) && body.leftover().is_empty();
    let closed = if all_read { wire.finish().await } else { wire.linger().await };
    closed.map(|()| None)
}

/// Returns why an exchange failed, if it did.
pub(crate) fn failure_of(handled: Result<(), Error>, reply: &Reply<'_>) -> Option<Error> {
    match handled {
        Err(error) => Some(error),
        Ok(()) if reply.is_complete() => None,
        Ok(()) if reply.is_begun() => Some(Error::Misuse("the handler did not finish its answer")),
        Ok(()) => Some(Error::Misuse("the handler gave no answer")),
    }
}

/// Ends a failed exchange: with an error's answer if none was begun, otherwise by cutting it off.
async fn fail(wire: &Wire, reply: &mut Reply<'_>, error: &Error) {
    // Complete answers to earlier requests are still sent. If that fails, nobody is left to tell.
    if !reply.is_begun() && error.status().is_some() {
        reply.close();
        answer_error(reply, error).await;
        let _ = wire.linger().await;
    } else if reply.is_complete() {
        let _ = wire.linger().await;
    } else {
        let _ = wire.flush().await;
        if reply.ends_with_connection() {
            wire.reset_on_close();
        }
    }
}

/// Tells the handler about a request that never became an exchange.
#[cold]
fn tell_refused<H: Handler>(wire: &Wire, handler: &H, error: &Error, bytes: &[u8]) {
    let Some(status) = error.status() else { return };
    handler.refused(&RefusedRequest { error, status, bytes, remote: wire.addresses().1 });
}

/// Answers a request that never became an exchange.
async fn refuse(wire: &Wire, error: Error) -> Result<(), Error> {
    // Boxed, as are the futures of all rare steps: a connection's task is as large as its largest wait.
    Box::pin(async {
        let mut reply = Reply::to_nobody(wire);
        reply.close();
        answer_error(&mut reply, &error).await;
        let _ = wire.linger().await;
    })
    .await;
    Err(error)
}

/// Answers with an error's status.
pub(crate) async fn answer_error(reply: &mut Reply<'_>, error: &Error) {
    let Some(status) = error.status() else { return };
    let text = match error {
        // The sender may know about defects of its request, but not about failures of a handler.
        Error::Request(defect) => format!("{defect}\n"),
        Error::Timeout(_) => format!("{error}\n"),
        _ => String::from("the server failed to answer this request\n"),
    };
    // The fields are our own, so this fails only if the connection broke, and the caller is about to close it.
    let _ = reply.send(status, [("Content-Type", &b"text/plain"[..])], text.as_bytes()).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Hello;
    impl Handler for Hello {
        async fn handle(&self, exchange: &mut Exchange<'_>) -> Result<(), Error> {
            exchange.reply.send(200, [], b"Hello, world").await
        }
    }

    fn size<A, B, F>(_: impl Fn(A, B) -> F) -> usize {
        size_of::<F>()
    }

    /// Idle connections by the ten thousand consist mostly of this future, so it must not grow with the handler.
    #[test]
    fn a_connection_that_waits_is_small() {
        struct Large;
        impl Handler for Large {
            async fn handle(&self, exchange: &mut Exchange<'_>) -> Result<(), Error> {
                let large = [1; 10_000];
                exchange.reply.send(200, [], &large).await
            }
        }
        fn waiting<H: Handler>(handler: Rc<H>) -> usize {
            fn of<F: Future<Output = Result<bool, Error>> + 'static>(
                _: &Turns<impl Fn(Rc<Wire>, Vec<u8>) -> F, F>,
            ) -> usize {
                size(run::<F>)
            }
            let http2 = Box::new(|_, _| -> Http2 { Box::pin(async { Ok(None) }) });
            of(&Turns::new(move |wire, input| take_turn(wire, Rc::clone(&handler), input), http2))
        }
        let (small, large) = (waiting(Rc::new(Hello)), waiting(Rc::new(Large)));
        assert_eq!(small, large);
        assert!(small <= 160, "{small} bytes");
        assert!(size_of::<Wire>() <= 232, "{} bytes", size_of::<Wire>());
    }

    #[test]
    fn a_turn_is_small() {
        fn size<A, B, C, F>(_: impl Fn(A, B, C) -> F) -> usize {
            size_of::<F>()
        }
        assert!(size(take_turn::<Hello>) <= 1280, "{} bytes", size(take_turn::<Hello>));
    }
}
