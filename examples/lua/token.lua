-- Logs in first, and sends the token from the answer with all further requests.
--
--   oroshi bench -c 50 -d 10s -s examples/lua/token.lua http://127.0.0.1:8080/account -- /login
--
-- The argument is the path that answers with the token, as the header X-Token; without it that is /login. Each thread logs in once. Until
-- it has its token, its other connections ask for the login page as well, as they have nothing else to send.

local login, token

function init(args)
  login = wrk.format("POST", args[1] or "/login", { ["Content-Type"] = "text/plain" }, "user=demo")
end

function request()
  if not token then
    return login
  end
  return wrk.format()
end

function response(status, headers, body)
  if token then
    return
  end
  for name, value in pairs(headers) do
    if name:lower() == "x-token" then
      token = value
      wrk.headers["Authorization"] = "Bearer " .. token
    end
  end
end
