//! Which responses are compressed, and that their bytes come back.

use std::io::Read;

use proptest::prelude::*;

use super::*;

fn decoded(coding: Coding, bytes: &[u8]) -> Vec<u8> {
    let mut plain = Vec::new();
    match coding {
        Coding::Gzip => drop(flate2::read::GzDecoder::new(bytes).read_to_end(&mut plain).unwrap()),
        Coding::Brotli => drop(brotli::Decompressor::new(bytes, 4096).read_to_end(&mut plain).unwrap()),
        Coding::Zstd => {
            let mut context = zstd_safe::DCtx::create();
            let mut input = InBuffer::around(bytes);
            let mut room = [0; 4096];
            while input.pos() < bytes.len() {
                let mut buffer = OutBuffer::around(&mut room[..]);
                context.decompress_stream(&mut buffer, &mut input).unwrap();
                plain.extend_from_slice(buffer.as_slice());
            }
            // What did not fit in the room any more.
            loop {
                let mut buffer = OutBuffer::around(&mut room[..]);
                context.decompress_stream(&mut buffer, &mut input).unwrap();
                if buffer.as_slice().is_empty() {
                    break;
                }
                plain.extend_from_slice(buffer.as_slice());
            }
        }
    }
    plain
}

fn encoder(coding: Coding) -> Encoder {
    Encoder::new(coding, Compression::default().levels).unwrap()
}

proptest! {
    #[test]
    fn what_comes_out_decodes_to_what_went_in(
        pieces in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..3000), any::<bool>()), 0..20),
        repeat in 1..40_usize, coding in prop::sample::select(Coding::ALL.to_vec())
    ) {
        let (mut encoder, mut plain, mut out) = (encoder(coding), Vec::new(), Vec::new());
        for (piece, flushes) in pieces {
            let piece = piece.repeat(repeat);
            encoder.write(&piece).unwrap();
            plain.extend_from_slice(&piece);
            if flushes {
                encoder.flush().unwrap();
            }
            out.append(encoder.output());
        }
        encoder.end().unwrap();
        out.append(encoder.output());
        prop_assert!(decoded(coding, &out) == plain);
    }
}

#[test]
fn what_is_flushed_can_be_read_at_once_and_repetition_becomes_small() {
    for coding in Coding::ALL {
        let mut encoder = encoder(coding);
        encoder.write(b"first").unwrap();
        encoder.flush().unwrap();
        let flushed = std::mem::take(encoder.output());
        let mut plain = [0; 5];
        match coding {
            Coding::Gzip => flate2::read::GzDecoder::new(&flushed[..]).read_exact(&mut plain).unwrap(),
            Coding::Brotli => brotli::Decompressor::new(&flushed[..], 4096).read_exact(&mut plain).unwrap(),
            Coding::Zstd => plain.copy_from_slice(&decoded(coding, &flushed)),
        }
        assert_eq!(&plain, b"first", "{coding:?}");
        encoder.flush().unwrap();
        assert!(encoder.output().is_empty(), "there was nothing more");
        for _ in 0..1000 {
            encoder.write(&[b'x'; 1000]).unwrap();
        }
        encoder.end().unwrap();
        assert!(encoder.output().len() < 20_000, "{coding:?}: {}", encoder.output().len());
    }
}

#[test]
fn a_thread_has_only_so_many() {
    let all: Vec<_> = (0..MOST_ENCODERS).map(|_| encoder(Coding::Gzip)).collect();
    assert!(Encoder::new(Coding::Gzip, Compression::default().levels).is_none());
    drop(all);
    assert_eq!(ENCODERS.get(), 0);
}

fn lines(fields: &[&str]) -> Vec<u8> {
    fields.iter().flat_map(|field| format!("{field}\r\n").into_bytes()).collect()
}

/// The codings for clients that accept these.
#[test]
fn clients_get_the_coding_that_they_like_best() {
    let usual = Compression::default();
    let accepted = |fields: &[&str]| {
        let fields: Vec<String> = fields.iter().map(|value| format!("Accept-Encoding: {value}")).collect();
        let lines = lines(&fields.iter().map(String::as_str).collect::<Vec<_>>());
        usual.accepted(Headers::from_checked_lines(&lines)).map(Coding::name)
    };
    for (fields, coding) in [
        (&["gzip, deflate, br, zstd"][..], Some("br")),
        (&["gzip, zstd"], Some("zstd")),
        (&["gzip", "br;q=0.9"], Some("gzip")),
        (&["GZIP;q=0.5"], Some("gzip")),
        (&["x-gzip"], Some("gzip")),
        (&["*"], Some("br")),
        (&["*;q=0.1, br;q=0"], Some("zstd")),
        (&["gzip;q=0"], None),
        (&["identity"], None),
        (&["identity;q=0.6, gzip;q=0.5"], None),
        (&["identity;q=0.5, gzip; q=0.5"], Some("gzip")),
        (&["gzip;q=2"], None),
        (&["deflate"], None),
        (&[""], None),
        (&[], None),
    ] {
        assert_eq!(accepted(fields), coding, "{fields:?}");
    }
}

#[test]
fn only_some_responses_are_compressed() {
    let usual = Compression::default();
    let request = lines(&["Accept-Encoding: gzip"]);
    let request = Headers::from_checked_lines(&request);
    let response = Uncompressed { status: 200, length: Some(5000), is_head: false, request };
    let begun = |fields: &[&str], response: Uncompressed<'_>| {
        let mut lines = lines(fields);
        let before = lines.clone();
        let encoder = usual.begin(&mut lines, response);
        assert!(encoder.is_some() || lines == before);
        encoder.is_some()
    };
    let html = "Content-Type: text/html; charset=utf-8";
    for (fields, response, is) in [
        (&[html][..], response, true),
        (&["content-type: APPLICATION/JSON"], response, true),
        (&[html], Uncompressed { length: None, ..response }, true),
        (&[html], Uncompressed { status: 404, ..response }, true),
        (&[html], Uncompressed { length: Some(1023), ..response }, false),
        (&[html], Uncompressed { is_head: true, ..response }, false),
        (&[html], Uncompressed { status: 204, ..response }, false),
        (&[html], Uncompressed { status: 206, ..response }, false),
        (&[html], Uncompressed { status: 304, ..response }, false),
        (&[html, "Content-Range: bytes 0-1/2"], response, false),
        (&[html, "Content-Encoding: br"], response, false),
        (&[html, "Content-Encoding: identity"], response, false),
        (&[html, "Cache-Control: public, No-Transform"], response, false),
        (&[html, "Cache-Control: private", "Cache-Control: max-age=1"], response, true),
        (&["Content-Type: image/png"], response, false),
        (&["Content-Type: text/event-stream"], response, false),
        (&["Content-Type: texture/html"], response, false),
        (&["X-Type: none"], response, false),
    ] {
        assert_eq!(begun(fields, response), is, "{fields:?} {response:?}");
    }
    let fixed = lines(&["Accept-Encoding: gzip", "Cache-Control: no-transform"]);
    assert!(!begun(&[html], Uncompressed { request: Headers::from_checked_lines(&fixed), ..response }));
}

#[test]
fn heads_say_what_was_done() {
    let usual = Compression::default();
    let head = |accept: &str, fields: &[&str]| {
        let (request, mut lines) = (lines(&[accept]), lines(fields));
        let request = Headers::from_checked_lines(&request);
        let response = Uncompressed { status: 200, length: None, is_head: false, request };
        let _ = usual.begin(&mut lines, response);
        String::from_utf8(lines).unwrap()
    };
    let gzip = "Accept-Encoding: gzip";
    let fields = ["Content-Type: text/css", "ETag: \"a\"", "Accept-Ranges: bytes", "Content-MD5: x", "X: y"];
    assert_eq!(
        head(gzip, &fields),
        "Content-Type: text/css\r\nETag: W/\"a\"\r\nX: y\r\nContent-Encoding: gzip\r\nVary: Accept-Encoding\r\n"
    );
    // Caches learn that other clients get something else.
    assert_eq!(
        head("Accept-Encoding: identity", &["Content-Type: text/css", "ETag: \"a\"", "Accept-Ranges: bytes"]),
        "Content-Type: text/css\r\nETag: \"a\"\r\nAccept-Ranges: bytes\r\nVary: Accept-Encoding\r\n"
    );
    for vary in ["Vary: Cookie, accept-encoding", "Vary: *"] {
        let written = head(gzip, &["Content-Type: text/css", "ETag: W/\"a\"", vary]);
        assert_eq!(written, format!("Content-Type: text/css\r\nETag: W/\"a\"\r\n{vary}\r\nContent-Encoding: gzip\r\n"));
    }
}

#[test]
fn mistakes_name_their_key() {
    let usual = Compression::default();
    assert_eq!(usual.mistake(), None);
    let levels = |gzip, br, zstd| Compression { levels: Levels { gzip, br, zstd }, ..Compression::default() };
    let types = |kind: &str| Compression { types: vec![kind.to_owned()], ..Compression::default() };
    for (wrong, key) in [
        (levels(0, 4, 3), "levels.gzip"),
        (levels(5, 12, 3), "levels.br"),
        (levels(5, 4, 20), "levels.zstd"),
        (types("html"), "types"),
        (types("*/*"), "types"),
        (types("text/event-stream"), "types"),
        (types("text/html; charset=utf-8"), "types"),
        (Compression { codings: Vec::new(), ..Compression::default() }, "codings"),
    ] {
        assert_eq!(wrong.mistake().map(|(key, _)| key), Some(key));
    }
}
