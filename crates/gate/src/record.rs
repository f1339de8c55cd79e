//! A request's record for counters and the log. Dropping the record writes both, at the request's end or when its
//! client has left.

use std::net::SocketAddr;
use std::time::Duration;

use oroshi_http1::{RequestHead, Version};
use oroshi_net::monotonic_ns;
use oroshi_net::tls::TlsFacts;
use oroshi_server::{Error, Exchange, RefusedRequest};

use crate::access::{Line, Sink};
use crate::forward::{Outcome, TraceParent};
use crate::generation::RouteCounters;
use crate::script::hooks::{LogEntry, RequestHooks};

/// How much the log shows of bytes that were no request, and of a refused target.
const SHOWN_BYTES: usize = 64;
const SHOWN_TARGET: usize = 256;

/// Logs bytes that never became a request: the first line if it is valid, and the reason.
pub(crate) fn tell_refused(sink: &Sink, refused: &RefusedRequest<'_>) {
    if !sink.wants(refused.status) {
        return;
    }
    let first = refused.bytes.trim_ascii_start();
    let line = request_line(first);
    let (method, target, version) = line.unwrap_or_default();
    let mut detail = match refused.error {
        Error::Request(defect) => format!("{}: {defect}", defect.name()),
        other => other.to_string(),
    };
    // A request of HTTP/2 that was refused has no bytes to show.
    if line.is_none() && !first.is_empty() {
        let shown = &first[..first.len().min(SHOWN_BYTES)];
        detail += &format!(": it begins with \"{}\"", shown.escape_ascii());
    }
    sink.tell(&Line {
        client: refused.remote.map(|address| address.ip().to_canonical()),
        method,
        target,
        version,
        status: refused.status,
        failure: "client-head",
        detail: &detail,
        ..Line::default()
    });
}

/// Parses a first line into method, target and version. Cuts a long target.
fn request_line(bytes: &[u8]) -> Option<(&str, &str, &str)> {
    let end = memchr::memchr(b'\n', bytes)?;
    let line = str::from_utf8(&bytes[..end]).ok()?.trim_end_matches('\r');
    let mut words = line.split(' ');
    let (method, target, version) = (words.next()?, words.next()?, words.next()?);
    let is_word = |word: &str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_graphic());
    let version = version.strip_prefix("HTTP/").filter(|version| matches!(*version, "1.0" | "1.1"))?;
    let is_line = words.next().is_none() && is_word(method) && is_word(target) && method.len() <= 32;
    is_line.then(|| (method, &target[..target.len().min(SHOWN_TARGET)], version))
}

/// A request's record.
pub(crate) struct Record<'s, 'h> {
    head: RequestHead<'h>,
    sink: Option<&'s Sink>,
    client: Option<SocketAddr>,
    is_tls: bool,
    /// If the log shows them.
    tls: Option<&'h TlsFacts>,
    began: u64,
    /// The route's name; empty if the request has none.
    pub(crate) route: &'s str,
    pub(crate) counters: &'s RouteCounters,
    /// The result of forwarding.
    pub(crate) outcome: Outcome,
    /// Status and body length of a response of the gateway itself.
    pub(crate) own: Option<(u16, u64)>,
    /// Why the gateway did not forward the request, by name.
    pub(crate) why: &'static str,
    /// The script whose `on_log` gets the entry, if any.
    pub(crate) hooks: Option<Box<RequestHooks>>,
}

impl<'s, 'h> Record<'s, 'h> {
    /// A record of a new request, which has no route yet.
    pub(crate) fn new(exchange: &Exchange<'h>, sink: Option<&'s Sink>, counters: &'s RouteCounters) -> Self {
        Record {
            head: exchange.head,
            sink,
            client: sink.and_then(|_| exchange.remote()),
            is_tls: sink.is_some() && exchange.is_tls(),
            tls: sink.filter(|sink| sink.wants_tls()).and_then(|_| exchange.tls_facts()),
            began: monotonic_ns(),
            route: "",
            counters,
            outcome: Outcome::default(),
            own: None,
            why: "",
            hooks: None,
        }
    }

    /// Returns the failure's name; empty if the request succeeded.
    fn failure(&self) -> &'static str {
        let gone = if self.own.is_none() && !self.outcome.is_ended() { "client-gone" } else { "" };
        match self.outcome.failure {
            Some(failure) => failure.name(),
            None if self.why.is_empty() => gone,
            None => self.why,
        }
    }

    /// Calls `on_log` of the script.
    #[cold]
    fn tell_script(&self, hooks: RequestHooks, status: u16, bytes: u64) {
        let outcome = &self.outcome;
        hooks.end(LogEntry {
            status,
            bytes,
            took: Duration::from_nanos(monotonic_ns() - self.began),
            upstream: outcome.target.as_ref().map(|pool| pool.target().to_string()),
            upstream_took: (outcome.head > 0).then(|| Duration::from_nanos(outcome.head)),
            retries: outcome.retries,
            failure: self.failure(),
            detail: outcome.detail.clone(),
        });
    }
}

impl Drop for Record<'_, '_> {
    fn drop(&mut self) {
        let (status, bytes) = self.own.unwrap_or((self.outcome.status, self.outcome.bytes));
        self.counters.count(status, bytes);
        if let Some(hooks) = self.hooks.take() {
            self.tell_script(*hooks, status, bytes);
        }
        let Some(sink) = self.sink.filter(|sink| sink.wants(status)) else { return };
        let (failure, outcome) = (self.failure(), &self.outcome);
        let head = &self.head;
        let target = outcome.target.as_ref().map(|pool| pool.target().to_string());
        let field = |name: &str| head.headers.get(name).unwrap_or_default();
        sink.tell(&Line {
            client: self.client.map(|address| address.ip().to_canonical()),
            method: head.method,
            target: head.target,
            version: head.version.number(),
            host: head.host.unwrap_or_default(),
            status,
            bytes,
            took: Duration::from_nanos(monotonic_ns() - self.began),
            route: self.route,
            upstream: target.as_deref().unwrap_or_default(),
            upstream_version: outcome.version.map_or("", Version::number),
            upstream_took: (outcome.head > 0).then(|| Duration::from_nanos(outcome.head)),
            retries: outcome.retries,
            failure,
            detail: &outcome.detail,
            request_id: outcome.request_id.as_ref().map_or(field("x-request-id"), |id| id.as_str().as_bytes()),
            trace: outcome.traceparent.as_ref().map_or("", TraceParent::trace),
            referrer: field("referer"),
            agent: field("user-agent"),
            headers: head.headers,
            is_tls: self.is_tls,
            tls: self.tls,
        });
    }
}
