-- Sets up a confined state, and passes waits through the script's own coroutines. Runs first in the state. `own` is
-- shared by this file, the preludes and Rust. Functions are saved now: a script may replace them later.
local own = ...

local _G, error, getmetatable, load, pcall, select, setmetatable, tostring, type, xpcall =
  _G, error, getmetatable, load, pcall, select, setmetatable, tostring, type, xpcall
local create, isyieldable, resume, running, status, yield =
  coroutine.create, coroutine.isyieldable, coroutine.resume, coroutine.running, coroutine.status, coroutine.yield
local find_module, ending, count, stack_ends = own.module, own.ending, own.count, own.stack_ends

-- Removes access to the outside, functions that nothing could end, and bytecode.
for _, name in ipairs { "collectgarbage", "dofile", "gcinfo", "io", "loadfile", "module", "newproxy", "package" } do
  _G[name] = nil
end
string.dump = nil
debug = { traceback = debug.traceback }
os = { clock = os.clock, date = os.date, difftime = os.difftime, time = os.time }
function os.getenv()
  error("os.getenv is not there, as passwords may stand in the environment: expected what the script needs in the script, or a module beside it", 2)
end
if jit then
  jit = { arch = jit.arch, os = jit.os, version = jit.version, version_num = jit.version_num }
end

function collectgarbage(what)
  if what ~= "count" then
    error("collectgarbage: expected \"count\", as collecting is the gateway's own business", 2)
  end
  return count()
end

local function text_only(chunk, name, mode, ...)
  if mode ~= nil and mode ~= "t" and mode ~= "bt" then
    error("load: expected text, as bytecode is not taken", 2)
  end
  return load(chunk, name, "t", ...)
end
_G.load, loadstring = text_only, text_only

-- Errors of Rust functions are caught as a text, like others: `route.lua:7: what`.
local plain = own.plain
local function text_of(err)
  if type(err) == "userdata" then
    return plain(err)
  end
  return err
end

local function caught(ok, ...)
  if ok then
    return ok, ...
  end
  return ok, text_of((...))
end

function _G.pcall(...)
  return caught(pcall(...))
end

-- C functions that call the script use the thread's own stack, which LuaJIT does not limit.
for library, names in pairs {
  [_G] = { "load", "loadstring", "print" }, [os] = { "time" }, [string] = { "format" },
  [table] = { "foreach", "foreachi" },
} do
  for _, name in ipairs(names) do
    local f = library[name]
    library[name] = function(...)
      if stack_ends() then
        error("C stack overflow", 2)
      end
      return f(...)
    end
  end
end

-- A thread's own environment would also affect the thread's next call.
local setfenv = setfenv
function _G.setfenv(f, env)
  if type(f) == "function" then
    return setfenv(f, env)
  elseif type(f) ~= "number" or not (f >= 1) then
    error("setfenv: expected a function, or the level of one from 1 on", 2)
  end
  local changed = setfenv(f + 1, env)
  return changed
end

-- Waiting.

-- Tells the resumer of a coroutine that it waits for something outside Lua. Invisible to scripts.
local WAITS = {}
own.waits, own.top_level = WAITS, false
-- Coroutines in such a wait: scripts may not resume them.
local waiting = setmetatable({}, { __mode = "k" })

local function awake(co, ...)
  waiting[co] = nil
  return ...
end

-- Suspends the call until Rust resumes it.
function own.wait()
  if not isyieldable() then
    if own.cancel then
      own.cancel()
    end
    if own.top_level then
      error("the top level of a script cannot wait: do it in init()", 2)
    end
    error("cannot wait here: this was called by a function written in C (load, string.format, ...) or by a metamethod of one", 2)
  end
  local co = running()
  waiting[co] = true
  return awake(co, yield(WAITS))
end
local wait = own.wait

-- Nested coroutines use the thread's own stack, which LuaJIT does not limit.
local MOST_LEVELS = 100
own.level = 0

local pass

local function go_on(co, ...)
  waiting[co] = nil
  own.level = own.level + 1
  return pass(co, resume(co, ...))
end

function pass(co, ok, first, ...)
  own.level = own.level - 1
  if ok and first == WAITS then
    return go_on(co, wait())
  elseif not ok then
    return ok, text_of(first)
  end
  return ok, first, ...
end

local function resume_script(co, ...)
  if waiting[co] then
    return false, "cannot resume a coroutine that waits"
  elseif type(co) ~= "thread" then
    error("bad argument #1 to 'resume' (coroutine expected)", 2)
  elseif own.level >= MOST_LEVELS then
    return false, "cannot resume a coroutine from within " .. MOST_LEVELS .. " others"
  end
  own.level = own.level + 1
  return pass(co, resume(co, ...))
end

local function unwrap(ok, ...)
  if ok then
    return ...
  end
  error((...), 0)
end

coroutine.resume = resume_script

function coroutine.wrap(f)
  local co = create(f)
  return function(...)
    return unwrap(resume_script(co, ...))
  end
end

function coroutine.status(co)
  if waiting[co] then
    return "normal"
  end
  return status(co)
end

-- Nothing can interrupt an error handler, so a call that is being ended does not run it.
function _G.xpcall(f, handler, ...)
  if type(handler) ~= "function" then
    return xpcall(f, handler, ...)
  end
  return xpcall(f, function(err)
    if ending() then
      return err
    end
    return handler(text_of(err))
  end, ...)
end

-- Modules: Lua files beside the script.
local loaded = {
  _G = _G, bit = bit, coroutine = coroutine, debug = debug, jit = jit, math = math, os = os, string = string, table = table,
}
for _, name in ipairs { "table.new", "table.clear" } do
  loaded[name] = own[name]
end
local LOADING = {}
package = { loaded = loaded }

function require(name)
  if type(name) ~= "string" then
    error("require: expected the name of a module, not a " .. type(name), 2)
  end
  local known = loaded[name]
  if known == LOADING then
    error("require: module '" .. name .. "' requires itself", 2)
  elseif known ~= nil then
    return known
  end
  local chunk, why = find_module(name)
  if not chunk then
    error(why, 2)
  end
  loaded[name] = LOADING
  local ok, result = pcall(chunk, name)
  if not ok then
    loaded[name] = nil
    error(result, 0)
  end
  if loaded[name] == LOADING then
    if result == nil then
      result = true
    end
    loaded[name] = result
  end
  return loaded[name]
end
