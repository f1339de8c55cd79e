//! Which other nodes there are, and what of theirs is to be believed. No I/O, no clock: times are arguments, in milliseconds of this node's
//! own clock.
//!
//! A node is known as long as its heartbeats come. Each heartbeat says which others its sender has heard, with their stamps: so a node
//! sees from the answer to its own how the other's clock stands, and how old whatever comes from there is at most. What is
//! older than its sender waits for is let be: the sender has told its publisher already that this node did not answer.

use std::collections::HashMap;

use crate::cluster::wire::{Echo, Head, Wide};

/// How often a node says that it is there, milliseconds.
pub(super) const HEARTBEAT_MS: u64 = 1000;

/// After so long without a word a node is taken for gone.
pub(super) const SILENCE_MS: u64 = 3 * HEARTBEAT_MS;

/// For so long it is remembered what a silent node has said last.
const MEMORY_MS: u64 = 60 * HEARTBEAT_MS;

/// So many are kept in mind, silent ones too. A heartbeat that names them all has some kilobytes.
const MOST: usize = 256;

/// By so much a clock may drift against another between two heartbeats, milliseconds; real ones stay a factor of ten below.
const DRIFT_MS: i64 = 1;

/// The other nodes.
#[derive(Debug)]
pub(super) struct Peers {
    me: u64,
    peers: HashMap<u64, Peer>,
    /// Whether a node has not come back since nobody could be heard: what it published meanwhile nobody knows.
    vanished: bool,
}

#[derive(Debug)]
struct Peer {
    /// Its last heartbeat: its stamp, and when it was heard.
    sent_ms: u64,
    heard_ms: u64,
    /// Whether it is taken to be there.
    known: bool,
    /// Whether a heartbeat of this node's has answered it, so that it will believe what comes behind.
    told: bool,
    /// Whether it was ever told, so that it counts among the nodes until it leaves or is forgotten.
    met: bool,
    /// Whether it was not heard since nobody could be.
    unsure: bool,
    /// The last request of its that was heard.
    number: u64,
    /// What it has published that was heard of.
    wide: Wide,
    /// This node's clock less its clock, at the least; `None` until it has answered a heartbeat.
    offset_ms: Option<i64>,
    /// Whether `offset_ms` is from before a time when nobody could be heard, in which one of the machines may have stood still.
    is_old: bool,
}

/// What a heartbeat changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Heard {
    /// The node was not known, or not heard since nobody could be: it should hear from this one at once.
    pub(super) came: bool,
    /// It has left.
    pub(super) left: bool,
    /// So many of its requests were lost on the way.
    pub(super) missed: u64,
}

/// A request that is to be carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Taken {
    /// It is so old at most.
    pub(super) age_ms: u64,
    /// So many before it were lost on the way.
    pub(super) missed: u64,
}

/// Why a request is let be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LetBe {
    /// The node is not known, or has not answered a heartbeat.
    Stranger,
    /// It was heard before, or a later one was.
    Repeated,
    /// Its sender waits no more. So many before it were lost on the way.
    Stale { missed: u64 },
}

impl Peers {
    /// `me` is this node.
    pub(super) fn new(me: u64) -> Self {
        Peers { me, peers: HashMap::new(), vanished: false }
    }

    /// A heartbeat of another node.
    pub(super) fn heard(&mut self, head: Head, leaving: bool, echoes: &[Echo], now: u64) -> Heard {
        if leaving {
            let left = self.peers.remove(&head.sender).is_some_and(|peer| peer.known);
            return Heard { left, ..Heard::default() };
        }
        if !self.peers.contains_key(&head.sender) && !self.has_room() {
            return Heard::default();
        }
        let fresh = Peer {
            sent_ms: 0,
            heard_ms: 0,
            known: false,
            told: false,
            met: false,
            unsure: false,
            number: head.number,
            wide: head.wide,
            offset_ms: None,
            is_old: false,
        };
        let peer = self.peers.entry(head.sender).or_insert(fresh);
        let came = !std::mem::replace(&mut peer.known, true) || peer.unsure;
        let missed = head.number.saturating_sub(peer.number);
        peer.number = peer.number.max(head.number);
        peer.sent_ms = head.sent_ms;
        peer.heard_ms = now;
        peer.unsure = false;
        // What it has heard was sent before, or at best just then: that is the least that this clock is ahead.
        if let Some(echo) = echoes.iter().find(|echo| echo.node == self.me && echo.sent_ms <= now) {
            let least = echo.sent_ms as i64 - echo.heard_ms as i64;
            let known = peer.offset_ms.filter(|_| !std::mem::take(&mut peer.is_old));
            peer.offset_ms = Some(known.map_or(least, |offset| least.max(offset - DRIFT_MS)));
        }
        Heard { came, left: false, missed }
    }

    /// Whether nothing is remembered of a node.
    pub(super) fn is_new(&self, node: u64) -> bool {
        !self.peers.contains_key(&node)
    }

    /// What a node has published, but for `own` that has just come, of which nothing was heard. It is so once.
    pub(super) fn lost(&mut self, head: &Head, own: Wide) -> Wide {
        let Some(peer) = self.peers.get_mut(&head.sender) else { return Wide::default() };
        let beyond = |said: u64, heard: u64, own: u64| said.saturating_sub(heard.saturating_add(own));
        let lost = Wide {
            all: beyond(head.wide.all, peer.wide.all, own.all),
            groups: beyond(head.wide.groups, peer.wide.groups, own.groups),
        };
        peer.wide.all = peer.wide.all.max(head.wide.all);
        peer.wide.groups = peer.wide.groups.max(head.wide.groups);
        lost
    }

    /// Whether a request is to be carried out, whose sender waits for `patience` milliseconds.
    pub(super) fn take(&mut self, head: Head, patience: u64, now: u64) -> Result<Taken, LetBe> {
        let peer = self.peers.get_mut(&head.sender).ok_or(LetBe::Stranger)?;
        let offset = peer.offset_ms.ok_or(LetBe::Stranger)?;
        if head.number <= peer.number {
            return Err(LetBe::Repeated);
        }
        let missed = head.number - peer.number - 1;
        peer.number = head.number;
        let sent = head.sent_ms as i64 + offset;
        let age_ms = u64::try_from(now as i64 - sent).unwrap_or(0);
        if age_ms > patience { Err(LetBe::Stale { missed }) } else { Ok(Taken { age_ms, missed }) }
    }

    /// Takes those for gone that were not heard for long, and returns them.
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

    /// Nobody could be heard until now: everybody has their time anew.
    pub(super) fn resume(&mut self, now: u64) {
        for peer in self.peers.values_mut() {
            peer.is_old = true;
            peer.unsure = true;
            if peer.known {
                peer.heard_ms = now;
            }
        }
    }

    /// Those that are taken to be there, and will reply. One that was not heard since nobody could be may not have come back yet.
    pub(super) fn known(&self) -> Vec<u64> {
        self.peers.iter().filter(|(_, peer)| peer.told && !peer.unsure).map(|(&node, _)| node).collect()
    }

    /// How many have gone silent that were there, and have not left: they may come back.
    pub(super) fn absent(&self) -> usize {
        self.peers.values().filter(|peer| peer.met && (!peer.told || peer.unsure)).count()
    }

    /// Whether a node that was there before nobody could be heard has not come back. It is told once.
    pub(super) fn take_vanished(&mut self) -> bool {
        std::mem::take(&mut self.vanished)
    }

    /// What a heartbeat of this node, which goes out now, says of the others.
    pub(super) fn echoes(&mut self) -> Vec<Echo> {
        let known = self.peers.iter_mut().filter(|(_, peer)| peer.known);
        let echo = |(&node, peer): (&u64, &mut Peer)| {
            (peer.told, peer.met) = (true, true);
            Echo { node, sent_ms: peer.sent_ms, heard_ms: peer.heard_ms }
        };
        known.map(echo).collect()
    }

    /// Whether one more can be kept in mind; the one that was silent for longest makes room.
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
        Head { sender, number, sent_ms, wide: Wide::default() }
    }

    /// Node 1, and node 2 whose clock is 500 ms behind; a message takes 10 ms.
    fn met() -> Peers {
        let mut peers = Peers::new(1);
        // Heard at 1010 of this clock, 510 of that one, which heard at 500 what was sent at 990 here.
        let echo = Echo { node: 1, sent_ms: 990, heard_ms: 500 };
        assert_eq!(peers.heard(head(2, 0, 500), false, &[echo], 1010), Heard { came: true, ..Heard::default() });
        peers
    }

    #[test]
    fn a_node_is_believed_once_it_has_answered() {
        let mut peers = Peers::new(1);
        assert_eq!(peers.take(head(2, 1, 0), 1000, 5), Err(LetBe::Stranger));
        assert!(peers.heard(head(2, 0, 0), false, &[], 10).came);
        assert_eq!(peers.take(head(2, 1, 0), 1000, 10), Err(LetBe::Stranger), "its clock is not known");
        assert_eq!(peers.echoes(), [Echo { node: 2, sent_ms: 0, heard_ms: 10 }]);
        let echo = Echo { node: 1, sent_ms: 11, heard_ms: 5 };
        assert!(!peers.heard(head(2, 0, 6), false, &[echo], 12).came);
        assert_eq!(peers.take(head(2, 1, 7), 1000, 20), Ok(Taken { age_ms: 7, missed: 0 }));
    }

    #[test]
    fn nothing_is_taken_twice_and_nothing_that_came_late() {
        let mut peers = met();
        assert_eq!(peers.take(head(2, 1, 520), 1000, 1030), Ok(Taken { age_ms: 20, missed: 0 }));
        assert_eq!(peers.take(head(2, 1, 520), 1000, 1030), Err(LetBe::Repeated));
        assert_eq!(peers.take(head(2, 4, 520), 1000, 1040), Ok(Taken { age_ms: 30, missed: 2 }));
        assert_eq!(peers.take(head(2, 3, 520), 1000, 1040), Err(LetBe::Repeated), "out of order");
        assert_eq!(peers.take(head(2, 5, 600), 1000, 9000), Err(LetBe::Stale { missed: 0 }));
        // A heartbeat that was held up with it says the same of the clocks as ever.
        let echo = Echo { node: 1, sent_ms: 1020, heard_ms: 530 };
        peers.heard(head(2, 6, 610), false, &[echo], 9000);
        assert_eq!(peers.take(head(2, 8, 620), 1000, 9001), Err(LetBe::Stale { missed: 1 }));
        assert!(peers.take(head(2, 9, 8500), 1000, 9001).is_ok());
    }

    #[test]
    fn what_was_lost_is_counted_once() {
        let mut peers = met();
        assert_eq!(peers.heard(head(2, 3, 600), false, &[], 1100).missed, 3);
        assert_eq!(peers.heard(head(2, 3, 700), false, &[], 1200).missed, 0);
        assert_eq!(peers.take(head(2, 5, 700), 1000, 1210).map(|taken| taken.missed), Ok(1));
    }

    #[test]
    fn what_was_published_and_not_heard_is_known_once() {
        let said = |all, groups| Head { wide: Wide { all, groups }, ..head(2, 9, 600) };
        let one = |all, groups| Wide { all, groups };
        assert_eq!(Peers::new(1).lost(&said(5, 5), one(0, 0)), one(0, 0), "of a stranger nothing is known");
        let mut peers = met();
        assert_eq!(peers.lost(&said(1, 0), one(1, 0)), one(0, 0), "it has come");
        assert_eq!(peers.lost(&said(3, 2), one(1, 0)), one(1, 2));
        assert_eq!(peers.lost(&said(3, 2), one(0, 0)), one(0, 0), "once");
        assert_eq!(peers.lost(&said(1, 1), one(1, 0)), one(0, 0), "out of order");
        // A node that was met later is believed what it says of itself.
        peers.heard(Head { wide: one(7, 7), ..head(3, 9, 0) }, false, &[], 700);
        assert_eq!(peers.lost(&Head { wide: one(7, 8), ..head(3, 10, 0) }, one(0, 0)), one(0, 1));
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
        assert!(peers.heard(head(2, 0, 5500), false, &[], 6500).came && peers.known() == [2]);
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
        peers.take(head(2, 1, 520), 1000, 1030).unwrap();
        assert!(peers.forget_silent(1010 + SILENCE_MS).is_empty());
        assert_eq!(peers.forget_silent(1011 + SILENCE_MS), [2]);
        assert!(peers.forget_silent(1012 + SILENCE_MS).is_empty(), "once");
        assert!(peers.known().is_empty() && peers.echoes().is_empty());
        assert_eq!(peers.take(head(2, 1, 4100), 1000, 4700), Err(LetBe::Repeated), "what it said is not forgotten");
        assert!(peers.heard(head(2, 1, 4200), false, &[], 4800).came);
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
        // An answer that took long says less, and is not taken for the truth.
        let slow = Echo { node: 1, sent_ms: 1000, heard_ms: 3500 };
        peers.heard(head(2, 0, 3500), false, &[slow], 4010);
        assert_eq!(peers.take(head(2, 1, 3600), 1000, 4110), Ok(Taken { age_ms: 21, missed: 0 }));
        // Nobody can have heard what was not sent.
        let lie = Echo { node: 1, sent_ms: 1 << 40, heard_ms: 0 };
        peers.heard(head(2, 1, 3600), false, &[lie], 4120);
        assert_eq!(peers.take(head(2, 2, 3610), 1000, 4120), Ok(Taken { age_ms: 21, missed: 0 }));
    }

    #[test]
    fn a_machine_that_stood_still_is_believed_anew() {
        let mut peers = met();
        // This one stood still for a minute, so the other's clock is that much ahead now.
        peers.resume(2000);
        let echo = Echo { node: 1, sent_ms: 2010, heard_ms: 61_530 };
        peers.heard(head(2, 0, 61_540), false, &[echo], 2040);
        assert_eq!(peers.take(head(2, 1, 61_600), 1000, 4000), Err(LetBe::Stale { missed: 0 }));
        assert_eq!(peers.take(head(2, 2, 63_500), 1000, 4000), Ok(Taken { age_ms: 20, missed: 0 }));
    }

    #[test]
    fn no_number_of_nodes_fills_the_memory() {
        let mut peers = Peers::new(1);
        for node in 0..1000 {
            peers.heard(head(node + 10, 0, 0), false, &[], node);
        }
        assert_eq!(peers.echoes().len(), MOST);
        assert_eq!(peers.forget_silent(900 + SILENCE_MS).len(), MOST);
        assert!(peers.heard(head(5, 0, 0), false, &[], 5000).came, "a silent one makes room");
        assert!(peers.peers.len() == MOST && peers.echoes().len() == 1 && peers.known() == [5]);
    }
}
