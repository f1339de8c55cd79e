//! Questions to git.

use std::path::Path;
use std::process::{Command, Stdio};

/// Runs git in a folder, and returns what it prints, without the end of the line.
///
/// # Errors
/// git cannot be started or fails, in words.
pub(crate) fn git(folder: &Path, arguments: &[&str]) -> Result<String, String> {
    let mut command = Command::new("git");
    command.args(arguments).current_dir(folder).stdin(Stdio::null());
    // Git would rather obey these than look where it stands: hooks set them.
    for name in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"] {
        command.env_remove(name);
    }
    let output = command.output().map_err(|error| format!("cannot start git: {error}; is it installed?"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim_end_matches('\n').to_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(match said.trim() {
        "" => format!("git {} ended with {}", arguments[0], output.status),
        said => said.to_owned(),
    })
}
