//! Values copied from one Lua state to another.

use mlua::{Lua, Value};

/// A copy of a value, independent of any state.
#[derive(Clone, Debug, PartialEq)]
pub enum Data {
    /// `nil`.
    Nil,
    /// `true` or `false`.
    Boolean(bool),
    /// A number.
    Number(f64),
    /// A string of any bytes.
    String(Vec<u8>),
    /// A table's keys and values, in the table's own order, without its metatable.
    Table(Vec<(Data, Data)>),
}

/// The reason why a value cannot be copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DataError {
    /// Copy its contents instead.
    #[error(
        "a {0} cannot be copied from one Lua state to another: only nil, booleans, numbers, strings and tables \
         of them can"
    )]
    Type(&'static str),
    /// Copy a part of it.
    #[error("a table that contains itself cannot be copied from one Lua state to another")]
    Cycle,
    /// Copy a part of it.
    #[error("tables more than {MOST_LEVELS} levels deep cannot be copied from one Lua state to another")]
    Depth,
    /// Copy a part of it.
    #[error("it takes more than {0} bytes to copy this value")]
    TooLarge(usize),
}

/// Bytes left for a copy.
struct CopyLimit {
    most: usize,
    left: usize,
}

impl CopyLimit {
    fn take(&mut self, bytes: usize) -> Result<(), DataError> {
        self.left = self.left.checked_sub(bytes).ok_or(DataError::TooLarge(self.most))?;
        Ok(())
    }
}

/// The deepest nesting of copied tables.
const MOST_LEVELS: usize = 100;

impl Data {
    /// Copies a value out of its state.
    ///
    /// # Errors
    /// When a part of it cannot be copied.
    pub fn from_lua(value: &Value) -> Result<Self, DataError> {
        Self::from_lua_within(value, usize::MAX)
    }

    /// Copies a value out of its state, if the copy takes at most `most` bytes.
    ///
    /// A table that occurs many times in a value is copied as many times, so the copy may be much larger than the
    /// state.
    ///
    /// # Errors
    /// When a part of it cannot be copied, or it is too large.
    pub fn from_lua_within(value: &Value, most: usize) -> Result<Self, DataError> {
        copy(value, &mut Vec::new(), &mut CopyLimit { most, left: most })
    }

    /// Size of the copy, bytes.
    pub fn bytes(&self) -> usize {
        let within = match self {
            Self::Nil | Self::Boolean(_) | Self::Number(_) => 0,
            Self::String(bytes) => bytes.capacity(),
            Self::Table(pairs) => pairs.iter().map(|(key, value)| key.bytes() + value.bytes()).sum(),
        };
        size_of::<Data>() + within
    }

    /// Creates the value in a state.
    ///
    /// # Errors
    /// When there is no memory for it.
    pub fn into_lua(self, lua: &Lua) -> mlua::Result<Value> {
        self.to_lua(lua)
    }

    /// Creates the value in a state, and keeps the copy.
    ///
    /// # Errors
    /// When there is no memory for it.
    pub fn to_lua(&self, lua: &Lua) -> mlua::Result<Value> {
        Ok(match self {
            Self::Nil => Value::Nil,
            Self::Boolean(value) => Value::Boolean(*value),
            Self::Number(value) => Value::Number(*value),
            Self::String(bytes) => Value::String(lua.create_string(bytes)?),
            Self::Table(pairs) => {
                let table = lua.create_table()?;
                for (key, value) in pairs {
                    table.raw_set(key.to_lua(lua)?, value.to_lua(lua)?)?;
                }
                Value::Table(table)
            }
        })
    }
}

impl From<DataError> for mlua::Error {
    fn from(error: DataError) -> Self {
        Self::runtime(error)
    }
}

/// Copies a value; `within` has the enclosing tables.
fn copy(value: &Value, within: &mut Vec<mlua::Table>, limit: &mut CopyLimit) -> Result<Data, DataError> {
    limit.take(size_of::<Data>())?;
    Ok(match value {
        Value::Nil => Data::Nil,
        Value::Boolean(value) => Data::Boolean(*value),
        // Lua has only floats; mlua returns whole ones as integers.
        Value::Integer(value) => Data::Number(*value as f64),
        Value::Number(value) => Data::Number(*value),
        Value::String(string) => {
            let bytes = string.as_bytes();
            limit.take(bytes.len())?;
            Data::String(bytes.to_vec())
        }
        Value::Table(table) => {
            if within.contains(table) {
                return Err(DataError::Cycle);
            }
            if within.len() == MOST_LEVELS {
                return Err(DataError::Depth);
            }
            within.push(table.clone());
            let mut pairs = Vec::new();
            for pair in table.pairs::<Value, Value>() {
                // Raw pairs: no code of the script runs.
                let (key, value) = pair.map_err(|_| DataError::Type("table"))?;
                pairs.push((copy(&key, within, limit)?, copy(&value, within, limit)?));
            }
            within.pop();
            Data::Table(pairs)
        }
        // mlua has no name for values of LuaJIT's ffi.
        Value::Other(_) => return Err(DataError::Type("cdata")),
        other => return Err(DataError::Type(other.type_name())),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(code: &str) -> Result<Data, DataError> {
        let lua = Lua::new();
        Data::from_lua(&lua.load(code).eval::<Value>().unwrap())
    }

    fn text(text: &str) -> Data {
        Data::String(text.into())
    }

    #[test]
    fn plain_values_are_copied_whole() {
        assert_eq!(data("nil"), Ok(Data::Nil));
        assert_eq!(data("false"), Ok(Data::Boolean(false)));
        assert_eq!(data("-7"), Ok(Data::Number(-7.0)));
        assert_eq!(data("0.5"), Ok(Data::Number(0.5)));
        assert_eq!(data("2^53"), Ok(Data::Number(9_007_199_254_740_992.0)));
        assert_eq!(data("'a\\0\\255b'"), Ok(Data::String(b"a\0\xffb".to_vec())));
        assert!(matches!(data("0/0"), Ok(Data::Number(n)) if n.is_nan()));
    }

    #[test]
    fn tables_keep_their_keys_and_values_apart_and_go_there_and_back() {
        let Ok(Data::Table(pairs)) = data("{ 'a', 'b', key = 'value', [true] = { deeper = { 1.5 } } }") else {
            panic!()
        };
        assert_eq!(pairs[..2], [(Data::Number(1.0), text("a")), (Data::Number(2.0), text("b"))]);
        assert!(pairs.contains(&(text("key"), text("value"))));
        let inner = Data::Table(vec![(text("deeper"), Data::Table(vec![(Data::Number(1.0), Data::Number(1.5))]))]);
        assert!(pairs.contains(&(Data::Boolean(true), inner)));

        let lua = Lua::new();
        let table = Data::Table(pairs).into_lua(&lua).unwrap();
        lua.globals().set("t", table).unwrap();
        let same = "return #t == 2 and t[2] == 'b' and t.key == 'value' and t[true].deeper[1] == 1.5";
        assert!(lua.load(same).eval::<bool>().unwrap());
    }

    #[test]
    fn a_value_is_the_same_each_way() {
        let lua = Lua::new();
        for value in
            [Data::Nil, Data::Boolean(true), Data::Number(1e300), Data::String(vec![0, 255, 0]), Data::Table(vec![])]
        {
            assert_eq!(Data::from_lua(&value.clone().into_lua(&lua).unwrap()), Ok(value));
        }
    }

    #[test]
    fn what_cannot_be_copied_says_so() {
        assert_eq!(data("print"), Err(DataError::Type("function")));
        assert_eq!(data("{ { coroutine.create(print) } }"), Err(DataError::Type("thread")));
        assert_eq!(data("{ [print] = 1 }"), Err(DataError::Type("function")));
        assert_eq!(data("io.stdout"), Err(DataError::Type("userdata")));
        assert_eq!(data("(function() local t = {} t.t = { t } return t end)()"), Err(DataError::Cycle));
        let deep = |levels| format!("(function() local t = 1 for i = 1, {levels} do t = {{ t }} end return t end)()");
        assert!(data(&deep(MOST_LEVELS)).is_ok());
        assert_eq!(data(&deep(MOST_LEVELS + 1)), Err(DataError::Depth));
        assert!(DataError::Type("function").to_string().starts_with("a function cannot be copied"));
    }

    #[test]
    fn a_copy_that_grows_is_ended_early() {
        let lua = Lua::new();
        let within = |code: &str, most| Data::from_lua_within(&lua.load(code).eval::<Value>().unwrap(), most);
        // 2^90 copies of a string.
        let many = "(function() local t = { 'x' } for i = 1, 90 do t = { t, t } end return t end)()";
        assert_eq!(within(many, 1 << 20), Err(DataError::TooLarge(1 << 20)));
        let size = size_of::<Data>();
        assert_eq!(within("'12345'", size + 4), Err(DataError::TooLarge(size + 4)));
        assert_eq!(within("'12345'", size + 5), Ok(text("12345")));
        assert!(within("{ 1, 2 }", 5 * size).is_ok() && within("{ 1, 2, 3 }", 5 * size).is_err());
    }

    #[test]
    fn the_same_table_twice_is_no_cycle() {
        let Ok(Data::Table(pairs)) = data("(function() local t = { 1 } return { t, t } end)()") else { panic!() };
        assert_eq!(pairs[0].1, pairs[1].1);
    }

    #[test]
    fn metatables_stay_behind_and_do_not_act() {
        let odd =
            "setmetatable({ 1 }, { __index = function() error('called') end, __len = function() error('called') end })";
        assert_eq!(data(odd), Ok(Data::Table(vec![(Data::Number(1.0), Data::Number(1.0))])));
    }
}
