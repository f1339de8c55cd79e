//! The file of a unix socket: who owns it, and when it is a leftover.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};

use super::ListenError;
use crate::address::UnixAddress;
use crate::{process, sys};

/// A socket's file that this process made, removed on drop.
#[derive(Debug)]
pub(super) struct UnixFile {
    path: PathBuf,
    identity: (u64, u64),
    /// A forked child shares the memory but not the ownership.
    process: u32,
}

impl UnixFile {
    /// Owns the file that `bind` has just made. The path is kept absolute, so that a later change of the current
    /// directory does not move it.
    pub(super) fn own(path: &Path) -> io::Result<Self> {
        let path = std::path::absolute(path)?;
        let identity = identity(&path)?;
        Ok(UnixFile { path, identity, process: std::process::id() })
    }

    pub(super) fn set_mode(&self, mode: u32) -> io::Result<()> {
        fs::set_permissions(&self.path, Permissions::from_mode(mode))
    }

    pub(super) fn set_owner(&self, user: Option<u32>, group: Option<u32>) -> io::Result<()> {
        std::os::unix::fs::chown(&self.path, user, group)
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

/// Removes a socket's file on which nobody listens, and refuses anything else.
pub(super) fn remove_stale(address: &UnixAddress) -> Result<(), ListenError> {
    let text = format!("unix:{address}");
    let other = |source| ListenError::Other { address: text.clone(), source };
    let Some(path) = address.as_path() else { return Ok(()) };
    let before = fs::symlink_metadata(path).map_err(other)?;
    if before.file_type().is_symlink() {
        let what = format!("{} is a symbolic link, and a socket cannot be made through one", path.display());
        return Err(ListenError::NotASocket { address: text, what });
    }
    if !before.file_type().is_socket() {
        let what = address.explain().unwrap_or_else(|| format!("{} is not a socket", path.display()));
        return Err(ListenError::NotASocket { address: text, what });
    }
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let probe =
        socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).map_err(|errno| other(errno.into()))?;
    match connect(&probe, address.kernel()) {
        Err(Errno::CONNREFUSED) => {}
        // Gone in the meantime: the bind that follows decides.
        Err(Errno::NOENT) => return Ok(()),
        Ok(()) => {
            return Err(match sys::peer_pid(&probe) {
                Some(pid) if !process::exists(pid) => ListenError::LeftOver { address: text, pid },
                pid => ListenError::InUse { address: text, pid },
            });
        }
        // Its backlog is full, or it is of another type, or not ours to ask: it is in use.
        _ => return Err(ListenError::InUse { address: text, pid: None }),
    }
    // Only the file that was asked: another server may have replaced it in the meantime.
    if identity(path).is_ok_and(|now| now == (before.dev(), before.ino())) {
        fs::remove_file(path).map_err(other)?;
    }
    Ok(())
}

/// Device and inode, which together name a file whatever its path.
fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let metadata = fs::symlink_metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}
