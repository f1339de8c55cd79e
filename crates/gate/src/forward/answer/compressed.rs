//! Passes a response on through an encoder.

use std::task::Context;

use oroshi_http1::ResponseHead;
use oroshi_server::{Error, Reply};

use super::{Answer, AnswerContext, ExchangeError, response_head};
use crate::forward::compress::{Compressing, Compression, Uncompressed};

impl Answer {
    /// As [`pass_head_on`](Self::pass_head_on), where the response may have to be compressed.
    pub(super) fn pass_compressed_head_on(
        &mut self,
        head: &ResponseHead<'_>,
        length: Option<u64>,
        compression: &Compression,
        answering: &AnswerContext<'_>,
        reply: &mut Reply<'_>,
    ) -> Result<(), ExchangeError> {
        let mut lines = Vec::with_capacity(head.headers.as_bytes().len() + 64);
        let seen = response_head::write(&mut lines, head, answering.rules, answering.edits);
        let length = self.compress(compression, &mut lines, (head.status, length), answering);
        let relayed = reply.relay(head.status, head.reason, length, |out| {
            out.extend_from_slice(&lines);
            seen.date
        });
        relayed.map_err(ExchangeError::Client)?;
        self.keep = seen.keep;
        (self.status, self.given) = (head.status, head.status);
        Ok(())
    }

    /// Begins to compress the response, if it should be. Returns its length.
    pub(super) fn compress(
        &mut self,
        compression: &Compression,
        lines: &mut Vec<u8>,
        (status, length): (u16, Option<u64>),
        answering: &AnswerContext<'_>,
    ) -> Option<u64> {
        let response = Uncompressed { status, length, is_head: self.is_head, request: answering.asked };
        match compression.begin(lines, response, answering.encoders) {
            Compressing::No => length,
            Compressing::Head => None,
            Compressing::Body(encoder) => {
                self.encoder = Some(encoder);
                None
            }
        }
    }

    /// Passes a piece of the body on.
    #[inline]
    pub(super) fn push(
        &mut self,
        context: &mut Context<'_>,
        piece: &[u8],
        reply: &mut Reply<'_>,
    ) -> Result<(), ExchangeError> {
        self.received += piece.len() as u64;
        if let Some(encoder) = &mut self.encoder {
            encoder.write(piece).map_err(|error| ExchangeError::Client(Error::Io(error)))?;
            return self.push_encoded(context, reply);
        }
        self.bytes += piece.len() as u64;
        reply.push(context, piece).map_err(ExchangeError::Client)
    }

    /// Passes on what the encoder has ready.
    fn push_encoded(&mut self, context: &mut Context<'_>, reply: &mut Reply<'_>) -> Result<(), ExchangeError> {
        let Some(encoder) = &mut self.encoder else { return Ok(()) };
        let output = encoder.output();
        if !output.is_empty() {
            self.bytes += output.len() as u64;
            reply.push(context, output).map_err(ExchangeError::Client)?;
            output.clear();
        }
        Ok(())
    }

    /// Passes on all that the encoder has, because the upstream pauses.
    pub(super) fn flush(&mut self, context: &mut Context<'_>, reply: &mut Reply<'_>) -> Result<(), ExchangeError> {
        let Some(encoder) = &mut self.encoder else { return Ok(()) };
        encoder.flush().map_err(|error| ExchangeError::Client(Error::Io(error)))?;
        self.push_encoded(context, reply)
    }

    /// Ends what the encoder makes.
    pub(super) fn end_encoder(
        &mut self,
        context: &mut Context<'_>,
        reply: &mut Reply<'_>,
    ) -> Result<(), ExchangeError> {
        let Some(encoder) = &mut self.encoder else { return Ok(()) };
        encoder.end().map_err(|error| ExchangeError::Client(Error::Io(error)))?;
        self.push_encoded(context, reply)?;
        self.encoder = None;
        Ok(())
    }
}
