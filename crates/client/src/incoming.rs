//! A response's body on its way in, unpacked if it was packed.

use std::task::{Context, Poll, ready};

use crate::deadline::Timings;
use crate::decode::Decoder;
use crate::error::{Cause, Error};
use crate::exchange::Exchange;
use crate::headers::Headers;

/// The body of one response. Dropped before its end, it closes the connection.
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
    /// The decoder may have more without further input.
    more: bool,
}

impl IncomingBody {
    pub(crate) fn new(exchange: Box<Exchange>, decoder: Option<Decoder>) -> Self {
        let unpacking =
            decoder.map(|decoder| Box::new(Unpacking { decoder, packed: Vec::new(), used: 0, more: false }));
        IncomingBody { exchange, unpacking }
    }

    /// The next bytes, behind what `into` holds: at most a read's worth, or a decoder's piece. False at the end.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>, into: &mut Vec<u8>) -> Poll<Result<bool, Error>> {
        let Some(unpacking) = &mut self.unpacking else { return self.exchange.poll_body(context, into) };
        loop {
            if unpacking.more || unpacking.used < unpacking.packed.len() {
                // The first piece of what has come is not late; that there are a million more of it does not put the end off.
                if unpacking.more {
                    self.exchange.check_total()?;
                }
                // One read can hold gigabytes, with no wait for the socket in between: others of this core get their turn.
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

    /// Whether nothing more is to come from the server: what is left is here.
    pub(crate) fn has_arrived(&self) -> bool {
        self.exchange.is_ended() && self.unpacking.is_none()
    }

    /// Ready when the time for everything is over, while nobody takes what has come.
    pub(crate) fn poll_total(&mut self, context: &Context<'_>) -> Poll<Error> {
        self.exchange.poll_total(context)
    }

    /// Wants no more: the connection is closed.
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
