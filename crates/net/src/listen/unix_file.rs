//! The file of a unix socket: ownership, and removal of stale files.

use std::fs::{self, Permissions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Uid, chownat, fstat, open};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};

use super::ListenError;
use crate::address::UnixAddress;
use crate::{process, sys};

/// A socket's file made by this process, removed on drop.
#[derive(Debug)]
pub(super) struct UnixFile {
    path: PathBuf,
    /// The file itself, independent of its path.
    file: OwnedFd,
    identity: (u64, u64),
    /// The owning process: a forked child shares the memory but not the ownership.
    process: u32,
}

impl UnixFile {
    /// Takes ownership of the file that `bind` has just made. Keeps the absolute path, so a later change of the
    /// current directory has no effect.
    ///
    /// In a folder that others may write to, someone may have replaced the file already. A symbolic link must not
    /// redirect changes of mode and owner to another file. Therefore the file is opened without following links, and
    /// all changes go through the descriptor.
    pub(super) fn own(path: &Path) -> io::Result<Self> {
        let path = std::path::absolute(path)?;
        let file = open(&path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
        let stat = fstat(&file)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::Socket {
            let what = format!("somebody has put something else at {} meanwhile", path.display());
            return Err(io::Error::other(what));
        }
        Ok(UnixFile { path, file, identity: (stat.st_dev, stat.st_ino), process: std::process::id() })
    }

    pub(super) fn set_mode(&self, mode: u32) -> io::Result<()> {
        // fchmod(2) does not take an O_PATH descriptor, but `/proc` leads to its file.
        fs::set_permissions(format!("/proc/self/fd/{}", self.file.as_raw_fd()), Permissions::from_mode(mode))
    }

    pub(super) fn set_owner(&self, user: Option<u32>, group: Option<u32>) -> io::Result<()> {
        let (user, group) = (user.map(Uid::from_raw), group.map(Gid::from_raw));
        Ok(chownat(&self.file, "", user, group, AtFlags::EMPTY_PATH)?)
    }
}

impl Drop for UnixFile {
    fn drop(&mut self) {
        let ours = self.process == std::process::id();
        // Another server may have put its own socket there since.
        if ours && identity(&self.path).is_ok_and(|now| now == self.identity) {
            // If this fails, the next bind finds the file stale and replaces it.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Removes a socket's file without a listener; refuses anything else. An abstract name has no file and is free as
/// soon as its owner ends.
pub(super) fn remove_stale(address: &UnixAddress) -> Result<(), ListenError> {
    let text = format!("unix:{address}");
    let other = |source| ListenError::Other { address: text.clone(), source };
    let Some(path) = address.as_path() else { return refuse_if_in_use(address) };
    let before = fs::symlink_metadata(path).map_err(other)?;
    if before.file_type().is_symlink() {
        let what = format!("{} is a symbolic link, and a socket cannot be made through one", path.display());
        return Err(ListenError::NotASocket { address: text, what });
    }
    if !before.file_type().is_socket() {
        let what = address.explain().unwrap_or_else(|| format!("{} is not a socket", path.display()));
        return Err(ListenError::NotASocket { address: text, what });
    }
    refuse_if_in_use(address)?;
    // Only the file that was checked: another server may have replaced it since.
    if identity(path).is_ok_and(|now| now == (before.dev(), before.ino())) {
        fs::remove_file(path).map_err(other)?;
    }
    Ok(())
}

/// Returns an error with the listening process, if any.
fn refuse_if_in_use(address: &UnixAddress) -> Result<(), ListenError> {
    let text = format!("unix:{address}");
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let probe = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
    let probe = probe.map_err(|errno| ListenError::Other { address: text.clone(), source: errno.into() })?;
    match connect(&probe, address.kernel()) {
        // No listener, or gone since: the following bind decides.
        Err(Errno::CONNREFUSED | Errno::NOENT) => Ok(()),
        Ok(()) => Err(match sys::peer_pid(&probe) {
            Some(pid) if !process::exists(pid) => ListenError::LeftOver { address: text, pid },
            pid => ListenError::InUse { address: text, pid },
        }),
        // The backlog is full, the type differs, or permission is denied: it is in use.
        Err(_) => Err(ListenError::InUse { address: text, pid: None }),
    }
}

/// Returns device and inode, which together identify a file.
fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let metadata = fs::symlink_metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn nothing_is_changed_through_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let (path, precious) = (folder.path().join("socket"), folder.path().join("precious"));
        fs::write(&precious, "").unwrap();
        fs::set_permissions(&precious, Permissions::from_mode(0o600)).unwrap();
        let _listener = UnixListener::bind(&path).unwrap();
        let file = UnixFile::own(&path).unwrap();
        // Between the bind and the change of its mode.
        fs::rename(&path, folder.path().join("elsewhere")).unwrap();
        std::os::unix::fs::symlink(&precious, &path).unwrap();
        file.set_mode(0o755).unwrap();
        file.set_owner(None, Some(rustix::process::getgid().as_raw())).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&precious), 0o600);
        assert_eq!(mode(&folder.path().join("elsewhere")), 0o755);
        // A link that was there before `own`.
        assert!(UnixFile::own(&path).is_err());
        drop(file);
        assert!(path.symlink_metadata().is_ok(), "what is not ours stays");
    }
}
