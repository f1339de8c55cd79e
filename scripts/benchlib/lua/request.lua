-- A request of its own each time.
local n = 0

function request()
   n = n + 1
   return wrk.format("GET", "/" .. n)
end
