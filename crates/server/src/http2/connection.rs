//! The task of a connection: reads and decodes, polls the handlers of woken streams, and writes what they have sent.

use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use oroshi_core::{HasDeadlines, Incoming, Scratch};
use oroshi_http1::Framing;
use oroshi_http2::{self as codec, Defect, ErrorCode, Event, PREFACE};

use super::slots::{BeginStream, Slots};
use super::stream::Begun;
use super::{OwnedHead, Shared, Stream};
use crate::connection::{answer_error, failure_of};
use crate::counters::ErrorKind;
use crate::error::{Error, Wait};
use crate::exchange::{Exchange, Handler, RefusedRequest};
use crate::transport::Transport;
use crate::wire::{OUTPUT_BYTES, Wire};

/// Serves a connection that may be HTTP/2 to its end. Returns the received bytes if it is not HTTP/2.
pub(crate) async fn serve<F: Future<Output = ()>>(
    wire: Rc<Wire>,
    turns: Rc<dyn BeginStream<F>>,
    mut input: Vec<u8>,
) -> Result<Option<Vec<u8>>, Error> {
    if !wire.with_stream(oroshi_net::Stream::is_tls).unwrap_or(false) {
        let due = wire.core().now().saturating_add(wire.core().ticks.head);
        while input.len() < PREFACE.len() {
            // HTTP/1 tells the peer of an end or a timeout within these bytes.
            let read = wire.read(&mut input, Wait::Head, due).await;
            let length = input.len().min(PREFACE.len());
            if !matches!(read, Ok(1..)) || input[..length] != PREFACE[..length] {
                return Ok(Some(input));
            }
        }
    }
    let mut connection = Connection::new(Rc::clone(&wire), turns);
    connection.decode(&input);
    drop(input);
    let end = poll_fn(|context| connection.poll(context)).await;
    connection.cut_off();
    drop(connection);
    match end {
        End::Gone(None) => {}
        End::Gone(Some(error)) => return Err(error),
        End::Properly => wire.finish().await?,
        // So that the peer can read the GOAWAY while it still sends.
        End::Failed => wire.linger().await?,
    }
    Ok(None)
}

/// Answers the request of a stream.
pub(crate) async fn take_turn<H: Handler>(stream: Rc<Stream>, head: OwnedHead, handler: Rc<H>) {
    let core = stream.wire().core();
    let due = core.now().saturating_add(core.ticks.request);
    let mut exchange = Exchange::new(Transport::Http2(&stream), None, head.get(), &[], due);
    let handled = pin!(handler.handle(&mut exchange)).await;
    let Exchange { body, reply, head, .. } = &mut exchange;
    if reply.is_complete() {
        core.counters.count_answer();
    }
    let failure = failure_of(handled, reply);
    if let Some(error) = &failure {
        core.counters.count_error(error.kind());
        if !reply.is_begun() && error.status().is_some() {
            Box::pin(answer_error(reply, error)).await;
        }
        if !reply.is_complete() {
            stream.reset(ErrorCode::INTERNAL_ERROR);
        }
    }
    if stream.progress.close.get() {
        stream.close_connection();
    }
    let most = core.settings.drain_bytes;
    let is_short = matches!(head.framing, Framing::Length(length) if length <= most);
    let comes = is_short && !body.is_ended() && !stream.progress.expecting.get();
    if comes && failure.is_none() && reply.is_complete() && !core.closing.get() {
        // Some clients (curl 7.88) take the reset of a stream with NO_ERROR for a failure, although the answer was
        // whole.
        body.wait_at_most(core.ticks.linger);
        let _ = Box::pin(body.drain(most)).await;
    }
    body.release(&stream);
}

/// How a connection ended.
enum End {
    /// The peer is gone, or the connection broke.
    Gone(Option<Error>),
    /// All exchanges are over, and the peer knows that no more are accepted.
    Properly,
    /// The peer broke the protocol or a limit. The output has the GOAWAY.
    Failed,
}

/// The way to the connection's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Closing {
    No,
    /// The peer was told to open no streams; those that were on their way are accepted until this tick.
    Announced(u64),
    /// No more streams are accepted.
    Final,
}

/// The most rounds of one poll: then other tasks of the thread have their turn.
const ROUNDS: usize = 8;

/// The most ticks of the codec that one read catches up with: its budgets are full after ten.
const CODEC_TICKS: u64 = 10;

/// The most bytes of heads of all streams under way. A few bytes of input can make a head of the largest size, by
/// references to the dynamic table. A single stream may have any head that the codec accepts.
const HEADS_BYTES: usize = 512 * 1024;

struct Connection<F> {
    shared: Rc<Shared>,
    slots: Slots<F>,
    /// An incomplete frame.
    incoming: Incoming,
    /// Slots of streams that the peer has reset, to be freed.
    reset: Vec<(usize, ErrorKind)>,
    /// The tick at which an incomplete frame or head becomes too slow.
    head_due: u64,
    /// The tick of the codec's last tick.
    ticked: u64,
    /// The tick since which no stream is open.
    idle_since: u64,
    /// Whether an idle connection has freed its memory.
    is_released: bool,
    closing: Closing,
    failed: bool,
}

impl<F: Future<Output = ()>> Connection<F> {
    fn new(wire: Rc<Wire>, turns: Rc<dyn BeginStream<F>>) -> Self {
        let now = wire.core().now();
        Connection {
            shared: Rc::new(Shared::new(wire)),
            slots: Slots::new(turns),
            incoming: Incoming::default(),
            reset: Vec::new(),
            head_due: u64::MAX,
            ticked: now,
            idle_since: now,
            is_released: false,
            closing: Closing::No,
            failed: false,
        }
    }

    fn wire(&self) -> &Rc<Wire> {
        &self.shared.wire
    }

    /// Works until nothing is left to do now.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<End> {
        self.shared.ready.begin(context);
        for _ in 0..ROUNDS {
            let mut worked = self.poll_handlers();
            worked |= self.pump();
            worked |= self.keep_time();
            if self.wire().has_output() {
                match self.wire().poll_flush(context) {
                    Poll::Ready(Err(error)) => return Poll::Ready(End::Gone(Some(error))),
                    // Listed streams may have room now.
                    Poll::Ready(Ok(())) => worked |= !self.shared.listed.borrow().is_empty(),
                    Poll::Pending => {}
                }
            }
            let is_sent = !self.wire().has_output();
            if self.failed && is_sent {
                return Poll::Ready(End::Failed);
            }
            if self.closing == Closing::Final && self.slots.used() == 0 && is_sent {
                return Poll::Ready(End::Properly);
            }
            // A peer that does not read its answers is not read either.
            if !self.failed && self.wire().output_bytes() < OUTPUT_BYTES {
                let mut scratch = Scratch::take();
                match self.wire().poll_fill(context, &mut scratch) {
                    Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(End::Gone(None)),
                    Poll::Ready(Ok(count)) => {
                        self.decode(&scratch[..count]);
                        worked = true;
                    }
                    Poll::Pending => {}
                }
            }
            if !worked && self.shared.ready.rest() && self.wait(context) {
                return Poll::Pending;
            }
        }
        self.shared.ready.rest();
        context.waker().wake_by_ref();
        Poll::Pending
    }

    /// Lets the earliest deadline wake the task. Returns whether it is still to come.
    fn wait(&self, context: &Context<'_>) -> bool {
        let (core, deadline) = (self.wire().core(), &self.wire().connection().read);
        let mut due = self.shared.earliest.get().min(self.head_due);
        if self.slots.used() == 0 {
            let idle = if self.is_released { core.ticks.idle } else { core.ticks.second };
            due = due.min(self.idle_since.saturating_add(idle));
        }
        if let Closing::Announced(at) = self.closing {
            due = due.min(at);
        }
        core.deadlines().set(deadline, due);
        !deadline.poll_over(core.now(), context)
    }

    /// Does what is due. Returns whether there was anything to do.
    fn keep_time(&mut self) -> bool {
        let core = Rc::clone(self.wire().core());
        let now = core.now();
        let mut worked = self.keep_closing(now);
        if self.shared.earliest.get() <= now {
            self.expire_streams(now);
            worked = true;
        }
        if self.head_due <= now && !self.failed {
            core.counters.count_error(ErrorKind::HeadTimeout);
            self.fail(ErrorCode::ENHANCE_YOUR_CALM);
            worked = true;
        }
        if self.slots.used() == 0 && !self.is_released && self.idle_since.saturating_add(core.ticks.second) <= now {
            self.release();
            worked = true;
        }
        let is_idle = self.slots.used() == 0 && self.closing != Closing::Final && !self.failed;
        if is_idle && self.idle_since.saturating_add(core.ticks.idle) <= now {
            self.go_away(None);
            worked = true;
        }
        worked
    }

    /// Begins to close the connection, when the server shuts down or a handler wants it.
    fn keep_closing(&mut self, now: u64) -> bool {
        let (core, at_once) = (self.wire().core(), self.shared.closes.get());
        match self.closing {
            Closing::No if at_once || core.closing.get() => {
                let last_request = core.ticks.last_request;
                if at_once || last_request == 0 {
                    self.go_away(None);
                } else {
                    self.go_away(Some(now.saturating_add(last_request)));
                }
                true
            }
            Closing::Announced(due) if at_once || due <= now => {
                self.go_away(None);
                true
            }
            _ => false,
        }
    }

    /// Tells the peer to open no more streams: from tick `until` on, or at once.
    fn go_away(&mut self, until: Option<u64>) {
        let last_stream = until.map(|_| u32::MAX);
        self.shared.send(|codec, out| codec.goaway(out, last_stream, ErrorCode::NO_ERROR));
        self.closing = until.map_or(Closing::Final, Closing::Announced);
    }

    /// Ends the connection because of the peer.
    fn fail(&mut self, code: ErrorCode) {
        self.shared.send(|codec, out| codec.goaway(out, None, code));
        self.failed = true;
        self.cut_off();
    }

    /// Drops all handlers: their clients are gone.
    fn cut_off(&mut self) {
        let places: Vec<usize> = self.slots.places().map(|(place, _)| place).collect();
        places.into_iter().for_each(|place| self.free(place, Some(ErrorKind::Disconnected)));
    }

    fn expire_streams(&mut self, now: u64) {
        let (mut earliest, mut stalled) = (u64::MAX, Vec::new());
        for (place, stream) in self.slots.places() {
            let (due, is_stalled) = stream.expire(now);
            match is_stalled {
                true => stalled.push(place),
                false => earliest = earliest.min(due),
            }
        }
        self.shared.earliest.set(earliest);
        for place in stalled {
            if let Some(stream) = self.slots.get(place) {
                stream.reset(ErrorCode::CANCEL);
            }
            self.free(place, Some(ErrorKind::WriteTimeout));
        }
    }

    /// Frees the memory that an idle connection does not need.
    fn release(&mut self) {
        self.slots.release();
        self.reset = Vec::new();
        self.shared.listed.take();
        self.shared.codec.borrow_mut().release();
        self.wire().release_output();
        self.is_released = true;
    }

    fn poll_handlers(&mut self) -> bool {
        let shared = Rc::clone(&self.shared);
        shared.ready.take(|place| {
            if self.slots.poll(place) && self.slots.get(place).is_some_and(|stream| stream.is_over()) {
                self.free(place, None);
            }
        })
    }

    /// Lets listed streams send in turn, while the output has room.
    fn pump(&mut self) -> bool {
        let count = self.shared.listed.borrow().len();
        for _ in 0..count {
            if self.wire().output_bytes() >= OUTPUT_BYTES {
                return false;
            }
            let Some(place) = self.shared.listed.borrow_mut().pop_front() else { break };
            let Some(stream) = self.slots.at(place) else { continue };
            stream.is_listed.set(false);
            if stream.pump() {
                self.shared.list(stream);
            }
            if stream.is_over() {
                // Frees the slot, unless its handler still works.
                self.shared.ready.mark(place);
            }
        }
        count > 0
    }

    /// Frees a slot. `error`: the reason, if the answer is not complete.
    fn free(&mut self, place: usize, error: Option<ErrorKind>) {
        let Some(stream) = self.slots.get(place) else { return };
        let core = Rc::clone(self.wire().core());
        if let Some(kind) = error.filter(|_| !stream.is_answered()) {
            core.counters.count_error(kind);
        }
        self.slots.free(place);
        if self.slots.used() == 0 {
            self.idle_since = core.now();
            self.is_released = false;
            self.wire().connection().waits(core.now());
        }
    }

    /// Decodes received bytes, and begins the turns of new streams.
    fn decode(&mut self, data: &[u8]) {
        let shared = Rc::clone(&self.shared);
        let core = shared.wire.core();
        let elapsed = (core.now() - self.ticked) / core.ticks.second;
        if elapsed > 0 {
            self.ticked = core.now();
        }
        let mut incoming = std::mem::take(&mut self.incoming);
        let (result, consumed, is_within_head) = shared.wire.append(|out| {
            let codec = &mut *shared.codec.borrow_mut();
            (0..elapsed.min(CODEC_TICKS)).for_each(|_| codec.tick());
            let heads = &mut *core.heads.borrow_mut();
            let (result, consumed) = incoming.decode(data, |input| {
                let before = input.len();
                loop {
                    let event = match codec.receive(input, heads, out) {
                        Ok(Some(event)) => event,
                        Ok(None) => return (Ok(()), before - input.len()),
                        Err(defect) => return (Err(defect), before - input.len()),
                    };
                    match self.take(event) {
                        Reaction::None => {}
                        Reaction::Tag { id, place } => codec.set_tag(id, place as u32),
                        Reaction::Reset { id, code } => codec.reset(out, id, code),
                        Reaction::NotImplemented { id } => {
                            // The head is valid, and the stream is open.
                            let _ = codec.send_response(out, id, 501, [("content-length", &b"0"[..])], true);
                            codec.reset(out, id, ErrorCode::NO_ERROR);
                        }
                    }
                }
            });
            (result, consumed, codec.is_within_head())
        });
        self.incoming = incoming;
        // Only now, because the end of a handler may use the codec.
        for (place, kind) in std::mem::take(&mut self.reset) {
            self.free(place, Some(kind));
        }
        if result.is_err() {
            // The codec has written the GOAWAY.
            core.counters.count_error(ErrorKind::Refused);
            self.failed = true;
            self.cut_off();
        }
        self.set_head_deadline(consumed > 0, is_within_head);
    }

    /// Gives an incomplete frame or head a deadline. Frames behind each other are no slow head.
    fn set_head_deadline(&mut self, has_consumed: bool, is_within_head: bool) {
        let core = self.wire().core();
        if self.incoming.is_empty() && !is_within_head {
            self.head_due = u64::MAX;
        } else if self.head_due == u64::MAX || has_consumed && !is_within_head {
            self.head_due = core.now().saturating_add(core.ticks.head);
        }
    }

    /// Takes an event. The codec and the output are in use.
    fn take(&mut self, event: Event<'_>) -> Reaction {
        match event {
            Event::Request { stream, head, end } => return self.take_request(stream.id, &head, end),
            Event::Data { stream, data, end } => {
                if let Some(stream) = self.slots.find(stream.tag, stream.id) {
                    stream.take_in(data, end);
                }
            }
            Event::Trailers { stream, headers } => {
                if let Some(stream) = self.slots.find(stream.tag, stream.id) {
                    stream.take_in_trailers(headers);
                }
            }
            Event::Reset { stream, defect, .. } => {
                if self.slots.find(stream.tag, stream.id).is_some() {
                    let kind = if defect.is_some() { ErrorKind::Refused } else { ErrorKind::Disconnected };
                    self.reset.push((stream.tag as usize, kind));
                }
            }
            Event::Refused { defect, .. } => self.tell_refused(defect),
            Event::WindowOpen { stream: Some(stream) } => {
                if let Some(stream) = self.slots.find(stream.tag, stream.id) {
                    self.shared.list(stream);
                }
            }
            Event::WindowOpen { stream: None } | Event::Settings => {
                let waiting = self.slots.places().filter(|(_, stream)| stream.has_waiting());
                waiting.for_each(|(_, stream)| self.shared.list(stream));
            }
            Event::Response { .. } | Event::Informational { .. } | Event::Pong { .. } | Event::GoAway { .. } => {}
        }
        Reaction::None
    }

    fn take_request(&mut self, id: u32, head: &codec::RequestHead<'_>, end: bool) -> Reaction {
        let core = self.shared.wire.core();
        let before = self.shared.heads.get();
        let owned = OwnedHead::new(head, end, &self.shared.heads);
        if head.protocol.is_some() && !owned.is_websocket() {
            core.counters.count_error(ErrorKind::Refused);
            return Reaction::NotImplemented { id };
        }
        if before > 0 && self.shared.heads.get() > HEADS_BYTES {
            core.counters.count_error(ErrorKind::Refused);
            return Reaction::Reset { id, code: ErrorCode::REFUSED_STREAM };
        }
        let is_first = self.slots.used() == 0;
        let Some(stream) = self.slots.take(&self.shared) else {
            // Handlers of ended streams still work.
            core.counters.count_error(ErrorKind::Refused);
            return Reaction::Reset { id, code: ErrorCode::REFUSED_STREAM };
        };
        stream.begin(Begun { id, end, is_tunnel: head.method == "CONNECT" });
        let place = stream.slot();
        core.counters.count_request();
        if is_first {
            self.shared.wire.connection().works();
        }
        self.slots.begin(place, owned);
        self.shared.ready.mark(place);
        Reaction::Tag { id, place }
    }

    #[cold]
    fn tell_refused(&self, defect: Defect) {
        let wire = self.wire();
        wire.core().counters.count_error(ErrorKind::Refused);
        if defect == Defect::TooManyStreams {
            // Not a defect of the request, which the peer may send again.
            return;
        }
        let error = match defect {
            Defect::Message(defect) => Error::Request(defect),
            other => Error::Http2(other),
        };
        let status = error.status().unwrap_or(400);
        let refused = RefusedRequest { error: &error, status, bytes: b"", remote: wire.addresses().1 };
        self.slots.turns().refused(&refused);
    }
}

/// The answer to an event.
enum Reaction {
    None,
    /// The number of a new stream's slot.
    Tag {
        id: u32,
        place: usize,
    },
    Reset {
        id: u32,
        code: ErrorCode,
    },
    /// 501: nobody knows the protocol of an extended CONNECT.
    NotImplemented {
        id: u32,
    },
}

#[cfg(test)]
mod tests {
    use super::super::ready::Ready;
    use super::super::{Pair, StreamTurns};
    use super::*;

    struct Hello;
    impl Handler for Hello {
        async fn handle(&self, exchange: &mut Exchange<'_>) -> Result<(), Error> {
            exchange.reply.send(200, [], b"Hello, world").await
        }
    }

    /// Returns the sizes of a connection's life, and of a handler at work.
    fn sizes() -> (usize, usize) {
        fn of<F: Future<Output = ()>>(_: &StreamTurns<impl Fn(Rc<Stream>, OwnedHead) -> F, F>) -> (usize, usize) {
            fn size<A, B, C, F>(_: impl Fn(A, B, C) -> F) -> usize {
                size_of::<F>()
            }
            (size(serve::<F>), size_of::<F>())
        }
        let handler = Rc::new(Hello);
        let begin = move |stream, head| take_turn(stream, head, Rc::clone(&handler));
        of(&StreamTurns::new(begin, Box::new(|_| ())))
    }

    /// The memory of an idle connection, to the byte: the same with every handler. The connection of HTTP/1 around it
    /// has 512 bytes at most (`a_connection_that_waits_is_small`), and tokio's task about a hundred. The table for
    /// heads holds what the client has put there: here 1,000 bytes, which may take one and a half times as many.
    #[test]
    fn an_idle_connection_is_small() {
        let (life, _) = sizes();
        let counts = 2 * size_of::<usize>();
        let shared = size_of::<Shared>() + counts;
        let ready = size_of::<Ready>() + counts;
        let table = 1_500;
        let whole = 512 + 128 + life + shared + ready + table;
        assert!(whole <= 4096, "{whole} bytes: {life} + {shared} + {ready} + {table}");
    }

    #[test]
    fn a_stream_is_small() {
        let (_, turn) = sizes();
        assert!(turn <= 1280, "{turn} bytes");
        assert!(size_of::<Stream>() <= 512, "{} bytes", size_of::<Stream>());
        assert!(size_of::<Option<Pair>>() <= 128, "{} bytes", size_of::<Option<Pair>>());
    }
}
