//! The meaning of field names, and the checks of one field that its message does not influence.

use oroshi_http1::DecodeError;

use crate::Defect;

/// The meaning of a field name for this crate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `:method`
    Method,
    /// `:scheme`
    Scheme,
    /// `:authority`
    Authority,
    /// `:path`
    Path,
    /// `:protocol` (RFC 8441)
    Protocol,
    /// `:status`
    Status,
    /// Another name that begins with a colon.
    UnknownPseudo,
    /// `host`
    Host,
    /// `cookie`
    Cookie,
    /// `content-length`
    ContentLength,
    /// `content_length`, `transfer_encoding`: readers that convert names to CGI variables take these for the real ones.
    Underscore,
    /// A field of an HTTP/1.1 connection (RFC 9113 section 8.2.2).
    Connection,
    /// `te`
    Te,
    /// `expect`
    Expect,
    /// Any other field.
    Other,
}

impl Kind {
    /// Returns the meaning of a name in lower case.
    #[inline]
    pub(crate) const fn of(name: &[u8]) -> Kind {
        match name {
            [b':', ..] => match name {
                b":method" => Kind::Method,
                b":scheme" => Kind::Scheme,
                b":authority" => Kind::Authority,
                b":path" => Kind::Path,
                b":protocol" => Kind::Protocol,
                b":status" => Kind::Status,
                _ => Kind::UnknownPseudo,
            },
            b"te" => Kind::Te,
            b"host" => Kind::Host,
            b"cookie" => Kind::Cookie,
            b"expect" => Kind::Expect,
            b"content-length" => Kind::ContentLength,
            b"content_length" | b"transfer_encoding" => Kind::Underscore,
            b"upgrade" | b"connection" | b"keep-alive" | b"proxy-connection" | b"transfer-encoding" => Kind::Connection,
            _ => Kind::Other,
        }
    }

    /// Whether two names are equal, in constants.
    pub(crate) const fn same(one: &[u8], other: &[u8]) -> bool {
        if one.len() != other.len() {
            return false;
        }
        let mut place = 0;
        while place < one.len() {
            if one[place] != other[place] {
                return false;
            }
            place += 1;
        }
        true
    }
}

/// Checks a name (RFC 9113 section 8.2): a token in lower case, perhaps after a colon.
pub(crate) fn check_name(name: &[u8]) -> Option<Defect> {
    let token = name.strip_prefix(b":").unwrap_or(name);
    // Without an early end: names are short, and nearly all are valid.
    let classes = token.iter().fold(0, |classes, &byte| classes | CLASSES[usize::from(byte)]);
    match classes {
        NAME => None,
        _ if classes & INVALID != 0 || token.is_empty() => Some(DecodeError::BadFieldName.into()),
        _ => Some(Defect::UpperCaseName),
    }
}

/// Checks a value (RFC 9113 section 8.2.1): no control character but the tab, no white space around it.
pub(crate) fn check_value(value: &[u8]) -> Option<Defect> {
    // Eight bytes at a time; the last eight overlap.
    let suspect = match value.last_chunk::<8>() {
        Some(last) => {
            value.as_chunks::<8>().0.iter().fold(has_control(*last), |any, word| any | has_control(*word)) != 0
        }
        None => true,
    };
    if suspect && value.iter().any(|&byte| byte < b' ' && byte != b'\t' || byte == 0x7f) {
        let error = if value.contains(&0) { DecodeError::Nul } else { DecodeError::BadFieldValue };
        return Some(error.into());
    }
    match value {
        [b' ' | b'\t', ..] | [.., b' ' | b'\t'] => Some(Defect::SpaceAroundValue),
        _ => None,
    }
}

/// Returns zero if no byte is below a space or is DEL.
#[inline]
fn has_control(bytes: [u8; 8]) -> u64 {
    const ONES: u64 = u64::MAX / 255;
    let word = u64::from_ne_bytes(bytes);
    let below_space = word.wrapping_sub(ONES * 0x20) & !word;
    let other = word ^ (ONES * 0x7f);
    let delete = other.wrapping_sub(ONES) & !other;
    (below_space | delete) & (ONES << 7)
}

const NAME: u8 = 1;
const UPPER: u8 = 2;
const INVALID: u8 = 4;

static CLASSES: [u8; 256] = {
    let mut classes = [INVALID; 256];
    let mut byte = 0;
    while byte < 256 {
        if oroshi_http1::is_token_byte(byte as u8) {
            classes[byte] = if (byte as u8).is_ascii_uppercase() { UPPER } else { NAME };
        }
        byte += 1;
    }
    classes
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_lower_case_tokens() {
        for good in ["a", ":path", "x-1", "!#$%&'*+.^_`|~", "content_length"] {
            assert_eq!(check_name(good.as_bytes()), None, "{good}");
        }
        for bad in ["", ":", "::a", "a:", "a b", "a\r\n", "\u{e9}", "A:", "a\0"] {
            assert_eq!(check_name(bad.as_bytes()), Some(DecodeError::BadFieldName.into()), "{bad:?}");
        }
        for upper in ["A", "aB", ":Path"] {
            assert_eq!(check_name(upper.as_bytes()), Some(Defect::UpperCaseName), "{upper}");
        }
    }

    #[test]
    fn values_have_no_control_characters_and_no_white_space_around() {
        for good in [&b""[..], b"a", b"a b\tc", b"\xff\x80", b"a\x20\x20b"] {
            assert_eq!(check_value(good), None);
        }
        for byte in 0..=255u8 {
            let expected = match byte {
                0 => Some(DecodeError::Nul.into()),
                b'\t' | b' '..=0x7e | 0x80.. => None,
                _ => Some(DecodeError::BadFieldValue.into()),
            };
            for length in [1, 7, 8, 9, 16, 20] {
                for place in 0..length {
                    let mut value = vec![b'a'; length + 2];
                    value[place + 1] = byte;
                    assert_eq!(check_value(&value), expected, "{byte} in {length} bytes");
                }
            }
        }
        for around in [&b" "[..], b" a", b"a ", b"\ta", b"a\t"] {
            assert_eq!(check_value(around), Some(Defect::SpaceAroundValue));
        }
    }
}
