//! Clocks: a coarse one for limits, the `Date` line, the access log's time of day.

use oroshi_words::date::{HTTP_DATE_BYTES, http_date};

/// Returns milliseconds of a monotonic clock, exact to the kernel's tick (some milliseconds). Nearly free.
pub(crate) fn coarse_ms() -> u64 {
    let time = read(libc::CLOCK_MONOTONIC_COARSE);
    time.tv_sec as u64 * 1000 + time.tv_nsec as u64 / 1_000_000
}

/// Returns microseconds of the same clock, exact.
pub(crate) fn exact_us() -> u64 {
    let time = read(libc::CLOCK_MONOTONIC);
    time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1000
}

/// Returns seconds since 1970.
pub(crate) fn unix_s() -> u64 {
    read(libc::CLOCK_REALTIME_COARSE).tv_sec as u64
}

/// Returns microseconds since 1970, exact.
pub(crate) fn unix_us() -> u64 {
    let time = read(libc::CLOCK_REALTIME);
    time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1000
}

fn read(clock: libc::clockid_t) -> libc::timespec {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a local; these clocks always exist.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time
}

/// The line `Date: Sun, 06 Nov 1994 08:49:37 GMT` with its CRLF (RFC 9110 section 6.6.1), rewritten once per second.
#[derive(Debug)]
pub(crate) struct DateLine {
    unix_s: u64,
    line: [u8; LINE_BYTES],
}

const LINE_BYTES: usize = NAME.len() + HTTP_DATE_BYTES + END.len();
const NAME: &[u8] = b"Date: ";
const END: &[u8] = b"\r\n";

impl Default for DateLine {
    fn default() -> Self {
        DateLine { unix_s: 0, line: date_line(0) }
    }
}

impl DateLine {
    /// Returns the current line.
    pub(crate) fn now(&mut self) -> &[u8] {
        let now = unix_s();
        if now != self.unix_s {
            *self = DateLine { unix_s: now, line: date_line(now) };
        }
        &self.line
    }
}

fn date_line(unix_s: u64) -> [u8; LINE_BYTES] {
    let mut line = [0; LINE_BYTES];
    line[..NAME.len()].copy_from_slice(NAME);
    line[NAME.len()..][..HTTP_DATE_BYTES].copy_from_slice(&http_date(unix_s));
    line[LINE_BYTES - END.len()..].copy_from_slice(END);
    line
}

#[cfg(test)]
mod tests {
    use super::date_line;

    #[test]
    fn a_line_is_whole() {
        assert_eq!(&date_line(784_111_777), b"Date: Sun, 06 Nov 1994 08:49:37 GMT\r\n");
    }
}
