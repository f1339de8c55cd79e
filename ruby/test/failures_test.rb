# frozen_string_literal: true

require_relative "support"

# Failures: messages and reactions.
class FailuresTest < Support::Test
  # --- the application does not load ---

  def test_an_application_that_raises
    server = serve(app: "raise 'no database'", ready: 0)
    assert_equal 1, server.wait.exitstatus
    assert_match(%r{error: .*config\.ru cannot be loaded: RuntimeError: no database\n    .*config\.ru:1:}, server.said)
    refute_match(/started/, server.said)
    refute File.exist?(socket_path)
  end

  def test_an_application_with_a_syntax_error
    server = serve(app: "run (", ready: 0)
    assert_equal 1, server.wait.exitstatus
    assert_match(/config\.ru cannot be loaded: SyntaxError/, server.said)
  end

  def test_an_address_that_is_taken
    owner = UNIXServer.new(socket_path)
    server = serve(ready: 0)
    assert_equal 1, server.wait.exitstatus
    assert_match(/error: oroshi-rack: cannot listen at unix:.*: a process listens there already/, server.said)
  ensure
    owner&.close
  end

  # --- hooks ---

  def test_after_fork_that_raises_backs_off
    server = serve(ErrRespawnInterval: "10ms", config: "after_fork { raise 'no cache' }", ready: 0)
    server.wait_for(/worker 0: ended: RuntimeError: no cache\n    .*oroshi\.rb:1/, count: 3)
    server.wait_for(/ended: exit code 1; the next one starts in (\d+) ms/, count: 3)
    assert_equal %w[10 20 40], server.said.scan(/the next one starts in (\d+) ms/).flatten.first(3)
    assert_equal 0, server.stop.exitstatus
  end

  def test_after_fork_that_exits_backs_off
    server = serve(ErrRespawnInterval: "1h", config: "after_fork { exit }", ready: 0)
    server.wait_for(/worker 0 .*: ended: exit code 0; the next one starts in 3600\.0 s/)
  end

  def test_before_fork_that_raises_backs_off
    server = serve(ErrRespawnInterval: "10ms", config: <<~CONFIG)
      calls = 0
      before_fork { raise "not yet" if (calls += 1) < 3 }
    CONFIG
    assert_equal 2, server.said.scan(/worker 0: cannot be started: RuntimeError: not yet/).size
    assert_equal 200, get("/").status
  end

  def test_hooks_are_run_where_they_should_be
    server = serve(MaxWorkers: 2, config: <<~CONFIG)
      before_fork { |number| puts "before \#{number} in \#{Process.pid}" }
      after_fork lambda { $stdout.puts "after in \#{Process.pid}" }
      before_worker_exit { |number| $stdout.puts "exit \#{number} in \#{Process.pid}" }
    CONFIG
    workers = [server.worker(0), server.worker(1)]
    server.stop
    forker = server.said[/before 0 in (\d+)\n.*before 1 in \1\n/m, 1].to_i # the process with the application
    assert_includes server.said, "before 0 in #{forker}\n"
    refute_includes [server.pid, *workers], forker
    workers.each_with_index do |pid, number|
      assert_match(/^after in #{pid}$/, server.said)
      assert_match(/^exit #{number} in #{pid}$/, server.said)
    end
  end

  def test_before_worker_exit_that_raises
    server = serve(config: "before_worker_exit { raise 'cannot say goodbye' }")
    assert_equal 0, server.stop.exitstatus
    assert_match(/worker 0: ended: RuntimeError: cannot say goodbye/, server.said)
    assert_match(/worker 0 .*: ended: exit code 1$/, server.said)
  end

  # They run once, where the application was loaded. For example, rackup's -P removes its pid file in such a block.
  def test_at_exit_blocks_do_not_run_in_workers
    app = "at_exit { puts \"at_exit in \#{Process.pid}\" }\nputs \"loaded in \#{Process.pid}\"\n#{Support::PLAIN_APP}"
    server = serve(app: app)
    server.stop
    assert_equal server.said.scan(/^loaded in (\d+)/), server.said.scan(/^at_exit in (\d+)/)
  end

  def test_workers_draw_numbers_of_their_own
    server = serve(MaxWorkers: 2, config: "after_fork { puts \"drew \#{rand}\" }")
    server.stop
    assert_equal 2, server.said.scan(/drew (.*)/).uniq.size
  end

  # --- processes end ---

  def test_a_killed_worker_is_replaced
    server = serve(ErrRespawnInterval: "10ms")
    first = server.worker
    gate = at_the_gate
    Process.kill("KILL", first)
    assert_nil gate.answer, "its connection just ends"
    ended = server.wait_for(/worker 0 \(pid #{first}\): ended: (.*)/)[1]
    assert_match(%r{\Akilled by signal 9 \(KILL\), .* into GET /gate\?.* HTTP/1\.1; the next one starts in 10 ms\z}, ended)
    server.wait_for(/worker 0 .*: ready/, count: 2)
    assert_equal server.worker.to_s, get("/pid").body
  end

  def test_the_others_serve_on_while_one_is_being_replaced
    server = serve(MaxWorkers: 2, ErrRespawnInterval: "1h")
    Process.kill("KILL", server.worker(0))
    server.wait_for(/worker 0 .*: ended: killed/)
    assert_equal server.worker(1).to_s, get("/pid").body
  end

  # Any process would keep the output's pipe open: its end shows that none is left.
  def test_workers_notice_a_dead_manager
    server = serve(MaxWorkers: 2)
    server.signal("KILL")
    server.wait_for(/worker \d: the manager is gone; ending/, count: 2)
    assert server.wait.signaled?
    workers = [server.worker(0), server.worker(1)]
    wait_until("the workers' end") { workers.none? { |pid| alive?(pid) } }
  end

  # A process that the application starts while it loads inherits all of the manager's descriptors. The pipe by which
  # workers notice the manager's end must not be among them.
  def test_workers_notice_a_dead_manager_although_the_application_has_a_child
    door = self.door
    server = serve(app: <<~APP)
      require "socket"
      fork { UNIXSocket.open("#{door.path}", &:read); exit! }
      #{Support::PLAIN_APP}
    APP
    keeper = within("the application's child") { door.accept }
    child, = keeper.getsockopt(:SOCKET, :PEERCRED).unpack("i")
    # The reading end does no harm. Others may come from the shell.
    assert_empty pipes(child, writable: true) & pipes(server.worker) - pipes(Process.pid)
    server.signal("KILL")
    server.wait_for(/worker 0: the manager is gone; ending/)
    wait_until("the worker's end") { !alive?(server.worker) }
  ensure
    keeper&.close
    door&.close
  end

  def test_a_worker_finishes_its_request_when_the_manager_dies
    server = serve
    gate = at_the_gate
    server.signal("KILL")
    server.wait(alone: true)
    gate.open
    assert_equal 200, gate.answer.status
  end

  # The manager does not wait for children of hooks.
  def test_children_of_hooks_are_left_alone
    server = serve(config: "before_fork { puts \"it says \#{`echo hello`} \#{$?.success?}\" }")
    assert_match(/it says hello\n true/, server.said)
  end

  def test_application_that_runs_commands
    serve(app: <<~'APP')
      run ->(_env) { [200, { "content-type" => "text/plain" }, [`echo from a command`, $?.exitstatus.to_s]] }
    APP
    assert_equal "from a command\n0", get("/").body
  end

  # --- files ---

  def test_pid_file
    path = File.join(@dir, "pid")
    server = serve(PidFile: path)
    assert_equal "#{server.pid}\n", File.read(path)
    other = serve(PidFile: path, Path: "#{socket_path}2", ready: 0)
    assert_equal 1, other.wait.exitstatus
    assert_match(/#{path}: the server with pid #{server.pid} runs already/, other.said)
    assert_equal "#{server.pid}\n", File.read(path)
    server.stop
    refute File.exist?(path)
  end

  def test_pid_file_that_a_killed_one_has_left
    path = File.join(@dir, "pid")
    server = serve(PidFile: path)
    server.signal("KILL")
    server.wait
    server.wait_for(/the manager is gone/)
    again = serve(PidFile: path, Path: "#{socket_path}2")
    assert_equal "#{again.pid}\n", File.read(path)
  end

  # To other workers it looked idle for ever, so they would hand their connections to it.
  def test_nothing_is_left_to_a_worker_that_was_killed
    server = serve(MaxWorkers: 2, ErrRespawnInterval: "1h")
    Process.kill("KILL", server.worker(1))
    server.wait_for(/worker 1 .*: ended/)
    clients = Array.new(4) { Support::Client.unix(socket_path) }
    answers = clients.map { |client| Thread.new { Array.new(10) { client.get("/pause?0.02", Connection: nil) } } }.flat_map(&:value)
    assert_equal [[200, nil]], answers.map { |answer| [answer.status, answer.headers["connection"]] }.uniq
  ensure
    clients&.each(&:close)
  end

  def test_few_descriptors_are_enough_to_start
    file("config.ru", Support::PLAIN_APP)
    server = start(*Support::COMMAND, "-O", "Path=#{socket_path}", "-w", "3", rlimit_nofile: 40)
    server.wait_for(/: ready/, count: 3)
    assert_equal 200, get("/").status
  end

  def test_files_that_cannot_be_written
    %w[AccessLog ErrorLog PidFile].each do |option|
      server = serve(option => "/nonexistent/file", ready: 0)
      assert_equal 1, server.wait.exitstatus
      assert_includes server.said, "error: oroshi-rack: #{option} /nonexistent/file: No such file or directory; its folder " \
                                   "must exist: mkdir -p /nonexistent\n"
    end
  end

  # Returns a process's open pipes, except its standard streams.
  def pipes(pid, writable: false)
    numbers = Dir.children("/proc/#{pid}/fd").map(&:to_i) - [0, 1, 2]
    numbers.filter_map do |number|
      path = "/proc/#{pid}/fd/#{number}"
      File.readlink(path)[/\Apipe:.*/] if !writable || File.lstat(path).mode.anybits?(0o200)
    rescue Errno::ENOENT
      nil # of our own, that of the folder itself
    end
  end

  def alive?(pid)
    File.read("/proc/#{pid}/stat").split(") ").last[0] != "Z"
  rescue Errno::ENOENT, Errno::ESRCH
    false
  end
end
