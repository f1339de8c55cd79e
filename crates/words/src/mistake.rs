//! A mistake in a configuration: the field, and the problem.

use std::error::Error;
use std::fmt;

/// A mistake in one field. Correct the field as the text says.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mistake {
    /// The line in the file, from 1; 0 if the field is in no file.
    pub line: usize,
    /// The path of the field's key: `callbacks.connect`, `route[2].to`. Elements of lists are counted from 1. Empty if
    /// the mistake belongs to no key.
    pub key: String,
    /// The problem, and the expected value.
    pub text: String,
    /// Which sort of mistake it is.
    pub kind: Kind,
    /// The fields that the check looked at, if not the key alone. See [`Mistake::follows_from`].
    pub looked_at: Vec<String>,
}

/// A sort of mistake.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// The value is wrong.
    #[default]
    Wrong,
    /// No reader asks for the key.
    Unknown,
    /// Something is missing in the table.
    Missing,
}

impl Mistake {
    /// A wrong field, without a line.
    pub fn new(key: impl Into<String>, text: impl Into<String>) -> Self {
        Mistake { key: key.into(), text: text.into(), ..Self::default() }
    }

    /// A wrong value, in the usual words: the value, what is wrong with it, what was expected.
    pub fn value(key: impl Into<String>, value: impl fmt::Display, why: &str, expected: impl fmt::Display) -> Self {
        Self::new(key, format!("`{value}` {why}: expected {expected}"))
    }

    /// A wrong value that may be a secret, so that the text does not repeat it.
    pub fn hidden(key: impl Into<String>, why: &str, expected: &str) -> Self {
        Self::new(key, format!("its value {why}: expected {expected}"))
    }

    /// The same mistake, at a line.
    #[must_use]
    pub fn at(mut self, line: usize) -> Self {
        self.line = line;
        self
    }

    /// The same mistake, found by looking at these fields. See [`Mistake::follows_from`].
    #[must_use]
    pub fn looking_at(mut self, fields: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.looked_at = fields.into_iter().map(Into::into).collect();
        self
    }

    /// The same mistake, with another name for each field.
    #[must_use]
    pub fn renamed(mut self, name: impl Fn(&str) -> String) -> Self {
        self.key = name(&self.key);
        self.looked_at.iter_mut().for_each(|field| *field = name(field));
        self
    }

    /// Whether this mistake need not be reported beside the known ones: a field that it was found by, or its own, could
    /// not be read, and so seems to be missing or to have its default value.
    #[must_use]
    pub fn follows_from(&self, known: &[Mistake]) -> bool {
        let looked_at: &[String] =
            if self.looked_at.is_empty() { std::slice::from_ref(&self.key) } else { &self.looked_at };
        known
            .iter()
            .any(|known| is_within(&self.key, &known.key) || looked_at.iter().any(|field| is_within(&known.key, field)))
    }
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line > 0 {
            write!(f, "line {}: ", self.line)?;
        }
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        f.write_str(&self.text)
    }
}

impl Error for Mistake {}

/// Whether a key is another one, or in it.
fn is_within(key: &str, outer: &str) -> bool {
    key.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

/// How messages write the names of fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Naming {
    /// As flags: `--connect-rate`.
    Flags,
    /// As keys of a file, in backquotes: `` `connect-rate` ``.
    Keys,
}

impl Naming {
    /// A field's name as a message writes it.
    #[must_use]
    pub fn of(self, field: &str) -> String {
        match self {
            Naming::Flags => format!("--{field}"),
            Naming::Keys => format!("`{field}`"),
        }
    }
}

/// Adds to the mistakes of the reader those of a later check, without those that follow from the former.
pub fn add_checked(read: &mut Vec<Mistake>, checked: impl IntoIterator<Item = Mistake>) {
    let new: Vec<Mistake> = checked.into_iter().filter(|mistake| !mistake.follows_from(read)).collect();
    read.extend(new);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_follows_from_a_field_that_could_not_be_read_is_not_reported_again() {
        let known = [Mistake::new("listen.public", "x"), Mistake::new("route[2]", "x")];
        for (mistake, follows) in [
            (Mistake::new("listen", "nothing in it"), true),
            (Mistake::new("listen.public", "missing"), true),
            (Mistake::new("listen.admin", "missing"), false),
            (Mistake::new("listen.admin", "missing").looking_at(["listen"]), true),
            (Mistake::new("route[2].to", "missing"), true),
            (Mistake::new("route[1]", "no way").looking_at(["route[1].to", "route[1].lookup"]), false),
            (Mistake::new("route", "no route"), true),
            (Mistake::new("routes", "another key"), false),
            (Mistake::new("", "of no key"), false),
        ] {
            assert_eq!(mistake.follows_from(&known), follows, "{mistake}");
        }
        let mut all = known.to_vec();
        add_checked(&mut all, [Mistake::new("listen", "y"), Mistake::new("drain", "y")]);
        let keys: Vec<&str> = all.iter().map(|mistake| mistake.key.as_str()).collect();
        assert_eq!(keys, ["listen.public", "route[2]", "drain"]);
    }

    #[test]
    fn a_mistake_names_its_line_its_key_and_its_value() {
        let mistake = Mistake::value("limits.ping", "0", "leaves no time at all", "a time such as 10s");
        assert_eq!(mistake.to_string(), "limits.ping: `0` leaves no time at all: expected a time such as 10s");
        assert_eq!(mistake.at(3).to_string().split(": ").next(), Some("line 3"));
        assert_eq!(Mistake::new("", "no TOML").at(1).to_string(), "line 1: no TOML");
        let renamed = Mistake::new("paths.send", "x").looking_at(["paths"]).renamed(|key| key.replace("paths", "path"));
        assert_eq!((renamed.key.as_str(), renamed.looked_at), ("path.send", vec!["path".to_owned()]));
    }
}
