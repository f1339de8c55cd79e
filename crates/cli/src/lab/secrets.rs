//! An experiment's file as a result repeats it: without what may be secret in it, as reports of `bench` repeat its flags.
//!
//! Hidden are header values and bodies of loads, headers and bodies in the words of a load program, and the values of variables.
//! Everything else, comments and the commands that start servers included, stays as it was written.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::bench::{HIDDEN, program_without_secrets, shown_header};
use crate::rules;

/// The text of a file that reads well.
pub(super) fn without_secrets(text: &str) -> String {
    let (root, _) = DeTable::parse_recoverable(text);
    let mut hidden = Vec::new();
    for (key, value) in root.get_ref() {
        match key.get_ref().as_ref() {
            "load" => tables(value).for_each(|load| of_load(load, &mut hidden)),
            "server" | "variant" => tables(value).for_each(|table| {
                of_variables(table, &mut hidden);
                named(table, "load").flat_map(tables).for_each(|load| of_load(load, &mut hidden));
            }),
            _ => {}
        }
    }
    hidden.sort_by_key(|hidden| hidden.0.start);
    let (mut kept, mut at) = (String::with_capacity(text.len()), 0);
    for (span, instead) in hidden {
        kept += text.get(at..span.start).unwrap_or_default();
        kept += &instead;
        at = span.end;
    }
    kept + text.get(at..).unwrap_or_default()
}

/// A place in the file, and what stands there instead.
type Hidden = (Range<usize>, String);

fn of_load(load: &DeTable<'_>, hidden: &mut Vec<Hidden>) {
    of_variables(load, hidden);
    for value in ["body", "publish-to-body"]
        .into_iter()
        .flat_map(|key| named(load, key))
        .filter(|value| value.get_ref().as_str() != Some(""))
    {
        hidden.push((value.span(), quoted(&HIDDEN)));
    }
    let headers = ["header", "publish-header", "publish-to-header"];
    for value in headers.into_iter().flat_map(|key| named(load, key)).flat_map(elements) {
        if let Some(header) = value.get_ref().as_str() {
            let shown = shown_header(header);
            if shown != header {
                hidden.push((value.span(), quoted(&shown)));
            }
        }
    }
    for value in named(load, "command") {
        let words = match value.get_ref().as_str() {
            Some(text) => rules::words(text).unwrap_or_default(),
            None => elements(value).iter().filter_map(|word| word.get_ref().as_str()).map(str::to_owned).collect(),
        };
        let shown = program_without_secrets(words.clone());
        if shown != words {
            hidden.push((value.span(), quoted(&shown)));
        }
    }
}

fn of_variables(table: &DeTable<'_>, hidden: &mut Vec<Hidden>) {
    let variables = named(table, "env").flat_map(tables).flat_map(|variables| variables.iter());
    hidden.extend(variables.map(|(_, value)| (value.span(), quoted(&HIDDEN))));
}

type Value<'t> = Spanned<DeValue<'t>>;

fn named<'d, 't>(table: &'d DeTable<'t>, name: &str) -> impl Iterator<Item = &'d Value<'t>> {
    table.iter().filter(move |(key, _)| key.get_ref() == name).map(|(_, value)| value)
}

/// A table, or those of an array.
fn tables<'d, 't>(value: &'d Value<'t>) -> impl Iterator<Item = &'d DeTable<'t>> {
    elements(value).into_iter().filter_map(|element| element.get_ref().as_table())
}

/// The elements of an array, or the value itself.
fn elements<'d, 't>(value: &'d Value<'t>) -> Vec<&'d Value<'t>> {
    match value.get_ref() {
        DeValue::Array(array) => array.iter().collect(),
        _ => vec![value],
    }
}

/// Texts are written in TOML as they are in JSON.
fn quoted(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).unwrap_or_else(|_| format!("\"{HIDDEN}\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_secret_is_hidden_wherever_it_stands() {
        let text = r#"title = "x"   # a comment
[load]
header = ["Authorization: Bearer s3cret", "Accept: text/html", 'X-Quote: "s3cret"']
body = """
s3cret
"""
[[server]]
name = "s"
start = "app --token as-written"
env = { TOKEN = "s3cret", PORT = 3000 }
files.env = "kept"
files."body" = "kept"
[[variant]]
name = "a"
server = "s"
load.header = "Cookie: s3cret"
load.body = ""
url = "http://h/"
[[variant]]
name = "b"
env.TOKEN = 's3cret'
[variant.load]
command = "wrk -H 'X-Key: s3cret' {{ url }}"
env.TOKEN = "s3cret"
[[variant]]
name = "c"
load = { command = ["wrk", "-HX-Key:s3cret", "{{url}}"] }
[[variant]]
name = "d"
load.command = "wrk  -H 'Accept: */*'  {{url}}"
"#;
        let kept = without_secrets(text);
        let expected = text
            .replace("\"\"\"\ns3cret\n\"\"\"", "\"***\"")
            .replace("'X-Quote: \"s3cret\"'", "\"X-Quote: ***\"")
            .replace("Bearer s3cret", "***")
            .replace("PORT = 3000", "PORT = \"***\"")
            .replace("\"wrk -H 'X-Key: s3cret' {{ url }}\"", r#"["wrk","-H","X-Key: ***","{{url}}"]"#)
            .replace(r#"["wrk", "-HX-Key:s3cret", "{{url}}"]"#, r#"["wrk","-HX-Key: ***","{{url}}"]"#)
            .replace("'s3cret'", "\"***\"")
            .replace("s3cret", "***");
        assert_eq!(kept, expected);
        assert!(DeTable::parse(&kept).is_ok(), "it is still TOML");
        assert_eq!(without_secrets(&kept), kept);
    }
}
