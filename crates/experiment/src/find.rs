//! Finds experiments: in files, in the folder `experiments`, and among the built-in ones.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use oroshi_words::nearest;

/// The project's own experiments, without those that need its folder of examples.
const BUILT_IN: [(&str, &str); 19] = [
    ("concurrency", include_str!("../../../experiments/concurrency.toml")),
    ("gate-bodies", include_str!("../../../experiments/gate-bodies.toml")),
    ("gate-http2", include_str!("../../../experiments/gate-http2.toml")),
    ("gate-static", include_str!("../../../experiments/gate-static.toml")),
    ("gate-tls", include_str!("../../../experiments/gate-tls.toml")),
    ("generators", include_str!("../../../experiments/generators.toml")),
    ("http-clients", include_str!("../../../experiments/http-clients.toml")),
    ("http1-or-http2", include_str!("../../../experiments/http1-or-http2.toml")),
    ("keepalive", include_str!("../../../experiments/keepalive.toml")),
    ("push-fanout", include_str!("../../../experiments/push-fanout.toml")),
    ("push-history", include_str!("../../../experiments/push-history.toml")),
    ("push-rates", include_str!("../../../experiments/push-rates.toml")),
    ("push-send", include_str!("../../../experiments/push-send.toml")),
    ("rack-behind-nginx", include_str!("../../../experiments/rack-behind-nginx.toml")),
    ("rack-requests", include_str!("../../../experiments/rack-requests.toml")),
    ("rack-servers", include_str!("../../../experiments/rack-servers.toml")),
    ("route-reuse", include_str!("../../../experiments/route-reuse.toml")),
    ("two-machines", include_str!("../../../experiments/two-machines.toml")),
    ("unix-or-tcp", include_str!("../../../experiments/unix-or-tcp.toml")),
];
/// The folder in which names are looked up.
const FOLDER: &str = "experiments";

/// An experiment that was found.
#[derive(Clone, Debug)]
pub struct Found {
    /// The short name.
    pub name: String,
    /// The file; `None`: it is built in.
    pub path: Option<PathBuf>,
    /// The text.
    pub text: String,
}

/// Why no experiment was found.
#[derive(Debug, thiserror::Error)]
pub enum FindError {
    /// Correct the name, or write the file.
    #[error("no experiment is called `{name}`: {hint}")]
    Unknown {
        /// The requested name.
        name: String,
        /// The existing names.
        hint: String,
    },
    /// Correct the path.
    #[error("{} cannot be read", path.display())]
    File {
        /// The file or the folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

impl Found {
    /// Returns the file's name for messages.
    #[must_use]
    pub fn shown(&self) -> String {
        self.path.as_ref().map_or_else(|| format!("{} (built in)", self.name), |path| path.display().to_string())
    }

    /// Returns the argument that finds it again.
    #[must_use]
    pub fn asked(&self) -> String {
        self.path.as_ref().map_or_else(|| self.name.clone(), |path| path.display().to_string())
    }

    /// Returns the base folder of relative paths.
    #[must_use]
    pub fn folder(&self) -> Option<PathBuf> {
        let folder = self.path.as_ref()?.parent()?;
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        // Absolute, because a server has another working folder.
        Some(folder.canonicalize().unwrap_or_else(|_| folder.to_owned()))
    }

    fn at(path: PathBuf) -> Result<Self, FindError> {
        match fs::read_to_string(&path) {
            Ok(text) => Ok(Self { name: stem(&path), path: Some(path), text }),
            Err(source) => Err(FindError::File { path, source }),
        }
    }
}

/// Finds an experiment by its file or name.
///
/// # Errors
/// There is no such experiment, or its file cannot be read.
pub fn find(asked: &str) -> Result<Found, FindError> {
    if asked.contains('/') || Path::new(asked).extension().is_some_and(|ending| ending == "toml") {
        return Found::at(asked.into());
    }
    let by_name = Path::new(FOLDER).join(format!("{asked}.toml"));
    if by_name.is_file() {
        return Found::at(by_name);
    }
    if let Some((name, text)) = BUILT_IN.iter().find(|built_in| built_in.0 == asked) {
        return Ok(Found { name: (*name).to_owned(), path: None, text: (*text).to_owned() });
    }
    let known = all(None)?;
    let hint = match nearest(asked, known.iter().map(|found| found.name.as_str())) {
        Some(near) => format!("did you mean {near}?"),
        None => format!("`oroshi lab list` shows those there are; a file is named with its ending, as in {asked}.toml"),
    };
    Err(FindError::Unknown { name: asked.to_owned(), hint })
}

/// Returns the experiments of a folder, by name. Without a folder: those of ./experiments, if it exists, and the
/// built-in ones.
///
/// # Errors
/// The folder, or a file in it, cannot be read.
pub fn all(folder: Option<&Path>) -> Result<Vec<Found>, FindError> {
    let mut found = match folder {
        Some(folder) => within(folder)?,
        None if Path::new(FOLDER).is_dir() => within(Path::new(FOLDER))?,
        None => Vec::new(),
    };
    if folder.is_none() {
        for (name, text) in BUILT_IN {
            if !found.iter().any(|other| other.name == name) {
                found.push(Found { name: name.to_owned(), path: None, text: text.to_owned() });
            }
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

fn within(folder: &Path) -> Result<Vec<Found>, FindError> {
    let failed = |source| FindError::File { path: folder.to_owned(), source };
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.is_file() && path.extension().is_some_and(|ending| ending == "toml") {
            found.push(Found::at(path)?);
        }
    }
    Ok(found)
}

fn stem(path: &Path) -> String {
    path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_of_the_project_that_stands_alone_is_built_in() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments");
        let files = all(Some(&folder)).unwrap();
        let alone = files.iter().filter(|found| !found.text.contains("\"../examples/"));
        let files: Vec<(&str, &str)> = alone.map(|found| (found.name.as_str(), found.text.as_str())).collect();
        assert_eq!(files, BUILT_IN);
    }

    #[test]
    fn names_are_found_and_slips_are_named() {
        assert_eq!(find("keepalive").unwrap().name, "keepalive");
        assert!(find("keepalvie").unwrap_err().to_string().contains("did you mean keepalive?"));
        assert!(find("xyzzy").unwrap_err().to_string().contains("xyzzy.toml"));
        assert!(find("missing/x.toml").unwrap_err().to_string().contains("missing/x.toml"));
    }
}
