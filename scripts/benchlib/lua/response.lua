-- A look at every answer.
local ok, bytes = 0, 0

function response(status, headers, body)
   if status == 200 and headers["Content-Type"] == "text/plain" then
      ok = ok + 1
      bytes = bytes + #body
   end
end
