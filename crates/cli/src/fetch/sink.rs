//! Where a body goes: nowhere, to standard output, into a file.

use std::io::{self, Write};

use super::body_files::{BodyFile, Folder};
use super::read::Bodies;

/// A body on its way.
pub(super) enum Sink {
    Counted,
    Printed,
    Kept(BodyFile, String),
}

impl Sink {
    /// For one body; `name` is asked for where it becomes a file.
    pub(super) fn of(bodies: &Bodies, folder: Option<&Folder>, name: impl FnOnce() -> String) -> io::Result<Self> {
        Ok(match (bodies, folder) {
            (Bodies::Printed, _) => Sink::Printed,
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
            Sink::Kept(file, _) => file.write(piece),
        }
    }

    /// The body is whole. Gives the file's name.
    pub(super) fn finish(self) -> io::Result<Option<String>> {
        match self {
            Sink::Counted => Ok(None),
            Sink::Printed => io::stdout().lock().flush().map(|()| None),
            Sink::Kept(file, name) => file.finish().map(|()| Some(name)),
        }
    }
}
