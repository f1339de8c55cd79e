//! A user's request: from the words of a script to the response, with redirects, cookies and the user's cache.

mod spec;

use std::borrow::Cow;
use std::fmt::Write;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use oroshi_bench::record::scenario::SampleRecord;
use oroshi_bench::{Exchange, Failure};
use oroshi_client::{Cause, Error, Headers, Phase, Redirect, Timings, Whole};
use oroshi_net::{Endpoint, monotonic_ns};
use oroshi_words::units;

use crate::cache::{Answered, Asked, Found, Kept};
use crate::response::Response;
use crate::sample::{self, Exchanged};
use crate::thread::{Stage, Thread};
use crate::user::User;

pub(crate) use spec::Spec;

/// The largest body that is kept whole for samples, bytes.
const SMALL_BODY: usize = 2048;
/// Bytes of a larger one that are kept.
const SAMPLE_BYTES: usize = 256;

/// The last exchange of a user, for samples.
#[derive(Debug)]
pub(crate) struct Last {
    attempt: Rc<Attempt>,
    response: Option<LastAnswer>,
    error: Option<&'static str>,
}

#[derive(Debug)]
struct LastAnswer {
    status: u16,
    headers: Rc<Headers>,
    /// The body, or the first bytes of a long one.
    body: Bytes,
}

impl Last {
    /// Makes the texts of a sample of the user's last exchange.
    pub(crate) fn sample(thread: &Thread, user: &User, place: String) -> SampleRecord {
        let last = user.last.borrow();
        let mut sample = last.as_ref().map(Last::texts).unwrap_or_default();
        (sample.at_s, sample.user, sample.place) = (thread.elapsed_s(), user.id, place);
        sample
    }

    fn texts(&self) -> SampleRecord {
        let response = self.response.as_ref().map(|response| sample::Answer {
            status: response.status,
            reason: b"",
            headers: &response.headers,
            body: &response.body,
        });
        let Attempt { method, url, headers, .. } = &*self.attempt;
        let exchanged = Exchanged { method, url, headers, response };
        let mut sample = exchanged.sample();
        if let Some(error) = self.error {
            sample.head = format!("no response: {error}");
        }
        sample
    }
}

/// One request of a chain of redirects.
#[derive(Debug)]
pub(crate) struct Attempt {
    method: Cow<'static, str>,
    pub(crate) url: Endpoint,
    headers: Headers,
    body: Option<Bytes>,
}

/// A response to one request of a chain.
struct Answer {
    status: u16,
    headers: Rc<Headers>,
    body: Bytes,
    took: Duration,
    /// When its last byte was read.
    done: u64,
    /// The user's cache had it, and the network was not asked.
    cached: bool,
}

impl Answer {
    /// The response that the user's cache has, at `now`.
    fn kept(kept: &Kept, now: u64) -> Self {
        let (headers, body) = (Rc::new(kept.headers().clone()), kept.body().clone());
        Answer { status: kept.status(), headers, body, took: Duration::ZERO, done: now, cached: true }
    }
}

/// Sends a request and follows its redirects. Counts it under its step, and every exchange of the chain in the load.
pub(crate) async fn perform(thread: &Rc<Thread>, user: &Rc<User>, mut spec: Spec) -> Response {
    let due = user.due.take().unwrap_or_else(monotonic_ns);
    let step = thread.step(user, &spec);
    let first = first(thread, user, &mut spec);
    let chain = Chain {
        thread,
        user,
        spec: &spec,
        step,
        due,
        first_sent: None,
        stamp: Arc::default(),
        redirects: 0,
        failure: None,
        sent: false,
        is_over: false,
    };
    user.under_way.set(user.under_way.get() + 1);
    let response = chain.run(first).await;
    user.under_way.set(user.under_way.get() - 1);
    if thread.stage.get() == Stage::Running && !spec.expect.is_empty() && !spec.quiet {
        let name = format!("{} status", thread.tally.borrow().steps.name(step));
        thread.check(user, &name, spec.expect.contains(&response.status), || Last::sample(thread, user, String::new()));
    }
    response
}

/// A request with its redirects. Dropped before its end, the end of the run has cut it off.
struct Chain<'a> {
    thread: &'a Rc<Thread>,
    user: &'a Rc<User>,
    spec: &'a Spec,
    step: u32,
    /// When the user wanted it.
    due: u64,
    /// When its first byte went to the kernel.
    first_sent: Option<u64>,
    /// The same of the request under way; 0: not yet.
    stamp: Arc<AtomicU64>,
    redirects: u32,
    failure: Option<Failure>,
    /// A request of the chain went to the network.
    sent: bool,
    is_over: bool,
}

impl Drop for Chain<'_> {
    fn drop(&mut self) {
        if self.is_over || !self.thread.measures(self.due) {
            return;
        }
        let now = monotonic_ns();
        let mut tally = self.thread.tally.borrow_mut();
        let step = tally.steps.at(self.step);
        step.cut_off += 1;
        step.response.record_censored(now.saturating_sub(self.due));
        if let Some(sent) = self.first_sent.or_else(|| sent_by(&self.stamp)) {
            step.service.record_censored(now.saturating_sub(sent));
        }
    }
}

impl Chain<'_> {
    async fn run(mut self, first: Result<Attempt, (&'static str, Failure)>) -> Response {
        let (thread, spec) = (self.thread, self.spec);
        let most = spec.redirects.or(thread.run.settings.redirects).unwrap_or(10);
        let mut error = None;
        let mut answer = None;
        let mut last = None;
        let mut next = first;
        loop {
            let attempt = match next {
                Ok(attempt) => Rc::new(attempt),
                Err((name, failure)) => {
                    (self.failure, error) = (Some(failure), Some(name));
                    self.unfit(failure);
                    break;
                }
            };
            last = Some(Rc::clone(&attempt));
            let got = match self.exchange(&attempt).await {
                Ok(got) => got,
                Err((name, failure)) => {
                    (self.failure, error) = (Some(failure), Some(name));
                    self.note(&attempt, None, Some(name));
                    break;
                }
            };
            self.note(&attempt, Some(&got), None);
            // After the end nothing more is sent.
            let goes_on = thread.meter.is_none() || thread.stage.get() == Stage::Running;
            let is_redirect = goes_on && most > 0 && Redirect::is_status(got.status);
            let location = if is_redirect { got.headers.get("Location") } else { None };
            if !goes_on && self.is_followed(&got, most) {
                // The end of the run cuts the chain off.
                return self.response(last, Some(got), None);
            }
            let Some(location) = location else {
                answer = Some(got);
                break;
            };
            let hop = match self.redirects < most {
                true => Redirect::follow(&attempt.url, &attempt.method, got.status, location).map_err(|_| "location"),
                false => Err("too-many-redirects"),
            };
            match hop {
                Ok(hop) => {
                    self.redirects += 1;
                    next = Ok(Self::next(&attempt, hop));
                }
                Err(name) => {
                    (self.failure, error) = (Some(Failure::Check), Some(name));
                    self.unfit(Failure::Check);
                    answer = Some(got);
                    break;
                }
            }
        }
        self.is_over = true;
        self.finish(last, answer, error)
    }

    /// Whether an answer leads to another request.
    fn is_followed(&self, answer: &Answer, most: u32) -> bool {
        self.redirects < most && Redirect::is_status(answer.status) && answer.headers.contains("Location")
    }

    /// Counts an error of the load that is not one exchange's.
    fn unfit(&self, failure: Failure) {
        if let Some(meter) = &self.thread.meter {
            meter.unfit(failure, self.due);
        }
    }

    /// The request of a redirect. Fields that were set by hand stay, but secrets for another server.
    fn next(before: &Attempt, hop: Redirect) -> Attempt {
        let mut headers = before.headers.clone();
        let dropped: Vec<String> =
            headers.iter().map(|(name, _)| name.to_owned()).filter(|name| !hop.keeps(name)).collect();
        for name in &dropped {
            headers.remove(name);
        }
        if hop.becomes_get {
            Attempt { method: "GET".into(), url: hop.endpoint, headers, body: None }
        } else {
            Attempt { method: before.method.clone(), url: hop.endpoint, headers, body: before.body.clone() }
        }
    }

    /// Makes one request, by the user's cache if it can, and counts it in the load.
    async fn exchange(&mut self, attempt: &Attempt) -> Result<Answer, (&'static str, Failure)> {
        let (thread, user) = (self.thread, self.user);
        let due = if self.redirects == 0 { self.due } else { monotonic_ns() };
        let caches = self.spec.cache.or(thread.run.settings.cache).unwrap_or(self.spec.quiet) && thread.meter.is_some();
        // A script that sets the field itself knows better than the jar.
        let cookies = match !attempt.headers.is_empty() && attempt.headers.contains("Cookie") {
            true => None,
            false => user.jar.borrow_mut().header(&attempt.url).map(str::to_owned),
        };
        let with_cookies = cookies.map(|cookies| {
            let mut headers = attempt.headers.clone();
            let _ = headers.set("Cookie", cookies); // the jar keeps only what can be sent
            headers
        });
        let headers = with_cookies.as_ref().unwrap_or(&attempt.headers);
        let asked = Asked { method: &attempt.method, url: &attempt.url, headers };
        let found = if caches { user.cache.borrow_mut().look_up(&asked, due) } else { Found::Nothing };
        let kept = match found {
            Found::Nothing => None,
            Found::Stale(kept) => Some(kept),
            Found::Fresh(kept) => return Ok(Answer::kept(&kept, due)),
        };
        let (got, sent) = self.send(attempt, headers, kept.as_ref(), due).await?;
        if !caches {
            return Ok(got);
        }
        let answered = Answered { status: got.status, headers: &got.headers, sent, done: got.done };
        let valid = match kept.filter(|_| got.status == 304) {
            None => {
                let (mut cache, mut bodies) = (user.cache.borrow_mut(), thread.bodies.borrow_mut());
                cache.received(&asked, &answered, &got.body, &mut bodies);
                return Ok(got);
            }
            Some(kept) => {
                let (mut cache, mut bodies) = (user.cache.borrow_mut(), thread.bodies.borrow_mut());
                cache.validated(&asked, &kept, &answered, &mut bodies)
            }
        };
        match valid {
            Some(kept) => {
                let Answer { took, done, .. } = got;
                Ok(Answer { took, done, cached: false, ..Answer::kept(&kept, done) })
            }
            // The answer is about another response than the stored one.
            None => self.send(attempt, headers, None, monotonic_ns()).await.map(|(got, _)| got),
        }
    }

    /// Sends one request, and counts it in the load. Returns the response, and when it was sent.
    async fn send(
        &mut self,
        attempt: &Attempt,
        headers: &Headers,
        kept: Option<&Kept>,
        due: u64,
    ) -> Result<(Answer, u64), (&'static str, Failure)> {
        let (thread, user) = (self.thread, self.user);
        let client = thread.client.get().ok_or(("request", Failure::Check))?;
        let mut request = client
            .request(attempt.method.clone(), &attempt.url)
            .redirects(0)
            .timeout(self.spec.timeout.unwrap_or_else(|| thread.run.settings.request_timeout()))
            .partition(user.id)
            .stamp_sent(Arc::clone(&self.stamp));
        for (name, value) in headers.iter() {
            request = request.header(name, value);
        }
        for (name, value) in kept.iter().flat_map(|kept| kept.conditions()) {
            request = request.header(name, value);
        }
        if let Some(body) = &attempt.body {
            request = request.body(body.clone());
        }
        self.sent = true;
        self.stamp.store(0, Ordering::Relaxed);
        let own = attempt.url.is_same_origin(&thread.base);
        let flight = InFlight::begin(thread, due, own, Arc::clone(&self.stamp));
        let result = async { request.send().await?.whole().await }.await;
        let Whole { status, headers, body, timings } = match result {
            Ok(whole) => whole,
            Err(error) => {
                let (name, failure) = told(&error);
                let sent = sent_at(&error.timings());
                self.first_sent = self.first_sent.or(sent);
                flight.failed(failure, sent, monotonic_ns());
                return Err((name, failure));
            }
        };
        let (headers, body) = (Rc::new(headers), Bytes::from(body));
        let done = timings.called + nanos(timings.total);
        let sent = sent_at(&timings).unwrap_or(due);
        self.first_sent.get_or_insert(sent);
        let unexpected = if self.spec.expect.is_empty() {
            status >= 400
        } else {
            // What the last response must be is known only then.
            !self.spec.expect.contains(&status) && !Redirect::is_status(status) && status != 304
        };
        flight.completed(&Exchange {
            due,
            sent,
            head: done - nanos(timings.body),
            done,
            connect: timings.connect.map(nanos),
            tls: timings.tls.map(nanos),
            status,
            body_bytes: body.len() as u64,
            failure: unexpected.then_some(Failure::Status),
        });
        if let Some(meter) = &thread.meter {
            meter.server(|| headers.get_str("Server").map(str::to_owned));
        }
        if headers.contains("Set-Cookie") {
            user.jar.borrow_mut().store(&attempt.url, headers.get_all("Set-Cookie"));
        }
        Ok((Answer { status, headers, body, took: timings.total, done, cached: false }, sent))
    }

    /// Keeps an exchange for samples, and tells it.
    fn note(&self, attempt: &Rc<Attempt>, answer: Option<&Answer>, error: Option<&'static str>) {
        let (thread, user) = (self.thread, self.user);
        user.last.replace(Some(Last {
            attempt: Rc::clone(attempt),
            response: answer.map(|answer| LastAnswer {
                status: answer.status,
                headers: Rc::clone(&answer.headers),
                // Users may be many: none holds a long body.
                body: match answer.body.len() {
                    0..=SMALL_BODY => answer.body.clone(),
                    _ => Bytes::copy_from_slice(&answer.body[..SAMPLE_BYTES]),
                },
            }),
            error,
        }));
        if thread.verbose {
            let what = match (answer, error) {
                (Some(answer), _) if answer.cached => "from the cache".to_owned(),
                (Some(answer), _) => {
                    let took = units::time(answer.took.as_nanos() as f64);
                    format!("{} in {took}, {}", answer.status, units::bytes(answer.body.len() as f64))
                }
                (None, error) => format!("failed: {}", error.unwrap_or_default()),
            };
            (thread.tell)(&format!("{user} {} {}: {what}", attempt.method, attempt.url));
        }
    }

    /// Counts the step, and makes the script's response.
    fn finish(self, attempt: Option<Rc<Attempt>>, answer: Option<Answer>, error: Option<&'static str>) -> Response {
        let (thread, spec) = (self.thread, self.spec);
        let done = answer.as_ref().map_or_else(monotonic_ns, |answer| answer.done);
        let status = answer.as_ref().map_or(0, |answer| answer.status);
        let cached = !self.sent && answer.as_ref().is_some_and(|answer| answer.cached);
        let failure = self.failure.or_else(|| {
            let expected = if spec.expect.is_empty() { status < 400 } else { spec.expect.contains(&status) };
            (!expected).then_some(Failure::Status)
        });
        thread.run.progress.requests.fetch_add(1, Ordering::Relaxed);
        if failure.is_some() {
            thread.run.progress.errors.fetch_add(1, Ordering::Relaxed);
        }
        if thread.measures(self.due) {
            let mut tally = thread.tally.borrow_mut();
            let to = tally.steps.at(self.step);
            to.count += 1;
            if let Some(failure) = failure {
                to.errors += 1;
                to.failures.add(failure);
            }
            if let Some(answer) = &answer {
                *to.statuses.entry(status).or_default() += 1;
                to.body_bytes += answer.body.len() as u64;
            }
            if cached {
                to.cached += 1;
            } else if answer.is_some() {
                to.response.record(done.saturating_sub(self.due));
                to.service.record(done.saturating_sub(self.first_sent.unwrap_or(done)));
            } else if matches!(failure, Some(Failure::Timeout | Failure::ConnectTimeout)) {
                to.response.record_censored(done.saturating_sub(self.due));
                if let Some(sent) = self.first_sent {
                    to.service.record_censored(done.saturating_sub(sent));
                }
            }
        }
        self.response(attempt, answer, error)
    }

    /// Makes the script's response.
    fn response(self, attempt: Option<Rc<Attempt>>, answer: Option<Answer>, error: Option<&'static str>) -> Response {
        let done = answer.as_ref().map_or_else(monotonic_ns, |answer| answer.done);
        let status = answer.as_ref().map_or(0, |answer| answer.status);
        let cached = !self.sent && answer.as_ref().is_some_and(|answer| answer.cached);
        let took = Duration::from_nanos(done.saturating_sub(self.due));
        let (headers, body) = answer.map_or_else(Default::default, |answer| (Some(answer.headers), answer.body));
        let held = &self.thread.held;
        Response::new(status, error, headers, body, attempt, took, self.redirects, cached, held)
    }
}

/// Makes the first request of a chain.
///
/// # Errors
/// A field that cannot be sent.
fn first(thread: &Thread, user: &User, spec: &mut Spec) -> Result<Attempt, (&'static str, Failure)> {
    let mut headers = Headers::new();
    let own = user.headers.borrow();
    for (name, value) in thread.run.settings.headers.iter().chain(own.iter()).chain(&spec.headers) {
        headers.set(name, value).map_err(|_| ("request", Failure::Check))?;
    }
    if let Some(kind) = spec.content_type.as_ref().filter(|_| !headers.contains("Content-Type")) {
        headers.set("Content-Type", kind).map_err(|_| ("request", Failure::Check))?;
    }
    let (method, body) = (spec.method.clone(), spec.body.take());
    let url = spec.url.take().ok_or(("request", Failure::Check))?;
    Ok(Attempt { method, url, headers, body })
}

/// A request on its way: if the run cuts it off, the load is told.
struct InFlight<'a> {
    thread: &'a Thread,
    due: u64,
    /// It goes to the server that is measured.
    own: bool,
    /// When its first byte went to the kernel; 0: not yet.
    sent: Arc<AtomicU64>,
    is_over: bool,
}

impl<'a> InFlight<'a> {
    fn begin(thread: &'a Thread, due: u64, own: bool, sent: Arc<AtomicU64>) -> Self {
        if let Some(meter) = &thread.meter {
            meter.began(due);
        }
        Self { thread, due, own, sent, is_over: false }
    }

    fn completed(mut self, exchange: &Exchange) {
        self.is_over = true;
        if let Some(meter) = &self.thread.meter {
            meter.completed(exchange);
            self.thread.count_bytes(meter);
        }
    }

    fn failed(mut self, failure: Failure, sent: Option<u64>, now: u64) {
        self.is_over = true;
        if let Some(meter) = &self.thread.meter {
            meter.failed(failure, self.own, (self.due, sent), now);
            self.thread.count_bytes(meter);
        }
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        if let Some(meter) = self.thread.meter.as_ref().filter(|_| !self.is_over) {
            meter.cut_off(self.due, sent_by(&self.sent));
        }
    }
}

impl Thread {
    /// Returns the step of a request, and counts the way to it.
    fn step(&self, user: &User, spec: &Spec) -> u32 {
        let mut tally = self.tally.borrow_mut();
        let step = match &spec.name {
            Some(name) => tally.steps.id(name),
            None => {
                let target = spec.url.as_ref().map_or("", |url| url.target.as_str());
                let path = target.split('?').next().unwrap_or_default();
                let mut name = self.text.take();
                let _ = write!(name, "{} {path}", spec.method); // a String takes everything
                let step = tally.steps.id(&name);
                name.clear();
                self.text.set(name);
                step
            }
        };
        if !spec.quiet {
            let before = user.step.replace(step);
            if self.meter.is_some() {
                tally.flow(user.scenario.get(), before, step);
            }
        }
        step
    }

    /// Whether a request that was due then belongs to the measured part.
    pub(crate) fn measures(&self, due: u64) -> bool {
        self.meter.as_ref().is_some_and(|meter| meter.measures(due))
    }

    /// Tells the load what the client has read and written since the last look, and its open connections.
    fn count_bytes(&self, meter: &oroshi_bench::Meter) {
        let Some(client) = self.client.get() else { return };
        let counts = client.counts();
        let (read, written) = self.seen.replace((counts.bytes_read, counts.bytes_written));
        meter.bytes(counts.bytes_read - read, counts.bytes_written - written);
        meter.connections(counts.open);
    }
}

/// When the first byte of a request under way went to the kernel.
fn sent_by(stamp: &AtomicU64) -> Option<u64> {
    Some(stamp.load(Ordering::Relaxed)).filter(|&at| at != 0)
}

/// When the first byte of a request went to the kernel.
fn sent_at(timings: &Timings) -> Option<u64> {
    timings.sent.map(|after| timings.called + nanos(after))
}

fn nanos(duration: Duration) -> u64 {
    duration.as_nanos() as u64
}

/// Returns the name of a failure for scripts, and for counts.
fn told(error: &Error) -> (&'static str, Failure) {
    let failure = match (error.cause(), error.phase()) {
        (Cause::Timeout { .. }, Phase::Dns | Phase::Connect | Phase::Tls) => Failure::ConnectTimeout,
        (Cause::Timeout { .. } | Cause::QueueFull { .. }, _) => Failure::Timeout,
        (Cause::Resolve { .. }, _) => Failure::Dns,
        (Cause::Connect(error), _) => Failure::from(error),
        (Cause::Tls(_) | Cause::TlsSetup(_), _) => Failure::Tls,
        (Cause::Io(_), Phase::Write) => Failure::Write,
        (Cause::Io(_), _) => Failure::ReadReset,
        (Cause::Response(oroshi_http1::DecodeError::UnexpectedEof), _) => Failure::ReadEof,
        (Cause::Response(_) | Cause::Coding { .. }, _) => Failure::Parse,
        _ => Failure::Check,
    };
    // A request has one timeout, which is the total one.
    let name = if error.is_timeout() { "timeout" } else { error.name() };
    (name, failure)
}
