//! Functions that the APIs of several kinds of scripts offer: JSON, digests, base64.
//!
//! [`Json`] converts between text and a state's values. [`digest`] has functions on bytes.

pub mod digest;
mod json;

use mlua::Value;

pub use json::{Json, JsonError};

/// Returns a value's kind for messages: `nil`, `a number`, `a table`.
#[must_use]
pub fn kind(value: &Value) -> String {
    match value {
        Value::Nil => "nil".into(),
        Value::Integer(_) | Value::Number(_) => "a number".into(),
        other => format!("a {}", other.type_name()),
    }
}
