//! A response's head for a script, before it goes to the client.

use std::cell::Cell;
use std::rc::{Rc, Weak};

use mlua::{MetaMethod, UserData, UserDataFields, UserDataMethods, Value};

use super::fields::{Fields, Headers, no_such_part, over};
use super::request::kept;
use crate::forward::InspectedHead;

/// A response's head, with the script's changes.
#[derive(Debug)]
pub(crate) struct Response(Rc<Inner>);

/// The response's object in a state. It becomes invalid after the hook.
#[derive(Debug)]
pub(crate) struct ResponseView(Weak<Inner>);

#[derive(Debug)]
struct Inner {
    status: Cell<u16>,
    length: Option<u64>,
    has_body: bool,
    fields: Rc<Fields>,
}

impl Response {
    pub(crate) fn new(head: InspectedHead) -> Self {
        Response(Rc::new(Inner {
            status: Cell::new(head.status),
            length: head.length,
            has_body: head.has_body,
            fields: Rc::new(Fields::new(head.lines)),
        }))
    }

    /// Makes the object for a state.
    pub(crate) fn view(&self) -> ResponseView {
        ResponseView(Rc::downgrade(&self.0))
    }

    /// Returns the status with the script's change.
    pub(crate) fn status(&self) -> u16 {
        self.0.status.get()
    }

    /// Returns the fields with the script's changes.
    pub(crate) fn fields(&self) -> &Fields {
        &self.0.fields
    }
}

impl ResponseView {
    fn get(&self) -> mlua::Result<Rc<Inner>> {
        self.0.upgrade().ok_or_else(over)
    }
}

impl UserData for ResponseView {
    fn add_fields<F: UserDataFields<Self>>(fields: &mut F) {
        fields.add_field_method_get("status", |_, this| Ok(this.get()?.status.get()));
        fields.add_field_method_set("status", |_, this, status: Value| {
            let number = status.as_u32().and_then(|status| u16::try_from(status).ok());
            match number.filter(|status| (200..600).contains(status)) {
                Some(204 | 304) if this.get()?.has_body => Err(mlua::Error::runtime(
                    "an answer of 204 or 304 has no body, and this one may have: expected `return gate.answer{ status \
                     = ... }` in its place",
                )),
                Some(status) => {
                    this.get()?.status.set(status);
                    Ok(())
                }
                None => Err(mlua::Error::runtime(format!(
                    "{} is no status of an answer: expected 200 to 599",
                    status.to_string().unwrap_or_default()
                ))),
            }
        });
        fields.add_field_method_get("length", |_, this| Ok(this.get()?.length.map(|length| length as f64)));
        fields.add_field_function_get("headers", |lua, this| {
            kept(&this, "headers", |response: &ResponseView| {
                lua.create_userdata(Headers(Rc::downgrade(&response.get()?.fields))).map(Value::UserData)
            })
        });
    }

    fn add_methods<M: UserDataMethods<Self>>(methods: &mut M) {
        methods.add_method("values", |lua, this, name: mlua::LuaString| this.get()?.fields.all(lua, &name.as_bytes()));
        methods.add_method("fields", |lua, this, ()| this.get()?.fields.listed(lua));
        // Called for unknown parts.
        methods.add_meta_method(MetaMethod::Index, |_, _, asked: Value| {
            Err::<Value, _>(no_such_part("response", &asked, &["fields", "headers", "length", "status", "values"]))
        });
    }
}
