//! The callbacks to the backend: connect, establish, receive, close.
//!
//! Requests, fields and answers are kuiperbelt's. The hub retries establish, receive and close, so a backend may get
//! them more than once. All tries of a message have the same `X-Oroshi-Message`.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{Either, select};
use oroshi_client::local::{Client, Response};
use oroshi_client::{Deadlines, Error, Headers, RequestBuilder};
use oroshi_http1::{RequestHead, is_connection_field};
use oroshi_net::Endpoint;
use oroshi_websocket::Kind;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::plan::Plan;
use crate::rights::{Right, Rights};
use crate::secrets;
use crate::session::channels::Who;

/// The field that names the hub to the backend.
const ENDPOINT: &str = "X-Kuiperbelt-Endpoint";
/// The field that names the client's user: by its token in the connect callback, and in its answer.
const USER: &str = "X-Oroshi-User";
/// The field of the connect callback's answer with the client's rights in channels.
const RIGHTS: &str = "X-Oroshi-Rights";
/// The field with the session's groups in the answer to the connect callback, with commas.
const GROUPS: &str = "X-Oroshi-Groups";
/// The field with the client's subprotocols in the connect callback, and with the chosen one in its answer.
const PROTOCOL: &str = "Sec-WebSocket-Protocol";
/// The field that names a message from a session; the same on every try.
const MESSAGE: &str = "X-Oroshi-Message";

/// The pause before the first retry. Each further pause is twice as long, up to [`LONGEST_PAUSE`].
///
/// Each pause is shortened by up to half at random, so that retries do not come all at once.
const FIRST_PAUSE: Duration = Duration::from_millis(200);

/// The longest pause between two tries.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// The callbacks of one thread.
pub(crate) struct Callbacks {
    client: Client,
    /// Limits the requests under way to the connections, so that no request waits for one while its timeout runs.
    turns: Semaphore,
    /// Limits the requests that are no connect callbacks, so that busy sessions leave turns for new clients.
    others: Semaphore,
    /// How long a connect callback waits for its turn.
    queue: Duration,
    connect: Option<Endpoint>,
    establish: Option<Endpoint>,
    receive: Option<Endpoint>,
    close: Option<Endpoint>,
    session_header: String,
    /// Whether the connect callback passes on the subprotocols that a client offers.
    passes_protocols: bool,
    /// The value of [`ENDPOINT`].
    endpoint: String,
    /// Fields that are set on the way to the backend, or removed.
    headers: Vec<(String, Option<String>)>,
    retries: u32,
    /// The prefix of this thread's message names. A counter makes the names unique.
    message_prefix: u64,
    messages: Cell<u64>,
    counts: RefCell<CallbackCounts>,
}

/// The backend's consent to a session.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Accepted {
    /// The session's key.
    pub(crate) key: String,
    /// The session's groups, each once.
    pub(crate) groups: Vec<String>,
    /// The client, for the protocol of channels.
    pub(crate) who: Who,
    /// The first message to the session.
    pub(crate) first_message: Option<(Kind, Bytes)>,
    /// The subprotocol that the backend chose.
    pub(crate) protocol: Option<String>,
}

/// A refused session: the answer to its client.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// The status. 403 is the backend's decision, not an error.
    pub(crate) status: u16,
    /// The Content-Type of `body`.
    pub(crate) content_type: String,
    pub(crate) body: Bytes,
    /// Whether too many callbacks were under way to ask the backend. The client may retry soon.
    pub(crate) is_busy: bool,
}

/// The outcomes of all callbacks so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CallbackCounts {
    pub(crate) connect: CallbackCount,
    pub(crate) establish: CallbackCount,
    pub(crate) receive: CallbackCount,
    pub(crate) close: CallbackCount,
}

/// The outcomes of one kind of callback so far. `retried` counts tries; each callback is in one of the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CallbackCount {
    /// Callbacks that the backend accepted.
    pub(crate) accepted: u64,
    /// Callbacks that the backend refused.
    pub(crate) refused: u64,
    /// Callbacks without a useful answer after all tries. For receive and close these are dead letters: the backend
    /// does not know of them.
    pub(crate) failed: u64,
    /// Tries after the first.
    pub(crate) retried: u64,
    /// Connect callbacks that were never sent: too many were under way for too long, or until the client left.
    pub(crate) crowded: u64,
}

impl Callbacks {
    /// Creates the callbacks of a plan.
    pub(crate) fn new(plan: &Plan) -> Self {
        let callbacks = &plan.callbacks;
        let forever = Duration::MAX;
        // One deadline for all phases.
        let deadlines = Deadlines {
            queue: forever,
            dns: forever,
            connect: forever,
            tls: forever,
            write: forever,
            first_byte: forever,
            between_bytes: forever,
            total: callbacks.timeout,
        };
        let client = oroshi_client::Client::builder()
            .connections(callbacks.connections.max(1))
            .connections_per_host(callbacks.connections.max(1))
            // A request with a turn has a connection.
            .waiting(usize::MAX)
            .deadlines(deadlines)
            .collect_bytes(callbacks.answer_bytes as u64)
            .build_local();
        // The draft has checked that each URL parses.
        let endpoint = |url: &Option<String>| url.as_ref().and_then(|url| url.parse::<Endpoint>().ok());
        let turns = callbacks.connections.clamp(1, Semaphore::MAX_PERMITS);
        Callbacks {
            // Settings with a connection and no headers are valid.
            client: client.unwrap_or_default(),
            turns: Semaphore::new(turns),
            others: Semaphore::new(turns_of_others(turns)),
            queue: callbacks.queue,
            connect: endpoint(&callbacks.connect),
            establish: endpoint(&callbacks.establish),
            receive: endpoint(&callbacks.receive),
            close: endpoint(&callbacks.close),
            session_header: plan.session_header.clone(),
            // kuiperbelt knows no subprotocols.
            passes_protocols: !plan.compat_ekbo || !plan.subprotocols.is_empty(),
            endpoint: plan.endpoint.clone(),
            headers: callbacks.headers.clone(),
            retries: callbacks.retries,
            message_prefix: fastrand::u64(..),
            messages: Cell::new(0),
            counts: RefCell::default(),
        }
    }

    /// Asks whether a session may open. Without a connect callback every session may, with a random key.
    ///
    /// `user`: the user of the client's token.
    /// `left` is ready once the client has left. `None`: it left before its turn came, and the backend was not asked.
    /// The hub does not retry, as the client waits and can retry itself.
    pub(crate) async fn connect(
        &self,
        head: &RequestHead<'_>,
        user: Option<&str>,
        left: impl Future<Output = ()>,
    ) -> Option<Result<Accepted, Refusal>> {
        let Some(url) = &self.connect else {
            let (key, groups, who) = (secrets::key(), Vec::new(), Who::default());
            return Some(Ok(Accepted { key, groups, who, first_message: None, protocol: None }));
        };
        let turn = match select(pin!(timeout(self.queue, self.turns.acquire())), pin!(left)).await {
            Either::Left((Ok(Ok(turn)), _)) => Some(turn),
            // The semaphore is never closed.
            Either::Left((Ok(Err(_)) | Err(_), _)) => None,
            Either::Right(_) => {
                self.counts.borrow_mut().connect.crowded += 1;
                return None;
            }
        };
        let result = match turn {
            Some(_turn) => self.ask(self.connect_request(url, head, user)).await,
            None => {
                self.counts.borrow_mut().connect.crowded += 1;
                let text = "the backend is asked about as many clients as it may be: connect again in a second";
                Err(Refusal { is_busy: true, ..Refusal::text(503, text.to_owned()) })
            }
        };
        Some(result)
    }

    /// Sends a connect callback, and reads the answer.
    async fn ask(&self, request: RequestBuilder<Client>) -> Result<Accepted, Refusal> {
        let answer = async {
            let response = request.send().await?;
            let (status, headers) = (response.status(), response.headers().clone());
            Ok::<_, Error>((status, headers, response.bytes().await?))
        };
        let (result, agreed) = match answer.await {
            Ok((200, headers, body)) => {
                let accepted = self.accepted(&headers, body);
                let agreed = accepted.is_ok().then_some(true);
                (accepted, agreed)
            }
            Ok((status, headers, body)) => {
                let content_type = headers.get_str("Content-Type").unwrap_or("application/octet-stream").to_owned();
                let refusal = Refusal { status, content_type, body: body.into(), is_busy: false };
                (Err(refusal), (status < 500).then_some(false))
            }
            Err(error) => {
                let why = if error.is_timeout() { "did not answer in time" } else { "cannot be reached" };
                let text = format!("the backend {why}: the connect callback failed ({})", error.name());
                (Err(Refusal::text(502, text)), None)
            }
        };
        count(&mut self.counts.borrow_mut().connect, agreed, 0);
        result
    }

    /// Tells the backend that a session is open. Returns false if the session must end: the backend refused, or never
    /// answered.
    pub(crate) async fn establish(&self, key: &str) -> bool {
        let Some(url) = &self.establish else { return true };
        let request = || self.request(url, key).header(ENDPOINT, &self.endpoint);
        let (status, retried) = self.send_with_retries("establish", key, request).await;
        count(&mut self.counts.borrow_mut().establish, status.map(|status| status == 200), retried)
    }

    /// Sends a session's message to the backend. The caller waits for it before the session's next message.
    pub(crate) async fn receive(&self, key: &str, kind: Kind, data: Bytes) {
        let Some(url) = &self.receive else { return };
        let name = self.message_name();
        let content_type = match kind {
            Kind::Text => "text/plain",
            Kind::Binary => "application/octet-stream",
        };
        let request = || {
            self.request(url, key)
                .header(ENDPOINT, &self.endpoint)
                .header("Content-Type", content_type)
                .header(MESSAGE, &name)
                .body(data.clone())
        };
        let (status, retried) = self.send_with_retries("receive", key, request).await;
        count(&mut self.counts.borrow_mut().receive, status.map(is_success), retried);
    }

    /// Tells the backend that a session has ended by itself.
    pub(crate) async fn close(&self, key: &str) {
        let Some(url) = &self.close else { return };
        let (status, retried) = self.send_with_retries("close", key, || self.request(url, key)).await;
        count(&mut self.counts.borrow_mut().close, status.map(is_success), retried);
    }

    /// Returns the outcomes of all callbacks so far.
    pub(crate) fn counts(&self) -> CallbackCounts {
        *self.counts.borrow()
    }

    /// Builds the connect callback from the client's request: its query replaces the URL's, and its fields are passed
    /// on.
    fn connect_request(&self, url: &Endpoint, head: &RequestHead<'_>, user: Option<&str>) -> RequestBuilder<Client> {
        let mut url = url.clone();
        let path = url.target.split('?').next().unwrap_or_default().len();
        url.target.truncate(path);
        if let Some((_, query)) = head.target.split_once('?') {
            url.target.push('?');
            url.target.push_str(query);
        }
        let is_set = |name: &str| self.headers.iter().any(|(set, _)| set.eq_ignore_ascii_case(name));
        let mut request = self.client.get(url);
        let is_for_it =
            |name: &str| is_passed_on(name) || (self.passes_protocols && name.eq_ignore_ascii_case(PROTOCOL));
        for field in head.headers.iter().filter(|field| is_for_it(field.name) && !is_set(field.name)) {
            request = request.header(field.name, field.value);
        }
        if let Some(user) = user {
            request = request.header(USER, user);
        }
        self.set_headers(request).header(ENDPOINT, &self.endpoint)
    }

    /// Builds a request about a session.
    fn request(&self, url: &Endpoint, key: &str) -> RequestBuilder<Client> {
        self.set_headers(self.client.post(url)).header(&self.session_header, key)
    }

    fn set_headers(&self, mut request: RequestBuilder<Client>) -> RequestBuilder<Client> {
        for (name, value) in &self.headers {
            if let Some(value) = value {
                request = request.header(name, value);
            }
        }
        request
    }

    /// Sends a request until an answer is final. Returns its status, and the number of retries.
    ///
    /// It logs refusals and requests that it gives up.
    async fn send_with_retries(
        &self,
        callback: &'static str,
        session: &str,
        request: impl Fn() -> RequestBuilder<Client>,
    ) -> (Option<u16>, u64) {
        let mut retried = 0;
        loop {
            // Neither semaphore is ever closed.
            let share = self.others.acquire().await;
            let turn = self.turns.acquire().await;
            let why = match request().send().await {
                Ok(response) => {
                    let status = response.status();
                    finish(response).await;
                    if !is_temporary(status) {
                        if !is_success(status) {
                            tracing::warn!(callback, session, status, "the backend refused the callback");
                        }
                        return (Some(status), retried);
                    }
                    format!("the backend answers {status}")
                }
                Err(error) => error.to_string(),
            };
            drop((turn, share));
            if retried >= u64::from(self.retries) {
                tracing::warn!(callback, session, tries = retried + 1, "given up: {why}");
                return (None, retried);
            }
            tokio::time::sleep(pause(retried)).await;
            retried += 1;
        }
    }

    /// Reads the backend's consent to a session.
    fn accepted(&self, headers: &Headers, body: Vec<u8>) -> Result<Accepted, Refusal> {
        let name = &self.session_header;
        let key = match once(headers, name)? {
            Some(key) if !key.is_empty() => key.to_owned(),
            _ => return Err(Refusal::text(400, format!("the backend answered the connect callback without {name}"))),
        };
        let mut groups: Vec<String> = Vec::new();
        for list in headers.get_all(GROUPS) {
            let Ok(list) = str::from_utf8(list) else {
                return Err(Refusal::text(502, format!("the backend's {GROUPS} is not UTF-8")));
            };
            for group in list.split(',').map(str::trim).filter(|group| !group.is_empty()) {
                if !groups.iter().any(|known| known == group) {
                    groups.push(group.to_owned());
                }
            }
        }
        let kind = kind_of(headers.get("Content-Type"));
        if kind == Kind::Text && str::from_utf8(&body).is_err() {
            let why = "the backend's first message is a text that is not UTF-8 (bytes are application/octet-stream)";
            return Err(Refusal::text(502, why.into()));
        }
        let protocol = once(headers, PROTOCOL)?.map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned);
        let who = self.who(headers)?;
        Ok(Accepted { key, groups, who, first_message: (!body.is_empty()).then(|| (kind, body.into())), protocol })
    }

    /// Reads who the client is and what it may do, for a session that speaks the protocol of channels.
    fn who(&self, headers: &Headers) -> Result<Who, Refusal> {
        let user = once(headers, USER)?.map(str::trim).filter(|user| !user.is_empty()).map(Arc::from);
        let mut rights = Rights::default();
        for list in headers.get_all(RIGHTS) {
            let Ok(list) = str::from_utf8(list) else {
                return Err(Refusal::text(502, format!("the backend's {RIGHTS} is not UTF-8")));
            };
            for grant in list.split(',').map(str::trim).filter(|grant| !grant.is_empty()) {
                let mut words = grant.split_ascii_whitespace();
                let pattern = words.next().unwrap_or_default();
                for word in words {
                    let Some(right) = Right::named(word) else {
                        let expected = "expected a pattern, then some of subscribe, publish, history and presence";
                        return Err(Refusal::text(502, format!("the backend's {RIGHTS} grants {word:?}: {expected}")));
                    };
                    rights.grant(pattern, right);
                }
            }
        }
        let rights = (!rights.is_empty()).then(|| Arc::new(rights));
        Ok(Who { user, rights, ..Who::default() })
    }

    fn message_name(&self) -> String {
        self.messages.set(self.messages.get() + 1);
        format!("{:016x}-{}", self.message_prefix, self.messages.get())
    }
}

impl Refusal {
    /// Creates a refusal with a plain text.
    pub(crate) fn text(status: u16, text: String) -> Self {
        let content_type = "text/plain; charset=utf-8".into();
        Refusal { status, content_type, body: text.into(), is_busy: false }
    }
}

impl CallbackCounts {
    /// Returns the outcomes of each callback with its name in metrics.
    pub(crate) fn each(&self) -> [(&'static str, CallbackCount); 4] {
        [("connect", self.connect), ("establish", self.establish), ("receive", self.receive), ("close", self.close)]
    }

    /// Returns how many messages and ends the backend does not know of.
    pub(crate) fn dead_letters(&self) -> u64 {
        self.receive.failed + self.close.failed
    }
}

impl std::ops::AddAssign for CallbackCounts {
    fn add_assign(&mut self, other: Self) {
        for (mine, others) in [
            (&mut self.connect, other.connect),
            (&mut self.establish, other.establish),
            (&mut self.receive, other.receive),
            (&mut self.close, other.close),
        ] {
            mine.accepted += others.accepted;
            mine.refused += others.refused;
            mine.failed += others.failed;
            mine.retried += others.retried;
            mine.crowded += others.crowded;
        }
    }
}

impl fmt::Debug for Callbacks {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Callbacks").field("counts", &self.counts).finish_non_exhaustive()
    }
}

/// Returns the kind of a message with this Content-Type: binary for `application/octet-stream`, else text.
pub(crate) fn kind_of(content_type: Option<&[u8]>) -> Kind {
    let essence = content_type.unwrap_or_default().split(|&byte| byte == b';').next().unwrap_or_default();
    if essence.trim_ascii().eq_ignore_ascii_case(b"application/octet-stream") { Kind::Binary } else { Kind::Text }
}

/// Returns the value of a field that the backend's answer may have at most once.
///
/// # Errors
/// The answer to the client if the field is repeated or not UTF-8.
fn once<'h>(headers: &'h Headers, name: &str) -> Result<Option<&'h str>, Refusal> {
    let mut values = headers.get_all(name);
    let value = values.next();
    if values.next().is_some() {
        let text = format!("the backend's answer to the connect callback has {name} more than once: expected it once");
        return Err(Refusal::text(502, text));
    }
    let not_utf8 = |_| Refusal::text(502, format!("the backend's {name} is not UTF-8"));
    value.map(str::from_utf8).transpose().map_err(not_utf8)
}

/// Counts the outcome of a callback, and returns whether the backend accepted it.
fn count(counts: &mut CallbackCount, agreed: Option<bool>, retried: u64) -> bool {
    counts.retried += retried;
    match agreed {
        Some(true) => counts.accepted += 1,
        Some(false) => counts.refused += 1,
        None => counts.failed += 1,
    }
    agreed == Some(true)
}

/// Returns whether the connect callback passes on a field of the client's request.
///
/// It does not pass on fields of the handshake and of the connection, nor Host. Accept-Encoding is the callback's own,
/// as the hub may not decode what a browser can. Only the hub sets [`ENDPOINT`] and [`USER`].
fn is_passed_on(name: &str) -> bool {
    const KEPT_BACK: [&str; 6] =
        ["accept-encoding", "expect", "host", "x-kuiperbelt-endpoint", "x-oroshi-user", "content-length"];
    // Many backends (CGI, WSGI, Rack) take `_` for `-`: it must not get a client's own X_Oroshi_User in.
    let name = &name.replace('_', "-");
    let handshake = name.get(..14).is_some_and(|start| start.eq_ignore_ascii_case("sec-websocket-"));
    !handshake && !is_connection_field(name) && !KEPT_BACK.iter().any(|kept| name.eq_ignore_ascii_case(kept))
}

/// Returns how many turns callbacks other than connect may have: a quarter is kept for connect.
///
/// A single turn is for both: they wait for it in one queue, with one of the others at a time.
fn turns_of_others(turns: usize) -> usize {
    turns - (turns / 4).max(1).min(turns - 1)
}

/// Returns whether a status tells of a temporary failure, so that a retry may help.
fn is_temporary(status: u16) -> bool {
    matches!(status, 408 | 425 | 429) || status >= 500
}

fn is_success(status: u16) -> bool {
    (200..300).contains(&status)
}

/// Returns the pause after this many retries.
fn pause(retried: u64) -> Duration {
    let doubled = 1 << retried.min(16);
    let longest = FIRST_PAUSE.saturating_mul(doubled).min(LONGEST_PAUSE);
    longest.mul_f64(0.5 + fastrand::f64() / 2.0)
}

/// Reads the rest of an answer, so that its connection can be reused. If that fails, only the connection is lost.
async fn finish(response: Response) {
    let _ = response.bytes().await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_are_texts_unless_they_say_otherwise() {
        for binary in ["application/octet-stream", "Application/Octet-Stream ; x=y", " application/octet-stream"] {
            assert_eq!(kind_of(Some(binary.as_bytes())), Kind::Binary, "{binary}");
        }
        for text in ["", "text/plain", "application/json", "application/octet-streams", "x; application/octet-stream"] {
            assert_eq!(kind_of(Some(text.as_bytes())), Kind::Text, "{text}");
        }
        assert_eq!(kind_of(None), Kind::Text);
    }

    #[test]
    fn the_handshake_stays_here() {
        for kept in ["Connection", "upgrade", "Sec-WebSocket-Key", "Host", "X-Kuiperbelt-Endpoint", "X_Oroshi_User"] {
            assert!(!is_passed_on(kept), "{kept}");
        }
        for passed in ["Cookie", "Authorization", "Origin", "X-Forwarded-For", "Sec-WebSocke", "User-Agent"] {
            assert!(is_passed_on(passed), "{passed}");
        }
    }

    #[test]
    fn pauses_grow_to_a_bound_and_are_never_the_same() {
        for retried in [0, 1, 5, 100, u64::MAX] {
            let longest = FIRST_PAUSE.saturating_mul(1 << retried.min(16)).min(LONGEST_PAUSE);
            let pauses: Vec<Duration> = (0..20).map(|_| pause(retried)).collect();
            assert!(pauses.iter().all(|pause| (longest / 2..=longest).contains(pause)), "{pauses:?}");
            assert!(pauses.iter().any(|pause| *pause != pauses[0]));
        }
    }

    #[test]
    fn some_turns_are_kept_for_clients_that_come() {
        for (turns, others) in [(1, 1), (2, 1), (3, 2), (4, 3), (7, 6), (8, 6), (64, 48)] {
            assert_eq!(turns_of_others(turns), others, "of {turns}");
        }
    }

    #[test]
    fn what_may_pass_is_tried_again() {
        assert!([408, 429, 500, 502, 503, 504].into_iter().all(is_temporary));
        assert!(![200, 204, 301, 400, 401, 403, 404, 409].into_iter().any(is_temporary));
    }
}
