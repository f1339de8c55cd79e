//! Values of keys: one target or several.
//!
//! Forms: `host`, `host:port`, `unix:/path`, `http://host[:port][/]`, with TLS `https://host[:port][/]`, with HTTP/2 in
//! cleartext `h2c://host[:port][/]` and `h2c+unix:/path`; `{"targets": [{"to": "...", "weight": 3}, ...]}`, `["...",
//! ...]`. A host is a name, an IPv4
//! address, or an IPv6 address in brackets; the default port is 80, with TLS 443.

use std::fmt;
use std::sync::Arc;

use serde::Deserialize;

use crate::allow::Allow;
use crate::key;
pub use crate::target::{Protocol, Target};

/// The longest accepted value.
pub const VALUE_BYTES: usize = 4096;
/// The maximum of targets in one value.
pub const TARGETS: usize = 64;
/// The greatest weight.
pub const WEIGHT: u32 = 1000;
/// The longest path of a unix socket: `sun_path` has 108 bytes, with a NUL (unix(7)).
const UNIX_BYTES: usize = 107;
/// How much of a value a message shows.
const SHOWN_CHARS: usize = 80;

/// The targets of a key, at least one. Cloning them allocates nothing; one alone takes 24 bytes, and the text of a name
/// or a path.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Targets {
    /// One.
    One(Target),
    /// Two or more, with their weights from 1 to [`WEIGHT`].
    Many(Arc<[(Target, u32)]>),
}

impl Targets {
    /// Reads a value, and checks its targets against `allow`.
    ///
    /// # Errors
    /// Why the value is unusable; shows at most a part of one target, and never the text before an `@`.
    pub fn parse(value: &[u8], allow: &Allow) -> Result<Targets, ValueError> {
        if value.len() > VALUE_BYTES {
            return Err(ValueError::TooLong { bytes: value.len() });
        }
        let text = std::str::from_utf8(value).map_err(|_| ValueError::NotText)?.trim_ascii();
        if text.is_empty() {
            return Err(ValueError::Empty);
        }
        // An IPv6 address begins with a bracket as well, but not with a bracket and a quote.
        let list = text
            .strip_prefix('[')
            .is_some_and(|rest| !rest.trim_start().starts_with(|c: char| c.is_ascii_hexdigit() || c == ':'));
        if text.starts_with('{') || list {
            return parse_json(text, allow);
        }
        parse_allowed(text, allow).map(Targets::One)
    }

    /// Iterates over the targets and their weights.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&Target, u32)> {
        (0..self.len()).map(|index| match self {
            Targets::One(target) => (target, 1),
            Targets::Many(targets) => (&targets[index].0, targets[index].1),
        })
    }

    /// The number of targets, at least 1.
    #[allow(clippy::len_without_is_empty)] // it never is
    pub fn len(&self) -> usize {
        match self {
            Targets::One(_) => 1,
            Targets::Many(targets) => targets.len(),
        }
    }

    /// Bytes that this holds elsewhere, including the overhead of the allocation.
    pub(crate) fn heap_bytes(&self) -> usize {
        let target = |target: &Target| match target {
            Target::V4 { .. } | Target::V6 { .. } => 0,
            Target::Name { name: text, .. } | Target::Unix { path: text, .. } => ALLOCATION + text.len(),
        };
        match self {
            Targets::One(one) => target(one),
            Targets::Many(many) => {
                ALLOCATION + size_of_val(&**many) + many.iter().map(|(one, _)| target(one)).sum::<usize>()
            }
        }
    }
}

/// The overhead of a shared allocation: two counters, and the allocator's own word and rounding.
const ALLOCATION: usize = 32;

/// Shows a target, or targets with their weights, in the form of a value.
impl fmt::Display for Targets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (target, weight)) in self.iter().enumerate() {
            let comma = if index > 0 { ", " } else { "" };
            write!(f, "{comma}{target}")?;
            if weight != 1 {
                write!(f, " (weight {weight})")?;
            }
        }
        Ok(())
    }
}

/// Why a value is unusable. The messages say what to change in the store.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ValueError {
    /// Write a target, or nothing at all (no row, NULL).
    #[error("the value is empty: expected a target such as 10.0.0.1:8080")]
    Empty,
    /// Name fewer targets.
    #[error("the value has {bytes} bytes: expected at most {VALUE_BYTES}")]
    TooLong {
        /// The number of bytes.
        bytes: usize,
    },
    /// Write it in UTF-8.
    #[error("the value is not text (UTF-8)")]
    NotText,
    /// Write one of the forms.
    #[error(
        "`{target}` is not a target: expected host, host:port, unix:/path, http://host:port, https://host:port or \
         h2c://host:port"
    )]
    NotATarget {
        /// The target as written, cut.
        target: String,
    },
    /// A target is an address, without a path.
    #[error("`{target}` has a path: expected a host alone, such as http://10.0.0.1:8080")]
    HasPath {
        /// The target as written, cut.
        target: String,
    },
    /// Leave name and password out.
    #[error("the value has a user in it (`...@host`): expected a host alone")]
    HasUser,
    /// Add the target to the allowed ones, if it should be allowed.
    #[error("`{target}` is not among the allowed targets")]
    NotAllowed {
        /// The target in canonical form.
        target: String,
    },
    /// Correct the JSON.
    #[error("the value is not JSON as expected: {reason}")]
    Json {
        /// The parser's message: a position, and what it expected there.
        reason: String,
    },
    /// Name at least one.
    #[error("the value names no target")]
    NoTargets,
    /// Name fewer targets.
    #[error("the value names {count} targets: expected at most {TARGETS}")]
    TooMany {
        /// The number of targets.
        count: usize,
    },
    /// Choose another weight.
    #[error("a weight is {weight}: expected 1 to {WEIGHT}")]
    Weight {
        /// The weight as written.
        weight: u32,
    },
}

fn parse_allowed(text: &str, allow: &Allow) -> Result<Target, ValueError> {
    let target = parse_target(text)?;
    if allow.target(&target) { Ok(target) } else { Err(ValueError::NotAllowed { target: target.to_string() }) }
}

fn parse_target(text: &str) -> Result<Target, ValueError> {
    let not_a_target = || ValueError::NotATarget { target: shown(text) };
    let (protocol, place) = match text.strip_prefix("h2c+") {
        Some(place) => (Protocol::H2c, place),
        None => (Protocol::Http1, text),
    };
    if let Some(path) = place.strip_prefix("unix:") {
        let fine =
            oroshi_net::permit::is_plain(path) && path.len() <= UNIX_BYTES && !path.chars().any(char::is_control);
        return if fine { Ok(Target::Unix { path: path.into(), protocol }) } else { Err(not_a_target()) };
    }
    if text.contains('@') {
        return Err(ValueError::HasUser);
    }
    let scheme = |scheme: &str| text.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme));
    let known = [("http://", Protocol::Http1), ("https://", Protocol::Https), ("h2c://", Protocol::H2c)];
    let known = known.into_iter().find(|(name, _)| scheme(name));
    let Some((name, protocol)) = known else { return parse_place(text, 80).ok_or_else(not_a_target) };
    let rest = &text[name.len()..];
    let place = rest.strip_suffix('/').unwrap_or(rest);
    if place.contains(['/', '?', '#']) {
        return Err(ValueError::HasPath { target: shown(text) });
    }
    let port = if protocol == Protocol::Https { 443 } else { 80 };
    parse_place(place, port).map(|target| target.speaking(protocol)).ok_or_else(not_a_target)
}

/// Parses a host and a port, which may be missing, for HTTP/1.1.
fn parse_place(place: &str, usual: u16) -> Option<Target> {
    let protocol = Protocol::Http1;
    if let Some(rest) = place.strip_prefix('[') {
        let (address, port) = rest.split_once(']')?;
        return Some(Target::V6 { address: address.parse().ok()?, port: parse_port(port, usual)?, protocol });
    }
    let (host, port) = place.split_at(place.find(':').unwrap_or(place.len()));
    let port = parse_port(port, usual)?;
    let name = key::name_or_ipv4(host.strip_suffix('.').unwrap_or(host)).ok()?;
    Some(match name.parse() {
        Ok(address) => Target::V4 { address, port, protocol },
        Err(_) => Target::Name { name: (*name).into(), port, protocol },
    })
}

/// Parses nothing, which means `usual`, or `:` and a number from 1.
fn parse_port(port: &str, usual: u16) -> Option<u16> {
    match port.strip_prefix(':') {
        None => port.is_empty().then_some(usual),
        Some(digits) => {
            digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?.filter(|&port| port > 0)
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    targets: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    to: String,
    #[serde(default = "one")]
    weight: u32,
}

fn one() -> u32 {
    1
}

fn parse_json(text: &str, allow: &Allow) -> Result<Targets, ValueError> {
    let wrong = |error: serde_json::Error| {
        // The parser quotes its input, which may be anything, so the message has only the position.
        let what = match error.classify() {
            serde_json::error::Category::Data => r#"expected {"targets": [{"to": "...", "weight": 1}]} or ["..."]"#,
            _ => "it is not well-formed",
        };
        ValueError::Json { reason: format!("{what}, at line {} column {}", error.line(), error.column()) }
    };
    let entries: Vec<Entry> = if text.starts_with('{') {
        serde_json::from_str::<Document>(text).map_err(wrong)?.targets
    } else {
        let targets = serde_json::from_str::<Vec<String>>(text).map_err(wrong)?;
        targets.into_iter().map(|to| Entry { to, weight: one() }).collect()
    };
    if entries.len() > TARGETS {
        return Err(ValueError::TooMany { count: entries.len() });
    }
    let mut targets = Vec::with_capacity(entries.len());
    for Entry { to, weight } in entries {
        if !(1..=WEIGHT).contains(&weight) {
            return Err(ValueError::Weight { weight });
        }
        targets.push((parse_allowed(&to, allow)?, weight));
    }
    match targets.len() {
        0 => Err(ValueError::NoTargets),
        1 => Ok(Targets::One(targets.remove(0).0)),
        _ => Ok(Targets::Many(targets.into())),
    }
}

/// Returns as much of a value as a message may show.
fn shown(text: &str) -> String {
    let mut shown: String = text.chars().take(SHOWN_CHARS).flat_map(char::escape_debug).collect();
    if text.chars().nth(SHOWN_CHARS).is_some() {
        shown.push_str("...");
    }
    shown
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(value: &str) -> Result<String, ValueError> {
        Targets::parse(value.as_bytes(), &Allow::any()).map(|targets| targets.to_string())
    }

    #[test]
    fn every_form_is_read() {
        let cases = [
            ("10.0.0.1", "10.0.0.1:80"),
            ("10.0.0.1:8080\n", "10.0.0.1:8080"),
            ("  App.Internal.:81 ", "app.internal:81"),
            ("bücher.example", "xn--bcher-kva.example:80"),
            ("[::1]", "[::1]:80"),
            ("[2001:DB8::1]:8080", "[2001:db8::1]:8080"),
            ("[fd00::1]:1", "[fd00::1]:1"),
            ("unix:/run/app.sock", "unix:/run/app.sock"),
            ("http://app", "app:80"),
            ("HTTP://app:8080/", "app:8080"),
            ("http://[::1]:9/", "[::1]:9"),
            ("h2c://10.0.0.1", "h2c://10.0.0.1:80"),
            ("H2C://App:8080/", "h2c://app:8080"),
            ("h2c://[::1]:9", "h2c://[::1]:9"),
            ("h2c+unix:/run/app.sock", "h2c+unix:/run/app.sock"),
            ("https://app", "https://app:443"),
            ("HTTPS://10.0.0.1:8443/", "https://10.0.0.1:8443"),
            ("https://[::1]", "https://[::1]:443"),
            (r#"["h2c://10.0.0.1", "a"]"#, "h2c://10.0.0.1:80, a:80"),
            (r#"["10.0.0.1"]"#, "10.0.0.1:80"),
            (r#"[ "10.0.0.1", "[::1]:2", "unix:/a" ]"#, "10.0.0.1:80, [::1]:2, unix:/a"),
            (r#"{"targets":[{"to":"a:1","weight":3},{"to":"http://b/"}]}"#, "a:1 (weight 3), b:80"),
        ];
        for (value, means) in cases {
            assert_eq!(read(value).as_deref(), Ok(means), "{value}");
        }
    }

    #[test]
    fn what_is_no_value_says_why() {
        let long = format!("unix:/{}", "a".repeat(107));
        let many = format!("[{}]", vec![r#""a""#; TARGETS + 1].join(","));
        let cases = [
            ("", "empty"),
            ("  \n", "empty"),
            ("10.0.0.1:0", "not a target"),
            ("10.0.0.1:", "not a target"),
            ("10.0.0.1:+1", "not a target"),
            ("10.0.0.1:65536", "not a target"),
            ("127.1", "not a target"),
            ("0x7f000001", "not a target"),
            ("a b", "not a target"),
            ("a\r\nb", "not a target"),
            ("::1", "not a target"),
            ("ftp://a", "not a target"),
            ("a/b", "not a target"),
            ("unix:app.sock", "not a target"),
            ("unix:/run/../etc/app.sock", "not a target"),
            ("unix:/run//app.sock", "not a target"),
            (&long, "not a target"),
            ("h2c+10.0.0.1", "not a target"),
            ("h2c:a", "not a target"),
            ("h2c://unix:/a", "path"),
            ("h2c://a/b", "path"),
            ("h2c+unix:a", "not a target"),
            ("https://a/b", "path"),
            ("https://", "not a target"),
            ("https://unix:/a", "path"),
            ("https+unix:/a", "not a target"),
            ("http://a/b", "path"),
            ("http://a?b", "path"),
            ("http://user:secret@a", "user"),
            ("user:secret@a", "user"),
            ("[]", "no target"),
            ("[1]", "not a target"),
            ("[true]", "line 1 column 5"),
            (r#"["secret""#, "not well-formed"),
            (r#"{"target":[]}"#, "expected"),
            (r#"{"targets":[{"to":"a","weight":0}]}"#, "weight is 0"),
            (r#"{"targets":[{"to":"a","weight":1001}]}"#, "weight is 1001"),
            (r#"{"targets":[{"to":"a","weight":-1}]}"#, "expected"),
            (&many, "names 65 targets"),
        ];
        for (value, why) in cases {
            let error = read(value).expect_err(value).to_string();
            assert!(error.contains(why), "{value}: {error}");
            assert!(!error.contains("secret"), "{error}");
        }
        assert_eq!(
            Targets::parse(&[b'a'; VALUE_BYTES + 1], &Allow::any()),
            Err(ValueError::TooLong { bytes: VALUE_BYTES + 1 })
        );
        assert_eq!(Targets::parse(b"\xff", &Allow::any()), Err(ValueError::NotText));
    }

    #[test]
    fn one_target_that_is_not_allowed_is_too_many() {
        let allow = Allow::parse(["10.0.0.0/8"]).unwrap();
        let value = br#"["10.0.0.1", "[::ffff:127.0.0.1]:22"]"#;
        let error = Targets::parse(value, &allow).unwrap_err();
        assert_eq!(error.to_string(), "`[::ffff:127.0.0.1]:22` is not among the allowed targets");
        assert!(Targets::parse(b"[::ffff:10.0.0.1]:22", &allow).is_ok());
    }

    /// Memory holds two million of them.
    #[test]
    fn they_are_small() {
        assert_eq!((size_of::<Target>(), size_of::<Targets>()), (24, 24));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(value in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = Targets::parse(&value, &Allow::any());
        }

        #[test]
        fn what_was_read_can_be_read_again(
            value in r#"((https?|h2c)://)?(\[[0-9a-f:]{2,8}\]|[a-zA-Z0-9.-]{1,12})(:[0-9]{1,5})?/?"#,
        ) {
            if let Ok(targets) = Targets::parse(value.as_bytes(), &Allow::any()) {
                let again = Targets::parse(targets.to_string().as_bytes(), &Allow::any());
                prop_assert_eq!(again, Ok(targets));
            }
        }
    }
}
