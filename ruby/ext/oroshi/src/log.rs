//! The access log: one line per answer, collected in memory and written when much has collected, before the worker
//! waits, and at its end.
//!
//! `common` and `combined` are the formats of Apache and nginx. `json` is one object per line, which includes the
//! seconds of the request. Client bytes are escaped: a line stays one line.

use std::io;
use std::os::fd::RawFd;

use oroshi_words::date::{digits, month_name};

use crate::clock;

/// The format of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// No log.
    Off,
    /// `host - user [time] "request line" status bytes`
    Common,
    /// The same with referer and user agent.
    Combined,
    /// A JSON object.
    Json,
}

impl Format {
    /// Returns the format of this name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        match name {
            "off" => Some(Format::Off),
            "common" => Some(Format::Common),
            "combined" => Some(Format::Combined),
            "json" => Some(Format::Json),
            _ => None,
        }
    }
}

/// The facts of a request at its beginning. They live in one buffer per worker, because the request's bytes are gone
/// when it is answered.
#[derive(Debug, Default)]
pub(crate) struct Entry {
    text: Vec<u8>,
    /// Ends of the parts in `text`: address, method, target, host, referer, agent.
    ends: [usize; 6],
    http11: bool,
    began_us: u64,
    /// Whether its line is not written yet.
    open: bool,
}

/// The parts of an [`Entry`], in order.
#[derive(Clone, Copy, Debug)]
enum Part {
    Address,
    Method,
    Target,
    Host,
    Referer,
    Agent,
}

impl Entry {
    fn part(&self, part: Part) -> &[u8] {
        let at = part as usize;
        let start = if at == 0 { 0 } else { self.ends[at - 1] };
        &self.text[start..self.ends[at]]
    }
}

/// The access log of a worker.
#[derive(Debug)]
pub(crate) struct AccessLog {
    format: Format,
    descriptor: RawFd,
    waiting: Vec<u8>,
    /// Whether the last wait for its reader was in vain.
    stuck: bool,
    entry: Entry,
    time: LocalTime,
}

/// Collected bytes from which lines are written.
const GATHERED_BYTES: usize = 64 * 1024;
/// The status of a request without an answer: its socket was given away, or the process ends.
pub(crate) const NO_ANSWER: u16 = 0;
/// How long to wait for a slow reader of the log, where the descriptor itself does not block.
const MOST_WAIT_MS: i32 = 1000;

impl AccessLog {
    pub(crate) fn new(format: Format, descriptor: RawFd) -> Self {
        let (entry, time) = (Entry::default(), LocalTime::default());
        AccessLog { format, descriptor, waiting: Vec::new(), stuck: false, entry, time }
    }

    /// Whether there is a log.
    pub(crate) fn is_on(&self) -> bool {
        self.format != Format::Off
    }

    /// Begins the line of a request. `parts`: address, method, target, host, referer, agent.
    pub(crate) fn begin(&mut self, parts: [&[u8]; 6], http11: bool) {
        let entry = &mut self.entry;
        entry.text.clear();
        for (end, part) in entry.ends.iter_mut().zip(parts) {
            entry.text.extend_from_slice(part);
            *end = entry.text.len();
        }
        entry.http11 = http11;
        entry.began_us = clock::exact_us();
        entry.open = true;
    }

    /// Ends the line, with the length of the answer's body. Does nothing without a begun line.
    pub(crate) fn end(&mut self, status: u16, body_bytes: u64) {
        if !std::mem::take(&mut self.entry.open) {
            return;
        }
        let took_us = clock::exact_us().saturating_sub(self.entry.began_us);
        let entry = &self.entry;
        let out = &mut self.waiting;
        match self.format {
            Format::Off => return,
            Format::Json => {
                self.time.update();
                json_line(out, entry, self.time.iso(), status, body_bytes, took_us);
            }
            Format::Common | Format::Combined => {
                self.time.update();
                clf_line(out, entry, self.time.clf(), status, body_bytes);
                if self.format == Format::Combined {
                    for part in [Part::Referer, Part::Agent] {
                        out.extend_from_slice(b" \"");
                        escape(out, or_dash(entry.part(part)));
                        out.push(b'"');
                    }
                }
                out.push(b'\n');
            }
        }
        if out.len() >= GATHERED_BYTES {
            self.flush();
        }
    }

    /// Writes the collected lines. Lines that a full disk, a closed pipe or a stalled reader does not take are lost
    /// whole: the server goes on.
    pub(crate) fn flush(&mut self) {
        let mut written = 0;
        while written < self.waiting.len() {
            let rest = &self.waiting[written..];
            // SAFETY: pointer and length of one slice.
            let count = unsafe { libc::write(self.descriptor, rest.as_ptr().cast(), rest.len()) };
            match usize::try_from(count) {
                Ok(count) => {
                    written += count;
                    self.stuck = false;
                }
                Err(_) => match io::Error::last_os_error().kind() {
                    io::ErrorKind::Interrupted => {}
                    // After a wait in vain, it waits again only once the reader has read.
                    io::ErrorKind::WouldBlock if !self.stuck => self.stuck = !has_room(self.descriptor),
                    _ => break,
                },
            }
        }
        self.forget_lines(written);
    }

    /// Drops all collected lines, and the request that has begun.
    pub(crate) fn forget(&mut self) {
        self.waiting.clear();
        self.entry.open = false;
    }

    /// Drops the collected lines, of which this many bytes are written, except the rest of a begun line.
    fn forget_lines(&mut self, written: usize) {
        let in_line = written > 0 && self.waiting[written - 1] != b'\n';
        let rest = if in_line { &self.waiting[written..] } else { &[] };
        let end = memchr::memchr(b'\n', rest).map_or(rest.len(), |at| at + 1);
        self.waiting.truncate(written + end);
        self.waiting.drain(..written);
    }
}

/// Waits until the log's descriptor has room.
fn has_room(descriptor: RawFd) -> bool {
    let mut watch = libc::pollfd { fd: descriptor, events: libc::POLLOUT, revents: 0 };
    // SAFETY: one pollfd.
    unsafe { libc::poll(&raw mut watch, 1, MOST_WAIT_MS) == 1 }
}

fn clf_line(out: &mut Vec<u8>, entry: &Entry, time: &[u8], status: u16, body_bytes: u64) {
    out.extend_from_slice(or_dash(entry.part(Part::Address)));
    out.extend_from_slice(b" - - [");
    out.extend_from_slice(time);
    out.extend_from_slice(b"] \"");
    escape(out, entry.part(Part::Method));
    out.push(b' ');
    escape(out, entry.part(Part::Target));
    out.extend_from_slice(if entry.http11 { b" HTTP/1.1\" " } else { b" HTTP/1.0\" " });
    number(out, u64::from(status));
    out.push(b' ');
    number(out, body_bytes);
}

fn json_line(out: &mut Vec<u8>, entry: &Entry, time: &[u8], status: u16, body_bytes: u64, took_us: u64) {
    out.extend_from_slice(b"{\"time\":\"");
    out.extend_from_slice(time);
    let texts = [
        (&b"\",\"remote\":\""[..], Part::Address),
        (b"\",\"method\":\"", Part::Method),
        (b"\",\"target\":\"", Part::Target),
        (b"\",\"host\":\"", Part::Host),
        (b"\",\"referer\":\"", Part::Referer),
        (b"\",\"agent\":\"", Part::Agent),
    ];
    for (name, part) in texts {
        out.extend_from_slice(name);
        json_text(out, entry.part(part));
    }
    out.extend_from_slice(b"\",\"protocol\":\"HTTP/1.");
    out.push(if entry.http11 { b'1' } else { b'0' });
    out.extend_from_slice(b"\",\"status\":");
    number(out, u64::from(status));
    out.extend_from_slice(b",\"bytes\":");
    number(out, body_bytes);
    out.extend_from_slice(b",\"seconds\":");
    seconds(out, took_us);
    out.extend_from_slice(b"}\n");
}

fn or_dash(text: &[u8]) -> &[u8] {
    if text.is_empty() { b"-" } else { text }
}

/// Escapes as nginx does: bytes that could end the quotes or the line become `\xHH`.
fn escape(out: &mut Vec<u8>, text: &[u8]) {
    for &byte in text {
        match byte {
            b'"' | b'\\' | 0..=0x1f | 0x7f..=0xff => {
                out.extend_from_slice(b"\\x");
                out.push(b"0123456789ABCDEF"[usize::from(byte >> 4)]);
                out.push(b"0123456789ABCDEF"[usize::from(byte & 15)]);
            }
            _ => out.push(byte),
        }
    }
}

/// Writes JSON text, which is UTF-8: other bytes become U+FFFD.
fn json_text(out: &mut Vec<u8>, text: &[u8]) {
    for chunk in text.utf8_chunks() {
        for &byte in chunk.valid().as_bytes() {
            match byte {
                b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
                0..=0x1f | 0x7f => {
                    out.extend_from_slice(b"\\u00");
                    out.push(b"0123456789abcdef"[usize::from(byte >> 4)]);
                    out.push(b"0123456789abcdef"[usize::from(byte & 15)]);
                }
                _ => out.push(byte),
            }
        }
        if !chunk.invalid().is_empty() {
            out.extend_from_slice("\u{fffd}".as_bytes());
        }
    }
}

/// `0.001234`
fn seconds(out: &mut Vec<u8>, us: u64) {
    number(out, us / 1_000_000);
    let mut fraction = *b".000000";
    digits(&mut fraction[1..], us % 1_000_000);
    out.extend_from_slice(&fraction);
}

/// Appends a number in decimal digits.
pub(crate) fn number(out: &mut Vec<u8>, mut number: u64) {
    let mut text = [0; 20];
    let mut start = text.len();
    while number > 0 || start == text.len() {
        start -= 1;
        text[start] = b'0' + (number % 10) as u8;
        number /= 10;
    }
    out.extend_from_slice(&text[start..]);
}

/// The time of day in the log's two formats, rewritten once per second.
#[derive(Debug, Default)]
struct LocalTime {
    unix_s: u64,
    clf: [u8; 26],
    iso: [u8; 25],
}

impl LocalTime {
    /// `22/Nov/2026:01:31:56 +0000`
    fn clf(&self) -> &[u8] {
        &self.clf
    }

    /// `2026-11-22T01:31:56+00:00`
    fn iso(&self) -> &[u8] {
        &self.iso
    }

    fn update(&mut self) {
        let now = clock::unix_s();
        if now == self.unix_s {
            return;
        }
        self.unix_s = now;
        let now = now as libc::time_t;
        // SAFETY: zeros are a valid tm, and both pointers are to locals.
        let local = unsafe {
            let mut local: libc::tm = std::mem::zeroed();
            libc::localtime_r(&raw const now, &raw mut local);
            local
        };
        let zone = zone(local.tm_gmtoff);
        let (year, month) = (local.tm_year as u64 + 1900, local.tm_mon as u64 + 1);
        let [day, hour, minute, second] =
            [local.tm_mday, local.tm_hour, local.tm_min, local.tm_sec].map(|number| number as u64);
        self.clf = *b"00/Mmm/0000:00:00:00 +0000";
        digits(&mut self.clf[0..2], day);
        self.clf[3..6].copy_from_slice(month_name(month));
        digits(&mut self.clf[7..11], year);
        digits(&mut self.clf[12..14], hour);
        digits(&mut self.clf[15..17], minute);
        digits(&mut self.clf[18..20], second);
        self.clf[21..24].copy_from_slice(&zone[..3]);
        self.clf[24..26].copy_from_slice(&zone[3..]);
        self.iso = *b"0000-00-00T00:00:00+00:00";
        digits(&mut self.iso[0..4], year);
        digits(&mut self.iso[5..7], month);
        digits(&mut self.iso[8..10], day);
        digits(&mut self.iso[11..13], hour);
        digits(&mut self.iso[14..16], minute);
        digits(&mut self.iso[17..19], second);
        self.iso[19..22].copy_from_slice(&zone[..3]);
        self.iso[23..25].copy_from_slice(&zone[3..]);
    }
}

/// `+0130` for an offset of 5400 seconds.
fn zone(offset_s: i64) -> [u8; 5] {
    let minutes = offset_s.unsigned_abs() / 60;
    let mut zone = *b"+0000";
    zone[0] = if offset_s < 0 { b'-' } else { b'+' };
    digits(&mut zone[1..3], minutes / 60);
    digits(&mut zone[3..5], minutes % 60);
    zone
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_clients_send_stays_in_its_quotes() {
        let mut out = Vec::new();
        escape(&mut out, b"a\"b\\c\r\nd\xe9");
        assert_eq!(out, br"a\x22b\x5Cc\x0D\x0Ad\xE9");
        out.clear();
        json_text(&mut out, b"a\"b\\c\r\nd\xe9\xc3\xa9");
        assert_eq!(out, "a\\\"b\\\\c\\u000d\\u000ad\u{fffd}\u{e9}".as_bytes());
    }

    #[test]
    fn numbers_and_zones() {
        let mut out = Vec::new();
        seconds(&mut out, 1_002_003);
        number(&mut out, 0);
        assert_eq!(out, b"1.0020030");
        assert_eq!(&zone(5400), b"+0130");
        assert_eq!(&zone(-34_200), b"-0930");
    }

    #[test]
    fn what_is_lost_is_lost_by_lines() {
        let mut log = AccessLog::new(Format::Common, -1);
        let gathered = b"one\ntwo\nthree\n";
        for (written, left) in [(gathered.len(), &b""[..]), (4, b""), (5, b"wo\n"), (0, b"")] {
            log.waiting = gathered.to_vec();
            log.forget_lines(written);
            assert_eq!(log.waiting, left, "{written} bytes written");
        }
    }
}
