//! Values that begin with a minus, which the parser would take for flags.

use std::ffi::OsString;

use clap::{Arg, Command};
use oroshi_words::units;

use crate::bench::awaited;

/// Explains the first value that begins with a minus and a digit, behind its flag: `-R -1`.
///
/// `words` are the words behind the subcommand's name.
pub(crate) fn value(command: &Command, words: &[OsString]) -> Option<String> {
    let words: Vec<&str> = words.iter().map_while(|word| word.to_str()).take_while(|word| *word != "--").collect();
    let begins_number = |rest: &str| rest.starts_with(|c: char| c.is_ascii_digit() || c == '.');
    let negative = |word: &str| word.strip_prefix('-').is_some_and(begins_number);
    let (flag, value) = words.windows(2).find_map(|pair| {
        let [flag, value] = pair else { return None };
        awaited(command, flag).filter(|_| negative(value)).map(|flag| (flag, *value))
    })?;
    let name = flag.get_long().map_or_else(|| flag.get_id().to_string(), |long| format!("--{long}"));
    let (what, next) = match complaint(flag, value) {
        Some(what) => (what, format!("`oroshi {} --help` lists all flags", command.get_name())),
        None => (
            format!("`{value}` begins with a minus, so it would be taken for a flag"),
            format!("write {name}={value}, if that is what is meant"),
        ),
    };
    Some(format!("error: {name}: {what}\n  next: {next}"))
}

/// Describes what is wrong with a value below 0; `None`: the flag takes a text.
fn complaint(flag: &Arg, value: &str) -> Option<String> {
    match flag.get_value_names()?.first()?.as_str() {
        "TIME" => units::parse_time(value).err(),
        "PER_SECOND" => units::parse_number(value).err(),
        "PERCENT" => units::parse_percent(value).err(),
        "N" | "N|unlimited" | "N|all" | "N-N" => units::parse_count(value).err(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use clap::Args as _;

    use super::*;

    fn said(line: &str) -> String {
        let command = crate::bench::Args::augment_args(Command::new("bench"));
        value(&command, &line.split(' ').map(OsString::from).collect::<Vec<_>>()).unwrap_or_default()
    }

    #[test]
    fn a_number_below_zero_is_no_flag() {
        for (line, words) in [
            ("-R -1 http://h/", "error: --rate: `-1` is below 0: expected a number such as 100"),
            ("-d -1s http://h/", "error: --duration: `-1s` is below 0: expected a time such as 30s"),
            ("--connections -.5 http://h/", "error: --connections: `-.5` is below 0: expected a whole number"),
            (
                "-Lb -5 http://h/",
                "error: --body: `-5` begins with a minus, so it would be taken for a flag\n  next: write --body=-5",
            ),
        ] {
            assert!(said(line).starts_with(words), "{line}: {}", said(line));
        }
        for line in ["-R 5 http://h/", "-L -5 http://h/", "-c5 http://h/", "-s x http://h/ -- -R -1", "-R=-1"] {
            assert_eq!(said(line), "", "{line}");
        }
    }
}
