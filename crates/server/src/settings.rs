//! Settings: time limits by phase, sizes, and the cap on connections.

use std::sync::Arc;
use std::time::Duration;

use oroshi_core::{sweep_pause, ticks};
use oroshi_http1::Limits;

use crate::capacity::Capacity;

/// The settings of one core's server. `Default` suits a public service.
///
/// Every time limit may be [`Duration::MAX`], which means never. A limit fires at its time or a little later, never
/// earlier: a sweep checks the core's connections eight times within the shortest limit (at least every second, at most
/// every 5 ms), so that no request needs a timer.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Limits on the bytes of a request: head, header count, target, chunk lines, trailers, body. Beyond a limit, the
    /// answer is 431, 414, 400 or 413, and the connection closes.
    pub limits: Limits,
    /// How long a connection may wait for the first byte of its next (or first) request. It then closes silently.
    pub idle_timeout: Duration,
    /// How long the head of a request may take from its first byte to its last, however often bytes come. The answer is
    /// then 408. A TLS handshake has the same limit.
    pub head_timeout: Duration,
    /// How long a body that is being read may pause. The handler's read then fails with
    /// [`Error::Timeout`](crate::Error::Timeout); if the handler passes the error on, the answer is 408.
    pub body_timeout: Duration,
    /// How long a request may take from its head to the last byte of its body, however often bytes come.
    pub request_timeout: Duration,
    /// The lowest rate of a body in bytes per second, on average over each [`body_rate_window`](Self::body_rate_window)
    /// of waiting; 0 means no limit. Only time in which the handler waits for the body counts. The handler's read then
    /// fails as after a pause.
    pub body_rate: u64,
    /// The waiting time over which a body's rate is measured. It begins with the body, so no body is too slow earlier.
    pub body_rate_window: Duration,
    /// How long a write may make no progress because the peer does not read. The connection is then dropped. It limits
    /// each wait, not the whole answer: a slow reader that takes some bytes each time may continue as long as it likes.
    pub write_timeout: Duration,
    /// How long to drain a closing connection while the peer still sends, so that the peer can read the answer.
    /// (Closing a TCP socket with unread bytes resets it, which can destroy the answer.)
    pub linger_timeout: Duration,
    /// How long requests in progress may take after a shutdown began. They are then cut off.
    pub drain_timeout: Duration,
    /// How long a connection that waits for a request when a shutdown begins may still send one, which is answered with
    /// `Connection: close`. A client cannot know that the server is about to close, so its next request may be on its
    /// way, and closing at once would lose it. Zero closes at once. This time is part of `drain_timeout`.
    pub last_request_timeout: Duration,
    /// The maximum of unread body bytes that are read and discarded to keep the connection. With more, the connection
    /// closes. Over HTTP/2: to end the stream without a reset, for at most `linger_timeout`.
    pub drain_bytes: u64,
    /// The maximum of connections of a core. At the cap it stops accepting; others wait in the listener's backlog. To
    /// make room, the server silently ends connections that wait longest without a whole request head, for at least
    /// `crowded_timeout`.
    pub connections: usize,
    /// The maximum of TLS handshakes under way on a core, with the header of a proxy before them. At the cap the TLS
    /// listeners stop accepting. To make room, the server silently ends handshakes that have taken longest, for at
    /// least `crowded_timeout`.
    pub handshakes: usize,
    /// A limit on the connections of several cores together, in addition to `connections` for each.
    pub capacity: Option<Arc<Capacity>>,
    /// Whether handlers vouch for connections ([`Exchange::vouch`](crate::Exchange::vouch)), for servers whose clients
    /// prove their identity. At the cap the oldest unproven connection is ended to make room, whatever it does and
    /// however young it is, but not before the request that came with it was handled. Other connections are ended only
    /// if there is no unproven one.
    pub vouching: bool,
    /// How long a connection may be without a whole request head, or within its handshake, while others wait for its
    /// place.
    pub crowded_timeout: Duration,
    /// Whether connections may be HTTP/2: those that begin with its preface, and over TLS those that chose `h2` by
    /// ALPN.
    pub http2: bool,
    /// Whether handlers answer requests for WebSocket over HTTP/2 (RFC 8441), which look as over HTTP/1.1.
    pub extended_connect: bool,
    /// Whether answers get a `Date` header (unless the handler sets one), as RFC 9110 section 6.6.1 asks of an origin
    /// server. A gateway that forwards its upstream's `Date` may switch it off.
    pub date: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            limits: Limits::default(),
            idle_timeout: Duration::from_secs(60),
            head_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(30),
            request_timeout: Duration::from_secs(3600),
            body_rate: 0,
            body_rate_window: Duration::from_secs(20),
            write_timeout: Duration::from_secs(30),
            linger_timeout: Duration::from_secs(5),
            drain_timeout: Duration::from_secs(30),
            last_request_timeout: Duration::ZERO,
            drain_bytes: 64 * 1024,
            connections: 100_000,
            handshakes: 10_000,
            capacity: None,
            vouching: false,
            crowded_timeout: Duration::from_secs(1),
            http2: true,
            extended_connect: false,
            date: true,
        }
    }
}

/// The time limits in ticks of the core's sweep.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticks {
    /// The length of one tick.
    pub(crate) length: Duration,
    pub(crate) idle: u64,
    pub(crate) head: u64,
    pub(crate) body: u64,
    pub(crate) request: u64,
    pub(crate) body_window: u64,
    pub(crate) write: u64,
    pub(crate) linger: u64,
    pub(crate) last_request: u64,
    pub(crate) crowded: u64,
    /// One second, and at least one tick.
    pub(crate) second: u64,
}

impl Ticks {
    pub(crate) fn new(settings: &Settings) -> Self {
        let limits = [
            settings.idle_timeout,
            settings.head_timeout,
            settings.body_timeout,
            settings.request_timeout,
            settings.write_timeout,
            settings.linger_timeout,
            if settings.body_rate > 0 { settings.body_rate_window } else { Duration::MAX },
        ];
        let shortest = limits.into_iter().min().unwrap_or(Duration::MAX);
        let length = sweep_pause(shortest, (Duration::from_millis(5), Duration::from_secs(1)));
        // Rounded up, plus one because a part of the current tick has passed: never early.
        let ticks = |limit: Duration| ticks(limit, length).saturating_add(1);
        Ticks {
            length,
            idle: ticks(settings.idle_timeout),
            head: ticks(settings.head_timeout),
            body: ticks(settings.body_timeout),
            request: ticks(settings.request_timeout),
            body_window: ticks(settings.body_rate_window),
            write: ticks(settings.write_timeout),
            linger: ticks(settings.linger_timeout),
            // These two need no faster sweep: one matters while others wait, the other once in a server's life.
            crowded: ticks(settings.crowded_timeout),
            second: ticks(Duration::from_secs(1)),
            last_request: if settings.last_request_timeout.is_zero() {
                0
            } else {
                ticks(settings.last_request_timeout)
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_never_shorter_than_the_limit() {
        let settings = Settings { head_timeout: Duration::from_millis(100), ..Settings::default() };
        let ticks = Ticks::new(&settings);
        assert_eq!(ticks.length, Duration::from_micros(12_500));
        // A limit set just before a tick loses nearly a whole tick.
        assert!(ticks.length * u32::try_from(ticks.head - 1).unwrap() >= Duration::from_millis(100));
        assert!(ticks.length * u32::try_from(ticks.idle - 1).unwrap() >= Duration::from_secs(60));
    }

    #[test]
    fn never_stays_never() {
        let settings = Settings { idle_timeout: Duration::MAX, request_timeout: Duration::MAX, ..Settings::default() };
        let ticks = Ticks::new(&settings);
        // Five hundred thousand million years, at a second a tick.
        assert!(ticks.idle > u64::MAX / 2 && ticks.request > u64::MAX / 2);
    }

    #[test]
    fn the_sweep_is_bounded_both_ways() {
        let short = Settings { write_timeout: Duration::from_nanos(1), ..Settings::default() };
        assert_eq!(Ticks::new(&short).length, Duration::from_millis(5));
        let never = Duration::MAX;
        let long = Settings {
            idle_timeout: never,
            head_timeout: never,
            body_timeout: never,
            request_timeout: never,
            write_timeout: never,
            linger_timeout: never,
            ..Settings::default()
        };
        assert_eq!(Ticks::new(&long).length, Duration::from_secs(1));
    }
}
