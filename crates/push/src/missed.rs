//! Messages that never came to this node: sessions that may have missed some are told, by their rule.

use std::rc::Rc;

use oroshi_websocket::CloseCode;

use crate::hub::Hub;
use crate::message::Message;
use crate::plan::Slow;
use crate::session::{Reason, Session};

/// Whom messages were for that did not come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Missed {
    /// Some were for everybody.
    pub(crate) all: bool,
    /// Some were for groups, and nobody knows for which.
    pub(crate) any_group: bool,
    /// Some were for these groups.
    pub(crate) groups: Vec<Box<str>>,
}

/// For whoever may have missed messages under a rule that does not have it go on without them.
const MISSED: CloseCode = CloseCode(4001);

impl Hub {
    /// Tells this core's sessions that they may have missed messages, in the place of these: by a gap of unknown size, or, where the rule
    /// is to disconnect, by their end.
    pub(crate) fn tell_missed(&self, missed: &Missed) {
        let stamp = self.next_stamp();
        let is_new = |session: &Session| session.stamp.replace(stamp) != stamp;
        // Who is in a group with gaps knows what to do about one; so these come first.
        if missed.any_group {
            self.each(|session| {
                let rule = session.groups.borrow().iter().map(|of| of.group.slow).reduce(milder);
                if let Some(rule) = rule.filter(|_| is_new(session)) {
                    self.tell_of_gap(session, rule);
                }
            });
        }
        for group in missed.groups.iter().filter_map(|group| self.groups.find(group)) {
            group.each(|session| {
                if is_new(session) {
                    self.tell_of_gap(session, group.slow);
                }
            });
        }
        if missed.all {
            let rule = self.rule_of_all();
            self.each(|session| {
                if is_new(session) {
                    self.tell_of_gap(session, rule);
                }
            });
        }
    }

    fn tell_of_gap(&self, session: &Rc<Session>, rule: Slow) {
        if !session.is_open() {
            return;
        }
        if rule != Slow::Disconnect {
            if !session.outbox.borrow().ends_with_gap() {
                self.say(session, Message::gap(None));
            }
            return;
        }
        let retry_ms = self.time_to_come_back();
        let why = format!("messages were missed; connect again in {retry_ms} ms");
        self.end_with(session, Reason::Missed, MISSED, &why, Some(retry_ms));
    }
}

/// The rule that has a session lose less.
fn milder(one: Slow, other: Slow) -> Slow {
    if one == Slow::Disconnect { other } else { one }
}
