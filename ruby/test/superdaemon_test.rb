# frozen_string_literal: true

require_relative "support"

# The server behind `oroshi start`, and its notice of readiness.
class SuperdaemonTest < Support::Test
  def oroshi = oroshi_command("the gem behind oroshi start")

  # Starts `oroshi start` with this server at the unix socket; options for both.
  def start_behind(*options, server: [], app: Support::PLAIN_APP, env: {})
    file("config.ru", app)
    start(oroshi, "start", "--path", socket_path, "--interval", "0", *options, "--",
          *Support::COMMAND, "-w", "2", *server, env: env)
  end

  def restart(daemon)
    command = start(oroshi, "start", "--restart", "--wait", "--pid-file", "#{@dir}/pid")
    assert_equal 0, command.wait.exitstatus, daemon.said
  end

  def test_sockets_are_taken_over
    daemon = start_behind("--port", "127.0.0.1:0", "--ready", "notify")
    daemon.wait_for(/generation 1 .*: ready/)
    daemon.wait_for(/serving 127\.0\.0\.1:\d+, unix:#{socket_path} \(from SERVER_STARTER_PORT\)/)
    assert_equal "hello", get("/").body
    assert_equal "nil", get("/env?SERVER_STARTER_PORT").body
    assert_equal 0, daemon.stop.exitstatus
  end

  # The server is ready when all workers are.
  def test_ready_when_all_workers_are
    daemon = start_behind("--ready", "notify")
    ready = daemon.wait_for(/generation 1 .*: ready/)
    assert_equal 2, ready.pre_match.scan(/worker \d .*: ready/).size
  end

  def test_restarts_lose_nothing
    daemon = start_behind("--ready", "notify", "--pid-file", "#{@dir}/pid")
    daemon.wait_for(/generation 1 .*: ready/)
    assert_equal [200], statuses_meanwhile { 5.times { restart(daemon) } }
    assert_equal 0, daemon.stop.exitstatus
  end

  # USR1 tells the old generation's manager; with SpawnInterval it stops its workers one by one.
  def test_slow_restart_as_with_rhebok
    daemon = start_behind("--ready", "notify", "--signal-on-hup", "USR1", "--pid-file", "#{@dir}/pid",
                          server: ["-O", "SpawnInterval=50ms"])
    daemon.wait_for(/generation 1 .*: ready/)
    restart(daemon)
    daemon.wait_for(/stopping: USR1/, count: 2)
    assert_equal "hello", get("/").body
  end

  def test_a_generation_that_cannot_load_is_no_generation
    daemon = start_behind("--ready", "notify", "--pid-file", "#{@dir}/pid")
    daemon.wait_for(/generation 1 .*: ready/)
    file("config.ru", "raise 'broken'")
    command = start(oroshi, "start", "--restart", "--wait", "--pid-file", "#{@dir}/pid")
    assert_equal 1, command.wait.exitstatus
    daemon.wait_for(/config\.ru cannot be loaded: RuntimeError: broken/)
    assert_equal "hello", get("/").body
  end

  # --- sd_notify, as systemd has it ---

  def notified(address = "#{@dir}/notify", shown = address)
    socket = Socket.new(:UNIX, :DGRAM)
    socket.bind(Addrinfo.unix(address))
    server = serve(env: { "NOTIFY_SOCKET" => shown })
    assert_equal "READY=1", within("READY=1") { socket.recv(100) }
    server.stop
    assert_equal "STOPPING=1", within("STOPPING=1") { socket.recv(100) }
  ensure
    socket&.close
  end

  def test_notify
    notified
  end

  def test_notify_at_an_abstract_name
    notified("\0oroshi-notify-#{Process.pid}", "@oroshi-notify-#{Process.pid}")
  end

  def test_notify_at_a_socket_that_nobody_reads
    server = serve(env: { "NOTIFY_SOCKET" => "#{@dir}/nobody" })
    server.wait_for(%r{cannot tell NOTIFY_SOCKET=.*/nobody READY=1: No such file})
    assert_equal 200, get("/").status
  end
end
