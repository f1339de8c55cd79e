//! The access log: one line per answer, collected in memory and written when much has collected, before the worker
//! waits, and at its end.
//!
//! `common` and `combined` are the formats of Apache and nginx. `json` is one object per line, which includes the
//! seconds of the request. Client bytes are escaped: a line stays one line.

use std::io;
use std::os::fd::RawFd;

use oroshi_words::Date;
use oroshi_words::access_line::{self, AccessLine, Spaces};
use oroshi_words::date::digits;

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
    /// Time since a proxy received the request, and time that it waited for this worker, where known.
    waits_us: [Option<u64>; 2],
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
        entry.waits_us = [None; 2];
        entry.open = true;
    }

    /// Adds how long the begun request has waited: since a proxy received it, and for this worker.
    pub(crate) fn waited(&mut self, queue_us: Option<u64>, wait_us: Option<u64>) {
        self.entry.waits_us = [queue_us, wait_us];
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
                clf_line(entry, self.time.clf, status, body_bytes).write(out, Spaces::Kept);
                if self.format == Format::Combined {
                    let parts = [entry.part(Part::Referer), entry.part(Part::Agent)];
                    access_line::quoted(out, parts, Spaces::Kept);
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

fn clf_line<'e>(entry: &'e Entry, time: [u8; 26], status: u16, body_bytes: u64) -> AccessLine<'e> {
    AccessLine {
        client: entry.part(Part::Address),
        time,
        method: entry.part(Part::Method),
        target: entry.part(Part::Target),
        version: if entry.http11 { "1.1" } else { "1.0" },
        status,
        status_digits: 1,
        bytes: body_bytes,
    }
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
    for (name, us) in [&b",\"queue_seconds\":"[..], b",\"wait_seconds\":"].into_iter().zip(entry.waits_us) {
        if let Some(us) = us {
            out.extend_from_slice(name);
            seconds(out, us);
        }
    }
    out.extend_from_slice(b"}\n");
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
pub(crate) fn number(out: &mut Vec<u8>, number: u64) {
    access_line::number(out, number, 1);
}

/// The time of day in the log's two formats, rewritten once per second.
#[derive(Debug, Default)]
struct LocalTime {
    unix_s: u64,
    /// `22/Nov/2026:01:31:56 +0000`
    clf: [u8; 26],
    iso: [u8; 25],
}

impl LocalTime {
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
        // libc is about to change its time_t for musl; the function's own type is right on both sides of that.
        let now = now as _;
        // SAFETY: zeros are a valid tm, and both pointers are to locals.
        let local = unsafe {
            let mut local: libc::tm = std::mem::zeroed();
            libc::localtime_r(&raw const now, &raw mut local);
            local
        };
        let zone = zone(local.tm_gmtoff);
        let [year, month, day, hour, minute, second] = [
            i64::from(local.tm_year) + 1900,
            i64::from(local.tm_mon) + 1,
            i64::from(local.tm_mday),
            i64::from(local.tm_hour),
            i64::from(local.tm_min),
            i64::from(local.tm_sec),
        ]
        .map(|number| number as u64);
        self.clf = access_line::time(Date { year, month, day, hour, minute, second });
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
        json_text(&mut out, b"a\"b\\c\r\nd\xe9\xc3\xa9");
        assert_eq!(out, "a\\\"b\\\\c\\u000d\\u000ad\u{fffd}\u{e9}".as_bytes());
    }

    #[test]
    fn a_combined_line_keeps_its_spaces() {
        let mut log = AccessLog::new(Format::Combined, -1);
        log.begin([b"127.0.0.1", b"GET", b"/a b\"", b"h", b"", b"curl 8\n"], false);
        log.end(NO_ANSWER, 12);
        let line = String::from_utf8(log.waiting).unwrap();
        let (before, after) = (&line[..15], &line[41..]);
        assert_eq!((before, after), ("127.0.0.1 - - [", "] \"GET /a b\\x22 HTTP/1.0\" 0 12 \"-\" \"curl 8\\x0A\"\n"));
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
