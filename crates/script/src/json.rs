//! JSON, converted directly between text and the state's values, bounded by its memory.

use std::cell::RefCell;
use std::ffi::c_void;
use std::fmt;

use mlua::{Function, IntoLua, Lua, Table, Value};
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

/// The deepest nesting of tables, for writing and reading.
const MOST_LEVELS: usize = 100;

/// The longest text written, bytes.
const MOST_BYTES: usize = 8 << 20;

/// Reads and writes JSON in one state.
#[derive(Clone, Debug)]
pub struct Json {
    /// The metatable that marks a table as a list, even if it is empty.
    list: Table,
    is_list: Function,
}

/// JSON that was written, or why it was not.
#[derive(Debug)]
pub struct Encoded {
    /// The text; or what is wrong with the value.
    pub text: Result<Vec<u8>, String>,
    /// Bytes that were handled.
    pub work: usize,
}

/// Why a text could not be read.
#[derive(Debug)]
pub enum DecodeError {
    /// It is no JSON.
    Text(serde_json::Error),
    /// There is no memory for its value.
    State(mlua::Error),
}

impl Json {
    /// Returns the state's own reader and writer.
    ///
    /// # Errors
    /// There is no memory for it.
    pub fn of(lua: &Lua) -> mlua::Result<Self> {
        if let Some(json) = lua.app_data_ref::<Json>() {
            return Ok(json.clone());
        }
        let list = lua.create_table()?;
        // In Lua, because mlua's access to a metatable panics if a state can hold no more of Rust's values.
        let is_list =
            "local list, getmetatable = ..., getmetatable return function(value) return getmetatable(value) == list end";
        let is_list: Function = lua.load(is_list).set_name("=[json]").call(&list)?;
        let json = Json { list, is_list };
        lua.set_app_data(json.clone());
        Ok(json)
    }

    /// Returns the metatable of lists.
    pub fn list(&self) -> &Table {
        &self.list
    }

    /// Writes a value.
    pub fn encode(&self, value: &Value) -> Encoded {
        let mut writer = Writer { out: Vec::new(), is_list: &self.is_list, path: Vec::new(), keys: 0 };
        let written = writer.value(value);
        let work = writer.out.len() + writer.keys;
        Encoded { text: written.map(|()| writer.out), work }
    }

    /// Reads a value. Lists are marked, and `null` becomes nil.
    ///
    /// # Errors
    /// The text is no JSON, or there is no memory for its value.
    pub fn decode(&self, lua: &Lua, text: &[u8]) -> Result<Value, DecodeError> {
        let mut reader = serde_json::Deserializer::from_slice(text);
        let failed = RefCell::new(None);
        let json = Reader { lua, list: &self.list, failed: &failed };
        let read = json.deserialize(&mut reader).and_then(|value| reader.end().map(|()| value));
        read.map_err(|error| match failed.take() {
            Some(failed) => DecodeError::State(failed),
            None => DecodeError::Text(error),
        })
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
struct Reader<'a> {
    lua: &'a Lua,
    list: &'a Table,
    /// An error of the state, not of the text.
    failed: &'a RefCell<Option<mlua::Error>>,
}

impl Reader<'_> {
    fn made<T, E: serde::de::Error>(&self, made: mlua::Result<T>) -> Result<T, E> {
        made.map_err(|error| {
            *self.failed.borrow_mut() = Some(error);
            E::custom("there is no room for it")
        })
    }
}

impl<'de> DeserializeSeed<'de> for Reader<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Reader<'_> {
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
        let table = self.made(self.lua.create_table())?;
        self.made(table.set_metatable(Some(self.list.clone())))?;
        let mut index = 0;
        while let Some(value) = values.next_element_seed(self)? {
            index += 1;
            self.made(table.raw_set(index, value))?;
        }
        Ok(Value::Table(table))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut pairs: A) -> Result<Value, A::Error> {
        let table = self.made(self.lua.create_table())?;
        while let Some(key) = pairs.next_key::<std::borrow::Cow<'_, str>>()? {
            let value = pairs.next_value_seed(self)?;
            self.made(table.raw_set(&*key, value))?;
        }
        Ok(Value::Table(table))
    }
}

fn kind(value: &Value) -> String {
    match value {
        Value::Nil => "nil".into(),
        Value::Integer(_) | Value::Number(_) => "a number".into(),
        other => format!("a {}", other.type_name()),
    }
}
