//! Functions of strings and tables that may run for long, in confined states: they behave like LuaJIT's own, and
//! charge their work.

use std::path::Path;
use std::time::Duration;

use crate::common::{bounded, function, told};
use mlua::{Function, Lua};
use oroshi_script::{ConfinedOptions, Engine, Error, Kind, Progress};

/// Applies a text and a pattern in every way, and returns all results.
const EACH_WAY: &str = r##"
local find, match, gmatch, gsub, pcall, select, type, tostring =
  string.find, string.match, string.gmatch, string.gsub, pcall, select, type, tostring
local function told(...)
  local parts = {}
  for i = 1, select("#", ...) do
    local value = (select(i, ...))
    parts[i] = type(value) .. ":" .. tostring(value)
  end
  return "<" .. table.concat(parts, "|") .. ">"
end
function each(s, p, with, init, most)
  local all = {}
  local function say(...) all[#all + 1] = told(...) end
  say(pcall(find, s, p)) say(pcall(find, s, p, init)) say(pcall(find, s, p, init, true))
  say(pcall(match, s, p)) say(pcall(match, s, p, init))
  say(pcall(gsub, s, p, with)) say(pcall(gsub, s, p, with, most))
  say(pcall(gsub, s, p, function(...) all[#all + 1] = told(...) if select("#", ...) > 1 then return "<>" end end, most))
  say(pcall(gsub, s, p, { a = "A", [""] = "-", [1] = 1 }))
  say(pcall(function() local n = 0 for a, b in gmatch(s, p) do n = n + 1 say(a, b) if n > 40 then break end end end))
  return table.concat(all)
end
"##;

fn confined(source: &str, change: impl FnOnce(&mut ConfinedOptions)) -> Engine {
    let mut confines = ConfinedOptions {
        memory: 64 << 20,
        jit: false,
        instructions: 1_000_000,
        limit: Duration::from_secs(3600),
        tell: Box::new(|_| {}),
        read: Box::new(|_| Err(std::io::ErrorKind::NotFound.into())),
    };
    change(&mut confines);
    let engine = Engine::confined(Path::new("a.lua"), confines).unwrap();
    engine.load_source(source.as_bytes()).unwrap();
    engine
}

fn call(engine: &Engine, name: &'static str, instructions: u64) -> Result<u64, Error> {
    let mut call = engine.coroutine(name, &function(engine, name), instructions)?;
    match engine.resume(&mut call, ())? {
        Progress::Returned(_) => Ok(call.instructions()),
        Progress::Waits => panic!("it waits for nothing"),
    }
}

/// LuaJIT's own functions, and ours.
struct Both {
    _lua: Lua,
    native: Function,
    engine: Engine,
    ours: Function,
}

impl Both {
    fn new() -> Self {
        let lua = Lua::new();
        lua.load(EACH_WAY).set_name("@a.lua").exec().unwrap();
        let engine = confined(EACH_WAY, |confines| confines.instructions = u64::from(u32::MAX));
        let (native, ours) = (lua.globals().get("each").unwrap(), function(&engine, "each"));
        Both { _lua: lua, native, engine, ours }
    }

    fn compare(&self, subject: &[u8], pattern: &[u8], with: &[u8], init: i32, most: i32) {
        let native: mlua::LuaString = self
            .native
            .call((bytes(&self._lua, subject), bytes(&self._lua, pattern), bytes(&self._lua, with), init, most))
            .unwrap();
        let lua = self.engine.lua();
        let args = (bytes(lua, subject), bytes(lua, pattern), bytes(lua, with), init, most);
        let ours: mlua::LuaString = self.engine.call("each", &self.ours, args).unwrap();
        assert_eq!(
            ours.to_string_lossy(),
            native.to_string_lossy(),
            "{:?} in {:?} with {:?}, {init}, {most}",
            String::from_utf8_lossy(pattern),
            String::from_utf8_lossy(subject),
            String::from_utf8_lossy(with),
        );
    }
}

fn bytes(lua: &Lua, bytes: &[u8]) -> mlua::LuaString {
    lua.create_string(bytes).unwrap()
}

#[test]
fn patterns_mean_what_they_mean_to_luajit() {
    let patterns = [
        "",
        "a",
        "^a",
        "a$",
        "^$",
        "^",
        "$",
        "a*",
        "a+",
        "a-",
        "a?",
        "^a-b",
        "(a)(b)",
        "()",
        "(a*(.)%w(%s*))",
        "%a+",
        "[%w_]+",
        "[^%s]+",
        "[]]",
        "[^]]",
        "[a-]",
        "[-a]",
        "[a-c-e]",
        "[%]]",
        "[%a-z]",
        "%%",
        "%",
        "[",
        "[a",
        "[%",
        "[^",
        "(",
        ")",
        "(a",
        "a)",
        "%1",
        "(a)%1",
        "(%1)",
        "()%1",
        "%0",
        "%9",
        "%b()",
        "%b",
        "%b(",
        "%bxx",
        "%f[%w]%w+",
        "%f",
        "%fa",
        "%f[",
        "%f[%z]",
        "%z",
        "%Z",
        "[%z]",
        "%A",
        "%c%C",
        "%d%D",
        "%g",
        "%G",
        "%l%L",
        "%p%P",
        "%u%U",
        "%x%X",
        "%y",
        "%@",
        "%[",
        "a**",
        "a+?",
        "*",
        "+a",
        "?",
        "-",
        "^*",
        "^^a",
        "a^",
        "a$b",
        ".",
        "..-$",
        "(.)(.)(.)",
        "((a)(b))",
        "(()a())",
        "a\0b",
        "a%\0",
        "[\0]",
        "[a\0]",
        "\u{e9}",
        "[\u{80}-\u{ff}]",
        "(.-)%s*=%s*(.-)$",
        "^([%w-]+)%.",
        "^/([%w-]+)/",
        "(%d+)%-(%d+)",
        "((((((((((a))))))))))",
        "%w*%d?%s-$",
    ];
    let subjects = [
        "",
        "a",
        "b",
        "ab",
        "aaa",
        "abab",
        "a b c",
        "hello world",
        "key = value ",
        "(a(b)c)",
        "((",
        "x]y",
        "a-b",
        "THE (quick) fox",
        "a\0b",
        "\0",
        "%d",
        "_a1",
        "\t\n\u{b} ",
        "10-20",
        "www.example.org",
        "/tenant/path",
        "h\u{e9}llo",
        "[a]",
        "^a$",
    ];
    bounded(move || {
        let both = Both::new();
        for pattern in patterns {
            for (index, subject) in subjects.iter().enumerate() {
                let with = ["x", "%0%1", "%2", "%", "<%%>", "%a", ""][index % 7];
                both.compare(
                    subject.as_bytes(),
                    pattern.as_bytes(),
                    with.as_bytes(),
                    index as i32 % 9 - 4,
                    index as i32 % 4,
                );
            }
        }
    });
}

#[test]
fn patterns_by_chance_mean_what_they_mean_to_luajit() {
    bounded(|| {
        let both = Both::new();
        // A fixed seed: differences are reproducible.
        let mut random = 0x2545_f491_4f6c_dd1d_u64;
        let mut next = move |most: usize| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            (random % most as u64) as usize
        };
        let pieces = [
            "a", "b", "c", ".", "%a", "%d", "%s", "%W", "[ab]", "[^a]", "[a-c]", "*", "+", "-", "?", "*", "-", "(",
            ")", "(", ")", "()", "%1", "%2", "^", "$", "%b()", "%f[%w]", "%", "[", "]", "\0", "%z", "%f[^%z]", "1",
            " ",
        ];
        let letters = ["a", "b", "c", "a", "b", "(", ")", "1", " ", "\0", "-", "%", "\u{fc}"];
        let replacements = ["", "%0", "%1", "%1%2", "-%0-", "%%", "%x", "b", "%"];
        for _ in 0..6000 {
            let pattern: String = (0..1 + next(7)).map(|_| pieces[next(pieces.len())]).collect();
            let subject: String = (0..next(11)).map(|_| letters[next(letters.len())]).collect();
            let with = replacements[next(replacements.len())];
            both.compare(subject.as_bytes(), pattern.as_bytes(), with.as_bytes(), next(14) as i32 - 7, next(4) as i32);
        }
    });
}

#[test]
fn what_runs_for_long_ends_with_its_instructions_at_its_line() {
    let shapes = [
        r#"string.find(("a"):rep(40), ".-.-.-.-.-.-.-.-b")"#,
        r#"local s = ("a"):rep(40) local x = s:match(".-.-.-.-.-.-.-.-b")"#,
        r#"for _ in (("a"):rep(40)):gmatch(".-.-.-.-.-.-.-.-b") do end"#,
        r#"string.gsub(("a"):rep(40), ".-.-.-.-.-.-.-.-b", "x")"#,
        r#"string.gsub(("a"):rep(40), ".-.-.-.-.-.-.-.-b", function() end)"#,
        r#"string.gsub(("a"):rep(1e6), ".-", { })"#,
        r#"pcall(string.find, ("a"):rep(40), ".-.-.-.-.-.-.-.-b") while true do end"#,
        r#"while true do pcall(string.find, ("a"):rep(40), ".-.-.-.-.-.-.-.-b") end"#,
        r#"while true do local x = string.find(("a"):rep(1e6), ("a"):rep(5e5) .. "b", 1, true) end"#,
        r#"local s = ("a"):rep(1e6) while true do local x = s:find("b", 1, true) end"#,
        r#"while true do local x = ("x"):rep(3e7) end"#,
        r#"local s = ("x"):rep(1e6) while true do local x = s:upper():lower():reverse() end"#,
        r#"local t = {} for i = 1, 2e5 do t[i] = (i * 7919) % 200003 end while true do table.sort(t) end"#,
        concat!(
            r#"local a, t = ("x"):rep(1e7), {} local b = a .. "y" for i = 1, 1e4 do t[i] = i % 2 == 0 and a or b end "#,
            "table.sort(t)"
        ),
        concat!(
            "local t = {} for i = 1, 1e5 do t[i] = i end table.sort(t, rawequal) ",
            "while true do table.sort(t, math.max) end"
        ),
        r#"local t = {} for i = 1, 1e5 do t[i] = "" end while true do local x = table.concat(t) end"#,
        // Few elements, many bytes; and the same without memory for them.
        r#"local s, t = ("x"):rep(6e4), {} for i = 1, 100 do t[i] = s end while true do local x = table.concat(t) end"#,
        r#"local s, t = ("x"):rep(6e4), {} for i = 1, 2000 do t[i] = s end while true do pcall(table.concat, t) end"#,
        r#"local s = ("x"):rep(6e4) while true do local x = table.concat({ "", "", "", "", "", "", "", "" }, s) end"#,
        r#"local a, s = ("a"):rep(100), ("x"):rep(6e4) while true do local x = a:gsub("a", { a = s }) end"#,
        r#"local a, s = ("a"):rep(1000), ("x"):rep(1e6) while true do pcall(string.gsub, a, "a", s) end"#,
        r#"local s = ("a"):rep(4e6) while true do local x = s:gsub("^a", function() end) end"#,
        concat!(
            r#"local s = "(" .. ("a"):rep(1e6) .. ")" while true do "#,
            r#"local x = s:match(("("):rep(32) .. "%b()" .. (")"):rep(32)) end"#
        ),
        r#"local t = {} for i = 1, 1e5 do t[i] = i end while true do table.insert(t, 1, 0) t[#t] = nil end"#,
        r#"local s = ("%c"):rep(1e5) while true do local x = os.date(s) end"#,
        r#"local s = ("x=1 "):rep(2e6) while true do load(s) end"#,
        r#"table.sort({ 3, 1, 2 }, function() while true do end end)"#,
        r#"string.gsub("aaa", "a", function() while true do end end)"#,
    ];
    for shape in shapes {
        let source = format!("\nfunction f()\n{shape}\nend function fine() return ('abc'):find('b') end");
        bounded(move || {
            let engine = confined(&source, |_| {});
            for _ in 0..2 {
                let error = call(&engine, "f", 1_000_000).expect_err(shape);
                assert_eq!(error.kind, Kind::Instructions, "{shape}: {error}");
                assert_eq!(told(&error), "a.lua:3: f() took more than 1000000 instructions", "{shape}");
                call(&engine, "fine", 1000).unwrap();
            }
        });
    }
    // Memory has its own limit.
    for shape in [
        r#"string.gsub(("a"):rep(1e6), "a", ("b"):rep(1e6))"#,
        r#"("a"):rep(1e6):gsub(".*", ("%0"):rep(1e6))"#,
        r#"("x"):rep(1e8)"#,
    ] {
        let source = format!("\nfunction f()\nlocal x = {shape}\nend function fine() return ('abc'):find('b') end");
        bounded(move || {
            let engine = confined(&source, |_| {});
            let error = call(&engine, "f", 100_000_000).expect_err(shape);
            assert_eq!(error.kind, Kind::Memory, "{shape}: {error}");
            call(&engine, "fine", 1000).unwrap();
        });
    }
}

#[test]
fn where_instructions_are_not_counted_each_function_has_its_bound() {
    bounded(|| {
        let source = "\nfunction f()\nreturn (('a'):rep(40):find('.-.-.-.-.-.-.-.-b'))\nend
function fine() for i = 1, 1000 do assert(('abc'):match('b()') == 3) end end";
        let engine = confined(source, |confines| confines.jit = true);
        let error = call(&engine, "f", 1_000_000).unwrap_err();
        assert_eq!(error.kind, Kind::Instructions, "{error}");
        call(&engine, "fine", 1_000_000).unwrap();
    });
}

#[test]
fn the_top_level_is_bounded_too() {
    bounded(|| {
        let engine = confined("", |_| {});
        let error = engine.load_source(b"\nlocal x = ('a'):rep(40):find('.-.-.-.-.-.-.-.-b')").unwrap_err();
        assert_eq!(told(&error), "a.lua:2: the top level took more than 1000000 instructions");
    });
}

#[test]
fn steps_count_and_small_ones_cost_little() {
    bounded(|| {
        let source = "function small() for i = 1, 1000 do local a = ('shop.example.org'):match('^([%w-]+)%.') end end
function large() return (('a'):rep(8e5):find('b()')) end
function joins() local t = {} for i = 1, 1000 do t[i] = 'x' end local x = table.concat(t, ',') end
function sorts() local t = {} for i = 1, 1000 do t[i] = tostring((i * 7919) % 1009) end table.sort(t) end";
        let engine = confined(source, |_| {});
        let small = call(&engine, "small", 1_000_000).unwrap();
        assert!((10_000..100_000).contains(&small), "{small}");
        let large = call(&engine, "large", 1_000_000).unwrap();
        assert!((100_000..400_000).contains(&large), "{large}");
        let joins = call(&engine, "joins", 1_000_000).unwrap();
        assert!(joins < 30_000, "{joins}");
        let sorts = call(&engine, "sorts", 1_000_000).unwrap();
        assert!(sorts < 400_000, "{sorts}");
    });
}

#[test]
fn mistakes_are_told_as_luajit_tells_them_and_at_the_script_s_line() {
    let shapes = [
        ("string.find('a', '[')", "malformed pattern (missing ']')"),
        ("string.match('a', '(')", "unfinished capture"),
        ("for a in string.gmatch('a', '%') do end", "malformed pattern (ends with '%')"),
        ("string.gsub('a', '(a', '%1')", "unfinished capture"),
        ("string.gsub('a', 'a', '%2')", "invalid capture index"),
        ("string.gsub('a', '(a', function() end)", "unfinished capture"),
        ("string.gsub('a', 'a', function() return {} end)", "invalid replacement value (a table)"),
        ("string.find(nil, 'a')", "bad argument #1 to 'find' (string expected, got nil)"),
        ("string.match('a')", "bad argument #2 to 'match' (string expected, got no value)"),
        ("string.find('a', 'a', {})", "bad argument #3 to 'find' (number expected, got table)"),
        ("string.gsub('a', 'a', true)", "bad argument #3 to 'gsub' (string/function/table expected)"),
        ("string.gmatch({}, 'a')", "bad argument #1 to 'gmatch' (string expected, got table)"),
        ("table.sort({ 1, 2 }, 3)", "bad argument #2 to 'sort' (function expected, got number)"),
        ("table.sort({ 1, 'a' })", "attempt to compare string with number"),
        ("table.sort({ true, false })", "attempt to compare two boolean values"),
        ("string.match('a', nil)", "bad argument #2 to 'match' (string expected, got nil)"),
        ("string.find()", "bad argument #1 to 'find' (string expected, got no value)"),
        ("string.gmatch('a')", "bad argument #2 to 'gmatch' (string expected, got no value)"),
        ("string.gsub('a', 'a')", "bad argument #3 to 'gsub' (string/function/table expected)"),
        ("string.rep()", "bad argument #1 to 'rep' (string expected, got no value)"),
        ("string.upper()", "bad argument #1 to 'upper' (string expected, got no value)"),
        ("table.concat()", "bad argument #1 to 'concat' (table expected, got no value)"),
        ("table.concat({ 1, {} })", "invalid value (table) at index 2 in table for 'concat'"),
        ("table.concat({ 1 }, {})", "bad argument #2 to 'concat' (string expected, got table)"),
        ("table.concat({ 1 }, '', 1, 2)", "invalid value (nil) at index 2 in table for 'concat'"),
        ("table.insert({}, 'a', 1)", "bad argument #2 to 'insert' (number expected, got string)"),
        ("table.insert({})", "wrong number of arguments to 'insert'"),
        ("table.sort()", "bad argument #1 to 'sort' (table expected, got no value)"),
    ];
    for (shape, expected) in shapes {
        let source = format!(
            "\nfunction f()\nlocal x\n{shape}\nend function g() local ok, why = pcall(f) assert(not ok) \
             assert(why:find('a.lua:4: ', 1, true), why) end"
        );
        bounded(move || {
            let engine = confined(&source, |_| {});
            let error = call(&engine, "f", 1_000_000).expect_err(shape);
            assert!(error.what.starts_with(expected), "{shape}: {error}");
            assert_eq!(error.place, "a.lua:4", "{shape}: {error}");
            call(&engine, "g", 1_000_000).unwrap_or_else(|error| panic!("{shape}: {error}"));
        });
    }
}

#[test]
fn tables_are_sorted() {
    let source = r#"
local function is_sorted(t, less) for i = 2, #t do if less(t[i], t[i - 1]) then return false end end return true end
local function less(a, b) return a < b end
local meta = { __lt = function(a, b) return a[1] < b[1] end }
function f()
  for n = 0, 70 do
    local numbers, texts, points = {}, {}, {}
    for i = 1, n do
      numbers[i] = (i * 7919) % 101 - 50.5
      texts[i] = tostring(numbers[i])
      points[i] = setmetatable({ numbers[i] }, meta)
    end
    table.sort(numbers) table.sort(texts) table.sort(points)
    assert(is_sorted(numbers, less) and is_sorted(texts, less) and is_sorted(points, less))
    assert(#numbers == n and #texts == n)
    local back = function(a, b) return a > b end
    table.sort(numbers, back) table.sort(texts, back)
    assert(is_sorted(numbers, back) and is_sorted(texts, back))
    table.sort(texts, function() return true end) table.sort(texts, function() end)
    assert(#texts == n)
  end
  local t = setmetatable({ 2, 1 }, { __newindex = error, __index = error })
  table.sort(t) assert(rawget(t, 1) == 1)
end"#;
    bounded(move || {
        call(&confined(source, |confines| confines.instructions = 10_000_000), "f", 10_000_000).unwrap();
    });
}
