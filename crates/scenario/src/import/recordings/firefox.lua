-- Written by oroshi from firefox.har: 4 requests to https://shop.example/
--
--     oroshi bench -s FILE --users 1 --iterations 1 --verbose
--
-- makes one journey, and shows each request and check. Then raise users, and give the run a duration.
-- Recorded by Firefox.
-- Left out: 1 request to other hosts: tracker.example (1). --host HOST keeps them.
-- Left out: 1 request (an event stream, which has no end).
-- A body may contain a password that was not recognised: look for it before you share this file.

options {
  url = "https://shop.example",
  users = 1,
  headers = {
    ["User-Agent"] = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0",
    ["Accept-Language"] = "en-US,en;q=0.5",
  },
}

scenario("recorded", function(user)
  local response, page
  -- Page: Shop Start
  response = user:get("http://shop.example/", { name = "top", expect = 200 })
  page = user:html(response)
  local t = page:attr("form[action=\"/buy\"] input[name=t]", "value") -- comes back in "post buy"
  user:assets(page)
  think(10)

  -- Page: https://shop.example/buy
  user:post("/buy", {
    name = "post buy",
    headers = { Origin = "https://shop.example" },
    form = { t = t, size = { "1", "2 x" } },
    expect = 200,
  })
  think(1)
  user:delete("/api/orders/a%20b?x=1&flag", {
    name = "delete api orders a b",
    headers = { Accept = "application/json" },
    expect = 204,
  })
  user:post("/xml", {
    name = "post xml",
    headers = { Accept = "application/json", ["Content-Type"] = "text/xml" },
    body = "<login password='x'/>",
    expect = 200,
  })
end)
