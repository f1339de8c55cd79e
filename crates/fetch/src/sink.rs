//! The destination of a body: none, standard output, or a file.

use std::io;

use crate::body_files::{BodyFile, Folder};
use crate::out::SharedWriter;
use crate::plan::Bodies;

/// A body being received.
pub(crate) enum Sink<'h> {
    Counted,
    Printed(&'h SharedWriter),
    /// Printed after the last attempt, when no other body can follow.
    Held(&'h mut Vec<u8>),
    Kept(BodyFile, String),
}

impl<'h> Sink<'h> {
    /// Creates the sink of one body. With `held`, a body to be printed is kept there; `name` gives the name of a file.
    pub(crate) fn of(
        bodies: &Bodies,
        folder: Option<&Folder>,
        out: &'h SharedWriter,
        held: Option<&'h mut Vec<u8>>,
        name: impl FnOnce() -> String,
    ) -> io::Result<Self> {
        Ok(match (bodies, folder) {
            (Bodies::Printed, _) => held.map_or(Sink::Printed(out), Sink::Held),
            (Bodies::Folder(_), Some(folder)) => {
                let name = name();
                Sink::Kept(folder.begin(&name)?, name)
            }
            _ => Sink::Counted,
        })
    }

    pub(crate) fn write(&mut self, piece: &[u8]) -> io::Result<()> {
        match self {
            Sink::Counted => Ok(()),
            Sink::Printed(out) => out.write(piece),
            Sink::Held(held) => {
                held.extend_from_slice(piece);
                Ok(())
            }
            Sink::Kept(file, _) => file.write(piece),
        }
    }

    /// Ends a complete body. Returns the file's name.
    pub(crate) fn finish(self) -> io::Result<Option<String>> {
        match self {
            Sink::Counted | Sink::Held(_) => Ok(None),
            Sink::Printed(out) => out.flush().map(|()| None),
            Sink::Kept(file, name) => file.finish().map(|()| Some(name)),
        }
    }
}

/// Prints a held body.
pub(crate) fn print(out: &SharedWriter, body: &[u8]) -> io::Result<()> {
    out.write(body).and_then(|()| out.flush())
}
