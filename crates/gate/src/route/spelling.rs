//! The ways in which servers may read a path.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Why a path has no reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// A `%` without two hexadecimal digits after it.
    #[error("`%` in the path is not followed by two hexadecimal digits")]
    Escape,
    /// An escaped NUL, which some servers read as the end.
    #[error("the path has a NUL in it")]
    Nul,
    /// More `..` than segments before them.
    #[error("`..` in the path leads out of the root")]
    Above,
}

/// The readings of a path by upstreams. A server may resolve `..` and `//` or keep them, undo all escapes or only those
/// of unreserved characters, cut off parameters at `;`, read `\` as `/`, and drop white space and control characters
/// around segments. A route counts only if all readings take it; otherwise another spelling could bypass a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathReadings<'a> {
    /// Escapes of printable ASCII undone, non-ASCII escaped, empty segments and `.` removed, `..` resolved.
    pub plain: Cow<'a, str>,
    /// The other readings, without duplicates.
    others: Vec<String>,
}

impl PathReadings<'_> {
    /// Returns the readings that differ from the plain one.
    pub fn others(&self) -> impl Iterator<Item = &str> {
        self.others.iter().map(String::as_str)
    }
}

/// Reads the path of a request target (without its query). The upstream still receives the original spelling.
///
/// # Errors
/// [`PathError`]: refuse the request, because the upstream might find another resource than the route's rules describe.
pub fn readings(path: &str) -> Result<PathReadings<'_>, PathError> {
    let bytes = path.as_bytes();
    let is_plain = memchr::memchr3(b'%', b';', b'\\', bytes).is_none()
        && path.is_ascii()
        && !bytes.windows(2).any(|pair| pair[0] == b'/' && matches!(pair[1], b'/' | b'.'));
    if is_plain {
        return Ok(PathReadings { plain: Cow::Borrowed(path), others: Vec::new() });
    }
    let all = decoded(path, true)?;
    let plain = fold(&all, Empty::LeftOut)?;
    let mut spelled = Vec::new();
    let cut = without_parameters(path);
    for (text, all_undone) in [
        (decoded(path, false)?, None),
        (decoded(&cut, false)?, None),
        (all, Some(())),
        (decoded(&cut, true)?, Some(())),
    ] {
        // After a server has undone all escapes, the characters may end the path or a segment.
        let text = if all_undone.is_some() { vec![without_parameters(&text), text] } else { vec![text] };
        for text in text {
            if text.contains('\\') {
                let turned = text.replace('\\', "/");
                add(&mut spelled, without_parameters(&turned));
                add(&mut spelled, turned);
            }
            add(&mut spelled, text);
        }
    }
    for number in 0..spelled.len() {
        if let Some(trimmed) = without_blanks(&spelled[number]) {
            add(&mut spelled, trimmed);
        }
    }
    let mut others = Vec::with_capacity(2 * spelled.len());
    for text in spelled {
        if has_odd_segments(&text) {
            let dots_alone = fold(&text, Empty::Kept)?;
            add(&mut others, merged(&dots_alone));
            add(&mut others, dots_alone);
            add(&mut others, merged(&text));
            add(&mut others, fold(&text, Empty::LeftOut)?);
        }
        add(&mut others, text);
    }
    others.retain(|other| *other != plain);
    Ok(PathReadings { plain: Cow::Owned(plain), others })
}

fn add(texts: &mut Vec<String>, text: String) {
    if !texts.contains(&text) {
        texts.push(text);
    }
}

/// Returns whether resolving `.`, `..` and empty segments changes a path.
fn has_odd_segments(path: &str) -> bool {
    path.split('/').skip(1).any(|segment| matches!(segment, "" | "." | ".."))
}

/// Cuts each segment at `;`, where its parameters begin (RFC 3986, section 3.3), and the path at a `?` or `#`, which
/// can only come from an escape.
fn without_parameters(path: &str) -> String {
    let path = path.split(['?', '#']).next().unwrap_or_default();
    let mut cut = String::with_capacity(path.len());
    for (number, segment) in path.split('/').enumerate() {
        if number > 0 {
            cut.push('/');
        }
        cut.push_str(segment.split(';').next().unwrap_or_default());
    }
    cut
}

/// Removes white space and control characters at both ends of each segment, if there are any. Expects the output of
/// [`decoded`], where all of them but the space are escapes.
fn without_blanks(path: &str) -> Option<String> {
    let mut trimmed = String::with_capacity(path.len());
    for (number, segment) in path.split('/').enumerate() {
        if number > 0 {
            trimmed.push('/');
        }
        let mut rest = segment;
        while let Some((_, behind)) =
            BLANKS.iter().find_map(|&length| rest.split_at_checked(length).filter(|(blank, _)| is_blank(blank)))
        {
            rest = behind;
        }
        while let Some((before, _)) = BLANKS.iter().find_map(|&length| {
            let place = rest.len().checked_sub(length)?;
            rest.split_at_checked(place).filter(|(_, blank)| is_blank(blank))
        }) {
            rest = before;
        }
        trimmed.push_str(rest);
    }
    (trimmed.len() < path.len()).then_some(trimmed)
}

/// The lengths of white space and control characters: a space, an escape.
const BLANKS: [usize; 2] = [1, 3];

fn is_blank(text: &str) -> bool {
    match *text.as_bytes() {
        [byte] => byte == b' ',
        [b'%', high, low] => matches!((high, low), (b'0' | b'1', _) | (b'2', b'0') | (b'7', b'F')),
        _ => false,
    }
}

/// Merges consecutive slashes.
fn merged(path: &str) -> String {
    let mut merged = String::with_capacity(path.len());
    for character in path.chars() {
        if character != '/' || !merged.ends_with('/') {
            merged.push(character);
        }
    }
    merged
}

/// Returns the plain reading, for paths of a configuration.
///
/// # Errors
/// The errors of [`readings`].
pub fn plain_path(path: &str) -> Result<Cow<'_, str>, PathError> {
    readings(path).map(|readings| readings.plain)
}

/// Escapes non-ASCII characters: `/é` and `/%C3%A9` are one path.
#[must_use]
pub fn in_ascii(path: &str) -> Cow<'_, str> {
    if path.is_ascii() {
        return Cow::Borrowed(path);
    }
    let mut text = String::with_capacity(2 * path.len());
    for byte in path.bytes() {
        match byte.is_ascii() {
            true => text.push(char::from(byte)),
            // Writing to a string cannot fail.
            false => {
                let _ = write!(text, "%{byte:02X}");
            }
        }
    }
    Cow::Owned(text)
}

/// Undoes escapes of printable ASCII; without `all`, only those of letters, digits and `-._~`.
fn decoded(path: &str, all: bool) -> Result<String, PathError> {
    let mut text = String::with_capacity(path.len());
    let path = in_ascii(path);
    let mut rest = &*path;
    while let Some((before, behind)) = rest.split_once('%') {
        text.push_str(before);
        let byte = behind.get(..2).filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
        let byte = byte.and_then(|digits| u8::from_str_radix(digits, 16).ok()).ok_or(PathError::Escape)?;
        match byte {
            0 => return Err(PathError::Nul),
            _ if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) => text.push(char::from(byte)),
            // `%25` stays, because undoing it would make another escape. Bytes that are no character by themselves stay
            // too.
            b' '..=b'~' if all && byte != b'%' => text.push(char::from(byte)),
            _ => {
                text.push('%');
                text.push_str(&behind[..2].to_ascii_uppercase());
            }
        }
        rest = &behind[2..];
    }
    text.push_str(rest);
    Ok(text)
}

/// How to treat empty segments.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Empty {
    /// Merge `//` into `/` before anything else.
    LeftOut,
    /// Keep them as segments: `..` removes one (RFC 3986, section 5.2.4).
    Kept,
}

/// Resolves `.` and `..`.
fn fold(path: &str, empty: Empty) -> Result<String, PathError> {
    let mut segments: Vec<&str> = Vec::new();
    let (mut ends_open, mut ends_empty) = (false, false);
    for segment in path.strip_prefix('/').unwrap_or(path).split('/') {
        ends_open = matches!(segment, "" | "." | "..");
        ends_empty = segment.is_empty() && empty == Empty::Kept;
        match segment {
            "" if empty == Empty::LeftOut => {}
            "." => {}
            ".." => drop(segments.pop().ok_or(PathError::Above)?),
            _ => segments.push(segment),
        }
    }
    if ends_empty {
        // The text after the last slash is no segment.
        segments.pop();
    }
    let mut folded = String::with_capacity(path.len());
    for segment in &segments {
        folded.push('/');
        folded.push_str(segment);
    }
    if ends_open || segments.is_empty() {
        folded.push('/');
    }
    Ok(folded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_has_one_spelling_for_routes() {
        for (path, plain) in [
            ("/", "/"),
            ("/a/b", "/a/b"),
            ("/a.b/c.", "/a.b/c."),
            ("/%61dmin", "/admin"),
            ("/a/%2e%2E/admin", "/admin"),
            ("//admin", "/admin"),
            ("/a/./b/../admin/", "/a/admin/"),
            ("/a/..", "/"),
            ("/a%2fb", "/a/b"),
            ("/a%2520", "/a%2520"),
            ("/%c3%a9", "/%C3%A9"),
            ("/é/%61", "/%C3%A9/a"),
            ("*", "*"),
        ] {
            assert_eq!(plain_path(path).as_deref(), Ok(plain), "{path}");
        }
        for (path, error) in [
            ("/..", PathError::Above),
            ("/a/../..", PathError::Above),
            ("/%2e%2e/a", PathError::Above),
            ("/%", PathError::Escape),
            ("/%4", PathError::Escape),
            ("/%+1", PathError::Escape),
            ("/%é", PathError::Escape),
            ("/%00", PathError::Nul),
        ] {
            assert_eq!(plain_path(path), Err(error), "{path}");
        }
    }

    #[test]
    fn other_readings_are_what_servers_may_make_of_a_path() {
        for (path, expected) in [
            ("/%61dmin", &[][..]),
            ("/internal/../x", &["/internal/../x"]),
            ("/internal/%2e%2E/x", &["/internal/../x"]),
            ("//api", &["//api"]),
            ("/a%2fb%3b", &["/a%2Fb%3B", "/a/b;"]),
            // Merged slashes, by a server that keeps dots; resolved dots, by a server that counts empty segments.
            ("//a/../x", &["/a/../x", "//a/../x"]),
            ("/x/../a//../y", &["/a/y"]),
            // `..` removes one segment as the server counts them.
            ("/x%2fy/../a", &["/a"]),
            // Parameters, before and after undoing escapes, and with other slashes.
            ("/a;x", &["/a"]),
            ("/x/..;/a", &["/a"]),
            ("/;/a", &["/a"]),
            ("/%2e;/a", &["/a"]),
            ("/a%3bx", &["/a"]),
            ("/x/..%3B/a", &["/a"]),
            ("/x;%2f..%2f..%2fa/b", &["/x/b"]),
            ("/a;\\..\\..\\x", &["/a"]),
            ("/a%3fx", &["/a"]),
            ("/a%23x", &["/a"]),
            // White space and control characters at the ends of a segment.
            ("/a%09", &["/a", "/a%09"]),
            ("/a%0a/", &["/a/"]),
            ("/%0d%0Aa%20%7f", &["/a"]),
            ("/x/..%20/a", &["/a"]),
            ("/x/%0b../a", &["/a"]),
            ("/a%20;x", &["/a"]),
            ("/\\a%1f", &["/a"]),
            ("/a%2509", &["/a%2509"]),
            ("/a%0ab%20c", &["/a%0Ab%20c", "/a%0Ab c"]),
            // Other slashes.
            ("/\\a", &["/a"]),
            ("/x\\..\\a", &["/a"]),
            ("/%5ca", &["/a"]),
            ("/x%5C..%5ca", &["/a"]),
        ] {
            match readings(path) {
                Ok(read) => {
                    let others: Vec<&str> = read.others().collect();
                    let mut all = others.clone();
                    all.push(&read.plain);
                    assert!(expected.iter().all(|expected| all.contains(expected)), "{path}: {all:?}");
                    assert!(!others.contains(&&*read.plain), "{path}: {others:?}");
                }
                // One reading leads above the root, which is refused as well.
                Err(error) => assert_eq!(error, PathError::Above, "{path}"),
            }
        }
        assert_eq!(readings("/a/b").unwrap().others().count(), 0);
        assert_eq!(readings("/é").unwrap(), readings("/%c3%A9").unwrap());
        // A plain path needs no other readings, and the worst path has a bounded number.
        for (odd, most) in [("/a%2f;b/..%5c//\\x;%3b/./", 60), ("/a%2f;b%09/..%5c//\\x;%3b/.%20/", 120)] {
            let odd = format!("{}{}", "/y".repeat(400), odd.repeat(100));
            assert!(readings(&odd).is_ok_and(|read| read.others().count() <= most), "{odd:.900}");
        }
    }

    proptest::proptest! {
        #[test]
        fn a_plain_path_is_plain(path in "/[a%20eE/.;\\\\]{0,24}") {
            if let Ok(plain) = plain_path(&path) {
                let again = plain_path(&plain).map(Cow::into_owned);
                proptest::prop_assert_eq!(again, Ok(plain.clone().into_owned()), "{}", path);
                proptest::prop_assert!(!plain.split('/').any(|segment| segment == ".." || segment == "."));
            }
        }
    }
}
