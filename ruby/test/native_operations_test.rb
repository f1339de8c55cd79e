# frozen_string_literal: true

require_relative "native_support"
require "fcntl"
require "json"

# A worker from outside: scoreboard, stopping, requests that take too long, logs, title.
class NativeOperationsTest < Minitest::Test
  include NativeSupport

  # An application that reports each call and waits for release.
  def held(settings = {}, **options)
    called, call = IO.pipe
    hold, @let_go = IO.pipe
    server = serve(settings, lint: false, **options) do |env|
      if env["PATH_INFO"] == "/held"
        call.write("x")
        hold.read(1)
      end
      [200, {}, ["done"]]
    end
    @called = called
    server
  end

  def test_the_scoreboard
    board = Oroshi::Native::Scoreboard.new(3, 0)
    assert_equal 3, board.slots
    empty = { state: :empty, pid: 0, handed_over: 0, requests: 0, busy_s: nil, serial: 0, request: nil, told: false }
    now = board.read(2)
    assert_equal empty, now.slice(*empty.keys)
    assert_equal [0, 0, 0, 0], [now[:queue][:count], now[:wait][:count], now[:gc][:runs], now[:connections]]
    assert_equal [], board.overdue(0.0)
    assert_match(/no slot 3: the scoreboard has 3/, assert_raises(IndexError) { board.read(3) }.message)
    { [0, 0] => /1 to 65536 threads, not 0 times 1/, [1, 0, 0] => /1 to 256 threads, not 0/, [40_000, 0, 2] => /not 40000 times 2/,
      [1, 0, 200, 57] => /1 to 256 threads, not 257 with 200 usual ones/ }.each do |numbers, why|
      assert_match(why, assert_raises(ArgumentError) { Oroshi::Native::Scoreboard.new(*numbers) }.message)
    end

    server = held
    client = server.connect.send(request("/held"))
    @called.read(1)
    now = server.scoreboard.read(0)
    assert_equal [:app, server.pid, 1, 1, "GET /held HTTP/1.1"], now.values_at(:state, :pid, :requests, :serial, :request)
    server.wait_for("time to pass") { server.scoreboard.read(0)[:busy_s] > 0.01 }
    assert_equal([[0, 1, "GET /held HTTP/1.1"]], server.scoreboard.overdue(0.01).map { |slot, serial, _, line| [slot, serial, line] })
    assert_equal [], server.scoreboard.overdue(1000.0)
    @let_go.write("x")
    client.answer
    server.wait_for("the worker to be idle") { server.scoreboard.read(0)[:state] == :idle }
    assert_equal [nil, nil, 0, 1], server.scoreboard.read(0).values_at(:busy_s, :request, :serial, :requests)
    server.get("/#{"a" * 400}")
    server.stop
    server.scoreboard.clear(0)
    assert_equal empty, server.scoreboard.read(0).slice(*empty.keys)
  end

  def test_a_long_request_line_is_cut
    server = held
    client = server.connect.send(request("/held?#{"a" * 400}"))
    @called.read(1)
    assert_equal "GET /held?#{"a" * 246}", server.scoreboard.read(0)[:request]
    @let_go.write("x")
    client.answer
  end

  def test_settings_are_checked
    board = Oroshi::Native::Scoreboard.new(1, 0)
    make = ->(settings) { Oroshi::Native::Worker.new(HELLO, listener_fds: [], scoreboard: board, slot: 0, settings: settings) }
    {
      { keep_aliv_s: 1 } => /no setting keep_aliv_s; known are .*keep_alive_s/,
      { keep_alive_s: -1 } => /keep_alive_s is -1; expected: seconds/,
      { timeout_s: "soon" } => /timeout_s is "soon"/,
      { log_format: :fancy } => /log_format is fancy; expected: off, common, combined or json/,
      { url_scheme: "ftp" } => /url_scheme is ftp/,
      { limits: { heads: 1 } } => /no limit heads/,
      { oob_gc: { min: 3, max: 2 } } => /oob_gc is 3 to 2/
    }.each { |settings, message| assert_match message, assert_raises(ArgumentError) { make.call(settings) }.message }
  end

  def test_a_stop_ends_what_was_begun_and_gives_kept_connections_a_while
    server = held({ linger_s: 30.0 })
    kept = server.connect
    kept.send(request).answer
    busy = server.connect.send(request("/held"))
    @called.read(1)
    server.signal("TERM")
    @let_go.write("x")
    answer = busy.answer
    assert_equal ["done", "close"], [answer.body, answer["connection"]]
    server.wait_for("the stop") { server.scoreboard.read(0)[:state] == :stopping }
    answer = kept.send(request).answer
    assert_equal ["done", "close"], [answer.body, answer["connection"]], "a request on its way is not lost"
    assert_equal ":stopped", server.ended
  end

  def test_a_stop_closes_kept_connections_after_that_while
    server = hello({ linger_s: 0.05 })
    kept = server.connect
    kept.send(request).answer
    server.signal("TERM")
    assert kept.closed?
    assert_equal ":stopped", server.ended
  end

  def test_a_half_sent_request_is_ended_by_a_stop_and_dropped_by_a_quick_one
    server = hello({ linger_s: 30.0 })
    half = server.connect.send("GET / HTTP/1.1\r\n")
    server.get
    server.signal("TERM")
    server.wait_for("the stop") { server.scoreboard.read(0)[:state] == :stopping }
    answer = half.send("Host: a\r\n\r\n").answer
    assert_equal [200, "close"], [answer.status, answer["connection"]]
    assert_equal ":stopped", server.ended

    server = hello({ linger_s: 30.0 })
    half = server.connect.send("GET / HTTP/1.1\r\n")
    server.get
    server.signal("INT")
    assert half.closed?
    assert_equal ":stopped", server.ended
  end

  # Otherwise a client that sends nothing more would delay every stop for all of timeout_s.
  def test_a_half_sent_request_is_dropped_by_a_stop_after_a_while
    head = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n"
    [head, "#{head}\r\nab"].each do |half|
      server = hello({ linger_s: 0.05, timeout_s: 1000.0 })
      client = server.connect.send(half)
      server.get
      server.signal("TERM")
      assert client.closed?
      assert_equal ":stopped", server.ended
    end
  end

  # The kernel may have woken only this worker for it.
  def test_a_connection_that_has_come_before_a_stop_is_served
    server = held({ linger_s: 30.0 })
    busy = server.connect.send(request("/held"))
    @called.read(1)
    queued = server.connect.send(request)
    server.signal("TERM")
    @let_go.write("x")
    assert_equal %w[done done], [busy, queued].map { |client| client.answer.body }
    assert_equal ":stopped", server.ended
  end

  def test_a_quick_stop_does_not_wait_for_a_client_that_does_not_read
    server = serve({ timeout_s: 1000.0 }, lint: false) { |_env| [200, {}, ["x" * 20_000_000]] }
    client = server.connect.send(request)
    client.until_text("xxx")
    assert_equal ":stopped", server.stop("INT")
    assert_operator client.rest.bytesize, :<, 19_000_000
  end

  def test_a_stop_that_comes_at_any_moment_is_seen
    40.times do
      server = hello({ linger_s: 0.0 })
      client = server.connect.send(request)
      client.answer
      client.close
      assert_equal ":stopped", server.stop("TERM")
      server.clean_up
      @servers.delete(server)
    end
  end

  def test_a_stopped_worker_leaves_its_listeners_at_once
    server = held({ linger_s: 30.0 })
    busy = server.connect.send(request("/held"))
    @called.read(1)
    server.signal("TERM")
    @let_go.write("x")
    busy.answer
    server.wait_for("the stop") { server.scoreboard.read(0)[:state] == :stopping }
    assert_raises(Errno::ECONNREFUSED) { server.connect }
    assert_equal ":stopped", server.ended
  end

  def test_a_worker_notices_that_its_manager_is_gone
    lifeline, manager = IO.pipe
    server = hello({ lifeline_fd: lifeline.fileno }, in_child: ->(_) { manager.close })
    assert_equal 200, server.get.status
    manager.close
    assert_equal ":manager_gone", server.ended
  end

  def test_a_worker_notices_that_it_has_outlived_its_manager_though_the_lifeline_holds
    lifeline, _held = IO.pipe # as by a process that the application has forked before
    said, say = IO.pipe
    manager = fork do
      server = hello({ lifeline_fd: lifeline.fileno }, in_child: ->(_) { $stdout.flush })
      server.get
      said_by_worker = server.instance_variable_get(:@said)
      fork { say.write(said_by_worker.read) && exit! }
      exit!
    end
    say.close
    Process.wait(manager)
    assert_equal ":manager_gone", said.read
  end

  def test_a_worker_asks_once_to_be_replaced_and_serves_on
    asked, ask = IO.pipe
    server = hello({ quit_after: 3, on_enough: -> { ask.write("x") } })
    client = server.connect
    6.times { assert_equal 200, client.send(request).answer.status }
    server.stop
    ask.close
    assert_equal "x", asked.read
  end

  # Overdue requests.

  # Waits until the worker waits for its client: the request's time stands still.
  def waits_for_client(server)
    server.wait_for("the worker to wait for its client") do
      before = server.scoreboard.read(0)[:busy_s]
      sleep 0.03 # several ticks of the clock
      before && server.scoreboard.read(0)[:busy_s] == before
    end
  end

  def test_time_that_a_client_takes_to_read_is_not_the_applications
    server = serve({ timeout_s: 1000.0, buffer_bytes: 0, answer_file_bytes: 1_000_000 }, lint: false) do |env|
      [200, {}, Enumerator.new { |out| 40.times { out << ("x" * 100_000) }; stuck(env) }]
    end
    client = server.connect.send(request)
    waits_for_client(server)
    client.until_bytes(2_900_000) # what is left then may wait without the application
    server.wait_for("the application's time to go on") { server.scoreboard.overdue(0.2).any? }
  end

  # Starts a worker whose trap for URG reports the main thread's position, and ends it.
  def overdue(&app)
    seen, see = IO.pipe
    report = lambda do |_worker|
      trap("URG") do
        see.write(Thread.main.backtrace.any? { |place| place.include?("in `stuck'") } ? "stuck" : "not there yet")
        exit!(7)
      end
    end
    server = serve(lint: false, in_child: report, &app)
    see.close
    [server, seen]
  end

  def stuck(env)
    loop { env["PATH_INFO"] } # no sleep: nothing that a signal would end
  end

  def condemn(server, serial)
    server.wait_for("the request") { server.scoreboard.read(0)[:serial] == serial }
    server.scoreboard.condemn(0, serial)
    server.signal("URG")
  end

  def test_an_overdue_request_gets_a_504_and_its_backtrace
    server, seen = overdue { |env| stuck(env) }
    client = server.connect.send(request("/slow"))
    server.wait_for("time to pass") { server.scoreboard.read(0)[:busy_s].to_f > 0.05 }
    condemn(server, 1)
    answer = client.answer
    assert_equal [504, "close", "Gateway Timeout\n"], [answer.status, answer["connection"], answer.body]
    assert client.closed?
    assert_equal "", server.ended
    assert server.scoreboard.read(0)[:told]
    assert_equal "stuck", seen.read, "Ruby's own trap is called on"
  end

  def test_a_504_is_not_sent_into_an_answer_that_has_begun
    server, seen = overdue { |env| [200, {}, Enumerator.new { |out| out << "begun"; stuck(env) }] }
    client = server.connect.send(request)
    client.until_text("begun")
    condemn(server, 1)
    assert_equal "\r\n", client.rest
    assert_equal "", server.ended
    refute server.scoreboard.read(0)[:told]
    refute_empty seen.read
  end

  def test_a_signal_without_a_condemned_request_does_nothing
    server = held(in_child: ->(_) { trap("URG") { exit!(7) } })
    client = server.connect.send(request("/held"))
    @called.read(1)
    server.scoreboard.condemn(0, 7)
    server.signal("URG")
    @let_go.write("x")
    assert_equal "done", client.answer.body
    server.wait_for("its end") { server.scoreboard.read(0)[:serial].zero? }
    server.scoreboard.condemn(0, 1)
    server.signal("URG")
    assert_equal "done", client.send(request).answer.body
    assert_equal ":stopped", server.stop
  end

  def test_a_request_that_ends_after_its_504_is_not_answered_again
    gone_on, go_on = IO.pipe
    server = serve(lint: false, in_child: ->(_) { trap("URG") { go_on.write("x") } }) do |env|
      gone_on.read(1) if env["PATH_INFO"] == "/slow"
      [200, {}, ["late"]]
    end
    client = server.connect.send(request("/slow"))
    condemn(server, 1)
    assert_equal 504, client.answer.status
    assert client.closed?
    assert_equal "late", server.get.body
  end

  # Logs.

  def logged(format)
    Tempfile.create("access") do |file|
      server = serve({ log_format: format, log_fd: file.fileno }, lint: false, tcp: true) do |env|
        env["PATH_INFO"] == "/204" ? [204, {}, []] : [200, {}, ["Hello World"]]
      end
      yield server, file.path
    end
  end

  COMMON = %r{\A127\.0\.0\.1 - - \[\d\d/[A-Z][a-z]{2}/\d{4}:\d\d:\d\d:\d\d [+-]\d{4}\] }

  def test_the_access_log_in_its_formats
    logged(:common) do |server, path|
      server.get("/a?b=c")
      server.get("/204")
      server.connect.send("BAD\r\n\r\n").answer
      server.connect.send("PUT /up HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n").send("no size\r\n").answer
      assert_equal ":stopped", server.stop
      lines = File.readlines(path, chomp: true)
      assert_equal ['"GET /a?b=c HTTP/1.1" 200 11', '"GET /204 HTTP/1.1" 204 0', '"- - HTTP/1.1" 400 12', '"PUT /up HTTP/1.1" 400 12'],
                   lines.map { |line| line.sub(COMMON, "") }
    end
    logged(:combined) do |server, path|
      server.get("/", { "Referer" => "http://a/\"b\\", "User-Agent" => "\xc3\xa9" })
      server.stop
      assert_match(/"GET \/ HTTP\/1\.1" 200 11 "http:\/\/a\/\\x22b\\x5C" "\\xC3\\xA9"\n\z/, File.read(path))
    end
    logged(:json) do |server, path|
      server.get("/a", { "User-Agent" => "x\"y\xe9", "Referer" => "" })
      server.stop
      line = JSON.parse(File.read(path))
      assert_match(/\A\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d\d:\d\d\z/, line.delete("time"))
      assert_kind_of Float, line.delete("seconds")
      line.delete("wait_seconds") # on a busy machine
      expected = { "remote" => "127.0.0.1", "method" => "GET", "target" => "/a", "host" => "localhost", "referer" => "",
                   "agent" => "x\"y\u{fffd}", "protocol" => "HTTP/1.1", "status" => 200, "bytes" => 11 }
      assert_equal expected, line
    end
  end

  def test_the_access_log_is_written_before_the_worker_waits
    logged(:common) do |server, path|
      server.get
      server.wait_for("the line") { File.read(path).lines.size == 1 }
    end
  end

  def test_the_access_log_can_be_written_from_a_trap
    Tempfile.create("access") do |file|
      flush = ->(worker) { trap("USR2") { worker.flush_log; exit!(0) } }
      server = serve({ log_format: :common, log_fd: file.fileno }, lint: false, in_child: flush) do |env|
        loop { env } if env["PATH_INFO"] == "/stuck"
        [200, {}, []]
      end
      server.connect.send(request("/logged") + request("/stuck"))
      server.wait_for("the second request") { server.scoreboard.read(0)[:serial] == 2 }
      server.signal("USR2")
      server.ended
      assert_match(%r{GET /logged}, File.read(file.path))
    end
  end

  def test_the_access_log_may_be_opened_anew_under_its_number
    Dir.mktmpdir do |folder|
      log = File.open("#{folder}/old", "a")
      server = hello({ log_format: :common, log_fd: log.fileno }, in_child: ->(_) { trap("USR1") { log.reopen("#{folder}/new", "a") } })
      server.get("/1")
      server.wait_for("the line") { File.size("#{folder}/old").positive? }
      server.signal("USR1")
      server.wait_for("the new file") { File.exist?("#{folder}/new") }
      server.get("/2")
      server.stop
      assert_equal [["/1"], ["/2"]], %w[old new].map { |name| File.read("#{folder}/#{name}").scan(%r{GET (/\d)}).flatten }
    end
  end

  # A process that ends within a request also writes that request's line: with the 504 or with the sent status.
  def test_the_line_of_a_request_that_is_cut_off
    ended = lambda do |path|
      Tempfile.create("access") do |file|
        flush = ->(worker) { trap("URG") { worker.flush_log; exit!(0) } }
        server = serve({ log_format: :common, log_fd: file.fileno }, lint: false, in_child: flush) do |env|
          stuck(env) if env["PATH_INFO"] == "/told"
          [206, {}, Enumerator.new { |out| out << "begun"; stuck(env) }]
        end
        client = server.connect.send(request(path))
        client.until_text("begun") if path == "/begun"
        condemn(server, 1)
        server.ended
        File.read(file.path).scan(/"(GET.*)/).flatten
      end
    end
    assert_equal ["GET /told HTTP/1.1\" 504 16"], ended.call("/told")
    assert_equal ["GET /begun HTTP/1.1\" 206 5"], ended.call("/begun")
  end

  # The application continues after all, but the client got another answer.
  def test_the_line_of_a_body_that_comes_after_the_504
    Tempfile.create("access") do |file|
      gone_on, go_on = IO.pipe
      server = serve({ log_format: :common, log_fd: file.fileno }, lint: false, in_child: ->(_) { trap("URG") { go_on.write("x") } }) do |_env|
        [200, {}, Enumerator.new { |out| gone_on.read(1) && out << "late" }]
      end
      client = server.connect.send(request("/slow"))
      condemn(server, 1)
      assert_equal 504, client.answer.status
      assert client.closed?
      server.stop
      assert_match(%r{GET /slow HTTP/1\.1" 504 16\n\z}, File.read(file.path))
    end
  end

  def test_an_access_log_that_does_not_wait_by_itself_loses_no_lines
    log, write = IO.pipe
    write.fcntl(Fcntl::F_SETFL, File::WRONLY | File::NONBLOCK)
    write.fcntl(1031, 4096) # F_SETPIPE_SZ: less than is written at once
    server = serve({ log_format: :common, log_fd: write.fileno }, lint: false) { |_env| [204, {}, []] }
    write.close
    Tempfile.create("access") do |kept|
      # In its own process: a thread here may not run for as long as the server waits for a reader.
      reader = spawn("cat", in: log, out: kept)
      client = server.connect
      20.times do |round|
        client.send((1..100).map { |number| request("/#{round}/#{number}") }.join)
        100.times { client.answer }
      end
      server.stop
      Process.wait(reader)
      expected = (0...20).flat_map { |round| (1..100).map { |number| "/#{round}/#{number}" } }
      assert_equal expected, File.readlines(kept.path).map { |line| line[/GET (\S+) HTTP\/1\.1" 204 0$/, 1] }
    end
  end

  def test_the_title
    server = held({ title: "oroshi worker 7" })
    title = -> { File.read("/proc/#{server.pid}/cmdline").delete("\0").rstrip }
    server.wait_for("the title") { title.call == "oroshi worker 7: 0 requests, idle" }
    client = server.connect.send(request("/held?password=secret"))
    @called.read(1)
    assert_equal "oroshi worker 7: 1 requests, GET /held", title.call, "every local user sees it"
    @let_go.write("x")
    client.answer
    server.wait_for("the title") { title.call == "oroshi worker 7: 1 requests, idle" }
  end

  def test_the_collector_runs_out_of_band
    [false, true].each do |disabled|
      server = serve({ oob_gc: { min: 1, max: 1 } }, lint: false) do |_env|
        GC.disable if disabled
        [200, {}, [[GC.stat(:major_gc_count), GC.disable].inspect]]
      ensure
        GC.enable unless disabled
      end
      client = server.connect
      counts = Array.new(5) { eval(client.send(request).answer.body) } # rubocop:disable Security/Eval -- what the application has written
      assert_equal counts.map(&:first).uniq, counts.map(&:first)
      assert_equal [disabled], counts.map(&:last).uniq
    end
  end

  def test_one_process_has_one_worker
    server = serve(lint: false) do |_env|
      other = Oroshi::Native::Worker.new(HELLO, listener_fds: [], scoreboard: Oroshi::Native::Scoreboard.new(1, 0), slot: 0, settings: {})
      other.run
    rescue RuntimeError => e
      [200, {}, [e.message]]
    end
    assert_equal "a worker runs in this process already; one process has one", server.get.body
  end
end
