//! Becoming another program that finds its sockets at the descriptors where it looks for them: what [`inherit`](crate::inherit)
//! is on the other side of.
//!
//! Server::Starter's children find their sockets by the numbers in SERVER_STARTER_PORT; systemd's count from 3 on, and
//! LISTEN_PID must be the process's own number, which is known only after the fork. So whoever starts such a child
//! starts a small process first, which puts everything in its place and then becomes the program, under the same
//! process number.
#![allow(unsafe_code)]

use std::convert::Infallible;
use std::env;
use std::ffi::{CString, OsStr, OsString, c_char, c_int};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;

use rustix::io::{Errno, FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};
use thiserror::Error;

/// A socket that came through exec, and the number under which the program looks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// Where it is.
    pub from: RawFd,
    /// Where it shall be.
    pub to: RawFd,
}

/// Becomes a program, which is looked for in PATH, with the environment of this process and these variables beside it.
/// The sockets lie at the numbers that are asked for, and are closed where they were. SIGPIPE stays ignored, as Rust's
/// programs have it and Server::Starter's children know it.
///
/// It is for a process that has done nothing else yet: no descriptor but standard input, output and error may be open
/// that did not come through exec.
///
/// # Errors
/// It returns only when it fails. Then the descriptors may have been moved already, and the process should end.
pub fn become_program(
    program: &OsStr,
    args: &[OsString],
    variables: &[(OsString, OsString)],
    moves: &[Move],
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
    place(moves)?;
    let pointers = |strings: &[CString]| -> Vec<*const c_char> {
        strings.iter().map(|string| string.as_ptr()).chain([std::ptr::null()]).collect()
    };
    let (words, variables) = (pointers(&argv), pointers(&environment));
    // SAFETY: both lists end with a null pointer, and all they point to are strings with a NUL at their end that live until
    // after the call, which the callee does not change.
    unsafe { execvpe(words[0], words.as_ptr(), variables.as_ptr()) };
    Err(HandoverError::Exec(io::Error::last_os_error()))
}

/// Why this process is still itself.
#[derive(Debug, Error)]
pub enum HandoverError {
    /// A NUL byte stands in something that ends at the first one: take it out.
    #[error("a NUL byte is in {what}")]
    Nul {
        /// What it is in.
        what: &'static str,
    },
    /// A defect of whoever started this process: it names a descriptor that it did not hand down.
    #[error("descriptor {descriptor} was not handed down")]
    NotInherited {
        /// Its number.
        descriptor: RawFd,
    },
    /// A defect in this program: it has opened something before this was called.
    #[error("descriptor {descriptor} is in use by this process itself")]
    InUse {
        /// Its number.
        descriptor: RawFd,
    },
    /// The kernel refused to copy a descriptor: the limit (`ulimit -n`) is lower than the number asked for.
    #[error("descriptor {descriptor} could not be put in its place")]
    Place {
        /// The number asked for.
        descriptor: RawFd,
        /// What the kernel said.
        source: io::Error,
    },
    /// The program cannot be run: it is not there, may not be executed, or is of another kind of machine.
    #[error("the program could not be run")]
    Exec(#[source] io::Error),
}

/// Puts every socket where it shall be. First all are copied out of the way: one may lie where another shall be.
fn place(moves: &[Move]) -> Result<(), HandoverError> {
    let is_wanted = |number: RawFd| moves.iter().any(|socket| socket.to == number);
    let mut copies: Vec<OwnedFd> = Vec::with_capacity(moves.len());
    for &Move { from, to } in moves {
        let socket = inherited(from).ok_or(HandoverError::NotInherited { descriptor: from })?;
        let failed = |errno: Errno| HandoverError::Place { descriptor: to, source: errno.into() };
        let mut copy = fcntl_dupfd_cloexec(socket, 3).map_err(failed)?;
        while is_wanted(copy.as_raw_fd()) {
            copy = fcntl_dupfd_cloexec(socket, copy.as_raw_fd() + 1).map_err(failed)?;
        }
        copies.push(copy);
    }
    for &Move { from, to } in moves {
        // Whatever lies where something shall be is replaced; else the number is left to nobody.
        if let Some(socket) = inherited(from) {
            let failed = |errno: Errno| HandoverError::Place { descriptor: to, source: errno.into() };
            fcntl_setfd(socket, FdFlags::CLOEXEC).map_err(failed)?;
        }
    }
    for (copy, &Move { to, .. }) in copies.iter().zip(moves) {
        let taken = to > 2 && !moves.iter().any(|socket| socket.from == to) && is_own(to);
        if taken || to < 0 {
            return Err(HandoverError::InUse { descriptor: to });
        }
        // SAFETY: both are plain numbers to the kernel, `copy` is open, and `to` is owned by nothing in this process: it is
        // not open, or came through exec, or is standard input, output or error, which are nobody's.
        if unsafe { dup2(copy.as_raw_fd(), to) } < 0 {
            return Err(HandoverError::Place { descriptor: to, source: io::Error::last_os_error() });
        }
    }
    Ok(())
}

/// A descriptor that came through exec: what this process opens itself is closed on exec.
fn inherited(descriptor: RawFd) -> Option<BorrowedFd<'static>> {
    flags(descriptor).filter(|flags| !flags.contains(FdFlags::CLOEXEC))?;
    // SAFETY: it is open; and what did come through exec is owned by nothing in this process, so that nothing closes it.
    Some(unsafe { BorrowedFd::borrow_raw(descriptor) })
}

/// Whether something of this process's own is open at the number.
fn is_own(descriptor: RawFd) -> bool {
    flags(descriptor).is_some_and(|flags| flags.contains(FdFlags::CLOEXEC))
}

/// The flags of a descriptor; `None`: it is not open.
fn flags(descriptor: RawFd) -> Option<FdFlags> {
    const F_GETFD: c_int = 1;
    // SAFETY: the number is the kernel's to judge, which answers EBADF when it is not open; this command takes no third argument.
    let flags = unsafe { fcntl(descriptor, F_GETFD) };
    u32::try_from(flags).ok().map(FdFlags::from_bits_retain)
}

// SAFETY: these are execvpe(3), dup2(2) and fcntl(2) as every libc on Linux declares them; std links the libc.
unsafe extern "C" {
    fn fcntl(descriptor: c_int, command: c_int, ...) -> c_int;
    fn execvpe(file: *const c_char, argv: *const *const c_char, envp: *const *const c_char) -> c_int;
    fn dup2(from: c_int, to: c_int) -> c_int;
}
