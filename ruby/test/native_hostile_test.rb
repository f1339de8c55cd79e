# frozen_string_literal: true

require_relative "native_support"

# Hostile clients: they drip, they wait, they come in crowds. Other clients are served beside them.
class NativeHostileTest < Minitest::Test
  include NativeSupport

  # Constant progress far below the least rate: Timeout is the total.
  def test_a_body_that_drips_steadily_expires
    server = serve({ timeout_s: 0.5, least_rate: 1 << 20 }, &HELLO)
    ["Content-Length: 1000000", "Transfer-Encoding: chunked"].each do |framing|
      client = server.connect.send("POST / HTTP/1.1\r\nHost: a\r\n#{framing}\r\n\r\n")
      server.wait_for("the end of its patience") do
        client.send(framing.end_with?("chunked") ? "1\r\nx\r\n" : "x")
        client.socket.wait_readable(0.02)
      end
      assert_equal 408, client.answer.status
    end
    assert_equal 200, server.get.status
  end

  def test_an_answer_that_is_taken_in_drops_expires
    size = 20_000_000
    server = serve({ timeout_s: 0.5, least_rate: 1 << 30 }, lint: false) do |env|
      env["PATH_INFO"] == "/each" ? [200, {}, Enumerator.new { |out| 20.times { out << ("x" * 1_000_000) } }] : [200, {}, ["x" * size]]
    end
    %w[/ /each].each do |target|
      client = server.connect.send(request(target))
      received = 0
      while (piece = client.more)
        received += piece.bytesize
        sleep 0.01
      end
      assert_operator received, :<, size
    end
  end

  # Two fit, the third does not, and no client is cut off without being behind.
  def test_bodies_in_files_have_a_limit_for_all
    server = serve({ input_spool_bytes: 1000, body_file_bytes: 1_000_000 }, lint: false) do |env|
      [200, {}, [env["rack.input"].read.bytesize.to_s]]
    end
    head = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 500000\r\n\r\n"
    clients = Array.new(3) { server.connect.send(head + ("x" * 400_000)) }
    readable = server.wait_for("a refusal") { IO.select(clients.map(&:socket), nil, nil, 0.1)&.first }
    refused = clients.find { |client| readable.include?(client.socket) }
    answer = refused.answer
    assert_equal [503, "close", "1"], [answer.status, answer["connection"], answer["retry-after"]]
    (clients - [refused]).each { |client| assert_equal "500000", client.send("x" * 100_000).answer.body }
    assert_match(/BodyFiles, 1000000 bytes for all of a worker's, is used up/, server.errors)
    assert_equal "500000", server.get("/", method: "POST", body: "x" * 500_000).body, "the room is there again"
    # A body that can never fit is refused before it is sent.
    asks = "POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2000000\r\n\r\n"
    assert_equal 413, server.connect.send(asks).answer.status
    assert_equal 413, server.connect.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" +
                                          ("10000\r\n#{"x" * 65_536}\r\n" * 20)).answer.status
  end

  # Stalled bodies make room for one that arrives.
  def test_bodies_that_have_come_to_a_halt_make_room_for_others
    server = serve({ input_spool_bytes: 1000, body_file_bytes: 1_000_000, timeout_s: 4.0, least_rate: 1024 }, lint: false) do |env|
      [200, {}, [env["rack.input"].read.bytesize.to_s]]
    end
    head = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 500000\r\n\r\n"
    halted = Array.new(2) { server.connect.send(head + ("x" * 499_000)) }
    statuses = []
    server.wait_for("room") do
      statuses << server.get("/", method: "POST", body: "x" * 500_000).status
      statuses.last == 200
    end
    readable, = IO.select(halted.map(&:socket), nil, nil, PATIENCE_S)
    assert_equal 503, halted.find { |client| readable.include?(client.socket) }.answer.status
    assert_empty statuses - [200, 503]
  end

  # Crowds of clients begin something and stop. The application still gets descriptors, and other clients are answered.
  def test_a_crowd_of_half_requests_leaves_descriptors_for_others
    # Besides the tests' own descriptors.
    few = ->(_worker) { Process.setrlimit(Process::RLIMIT_NOFILE, Dir.children("/proc/self/fd").map(&:to_i).max + 130) }
    begun = ["", "GET / HT", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n#{"x" * 20}", request]
    begun.each do |bytes|
      server = serve({ input_spool_bytes: 10 }, lint: false, in_child: few) do |env|
        files = Array.new(5) { File.open("/dev/null") }
        body = env["rack.input"].read
        [200, {}, [files.map(&:fileno).size.to_s + body]]
      ensure
        files&.each(&:close)
      end
      crowd = Array.new(300) { server.connect.send(bytes) }
      5.times { assert_equal [200, "5"], server.get.then { |answer| [answer.status, answer.body] } }
      answer = server.get("/", method: "POST", body: "y" * 50)
      assert_equal [200, "5#{"y" * 50}"], [answer.status, answer.body]
      server.wait_for("a line in the log") { server.get && server.errors[/\d+ connections? w\w+ closed to make room for others/] }
      refute_match(/Too many open files/, server.errors)
      crowd.each(&:close)
    end
  end

  # Once the server had all the connections that it may, it made room before it looked whether a client waited: it
  # closed the one that had just come, whose request was on the way.
  def test_new_clients_have_time_to_ask_while_all_connections_are_in_use
    few = ->(_worker) { Process.setrlimit(Process::RLIMIT_NOFILE, Dir.children("/proc/self/fd").size + 80) }
    server = serve({}, lint: false, in_child: few, &HELLO)
    sockets = lambda do
      Dir["/proc/#{server.pid}/fd/*"].count { |path| File.readlink(path).start_with?("socket:") rescue false } # rubocop:disable Style/RescueModifier
    end
    # Each of these could wait for its next request.
    kept = Array.new(100) { server.connect.tap { |client| assert_equal 200, client.send(request).answer.status } }
    open = -> { kept.reject { |client| client.socket.wait_readable(0) } }
    assert_operator open.call.size, :<, 100, "the connections fit; the test has too few of them"
    own = sockets.call - open.call.size
    # More than are closed at a time, and each one alone fills the last place.
    late = Array.new(10) do |number|
      client = server.connect
      server.wait_for("the connection to be accepted") { sockets.call - own == open.call.size + number + 1 }
      client
    end
    assert_empty(late.select { |client| client.socket.wait_readable(0) }, "new connections were closed")
    late.each { |client| assert_equal 200, client.send(request).answer.status }
    # Nor does one close another while all places are in use and nobody comes.
    count = open.call.size
    3.times { assert_equal 200, late.last.send(request).answer.status }
    assert_equal count, open.call.size
  end

  def test_a_crowd_of_half_heads_takes_no_memory_beyond_the_limit
    server = serve({ buffer_bytes: 2 << 20 }, &HELLO)
    server.get
    before_kb = server.memory_kb
    crowd = Array.new(300) { server.connect.send("GET / HTTP/1.1\r\nHost: a\r\nX: #{"x" * 50_000}") }
    assert_equal 200, server.get.status
    assert_operator server.memory_kb - before_kb, :<, 8_000, "15,000 of heads wait"
    crowd.each(&:close)
  end

  # A stalled reader while no file has room, beside one stalled for longer.
  def test_the_reader_that_is_furthest_behind_makes_room_for_others
    server = serve({ buffer_bytes: 1 << 20, answer_file_bytes: 4 << 20, timeout_s: 30.0 }, lint: false) do |env|
      env["PATH_INFO"] == "/each" ? [200, {}, Enumerator.new { |out| 4.times { out << ("x" * 1_000_000) } }] : [200, {}, ["x" * 4_000_000]]
    end
    cut_off = 0
    %w[/ /each].each do |target|
      stalled = server.connect.send(request("/each"))
      stalled.more
      taker = nil
      server.wait_for("an answer that has room") do
        taker&.close
        taker = server.connect.send(request(target, "Connection: close\r\n"))
        taker.more && taker.socket.wait_readable(0.1)
        server.errors.scan(/1 connection was closed to make room/).size == cut_off + 1
      end
      cut_off += 1
      assert_operator stalled.rest.bytesize, :<, 4_000_000
      assert_operator taker.rest.bytesize, :>, 4_000_000 if target == "/each"
    ensure
      [stalled, taker].compact.each(&:close)
    end
  end
end
