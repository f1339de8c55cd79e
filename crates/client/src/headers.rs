//! Header fields that are owned: as text, in the order and the spelling in which they are sent or came.

use std::fmt;

use oroshi_http1::encode::{self, EncodeError};

/// Header fields, in one allocation: each a line `Name: value`. Names compare without regard to case.
///
/// `Debug` shows the values of fields that hold secrets ([`is_secret`](Self::is_secret)) as `***`.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Headers {
    /// Lines with their CRLF, without the empty one; each has passed the codec's checks.
    lines: Vec<u8>,
}

impl Headers {
    /// No fields.
    pub const fn new() -> Self {
        Headers { lines: Vec::new() }
    }

    /// What a decoder has checked.
    pub(crate) fn received(section: oroshi_http1::Headers<'_>) -> Self {
        Headers { lines: section.as_bytes().to_vec() }
    }

    /// Adds a field behind the others.
    ///
    /// # Errors
    /// The name is no token, or the value holds a control character; nothing is added then.
    pub fn append(&mut self, name: &str, value: impl AsRef<[u8]>) -> Result<(), EncodeError> {
        encode::header(&mut self.lines, name, value.as_ref())
    }

    /// Adds a field in the place of all others of its name.
    ///
    /// # Errors
    /// As [`append`](Self::append); nothing has changed then.
    pub fn set(&mut self, name: &str, value: impl AsRef<[u8]>) -> Result<(), EncodeError> {
        let before = self.lines.len();
        self.append(name, value)?;
        let added = self.lines.split_off(before);
        self.remove(name);
        self.lines.extend_from_slice(&added);
        Ok(())
    }

    /// Takes all fields of this name out. Returns whether there was one.
    pub fn remove(&mut self, name: &str) -> bool {
        let before = self.lines.len();
        let mut kept = Vec::with_capacity(before);
        for line in self.lines.split_inclusive(|&byte| byte == b'\n') {
            if !split(line).0.eq_ignore_ascii_case(name) {
                kept.extend_from_slice(line);
            }
        }
        self.lines = kept;
        self.lines.len() < before
    }

    /// The value of the first field of this name.
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        self.get_all(name).next()
    }

    /// The value of the first field of this name, if it is UTF-8.
    pub fn get_str(&self, name: &str) -> Option<&str> {
        str::from_utf8(self.get(name)?).ok()
    }

    /// The values of all fields of this name, in their order.
    pub fn get_all(&self, name: &str) -> impl Iterator<Item = &[u8]> {
        self.iter().filter(move |(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// Whether there is a field of this name.
    pub fn contains(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// All fields, in their order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.lines.split_inclusive(|&byte| byte == b'\n').map(split)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Whether the value of a field of this name belongs in no log, and to no other origin. By its name, as everybody has a name of
    /// their own for a key: all that contain `auth`, `cookie`, `token`, `secret`, `session`, `api-key` or `apikey`, in whatever case.
    /// Hiding or dropping one too many costs less than giving a secret away.
    pub fn is_secret(name: &str) -> bool {
        const SECRET: [&str; 7] = ["auth", "cookie", "token", "secret", "session", "api-key", "apikey"];
        let name = name.to_ascii_lowercase();
        SECRET.iter().any(|secret| name.contains(secret))
    }

    /// The lines as they stand in a head.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.lines
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

/// A checked line's name, and its value without the white space around it.
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
