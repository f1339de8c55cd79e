//! Times: a coarse clock for limits, the `Date` line once per second, the access log's time of day.

use oroshi_words::Date;

/// Milliseconds of a clock that never goes back, exact to the kernel's tick (some milliseconds): a read costs next to nothing.
pub(crate) fn coarse_ms() -> u64 {
    let time = read(libc::CLOCK_MONOTONIC_COARSE);
    time.tv_sec as u64 * 1000 + time.tv_nsec as u64 / 1_000_000
}

/// Microseconds of the same clock, exact.
pub(crate) fn exact_us() -> u64 {
    let time = read(libc::CLOCK_MONOTONIC);
    time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1000
}

/// Seconds since 1970.
pub(crate) fn unix_s() -> u64 {
    read(libc::CLOCK_REALTIME_COARSE).tv_sec as u64
}

fn read(clock: libc::clockid_t) -> libc::timespec {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a local; these clocks are always there.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time
}

/// The line `Date: Sun, 06 Nov 1994 08:49:37 GMT` with its CRLF (RFC 9110 section 6.6.1), written anew once per second.
#[derive(Debug)]
pub(crate) struct DateLine {
    unix_s: u64,
    line: [u8; LINE_BYTES],
}

const LINE_BYTES: usize = 37;

impl Default for DateLine {
    fn default() -> Self {
        DateLine { unix_s: 0, line: date_line(0) }
    }
}

impl DateLine {
    /// The line of this moment.
    pub(crate) fn now(&mut self) -> &[u8] {
        let now = unix_s();
        if now != self.unix_s {
            *self = DateLine { unix_s: now, line: date_line(now) };
        }
        &self.line
    }
}

fn date_line(unix_s: u64) -> [u8; LINE_BYTES] {
    const DAYS: &[u8; 21] = b"ThuFriSatSunMonTueWed"; // 1 January 1970 was a Thursday
    let Date { year, month, day, hour, minute, second } = Date::at(unix_s);
    let mut line = *b"Date: Ddd, 00 Mmm 0000 00:00:00 GMT\r\n";
    let weekday = (unix_s / 86_400 % 7) as usize * 3;
    line[6..9].copy_from_slice(&DAYS[weekday..weekday + 3]);
    digits(&mut line[11..13], day);
    line[14..17].copy_from_slice(month_name(month));
    digits(&mut line[18..22], year);
    digits(&mut line[23..25], hour);
    digits(&mut line[26..28], minute);
    digits(&mut line[29..31], second);
    line
}

/// `Jan` for 1.
pub(crate) fn month_name(month: u64) -> &'static [u8] {
    const MONTHS: &[u8; 36] = b"JanFebMarAprMayJunJulAugSepOctNovDec";
    let at = (month as usize - 1) * 3;
    &MONTHS[at..at + 3]
}

/// Fills `place` with a number's last digits.
pub(crate) fn digits(place: &mut [u8], mut number: u64) {
    for digit in place.iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
}

#[cfg(test)]
mod tests {
    use super::date_line;

    #[test]
    fn known_moments() {
        let known: [(u64, &[u8]); 4] = [
            (0, b"Date: Thu, 01 Jan 1970 00:00:00 GMT\r\n"),
            (784_111_777, b"Date: Sun, 06 Nov 1994 08:49:37 GMT\r\n"), // RFC 9110's own example
            (951_782_400, b"Date: Tue, 29 Feb 2000 00:00:00 GMT\r\n"),
            (4_107_542_400, b"Date: Mon, 01 Mar 2100 00:00:00 GMT\r\n"), // 2100 is no leap year
        ];
        for (moment, line) in known {
            assert_eq!(date_line(moment), line, "{moment}");
        }
    }
}
