//! The life of a forwarded request: choose a target, get a connection, send, pass the response on; and retries.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use oroshi_core::SpareBuffer;
use oroshi_http1::{ExpectedResponse, Framing};
use oroshi_net::monotonic_ns;
use oroshi_server::{Error, Exchange, Wait};

use super::answer::{Answer, AnswerContext, ExchangeError, ProtocolSwitch, ResponseEnd};
use super::fields::{holds, is_websocket};
use super::link::{Phase, Waiting};
use super::outcome::{Outcome, RequestId};
use super::request_head::{Peer, Request, is_trusted};
use super::rules::{HostPolicy, Rules};
use super::{Call, CallTargets, tunnel, upload};
use crate::failure::{Failure, ForwardError};
use crate::upstream::{AcquireLimits, BufferShare, Engine, Lease, Pool};

/// The request as the gateway sends it, the same for every attempt.
struct Message {
    /// The head and the buffered body, which is complete if `whole`.
    bytes: SpareBuffer,
    head_bytes: usize,
    whole: bool,
    framing: Framing,
    expect: ExpectedResponse,
    /// The core's account of the buffered body.
    account: Option<BufferShare>,
    /// Whether the method is idempotent (RFC 9110, section 9.2.2).
    idempotent: bool,
}

impl Message {
    /// Returns whether the gateway buffers the body before sending.
    fn is_buffered(&self, rules: &Rules) -> bool {
        rules.settings.buffer > 0 && self.expect != ExpectedResponse::Upgrade
    }

    /// Returns whether a retry is safe although a server may have acted on the request.
    fn is_repeatable(&self) -> bool {
        self.idempotent && self.whole
    }
}

/// The attempts so far.
#[derive(Default)]
struct Attempts {
    places: Vec<u16>,
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
    let mut message = compose(exchange, call, pool, outcome).map_err(ExchangeError::Client)?;
    if !message.whole && message.is_buffered(call.rules) {
        // Boxed, because most requests arrive whole.
        waiting.enter(Phase::Client, 0);
        let waited = Box::pin(waiting.registration.bound(wait_for_body(exchange, call, &engine, &mut message))).await;
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
        let stop = match attempt(exchange, call, outcome, &message, pool, attempts.fresh, &waiting).await {
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
        if error.failure.is_the_targets() && !(was_used && error.failure == Failure::Closed) {
            pool.note(true, monotonic_ns());
        }
        let nothing_came = error.failure == Failure::Closed;
        let may_repeat = call.rules.settings.retry && !attempts.again && nothing_came;
        if may_repeat && was_used && (!error.sent || message.is_repeatable()) {
            attempts.again = true;
            attempts.fresh = true;
        } else if (!error.sent && error.failure != Failure::TotalTimeout) || (may_repeat && message.is_repeatable()) {
            attempts.again |= error.sent;
            attempts.fresh = false;
            attempts.places.push(place);
            let Some(next) = call.to.pick(call.key, &attempts.places, monotonic_ns()) else { return Err(error.into()) };
            (place, pool) = next;
            if call.rules.settings.host == HostPolicy::Target {
                readdress(exchange, call, &mut message, pool, outcome);
            }
        } else {
            return Err(error.into());
        }
        outcome.retries += 1;
        if error.sent || was_used {
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

/// Writes the head and the body that arrived with it.
fn compose(exchange: &mut Exchange<'_>, call: &Call<'_>, pool: &Pool, outcome: &mut Outcome) -> Result<Message, Error> {
    let head = exchange.head;
    let settings = &call.rules.settings;
    if outcome.request_id.is_none() {
        outcome.request_id = request_id(exchange, call.rules);
    }
    let mut message = Message {
        bytes: SpareBuffer::take(),
        head_bytes: 0,
        whole: true,
        framing: head.framing,
        account: None,
        expect: match head.method {
            "HEAD" => ExpectedResponse::Head,
            // Any other protocol would bypass the rules, h2c above all.
            _ if settings.upgrade && is_websocket(head.upgrade) => ExpectedResponse::Upgrade,
            _ => ExpectedResponse::Body,
        },
        idempotent: matches!(head.method, "GET" | "HEAD" | "PUT" | "DELETE" | "OPTIONS"),
    };
    write_head(exchange, call, &mut message, pool, outcome);
    if !matches!(head.framing, Framing::None) {
        if !message.is_buffered(call.rules) {
            exchange.body.leave_continue();
        }
        message.whole = upload::gather(&mut exchange.body, head.framing, &mut message.bytes, call.drops())?;
    }
    Ok(message)
}

/// Buffers the body, up to the route's limit.
async fn wait_for_body(
    exchange: &mut Exchange<'_>,
    call: &Call<'_>,
    engine: &Rc<Engine>,
    message: &mut Message,
) -> Result<(), Error> {
    let account = message.account.insert(engine.account());
    let most = (message.head_bytes, call.rules.settings.buffer);
    let (body, bytes) = (&mut exchange.body, &mut *message.bytes);
    message.whole = upload::buffer(body, message.framing, bytes, most, account, call.drops()).await?;
    Ok(())
}

/// Returns the request's id, if the route asks for one: a trusted client's, or a new one.
pub(crate) fn request_id(exchange: &Exchange<'_>, rules: &Rules) -> Option<RequestId> {
    let forwarding = &rules.settings.forwarding;
    if !forwarding.request_id {
        return None;
    }
    let address = exchange.remote().map(|remote| remote.ip());
    let given = is_trusted(forwarding, address).then(|| exchange.head.headers.get("x-request-id")).flatten();
    Some(given.and_then(RequestId::given).unwrap_or_else(RequestId::new))
}

fn write_head(exchange: &Exchange<'_>, call: &Call<'_>, message: &mut Message, pool: &Pool, outcome: &Outcome) {
    let remote = exchange.remote();
    let request = Request {
        head: &exchange.head,
        target: call.target,
        peer: Peer {
            address: remote.map(|remote| remote.ip()),
            port: exchange.local().map(|local| local.port()),
            is_tls: exchange.is_tls(),
        },
        rules: call.rules,
        edits: call.request,
        authority: pool.authority(),
        upgrade: message.expect == ExpectedResponse::Upgrade,
        expect: !message.is_buffered(call.rules),
        id: outcome.request_id.as_ref().map(RequestId::as_str),
    };
    request.write(&mut message.bytes);
    message.head_bytes = message.bytes.len();
}

/// Writes the head again for another target, whose name is in it.
fn readdress(exchange: &Exchange<'_>, call: &Call<'_>, message: &mut Message, pool: &Pool, outcome: &Outcome) {
    let body = message.bytes.split_off(message.head_bytes);
    message.bytes.clear();
    write_head(exchange, call, message, pool, outcome);
    message.bytes.extend_from_slice(&body);
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
    let idle = if fresh { None } else { pool.take_idle(!message.is_repeatable(), began) };
    let (lease, mut sent) = match idle {
        Some(lease) => (lease, 0),
        None => {
            let timeouts = &call.rules.settings.timeouts;
            // All attempts share the queue timeout.
            let queue = timeouts.queue.saturating_sub(Duration::from_nanos(outcome.queued));
            let limits = AcquireLimits { queue, connect: timeouts.connect, total: waiting.total() };
            // Boxed, so that no space is reserved for connecting while the response is awaited.
            let acquired = Box::pin(pool.acquire(fresh, &waiting.registration, limits, &message.bytes)).await?;
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
    let Call { rules, request, response: edits, inspect, .. } = *call;
    let answering = AnswerContext { rules, request, edits, inspect, waiting };
    let is_at_once = outcome.reused && outcome.retries == 0;
    let mut noted = CountedAnswer { answer: Answer::new(message.expect), pool, outcome };
    let answer = &mut noted.answer;
    let Exchange { body, reply, .. } = exchange;
    let ending = if sent == message.bytes.len() && message.whole {
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
            Box::pin(switch_over(exchange, call, outcome, lease, *switch, waiting)).await
        }
        (ResponseEnd::Switch(_), false) => {
            Err(ForwardError::sent(Failure::Malformed, "101 before the request was complete").into())
        }
    }
}

/// A response in progress. Dropping it counts what arrived, also when the client leaves midway.
struct CountedAnswer<'a> {
    answer: Answer,
    pool: &'a Pool,
    outcome: &'a mut Outcome,
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
    let counters = &pool.counters;
    counters.answers.add(1);
    counters.server_errors.add(u64::from(answer.given >= 500));
    counters.bytes.add(answer.bytes);
    counters.count_latency(outcome.head);
    pool.note(pool.is_failure(answer.given), answer.head_at);
}

/// Sends the 101 to the client, then runs the tunnel.
async fn switch_over(
    exchange: &mut Exchange<'_>,
    call: &Call<'_>,
    outcome: &mut Outcome,
    mut lease: Lease,
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
    let (Some(pool), Some(connection)) = (&pool, lease.connection_mut()) else { return Ok(()) };
    let server = connection.stream.get_mut();
    let idle = call.rules.settings.timeouts.tunnel;
    let (up, down, ended) = tunnel::run(&mut client, server, early, switch.rest, &waiting.registration, idle).await;
    (outcome.bytes_up, outcome.bytes) = (up, down);
    pool.counters.bytes.add(down);
    match ended {
        tunnel::TunnelEnd::Properly => Ok(()),
        tunnel::TunnelEnd::Idle => {
            Err(ForwardError::sent(Failure::BodyTimeout, "nothing came through the tunnel").into())
        }
        tunnel::TunnelEnd::Broken(how) => Err(ForwardError::sent(Failure::Cut, how).into()),
    }
}
