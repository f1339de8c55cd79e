# frozen_string_literal: true

require_relative "support"

# Requests that take longer than WorkerTimeout, in real workers.
class WatchdogProcessTest < Support::Test
  APP = <<~'APP'
    def deep_in_the_application(env)
      case env["PATH_INFO"]
      when "/sleep" then sleep
      when "/loop" then loop {}
      when "/native" # holds Ruby's lock, and signals do not end it: no trap can run
        require "fiddle"
        lock = Fiddle::Function.new(Fiddle::Handle::DEFAULT["pthread_mutex_lock"], [Fiddle::TYPE_VOIDP], Fiddle::TYPE_INT,
                                    need_gvl: true)
        mutex = Fiddle::Pointer.malloc(64, Fiddle::RUBY_FREE)
        mutex[0, 64] = "\0" * 64
        2.times { lock.call(mutex) } # the second time for ever
      when "/large" then return [200, { "content-type" => "text/plain" }, ["x" * 5_000_000]]
      when "/crash" then require("fiddle") && Fiddle::Pointer.new(8)[0]
      when "/half" then return [200, { "content-type" => "text/plain" }, Enumerator.new { |out| out << "half"; sleep }]
      end
      [200, { "content-type" => "text/plain" }, [Process.pid.to_s]]
    end
    run ->(env) { deep_in_the_application(env) }
  APP

  def timed_out(path, said)
    server = serve(app: APP, WorkerTimeout: "100ms", ErrRespawnInterval: "1h")
    first = server.worker
    client = Support::Client.unix(socket_path)
    client.send_get(path)
    answer = client.read_all
    server.wait_for(said)
    server.wait_for(/worker \d .*: ready/, count: 2)
    refute_equal first.to_s, get("/").body, "replaced at once, although ErrRespawnInterval is an hour"
    [answer, server]
  end

  def test_the_client_gets_504_and_the_log_a_backtrace
    answer, server = timed_out("/sleep?a=b", /worker 0: GET \/sleep\?a=b HTTP\/1\.1 took longer than WorkerTimeout/)
    assert_match(/\AHTTP\/1\.1 504 /, answer)
    assert_match(/connection: close/i, answer)
    server.wait_for(/worker 0 .*: GET \/sleep\?a=b HTTP\/1\.1 has taken \d+ ms, WorkerTimeout is 100 ms; told to end/)
    text = server.wait_for(/took longer than WorkerTimeout, \d+ ms; its client got 504; it was here:\n((?:    .*\n)+)/)[1]
    assert_match(/config\.ru:3:in [`'](Kernel#)?sleep'\n.*config\.ru:3:in [`'].*deep_in_the_application'/, text)
    refute_match(%r{oroshi/worker\.rb:\d+:}, text)
    server.wait_for(/worker 0 .*: ended: a request took too long/)
  end

  def test_a_busy_loop
    answer, = timed_out("/loop", /config\.ru:4:in/)
    assert_match(/\AHTTP\/1\.1 504 /, answer)
  end

  # The handler that answers is native, so the client still gets its 504. There is no backtrace.
  def test_code_that_is_no_ruby
    answer, server = timed_out("/native", /killed, because it has not ended by itself: it hangs in code that is no Ruby/)
    assert_match(/\AHTTP\/1\.1 504 /, answer)
    server.wait_for(/worker 0 .*: ended: killed by signal 9 \(KILL\)/)
  end

  # An answer that began with 200 cannot become a 504: it is cut off, visibly incomplete.
  def test_an_answer_that_has_begun_is_cut_off
    answer, = timed_out("/half", /its answer had begun and is cut off/)
    assert_match(/\AHTTP\/1\.1 200 /, answer)
    refute_match(/504/, answer)
    refute answer.end_with?("0\r\n\r\n")
  end

  # Lines wait while there is work; the worker's end must lose neither those of answered requests nor that of its last
  # request.
  def test_the_access_log_has_every_request
    log = File.join(@dir, "access.log")
    server = serve(app: APP, WorkerTimeout: "100ms", AccessLog: log)
    answers = Support::Client.unix(socket_path) do |client|
      client.write("GET /first HTTP/1.1\r\nHost: t\r\n\r\nGET /sleep HTTP/1.1\r\nHost: t\r\n\r\n")
      client.read_all
    end
    assert_equal %w[200 504], answers.scan(%r{HTTP/1\.1 (\d+)}).flatten
    server.wait_for(/worker 0 .*: ended: a request took too long/)
    assert_equal ["/first 200", "/sleep 504"],
                 File.read(log).scan(%r{"GET (\S+) HTTP/1\.1" (\d+) }).map { |line| line.join(" ") }
  end

  # The status that was sent: an answer that had begun keeps its own.
  def test_the_access_log_has_the_status_that_was_sent
    log = File.join(@dir, "access.log")
    server = serve(app: APP, WorkerTimeout: "100ms", AccessLog: log)
    Support::Client.unix(socket_path) { |client| client.send_get("/half") && client.read_all }
    server.wait_for(/worker 0 .*: ended: a request took too long/)
    assert_match(%r{"GET /half HTTP/1\.1" 200 }, File.read(log))
  end

  # Other clients' connections go to other workers, or to the next one: idle ones, and those with half a head or half a
  # body. Half a chunked body cannot be moved, and is refused.
  def bystanders(workers, path, limit: "300ms", told: /\AHTTP\/1\.1 504 /)
    server = serve(app: APP, WorkerTimeout: limit, ErrRespawnInterval: "10ms", MaxWorkers: workers)
    kept = Array.new(6) { Support::Client.unix(socket_path) }
    kept.each { |client| assert_equal 200, client.get("/", Connection: nil).status }
    halves = Array.new(2) { Support::Client.unix(socket_path) }
    halves.each { |client| client.write("GET / HTTP/1.1\r\nHo") }
    bodies = Array.new(4) { Support::Client.unix(socket_path) }
    length, chunks = bodies.each_slice(2).to_a
    length.each { |client| client.write("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nx") }
    chunks.each { |client| client.write("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nx") }
    readers = Array.new(2) { Support::Client.unix(socket_path) }
    readers.each { |client| client.send_get("/large") }
    within("the large answers to begin") { readers.each { |client| client.write("") && client.wait } }
    asking = Array.new(3) { Support::Client.unix(socket_path) }
    workers.times { |n| asking[n].send_get(path) }
    workers.times { |n| assert_match(told, asking[n].read_all) }
    server.wait_for(/worker \d .*: ended/, count: workers)
    kept.each { |client| assert_equal 200, client.get("/", Connection: nil).status }
    halves.each { |client| client.write("st: a\r\n\r\n") && assert_equal(200, client.answer.status) }
    readers.each { |client| assert_equal 5_000_000, client.answer.body.bytesize }
    length.each { |client| client.write("yz") && assert_equal(200, client.answer.status) }
    chunks.each do |client|
      answer = client.answer
      assert_equal [503, "close"], [answer.status, answer.headers["connection"]]
    end
  ensure
    [kept, halves, bodies, readers, asking].compact.flatten.each(&:close)
  end

  def test_the_other_clients_of_a_worker_that_takes_too_long_are_served
    bystanders(2, "/sleep")
  end

  def test_the_other_clients_of_the_only_worker_are_served_by_the_next
    bystanders(1, "/sleep")
  end

  def test_the_other_clients_of_a_worker_that_hangs_in_code_that_is_no_ruby_are_served
    bystanders(2, "/native")
  end

  def test_the_other_clients_of_a_worker_that_crashes_are_served
    bystanders(1, "/crash", limit: "1h", told: /\A\z/)
  end

  # Ruby turns it into an exception, by the same signal as a crash.
  def test_a_stack_that_is_too_deep_is_an_error_like_others
    server = serve(app: "def deep(n) = deep(n + 1) + 1\nrun ->(env) { env['PATH_INFO'] == '/deep' ? deep(0) : [200, {}, [Process.pid.to_s]] }")
    2.times { assert_equal 500, get("/deep").status }
    assert_equal server.worker.to_s, get("/").body
    server.wait_for(/stack level too deep/, count: 2)
  end

  def test_requests_in_time_are_left_alone
    server = serve(app: APP, WorkerTimeout: "1h")
    first = server.worker.to_s
    5.times { assert_equal first, get("/").body }
  end

  def test_while_it_stops
    server = serve(app: APP, WorkerTimeout: "100ms", StopTimeout: 0)
    client = Support::Client.unix(socket_path)
    client.send_get("/sleep")
    server.wait_for(/told to end/)
    server.signal("TERM")
    assert_match(/\AHTTP\/1\.1 504 /, client.read_all)
    assert_equal 0, server.wait.exitstatus
  end
end
