-- Asks for the paths that stand in a file, one per line, in turn. Empty lines and those that begin with # are left out.
--
--   oroshi bench -c 50 -d 10s -s examples/lua/urls.lua http://127.0.0.1:8080/ -- paths.txt
--
-- All requests are made before the run, so that nothing of that is done while it lasts.

local requests, at = {}, 0

function init(args)
  if not args[1] then
    error("name a file of paths behind the URL: -- FILE", 0)
  end
  for line in io.lines(args[1]) do
    local path = line:match("^%s*(.-)%s*$")
    if path ~= "" and path:sub(1, 1) ~= "#" then
      table.insert(requests, wrk.format(nil, path))
    end
  end
  assert(#requests > 0, "there is no path in " .. args[1])
end

function request()
  at = at % #requests + 1
  return requests[at]
end
