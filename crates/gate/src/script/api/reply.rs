//! What a script answers with: `gate.answer` and `gate.redirect`.

use mlua::{Lua, UserData, Value};
use oroshi_http1::encode;

use super::args::{Args, Wrong, kind};
use super::{Done, Library, http, now};

/// An answer that a hook has given, instead of the server's. Its fields can be sent; none of them frames the message. A hook returns it
/// as a userdata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    /// 200 to 599.
    pub(crate) status: u16,
    /// Names and values.
    pub(crate) headers: Vec<(String, Vec<u8>)>,
    pub(crate) body: Vec<u8>,
}

impl UserData for Reply {}

/// What says how the message is sent, which is the gateway's to write.
const OWN: [&str; 9] = [
    "connection",
    "content-length",
    "date",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Redirects have one of these.
const REDIRECTS: [u16; 5] = [301, 302, 303, 307, 308];

pub(super) fn add(library: &Library<'_>) -> mlua::Result<()> {
    library.add("gate.answer", |lua, _, args| {
        let given = args.next();
        let reply = match given {
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
                        return Err(Wrong::new("expected status, headers and body in the table, and nothing else"));
                    }
                }
                Reply { status, headers, body }
            }
            status => {
                let status = status_of(args, &status)?;
                let body = args.next();
                Reply { status, headers: Vec::new(), body: body_of(lua, args, body)? }
            }
        };
        finished(lua, args, reply)
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
        finished(lua, args, Reply { status, headers: vec![("Location".to_owned(), url)], body: Vec::new() })
    })
}

fn finished(lua: &Lua, args: &Args, reply: Reply) -> Result<Done, Wrong> {
    for (name, value) in &reply.headers {
        if OWN.iter().any(|own| own.eq_ignore_ascii_case(name)) {
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
    }
    now(lua, lua.create_userdata(reply)?)
}

fn status_of(args: &Args, status: &Value) -> Result<u16, Wrong> {
    let number = status
        .as_integer()
        .or_else(|| status.as_number().filter(|number| number.fract() == 0.0).map(|number| number as i64));
    let fine = number.filter(|number| (200..600).contains(number));
    let shown = || number.map_or_else(|| kind(status), |number| number.to_string());
    fine.map(|number| number as u16)
        .ok_or_else(|| args.wrong("status", &format!("is {}: expected 200 to 599", shown())))
}

fn body_of(lua: &Lua, args: &Args, body: Value) -> Result<Vec<u8>, Wrong> {
    match body {
        Value::Nil => Ok(Vec::new()),
        Value::String(text) => Ok(text.as_bytes().to_vec()),
        number @ (Value::Integer(_) | Value::Number(_)) => {
            Ok(lua.coerce_string(number)?.map(|text| text.as_bytes().to_vec()).unwrap_or_default())
        }
        other => Err(args.wrong("body", &format!("is {}: expected a string", kind(&other)))),
    }
}
