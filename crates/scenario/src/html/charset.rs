//! The charset of a page, and its conversion to UTF-8.
//!
//! The order is a browser's (HTML, section 13.2.3.1): byte order mark, `Content-Type`, `<meta>` in the first 1,024
//! bytes. Pages without any are read as UTF-8.

use bytes::Bytes;
use encoding_rs::{Encoding, UTF_8, UTF_16BE, UTF_16LE, WINDOWS_1252, X_USER_DEFINED};

/// The part of a page in which `<meta charset>` counts, bytes.
const PRESCAN: usize = 1024;
/// Bytes that a decoder may leave unused at the end of its output.
const SPARE: usize = 64;

/// Returns the page in UTF-8, shared with `body` if it is UTF-8 already; `None` if it is longer than `max` bytes.
///
/// UTF-8 with mistakes stays as it is: readers of text replace what is wrong.
pub(super) fn to_utf8(body: &Bytes, content_type: Option<&str>, max: usize) -> Option<Bytes> {
    if body.len() > max {
        return None;
    }
    let (encoding, mark) = encoding(body, content_type);
    let body = body.slice(mark..);
    if encoding == UTF_8 {
        return Some(body);
    }
    // A decoder wants some bytes of room to spare, and a page of half-width bytes may grow to three times its size.
    let mut decoder = encoding.new_decoder_without_bom_handling();
    let room = decoder.max_utf8_buffer_length(body.len())?.min(max.saturating_add(SPARE));
    let mut utf8 = String::with_capacity(room);
    let (result, ..) = decoder.decode_to_string(&body, &mut utf8, true);
    (result == encoding_rs::CoderResult::InputEmpty && utf8.len() <= max).then(|| Bytes::from(utf8))
}

/// Returns the encoding of a page, and how many bytes its byte order mark has.
fn encoding(body: &[u8], content_type: Option<&str>) -> (&'static Encoding, usize) {
    if let Some(marked) = Encoding::for_bom(body) {
        return marked;
    }
    let named = content_type.and_then(|field| label(field.as_bytes())).and_then(Encoding::for_label);
    (named.or_else(|| meta(&body[..body.len().min(PRESCAN)])).unwrap_or(UTF_8), 0)
}

/// Returns the encoding that a `<meta>` in the first bytes names.
fn meta(start: &[u8]) -> Option<&'static Encoding> {
    let mut at = 0;
    while let Some(next) = memchr::memchr(b'<', &start[at..]) {
        at += next;
        let rest = &start[at..];
        if rest.starts_with(b"<!--") {
            at += 4 + memchr::memmem::find(&rest[4..], b"-->")?;
        } else if rest.len() > 5 && rest[..5].eq_ignore_ascii_case(b"<meta") && !rest[5].is_ascii_alphanumeric() {
            let tag = &rest[..memchr::memchr(b'>', rest)?];
            if let Some(encoding) = label(tag).and_then(Encoding::for_label) {
                // Bytes that spell `charset` in ASCII are not UTF-16.
                return Some(match encoding {
                    utf16 if utf16 == UTF_16BE || utf16 == UTF_16LE => UTF_8,
                    user if user == X_USER_DEFINED => WINDOWS_1252,
                    named => named,
                });
            }
        }
        at += 1;
    }
    None
}

/// Returns the value of `charset=` in a field or a tag.
fn label(text: &[u8]) -> Option<&[u8]> {
    const KEY: &[u8] = b"charset";
    let mut rest = text;
    loop {
        let at = rest.windows(KEY.len()).position(|window| window.eq_ignore_ascii_case(KEY))?;
        rest = &rest[at + KEY.len()..];
        let Some(value) = rest.trim_ascii_start().strip_prefix(b"=") else { continue };
        let value = value.trim_ascii_start();
        let value = value.strip_prefix(b"\"").or_else(|| value.strip_prefix(b"'")).unwrap_or(value);
        let end = value
            .iter()
            .position(|byte| byte.is_ascii_whitespace() || matches!(byte, b'"' | b'\'' | b';' | b',' | b'/' | b'>'))
            .unwrap_or(value.len());
        return Some(&value[..end]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn utf8(body: &[u8], content_type: Option<&str>) -> Bytes {
        to_utf8(&Bytes::copy_from_slice(body), content_type, 1 << 20).unwrap()
    }

    /// "日本" in Shift_JIS.
    const SJIS: &[u8] = b"\x93\xfa\x96\x7b";

    #[test]
    fn the_field_names_it() {
        assert_eq!(utf8(SJIS, Some("text/html; charset=Shift_JIS")), "日本");
        assert_eq!(utf8(SJIS, Some("text/html;CharSet = \"shift_jis\"; x=y")), "日本");
        assert_eq!(utf8(b"caf\xe9", Some("text/html; charset=iso-8859-1")), "café");
        assert_eq!(utf8(b"\x1b$BF|K\\\x1b(B", Some("text/html; charset=iso-2022-jp")), "日本");
        assert_eq!(utf8("日本".as_bytes(), Some("text/html; charset=nonsense")), "日本");
        assert_eq!(utf8("日本".as_bytes(), Some("text/html")), "日本");
        assert_eq!(utf8("日本".as_bytes(), None), "日本");
    }

    #[test]
    fn a_meta_element_names_it_where_no_field_does() {
        let page = |meta: &str| [meta.as_bytes(), SJIS].concat();
        for meta in [
            "<meta charset=shift_jis>",
            "<html><META CHARSET='Shift_JIS'/>",
            "<!-- <meta charset=utf-8> --><meta http-equiv=Content-Type content=\"text/html; charset=x-sjis\">",
            "<metadata charset=utf-16><meta name=charset content=x><meta charset=sjis>",
        ] {
            let read = utf8(&page(meta), None);
            assert!(read.ends_with("日本".as_bytes()), "{meta}: {read:?}");
            let read = utf8(&page(meta), Some("text/html; charset=utf-8"));
            assert!(read.ends_with(SJIS), "the field wins over {meta}");
        }
        assert_eq!(utf8("<meta charset=utf-16le>é".as_bytes(), None), "<meta charset=utf-16le>é");
        let late = [&[b' '; PRESCAN][..], b"<meta charset=shift_jis>", SJIS].concat();
        assert!(utf8(&late, None).ends_with(SJIS));
    }

    #[test]
    fn a_byte_order_mark_wins_and_goes() {
        assert_eq!(utf8(b"\xef\xbb\xbfx", Some("text/html; charset=shift_jis")), "x");
        assert_eq!(utf8(b"\xff\xfeh\0i\0", None), "hi");
        assert_eq!(utf8(b"\xfe\xff\0h\0i", None), "hi");
    }

    #[test]
    fn the_limit_holds_before_and_after_conversion() {
        let body = Bytes::from(vec![0xe9; 100]);
        assert_eq!(to_utf8(&body, Some("charset=latin1"), 99), None);
        assert_eq!(to_utf8(&body, Some("charset=latin1"), 150), None);
        assert_eq!(to_utf8(&body, Some("charset=latin1"), 200).unwrap().len(), 200);
        assert_eq!(to_utf8(&body, None, 100).unwrap().len(), 100);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(
            body in proptest::collection::vec(any::<u8>(), 0..300),
            head in "(<meta charset=|<!--|<meta |charset=|shift_jis|utf-16|gbk|'|\"|>|-->|;| ){0,12}",
        ) {
            let bytes = Bytes::from([head.as_bytes(), &body].concat());
            to_utf8(&bytes, None, 1 << 20);
            to_utf8(&bytes, Some(&head), 400);
        }
    }
}
