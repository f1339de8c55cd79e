//! The life of a forwarded request: choose a target, get a connection, send, pass the response on; and retries.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use oroshi_http1::ExpectedResponse;
use oroshi_net::monotonic_ns;
use oroshi_net::proxy_protocol::ProxyHeader;
use oroshi_server::{Error, Exchange, Wait};
use tokio::io::{AsyncRead, AsyncWrite};

use super::answer::{Answer, AnswerContext, ExchangeError, ProtocolSwitch, ResponseEnd};
use super::fields::holds;
use super::link::{Phase, Waiting};
use super::message::Message;
use super::outcome::Outcome;
use super::rules::HostPolicy;
use super::{Call, CallTargets, multiplexed, tunnel, upload};
use crate::failure::{Failure, ForwardError};
use crate::upstream::{AcquireLimits, Pool, Wanted};

/// How often a request is sent again because a server of HTTP/2 has refused its stream, or left it out with its GOAWAY.
/// A server that takes few requests on each connection does so to several of them in turn.
const MOST_REFUSED: u8 = 3;

/// How often a request is written anew because a handshake has led to the other version of HTTP.
const MOST_SWITCHED: u8 = 3;

/// The attempts so far.
#[derive(Default)]
struct Attempts {
    places: Vec<u16>,
    /// How often a server has refused the stream.
    refused: u8,
    /// How often a handshake has led to the other version of HTTP.
    switched: u8,
    /// The request was already retried after sending, so it is not retried again.
    again: bool,
    /// The next attempt needs a new connection.
    fresh: bool,
}

pub(super) async fn carry(
    exchange: &mut Exchange<'_>,
    call: &Call<'_>,
    outcome: &mut Outcome,
) -> Result<(), ExchangeError> {
    let now = outcome.began;
    let (mut place, mut pool) = call.to.pick(call.key, &[], now).ok_or_else(no_target)?;
    let engine = Rc::clone(pool.engine());
    let waiting = Waiting::new(engine.register(), &call.rules.settings.timeouts, now);
    let mut message = Message::compose(exchange, call, pool, outcome).map_err(ExchangeError::Client)?;
    if !message.whole && message.is_buffered(call.rules) {
        // Boxed, because most requests arrive whole.
        waiting.enter(Phase::Client, 0);
        let waited = Box::pin(waiting.registration.bound(message.wait_for_body(exchange, call, &engine))).await;
        let overdue = || ForwardError::unsent(Failure::TotalTimeout, || "the request's body did not come".to_owned());
        waited.ok_or_else(overdue)?.map_err(ExchangeError::Client)?;
        outcome.started = monotonic_ns();
    }
    let mut attempts = Attempts::default();
    loop {
        outcome.target = Some(Rc::clone(pool));
        pool.counters.requests.add(1);
        // Counts the request if this future is dropped midway.
        let gone = CountIfDropped(pool);
        let tried = loop {
            let tried = match message.is_http2() {
                false => attempt(exchange, call, outcome, &message, pool, attempts.fresh, &waiting).await,
                true => multiplexed::attempt(exchange, call, outcome, &message, pool, &waiting).await,
            };
            match &tried {
                // The handshake has shown that the target speaks the other version of HTTP.
                Err(ExchangeError::Upstream(error))
                    if error.failure == Failure::Protocol && attempts.switched < MOST_SWITCHED =>
                {
                    attempts.switched += 1;
                    message.readdress(exchange, call, pool, outcome);
                }
                _ => break tried,
            }
        };
        let stop = match tried {
            Ok(()) => {
                std::mem::forget(gone);
                return Ok(());
            }
            Err(stop) => stop,
        };
        std::mem::forget(gone);
        let error = match stop {
            ExchangeError::Client(error) => {
                pool.counters.count_failure(blame(&error));
                return Err(ExchangeError::Client(error));
            }
            ExchangeError::Upstream(error) => error,
        };
        let was_used = std::mem::take(&mut outcome.reused);
        pool.counters.count_failure(error.failure);
        // A server that closes a kept connection is not unhealthy.
        let is_closed = error.failure == Failure::Closed && error.reset.is_none();
        if error.failure.is_the_targets() && !(was_used && is_closed) {
            pool.note(true, monotonic_ns());
        }
        let nothing_came = error.failure == Failure::Closed;
        let may_repeat = call.rules.settings.retry && !attempts.again && nothing_came;
        // A server that refuses a stream has not processed the request.
        let is_refused = call.rules.settings.retry && error.failure == Failure::Refused && !error.sent;
        if is_refused && attempts.refused < MOST_REFUSED {
            attempts.refused += 1;
        } else if may_repeat && was_used && is_closed && (!error.sent || message.is_repeatable()) {
            attempts.again = true;
            attempts.fresh = true;
        } else if (!error.sent && error.failure != Failure::TotalTimeout) || (may_repeat && message.is_repeatable()) {
            attempts.again |= error.sent;
            attempts.fresh = false;
            attempts.places.push(place);
            let Some(next) = call.to.pick(call.key, &attempts.places, monotonic_ns()) else { return Err(error.into()) };
            (place, pool) = next;
            if call.rules.settings.host == HostPolicy::Target || !message.fits(pool) {
                message.readdress(exchange, call, pool, outcome);
            }
        } else {
            return Err(error.into());
        }
        outcome.retries += 1;
        if error.sent || was_used || is_refused {
            pool.counters.retries.add(1);
        }
    }
}

impl<'c> CallTargets<'c> {
    fn pick(&self, key: u64, tried: &[u16], now: u64) -> Option<(u16, &'c Rc<Pool>)> {
        match *self {
            CallTargets::One(pool) => tried.is_empty().then_some((0, pool)),
            CallTargets::Any(balancer) => balancer.pick(key, tried, now).map(|place| (place, balancer.at(place))),
        }
    }
}

/// Returns the failure that an error of the client's side means.
pub(super) fn blame(error: &Error) -> Failure {
    match error {
        // The client left in the middle of its body.
        Error::Request(oroshi_http1::DecodeError::UnexpectedEof) => Failure::ClientGone,
        Error::Request(_) | Error::Timeout(Wait::Head | Wait::Body) => Failure::ClientBody,
        Error::Timeout(Wait::Write) | Error::Io(_) => Failure::ClientGone,
        // The upstream's response cannot be expressed to the client.
        _ => Failure::Malformed,
    }
}

fn no_target() -> ExchangeError {
    ForwardError::unsent(Failure::NoTarget, String::new).into()
}

/// Counts a request as client-gone when its future is dropped.
struct CountIfDropped<'p>(&'p Rc<Pool>);

impl Drop for CountIfDropped<'_> {
    fn drop(&mut self) {
        self.0.counters.count_failure(Failure::ClientGone);
    }
}

/// Sends the request on one connection and passes the response on.
async fn attempt(
    exchange: &mut Exchange<'_>,
    call: &Call<'_>,
    outcome: &mut Outcome,
    message: &Message,
    pool: &Rc<Pool>,
    fresh: bool,
    waiting: &Waiting<'_>,
) -> Result<(), ExchangeError> {
    let began = outcome.started;
    let origin = pool.origin_of(|| ProxyHeader::of(exchange.remote(), exchange.local()));
    let idle = if fresh { None } else { pool.take_idle(&origin, !message.is_repeatable(), began) };
    let (mut lease, mut sent) = match idle {
        Some(lease) => (lease, 0),
        None => {
            let timeouts = &call.rules.settings.timeouts;
            // All attempts share the queue timeout.
            let queue = timeouts.queue.saturating_sub(Duration::from_nanos(outcome.queued));
            let limits = AcquireLimits { queue, connect: timeouts.connect, total: waiting.total() };
            // Boxed, so that no space is reserved for connecting while the response is awaited.
            let wanted = Wanted { fresh, tunnel: message.expect == ExpectedResponse::Upgrade };
            let acquired =
                Box::pin(pool.acquire(wanted, &origin, &waiting.registration, limits, &message.bytes)).await?;
            outcome.queued += acquired.queued;
            outcome.connecting += acquired.connecting;
            (acquired.lease, acquired.sent)
        }
    };
    outcome.reused = lease.is_used();
    let Some(connection) = lease.connection() else {
        return Err(ForwardError::unsent(Failure::Connect, || "there is no connection".to_owned()).into());
    };
    if sent < message.bytes.len() {
        let step = poll_fn(|context| Poll::Ready(connection.poll_write(context, &message.bytes[sent..]))).await;
        match step {
            Poll::Ready(Ok(count)) => sent += count,
            Poll::Ready(Err(error)) if sent == 0 => {
                return Err(ForwardError::unsent(Failure::Closed, || error.to_string()).into());
            }
            // The upstream may still explain why it refuses the rest.
            Poll::Ready(Err(_)) | Poll::Pending => {}
        }
    }
    let Call { rules, request, response: edits, inspect, encoders, .. } = *call;
    let asked = exchange.head.headers;
    let answering = AnswerContext { rules, request, edits, inspect, asked, encoders, waiting };
    let is_at_once = outcome.reused && outcome.retries == 0;
    let mut noted = CountedAnswer::new(message.expect, pool, outcome);
    let answer = &mut noted.answer;
    let Exchange { body, reply, .. } = exchange;
    let ending = if sent == message.bytes.len() && message.whole && !connection.unflushed.get() {
        waiting.enter(Phase::Head, if is_at_once { began } else { monotonic_ns() });
        poll_fn(|context| answer.poll(context, &answering, connection, reply)).await.map(|ending| (ending, true))
    } else {
        let rest = &message.bytes[sent..];
        Box::pin(upload::send_and_answer(connection, rest, body, message.framing, answer, &answering, reply)).await
    };
    let (came_at_once, head_at) = (noted.answer.came_at_once, noted.answer.head_at);
    let (keep_alive, keep) = (noted.answer.keep_alive, noted.answer.keep);
    drop(noted);
    match ending? {
        (ResponseEnd::Whole, all_sent) => {
            // Saves a clock read if everything came in one read.
            let now = if came_at_once { head_at } else { monotonic_ns() };
            outcome.total = (now - outcome.began).max(1);
            if keep_alive && all_sent {
                lease.give_back(keep, now);
            }
            Ok(())
        }
        (ResponseEnd::Switch(switch), true) => {
            let Some(connection) = lease.connection_mut() else { return Ok(()) };
            let server = connection.stream.get_mut();
            Box::pin(switch_over(exchange, call, outcome, server, *switch, waiting)).await
        }
        (ResponseEnd::Switch(_), false) => {
            Err(ForwardError::sent(Failure::Malformed, "101 before the request was complete").into())
        }
    }
}

/// A response in progress. Dropping it counts what arrived, also when the client leaves midway.
pub(super) struct CountedAnswer<'a> {
    pub(super) answer: Answer,
    pool: &'a Pool,
    outcome: &'a mut Outcome,
}

impl<'a> CountedAnswer<'a> {
    pub(super) fn new(expect: ExpectedResponse, pool: &'a Pool, outcome: &'a mut Outcome) -> Self {
        CountedAnswer { answer: Answer::new(expect), pool, outcome }
    }
}

impl Drop for CountedAnswer<'_> {
    fn drop(&mut self) {
        count_answer(&self.answer, self.pool, self.outcome);
    }
}

/// Counts the part of a response that arrived.
fn count_answer(answer: &Answer, pool: &Pool, outcome: &mut Outcome) {
    if answer.given == 0 {
        return;
    }
    outcome.status = answer.status;
    outcome.bytes = answer.bytes;
    outcome.head = answer.head_at - outcome.started;
    outcome.version = Some(answer.version);
    let counters = &pool.counters;
    counters.answers.add(1);
    counters.server_errors.add(u64::from(answer.given >= 500));
    counters.bytes.add(answer.received);
    counters.count_latency(outcome.head);
    pool.note(pool.is_failure(answer.given), answer.head_at);
}

/// Sends the 101 to the client, then runs the tunnel.
pub(super) async fn switch_over(
    exchange: &mut Exchange<'_>,
    call: &Call<'_>,
    outcome: &mut Outcome,
    server: &mut (impl AsyncRead + AsyncWrite + Unpin),
    switch: ProtocolSwitch,
    waiting: &Waiting<'_>,
) -> Result<(), ExchangeError> {
    let now = monotonic_ns();
    outcome.head = now - outcome.started;
    let pool = outcome.target.clone();
    let fields: Vec<(&str, &[u8])> = switch.fields.iter().map(|(name, value)| (&**name, &**value)).collect();
    // RFC 9110, section 7.8: only to a protocol that the client asked for.
    let asked_for = |value: &[u8]| {
        value
            .split(|&byte| byte == b',')
            .map(<[u8]>::trim_ascii)
            .all(|protocol| exchange.head.headers.get_all("upgrade").any(|asked| holds(asked, protocol)))
    };
    let named: Vec<&[u8]> =
        fields.iter().filter(|(name, _)| name.eq_ignore_ascii_case("upgrade")).map(|(_, value)| *value).collect();
    if named.is_empty() || !named.into_iter().all(asked_for) {
        let detail = "101 to a protocol that the client did not ask for";
        return Err(ForwardError::sent(Failure::Malformed, detail).into());
    }
    let (mut client, early) = exchange.upgrade(101, &fields).await.map_err(ExchangeError::Client)?;
    outcome.status = 101;
    outcome.switched = true;
    if let Some(pool) = &pool {
        pool.counters.answers.add(1);
        pool.counters.count_latency(outcome.head);
        pool.note(false, now);
    }
    let idle = call.rules.settings.timeouts.tunnel;
    let (up, down, ended) = tunnel::run(&mut client, server, early, switch.rest, &waiting.registration, idle).await;
    (outcome.bytes_up, outcome.bytes) = (up, down);
    if let Some(pool) = &pool {
        pool.counters.bytes.add(down);
    }
    match ended {
        tunnel::TunnelEnd::Properly => Ok(()),
        tunnel::TunnelEnd::Idle => {
            Err(ForwardError::sent(Failure::BodyTimeout, "nothing came through the tunnel").into())
        }
        tunnel::TunnelEnd::Broken(how) => Err(ForwardError::sent(Failure::Cut, how).into()),
    }
}
