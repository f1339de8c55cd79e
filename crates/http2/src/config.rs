//! The settings and limits of a connection.

use crate::hpack::Compression;

/// The bounds of what one peer can make a connection do. All counts are per connection.
///
/// Three bounds are budgets: the peer's useless work spends them, its useful work and [`tick`](crate::Connection::tick)
/// refill them. An empty budget ends the connection with ENHANCE_YOUR_CALM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of one header block as encoded, its CONTINUATION frames included. Default 65,536.
    pub block_bytes: usize,
    /// CONTINUATION frames of one header block. Default 16.
    pub continuations: usize,
    /// Bytes of one head, decoded: names, values and 32 for each field (RFC 9113 section 6.5.2). A longer head is
    /// answered with 431, and not stored. Default 65,536.
    pub head_bytes: usize,
    /// Header fields of one head, without pseudo-headers. Each cookie crumb counts. Default 100.
    pub headers: usize,
    /// Bytes of `:path`. Default 8,192.
    pub target_bytes: usize,
    /// Bytes of a trailer section, counted as for `head_bytes`. Default 8,192.
    pub trailer_bytes: usize,
    /// Trailer fields of one message. Default 32.
    pub trailers: usize,
    /// Bytes of one body. Default `u64::MAX`; set it if you store bodies.
    pub body_bytes: u64,
    /// Interim (1xx) responses before a final one, at most 255. Default 16.
    pub informational: u8,
    /// Budget of streams that end by a reset of the peer's, or by one that the peer's mistake causes. A stream that
    /// ends well gives one back. Default 200.
    pub resets: u32,
    /// Budget of frames that demand an answer: PING and SETTINGS. A new stream gives one back. Default 1,000.
    pub answered_frames: u32,
    /// Budget of frames without use: WINDOW_UPDATE, PRIORITY, unknown types, DATA of less than 5 bytes that does not
    /// end its stream, heads and resets of closed streams. Each new stream gives four back, and DATA in either
    /// direction gives two or more, unless the peer's windows limit it to less than 64 bytes. Default 10,000.
    pub idle_frames: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            block_bytes: 65_536,
            continuations: 16,
            head_bytes: 65_536,
            headers: 100,
            target_bytes: 8_192,
            trailer_bytes: 8_192,
            trailers: 32,
            body_bytes: u64::MAX,
            informational: 16,
            resets: 200,
            answered_frames: 1_000,
            idle_frames: 10_000,
        }
    }
}

/// The limits of HTTP/1 that HTTP/2 has too; the others are the default ones.
impl From<&oroshi_http1::Limits> for Limits {
    fn from(limits: &oroshi_http1::Limits) -> Self {
        let own = Limits::default();
        Limits {
            block_bytes: limits.head_bytes.max(own.block_bytes),
            // A frame has at least 16 KiB, unless the peer wastes frames.
            continuations: (limits.head_bytes / 4096).max(own.continuations),
            head_bytes: limits.head_bytes,
            headers: limits.headers,
            target_bytes: limits.target_bytes,
            trailer_bytes: limits.trailer_bytes,
            trailers: limits.trailers,
            body_bytes: limits.body_bytes,
            informational: u8::try_from(limits.informational).unwrap_or(u8::MAX),
            ..own
        }
    }
}

/// The side of the interface that gives window back for received DATA.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Grants {
    /// The caller, by [`grant`](crate::Connection::grant), when it has passed the bytes on. Slow consumers slow the
    /// peer.
    #[default]
    Manual,
    /// The connection, as it returns the bytes. For callers that consume them at once.
    Automatic,
}

/// Which fields of the peer's heads a connection decodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Heads {
    /// All.
    #[default]
    All,
    /// Of responses, what frames them: status, Content-Length, and fields that HTTP/2 forbids. Other fields are not in
    /// [`ResponseHead::headers`](crate::ResponseHead::headers), and most are skipped without a check of their values.
    /// Requests and trailers have all fields. For a load that looks at no field.
    Framing,
}

/// The configuration of a connection. Connections share one by `Arc`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The bounds.
    pub limits: Limits,
    /// How to compress heads. Default: the static table alone.
    pub compression: Compression,
    /// Bytes of the dynamic table for the peer's heads (SETTINGS_HEADER_TABLE_SIZE). Default 4,096.
    pub table_bytes: u32,
    /// Bytes that the peer may send per stream before a grant (SETTINGS_INITIAL_WINDOW_SIZE), at most 2^31-1. A window
    /// below 64 bytes makes a peer like this one take the grants for an attack (`Limits::idle_frames`). Default
    /// 65,535.
    pub stream_window: u32,
    /// Bytes that the peer may send on all streams before a grant: 65,535 to 2^31-1. Default 1,048,576.
    pub connection_window: u32,
    /// Streams that the peer may have open at once (SETTINGS_MAX_CONCURRENT_STREAMS). A client's is never used. Default
    /// 128.
    pub streams: u32,
    /// Whether a server accepts extended CONNECT (RFC 8441). Default false.
    pub extended_connect: bool,
    /// Whether the caller or the connection gives window back.
    pub grants: Grants,
    /// Which fields to decode.
    pub heads: Heads,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            limits: Limits::default(),
            compression: Compression::default(),
            table_bytes: 4_096,
            stream_window: 65_535,
            connection_window: 1_048_576,
            streams: 128,
            extended_connect: false,
            grants: Grants::default(),
            heads: Heads::default(),
        }
    }
}

/// Counts what a peer may do for nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    left: u32,
    most: u32,
}

impl Budget {
    pub(crate) const fn new(most: u32) -> Self {
        Budget { left: most, most }
    }

    /// Takes `count`; returns false if less is left.
    #[inline]
    pub(crate) fn spend(&mut self, count: u32) -> bool {
        let enough = self.left >= count;
        self.left = self.left.saturating_sub(count);
        enough
    }

    /// Gives `count` back.
    #[inline]
    pub(crate) fn earn(&mut self, count: u32) {
        self.left = self.left.saturating_add(count).min(self.most);
    }

    /// Gives a tenth back, and at least 1.
    pub(crate) fn tick(&mut self) {
        self.earn((self.most / 10).max(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_never_exceeds_its_size() {
        let mut budget = Budget::new(3);
        budget.earn(9);
        assert!((0..3).all(|_| budget.spend(1)));
        assert!(!budget.spend(1));
        budget.tick();
        assert!(budget.spend(1) && !budget.spend(1));
    }
}
