//! What a script asks for: `user:post(url, { form = ... })`.

use std::borrow::Cow;
use std::time::Duration;

use bytes::Bytes;
use mlua::{Lua, Table, Value};
use oroshi_client::{Multipart, form};
use oroshi_net::Endpoint;
use oroshi_words::nearest;

use crate::response::encode;
use crate::settings::{fields, header_fields, kind, number, shown, text, time, truth};

/// The longest list of expected statuses.
const MOST_EXPECTED: usize = 100;

/// A request as a script asks for it.
#[derive(Debug)]
pub(crate) struct Spec {
    pub(crate) method: Cow<'static, str>,
    /// `None` once it is in the request.
    pub(crate) url: Option<Endpoint>,
    /// The step's name; `None`: the method and the path.
    pub(crate) name: Option<String>,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Option<Bytes>,
    pub(crate) content_type: Option<String>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) redirects: Option<u32>,
    /// The statuses that the response may have; empty: any.
    pub(crate) expect: Vec<u16>,
    pub(crate) cache: Option<bool>,
    /// Part of a page: neither a step of the flow nor checked by its status.
    pub(crate) quiet: bool,
}

/// A value that becomes a request's body, with the option's name.
enum Content {
    Bytes(Bytes),
    Form(String),
    Json(Vec<u8>),
    Multipart(Multipart),
}

impl Spec {
    /// A GET without options.
    pub(crate) fn get(url: Endpoint) -> Self {
        Self {
            method: "GET".into(),
            url: Some(url),
            name: None,
            headers: Vec::new(),
            body: None,
            content_type: None,
            timeout: None,
            redirects: None,
            expect: Vec::new(),
            cache: None,
            quiet: false,
        }
    }

    /// Reads a request's method, URL and options. `name` is that option alone.
    ///
    /// # Errors
    /// The first option that is unknown or cannot be used, in words.
    pub(crate) fn read(
        lua: &Lua,
        method: &str,
        url: Endpoint,
        options: Option<&Table>,
        name: &Value,
    ) -> Result<Self, String> {
        if oroshi_client::Headers::new().set(method, "").is_err() || method == "CONNECT" {
            return Err(format!("the method is \"{}\": expected one such as \"GET\"", shown(method)));
        }
        let method = match method {
            "GET" => Cow::Borrowed("GET"),
            "POST" => Cow::Borrowed("POST"),
            other => Cow::Owned(other.to_owned()),
        };
        let mut spec = Self { method, ..Self::get(url) };
        if !name.is_nil() {
            spec.name = Some(text("name", name)?);
        }
        let Some(options) = options else { return Ok(spec) };
        let mut query = String::new();
        let mut content = None;
        let mut mistake = None;
        let each = options.for_each(|key: Value, value: Value| {
            if mistake.is_none() {
                let name = key.as_string().and_then(|key| key.to_str().ok());
                mistake = match name {
                    Some(name) => spec.set(lua, &name, &value, &mut query, &mut content).err(),
                    None => Some("options have names, as in { name = \"login\" }".to_owned()),
                };
            }
            Ok(())
        });
        each.map_err(|error| error.to_string())?;
        if let Some(mistake) = mistake {
            return Err(mistake);
        }
        if let Some(url) = spec.url.as_mut().filter(|_| !query.is_empty()) {
            let target = &mut url.target;
            target.push(if target.contains('?') { '&' } else { '?' });
            target.push_str(&query);
        }
        let (kind, bytes) = match content {
            None => return Ok(spec),
            Some(Content::Bytes(bytes)) => (None, bytes),
            Some(Content::Form(text)) => (Some("application/x-www-form-urlencoded".to_owned()), text.into()),
            Some(Content::Json(json)) => (Some("application/json".to_owned()), json.into()),
            Some(Content::Multipart(form)) => (Some(form.content_type()), form.into_body()),
        };
        (spec.content_type, spec.body) = (kind, Some(bytes));
        Ok(spec)
    }

    fn set(
        &mut self,
        lua: &Lua,
        key: &str,
        value: &Value,
        query: &mut String,
        content: &mut Option<Content>,
    ) -> Result<(), String> {
        const KEYS: [&str; 11] = [
            "name",
            "headers",
            "query",
            "body",
            "form",
            "json",
            "multipart",
            "timeout",
            "redirects",
            "expect",
            "cache",
        ];
        let new = match key {
            "name" => {
                self.name = Some(text(key, value)?);
                return Ok(());
            }
            "headers" => {
                self.headers = header_fields(key, value)?;
                return Ok(());
            }
            "query" => {
                form::encode(query, fields(key, value)?);
                return Ok(());
            }
            "timeout" => {
                self.timeout = Some(time(key, value)?).filter(|limit| !limit.is_zero());
                return self.timeout.map(|_| ()).ok_or_else(|| "timeout is 0: expected a time such as \"5s\"".into());
            }
            "redirects" => {
                self.redirects = Some(number(key, value, 0.0, 100.0)? as u32);
                return Ok(());
            }
            "expect" => {
                self.expect = statuses(value)?;
                return Ok(());
            }
            "cache" => {
                self.cache = Some(truth(key, value)?);
                return Ok(());
            }
            "body" => match value {
                Value::String(body) => Content::Bytes(Bytes::copy_from_slice(&body.as_bytes())),
                other => return Err(format!("body is {}: expected a text", kind(other))),
            },
            "form" => {
                let mut text = String::new();
                form::encode(&mut text, fields(key, value)?);
                Content::Form(text)
            }
            "json" => Content::Json(encode(lua, value).map_err(|why| format!("json: {why}"))?),
            "multipart" => Content::Multipart(multipart(value)?),
            _ => {
                let meant = nearest(key, KEYS).map(|near| format!("; did you mean `{near}`?"));
                return Err(format!("the option `{key}` is unknown{}", meant.unwrap_or_default()));
            }
        };
        if content.is_some() {
            return Err("body, form, json and multipart are all the body: expected one of them".to_owned());
        }
        *content = Some(new);
        Ok(())
    }
}

/// Takes a status, or a list of them.
fn statuses(value: &Value) -> Result<Vec<u16>, String> {
    let one = |value: &Value| number("expect", value, 100.0, 999.0).map(|status| status as u16);
    let Value::Table(list) = value else { return Ok(vec![one(value)?]) };
    let mut statuses = Vec::new();
    for value in list.sequence_values::<Value>().take(MOST_EXPECTED) {
        statuses.push(one(&value.map_err(|error| error.to_string())?)?);
    }
    if statuses.is_empty() {
        return Err("expect is an empty list: expected a status, or several as in {200, 304}".to_owned());
    }
    Ok(statuses)
}

/// Reads a form with files: texts, and files as `{ filename, type, body }`.
fn multipart(value: &Value) -> Result<Multipart, String> {
    let Value::Table(table) = value else {
        return Err(format!("multipart is {}: expected a table of fields", kind(value)));
    };
    let mut parts: Vec<(String, Value)> = Vec::new();
    for pair in table.pairs::<mlua::LuaString, Value>() {
        let (name, value) = pair.map_err(|_| "multipart has a field without a name".to_owned())?;
        parts.push((name.to_string_lossy(), value));
    }
    parts.sort_by(|one, other| one.0.cmp(&other.0));
    let mut form = Multipart::new();
    for (name, value) in parts {
        form = match &value {
            Value::Table(file) => {
                let part = |key: &str| file.get::<Value>(key).unwrap_or(Value::Nil);
                let Value::String(body) = part("body") else {
                    return Err(format!("multipart: the file `{}` has no body: expected a text", shown(&name)));
                };
                let filename = match part("filename") {
                    Value::String(filename) => Some(filename.to_string_lossy()),
                    _ => None,
                };
                let kind = match part("type") {
                    Value::Nil => "application/octet-stream".to_owned(),
                    kind => text("type", &kind)?,
                };
                let form = form.part(&name, filename.as_deref(), Some(&kind), body.as_bytes());
                if form.is_bad() {
                    return Err(format!("multipart: the type of `{}` has control characters", shown(&name)));
                }
                form
            }
            Value::String(body) => form.text(&name, body.as_bytes()),
            value => form.text(&name, text(&name, value)?),
        };
    }
    Ok(form)
}
