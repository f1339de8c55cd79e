//! The description of a session for the API and other nodes.

use std::time::Duration;

/// A description of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SessionInfo {
    /// The transport's name.
    pub(crate) transport: &'static str,
    pub(crate) groups: Vec<Box<str>>,
    pub(crate) user: Option<Box<str>>,
    pub(crate) queued_messages: usize,
    pub(crate) queued_bytes: usize,
    /// The time since it was opened, to the tick.
    pub(crate) age: Duration,
}

/// The result of a request to close a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Closed {
    /// The session ends once its queue is written.
    Done,
    /// The session was ending already.
    Already,
    /// No session has this key.
    Unknown,
}

/// Why a poll gets no messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PollError {
    /// The session does not exist, or the token is wrong. The client does not learn which.
    Unknown,
    /// The session has ended.
    Gone,
    /// The client asked for the wrong batch; this one is next.
    Batch(u64),
    /// Another node may have the session, and did not answer.
    Unreached,
    /// Another node has the session, and its answer does not fit into a message of NATS.
    TooLarge,
    /// Too many requests wait for the answers of other nodes.
    Crowded,
}
