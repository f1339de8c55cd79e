//! Forms with files: `multipart/form-data` (RFC 7578).

use bytes::Bytes;

/// The parts of a form, in memory.
///
/// ```
/// use oroshi_client::Multipart;
///
/// let form = Multipart::new().text("title", "A picture").file("picture", "cat.png", "image/png", [0x89, b'P']);
/// assert!(form.content_type().starts_with("multipart/form-data; boundary=oroshi-"));
/// ```
#[derive(Clone, Debug)]
pub struct Multipart {
    boundary: String,
    parts: Vec<u8>,
    is_bad: bool,
}

impl Default for Multipart {
    fn default() -> Self {
        Self::new()
    }
}

impl Multipart {
    /// Returns a form without parts.
    pub fn new() -> Self {
        // 128 random bits: no content contains them by chance (RFC 2046, section 5.1.1).
        let boundary = format!("oroshi-{:016x}{:016x}", fastrand::u64(..), fastrand::u64(..));
        Multipart { boundary, parts: Vec::new(), is_bad: false }
    }

    /// Adds a field.
    pub fn text(self, name: &str, value: impl AsRef<[u8]>) -> Self {
        self.part(name, None, None, value)
    }

    /// Adds a file. `content_type`: such as `image/png`; where it is unknown, `application/octet-stream`.
    pub fn file(self, name: &str, filename: &str, content_type: &str, content: impl AsRef<[u8]>) -> Self {
        self.part(name, Some(filename), Some(content_type), content)
    }

    /// Adds a part. A type with control characters cannot be sent: then the request fails.
    pub fn part(
        mut self,
        name: &str,
        filename: Option<&str>,
        content_type: Option<&str>,
        content: impl AsRef<[u8]>,
    ) -> Self {
        let mut head = format!("--{}\r\nContent-Disposition: form-data; name=\"{}\"", self.boundary, quoted(name));
        if let Some(filename) = filename {
            head.push_str(&format!("; filename=\"{}\"", quoted(filename)));
        }
        if let Some(kind) = content_type {
            self.is_bad |= kind.bytes().any(|byte| byte.is_ascii_control());
            head.push_str(&format!("\r\nContent-Type: {kind}"));
        }
        for piece in [head.as_bytes(), b"\r\n\r\n", content.as_ref(), b"\r\n"] {
            self.parts.extend_from_slice(piece);
        }
        self
    }

    /// Returns the value of the request's `Content-Type`.
    pub fn content_type(&self) -> String {
        format!("multipart/form-data; boundary={}", self.boundary)
    }

    /// Whether a part's type has control characters, which cannot be sent.
    pub fn is_bad(&self) -> bool {
        self.is_bad
    }

    /// Returns the body.
    pub fn into_body(mut self) -> Bytes {
        self.parts.extend_from_slice(format!("--{}--\r\n", self.boundary).as_bytes());
        self.parts.into()
    }
}

/// Quotes a name as browsers do (the HTML Standard, section 4.10.21.8): a quote or a line break would end it.
fn quoted(name: &str) -> String {
    name.replace('"', "%22").replace('\r', "%0D").replace('\n', "%0A")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_written_as_browsers_write_them() {
        let form = Multipart::new().text("a", "1").file("f\"\r\n", "c.png", "image/png", b"\x00\xff").part(
            "g",
            None,
            Some("text/plain"),
            "",
        );
        assert!(!form.is_bad());
        let boundary = form.boundary.clone();
        let expected = [
            &b"--B\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n1\r\n"[..],
            b"--B\r\nContent-Disposition: form-data; name=\"f%22%0D%0A\"; filename=\"c.png\"\r\n",
            b"Content-Type: image/png\r\n\r\n\x00\xff\r\n",
            b"--B\r\nContent-Disposition: form-data; name=\"g\"\r\nContent-Type: text/plain\r\n\r\n\r\n--B--\r\n",
        ]
        .concat();
        let body = form.into_body().escape_ascii().to_string().replace(&boundary, "B");
        assert_eq!(body, expected.escape_ascii().to_string());
        assert_ne!(Multipart::new().boundary, Multipart::new().boundary);
    }

    #[test]
    fn a_type_cannot_add_a_field() {
        assert!(Multipart::new().file("f", "x", "text/plain\r\nX-Y: z", "").is_bad());
    }
}
