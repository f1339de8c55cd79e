//! Days and times of day, UTC.

/// A second of the calendar.
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
    /// The date so many seconds after 1970 began; years of five digits and more are taken for the last of four.
    #[must_use]
    pub fn at(unix_s: u64) -> Self {
        const END_OF_9999: u64 = 253_402_300_799;
        let unix_s = unix_s.min(END_OF_9999);
        let (days, second) = (unix_s / 86_400, unix_s % 86_400);
        // Years begin in March here, so that a leap day comes last; an era is 400 of them.
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

#[cfg(test)]
mod tests {
    use super::*;

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
