# frozen_string_literal: true

require_relative "native_workers"

# Limits on clients while all workers are busy. No test ends a call before it has seen the limit hold.
class NativeBusyTest < Minitest::Test
  include NativeWorkers

  # Beginnings of a head, of a body of known length, and of a chunked body.
  BEGINNINGS = ["GET / HTTP/1.1\r\nX: ", "POST /body HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n",
                "POST /chunks HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nFFFFF\r\n"].freeze

  def setup
    super
    @door = abstract_listener
  end

  def teardown
    super
    @door.close
  end

  # Answers with the request's body, or with more than sockets hold; "/gate" waits at the door.
  def app
    lambda do |env|
      UNIXSocket.open(@door.path, &:read) if env["PATH_INFO"] == "/gate"
      [200, {}, [env["PATH_INFO"] == "/large" ? "x" * 10_000_000 : env["rack.input"].read]]
    end
  end

  # Yields clients with one answered request each, while every worker is in a call. prepare: receives the clients
  # before.
  def with_all_busy(count, prepare: nil, **settings)
    listener = abstract_listener
    with_workers(listener, app, **settings) do
      clients = Array.new(count) { client_of(listener) }
      clients.each { |client| assert_equal 200, client.send(request).answer.status }
      prepare&.call(clients)
      slow = Array.new(WORKERS) { client_of(listener).send(request("/gate")) }
      keepers = Array.new(WORKERS) { @door.accept }
      yield clients
      keepers.each(&:close)
      slow.each { |client| assert_equal 200, client.answer.status }
    ensure
      [*clients, *slow].each(&:close)
    end
  end

  # Sends drops to all clients until each has an answer, and returns the statuses.
  def drip(clients)
    waiting = clients.dup
    wait_until("all to expire") do
      waiting.each { |client| client.send("x") }
      waiting -= waiting.select { |client| client.socket.wait_readable(0.001) }
      waiting.empty?
    end
    clients.map { |client| client.answer.status }
  end

  # Their time used to grow with the calls: each drop moved them from one busy worker to the next.
  def test_what_drips_expires_while_all_workers_are_busy
    with_all_busy(12, timeout_s: 2.0, least_rate: 1 << 20) do |clients|
      clients.zip(BEGINNINGS.cycle) { |client, bytes| client.send(bytes) }
      assert_equal [408], drip(clients).uniq
    end
  end

  def test_an_answer_that_nobody_takes_is_cut_off_while_all_workers_are_busy
    begin_to_take = ->((client)) { client.send(request("/large")).more }
    with_all_busy(1, prepare: begin_to_take, timeout_s: 2.0) do |(client)|
      wait_until("it to be cut off") do
        client.socket.write_nonblock("x", exception: false) && false
      rescue Errno::EPIPE, Errno::ECONNRESET
        true
      end
      assert_operator client.rest.bytesize, :<, 10_000_000
    end
  end

  def test_a_kept_connection_ends_in_time_while_its_worker_is_busy
    server = serve({ keep_alive_s: 1.0 }, lint: false, &app)
    idle, slow = server.connect, server.connect
    assert_equal 200, idle.send(request).answer.status
    slow.send(request("/gate"))
    keeper = @door.accept
    assert idle.closed?
    keeper.close
    assert_equal 200, slow.answer.status
  end

  # Returns the bytes that a client has sent and the server has not read.
  def unread(client)
    count = [0].pack("l")
    client.socket.ioctl(0x5411, count) # SIOCOUTQ
    count.unpack1("l")
  end

  # Workers accepted one per round of calls; the others' limits had not begun.
  def test_new_connections_that_drip_are_taken_together
    server = serve({ timeout_s: 2.0, least_rate: 1 << 20 }, lint: false, &app)
    slow = Array.new(2) { server.connect }
    slow.each { |client| assert_equal 200, client.send(request).answer.status }
    slow.first.send(request("/gate"))
    keeper = @door.accept
    slow.last.send(request("/gate"))
    wait_until("the watcher to read") { unread(slow.last).zero? }
    drips = Array.new(10) { server.connect.send(BEGINNINGS.first) }
    keeper.close
    assert_equal 200, slow.first.answer.status
    keeper = @door.accept
    assert_equal [408], drip(drips).uniq
    keeper.close
    assert_equal 200, slow.last.answer.status
  end

  # No other worker accepts requests: they are answered after the call. The log has a line for each refused client.
  def test_a_worker_that_is_alone_goes_on_with_what_came_meanwhile
    Dir.mktmpdir do |folder|
      log = File.open("#{folder}/log", "w")
      server = serve({ timeout_s: 2.0, log_format: :common, log_fd: log.fileno }, lint: false, &app)
      slow, piped, known, chunked, *drips = Array.new(4 + BEGINNINGS.size) { server.connect }
      [slow, piped, known, chunked, *drips].each { |client| assert_equal 200, client.send(request).answer.status }
      slow.send(request("/gate"))
      keeper = @door.accept
      drips.zip(BEGINNINGS) { |client, bytes| client.send(bytes) }
      assert_equal [408] * 3, drip(drips)
      piped.send(request * 3)
      known.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2000000\r\n\r\n#{"y" * 2_000_000}")
      chunked.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n01234\r\n0\r\n\r\n#{request}")
      keeper.close
      assert_equal 200, slow.answer.status
      assert_equal [200] * 3, Array.new(3) { piped.answer.status }
      assert_equal 2_000_000, known.answer.body.size
      assert_equal ["01234", ""], Array.new(2) { chunked.answer.body }
      assert_equal ":stopped", server.stop
      lines = File.readlines("#{folder}/log")
      assert_equal 3, lines.grep(/" 408 16$/).size, lines.join
      %w[/body /chunks].each do |path|
        assert_equal 1, lines.grep(%r{"POST #{path} HTTP/1\.1" 408 16$}).size, lines.join
      end
      assert_equal 7 + 1 + 3 + 1 + 2, lines.grep(/" 200 \d+$/).size, lines.join
    ensure
      log&.close
    end
  end
end
