//! The outcome of a request, for access logs.

use std::fmt;
use std::rc::Rc;

use oroshi_http1::Version;
use oroshi_net::monotonic_ns;

use super::trace::TraceParent;
use crate::failure::Failure;
use crate::upstream::Pool;

/// The outcome of a request. All times are nanoseconds; 0 if never reached.
#[derive(Debug, Default)]
pub struct Outcome {
    /// The status that the client received; 0 if none.
    pub status: u16,
    /// The last target of the request.
    pub target: Option<Rc<Pool>>,
    /// Whether its connection had carried other requests.
    pub reused: bool,
    /// The version of HTTP that the target answered with.
    pub version: Option<Version>,
    /// How many earlier attempts there were, on this target or on others.
    pub retries: u32,
    /// Bytes of the response's body; in a tunnel, bytes to the client.
    pub bytes: u64,
    /// In a tunnel, bytes to the upstream.
    pub bytes_up: u64,
    /// Whether the connection switched to another protocol.
    pub switched: bool,
    /// The failure, if any.
    pub failure: Option<Failure>,
    /// Detail of the failure, for the log but not for the client. May be empty.
    pub detail: String,
    /// The request's id, if the route asks for one.
    pub request_id: Option<RequestId>,
    /// The trace's and the parent's id, if the route asks for them.
    pub traceparent: Option<TraceParent>,
    /// When the request began, by [`monotonic_ns`].
    pub began: u64,
    /// When forwarding began: later than `began` only if the body was buffered.
    pub started: u64,
    /// Time in the queue for a connection.
    pub queued: u64,
    /// Time for resolving the name and connecting.
    pub connecting: u64,
    /// From `started` to the end of the response's head.
    pub head: u64,
    /// From `began` to the last byte from the upstream, which may still be on its way to the client.
    pub total: u64,
}

impl Outcome {
    /// Returns whether the request ended. It did not if its future was dropped, because the client left or the
    /// shutdown's time was over.
    pub fn is_ended(&self) -> bool {
        self.total > 0
    }

    pub(super) fn begin(&mut self) {
        self.began = monotonic_ns();
        self.started = self.began;
    }

    /// Sets the end, unless it is already set.
    pub(super) fn end(&mut self) {
        if self.total == 0 {
            self.total = (monotonic_ns() - self.began).max(1);
        }
    }

    pub(super) fn fail(&mut self, failure: Failure, detail: String) {
        self.failure = Some(failure);
        self.detail = detail;
        self.end();
    }
}

/// A request's id: 1 to 64 visible ASCII characters. The gateway's own ids have 32 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RequestId {
    bytes: [u8; 64],
    length: u8,
}

impl RequestId {
    /// Makes a random id.
    pub(super) fn new() -> Self {
        let number = fastrand::u128(..);
        let mut bytes = [0; 64];
        for (place, digit) in bytes.iter_mut().take(32).enumerate() {
            *digit = b"0123456789abcdef"[(number >> (4 * place) & 0x0f) as usize];
        }
        RequestId { bytes, length: 32 }
    }

    /// Takes over a given id, if it is valid.
    pub(super) fn given(value: &[u8]) -> Option<Self> {
        let sound = (1..=64).contains(&value.len()) && value.iter().all(u8::is_ascii_graphic);
        sound.then(|| {
            let mut bytes = [0; 64];
            bytes[..value.len()].copy_from_slice(value);
            RequestId { bytes, length: value.len() as u8 }
        })
    }

    /// Returns the id as text.
    pub fn as_str(&self) -> &str {
        // Both constructors ensure ASCII.
        str::from_utf8(&self.bytes[..usize::from(self.length)]).unwrap_or_default()
    }
}

impl fmt::Debug for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_taken_over_only_when_they_are_sound() {
        assert_eq!(RequestId::given(b"a-1").unwrap().as_str(), "a-1");
        assert_eq!(RequestId::given(&[b'x'; 64]).unwrap().as_str().len(), 64);
        for bad in [&b""[..], b"a b", b"a\t", b"\xc3\xa9", &[b'x'; 65]] {
            assert!(RequestId::given(bad).is_none());
        }
        assert_eq!(RequestId::new().as_str().len(), 32);
        assert_ne!(RequestId::new(), RequestId::new());
    }
}
