//! The writing side of an exchange: the answer, whole or piece by piece.

use std::fmt;
use std::task::{Context, Poll};

use oroshi_http1::encode::{self, EncodeError};
use oroshi_http1::{RequestHead, Version};
use oroshi_net::PeerSays;

use crate::error::Error;
use crate::wire::{Unread, Wire};

/// The answer to a request.
///
/// How the body is framed follows from what is known: a length gives `Content-Length`; none gives the chunked coding,
/// or, for an HTTP/1.0 client, a body that ends when the connection closes. `Connection` and `Date` are set here too.
///
/// What is written is sent once the handler waits for anything (or has written much), so that a head and a small body
/// are one write. [`flush`](Self::flush) sends it before that.
pub struct Reply<'a> {
    wire: &'a Wire,
    client: Version,
    /// Whether the method was HEAD: everything is as for GET, without a body.
    head_only: bool,
    /// Whether the method was CONNECT: the client takes what follows a 2xx for the tunnel, whatever the fields say.
    connect: bool,
    state: State,
    /// That of the head that was written last.
    status: Option<u16>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Untouched,
    /// The head is written, and the body to come is framed like this.
    Body(Transfer),
    Complete,
    /// A write was dropped halfway: what follows would stand in the wrong place.
    Broken,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transfer {
    /// This many bytes are still to come.
    Length(u64),
    Chunked,
    UntilClose,
    /// 204 and 304 have none.
    None,
    /// HEAD: what is written is thrown away.
    Discard,
}

impl<'a> Reply<'a> {
    pub(crate) fn new(wire: &'a Wire, head: &RequestHead<'_>) -> Self {
        let (head_only, connect) = (head.method == "HEAD", head.method == "CONNECT");
        // A client that asks for a tunnel may have sent ahead what is for it, which is no request whatever it looks like.
        wire.close.set(!head.keep_alive || connect);
        wire.answered.set(false);
        Reply { wire, client: head.version, head_only, connect, state: State::Untouched, status: None }
    }

    /// For an answer to what never became a request.
    pub(crate) fn to_nobody(wire: &'a Wire) -> Self {
        wire.answered.set(false);
        Reply { wire, client: Version::Http11, head_only: false, connect: false, state: State::Untouched, status: None }
    }

    /// Answers with a whole message. The fields must not hold `Connection`, `Content-Length` or `Transfer-Encoding`.
    /// To a HEAD request the body is not sent, but its length is.
    ///
    /// # Errors
    ///
    /// [`Error::Header`] and [`Error::Misuse`] when this cannot be sent: nothing was written then, and another answer
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

    /// Answers with a message that is already written out, head and body, and is sent as it is. Its framing is the
    /// caller's to get right, for HEAD and HTTP/1.0 clients too (`Connection: keep-alive`), and so is `Date`. After it
    /// the connection closes if [`closes`](Self::closes) says so, even if the message does not.
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

    /// Begins an answer whose body is given with [`write`](Self::write) and ended with [`finish`](Self::finish).
    /// `length` is the body's length in bytes, if it is known. Fields as for [`send`](Self::send).
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
        // What is unread yet may well be read while the answer is written.
        self.start(status, fields, length, self.must_close())
    }

    /// Begins an answer that is passed on from another server: as [`begin`](Self::begin), with that server's reason, and with field
    /// lines as http1 has read them, which `lines` writes as they are, each with its CRLF. It tells whether a `Date` is among them, and
    /// leaves out what [`send`](Self::send) would refuse. A `Date` that is missing is added whatever the settings say (RFC 9110, section
    /// 6.6.1). To a HEAD request `length` is what `Content-Length` says, if anything.
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

    /// Writes a piece of the body of an answer that was begun. To a HEAD request it is not sent. Waits while the peer
    /// does not keep up.
    ///
    /// Not to be dropped before its end when the piece is larger than 16 KiB: the answer is then cut off.
    ///
    /// # Errors
    ///
    /// [`Error::Misuse`] when no answer was begun or the piece goes beyond its length; otherwise the connection broke.
    pub async fn write(&mut self, piece: &[u8]) -> Result<(), Error> {
        let Some((transfer, after)) = self.account(piece)? else { return Ok(()) };
        self.state = State::Broken;
        if transfer == Transfer::Chunked {
            let head = encode::ChunkHead::new(piece.len());
            self.wire.append(|out| out.extend_from_slice(head.as_bytes()));
        }
        self.wire.add(piece).await?;
        if transfer == Transfer::Chunked {
            self.wire.append(|out| out.extend_from_slice(encode::CHUNK_END));
        }
        self.state = State::Body(after);
        self.wire.relieve().await
    }

    /// How a piece is framed, and what is to come after it; `None` if it is not sent.
    fn account(&self, piece: &[u8]) -> Result<Option<(Transfer, Transfer)>, Error> {
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
        Ok(Some((transfer, after)))
    }

    /// Takes a piece of the body at once, as [`write`](Self::write) does, for a caller that cannot keep the piece while it waits: what
    /// the peer does not take is kept here. [`poll_room`](Self::poll_room) then says when to go on, so that it stays little.
    ///
    /// # Errors
    ///
    /// As for `write`.
    pub fn push(&mut self, context: &mut Context<'_>, piece: &[u8]) -> Result<(), Error> {
        let Some((transfer, after)) = self.account(piece)? else { return Ok(()) };
        self.state = State::Broken;
        if transfer == Transfer::Chunked {
            let head = encode::ChunkHead::new(piece.len());
            self.wire.append(|out| out.extend_from_slice(head.as_bytes()));
        }
        self.wire.take_in(context, piece)?;
        if transfer == Transfer::Chunked {
            self.wire.append(|out| out.extend_from_slice(encode::CHUNK_END));
        }
        self.state = State::Body(after);
        Ok(())
    }

    /// Ready when the peer keeps up: at most 64 KiB wait to be sent.
    ///
    /// # Errors
    ///
    /// When the connection broke, or the peer does not read.
    pub fn poll_room(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.wire.poll_relieve(context)
    }

    /// Ready when the peer has ended its sending side or is gone, or has sent more, for handlers that wait for something else and want to stop
    /// when nobody listens any more. Nothing is read: a next request stays where it is, and behind one the end is not seen. To be asked once
    /// the request's body was read to its end, and no more once it was ready.
    pub fn poll_peer(&mut self, context: &mut Context<'_>) -> Poll<PeerSays> {
        self.wire.poll_peer(context)
    }

    /// Waits until everything written so far was handed to the kernel.
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

    /// Ends an answer that was begun, with trailer fields. They are sent when the body is chunked, and left out
    /// otherwise: nothing that matters may stand in them alone.
    ///
    /// # Errors
    ///
    /// As for [`finish`](Self::finish), and [`Error::Header`] for a field that cannot be sent.
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

    /// Sends an interim answer, such as 103 with `Link` fields, before the final one; 100 if the client waits for it. HTTP/1.0 clients
    /// do not know these, and get none.
    ///
    /// # Errors
    ///
    /// [`Error::Misuse`] when the status is not 100 to 199 without 101, or the final answer has begun; [`Error::Header`].
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

    /// Has the connection close after this answer, and the answer say so. To be called before the answer begins.
    pub fn close(&mut self) {
        self.wire.close.set(true);
    }

    /// Whether the connection would close after an answer sent now: because the client asked for it,
    /// [`close`](Self::close) was called, a shutdown has begun, or more of the request's body is unread than is worth
    /// reading.
    pub fn closes(&self) -> bool {
        let core = self.wire.core();
        let too_much = matches!(self.wire.unread.get(), Unread::Bytes(length) if length > core.settings.drain_bytes);
        too_much || self.must_close()
    }

    fn must_close(&self) -> bool {
        // Whether a client that waits for leave to send its body sends it after an answer is not to be known.
        self.wire.close.get() || self.wire.core().closing.get() || self.wire.expecting.get()
    }

    /// The status of the answer that was begun; `None` before that, and after [`send_raw`](Self::send_raw) and an upgrade.
    pub fn status(&self) -> Option<u16> {
        self.status
    }

    /// Whether an answer was begun.
    pub fn is_begun(&self) -> bool {
        self.state != State::Untouched
    }

    /// Whether the answer is whole.
    pub fn is_complete(&self) -> bool {
        self.state == State::Complete
    }

    /// Whether only the end of the connection tells the peer where the body ends.
    pub(crate) fn ends_with_connection(&self) -> bool {
        self.state == State::Body(Transfer::UntilClose)
    }

    /// The head of an answer after which the connection is no longer HTTP. Its body, the tunnel, is not this type's.
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

    /// The head of an answer whose body is somebody else's to write. Whether that body is chunked.
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

    /// The head of what was handed off was sent.
    pub(crate) fn tunnel_begun(&mut self) {
        self.state = State::Complete;
    }

    fn untouched(&self) -> Result<(), Error> {
        match self.state {
            State::Untouched => Ok(()),
            _ => Err(Error::Misuse("the request was answered already")),
        }
    }

    /// Writes a head: whole, or not at all. `rest` adds what the connection sets, told whether there was a `Date`.
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

/// RFC 9110 sections 15.3.5 and 15.4.5.
fn has_no_body(status: u16) -> bool {
    matches!(status, 204 | 304)
}

/// Writes fields that a handler has given, and tells whether a `Date` is among them.
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

/// The fields that this module alone writes.
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
