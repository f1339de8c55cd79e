//! `gate.memcached`, `gate.sql` and `gate.lookup`: queries over the connections that all cores share.

use mlua::{IntoLua, IntoLuaMulti, Lua, MultiValue, Table, UserData, Value};
use oroshi_lookup::{Answer, MemcachedStore, Rows, SqlStore, StoreError, Targets, key};

use super::args::{Args, CallError, kind};
use super::{FunctionResult, Library, WaitResult, later, now};

/// The most bytes of a query's parameters.
const PARAMETERS_BYTES: usize = 16 << 20;

#[derive(Clone)]
struct Memcached(MemcachedStore);
impl UserData for Memcached {}

#[derive(Clone)]
struct Sql(SqlStore);
impl UserData for Sql {}

/// The form of a query's result.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ResultShape {
    All,
    First,
    Value,
}

pub(super) fn add(library: &Library<'_>) -> mlua::Result<()> {
    library.add("gate.memcached", |lua, host, args| {
        let name = args.text(lua, "name")?;
        let name = name.to_string_lossy();
        let unknown = || CallError::new(format!("there is no memcached store `{name}` in the configuration"));
        let Ok(tools) = host.tools() else {
            return if host.expects(&name, |names| &names.memcached) { now(lua, true) } else { Err(unknown()) };
        };
        let store = tools.stores.memcached(&name).map_err(|_| unknown())?;
        now(lua, lua.create_userdata(Memcached(store))?)
    })?;
    library.add("memcached:get", |lua, _, args| {
        let store = args.ours::<Memcached>()?.0;
        let key = args.text(lua, "key")?.as_bytes().to_vec();
        later(async move { store.get(key).await.map_or_else(|error| failure(&error), WaitResult::Bytes) })
    })?;
    library.add("memcached:set", |lua, _, args| {
        let store = args.ours::<Memcached>()?.0;
        let key = args.text(lua, "key")?.as_bytes().to_vec();
        let value = args.text(lua, "value")?.as_bytes().to_vec();
        let ttl = args.ttl()?;
        let set = async move { store.set(key, value, ttl).await };
        later(async move { set.await.map_or_else(|error| failure(&error), |()| WaitResult::Boolean(true)) })
    })?;
    library.add("memcached:delete", |lua, _, args| {
        let store = args.ours::<Memcached>()?.0;
        let key = args.text(lua, "key")?.as_bytes().to_vec();
        later(async move { store.delete(key).await.map_or_else(|error| failure(&error), WaitResult::Boolean) })
    })?;

    library.add("gate.sql", |lua, host, args| {
        let name = args.text(lua, "name")?;
        let name = name.to_string_lossy();
        let unknown = || CallError::new(format!("there is no SQL store `{name}` in the configuration"));
        let Ok(tools) = host.tools() else {
            return if host.expects(&name, |names| &names.sql) { now(lua, true) } else { Err(unknown()) };
        };
        let store = tools.stores.sql(&name).map_err(|_| unknown())?;
        now(lua, lua.create_userdata(Sql(store.used_by(&host.script)))?)
    })?;
    library.add("sql:query", |lua, _, args| query(lua, args, ResultShape::All))?;
    library.add("sql:row", |lua, _, args| query(lua, args, ResultShape::First))?;
    library.add("sql:value", |lua, _, args| query(lua, args, ResultShape::Value))?;

    library.add("gate.lookup", |lua, host, args| {
        let name = args.text(lua, "name")?;
        let name = name.to_string_lossy();
        let given = args.text(lua, "key")?;
        let declared = host.tools()?.lookups.get(&*name);
        let declared =
            declared.ok_or_else(|| CallError::new(format!("there is no lookup `{name}` in the configuration")))?;
        let bytes = given.as_bytes();
        let key = if declared.by_host { key::host(&bytes) } else { key::text(&bytes).map(Into::into) };
        // No store has an invalid key.
        let Ok(key) = key else { return now(lua, (Value::Nil, "negative")) };
        match declared.lookup.get(&key) {
            oroshi_lookup::LookupResult::Now(found) => now(lua, answer(lua, &found)?),
            oroshi_lookup::LookupResult::Later(coming) => later(async move { WaitResult::Answer(coming.await) }),
        }
    })
}

fn failure(error: &StoreError) -> WaitResult {
    WaitResult::Failure(error.to_string(), error.failure.name())
}

fn query(lua: &Lua, args: &mut Args, shape: ResultShape) -> Result<FunctionResult, CallError> {
    let store = args.ours::<Sql>()?.0;
    let query = args.text(lua, "query")?.to_str()?.to_owned();
    let values = args.rest();
    let mut bytes = 0;
    let parameters = values.into_iter().enumerate().map(|(index, value)| {
        bytes += value.as_string().map_or(0, |text| text.as_bytes().len());
        if bytes > PARAMETERS_BYTES {
            return Err(format!("the parameters are too large: expected at most {PARAMETERS_BYTES} bytes"));
        }
        parameter(index + 1, &value)
    });
    let parameters = parameters.collect::<Result<Vec<_>, _>>().map_err(CallError::Argument)?;
    later(async move {
        store.query(query, parameters).await.map_or_else(|error| failure(&error), |rows| WaitResult::Rows(rows, shape))
    })
}

fn parameter(number: usize, value: &Value) -> Result<oroshi_lookup::Value, String> {
    use oroshi_lookup::Value as Sql;
    Ok(match value {
        Value::Nil => Sql::Null,
        Value::Boolean(value) => Sql::Bool(*value),
        Value::Integer(value) => Sql::Int(*value),
        // In the range where floats are exact.
        Value::Number(value) if value.fract() == 0.0 && value.abs() <= 9_007_199_254_740_992.0 => {
            Sql::Int(*value as i64)
        }
        Value::Number(value) => Sql::Float(*value),
        Value::String(text) => match text.to_str() {
            Ok(text) => Sql::Text(text.to_owned()),
            Err(_) => Sql::Bytes(text.as_bytes().to_vec()),
        },
        other => {
            return Err(format!(
                "parameter {number} is {}: expected a string, a number, a boolean or nil",
                kind(other)
            ));
        }
    })
}

impl ResultShape {
    pub(super) fn to_lua(self, rows: &Rows, lua: &Lua) -> mlua::Result<Value> {
        let Rows { columns, rows } = rows;
        let names = columns.iter().map(|name| lua.create_string(name)).collect::<mlua::Result<Vec<_>>>()?;
        let row = |values: &Vec<oroshi_lookup::Value>| -> mlua::Result<Table> {
            let table = lua.create_table_with_capacity(0, names.len())?;
            for (name, value) in names.iter().zip(values) {
                table.raw_set(name, column(lua, value)?)?;
            }
            Ok(table)
        };
        match self {
            ResultShape::All => {
                let table = lua.create_table_with_capacity(rows.len(), 0)?;
                for (index, values) in rows.iter().enumerate() {
                    table.raw_set(index + 1, row(values)?)?;
                }
                Ok(Value::Table(table))
            }
            ResultShape::First => rows.first().map(row).transpose()?.into_lua(lua),
            ResultShape::Value => {
                let first = rows.first().and_then(|row| row.first());
                first.map_or(Ok(Value::Nil), |value| column(lua, value))
            }
        }
    }
}

fn column(lua: &Lua, value: &oroshi_lookup::Value) -> mlua::Result<Value> {
    use oroshi_lookup::Value as Sql;
    match value {
        Sql::Null => Ok(Value::Nil),
        Sql::Bool(value) => Ok(Value::Boolean(*value)),
        Sql::Int(value) => Ok(Value::Number(*value as f64)),
        Sql::Float(value) => Ok(Value::Number(*value)),
        Sql::Text(text) => (&**text).into_lua(lua),
        Sql::Bytes(bytes) => Ok(Value::String(lua.create_string(bytes)?)),
    }
}

/// Returns the targets and the outcome's name.
pub(super) fn answer(lua: &Lua, answer: &Answer) -> mlua::Result<MultiValue> {
    let targets = match answer.outcome.targets() {
        None => Value::Nil,
        Some(Targets::One(target)) => target.to_string().into_lua(lua)?,
        Some(many) => {
            let list = lua.create_table_with_capacity(many.len(), 0)?;
            for (index, (target, weight)) in many.iter().enumerate() {
                let one = lua.create_table_with_capacity(0, 2)?;
                one.raw_set("to", target.to_string())?;
                one.raw_set("weight", weight)?;
                list.raw_set(index + 1, one)?;
            }
            Value::Table(list)
        }
    };
    (targets, answer.outcome.name()).into_lua_multi(lua)
}
