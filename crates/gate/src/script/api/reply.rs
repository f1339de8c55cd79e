//! A script's responses: `gate.answer` and `gate.redirect`.

use mlua::{Lua, LuaString, Table, UserData, Value};
use oroshi_http1::{encode, is_connection_field};

use super::args::{Args, CallError, kind};
use super::{FunctionResult, Library, http, now};

/// A response from a hook. Its fields are valid, and none frames the message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    /// 200 to 599.
    pub(crate) status: u16,
    /// Names and values.
    pub(crate) headers: Vec<(String, Vec<u8>)>,
    pub(crate) body: Vec<u8>,
}

/// A response in a script's state. Its parts are in a hidden table, so that it uses only the state's memory, which is
/// bounded and collected.
struct Answer;

impl UserData for Answer {}

impl Reply {
    /// Returns a script's response; `None` if the value is something else.
    pub(crate) fn of(value: &Value) -> mlua::Result<Option<Reply>> {
        let Some(answer) = value.as_userdata().filter(|data| data.is::<Answer>()) else { return Ok(None) };
        let parts: Table = answer.user_value()?;
        let body: Option<LuaString> = parts.raw_get("body")?;
        let mut headers = Vec::with_capacity(parts.raw_len() / 2);
        for at in (1..parts.raw_len()).step_by(2) {
            let (name, value): (String, LuaString) = (parts.raw_get(at)?, parts.raw_get(at + 1)?);
            headers.push((name, value.as_bytes().to_vec()));
        }
        let body = body.map_or_else(Vec::new, |body| body.as_bytes().to_vec());
        Ok(Some(Reply { status: parts.raw_get("status")?, headers, body }))
    }
}

/// The statuses of redirects.
const REDIRECTS: [u16; 5] = [301, 302, 303, 307, 308];

pub(super) fn add(library: &Library<'_>) -> mlua::Result<()> {
    library.add("gate.answer", |lua, _, args| {
        let given = args.next();
        let (status, headers, body) = match given {
            Value::Table(table) => {
                let status: Value = table.raw_get("status")?;
                let status = if status.is_nil() { 200 } else { status_of(args, &status)? };
                let body = body_of(lua, args, table.raw_get("body")?)?;
                let headers = match table.raw_get("headers")? {
                    Value::Nil => Vec::new(),
                    Value::Table(headers) => http::fields(lua, args, &headers)?,
                    other => return Err(args.wrong("headers", &format!("is {}: expected a table", kind(&other)))),
                };
                for pair in table.pairs::<Value, Value>() {
                    let (name, _) = pair?;
                    let known = name
                        .as_string()
                        .is_some_and(|name| ["status", "headers", "body"].iter().any(|known| *name == **known));
                    if !known {
                        return Err(CallError::new("expected status, headers and body in the table, and nothing else"));
                    }
                }
                (status, headers, body)
            }
            status => {
                let status = status_of(args, &status)?;
                let body = args.next();
                (status, Vec::new(), body_of(lua, args, body)?)
            }
        };
        finished(lua, args, status, &headers, body)
    })?;
    library.add("gate.redirect", |lua, _, args| {
        let url = args.text(lua, "url")?.as_bytes().to_vec();
        if url.len() > http::HEADERS_BYTES {
            return Err(args.wrong("url", &format!("is too large: expected at most {} bytes", http::HEADERS_BYTES)));
        }
        let status = args.next();
        let status = if status.is_nil() { 302 } else { status_of(args, &status)? };
        if !REDIRECTS.contains(&status) {
            return Err(args.wrong("status", &format!("is {status}: expected 301, 302, 303, 307 or 308")));
        }
        if url.is_empty() || !url.iter().all(u8::is_ascii_graphic) {
            return Err(
                args.wrong("url", "is empty or has bytes that a URL cannot have: expected them percent-encoded")
            );
        }
        finished(lua, args, status, &[("Location".to_owned(), url)], None)
    })
}

fn finished(
    lua: &Lua,
    args: &Args,
    status: u16,
    headers: &[(String, Vec<u8>)],
    body: Option<LuaString>,
) -> Result<FunctionResult, CallError> {
    let parts = lua.create_table_with_capacity(headers.len() * 2, 2)?;
    parts.raw_set("status", status)?;
    parts.raw_set("body", body)?;
    for (index, (name, value)) in headers.iter().enumerate() {
        if name.eq_ignore_ascii_case("date") || is_connection_field(name) {
            return Err(args.wrong(
                &format!("the header `{name}`"),
                "says how the message is sent, which is the gateway's to write",
            ));
        }
        if let Err(error) = encode::header(&mut Vec::new(), name, value) {
            return Err(
                args.wrong(&format!("the header `{}`", name.escape_default()), &format!("cannot be sent: {error}"))
            );
        }
        parts.raw_set(index * 2 + 1, &**name)?;
        parts.raw_set(index * 2 + 2, lua.create_string(value)?)?;
    }
    let answer = lua.create_userdata(Answer)?;
    answer.set_user_value(parts)?;
    now(lua, answer)
}

fn status_of(args: &Args, status: &Value) -> Result<u16, CallError> {
    let number = status
        .as_integer()
        .or_else(|| status.as_number().filter(|number| number.fract() == 0.0).map(|number| number as i64));
    let fine = number.filter(|number| (200..600).contains(number));
    let shown = || number.map_or_else(|| kind(status), |number| number.to_string());
    fine.map(|number| number as u16)
        .ok_or_else(|| args.wrong("status", &format!("is {}: expected 200 to 599", shown())))
}

fn body_of(lua: &Lua, args: &Args, body: Value) -> Result<Option<LuaString>, CallError> {
    match body {
        Value::Nil => Ok(None),
        Value::String(text) => Ok(Some(text)),
        number @ (Value::Integer(_) | Value::Number(_)) => Ok(lua.coerce_string(number)?),
        other => Err(args.wrong("body", &format!("is {}: expected a string", kind(&other)))),
    }
}
