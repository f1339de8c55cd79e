//! The rest of a request on its way to the server behind, while the answer may already come.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use oroshi_http1::{Framing, encode};
use oroshi_net::monotonic_ns;
use oroshi_server::{Error, Reply, RequestBody};

use super::answer::{Answer, AnswerContext, Ending, Stop};
use super::edits::Edits;
use super::link::{Phase, Waiting};
use super::request_head::is_left_out_of_trailers;
use crate::upstream::{Account, Connection};

/// Why the rest of a request does not go out.
enum Unsent {
    /// The client does not send it as it should.
    Client(Error),
    /// The server behind does not take it. It may still say why.
    Refused,
}

/// What the route and the request's script change in the head: the fields that they leave out are left out of trailers too.
type Drops<'d> = (&'d Edits, &'d Edits);

/// Appends what of a body has come together with its head. Whether that is all of it.
pub(crate) fn gather(
    body: &mut RequestBody<'_>,
    framing: Framing,
    out: &mut Vec<u8>,
    drops: Drops<'_>,
) -> Result<bool, Error> {
    while let Some(piece) = body.at_hand()? {
        match framing {
            Framing::Chunked => encode::chunk(out, piece),
            _ => out.extend_from_slice(piece),
        }
    }
    if body.is_ended() && framing == Framing::Chunked {
        end_chunked(body, out, drops);
    }
    Ok(body.is_ended())
}

/// Waits for more of a body, until all of it is there, or `most` bytes in `out` behind the head, or there is no room for more. Whether that
/// is all of it.
pub(crate) async fn buffer(
    body: &mut RequestBody<'_>,
    framing: Framing,
    out: &mut Vec<u8>,
    (head_bytes, most): (usize, usize),
    account: &mut Account,
    drops: Drops<'_>,
) -> Result<bool, Error> {
    while out.len() - head_bytes < most && account.holds(out.len() - head_bytes) {
        match body.chunk().await? {
            Some(piece) if framing == Framing::Chunked => encode::chunk(out, piece),
            Some(piece) => out.extend_from_slice(piece),
            None => {
                if framing == Framing::Chunked {
                    end_chunked(body, out, drops);
                }
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// Sends what is left of the message, then the body as it comes, and passes the answer on at the same time. True with the ending when
/// all of the request was sent.
pub(crate) async fn send_and_answer(
    connection: &Connection,
    message: &[u8],
    body: &mut RequestBody<'_>,
    framing: Framing,
    answer: &mut Answer,
    answering: &AnswerContext<'_>,
    reply: &mut Reply<'_>,
) -> Result<(Ending, bool), Stop> {
    let waiting = answering.waiting;
    let drops = (&answering.rules.settings.request, answering.request);
    let mut sending = pin!(send(connection, message, body, framing, drops, waiting));
    // None as long as it is being sent, then whether all of it was.
    let mut sent = None;
    poll_fn(|context| {
        if sent.is_none()
            && let Poll::Ready(result) = sending.as_mut().poll(context)
        {
            sent = Some(match result {
                Ok(()) => true,
                Err(Unsent::Refused) => false,
                Err(Unsent::Client(error)) => return Poll::Ready(Err(Stop::Client(error))),
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

/// The last chunk, and those trailers that say nothing that a head's fields may not say.
fn end_chunked(body: &RequestBody<'_>, out: &mut Vec<u8>, (route, request): Drops<'_>) {
    let is_kept = |name: &str| !is_left_out_of_trailers(name) && !route.drops(name) && !request.drops(name);
    // They were read as valid fields, so that they can be written as such.
    if encode::last_chunk(out, body.trailers().filter(|(name, _)| is_kept(name))).is_err() {
        out.extend_from_slice(encode::LAST_CHUNK);
    }
}
