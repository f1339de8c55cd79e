//! Edits of header fields by a route, compiled once and applied while a head is copied.

use oroshi_http1::{encode, is_connection_field};

/// Edits of a head's fields: of requests to the upstream, or of responses to the client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Edits {
    /// A bit per length of the names in `drop`, which skips most fields without comparing names.
    lengths: u64,
    /// Names of removed and set fields.
    drop: Vec<Box<str>>,
    /// Set and added fields, as field lines.
    lines: Vec<u8>,
}

/// Why a field cannot be edited.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EditError {
    /// The name is no token.
    #[error("{0:?} is no field name: letters, digits and -_.!#$%&'*+^`|~ only")]
    Name(String),
    /// The value contains a control character.
    #[error("the value for {0} holds a control character, such as a line break: leave it out")]
    Value(String),
    /// The gateway writes this field itself: it frames the message or belongs to one connection.
    #[error("{0} is written by the gateway itself: leave it out")]
    Managed(String),
}

impl Edits {
    /// Returns edits that change nothing.
    pub const fn none() -> Self {
        Edits { lengths: 0, drop: Vec::new(), lines: Vec::new() }
    }

    /// Removes every field of this name. Fields written by [`set`](Self::set) and [`add`](Self::add) stay.
    ///
    /// # Errors
    /// [`EditError`]; the edits are unchanged.
    pub fn remove(&mut self, name: &str) -> Result<&mut Self, EditError> {
        checked(name)?;
        self.lengths |= bit(name);
        self.drop.push(name.into());
        Ok(self)
    }

    /// Sets a field to this value, replacing all its values.
    ///
    /// # Errors
    /// The errors of [`remove`](Self::remove).
    pub fn set(&mut self, name: &str, value: &[u8]) -> Result<&mut Self, EditError> {
        self.add(name, value)?.remove(name)
    }

    /// Adds a field beside those of the same name.
    ///
    /// # Errors
    /// The errors of [`remove`](Self::remove).
    pub fn add(&mut self, name: &str, value: &[u8]) -> Result<&mut Self, EditError> {
        checked(name)?;
        encode::header(&mut self.lines, name, value).map_err(|_| EditError::Value(name.to_owned()))?;
        Ok(self)
    }

    /// Returns whether there are no edits.
    pub fn is_empty(&self) -> bool {
        self.drop.is_empty() && self.lines.is_empty()
    }

    /// Returns the names of removed and set fields.
    pub fn dropped(&self) -> impl Iterator<Item = &str> {
        self.drop.iter().map(|name| &**name)
    }

    /// Returns names and values of set and added fields.
    pub fn written(&self) -> impl Iterator<Item = (&str, &str)> {
        // The lines are as `add` wrote them; values that are not UTF-8 are left out.
        let lines = self.lines.split(|&byte| byte == b'\n').filter_map(|line| str::from_utf8(line).ok());
        lines.filter_map(|line| line.trim_end_matches('\r').split_once(": "))
    }

    /// Returns whether the edits drop a field of this name.
    #[inline]
    pub(crate) fn drops(&self, name: &str) -> bool {
        self.lengths & bit(name) != 0 && self.drop.iter().any(|dropped| dropped.eq_ignore_ascii_case(name))
    }

    /// Returns the lines of set and added fields.
    pub(crate) fn lines(&self) -> &[u8] {
        &self.lines
    }
}

const fn bit(name: &str) -> u64 {
    1 << if name.len() < 63 { name.len() } else { 63 }
}

fn checked(name: &str) -> Result<(), EditError> {
    // RFC 8586, section 3, does not let anybody remove `CDN-Loop`. The server knows from the client's connection
    // whether the client waits for a 100.
    let managed = ["cdn-loop", "expect", "host"].iter().any(|managed| managed.eq_ignore_ascii_case(name));
    if managed || is_connection_field(name) {
        return Err(EditError::Managed(name.to_owned()));
    }
    // Writes to a temporary buffer, to use the only check of names.
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
