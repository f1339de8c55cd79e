//! One request on the thread.

use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use oroshi_client::{Bytes, Deadlines, Error, RequestBuilder, local};

use crate::inbox::{Notifier, Ticket};
use crate::outcome::{Answer, Outcome};

/// A request for the thread.
#[derive(Debug)]
pub(crate) struct Request {
    /// Has the method and the URL.
    pub(crate) ticket: Ticket,
    /// Names and values, in order.
    pub(crate) headers: Vec<(String, Vec<u8>)>,
    pub(crate) body: Option<Bytes>,
    /// Differences from the client's settings.
    pub(crate) options: Option<Box<Options>>,
}

/// A request's own options; `None`: the client's.
#[derive(Debug, Default)]
pub(crate) struct Options {
    pub(crate) deadlines: Option<Deadlines>,
    pub(crate) query: Vec<(String, String)>,
    pub(crate) redirects: Option<u32>,
    pub(crate) retries: Option<u32>,
    pub(crate) decode: Option<bool>,
    pub(crate) idempotent: Option<bool>,
    /// Whether the body goes to Ruby in pieces.
    pub(crate) stream: bool,
}

/// Carries out a request until it ends or its call is finished.
pub(crate) async fn carry_out(client: local::Client, request: Box<Request>, notifier: Rc<Notifier>) {
    let Request { mut ticket, headers, body, options } = *request;
    let outcome = {
        let inbox = Arc::clone(ticket.inbox());
        let mut given_up = pin!(inbox.given_up());
        if ticket.begin()
            && let Some(summary) = ticket.summary()
        {
            let mut request = client.request(summary.method.clone(), &summary.url);
            for (name, value) in headers {
                request = request.header(&name, value);
            }
            if let Some(body) = body {
                request = request.body(body);
            }
            let streams = options.as_ref().is_some_and(|options| options.stream);
            if let Some(options) = options {
                request = options.apply(request);
            }
            let pieces = streams.then_some((&ticket, &*notifier));
            let mut answering = pin!(answer(request, pieces));
            poll_fn(|context| match answering.as_mut().poll(context) {
                Poll::Ready(Ok(answer)) => Poll::Ready(Some(Outcome::Answer(answer))),
                Poll::Ready(Err(error)) => Poll::Ready(Some(Outcome::Failure(error))),
                Poll::Pending => given_up.as_mut().poll(context).map(|()| None),
            })
            .await
        } else {
            None
        }
    };
    match outcome {
        Some(outcome) => ticket.tell(outcome, &notifier),
        None => ticket.discard(),
    }
}

impl Options {
    fn apply(self, mut request: RequestBuilder<local::Client>) -> RequestBuilder<local::Client> {
        if let Some(deadlines) = self.deadlines {
            request = request.deadlines(deadlines);
        }
        if let Some(most) = self.redirects {
            request = request.redirects(most);
        }
        if let Some(most) = self.retries {
            request = request.retries(most);
        }
        if let Some(on) = self.decode {
            request = request.decode(on);
        }
        if let Some(is) = self.idempotent {
            request = request.idempotent(is);
        }
        request.query(self.query)
    }
}

/// Sends a request, and receives the whole response. With `pieces`, head and body go there, and the answer has no body.
async fn answer(
    request: RequestBuilder<local::Client>,
    pieces: Option<(&Ticket, &Notifier)>,
) -> Result<Box<Answer>, Error> {
    let mut response = request.send().await?;
    if let Some((ticket, notifier)) = pieces {
        ticket.tell_part(Outcome::Head(Box::new(Answer::new(&response, Vec::new()))), notifier);
        // Nothing of it is kept.
        response.limit_chunks(u64::MAX);
        let mut chunks = response.chunks();
        while let Some(piece) = chunks.next().await? {
            ticket.tell_part(Outcome::Piece(piece.to_vec()), notifier);
            ticket.inbox().piece_room().await;
        }
        return Ok(Box::new(Answer::new(&response, Vec::new())));
    }
    // A server's Content-Length is trusted only while that is cheap.
    let expected = response.content_length().unwrap_or(0).min(64 * 1024);
    let mut body = Vec::with_capacity(usize::try_from(expected).unwrap_or(0));
    let mut chunks = response.chunks();
    while let Some(piece) = chunks.next().await? {
        body.extend_from_slice(piece);
    }
    Ok(Box::new(Answer::new(&response, body)))
}
