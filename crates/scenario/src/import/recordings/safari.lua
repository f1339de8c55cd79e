-- Written by oroshi from safari.har: 4 requests to https://notes.example/
--
--     oroshi bench -s FILE --users 1 --iterations 1 --verbose
--
-- makes one journey, and shows each request and check. Then raise users, and give the run a duration.
-- Recorded by WebKit Web Inspector.

-- Secrets stay out of this file: put test data in their place (or use --keep-secrets). For an account per user:
--     local accounts = data.csv("accounts.csv")     (above the scenario; beside this file)
--     local account = accounts:lease()              (first in the scenario; then account.password)
local secret = {
  pin = "CHANGE-ME", -- of "post api session"
}

options {
  url = "https://notes.example",
  users = 1,
  headers = {
    ["User-Agent"] = "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/18.0 Safari/605.1.15",
    ["Accept-Language"] = "en-GB,en;q=0.9",
  },
}

scenario("recorded", function(user)
  local response, page, answer
  -- Page: https://notes.example/notes
  response = user:get("/notes", { name = "notes", expect = 200 })
  page = user:html(response)
  user:assets(page)
  think(2)
  response = user:post("/api/session", {
    name = "post api session",
    json = { login = "bob", pin = tonumber(secret.pin) or 0 },
    expect = 200,
  })
  answer = response:json()
  local jwt = answer.jwt -- comes back in "api notes"
  user:get("/api/notes", {
    name = "api notes",
    headers = { Authorization = "Bearer " .. jwt },
    query = { limit = "20", jwt = jwt },
    expect = 200,
  })
  user:post("/api/notes", {
    name = "post api notes",
    headers = { Authorization = "Bearer " .. jwt, ["Content-Type"] = "text/plain;charset=UTF-8" },
    body = "a \"note\"\nof " .. jwt .. "\\",
    expect = 200,
  })
end)
