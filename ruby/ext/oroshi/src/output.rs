//! Sends the bytes of an answer.
//!
//! The kernel takes what it can directly from the source. The rest of a short write is copied to native memory while
//! there is room (`budget`), else to a temporary file. It goes out when epoll reports room, while Ruby serves other
//! requests. A file that is the answer's body stays a file.

use std::io::{self, IoSlice, Write as _};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use crate::budget::{Descriptor, FILES, MEMORY, Reservation, has_room_for_file};
use crate::progress_deadline::ProgressDeadline;
use crate::request::{memory_file, unnamed_file};
use crate::socket::{self, MOST_PIECES, is_for_later};

/// The unsent rest of an answer: first the bytes, then the files.
#[derive(Debug)]
pub(crate) struct Output {
    bytes: Vec<u8>,
    sent: usize,
    held: Reservation,
    files: Vec<FileRest>,
    /// The client's deadline, from the first wait. It counts only while something waits.
    pub(crate) deadline: ProgressDeadline,
}

/// A part of a file that is still to be sent.
#[derive(Debug)]
pub(crate) struct FileRest {
    pub(crate) file: OwnedFd,
    pub(crate) offset: u64,
    pub(crate) left: u64,
    /// Its reserved bytes, if it is a temporary file; only then bytes can be added.
    held: Option<Reservation>,
    _counted: Descriptor,
}

/// Whether an answer may exceed the limit on output that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutputLimit {
    /// No: it then fails.
    Bounded,
    /// Yes: the writer checks [`Output::is_full`] after each piece.
    Beyond,
}

/// Maximum size of a temporary file, so that sent parts of a long answer are deleted before its end.
const SEGMENT_BYTES: u64 = 32 << 20;
/// Less room than this counts as none.
const LEAST_ROOM: usize = 64 * 1024;

impl Default for Output {
    fn default() -> Self {
        Output {
            bytes: Vec::new(),
            sent: 0,
            held: Reservation::none(&MEMORY),
            files: Vec::new(),
            deadline: ProgressDeadline::default(),
        }
    }
}

impl FileRest {
    /// Sends a file that is an answer's body.
    pub(crate) fn of_body(file: OwnedFd, length: u64) -> Self {
        FileRest { file, offset: 0, left: length, held: None, _counted: Descriptor::new() }
    }

    /// Returns a file that another worker has handed over. `is_spill`: a temporary file, which counts against the
    /// budget.
    pub(crate) fn handed_over(file: OwnedFd, offset: u64, left: u64, is_spill: bool) -> Self {
        let held = is_spill.then(|| {
            let mut held = Reservation::none(&FILES);
            held.grow_anyway(left as usize);
            held
        });
        FileRest { file, offset, left, held, _counted: Descriptor::new() }
    }

    pub(crate) fn is_spill(&self) -> bool {
        self.held.is_some()
    }
}

impl Output {
    /// Returns the output that another worker has handed over.
    pub(crate) fn of_files(files: Vec<FileRest>, deadline: ProgressDeadline) -> Self {
        Output { files, deadline, ..Output::default() }
    }

    /// Converts everything to files, so that another process can continue.
    pub(crate) fn into_files(mut self) -> io::Result<Vec<FileRest>> {
        let mut files = std::mem::take(&mut self.files);
        if self.sent < self.bytes.len() {
            let bytes = &self.bytes[self.sent..];
            let mut file = memory_file()?;
            file.write_all(bytes)?;
            files.insert(0, FileRest::handed_over(file.into(), 0, bytes.len() as u64, true));
        }
        Ok(files)
    }

    /// Whether everything is sent.
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty() && self.files.is_empty()
    }

    /// Returns the number of waiting bytes.
    pub(crate) fn waiting(&self) -> u64 {
        (self.bytes.len() - self.sent) as u64 + self.files.iter().map(|file| file.left).sum::<u64>()
    }

    /// Whether neither memory nor files have room for more.
    pub(crate) fn is_full(&self) -> bool {
        !(self.files.is_empty() && MEMORY.has_room(LEAST_ROOM) || FILES.has_room(LEAST_ROOM) && has_room_for_file())
    }

    /// Whether the client's deadline for the waiting bytes has passed.
    pub(crate) fn is_stuck(&self) -> bool {
        !self.is_empty() && self.deadline.is_over()
    }

    /// Whether temporary files hold some of the waiting bytes.
    pub(crate) fn has_spilled(&self) -> bool {
        self.files.iter().any(FileRest::is_spill)
    }

    /// Sends `bytes`, and keeps the unsent rest.
    ///
    /// # Errors
    ///
    /// The socket's errors; an error of another kind if the rest cannot be kept.
    pub(crate) fn send_one(&mut self, socket: RawFd, bytes: &[u8]) -> io::Result<()> {
        let mut rest = bytes;
        while self.is_empty() && !rest.is_empty() {
            match socket::send(socket, rest, false) {
                Ok(sent) => rest = &rest[sent..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        self.keep(rest, OutputLimit::Bounded)
    }

    /// Sends `pieces` in order, and keeps the unsent rest.
    ///
    /// # Errors
    ///
    /// As for [`send_one`](Self::send_one).
    pub(crate) fn send<'p>(
        &mut self,
        socket: RawFd,
        pieces: impl IntoIterator<Item = &'p [u8]>,
        limit: OutputLimit,
    ) -> io::Result<()> {
        let mut pieces = pieces.into_iter();
        if !self.is_empty() && !self.flush(socket)? {
            return pieces.try_for_each(|piece| self.keep(piece, limit));
        }
        let mut window = [IoSlice::new(&[]); MOST_PIECES];
        loop {
            let mut count = 0;
            for (place, piece) in window.iter_mut().zip(pieces.by_ref().filter(|piece| !piece.is_empty())) {
                *place = IoSlice::new(piece);
                count += 1;
                if count == MOST_PIECES {
                    break;
                }
            }
            let mut rest = &mut window[..count];
            while !rest.is_empty() {
                let sent = match &rest[..] {
                    [single] => socket::send(socket, single, false),
                    several => socket::send_pieces(socket, several),
                };
                match sent {
                    Ok(sent) => IoSlice::advance_slices(&mut rest, sent),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        rest.iter().try_for_each(|piece| self.keep(piece, limit))?;
                        return pieces.try_for_each(|piece| self.keep(piece, limit));
                    }
                    Err(error) => return Err(error),
                }
            }
            if count < MOST_PIECES {
                return Ok(());
            }
        }
    }

    /// Sends a head, then a file.
    pub(crate) fn send_file(&mut self, socket: RawFd, head: &[u8], rest: FileRest) -> io::Result<()> {
        let sent = if self.is_empty() {
            match socket::send(socket, head, rest.left > 0) {
                Err(error) if is_for_later(&error) => 0,
                sent => sent?,
            }
        } else {
            0
        };
        self.keep(&head[sent..], OutputLimit::Bounded)?;
        if self.is_empty() {
            self.deadline = ProgressDeadline::begin();
        }
        self.files.push(rest);
        self.flush(socket).map(|_| ())
    }

    /// Sends what the socket takes now. True: everything is sent.
    pub(crate) fn flush(&mut self, socket: RawFd) -> io::Result<bool> {
        while self.sent < self.bytes.len() {
            match socket::send(socket, &self.bytes[self.sent..], !self.files.is_empty()) {
                Ok(sent) => self.has_moved(sent),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.forget_sent();
                    return Ok(false);
                }
                Err(error) => return Err(error),
            }
        }
        self.bytes = Vec::new();
        self.sent = 0;
        self.held.shrink_to(0);
        while let Some(rest) = self.files.first_mut() {
            if rest.left == 0 {
                self.files.remove(0);
                continue;
            }
            match socket::send_file(socket, rest.file.as_raw_fd(), rest.offset, rest.left) {
                // The file was truncated while it was sent. Its length was announced, so only a broken connection tells
                // the truth.
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(sent) => {
                    rest.offset += sent as u64;
                    rest.left -= sent as u64;
                    self.deadline.credit(sent as u64);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    fn has_moved(&mut self, sent: usize) {
        self.sent += sent;
        self.deadline.credit(sent as u64);
    }

    /// Keeps bytes behind those that wait.
    fn keep(&mut self, bytes: &[u8], limit: OutputLimit) -> io::Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        if self.is_empty() {
            self.deadline = ProgressDeadline::begin();
        }
        if self.files.is_empty() && self.held.grow(bytes.len()) {
            self.bytes.extend_from_slice(bytes);
            return Ok(());
        }
        self.spill(bytes, limit)
    }

    /// Keeps bytes in a temporary file.
    fn spill(&mut self, bytes: &[u8], limit: OutputLimit) -> io::Result<()> {
        if limit == OutputLimit::Bounded && !FILES.has_room(bytes.len()) {
            let message = format!(
                "an answer that its client does not read was cut off: AnswerFiles, {} bytes for all of a worker's, is \
                 used up",
                FILES.most()
            );
            return Err(io::Error::other(message));
        }
        let failed = |error: io::Error| {
            io::Error::other(format!("an answer was cut off, as it cannot be stored in a temporary file: {error}"))
        };
        let goes_on = self.files.last().is_some_and(|last| last.is_spill() && last.offset + last.left < SEGMENT_BYTES);
        if !goes_on {
            if !has_room_for_file() {
                return Err(failed(io::Error::other(
                    "clients have as many open files as they may; allow more (ulimit -n)",
                )));
            }
            let file = unnamed_file(&std::env::temp_dir()).map_err(failed)?;
            self.files.push(FileRest::handed_over(file.into(), 0, 0, true));
        }
        let Some(last) = self.files.last_mut() else { return Ok(()) };
        socket::write_at(last.file.as_raw_fd(), bytes, last.offset + last.left).map_err(failed)?;
        last.left += bytes.len() as u64;
        if let Some(held) = &mut last.held {
            held.grow_anyway(bytes.len());
        }
        Ok(())
    }

    /// Frees the memory of sent bytes once they are many: with a peer that reads as fast as bytes are added, the rest
    /// may never become empty.
    fn forget_sent(&mut self) {
        if self.sent >= 64 * 1024 && self.sent >= self.bytes.len() / 2 {
            self.bytes.drain(..self.sent);
            self.bytes.shrink_to_fit();
            self.sent = 0;
            self.held.shrink_to(self.bytes.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::unix::net::UnixStream;

    use super::*;

    /// Bytes that do not fit into memory go to files, in order; sent files are deleted.
    #[test]
    fn a_rest_without_room_in_memory_goes_through_files_in_order() {
        MEMORY.limit(4 << 20);
        let (server, mut client) = UnixStream::pair().unwrap();
        server.set_nonblocking(true).unwrap();
        let mut output = Output::default();
        let pieces: Vec<Vec<u8>> = (0..400_u32).map(|n| n.to_le_bytes().repeat(50_000)).collect();
        for piece in &pieces {
            output.send(server.as_raw_fd(), [&piece[..]], OutputLimit::Beyond).unwrap();
        }
        assert!(output.bytes.len() as u64 <= MEMORY.most());
        assert!(output.files.len() >= 2 && output.waiting() > SEGMENT_BYTES, "{}", output.waiting());
        let all = pieces.concat();
        let mut read = vec![0; all.len()];
        let mut at = 0;
        while at < all.len() {
            output.flush(server.as_raw_fd()).unwrap();
            at += client.read(&mut read[at..]).unwrap();
        }
        assert!(read == all);
        assert!(output.flush(server.as_raw_fd()).unwrap() && output.is_empty());
        assert!(output.into_files().unwrap().is_empty());
    }

    #[test]
    fn what_waits_can_be_handed_over_as_files() {
        let (server, mut client) = UnixStream::pair().unwrap();
        server.set_nonblocking(true).unwrap();
        let mut output = Output::default();
        let all = b"0123456789".repeat(100_000);
        output.send_one(server.as_raw_fd(), &all).unwrap();
        let mut output = Output::of_files(output.into_files().unwrap(), ProgressDeadline::begin());
        let mut read = vec![0; all.len()];
        let mut at = 0;
        while at < all.len() {
            output.flush(server.as_raw_fd()).unwrap();
            at += client.read(&mut read[at..]).unwrap();
        }
        assert!(read == all);
    }
}
