# frozen_string_literal: true

require_relative "support"
require "json"

# What Rhebok's own tests expect: each row of the table in docs/rack.md.
class RhebokBehaviourTest < Support::Test
  # Answers with the environment as JSON, and the fields that Rhebok's tests use.
  APP = <<~'APP'
    require "json"
    run lambda { |env|
      input = env["rack.input"]&.read
      shown = env.select { |_, value| [String, Integer, Array, true, false].any? { |kind| kind === value } }
      shown = shown.merge("input" => input, "hooks" => [ENV["BEFORE"], ENV["AFTER"]])
      headers = { "x-foo" => "Foo\nBar", "x-bar" => "Foo\n\nBar", "x-baz" => "\nBaz", "x-fuga" => "Fuga\n" }
      headers["date"] = "Foooo" if env["PATH_INFO"] == "/date"
      headers["connection"] = "keepalive" if env["PATH_INFO"] == "/connection"
      [env["QUERY_STRING"] == "secret" ? 403 : 200, headers, [JSON.generate(shown)]]
    }
  APP

  def wire(text)
    Support::Client.unix(socket_path) { |client| client.write(text) && client.read_all }
  end

  # Returns the environment of a request.
  def env(path = "/", fields = "", body: "")
    wire("#{body.empty? ? "GET" : "POST"} #{path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n#{fields}\r\n#{body}")
      .then { |answer| JSON.parse(answer.split("\r\n\r\n", 2).last) }
  end

  def test_over_tcp
    server = start(*Support::COMMAND, "-w", "1", "-o", "127.0.0.1", "-p", "0", file("config.ru", APP))
    port = server.wait_for(/serving 127\.0\.0\.1:(\d+)/)[1]
    server.wait_for(/: ready/)
    found = Support::Client.tcp("127.0.0.1", port) { |client| JSON.parse(client.get("/", Host: "127.0.0.1:#{port}").body) }
    assert_equal ["HTTP/1.1", "127.0.0.1", port, "127.0.0.1"],
                 found.values_at("SERVER_PROTOCOL", "SERVER_NAME", "SERVER_PORT", "REMOTE_ADDR")
  end

  def test_the_environment
    serve(app: APP)
    assert_equal [false, true, false, "http"],
                 env.values_at("rack.multithread", "rack.multiprocess", "rack.run_once", "rack.url_scheme")
    assert_includes [nil, [1, 3]], env["rack.version"], "Rack 3 has none"
    assert_equal ["GET", "/", "", ""], env.values_at("REQUEST_METHOD", "PATH_INFO", "QUERY_STRING", "input")
    assert_equal ["/test/foo", "quux=1"], env("/test/foo?quux=1").values_at("PATH_INFO", "QUERY_STRING")
    post = env("/", "X-Test-Header: 42\r\nContent-Length: 17\r\n", body: "rack-form-data=23")
    assert_equal ["POST", "42", "rack-form-data=23"], post.values_at("REQUEST_METHOD", "HTTP_X_TEST_HEADER", "input")
    assert_equal "Basic cnV0aDpzZWNyZXQ=", env("/", "Authorization: Basic cnV0aDpzZWNyZXQ=\r\n")["HTTP_AUTHORIZATION"]
    unix = env.values_at("SERVER_NAME", "SERVER_PORT", "REMOTE_ADDR", "REMOTE_PORT")
    assert_equal ["localhost", "80", "127.0.0.1", nil], unix
  end

  def test_the_answer
    serve(app: APP)
    head = wire("GET / HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n").split("\r\n\r\n").first.lines(chomp: true)
    assert_equal ["x-foo: Foo", "x-foo: Bar", "x-bar: Foo", "x-bar: Bar", "x-baz: Baz", "x-fuga: Fuga"],
                 head.map(&:downcase).grep(/\Ax-/).map { |line| line.sub(/: (.)/) { ": #{Regexp.last_match(1).upcase}" } }
    assert_equal "Foooo", get("/date").headers["date"]
    Support::Client.unix(socket_path) do |client|
      2.times { assert_nil client.get("/connection", Connection: nil).headers["connection"], "it is kept" }
    end
    assert_equal "close", get("/connection").headers["connection"]
    assert_equal 403, get("/test?secret").status
  end

  def test_hooks
    hooks = "before_fork { ENV[\"BEFORE\"] = \"1\" }\nafter_fork { ENV[\"AFTER\"] = \"2\" }\n"
    serve(app: APP, config: hooks)
    assert_equal %w[1 2], env["hooks"]
  end

  def test_a_body_in_chunks_that_waits_for_100_continue
    serve(app: APP)
    Support::Client.unix(socket_path) do |client|
      client.write("POST / HTTP/1.1\r\nHost: t\r\nConnection: close\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n")
      client.wait
      client.write("5\r\nhello\r\n0\r\n\r\n")
      interim, head, body = client.read_all.split("\r\n\r\n", 3)
      assert_match(%r{\AHTTP/1\.1 100 }, interim)
      assert_match(/^content-length: \d+/i, head)
      refute_match(/^transfer-encoding/i, head)
      assert_equal ["hello", "5", nil], JSON.parse(body).values_at("input", "CONTENT_LENGTH", "HTTP_TRANSFER_ENCODING")
    end
  end
end

# Defects of Rhebok 0.9.3, one by one.
class RhebokTest < Support::Test
  def wire(text)
    Support::Client.unix(socket_path) { |client| client.write(text) && client.read_all }
  end

  # There the worker spins for ever, in a loop that takes "nothing came" for "more will come".
  def test_a_client_that_leaves_in_the_middle_of_a_body
    server = serve(app: 'run ->(env) { [200, {}, [env["rack.input"].read]] }')
    5.times do
      Support::Client.unix(socket_path) do |client|
        client.write("POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 100\r\n\r\nhalf")
      end
    end
    stalled = Support::Client.unix(socket_path)
    stalled.write("POST / HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Length: 9\r\n\r\nhalf")
    assert_equal "", get("/").body, "the only worker is free"
    stalled.write(" more")
    assert_equal "half more", stalled.answer.body
    stalled.close
    assert_equal 0, server.stop.exitstatus
  end

  # There everything after the first IOV_MAX (1024) pieces is lost.
  def test_an_answer_of_more_than_1024_pieces
    serve(app: 'run ->(_env) { [200, {}, Array.new(5000) { |n| "piece #{n} #{"x" * 100}\n" }] }')
    assert_equal Array.new(5000) { |n| "piece #{n} #{"x" * 100}\n" }.join, get("/").body
  end

  # There Content-Length wins, and several are joined: what one server takes for a body, the next takes for a request.
  def test_request_smuggling
    serve
    ["Content-Length: 5\r\nTransfer-Encoding: chunked", "Transfer-Encoding: chunked\r\nContent-Length: 5",
     "Content-Length: 5\r\nContent-Length: 6", "Content-Length: 5, 6", "Content-Length: +5",
     "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
     "Content_Length: 5\r\nContent-Length: 6, 6"].each do |fields|
      answers = wire("POST / HTTP/1.1\r\nHost: t\r\n#{fields}\r\n\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: t\r\n\r\n")
      assert_match(/\AHTTP\/1\.1 (400|501) /, answers, fields)
      assert_equal 1, answers.scan(%r{HTTP/1\.1 \d}).size, "nothing after it is read: #{fields}"
    end
  end

  # There `D`, `Serv` and `Con` are taken for Date, Server and Connection.
  def test_answers_with_short_header_names
    serve(app: 'run ->(_env) { [200, { "d" => "1", "serv" => "2", "con" => "3", "server" => "mine" }, []] }')
    headers = get("/").headers
    assert_equal %w[1 2 3 mine], headers.values_at("d", "serv", "con", "server")
    assert_match(/ GMT\z/, headers["date"])
  end

  # There only the first is served, with SERVER_NAME `host:port` or SERVER_PORT `/path`.
  def test_every_socket_of_server_starter_and_its_name
    tcp = tcp_listener
    unix = UNIXServer.new(socket_path)
    port = tcp.local_address.ip_port
    file("config.ru", 'run ->(env) { [200, {}, [env.values_at("SERVER_NAME", "SERVER_PORT").join(" ")]] }')
    server = start(*Support::COMMAND, "-w", "1", 3 => tcp, 4 => unix,
                   env: { "SERVER_STARTER_PORT" => "127.0.0.1:#{port}=3;#{socket_path}=4" })
    server.wait_for(/: ready/)
    Support::Client.tcp("127.0.0.1", port) do |client|
      assert_equal "127.0.0.1 #{port}", client.get("/", Host: "127.0.0.1:#{port}").body
    end
    assert_equal "test 80", get("/").body
  ensure
    [tcp, unix].each { |socket| socket&.close }
  end

  # There REMOTE_ADDR is empty on a unix socket, and a proxy's X-Forwarded-For is not believed.
  def test_a_client_at_a_unix_socket_is_this_machine
    serve(app: <<~'APP')
      run ->(env) { [200, {}, [[*env.values_at("REMOTE_ADDR", "REMOTE_PORT"), Rack::Request.new(env).ip].inspect]] }
    APP
    assert_equal '["127.0.0.1", nil, "192.0.2.1"]', get("/", "X-Forwarded-For": "192.0.2.1").body
  end

  # There 16 KiB and 128 fields.
  def test_how_large_a_head_may_be
    serve
    fields = ->(count) { (1..count).to_h { |n| [:"X-#{n}", "v"] } }
    assert_equal 200, get("/", **fields.call(98)).status, "with Host and Connection, 100"
    assert_equal 431, get("/", **fields.call(99)).status
    assert_equal 200, get("/", "X-Long": "v" * 60_000).status
    assert_equal 431, get("/", "X-Long": "v" * 66_000).status
    assert_equal 200, get("/#{"p" * 8191}").status
    assert_equal 414, get("/#{"p" * 8192}").status
  end

  # There an escape at the end is read beyond the path's end, and the path is decoded.
  def test_an_escape_that_is_cut_off
    serve(app: 'run ->(env) { [200, {}, [env["PATH_INFO"]]] }')
    assert_equal "/a%20b", get("/a%20b").body
    ["/%", "/a%2"].each do |path|
      answer = get(path)
      assert_equal [200, path], [answer.status, answer.body] unless answer.status == 400
    end
  end

  # There X_Foo and X-Foo are the same HTTP_X_FOO, so that a client can pass for its proxy.
  def test_header_names_with_underscores
    serve(app: 'run ->(env) { [200, {}, [env["HTTP_X_FOO"].inspect]] }')
    assert_equal '"proxy"', get("/", "X_Foo": "client", "X-Foo": "proxy").body
    assert_equal "nil", get("/", "X_Foo": "client").body
  end

  # There they are sent as they come, and the client takes the body for the next answer.
  def test_204_and_304_and_head_have_no_body
    serve(app: 'run ->(env) { [env["PATH_INFO"].delete("/").to_i, {}, ["body"]] }')
    ["GET /204", "GET /304", "HEAD /200"].each do |line|
      assert_match(/\r\n\r\n\z/, wire("#{line} HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n"), line)
    end
  end

  # There the worker has one rack.input for all requests without a body.
  def test_an_application_that_closes_its_input
    serve(app: 'run ->(env) { text = env["rack.input"].read; env["rack.input"].close; [200, {}, [text.inspect]] }')
    3.times { assert_equal '""', get("/").body }
  end

  # There an exception ends the worker, and its client gets nothing.
  def test_an_application_that_raises
    server = serve(app: 'run ->(env) { raise "oh" if env["PATH_INFO"] == "/raise"; [200, {}, [Process.pid.to_s]] }')
    before = get("/").body
    assert_equal 500, get("/raise").status
    assert_equal before, get("/").body
    server.stop
    assert_match(/config\.ru:1:in .*: oh \(RuntimeError\)|RuntimeError.*oh/, server.said)
  end

  # There they are ignored.
  def test_options_that_do_not_exist
    server = start(*Support::COMMAND, "-O", "MaxWorker=1")
    assert_equal 2, server.wait.exitstatus
  end
end
