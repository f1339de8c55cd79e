-- One mistake for each path. The tests know the lines.
local function deeper(x)
  return x.y.z -- line 3
end
function on_request(request)
  local path = request.path
  if path == "/fine" then last = request return gate.answer(200, "fine\n") end
  if path == "/nil" then return deeper({}) end
  if path == "/raise" then error("on purpose") end
  if path == "/loop" then while true do end end -- line 10
  if path == "/caught" then while true do pcall(function() while true do end end) end end
  if path == "/sleep" then gate.sleep(3600) end -- line 12
  if path == "/memory" then local kept = {} while true do kept[#kept + 1] = ("x"):rep(100000) .. #kept end end
  if path == "/table" then return { status = 200 } end
  if path == "/framing" then request.headers["Content-Length"] = "7" end -- line 15
  if path == "/host" then request.headers["Host"] = "b" end
  if path == "/split" then request.headers["X-A"] = "1\r\nX-B: 2" end
  if path == "/target" then request.target = "/a HTTP/1.1\r\nX-B: 2" end
  if path == "/nopath" then request.target = "http://b/" end
  if path == "/answer-split" then local answer = gate.answer{ status = 200, headers = { ["X-A"] = "1\r\nX-B: 2" } } return answer end
  if path == "/answer-framing" then local answer = gate.answer{ status = 200, headers = { ["Transfer-Encoding"] = "chunked" } } return answer end
  if path == "/answer-status" then local answer = gate.answer(99, "") return answer end
  if path == "/redirect-split" then local answer = gate.redirect("/\r\nX-B: 2") return answer end
  if path == "/kept" then return gate.answer(200, last.path) end
  if path == "/no-body" then return gate.answer(204, "x") end
end
function on_response(request, response)
  if request.path == "/response-raise" then error("too late") end
  if request.path == "/response-split" then response.headers["X-A"] = "1\r\nX-B: 2" end
  if request.path == "/response-framing" then response.headers["Content-Length"] = "1" end
end
