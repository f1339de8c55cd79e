//! A request on a stream of HTTP/2.

use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use oroshi_core::after;
use oroshi_http1::{ExpectedResponse, Headers, Version};
use oroshi_multiplex as multiplex;
use oroshi_net::monotonic_ns;
use oroshi_server::{Exchange, Reply, RequestBody};
use oroshi_websocket::handshake::{UpgradeRequest, UpgradeRequestError};

use super::Call;
use super::answer::{Answer, AnswerContext, ExchangeError, ProtocolSwitch, ResponseEnd};
use super::carry::{CountedAnswer, switch_over};
use super::fields::holds;
use super::link::{Phase, Waiting};
use super::message::Message;
use super::outcome::Outcome;
use super::rules::Timeouts;
use super::stream_link::{StreamLink, stream_failure};
use super::tunnel::StreamSocket;
use super::upload::{Unsent, write_trailers};
use crate::failure::{Failure, ForwardError};
use crate::upstream::{AcquireLimits, Pool, StreamLease};

/// Sends the request on one stream and passes the response on.
pub(super) async fn attempt(
    exchange: &mut Exchange<'_>,
    call: &Call<'_>,
    outcome: &mut Outcome,
    message: &Message,
    pool: &Rc<Pool>,
    waiting: &Waiting<'_>,
) -> Result<(), ExchangeError> {
    let is_tunnel = message.expect == ExpectedResponse::Upgrade;
    if is_tunnel && let Err(error) = UpgradeRequest::of(&exchange.head) {
        return Box::pin(refuse_handshake(exchange, outcome, &error)).await;
    }
    let surely = !message.is_repeatable();
    let (lease, place) = match pool.take_stream(surely) {
        Some(both) => both,
        // Boxed, so that no space is reserved for connecting while the response is awaited.
        None => Box::pin(acquire(call, outcome, pool, surely, waiting)).await?,
    };
    outcome.reused = lease.is_used();
    if is_tunnel {
        Box::pin(check_tunnel(&lease, waiting)).await?;
    }
    let (stream, has_no_body) =
        message.begin(exchange.head.method, place).map_err(|error| stream_failure(&error, false))?;
    let link = StreamLink::new(stream, has_no_body, takes_trailers(exchange));
    let is_sent = message.whole
        && !is_tunnel
        && poll_fn(|context| Poll::Ready(matches!(link.poll_send(context, message), Poll::Ready(Ok(()))))).await;
    let Call { rules, request, response: edits, inspect, encoders, .. } = *call;
    let asked = exchange.head.headers;
    let answering = AnswerContext { rules, request, edits, inspect, asked, encoders, waiting };
    let mut counted = CountedAnswer::new(message.expect, pool, outcome);
    let answer = &mut counted.answer;
    let Exchange { body, reply, .. } = exchange;
    let ending = if is_sent || is_tunnel {
        waiting.enter(Phase::Head, monotonic_ns());
        poll_fn(|context| answer.poll_stream(context, &answering, &link, reply)).await
    } else {
        Box::pin(send_and_answer(&link, message, body, answer, &answering, reply)).await
    };
    let ended_at = counted.answer.came_at_once.then_some(counted.answer.head_at);
    drop(counted);
    if let Err(ExchangeError::Upstream(error)) = &ending {
        leave_if_silent(&link, error, &rules.settings.timeouts);
    }
    match ending? {
        ResponseEnd::Whole => {
            // Saves a clock read if everything came at once.
            outcome.total = (ended_at.unwrap_or_else(monotonic_ns) - outcome.began).max(1);
            Ok(())
        }
        ResponseEnd::Switch(switch) => {
            let mut server = StreamSocket::new(link.stream.into_inner());
            let switch = agreed(exchange, *switch);
            Box::pin(switch_over(exchange, call, outcome, &mut server, switch, waiting)).await
        }
    }
}

/// Gives the connection no more requests if nothing at all came on it while this one waited: it may be dead.
#[cold]
fn leave_if_silent(link: &StreamLink, error: &ForwardError, timeouts: &Timeouts) {
    let waited = match error.failure {
        Failure::HeadTimeout => timeouts.head,
        Failure::SendTimeout | Failure::BodyTimeout => timeouts.between,
        _ => return,
    };
    let stream = link.stream.borrow();
    if after(stream.connection().heard_at(), waited) <= monotonic_ns() {
        stream.connection().close();
    }
}

async fn acquire(
    call: &Call<'_>,
    outcome: &mut Outcome,
    pool: &Rc<Pool>,
    surely: bool,
    waiting: &Waiting<'_>,
) -> Result<(StreamLease, multiplex::Place), ExchangeError> {
    let timeouts = &call.rules.settings.timeouts;
    // All attempts share the queue timeout.
    let queue = timeouts.queue.saturating_sub(Duration::from_nanos(outcome.queued));
    let limits = AcquireLimits { queue, connect: timeouts.connect, total: waiting.total() };
    let acquired = pool.acquire_stream(surely, &waiting.registration, limits).await?;
    outcome.queued += acquired.queued;
    outcome.connecting += acquired.connecting;
    Ok((acquired.lease, acquired.place))
}

/// Answers a handshake that an upstream over HTTP/1 would refuse. Over HTTP/2 the upstream does not see all of it.
async fn refuse_handshake(
    exchange: &mut Exchange<'_>,
    outcome: &mut Outcome,
    error: &UpgradeRequestError,
) -> Result<(), ExchangeError> {
    let text = format!("{error}\n");
    let date = exchange.date();
    let fields: [(&str, &[u8]); 3] =
        [("Content-Type", b"text/plain"), ("Sec-WebSocket-Version", b"13"), ("Date", &date)];
    (outcome.status, outcome.bytes) = (error.status(), text.len() as u64);
    exchange.reply.send(error.status(), fields, text.as_bytes()).await.map_err(ExchangeError::Client)
}

/// Checks that the server allows extended CONNECT, which its settings say.
async fn check_tunnel(lease: &StreamLease, waiting: &Waiting<'_>) -> Result<(), ForwardError> {
    waiting.enter(Phase::Head, monotonic_ns());
    let allows = poll_fn(|context| match lease.poll_allows_tunnels(context) {
        Poll::Ready(allows) => Poll::Ready(Ok(allows)),
        Poll::Pending => match waiting.poll_over(context) {
            Some(error) => Poll::Ready(Err(ForwardError { sent: false, ..error })),
            None => Poll::Pending,
        },
    });
    if allows.await? {
        return Ok(());
    }
    Err(ForwardError::unsent(Failure::NoWebSocket, || {
        "the server does not send SETTINGS_ENABLE_CONNECT_PROTOCOL (RFC 8441)".to_owned()
    }))
}

/// Returns the head of a 101 that agrees to the client's handshake: over HTTP/2 there is none of these fields.
fn agreed(exchange: &Exchange<'_>, mut switch: ProtocolSwitch) -> ProtocolSwitch {
    switch.fields.retain(|(name, _)| !name.eq_ignore_ascii_case("sec-websocket-accept"));
    switch.fields.push(("Upgrade".to_owned(), b"websocket".to_vec()));
    if let Ok(asked) = UpgradeRequest::of(&exchange.head) {
        switch.fields.push(("Sec-WebSocket-Accept".to_owned(), asked.accept().into_bytes()));
    }
    switch
}

/// Returns whether the client takes trailers: over HTTP/2 all do.
fn takes_trailers(exchange: &Exchange<'_>) -> bool {
    let head = &exchange.head;
    head.version == Version::Http2 || head.headers.get_all("te").any(|value| holds(value, b"trailers"))
}

/// Sends the rest of the request as it arrives, and passes the response on meanwhile.
async fn send_and_answer(
    link: &StreamLink,
    message: &Message,
    body: &mut RequestBody<'_>,
    answer: &mut Answer,
    answering: &AnswerContext<'_>,
    reply: &mut Reply<'_>,
) -> Result<ResponseEnd, ExchangeError> {
    let waiting = answering.waiting;
    let mut sending = pin!(send(link, message, body, answering));
    let mut is_sending = true;
    poll_fn(|context| {
        if is_sending && let Poll::Ready(result) = sending.as_mut().poll(context) {
            is_sending = false;
            if let Err(Unsent::Client(error)) = result {
                return Poll::Ready(Err(ExchangeError::Client(error)));
            }
            waiting.enter(if answer.status == 0 { Phase::Head } else { Phase::Body }, monotonic_ns());
        }
        answer.poll_stream(context, answering, link, reply)
    })
    .await
}

async fn send(
    link: &StreamLink,
    message: &Message,
    body: &mut RequestBody<'_>,
    answering: &AnswerContext<'_>,
) -> Result<(), Unsent> {
    let waiting = answering.waiting;
    waiting.enter(Phase::Client, 0);
    if message.whole {
        return link.send(message, waiting).await;
    }
    link.write_all(message.body(), waiting).await?;
    while let Some(piece) = body.chunk().await.map_err(Unsent::Client)? {
        link.send_piece(piece, waiting).await?;
    }
    let mut lines = Vec::new();
    write_trailers(body, &mut lines, (&answering.rules.settings.request, answering.request));
    poll_fn(|context| link.poll_finish(context, Headers::from_checked_lines(&lines))).await
}
