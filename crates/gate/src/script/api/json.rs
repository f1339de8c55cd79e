//! `gate.json_encode` and `gate.json_decode`.

use mlua::Value;
use oroshi_script::json::{DecodeError, Json};

use super::args::CallError;
use super::{Charge, Library, now};

pub(super) fn add(library: &Library<'_>) -> mlua::Result<()> {
    let json = Json::of(library.lua)?;
    library.own.raw_set("list", json.list())?;
    let charge = Charge::new(library)?;
    let encoder = json.clone();
    library.add("gate.json_encode", move |lua, _, args| {
        let encoded = encoder.encode(&args.next());
        charge.bytes(encoded.work)?;
        let text = encoded.text.map_err(|why| CallError::new(format!("value: {why}")))?;
        now(lua, lua.create_string(text)?)
    })?;
    library.add("gate.json_decode", move |lua, _, args| {
        let text = args.text(lua, "text")?;
        match json.decode(lua, &text.as_bytes()) {
            Ok(value) => now(lua, value),
            Err(DecodeError::State(failed)) => Err(CallError::Lua(failed)),
            Err(DecodeError::Text(error)) => {
                now(lua, (Value::Nil, format!("not JSON as expected: {error}"), "json"))
            }
        }
    })
}
