//! What a request is answered with.

use std::fmt;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::task::{Context, Poll, ready};

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
/// A body that is not read to its end costs its connection: dropping the response closes it. (A small body has mostly come with
/// the head, and has given its connection back already.) A response has no limit in time while nobody reads it, but for
/// [`Deadlines::total`](crate::Deadlines::total).
pub struct Response<B> {
    answer: Box<Answer>,
    body: B,
    limits: Limits,
    /// Bytes that `chunks` has given.
    given: u64,
}

/// All of a response but its body.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) method: std::borrow::Cow<'static, str>,
    /// The last one, after redirects.
    pub(crate) url: Endpoint,
    pub(crate) head: Head,
    pub(crate) redirects: u32,
    pub(crate) coding: Option<Coding>,
}

/// How much of a body may be read, unpacked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) collect: u64,
    pub(crate) stream: u64,
}

/// Where a body comes from: the connection itself, or the thread that has it. Not for others to implement.
pub trait Source: sealed::Source {}

impl<S: sealed::Source> Source for S {}

pub(crate) mod sealed {
    use std::task::{Context, Poll};

    use super::{Cause, Error, Headers, Timings};

    pub trait Source {
        /// The next bytes, behind what `into` holds; false at the end.
        fn poll(&mut self, context: &mut Context<'_>, into: &mut Vec<u8>) -> Poll<Result<bool, Error>>;
        /// Ends it before its end.
        fn give_up(&mut self, cause: Cause) -> Error;
        fn timings(&self) -> Timings;
        fn trailers(&self) -> Option<&Headers>;
    }
}

impl<B: Source> Response<B> {
    pub(crate) fn new(answer: Box<Answer>, body: B, limits: Limits) -> Self {
        Response { answer, body, limits, given: 0 }
    }

    /// The status, 100 to 999. A status of 400 or more is an answer like any other, and no error.
    pub fn status(&self) -> u16 {
        self.answer.head.status
    }

    /// Whether the status is 200 to 299.
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status())
    }

    /// The reason phrase, perhaps empty.
    pub fn reason(&self) -> &[u8] {
        &self.answer.head.reason
    }

    /// The version that the server speaks.
    pub fn version(&self) -> Version {
        self.answer.head.version
    }

    /// The header fields as they came, `Content-Encoding` and `Content-Length` of a body that is unpacked included.
    pub fn headers(&self) -> &Headers {
        &self.answer.head.headers
    }

    /// The URL that was answered: the last one after redirects.
    pub fn url(&self) -> &Endpoint {
        &self.answer.url
    }

    /// The address that answered; `None` for a unix socket. Where a name has several addresses, it tells which.
    pub fn remote_address(&self) -> Option<SocketAddr> {
        self.answer.head.remote
    }

    /// How many redirects were followed.
    pub fn redirects(&self) -> u32 {
        self.answer.redirects
    }

    /// The body's length on the wire, where the head says it.
    pub fn content_length(&self) -> Option<u64> {
        self.answer.head.length
    }

    /// What the body is unpacked from, if it is.
    pub fn coding(&self) -> Option<Coding> {
        self.answer.coding
    }

    /// How long each phase took. `body` and `total` grow until the body has ended.
    pub fn timings(&self) -> Timings {
        self.body.timings()
    }

    /// The fields after a chunked body, once it has been read to its end and if there are any.
    pub fn trailers(&self) -> Option<&Headers> {
        self.body.trailers()
    }

    /// The body, piece by piece. It can be called again to go on.
    pub fn chunks(&mut self) -> Chunks<'_, B> {
        Chunks { response: self, piece: Vec::new() }
    }

    /// The whole body.
    ///
    /// # Errors
    /// The body did not come whole, or is larger than `Builder::collect_bytes`.
    ///
    /// # Cancel safety
    /// Dropping the future closes the connection, unless the body had come whole.
    pub async fn bytes(mut self) -> Result<Vec<u8>, Error> {
        self.collect().await
    }

    /// The whole body, which must be UTF-8.
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

    /// The whole body, read as JSON.
    ///
    /// # Errors
    /// As [`bytes`](Self::bytes); and the body is not JSON, or not this JSON.
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
        // What a server announces is believed as far as it costs little.
        let expected = self.content_length().unwrap_or(0).min(limit).min(64 * 1024);
        let mut whole = Vec::with_capacity(usize::try_from(expected).unwrap_or(0));
        while poll_fn(|context| self.poll(context, &mut whole)).await? {
            if whole.len() as u64 > limit {
                return Err(self.too_large(limit));
            }
        }
        Ok(whole)
    }

    /// Refuses a body that is announced as larger than it may be: nothing of it is waited for. Of one that is unpacked only its packed
    /// length is known, which may be the larger one.
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

/// A body, piece by piece.
#[derive(Debug)]
pub struct Chunks<'r, B> {
    response: &'r mut Response<B>,
    piece: Vec<u8>,
}

impl<B: Source> Chunks<'_, B> {
    /// The next piece, as it came: at most 64 KiB, never empty; `None` at the end.
    ///
    /// # Errors
    /// The body did not come whole, or is larger than `Builder::stream_bytes`; one whose `Content-Length` says so already gives no piece.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing: the next call goes on.
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
