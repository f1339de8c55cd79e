//! Replaces this process by a program that inherits sockets: the counterpart of [`inherit`](crate::inherit).
//!
//! Server::Starter's children find their sockets by the numbers in SERVER_STARTER_PORT. systemd's numbers count from
//! 3, and LISTEN_PID must be the process's own number, which is known only after the fork. Therefore the parent
//! starts a small process, which arranges the descriptors and then becomes the program under the same process number.
#![allow(unsafe_code)]

use std::convert::Infallible;
use std::env;
use std::ffi::{CString, OsStr, OsString, c_char, c_int};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;

use rustix::io::{Errno, FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};
use thiserror::Error;

/// A socket inherited through exec, and the descriptor number that the program expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DescriptorMove {
    /// Its present number.
    pub from: RawFd,
    /// Its number in the program.
    pub to: RawFd,
}

/// Replaces this process by a program, found in PATH, with this environment and additional variables.
///
/// The sockets are at the requested numbers, and closed at their old ones. SIGPIPE stays ignored, as in Rust programs
/// and in Server::Starter's children. Call it in a process that has done nothing else: besides standard input, output
/// and error, only inherited descriptors may be open.
///
/// # Errors
/// It returns only on failure. Descriptors may have moved already, so the process should end.
pub fn become_program(
    program: &OsStr,
    args: &[OsString],
    variables: &[(OsString, OsString)],
    moves: &[DescriptorMove],
) -> Result<Infallible, HandoverError> {
    let argv = std::iter::once(program).chain(args.iter().map(OsString::as_os_str));
    let argv = argv.map(|word| CString::new(word.as_bytes())).collect::<Result<Vec<_>, _>>();
    let argv = argv.map_err(|_| HandoverError::Nul { what: "the command" })?;
    let mut environment: Vec<CString> = Vec::new();
    let inherited = env::vars_os().filter(|(name, _)| !variables.iter().any(|(new, _)| new == name));
    for (name, value) in inherited.chain(variables.iter().cloned()) {
        let entry = [name.as_bytes(), b"=", value.as_bytes()].concat();
        environment.push(CString::new(entry).map_err(|_| HandoverError::Nul { what: "the environment" })?);
    }
    move_sockets(moves)?;
    let pointers = |strings: &[CString]| -> Vec<*const c_char> {
        strings.iter().map(|string| string.as_ptr()).chain([std::ptr::null()]).collect()
    };
    let (words, variables) = (pointers(&argv), pointers(&environment));
    // SAFETY: both lists end with a null pointer, and all other pointers point to NUL-terminated strings that live
    // until after the call; the callee does not change them.
    unsafe { execvpe(words[0], words.as_ptr(), variables.as_ptr()) };
    Err(HandoverError::Exec(io::Error::last_os_error()))
}

/// The reason why the program was not started.
#[derive(Debug, Error)]
pub enum HandoverError {
    /// A NUL byte within a NUL-terminated string: remove it.
    #[error("a NUL byte is in {what}")]
    Nul {
        /// The kind of string.
        what: &'static str,
    },
    /// A defect of the parent: it names a descriptor that it did not pass on.
    #[error("descriptor {descriptor} was not handed down")]
    NotInherited {
        /// Its number.
        descriptor: RawFd,
    },
    /// A defect in this program: it opened a descriptor before this call.
    #[error("descriptor {descriptor} is in use by this process itself")]
    InUse {
        /// Its number.
        descriptor: RawFd,
    },
    /// The kernel refused to copy a descriptor: the limit (`ulimit -n`) is lower than the requested number.
    #[error("descriptor {descriptor} could not be put in its place")]
    Copy {
        /// The requested number.
        descriptor: RawFd,
        /// The kernel's error.
        source: io::Error,
    },
    /// The program cannot run: it does not exist, is not executable, or is for another architecture.
    #[error("the program could not be run")]
    Exec(#[source] io::Error),
}

/// Moves every socket to its number. First copies all of them, because one may occupy the number of another.
fn move_sockets(moves: &[DescriptorMove]) -> Result<(), HandoverError> {
    let is_wanted = |number: RawFd| moves.iter().any(|socket| socket.to == number);
    let mut copies: Vec<OwnedFd> = Vec::with_capacity(moves.len());
    for &DescriptorMove { from, to } in moves {
        let socket = inherited(from).ok_or(HandoverError::NotInherited { descriptor: from })?;
        let failed = |errno: Errno| HandoverError::Copy { descriptor: to, source: errno.into() };
        let mut copy = fcntl_dupfd_cloexec(socket, 3).map_err(failed)?;
        while is_wanted(copy.as_raw_fd()) {
            copy = fcntl_dupfd_cloexec(socket, copy.as_raw_fd() + 1).map_err(failed)?;
        }
        copies.push(copy);
    }
    for &DescriptorMove { from, to } in moves {
        // Closes the old number on exec, unless a copy replaces it below.
        if let Some(socket) = inherited(from) {
            let failed = |errno: Errno| HandoverError::Copy { descriptor: to, source: errno.into() };
            fcntl_setfd(socket, FdFlags::CLOEXEC).map_err(failed)?;
        }
    }
    for (copy, &DescriptorMove { to, .. }) in copies.iter().zip(moves) {
        let taken = to > 2 && !moves.iter().any(|socket| socket.from == to) && is_own(to);
        if taken || to < 0 {
            return Err(HandoverError::InUse { descriptor: to });
        }
        // SAFETY: both are plain numbers to the kernel, `copy` is open, and nothing in this process owns `to`: it is
        // not open, or was inherited through exec, or is standard input, output or error.
        if unsafe { dup2(copy.as_raw_fd(), to) } < 0 {
            return Err(HandoverError::Copy { descriptor: to, source: io::Error::last_os_error() });
        }
    }
    Ok(())
}

/// Returns a descriptor inherited through exec: this process opens its own with close-on-exec.
fn inherited(descriptor: RawFd) -> Option<BorrowedFd<'static>> {
    flags(descriptor).filter(|flags| !flags.contains(FdFlags::CLOEXEC))?;
    // SAFETY: it is open, and nothing in this process owns an inherited descriptor, so nothing closes it.
    Some(unsafe { BorrowedFd::borrow_raw(descriptor) })
}

/// Whether this process itself opened a descriptor at the number.
fn is_own(descriptor: RawFd) -> bool {
    flags(descriptor).is_some_and(|flags| flags.contains(FdFlags::CLOEXEC))
}

/// Returns the flags of a descriptor; `None` if it is not open.
fn flags(descriptor: RawFd) -> Option<FdFlags> {
    const F_GETFD: c_int = 1;
    // SAFETY: the kernel checks the number, and returns EBADF if it is not open; this command takes no third
    // argument.
    let flags = unsafe { fcntl(descriptor, F_GETFD) };
    u32::try_from(flags).ok().map(FdFlags::from_bits_retain)
}

// SAFETY: these are execvpe(3), dup2(2) and fcntl(2) as every libc on Linux declares them; std links the libc.
unsafe extern "C" {
    fn fcntl(descriptor: c_int, command: c_int, ...) -> c_int;
    fn execvpe(file: *const c_char, argv: *const *const c_char, envp: *const *const c_char) -> c_int;
    fn dup2(from: c_int, to: c_int) -> c_int;
}
