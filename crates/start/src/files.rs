//! Files about the superdaemon for other programs: its process number, and its generations.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::OFlags;
use rustix::io::Errno;

/// The file with the superdaemon's process number, locked (flock(2)) while it runs, as in `start_server`; removed on
/// drop.
#[derive(Debug)]
pub(crate) struct PidFile {
    path: PathBuf,
    file: File,
}

/// The reason why a file is unusable.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// Another superdaemon uses this file: stop it first, or use another file.
    #[error("{} is in use: {} holds its lock", .path.display(), holder(*.pid))]
    InUse {
        /// The file.
        path: PathBuf,
        /// The process number in it.
        pid: Option<u32>,
    },
    /// The folder does not exist, or this user may not write to it.
    #[error("cannot write {}", .path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file does not exist or is unreadable: check that the superdaemon is running, and that this is its file.
    #[error("cannot read {}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file does not contain a process number: name the right one.
    #[error("{} holds no process number but `{text}`", .path.display())]
    NoPid {
        /// The file.
        path: PathBuf,
        /// Its contents.
        text: String,
    },
    /// The superdaemon that wrote the file has ended: start it.
    #[error("nothing holds the lock on {}: process {pid}, which wrote it, has ended", .path.display())]
    Ended {
        /// The file.
        path: PathBuf,
        /// The process number in it.
        pid: u32,
    },
}

fn holder(pid: Option<u32>) -> String {
    pid.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"))
}

impl PidFile {
    /// Makes the file, or takes over an unlocked one.
    pub(crate) fn claim(path: &Path) -> Result<Self, FileError> {
        let failed = |source| FileError::Write { path: path.to_owned(), source };
        // An absolute path still works at the end.
        let absolute = std::path::absolute(path).map_err(failed)?;
        let mut patience = 5;
        loop {
            // Without following links: in a folder that others may write to, a link could lead to any file of this
            // user.
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(false);
            let mut file = options.custom_flags(OFlags::NOFOLLOW.bits() as i32).open(&absolute).map_err(failed)?;
            match file.try_lock() {
                Ok(()) => {}
                // `--status` and similar commands hold the lock briefly to test it.
                Err(TryLockError::WouldBlock) if patience > 0 => {
                    patience -= 1;
                    std::thread::sleep(Duration::from_millis(20));
                    continue;
                }
                Err(TryLockError::WouldBlock) => {
                    return Err(FileError::InUse { path: path.to_owned(), pid: pid_in(&mut file) });
                }
                Err(TryLockError::Error(source)) => return Err(failed(source)),
            }
            // The previous owner may have removed the file meanwhile: then the lock is on a deleted file.
            if is_at(&file, &absolute) {
                let write = |file: &mut File| {
                    file.set_len(0)?;
                    file.rewind()?;
                    writeln!(file, "{}", std::process::id())?;
                    file.flush()
                };
                write(&mut file).map_err(failed)?;
                return Ok(Self { path: absolute, file });
            }
        }
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        if is_at(&self.file, &self.path) {
            // If this fails, the next superdaemon finds the file unlocked.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// A running superdaemon, found by its file.
#[derive(Debug)]
pub struct Running {
    /// Its process.
    pub pid: u32,
    path: PathBuf,
    file: File,
}

impl Running {
    /// Reads the file, whose lock must be held: without the lock, the number may now belong to another process.
    ///
    /// # Errors
    /// When the file is unreadable, is something else, or is not locked.
    pub fn find(path: &Path) -> Result<Self, FileError> {
        let failed = |source| FileError::Read { path: path.to_owned(), source };
        let mut file = File::open(path).map_err(failed)?;
        let mut text = String::new();
        (&mut file).take(64).read_to_string(&mut text).map_err(failed)?;
        let pid = text.trim().parse().ok().filter(|&pid: &u32| pid > 0);
        let pid = pid.ok_or_else(|| FileError::NoPid { path: path.to_owned(), text: text.trim().to_owned() })?;
        match file.try_lock_shared() {
            Err(TryLockError::WouldBlock) => Ok(Self { pid, path: path.to_owned(), file }),
            Err(TryLockError::Error(source)) => Err(failed(source)),
            Ok(()) => Err(FileError::Ended { path: path.to_owned(), pid }),
        }
    }

    /// The file that identifies it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Waits until the superdaemon has ended, which releases the file's lock.
    ///
    /// # Errors
    /// When the wait fails.
    pub fn wait(&self) -> Result<(), FileError> {
        self.file.lock_shared().map_err(|source| FileError::Read { path: self.path.clone(), source })
    }
}

fn pid_in(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.take(64).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

fn is_at(file: &File, path: &Path) -> bool {
    let identity = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
    let same = |open: fs::Metadata| path.metadata().is_ok_and(|there| identity(there) == identity(open));
    file.metadata().is_ok_and(same)
}

/// The file with a line `generation:process` for each generation, written atomically; removed on drop.
#[derive(Debug)]
pub(crate) struct StatusFile {
    path: PathBuf,
    /// The last written file.
    written: Option<File>,
}

impl StatusFile {
    pub(crate) fn new(path: &Path) -> Result<Self, FileError> {
        let failed = |source| FileError::Write { path: path.to_owned(), source };
        let path = std::path::absolute(path).map_err(failed)?;
        // Reports now if a later write would fail.
        let folder = path.parent().unwrap_or(Path::new("/"));
        if !folder.metadata().map_err(failed)?.is_dir() {
            return Err(failed(Errno::NOTDIR.into()));
        }
        // Writing replaces it, so it must be an ordinary file.
        if path.symlink_metadata().is_ok_and(|there| !there.is_file()) {
            return Err(failed(io::Error::other("something else than a file is there")));
        }
        Ok(Self { path, written: None })
    }

    pub(crate) fn write(&mut self, generations: &[(u64, u32)]) -> Result<(), FileError> {
        let mut temporary = self.path.clone().into_os_string();
        temporary.push(format!(".{}", std::process::id()));
        let lines: String = generations.iter().map(|(number, pid)| format!("{number}:{pid}\n")).collect();
        let write = || {
            // A crashed superdaemon may have left it, or someone may have put a link there.
            match fs::remove_file(&temporary) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let mut file = OpenOptions::new().write(true).create_new(true).open(&temporary)?;
            file.write_all(lines.as_bytes())?;
            fs::rename(&temporary, &self.path)?;
            Ok(file)
        };
        let written = write().map_err(|source| FileError::Write { path: self.path.clone(), source });
        self.written = Some(written?);
        Ok(())
    }
}

impl Drop for StatusFile {
    fn drop(&mut self) {
        // Another superdaemon may use the same name.
        if self.written.as_ref().is_some_and(|file| is_at(file, &self.path)) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Returns the generations in a status file, in order.
///
/// # Errors
/// When it is unreadable.
pub fn listed_generations(path: &Path) -> Result<Vec<u64>, FileError> {
    let text = fs::read_to_string(path).map_err(|source| FileError::Read { path: path.to_owned(), source })?;
    let mut numbers: Vec<u64> = text.lines().filter_map(|line| line.split_once(':')?.0.parse().ok()).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pid_file_is_held_by_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pid");
        assert!(matches!(Running::find(&path), Err(FileError::Read { .. })));
        fs::write(&path, "999999999 left by somebody with a long name\n").unwrap();
        assert!(matches!(Running::find(&path), Err(FileError::NoPid { .. })));
        fs::write(&path, "99999\n").unwrap();
        assert!(matches!(Running::find(&path), Err(FileError::Ended { pid: 99999, .. })));

        let held = PidFile::claim(&path).unwrap();
        let own = std::process::id();
        assert_eq!(fs::read_to_string(&path).unwrap(), format!("{own}\n"));
        let error = PidFile::claim(&path).unwrap_err();
        assert!(error.to_string().contains(&own.to_string()), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), format!("{own}\n"), "a second one leaves it alone");
        let running = Running::find(&path).unwrap();
        assert_eq!(running.pid, own);

        let waiting = std::thread::spawn(move || running.wait());
        drop(held);
        waiting.join().unwrap().unwrap();
        assert!(!path.exists());
        drop(PidFile::claim(&path).unwrap());
    }

    #[test]
    fn another_ones_pid_file_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pid");
        let first = PidFile::claim(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let _second = PidFile::claim(&path).unwrap();
        drop(first);
        assert!(path.exists());
    }

    #[test]
    fn nothing_is_written_through_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("precious"), "1").unwrap();
        std::os::unix::fs::symlink(at("precious"), at("pid")).unwrap();
        assert!(matches!(PidFile::claim(&at("pid")), Err(FileError::Write { .. })));
        let temporary = at(&format!("status.{}", std::process::id()));
        std::os::unix::fs::symlink(at("precious"), &temporary).unwrap();
        StatusFile::new(&at("status")).unwrap().write(&[(1, 2)]).unwrap();
        assert_eq!(fs::read_to_string(at("precious")).unwrap(), "1");
    }

    #[test]
    fn another_ones_status_file_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("status");
        let (mut first, mut second) = (StatusFile::new(&path).unwrap(), StatusFile::new(&path).unwrap());
        first.write(&[(1, 100)]).unwrap();
        second.write(&[(1, 200)]).unwrap();
        drop(first);
        assert_eq!(fs::read_to_string(&path).unwrap(), "1:200\n");
    }

    #[test]
    fn a_status_file_lists_generations() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("status");
        let mut file = StatusFile::new(&path).unwrap();
        assert!(!path.exists());
        file.write(&[(9, 100), (10, 101)]).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "9:100\n10:101\n");
        assert_eq!(listed_generations(&path).unwrap(), [9, 10]);
        file.write(&[]).unwrap();
        assert!(listed_generations(&path).unwrap().is_empty());
        drop(file);
        assert_eq!(folder.path().read_dir().unwrap().count(), 0);
        assert!(StatusFile::new(&folder.path().join("no/status")).is_err());
    }
}
