//! Codings against what their own encoders make, cut in every way; broken, cut short, and as bombs.

use std::io::Write;

use flate2::write::GzEncoder;
use flate2::{Compression, GzBuilder};
use proptest::prelude::*;

use super::*;

const ALL: [Coding; 3] = [Coding::Gzip, Coding::Brotli, Coding::Zstd];

fn packed(coding: Coding, data: &[u8]) -> Vec<u8> {
    match coding {
        Coding::Gzip => {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
            encoder.write_all(data).unwrap();
            encoder.finish().unwrap()
        }
        Coding::Brotli => {
            let mut out = Vec::new();
            let params = brotli::enc::BrotliEncoderParams { quality: 5, ..Default::default() };
            brotli::BrotliCompress(&mut &data[..], &mut out, &params).unwrap();
            out
        }
        Coding::Zstd => {
            let mut out = vec![0; zstd_safe::compress_bound(data.len())];
            let length = zstd_safe::compress(&mut out[..], data, 3).unwrap();
            out.truncate(length);
            out
        }
    }
}

/// Decodes pieces, and returns the output and the result.
fn unpacked<'p>(coding: Coding, pieces: impl IntoIterator<Item = &'p [u8]>) -> (Vec<u8>, Result<(), Cause>) {
    let mut decoder = Decoder::new(coding).unwrap();
    let mut out = Vec::new();
    for mut piece in pieces {
        loop {
            let before = out.len();
            match decoder.decode(piece, &mut out) {
                Err(cause) => return (out, Err(cause)),
                Ok(step) => {
                    assert!(out.len() - before <= PIECE);
                    piece = &piece[step.used..];
                    if !step.more {
                        assert!(piece.is_empty());
                        break;
                    }
                }
            }
        }
    }
    let ended = decoder.finish();
    (out, ended)
}

/// A text with repetitions, larger than a few pieces.
fn text() -> Vec<u8> {
    (0..30_000u32).flat_map(|n| format!("line {} of {}\n", n * n % 977, n % 13).into_bytes()).collect()
}

#[test]
fn what_was_packed_is_unpacked_however_it_is_cut() {
    let text = text();
    for coding in ALL {
        let packed = packed(coding, &text);
        for size in [packed.len(), 1000, 7, 1] {
            let (out, ended) = unpacked(coding, packed.chunks(size));
            ended.unwrap();
            assert!(out == text, "{coding:?} in pieces of {size}");
        }
    }
}

#[test]
fn nothing_is_an_empty_body_in_any_coding() {
    for coding in ALL {
        assert!(matches!(unpacked(coding, []), (out, Ok(())) if out.is_empty()));
        assert!(matches!(unpacked(coding, [&packed(coding, b"")[..]]), (out, Ok(())) if out.is_empty()));
    }
}

#[test]
fn what_ends_too_early_says_so_wherever_it_is_cut() {
    let text = b"a short text, a short text, a short text";
    for coding in ALL {
        let packed = packed(coding, text);
        for length in 1..packed.len() {
            let (_, ended) = unpacked(coding, [&packed[..length]]);
            assert!(
                matches!(ended, Err(Cause::Coding { why: "it ends too early", .. })),
                "{coding:?} {length}: {ended:?}"
            );
        }
    }
}

#[test]
fn what_is_broken_is_refused() {
    for coding in ALL {
        let (_, ended) = unpacked(coding, [&b"<html>this is not packed at all</html>"[..]]);
        assert!(ended.is_err(), "{coding:?}");
    }
    // A byte of the checksum, and a byte of the length.
    let good = packed(Coding::Gzip, b"hello");
    for place in [good.len() - 8, good.len() - 1] {
        let mut bad = good.clone();
        bad[place] ^= 1;
        let (_, ended) = unpacked(Coding::Gzip, [&bad[..]]);
        assert!(matches!(ended, Err(Cause::Coding { why: "its checksum is wrong", .. })), "{ended:?}");
    }
    let followed = [packed(Coding::Brotli, b"hello"), b"x".to_vec()].concat();
    assert!(unpacked(Coding::Brotli, [&followed[..]]).1.is_err());
}

#[test]
fn members_and_frames_may_follow_each_other() {
    for coding in [Coding::Gzip, Coding::Zstd] {
        let both = [packed(coding, b"hello, "), packed(coding, b"world")].concat();
        for size in [both.len(), 1] {
            let (out, ended) = unpacked(coding, both.chunks(size));
            ended.unwrap();
            assert_eq!(out, b"hello, world", "{coding:?} in pieces of {size}");
        }
    }
}

/// The decoder refused as "it is not gzip" what gzip(1) accepts.
#[test]
fn zeros_may_fill_up_what_is_behind_the_last_member_of_gzip() {
    let member = packed(Coding::Gzip, b"hello");
    for length in [1, 7, 512, 200_000] {
        let padded = [&member[..], &vec![0; length]].concat();
        for size in [padded.len(), 1000, 1] {
            let (out, ended) = unpacked(Coding::Gzip, padded.chunks(size));
            ended.unwrap();
            assert_eq!(out, b"hello", "{length} zeros in pieces of {size}");
        }
    }
    for garbage in [&b"x"[..], b"\0x", &[&b"\0"[..], &member].concat(), b"\x1f\x8c"] {
        assert!(unpacked(Coding::Gzip, [&member[..], garbage]).1.is_err(), "{garbage:?}");
    }
    assert!(unpacked(Coding::Gzip, [&[0; 20][..]]).1.is_err(), "zeros in front are none");
}

#[test]
fn a_gzip_header_may_hold_all_that_it_can() {
    for parts in 0..8u8 {
        let mut builder = GzBuilder::new();
        if parts & 1 != 0 {
            builder = builder.extra(vec![7; 300]);
        }
        if parts & 2 != 0 {
            builder = builder.filename("name");
        }
        if parts & 4 != 0 {
            builder = builder.comment("comment");
        }
        let mut encoder = builder.write(Vec::new(), Compression::fast());
        encoder.write_all(b"hello").unwrap();
        let packed = encoder.finish().unwrap();
        let (out, ended) = unpacked(Coding::Gzip, packed.chunks(3));
        ended.unwrap();
        assert_eq!(out, b"hello", "{parts}");
    }
    // With a checksum of the header: flag 2, and two bytes behind the fixed part.
    let mut packed = packed(Coding::Gzip, b"hello");
    packed[3] |= 2;
    packed.splice(10..10, [0, 0]);
    assert_eq!(unpacked(Coding::Gzip, [&packed[..]]).0, b"hello");
    // A name without an end.
    packed[3] = 8;
    let endless = [&packed[..10], &vec![b'x'; 100_000]].concat();
    let (_, ended) = unpacked(Coding::Gzip, [&endless[..]]);
    assert!(matches!(ended, Err(Cause::Coding { why: "its header is too large", .. })), "{ended:?}");
}

#[test]
fn a_bomb_comes_out_a_piece_at_a_time() {
    let zeros = vec![0; 20 << 20];
    for coding in ALL {
        let bomb = packed(coding, &zeros);
        assert!(bomb.len() < zeros.len() / 900, "{coding:?}: {}", bomb.len());
        let mut decoder = Decoder::new(coding).unwrap();
        let mut out = Vec::new();
        let (mut rest, mut pieces) = (&bomb[..], 0);
        // A reader that has enough stops here; the decoder has not worked ahead.
        while pieces < 10 {
            out.clear();
            let step = decoder.decode(rest, &mut out).unwrap();
            assert!(out.len() <= PIECE && out.capacity() <= 2 * PIECE);
            rest = &rest[step.used..];
            pieces += 1;
        }
    }
}

#[test]
fn a_zstd_window_is_bounded() {
    // A frame header that asks for a window of 2^30 bytes: magic, descriptor without single segment, window byte.
    let frame = [0x28, 0xb5, 0x2f, 0xfd, 0x00, 20 << 3, 0x01, 0x00, 0x00];
    let (_, ended) = unpacked(Coding::Zstd, [&frame[..]]);
    assert!(matches!(&ended, Err(Cause::Coding { why, .. }) if why.contains("memory")), "{ended:?}");
}

#[test]
fn only_one_known_coding_is_undone() {
    let of = |values: &[&str]| Coding::of(values.iter().map(|value| value.as_bytes()));
    assert_eq!(of(&["GZIP"]), Some(Coding::Gzip));
    assert_eq!(of(&["x-gzip"]), Some(Coding::Gzip));
    assert_eq!(of(&["br"]), Some(Coding::Brotli));
    assert_eq!(of(&["zstd"]), Some(Coding::Zstd));
    for other in [&["identity"][..], &["deflate"], &["gzip, br"], &["gzip", "gzip"], &[""], &[]] {
        assert_eq!(of(other), None, "{other:?}");
    }
}

proptest! {
    /// Any bytes: no panic, no more than a piece at a time, and the same whether whole or byte by byte.
    #[test]
    fn any_bytes_are_decoded_alike_however_they_are_cut(
        coding in 0usize..3,
        prefix in any::<bool>(),
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let coding = ALL[coding];
        let bytes = if prefix { [&packed(coding, b"hello hello hello")[..12], &bytes].concat() } else { bytes };
        let (whole, ended) = unpacked(coding, [&bytes[..]]);
        let (cut, cut_ended) = unpacked(coding, bytes.chunks(1));
        prop_assert_eq!(ended.is_ok(), cut_ended.is_ok());
        if ended.is_ok() {
            prop_assert_eq!(whole, cut);
        }
    }
}
