//! Scripts to begin with: from what a browser recorded (HAR 1.2), and from curl's command lines.
//!
//! Both become a list of `Call`s, and `script` writes it as Lua.
//!
//! 1. [`from_har`] (`har`, `flow`): entries by page, with pauses; redirects are folded, assets left to `user:assets`.
//! 2. [`from_curl`] (`shell`, `curl`): commands as a shell would read them.
//! 3. `call`: a request with its body by kind. `correlate`: values that came back in a later request. `secrets`:
//!    values that a script must not contain.
//! 4. `script`, on `lua`: the text of the script.
//!
//! Knows no files: `cli` reads and writes them. The output depends on the input alone.

mod call;
mod correlate;
mod curl;
mod flow;
mod har;
mod lua;
mod script;
mod secrets;
mod shell;
#[cfg(test)]
mod tests;

use std::io;

pub use curl::{Commands, Files};

/// The largest recording, bytes.
pub const FILE_BYTES: usize = 256 << 20;
/// The most entries of a recording.
pub const MOST_ENTRIES: usize = 100_000;
/// The most requests in a script. LuaJIT limits the constants of a function to 65,536.
pub const MOST_REQUESTS: usize = 2_000;
/// The most headers of a request, and the most cookies of a command.
pub const MOST_HEADERS: usize = 200;
/// The largest body in a script, bytes. A filler of the same size replaces a larger one.
pub const BODY_BYTES: usize = 64 << 10;
/// The most bytes of bodies in a script. Fillers replace what exceeds it.
pub const BODIES_BYTES: usize = 4 << 20;

/// How to write a script.
#[derive(Clone, Debug)]
pub struct Options {
    /// The name of the recording, for the comment at the top.
    pub source: String,
    /// Hosts whose requests are kept beside those of the first page, as `host` (any port) or `host:port`.
    pub hosts: Vec<String>,
    /// Whether passwords and tokens stay in the script.
    pub keep_secrets: bool,
    /// What becomes of images, styles, scripts and fonts.
    pub assets: Assets,
}

impl Default for Options {
    fn default() -> Self {
        Self { source: "a recording".into(), hosts: Vec::new(), keep_secrets: false, assets: Assets::Page }
    }
}

/// What becomes of static assets in a recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Assets {
    /// `user:assets(page)` fetches what the page links to.
    #[default]
    Page,
    /// Each is a request of its own.
    List,
    /// They are left out.
    None,
}

/// Why there is no script.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// Record less, or cut the recording.
    #[error("the {what} has {got}: expected at most {most}")]
    TooLarge {
        /// What has a limit.
        what: &'static str,
        /// Its size, with a unit.
        got: String,
        /// The limit, with a unit.
        most: String,
    },
    /// Name a HAR file: the browser's network panel saves one.
    #[error("line {line}, column {column}: {what}; expected a HAR 1.2 recording, as browsers save it")]
    Json {
        /// From 1.
        line: usize,
        /// From 1.
        column: usize,
        /// What the parser says.
        what: String,
    },
    /// Correct or remove the entry.
    #[error("entry {entry}: {what}")]
    Entry {
        /// From 1, as they stand in the file.
        entry: usize,
        /// What is wrong, and what was expected.
        what: String,
    },
    /// Record more, or name another host.
    #[error("{0}")]
    Nothing(String),
    /// Correct the command.
    #[error("{}{what}", line.map(|line| format!("line {line}: ")).unwrap_or_default())]
    Command {
        /// From 1; `None` if the command came as words.
        line: Option<usize>,
        /// What is wrong, and what to do.
        what: String,
    },
}

/// Writes a script from a HAR 1.2 recording.
///
/// # Errors
/// The recording is too large, is no HAR, or has no request to keep.
pub fn from_har(text: &str, options: &Options) -> Result<String, ImportError> {
    script::write(&flow::plan(&har::read(text)?, options)?, options)
}

/// Writes a script from curl's command lines. Reads files that they name (`-d @file`) by `files`.
///
/// # Errors
/// A command is not understood; a file cannot be read.
pub fn from_curl(commands: Commands<'_>, options: &Options, files: Files<'_>) -> Result<String, ImportError> {
    script::write(&curl::plan(commands, options, files)?, options)
}

/// A reader of files that refuses all.
///
/// # Errors
/// Always.
pub fn no_files(_: &str) -> io::Result<Vec<u8>> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "files are not read here"))
}
