# frozen_string_literal: true

require_relative "support"

# The effect of each signal on the manager and on a worker.
class SignalsTest < Support::Test
  def test_term_finishes_what_is_under_way
    server = serve
    gate = at_the_gate
    server.signal("TERM")
    server.wait_for(/worker 0 .*: stopping: TERM/)
    gate.open
    assert_equal "through the gate, #{server.worker}", gate.answer.body
    assert_equal 0, server.wait.exitstatus
    server.wait_for(/worker 0 .*: ended$/)
    refute File.exist?(socket_path)
  end

  def test_quit_is_graceful_too
    server = serve
    gate = at_the_gate
    server.signal("QUIT")
    server.wait_for(/worker 0 .*: stopping: QUIT/)
    gate.open
    assert_equal 200, gate.answer.status
    assert_equal 0, server.wait.exitstatus
  end

  # Connected clients are answered; new ones are refused. A kept connection may end before its client's next request,
  # but never by a reset.
  def test_quit_under_load_resets_nobody
    { "unix" => {}, "tcp" => { Listen: "127.0.0.1:0" } }.each do |kind, address|
      server = serve(**address, MaxWorkers: 2, app: <<~APP)
        run ->(env) { sleep 0.002; [200, { "content-type" => "text/plain" }, ["hello"]] }
      APP
      port = server.wait_for(/serving .*127\.0\.0\.1:(\d+)/)[1].to_i if kind == "tcp"
      connect = -> { port ? Socket.tcp("127.0.0.1", port) : Socket.unix(socket_path) }
      answered = Queue.new
      clients = Array.new(8) { |n| Thread.new { until_refused(connect, kept: n.odd?, answered: answered) } }
      100.times { answered.pop }
      assert_equal 0, server.stop("QUIT").exitstatus
      assert_empty clients.flat_map(&:value), kind
    end
  end

  # Sends requests until nothing listens. Returns the failures.
  def until_refused(connect, kept:, answered:)
    faults = []
    loop do
      begin
        client = Support::Client.with(connect.call)
      rescue Errno::ECONNREFUSED, Errno::ENOENT
        return faults
      end
      begin
        asked = 0
        loop do
          answer = client.get("/", Connection: kept ? nil : "close")
          faults << "no answer" if answer.nil? && asked.zero?
          answered << true if answer
          break if answer.nil? || answer.headers["connection"] == "close"

          asked += 1
        end
      rescue SystemCallError => e
        faults << e.class.name
      ensure
        client.close
      end
    end
  end

  def test_term_has_a_deadline
    server = serve(StopTimeout: "200ms")
    at_the_gate
    assert_equal 0, server.stop.exitstatus
    server.wait_for(/worker 0 .*: killed: it has not ended in time/)
    server.wait_for(%r{worker 0 .*: ended: killed by signal 9 \(KILL\), .* into GET /gate\?})
  end

  def test_new_clients_are_refused_while_it_stops
    server = serve(Listen: "127.0.0.1:0")
    port = server.wait_for(/serving .*127\.0\.0\.1:(\d+)/)[1].to_i
    gate = at_the_gate
    server.signal("TERM")
    server.wait_for(/worker 0 .*: stopping/)
    gate.open
    gate.answer
    server.wait
    assert_raises(Errno::ECONNREFUSED) { Socket.tcp("127.0.0.1", port) }
  end

  def test_int_is_quick_and_twice_at_once
    server = serve(MaxWorkers: 2)
    at_the_gate
    server.signal("INT")
    server.wait_for(/stopping: INT/, count: 2)
    server.signal("INT")
    server.wait_for(/killed: INT again/)
    assert_equal 0, server.wait.exitstatus
  end

  def test_int_lets_the_present_request_end
    server = serve
    gate = at_the_gate
    server.signal("INT")
    server.wait_for(/stopping: INT/)
    gate.open
    assert_equal 200, gate.answer.status
    assert_equal 0, server.wait.exitstatus
  end

  def test_hup_replaces_one_at_a_time_the_new_one_ready_first
    server = serve(MaxWorkers: 2)
    old = [server.worker(0), server.worker(1)]
    server.signal("HUP")
    server.wait_for(/: ended$/, count: 2)
    fresh = get("/pid").body.to_i
    refute_includes old, fresh
    # 2 in place of 0, then 0 in place of 1; each ready before the old one stops, and the old one gone before the next
    # starts.
    events = server.said[/received HUP.*/m].scan(/worker (\d) \(pid \d+\): (started, to replace|ready|stopping: HUP|ended)/)
    assert_equal [["2", "started, to replace"], %w[2 ready], ["0", "stopping: HUP"], %w[0 ended],
                  ["0", "started, to replace"], %w[0 ready], ["1", "stopping: HUP"], %w[1 ended]], events
  end

  def test_hup_under_load_loses_nothing
    server = serve(MaxWorkers: 2, MaxRequestPerChild: 0) # so that workers end by HUP alone
    assert_equal [200], statuses_meanwhile { replace_workers(server, 3) }
  end

  # Only files and sockets stay.
  def test_hup_reads_the_configuration_again
    server = serve(MaxWorkers: 1, config: "keep_alive 5\nafter_fork { puts 'first' }")
    file("oroshi.rb", "keep_alive 0\nmax_workers 2\nworker_timeout '1h'\npath '/elsewhere'\nafter_fork { puts 'second' }")
    assert_nil get("/", Connection: nil).headers["connection"]
    server.signal("HUP")
    server.wait_for(/the configuration has Path \/elsewhere \(it was .*\); only a restart changes that/)
    server.wait_for(/the configuration has MaxWorkers 2 \(it was 1\), KeepAlive 0 s \(it was 5 s\), WorkerTimeout 3600 s \(it was 0 s\)$/)
    server.wait_for(/: ended$/)
    server.wait_for(/^second$/, count: 2)
    server.wait_for(/worker \d .*: ready/, count: 3)
    assert_equal "close", get("/", Connection: nil).headers["connection"]

    file("oroshi.rb", "keep_alve 3")
    server.signal("HUP")
    server.wait_for(/the configuration cannot be read again: .*oroshi.rb:1: keep_alve 3: no such option; did you mean keep_alive\?/)
    server.wait_for(/the configuration stays as it was/)
    server.wait_for(/worker \d .*: ready/, count: 5)
    assert_equal "close", get("/", Connection: nil).headers["connection"]
    assert_equal 0, server.stop.exitstatus
  end

  def test_ttin_and_ttou
    server = serve
    server.signal("TTIN")
    server.wait_for(/received TTIN: 2 workers from now on/)
    server.wait_for(/worker 1 .*: ready/)
    server.signal("TTOU")
    server.wait_for(/worker 1 .*: stopping: TTOU/)
    server.wait_for(/worker 1 .*: ended$/)
    server.signal("TTOU")
    server.wait_for(/received TTOU: 1 workers/, count: 2)
    assert_equal 200, get("/").status
  end

  def test_usr1_opens_logs_anew
    access = File.join(@dir, "access.log")
    errors = File.join(@dir, "error.log")
    server = serve(AccessLog: access, ErrorLog: errors, ready: 0)
    wait_for_line(errors, /worker 0 .*: ready/)
    get("/before")
    [access, errors].each { |path| File.rename(path, "#{path}.1") }
    server.signal("USR1")
    wait_for_line(errors, /logs are open anew/)
    # The manager has told the worker, which reports nothing, but creates the file.
    worker = server.worker(log: File.read("#{errors}.1"))
    wait_until("the new access log") { holds?(worker, access) }
    get("/after")
    server.stop
    assert_match(%r{GET /before}, File.read("#{access}.1"))
    assert_match(%r{GET /after}, File.read(access))
    refute_match(%r{GET /after}, File.read("#{access}.1"))
    assert_match(/oroshi\[\d+\]: done/, File.read(errors))
  end

  # The worker knows its access log by a number. However often the file behind it changes while the application works,
  # the number must never become another file's.
  def test_usr1_twice_during_one_request
    access = File.join(@dir, "access.log")
    theirs = File.join(@dir, "theirs")
    server = serve(AccessLog: access, app: <<~APP)
      require "socket"
      run lambda { |env|
        UNIXSocket.open(env["QUERY_STRING"], &:read)
        $files = Array.new(8) { File.open("#{theirs}", "a") } # whichever numbers are free
        [200, {}, ["through"]]
      }
    APP
    gate = at_the_gate
    %w[1 2].each do |number|
      File.rename(access, "#{access}.#{number}")
      Process.kill("USR1", server.worker)
      wait_until("the new access log") { holds?(server.worker, access) }
    end
    gate.open
    assert_equal "through", gate.answer.body
    server.stop
    assert_equal "", File.read(theirs)
    assert_equal ["", "", 1], [File.read("#{access}.1"), File.read("#{access}.2"), File.readlines(access).size]
    assert_match(%r{"GET /gate\?}, File.read(access))
  end

  # Standard error keeps its file and its descriptor, which the next opened file must not take. Users of other servers
  # send USR2 for a restart. It must not end the server.
  def test_usr2_is_told_and_changes_nothing
    server = serve
    before = get("/pid").body
    server.signal("USR2")
    server.wait_for(/received USR2: ignored; .* `oroshi start --restart`/)
    assert_equal before, get("/pid").body
    assert_equal 0, server.stop.exitstatus
  end

  def test_usr1_when_a_log_cannot_be_opened
    folder = File.join(@dir, "log").tap { |path| Dir.mkdir(path) }
    errors = File.join(folder, "error.log")
    server = serve(ErrorLog: errors, ready: 0)
    wait_for_line(errors, /worker 0 .*: ready/)
    File.rename(folder, "#{folder}.old")
    [server.pid, server.worker(log: File.read("#{folder}.old/error.log"))].each do |pid|
      Process.kill("USR1", pid)
      wait_for_line("#{folder}.old/error.log", /oroshi\[#{pid}\]: .*cannot open a log anew/)
      assert holds?(pid, "#{folder}.old/error.log")
    end
    assert_equal 200, get("/").status
  end

  # Rhebok's: for Server::Starter's --signal-on-hup=USR1.
  def test_usr1_with_spawn_interval_is_a_slow_stop
    server = serve(MaxWorkers: 2, SpawnInterval: "100ms")
    server.signal("USR1")
    assert_equal 0, server.wait.exitstatus
    assert_equal [%w[0 stopping], %w[1 stopping]], server.said.scan(/worker (\d) \(pid \d+\): (stopping): USR1/)
    assert_match(/received USR1: stopping \(slow stop\)/, server.said)
  end

  def test_spawn_interval_starts_one_at_a_time
    server = serve(MaxWorkers: 3, SpawnInterval: "50ms")
    starts = server.said.scan(/worker (\d) \(pid \d+\): started/).flatten
    assert_equal %w[0 1 2], starts
  end

  def test_term_to_a_worker_replaces_it_at_once
    server = serve(ErrRespawnInterval: "1h")
    Process.kill("TERM", server.worker)
    server.wait_for(/worker 0 .*: ready/, count: 2)
    assert_equal 200, get("/").status
  end

  # Workers ignore signals to the whole process group, for example from a terminal.
  def test_workers_ignore_the_managers_signals
    server = serve
    pid = server.worker
    %w[HUP TTIN TTOU USR2 WINCH].each { |name| Process.kill(name, pid) }
    assert_equal pid.to_s, get("/pid").body
  end

  # A signal may come before the worker has traps of its own, or anything to stop.
  def test_stop_while_workers_start
    server = serve(MaxWorkers: 4, config: "after_fork { |n| sleep 0.01 * n }", ready: 0)
    server.wait_for(/: started/)
    assert_equal 0, server.stop.exitstatus
    assert_equal server.said.scan(/: started/).size, server.said.scan(/worker \d \(pid \d+\): ended/).size
  end

  # Applications may take long to load. Signals wait until then, except a stop, which is immediate.
  def loading
    door = self.door
    server = serve(app: "require 'socket'; UNIXSocket.open('#{door.path}', &:read)\n#{Support::PLAIN_APP}", ready: 0)
    yield server, within("the application") { door.accept }
  ensure
    door&.close
  end

  def test_signals_while_the_application_loads
    loading do |server, keeper|
      %w[HUP USR1 TTIN].each { |name| server.signal(name) }
      keeper.close
      server.wait_for(/received TTIN: 2 workers/)
      server.wait_for(/: ready/, count: 2)
      server.wait_for(/logs are open anew/)
      assert_equal 0, server.stop.exitstatus
    end
  end

  def test_stop_while_the_application_loads
    %w[TERM QUIT INT].each do |name|
      loading do |server, keeper|
        server.signal(name)
        assert_equal Signal.list[name], server.wait.termsig
        refute File.exist?(socket_path)
        refute_match(/started/, server.said)
        keeper.close
        File.unlink(File.join(@dir, "door"))
      end
    end
  end

  # A kept connection learns of it with an answer, and has some time for it: every sent request is answered.
  def test_hup_loses_nothing_on_kept_connections
    server = serve(MaxWorkers: 2, MaxRequestPerChild: 0) # so that workers end by HUP alone
    assert_equal [200], statuses_meanwhile(kept: true) { replace_workers(server, 3) }
  end

  def replace_workers(server, times)
    times.times do |n|
      server.signal("HUP")
      server.wait_for(/: ended$/, count: 2 * (n + 1))
    end
  end

  # Whether a process has this file open.
  def holds?(pid, path)
    Dir["/proc/#{pid}/fd/*"].any? { |fd| File.identical?(fd, path) }
  end
end
