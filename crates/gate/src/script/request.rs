//! A request for a script: a copy, made on routes with scripts.

use std::cell::RefCell;
use std::net::IpAddr;
use std::rc::{Rc, Weak};

use mlua::{AnyUserData, Lua, MetaMethod, UserData, UserDataFields, UserDataMethods, Value};
use oroshi_server::Exchange;
use oroshi_words::query;

use super::fields::{Fields, Headers, no_such_part, over};
use crate::forward::{RequestId, is_path};

/// The longest target that a script can set, bytes: the default of `limits.target-bytes`.
const TARGET_BYTES: usize = 8192;

/// The parts of `request`.
const PARTS: [&str; 16] = [
    "args", "client", "cookie", "ctx", "fields", "headers", "host", "id", "method", "path", "query", "route", "scheme",
    "target", "values", "version",
];

/// A request's data for scripts, with their changes. Clones share it, also between scripts.
#[derive(Clone, Debug)]
pub(crate) struct Request(Rc<Inner>);

/// A request's object in a state. It holds a weak reference: the state cannot see how much memory is behind it, and
/// would collect it late.
#[derive(Debug)]
pub(crate) struct RequestView(Weak<Inner>);

#[derive(Debug)]
struct Inner {
    method: Box<str>,
    target: Box<str>,
    path: Box<str>,
    query: Box<str>,
    host: Box<str>,
    route: Box<str>,
    scheme: &'static str,
    version: &'static str,
    client: Option<IpAddr>,
    id: Option<RequestId>,
    fields: Rc<Fields>,
    /// The path and query that replace the client's.
    sent: RefCell<Option<Box<str>>>,
}

impl Request {
    /// Copies a request. `path` is the plain reading; `query` has no `?`.
    pub(crate) fn new(
        exchange: &Exchange<'_>,
        (host, path, query): (&str, &str, &str),
        route: &str,
        id: Option<RequestId>,
    ) -> Self {
        let head = &exchange.head;
        Request(Rc::new(Inner {
            method: head.method.into(),
            target: head.target.into(),
            path: path.into(),
            query: query.into(),
            host: host.into(),
            route: route.into(),
            scheme: if exchange.is_tls() { "https" } else { "http" },
            version: head.version.number(),
            client: exchange.remote().map(|remote| remote.ip().to_canonical()),
            id,
            fields: Rc::new(Fields::new(head.headers.as_bytes().into())),
            sent: RefCell::default(),
        }))
    }

    /// Makes a GET of `/`.
    #[cfg(test)]
    pub(super) fn plain() -> Self {
        Request(Rc::new(Inner {
            method: "GET".into(),
            target: "/".into(),
            path: "/".into(),
            query: "".into(),
            host: "a".into(),
            route: "r".into(),
            scheme: "http",
            version: "1.1",
            client: None,
            id: None,
            fields: Rc::new(Fields::new(Rc::new([]))),
            sent: RefCell::default(),
        }))
    }

    /// Makes the object for a state.
    pub(crate) fn view(&self) -> RequestView {
        RequestView(Rc::downgrade(&self.0))
    }

    /// Returns the fields with the script's changes.
    pub(crate) fn fields(&self) -> &Fields {
        &self.0.fields
    }

    /// Returns the path and query that the script has set, if any.
    pub(crate) fn target(&self) -> Option<Box<str>> {
        self.0.sent.borrow().clone()
    }
}

impl RequestView {
    fn get(&self) -> mlua::Result<Rc<Inner>> {
        self.0.upgrade().ok_or_else(over)
    }
}

impl UserData for RequestView {
    fn add_fields<F: UserDataFields<Self>>(fields: &mut F) {
        fields.add_field_method_get("method", |lua, this| lua.create_string(&*this.get()?.method));
        fields.add_field_method_get("path", |lua, this| lua.create_string(&*this.get()?.path));
        fields.add_field_method_get("query", |lua, this| lua.create_string(&*this.get()?.query));
        fields.add_field_method_get("host", |lua, this| lua.create_string(&*this.get()?.host));
        fields.add_field_method_get("route", |lua, this| lua.create_string(&*this.get()?.route));
        fields.add_field_method_get("scheme", |lua, this| lua.create_string(this.get()?.scheme));
        fields.add_field_method_get("version", |lua, this| lua.create_string(this.get()?.version));
        fields.add_field_method_get("client", |_, this| Ok(this.get()?.client.map(|address| address.to_string())));
        fields.add_field_method_get("id", |lua, this| {
            this.get()?.id.as_ref().map(|id| lua.create_string(id.as_str())).transpose()
        });
        fields.add_field_method_get("target", |lua, this| {
            lua.create_string(this.get()?.sent.borrow().as_deref().unwrap_or(&this.get()?.target))
        });
        fields.add_field_method_set("target", |_, this, target: String| {
            if this.get()?.fields.is_sealed() {
                return Err(mlua::Error::runtime("the target cannot be changed any more: the request has gone on"));
            }
            if target.len() > TARGET_BYTES {
                let length = target.len();
                return Err(mlua::Error::runtime(format!(
                    "the target has {length} bytes: expected at most \
                    {TARGET_BYTES}"
                )));
            }
            if !target.is_ascii() || !is_path(&target) {
                return Err(mlua::Error::runtime(format!(
                    "{target:?} cannot be asked for: expected a path that begins with /, perhaps with a query, \
                     without white space and #, in ASCII (with escapes for the rest)"
                )));
            }
            this.get()?.sent.replace(Some(target.into()));
            Ok(())
        });
        fields.add_field_function_get("headers", |lua, this| {
            kept(&this, "headers", |request: &RequestView| {
                lua.create_userdata(Headers(Rc::downgrade(&request.get()?.fields))).map(Value::UserData)
            })
        });
        fields.add_field_function_get("args", |lua, this| {
            kept(&this, "args", |request: &RequestView| arguments(lua, &request.get()?.query))
        });
        fields.add_field_function_get("ctx", |lua, this| {
            kept(&this, "ctx", |_: &RequestView| lua.create_table().map(Value::Table))
        });
    }

    fn add_methods<M: UserDataMethods<Self>>(methods: &mut M) {
        methods.add_method("values", |lua, this, name: mlua::LuaString| this.get()?.fields.all(lua, &name.as_bytes()));
        methods.add_method("fields", |lua, this, ()| this.get()?.fields.listed(lua));
        methods
            .add_method("cookie", |lua, this, name: mlua::LuaString| this.get()?.fields.cookie(lua, &name.as_bytes()));
        // Called for unknown parts.
        methods.add_meta_method(MetaMethod::Index, |_, _, asked: Value| {
            Err::<Value, _>(no_such_part("request", &asked, &PARTS))
        });
    }
}

/// Returns a part that is made at first access and then kept.
pub(super) fn kept<T: 'static>(
    object: &AnyUserData,
    name: &str,
    make: impl FnOnce(&T) -> mlua::Result<Value>,
) -> mlua::Result<Value> {
    let known: Value = object.named_user_value(name)?;
    if !known.is_nil() {
        return Ok(known);
    }
    let made = make(&*object.borrow::<T>()?)?;
    object.set_named_user_value(name, &made)?;
    Ok(made)
}

/// Decodes a query's parameters by name, keeping the first of each name. Invalid escapes stay unchanged.
fn arguments(lua: &Lua, text: &str) -> mlua::Result<Value> {
    let table = lua.create_table()?;
    for pair in text.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = match query::pairs(pair).next() {
            Some(Ok(decoded)) => decoded,
            _ => {
                let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
                (name.into(), value.into())
            }
        };
        let name = lua.create_string(&*name)?;
        if !table.contains_key(&name)? {
            table.raw_set(name, lua.create_string(&*value)?)?;
        }
    }
    Ok(Value::Table(table))
}
