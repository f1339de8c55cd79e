//! The arguments of a function of `gate`.

use std::time::Duration;

use mlua::{AnyUserData, LuaString, MultiValue, UserData, Value};

pub(super) use oroshi_script::library::kind;

/// An error of a call, reported at the script's line.
pub(super) enum CallError {
    /// An unusable argument.
    Argument(String),
    /// There is no memory for the results.
    Lua(mlua::Error),
}

impl CallError {
    pub(super) fn new(what: impl Into<String>) -> Self {
        CallError::Argument(what.into())
    }
}

impl From<mlua::Error> for CallError {
    fn from(error: mlua::Error) -> Self {
        CallError::Lua(error)
    }
}

/// Arguments, taken one by one. Errors name the argument.
pub(super) struct Args {
    called: &'static str,
    values: MultiValue,
}

impl Args {
    pub(super) fn new(called: &'static str, values: MultiValue) -> Self {
        Args { called, values }
    }

    pub(super) fn next(&mut self) -> Value {
        self.values.pop_front().unwrap_or(Value::Nil)
    }

    /// Returns the remaining arguments.
    pub(super) fn rest(&mut self) -> MultiValue {
        std::mem::take(&mut self.values)
    }

    pub(super) fn wrong(&self, name: &str, what: &str) -> CallError {
        CallError::Argument(format!("{name} {what}"))
    }

    /// Takes a string or number as text.
    pub(super) fn text(&mut self, lua: &mlua::Lua, name: &str) -> Result<LuaString, CallError> {
        match self.next() {
            Value::String(text) => Ok(text),
            number @ (Value::Integer(_) | Value::Number(_)) => {
                lua.coerce_string(number)?.ok_or_else(|| self.wrong(name, "is not a string"))
            }
            other => Err(self.wrong(name, &format!("is {}: expected a string", kind(&other)))),
        }
    }

    pub(super) fn number(&mut self, name: &str) -> Result<f64, CallError> {
        match self.next() {
            Value::Integer(number) => Ok(number as f64),
            Value::Number(number) => Ok(number),
            other => Err(self.wrong(name, &format!("is {}: expected a number", kind(&other)))),
        }
    }

    /// Takes a number or nil.
    pub(super) fn optional_number(&mut self, name: &str) -> Result<Option<f64>, CallError> {
        match self.values.front() {
            None | Some(Value::Nil) => {
                self.next();
                Ok(None)
            }
            Some(_) => self.number(name).map(Some),
        }
    }

    /// Takes a time to live in seconds; `nil`: forever.
    pub(super) fn ttl(&mut self) -> Result<Option<Duration>, CallError> {
        let seconds = match self.next() {
            Value::Nil => return Ok(None),
            Value::Integer(number) => number as f64,
            Value::Number(number) => number,
            other => return Err(self.wrong("ttl", &format!("is {}: expected seconds", kind(&other)))),
        };
        let ttl = Duration::try_from_secs_f64(seconds).ok().filter(|ttl| !ttl.is_zero());
        ttl.map(Some).ok_or_else(|| self.wrong("ttl", &format!("is {seconds}: expected more than 0 seconds, or nil")))
    }

    /// Takes an object of this API, which the prelude passes on.
    pub(super) fn ours<T: UserData + Clone + 'static>(&mut self) -> Result<T, CallError> {
        let ours = match self.next() {
            Value::UserData(data) => AnyUserData::borrow::<T>(&data).ok().map(|data| data.clone()),
            _ => None,
        };
        ours.ok_or_else(|| CallError::new(format!("it is a method: expected {}(...) on what it is of", self.called)))
    }
}
