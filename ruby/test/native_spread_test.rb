# frozen_string_literal: true

require_relative "native_support"

# Several workers at one listener.
class NativeSpreadTest < Minitest::Test
  include NativeSupport

  WORKERS = 5

  def with_workers(listener)
    board = Oroshi::Native::Scoreboard.new(WORKERS)
    pids = Array.new(WORKERS) do |slot|
      fork do
        app = ->(_env) { [200, {}, [Process.pid.to_s]] }
        worker = Oroshi::Native::Worker.new(app, listener_fds: [listener.fileno], scoreboard: board, slot: slot, settings: { keep_alive_s: 30.0 })
        trap("TERM") { worker.stop_now }
        worker.run
      ensure
        exit!
      end
    end
    over = Process.clock_gettime(Process::CLOCK_MONOTONIC) + PATIENCE_S
    until Array.new(WORKERS) { |slot| board.read(slot)[:state] }.all?(:idle)
      raise "the workers do not begin" if Process.clock_gettime(Process::CLOCK_MONOTONIC) > over

      sleep 0.002
    end
    yield pids
  ensure
    pids&.each { |pid| Process.kill("TERM", pid) && Process.wait(pid) }
    listener.close
  end

  # The kernel wakes the first worker that sleeps, which would always be the same: then all that is kept waits for one.
  def test_kept_connections_are_spread_over_the_workers
    unix = UNIXServer.new("\0oroshi-#{Process.pid}-#{rand(1 << 32)}")
    tcp = TCPServer.new("127.0.0.1", 0)
    connects = { unix => -> { UNIXSocket.new(unix.path) }, tcp => -> { TCPSocket.new("127.0.0.1", tcp.addr[1]) } }
    connects.each do |listener, connect|
      with_workers(listener) do |pids|
        clients = []
        answered_by = Array.new(8 * WORKERS) do
          clients << Client.new(connect.call)
          clients.last.send(request).answer.body.to_i
        end
        assert_equal pids.sort, answered_by.uniq.sort, answered_by.tally.to_s
        assert_equal answered_by, clients.map { |client| client.send(request).answer.body.to_i }, "a connection stays where it is"
      ensure
        clients&.each(&:close)
      end
    end
  end
end
