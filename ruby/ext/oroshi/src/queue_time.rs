//! Reads X-Request-Start, in which a proxy says when it received a request.

use crate::clock;

/// A longer time is a mistake of the sender, or of a clock.
const MOST_US: u64 = 24 * 3600 * 1_000_000;

/// Returns the microseconds since the moment in a value of X-Request-Start; `None` if there is none, or if it is more
/// than a day ago. A moment in the future, as another machine's clock may give it, is now.
pub(crate) fn since_request_start(value: &[u8]) -> Option<u64> {
    let since_us = clock::unix_us().saturating_sub(request_start_us(value)?);
    (since_us <= MOST_US).then_some(since_us)
}

/// Returns microseconds since 1970 from `t=1764200000.123` (seconds, as nginx's `$msec`), or from a whole number of
/// seconds, milliseconds, microseconds or nanoseconds, as other proxies write them. The size of the number tells which.
fn request_start_us(value: &[u8]) -> Option<u64> {
    let value = value.trim_ascii();
    let value = value.strip_prefix(b"t=").unwrap_or(value);
    let point = value.iter().position(|&byte| byte == b'.');
    let (whole, fraction) = value.split_at(point.unwrap_or(value.len()));
    let whole = digits(whole, 19)?;
    if point.is_some() {
        let fraction = &fraction[1..fraction.len().min(7)];
        let scale = 10_u64.pow(6 - fraction.len() as u32);
        return whole.checked_mul(1_000_000)?.checked_add(digits(fraction, 6)? * scale);
    }
    let (seconds, milliseconds, microseconds) = (100_000_000_000, 100_000_000_000_000, 100_000_000_000_000_000);
    Some(if whole < seconds {
        whole * 1_000_000
    } else if whole < milliseconds {
        whole * 1000
    } else if whole < microseconds {
        whole
    } else {
        whole / 1000
    })
}

/// Returns the number that at most `most` decimal digits write.
fn digits(text: &[u8], most: usize) -> Option<u64> {
    if text.is_empty() || text.len() > most || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_in_any_unit() {
        for (value, us) in [
            (&b"t=1764200000.123"[..], Some(1_764_200_000_123_000)),
            (b"1764200000.123456789", Some(1_764_200_000_123_456)),
            (b" 1764200000 ", Some(1_764_200_000_000_000)),
            (b"1764200000123", Some(1_764_200_000_123_000)),
            (b"t=1764200000123456", Some(1_764_200_000_123_456)),
            (b"1764200000123456789", Some(1_764_200_000_123_456)),
            (b"", None),
            (b"t=", None),
            (b"now", None),
            (b"1764200000.", None),
            (b"-5", None),
            (b"17642000001234567890", None),
            (b"9999999999999999999.5", None),
        ] {
            assert_eq!(request_start_us(value), us, "{}", value.escape_ascii());
        }
    }

    #[test]
    fn the_future_is_now_and_the_far_past_is_a_mistake() {
        assert_eq!(since_request_start(b"99999999999"), Some(0));
        assert_eq!(since_request_start(b"1000000000"), None);
    }
}
