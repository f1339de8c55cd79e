//! A push hub: it holds clients' connections, sends them messages, and tells the backend what reached them.
//!
//! **What it knows**: sessions and their keys, groups, queues, receipts, the transports (WebSocket, server-sent events,
//! a stream of lines, polling), kuiperbelt's API and its own, callbacks to the backend, other nodes.
//!
//! **What it does not know**: flags, terminals, files (but those of certificates, and of the keys that verify tokens).
//! `oroshi-server` serves HTTP, `oroshi-client` sends requests, and `oroshi-websocket` has the frames.
//!
//! # How it works
//!
//! - A session lives on the thread that accepted it. All threads share a directory from keys to threads.
//! - A message is framed once per transport. Queues hold references to it.
//! - A publish puts its message into each session's queue. Once per turn of the thread's loop, the writer writes to
//!   each session with all that has gathered. It writes large fan-outs in slices, and messages for few sessions go
//!   between the slices.
//! - A channel is a group to which clients subscribe. If it has a history, all threads get its messages in one order.
//! - A message ends exactly once per session: written, dropped or closed. The receipt is that count.
//! - A session costs a task of a hundred bytes, three hundred bytes of its own, and no buffer while it is idle.
//!
//! # Where to read
//!
//! A file imports only files of its own layer or of layers above it in this list.
//!
//! 1. Values. [`Plan`] (`plan`), and [`Draft`] (`draft`), which becomes one. `message`: a message and its frames, which
//!    `compression` compresses. `delta`: a publication as what differs from the one before.
//!    `publish`: a publish, its targets, its receipt. `rights`: who may do what in a channel. `jwt`: the tokens of
//!    clients. `rates`: what clients may send per second. `secrets`: keys and tokens of the hub. `tls`: its
//!    certificates.
//! 2. Sessions and their queues. `session`: a session; below it `tally` (the outcomes of a message), `outbox` (the
//!    queue, no I/O), `group`, `channels` (the state of a client that subscribes), `directory`, `info`. `session` and
//!    `group` import each other, as a group lists its members and a session its groups: that circle is the data itself.
//! 3. What threads share. `history`: the numbered messages of channels. `presence`: who subscribes to channels that
//!    clients watch. `identity`: the keys that verify tokens. `idempotency`: publishes that come again. `arrivals`:
//!    messages from JetStream that await their receipt. `node`: the plan, the directory, the load of each thread, the
//!    link to other nodes (`cluster::link` and `cluster::wire`, which know no hub). `mailboxes`: work from thread to
//!    thread, by closures, so that it need not know the hub.
//! 4. The writer of a thread. `clock`, `backlog` (what waits, and who waits for room), `writer` (into queues, out to
//!    sockets).
//! 5. The hub of a thread. `callbacks`, `counts`, then `hub`: the only way in for the next layer. The files in `hub/`
//!    are parts of its `impl`, one per topic.
//! 6. The outside. `http`: the API. `cluster`: requests of other nodes. [`run()`] starts it all.

mod arrivals;
mod backlog;
mod callbacks;
mod checks;
mod clock;
mod cluster;
mod compression;
mod counts;
mod delta;
mod draft;
mod history;
mod http;
mod hub;
mod idempotency;
mod identity;
mod jwt;
mod mailboxes;
mod message;
mod node;
mod plan;
mod presence;
mod publish;
mod rates;
mod rights;
mod run;
mod secrets;
mod session;
mod tls;
mod writer;

pub use draft::Draft;
pub use plan::{
    Access, Callbacks, ClientRates, Cluster, Drain, GroupRule, HistoryRule, Jwt, KeySource, Limits, Listener, Origins,
    Paths, Plan, SendSettings, Serves, SlowPolicy, StreamSettings, Transports,
};
pub use run::{OpenListener, RunError, run};
pub use tls::Tls;
