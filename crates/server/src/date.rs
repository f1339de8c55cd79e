//! The `Date` header's value, in the fixed form of RFC 9110 section 5.6.7: `Sun, 06 Nov 1994 08:49:37 GMT`.

use oroshi_words::date::Date;

/// The length of every such date, in bytes.
pub(crate) const DATE_BYTES: usize = 29;

/// Writes the date of a moment, given in seconds since 1970 (without leap seconds, as the system's clock counts).
pub(crate) fn format(unix_seconds: u64) -> [u8; DATE_BYTES] {
    const DAYS: &[u8; 21] = b"ThuFriSatSunMonTueWed"; // 1 January 1970 was a Thursday
    const MONTHS: &[u8; 36] = b"JanFebMarAprMayJunJulAugSepOctNovDec";
    let Date { year, month, day, hour, minute, second } = Date::at(unix_seconds);
    let mut date = *b"Ddd, 00 Mmm 0000 00:00:00 GMT";
    let weekday = (unix_seconds / 86_400 % 7) as usize * 3;
    date[0..3].copy_from_slice(&DAYS[weekday..weekday + 3]);
    digits(&mut date[5..7], day);
    let name = (month as usize - 1) * 3;
    date[8..11].copy_from_slice(&MONTHS[name..name + 3]);
    digits(&mut date[12..16], year);
    digits(&mut date[17..19], hour);
    digits(&mut date[20..22], minute);
    digits(&mut date[23..25], second);
    date
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
