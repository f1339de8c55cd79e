//! Parses rules, runs and commands of experiments, from flags or files.

use std::time::Duration;

use oroshi_bench::{Draft, Load};
use oroshi_lab::plan::LEAST_BLOCKS;
use oroshi_words::units;

/// The default duration of a run: many short runs tell more than a few long ones.
const DURATION: Duration = Duration::from_secs(1);
const WARMUP: Duration = Duration::from_millis(250);
/// The timeout of a run that ends after a number of requests.
const LONGEST: Duration = Duration::from_secs(60);

/// Parses a share between 0 and 1, both excluded: `3%`.
///
/// # Errors
/// The mistake, in words.
pub fn share(text: &str) -> Result<f64, String> {
    match units::parse_percent(text)? {
        share if share > 0.0 && share < 1.0 => Ok(share),
        _ => Err(format!("`{text}`: expected more than 0 % and less than 100 %")),
    }
}

/// Parses a share of runs, up to all of them: `20%`.
///
/// # Errors
/// The mistake, in words.
pub fn disturbed(text: &str) -> Result<f64, String> {
    match units::parse_percent(text)? {
        share if (0.0..=1.0).contains(&share) => Ok(share),
        _ => Err(format!("`{text}`: expected a share of the runs, from 0% (none may be disturbed) to 100% (all may)")),
    }
}

/// Parses the least and the most blocks: `10-50`, or one number for both.
///
/// # Errors
/// The mistake, or that so few blocks allow no conclusion, in words.
pub fn blocks(text: &str) -> Result<(usize, usize), String> {
    let expected =
        || format!("`{text}`: expected a least and a greatest number of blocks, as in 10-50, or one number for both");
    let number = |text: &str| text.trim().parse::<usize>().map_err(|_| expected());
    let (least, most) = match text.split_once('-') {
        Some((least, most)) => (number(least)?, number(most)?),
        None => (number(text)?, number(text)?),
    };
    if least < LEAST_BLOCKS {
        return Err(format!("`{text}`: with fewer than {LEAST_BLOCKS} blocks nothing can be said of a difference"));
    }
    if least > most { Err(expected()) } else { Ok((least, most)) }
}

/// Parses the number of blocks between restarts of the servers: a number, or `all` (`None`).
///
/// # Errors
/// The mistake, in words.
pub fn blocks_per_start(text: &str) -> Result<Option<usize>, String> {
    match text.parse::<usize>() {
        Ok(n) if n > 0 => Ok(Some(n)),
        _ if text == "all" => Ok(None),
        _ => Err(format!("`{text}`: expected a number of at least 1, or all")),
    }
}

/// Splits a command into words like a shell. Placeholders stay whole, even with spaces in them.
///
/// # Errors
/// A quote that is not closed, in words.
pub fn words(text: &str) -> Result<Vec<String>, String> {
    let mut joined = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, (name, after))) =
        rest.split_once("{{").and_then(|(before, rest)| Some((before, rest.split_once("}}")?)))
    {
        joined.extend([before, "{{", name.trim(), "}}"]);
        rest = after;
    }
    shell_words::split(&(joined + rest)).map_err(|error| format!("`{text}` cannot be split into words: {error}"))
}

/// Returns the draft of an experiment's run, with its duration. `warmup`: whether the draft's warm-up was given.
#[must_use]
pub fn timed(mut draft: Draft, warmup: bool) -> Draft {
    let staged: Duration = match &draft.load {
        Load::Open { stages, .. } => stages.iter().map(|stage| stage.duration).sum(),
        Load::Closed => Duration::ZERO,
    };
    let usual = match draft.requests {
        _ if !staged.is_zero() => staged,
        Some(_) => LONGEST,
        None => DURATION,
    };
    // The duration of a closed loop without one follows the servers: slow ones get longer runs.
    let closed = draft.load == Load::Closed && draft.requests.is_none();
    draft.free_duration = closed && draft.duration.is_none();
    draft.duration = Some(draft.duration.unwrap_or(usual));
    if !warmup {
        draft.free_warmup = closed;
        draft.warmup = WARMUP;
    }
    draft
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_a_range_or_a_number() {
        assert_eq!((blocks("10-50"), blocks("5"), blocks("3 - 3")), (Ok((10, 50)), Ok((5, 5)), Ok((3, 3))));
        for (bad, why) in [("", "expected"), ("x", "expected"), ("9-", "expected"), ("9-5", "expected"), ("2", "fewer")]
        {
            assert!(blocks(bad).unwrap_err().contains(why), "{bad}");
        }
        assert_eq!((blocks_per_start("all"), blocks_per_start("2")), (Ok(None), Ok(Some(2))));
        assert!(blocks_per_start("0").is_err() && blocks_per_start("none").is_err());
    }

    #[test]
    fn shares_lie_between_nothing_and_all() {
        assert_eq!(share("2.5%"), Ok(0.025));
        for bad in ["0%", "100%", "x"] {
            assert!(share(bad).unwrap_err().contains(bad), "{bad}");
        }
    }

    #[test]
    fn all_runs_may_be_disturbed_or_none() {
        assert_eq!((disturbed("0%"), disturbed("20%"), disturbed("100%")), (Ok(0.0), Ok(0.2), Ok(1.0)));
        for bad in ["101%", "x", "-1%"] {
            assert!(disturbed(bad).unwrap_err().contains(bad), "{bad}");
        }
    }

    #[test]
    fn placeholders_stay_in_one_piece() {
        assert_eq!(words("a '{{ b }} c' {{ d }}/e"), Ok(["a", "{{b}} c", "{{d}}/e"].map(str::to_owned).to_vec()));
        assert!(words("a 'b").unwrap_err().contains("`a 'b`"));
    }
}
