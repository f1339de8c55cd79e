//! A server's end of TLS, without buffers while it is idle.
//!
//! rustls's usual connection keeps a buffer of 4 KiB for the next record. This one uses rustls's interface without
//! buffers: records are read into, and written from, a buffer of the thread. The connection keeps bytes only while a
//! record is incomplete, its reader has no room, or the peer does not read.

use std::cell::Cell;
use std::fmt;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::thread::LocalKey;

use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{ConnectionState, EncodeError, EncodeTlsData, EncryptError, InsufficientSizeError};
use rustls::{CommonState, ServerConfig};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::stream::Stream;

/// The most bytes of records that wait to be read. An incomplete message of a handshake must fit, as in rustls itself.
const RECEIVED_BYTES: usize = 64 * 1024;

/// The most bytes of an incomplete record or message after the handshake: those of the longest record (RFC 5246,
/// section 6.2.3, with its head). The messages that a client may still send are far shorter.
const INCOMPLETE_BYTES: usize = (1 << 14) + 2048 + 5;

/// How often one call reads the socket without any bytes for its reader. Then other connections have their turn.
const READS: usize = 4;

/// The most bytes that become records in one write to the socket.
const SENT_BYTES: usize = 64 * 1024;

/// The least room for records of that many bytes: four of them, a fifth for a further part, and what each adds.
const RECORDS_BYTES: usize = SENT_BYTES + 1024;

/// Small slices up to this many bytes become one record.
const GATHERED_BYTES: usize = 16 * 1024;

thread_local! {
    /// The buffer for records, empty while it is in use.
    static RECORDS: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
    /// The buffer for small slices, likewise.
    static GATHERED: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// A buffer of the thread; dropping it gives it back.
struct ThreadBuffer {
    place: &'static LocalKey<Cell<Vec<u8>>>,
    bytes: Vec<u8>,
}

impl ThreadBuffer {
    /// Takes the buffer for records, with room for those of one write.
    fn records() -> Self {
        let mut bytes = RECORDS.take();
        bytes.resize(RECORDS_BYTES, 0);
        ThreadBuffer { place: &RECORDS, bytes }
    }

    /// Takes the buffer for small slices, empty.
    fn gathered() -> Self {
        let mut bytes = GATHERED.take();
        bytes.clear();
        ThreadBuffer { place: &GATHERED, bytes }
    }
}

impl Drop for ThreadBuffer {
    fn drop(&mut self) {
        self.place.set(std::mem::take(&mut self.bytes));
    }
}

/// A server's session over a stream.
pub(crate) struct ServerSession {
    connection: UnbufferedServerConnection,
    socket: Stream,
    /// The name that the client asked for.
    sni: Option<Box<str>>,
    /// Received bytes of records that are incomplete, or whose reader has no room.
    received: Vec<u8>,
    /// Decrypted bytes for which the reader had no room, from `read` on.
    plain: Vec<u8>,
    read: usize,
    /// Records that the socket has not taken, from `sent` on.
    records: Vec<u8>,
    sent: usize,
    /// The peer has said that it sends no more.
    has_end: bool,
    /// The socket has no more bytes.
    is_over: bool,
    /// This end has said that it sends no more.
    is_closed: bool,
    /// How the peer broke the protocol: rustls must not be asked again, as what it has noted of `received` is not valid
    /// any more.
    broken: Option<Box<rustls::Error>>,
}

/// Where a session goes on, once it has processed all complete records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// It needs more bytes of the peer.
    Blocked,
    /// It may send.
    Open,
    /// Both ends have closed it.
    Closed,
}

impl ServerSession {
    /// Begins a session with the bytes that were received so far, the whole ClientHello among them.
    pub(super) fn new(
        config: Arc<ServerConfig>,
        socket: Stream,
        sni: Option<Box<str>>,
        received: Vec<u8>,
    ) -> Result<Self, rustls::Error> {
        Ok(ServerSession {
            connection: UnbufferedServerConnection::new(config)?,
            socket,
            sni,
            received,
            plain: Vec::new(),
            read: 0,
            records: Vec::new(),
            sent: 0,
            has_end: false,
            is_over: false,
            is_closed: false,
            broken: None,
        })
    }

    /// Performs the handshake. If it fails, the peer gets the alert.
    pub(super) async fn shake(&mut self) -> io::Result<()> {
        loop {
            let mut received = std::mem::take(&mut self.received);
            let processed = self.process(&mut received, &mut ReadBuf::new(&mut []));
            self.received = received;
            let flushed = poll_fn(|context| self.poll_send(context)).await;
            let (used, _) = processed.map_err(invalid)?;
            flushed?;
            consume(&mut self.received, if self.has_end { usize::MAX } else { used });
            if !self.connection.is_handshaking() {
                return Ok(());
            }
            let before = self.received.len();
            if before >= RECEIVED_BYTES {
                return Err(too_long());
            }
            let read = poll_fn(|context| {
                let mut buffer = ThreadBuffer::records();
                let count = ready!(poll_fill(&mut self.socket, context, &mut buffer.bytes[..RECEIVED_BYTES - before]))?;
                self.received.extend_from_slice(&buffer.bytes[..count]);
                Poll::Ready(io::Result::Ok(count))
            });
            if read.await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// Returns the facts about the session that rustls has.
    pub(crate) fn common(&self) -> &CommonState {
        &self.connection
    }

    /// Returns the name that the client asked for.
    pub(crate) fn server_name(&self) -> Option<&str> {
        self.sni.as_deref()
    }

    pub(crate) fn socket(&self) -> &Stream {
        &self.socket
    }

    pub(crate) fn socket_mut(&mut self) -> &mut Stream {
        &mut self.socket
    }

    /// Processes received records until the reader has no room, or none is complete. Decrypted bytes go to the reader,
    /// and to `plain` what it has no room for; records for the peer go to `records`. Returns how many bytes were
    /// processed.
    fn process(&mut self, received: &mut [u8], reader: &mut ReadBuf<'_>) -> Result<(usize, Step), rustls::Error> {
        if let Some(error) = &self.broken {
            return Err((**error).clone());
        }
        let processed = self.process_records(received, reader);
        self.broken = processed.as_ref().err().map(|error| Box::new(error.clone()));
        processed
    }

    fn process_records(
        &mut self,
        received: &mut [u8],
        reader: &mut ReadBuf<'_>,
    ) -> Result<(usize, Step), rustls::Error> {
        let mut used = 0;
        loop {
            let status = self.connection.process_tls_records(&mut received[used..]);
            let mut discard = status.discard;
            let step = match status.state {
                Ok(ConnectionState::ReadTraffic(mut traffic)) => {
                    while let Some(record) = traffic.next_record() {
                        let record = record?;
                        discard += record.discard;
                        let now = if self.plain.is_empty() { reader.remaining().min(record.payload.len()) } else { 0 };
                        reader.put_slice(&record.payload[..now]);
                        self.plain.extend_from_slice(&record.payload[now..]);
                    }
                    // The rest waits for another read, so that it takes the memory of records alone.
                    (reader.remaining() == 0 && reader.capacity() > 0).then_some(Step::Open)
                }
                Ok(ConnectionState::EncodeTlsData(data)) => {
                    encode(data, &mut self.records)?;
                    None
                }
                Ok(ConnectionState::TransmitTlsData(data)) => {
                    data.done();
                    None
                }
                Ok(ConnectionState::PeerClosed) => {
                    self.has_end = true;
                    None
                }
                Ok(ConnectionState::Closed) => Some(Step::Closed),
                Ok(ConnectionState::WriteTraffic(_)) => Some(Step::Open),
                Ok(ConnectionState::BlockedHandshake) => Some(Step::Blocked),
                // Early data is refused, and no other state exists.
                Ok(_) => return Err(rustls::Error::General("unexpected state of TLS".to_owned())),
                Err(error) => {
                    self.take_alert(&mut received[used + discard..]);
                    return Err(error);
                }
            };
            used += discard;
            if let Some(step) = step {
                return Ok((used, step));
            }
        }
    }

    /// Takes what tells the peer about an error: records that were made before it, and the alert.
    fn take_alert(&mut self, received: &mut [u8]) {
        // Not further than the alert: rustls would go on with what is received.
        while self.connection.wants_write()
            && let Ok(ConnectionState::EncodeTlsData(data)) = self.connection.process_tls_records(received).state
        {
            let before = self.records.len();
            if encode(data, &mut self.records).is_err() || is_alert(&self.records[before..]) {
                return;
            }
        }
    }

    /// Sends the records that wait.
    fn poll_send(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.sent < self.records.len() {
            let count = ready!(Pin::new(&mut self.socket).poll_write(context, &self.records[self.sent..]))?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.sent += count;
        }
        (self.records, self.sent) = (Vec::new(), 0);
        Poll::Ready(Ok(()))
    }

    /// Sends what the socket takes at once. No waker is registered: the socket has one place for it, which is the
    /// writer's.
    fn try_send(&mut self) {
        while self.sent < self.records.len() {
            match self.socket.try_write(&self.records[self.sent..]) {
                Ok(count @ 1..) => self.sent += count,
                // A later write meets the error again.
                _ => return,
            }
        }
        (self.records, self.sent) = (Vec::new(), 0);
    }

    /// Reads decrypted bytes. None are the end.
    pub(crate) fn poll_read(&mut self, context: &mut Context<'_>, reader: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if reader.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        if self.give(reader) {
            return Poll::Ready(Ok(()));
        }
        if let Some(error) = &self.broken {
            return Poll::Ready(Err(invalid((**error).clone())));
        }
        let mut buffer = ThreadBuffer::records();
        let mut filled = self.received.len();
        buffer.bytes[..filled].copy_from_slice(&self.received);
        let polled = self.poll_read_into(context, reader, &mut buffer.bytes[..RECEIVED_BYTES], &mut filled);
        // However the read ends: rustls has noted places in these bytes, and must find the same ones at its next call.
        // After an error or the peer's end it looks at none any more.
        let kept = if self.broken.is_some() || self.has_end { 0 } else { filled };
        self.keep(&buffer.bytes[..kept]);
        polled
    }

    /// As [`poll_read`](Self::poll_read), with the first `filled` bytes of the buffer, which are received and not
    /// processed.
    fn poll_read_into(
        &mut self,
        context: &mut Context<'_>,
        reader: &mut ReadBuf<'_>,
        buffer: &mut [u8],
        filled: &mut usize,
    ) -> Poll<io::Result<()>> {
        let before = reader.filled().len();
        // Bytes of an earlier read are processed before the socket is read.
        let mut is_new = *filled > 0;
        for read in 0.. {
            if is_new {
                let processed = self.process(&mut buffer[..*filled], reader);
                // An answer of TLS itself. If the socket does not take it now, a later write sends it.
                self.try_send();
                let used = match processed {
                    Ok((used, _)) => used,
                    // Bytes before the damage come first, the error comes with the next read.
                    Err(_) if reader.filled().len() > before => return Poll::Ready(Ok(())),
                    Err(error) => return Poll::Ready(Err(invalid(error))),
                };
                if used > 0 {
                    buffer.copy_within(used..*filled, 0);
                    *filled -= used;
                }
                if (used == 0 && *filled > INCOMPLETE_BYTES) || *filled == buffer.len() {
                    let error = rustls::Error::InvalidMessage(rustls::InvalidMessage::HandshakePayloadTooLarge);
                    self.broken = Some(Box::new(error.clone()));
                    if reader.filled().len() == before {
                        return Poll::Ready(Err(invalid(error)));
                    }
                }
            }
            let has_more = reader.filled().len() > before;
            if has_more || self.has_end || self.is_over {
                let is_cut = self.is_over && !self.has_end && !has_more;
                return Poll::Ready(if is_cut { Err(cut_off()) } else { Ok(()) });
            }
            if read == READS {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            let count = ready!(poll_fill(&mut self.socket, context, &mut buffer[*filled..]))?;
            self.is_over = count == 0;
            *filled += count;
            is_new = count > 0;
        }
        Poll::Pending
    }

    /// Gives decrypted bytes that wait. Returns whether there were some.
    fn give(&mut self, reader: &mut ReadBuf<'_>) -> bool {
        let waiting = &self.plain[self.read..];
        if waiting.is_empty() {
            return false;
        }
        let count = waiting.len().min(reader.remaining());
        reader.put_slice(&waiting[..count]);
        self.read += count;
        if self.read == self.plain.len() {
            (self.plain, self.read) = (Vec::new(), 0);
        }
        true
    }

    /// Keeps received bytes for the next read.
    fn keep(&mut self, received: &[u8]) {
        self.received.clear();
        self.received.extend_from_slice(received);
        trim(&mut self.received);
    }

    /// Makes the session ready to encrypt.
    fn open(&mut self) -> io::Result<Step> {
        let mut received = std::mem::take(&mut self.received);
        let processed = self.process(&mut received, &mut ReadBuf::new(&mut []));
        self.received = received;
        let (used, step) = processed.map_err(invalid)?;
        consume(&mut self.received, if self.has_end { usize::MAX } else { used });
        Ok(step)
    }

    /// Writes bytes of these slices. Returns how many became records; the session keeps the records that the socket
    /// does not take. Pending while it has some of an earlier call.
    pub(crate) fn poll_write(&mut self, context: &mut Context<'_>, slices: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        ready!(self.poll_send(context))?;
        let step = if self.is_closed { Ok(Step::Closed) } else { self.open() };
        if step.is_err() {
            // The alert.
            self.try_send();
        }
        if step? != Step::Open {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let mut buffer = ThreadBuffer::records();
        let (taken, filled) = self.encrypt_all(slices, &mut buffer.bytes)?;
        if !self.records.is_empty() {
            // Records of TLS itself come first.
            self.records.extend_from_slice(&buffer.bytes[..filled]);
            let _ = self.poll_send(context)?;
            return Poll::Ready(Ok(taken));
        }
        let mut sent = 0;
        while sent < filled {
            match Pin::new(&mut self.socket).poll_write(context, &buffer.bytes[sent..filled]) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(count)) => sent += count,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => break,
            }
        }
        self.records.extend_from_slice(&buffer.bytes[sent..filled]);
        Poll::Ready(Ok(taken))
    }

    /// Encrypts the first bytes of these slices. Returns how many, and how many bytes their records have.
    ///
    /// The peer counts records, so each encrypted one must be sent. If a later slice fails, the records before it are
    /// returned, and the next call fails.
    fn encrypt_all(&mut self, slices: &[IoSlice<'_>], buffer: &mut Vec<u8>) -> io::Result<(usize, usize)> {
        let (mut taken, mut filled) = (0, 0);
        let mut gathered = ThreadBuffer::gathered();
        for (index, slice) in slices.iter().enumerate() {
            let piece = &slice[..slice.len().min(SENT_BYTES - taken - gathered.bytes.len())];
            let is_last = index + 1 == slices.len();
            // A single slice, and a large one, is not copied.
            let is_alone = is_last && gathered.bytes.is_empty();
            let is_copied = !is_alone && gathered.bytes.len() + piece.len() <= GATHERED_BYTES;
            if is_copied {
                gathered.bytes.extend_from_slice(piece);
                if !is_last {
                    continue;
                }
            }
            let direct = if is_copied { &[] } else { piece };
            for part in [&gathered.bytes[..], direct] {
                match self.encrypt(part, buffer, filled) {
                    Ok(count) => (taken, filled) = (taken + part.len(), filled + count),
                    Err(error) if filled == 0 => return Err(error),
                    Err(_) => return Ok((taken, filled)),
                }
            }
            gathered.bytes.clear();
        }
        Ok((taken, filled))
    }

    /// Encrypts a piece into the buffer from `filled` on. Returns how many bytes that took.
    fn encrypt(&mut self, piece: &[u8], buffer: &mut Vec<u8>, filled: usize) -> io::Result<usize> {
        if piece.is_empty() {
            return Ok(0);
        }
        loop {
            let status = self.connection.process_tls_records(&mut self.received);
            let Ok(ConnectionState::WriteTraffic(mut traffic)) = status.state else {
                return Err(io::ErrorKind::BrokenPipe.into());
            };
            match traffic.encrypt(piece, &mut buffer[filled..]) {
                Ok(count) => return Ok(count),
                Err(EncryptError::InsufficientSize(InsufficientSizeError { required_size })) => {
                    buffer.resize(filled + required_size, 0);
                }
                Err(error) => return Err(io::Error::other(error)),
            }
        }
    }

    /// Sends all records.
    pub(crate) fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_send(context))?;
        Pin::new(&mut self.socket).poll_flush(context)
    }

    /// Tells the peer that no more is sent, and ends the socket's sending side.
    pub(crate) fn poll_shutdown(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.is_closed {
            ready!(self.poll_send(context))?;
            self.is_closed = true;
            // If it failed, there is nothing to say.
            if self.open().is_ok_and(|step| step == Step::Open)
                && let Ok(ConnectionState::WriteTraffic(mut traffic)) =
                    self.connection.process_tls_records(&mut self.received).state
            {
                let mut alert = [0; 256];
                let count = traffic.queue_close_notify(&mut alert).map_err(io::Error::other)?;
                self.records.extend_from_slice(&alert[..count]);
            }
        }
        ready!(self.poll_send(context))?;
        match ready!(Pin::new(&mut self.socket).poll_shutdown(context)) {
            // The peer was faster.
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Poll::Ready(Ok(())),
            ended => Poll::Ready(ended),
        }
    }
}

impl fmt::Debug for ServerSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerSession").field("socket", &self.socket).finish_non_exhaustive()
    }
}

/// Reads from the socket. Zero is its end.
pub(super) fn poll_fill(socket: &mut Stream, context: &mut Context<'_>, room: &mut [u8]) -> Poll<io::Result<usize>> {
    let mut buffer = ReadBuf::new(room);
    ready!(Pin::new(socket).poll_read(context, &mut buffer))?;
    Poll::Ready(Ok(buffer.filled().len()))
}

/// Whether a record is an alert: by its type, or, encrypted in TLS 1.3, by its length of two bytes, a type and a tag.
fn is_alert(record: &[u8]) -> bool {
    matches!((record.first(), record.len()), (Some(21), _) | (Some(23), 24))
}

/// Appends a record of the session itself.
fn encode(mut data: EncodeTlsData<'_, ServerConnectionData>, records: &mut Vec<u8>) -> Result<(), rustls::Error> {
    let before = records.len();
    loop {
        match data.encode(&mut records[before..]) {
            Ok(_) | Err(EncodeError::AlreadyEncoded) => return Ok(()),
            // It tells how much room it needs.
            Err(EncodeError::InsufficientSize(InsufficientSizeError { required_size })) => {
                records.resize(before + required_size, 0);
            }
        }
    }
}

/// Removes processed bytes.
fn consume(received: &mut Vec<u8>, used: usize) {
    received.drain(..used.min(received.len()));
    trim(received);
}

/// Frees memory that the bytes do not need: an empty buffer has none.
fn trim(received: &mut Vec<u8>) {
    if received.is_empty() {
        *received = Vec::new();
    } else if received.capacity() > 4096 + 2 * received.len() {
        received.shrink_to_fit();
    }
}

pub(super) fn invalid(error: rustls::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

fn too_long() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "a message of TLS is longer than 64 KiB")
}

/// The socket ended, and the peer did not say so before: somebody may have cut the rest off (RFC 8446, section 6.1).
fn cut_off() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the peer closed the connection without the end of TLS")
}
