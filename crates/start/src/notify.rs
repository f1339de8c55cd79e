//! sd_notify(3): messages from a generation to the superdaemon.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use oroshi_net::UnixAddress;
use tokio::net::UnixDatagram;

/// Variables that belong to systemd's socket and not to ours.
pub(crate) const WATCHDOG: [&str; 2] = ["WATCHDOG_USEC", "WATCHDOG_PID"];

/// A socket for one generation, which identifies the sender. Dropping it removes its file.
#[derive(Debug)]
pub(crate) struct NotifySocket {
    socket: UnixDatagram,
    folder: PathBuf,
    path: PathBuf,
}

impl NotifySocket {
    /// Makes the socket in the folder for temporary files.
    ///
    /// A command may run as another user, who must be able to send; no one else may. Therefore the name is a secret,
    /// present only in the command's environment. The folder allows traversal but not listing. `/proc/net/unix` shows
    /// the name at the bind, not the later name.
    pub(crate) fn new() -> io::Result<Self> {
        let folder = std::env::temp_dir().join(format!("oroshi-start-{}", secret(8)?));
        DirBuilder::new().mode(0o711).create(&folder)?;
        let made = Self::in_folder(&folder);
        if made.is_err() {
            let _ = fs::remove_dir_all(&folder);
        }
        made
    }

    fn in_folder(folder: &Path) -> io::Result<Self> {
        // Independent of the umask.
        fs::set_permissions(folder, Permissions::from_mode(0o711))?;
        let (first, path) = (folder.join("new"), folder.join(secret(16)?));
        // A rename gives the socket its final name; it does not check that a socket address can hold it.
        UnixAddress::path(&path).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let socket = UnixDatagram::bind(&first)?;
        fs::set_permissions(&first, Permissions::from_mode(0o666))?;
        fs::rename(&first, &path)?;
        Ok(Self { socket, folder: folder.to_owned(), path })
    }

    /// The value of the command's NOTIFY_SOCKET.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The next message.
    pub(crate) async fn next(&self) -> io::Result<Notification> {
        // The same limit as systemd's.
        let mut room = [0; 4096];
        let length = self.socket.recv(&mut room).await?;
        Ok(read(&room[..length]))
    }
}

impl Drop for NotifySocket {
    fn drop(&mut self) {
        // If this fails, an empty folder remains.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A message of a generation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Notification {
    /// Whether it is ready.
    pub(crate) ready: bool,
    /// Its status as text.
    pub(crate) status: Option<String>,
}

/// Parses the relevant parts of a message: lines of `NAME=value`, the last of each name.
fn read(message: &[u8]) -> Notification {
    let text = String::from_utf8_lossy(message);
    let mut said = Notification::default();
    for line in text.lines() {
        match line.split_once('=') {
            Some(("READY", value)) => said.ready = value == "1",
            Some(("STATUS", status)) => {
                said.status = Some(status.chars().filter(|c| !c.is_control()).take(200).collect());
            }
            _ => {}
        }
    }
    said
}

/// Returns `length` random bytes as hexadecimal digits.
pub(crate) fn secret(length: usize) -> io::Result<String> {
    let mut bytes = vec![0; length];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram as Datagram;

    use super::*;

    #[test]
    fn what_is_of_interest_is_read() {
        let status = Some("warming up".to_owned());
        assert_eq!(read(b"STATUS=cold\nSTATUS=warming up\nREADY=1\nMAINPID=7\n"), Notification { ready: true, status });
        assert_eq!(read(b"READY=0\nSTOPPING=1\nREADY\n\xff"), Notification::default());
    }

    #[test]
    fn a_message_comes_through_and_the_name_is_a_secret() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let notify = NotifySocket::new().unwrap();
            let path = notify.path().to_owned();
            Datagram::unbound().unwrap().send_to(b"READY=1", &path).unwrap();
            assert!(notify.next().await.unwrap().ready);
            let sockets = fs::read_to_string("/proc/net/unix").unwrap();
            assert!(!sockets.contains(path.to_str().unwrap()));
            assert!(sockets.contains(path.parent().unwrap().to_str().unwrap()), "it is there by its first name");
            assert_eq!(path.parent().unwrap().metadata().unwrap().permissions().mode() & 0o777, 0o711);
            drop(notify);
            assert!(!path.parent().unwrap().exists());
        });
    }
}
