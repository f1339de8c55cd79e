//! The template step of kuiperbelt's configuration (kayac/go-config's, on Go's text/template): `{{ env "NAME"
//! "default" }}` and `{{ must_env "NAME" }}`.

use oroshi_words::Mistake;

/// Replaces the templates by their values. `variable` returns a variable of the environment.
///
/// # Errors
/// Every template that is invalid, or has no value.
pub(super) fn fill(text: &str, variable: impl Fn(&str) -> Option<String>) -> Result<String, Vec<Mistake>> {
    let (mut filled, mut mistakes, mut rest) = (String::with_capacity(text.len()), Vec::new(), text);
    while let Some(start) = rest.find("{{") {
        let line = 1 + text[..text.len() - rest.len() + start].matches('\n').count();
        let mut wrong = |text: String| mistakes.push(Mistake::new("", text).at(line));
        filled.push_str(&rest[..start]);
        let Some((inside, after)) = split_at_end(&rest[start + 2..]) else {
            wrong("`{{` is not closed: expected `}}` behind it".into());
            rest = "";
            break;
        };
        rest = after;
        // `{{-` and `-}}` remove white space around them.
        let inside = match inside.strip_prefix("- ") {
            Some(inside) => {
                filled.truncate(filled.trim_end().len());
                inside
            }
            None => inside,
        };
        let inside = match inside.strip_suffix(" -") {
            Some(inside) => {
                rest = rest.trim_start();
                inside
            }
            None => inside,
        };
        match action(inside.trim(), &variable) {
            Ok(value) => filled.push_str(&value),
            Err(why) => wrong(why),
        }
    }
    filled.push_str(rest);
    if mistakes.is_empty() { Ok(filled) } else { Err(mistakes) }
}

/// Splits a template's inside from the text behind it. Braces in quotes do not end a template.
fn split_at_end(text: &str) -> Option<(&str, &str)> {
    let mut quote = None;
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        match (quote, character) {
            (None, '"' | '`') => quote = Some(character),
            (None, '}') if text[at..].starts_with("}}") => return Some((&text[..at], &text[at + 2..])),
            (Some('"'), '\\') => {
                characters.next();
            }
            (Some(open), _) if open == character => quote = None,
            _ => {}
        }
    }
    None
}

/// Returns the value of a template.
fn action(text: &str, variable: impl Fn(&str) -> Option<String>) -> Result<String, String> {
    if text.starts_with("/*") && text.ends_with("*/") {
        return Ok(String::new());
    }
    let (function, arguments) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    let arguments = strings(arguments).ok_or_else(|| unknown(text))?;
    match (function, arguments.as_slice()) {
        // The first variable that is not empty; the last word is the default.
        ("env", [names @ .., default]) => {
            let set = names.iter().chain([default]).find_map(|name| variable(name).filter(|value| !value.is_empty()));
            Ok(set.unwrap_or_else(|| default.clone()))
        }
        ("must_env", [name]) => variable(name).ok_or_else(|| {
            format!("the environment variable {name} is not set: expected it, as `must_env` asks for it")
        }),
        _ => Err(unknown(text)),
    }
}

fn unknown(text: &str) -> String {
    format!(
        "`{{{{ {text} }}}}` is not understood: expected {{{{ env \"NAME\" \"default\" }}}} or {{{{ must_env \"NAME\" \
         }}}}"
    )
}

/// Reads strings in Go's notation, separated by white space; `None` if there is anything else.
fn strings(text: &str) -> Option<Vec<String>> {
    let mut strings = Vec::new();
    let mut characters = text.trim().chars().peekable();
    while let Some(open) = characters.next() {
        let mut string = String::new();
        loop {
            match (open, characters.next()?) {
                ('"' | '`', close) if close == open => break,
                ('"', '\\') => string.push(match characters.next()? {
                    'n' => '\n',
                    't' => '\t',
                    plain @ ('"' | '\\') => plain,
                    _ => return None,
                }),
                ('"' | '`', plain) => string.push(plain),
                _ => return None,
            }
        }
        strings.push(string);
        if characters.peek().is_some_and(|next| !next.is_whitespace()) {
            return None;
        }
        while characters.next_if(|next| next.is_whitespace()).is_some() {}
    }
    Some(strings)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(text: &str) -> Result<String, Vec<Mistake>> {
        fill(text, |name| match name {
            "PORT" => Some("80".into()),
            "EMPTY" => Some(String::new()),
            "MAP" => Some("{a: b}".into()),
            _ => None,
        })
    }

    #[test]
    fn templates_are_filled_in() {
        for (text, expected) in [
            ("port: {{ env \"PORT\" \"9180\" }}\n", "port: 80\n"),
            ("port: {{env \"NONE\" \"9180\"}}", "port: 9180"),
            ("{{ env \"EMPTY\" \"x\" }}", "x"),
            ("{{ env \"NONE\" \"PORT\" \"x\" }}", "80"),
            ("{{ env \"NONE\" \"\" }}", ""),
            ("{{ env \"NONE\" }}", "NONE"),
            ("{{ must_env \"PORT\" }}{{ must_env \"EMPTY\" }}", "80"),
            ("{{ env \"MAP\" \"{}\" }}{{ env `NONE` `{{}}` }}", "{a: b}{{}}"),
            ("{{ env \"NONE\" \"a\\\"b\\\\\" }}", "a\"b\\"),
            ("a {{- env \"PORT\" \"\" -}} b", "a80b"),
            ("a {{- /* why */ -}} b{{/* x */}}", "ab"),
            ("no templates { } here", "no templates { } here"),
        ] {
            assert_eq!(filled(text).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn what_is_none_is_told_all_at_once() {
        let mistakes = filled(
            "a: {{ must_env \"NONE\" }}\nb: {{ .Env.X }}\nc: {{ env PORT }}\nd: {{ env \"a\"\"b\" }}\ne: {{ env",
        );
        let mistakes = mistakes.unwrap_err();
        let lines: Vec<usize> = mistakes.iter().map(|mistake| mistake.line).collect();
        assert_eq!(lines, [1, 2, 3, 4, 5], "{mistakes:?}");
        assert!(mistakes[0].text.contains("NONE is not set"));
        assert!(mistakes.iter().all(|mistake| mistake.text.contains("expected")), "{mistakes:?}");
    }
}
