//! Values that all configurations have: numbers, switches, and the word `off`.

use oroshi_words::units::parse_count;

/// A number without a sign that fits into the type.
///
/// # Errors
/// When it is none, in words.
pub fn number<T: TryFrom<u64>>(text: &str) -> Result<T, String> {
    T::try_from(parse_count(text)?).map_err(|_| format!("`{text}` is too large a number: expected a smaller one"))
}

/// true or false, also in the words of YAML 1.1.
///
/// # Errors
/// When it is neither, in words.
pub fn switch(text: &str) -> Result<bool, String> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "yes" | "on" => Ok(true),
        "false" | "no" | "off" => Ok(false),
        _ => Err(format!("`{text}` is no switch: expected true or false")),
    }
}

/// A value, or the word `off`.
///
/// # Errors
/// When it is neither, in words.
pub fn off_or<T>(text: &str, read: impl FnOnce(&str) -> Result<T, String>) -> Result<Option<T>, String> {
    match text {
        "off" => Ok(None),
        _ => read(text).map(Some).map_err(|why| format!("{why}, or off")),
    }
}
