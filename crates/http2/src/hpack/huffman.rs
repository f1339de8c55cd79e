//! The Huffman code of HPACK (RFC 7541 section 5.2 and appendix B).
//!
//! The code is canonical: shorter codes come first, and codes of one length ascend with their symbols. The lengths
//! alone therefore define it, and the compiler derives every table from them.

/// The symbol that must not occur in a string: only its first bits pad the last byte.
const END: usize = 256;

/// The longest code, in bits.
const LONGEST: usize = 30;

/// Bits of a code that the first table decodes at once. Two symbols of a short code fit into them.
const DIRECT_BITS: u32 = 11;

/// The length of each symbol's code, in bits (RFC 7541 appendix B).
const LENGTHS: [u8; 257] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28,
    28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12,
    10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6, 15, 5, 6,
    5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22,
    22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22, 21, 20,
    22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28,
    27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28,
    27, 27, 27, 27, 27, 26, 30,
];

/// A string that is no Huffman code: it contains the end symbol, or its padding is longer than 7 bits or has a zero
/// (RFC 7541 section 5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BadHuffman;

/// Returns the number of bytes that [`encode`] appends for `text`.
pub(crate) fn encoded_len(text: &[u8]) -> usize {
    let bits: usize = text.iter().map(|&byte| usize::from(LENGTHS[usize::from(byte)])).sum();
    bits.div_ceil(8)
}

/// Appends the code of `text`.
pub(crate) fn encode(text: &[u8], out: &mut Vec<u8>) {
    let (mut bits, mut count) = (0u64, 0u32);
    for &byte in text {
        let symbol = usize::from(byte);
        bits = bits << LENGTHS[symbol] | u64::from(CANON.codes[symbol]);
        count += u32::from(LENGTHS[symbol]);
        // At most 31 bits stay, and a code has at most 30.
        if count >= 32 {
            count -= 32;
            out.extend_from_slice(&((bits >> count) as u32).to_be_bytes());
        }
    }
    let padding = (8 - count % 8) % 8;
    bits = bits << padding | ((1 << padding) - 1);
    count += padding;
    out.extend_from_slice(&(bits << (64 - count.max(1))).to_be_bytes()[..(count / 8) as usize]);
}

/// Appends the text of a code.
///
/// Writes at most 8/5 of the code's length, since the shortest code has 5 bits.
pub(crate) fn decode(code: &[u8], out: &mut Vec<u8>) -> Result<(), BadHuffman> {
    let start = out.len();
    // Room after the last symbol spares a check per symbol.
    out.resize(start + code.len() * 8 / 5 + 16, 0);
    let (mut rest, mut end) = (code, start);
    // The next bits, from the highest on. Behind the last of `count` come zeros or bits that will come again.
    let (mut bits, mut count) = (0u64, 0u32);
    // While eight more bytes are there, five look-ups need no check: 56 bits at least, and at most ten symbols.
    while let Some(word) = rest.first_chunk::<8>()
        && let Some(window) = out[end..].first_chunk_mut::<16>()
    {
        // Bits behind the last of `count` come twice, with the same value.
        bits |= u64::from_be_bytes(*word) >> count;
        let bytes = (63 - count) / 8;
        count += bytes * 8;
        rest = &rest[bytes as usize..];
        let mut place = 0;
        for _ in 0..5 {
            let entry = DIRECT[(bits >> (64 - DIRECT_BITS)) as usize];
            if entry.symbols == 0 {
                // A longer code, of at most 30 bits: rare, so more bits come first.
                if count >= LONGEST as u32 {
                    let (symbol, used) = one_symbol(bits).ok_or(BadHuffman)?;
                    window[place & 15] = symbol;
                    place += 1;
                    bits <<= used;
                    count -= used;
                }
                break;
            }
            window[place & 15] = entry.text[0];
            window[(place + 1) & 15] = entry.text[1];
            place += usize::from(entry.symbols);
            bits <<= entry.bits;
            count -= u32::from(entry.bits);
        }
        end += place;
    }
    loop {
        if count <= 32 && !rest.is_empty() {
            let mut word = [0; 8];
            let there = rest.len().min(word.len());
            word[..there].copy_from_slice(&rest[..there]);
            bits |= u64::from_be_bytes(word) >> count;
            let bytes = ((63 - count) as usize / 8).min(there);
            count += bytes as u32 * 8;
            rest = &rest[bytes..];
        }
        let entry = DIRECT[(bits >> (64 - DIRECT_BITS)) as usize];
        let used = u32::from(entry.bits);
        let (symbols, used) = if entry.symbols > 0 && used <= count {
            out[end..end + 2].copy_from_slice(&entry.text);
            (usize::from(entry.symbols), used)
        } else {
            let Some((symbol, used)) = one_symbol(bits).filter(|&(_, used)| used <= count) else { break };
            out[end] = symbol;
            (1, used)
        };
        end += symbols;
        bits <<= used;
        count -= used;
    }
    out.truncate(end);
    // The rest is padding: fewer than 8 bits, all ones. Zeros follow the last bit, so the ones end there.
    let padded = count < 8 && bits.leading_ones() == count;
    if padded && rest.is_empty() { Ok(()) } else { Err(BadHuffman) }
}

/// Decodes one symbol by the first code of each length; `None` for the end symbol.
fn one_symbol(bits: u64) -> Option<(u8, u32)> {
    let window = (bits >> (64 - LONGEST)) as u32;
    // The codes of a length are below the first code of the next length, when both are aligned to the left.
    let length = (5..LONGEST).find(|&length| window < CANON.limits[length]).unwrap_or(LONGEST);
    let place = (window >> (LONGEST - length)).wrapping_sub(CANON.firsts[length]);
    let symbol = CANON.symbols[usize::from(CANON.offsets[length]) + place as usize];
    Some((u8::try_from(symbol).ok()?, length as u32))
}

/// The tables that follow from the lengths.
struct Canon {
    /// Each symbol's code, in its lowest bits.
    codes: [u32; 257],
    /// The symbols in the order of their codes.
    symbols: [u16; 257],
    /// Per length: the first code.
    firsts: [u32; LONGEST + 1],
    /// Per length: the place of its first code in `symbols`.
    offsets: [u16; LONGEST + 1],
    /// Per length: the first code after those of this length, aligned to the left of `LONGEST` bits.
    limits: [u32; LONGEST + 1],
}

static CANON: Canon = canon();

const fn canon() -> Canon {
    let mut canon = Canon {
        codes: [0; 257],
        symbols: [0; 257],
        firsts: [0; LONGEST + 1],
        offsets: [0; LONGEST + 1],
        limits: [0; LONGEST + 1],
    };
    let (mut code, mut place, mut length) = (0u32, 0, 1);
    while length <= LONGEST {
        code <<= 1;
        canon.firsts[length] = code;
        canon.offsets[length] = place as u16;
        let mut symbol = 0;
        while symbol <= END {
            if LENGTHS[symbol] as usize == length {
                canon.codes[symbol] = code;
                canon.symbols[place] = symbol as u16;
                code += 1;
                place += 1;
            }
            symbol += 1;
        }
        canon.limits[length] = code << (LONGEST - length);
        length += 1;
    }
    canon
}

/// The symbols whose codes the next `DIRECT_BITS` bits begin with.
#[derive(Clone, Copy)]
struct Direct {
    text: [u8; 2],
    /// How many of `text`: 0 if the first code is longer than the window.
    symbols: u8,
    /// The length of their codes together.
    bits: u8,
}

static DIRECT: [Direct; 1 << DIRECT_BITS] = direct();

const fn direct() -> [Direct; 1 << DIRECT_BITS] {
    let mut table = [Direct { text: [0; 2], symbols: 0, bits: 0 }; 1 << DIRECT_BITS];
    let mut symbol = 0;
    while symbol < END {
        let length = LENGTHS[symbol] as u32;
        if length <= DIRECT_BITS {
            let first = (CANON_CODES[symbol] as usize) << (DIRECT_BITS - length);
            let mut place = first;
            while place < first + (1 << (DIRECT_BITS - length)) {
                table[place] = Direct { text: [symbol as u8, 0], symbols: 1, bits: length as u8 };
                place += 1;
            }
        }
        symbol += 1;
    }
    let singles = table;
    let mut place = 0;
    while place < table.len() {
        let first = singles[place];
        if first.symbols == 1 {
            let second = singles[(place << first.bits) & (table.len() - 1)];
            if second.symbols == 1 && (first.bits + second.bits) as u32 <= DIRECT_BITS {
                table[place] =
                    Direct { text: [first.text[0], second.text[0]], symbols: 2, bits: first.bits + second.bits };
            }
        }
        place += 1;
    }
    table
}

const CANON_CODES: [u32; 257] = canon().codes;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn decoded(code: &[u8]) -> Result<Vec<u8>, BadHuffman> {
        let mut out = b"before".to_vec();
        decode(code, &mut out)?;
        Ok(out.split_off(6))
    }

    fn encoded(text: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        encode(text, &mut out);
        assert_eq!(out.len(), encoded_len(text));
        out
    }

    /// Some codes of RFC 7541 appendix B, of each length class.
    #[test]
    fn codes_are_those_of_the_standard() {
        for (symbol, code) in [
            (usize::from(b'0'), 0x0),
            (usize::from(b'a'), 0x3),
            (usize::from(b' '), 0x14),
            (usize::from(b':'), 0x5c),
            (usize::from(b'&'), 0xf8),
            (usize::from(b'!'), 0x3f8),
            (usize::from(b'\\'), 0x7fff0),
            (0, 0x1ff8),
            (1, 0x7f_ffd8),
            (10, 0x3fff_fffc),
            (249, 0xfff_fffe),
            (END, 0x3fff_ffff),
        ] {
            assert_eq!(CANON.codes[symbol], code, "symbol {symbol}");
        }
        let sum: u64 = LENGTHS.iter().map(|&length| 1u64 << (LONGEST - usize::from(length))).sum();
        assert_eq!(sum, 1 << LONGEST, "the code is complete: every bit string is a prefix of codes");
    }

    #[test]
    fn every_symbol_passes_alone_and_in_pairs() {
        for first in 0..=255u8 {
            assert_eq!(decoded(&encoded(&[first])), Ok(vec![first]));
            for second in 0..=255u8 {
                assert_eq!(decoded(&encoded(&[first, second])), Ok(vec![first, second]));
            }
        }
    }

    #[test]
    fn padding_is_ones_and_shorter_than_a_byte() {
        assert_eq!(decoded(&[]), Ok(vec![]));
        // `a` is 00011; its padding is 111.
        assert_eq!(decoded(&[0b0001_1111]), Ok(b"a".to_vec()));
        assert_eq!(decoded(&[0b0001_1110]), Err(BadHuffman), "a zero in the padding");
        assert_eq!(decoded(&[0b0001_1111, 0xff]), Err(BadHuffman), "padding of 11 bits");
        assert_eq!(decoded(&[0xff]), Err(BadHuffman), "padding of 8 bits");
        assert_eq!(decoded(&[0xff, 0xff, 0xff, 0xff]), Err(BadHuffman), "the end symbol");
        assert_eq!(decoded(&[0xff, 0xff, 0xff, 0xfc]), Err(BadHuffman), "the end symbol needs its padding too");
        assert_eq!(decoded(&[0x1f, 0xff, 0xff, 0xff, 0xff, 0xff]), Err(BadHuffman), "the end symbol after `a`");
    }

    proptest! {
        #[test]
        fn decoding_reverses_encoding(text in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert_eq!(decoded(&encoded(&text)), Ok(text));
        }

        /// A code that decodes is the one code of its text: nothing can be written in two ways.
        #[test]
        fn encoding_reverses_decoding(code in prop::collection::vec(any::<u8>(), 0..40)) {
            if let Ok(text) = decoded(&code) {
                prop_assert_eq!(encoded(&text), code);
            }
        }
    }
}
