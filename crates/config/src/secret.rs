//! Reads secrets from their possible places.

use std::fs;

use oroshi_words::Secret;

use crate::document::Table;

/// The place of a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecretSource {
    /// In the configuration itself.
    Here,
    /// In a file of its own.
    File,
    /// In an environment variable.
    Variable,
}

/// Reads a secret from the only one of these keys that is given. Trims white space at its end, because editors end a
/// file with a line break. Mistakes never repeat it.
#[must_use]
pub fn secret(table: &Table<'_>, places: &[(&'static str, SecretSource)]) -> Option<Secret> {
    let mut found = None;
    for &(key, sources) in places {
        let Some(field) = table.get(key) else { continue };
        let Some(text) = field.text() else { continue };
        if found.is_some() {
            let names: Vec<&str> = places.iter().map(|place| place.0).collect();
            field.wrong(format!("it is given twice: expected one of {}", names.join(", ")));
            continue;
        }
        let value = match sources {
            SecretSource::Here => Ok(text.to_owned()),
            SecretSource::File => fs::read_to_string(text).map_err(|error| format!("cannot read `{text}`: {error}")),
            SecretSource::Variable => std::env::var(text)
                .map_err(|_| format!("the environment variable `{text}` is not set: expected it to hold the secret")),
        };
        match value {
            Ok(value) => found = Some(Secret::new(value.trim_end())),
            Err(why) => field.wrong(why),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mistakes::Mistakes;
    use crate::toml;

    #[test]
    fn a_secret_shows_nothing_and_has_one_place() {
        let text = "here = \"hunter2 \\n\"\nfile = \"/nonexistent/hunter\"\nvariable = \"OROSHI_NO_SUCH_VARIABLE\"\n";
        let (root, mistakes) = (toml::parse(text).unwrap(), Mistakes::default());
        let table = Table::root(&root, &mistakes);
        let found = secret(&table, &[("here", SecretSource::Here), ("file", SecretSource::File)]).unwrap();
        assert_eq!((found.reveal(), format!("{found:?}").as_str()), ("hunter2", "***"));
        assert_eq!(secret(&table, &[("missing", SecretSource::Here)]), None);
        assert_eq!(secret(&table, &[("file", SecretSource::File), ("variable", SecretSource::Variable)]), None);
        let told: Vec<String> = mistakes.into_vec().iter().map(ToString::to_string).collect();
        assert_eq!(told.len(), 3, "{told:?}");
        assert!(told[0].starts_with("line 2: file: cannot read `/nonexistent/hunter`: "), "{told:?}");
        assert_eq!(told[1], "line 2: file: it is given twice: expected one of here, file");
        assert!(told[2].contains("`OROSHI_NO_SUCH_VARIABLE` is not set"), "{told:?}");
    }
}
