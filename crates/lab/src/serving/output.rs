//! Reads back what processes have written to a file since a given moment.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use oroshi_words::printable;
use regex_lite::Regex;

use crate::keeper::HEAD;

/// Maximum bytes read back at once.
const MOST: u64 = 64 * 1024;

/// The part of a growing file that begins at a given moment.
#[derive(Clone, Debug)]
pub(super) struct Output {
    path: PathBuf,
    from: u64,
    /// End of the complete lines already searched.
    seen: u64,
}

impl Output {
    /// Begins at the file's present end. Makes the file if it is missing.
    pub(super) fn from_now(path: &Path) -> io::Result<Self> {
        let length = OpenOptions::new().append(true).create(true).open(path)?.metadata()?.len();
        Ok(Self { path: path.to_owned(), from: length, seen: length })
    }

    /// Makes [`has_line`](Self::has_line) skip everything written so far.
    pub(super) fn look_from_now(&mut self) {
        self.seen = fs::metadata(&self.path).map_or(self.seen, |file| file.len());
    }

    /// Whether a complete line since the last call matches.
    pub(super) fn has_line(&mut self, pattern: &Regex) -> io::Result<bool> {
        // The keeper has cut the middle out: the unread part is behind the kept beginning.
        let length = fs::metadata(&self.path)?.len();
        if length < self.seen {
            self.seen = HEAD.min(length);
        }
        loop {
            let bytes = self.read(self.seen, MOST)?;
            let Some(end) = bytes.iter().rposition(|&byte| byte == b'\n').map(|end| end + 1) else {
                // No pattern waits for a longer line.
                self.seen += if bytes.len() as u64 == MOST { MOST } else { 0 };
                return Ok(false);
            };
            self.seen += end as u64;
            if String::from_utf8_lossy(&bytes[..end]).lines().any(|line| pattern.is_match(line)) {
                return Ok(true);
            }
        }
    }

    /// Returns at most the last `most` bytes as text, from the beginning of a line if there is one.
    pub(super) fn tail(&self, most: usize) -> String {
        let length = fs::metadata(&self.path).map_or(0, |file| file.len());
        // Where the middle was cut out, output before this server may be gone.
        let from = if length < self.from { HEAD.min(length) } else { self.from };
        let start = length.saturating_sub(most as u64).max(from);
        // Includes the byte before, which tells whether a line begins here.
        let cut = start > from;
        let bytes = self.read(start - u64::from(cut), most as u64 + u64::from(cut)).unwrap_or_default();
        let skip = if cut { bytes.iter().position(|&byte| byte == b'\n').map_or(1, |end| end + 1) } else { 0 };
        String::from_utf8_lossy(bytes.get(skip..).unwrap_or_default()).into_owned()
    }

    /// Returns at most `count` last lines.
    pub(super) fn last_lines(&self, count: usize) -> Vec<String> {
        let text = self.tail(MOST as usize);
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(count)..].iter().map(|line| printable(line)).collect()
    }

    fn read(&self, from: u64, most: u64) -> io::Result<Vec<u8>> {
        let mut file = File::open(&self.path)?;
        file.seek(SeekFrom::Start(from))?;
        let mut bytes = Vec::new();
        file.take(most).read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn only_what_was_written_since_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("output");
        fs::write(&path, "before\nready\n").unwrap();
        let mut output = Output::from_now(&path).unwrap();
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        let ready = Regex::new("^ready").unwrap();
        assert_eq!((output.last_lines(9), output.tail(9)), (vec![], String::new()));
        assert!(!output.has_line(&ready).unwrap());
        file.write_all(b"one\nrea").unwrap();
        assert!(!output.has_line(&ready).unwrap());
        file.write_all(b"dy at 80\nthree").unwrap();
        assert!(output.has_line(&ready).unwrap());
        assert!(!output.has_line(&ready).unwrap());
        assert_eq!(output.last_lines(9), ["one", "ready at 80", "three"]);
        assert_eq!(output.last_lines(2), ["ready at 80", "three"]);
        // Cut within a line; at its beginning; without any line end.
        assert_eq!(output.tail(12), "three");
        assert_eq!(output.tail(14), "three");
        assert_eq!(output.tail(17), "ready at 80\nthree");
        assert_eq!(output.tail(3), "ree");
        assert_eq!(output.tail(999), "one\nready at 80\nthree");
        file.write_all(b"\n\x1b[31mred\tone\x07").unwrap();
        assert_eq!(output.last_lines(1), ["\\u{1b}[31mred one\\u{7}"]);
        output.look_from_now();
        file.write_all(b"\nready\n").unwrap();
        assert!(output.has_line(&ready).unwrap());
    }

    #[test]
    fn long_output_is_looked_at_in_pieces() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("output");
        let mut output = Output::from_now(&path).unwrap();
        let mut text = "x".repeat(3 * MOST as usize);
        text += &"\nnoise".repeat(30_000);
        text += "\nready\nmore\n";
        fs::write(&path, text).unwrap();
        let found = (0..10).any(|_| output.has_line(&Regex::new("^ready$").unwrap()).unwrap());
        assert!(found);
        assert_eq!(output.last_lines(3), ["noise", "ready", "more"]);
    }
}
