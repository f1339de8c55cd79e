//! A head's fields for a script, with the script's changes.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

use mlua::{FromLua, Lua, MetaMethod, UserData, UserDataMethods, Value};

use crate::forward::Edits;

/// Limits on a script's changes to one head.
const MOST_NAMES: usize = 100;
const MOST_BYTES: usize = 64 * 1024;

/// The fields of a head.
#[derive(Debug)]
pub(crate) struct Fields {
    /// Field lines that http1 has validated, each with its CRLF.
    lines: Rc<[u8]>,
    /// Changed fields by name. An empty list removes the field.
    changes: RefCell<Vec<(String, Vec<Vec<u8>>)>>,
    bytes: Cell<usize>,
    /// Whether the head was sent, so that changes would be too late.
    gone: Cell<bool>,
}

/// A field's values from a script: nil, one value, or a list.
pub(super) struct Values(Vec<Vec<u8>>);

impl Fields {
    pub(crate) fn new(lines: Rc<[u8]>) -> Self {
        Fields { lines, changes: RefCell::default(), bytes: Cell::new(0), gone: Cell::new(false) }
    }

    /// Refuses changes from now on.
    pub(crate) fn seal(&self) {
        self.gone.set(true);
    }

    pub(super) fn is_sealed(&self) -> bool {
        self.gone.get()
    }

    /// Returns the script's changes.
    pub(crate) fn edits(&self) -> Edits {
        let mut edits = Edits::none();
        for (name, values) in &*self.changes.borrow() {
            // `set` has validated each change.
            let _ = edits.remove(name);
            for value in values {
                let _ = edits.add(name, value);
            }
        }
        edits
    }

    /// Calls `each` with every value of a field, until it returns false.
    fn values(&self, name: &[u8], mut each: impl FnMut(&[u8]) -> bool) {
        let changes = self.changes.borrow();
        if let Some((_, values)) = changes.iter().find(|(known, _)| known.as_bytes().eq_ignore_ascii_case(name)) {
            let _ = values.iter().all(|value| each(value));
            return;
        }
        let _ = fields(&self.lines).filter(|(known, _)| known.eq_ignore_ascii_case(name)).all(|(_, value)| each(value));
    }

    /// Returns the first value of a field.
    pub(super) fn first(&self, lua: &Lua, name: &[u8]) -> mlua::Result<Value> {
        let mut first = Ok(Value::Nil);
        self.values(name, |value| {
            first = lua.create_string(value).map(Value::String);
            false
        });
        first
    }

    /// Returns a list of all values of a field.
    pub(super) fn all(&self, lua: &Lua, name: &[u8]) -> mlua::Result<Value> {
        let mut values = Vec::new();
        self.values(name, |value| {
            values.push(lua.create_string(value));
            true
        });
        Ok(Value::Table(lua.create_sequence_from(values.into_iter().collect::<mlua::Result<Vec<_>>>()?)?))
    }

    /// Returns names and values of all fields, in the order of sending.
    pub(super) fn listed(&self, lua: &Lua) -> mlua::Result<Value> {
        let list = lua.create_table()?;
        let add = |name: &[u8], value: &[u8]| {
            let field = lua.create_table()?;
            field.raw_set("name", lua.create_string(name)?)?;
            field.raw_set("value", lua.create_string(value)?)?;
            list.raw_push(field)
        };
        let changes = self.changes.borrow();
        for (name, value) in fields(&self.lines) {
            if !changes.iter().any(|(changed, _)| changed.as_bytes().eq_ignore_ascii_case(name)) {
                add(name, value)?;
            }
        }
        for (name, values) in &*changes {
            values.iter().try_for_each(|value| add(name.as_bytes(), value))?;
        }
        Ok(Value::Table(list))
    }

    /// Returns a cookie's value from the request's `Cookie` fields (RFC 6265, section 4.2.1).
    pub(super) fn cookie(&self, lua: &Lua, name: &[u8]) -> mlua::Result<Value> {
        let mut found = Ok(Value::Nil);
        self.values(b"cookie", |value| {
            for pair in value.split(|&byte| byte == b';').map(<[u8]>::trim_ascii) {
                let mut parts = pair.splitn(2, |&byte| byte == b'=');
                if let (Some(known), Some(value)) = (parts.next(), parts.next())
                    && known == name
                {
                    found = lua.create_string(value).map(Value::String);
                    return false;
                }
            }
            true
        });
        found
    }

    /// Replaces a field's values.
    fn set(&self, name: &str, values: Vec<Vec<u8>>) -> mlua::Result<()> {
        if self.gone.get() {
            return Err(mlua::Error::runtime(format!("{name} cannot be changed any more: its head has gone on")));
        }
        let mut edits = Edits::none();
        edits.remove(name).map_err(mlua::Error::runtime)?;
        for value in &values {
            edits.add(name, value).map_err(mlua::Error::runtime)?;
        }
        let mut changes = self.changes.borrow_mut();
        let bytes = self.bytes.get() + edits.lines().len();
        let known = changes.iter().position(|(known, _)| known.eq_ignore_ascii_case(name));
        if bytes > MOST_BYTES || (known.is_none() && changes.len() == MOST_NAMES) {
            return Err(mlua::Error::runtime(format!(
                "{name} is one change too many: expected at most {MOST_NAMES} fields with {MOST_BYTES} bytes"
            )));
        }
        self.bytes.set(bytes);
        match known {
            Some(place) => changes[place].1 = values,
            None => changes.push((name.to_owned(), values)),
        }
        Ok(())
    }
}

/// Returns names and values of field lines.
fn fields(lines: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    lines.split(|&byte| byte == b'\n').filter_map(|line| {
        let colon = memchr::memchr(b':', line)?;
        Some((&line[..colon], line[colon + 1..].trim_ascii()))
    })
}

impl FromLua for Values {
    fn from_lua(value: Value, lua: &Lua) -> mlua::Result<Self> {
        let text = |value: Value| match value {
            Value::String(_) | Value::Integer(_) | Value::Number(_) => {
                Ok(lua.coerce_string(value)?.map(|text| text.as_bytes().to_vec()).unwrap_or_default())
            }
            other => Err(mlua::Error::runtime(format!(
                "a {} is no value of a field: expected a string, a number, nil, or a list of strings",
                other.type_name()
            ))),
        };
        Ok(Values(match value {
            Value::Nil => Vec::new(),
            Value::Table(list) => {
                let (mut values, mut bytes) = (Vec::new(), 0);
                for value in list.sequence_values::<Value>() {
                    let value = text(value?)?;
                    bytes += value.len() + 1;
                    if bytes > MOST_BYTES {
                        let what = format!("these values are too large: expected at most {MOST_BYTES} bytes");
                        return Err(mlua::Error::runtime(what));
                    }
                    values.push(value);
                }
                values
            }
            one => vec![text(one)?],
        }))
    }
}

/// `request.headers` and `response.headers`. They hold a weak reference, so that uncollected objects keep no head
/// alive.
pub(super) struct Headers(pub(super) Weak<Fields>);

impl Headers {
    fn get(&self) -> mlua::Result<Rc<Fields>> {
        self.0.upgrade().ok_or_else(over)
    }
}

/// Makes the error for an unknown part of an object.
pub(super) fn no_such_part(object: &str, asked: &Value, parts: &[&str]) -> mlua::Error {
    let Some(name) = asked.as_string().map(mlua::LuaString::to_string_lossy) else {
        return mlua::Error::runtime(format!("{object} has named parts alone: expected one of {}", parts.join(", ")));
    };
    let shown: String = name.chars().take(64).collect();
    let hint = match oroshi_words::nearest(&shown, parts.iter().copied()) {
        Some(near) => format!("did you mean {object}.{near}?"),
        None => format!("expected one of {}", parts.join(", ")),
    };
    mlua::Error::runtime(format!("there is no {object}.{}: {hint}", shown.escape_debug()))
}

/// Makes the error for an object that a script kept beyond its request.
pub(super) fn over() -> mlua::Error {
    mlua::Error::runtime("the request is over: expected what is needed of it to be copied before")
}

impl UserData for Headers {
    fn add_methods<M: UserDataMethods<Self>>(methods: &mut M) {
        methods.add_meta_method(MetaMethod::Index, |lua, this, name: mlua::LuaString| {
            this.get()?.first(lua, &name.as_bytes())
        });
        methods.add_meta_method(MetaMethod::NewIndex, |_, this, (name, values): (String, Values)| {
            this.get()?.set(&name, values.0)
        });
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use oroshi_script::Engine;

    use super::*;

    const LINES: &[u8] = b"Host: a\r\nX-A:  1 \r\nx-a: 2\r\nCookie: a=b; c=d=e;f\r\n";

    fn state() -> (Engine, Rc<Fields>) {
        let engine = Engine::new(Path::new("fields.lua"), Duration::from_secs(60)).unwrap();
        let fields = Rc::new(Fields::new(LINES.into()));
        engine.lua().globals().set("headers", Headers(Rc::downgrade(&fields))).unwrap();
        (engine, fields)
    }

    #[test]
    fn what_is_changed_is_read_as_changed_and_goes_on_as_changed() {
        let (engine, fields) = state();
        let script = r#"
            assert(headers["x-A"] == "1" and headers.HOST == "a" and headers.none == nil)
            headers["X-A"] = 3
            headers["X-B"] = { "4", "5" }
            headers["x-c"] = "6"
            headers["X-C"] = nil
            assert(headers["x-a"] == "3" and headers["x-b"] == "4" and headers["x-c"] == nil)
        "#;
        engine.load_source(script.as_bytes()).unwrap();
        let edits = fields.edits();
        assert_eq!(edits.lines(), b"X-A: 3\r\nX-B: 4\r\nX-B: 5\r\n");
        assert!(edits.drops("X-a") && edits.drops("X-b") && edits.drops("X-C") && !edits.drops("Cookie"));
        let lua = engine.lua();
        let text = |value: Value| value.as_string().unwrap().to_str().unwrap().to_owned();
        assert_eq!(text(fields.cookie(lua, b"c").unwrap()), "d=e");
        assert!(fields.cookie(lua, b"f").unwrap().is_nil());
        let listed = fields.listed(lua).unwrap();
        assert_eq!(listed.as_table().unwrap().raw_len(), 5);
        drop(fields);
        let error = engine.load_source(b"return headers.Host").unwrap_err();
        assert!(error.what.contains("the request is over"), "{error}");
    }

    #[test]
    fn nothing_can_be_smuggled_in() {
        for bad in [
            r#"headers["Host"] = "b""#,
            r#"headers["content-length"] = "1""#,
            r#"headers["Transfer-Encoding"] = nil"#,
            r#"headers["Connection"] = "close""#,
            r#"headers["X-A"] = "1\r\nX-B: 2""#,
            r#"headers["X-A"] = "1\n""#,
            r#"headers["X-A"] = "\0""#,
            r#"headers["X-A"] = { "1", "2\r3" }"#,
            r#"headers["X-A\r\nX-B"] = "1""#,
            r#"headers["X A"] = "1""#,
            r#"headers[""] = "1""#,
            r#"headers["X-A"] = true"#,
            r#"headers["X-A"] = ("x"):rep(100000)"#,
            r#"local s, t = ("x"):rep(1e6), {} for i = 1, 1000 do t[i] = s end headers["X-A"] = t"#,
        ] {
            let (engine, fields) = state();
            let error = engine.load_source(bad.as_bytes()).unwrap_err();
            assert_eq!(error.place, "fields.lua:1", "{bad}: {error}");
            assert!(fields.edits().is_empty(), "{bad}");
        }
        let (engine, fields) = state();
        assert!(engine.load_source(b"for i = 1, 101 do headers['X-' .. i] = i end").is_err());
        assert!(fields.edits().drops("X-100") && !fields.edits().drops("X-101"));
        fields.seal();
        let error = engine.load_source(b"headers['X-1'] = '2'").unwrap_err();
        assert!(error.what.contains("has gone on"), "{error}");
    }
}
