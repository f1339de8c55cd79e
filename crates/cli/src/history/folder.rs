//! The folder of a history: a JSON file for each entry.

use std::fs::{self, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use oroshi_history::Entry;
use oroshi_history::entry::EntryError;
use rustix::fs::OFlags;

use super::Error;
use crate::output::Output;

/// The largest file of an entry that is read, bytes.
const MOST_BYTES: u64 = 16 << 20;
/// The most files that are read and written.
pub(super) const MOST_FILES: usize = 50_000;
/// The most bytes that all of them have.
const MOST_BYTES_OF_ALL: u64 = 512 << 20;

/// An entry, and the file that it came from.
#[derive(Debug)]
pub(super) struct Held {
    /// The file.
    pub path: PathBuf,
    /// The entry.
    pub entry: Entry,
}

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
    pub(super) fn read(&self) -> Result<Vec<Held>, Error> {
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
        let mut left = MOST_BYTES_OF_ALL;
        let mut held = Vec::with_capacity(paths.len());
        for path in paths {
            let text = text(&path)?;
            left = left.checked_sub(text.len() as u64).ok_or_else(|| {
                let what = format!("its entries hold more than {} MiB", MOST_BYTES_OF_ALL >> 20);
                wrong(io::Error::new(io::ErrorKind::FileTooLarge, what))
            })?;
            let entry = Entry::parse(&text).map_err(|source| Error::Entry { path: path.clone(), source })?;
            held.push(Held { path, entry });
        }
        Ok(held)
    }

    /// Writes an entry that the history does not have, and returns its path.
    pub(super) fn add(&self, entry: &Entry) -> Result<PathBuf, Error> {
        let path = self.0.join(entry.file_name());
        if path.exists() {
            let what = "another file has its name: remove that file if it is no entry";
            return Err(Error::Write { path, source: io::Error::new(io::ErrorKind::AlreadyExists, what) });
        }
        let text = serde_json::to_string_pretty(entry).map_err(crate::bench::Error::Json)? + "\n";
        self.write(&entry.file_name(), &text)
    }

    /// Writes a file, which replaces an earlier one only when it is complete.
    pub(super) fn write(&self, name: &str, text: &str) -> Result<PathBuf, Error> {
        let path = self.0.join(name);
        let written = Output::open(&path).and_then(|file| file.write(text.as_bytes()));
        written.map_err(|source| Error::Write { path: path.clone(), source })?;
        Ok(path)
    }
}

fn text(path: &Path) -> Result<String, Error> {
    let wrong = |source| Error::Read { path: path.to_owned(), source };
    let bytes = beginning(path).map_err(wrong)?;
    if bytes.len() as u64 > MOST_BYTES {
        let what = format!("it holds more than {} MiB, the most that an entry has", MOST_BYTES >> 20);
        return Err(wrong(io::Error::new(io::ErrorKind::FileTooLarge, what)));
    }
    String::from_utf8(bytes).map_err(|error| {
        let source = EntryError::Malformed(error.to_string());
        Error::Entry { path: path.to_owned(), source }
    })
}

/// Reads one byte more than an entry may have. A pipe in the folder must not hold up a check, so opening does not wait.
fn beginning(path: &Path) -> io::Result<Vec<u8>> {
    let file = OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file: expected an entry"));
    }
    let mut bytes = Vec::new();
    file.take(MOST_BYTES + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}
