//! A user's request: from the words of a script to the response, with redirects, cookies and the user's cache.

mod spec;

use std::borrow::Cow;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use oroshi_bench::{Exchange, Failure};
use oroshi_client::{Cause, Error, Headers, Phase, Redirect, Timings};
use oroshi_net::{Endpoint, monotonic_ns};

use crate::cache::{Decision, Lookup};
use crate::response::Response;
use crate::sample::Sample;
use crate::thread::{Stage, Thread};
use crate::user::User;

pub(crate) use spec::Spec;

/// Bytes of a body that are kept for samples.
const SAMPLE_BYTES: usize = 256;

/// The last exchange of a user, for samples.
#[derive(Debug)]
pub(crate) struct Last {
    pub(crate) method: Cow<'static, str>,
    pub(crate) url: Endpoint,
    pub(crate) fields: Vec<(String, String)>,
    pub(crate) status: u16,
    pub(crate) headers: Option<Rc<Headers>>,
    /// The first bytes of the body.
    pub(crate) body: Box<[u8]>,
    /// Why there is no response.
    pub(crate) error: Option<&'static str>,
}

/// One request of a chain of redirects.
struct Attempt {
    method: Cow<'static, str>,
    url: Endpoint,
    fields: Vec<(String, String)>,
    body: Option<Bytes>,
}

/// A response to one request of a chain.
struct Answer {
    status: u16,
    headers: Rc<Headers>,
    body: Bytes,
    timings: Timings,
    /// When its last byte was read.
    done: u64,
    /// The user's cache had it, and the network was not asked.
    cached: bool,
}

/// Sends a request and follows its redirects. Counts it under its step, and every exchange of the chain in the load.
pub(crate) async fn perform(thread: &Rc<Thread>, user: &Rc<User>, spec: Spec) -> Response {
    let due = user.due.take().unwrap_or_else(monotonic_ns);
    let step = thread.step(user, &spec);
    let chain = Chain { thread, user, spec: &spec, due, first_sent: None, redirects: 0, failure: None };
    user.under_way.set(user.under_way.get() + 1);
    let response = chain.run(step).await;
    user.under_way.set(user.under_way.get() - 1);
    if thread.stage.get() == Stage::Running && !spec.expect.is_empty() && !spec.quiet {
        let name = format!("{} status", thread.tally.borrow().steps.name(step));
        thread.check(user, &name, spec.expect.contains(&response.status), || Sample::of(thread, user, String::new()));
    }
    response
}

/// A request with its redirects.
struct Chain<'a> {
    thread: &'a Rc<Thread>,
    user: &'a Rc<User>,
    spec: &'a Spec,
    /// When the user wanted it.
    due: u64,
    /// When its first byte went to the kernel.
    first_sent: Option<u64>,
    redirects: u32,
    failure: Option<Failure>,
}

impl Chain<'_> {
    async fn run(mut self, step: u32) -> Response {
        let (thread, spec) = (self.thread, self.spec);
        let most = spec.redirects.or(thread.run.settings.redirects).unwrap_or(10);
        let mut attempt = self.first();
        let mut error = None;
        let mut answer = None;
        // Guards the counts if the run cuts the request off.
        let mut cut = CutOff { thread, step, due: self.due, is_over: false };
        loop {
            let (got, sent) = match self.exchange(&attempt).await {
                Ok(got) => got,
                Err((name, failure)) => {
                    self.failure = Some(failure);
                    self.note(&attempt, None, Some(name));
                    error = Some(name);
                    break;
                }
            };
            self.note(&attempt, Some(&got), None);
            let location = got.headers.get("Location").filter(|_| Redirect::is_status(got.status));
            let Some(location) = location.filter(|_| self.redirects < most) else {
                if location.is_some() && most > 0 {
                    self.failure = Some(Failure::Check);
                    error = Some("too-many-redirects");
                }
                answer = Some(got);
                break;
            };
            match Redirect::follow(&attempt.url, &attempt.method, got.status, location) {
                Ok(hop) => {
                    self.redirects += 1;
                    attempt = Self::next(attempt, hop);
                }
                Err(_) => {
                    self.failure = Some(Failure::Check);
                    error = Some("location");
                    answer = Some(got);
                    break;
                }
            }
            if thread.verbose {
                (thread.tell)(&format!("{}   -> {} (sent {sent})", self.user, attempt.url));
            }
        }
        cut.is_over = true;
        self.finish(step, attempt, answer, error)
    }

    /// The first request of the chain.
    fn first(&self) -> Attempt {
        let (thread, spec) = (self.thread, self.spec);
        let mut fields = thread.run.settings.headers.clone();
        let own = self.user.headers.borrow();
        for (name, value) in own.iter().chain(&spec.headers) {
            fields.retain(|(known, _)| !known.eq_ignore_ascii_case(name));
            fields.push((name.clone(), value.clone()));
        }
        if let Some(kind) = &spec.content_type
            && !fields.iter().any(|(name, _)| name.eq_ignore_ascii_case("content-type"))
        {
            fields.push(("Content-Type".to_owned(), kind.clone()));
        }
        Attempt { method: spec.method.clone(), url: spec.url.clone(), fields, body: spec.body.clone() }
    }

    /// The request of a redirect. Fields that were set by hand stay, but secrets for another server.
    fn next(mut before: Attempt, hop: Redirect) -> Attempt {
        before.fields.retain(|(name, _)| hop.keeps(name));
        if hop.becomes_get {
            Attempt { method: "GET".into(), url: hop.endpoint, fields: before.fields, body: None }
        } else {
            Attempt { url: hop.endpoint, ..before }
        }
    }

    /// Sends one request, and counts it in the load. Returns the response, and when it was sent.
    async fn exchange(&mut self, attempt: &Attempt) -> Result<(Answer, u64), (&'static str, Failure)> {
        let (thread, user) = (self.thread, self.user);
        let due = if self.redirects == 0 { self.due } else { monotonic_ns() };
        let lookup = self.look_up(attempt, due);
        if let Some(Lookup { decision: Decision::Fresh(stored), .. }) = &lookup {
            let answer = Answer {
                status: stored.status,
                headers: Rc::clone(&stored.headers),
                body: stored.body.clone(),
                timings: Timings::default(),
                done: due,
                cached: true,
            };
            return Ok((answer, due));
        }
        let client = thread.client.get().expect("set before the first journey");
        let mut request = client
            .request(attempt.method.clone(), &attempt.url)
            .redirects(0)
            .timeout(self.spec.timeout.unwrap_or_else(|| thread.run.settings.request_timeout()))
            .partition(user.id);
        for (name, value) in &attempt.fields {
            request = request.header(name, value);
        }
        if let Some(cookies) = user.jar.borrow_mut().header(&attempt.url)
            && !attempt.fields.iter().any(|(name, _)| name.eq_ignore_ascii_case("cookie"))
        {
            request = request.header("Cookie", cookies);
        }
        if let Some(lookup) = &lookup {
            for (name, value) in lookup.conditions() {
                request = request.header(name, value);
            }
        }
        if let Some(body) = &attempt.body {
            request = request.body(body.clone());
        }
        let flight = InFlight::begin(thread, due);
        let result = async {
            let response = request.send().await?;
            let (status, headers) = (response.status(), Rc::new(response.headers().clone()));
            let head = monotonic_ns();
            // The timings are complete once the body is.
            let (body, timings) = response.bytes_and_timings().await?;
            Ok::<_, Error>((status, headers, Bytes::from(body), timings, head))
        }
        .await;
        let now = monotonic_ns();
        let (status, headers, body, timings, head) = match result {
            Ok(got) => got,
            Err(error) => {
                let (name, failure) = told(&error);
                let timings = error.timings();
                let sent = matches!(error.phase(), Phase::Write | Phase::FirstByte | Phase::BetweenBytes | Phase::Total)
                    .then(|| now.saturating_sub((timings.write + timings.first_byte + timings.body).as_nanos() as u64));
                self.first_sent = self.first_sent.or(sent);
                flight.failed(failure, sent, now);
                return Err((name, failure));
            }
        };
        let sent = now.saturating_sub((timings.write + timings.first_byte + timings.body).as_nanos() as u64);
        self.first_sent.get_or_insert(sent);
        let unexpected = if self.spec.expect.is_empty() {
            status >= 400
        } else {
            // What the last response must be is known only then.
            !self.spec.expect.contains(&status) && !Redirect::is_status(status)
        };
        let failure = unexpected.then_some(Failure::Status);
        flight.completed(&Exchange {
            due,
            sent,
            head,
            done: now,
            connect: timings.connect.map(nanos),
            tls: timings.tls.map(nanos),
            status,
            body_bytes: body.len() as u64,
            failure,
        });
        if let Some(meter) = &thread.meter {
            meter.server(|| headers.get_str("Server").map(str::to_owned));
        }
        if headers.contains("Set-Cookie") {
            user.jar.borrow_mut().store(&attempt.url, headers.get_all("Set-Cookie"));
        }
        let mut answer = Answer { status, headers, body, timings, done: now, cached: false };
        if let Some(lookup) = lookup {
            let mut cache = user.cache.borrow_mut();
            if let Some(stored) = cache.update(lookup, status, &answer.headers, &answer.body, now) {
                (answer.status, answer.headers, answer.body) =
                    (stored.status, Rc::clone(&stored.headers), stored.body.clone());
            }
        }
        Ok((answer, sent))
    }

    /// Looks a request up in the user's cache. `None`: nothing about it is cached, now or later.
    fn look_up(&self, attempt: &Attempt, now: u64) -> Option<Lookup> {
        let caches = self.spec.cache.unwrap_or(true) && attempt.method == "GET" && self.thread.meter.is_some();
        caches.then(|| self.user.cache.borrow_mut().look_up(&attempt.url, &attempt.fields, now))
    }

    /// Keeps an exchange for samples, and tells it.
    fn note(&self, attempt: &Attempt, answer: Option<&Answer>, error: Option<&'static str>) {
        let (thread, user) = (self.thread, self.user);
        let start = |body: &Bytes| body[..body.len().min(SAMPLE_BYTES)].into();
        user.last.replace(Some(Rc::new(Last {
            method: attempt.method.clone(),
            url: attempt.url.clone(),
            fields: attempt.fields.clone(),
            status: answer.map_or(0, |answer| answer.status),
            headers: answer.map(|answer| Rc::clone(&answer.headers)),
            body: answer.map(|answer| start(&answer.body)).unwrap_or_default(),
            error,
        })));
        if thread.verbose {
            let what = match (answer, error) {
                (Some(answer), _) if answer.cached => "from the cache".to_owned(),
                (Some(answer), _) => {
                    let took = oroshi_words::units::time(answer.timings.total.as_nanos() as f64);
                    let bytes = oroshi_words::units::bytes(answer.body.len() as f64);
                    format!("{} in {took}, {bytes}", answer.status)
                }
                (None, error) => format!("failed: {}", error.unwrap_or_default()),
            };
            (thread.tell)(&format!("{user} {} {}: {what}", attempt.method, attempt.url));
        }
    }

    /// Counts the step, and makes the script's response.
    fn finish(self, step: u32, attempt: Attempt, answer: Option<Answer>, error: Option<&'static str>) -> Response {
        let (thread, spec) = (self.thread, self.spec);
        let done = answer.as_ref().map_or_else(monotonic_ns, |answer| answer.done);
        let status = answer.as_ref().map_or(0, |answer| answer.status);
        let cached = answer.as_ref().is_some_and(|answer| answer.cached);
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
            let to = tally.steps.at(step);
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
        let took = Duration::from_nanos(done.saturating_sub(self.due));
        let (headers, body) = answer.map_or_else(Default::default, |answer| (Some(answer.headers), answer.body));
        let held = &thread.held;
        Response::new(status, error, headers, body, attempt.url, took, self.redirects, cached, held)
    }
}

/// A request on its way: if the run cuts it off, the load is told.
struct InFlight<'a> {
    thread: &'a Thread,
    due: u64,
    is_over: bool,
}

impl<'a> InFlight<'a> {
    fn begin(thread: &'a Thread, due: u64) -> Self {
        if let Some(meter) = &thread.meter {
            meter.began(due);
        }
        Self { thread, due, is_over: false }
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
            meter.failed(failure, self.due, sent, now);
            self.thread.count_bytes(meter);
        }
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        if let Some(meter) = self.thread.meter.as_ref().filter(|_| !self.is_over) {
            // It is not known whether it was sent: it may have waited for a connection.
            meter.cut_off(self.due, None);
        }
    }
}

/// A step whose request the end of the run cuts off: its time is known to be longer.
struct CutOff<'a> {
    thread: &'a Thread,
    step: u32,
    due: u64,
    is_over: bool,
}

impl Drop for CutOff<'_> {
    fn drop(&mut self) {
        if !self.is_over && self.thread.measures(self.due) {
            let waited = monotonic_ns().saturating_sub(self.due);
            let mut tally = self.thread.tally.borrow_mut();
            tally.steps.at(self.step).response.record_censored(waited);
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
                let path = spec.url.target.split('?').next().unwrap_or_default();
                tally.steps.id(&format!("{} {path}", spec.method))
            }
        };
        let before = user.step.replace(step);
        if self.meter.is_some() && !spec.quiet {
            tally.flow(user.scenario.get(), before, step);
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
        (Cause::Response(_) | Cause::Coding { .. } | Cause::BodyTooLarge { .. }, _) => Failure::Parse,
        _ => Failure::Check,
    };
    (error.name(), failure)
}
