//! Checks that SQLite itself omits: it runs several statements in turn, and accepts parameters that no statement has.

/// Returns why a query must not run, if so. The rules are those of MySQL and PostgreSQL when they prepare a query.
pub(super) fn objection(query: &str, parameters: usize) -> Option<String> {
    let Statement { places, is_alone } = read(query.as_bytes());
    if !is_alone {
        return Some("the query is more than one statement: expected one".to_owned());
    }
    let (s, were) = if parameters == 1 { ("", "was") } else { ("s", "were") };
    (parameters != places)
        .then(|| format!("{parameters} parameter{s} {were} given for a query with places for {places}"))
}

struct Statement {
    /// The number of its placeholders.
    places: usize,
    /// Only white space and comments follow it.
    is_alone: bool,
}

/// Reads a query as SQLite's tokenizer does, as far as necessary to skip texts, names and comments.
fn read(query: &[u8]) -> Statement {
    let (mut places, mut names, mut is_over, mut at) = (0, Vec::new(), false, 0);
    // A trigger's own statements end with semicolons.
    let words: Vec<_> = query.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()).take(3).collect();
    let is_trigger = words.iter().any(|word| word.eq_ignore_ascii_case(b"trigger"))
        && words.first().is_some_and(|word| word.eq_ignore_ascii_case(b"create"));
    while let Some(&byte) = query.get(at) {
        let rest = &query[at..];
        let length = |from: usize, end: &[u8]| {
            let found = rest[from..].windows(end.len()).position(|part| part == end);
            found.map_or(rest.len(), |found| from + found + end.len())
        };
        let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$') || !byte.is_ascii();
        let name = 1 + rest[1..].iter().take_while(|byte| is_name(byte)).count();
        let taken = match byte {
            _ if rest.starts_with(b"--") => length(2, b"\n"),
            _ if rest.starts_with(b"/*") => length(2, b"*/"),
            _ if byte.is_ascii_whitespace() => 1,
            b';' => {
                is_over |= !is_trigger;
                1
            }
            _ if is_over => return Statement { places, is_alone: false },
            // A quote within is doubled, which reads as two texts.
            b'\'' | b'"' | b'`' => length(1, &[byte]),
            b'[' => length(1, b"]"),
            b'?' => {
                let number = std::str::from_utf8(&rest[1..name]).ok().and_then(|number| number.parse().ok());
                places = number.map_or(places + 1, |number: usize| number.max(places));
                name
            }
            b':' | b'@' | b'$' if name > 1 => {
                if !names.contains(&&rest[..name]) {
                    names.push(&rest[..name]);
                    places += 1;
                }
                name
            }
            _ if is_name(&byte) => name,
            _ => 1,
        };
        at += taken;
    }
    Statement { places, is_alone: true }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_statement_is_fine() {
        let fine = [
            ("SELECT 1", 0),
            ("SELECT 1;", 0),
            ("SELECT 1 ; -- the end; of it\n /* ; */ ", 0),
            ("SELECT ';', \"a;b\", `;`, [;], 'it''s;' -- ; ?\n", 0),
            ("SELECT ?, '?', /* ? */ ?", 2),
            ("SELECT ?2, ?1, ?2", 2),
            ("SELECT :a, :a, @b, $c", 3),
            ("SELECT a$b, '", 0),
            ("CREATE TRIGGER t AFTER INSERT ON d BEGIN DELETE FROM e; DELETE FROM f; END;", 0),
        ];
        for (query, places) in fine {
            assert_eq!(objection(query, places), None, "{query}");
            assert!(objection(query, places + 1).is_some_and(|why| why.contains("parameter")), "{query}");
        }
    }

    #[test]
    fn more_is_refused() {
        for query in ["SELECT 1; DELETE FROM d", "SELECT ';'; SELECT ?", "SELECT 1;/**/x", "; ; SELECT 1"] {
            assert!(objection(query, 0).is_some_and(|why| why.contains("one statement")), "{query}");
        }
    }
}
