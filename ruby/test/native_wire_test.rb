# frozen_string_literal: true

require_relative "native_support"

# HTTP/1.1 as a client sees it: connections, pipelining, bodies, limits, refusals.
class NativeWireTest < Minitest::Test
  include NativeSupport

  # Answers with its input.
  MIRROR = lambda do |env|
    body = "#{env["REQUEST_METHOD"]} #{env["REQUEST_URI"]} ".b + env["rack.input"].read
    [200, { "Content-Type" => "text/plain" }, [body]]
  end

  def mirror(settings = {}, **options) = serve(settings, **options, &MIRROR)

  def test_unix_and_tcp_kept_and_closed
    [false, true].each do |tcp|
      server = hello(tcp: tcp)
      client = server.connect
      3.times do
        answer = client.send(request).answer
        assert_equal [200, "Hello World", nil], [answer.status, answer.body, answer["connection"]]
      end
      answer = client.send(request("/", "Connection: close\r\n")).answer
      assert_equal "close", answer["connection"]
      assert client.closed?
      assert_equal ":stopped", server.stop
    end
  end

  def test_every_answer_has_a_date
    date = hello.get["date"]
    assert_match(/\A(Mon|Tue|Wed|Thu|Fri|Sat|Sun), \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d GMT\z/, date)
    assert_in_delta Time.now.to_i, Time.httpdate(date).to_i, 5
  end

  def test_http_1_0
    server = hello(lint: false) # Lint hides that the body is an Array, and so its length
    answer = server.connect.send("GET / HTTP/1.0\r\n\r\n").then { |client| [client.answer, client.closed?] }
    assert_equal [200, "close", true], [answer[0].status, answer[0]["connection"], answer[1]]
    client = server.connect
    2.times do
      answer = client.send("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").answer
      assert_equal [200, "keep-alive"], [answer.status, answer["connection"]]
    end
  end

  def test_one_request_per_connection_when_keep_alive_is_off
    client = hello({ keep_alive_s: 0.0 }).connect
    answer = client.send(request).answer
    assert_equal [200, "close"], [answer.status, answer["connection"]]
    assert client.closed?
  end

  def test_pipelined_requests_are_answered_in_order
    client = mirror.connect
    client.send((1..50).map { |number| request("/#{number}") }.join)
    (1..50).each { |number| assert_equal "GET /#{number} ", client.answer.body }
    post = "POST /p HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc"
    client.send("#{post}#{request("/q")}#{post}")
    assert_equal ["POST /p abc", "GET /q ", "POST /p abc"], Array.new(3) { client.answer.body }
  end

  def test_what_is_pipelined_behind_a_close_is_not_answered_and_does_not_cost_the_answer
    [false, true].each do |tcp|
      client = hello(tcp: tcp).connect
      client.send(request("/", "Connection: close\r\n") + (request * 100))
      assert_equal 200, client.answer.status
      client.half_close
      assert client.closed?
    end
  end

  # The same where the server chooses to close: closing over the next request would cut off the answer on its way.
  def test_a_stop_does_not_cut_an_answer_off_whatever_waits_behind_it
    body = "x" * 300_000
    reached, reach = IO.pipe
    server = serve(tcp: true, lint: false) do |env|
      reach.write(".")
      sleep 0.1 if env["PATH_INFO"] == "/first"
      [200, {}, [body]]
    end
    client = server.connect
    client.socket.setsockopt(:SOCKET, :RCVBUF, 8192)
    client.send(request("/first"))
    reached.read(1)
    client.send(request("/second"))
    server.signal("TERM")
    answer = client.answer
    assert_equal [200, "close", true], [answer.status, answer["connection"], answer.body == body]
  ensure
    [reached, reach].each(&:close)
  end

  def test_a_request_byte_by_byte
    client = mirror.connect
    "POST /slow HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\nX-T: 1\r\n\r\n".each_char do |byte|
      client.send(byte)
    end
    assert_equal "POST /slow abcde", client.answer.body
  end

  def test_slow_clients_cost_no_worker
    server = mirror
    slow = Array.new(20) { server.connect.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n12345") }
    assert_equal "GET /quick ", server.get("/quick").body
    slow.each { |client| assert_equal "POST / 1234567890", client.send("67890").answer.body }
  end

  def test_bodies_of_all_sizes
    server = mirror({ input_spool_bytes: 100_000 })
    client = server.connect
    [0, 1, 16_384, 65_536, 99_999, 100_000, 100_001, 3_000_000].each do |size|
      body = "x" * size
      client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: #{size}\r\n\r\n#{body}")
      assert_equal size + 7, client.answer.body.bytesize, "length #{size}"
      chunks = body.empty? ? "" : "#{size.to_s(16)}\r\n#{body}\r\n"
      client.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n#{chunks}0\r\n\r\n")
      assert_equal size + 7, client.answer.body.bytesize, "chunked #{size}"
    end
  end

  def test_large_bodies_are_in_a_file_that_is_closed_afterwards
    server = serve({ input_spool_bytes: 1000 }, lint: false) do |env|
      input = env["rack.input"]
      kind = input.is_a?(File) ? "file" : input.class.name
      [200, { "Content-Type" => "text/plain" }, [kind]]
    end
    assert_equal "file", server.get("/", method: "POST", body: "x" * 1001).body
    assert_equal "StringIO", server.get("/", method: "POST", body: "x" * 1000).body
    10.times { server.get("/", method: "POST", body: "x" * 1001) }
    deleted = -> { Dir["/proc/#{server.pid}/fd/*"].count { |fd| File.symlink?(fd) && File.readlink(fd).end_with?("(deleted)") } }
    server.wait_for("the files to be closed") { deleted.call.zero? }
  end

  def test_chunked_bodies_have_a_length_for_the_application
    server = serve do |env|
      [200, { "Content-Type" => "text/plain" }, [[env["CONTENT_LENGTH"], env.key?("HTTP_TRANSFER_ENCODING")].inspect]]
    end
    client = server.connect
    2.times do
      client.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n")
      assert_equal '["5", false]', client.answer.body
    end
  end

  def test_expect_continue_is_answered_at_once_and_the_body_is_there_when_the_application_is_called
    server = serve(lint: false) do |env|
      input = env["rack.input"]
      seen = [env["CONTENT_LENGTH"], env.key?("HTTP_TRANSFER_ENCODING"), input.respond_to?(:size) && input.size, input.read.size]
      [200, { "Content-Type" => "text/plain" }, [seen.inspect]]
    end
    post = ->(framing) { "POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n#{framing}\r\n\r\n" }
    client = server.connect
    2.times do
      assert_equal 100, client.send(post.call("Content-Length: 5")).answer.status
      answer = client.send("hello").answer
      assert_equal [200, '["5", false, 5, 5]', nil], [answer.status, answer.body, answer["connection"]]
      # As curl sends a pipe's content: Rails takes the length for the body's.
      assert_equal 100, client.send(post.call("Transfer-Encoding: chunked")).answer.status
      answer = client.send("8\r\n{\"a\": 1}\r\n0\r\n\r\n").answer
      assert_equal [200, '["8", false, 8, 8]', nil], [answer.status, answer.body, answer["connection"]]
    end
    # A body that has arrived is not asked for.
    client = server.connect.send(post.call("Content-Length: 5") + "hello")
    assert_equal [200, '["5", false, 5, 5]'], client.answer.then { |it| [it.status, it.body] }
    # A large one goes to a file.
    client = server.connect
    assert_equal 100, client.send(post.call("Content-Length: 3000000")).answer.status
    assert_equal '["3000000", false, 3000000, 3000000]', client.send("x" * 3_000_000).answer.body
  end

  def test_clients_that_are_asked_for_a_body_and_do_not_send_it_cost_no_worker
    server = mirror
    post = "POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n"
    waiting = Array.new(20) { server.connect.send(post) }
    assert_equal [100], waiting.map { |client| client.answer.status }.uniq
    assert_equal "GET /quick ", server.get("/quick").body
    waiting.each { |client| assert_equal "POST / hello", client.send("hello").answer.body }
  end

  def test_expect_continue_with_a_body_that_does_not_come
    server = serve({ timeout_s: 0.2, max_body: 10 }) do |env|
      [200, { "Content-Type" => "text/plain" }, [env["rack.input"].read]]
    end
    head = "POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n"
    client = server.connect.send("#{head}Content-Length: 5\r\n\r\n")
    assert_equal [100, 408], Array.new(2) { client.answer.status }
    client = server.connect.send("#{head}Content-Length: 5\r\n\r\n").half_close
    assert_equal [100, 400], Array.new(2) { client.answer.status }
    client = server.connect.send("#{head}Transfer-Encoding: chunked\r\n\r\n")
    assert_equal 100, client.answer.status
    assert_equal 413, client.send("b\r\n").answer.status
    assert_equal 413, server.connect.send("#{head}Content-Length: 11\r\n\r\n").answer.status
  end

  def test_limits
    server = hello({ max_body: 10, limits: { head_bytes: 2000, headers: 10, target_bytes: 100 } })
    {
      "GET /#{"a" * 100} HTTP/1.1\r\n" => 414,
      "GET / HTTP/1.1\r\nHost: a\r\nX: #{"x" * 2000}\r\n\r\n" => 431,
      "GET / HTTP/1.1\r\nHost: a\r\n#{"X: 1\r\n" * 10}\r\n" => 431,
      "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 11\r\n\r\n" => 413,
      "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nb\r\n" => 413,
      "GET / HTTP/2.0\r\n\r\n" => 505,
      "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n" => 501,
      "#{"A" * 33} / HTTP/1.1\r\n" => 501,
      "POST / HTTP/1.1\r\nHost: a\r\nExpect: 200-ok\r\nContent-Length: 1\r\n\r\n" => 417,
      "GET / HTTP/1.1\r\n\r\n" => 400,
      "CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n" => 405
    }.each do |bytes, status|
      client = server.connect.send(bytes)
      answer = client.answer
      assert_equal [status, "close"], [answer.status, answer["connection"]], bytes
      client.half_close
      assert client.closed?, bytes
    end
  end

  def test_an_answer_reaches_a_client_that_is_still_sending
    client = hello({ max_body: 1000 }, tcp: true).connect
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5000000\r\n\r\n")
    client.send("x" * 1_000_000)
    assert_equal 413, client.answer.status
  end

  def test_time_limits
    server = mirror({ timeout_s: 0.1, keep_alive_s: 0.1 })
    assert_equal 408, server.connect.send("GET / HT").answer.status
    assert_equal 408, server.connect.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nab").answer.status
    assert server.connect.closed?, "a connection without a request gets no answer"
    client = server.connect
    assert_equal 200, client.send(request).answer.status
    assert client.closed?, "nor does a kept one"
  end

  def test_a_request_that_is_cut_off
    server = mirror
    ["GET / HT", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nab"].each do |bytes|
      assert_equal 400, server.connect.send(bytes).half_close.answer.status
    end
    assert server.connect.half_close.closed?
    assert_equal 200, server.get.status
  end

  def test_slow_readers_of_large_bodies_cost_no_worker
    size = 20_000_000
    server = serve { |_env| [200, { "Content-Type" => "text/plain", "Content-Length" => size.to_s }, ["x" * size]] }
    slow = Array.new(3) { server.connect.send(request("/", "Connection: close\r\n")) }
    assert_equal size, server.get.body.bytesize
    slow.each { |client| assert_equal size, client.answer.body.bytesize }
  end

  def test_slow_readers_of_bodies_by_each_cost_no_worker
    piece = "x" * 100_000
    server = serve({ buffer_bytes: 2_000_000 }, lint: false) { |_env| [200, {}, Enumerator.new { |out| 200.times { out << piece } }] }
    slow = Array.new(3) { server.connect.send(request("/", "Connection: close\r\n")) }
    assert_equal 20_000_000, server.get.body.bytesize
    slow.each { |client| assert_equal 20_000_000, client.answer.body.bytesize }
  end

  # Twenty answers of 20 MB with 8 MB of memory: the rest is in files, and the memory is freed.
  def test_slow_readers_of_large_bodies_take_no_memory_beyond_the_limit
    # Overwrites what calls before have left on the stack: the collector takes it for references.
    deep = ->(depth) { depth.zero? ? 0 : 1 + deep.call(depth - 1) }
    server = serve({ buffer_bytes: 8 << 20 }, lint: false) do |env|
      deep.call(300)
      GC.start # the application's own Strings are not the server's to give back
      env["PATH_INFO"] == "/large" ? [200, {}, ["x" * 20_000_000]] : [200, {}, ["small"]]
    end
    server.get("/large")
    server.get
    before_kb = server.memory_kb
    slow = Array.new(20) { server.connect.send(request("/large")) }
    server.wait_for("the requests") { server.scoreboard.read(0)[:requests] == 21 }
    assert_equal "small", server.get.body
    assert_operator server.memory_kb - before_kb, :<, 100_000, "400,000 of answers wait"
    slow.each(&:close)
    assert_equal "small", server.get.body
    open = -> { Dir["/proc/#{server.pid}/fd/*"].count { |fd| File.symlink?(fd) && File.readlink(fd).end_with?("(deleted)") } }
    server.wait_for("the files to be closed") { open.call.zero? }
    server.wait_for("the memory to come back") { server.get && server.memory_kb - before_kb < 30_000 }
  end

  # A client that sends all but the last byte of a body has the same limit.
  def test_half_received_bodies_take_no_memory_beyond_the_limit
    server = mirror({ buffer_bytes: 4 << 20 })
    server.get
    before_kb = server.memory_kb
    body = "x" * 1_000_000
    slow = Array.new(40) { server.connect.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000001\r\n\r\n#{body}") }
    assert_equal "GET / ", server.get.body
    assert_operator server.memory_kb - before_kb, :<, 20_000, "40,000 of bodies wait"
    slow.each { |client| assert_equal 1_000_008, client.send("y").answer.body.bytesize }
  end

  def test_answers_without_room_in_files_are_cut_off_and_those_by_each_wait
    # On a busy machine this client, too, may read nothing for a while.
    server = serve({ buffer_bytes: 1 << 20, answer_file_bytes: 4 << 20, timeout_s: 2.0 }, lint: false) do |env|
      piece = "x" * 1_000_000
      env["PATH_INFO"] == "/each" ? [200, {}, Enumerator.new { |out| 20.times { out << piece } }] : [200, {}, [piece * 20]]
    end
    assert_operator server.connect.send(request).rest.bytesize, :<, 20_000_000
    assert_match(/AnswerFiles, 4194304 bytes for all of a worker's, is used up/, server.errors)
    assert_equal 20_000_000, server.get("/each").body.bytesize
    stalled = server.connect.send(request("/each"))
    assert_equal 20_000_000, server.get("/each").body.bytesize, "who does not read for Timeout is cut off"
    assert_operator stalled.rest.bytesize, :<, 20_000_000
  end

  def test_a_client_that_never_reads_is_given_up
    server = serve({ timeout_s: 0.2 }) { |_env| [200, { "Content-Type" => "text/plain" }, ["x" * 20_000_000]] }
    connections = -> { Dir["/proc/#{server.pid}/fd/*"].select { |fd| connection?(fd) } }
    inherited = connections.call # copies of what this process had open when it forked
    client = server.connect.send(request)
    server.wait_for("the request") { server.scoreboard.read(0)[:requests] == 1 }
    server.wait_for("the server to close") { (connections.call - inherited).empty? }
    assert_operator client.rest.bytesize, :<, 20_000_000
  end

  def connection?(descriptor)
    link = File.readlink(descriptor)
    inode = link[/\Asocket:\[(\d+)\]/, 1] or return false
    # The listener has a path in the table; so have accepted sockets, but these are connected (state 03).
    File.foreach("/proc/net/unix").any? { |line| line.split.values_at(5, 6) == ["03", inode] }
  rescue Errno::ENOENT
    false
  end

  def test_head_204_304_and_their_connections
    server = serve(lint: false) do |env|
      status = env["PATH_INFO"].delete("/").to_i
      [status, { "Content-Length" => "5", "Transfer-Encoding" => "chunked" }.slice(env["QUERY_STRING"]), ["hello"]]
    end
    client = server.connect
    [204, 304].each do |status|
      answer = client.send(request("/#{status}?Content-Length")).answer
      assert_equal [status, nil, nil], [answer.status, answer["content-length"], answer["transfer-encoding"]]
      answer = client.send(request("/#{status}?Transfer-Encoding")).answer
      assert_equal [status, nil], [answer.status, answer["transfer-encoding"]]
    end
    answer = client.send("HEAD /200 HTTP/1.1\r\nHost: a\r\n\r\n").answer("HEAD")
    assert_equal [200, "5"], [answer.status, answer["content-length"]]
    answer = client.send("HEAD /200?Content-Length HTTP/1.1\r\nHost: a\r\n\r\n").answer("HEAD")
    assert_equal [200, "5"], [answer.status, answer["content-length"]]
    assert_equal "hello", client.send(request("/200")).answer.body, "the connection is where it should be"
  end

  def test_head_says_nothing_of_a_length_that_it_does_not_know
    server = serve { |_env| [200, { "Content-Type" => "text/plain" }, []] }
    answer = server.get(method: "HEAD")
    assert_equal [200, nil], [answer.status, answer["content-length"]]
  end
end
