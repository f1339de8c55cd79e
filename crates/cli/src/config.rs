//! Configurations of servers: a tree of keys (`document`) read from TOML (`toml`), what is made of its texts (`values`), and how a plan is
//! shown again (`written`). Every mistake is found at once, each with its line.

pub(crate) mod document;
pub(crate) mod toml;
pub(crate) mod values;
pub(crate) mod written;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use document::Mistake;

/// Why a file is no configuration.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    /// It cannot be read; the cause says why.
    #[error("cannot read `{}`", .file.display())]
    File {
        /// Which.
        file: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It does not make sense: each line names a key, its value, and what was expected. Correct them.
    #[error("{}", told(.file, .mistakes))]
    Mistakes {
        /// Which.
        file: PathBuf,
        /// All that is wrong.
        mistakes: Vec<Mistake>,
    },
}

impl ConfigError {
    /// With these mistakes in it.
    pub(crate) fn mistakes(file: &Path, mistakes: Vec<Mistake>) -> Self {
        ConfigError::Mistakes { file: file.to_owned(), mistakes }
    }
}

/// The text of a configuration.
pub(crate) fn text_of(file: &Path) -> Result<String, ConfigError> {
    fs::read_to_string(file).map_err(|source| ConfigError::File { file: file.to_owned(), source })
}

fn told(file: &Path, mistakes: &[Mistake]) -> String {
    let lines: Vec<String> = mistakes.iter().map(|mistake| format!("{}: {mistake}", file.display())).collect();
    lines.join("\n")
}
