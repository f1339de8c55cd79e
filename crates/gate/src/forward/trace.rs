//! The `traceparent` field of W3C Trace Context, level 1 and level 2 (section 3.2).

use std::fmt;

use oroshi_http1::Headers;

/// Bytes of version 00: `00-`, 32 digits of the trace, `-`, 16 of the parent, `-`, 2 of flags.
const LENGTH: usize = 55;

/// A trace's and a parent's id for an upstream.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct TraceParent {
    bytes: [u8; LENGTH],
    is_received: bool,
}

impl TraceParent {
    /// Begins a trace, which asks for being recorded: without the flag `sampled`, servers that follow their caller's
    /// choice would record nothing.
    pub(super) fn new() -> Self {
        // An id of zeros is invalid (sections 3.2.2.3 and 3.2.2.4).
        let (trace, parent) = (fastrand::u128(1..), fastrand::u64(1..));
        let mut bytes = [0; LENGTH];
        bytes.copy_from_slice(format!("00-{trace:032x}-{parent:016x}-01").as_bytes());
        TraceParent { bytes, is_received: false }
    }

    /// Takes over the one that a request has, if it is valid and the only one.
    ///
    /// A later version is read as version 00 reads it (section 4.3).
    pub(super) fn received(headers: Headers<'_>) -> Option<Self> {
        let mut values = headers.get_all("traceparent");
        let value = values.next().filter(|_| values.next().is_none())?;
        let (known, rest) = value.split_first_chunk::<LENGTH>()?;
        let is_whole = rest.is_empty() || (rest[0] == b'-' && !known.starts_with(b"00"));
        let digits = |bytes: &[u8]| bytes.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let zeros = |bytes: &[u8]| bytes.iter().all(|&byte| byte == b'0');
        let dashes = [known[2], known[35], known[52]] == [b'-'; 3];
        let (version, trace, parent, flags) = (&known[..2], &known[3..35], &known[36..52], &known[53..]);
        let are_digits = [version, trace, parent, flags].into_iter().all(digits);
        let is_valid = is_whole && dashes && are_digits && version != b"ff" && !zeros(trace) && !zeros(parent);
        is_valid.then_some(TraceParent { bytes: *known, is_received: true })
    }

    /// Whether the client sent it, so that it passes on as it came, with its `tracestate`.
    pub(super) fn is_received(&self) -> bool {
        self.is_received
    }

    /// Returns the field's value; of a later version, the part that version 00 has.
    pub fn as_str(&self) -> &str {
        // Both constructors ensure ASCII.
        str::from_utf8(&self.bytes).unwrap_or_default()
    }

    /// Returns the trace's id: 32 hexadecimal digits.
    pub fn trace(&self) -> &str {
        &self.as_str()[3..35]
    }
}

impl fmt::Debug for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOUND: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn received(lines: &str) -> Option<TraceParent> {
        TraceParent::received(Headers::from_checked_lines(lines.as_bytes()))
    }

    #[test]
    fn a_sound_one_is_taken_over_and_another_is_not() {
        let one = received(&format!("traceparent: {SOUND}\r\n")).unwrap();
        assert_eq!((one.as_str(), one.trace()), (SOUND, "4bf92f3577b34da6a3ce929d0e0e4736"));
        let later = SOUND.replacen("00", "01", 1);
        for good in [later.clone(), format!("{later}-more")] {
            assert!(received(&format!("Traceparent: {good}\r\n")).is_some(), "{good}");
        }
        let bad = [
            SOUND.to_uppercase(),
            SOUND.replacen("00", "ff", 1),
            SOUND.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32)),
            SOUND.replace("00f067aa0ba902b7", &"0".repeat(16)),
            SOUND.replace("-01", "-0g"),
            SOUND.replace('-', "_"),
            format!("{SOUND}-more"),
            format!("{later}x"),
            SOUND[..54].to_owned(),
            String::new(),
        ];
        for bad in bad {
            assert!(received(&format!("traceparent: {bad}\r\n")).is_none(), "{bad}");
        }
        assert!(received(&format!("traceparent: {SOUND}\r\ntraceparent: {SOUND}\r\n")).is_none());
        assert!(received("").is_none());
    }

    #[test]
    fn a_new_one_is_sound_and_differs() {
        let (one, other) = (TraceParent::new(), TraceParent::new());
        let read = received(&format!("traceparent: {}\r\n", one.as_str())).unwrap();
        assert_eq!(read.as_str(), one.as_str());
        assert!(one.as_str().ends_with("-01") && one.trace() != other.trace());
    }
}
