//! A configuration as a tree of keys and texts, whatever language it was written in, and reading it to its end whatever is wrong, so
//! that every mistake is found at once, each with its line.
//!
//! A [`Table`] remembers which keys were asked for: what is left over is unknown.

use std::cell::RefCell;
use std::fmt;

use oroshi_words::nearest;

/// A mistake.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Mistake {
    /// Its line, from 1; 0 where it is in none.
    pub(crate) line: usize,
    /// The key, with those it is in: `callbacks.connect`. Empty when the file cannot be read there.
    pub(crate) key: String,
    /// What is wrong.
    pub(crate) text: String,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line > 0 {
            write!(f, "line {}: ", self.line)?;
        }
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        f.write_str(&self.text)
    }
}

/// A value, and where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    /// From 1.
    pub(crate) line: usize,
    pub(crate) value: Value,
}

/// What stands there. Numbers and switches are texts here: what they must be is known where they are asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    /// A key without a value, which is as good as none.
    Nothing,
    Text(String),
    List(Vec<Node>),
    Table(Vec<Entry>),
}

/// A key with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) key: String,
    /// The key's, which may be before that of the value.
    pub(crate) line: usize,
    pub(crate) node: Node,
}

/// How the text of a mistake begins that is an unknown key.
const UNKNOWN: &str = "there is no such key: ";

impl Mistake {
    /// Whether it is a key that nobody asked for.
    pub(crate) fn is_unknown_key(&self) -> bool {
        self.text.starts_with(UNKNOWN)
    }
}

/// What has been found wrong so far.
pub(crate) type Mistakes = RefCell<Vec<Mistake>>;

impl Node {
    /// The line of a key, `group[2].pattern`, or of the nearest one that it is in; 0 if nothing of it is there.
    pub(crate) fn line_of(&self, path: &str) -> usize {
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
}

/// A table that is being read.
#[derive(Debug)]
pub(crate) struct Table<'d> {
    path: String,
    entries: &'d [Entry],
    asked: RefCell<Vec<&'static str>>,
    mistakes: &'d Mistakes,
}

impl<'d> Table<'d> {
    /// The outermost table.
    pub(crate) fn root(node: &'d Node, mistakes: &'d Mistakes) -> Self {
        let entries: &[Entry] = match &node.value {
            Value::Table(entries) => entries,
            Value::Nothing => &[],
            _ => {
                let text = "expected keys and values".to_owned();
                mistakes.borrow_mut().push(Mistake { line: node.line, key: String::new(), text });
                &[]
            }
        };
        Table { path: String::new(), entries, asked: RefCell::default(), mistakes }
    }

    /// A key's value, if it is there and is not empty.
    pub(crate) fn get(&self, key: &'static str) -> Option<Field<'d>> {
        self.asked.borrow_mut().push(key);
        let entry = self.entries.iter().find(|entry| entry.key == key)?;
        (entry.node.value != Value::Nothing).then(|| self.field(entry))
    }

    /// What is made of a key's text.
    pub(crate) fn read<T>(&self, key: &'static str, read: impl FnOnce(&str) -> Result<T, String>) -> Option<T> {
        self.get(key)?.read(read)
    }

    /// Puts what is made of a key's text where it belongs.
    pub(crate) fn set<T>(&self, key: &'static str, place: &mut T, read: impl FnOnce(&str) -> Result<T, String>) {
        if let Some(value) = self.read(key, read) {
            *place = value;
        }
    }

    /// A key's text.
    pub(crate) fn text(&self, key: &'static str) -> Option<String> {
        self.read(key, |text| Ok(text.to_owned()))
    }

    /// A key's table.
    pub(crate) fn table(&self, key: &'static str) -> Option<Table<'d>> {
        self.get(key)?.table()
    }

    /// All of it, in the order of the file; every key is then as good as asked for.
    pub(crate) fn fields(&self) -> impl Iterator<Item = (&'d str, Field<'d>)> {
        self.entries.iter().map(|entry| (entry.key.as_str(), self.field(entry)))
    }

    /// Says which keys nobody asked for.
    pub(crate) fn finish(self) {
        let asked = self.asked.borrow();
        for entry in self.entries.iter().filter(|entry| !asked.contains(&entry.key.as_str())) {
            let hint = match nearest(&entry.key, asked.iter().copied()) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("expected one of {}", asked.join(", ")),
            };
            self.field(entry).wrong(format!("{UNKNOWN}{hint}"));
        }
    }

    fn field(&self, entry: &'d Entry) -> Field<'d> {
        let separator = if self.path.is_empty() { "" } else { "." };
        let path = format!("{}{separator}{}", self.path, entry.key);
        Field { path, line: entry.line, value: &entry.node.value, mistakes: self.mistakes }
    }
}

/// A value that is being read.
#[derive(Debug)]
pub(crate) struct Field<'d> {
    path: String,
    line: usize,
    value: &'d Value,
    mistakes: &'d Mistakes,
}

impl<'d> Field<'d> {
    /// Something is wrong with it.
    pub(crate) fn wrong(&self, text: impl Into<String>) {
        let mistake = Mistake { line: self.line, key: self.path.clone(), text: text.into() };
        self.mistakes.borrow_mut().push(mistake);
    }

    /// Its text; that of nothing is empty.
    pub(crate) fn text(&self) -> Option<&'d str> {
        match self.value {
            Value::Text(text) => Some(text),
            Value::Nothing => Some(""),
            Value::List(_) => self.expected("a text, a list stands here"),
            Value::Table(_) => self.expected("a text, a table stands here"),
        }
    }

    /// Its text, where something else may stand as well.
    pub(crate) fn quiet_text(&self) -> Option<&'d str> {
        match self.value {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// What is made of its text.
    pub(crate) fn read<T>(&self, read: impl FnOnce(&str) -> Result<T, String>) -> Option<T> {
        match read(self.text()?) {
            Ok(value) => Some(value),
            Err(error) => {
                self.wrong(error);
                None
            }
        }
    }

    /// One text, or several.
    pub(crate) fn texts(&self) -> Option<Vec<String>> {
        match self.value {
            Value::List(_) => self.elements()?.iter().map(|element| element.text().map(str::to_owned)).collect(),
            _ => self.text().map(|text| vec![text.to_owned()]),
        }
    }

    /// A table.
    pub(crate) fn table(&self) -> Option<Table<'d>> {
        let Value::Table(entries) = self.value else { return self.expected("a table of keys and values") };
        Some(Table { path: self.path.clone(), entries, asked: RefCell::default(), mistakes: self.mistakes })
    }

    /// The elements of a list.
    pub(crate) fn elements(&self) -> Option<Vec<Field<'d>>> {
        let Value::List(elements) = self.value else { return self.expected("a list") };
        let element = |(at, node): (usize, &'d Node)| Field {
            path: format!("{}[{}]", self.path, at + 1),
            line: node.line,
            value: &node.value,
            mistakes: self.mistakes,
        };
        Some(elements.iter().enumerate().map(element).collect())
    }

    fn expected<T>(&self, what: &str) -> Option<T> {
        self.wrong(format!("expected {what}"));
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(line: usize, text: &str) -> Node {
        Node { line, value: Value::Text(text.into()) }
    }

    fn entry(line: usize, key: &str, node: Node) -> Entry {
        Entry { key: key.into(), line, node }
    }

    /// `a: 1`, `b:` with `c: [x, y]` in it, `d:`
    fn tree() -> Node {
        let list = Node { line: 4, value: Value::List(vec![text(5, "x"), text(6, "y")]) };
        let inner = Node { line: 3, value: Value::Table(vec![entry(4, "c", list)]) };
        let nothing = Node { line: 7, value: Value::Nothing };
        Node {
            line: 1,
            value: Value::Table(vec![entry(1, "a", text(1, "1")), entry(2, "b", inner), entry(7, "d", nothing)]),
        }
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
        let told: Vec<String> = mistakes.take().iter().map(ToString::to_string).collect();
        let expected = [
            "line 4: b.c: expected a text, a list stands here",
            "line 1: a: there is no such key: did you mean `aa`?",
            "line 7: d: there is no such key: did you mean `b`?",
        ];
        assert_eq!(told, expected);
    }
}
