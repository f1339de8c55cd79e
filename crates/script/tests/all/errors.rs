//! Errors of scripts and their messages: the file, the line, the traceback.

use std::time::Duration;

use crate::common::{bounded, function, told, with};
use mlua::Function;
use oroshi_script::{Engine, Error, Kind, Parameters};

const LIMIT: Duration = Duration::from_secs(3600);

fn failed(source: impl AsRef<[u8]>) -> Error {
    let source = source.as_ref().to_vec();
    with(source, LIMIT, |loaded| loaded.expect_err("it fails"))
}

#[test]
fn syntax_errors_have_a_line() {
    let error = failed("local x = 1\nif x then\n");
    assert_eq!(
        (told(&error), error.kind),
        ("a.lua:3: 'end' expected (to close 'if' at line 2) near '<eof>'".into(), Kind::Syntax)
    );
    let error = failed("x = = 1");
    assert_eq!(told(&error), "a.lua:1: unexpected symbol near '='");
    let error = failed(b"\x7fELF\x02\x01\x01\x00 not Lua at all \xff\xfe");
    assert_eq!(error.kind, Kind::Syntax);
    assert!(told(&error).starts_with("a.lua:1: "), "{error}");
}

#[test]
fn long_file_names_are_told_in_full() {
    let folder = tempfile::tempdir().unwrap();
    let deep = folder.path().join("a-folder-with-a-long-name/and-one-more-of-them/so-that-it-is-shortened");
    std::fs::create_dir_all(&deep).unwrap();
    for (name, source) in
        [("syntax.lua", "\n=="), ("runtime.lua", "\nerror('bad')"), ("loop.lua", "\nwhile true do end")]
    {
        let file = deep.join(name);
        std::fs::write(&file, source).unwrap();
        let path = file.clone();
        let error = bounded(move || Engine::new(&path, Duration::from_millis(100)).unwrap().load().unwrap_err());
        assert_eq!(error.place, format!("{}:2", file.display()), "{error}");
    }
}

#[test]
fn a_file_that_cannot_be_read_is_said_to_be_that() {
    let folder = tempfile::tempdir().unwrap();
    for (path, why) in [(folder.path().join("none.lua"), "No such file"), (folder.path().to_owned(), "Is a directory")]
    {
        let shown = path.display().to_string();
        let error = bounded(move || Engine::new(&path, LIMIT).unwrap().load().unwrap_err());
        assert_eq!((error.kind, &error.place), (Kind::File, &shown));
        assert!(error.what.contains(why), "{error}");
    }
}

#[test]
fn a_name_that_is_no_utf_8_is_read_all_the_same() {
    use std::os::unix::ffi::OsStrExt;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join(std::ffi::OsStr::from_bytes(b"\xff.lua"));
    std::fs::write(&file, "error('bad')").unwrap();
    let error = bounded(move || Engine::new(&file, LIMIT).unwrap().load().unwrap_err());
    assert!(error.place.ends_with("\u{fffd}.lua:1") && error.what == "bad", "{error}");
}

#[test]
fn runtime_errors_have_a_line_and_the_calls_that_led_there() {
    let source = "local function inner(t)\n  return t.x.y\nend\nlocal function outer()\n  local y = inner({})\n  \
                  return y\nend\nouter()\n";
    let error = failed(source);
    assert_eq!(error.kind, Kind::Runtime);
    let expected = "a.lua:2: attempt to index field 'x' (a nil value)
  a.lua:2: in upvalue 'inner'
  a.lua:5: in local 'outer'
  a.lua:8: in main chunk";
    assert_eq!(told(&error), expected);
    assert_eq!(told(&failed("\nerror('plain')")), "a.lua:2: plain");
    assert_eq!(told(&failed("\nerror('no place', 0)")), "a.lua:2: no place");
}

#[test]
fn errors_that_are_no_messages_are_told_as_such() {
    let nil = "the top level raised an error without a message: error(nil)";
    assert_eq!(told(&failed("error()")), format!("a.lua:1: {nil}"));
    let table = "the top level raised a table as its error, which has no __tostring to say what it means";
    assert_eq!(told(&failed("\nerror({ code = 7 })")), format!("a.lua:2: {table}"));
    let speaking = "error(setmetatable({}, { __tostring = function() return 'code 7' end }))";
    assert_eq!(told(&failed(speaking)), "a.lua:1: code 7");
    assert_eq!(told(&failed("error(12)")), "a.lua:1: 12");
    // The error's own description fails.
    let broken = "error(setmetatable({}, { __tostring = function() error('deeper') end }))";
    assert_eq!(failed(broken).kind, Kind::Runtime);
    let deep = "local m = {} m.__tostring = function(s) return '' .. tostring(s) end error(setmetatable({}, m))";
    assert_eq!(failed(deep).kind, Kind::Runtime);
}

#[test]
fn messages_may_be_any_bytes() {
    assert_eq!(told(&failed(b"error('\xff\xfe bad')")), "a.lua:1: \u{fffd}\u{fffd} bad");
    assert!(told(&failed("error('before\\0after')")).starts_with("a.lua:1: before"));
    let long = failed("error(string.rep('x', 5e6))");
    assert_eq!(long.what.len(), 5_000_000);
}

#[test]
fn recursion_without_an_end_is_an_error() {
    assert_eq!(told(&failed("local function f() return 1 + f() end f()")), "a.lua: stack overflow");
    // Through C functions, which use this thread's own stack.
    let through_c = [
        "local function f() string.gsub('a', 'a', f) end f()",
        "local function f() table.sort({ 1, 2 }, f) end f()",
        "local function f() pcall(f) error('x') end f()",
        "local t = setmetatable({}, {}) getmetatable(t).__index = function(t, k) return t[k] end local x = t.y",
        "local function f() return '' .. tostring(setmetatable({}, { __tostring = f })) end f()",
    ];
    for source in through_c {
        assert_eq!(failed(source).kind, Kind::Runtime, "{source}");
    }
}

#[test]
fn errors_of_functions_that_are_not_lua_s_are_told_at_the_line_that_called() {
    with("function go()\n  deep()\nend", LIMIT, |loaded| {
        let engine = loaded.unwrap();
        let fail = engine.lua().create_function(|_, ()| -> mlua::Result<()> { Err(mlua::Error::runtime("of ours")) });
        engine.lua().globals().set("deep", fail.unwrap()).unwrap();
        let error = engine.call::<()>("go", &function(&engine, "go"), ()).unwrap_err();
        assert_eq!(told(&error), "a.lua:2: of ours");
    });
}

#[test]
fn our_own_lines_do_not_show() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.lua");
    std::fs::write(&file, "\nours(nil)").unwrap();
    bounded(move || {
        let engine = Engine::new(&file, LIMIT).unwrap();
        engine.prelude("api", "function ours(n)\n return n + 1\nend").unwrap();
        let error = engine.load().unwrap_err();
        assert_eq!(told(&error), "a.lua:2: attempt to perform arithmetic on local 'n' (a nil value)");
        let error = engine.call::<()>("ours", &function(&engine, "ours"), ()).unwrap_err();
        assert_eq!(told(&error), "a.lua: attempt to perform arithmetic on local 'n' (a nil value)");
        assert_eq!(engine.prelude("api", "x x").unwrap_err().kind, Kind::Syntax);
    });
}

#[test]
fn what_is_returned_has_to_fit() {
    with("\nfunction three() return {} end", LIMIT, |loaded| {
        let engine = loaded.unwrap();
        let error = engine.call::<u32>("three", &function(&engine, "three"), ()).unwrap_err();
        assert_eq!(
            (told(&error).split(" (").next(), error.kind),
            (Some("a.lua:2: it returned a table where a number is expected"), Kind::Value)
        );
    });
}

#[test]
fn an_error_in_a_finaliser_is_no_end() {
    let source =
        "getmetatable(newproxy(true)).__gc = function() error('late') end\nfor i = 1, 10 do pcall(collectgarbage) end";
    with(source, LIMIT, drop);
}

#[test]
fn a_yield_has_nowhere_to_go() {
    let told = told(&failed("pcall(coroutine.yield, 1)\ncoroutine.yield(1)"));
    assert_eq!(told, "a.lua:2: attempt to yield across C-call boundary");
}

#[test]
fn places_and_parameters_are_known_beforehand() {
    let source = "function two(a, b) end\nfunction any(a, ...) end";
    with(source, LIMIT, |loaded| {
        let engine = loaded.unwrap();
        let (two, any) = (function(&engine, "two"), function(&engine, "any"));
        let print: Function = function(&engine, "print");
        assert!(engine.place(&two).ends_with("/a.lua:1") && engine.place(&any).ends_with("/a.lua:2"));
        assert!(engine.place(&print).ends_with("/a.lua"));
        assert_eq!(engine.parameters(&two), Parameters { count: 2, varargs: false });
        assert_eq!(engine.parameters(&any), Parameters { count: 1, varargs: true });
        assert_eq!(engine.parameters(&print), Parameters { count: 0, varargs: true });
    });
}

#[test]
fn a_script_may_break_its_own_libraries() {
    let source =
        "debug.getinfo = nil io.stdout = nil io = nil pcall = nil error = nil tostring = nil\nlocal x = nil + 1";
    assert!(told(&failed(source)).starts_with("a.lua:2: attempt to perform arithmetic on a nil value"));
    with("io.stdout:close() debug = nil", LIMIT, |loaded| {
        let engine = loaded.unwrap();
        engine.flush();
    });
}

#[test]
fn strings_may_be_huge_and_have_any_bytes() {
    with("function huge(n) return string.rep('\\0x', n) end function length(s) return #s end", LIMIT, |loaded| {
        let engine = loaded.unwrap();
        let huge: mlua::LuaString = engine.call("huge", &function(&engine, "huge"), 50_000_000).unwrap();
        assert_eq!((huge.as_bytes().len(), &huge.as_bytes()[..4]), (100_000_000, &b"\0x\0x"[..]));
        assert_eq!(engine.call::<usize>("length", &function(&engine, "length"), huge).unwrap(), 100_000_000);
        let error = engine.call::<mlua::Value>("huge", &function(&engine, "huge"), 2e9).unwrap_err();
        assert!(matches!(error.kind, Kind::Memory | Kind::Runtime), "{error}");
    });
}
