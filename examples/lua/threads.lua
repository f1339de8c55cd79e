-- Gives each thread a name and a path of its own, and tells at the end what each has done.
--
--   oroshi bench -t 2 -c 50 -d 10s -s examples/lua/threads.lua http://127.0.0.1:8080/
--
-- Shows how values get into a thread (thread:set in setup) and out of it again (thread:get in done), and what done() is told.

local threads = {}

function setup(thread)
  table.insert(threads, thread)
  thread:set("name", "thread " .. #threads)
  thread:set("path", "/thread-" .. #threads)
end

-- Globals of each thread, which done() will ask for.
sent, answered, failed = 0, 0, 0

function request()
  sent = sent + 1
  -- Every other request is for the URL itself.
  return wrk.format(nil, sent % 2 == 0 and path or wrk.path)
end

-- With one parameter only the status is looked at: headers and bodies, which nobody asks for, are not kept.
function response(status)
  answered = answered + 1
  if status >= 400 then
    failed = failed + 1
  end
end

function done(summary, latency, requests)
  for _, thread in ipairs(threads) do
    print(string.format("%s: %d sent, %d answered, %d of them with an error",
      thread:get("name"), thread:get("sent"), thread:get("answered"), thread:get("failed")))
  end
  print(string.format("%d answers in %.2f s", summary.requests, summary.duration / 1e6))
  for _, percent in ipairs({ 50, 90, 99, 99.9 }) do
    print(string.format("%g%% within %.3f ms", percent, latency:percentile(percent) / 1000))
  end
  local errors = summary.errors
  print(string.format("errors: %d connect, %d read, %d write, %d timeout, %d status",
    errors.connect, errors.read, errors.write, errors.timeout, errors.status))
end
