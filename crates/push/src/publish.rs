//! A publish: the message, its sessions, and the receipt.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use thiserror::Error;

use crate::message::Message;

/// A message to publish.
#[derive(Clone, Debug)]
pub(crate) struct Publish {
    pub(crate) message: Arc<Message>,
    pub(crate) to: Targets,
    /// Keys of sessions that do not get it.
    pub(crate) except: Vec<Box<str>>,
    pub(crate) wait: ReceiptWait,
    /// How long the publish waits for sessions with full queues, and for what `wait` says.
    pub(crate) deadline: Duration,
    /// Its sequence numbers in JetStream, from which the subscribers of channels get it; empty without JetStream.
    pub(crate) stored: Vec<u64>,
}

/// How long a publisher waits for its receipt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ReceiptWait {
    /// Until the message is in every queue.
    Queued,
    /// Until one write was tried to every session. Sessions that read have it then.
    #[default]
    Attempted,
    /// Until it is written, dropped or closed for every session, or a deadline has passed.
    Written,
}

/// The sessions that a message is for. A session that is matched twice gets it once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Targets {
    pub(crate) all: bool,
    pub(crate) groups: Vec<Box<str>>,
    /// By key.
    pub(crate) sessions: Vec<Box<str>>,
    /// All sessions of these users.
    pub(crate) users: Vec<Box<str>>,
}

/// The outcome of a publish, in sessions, as in the API's JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Receipt {
    /// Names the publish in the logs of every node.
    pub(crate) id: String,
    /// Sessions that the message was for.
    pub(crate) matched: u64,
    /// Sessions whose kernel has taken it; polling sessions that have acknowledged it.
    pub(crate) written: u64,
    /// Sessions that still have it in their queue.
    pub(crate) queued: u64,
    /// Sessions that lost it: a newer message replaced it, or the queue was full.
    pub(crate) dropped: u64,
    /// Sessions that ended first.
    pub(crate) closed: u64,
    /// Keys that no session has, on the nodes that answered.
    pub(crate) unknown: Vec<Box<str>>,
    /// Keys of sessions whose queue was full until the deadline. They are among the dropped.
    pub(crate) refused: Vec<Box<str>>,
    pub(crate) nodes: Nodes,
    /// Whether this node's subscribers have not got it from JetStream yet, so that they are not counted.
    #[serde(skip)]
    pub(crate) is_late: bool,
}

/// The nodes that a publish was for. If all its sessions are on this node, it is for no other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Nodes {
    /// This node, and the others that it knows.
    pub(crate) known: u32,
    /// This node, and the others whose receipts are in this one.
    pub(crate) answered: u32,
    /// Whether this node was connected to NATS; `None` without a cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) connected: Option<bool>,
}

/// Why a message was not published.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum PublishError {
    #[error(transparent)]
    Overloaded(#[from] Overloaded),
    #[error(transparent)]
    NotStored(#[from] StoreError),
}

/// Why a message is not in the history that JetStream keeps.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum StoreError {
    /// No subscriber gets it. Publish it again once JetStream is back.
    #[error("JetStream, which keeps the channel's history, is not reached: publish again in a second")]
    Unreached,
    /// Subscribers may get it, or not. A second publish may reach them twice.
    #[error("JetStream, which keeps the channel's history, has not confirmed the message: nobody knows if it has it")]
    Unconfirmed,
    /// It never fits.
    #[error("the message and its channel's name are larger than NATS takes (its max_payload)")]
    TooLarge,
}

/// More bytes wait for sessions than may. Publish again in a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{queued} bytes wait for sessions, of at most {most}: publish again in a second")]
pub(crate) struct Overloaded {
    pub(crate) queued: usize,
    pub(crate) most: usize,
}
