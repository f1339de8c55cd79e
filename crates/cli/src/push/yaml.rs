//! YAML, as far as a configuration needs it: one document of tables, lists and texts. No tags; aliases are refused, as a few of them
//! can stand for more than fits into memory.

use saphyr_parser::{Event, Parser, ScalarStyle, Span};

use crate::config::document::{Entry, Mistake, Node, Value};

/// Deeper than this no configuration is.
const DEEPEST: usize = 32;

/// Reads a file.
///
/// # Errors
/// Where it is no YAML, or has more in it than a configuration.
pub(super) fn parse(text: &str) -> Result<Node, Mistake> {
    let mut events = Events(Parser::new_from_str(text));
    loop {
        match events.next()? {
            (Event::StreamEnd, line) => return Ok(Node { line, value: Value::Nothing }),
            (Event::DocumentStart(_), _) => break,
            _ => {}
        }
    }
    let first = events.next()?;
    let root = events.node(first, 0)?;
    loop {
        match events.next()? {
            (Event::StreamEnd, _) => return Ok(root),
            (Event::DocumentStart(_), line) => return Err(mistake(line, "another document begins: expected one")),
            _ => {}
        }
    }
}

struct Events<'t, I: saphyr_parser::Input>(Parser<'t, I>);

impl<'t, I: saphyr_parser::Input> Events<'t, I> {
    /// The next event, and its line.
    fn next(&mut self) -> Result<(Event<'t>, usize), Mistake> {
        match self.0.next() {
            Some(Ok((event, Span { start, .. }))) => Ok((event, start.line())),
            Some(Err(error)) => Err(mistake(error.marker().line(), error.info())),
            None => Ok((Event::StreamEnd, 0)),
        }
    }

    /// The value that begins with this event.
    fn node(&mut self, (event, line): (Event<'t>, usize), depth: usize) -> Result<Node, Mistake> {
        if depth > DEEPEST {
            return Err(mistake(line, "this is too deep: expected a few levels"));
        }
        let value = match event {
            Event::Scalar(text, style, ..) => {
                // kuiperbelt cannot tell an empty text from none.
                let is_nothing = text.is_empty()
                    || (style == ScalarStyle::Plain && matches!(&*text, "~" | "null" | "Null" | "NULL"));
                if is_nothing { Value::Nothing } else { Value::Text(text.into_owned()) }
            }
            Event::SequenceStart(..) => {
                let mut elements = Vec::new();
                loop {
                    match self.next()? {
                        (Event::SequenceEnd, _) => break Value::List(elements),
                        event => elements.push(self.node(event, depth + 1)?),
                    }
                }
            }
            Event::MappingStart(..) => Value::Table(self.entries(depth)?),
            Event::Alias(_) => return Err(mistake(line, "an alias stands here: expected the value itself")),
            _ => return Err(mistake(line, "expected a value")),
        };
        Ok(Node { line, value })
    }

    fn entries(&mut self, depth: usize) -> Result<Vec<Entry>, Mistake> {
        let mut entries: Vec<Entry> = Vec::new();
        loop {
            let (key, line) = match self.next()? {
                (Event::MappingEnd, _) => return Ok(entries),
                (Event::Scalar(key, ..), line) => (key.into_owned(), line),
                (_, line) => return Err(mistake(line, "expected a key that is a text")),
            };
            if entries.iter().any(|entry| entry.key == key) {
                return Err(Mistake { line, key, text: "it stands here twice: expected each key once".into() });
            }
            let event = self.next()?;
            entries.push(Entry { key, line, node: self.node(event, depth + 1)? });
        }
    }
}

fn mistake(line: usize, text: &str) -> Mistake {
    Mistake { line, key: String::new(), text: text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_configuration_has_is_read() {
        let root =
            parse("# a comment\nport: 9180\npath:\n  send: \"/s\"\nlist: [a, 'b']\nempty:\nmap: {}\ntext: |\n  x\n")
                .unwrap();
        let Value::Table(entries) = &root.value else { panic!("{root:?}") };
        let shown: Vec<_> = entries.iter().map(|entry| (entry.key.as_str(), entry.line)).collect();
        assert_eq!(shown, [("port", 2), ("path", 3), ("list", 5), ("empty", 6), ("map", 7), ("text", 8)]);
        assert_eq!(entries[0].node.value, Value::Text("9180".into()));
        assert_eq!(entries[3].node.value, Value::Nothing);
        assert_eq!(entries[4].node.value, Value::Table(Vec::new()));
        assert_eq!(entries[5].node.value, Value::Text("x\n".into()));
        assert_eq!(root.line_of("path.send"), 4);
        assert_eq!(parse("").unwrap().value, Value::Nothing);
        assert_eq!(parse("# nothing\n").unwrap().value, Value::Nothing);
    }

    #[test]
    fn what_it_has_not_is_refused_with_its_line() {
        for (text, line, words) in [
            ("a: 1\nb: [", 2, ""),
            ("a: 1\na: 2\n", 2, "twice"),
            ("a: &x 1\nb: *x\n", 2, "alias"),
            ("a: 1\n---\nb: 2\n", 2, "another document"),
            ("? [a]\n: 1\n", 1, "a key that is a text"),
            (&"[".repeat(100), 1, "deep"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.text.contains(words), "{text}: {error}");
            assert!((line..=line + 1).contains(&error.line), "{text}: {error}");
        }
    }
}
