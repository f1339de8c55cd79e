//! Runs a request from the call to its response's head: attempts, safe retries, redirects.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use oroshi_core::{SpareBuffer, spares};
use tokio::io::AsyncRead;

use crate::body::Body;
use crate::connect::Reuse;
use crate::core::{Core, count};
use crate::deadline::Phase;
use crate::decode::{Coding, Decoder};
use crate::error::{Cause, Error, without_query};
use crate::exchange::{Exchange, Head};
use crate::incoming::IncomingBody;
use crate::redirect::{self, Redirect};
use crate::request::Request;
use crate::response::ResponseParts;
use crate::retry::{Retries, retry_after};

/// Limits on reading a redirect's body so that its connection can be reused. A longer or later body closes the
/// connection.
const REDIRECT_BYTES: usize = 64 * 1024;
const REDIRECT_PAUSE: Duration = Duration::from_millis(250);

/// Sends a request that was `called` at that time, with retries and redirects. Returns the response and the source of
/// its body.
pub(crate) async fn run(
    core: &Rc<Core>,
    mut request: Box<Request<dyn AsyncRead>>,
    called: u64,
) -> Result<(Box<ResponseParts>, IncomingBody), Error> {
    count(&core.counts.requests);
    let mut exchange = Exchange::new(core, request.deadlines.take(), request.total, called);
    exchange.stamp_sent(request.sent_stamp.take());
    let (mut redirects, mut retries, idempotent) = (0, 0, request.is_idempotent());
    let result = loop {
        let most = request.retries.unwrap_or(core.settings.retries.most);
        // In place, because a variable would keep its room during the waits below; and boxed, as are the futures of all
        // rare steps: a request under way is as large as its largest wait.
        let head = match if most == 0 {
            attempts(core, &mut exchange, &mut request).await
        } else {
            Box::pin(retried(core, &mut exchange, &mut request, most, &mut retries)).await
        } {
            Ok(head) => head,
            Err(error) => break Err(error),
        };
        keep_cookies(core, &request, &head);
        let most = request.redirects.unwrap_or(core.settings.redirects);
        let location = head.headers.get("Location").filter(|_| most > 0 && Redirect::is_status(head.status));
        let Some(location) = location else { break Ok(head) };
        if let Err(cause) = go_on(&mut request, head.status, location, redirects, most) {
            break Err(Error::new(Phase::Redirect, cause).after(exchange.timings()));
        }
        redirects += 1;
        count(&core.counts.redirects);
        if let Err(error) = Box::pin(drain(&mut exchange)).await {
            break Err(error);
        }
    };
    let answered = match result {
        Ok(head) => answer(core, request, head, redirects, exchange),
        Err(error) => {
            // The server may have processed the request that it redirected, such as a POST answered with "see other".
            let safe = error.retry_is_safe() && (redirects == 0 || idempotent);
            Err(error.about(&request.method, &request.endpoint).retry_is(safe).redirected(redirects))
        }
    };
    if answered.is_err() {
        count(&core.counts.failures);
    }
    answered
}

/// Sends a request, and then again while its result asks for it and `number`, which counts over redirects, is below
/// `most`: [`Retries`].
async fn retried(
    core: &Rc<Core>,
    exchange: &mut Box<Exchange>,
    request: &mut Request<dyn AsyncRead>,
    most: u32,
    number: &mut u32,
) -> Result<Head, Error> {
    let retries = core.settings.retries;
    let mut result = attempts(core, exchange, request).await;
    while *number < most {
        let asked = match &result {
            Ok(head) if Retries::is_passing(head.status) && request.is_idempotent() => {
                head.headers.get("Retry-After").and_then(retry_after)
            }
            Err(error) if error.retry_is_safe() && Retries::may_pass(error) => None,
            _ => return result,
        };
        *number += 1;
        let wait = retries.wait(*number, asked).filter(|wait| exchange.has_left(*wait));
        let Some(wait) = wait.filter(|_| !request.body.is_used()) else { return result };
        if let Ok(head) = &result {
            keep_cookies(core, request, head);
            drain(exchange).await?;
        }
        exchange.wait(wait).await?;
        count(&core.counts.retries);
        result = attempts(core, exchange, request).await;
    }
    result
}

/// Sends one request once, or twice if the connection broke and that is safe.
async fn attempts(
    core: &Rc<Core>,
    exchange: &mut Box<Exchange>,
    request: &mut Request<dyn AsyncRead>,
) -> Result<Head, Error> {
    let mut attempt = 1;
    loop {
        let error = match once(core, exchange, request, attempt > 1).await {
            Ok(head) => return Ok(head),
            Err(error) => error,
        };
        let (progress, idempotent) = (exchange.progress(), request.is_idempotent());
        if let Some(body) = exchange.take_untouched_body() {
            request.body = body;
        }
        if !progress.retries(idempotent, !request.body.is_used(), attempt) {
            return Err(error.about(&request.method, &request.endpoint).retry_is(progress.is_safe(idempotent)));
        }
        attempt += 1;
        count(&core.counts.retries);
    }
}

async fn once(
    core: &Rc<Core>,
    exchange: &mut Exchange,
    request: &mut Request<dyn AsyncRead>,
    fresh: bool,
) -> Result<Head, Error> {
    let mut head = spares::take();
    request.encode(&core.settings, &mut head)?;
    exchange.begin(head, request.body.hand_out(), request.expect());
    let reuse = match (fresh, request.is_idempotent() && !matches!(request.body, Body::Reader(_))) {
        (true, _) => Reuse::None,
        (false, true) => Reuse::Any,
        (false, false) => Reuse::Checked,
    };
    exchange.acquire(&request.endpoint, request.partition, reuse).await?;
    exchange.pause();
    poll_fn(|context| exchange.poll_head(context)).await
}

/// Stores a response's cookies. Not within [`once`], whose future would grow.
fn keep_cookies(core: &Core, request: &Request<dyn AsyncRead>, head: &Head) {
    if let Some(jar) = &core.settings.cookies {
        jar.store(&request.endpoint, head.headers.get_all("Set-Cookie"));
    }
}

/// Turns the request into the next one of a redirect.
fn go_on(
    request: &mut Request<dyn AsyncRead>,
    status: u16,
    location: &[u8],
    redirects: u32,
    most: u32,
) -> Result<(), Cause> {
    let hop = Redirect::follow(&request.endpoint, &request.method, status, location)?;
    if redirects >= most {
        return Err(Cause::TooManyRedirects { limit: most, next: without_query(&hop.endpoint) });
    }
    redirect::prune(&mut request.headers, &hop);
    request.strayed |= !hop.same_origin;
    if hop.becomes_get {
        request.method = "GET".into();
        request.body = Body::Empty;
        request.idempotent = None;
    } else if request.body.is_used() {
        return Err(Cause::BodyUsed);
    }
    request.endpoint = hop.endpoint;
    Ok(())
}

/// Reads a redirect's body, if it is small.
async fn drain(exchange: &mut Exchange) -> Result<(), Error> {
    let mut body = SpareBuffer::take();
    let read = poll_fn(|context| {
        loop {
            match exchange.poll_body(context, &mut body) {
                Poll::Ready(Ok(true)) if body.len() <= REDIRECT_BYTES => {}
                other => return other,
            }
        }
    });
    let read = tokio::time::timeout(REDIRECT_PAUSE, read).await;
    match read {
        // The redirect is known, so a broken body changes nothing, unless the total deadline has passed.
        Ok(Err(error)) if error.phase() == Phase::Total => Err(error),
        _ => Ok(()),
    }
}

fn answer(
    core: &Rc<Core>,
    request: Box<Request<dyn AsyncRead>>,
    head: Head,
    redirects: u32,
    exchange: Box<Exchange>,
) -> Result<(Box<ResponseParts>, IncomingBody), Error> {
    let coding = if request.decodes(&core.settings) && head.length != Some(0) {
        Coding::of(head.headers.get_all("Content-Encoding"))
    } else {
        None
    };
    let decoder = match coding.map(Decoder::new).transpose() {
        Ok(decoder) => decoder,
        Err(cause) => return Err(Error::new(Phase::BetweenBytes, cause).about(&request.method, &request.endpoint)),
    };
    let answer = ResponseParts { method: request.method, url: request.endpoint, head, redirects, coding };
    Ok((Box::new(answer), IncomingBody::new(exchange, decoder)))
}
