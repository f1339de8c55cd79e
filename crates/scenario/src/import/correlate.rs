//! Values of earlier responses that come back in later requests: hidden fields of forms, fields of JSON.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use lol_html::{HtmlRewriter, MemorySettings, Settings, element};
use oroshi_words::query;
use serde_json::Value as Json;

use super::BODY_BYTES;
use super::call::{Answer, Body, Call, essence, is_json};
use super::lua::{field, name_of, quoted};
use crate::html::decode_attribute;

/// The most values that a script takes from responses: LuaJIT permits 200 local variables.
const MOST_TOKENS: usize = 100;
/// The most values of all responses that are remembered.
const MOST_VALUES: usize = 200_000;
/// The longest value, bytes.
const VALUE_BYTES: usize = 4096;
/// The memory for the parser of a page, bytes.
const PARSER_BYTES: usize = 4 << 20;
/// The largest number: what `..` of Lua writes exactly.
const MOST_NUMBER: i64 = 99_999_999_999_999;

/// Where a value in a response stands.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Place {
    /// An attribute of the first element that a selector matches.
    Attribute { css: String, attribute: &'static str },
    /// The access to a field of the decoded JSON: `.user.token`.
    Json(String),
}

/// A value that a script takes from a response.
#[derive(Debug)]
pub(super) struct Token {
    /// The variable.
    pub(super) name: String,
    /// The call whose response has it.
    pub(super) call: usize,
    pub(super) place: Place,
    pub(super) value: String,
    pub(super) is_number: bool,
    /// The first call that sends it.
    pub(super) first_use: usize,
}

/// The values that come back.
#[derive(Debug, Default)]
pub(super) struct Tokens {
    pub(super) all: Vec<Token>,
    /// For each call, the tokens that it sends.
    pub(super) used: Vec<Vec<usize>>,
    /// Whether there were more than a script can have.
    pub(super) are_cut: bool,
}

/// A value in a response.
#[derive(Clone)]
struct Source {
    call: usize,
    name: Rc<str>,
    place: Place,
    is_number: bool,
}

/// Finds the values that come back.
pub(super) fn find(calls: &[Call]) -> Tokens {
    let mut tokens = Tokens::default();
    let mut seen: HashMap<String, Source> = HashMap::new();
    // Values that the user typed: a response that repeats them is not their source.
    let mut typed: HashSet<String> = HashSet::new();
    let mut known: HashMap<(usize, Place), usize> = HashMap::new();
    for (index, call) in calls.iter().enumerate() {
        let mut used = Vec::new();
        for (name, value, place) in fields(call) {
            let source = seen.get(&*value).filter(|source| comes_back(source, &name, &value, place));
            let Some(source) = source else {
                if value.len() <= VALUE_BYTES && typed.len() < MOST_VALUES {
                    typed.insert(value);
                }
                continue;
            };
            let found = known.get(&(source.call, source.place.clone())).copied();
            let token = match found {
                Some(token) => token,
                None if tokens.all.len() == MOST_TOKENS => {
                    tokens.are_cut = true;
                    continue;
                }
                None => {
                    let name = variable(&source.name, &tokens.all);
                    known.insert((source.call, source.place.clone()), tokens.all.len());
                    let (call, place, is_number) = (source.call, source.place.clone(), source.is_number);
                    tokens.all.push(Token { name, call, place, value, is_number, first_use: index });
                    tokens.all.len() - 1
                }
            };
            if !used.contains(&token) {
                used.push(token);
            }
        }
        tokens.used.push(used);
        let mut note = |name: &str, value: &str, place: Place, is_number: bool| {
            let is_new = seen.contains_key(value) || seen.len() < MOST_VALUES;
            if !value.is_empty() && value.len() <= VALUE_BYTES && is_new && !typed.contains(value) {
                seen.insert(value.to_owned(), Source { call: index, name: name.into(), place, is_number });
            }
        };
        match &call.answer {
            Answer::None => {}
            Answer::Html(page) => {
                for (name, value, place) in hidden(page) {
                    note(&name, &value, place, false);
                }
            }
            Answer::Json(json) => walk("", String::new(), json, &mut |name, path, value| match value {
                Json::String(text) => note(name, text, Place::Json(path.to_owned()), false),
                Json::Number(number) if number.as_i64().is_some_and(|number| (100..=MOST_NUMBER).contains(&number)) => {
                    note(name, &number.to_string(), Place::Json(path.to_owned()), true);
                }
                _ => {}
            }),
        }
    }
    tokens
}

/// Returns a free name of a variable.
fn variable(words: &str, taken: &[Token]) -> String {
    const OTHERS: [&str; 21] = [
        "user", "response", "page", "answer", "secret", "check", "think", "json", "data", "shared", "scenario",
        "base64", "options", "fail", "abort", "step", "digest", "string", "table", "math", "users",
    ];
    let mut wanted = name_of(words, "value");
    if OTHERS.contains(&&*wanted) {
        wanted.push_str("_value");
    }
    let is_taken = |name: &str| taken.iter().any(|token| token.name == name);
    let numbered = (2..).map(|number| format!("{wanted}_{number}"));
    std::iter::once(wanted.clone()).chain(numbered).find(|name| !is_taken(name)).unwrap_or(wanted)
}

/// Where a request has a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Named,
    Path,
    Header,
}

/// Whether a value of a request is one that a response gave, and not equal by chance.
fn comes_back(source: &Source, name: &str, value: &str, part: Part) -> bool {
    let letters = |text: &str| {
        let last = text.trim_end_matches(']').rsplit(['[', '.']).next().unwrap_or_default().to_owned();
        last.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_ascii_lowercase()
    };
    let has_digit = value.bytes().any(|byte| byte.is_ascii_digit());
    let is_opaque = value.len() >= 8 && has_digit && !value.contains(char::is_whitespace) || value.len() >= 20;
    match part {
        _ if source.is_number => part == Part::Path || letters(name) == letters(&source.name),
        Part::Named => is_opaque || value.len() >= 4 && letters(name) == letters(&source.name),
        Part::Path | Part::Header => is_opaque,
    }
}

/// Returns the values that a request sends, by name.
fn fields(call: &Call) -> Vec<(String, String, Part)> {
    let mut found = Vec::new();
    for segment in call.url.path_segments().into_iter().flatten() {
        if let Ok(segment) = query::segment(segment) {
            found.push((String::new(), segment.into_owned(), Part::Path));
        }
    }
    for (name, value) in call.query().unwrap_or_default() {
        found.push((name, value, Part::Named));
    }
    for (name, value) in &call.headers {
        let bare = value.split_once(' ').map_or(&**value, |(_, rest)| rest);
        found.push((name.clone(), bare.to_owned(), Part::Header));
    }
    let mut of_json = |json: &Json| {
        walk("", String::new(), json, &mut |name, _, value| match value {
            Json::String(text) => found.push((name.to_owned(), text.clone(), Part::Named)),
            Json::Number(number) => found.push((name.to_owned(), number.to_string(), Part::Named)),
            _ => {}
        });
    };
    match &call.body {
        Body::None => {}
        Body::Json(json) => of_json(json),
        // JSON that no table can express is still JSON.
        Body::Bytes(bytes) => {
            let is_json = call.header("Content-Type").is_some_and(|kind| is_json(&essence(kind)));
            if let Some(json) = is_json.then(|| serde_json::from_slice(bytes).ok()).flatten() {
                of_json(&json);
            } else if let Some(text) = str::from_utf8(bytes).ok().filter(|text| text.len() <= BODY_BYTES) {
                let is_part = |char: char| char.is_ascii_alphanumeric() || "-_.~+/=".contains(char);
                let words = text.split(|char| !is_part(char)).filter(|word| word.len() >= 8);
                found.extend(words.map(|word| (String::new(), word.to_owned(), Part::Header)));
            }
        }
        Body::Form(pairs) => {
            found.extend(pairs.iter().map(|(name, value)| (name.clone(), value.clone(), Part::Named)));
        }
        Body::Multipart(parts) => {
            for part in parts.iter().filter(|part| part.filename.is_none()) {
                if let Ok(text) = str::from_utf8(&part.body) {
                    found.push((part.name.clone(), text.to_owned(), Part::Named));
                }
            }
        }
    }
    found
}

/// Visits the values of JSON with the name of their field and the access to them. Parsed JSON has at most 128 levels.
pub(super) fn walk(name: &str, path: String, json: &Json, visit: &mut dyn FnMut(&str, &str, &Json)) {
    match json {
        Json::Array(values) => {
            for (index, value) in values.iter().enumerate() {
                walk(name, format!("{path}[{}]", index + 1), value, visit);
            }
        }
        Json::Object(fields) => {
            for (name, value) in fields {
                walk(name, format!("{path}{}", field(name)), value, visit);
            }
        }
        value => visit(name, &path, value),
    }
}

/// Returns values of hidden fields and of `meta` elements. A selector whose first match has another value is left out.
fn hidden(page: &[u8]) -> Vec<(String, String, Place)> {
    struct State {
        /// The action of the form around.
        action: Option<String>,
        /// Name, value, action; `None` for `meta`.
        found: Vec<(String, String, Option<Option<String>>)>,
    }
    let state = Rc::new(RefCell::new(State { action: None, found: Vec::new() }));
    let (forms, inputs, metas) = (Rc::clone(&state), Rc::clone(&state), Rc::clone(&state));
    let on_form = element!("form", move |form| {
        forms.borrow_mut().action = form.get_attribute("action").map(|text| decode_attribute(&text));
        let forms = Rc::clone(&forms);
        if let Some(handlers) = form.end_tag_handlers() {
            let end: lol_html::EndTagHandler<'static> = Box::new(move |_| {
                forms.borrow_mut().action = None;
                Ok(())
            });
            handlers.push(end);
        }
        Ok(())
    });
    let on_input = element!("input[name][value]", move |input| {
        let mut state = inputs.borrow_mut();
        let (name, value) = (input.get_attribute("name"), input.get_attribute("value"));
        if let (Some(name), Some(value)) = (name, value)
            && state.found.len() < MOST_VALUES
        {
            let action = state.action.clone();
            state.found.push((decode_attribute(&name), decode_attribute(&value), Some(action)));
        }
        Ok(())
    });
    let on_meta = element!("meta[name][content]", move |meta| {
        let mut state = metas.borrow_mut();
        let (name, value) = (meta.get_attribute("name"), meta.get_attribute("content"));
        if let (Some(name), Some(value)) = (name, value)
            && state.found.len() < MOST_VALUES
        {
            state.found.push((decode_attribute(&name), decode_attribute(&value), None));
        }
        Ok(())
    });
    let memory = MemorySettings::new().with_max_allowed_memory_usage(PARSER_BYTES);
    let settings = Settings::new().with_strict(false).with_memory_settings(memory);
    let settings = [on_form, on_input, on_meta].into_iter().fold(settings, Settings::append_element_content_handler);
    let mut rewriter = HtmlRewriter::new(settings, |_: &[u8]| {});
    // What was found before a page exceeded the memory counts.
    if rewriter.write(page).is_ok() {
        let _ = rewriter.end();
    }
    let found = std::mem::take(&mut state.borrow_mut().found);
    let mut first: HashSet<String> = HashSet::new();
    let mut out = Vec::new();
    for (name, value, form) in found {
        let (element, attribute) = if form.is_some() { ("input", "value") } else { ("meta", "content") };
        let simple = format!("{element}[name={}]", css(&name));
        let narrow = form.flatten().map(|action| format!("form[action={}] {simple}", css(&action)));
        // Each form may have a token of its own; the first match of the shorter selector is another one then.
        let mut chosen = None;
        for selector in std::iter::once(simple).chain(narrow) {
            if first.insert(selector.clone()) && chosen.is_none() {
                chosen = Some(selector);
            }
        }
        if let Some(css) = chosen {
            out.push((name, value, Place::Attribute { css, attribute }));
        }
    }
    out
}

/// Writes the value of an attribute in a selector.
fn css(value: &str) -> String {
    let mut letters = value.bytes();
    let is_plain = letters.next().is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_')
        && letters.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-');
    if is_plain {
        return value.to_owned();
    }
    let mut out = "\"".to_owned();
    for char in value.chars() {
        match char {
            '"' | '\\' => out.extend(['\\', char]),
            char if char.is_control() => out.push_str(&format!("\\{:x} ", u32::from(char))),
            char => out.push(char),
        }
    }
    out + "\""
}

/// Writes how a script takes a token from `page` or `answer`.
pub(super) fn access(place: &Place) -> String {
    match place {
        Place::Attribute { css, attribute } => format!("page:attr({}, \"{attribute}\")", quoted(css.as_bytes())),
        Place::Json(path) => format!("answer{path}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_fields_have_selectors_that_find_them_first() {
        let page = br#"<meta name="csrf-token" content="m&amp;1"><form action="/a?x=1&amp;y"><input name="t" value="1">
            <input name="user[t]" value="&#x41;&#66;&nosuch;"></form><form action=/b><input name=t value=2></form>
            <form><input name=t value=3></form><input type=text name=free>"#;
        let shown: Vec<String> =
            hidden(page).iter().map(|(name, value, place)| format!("{name} {value} {}", access(place))).collect();
        let expected = [
            r#"csrf-token m&1 page:attr("meta[name=csrf-token]", "content")"#,
            r#"t 1 page:attr("input[name=t]", "value")"#,
            r#"user[t] AB&nosuch; page:attr("input[name=\"user[t]\"]", "value")"#,
            r#"t 2 page:attr("form[action=\"/b\"] input[name=t]", "value")"#,
        ];
        assert_eq!(shown, expected);
    }

    #[test]
    fn a_hostile_page_ends() {
        for page in ["<form>".repeat(100_000), "<input name=a value=b ".repeat(50_000), "<!--".repeat(100_000)] {
            assert!(hidden(page.as_bytes()).len() < 10);
        }
    }
}
