//! Who may do what in a channel: the rules of the plan, and the rights of a token or the backend.

use crate::plan::{Access, GroupRule, Plan};

/// Something that a client does in a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Right {
    Subscribe,
    Publish,
    History,
    Presence,
}

impl Right {
    /// Returns the right with this name.
    pub(crate) fn named(name: &str) -> Option<Right> {
        match name {
            "subscribe" => Some(Right::Subscribe),
            "publish" => Some(Right::Publish),
            "history" => Some(Right::History),
            "presence" => Some(Right::Presence),
            _ => None,
        }
    }
}

/// Rights in the channels that patterns fit, as a token or the backend grants them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rights(Vec<(Box<str>, u8)>);

impl Rights {
    /// Grants a right in the channels that `pattern` fits: a name, or a prefix and `*`.
    pub(crate) fn grant(&mut self, pattern: &str, right: Right) {
        match self.0.iter_mut().find(|(known, _)| &**known == pattern) {
            Some((_, rights)) => *rights |= 1 << right as u8,
            None => self.0.push((pattern.into(), 1 << right as u8)),
        }
    }

    /// Returns whether they permit nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether they permit something in a channel, or in all channels of a pattern.
    pub(crate) fn permit(&self, right: Right, channel: &str) -> bool {
        self.0.iter().any(|(pattern, rights)| rights & 1 << right as u8 != 0 && covers(pattern, channel))
    }
}

/// Returns whether a client may do something in a channel.
///
/// `is_user`: its user is known. `own`: its own rights.
pub(crate) fn may(plan: &Plan, right: Right, channel: &str, is_user: bool, own: &[&Rights]) -> bool {
    let by_rule = match prefix(channel) {
        None => plan.group_rule(channel).is_some_and(|rule| permits(rule, right, is_user)),
        Some(prefix) => may_all(plan, right, prefix, is_user),
    };
    by_rule || own.iter().any(|rights| rights.permit(right, channel))
}

/// Returns the prefix of a pattern; `None` for a single channel's name.
pub(crate) fn prefix(channel: &str) -> Option<&str> {
    channel.strip_suffix('*')
}

/// Returns whether the rules permit something in all channels that begin with `prefix`.
fn may_all(plan: &Plan, right: Right, prefix: &str, is_user: bool) -> bool {
    let mut all_covered = false;
    for rule in &plan.groups {
        let (name, is_prefix) = match rule.pattern.strip_suffix('*') {
            Some(name) => (name, true),
            None => (rule.pattern.as_str(), false),
        };
        let covers_all = is_prefix && prefix.starts_with(name);
        if !covers_all && !name.starts_with(prefix) {
            continue;
        }
        if !rule.subscribe_patterns || !permits(rule, right, is_user) {
            return false;
        }
        // Later rules do not apply to any of these channels.
        if covers_all {
            all_covered = true;
            break;
        }
    }
    all_covered
}

fn permits(rule: &GroupRule, right: Right, is_user: bool) -> bool {
    let access = match right {
        Right::Subscribe => rule.subscribe,
        Right::Publish => rule.publish,
        Right::History => rule.history,
        Right::Presence => rule.presence,
    };
    match access {
        Access::Nobody => false,
        Access::Users => is_user,
        Access::Anyone => true,
    }
}

/// Returns whether a pattern fits a channel, or all channels of another pattern.
fn covers(pattern: &str, channel: &str) -> bool {
    match prefix(pattern) {
        Some(prefix) => channel.starts_with(prefix),
        None => pattern == channel,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(pattern: &str, subscribe: Access, subscribe_patterns: bool) -> GroupRule {
        GroupRule { pattern: pattern.into(), subscribe, subscribe_patterns, ..GroupRule::default() }
    }

    #[test]
    fn a_pattern_opens_no_channel_that_a_rule_closes() {
        let plan = Plan {
            groups: vec![
                rule("chat:secret", Access::Nobody, true),
                rule("chat:users:*", Access::Users, true),
                rule("chat:*", Access::Anyone, true),
                rule("news:*", Access::Anyone, false),
            ],
            ..Plan::default()
        };
        for (channel, anyone, users) in [
            ("chat:a", true, true),
            ("chat:secret", false, false),
            ("chat:users:a", false, true),
            ("chat:*", false, false),
            ("chat:s*", false, false),
            ("chat:r*", true, true),
            ("chat:users:*", false, true),
            ("chat:u*", false, true),
            ("news:a", true, true),
            ("news:*", false, false),
            ("*", false, false),
            ("", false, false),
            ("other", false, false),
        ] {
            assert_eq!(may(&plan, Right::Subscribe, channel, false, &[]), anyone, "{channel}");
            assert_eq!(may(&plan, Right::Subscribe, channel, true, &[]), users, "{channel} of users");
            assert!(!may(&plan, Right::Publish, channel, true, &[]), "{channel}");
        }
    }

    #[test]
    fn a_token_grants_what_it_names() {
        let mut rights = Rights::default();
        rights.grant("room:*", Right::Subscribe);
        rights.grant("room:*", Right::Publish);
        rights.grant("one", Right::History);
        let plan = Plan::default();
        let may = |right, channel| may(&plan, right, channel, false, &[&rights]);
        assert!(may(Right::Subscribe, "room:1") && may(Right::Publish, "room:") && may(Right::Subscribe, "room:a*"));
        assert!(may(Right::History, "one"));
        assert!(!may(Right::History, "room:1") && !may(Right::Subscribe, "roo*") && !may(Right::History, "one*"));
    }
}
