# frozen_string_literal: true

require_relative "client_support"
require "zlib"

begin
  require "oroshi/client/faraday"
rescue LoadError
  nil # the tests say so
end

# The adapter of Faraday.
class ClientFaradayTest < ClientSupport::Test
  def setup
    super
    leave_out("the Faraday adapter", "Faraday is not installed (Debian: ruby-faraday)") unless defined?(Faraday::Adapter)
  end

  def connection(url, faraday = {}, **options)
    Faraday.new(url, **faraday) { |builder| builder.adapter :oroshi, **options }.tap { |made| (@connections ||= []) << made }
  end

  def teardown
    @connections&.each(&:close)
    super
  end

  def test_requests
    server = server { |request| request.answer([*request.to_a[1, 2], request.headers["x-own"], request.body].join(" "), X_Seen: "1") }
    api = connection(server.url("/api/"))
    response = api.get("users", { page: 2 }, "X-Own" => "a")
    assert_equal [200, "GET /api/users?page=2 a ", "1", "Whatever"],
                 [response.status, response.body, response.headers["X-Seen"], response.reason_phrase]
    assert_equal "POST /api/users  a=1", api.post("users", "a=1").body
    assert_equal "PUT /api/x  text", api.put("x") { |request| request.body = "text" }.body
    assert_equal "", api.head("x").body
    assert_equal 404, connection(server { |request| request.answer("", status: 404) }.url).get("/").status
    pieces = []
    api.get("x") { |request| request.options.on_data = ->(chunk, size) { pieces << [chunk, size] } }
    assert_equal [["GET /api/x  ", 12]], pieces
    status = nil
    api.head("x") { |request| request.options.on_data = proc { |*given| status = [given.size, *given.first(2)] } }
    assert_equal [3, "", 0], status
    assert_equal 200, api.get("x", nil, "Connection" => "close").status
  end

  def test_redirects_and_codings
    packed = Zlib.gzip("hello")
    server = server do |request|
      next request.answer("", status: 302, Location: "/other") if request.target == "/"

      request.answer(packed, Content_Encoding: "gzip")
    end
    api = connection(server.url)
    assert_equal 302, api.get("/").status
    response = api.get("/packed")
    assert_equal ["hello", nil], [response.body, response.headers["Content-Encoding"]]
  end

  def test_failures
    error = assert_raises(Faraday::ConnectionFailed) { connection("http://127.0.0.1:#{closed_port}/").get("/") }
    assert_kind_of Oroshi::Client::ConnectError, error.wrapped_exception
    server = server { |request| request.target == "/cut" ? request.socket.close : sleep }
    assert_raises(Faraday::ConnectionFailed) { connection(server.url).get("/cut") }
    [{ timeout: 0.05 }, { read_timeout: 0.05 }].each do |times|
      assert_raises(Faraday::TimeoutError, times) { connection(server.url, { request: times }).get("/") }
    end
    assert_raises(ArgumentError) { connection(server.url, nonsense: 1).get("/") }
  end

  def test_options_of_faraday
    proxy = server { |request| request.answer("#{request.target} #{request.headers["proxy-authorization"]}") }
    api = connection("http://server.invalid/", { proxy: "http://me:pass@127.0.0.1:#{proxy.port}" })
    assert_equal "http://server.invalid/a Basic #{["me:pass"].pack("m0")}", api.get("a").body
    error = assert_raises(ArgumentError) { connection("https://server.invalid/", { ssl: { ca_path: "/x" } }).get("/") }
    assert_match(/\Assl: ca_path: /, error.message)
  end

  def test_tls
    key = OpenSSL::PKey::EC.generate("prime256v1")
    certificate = self_signed(key)
    context = OpenSSL::SSL::SSLContext.new.tap { |made| made.add_certificate(certificate, key) }
    tcp = Common.tcp_listener
    listener = OpenSSL::SSL::SSLServer.new(tcp, context).tap { |made| made.start_immediately = false }
    server(listener)
    url = "https://127.0.0.1:#{tcp.addr[1]}/"
    assert_raises(Faraday::SSLError) { connection(url).get("/x") }
    assert_equal "/x", connection(url, { ssl: { ca_file: file("ca.pem", certificate.to_pem) } }).get("/x").body
    assert_equal "/x", connection(url, { ssl: { verify: false } }).get("/x").body
  end

  def self_signed(key)
    OpenSSL::X509::Certificate.new.tap do |made|
      made.version = 2
      made.subject = made.issuer = OpenSSL::X509::Name.new([%w[CN x]])
      made.not_before, made.not_after = Time.now - 3600, Time.now + 3600
      made.public_key = key
      made.add_extension(OpenSSL::X509::ExtensionFactory.new.create_extension("subjectAltName=IP:127.0.0.1"))
      made.sign(key, "SHA256")
    end
  end
end
