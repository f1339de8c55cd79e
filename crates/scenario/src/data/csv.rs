//! CSV files (RFC 4180, any separator, any bytes in fields).

use std::cell::Cell;
use std::collections::HashSet;
use std::io::{self, Read};
use std::rc::Rc;

use csv::{ByteRecord, ErrorKind, ReaderBuilder};
use oroshi_words::{printable, units};

use super::cells::Cells;
use super::source::Source;
use super::{MAX_COLUMNS, MAX_ROW_BYTES, MAX_ROWS, MAX_VALUES, Part, at_most};

/// What follows the file. Only within quotes that stay open does it not become a row.
const AFTER_FILE: &[u8] = b"\nx";

/// Bytes of the file after which a row must have ended. Quotes may double its size, and the reader reads ahead.
const MAX_UNFINISHED_BYTES: usize = 4 * MAX_ROW_BYTES;

/// The longest part of a name in messages, bytes.
const MAX_SHOWN_BYTES: usize = 100;

/// The rows of a file.
#[derive(Debug)]
pub(super) struct Table {
    /// The names of the header, in order. Empty if there is no header; an empty name counts as none.
    names: Vec<Box<[u8]>>,
    width: usize,
    /// The fields, row after row.
    cells: Cells,
}

/// The fields of a row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fields<'a> {
    table: &'a Table,
    row: usize,
}

/// What a script calls a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ColumnName<'a> {
    /// The header's name.
    Text(&'a [u8]),
    /// Its number, from 1: the column has no name.
    Number(usize),
}

impl Table {
    pub(super) fn row(&self, row: usize) -> Option<Fields<'_>> {
        (row * self.width < self.cells.len()).then_some(Fields { table: self, row })
    }

    /// Memory in use, bytes.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.cells.bytes()
    }
}

impl<'a> Fields<'a> {
    #[cfg(test)]
    /// Returns the field of the column of this name in the header.
    pub(crate) fn get(&self, name: &[u8]) -> Option<&'a [u8]> {
        let column = self.table.names.iter().position(|known| !known.is_empty() && **known == *name)?;
        self.at(column)
    }

    /// Returns all fields with the names of their columns.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (ColumnName<'a>, &'a [u8])> + use<'a> {
        let fields = *self;
        (0..fields.table.width).filter_map(move |column| {
            let name = fields.table.names.get(column).filter(|name| !name.is_empty());
            let name = name.map_or(ColumnName::Number(column + 1), |name| ColumnName::Text(name));
            Some((name, fields.at(column)?))
        })
    }

    fn at(&self, column: usize) -> Option<&'a [u8]> {
        self.table.cells.get(self.row * self.table.width + column)
    }
}

/// Reads a file. Returns the rows of a part, and the number of rows in all.
pub(super) fn read(source: Source, separator: u8, header: bool, part: Part) -> Result<(Table, usize), String> {
    let place = source.place();
    let mut cells = Cells::with_capacity(source.size() as usize / part.count);
    let progress = Rc::<Progress>::default();
    let reader = Watched { source, progress: Rc::clone(&progress) }.chain(AFTER_FILE);
    let mut reader = ReaderBuilder::new().has_headers(false).flexible(true).delimiter(separator).from_reader(reader);
    let mut record = ByteRecord::new();
    let (mut names, mut width, mut rows) = (Vec::new(), None, 0);
    loop {
        let start = reader.position().byte();
        progress.unfinished.set(0);
        let wrong = |what: &str| place.row(start, what);
        match reader.read_byte_record(&mut record) {
            Ok(true) => {}
            Ok(false) => break,
            Err(error) => match error.into_kind() {
                ErrorKind::Io(error) if error.kind() == io::ErrorKind::FileTooLarge => {
                    return Err(wrong(&format!("{error}")));
                }
                ErrorKind::Io(error) => return Err(place.unreadable(&error)),
                other => return Err(wrong(&format!("{other:?}"))),
            },
        }
        if progress.ended.get() && reader.position().byte() == progress.bytes.get() + AFTER_FILE.len() as u64 {
            if record.len() == 1 && record[0] == AFTER_FILE[1..] {
                break;
            }
            return Err(wrong("a quote opens in this row, and the file ends before it closes: expected another `\"`"));
        }
        if record.as_slice().len() > MAX_ROW_BYTES {
            return Err(wrong(&too_long()));
        }
        if width.is_none() {
            if record.len() > MAX_COLUMNS {
                return Err(wrong(&format!("there are {} columns: {}", record.len(), at_most(MAX_COLUMNS, "columns"))));
            }
            width = Some(record.len());
            if header {
                names = named(&record).map_err(|what| wrong(&what))?;
                continue;
            }
        }
        let columns = width.unwrap_or_default();
        if record.len() != columns {
            let (has, as_first) =
                (units::plural(record.len() as u64, "column"), if header { "header" } else { "first row" });
            return Err(wrong(&format!("the row has {has}: expected {columns}, as the {as_first} has")));
        }
        if rows == MAX_ROWS {
            return Err(wrong(&format!("there are too many rows: {}", at_most(MAX_ROWS, "rows"))));
        }
        if part.has(rows) {
            if cells.len() + columns > MAX_VALUES {
                return Err(wrong(&format!("there are too many fields: {}", at_most(MAX_VALUES, "fields"))));
            }
            record.iter().for_each(|field| cells.push(field));
        }
        rows += 1;
    }
    cells.shrink();
    Ok((Table { names, width: width.unwrap_or_default(), cells }, rows))
}

/// Returns the header's names.
fn named(header: &ByteRecord) -> Result<Vec<Box<[u8]>>, String> {
    let mut known = HashSet::new();
    for name in header {
        if !name.is_empty() && !known.insert(name) {
            let shown = String::from_utf8_lossy(&name[..name.len().min(MAX_SHOWN_BYTES)]);
            let name = printable(&shown);
            return Err(format!("two columns are called `{name}`: expected different names, or `header = false`"));
        }
    }
    Ok(header.iter().map(Box::from).collect())
}

fn too_long() -> String {
    format!("the row takes more than {}: is a quote missing?", units::bytes(MAX_ROW_BYTES as f64))
}

/// How far the file was read.
#[derive(Debug, Default)]
struct Progress {
    bytes: Cell<u64>,
    ended: Cell<bool>,
    /// Bytes since the last row was complete.
    unfinished: Cell<usize>,
}

/// A source that tells how far it was read, and fails within a row without end, which would fill the memory.
#[derive(Debug)]
struct Watched {
    source: Source,
    progress: Rc<Progress>,
}

impl Read for Watched {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let progress = &self.progress;
        if progress.unfinished.get() > MAX_UNFINISHED_BYTES {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, too_long()));
        }
        let read = self.source.read(buffer)?;
        progress.bytes.set(progress.bytes.get() + read as u64);
        progress.unfinished.set(progress.unfinished.get() + read);
        progress.ended.set(read == 0);
        Ok(read)
    }
}
