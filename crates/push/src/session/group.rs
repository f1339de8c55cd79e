//! Groups of a thread's sessions.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use crate::message::Place;
use crate::plan::SlowPolicy;
use crate::session::Session;
use crate::session::channels::Subscription;

/// A named set of a thread's sessions.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) name: Box<str>,
    /// Whether it has the sessions of a user.
    pub(crate) is_user: bool,
    /// The rule for members with a full queue.
    pub(crate) slow: SlowPolicy,
    members: RefCell<Vec<Rc<Session>>>,
    /// Sessions that speak the protocol of channels: they get publications, members get the messages as they are.
    subscribers: RefCell<Vec<Subscriber>>,
    /// `None` while no subscriber takes deltas, so that other groups are small.
    deltas: RefCell<Option<Box<Takers>>>,
}

/// What each subscriber that takes deltas has, by the slot of its session. `None`: nothing that a delta could begin at.
type Takers = HashMap<u32, Option<Held>>;

/// The publication that a subscriber has got, or will get before any later one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    place: Place,
    /// The losses of the session's queue when it was put in. If there were more since, it may be among them.
    losses: u16,
}

/// A session that subscribes to a channel.
#[derive(Debug)]
struct Subscriber {
    session: Rc<Session>,
    /// The last place that it got, or that its answer named.
    last: Cell<Place>,
}

/// A session's entry in a group.
#[derive(Debug)]
pub(crate) struct Membership {
    pub(crate) group: Rc<Group>,
    /// Its index among the members.
    at: usize,
}

/// A thread's groups by name. A group without members is removed.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    /// Whether each has the sessions of a user, with the user's name.
    of_users: bool,
    by_name: RefCell<HashMap<Box<str>, Rc<Group>>>,
}

impl Group {
    /// Calls `visit` with every member. It must not change the group.
    pub(crate) fn each(&self, mut visit: impl FnMut(&Rc<Session>)) {
        self.members.borrow().iter().for_each(&mut visit);
    }

    /// Calls `visit` with every subscriber that has not got the message at this place. It must not change the group.
    pub(crate) fn each_subscriber(&self, place: Option<Place>, mut visit: impl FnMut(&Rc<Session>)) {
        for Subscriber { session, last } in &*self.subscribers.borrow() {
            if let Some(place) = place {
                let known = last.get();
                // It subscribed while this message was on its way to the thread, and got it from the history.
                if known.epoch == place.epoch && place.offset <= known.offset {
                    continue;
                }
                last.set(place);
            }
            visit(session);
        }
    }

    /// Makes a subscriber one that takes deltas. `place`: where the publication stands that it has, if it has one.
    pub(crate) fn take_deltas(&self, session: &Session, place: Option<Place>) {
        let held = place.map(|place| Held { place, losses: session.outbox.borrow().losses() });
        self.deltas.borrow_mut().get_or_insert_default().insert(session.location.slot, held);
    }

    /// Returns whether a subscriber takes deltas.
    pub(crate) fn takes_deltas(&self, session: &Session) -> bool {
        self.deltas.borrow().as_ref().is_some_and(|deltas| deltas.contains_key(&session.location.slot))
    }

    /// Returns whether a subscriber that takes deltas has the publication at `place` when a delta from it arrives.
    ///
    /// Only a later message of another group with a rule that drops could still take it from the queue. The client then
    /// sees that it lacks the delta's base.
    pub(crate) fn has_base(&self, session: &Session, place: Place) -> bool {
        let deltas = self.deltas.borrow();
        let held = deltas.as_ref().and_then(|deltas| deltas.get(&session.location.slot)).copied().flatten();
        let outbox = session.outbox.borrow();
        // A queue that drops could drop the base to make room for the delta.
        let keeps = matches!(self.slow, SlowPolicy::Disconnect | SlowPolicy::Refuse) || outbox.is_empty();
        keeps && held == Some(Held { place, losses: outbox.losses() })
    }

    /// Notes that a subscriber has the publication at `place` in its queue, or lacks it.
    pub(crate) fn note_held(&self, session: &Session, place: Option<Place>) {
        if let Some(held) = self.deltas.borrow_mut().as_mut().and_then(|all| all.get_mut(&session.location.slot)) {
            *held = place.map(|place| Held { place, losses: session.outbox.borrow().losses() });
        }
    }

    /// Returns whether any subscriber takes deltas.
    pub(crate) fn has_deltas(&self) -> bool {
        self.deltas.borrow().is_some()
    }

    /// Returns how many sessions it has.
    pub(crate) fn len(&self) -> usize {
        self.members.borrow().len() + self.subscribers()
    }

    /// Returns how many subscribers it has.
    pub(crate) fn subscribers(&self) -> usize {
        self.subscribers.borrow().len()
    }
}

impl Groups {
    /// Creates an empty set of groups that have the sessions of users.
    pub(crate) fn of_users() -> Self {
        Groups { of_users: true, ..Groups::default() }
    }

    /// Finds a group by its name.
    pub(crate) fn find(&self, name: &str) -> Option<Rc<Group>> {
        self.by_name.borrow().get(name).cloned()
    }

    /// Returns how many groups there are.
    pub(crate) fn len(&self) -> usize {
        self.by_name.borrow().len()
    }

    /// Adds a session to a group, which gets the rule `slow()` if it is new. Returns false if it is a member already.
    pub(crate) fn join(&self, session: &Rc<Session>, name: &str, slow: impl FnOnce() -> SlowPolicy) -> bool {
        let group = self.group(name, slow);
        if session.groups.borrow().iter().any(|membership| Rc::ptr_eq(&membership.group, &group)) {
            return false;
        }
        let at = group.members.borrow().len();
        group.members.borrow_mut().push(Rc::clone(session));
        session.groups.borrow_mut().push(Membership { group, at });
        true
    }

    /// Removes a session from a group. Returns false if it is no member.
    pub(crate) fn leave(&self, session: &Session, name: &str) -> bool {
        let mut groups = session.groups.borrow_mut();
        let is_it = |of: &Membership| *of.group.name == *name && of.group.is_user == self.of_users;
        let Some(at) = groups.iter().position(is_it) else { return false };
        let membership = groups.swap_remove(at);
        drop(groups);
        self.remove(&membership);
        true
    }

    /// Removes a session from all its groups in this set.
    pub(crate) fn leave_all(&self, session: &Session) {
        let mut groups = session.groups.borrow_mut();
        let (mine, others) = std::mem::take(&mut *groups).into_iter().partition(|of| of.group.is_user == self.of_users);
        *groups = others;
        drop(groups);
        let mine: Vec<Membership> = mine;
        mine.iter().for_each(|membership| self.remove(membership));
    }

    /// Subscribes a session that speaks the protocol of channels. `None`: it does so already.
    ///
    /// `last`: the place up to which it needs no messages.
    pub(crate) fn subscribe(
        &self,
        session: &Rc<Session>,
        name: &str,
        is_pattern: bool,
        last: Option<Place>,
        slow: impl FnOnce() -> SlowPolicy,
    ) -> Option<Rc<Group>> {
        if !session.speaks_channels() {
            return None;
        }
        let group = self.group(name, slow);
        let is_new = session.channels(|channels| {
            let is_same = |known: &Subscription| Rc::ptr_eq(&known.group, &group);
            if channels.subscriptions.iter().any(is_same) {
                return false;
            }
            let at = group.subscribers();
            let (by_backend, is_counted, watches) = (false, false, false);
            let group = Rc::clone(&group);
            channels.add(Subscription { group, at, is_pattern, by_backend, is_counted, watches });
            true
        });
        if is_new != Some(true) {
            return None;
        }
        let last = Cell::new(last.unwrap_or(Place { epoch: 0, offset: 0 }));
        group.subscribers.borrow_mut().push(Subscriber { session: Rc::clone(session), last });
        Some(group)
    }

    /// Ends a subscription that was taken out of its session.
    pub(crate) fn unsubscribe(&self, subscription: &Subscription) {
        let Subscription { group, at, .. } = subscription;
        let mut subscribers = group.subscribers.borrow_mut();
        let left = subscribers.swap_remove(*at);
        let mut deltas = group.deltas.borrow_mut();
        if let Some(all) = deltas.as_mut() {
            all.remove(&left.session.location.slot);
            if all.is_empty() {
                *deltas = None;
            } else if all.capacity() > 64 && all.len() < all.capacity() / 4 {
                all.shrink_to_fit();
            }
        }
        if let Some(moved) = subscribers.get(*at) {
            moved.session.channels(|channels| {
                if let Some(theirs) = channels.subscriptions.iter_mut().find(|theirs| Rc::ptr_eq(&theirs.group, group))
                {
                    theirs.at = *at;
                }
            });
        }
        if subscribers.capacity() > 64 && subscribers.len() < subscribers.capacity() / 4 {
            subscribers.shrink_to_fit();
        }
        drop(subscribers);
        self.remove_if_empty(group);
    }

    /// Returns whether there is no group.
    pub(crate) fn is_empty(&self) -> bool {
        self.by_name.borrow().is_empty()
    }

    /// Calls `visit` with every group. It must not add or remove groups.
    pub(crate) fn each(&self, visit: impl FnMut(&Rc<Group>)) {
        self.by_name.borrow().values().for_each(visit);
    }

    fn group(&self, name: &str, slow: impl FnOnce() -> SlowPolicy) -> Rc<Group> {
        let mut by_name = self.by_name.borrow_mut();
        match by_name.get(name) {
            Some(group) => Rc::clone(group),
            None => {
                let (members, subscribers, deltas) = Default::default();
                let is_user = self.of_users;
                let group = Rc::new(Group { name: name.into(), is_user, slow: slow(), members, subscribers, deltas });
                by_name.insert(name.into(), Rc::clone(&group));
                group
            }
        }
    }

    fn remove_if_empty(&self, group: &Group) {
        if group.len() == 0 {
            let mut by_name = self.by_name.borrow_mut();
            by_name.remove(&group.name);
            if by_name.capacity() > 1024 && by_name.len() < by_name.capacity() / 4 {
                by_name.shrink_to_fit();
            }
        }
    }

    fn remove(&self, membership: &Membership) {
        let group = &membership.group;
        let mut members = group.members.borrow_mut();
        members.swap_remove(membership.at);
        if let Some(moved) = members.get(membership.at) {
            let mut theirs = moved.groups.borrow_mut();
            if let Some(entry) = theirs.iter_mut().find(|theirs| Rc::ptr_eq(&theirs.group, group)) {
                entry.at = membership.at;
            }
        }
        drop(members);
        self.remove_if_empty(group);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Framing;
    use crate::session::channels::{Channels, Who};
    use crate::session::directory::Location;

    fn session(slot: u32) -> Rc<Session> {
        let location = Location { thread: 0, slot, generation: 0, of_page: false };
        Rc::new(Session::new(slot.to_string().into(), location, Framing::WebSocket { compression: None }, 1))
    }

    fn members(groups: &Groups, name: &str) -> Vec<u32> {
        let mut slots = Vec::new();
        if let Some(group) = groups.find(name) {
            group.each(|session| slots.push(session.location.slot));
        }
        slots.sort_unstable();
        slots
    }

    #[test]
    fn sessions_come_and_go_in_any_order() {
        let groups = Groups::default();
        let all: Vec<_> = (0..5).map(session).collect();
        for session in &all {
            assert!(groups.join(session, "a", SlowPolicy::default));
            assert!(!groups.join(session, "a", SlowPolicy::default), "twice is once");
            groups.join(session, "b", SlowPolicy::default);
        }
        assert!(groups.leave(&all[1], "a"));
        assert!(!groups.leave(&all[1], "a"));
        groups.leave_all(&all[4]);
        groups.leave_all(&all[0]);
        assert_eq!(members(&groups, "a"), [2, 3]);
        assert_eq!(members(&groups, "b"), [1, 2, 3]);
        [1, 2, 3].into_iter().for_each(|at: usize| groups.leave_all(&all[at]));
        assert_eq!(groups.len(), 0, "an empty group is not kept");
        assert!(all.iter().all(|session| Rc::strong_count(session) == 1));
    }

    #[test]
    fn a_user_is_no_group_of_the_same_name() {
        let (groups, users, one) = (Groups::default(), Groups::of_users(), session(0));
        assert!(groups.join(&one, "ann", SlowPolicy::default) && users.join(&one, "ann", SlowPolicy::default));
        assert!(groups.leave(&one, "ann") && !groups.leave(&one, "ann"));
        assert_eq!((members(&groups, "ann"), members(&users, "ann")), (vec![], vec![0]));
        groups.leave_all(&one);
        assert_eq!(users.len(), 1);
        users.leave_all(&one);
        assert_eq!((users.len(), Rc::strong_count(&one)), (0, 1));
    }

    #[test]
    fn subscribers_come_and_go_beside_members() {
        let groups = Groups::default();
        let all: Vec<_> = (0..4).map(session).collect();
        for session in &all[..3] {
            session.speak_channels(Channels::new(Who::default()));
            assert!(groups.subscribe(session, "a", false, None, SlowPolicy::default).is_some());
            assert!(groups.subscribe(session, "a", false, None, SlowPolicy::default).is_none(), "twice is once");
        }
        assert!(groups.subscribe(&all[3], "b", false, None, SlowPolicy::default).is_none(), "it speaks no channels");
        groups.join(&all[3], "a", SlowPolicy::default);
        let take = |session: &Rc<Session>| session.channels(|channels| channels.subscriptions.pop().unwrap()).unwrap();
        groups.unsubscribe(&take(&all[0]));
        groups.unsubscribe(&take(&all[2]));
        let found = || {
            let mut slots = Vec::new();
            groups.find("a").unwrap().each_subscriber(None, |session| slots.push(session.location.slot));
            slots
        };
        assert_eq!((found(), members(&groups, "a"), groups.find("a").unwrap().len()), (vec![1], vec![3], 2));
        groups.leave_all(&all[3]);
        groups.unsubscribe(&take(&all[1]));
        assert_eq!(groups.len(), 0, "an empty group is not kept, also where nobody could subscribe");
        assert!(all.iter().all(|session| Rc::strong_count(session) == 1));
    }

    #[test]
    fn a_delta_needs_its_base_in_the_queue_or_sent() {
        let (groups, one, other) = (Groups::default(), session(0), session(1));
        let at = |offset| Place { epoch: 7, offset };
        for session in [&one, &other] {
            session.speak_channels(Channels::new(Who::default()));
            groups.subscribe(session, "a", false, Some(at(3)), SlowPolicy::default).unwrap();
        }
        let group = groups.find("a").unwrap();
        assert!(!group.has_deltas());
        group.take_deltas(&one, None);
        assert!(group.has_deltas() && !group.has_base(&one, at(3)), "it has only the place");
        assert!(group.takes_deltas(&one) && !group.takes_deltas(&other));
        group.note_held(&one, Some(at(4)));
        group.note_held(&other, Some(at(4)));
        assert_eq!(
            [(&one, 4), (&one, 3), (&other, 4)].map(|(of, offset)| group.has_base(of, at(offset))),
            [true, false, false]
        );
        group.note_held(&one, None);
        assert!(!group.has_base(&one, at(4)), "the message found no room");
        let taken = one.channels(|channels| channels.subscriptions.pop().unwrap()).unwrap();
        groups.unsubscribe(&taken);
        assert!(!group.has_deltas());
    }

    #[test]
    fn a_subscriber_is_small() {
        assert!(size_of::<Subscriber>() <= 24, "{} bytes", size_of::<Subscriber>());
        let of_delta = size_of::<(u32, Option<Held>)>();
        assert!(of_delta <= 40, "{of_delta} bytes");
    }

    #[test]
    fn a_subscriber_gets_no_message_twice() {
        let groups = Groups::default();
        let one = session(0);
        one.speak_channels(Channels::new(Who::default()));
        let at = |epoch, offset| Some(Place { epoch, offset });
        let group = groups.subscribe(&one, "a", false, at(7, 3), SlowPolicy::default).unwrap();
        let count = |place| {
            let mut count = 0;
            group.each_subscriber(place, |_| count += 1);
            count
        };
        assert_eq!([at(7, 2), at(7, 3), at(7, 4), at(7, 4), at(8, 1), None].map(count), [0, 0, 1, 0, 1, 1]);
    }
}
