//! JSON as a state's values: converts directly, bounded by the state's memory.

use std::cell::{Cell, RefCell};
use std::ffi::c_void;
use std::fmt;

use mlua::{Function, IntoLua, Lua, Table, Value};
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

use super::kind;

/// The deepest nesting of tables that is written. serde_json reads about as many.
const MOST_LEVELS: usize = 100;

/// The longest text written, bytes.
const MOST_BYTES: usize = 8 << 20;

/// The most lists and objects that are read: a text of a few megabytes may have millions, each of which costs a table.
const MOST_TABLES: usize = 1_000_000;

/// Converts between JSON and the values of one confined state.
///
/// Lists are tables with the metatable [`list`](Self::list), so that an empty one stays a list. `null` is nil.
#[derive(Clone, Debug)]
pub struct Json {
    list: Table,
    is_list: Function,
    /// Charges bytes to a call's instructions.
    pay: Function,
}

/// The reason why a value or a text cannot be converted.
#[derive(Debug, thiserror::Error)]
pub enum JsonError {
    /// Report the value or the text to the script.
    #[error("{0}")]
    Wrong(String),
    /// End the call: the state has no memory for it, or the call has used its instructions.
    #[error(transparent)]
    Lua(#[from] mlua::Error),
}

impl Json {
    /// Prepares a state. `own`: its [own table](crate::Engine::own), whose `list` becomes the metatable of lists.
    ///
    /// # Errors
    /// When there is no memory for it.
    pub fn new(lua: &Lua, own: &Table) -> mlua::Result<Self> {
        let list = lua.create_table()?;
        own.raw_set("list", &list)?;
        // In Lua, because mlua's access to a metatable panics if a state can hold no more of Rust's values.
        let is_list = "local list, getmetatable = ..., getmetatable return function(value) return \
                       getmetatable(value) == list end";
        let is_list = lua.load(is_list).set_name("=[json]").call(&list)?;
        Ok(Self { list, is_list, pay: own.raw_get("pay")? })
    }

    /// The metatable that marks a table as a list, even if it is empty.
    #[must_use]
    pub fn list(&self) -> &Table {
        &self.list
    }

    /// Writes a value: objects with sorted keys, at most 100 levels and 8 MiB. Charges the call for the bytes.
    ///
    /// # Errors
    /// When the value, or a part of it, has no JSON, or exceeds a limit.
    pub fn encode(&self, value: &Value) -> Result<Vec<u8>, JsonError> {
        let mut writer = Writer { out: Vec::new(), is_list: &self.is_list, path: Vec::new(), keys: 0 };
        let written = writer.value(value);
        self.pay.call::<()>((writer.out.len() + writer.keys) as f64)?;
        written.map_err(JsonError::Wrong)?;
        Ok(writer.out)
    }

    /// Reads a text. The caller charges the call for it.
    ///
    /// # Errors
    /// When the text is no JSON, nested too deeply, or has more than a million lists and objects.
    pub fn decode(&self, lua: &Lua, text: &[u8]) -> Result<Value, JsonError> {
        let mut reader = serde_json::Deserializer::from_slice(text);
        let failed = RefCell::new(None);
        let tables = Cell::new(MOST_TABLES);
        let seed = Seed { lua, list: &self.list, failed: &failed, tables: &tables };
        let read = seed.deserialize(&mut reader).and_then(|value| reader.end().map(|()| value));
        match (read, failed.take()) {
            (Ok(value), _) => Ok(value),
            (Err(_), Some(failed)) => Err(JsonError::Lua(failed)),
            (Err(error), None) => Err(JsonError::Wrong(format!("not JSON as expected: {error}"))),
        }
    }
}

/// Writes a value. A table that occurs several times is written each time; the limit is on the output.
struct Writer<'a> {
    out: Vec<u8>,
    is_list: &'a Function,
    /// The tables that contain the current one.
    path: Vec<*const c_void>,
    /// Bytes of keys held for the tables in progress.
    keys: usize,
}

impl Writer<'_> {
    fn value(&mut self, value: &Value) -> Result<(), String> {
        match value {
            Value::Nil => self.word("null"),
            Value::Boolean(true) => self.word("true"),
            Value::Boolean(false) => self.word("false"),
            Value::Integer(number) => self.word(&number.to_string()),
            Value::Number(number) if !number.is_finite() => Err(format!("{number} cannot be written as JSON")),
            Value::Number(number) => self.word(&number.to_string()),
            Value::String(text) => self.string(&text.as_bytes()),
            Value::Table(table) => self.table(table),
            other => Err(format!("{} cannot be written as JSON", kind(other))),
        }
    }

    fn table(&mut self, table: &Table) -> Result<(), String> {
        let pointer = table.to_pointer();
        if self.path.contains(&pointer) {
            return Err("a table contains itself".to_owned());
        }
        if self.path.len() == MOST_LEVELS {
            return Err(format!("there are more than {MOST_LEVELS} tables within tables"));
        }
        self.path.push(pointer);
        match self.length(table)? {
            Some(length) => self.list(table, length)?,
            None => self.object(table)?,
        }
        self.path.pop();
        Ok(())
    }

    /// Returns the length of a list; `None` if the table is no list.
    fn length(&self, table: &Table) -> Result<Option<usize>, String> {
        let length = table.raw_len();
        // At least a value and a comma for each element.
        self.has_room(length.saturating_mul(2))?;
        let mut count = 0;
        for pair in table.pairs::<Value, Value>() {
            count += 1;
            let (key, _) = pair.map_err(|error| error.to_string())?;
            if count > length || !matches!(key, Value::Integer(_)) {
                return Ok(None);
            }
        }
        let is_list =
            if count > 0 { count == length } else { self.is_list.call(table).map_err(|error| error.to_string())? };
        Ok(is_list.then_some(length))
    }

    fn list(&mut self, table: &Table, length: usize) -> Result<(), String> {
        self.out.push(b'[');
        for index in 1..=length {
            if index > 1 {
                self.out.push(b',');
            }
            let value: Value = table.raw_get(index).map_err(|error| error.to_string())?;
            self.value(&value)?;
        }
        self.word("]")
    }

    /// Writes an object with sorted keys, so that equal values give equal text.
    fn object(&mut self, table: &Table) -> Result<(), String> {
        // Holds keys as bytes, because Rust can hold only some thousands of values of a state.
        let (mut keys, before) = (Vec::new(), self.keys);
        for pair in table.pairs::<Value, Value>() {
            let key = Key::of(&pair.map_err(|error| error.to_string())?.0)?;
            self.keys += size_of::<Key>() + key.text.len();
            self.has_room(0)?;
            keys.push(key);
        }
        keys.sort_by(|a, b| a.text.cmp(&b.text));
        self.out.push(b'{');
        for (index, key) in keys.iter().enumerate() {
            if index > 0 {
                self.out.push(b',');
            }
            self.string(&key.text)?;
            self.out.push(b':');
            let value: mlua::Result<Value> = match key.number {
                Some(number) => table.raw_get(number),
                None => table.raw_get(mlua::BString::from(&*key.text)),
            };
            self.value(&value.map_err(|error| error.to_string())?)?;
        }
        self.keys = before;
        self.word("}")
    }

    fn string(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.has_room(bytes.len())?;
        let text = std::str::from_utf8(bytes).map_err(|_| "a string is not UTF-8, which JSON is".to_owned())?;
        serde_json::to_writer(&mut self.out, text).map_err(|error| error.to_string())
    }

    fn word(&mut self, word: &str) -> Result<(), String> {
        self.out.extend_from_slice(word.as_bytes());
        self.has_room(0)
    }

    fn has_room(&self, more: usize) -> Result<(), String> {
        if self.out.len() + more > MOST_BYTES || self.keys > MOST_BYTES {
            return Err(format!("it is too large: expected at most {MOST_BYTES} bytes of JSON"));
        }
        Ok(())
    }
}

/// A key of a table.
struct Key {
    text: Vec<u8>,
    /// The number that this key was.
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

/// Reads a value. `null` becomes nil, which leaves an empty place in a list.
#[derive(Clone, Copy)]
struct Seed<'a> {
    lua: &'a Lua,
    list: &'a Table,
    /// An error of the state, not of the text.
    failed: &'a RefCell<Option<mlua::Error>>,
    /// How many more lists and objects it may have.
    tables: &'a Cell<usize>,
}

impl Seed<'_> {
    fn table<E: serde::de::Error>(&self) -> Result<Table, E> {
        let left = self.tables.get().checked_sub(1);
        let too_many = || E::custom(format!("more than {MOST_TABLES} lists and objects"));
        self.tables.set(left.ok_or_else(too_many)?);
        self.made(self.lua.create_table())
    }

    fn made<T, E: serde::de::Error>(&self, made: mlua::Result<T>) -> Result<T, E> {
        made.map_err(|error| {
            *self.failed.borrow_mut() = Some(error);
            E::custom("there is no room for it")
        })
    }
}

impl<'de> DeserializeSeed<'de> for Seed<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed<'_> {
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
        self.made(value.into_lua(self.lua))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<Value, A::Error> {
        let table = self.table()?;
        self.made(table.set_metatable(Some(self.list.clone())))?;
        let mut index = 0;
        while let Some(value) = values.next_element_seed(self)? {
            index += 1;
            self.made(table.raw_set(index, value))?;
        }
        Ok(Value::Table(table))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut pairs: A) -> Result<Value, A::Error> {
        let table = self.table()?;
        while let Some(key) = pairs.next_key::<std::borrow::Cow<'_, str>>()? {
            let value = pairs.next_value_seed(self)?;
            self.made(table.raw_set(&*key, value))?;
        }
        Ok(Value::Table(table))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A state with its converter, whose charges add up in `paid`.
    fn state() -> (Lua, Json) {
        let lua = Lua::new();
        let own = lua.create_table().unwrap();
        own.raw_set("pay", lua.load("function(bytes) paid = (paid or 0) + bytes end").eval::<Function>().unwrap())
            .unwrap();
        let json = Json::new(&lua, &own).unwrap();
        assert_eq!(own.raw_get::<Table>("list").unwrap(), *json.list());
        (lua, json)
    }

    fn encoded(code: &str) -> Result<String, String> {
        let (lua, json) = state();
        let text = json.encode(&lua.load(code).eval::<Value>().unwrap()).map_err(|error| error.to_string())?;
        Ok(String::from_utf8(text).unwrap())
    }

    #[test]
    fn text_that_is_read_is_written_the_same() {
        let (lua, json) = state();
        for text in [
            "false",
            "1.5",
            "-1000000000000000",
            "\"\\\"\\n\\u0000ä\"",
            "[]",
            "{}",
            "[[],{\"a\":[1,{\"b\":[]}],\"c\":true}]",
        ] {
            let value = json.decode(&lua, text.as_bytes()).unwrap();
            assert_eq!(json.encode(&value).unwrap(), text.as_bytes());
        }
        assert_eq!(json.decode(&lua, b" null ").unwrap(), Value::Nil);
        let holes: Table = lua.unpack(json.decode(&lua, b"[1,null,3]").unwrap()).unwrap();
        assert_eq!((holes.raw_get::<f64>(3).unwrap(), holes.raw_get::<Value>(2).unwrap()), (3.0, Value::Nil));
    }

    #[test]
    fn tables_are_objects_with_sorted_keys_unless_they_are_lists() {
        assert_eq!(encoded("{ b = 1, a = 'x', [2] = false }").unwrap(), r#"{"2":false,"a":"x","b":1}"#);
        assert_eq!(encoded("{ 'x', 'y' }").unwrap(), r#"["x","y"]"#);
        assert_eq!(encoded("{}").unwrap(), "{}");
    }

    #[test]
    fn writing_is_charged_for_even_if_it_fails() {
        let (lua, json) = state();
        json.encode(&lua.load("{ key = 'value' }").eval().unwrap()).unwrap();
        assert_eq!(lua.globals().get::<f64>("paid").unwrap(), 15.0);
        json.encode(&lua.load("{ key = print }").eval().unwrap()).unwrap_err();
        // What was written of it, and the key that was held meanwhile.
        let part = 7 + 3 + size_of::<Key>();
        assert_eq!(lua.globals().get::<f64>("paid").unwrap(), (15 + part) as f64);
    }

    #[test]
    fn limits_hold_both_ways() {
        let nested = |levels| {
            encoded(&format!("(function() local t = {{}} for i = 2, {levels} do t = {{ t }} end return t end)()"))
        };
        nested(MOST_LEVELS).unwrap();
        assert_eq!(nested(MOST_LEVELS + 1), Err("there are more than 100 tables within tables".into()));
        let length = |bytes: usize| encoded(&format!("('x'):rep({bytes})")).map(|text| text.len());
        assert_eq!(length(MOST_BYTES), Ok(MOST_BYTES + 2));
        assert_eq!(length(MOST_BYTES + 1), Err("it is too large: expected at most 8388608 bytes of JSON".into()));
        for (code, what) in [
            ("1/0", "inf cannot be written as JSON"),
            ("{ print }", "a function cannot be written as JSON"),
            ("{ [true] = 1 }", "a key is a boolean: expected a string or a number"),
            ("'\\255'", "a string is not UTF-8, which JSON is"),
            ("(function() local t = {} t.t = t return t end)()", "a table contains itself"),
        ] {
            assert_eq!(encoded(code), Err(what.into()));
        }
        let (lua, json) = state();
        for bad in [&b""[..], b"{", b"1 2", b"'a'", b"\"\xff\"", b"1e999", "[".repeat(200).as_bytes()] {
            let error = json.decode(&lua, bad).unwrap_err();
            assert!(matches!(&error, JsonError::Wrong(what) if what.starts_with("not JSON as expected: ")), "{error}");
        }
    }

    #[test]
    fn a_state_without_memory_ends_the_call() {
        let (lua, json) = state();
        lua.set_memory_limit(lua.used_memory() + (64 << 10)).unwrap();
        let text = format!("[{}1]", "{},".repeat(10_000));
        assert!(matches!(json.decode(&lua, text.as_bytes()), Err(JsonError::Lua(_))));
    }
}
