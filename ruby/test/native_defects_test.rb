# frozen_string_literal: true

require_relative "native_support"

# Defects of Rhebok, which this server replaces; each test shows that it is absent here.
class NativeDefectsTest < Minitest::Test
  include NativeSupport

  def test_a_client_that_closes_or_stalls_within_the_body_does_not_make_the_worker_spin
    server = serve({ timeout_s: 0.1 }, lint: false) { |env| [200, {}, [env["rack.input"].read]] }
    head = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n"
    assert_equal 400, server.connect.send("#{head}\r\nhalf").half_close.answer.status
    assert_equal 408, server.connect.send("#{head}\r\nhalf").answer.status
    server.connect.send("#{head}\r\nhalf").close
    expecting = server.connect.send("#{head}Expect: 100-continue\r\n\r\n")
    assert_equal [100, 408], Array.new(2) { expecting.answer.status }
    assert_equal "all there", server.get("/", method: "POST", body: "all there").body
    # The waits above take 0.2 s; a spinning worker would have used as much CPU time.
    assert_equal ":stopped", server.stop
  end

  def test_bodies_of_more_pieces_than_one_write_takes_are_whole
    server = serve(lint: false) { |env| [200, {}, (1..env["QUERY_STRING"].to_i).map { |number| number.to_s.rjust(60) }] }
    client = server.connect
    [1023, 1024, 1025, 2048, 5000, 100_000].each do |pieces|
      assert client.send(request("/?#{pieces}")).answer.body == (1..pieces).map { |number| number.to_s.rjust(60) }.join, pieces.to_s
    end
  end

  def test_length_and_coding_together_and_repeated_are_refused
    server = serve(lint: false) { |env| [200, {}, [env["rack.input"].read]] }
    [
      "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
      "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
      "Content-Length: 5\r\nContent-Length: 5\r\n",
      "Content-Length: 5, 5\r\n",
      "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
      "Transfer_Encoding: chunked\r\nContent-Length: 5\r\n"
    ].each do |fields|
      client = server.connect.send("POST / HTTP/1.1\r\nHost: a\r\n#{fields}\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n")
      assert_equal 400, client.answer.status, fields
      client.half_close
      assert client.closed?, fields
    end
  end

  def test_header_names_that_begin_like_the_servers_own_are_kept
    names = { "D" => "1", "Da" => "2", "S" => "3", "Serv" => "4", "Con" => "5", "Connect" => "6", "Content" => "7", "Server" => "8" }
    answer = serve(lint: false) { |_env| [200, names, []] }.get
    names.each { |name, value| assert_equal value, answer[name.downcase], name }
    assert answer["date"]
  end

  def test_all_listeners_are_served_and_their_names_are_right
    unix, tcp = abstract_listener, tcp_listener
    app = ->(env) { [200, {}, [env.values_at("SERVER_NAME", "SERVER_PORT").join(" ")]] }
    pid = fork do
      worker = Oroshi::Native::Worker.new(app, listener_fds: [unix.fileno, tcp.fileno], scoreboard: Oroshi::Native::Scoreboard.new(1, 0),
                                               slot: 0, settings: {})
      trap("TERM") { worker.stop_now }
      worker.run
    ensure
      exit!
    end
    port = tcp.addr[1]
    ask = ->(socket) { Client.new(socket).send("GET / HTTP/1.0\r\n\r\n").answer.body }
    3.times do
      assert_equal "127.0.0.1 #{port}", ask.call(connection_to(tcp))
      assert_equal "localhost 80", ask.call(connection_to(unix))
    end
  ensure
    Process.kill("TERM", pid) && Process.wait(pid) if pid
    [unix, tcp].each { |listener| listener&.close }
  end

  def test_an_escape_at_the_end_of_the_path_is_left_alone
    server = serve(lint: false) { |env| [200, {}, [env["PATH_INFO"]]] }
    ["/%", "/%4", "/a%", "/%41", "/%zz"].each { |path| assert_equal path, server.get(path).body }
  end

  def test_names_with_underscores_do_not_stand_for_those_with_dashes
    server = serve(lint: false) { |env| [200, {}, [env["HTTP_X_FOO"].inspect]] }
    assert_equal '"real"', server.get("/", { "X-Foo" => "real", "X_Foo" => "spoofed" }).body
    assert_equal '"real"', server.get("/", { "X_Foo" => "spoofed", "X-Foo" => "real" }).body
    assert_equal "nil", server.get("/", { "X_Foo" => "spoofed" }).body
  end

  def test_204_and_304_have_no_body
    server = serve(lint: false) { |env| [env["PATH_INFO"].delete("/").to_i, {}, ["not to be sent"]] }
    client = server.connect
    [204, 304].each do |status|
      head = client.send(request("/#{status}")).until_text("\r\n\r\n")
      refute_match(/content-length|transfer-encoding/i, head)
    end
    assert_equal 200, client.send(request("/200")).answer.status
  end

  def test_an_application_that_closes_its_input_breaks_no_later_request
    server = serve(lint: false) do |env|
      env["rack.input"].close
      [200, {}, ["closed"]]
    end
    client = server.connect
    3.times { assert_equal "closed", client.send(request).answer.body }
    3.times { assert_equal "closed", client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc").answer.body }
    server = serve(lint: false) { |env| env["PATH_INFO"] == "/close" ? [200, {}, [env["rack.input"].close.inspect]] : [200, {}, [env["rack.input"].read]] }
    assert_equal ["nil", ""], [server.get("/close").body, server.get.body]
  end

  def test_other_threads_run_while_the_worker_waits
    server = serve(lint: false, in_child: ->(_) { Thread.new { loop { ($turns = $turns.to_i + 1) && sleep(0.001) } } }) { |_env| [200, {}, [$turns.to_s]] }
    server.wait_for("the thread") { server.get.body.to_i > 5 }
  end

  def test_an_application_that_forks_does_not_keep_connections_open
    held, hold = IO.pipe
    server = serve(lint: false) do |env|
      if env["PATH_INFO"] == "/fork"
        fork do
          hold.close
          held.read # until the test lets go
          exit!
        end
      end
      [200, {}, ["forked"]]
    end
    client = server.connect
    assert_equal 200, client.send(request("/fork", "Connection: close\r\n")).answer.status
    assert client.closed?, "the child has a copy of the socket"
    assert_equal 200, server.get.status
  ensure
    hold.close
    server&.stop
  end

  # `exit` in a child instead of `exit!`, or a `fork` without a block: the client is the parent's.
  def test_a_forked_child_that_comes_back_answers_nobody
    server = serve({ timeout_s: 1000.0 }, lint: false) do |env|
      child = lambda do
        exit(5) if env["PATH_INFO"].start_with?("/exit")
        raise "in the child" if env["PATH_INFO"].start_with?("/raise")
        [200, {}, ["from the child"]]
      end
      if env["PATH_INFO"].end_with?("/body")
        body = Enumerator.new do |out|
          (pid = fork) ? Process.wait(pid) && out << "from the parent" : child.call
        end
        next [200, {}, body]
      end
      pid = fork or next child.call
      Process.wait(pid)
      [200, {}, ["from the parent"]]
    end
    client = server.connect
    %w[/exit /raise /return /exit/body /raise/body /return/body].each do |path|
      answer = client.send(request(path)).answer
      assert_equal [200, "from the parent"], [answer.status, answer.body], path
    end
    came_back = server.errors.scan("in the child (RuntimeError)").size
    assert_equal 2, came_back, "what it died of is in the log"
    said = server.stop
    assert_equal 2, said.scan("SystemExit").size
    assert_equal 4, said.scan("came back into the server").size
    assert said.end_with?(":stopped"), said
  end

  # A million shapes of requests must not make the worker grow: a shape's values go with it.
  def test_values_of_header_shapes_that_were_given_up_are_let_go
    server = serve(lint: false) do |env|
      GC.start
      count = env["PATH_INFO"] == "/count" && ObjectSpace.each_object(String).count { |it| it.frozen? && it.encoding.ascii_compatible? && it.start_with?("a value of shape ") }
      [200, {}, [count.to_s]]
    end
    client = server.connect
    values = 20
    150.times do |shape|
      fields = (1..values).map { |field| "X-#{shape}-#{field}: a value of shape #{shape}, field #{field}\r\n" }.join
      # Once to be seen, once for the shape, once for the values.
      client.send(request("/", fields) * 3)
      3.times { client.answer }
    end
    counted = client.send(request("/count")).answer.body
    assert_match(/\A\d+\z/, counted, "the answer to another request")
    assert_includes (values..(64 * values)), counted.to_i
  end

  def test_running_out_of_descriptors_is_waited_out
    few = ->(_) { Process.setrlimit(:NOFILE, Dir["/proc/self/fd/*"].size + 5) }
    server = hello(lint: false, in_child: few)
    kept = []
    server.wait_for("the descriptors to run out") do
      kept << server.connect
      kept.last.send(request)
      server.errors.include?("no new connection can be taken: Too many open files")
    end
    lines = server.errors.lines.size
    assert_operator lines, :<, 3, "it does not spin"
    kept.each(&:close)
    assert_equal 200, server.get.status
  end
end
