-- Sends a JSON document with POST: the same one each time, which is made before the run and costs nothing while it lasts.
--
--   oroshi bench -c 50 -d 10s -s examples/lua/post-json.lua http://127.0.0.1:8080/orders
--
-- Content-Length and Host are added by themselves.

wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
wrk.body = [[{"customer": 7, "items": [{"sku": "A-100", "count": 2}, {"sku": "B-200", "count": 1}]}]]
