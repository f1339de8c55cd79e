-- Replaces library functions that may run for long, and that nothing could end: here their work is charged. Runs after
-- confine.lua. Functions are saved now: a script may replace them later.
local own = ...

local error, rawget, rawset, select, tonumber, type = error, rawget, rawset, select, tonumber, type
local concat, insert, native_sort, date = table.concat, table.insert, table.sort, os.date
local native_find, native_match, native_gmatch, native_gsub = string.find, string.match, string.gmatch, string.gsub
local rep, lower, upper, reverse, sub = string.rep, string.lower, string.upper, string.reverse, string.sub
local find, match, gmatch, step, gsub, sort, charge = own.find, own.match, own.gmatch, own.step, own.gsub, own.sort, own.charge
local memory = own.memory

-- Free bytes when copying, and further bytes per instruction.
local FREE_BYTES, BYTES_PER_INSTRUCTION = 4096, 64
-- Bytes of compiled Lua per instruction.
local SOURCE_BYTES_PER_INSTRUCTION = 4
-- Free elements when moving parts of a list, and further elements per instruction.
local FREE_ELEMENTS, ELEMENTS_PER_INSTRUCTION = 256, 4
-- Free bytes of a date's format, and instructions per further byte.
local FREE_FORMAT_BYTES, INSTRUCTIONS_PER_FORMAT_BYTE = 256, 16
-- The most bytes of a number as text.
local NUMBER_BYTES = 24
-- LuaJIT misreads greater numbers.
local MOST_TIMES = 2 ^ 31 - 1

-- Raises a script's error, returned as false and a text, at the caller of the function that ends with this.
local function checked(first, ...)
  if first == false then
    error((...), 2)
  end
  return first, ...
end

-- Converts a text or a number to a text.
local function text(value)
  local kind = type(value)
  if kind == "string" then
    return value
  elseif kind == "number" then
    return value .. ""
  end
end

local function number(value, default)
  if value == nil then
    return default
  end
  return tonumber(value)
end

local function pay(bytes)
  if bytes > FREE_BYTES then
    charge(bytes / BYTES_PER_INSTRUCTION)
  end
end

own.pay = pay

-- Charges for a text of these elements, before it is made. Stops at the first element that is neither a text nor a
-- number: LuaJIT's own function refuses it.
local function pay_joined(t, between, first, last)
  local bytes = 0
  for i = first, last do
    local value = rawget(t, i)
    local kind = type(value)
    if kind == "string" then
      bytes = bytes + #value + between
    elseif kind == "number" then
      bytes = bytes + NUMBER_BYTES + between
    else
      break
    end
  end
  -- LuaJIT copies until there is no memory left.
  pay(bytes < memory and bytes or memory)
end

-- A call with a wrong argument goes to LuaJIT's own function, which reports it at the script's line. It gets the
-- original arguments, because it distinguishes nil from no value.

function string.find(...)
  local s, p, init, plain = ...
  local subject, pattern, from = text(s), text(p), number(init, 1)
  if not (subject and pattern and from) then
    return native_find(...)
  end
  return checked(find(subject, pattern, from, plain and true or false))
end

function string.match(...)
  local s, p, init = ...
  local subject, pattern, from = text(s), text(p), number(init, 1)
  if not (subject and pattern and from) then
    return native_match(...)
  end
  return checked(match(subject, pattern, from))
end

function string.gmatch(...)
  local s, p = ...
  local subject, pattern = text(s), text(p)
  if not (subject and pattern) then
    return native_gmatch(...)
  end
  local from = 0
  local function go_on(on, ...)
    if on == false then
      error((...), 2)
    elseif on == nil then
      from = #subject + 1
      return nil
    end
    from = on
    return ...
  end
  return function()
    return go_on(gmatch(subject, pattern, from))
  end
end

-- Adds the replacement of a match, after the unmatched text before it.
local function put(parts, size, subject, copied, with, is_table, start, stop, ...)
  if start == false then
    error(stop, 4)
  elseif start == nil then
    return nil
  end
  local value
  if is_table then
    value = with[(...)]
  else
    value = with(...)
  end
  local kind = type(value)
  if not value then
    value = sub(subject, start + 1, stop)
  elseif kind ~= "string" and kind ~= "number" then
    error("invalid replacement value (a " .. kind .. ")", 4)
  end
  parts[size + 1], parts[size + 2] = sub(subject, copied + 1, start), value
  return start, stop
end

local function substitute(subject, pattern, with, most)
  local is_table, is_anchored = type(with) == "table", sub(pattern, 1, 1) == "^"
  local parts, size, count, copied, from = {}, 0, 0, 0, 0
  while count < most and from <= #subject do
    local start, stop = put(parts, size, subject, copied, with, is_table, step(subject, pattern, from, not is_table))
    if not start then
      break
    end
    size, count, copied, from = size + 2, count + 1, stop, stop
    if stop == start then
      from = from + 1
    end
    if is_anchored then
      break
    end
  end
  parts[size + 1] = sub(subject, copied + 1)
  pay_joined(parts, 0, 1, size + 1)
  return concat(parts), count
end

function string.gsub(...)
  local s, p, with, n = ...
  local subject, pattern, most, kind = text(s), text(p), number(n, 1 / 0), type(with)
  local is_text = kind == "string" or kind == "number"
  if not (subject and pattern and most and (is_text or kind == "function" or kind == "table")) then
    return native_gsub(...)
  elseif is_text then
    return checked(gsub(subject, pattern, text(with), most))
  end
  local replaced, count = substitute(subject, pattern, with, most)
  return replaced, count
end

-- Copies.

function string.rep(...)
  local s, n, between = ...
  if type(s) == "string" and type(n) == "number" and n > 0 then
    local bytes = (#s + (type(between) == "string" and #between or 0)) * n
    -- Without memory, LuaJIT refuses before it copies anything.
    if bytes <= memory or n > MOST_TIMES then
      pay(bytes)
    end
  end
  return rep(...)
end

for name, f in pairs { lower = lower, upper = upper, reverse = reverse } do
  string[name] = function(...)
    local s = ...
    if type(s) == "string" then
      pay(#s)
    end
    return f(...)
  end
end

function table.concat(...)
  local t, between, i, j = ...
  if type(t) == "table" then
    local first, last, separator = number(i, 1), number(j, #t), text(between)
    if first and last then
      pay_joined(t, separator and #separator or 0, first - first % 1, last)
    end
  end
  return concat(...)
end

function table.insert(...)
  local t, at = ...
  if select("#", ...) == 3 and type(t) == "table" and type(at) == "number" then
    local moved = #t - at
    if moved > FREE_ELEMENTS then
      charge(moved / ELEMENTS_PER_INSTRUCTION)
    end
  end
  return insert(...)
end

function os.date(...)
  local format = ...
  if type(format) == "string" and #format > FREE_FORMAT_BYTES then
    charge(#format * INSTRUCTIONS_PER_FORMAT_BYTE)
  end
  return date(...)
end

local load = load
local function paid_load(chunk, ...)
  if type(chunk) == "string" then
    charge(#chunk / SOURCE_BYTES_PER_INSTRUCTION)
  end
  return load(chunk, ...)
end
_G.load, loadstring = paid_load, paid_load

-- Sorting.

local function less(a, b)
  return a < b
end

-- Long texts may have long common prefixes.
local function less_text(a, b)
  local bytes = #a < #b and #a or #b
  pay(bytes)
  return a < b
end

-- Merge sort: n log n time for any values and any comparison.
local function merge_sort(t, n, is_less)
  local from, to, width = {}, {}, 1
  for i = 1, n do
    from[i] = rawget(t, i)
  end
  while width < n do
    local low = 1
    while low <= n do
      local middle, high = low + width, low + 2 * width
      if middle > n + 1 then
        middle = n + 1
      end
      if high > n + 1 then
        high = n + 1
      end
      local i, j = low, middle
      for k = low, high - 1 do
        if j >= high or i < middle and not is_less(from[j], from[i]) then
          to[k], i = from[i], i + 1
        else
          to[k], j = from[j], j + 1
        end
      end
      low = high
    end
    from, to, width = to, from, 2 * width
  end
  for i = 1, n do
    rawset(t, i, from[i])
  end
end

-- Returns whether the values are comparable, and the function for it.
local function comparison(t, n)
  local kind, longest = type(rawget(t, 1)), 0
  for i = 1, n do
    local value = rawget(t, i)
    local other = type(value)
    if other ~= kind or other == "nil" or other == "boolean" or other == "function" then
      if other == kind then
        return nil, "attempt to compare two " .. kind .. " values"
      end
      return nil, "attempt to compare " .. other .. " with " .. kind
    elseif kind == "string" and #value > longest then
      longest = #value
    end
  end
  return longest > FREE_BYTES and less_text or less
end

function table.sort(...)
  local t, is_less = ...
  if type(t) ~= "table" or is_less ~= nil and type(is_less) ~= "function" then
    return native_sort(...)
  end
  local n = #t
  if n < 2 then
    return
  elseif not is_less then
    if sort(t, n) then
      return
    end
    local why
    is_less, why = comparison(t, n)
    if not is_less then
      error(why, 2)
    end
  end
  merge_sort(t, n, is_less)
end
