//! One request on the thread.

use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use oroshi_client::{Bytes, Deadlines, Error, RequestBuilder, local};

use crate::inbox::{Bell, Ticket};
use crate::outcome::{Answer, Outcome};

/// A request, as it goes to the thread.
#[derive(Debug)]
pub(crate) struct Order {
    /// It has the method and the URL.
    pub(crate) ticket: Ticket,
    /// Names and values, in their order.
    pub(crate) headers: Vec<(String, Vec<u8>)>,
    pub(crate) body: Option<Bytes>,
    /// Where it differs from the client's own settings.
    pub(crate) options: Option<Box<Options>>,
}

/// What a request may have of its own; else it is as the client has it.
#[derive(Debug, Default)]
pub(crate) struct Options {
    pub(crate) deadlines: Option<Deadlines>,
    pub(crate) query: Vec<(String, String)>,
    pub(crate) redirects: Option<u32>,
    pub(crate) decode: Option<bool>,
    pub(crate) idempotent: Option<bool>,
}

/// Carries an order out, for as long as somebody waits for it.
pub(crate) async fn carry_out(client: local::Client, order: Box<Order>, bell: Rc<Bell>) {
    let Order { mut ticket, headers, body, options } = *order;
    let outcome = {
        let inbox = Arc::clone(ticket.inbox());
        let mut given_up = pin!(inbox.given_up());
        if ticket.begin()
            && let Some(asked) = ticket.asked()
        {
            let mut request = client.request(asked.method.clone(), &asked.url);
            for (name, value) in headers {
                request = request.header(&name, value);
            }
            if let Some(body) = body {
                request = request.body(body);
            }
            if let Some(options) = options {
                request = options.apply(request);
            }
            let mut answering = pin!(answer(request));
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
        Some(outcome) => ticket.tell(outcome, &bell),
        None => ticket.tear_up(),
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
        if let Some(on) = self.decode {
            request = request.decode(on);
        }
        if let Some(is) = self.idempotent {
            request = request.idempotent(is);
        }
        request.query(self.query)
    }
}

/// Sends a request, and receives all that it is answered with.
async fn answer(request: RequestBuilder<local::Client>) -> Result<Box<Answer>, Error> {
    let mut response = request.send().await?;
    // What a server announces is believed as far as it costs little.
    let expected = response.content_length().unwrap_or(0).min(64 * 1024);
    let mut body = Vec::with_capacity(usize::try_from(expected).unwrap_or(0));
    let mut pieces = response.chunks();
    while let Some(piece) = pieces.next().await? {
        body.extend_from_slice(piece);
    }
    Ok(Box::new(Answer::new(&response, body)))
}
