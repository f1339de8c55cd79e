//! A response's body being received and decoded.

use std::task::{Context, Poll, ready};

use crate::deadline::Timings;
use crate::decode::Decoder;
use crate::error::{Cause, Error};
use crate::exchange::Exchange;
use crate::headers::Headers;

/// The body of one response. Dropping it before its end closes the connection.
#[derive(Debug)]
pub(crate) struct IncomingBody {
    exchange: Box<Exchange>,
    unpacking: Option<Box<Unpacking>>,
}

#[derive(Debug)]
struct Unpacking {
    decoder: Decoder,
    packed: Vec<u8>,
    used: usize,
    /// Whether the decoder may have more output without further input.
    more: bool,
}

impl IncomingBody {
    pub(crate) fn new(exchange: Box<Exchange>, decoder: Option<Decoder>) -> Self {
        let unpacking =
            decoder.map(|decoder| Box::new(Unpacking { decoder, packed: Vec::new(), used: 0, more: false }));
        IncomingBody { exchange, unpacking }
    }

    /// Appends the next bytes to `into`: at most one read, or one piece of the decoder. Returns false at the end.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>, into: &mut Vec<u8>) -> Poll<Result<bool, Error>> {
        let Some(unpacking) = &mut self.unpacking else { return self.exchange.poll_body(context, into) };
        loop {
            if unpacking.more || unpacking.used < unpacking.packed.len() {
                // The first piece of received bytes is not late, but a million more pieces do not extend the deadline.
                if unpacking.more {
                    self.exchange.check_total()?;
                }
                // One read can expand to gigabytes without waiting for the socket: let other tasks of this core run.
                let turn = ready!(tokio::task::coop::poll_proceed(context));
                let before = into.len();
                let step = match unpacking.decoder.decode(&unpacking.packed[unpacking.used..], into) {
                    Ok(step) => step,
                    Err(cause) => return Poll::Ready(Err(self.exchange.give_up(cause))),
                };
                unpacking.used += step.used;
                unpacking.more = step.more;
                turn.made_progress();
                if into.len() > before {
                    return Poll::Ready(Ok(true));
                }
                continue;
            }
            unpacking.packed.clear();
            unpacking.used = 0;
            if !ready!(self.exchange.poll_body(context, &mut unpacking.packed))? {
                return Poll::Ready(match unpacking.decoder.finish() {
                    Ok(()) => Ok(false),
                    Err(cause) => Err(self.exchange.give_up(cause)),
                });
            }
        }
    }

    /// Whether the server has sent everything, so that the rest is here.
    pub(crate) fn has_arrived(&self) -> bool {
        self.exchange.is_ended() && self.unpacking.is_none()
    }

    /// Ready at the total deadline, while nobody takes the received bytes.
    pub(crate) fn poll_total(&mut self, context: &Context<'_>) -> Poll<Error> {
        self.exchange.poll_total(context)
    }

    /// Ends the body early, and closes the connection.
    pub(crate) fn give_up(&mut self, cause: Cause) -> Error {
        self.exchange.give_up(cause)
    }

    pub(crate) fn timings(&self) -> Timings {
        self.exchange.timings()
    }

    pub(crate) fn trailers(&self) -> Option<&Headers> {
        self.exchange.trailers()
    }
}
