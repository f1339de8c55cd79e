//! Bounds a server's output file: keeps the beginning and the end.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;

/// Bytes kept of the beginning.
pub(crate) const HEAD: u64 = 1 << 20;
/// Bytes kept of the end when the middle is cut out.
pub(crate) const TAIL: u64 = 1 << 20;
/// Size from which the middle is cut out, bytes.
pub(crate) const MOST: u64 = 8 << 20;

/// A file that processes append to. When it grows too long, its middle is cut out.
#[derive(Debug)]
pub(super) struct BoundedFile {
    /// Open for reading and appending.
    file: File,
    head: u64,
    tail: u64,
    most: u64,
    /// Bytes cut out so far, and the length of the line that reports them.
    cut: u64,
    told: u64,
}

impl BoundedFile {
    /// `file` is open for reading and appending.
    pub(super) fn new(file: File) -> Self {
        Self { file, head: HEAD, tail: TAIL, most: MOST, cut: 0, told: 0 }
    }

    /// The file.
    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// Cuts the middle out if the file is too long. Bytes written at this very moment may be lost too.
    pub(super) fn look(&mut self) -> io::Result<()> {
        let length = self.file.metadata()?.len();
        if length <= self.most {
            return Ok(());
        }
        // Includes the byte before, which tells whether a line begins here.
        let mut end = vec![0; usize::try_from(self.tail + 1).unwrap_or(0)];
        let read = self.file.read_at(&mut end, length - self.tail - 1)?;
        end.truncate(read);
        // Keeps whole lines, if there are any.
        let start = end.iter().position(|&byte| byte == b'\n').map_or(0, |place| place + 1);
        let end = &end[start..];
        self.cut += length.saturating_sub(self.head + self.told + end.len() as u64);
        let line = format!("\n[oroshi: {} bytes were left out here; the first and the last are kept]\n", self.cut);
        self.told = line.len() as u64;
        self.file.set_len(self.head)?;
        // Appending processes continue behind this.
        (&self.file).write_all(&[line.as_bytes(), end].concat())
    }
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;

    use super::*;

    #[test]
    fn the_beginning_and_the_end_are_kept_and_what_was_cut_is_counted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("output");
        let open = || OpenOptions::new().read(true).append(true).create(true).open(&path).unwrap();
        let mut bounded = BoundedFile { head: 10, tail: 20, most: 100, ..BoundedFile::new(open()) };
        let mut server = open();
        let text = || std::fs::read_to_string(&path).unwrap();
        server.write_all(b"listening\n").unwrap();
        bounded.look().unwrap();
        assert_eq!(text(), "listening\n");
        for round in 0..3 {
            (0..20).for_each(|line| server.write_all(format!("line {round}.{line:02}\n").as_bytes()).unwrap());
            bounded.look().unwrap();
        }
        let kept = text();
        assert!(kept.starts_with("listening\n\n[oroshi: ") && kept.ends_with("]\nline 2.18\nline 2.19\n"), "{kept}");
        let cut: u64 = kept.split(' ').nth(1).unwrap().parse().unwrap();
        assert_eq!(cut, 3 * 20 * 10 - 20, "all that was written but for what is there");
        server.write_all(b"last words\n").unwrap();
        assert!(text().ends_with("line 2.19\nlast words\n"));
    }
}
