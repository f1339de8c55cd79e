-- The API of scenarios. `own` has the functions in Rust (api.rs). A function of Rust that must wait notes what it waits
-- for; `wait` then suspends the journey until that is there. Locals hold every function used here, because a script may
-- replace the global ones later.
local own = ...

local error, math, next, pcall, setmetatable, tostring, type = error, math, next, pcall, setmetatable, tostring, type
local select, concat = select, table.concat
local wait, request, think_of, begin_block, end_block = own.wait, own.request, own.think, own.begin_block, own.end_block

local User = {}
User.__index = User

-- Most requests have no option but their name.
local function send(method, url, options)
  if type(options) == "table" then
    local key, value = next(options)
    if key == "name" and next(options, key) == nil then
      request(method, url, nil, value)
      return wait()
    end
  end
  request(method, url, options)
  return wait()
end

function User.request(_, method, url, options)
  return send(method, url, options)
end

for name, method in pairs { get = "GET", head = "HEAD", post = "POST", put = "PUT", patch = "PATCH", delete = "DELETE" } do
  User[name] = function(_, url, options)
    return send(method, url, options)
  end
end

function User.assets(_, page, options)
  own.assets(page, options)
  return wait()
end

function User.submit(_, page, selector, fields, options)
  own.submit(page, selector, fields, options)
  return wait()
end

function User.html(_, response)
  return own.html(response)
end

for _, name in ipairs { "header", "cookie", "set_cookie", "reset", "random", "pick", "shuffle" } do
  local f = own["user_" .. name]
  User[name] = function(_, ...)
    return f(...)
  end
end

-- Modules that were not written for scenarios choose by the run's seed too.
math.random = own.random
function math.randomseed()
  error("math.randomseed: the run's seed decides all choices: expected `seed` in options, or --seed", 2)
end

-- A journey: the body of each coroutine.
local scenarios = {}
function own.journey(index, id, journey)
  local it = scenarios[index]
  it.run(setmetatable({ id = id, journey = journey, scenario = it.name }, User))
end

-- What comes before and after the load.
local phases = {}
function own.phase(name)
  local user = setmetatable({ id = 0, journey = 0, scenario = name }, User)
  phases[name](user)
end

function own.score_of(result)
  return phases.score(result)
end

local watchers = {}
function own.watch(index, progress)
  watchers[index](progress)
end

function options(given)
  own.options(given)
end

function scenario(name, settings, run)
  if run == nil then
    settings, run = nil, settings
  end
  own.scenario(name, settings, run)
  scenarios[#scenarios + 1] = { name = name, run = run }
end

local function phase(name)
  return function(settings, run)
    if run == nil then
      settings, run = nil, settings
    end
    own.declare_phase(name, settings, run)
    phases[name] = run
  end
end
initialize, final = phase("initialize"), phase("final")

function score(formula)
  own.declare_phase("score", nil, formula)
  phases.score = formula
end

function every(seconds, run)
  own.every(seconds, run)
  watchers[#watchers + 1] = run
end

check, award, penalty, fail, abort, void, users =
  own.check, own.award, own.penalty, own.fail, own.abort, own.void, own.users

function think(pause)
  think_of(pause)
  return wait()
end

local function timed(block, returned, ...)
  end_block(block, returned)
  if not returned then
    error((...), 0)
  end
  return ...
end

function step(name, run, ...)
  if type(run) ~= "function" then
    error("step: expected a name and a function, as in step(\"login\", function() ... end)", 2)
  end
  return timed(begin_block(name), pcall(run, ...))
end

function print(...)
  local words = { ... }
  for i = 1, select("#", ...) do
    words[i] = tostring(words[i])
  end
  own.tell(concat(words, "\t"))
end
