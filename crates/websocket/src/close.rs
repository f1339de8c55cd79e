//! Close codes (RFC 6455 section 7.4).

/// A close code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CloseCode(pub u16);

impl CloseCode {
    /// The purpose is fulfilled.
    pub const NORMAL: Self = CloseCode(1000);
    /// The server goes down, or the page is left.
    pub const GOING_AWAY: Self = CloseCode(1001);
    /// The peer did not speak WebSocket.
    pub const PROTOCOL_ERROR: Self = CloseCode(1002);
    /// Text where only binary is accepted, or vice versa.
    pub const UNSUPPORTED: Self = CloseCode(1003);
    /// A text that is not UTF-8.
    pub const INVALID_DATA: Self = CloseCode(1007);
    /// A message refused for its content.
    pub const POLICY: Self = CloseCode(1008);
    /// A message that is too large.
    pub const TOO_LARGE: Self = CloseCode(1009);
    /// The server met an error that it cannot handle.
    pub const INTERNAL_ERROR: Self = CloseCode(1011);
    /// The server restarts; reconnect after a while.
    pub const RESTART: Self = CloseCode(1012);
    /// The server is overloaded; reconnect later.
    pub const TRY_AGAIN: Self = CloseCode(1013);

    /// Whether a close frame may carry the code.
    ///
    /// 1004 to 1006 and 1015 never occur in one; 1016 to 2999 are undefined; 3000 to 4999 are the application's.
    #[must_use]
    pub const fn may_be_sent(self) -> bool {
        matches!(self.0, 1000..=1003 | 1007..=1014 | 3000..=4999)
    }
}

#[cfg(test)]
mod tests {
    use super::CloseCode;

    #[test]
    fn codes_that_are_reserved_are_not_sent() {
        let sent = (0..=65_535).filter(|&code| CloseCode(code).may_be_sent());
        let ranges = [1000..=1003, 1007..=1014, 3000..=4999];
        assert!(sent.eq(ranges.into_iter().flatten()));
    }
}
