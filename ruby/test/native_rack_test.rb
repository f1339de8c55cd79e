# frozen_string_literal: true

require_relative "native_support"

# Rack's rules, as an application sees them. Rack::Lint wraps every application here that keeps them.
class NativeRackTest < Minitest::Test
  include NativeSupport

  # Answers with a Ruby expression's value, to inspect the environment.
  def look(settings = {}, **options, &block)
    serve(settings, **options) { |env| [200, { "Content-Type" => "text/plain" }, [block.call(env).inspect]] }
  end

  def test_the_environment
    server = look { |env| env.reject { |key, _| key.include?(".") } }
    answer = server.get("/a%20b/c?d=e%20f", { "Host" => "example.org:8080", "User-Agent" => "x" * 50, "Content-Type" => "text/x" })
    expected = {
      "REQUEST_METHOD" => "GET", "SCRIPT_NAME" => "", "PATH_INFO" => "/a%20b/c", "QUERY_STRING" => "d=e%20f",
      "REQUEST_URI" => "/a%20b/c?d=e%20f", "REQUEST_PATH" => "/a%20b/c", "SERVER_PROTOCOL" => "HTTP/1.1",
      "SERVER_NAME" => "example.org", "SERVER_PORT" => "8080", "REMOTE_ADDR" => "127.0.0.1",
      "SERVER_SOFTWARE" => answer.body[%r{oroshi/[\d.]+}], "HTTP_HOST" => "example.org:8080",
      "HTTP_USER_AGENT" => "x" * 50, "HTTP_CONNECTION" => "close", "CONTENT_TYPE" => "text/x"
    }
    assert_equal expected.sort, eval(answer.body).sort # rubocop:disable Security/Eval -- what `look` has written
  end

  def test_the_environment_is_the_same_every_time_and_either_way
    [true, false].each do |in_place|
      server = look({ fill_in_place: in_place }) { |env| env.reject { |key, _| key.start_with?("rack.") }.sort.to_h }
      [{}, { "X-A" => "1" }, { "X-A" => "a" * 30, "X-B" => "" }].each do |headers|
        bodies = Array.new(5) { server.get("/", headers).body }
        assert_equal 1, bodies.uniq.size, "first without a template, then from one"
        assert_equal headers.values_at("X-A", "X-B").compact, eval(bodies.last).values_at("HTTP_X_A", "HTTP_X_B").compact # rubocop:disable Security/Eval
      end
    end
  end

  def test_values_do_not_leak_from_one_request_to_the_next
    server = look do |env|
      found = env["HTTP_X_LONG"].dup
      env["HTTP_X_LONG"] << "changed"
      env["PATH_INFO"] << "changed"
      [found, env["PATH_INFO"]]
    end
    client = server.connect
    ["a" * 100, "a" * 100, "a" * 100, "a" * 100, "b" * 100, "a" * 100].each do |value|
      assert_equal [value, "/changed"].inspect, client.send(request("/", "X-Long: #{value}\r\n")).answer.body
    end
  end

  def test_a_field_is_read_the_same_whatever_the_request_before
    server = look { |env| env.select { |key, _| key.start_with?("HTTP_X") }.sort.to_h }
    client = server.connect
    lines = ["X-A: 1\r\nX-AB: 2\r\n", "X-A: 1\r\nX-AB: 2\r\n", "X-A:\t 3 \t\r\nX-AB:\r\n", "X-AB: 4\r\nX-A:5\r\n", "X-A: 6\r\n",
             "X-A: 7\r\nX-AB: 8\r\nX-C: :9\r\n", "", "X-A: 1\r\nX-AB: 2\r\n", "x-a: 1\r\nX-AB: 2\r\n", "X-A: \r\n"]
    (lines + lines.reverse + lines).each do |text|
      wanted = text.lines.to_h { |line| line.split(":", 2) }
      wanted = wanted.to_h { |name, value| ["HTTP_#{name.upcase.tr("-", "_")}", value.strip] }
      assert_equal wanted.sort.to_h.inspect, client.send(request("/", text)).answer.body, text.inspect
    end
  end

  # The garbage collector knows all values, also of an environment that it has met half filled, or that has become old.
  def test_environments_that_the_application_keeps_stay_whole
    kept = []
    server = look do |env|
      kept << env
      GC.start(full_mark: true, immediate_mark: false, immediate_sweep: false) if (kept.size % 50).zero? # in steps
      next kept.size unless env["PATH_INFO"] == "/check"

      kept.each_with_index.count { |one, at| one["HTTP_X_NUMBER"] != "#{at} #{"n" * 40}" || one["HTTP_X_SHORT"] != at.to_s }
    end
    client = server.connect
    fields = ->(number) { "X-Number: #{number} #{"n" * 40}\r\nX-Short: #{number}\r\n" }
    1000.times { |number| client.send(request("/#{number}", fields[number])).answer }
    assert_equal "0", client.send(request("/check", fields[1000])).answer.body
  end

  # What the application does to an environment stays there: the next one, and those kept, have nothing of it.
  def test_what_the_application_does_to_an_environment
    deeds = {
      "delete" => ->(env) { env.delete("HTTP_X_A") && env.delete("REQUEST_METHOD") },
      "delete-all" => ->(env) { env.keys.each { |key| env.delete(key) } },
      "clear" => lambda(&:clear),
      "replace" => ->(env) { env.replace({ "HTTP_X_A" => "other" }) },
      "rehash" => ->(env) { env.rehash && env.store("HTTP_X_NEW", "new") },
      "shift" => ->(env) { 15.times { env.shift } },
      "identity" => lambda(&:compare_by_identity),
      "default" => ->(env) { env.default_proc = ->(hash, key) { hash[key] = "made" } },
      "many" => ->(env) { 500.times { |number| env["app.#{number}"] = number } },
      "values" => ->(env) { env.transform_values! { nil } },
      "keys" => ->(env) { env.keys.each { |key| key.frozen? or key << "changed" } },
      "freeze" => ->(env) { env.each_value { |value| value.freeze if value.is_a?(String) } && env.freeze },
      "array" => ->(env) { env["rack.after_reply"] = nil },
      "thread" => ->(env) { Thread.new { env.dup.merge!(env).delete_if { true } }.join }
    }
    copies = []
    server = look({}, lint: false) do |env|
      facts = env.values_at("REQUEST_METHOD", "QUERY_STRING", "HTTP_X_A", "HTTP_X_LONG", "rack.run_once", "HTTP_X_NEW", "app.7", "nothing")
      copies << [env.dup, env.to_a]
      deeds.fetch(env["PATH_INFO"].delete_prefix("/"), ->(_) {}).call(env)
      facts + [copies.count { |copy, pairs| copy.to_a != pairs }, copies.last.first.keys.grep_v(/\Aoroshi/).size]
    end
    client = server.connect
    size = nil
    deeds.keys.each_cons(2).to_a.flatten.each_with_index do |deed, number|
      fields = "X-A: #{number}\r\nX-Long: #{number}#{"x" * 40}\r\n"
      client.send(request("/#{deed}?#{number}", fields))
      answer = client.answer.body
      size ||= answer[/\d+(?=\]\z)/].to_i
      assert_equal ["GET", number.to_s, number.to_s, "#{number}#{"x" * 40}", false, nil, nil, nil, 0, size].inspect, answer, deed
    end
  end

  # Each minor collection would visit them all, if they had lost their write barrier.
  def test_environments_keep_their_write_barrier
    server = look({}, lint: false) do |env|
      require "objspace"
      ObjectSpace.dump(env)[/"flags":\{[^}]*\}/]
    end
    client = server.connect
    leave_out("the write barrier of environments", "this Ruby exports no rb_hash_tbl_raw") unless exports?("rb_hash_tbl_raw")
    3.times { assert_match(/wb_protected\W+true/, client.send(request("/", "X-A: 1\r\n")).answer.body) }
  end

  def exports?(name)
    require "fiddle"
    !!Fiddle.dlopen(nil)[name]
  rescue Fiddle::DLError
    false
  end

  def test_more_header_shapes_than_are_kept
    server = look { |env| env.select { |key, _| key.start_with?("HTTP_X_") } }
    client = server.connect
    3.times do
      100.times do |number|
        body = client.send(request("/", "X-#{number}: #{number}\r\nX-Last: yes\r\n")).answer.body
        assert_equal({ "HTTP_X_#{number}" => number.to_s, "HTTP_X_LAST" => "yes" }.inspect, body)
      end
    end
    # The shape without fields, from which new sequences start, must have survived.
    assert_equal({ "HTTP_X_NEW" => "1" }.inspect, client.send(request("/", "X-New: 1\r\n")).answer.body)
  end

  def test_repeated_and_dropped_fields
    server = look { |env| env.values_at("HTTP_X", "HTTP_COOKIE", "HTTP_X_FOO", "HTTP_PROXY") }
    client = server.connect
    fields = "X: 1\r\nCookie: a=1\r\nx: 2\r\ncookie: b=2\r\nX-Foo: right\r\nX_Foo: spoofed\r\nX_foo: spoofed\r\nProxy: evil\r\n"
    3.times do
      assert_equal ["1, 2", "a=1; b=2", "right", nil].inspect, client.send(request("/", fields)).answer.body
    end
    assert_equal [nil, nil, nil, nil].inspect, client.send(request("/", "X_Foo: spoofed\r\nProxy: evil\r\n")).answer.body
  end

  def test_who_the_request_is_for
    server = look({}, lint: false, tcp: true) { |env| env.values_at("SERVER_NAME", "SERVER_PORT", "HTTP_HOST", "PATH_INFO", "QUERY_STRING") }
    {
      "GET / HTTP/1.1\r\nHost: a\r\n\r\n" => ["a", "80", "a", "/", ""],
      "GET / HTTP/1.1\r\nHost: a:81\r\n\r\n" => ["a", "81", "a:81", "/", ""],
      "GET / HTTP/1.1\r\nHost: [::1]:81\r\n\r\n" => ["[::1]", "81", "[::1]:81", "/", ""],
      "GET / HTTP/1.1\r\nHost: [::1]\r\n\r\n" => ["[::1]", "80", "[::1]", "/", ""],
      "GET / HTTP/1.1\r\nHost:\r\n\r\n" => ["127.0.0.1", server.port.to_s, "", "/", ""],
      "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n" => ["127.0.0.1", server.port.to_s, nil, "/", ""],
      "GET http://A:80/b?c HTTP/1.1\r\nHost: a\r\n\r\n" => ["A", "80", "A:80", "/b", "c"],
      "GET http://a?c HTTP/1.1\r\nHost: a\r\n\r\n" => ["a", "80", "a", "/", "c"],
      "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n" => ["a", "80", "a", "/", ""]
    }.each { |bytes, expected| assert_equal expected.inspect, server.connect.send(bytes).answer.body, bytes }
  end

  def test_keys_of_rack_2_and_of_rack_3
    keys = %w[rack.version rack.hijack? rack.multithread rack.multiprocess rack.run_once rack.url_scheme]
    server = look({ multiprocess: false }) { |env| env.values_at(*keys) }
    assert_equal [[1, 3], true, false, false, false, "http"].inspect, server.get.body
    server = look({ rack_release: "3.1.0", url_scheme: "https" }, lint: false) do |env|
      [env.key?("rack.version"), env["rack.url_scheme"], env["HTTPS"], env["SERVER_PORT"], env["rack.protocol"], env["rack.hijack"].respond_to?(:call)]
    end
    answer = server.get("/", { "Connection" => "upgrade, close", "Upgrade" => "a, b" })
    assert_equal [false, "https", "on", "443", %w[a b], true].inspect, answer.body
  end

  def test_input_is_binary_rewindable_and_whole
    server = look do |env|
      input = env["rack.input"]
      [input.gets, input.read(2), input.read, input.read, input.read(1), input.rewind && input.read.size, input.each {} && 1]
    end
    body = "line\n\xff\x00rest".b
    assert_equal ["line\n".b, "\xff\x00".b, "rest".b, "".b, nil, 11, 1].inspect, server.get("/", method: "POST", body: body).body
    assert_equal [nil, nil, "", "", nil, 0, 1].inspect, server.get.body
  end

  def test_odd_but_usual_answers
    server = serve({}, lint: false) do |env|
      headers = Class.new { def each = yield(:"X-A", 1) }.new
      case env["PATH_INFO"]
      when "/each" then ["201", headers, ["a"]]
      when "/nil" then [200, { "X-A" => nil, "X-B" => "" }, ["a"]]
      when "/lines" then [200, { "Set-Cookie" => "a=1\nb=2", "X" => %w[1 2] }, ["a"]]
      when "/mixed" then [200, { "X" => [1, nil, :b] }, ["a"]]
      when "/frozen" then [200, {}.freeze, ["a"].freeze].freeze
      when "/longer" then [200, {}, ["a"], :more]
      end
    end
    client = server.connect
    get = ->(path) { client.send(request(path)).answer }
    assert_equal [201, "1", "a"], get.call("/each").then { |it| [it.status, it["x-a"], it.body] }
    assert_equal [nil, ""], get.call("/nil").then { |it| [it["x-a"], it["x-b"]] }
    assert_equal [%w[a=1 b=2], %w[1 2]], get.call("/lines").then { |it| [it.headers["set-cookie"], it.headers["x"]] }
    assert_equal ["1", "", "b"], get.call("/mixed").headers["x"]
    assert_equal "a", get.call("/frozen").body
    assert_equal "a", get.call("/longer").body
  end

  # Each of these is the application's mistake: 500, a line with the reason, and the next request is served.
  def test_answers_that_cannot_be_sent
    bad = {
      "/injection" => [[200, { "X" => "a\r\nSet-Cookie: b" }, ["a"]], /value of the header "X"/],
      "/nul" => [[200, { "X" => "a\0" }, ["a"]], /value of the header "X"/],
      "/array" => [[200, { "X" => ["a\rb"] }, ["a"]], /value of the header "X"/],
      "/name" => [[200, { "X: y\r\nZ" => "a" }, ["a"]], /header name/],
      "/empty" => [[200, { "" => "a" }, ["a"]], /header name/],
      "/length" => [[200, { "Content-Length" => "+5" }, ["hello"]], /Content-Length is/],
      "/status" => [[99, {}, ["a"]], /status is 99/],
      "/interim" => [[100, {}, ["a"]], /status is 100/],
      "/huge" => [[100_000, {}, ["a"]], /status is 100000; an Integer from 200 to 999 was expected/],
      "/below" => [[-1, {}, ["a"]], /status is -1;/],
      "/no-status" => [[nil, {}, ["a"]], /status is nil;/],
      "/word" => [["abc", {}, ["a"]], /status is "abc";/],
      "/nil" => [nil, /answered nil/],
      "/short" => [[200, {}], /answered \[200, \{\}\]/],
      "/headers" => [[200, 5, ["a"]], /undefined method `each'/],
      "/body" => [[200, {}, 5], /body is 5/]
    }
    server = serve({}, lint: false) { |env| bad[env["PATH_INFO"]]&.first }
    client = server.connect
    bad.each do |path, (_, expected)|
      answer = client.send(request(path)).answer
      assert_equal [500, "Internal Server Error\n"], [answer.status, answer.body], path
      assert_nil answer["set-cookie"]
      assert_match expected, server.errors, path
    end
  end

  def test_what_is_logged_of_an_answer_is_cut
    server = serve(lint: false) { |_env| "x" * 1_000_000 }
    assert_equal 500, server.get.status
    assert_match(/answered "x+\.\.\. \(a String\); \[status, headers, body\] was expected/, server.errors)
    assert_operator server.errors.bytesize, :<, 1000
  end

  def test_an_exception_is_a_500_with_its_backtrace_in_the_log
    server = serve { |_env| raise ArgumentError, "on purpose" }
    client = server.connect
    2.times { assert_equal 500, client.send(request).answer.status }
    assert_match(/native_rack_test\.rb:\d+:in .*on purpose \(ArgumentError\)/, server.errors)
    assert_equal ":stopped", server.stop
  end

  def test_an_exception_that_ends_the_process_leaves_the_loop
    server = serve(lint: false) { |_env| exit 3 }
    assert_equal 500, server.get.status
    assert_equal "SystemExit: exit", server.ended
    server = serve(lint: false) { |_env| raise Interrupt, "enough" }
    assert_equal 500, server.get.status
    assert_equal "Interrupt: enough", server.ended
  end

  # Bodies.

  # Counts its calls in a file that the test can read.
  class Body
    def initialize(log, parts)
      @log = log
      @parts = parts
    end

    def each
      @parts.each { |part| part.is_a?(Exception) ? raise(part) : yield(part) }
    end

    def close = File.write(@log, "closed\n", mode: "a")
  end

  def with_log
    Tempfile.create("closes") { |file| yield file.path }
  end

  def test_bodies_by_each
    server = serve do |env|
      headers = { "Content-Type" => "text/plain" }
      headers["Content-Length"] = "6" if env["PATH_INFO"] == "/length"
      [200, headers, ["ab", "", "cdef"].each]
    end
    client = server.connect
    answer = client.send(request).answer
    assert_equal ["abcdef", "chunked", nil], [answer.body, answer["transfer-encoding"], answer["content-length"]]
    answer = client.send(request("/length")).answer
    assert_equal ["abcdef", nil, "6"], [answer.body, answer["transfer-encoding"], answer["content-length"]]
    client = server.connect.send("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
    answer = client.answer
    assert_equal ["abcdef", nil, "close"], [answer.body, answer["transfer-encoding"], answer["connection"]]
  end

  def test_bodies_of_unknown_length_end_with_the_connection_when_chunks_are_off
    answer = serve({ chunked: false }) { |_env| [200, { "Content-Type" => "text/plain" }, %w[a b].each] }.connect.send(request).answer
    assert_equal ["ab", nil, "close"], [answer.body, answer["transfer-encoding"], answer["connection"]]
  end

  # Rhebok and others send it as to_s.
  def test_what_is_no_string_in_a_body_is_sent_as_one
    odd = ["a", nil, 5, :b, 1.5]
    server = serve(lint: false) do |env|
      case env["PATH_INFO"]
      when "/array" then [200, {}, odd]
      when "/each" then [200, {}, odd.each]
      when "/nil" then [200, {}, [nil]]
      when "/raises" then [200, {}, [Class.new { def to_s = raise("no text") }.new]]
      end
    end
    client = server.connect
    answers = %w[/array /each /nil /raises].map { |path| client.send(request(path)).answer }
    assert_equal ["a5b1.5", "a5b1.5", "", "Internal Server Error\n"], answers.map(&:body)
    assert_equal "6", answers[0]["content-length"]
    assert_match(/no text \(RuntimeError\)/, server.errors)
  end

  def test_an_array_has_a_length
    server = hello(lint: false)
    answer = server.get
    assert_equal ["11", nil], [answer["content-length"], answer["transfer-encoding"]]
    assert_equal "11", server.get(method: "HEAD")["content-length"]
  end

  def test_a_length_that_is_wrong
    server = serve(lint: false) do |env|
      body = env["QUERY_STRING"] == "each" ? ["hello"].each : ["hello"]
      [200, { "Content-Length" => env["PATH_INFO"].delete("/") }, body]
    end
    # An Array's length is known.
    client = server.connect
    %w[3 9].each { |length| assert_equal "hello", client.send(request("/#{length}")).answer.body }
    # For others it is known too late: excess is cut off, a short body closes the connection.
    client = server.connect.send(request("/3?each"))
    assert_equal "hel", client.answer.body
    assert client.closed?
    client = server.connect.send(request("/9?each"))
    assert_raises(EOFError) { client.answer }
    assert_equal 4, server.errors.scan(/Content-Length/).size
  end

  def test_the_application_may_frame_its_body_itself
    server = serve(lint: false) do |env|
      length = env["PATH_INFO"] == "/both" ? { "Content-Length" => "5" } : {}
      [200, { "Transfer-Encoding" => "chunked" }.merge(length), ["5\r\nhello\r\n", "0\r\n\r\n"]]
    end
    client = server.connect
    %w[/ /both].each do |path|
      answer = client.send(request(path)).answer
      assert_equal ["hello", nil, ["chunked"]], [answer.body, answer["content-length"], answer.headers["transfer-encoding"]]
    end
    answer = server.connect.send("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").tap(&:half_close).until_text("\r\n\r\n")
    assert_match(/^Connection: close\r$/, answer)
  end

  def test_the_applications_connection_field
    server = serve(lint: false) { |env| [200, { "Connection" => env["PATH_INFO"].delete("/") }, []] }
    client = server.connect
    assert_nil client.send(request("/keep-alive")).answer["connection"]
    assert_equal ["close"], client.send(request("/x,close")).answer.headers["connection"]
    assert client.closed?
  end

  def test_close_is_called_once_however_it_goes
    with_log do |log|
      server = serve(lint: false) do |env|
        body = Body.new(log, env["PATH_INFO"] == "/raise" ? ["a", RuntimeError.new("in the middle")] : %w[a b])
        case env["PATH_INFO"]
        when "/204" then [204, {}, body]
        when "/headers" then [200, { "X" => "\r\n" }, body]
        when "/status" then [0, {}, body]
        when "/early" then [200, {}, Body.new(log, [RuntimeError.new("before anything")])]
        when "/number" then [200, {}, Body.new(log, [5])]
        when "/hijack" then env["rack.hijack"].call.then { |io| io.close; [200, {}, body] }
        when "/partial" then [200, { "rack.hijack" => ->(io) { io.close } }, body]
        when "/short" then [200, { "Content-Length" => "5" }, body]
        when "/long" then [200, { "Content-Length" => "1" }, body]
        else [200, {}, body]
        end
      end
      %w[/ /204 /headers /status /early /raise /number /hijack /partial /short /long].each do |path|
        File.write(log, "")
        server.connect.send(request(path)).half_close.rest
        server.wait_for("close for #{path}") { File.read(log) != "" }
        server.get("/204") # whatever would come of it late comes before this one's
        server.wait_for("close for /204") { File.read(log).lines.size > 1 }
        assert_equal "closed\n" * 2, File.read(log), path
      end
      File.write(log, "")
      server.get("/", method: "HEAD")
      assert_equal ":stopped", server.stop
      assert_equal "closed\n", File.read(log)
    end
  end

  def test_an_exception_within_the_body
    server = serve(lint: false) do |env|
      parts = env["PATH_INFO"] == "/early" ? [RuntimeError.new("early")] : ["a" * 10, RuntimeError.new("late")]
      [200, {}, Body.new(File::NULL, parts)]
    end
    assert_equal 500, server.get("/early").status
    client = server.connect.send(request("/late"))
    rest = client.rest
    assert_equal 1, rest.scan("HTTP/1.1").size, "never a second status line"
    refute_includes rest, "0\r\n\r\n", "the client must see that it is incomplete"
    assert_match(/late \(RuntimeError\)/, server.errors)
  end

  def test_a_client_that_goes_away_ends_the_walk
    with_log do |log|
      server = serve(lint: false) do |_env|
        endless = Enumerator.new { |out| loop { out << ("x" * 10_000) } }
        endless.define_singleton_method(:close) { File.write(log, "closed\n", mode: "a") }
        [200, {}, endless]
      end
      client = server.connect.send(request)
      client.until_text("x" * 10_000)
      client.close
      server.wait_for("the body to be closed") { File.read(log) == "closed\n" }
      assert_equal ":stopped", server.stop
    end
  end

  def test_pieces_leave_when_they_are_given
    held, hold = IO.pipe
    server = serve { |_env| [200, { "Content-Type" => "text/plain" }, Enumerator.new { |out| out << "a"; held.read(1); out << "b" }] }
    client = server.connect.send(request)
    client.until_text("\r\n\r\n")
    assert_equal "1\r\na\r\n", client.until_bytes(6)
    hold.write("x")
    assert_equal "1\r\nb\r\n0\r\n\r\n", client.until_bytes(11)
  end

  def test_large_bodies
    part = "abcdefghij" * 10_000
    server = serve(lint: false) do |env|
      [200, {}, env["PATH_INFO"] == "/each" ? Array.new(50, part).each : Array.new(50, part)]
    end
    client = server.connect
    %w[/array /each /array].each { |path| assert client.send(request(path)).answer.body == part * 50, path }
  end

  # Files.

  class FileBody
    def initialize(path, parts = ["from each"]) = (@path, @parts = path, parts)
    def to_path = @path
    def each(&block) = @parts.each(&block)
  end

  def test_files_by_to_path
    Dir.mktmpdir do |folder|
      small, large, empty = %w[small large empty].map { |name| "#{folder}/#{name}" }
      File.write(small, "small")
      File.write(large, "0123456789" * 500_000)
      File.write(empty, "")
      server = serve({}, lint: false, tcp: true) do |env|
        path, length = env["QUERY_STRING"].split(",")
        [200, length ? { "Content-Length" => length } : {}, FileBody.new(path == "nil" ? nil : path)]
      end
      client = server.connect
      get = ->(what) { client.send(request("/?#{what}")).answer.body }
      2.times do
        assert_equal "small", get.call(small)
        assert get.call(large) == File.read(large)
        assert_equal "small", get.call("#{small},5")
      end
      # Bodies that are no file of that length serve themselves; so do files without a length (those of /proc say 0),
      # and a pipe, whose opening would wait for a writer.
      File.mkfifo("#{folder}/pipe")
      ["nil", "#{folder}/none", folder, "#{small},9", empty, "/proc/self/status", "#{folder}/pipe"].each do |what|
        assert_equal "from each", get.call(what), what
      end
      assert_equal "5", client.send("HEAD /?#{small},5 HTTP/1.1\r\nHost: a\r\n\r\n").answer("HEAD")["content-length"]
      # A slow reader of a file occupies no worker.
      slow = Array.new(3) { server.connect.send(request("/?#{large}")) }
      assert_equal "small", get.call(small)
      slow.each { |it| assert_equal 5_000_000, it.answer.body.bytesize }
      server.wait_for("the files to be closed") { Dir["/proc/#{server.pid}/fd/*"].none? { |fd| File.symlink?(fd) && File.readlink(fd) == large } }
    end
  end

  def test_a_file_that_is_cut_while_it_is_sent
    Dir.mktmpdir do |folder|
      path = "#{folder}/large"
      File.write(path, "x" * 10_000_000)
      server = serve(lint: false) { |_env| [200, {}, FileBody.new(path)] }
      client = server.connect.send(request)
      client.until_text("xxx")
      File.truncate(path, 1_000_000)
      assert_operator client.rest.bytesize, :<, 9_999_000
    end
  end

  # Arrays in disguise, as Rack 3 allows.
  def test_to_ary
    with_log do |log|
      wrapped = Class.new do
        define_method(:each) { |&block| block.call("by each") }
        define_method(:to_ary) { ["by ", "to_ary"] }
        define_method(:close) { File.write(log, "closed\n", mode: "a") }
      end
      server = serve(lint: false) { |_env| [200, {}, wrapped.new] }
      answer = server.get
      assert_equal ["by to_ary", "9"], [answer.body, answer["content-length"]]
      assert_equal ":stopped", server.stop
      assert_equal "closed\n", File.read(log), "Rack 2: to_ary does not close"
      File.write(log, "")
      server = serve({ rack_release: "3.0.0" }, lint: false) { |_env| [200, {}, wrapped.new] }
      assert_equal "by to_ary", server.get.body
      assert_equal ":stopped", server.stop
      assert_equal "", File.read(log), "Rack 3: to_ary has closed"
    end
  end
end
