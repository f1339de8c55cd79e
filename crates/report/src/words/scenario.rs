//! A run of scenarios in words: its score, checks, users and phases.

use oroshi_bench::Record;
use oroshi_bench::record::scenario::{
    CheckRecord, JourneyRecord, PhaseRecord, SampleRecord, ScenarioRecord, ScoreRecord, UserModel,
};
use oroshi_words::units::{self, plural};

/// Writes text of a script or of a server in one line of at most `most` characters: control characters as escapes, the
/// middle left out if it is too long.
#[must_use]
pub fn one_line(text: &str, most: usize) -> String {
    let letter = |letter: char| match letter {
        '\t' | '\n' => " ".to_owned(),
        '\r' => String::new(),
        // Marks of direction would reorder what stands beside them; others have no width.
        '\u{ad}'
        | '\u{61c}'
        | '\u{200b}'..='\u{200f}'
        | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{2069}'
        | '\u{feff}' => letter.escape_unicode().to_string(),
        letter if letter.is_control() => letter.escape_default().to_string(),
        letter => letter.to_string(),
    };
    // Each letter becomes at least nothing and at most ten: a longer text needs no further look.
    let text: String = text.chars().map(letter).collect();
    shortened(text.trim(), most)
}

/// Returns a text of at most `most` characters, with an ellipsis for the middle: names often differ at their ends.
fn shortened(text: &str, most: usize) -> String {
    let count = text.chars().count();
    if count <= most {
        return text.to_owned();
    }
    let kept = most.saturating_sub(1);
    let begin = kept.div_ceil(2);
    let start: String = text.chars().take(begin).collect();
    let end: String = text.chars().skip(count - (kept - begin)).collect();
    format!("{start}…{end}")
}

/// Formats points, or a score: `43,933`, `-20`, `12.5`.
#[must_use]
pub fn points(value: f64) -> String {
    if value.fract() != 0.0 || value.abs() >= 1e15 {
        return units::number(value);
    }
    let sign = if value < 0.0 { "-" } else { "" };
    format!("{sign}{}", units::count(value.abs() as u64))
}

/// Describes a score: `43,933`, or that it is void and why.
#[must_use]
pub fn score(score: &ScoreRecord) -> String {
    match &score.void {
        Some(why) => format!("VOID: {}", one_line(why, 400)),
        None if score.formula && score.points != 0.0 => {
            format!("{} (the script's formula; {} points in all)", points(score.value), points(score.points))
        }
        None if score.formula => format!("{} (the script's formula)", points(score.value)),
        None => points(score.value),
    }
}

/// Returns why the run's score is void, if it is. A run that the script ended has no valid score either.
#[must_use]
pub fn void(record: &Record) -> Option<&str> {
    let scenario = record.scenario.as_deref()?;
    scenario.score.as_ref().and_then(|score| score.void.as_deref()).or(scenario.aborted.as_deref())
}

/// Formats a share so that only all is `100 %`, and only nothing `0 %`.
#[must_use]
pub fn share(part: u64, all: u64) -> String {
    let percent = 100.0 * part as f64 / all.max(1) as f64;
    match percent {
        _ if part == all => "100 %".into(),
        _ if part == 0 => "0 %".into(),
        // Rounded towards the middle: 99.996 is not yet 100.
        percent if percent >= 50.0 => format!("{} %", trimmed((percent * 100.0).floor() / 100.0)),
        percent if percent < 0.01 => "< 0.01 %".into(),
        percent => format!("{} %", trimmed((percent * 100.0).ceil() / 100.0)),
    }
}

/// Formats a number with at most two decimals.
fn trimmed(value: f64) -> String {
    format!("{value:.2}").trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Describes all checks: `99.87 % of 12,345 passed`; `None` if the script made none.
#[must_use]
pub fn checks(scenario: &ScenarioRecord) -> Option<String> {
    let (passed, all) = scenario.checks_passed();
    if all == 0 {
        return None;
    }
    let failed = failed_checks(scenario).count() as u64;
    let text = format!("{} of {} passed", share(passed, all), units::count(all));
    let names = plural(scenario.checks.len() as u64, "name");
    Some(if failed > 0 { format!("{text}; {} of {names} failed", units::count(failed)) } else { text })
}

/// Returns the checks that failed at least once, those with the most failures first.
pub fn failed_checks(scenario: &ScenarioRecord) -> impl Iterator<Item = &CheckRecord> {
    let mut failed: Vec<&CheckRecord> = scenario.checks.iter().filter(|check| check.failed > 0).collect();
    failed.sort_by_key(|check| std::cmp::Reverse(check.failed));
    failed.into_iter()
}

/// Describes where a sample comes from: `shop.lua:31, user 7, at 1.20s`.
#[must_use]
pub fn origin(sample: &SampleRecord) -> String {
    let place = one_line(&sample.place, 60);
    let place = if place.is_empty() { String::new() } else { place + ", " };
    format!("{place}user {}, at {}", units::count(sample.user), units::time(sample.at_s * 1e9))
}

/// Describes a sample in one line: its origin, method and target of the request, and the response's status.
#[must_use]
pub fn sample(sample: &SampleRecord) -> String {
    const VERSION: &str = "HTTP/1.1";
    let first = |text: &str| one_line(text.lines().next().unwrap_or_default(), 200);
    let (request, head) = (first(&sample.request), first(&sample.head));
    let request = request.strip_suffix(VERSION).unwrap_or(&request).trim();
    match (request, head.strip_prefix(VERSION).unwrap_or(&head).trim()) {
        ("", _) => origin(sample),
        (request, "") => format!("{}: {request} -> no response", origin(sample)),
        (request, status) => format!("{}: {request} -> {status}", origin(sample)),
    }
}

/// Describes users and their model: `20 users on 2 threads, closed model`.
#[must_use]
pub fn users(record: &Record, scenario: &ScenarioRecord) -> String {
    let users = plural(scenario.users.most.max(record.plan.connections) as u64, "user");
    let threads = plural(record.plan.threads as u64, "thread");
    let model = match scenario.users.model {
        UserModel::Closed => "closed model".to_owned(),
        UserModel::Open => {
            let per_s = scenario.users.due as f64 / record.elapsed_s.max(f64::MIN_POSITIVE);
            format!("open model ({} journeys/s due)", units::number(per_s))
        }
    };
    format!("{users} on {threads}, {model}")
}

/// Describes how late journeys of the open model began; `None` in the closed model.
#[must_use]
pub fn arrivals(scenario: &ScenarioRecord) -> Option<String> {
    let users = &scenario.users;
    if users.model == UserModel::Closed {
        return None;
    }
    let mut parts = vec![format!("{} due", plural(users.due, "journey"))];
    if users.late > 0 {
        let by = users.lateness.as_ref().map_or_else(String::new, |lateness| {
            let at = |q| super::quantile(lateness, q);
            format!(", by {} (p50), {} (p99), {} (max)", at(0.5), at(0.99), at(1.0))
        });
        parts.push(format!("{} ({}) late{by}", units::count(users.late), share(users.late, users.due)));
    }
    if users.unbegun > 0 {
        parts.push(format!("{} ({}) never begun", units::count(users.unbegun), share(users.unbegun, users.due)));
    }
    if users.late == 0 && users.unbegun == 0 {
        parts.push("none of them late".into());
    }
    Some(parts.join("; "))
}

/// Describes a phase: `initialize 1.20s`, with what went wrong.
#[must_use]
pub fn phase(phase: &PhaseRecord) -> String {
    let took = units::time(phase.elapsed_s * 1e9);
    match &phase.error {
        Some(error) => format!("{} failed after {took}: {}", one_line(&phase.name, 40), one_line(error, 400)),
        None => format!("{} {took}", one_line(&phase.name, 40)),
    }
}

/// Returns the sum of a number over all scenarios.
#[must_use]
pub fn journeys(scenario: &ScenarioRecord, number: impl Fn(&JourneyRecord) -> u64) -> u64 {
    scenario.journeys.iter().map(number).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_all_is_a_hundred_per_cent_and_only_none_is_nothing() {
        let cases = [
            (0, 0, "100 %"),
            (0, 9, "0 %"),
            (9, 9, "100 %"),
            (1, 4, "25 %"),
            (99_999, 100_000, "99.99 %"),
            (1, 3, "33.34 %"),
            (2, 3, "66.66 %"),
            (1, 1_000_000, "< 0.01 %"),
        ];
        for (part, all, text) in cases {
            assert_eq!(share(part, all), text);
        }
    }

    #[test]
    fn scores_are_whole_or_have_three_digits() {
        let cases =
            [(43_933.0, "43,933"), (-20.0, "-20"), (0.0, "0"), (12.5, "12.5"), (1e18, "1,000,000,000,000,000,000")];
        for (value, text) in cases {
            assert_eq!(points(value), text);
        }
        assert_eq!((points(f64::NAN), points(f64::INFINITY)), ("-".into(), "-".into()));
    }

    #[test]
    fn names_of_others_stay_in_one_line_and_steer_nothing() {
        assert_eq!(one_line("a\x1b[31m\r\nb\u{202e}c", 80), "a\\u{1b}[31m b\\u{202e}c");
        assert_eq!(one_line("GET /items/1/edit", 9), "GET …edit");
        assert_eq!(
            (one_line("abc", 3), one_line("abcd", 3), one_line("abcd", 1)),
            ("abc".into(), "a…d".into(), "…".into())
        );
    }
}
