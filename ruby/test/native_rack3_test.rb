# frozen_string_literal: true

require_relative "native_support"

# The rules of Rack 3 (its SPEC), as a server must keep them towards applications, without that gem.
class NativeRack3Test < Minitest::Test
  include NativeSupport

  def serve3(&app) = serve({ rack_release: "3.1.0" }, lint: false, &app)

  def test_the_environment
    server = serve3 do |env|
      strings = %w[REQUEST_METHOD SCRIPT_NAME PATH_INFO QUERY_STRING SERVER_NAME SERVER_PROTOCOL SERVER_PORT rack.url_scheme]
      problems = []
      problems << "a Hash of its own, not frozen" if env.frozen? || !env.instance_of?(Hash)
      strings.each { |key| problems << key unless env[key].is_a?(String) }
      problems << "HTTP_CONTENT_TYPE" if env.key?("HTTP_CONTENT_TYPE") || env.key?("HTTP_CONTENT_LENGTH")
      problems << "keys of Rack 2" if env.key?("rack.version")
      problems << "port" unless env["SERVER_PORT"].match?(/\A\d+\z/)
      problems << "REQUEST_METHOD" unless env["REQUEST_METHOD"].match?(/\A[A-Z]+\z/)
      problems << "PATH_INFO" unless env["PATH_INFO"].start_with?("/") || env["PATH_INFO"] == "*"
      problems << "rack.errors" unless %i[puts write flush].all? { |name| env["rack.errors"].respond_to?(name) }
      problems << "rack.input" unless %i[gets each read].all? { |name| env["rack.input"].respond_to?(name) }
      problems << "rack.hijack" unless env["rack.hijack?"] && env["rack.hijack"].respond_to?(:call)
      problems << "rack.response_finished" unless env["rack.response_finished"].instance_of?(Array)
      env.each { |key, value| problems << key unless key.include?(".") || value.is_a?(String) }
      [200, {}, [problems.inspect]]
    end
    assert_equal "[]", server.get("/a?b", { "Content-Type" => "text/x", "X-A" => "1" }, method: "POST", body: "hello").body
    assert_equal "[]", server.connect.send("OPTIONS * HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").answer.body
  end

  # Reading again is not asked for, but reading to the end is.
  def test_input
    server = serve3 { |env| [200, {}, [env["rack.input"].read(3), env["rack.input"].read, env["rack.input"].read(1).inspect]] }
    assert_equal "hellonil", server.get("/", method: "POST", body: "hello").body
  end

  def test_headers_with_several_values_are_arrays
    server = serve3 { |_env| [200, { "set-cookie" => %w[a=1 b=2], "x" => "1" }, ["ok"]] }
    answer = server.get
    assert_equal [%w[a=1 b=2], ["1"]], answer.headers.values_at("set-cookie", "x")
  end

  # A value with a line end would be a header of the client's making.
  def test_control_characters_are_refused
    ["a\rb: c", "a\0"].each do |value|
      server = serve3 { |_env| [200, { "x" => value }, ["ok"]] }
      assert_equal 500, server.get.status
    end
  end

  # An enumerable body: `each` once, then `close` once, also after an error.
  def test_bodies_are_closed_once
    told, tell = IO.pipe
    body = Class.new do
      define_method(:initialize) { |fails| @fails = fails }
      define_method(:each) { |&block| block.call("a").then { @fails ? raise("in the body") : block.call("b") } }
      define_method(:close) { tell.puts("closed") }
    end
    server = serve3 { |env| [200, {}, body.new(env["PATH_INFO"] == "/fail")] }
    assert_equal "ab", server.get.body
    refute_match(/0\r\n\r\n\z/, server.connect.send(request("/fail")).rest)
    server.connect.send("HEAD / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").rest
    server.stop
    tell.close
    assert_equal "closed\n" * 3, told.read
  end

  # `each` comes before `call`, where a body has both.
  def test_each_before_call
    body = Class.new { def each = yield("each") && nil
                       def call(stream) = stream.write("call") && stream.close }
    server = serve3 { |_env| [200, {}, body.new] }
    assert_equal "each", server.get.body
  end

  # A body that responds to `to_path` is that file; a path of nil is none.
  def test_to_path
    body = Struct.new(:path) do
      def to_path = path
      def each = yield("by each")
    end
    server = serve3 { |env| [200, {}, body.new(env["PATH_INFO"] == "/file" ? __FILE__ : nil)] }
    assert_equal File.binread(__FILE__), server.get("/file").body
    assert_equal "by each", server.get("/none").body
  end

  # A streaming body reads and writes, half-closes, and may end in another thread.
  def test_streaming_bodies_go_both_ways
    server = serve3 do |_env|
      [200, {}, lambda { |stream|
        Thread.new do
          while (word = stream.read(4))
            stream.write(word.upcase)
            stream.flush
          end
          stream.close_write
          stream.close
        end
      }]
    end
    client = server.connect.send(request)
    client.until_text("\r\n\r\n")
    assert_equal "4\r\nPING\r\n", client.send("ping").until_bytes(9)
    assert_equal "4\r\nPONG\r\n0\r\n\r\n", client.send("pong").half_close.rest
  end

  # `rack.hijack` in the answer's headers: with a status, instead of the body, which is closed all the same.
  def test_partial_hijack_replaces_the_body
    told, tell = IO.pipe
    body = Class.new { define_method(:each) { |&block| block.call("never") }
                       define_method(:close) { tell.puts("closed") } }
    server = serve3 { |_env| [200, { "rack.hijack" => ->(stream) { stream.write("taken").then { stream.close } } }, body.new] }
    assert_match(/\r\n\r\ntaken\z/, server.connect.send(request).rest)
    assert_equal "closed\n", told.gets
  end
end
