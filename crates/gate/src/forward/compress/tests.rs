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
    Encoder::new(coding, Compression::default().levels, &Arc::default()).unwrap()
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
fn all_encoders_share_their_memory() {
    let (budget, levels): (Arc<EncoderBudget>, _) = (Arc::default(), Compression::default().levels);
    let each = levels.encoder_bytes(Coding::Gzip);
    budget.set_most(3 * each);
    let mut all: Vec<_> = (0..3).map(|_| Encoder::new(Coding::Gzip, levels, &budget).unwrap()).collect();
    assert!(Encoder::new(Coding::Gzip, levels, &budget).is_none());
    assert_eq!(budget.counts(), EncoderCounts { bytes: 3 * each, refused: 1 });
    // Its response goes as it is, and says that others would not.
    let (request, mut head) = (lines(&["Accept-Encoding: gzip"]), lines(&["Content-Type: text/css", "ETag: \"a\""]));
    let request = Headers::from_checked_lines(&request);
    let response = Uncompressed { status: 200, length: None, is_head: false, request };
    assert!(matches!(Compression::default().begin(&mut head, response, &budget), Compressing::No));
    assert_eq!(head, b"Content-Type: text/css\r\nETag: \"a\"\r\nVary: Accept-Encoding\r\n");
    // An ended one leaves its room when it is dropped.
    all[0].end().unwrap();
    all.remove(0);
    assert!(Encoder::new(Coding::Gzip, levels, &budget).is_some());
    drop(all);
    assert_eq!(budget.counts(), EncoderCounts { bytes: 0, refused: 2 });
}

#[test]
fn zstd_takes_no_more_than_is_said() {
    let body: Vec<u8> =
        (0..2_000_000_u32).flat_map(|number| (number.wrapping_mul(2_654_435_761) >> 20).to_le_bytes()).collect();
    let mut beyond = Vec::new();
    for zstd in 1..=19 {
        let levels = Levels { zstd, ..Compression::default().levels };
        let (_, bytes) = levels.compressed(Coding::Zstd, &body[..1_000_000]).unwrap();
        let said = levels.encoder_bytes(Coding::Zstd);
        if !(said / 3..=said).contains(&bytes) {
            beyond.push(format!("level {zstd}: {bytes} bytes, not {said}"));
        }
    }
    assert!(beyond.is_empty(), "{beyond:#?}");
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
        let compressing = usual.begin(&mut lines, response, &Arc::default());
        let is = matches!(compressing, Compressing::Body(_));
        assert!(is || lines == before);
        is
    };
    let html = "Content-Type: text/html; charset=utf-8";
    for (fields, response, is) in [
        (&[html][..], response, true),
        (&["content-type: APPLICATION/JSON"], response, true),
        (&[html], Uncompressed { length: None, ..response }, true),
        (&[html], Uncompressed { status: 404, ..response }, true),
        (&[html], Uncompressed { length: Some(1023), ..response }, false),
        (&[html], Uncompressed { status: 204, ..response }, false),
        (&[html], Uncompressed { status: 206, ..response }, false),
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
        let _ = usual.begin(&mut lines, response, &Arc::default());
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
fn head_and_304_have_the_fields_of_the_response_to_get() {
    let usual = Compression::default();
    let head = |status: u16, is_head: bool, asked: &[&str], fields: &[&str]| {
        let (request, mut lines) = (lines(asked), lines(fields));
        let request = Headers::from_checked_lines(&request);
        let response = Uncompressed { status, length: Some(5000), is_head, request };
        let compressing = usual.begin(&mut lines, response, &Arc::default());
        (String::from_utf8(lines).unwrap(), matches!(compressing, Compressing::Head))
    };
    let (gzip, html, tag) = ("Accept-Encoding: gzip", "Content-Type: text/html", "ETag: \"a\"");
    let compressed = "Content-Type: text/html\r\nETag: W/\"a\"\r\nContent-Encoding: gzip\r\nVary: Accept-Encoding\r\n";
    assert_eq!(head(200, true, &[gzip], &[html, tag]), (compressed.to_owned(), true));
    let plain = "Content-Type: text/html\r\nETag: \"a\"\r\nVary: Accept-Encoding\r\n";
    assert_eq!(head(200, true, &[], &[html, tag]), (plain.to_owned(), false));
    let image = "Content-Type: image/png\r\nETag: \"a\"\r\n";
    assert_eq!(head(200, true, &[gzip], &["Content-Type: image/png", tag]), (image.to_owned(), false));
    // The type is that of the stored response.
    let weak = "ETag: W/\"a\"\r\nVary: Accept-Encoding\r\n";
    let strong = "ETag: \"a\"\r\nVary: Accept-Encoding\r\n";
    for is_head in [false, true] {
        let not_modified = |asked: &[&str], fields: &[&str]| head(304, is_head, asked, fields);
        assert_eq!(not_modified(&[gzip, "If-None-Match: W/\"a\""], &[tag]), (weak.to_owned(), false));
        assert_eq!(not_modified(&[gzip, "If-Modified-Since: now"], &[tag]), (weak.to_owned(), false));
        assert_eq!(not_modified(&[gzip, "If-None-Match: \"b\", \"a\""], &[tag]), (strong.to_owned(), false));
        assert_eq!(not_modified(&["If-None-Match: W/\"a\""], &[tag]), (strong.to_owned(), false));
        assert_eq!(not_modified(&[gzip], &["Content-Type: image/png", tag]), (image.to_owned(), false));
        let fixed = "ETag: \"a\"\r\nCache-Control: no-transform\r\n";
        assert_eq!(not_modified(&[gzip], &[tag, "Cache-Control: no-transform"]), (fixed.to_owned(), false));
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
