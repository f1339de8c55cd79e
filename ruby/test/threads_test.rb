# frozen_string_literal: true

require_relative "support"
require "json"

# Workers with several threads: `-t`, RAILS_MAX_THREADS, `oroshi.io_bound`.
class ThreadsTest < Support::Test
  # /gate?PATH waits at a door of the test; with a header X-Io it leaves its place before. Other paths tell who answers.
  APP = <<~'APP'
    require "socket"
    run lambda { |env|
      case env["PATH_INFO"]
      when "/gate", "/io"
        left = env["PATH_INFO"] == "/io" && env["oroshi.io_bound"]&.call
        UNIXSocket.open(env["QUERY_STRING"], &:read)
        [200, { "content-type" => "text/plain" }, ["#{Process.pid} #{Thread.current.name} #{left.inspect}"]]
      when "/late" # in a loop that only a signal ends
        UNIXSocket.open(env["QUERY_STRING"], &:read)
        sleep
      when "/main" # late on the main thread alone
        next [200, {}, ["another thread"]] unless Thread.current == Thread.main

        UNIXSocket.open(env["QUERY_STRING"], &:read)
        sleep
      when "/exit" then exit 3
      when "/multithread" then [200, {}, [env["rack.multithread"].inspect]]
      when "/after"
        path = env["QUERY_STRING"]
        env["rack.after_reply"] << -> { UNIXSocket.open(path) { |door| door.write(Thread.current.name.to_s) } }
        [200, {}, ["soon"]]
      when "/hijack"
        io = env["rack.hijack"].call
        UNIXSocket.open(env["QUERY_STRING"], &:read)
        io.write("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nmy")
        io.close
        [-1, {}, []]
      when "/pieces"
        body = Enumerator.new { |out| 50.times { |n| out << "#{env["QUERY_STRING"]} #{n}\n" and Thread.pass } }
        [200, {}, body]
      when "/hints"
        env["rack.early_hints"].call("link" => "</#{env["QUERY_STRING"]}.css>")
        Thread.pass
        [200, {}, [env["QUERY_STRING"]]]
      else [200, { "content-type" => "text/plain" }, [Process.pid.to_s]]
      end
    }
  APP

  # Several requests that wait at a door.
  class Crowd
    def initialize(test, path, count)
      @test = test
      @door = test.door("door#{path.delete("/")}#{rand(1 << 30)}")
      @clients = Array.new(count) do
        Support::Client.unix(test.socket_path).tap { |client| client.send_get("#{path}?#{@door.path}") }
      end
    end

    # Waits until so many of them are within the application.
    def inside(count)
      @inside ||= []
      @inside << Common.within("#{count} requests to be inside at once") { @door.accept } until @inside.size == count
      self
    end

    # Whether another one has come in.
    def another?(seconds)
      !@door.wait_readable(seconds).nil?
    end

    def leave
      @inside.each(&:close)
      @inside = nil
      @door.close
    end

    def answers
      @clients.map { |client| client.answer.tap { client.close } }
    end
  end

  def crowd(path, count) = Crowd.new(self, path, count)

  def test_a_worker_serves_as_many_requests_at_once_as_it_has_threads
    serve(app: APP, Threads: 3)
    all = crowd("/gate", 3).inside(3)
    all.leave
    bodies = all.answers.map { |answer| answer.body.split.first }
    assert_equal 1, bodies.uniq.size, "one process"
    assert_equal "true", get("/multithread").body
  end

  def test_one_thread_is_the_default
    serve(app: APP)
    refute crowd("/gate", 2).inside(1).another?(0.2)
  end

  def test_environment_command_line_and_file
    server = serve(app: APP, env: { "RAILS_MAX_THREADS" => "2" })
    crowd("/gate", 2).inside(2).leave
    assert_match(/with 1 workers of 2 threads/, server.said)
    server.stop
    rackup_file = file("config.ru", APP)
    start(*Support::COMMAND, "-w", "1", "-t", "1:3", "-l", socket_path, rackup_file).wait_for(/worker 0 .*: ready/)
    crowd("/gate", 3).inside(3).leave
  end

  def test_wrong_numbers
    [%w[-t 0], %w[-t 5:2], %w[-t many], %w[-O Threads=129], %w[-O IoThreads=-1]].each do |arguments|
      server = start(*Support::COMMAND, *arguments, file("config.ru", APP))
      assert_equal 2, server.wait.exitstatus, arguments.inspect
      assert_match(/Threads=\S+: must be a whole number from [01]/, server.said)
    end
  end

  # Kept connections do not wait for their thread: others take them.
  def test_kept_connections_are_served_while_a_thread_is_busy
    serve(app: APP, Threads: 2)
    clients = Array.new(8) { Support::Client.unix(socket_path) }
    clients.each { |client| assert_equal 200, client.get("/", Connection: nil).status }
    inside = crowd("/gate", 1).inside(1)
    clients.each { |client| assert_equal 200, client.get("/", Connection: nil).status }
    inside.leave
    clients.each(&:close)
  end

  # One process has a busy thread, which holds Ruby's lock half of the time: the idle process takes what comes.
  def test_new_connections_go_to_the_process_with_fewer_busy_threads
    serve(app: APP, Threads: 2, MaxWorkers: 2)
    inside = crowd("/gate", 1).inside(1)
    pids = Array.new(30) { get("/pid").body }
    inside.leave
    busy = inside.answers.first.body.split.first
    assert_operator pids.count(busy), :<, 10, pids.tally.inspect
  end

  def test_a_request_that_waits_leaves_its_place
    server = serve(app: APP, Threads: 1, IoThreads: 2)
    waiting = crowd("/io", 2).inside(2)
    usual = crowd("/gate", 2).inside(1)
    refute usual.another?(0.2), "one usual request at a time"
    usual.leave
    waiting.leave
    assert_equal %w[true true], waiting.answers.map { |answer| answer.body.split.last }
    # Again: threads that rest are used again, none is added.
    again = crowd("/io", 3).inside(3)
    again.leave
    assert_equal %w[false true true], again.answers.map { |answer| answer.body.split.last }.sort
    usual = crowd("/gate", 2).inside(1)
    refute usual.another?(0.2), "one usual request at a time"
    usual.leave
    assert server.stop.success?
  end

  def test_without_io_threads_there_is_nothing_to_call
    serve(app: APP, Threads: 2)
    inside = crowd("/io", 1).inside(1)
    inside.leave
    assert_equal "nil", inside.answers.first.body.split.last
  end

  def test_kept_connections_of_a_request_that_waits_are_served
    serve(app: APP, Threads: 1, IoThreads: 1)
    kept = Support::Client.unix(socket_path)
    assert_equal 200, kept.get("/", Connection: nil).status
    waiting = crowd("/io", 1).inside(1)
    assert_equal 200, kept.get("/", Connection: nil).status
    waiting.leave
    assert_equal 200, kept.get("/", Connection: nil).status
    kept.close
  end

  def test_status_and_metrics
    serve(app: APP, Threads: 3, StatusSocket: File.join(@dir, "status"))
    inside = crowd("/gate", 2).inside(2)
    status = ->(path) { Support::Client.unix(File.join(@dir, "status")) { |client| client.get(path).body } }
    worker = JSON.parse(status.call("/status"))["workers"].first
    assert_equal [3, 2, 2, "app"], worker.values_at("threads", "busy_threads", "requests", "state")
    assert_match(%r{GET /gate}, worker["request"]["line"])
    metrics = status.call("/metrics")
    assert_match(/^oroshi_rack_worker_threads\{worker="0"\} 3$/, metrics)
    assert_match(/^oroshi_rack_worker_busy_threads\{worker="0"\} 2$/, metrics)
    inside.leave
    inside.answers
    get("/")
    wait_until("three requests") { JSON.parse(status.call("/status"))["requests"] == 3 }
  end

  def test_hijack_after_reply_hints_and_pieces_on_several_threads
    serve(app: APP, Threads: 3, EarlyHints: true)
    taken = crowd("/hijack", 3).inside(3)
    taken.leave
    assert_equal %w[my my my], taken.answers.map(&:body)

    after = door("after")
    assert_equal "soon", get("/after?#{after.path}").body
    said = within("the callback") { after.accept }.read
    assert_includes ["", "oroshi 1", "oroshi 2"], said

    bodies = Array.new(12) { |n| Thread.new { get("/pieces?#{n}").body } }.map(&:value)
    bodies.each_with_index { |body, n| assert_equal Array.new(50) { |m| "#{n} #{m}\n" }.join, unchunked(body) }

    answers = Array.new(12) do |n|
      Thread.new { Support::Client.unix(socket_path) { |client| client.tap { client.send_get("/hints?#{n}") }.read_all } }
    end
    answers.map(&:value).each_with_index do |text, n|
      assert_match(%r{\AHTTP/1.1 103 .*</#{n}\.css>.*\r\n\r\nHTTP/1.1 200 .*\r\n\r\n#{n}\z}m, text)
    end
  end

  # Without reload nothing is lost, and the old threads finish what they have begun.
  def test_reload_and_stop
    server = serve(app: APP, Threads: 3)
    inside = crowd("/gate", 2).inside(2)
    statuses = statuses_meanwhile do
      server.signal("HUP")
      server.wait_for(/worker \d+ .*: ready/, count: 2)
      inside.leave
      server.wait_for(/worker \d+ .*: ended/)
    end
    assert_equal [[200], [200]], [statuses, inside.answers.map(&:status).uniq]
    inside = crowd("/gate", 3).inside(3)
    server.signal("TERM")
    server.wait_for(/received TERM/)
    inside.leave
    assert_equal [200], inside.answers.map(&:status).uniq
    assert server.wait.success?
  end

  def test_a_worker_with_threads_becomes_the_process_that_forks_the_next
    server = serve(app: APP, Threads: 2, ReforkAfter: "20")
    Array.new(4) { Thread.new { 10.times { get("/") } } }.each(&:join)
    server.wait_for(/forks the next workers/)
    server.wait_for(/worker \d+ .*: ready/, count: 2)
    crowd("/gate", 2).inside(2).leave
    assert server.stop.success?
  end

  def test_recycling_counts_the_requests_of_all_threads
    server = serve(app: APP, Threads: 3, MaxRequestPerChild: 10)
    inside = crowd("/gate", 3).inside(3)
    inside.leave
    inside.answers
    7.times { get("/") }
    server.wait_for(/started, to replace worker 0 .*: 1\d requests served/)
  end

  # The others finish before the worker ends.
  def test_a_request_that_takes_too_long_does_not_cut_off_the_others
    server = serve(app: APP, Threads: 3, WorkerTimeout: 3) # longer than a successor takes to be ready
    late = crowd("/late", 1).inside(1)
    late.leave
    assert_equal 504, late.answers.first.status
    inside = crowd("/gate", 1).inside(1)
    server.wait_for(/replace worker 0 .*: a request over WorkerTimeout/)
    server.wait_for(/worker 0 .*: stopping/)
    inside.leave
    assert_equal [200], inside.answers.map(&:status)
    server.wait_for(/worker 0 .*: ended: a request took too long/)
    assert_match(/took longer than WorkerTimeout.*config\.ru:\d+:in `sleep'/m, server.said)
    assert_equal 200, get("/").status
    assert server.stop.success?
  end

  # Its trap runs on the very thread that does not end.
  def test_a_request_that_takes_too_long_on_the_main_thread
    server = serve(app: APP, Threads: 3, WorkerTimeout: 3)
    door = door("main")
    clients = []
    late = Thread.new do
      loop do
        clients << Support::Client.unix(socket_path) # a kept connection, so that the next one goes to another thread
        answer = clients.last.get("/main?#{door.path}", Connection: nil)
        break answer.status if answer.status != 200
      end
    end
    within("the main thread to be inside") { door.accept }
    assert_equal 504, late.value
    inside = crowd("/gate", 1).inside(1)
    server.wait_for(/worker 0 .*: stopping: a request over WorkerTimeout/)
    inside.leave
    assert_equal [200], inside.answers.map(&:status)
    server.wait_for(/worker 0 .*: ended: a request took too long/)
    assert_match(/took longer than WorkerTimeout.*config\.ru:\d+:in `read'|config\.ru:\d+:in `sleep'/m, server.said)
  ensure
    clients&.each(&:close)
    door&.close
  end

  def test_exit_in_one_thread_ends_the_worker
    server = serve(app: APP, Threads: 3)
    inside = crowd("/gate", 1).inside(1)
    get("/exit")
    inside.leave
    assert_equal [200], inside.answers.map(&:status), "the others finish"
    server.wait_for(/worker 0 .*: ended: exit code 3/)
    server.wait_for(/worker \d .*: ready/, count: 2)
    assert_equal 200, get("/").status
  end

  private

  def unchunked(body)
    text = +""
    while body =~ /\A(\h+)\r\n/ && (size = Regexp.last_match(1).to_i(16)).positive?
      start = Regexp.last_match(0).size
      text << body[start, size]
      body = body[start + size + 2..]
    end
    text
  end
end
