//! The clock that TTLs and breakers go by.

/// Milliseconds since the machine started, as far as it was awake.
#[inline]
pub(crate) fn now() -> u64 {
    oroshi_net::monotonic_ns() / 1_000_000
}
