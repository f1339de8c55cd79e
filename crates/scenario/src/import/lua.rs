//! Lua as text: strings of any bytes, names, comments, tables on one line or several.

use std::fmt::Write;

/// The longest comment made of someone else's words, in characters.
const COMMENT_CHARS: usize = 160;
/// The widest line that a table takes before each of its fields gets a line.
const WIDTH: usize = 116;

/// Writes bytes as a string literal. Letters of other scripts stay; other bytes become escapes.
pub(super) fn quoted(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len() + 2);
    out.push('"');
    for chunk in bytes.utf8_chunks() {
        for char in chunk.valid().chars() {
            match char {
                '"' | '\\' => out.extend(['\\', char]),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                ' '..='~' => out.push(char),
                // Signs that reorder or hide a line stand beyond the letters.
                char if !char.is_ascii() && char.is_alphanumeric() => out.push(char),
                char => escape(&mut out, char.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
        escape(&mut out, chunk.invalid());
    }
    out.push('"');
    out
}

/// Three digits each, because a digit may follow.
fn escape(out: &mut String, bytes: &[u8]) {
    for byte in bytes {
        let _ = write!(out, "\\{byte:03}");
    }
}

/// Whether a text can stand as a name.
pub(super) fn is_name(text: &str) -> bool {
    const RESERVED: [&str; 22] = [
        "and", "break", "do", "else", "elseif", "end", "false", "for", "function", "goto", "if", "in", "local", "nil",
        "not", "or", "repeat", "return", "then", "true", "until", "while",
    ];
    let sound = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let begins = text.bytes().next().is_some_and(|byte| sound(byte) && !byte.is_ascii_digit());
    begins && text.len() <= 60 && text.bytes().all(sound) && !RESERVED.contains(&text)
}

/// Writes a key of a table: `name` or `["a name"]`.
pub(super) fn key(name: &[u8]) -> String {
    match str::from_utf8(name) {
        Ok(name) if is_name(name) => name.to_owned(),
        _ => format!("[{}]", quoted(name)),
    }
}

/// Writes a field's access: `.name` or `["a name"]`.
pub(super) fn field(name: &str) -> String {
    if is_name(name) { format!(".{name}") } else { format!("[{}]", quoted(name.as_bytes())) }
}

/// Makes a name of a variable from any words: `user[csrfToken]` becomes `user_csrf_token`.
pub(super) fn name_of(words: &str, otherwise: &str) -> String {
    let mut out = String::new();
    let mut small = false;
    for char in words.chars() {
        if out.len() >= 30 {
            break;
        }
        if char.is_ascii_alphanumeric() {
            if char.is_ascii_uppercase() && small {
                out.push('_');
            }
            small = !char.is_ascii_uppercase();
            out.push(char.to_ascii_lowercase());
        } else {
            small = false;
            if !out.is_empty() && !out.ends_with('_') {
                out.push('_');
            }
        }
    }
    let name = out.trim_end_matches('_');
    if is_name(name) { name.to_owned() } else { format!("{otherwise}_{name}").trim_end_matches('_').to_owned() }
}

/// Cleans words of others for a comment: one line, no control characters, bounded.
pub(super) fn comment(words: &str) -> String {
    let clean = |char: char| match char {
        ' '..='~' => char,
        char if char.is_alphanumeric() => char,
        _ => ' ',
    };
    let mut text: String = words.chars().take(COMMENT_CHARS).map(clean).collect();
    if words.chars().nth(COMMENT_CHARS).is_some() {
        text.push_str("...");
    }
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A value in Lua.
#[derive(Clone, Debug)]
pub(super) enum Value {
    /// An expression, as it is written.
    Plain(String),
    /// Fields with written keys; a list has none.
    Table(Vec<(Option<String>, Value)>),
}

impl Value {
    /// A string.
    pub(super) fn text(text: &str) -> Self {
        Self::Plain(quoted(text.as_bytes()))
    }

    /// Writes the value where `indent` columns precede it on its lines, and `used` on its first.
    pub(super) fn write(&self, indent: usize, used: usize) -> String {
        let Value::Table(fields) = self else { return self.inline() };
        let inline = self.inline();
        if fields.is_empty() || used + inline.len() <= WIDTH {
            return inline;
        }
        let mut out = "{\n".to_owned();
        for (key, value) in fields {
            let key = key.as_ref().map(|key| format!("{key} = ")).unwrap_or_default();
            let value = value.write(indent + 2, indent + 3 + key.len());
            let _ = writeln!(out, "{:1$}{key}{value},", "", indent + 2);
        }
        let _ = write!(out, "{:1$}}}", "", indent);
        out
    }

    fn inline(&self) -> String {
        match self {
            Value::Plain(text) => text.clone(),
            Value::Table(fields) if fields.is_empty() => "{}".to_owned(),
            Value::Table(fields) => {
                let field = |(key, value): &(Option<String>, Value)| match key {
                    Some(key) => format!("{key} = {}", value.inline()),
                    None => value.inline(),
                };
                format!("{{ {} }}", fields.iter().map(field).collect::<Vec<_>>().join(", "))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn run(source: &str) -> Vec<u8> {
        let lua = mlua::Lua::new();
        let text: mlua::LuaString = lua.load(source).eval().unwrap_or_else(|error| panic!("{error}: {source}"));
        text.as_bytes().to_vec()
    }

    proptest! {
        #[test]
        fn any_bytes_survive_as_a_string(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert_eq!(run(&format!("return {}", quoted(&bytes))), bytes);
        }

        #[test]
        fn any_text_survives_as_a_string_and_as_a_key(text in any::<String>()) {
            prop_assert_eq!(run(&format!("return {}", quoted(text.as_bytes()))), text.as_bytes());
            let table = Value::Table(vec![(Some(key(text.as_bytes())), Value::text(&text))]);
            let source = format!("-- {}\nlocal {} = {}\nfor key in pairs(t_{}) do return key end", comment(&text),
                "t_", table.write(0, 0), "");
            prop_assert_eq!(run(&source), text.as_bytes());
            let access = format!("return ({}){}", table.write(0, WIDTH), field(&text));
            prop_assert_eq!(run(&access), text.as_bytes());
        }

        #[test]
        fn a_name_is_made_of_any_words(words in any::<String>()) {
            prop_assert!(is_name(&name_of(&words, "value")), "{}", name_of(&words, "value"));
        }
    }

    #[test]
    fn readable_texts_stay_readable() {
        assert_eq!(
            quoted("größe \"a\\b\"\n\u{202e}1\0".as_bytes()),
            "\"größe \\\"a\\\\b\\\"\\n\\226\\128\\1741\\000\""
        );
        assert_eq!((key(b"form"), key(b"end"), key(b"X-A")), ("form".into(), "[\"end\"]".into(), "[\"X-A\"]".into()));
        assert_eq!(name_of("user[csrfToken]", "value"), "user_csrf_token");
        assert_eq!((name_of("4711", "value"), name_of("end", "value")), ("value_4711".into(), "value_end".into()));
        assert_eq!(comment("a\nos.exit()\u{202e}\t b"), "a os.exit() b");
        assert_eq!(comment(&"x".repeat(500)).len(), COMMENT_CHARS + 3);
    }

    #[test]
    fn long_tables_have_a_field_on_each_line() {
        let field = |n: usize| (Some(format!("field_{n}")), Value::text(&"x".repeat(30)));
        let inner = Value::Table(vec![(None, Value::Plain("1".into())), (None, Value::Plain("2".into()))]);
        let table = Value::Table(vec![field(1), field(2), field(3), (Some("list".into()), inner)]);
        let x = "x".repeat(30);
        let expected = format!(
            "{{\n    field_1 = \"{x}\",\n    field_2 = \"{x}\",\n    field_3 = \"{x}\",\n    list = {{ 1, 2 }},\n  }}"
        );
        assert_eq!(table.write(2, 20), expected);
        assert_eq!(Value::Table(vec![field(1)]).write(0, 0), format!("{{ field_1 = \"{x}\" }}"));
    }
}
