//! Measures the cost of a call: nanoseconds of an empty function and of a function of twenty lines; with and without
//! counted instructions, with JIT, and with a wait.
//!
//! ```text
//! cargo run --release -p oroshi-script --example calls
//! ```
#![allow(clippy::print_stdout)]

use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};

use mlua::Function;
use oroshi_script::{ConfinedOptions, Engine, Progress};

/// The second function does the work of a script that chooses servers: texts, tables, a loop.
const SOURCE: &str = r#"
function empty() end

local shards = { a = "10.0.0.1:80", b = "10.0.0.2:80", c = "10.0.0.3:80" }
local fallback = { "10.0.1.1:80", "10.0.1.2:80" }
function lines(host, path)
  local name = host:match("^([%w-]+)%.") or host
  local tenant = name:lower()
  if tenant == "www" then
    tenant = path:match("^/([%w-]+)/") or "none"
  end
  local shard = shards[tenant:sub(1, 1)]
  if not shard then
    local sum = 0
    for i = 1, #tenant do
      sum = (sum * 31 + tenant:byte(i)) % 65536
    end
    shard = fallback[sum % #fallback + 1]
  end
  local headers = { ["X-Tenant"] = tenant, ["X-Shard"] = shard }
  if path:find("/admin", 1, true) == 1 then
    headers["X-Admin"] = "1"
  end
  return shard, headers
end

function waits() pause() end
"#;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let confined = |jit| -> Result<Engine, Box<dyn std::error::Error>> {
        let engine = Engine::confined(
            Path::new("calls.lua"),
            ConfinedOptions {
                memory: 64 << 20,
                jit,
                instructions: 1_000_000,
                limit: Duration::from_secs(5),
                tell: Box::new(|_| {}),
                read: Box::new(|_| Err(std::io::ErrorKind::NotFound.into())),
            },
        )?;
        engine.prelude("api", "local own = ... function pause() return own.wait() end")?;
        engine.load_source(SOURCE.as_bytes())?;
        Ok(engine)
    };
    let open = Engine::new(Path::new("calls.lua"), Duration::from_secs(5))?;
    open.lua().load(SOURCE).exec()?;
    let no_jit = Engine::new(Path::new("calls.lua"), Duration::from_secs(5))?;
    no_jit.lua().load("jit.off()").exec()?;
    no_jit.lua().load(SOURCE).exec()?;

    println!("{:<48} {:>10} {:>10}", "nanoseconds per call", "empty", "20 lines");
    for (what, engine) in [("in place, JIT", &open), ("in place, no JIT, nothing counted", &no_jit)] {
        let (empty, lines) = (function(engine, "empty")?, function(engine, "lines")?);
        let calls = [
            measured(|| drop(black_box(engine.call::<()>("empty", &empty, ())))),
            measured(|| {
                drop(black_box(engine.call::<(String, mlua::Table)>("lines", &lines, ("Tenant-7.example", "/x/y"))));
            }),
        ];
        println!("{what:<48} {:>10.0} {:>10.0}", calls[0], calls[1]);
    }
    for (what, engine) in
        [("coroutine, instructions counted", confined(false)?), ("coroutine, JIT, nothing counted", confined(true)?)]
    {
        let (empty, lines, waits) =
            (function(&engine, "empty")?, function(&engine, "lines")?, function(&engine, "waits")?);
        let calls = [
            measured(|| _ = black_box(call(&engine, "empty", &empty, ()))),
            measured(|| _ = black_box(call(&engine, "lines", &lines, ("Tenant-7.example", "/x/y")))),
            measured(|| _ = black_box(call(&engine, "waits", &waits, ()))),
        ];
        println!("{what:<48} {:>10.0} {:>10.0}   with one wait: {:.0}", calls[0], calls[1], calls[2]);
        let mut once = engine.coroutine("lines", &lines, 1_000_000)?;
        engine.resume(&mut once, ("Tenant-7.example", "/x/y"))?;
        println!("{:<48} {:>10} {:>10}", "  instructions", "", once.instructions());
    }
    let engine = confined(false)?;
    let waits = function(&engine, "waits")?;
    let (before, start) = (engine.lua().used_memory(), Instant::now());
    let mut all = Vec::new();
    for _ in 0..WAITING {
        let mut call = engine.coroutine("waits", &waits, 1_000_000)?;
        engine.resume(&mut call, ())?;
        all.push(call);
    }
    let each = start.elapsed().as_nanos() / WAITING as u128;
    println!("{WAITING} that wait: {each} ns to begin, {} bytes each", (engine.lua().used_memory() - before) / WAITING);
    Ok(())
}

/// As many waiting calls as a state of the gateway may have.
const WAITING: usize = 2_000;

fn function(engine: &Engine, name: &str) -> mlua::Result<Function> {
    engine.lua().globals().raw_get(name)
}

fn call(engine: &Engine, what: &'static str, function: &Function, args: impl mlua::IntoLuaMulti) -> usize {
    let Ok(mut call) = engine.coroutine(what, function, 1_000_000) else { return 0 };
    let mut progress = engine.resume(&mut call, args);
    while let Ok(Progress::Waits) = progress {
        progress = engine.resume(&mut call, ());
    }
    match progress {
        Ok(Progress::Returned(values)) => values.len(),
        _ => panic!("it returns"),
    }
}

/// Returns the fastest of several rounds, nanoseconds per call.
fn measured(mut work: impl FnMut()) -> f64 {
    const CALLS: u32 = 100_000;
    let round = |_| {
        let start = Instant::now();
        for _ in 0..CALLS {
            work();
        }
        start.elapsed().as_nanos() as f64 / f64::from(CALLS)
    };
    (0..9).map(round).fold(f64::INFINITY, f64::min)
}
