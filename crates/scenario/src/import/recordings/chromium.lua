-- Written by oroshi from chromium.har: 8 requests to http://127.0.0.1:8080/
--
--     oroshi bench -s FILE --users 1 --iterations 1 --verbose
--
-- makes one journey, and shows each request and check. Then raise users, and give the run a duration.
-- Recorded by WebInspector.
-- Left out: 1 request to other hosts: cdn.example.com (1). --host HOST keeps them.
-- Left out: 1 request (WebSocket, which scenarios do not speak).
-- Left out: 1 request (a preflight of the browser's own).
-- Left out: 1 request (without a response).

-- Secrets stay out of this file: put test data in their place (or use --keep-secrets). For an account per user:
--     local accounts = data.csv("accounts.csv")     (above the scenario; beside this file)
--     local account = accounts:lease()              (first in the scenario; then account.password)
local secret = {
  password = "CHANGE-ME", -- of "post login"
  authorization = "CHANGE-ME", -- of "post api cart"
  token = "CHANGE-ME", -- of "logout"
}

options {
  url = "http://127.0.0.1:8080",
  users = 1,
  headers = {
    ["Accept-Language"] = "en-US,en;q=0.9",
    ["User-Agent"] = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0.0.0 Safari/537.36",
  },
}

scenario("recorded", function(user)
  local response, page, answer
  -- Page: http://127.0.0.1:8080/
  response = user:get("/", { name = "top", expect = 200 })
  page = user:html(response)
  local csrf = page:attr("input[name=csrf]", "value") -- comes back in "post login"
  user:assets(page)
  think(4)

  -- Page: Shop -- ]] os.exit()
  response = user:post("/login", {
    name = "post login",
    headers = { Origin = "http://127.0.0.1:8080", Referer = "http://127.0.0.1:8080/login" },
    form = { csrf = csrf, name = "alice", password = secret.password },
    expect = 200,
  })
  page = user:html(response)
  local csrf_token = page:attr("meta[name=csrf-token]", "content") -- comes back in "post api cart"
  user:assets(page)
  response = user:get("/api/items?page=1", {
    name = "api items",
    headers = { ["X-Requested-With"] = "XMLHttpRequest" },
    expect = 200,
  })
  answer = response:json()
  local id = answer.items[1].id -- comes back in "api items id"
  local token = answer.cart.token -- comes back in "post api cart"
  think(2.5)
  user:get("/api/items/" .. id, { name = "api items id", expect = { 200, 304 } })
  user:post("/api/cart", {
    name = "post api cart",
    headers = { ["X-CSRF-Token"] = csrf_token, Authorization = "Bearer " .. secret.authorization },
    json = {
      cart = token,
      gift = true,
      item = { id = id },
      note = "größe \"L\"\n",
      price = 12.5,
      tags = json.decode("[]"),
    },
    expect = 201,
  })
  think(1)
  user:put("/api/profile", {
    name = "put api profile",
    headers = { ["Content-Type"] = "application/json" },
    body = "{\"bio\":\"\",\"password\":" .. json.encode(secret.password) .. ",\"phone\":null}",
    expect = 200,
  })
  think(21)
  user:post("/upload", {
    name = "post upload",
    multipart = {
      title = "A photo",
      photo = { filename = "a.png", type = "image/png", body = "\194\137PNG\r\n\026" },
    },
    expect = 200,
  })
  think(1)

  -- Page: http://127.0.0.1:8080/logout
  -- The browser went on to https://id.example.com/bye, which is not part of this script.
  user:get("/logout", { name = "logout", query = { token = secret.token, all = "" }, redirects = 0, expect = 302 })
end)
