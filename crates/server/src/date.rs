//! The `Date` header's value, in the fixed form of RFC 9110 section 5.6.7: `Sun, 06 Nov 1994 08:49:37 GMT`.

/// The length of every such date, in bytes.
pub(crate) const DATE_BYTES: usize = 29;

/// Writes the date of a moment, given in seconds since 1970 (without leap seconds, as the system's clock counts).
pub(crate) fn format(unix_seconds: u64) -> [u8; DATE_BYTES] {
    const DAYS: &[u8; 21] = b"ThuFriSatSunMonTueWed"; // 1 January 1970 was a Thursday
    const MONTHS: &[u8; 36] = b"JanFebMarAprMayJunJulAugSepOctNovDec";
    let days = unix_seconds / 86_400;
    let seconds = unix_seconds % 86_400;
    let (year, month, day) = civil(days);
    let mut date = *b"Ddd, 00 Mmm 0000 00:00:00 GMT";
    let weekday = (days % 7) as usize * 3;
    date[0..3].copy_from_slice(&DAYS[weekday..weekday + 3]);
    digits(&mut date[5..7], day);
    let name = (month as usize - 1) * 3;
    date[8..11].copy_from_slice(&MONTHS[name..name + 3]);
    digits(&mut date[12..16], year);
    digits(&mut date[17..19], seconds / 3600);
    digits(&mut date[20..22], seconds / 60 % 60);
    digits(&mut date[23..25], seconds % 60);
    date
}

/// Year, month (1-12) and day (1-31) in the Gregorian calendar of a day counted from 1 January 1970.
fn civil(days: u64) -> (u64, u64, u64) {
    // Years are counted from 1 March, so that a leap day comes last; 719,468 days lie between 1 March 0000 and 1970.
    let days = days + 719_468;
    let era = days / 146_097; // of 400 years
    let day_of_era = days % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    (year, month, day)
}

/// Fills `place` with a number's last digits.
fn digits(place: &mut [u8], mut number: u64) {
    for digit in place.iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
}

#[cfg(test)]
mod tests {
    use super::format;

    #[test]
    fn known_moments() {
        let known: [(u64, &[u8]); 6] = [
            (0, b"Thu, 01 Jan 1970 00:00:00 GMT"),
            (784_111_777, b"Sun, 06 Nov 1994 08:49:37 GMT"), // RFC 9110's own example
            (951_782_399, b"Mon, 28 Feb 2000 23:59:59 GMT"),
            (951_782_400, b"Tue, 29 Feb 2000 00:00:00 GMT"),
            (4_107_542_399, b"Sun, 28 Feb 2100 23:59:59 GMT"),
            (4_107_542_400, b"Mon, 01 Mar 2100 00:00:00 GMT"), // 2100 is no leap year
        ];
        for (moment, text) in known {
            assert_eq!(format(moment), text, "{moment}");
        }
    }
}
