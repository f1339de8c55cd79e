//! Messages that other nodes published and this node did not get: the sessions concerned learn of it, by their rule.

use std::rc::Rc;

use oroshi_websocket::CloseCode;

use crate::hub::Hub;
use crate::message::Message;
use crate::plan::SlowPolicy;
use crate::session::{Reason, Session};

/// The targets of messages that did not come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Missed {
    /// Some were for all sessions.
    pub(crate) all: bool,
    /// Some were for unknown groups.
    pub(crate) any_group: bool,
    /// Some were for these groups.
    pub(crate) groups: Vec<Box<str>>,
    /// Some were for unknown channels with a history in JetStream. Only such a loss concerns their subscribers.
    pub(crate) stream: bool,
}

/// The close code for sessions that may have missed messages and whose rule is to disconnect.
const MISSED: CloseCode = CloseCode(4001);

impl Hub {
    /// Tells this thread's sessions that they may have missed messages.
    ///
    /// A session gets a gap of unknown size where the messages belong. It ends if its rule is to disconnect.
    pub(crate) fn report_missed(&self, missed: &Missed) {
        let stamp = self.next_stamp();
        let is_new = |session: &Session| session.stamp.replace(stamp) != stamp;
        // Groups come before `all`: a session's group may have a rule that allows gaps.
        if missed.any_group || missed.stream {
            self.each(|session| {
                let groups = session.groups.borrow();
                let subscribed = session.channels(|channels| {
                    let concerned = channels.subscriptions.iter().filter(|one| {
                        if self.is_stored(&one.group.name) && !one.is_pattern {
                            missed.stream
                        } else {
                            missed.any_group
                        }
                    });
                    concerned.map(|one| one.group.slow).reduce(milder)
                });
                let joined = groups.iter().filter(|_| missed.any_group).map(|of| of.group.slow);
                let rule = joined.chain(subscribed.flatten()).reduce(milder);
                drop(groups);
                if let Some(rule) = rule.filter(|_| is_new(session)) {
                    self.report_gap(session, rule);
                }
            });
        }
        for group in missed.groups.iter().filter_map(|group| self.groups.find(group)) {
            let mut report = |session: &Rc<Session>| {
                if is_new(session) {
                    self.report_gap(session, group.slow);
                }
            };
            group.each(&mut report);
            if !self.is_stored(&group.name) {
                group.each_subscriber(None, report);
            }
        }
        self.patterns.each(|pattern| {
            if missed.groups.iter().any(|group| group.starts_with(&*pattern.name)) {
                pattern.each_subscriber(None, |session| {
                    if is_new(session) {
                        self.report_gap(session, pattern.slow);
                    }
                });
            }
        });
        if missed.all {
            let rule = self.rule_of_all();
            self.each(|session| {
                if is_new(session) {
                    self.report_gap(session, rule);
                }
            });
        }
    }

    fn report_gap(&self, session: &Rc<Session>, rule: SlowPolicy) {
        if !session.is_open() {
            return;
        }
        if rule != SlowPolicy::Disconnect {
            if !session.outbox.borrow().ends_with_gap() {
                self.writer.send_control(session, Message::gap(None));
            }
            return;
        }
        let retry_ms = self.reconnect_delay_ms();
        let why = format!("messages were missed; connect again in {retry_ms} ms");
        self.end_with(session, Reason::Missed, MISSED, &why, Some(retry_ms));
    }
}

/// Returns the rule that keeps the session connected, if one of the two does.
fn milder(one: SlowPolicy, other: SlowPolicy) -> SlowPolicy {
    if one == SlowPolicy::Disconnect { other } else { one }
}
