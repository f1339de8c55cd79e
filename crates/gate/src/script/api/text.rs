//! `gate.log`, digests and base64.

use hmac::{Hmac, KeyInit as _, Mac as _};
use mlua::Value;
use oroshi_script::library::digest;

use super::args::CallError;
use super::{Library, now};

/// The longest log line of a script, bytes.
const LINE_BYTES: usize = 4096;

pub(super) fn add(library: &Library<'_>) -> mlua::Result<()> {
    library.add("gate.log", |lua, host, args| {
        let level = args.text(lua, "level")?;
        let text = args.text(lua, "text")?;
        let bytes = text.as_bytes();
        let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(LINE_BYTES)]);
        let (script, shown) = (&*host.script, &*shown);
        match &*level.as_bytes() {
            b"error" => tracing::error!(script, "{shown}"),
            b"warn" => tracing::warn!(script, "{shown}"),
            b"info" => tracing::info!(script, "{shown}"),
            b"debug" => tracing::debug!(script, "{shown}"),
            _ => return Err(args.wrong("level", &format!("is {level:?}: expected error, warn, info or debug"))),
        }
        now(lua, ())
    })?;
    library.add("gate.base64_encode", |lua, _, args| {
        let text = args.text(lua, "text")?;
        now(lua, digest::base64_encode(&text.as_bytes(), flag(args.next())))
    })?;
    library.add("gate.base64_decode", |lua, _, args| {
        let text = args.text(lua, "text")?;
        match digest::base64_decode(&text.as_bytes(), flag(args.next())) {
            Ok(decoded) => now(lua, lua.create_string(decoded)?),
            Err(why) => now(lua, (Value::Nil, why, "base64")),
        }
    })?;
    library.add("gate.md5", |lua, _, args| {
        let text = args.text(lua, "text")?;
        now(lua, digest::md5(&text.as_bytes()))
    })?;
    library.add("gate.sha1", |lua, _, args| {
        let text = args.text(lua, "text")?;
        now(lua, digest::sha1(&text.as_bytes()))
    })?;
    library.add("gate.sha256", |lua, _, args| {
        let text = args.text(lua, "text")?;
        now(lua, digest::sha256(&text.as_bytes()))
    })?;
    library.add("gate.hmac_sha256", |lua, _, args| {
        let key = args.text(lua, "key")?;
        let text = args.text(lua, "text")?;
        let mut mac = Hmac::<sha2::Sha256>::new_from_slice(&key.as_bytes())
            .map_err(|_| CallError::new("the key cannot be used"))?;
        mac.update(&text.as_bytes());
        now(lua, digest::hex(&mac.finalize().into_bytes()))
    })
}

fn flag(value: Value) -> bool {
    !matches!(value, Value::Nil | Value::Boolean(false))
}
