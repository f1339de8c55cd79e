-- The benchmark of ISUCON4's qualifier in oroshi's words: users log in, right or wrong, and read their page.
--
--     examples/isucon4/setup                                   (once: writes the CSV files)
--     examples/isucon4/serve oroshi /tmp/isucon4 127.0.0.1:8080
--     oroshi bench -s examples/isucon4/isucon4.lua
--
-- 100 points for each page that is as it must be, 2 for each asset. Each user's points are rounded up to hundreds. At
-- the end the application must know which accounts are locked and which addresses are banned, or the score is void.

options { url = "http://127.0.0.1:8080", users = 8, duration = "60s", timeout = "10s", redirects = 10, fresh = true }

local LOCKED_AT, BANNED_AT = 3, 10
local NOTICE = {
  wrong = "Wrong username or password", locked = "This account is locked.",
  banned = "You're banned.", required = "You must be logged in",
}
local AGENTS = {
  "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0",
  "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/605.1.15 (KHTML, like Gecko) Safari/605.1.15",
  "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0.0.0 Safari/537.36",
}

local accounts = data.csv("data/users.csv")
local addresses = data.csv("data/addresses.csv")
local assets = data.csv("data/assets.csv")
local digests = {}
for i = 1, #assets do digests[assets:get(i).path] = assets:get(i).md5 end

-- What the application must know of an account (`name` is its login) or an address: failures in a row.
local function failures(row, name)
  return shared.get("failures " .. name) or tonumber(row.failures)
end

-- A login without a whole response, because it failed or the end cut it off: nobody knows whether it counted. Its
-- account and its address are not used again, nor compared with the report.
local function unknown(name)
  return shared.get("unknown " .. name)
end

local function lease(set, column)
  local row
  repeat row = set:lease() until not row or not unknown(row[column])
  return row or fail("no " .. column .. " is free")
end

local function must(name, condition)
  if not check(name, condition) then fail(name) end
end

-- Fetches what the page names: `count` files with the right content.
local function fetch_assets(user, page, count)
  local fetched = user:assets(page, { digests = digests })
  must("number of assets", #fetched == count)
  for _, asset in ipairs(fetched) do
    if check("asset", asset.ok) and not asset.cached then award(2, "asset") end
  end
end

-- Checks the front page with this notice (nil: none).
local function front_page(user, response, notice)
  must("front page", response.status == 200)
  local page = user:html(response)
  must("form", page:count("#login-form input[name=login], #login-form input[name=password]") == 2)
  must("images", page:count("img") == 3)
  must("notice", page:text("#notice") == notice)
  fetch_assets(user, page, 6)
end

-- before: the address of the login before this one; empty: there was none.
local function account_page(user, response, login, before)
  local page = user:html(response)
  must("heading", page:text("h1") == "Your account")
  must("login", page:text("#login") == login)
  must("last address", page:text("#last-address") == (before == "" and "-" or before))
  local at = page:text("#last-at") or ""
  must("last time", at:match(before == "" and "^-$" or "^%d+%-%d%d%-%d%d %d%d:%d%d:%d%d UTC$"))
  fetch_assets(user, page, 5)
end

local function visitor(user, from)
  user:header("X-Forwarded-For", from)
  user:header("User-Agent", user:pick(AGENTS))
end

scenario("login", { weight = 9 }, function(user)
  local account, address = lease(accounts, "login"), lease(addresses, "address")
  local login, from = account.login, address.address
  visitor(user, from)
  front_page(user, user:get("/", { name = "front" }), nil)
  award(100, "front page")

  local wrong = user:random() < tonumber(address.wrong)
  local of_account, of_address = failures(account, login), failures(address, from)
  local before = shared.get("from " .. login) or account.login_address
  local refusal = of_address >= BANNED_AT and "banned" or of_account >= LOCKED_AT and "locked" or wrong and "wrong"
  shared.set("unknown " .. login, true)
  shared.set("unknown " .. from, true)
  local form = { login = login, password = wrong and account.password .. "?" or account.password }
  local response = user:post("/login", { name = "login", form = form })
  must("login answered", response.status == 200)
  shared.set("failures " .. login, refusal and of_account + 1 or 0)
  shared.set("failures " .. from, refusal and of_address + 1 or 0)
  if not refusal then shared.set("from " .. login, from) end
  shared.set("unknown " .. login, false)
  shared.set("unknown " .. from, false)

  if refusal then front_page(user, response, NOTICE[refusal]) else account_page(user, response, login, before) end
  award(100, refusal or "account page")
end)

scenario("stranger", { weight = 1 }, function(user)
  visitor(user, addresses:random().address)
  front_page(user, user:get("/mypage", { name = "stranger" }), NOTICE.required)
  award(100, "stranger")
end)

initialize({ timeout = "60s" }, function(user)
  local response = user:post("/initialize", { timeout = "60s" })
  if response.status ~= 200 then abort("POST /initialize: expected 200, got " .. response.status) end
end)

-- Returns somebody who is in the report and must not be, or the other way round; nil if all is well.
local function difference(set, column, limit, reported)
  local listed = {}
  for _, name in ipairs(reported) do listed[name] = true end
  for i = 1, #set do
    local row = set:get(i)
    local name = row[column]
    if not unknown(name) and (listed[name] or false) ~= (failures(row, name) >= limit) then return name end
    listed[name] = nil
  end
  return (next(listed)) -- nobody of ours
end

final({ timeout = "30s" }, function(user)
  local response = user:get("/report", { timeout = "30s" })
  if response.status ~= 200 then return void("GET /report: expected 200, got " .. response.status) end
  local report = response:json()
  local name = difference(addresses, "address", BANNED_AT, report.banned_ips) or
    difference(accounts, "login", LOCKED_AT, report.locked_users)
  if name then void("the report is wrong about " .. name) end
end)

score(function(result)
  local sum = 0
  for _, points in ipairs(result.users) do sum = sum + math.ceil(points / 100) end
  return sum
end)
