-- Asks for another path each time, behind the URL's own, so that no cache has the answer: /items/1, /items/1001, /items/2001, ...
--
--   oroshi bench -t 2 -c 50 -d 10s -s examples/lua/counter.lua http://127.0.0.1:8080/items
--
-- Each thread has a Lua state of its own and counts by itself. So that no two threads ask for the same, setup() gives each of them
-- another number to begin with, and all go on in steps of a thousand.

local threads = 0

-- Called once per thread, in a state that only setup() and done() share.
function setup(thread)
  threads = threads + 1
  thread:set("number", threads)
end

-- From here on everything is the thread's own, `number` among it.
function request()
  local path = wrk.path:gsub("/$", "") .. "/" .. number
  number = number + 1000
  return wrk.format(nil, path)
end
