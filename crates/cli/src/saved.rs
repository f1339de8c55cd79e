//! Saved results: files of limited size, whose text may come from anywhere.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use oroshi_lab::baseline::SavedResult;
use oroshi_words::printable;
use serde_json::Value;

/// Maximum size of a saved result, MiB.
const MOST_MIB: u64 = 256;

/// Reads the text of a saved result.
///
/// # Errors
/// If there is no such file, it is too large, or it is no text.
pub(crate) fn read_text(path: &Path) -> io::Result<String> {
    let most = MOST_MIB << 20;
    let bytes = beginning(path, most + 1)?;
    if bytes.len() as u64 > most {
        let what = format!("it holds more than {MOST_MIB} MiB, the most that is read of a saved result");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, what));
    }
    let no_text = |error| io::Error::new(io::ErrorKind::InvalidData, format!("it is no text: {error}"));
    String::from_utf8(bytes).map_err(no_text)
}

/// Reads at most this many bytes from the beginning of a file.
///
/// # Errors
/// If the file cannot be read.
pub(crate) fn beginning(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Parses the JSON that `bench`, `compare` or `lab` wrote.
///
/// # Errors
/// If it is something else, in words.
pub(crate) fn parse(text: &str) -> Result<SavedResult, String> {
    const EXPECTED: &str = "expected a result of `oroshi compare`, `oroshi lab` or `oroshi bench` in JSON";
    let (value, text) = value(text).map_err(|error| format!("it is no JSON ({error}): {EXPECTED}"))?;
    let schema = |value: &Value| value["schema"].as_str().unwrap_or_default().to_owned();
    let named = if value.is_array() { schema(&value[0]) } else { schema(&value) };
    let read = |error: serde_json::Error| format!("it cannot be understood ({error}): {EXPECTED} of this version");
    let major = |schema: &str| schema.split('.').next().map(str::to_owned);
    if let Some(ours) = [oroshi_lab::result::SCHEMA, oroshi_bench::record::SCHEMA]
        .into_iter()
        .find(|ours| ours.split('/').next() == named.split('/').next() && major(ours) != major(&named))
    {
        return Err(format!("it is of schema {named}: this version reads {ours}"));
    }
    match named.split('/').next() {
        Some("oroshi-lab") => serde_json::from_str(&text).map(SavedResult::Lab).map_err(read),
        Some("oroshi-bench") if value.is_array() => serde_json::from_str(&text).map(SavedResult::Bench).map_err(read),
        Some("oroshi-bench") => {
            serde_json::from_str(&text).map(|record| SavedResult::Bench(vec![record])).map_err(read)
        }
        _ => Err(format!("it names no schema of ours: {EXPECTED}")),
    }
}

/// Parses a run of subscriptions; `None`: it is something else.
///
/// # Errors
/// If this version cannot read it, in words.
pub(crate) fn parse_subscriptions(text: &str) -> Result<Option<oroshi_bench::push::Record>, String> {
    let ours = oroshi_bench::push::record::SCHEMA;
    let Ok((value, text)) = value(text) else { return Ok(None) };
    let Some(schema) = value["schema"].as_str() else { return Ok(None) };
    let major = |schema: &str| schema.split('.').next().map(str::to_owned);
    if schema.split('/').next() != ours.split('/').next() {
        return Ok(None);
    }
    if major(schema) != major(ours) {
        return Err(format!("it is of schema {schema}: this version reads {ours}"));
    }
    serde_json::from_str(&text).map(Some).map_err(|error| format!("it cannot be understood ({error})"))
}

/// Parses a JSON text; also returns the text with control characters in strings made visible.
fn value(text: &str) -> serde_json::Result<(Value, std::borrow::Cow<'_, str>)> {
    let mut value: Value = serde_json::from_str(text)?;
    let text = if clean(&mut value) { serde_json::to_string(&value)?.into() } else { text.into() };
    Ok((value, text))
}

/// Makes control characters in strings visible, except those that a report may contain. Returns whether there were
/// any.
fn clean(value: &mut Value) -> bool {
    match value {
        Value::String(text) => {
            let steers = text.contains(|letter: char| letter.is_control() && letter != '\n' && letter != '\t');
            if steers {
                *text = printable(text);
            }
            steers
        }
        Value::Array(items) => items.iter_mut().fold(false, |any, item| clean(item) | any),
        // Names are those of fields, or a map's: of statuses, failures and metrics, where no other is taken.
        Value::Object(fields) => fields.values_mut().fold(false, |any, value| clean(value) | any),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oroshi_report::sample;

    #[test]
    fn saved_results_are_told_apart_by_their_schema() {
        let lab = serde_json::to_string(&sample::lab::two()).unwrap();
        assert!(matches!(parse(&lab), Ok(SavedResult::Lab(_))));
        let run = serde_json::to_string(&sample::bench::closed()).unwrap();
        assert!(matches!(parse(&run), Ok(SavedResult::Bench(runs)) if runs.len() == 1));
        assert!(matches!(parse(&format!("[{run},{run}]")), Ok(SavedResult::Bench(runs)) if runs.len() == 2));
        for (bad, why) in [
            ("", "no JSON"),
            ("[]", "no schema"),
            ("{\"schema\": \"x/1\"}", "no schema"),
            ("{\"schema\": \"oroshi-lab/1.0\"}", "cannot be understood"),
            ("{\"schema\": \"oroshi-lab/99.0\"}", "it is of schema oroshi-lab/99.0: this version reads oroshi-lab/1."),
            ("[{\"schema\": \"oroshi-bench/99.0\"}]", "this version reads oroshi-bench/1."),
        ] {
            assert!(parse(bad).unwrap_err().contains(why), "{bad}");
        }
    }

    #[test]
    fn what_a_file_says_steers_no_terminal() {
        let mut record = sample::bench::closed();
        record.warnings = vec!["\u{1b}]0;mine\u{7}first\n\tsecond".into()];
        let Ok(SavedResult::Bench(runs)) = parse(&serde_json::to_string(&record).unwrap()) else { panic!("a run") };
        assert_eq!(runs[0].warnings, ["\\u{1b}]0;mine\\u{7}first\n second"]);
        record.warnings = vec!["first\n\tsecond".into()];
        let Ok(SavedResult::Bench(runs)) = parse(&serde_json::to_string(&record).unwrap()) else { panic!("a run") };
        assert_eq!(runs[0].warnings, record.warnings);
    }
}
