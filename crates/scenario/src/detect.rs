//! Whether a script is a scenario, or one of wrk's.

/// Whether a Lua script calls the global `scenario`, outside comments and texts, and not as a field or its own
/// function.
#[must_use]
pub fn is_scenario(source: &[u8]) -> bool {
    let mut rest = source;
    // The last sign or word before.
    let mut before: &[u8] = b"";
    while let Some(&first) = rest.first() {
        let length = match first {
            b'-' if rest.starts_with(b"--") => match long_bracket(&rest[2..]) {
                Some(length) => 2 + length,
                None => rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len()),
            },
            b'[' => match long_bracket(rest) {
                Some(length) => {
                    before = b"\"";
                    length
                }
                None => 1,
            },
            b'"' | b'\'' => {
                before = b"\"";
                quoted(rest)
            }
            byte if byte.is_ascii_alphabetic() || byte == b'_' => {
                let length = rest.iter().position(|b| !b.is_ascii_alphanumeric() && *b != b'_').unwrap_or(rest.len());
                let word = &rest[..length];
                if word == b"scenario"
                    && !matches!(before, b"." | b":" | b"function" | b"local")
                    && is_called(&rest[length..])
                {
                    return true;
                }
                before = word;
                length
            }
            byte => {
                if !byte.is_ascii_whitespace() {
                    before = &rest[..1];
                }
                1
            }
        };
        rest = &rest[length..];
    }
    false
}

/// Whether a call's arguments follow.
fn is_called(rest: &[u8]) -> bool {
    matches!(rest.trim_ascii_start().first(), Some(b'(' | b'"' | b'\''))
}

/// Length of a text in quotes, or up to the end of its line.
fn quoted(text: &[u8]) -> usize {
    let quote = text[0];
    let mut at = 1;
    while at < text.len() {
        match text[at] {
            b'\\' => at += 1,
            b'\n' => return at,
            byte if byte == quote => return at + 1,
            _ => {}
        }
        at += 1;
    }
    text.len()
}

/// Length of `[[...]]`, `[=[...]=]` and so on.
fn long_bracket(text: &[u8]) -> Option<usize> {
    let level = text.strip_prefix(b"[")?.iter().take_while(|byte| **byte == b'=').count();
    if text.get(1 + level) != Some(&b'[') {
        return None;
    }
    let end = [&b"]"[..], &b"=".repeat(level), b"]"].concat();
    let start = 2 + level;
    let found = text[start..].windows(end.len()).position(|window| window == end);
    Some(found.map_or(text.len(), |at| start + at + end.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_that_calls_scenario_is_one() {
        for script in [
            "scenario(\"a\", function(user) end)",
            "options { users = 1 }\nscenario 'a'",
            "-- a comment\nscenario  (\n 'x', f)",
            "local x = [[text]] scenario('a', f)",
            "print(\"it's\") scenario('a', f)",
        ] {
            assert!(is_scenario(script.as_bytes()), "{script}");
        }
    }

    #[test]
    fn wrk_s_scripts_are_none() {
        for script in [
            "",
            "wrk.method = 'POST'",
            "-- scenario('a', f)",
            "--[[ scenario('a', f) ]]",
            "--[==[ scenario('a', f) ]] scenario('a') ]==]",
            "local s = \"scenario('a', f)\"",
            "local s = 'it\\'s scenario(1)'",
            "x.scenario('a')",
            "x:scenario('a')",
            "function scenario(a) end",
            "local scenario = 1",
            "myscenario('a')",
            "scenario_of('a')",
            "local t = [[ scenario('a', f) ",
            "request = function() return scenario end",
        ] {
            assert!(!is_scenario(script.as_bytes()), "{script}");
        }
    }
}
