-- Waits before each request, as people do who read what they got: a time drawn anew, about as long as the argument in milliseconds.
--
--   oroshi bench -c 100 -d 10s -s examples/lua/delay.lua http://127.0.0.1:8080/ -- 200
--
-- Each connection waits by itself. How many requests are sent still depends on how fast the answers come: for a fixed
-- number per second use -R, which needs no script.

local mean = 100

function init(args)
  mean = tonumber(args[1] or mean) or error("the argument is the mean delay in milliseconds, not " .. args[1], 0)
end

function delay()
  -- Pauses of people who know nothing of each other are distributed exponentially; ten times the mean shall be enough.
  return math.min(-mean * math.log(1 - math.random()), 10 * mean)
end
