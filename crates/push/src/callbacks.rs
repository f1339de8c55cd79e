//! What the backend is asked and told: connect, establish, receive, close.
//!
//! Requests, headers and answers are kuiperbelt's. A backend may get establish, receive and close more than once, as what failed is
//! tried again; tries of one message have the same `X-Oroshi-Message`.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{Either, select};
use oroshi_client::local::{Client, Response};
use oroshi_client::{Deadlines, Error, Headers, RequestBuilder};
use oroshi_http1::RequestHead;
use oroshi_net::Endpoint;
use oroshi_websocket::Kind;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::plan::Plan;
use crate::secrets;

/// Names the hub to the backend.
const ENDPOINT: &str = "X-Kuiperbelt-Endpoint";
/// In the answer to the connect callback: the groups that the session belongs to, with commas.
const GROUPS: &str = "X-Oroshi-Groups";
/// To the connect callback: the subprotocols that the client offers. In its answer: the one that is spoken.
const PROTOCOL: &str = "Sec-WebSocket-Protocol";
/// Names a message from a session: the same on every try.
const MESSAGE: &str = "X-Oroshi-Message";

/// The pause before the first further try; each one after it is twice as long, up to the longest. A random half is taken off, so
/// that not everybody comes back at once.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// The callbacks of one core.
pub(crate) struct Callbacks {
    client: Client,
    /// Requests that may be under way: as many as there may be connections, so that none waits for one once its time runs.
    turns: Semaphore,
    /// Of these, those that are no connect callbacks: however much sessions say, there are turns for clients that come.
    others: Semaphore,
    /// How long a client waits for its turn.
    queue: Duration,
    connect: Option<Endpoint>,
    establish: Option<Endpoint>,
    receive: Option<Endpoint>,
    close: Option<Endpoint>,
    session_header: String,
    /// Whether the backend hears which subprotocols a client offers.
    passes_protocols: bool,
    /// The value of [`ENDPOINT`].
    endpoint: String,
    /// Set, or taken away, on the way to the backend.
    headers: Vec<(String, Option<String>)>,
    retries: u32,
    /// Begins the names of this core's messages, which the count of them makes unique.
    message_prefix: u64,
    messages: Cell<u64>,
    counts: RefCell<CallbackCounts>,
}

/// A session that may open.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Accepted {
    /// Its key.
    pub(crate) key: String,
    /// The groups that it belongs to, each once.
    pub(crate) groups: Vec<String>,
    /// The first message to it.
    pub(crate) first_message: Option<(Kind, Bytes)>,
    /// The subprotocol that the backend has chosen.
    pub(crate) protocol: Option<String>,
}

/// A session that may not open: what its client is answered.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// The status. 403 is the backend's right, and no error.
    pub(crate) status: u16,
    /// The type of `body`.
    pub(crate) content_type: String,
    pub(crate) body: Bytes,
    /// Whether the backend was not even asked, as it is asked about too many others: the client may come again soon.
    pub(crate) is_busy: bool,
}

/// What became of the callbacks so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CallbackCounts {
    pub(crate) connect: CallbackCount,
    pub(crate) establish: CallbackCount,
    pub(crate) receive: CallbackCount,
    pub(crate) close: CallbackCount,
}

/// What became of one of the callbacks so far. Each that has ended is in one of the first three.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CallbackCount {
    /// Those that the backend agreed to.
    pub(crate) accepted: u64,
    /// Those that the backend said no to.
    pub(crate) refused: u64,
    /// Those that were given up: no answer, or none that means anything, after all tries. Of receive and close these are dead
    /// letters: the backend does not know.
    pub(crate) failed: u64,
    /// Tries after the first.
    pub(crate) retried: u64,
    /// Those that the backend was never asked: it was asked about as many as may be, for too long, or until the client left. Only connect has
    /// any.
    pub(crate) crowded: u64,
}

impl Callbacks {
    /// The callbacks of a plan.
    pub(crate) fn new(plan: &Plan) -> Self {
        let callbacks = &plan.callbacks;
        let forever = Duration::MAX;
        // One limit for all of it: which phase takes how long is the backend's matter.
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
            // Whoever has a turn has a connection.
            .waiting(usize::MAX)
            .deadlines(deadlines)
            .collect_bytes(callbacks.answer_bytes as u64)
            .build_local();
        // A draft has seen to it that each can be read.
        let endpoint = |url: &Option<String>| url.as_ref().and_then(|url| url.parse::<Endpoint>().ok());
        let turns = callbacks.connections.clamp(1, Semaphore::MAX_PERMITS);
        Callbacks {
            // With at least one connection and no headers there is nothing to refuse.
            client: client.unwrap_or_default(),
            turns: Semaphore::new(turns),
            others: Semaphore::new(turns_of_others(turns)),
            queue: callbacks.queue,
            connect: endpoint(&callbacks.connect),
            establish: endpoint(&callbacks.establish),
            receive: endpoint(&callbacks.receive),
            close: endpoint(&callbacks.close),
            session_header: plan.session_header.clone(),
            // kuiperbelt knows of none.
            passes_protocols: !plan.compat_ekbo || !plan.subprotocols.is_empty(),
            endpoint: plan.endpoint.clone(),
            headers: callbacks.headers.clone(),
            retries: callbacks.retries,
            message_prefix: fastrand::u64(..),
            messages: Cell::new(0),
            counts: RefCell::default(),
        }
    }

    /// Asks whether a session may open. Without such a callback everybody may, with a key that nobody can guess. `None`: the client has left
    /// before its turn came, as `left` says, and the backend was not asked.
    ///
    /// It is tried once: the client waits, and can ask again itself.
    pub(crate) async fn connect(
        &self,
        head: &RequestHead<'_>,
        left: impl Future<Output = ()>,
    ) -> Option<Result<Accepted, Refusal>> {
        let Some(url) = &self.connect else {
            return Some(Ok(Accepted { key: secrets::key(), groups: Vec::new(), first_message: None, protocol: None }));
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
            Some(_turn) => self.ask(self.connect_request(url, head)).await,
            None => {
                self.counts.borrow_mut().connect.crowded += 1;
                let text = "the backend is asked about as many clients as it may be: connect again in a second";
                Err(Refusal { is_busy: true, ..Refusal::text(503, text.to_owned()) })
            }
        };
        Some(result)
    }

    /// Sends a connect callback, and reads its answer.
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

    /// Tells that a session is open. False: the backend does not want it, or does not know of it, and it must end.
    pub(crate) async fn establish(&self, key: &str) -> bool {
        let Some(url) = &self.establish else { return true };
        let request = || self.request(url, key).header(ENDPOINT, &self.endpoint);
        let (status, retried) = self.insist("establish", key, request).await;
        count(&mut self.counts.borrow_mut().establish, status.map(|status| status == 200), retried)
    }

    /// Passes on what a session says. The next message of the same session is to wait for the end of this.
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
        let (status, retried) = self.insist("receive", key, request).await;
        count(&mut self.counts.borrow_mut().receive, status.map(is_success), retried);
    }

    /// Tells that a session has ended by itself.
    pub(crate) async fn close(&self, key: &str) {
        let Some(url) = &self.close else { return };
        let (status, retried) = self.insist("close", key, || self.request(url, key)).await;
        count(&mut self.counts.borrow_mut().close, status.map(is_success), retried);
    }

    /// What became of the callbacks so far.
    pub(crate) fn counts(&self) -> CallbackCounts {
        *self.counts.borrow()
    }

    /// The client's request, passed on: its query in the place of the URL's, its headers but for those of the handshake.
    fn connect_request(&self, url: &Endpoint, head: &RequestHead<'_>) -> RequestBuilder<Client> {
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
        self.set_headers(request).header(ENDPOINT, &self.endpoint)
    }

    /// A request about a session.
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

    /// Sends until there is an answer that means something. Its status, and how often it was tried again. What the backend does not
    /// agree to, and what is given up, is told.
    async fn insist(
        &self,
        callback: &'static str,
        session: &str,
        request: impl Fn() -> RequestBuilder<Client>,
    ) -> (Option<u16>, u64) {
        let mut retried = 0;
        loop {
            // Neither is ever closed.
            let share = self.others.acquire().await;
            let turn = self.turns.acquire().await;
            let why = match request().send().await {
                Ok(response) => {
                    let status = response.status();
                    finish(response).await;
                    if !may_pass(status) {
                        if !is_success(status) {
                            tracing::warn!(callback, session, status, "the backend says no");
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

    /// What the backend's agreement to a session says.
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
        Ok(Accepted { key, groups, first_message: (!body.is_empty()).then(|| (kind, body.into())), protocol })
    }

    fn message_name(&self) -> String {
        self.messages.set(self.messages.get() + 1);
        format!("{:016x}-{}", self.message_prefix, self.messages.get())
    }
}

impl Refusal {
    pub(crate) fn text(status: u16, text: String) -> Self {
        let content_type = "text/plain; charset=utf-8".into();
        Refusal { status, content_type, body: text.into(), is_busy: false }
    }
}

impl CallbackCounts {
    /// Each callback with its name in metrics.
    pub(crate) fn each(&self) -> [(&'static str, CallbackCount); 4] {
        [("connect", self.connect), ("establish", self.establish), ("receive", self.receive), ("close", self.close)]
    }

    /// Messages and ends that the backend was never told of.
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

/// The kind of message that a body of this type is: bytes if it says so, else a text.
pub(crate) fn kind_of(content_type: Option<&[u8]>) -> Kind {
    let essence = content_type.unwrap_or_default().split(|&byte| byte == b';').next().unwrap_or_default();
    if essence.trim_ascii().eq_ignore_ascii_case(b"application/octet-stream") { Kind::Binary } else { Kind::Text }
}

/// The value of a field that the backend's answer may have once.
///
/// # Errors
/// The client's answer, if the field is there more than once, or is not UTF-8.
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

/// Counts the end of a callback, and gives back whether the backend agreed.
fn count(counts: &mut CallbackCount, agreed: Option<bool>, retried: u64) -> bool {
    counts.retried += retried;
    match agreed {
        Some(true) => counts.accepted += 1,
        Some(false) => counts.refused += 1,
        None => counts.failed += 1,
    }
    agreed == Some(true)
}

/// Whether a header of the client's is for the backend too. Those of the handshake (but for the subprotocols) and of the connection are not, nor is the Host. The
/// content codings are the callback's own matter: what a browser takes need not be what we can unpack. And only the hub says who it is.
fn is_passed_on(name: &str) -> bool {
    const KEPT_BACK: [&str; 13] = [
        "accept-encoding",
        "connection",
        "content-length",
        "expect",
        "host",
        "keep-alive",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "x-kuiperbelt-endpoint",
        "content_length",
    ];
    let handshake = name.get(..14).is_some_and(|start| start.eq_ignore_ascii_case("sec-websocket-"));
    !handshake && !KEPT_BACK.iter().any(|kept| name.eq_ignore_ascii_case(kept))
}

/// Of so many turns, those that other callbacks than connect may have: a quarter is kept for connect. Where there is one turn alone, both
/// wait for it in one queue, and one of the others at a time.
fn turns_of_others(turns: usize) -> usize {
    turns - (turns / 4).max(1).min(turns - 1)
}

/// Whether the trouble that a status tells of may pass.
fn may_pass(status: u16) -> bool {
    matches!(status, 408 | 425 | 429) || status >= 500
}

fn is_success(status: u16) -> bool {
    (200..300).contains(&status)
}

/// How long to wait after so many further tries.
fn pause(retried: u64) -> Duration {
    let doubled = 1 << retried.min(16);
    let longest = FIRST_PAUSE.saturating_mul(doubled).min(LONGEST_PAUSE);
    longest.mul_f64(0.5 + fastrand::f64() / 2.0)
}

/// Reads what is left of an answer that says nothing more, so that its connection can be used again. If there is too much of it, or it breaks, the
/// connection is lost, and nothing else.
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
        for kept in
            ["Connection", "upgrade", "Sec-WebSocket-Key", "sec-websocket-protocol", "Host", "X-Kuiperbelt-Endpoint"]
        {
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
        assert!([408, 429, 500, 502, 503, 504].into_iter().all(may_pass));
        assert!(![200, 204, 301, 400, 401, 403, 404, 409].into_iter().any(may_pass));
    }
}
