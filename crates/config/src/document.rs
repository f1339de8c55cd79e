//! A configuration as a tree of keys and values, in any language, and a reader that finds every mistake in one pass.
//!
//! A [`Table`] remembers the keys that a reader asked for. All other keys are unknown.

use std::cell::RefCell;
use std::fmt;
use std::ops::Range;

use oroshi_words::{Kind, Mistake, nearest};

use crate::mistakes::{Mistakes, Style};

/// A value, and where it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// Its line, from 1.
    pub line: usize,
    /// Its position in the file's text, in bytes; empty if the language does not provide it.
    pub span: Range<usize>,
    /// The value.
    pub value: Value,
}

/// A value. Numbers are texts: the reader of a key knows what they must be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Value {
    /// A key without a value, which counts as no key.
    #[default]
    Nothing,
    /// A text or a number. In YAML also everything else that is no list and no table.
    Text(String),
    /// true or false.
    Switch(bool),
    /// A date or a time.
    Time(String),
    /// Elements in order.
    List(Vec<Node>),
    /// Keys with values, in the order of the file.
    Table(Vec<Entry>),
}

/// A key with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The key.
    pub key: String,
    /// The key's line, which may be before the line of the value.
    pub line: usize,
    /// The value.
    pub node: Node,
}

impl Node {
    /// Creates a value at a line.
    #[must_use]
    pub fn new(line: usize, value: Value) -> Self {
        Node { line, span: 0..0, value }
    }

    /// Returns the line of a key, `group[2].pattern`, or of its nearest parent; 0 if none of them is in the file.
    #[must_use]
    pub fn line_of(&self, path: &str) -> usize {
        let (mut node, mut line) = (self, 0);
        for part in path.split(['.', '[', ']']).filter(|part| !part.is_empty()) {
            let (next, at) = match &node.value {
                Value::Table(entries) => match entries.iter().find(|entry| entry.key == part) {
                    Some(entry) => (&entry.node, entry.line),
                    None => return line,
                },
                Value::List(elements) => {
                    match part.parse::<usize>().ok().and_then(|at| elements.get(at.checked_sub(1)?)) {
                        Some(element) => (element, element.line),
                        None => return line,
                    }
                }
                _ => return line,
            };
            (node, line) = (next, at);
        }
        line
    }

    /// Returns the mistake with the line of its key.
    #[must_use]
    pub fn place(&self, mistake: Mistake) -> Mistake {
        let line = self.line_of(&mistake.key);
        mistake.at(line)
    }

    /// Returns the value of a key of this table.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Node> {
        self.entries().iter().find(|entry| entry.key == key).map(|entry| &entry.node)
    }

    /// Returns the entries of this table; none if this is no table.
    #[must_use]
    pub fn entries(&self) -> &[Entry] {
        if let Value::Table(entries) = &self.value { entries } else { &[] }
    }

    /// Returns the elements of this list, or the value itself.
    #[must_use]
    pub fn elements(&self) -> &[Node] {
        if let Value::List(elements) = &self.value { elements } else { std::slice::from_ref(self) }
    }

    /// Returns the text, if this is one.
    #[must_use]
    pub fn as_text(&self) -> Option<&str> {
        if let Value::Text(text) = &self.value { Some(text) } else { None }
    }

    /// Calls a function that may change texts with every text below these keys of this table.
    pub fn each_text_of(&mut self, keys: &[&str], change: &mut impl FnMut(&mut String)) {
        let Value::Table(entries) = &mut self.value else { return };
        for entry in entries.iter_mut().filter(|entry| keys.contains(&entry.key.as_str())) {
            entry.node.each_text(change);
        }
    }

    fn each_text(&mut self, change: &mut impl FnMut(&mut String)) {
        match &mut self.value {
            Value::Text(text) => change(text),
            Value::List(elements) => elements.iter_mut().for_each(|element| element.each_text(change)),
            Value::Table(entries) => entries.iter_mut().for_each(|entry| entry.node.each_text(change)),
            Value::Nothing | Value::Switch(_) | Value::Time(_) => {}
        }
    }
}

/// A table that is being read.
#[derive(Clone, Debug)]
pub struct Table<'d> {
    path: String,
    line: usize,
    entries: &'d [Entry],
    asked: RefCell<Vec<&'static str>>,
    mistakes: &'d Mistakes,
}

impl<'d> Table<'d> {
    /// Reads the outermost table.
    #[must_use]
    pub fn root(node: &'d Node, mistakes: &'d Mistakes) -> Self {
        if !matches!(node.value, Value::Table(_) | Value::Nothing) {
            mistakes.push(Mistake::new("", "expected keys and values").at(node.line));
        }
        Self::new(String::new(), node.line, node.entries(), mistakes)
    }

    fn new(path: String, line: usize, entries: &'d [Entry], mistakes: &'d Mistakes) -> Self {
        Table { path, line, entries, asked: RefCell::default(), mistakes }
    }

    /// Returns a key's value, if it is there and is not empty.
    pub fn get(&self, key: &'static str) -> Option<Field<'d>> {
        if !self.asked.borrow().contains(&key) {
            self.asked.borrow_mut().push(key);
        }
        let entry = self.entries.iter().find(|entry| entry.key == key)?;
        (entry.node.value != Value::Nothing).then(|| self.field(entry))
    }

    /// Reads a key's text with a function.
    pub fn read<T, E: fmt::Display>(&self, key: &'static str, read: impl FnOnce(&str) -> Result<T, E>) -> Option<T> {
        self.get(key)?.read(read)
    }

    /// Reads a key's text with a function into `place`. Without the key, `place` keeps its value.
    pub fn set<T>(&self, key: &'static str, place: &mut T, read: impl FnOnce(&str) -> Result<T, String>) {
        if let Some(value) = self.read(key, read) {
            *place = value;
        }
    }

    /// Returns a key's text.
    pub fn text(&self, key: &'static str) -> Option<String> {
        self.get(key)?.text().map(str::to_owned)
    }

    /// Returns the text of a required key.
    pub fn required(&self, key: &'static str, expected: &str) -> Option<String> {
        match self.get(key) {
            Some(field) => field.text().map(str::to_owned),
            None => {
                self.wrong(format!("`{key}` is missing: expected {expected}"));
                None
            }
        }
    }

    /// Returns a key's texts: one, or several; none without the key.
    pub fn texts(&self, key: &'static str) -> Vec<String> {
        self.get(key).and_then(|field| field.texts()).unwrap_or_default()
    }

    /// Returns a key's table.
    pub fn table(&self, key: &'static str) -> Option<Table<'d>> {
        self.get(key)?.table()
    }

    /// Reads a table, if the key is there, and reports its unknown keys.
    pub fn within(&self, key: &'static str, read: impl FnOnce(&Table<'d>)) {
        if let Some(table) = self.table(key) {
            read(&table);
            table.finish();
        }
    }

    /// Iterates over all keys with their values, in the order of the file, whichever of them a reader asks for.
    pub fn fields(&self) -> impl Iterator<Item = (&'d str, Field<'d>)> {
        self.entries.iter().map(|entry| (entry.key.as_str(), self.field(entry)))
    }

    /// Reports that something is missing in this table.
    pub fn wrong(&self, text: impl Into<String>) {
        let mistake = Mistake { kind: Kind::Missing, ..Mistake::new(self.path.clone(), text) };
        self.mistakes.push(mistake.at(self.line));
    }

    /// Reports the keys that no reader asked for.
    pub fn finish(&self) {
        self.finish_with(|_| None);
    }

    /// Reports the keys that no reader asked for. `elsewhere` may know where such a key belongs.
    pub fn finish_with(&self, elsewhere: impl Fn(&str) -> Option<String>) {
        let asked = self.asked.borrow();
        for entry in self.entries.iter().filter(|entry| !asked.contains(&entry.key.as_str())) {
            let hint = elsewhere(&entry.key).unwrap_or_else(|| did_you_mean(&entry.key, &asked));
            self.field(entry).unknown(&hint);
        }
    }

    fn field(&self, entry: &'d Entry) -> Field<'d> {
        let separator = if self.path.is_empty() { "" } else { "." };
        let path = format!("{}{separator}{}", self.path, entry.key);
        Field { path, line: entry.line, node: &entry.node, mistakes: self.mistakes }
    }
}

/// Returns the nearest of the known names, or all of them.
#[must_use]
pub fn did_you_mean(name: &str, known: &[&str]) -> String {
    match nearest(name, known.iter().copied()) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("expected one of {}", known.join(", ")),
    }
}

/// A value that is being read.
#[derive(Clone, Debug)]
pub struct Field<'d> {
    path: String,
    line: usize,
    node: &'d Node,
    mistakes: &'d Mistakes,
}

impl<'d> Field<'d> {
    /// Reports a mistake in the value.
    pub fn wrong(&self, text: impl Into<String>) {
        self.mistakes.push(Mistake::new(self.path.clone(), text).at(self.line));
    }

    /// Reports an unknown key. `hint` tells which key was meant.
    pub fn unknown(&self, hint: &str) {
        let mistake = Mistake::new(self.path.clone(), format!("there is no such key: {hint}"));
        self.mistakes.push(Mistake { kind: Kind::Unknown, ..mistake }.at(self.line));
    }

    /// Returns the text. The text of nothing is empty.
    #[must_use]
    pub fn text(&self) -> Option<&'d str> {
        match &self.node.value {
            Value::Text(text) => Some(text),
            Value::Nothing => Some(""),
            Value::Switch(on) if self.mistakes.style() == Style::Settings => Some(if *on { "true" } else { "false" }),
            Value::Time(time) if self.mistakes.style() == Style::Settings => Some(time),
            _ => self.expected("text"),
        }
    }

    /// Returns the text; `None`, without a mistake, for anything else.
    #[must_use]
    pub fn quiet_text(&self) -> Option<&'d str> {
        self.node.as_text()
    }

    /// Returns true or false; `None`, without a mistake, for anything else.
    #[must_use]
    pub fn switch(&self) -> Option<bool> {
        if let Value::Switch(on) = self.node.value { Some(on) } else { None }
    }

    /// Whether the value is a table.
    #[must_use]
    pub fn is_table(&self) -> bool {
        matches!(self.node.value, Value::Table(_))
    }

    /// Whether the value is a list.
    #[must_use]
    pub fn is_list(&self) -> bool {
        matches!(self.node.value, Value::List(_))
    }

    /// Reads the text with a function.
    pub fn read<T, E: fmt::Display>(&self, read: impl FnOnce(&str) -> Result<T, E>) -> Option<T> {
        match read(self.text()?) {
            Ok(value) => Some(value),
            Err(error) => {
                self.wrong(error.to_string());
                None
            }
        }
    }

    /// Returns one text, or several.
    #[must_use]
    pub fn texts(&self) -> Option<Vec<String>> {
        self.each().iter().map(|element| element.text().map(str::to_owned)).collect()
    }

    /// Returns the elements of a list, or the value itself.
    #[must_use]
    pub fn each(&self) -> Vec<Field<'d>> {
        if self.is_list() { self.elements().unwrap_or_default() } else { vec![self.clone()] }
    }

    /// Returns a table.
    #[must_use]
    pub fn table(&self) -> Option<Table<'d>> {
        let Value::Table(entries) = &self.node.value else { return self.expected("a table of keys and values") };
        Some(Table::new(self.path.clone(), self.node.line, entries, self.mistakes))
    }

    /// Returns the elements of a list.
    #[must_use]
    pub fn elements(&self) -> Option<Vec<Field<'d>>> {
        let Value::List(elements) = &self.node.value else { return self.expected("an array") };
        let element = |(at, node): (usize, &'d Node)| {
            let path = match self.mistakes.style() {
                Style::Settings => format!("{}[{}]", self.path, at + 1),
                Style::Typed => self.path.clone(),
            };
            Field { path, line: node.line, node, mistakes: self.mistakes }
        };
        Some(elements.iter().enumerate().map(element).collect())
    }

    /// Returns the tables of `[[key]]`.
    #[must_use]
    pub fn tables(&self) -> Vec<Table<'d>> {
        if !self.is_list() {
            self.wrong(format!("expected tables, each begun by [[{}]]", self.path));
            return Vec::new();
        }
        self.each().iter().filter_map(Field::table).collect()
    }

    fn expected<T>(&self, what: &str) -> Option<T> {
        let found = match self.node.value {
            Value::Nothing => "empty",
            Value::Text(_) => "text",
            Value::Switch(_) => "true or false",
            Value::Time(_) => "a date or time",
            Value::List(_) => "an array",
            Value::Table(_) => "a table",
        };
        self.wrong(format!("is {found}: expected {what}"));
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(line: usize, text: &str) -> Node {
        Node::new(line, Value::Text(text.into()))
    }

    fn entry(line: usize, key: &str, node: Node) -> Entry {
        Entry { key: key.into(), line, node }
    }

    /// `a: 1`, `b:` with `c: [x, y]` in it, `d:`
    fn tree() -> Node {
        let list = Node::new(4, Value::List(vec![text(5, "x"), text(6, "y")]));
        let inner = Node::new(3, Value::Table(vec![entry(4, "c", list)]));
        let nothing = Node::new(7, Value::Nothing);
        let entries = vec![entry(1, "a", text(1, "1")), entry(2, "b", inner), entry(7, "d", nothing)];
        Node::new(1, Value::Table(entries))
    }

    #[test]
    fn keys_are_found_by_their_path() {
        let tree = tree();
        for (path, line) in [("a", 1), ("b.c", 4), ("b.c[2]", 6), ("b.c[9]", 4), ("b.z", 2), ("z", 0), ("a.b", 1)] {
            assert_eq!(tree.line_of(path), line, "{path}");
        }
    }

    #[test]
    fn what_nobody_asked_for_is_unknown_and_what_is_wrong_has_its_place() {
        let (tree, mistakes) = (tree(), Mistakes::default());
        let root = Table::root(&tree, &mistakes);
        assert_eq!(root.read("a", |text| text.parse::<u8>().map_err(|error| error.to_string())), Some(1));
        assert!(root.get("d").is_none());
        let inner = root.table("b").unwrap();
        assert_eq!(inner.text("c"), None);
        assert!(inner.get("cc").is_none());
        inner.finish();
        let root = Table::root(&tree, &mistakes);
        let _ = (root.get("aa"), root.get("b"));
        root.finish();
        let mistakes = mistakes.into_vec();
        let told: Vec<String> = mistakes.iter().map(ToString::to_string).collect();
        let expected = [
            "line 1: a: there is no such key: did you mean `aa`?",
            "line 4: b.c: is an array: expected text",
            "line 7: d: there is no such key: did you mean `b`?",
        ];
        assert_eq!(told, expected);
        let kinds: Vec<Kind> = mistakes.iter().map(|mistake| mistake.kind).collect();
        assert_eq!(kinds, [Kind::Unknown, Kind::Wrong, Kind::Unknown]);
    }

    #[test]
    fn typed_readers_tell_switches_from_texts_and_name_elements_by_their_list() {
        let elements = vec![text(2, "x"), Node::new(3, Value::Switch(true))];
        let root = Node::new(1, Value::Table(vec![entry(2, "a", Node::new(2, Value::List(elements)))]));
        let told = |mistakes: Mistakes| {
            let texts = Table::root(&root, &mistakes).get("a").unwrap().texts();
            (texts, mistakes.into_vec().iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        assert_eq!(told(Mistakes::default()), (Some(vec!["x".into(), "true".into()]), Vec::new()));
        let wrong = "line 3: a: is true or false: expected text".to_owned();
        assert_eq!(told(Mistakes::typed()), (None, vec![wrong]));
        let mistakes = Mistakes::default();
        let table = Table::root(&root, &mistakes);
        assert!(table.get("a").unwrap().elements().unwrap()[1].table().is_none());
        assert!(table.required("b", "a name").is_none());
        table.finish_with(|key| (key == "a").then(|| unreachable!("it was asked for")));
        let told: Vec<(String, Kind)> = mistakes.into_vec().iter().map(|m| (m.to_string(), m.kind)).collect();
        let table = "line 3: a[2]: is true or false: expected a table of keys and values".to_owned();
        assert_eq!(told, [("line 1: `b` is missing: expected a name".to_owned(), Kind::Missing), (table, Kind::Wrong)]);
    }

    #[test]
    fn texts_below_a_key_are_changed_wherever_they_stand() {
        let mut tree = tree();
        tree.each_text_of(&["b", "d"], &mut |text| text.push('!'));
        let texts: Vec<_> = tree.get("b").unwrap().get("c").unwrap().elements().iter().map(Node::as_text).collect();
        assert_eq!((tree.get("a").unwrap().as_text(), texts), (Some("1"), vec![Some("x!"), Some("y!")]));
    }
}
