//! A file of rows, read within its limits.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Take};
use std::path::{Path, PathBuf};

use oroshi_words::units;

use super::MAX_FILE_BYTES;

/// Size of the read buffer, bytes.
const BUFFER_BYTES: usize = 64 * 1024;

/// A regular file of at most [`MAX_FILE_BYTES`], without its byte order mark.
#[derive(Debug)]
pub(super) struct Source {
    reader: BufReader<Take<File>>,
    path: PathBuf,
    name: String,
    /// The file's size when it was opened.
    size: u64,
    /// The length of the byte order mark.
    mark: u64,
}

impl Source {
    /// Opens a file. `name`: its path in messages.
    pub(super) fn open(path: &Path, name: &str) -> Result<Self, String> {
        let unreadable = |error: io::Error| format!("{name} cannot be read: {error}");
        // Before it is opened, which would wait for the writer of a pipe.
        let metadata = path.metadata().map_err(unreadable)?;
        if !metadata.is_file() {
            return Err(format!("{name} is no regular file: expected a file of rows"));
        }
        let size = metadata.len();
        if size > MAX_FILE_BYTES {
            return Err(too_large(name, size));
        }
        let file = File::open(path).map_err(unreadable)?;
        // One more byte, so that growth is noticed.
        let mut reader = BufReader::with_capacity(BUFFER_BYTES, file.take(MAX_FILE_BYTES + 1));
        let first = reader.fill_buf().map_err(unreadable)?;
        if first.starts_with(b"\xff\xfe") || first.starts_with(b"\xfe\xff") {
            return Err(format!("{name} is UTF-16: expected UTF-8"));
        }
        let mark = if first.starts_with(b"\xef\xbb\xbf") { 3 } else { 0 };
        reader.consume(mark);
        Ok(Self { reader, path: path.to_owned(), name: name.to_owned(), size, mark: mark as u64 })
    }

    /// The file's size when it was opened, bytes.
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// The file's place, for messages after the source is gone.
    pub(super) fn place(&self) -> Place {
        Place { path: self.path.clone(), name: self.name.clone(), mark: self.mark }
    }
}

impl Read for Source {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.reader.read(buffer)?;
        self.check()?;
        Ok(read)
    }
}

impl BufRead for Source {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.reader.fill_buf()?;
        self.check()?;
        self.reader.fill_buf()
    }

    fn consume(&mut self, amount: usize) {
        self.reader.consume(amount);
    }
}

impl Source {
    /// Fails once the file has grown beyond the limit.
    fn check(&self) -> io::Result<()> {
        if self.reader.get_ref().limit() == 0 {
            return Err(io::Error::other(format!("it has grown: {}", expected())));
        }
        Ok(())
    }
}

/// Where a mistake is.
#[derive(Debug)]
pub(super) struct Place {
    path: PathBuf,
    name: String,
    mark: u64,
}

impl Place {
    /// Returns the message about a mistake in a line, from 1.
    pub(super) fn line(&self, line: u64, what: &str) -> String {
        format!("{}, line {line}: {what}", self.name)
    }

    /// Returns the message about a mistake in the row that begins at this byte or, after empty lines, behind it.
    ///
    /// The CSV reader counts lines when it reads past their ends, which is late for files with CRLF.
    pub(super) fn row(&self, byte: u64, what: &str) -> String {
        match self.line_of(byte) {
            Ok(line) => self.line(line, what),
            Err(_) => format!("{}: {what}", self.name),
        }
    }

    /// Returns the message about an error of reading.
    pub(super) fn unreadable(&self, error: &io::Error) -> String {
        format!("{} cannot be read: {error}", self.name)
    }

    fn line_of(&self, byte: u64) -> io::Result<u64> {
        let mut file = BufReader::with_capacity(BUFFER_BYTES, File::open(&self.path)?);
        let (mut line, mut left) = (1, byte + self.mark);
        loop {
            let buffer = file.fill_buf()?;
            if buffer.is_empty() {
                return Ok(line);
            }
            let before = usize::try_from(left).map_or(buffer.len(), |left| left.min(buffer.len()));
            line += newlines(&buffer[..before]);
            left -= before as u64;
            let rest = &buffer[before..];
            let empty = rest.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
            line += newlines(&rest[..empty]);
            if empty < rest.len() {
                return Ok(line);
            }
            let length = buffer.len();
            file.consume(length);
        }
    }
}

fn newlines(bytes: &[u8]) -> u64 {
    bytes.iter().filter(|byte| **byte == b'\n').count() as u64
}

fn too_large(name: &str, size: u64) -> String {
    format!("{name} takes {} bytes: {}", units::count(size), expected())
}

fn expected() -> String {
    format!("expected at most {} bytes", units::count(MAX_FILE_BYTES))
}
