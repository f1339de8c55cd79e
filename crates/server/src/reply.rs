//! The writing side of an exchange: the answer, whole or piece by piece.

mod head;

use std::fmt;
use std::future::poll_fn;
use std::task::{Context, Poll};

use oroshi_core::SpareBuffer;
use oroshi_http1::encode;
use oroshi_http1::{Headers, RequestHead, Version};
use oroshi_net::PeerState;

use crate::error::Error;
use crate::transport::{Transport, Unread};
use crate::wire::Wire;
use head::{FinalHead, Transfer, has_no_body, write_fields, write_head};
pub(crate) use head::{is_managed, unsendable};

/// The answer to a request.
///
/// The framing follows from the length: a known length gives `Content-Length`; otherwise the body is chunked, or, for
/// an HTTP/1.0 client, ends with the connection. Over HTTP/2 the stream frames the body. `Connection` and `Date` are
/// set here too.
///
/// Output is sent once the handler waits for anything (or has written much), so a head and a small body leave in one
/// write. [`flush`](Self::flush) sends it earlier.
pub struct Reply<'a> {
    transport: Transport<'a>,
    client: Version,
    /// Whether the method was HEAD: the answer is as for GET, without a body.
    head_only: bool,
    /// Whether the method was CONNECT: the client takes the bytes behind a 2xx for the tunnel, whatever the fields say.
    connect: bool,
    state: State,
    /// The status of the last head.
    status: Option<u16>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Untouched,
    /// The head is written, and this is the framing of the body.
    Body(Transfer),
    Complete,
    /// A write was dropped halfway, so later bytes would be misplaced.
    Broken,
}

impl<'a> Reply<'a> {
    pub(crate) fn new(transport: Transport<'a>, head: &RequestHead<'_>) -> Self {
        let (head_only, mut connect) = (head.method == "HEAD", head.method == "CONNECT");
        let progress = transport.progress();
        match transport {
            // A client that requests a tunnel may already have sent bytes for it, which are no request, whatever they
            // look like.
            Transport::Http1(_) => progress.close.set(!head.keep_alive || connect),
            Transport::Http2(stream) => {
                progress.close.set(false);
                connect = stream.is_tunnel();
            }
        }
        progress.answered.set(false);
        Reply { transport, client: head.version, head_only, connect, state: State::Untouched, status: None }
    }

    /// Creates an answer to a refused request.
    pub(crate) fn to_nobody(wire: &'a Wire) -> Self {
        wire.progress.answered.set(false);
        Reply {
            transport: Transport::Http1(wire),
            client: Version::Http11,
            head_only: false,
            connect: false,
            state: State::Untouched,
            status: None,
        }
    }

    /// Answers with a complete message. The fields must not hold `Connection`, `Content-Length` or `Transfer-Encoding`.
    /// A HEAD request gets the body's length, but not the body.
    ///
    /// # Errors
    ///
    /// [`Error::Header`] and [`Error::Misuse`] when the answer is invalid: nothing was written then, and another answer
    /// can be given. Otherwise the connection broke.
    pub async fn send<'f>(
        &mut self,
        status: u16,
        fields: impl IntoIterator<Item = (&'f str, &'f [u8])>,
        body: &[u8],
    ) -> Result<(), Error> {
        if has_no_body(status) && !body.is_empty() {
            return Err(NO_BODY);
        }
        self.start(status, fields, Some(body.len() as u64), self.closes())?;
        match (self.state, self.transport) {
            (State::Body(Transfer::Discard), _) => {}
            (_, Transport::Http1(_)) => self.write(body).await?,
            // The head has ended the stream if there is no body.
            (_, Transport::Http2(stream)) => {
                self.state = State::Broken;
                stream.write(body, true).await?;
            }
        }
        self.state = State::Complete;
        Ok(())
    }

    /// Answers with an encoded message, head and body. The caller is responsible for its framing, also for HEAD and
    /// HTTP/1.0 clients (`Connection: keep-alive`), and for `Date`. The connection closes afterwards if
    /// [`closes`](Self::closes) says so, even if the message does not.
    ///
    /// # Errors
    ///
    /// [`Error::Misuse`] when an answer has begun, or over HTTP/2; otherwise the connection broke.
    pub async fn send_raw(&mut self, message: &[u8]) -> Result<(), Error> {
        self.untouched()?;
        let Transport::Http1(wire) = self.transport else {
            return Err(Error::Misuse("a message in the form of HTTP/1.1 answers no request of HTTP/2"));
        };
        wire.progress.close.set(self.closes());
        wire.progress.answered.set(true);
        self.state = State::Broken;
        wire.write(message).await?;
        self.state = State::Complete;
        Ok(())
    }

    /// As [`send_raw`](Self::send_raw), over HTTP/2: answers with an encoded head, and a body. The caller is
    /// responsible for the fields, `Date` and `Content-Length` among them, and for an empty body where the method or
    /// the status has none.
    ///
    /// # Errors
    ///
    /// [`Error::Misuse`] when an answer has begun, or over HTTP/1; otherwise the connection broke.
    pub async fn send_encoded(&mut self, head: &oroshi_http2::EncodedResponse, body: &[u8]) -> Result<(), Error> {
        self.untouched()?;
        let Transport::Http2(stream) = self.transport else {
            return Err(Error::Misuse("a head in the form of HTTP/2 answers no request of HTTP/1"));
        };
        stream.progress.answered.set(true);
        self.state = State::Broken;
        stream.encoded_head(head, body.is_empty())?;
        stream.write(body, true).await?;
        self.state = State::Complete;
        Ok(())
    }

    /// Begins an answer; [`write`](Self::write) adds its body and [`finish`](Self::finish) ends it. `length` is the
    /// body's length in bytes, if known. Fields as for [`send`](Self::send).
    ///
    /// # Errors
    ///
    /// As for `send`.
    pub fn begin<'f>(
        &mut self,
        status: u16,
        fields: impl IntoIterator<Item = (&'f str, &'f [u8])>,
        length: Option<u64>,
    ) -> Result<(), Error> {
        // The handler may still read the rest of the request's body during the answer.
        self.start(status, fields, length, self.must_close())
    }

    /// Begins an answer that is forwarded from another server: as [`begin`](Self::begin), with that server's reason,
    /// and with field lines that http1 has parsed. `lines` writes them unchanged, each with its CRLF, omits those that
    /// [`send`](Self::send) would refuse, and returns whether a `Date` is among them. A missing `Date` is added
    /// whatever the settings (RFC 9110, section 6.6.1). For a HEAD request `length` is the value of `Content-Length`,
    /// if any.
    ///
    /// # Errors
    ///
    /// [`Error::Misuse`] as for `send`: nothing was written then.
    pub fn relay(
        &mut self,
        status: u16,
        reason: &[u8],
        length: Option<u64>,
        lines: impl FnOnce(&mut Vec<u8>) -> bool,
    ) -> Result<(), Error> {
        let transfer = self.transfer(status, length)?;
        match self.transport {
            Transport::Http1(wire) => {
                let head = FinalHead { client: self.client, transfer, length, close: self.must_close(), date: true };
                head.write(wire, status, Some(reason), |out| Ok(lines(out)))?;
            }
            Transport::Http2(stream) => {
                let mut written = SpareBuffer::take();
                lines(&mut written);
                let fields = Headers::from_checked_lines(&written).iter().map(|field| (field.name, field.value));
                stream.head(status, fields, transfer.announced(length), true, transfer.is_over())?;
            }
        }
        self.note_start(status, transfer);
        Ok(())
    }

    fn start<'f>(
        &mut self,
        status: u16,
        fields: impl IntoIterator<Item = (&'f str, &'f [u8])>,
        length: Option<u64>,
        close: bool,
    ) -> Result<(), Error> {
        let transfer = self.transfer(status, length)?;
        let date = self.transport.core().settings.date;
        match self.transport {
            Transport::Http1(wire) => {
                let head = FinalHead { client: self.client, transfer, length, close, date };
                head.write(wire, status, None, |out| write_fields(out, fields))?;
            }
            Transport::Http2(stream) => {
                stream.head(status, fields, transfer.announced(length), date, transfer.is_over())?;
            }
        }
        self.note_start(status, transfer);
        Ok(())
    }

    /// Returns the framing of an answer's body.
    fn transfer(&self, status: u16, length: Option<u64>) -> Result<Transfer, Error> {
        self.untouched()?;
        if status < 200 {
            return Err(Error::Misuse("an answer needs a final status, 200 to 999"));
        }
        if self.connect && status < 300 {
            return Err(Error::Misuse("2xx answers CONNECT with a tunnel, which an upgrade gives"));
        }
        Ok(match length {
            _ if has_no_body(status) => Transfer::None,
            _ if self.head_only => Transfer::Discard,
            Some(length) => Transfer::Length(length),
            None => match self.client {
                Version::Http10 => Transfer::UntilClose,
                Version::Http11 => Transfer::Chunked,
                Version::Http2 => Transfer::UntilEnd,
            },
        })
    }

    fn note_start(&mut self, status: u16, transfer: Transfer) {
        self.transport.progress().answered.set(true);
        self.state = State::Body(transfer);
        self.status = Some(status);
    }

    /// Writes a piece of the body. For a HEAD request it is discarded. Waits while the peer does not keep up.
    ///
    /// If the piece is larger than 16 KiB, dropping the call before its end cuts the answer off.
    ///
    /// # Errors
    ///
    /// [`Error::Misuse`] when no answer was begun or the piece exceeds its length; otherwise the connection broke.
    pub async fn write(&mut self, piece: &[u8]) -> Result<(), Error> {
        let Some((transfer, after)) = self.begin_piece(piece)? else { return Ok(()) };
        match self.transport {
            Transport::Http1(wire) => {
                wire.add(piece).await?;
                self.end_piece(transfer, after);
                wire.relieve().await
            }
            Transport::Http2(stream) => {
                stream.write(piece, false).await?;
                self.end_piece(transfer, after);
                Ok(())
            }
        }
    }

    /// Returns a piece's framing, and the state after it; `None` if it is not sent.
    fn begin_piece(&mut self, piece: &[u8]) -> Result<Option<(Transfer, Transfer)>, Error> {
        let State::Body(transfer) = self.state else { return Err(NOT_BEGUN) };
        if piece.is_empty() || transfer == Transfer::Discard {
            return Ok(None);
        }
        let after = match transfer {
            Transfer::None => return Err(NO_BODY),
            Transfer::Length(left) => match left.checked_sub(piece.len() as u64) {
                Some(left) => Transfer::Length(left),
                None => return Err(Error::Misuse("the body is longer than was announced")),
            },
            other => other,
        };
        self.state = State::Broken;
        if transfer == Transfer::Chunked {
            let head = encode::ChunkHead::new(piece.len());
            self.transport.wire().append(|out| out.extend_from_slice(head.as_bytes()));
        }
        Ok(Some((transfer, after)))
    }

    fn end_piece(&mut self, transfer: Transfer, after: Transfer) {
        if transfer == Transfer::Chunked {
            self.transport.wire().append(|out| out.extend_from_slice(encode::CHUNK_END));
        }
        self.state = State::Body(after);
    }

    /// Writes a piece of the body without waiting, for a caller that cannot keep the piece: buffers what the peer does
    /// not take. Call [`poll_room`](Self::poll_room) before more, so that the buffer stays small.
    ///
    /// # Errors
    ///
    /// As for `write`.
    pub fn push(&mut self, context: &mut Context<'_>, piece: &[u8]) -> Result<(), Error> {
        let Some((transfer, after)) = self.begin_piece(piece)? else { return Ok(()) };
        match self.transport {
            Transport::Http1(wire) => wire.take_in(context, piece)?,
            Transport::Http2(stream) => stream.push(piece)?,
        }
        self.end_piece(transfer, after);
        Ok(())
    }

    /// Ready when the peer keeps up: at most 64 KiB are buffered.
    ///
    /// # Errors
    ///
    /// When the connection broke, or the peer does not read.
    pub fn poll_room(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        match self.transport {
            Transport::Http1(wire) => wire.poll_relieve(context),
            Transport::Http2(stream) => stream.poll_room(context),
        }
    }

    /// Ready when the peer has closed its sending side, is gone, or has sent more. For handlers that wait for something
    /// else, and want to stop when nobody reads. Reads nothing: a next request stays in the socket, and hides a close
    /// behind it. Call it only after the request's body was read to its end, and not after it was ready.
    ///
    /// Never ready over HTTP/2, whose handlers are dropped when the peer resets the stream or is gone.
    pub fn poll_peer(&mut self, context: &mut Context<'_>) -> Poll<PeerState> {
        match self.transport {
            Transport::Http1(wire) => wire.poll_peer(context),
            Transport::Http2(_) => Poll::Pending,
        }
    }

    /// Waits until the kernel has all output so far; over HTTP/2, until the connection's output has it.
    ///
    /// # Errors
    ///
    /// When the connection broke.
    pub async fn flush(&mut self) -> Result<(), Error> {
        match self.transport {
            Transport::Http1(wire) => wire.flush().await,
            Transport::Http2(stream) => poll_fn(|context| stream.poll_sent(context)).await,
        }
    }

    /// Ends an answer that was begun.
    ///
    /// # Errors
    ///
    /// [`Error::Misuse`] when none was begun, or when its body is shorter than announced.
    pub fn finish(&mut self) -> Result<(), Error> {
        self.finish_with([])
    }

    /// Ends an answer with trailer fields. They are sent if the body is chunked, or over HTTP/2 if the answer may have
    /// a body. They are omitted otherwise, so nothing important may be in them alone.
    ///
    /// # Errors
    ///
    /// As for [`finish`](Self::finish), and [`Error::Header`] for an invalid field.
    pub fn finish_with<'f>(&mut self, trailers: impl IntoIterator<Item = (&'f str, &'f [u8])>) -> Result<(), Error> {
        let State::Body(transfer) = self.state else { return Err(NOT_BEGUN) };
        match (transfer, self.transport) {
            (Transfer::None | Transfer::Discard, _) => {}
            (Transfer::Length(0) | Transfer::UntilEnd, Transport::Http2(stream)) => stream.finish(trailers)?,
            (Transfer::Length(0) | Transfer::UntilClose | Transfer::UntilEnd, _) => {}
            (Transfer::Length(_), _) => return Err(Error::Misuse("the body is shorter than was announced")),
            (Transfer::Chunked, _) => {
                let mut current = "";
                let named = trailers.into_iter().inspect(|(name, _)| current = name);
                self.transport
                    .wire()
                    .append(|out| encode::last_chunk(out, named))
                    .map_err(|error| unsendable(error, current))?;
            }
        }
        self.state = State::Complete;
        Ok(())
    }

    /// Sends an interim answer before the final one, such as 103 with `Link` fields; 100 only if the client waits for
    /// it. HTTP/1.0 clients get none, because they do not know these.
    ///
    /// # Errors
    ///
    /// [`Error::Misuse`] when the status is not 100 to 199 without 101, or the final answer has begun;
    /// [`Error::Header`].
    pub fn inform<'f>(
        &mut self,
        status: u16,
        fields: impl IntoIterator<Item = (&'f str, &'f [u8])>,
    ) -> Result<(), Error> {
        self.untouched()?;
        if !(100..200).contains(&status) || status == 101 {
            return Err(Error::Misuse("an interim answer has a status of 100 to 199, and is not 101"));
        }
        let is_wanted = status != 100 || self.transport.progress().expecting.replace(false);
        if self.client == Version::Http10 || !is_wanted {
            return Ok(());
        }
        match self.transport {
            Transport::Http1(wire) => write_head(wire, status, None, |out| write_fields(out, fields), |_, _| ()),
            Transport::Http2(stream) => stream.inform(status, fields),
        }
    }

    /// Gives the answer up, over HTTP/2 by a reset of the stream with this code, as a gateway passes one on. The
    /// handler then returns [`Error::Cut`], with which a connection of HTTP/1 closes.
    pub fn reset(&mut self, code: oroshi_http2::ErrorCode) {
        if let Transport::Http2(stream) = self.transport {
            stream.reset(code);
        }
        self.state = State::Broken;
    }

    /// Closes the connection after this answer, which announces it. Call it before the answer begins. Over HTTP/2 the
    /// connection takes no more requests then, and closes after its last answer.
    pub fn close(&mut self) {
        self.transport.progress().close.set(true);
    }

    /// Whether the connection would close after an answer sent now: the client asked for it, [`close`](Self::close) was
    /// called, a shutdown has begun, or too much of the request's body is unread.
    pub fn closes(&self) -> bool {
        let core = self.transport.core();
        let too_much = matches!(self.transport.progress().unread.get(), Unread::Bytes(length) if length > core.settings.drain_bytes);
        too_much || self.must_close()
    }

    fn must_close(&self) -> bool {
        // A client that waits for `100 Continue` may or may not send its body after an answer.
        let progress = self.transport.progress();
        progress.close.get() || self.transport.core().closing.get() || progress.expecting.get()
    }

    /// Returns the status of the begun answer; `None` before that, and after [`send_raw`](Self::send_raw) and an
    /// upgrade.
    pub fn status(&self) -> Option<u16> {
        self.status
    }

    /// Whether an answer was begun.
    pub fn is_begun(&self) -> bool {
        self.state != State::Untouched
    }

    /// Whether the answer is complete.
    pub fn is_complete(&self) -> bool {
        self.state == State::Complete
    }

    /// Whether only the end of the connection ends the body.
    pub(crate) fn ends_with_connection(&self) -> bool {
        self.state == State::Body(Transfer::UntilClose)
    }

    /// Writes the head of an answer after which the connection is no longer HTTP. This type does not handle the tunnel.
    pub(crate) fn begin_tunnel<'f>(
        &mut self,
        status: u16,
        fields: impl IntoIterator<Item = (&'f str, &'f [u8])>,
    ) -> Result<(), Error> {
        self.untouched()?;
        match self.transport {
            Transport::Http1(wire) => write_head(
                wire,
                status,
                None,
                |out| write_fields(out, fields),
                |out, _| {
                    if status == 101 {
                        out.extend_from_slice(b"Connection: upgrade\r\n");
                    }
                },
            )?,
            Transport::Http2(stream) => {
                // RFC 8441 section 5: these fields belong to the handshake of HTTP/1.1.
                let is_kept = |name: &str| !name.eq_ignore_ascii_case("sec-websocket-accept");
                let fields = fields.into_iter().filter(|(name, _)| is_kept(name));
                stream.head(if status == 101 { 200 } else { status }, fields, None, false, false)?;
            }
        }
        self.transport.progress().answered.set(true);
        self.state = State::Broken;
        Ok(())
    }

    /// Writes the head of an answer whose body another owner writes. Returns whether that body is chunked.
    pub(crate) fn begin_detached<'f>(
        &mut self,
        status: u16,
        fields: impl IntoIterator<Item = (&'f str, &'f [u8])>,
    ) -> Result<bool, Error> {
        if self.head_only || self.connect {
            return Err(Error::Misuse("a body without end answers neither HEAD nor CONNECT"));
        }
        if has_no_body(status) {
            return Err(NO_BODY);
        }
        self.start(status, fields, None, true)?;
        let chunked = self.state == State::Body(Transfer::Chunked);
        self.state = State::Broken;
        Ok(chunked)
    }

    /// Notes that the head of a handed-off connection was sent.
    pub(crate) fn tunnel_begun(&mut self) {
        self.state = State::Complete;
    }

    fn untouched(&self) -> Result<(), Error> {
        match self.state {
            State::Untouched => Ok(()),
            _ => Err(Error::Misuse("the request was answered already")),
        }
    }
}

impl fmt::Debug for Reply<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Reply")
            .field("client", &self.client)
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

const NO_BODY: Error = Error::Misuse("a 204 or a 304 has no body");
const NOT_BEGUN: Error = Error::Misuse("no answer is begun and unfinished");
