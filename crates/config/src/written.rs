//! Writes configurations in TOML, for `--check`.

use std::fmt::Write as _;
use std::time::Duration;

/// A TOML text being written.
#[derive(Clone, Debug, Default)]
pub struct Toml(pub String);

impl Toml {
    /// Writes a line as it is.
    pub fn line(&mut self, line: &str) {
        self.0.push_str(line);
        self.0.push('\n');
    }

    /// Begins a table.
    pub fn table(&mut self, name: &str) {
        self.line(&format!("\n[{name}]"));
    }

    /// Writes a comment.
    pub fn comment(&mut self, text: &str) {
        self.line(&format!("# {text}"));
    }

    /// Writes a key with a number or a switch.
    pub fn bare(&mut self, key: &str, value: impl ToString) {
        self.line(&format!("{} = {}", Self::key(key), value.to_string()));
    }

    /// Writes a key with a text.
    pub fn text(&mut self, key: &str, value: &str) {
        self.bare(key, Self::quoted(value));
    }

    /// Writes a key with a list of texts.
    pub fn texts<'t>(&mut self, key: &str, values: impl Iterator<Item = &'t str>) {
        let values: Vec<String> = values.map(Self::quoted).collect();
        self.bare(key, format!("[{}]", values.join(", ")));
    }

    /// Writes a key with a time, exactly, in the largest unit that divides it.
    pub fn time(&mut self, key: &str, time: Duration) {
        const UNITS: [(u128, &str); 3] = [(1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us")];
        let ns = time.as_nanos();
        let (size, unit) = UNITS.into_iter().find(|(size, _)| ns.is_multiple_of(*size)).unwrap_or((1, "ns"));
        self.text(key, &format!("{}{unit}", ns / size));
    }

    /// Writes a key with a number; without one, `off`.
    pub fn or_off(&mut self, key: &str, value: Option<impl ToString>) {
        match value {
            Some(value) => self.bare(key, value),
            None => self.text(key, "off"),
        }
    }

    /// Writes a key with a time; for [`Duration::MAX`], `off`.
    pub fn time_or_off(&mut self, key: &str, time: Duration) {
        match time {
            Duration::MAX => self.text(key, "off"),
            time => self.time(key, time),
        }
    }

    /// Returns a key, quoted if necessary.
    pub fn key(text: &str) -> String {
        let is_bare = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if !text.is_empty() && text.chars().all(is_bare) { text.to_owned() } else { Self::quoted(text) }
    }

    /// Returns a text in quotes.
    pub fn quoted(text: &str) -> String {
        let mut quoted = String::from('"');
        for character in text.chars() {
            match character {
                '"' | '\\' => {
                    quoted.push('\\');
                    quoted.push(character);
                }
                control if control.is_control() => {
                    // Writing to a text never fails.
                    let _ = write!(quoted, "\\u{:04X}", control as u32);
                }
                plain => quoted.push(plain),
            }
        }
        quoted.push('"');
        quoted
    }
}
