//! Errors of scripts, with their positions.
//!
//! LuaJIT reports an error as a text, `counter.lua:12: attempt to index a nil value`, and mlua adds the traceback.
//! This module takes the position from either, and omits lines outside the script.

use mlua::Error as LuaError;

/// An error of a script.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {what}")]
pub struct Error {
    /// The file as it was named, with the line if known: `scripts/counter.lua:12`.
    pub place: String,
    /// The message. Further lines, if any, begin with two spaces: the calls that led there, innermost first.
    pub what: String,
    /// The kind of error.
    pub kind: Kind,
}

/// Kinds of errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The file cannot be read: name another.
    File,
    /// The file is not Lua: correct the line.
    Syntax,
    /// The script failed while it ran: correct the line, or its input.
    Runtime,
    /// A call did not return in time and was ended: look for a loop at that line.
    Interrupted,
    /// A call did not return in time and cannot be ended, because it is stuck outside Lua: the process has to end.
    Stuck,
    /// A call exceeded its instruction limit: look for a loop at that line.
    Instructions,
    /// A call exceeded its memory limit: look for a growing value.
    Memory,
    /// A call returned an unusable value.
    Value,
}

/// The most reported calls of a traceback.
const MOST_CALLS: usize = 8;

/// Context for the errors of one call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Context<'a> {
    /// The script's file, as it was named.
    pub(crate) file: &'a str,
    /// LuaJIT's short form of that name.
    pub(crate) short: &'a str,
    /// Other files of the script that LuaJIT shortens: short form, and full name.
    pub(crate) modules: &'a [(String, String)],
    /// Names of chunks outside the script.
    pub(crate) preludes: &'a [String],
    /// Name of the called function, or [`TOP_LEVEL`].
    pub(crate) what: &'static str,
}

/// The name for a file's own lines.
pub(crate) const TOP_LEVEL: &str = "the top level";

/// Formats `request()`.
pub(crate) fn subject(what: &str) -> String {
    if what == TOP_LEVEL { what.to_owned() } else { format!("{what}()") }
}

impl Context<'_> {
    /// Converts mlua's error; `place` is the position of the function, used if there is no better one.
    pub(crate) fn explain(&self, error: &LuaError, place: impl FnOnce() -> String) -> Error {
        let (kind, text, calls) = pieces(error);
        // mlua's addition to a text begins on its own line.
        let (text, added) = text.split_once("\nstack traceback:\n").unwrap_or((&text, ""));
        let calls = if calls.is_empty() { added } else { calls };
        let mut calls: Vec<(String, &str)> = calls.lines().filter_map(|line| self.call(line)).collect();
        // Recursion repeats lines.
        calls.dedup();

        let (stated, text) = match self.split(text) {
            Some((place, rest)) => (Some(place).filter(|place| !self.is_ours(place)), rest),
            None => (None, text.strip_prefix(&format!("{}:0: ", self.short)).unwrap_or(text)),
        };
        let stated = stated.map(|place| self.whole(place));
        let innermost = calls.first().map(|(place, _)| place.clone());
        let mut what = self.words(text);
        // LuaJIT does not know the line where a coroutine failed; the text has it.
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

    /// Describes the raised value if it is not a message.
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

    /// Parses a line of a traceback: `counter.lua:12: in function 'path'`.
    fn call<'t>(&self, line: &'t str) -> Option<(String, &'t str)> {
        let (place, function) = self.split(line.trim_start())?;
        (!self.is_ours(place)).then(|| (self.whole(place), function))
    }

    /// Splits the position at the beginning of a text from the rest.
    ///
    /// A file name of the script may contain a colon and a space. In any other name, these begin a message with a
    /// position further on.
    fn split<'t>(&self, text: &'t str) -> Option<(&'t str, &'t str)> {
        text.match_indices(": ").find_map(|(at, _)| {
            let (place, rest) = (&text[..at], &text[at + 2..]);
            let (name, line) = place.rsplit_once(':')?;
            // Line 0 means that the line is unknown.
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
        // mlua's own functions, between a userdata and its fields.
        name.starts_with("__mlua_") || self.preludes.iter().any(|prelude| prelude == name)
    }

    /// Expands the short form of a file's name.
    fn whole(&self, place: &str) -> String {
        let modules = self.modules.iter().map(|(short, file)| (&**short, &**file));
        let in_full = std::iter::once((self.short, self.file)).chain(modules).find_map(|(short, file)| {
            let line = place.strip_prefix(short).filter(|line| line.starts_with(':'))?;
            Some(format!("{file}{line}"))
        });
        in_full.unwrap_or_else(|| place.to_owned())
    }
}

/// Shortens a file's name as LuaJIT does in messages (lj_debug.c): keeps its end, if it is long.
pub(crate) fn shortened(file: &str) -> String {
    const MOST: usize = 60;
    if file.len() < MOST {
        return file.to_owned();
    }
    // LuaJIT cuts bytes; mlua gives us a replacement character for half a character.
    let end = &file.as_bytes()[file.len() + 4 - MOST..];
    format!("...{}", String::from_utf8_lossy(end))
}

/// Returns the kind of an error, its text, and its traceback if the text lacks it.
fn pieces(error: &LuaError) -> (Kind, String, &str) {
    match error {
        LuaError::SyntaxError { message, .. } => (Kind::Syntax, message.clone(), ""),
        LuaError::RuntimeError(text) => (Kind::Runtime, text.clone(), ""),
        LuaError::MemoryError(text) => (Kind::Memory, text.clone(), ""),
        LuaError::FromLuaConversionError { from, to, message } => {
            let why = message.as_ref().map(|why| format!(" ({why})")).unwrap_or_default();
            (Kind::Value, format!("it returned a {from} where a {} is expected{why}", in_lua(to)), "")
        }
        // The argument of a function of ours.
        LuaError::BadArgument { pos, name, cause, .. } => (Kind::Runtime, argument(*pos, name.as_deref(), cause), ""),
        LuaError::UserDataTypeMismatch => (Kind::Runtime, "this is not the object that it is called on".to_owned(), ""),
        LuaError::CallbackError { traceback, cause } if matches!(**cause, LuaError::FromLuaConversionError { .. }) => {
            (Kind::Runtime, argument(0, None, cause), traceback)
        }
        LuaError::CallbackError { traceback, cause } => {
            // Errors that passed through several functions of ours have one cause, and the first has the deepest
            // calls.
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

/// Describes the defect of an argument, from 1; 0 if there is only one.
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

/// Returns the Lua name of a type. mlua uses Rust's.
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
        // A description of our own.
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
                "counter.lua:7: bad: 3: things\nstack traceback:\n\t[C]: in function 'error'\n\
                 \tcounter.lua:7: in function <counter.lua:5>",
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
        let calls = "bad\nstack traceback:\n\t[C]: in function 'error'\n\tcounter.lua:3: in function 'inner'\n\
                     \t[wrk]:40: in function 'outer'\n\tcounter.lua:9: in function <counter.lua:8>";
        let (place, what) = explain(&["[wrk]"], &runtime(calls));
        assert_eq!(place, "counter.lua:3");
        assert_eq!(what, "bad\n  counter.lua:3: in function 'inner'\n  counter.lua:9: in function <counter.lua:8>");
        assert_eq!(explain(&[], &runtime("bad")), ("counter.lua:1".into(), "bad".into()));
    }

    #[test]
    fn what_went_wrong_in_our_lines_is_told_at_the_script_s() {
        let text = "[wrk]:40: a number is wanted\nstack traceback:\n\t[wrk]:40: in function 'format'\n\
                    \tcounter.lua:9: in function <counter.lua:8>";
        assert_eq!(explain(&["[wrk]"], &runtime(text)), ("counter.lua:9".into(), "a number is wanted".into()));
    }

    #[test]
    fn an_error_of_ours_is_told_at_the_line_that_called() {
        let inner = LuaError::CallbackError {
            traceback: "stack traceback:\n\t[C]: in function 'get'\n\tcounter.lua:4: in function 'deep'\n\
                        \tcounter.lua:9: in function <counter.lua:8>"
                .into(),
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
