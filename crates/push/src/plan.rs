//! What a hub is told to be: checked, every default filled in. `draft` is the way here.

use std::time::Duration;

use oroshi_net::CpuList;
use oroshi_words::Secret;

/// A hub, as it is to run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How many threads hold sessions, each on a core; at least 1.
    pub threads: usize,
    /// The CPUs that the threads are pinned to, if any.
    pub cpus: Option<CpuList>,
    /// Where it listens, and what for.
    pub doors: Vec<Door>,
    /// Where on HTTP things are found.
    pub paths: Paths,
    /// The header that names sessions, in callbacks and in `/send` and `/close`.
    pub session_header: String,
    /// How backends reach this hub: the value of `X-Kuiperbelt-Endpoint`.
    pub endpoint: String,
    /// What the backend is asked and told.
    pub callbacks: Callbacks,
    /// Connections that clients may have together through doors that are not for operators alone; `None`: no bound. The rest of the
    /// process's descriptors is for operators, callbacks and other nodes. More than `limits.sessions`, so that those can be answered who are
    /// too many.
    pub connections: Option<usize>,
    /// Connections that there may be at all doors for operators together, of which each door has its share; `None`: no bound.
    pub admin_connections: Option<usize>,
    /// Whose pages may connect.
    pub origins: Origins,
    /// How clients may connect.
    pub transports: Transports,
    /// The subprotocols of WebSocket that are agreed to (RFC 6455 section 1.9), unless the backend chooses one.
    pub subprotocols: Vec<String>,
    /// Sizes, counts and times.
    pub limits: Limits,
    /// What `/send` does about sessions it does not know.
    pub send: Send,
    /// Rules for groups; the first whose pattern fits a group holds for it.
    pub groups: Vec<GroupRule>,
    /// What `Authorization: Bearer` must say on everything but connecting, polling and `/ping`. Never shown.
    pub token: Option<Secret>,
    /// How the hub ends.
    pub drain: Drain,
    /// The other nodes, if there are any.
    pub cluster: Option<Cluster>,
    /// Restores habits of kuiperbelt's that are mended by default: no close frame after a failed establish callback or at
    /// `/close`, the idle limit or the end; an empty message at the end; nothing sent before the establish callback has agreed; a key that
    /// `/send` names twice gets the message twice; 400 to what asks for no WebSocket.
    pub compat_ekbo: bool,
    /// Whether every request to the API is told (by `tracing`, target `oroshi_push::access`), but for connecting, polling and `/stats`.
    pub access_log: bool,
    /// Every message is sent back to whoever sent it. For tests of the protocol.
    pub echo: bool,
}

impl Default for Plan {
    /// One thread, no doors.
    fn default() -> Self {
        Plan {
            threads: 1,
            cpus: None,
            doors: Vec::new(),
            paths: Paths::default(),
            session_header: String::from("X-Kuiperbelt-Session"),
            endpoint: String::from("localhost:9180"),
            callbacks: Callbacks::default(),
            connections: None,
            admin_connections: None,
            origins: Origins::Any,
            transports: Transports::ALL,
            subprotocols: Vec::new(),
            limits: Limits::default(),
            send: Send::default(),
            groups: Vec::new(),
            token: None,
            drain: Drain::default(),
            cluster: None,
            compat_ekbo: false,
            access_log: false,
            echo: false,
        }
    }
}

impl Plan {
    /// The rule for a group.
    #[must_use]
    pub fn group_rule(&self, group: &str) -> Option<&GroupRule> {
        self.groups.iter().find(|rule| rule.fits(group))
    }
}

/// A place to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Door {
    /// As [`oroshi_net::BoundListener::bind`] takes it.
    pub address: String,
    /// What is served there.
    pub serves: Serves,
}

/// Who comes in through a door.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Serves {
    /// Clients and backends alike, as in kuiperbelt.
    Everything,
    /// Clients: connecting, polling, `/ping`.
    Sessions,
    /// Backends and operators: all but connecting and polling.
    Admin,
}

/// Where things are found. The native API (`/publish`, `/sessions`, `/groups`, `/status`, `/metrics`) stays where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paths {
    /// `GET`: opens a session.
    pub connect: String,
    /// `GET`: takes the messages of a session that polls.
    pub poll: String,
    /// `POST`: to sessions named by headers.
    pub send: String,
    /// `POST`: a last message, then the end.
    pub close: String,
    /// `POST`: to everybody.
    pub broadcast: String,
    /// Whether it is alive.
    pub ping: String,
    /// Six counters.
    pub stats: String,
}

impl Default for Paths {
    fn default() -> Self {
        Paths {
            connect: String::from("/connect"),
            poll: String::from("/poll"),
            send: String::from("/send"),
            close: String::from("/close"),
            broadcast: String::from("/broadcast"),
            ping: String::from("/ping"),
            stats: String::from("/stats"),
        }
    }
}

/// What the backend is asked and told, by HTTP.
#[derive(Clone, Debug)]
pub struct Callbacks {
    /// Asked before a session opens; without it everybody may connect, with a key of the hub's making.
    pub connect: Option<String>,
    /// Told when a session is open; a refusal ends it.
    pub establish: Option<String>,
    /// Told what a session says; without it that is read and thrown away.
    pub receive: Option<String>,
    /// Told when a session has ended by itself.
    pub close: Option<String>,
    /// How long one try may take, from the moment when there is a connection for it.
    pub timeout: Duration,
    /// How long a client waits until the backend is asked about it, because it is asked about as many as it may. Then it is answered 503.
    pub queue: Duration,
    /// How often what failed is tried again: establish, receive, close.
    pub retries: u32,
    /// How many connections a core keeps to the backend at most.
    pub connections: usize,
    /// The largest answer to the connect callback, bytes.
    pub answer_bytes: usize,
    /// Headers that are set on the way to the backend; `None` takes one away (kuiperbelt's `proxy_set_header`).
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

/// Whose pages may connect. Requests without `Origin` do not come from a page, and may.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origins {
    /// Everybody's.
    Any,
    /// Those whose origin is that of the request: scheme, host and port.
    SameOrigin,
    /// Those whose host name is that of the request.
    SameHostname,
    /// Those of these origins, as browsers write them: `https://example.org`.
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
    /// Each of them.
    pub const ALL: Transports = Transports { websocket: true, sse: true, stream: true, poll: true };
    /// None of them.
    pub const NONE: Transports = Transports { websocket: false, sse: false, stream: false, poll: false };
    /// What kuiperbelt offers.
    pub const WEBSOCKET: Transports = Transports { websocket: true, ..Transports::NONE };

    /// Those that are offered, as configurations and metrics call them.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        let Transports { websocket, sse, stream, poll } = self;
        let all = [("websocket", websocket), ("sse", sse), ("stream", stream), ("poll", poll)];
        all.into_iter().filter(|(_, offered)| *offered).map(|(name, _)| name)
    }

    /// Adds one by its name. False: there is none of this name.
    pub fn add(&mut self, name: &str) -> bool {
        let place = match name {
            "websocket" => &mut self.websocket,
            "sse" => &mut self.sse,
            "stream" => &mut self.stream,
            "poll" => &mut self.poll,
            _ => return false,
        };
        *place = true;
        true
    }
}

/// Sizes, counts and times. A time of `None` is no limit.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Sessions of the process, over all its cores.
    pub sessions: usize,
    /// New sessions per second, over all cores. Whoever comes beyond that is answered 503 with `Retry-After`.
    pub connects_per_second: Option<u32>,
    /// The largest message from a session, bytes.
    pub message_bytes: usize,
    /// The largest message to sessions, bytes.
    pub publish_bytes: u64,
    /// What may wait for one session, bytes. Where nothing waits, one message of any length may; with [`Slow::DropOldest`] and
    /// [`Slow::KeepLatest`] also where nothing waits that can be dropped.
    pub session_queue_bytes: usize,
    /// What may wait for one session, messages.
    pub session_queue_messages: usize,
    /// What may wait for all sessions together, bytes. Beyond that those give way that queue most: by their rule they lose their oldest
    /// messages, or end.
    pub total_queue_bytes: usize,
    /// How long a session may be silent in both directions. Pings count as life.
    pub idle: Option<Duration>,
    /// How often a session is pinged that is otherwise silent.
    pub ping: Option<Duration>,
    /// How long the answer to a ping may take.
    pub pong: Duration,
    /// How long a session may take none of what waits for it.
    pub write: Duration,
    /// How long a session that polls may stay away.
    pub poll_absence: Duration,
    /// How long a poll waits for a message.
    pub poll_wait: Duration,
    /// How long a peer that was sent a close frame is waited for.
    pub close: Duration,
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
        }
    }
}

/// How `/send` behaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Send {
    /// One unknown session, and nothing is sent to anybody (kuiperbelt's `strict_broadcast`).
    pub strict: bool,
    /// How long a session whose queue is full is waited for.
    pub timeout: Duration,
}

impl Default for Send {
    fn default() -> Self {
        Send { strict: false, timeout: Duration::from_secs(5) }
    }
}

/// What holds for the groups that a pattern fits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupRule {
    /// A name, or the beginning of one and `*`.
    pub pattern: String,
    /// What becomes of what a session does not take in time.
    pub slow: Slow,
    /// Whether a client may join by asking for it (`?group=` when it connects).
    pub client_may_join: bool,
}

impl GroupRule {
    /// Whether the rule is about this group.
    #[must_use]
    pub fn fits(&self, group: &str) -> bool {
        match self.pattern.strip_suffix('*') {
            Some(prefix) => group.starts_with(prefix),
            None => group == self.pattern,
        }
    }
}

/// What becomes of a message when the session's queue is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Slow {
    /// The session ends at once, as it would not read a close frame either, and may come back. Broadcasts and groups without a rule.
    #[default]
    Disconnect,
    /// The oldest messages that wait make room; the session is told how many it lost.
    DropOldest,
    /// A newer message takes the place of one with the same key that waits, full or not; then as with `DropOldest`.
    KeepLatest,
    /// This one is not queued, and its publisher is told. What is sent to single sessions.
    Refuse,
}

/// How the hub ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drain {
    /// How long that may take; close frames are spread over the first half of it, with at most 50 ms between two of a thread.
    pub timeout: Duration,
    /// Sessions are told to come back after a time of their own, up to this.
    pub retry_after: Duration,
    /// So long may clients that poll still ask for what waits for them; at most a quarter of the whole. Only those can
    /// whose connection is kept.
    pub polls: Duration,
}

impl Default for Drain {
    fn default() -> Self {
        Drain { timeout: Duration::from_secs(20), retry_after: Duration::from_secs(5), polls: Duration::from_secs(1) }
    }
}

/// The other nodes, found through NATS.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// `nats://host:port`, several with commas.
    pub nats: Secret,
    /// Nodes of one name belong together.
    pub name: String,
    /// How long a publish waits for the receipts of the others.
    pub receipt_timeout: Duration,
}
