//! Texts with `{{name}}`, for values that are unknown before a server starts: ports, sockets, folders.
//!
//! Names are `port`, `port.NAME`, `socket`, `socket.NAME`, `dir`, `oroshi`, `url`, `cpus.server`, `cpus.load`,
//! `ip.MACHINE`, and the sweep's name. Spaces around a name are ignored. Literal braces are written `{{{{`.

use std::collections::BTreeMap;

/// The values of names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Values(BTreeMap<String, String>);

impl Values {
    /// Sets a name's value, replacing an earlier one.
    pub fn set(&mut self, name: impl Into<String>, text: impl Into<String>) {
        self.0.insert(name.into(), text.into());
    }

    /// Returns a name's value.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }
}

/// Replaces each name by its value.
///
/// # Errors
/// When a name is unknown, or two braces contain none.
pub fn fill(text: &str, values: &Values) -> Result<String, TemplateError> {
    let mut filled = String::with_capacity(text.len());
    for piece in pieces(text)? {
        match piece {
            Piece::Text(text) => filled.push_str(text),
            Piece::Braces => filled.push_str("{{"),
            Piece::Name { name, .. } => filled.push_str(values.get(name).ok_or_else(|| unknown(name, values))?),
        }
    }
    Ok(filled)
}

/// Replaces the names known so far. The result is a template again: other names and `{{{{` remain. A value may itself
/// contain names.
///
/// # Errors
/// When two braces contain no name.
pub fn fill_some(text: &str, values: &Values) -> Result<String, TemplateError> {
    let mut filled = String::with_capacity(text.len());
    for piece in pieces(text)? {
        filled.push_str(match piece {
            Piece::Text(text) => text,
            Piece::Braces => "{{{{",
            Piece::Name { name, written } => values.get(name).unwrap_or(written),
        });
    }
    Ok(filled)
}

/// Returns the names in a text, in order, with repetitions.
///
/// # Errors
/// When two braces contain no name.
pub fn names(text: &str) -> Result<Vec<&str>, TemplateError> {
    let name = |piece| if let Piece::Name { name, .. } = piece { Some(name) } else { None };
    Ok(pieces(text)?.into_iter().filter_map(name).collect())
}

/// Why a template could not be filled in.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// Close the braces, or write literal ones as `{{{{`.
    #[error(
        "`{text}`: expected a name and two closing braces, as in {{{{port}}}}; for two braces as such write {{{{{{{{"
    )]
    Braces {
        /// The braces and what follows them.
        text: String,
    },
    /// Correct the name.
    #[error("`{{{{{name}}}}}` is unknown{}: expected one of {known}", did_you_mean(.near.as_deref()))]
    Unknown {
        /// The name.
        name: String,
        /// A similar known name.
        near: Option<String>,
        /// The known names, separated by commas.
        known: String,
    },
    /// Use the port or socket in the server's command or files, so that the server listens there.
    #[error(
        "`{{{{{name}}}}}` stands nowhere in the server's command, environment, files or steps: it does not listen there"
    )]
    NotListening {
        /// The name.
        name: String,
    },
    /// Name the CPUs.
    #[error("`{{{{{name}}}}}`: the setting {name} is empty: name CPUs there, as in \"0-1\"")]
    NoCpus {
        /// The name, which is also the setting's name.
        name: String,
    },
}

fn unknown(name: &str, values: &Values) -> TemplateError {
    let name = name.to_owned();
    if is_place(&name) {
        return TemplateError::NotListening { name };
    }
    if name == "cpus.server" || name == "cpus.load" {
        return TemplateError::NoCpus { name };
    }
    let known: Vec<&str> = values.0.keys().map(String::as_str).collect();
    let always = ["port", "socket"].into_iter().filter(|name| !known.contains(name));
    let all: Vec<&str> = known.iter().copied().chain(always).collect();
    let near = oroshi_words::nearest(&name, all.iter().copied()).map(str::to_owned);
    TemplateError::Unknown { name, near, known: all.join(", ") }
}

/// Whether a name is that of a port or a socket, which the workspace chooses.
#[must_use]
pub fn is_place(name: &str) -> bool {
    ["port", "socket"]
        .iter()
        .any(|kind| name.strip_prefix(kind).is_some_and(|rest| rest.is_empty() || rest.starts_with('.')))
}

fn did_you_mean(near: Option<&str>) -> String {
    near.map(|name| format!(" (did you mean {{{{{name}}}}}?)")).unwrap_or_default()
}

enum Piece<'t> {
    Text(&'t str),
    /// Literal braces.
    Braces,
    Name {
        name: &'t str,
        /// With its braces.
        written: &'t str,
    },
}

fn pieces(text: &str) -> Result<Vec<Piece<'_>>, TemplateError> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while let Some(start) = rest.find("{{") {
        pieces.push(Piece::Text(&rest[..start]));
        rest = &rest[start..];
        if let Some(after) = rest.strip_prefix("{{{{") {
            pieces.push(Piece::Braces);
            rest = after;
            continue;
        }
        let bad = || TemplateError::Braces { text: excerpt(rest) };
        let end = rest.find("}}").ok_or_else(bad)?;
        let name = rest[2..end].trim_matches(' ');
        if !is_name(name) {
            return Err(bad());
        }
        let (written, after) = rest.split_at(end + 2);
        pieces.push(Piece::Name { name, written });
        rest = after;
    }
    pieces.push(Piece::Text(rest));
    Ok(pieces)
}

fn is_name(text: &str) -> bool {
    let inside = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    text.starts_with(|c: char| c.is_ascii_alphanumeric()) && !text.ends_with('.') && text.chars().all(inside)
}

/// Returns the beginning of a text's first line.
fn excerpt(text: &str) -> String {
    const CHARACTERS: usize = 30;
    let line = text.lines().next().unwrap_or_default();
    let short: String = line.chars().take(CHARACTERS).collect();
    if short.len() < line.len() { short + "..." } else { short }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values() -> Values {
        let mut values = Values::default();
        for (name, text) in [("port", "8080"), ("port.admin", "8081"), ("dir", "/tmp/x"), ("threads", "4")] {
            values.set(name, text);
        }
        values
    }

    #[test]
    fn names_are_filled_in_and_the_rest_stays_as_it_is() {
        for (text, filled) in [
            ("", ""),
            ("{ }} }", "{ }} }"),
            ("{{port}}", "8080"),
            ("a {{ port }}:{{port.admin}}{{dir}} é", "a 8080:8081/tmp/x é"),
            ("{{{{port}}", "{{port}}"),
            ("{{{{{{port}}", "{{8080"),
        ] {
            assert_eq!(fill(text, &values()).as_deref(), Ok(filled), "{text}");
        }
    }

    #[test]
    fn what_is_filled_in_part_is_a_template_still() {
        let mut sweep = Values::default();
        sweep.set("n", "7");
        let text = "{{n}} {{ port }} {{{{n}} {{n }}";
        let some = fill_some(text, &sweep).unwrap();
        assert_eq!(some, "7 {{ port }} {{{{n}} 7");
        assert_eq!(fill(&some, &values()).unwrap(), "7 8080 {{n}} 7");
        assert_eq!(names(text).unwrap(), ["n", "port", "n"]);
    }

    #[test]
    fn braces_without_a_name_are_told() {
        for text in ["{{port", "{{}}", "{{ }}", "{{po rt}}", "{{.x}}", "{{port.}}", "a {{\nport}}", "{{é}}"] {
            let error = fill(text, &values()).unwrap_err();
            assert!(matches!(error, TemplateError::Braces { .. }), "{text}: {error}");
            assert_eq!((fill_some(text, &values()), names(text)), (Err(error.clone()), Err(error.clone())));
        }
        let long = fill("x {{this goes on and on and on, and never ends", &values()).unwrap_err().to_string();
        assert!(long.starts_with("`{{this goes on and on and on, ...`") && long.ends_with("write {{{{"), "{long}");
    }

    #[test]
    fn an_unknown_name_is_told_with_what_was_meant() {
        let said = |text: &str| fill(text, &values()).unwrap_err().to_string();
        let slip = said("{{thraeds}}");
        assert!(slip.contains("`{{thraeds}}` is unknown (did you mean {{threads}}?)"), "{slip}");
        assert!(slip.contains("dir, port, port.admin, threads, socket"), "{slip}");
        assert!(said("{{socket}}").contains("`{{socket}}` stands nowhere"));
        assert!(said("{{port.x}}").contains("does not listen there"));
        assert!(said("{{cpus.server}}").contains("the setting cpus.server is empty"));
        assert!(said("{{ports}}").contains("did you mean {{port}}?"));
    }
}
