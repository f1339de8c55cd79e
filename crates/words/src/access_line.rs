//! Lines of access logs in the formats of Apache and nginx, from requests that are answered.

use crate::Date;
use crate::date::{digits, month_name};

/// The facts in the format `common`: `client - - [time] "method target HTTP/version" status bytes`.
#[derive(Clone, Copy, Debug)]
pub struct AccessLine<'a> {
    /// The client's address; empty: `-`.
    pub client: &'a [u8],
    /// The time, as [`time`] writes it.
    pub time: [u8; 26],
    /// The method, as received.
    pub method: &'a [u8],
    /// The target, as received.
    pub target: &'a [u8],
    /// `1.0` or `1.1`.
    pub version: &'a str,
    /// The status, with zeros before it up to `status_digits`.
    pub status: u16,
    /// The least number of the status's digits.
    pub status_digits: usize,
    /// Bytes of the response's body.
    pub bytes: u64,
}

/// Whether bytes that clients sent are escaped, beside those that could end the quotes or the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spaces {
    /// Spaces are escaped: a program may split the line at spaces.
    Escaped,
    /// Spaces stay.
    Kept,
}

impl AccessLine<'_> {
    /// Appends the line without its end, so that further fields can follow.
    pub fn write(&self, out: &mut Vec<u8>, spaces: Spaces) {
        out.extend_from_slice(or_dash(self.client));
        out.extend_from_slice(b" - - [");
        out.extend_from_slice(&self.time);
        out.extend_from_slice(b"] \"");
        escape(out, self.method, spaces);
        out.push(b' ');
        escape(out, self.target, spaces);
        out.extend_from_slice(b" HTTP/");
        out.extend_from_slice(self.version.as_bytes());
        out.extend_from_slice(b"\" ");
        number(out, u64::from(self.status), self.status_digits);
        out.push(b' ');
        number(out, self.bytes, 1);
    }
}

/// Appends ` "value"` for each value, with `-` for an empty one: referrer and user agent of the format `combined`.
pub fn quoted(out: &mut Vec<u8>, values: [&[u8]; 2], spaces: Spaces) {
    for value in values {
        out.extend_from_slice(b" \"");
        escape(out, or_dash(value), spaces);
        out.push(b'"');
    }
}

/// Returns the time as `22/Nov/2026:01:31:56 +0000`. In another zone, the caller replaces the last five bytes.
#[must_use]
pub fn time(date: Date) -> [u8; 26] {
    let mut time = *b"00/Mmm/0000:00:00:00 +0000";
    digits(&mut time[0..2], date.day);
    time[3..6].copy_from_slice(month_name(date.month));
    digits(&mut time[7..11], date.year);
    digits(&mut time[12..14], date.hour);
    digits(&mut time[15..17], date.minute);
    digits(&mut time[18..20], date.second);
    time
}

/// Appends a number in decimal digits, with zeros before it up to `least` digits, at most 20.
pub fn number(out: &mut Vec<u8>, mut number: u64, least: usize) {
    let mut text = [b'0'; 20];
    let mut start = text.len();
    while number > 0 {
        start -= 1;
        text[start] = b'0' + (number % 10) as u8;
        number /= 10;
    }
    out.extend_from_slice(&text[start.min(text.len() - least)..]);
}

fn or_dash(text: &[u8]) -> &[u8] {
    if text.is_empty() { b"-" } else { text }
}

/// Appends a text as nginx escapes it: bytes that could end the quotes or the line become `\xHH`.
pub fn escape(out: &mut Vec<u8>, text: &[u8], spaces: Spaces) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    for &byte in text {
        let escaped = matches!(byte, b'"' | b'\\' | ..=0x1f | 0x7f..) || (byte == b' ' && spaces == Spaces::Escaped);
        if escaped {
            out.extend_from_slice(&[b'\\', b'x', HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
        } else {
            out.push(byte);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(status: u16, status_digits: usize, spaces: Spaces) -> String {
        let line = AccessLine {
            client: b"",
            time: time(Date::at(1_000_000_000)),
            method: b"GET",
            target: b"/a b?c=\"d\"",
            version: "1.1",
            status,
            status_digits,
            bytes: 0,
        };
        let mut out = Vec::new();
        line.write(&mut out, spaces);
        quoted(&mut out, [b"", b"a \\\r\n\x7f\xe9"], spaces);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn clients_bytes_stay_in_their_quotes() {
        assert_eq!(
            line(0, 3, Spaces::Escaped),
            r#"- - - [09/Sep/2001:01:46:40 +0000] "GET /a\x20b?c=\x22d\x22 HTTP/1.1" 000 0 "-" "a\x20\x5C\x0D\x0A\x7F\xE9""#
        );
        assert_eq!(
            line(204, 1, Spaces::Kept),
            r#"- - - [09/Sep/2001:01:46:40 +0000] "GET /a b?c=\x22d\x22 HTTP/1.1" 204 0 "-" "a \x5C\x0D\x0A\x7F\xE9""#
        );
    }

    #[test]
    fn numbers_have_at_least_so_many_digits() {
        let text = |value, least| {
            let mut out = Vec::new();
            number(&mut out, value, least);
            String::from_utf8(out).unwrap()
        };
        assert_eq!([text(0, 1), text(7, 3), text(1234, 3)], ["0", "007", "1234"]);
        assert_eq!(text(u64::MAX, 1), u64::MAX.to_string());
    }
}
