//! Sets of rows: `data.csv`, `data.jsonl`, `data.list`.

use std::rc::Rc;
use std::sync::Arc;

use mlua::{Lua, LuaString, Table, UserData, UserDataMethods, Value};
use oroshi_words::nearest;

use super::{Library, at_top_level, wrong};
use crate::data::{ColumnName, Declaration, Declarations, Origin, Row, Set, parse_separator};
use crate::settings::{kind, shown, text, truth};
use crate::thread::Thread;

/// A row that a user leases until its journey ends.
#[derive(Debug)]
pub(crate) struct Lease {
    set: Arc<Set>,
    index: usize,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.set.release(self.index);
    }
}

/// A set, as scripts see it.
struct Rows {
    set: Arc<Set>,
    /// The rows of a list.
    list: Option<Table>,
    /// Indexes of rows that scripts hold; its keys are weak.
    indexes: Table,
    thread: Rc<Thread>,
}

impl Rows {
    /// Refuses a call whose row nobody else may get, where other machines have the same rows.
    fn alone(&self, called: &str) -> mlua::Result<()> {
        if self.set.is_everywhere() {
            return Err(wrong(format!(
                "{called}: each load machine has all rows of {}, so that several users would get the same one: expected \
                 split = true where the set is declared",
                self.set.declaration()
            )));
        }
        Ok(())
    }

    /// Makes a row for a script.
    fn row(&self, lua: &Lua, index: Option<usize>) -> mlua::Result<Value> {
        let Some(index) = index else { return Ok(Value::Nil) };
        let value = match self.set.get(index) {
            None => return Ok(Value::Nil),
            Some(Row::Fields(fields)) => {
                let row = lua.create_table()?;
                for (name, field) in fields.iter() {
                    let field = lua.create_string(field)?;
                    match name {
                        ColumnName::Text(name) => row.raw_set(lua.create_string(name)?, field)?,
                        ColumnName::Number(number) => row.raw_set(number, field)?,
                    }
                }
                Value::Table(row)
            }
            Some(Row::Json(text)) => crate::response::decode(lua, text.as_bytes())?.0,
            Some(Row::Listed(place)) => match &self.list {
                Some(list) => list.raw_get(place + 1)?,
                None => Value::Nil,
            },
        };
        if let Value::Table(row) = &value {
            self.indexes.raw_set(row, index)?;
        }
        Ok(value)
    }
}

impl UserData for Rows {
    fn add_methods<M: UserDataMethods<Self>>(methods: &mut M) {
        methods.add_meta_method("__len", |_, it, ()| Ok(it.set.len()));
        methods.add_method("size", |_, it, ()| Ok(it.set.len()));
        methods.add_method("get", |lua, it, index: usize| it.row(lua, index.checked_sub(1)));
        methods.add_method("random", |lua, it, ()| {
            let user = it.thread.user("random")?;
            let index = user.choices.borrow_mut().pick(it.set.len());
            it.row(lua, index)
        });
        methods.add_method("own", |lua, it, ()| {
            let user = it.thread.user("own")?;
            it.row(lua, it.set.own(user.id))
        });
        methods.add_method("next", |lua, it, ()| {
            it.thread.user("next")?;
            if !it.set.wraps() {
                it.alone("next")?;
            }
            it.row(lua, it.set.next())
        });
        methods.add_method("lease", |lua, it, ()| {
            let user = it.thread.user("lease")?;
            it.alone("lease")?;
            let index = it.set.lease(user.choices.borrow_mut().bits());
            if let Some(index) = index {
                user.leases.borrow_mut().push(Lease { set: Arc::clone(&it.set), index });
            }
            it.row(lua, index)
        });
        methods.add_method("release", |_, it, row: Value| {
            let user = it.thread.user("release")?;
            let index = match &row {
                Value::Table(row) => it.indexes.raw_get::<Option<usize>>(row)?,
                _ => None,
            };
            let mut leases = user.leases.borrow_mut();
            let held = |lease: &Lease| Arc::ptr_eq(&lease.set, &it.set) && Some(lease.index) == index;
            match leases.iter().position(held) {
                Some(place) => {
                    leases.swap_remove(place);
                    Ok(())
                }
                None => Err(wrong("release: the user does not lease this row: expected one that `lease` returned")),
            }
        });
    }
}

pub(super) fn add(library: &Library<'_>) -> mlua::Result<()> {
    let indexes = library.lua.create_table()?;
    let weak = library.lua.create_table()?;
    weak.raw_set("__mode", "k")?;
    indexes.set_metatable(Some(weak))?;
    let declarations = Rc::clone(&library.thread.declarations);
    declarations.replace(Some(Declarations::new(&library.thread.run.sets)));
    let table = library.lua.create_table()?;
    for kind in ["csv", "jsonl", "list"] {
        let (indexes, declarations) = (indexes.clone(), Rc::clone(&declarations));
        let declare = library.function(move |_, thread, (source, options): (Value, Value)| {
            let called = format!("data.{kind}");
            at_top_level(thread, &called)?;
            let (declaration, list) =
                declaration(kind, &source, &options).map_err(|why| wrong(format!("{called}: {why}")))?;
            let mut declarations = declarations.borrow_mut();
            let declarations =
                declarations.as_mut().ok_or_else(|| wrong(format!("{called}: expected it at the top level")))?;
            let set = declarations.declare(declaration);
            let set = set.map_err(|why| wrong(format!("{called}: {why}")))?;
            Ok(Rows { set, list, indexes: indexes.clone(), thread: Rc::clone(thread) })
        })?;
        table.raw_set(kind, declare)?;
    }
    library.lua.globals().raw_set("data", table)
}

fn declaration(kind_of: &str, source: &Value, options: &Value) -> Result<(Declaration, Option<Table>), String> {
    let (mut declaration, list) = match (kind_of, source) {
        ("csv", source) => (Declaration::csv(text("the path", source)?), None),
        ("jsonl", source) => (Declaration::json_lines(text("the path", source)?), None),
        (_, Value::Table(list)) => (Declaration::list(list.raw_len()), Some(list.clone())),
        (_, other) => return Err(format!("expected a list; this is {}", kind(other))),
    };
    let options = match options {
        Value::Nil => return Ok((declaration, list)),
        Value::Table(options) => options,
        other => return Err(format!("the options are {}: expected a table", kind(other))),
    };
    for pair in options.pairs::<LuaString, Value>() {
        let (key, value) = pair.map_err(|_| "options have names, as in { wrap = true }".to_owned())?;
        let key = key.to_string_lossy();
        match (key.as_str(), &mut declaration.origin) {
            ("wrap", _) => declaration.wrap = truth(&key, &value)?,
            ("split", _) => declaration.split = truth(&key, &value)?,
            ("separator", Origin::Csv { separator, .. }) => {
                *separator = parse_separator(text(&key, &value)?.as_bytes())?;
            }
            ("header", Origin::Csv { header, .. }) => *header = truth(&key, &value)?,
            _ => {
                let meant = nearest(&key, ["wrap", "split", "separator", "header"]);
                let meant = meant.map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
                return Err(format!("the option `{}` is unknown here{meant}", shown(&key)));
            }
        }
    }
    Ok((declaration, list))
}
