# frozen_string_literal: true

require_relative "native_support"

# Around an answer: early hints before it, callbacks behind it, clients that have gone before it.
class NativeAfterTest < Minitest::Test
  include NativeSupport

  # The callbacks write to a pipe, whose reading end is the test's.
  def serve_telling(settings = {}, **options)
    told, tell = IO.pipe
    tell.sync = true
    server = serve(settings, lint: false, **options) { |env| yield env, tell }
    tell.close
    [server, told]
  end

  def test_after_reply_runs_when_the_answer_is_sent
    gate, open = IO.pipe
    server, told = serve_telling do |env, tell|
      env["rack.after_reply"] << -> { tell.puts("first") && gate.read(1) } << -> { tell.puts("second") } if env["PATH_INFO"] == "/late"
      [200, {}, ["hello"]]
    end
    client = server.connect
    assert_equal "hello", client.send(request("/late")).answer.body, "though its callback still waits"
    assert_equal "first\n", told.gets
    client.send(request)
    open.write("x")
    assert_equal "second\n", told.gets
    assert_equal "hello", client.answer.body
    server.stop
    assert_nil told.gets, "each runs once"
  end

  def test_response_finished_is_called_in_reverse_with_the_answer
    server, told = serve_telling do |env, tell|
      2.times do |n|
        env["rack.response_finished"] << lambda do |its, status, headers, error|
          tell.puts([n, its.equal?(env), its["PATH_INFO"], status, headers, error.class].inspect)
        end
      end
      raise "oh" if env["PATH_INFO"] == "/raise"

      [201, { "x" => "1" }, ["hello"]]
    end
    assert_equal 201, server.get("/a").status
    assert_equal [[1, true, "/a", 201, { "x" => "1" }, NilClass], [0, true, "/a", 201, { "x" => "1" }, NilClass]].map(&:inspect),
                 Array.new(2) { told.gets.chomp }
    assert_equal 500, server.get("/raise").status
    assert_equal [1, true, "/raise", nil, nil, RuntimeError].inspect, told.gets.chomp
  end

  def test_a_callback_that_raises_stops_no_other
    server, told = serve_telling do |env, tell|
      env["rack.after_reply"] << -> { raise "in the callback" } << nil << -> { tell.puts("others run") }
      [200, {}, ["hello"]]
    end
    assert_equal "hello", server.get.body
    assert_equal "others run\n", told.gets
    assert_equal "hello", server.get.body
    assert_match(/in the callback \(RuntimeError\)/, server.errors)
    assert_match(/undefined method `call' for nil/, server.errors)
  end

  def test_callbacks_run_behind_every_kind_of_answer
    server, told = serve_telling do |env, tell|
      env["rack.after_reply"] << -> { tell.puts(env["PATH_INFO"]) }
      case env["PATH_INFO"]
      when "/each" then [200, {}, %w[a b].each]
      when "/file" then [200, {}, File.open(__FILE__)]
      when "/hijack" then env["rack.hijack"].call.tap { |io| io.write("raw") && io.close } && [200, {}, []]
      when "/call" then [200, {}, ->(stream) { stream.write("a") && stream.close }]
      when "/bad" then [99, {}, []]
      else [200, {}, []]
      end
    end
    %w[/ /each /file /call /bad /hijack].each do |path|
      server.connect.send(request(path, "Connection: close\r\n")).rest
      assert_equal "#{path}\n", told.gets
    end
  end

  def hints(**settings)
    serve({ early_hints: true }.merge(settings), lint: false) do |env|
      said = begin
        env["rack.early_hints"]&.call("link" => "</a.css>; rel=preload\n</b.js>; rel=preload", "x" => ["1"])
        "sent"
      rescue StandardError => e
        "#{e.class}: #{e.message}"
      end
      $hints, before = env["rack.early_hints"], $hints
      late = before && begin
        before.call({})
      rescue IOError => e
        e.message
      end
      [200, {}, ["#{said} #{env.key?("rack.early_hints")} #{late.inspect}"]]
    end
  end

  def test_early_hints
    client = hints.connect.send(request)
    hint = client.answer
    assert_equal [103, ["</a.css>; rel=preload", "</b.js>; rel=preload"], ["1"]], [hint.status, hint.headers["link"], hint.headers["x"]]
    assert_equal "HTTP/1.1 103 Early Hints", hint.head.lines(chomp: true).first
    assert_equal [200, "sent true nil"], client.answer.then { |it| [it.status, it.body] }
    client.send(request)
    assert_equal 103, client.answer.status
    assert_match(/\Asent true "rack.early_hints cannot be called any more: its request is over"/, client.answer.body)
  end

  # An HTTP/1.0 client would take them for the answer (RFC 9110 section 15.2). And they are an option.
  def test_no_early_hints_for_old_clients_nor_by_default
    assert_equal "sent false nil", hints.connect.send("GET / HTTP/1.0\r\n\r\n").answer.body
    assert_equal "sent false nil", hints(early_hints: false).get.body
  end

  def test_early_hints_that_cannot_be_sent
    server = serve({ early_hints: true }, lint: false) do |env|
      said = begin
        env["rack.early_hints"].call("a b" => "1")
      rescue ArgumentError => e
        e.message
      end
      [200, {}, [said]]
    end
    assert_match(/\Arack\.early_hints: the header name "a b" is not a token/, server.get.body)
  end

  # The client leaves while its request waits for the worker.
  def test_clients_that_have_gone_are_dropped
    called, call = IO.pipe
    gate, open = IO.pipe
    Dir.mktmpdir do |folder|
      log = File.open("#{folder}/log", "a")
      server = serve({ check_client_connection: true, log_format: :common, log_fd: log.fileno }, lint: false) do |env|
        call.write("#{env["PATH_INFO"]}\n")
        gate.read(1) if env["PATH_INFO"] == "/held"
        [200, {}, ["hello"]]
      end
      held = server.connect.send(request("/held"))
      assert_equal "/held\n", called.gets
      server.connect.send(request("/gone")).close
      server.connect.send(request("/gone", "Connection: close\r\n")).close
      open.write("x")
      assert_equal "hello", held.answer.body
      assert_equal "hello", server.get("/next").body
      assert_equal "/next\n", called.gets
      server.stop
      assert_equal 2, File.read("#{folder}/log").scan(%r{"GET /gone HTTP/1\.1" 499 0$}).size
    end
  end
end
