//! Splits and decodes a request's target: path, query, percent-encoding.

use std::borrow::Cow;

use crate::nearest;

/// Returns the path and the query of a request target, still encoded, without any scheme and authority.
pub fn split(target: &str) -> (&str, &str) {
    // The search is for the rare absolute form alone: this runs several times per request.
    let scheme = if target.starts_with('/') { None } else { target.find("://") };
    let origin = scheme.map_or(target, |scheme| {
        let rest = &target[scheme + 3..];
        rest.find(['/', '?']).map_or("/", |at| &rest[at..])
    });
    origin.split_once('?').unwrap_or((origin, ""))
}

/// Returns the decoded pairs of a query; a name without a value has an empty one. An invalid escape yields an error
/// in its place.
pub fn pairs(query: &str) -> impl Iterator<Item = Result<(Cow<'_, str>, Cow<'_, str>), String>> {
    query.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        Ok((decode(name, true)?, decode(value, true)?))
    })
}

/// Decodes a part of a path.
///
/// # Errors
/// A message about the invalid escape.
pub fn segment(text: &str) -> Result<Cow<'_, str>, String> {
    decode(text, false)
}

/// Returns the message for an unknown name in a query.
pub fn unknown(name: &str, known: &[&str]) -> String {
    let hint = match nearest(name, known.iter().copied()) {
        Some(near) => format!("did you mean `{near}`?"),
        None if known.is_empty() => "expected none".to_owned(),
        None => format!("expected one of {}", known.join(", ")),
    };
    format!("there is no parameter `{name}` here: {hint}")
}

/// Decodes percent-encoding; in a query, `+` is a space (as in HTML forms).
fn decode(text: &str, in_query: bool) -> Result<Cow<'_, str>, String> {
    if !text.contains('%') && (!in_query || !text.contains('+')) {
        return Ok(Cow::Borrowed(text));
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' if in_query => b' ',
            b'%' => match (rest.next().and_then(digit), rest.next().and_then(digit)) {
                (Some(high), Some(low)) => high << 4 | low,
                _ => {
                    return Err(format!("`{text}` has a % without two hexadecimal digits behind it: expected %25"));
                }
            },
            byte => byte,
        });
    }
    String::from_utf8(bytes).map(Cow::Owned).map_err(|_| format!("`{text}` is not UTF-8 once it is decoded"))
}

fn digit(byte: u8) -> Option<u8> {
    (byte as char).to_digit(16).map(|digit| digit as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_taken_apart() {
        for (target, parts) in [
            ("/a/b?c=d?e", ("/a/b", "c=d?e")),
            ("/a", ("/a", "")),
            ("/?", ("/", "")),
            ("http://example.org/a?b", ("/a", "b")),
            ("http://example.org?b", ("", "b")),
            ("http://example.org", ("/", "")),
            ("/redirect?to=http://x/y", ("/redirect", "to=http://x/y")),
            ("/a://b", ("/a://b", "")),
            ("*", ("*", "")),
        ] {
            assert_eq!(split(target), parts, "{target}");
        }
    }

    #[test]
    fn queries_are_decoded() {
        let read = |query: &'static str| -> Vec<(String, String)> {
            pairs(query)
                .map(|pair| pair.map(|(name, value)| (name.into_owned(), value.into_owned())).unwrap())
                .collect()
        };
        let own = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
        };
        assert_eq!(read("a=b+c&d=%2f%C3%A9&&e&f=g=h"), own(&[("a", "b c"), ("d", "/é"), ("e", ""), ("f", "g=h")]));
        assert_eq!(read(""), own(&[]));
        assert_eq!(segment("a+b%20c").unwrap(), "a+b c");
        for bad in ["%", "%4", "%zz", "%ff", "a%"] {
            assert!(segment(bad).is_err(), "{bad}");
        }
    }
}
