//! The settings of a connection.

use std::sync::Arc;
use std::time::Duration;

use oroshi_http2 as codec;

/// Bytes of a connection's output that wait for the socket, above which no body is added.
pub const OUTPUT_BYTES: usize = 64 * 1024;

/// The settings of a connection. Connections share one; it is cheap to clone.
#[derive(Clone, Debug)]
pub struct Config {
    /// The codec's settings and limits. Its `stream_window` bounds the unread bytes of each stream. Keep its
    /// `connection_window` far above the sum of all streams' windows, or a body that nobody reads holds up others.
    pub codec: Arc<codec::Config>,
    /// The most streams at once, whatever the peer allows. Default 1,000.
    pub streams: u32,
    /// Whether interim (1xx) responses are passed on; otherwise they are ignored. Default false.
    pub interim: bool,
    /// Pings on a connection from which nothing comes. Default none.
    pub ping: Option<Ping>,
}

/// Pings that detect a dead connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ping {
    /// The silence after which a ping is sent, on a connection with streams.
    pub after: Duration,
    /// The time for its answer. A connection without an answer has ended.
    pub timeout: Duration,
}

impl Default for Config {
    /// Windows of 256 KiB for each stream and of 2 GiB for the connection.
    fn default() -> Self {
        let codec =
            codec::Config { stream_window: 256 * 1024, connection_window: u32::MAX >> 1, ..codec::Config::default() };
        Config { codec: Arc::new(codec), streams: 1_000, interim: false, ping: None }
    }
}
