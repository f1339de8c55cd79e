//! The task of one slot: it makes a connection, lets it serve, and makes the next one, until the run is over.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use oroshi_core::Scratch;
use oroshi_net::{ConnectError, Connected, Stream, monotonic_ns};
use tokio::io::{AsyncRead, ReadBuf};

use crate::batch::Batch;
use crate::connection::{Connection, ToResend};
use crate::core::{Core, OriginState, Outgoing, Phase, Slot, Take, Ticket};
use crate::failure::Failure;
use crate::flight::{Flight, cut_off};
use crate::http2;
use crate::plan::ALPN;
use crate::record::TlsRecord;

/// Pause after a connection that came to nothing; it doubles up to the second value while that goes on.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(100));

/// Fills slot `id` with connections to `origin` until the run is over.
pub(crate) async fn fill_slot(core: Rc<Core>, id: usize, origin: usize) {
    let slot = SlotTask { core: &core, id, origin: &core.origins[origin] };
    let mut backoff = Backoff::default();
    let mut carried = ToResend::new();
    let mut attempted = core.rules.connect_per_request;
    if attempted {
        core.activity.attempted();
    }
    while !core.timeline.is_over() {
        let first = if !carried.is_empty() {
            None
        } else if core.rules.connect_per_request {
            match slot.next_request().await {
                Some(first) => Some(first),
                None => break,
            }
        } else if core.exhausted() && !slot.is_assigned() {
            break;
        } else {
            None
        };
        // In a closed loop the ticket is of this moment.
        let closed_loop = first.as_ref().filter(|_| !core.rules.open);
        let began = closed_loop.map_or_else(monotonic_ns, |(ticket, _)| ticket.due);
        let connected = slot.connect(slot.bytes_with_connect(first.as_ref()), began).await;
        if !attempted {
            attempted = true;
            core.activity.attempted();
        }
        // A server that closes before it gets a request is not to be hammered any more than one that refuses.
        let came_to_nothing = match connected {
            Ok(connected) => {
                let mut connection = slot.begin(connected, first, began, std::mem::take(&mut carried));
                carried = poll_fn(|cx| connection.poll(cx)).await;
                slot.end(&connection)
            }
            Err(Unconnected::Failed(failure)) => {
                // A request that was waiting for this connection fails with it.
                let waiting = first.or_else(|| carried.pop_front());
                core.connect_failed(waiting, failure, Some(slot.origin));
                true
            }
            Err(Unconnected::Over) => {
                if let Some((ticket, request)) = first {
                    let url = slot.origin.url(&request);
                    cut_off(&core, slot.origin, &Flight { ticket, began, sent: None, url });
                }
                false
            }
        };
        if came_to_nothing {
            backoff.pause().await;
        } else {
            backoff = Backoff::default();
        }
    }
    for (ticket, request) in carried {
        let url = slot.origin.url(&request);
        cut_off(&core, slot.origin, &Flight { ticket, began: ticket.due, sent: None, url });
    }
    core.activity.slot_ended();
}

/// Keeps one idle connection open until the run is over.
pub(crate) async fn hold(core: Rc<Core>, id: usize, origin: usize) {
    let slot = SlotTask { core: &core, id, origin: &core.origins[origin] };
    let mut backoff = Backoff::default();
    let mut attempted = false;
    while !core.timeline.is_over() {
        let connected = slot.connect(&[], monotonic_ns()).await;
        if !attempted {
            attempted = true;
            core.activity.attempted();
        }
        match connected {
            Ok(Connected { stream, .. }) => {
                core.activity.held.set(core.activity.held.get() + 1);
                if core.rules.streams > 0 {
                    let mut connection = http2::Connection::held(&core, id, slot.origin, stream);
                    poll_fn(|cx| connection.poll(cx)).await;
                } else {
                    slot.read_until_closed(stream).await;
                    let closed = u64::from(!core.timeline.is_over());
                    core.counters.tally.borrow_mut().closed_by_server += closed;
                }
                core.activity.held.set(core.activity.held.get() - 1);
                if !core.timeline.is_over() {
                    // A server that closes idle connections at once is not to be hammered.
                    backoff.pause().await;
                }
            }
            Err(Unconnected::Failed(failure)) => {
                core.connect_failed(None, failure, None);
                backoff.pause().await;
            }
            Err(Unconnected::Over) => {}
        }
    }
    core.activity.slot_ended();
}

/// Pauses that double.
struct Backoff(Duration);

impl Default for Backoff {
    fn default() -> Self {
        Self(BACKOFF.0)
    }
}

impl Backoff {
    async fn pause(&mut self) {
        tokio::time::sleep(self.0).await;
        self.0 = (self.0 * 2).min(BACKOFF.1);
    }
}

enum Unconnected {
    Failed(Failure),
    /// The run ended first.
    Over,
}

/// A connection of either version.
#[expect(clippy::large_enum_variant, reason = "a box for HTTP/1 would be an allocation for each new connection")]
enum Either<'c> {
    Http1(Connection<'c>),
    Http2(Box<http2::Connection<'c>>),
}

impl Either<'_> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<ToResend> {
        match self {
            Self::Http1(connection) => connection.poll(cx),
            Self::Http2(connection) => connection.poll(cx),
        }
    }

    /// Whether it was given any request, and whether it was up and idle when nothing was left to send.
    fn was_used_and_is_spare(&self) -> (bool, bool) {
        match self {
            Self::Http1(connection) => (connection.was_used(), connection.is_spare()),
            Self::Http2(connection) => (connection.was_used(), connection.is_spare()),
        }
    }
}

/// One slot, as its task sees it.
#[derive(Clone, Copy)]
struct SlotTask<'c> {
    core: &'c Core,
    id: usize,
    origin: &'c OriginState,
}

impl<'c> SlotTask<'c> {
    /// Whether a ticket was given to the slot, or to one of its streams.
    fn is_assigned(&self) -> bool {
        self.core.slots[self.core.ticket_slots(self.id)].iter().any(Slot::is_assigned)
    }

    /// The bytes of a request that has its connection to itself: they go out with the connect.
    fn bytes_with_connect<'b>(&self, first: Option<&'b (Ticket, Outgoing)>) -> &'b [u8]
    where
        'c: 'b,
    {
        match first.filter(|_| self.core.rules.streams == 0) {
            Some((_, Outgoing::Planned(request))) => &self.origin.requests[*request].last,
            Some((_, Outgoing::Made(_, bytes))) => bytes,
            None => &[],
        }
    }

    /// Counts a new connection, and gives it the requests that waited for it.
    fn begin(
        &self,
        connected: Connected,
        first: Option<(Ticket, Outgoing)>,
        began: u64,
        carried: ToResend,
    ) -> Either<'c> {
        self.count_connection(&connected);
        if self.origin.connected() {
            self.core.activity.last_contact.set(connected.at);
        }
        let connect_ns = (connected.connect + connected.tls.unwrap_or_default()).as_nanos() as u64;
        if self.core.rules.streams > 0 {
            let (core, id, origin, stream) = (self.core, self.id, self.origin, connected.stream);
            let mut connection = http2::Connection::new(core, id, origin, stream, connect_ns, carried);
            if let Some((ticket, request)) = &first {
                connection.give(*ticket, request, began);
            }
            return Either::Http2(Box::new(connection));
        }
        let mut connection = Connection::new(self.core, self.id, self.origin, connected.stream, connect_ns, carried);
        if let Some((ticket, request)) = &first {
            connection.give(*ticket, request, began);
            connection.wrote(connected.sent, connected.at);
        }
        Either::Http1(connection)
    }

    /// Notes that the slot's connection has ended. True where the connection came to nothing.
    fn end(&self, connection: &Either<'_>) -> bool {
        let (was_used, is_spare) = connection.was_used_and_is_spare();
        // A connection that is merely not needed any more counts as up to the end.
        if !is_spare {
            self.origin.disconnected();
        }
        self.core.slots[self.id].deadline.clear();
        for slot in &self.core.slots[self.core.ticket_slots(self.id)] {
            slot.deadline.clear();
            slot.withdraw();
        }
        !was_used && !is_spare
    }

    /// Waits, without a connection, for a ticket and the request to send with it. `None`: there will be none any more.
    async fn next_request(&self) -> Option<(Ticket, Outgoing)> {
        let core = self.core;
        if core.delays() {
            self.pause_as_scripted().await?;
        }
        let mut ticket = self.next_ticket().await?;
        if !core.makes_requests() {
            return Some((ticket, Outgoing::Planned(self.origin.next_request())));
        }
        let mut batch = Batch::default();
        if !core.make_requests(&mut batch) {
            return None;
        }
        batch.close_after_the_only();
        if !core.rules.open {
            let now = monotonic_ns();
            ticket = Ticket { due: now, free: now };
        }
        let made = batch.requests[0];
        Some((ticket, Outgoing::Made(made, batch.bytes.into())))
    }

    /// Pauses for as long as the script wants, once requests may go out.
    async fn pause_as_scripted(&self) -> Option<()> {
        let (core, id) = (self.core, self.core.ticket_slots(self.id).start);
        let slot = &core.slots[id];
        poll_fn(|cx| {
            slot.enrol(cx);
            if core.timeline.phase() == Phase::Connecting { Poll::Pending } else { Poll::Ready(()) }
        })
        .await;
        let end = monotonic_ns() + core.ask_for_pause()?.as_nanos() as u64;
        poll_fn(|cx| {
            slot.enrol(cx);
            core.wake_at(id, end);
            if monotonic_ns() >= end || core.exhausted() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        slot.deadline.clear();
        Some(())
    }

    /// Waits for a ticket without a connection.
    async fn next_ticket(&self) -> Option<Ticket> {
        let id = self.core.ticket_slots(self.id).start;
        poll_fn(|cx| {
            self.core.slots[id].enrol(cx);
            match self.core.take_ticket(id, cx, monotonic_ns) {
                Take::Now(ticket) => Poll::Ready(Some(ticket)),
                Take::Wait => Poll::Pending,
                Take::Over => Poll::Ready(None),
            }
        })
        .await
    }

    /// Connects within the plan's timeout from `now` on, and sends `first` if that is possible at once.
    ///
    /// The core's sweep enforces the timeout: the slot has no timer of its own.
    async fn connect(&self, first: &[u8], now: u64) -> Result<Connected, Unconnected> {
        let Self { core, origin, .. } = *self;
        let slot = &core.slots[self.id];
        slot.deadline.set(now + core.rules.timeout);
        let peer = origin.dialer.next_peer();
        let called = monotonic_ns();
        let result = {
            let mut connecting = pin!(origin.dialer.connector.connect_sending(peer, None, first));
            poll_fn(|cx| {
                if let Poll::Ready(result) = connecting.as_mut().poll(cx) {
                    return Poll::Ready(Ok(result));
                }
                slot.enrol(cx);
                if core.timeline.is_over() {
                    self.unfinished(core.timeline.over_since().saturating_sub(called));
                    return Poll::Ready(Err(Unconnected::Over));
                }
                if core.take_expired(self.id) {
                    return Poll::Ready(Ok(Err(ConnectError::overdue(peer))));
                }
                Poll::Pending
            })
            .await?
        };
        slot.deadline.clear();
        if let Ok(Connected { stream: stream @ Stream::Tls(_), .. }) = &result
            && core.rules.streams > 0
            && stream.alpn() != Some(ALPN)
        {
            return Err(Unconnected::Failed(Failure::Tls));
        }
        result.map_err(|error| {
            let failure = Failure::from(&error);
            if matches!(failure, Failure::ConnectTimeout | Failure::ConnectBacklog) {
                self.unfinished(monotonic_ns().saturating_sub(called));
            }
            Unconnected::Failed(failure)
        })
    }

    /// Counts a connect that was given up after `waited` nanoseconds, and might have succeeded later.
    #[cold]
    fn unfinished(&self, waited: u64) {
        let clocks = &mut self.core.counters.tally.borrow_mut().clocks;
        if self.origin.dialer.uses_tls() {
            // It is not known whether the socket or the handshake took so long.
            clocks.connect.record_censored(0);
            clocks.tls.record_censored(0);
        } else {
            clocks.connect.record_censored(waited);
        }
    }

    fn count_connection(&self, connected: &Connected) {
        let first = &self.core.first;
        if let Stream::Tls(session) = &connected.stream
            && first.tls.get().is_none()
            && let (Some(protocol), Some(cipher)) = (session.version(), session.cipher_suite())
        {
            // rustls's names, in OpenSSL's spelling: TLSv1_3, TLS13_AES_256_GCM_SHA384.
            let (protocol, cipher) = (protocol.replace('_', "."), cipher.replace("TLS13_", "TLS_"));
            let _ = first.tls.set(TlsRecord { protocol, cipher });
        }
        let mut tally = self.core.counters.tally.borrow_mut();
        tally.opened += 1;
        tally.clocks.connect.record(connected.connect.as_nanos() as u64);
        if let Some(tls) = connected.tls {
            tally.clocks.tls.record(tls.as_nanos() as u64);
        }
    }

    /// Reads and discards what the server sends until it closes the connection, or the run is over.
    async fn read_until_closed(&self, mut stream: Stream) {
        poll_fn(|cx| {
            self.core.slots[self.id].enrol(cx);
            if self.core.timeline.is_over() {
                return Poll::Ready(());
            }
            loop {
                let mut scratch = Scratch::take();
                let mut buffer = ReadBuf::new(&mut scratch);
                match ready!(Pin::new(&mut stream).poll_read(cx, &mut buffer)) {
                    Ok(()) if !buffer.filled().is_empty() => {}
                    _ => return Poll::Ready(()),
                }
            }
        })
        .await;
    }
}
