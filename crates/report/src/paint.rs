//! Colour for texts on terminals.

/// Colours texts, or leaves them as they are.
#[derive(Clone, Copy, Debug, Default)]
pub struct Paint(bool);

impl Paint {
    /// No colour.
    pub const PLAIN: Self = Self(false);
    /// Colour, wherever it goes.
    pub const COLOURED: Self = Self(true);

    /// Formats text that the eye should find first.
    #[must_use]
    pub fn bold(self, text: &str) -> String {
        self.with("1", text)
    }

    /// Formats text of minor importance.
    #[must_use]
    pub fn dim(self, text: &str) -> String {
        self.with("2", text)
    }

    /// Formats an error.
    #[must_use]
    pub fn red(self, text: &str) -> String {
        self.with("1;31", text)
    }

    /// Formats a warning.
    #[must_use]
    pub fn yellow(self, text: &str) -> String {
        self.with("33", text)
    }

    /// Formats a success.
    #[must_use]
    pub fn green(self, text: &str) -> String {
        self.with("32", text)
    }

    fn with(self, code: &str, text: &str) -> String {
        if self.0 { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colour_is_around_the_text_or_not_at_all() {
        assert_eq!(Paint(true).red("no"), "\x1b[1;31mno\x1b[0m");
        assert_eq!(Paint::PLAIN.red("no"), "no");
    }
}
