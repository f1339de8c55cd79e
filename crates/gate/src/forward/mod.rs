//! One request carried to a server behind the gateway, and its answer back.
//!
//! Everything happens within the handler's own future: no task, no channel, no allocation on kept connections. What is read from the
//! server behind goes to the client from the core's scratch buffer.
//!
//! Read `carry` (a request from the choice of a target to the end of its answer, and when it is sent again), `request_head`
//! and `response_head` (what is changed in them), `answer`, `upload` and `tunnel` (bytes), `held` (an answer that somebody looks at first), `link` (how long is waited), `rules` and
//! `edits` (what a route sets), `outcome`, `network`.

mod answer;
mod carry;
mod edits;
mod fields;
mod held;
mod link;
mod network;
mod outcome;
mod request_head;
mod response_head;
mod rules;
mod tunnel;
mod upload;

use std::rc::Rc;

use oroshi_http1::encode;
use oroshi_server::{Error, Exchange};

pub(crate) use carry::request_id;
pub use edits::{EditError, Edits};
pub(crate) use fields::hops;
pub use held::{Inspect, InspectFuture, Inspected, Verdict};
pub use network::{Network, NetworkError};
pub use outcome::{Outcome, RequestId};
pub(crate) use request_head::leads_out;
pub use rules::{Forwarding, HostPolicy, RuleError, Rules, Settings, Timeouts};

pub use crate::failure::Failure;
use crate::upstream::{Balancer, Pool};

/// Where one request goes, and how.
#[derive(Clone, Copy, Debug)]
pub struct Call<'c> {
    /// The route's rules.
    pub rules: &'c Rules,
    /// The target, or the targets.
    pub to: To<'c>,
    /// The [`hash`](crate::upstream::hash) of what [`Policy::ConsistentHash`](crate::upstream::Policy) goes by.
    pub key: u64,
    /// A path and query in place of the client's, for a route that makes it up: `/`, or `/path?query`. The route's prefixes are
    /// changed in it as they would be in the client's.
    pub target: Option<&'c str>,
    /// Changes to the request's fields, beside the route's.
    pub request: &'c Edits,
    /// Changes to the answer's fields, beside the route's.
    pub response: &'c Edits,
    /// Who looks at the answer's head before it goes to the client, if anybody does.
    pub inspect: Option<&'c dyn Inspect>,
}

/// One target or several.
#[derive(Clone, Copy, Debug)]
pub enum To<'c> {
    /// This one.
    One(&'c Rc<Pool>),
    /// One of these; another when it cannot be reached.
    Any(&'c Balancer),
}

impl<'c> Call<'c> {
    /// A request that goes to this target as the rules say.
    pub fn new(rules: &'c Rules, to: To<'c>) -> Self {
        const NONE: &Edits = &Edits::none();
        Call { rules, to, key: 0, target: None, request: NONE, response: NONE, inspect: None }
    }

    /// The changes whose names are left out of the request's trailers.
    fn drops(&self) -> (&'c Edits, &'c Edits) {
        (&self.rules.settings.request, self.request)
    }
}

/// Carries an exchange out: sends its request on, and gives the answer back, or says why there is none (502, 503, 504).
///
/// `outcome` is written to as things happen, so that it tells what is known even when this future is dropped, as the server does when
/// the client is gone: [`Outcome::failure`] is then `None`, and [`Outcome::is_ended`] false.
///
/// CONNECT and TRACE are answered 405, as nginx does: this is no proxy for clients to choose, and what TRACE would show is
/// what the gateway tells the server behind.
///
/// # Errors
///
/// For the handler to pass on to its server. The answer was begun and cannot be completed, so the connection must be cut off; or the
/// client is gone, or its body is not valid. [`Error::Misuse`] when [`Call::target`] is no path.
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

/// Tells the client, if there is anything left to tell.
async fn fail(
    exchange: &mut Exchange<'_>,
    call: &Call<'_>,
    outcome: &mut Outcome,
    stop: answer::Stop,
) -> Result<(), Error> {
    let error = match stop {
        answer::Stop::Upstream(error) => error,
        answer::Stop::Client(error) => {
            outcome.fail(carry::blame(&error), error.to_string());
            return Err(error);
        }
    };
    outcome.fail(error.failure, error.detail);
    let begun = exchange.reply.is_begun();
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

/// Whether it can be what a request asks for, in place of its own path and query.
pub(crate) fn is_path(target: &str) -> bool {
    target.starts_with('/')
        && encode::request_line(&mut Vec::new(), "GET", target, oroshi_http1::Version::Http11).is_ok()
}
