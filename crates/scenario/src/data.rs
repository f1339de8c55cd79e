//! Sets of rows that a script's users draw on: accounts, items, search words.
//!
//! All threads share the rows of a set. Each thread runs the script and so declares the same sets in the same order;
//! the first thread loads them. Rows of files live here; rows of a script's list live in each Lua state, and a set
//! knows only their number.
//!
//! Read it in this order: this file, [`declaration`](Declaration), [`registry`](Sets), [`csv`] and [`jsonl`] on
//! [`source`] and [`cells`], [`lease`].

mod cells;
mod csv;
mod declaration;
mod jsonl;
mod lease;
mod registry;
mod source;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use cells::Cells;
pub(crate) use csv::{ColumnName, Fields};
pub(crate) use declaration::{Declaration, Origin, parse_separator};
use lease::Leases;
pub(crate) use registry::{Declarations, Sets};
use source::Source;

use crate::files::Files;

/// The largest file, bytes.
pub(crate) const MAX_FILE_BYTES: u64 = 1 << 30;

/// The most rows of a set.
pub(crate) const MAX_ROWS: usize = 100_000_000;

/// The largest row, and so the largest field, bytes.
pub(crate) const MAX_ROW_BYTES: usize = 1 << 20;

/// The most columns of a CSV file.
pub(crate) const MAX_COLUMNS: usize = 1000;

/// The most values of a set: rows times columns. Each takes 4 bytes beside its text.
pub(crate) const MAX_VALUES: usize = 250_000_000;

/// The most sets of a script.
pub(crate) const MAX_SETS: usize = 1000;

/// Which rows of each split set belong to this load machine: those whose number modulo `count` is `index`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    index: usize,
    count: usize,
}

impl Part {
    /// All rows: there is one machine.
    pub(crate) const WHOLE: Part = Part { index: 0, count: 1 };

    /// The part of machine `index`, from 0, of `count` machines.
    pub(crate) fn new(index: usize, count: usize) -> Self {
        Self { index: index.min(count.max(1) - 1), count: count.max(1) }
    }

    fn has(self, row: usize) -> bool {
        row % self.count == self.index
    }

    /// Returns the number of rows of this part, of `rows` in all.
    fn len(self, rows: usize) -> usize {
        rows.saturating_sub(self.index).div_ceil(self.count)
    }

    /// Returns the place among all rows of a row of this part.
    fn place(self, row: usize) -> usize {
        row * self.count + self.index
    }
}

/// The rows of one declaration, and which of them are in use.
#[derive(Debug)]
pub(crate) struct Set {
    declaration: Declaration,
    rows: Rows,
    len: usize,
    part: Part,
    /// Whether other machines have the same rows.
    is_everywhere: bool,
    /// How many rows [`Set::next`] has given.
    next: AtomicU64,
    /// Made by the first lease.
    leases: Mutex<Option<Leases>>,
}

/// Where the rows are.
#[derive(Debug)]
enum Rows {
    Fields(csv::Table),
    /// One JSON text per row.
    Json(Cells),
    /// In each Lua state.
    Listed,
}

/// A row of a set.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Row<'a> {
    /// A row of a CSV file.
    Fields(Fields<'a>),
    /// A line of a JSON lines file: valid JSON.
    Json(&'a str),
    /// A row of the script's list: its index there, from 0.
    Listed(usize),
}

#[cfg(test)]
/// The value of a row's column.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value<'a> {
    /// A field of a CSV file: any bytes.
    Text(&'a [u8]),
    /// A value of a JSON object.
    Json(serde_json::Value),
}

impl<'a> Row<'a> {
    #[cfg(test)]
    /// Returns the value of the column of this name; `None` if the row has no such column.
    pub(crate) fn column(&self, name: &str) -> Option<Value<'a>> {
        match self {
            Row::Fields(fields) => fields.get(name.as_bytes()).map(Value::Text),
            Row::Json(text) => match serde_json::from_str(text) {
                Ok(serde_json::Value::Object(mut columns)) => columns.remove(name).map(Value::Json),
                _ => None,
            },
            Row::Listed(_) => None,
        }
    }
}

impl Set {
    /// Loads the rows of a declaration.
    ///
    /// # Errors
    /// A message for the user, with the file and the line.
    pub(crate) fn load(declaration: Declaration, files: &Files, part: Part) -> Result<Self, String> {
        let is_everywhere = !declaration.split && part != Part::WHOLE;
        let part = if declaration.split { part } else { Part::WHOLE };
        let name = &declaration.name;
        let (rows, total) = match &declaration.origin {
            Origin::Csv { separator, header } => {
                let source = Source::open(&files.path(name)?, name)?;
                let (table, total) = csv::read(source, *separator, *header, part)?;
                (Rows::Fields(table), total)
            }
            Origin::JsonLines => {
                let (cells, total) = jsonl::read(Source::open(&files.path(name)?, name)?, part)?;
                (Rows::Json(cells), total)
            }
            Origin::List { rows } if *rows > MAX_ROWS => {
                return Err(format!("{name} has {rows} rows: {}", at_most(MAX_ROWS, "rows")));
            }
            Origin::List { rows } => (Rows::Listed, *rows),
        };
        let is_file = !matches!(rows, Rows::Listed);
        if total == 0 && is_file {
            return Err(format!("{name} has no rows: expected at least one"));
        }
        let len = part.len(total);
        if len == 0 && total > 0 {
            let machines = part.count;
            return Err(format!(
                "{name} has {total} rows, to be split over {machines} machines: expected at least one for each"
            ));
        }
        let (next, leases) = (AtomicU64::new(0), Mutex::default());
        Ok(Self { declaration, rows, len, part, is_everywhere, next, leases })
    }

    /// Returns what the script declared.
    pub(crate) fn declaration(&self) -> &Declaration {
        &self.declaration
    }

    /// Returns the number of rows that this machine has.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns a row, from 0; `None` if there is none of this index.
    pub(crate) fn get(&self, index: usize) -> Option<Row<'_>> {
        if index >= self.len {
            return None;
        }
        match &self.rows {
            Rows::Fields(table) => table.row(index).map(Row::Fields),
            Rows::Json(cells) => cells.get(index).and_then(|text| std::str::from_utf8(text).ok()).map(Row::Json),
            Rows::Listed => Some(Row::Listed(self.part.place(index))),
        }
    }

    /// Returns the index of the row of a user (from 1), the same one each time; `None` if there are no rows.
    ///
    /// Users share rows if there are more users than rows. User `k` has row `k` also of rows that are split over
    /// machines: its machine has both.
    pub(crate) fn own(&self, user: u64) -> Option<usize> {
        let rows = self.len as u64;
        (user.saturating_sub(1) / self.part.count as u64).checked_rem(rows).map(|index| index as usize)
    }

    /// Whether [`next`](Self::next) begins again after the last row.
    pub(crate) fn wraps(&self) -> bool {
        self.declaration.wrap
    }

    /// Whether other machines have the same rows.
    pub(crate) fn is_everywhere(&self) -> bool {
        self.is_everywhere
    }

    /// Returns the index of the next row, in turn over all threads.
    ///
    /// After the last row it returns `None`, or begins again if the set was declared to wrap.
    pub(crate) fn next(&self) -> Option<usize> {
        let rows = self.len as u64;
        if !self.declaration.wrap && self.next.load(Ordering::Relaxed) >= rows {
            return None;
        }
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        let index = if self.declaration.wrap { turn.checked_rem(rows) } else { Some(turn) };
        index.filter(|index| *index < rows).map(|index| index as usize)
    }

    /// Leases a free row, chosen by a random number, and returns its index; `None` if all rows are leased.
    ///
    /// No other user gets the row until [`Set::release`].
    pub(crate) fn lease(&self, choice: u64) -> Option<usize> {
        let rows = self.len as u32; // At most MAX_ROWS.
        self.leases().get_or_insert_with(|| Leases::new(rows)).take(choice).map(|row| row as usize)
    }

    /// Ends the lease of a row. Returns false if the row is not leased.
    pub(crate) fn release(&self, index: usize) -> bool {
        match (&mut *self.leases(), u32::try_from(index)) {
            (Some(leases), Ok(row)) => leases.give_back(row),
            _ => false,
        }
    }

    /// Ends all leases, and begins again with the first row: for the next run.
    pub(crate) fn reset(&self) {
        self.next.store(0, Ordering::Relaxed);
        *self.leases() = None;
    }

    fn leases(&self) -> MutexGuard<'_, Option<Leases>> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a message about a limit expects.
fn at_most(limit: usize, noun: &str) -> String {
    format!("expected at most {} {noun}", oroshi_words::units::count(limit as u64))
}

#[cfg(test)]
mod tests;
