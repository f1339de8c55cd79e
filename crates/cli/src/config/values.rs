//! What is made of a configuration's texts, whatever they configure.

use std::fs;

use oroshi_net::{CpuList, available_cpus};
use oroshi_words::units::parse_count;

use super::document::Table;

/// A number without a sign that fits where it goes.
pub(crate) fn number<T: TryFrom<u64>>(text: &str) -> Result<T, String> {
    T::try_from(parse_count(text)?).map_err(|_| format!("`{text}` is too large a number: expected a smaller one"))
}

/// true or false, also as YAML has had it.
pub(crate) fn switch(text: &str) -> Result<bool, String> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "yes" | "on" => Ok(true),
        "false" | "no" | "off" => Ok(false),
        _ => Err(format!("`{text}` is no switch: expected true or false")),
    }
}

/// A value, or the word `off`.
pub(crate) fn off_or<T>(text: &str, read: impl FnOnce(&str) -> Result<T, String>) -> Result<Option<T>, String> {
    match text {
        "off" => Ok(None),
        _ => read(text).map(Some).map_err(|why| format!("{why}, or off")),
    }
}

/// CPUs that there are.
pub(crate) fn cpus(text: &str) -> Result<CpuList, String> {
    let list: CpuList = text.parse().map_err(|error| format!("{error}"))?;
    // Where the kernel does not say which there are, pinning says it.
    if let Ok(available) = available_cpus()
        && let Some(cpu) = list.iter().find(|&cpu| !available.contains(cpu))
    {
        return Err(format!("`{text}` names CPU {cpu}: expected some of those available here, {available}"));
    }
    Ok(list)
}

/// Where a secret is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kept {
    /// In the configuration itself.
    Here,
    /// In a file of its own.
    File,
    /// In an environment variable.
    Variable,
}

/// A secret from wherever it is kept. What is said about it never holds it.
pub(crate) fn secret(table: &Table<'_>, places: &[(&'static str, Kept)]) -> Option<String> {
    let mut found = None;
    for &(key, kept) in places {
        let Some(field) = table.get(key) else { continue };
        let Some(text) = field.text() else { continue };
        if found.is_some() {
            let names: Vec<&str> = places.iter().map(|place| place.0).collect();
            field.wrong(format!("it is given twice: expected one of {}", names.join(", ")));
            continue;
        }
        let value = match kept {
            Kept::Here => Ok(text.to_owned()),
            Kept::File => fs::read_to_string(text).map_err(|error| format!("cannot read `{text}`: {error}")),
            Kept::Variable => std::env::var(text)
                .map_err(|_| format!("the environment variable `{text}` is not set: expected it to hold the secret")),
        };
        match value {
            // Editors end a file with a line break.
            Ok(value) => found = Some(value.trim_end().to_owned()),
            Err(why) => field.wrong(why),
        }
    }
    found
}
