//! What a script says about a set.

use std::fmt;

use oroshi_words::printable;

/// A set as the script declares it. Displays as the script's call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Declaration {
    /// The path of the file as the script has it, or what messages call the list.
    pub(crate) name: String,
    /// What has the rows.
    pub(crate) origin: Origin,
    /// Whether [`next`](super::Set::next) begins again after the last row.
    pub(crate) wrap: bool,
    /// Whether each load machine has its own part of the rows.
    pub(crate) split: bool,
}

/// What has the rows of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A CSV file.
    Csv {
        /// What separates fields. See [`parse_separator`].
        separator: u8,
        /// Whether the first row has the names of the columns. Without it they are numbered from 1.
        header: bool,
    },
    /// A file of JSON lines.
    JsonLines,
    /// A list of the script.
    List {
        /// The number of its rows.
        rows: usize,
    },
}

impl Declaration {
    /// A CSV file with commas and a header.
    pub(crate) fn csv(path: impl Into<String>) -> Self {
        Self { name: path.into(), origin: Origin::Csv { separator: b',', header: true }, wrap: false, split: false }
    }

    /// A file of JSON lines.
    pub(crate) fn json_lines(path: impl Into<String>) -> Self {
        Self { name: path.into(), origin: Origin::JsonLines, wrap: false, split: false }
    }

    /// A list of the script with this many rows.
    pub(crate) fn list(rows: usize) -> Self {
        Self { name: "the list".to_owned(), origin: Origin::List { rows }, wrap: false, split: false }
    }
}

impl fmt::Display for Declaration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = printable(&self.name);
        let mut options = Vec::new();
        match self.origin {
            Origin::Csv { separator, header } => {
                write!(f, "data.csv(\"{name}\"")?;
                if separator != b',' {
                    options.push(format!("separator = \"{}\"", separator.escape_ascii()));
                }
                if !header {
                    options.push("header = false".to_owned());
                }
            }
            Origin::JsonLines => write!(f, "data.jsonl(\"{name}\"")?,
            Origin::List { rows } => write!(f, "data.list(a table of {rows}")?,
        }
        if self.wrap {
            options.push("wrap = true".to_owned());
        }
        if self.split {
            options.push("split = true".to_owned());
        }
        if !options.is_empty() {
            write!(f, ", {{ {} }}", options.join(", "))?;
        }
        f.write_str(")")
    }
}

/// Parses the separator of a CSV file: one ASCII character, no letter, digit, quote or newline.
///
/// # Errors
/// A message for the user.
pub(crate) fn parse_separator(text: &[u8]) -> Result<u8, String> {
    match text {
        [byte] if byte.is_ascii() && !byte.is_ascii_alphanumeric() && !b"\"\r\n".contains(byte) => Ok(*byte),
        _ => {
            let shown = &text[..text.len().min(20)];
            Err(format!("`{}` cannot separate fields: expected one character such as ; | or \\t", shown.escape_ascii()))
        }
    }
}
