//! The configuration of a hub: checked, with all defaults filled in. A `Draft` becomes a `Plan`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use oroshi_net::CpuList;
use oroshi_service::{Proxies, Role};
use oroshi_words::Secret;

use crate::tls::Tls;

/// The configuration of a hub.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How many threads hold sessions; at least 1.
    pub threads: usize,
    /// The CPUs that the threads are pinned to, if any.
    pub cpus: Option<CpuList>,
    /// The listeners.
    pub listeners: Vec<Listener>,
    /// TLS towards clients, if any.
    pub tls: Option<Arc<Tls>>,
    /// The load balancers in front of listeners for clients.
    pub proxies: Proxies,
    /// The paths of the API.
    pub paths: Paths,
    /// The header field that names sessions, in callbacks and in `/send` and `/close`.
    pub session_header: String,
    /// How backends reach this hub: the value of `X-Kuiperbelt-Endpoint`.
    pub endpoint: String,
    /// The callbacks to the backend.
    pub callbacks: Callbacks,
    /// The most connections of clients, on all listeners but admin ones; `None`: no limit.
    ///
    /// The rest of the process's descriptors is for operators, callbacks and other nodes. It is more than
    /// `limits.sessions`, so that the hub can answer clients that are too many.
    pub connections: Option<usize>,
    /// The most connections on all admin listeners, each of which gets an equal share; `None`: no limit.
    pub admin_connections: Option<usize>,
    /// Which pages may connect.
    pub origins: Origins,
    /// The transports that clients may use.
    pub transports: Transports,
    /// The WebSocket subprotocols that the hub accepts (RFC 6455, section 1.9), unless the backend chooses one.
    pub subprotocols: Vec<String>,
    /// The length of the shortest message that is compressed for WebSockets that offer permessage-deflate (RFC 7692),
    /// bytes. `None`: nothing is compressed, and no offer accepted.
    pub compress_from_bytes: Option<u32>,
    /// Sizes, counts and times.
    pub limits: Limits,
    /// How `/send` treats unknown and slow sessions.
    pub send: SendSettings,
    /// Rules for groups. The first rule whose pattern fits a group applies.
    pub groups: Vec<GroupRule>,
    /// The token that `Authorization: Bearer` must have on all requests but connecting, polling and `/ping`. Never
    /// shown.
    pub token: Option<Secret>,
    /// How the hub checks clients' tokens, if it takes any.
    pub jwt: Option<Jwt>,
    /// How the hub drains.
    pub drain: Drain,
    /// The other nodes, if there are any.
    pub cluster: Option<Cluster>,
    /// Restores behaviour of kuiperbelt that the hub corrects by default.
    ///
    /// - No close frame after a failed establish callback, at `/close`, at the idle limit and when the hub drains.
    /// - An empty message when the hub drains.
    /// - Nothing sent before the establish callback has agreed.
    /// - A message twice to a key that `/send` names twice.
    /// - 400 to a request that asks for no WebSocket.
    pub compat_ekbo: bool,
    /// Whether the hub logs API requests (`tracing`, target `oroshi_push::access`). Connecting, polling and `/stats`
    /// are not logged.
    pub access_log: bool,
    /// Whether each message is sent back to its session. For tests of the protocol.
    pub echo: bool,
}

impl Default for Plan {
    /// Returns a plan with one thread and no listener.
    fn default() -> Self {
        Plan {
            threads: 1,
            cpus: None,
            listeners: Vec::new(),
            tls: None,
            proxies: Proxies::default(),
            paths: Paths::default(),
            session_header: String::from("X-Kuiperbelt-Session"),
            endpoint: String::from("localhost:9180"),
            callbacks: Callbacks::default(),
            connections: None,
            admin_connections: None,
            origins: Origins::Any,
            transports: Transports::ALL,
            subprotocols: Vec::new(),
            compress_from_bytes: None,
            limits: Limits::default(),
            send: SendSettings::default(),
            groups: Vec::new(),
            token: None,
            jwt: None,
            drain: Drain::default(),
            cluster: None,
            compat_ekbo: false,
            access_log: false,
            echo: false,
        }
    }
}

impl Plan {
    /// Returns the rule for a group.
    #[must_use]
    pub fn group_rule(&self, group: &str) -> Option<&GroupRule> {
        self.groups.iter().find(|rule| rule.fits(group))
    }

    /// Returns whether a rule lets clients be told who comes and goes.
    #[must_use]
    pub fn has_presence_events(&self) -> bool {
        self.groups.iter().any(|rule| rule.presence_events)
    }

    /// Returns whether clients may speak the protocol of channels.
    #[must_use]
    pub fn has_channels(&self) -> bool {
        self.groups.iter().any(|rule| rule.subscribe != Access::Nobody)
    }
}

/// A listener: an address, and what is served there.
pub type Listener = oroshi_service::Listener<Serves>;

/// The clients that a listener serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Serves {
    /// Clients and backends alike, as in kuiperbelt.
    Everything,
    /// Clients: connecting, polling, `/ping`.
    Sessions,
    /// The same over TLS.
    Tls,
    /// Backends and operators: all but connecting and polling.
    Admin,
}

impl Serves {
    /// Returns whether it serves clients alone, no backends.
    #[must_use]
    pub fn is_public(self) -> bool {
        matches!(self, Serves::Sessions | Serves::Tls)
    }
}

impl Role for Serves {
    const NAMED: &'static [(&'static str, Self)] = &[
        ("public", Serves::Sessions),
        ("tls", Serves::Tls),
        ("admin", Serves::Admin),
        ("everything", Serves::Everything),
    ];

    fn is_admin(self) -> bool {
        self == Serves::Admin
    }

    fn scheme(self) -> &'static str {
        if self == Serves::Tls { "https" } else { "http" }
    }

    fn description(self) -> &'static str {
        match self {
            Serves::Everything => "everything",
            Serves::Sessions => "public: connecting and polling",
            Serves::Tls => "tls: connecting and polling over TLS",
            Serves::Admin => "admin: publishing and status",
        }
    }
}

/// The configurable paths. The paths of the native API (`/publish`, `/sessions`, `/groups`, `/status`, `/metrics`) are
/// fixed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paths {
    /// `GET`: opens a session.
    pub connect: String,
    /// `GET`: returns the messages of a polling session.
    pub poll: String,
    /// `POST`: takes commands of a session that speaks the protocol of channels.
    pub command: String,
    /// `POST`: sends a message to the sessions that header fields name.
    pub send: String,
    /// `POST`: closes sessions, with a last message.
    pub close: String,
    /// `POST`: sends a message to all sessions.
    pub broadcast: String,
    /// Any method: shows that the hub is alive.
    pub ping: String,
    /// Any method: returns six counters.
    pub stats: String,
}

impl Default for Paths {
    fn default() -> Self {
        Paths {
            connect: String::from("/connect"),
            poll: String::from("/poll"),
            command: String::from("/command"),
            send: String::from("/send"),
            close: String::from("/close"),
            broadcast: String::from("/broadcast"),
            ping: String::from("/ping"),
            stats: String::from("/stats"),
        }
    }
}

/// The callbacks to the backend, by HTTP.
#[derive(Clone, Debug)]
pub struct Callbacks {
    /// Called before a session opens. Without it every client may connect, with a random key.
    pub connect: Option<String>,
    /// Called when a session is open. A refusal ends it.
    pub establish: Option<String>,
    /// Called with each message of a session. Without it the hub discards messages.
    pub receive: Option<String>,
    /// Called when a session has ended by itself.
    pub close: Option<String>,
    /// The timeout of one try, from the moment when a connection is free for it.
    pub timeout: Duration,
    /// How long a client waits for its connect callback while all connections are busy. After that it gets 503.
    pub queue: Duration,
    /// How often the hub retries a failed establish, receive or close.
    pub retries: u32,
    /// The most connections of a thread to the backend.
    pub connections: usize,
    /// The largest answer to the connect callback, bytes.
    pub answer_bytes: usize,
    /// Header fields that are set on the way to the backend; `None` removes one (kuiperbelt's `proxy_set_header`).
    pub headers: Vec<(String, Option<String>)>,
}

impl Default for Callbacks {
    fn default() -> Self {
        Callbacks {
            connect: None,
            establish: None,
            receive: None,
            close: None,
            timeout: Duration::from_secs(10),
            queue: Duration::from_secs(5),
            retries: 3,
            connections: 64,
            answer_bytes: 1024 * 1024,
            headers: Vec::new(),
        }
    }
}

/// Which pages may connect. Requests without `Origin` do not come from a page, and may.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origins {
    /// All pages.
    Any,
    /// Pages with the host and port of the request, by HTTP or HTTPS.
    SameOrigin,
    /// Pages with the host name of the request.
    SameHostname,
    /// Pages of these origins, as browsers write them: `https://example.org`.
    List(Vec<String>),
}

/// The transports that a hub offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transports {
    /// WebSocket.
    pub websocket: bool,
    /// Server-sent events.
    pub sse: bool,
    /// A stream of lines.
    pub stream: bool,
    /// Polling.
    pub poll: bool,
}

impl Transports {
    /// All transports.
    pub const ALL: Transports = Transports { websocket: true, sse: true, stream: true, poll: true };
    /// No transport.
    pub const NONE: Transports = Transports { websocket: false, sse: false, stream: false, poll: false };
    /// WebSocket alone, as kuiperbelt offers.
    pub const WEBSOCKET: Transports = Transports { websocket: true, ..Transports::NONE };

    /// Returns the names of the offered transports, as in configurations and metrics.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        let Transports { websocket, sse, stream, poll } = self;
        let all = [("websocket", websocket), ("sse", sse), ("stream", stream), ("poll", poll)];
        all.into_iter().filter(|(_, offered)| *offered).map(|(name, _)| name)
    }

    /// Adds a transport by its name. Returns false if the name is unknown.
    pub fn add(&mut self, name: &str) -> bool {
        let transport = match name {
            "websocket" => &mut self.websocket,
            "sse" => &mut self.sse,
            "stream" => &mut self.stream,
            "poll" => &mut self.poll,
            _ => return false,
        };
        *transport = true;
        true
    }
}

/// Sizes, counts and times. A time of `None` is no limit.
#[derive(Clone, Debug)]
pub struct Limits {
    /// The most sessions of the process, on all threads.
    pub sessions: usize,
    /// The most new sessions per second, on all threads. Further clients get 503 with `Retry-After`.
    pub connects_per_second: Option<u32>,
    /// The largest message from a session, bytes.
    pub message_bytes: usize,
    /// The largest message to sessions, bytes.
    pub publish_bytes: u64,
    /// The most that may wait for one session, bytes.
    ///
    /// One message of any length may wait alone. With [`SlowPolicy::DropOldest`] and [`SlowPolicy::KeepLatest`] one may
    /// also wait behind messages that cannot be dropped.
    pub session_queue_bytes: usize,
    /// The most messages that may wait for one session.
    pub session_queue_messages: usize,
    /// The most that may wait for all sessions together, bytes.
    ///
    /// Beyond it, the sessions with the longest queues lose their oldest messages or end, by their rule.
    pub total_queue_bytes: usize,
    /// How long a session may be silent in both directions. Pings count as activity.
    pub idle: Option<Duration>,
    /// The time between pings of a silent session.
    pub ping: Option<Duration>,
    /// How long the answer to a ping may take.
    pub pong: Duration,
    /// How long a session may take nothing while messages wait for it.
    pub write: Duration,
    /// How long a polling session may pause between polls.
    pub poll_absence: Duration,
    /// How long a poll waits for a message.
    pub poll_wait: Duration,
    /// How long the hub waits for the answer to a close frame.
    pub close: Duration,
    /// The most messages that one client may publish per second.
    pub client_publishes: Option<u32>,
    /// What one connection may send per second.
    pub client: ClientRates,
    /// What all connections of a user may send per second, if it is known.
    pub user: ClientRates,
    /// What all connections from an address may send per second; of IPv6, from a network of 64 bits.
    pub address: ClientRates,
    /// The most channels that one session may subscribe to.
    pub session_channels: usize,
    /// The most that the histories of all channels may hold together, bytes.
    pub history_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            sessions: 1_000_000,
            connects_per_second: None,
            message_bytes: 64 * 1024,
            publish_bytes: 1024 * 1024,
            session_queue_bytes: 1024 * 1024,
            session_queue_messages: 4096,
            total_queue_bytes: 256 * 1024 * 1024,
            idle: None,
            ping: Some(Duration::from_secs(25)),
            pong: Duration::from_secs(10),
            write: Duration::from_secs(30),
            poll_absence: Duration::from_secs(30),
            poll_wait: Duration::from_secs(25),
            close: Duration::from_secs(5),
            client_publishes: Some(10),
            client: ClientRates::default(),
            user: ClientRates::default(),
            address: ClientRates::default(),
            session_channels: 100,
            history_bytes: 256 * 1024 * 1024,
        }
    }
}

/// What clients may send per second. `None` is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientRates {
    /// Messages and commands. A second's worth may come at once.
    pub messages: Option<u32>,
    /// Bytes of these. A second's worth, or the largest message, may come at once.
    pub bytes: Option<u32>,
    /// Subscriptions. A second's worth may come at once.
    pub subscribes: Option<u32>,
}

/// How `/send` behaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SendSettings {
    /// Whether one unknown session makes `/send` send nothing at all (kuiperbelt's `strict_broadcast`).
    pub strict: bool,
    /// How long `/send` waits for a session with a full queue.
    pub timeout: Duration,
}

impl Default for SendSettings {
    fn default() -> Self {
        SendSettings { strict: false, timeout: Duration::from_secs(5) }
    }
}

/// A rule for the groups that a pattern fits. Its `Default` permits clients nothing and keeps nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupRule {
    /// A name, or a prefix and `*`.
    pub pattern: String,
    /// The action when a session's queue is full.
    pub slow: SlowPolicy,
    /// Whether a client may join by itself (`?group=` when it connects).
    pub client_may_join: bool,
    /// The clients that may subscribe to these groups as channels.
    pub subscribe: Access,
    /// Whether they may also subscribe to all channels that begin with a prefix.
    pub subscribe_patterns: bool,
    /// The clients that may publish.
    pub publish: Access,
    /// The clients that may read the history without a subscription.
    pub history: Access,
    /// The clients that may see who subscribes.
    pub presence: Access,
    /// Whether these may also be told when a client comes or goes.
    pub presence_events: bool,
    /// The history that is kept, if any.
    pub keeps: Option<HistoryRule>,
}

/// The clients that have a right by a group's rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// Only those whose token or backend grants it.
    #[default]
    Nobody,
    /// Those whose user is known, by their token or by the backend.
    Users,
    /// All.
    Anyone,
}

/// The bounds of a channel's history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryRule {
    /// The most messages.
    pub messages: usize,
    /// The most bytes, with the hub's own for each message.
    pub bytes: usize,
    /// How long a message is kept, and how long the channel is remembered after its last use.
    pub time: Duration,
    /// Whether the newest message replaces all earlier ones.
    pub latest: bool,
    /// Whether clients may get a message as the difference from the one before.
    pub delta: bool,
}

impl Default for HistoryRule {
    fn default() -> Self {
        let time = Duration::from_secs(300);
        HistoryRule { messages: 100, bytes: 1024 * 1024, time, latest: false, delta: false }
    }
}

impl GroupRule {
    /// Returns whether the rule applies to this group.
    #[must_use]
    pub fn fits(&self, group: &str) -> bool {
        match self.pattern.strip_suffix('*') {
            Some(prefix) => group.starts_with(prefix),
            None => group == self.pattern,
        }
    }
}

/// The action for a message when a session's queue is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SlowPolicy {
    /// The session ends at once, without a close frame, which it would not read; it may reconnect. For messages to all
    /// and for groups without a rule.
    #[default]
    Disconnect,
    /// The oldest messages make room. The session learns how many it lost.
    DropOldest,
    /// A newer message replaces one with the same key, even if the queue is not full; else as `DropOldest`.
    KeepLatest,
    /// The message is not queued, and its publisher learns that. For messages to single sessions.
    Refuse,
}

/// The check of clients' JSON Web Tokens (RFC 7519).
#[derive(Clone, Debug)]
pub struct Jwt {
    /// The secret of tokens with HS256, at least 32 bytes (RFC 7518, section 3.2).
    pub secret: Option<Secret>,
    /// The set of keys of other tokens.
    pub keys: Option<KeySource>,
    /// How often the set is read again. Tokens with an unknown key have it read at once.
    pub refresh: Duration,
    /// The only accepted issuer (`iss`), if any.
    pub issuer: Option<String>,
    /// The hub's names as an audience (`aud`). A token without audience is accepted only if there are none.
    pub audience: Vec<String>,
    /// How much clocks may differ.
    pub leeway: Duration,
    /// Whether clients need a token.
    pub required: bool,
    /// How long a WebSocket client may take to send a token as its first frame.
    pub wait: Duration,
}

impl Default for Jwt {
    fn default() -> Self {
        Jwt {
            secret: None,
            keys: None,
            refresh: Duration::from_secs(300),
            issuer: None,
            audience: Vec::new(),
            leeway: Duration::from_secs(10),
            required: true,
            wait: Duration::from_secs(10),
        }
    }
}

/// Where a set of keys is (RFC 7517, section 5).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeySource {
    /// In a file.
    File(PathBuf),
    /// At an HTTP or HTTPS address.
    Url(String),
}

/// How the hub drains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drain {
    /// The time limit. Close frames are spread over its first half, with at most 50 ms between two of a thread.
    pub timeout: Duration,
    /// The longest of the random times after which sessions are told to reconnect.
    pub retry_after: Duration,
    /// How long polling clients may still fetch their messages; at most a quarter of `timeout`. Only clients on a kept
    /// connection can.
    pub polls: Duration,
}

impl Default for Drain {
    fn default() -> Self {
        Drain { timeout: Duration::from_secs(20), retry_after: Duration::from_secs(5), polls: Duration::from_secs(1) }
    }
}

/// The cluster of nodes, connected through NATS.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// The NATS servers: `nats://host:port`, several with commas.
    pub nats: Secret,
    /// The name of the cluster. Nodes with the same name belong together.
    pub name: String,
    /// How long a publish waits for the receipts of other nodes.
    pub receipt_timeout: Duration,
    /// Where the histories of channels are: in a stream of JetStream, or if `None` in the memory of each node.
    pub history: Option<StreamSettings>,
}

/// The stream of JetStream that has the histories of all channels of a cluster. They apply when it is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamSettings {
    /// How many NATS servers have it, 1 to 5.
    pub replicas: usize,
    /// Whether it is in the servers' memory, and not in files.
    pub in_memory: bool,
}

impl Default for StreamSettings {
    fn default() -> Self {
        StreamSettings { replicas: 1, in_memory: false }
    }
}
