//! Small libraries: digests, JSON, base64, values that threads share.

use mlua::{Lua, LuaString, Value};
use oroshi_script::library::digest;

use super::{Library, wrong};
use crate::response::{decode, encode};
use crate::settings::{kind, number_of};
use crate::shared;

pub(super) fn add(library: &Library<'_>) -> mlua::Result<()> {
    let globals = library.lua.globals();
    let table = library.lua.create_table()?;
    for (name, of) in [("md5", digest::md5 as fn(&[u8]) -> String), ("sha1", digest::sha1), ("sha256", digest::sha256)]
    {
        table.raw_set(name, library.function(move |_, _, text: LuaString| Ok(of(&text.as_bytes())))?)?;
    }
    globals.raw_set("digest", table)?;

    let table = library.lua.create_table()?;
    table.raw_set(
        "encode",
        library.function(|lua, _, value: Value| {
            let json = encode(lua, &value).map_err(|why| wrong(format!("json.encode: {why}")))?;
            lua.create_string(json)
        })?,
    )?;
    table.raw_set("decode", library.function(|lua, _, text: LuaString| decode(lua, &text.as_bytes()))?)?;
    globals.raw_set("json", table)?;

    let table = library.lua.create_table()?;
    table.raw_set(
        "encode",
        library.function(|_, _, text: LuaString| Ok(digest::base64_encode(&text.as_bytes(), false)))?,
    )?;
    table.raw_set(
        "decode",
        library.function(|lua, _, text: LuaString| match digest::base64_decode(&text.as_bytes(), false) {
            Ok(bytes) => Ok((Some(lua.create_string(bytes)?), None)),
            Err(why) => Ok((None, Some(why))),
        })?,
    )?;
    globals.raw_set("base64", table)?;

    let table = library.lua.create_table()?;
    table.raw_set(
        "get",
        library.function(|lua, thread, key: LuaString| to_lua(lua, thread.run.shared.get(&key.as_bytes())))?,
    )?;
    table.raw_set(
        "set",
        library.function(|_, thread, (key, value): (LuaString, Value)| {
            let value = match &value {
                Value::Nil => None,
                Value::Boolean(is) => Some(shared::Value::Boolean(*is)),
                Value::String(text) => Some(shared::Value::Text((*text.as_bytes()).into())),
                Value::Integer(number) => Some(shared::Value::Number(*number as f64)),
                Value::Number(number) => Some(shared::Value::Number(*number)),
                other => {
                    let what = kind(other);
                    return Err(wrong(format!(
                        "shared.set: the value is {what}: expected a number, a text, true or false"
                    )));
                }
            };
            thread.run.shared.set(&key.as_bytes(), value).map_err(|why| wrong(format!("shared.set: {why}")))
        })?,
    )?;
    table.raw_set(
        "add",
        library.function(|_, thread, (key, number): (LuaString, Value)| {
            let number = match &number {
                Value::Nil => 1.0,
                number => number_of("shared.add: the number", number, -1e300, 1e300).map_err(wrong)?,
            };
            thread.run.shared.add(&key.as_bytes(), number).map_err(|why| wrong(format!("shared.add: {why}")))
        })?,
    )?;
    table.raw_set(
        "keys",
        library.function(|lua, thread, prefix: Option<LuaString>| {
            let prefix = prefix.map(|prefix| prefix.as_bytes().to_vec()).unwrap_or_default();
            let keys = thread.run.shared.keys(&prefix);
            let keys = keys.iter().map(|key| lua.create_string(key)).collect::<mlua::Result<Vec<_>>>()?;
            lua.create_sequence_from(keys)
        })?,
    )?;
    globals.raw_set("shared", table)
}

fn to_lua(lua: &Lua, value: Option<shared::Value>) -> mlua::Result<Value> {
    Ok(match value {
        None => Value::Nil,
        Some(shared::Value::Boolean(is)) => Value::Boolean(is),
        Some(shared::Value::Number(number)) => Value::Number(number),
        Some(shared::Value::Text(text)) => Value::String(lua.create_string(&*text)?),
    })
}
