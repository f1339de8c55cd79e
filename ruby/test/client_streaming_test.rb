# frozen_string_literal: true

require_relative "client_support"
require "zlib"

# Bodies piece by piece.
class ClientStreamingTest < ClientSupport::Test
  C = Oroshi::Client

  def chunked(request, pieces, status: 200, **fields)
    lines = fields.map { |name, value| "#{name.to_s.tr("_", "-")}: #{value}\r\n" }.join
    request.socket.write("HTTP/1.1 #{status} Whatever\r\nTransfer-Encoding: chunked\r\n#{lines}\r\n")
    pieces.each { |piece| request.socket.write("#{piece.bytesize.to_s(16)}\r\n".b + piece.b + "\r\n".b) }
    request.socket.write("0\r\nX-Sum: 7\r\n\r\n")
  end

  # The server sends the second piece only when the client has the first.
  def test_pieces_come_as_they_are_sent
    seen = Queue.new
    server = server do |request|
      chunked(request, Enumerator.new { |all| all << "one" << (seen.pop && "two") })
    end
    pieces = []
    response = within do
      client.get(server.url) do |piece, head|
        pieces << [piece, piece.encoding, head.status, head["transfer-encoding"], head.body]
        seen << true
      end
    end
    assert_equal [["one", Encoding::BINARY, 200, "chunked", ""], ["two", Encoding::BINARY, 200, "chunked", ""]], pieces
    assert_equal ["", 200, "7"], [response.body, response.status, response.trailers["x-sum"]]
    assert_operator response.timings.total, :>, 0
  end

  def test_every_verb_and_an_empty_body
    server = server { |request| request.answer(request.method == "HEAD" ? "" : request.method) }
    client = client()
    %i[get post put patch delete].each do |verb|
      body = +""
      assert_equal "", client.public_send(verb, server.url) { |piece| body << piece }.body
      assert_equal verb.to_s.upcase, body
    end
    assert_equal 200, client.head(server.url) { flunk "a piece of nothing" }.status
    assert_equal 1, client.counts[:connects]
  end

  # More than max_body_bytes, and more than waits.
  def test_a_large_body_and_a_slow_block
    server = server { |request| request.answer("x" * 20_000_000) }
    client = client(max_body_bytes: 1000)
    size = most = 0
    client.get(server.url) do |piece|
      size += piece.bytesize
      most = [most, piece.bytesize].max
      Thread.pass
    end
    assert_equal 20_000_000, size
    assert_operator most, :<=, 65_536
    assert_raises(C::BetweenBytesError) { client.get(server.url) }
  end

  # The server cannot send while the block does not return.
  def test_a_block_holds_the_server_up
    sent = 0
    server = server do |request|
      request.socket.write("HTTP/1.1 200 OK\r\nContent-Length: #{1 << 30}\r\n\r\n")
      loop { sent += request.socket.write("x" * 65_536) }
    end
    client = client()
    within do
      client.get(server.url) do
        before = nil
        wait_until("the server to stand still") { sleep(0.05).then { before == sent || !(before = sent) } }
        break
      end
    end
    assert_operator sent, :<, 64 << 20
    wait_until("the end of the request") { client.counts[:in_flight].zero? }
  end

  def test_codings_redirects_and_charsets
    text = "hello " * 10_000
    server = server do |request|
      next request.answer("moved", status: 302, Location: "/packed") if request.target == "/"

      request.answer(Zlib.gzip(text), Content_Encoding: "gzip", Content_Type: "text/plain; charset=utf-8")
    end
    body = +""
    response = client.get(server.url) { |piece, head| body << piece and assert_equal "gzip", head.coding }
    assert_equal [text, 1], [body, response.redirects]
  end

  def test_failures_within_the_body
    server = server do |request|
      request.socket.write("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")
      request.target == "/cut" ? request.socket.close : sleep
    end
    seen = []
    assert_raises(C::BetweenBytesError) { client.get(server.url("/cut")) { |piece| seen << piece } }
    assert_raises(C::BetweenBytesTimeout) { client(between_bytes_timeout: 0.05).get(server.url) { |piece| seen << piece } }
    assert_equal %w[half half], seen
    assert_raises(C::ConnectError) { client.get("http://127.0.0.1:#{closed_port}/") { flunk } }
  end

  def test_a_block_that_raises_or_breaks_ends_the_request
    server = server do |request|
      request.socket.write("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")
      sleep
    end
    client = client()
    assert_equal "enough", assert_raises(RuntimeError) { within { client.get(server.url) { raise "enough" } } }.message
    assert_equal "half", within { client.get(server.url) { |piece| break piece } }
    assert_raises(StopIteration) { within { client.get(server.url) { raise StopIteration } } }
    assert_raises(Timeout::Error) { Timeout.timeout(0.05) { client.get(server.url) { sleep } } }
    wait_until("the ends of the requests") { client.counts.values_at(:in_flight, :open) == [0, 0] }
  end

  def test_raise_for_status_keeps_the_reason_from_the_block
    server = server { |request| request.answer("why" * 100_000, status: 500) }
    error = assert_raises(C::StatusError) { client.get(server.url, raise_for_status: true) { flunk "no piece of an error" } }
    assert_equal 65_536, error.response.body.bytesize
    size = 0
    assert_equal 500, client.get(server.url) { |piece| size += piece.bytesize }.status
    assert_equal 300_000, size
  end

  def test_many_threads
    server = server { |request| request.answer(request.target * 50_000) }
    client = client(max_connections: 3)
    bodies = Array.new(12) do |n|
      Thread.new { (+"").tap { |body| client.get(server.url("/#{n}")) { |piece| body << piece } } }
    end
    bodies.each_with_index { |thread, n| assert_equal "/#{n}" * 50_000, thread.value }
  end
end
