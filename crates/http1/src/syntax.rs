//! Names the exact defect of a head: the slow, plain parser of lines.
//!
//! The decoders use httparse, and come here when it refuses a head, so that every defect has its own name. They also
//! check incomplete heads here, to refuse garbage early. Trailers are parsed here only. A property test checks that
//! the slow parser accepts whatever the fast one accepts.

use crate::target::Target;
use crate::{DecodeError, Limits};

/// The longest accepted method; the longest registered one has 17 bytes.
pub(crate) const METHOD_BYTES: usize = 32;

/// Most bytes of the version in a request line with its CR: enough to report a wrong version as such.
const VERSION_BYTES: usize = 32;

/// Whether a byte is allowed in a token (RFC 9110 section 5.6.2).
#[must_use]
pub const fn is_token_byte(byte: u8) -> bool {
    matches!(byte, b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9'
        | b'!' | b'#' | b'$' | b'%' | b'&' | b'\'' | b'*' | b'+' | b'-' | b'.' | b'^' | b'_' | b'`' | b'|' | b'~')
}

/// Whether `text` is a token (RFC 9110 section 5.6.2): a field name, a method, a scheme.
#[must_use]
pub fn is_token(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().all(|&byte| is_token_byte(byte))
}

/// Whether `text` is valid as a field value (RFC 9110 section 5.5): no control character but the tab.
#[must_use]
pub fn is_field_value(text: &[u8]) -> bool {
    text.iter().all(|&byte| is_value_byte(byte))
}

/// Whether a byte is allowed in a field value or a reason phrase (RFC 9110 section 5.5, RFC 9112 section 4).
pub(crate) const fn is_value_byte(byte: u8) -> bool {
    matches!(byte, b'\t' | b' '..=0x7e | 0x80..)
}

/// Refuses a request line as soon as one of its parts is too long.
///
/// `line` has the bytes received so far, without LF. A longer `line` fails whenever a shorter one did, with the same
/// error.
pub(crate) fn request_line_lengths(line: &[u8], limits: &Limits) -> Result<(), DecodeError> {
    let Some(after_method) = part(line, METHOD_BYTES).map_err(|()| DecodeError::MethodTooLong)? else { return Ok(()) };
    let Some(after_target) = part(after_method, limits.target_bytes).map_err(|()| DecodeError::TargetTooLong)? else {
        return Ok(());
    };
    if after_target.len() > VERSION_BYTES { Err(DecodeError::BadRequestLine) } else { Ok(()) }
}

/// Returns the rest after the first space, `None` without one, an error without one within `most` bytes.
fn part(line: &[u8], most: usize) -> Result<Option<&[u8]>, ()> {
    let window = &line[..line.len().min(most.saturating_add(1))];
    match memchr::memchr(b' ', window) {
        Some(space) => Ok(Some(&line[space + 1..])),
        None if line.len() > most => Err(()),
        None => Ok(None),
    }
}

/// Checks a request line (RFC 9112 section 3), without its LF, with its CR.
pub(crate) fn request_line(line: &[u8], limits: &Limits) -> Result<(), DecodeError> {
    request_line_lengths(line, limits)?;
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    no_nul_or_cr(line)?;
    let mut words = line.splitn(3, |&byte| byte == b' ');
    let method = words.next().filter(|word| is_token(word));
    let target = words.next().filter(|word| !word.is_empty());
    let (Some(method), Some(target), Some(protocol)) = (method, target, words.next()) else {
        return Err(DecodeError::BadRequestLine);
    };
    let target = match str::from_utf8(target) {
        Ok(text) if text.bytes().all(|byte| byte > b' ' && byte != 0x7f) => text,
        _ => return Err(DecodeError::BadTarget),
    };
    version(protocol, DecodeError::BadRequestLine)?;
    Target::parse(str::from_utf8(method).unwrap_or_default(), target).map(|_| ())
}

/// Checks a status line (RFC 9112 section 4), without its LF, with its CR. Without a reason, the space before it is
/// optional.
pub(crate) fn status_line(line: &[u8]) -> Result<(), DecodeError> {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    no_nul_or_cr(line)?;
    let mut words = line.splitn(3, |&byte| byte == b' ');
    version(words.next().unwrap_or_default(), DecodeError::BadStatusLine)?;
    let status = words.next().unwrap_or_default();
    let reason = words.next().unwrap_or_default();
    let sound = matches!(status, [b'1'..=b'9', b'0'..=b'9', b'0'..=b'9']) && reason.iter().all(|&b| is_value_byte(b));
    if sound { Ok(()) } else { Err(DecodeError::BadStatusLine) }
}

/// Refuses a response that cannot become `HTTP/1.`, as soon as that is certain.
pub(crate) fn response_prefix(input: &[u8]) -> Result<(), DecodeError> {
    const PREFIX: &[u8] = b"HTTP/1.";
    if input.starts_with(PREFIX) {
        return Ok(());
    }
    let same = input.iter().zip(PREFIX).take_while(|(is, should)| is == should).count();
    match input.get(same) {
        None => Ok(()),
        Some(b'0'..=b'9') if same == PREFIX.len() - 2 => Err(DecodeError::UnsupportedVersion),
        Some(b'\n') => Err(DecodeError::BareLf),
        Some(_) => Err(DecodeError::BadStatusLine),
    }
}

/// Checks field lines, each ended by CRLF: names, colons, values, and a count of at most `most` (else `too_many`).
pub(crate) fn field_lines(mut section: &[u8], most: usize, too_many: DecodeError) -> Result<(), DecodeError> {
    let mut count = 0;
    while let Some(end) = memchr::memchr(b'\n', section) {
        let line = &section[..end];
        field_line(line.strip_suffix(b"\r").ok_or(DecodeError::BareLf)?)?;
        count += 1;
        if count > most {
            return Err(too_many);
        }
        section = &section[end + 1..];
    }
    Ok(())
}

/// Returns the defect of a complete request head that httparse refused.
#[cold]
pub(crate) fn explain_request(head: &[u8], limits: &Limits) -> DecodeError {
    let defect = check_head(head, limits, |line| request_line(line, limits));
    defect.err().unwrap_or(DecodeError::BadRequestLine)
}

/// Returns the defect of a complete response head that httparse refused.
#[cold]
pub(crate) fn explain_response(head: &[u8], limits: &Limits) -> DecodeError {
    check_head(head, limits, status_line).err().unwrap_or(DecodeError::BadStatusLine)
}

/// Checks a complete head from its first line on.
fn check_head(
    head: &[u8],
    limits: &Limits,
    first_line: impl FnOnce(&[u8]) -> Result<(), DecodeError>,
) -> Result<(), DecodeError> {
    let first = memchr::memchr(b'\n', head).unwrap_or(head.len());
    let fields = head.get(first + 1..head.len().saturating_sub(2)).unwrap_or_default();
    first_line(&head[..first])?;
    field_lines(fields, limits.headers, DecodeError::TooManyHeaders)
}

/// Checks one field line without its CRLF (RFC 9112 section 5).
fn field_line(line: &[u8]) -> Result<(), DecodeError> {
    if let [b' ' | b'\t', ..] = line {
        return Err(DecodeError::ObsFold);
    }
    let name_end = line.iter().position(|&byte| !is_token_byte(byte)).unwrap_or(line.len());
    let rest = &line[name_end..];
    match rest {
        [b':', value @ ..] if name_end > 0 => match value.iter().find(|&&byte| !is_value_byte(byte)) {
            None => Ok(()),
            Some(0) => Err(DecodeError::Nul),
            Some(b'\r') => Err(DecodeError::BareCr),
            Some(_) => Err(DecodeError::BadFieldValue),
        },
        [0, ..] => Err(DecodeError::Nul),
        [b'\r', ..] => Err(DecodeError::BareCr),
        [b' ' | b'\t', ..] if crate::head::trim(rest).first() == Some(&b':') => Err(DecodeError::SpaceBeforeColon),
        _ => Err(DecodeError::BadFieldName),
    }
}

/// Checks the version word; `malformed` if it is not a version.
fn version(word: &[u8], malformed: DecodeError) -> Result<(), DecodeError> {
    match word.strip_prefix(b"HTTP/") {
        Some(b"1.0" | b"1.1") => Ok(()),
        Some(rest @ [b'0'..=b'9', ..]) if rest.iter().all(|&byte| byte.is_ascii_digit() || byte == b'.') => {
            Err(DecodeError::UnsupportedVersion)
        }
        _ => Err(malformed),
    }
}

fn no_nul_or_cr(line: &[u8]) -> Result<(), DecodeError> {
    match memchr::memchr2(0, b'\r', line) {
        None => Ok(()),
        Some(at) if line[at] == 0 => Err(DecodeError::Nul),
        Some(_) => Err(DecodeError::BareCr),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Generates pieces of heads, valid and broken, without LF.
    fn line() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop_oneof![
            8 => prop::sample::select(vec![
                "GET", "/", " ", "HTTP/1.1", "HTTP/1.0", "HTTP/", "200", "OK", "Host", ": ", ":", "a", "\t",
                "X-Long-Field-Name", "some value that is longer than a vector register is wide",
                "http://a/", "*", "é", "Content-Length: 1",
            ]).prop_map(|text| text.as_bytes().to_vec()),
            1 => any::<u8>().prop_filter("LF ends a line", |&byte| byte != b'\n').prop_map(|byte| vec![byte]),
        ];
        prop::collection::vec(piece, 1..6).prop_map(|pieces| pieces.concat())
    }

    fn head() -> impl Strategy<Value = Vec<u8>> {
        let first = prop_oneof![
            3 => Just(b"GET /a HTTP/1.1".to_vec()),
            3 => Just(b"HTTP/1.1 200 OK".to_vec()),
            4 => line(),
        ];
        let field = prop_oneof![
            2 => Just(b"Host: a".to_vec()),
            3 => line(),
        ];
        (first, prop::collection::vec(field, 0..5)).prop_map(|(first, fields)| {
            let mut head = first;
            for field in fields {
                head.extend_from_slice(b"\r\n");
                head.extend(field);
            }
            head.extend_from_slice(b"\r\n\r\n");
            head
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]

        /// Both parsers accept the same heads, so every refusal has its own name.
        #[test]
        fn httparse_and_the_slow_reading_agree(head in head()) {
            let limits = Limits::default();
            let mut table = [httparse::EMPTY_HEADER; 8];
            let mut request = httparse::Request::new(&mut table);
            // Only the slow parser checks the forms of targets.
            let fast = request.parse(&head).is_ok()
                && Target::parse(request.method.unwrap_or_default(), request.path.unwrap_or_default()).is_ok();
            let slow = check_head(&head, &limits, |line| request_line(line, &limits));
            prop_assert_eq!(fast, slow.is_ok(), "{}: {:?}", head.escape_ascii(), slow);

            let mut table = [httparse::EMPTY_HEADER; 8];
            let mut response = httparse::Response::new(&mut table);
            let fast = response.parse(&head).is_ok() && response.code >= Some(100);
            let slow = check_head(&head, &limits, status_line);
            prop_assert_eq!(fast, slow.is_ok(), "{}: {:?}", head.escape_ascii(), slow);
        }

        /// A line that is too long fails as early as possible, and never with a different error later.
        #[test]
        fn lengths_do_not_depend_on_how_much_of_the_line_is_there(line in line(), most in 0usize..20) {
            let limits = Limits { target_bytes: most, ..Limits::default() };
            let first = (0..=line.len()).find_map(|end| request_line_lengths(&line[..end], &limits).err());
            prop_assert_eq!(first, request_line_lengths(&line, &limits).err());
        }
    }
}
