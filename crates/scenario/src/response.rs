//! A response, as scripts read it.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use mlua::{Lua, LuaString, UserData, UserDataFields, UserDataMethods, Value};
use oroshi_client::Headers;
use oroshi_net::Endpoint;
use oroshi_script::library::{Json, JsonError};

use crate::request::Attempt;

/// A response, or the failure to get one.
#[derive(Debug)]
pub(crate) struct Response {
    /// 0: there is no response.
    pub(crate) status: u16,
    pub(crate) error: Option<&'static str>,
    pub(crate) headers: Option<Rc<Headers>>,
    pub(crate) body: Bytes,
    /// The last request of the chain; `None`: there was none.
    last: Option<Rc<Attempt>>,
    took: Duration,
    redirects: u32,
    pub(crate) cached: bool,
    /// Bytes that scripts of the thread hold.
    held: Rc<Cell<usize>>,
}

impl Response {
    #[allow(clippy::too_many_arguments)] // The parts of a response, from its one maker.
    pub(crate) fn new(
        status: u16,
        error: Option<&'static str>,
        headers: Option<Rc<Headers>>,
        body: Bytes,
        last: Option<Rc<Attempt>>,
        took: Duration,
        redirects: u32,
        cached: bool,
        held: &Rc<Cell<usize>>,
    ) -> Self {
        held.set(held.get() + body.len());
        Self { status, error, headers, body, last, took, redirects, cached, held: Rc::clone(held) }
    }

    /// Whether there is a response with a status below 400.
    pub(crate) fn is_ok(&self) -> bool {
        self.error.is_none() && (200..400).contains(&self.status)
    }

    /// Returns the URL, the last one after redirects.
    pub(crate) fn url(&self) -> Option<&Endpoint> {
        self.last.as_ref().map(|last| &last.url)
    }

    /// Returns a field's value.
    pub(crate) fn header(&self, name: &str) -> Option<&[u8]> {
        self.headers.as_ref()?.get(name)
    }
}

/// Reads JSON: its value, or nil and why there is none.
///
/// # Errors
/// There is no memory for it.
pub(crate) fn decode(lua: &Lua, text: &[u8]) -> mlua::Result<(Value, Option<String>)> {
    let json = lua.app_data_ref::<Json>().ok_or_else(|| mlua::Error::runtime("the state reads no JSON: a defect"))?;
    match json.decode(lua, text) {
        Ok(value) => Ok((value, None)),
        Err(JsonError::Lua(error)) => Err(error),
        Err(JsonError::Wrong(why)) => Ok((Value::Nil, Some(why))),
    }
}

/// Writes a value as JSON.
///
/// # Errors
/// What is wrong with the value, in words.
pub(crate) fn encode(lua: &Lua, value: &Value) -> Result<Vec<u8>, String> {
    let json = lua.app_data_ref::<Json>().ok_or("the state writes no JSON: a defect")?;
    json.encode(value).map_err(|error| error.to_string())
}

impl Drop for Response {
    fn drop(&mut self) {
        self.held.set(self.held.get().saturating_sub(self.body.len()));
    }
}

impl UserData for Response {
    fn add_fields<F: UserDataFields<Self>>(fields: &mut F) {
        fields.add_field_method_get("status", |_, it| Ok(it.status));
        fields.add_field_method_get("ok", |_, it| Ok(it.is_ok()));
        fields.add_field_method_get("error", |_, it| Ok(it.error));
        fields.add_field_method_get("body", |lua, it| lua.create_string(&it.body));
        fields.add_field_method_get("url", |_, it| Ok(it.url().map(ToString::to_string)));
        fields.add_field_method_get("time", |_, it| Ok(it.took.as_secs_f64()));
        fields.add_field_method_get("redirects", |_, it| Ok(it.redirects));
        fields.add_field_method_get("cached", |_, it| Ok(it.cached));
        fields.add_field_method_get("headers", |lua, it| {
            let table = lua.create_table()?;
            for (name, value) in it.headers.iter().flat_map(|headers| headers.iter()) {
                let name = name.to_ascii_lowercase();
                let value = match table.raw_get::<Option<LuaString>>(name.as_str())? {
                    Some(before) => lua.create_string([&before.as_bytes(), &b", "[..], value].concat())?,
                    None => lua.create_string(value)?,
                };
                table.raw_set(name, value)?;
            }
            Ok(table)
        });
    }

    fn add_methods<M: UserDataMethods<Self>>(methods: &mut M) {
        methods.add_method("header", |lua, it, name: LuaString| {
            it.header(&name.to_string_lossy()).map(|value| lua.create_string(value)).transpose()
        });
        // A server may send anything: the script decides.
        methods.add_method("json", |lua, it, ()| decode(lua, &it.body));
        methods.add_meta_method("__tostring", |_, it, ()| {
            Ok(format!("response {} {}", it.status, it.url().map(ToString::to_string).unwrap_or_default()))
        });
    }
}
