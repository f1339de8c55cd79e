//! Sends the rest of a request to the upstream, while the response may already arrive.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use oroshi_http1::{Framing, encode};
use oroshi_net::monotonic_ns;
use oroshi_server::{Error, Reply, RequestBody};

use super::answer::{Answer, AnswerContext, ExchangeError, ResponseEnd};
use super::edits::Edits;
use super::link::{Phase, Waiting};
use super::request_head::is_left_out_of_trailers;
use crate::upstream::{BufferShare, Connection};

/// Why the rest of a request cannot be sent.
pub(crate) enum Unsent {
    /// The client sends it too slowly or wrongly.
    Client(Error),
    /// The upstream does not read it. It may still explain why.
    Refused,
}

/// The edits of the route and of the request's script. Fields that they drop are dropped from trailers too.
pub(crate) type Drops<'d> = (&'d Edits, &'d Edits);

/// Where a body is buffered, and in which form.
pub(crate) struct Buffered<'b> {
    /// The head, and the body behind it.
    pub(crate) bytes: &'b mut Vec<u8>,
    /// Whether the body goes out as chunks.
    pub(crate) is_chunked: bool,
    /// Where the lines of trailers go, over HTTP/2.
    pub(crate) trailers: Option<&'b mut Vec<u8>>,
}

impl Buffered<'_> {
    fn add(&mut self, piece: &[u8]) {
        match self.is_chunked {
            true => encode::chunk(self.bytes, piece),
            false => self.bytes.extend_from_slice(piece),
        }
    }

    fn end(&mut self, body: &RequestBody<'_>, drops: Drops<'_>) {
        if self.is_chunked {
            end_chunked(body, self.bytes, drops);
        } else if let Some(lines) = &mut self.trailers {
            write_trailers(body, lines, drops);
        }
    }
}

/// Appends the part of the body that arrived with the head. Returns whether the body is complete.
pub(crate) fn gather(body: &mut RequestBody<'_>, buffered: &mut Buffered<'_>, drops: Drops<'_>) -> Result<bool, Error> {
    while let Some(piece) = body.at_hand()? {
        buffered.add(piece);
    }
    if body.is_ended() {
        buffered.end(body, drops);
    }
    Ok(body.is_ended())
}

/// Buffers the body until it is complete, `most` bytes of it are buffered, or there is no room. Returns whether the
/// body is complete.
pub(crate) async fn buffer(
    body: &mut RequestBody<'_>,
    buffered: &mut Buffered<'_>,
    (head_bytes, most): (usize, usize),
    account: &mut BufferShare,
    drops: Drops<'_>,
) -> Result<bool, Error> {
    while buffered.bytes.len() - head_bytes < most && account.holds(buffered.bytes.len() - head_bytes) {
        match body.chunk().await? {
            Some(piece) => buffered.add(piece),
            None => {
                buffered.end(body, drops);
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// Sends the rest of the message and then the body as it arrives, and passes the response on meanwhile. Returns the
/// ending, with true if the whole request was sent.
pub(crate) async fn send_and_answer(
    connection: &Connection,
    message: &[u8],
    body: &mut RequestBody<'_>,
    framing: Framing,
    answer: &mut Answer,
    answering: &AnswerContext<'_>,
    reply: &mut Reply<'_>,
) -> Result<(ResponseEnd, bool), ExchangeError> {
    let waiting = answering.waiting;
    let drops = (&answering.rules.settings.request, answering.request);
    let mut sending = pin!(send(connection, message, body, framing, drops, waiting));
    // `None` while sending; then whether the whole request was sent.
    let mut sent = None;
    poll_fn(|context| {
        if sent.is_none()
            && let Poll::Ready(result) = sending.as_mut().poll(context)
        {
            sent = Some(match result {
                Ok(()) => true,
                Err(Unsent::Refused) => false,
                Err(Unsent::Client(error)) => return Poll::Ready(Err(ExchangeError::Client(error))),
            });
            waiting.enter(if answer.status == 0 { Phase::Head } else { Phase::Body }, monotonic_ns());
        }
        let step = answer.poll(context, answering, connection, reply);
        step.map(|ending| ending.map(|ending| (ending, sent == Some(true))))
    })
    .await
}

async fn send(
    connection: &Connection,
    message: &[u8],
    body: &mut RequestBody<'_>,
    framing: Framing,
    drops: Drops<'_>,
    waiting: &Waiting<'_>,
) -> Result<(), Unsent> {
    waiting.enter(Phase::Client, 0);
    let refused = |_| Unsent::Refused;
    connection.write_all([message], waiting).await.map_err(refused)?;
    if body.is_ended() {
        return Ok(());
    }
    let chunked = framing == Framing::Chunked;
    while let Some(piece) = body.chunk().await.map_err(Unsent::Client)? {
        if chunked {
            let head = encode::ChunkHead::new(piece.len());
            connection.write_all([head.as_bytes(), piece, encode::CHUNK_END], waiting).await.map_err(refused)?;
        } else {
            connection.write_all([piece], waiting).await.map_err(refused)?;
        }
    }
    if chunked {
        let mut end = Vec::new();
        end_chunked(body, &mut end, drops);
        connection.write_all([&end], waiting).await.map_err(refused)?;
    }
    Ok(())
}

/// Writes the last chunk, with the trailers that may pass.
fn end_chunked(body: &RequestBody<'_>, out: &mut Vec<u8>, drops: Drops<'_>) {
    // The trailers were read as valid fields, so they can be written.
    if encode::last_chunk(out, trailers(body, drops)).is_err() {
        out.extend_from_slice(encode::LAST_CHUNK);
    }
}

/// Writes the lines of the trailers that may pass.
pub(crate) fn write_trailers(body: &RequestBody<'_>, lines: &mut Vec<u8>, drops: Drops<'_>) {
    for (name, value) in trailers(body, drops) {
        // As above.
        let _ = encode::header(lines, name, value);
    }
}

/// Returns the trailers that may pass.
fn trailers<'b>(body: &'b RequestBody<'_>, (route, request): Drops<'b>) -> impl Iterator<Item = (&'b str, &'b [u8])> {
    let is_kept = move |name: &str| !is_left_out_of_trailers(name) && !route.drops(name) && !request.drops(name);
    body.trailers().filter(move |(name, _)| is_kept(name))
}
