//! Colour, where it helps and is welcome: on a terminal, unless NO_COLOR is set (<https://no-color.org>).

use std::io::IsTerminal;

/// Colours texts, or leaves them as they are.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Paint(bool);

impl Paint {
    /// No colour.
    pub(crate) const PLAIN: Self = Self(false);
    /// Colour, wherever it goes.
    #[cfg(test)]
    pub(crate) const COLOURED: Self = Self(true);

    /// Colour if this output is a terminal that shows it.
    pub(crate) fn on(output: &impl IsTerminal) -> Self {
        let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        Self(output.is_terminal() && !unwanted && !dumb)
    }

    /// What the eye should find first.
    pub(crate) fn bold(self, text: &str) -> String {
        self.with("1", text)
    }

    /// What is beside the point.
    pub(crate) fn dim(self, text: &str) -> String {
        self.with("2", text)
    }

    /// What is wrong.
    pub(crate) fn red(self, text: &str) -> String {
        self.with("1;31", text)
    }

    /// What may be wrong.
    pub(crate) fn yellow(self, text: &str) -> String {
        self.with("33", text)
    }

    /// What is right.
    pub(crate) fn green(self, text: &str) -> String {
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
