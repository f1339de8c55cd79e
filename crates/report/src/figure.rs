//! Formats numbers for pages: with a space before the unit, and short on an axis.

use oroshi_lab::metric;
use oroshi_stats::compare::Interval;
use oroshi_stats::{Percentile, Quantile};
use oroshi_words::{Date, units};

use crate::chart::scale::Scale;

/// Keeps a number and its unit on one line.
pub(crate) const NBSP: char = '\u{a0}';

/// The unit of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Nanoseconds: a latency, or CPU time.
    Nanoseconds,
    /// Seconds since the run began.
    Seconds,
    /// Per second.
    PerSecond,
    /// Bytes.
    Bytes,
    /// A count.
    Count,
    /// A number of CPUs in use.
    Cores,
    /// A quotient of two values.
    Ratio,
    /// A quantile, 0 to 1, written as a percentile.
    Percentile,
    /// Without a unit.
    Plain,
}

impl Unit {
    /// Formats a value for a text or a table.
    pub(crate) fn text(self, value: f64) -> String {
        match self {
            Self::Nanoseconds => time(value),
            Self::Seconds => apart(&units::time(value * 1e9)),
            Self::Bytes => units::bytes(value).replace(' ', &NBSP.to_string()),
            Self::Ratio => ratio(value),
            Self::Count => units::count(value.max(0.0).round() as u64),
            Self::PerSecond | Self::Cores | Self::Plain => units::number(value),
            Self::Percentile => percentile(value),
        }
    }

    /// Returns the labelled values of an axis.
    pub(crate) fn ticks(self, scale: Scale, most: usize) -> Vec<f64> {
        match (self, scale) {
            (Self::Bytes, _) => scale.byte_ticks(most),
            // There are no half errors.
            (Self::Count, _) => scale.ticks(most).into_iter().filter(|value| value.fract() == 0.0).collect(),
            // Small changes are round in per cent, which is linear.
            (Self::Ratio, Scale::Log { low, high }) if high / low < 4.0 => Scale::Linear { low, high }.ticks(most),
            // A wider range must label 1.
            (Self::Ratio, Scale::Log { low, high }) => {
                let factors: &[f64] = if high / low < 100.0 { &[1.0, 2.0, 5.0] } else { &[1.0] };
                let powers = low.log10().floor() as i32..=high.log10().ceil() as i32;
                let each = powers.flat_map(|power| factors.iter().map(move |factor| factor * 10_f64.powi(power)));
                each.filter(|value| (low..=high).contains(value)).collect()
            }
            _ => scale.ticks(most),
        }
    }

    /// Formats a round number for an axis.
    pub(crate) fn tick(self, value: f64) -> String {
        match self {
            Self::Seconds if value == 0.0 => "0".into(),
            Self::Seconds if value >= 120.0 => short(&apart(&units::time(value * 1e9))),
            Self::Seconds => apart(&units::length(value)),
            Self::Nanoseconds | Self::Bytes if value == 0.0 => "0".into(),
            Self::PerSecond | Self::Count | Self::Plain => si(value),
            Self::Ratio => short(&ratio(value)),
            Self::Nanoseconds | Self::Bytes | Self::Cores | Self::Percentile => short(&self.text(value)),
        }
    }
}

impl From<metric::Unit> for Unit {
    fn from(unit: metric::Unit) -> Self {
        match unit {
            metric::Unit::PerSecond => Self::PerSecond,
            metric::Unit::Nanoseconds => Self::Nanoseconds,
            metric::Unit::Bytes => Self::Bytes,
            metric::Unit::Points => Self::Plain,
        }
    }
}

/// Formats nanoseconds: `550 µs`.
pub(crate) fn time(ns: f64) -> String {
    apart(&units::time(ns))
}

/// Formats a percentile or its bound: `≥ 2.00 s`.
pub(crate) fn bound(value_ns: u64, at_least: bool) -> String {
    if at_least { format!("≥{NBSP}{}", apart(&units::time_at_least(value_ns))) } else { time(value_ns as f64) }
}

/// Formats a percentile of a summary; a dash without a value.
pub(crate) fn percentile_value(percentile: Option<Percentile>) -> String {
    percentile.map_or_else(|| "–".into(), |p| bound(p.value_ns, p.at_least))
}

/// Formats a quantile of a histogram likewise.
pub(crate) fn quantile_value(quantile: Option<Quantile>) -> String {
    percentile_value(quantile.map(Percentile::from))
}

/// Formats a ratio as a change, `+4.2 %`; from a factor of two on, `×3.20`.
pub(crate) fn ratio(value: f64) -> String {
    ratio_as(value, value)
}

/// Formats two ratios, both in the form for `form`.
pub(crate) fn ratios(low: f64, high: f64, form: f64) -> String {
    format!("{} to {}", ratio_as(low, form), ratio_as(high, form))
}

fn ratio_as(value: f64, form: f64) -> String {
    if !value.is_finite() || value <= 0.0 {
        return "–".into();
    }
    if !(0.5..2.0).contains(&form) {
        return format!("×{}", units::number(value));
    }
    let percent = (value - 1.0) * 100.0;
    let digits = if percent.abs() >= 9.95 { 0 } else { 1 };
    let text = format!("{:.digits$}", percent.abs());
    let sign = match text.trim_matches(['0', '.']) {
        "" => "±",
        _ if percent < 0.0 => "−",
        _ => "+",
    };
    format!("{sign}{text}{NBSP}%")
}

/// Formats a small share: `3.1 % of all requests`, `fewer than 0.1 % of all requests`.
pub(crate) fn share(part: u64, whole: u64) -> String {
    let share = part as f64 / whole.max(1) as f64;
    if share < 0.0005 { format!("fewer than 0.1{NBSP}%") } else { percent(share) }
}

/// Formats a share as a percentage: `98 %`.
pub(crate) fn percent(share: f64) -> String {
    units::percent(share).replace(' ', &NBSP.to_string())
}

/// Formats the two ends of an interval: `1.20 ms – 1.31 ms`.
pub(crate) fn range(interval: &Interval, unit: Unit) -> String {
    format!("{} – {}", unit.text(interval.low), unit.text(interval.high))
}

/// Formats `99.9` for 0.999.
pub(crate) fn percentile(q: f64) -> String {
    let text = format!("{:.7}", q * 100.0);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Formats a date and a time of day, UTC: `2026-03-01 14:05 UTC`.
pub(crate) fn date(unix_s: f64) -> String {
    let Date { year, month, day, hour, minute, .. } = Date::at(unix_s as u64);
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02} UTC")
}

/// Abbreviates thousands and millions: `20k`.
fn si(value: f64) -> String {
    let (scaled, unit) = match value.abs() {
        size if size >= 1e9 => (value / 1e9, "G"),
        size if size >= 1e6 => (value / 1e6, "M"),
        size if size >= 1e4 => (value / 1e3, "k"),
        _ => return short(&units::number(value)),
    };
    short(&format!("{scaled:.2}")) + unit
}

/// Separates a number from its unit: `1.23ms` becomes `1.23 ms`, and `us` becomes `µs`.
fn apart(text: &str) -> String {
    let at = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(at);
    match unit {
        "" => number.to_owned(),
        "us" => format!("{number}{NBSP}µs"),
        "m" => format!("{number}{NBSP}min"),
        unit => format!("{number}{NBSP}{unit}"),
    }
}

/// Removes trailing zeros after the point.
fn short(text: &str) -> String {
    let end = text.find(|c: char| !(c.is_ascii_digit() || ".,+−±×-".contains(c))).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    if !number.contains('.') {
        return text.to_owned();
    }
    format!("{}{unit}", number.trim_end_matches('0').trim_end_matches('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(text: &str) -> String {
        text.replace(NBSP, " ")
    }

    #[test]
    fn a_number_and_its_unit_stand_apart() {
        let text = |unit: Unit, value| plain(&unit.text(value));
        assert_eq!(text(Unit::Nanoseconds, 550_000.0), "550 µs");
        assert_eq!(text(Unit::Bytes, 1536.0), "1.50 KiB");
        assert_eq!(text(Unit::PerSecond, 123_456.0), "123,456");
        assert_eq!(plain(&bound(2_000_000_000, true)), "≥ 2.00 s");
        assert_eq!(percentile_value(None), "–");
    }

    #[test]
    fn an_axis_says_it_in_short() {
        let tick = |unit: Unit, value| plain(&unit.tick(value));
        assert_eq!([tick(Unit::Nanoseconds, 1e6), tick(Unit::Nanoseconds, 1.5e6)], ["1 ms", "1.5 ms"]);
        assert_eq!([tick(Unit::PerSecond, 20_000.0), tick(Unit::PerSecond, 2500.0)], ["20k", "2,500"]);
        assert_eq!(
            [tick(Unit::Seconds, 0.0), tick(Unit::Seconds, 2.0), tick(Unit::Seconds, 300.0)],
            ["0", "2 s", "5 min"]
        );
        assert_eq!([tick(Unit::Percentile, 0.99999), tick(Unit::Percentile, 0.5)], ["99.999", "50"]);
        assert_eq!([tick(Unit::Cores, 0.5), tick(Unit::Plain, 0.0), tick(Unit::Bytes, 0.0)], ["0.5", "0", "0"]);
        assert_eq!([tick(Unit::Ratio, 1.1), tick(Unit::Ratio, 3.0), tick(Unit::Ratio, 1.0)], ["+10 %", "×3", "±0 %"]);
    }

    #[test]
    fn ratios_near_one_are_changes() {
        let cases =
            [(1.042, "+4.2 %"), (0.87, "−13 %"), (1.0, "±0.0 %"), (0.9999, "±0.0 %"), (3.2, "×3.20"), (0.25, "×0.250")];
        for (value, text) in cases {
            assert_eq!(plain(&ratio(value)), text);
        }
        assert_eq!([ratio(0.0), ratio(f64::NAN)], ["–", "–"]);
        assert_eq!(Unit::Ratio.ticks(Scale::Log { low: 0.4, high: 6.0 }, 4), [0.5, 1.0, 2.0, 5.0]);
        assert_eq!(plain(&ratios(1.8, 2.2, 1.99)), "+80 % to +120 %");
        assert_eq!(plain(&ratios(1.8, 2.2, 2.01)), "×1.80 to ×2.20");
    }
}
