//! Finds figures in a load program's output.

use std::collections::BTreeMap;

use oroshi_words::units;
use regex_lite::Regex;

use super::verify;
use crate::metric::{Metric, Unit};
use crate::plan::{Command, Figure};

const BYTES: [(&str, f64); 8] = [
    ("b", 1.0),
    ("k", 1024.0),
    ("kb", 1e3),
    ("kib", 1024.0),
    ("mb", 1e6),
    ("mib", 1024.0 * 1024.0),
    ("gb", 1e9),
    ("gib", 1024.0 * 1024.0 * 1024.0),
];

/// The figures found in a program's output.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Picked {
    pub(super) figures: BTreeMap<Metric, f64>,
    /// Answered requests, if the plan has a pattern for them.
    pub(super) requests: Option<f64>,
}

/// Finds all figures of the plan.
///
/// # Errors
/// Which figure is missing or unreadable, in words.
pub(super) fn pick(command: &Command, output: &str) -> Result<Picked, String> {
    let mut picked = Picked::default();
    if let Some(pattern) = &command.requests {
        let text = last(pattern, output, "number of requests")?;
        let answered = units::parse_number(&plain(text)).map_err(|why| unreadable("number of requests", &why))?;
        // If hardly anything was answered, report this, and not a missing figure.
        if let Some(why) = command.burst.and_then(|burst| verify::burst_failure(burst, answered)) {
            return Err(why);
        }
        picked.requests = Some(answered);
    }
    for figure in &command.figures {
        let value = figure.find(output)?;
        // As with our own figures: a ratio needs a divisor.
        if value > 0.0 {
            picked.figures.insert(figure.metric, value);
        }
    }
    Ok(picked)
}

impl Figure {
    /// Returns the figure in its metric's unit.
    fn find(&self, output: &str) -> Result<f64, String> {
        let name = self.metric.name();
        let text = plain(last(&self.pattern, output, name)?);
        let read = match text.parse::<f64>() {
            Ok(bare) if bare.is_finite() => Ok(bare * self.scale),
            _ => match self.metric.unit() {
                Unit::PerSecond | Unit::Points => units::parse_number(&text),
                Unit::Nanoseconds => units::parse_time(&text).map(|time| time.as_secs_f64() * 1e9),
                Unit::Bytes => parse_bytes(&text),
            },
        };
        read.map_err(|why| unreadable(name, &why))
    }
}

/// Returns the last match's first group, or the whole match without groups.
fn last<'t>(pattern: &Regex, output: &'t str, what: &str) -> Result<&'t str, String> {
    let found = pattern.captures_iter(output).last().and_then(|captures| captures.get(1).or(captures.get(0)));
    let found = found.ok_or_else(|| format!("its output holds no {what}: nothing in it matches /{pattern}/"))?;
    Ok(found.as_str())
}

fn unreadable(what: &str, why: &str) -> String {
    format!("its output's {what} cannot be read: {why}")
}

/// Converts other programs' notation to ours: no spaces or thousands separators, `us` for micro.
fn plain(text: &str) -> String {
    let text: String = text.chars().filter(|c| !c.is_whitespace() && !matches!(c, ',' | '_')).collect();
    let text = text.replace(['\u{b5}', '\u{3bc}'], "u");
    let seconds = ["seconds", "second", "secs", "sec"].into_iter().find_map(|long| text.strip_suffix(long));
    seconds.map_or(text.clone(), |number| {
        let number = number.replace("milli", "m").replace("micro", "u").replace("nano", "n");
        format!("{number}s")
    })
}

fn parse_bytes(text: &str) -> Result<f64, String> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let scale = BYTES.iter().find(|(name, _)| unit.eq_ignore_ascii_case(name)).map(|(_, scale)| scale);
    let read = number.parse::<f64>().ok().zip(scale).map(|(number, scale)| number * scale);
    read.ok_or_else(|| format!("`{text}` is no number of bytes: expected one such as 100, 1.5MB or 10MiB"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn figure(metric: Metric, pattern: &str, scale: f64) -> Figure {
        Figure { metric, pattern: Regex::new(pattern).unwrap(), scale }
    }

    fn command(figures: Vec<Figure>, requests: Option<&str>) -> Command {
        Command {
            words: vec!["wrk".into()],
            env: Vec::new(),
            figures,
            requests: requests.map(|pattern| Regex::new(pattern).unwrap()),
            burst: None,
            warmup: None,
            timeout: Duration::from_secs(60),
        }
    }

    const WRK: &str = "\
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency   812.35us    1.02ms  40.11ms   93.01%
    Req/Sec     7.51k   663.22     9.12k    69.00%
  Latency Distribution
     50%  632.00us
     99%    4.17ms
  149,500 requests in 10.01s, 21.10MB read
Requests/sec:  14935.21
";

    #[test]
    fn wrk_is_read() {
        let figures = vec![
            figure(Metric::Rps, r"Requests/sec:\s+(\S+)", 1.0),
            figure(Metric::P50, r"50%\s+(\S+)", 1e6),
            figure(Metric::P99, r"99%\s+(\S+)", 1e6),
            figure(Metric::Mean, r"Latency\s+(\d\S+)", 1e6),
        ];
        let picked = pick(&command(figures, Some(r"([\d,]+) requests in")), WRK).unwrap();
        let expected = [(Metric::Rps, 14935.21), (Metric::P50, 632e3), (Metric::P99, 4.17e6), (Metric::Mean, 812.35e3)];
        for (metric, value) in expected {
            assert!((picked.figures[&metric] / value - 1.0).abs() < 1e-9, "{metric}: {picked:?}");
        }
        assert_eq!(picked.requests, Some(149_500.0));
    }

    #[test]
    fn numbers_are_read_with_their_units_and_bare_ones_by_the_scale() {
        for (metric, text, scale, value) in [
            (Metric::P99, "1.23ms", 1.0, 1.23e6),
            (Metric::P99, "1.23 ms", 1e9, 1.23e6),
            (Metric::P99, "12", 1e6, 12e6),
            (Metric::P99, "250\u{b5}s", 1.0, 250e3),
            (Metric::P99, "0.25 secs", 1.0, 0.25e9),
            (Metric::P99, "3 microseconds", 1.0, 3e3),
            (Metric::P99, "12msec", 1.0, 12e6),
            (Metric::P99, "1e-3", 1e9, 1e6),
            (Metric::Rps, "12.3k", 1.0, 12.3e3),
            (Metric::Rps, "1,234.5", 1.0, 1234.5),
            (Metric::Rps, "60", 1.0 / 60.0, 1.0),
            (Metric::Memory, "1.5 MiB", 1.0, 1.5 * 1024.0 * 1024.0),
            (Metric::Memory, "20kB", 1.0, 20e3),
            (Metric::Memory, "20", 1024.0, 20480.0),
        ] {
            let found = figure(metric, "= (.*)", scale).find(&format!("x = {text}")).unwrap();
            assert!((found / value - 1.0).abs() < 1e-9, "{text}: {found}");
        }
    }

    #[test]
    fn the_last_match_counts() {
        let found = figure(Metric::Rps, r"rps (\d+)", 1.0).find("rps 1\nrps 2\nend").unwrap();
        assert_eq!(found, 2.0);
        assert_eq!(figure(Metric::Rps, r"\d+", 1.0).find("7").unwrap(), 7.0, "without a group all of it");
    }

    #[test]
    fn a_burst_of_which_hardly_anything_was_answered_is_told_before_what_else_is_missing() {
        let asked = command(vec![figure(Metric::Mean, "mean (.*)", 1.0)], Some(r"ok (\d+)"));
        let burst = Command { burst: Some(100), ..asked };
        assert_eq!(pick(&burst, "ok 0").unwrap_err(), "none of its 100 requests was answered");
        assert_eq!(pick(&burst, "ok 60, mean 2").unwrap().requests, Some(60.0));
    }

    #[test]
    fn what_is_missing_or_no_number_is_named() {
        let missing = pick(&command(vec![figure(Metric::P99, r"99% (\S+)", 1.0)], None), "no such line").unwrap_err();
        assert_eq!(missing, "its output holds no p99: nothing in it matches /99% (\\S+)/");
        let no_number = figure(Metric::Rps, r"rps (\S+)", 1.0).find("rps fast").unwrap_err();
        assert!(no_number.contains("rps cannot be read: `fast` is no number"), "{no_number}");
        for nonsense in ["NaN", "inf", "-", "1.2.3", "5 parsecs"] {
            assert!(figure(Metric::P50, "(.*)", 1.0).find(nonsense).is_err(), "{nonsense}");
            assert!(figure(Metric::Memory, "(.*)", 1.0).find(nonsense).is_err(), "{nonsense}");
        }
        let requests = pick(&command(Vec::new(), Some("(many) requests")), "many requests").unwrap_err();
        assert!(requests.contains("number of requests cannot be read"), "{requests}");
        let zero = pick(&command(vec![figure(Metric::Rps, "(0)", 1.0)], None), "0").unwrap();
        assert_eq!(zero, Picked::default());
    }
}
