# frozen_string_literal: true

require_relative "native_workers"

# Several workers at one listener.
class NativeSpreadTest < Minitest::Test
  include NativeWorkers

  # The kernel wakes the first worker that sleeps, always the same one: then all kept connections wait for one worker.
  def test_kept_connections_are_spread_over_the_workers
    [abstract_listener, tcp_listener].each do |listener|
      with_workers(listener) do |pids|
        clients = []
        answered_by = []
        # On a busy machine a worker may sleep for long.
        wait_until("all workers to have some") do
          clients << client_of(listener)
          answered_by << clients.last.send(request).answer.body.to_i
          answered_by.uniq.size == pids.size
        end
        assert_operator clients.size, :<=, 40 * WORKERS, answered_by.tally.to_s
        assert_equal answered_by, clients.map { |client| client.send(request).answer.body.to_i }, "a connection stays where it is"
      ensure
        clients&.each(&:close)
      end
    end
  end

  # No client has sent a request yet: the first worker to wake must not accept all.
  def test_connections_that_are_opened_at_once_are_spread
    listener = abstract_listener
    with_workers(listener) do |pids|
      # On a busy machine a worker may be too late: then again.
      wait_until("five that go to five workers") do
        clients = Array.new(WORKERS) { client_of(listener) }
        clients.map { |client| client.send(request).answer.body.to_i }.sort == pids.sort
      ensure
        clients&.each(&:close)
      end
    end
  end

  # One worker's connections are slow while the other workers sleep: it hands them over, and loses no request.
  def test_a_slow_worker_gives_kept_connections_to_idle_ones
    listener = abstract_listener
    slow = lambda do |env|
      sleep 0.02 if env["PATH_INFO"] == "/slow"
      WHO.call(env)
    end
    with_workers(listener, slow) do |pids|
      halt(pids.drop(1))
      clients = Array.new(WORKERS) { client_of(listener) }
      at_first = clients.map { |client| client.send(request).answer.body.to_i }
      pids.drop(1).each { |pid| Process.kill("CONT", pid) }
      assert_equal [pids.first], at_first.uniq, "the others are stopped"

      moved = Queue.new
      clients.map { |client| Thread.new { keep_asking(listener, client, pids.first, moved) } }.each(&:join)
      assert_equal WORKERS - 1, moved.size, "one stays, and the others have moved away"
    end
  end

  # However long the call takes: the test does not wait for its end.
  def test_requests_behind_a_slow_one_are_answered_by_other_workers
    with_all_at_the_first(8) do |(slow, half, pipelined, *others), door, pids|
      half.send("GET / HTTP/1.1\r\nHo")
      slow.send(request("/gate"))
      keeper = door.accept
      half.send("st: a\r\n\r\n")
      pipelined.send(request * 3)
      others.each { |client| client.send(request) }
      answered_by = [half, *others, pipelined, pipelined, pipelined].map { |client| client.answer.body.to_i }
      assert_empty answered_by - pids.drop(1)
      # They stay at their new workers.
      others.each { |client| assert_includes pids.drop(1), client.send(request).answer.body.to_i }
      keeper.close
      assert_equal pids.first, slow.answer.body.to_i
      assert_equal 200, slow.send(request).answer.status
    end
  end

  # Bodies in memory, in a file, not begun, and asked for.
  def test_requests_with_half_a_body_behind_a_slow_one_are_answered_by_other_workers
    with_all_at_the_first(5) do |(slow, *halves), door, pids|
      bodies = ["0123456789", "x" * 3_000_000, "y" * 100_000, "z" * 10]
      received = [5, 2_500_000, 0, 0]
      halves.each_with_index do |client, n|
        expect = "Expect: 100-continue\r\n" if n == 3
        client.send("POST / HTTP/1.1\r\nHost: a\r\n#{expect}Content-Length: #{bodies[n].size}\r\n\r\n#{bodies[n][0, received[n]]}")
      end
      assert_equal 100, halves.last.answer.status
      assert_equal 200, slow.send(request).answer.status # the worker has read what the others have sent by now
      slow.send(request("/gate"))
      keeper = door.accept
      halves.each_with_index { |client, n| client.send(bodies[n][received[n]..]) }
      halves.each_with_index do |client, n|
        answer = client.answer
        answer = client.answer if answer.status == 100
        pid, body = answer.body.split(" ", 2)
        assert_includes pids.drop(1), pid.to_i
        assert_equal bodies[n], body, "body #{n}"
      end
      keeper.close
      assert_equal 200, slow.answer.status
    end
  end

  # It moves as its file.
  def test_a_large_body_that_moves_is_not_copied
    size = 30_000_000
    with_all_at_the_first(3) do |(slow, half), door, pids|
      half.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: #{size}\r\n\r\n#{"x" * (size - 2)}")
      wait_until("the body to arrive") { slow.send(request).answer && wrote(pids.first) > size - 1_000_000 }
      slow.send(request("/gate"))
      keeper = door.accept
      half.send("y")
      half.send("z")
      pid, received = half.answer.body.split
      copied = pids.drop(1).sum { |one| wrote(one) }
      keeper.close
      assert_equal 200, slow.answer.status
      assert_includes pids.drop(1), pid.to_i
      assert_equal size.to_s, received
      assert_operator copied, :<, 1_000_000
    end
  end

  # Each drop arrives while its worker is busy: that must not restart the client's time.
  def test_heads_and_bodies_that_drip_at_busy_workers_expire
    listener = abstract_listener
    slow = ->(env) { sleep 0.05 and WHO.call(env) }
    with_workers(listener, slow, timeout_s: 1.5, least_rate: 1 << 20) do |_pids|
      over = false
      busy = Array.new(WORKERS) do
        Thread.new do
          until over
            client = client_of(listener)
            begin
              client.send(request).answer until over
            rescue EOFError, SystemCallError
              nil # on a machine that is busy itself, this client's own time may be over
            ensure
              client.close
            end
          end
        end
      end
      drips = ["GET / HTTP/1.1\r\nX: ", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n"] * 5
      drips.map! { |bytes| client_of(listener).send(bytes) }
      clients = drips.dup
      wait_until("all to expire") do
        clients.each { |client| client.send("x") }
        clients -= clients.select { |client| client.socket.wait_readable(0.001) }
        clients.empty?
      end
      statuses = drips.map { |client| client.answer.status }
      over = true
      busy.each(&:join)
      assert_equal [408], statuses.uniq
    ensure
      over = true
      drips&.each { |client| client.close if client.is_a?(Client) }
    end
  end

  # With trailers, and another request behind. A malformed one stays, and its own worker refuses it.
  def test_requests_with_half_a_body_in_chunks_are_answered_by_other_workers
    with_all_at_the_first(3) do |(slow, half, broken), door, pids|
      begun = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n012"
      [half, broken].each { |client| client.send(begun) }
      assert_equal 200, slow.send(request).answer.status
      slow.send(request("/gate"))
      keeper = door.accept
      broken.send("34\r\nZZ\r\n")
      half.send("34\r\n5\r\n56789\r\n0\r\nX-A: b\r\n\r\n#{request}")
      pid, body = half.answer.body.split
      assert_includes pids.drop(1), pid.to_i
      assert_equal "0123456789", body
      assert_includes pids.drop(1), half.answer.body.to_i
      keeper.close
      assert_equal 200, slow.answer.status
      assert_equal 400, broken.answer.status
    end
  end

  # A killed worker can do nothing. Requests behind its call have moved before.
  def test_requests_behind_a_call_survive_the_end_of_its_worker
    with_all_at_the_first(4) do |(slow, *others), door, pids|
      slow.send(request("/gate"))
      door.accept
      halt(pids.drop(1)) # nobody takes them yet
      others.each { |client| client.send(request) }
      wait_until("them to be handed over") { @board.read(0)[:handed_over] == 3 }
      Process.kill("KILL", pids.first)
      pids.drop(1).each { |pid| Process.kill("CONT", pid) }
      others.each { |client| assert_includes pids.drop(1), client.answer.body.to_i }
    end
  end

  # Repeats requests, reconnecting when the server closes in good form, until another worker answers or all other
  # connections have moved.
  def keep_asking(listener, client, first, moved)
    over = Process.clock_gettime(Process::CLOCK_MONOTONIC) + PATIENCE_S
    while moved.size < WORKERS - 1 && Process.clock_gettime(Process::CLOCK_MONOTONIC) < over
      answer = client.send(request("/slow")).answer
      return moved << true if answer.body.to_i != first
      next unless answer.headers["connection"] == ["close"]

      client.close
      client = client_of(listener)
    end
  ensure
    client.close
  end
end
