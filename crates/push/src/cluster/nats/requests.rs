//! Requests of other nodes, and reports of those that this node missed.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{UNDER_WAY_KIB, Worker};
use crate::cluster::link::{Command, count};
use crate::cluster::peers::Rejection;
use crate::cluster::serve::{self, Claim};
use crate::cluster::wire::{Body, BroadcastCounts, Head, Reply, Request};
use crate::hub::missed::Missed;
use crate::publish::Targets;
use crate::session::info::PollError;

impl Worker {
    /// Handles another node's request.
    pub(super) fn handle_request(self: &Rc<Self>, head: Head, patience: Duration, request: Request, bytes: usize) {
        let counters = &self.shared.counters;
        let now = self.shared.now_ms();
        let to = match &request {
            Request::Publish(publish) => Some(&publish.to),
            _ => None,
        };
        // Before the request itself: sessions learn of a gap before the messages behind it.
        self.report_lost(&head, to.map(BroadcastCounts::of).unwrap_or_default());
        let valid = match self.peers.borrow_mut().check(head, patience.as_millis() as u64, now) {
            Ok(valid) => valid,
            Err(Rejection::Stranger) => {
                self.report_dropped(to.cloned());
                return count(&counters.refused, 1);
            }
            Err(Rejection::Repeated) => return count(&counters.repeated, 1),
            Err(Rejection::Stale { missed }) => {
                count(&counters.missed, missed);
                self.report_dropped(to.cloned());
                return count(&counters.stale, 1);
            }
        };
        count(&counters.missed, valid.missed);
        if let Request::Claim { keys } = request {
            count(&counters.received, 1);
            let is_greater = head.sender > self.shared.me;
            for location in keys.iter().filter_map(|key| self.node.directory.find(key)) {
                let claim = Claim { location, age: Duration::from_millis(valid.age_ms), is_greater };
                self.mailboxes.tell(location.thread, Box::new(move |hub| claim.settle(hub)));
            }
            return;
        }
        let Ok(under_way) = Arc::clone(&self.under_way).try_acquire_many_owned((bytes / 1024 + 1) as u32) else {
            self.shared.trouble(format!("other nodes ask for more than {} MiB at a time", UNDER_WAY_KIB / 1024));
            self.report_dropped(to.cloned());
            return count(&counters.refused, 1);
        };
        count(&counters.received, 1);
        let (commands, shared) = (self.commands.clone(), Arc::clone(&self.shared));
        let reply = move |body: Body| {
            let (sender, sent_ms) = (shared.me, shared.now_ms());
            let encode = |body: Body| body.encode(Head { sender, number: head.number, sent_ms, ..Head::default() });
            let mut frame = encode(body);
            if frame.len() > shared.max_payload.load(Ordering::Relaxed) {
                // Only messages and answers of a session can be so large.
                frame = encode(Body::Reply(Reply::Polled(Err(PollError::TooLarge))));
            }
            // If the NATS thread has ended, there is no link.
            let _ = commands.send(Command::Reply { to: head.sender, frame });
        };
        // One thread begins all requests of a node, so that they keep their order.
        let thread = (head.sender % u64::from(self.node.threads())) as u16;
        self.mailboxes.tell(
            thread,
            Box::new(move |hub| {
                let hub = Rc::clone(hub);
                tokio::task::spawn_local(async move {
                    if let Some(answer) = serve::perform(&hub, request, patience, || reply(Body::Working)).await {
                        reply(Body::Reply(answer));
                    }
                    drop(under_way);
                });
            }),
        );
    }

    /// Reports what another node published and this one did not get, except `own`, which has just come.
    pub(super) fn report_lost(&self, head: &Head, own: BroadcastCounts) {
        let lost = self.peers.borrow_mut().lost(head, own);
        if !lost.is_none() {
            self.report(Missed { all: lost.all > 0, any_group: lost.groups > 0, ..Missed::default() });
        }
    }

    /// Reports a publish to these targets that this node dropped.
    fn report_dropped(&self, to: Option<Targets>) {
        if let Some(Targets { all, groups, .. }) = to
            && (all || !groups.is_empty())
        {
            self.report(Missed { all, groups, ..Missed::default() });
        }
    }

    /// Tells the sessions of all threads that they may have missed messages.
    pub(in crate::cluster) fn report(&self, missed: Missed) {
        let lost = if missed.stream {
            "the stream in JetStream lost messages before this node had them, or is another one"
        } else {
            "publishes of other nodes were lost"
        };
        self.shared.trouble(format!("{lost}: the hub tells the sessions that may have missed them"));
        // No recovery from before may be taken for whole.
        let histories = &self.node.histories;
        if missed.any_group {
            histories.end_all();
        } else {
            missed.groups.iter().for_each(|group| histories.end(group));
        }
        let missed = Arc::new(missed);
        for thread in 0..self.node.threads() {
            let missed = Arc::clone(&missed);
            self.mailboxes.tell(thread, Box::new(move |hub| hub.report_missed(&missed)));
        }
    }
}
