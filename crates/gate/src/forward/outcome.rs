//! What became of a request, for access logs.

use std::fmt;
use std::rc::Rc;

use oroshi_net::monotonic_ns;

use crate::failure::Failure;
use crate::upstream::Pool;

/// What became of a request. All times are nanoseconds; those that never came are 0.
#[derive(Debug, Default)]
pub struct Outcome {
    /// The status that the client got; 0 if none.
    pub status: u16,
    /// The target that the request went to last.
    pub target: Option<Rc<Pool>>,
    /// Whether that was on a connection that had carried other requests.
    pub reused: bool,
    /// How many other connections it was tried on before, be it to other targets or to this one.
    pub retries: u32,
    /// Bytes of the answer's body; of a tunnel those to the client.
    pub bytes: u64,
    /// Of a tunnel: bytes to the server behind.
    pub bytes_up: u64,
    /// Whether the connection was switched to another protocol.
    pub switched: bool,
    /// What failed, if anything did.
    pub failure: Option<Failure>,
    /// More about that: for the log, not for the client. May be empty.
    pub detail: String,
    /// The id that the request was given, where the route asks for one.
    pub request_id: Option<RequestId>,
    /// When it began, by [`monotonic_ns`].
    pub began: u64,
    /// When it began to go anywhere: later than that only where its body was waited for.
    pub started: u64,
    /// In line for a connection.
    pub queued: u64,
    /// InspectFuture the name up and connecting.
    pub connecting: u64,
    /// From the start to the end of the answer's head.
    pub head: u64,
    /// From the beginning to the last byte from the server behind, which may still be on its way to the client.
    pub total: u64,
}

impl Outcome {
    /// Whether it came to an end. It did not when its future was dropped, as the client was gone or the server's time to shut down
    /// was over.
    pub fn is_ended(&self) -> bool {
        self.total > 0
    }

    pub(super) fn begin(&mut self) {
        self.began = monotonic_ns();
        self.started = self.began;
    }

    /// It has ended, now or when it is known to have.
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

/// The id of a request: 1 to 64 visible ASCII characters. One that the gateway makes up has 32 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RequestId {
    bytes: [u8; 64],
    length: u8,
}

impl RequestId {
    /// One that nobody else has, as far as chance allows.
    pub(super) fn new() -> Self {
        let number = fastrand::u128(..);
        let mut bytes = [0; 64];
        for (place, digit) in bytes.iter_mut().take(32).enumerate() {
            *digit = b"0123456789abcdef"[(number >> (4 * place) & 0x0f) as usize];
        }
        RequestId { bytes, length: 32 }
    }

    /// One that somebody else gave, if it is sound.
    pub(super) fn given(value: &[u8]) -> Option<Self> {
        let sound = (1..=64).contains(&value.len()) && value.iter().all(u8::is_ascii_graphic);
        sound.then(|| {
            let mut bytes = [0; 64];
            bytes[..value.len()].copy_from_slice(value);
            RequestId { bytes, length: value.len() as u8 }
        })
    }

    /// Its text.
    pub fn as_str(&self) -> &str {
        // ASCII, as both ways to make one see to.
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
