# frozen_string_literal: true

require_relative "support"
require "json"
require "oroshi/manager/backlog"

# StatusSocket: what a running server says of itself.
class StatusTest < Support::Test
  SIOCOUTQ = 0x5411

  def status_path
    File.join(@dir, "status")
  end

  def serve(**options)
    super(StatusSocket: status_path, **options)
  end

  def ask(path = "/status")
    Support::Client.unix(status_path) { |client| client.get(path) }
  end

  def status
    JSON.parse(ask.body)
  end

  # Waits until all workers have nothing to do: one is ready before it begins to wait, and an answer is read before its
  # worker waits again.
  def wait_until_idle
    wait_until("idle workers") { status["workers"].all? { |one| one["state"] == "idle" } }
  end

  # Waits until the client's bytes have been read.
  def wait_until_read(client)
    socket = client.instance_variable_get(:@socket)
    unread = [0].pack("i")
    wait_until("the worker to read") { socket.ioctl(SIOCOUTQ, unread).zero? && unread.unpack1("i").zero? }
  end

  def test_workers_and_totals
    server = serve(MaxWorkers: 2)
    assert_equal 0o600, File.stat(status_path).mode & 0o777
    5.times { get("/") }
    wait_until_idle
    now = status
    assert_equal [5, 2, "serving", server.pid], now.values_at("requests", "target_workers", "mode", "pid")
    assert_equal [server.worker(0), server.worker(1)], now["workers"].map { |one| one["pid"] }
    assert_equal 5, now["workers"].sum { |one| one["requests"] }
    now["workers"].each do |one|
      assert_operator one["served_seconds"], :>=, one["busy_seconds"]
      assert_operator one["memory"]["rss_bytes"], :>=, one["memory"]["pss_bytes"]
      assert_operator one["memory"]["pss_bytes"], :>, 1 << 20
      assert_operator one["gc"]["live_objects"], :>, 1000
    end
    assert_equal [["unix:#{socket_path}", 0]], now["listeners"].map { |one| one.values_at("address", "backlog") }
  end

  # The query may contain secrets.
  def test_a_request_under_way_is_shown_without_its_query
    serve
    gate = at_the_gate
    worker = status["workers"].first
    assert_equal ["app", "GET /gate HTTP/1.1"], [worker["state"], worker["request"]["line"]]
    gate.open
    gate.answer
    wait_until("the end of the request") { status["workers"].first["request"].nil? }
  end

  def test_totals_and_reasons_outlive_workers
    server = serve(MaxRequestPerChild: 3)
    start = Time.now.to_f - 0.03
    3.times { get("/", "X-Request-Start": "t=#{start}") }
    server.wait_for(/worker 0 .*: ended$/)
    get("/", "X-Request-Start": "t=#{start}")
    Process.kill("KILL", server.worker(1))
    server.wait_for(/worker 1 .*: ended: killed/)
    now = status
    assert_equal [4, { "died" => 1, "requests" => 1 }], now.values_at("requests", "restarts")
    assert_equal 4, now["queue"]["count"]
    assert_operator now["queue"]["sum_seconds"], :>=, 0.12
  end

  # The proxy's clock, in the environment, the log and the figures.
  def test_queue_time_from_the_proxy
    server = serve(LogFormat: "json", app: <<~'APP')
      run ->(env) { [200, {}, [env.values_at("oroshi.queue_seconds", "oroshi.wait_seconds").inspect]] }
    APP
    queued = get("/", "X-Request-Start": "t=#{format("%.3f", Time.now.to_f - 0.1)}").body[/\A\[([\d.]+), nil\]\z/, 1].to_f
    assert_operator queued, :>=, 0.099
    assert_equal "[nil, nil]", get("/").body
    assert_equal "[nil, nil]", get("/", "X-Request-Start": "soon").body
    assert_equal 1, status["queue"]["count"]
    server.stop
    lines = server.said.lines.grep(/\A\{/).map { |line| JSON.parse(line) }
    assert_in_delta queued, lines.first["queue_seconds"], 0.000001
    assert_equal [false, false], lines.drop(1).map { |line| line.key?("queue_seconds") }
  end

  WAITS = <<~'APP'
    require "socket"
    run lambda { |env|
      UNIXSocket.open(env["QUERY_STRING"], &:read) if env["PATH_INFO"] == "/gate"
      [200, {}, [env["oroshi.wait_seconds"].inspect]]
    }
  APP

  # A request on a kept connection that arrives while the application works on another one.
  def test_time_that_a_request_waits_behind_another
    serve(app: WAITS)
    Support::Client.unix(socket_path) do |client|
      assert_equal "nil", client.get("/", Connection: nil).body
      gate = at_the_gate
      client.send_get("/", Connection: nil)
      wait_until_read(client)
      sleep 0.03 # the wait to be measured
      gate.open
      gate.answer
      assert_operator client.answer.body.to_f, :>=, 0.02
    end
    assert_equal 1, status["wait"]["count"]
  end

  # The kernel knows when the bytes of a TCP client arrived.
  def test_time_that_a_client_of_tcp_waits_to_be_accepted
    server = serve(app: WAITS, Listen: "127.0.0.1:0")
    port = server.wait_for(/serving .*127\.0\.0\.1:(\d+)/)[1].to_i
    gate = at_the_gate
    Support::Client.tcp("127.0.0.1", port) do |client|
      client.send_get("/")
      sleep 0.05 # the wait to be measured
      gate.open
      assert_operator client.answer.body.to_f, :>=, 0.03
    end
  end

  def test_the_backlog
    server = serve(Listen: "127.0.0.1:0")
    port = server.wait_for(/serving .*127\.0\.0\.1:(\d+)/)[1].to_i
    gate = at_the_gate
    clients = Array.new(3) { Socket.unix(socket_path) } + Array.new(2) { Socket.tcp("127.0.0.1", port).tap { |it| it.write("G") } }
    wait_until("the queues") do
      status["listeners"].map { |one| one["backlog"] } == [3, 2]
    end
    assert_equal [true, true], status["listeners"].map { |one| one["backlog_limit"].positive? }
    gate.open
    wait_until("the queues to empty") { status["listeners"].sum { |one| one["backlog"] }.zero? }
  ensure
    clients&.each(&:close)
  end

  # Lines in the format that Prometheus reads.
  def test_metrics
    serve(MaxWorkers: 2)
    get("/", "X-Request-Start": Time.now.to_f.to_s)
    wait_until_idle
    answer = ask("/metrics")
    assert_equal "text/plain; version=0.0.4", answer.headers["content-type"]
    lines = answer.body.lines(chomp: true)
    types = lines.grep(/\A# TYPE /).to_h { |line| line.split[2..] }
    samples = lines.reject { |line| line.start_with?("#") }
    samples.each do |line|
      assert_match(/\A[a-z_]+(\{[a-z]+="[^"]*"\})? [\d.e+-]+\z/, line)
      name = line[/\A[a-z_]+/]
      assert types.key?(name) || types.key?(name.sub(/_(bucket|sum|count)\z/, "")), line
    end
    assert_equal types.size, lines.grep(/\A# HELP /).size
    assert_includes samples, "oroshi_rack_requests_total 1"
    assert_includes samples, 'oroshi_rack_workers{state="idle"} 2'
    assert_includes samples, 'oroshi_rack_queue_seconds_bucket{le="+Inf"} 1'
    assert_includes samples, "oroshi_rack_queue_seconds_count 1"
    assert_equal 2, samples.grep(/\Aoroshi_rack_worker_pss_bytes\{worker="\d"\} [1-9]/).size
  end

  def test_other_questions
    serve
    assert_equal 404, ask("/other").status
    Support::Client.unix(status_path) do |client|
      client.write("POST /status HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n")
      assert_equal 405, client.answer.status
    end
    Support::Client.unix(status_path) do |client|
      client.write("GET /status HTTP/1.1\r\nX: #{"x" * 9000}")
      assert_equal 431, client.answer.status
    end
    Support::Client.unix(status_path) do |client|
      client.write("HEAD /status HTTP/1.1\r\nHost: a\r\n\r\n")
      assert client.read_all.end_with?("\r\n\r\n")
    end
  end

  # Clients that say nothing hold nobody up; beyond sixteen, others wait until their time is over.
  def test_silent_clients
    server = serve
    silent = Array.new(20) { Socket.unix(status_path) }
    server.signal("TTIN")
    server.wait_for(/worker 1 .*: ready/)
    assert_equal 200, ask.status
    assert_equal 0, server.stop.exitstatus
    refute File.exist?(status_path)
  ensure
    silent&.each(&:close)
  end

  def test_the_command
    serve
    get("/")
    command = start(*Support::COMMAND, "--status", "-O", "StatusSocket=#{status_path}")
    assert_equal 0, command.wait.exitstatus
    assert_equal 1, JSON.parse(command.said)["requests"]
    command = start(*Support::COMMAND, "--status")
    assert_equal 2, command.wait.exitstatus
    assert_match(/\Aerror: which server\? Give its StatusSocket/, command.said)
    command = start(*Support::COMMAND, "--status", "-O", "StatusSocket=#{@dir}/nobody")
    assert_equal 1, command.wait.exitstatus
    assert_match(/is the server running/, command.said)
  end

  def test_top
    server = serve(MaxWorkers: 2)
    wait_until_idle
    gate = at_the_gate
    command = start(*Support::COMMAND, "top", "-O", "StatusSocket=#{status_path}")
    assert_equal 0, command.wait.exitstatus, command.said
    gate.open
    lines = command.said.lines(chomp: true)
    assert_match(/\Aoroshi .*, pid #{server.pid}, serving, up /, lines[0])
    assert_match(%r{\Abacklog: unix:#{socket_path} 0/\d+; restarts: none\z}, lines[2])
    assert_match(/\Aworker pid +state +threads +busy +req\/s +requests +conns +PSS +gc +request\z/, lines[4])
    assert_equal 1, lines.grep(/ app .* MiB .* GET \/gate HTTP\/1\.1 \(\d/).size, command.said
    assert_equal 1, lines.grep(/ idle /).size
  end

  def test_over_tcp
    server = start(*Support::COMMAND, "-w", "1", "-O", "Path=#{socket_path}", "-O", "StatusSocket=127.0.0.1:0",
                   file("config.ru", Support::PLAIN_APP))
    port = server.wait_for(/status at 127\.0\.0\.1:(\d+)/)[1].to_i
    server.wait_for(/: ready/)
    assert_equal 200, Support::Client.tcp("127.0.0.1", port) { |client| client.get("/metrics").status }
  end
end

# A netlink reply, byte by byte.
class BacklogTest < Minitest::Test
  def reply(*attributes)
    body = "\1\1\12\0".b + [7, 1, 2].pack("LLL") + attributes.join
    [16 + body.bytesize, 20, 0, 1, 0].pack("LSSLL") + body
  end

  def test_the_attribute_is_found_behind_others
    name = [4 + 5, 0].pack("SS") + "/a/b\0" + "\0" * 3
    assert_equal [3, 128], Oroshi::Manager::Backlog.lengths(reply(name, [12, 4, 3, 128].pack("SSLL")))
  end

  def test_replies_without_it
    assert_nil Oroshi::Manager::Backlog.lengths(reply)
    assert_nil Oroshi::Manager::Backlog.lengths(reply([0, 4].pack("SS")))
    assert_nil Oroshi::Manager::Backlog.lengths([20, 2, 0, 1, 0].pack("LSSLL") + [-2].pack("l"))
  end
end
