//! TOML as a tree.

use std::collections::BTreeSet;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use crate::document::{Entry, Node, Value};
use oroshi_words::{Kind, Mistake};

/// Reads a file. Keys are in alphabetical order, which decides the order of header fields.
///
/// # Errors
/// All lines that are no TOML.
pub fn parse(text: &str) -> Result<Node, Vec<Mistake>> {
    let (mut root, broken) = parse_recoverable(text);
    sort(&mut root);
    if broken.is_empty() { Ok(root) } else { Err(broken.and(Vec::new())) }
}

/// Sorts the keys of each table.
fn sort(node: &mut Node) {
    match &mut node.value {
        Value::Table(entries) => {
            entries.sort_by(|a, b| a.key.cmp(&b.key));
            entries.iter_mut().for_each(|entry| sort(&mut entry.node));
        }
        Value::List(elements) => elements.iter_mut().for_each(sort),
        _ => {}
    }
}

/// Reads the valid parts of a file, and finds the lines that are no TOML.
#[must_use]
pub fn parse_recoverable(text: &str) -> (Node, BrokenLines) {
    let (root, errors) = DeTable::parse_recoverable(text);
    let lines = Lines::of(text);
    let mut errors: Vec<(usize, &str)> =
        errors.iter().map(|error| (error.span().map_or(0, |span| span.start), error.message())).collect();
    errors.sort_by_key(|error| error.0);
    let mut swallowed = None;
    if let Some(missing) = errors.iter().find(|error| error.1.starts_with("missing comma"))
        && errors.iter().any(|error| error.1.starts_with("unclosed array"))
    {
        // The parser reads the rest of the file as elements of the array.
        swallowed = Some(array_around(root.get_ref(), missing.0).unwrap_or(missing.0));
    }
    errors.retain(|error| error.0 < swallowed.unwrap_or(usize::MAX));
    errors.extend(swallowed.map(|at| (at, "the array that begins here is not closed: expected `]`")));
    let mut broken = BrokenLines { swallowed: swallowed.map(|at| lines.at(at)), ..BrokenLines::default() };
    for (at, message) in errors {
        let line = lines.at(at);
        // One mistake often makes several errors.
        if broken.lines.insert(line) {
            broken.mistakes.push(Mistake::new("", message).at(line));
        }
    }
    (Node { line: 1, span: root.span(), value: lines.table(root.get_ref()) }, broken)
}

/// The lines of a file that are no TOML.
#[derive(Clone, Debug, Default)]
pub struct BrokenLines {
    mistakes: Vec<Mistake>,
    lines: BTreeSet<usize>,
    /// The line from which the parser read everything as elements of an array that is not closed.
    swallowed: Option<usize>,
}

impl BrokenLines {
    /// Whether the file is TOML.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.mistakes.is_empty()
    }

    /// Merges these mistakes with those of a reader that are not about broken lines, in the order of lines.
    #[must_use]
    pub fn and(self, read: Vec<Mistake>) -> Vec<Mistake> {
        let BrokenLines { mut mistakes, lines, swallowed } = self;
        let is_sure = |mistake: &Mistake| {
            let is_here = swallowed.is_none_or(|end| mistake.line < end && mistake.kind != Kind::Missing);
            is_here && !lines.contains(&mistake.line)
        };
        mistakes.extend(read.into_iter().filter(is_sure));
        mistakes.sort();
        mistakes
    }
}

/// Returns the position of the last array that begins before a position.
fn array_around(table: &DeTable<'_>, place: usize) -> Option<usize> {
    let within = |value: &Spanned<DeValue<'_>>| match value.get_ref() {
        DeValue::Table(table) => array_around(table, place),
        DeValue::Array(array) => {
            // An array of tables with heads has no position of its own.
            let own = value.span().start;
            let tables = array.iter().filter_map(|element| element.get_ref().as_table());
            let inner = tables.filter_map(|table| array_around(table, place)).max();
            let has_heads = !array.is_empty() && array.iter().all(|element| element.get_ref().is_table());
            inner.max((!has_heads && own < place).then_some(own))
        }
        _ => None,
    };
    table.iter().filter_map(|(_, value)| within(value)).max()
}

/// The positions at which lines end.
struct Lines(Vec<usize>);

impl Lines {
    fn of(text: &str) -> Self {
        Lines(text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(place, _)| place).collect())
    }

    /// Returns the line of a position.
    fn at(&self, place: usize) -> usize {
        1 + self.0.partition_point(|&end| end < place)
    }

    fn node(&self, value: &Spanned<DeValue<'_>>) -> Node {
        let span: Range<usize> = value.span();
        let line = self.at(span.start);
        let value = match value.get_ref() {
            DeValue::String(text) => Value::Text(text.to_string()),
            DeValue::Integer(number) if number.radix() == 10 => Value::Text(number.as_str().to_owned()),
            DeValue::Integer(number) => {
                let decimal = i128::from_str_radix(number.as_str(), number.radix());
                Value::Text(decimal.map_or_else(|_| number.as_str().to_owned(), |number| number.to_string()))
            }
            DeValue::Float(number) => Value::Text(number.as_str().to_owned()),
            DeValue::Boolean(switch) => Value::Switch(*switch),
            DeValue::Datetime(time) => Value::Time(time.to_string()),
            DeValue::Array(elements) => Value::List(elements.iter().map(|element| self.node(element)).collect()),
            DeValue::Table(table) => self.table(table),
        };
        Node { line, span, value }
    }

    fn table(&self, table: &DeTable<'_>) -> Value {
        let entry = |(key, value): (&Spanned<DeString<'_>>, &Spanned<DeValue<'_>>)| {
            let place = key.span().start;
            (place, Entry { key: key.get_ref().to_string(), line: self.at(place), node: self.node(value) })
        };
        let mut entries: Vec<(usize, Entry)> = table.iter().map(entry).collect();
        // The parser sorts the keys of a table.
        entries.sort_by_key(|entry| entry.0);
        Value::Table(entries.into_iter().map(|entry| entry.1).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_their_lines_and_every_value_is_a_text() {
        let root = parse_recoverable(
            "threads = 1_000\nx = 0x10\n[listen]\npublic = [\":1\", \"2\"]\n[[group]]\na = true\n[[group]]\nb = 1.5\n",
        );
        let root = root.0;
        for (path, line) in [("threads", 1), ("listen.public[2]", 4), ("group[1].a", 6), ("group[2].b", 8)] {
            assert_eq!(root.line_of(path), line, "{path}");
        }
        let Value::Table(entries) = &root.value else { panic!("{root:?}") };
        assert_eq!(entries[0].node.value, Value::Text("1000".into()));
        assert_eq!(entries[1].node.value, Value::Text("16".into()));
    }

    #[test]
    fn all_lines_that_are_no_toml_are_told() {
        let mistakes = parse("a = \nb = 1\nb = 2\nc\n").unwrap_err();
        let lines: Vec<usize> = mistakes.iter().map(|mistake| mistake.line).collect();
        assert_eq!(lines, [1, 3, 4], "{mistakes:?}");
    }
    #[test]
    fn what_is_no_toml_does_not_hide_what_is_wrong_elsewhere() {
        let wrong = |line, kind| Mistake { kind, ..Mistake::new("k", "x").at(line) };
        let read = vec![wrong(1, Kind::Missing), wrong(2, Kind::Wrong), wrong(3, Kind::Wrong)];
        let told = |text: &str| {
            let (_, broken) = parse_recoverable(text);
            broken.and(read.clone()).iter().map(|mistake| (mistake.line, mistake.text != "x")).collect::<Vec<_>>()
        };
        assert_eq!(told("a = 1\nb = 2\nc = 3\n"), [(1, false), (2, false), (3, false)]);
        assert_eq!(told("a = 1\nb = \nc = 3\n"), [(1, false), (2, true), (3, false)]);
        // Everything after an array that is not closed is part of it, so keys that seem to be missing may be in it.
        assert_eq!(told("a = 1\nb = [1,\nc = 3\nd = 4\n"), [(2, true)]);
    }
}
