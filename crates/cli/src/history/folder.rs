//! The folder of a history: a JSON file for each entry.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use oroshi_history::Entry;
use oroshi_history::entry::EntryError;

use super::Error;
use crate::output::Output;
use crate::saved;

/// The largest file of an entry that is read, bytes.
const MOST_BYTES: u64 = 16 << 20;
/// The most files that are read.
const MOST_FILES: usize = 50_000;

/// A folder that exists.
#[derive(Debug)]
pub(super) struct Folder(PathBuf);

impl Folder {
    /// Opens an existing folder.
    pub(super) fn open(path: &Path) -> Result<Self, Error> {
        match fs::read_dir(path) {
            Ok(_) => Ok(Self(path.to_owned())),
            Err(source) => Err(Error::Read { path: path.to_owned(), source }),
        }
    }

    /// Opens a folder, and creates it if needed.
    pub(super) fn make(path: &Path) -> Result<Self, Error> {
        fs::create_dir_all(path).map_err(|source| Error::Write { path: path.to_owned(), source })?;
        Ok(Self(path.to_owned()))
    }

    /// Reads all entries. Files that do not end in `.json`, and hidden files, belong to others.
    pub(super) fn read(&self) -> Result<Vec<Entry>, Error> {
        let wrong = |source| Error::Read { path: self.0.clone(), source };
        let mut paths = Vec::new();
        for entry in fs::read_dir(&self.0).map_err(wrong)? {
            let path = entry.map_err(wrong)?.path();
            let is_hidden = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
            if !is_hidden && path.extension().is_some_and(|extension| extension == "json") {
                paths.push(path);
            }
        }
        if paths.len() > MOST_FILES {
            let what = format!("it has more than {MOST_FILES} entries");
            return Err(wrong(io::Error::new(io::ErrorKind::FileTooLarge, what)));
        }
        paths.sort();
        paths.iter().map(|path| read(path)).collect()
    }

    /// Writes an entry, unless it is there; returns its path if it is new.
    pub(super) fn add(&self, entry: &Entry) -> Result<Option<PathBuf>, Error> {
        let path = self.0.join(entry.file_name());
        if path.exists() {
            return Ok(None);
        }
        let text = serde_json::to_string_pretty(entry).map_err(crate::bench::Error::Json)? + "\n";
        self.write(&entry.file_name(), &text).map(Some)
    }

    /// Writes a file, which replaces an earlier one only when it is complete.
    pub(super) fn write(&self, name: &str, text: &str) -> Result<PathBuf, Error> {
        let path = self.0.join(name);
        let written = Output::open(&path).and_then(|file| file.write(text.as_bytes()));
        written.map_err(|source| Error::Write { path: path.clone(), source })?;
        Ok(path)
    }
}

fn read(path: &Path) -> Result<Entry, Error> {
    let wrong = |source| Error::Read { path: path.to_owned(), source };
    let bytes = saved::beginning(path, MOST_BYTES + 1).map_err(wrong)?;
    if bytes.len() as u64 > MOST_BYTES {
        let what = format!("it holds more than {} MiB, the most that an entry has", MOST_BYTES >> 20);
        return Err(wrong(io::Error::new(io::ErrorKind::FileTooLarge, what)));
    }
    let text = String::from_utf8(bytes).map_err(|error| EntryError::Malformed(error.to_string()));
    let entry = text.and_then(|text| Entry::parse(&text));
    entry.map_err(|source| Error::Entry { path: path.to_owned(), source })
}
