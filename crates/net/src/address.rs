//! Socket addresses: resolved TCP addresses and names of unix sockets.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::SocketAddr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use rustix::net::{SocketAddrAny, SocketAddrUnix};
use thiserror::Error;

/// The longest name of a unix socket, in bytes: `sun_path` has 108, one of which is the NUL after a path or before an
/// abstract name (unix(7)).
pub const UNIX_NAME_BYTES: usize = 107;

/// An address to connect to, without any further look-up.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Peer {
    /// An IP address and port.
    Tcp(SocketAddr),
    /// A unix stream socket.
    Unix(UnixAddress),
}

impl Peer {
    /// Converts the kernel's form of a peer's address. None for a unix socket without a name (most clients).
    pub(crate) fn from_kernel(address: SocketAddrAny) -> Option<Peer> {
        if let Ok(address) = SocketAddr::try_from(address.clone()) {
            return Some(Peer::Tcp(address));
        }
        let address = SocketAddrUnix::try_from(address).ok()?;
        if let Some(name) = address.abstract_name() {
            return UnixAddress::abstract_name(name).ok().map(Peer::Unix);
        }
        let path = address.path_bytes()?;
        // If a path fills `sun_path`, the NUL is returned as part of it.
        let path = path.strip_suffix(b"\0").unwrap_or(path);
        UnixAddress::path(std::ffi::OsStr::from_bytes(path)).ok().map(Peer::Unix)
    }
}

impl From<SocketAddr> for Peer {
    fn from(address: SocketAddr) -> Self {
        Peer::Tcp(address)
    }
}

impl From<UnixAddress> for Peer {
    fn from(address: UnixAddress) -> Self {
        Peer::Unix(address)
    }
}

/// `127.0.0.1:80`, `[::1]:80`, `unix:/run/app.sock`, `unix:@name`.
impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Peer::Tcp(address) => address.fmt(f),
            Peer::Unix(address) => write!(f, "unix:{address}"),
        }
    }
}

/// The name of a unix socket: a path, or a name in Linux's abstract namespace.
///
/// Always valid. Holds the kernel's form of the address, so connecting converts nothing.
#[derive(Clone)]
pub struct UnixAddress {
    name: Name,
    kernel: SocketAddrUnix,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Name {
    Path(PathBuf),
    Abstract(Vec<u8>),
}

impl UnixAddress {
    /// Makes the address of the socket at a path, absolute or relative to the current directory; 1 to 107 bytes, no
    /// NUL.
    pub fn path(path: impl Into<PathBuf>) -> Result<Self, UnixAddressError> {
        let path = path.into();
        let bytes = path.as_os_str().as_bytes();
        if bytes.is_empty() {
            return Err(UnixAddressError::Empty);
        }
        if bytes.contains(&0) {
            return Err(UnixAddressError::Nul { name: shown(bytes) });
        }
        let kernel = Self::checked_length(bytes).and_then(|()| {
            SocketAddrUnix::new(bytes)
                .map_err(|_| UnixAddressError::TooLong { name: shown(bytes), length: bytes.len() })
        })?;
        Ok(UnixAddress { name: Name::Path(path), kernel })
    }

    /// Makes an abstract name, without its leading NUL (and without the `@` that replaces it in text); 1 to 107 bytes
    /// of any value.
    pub fn abstract_name(name: impl Into<Vec<u8>>) -> Result<Self, UnixAddressError> {
        let name = name.into();
        if name.is_empty() {
            return Err(UnixAddressError::Empty);
        }
        let kernel = Self::checked_length(&name).and_then(|()| {
            SocketAddrUnix::new_abstract_name(&name)
                .map_err(|_| UnixAddressError::TooLong { name: shown(&name), length: name.len() })
        })?;
        Ok(UnixAddress { name: Name::Abstract(name), kernel })
    }

    /// Parses `@name` as an abstract name, anything else as a path.
    pub fn parse(text: &str) -> Result<Self, UnixAddressError> {
        match text.strip_prefix('@') {
            Some(name) => Self::abstract_name(name),
            None => Self::path(text),
        }
    }

    /// The path; None for an abstract name.
    pub fn as_path(&self) -> Option<&Path> {
        match &self.name {
            Name::Path(path) => Some(path),
            Name::Abstract(_) => None,
        }
    }

    /// The abstract name; None for a path.
    pub fn as_abstract(&self) -> Option<&[u8]> {
        match &self.name {
            Name::Path(_) => None,
            Name::Abstract(name) => Some(name),
        }
    }

    /// Describes what is at the path instead of a socket, for a message ("/etc/passwd is a regular file, not a
    /// socket").
    ///
    /// None if it is a socket, if nothing is there, or for an abstract name. The kernel reports only ECONNREFUSED or
    /// EACCES for such a path. This reads the file system, so use it on the error path.
    pub fn explain(&self) -> Option<String> {
        let path = self.as_path()?;
        let kind = std::fs::metadata(path).ok()?.file_type();
        let what = if kind.is_socket() {
            return None;
        } else if kind.is_dir() {
            "a directory"
        } else if kind.is_file() {
            "a regular file"
        } else if kind.is_fifo() {
            "a FIFO"
        } else if kind.is_char_device() || kind.is_block_device() {
            "a device"
        } else {
            "something else"
        };
        Some(format!("{} is {what}, not a socket", path.display()))
    }

    /// The form for system calls.
    pub(crate) fn kernel(&self) -> &SocketAddrUnix {
        &self.kernel
    }

    fn checked_length(name: &[u8]) -> Result<(), UnixAddressError> {
        if name.len() > UNIX_NAME_BYTES {
            return Err(UnixAddressError::TooLong { name: shown(name), length: name.len() });
        }
        Ok(())
    }

    /// The name's bytes in text: the path, or `@` and the abstract name. A relative path that begins with `@` gets
    /// `./` in front, so that it parses as a path.
    pub(crate) fn text_bytes(&self) -> Vec<u8> {
        match &self.name {
            Name::Path(path) => {
                let bytes = path.clone().into_os_string().into_vec();
                if bytes.starts_with(b"@") { [b"./".as_slice(), &bytes].concat() } else { bytes }
            }
            Name::Abstract(name) => [b"@".as_slice(), name].concat(),
        }
    }
}

impl PartialEq for UnixAddress {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for UnixAddress {}

impl Hash for UnixAddress {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

impl fmt::Debug for UnixAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UnixAddress({self})")
    }
}

/// Prints `/run/app.sock` or `@name`, with unprintable bytes escaped (`\n`, `\xff`).
impl fmt::Display for UnixAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&shown(&self.text_bytes()))
    }
}

/// The reason why a text cannot name a unix socket.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum UnixAddressError {
    /// Write the path, or `@` and a name.
    #[error("the name of the unix socket is empty: expected a path such as /run/app.sock, or @name")]
    Empty,
    /// Use a shorter path: a symbolic link to the folder helps, or a path relative to the current directory.
    #[error("{name} is {length} bytes long, a unix socket's name at most {UNIX_NAME_BYTES}: use a shorter path")]
    TooLong {
        /// The name, escaped for printing.
        name: String,
        /// Its length in bytes.
        length: usize,
    },
    /// A path ends at its first NUL: remove it, or write an abstract name as `@name`.
    #[error("{name} contains a NUL byte, which no path can")]
    Nul {
        /// The name, escaped for printing.
        name: String,
    },
}

/// Escapes bytes for a message: keeps printable text, escapes the rest; at most about 200 bytes.
pub(crate) fn shown(bytes: &[u8]) -> String {
    const MOST: usize = 200;
    let cut = &bytes[..bytes.len().min(MOST)];
    let mut text = String::new();
    for chunk in cut.utf8_chunks() {
        for character in chunk.valid().chars() {
            if character.is_control() {
                text.extend(character.escape_default());
            } else {
                text.push(character);
            }
        }
        for byte in chunk.invalid() {
            text.push_str(&format!("\\x{byte:02x}"));
        }
    }
    if cut.len() < bytes.len() {
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_at_most_107_bytes() {
        let longest = "x".repeat(UNIX_NAME_BYTES);
        assert_eq!(UnixAddress::path(&longest).unwrap().as_path(), Some(Path::new(&longest)));
        assert_eq!(UnixAddress::abstract_name(longest.as_str()).unwrap().as_abstract(), Some(longest.as_bytes()));
        let error = UnixAddress::path("x".repeat(108)).unwrap_err();
        assert!(matches!(error, UnixAddressError::TooLong { length: 108, .. }), "{error}");
        let error = UnixAddress::abstract_name("x".repeat(108)).unwrap_err();
        assert!(matches!(error, UnixAddressError::TooLong { length: 108, .. }), "{error}");
    }

    #[test]
    fn empty_names_and_nul_in_a_path_are_refused() {
        assert_eq!(UnixAddress::path("").unwrap_err(), UnixAddressError::Empty);
        assert_eq!(UnixAddress::parse("@").unwrap_err(), UnixAddressError::Empty);
        assert!(matches!(UnixAddress::path("a\0b").unwrap_err(), UnixAddressError::Nul { .. }));
        assert!(UnixAddress::abstract_name(b"a\0b".as_slice()).is_ok());
    }

    #[test]
    fn display_escapes_what_cannot_be_printed() {
        assert_eq!(UnixAddress::path("/run/a.sock").unwrap().to_string(), "/run/a.sock");
        assert_eq!(UnixAddress::abstract_name(b"a\n\xff".as_slice()).unwrap().to_string(), "@a\\n\\xff");
        assert_eq!(UnixAddress::path("@a").unwrap().to_string(), "./@a");
        assert_eq!(Peer::Unix(UnixAddress::parse("@a").unwrap()).to_string(), "unix:@a");
    }

    #[test]
    fn the_kernels_form_reads_back_even_at_full_length() {
        for text in ["/run/a.sock".to_owned(), format!("/{}", "x".repeat(106)), "@name".to_owned()] {
            let address = UnixAddress::parse(&text).unwrap();
            let back = Peer::from_kernel(address.kernel().clone().into());
            assert_eq!(back, Some(Peer::Unix(address)), "{text}");
        }
    }

    #[test]
    fn explain_says_what_is_no_socket() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| UnixAddress::path(folder.path().join(name)).unwrap();
        assert_eq!(at("nothing").explain(), None);
        std::fs::write(folder.path().join("file"), "").unwrap();
        assert!(at("file").explain().unwrap().ends_with("file is a regular file, not a socket"));
        assert!(UnixAddress::path(folder.path()).unwrap().explain().unwrap().ends_with("is a directory, not a socket"));
        let _listener = std::os::unix::net::UnixListener::bind(folder.path().join("socket")).unwrap();
        assert_eq!(at("socket").explain(), None);
        assert_eq!(UnixAddress::parse("@name").unwrap().explain(), None);
    }
}
