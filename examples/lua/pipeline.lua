-- Sends several requests at once on each connection, without waiting for the answers in between: as many as the argument says, each with
-- its own path.
--
--   oroshi bench -c 50 -d 10s -s examples/lua/pipeline.lua http://127.0.0.1:8080/ -- 16
--
-- request() returns them one after the other in one string. The next ones are sent when all answers are there.

local batch

function init(args)
  local depth = tonumber(args[1] or 8) or error("the argument is the number of requests, not " .. args[1], 0)
  local requests = {}
  for i = 1, depth do
    requests[i] = wrk.format(nil, "/?request=" .. i)
  end
  batch = table.concat(requests)
end

function request()
  return batch
end
