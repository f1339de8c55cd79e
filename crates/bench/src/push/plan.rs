//! The plan: subscriptions to hold, and messages to publish. The user's [`Draft`] becomes a [`Plan`].

use std::time::Duration;

use oroshi_http1::{Version, encode};
use oroshi_net::Endpoint;
use oroshi_websocket::handshake;
use oroshi_words::{Mistake, Naming};
use serde::{Deserialize, Serialize};

use super::stamp::{Template, TemplateError};
use crate::arrivals::Spacing;
use crate::plan::{self, Load, Problem};
use crate::request::{HeadWriter, RequestError, is_given};

/// How a hub sends messages to those who subscribe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// WebSocket (RFC 6455).
    Ws,
    /// Server-sent events.
    Sse,
    /// An endless response, with a line per message.
    Stream,
}

impl Mode {
    /// The name in flags and JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ws => "ws",
            Self::Sse => "sse",
            Self::Stream => "stream",
        }
    }
}

/// In a run of several parts: how long after the warm-up counting begins, and how long after that publishing.
const AFTER_WARM_UP: Duration = Duration::from_millis(500);
const BEFORE_MEASURING: Duration = Duration::from_millis(200);

/// Placeholder for a connection's number, from 0, in URLs, headers and bodies.
pub const NUMBER: &str = "{n}";

/// A load on a hub, as the user described it. `Default`: ten WebSockets, and no publishers.
#[derive(Clone, Debug)]
pub struct Draft {
    /// How to connect, and for how long: URL, addresses, headers, TLS, connections, threads, timeout, what to watch.
    ///
    /// `load`, `requests`, `method` and `body` are for publishing. Script, checks and the like have no meaning here.
    pub base: plan::Draft,
    /// How subscriptions receive messages.
    pub mode: Mode,
    /// Connections that are being opened at the same time.
    pub connecting: usize,
    /// The most connections to begin per second; `None`: as fast as possible.
    pub connect_rate: Option<f64>,
    /// Messages for all; `None`: somebody else publishes, or no one.
    pub publish: Option<Publishing>,
    /// Messages for one connection each, beside those for all.
    pub publish_to: Option<PublishingTo>,
    /// Length of a message, bytes, where `base.body` is empty.
    pub message_bytes: usize,
}

impl Default for Draft {
    fn default() -> Self {
        Self {
            base: plan::Draft::default(),
            mode: Mode::Ws,
            connecting: 200,
            connect_rate: None,
            publish: None,
            publish_to: None,
            message_bytes: 100,
        }
    }
}

/// How to publish messages for all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Publishing {
    /// URL to post messages to.
    pub url: Endpoint,
    /// Header lines. A header whose value has [`NUMBER`] in it is sent once per connection.
    pub headers: Vec<(String, String)>,
    /// Number of publishers. Each has its own connection, and one message under way.
    pub publishers: usize,
}

/// How to publish messages for one connection each, beside those for all.
#[derive(Clone, Debug, PartialEq)]
pub struct PublishingTo {
    /// URL to post messages to; [`NUMBER`] in it is the connection's number.
    pub url: Endpoint,
    /// Header lines, with the connection's number.
    pub headers: Vec<(String, String)>,
    /// The message, with placeholders for the stamp and perhaps the connection; empty: a JSON object.
    pub body: Vec<u8>,
    /// Messages per second.
    pub rate: f64,
}

/// A valid load on a hub.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How subscriptions receive messages.
    pub mode: Mode,
    /// Origin, number and limits of the subscriptions: a plan without a load of requests.
    pub connect: plan::Plan,
    /// Connections that are being opened at the same time.
    pub connecting: usize,
    /// The most connections to begin per second.
    pub connect_rate: Option<f64>,
    /// Messages for all.
    pub publish: Option<Publication>,
    /// Messages for one each.
    pub publish_to: Option<Publication>,
    /// The number in the stamps of the run, which all its parts know; `None`: a random one.
    pub run: Option<u32>,
    pub(crate) request: SubscribeRequest,
}

/// Messages to be published.
#[derive(Clone, Debug)]
pub struct Publication {
    /// Origin, publishers (its connections) and timetable.
    pub plan: plan::Plan,
    /// Its method.
    pub method: String,
    /// URL to post to.
    pub url: Endpoint,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) template: Template,
}

/// Publishers of messages for one each: enough that a slow response delays no other message.
const PUBLISHERS_TO_ONE: usize = 16;

/// One mistake in a draft. The text names the value, what was expected and the next step.
#[derive(Debug, thiserror::Error)]
pub enum SubscribeProblem {
    /// A mistake that any load can have.
    #[error(transparent)]
    Load(#[from] Problem),
    /// Correct the message.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// Subscriptions belong to one hub.
    #[error("{0} URLs to subscribe at: expected one; {{n}} in it stands for the connection's number")]
    Urls(usize),
    /// Say where to publish.
    #[error("{}", self.told(Naming::Flags))]
    NotPublished(&'static str),
    /// Correct the number.
    #[error("{}", self.told(Naming::Flags))]
    Rate(&'static str, f64),
    /// Name the connection that a message is for.
    #[error("{}", self.told(Naming::Flags))]
    NoTarget,
    /// Use a header, or --publish-to.
    #[error("{}", self.told(Naming::Flags))]
    TargetOfAll,
}

impl SubscribeProblem {
    /// Returns the fields that may be wrong, the likeliest first, by their flags of `oroshi bench`.
    #[must_use]
    pub fn fields(&self) -> &[&'static str] {
        match self {
            SubscribeProblem::Load(problem) => problem.fields(),
            SubscribeProblem::Template(_) => &["body", "message-bytes", "publish-to-body"],
            SubscribeProblem::Urls(_) => &["url"],
            SubscribeProblem::NotPublished(field) | SubscribeProblem::Rate(field, _) => std::slice::from_ref(field),
            SubscribeProblem::NoTarget => &["publish-to"],
            SubscribeProblem::TargetOfAll => &["publish"],
        }
    }

    /// Describes the mistake and its causes; `naming` writes the names of fields.
    #[must_use]
    pub fn told(&self, naming: Naming) -> String {
        let name = |field| naming.of(field);
        match self {
            SubscribeProblem::Load(problem) => problem.told(naming),
            SubscribeProblem::NotPublished(field) => {
                format!("{} says how to publish, and not where: give {} URL", name(field), name("publish"))
            }
            SubscribeProblem::Rate(field, rate) => {
                format!("{}: {rate} per second: expected a number above 0", name(field))
            }
            SubscribeProblem::NoTarget => {
                let [to, header, body] = ["publish-to", "publish-to-header", "publish-to-body"].map(name);
                format!(
                    "{to} sends each message to one connection, and nothing says which: put {{n}}, its number, into \
                     the URL, a {header} or the {body}"
                )
            }
            SubscribeProblem::TargetOfAll => {
                let [all, header, to] = ["publish", "publish-header", "publish-to"].map(name);
                format!(
                    "{all} is for all connections: {{n}} belongs into a {header}, which is sent once for each, or \
                     use {to}"
                )
            }
            SubscribeProblem::Template(_) | SubscribeProblem::Urls(_) => self.to_string(),
        }
    }

    /// Returns the description, with the fields that may be wrong.
    #[must_use]
    pub fn mistake(&self, naming: Naming) -> Mistake {
        plan::mistake(self.fields(), self.told(naming))
    }
}

impl Draft {
    /// Fills in every default.
    ///
    /// # Errors
    /// All mistakes, at once.
    pub fn plan(self) -> Result<Plan, Vec<SubscribeProblem>> {
        let mut problems = Vec::new();
        let Self { base, mode, connecting, connect_rate, publish, publish_to, message_bytes } = self;
        let connections = base.connections;
        let connect = plan::Draft {
            method: "GET".into(),
            body: Default::default(),
            load: Load::Closed,
            requests: None,
            // One thread takes some hundred thousand messages per second.
            threads: base.threads.or(Some(1)),
            ..base.clone()
        };
        let connect = planned(connect, &mut problems);
        if base.urls.len() > 1 {
            problems.push(SubscribeProblem::Urls(base.urls.len()));
        }
        if connecting == 0 {
            let what = "the number of connections that are being opened";
            problems.push(Problem::Zero { field: "connecting", what }.into());
        }
        if let Some(rate) = connect_rate.filter(|rate| !is_rate(*rate)) {
            problems.push(SubscribeProblem::Rate("connect-rate", rate));
        }
        let open = base.load != Load::Closed;
        for (field, given) in [("rate", open), ("requests", base.requests.is_some()), ("body", !base.body.is_empty())] {
            if given && publish.is_none() {
                problems.push(SubscribeProblem::NotPublished(field));
            }
        }
        let publish = publish.map(|publishing| {
            let Publishing { url, headers, publishers } = publishing;
            let body = base.body.to_vec();
            let draft = plan::Draft { connections: publishers, part: None, ..base.clone() };
            let publication = publication(draft, url, headers, &body, message_bytes, &mut problems);
            if let Some(publication) = &publication
                && (publication.url.target.contains(NUMBER) || publication.template.names_target())
            {
                problems.push(SubscribeProblem::TargetOfAll);
            }
            publication
        });
        let publish_to = publish_to.map(|publishing| {
            let PublishingTo { url, headers, body, rate } = publishing;
            if !is_rate(rate) {
                problems.push(SubscribeProblem::Rate("publish-to-rate", rate));
            }
            let load = Load::rate(rate.max(f64::MIN_POSITIVE), Spacing::Constant, 0);
            let draft =
                plan::Draft { connections: PUBLISHERS_TO_ONE, requests: None, part: None, load, ..base.clone() };
            let publication = publication(draft, url, headers, &body, message_bytes, &mut problems);
            if let Some(publication) = &publication
                && !publication.url.target.contains(NUMBER)
                && !publication.headers.iter().any(|(_, value)| value.contains(NUMBER))
                && !publication.template.names_target()
            {
                problems.push(SubscribeProblem::NoTarget);
            }
            publication
        });
        let request = base.urls.first().map(|url| SubscribeRequest::new(mode, url, &base.headers));
        match (connect, request) {
            (Some(connect), Some(request)) if problems.is_empty() => Ok(Plan {
                mode,
                connect,
                connecting: connecting.min(connections),
                connect_rate,
                publish: publish.flatten(),
                publish_to: publish_to.flatten(),
                run: None,
                request,
            }),
            _ => Err(problems),
        }
    }
}

fn is_rate(per_second: f64) -> bool {
    per_second > 0.0
}

/// Makes a plan of one side of the load. Mistakes of both sides are reported once.
fn planned(draft: plan::Draft, problems: &mut Vec<SubscribeProblem>) -> Option<plan::Plan> {
    match draft.plan() {
        Ok(plan) => Some(plan),
        Err(found) => {
            for problem in found.0 {
                let text = problem.to_string();
                if !problems.iter().any(|known| known.to_string() == text) {
                    problems.push(problem.into());
                }
            }
            None
        }
    }
}

fn publication(
    draft: plan::Draft,
    url: Endpoint,
    headers: Vec<(String, String)>,
    body: &[u8],
    message_bytes: usize,
    problems: &mut Vec<SubscribeProblem>,
) -> Option<Publication> {
    let template = if body.is_empty() { Template::json(message_bytes) } else { Template::text(body) };
    let method = if draft.method == "GET" { "POST".to_owned() } else { draft.method.clone() };
    let draft = plan::Draft {
        urls: vec![url.clone()],
        method: method.clone(),
        headers: headers.clone(),
        body: Default::default(),
        threads: Some(1),
        sources: Vec::new(),
        ..draft
    };
    let plan = planned(draft, problems);
    match template {
        Ok(template) => Some(Publication { plan: plan?, method, url, headers, template }),
        Err(error) => {
            problems.push(error.into());
            None
        }
    }
}

impl Publication {
    /// Returns the head of a request, without its length and end. Headers with a connection's number repeat for each of
    /// `targets`.
    ///
    /// # Errors
    /// When the head with a number in it is not valid.
    pub(crate) fn head(&self, targets: &[u32]) -> Result<Vec<u8>, RequestError> {
        let one = targets.first().copied().unwrap_or(0);
        let mut head = HeadWriter::new(&self.method, &numbered(&self.url.target, one), &self.headers)?;
        head.host(&self.url.authority)?;
        if !head.is_given("Content-Type") {
            head.header("Content-Type", "application/json")?;
        }
        for (name, value) in &self.headers {
            if !value.contains(NUMBER) {
                head.header(name, value)?;
                continue;
            }
            for n in targets {
                head.header(name, &numbered(value, *n))?;
            }
        }
        Ok(head.bytes)
    }

    /// Whether each message names the connection that it is for, in its URL or in a header.
    pub(crate) fn head_differs(&self) -> bool {
        self.url.target.contains(NUMBER) || self.headers.iter().any(|(_, value)| value.contains(NUMBER))
    }
}

fn numbered(text: &str, number: u32) -> String {
    text.replace(NUMBER, &number.to_string())
}

/// The request of a subscription.
#[derive(Clone, Debug)]
pub(crate) struct SubscribeRequest {
    mode: Mode,
    target: String,
    authority: String,
    headers: Vec<(String, String)>,
}

impl SubscribeRequest {
    fn new(mode: Mode, url: &Endpoint, headers: &[(String, String)]) -> Self {
        let (target, authority) = (url.target.clone(), url.authority.to_string());
        Self { mode, target, authority, headers: headers.to_vec() }
    }

    /// Returns the request of connection `number`, and the key that a WebSocket's response must fit.
    pub(crate) fn write(&self, number: u32) -> (Vec<u8>, String) {
        let nonce = std::array::from_fn(|_| fastrand::u8(..));
        let (handshake, key) = handshake::request_fields(nonce);
        let mut fields: Vec<(&str, String)> = vec![("Host", self.authority.clone())];
        match self.mode {
            Mode::Ws => fields.extend(handshake),
            Mode::Sse => fields.push(("Accept", "text/event-stream".into())),
            Mode::Stream => {}
        }
        // The user's headers take the place of ours.
        fields.retain(|(name, _)| !is_given(&self.headers, name));
        fields.extend(self.headers.iter().map(|(name, value)| (name.as_str(), numbered(value, number))));
        let mut request = Vec::with_capacity(256);
        let fields = fields.iter().map(|(name, value)| (*name, value.as_bytes()));
        // The plan has encoded every part once; digits in it stay valid.
        let written =
            encode::request_head(&mut request, "GET", &numbered(&self.target, number), Version::Http11, fields);
        debug_assert_eq!(written, Ok(()));
        (request, key)
    }

    /// Path and query, with the placeholder in them.
    pub(crate) fn target(&self) -> &str {
        &self.target
    }

    /// Whether the user's headers offer permessage-deflate (RFC 7692).
    pub(crate) fn offers_deflate(&self) -> bool {
        self.headers.iter().any(|(name, value)| {
            name.eq_ignore_ascii_case("Sec-WebSocket-Extensions")
                && value.trim_start().starts_with("permessage-deflate")
        })
    }

    /// The subprotocols that the user's headers offer.
    pub(crate) fn protocols(&self) -> Vec<&[u8]> {
        let offers = self.headers.iter().filter(|(name, _)| name.eq_ignore_ascii_case("Sec-WebSocket-Protocol"));
        offers.flat_map(|(_, names)| names.as_bytes().split(|&byte| byte == b',')).map(<[u8]>::trim_ascii).collect()
    }
}

impl Plan {
    /// Returns how long the run publishes, or holds its subscriptions; `None`: until a number of messages is published.
    #[must_use]
    pub fn duration(&self) -> Option<Duration> {
        self.publish.as_ref().map_or(self.connect.duration, |publish| publish.plan.duration)
    }

    /// In a run of several parts, how long after the start the measured part begins: all parts go by the clock, so that
    /// they need no messages.
    pub(crate) fn before_measuring(&self) -> Duration {
        self.before_counting() + BEFORE_MEASURING
    }

    /// As [`before_measuring`](Self::before_measuring), until counting begins.
    pub(crate) fn before_counting(&self) -> Duration {
        let warmup = self.connect.warmup;
        if warmup.is_zero() || !self.publishes() { Duration::ZERO } else { warmup + AFTER_WARM_UP }
    }

    /// The subscriptions of this process.
    pub(crate) fn own_connections(&self) -> u64 {
        let (plan, connections) = (&self.connect, self.connect.connections);
        let of = |thread| {
            let (number, threads) = plan.position(thread);
            connections / threads + usize::from(number < connections % threads)
        };
        (0..plan.threads).map(of).sum::<usize>() as u64
    }

    /// Whether anything is published.
    pub(crate) fn publishes(&self) -> bool {
        self.publish.is_some() || self.publish_to.is_some()
    }

    /// Returns the number of publishers of messages for all.
    #[must_use]
    pub fn publishers(&self) -> usize {
        self.publish.as_ref().map_or(0, |publish| publish.plan.connections)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draft(url: &str, publish: &str, headers: &[(&str, &str)]) -> Draft {
        let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let base = plan::Draft {
            urls: vec![url.parse().unwrap()],
            headers: vec![("X-Key".into(), "k{n}".into()), ("Accept".into(), "x/y".into())],
            ..plan::Draft::default()
        };
        let url = publish.parse().unwrap();
        Draft { base, publish: Some(Publishing { url, headers, publishers: 2 }), ..Draft::default() }
    }

    fn text(bytes: Vec<u8>) -> String {
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn each_subscription_has_its_number_and_the_users_headers_come_first() {
        let plan = Draft { mode: Mode::Sse, ..draft("http://h:1/sub?u={n}", "http://h/", &[]) }.plan().unwrap();
        let expected = "GET /sub?u=7 HTTP/1.1\r\nHost: h:1\r\nX-Key: k7\r\nAccept: x/y\r\n\r\n";
        assert_eq!(text(plan.request.write(7).0), expected);
        let plan = draft("http://h/{n}", "http://h/", &[]).plan().unwrap();
        let (request, key) = plan.request.write(3);
        assert!(text(request).contains(&format!("\r\nSec-WebSocket-Key: {key}\r\n")));
        assert_ne!(plan.request.write(3).1, key, "a nonce");
    }

    #[test]
    fn a_post_for_all_names_each_of_them_where_the_hub_wants_it() {
        let plan = draft("http://h/", "unix:/x:/send", &[("X-Session", "s-{n}"), ("X-One", "1")]).plan().unwrap();
        let publish = plan.publish.unwrap();
        assert_eq!((publish.plan.connections, publish.method.as_str(), publish.head_differs()), (2, "POST", true));
        let expected = "POST /send HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
                        X-Session: s-4\r\nX-Session: s-9\r\nX-One: 1\r\n";
        assert_eq!(text(publish.head(&[4, 9]).unwrap()), expected);
    }

    #[test]
    fn publishers_have_the_timetable_and_subscriptions_their_limits() {
        let mut draft = draft("http://h/", "http://h/", &[]);
        draft.base.load = Load::rate(5.0, Spacing::Constant, 0);
        draft.base.requests = Some(7);
        let plan = draft.plan().unwrap();
        assert_eq!((plan.connect.load, plan.connect.requests, plan.connect.threads), (Load::Closed, None, 1));
        assert_eq!((plan.connecting, plan.publish.as_ref().unwrap().plan.requests), (10, Some(7)));
    }
}
