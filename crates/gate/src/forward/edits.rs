//! Fields that a route adds, sets and removes: compiled once, applied while a head is copied.

use oroshi_http1::encode;

/// What is changed in a head's fields. Applied to requests as they go to the server behind, or to answers as they go to the client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Edits {
    /// The lengths of the names in `drop`, one bit each, so that nearly every field is passed over without a look at its name.
    lengths: u64,
    /// What is removed, and what is set.
    drop: Vec<Box<str>>,
    /// What is set and added, as field lines.
    lines: Vec<u8>,
}

/// Why a field cannot be edited.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EditError {
    /// The name is no token.
    #[error("{0:?} is no field name: letters, digits and -_.!#$%&'*+^`|~ only")]
    Name(String),
    /// The value has a control character.
    #[error("the value for {0} holds a control character, such as a line break: leave it out")]
    Value(String),
    /// The field says how a message is framed, or belongs to one connection alone: the gateway writes it itself.
    #[error("{0} is written by the gateway itself: leave it out")]
    Managed(String),
}

impl Edits {
    /// No change.
    pub const fn none() -> Self {
        Edits { lengths: 0, drop: Vec::new(), lines: Vec::new() }
    }

    /// Removes every field of this name. What [`set`](Self::set) and [`add`](Self::add) write stays.
    ///
    /// # Errors
    /// [`EditError`]; nothing is changed then.
    pub fn remove(&mut self, name: &str) -> Result<&mut Self, EditError> {
        checked(name)?;
        self.lengths |= bit(name);
        self.drop.push(name.into());
        Ok(self)
    }

    /// Gives a field this value, in place of whatever it had.
    ///
    /// # Errors
    /// As [`remove`](Self::remove).
    pub fn set(&mut self, name: &str, value: &[u8]) -> Result<&mut Self, EditError> {
        self.add(name, value)?.remove(name)
    }

    /// Adds a field, beside those of the same name.
    ///
    /// # Errors
    /// As [`remove`](Self::remove).
    pub fn add(&mut self, name: &str, value: &[u8]) -> Result<&mut Self, EditError> {
        checked(name)?;
        encode::header(&mut self.lines, name, value).map_err(|_| EditError::Value(name.to_owned()))?;
        Ok(self)
    }

    /// Whether nothing is changed.
    pub fn is_empty(&self) -> bool {
        self.drop.is_empty() && self.lines.is_empty()
    }

    /// The names of fields that are left out: those that are removed, and those that are set.
    pub fn dropped(&self) -> impl Iterator<Item = &str> {
        self.drop.iter().map(|name| &**name)
    }

    /// Names and values of the fields that are written: those that are set, and those that are added.
    pub fn written(&self) -> impl Iterator<Item = (&str, &str)> {
        // As `add` has written them; a value that is no text is not shown.
        let lines = self.lines.split(|&byte| byte == b'\n').filter_map(|line| str::from_utf8(line).ok());
        lines.filter_map(|line| line.trim_end_matches('\r').split_once(": "))
    }

    /// Whether a field of this name is left out.
    #[inline]
    pub(crate) fn drops(&self, name: &str) -> bool {
        self.lengths & bit(name) != 0 && self.drop.iter().any(|dropped| dropped.eq_ignore_ascii_case(name))
    }

    /// What is set and added.
    pub(crate) fn lines(&self) -> &[u8] {
        &self.lines
    }
}

const fn bit(name: &str) -> u64 {
    1 << if name.len() < 63 { name.len() } else { 63 }
}

fn checked(name: &str) -> Result<(), EditError> {
    const MANAGED: [&str; 11] = [
        // RFC 8586, section 3: nobody may be able to take it out.
        "cdn-loop",
        "connection",
        "content-length",
        // Whether the client waits for a 100 is known of its connection.
        "expect",
        "host",
        "keep-alive",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    ];
    if MANAGED.iter().any(|managed| managed.eq_ignore_ascii_case(name)) {
        return Err(EditError::Managed(name.to_owned()));
    }
    // Written where it does not matter, for the one check of names that there is.
    encode::header(&mut Vec::new(), name, b"").map_err(|_| EditError::Name(name.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_replaces_and_what_is_added_does_not() {
        let mut edits = Edits::none();
        edits.set("X-Set", b"1").unwrap().add("X-Add", b"2").unwrap().remove("X-Gone").unwrap();
        assert!(edits.drops("x-set") && edits.drops("X-GONE") && !edits.drops("x-add") && !edits.drops("x-none"));
        assert_eq!(edits.lines(), b"X-Set: 1\r\nX-Add: 2\r\n");
        assert_eq!(edits.dropped().collect::<Vec<_>>(), ["X-Set", "X-Gone"]);
        assert_eq!(edits.written().collect::<Vec<_>>(), [("X-Set", "1"), ("X-Add", "2")]);
        let long = "x".repeat(200);
        edits.remove(&long).unwrap();
        assert!(edits.drops(&long) && !edits.drops(&"y".repeat(100)));
    }

    #[test]
    fn nothing_can_be_smuggled_in() {
        let mut edits = Edits::none();
        assert!(matches!(edits.set("a b", b""), Err(EditError::Name(_))));
        assert!(matches!(edits.add("A", b"1\r\nB: 2"), Err(EditError::Value(_))));
        assert!(matches!(edits.add("Content-length", b"1"), Err(EditError::Managed(_))));
        assert!(matches!(edits.remove("transfer-Encoding"), Err(EditError::Managed(_))));
        assert!(matches!(edits.set("Expect", b"100-continue"), Err(EditError::Managed(_))));
        assert!(edits.is_empty());
    }
}
