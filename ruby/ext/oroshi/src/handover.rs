//! The queue by which workers hand connections over: messages on a pair of unix sockets that all processes share, each
//! with the connection's socket (SCM_RIGHTS) and its state. Any idle worker takes the next one, so no connection waits
//! for a busy worker. The queue survives every worker: the manager holds both ends.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

use crate::connection::Next;
use crate::output::FileRest;
use crate::socket::checked;

/// The work that a connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pending {
    /// Its next request, of which some bytes may be here.
    Request,
    /// A whole request: its head, and the body as a file.
    Whole,
    /// A 503: its request cannot be moved.
    Refusal,
    /// The rest of its answer, then this state.
    Rest(Next),
}

/// The state of a connection in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Note {
    pub(crate) pending: Pending,
    /// The number of its listener, the same in all workers.
    pub(crate) listener: u16,
    /// Whether its socket is open in other processes, so that it must be shut down.
    pub(crate) must_shut: bool,
    /// Whether it had a request.
    pub(crate) has_asked: bool,
    /// Its deadline, in milliseconds of the coarse clock, which all processes share. Moving does not extend it.
    pub(crate) due_ms: u64,
    /// When its request arrived, on the same clock; 0: unknown.
    pub(crate) arrived_ms: u64,
    /// Time left for a body or an answer, in microseconds. Nobody reads it in the queue, so the time stands still
    /// there.
    pub(crate) deadline_left_us: u64,
}

/// A connection that another worker has handed over.
#[derive(Debug)]
pub(crate) struct HandedConnection {
    pub(crate) socket: OwnedFd,
    pub(crate) note: Note,
    /// Bytes of requests that were received.
    pub(crate) input: Vec<u8>,
    /// The rest of its answer, or the received part of its request's body.
    pub(crate) files: Vec<FileRest>,
}

/// Maximum bytes of requests that move with a connection: more than a head, and one read behind it.
pub(crate) const MOST_INPUT: usize = 160 * 1024;
/// Maximum number of files that move with a connection.
const MOST_FILES: usize = 60;
const FIXED_BYTES: usize = 32;
const FILE_BYTES: usize = 17;
const MOST_BYTES: usize = FIXED_BYTES + MOST_FILES * FILE_BYTES + MOST_INPUT;
/// Words of ancillary data: its header, and a descriptor in every half.
const CONTROL_WORDS: usize = 4 + MOST_FILES.div_ceil(2);
/// Size of the queue in bytes as the kernel counts them; `net.core.wmem_max` limits it.
static QUEUE_BYTES: i32 = 4 << 20;

/// Both ends of the queue.
#[derive(Debug)]
pub(crate) struct Queue {
    sending: OwnedFd,
    receiving: OwnedFd,
}

impl Queue {
    /// Creates the queue, before the first fork.
    pub(crate) fn new() -> io::Result<Self> {
        let mut pair: [RawFd; 2] = [-1; 2];
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: room for two descriptors.
        checked(unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, pair.as_mut_ptr()) } as isize)?;
        // SAFETY: descriptors that were just made.
        let [sending, receiving] = pair.map(|number| unsafe { OwnedFd::from_raw_fd(number) });
        // SAFETY: a local of the given size. Without it the queue is shorter, not wrong.
        unsafe {
            let size = size_of::<i32>() as u32;
            let bytes = (&raw const QUEUE_BYTES).cast();
            libc::setsockopt(sending.as_raw_fd(), libc::SOL_SOCKET, libc::SO_SNDBUF, bytes, size);
        }
        Ok(Queue { sending, receiving })
    }

    /// Returns the descriptor that is readable when a connection waits.
    pub(crate) fn number(&self) -> RawFd {
        self.receiving.as_raw_fd()
    }

    /// Puts a connection into the queue. The caller closes its own descriptors.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if the queue is full. After any error the connection is still the caller's alone.
    pub(crate) fn send(&self, socket: RawFd, note: Note, input: &[u8], files: &[FileRest]) -> io::Result<()> {
        if input.len() > MOST_INPUT || files.len() > MOST_FILES {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut bytes = Vec::with_capacity(FIXED_BYTES + files.len() * FILE_BYTES + input.len());
        bytes
            .extend_from_slice(&[pending_byte(note.pending), u8::from(note.must_shut) | u8::from(note.has_asked) << 1]);
        bytes.extend_from_slice(&note.listener.to_le_bytes());
        bytes.extend_from_slice(&(files.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&note.due_ms.to_le_bytes());
        bytes.extend_from_slice(&note.deadline_left_us.to_le_bytes());
        bytes.extend_from_slice(&note.arrived_ms.to_le_bytes());
        let mut descriptors = vec![socket];
        for rest in files {
            bytes.extend_from_slice(&rest.offset.to_le_bytes());
            bytes.extend_from_slice(&rest.left.to_le_bytes());
            bytes.push(u8::from(rest.is_spill()));
            descriptors.push(rest.file.as_raw_fd());
        }
        bytes.extend_from_slice(input);
        send_with_descriptors(self.sending.as_raw_fd(), &bytes, &descriptors)
    }

    /// Waits until there may be room, at most this many milliseconds.
    pub(crate) fn wait_for_room(&self, most_ms: i32) {
        let mut watch = libc::pollfd { fd: self.sending.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
        // SAFETY: one pollfd.
        unsafe { libc::poll(&raw mut watch, 1, most_ms) };
    }

    /// Takes the next connection; `None` if there is none.
    pub(crate) fn receive(&self) -> io::Result<Option<HandedConnection>> {
        let mut bytes = vec![0; MOST_BYTES];
        let (length, descriptors) = match receive_with_descriptors(self.number(), &mut bytes) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            received => received?,
        };
        let lost = || io::Error::other("a connection that another worker handed over was lost: no descriptor is free");
        let mut descriptors = descriptors.into_iter();
        let socket = descriptors.next().ok_or_else(lost)?;
        let odd = || io::Error::from(io::ErrorKind::InvalidData);
        let (fixed, mut rest) = bytes[..length].split_first_chunk::<FIXED_BYTES>().ok_or_else(odd)?;
        let [due_ms, deadline_left_us, arrived_ms] =
            [8, 16, 24].map(|at| u64::from_le_bytes(std::array::from_fn(|byte| fixed[at + byte])));
        let note = Note {
            pending: pending_of(fixed[0]),
            must_shut: fixed[1] & 1 != 0,
            has_asked: fixed[1] & 2 != 0,
            listener: u16::from_le_bytes([fixed[2], fixed[3]]),
            due_ms,
            arrived_ms,
            deadline_left_us,
        };
        let count = u32::from_le_bytes([fixed[4], fixed[5], fixed[6], fixed[7]]);
        let mut files = Vec::new();
        for _ in 0..count {
            let (about, behind) = rest.split_first_chunk::<FILE_BYTES>().ok_or_else(odd)?;
            rest = behind;
            let [offset, left] = [0, 8].map(|at| u64::from_le_bytes(std::array::from_fn(|byte| about[at + byte])));
            let file = descriptors.next().ok_or_else(lost)?;
            files.push(FileRest::handed_over(file, offset, left, about[16] != 0));
        }
        Ok(Some(HandedConnection { socket, note, input: rest.to_vec(), files }))
    }
}

fn pending_byte(pending: Pending) -> u8 {
    match pending {
        Pending::Request => 0,
        Pending::Refusal => 1,
        Pending::Rest(Next::Keep) => 2,
        Pending::Rest(Next::Close | Next::Abort) => 3,
        Pending::Rest(Next::Linger) => 4,
        Pending::Whole => 5,
    }
}

fn pending_of(byte: u8) -> Pending {
    match byte {
        0 => Pending::Request,
        2 => Pending::Rest(Next::Keep),
        3 => Pending::Rest(Next::Close),
        4 => Pending::Rest(Next::Linger),
        5 => Pending::Whole,
        _ => Pending::Refusal,
    }
}

fn send_with_descriptors(socket: RawFd, bytes: &[u8], descriptors: &[RawFd]) -> io::Result<()> {
    let mut control = [0_u64; CONTROL_WORDS];
    let data_bytes = size_of_val(descriptors) as u32;
    let mut piece = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: zeros are a valid msghdr; its pointers are to locals that outlive the call; the control buffer has room
    // for the descriptors that `send` allows, and the alignment of a cmsghdr.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &raw mut piece;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = libc::CMSG_SPACE(data_bytes) as _; // its type depends on the C library
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(data_bytes) as _;
        ptr::copy_nonoverlapping(descriptors.as_ptr().cast::<u8>(), libc::CMSG_DATA(header), data_bytes as usize);
        checked(libc::sendmsg(socket, &raw const message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL))?;
    }
    Ok(())
}

#[allow(clippy::unnecessary_cast, reason = "the type of cmsg_len depends on the C library")]
fn receive_with_descriptors(socket: RawFd, bytes: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut control = [0_u64; CONTROL_WORDS];
    let mut piece = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut descriptors = Vec::new();
    // SAFETY: as above. The kernel writes into the message how much of the control buffer it has filled; the
    // descriptors in it are new ones of this process.
    let length = unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &raw mut piece;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control) as _;
        let length = checked(libc::recvmsg(socket, &raw mut message, libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC))?;
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        if !header.is_null() && (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
            let data = libc::CMSG_DATA(header).cast::<RawFd>();
            let count = ((*header).cmsg_len as usize - libc::CMSG_LEN(0) as usize) / size_of::<RawFd>();
            descriptors.extend((0..count).map(|at| OwnedFd::from_raw_fd(data.add(at).read_unaligned())));
        }
        length
    };
    Ok((length, descriptors))
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Seek as _, Write as _};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_connection_arrives_with_all_that_is_known_of_it() {
        let queue = Queue::new().unwrap();
        assert!(queue.receive().unwrap().is_none());
        let (mut client, server) = UnixStream::pair().unwrap();
        let mut file = crate::request::unnamed_file(&std::env::temp_dir()).unwrap();
        file.write_all(b"0123456789").unwrap();
        let files = [FileRest::handed_over(file.into(), 4, 6, true)];
        let note = Note {
            pending: Pending::Rest(Next::Linger),
            listener: 513,
            must_shut: true,
            has_asked: true,
            due_ms: 1 << 40,
            arrived_ms: 1 << 39,
            deadline_left_us: 77,
        };
        queue.send(server.as_raw_fd(), note, b"GET / HT", &files).unwrap();
        drop((server, files));
        let handed = queue.receive().unwrap().unwrap();
        assert_eq!((handed.note, &handed.input[..]), (note, &b"GET / HT"[..]));
        let rest = &handed.files[0];
        assert_eq!((rest.offset, rest.left, rest.is_spill()), (4, 6, true));
        let mut file = std::fs::File::from(rest.file.try_clone().unwrap());
        file.seek(io::SeekFrom::Start(rest.offset)).unwrap();
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "456789");
        UnixStream::from(handed.socket).write_all(b"answer").unwrap();
        let mut said = String::new();
        client.read_to_string(&mut said).unwrap();
        assert_eq!(said, "answer");
    }

    #[test]
    fn every_errand_is_read_back() {
        let rests = [Next::Keep, Next::Close, Next::Linger].map(Pending::Rest);
        for pending in rests.into_iter().chain([Pending::Request, Pending::Whole, Pending::Refusal]) {
            assert_eq!(pending_of(pending_byte(pending)), pending);
        }
    }

    #[test]
    fn a_full_queue_leaves_connections_where_they_are() {
        let queue = Queue::new().unwrap();
        let (_client, server) = UnixStream::pair().unwrap();
        let note = Note {
            pending: Pending::Request,
            listener: 0,
            must_shut: false,
            has_asked: false,
            due_ms: 0,
            arrived_ms: 0,
            deadline_left_us: 0,
        };
        let input = vec![b'x'; MOST_INPUT];
        let mut sent = 0;
        let error = loop {
            match queue.send(server.as_raw_fd(), note, &input, &[]) {
                Ok(()) => sent += 1,
                Err(error) => break error,
            }
            assert!(sent < 10_000);
        };
        assert!(sent > 0 && error.kind() == io::ErrorKind::WouldBlock, "{sent} {error}");
        let taken = std::iter::from_fn(|| queue.receive().unwrap()).filter(|it| it.input == input).count();
        assert_eq!(taken, sent);
        assert!(queue.send(server.as_raw_fd(), note, &vec![0; MOST_INPUT + 1], &[]).is_err());
    }
}
