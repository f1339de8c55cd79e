-- The Lua part of wrk's API. Each state runs it before the script. Rust has set the global `wrk` from the URL and the
-- command line, and put its own functions into `wrk.own`; this file adds the functions that Rust calls.
--
-- The functions for each request are written for LuaJIT's compiler, which does not compile a function through a loop
-- within it: without a loop, a request costs half.

local wrk, own = wrk, wrk.own
wrk.own = nil
package.loaded.wrk = wrk

local buffer, new_table = require("string.buffer"), require("table.new")
local error, next, pairs, pcall, rawget, tostring, type = error, next, pairs, pcall, rawget, tostring, type
local find, format, gsub, lower, sub = string.find, string.format, string.gsub, string.lower, string.sub
local getinfo, getmetatable, globals, newproxy = debug.getinfo, debug.getmetatable, _G, newproxy
local setmetatable, tonumber = setmetatable, tonumber

-- Describes a value for messages. Strings may be secrets, and are not repeated.
local function kind(value)
  local kind = type(value)
  return kind == "nil" and kind or "a " .. kind
end

-- Formats a header's name for messages.
local function shown(name)
  return "`" .. gsub(sub(name, 1, 100), "[%c\127-\255]", function(c) return format("\\x%02x", c:byte()) end) .. "`"
end

---- Requests ----

-- Marks of names whose lines need special treatment.
local HOST, LENGTH = "host", "content-length"

-- The most remembered names; scripts that make up more are slower.
local MOST_NAMES = 1000

-- For each name sent: `name: `, or one of the two marks, which means that the name is valid.
-- `valid`: its last valid value.
local prefixes, valid, names = {}, {}, 0

-- `level`: the caller of wrk.format, as `error` counts.
local function prefix_of(name, level)
  if type(name) ~= "string" then
    error("a header's name is " .. kind(name) .. " (" .. tostring(name) .. '): expected wrk.headers["Name"] = value', level)
  elseif not find(name, "^[%w!#$%%&'*+.^_`|~-]+$") then
    error("header " .. shown(name) .. " cannot be sent: a name has letters, digits and !#$%&'*+-.^_`|~, at least one", level)
  end
  if names == MOST_NAMES then
    prefixes, valid, names = {}, {}, 0
  end
  names = names + 1
  local lowered = lower(name)
  prefixes[name] = lowered == HOST and HOST or lowered == LENGTH and LENGTH or name .. ": "
  return prefixes[name]
end

-- Buffers of the request in progress, and the Host header of its table.
local whole, lines = buffer.new(), buffer.new()
local host

-- Converts an object with its own __tostring. It may make requests, so the one in progress is saved meanwhile.
local function text_of_object(value)
  local kept_lines, kept_host = lines:tostring(), host
  local text = tostring(value)
  lines:reset():put(kept_lines)
  host = kept_host
  return text
end

-- Formats a header's value.
local function written(name, value, level)
  local what = type(value)
  if what == "string" then
    if valid[name] ~= value then
      if find(value, "\n", 1, true) or find(value, "\r", 1, true) or find(value, "\0", 1, true) then
        error("header " .. shown(name) .. " cannot be sent: a line break or a NUL is in its value", level)
      end
      valid[name] = value
    end
    return value
  elseif what == "number" then
    return value
  elseif what == "boolean" then
    return tostring(value)
  end
  local meta = getmetatable(value)
  if what == "cdata" or type(meta) == "table" and rawget(meta, "__tostring") then
    return written(name, text_of_object(value), level + 1)
  end
  error("header " .. shown(name) .. " cannot be sent: its value is " .. kind(value) .. ", expected a string or a number", level)
end

-- Converts the method, the path or the body, if it is not a string.
local function part(what, value)
  if type(value) == "number" then
    return tostring(value)
  end
  error("wrk.format: the " .. what .. " is " .. kind(value) .. ": expected a string", 3)
end

-- Returns the URL's Host header.
local function url_host()
  local host, port = wrk.host, wrk.port
  if type(host) ~= "string" then
    error("wrk.host is " .. kind(host) .. ": expected a string", 3)
  end
  if find(host, ":", 1, true) then
    host = "[" .. host .. "]"
  end
  return port and host .. ":" .. tostring(port) or host
end

-- Returns the value of Host in wrk.headers, in any case.
local function default_host()
  local headers = wrk.headers
  if type(headers) ~= "table" or headers.Host ~= nil then
    return headers and headers.Host
  end
  for name, value in pairs(headers) do
    if (prefixes[name] or prefix_of(name, 2)) == HOST then
      return value
    end
  end
end

local function put_line(name, value)
  local prefix = prefixes[name] or prefix_of(name, 5)
  if prefix == HOST then
    -- Another spelling than `Host`, which takes precedence.
    if host == nil then
      host = value
    end
  elseif prefix ~= LENGTH then
    lines:put(prefix, written(name, value, 5), "\r\n")
  end
end

-- Writes all lines, as a loop over `pairs` would, but without a loop for the first of them.
local put_lines
do
  local UNROLLED = 16
  local source = buffer.new()
  source:put("local next, put_line = ... return function(headers) local name, value = next(headers) ")
  for _ = 1, UNROLLED do
    source:put("if name == nil then return end put_line(name, value) name, value = next(headers, name) ")
  end
  source:put("while name ~= nil do put_line(name, value) name, value = next(headers, name) end end")
  put_lines = loadstring(source:get(), "=[wrk]")(next, put_line)
end

function wrk.format(method, path, headers, body)
  method, path, headers, body = method or wrk.method, path or wrk.path, headers or wrk.headers, body or wrk.body
  if type(method) ~= "string" then
    method = part("method", method)
  end
  if type(path) ~= "string" then
    path = part("path", path)
  end
  if type(headers) ~= "table" then
    error("wrk.format: the headers are " .. kind(headers) .. ": expected a table", 2)
  end
  if body and type(body) ~= "string" then
    body = part("body", body)
  end
  local length = body and #body or nil
  if headers["Content-Length"] ~= length then
    headers["Content-Length"] = length
  end
  host = headers.Host
  lines:reset()
  put_lines(headers)
  if host == nil then
    host = default_host()
    if host == nil then
      host = url_host()
    end
    headers.Host = host
  end
  local authority = written("Host", host, 3)
  whole:reset():put(method, " ", path, " HTTP/1.1\r\nHost: ", authority, "\r\n", lines)
  if body then
    whole:put("Content-Length: ", length, "\r\n\r\n", body)
  else
    whole:put("\r\n")
  end
  -- Parentheses, because the compiler does not accept it as a tail call.
  return (whole:tostring())
end

---- Objects. They are userdata, as in wrk, and made here: see `state.rs` ----

-- Makes a kind of object: the data behind its objects, and their metatable.
local function objects()
  local like = newproxy(true)
  return like, setmetatable({}, { __mode = "k" }), getmetatable(like)
end

local addr_like, addrs, addr_meta = objects()

local function as_addr(text)
  local addr = newproxy(addr_like)
  addrs[addr] = text
  return addr
end

local function as_addrs(texts)
  for i, text in ipairs(texts) do
    texts[i] = as_addr(text)
  end
  return texts
end

local function text_of(addr)
  local text = addrs[addr]
  if not text then
    error(kind(addr) .. " is not an address: expected one of those that wrk.lookup returns", 3)
  end
  return text
end

function addr_meta.__tostring(addr)
  return addrs[addr]
end

function addr_meta.__eq(a, b)
  return addrs[a] == addrs[b]
end

local thread_like, threads, thread_meta = objects()
local thread_methods = {}

-- Makes the object for a thread, counted from 0.
function own.thread(core)
  local thread = newproxy(thread_like)
  threads[thread] = core
  return thread
end

-- Assigns this state to a thread.
function own.begin(core)
  own.core = core
  wrk.thread = own.thread(core)
end

local function core_of(thread)
  local core = threads[thread]
  if not core then
    error(kind(thread) .. " is not a thread: expected a call such as thread:get(name)", 3)
  end
  return core
end

function thread_methods.get(thread, name)
  local core, why, value = core_of(thread), nil, nil
  if core == own.core then
    why, value = own.copy(globals[name])
  else
    why, value = own.ask(core, name)
  end
  if why then
    error(why, 2)
  end
  return value
end

function thread_methods.set(thread, name, value)
  local core, why = core_of(thread), nil
  if core == own.core then
    -- Copies here as well, so that the caller's state makes no difference.
    why, value = own.copy(value)
    if not why then
      globals[name] = value
    end
  else
    why = own.tell(core, name, value)
  end
  if why then
    error(why, 2)
  end
end

function thread_methods.stop(thread)
  own.stop(core_of(thread))
end

function thread_meta.__tostring(thread)
  return "thread " .. threads[thread] + 1
end

function thread_meta.__index(thread, key)
  if key == "addr" then
    local text = own.peer(threads[thread])
    return text and as_addr(text)
  end
  return thread_methods[key] or error("a thread has no " .. shown(tostring(key)) .. ": expected addr, get, set or stop", 2)
end

function thread_meta.__newindex(thread, key, value)
  if key ~= "addr" then
    error("a thread's " .. shown(tostring(key)) .. " cannot be set: only its addr can", 2)
  end
  local why = own.choose(threads[thread], text_of(value))
  if why then
    error(why, 2)
  end
end

-- Makes `latency` and `requests` of `done`, from the fixed figures, the number of distinct values, and functions for
-- each of these and for percentiles.
function own.stats(figures, length, at, percentile)
  local stats = newproxy(true)
  local meta = getmetatable(stats)

  local function checked_percentile(_, percent)
    local number = tonumber(percent)
    if not number or not (number >= 0 and number <= 100) then
      error("percentile(" .. tostring(percent) .. "): expected a number from 0 to 100, such as 99.9", 2)
    end
    return percentile(number)
  end

  function meta.__len()
    return length
  end

  function meta.__call(_, index)
    return at(tonumber(index) or 0)
  end

  function meta.__index(_, key)
    if figures[key] then
      return figures[key]
    elseif key == "percentile" then
      return checked_percentile
    elseif type(key) == "number" then
      -- As in scripts for wrk2 and for old versions of wrk.
      return (at(key))
    end
    error("there is no " .. shown(tostring(key)) .. ": expected min, max, mean, stdev, percentile(p) or a number", 2)
  end

  return stats
end

---- Functions called before the run, unless the script replaces them ----

function wrk.lookup(host, service)
  if type(host) ~= "string" then
    error("wrk.lookup: the host is " .. kind(host) .. ": expected a string", 2)
  end
  local found, why = own.lookup(host, service ~= nil and tostring(service) or nil)
  if not found then
    error(why, 2)
  end
  return as_addrs(found)
end

function wrk.connect(addr)
  return own.connect(text_of(addr))
end

function wrk.resolve(host, service)
  -- The run knows which addresses of its own URL answer.
  local found = own.found(host, service)
  local answering = found and as_addrs(found) or {}
  if not found then
    for _, addr in ipairs(wrk.lookup(host, service)) do
      if wrk.connect(addr) then
        answering[#answering + 1] = addr
      end
    end
  end
  wrk.addrs = answering
end

function wrk.setup(thread)
  thread.addr = wrk.addrs[1]
  local setup = rawget(globals, "setup")
  if type(setup) == "function" then
    setup(thread)
  end
end

function wrk.init(args)
  local headers = wrk.headers
  if type(headers) == "table" and default_host() == nil then
    headers.Host = url_host()
  end
  local init = rawget(globals, "init")
  if type(init) == "function" then
    init(args)
  end
  -- A script with its own `request` may have left nothing to make a request of.
  local made, request = pcall(wrk.format)
  wrk.request = function()
    return made and request or error(request, 0)
  end
end

---- Functions for Rust ----

function own.request()
  local request = request
  if type(request) == "function" then
    return request()
  end
  return wrk.request()
end

function own.delay()
  local delay = delay
  if type(delay) == "function" then
    return delay()
  end
  return 0
end

-- How many of its arguments `response` gets, and the function for which that was decided.
local given, known = 0, nil

local function arguments(response)
  local info = getinfo(response, "u")
  return info.isvararg and 3 or math.min(info.nparams, 3)
end

function own.responds()
  known = rawget(globals, "response")
  given = type(known) == "function" and arguments(known) or 0
  return type(known) == "function", given
end

-- Converts headers to a table, from a text of names and values with a line break after each. Most need no loop.
local as_table
do
  local UNROLLED, USUAL = 16, 8

  local function others(headers, fields, from)
    while from <= #headers do
      local colon = find(headers, "\n", from, true)
      local line = find(headers, "\n", colon + 1, true)
      fields[sub(headers, from, colon - 1)] = sub(headers, colon + 1, line - 1)
      from = line + 1
    end
    return fields
  end

  local source = buffer.new()
  source:put("local new_table, find, sub, others = ... return function(headers) ")
  source:putf("local fields, from, size, colon, line = new_table(0, %d), 1, #headers, 0, 0 ", USUAL)
  for _ = 1, UNROLLED do
    source:put("if from > size then return fields end ")
    source:put("colon = find(headers, '\\n', from, true) line = find(headers, '\\n', colon + 1, true) ")
    source:put("fields[sub(headers, from, colon - 1)] = sub(headers, colon + 1, line - 1) from = line + 1 ")
  end
  source:put("return others(headers, fields, from) end")
  as_table = loadstring(source:get(), "=[wrk]")(new_table, find, sub, others)
end

-- `headers` is such a text, or nil.
function own.response(status, headers, body)
  local response = response
  if response ~= known then
    if type(response) ~= "function" then
      return
    elseif arguments(response) > given then
      error("response was replaced while requests flow, by a function that takes more of an answer than the first one did ("
        .. arguments(response) .. " arguments, not " .. given .. "): let the first one take as many")
    end
  end
  if headers then
    headers = as_table(headers)
  end
  return response(status, headers, body)
end

function own.get(name)
  return globals[name]
end

function own.set(name, value)
  globals[name] = value
end
