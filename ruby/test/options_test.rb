# frozen_string_literal: true

require_relative "support"

# The effect of each option on a running server, where no other file tests it. (Listening: listeners_test.rb; replacing
# workers: signals_test.rb, recycling_test.rb, failures_test.rb; WorkerTimeout: watchdog_process_test.rb.)
class OptionsTest < Support::Test
  def kept(&block)
    Support::Client.unix(socket_path, &block)
  end

  def test_keep_alive
    serve
    kept do |client|
      2.times { assert_equal 200, client.get("/", Connection: nil).status }
    end
  end

  def test_keep_alive_ends_an_idle_connection
    serve(KeepAlive: "50ms")
    kept do |client|
      assert_equal 200, client.get("/", Connection: nil).status
      assert_equal "", client.read_all
    end
  end

  # Rhebok's way.
  def test_keep_alive_0_is_one_request_per_connection
    serve(KeepAlive: 0)
    kept do |client|
      answer = client.get("/", Connection: nil)
      assert_equal "close", answer.headers["connection"]
      assert_equal "", client.read_all
    end
  end

  def test_timeout_ends_a_request_that_does_not_come
    serve(Timeout: "100ms")
    kept do |client|
      client.write("GET / HTTP/1.1\r\nHost: t")
      assert_match(/\AHTTP\/1\.1 408 /, client.read_all)
    end
  end

  # It never limits the application.
  def test_timeout_is_not_the_applications
    server = serve(Timeout: "1ms", app: 'run ->(_env) { sleep 0.1; [200, {}, ["slept"]] }')
    assert_equal "slept", get("/").body
    refute_match(/ended/, server.said)
  end

  def test_max_body
    serve(MaxBody: "1k", app: 'run ->(env) { [200, {}, [env["rack.input"].read.size.to_s]] }')
    assert_equal "1024", post("/", "x" * 1024).body
    assert_equal 413, post("/", "x" * 1025).status
  end

  def test_max_body_0_is_any_size
    serve(MaxBody: 0, app: 'run ->(env) { [200, {}, [env["rack.input"].read.size.to_s]] }')
    assert_equal "3000000", post("/", "x" * 3_000_000).body
  end

  EACH = 'run ->(_env) { [200, { "content-type" => "text/plain" }, %w[a b].each] }'

  def test_chunked_transfer
    serve(app: EACH)
    kept do |client|
      client.send_get("/")
      assert_match(/^transfer-encoding: chunked\r$.*\r\n\r\n1\r\na\r\n1\r\nb\r\n0\r\n\r\n\z/im, client.read_all)
    end
  end

  def test_chunked_transfer_false
    serve(app: EACH, ChunkedTransfer: false)
    kept do |client|
      client.send_get("/", Connection: nil)
      text = client.read_all
      refute_match(/transfer-encoding/i, text)
      assert_match(/^connection: close\r\n.*\r\nab\z/im, text)
    end
  end

  # Garbage is collected after requests, but never while the application works.
  def test_oob_gc
    app = 'GC.disable; run ->(_env) { [200, {}, [GC.count.to_s]] }'
    count = -> { get("/").body.to_i }
    server = serve(app: app, OobGC: true, MaxGCPerRequest: 2, MinGCPerRequest: 1)
    before = count.call
    6.times { count.call }
    assert_operator count.call - before, :>=, 3
    server.stop
    serve(app: app, OobGC: false, MaxGCPerRequest: 2)
    before = count.call
    6.times { count.call }
    assert_equal before, count.call
  end

  def test_access_log
    { "common" => %r{\A\S* - - \[\d\d/\w{3}/\d{4}:[\d:]+ [+-]\d{4}\] "GET /a\?b HTTP/1\.1" 200 5\n\z},
      "combined" => %r{\A\S* - - \[.*\] "GET /a\?b HTTP/1\.1" 200 5 "-" "me"\n\z},
      "json" => /\A\{.*"path":"\/a".*\}\n\z|\A\{.*\/a\?b.*\}\n\z/ }.each do |format, pattern|
      log = File.join(@dir, "#{format}.log")
      server = serve(LogFormat: format, AccessLog: log)
      get("/a?b", "User-Agent": "me")
      server.stop
      assert_match(pattern, File.read(log), format)
    end
  end

  def test_access_log_on_standard_output
    server = serve(LogFormat: "common")
    get("/there")
    server.stop
    assert_match(%r{"GET /there HTTP/1\.1" 200}, server.said)
  end

  # Lines wait in each worker, but an orderly stop loses none.
  def test_access_log_is_whole_after_a_graceful_stop
    log = File.join(@dir, "log")
    server = serve(AccessLog: log, MaxWorkers: 2)
    100.times { |n| get("/#{n}") }
    server.stop
    assert_equal (0...100).to_a, File.readlines(log).map { |line| line[%r{GET /(\d+)}, 1].to_i }.sort
  end

  def test_error_log
    log = File.join(@dir, "error.log")
    server = serve(ErrorLog: log, ready: 0, app: <<~'APP')
      run ->(env) { env["rack.errors"].puts("from the application"); [200, {}, []] }
    APP
    wait_for_line(log, /: ready/)
    get("/")
    server.stop
    assert_match(/^from the application$/, File.read(log))
    assert_empty server.said
  end

  def test_warmup
    app = 'run ->(_env) { [200, {}, [GC.stat(:compact_count).to_s]] }'
    server = serve(app: app)
    refute_equal "0", get("/").body, "the heap was compacted"
    server.stop
    serve(app: app, Warmup: false)
    assert_equal "0", get("/").body
  end

  def test_path_mode
    serve(PathMode: "0600")
    assert_equal 0o600, File.stat(socket_path).mode & 0o777
  end

  # As people write config/puma.rb.
  def test_the_usual_config_file
    Dir.mkdir(File.join(@dir, "config"))
    file("config/oroshi.rb", "max_workers 2\nlisten '#{socket_path}'")
    config = file("config.ru", Support::PLAIN_APP)
    server = start(*Support::COMMAND, "-w", "1", config)
    server.wait_for(/serving unix:#{socket_path} with 2 workers/)
    server.stop
    server = start(*Support::RUBY, "-S", "rackup", "-s", "oroshi", config)
    server.wait_for(/serving unix:#{socket_path} with 2 workers/)
    server.stop
    server = start(*Support::COMMAND, "-c", file("other.rb", "max_workers 3\nlisten '#{socket_path}'"), config)
    server.wait_for(/serving unix:#{socket_path} with 3 workers/)
  end
end
