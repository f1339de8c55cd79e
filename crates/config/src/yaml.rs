//! Reads the part of YAML that a configuration needs: one document of tables, lists and texts, without tags.
//!
//! Aliases are errors, because a few of them can expand to more than fits into memory.

use saphyr_parser::{Event, Parser, ScalarStyle, Span};

use crate::document::{Entry, Node, Value};
use oroshi_words::Mistake;

/// Maximum depth of a configuration.
const DEEPEST: usize = 32;

/// Reads a file into a tree, with its odd keys.
///
/// As in kuiperbelt, the later one of two equal keys counts. Keys that are no texts are omitted.
///
/// # Errors
/// If the file is no YAML, or uses other parts of YAML.
pub fn parse(text: &str) -> Result<(Node, Vec<Mistake>), Mistake> {
    let mut events = Events { parser: Parser::new_from_str(text), odd: Vec::new() };
    loop {
        match events.next()? {
            (Event::StreamEnd, line) => return Ok((Node::new(line, Value::Nothing), events.odd)),
            (Event::DocumentStart(_), _) => break,
            _ => {}
        }
    }
    let first = events.next()?;
    let root = events.node(first, 0)?;
    loop {
        match events.next()? {
            (Event::StreamEnd, _) => return Ok((root, events.odd)),
            (Event::DocumentStart(_), line) => return Err(mistake(line, "another document begins: expected one")),
            _ => {}
        }
    }
}

struct Events<'t, I: saphyr_parser::Input> {
    parser: Parser<'t, I>,
    /// Mistakes about keys, which a caller may ignore.
    odd: Vec<Mistake>,
}

impl<'t, I: saphyr_parser::Input> Events<'t, I> {
    /// Returns the next event and its line.
    fn next(&mut self) -> Result<(Event<'t>, usize), Mistake> {
        match self.parser.next() {
            Some(Ok((event, Span { start, .. }))) => Ok((event, start.line())),
            Some(Err(error)) => Err(mistake(error.marker().line(), error.info())),
            None => Ok((Event::StreamEnd, 0)),
        }
    }

    /// Reads the value that begins with this event.
    fn node(&mut self, (event, line): (Event<'t>, usize), depth: usize) -> Result<Node, Mistake> {
        if depth > DEEPEST {
            return Err(mistake(line, "this is too deep: expected a few levels"));
        }
        let value = match event {
            Event::Scalar(text, style, ..) => {
                // kuiperbelt does not distinguish an empty text from none.
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
        Ok(Node::new(line, value))
    }

    fn entries(&mut self, depth: usize) -> Result<Vec<Entry>, Mistake> {
        let mut entries: Vec<Entry> = Vec::new();
        loop {
            let (key, line) = match self.next()? {
                (Event::MappingEnd, _) => return Ok(entries),
                (Event::Scalar(key, ..), line) => (key.into_owned(), line),
                (event @ (Event::SequenceStart(..) | Event::MappingStart(..)), line) => {
                    self.odd.push(mistake(line, "expected a key that is a text"));
                    // Skips the key and its value.
                    self.node((event, line), depth + 1)?;
                    let event = self.next()?;
                    self.node(event, depth + 1)?;
                    continue;
                }
                (_, line) => return Err(mistake(line, "expected a key that is a text")),
            };
            let event = self.next()?;
            let node = self.node(event, depth + 1)?;
            match entries.iter().position(|entry| entry.key == key) {
                None => entries.push(Entry { key, line, node }),
                Some(at) => {
                    let twice = Mistake::new(key.clone(), "the key is here twice: expected it once");
                    self.odd.push(twice.at(line));
                    let earlier = entries.remove(at).node;
                    entries.push(Entry { key, line, node: later(earlier, node) });
                }
            }
        }
    }
}

/// Merges two values of one key: the later one counts; of two tables, each key.
fn later(earlier: Node, later: Node) -> Node {
    match (earlier.value, later.value) {
        (Value::Table(mut all), Value::Table(later_ones)) => {
            for entry in later_ones {
                match all.iter().position(|known| known.key == entry.key) {
                    None => all.push(entry),
                    Some(at) => {
                        let node = self::later(all.remove(at).node, entry.node);
                        all.push(Entry { node, ..entry });
                    }
                }
            }
            Node::new(later.line, Value::Table(all))
        }
        (_, value) => Node::new(later.line, value),
    }
}

fn mistake(line: usize, text: &str) -> Mistake {
    Mistake::new("", text).at(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a file without odd keys.
    fn parse(text: &str) -> Result<Node, Mistake> {
        match super::parse(text)? {
            (node, odd) if odd.is_empty() => Ok(node),
            (_, mut odd) => Err(odd.remove(0)),
        }
    }

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

    #[test]
    fn odd_keys_are_told_and_the_later_of_two_counts() {
        let text = "a: 1\nb:\n  c: 1\n  d: 2\n? [x]\n: y\na: 2\nb:\n  d: 3\n  e: 4\n";
        let (root, odd) = super::parse(text).unwrap();
        let told: Vec<_> = odd.iter().map(|mistake| (mistake.line, mistake.key.as_str())).collect();
        assert_eq!(told, [(5, ""), (7, "a"), (8, "b")]);
        let texts = |node: &Node| match &node.value {
            Value::Table(entries) => {
                entries.iter().map(|entry| (entry.key.clone(), entry.node.value.clone())).collect::<Vec<_>>()
            }
            other => panic!("{other:?}"),
        };
        let root = texts(&root);
        let text = |text: &str| Value::Text(text.into());
        assert_eq!(root[0], ("a".into(), text("2")));
        let Value::Table(inner) = &root[1].1 else { panic!("{root:?}") };
        let inner: Vec<_> = inner.iter().map(|entry| (entry.key.as_str(), entry.node.value.clone())).collect();
        assert_eq!(inner, [("c", text("1")), ("d", text("3")), ("e", text("4"))]);
    }
}
