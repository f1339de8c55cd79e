//! Which route a request takes: the most specific one that fits.
//!
//! Of all routes that fit a request, the one with the most specific host wins (a name before a wildcard, a long wildcard before a short
//! one, any host last), then the longest path, then the most conditions on method and header fields, then the one written first.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::fmt::Write as _;

use oroshi_http1::Headers;

/// What a request must have to take a route. `Default` fits every request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Matcher {
    /// Any of these hosts; empty: any host.
    pub hosts: Vec<HostPattern>,
    /// The beginning of its path, at whole segments: `/api` fits `/api` and `/api/x`, not `/apix`. Empty: any path.
    pub path: String,
    /// Any of these methods; empty: any method.
    pub methods: Vec<String>,
    /// All of these header fields.
    pub headers: Vec<HeaderPattern>,
}

/// Hosts, in canonical form: lower case, ASCII, without a port, without a dot at the end.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum HostPattern {
    /// This one.
    Exact(String),
    /// Every name below this one, however deep: `*.example.org` is `Below("example.org")`, which is not among them itself.
    Below(String),
}

/// A header field that must be there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderPattern {
    /// Its name, in any spelling.
    pub name: String,
    /// Its value; `None`: any. Where several fields have the name, [`Asked::repeated`] says which of them must have it.
    pub value: Option<String>,
}

/// Which of several fields of one name decide. A server behind may go by the first, by the last, or by all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeated {
    /// One that fits is enough.
    Any,
    /// All must fit.
    All,
}

/// What of a request decides about its route.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// The host, in canonical form; empty: the request names none.
    pub host: &'a str,
    /// The path, in one of its [`readings`].
    pub path: &'a str,
    /// The method.
    pub method: &'a str,
    /// All header fields.
    pub headers: Headers<'a>,
    /// Which fields of one name must have a rule's value.
    pub repeated: Repeated,
}

/// All routes, by host. A request looks at those alone that its host can take.
#[derive(Debug, Default)]
pub struct Table {
    routes: Vec<Matcher>,
    /// Numbers of routes, the most specific first.
    exact: HashMap<String, Vec<usize>>,
    below: HashMap<String, Vec<usize>>,
    anywhere: Vec<usize>,
    /// Names of fields whose values decide, each once.
    fields: Vec<String>,
}

impl Table {
    /// A table of routes, in the order in which they are written.
    #[must_use]
    pub fn new(routes: Vec<Matcher>) -> Self {
        let mut order: Vec<usize> = (0..routes.len()).collect();
        order.sort_by_key(|&number| {
            let route = &routes[number];
            Reverse((segments(&route.path).len(), usize::from(!route.methods.is_empty()) + route.headers.len()))
        });
        let mut table = Table::default();
        for number in order {
            let hosts = &routes[number].hosts;
            if hosts.is_empty() {
                table.anywhere.push(number);
            }
            for host in hosts {
                let list = match host {
                    HostPattern::Exact(name) => table.exact.entry(name.clone()).or_default(),
                    HostPattern::Below(name) => table.below.entry(name.clone()).or_default(),
                };
                // A host may be written twice.
                if list.last() != Some(&number) {
                    list.push(number);
                }
            }
        }
        for pattern in routes.iter().flat_map(|route| &route.headers).filter(|pattern| pattern.value.is_some()) {
            if !table.fields.iter().any(|name| name.eq_ignore_ascii_case(&pattern.name)) {
                table.fields.push(pattern.name.clone());
            }
        }
        table.routes = routes;
        table
    }

    /// Whether a field that a rule knows the value of is there more than once, so that requests may take two routes: one by any of its values,
    /// another one by all of them.
    #[must_use]
    pub fn is_repeated(&self, headers: Headers<'_>) -> bool {
        self.fields.iter().any(|name| headers.get_all(name).nth(1).is_some())
    }

    /// What a request must have to take the route of this number.
    #[must_use]
    pub fn matcher(&self, number: usize) -> Option<&Matcher> {
        self.routes.get(number)
    }

    /// The number of the route that a request takes. Nothing is allocated.
    #[must_use]
    pub fn find(&self, asked: &Asked<'_>) -> Option<usize> {
        let first = |list: &[usize]| list.iter().copied().find(|&number| self.routes[number].fits(asked));
        if let Some(found) = self.exact.get(asked.host).and_then(|list| first(list)) {
            return Some(found);
        }
        if !self.below.is_empty() {
            let mut name = asked.host;
            while let Some((_, above)) = name.split_once('.') {
                if let Some(found) = self.below.get(above).and_then(|list| first(list)) {
                    return Some(found);
                }
                name = above;
            }
        }
        first(&self.anywhere)
    }
}

impl Matcher {
    /// Whether a request fits in everything but its host.
    fn fits(&self, asked: &Asked<'_>) -> bool {
        is_below(asked.path, &self.path)
            && (self.methods.is_empty() || self.methods.iter().any(|method| method == asked.method))
            && self.headers.iter().all(|pattern| pattern.fits(asked))
    }
}

impl HeaderPattern {
    fn fits(&self, asked: &Asked<'_>) -> bool {
        let mut values = asked.headers.get_all(&self.name);
        match (&self.value, asked.repeated) {
            (None, _) => values.next().is_some(),
            (Some(value), Repeated::Any) => values.any(|found| found == value.as_bytes()),
            (Some(value), Repeated::All) => {
                values.next().is_some_and(|first| first == value.as_bytes()) && values.all(|next| next == value.as_bytes())
            }
        }
    }
}

/// Whether a path lies at or below another, by whole segments.
#[must_use]
pub fn is_below(path: &str, prefix: &str) -> bool {
    let prefix = segments(prefix);
    let rest = if prefix.is_empty() { Some(path) } else { path.strip_prefix(prefix) };
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// `/api/` and `/api` mean the same segments.
fn segments(prefix: &str) -> &str {
    prefix.strip_suffix('/').unwrap_or(prefix)
}

/// Why a path leads nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// A `%` without two hexadecimal digits behind it.
    #[error("`%` in the path is not followed by two hexadecimal digits")]
    Escape,
    /// An escaped NUL, which some servers take for the end.
    #[error("the path has a NUL in it")]
    Nul,
    /// More `..` than there are segments before.
    #[error("`..` in the path leads out of the root")]
    Above,
}

/// The readings of a path: what servers behind make of it. A server may carry `..` and `//` out or take them as they stand, undo all escapes
/// or those alone that mean nothing, cut the parameters off that `;` begins, take `\` for `/`, and leave out white space and control characters
/// at the ends of a segment. A route counts only if all readings take it; otherwise a rule could be walked around by spelling.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Readings<'a> {
    /// Escapes of printable ASCII undone, all that is not ASCII escaped, empty segments and `.` left out, `..` carried out.
    pub plain: Cow<'a, str>,
    /// The others, each once, where there are any.
    others: Vec<String>,
}

impl Readings<'_> {
    /// The readings beside the plain one, where they are not the same.
    pub fn others(&self) -> impl Iterator<Item = &str> {
        self.others.iter().map(String::as_str)
    }
}

/// Reads a request target's path (without its query). What goes to the server behind is spelled as it came.
///
/// # Errors
/// [`PathError`]: no route is to be looked for, as the server behind might find another resource than the route's rules are about.
pub fn readings(path: &str) -> Result<Readings<'_>, PathError> {
    let bytes = path.as_bytes();
    let is_plain = memchr::memchr3(b'%', b';', b'\\', bytes).is_none()
        && path.is_ascii()
        && !bytes.windows(2).any(|pair| pair[0] == b'/' && matches!(pair[1], b'/' | b'.'));
    if is_plain {
        return Ok(Readings { plain: Cow::Borrowed(path), others: Vec::new() });
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
        // Once a server has undone all escapes, what they stood for may end the path, or a segment.
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
    Ok(Readings { plain: Cow::Owned(plain), others })
}

fn add(texts: &mut Vec<String>, text: String) {
    if !texts.contains(&text) {
        texts.push(text);
    }
}

/// Whether carrying `.`, `..` and empty segments out changes a path.
fn has_odd_segments(path: &str) -> bool {
    path.split('/').skip(1).any(|segment| matches!(segment, "" | "." | ".."))
}

/// Cuts each segment at `;`, where its parameters begin (RFC 3986, section 3.3); and the path at a `?` or `#`, which only an escape can have brought.
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

/// Leaves white space and control characters out at both ends of each segment, where there are any. As [`decoded`] gives them: all but the
/// space are escapes.
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

/// How long a white space or a control character may be: a space, an escape.
const BLANKS: [usize; 2] = [1, 3];

fn is_blank(text: &str) -> bool {
    match *text.as_bytes() {
        [byte] => byte == b' ',
        [b'%', high, low] => matches!((high, low), (b'0' | b'1', _) | (b'2', b'0') | (b'7', b'F')),
        _ => false,
    }
}

/// Makes one slash of several.
fn merged(path: &str) -> String {
    let mut merged = String::with_capacity(path.len());
    for character in path.chars() {
        if character != '/' || !merged.ends_with('/') {
            merged.push(character);
        }
    }
    merged
}

/// The plain reading alone, for paths that a configuration has.
///
/// # Errors
/// As [`readings`].
pub fn plain_path(path: &str) -> Result<Cow<'_, str>, PathError> {
    readings(path).map(|readings| readings.plain)
}

/// Escapes what is not ASCII: `/é` and `/%C3%A9` are one path.
#[must_use]
pub fn in_ascii(path: &str) -> Cow<'_, str> {
    if path.is_ascii() {
        return Cow::Borrowed(path);
    }
    let mut text = String::with_capacity(2 * path.len());
    for byte in path.bytes() {
        match byte.is_ascii() {
            true => text.push(char::from(byte)),
            // Writing to a string does not fail.
            false => drop(write!(text, "%{byte:02X}")),
        }
    }
    Cow::Owned(text)
}

/// Undoes escapes of printable ASCII; unless `all`, those of letters, digits and `-._~` alone.
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
            // `%25` stays: undone, it would make another escape. So does what is no character by itself.
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

/// What becomes of empty segments.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Empty {
    /// `//` is `/`, before anything else is looked at.
    LeftOut,
    /// They are segments like others: `..` takes one back (RFC 3986, section 5.2.4).
    Kept,
}

/// Carries `.` and `..` out.
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
        // What stands behind the last slash is no segment.
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

    fn table(routes: &[(&str, &str)]) -> Table {
        let matcher = |&(host, path): &(&str, &str)| Matcher {
            hosts: match host.strip_prefix("*.") {
                _ if host == "*" => Vec::new(),
                Some(name) => vec![HostPattern::Below(name.to_owned())],
                None => vec![HostPattern::Exact(host.to_owned())],
            },
            path: path.to_owned(),
            ..Matcher::default()
        };
        Table::new(routes.iter().map(matcher).collect())
    }

    fn asked<'a>(host: &'a str, path: &'a str) -> Asked<'a> {
        Asked { host, path, method: "GET", headers: Headers::default(), repeated: Repeated::Any }
    }

    #[test]
    fn the_most_specific_host_wins_then_the_longest_path() {
        let table = table(&[
            ("*", ""),
            ("*", "/api"),
            ("*.example.org", ""),
            ("*.a.example.org", "/api/"),
            ("example.org", "/api"),
            ("example.org", "/api/v2"),
        ]);
        for (host, path, route) in [
            ("other", "/", Some(0)),
            ("other", "/api", Some(1)),
            ("other", "/apix", Some(0)),
            ("x.example.org", "/api", Some(2)),
            ("b.a.example.org", "/api/1", Some(3)),
            // Nothing at the closer host: on to the wider.
            ("b.a.example.org", "/", Some(2)),
            ("example.org", "/api/v2/x", Some(5)),
            ("example.org", "/api/v3", Some(4)),
            ("example.org", "/", Some(0)),
            ("xexample.org", "/", Some(0)),
            ("", "/", Some(0)),
        ] {
            assert_eq!(table.find(&asked(host, path)), route, "{host}{path}");
        }
    }

    #[test]
    fn conditions_come_before_none_and_the_first_written_before_the_next() {
        let header =
            |value: Option<&str>| vec![HeaderPattern { name: "x-beta".to_owned(), value: value.map(str::to_owned) }];
        let table = Table::new(vec![
            Matcher { path: "/".to_owned(), ..Matcher::default() },
            Matcher { headers: header(None), ..Matcher::default() },
            Matcher { headers: header(Some("2")), methods: vec!["PUT".to_owned()], ..Matcher::default() },
            Matcher { headers: header(Some("2")), ..Matcher::default() },
        ]);
        let find_by = |repeated: Repeated, method: &str, lines: &str| {
            let text = format!("{method} / HTTP/1.1\r\nHost: a\r\n{lines}\r\n");
            let mut decoder = oroshi_http1::RequestDecoder::default();
            let limits = oroshi_http1::Limits::default();
            let Ok(Some(oroshi_http1::RequestEvent::Head(head))) = decoder.decode(&limits, &mut text.as_bytes()) else {
                panic!("{text}");
            };
            assert_eq!(table.is_repeated(head.headers), lines.to_lowercase().matches("x-beta").count() > 1, "{lines}");
            table.find(&Asked { host: "a", path: "/", method: head.method, headers: head.headers, repeated })
        };
        let find = |method: &str, lines: &str| find_by(Repeated::Any, method, lines);
        assert_eq!(find("GET", ""), Some(0));
        assert_eq!(find("GET", "X-Beta: 1\r\n"), Some(1));
        assert_eq!(find("PUT", "X-Beta: 1\r\nx-BETA: 2\r\n"), Some(2));
        assert_eq!(find("GET", "X-Beta: 2\r\n"), Some(1), "as many conditions: the first");
        assert_eq!(find_by(Repeated::All, "PUT", "X-Beta: 1\r\nx-BETA: 2\r\n"), Some(1));
        assert_eq!(find("PUT", "X-Beta: 1\r\nx-BETA: 2\r\nX-Beta: 3\r\n"), Some(2));
        assert_eq!(find_by(Repeated::All, "PUT", "X-Beta: 2\r\nx-BETA: 2\r\n"), Some(2));
        assert_eq!(find_by(Repeated::All, "PUT", ""), Some(0));
        assert!(Table::new(Vec::new()).find(&asked("a", "/")).is_none());
    }

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
            // Slashes that are merged, by a server that looks at no dots; dots, by one that counts empty segments.
            ("//a/../x", &["/a/../x", "//a/../x"]),
            ("/x/../a//../y", &["/a/y"]),
            // `..` takes back what a server takes for one segment.
            ("/x%2fy/../a", &["/a"]),
            // Parameters, before and after escapes are undone, and with other slashes.
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
                // It leads out of the root in one of them, which is as good.
                Err(error) => assert_eq!(error, PathError::Above, "{path}"),
            }
        }
        assert_eq!(readings("/a/b").unwrap().others().count(), 0);
        assert_eq!(readings("/é").unwrap(), readings("/%c3%A9").unwrap());
        // What has none of these costs nothing, and what has all of them a bounded number of readings.
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
