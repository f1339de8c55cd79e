//! A configuration's file: its text, and its mistakes as lines of a message.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use oroshi_words::Mistake;

/// Why a file is no valid configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read; the cause says why.
    #[error("cannot read `{}`", .file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file has mistakes: each line names a key, its value, and what was expected. Correct them.
    #[error("{}", lines(.file, .mistakes))]
    Mistakes {
        /// The file.
        file: PathBuf,
        /// The mistakes.
        mistakes: Vec<Mistake>,
    },
}

impl ConfigError {
    /// Creates the error for these mistakes.
    #[must_use]
    pub fn mistakes(file: &Path, mistakes: Vec<Mistake>) -> Self {
        ConfigError::Mistakes { file: file.to_owned(), mistakes }
    }
}

/// Reads the text of a configuration.
///
/// # Errors
/// The file cannot be read, or is not UTF-8.
pub fn text_of(file: &Path) -> Result<String, ConfigError> {
    fs::read_to_string(file).map_err(|source| ConfigError::File { file: file.to_owned(), source })
}

fn lines(file: &Path, mistakes: &[Mistake]) -> String {
    let lines: Vec<String> = mistakes.iter().map(|mistake| format!("{}: {mistake}", file.display())).collect();
    lines.join("\n")
}
