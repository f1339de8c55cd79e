//! TOML as a tree.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::document::{Entry, Mistake, Node, Value};

/// Reads a file.
///
/// # Errors
/// Every line that is no TOML.
pub(crate) fn parse(text: &str) -> Result<Node, Vec<Mistake>> {
    let (root, errors) = DeTable::parse_recoverable(text);
    let lines = Lines(text);
    let mut mistakes: Vec<Mistake> = Vec::new();
    for error in errors {
        let line = lines.at(error.span().map_or(0, |span| span.start));
        // One mistake often makes several.
        if mistakes.iter().all(|known| known.line != line) {
            mistakes.push(Mistake { line, key: String::new(), text: error.message().to_owned() });
        }
    }
    mistakes.sort();
    if mistakes.is_empty() { Ok(Node { line: 1, value: lines.table(root.get_ref()) }) } else { Err(mistakes) }
}

struct Lines<'t>(&'t str);

impl Lines<'_> {
    /// The line of a place in the text.
    fn at(&self, place: usize) -> usize {
        1 + self.0.bytes().take(place).filter(|&byte| byte == b'\n').count()
    }

    fn node(&self, value: &Spanned<DeValue<'_>>) -> Node {
        let line = self.at(value.span().start);
        let value = match value.get_ref() {
            DeValue::String(text) => Value::Text(text.to_string()),
            DeValue::Integer(number) if number.radix() == 10 => Value::Text(number.as_str().to_owned()),
            DeValue::Integer(number) => {
                let decimal = i128::from_str_radix(number.as_str(), number.radix());
                Value::Text(decimal.map_or_else(|_| number.as_str().to_owned(), |number| number.to_string()))
            }
            DeValue::Float(number) => Value::Text(number.as_str().to_owned()),
            DeValue::Boolean(switch) => Value::Text(switch.to_string()),
            DeValue::Datetime(time) => Value::Text(time.to_string()),
            DeValue::Array(elements) => Value::List(elements.iter().map(|element| self.node(element)).collect()),
            DeValue::Table(table) => self.table(table),
        };
        Node { line, value }
    }

    fn table(&self, table: &DeTable<'_>) -> Value {
        let entry = |(key, value): (&Spanned<_>, &Spanned<DeValue<'_>>)| Entry {
            key: ToString::to_string(key.get_ref() as &toml::de::DeString<'_>),
            line: self.at(key.span().start),
            node: self.node(value),
        };
        let mut entries: Vec<Entry> = table.iter().map(entry).collect();
        // The table sorts its keys.
        entries.sort_by_key(|entry| entry.line);
        Value::Table(entries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_their_lines_and_every_value_is_a_text() {
        let root = parse(
            "threads = 1_000\nx = 0x10\n[listen]\npublic = [\":1\", \"2\"]\n[[group]]\na = true\n[[group]]\nb = 1.5\n",
        );
        let root = root.unwrap();
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
}
