//! `gate.json_encode`, `gate.json_decode`: straight between text and the state's own values, which its memory limit bounds.

use std::fmt;

use mlua::{Function, IntoLua, Lua, Table, Value};
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};

use super::args::{Wrong, kind};
use super::{Library, now};

/// Tables within tables that are written, at most. As many are read.
const MOST_LEVELS: usize = 100;

/// The longest text that is written, bytes.
const MOST_BYTES: usize = 8 << 20;

pub(super) fn add(library: &Library<'_>) -> mlua::Result<()> {
    // What says that a table is a list, although it may be empty.
    let list = library.lua.create_table()?;
    library.own.raw_set("list", &list)?;
    // In Lua: mlua's own way to a metatable panics where a state can hold no more of Rust's values.
    let is_list =
        "local list, getmetatable = ..., getmetatable return function(value) return getmetatable(value) == list end";
    let is_list: Function = library.lua.load(is_list).set_name("=[gate]").call(&list)?;
    library.add("gate.json_encode", move |lua, _, args| {
        let mut out = Vec::new();
        encode(&mut out, &args.next(), &is_list, 0).map_err(|why| Wrong::new(format!("value: {why}")))?;
        now(lua, lua.create_string(out)?)
    })?;
    library.add("gate.json_decode", move |lua, _, args| {
        let text = args.text(lua, "text")?;
        let bytes = text.as_bytes();
        let mut reader = serde_json::Deserializer::from_slice(&bytes);
        let read = Json { lua, list: &list }.deserialize(&mut reader).and_then(|value| reader.end().map(|()| value));
        match read {
            Ok(value) => now(lua, value),
            Err(error) => now(lua, (Value::Nil, format!("not JSON as expected: {error}"), "json")),
        }
    })
}

fn encode(out: &mut Vec<u8>, value: &Value, is_list: &Function, level: usize) -> Result<(), String> {
    // One table may be many times in a value, and is written as many times.
    if out.len() > MOST_BYTES {
        return Err(format!("it is too large: expected at most {MOST_BYTES} bytes of JSON"));
    }
    match value {
        Value::Nil => out.extend_from_slice(b"null"),
        Value::Boolean(true) => out.extend_from_slice(b"true"),
        Value::Boolean(false) => out.extend_from_slice(b"false"),
        Value::Integer(number) => out.extend_from_slice(number.to_string().as_bytes()),
        Value::Number(number) if !number.is_finite() => return Err(format!("{number} cannot be written as JSON")),
        Value::Number(number) => out.extend_from_slice(number.to_string().as_bytes()),
        Value::String(text) => string(out, &text.as_bytes())?,
        Value::Table(_) if level == MOST_LEVELS => {
            return Err(format!("there are more than {MOST_LEVELS} tables within tables, or one that contains itself"));
        }
        Value::Table(table) => {
            let length = table.raw_len();
            // Keys alone, as bytes: a state has room for some thousands of values that Rust holds.
            let mut keys = Vec::new();
            for pair in table.pairs::<Value, Value>() {
                keys.push(Key::of(&pair.map_err(|error| error.to_string())?.0));
            }
            let is_marked = || is_list.call::<bool>(table).map_err(|error| error.to_string());
            if length > 0 && keys.len() == length || keys.is_empty() && is_marked()? {
                for index in 1..=length {
                    out.push(if index == 1 { b'[' } else { b',' });
                    let value: Value = table.raw_get(index).map_err(|error| error.to_string())?;
                    encode(out, &value, is_list, level + 1)?;
                }
                out.extend_from_slice(if length == 0 { b"[]" } else { b"]" });
                return Ok(());
            }
            let mut keys = keys.into_iter().collect::<Result<Vec<_>, _>>()?;
            // One text for one value, in whatever order its table is.
            keys.sort_by(|a, b| a.text.cmp(&b.text));
            out.push(b'{');
            for (index, key) in keys.iter().enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                string(out, &key.text)?;
                out.push(b':');
                let value: mlua::Result<Value> = match key.number {
                    Some(number) => table.raw_get(number),
                    None => table.raw_get(mlua::BString::from(&*key.text)),
                };
                encode(out, &value.map_err(|error| error.to_string())?, is_list, level + 1)?;
            }
            out.push(b'}');
        }
        other => return Err(format!("{} cannot be written as JSON", kind(other))),
    }
    Ok(())
}

/// A key of a table.
struct Key {
    text: Vec<u8>,
    /// It is this number, written out.
    number: Option<f64>,
}

impl Key {
    fn of(key: &Value) -> Result<Self, String> {
        let of = |number: f64| Key { text: number.to_string().into_bytes(), number: Some(number) };
        match key {
            Value::String(key) => Ok(Key { text: key.as_bytes().to_vec(), number: None }),
            Value::Integer(key) => Ok(of(*key as f64)),
            Value::Number(key) => Ok(of(*key)),
            other => Err(format!("a key is {}: expected a string or a number", kind(other))),
        }
    }
}

fn string(out: &mut Vec<u8>, bytes: &[u8]) -> Result<(), String> {
    let text = std::str::from_utf8(bytes).map_err(|_| "a string is not UTF-8, which JSON is".to_owned())?;
    serde_json::to_writer(out, text).map_err(|error| error.to_string())
}

/// Reads a value. `null` is nil, which leaves its place in a list empty.
#[derive(Clone, Copy)]
struct Json<'a> {
    lua: &'a Lua,
    list: &'a Table,
}

impl<'de> DeserializeSeed<'de> for Json<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Json<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Nil)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Boolean(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value as f64))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value as f64))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Value::Number(value))
    }

    fn visit_str<E: serde::de::Error>(self, value: &str) -> Result<Value, E> {
        value.into_lua(self.lua).map_err(E::custom)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<Value, A::Error> {
        let table = self.lua.create_table().map_err(A::Error::custom)?;
        table.set_metatable(Some(self.list.clone())).map_err(A::Error::custom)?;
        let mut index = 0;
        while let Some(value) = values.next_element_seed(self)? {
            index += 1;
            table.raw_set(index, value).map_err(A::Error::custom)?;
        }
        Ok(Value::Table(table))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut pairs: A) -> Result<Value, A::Error> {
        let table = self.lua.create_table().map_err(A::Error::custom)?;
        while let Some(key) = pairs.next_key::<std::borrow::Cow<'_, str>>()? {
            let value = pairs.next_value_seed(self)?;
            table.raw_set(&*key, value).map_err(A::Error::custom)?;
        }
        Ok(Value::Table(table))
    }
}
