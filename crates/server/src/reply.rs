//! The writing side of an exchange: the answer, whole or piece by piece.

use std::fmt;
use std::task::{Context, Poll};

use oroshi_http1::encode::{self, EncodeError};
use oroshi_http1::{RequestHead, Version};
use oroshi_net::PeerState;

use crate::error::Error;
use crate::wire::{Unread, Wire};

/// The answer to a request.
///
/// The framing follows from the length: a known length gives `Content-Length`; otherwise the body is chunked, or, for
/// an HTTP/1.0 client, ends with the connection. `Connection` and `Date` are set here too.
///
/// Output is sent once the handler waits for anything (or has written much), so a head and a small body leave in one
/// write. [`flush`](Self::flush) sends it earlier.
pub struct Reply<'a> {
    wire: &'a Wire,
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transfer {
    /// This many bytes are still to come.
    Length(u64),
    Chunked,
    UntilClose,
    /// 204 and 304 have no body.
    None,
    /// HEAD: the body is discarded.
    Discard,
}

impl<'a> Reply<'a> {
    pub(crate) fn new(wire: &'a Wire, head: &RequestHead<'_>) -> Self {
        let (head_only, connect) = (head.method == "HEAD", head.method == "CONNECT");
        // A client that requests a tunnel may already have sent bytes for it, which are no request, whatever they look
        // like.
        wire.close.set(!head.keep_alive || connect);
        wire.answered.set(false);
        Reply { wire, client: head.version, head_only, connect, state: State::Untouched, status: None }
    }

    /// Creates an answer to a refused request.
    pub(crate) fn to_nobody(wire: &'a Wire) -> Self {
        wire.answered.set(false);
        Reply { wire, client: Version::Http11, head_only: false, connect: false, state: State::Untouched, status: None }
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
        if self.state != State::Body(Transfer::Discard) {
            self.write(body).await?;
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
    /// [`Error::Misuse`] when an answer has begun; otherwise the connection broke.
    pub async fn send_raw(&mut self, message: &[u8]) -> Result<(), Error> {
        self.untouched()?;
        self.wire.close.set(self.closes());
        self.wire.answered.set(true);
        self.state = State::Broken;
        self.wire.write(message).await?;
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
        self.start_with(status, Some(reason), length, self.must_close(), true, |out| Ok(lines(out)))
    }

    fn start<'f>(
        &mut self,
        status: u16,
        fields: impl IntoIterator<Item = (&'f str, &'f [u8])>,
        length: Option<u64>,
        close: bool,
    ) -> Result<(), Error> {
        let date = self.wire.core().settings.date;
        self.start_with(status, None, length, close, date, |out| write_fields(out, fields))
    }

    fn start_with(
        &mut self,
        status: u16,
        reason: Option<&[u8]>,
        length: Option<u64>,
        close: bool,
        date: bool,
        fields: impl FnOnce(&mut Vec<u8>) -> Result<bool, Error>,
    ) -> Result<(), Error> {
        self.untouched()?;
        if status < 200 {
            return Err(Error::Misuse("an answer needs a final status, 200 to 999"));
        }
        if self.connect && status < 300 {
            return Err(Error::Misuse("2xx answers CONNECT with a tunnel, which an upgrade gives"));
        }
        let transfer = match length {
            _ if has_no_body(status) => Transfer::None,
            _ if self.head_only => Transfer::Discard,
            Some(length) => Transfer::Length(length),
            None if self.client == Version::Http10 => Transfer::UntilClose,
            None => Transfer::Chunked,
        };
        let close = close || transfer == Transfer::UntilClose;
        self.write_head(status, reason, fields, |out, has_date| {
            if date && !has_date {
                out.extend_from_slice(b"Date: ");
                out.extend_from_slice(&self.wire.core().date());
                out.extend_from_slice(b"\r\n");
            }
            match (transfer, length) {
                (Transfer::Length(length), _) | (Transfer::Discard, Some(length)) => {
                    encode::content_length(out, length);
                }
                (Transfer::Chunked, _) => encode::chunked(out),
                _ => {}
            }
            if close {
                out.extend_from_slice(b"Connection: close\r\n");
            } else if self.client == Version::Http10 {
                out.extend_from_slice(b"Connection: keep-alive\r\n");
            }
        })?;
        self.wire.close.set(close);
        self.wire.answered.set(true);
        self.state = State::Body(transfer);
        self.status = Some(status);
        Ok(())
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
        self.wire.add(piece).await?;
        self.end_piece(transfer, after);
        self.wire.relieve().await
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
            self.wire.append(|out| out.extend_from_slice(head.as_bytes()));
        }
        Ok(Some((transfer, after)))
    }

    fn end_piece(&mut self, transfer: Transfer, after: Transfer) {
        if transfer == Transfer::Chunked {
            self.wire.append(|out| out.extend_from_slice(encode::CHUNK_END));
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
        self.wire.take_in(context, piece)?;
        self.end_piece(transfer, after);
        Ok(())
    }

    /// Ready when the peer keeps up: at most 64 KiB are buffered.
    ///
    /// # Errors
    ///
    /// When the connection broke, or the peer does not read.
    pub fn poll_room(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.wire.poll_relieve(context)
    }

    /// Ready when the peer has closed its sending side, is gone, or has sent more. For handlers that wait for something
    /// else, and want to stop when nobody reads. Reads nothing: a next request stays in the socket, and hides a close
    /// behind it. Call it only after the request's body was read to its end, and not after it was ready.
    pub fn poll_peer(&mut self, context: &mut Context<'_>) -> Poll<PeerState> {
        self.wire.poll_peer(context)
    }

    /// Waits until the kernel has all output so far.
    ///
    /// # Errors
    ///
    /// When the connection broke.
    pub async fn flush(&mut self) -> Result<(), Error> {
        self.wire.flush().await
    }

    /// Ends an answer that was begun.
    ///
    /// # Errors
    ///
    /// [`Error::Misuse`] when none was begun, or when its body is shorter than announced.
    pub fn finish(&mut self) -> Result<(), Error> {
        self.finish_with([])
    }

    /// Ends an answer with trailer fields. They are sent if the body is chunked, and omitted otherwise, so nothing
    /// important may be in them alone.
    ///
    /// # Errors
    ///
    /// As for [`finish`](Self::finish), and [`Error::Header`] for an invalid field.
    pub fn finish_with<'f>(&mut self, trailers: impl IntoIterator<Item = (&'f str, &'f [u8])>) -> Result<(), Error> {
        let State::Body(transfer) = self.state else { return Err(NOT_BEGUN) };
        match transfer {
            Transfer::Length(0) | Transfer::UntilClose | Transfer::None | Transfer::Discard => {}
            Transfer::Length(_) => return Err(Error::Misuse("the body is shorter than was announced")),
            Transfer::Chunked => {
                let mut current = "";
                let named = trailers.into_iter().inspect(|(name, _)| current = name);
                self.wire.append(|out| encode::last_chunk(out, named)).map_err(|error| unsendable(error, current))?;
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
        if self.client == Version::Http10 || (status == 100 && !self.wire.expecting.replace(false)) {
            return Ok(());
        }
        self.write_head(status, None, |out| write_fields(out, fields), |_, _| ())
    }

    /// Closes the connection after this answer, which announces it. Call it before the answer begins.
    pub fn close(&mut self) {
        self.wire.close.set(true);
    }

    /// Whether the connection would close after an answer sent now: the client asked for it, [`close`](Self::close) was
    /// called, a shutdown has begun, or too much of the request's body is unread.
    pub fn closes(&self) -> bool {
        let core = self.wire.core();
        let too_much = matches!(self.wire.unread.get(), Unread::Bytes(length) if length > core.settings.drain_bytes);
        too_much || self.must_close()
    }

    fn must_close(&self) -> bool {
        // A client that waits for `100 Continue` may or may not send its body after an answer.
        self.wire.close.get() || self.wire.core().closing.get() || self.wire.expecting.get()
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
        let fields = |out: &mut Vec<u8>| write_fields(out, fields);
        self.write_head(status, None, fields, |out, _| {
            if status == 101 {
                out.extend_from_slice(b"Connection: upgrade\r\n");
            }
        })?;
        self.wire.answered.set(true);
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

    /// Writes a head completely or not at all. `rest` adds the connection's fields, and is told whether there was a
    /// `Date`.
    fn write_head(
        &self,
        status: u16,
        reason: Option<&[u8]>,
        fields: impl FnOnce(&mut Vec<u8>) -> Result<bool, Error>,
        rest: impl FnOnce(&mut Vec<u8>, bool),
    ) -> Result<(), Error> {
        self.wire.append(|out| {
            let start = out.len();
            let written = (|| {
                encode::status_line(out, Version::Http11, status, reason).map_err(|error| unsendable(error, ""))?;
                let has_date = fields(out)?;
                rest(out, has_date);
                encode::end_of_head(out);
                Ok(())
            })();
            if written.is_err() {
                out.truncate(start);
            }
            written
        })
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

/// Whether a status has no body (RFC 9110 sections 15.3.5 and 15.4.5).
fn has_no_body(status: u16) -> bool {
    matches!(status, 204 | 304)
}

/// Writes a handler's fields, and returns whether a `Date` is among them.
fn write_fields<'f>(out: &mut Vec<u8>, fields: impl IntoIterator<Item = (&'f str, &'f [u8])>) -> Result<bool, Error> {
    let mut has_date = false;
    for (name, value) in fields {
        if is_managed(name) {
            return Err(Error::Header(name.to_owned()));
        }
        has_date |= name.eq_ignore_ascii_case("date");
        encode::header(out, name, value).map_err(|error| unsendable(error, name))?;
    }
    Ok(has_date)
}

/// Whether only this module may write this field.
fn is_managed(name: &str) -> bool {
    match name.len() {
        10 => name.eq_ignore_ascii_case("connection"),
        14 => name.eq_ignore_ascii_case("content-length"),
        17 => name.eq_ignore_ascii_case("transfer-encoding"),
        _ => false,
    }
}

fn unsendable(error: EncodeError, name: &str) -> Error {
    match error {
        EncodeError::Status => Error::Misuse("a status has three digits"),
        _ => Error::Header(name.to_owned()),
    }
}
