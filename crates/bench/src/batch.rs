//! The requests that a script made: their bytes, and where each begins and ends.

use oroshi_http1::{DecodeError, ExpectedResponse, Limits, RequestDecoder, RequestEvent};

/// Longest head and target that a script may make: more than servers accept, so that scripts can test their limits.
const HEAD_LIMIT: usize = 1024 * 1024;

/// Requests one after the other, as a script made them.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub(crate) bytes: Vec<u8>,
    pub(crate) requests: Vec<BatchedRequest>,
}

/// One request among the bytes of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BatchedRequest {
    pub(crate) start: usize,
    pub(crate) end: usize,
    /// The kind of response that it gets.
    pub(crate) expect: ExpectedResponse,
    /// Whether it asks the server to close.
    pub(crate) closes: bool,
    /// Where the empty line after its head begins.
    head_end: usize,
}

/// Why bytes cannot be sent as requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BatchError {
    #[error("nothing")]
    Empty,
    #[error("what is no HTTP request: {0}")]
    Malformed(DecodeError),
    #[error("a request whose head does not end: an empty line (CR LF CR LF) is missing after it")]
    NoEnd,
    #[error("a request whose body is shorter than its Content-Length or chunks say")]
    ShortBody,
    #[error("several requests at once, where one is always sent: define request() for that")]
    Several,
    #[error("a CONNECT request, which makes a tunnel: a load of requests cannot use one")]
    Connect,
}

/// The limits on requests that a script makes.
pub(crate) fn limits() -> Limits {
    Limits { head_bytes: HEAD_LIMIT, target_bytes: HEAD_LIMIT, headers: usize::MAX, ..Limits::default() }
}

impl Batch {
    /// Removes the requests, and keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.requests.clear();
    }

    /// Finds the requests in the bytes. They must be whole, with nothing between them.
    pub(crate) fn divide(&mut self) -> Result<(), BatchError> {
        let limits = limits();
        let total = self.bytes.len();
        let mut input = &self.bytes[..];
        let mut decoder = RequestDecoder::default();
        let mut made = None;
        while !input.is_empty() || made.is_some() {
            let start = total - input.len();
            match decoder.decode(&limits, &mut input).map_err(BatchError::Malformed)? {
                Some(RequestEvent::Head(head)) => {
                    let expect = match head.method {
                        "CONNECT" => return Err(BatchError::Connect),
                        "HEAD" => ExpectedResponse::Head,
                        _ if head.upgrade.is_some() => ExpectedResponse::Upgrade,
                        _ => ExpectedResponse::Body,
                    };
                    let head_end = total - input.len() - 2;
                    made = Some(BatchedRequest { start, end: 0, expect, closes: !head.keep_alive, head_end });
                }
                Some(RequestEvent::Data(_) | RequestEvent::Trailers(_)) => {}
                Some(RequestEvent::End) => {
                    self.requests.extend(made.take().map(|made| BatchedRequest { end: total - input.len(), ..made }));
                }
                None if made.is_some() => return Err(BatchError::ShortBody),
                None => return Err(BatchError::NoEnd),
            }
        }
        if self.requests.is_empty() { Err(BatchError::Empty) } else { Ok(()) }
    }

    /// The bytes of a request.
    pub(crate) fn bytes_of(&self, made: &BatchedRequest) -> &[u8] {
        &self.bytes[made.start..made.end]
    }

    /// Adds `Connection: close` to the only request, unless it asks the server to close.
    pub(crate) fn close_after_the_only(&mut self) {
        if let [made] = &mut self.requests[..]
            && !made.closes
        {
            const CLOSE: &[u8] = b"Connection: close\r\n";
            self.bytes.splice(made.head_end..made.head_end, CLOSE.iter().copied());
            *made = BatchedRequest {
                head_end: made.head_end + CLOSE.len(),
                end: made.end + CLOSE.len(),
                closes: true,
                ..*made
            };
        }
    }

    /// Adds a request that was made before, on another connection.
    pub(crate) fn adopt(&mut self, bytes: &[u8], made: &BatchedRequest) -> BatchedRequest {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        let moved = |at: usize| at - made.start + start;
        BatchedRequest { start, end: moved(made.end), head_end: moved(made.head_end), ..*made }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(bytes: &[u8]) -> Result<Batch, BatchError> {
        let mut batch = Batch { bytes: bytes.to_vec(), requests: Vec::new() };
        batch.divide().map(|()| batch)
    }

    #[test]
    fn requests_are_found_one_after_the_other() {
        let bytes = b"HEAD /a HTTP/1.1\r\nHost: h\r\n\r\nPOST /b HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc\
            GET /c HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n\
            POST /d HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n";
        let batch = batch(bytes).unwrap();
        let firsts: Vec<&[u8]> = batch.requests.iter().map(|made| &batch.bytes_of(made)[..6]).collect();
        assert_eq!(firsts, [b"HEAD /", b"POST /", b"GET /c", b"POST /"]);
        assert_eq!(
            batch.requests.iter().map(|made| made.expect == ExpectedResponse::Head).collect::<Vec<_>>(),
            [true, false, false, false]
        );
        assert_eq!(batch.requests.iter().position(|made| made.closes), Some(2));
        assert_eq!((batch.requests[0].start, batch.requests[3].end), (0, bytes.len()));
        assert!(batch.bytes_of(&batch.requests[1]).ends_with(b"\r\n\r\nabc"));
    }

    #[test]
    fn what_is_no_whole_request_is_refused() {
        let cases: [(&[u8], BatchError); 5] = [
            (b"", BatchError::Empty),
            (b"GET / HTTP/1.1\r\nHost: h\r\n", BatchError::NoEnd),
            (b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nab", BatchError::ShortBody),
            (b"CONNECT h:1 HTTP/1.1\r\nHost: h:1\r\n\r\n", BatchError::Connect),
            (b"GET / HTTP/1.1\r\n\r\n", BatchError::Malformed(DecodeError::MissingHost)),
        ];
        for (bytes, error) in cases {
            assert_eq!(batch(bytes).unwrap_err(), error);
        }
        assert!(matches!(batch(b"42"), Err(BatchError::NoEnd | BatchError::Malformed(_))));
        assert!(batch(b"GET / HTTP/1.1\r\nHost: h\r\n\r\nGET").is_err());
    }

    #[test]
    fn closing_is_asked_for_once() {
        let mut asks = batch(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\nx").unwrap();
        for _ in 0..2 {
            asks.close_after_the_only();
            let expected = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nConnection: close\r\n\r\nx";
            assert_eq!(asks.bytes_of(&asks.requests[0]), expected);
        }
        let adopted = Batch::default().adopt(asks.bytes_of(&asks.requests[0]), &asks.requests[0]);
        assert_eq!((adopted.start, adopted.end), (0, asks.bytes.len()));
    }
}
