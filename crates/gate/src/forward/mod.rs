//! Forwards one request to an upstream, and the response back.
//!
//! Everything happens within the handler's own future: no task, no channel, no allocation on kept connections. Bytes
//! from the upstream go to the client from the core's scratch buffer.
//!
//! Read `carry` (a request's life, with retries), `message` (the request as it is sent), `request_head` and
//! `response_head` (changes to heads), `answer`, `upload` and `tunnel` (bytes), `multiplexed` with `stream_link` (the
//! same over HTTP/2), `held` (inspected responses), `compress`, `link` (deadlines), `rules` and `edits` (a route's
//! settings), `outcome`, `trace`.

mod answer;
mod carry;
mod compress;
mod edits;
mod fields;
mod held;
mod link;
mod message;
mod multiplexed;
mod outcome;
mod request_head;
mod response_head;
mod rules;
mod stream_link;
mod trace;
mod tunnel;
mod upload;

use std::rc::Rc;
use std::sync::{Arc, LazyLock};

use oroshi_http1::{Version, encode};
use oroshi_net::tls::ClientCertificate;
use oroshi_server::{Error, Exchange};

pub use compress::{Coding, Compression, EncoderBudget, Levels};
pub use edits::{EditError, Edits};
pub(crate) use fields::hops;
pub use held::{Inspect, InspectFuture, InspectedHead, Verdict};
pub(crate) use message::request_id;
pub use outcome::{Outcome, RequestId};
pub(crate) use request_head::{is_trusted, leads_out};
pub(crate) use rules::is_authority;
pub use rules::{Forwarding, HostPolicy, RuleError, Rules, Settings, Timeouts};
pub use trace::TraceParent;

pub use crate::failure::Failure;
use crate::upstream::{Balancer, Pool};

/// The destination of one request, with its rules and changes.
#[derive(Clone, Copy, Debug)]
pub struct Call<'c> {
    /// The route's rules.
    pub rules: &'c Rules,
    /// The target or targets.
    pub to: CallTargets<'c>,
    /// The [`hash`](crate::upstream::hash) of the input of [`Policy::ConsistentHash`](crate::upstream::Policy).
    pub key: u64,
    /// A path and query that replace the client's: `/`, or `/path?query`. The route's prefixes apply to them as well.
    pub target: Option<&'c str>,
    /// Changes to the request's fields, beside the route's.
    pub request: &'c Edits,
    /// Changes to the response's fields, beside the route's.
    pub response: &'c Edits,
    /// Inspects the response's head before it goes to the client.
    pub inspect: Option<&'c dyn Inspect>,
    /// The client's certificate, if the route has accepted one.
    pub client: Option<&'c ClientCertificate>,
    /// The memory for compressed responses.
    pub encoders: &'c Arc<EncoderBudget>,
}

/// The memory for compressed responses of calls that name none.
static ENCODERS: LazyLock<Arc<EncoderBudget>> = LazyLock::new(Arc::default);

/// One target or several.
#[derive(Clone, Copy, Debug)]
pub enum CallTargets<'c> {
    /// This target.
    One(&'c Rc<Pool>),
    /// One of these targets; another one if it cannot be reached.
    Any(&'c Balancer),
}

impl<'c> Call<'c> {
    /// Makes a call to these targets without further changes.
    pub fn new(rules: &'c Rules, to: CallTargets<'c>) -> Self {
        const NONE: &Edits = &Edits::none();
        Call {
            rules,
            to,
            key: 0,
            target: None,
            request: NONE,
            response: NONE,
            inspect: None,
            client: None,
            encoders: &ENCODERS,
        }
    }

    /// Returns the edits whose names are dropped from the request's trailers.
    fn drops(&self) -> (&'c Edits, &'c Edits) {
        (&self.rules.settings.request, self.request)
    }
}

/// Forwards the request of an exchange and passes the response back, or responds 502, 503 or 504.
///
/// `outcome` is up to date at every moment, also if this future is dropped, as the server does when the client leaves.
/// [`Outcome::failure`] is then `None`, and [`Outcome::is_ended`] false.
///
/// CONNECT and TRACE get 405, as in nginx: the gateway is no proxy that clients may choose, and TRACE would expose
/// headers that the gateway adds.
///
/// # Errors
///
/// The handler must pass errors on to its server. Either a response was begun and cannot be completed, so that the
/// connection must close; or the client is gone, or its body is invalid. [`Error::Misuse`] if [`Call::target`] is no
/// path.
pub async fn forward(exchange: &mut Exchange<'_>, call: &Call<'_>, outcome: &mut Outcome) -> Result<(), Error> {
    outcome.begin();
    if matches!(exchange.head.method, "CONNECT" | "TRACE") {
        return Box::pin(refuse_method(exchange, outcome)).await;
    }
    if call.target.is_some_and(|target| !is_path(target)) {
        return Err(Error::Misuse("a route gave a target that is not a path beginning with / without white space"));
    }
    match carry::carry(exchange, call, outcome).await {
        Ok(()) => {
            outcome.end();
            Ok(())
        }
        Err(stop) => Box::pin(fail(exchange, call, outcome, stop)).await,
    }
}

async fn refuse_method(exchange: &mut Exchange<'_>, outcome: &mut Outcome) -> Result<(), Error> {
    outcome.status = 405;
    let date = exchange.date();
    let fields: [(&str, &[u8]); 3] =
        [("Allow", b"GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"), ("Content-Type", b"text/plain"), ("Date", &date)];
    const TEXT: &[u8] = b"this gateway does not carry requests with this method\n";
    outcome.bytes = TEXT.len() as u64;
    exchange.reply.send(405, fields, TEXT).await?;
    outcome.end();
    Ok(())
}

/// Sends the failure's response to the client, if none has begun.
async fn fail(
    exchange: &mut Exchange<'_>,
    call: &Call<'_>,
    outcome: &mut Outcome,
    stop: answer::ExchangeError,
) -> Result<(), Error> {
    let error = match stop {
        answer::ExchangeError::Upstream(error) => error,
        answer::ExchangeError::Client(error) => {
            outcome.fail(carry::blame(&error), error.to_string());
            return Err(error);
        }
    };
    outcome.fail(error.failure, error.detail);
    let begun = exchange.reply.is_begun();
    // A client of gRPC reads a reset as what it means, and a 502 as a server that cannot be reached.
    if let Some(code) = error.reset
        && (begun || (exchange.head.version == Version::Http2 && message::is_grpc(exchange.head.headers)))
    {
        exchange.reply.reset(code);
        return Err(Error::Cut);
    }
    let Some(status) = error.failure.status().filter(|_| !begun) else { return Err(Error::Cut) };
    outcome.status = status;
    let mut text = error.failure.text().to_owned();
    if call.rules.settings.explain {
        let to = outcome.target.as_ref().map(|pool| format!(" {}", pool.target())).unwrap_or_default();
        text += &format!("\n{}{to} {}", error.failure, outcome.detail);
    }
    text.push('\n');
    let date = exchange.date();
    let fields: [(&str, &[u8]); 2] = [("Content-Type", b"text/plain"), ("Date", &date)];
    outcome.bytes = text.len() as u64;
    exchange.reply.send(status, fields, text.as_bytes()).await
}

/// Returns whether a target can replace the client's path and query.
pub(crate) fn is_path(target: &str) -> bool {
    target.starts_with('/') && encode::request_line(&mut Vec::new(), "GET", target, Version::Http11).is_ok()
}
