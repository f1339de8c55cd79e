//! `gate.json_encode` and `gate.json_decode`.

use mlua::Value;
use oroshi_script::library::{Json, JsonError};

use super::args::CallError;
use super::{Library, now};

pub(super) fn add(library: &Library<'_>) -> mlua::Result<()> {
    let writes = Json::new(library.lua, library.own)?;
    let reads = writes.clone();
    library.add("gate.json_encode", move |lua, _, args| match writes.encode(&args.next()) {
        Ok(text) => now(lua, lua.create_string(text)?),
        Err(JsonError::Wrong(why)) => Err(CallError::new(format!("value: {why}"))),
        Err(JsonError::Lua(error)) => Err(CallError::Lua(error)),
    })?;
    library.add("gate.json_decode", move |lua, _, args| {
        let text = args.text(lua, "text")?;
        match reads.decode(lua, &text.as_bytes()) {
            Ok(value) => now(lua, value),
            Err(JsonError::Wrong(why)) => now(lua, (Value::Nil, why, "json")),
            Err(JsonError::Lua(error)) => Err(CallError::Lua(error)),
        }
    })
}
