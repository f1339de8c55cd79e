//! Groups of a thread's sessions.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use crate::plan::SlowPolicy;
use crate::session::Session;

/// A named set of a thread's sessions.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) name: Box<str>,
    /// The rule for members with a full queue.
    pub(crate) slow: SlowPolicy,
    members: RefCell<Vec<Rc<Session>>>,
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
    by_name: RefCell<HashMap<Box<str>, Rc<Group>>>,
}

impl Group {
    /// Calls `visit` with every member. It must not change the group.
    pub(crate) fn each(&self, mut visit: impl FnMut(&Rc<Session>)) {
        self.members.borrow().iter().for_each(&mut visit);
    }

    /// Returns how many members it has.
    pub(crate) fn len(&self) -> usize {
        self.members.borrow().len()
    }
}

impl Groups {
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
        if session.groups.borrow().iter().any(|membership| &*membership.group.name == name) {
            return false;
        }
        let mut by_name = self.by_name.borrow_mut();
        let group = match by_name.get(name) {
            Some(group) => Rc::clone(group),
            None => {
                let group = Rc::new(Group { name: name.into(), slow: slow(), members: RefCell::default() });
                by_name.insert(name.into(), Rc::clone(&group));
                group
            }
        };
        let at = group.len();
        group.members.borrow_mut().push(Rc::clone(session));
        session.groups.borrow_mut().push(Membership { group, at });
        true
    }

    /// Removes a session from a group. Returns false if it is no member.
    pub(crate) fn leave(&self, session: &Session, name: &str) -> bool {
        let mut groups = session.groups.borrow_mut();
        let Some(at) = groups.iter().position(|membership| &*membership.group.name == name) else { return false };
        let membership = groups.swap_remove(at);
        drop(groups);
        self.remove(&membership);
        true
    }

    /// Removes a session from all its groups.
    pub(crate) fn leave_all(&self, session: &Session) {
        for membership in std::mem::take(&mut *session.groups.borrow_mut()) {
            self.remove(&membership);
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
        if members.is_empty() {
            self.by_name.borrow_mut().remove(&group.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Framing;
    use crate::session::directory::Location;

    fn session(slot: u32) -> Rc<Session> {
        let location = Location { thread: 0, slot, generation: 0, of_page: false };
        Rc::new(Session::new(slot.to_string().into(), location, Framing::WebSocket, 1))
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
}
