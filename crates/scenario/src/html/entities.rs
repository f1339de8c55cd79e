//! Character references of HTML: `&amp;`, `&eacute;`, `&#8364;`, `&#x20ac;`.
//!
//! HTML, section 13.2.5.72 ff. `entities.txt` has the standard's table of names, sorted: `name=code[+code]`. A `!`
//! after the name marks those that old pages may write without a semicolon.

use std::borrow::Cow;
use std::sync::OnceLock;

/// Where a character reference stands; inside attributes, `&copy=1` stays as it is (it is a query of a URL).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    /// Between tags.
    Text,
    /// In the value of an attribute.
    Attribute,
}

/// Replaces the character references in the value of an attribute.
pub(crate) fn decode_attribute(text: &str) -> String {
    decode(text, Place::Attribute).into_owned()
}

/// Replaces the character references in `text`; borrows it if there are none.
pub(super) fn decode(text: &str, place: Place) -> Cow<'_, str> {
    let Some(first) = memchr::memchr(b'&', text.as_bytes()) else { return Cow::Borrowed(text) };
    let mut out = String::with_capacity(text.len());
    out.push_str(&text[..first]);
    let mut rest = &text[first..];
    while !rest.is_empty() {
        let used = reference(rest, place, &mut out);
        rest = &rest[used..];
        let next = memchr::memchr(b'&', rest.as_bytes()).unwrap_or(rest.len());
        out.push_str(&rest[..next]);
        rest = &rest[next..];
    }
    Cow::Owned(out)
}

/// Reads the reference at the start of `text`, an ampersand; writes what it stands for, and returns its length.
fn reference(text: &str, place: Place, out: &mut String) -> usize {
    let after = &text[1..];
    let read = if let Some(number) = after.strip_prefix('#') {
        numeric(number, out).map(|used| used + 2)
    } else {
        named(after, place, out).map(|used| used + 1)
    };
    read.unwrap_or_else(|| {
        out.push('&');
        1
    })
}

fn numeric(text: &str, out: &mut String) -> Option<usize> {
    let (digits, base, mark) = match text.strip_prefix(['x', 'X']) {
        Some(hex) => (hex, 16, 1),
        None => (text, 10, 0),
    };
    let len = digits.bytes().take_while(|byte| char::from(*byte).is_digit(base)).count();
    if len == 0 {
        return None;
    }
    let code = digits[..len].chars().fold(0u32, |sum, digit| {
        sum.saturating_mul(base).saturating_add(digit.to_digit(base).unwrap_or(0)).min(0x11_0000)
    });
    out.push(character(code));
    let semicolon = usize::from(digits.as_bytes().get(len) == Some(&b';'));
    Some(mark + len + semicolon)
}

/// Returns the character of a number; the C1 controls mean what they mean in windows-1252.
fn character(code: u32) -> char {
    const C1: [char; 32] = [
        '€', '\u{81}', '‚', 'ƒ', '„', '…', '†', '‡', 'ˆ', '‰', 'Š', '‹', 'Œ', '\u{8d}', 'Ž', '\u{8f}', '\u{90}', '‘',
        '’', '“', '”', '•', '–', '—', '˜', '™', 'š', '›', 'œ', '\u{9d}', 'ž', 'Ÿ',
    ];
    match code {
        0 => char::REPLACEMENT_CHARACTER,
        0x80..=0x9f => C1[(code - 0x80) as usize],
        _ => char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER),
    }
}

fn named(text: &str, place: Place, out: &mut String) -> Option<usize> {
    let bytes = text.as_bytes();
    let table = table();
    let run = bytes.iter().take(table.longest).take_while(|byte| byte.is_ascii_alphanumeric()).count();
    if bytes.get(run) == Some(&b';')
        && let Some(entity) = table.find(&text[..run])
    {
        entity.write(out);
        return Some(run + 1);
    }
    // Without a semicolon, the longest of the old names counts.
    for len in (2..=run.min(table.longest_old)).rev() {
        let Some(entity) = table.find(&text[..len]).filter(|entity| entity.old) else { continue };
        let next = bytes.get(len);
        if place == Place::Attribute && next.is_some_and(|byte| *byte == b'=' || byte.is_ascii_alphanumeric()) {
            return None;
        }
        entity.write(out);
        return Some(len + usize::from(next == Some(&b';')));
    }
    None
}

#[derive(Clone, Copy)]
struct Entity {
    name: &'static str,
    old: bool,
    first: char,
    second: Option<char>,
}

impl Entity {
    fn write(&self, out: &mut String) {
        out.push(self.first);
        out.extend(self.second);
    }
}

struct Table {
    sorted: Vec<Entity>,
    longest: usize,
    longest_old: usize,
}

impl Table {
    fn find(&self, name: &str) -> Option<&Entity> {
        self.sorted.binary_search_by(|entity| entity.name.cmp(name)).ok().map(|at| &self.sorted[at])
    }
}

fn table() -> &'static Table {
    static TABLE: OnceLock<Table> = OnceLock::new();
    TABLE.get_or_init(|| {
        let sorted: Vec<Entity> = include_str!("entities.txt").split_ascii_whitespace().filter_map(entity).collect();
        let longest = |old: bool| {
            sorted.iter().filter(|entity| entity.old || !old).map(|entity| entity.name.len()).max().unwrap_or(0)
        };
        Table { longest: longest(false), longest_old: longest(true), sorted }
    })
}

/// Reads one entry of the table.
fn entity(entry: &'static str) -> Option<Entity> {
    let (name, codes) = entry.split_once('=')?;
    let mut codes = codes.split('+').filter_map(|code| char::from_u32(u32::from_str_radix(code, 16).ok()?));
    let old = name.ends_with('!');
    Some(Entity { name: name.trim_end_matches('!'), old, first: codes.next()?, second: codes.next() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn text(source: &str) -> String {
        decode(source, Place::Text).into_owned()
    }

    #[test]
    fn the_table_is_whole_and_sorted() {
        let table = table();
        assert_eq!(table.sorted.len(), 2125);
        assert!(table.sorted.is_sorted_by(|a, b| a.name < b.name));
        assert_eq!(table.sorted.iter().filter(|entity| entity.old).count(), 106);
        assert_eq!(table.longest_old, "frac12".len());
    }

    #[test]
    fn names_numbers_and_what_is_neither() {
        assert_eq!(text("a &amp; b &lt;&gt; &quot;&apos;"), "a & b <> \"'");
        assert_eq!(text("&eacute;&Eacute;&nbsp;&hellip;"), "éÉ\u{a0}…");
        assert_eq!(text("&#233;&#xe9;&#XE9;&#233 x"), "éééé x");
        assert_eq!(text("&NotEqualTilde;"), "\u{2242}\u{338}");
        assert_eq!(text("&CounterClockwiseContourIntegral;"), "∳");
        assert_eq!(text("&; &# &#x; &nosuch; & &&amp;"), "&; &# &#x; &nosuch; & &&");
        assert_eq!(text("&#128;&#0;&#xd800;&#x110000;&#99999999999999999999;"), "€\u{fffd}\u{fffd}\u{fffd}\u{fffd}");
    }

    #[test]
    fn old_names_need_no_semicolon_but_in_urls() {
        assert_eq!(text("AT&T &copy 2026 &notit; &notin;"), "AT&T © 2026 ¬it; ∉");
        let attribute = |source| decode(source, Place::Attribute).into_owned();
        assert_eq!(attribute("/?a=1&copy=2&amp;b=3"), "/?a=1&copy=2&b=3");
        assert_eq!(attribute("/?a=1&copyb=2&lt"), "/?a=1&copyb=2<");
        assert_eq!(attribute("&notit;"), "&notit;");
    }

    #[test]
    fn text_without_references_is_borrowed() {
        assert!(matches!(decode("plain", Place::Text), Cow::Borrowed("plain")));
    }

    proptest! {
        #[test]
        fn escaped_text_comes_back(source in "\\PC*") {
            let escaped = source.replace('&', "&amp;").replace('<', "&lt;");
            prop_assert_eq!(text(&escaped), source);
        }

        #[test]
        fn any_text_is_read(source in "[&#xX0-9a-zA-Z;= é]*") {
            let decoded = text(&source);
            prop_assert!(decoded.len() <= source.len() * 2);
            decode(&source, Place::Attribute);
        }
    }
}
