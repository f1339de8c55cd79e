-- The API of scenarios for tests of scripts: requests are noted as text, and answers say where they come from.
local log = {}
local function note(text) log[#log + 1] = text end
local function shown(value)
  if type(value) ~= "table" then return type(value) == "string" and string.format("%q", value) or tostring(value) end
  local keys = {}
  for key in pairs(value) do keys[#keys + 1] = key end
  table.sort(keys, function(a, b) return tostring(a) < tostring(b) end)
  for i, key in ipairs(keys) do keys[i] = tostring(key) .. "=" .. shown(value[key]) end
  return "{" .. table.concat(keys, " ") .. "}"
end
-- Any field, at any depth, becomes its path.
local function field(path)
  return setmetatable({}, {
    __index = function(_, key) return field(path .. "." .. tostring(key)) end,
    __tostring = function() return path end,
    __concat = function(a, b) return tostring(a) .. tostring(b) end,
  })
end
json = { decode = function(text) return field("decoded(" .. text .. ")") end, encode = function(value) return shown(tostring(value)) end }
base64 = { encode = function(text) return "base64(" .. text .. ")" end }
function options(given) note("options " .. shown({ url = given.url, users = given.users })) end
function think(seconds) note("think " .. seconds) end
local user = {}
local function request(method, url, given)
  local step = given.name
  local copy = {}
  for key, value in pairs(given) do
    if key ~= "name" then copy[key] = value end
  end
  -- What `field` makes is a table with nothing in it.
  local function plain(value)
    if type(value) ~= "table" then return value end
    if getmetatable(value) then return "<" .. tostring(value) .. ">" end
    local out = {}
    for key, inner in pairs(value) do out[key] = plain(inner) end
    return out
  end
  note(step .. ": " .. method .. " " .. tostring(url) .. " " .. shown(plain(copy)))
  return { step = step, json = function() return field(step) end }
end
for _, method in ipairs { "get", "head", "post", "put", "patch", "delete" } do
  user[method] = function(_, url, given) return request(method:upper(), url, given) end
end
function user:request(method, url, given) return request(method, url, given) end
function user:html(response)
  return { step = response.step, attr = function(_, css, name) return "<" .. response.step .. " " .. css .. " " .. name .. ">" end }
end
function user:assets(page) note("assets of " .. page.step) end
function user:set_cookie(name, value) note("cookie " .. name .. "=" .. value) end
function scenario(name, run) run(user) end
function played() return table.concat(log, "\n") end
