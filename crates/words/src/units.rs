//! Numbers as people write and read them: `30s`, `1k`, `1.23ms`, `45,678`.
//!
//! Parsing ignores case (`30S`, `1K`), as wrk does, and errors say what was expected. Formatting keeps three
//! significant digits of a measured value: no benchmark is more precise.

use std::time::Duration;

const TIME_UNITS: [(&str, f64); 6] = [("ns", 1e-9), ("us", 1e-6), ("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("h", 3600.0)];
const SI_UNITS: [(&str, f64); 3] = [("k", 1e3), ("m", 1e6), ("g", 1e9)];
const BIT_UNITS: [(&str, f64); 4] = [("bit", 1.0), ("kbit", 1e3), ("mbit", 1e6), ("gbit", 1e9)];
/// The accepted rates of a link, bits per second.
const LINK_RATES: std::ops::RangeInclusive<f64> = 1e3..=1e12;
/// The longest accepted time: ten years. Anything longer is a mistake.
const LONGEST_S: f64 = 10.0 * 365.0 * 86_400.0;

/// Parses a time: `30s`, `1.5s`, `200ms`, `2m`, `1m30s`; a bare number is seconds.
///
/// # Errors
/// A message for the user.
pub fn parse_time(text: &str) -> Result<Duration, String> {
    let seconds = parse_seconds(text).ok_or_else(|| match is_below_zero(text) {
        true => format!("`{text}` is below 0: expected a time such as 30s or 1.5m"),
        false => format!("`{text}` is no time: expected a number with ns, us, ms, s, m or h, such as 30s or 1.5m"),
    })?;
    if seconds > LONGEST_S {
        return Err(format!("`{text}` is more than ten years: expected a time such as 30s"));
    }
    Ok(Duration::from_secs_f64(seconds))
}

/// Parses a whole number, with k, M or G for thousand, million and billion: `100`, `10k`, `1.5M`.
///
/// # Errors
/// A message for the user.
pub fn parse_count(text: &str) -> Result<u64, String> {
    let expected = || match is_below_zero(text) {
        true => format!("`{text}` is below 0: expected a whole number such as 100, 10k or 1.5M"),
        false => format!("`{text}` is no whole number: expected one such as 100, 10k or 1.5M"),
    };
    if let Ok(number) = text.parse() {
        return Ok(number);
    }
    let number = parse_si(text).ok_or_else(expected)?;
    // Beyond 2^53 a float no longer holds every integer.
    if number.fract() == 0.0 && number <= 9e15 { Ok(number as u64) } else { Err(expected()) }
}

/// Parses any number, with k, M or G: `2.5k`.
///
/// # Errors
/// A message for the user.
pub fn parse_number(text: &str) -> Result<f64, String> {
    parse_si(text).ok_or_else(|| match is_below_zero(text) {
        true => format!("`{text}` is below 0: expected a number such as 100, 2.5k or 1M"),
        false => format!("`{text}` is no number: expected one such as 100, 2.5k or 1M"),
    })
}

/// Parses a share: `3%` or `0.5 %` is 0.03 or 0.005.
///
/// # Errors
/// A message for the user.
pub fn parse_percent(text: &str) -> Result<f64, String> {
    let percent = text.trim().strip_suffix('%').and_then(|number| number.trim_end().parse::<f64>().ok());
    let share = percent.filter(|percent| percent.is_finite() && *percent >= 0.0).map(|percent| percent / 100.0);
    share.ok_or_else(|| format!("`{text}` is no share: expected a percentage such as 3%"))
}

/// Parses the rate of a network link in bits per second: `100Mbit`, `1.5 Gbit`, `800kbit`. At least 1 kbit.
///
/// # Errors
/// A message for the user.
pub fn parse_bit_rate(text: &str) -> Result<u64, String> {
    let bits = leading_number(text.trim()).and_then(|(number, unit)| Some(number * scale_of(unit.trim(), &BIT_UNITS)?));
    match bits {
        Some(bits) if LINK_RATES.contains(&bits) => Ok(bits.round() as u64),
        Some(_) => Err(format!("`{text}` is no rate of a link: expected 1kbit to 1000Gbit, such as 100Mbit")),
        None => Err(format!(
            "`{text}` is no rate of a link: expected a number with bit, kbit, Mbit or Gbit per second, such as 100Mbit"
        )),
    }
}

/// Formats the rate of a network link: `100 Mbit/s`, `1.5 Gbit/s`.
pub fn bit_rate(bits_per_s: f64) -> String {
    const SCALE: [(f64, &str); 4] = [(1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s"), (1.0, "bit/s")];
    let (scale, unit) = SCALE.into_iter().find(|(scale, _)| bits_per_s >= *scale).unwrap_or(SCALE[3]);
    format!("{} {unit}", (bits_per_s / scale * 1e3).round() / 1e3)
}

/// Parses stages, each a time and a value that `parse` reads: `10s:1000,30s:5000`.
///
/// `value` and `example` are for messages: `RATE`, `10s:1000,30s:5000`.
///
/// # Errors
/// A message for the user.
pub fn parse_stages<T>(
    text: &str,
    value: &str,
    example: &str,
    parse: impl Fn(&str) -> Result<T, String>,
) -> Result<Vec<(Duration, T)>, String> {
    let stage = |part: &str| {
        let expected = || format!("`{part}` is no stage: expected TIME:{value}, as in {example}");
        let (duration, value) = part.split_once(':').ok_or_else(expected)?;
        Ok((parse_time(duration)?, parse(value)?))
    };
    text.split(',').map(stage).collect()
}

/// Formats a time in nanoseconds, three significant digits: `850ns`, `1.23ms`, `12.3s`, `2.50m`.
pub fn time(ns: f64) -> String {
    const SCALE: [(f64, &str); 4] = [(1.0, "ns"), (1e3, "us"), (1e6, "ms"), (1e9, "s")];
    if !ns.is_finite() {
        return "-".into();
    }
    if ns >= 120e9 {
        return if ns < 7200e9 { format!("{:.1}m", ns / 60e9) } else { format!("{:.1}h", ns / 3600e9) };
    }
    // 999.7us is 1.00ms: rounding comes before the choice of the unit.
    let (scale, unit) = SCALE.into_iter().find(|(scale, _)| ns / scale < 999.5).unwrap_or(SCALE[3]);
    if scale == 1.0 { format!("{ns:.0}ns") } else { format!("{}{unit}", three_digits(ns / scale)) }
}

/// Formats a lower bound in nanoseconds like [`time`], rounded down: 1,239,999 is `1.23ms`.
pub fn time_at_least(ns: u64) -> String {
    const SCALE: [(u64, &str); 3] = [(1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us")];
    let tenths = |unit: u64| ns / (unit / 10);
    if ns >= 120_000_000_000 {
        let (unit, name) = if ns < 7_200_000_000_000 { (60_000_000_000, "m") } else { (3_600_000_000_000, "h") };
        return format!("{}.{}{name}", tenths(unit) / 10, tenths(unit) % 10);
    }
    let Some((unit, name)) = SCALE.into_iter().find(|(unit, _)| ns >= *unit) else { return format!("{ns}ns") };
    let hundredths = ns / (unit / 100);
    match hundredths {
        10_000.. => format!("{}{name}", hundredths / 100),
        1_000.. => format!("{}.{}{name}", hundredths / 100, hundredths / 10 % 10),
        _ => format!("{}.{:02}{name}", hundredths / 100, hundredths % 100),
    }
}

/// Formats a duration as the user wrote it: `10s`, `500ms`, `90s`, `1.5s`.
pub fn length(seconds: f64) -> String {
    let (value, unit) = if seconds > 0.0 && seconds < 1.0 { (seconds * 1e3, "ms") } else { (seconds, "s") };
    let text = format!("{value:.1}");
    format!("{}{unit}", text.strip_suffix(".0").unwrap_or(&text))
}

/// Formats a count with thousands separators: `1,234,567`.
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a measured number: `123,457`, `98.7`, `0.0123`.
pub fn number(value: f64) -> String {
    if !value.is_finite() {
        return "-".into();
    }
    if value.abs() >= 999.5 {
        let sign = if value < 0.0 { "-" } else { "" };
        return format!("{sign}{}", count(value.abs().round() as u64));
    }
    three_digits(value)
}

/// Formats a number of bytes: `512 B`, `18.3 MiB`.
pub fn bytes(n: f64) -> String {
    const SCALE: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = n;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < SCALE.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{value:.0} B") } else { format!("{} {}", three_digits(value), SCALE[unit]) }
}

/// Formats a share as a percentage: `98 %`, `0.4 %`.
pub fn percent(share: f64) -> String {
    let value = share * 100.0;
    if value == 0.0 || value >= 9.95 { format!("{value:.0} %") } else { format!("{value:.1} %") }
}

/// Formats a number with its noun: `1 connection`, `1,000 connections`.
pub fn plural(n: u64, noun: &str) -> String {
    format!("{} {noun}{}", count(n), if n == 1 { "" } else { "s" })
}

fn three_digits(value: f64) -> String {
    let size = value.abs();
    if value == 0.0 {
        "0".into()
    } else if size >= 99.95 {
        format!("{value:.0}")
    } else if size >= 9.995 {
        format!("{value:.1}")
    } else if size >= 0.9995 {
        format!("{value:.2}")
    } else {
        format!("{value:.3}")
    }
}

fn parse_seconds(text: &str) -> Option<f64> {
    let mut rest = text.trim();
    let mut total = 0.0;
    let mut parts = 0;
    while !rest.is_empty() {
        let (number, after) = leading_number(rest)?;
        let end = after.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(after.len());
        let (unit, next) = after.split_at(end);
        let scale = match unit {
            "" if parts == 0 => 1.0,
            _ => scale_of(unit, &TIME_UNITS)?,
        };
        total += number * scale;
        parts += 1;
        rest = next;
    }
    (parts > 0).then_some(total)
}

fn parse_si(text: &str) -> Option<f64> {
    let (number, unit) = leading_number(text.trim())?;
    if unit.is_empty() { Some(number) } else { Some(number * scale_of(unit, &SI_UNITS)?) }
}

fn scale_of(unit: &str, units: &[(&str, f64)]) -> Option<f64> {
    units.iter().find(|(name, _)| unit.eq_ignore_ascii_case(name)).map(|(_, scale)| *scale)
}

/// Whether the text is a minus and a possible number.
fn is_below_zero(text: &str) -> bool {
    let digits = text.trim().strip_prefix('-');
    digits.is_some_and(|digits| digits.starts_with(|c: char| c.is_ascii_digit() || c == '.'))
}

/// Splits digits with at most one point from the rest.
fn leading_number(text: &str) -> Option<(f64, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, rest) = text.split_at(end);
    Some((number.parse().ok()?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_below_zero_is_told_to_be_so() {
        assert!(parse_time("-1s").unwrap_err().starts_with("`-1s` is below 0: expected a time"));
        assert!(parse_count(" -.5k").unwrap_err().contains("is below 0: expected a whole number"));
        assert!(parse_number("-1").unwrap_err().starts_with("`-1` is below 0: expected a number"));
        assert!(parse_number("-x").unwrap_err().contains("is no number"));
    }

    #[test]
    fn times_are_read_as_wrk_reads_them_and_finer() {
        for (text, seconds) in [
            ("30", 30.0),
            ("30s", 30.0),
            ("2m", 120.0),
            ("1h", 3600.0),
            ("2M", 120.0),
            ("1.5s", 1.5),
            ("200ms", 0.2),
            ("250us", 0.00025),
            ("1m30s", 90.0),
            ("0", 0.0),
        ] {
            assert_eq!(parse_time(text), Ok(Duration::from_secs_f64(seconds)), "{text}");
        }
        assert_eq!(parse_time("5ns"), Ok(Duration::from_nanos(5)));
        for bad in ["", "s", "-1s", "10x", "1..5s", "5 s", "1s30", "1e9", "99999999h", "inf", "NaN", "."] {
            assert!(parse_time(bad).unwrap_err().contains(bad), "{bad}");
        }
    }

    #[test]
    fn counts_are_whole() {
        for (text, n) in
            [("0", 0), ("100", 100), ("1k", 1000), ("1K", 1000), ("1.5M", 1_500_000), ("2G", 2_000_000_000)]
        {
            assert_eq!(parse_count(text), Ok(n), "{text}");
        }
        assert_eq!(parse_count("18446744073709551615"), Ok(u64::MAX));
        for bad in ["", "k", "1.5", "-1", "1x", "1kk", "1e3", "99999999999999999G"] {
            assert!(parse_count(bad).is_err(), "{bad}");
        }
        assert_eq!(parse_number("2.5k"), Ok(2500.0));
        assert_eq!(parse_number("0.5"), Ok(0.5));
        assert!(parse_number("fast").is_err());
    }

    #[test]
    fn rates_of_links_are_in_bits() {
        for (text, bits, words) in [
            ("100Mbit", 100_000_000, "100 Mbit/s"),
            ("1.5 gbit", 1_500_000_000, "1.5 Gbit/s"),
            ("800kbit", 800_000, "800 kbit/s"),
            ("1000bit", 1000, "1 kbit/s"),
        ] {
            assert_eq!((parse_bit_rate(text), bit_rate(bits as f64)), (Ok(bits), words.to_owned()), "{text}");
        }
        for bad in ["", "100", "100M", "100MB", "0bit", "999bit", "-1Mbit", "2000Gbit", "x", "1Mbit/s/s"] {
            assert!(parse_bit_rate(bad).unwrap_err().contains("such as 100Mbit"), "{bad}");
        }
    }

    #[test]
    fn stages_are_times_with_values() {
        let parse = |text| parse_stages(text, "RATE", "10s:1000,30s:5000", parse_number);
        let seconds = Duration::from_secs;
        assert_eq!(parse("10s:1k,1m:0.5"), Ok(vec![(seconds(10), 1000.0), (seconds(60), 0.5)]));
        for (bad, what) in [
            ("", "`` is no stage: expected TIME:RATE, as in 10s:1000,30s:5000"),
            ("1s:1,2s", "`2s` is no stage: expected TIME:RATE, as in 10s:1000,30s:5000"),
            ("x:1", "`x` is no time: expected a number with ns, us, ms, s, m or h, such as 30s or 1.5m"),
            ("1s:x", "`x` is no number: expected one such as 100, 2.5k or 1M"),
        ] {
            assert_eq!(parse(bad), Err(what.to_owned()));
        }
    }

    #[test]
    fn times_have_three_digits_and_the_unit_follows_the_rounding() {
        for (ns, text) in [
            (0.0, "0ns"),
            (850.0, "850ns"),
            (1234.0, "1.23us"),
            (94_100.0, "94.1us"),
            (999_700.0, "1.00ms"),
            (99_960_000.0, "100ms"),
            (1.0e9, "1.00s"),
            (51.2e9, "51.2s"),
            (150e9, "2.5m"),
            (9000e9, "2.5h"),
            (f64::NAN, "-"),
        ] {
            assert_eq!(time(ns), text);
        }
        assert_eq!([length(10.0), length(0.5), length(1.5), length(90.0)], ["10s", "500ms", "1.5s", "90s"]);
    }

    #[test]
    fn a_bound_is_never_rounded_up() {
        for (ns, text) in [
            (0, "0ns"),
            (999, "999ns"),
            (1_239, "1.23us"),
            (99_999, "99.9us"),
            (999_999, "999us"),
            (1_999_999, "1.99ms"),
            (2_000_000_000, "2.00s"),
            (119_999_999_999, "119s"),
            (155_999_999_999, "2.5m"),
            (7_199_999_999_999, "119.9m"),
            (10_799_999_999_999, "2.9h"),
        ] {
            assert_eq!(time_at_least(ns), text);
        }
    }

    #[test]
    fn numbers_have_their_thousands_apart() {
        assert_eq!([count(0), count(999), count(1000), count(1_234_567)], ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([number(123_456.7), number(98.74), number(0.0), number(999.6)], ["123,457", "98.7", "0", "1,000"]);
        assert_eq!(number(-1234.0), "-1,234");
        assert_eq!(
            [bytes(512.0), bytes(1536.0), bytes(19_188_941.0), bytes(1023.0 * 1024.0)],
            ["512 B", "1.50 KiB", "18.3 MiB", "0.999 MiB"]
        );
        assert_eq!(
            (parse_percent("3%"), parse_percent(" 0.5 % "), parse_percent("0%")),
            (Ok(0.03), Ok(0.005), Ok(0.0))
        );
        for bad in ["3", "%", "x%", "-1%", "inf%", "NaN%"] {
            assert!(parse_percent(bad).unwrap_err().contains("such as 3%"), "{bad}");
        }
        assert_eq!([percent(0.98), percent(0.004), percent(0.0), percent(1.0)], ["98 %", "0.4 %", "0 %", "100 %"]);
        assert_eq!([plural(1, "thread"), plural(1000, "thread")], ["1 thread", "1,000 threads"]);
    }
}
