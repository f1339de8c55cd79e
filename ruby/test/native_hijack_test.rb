# frozen_string_literal: true

require_relative "native_support"

# Sockets given away: full and partial hijack, streaming bodies that respond to `call`.
class NativeHijackTest < Minitest::Test
  include NativeSupport

  def test_full_hijack
    [false, true].each do |tcp|
      server = serve(tcp: tcp) do |env|
        next [200, { "Content-Type" => "text/plain" }, ["usual"]] unless env["PATH_INFO"] == "/hijack"

        env["rack.hijack"].call
        io = env["rack.hijack_io"]
        Thread.new do
          io.write("HTTP/1.1 101 Switching Protocols\r\nUpgrade: echo\r\nConnection: upgrade\r\n\r\n")
          io.write(io.read(5))
          io.close
        end
        [200, { "Content-Type" => "text/plain" }, ["ignored"]]
      end
      clients = Array.new(3) { server.connect }
      clients.each { |client| assert_equal "usual", client.send(request).answer.body } # it is in the set when it goes
      clients.each { |client| assert_equal 101, client.send(request("/hijack")).answer.status }
      assert_equal "usual", server.get.body, "the worker goes on meanwhile"
      clients.each { |client| assert_equal "echo\n", client.send("echo\n").rest }
      assert_equal ":stopped", server.stop
    end
  end

  def test_bytes_behind_the_head_go_with_the_socket
    server = serve(lint: false) do |env|
      io = env["rack.hijack"].call
      io.write(io.readpartial(100).upcase)
      io.close
      [200, {}, []]
    end
    assert_equal "BEHIND", server.connect.send("#{request}behind").rest
  end

  def test_a_late_hijack_reaches_no_other_request
    server = serve(lint: false) do |env|
      said = message_of { $kept&.call }
      $kept = env["rack.hijack"]
      [200, {}, [said.inspect]]
    end
    client = server.connect
    assert_equal "nil", client.send(request).answer.body
    2.times { assert_match(/rack\.hijack cannot be called any more: its request is over/, client.send(request).answer.body) }
  end

  # Returns the block's value, or the message of its IOError.
  def message_of
    yield
  rescue IOError => e
    e.message
  end

  def test_partial_hijack
    server = serve do |_env|
      taker = lambda do |io|
        io.write("raw ")
        io.write("bytes")
        io.close
      end
      [200, { "Content-Type" => "text/plain", "rack.hijack" => taker }, []]
    end
    client = server.connect.send(request)
    answer = client.answer
    assert_equal [200, "raw bytes", "close", nil, nil],
                 [answer.status, answer.body, answer["connection"], answer["transfer-encoding"], answer["rack.hijack"]]
    assert client.closed?
  end

  def test_partial_hijack_with_101
    server = serve(lint: false) do |_env|
      taker = ->(io) { Thread.new { io.write(io.gets.upcase) && io.close } }
      [101, { "Connection" => "Upgrade", "Upgrade" => "shout", "rack.hijack" => taker }, []]
    end
    client = server.connect.send(request("/", "Connection: upgrade\r\nUpgrade: shout\r\n"))
    answer = client.answer
    assert_equal [101, ["Upgrade"], ["shout"]], [answer.status, answer.headers["connection"], answer.headers["upgrade"]]
    assert_equal "HELLO\n", client.send("hello\n").rest
  end

  # After a 101 without a taker, the client would take further bytes for the new protocol.
  def test_101_without_a_taker_is_a_mistake
    server = serve(lint: false) do |env|
      body = { "/array" => [], "/each" => %w[a].each, "/call" => ->(stream) { stream.close } }.fetch(env["PATH_INFO"])
      [101, { "Connection" => "Upgrade", "Upgrade" => "shout" }, body]
    end
    client = server.connect
    %w[/array /each].each do |path|
      answer = client.send(request(path)).answer
      assert_equal [500, nil], [answer.status, answer["upgrade"]], path
    end
    assert_equal 500, client.send("HEAD /call HTTP/1.1\r\nHost: a\r\n\r\n").answer("HEAD").status
    assert_equal 101, client.send(request("/call")).answer.status
    assert_equal 3, server.errors.scan("the status is 101, but nobody takes the connection over").size
  end

  def test_a_taker_that_raises
    server = serve(lint: false) { |_env| [200, { "rack.hijack" => ->(_io) { raise "no" } }, []] }
    client = server.connect.send(request)
    assert_equal [200, ""], client.answer.then { |it| [it.status, it.body] }
    server.wait_for("the log") { server.errors.include?("no (RuntimeError)") }
    assert_equal ":stopped", server.stop
  end

  # A Rack 3 feature that needs nothing of Rack 3: it works under 2.2 as well.
  def test_bodies_that_respond_to_call
    server = serve(lint: false) do |env|
      body = lambda do |stream|
        stream << "some "
        stream.write("more", " bytes")
        stream.flush
        stream.close
      end
      [200, env["PATH_INFO"] == "/length" ? { "content-length" => "15" } : {}, body]
    end
    client = server.connect.send(request)
    answer = client.answer
    assert_equal ["some more bytes", "chunked", "close"], [answer.body, answer["transfer-encoding"], answer["connection"]]
    assert client.closed?
    answer = server.get("/length")
    assert_equal ["some more bytes", nil, "15"], [answer.body, answer["transfer-encoding"], answer["content-length"]]
    answer = server.connect.send("GET / HTTP/1.0\r\n\r\n").answer
    assert_equal ["some more bytes", nil], [answer.body, answer["transfer-encoding"]]
  end

  def test_a_stream_may_be_closed_later_and_elsewhere
    server = serve(lint: false) { |_env| [200, {}, ->(stream) { Thread.new { stream.write(stream.read(4).to_s) && stream.close } }] }
    client = server.connect.send(request)
    client.until_text("\r\n\r\n")
    assert_equal 200, server.connect.send(request).tap { |other| other.until_text("\r\n\r\n") && other.close } && 200
    assert_equal "4\r\nping\r\n0\r\n\r\n", client.send("ping").rest
  end

  def test_a_stream_that_raises_is_cut_off
    server = serve({}, lint: false, tcp: true) { |_env| [200, {}, ->(stream) { stream.write("a") && raise("in the stream") }] }
    rest = server.connect.send(request).rest
    refute_includes rest, "0\r\n\r\n"
    server.wait_for("the log") { server.errors.include?("in the stream (RuntimeError)") }
    assert_equal ":stopped", server.stop
  end

  def test_rack_protocol
    body = ->(stream) { stream.write(stream.readpartial(10).upcase) && stream.close }
    server = serve({ rack_release: "3.1.0" }, lint: false) { |env| [101, { "rack.protocol" => env["rack.protocol"].first }, body] }
    client = server.connect.send(request("/", "Connection: upgrade\r\nUpgrade: shout, sing\r\n"))
    answer = client.answer
    assert_equal [101, "upgrade", "shout"], [answer.status, answer["connection"], answer["upgrade"]]
    assert_equal "HI", client.send("hi").rest
  end
end
