-- Users of a shop: three of four browse, one buys. `oroshi target` answers all of it:
--
--     oroshi target --listen 127.0.0.1:8080 &
--     oroshi bench -s examples/scenarios/shop.lua --users 50 http://127.0.0.1:8080/

options { url = "http://127.0.0.1:8080", users = 10, duration = "10s", timeout = "5s" }

local items = data.csv("items.csv")

scenario("browse", { weight = 3 }, function(user)
  local front = user:get("/", { name = "front", expect = 200 })
  check("front page has a body", #front.body > 0)
  think { uniform = { 0.2, 0.8 } }
  for _ = 1, user:random(3) do
    user:get("/items/" .. items:random().id, { name = "item", expect = 200 })
    think { exponential = 0.3 }
  end
  award(1, "browsed")
end)

scenario("buy", function(user)
  local item = items:random()
  step("purchase", function()
    user:post("/cart", { name = "cart", form = { item = item.id, count = user:random(1, 3) } })
    local paid = user:post("/pay", { name = "pay", json = { item = item.id, price = tonumber(item.price) } })
    if not check("paid", paid.ok) then fail("not paid") end
  end)
  award(10, "bought")
end)
