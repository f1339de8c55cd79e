//! Calendar dates and times of day in UTC, and HTTP's date format.

/// A date with its time of day, to the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Date {
    /// Year of the Gregorian calendar.
    pub year: u64,
    /// 1 to 12.
    pub month: u64,
    /// 1 to 31.
    pub day: u64,
    /// 0 to 23.
    pub hour: u64,
    /// 0 to 59.
    pub minute: u64,
    /// 0 to 59.
    pub second: u64,
}

impl Date {
    /// Returns the date `unix_s` seconds after 1970 began; times after the year 9999 become its last second.
    #[must_use]
    pub fn at(unix_s: u64) -> Self {
        const END_OF_9999: u64 = 253_402_300_799;
        let unix_s = unix_s.min(END_OF_9999);
        let (days, second) = (unix_s / 86_400, unix_s % 86_400);
        // Years begin in March here, so a leap day comes last; an era is 400 years.
        let days = days + 719_468;
        let (era, day_of_era) = (days / 146_097, days % 146_097);
        let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * month + 2) / 5 + 1;
        let month = if month < 10 { month + 3 } else { month - 9 };
        let year = era * 400 + year_of_era + u64::from(month <= 2);
        Self { year, month, day, hour: second / 3600, minute: second / 60 % 60, second: second % 60 }
    }
}

/// The length of an HTTP date, in bytes.
pub const HTTP_DATE_BYTES: usize = 29;

/// Formats a Unix time in seconds as HTTP does (RFC 9110 section 5.6.7): `Sun, 06 Nov 1994 08:49:37 GMT`.
#[must_use]
pub fn http_date(unix_s: u64) -> [u8; HTTP_DATE_BYTES] {
    const DAYS: &[u8; 21] = b"ThuFriSatSunMonTueWed"; // 1 January 1970 was a Thursday
    let Date { year, month, day, hour, minute, second } = Date::at(unix_s);
    let mut date = *b"Ddd, 00 Mmm 0000 00:00:00 GMT";
    let weekday = (unix_s / 86_400 % 7) as usize * 3;
    date[0..3].copy_from_slice(&DAYS[weekday..weekday + 3]);
    digits(&mut date[5..7], day);
    date[8..11].copy_from_slice(month_name(month));
    digits(&mut date[12..16], year);
    digits(&mut date[17..19], hour);
    digits(&mut date[20..22], minute);
    digits(&mut date[23..25], second);
    date
}

/// `Jan` for 1. Panics unless `month` is 1 to 12.
#[must_use]
pub fn month_name(month: u64) -> &'static [u8] {
    const MONTHS: &[u8; 36] = b"JanFebMarAprMayJunJulAugSepOctNovDec";
    let at = (month as usize - 1) * 3;
    &MONTHS[at..at + 3]
}

/// Fills `place` with the last digits of a number.
pub fn digits(place: &mut [u8], mut number: u64) {
    for digit in place.iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn http_writes_known_moments() {
        let known: [(u64, &[u8]); 6] = [
            (0, b"Thu, 01 Jan 1970 00:00:00 GMT"),
            (784_111_777, b"Sun, 06 Nov 1994 08:49:37 GMT"), // RFC 9110's own example
            (951_782_399, b"Mon, 28 Feb 2000 23:59:59 GMT"),
            (951_782_400, b"Tue, 29 Feb 2000 00:00:00 GMT"),
            (4_107_542_399, b"Sun, 28 Feb 2100 23:59:59 GMT"),
            (4_107_542_400, b"Mon, 01 Mar 2100 00:00:00 GMT"), // 2100 is no leap year
        ];
        for (moment, text) in known {
            assert_eq!(http_date(moment), text, "{moment}");
        }
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (unix_s, expected) in [
            (0, [1970, 1, 1, 0, 0, 0]),
            (951_782_399, [2000, 2, 28, 23, 59, 59]),
            (951_782_400, [2000, 2, 29, 0, 0, 0]),
            (1_700_000_000, [2023, 11, 14, 22, 13, 20]),
            (4_107_542_399, [2100, 2, 28, 23, 59, 59]),
            (4_107_542_400, [2100, 3, 1, 0, 0, 0]),
            (u64::MAX, [9999, 12, 31, 23, 59, 59]),
        ] {
            let Date { year, month, day, hour, minute, second } = Date::at(unix_s);
            assert_eq!([year, month, day, hour, minute, second], expected);
        }
    }
}
