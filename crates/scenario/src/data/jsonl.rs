//! JSON lines: one JSON value per line.

use std::io::{BufRead as _, Read as _};

use oroshi_words::units;

use super::cells::Cells;
use super::source::Source;
use super::{MAX_ROW_BYTES, MAX_ROWS, Part, at_most};

/// Reads a file. Returns the lines of a part, and the number of lines with a value in all.
///
/// Lines keep their text, which is checked here and read again by each user: values of all kinds take more memory.
pub(super) fn read(mut source: Source, part: Part) -> Result<(Cells, usize), String> {
    let place = source.place();
    let mut cells = Cells::with_capacity(source.size() as usize / part.count);
    let (mut rows, mut number, mut line) = (0, 0, Vec::new());
    loop {
        line.clear();
        number += 1;
        // With the newline, and one more byte that tells of a line that is too long.
        let most = MAX_ROW_BYTES as u64 + 2;
        let read = source.by_ref().take(most).read_until(b'\n', &mut line).map_err(|error| place.unreadable(&error))?;
        if read == 0 {
            break;
        }
        let text = line.trim_ascii();
        if text.is_empty() && line.len() <= MAX_ROW_BYTES {
            continue;
        }
        let wrong = |what: &str| place.line(number, what);
        if line.strip_suffix(b"\n").unwrap_or(&line).len() > MAX_ROW_BYTES {
            return Err(wrong(&format!("the line takes more than {}", units::bytes(MAX_ROW_BYTES as f64))));
        }
        let text = std::str::from_utf8(text).map_err(|_| wrong("it is not UTF-8, which JSON is"))?;
        // The whole value, so that a row that loads can also be read later: its numbers and its depth, too.
        serde_json::from_str::<serde_json::Value>(text).map_err(|error| {
            let before = line.len() - line.trim_ascii_start().len();
            wrong(&not_json(&error, before))
        })?;
        if rows == MAX_ROWS {
            return Err(wrong(&format!("there are too many rows: {}", at_most(MAX_ROWS, "rows"))));
        }
        if part.has(rows) {
            cells.push(text.as_bytes());
        }
        rows += 1;
    }
    cells.shrink();
    Ok((cells, rows))
}

/// Returns what is wrong with a line. serde_json counts lines within the text, which is one line.
///
/// `before`: the blank bytes before the text.
fn not_json(error: &serde_json::Error, before: usize) -> String {
    let text = error.to_string();
    let what = text.split(" at line ").next().unwrap_or_default();
    format!("not JSON as expected: {what}, at column {}", before + error.column())
}
