//! Hides secrets in an experiment's file, which results repeat, as reports of `bench` hide them in flags.
//!
//! It hides header values, bodies and credentials for NATS of loads, headers and bodies in the words of a load program,
//! and the values of variables. Everything else stays, including comments and the commands that start servers.

use std::ops::Range;

use oroshi_config::Node;
use oroshi_words::hidden::{self, HIDDEN};

use crate::rules;

/// Returns the text of a valid file without secrets. `root` is its tree.
pub(crate) fn without_secrets(text: &str, root: &Node) -> String {
    let mut hidden = Vec::new();
    all(root, "load").for_each(|load| of_load(load, &mut hidden));
    for table in all(root, "server").chain(all(root, "variant")) {
        of_variables(table, &mut hidden);
        all(table, "load").for_each(|load| of_load(load, &mut hidden));
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

/// A range of the file, and its replacement.
type Hidden = (Range<usize>, String);

fn of_load(load: &Node, hidden: &mut Vec<Hidden>) {
    of_variables(load, hidden);
    let bodies = ["body", "publish-to-body"].into_iter().filter_map(|key| load.get(key));
    for body in bodies.filter(|body| body.as_text() != Some("")) {
        hidden.push((body.span.clone(), quoted(&HIDDEN)));
    }
    let headers = ["header", "publish-header", "publish-to-header"].into_iter().flat_map(|key| all(load, key));
    for (node, header) in headers.filter_map(|node| Some((node, node.as_text()?))) {
        let shown = hidden::header(header);
        if shown != header {
            hidden.push((node.span.clone(), quoted(&shown)));
        }
    }
    if let Some((node, nats)) = load.get("nats").and_then(|node| Some((node, node.as_text()?))) {
        let shown = hidden::addresses(nats);
        if shown != nats {
            hidden.push((node.span.clone(), quoted(&shown)));
        }
    }
    if let Some(command) = load.get("command") {
        let words = match command.as_text() {
            Some(text) => rules::words(text).unwrap_or_default(),
            None => command.elements().iter().filter_map(Node::as_text).map(str::to_owned).collect(),
        };
        let shown = hidden::program(words.clone());
        if shown != words {
            hidden.push((command.span.clone(), quoted(&shown)));
        }
    }
}

fn of_variables(table: &Node, hidden: &mut Vec<Hidden>) {
    let variables = table.get("env").into_iter().flat_map(Node::entries);
    hidden.extend(variables.map(|variable| (variable.node.span.clone(), quoted(&HIDDEN))));
}

/// Returns the value of a key, or its elements.
fn all<'n>(table: &'n Node, key: &str) -> impl Iterator<Item = &'n Node> + use<'n> {
    table.get(key).into_iter().flat_map(Node::elements)
}

/// Quotes a text: TOML and JSON have the same escapes here.
fn quoted(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).unwrap_or_else(|_| format!("\"{HIDDEN}\""))
}

#[cfg(test)]
mod tests {
    use oroshi_config::toml;

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
        let hidden = |text: &str| without_secrets(text, &toml::parse(text).unwrap());
        let kept = hidden(text);
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
        assert_eq!(hidden(&kept), kept, "it is still TOML");
    }
}
