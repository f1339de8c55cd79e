//! Makes untrusted text safe for a terminal.

/// Replaces control characters by their escapes (`\u{1b}`) and tabs by spaces. Keeps line ends.
#[must_use]
pub fn printable(text: &str) -> String {
    let letter = |letter: char| match letter {
        '\t' => " ".to_owned(),
        '\n' => "\n".to_owned(),
        letter if letter.is_control() => letter.escape_default().to_string(),
        letter => letter.to_string(),
    };
    text.chars().map(letter).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_steer_a_terminal_is_shown() {
        assert_eq!(printable("\x1b[31mred\tone\x07\u{9b}é\r\ntwo"), "\\u{1b}[31mred one\\u{7}\\u{9b}é\\r\ntwo");
    }
}
