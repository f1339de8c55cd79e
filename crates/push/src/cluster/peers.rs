//! Which other nodes are there, and which of their requests are valid.
//!
//! No I/O and no clock: times are arguments, in milliseconds of this node's own clock.
//!
//! A node is known while its heartbeats come. Each heartbeat repeats the times of the heartbeats that its sender has
//! heard. From that a node learns the offset of the other's clock, and so the greatest age of its requests. It rejects
//! a request that is older than its sender waits: the sender has already counted this node as one that did not answer.

use std::collections::HashMap;

use crate::cluster::wire::{BroadcastCounts, Echo, Head};

/// The time between heartbeats, milliseconds.
pub(super) const HEARTBEAT_MS: u64 = 1000;

/// A node that is silent for longer is gone, milliseconds.
pub(super) const SILENCE_MS: u64 = 3 * HEARTBEAT_MS;

/// How long a silent node is remembered, milliseconds.
const MEMORY_MS: u64 = 60 * HEARTBEAT_MS;

/// The most nodes that are remembered, including silent ones. A heartbeat that names all has some kilobytes.
const MOST: usize = 256;

/// The most that clocks may drift apart between two heartbeats, milliseconds. Real ones drift a tenth of it.
const DRIFT_MS: i64 = 1;

/// The other nodes.
#[derive(Debug)]
pub(super) struct Peers {
    me: u64,
    peers: HashMap<u64, Peer>,
    /// Whether a node has not come back since the link was lost. What it published meanwhile is unknown.
    vanished: bool,
}

/// Another node.
#[derive(Debug)]
struct Peer {
    /// Its last heartbeat: when it was sent by its clock, and heard by this node's.
    sent_ms: u64,
    heard_ms: u64,
    /// Whether it counts as present.
    known: bool,
    /// Whether a heartbeat of this node has answered it, so that it accepts requests behind that.
    told: bool,
    /// Whether `told` was ever set. Such a node counts until it leaves or is forgotten.
    met: bool,
    /// Whether it was not heard since the link came back.
    unsure: bool,
    /// The number of its last request that was heard.
    number: u64,
    /// The number of its publishes, as far as this node knows.
    broadcasts: BroadcastCounts,
    /// The least offset of this node's clock from its clock; `None` until it has answered a heartbeat.
    offset_ms: Option<i64>,
    /// Whether `offset_ms` is from before the link was lost. One of the machines may have stood still since.
    is_old: bool,
}

/// The change after a heartbeat.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct HeartbeatChanges {
    /// The node is new, or back after a lost link. It should hear from this one at once.
    pub(super) appeared: bool,
    /// It has left.
    pub(super) left: bool,
    /// How many of its requests were lost on the way.
    pub(super) missed: u64,
}

/// A valid request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Valid {
    /// Its greatest possible age.
    pub(super) age_ms: u64,
    /// How many requests before it were lost on the way.
    pub(super) missed: u64,
}

/// Why a request is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rejection {
    /// The node is not known, or has not answered a heartbeat.
    Stranger,
    /// This request or a later one was heard before.
    Repeated,
    /// Its sender waits no more. `missed` requests before it were lost on the way.
    Stale { missed: u64 },
}

impl Peers {
    /// Creates an empty list; `me` is this node.
    pub(super) fn new(me: u64) -> Self {
        Peers { me, peers: HashMap::new(), vanished: false }
    }

    /// Records a heartbeat of another node.
    pub(super) fn heard(&mut self, head: Head, leaving: bool, echoes: &[Echo], now: u64) -> HeartbeatChanges {
        if leaving {
            let left = self.peers.remove(&head.sender).is_some_and(|peer| peer.known);
            return HeartbeatChanges { left, ..HeartbeatChanges::default() };
        }
        if !self.peers.contains_key(&head.sender) && !self.has_room() {
            return HeartbeatChanges::default();
        }
        let fresh = Peer {
            sent_ms: 0,
            heard_ms: 0,
            known: false,
            told: false,
            met: false,
            unsure: false,
            number: head.number,
            broadcasts: head.broadcasts,
            offset_ms: None,
            is_old: false,
        };
        let peer = self.peers.entry(head.sender).or_insert(fresh);
        let appeared = !std::mem::replace(&mut peer.known, true) || peer.unsure;
        let missed = head.number.saturating_sub(peer.number);
        peer.number = peer.number.max(head.number);
        peer.sent_ms = head.sent_ms;
        peer.heard_ms = now;
        peer.unsure = false;
        // It heard the echo after it was sent, or at once: the difference is the least offset.
        if let Some(echo) = echoes.iter().find(|echo| echo.node == self.me && echo.sent_ms <= now) {
            let least = echo.sent_ms as i64 - echo.heard_ms as i64;
            let known = peer.offset_ms.filter(|_| !std::mem::take(&mut peer.is_old));
            peer.offset_ms = Some(known.map_or(least, |offset| least.max(offset - DRIFT_MS)));
        }
        HeartbeatChanges { appeared, left: false, missed }
    }

    /// Returns whether nothing is remembered of a node.
    pub(super) fn is_new(&self, node: u64) -> bool {
        !self.peers.contains_key(&node)
    }

    /// Returns whether a node is present, as far as its heartbeats say.
    pub(super) fn is_present(&self, node: u64) -> bool {
        self.peers.get(&node).is_some_and(|peer| peer.known)
    }

    /// Returns, once, what a node has published and this one did not get, except `own`, which has just come.
    pub(super) fn lost(&mut self, head: &Head, own: BroadcastCounts) -> BroadcastCounts {
        let Some(peer) = self.peers.get_mut(&head.sender) else { return BroadcastCounts::default() };
        let beyond = |said: u64, heard: u64, own: u64| said.saturating_sub(heard.saturating_add(own));
        let lost = BroadcastCounts {
            all: beyond(head.broadcasts.all, peer.broadcasts.all, own.all),
            groups: beyond(head.broadcasts.groups, peer.broadcasts.groups, own.groups),
        };
        peer.broadcasts.all = peer.broadcasts.all.max(head.broadcasts.all);
        peer.broadcasts.groups = peer.broadcasts.groups.max(head.broadcasts.groups);
        lost
    }

    /// Checks a request whose sender waits for `patience` milliseconds.
    pub(super) fn check(&mut self, head: Head, patience: u64, now: u64) -> Result<Valid, Rejection> {
        let peer = self.peers.get_mut(&head.sender).ok_or(Rejection::Stranger)?;
        let offset = peer.offset_ms.ok_or(Rejection::Stranger)?;
        if head.number <= peer.number {
            return Err(Rejection::Repeated);
        }
        let missed = head.number - peer.number - 1;
        peer.number = head.number;
        let sent = head.sent_ms as i64 + offset;
        let age_ms = u64::try_from(now as i64 - sent).unwrap_or(0);
        if age_ms > patience { Err(Rejection::Stale { missed }) } else { Ok(Valid { age_ms, missed }) }
    }

    /// Removes nodes that were silent for too long from the known ones, and returns them.
    pub(super) fn forget_silent(&mut self, now: u64) -> Vec<u64> {
        let mut gone = Vec::new();
        self.peers.retain(|&node, peer| {
            let silent = now.saturating_sub(peer.heard_ms);
            if peer.known && silent > SILENCE_MS {
                (peer.known, peer.told) = (false, false);
                self.vanished |= peer.unsure;
                gone.push(node);
            }
            silent <= MEMORY_MS
        });
        gone
    }

    /// Restarts the silence of every node after the link came back.
    pub(super) fn resume(&mut self, now: u64) {
        for peer in self.peers.values_mut() {
            peer.is_old = true;
            peer.unsure = true;
            if peer.known {
                peer.heard_ms = now;
            }
        }
    }

    /// Returns the nodes that are present and will reply.
    ///
    /// Nodes that were not heard since the link came back are not among them, as they may be gone.
    pub(super) fn known(&self) -> Vec<u64> {
        self.peers.iter().filter(|(_, peer)| peer.told && !peer.unsure).map(|(&node, _)| node).collect()
    }

    /// Returns how many nodes have gone silent and have not left. They may come back.
    pub(super) fn absent(&self) -> usize {
        self.peers.values().filter(|peer| peer.met && (!peer.told || peer.unsure)).count()
    }

    /// Returns, once, whether a node from before the link was lost has not come back.
    pub(super) fn take_vanished(&mut self) -> bool {
        std::mem::take(&mut self.vanished)
    }

    /// Returns the echoes for a heartbeat of this node that goes out now.
    pub(super) fn echoes(&mut self) -> Vec<Echo> {
        let known = self.peers.iter_mut().filter(|(_, peer)| peer.known);
        let echo = |(&node, peer): (&u64, &mut Peer)| {
            (peer.told, peer.met) = (true, true);
            Echo { node, sent_ms: peer.sent_ms, heard_ms: peer.heard_ms }
        };
        known.map(echo).collect()
    }

    /// Returns whether one more node can be remembered. The node that was silent longest makes room.
    fn has_room(&mut self) -> bool {
        if self.peers.len() < MOST {
            return true;
        }
        let silent = self.peers.iter().filter(|(_, peer)| !peer.known).min_by_key(|(_, peer)| peer.heard_ms);
        silent.map(|(&node, _)| node).is_some_and(|node| self.peers.remove(&node).is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(sender: u64, number: u64, sent_ms: u64) -> Head {
        Head { sender, number, sent_ms, broadcasts: BroadcastCounts::default() }
    }

    /// Node 1, and node 2 whose clock is 500 ms behind; a message takes 10 ms.
    fn met() -> Peers {
        let mut peers = Peers::new(1);
        // Heard at 1010 of this clock, 510 of that one, which heard at 500 what was sent at 990 here.
        let echo = Echo { node: 1, sent_ms: 990, heard_ms: 500 };
        assert_eq!(
            peers.heard(head(2, 0, 500), false, &[echo], 1010),
            HeartbeatChanges { appeared: true, ..HeartbeatChanges::default() }
        );
        peers
    }

    #[test]
    fn a_node_is_believed_once_it_has_answered() {
        let mut peers = Peers::new(1);
        assert_eq!(peers.check(head(2, 1, 0), 1000, 5), Err(Rejection::Stranger));
        assert!(peers.heard(head(2, 0, 0), false, &[], 10).appeared);
        assert_eq!(peers.check(head(2, 1, 0), 1000, 10), Err(Rejection::Stranger), "its clock is not known");
        assert_eq!(peers.echoes(), [Echo { node: 2, sent_ms: 0, heard_ms: 10 }]);
        let echo = Echo { node: 1, sent_ms: 11, heard_ms: 5 };
        assert!(!peers.heard(head(2, 0, 6), false, &[echo], 12).appeared);
        assert_eq!(peers.check(head(2, 1, 7), 1000, 20), Ok(Valid { age_ms: 7, missed: 0 }));
    }

    #[test]
    fn nothing_is_taken_twice_and_nothing_that_came_late() {
        let mut peers = met();
        assert_eq!(peers.check(head(2, 1, 520), 1000, 1030), Ok(Valid { age_ms: 20, missed: 0 }));
        assert_eq!(peers.check(head(2, 1, 520), 1000, 1030), Err(Rejection::Repeated));
        assert_eq!(peers.check(head(2, 4, 520), 1000, 1040), Ok(Valid { age_ms: 30, missed: 2 }));
        assert_eq!(peers.check(head(2, 3, 520), 1000, 1040), Err(Rejection::Repeated), "out of order");
        assert_eq!(peers.check(head(2, 5, 600), 1000, 9000), Err(Rejection::Stale { missed: 0 }));
        // A heartbeat that was delayed with it has the same clock offset.
        let echo = Echo { node: 1, sent_ms: 1020, heard_ms: 530 };
        peers.heard(head(2, 6, 610), false, &[echo], 9000);
        assert_eq!(peers.check(head(2, 8, 620), 1000, 9001), Err(Rejection::Stale { missed: 1 }));
        assert!(peers.check(head(2, 9, 8500), 1000, 9001).is_ok());
    }

    #[test]
    fn what_was_lost_is_counted_once() {
        let mut peers = met();
        assert_eq!(peers.heard(head(2, 3, 600), false, &[], 1100).missed, 3);
        assert_eq!(peers.heard(head(2, 3, 700), false, &[], 1200).missed, 0);
        assert_eq!(peers.check(head(2, 5, 700), 1000, 1210).map(|taken| taken.missed), Ok(1));
    }

    #[test]
    fn what_was_published_and_not_heard_is_known_once() {
        let said = |all, groups| Head { broadcasts: BroadcastCounts { all, groups }, ..head(2, 9, 600) };
        let one = |all, groups| BroadcastCounts { all, groups };
        assert_eq!(Peers::new(1).lost(&said(5, 5), one(0, 0)), one(0, 0), "of a stranger nothing is known");
        let mut peers = met();
        assert_eq!(peers.lost(&said(1, 0), one(1, 0)), one(0, 0), "it has come");
        assert_eq!(peers.lost(&said(3, 2), one(1, 0)), one(1, 2));
        assert_eq!(peers.lost(&said(3, 2), one(0, 0)), one(0, 0), "once");
        assert_eq!(peers.lost(&said(1, 1), one(1, 0)), one(0, 0), "out of order");
        // The counts of a new node are its start.
        peers.heard(Head { broadcasts: one(7, 7), ..head(3, 9, 0) }, false, &[], 700);
        assert_eq!(peers.lost(&Head { broadcasts: one(7, 8), ..head(3, 10, 0) }, one(0, 0)), one(0, 1));
    }

    #[test]
    fn who_went_silent_counts_until_it_leaves_and_who_does_not_come_back_is_told() {
        let mut peers = met();
        assert_eq!(peers.absent(), 0, "it does not believe this node yet");
        peers.echoes();
        assert_eq!(peers.forget_silent(1011 + SILENCE_MS), [2]);
        assert_eq!((peers.absent(), peers.known().len(), peers.take_vanished()), (1, 0, false), "it just went silent");
        peers.heard(head(2, 0, 4500), false, &[], 5000);
        peers.echoes();
        assert_eq!((peers.absent(), peers.known().len()), (0, 1));
        peers.resume(6000);
        assert_eq!((peers.absent(), peers.known().len()), (1, 0), "nobody waits for one that may not be back");
        assert!(peers.heard(head(2, 0, 5500), false, &[], 6500).appeared && peers.known() == [2]);
        peers.resume(7000);
        peers.forget_silent(7001 + SILENCE_MS);
        assert!(peers.take_vanished() && !peers.take_vanished() && peers.absent() == 1);
        peers.heard(head(2, 0, 0), true, &[], 11_000);
        assert_eq!(peers.absent(), 0, "it has left");
        peers.heard(head(2, 0, 0), false, &[], 12_000);
        peers.echoes();
        peers.forget_silent(12_001 + MEMORY_MS);
        assert_eq!(peers.absent(), 0, "it is forgotten");
    }

    #[test]
    fn who_is_silent_is_forgotten_and_known_again() {
        let mut peers = met();
        peers.check(head(2, 1, 520), 1000, 1030).unwrap();
        assert!(peers.forget_silent(1010 + SILENCE_MS).is_empty());
        assert_eq!(peers.forget_silent(1011 + SILENCE_MS), [2]);
        assert!(peers.forget_silent(1012 + SILENCE_MS).is_empty(), "once");
        assert!(peers.known().is_empty() && peers.echoes().is_empty());
        assert_eq!(
            peers.check(head(2, 1, 4100), 1000, 4700),
            Err(Rejection::Repeated),
            "what it said is not forgotten"
        );
        assert!(peers.heard(head(2, 1, 4200), false, &[], 4800).appeared);
        assert!(peers.known().is_empty(), "it does not believe this node yet");
        assert_eq!(peers.echoes(), [Echo { node: 2, sent_ms: 4200, heard_ms: 4800 }]);
        assert_eq!(peers.known(), [2]);
        peers.resume(50_000);
        assert!(peers.forget_silent(50_000 + SILENCE_MS).is_empty(), "nobody could be heard");
        assert!(peers.heard(head(2, 0, 0), true, &[], 51_000).left);
        assert!(!peers.heard(head(2, 0, 0), true, &[], 51_000).left && peers.known().is_empty());
    }

    #[test]
    fn clocks_drift_and_lies_change_nothing() {
        let mut peers = met();
        // An answer that took long shows a smaller offset, which the larger one overrides.
        let slow = Echo { node: 1, sent_ms: 1000, heard_ms: 3500 };
        peers.heard(head(2, 0, 3500), false, &[slow], 4010);
        assert_eq!(peers.check(head(2, 1, 3600), 1000, 4110), Ok(Valid { age_ms: 21, missed: 0 }));
        // Nobody can have heard what was not sent.
        let lie = Echo { node: 1, sent_ms: 1 << 40, heard_ms: 0 };
        peers.heard(head(2, 1, 3600), false, &[lie], 4120);
        assert_eq!(peers.check(head(2, 2, 3610), 1000, 4120), Ok(Valid { age_ms: 21, missed: 0 }));
    }

    #[test]
    fn a_machine_that_stood_still_is_believed_anew() {
        let mut peers = met();
        // This one stood still for a minute, so the other's clock is that much ahead now.
        peers.resume(2000);
        let echo = Echo { node: 1, sent_ms: 2010, heard_ms: 61_530 };
        peers.heard(head(2, 0, 61_540), false, &[echo], 2040);
        assert_eq!(peers.check(head(2, 1, 61_600), 1000, 4000), Err(Rejection::Stale { missed: 0 }));
        assert_eq!(peers.check(head(2, 2, 63_500), 1000, 4000), Ok(Valid { age_ms: 20, missed: 0 }));
    }

    #[test]
    fn no_number_of_nodes_fills_the_memory() {
        let mut peers = Peers::new(1);
        for node in 0..1000 {
            peers.heard(head(node + 10, 0, 0), false, &[], node);
        }
        assert_eq!(peers.echoes().len(), MOST);
        assert_eq!(peers.forget_silent(900 + SILENCE_MS).len(), MOST);
        assert!(peers.heard(head(5, 0, 0), false, &[], 5000).appeared, "a silent one makes room");
        assert!(peers.peers.len() == MOST && peers.echoes().len() == 1 && peers.known() == [5]);
    }
}
