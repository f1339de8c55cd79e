# frozen_string_literal: true

require_relative "support"
require "oroshi/push"

# Oroshi::Push against a real hub, whose callbacks this gem's server answers.
class PushTest < Support::Test
  APP = <<~'APP'
    require "oroshi/push"
    run(Oroshi::Push::Callbacks.new(secret: "of-the-callbacks") do |on|
      on.connect do |client|
        next client.refuse(401, "who are you?") unless (name = client.params["name"])

        client.accept(session: "key of #{name}", user: name, groups: ["room"], rights: { "chat:*" => %w[subscribe publish] },
                      message: "welcome, #{client.cookies["c"]}")
      end
      on.establish { |session| session != "key of eve" }
      on.receive { |session, message| warn "received from #{session}: #{message} #{message.id.inspect} #{message.binary?}" }
      on.close { |session| warn "closed: #{session}" }
    end)
  APP

  def setup
    super
    @oroshi = oroshi_command("Oroshi::Push")
  end

  # Starts a hub with a token. callbacks: lines of its [callbacks].
  def hub(callbacks = "", more = "")
    file("token", "of-the-hub")
    config = file("push.toml", <<~TOML)
      [listen]
      public = "unix:#{@dir}/public"
      admin = "unix:#{@dir}/admin"
      [auth]
      token-file = "#{@dir}/token"
      [callbacks]
      #{callbacks}
      #{more}
    TOML
    @hub = start(@oroshi, "push", "--config", config)
    wait_until("the hub") { File.socket?("#{@dir}/admin") && File.socket?("#{@dir}/public") }
    @push = Oroshi::Push.new("unix:#{@dir}/admin", token: "of-the-hub")
  end

  def hub_with_callbacks
    @backend = serve(app: APP)
    at = ->(name) { "#{name} = \"unix:#{socket_path}:/#{name}\"" }
    hub("#{%w[connect establish receive close].map(&at).join("\n")}\nheaders = { Authorization = \"Bearer of-the-callbacks\" }")
  end

  # A client that receives a stream: a line for each message.
  def listener(query = "")
    socket = UNIXSocket.new("#{@dir}/public")
    socket.write("GET /connect?transport=sse#{query} HTTP/1.1\r\nHost: localhost\r\nCookie: c=biscuit\r\n\r\n")
    (@sockets ||= []) << socket
    socket
  end

  def teardown
    @push&.close
    @sockets&.each(&:close)
    super
  end

  # Reads until a line matches; returns the match.
  def line(socket, pattern)
    Common.within("a line like #{pattern.inspect}") do
      while (text = socket.gets)
        found = text.match(pattern) and return found
      end
    end
    flunk "the stream ended without #{pattern.inspect}"
  end

  def test_publish_and_sessions
    hub("", "[limits]\nclose = \"100ms\"")
    client = listener
    key = line(client, /"session":"(\h+)"/)[1]
    assert_equal true, @push.join(key, "news/of, the\u{FC} day")
    assert_equal [1, 1, true, true], @push.publish("h\u{EB}llo", group: "news/of, the\u{FC} day", wait: :written, deadline: 5)
                                           .then { |receipt| [receipt.matched, receipt.written, receipt.whole?, receipt.written_to_all?] }
    line(client, /^data: h\xC3\xABllo$/n)
    @push.publish({ "n" => [1, nil] }, session: key)
    line(client, /^data: {"n":\[1,null\]}$/)
    @push.publish("\xFF\0".b, all: true)
    line(client, /^data: #{["\xFF\0".b].pack("m0")}$/)
    @push.publish(nil, sessions: [key])
    line(client, /^data: null$/)
    receipt = @push.publish("x", sessions: [key, "nobody"], except: key)
    assert_equal [0, ["nobody"], false], [receipt.matched, receipt.unknown, receipt.written_to_all?]
    assert_equal "sse", @push.session(key)["transport"]
    assert_equal 1, @push.group("news/of, the\u{FC} day").values.grep(Integer).first
    assert @push.leave(key, "news/of, the\u{FC} day")
    assert_equal 0, @push.publish("x", group: "news/of, the\u{FC} day").matched
    assert_equal [true, false], [@push.disconnect(key, code: 4000, reason: "enough"), @push.disconnect("nobody")]
    wait_until("its end") { @push.session(key).nil? }
    assert_equal [false, false, nil], [@push.join("nobody", "a"), @push.leave("nobody", "a"), @push.session("nobody")]
    assert_kind_of Hash, @push.status
  end

  def test_refusals_and_mistakes
    hub("", "[limits]\npublish-bytes = 10")
    error = assert_raises(Oroshi::Push::Error) { @push.publish("x" * 11, all: true) }
    assert_equal ["too-large", 413], [error.name, error.status]
    stranger = Oroshi::Push.new("unix:#{@dir}/admin")
    error = assert_raises(Oroshi::Push::Error) { stranger.status }
    assert_equal ["unauthorized", 401], [error.name, error.status]
    stranger.close
    { {} => /whom to reach/, { group: 7 } => /groups: expected Strings/, { all: true, wait: :soon } => /wait: expected :queued/,
      { all: true, deadline: 301 } => /deadline: expected seconds/, { all: true, deadline: "2s" } => /deadline/, { all: true, ttl: -1 } => /ttl: expected seconds/ }.each do |options, why|
      assert_match why, assert_raises(ArgumentError, options) { @push.publish("x", **options) }.message
    end
    refute_match(/of-the-hub/, @push.inspect)
    assert_raises(Oroshi::Client::ConnectError) { Oroshi::Push.new("unix:#{@dir}/nobody").status }
  end

  def test_callbacks
    hub_with_callbacks
    refused = Support::Client.unix("#{@dir}/public") { |client| client.get("/connect?transport=sse") }
    assert_equal [401, "who are you?"], [refused.status, refused.body]
    ann = listener("&name=ann")
    line(ann, /^data: welcome, biscuit$/)
    assert_equal 1, @push.publish("hello", group: "room").written
    line(ann, /^data: hello$/)
    assert @push.session("key of ann")["groups"].include?("room")
    receipts = Array.new(2) { @push.publish("once", user: "ann", ttl: 60, idempotency_key: "order 66") }
    assert_equal [1, receipts[0]], [receipts[0].written, receipts[1]]
    line(ann, /^data: once$/)
    @push.publish("next", users: %w[ann nobody])
    line(ann, /^data: (.*)$/).then { |found| assert_equal "next", found[1] }
    assert_equal 0, @push.disconnect_user("nobody")
    eve = listener("&name=eve")
    line(eve, /^0\r$/) # the end of the response: the backend does not want the session
    ann.close
    @backend.wait_for(/^closed: key of ann$/)
  end

  def test_messages_of_clients
    hub_with_callbacks
    socket = UNIXSocket.new("#{@dir}/public")
    (@sockets ||= []) << socket
    socket.write("GET /connect?name=bob HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n" \
                 "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n")
    line(socket, /^HTTP\/1.1 101/)
    mask = [1, 2, 3, 4]
    frame = lambda do |opcode, text|
      bytes = text.bytes.each_with_index.map { |byte, n| byte ^ mask[n % 4] }
      socket.write([0x80 | opcode, 0x80 | bytes.size, *mask, *bytes].pack("C*"))
    end
    frame.call(1, "h\u{EB}llo")
    @backend.wait_for(/^received from key of bob: h\xC3\xABllo "[^"]+" false$/n)
    frame.call(2, "raw")
    @backend.wait_for(/^received from key of bob: raw "[^"]+" true$/)
  end

  # Without a server in between.
  def test_the_application_of_callbacks
    app = Oroshi::Push::Callbacks.new(secret: "s") do |on|
      on.connect { |client| client.accept(groups: client.params["g"]&.split("|") || [], user: client.params["u"]) }
      on.close { |_session| nil }
    end
    ask = lambda do |path, query = "", **env|
      app.call({ "PATH_INFO" => path, "QUERY_STRING" => query, "REQUEST_METHOD" => "POST", "HTTP_AUTHORIZATION" => "Bearer s" }.merge(env.transform_keys(&:to_s)))
    end
    assert_equal 401, ask.call("/connect", HTTP_AUTHORIZATION: "Bearer t")[0]
    assert_equal 401, ask.call("/connect", HTTP_AUTHORIZATION: nil)[0]
    assert_equal [404, 400, 405, 200], [ask.call("/receive")[0], ask.call("/close")[0], ask.call("/close", REQUEST_METHOD: "GET")[0],
                                        ask.call("/close", HTTP_X_KUIPERBELT_SESSION: "k")[0]]
    status, fields, = ask.call("/connect", "g=a|b&u=ann")
    assert_equal [200, "a, b", "ann"], [status, fields["x-oroshi-groups"], fields["x-oroshi-user"]]
    assert_match(/\A\h{32}\z/, fields["x-kuiperbelt-session"])
    assert_raises(ArgumentError) { ask.call("/connect", "g=a,b") }
    assert_raises(ArgumentError) { ask.call("/connect", "u=a%0d%0ax:y") }
    assert_raises(ArgumentError) { Oroshi::Push::Callbacks.new(secret: "") {} }
  end
end
