//! A TOML file that is read to its end whatever is wrong with it, so that every mistake is found at once, each with its line.
//!
//! A [`Table`] remembers which keys were asked for: what is left over is unknown. Every text may hold the sweep's placeholder,
//! which is filled in here, so that nothing above need think of it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;

use oroshi_lab::template::{self, Values};
use oroshi_words::nearest;
use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

/// A mistake.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Mistake {
    /// Its line, from 1.
    pub(crate) line: usize,
    /// The key, with the tables it is in: `load.connections`. Empty when the file is no TOML there.
    pub(crate) key: String,
    /// What is wrong.
    pub(crate) text: String,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: ", self.line)?;
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        f.write_str(&self.text)
    }
}

/// A file's text, and what has been found in it.
#[derive(Debug)]
pub(super) struct Document<'t> {
    text: &'t str,
    found: RefCell<Vec<Found>>,
    /// How often the file has been read from its beginning.
    pass: Cell<usize>,
    /// Lines that are no TOML: what was made of them means nothing.
    broken: BTreeSet<usize>,
    /// From here on an array or a text that was never closed has swallowed everything.
    swallowed: Option<usize>,
    /// The sweep's name with its value at this point.
    point: RefCell<Option<(String, Values)>>,
    /// The sweep's name has been met.
    swept: Cell<bool>,
}

impl<'t> Document<'t> {
    /// Takes the text apart, and finds where it is no TOML.
    pub(super) fn parse(text: &'t str) -> (Self, Spanned<DeTable<'t>>) {
        let (root, errors) = DeTable::parse_recoverable(text);
        let mut document = Self {
            text,
            found: RefCell::default(),
            pass: Cell::new(0),
            broken: BTreeSet::new(),
            swallowed: None,
            point: RefCell::default(),
            swept: Cell::new(false),
        };
        let mut errors: Vec<(usize, &str)> =
            errors.iter().map(|e| (e.span().map_or(0, |span| span.start), e.message())).collect();
        errors.sort_by_key(|error| error.0);
        if let Some(missing) = errors.iter().find(|error| error.1.starts_with("missing comma"))
            && errors.iter().any(|error| error.1.starts_with("unclosed array"))
        {
            // All the rest of the file is then taken for its elements.
            document.swallowed = Some(array_around(root.get_ref(), missing.0).unwrap_or(missing.0));
        }
        let end = document.swallowed.unwrap_or(usize::MAX);
        errors.retain(|error| error.0 < end);
        errors.extend(document.swallowed.map(|at| (at, "the array that begins here is not closed: expected `]`")));
        for (at, message) in errors {
            // One mistake often makes several.
            let line = document.line(at);
            if document.broken.insert(line) {
                let mistake = Mistake { line, key: String::new(), text: message.to_owned() };
                document.found.get_mut().push(Found { at, pass: 0, mistake });
            }
        }
        (document, root)
    }

    /// The file's outermost table.
    pub(super) fn root<'d>(&'d self, root: &'d Spanned<DeTable<'t>>) -> Table<'d, 't> {
        Table::new(self, String::new(), root.span(), root.get_ref())
    }

    /// The file is read once more. `point`: the sweep's name, and the value at which it now stands.
    pub(super) fn begin(&self, point: Option<(&str, &str)>) {
        self.pass.set(self.pass.get() + 1);
        *self.point.borrow_mut() = point.map(|(name, value)| {
            let mut values = Values::default();
            values.set(name, value);
            (name.to_owned(), values)
        });
    }

    /// Whether the sweep's placeholder was met anywhere.
    pub(super) fn swept(&self) -> bool {
        self.swept.get()
    }

    /// Whether nothing has been found wrong so far.
    pub(super) fn is_sound(&self) -> bool {
        self.found.borrow().is_empty()
    }

    /// All that is wrong, in the order of lines.
    pub(super) fn mistakes(self) -> Vec<Mistake> {
        let mut mistakes: Vec<Mistake> = self.found.into_inner().into_iter().map(|found| found.mistake).collect();
        mistakes.sort();
        mistakes
    }

    fn line(&self, at: usize) -> usize {
        1 + self.text.as_bytes().iter().take(at).filter(|&&byte| byte == b'\n').count()
    }

    fn wrong(&self, at: usize, key: &str, text: String) {
        let line = self.line(at);
        if self.broken.contains(&line) || self.swallowed.is_some_and(|end| at >= end) {
            return;
        }
        let (pass, mut found) = (self.pass.get(), self.found.borrow_mut());
        // The same place is read once for each point of the sweep, and by each variant that inherits it.
        let known =
            found.iter().any(|f| f.at == at && f.mistake.key == key && (f.pass != pass || f.mistake.text == text));
        if !known {
            found.push(Found { at, pass, mistake: Mistake { line, key: key.to_owned(), text } });
        }
    }

    fn fill(&self, text: &str, at: &Value<'_, '_>) -> String {
        let point = self.point.borrow();
        let Some((name, values)) = &*point else { return text.to_owned() };
        match template::names(text) {
            Ok(names) if names.contains(&name.as_str()) => {
                self.swept.set(true);
                template::fill_some(text, values).unwrap_or_else(|error| {
                    at.wrong(error.to_string());
                    text.to_owned()
                })
            }
            // What is wrong with it is said by whoever knows its names.
            _ => text.to_owned(),
        }
    }
}

/// Where the last array begins that begins before a place.
fn array_around(table: &DeTable<'_>, place: usize) -> Option<usize> {
    let within = |value: &Spanned<DeValue<'_>>| match value.get_ref() {
        DeValue::Table(table) => array_around(table, place),
        DeValue::Array(array) => {
            // Of tables that each have a head, the array itself has no place.
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

/// A mistake, and when and where it was met.
#[derive(Debug)]
struct Found {
    at: usize,
    pass: usize,
    mistake: Mistake,
}

/// A table, at its place in the file.
#[derive(Debug)]
pub(super) struct Table<'d, 't> {
    document: &'d Document<'t>,
    path: String,
    span: Range<usize>,
    entries: &'d DeTable<'t>,
    asked: RefCell<BTreeSet<&'static str>>,
}

impl<'d, 't> Table<'d, 't> {
    fn new(document: &'d Document<'t>, path: String, span: Range<usize>, entries: &'d DeTable<'t>) -> Self {
        Self { document, path, span, entries, asked: RefCell::default() }
    }

    /// A key's value, if it is there.
    pub(super) fn get(&self, key: &'static str) -> Option<Value<'d, 't>> {
        self.asked.borrow_mut().insert(key);
        self.entries.iter().find(|entry| entry.0.get_ref() == key).map(|(key, value)| self.value(key, value))
    }

    /// A key's value as text, which must be there.
    pub(super) fn required(&self, key: &'static str, expected: &str) -> Option<String> {
        match self.get(key) {
            Some(value) => value.text(),
            None => {
                self.wrong(format!("`{key}` is missing: expected {expected}"));
                None
            }
        }
    }

    /// All of it, in the order of the file.
    pub(super) fn entries(&self) -> Vec<(String, Value<'d, 't>)> {
        let mut entries: Vec<_> =
            self.entries.iter().map(|(key, value)| (key.get_ref().to_string(), self.value(key, value))).collect();
        entries.sort_by_key(|entry| entry.1.at);
        entries
    }

    /// Something is wrong with the table itself.
    pub(super) fn wrong(&self, text: impl Into<String>) {
        let missing_is_known = self.document.swallowed.is_none();
        if missing_is_known {
            self.document.wrong(self.span.start, &self.path, text.into());
        }
    }

    /// Says which keys nobody asked for. `elsewhere` may know where such a key belongs.
    pub(super) fn finish(&self, elsewhere: impl Fn(&str) -> Option<String>) {
        let asked = self.asked.borrow();
        for (key, value) in self.entries().iter().filter(|entry| !asked.contains(entry.0.as_str())) {
            let hint = match (elsewhere(key), nearest(key, asked.iter().copied())) {
                (Some(hint), _) => hint,
                (None, Some(near)) => format!("did you mean `{near}`?"),
                (None, None) => format!("expected one of {}", asked.iter().copied().collect::<Vec<_>>().join(", ")),
            };
            value.wrong(format!("there is no such key: {hint}"));
        }
    }

    fn value(&self, key: &Spanned<DeString<'t>>, value: &'d Spanned<DeValue<'t>>) -> Value<'d, 't> {
        let separator = if self.path.is_empty() { "" } else { "." };
        let path = format!("{}{separator}{}", self.path, key.get_ref());
        Value { document: self.document, path, at: key.span().start, span: value.span(), value: value.get_ref() }
    }
}

/// A value, at its place in the file.
#[derive(Clone, Debug)]
pub(super) struct Value<'d, 't> {
    document: &'d Document<'t>,
    path: String,
    /// Where its key begins.
    at: usize,
    span: Range<usize>,
    value: &'d DeValue<'t>,
}

impl<'d, 't> Value<'d, 't> {
    /// Something is wrong with it.
    pub(super) fn wrong(&self, text: impl Into<String>) {
        self.document.wrong(self.at, &self.path, text.into());
    }

    /// A text or a number, as it was written; the sweep filled in.
    pub(super) fn text(&self) -> Option<String> {
        match self.value {
            DeValue::String(text) => Some(self.document.fill(text, self)),
            DeValue::Integer(number) if number.radix() == 10 => Some(number.as_str().to_owned()),
            DeValue::Float(number) => Some(number.as_str().to_owned()),
            _ => self.expected("a text"),
        }
    }

    /// One text, or several.
    pub(super) fn texts(&self) -> Option<Vec<String>> {
        match self.value {
            DeValue::Array(_) => self.elements()?.iter().map(Self::text).collect(),
            _ => self.text().map(|text| vec![text]),
        }
    }

    /// What is made of its text.
    pub(super) fn read<T, E: fmt::Display>(&self, read: impl FnOnce(&str) -> Result<T, E>) -> Option<T> {
        match read(&self.text()?) {
            Ok(value) => Some(value),
            Err(error) => {
                self.wrong(error.to_string());
                None
            }
        }
    }

    /// A text that belongs to it, with the sweep filled in.
    pub(super) fn fill(&self, text: &str) -> Option<String> {
        Some(self.document.fill(text, self))
    }

    /// true or false; `None` if it is something else.
    pub(super) fn switch(&self) -> Option<bool> {
        if let DeValue::Boolean(switch) = self.value { Some(*switch) } else { None }
    }

    pub(super) fn is_table(&self) -> bool {
        matches!(self.value, DeValue::Table(_))
    }

    pub(super) fn is_array(&self) -> bool {
        matches!(self.value, DeValue::Array(_))
    }

    /// The elements of an array.
    pub(super) fn elements(&self) -> Option<Vec<Self>> {
        let DeValue::Array(array) = self.value else { return self.expected("an array") };
        let element = |value: &'d Spanned<DeValue<'t>>| Self {
            document: self.document,
            path: self.path.clone(),
            at: value.span().start,
            span: value.span(),
            value: value.get_ref(),
        };
        Some(array.iter().map(element).collect())
    }

    /// A table.
    pub(super) fn table(&self) -> Option<Table<'d, 't>> {
        let DeValue::Table(table) = self.value else { return self.expected("a table") };
        Some(Table::new(self.document, self.path.clone(), self.span.clone(), table))
    }

    /// The tables of `[[key]]`.
    pub(super) fn tables(&self) -> Vec<Table<'d, 't>> {
        match self.value {
            DeValue::Array(_) => self.elements().unwrap_or_default().iter().filter_map(Self::table).collect(),
            _ => {
                let hint = format!("expected tables, each begun by [[{}]]", self.path);
                self.wrong(hint);
                Vec::new()
            }
        }
    }

    fn expected<T>(&self, what: &str) -> Option<T> {
        let found = match self.value {
            DeValue::String(_) => "a text",
            DeValue::Integer(_) | DeValue::Float(_) => "a number",
            DeValue::Boolean(_) => "true or false",
            DeValue::Datetime(_) => "a date or time",
            DeValue::Array(_) => "an array",
            DeValue::Table(_) => "a table",
        };
        self.wrong(format!("{found} stands here: expected {what}"));
        None
    }
}
