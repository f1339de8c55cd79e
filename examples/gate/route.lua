-- The server of each domain: from memcached, else from the database, and then from memcached for five minutes.
local cache, domains = gate.memcached("cache"), gate.sql("domains")

function on_route(request)
  local target = cache:get(request.host)
  if target == nil then
    target = domains:value("SELECT host FROM domain WHERE domain = ?", request.host)
    if target then cache:set(request.host, target, 300) end
  end
  return target -- nil is answered 503
end
