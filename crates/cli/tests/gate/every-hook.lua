-- Every hook, with answers that the tests ask for by path and query; `gate_dir` is put in by them.
local inits = 0
function init()
  gate.sleep(0.001) -- it may wait
  inits = inits + 1
end

function on_request(request)
  assert(inits == 1)
  request.ctx.seen = "request"
  if request.path == "/refused" then return gate.answer{ status = 403, body = "no\n", headers = { ["X-Why"] = "because" } } end
  if request.path == "/old" then return gate.redirect("/new" .. (request.query ~= "" and "?" .. request.query or ""), 308) end
  if request.path == "/facts" then
    return gate.answer(200, table.concat({ request.method, request.target, request.path, request.query, request.host,
      request.scheme, request.version, tostring(request.client), tostring(request.id ~= nil), request.route,
      request.args.a or "-", request.args.b or "-", request.args.c or "-", request:cookie("session") or "-",
      request.headers["x-one"] or "-", #request:values("X-One"), request.headers["X-None"] == nil and "none" or "some" }, "|"))
  end
  if request.path == "/told" then return gate.answer(200, gate.cache.get("told") or "nothing yet") end
  request.headers["X-Script"] = "1"
  request.headers["X-One"] = nil
  if request.args.to then request.target = request.args.to end
end

function on_route(request)
  assert(request.ctx.seen == "request")
  request.ctx.seen = "route"
  local to = request.args.way
  if to == "one" then return "unix:" .. gate_dir .. "/one.sock" end
  if to == "list" then return { "unix:" .. gate_dir .. "/none.sock", "unix:" .. gate_dir .. "/two.sock" } end
  if to == "weights" then return { { to = "unix:" .. gate_dir .. "/two.sock", weight = 3 } } end
  if to == "upstream" then return { upstream = "both" } end
  if to == "nowhere" then return { upstream = "nobody" } end
  if to == "outside" then return "192.0.2.1:80" end
  if to == "odd" then return "what?" end
  if to == "answer" then return gate.answer(418, "a teapot\n") end
  if to == "number" then return 42 end
end

function on_response(request, response)
  assert(request.ctx.seen == "route")
  if request.args.replace then return gate.answer(200, "replaced\n") end
  response.headers["X-Secret"] = nil
  response.headers["X-Seen"] = response.headers["X-From"] .. " " .. response.status .. " " .. tostring(response.length)
  response.headers["Set-Cookie"] = { "a=1", "b=2" }
  if request.args.status then response.status = tonumber(request.args.status) end
end

function on_log(request, entry)
  gate.sleep(0.001)
  if request.path ~= "/told" then
    local told = { request.path, entry.status, entry.bytes, entry.upstream or "-", entry.failure or "-", tostring(request.ctx.seen), tostring(entry.seconds > 0) }
    gate.cache.set("told", table.concat(told, " "))
  end
end
