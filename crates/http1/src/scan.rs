//! Finds the end of a head or a trailer section in one pass over its line feeds, never reading a byte twice.

use crate::DecodeError;

/// Returns the offset after the empty line that ends a section, or `None` if there is none yet.
///
/// `scanned` holds how far earlier calls on a shorter `section` searched. A section that arrives byte by byte thus
/// costs no more than a whole one. An LF without a CR is an error.
pub(crate) fn find_end(section: &[u8], scanned: &mut u32) -> Result<Option<usize>, DecodeError> {
    let from = section.len().min(*scanned as usize);
    for found in memchr::memchr_iter(b'\n', &section[from..]) {
        let at = from + found;
        if at == 0 || section[at - 1] != b'\r' {
            return Err(DecodeError::BareLf);
        }
        // The line is empty if it began here: at the start of the section, or after the previous LF.
        if at == 1 || section[at - 2] == b'\n' {
            return Ok(Some(at + 1));
        }
    }
    *scanned = section.len() as u32;
    Ok(None)
}

/// Returns the field lines of a head that httparse accepted, up to the empty line.
///
/// `None` if a line ends with LF alone, which httparse accepts. `table` has the fields that httparse found in `head`,
/// and `head` ends with the empty line. Every line but the first begins with a field's name or is empty, so checking
/// before each of these checks every line's end.
pub(crate) fn field_lines<'b>(head: &'b [u8], table: &[httparse::Header<'b>]) -> Option<&'b [u8]> {
    let start = |field: &httparse::Header<'b>| field.name.as_ptr().addr() - head.as_ptr().addr();
    let end = head.strip_suffix(b"\r\n")?.len();
    let ends_in_crlf = |line_end: usize| head[..line_end].ends_with(b"\r\n");
    let sound = ends_in_crlf(end) && table.iter().all(|field| ends_in_crlf(start(field)));
    sound.then(|| &head[table.first().map_or(end, start)..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_is_found_whatever_the_cuts() {
        let section = b"A: 1\r\nB: 2\r\n\r\nrest";
        for cut in 0..section.len() {
            let mut scanned = 0;
            let first = find_end(&section[..cut], &mut scanned);
            assert!(cut >= 14 || scanned as usize == cut, "what has been looked at is not looked at again");
            let end = first.unwrap().or_else(|| find_end(section, &mut scanned).unwrap());
            assert_eq!(end, Some(14), "cut at {cut}");
        }
    }

    #[test]
    fn an_empty_section_is_one_empty_line() {
        assert_eq!(find_end(b"\r\nmore", &mut 0), Ok(Some(2)));
    }

    #[test]
    fn bare_line_feeds_are_refused_where_they_stand() {
        for bad in [&b"\n"[..], b"A: 1\n", b"A: 1\r\n\n", b"A: 1\n\r\n\r\n"] {
            assert_eq!(find_end(bad, &mut 0), Err(DecodeError::BareLf), "{}", bad.escape_ascii());
        }
        assert_eq!(find_end(b"A: 1\r\n\r\n\n", &mut 0), Ok(Some(8)), "what follows the end is another message's");
    }
}
