//! The state of a session that speaks the protocol of channels.

use std::rc::Rc;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::rights::Rights;
use crate::session::group::Group;

/// The channels of a session, and who its client is.
#[derive(Debug)]
pub(crate) struct Channels {
    /// The client's name for others. It lives as long as the session.
    pub(crate) client: u64,
    /// Proves that a command beside the connection comes from the client that connected.
    pub(crate) token: Box<str>,
    pub(crate) who: Who,
    pub(crate) subscriptions: Vec<Subscription>,
}

/// The identity of a client, by its token or by the backend.
#[derive(Clone, Debug, Default)]
pub(crate) struct Who {
    pub(crate) user: Option<Arc<str>>,
    /// The rights beside those of the rules.
    pub(crate) rights: Arc<Rights>,
    /// The tick in which the identity ends; 0 is never.
    pub(crate) until: u32,
}

/// A session's entry in a channel, or in all channels with a prefix.
#[derive(Debug)]
pub(crate) struct Subscription {
    pub(crate) group: Rc<Group>,
    /// Its index among the subscribers.
    pub(crate) at: usize,
    /// Whether the group's name is the prefix of a pattern.
    pub(crate) is_pattern: bool,
    /// The tick in which its token ends; 0 is never.
    pub(crate) until: u32,
}

impl Channels {
    /// Creates the state of a new session.
    pub(crate) fn new(who: Who) -> Self {
        let (client, token) = (crate::secrets::number(), crate::secrets::key().into());
        Channels { client, token, who, subscriptions: Vec::new() }
    }

    /// Returns what others see of the client.
    pub(crate) fn member(&self) -> Member {
        Member { client: self.client, user: self.who.user.clone() }
    }
}

/// A client as others see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) client: u64,
    pub(crate) user: Option<Arc<str>>,
}

impl Member {
    /// Returns it as clients get it.
    pub(crate) fn to_json(&self) -> Value {
        let client = format!("{:016x}", self.client);
        match &self.user {
            Some(user) => json!({ "client": client, "user": &**user }),
            None => json!({ "client": client }),
        }
    }
}
