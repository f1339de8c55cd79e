//! A result file, which replaces an earlier one only when it is complete.
//!
//! The new file is written beside the old one, and renamed. A full disk, a mistake and Ctrl-C therefore leave the
//! old one unchanged. A pipe, a terminal or a device (`/dev/null`) is written directly.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::interrupt::Temporary;

/// Permissions of a new file, before the umask.
const MODE: u32 = 0o666;

/// A destination of a result that is known to be writable.
#[derive(Debug)]
pub(crate) struct Output(Way);

#[derive(Debug)]
enum Way {
    /// Written beside, then renamed.
    Beside { file: File, temporary: Temporary, target: PathBuf },
    /// Written directly.
    Straight(File),
}

impl Output {
    /// Checks that a file can be written at `path`. An earlier file stays until [`write`](Self::write).
    ///
    /// # Errors
    /// If it cannot be written.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        // Follows links, and replaces their target.
        let target = match path.canonicalize() {
            Ok(target) => target,
            // A link to nothing: creates its target.
            Err(_) if path.symlink_metadata().is_ok() => return Self::straight(path),
            Err(_) => path.to_owned(),
        };
        let mode = match target.metadata() {
            // A file that must not be written must not be replaced either.
            Ok(there) if there.is_file() => {
                OpenOptions::new().write(true).open(&target)?;
                Some(there.permissions().mode())
            }
            Ok(_) => return Self::straight(&target),
            Err(_) => None,
        };
        match beside(&target, mode) {
            Ok((file, temporary)) => Ok(Self(Way::Beside { file, temporary, target })),
            // The folder permits no new file, but the file itself is writable.
            Err(_) if mode.is_some() => Self::straight(&target),
            Err(error) => Err(error),
        }
    }

    fn straight(path: &Path) -> io::Result<Self> {
        Ok(Self(Way::Straight(OpenOptions::new().create(true).write(true).truncate(false).open(path)?)))
    }

    /// Writes the whole result, and only then replaces the earlier file.
    ///
    /// # Errors
    /// If it cannot be written, as on a full disk. An earlier regular file then stays.
    pub(crate) fn write(self, text: &[u8]) -> io::Result<()> {
        match self.0 {
            Way::Beside { mut file, temporary, target } => {
                file.write_all(text)?;
                // If the machine stops now, the file is either the old one or the new one.
                file.sync_all()?;
                fs::rename(temporary.path(), &target)?;
                temporary.keep();
                let folder = target.parent().filter(|folder| !folder.as_os_str().is_empty());
                if let Ok(folder) = File::open(folder.unwrap_or(Path::new("."))) {
                    let _ = folder.sync_all();
                }
                Ok(())
            }
            Way::Straight(mut file) => {
                // A pipe or a terminal cannot be truncated.
                let _ = file.set_len(0);
                file.write_all(text)
            }
        }
    }
}

/// A new file in the same folder, which is removed unless it is kept.
fn beside(target: &Path, mode: Option<u32>) -> io::Result<(File, Temporary)> {
    let name = target.file_name().ok_or_else(|| io::Error::other("it names no file"))?;
    let mut attempt = 0;
    loop {
        let mut part = std::ffi::OsString::from(".");
        part.push(name);
        part.push(format!(".{}-{attempt}.part", std::process::id()));
        let path = target.with_file_name(part);
        match OpenOptions::new().write(true).create_new(true).mode(mode.unwrap_or(MODE)).open(&path) {
            Ok(file) => {
                let temporary = Temporary::new(path);
                if let Some(mode) = mode {
                    file.set_permissions(fs::Permissions::from_mode(mode))?;
                }
                return Ok((file, temporary));
            }
            // A killed process has left this file behind.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && attempt < 100 => attempt += 1,
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn what_was_there_stays_until_the_new_one_is_complete() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keep.json");
        fs::write(&path, "a longer text than the next one").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let output = Output::open(&path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap().len(), 31);
        assert_eq!(names(folder.path()).len(), 2);
        output.write(b"short\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "short\n");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
        drop(Output::open(&path).unwrap());
        drop(Output::open(&folder.path().join("new.json")).unwrap());
        assert_eq!(names(folder.path()), ["keep.json"], "a run that fails leaves nothing");
    }

    #[test]
    fn links_lead_to_what_is_replaced_and_devices_are_written_to() {
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("real"), folder.path().join("link"));
        fs::write(&path, "old").unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        Output::open(&link).unwrap().write(b"new").unwrap();
        assert_eq!((fs::read_to_string(&path).unwrap(), link.is_symlink()), ("new".into(), true));
        fs::remove_file(&path).unwrap();
        Output::open(&link).unwrap().write(b"again").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "again");
        Output::open(Path::new("/dev/null")).unwrap().write(b"x").unwrap();
        assert!(Output::open(Path::new("/dev/full")).unwrap().write(b"x").is_err());
        assert!(Output::open(Path::new("/nonexistent/report")).is_err());
        assert!(Output::open(folder.path()).is_err(), "a folder");
    }
}
