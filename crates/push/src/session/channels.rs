//! The state of a session that speaks the protocol of channels.

use std::rc::Rc;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::jwt::Identity;
use crate::plan::Plan;
use crate::rights::{Right, Rights, may};
use crate::secrets::is_same;
use crate::session::group::Group;

/// The channels of a session, and who its client is.
#[derive(Debug)]
pub(crate) struct Channels {
    /// The client's name for others. It lives as long as the session.
    pub(crate) client: u64,
    /// Proves that a command beside the connection comes from the client that connected.
    token: [u8; 16],
    pub(crate) who: Who,
    pub(crate) subscriptions: Vec<Subscription>,
}

/// The identity of a client, by its token or by the backend.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Who {
    pub(crate) user: Option<Arc<str>>,
    /// The rights that the backend grants beside those of the rules.
    pub(crate) rights: Option<Arc<Rights>>,
    /// Whether its token names the user.
    pub(crate) is_of_token: bool,
    /// The rights that its token grants.
    pub(crate) token_rights: Option<Arc<Rights>>,
}

impl Who {
    /// Adds what a token says. Its user goes before the backend's.
    pub(crate) fn identify(&mut self, identity: &Identity) {
        if identity.user.is_some() {
            self.user.clone_from(&identity.user);
        }
        self.is_of_token = identity.user.is_some();
        self.token_rights = Some(Arc::clone(&identity.rights)).filter(|rights| !rights.is_empty());
    }

    /// Whether a token is another user's. One without a user may follow one without a user.
    pub(crate) fn is_other(&self, identity: &Identity) -> bool {
        match &identity.user {
            Some(user) => self.user.as_ref().is_some_and(|known| known != user),
            None => self.is_of_token,
        }
    }

    /// Returns whether the client may do something in a channel.
    pub(crate) fn may(&self, plan: &Plan, right: Right, channel: &str) -> bool {
        let none = Rights::default();
        let own = [&self.rights, &self.token_rights].map(|rights| rights.as_deref().unwrap_or(&none));
        may(plan, right, channel, self.user.is_some(), &own)
    }
}

/// A session's entry in a channel, or in all channels with a prefix.
#[derive(Debug)]
pub(crate) struct Subscription {
    pub(crate) group: Rc<Group>,
    /// Its index among the subscribers.
    pub(crate) at: usize,
    /// Whether the group's name is the prefix of a pattern.
    pub(crate) is_pattern: bool,
    /// Whether the backend made it, whatever rights the client has.
    pub(crate) by_backend: bool,
    /// Whether the channel's history counts it as a subscriber. It does not before JetStream was reached.
    pub(crate) is_counted: bool,
    /// Whether the client is told who comes and goes.
    pub(crate) watches: bool,
}

impl Channels {
    /// Creates the state of a new session.
    pub(crate) fn new(who: Who) -> Self {
        let (client, token) = (crate::secrets::number(), crate::secrets::bytes());
        Channels { client, token, who, subscriptions: Vec::new() }
    }

    /// Returns the client's name as clients get it.
    pub(crate) fn client_text(&self) -> String {
        format!("{:016x}", self.client)
    }

    /// Returns the token as the client gets it.
    pub(crate) fn token_text(&self) -> String {
        format!("{:032x}", u128::from_be_bytes(self.token))
    }

    /// Returns whether this is the token.
    pub(crate) fn has_token(&self, text: &str) -> bool {
        is_same(self.token_text().as_bytes(), text.as_bytes())
    }

    /// Adds a subscription. Most sessions have one, so there is no room for more before they come.
    pub(crate) fn add(&mut self, subscription: Subscription) {
        if self.subscriptions.is_empty() {
            self.subscriptions.reserve_exact(1);
        }
        self.subscriptions.push(subscription);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_channels_of_a_session_are_small() {
        assert!(size_of::<Channels>() <= 88, "{} bytes", size_of::<Channels>());
        assert!(size_of::<Subscription>() <= 24, "{} bytes", size_of::<Subscription>());
    }
}
