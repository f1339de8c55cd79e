//! Bytes of an answer on their way out.
//!
//! What the kernel takes at once goes straight from where it is. The rest of a short write is copied to native memory
//! (or stays in its file) and goes out when epoll says so, while Ruby works on other requests.

use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use crate::socket::{self, MOST_PIECES};

/// What of an answer has not been sent yet.
#[derive(Debug, Default)]
pub(crate) struct Output {
    bytes: Vec<u8>,
    sent: usize,
    file: Option<FileRest>,
}

/// A part of a file that is still to be sent, behind the bytes.
#[derive(Debug)]
pub(crate) struct FileRest {
    pub(crate) file: OwnedFd,
    pub(crate) offset: u64,
    pub(crate) left: u64,
}

impl Output {
    /// Whether everything is sent.
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty() && self.file.is_none()
    }

    /// How many bytes wait in memory.
    pub(crate) fn waiting(&self) -> usize {
        self.bytes.len() - self.sent
    }

    /// Sends `bytes`, and keeps what does not go out at once.
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
        self.bytes.extend_from_slice(rest);
        Ok(())
    }

    /// Sends `pieces`, one behind the other, and keeps what does not go out at once.
    pub(crate) fn send<'p>(&mut self, socket: RawFd, pieces: impl IntoIterator<Item = &'p [u8]>) -> io::Result<()> {
        let mut pieces = pieces.into_iter();
        if !self.is_empty() {
            pieces.for_each(|piece| self.bytes.extend_from_slice(piece));
            return Ok(());
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
                        rest.iter().for_each(|piece| self.bytes.extend_from_slice(piece));
                        pieces.for_each(|piece| self.bytes.extend_from_slice(piece));
                        return Ok(());
                    }
                    Err(error) => return Err(error),
                }
            }
            if count < MOST_PIECES {
                return Ok(());
            }
        }
    }

    /// Sends a head and a file behind it.
    pub(crate) fn send_file(&mut self, socket: RawFd, head: &[u8], rest: FileRest) -> io::Result<()> {
        let sent = if self.is_empty() {
            match socket::send(socket, head, rest.left > 0) {
                Err(error) if is_for_later(&error) => 0,
                sent => sent?,
            }
        } else {
            0
        };
        self.bytes.extend_from_slice(&head[sent..]);
        self.file = Some(rest);
        self.flush(socket).map(|_| ())
    }

    /// Sends what can be sent now. True: everything is out.
    pub(crate) fn flush(&mut self, socket: RawFd) -> io::Result<bool> {
        while self.waiting() > 0 {
            match socket::send(socket, &self.bytes[self.sent..], self.file.is_some()) {
                Ok(sent) => self.sent += sent,
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
        while let Some(rest) = &mut self.file {
            if rest.left == 0 {
                self.file = None;
                break;
            }
            match socket::send_file(socket, rest.file.as_raw_fd(), rest.offset, rest.left) {
                // The file was cut while it was sent. Its length was announced: only a broken connection tells the truth.
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(sent) => {
                    rest.offset += sent as u64;
                    rest.left -= sent as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Gives back the room of what is out, once that is much: a peer that reads as fast as bytes are added may never
    /// let the rest become empty.
    fn forget_sent(&mut self) {
        if self.sent >= 64 * 1024 && self.sent >= self.bytes.len() / 2 {
            self.bytes.drain(..self.sent);
            self.sent = 0;
        }
    }
}

fn is_for_later(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
