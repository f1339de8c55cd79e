//! Requests of other nodes.

use std::collections::HashSet;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::time::timeout;

use crate::cluster::wire::{PartialReceipt, Reply, Request};
use crate::hub::Hub;
use crate::publish::Publish;
use crate::session::directory::Location;
use crate::session::info::PollError;

/// Executes another node's request. Calls `working` if that takes longer than half of `patience`.
pub(super) async fn perform(
    hub: &Rc<Hub>,
    request: Request,
    patience: Duration,
    working: impl FnOnce(),
) -> Option<Reply> {
    Some(match request {
        Request::Publish(publish) => Reply::Receipt(self::publish(hub, publish, patience / 2, working).await?),
        Request::Find { key } => Reply::Session(hub.find_here(&key).await),
        Request::Close { key, last, code, reason } => Reply::Closed(hub.close_here(&key, last, code, &reason).await),
        Request::Join { key, group } => Reply::Known(hub.join_group_here(&key, &group).await),
        Request::Leave { key, group } => Reply::Known(hub.leave_group_here(&key, &group).await),
        Request::GroupSize { group } => Reply::GroupSize(hub.group_size_here(&group).await),
        Request::UserSize { user } => Reply::GroupSize(hub.user_size_here(&user).await),
        Request::CloseUser { user, code, reason } => Reply::GroupSize(hub.close_user_here(&user, code, &reason).await),
        Request::Members { channel } => {
            let (count, members) = hub.members_here(&channel).await;
            Reply::Members(count, members)
        }
        // The answers may take as long as a poll waits, or as other nodes.
        Request::Poll { key, .. } if hub.node.directory.find(&key).is_none() => Reply::Polled(Err(PollError::Unknown)),
        Request::Poll { key, token, after } => {
            working();
            Reply::Polled(hub.poll_of_node(&key, token.into(), after).await.map(Box::from))
        }
        Request::Commands { key, .. } if hub.node.directory.find(&key).is_none() => Reply::Answers(None),
        Request::Commands { key, token, commands } => {
            working();
            let answers = hub.commands_of_node(&key, token, commands).await;
            Reply::Answers(answers.map(|answers| Value::from(answers).to_string().into()))
        }
        // The NATS thread handles these.
        Request::Claim { .. } => return None,
    })
}

/// Returns `None` if the subscribers have not got the message from JetStream in time: nothing is known of them.
async fn publish(hub: &Rc<Hub>, publish: Publish, soon: Duration, working: impl FnOnce()) -> Option<PartialReceipt> {
    let publish = Arc::new(publish);
    let mut publishing = pin!(hub.publish_here(&publish));
    let receipt = match timeout(soon, &mut publishing).await {
        Ok(receipt) => receipt,
        Err(_) => {
            working();
            publishing.await
        }
    };
    if receipt.is_late {
        return None;
    }
    let unknown: HashSet<&str> = receipt.unknown.iter().map(|key| &**key).collect();
    let keys = publish.to.sessions.iter().enumerate();
    Some(PartialReceipt {
        matched: receipt.matched,
        written: receipt.written,
        queued: receipt.queued,
        dropped: receipt.dropped,
        closed: receipt.closed,
        found: keys.filter(|(_, key)| !unknown.contains(&***key)).map(|(index, _)| index as u64).collect(),
        refused: receipt.refused,
    })
}

/// Another node's claim to a key that a session of this node has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claim {
    pub(super) location: Location,
    /// The greatest possible age of the other session.
    pub(super) age: Duration,
    /// Whether the other node has the greater number.
    pub(super) is_greater: bool,
}

impl Claim {
    /// Ends the session of this thread if it is the older one.
    pub(super) fn settle(self, hub: &Hub) {
        if let Some(session) = hub.at(self.location) {
            let age = hub.clock.tick() * hub.clock.now().saturating_sub(session.began);
            // Both ages are accurate to about a tick.
            if self.wins(age, hub.clock.tick() * 2) {
                hub.replace(self.location);
            }
        }
    }

    /// Returns whether a session of this age gives way.
    ///
    /// Of two sessions with about the same age, both nodes choose the same.
    fn wins(self, age: Duration, margin: Duration) -> bool {
        if age > self.age + margin {
            return true;
        }
        self.age <= age + margin && self.is_greater
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_younger_session_keeps_its_key_and_one_of_twins_does() {
        let wins = |age, claim_age, is_greater| {
            let claim = Claim {
                location: Location { thread: 0, slot: 0, generation: 0, of_page: false },
                age: Duration::from_millis(claim_age),
                is_greater,
            };
            claim.wins(Duration::from_millis(age), Duration::from_millis(100))
        };
        assert!(wins(5000, 10, false) && wins(5000, 10, true), "an old one gives way");
        assert!(!wins(10, 5000, true) && !wins(10, 5000, false), "a new one stays, however late the claim came");
        assert!(wins(50, 20, true) && !wins(20, 50, false), "twins");
    }
}
