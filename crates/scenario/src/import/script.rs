//! The text of a script, from calls.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::fmt::Write;

use oroshi_words::{query, units};
use serde_json::Value as Json;
use url::{Position, Url};

use super::call::{Body, Call, essence, is_json, pairs};
use super::correlate::{self, Place, Tokens};
use super::lua::{Value, comment, key, quoted};
use super::secrets::{self, PLACEHOLDER, Secrets};
use super::{BODIES_BYTES, BODY_BYTES, ImportError, Options};

/// The most JSON values, parts and fields in tables of a script. LuaJIT limits the constants of a function.
const MOST_VALUES: usize = 20_000;
/// The shortest text that is found within other texts, bytes. Shorter ones occur by chance.
const WITHIN_BYTES: usize = 8;
/// The longest step name, in characters.
const NAME_CHARS: usize = 40;

/// What a script does.
#[derive(Debug)]
pub(super) struct Script {
    /// The origin to which paths are relative.
    pub(super) base: Url,
    pub(super) calls: Vec<Call>,
    /// Remarks for the comment at the top.
    pub(super) about: Vec<String>,
}

impl Script {
    pub(super) fn new(base: Url) -> Self {
        Self { base, calls: Vec::new(), about: Vec::new() }
    }
}

/// Writes the script.
///
/// # Errors
/// It would be too large for LuaJIT.
pub(super) fn write(script: &Script, options: &Options) -> Result<String, ImportError> {
    let tokens = correlate::find(&script.calls);
    let names = names(&script.calls, &tokens);
    let common = common(&script.calls);
    let mut writer = Writer {
        base: &script.base,
        tokens: &tokens,
        secrets: Secrets::new(options.keep_secrets),
        names: &names,
        common: &common,
        values: MOST_VALUES,
        bytes: BODIES_BYTES,
        fillers: 0,
        suspicious: false,
    };
    let headers: Vec<_> = common.iter().map(|(name, value)| writer.header(0, name, value)).collect();
    let mut journey = String::new();
    for index in 0..script.calls.len() {
        writer.call(&mut journey, script, index)?;
    }
    let Writer { secrets, fillers, suspicious, .. } = writer;
    let mut out = String::new();
    let count = units::plural(script.calls.len() as u64, "request");
    line(&mut out, &format!("-- Written by oroshi from {}: {count} to {}", comment(&options.source), script.base));
    out.push_str("--\n--     oroshi bench -s FILE --users 1 --iterations 1 --verbose\n--\n");
    out.push_str(
        "-- makes one journey, and shows each request and check. Then raise users, and give the run a duration.\n",
    );
    let mut about = script.about.clone();
    if fillers > 0 {
        about.push(format!(
            "{} of the same size replace long texts (more than 64 KiB).",
            units::plural(fillers, "filler")
        ));
    }
    if suspicious {
        about.push(
            "A body may contain a password that was not recognised: look for it before you share this file.".into(),
        );
    }
    if tokens.are_cut {
        about
            .push("More values come back from responses than a script can take: the last ones are as recorded.".into());
    }
    for remark in &about {
        line(&mut out, &format!("-- {}", remark.split_whitespace().collect::<Vec<_>>().join(" ")));
    }
    if !secrets.found.is_empty() {
        secrets_table(&mut out, &secrets);
    }
    let mut settings = vec![
        (Some("url".to_owned()), Value::text(script.base.as_str().trim_end_matches('/'))),
        (Some("users".to_owned()), Value::Plain("1".into())),
    ];
    if !headers.is_empty() {
        settings.push((Some("headers".to_owned()), Value::Table(headers)));
    }
    let _ = write!(out, "\noptions {}\n", Value::Table(settings).write(0, 8));
    out.push_str("\nscenario(\"recorded\", function(user)\n");
    let is_used = |name: &str| journey.contains(&format!("  {name} = "));
    let locals: Vec<&str> = ["response", "page", "answer"].into_iter().filter(|name| is_used(name)).collect();
    if !locals.is_empty() {
        let _ = writeln!(out, "  local {}", locals.join(", "));
    }
    out.push_str(&journey);
    out.push_str("end)\n");
    Ok(out)
}

fn line(out: &mut String, text: &str) {
    out.push_str(text.trim_end());
    out.push('\n');
}

fn secrets_table(out: &mut String, secrets: &Secrets) {
    out.push_str(
        "\n-- Secrets stay out of this file: put test data in their place (or use --keep-secrets). For an account per user:\n\
         --     local accounts = data.csv(\"accounts.csv\")     (above the scenario; beside this file)\n\
         --     local account = accounts:lease()              (first in the scenario; then account.password)\n\
         local secret = {\n",
    );
    for (name, step) in &secrets.found {
        let _ = writeln!(out, "  {name} = {}, -- of \"{}\"", quoted(PLACEHOLDER.as_bytes()), comment(step));
    }
    out.push_str("}\n");
}

/// Returns the headers that all calls have, if there are several calls.
fn common(calls: &[Call]) -> Vec<(String, String)> {
    let [first, rest @ ..] = calls else { return Vec::new() };
    if rest.is_empty() {
        return Vec::new();
    }
    let has = |call: &Call, name: &str, value: &str| {
        let mut fields = call.headers.iter().filter(|(known, _)| known.eq_ignore_ascii_case(name));
        matches!((fields.next(), fields.next()), (Some((_, known)), None) if known == value)
    };
    let shared = first.headers.iter().filter(|(name, value)| {
        !name.eq_ignore_ascii_case("content-type") && calls.iter().all(|call| has(call, name, value))
    });
    shared.cloned().collect()
}

/// Returns a name for each step: what stands in its path, made unique by a number.
fn names(calls: &[Call], tokens: &Tokens) -> Vec<String> {
    let mut taken: HashSet<String> = HashSet::new();
    let mut numbers: HashMap<String, usize> = HashMap::new();
    let mut names = Vec::with_capacity(calls.len());
    for (call, used) in calls.iter().zip(&tokens.used) {
        let words = name(call, &|segment| {
            let mut used = used.iter().map(|&token| &tokens.all[token]);
            used.find(|token| token.value == segment).map(|token| token.name.clone())
        });
        let number = numbers.entry(words.clone()).or_insert(0);
        let unique = loop {
            *number += 1;
            let unique = if *number == 1 { words.clone() } else { format!("{words} {number}") };
            if taken.insert(unique.clone()) {
                break unique;
            }
        };
        names.push(unique);
    }
    names
}

/// Names a step. `variable` names a part of the path that is another one in each journey.
fn name(call: &Call, variable: &dyn Fn(&str) -> Option<String>) -> String {
    let decoded = |segment: &str| query::segment(segment).map_or_else(|_| segment.to_owned(), Cow::into_owned);
    let clean = |char: char| if char.is_alphanumeric() || "-_.".contains(char) { char } else { ' ' };
    let part = |segment: &str| variable(segment).unwrap_or_else(|| decoded(segment));
    let segments = call.url.path_segments().into_iter().flatten().map(part);
    // A long part is an identifier, and says nothing.
    let parts: Vec<String> = segments.filter(|part| part.chars().count() <= 24).collect();
    let words: String = parts.join(" ").chars().map(clean).collect();
    let words = words.split_whitespace().collect::<Vec<_>>().join(" ");
    let count = words.chars().count();
    let words: String = words.chars().skip(count.saturating_sub(NAME_CHARS)).collect();
    let words = if words.trim().is_empty() { "top" } else { words.trim() };
    if call.method == "GET" { words.to_owned() } else { format!("{} {words}", call.method.to_lowercase()) }
}

struct Writer<'s> {
    base: &'s Url,
    tokens: &'s Tokens,
    secrets: Secrets,
    names: &'s [String],
    common: &'s [(String, String)],
    /// How many values may still become tables.
    values: usize,
    /// How many bytes of texts are still written.
    bytes: usize,
    fillers: u64,
    /// Whether a body that is no table names a password.
    suspicious: bool,
}

impl Writer<'_> {
    fn call(&mut self, out: &mut String, script: &Script, index: usize) -> Result<(), ImportError> {
        let call = &script.calls[index];
        if let Some(seconds) = call.think {
            let _ = writeln!(out, "  think({seconds})");
        }
        if let Some(title) = &call.page {
            let _ = writeln!(out, "{}  -- Page: {}", if index == 0 { "" } else { "\n" }, comment(title));
        }
        for note in &call.notes {
            let _ = writeln!(out, "  -- {}", comment(note));
        }
        for (name, value) in &call.cookies {
            let (name, value) = (quoted(name.as_bytes()), self.cookie(index, name, value));
            let _ = writeln!(out, "  user:set_cookie({name}, {value})");
        }
        let taken: Vec<_> = self.tokens.all.iter().filter(|token| token.call == index).collect();
        let of_json = taken.iter().any(|token| matches!(token.place, Place::Json(_)));
        let is_page = call.assets || taken.iter().any(|token| matches!(token.place, Place::Attribute { .. }));
        let before = if of_json || is_page { "  response = " } else { "  " };
        let (url, fields) = (self.url(index, call), self.options(index, call)?);
        let function = match &*call.method {
            "GET" | "HEAD" | "POST" | "PUT" | "PATCH" | "DELETE" => {
                format!("user:{}({url}, ", call.method.to_ascii_lowercase())
            }
            method => format!("user:request({}, {url}, ", quoted(method.as_bytes())),
        };
        let fields = fields.write(2, before.len() + function.len() + 1);
        let _ = writeln!(out, "{before}{function}{fields})");
        if is_page {
            out.push_str("  page = user:html(response)\n");
        }
        if of_json {
            out.push_str("  answer = response:json()\n");
        }
        for token in taken {
            let (access, step) = (correlate::access(&token.place), comment(&self.names[token.first_use]));
            let _ = writeln!(out, "  local {} = {access} -- comes back in \"{step}\"", token.name);
        }
        if call.assets {
            out.push_str("  user:assets(page)\n");
        }
        Ok(())
    }

    fn options(&mut self, index: usize, call: &Call) -> Result<Value, ImportError> {
        let mut fields = vec![("name", Value::text(&self.names[index]))];
        let (mut headers, mut content) = (Vec::new(), None);
        for (name, value) in call.headers.iter().filter(|field| !self.common.contains(field)) {
            headers.push((name.clone(), self.header(index, name, value).1));
        }
        match &call.body {
            Body::None => {}
            Body::Form(pairs) => content = Some(("form", self.pairs(index, pairs))),
            Body::Json(json) => {
                if self.has_room(count(json)) {
                    let json = self.json(index, "", json);
                    content = Some(("json", json));
                } else {
                    let text = self.json_text(index, &json.to_string());
                    content = Some(("body", Value::Plain(text)));
                    if call.header("Content-Type").is_none() {
                        headers.push(("Content-Type".into(), Value::text("application/json")));
                    }
                }
            }
            Body::Multipart(parts) => {
                if !self.has_room(parts.len()) {
                    let got = format!("more than {MOST_VALUES} fields of bodies");
                    return Err(ImportError::TooLarge { what: "script", got, most: MOST_VALUES.to_string() });
                }
                let mut table = Vec::new();
                for part in parts {
                    let body = match str::from_utf8(&part.body) {
                        Ok(text) => self.value(index, &part.name, text),
                        Err(_) => self.literal(&part.body),
                    };
                    // Texts must be UTF-8; files may have any bytes.
                    let is_text = part.filename.is_none() && part.kind.is_none() && str::from_utf8(&part.body).is_ok();
                    let value = if is_text {
                        Value::Plain(body)
                    } else {
                        let filename = part.filename.as_ref().map(|name| (Some("filename".into()), Value::text(name)));
                        let kind = part.kind.as_ref().map(|kind| (Some("type".into()), Value::text(kind)));
                        let body = (Some("body".into()), Value::Plain(body));
                        Value::Table(filename.into_iter().chain(kind).chain([body]).collect())
                    };
                    table.push((Some(key(part.name.as_bytes())), value));
                }
                content = Some(("multipart", Value::Table(table)));
            }
            Body::Bytes(bytes) => {
                let kind = call.header("Content-Type").map(essence).unwrap_or_default();
                let text = match str::from_utf8(bytes) {
                    Ok(text) if is_json(&kind) => self.json_text(index, text),
                    Ok(text) if kind == "application/x-www-form-urlencoded" => self.form_text(index, text),
                    Ok(text) => {
                        self.suspicious |= self.secrets.are_replaced() && names_a_password(text);
                        self.within(index, text)
                    }
                    Err(_) => self.literal(bytes),
                };
                content = Some(("body", Value::Plain(text)));
            }
        }
        if !headers.is_empty() {
            fields.push(("headers", table_of(headers)));
        }
        if let Some(pairs) = self.query_of(index, call) {
            fields.push(("query", self.pairs(index, &pairs)));
        }
        fields.extend(content);
        if let Some(timeout) = call.timeout {
            fields.push(("timeout", Value::Plain(timeout.to_string())));
        }
        if let Some(redirects) = call.redirects {
            fields.push(("redirects", Value::Plain(redirects.to_string())));
        }
        match &call.expect[..] {
            [] => {}
            [status] => fields.push(("expect", Value::Plain(status.to_string()))),
            several => {
                let several = several.iter().map(|status| (None, Value::Plain(status.to_string())));
                fields.push(("expect", Value::Table(several.collect())));
            }
        }
        Ok(Value::Table(fields.into_iter().map(|(name, value)| (Some(name.to_owned()), value)).collect()))
    }

    /// Returns the query, if it has a value that cannot stand in the URL as recorded.
    fn query_of(&self, index: usize, call: &Call) -> Option<Vec<(String, String)>> {
        let text = call.url.query()?;
        let lenient = || {
            let pairs: Option<Vec<_>> = query::pairs(text).map(Result::ok).collect();
            pairs.unwrap_or_default().into_iter().map(|(name, value)| (name.into_owned(), value.into_owned())).collect()
        };
        let pairs: Vec<(String, String)> = pairs(text).unwrap_or_else(lenient);
        let is_secret = |(name, value): &(String, String)| {
            self.secrets.are_replaced() && secrets::is_field(name) && !value.is_empty()
        };
        let is_token = |(_, value): &(String, String)| self.token(index, value).is_some();
        pairs.iter().any(|pair| is_secret(pair) || is_token(pair)).then_some(pairs)
    }

    /// Writes the URL: the path alone where it is one of the script's own server.
    fn url(&self, index: usize, call: &Call) -> String {
        let url = &call.url;
        let is_own = url[..Position::BeforePath] == self.base[..Position::BeforePath];
        let mut text = if is_own { String::new() } else { url[..Position::BeforePath].to_owned() };
        let mut parts = Vec::new();
        for (place, segment) in url.path_segments().into_iter().flatten().enumerate() {
            text.push('/');
            // A token stands in a path as it is, or not at all.
            match self.token(index, segment).filter(|_| place < 100) {
                Some(name) => parts.extend([std::mem::take(&mut text), name.to_owned()]),
                None => text.push_str(segment),
            }
        }
        if self.query_of(index, call).is_none()
            && let Some(query) = url.query()
        {
            text.push('?');
            text.push_str(query);
        }
        let last = (!text.is_empty() || parts.is_empty()).then_some(text);
        let texts = parts.chunks(2).flat_map(|pair| [quoted(pair[0].as_bytes()), pair[1].clone()]);
        texts.chain(last.map(|text| quoted(text.as_bytes()))).collect::<Vec<_>>().join(" .. ")
    }

    /// Returns the variable that has this value.
    fn token(&self, index: usize, value: &str) -> Option<&str> {
        let used = self.tokens.used[index].iter().map(|&token| &self.tokens.all[token]);
        used.filter(|token| token.value == value).map(|token| &*token.name).next()
    }

    fn header(&mut self, index: usize, name: &str, value: &str) -> (Option<String>, Value) {
        let bare = value.split_once(' ').map(|(scheme, rest)| (format!("{scheme} "), rest));
        let text = if let Some(variable) = self.token(index, value) {
            variable.to_owned()
        } else if let Some((scheme, variable)) =
            bare.and_then(|(scheme, rest)| Some((scheme, self.token(index, rest)?)))
        {
            format!("{} .. {variable}", quoted(scheme.as_bytes()))
        } else {
            let step = self.names[index].clone();
            let secret = self.secrets.header(name, value, &step);
            secret.unwrap_or_else(|| self.within(index, value))
        };
        (Some(key(name.as_bytes())), Value::Plain(text))
    }

    fn cookie(&mut self, index: usize, name: &str, value: &str) -> String {
        let step = self.names[index].clone();
        self.secrets.cookie(name, value, &step).unwrap_or_else(|| quoted(value.as_bytes()))
    }

    /// Writes the value of a named field.
    fn value(&mut self, index: usize, name: &str, value: &str) -> String {
        if let Some(variable) = self.token(index, value) {
            return variable.to_owned();
        }
        let step = self.names[index].clone();
        let secret = self.secrets.field(name, value, &step);
        secret.unwrap_or_else(|| self.within(index, value))
    }

    /// Writes pairs; names that occur several times have a list.
    fn pairs(&mut self, index: usize, pairs: &[(String, String)]) -> Value {
        let mut fields: Vec<(String, Vec<Value>)> = Vec::new();
        let mut places: HashMap<&str, usize> = HashMap::new();
        for (name, value) in pairs {
            let value = Value::Plain(self.value(index, name, value));
            let place = *places.entry(name).or_insert(fields.len());
            match fields.get_mut(place) {
                Some((_, values)) => values.push(value),
                None => fields.push((name.clone(), vec![value])),
            }
        }
        let one = |mut values: Vec<Value>| match values.len() {
            1 => values.remove(0),
            _ => Value::Table(values.into_iter().map(|value| (None, value)).collect()),
        };
        table_of(fields.into_iter().map(|(name, values)| (name, one(values))))
    }

    fn json(&mut self, index: usize, name: &str, json: &Json) -> Value {
        match json {
            Json::String(text) => Value::Plain(self.value(index, name, text)),
            Json::Number(number) => {
                let text = number.to_string();
                let variable = self.tokens.used[index].iter().map(|&token| &self.tokens.all[token]);
                let variable = variable.into_iter().find(|token| token.is_number && token.value == text);
                if let Some(token) = variable {
                    return Value::Plain(token.name.clone());
                }
                let step = self.names[index].clone();
                // A placeholder is a text: the script says what it must become.
                let secret = self.secrets.field(name, &text, &step).map(|place| format!("tonumber({place}) or 0"));
                Value::Plain(secret.unwrap_or(text))
            }
            // An empty table would be an object.
            Json::Array(values) if values.is_empty() => Value::Plain("json.decode(\"[]\")".into()),
            Json::Array(values) => {
                Value::Table(values.iter().map(|value| (None, self.json(index, name, value))).collect())
            }
            Json::Object(fields) => {
                let fields = fields.iter().map(|(name, value)| (name.clone(), self.json(index, name, value)));
                table_of(fields.collect::<Vec<_>>())
            }
            other => Value::Plain(other.to_string()),
        }
    }

    /// Writes JSON as text, with secrets and tokens replaced where they are whole strings.
    fn json_text(&mut self, index: usize, text: &str) -> String {
        let mut known: Vec<(String, String)> = Vec::new();
        if let Ok(json) = serde_json::from_str(text) {
            let step = self.names[index].clone();
            correlate::walk("", String::new(), &json, &mut |name, _, value| {
                let Json::String(text) = value else { return };
                let found = self.token(index, text).map(str::to_owned);
                if let Some(place) = found.or_else(|| self.secrets.field(name, text, &step)) {
                    known.push((value.to_string(), format!("json.encode({place})")));
                }
            });
        } else {
            self.suspicious |= self.secrets.are_replaced() && names_a_password(text);
        }
        // Escapes of its own, or a field that occurs twice, would hide a secret.
        let canonical = (!known.is_empty()).then(|| serde_json::from_str::<Json>(text).ok()).flatten();
        match canonical {
            Some(json) => self.replaced(&json.to_string(), known),
            None => self.replaced(text, known),
        }
    }

    /// Writes a form that is no table as text, with secrets replaced.
    fn form_text(&mut self, index: usize, text: &str) -> String {
        let step = self.names[index].clone();
        let mut known = Vec::new();
        for (name, value) in text.split('&').filter_map(|pair| pair.split_once('=')) {
            if let Some(place) = self.secrets.field(name, value, &step) {
                known
                    .push((format!("{name}={value}"), format!("{} .. {place}", quoted(format!("{name}=").as_bytes()))));
            }
        }
        self.replaced(text, known)
    }

    /// Writes a text in which long tokens and secrets are replaced.
    fn within(&mut self, index: usize, text: &str) -> String {
        if text.len() < WITHIN_BYTES {
            return self.literal(text.as_bytes());
        }
        self.replaced(text, self.known(index))
    }

    fn known(&self, index: usize) -> Vec<(String, String)> {
        let used = self.tokens.used[index].iter().map(|&token| &self.tokens.all[token]);
        let used = used.filter(|token| token.value.len() >= WITHIN_BYTES);
        let tokens = used.map(|token| (token.value.clone(), token.name.clone()));
        let secrets = self.secrets.long().map(|(value, place)| (value.to_owned(), place));
        tokens.chain(secrets).collect()
    }

    /// Writes a text with parts replaced by expressions; the longest part first.
    fn replaced(&mut self, text: &str, mut known: Vec<(String, String)>) -> String {
        known.retain(|(part, _)| !part.is_empty() && text.contains(&**part));
        known.sort_by(|one, other| other.0.len().cmp(&one.0.len()).then_with(|| one.cmp(other)));
        known.dedup();
        let mut pieces = vec![(text, None)];
        for (part, place) in &known {
            let mut split = Vec::new();
            for (piece, is_place) in pieces {
                if is_place.is_some() {
                    split.push((piece, is_place));
                    continue;
                }
                for (number, between) in piece.split(&**part).enumerate() {
                    if number > 0 {
                        split.push(("", Some(&**place)));
                    }
                    split.push((between, None));
                }
            }
            pieces = split;
            // Lua's concatenation takes its operands at once, from a limited number of registers.
            if pieces.len() > 60 {
                self.fillers += 1;
                return filler(text.len());
            }
        }
        let written: Vec<String> = pieces
            .into_iter()
            .filter(|(piece, place)| place.is_some() || !piece.is_empty())
            .map(|(piece, place)| place.map_or_else(|| self.literal(piece.as_bytes()), str::to_owned))
            .collect();
        if written.is_empty() { "\"\"".to_owned() } else { written.join(" .. ") }
    }

    /// Writes bytes, or a filler in place of too many.
    fn literal(&mut self, bytes: &[u8]) -> String {
        // Short texts are bounded by the numbers of requests and fields.
        if bytes.len() > BODY_BYTES || (bytes.len() > 256 && bytes.len() > self.bytes) {
            self.fillers += 1;
            return filler(bytes.len());
        }
        self.bytes = self.bytes.saturating_sub(bytes.len());
        quoted(bytes)
    }

    fn has_room(&mut self, values: usize) -> bool {
        let has_room = values <= self.values;
        if has_room {
            self.values -= values;
        }
        has_room
    }
}

fn filler(bytes: usize) -> String {
    format!("(\"x\"):rep({bytes})")
}

fn table_of(fields: impl IntoIterator<Item = (String, Value)>) -> Value {
    Value::Table(fields.into_iter().map(|(name, value)| (Some(key(name.as_bytes())), value)).collect())
}

/// Returns the number of values in JSON.
fn count(json: &Json) -> usize {
    match json {
        Json::Array(values) => 1 + values.iter().map(count).sum::<usize>(),
        Json::Object(fields) => 1 + fields.values().map(count).sum::<usize>(),
        _ => 1,
    }
}

fn names_a_password(text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    ["password", "passwd", "secret", "token"].iter().any(|word| text.contains(word))
}
