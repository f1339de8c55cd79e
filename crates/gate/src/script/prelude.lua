-- The table `gate`. `own` has the functions in Rust (api/mod.rs): each returns `true` and results, `false` and an
-- argument's error, or nothing if the call must wait. Locals hold every function used here, because a script may
-- replace the global ones later.
local own = ...

local error, getmetatable, lower, pcall, rawget, select, setmetatable, tostring, type =
  error, getmetatable, string.lower, pcall, rawget, select, setmetatable, tostring, type
local concat = table.concat
local wait, pay = own.wait, own.pay

-- Returns the results, or raises an error at the calling line.
local function settled(ok, ...)
  if ok then
    return ...
  end
  error((...), 2)
end

local function finished(ok, ...)
  if ok then
    return ...
  elseif ok == nil then
    return settled(wait())
  end
  error((...), 2)
end

-- The same for a function that does more afterwards: the calling line is one level further up.
local function settled_within(ok, ...)
  if ok then
    return ...
  end
  error((...), 3)
end

local function finished_within(ok, ...)
  if ok then
    return ...
  elseif ok == nil then
    return settled_within(wait())
  end
  error((...), 3)
end

-- Makes a function that only calls its Rust part.
local function asks(name)
  local ask = own[name]
  return function(...)
    return finished(ask(...))
  end
end

-- The same for functions whose work grows with their strings: charges for the strings first.
local function pays(name)
  local ask = own[name]
  return function(...)
    local one, other = ...
    pay((type(one) == "string" and #one or 0) + (type(other) == "string" and #other or 0))
    return finished(ask(...))
  end
end

gate = {
  core = own.core,
  version = own.version,
}

for _, name in ipairs { "answer", "json_encode", "lookup", "monotonic", "now", "redirect", "sleep" } do
  gate[name] = asks("gate_" .. name)
end
for _, name in ipairs { "base64_decode", "base64_encode", "hmac_sha256", "json_decode", "md5", "sha1", "sha256" } do
  gate[name] = pays("gate_" .. name)
end

-- Stores. The Rust part of a store is hidden behind the object, where no script reaches.
local behind = setmetatable({}, { __mode = "k" })

local function class(kind, methods)
  local meta = { __index = {}, __metatable = false, __name = kind }
  for _, name in ipairs(methods) do
    local ask = own[kind .. "_" .. name]
    meta.__index[name] = function(self, ...)
      local store = type(self) == "table" and behind[self]
      if not store then
        error(kind .. ":" .. name .. ": it is a method: expected store:" .. name .. "(...), with a colon", 2)
      end
      return finished(ask(store, ...))
    end
  end
  local open = own["gate_" .. kind]
  local function object(ok, store)
    if not ok then
      error(store, 3)
    end
    local self = setmetatable({}, meta)
    behind[self] = store
    return self
  end
  gate[kind] = function(name)
    return (object(open(name)))
  end
end

class("memcached", { "delete", "get", "set" })
class("sql", { "query", "row", "value" })

-- Headers of a response, by name in any case.
local Headers = {
  __index = function(headers, name)
    return type(name) == "string" and rawget(headers, lower(name)) or nil
  end,
}

local function answered(answer, ...)
  if answer then
    setmetatable(answer.headers, Headers)
  end
  return answer, ...
end
local ask_http = own.gate_http
function gate.http(...)
  return answered(finished_within(ask_http(...)))
end

function gate.array(list)
  return setmetatable(list or {}, own.list)
end

-- The log.
local function text(...)
  local words = { ... }
  for i = 1, select("#", ...) do
    words[i] = tostring(words[i])
  end
  return concat(words, "\t")
end

local log = own.gate_log
function gate.log(level, ...)
  return finished(log(level, text(...)))
end
for _, level in ipairs { "debug", "error", "info", "warn" } do
  gate[level] = function(...)
    return finished(log(level, text(...)))
  end
end
print = gate.info

-- Values that all cores share.
gate.cache = {
  delete = asks("gate_cache_delete"),
  get = asks("gate_cache_get"),
  incr = asks("gate_cache_incr"),
  set = asks("gate_cache_set"),
}

local ask, made, failed = own.gate_cache_ask, own.gate_cache_made, own.gate_cache_failed

local function keep(key, ttl, ok, ...)
  if not ok then
    local why = ...
    finished_within(failed(key, why))
    error(why, 0)
  end
  finished_within(made(key, ttl, ...))
  return ...
end

local function fetched(key, ttl, make, how, ...)
  if how == "make" then
    return keep(key, ttl, pcall(make, key))
  end
  return ...
end

function gate.cache.fetch(key, ttl, make)
  if type(make) ~= "function" then
    error("gate.cache.fetch: expected a key, seconds or nil, and a function that makes the value", 2)
  end
  return fetched(key, ttl, make, finished_within(ask(key, ttl)))
end
