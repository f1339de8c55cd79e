//! Values that all configurations have: numbers, switches, and the word `off`.

use oroshi_words::units::parse_count;

/// Parses a number without a sign that fits into the type.
///
/// # Errors
/// The mistake, in words.
pub fn number<T: TryFrom<u64>>(text: &str) -> Result<T, String> {
    T::try_from(parse_count(text)?).map_err(|_| format!("`{text}` is too large a number: expected a smaller one"))
}

/// Reads any text.
///
/// # Errors
/// None.
pub fn text(text: &str) -> Result<String, String> {
    Ok(text.to_owned())
}

/// Parses true or false, also in the words of YAML 1.1.
///
/// # Errors
/// The mistake, in words.
pub fn switch(text: &str) -> Result<bool, String> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "yes" | "on" => Ok(true),
        "false" | "no" | "off" => Ok(false),
        _ => Err(format!("`{text}` is no switch: expected true or false")),
    }
}

/// Parses a value, or the word `off`.
///
/// # Errors
/// The mistake, in words.
pub fn off_or<T>(text: &str, read: impl FnOnce(&str) -> Result<T, String>) -> Result<Option<T>, String> {
    match text {
        "off" => Ok(None),
        _ => read(text).map(Some).map_err(|why| format!("{why}, or off")),
    }
}
