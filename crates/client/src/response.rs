//! The response to a request.

use std::fmt;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::task::{Context, Poll, ready};

use oroshi_core::spares;
use oroshi_http1::Version;
use oroshi_net::Endpoint;
use serde::de::DeserializeOwned;

use crate::deadline::{Phase, Timings};
use crate::decode::Coding;
use crate::error::{Cause, Error, without_query};
use crate::exchange::Head;
use crate::headers::Headers;

/// A response: its head is here, its body comes as it is read.
///
/// Dropping a response before its body's end closes the connection. (A small body usually comes with the head, and has
/// returned its connection already.) A response has no time limit while nobody reads it, except for
/// [`Deadlines::total`](crate::Deadlines::total).
pub struct Response<B> {
    answer: Box<ResponseParts>,
    body: B,
    limits: Limits,
    /// Bytes that `chunks` has returned.
    given: u64,
}

/// A response with all of its body.
#[derive(Clone, Debug)]
pub struct Whole {
    /// The status, 100 to 999.
    pub status: u16,
    /// The header fields as received.
    pub headers: Headers,
    /// The body.
    pub body: Vec<u8>,
    /// How long each phase took.
    pub timings: Timings,
}

/// A response without its body.
#[derive(Debug)]
pub(crate) struct ResponseParts {
    pub(crate) method: std::borrow::Cow<'static, str>,
    /// The last URL, after redirects.
    pub(crate) url: Endpoint,
    pub(crate) head: Head,
    pub(crate) redirects: u32,
    pub(crate) coding: Option<Coding>,
}

/// Limits on a decoded body.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) collect: u64,
    pub(crate) stream: u64,
}

/// The source of a body: the connection itself, or the client's thread. Sealed.
pub trait Source: sealed::Source {}

impl<S: sealed::Source> Source for S {}

pub(crate) mod sealed {
    use std::task::{Context, Poll};

    use super::{Cause, Error, Headers, Timings};

    pub trait Source {
        /// Appends the next bytes to `into`; false at the end.
        fn poll(&mut self, context: &mut Context<'_>, into: &mut Vec<u8>) -> Poll<Result<bool, Error>>;
        /// Ends the body early.
        fn give_up(&mut self, cause: Cause) -> Error;
        fn timings(&self) -> Timings;
        fn trailers(&self) -> Option<&Headers>;
    }
}

impl<B: Source> Response<B> {
    pub(crate) fn new(answer: Box<ResponseParts>, body: B, limits: Limits) -> Self {
        Response { answer, body, limits, given: 0 }
    }

    /// Returns the status, 100 to 999. A status of 400 or more is no error.
    pub fn status(&self) -> u16 {
        self.answer.head.status
    }

    /// Whether the status is 200 to 299.
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status())
    }

    /// Returns the reason phrase, which may be empty.
    pub fn reason(&self) -> &[u8] {
        &self.answer.head.reason
    }

    /// Returns the HTTP version of the response.
    pub fn version(&self) -> Version {
        self.answer.head.version
    }

    /// Returns the header fields as received, including `Content-Encoding` and `Content-Length` of a decoded body.
    pub fn headers(&self) -> &Headers {
        &self.answer.head.headers
    }

    /// Returns the URL of the response: the last one after redirects.
    pub fn url(&self) -> &Endpoint {
        &self.answer.url
    }

    /// Returns the server's address; `None` for a unix socket. It tells which of a name's addresses responded.
    pub fn remote_address(&self) -> Option<SocketAddr> {
        self.answer.head.remote
    }

    /// Returns the number of redirects followed.
    pub fn redirects(&self) -> u32 {
        self.answer.redirects
    }

    /// Returns the body's length on the wire, if the head has it.
    pub fn content_length(&self) -> Option<u64> {
        self.answer.head.length
    }

    /// Returns the content coding that the body is decoded from, if any.
    pub fn coding(&self) -> Option<Coding> {
        self.answer.coding
    }

    /// Returns how long each phase took. `body` and `total` grow until the body has ended.
    pub fn timings(&self) -> Timings {
        self.body.timings()
    }

    /// Returns the trailer fields of a chunked body, after its end and if there are any.
    pub fn trailers(&self) -> Option<&Headers> {
        self.body.trailers()
    }

    /// Sets the maximum of decoded bytes that [`chunks`](Self::chunks) returns of this body, in place of
    /// `Builder::stream_bytes`.
    pub fn limit_chunks(&mut self, most: u64) {
        self.limits.stream = most;
    }

    /// Returns the body's pieces. Can be called again to continue.
    pub fn chunks(&mut self) -> Chunks<'_, B> {
        Chunks { response: self, piece: Vec::new() }
    }

    /// Returns the whole body.
    ///
    /// # Errors
    /// The body is incomplete, or larger than `Builder::collect_bytes`.
    ///
    /// # Cancel safety
    /// Dropping the future closes the connection, unless the body is complete.
    pub async fn bytes(mut self) -> Result<Vec<u8>, Error> {
        self.collect().await
    }

    /// Returns the response whole, without copying its fields.
    ///
    /// # Errors
    /// As [`bytes`](Self::bytes).
    ///
    /// # Cancel safety
    /// As [`bytes`](Self::bytes).
    pub async fn whole(mut self) -> Result<Whole, Error> {
        let body = self.collect().await?;
        let timings = self.timings();
        let Head { status, headers, .. } = self.answer.head;
        Ok(Whole { status, headers, body, timings })
    }

    /// Returns the whole body, which must be UTF-8.
    ///
    /// # Errors
    /// As [`bytes`](Self::bytes); and the body is not UTF-8.
    ///
    /// # Cancel safety
    /// As [`bytes`](Self::bytes).
    pub async fn text(mut self) -> Result<String, Error> {
        let bytes = self.collect().await?;
        String::from_utf8(bytes).map_err(|_| self.about(Error::new(Phase::Content, Cause::NotUtf8)))
    }

    /// Returns the whole body, parsed as JSON.
    ///
    /// # Errors
    /// As [`bytes`](Self::bytes); and the body is not JSON, or not of this type.
    ///
    /// # Cancel safety
    /// As [`bytes`](Self::bytes).
    pub async fn json<T: DeserializeOwned>(mut self) -> Result<T, Error> {
        let bytes = self.collect().await?;
        serde_json::from_slice(&bytes).map_err(|error| self.about(Error::new(Phase::Content, Cause::Json(error))))
    }

    async fn collect(&mut self) -> Result<Vec<u8>, Error> {
        let limit = self.limits.collect;
        self.check_announced(limit)?;
        // Allocates at most 64 KiB for a server's announced length.
        let expected = self.content_length().unwrap_or(0).min(limit).min(64 * 1024);
        let expected = usize::try_from(expected).unwrap_or(0);
        let mut whole = Vec::new();
        while poll_fn(|context| self.poll(context, &mut whole)).await? {
            if whole.len() as u64 > limit {
                return Err(self.too_large(limit));
            }
            whole.reserve_exact(expected.saturating_sub(whole.len()));
        }
        if whole.len() >= whole.capacity() / 2 {
            return Ok(whole);
        }
        // A short body came in a large buffer of the thread: callers may keep many bodies.
        let exact = whole.as_slice().to_vec();
        spares::give(whole);
        Ok(exact)
    }

    /// Refuses a body whose announced length exceeds the limit, without waiting for it. Skips decoded bodies: only
    /// their compressed length is known, which may be larger.
    fn check_announced(&mut self, limit: u64) -> Result<(), Error> {
        let announced = self.content_length().filter(|_| self.coding().is_none());
        if announced.is_some_and(|length| length > limit) { Err(self.too_large(limit)) } else { Ok(()) }
    }

    fn too_large(&mut self, limit: u64) -> Error {
        let error = self.body.give_up(Cause::BodyTooLarge { limit });
        self.about(error)
    }

    fn poll(&mut self, context: &mut Context<'_>, into: &mut Vec<u8>) -> Poll<Result<bool, Error>> {
        let polled = ready!(self.body.poll(context, into));
        Poll::Ready(polled.map_err(|error| self.about(error)))
    }

    fn about(&self, error: Error) -> Error {
        error.about(&self.answer.method, &self.answer.url)
    }
}

impl<B> fmt::Debug for Response<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Response")
            .field("url", &without_query(&self.answer.url))
            .field("status", &self.answer.head.status)
            .field("headers", &self.answer.head.headers)
            .finish_non_exhaustive()
    }
}

/// The pieces of a body.
#[derive(Debug)]
pub struct Chunks<'r, B> {
    response: &'r mut Response<B>,
    piece: Vec<u8>,
}

impl<B: Source> Chunks<'_, B> {
    /// Returns the next piece as received: at most 64 KiB, never empty; `None` at the end.
    ///
    /// # Errors
    /// The body is incomplete, or larger than `Builder::stream_bytes`; a body whose `Content-Length` exceeds that limit
    /// gives no piece.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing: the next call continues.
    pub async fn next(&mut self) -> Result<Option<&[u8]>, Error> {
        self.piece.clear();
        let limit = self.response.limits.stream;
        self.response.check_announced(limit)?;
        if !poll_fn(|context| self.response.poll(context, &mut self.piece)).await? {
            return Ok(None);
        }
        self.response.given += self.piece.len() as u64;
        if self.response.given > limit {
            return Err(self.response.too_large(limit));
        }
        Ok(Some(&self.piece))
    }
}
