//! A configuration's file: its text, and its mistakes as lines of a message.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use oroshi_words::Mistake;

/// Why a file is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// It cannot be read; the cause says why.
    #[error("cannot read `{}`", .file.display())]
    File {
        /// Which.
        file: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It does not make sense: each line names a key, its value, and what was expected. Correct them.
    #[error("{}", lines(.file, .mistakes))]
    Mistakes {
        /// Which.
        file: PathBuf,
        /// All that is wrong.
        mistakes: Vec<Mistake>,
    },
}

impl ConfigError {
    /// With these mistakes in it.
    #[must_use]
    pub fn mistakes(file: &Path, mistakes: Vec<Mistake>) -> Self {
        ConfigError::Mistakes { file: file.to_owned(), mistakes }
    }
}

/// The text of a configuration.
///
/// # Errors
/// When the file cannot be read, or is no UTF-8.
pub fn text_of(file: &Path) -> Result<String, ConfigError> {
    fs::read_to_string(file).map_err(|source| ConfigError::File { file: file.to_owned(), source })
}

fn lines(file: &Path, mistakes: &[Mistake]) -> String {
    let lines: Vec<String> = mistakes.iter().map(|mistake| format!("{}: {mistake}", file.display())).collect();
    lines.join("\n")
}
