//! Where a body goes: nowhere, to standard output, into a file.

use std::io::{self, Write};

use super::body_files::{BodyFile, Folder};
use super::read::Bodies;

/// A body on its way.
pub(super) enum Sink<'h> {
    Counted,
    Printed,
    /// To be printed once it is known that no further attempt brings another one.
    Held(&'h mut Vec<u8>),
    Kept(BodyFile, String),
}

impl<'h> Sink<'h> {
    /// For one body. One that is to be printed is held in `held`, if that is given; `name` is asked for where it becomes a file.
    pub(super) fn of(
        bodies: &Bodies,
        folder: Option<&Folder>,
        held: Option<&'h mut Vec<u8>>,
        name: impl FnOnce() -> String,
    ) -> io::Result<Self> {
        Ok(match (bodies, folder) {
            (Bodies::Printed, _) => held.map_or(Sink::Printed, Sink::Held),
            (Bodies::Folder(_), Some(folder)) => {
                let name = name();
                Sink::Kept(folder.begin(&name)?, name)
            }
            _ => Sink::Counted,
        })
    }

    pub(super) fn write(&mut self, piece: &[u8]) -> io::Result<()> {
        match self {
            Sink::Counted => Ok(()),
            Sink::Printed => io::stdout().lock().write_all(piece),
            Sink::Held(held) => {
                held.extend_from_slice(piece);
                Ok(())
            }
            Sink::Kept(file, _) => file.write(piece),
        }
    }

    /// The body is whole. Gives the file's name.
    pub(super) fn finish(self) -> io::Result<Option<String>> {
        match self {
            Sink::Counted | Sink::Held(_) => Ok(None),
            Sink::Printed => io::stdout().lock().flush().map(|()| None),
            Sink::Kept(file, name) => file.finish().map(|()| Some(name)),
        }
    }
}

/// Prints a body that was held.
pub(super) fn print(body: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(body).and_then(|()| out.flush())
}
