//! The file of a unix socket: who owns it, and when it is a leftover.

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

/// A socket's file that this process made, removed on drop.
#[derive(Debug)]
pub(super) struct UnixFile {
    path: PathBuf,
    /// The file itself, whatever its path leads to by now.
    file: OwnedFd,
    identity: (u64, u64),
    /// A forked child shares the memory but not the ownership.
    process: u32,
}

impl UnixFile {
    /// Owns the file that `bind` has just made. The path is kept absolute, so that a later change of the current
    /// directory does not move it.
    ///
    /// In a folder that others may write to, somebody may have replaced it already. A link to some other file must not have
    /// that one's mode and owner changed: so it is opened for what it is, and all that follows goes by the descriptor.
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
        // fchmod(2) takes no descriptor of this kind, but `/proc` leads to what it stands for.
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
            // A failure leaves a file that the next bind finds stale and replaces.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Removes a socket's file on which nobody listens, and refuses anything else. An abstract name has no file: it is free again as soon as
/// nobody has it.
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
    // Only the file that was asked: another server may have replaced it in the meantime.
    if identity(path).is_ok_and(|now| now == (before.dev(), before.ino())) {
        fs::remove_file(path).map_err(other)?;
    }
    Ok(())
}

/// An error that says who listens there; none if nobody does.
fn refuse_if_in_use(address: &UnixAddress) -> Result<(), ListenError> {
    let text = format!("unix:{address}");
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let probe = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
    let probe = probe.map_err(|errno| ListenError::Other { address: text.clone(), source: errno.into() })?;
    match connect(&probe, address.kernel()) {
        // Nobody there, or gone in the meantime: the bind that follows decides.
        Err(Errno::CONNREFUSED | Errno::NOENT) => Ok(()),
        Ok(()) => Err(match sys::peer_pid(&probe) {
            Some(pid) if !process::exists(pid) => ListenError::LeftOver { address: text, pid },
            pid => ListenError::InUse { address: text, pid },
        }),
        // Its backlog is full, or it is of another type, or not ours to ask: it is in use.
        Err(_) => Err(ListenError::InUse { address: text, pid: None }),
    }
}

/// Device and inode, which together name a file whatever its path.
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
        // Before that.
        assert!(UnixFile::own(&path).is_err());
        drop(file);
        assert!(path.symlink_metadata().is_ok(), "what is not ours stays");
    }
}
