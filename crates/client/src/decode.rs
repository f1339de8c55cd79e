//! Content codings: decodes gzip, br and zstd piece by piece, never more than a piece ahead of the reader.
//!
//! A small body can expand to a huge one (1 to 1,000 with gzip, 1 to a million with br), so each call limits its
//! output, and the caller limits the whole. The decoders' own memory is limited too: 32 KiB with gzip, 16 MiB with br,
//! 8 MiB with zstd (RFC 9659).

mod gzip;

use brotli_decompressor::{BrotliDecompressStream, BrotliResult, BrotliState, StandardAlloc};
use zstd_safe::{DCtx, DParameter, InBuffer, OutBuffer};

use crate::error::Cause;

/// The maximum output of one call, in bytes.
pub(crate) const PIECE: usize = 32 * 1024;

/// The value of `Accept-Encoding`.
pub(crate) const ACCEPTED: &str = "gzip, br, zstd";

/// A content coding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Coding {
    /// RFC 1952.
    Gzip,
    /// RFC 7932.
    Brotli,
    /// RFC 8878.
    Zstd,
}

impl Coding {
    /// Returns the name in `Content-Encoding`.
    pub const fn name(self) -> &'static str {
        match self {
            Coding::Gzip => "gzip",
            Coding::Brotli => "br",
            Coding::Zstd => "zstd",
        }
    }

    /// Returns the coding of the `Content-Encoding` fields, if there is exactly one and it is supported.
    pub(crate) fn of<'v>(values: impl IntoIterator<Item = &'v [u8]>) -> Option<Coding> {
        let mut values = values.into_iter();
        let (only, None) = (values.next()?, values.next()) else { return None };
        match only {
            only if only.eq_ignore_ascii_case(b"gzip") || only.eq_ignore_ascii_case(b"x-gzip") => Some(Coding::Gzip),
            only if only.eq_ignore_ascii_case(b"br") => Some(Coding::Brotli),
            only if only.eq_ignore_ascii_case(b"zstd") => Some(Coding::Zstd),
            _ => None,
        }
    }

    fn broken(self, why: &'static str) -> Cause {
        Cause::Coding { coding: self.name(), why }
    }
}

/// A decoder of one body.
pub(crate) struct Decoder {
    coding: Coding,
    state: State,
    /// Whether a byte has come. An empty body is valid in any coding, because servers send it.
    begun: bool,
    /// Whether the input so far could be the whole body.
    whole: bool,
}

enum State {
    Gzip(gzip::Gzip),
    Brotli(Box<BrotliState<StandardAlloc, StandardAlloc, StandardAlloc>>),
    Zstd(DCtx<'static>),
}

/// The result of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// Bytes of the input that were used.
    pub(crate) used: usize,
    /// Whether there may be more output, even without further input.
    pub(crate) more: bool,
}

impl Decoder {
    pub(crate) fn new(coding: Coding) -> Result<Self, Cause> {
        let state = match coding {
            Coding::Gzip => State::Gzip(gzip::Gzip::default()),
            Coding::Brotli => {
                let alloc = StandardAlloc::default;
                State::Brotli(Box::new(BrotliState::new_strict(alloc(), alloc(), alloc())))
            }
            Coding::Zstd => {
                let mut context = DCtx::try_create().ok_or(coding.broken("there is no memory for a decoder"))?;
                // 2 to the 23rd: 8 MiB.
                context
                    .set_parameter(DParameter::WindowLogMax(23))
                    .map_err(|_| coding.broken("the window cannot be set"))?;
                State::Zstd(context)
            }
        };
        Ok(Decoder { coding, state, begun: false, whole: false })
    }

    /// Decodes, and appends at most [`PIECE`] bytes. While the step says `more`, call again with the rest of the input,
    /// even if it is empty.
    pub(crate) fn decode(&mut self, input: &[u8], output: &mut Vec<u8>) -> Result<Step, Cause> {
        self.begun |= !input.is_empty();
        let before = output.len();
        output.resize(before + PIECE, 0);
        let result = self.step(input, &mut output[before..]);
        let (used, made) = *result.as_ref().unwrap_or(&(0, 0));
        output.truncate(before + made);
        result?;
        if used == 0 && made == 0 && !input.is_empty() {
            return Err(self.coding.broken("its decoder is stuck"));
        }
        Ok(Step { used, more: made == PIECE || used < input.len() })
    }

    /// Checks the end of the body.
    pub(crate) fn finish(&self) -> Result<(), Cause> {
        if self.whole || !self.begun { Ok(()) } else { Err(self.coding.broken("it ends too early")) }
    }

    /// Calls the decoder once: returns bytes used and bytes written.
    fn step(&mut self, input: &[u8], output: &mut [u8]) -> Result<(usize, usize), Cause> {
        let coding = self.coding;
        match &mut self.state {
            State::Gzip(gzip) => {
                let done = gzip.decode(input, output).map_err(|why| coding.broken(why))?;
                self.whole = gzip.is_whole();
                Ok(done)
            }
            State::Brotli(state) => {
                if self.whole {
                    return if input.is_empty() { Ok((0, 0)) } else { Err(coding.broken("something follows its end")) };
                }
                let (mut input_left, mut output_left) = (input.len(), output.len());
                let (mut used, mut made, mut total) = (0, 0, 0);
                let result = BrotliDecompressStream(
                    &mut input_left,
                    &mut used,
                    input,
                    &mut output_left,
                    &mut made,
                    output,
                    &mut total,
                    state,
                );
                match result {
                    BrotliResult::ResultFailure => return Err(coding.broken("it is not valid")),
                    BrotliResult::ResultSuccess => self.whole = true,
                    BrotliResult::NeedsMoreInput | BrotliResult::NeedsMoreOutput => {}
                }
                Ok((used, made))
            }
            State::Zstd(context) => {
                let (mut from, mut to) = (InBuffer::around(input), OutBuffer::around(output));
                // Zero at a frame's end; another frame may follow (RFC 8878, section 3.1).
                let left = context.decompress_stream(&mut to, &mut from);
                let left = left.map_err(|code| coding.broken(zstd_safe::get_error_name(code)))?;
                let done = (from.pos(), to.pos());
                if done != (0, 0) {
                    self.whole = left == 0;
                }
                Ok(done)
            }
        }
    }
}

impl std::fmt::Debug for Decoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Decoder").field("coding", &self.coding).field("whole", &self.whole).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
