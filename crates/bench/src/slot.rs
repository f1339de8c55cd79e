//! One slot: it makes a connection, lets it serve its time, and makes the next one, until the run is over.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Poll, ready};
use std::time::Duration;

use oroshi_core::Scratch;
use oroshi_net::{ConnectError, Connected, Stream, monotonic_ns};
use tokio::io::{AsyncRead, ReadBuf};

use crate::batch::Batch;
use crate::connection::{Carried, Connection, cut_off};
use crate::core::{Core, OriginState, Outgoing, Phase, Take, Ticket};
use crate::failure::Failure;
use crate::record::TlsRecord;

/// Pause after an attempt to connect that came to nothing; it doubles up to the second value while that goes on.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(100));

/// Fills slot `id` with connections to `origin` until the run is over.
pub(crate) async fn fill_slot(core: Rc<Core>, id: usize, origin: usize) {
    let mut backoff = BACKOFF.0;
    let mut carried = Carried::new();
    let mut attempted = core.rules.connect_per_request;
    if attempted {
        core.count_attempt();
    }
    while core.phase.get() != Phase::Over {
        let first = if !carried.is_empty() {
            None
        } else if core.rules.connect_per_request {
            match next_request(&core, id, &core.origins[origin]).await {
                Some(first) => Some(first),
                None => break,
            }
        } else if core.exhausted() {
            break;
        } else {
            None
        };
        // In a closed loop the ticket is of this moment.
        let closed_loop = first.as_ref().filter(|_| !core.rules.open);
        let began = closed_loop.map_or_else(monotonic_ns, |(ticket, _)| ticket.due);
        let place = &core.origins[origin];
        // A request that has its connection to itself goes out with it.
        let bytes = match &first {
            Some((_, Outgoing::Planned(request))) => &place.requests[*request].last,
            Some((_, Outgoing::Made(_, bytes))) => &bytes[..],
            None => &[],
        };
        let connected = connect(&core, id, place, bytes, began).await;
        if !attempted {
            attempted = true;
            core.count_attempt();
        }
        // A server that closes before it was asked anything is not to be hammered any more than one that refuses.
        let pause = match connected {
            Ok(connected) => {
                count_connection(&core, &connected);
                if place.connected() {
                    core.stirred.set(connected.at);
                }
                let connecting = connected.connect + connected.tls.unwrap_or_default();
                let connect_ns = connecting.as_nanos() as u64;
                let carried_here = std::mem::take(&mut carried);
                let mut connection = Connection::new(&core, id, place, connected.stream, connect_ns, carried_here);
                if let Some((ticket, request)) = &first {
                    connection.give(*ticket, request, began);
                    connection.wrote(connected.sent, connected.at);
                }
                carried = poll_fn(|cx| connection.poll(cx)).await;
                // One that is merely not needed any more counts as up to the end.
                if !connection.is_spare() {
                    place.disconnected();
                }
                core.slots[id].deadline.clear();
                core.not_free(id);
                !connection.was_used() && !connection.is_spare()
            }
            Err(Unconnected::Failed(failure)) => {
                // A request that was waiting for this connection fails with it.
                let waiting = first.or_else(|| carried.pop_front()).map(|(ticket, _)| ticket);
                core.connect_failed(waiting, failure, Some(place));
                true
            }
            Err(Unconnected::Over) => {
                if let Some((ticket, _)) = first {
                    cut_off(&core, place, ticket, began, None);
                }
                false
            }
        };
        if pause {
            tokio::time::sleep(backoff).await;
            backoff = (backoff * 2).min(BACKOFF.1);
        } else {
            backoff = BACKOFF.0;
        }
    }
    for (ticket, _) in carried {
        cut_off(&core, &core.origins[origin], ticket, ticket.due, None);
    }
    core.ended.set(core.ended.get() + 1);
    core.progress.notify_one();
}

/// Keeps one idle connection open until the run is over.
pub(crate) async fn hold(core: Rc<Core>, id: usize, origin: usize) {
    let mut backoff = BACKOFF.0;
    let mut attempted = false;
    while core.phase.get() != Phase::Over {
        let connected = connect(&core, id, &core.origins[origin], &[], monotonic_ns()).await;
        if !attempted {
            attempted = true;
            core.count_attempt();
        }
        match connected {
            Ok(Connected { mut stream, .. }) => {
                core.held.set(core.held.get() + 1);
                poll_fn(|cx| {
                    core.slots[id].enrol(cx);
                    if core.phase.get() == Phase::Over {
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
                core.held.set(core.held.get() - 1);
                if core.phase.get() != Phase::Over {
                    core.tally.borrow_mut().closed_by_server += 1;
                }
                // A server that closes idle connections at once is not to be hammered.
                if core.phase.get() != Phase::Over {
                    tokio::time::sleep(backoff).await;
                    backoff = (backoff * 2).min(BACKOFF.1);
                }
            }
            Err(Unconnected::Failed(failure)) => {
                core.connect_failed(None, failure, None);
                tokio::time::sleep(backoff).await;
                backoff = (backoff * 2).min(BACKOFF.1);
            }
            Err(Unconnected::Over) => {}
        }
    }
    core.ended.set(core.ended.get() + 1);
    core.progress.notify_one();
}

/// Waits, without a connection, for a ticket and what to send with it.
async fn next_request(core: &Core, id: usize, origin: &OriginState) -> Option<(Ticket, Outgoing)> {
    if core.delays() {
        started(core, id).await;
        let end = monotonic_ns() + core.ask_for_pause()?.as_nanos() as u64;
        poll_fn(|cx| {
            core.slots[id].enrol(cx);
            core.rest_until(id, end);
            if monotonic_ns() >= end || core.exhausted() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        core.slots[id].deadline.clear();
    }
    let mut ticket = next_ticket(core, id).await?;
    if !core.makes_requests() {
        return Some((ticket, Outgoing::Planned(origin.next_request())));
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

/// Waits for the first request to be allowed.
async fn started(core: &Core, id: usize) {
    poll_fn(|cx| {
        core.slots[id].enrol(cx);
        if core.phase.get() == Phase::Connecting { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
}

/// Waits for a ticket without a connection.
async fn next_ticket(core: &Core, id: usize) -> Option<Ticket> {
    poll_fn(|cx| {
        core.slots[id].enrol(cx);
        match core.take_ticket(id, cx, monotonic_ns) {
            Take::Now(ticket) => Poll::Ready(Some(ticket)),
            Take::Wait => Poll::Pending,
            Take::Over => Poll::Ready(None),
        }
    })
    .await
}

enum Unconnected {
    Failed(Failure),
    /// The run ended first.
    Over,
}

/// Connects, and sends `first` if that is possible at once, within the plan's timeout from `now` on. The core's sweep
/// enforces it: no timer of its own.
async fn connect(
    core: &Core,
    id: usize,
    origin: &OriginState,
    first: &[u8],
    now: u64,
) -> Result<Connected, Unconnected> {
    let slot = &core.slots[id];
    slot.deadline.set(now + core.rules.timeout);
    let peer = origin.next_peer();
    let called = monotonic_ns();
    let result = {
        let mut connecting = pin!(origin.connector.connect_sending(peer, None, first));
        poll_fn(|cx| {
            if let Poll::Ready(result) = connecting.as_mut().poll(cx) {
                return Poll::Ready(Ok(result));
            }
            slot.enrol(cx);
            if core.phase.get() == Phase::Over {
                unfinished(core, origin, core.over_since.get().saturating_sub(called));
                return Poll::Ready(Err(Unconnected::Over));
            }
            if core.take_expired(id) {
                return Poll::Ready(Ok(Err(ConnectError::overdue(peer))));
            }
            Poll::Pending
        })
        .await?
    };
    slot.deadline.clear();
    match result {
        Ok(connected) => Ok(connected),
        Err(error) => {
            let failure = connect_failure(&error);
            if matches!(failure, Failure::ConnectTimeout | Failure::ConnectBacklog) {
                unfinished(core, origin, monotonic_ns().saturating_sub(called));
            }
            Err(Unconnected::Failed(failure))
        }
    }
}

/// A connection that was not there after `waited` nanoseconds, and may have come later.
#[cold]
fn unfinished(core: &Core, origin: &OriginState, waited: u64) {
    let clocks = &mut core.tally.borrow_mut().clocks;
    if origin.connector.options().tls.is_none() {
        clocks.connect.record_censored(waited);
    } else {
        // Whether the socket or the handshake was waited for is not known.
        clocks.connect.record_censored(0);
        clocks.tls.record_censored(0);
    }
}

fn count_connection(core: &Core, connected: &Connected) {
    if let Stream::Tls(session) = &connected.stream
        && core.first.tls.get().is_none()
        && let (Some(protocol), Some(cipher)) = (session.version(), session.cipher_suite())
    {
        // rustls's names, in OpenSSL's spelling: TLSv1_3, TLS13_AES_256_GCM_SHA384.
        let (protocol, cipher) = (protocol.replace('_', "."), cipher.replace("TLS13_", "TLS_"));
        let _ = core.first.tls.set(TlsRecord { protocol, cipher });
    }
    let mut tally = core.tally.borrow_mut();
    tally.opened += 1;
    tally.clocks.connect.record(connected.connect.as_nanos() as u64);
    if let Some(tls) = connected.tls {
        tally.clocks.tls.record(tls.as_nanos() as u64);
    }
}

/// The name of what kept a connection from being made.
pub(crate) fn connect_failure(error: &ConnectError) -> Failure {
    match error {
        ConnectError::Timeout => Failure::ConnectTimeout,
        ConnectError::Backlog => Failure::ConnectBacklog,
        ConnectError::PortsExhausted => Failure::PortsExhausted,
        ConnectError::Tls(_) => Failure::Tls,
        _ => Failure::ConnectRefused,
    }
}
