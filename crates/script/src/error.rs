//! What a script did wrong, and where.
//!
//! LuaJIT tells an error as a text, `counter.lua:12: attempt to index a nil value`, and mlua adds the functions that led there.
//! Here the place is taken from the one or the other, and what is not the script's is left out.

use mlua::Error as LuaError;

/// What is wrong with a script, or went wrong in it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {what}")]
pub struct Error {
    /// The file as it was named, with the line where that is known: `scripts/counter.lua:12`.
    pub place: String,
    /// What happened. Further lines, if any, begin with two spaces: the calls that led there, innermost first.
    pub what: String,
    /// What kind of mistake it is.
    pub kind: Kind,
}

/// Kinds of mistakes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The file cannot be read: name another one.
    File,
    /// It is not Lua: correct the line.
    Syntax,
    /// It failed while it ran: correct the line, or what it was given.
    Runtime,
    /// It did not return in time and was ended: look for a loop at that line.
    Interrupted,
    /// It did not return in time and cannot be ended, as it is stuck outside of Lua: the process has to end.
    Stuck,
    /// It took more instructions than it may: look for a loop at that line.
    Instructions,
    /// It took more memory than there is for it: look for what grows.
    Memory,
    /// It returned something that cannot be used.
    Value,
}

/// The most calls that are told.
const MOST_CALLS: usize = 8;

/// What the errors of one call are told with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Context<'a> {
    /// The script's file, as it was named.
    pub(crate) file: &'a str,
    /// How LuaJIT shortens that name.
    pub(crate) short: &'a str,
    /// Other files of the script whose names LuaJIT shortens: how, and in full.
    pub(crate) modules: &'a [(String, String)],
    /// Names of chunks that are not the script's.
    pub(crate) preludes: &'a [String],
    /// What was called: the name of a function, or [`TOP_LEVEL`].
    pub(crate) what: &'static str,
}

/// The name under which a file's own lines are called.
pub(crate) const TOP_LEVEL: &str = "the top level";

/// `request()`.
pub(crate) fn subject(what: &str) -> String {
    if what == TOP_LEVEL { what.to_owned() } else { format!("{what}()") }
}

impl Context<'_> {
    /// Tells what mlua found; `place` is where the function stands, for want of a better one.
    pub(crate) fn explain(&self, error: &LuaError, place: impl FnOnce() -> String) -> Error {
        let (kind, text, calls) = pieces(error);
        // What mlua adds to a text begins on a line of its own.
        let (text, added) = text.split_once("\nstack traceback:\n").unwrap_or((&text, ""));
        let calls = if calls.is_empty() { added } else { calls };
        let mut calls: Vec<(String, &str)> = calls.lines().filter_map(|line| self.call(line)).collect();
        // Recursion.
        calls.dedup();

        let (stated, text) = match self.split(text) {
            Some((place, rest)) => (Some(place).filter(|place| !self.is_ours(place)), rest),
            None => (None, text.strip_prefix(&format!("{}:0: ", self.short)).unwrap_or(text)),
        };
        let stated = stated.map(|place| self.whole(place));
        let innermost = calls.first().map(|(place, _)| place.clone());
        let mut what = self.words(text);
        // LuaJIT does not know the line at which a coroutine failed; the text does.
        if calls.len() > 1 || calls.len() == 1 && stated.is_some() && stated != innermost {
            for (place, function) in calls.iter().take(MOST_CALLS) {
                what += &format!("\n  {place}: {function}");
            }
            if calls.len() > MOST_CALLS {
                what += "\n  ...";
            }
        }
        Error { place: stated.or(innermost).unwrap_or_else(place), what, kind }
    }

    /// What was raised, if it was no message.
    fn words(&self, text: &str) -> String {
        let subject = subject(self.what);
        match text {
            "nil" => format!("{subject} raised an error without a message: error(nil)"),
            "" => format!("{subject} raised an error whose message is empty"),
            _ if text.starts_with("table: 0x") => {
                format!("{subject} raised a table as its error, which has no __tostring to say what it means")
            }
            _ => text.trim_end().to_owned(),
        }
    }

    /// A line of a traceback: `counter.lua:12: in function 'path'`.
    fn call<'t>(&self, line: &'t str) -> Option<(String, &'t str)> {
        let (place, function) = self.split(line.trim_start())?;
        (!self.is_ours(place)).then(|| (self.whole(place), function))
    }

    /// The place at the beginning of a text, and the rest of it. A file of the script's may have a colon and a space in its name; of any other
    /// name, these are where a message begins that has a place further on.
    fn split<'t>(&self, text: &'t str) -> Option<(&'t str, &'t str)> {
        text.match_indices(": ").find_map(|(at, _)| {
            let (place, rest) = (&text[..at], &text[at + 2..]);
            let (name, line) = place.rsplit_once(':')?;
            // It says 0 where it knows no line.
            let is_line = line.bytes().all(|b| b.is_ascii_digit()) && line.parse() != Ok(0);
            let is_name = !name.is_empty() && !name.contains('\n') && (!name.contains(": ") || self.is_file(name));
            (is_line && !line.is_empty() && is_name).then_some((place, rest))
        })
    }

    fn is_file(&self, name: &str) -> bool {
        name == self.file
            || name == self.short
            || self.modules.iter().any(|(short, file)| name == short || name == file)
    }

    fn is_ours(&self, place: &str) -> bool {
        let name = place.rsplit_once(':').map_or(place, |(name, _)| name);
        // mlua's own lines, between a userdata and its fields, are called so.
        name.starts_with("__mlua_") || self.preludes.iter().any(|prelude| prelude == name)
    }

    /// With the file's name in full.
    fn whole(&self, place: &str) -> String {
        let modules = self.modules.iter().map(|(short, file)| (&**short, &**file));
        let in_full = std::iter::once((self.short, self.file)).chain(modules).find_map(|(short, file)| {
            let line = place.strip_prefix(short).filter(|line| line.starts_with(':'))?;
            Some(format!("{file}{line}"))
        });
        in_full.unwrap_or_else(|| place.to_owned())
    }
}

/// A file's name as LuaJIT writes it before a message (lj_debug.c): its end, if it is long.
pub(crate) fn shortened(file: &str) -> String {
    const MOST: usize = 60;
    if file.len() < MOST {
        return file.to_owned();
    }
    // It cuts bytes; half a character comes to us as the sign for that.
    let end = &file.as_bytes()[file.len() + 4 - MOST..];
    format!("...{}", String::from_utf8_lossy(end))
}

/// What kind of error it is, its text, and the calls that led to it if they do not stand in the text.
fn pieces(error: &LuaError) -> (Kind, String, &str) {
    match error {
        LuaError::SyntaxError { message, .. } => (Kind::Syntax, message.clone(), ""),
        LuaError::RuntimeError(text) => (Kind::Runtime, text.clone(), ""),
        LuaError::MemoryError(text) => (Kind::Memory, text.clone(), ""),
        LuaError::FromLuaConversionError { from, to, message } => {
            let why = message.as_ref().map(|why| format!(" ({why})")).unwrap_or_default();
            (Kind::Value, format!("it returned a {from} where a {} is expected{why}", in_lua(to)), "")
        }
        // What a function of ours was given.
        LuaError::BadArgument { pos, name, cause, .. } => (Kind::Runtime, argument(*pos, name.as_deref(), cause), ""),
        LuaError::UserDataTypeMismatch => (Kind::Runtime, "this is not the object that it is called on".to_owned(), ""),
        LuaError::CallbackError { traceback, cause } if matches!(**cause, LuaError::FromLuaConversionError { .. }) => {
            (Kind::Runtime, argument(0, None, cause), traceback)
        }
        LuaError::CallbackError { traceback, cause } => {
            // Errors that passed through several functions of ours have one cause, and the first has the deepest calls.
            let (kind, text, deeper) = pieces(cause);
            (kind, text, if deeper.is_empty() { traceback } else { deeper })
        }
        LuaError::WithContext { context, cause } => {
            let (kind, text, calls) = pieces(cause);
            (kind, format!("{context}: {text}"), calls)
        }
        other => (Kind::Runtime, other.to_string(), ""),
    }
}

/// What is wrong with an argument, from 1; 0: there is but one.
fn argument(place: usize, name: Option<&str>, cause: &LuaError) -> String {
    let what = match cause {
        LuaError::FromLuaConversionError { from, to, .. } => {
            if name == Some("self") {
                return "it is a method: expected a colon before its name, as in request:values(\"X-A\")".to_owned();
            }
            format!(
                "expected a {}, not {}",
                in_lua(to),
                if *from == "nil" { "nil".to_owned() } else { format!("a {}", in_lua(from)) }
            )
        }
        LuaError::UserDataTypeMismatch => "this is not the object that it is called on".to_owned(),
        LuaError::RuntimeError(text) => text.clone(),
        other => pieces(other).1,
    };
    match place {
        0 => what,
        place => format!("bad argument #{place}: {what}"),
    }
}

/// A type's name as scripts know it. mlua names Rust's.
fn in_lua(name: &str) -> &str {
    let last = name.rsplit("::").next().unwrap_or(name);
    match last {
        "String" | "LuaString" | "BString" | "str" | "&str" | "OsString" | "PathBuf" => "string",
        "i8" | "i16" | "i32" | "i64" | "isize" | "u8" | "u16" | "u32" | "u64" | "usize" | "f32" | "f64" | "integer" => {
            "number"
        }
        "bool" => "boolean",
        "Table" | "HashMap" | "BTreeMap" | "Vec" => "table",
        "Function" => "function",
        "Thread" => "coroutine",
        "AnyUserData" | "UserData" | "UserDataRef" | "UserDataRefMut" => "userdata",
        // Said by ourselves, in words.
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTEXT: Context<'_> = Context {
        file: "/a/very/long/path/to/the/folder/of/all/scripts/counter.lua",
        short: "...scripts/counter.lua",
        modules: &[],
        preludes: &[],
        what: "request",
    };

    fn explain(preludes: &[&str], error: &LuaError) -> (String, String) {
        let preludes: Vec<String> = preludes.iter().map(|&name| name.to_owned()).collect();
        let context = Context { preludes: &preludes, file: "counter.lua", short: "counter.lua", ..CONTEXT };
        let error = context.explain(error, || "counter.lua:1".into());
        (error.place, error.what)
    }

    fn runtime(text: &str) -> LuaError {
        LuaError::RuntimeError(text.into())
    }

    #[test]
    fn the_place_is_the_text_s_own() {
        let told = explain(
            &[],
            &runtime(
                "counter.lua:7: bad: 3: things\nstack traceback:\n\t[C]: in function 'error'\n\tcounter.lua:7: in function <counter.lua:5>",
            ),
        );
        assert_eq!(told, ("counter.lua:7".into(), "bad: 3: things".into()));
        let odd = Context { file: "C:/x: y.lua", short: "C:/x: y.lua", ..CONTEXT };
        let error = odd.explain(&runtime("C:/x: y.lua:7: bad"), String::new);
        assert_eq!((&*error.place, &*error.what), ("C:/x: y.lua:7", "bad"));
        let told = explain(&[], &runtime("it failed elsewhere: counter.lua:7: bad"));
        assert_eq!(told, ("counter.lua:1".into(), "it failed elsewhere: counter.lua:7: bad".into()));
    }

    #[test]
    fn a_text_without_a_place_has_that_of_the_innermost_line() {
        let calls = "bad\nstack traceback:\n\t[C]: in function 'error'\n\tcounter.lua:3: in function 'inner'\n\t[wrk]:40: in function 'outer'\n\tcounter.lua:9: in function <counter.lua:8>";
        let (place, what) = explain(&["[wrk]"], &runtime(calls));
        assert_eq!(place, "counter.lua:3");
        assert_eq!(what, "bad\n  counter.lua:3: in function 'inner'\n  counter.lua:9: in function <counter.lua:8>");
        assert_eq!(explain(&[], &runtime("bad")), ("counter.lua:1".into(), "bad".into()));
    }

    #[test]
    fn what_went_wrong_in_our_lines_is_told_at_the_script_s() {
        let text = "[wrk]:40: a number is wanted\nstack traceback:\n\t[wrk]:40: in function 'format'\n\tcounter.lua:9: in function <counter.lua:8>";
        assert_eq!(explain(&["[wrk]"], &runtime(text)), ("counter.lua:9".into(), "a number is wanted".into()));
    }

    #[test]
    fn an_error_of_ours_is_told_at_the_line_that_called() {
        let inner = LuaError::CallbackError {
            traceback: "stack traceback:\n\t[C]: in function 'get'\n\tcounter.lua:4: in function 'deep'\n\tcounter.lua:9: in function <counter.lua:8>".into(),
            cause: runtime("no such thread").into(),
        };
        let outer = LuaError::CallbackError { traceback: String::new(), cause: inner.into() };
        let (place, what) = explain(&[], &outer);
        assert_eq!((&*place, what.lines().next()), ("counter.lua:4", Some("no such thread")));
        assert_eq!(what.lines().count(), 3);
    }

    #[test]
    fn names_are_told_in_full_and_few_calls_suffice() {
        let calls: String = (1..100).map(|n| format!("\n\t...scripts/counter.lua:{n}: in function 'f'")).collect();
        let error =
            CONTEXT.explain(&runtime(&format!("...scripts/counter.lua:2: bad\nstack traceback:{calls}")), String::new);
        assert_eq!(error.place, "/a/very/long/path/to/the/folder/of/all/scripts/counter.lua:2");
        assert_eq!(error.what.lines().count(), 1 + MOST_CALLS + 1);
        assert!(error.what.ends_with("scripts/counter.lua:8: in function 'f'\n  ..."), "{}", error.what);
    }

    #[test]
    fn recursion_is_told_once_and_line_0_is_none() {
        let calls = "counter.lua:0: stack overflow\nstack traceback:".to_owned()
            + &"\n\tcounter.lua:2: in function 'f'".repeat(50);
        assert_eq!(explain(&[], &runtime(&calls)), ("counter.lua:2".into(), "stack overflow".into()));
        assert_eq!(explain(&[], &runtime("counter.lua:0: bad")), ("counter.lua:1".into(), "bad".into()));
    }

    #[test]
    fn what_is_no_message_is_said_to_be_none() {
        for (text, part) in [("nil", "error(nil)"), ("", "empty"), ("table: 0x7f00", "__tostring")] {
            let (_, what) = explain(&[], &runtime(text));
            assert!(what.starts_with("request() raised ") && what.contains(part), "{what}");
        }
    }

    #[test]
    fn names_are_shortened_as_luajit_does() {
        let lua = crate::guard::new_state().unwrap();
        for length in [1, 58, 59, 60, 61, 200] {
            let name: String = ('a'..='z').cycle().take(length).collect();
            let function = lua.load("").set_name(format!("@{name}")).into_function().unwrap();
            assert_eq!(function.info().short_src, Some(shortened(&name)), "{length}");
        }
    }
}
