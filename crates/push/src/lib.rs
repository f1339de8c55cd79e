//! A push hub: it holds clients' connections, and tells their backend the truth about what reached them.
//!
//! **What it knows**: sessions and who they belong to, groups, what waits for whom and what became of it, the transports (WebSocket,
//! server-sent events, a stream of lines, polling), kuiperbelt's API and its own, callbacks to the backend, other nodes.
//!
//! **What it does not know**: flags, files, terminals. How HTTP is served is `oroshi-server`'s, how it is asked `oroshi-client`'s, frames
//! are `oroshi-websocket`'s.
//!
//! # How it works
//!
//! - A session lives on the core that accepted it. Where that is stands in a directory that all cores share.
//! - A message is framed once per transport, and the bytes are shared by all who get it.
//! - What is published goes into each session's queue; once per turn of its core's loop a session is written to, with all that has gathered.
//!   Large fan-outs are written in slices, and what is for few goes between them.
//! - Every message ends exactly once for every session it was for: written, dropped or closed. The receipt is the count.
//! - A session costs a task of a hundred bytes, some three hundred of its own, and no buffer while it is idle.
//!
//! # Where to read
//!
//! 1. [`Plan`] (`plan`), and [`Draft`] (`draft`), which becomes one; [`run()`]: the hub at work.
//! 2. `message`, `tally`, `outbox`: a message, what became of it, what waits for a session. No I/O.
//! 3. `session`: a connection and the task that reads it. `hub`: a core's sessions, and who is written to when.
//! 4. `publish` and `control`: what can be asked of a hub. `group`, `directory`, `node`: how what is asked finds sessions.
//! 5. `missed`: what other nodes published and did not come. `pressure`: publishers that are faster than readers, and what gives way where memory is short. `sweep`, `admission`, `drain`: time.
//!    `counts`: numbers.
//! 6. `http`: the requests. `origin`. `callbacks`: the backend. `cluster`: the other nodes.

mod backlog;
mod callbacks;
mod clock;
mod cluster;
mod counts;
mod draft;
mod http;
mod hub;
mod mailboxes;
mod message;
mod node;
mod plan;
mod publish;
mod run;
mod secrets;
mod session;
mod writer;

pub use draft::{Draft, Key, PlanError};
pub use plan::{
    Callbacks, Cluster, Door, Drain, GroupRule, Limits, Origins, Paths, Plan, Secret, Send, Serves, Slow, Transports,
};
pub use run::{Bound, RunError, run};
