//! Owned header fields: as text, in the order and spelling of the wire.

use std::fmt;

use oroshi_http1::encode::{self, EncodeError};

/// Header fields in one allocation: each is a line `Name: value`. Names are case-insensitive.
///
/// `Debug` shows the values of fields that hold secrets ([`is_secret`](Self::is_secret)) as `***`.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Headers {
    /// Lines with their CRLF, without the final empty line; the codec has checked each.
    lines: Vec<u8>,
}

impl Headers {
    /// Returns an empty set.
    pub const fn new() -> Self {
        Headers { lines: Vec::new() }
    }

    /// Copies fields that a decoder has checked.
    pub(crate) fn received(section: oroshi_http1::Headers<'_>) -> Self {
        Headers { lines: section.as_bytes().to_vec() }
    }

    /// Appends a field.
    ///
    /// # Errors
    /// The name is no token, or the value holds a control character; nothing changes then.
    pub fn append(&mut self, name: &str, value: impl AsRef<[u8]>) -> Result<(), EncodeError> {
        encode::header(&mut self.lines, name, value.as_ref())
    }

    /// Adds a field, and removes all others of its name.
    ///
    /// # Errors
    /// As [`append`](Self::append); nothing changes then.
    pub fn set(&mut self, name: &str, value: impl AsRef<[u8]>) -> Result<(), EncodeError> {
        let before = self.lines.len();
        self.append(name, value)?;
        let added = self.lines.split_off(before);
        self.remove(name);
        self.lines.extend_from_slice(&added);
        Ok(())
    }

    /// Removes all fields of this name. Returns whether there was one.
    pub fn remove(&mut self, name: &str) -> bool {
        let before = self.lines.len();
        let mut kept = Vec::with_capacity(before);
        for line in self.lines() {
            if value_of(line, name).is_none() {
                kept.extend_from_slice(line);
            }
        }
        self.lines = kept;
        self.lines.len() < before
    }

    /// Returns the value of the first field of this name.
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        self.get_all(name).next()
    }

    /// Returns the value of the first field of this name, if it is UTF-8.
    pub fn get_str(&self, name: &str) -> Option<&str> {
        str::from_utf8(self.get(name)?).ok()
    }

    /// Iterates over the values of all fields of this name, in order.
    pub fn get_all(&self, name: &str) -> impl Iterator<Item = &[u8]> {
        self.lines().filter_map(move |line| value_of(line, name))
    }

    /// Whether there is a field of this name.
    pub fn contains(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// Iterates over all fields, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.lines().map(split)
    }

    /// Whether there are no fields.
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Whether the value of a field of this name must reach neither logs nor other origins. It decides by the name,
    /// because names of keys vary: all that contain `auth`, `cookie`, `token`, `secret`, `session`, `api-key` or
    /// `apikey`, in any case. Hiding one field too many costs less than leaking a secret.
    pub fn is_secret(name: &str) -> bool {
        const SECRET: [&str; 7] = ["auth", "cookie", "token", "secret", "session", "api-key", "apikey"];
        let name = name.to_ascii_lowercase();
        SECRET.iter().any(|secret| name.contains(secret))
    }

    /// Returns the lines as in a head.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.lines
    }

    fn lines(&self) -> impl Iterator<Item = &[u8]> {
        let mut begin = 0;
        memchr::memchr_iter(b'\n', &self.lines).map(move |end| {
            let line = &self.lines[begin..=end];
            begin = end + 1;
            line
        })
    }
}

impl fmt::Debug for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = self.iter().map(|(name, value)| {
            let value = if Headers::is_secret(name) { "***".to_owned() } else { value.escape_ascii().to_string() };
            (name, value)
        });
        f.debug_map().entries(shown).finish()
    }
}

/// Returns a checked line's value without surrounding white space, if it has this name.
fn value_of<'l>(line: &'l [u8], name: &str) -> Option<&'l [u8]> {
    let (known, rest) = line.split_at_checked(name.len())?;
    let has_name = rest.first() == Some(&b':') && known.eq_ignore_ascii_case(name.as_bytes());
    has_name.then(|| rest[1..].trim_ascii())
}

/// Returns a checked line's name, and its value without surrounding white space.
fn split(line: &[u8]) -> (&str, &[u8]) {
    let colon = line.iter().position(|&byte| byte == b':').unwrap_or(line.len());
    let (name, rest) = line.split_at(colon);
    // A token is ASCII.
    (str::from_utf8(name).unwrap_or_default(), rest.get(1..).unwrap_or_default().trim_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_keep_their_order_and_names_ignore_case() {
        let mut headers = Headers::new();
        headers.append("Accept", "a").unwrap();
        headers.append("X-Empty", "").unwrap();
        headers.append("accept", " b ").unwrap();
        assert_eq!(headers.get("ACCEPT"), Some(&b"a"[..]));
        assert_eq!(headers.get_all("Accept").collect::<Vec<_>>(), [b"a", b"b"]);
        assert_eq!(headers.get("X-Empty"), Some(&b""[..]));
        headers.set("Accept", "c").unwrap();
        assert_eq!(headers.iter().collect::<Vec<_>>(), [("X-Empty", &b""[..]), ("Accept", &b"c"[..])]);
        assert!(headers.remove("accept") && !headers.remove("accept"));
        assert!(!headers.is_empty() && !headers.contains("Accept"));
    }

    #[test]
    fn nothing_is_smuggled_into_a_line() {
        let mut headers = Headers::new();
        headers.append("A", "1").unwrap();
        assert_eq!(headers.append("B", "1\r\nC: 2"), Err(EncodeError::Value));
        assert_eq!(headers.set("A", "\n"), Err(EncodeError::Value));
        assert_eq!(headers.append("B\r\nC", "1"), Err(EncodeError::Name));
        assert_eq!(headers.as_bytes(), b"A: 1\r\n");
    }

    #[test]
    fn secrets_do_not_show() {
        let mut headers = Headers::new();
        for name in [
            "Authorization",
            "COOKIE",
            "Set-Cookie",
            "Proxy-Authorization",
            "X-Api-Key",
            "ApiKey",
            "X-Amz-Security-Token",
            "PRIVATE-TOKEN",
            "X-Client-Secret",
            "X-Session-Id",
            "X-Authentication",
        ] {
            headers.append(name, "hidden-value").unwrap();
        }
        headers.append("Accept", "shown").unwrap();
        let text = format!("{headers:?}");
        assert!(text.contains("shown") && text.contains("Authorization") && !text.contains("hidden"), "{text}");
    }
}
