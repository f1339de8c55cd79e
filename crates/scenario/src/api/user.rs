//! What a user has and does, without waiting.

use mlua::{LuaString, Table, Value};

use super::{Library, wrong};
use crate::random::Choices;
use crate::settings::{check_header, kind, number_of, text};

/// The most fields that a user sends with all requests.
const MOST_FIELDS: usize = 100;

pub(super) fn add(library: &Library<'_>) -> mlua::Result<()> {
    library.add("user_header", |_, thread, (name, value): (Value, Value)| {
        let user = thread.user("header")?;
        let name = text("header: the name", &name).map_err(wrong)?;
        let mut headers = user.headers.borrow_mut();
        headers.retain(|(known, _)| !known.eq_ignore_ascii_case(&name));
        if !matches!(value, Value::Nil) {
            if headers.len() >= MOST_FIELDS {
                return Err(wrong(format!("header: the user has {MOST_FIELDS} fields already: expected no more")));
            }
            let value = text("header: the value", &value).map_err(wrong)?;
            check_header(&name, &value).map_err(|why| wrong(format!("header: {why}")))?;
            headers.push((name, value));
        }
        Ok(())
    })?;
    library.add("user_cookie", |lua, thread, name: LuaString| {
        let user = thread.user("cookie")?;
        let jar = user.jar.borrow();
        jar.get(&thread.base, &name.to_string_lossy()).map(|value| lua.create_string(value)).transpose()
    })?;
    library.add("user_set_cookie", |_, thread, (name, value): (Value, Value)| {
        let user = thread.user("set_cookie")?;
        let name = text("set_cookie: the name", &name).map_err(wrong)?;
        let value = text("set_cookie: the value", &value).map_err(wrong)?;
        user.jar.borrow_mut().set(&thread.base, &name, &value).map_err(|why| wrong(format!("set_cookie: {why}")))
    })?;
    library.add("user_reset", |_, thread, ()| {
        let user = thread.user("reset")?;
        user.forget();
        user.headers.borrow_mut().clear();
        Ok(())
    })?;
    library.add("user_random", |_, thread, (one, other): (Value, Value)| {
        let user = thread.user("random")?;
        let mut choices = user.choices.borrow_mut();
        random(&mut choices, &one, &other, |number| match number.fract() {
            0.0 => Ok(number),
            _ => Err(wrong(format!("random: {number} is no whole number"))),
        })
    })?;
    // Lua's own function, which rounds.
    library.add("random", |_, thread, (one, other): (Value, Value)| match thread.current.borrow().as_ref() {
        Some(user) => random(&mut user.choices.borrow_mut(), &one, &other, |number| Ok(number.floor())),
        None => random(&mut thread.choices.borrow_mut(), &one, &other, |number| Ok(number.floor())),
    })?;
    library.add("user_pick", |_, thread, list: Value| {
        let user = thread.user("pick")?;
        let Value::Table(list) = &list else {
            return Err(wrong(format!("pick: expected a list; this is {}", kind(&list))));
        };
        match user.choices.borrow_mut().pick(list.raw_len()) {
            Some(index) => list.raw_get(index + 1),
            None => Ok(Value::Nil),
        }
    })?;
    library.add("user_shuffle", |lua, thread, list: Table| {
        let user = thread.user("shuffle")?;
        let mut values: Vec<Value> = list.sequence_values().collect::<mlua::Result<_>>()?;
        let count = values.len();
        user.choices.borrow_mut().shuffle(count, |one, other| {
            values.swap(one, other);
            Ok::<(), mlua::Error>(())
        })?;
        lua.create_sequence_from(values)
    })
}

/// Returns a number from 0 to 1, from 1 to `one`, or from `one` to `other`. `whole` makes a whole number of a limit.
fn random(
    choices: &mut Choices,
    one: &Value,
    other: &Value,
    whole: impl Fn(f64) -> mlua::Result<f64>,
) -> mlua::Result<f64> {
    let limit = |value: &Value| {
        let number = number_of("random", value, -9e15, 9e15).map_err(wrong)?;
        whole(number).map(|number| number as i64)
    };
    let between = match (one, other) {
        (Value::Nil, _) => return Ok(choices.random()),
        (most, Value::Nil) => choices.between(1, limit(most)?),
        (least, most) => choices.between(limit(least)?, limit(most)?),
    };
    between.map(|number| number as f64).map_err(|why| wrong(format!("random: {why}")))
}
