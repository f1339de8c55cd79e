//! Collects the body of a request before the application is called: in memory while it is small and there is room
//! (`budget`), else in an unnamed file. So a slow client occupies no worker.

use std::fs::File;
use std::io::{self, Seek as _, SeekFrom, Write as _};
use std::os::fd::{FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use oroshi_http1::{DecodeError, Framing, Limits, RequestDecoder, RequestEvent, RequestHead};

use crate::budget::{BODY_FILES, Descriptor, MEMORY, Reservation, has_room_for_file};
use crate::connection::{Connection, Stage};
use crate::output::FileRest;
use crate::progress_deadline::ProgressDeadline;
use crate::socket::{self, checked};

/// A request whose body is arriving.
#[derive(Debug)]
pub(crate) struct Incoming {
    /// The bytes of its head, to decode again when the body is complete.
    head: Vec<u8>,
    pub(crate) spool: Spool,
}

impl Incoming {
    pub(crate) fn new(head: &[u8], memory_bytes: usize) -> Self {
        Incoming { head: head.to_vec(), spool: Spool::new(memory_bytes) }
    }

    /// Returns the bytes of its head.
    pub(crate) fn head(&self) -> &[u8] {
        &self.head
    }

    /// Returns the bytes of the head, and the collected body as a file, so that another process can continue. `None`
    /// within a chunked body, where a new decoder cannot.
    pub(crate) fn as_file(&mut self, limits: &Limits) -> Option<io::Result<(&[u8], FileRest)>> {
        let (head, _) = self.parts(limits).ok()?;
        let goes_on = matches!(head.framing, Framing::Length(_));
        goes_on.then(|| self.whole_as_file())
    }

    /// Returns the same for a complete body, of any framing.
    pub(crate) fn whole_as_file(&self) -> io::Result<(&[u8], FileRest)> {
        let file = FileRest::of_body(self.spool.as_file()?, self.spool.length);
        Ok((&self.head, file))
    }

    /// Returns the head, and the collected body.
    ///
    /// # Errors
    ///
    /// None in practice, because the head was decoded before. But nothing from the network may cause a panic.
    pub(crate) fn parts(&mut self, limits: &Limits) -> Result<(RequestHead<'_>, &mut Spool), DecodeError> {
        match RequestDecoder::default().decode(limits, &mut &self.head[..])? {
            Some(RequestEvent::Head(head)) => Ok((head, &mut self.spool)),
            _ => Err(DecodeError::BadRequestLine),
        }
    }
}

/// The result of a request's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestStart {
    /// The body is complete, or there is none.
    Whole,
    /// The body is being collected from now on.
    Gathers,
    /// The request is refused with this status.
    Refused(u16),
    /// Nothing can be sent to its client.
    Gone,
}

/// Begins a request: `head_bytes` is its head, followed by `rest`. Changes the connection only if it collects the body.
#[inline]
pub(crate) fn begin(
    connection: &mut Connection,
    head: &RequestHead<'_>,
    head_bytes: &[u8],
    rest: &[u8],
    memory_bytes: usize,
) -> RequestStart {
    let length = match head.framing {
        // No Rack application is a proxy.
        _ if head.method == "CONNECT" => return RequestStart::Refused(405),
        Framing::Length(length) => length,
        Framing::Chunked => u64::MAX,
        _ => 0,
    };
    if length <= rest.len() as u64 && length <= memory_bytes as u64 {
        return RequestStart::Whole;
    }
    if head.framing != Framing::Chunked && length > BODY_FILES.most().max(memory_bytes as u64) {
        // There will never be room for it.
        return RequestStart::Refused(413);
    }
    let asks = head.expect_continue && rest.is_empty() && !connection.was_asked;
    if asks && !ask_for_body(connection) {
        return RequestStart::Gone;
    }
    connection.was_asked = false;
    connection.deadline = ProgressDeadline::begin();
    connection.due_ms = connection.deadline.over_ms();
    connection.stage = Stage::Body(Box::new(Incoming::new(head_bytes, memory_bytes)));
    RequestStart::Gathers
}

/// Asks a client for its body (RFC 9110 section 10.1.1). False: nothing can be sent to it.
fn ask_for_body(connection: &Connection) -> bool {
    const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";
    match socket::send(connection.number(), CONTINUE, false) {
        Ok(sent) => sent == CONTINUE.len(),
        // The client has not read its last answer. It sends the body after a while even unasked.
        Err(error) => socket::is_for_later(&error),
    }
}

/// Why a body could not be collected.
#[derive(Debug)]
pub(crate) enum BodyError {
    /// The client's error.
    Bad(DecodeError),
    /// Our error: the file could not be written.
    Spool(io::Error),
}

/// Collects the body's bytes from `input`. True: the body is complete; the rest of `input` belongs to the next request.
pub(crate) fn gather(
    decoder: &mut RequestDecoder,
    limits: &Limits,
    input: &mut &[u8],
    spool: &mut Spool,
) -> Result<bool, BodyError> {
    loop {
        match decoder.decode(limits, input).map_err(BodyError::Bad)? {
            Some(RequestEvent::Data(data)) => spool.push(data).map_err(BodyError::Spool)?,
            Some(RequestEvent::End) => return Ok(true),
            // Rack's environment has no trailers.
            Some(_) => {}
            None => return Ok(false),
        }
    }
}

/// As [`gather`], but stops before the body's end and before a defect: the serving thread decodes those. True: it has
/// stopped there.
pub(crate) fn gather_up_to_end(
    decoder: &mut RequestDecoder,
    limits: &Limits,
    input: &mut &[u8],
    spool: &mut Spool,
) -> io::Result<bool> {
    loop {
        let (before, at) = (decoder.clone(), *input);
        match decoder.decode(limits, input) {
            Ok(Some(RequestEvent::Data(data))) => spool.push(data)?,
            Ok(Some(RequestEvent::End)) | Err(_) => {
                (*decoder, *input) = (before, at);
                return Ok(true);
            }
            // Rack's environment has no trailers.
            Ok(Some(_)) => {}
            Ok(None) => return Ok(false),
        }
    }
}

/// Returns the bytes behind a body in `input`, whose end the decoder meets next. `None`: that end is malformed.
pub(crate) fn behind_end<'i>(decoder: &RequestDecoder, limits: &Limits, input: &'i [u8]) -> Option<&'i [u8]> {
    let (mut decoder, mut rest) = (decoder.clone(), input);
    let event = decoder.decode(limits, &mut rest);
    matches!(event, Ok(Some(RequestEvent::End))).then_some(rest)
}

/// Advances a decoder within a body by this many bytes. False: the body is no longer than that.
pub(crate) fn skip(decoder: &mut RequestDecoder, limits: &Limits, bytes: u64) -> bool {
    static ANY: [u8; 1 << 16] = [0; 1 << 16];
    let mut left = bytes;
    while left > 0 {
        let mut piece = &ANY[..left.min(ANY.len() as u64) as usize];
        let before = piece.len();
        match decoder.decode(limits, &mut piece) {
            Ok(Some(RequestEvent::Data(_))) if piece.len() < before => left -= (before - piece.len()) as u64,
            _ => return false,
        }
    }
    true
}

/// The store of a collected body.
#[derive(Debug)]
pub(crate) struct Spool {
    memory_bytes: usize,
    memory: Vec<u8>,
    held: Reservation,
    file: Option<File>,
    /// The file's reserved bytes.
    filed: Reservation,
    counted: Option<Descriptor>,
    length: u64,
}

impl Spool {
    pub(crate) fn new(memory_bytes: usize) -> Self {
        Spool {
            memory_bytes,
            memory: Vec::new(),
            held: Reservation::none(&MEMORY),
            file: None,
            filed: Reservation::none(&BODY_FILES),
            counted: None,
            length: 0,
        }
    }

    /// Returns the length.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// Whether this many more bytes have room, in memory or a temporary file.
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        if self.stays_in_memory(bytes) {
            return true;
        }
        let moves = if self.file.is_some() { 0 } else { self.memory.len() };
        BODY_FILES.has_room(bytes + moves) && (self.file.is_some() || has_room_for_file())
    }

    /// Whether this many more bytes can never have room.
    pub(crate) fn is_beyond(&self, bytes: u64) -> bool {
        self.length.saturating_add(bytes) > BODY_FILES.most().max(self.memory_bytes as u64)
    }

    /// Whether the body is in a file.
    pub(crate) fn is_filed(&self) -> bool {
        self.file.is_some()
    }

    fn stays_in_memory(&self, bytes: usize) -> bool {
        self.file.is_none() && self.length + bytes as u64 <= self.memory_bytes as u64 && MEMORY.has_room(bytes)
    }

    /// Returns the whole body, if it is in memory.
    pub(crate) fn memory(&self) -> &[u8] {
        &self.memory
    }

    /// Returns the whole body as a file, at its start.
    fn as_file(&self) -> io::Result<OwnedFd> {
        if let Some(file) = &self.file {
            return Ok(file.try_clone()?.into());
        }
        let mut file = memory_file()?;
        file.write_all(&self.memory)?;
        Ok(file.into())
    }

    /// Returns the file at its start, if the body is in one.
    pub(crate) fn take_file(&mut self) -> io::Result<Option<OwnedFd>> {
        let Some(mut file) = self.file.take() else { return Ok(None) };
        file.seek(SeekFrom::Start(0))?;
        Ok(Some(file.into()))
    }

    /// Continues with a file that another worker has filled, positioned at its end.
    pub(crate) fn adopt(&mut self, file: OwnedFd, length: u64) {
        self.file = Some(file.into());
        self.filed.grow_anyway(length as usize);
        self.counted = Some(Descriptor::new());
        self.length = length;
    }

    /// Takes over a complete body from another worker: copies a small one into memory, keeps a larger one in its file.
    pub(crate) fn take_over(&mut self, body: FileRest) -> io::Result<()> {
        if body.left > self.memory_bytes as u64 {
            self.adopt(body.file, body.left);
            return Ok(());
        }
        let mut bytes = vec![0; body.left as usize];
        File::from(body.file).read_exact_at(&mut bytes, body.offset)?;
        self.push(&bytes)
    }

    fn push(&mut self, data: &[u8]) -> io::Result<()> {
        let stays_in_memory = self.stays_in_memory(data.len());
        self.length += data.len() as u64;
        if stays_in_memory {
            self.held.grow_anyway(data.len());
            self.memory.extend_from_slice(data);
            return Ok(());
        }
        let file = match &mut self.file {
            Some(file) => file,
            empty => {
                let mut file = unnamed_file(&std::env::temp_dir())?;
                file.write_all(&self.memory)?;
                self.filed.grow_anyway(self.memory.len());
                self.memory = Vec::new();
                self.held.shrink_to(0);
                self.counted = Some(Descriptor::new());
                empty.insert(file)
            }
        };
        self.filed.grow_anyway(data.len());
        file.write_all(data)
    }
}

/// Creates an unnamed file in memory.
pub(crate) fn memory_file() -> io::Result<File> {
    // SAFETY: a C string and a flag.
    let made = checked(unsafe { libc::memfd_create(c"oroshi".as_ptr(), libc::MFD_CLOEXEC) } as isize)?;
    // SAFETY: a descriptor that was just made.
    Ok(unsafe { File::from_raw_fd(made as RawFd) })
}

/// Creates a file that nobody else can open and that is gone with its last descriptor.
pub(crate) fn unnamed_file(folder: &Path) -> io::Result<File> {
    let mut path = folder.as_os_str().as_bytes().to_vec();
    path.push(0);
    // SAFETY: a C string.
    let made = unsafe { libc::open(path.as_ptr().cast(), libc::O_TMPFILE | libc::O_RDWR | libc::O_CLOEXEC, 0o600) };
    let number = match checked(made as isize) {
        Ok(number) => number,
        // The file system lacks O_TMPFILE: create a name, and remove it at once.
        Err(_) => {
            path.pop();
            path.extend_from_slice(b"/oroshi-XXXXXX\0");
            // SAFETY: a C string that may be written to.
            let made = unsafe { libc::mkostemp(path.as_mut_ptr().cast(), libc::O_CLOEXEC) };
            let number = checked(made as isize)?;
            // SAFETY: a C string.
            unsafe { libc::unlink(path.as_ptr().cast()) };
            number
        }
    };
    // SAFETY: a descriptor that was just made.
    Ok(File::from(unsafe { OwnedFd::from_raw_fd(number as RawFd) }))
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    const HEAD: &[u8] = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";

    /// A decoder after the head.
    fn decoder(limits: &Limits) -> RequestDecoder {
        let mut decoder = RequestDecoder::default();
        assert!(matches!(decoder.decode(limits, &mut &HEAD[..]), Ok(Some(RequestEvent::Head(_)))));
        decoder
    }

    #[test]
    fn a_body_is_whole_from_its_last_byte_on_and_its_end_stays() {
        let limits = Limits::default();
        let body = b"5\r\n01234\r\n3\r\n567\r\n0\r\nX-A: b\r\n\r\n";
        let bytes = [&body[..], b"GET / HTTP/1.1\r\n"].concat();
        for cut in 0..bytes.len() {
            let (mut decoder, mut spool) = (decoder(&limits), Spool::new(100));
            let mut rest = &bytes[..cut];
            let is_whole = gather_up_to_end(&mut decoder, &limits, &mut rest, &mut spool).unwrap();
            assert_eq!(is_whole, cut >= body.len(), "{cut}");
            // Unused bytes precede the next ones.
            let left = [rest, &bytes[cut..]].concat();
            let mut rest = &left[..];
            assert!(gather_up_to_end(&mut decoder, &limits, &mut rest, &mut spool).unwrap());
            assert_eq!(spool.memory(), b"01234567", "{cut}");
            assert_eq!(behind_end(&decoder, &limits, rest), Some(&bytes[body.len()..]), "{cut}");
            assert!(matches!(gather(&mut decoder, &limits, &mut rest, &mut spool), Ok(true)), "{cut}");
            assert_eq!((rest, spool.length()), (&bytes[body.len()..], 8), "{cut}");
        }
    }

    #[test]
    fn what_is_wrong_with_a_body_is_met_again() {
        let limits = Limits::default();
        let (mut decoder, mut spool) = (decoder(&limits), Spool::new(100));
        let mut rest = &b"2\r\n01\r\nZZ\r\n"[..];
        assert!(gather_up_to_end(&mut decoder, &limits, &mut rest, &mut spool).unwrap());
        assert_eq!((behind_end(&decoder, &limits, rest), spool.memory()), (None, &b"01"[..]));
        assert!(matches!(gather(&mut decoder, &limits, &mut rest, &mut spool), Err(BodyError::Bad(_))));
    }

    #[test]
    fn a_whole_body_of_another_worker_stays_in_its_file_if_it_is_large() {
        for (size, is_filed) in [(0, false), (100, false), (101, true)] {
            let mut filled = Spool::new(50);
            filled.push(&vec![b'x'; size]).unwrap();
            let incoming = Incoming { head: HEAD.to_vec(), spool: filled };
            let (head, body) = incoming.whole_as_file().unwrap();
            assert_eq!(head, HEAD);
            let mut taken = Spool::new(100);
            taken.take_over(body).unwrap();
            assert_eq!((taken.length(), taken.is_filed()), (size as u64, is_filed), "{size}");
            let mut read = taken.memory().to_vec();
            if let Some(file) = taken.take_file().unwrap() {
                File::from(file).read_to_end(&mut read).unwrap();
            }
            assert_eq!(read, vec![b'x'; size]);
        }
    }
}
