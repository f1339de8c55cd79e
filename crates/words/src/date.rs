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

/// Parses an HTTP date in any of its three forms (RFC 9110 section 5.6.7), and returns Unix time in seconds; 0 for
/// dates before 1970. Does not check the name of the weekday.
#[must_use]
pub fn parse_http_date(text: &[u8]) -> Option<u64> {
    let words: Vec<&str> = str::from_utf8(text).ok()?.split([' ', '-']).filter(|word| !word.is_empty()).collect();
    let (day, month, year, time) = match words[..] {
        // Sun, 06 Nov 1994 08:49:37 GMT; Sunday, 06-Nov-94 08:49:37 GMT
        [weekday, day, month, year, time, "GMT"] if weekday.ends_with(',') => (day, month, year, time),
        // Sun Nov  6 08:49:37 1994
        [_, month, day, time, year] => (day, month, year, time),
        _ => return None,
    };
    let number = |text: &str, digits: std::ops::RangeInclusive<usize>| {
        let sound = digits.contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
        sound.then(|| text.parse::<u64>().ok()).flatten()
    };
    let (day, month) = (number(day, 1..=2)?, (1..=12).find(|&known| month_name(known) == month.as_bytes())?);
    let year = match year.len() {
        2 => number(year, 2..=2).map(|year| if year < 70 { 2000 + year } else { 1900 + year })?,
        _ => number(year, 4..=4)?,
    };
    let mut parts = time.split(':').map(|part| number(part, 2..=2));
    let (Some(hour), Some(minute), Some(second), None) =
        (parts.next().flatten(), parts.next().flatten(), parts.next().flatten(), parts.next())
    else {
        return None;
    };
    let leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
    let days_of_month = [31, 28 + u64::from(leap), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31][month as usize - 1];
    // A leap second is 60.
    if !(1..=days_of_month).contains(&day) || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    if year < 1970 {
        return Some(0);
    }
    let days = days_since_1970(year as i64, month as i64, day as i64) as u64;
    Some(days * 86_400 + hour * 3600 + minute * 60 + second)
}

/// Returns the days from 1 January 1970 to a date of the Gregorian calendar: the reverse of [`Date::at`]. `month` is 1
/// to 12; a `day` beyond the month's last counts on into the next.
#[must_use]
pub fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    // Years begin in March here, so a leap day comes last.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let day_of_year = (153 * month + 2) / 5 + day - 1;
    365 * year + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + day_of_year - 719_468
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
            assert_eq!(parse_http_date(text), Some(moment));
        }
        // A prime number of seconds, so that all days and times of day come.
        for moment in (0..253_402_300_799).step_by(7_654_321) {
            assert_eq!(parse_http_date(&http_date(moment)), Some(moment));
        }
    }

    #[test]
    fn http_dates_have_three_forms() {
        for (text, expected) in [
            ("Sunday, 06-Nov-94 08:49:37 GMT", Some(784_111_777)),
            ("Sun Nov  6 08:49:37 1994", Some(784_111_777)),
            ("Sun Nov 16 08:49:37 1994", Some(784_975_777)),
            ("Thu, 01 Jan 1903 00:00:00 GMT", Some(0)),
            ("Sat, 31 Dec 2016 23:59:60 GMT", Some(1_483_228_800)),
            ("Wed, 30 Feb 2000 00:00:00 GMT", None),
            ("Mon, 29 Feb 2100 00:00:00 GMT", None),
            ("Sun, 06 Nov 1994 24:49:37 GMT", None),
            ("Sun, 06 Nov 1994 08:49 GMT", None),
            ("Sun, 06 Nov 1994 08:49:37:00 GMT", None),
            ("Sun, 06 Nov 1994 08:49:37 CET", None),
            ("Sun, 06 Nov +994 08:49:37 GMT", None),
            ("Sun, 06 Xxx 1994 08:49:37 GMT", None),
            ("Sun, 06 Nov 99999 08:49:37 GMT", None),
            ("0", None),
            ("", None),
        ] {
            assert_eq!(parse_http_date(text.as_bytes()), expected, "{text}");
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
