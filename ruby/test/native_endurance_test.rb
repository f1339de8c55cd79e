# frozen_string_literal: true

require_relative "native_support"

# The native core under Ruby's garbage collector, and over many requests.
class NativeEnduranceTest < Minitest::Test
  include NativeSupport

  # A little of everything, with a garbage collection at every allocation: values that the collector cannot see die
  # here.
  [true, false].each do |in_place|
    define_method(:"test_everything_under_gc_stress_#{in_place ? "in_place" : "slowly"}") do
      app = lambda do |env|
        GC.stress = true
        case env["PATH_INFO"]
        when "/array" then [200, { "X-A" => "b" * 30, "Set-Cookie" => "a\nb" }, [env["HTTP_X_LONG"].to_s, "c" * 40]]
        when "/input" then [200, {}, [env["rack.input"].read]]
        when "/each" then [200, {}, %w[a b].each]
        when "/env" then [200, {}, [env.to_a.flatten.map(&:to_s).join(" ")]]
        when "/call" then [200, {}, ->(stream) { stream << "called" and stream.close }]
        when "/raise" then raise "under stress"
        when "/odd" then ["200", { x: 1 }, ["odd"]]
        end
      end
      server = serve({ fill_in_place: in_place, input_spool_bytes: 1000 }, lint: false, &app)
      client = server.connect
      long = "x" * 60
      5.times do
        answer = client.send(request("/array", "X-Long: #{long}\r\nCookie: a=1\r\n")).answer
        assert_equal [long + ("c" * 40), "b" * 30], [answer.body, answer["x-a"]]
        assert_includes client.send(request("/env?a=b", "X-Long: #{long}\r\nX-Short: s\r\n")).answer.body, "HTTP_X_LONG #{long} HTTP_X_SHORT s"
        [10, 2000].each do |size|
          assert_equal "i" * size, client.send("POST /input HTTP/1.1\r\nHost: a\r\nContent-Length: #{size}\r\n\r\n#{"i" * size}").answer.body
        end
        assert_equal "ab", client.send(request("/each")).answer.body
        assert_equal 500, client.send(request("/raise")).answer.status
        assert_equal "odd", client.send(request("/odd")).answer.body
        assert_equal "called", server.get("/call").body
        post = "POST /input HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n"
        assert_equal [100, "hello"], [client.send(post).answer.status, client.send("hello").answer.body]
      end
      assert_equal ":stopped", server.stop
    end
  end

  # New shapes, known ones and fields without a shape, while everything dies and moves that the collector may move.
  def test_shapes_under_gc_stress_and_compaction
    leave_out("shapes under compaction", "this Ruby cannot compact") unless GC.respond_to?(:auto_compact=)
    kept = []
    server = serve(lint: false) do |env|
      GC.stress = false
      kept << env
      seen = kept.map { |one| one.select { |key, _| key.start_with?("HTTP_X") } }
      GC.auto_compact = true
      GC.stress = true
      [200, {}, [seen.inspect]]
    end
    client = server.connect
    expected = []
    long = ->(text) { text * 30 }
    [%w[X-A X-B], %w[X-A X-B], %w[X-A X-B], %w[X-C], %w[X-C], %w[X-D X-A X-D], %w[X-D X-A X-D], %w[X-A X-B], []].each_with_index do |names, number|
      fields = names.map { |name| "#{name}: #{long[number.to_s]}\r\n" }.join
      expected << names.group_by(&:itself).to_h { |name, all| ["HTTP_#{name.tr("-", "_")}", all.map { long[number.to_s] }.join(", ")] }
      assert_equal expected.inspect, client.send(request("/", fields)).answer.body
    end
    assert_equal ":stopped", server.stop
  end

  # Objects may move too.
  def test_templates_under_compaction
    leave_out("environments under compaction", "this Ruby cannot compact") unless GC.respond_to?(:compact)
    server = serve(lint: false) do |env|
      GC.compact
      [200, {}, [env.values_at("HTTP_X_LONG", "REQUEST_METHOD", "SERVER_NAME", "rack.version").inspect]]
    end
    client = server.connect
    20.times do |number|
      long = "x" * (30 + (number / 5))
      assert_equal [long, "GET", "localhost", [1, 3]].inspect, client.send(request("/", "X-Long: #{long}\r\n")).answer.body
    end
  end

  # OROSHI_REQUESTS: number of requests, 100,000 by default; a million finds leaks a tenth as large.
  REQUESTS = Integer(ENV.fetch("OROSHI_REQUESTS", 100_000))
  # A leak grows in every stretch; start-up effects and allocator noise do not.
  STRETCHES = 5

  def test_many_requests_take_no_memory
    server = serve(lint: false) do |env|
      GC.start if env["PATH_INFO"] == "/live"
      [200, { "X-A" => "b" }, [env["PATH_INFO"] == "/live" ? GC.stat(:heap_live_slots).to_s : "body"]]
    end
    batch = request("/some/path?query=1", "User-Agent: #{"x" * 60}\r\nAccept: */*\r\n") * 100
    client = server.connect
    measured = Array.new(STRETCHES) do
      (REQUESTS / STRETCHES / 100).times { client.send(batch) && 100.times { client.answer } }
      20.times { server.get }
      [client.send(request("/live")).answer.body.to_i, server.memory_kb]
    end
    objects, memory_kb = measured.transpose.map { |series| series.each_cons(2).map { |before, after| after - before }.min }
    assert_operator objects, :<, 500, "objects more after each #{REQUESTS / STRETCHES} requests: #{measured}"
    assert_operator memory_kb, :<, 512, "KiB more after each #{REQUESTS / STRETCHES} requests: #{measured}"
    assert_equal ":stopped", server.stop
  end

  def test_many_connections_leave_nothing_behind
    server = hello(lint: false)
    count = -> { Dir["/proc/#{server.pid}/fd/*"].size }
    server.get
    before = count.call
    clients = Array.new(300) { server.connect }
    clients.each { |client| assert_equal 200, client.send(request).answer.status }
    assert_operator count.call, :>=, before + 299
    clients.each(&:close)
    server.wait_for("the connections to be closed") { count.call <= before }
  end
end
