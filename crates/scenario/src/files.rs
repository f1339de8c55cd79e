//! The files beside a script: rows of data, and modules.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Where a script's other files are, and which of them it has read.
#[derive(Debug)]
pub(crate) struct Files {
    /// The script's folder, where relative paths begin.
    folder: PathBuf,
    /// The only files that may be read, by the path that the script has; `None`: all.
    sent: Option<BTreeMap<String, PathBuf>>,
    /// The paths that the script has of the files that it has read.
    read: Mutex<BTreeSet<String>>,
}

impl Files {
    /// The files beside `script`, or those that came with it.
    pub(crate) fn new(script: &Path, sent: Option<BTreeMap<String, PathBuf>>) -> Arc<Self> {
        let folder = script.parent().map(PathBuf::from).unwrap_or_default();
        Arc::new(Self { folder, sent, read: Mutex::default() })
    }

    /// Returns where the file of data with this path is.
    ///
    /// # Errors
    /// A message for the user: the script came from another machine, without this file.
    pub(crate) fn path(&self, name: &str) -> Result<PathBuf, String> {
        let path = match &self.sent {
            None => self.folder.join(name),
            Some(sent) => sent.get(name).cloned().ok_or_else(|| {
                format!(
                    "{name} did not come with the script: expected the files that its top level names, and no others"
                )
            })?,
        };
        self.note(name);
        Ok(path)
    }

    /// Reads the file of a module.
    ///
    /// # Errors
    /// It cannot be read, or the script came from another machine without it.
    pub(crate) fn module(&self, path: &Path) -> io::Result<Arc<[u8]>> {
        let name = path.strip_prefix(&self.folder).unwrap_or(path).to_string_lossy();
        let content = match &self.sent {
            None => std::fs::read(path)?,
            Some(sent) => std::fs::read(sent.get(&*name).ok_or(io::ErrorKind::NotFound)?)?,
        };
        self.note(&name);
        Ok(content.into())
    }

    /// Returns the files that were read: the path that the script has, and where each is.
    pub(crate) fn read(&self) -> Vec<(String, PathBuf)> {
        let read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        let place = |name: &String| match &self.sent {
            None => self.folder.join(name),
            Some(sent) => sent.get(name).cloned().unwrap_or_default(),
        };
        read.iter().map(|name| (name.clone(), place(name))).collect()
    }

    fn note(&self, name: &str) {
        self.read.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_that_was_sent_reads_only_what_came_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let here = |name: &str| folder.path().join(name);
        std::fs::write(here("rows.csv"), "a").unwrap();
        std::fs::write(here("m.lua"), "return 1").unwrap();
        let beside = Files::new(&here("s.lua"), None);
        assert_eq!(beside.path("rows.csv"), Ok(here("rows.csv")));
        assert_eq!(&*beside.module(&here("m.lua")).unwrap(), b"return 1");
        assert!(beside.module(&here("other.lua")).is_err());
        assert_eq!(beside.read(), [("m.lua".to_owned(), here("m.lua")), ("rows.csv".to_owned(), here("rows.csv"))]);

        let sent = [("../rows.csv", "rows.csv"), ("lib/m.lua", "m.lua")];
        let sent = sent.map(|(name, file)| (name.to_owned(), here(file)));
        let sent = Files::new(&here("0-s.lua"), Some(sent.into()));
        assert_eq!(sent.path("../rows.csv"), Ok(here("rows.csv")));
        assert_eq!(&*sent.module(&here("lib/m.lua")).unwrap(), b"return 1");
        // They are there, and did not come with the script.
        assert!(sent.path("rows.csv").unwrap_err().contains("did not come with the script"));
        assert!(sent.module(&here("m.lua")).is_err());
    }
}
