//! `gate.http`: a script's own requests, through the core's client, which keeps connections.

use std::time::Duration;

use mlua::{IntoLua, Lua, LuaString, Table, Value};
use oroshi_client::local::Client;

use super::args::{Args, CallError, kind};
use super::{Library, WaitResult, later};

/// The default timeout of a request.
const TIMEOUT: Duration = Duration::from_secs(2);

/// The largest response body after decompression, bytes.
const BODY_BYTES: u64 = 4 << 20;

/// The most bytes of fields in a head that a script makes.
pub(super) const HEADERS_BYTES: usize = 64 << 10;

/// A field's bytes beside name and value: a colon, a space, and the line's end.
const FIELD_BYTES: usize = 4;

/// The most concurrent requests of one core to one server; others wait.
const CONNECTIONS: usize = 100;

/// Makes the client for a core's scripts.
pub(crate) fn client() -> Client {
    let builder = oroshi_client::Client::builder().collect_bytes(BODY_BYTES).timeout(TIMEOUT);
    // These settings are valid.
    builder.connections_per_host(CONNECTIONS).build_local().unwrap_or_default()
}

/// A response.
#[derive(Debug)]
pub(crate) struct Received {
    status: u16,
    headers: Vec<(String, Vec<u8>)>,
    body: Vec<u8>,
}

/// A request.
struct Sent {
    method: String,
    url: String,
    headers: Vec<(String, Vec<u8>)>,
    body: Option<Vec<u8>>,
    timeout: Duration,
    redirects: u32,
}

pub(super) fn add(library: &Library<'_>) -> mlua::Result<()> {
    library.add("gate.http", |lua, host, args| {
        let sent = sent(lua, args)?;
        let client = host.tools()?.http.clone();
        later(async move {
            match exchange(&client, sent).await {
                Ok(received) => WaitResult::Response(received),
                Err(error) => {
                    let cause = error.cause();
                    WaitResult::Failure(format!("{error}: {cause}"), error.name())
                }
            }
        })
    })
}

async fn exchange(client: &Client, sent: Sent) -> Result<Received, oroshi_client::Error> {
    let mut request = client.request(sent.method, sent.url).timeout(sent.timeout).redirects(sent.redirects);
    for (name, value) in sent.headers {
        request = request.header(&name, value);
    }
    if let Some(body) = sent.body {
        request = request.body(body);
    }
    let response = request.send().await?;
    let status = response.status();
    let headers = response.headers().iter().map(|(name, value)| (name.to_ascii_lowercase(), value.to_vec())).collect();
    let body = response.bytes().await?;
    Ok(Received { status, headers, body })
}

fn sent(lua: &Lua, args: &mut Args) -> Result<Sent, CallError> {
    let given = args.next();
    let mut sent = Sent {
        method: "GET".to_owned(),
        url: String::new(),
        headers: Vec::new(),
        body: None,
        timeout: TIMEOUT,
        redirects: 0,
    };
    let table = match given {
        Value::String(url) => {
            sent.url = text(args, "url", &url)?;
            return Ok(sent);
        }
        Value::Table(table) => table,
        other => return Err(args.wrong("request", &format!("is {}: expected a URL or a table", kind(&other)))),
    };
    for pair in table.pairs::<Value, Value>() {
        let (name, value) = pair?;
        let name = match &name {
            Value::String(name) => name.to_string_lossy(),
            other => return Err(args.wrong("request", &format!("has a key that is {}", kind(other)))),
        };
        match (&*name, value) {
            ("url", Value::String(url)) => sent.url = text(args, "url", &url)?,
            ("method", Value::String(method)) => sent.method = text(args, "method", &method)?.to_ascii_uppercase(),
            ("headers", Value::Table(headers)) => sent.headers = fields(lua, args, &headers)?,
            ("body", Value::String(body)) => sent.body = Some(body.as_bytes().to_vec()),
            ("timeout", Value::Number(seconds)) => sent.timeout = seconds_of(args, seconds)?,
            ("timeout", Value::Integer(seconds)) => sent.timeout = seconds_of(args, seconds as f64)?,
            ("redirects", Value::Integer(most)) if (0..=20).contains(&most) => sent.redirects = most as u32,
            ("url" | "method" | "headers" | "body" | "timeout" | "redirects", value) => {
                return Err(args.wrong(&name, &format!("cannot be {}", kind(&value))));
            }
            _ => {
                let what = "is not known: expected url, method, headers, body, timeout or redirects";
                return Err(args.wrong(&format!("`{}`", name.escape_default()), what));
            }
        }
    }
    if sent.url.is_empty() {
        return Err(args.wrong("url", "is missing"));
    }
    Ok(sent)
}

fn seconds_of(args: &Args, seconds: f64) -> Result<Duration, CallError> {
    let time = Duration::try_from_secs_f64(seconds).ok().filter(|time| !time.is_zero());
    time.ok_or_else(|| args.wrong("timeout", &format!("is {seconds}: expected more than 0 seconds")))
}

fn text(args: &Args, name: &str, text: &LuaString) -> Result<String, CallError> {
    text.to_str().map(|text| text.to_owned()).map_err(|_| args.wrong(name, "is not UTF-8"))
}

/// Converts names and values; a value may be a list.
pub(super) fn fields(lua: &Lua, args: &Args, headers: &Table) -> Result<Vec<(String, Vec<u8>)>, CallError> {
    let (mut fields, mut bytes) = (Vec::new(), 0);
    for pair in headers.pairs::<Value, Value>() {
        let (name, value) = pair?;
        let Value::String(name) = name else {
            return Err(args.wrong("headers", &format!("has a name that is {}: expected a string", kind(&name))));
        };
        let name = text(args, "a header's name", &name)?;
        let (list, one) = match value {
            Value::Table(values) => (Some(values), None),
            value => (None, Some(value)),
        };
        let listed = list.iter().flat_map(|values| values.sequence_values::<Value>());
        for value in listed.chain(one.map(Ok)) {
            let value = value?;
            let wrong =
                || args.wrong(&format!("the header `{}`", name.escape_default()), "has a value that is no string");
            let is_text = matches!(value, Value::String(_) | Value::Integer(_) | Value::Number(_));
            let text = if is_text { lua.coerce_string(value)? } else { None };
            let text = text.ok_or_else(wrong)?;
            let text = text.as_bytes();
            bytes += name.len() + text.len() + FIELD_BYTES;
            if bytes > HEADERS_BYTES {
                return Err(args.wrong("headers", &format!("are too large: expected at most {HEADERS_BYTES} bytes")));
            }
            fields.push((name.clone(), text.to_vec()));
        }
    }
    Ok(fields)
}

impl Received {
    /// Converts to Lua, with names in lower case. Commas join values of the same name, except Set-Cookie, which is a
    /// list.
    pub(super) fn to_lua(&self, lua: &Lua) -> mlua::Result<Value> {
        let headers = lua.create_table_with_capacity(0, self.headers.len())?;
        for (name, value) in &self.headers {
            let value = lua.create_string(value)?;
            match (&**name, headers.raw_get(&**name)?) {
                ("set-cookie", Value::Table(known)) => known.raw_set(known.raw_len() + 1, value)?,
                ("set-cookie", _) => headers.raw_set(&**name, lua.create_sequence_from([value])?)?,
                (_, Value::String(known)) => {
                    let joined = [&known.as_bytes()[..], b", ", &value.as_bytes()[..]].concat();
                    headers.raw_set(&**name, lua.create_string(joined)?)?;
                }
                _ => headers.raw_set(&**name, value)?,
            }
        }
        let response = lua.create_table_with_capacity(0, 3)?;
        response.raw_set("status", self.status)?;
        response.raw_set("headers", headers)?;
        response.raw_set("body", lua.create_string(&self.body)?)?;
        response.into_lua(lua)
    }
}
