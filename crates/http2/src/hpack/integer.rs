//! Integers of HPACK (RFC 7541 section 5.1).

use crate::Defect;

/// Most bytes after the first: 28 bits, far above any limit on sizes.
const MOST_BYTES: usize = 4;

/// Decodes an integer with a prefix of `prefix` bits, whose first byte is `first`. Advances `input` past the rest.
#[inline]
pub(crate) fn decode(first: u8, prefix: u32, input: &mut &[u8]) -> Result<usize, Defect> {
    let mask = (1usize << prefix) - 1;
    let value = usize::from(first) & mask;
    if value < mask { Ok(value) } else { decode_rest(mask, input) }
}

fn decode_rest(mut value: usize, input: &mut &[u8]) -> Result<usize, Defect> {
    for place in 0..MOST_BYTES {
        let (&byte, rest) = input.split_first().ok_or(Defect::TruncatedBlock)?;
        *input = rest;
        value += usize::from(byte & 0x7f) << (7 * place);
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(Defect::IntegerOverflow)
}

/// Appends an integer with a prefix of `prefix` bits, after the other bits of the first byte.
#[inline]
pub(crate) fn encode(mut value: usize, prefix: u32, other: u8, out: &mut Vec<u8>) {
    let mask = (1usize << prefix) - 1;
    if value < mask {
        out.push(other | value as u8);
        return;
    }
    out.push(other | mask as u8);
    value -= mask;
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn decoded(bytes: &[u8], prefix: u32) -> Result<usize, Defect> {
        let mut rest = &bytes[1..];
        let value = decode(bytes[0], prefix, &mut rest)?;
        assert!(rest.is_empty());
        Ok(value)
    }

    /// RFC 7541 appendix C.1.
    #[test]
    fn examples_of_the_standard() {
        for (value, prefix, bytes) in [(10, 5, &[0x0a][..]), (1337, 5, &[0x1f, 0x9a, 0x0a]), (42, 8, &[0x2a])] {
            let mut out = Vec::new();
            encode(value, prefix, 0, &mut out);
            assert_eq!(out, bytes);
            assert_eq!(decoded(bytes, prefix), Ok(value));
        }
    }

    #[test]
    fn too_many_bytes_are_refused_even_if_they_add_nothing() {
        assert_eq!(decoded(&[0x1f, 0xff, 0xff, 0xff, 0x7f], 5), Ok((1 << 28) - 1 + 31));
        assert_eq!(decoded(&[0x1f, 0x80, 0x80, 0x80, 0x80, 0x00], 5), Err(Defect::IntegerOverflow));
        assert_eq!(decoded(&[0x1f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f], 5), Err(Defect::IntegerOverflow));
        assert_eq!(decoded(&[0x1f, 0x80], 5), Err(Defect::TruncatedBlock));
        assert_eq!(decoded(&[0x1f], 5), Err(Defect::TruncatedBlock));
    }

    proptest! {
        #[test]
        fn decoding_reverses_encoding(value in 0usize..1 << 28, prefix in 1u32..=8) {
            let mut out = Vec::new();
            encode(value, prefix, 0, &mut out);
            prop_assert_eq!(decoded(&out, prefix), Ok(value));
        }
    }
}
