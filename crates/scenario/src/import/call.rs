//! A request as a script makes it: what matters of it, with its body by kind.

use url::Url;

use oroshi_words::query;

/// The most fields of a form, or parts of a multipart body, that are written as a table.
const MOST_FIELDS: usize = 500;
/// The most values in a JSON body that is written as a table.
const MOST_VALUES: usize = 2_000;
/// The deepest JSON that is written as a table; LuaJIT's parser stops at 200 levels.
const MOST_LEVELS: usize = 50;
/// The largest whole number that both JSON and Lua write exactly.
const MOST_WHOLE: u64 = 1 << 53;

/// A step of the script.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) method: String,
    pub(super) url: Url,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Body,
    /// Statuses that the response may have; empty: not checked.
    pub(super) expect: Vec<u16>,
    pub(super) redirects: Option<u32>,
    /// Seconds.
    pub(super) timeout: Option<f64>,
    /// Comments above the call.
    pub(super) notes: Vec<String>,
    /// The page that begins here: its title.
    pub(super) page: Option<String>,
    /// Seconds before the call.
    pub(super) think: Option<f64>,
    /// Whether `user:assets` follows.
    pub(super) assets: bool,
    /// What the response had, for values that come back.
    pub(super) answer: Answer,
    /// Cookies to set before the call.
    pub(super) cookies: Vec<(String, String)>,
}

impl Call {
    /// A call without anything more.
    pub(super) fn new(method: String, url: Url) -> Self {
        Self {
            method,
            url,
            headers: Vec::new(),
            body: Body::None,
            expect: Vec::new(),
            redirects: None,
            timeout: None,
            notes: Vec::new(),
            page: None,
            think: None,
            assets: false,
            answer: Answer::None,
            cookies: Vec::new(),
        }
    }

    /// Returns the decoded query, if it is one of pairs.
    pub(super) fn query(&self) -> Option<Vec<(String, String)>> {
        pairs(self.url.query()?)
    }

    /// Returns a header.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        find(&self.headers, name)
    }

    /// Sets the body by its content type, which is then no header if the script's function sets the same.
    pub(super) fn set_body(&mut self, bytes: Vec<u8>, content_type: Option<&str>) {
        self.body = Body::of(bytes, content_type);
        let essence = content_type.map(essence).unwrap_or_default();
        let implied = match &self.body {
            Body::None | Body::Bytes(_) => false,
            Body::Form(_) | Body::Multipart(_) => true,
            Body::Json(_) => essence == "application/json",
        };
        self.headers.retain(|(name, _)| !name.eq_ignore_ascii_case("Content-Type"));
        if let Some(kind) = content_type.filter(|_| !implied) {
            self.headers.push(("Content-Type".into(), kind.into()));
        }
    }
}

/// What a response had.
#[derive(Debug)]
pub(super) enum Answer {
    None,
    Html(Vec<u8>),
    Json(serde_json::Value),
}

/// A request's body.
#[derive(Debug)]
pub(super) enum Body {
    None,
    Form(Vec<(String, String)>),
    Json(serde_json::Value),
    Multipart(Vec<Part>),
    Bytes(Vec<u8>),
}

/// A part of a multipart body.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) name: String,
    pub(super) filename: Option<String>,
    pub(super) kind: Option<String>,
    pub(super) body: Vec<u8>,
}

impl Body {
    /// Reads a body by its content type. What cannot be written as a table stays bytes.
    fn of(bytes: Vec<u8>, content_type: Option<&str>) -> Self {
        if bytes.is_empty() {
            return Self::None;
        }
        let read = content_type.and_then(|kind| match &*essence(kind) {
            "application/x-www-form-urlencoded" => pairs(str::from_utf8(&bytes).ok()?).map(Self::Form),
            "multipart/form-data" => parts(&bytes, boundary(kind)?).map(Self::Multipart),
            kind if is_json(kind) => {
                let json = serde_json::from_slice(&bytes).ok()?;
                let mut room = MOST_VALUES;
                (matches!(json, serde_json::Value::Object(_) | serde_json::Value::Array(_))
                    && is_expressible(&json, MOST_LEVELS, &mut room))
                .then_some(Self::Json(json))
            }
            _ => None,
        });
        read.unwrap_or(Self::Bytes(bytes))
    }
}

/// Whether a content type is one of JSON.
pub(super) fn is_json(essence: &str) -> bool {
    essence == "application/json" || essence.ends_with("+json")
}

/// Returns a content type without its parameters, in small letters.
pub(super) fn essence(kind: &str) -> String {
    kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

/// Returns the value of a field, whatever the case of its name.
pub(super) fn find<'f>(fields: &'f [(String, String)], name: &str) -> Option<&'f str> {
    fields.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| &**value)
}

/// Decodes `a=b&c=d`; `None` if that loses something.
pub(super) fn pairs(text: &str) -> Option<Vec<(String, String)>> {
    // An empty name, or a name without `=`, would be written in another way.
    if text.split('&').any(|pair| pair.find('=').is_none_or(|at| at == 0)) {
        return None;
    }
    let pairs = query::pairs(text).map(|pair| pair.map(|(name, value)| (name.into_owned(), value.into_owned())).ok());
    pairs.collect::<Option<Vec<_>>>().filter(|pairs| pairs.len() <= MOST_FIELDS)
}

/// Whether a Lua table becomes the same JSON: no null, no number that a double does not hold.
fn is_expressible(json: &serde_json::Value, levels: usize, room: &mut usize) -> bool {
    use serde_json::Value;
    if levels == 0 || *room == 0 {
        return false;
    }
    *room -= 1;
    match json {
        Value::Null => false,
        Value::Bool(_) | Value::String(_) => true,
        Value::Number(number) => {
            let whole = number.as_u64().or_else(|| number.as_i64().map(i64::unsigned_abs));
            whole.map_or(number.as_f64().is_some(), |whole| whole <= MOST_WHOLE)
        }
        Value::Array(values) => values.iter().all(|value| is_expressible(value, levels - 1, room)),
        Value::Object(fields) => fields.values().all(|value| is_expressible(value, levels - 1, room)),
    }
}

/// Returns the boundary of a multipart content type.
fn boundary(kind: &str) -> Option<&str> {
    let parameter = |part: &&str| part.trim_start().get(..9).is_some_and(|name| name.eq_ignore_ascii_case("boundary="));
    let found = kind.split(';').skip(1).find(parameter)?.trim();
    Some(found[9..].trim_matches('"')).filter(|boundary| !boundary.is_empty())
}

/// Splits a multipart body; `None` if it is malformed, or if a table cannot hold its parts.
fn parts(body: &[u8], boundary: &str) -> Option<Vec<Part>> {
    let text = |bytes: &[u8]| str::from_utf8(bytes).map(str::to_owned).ok();
    let mark = format!("--{boundary}");
    let mut rest = body.strip_prefix(mark.as_bytes())?;
    let next = format!("\r\n{mark}");
    let mut parts: Vec<Part> = Vec::new();
    while let Some(part) = rest.strip_prefix(b"\r\n") {
        let head_end = position(part, b"\r\n\r\n")?;
        let (head, content) = (text(&part[..head_end])?, &part[head_end + 4..]);
        let end = position(content, next.as_bytes())?;
        rest = &content[end + next.len()..];
        let (mut disposition, mut kind) = (None, None);
        for line in head.split("\r\n") {
            let (name, value) = line.split_once(':')?;
            match &*name.to_ascii_lowercase() {
                "content-disposition" => disposition = Some(value.trim().to_owned()),
                "content-type" => kind = Some(value.trim().to_owned()),
                _ => return None,
            }
        }
        let disposition = disposition?;
        let parameter = |name: &str| {
            let after = &disposition[disposition.find(&format!("; {name}=\""))? + name.len() + 4..];
            let value = &after[..after.find('"')?];
            Some(value.replace("%22", "\"").replace("%0D", "\r").replace("%0A", "\n"))
        };
        let (name, filename) = (parameter("name")?, parameter("filename"));
        // A table has one value for a name; text with a type of its own is a file to the server.
        if parts.len() == MOST_FIELDS || parts.iter().any(|known| known.name == name) {
            return None;
        }
        parts.push(Part { name, filename, kind, body: content[..end].to_vec() });
    }
    rest.starts_with(b"--").then_some(parts).filter(|parts| !parts.is_empty())
}

fn position(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    // Browsers' boundaries are rare in bodies, so that each window ends at its first byte.
    haystack.windows(needle.len()).position(|window| window == needle)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_read_by_its_type() {
        let body = |text: &str, kind: &str| format!("{:?}", Body::of(text.as_bytes().to_vec(), Some(kind)));
        let form = "application/x-www-form-urlencoded";
        assert_eq!(body("a=b+c&d=%C3%A9", form), r#"Form([("a", "b c"), ("d", "é")])"#);
        for lossy in ["a&b=c", "=c", "a=%zz", "a=%ff", "&"] {
            assert!(body(lossy, form).starts_with("Bytes"), "{lossy}");
        }
        let json = "application/json; charset=utf-8";
        assert!(body(r#"{"a":[1,{}]}"#, json).starts_with("Json"));
        assert!(body("[1]", "application/vnd.api+json").starts_with("Json"));
        for other in [r#"{"a":null}"#, "\"text\"", "{", "[9007199254740993]", &("[".repeat(60) + &"]".repeat(60))] {
            assert!(body(other, json).starts_with("Bytes"), "{other}");
        }
        assert!(body("<a/>", "text/xml").starts_with("Bytes"));
    }

    #[test]
    fn multipart_is_split_into_its_parts() {
        let text = "--x\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\nb\r\n--x\r\nContent-Disposition: form-data; \
                    name=\"f\"; filename=\"n%22.txt\"\r\nContent-Type: text/plain\r\n\r\nc\r\nd\r\n--x--\r\n";
        let Body::Multipart(parts) = Body::of(text.into(), Some("multipart/form-data; Boundary=\"x\"")) else {
            panic!("no parts")
        };
        let shown: Vec<_> = parts.iter().map(|part| (&*part.name, part.filename.as_deref(), &*part.body)).collect();
        assert_eq!(shown, [("a", None, &b"b"[..]), ("f", Some("n\".txt"), b"c\r\nd")]);
        assert_eq!(parts[1].kind.as_deref(), Some("text/plain"));
        for broken in [&text[..text.len() - 6], &text.replace("name=\"f\"", "name=\"a\""), &text[3..], "--x--\r\n"] {
            let body = Body::of(broken.into(), Some("multipart/form-data; boundary=x"));
            assert!(matches!(body, Body::Bytes(_)), "{broken}");
        }
    }
}
