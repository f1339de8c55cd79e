# frozen_string_literal: true

require_relative "native_support"

# Shared by the tests of several workers: five of them at one listener.
module NativeWorkers
  include NativeSupport

  WORKERS = 5

  WHO = ->(_env) { [200, {}, [Process.pid.to_s]] }

  def with_workers(listener, app = WHO, **settings)
    board = @board = Oroshi::Native::Scoreboard.new(WORKERS, WORKERS)
    pids = Array.new(WORKERS) do |slot|
      fork do
        worker = Oroshi::Native::Worker.new(app, listener_fds: [listener.fileno], scoreboard: board, slot: slot,
                                                 settings: { keep_alive_s: 30.0 }.merge(settings))
        trap("TERM") { worker.stop_now }
        worker.run
      ensure
        exit!
      end
    end
    wait_until("the workers to begin") { Array.new(WORKERS) { |slot| board.read(slot)[:state] }.all?(:idle) }
    yield pids
  ensure
    pids&.each do |pid|
      %w[CONT TERM].each { |name| Process.kill(name, pid) }
      Process.wait(pid)
    end
    listener.close
  end

  # Stops processes, and waits until they are stopped: before that they may accept a connection.
  def halt(pids)
    pids.each { |pid| Process.kill("STOP", pid) }
    wait_until("the processes to stop") { pids.all? { |pid| File.read("/proc/#{pid}/stat")[/\) (\w)/, 1] == "T" } }
  end

  def client_of(listener) = Client.new(connection_to(listener))

  # Gives all connections to the first worker, while the others are stopped. Yields clients, door and pids.
  def with_all_at_the_first(count)
    listener = abstract_listener
    door = abstract_listener
    app = lambda do |env|
      UNIXSocket.open(door.path, &:read) if env["PATH_INFO"] == "/gate"
      body = env["rack.input"]&.read.to_s
      body = body.bytesize.to_s if body.bytesize > 10_000_000
      [200, {}, [body.empty? ? Process.pid.to_s : "#{Process.pid} #{body}"]]
    end
    with_workers(listener, app) do |pids|
      halt(pids.drop(1))
      clients = Array.new(count) { client_of(listener) }
      assert_equal [pids.first], clients.map { |client| client.send(request).answer.body.to_i }.uniq
      pids.drop(1).each { |pid| Process.kill("CONT", pid) }
      yield clients, door, pids
    ensure
      clients&.each(&:close)
    end
  ensure
    door&.close
  end

  # Bytes that a process has written to files.
  def wrote(pid) = File.read("/proc/#{pid}/io")[/^wchar: (\d+)/, 1].to_i
end
