//! Where a body goes: nowhere, to standard output, into a file.

use std::io;

use crate::body_files::{BodyFile, Folder};
use crate::out::Out;
use crate::plan::Bodies;

/// A body on its way.
pub(crate) enum Sink<'h> {
    Counted,
    Printed(&'h Out),
    /// To be printed once it is known that no further attempt brings another one.
    Held(&'h mut Vec<u8>),
    Kept(BodyFile, String),
}

impl<'h> Sink<'h> {
    /// For one body. One that is to be printed is held in `held`, if that is given; `name` is asked for where it
    /// becomes a file.
    pub(crate) fn of(
        bodies: &Bodies,
        folder: Option<&Folder>,
        out: &'h Out,
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

    /// The body is whole. Gives the file's name.
    pub(crate) fn finish(self) -> io::Result<Option<String>> {
        match self {
            Sink::Counted | Sink::Held(_) => Ok(None),
            Sink::Printed(out) => out.flush().map(|()| None),
            Sink::Kept(file, name) => file.finish().map(|()| Some(name)),
        }
    }
}

/// Prints a body that was held.
pub(crate) fn print(out: &Out, body: &[u8]) -> io::Result<()> {
    out.write(body).and_then(|()| out.flush())
}
