# frozen_string_literal: true

require_relative "client_support"

begin
  require "webmock"
  require "oroshi/client/webmock"
rescue LoadError
  nil # the tests say so
end

# WebMock answers the client's requests.
class ClientWebMockTest < ClientSupport::Test
  C = Oroshi::Client
  include WebMock::API if defined?(WebMock::API)

  def setup
    super
    leave_out("WebMock", "WebMock is not installed (Debian: ruby-webmock)") unless defined?(C::WebMockHook)
    WebMock.enable!
    WebMock.disable_net_connect!
  end

  def teardown
    if defined?(C::WebMockHook)
      WebMock.reset!
      WebMock.allow_net_connect!
    end
    super
  end

  def test_stubs
    stub = stub_request(:post, "https://api.example/users?page=2")
           .with(body: { a: 1 }.to_json, headers: { "X-Key" => "k", "X-Client" => "c" })
           .to_return(status: [201, "Made"], body: "[1]", headers: { "Content-Type" => "application/json", "X" => %w[a b] })
    client = client(base_url: "https://api.example/", headers: { "X-Client" => "c" })
    response = client.post("users", query: { page: 2 }, json: { a: 1 }, headers: { "X-Key" => "k" })
    assert_equal [201, "Made", [1], %w[a b]], [response.status, response.reason, response.json, response.headers.all("X")]
    assert_equal "https://api.example/users", response.url
    assert_equal 1, WebMock::RequestRegistry.instance.times_executed(stub.request_pattern)
    assert_raises(WebMock::NetConnectNotAllowedError) { client.get("other") }
  end

  def test_failures
    stub_request(:get, "http://a.example/slow").to_timeout
    stub_request(:get, "http://a.example/broken").to_raise(C::ConnectError)
    stub_request(:get, "http://a.example/missing").to_return(status: 404)
    client = client(raise_for_status: true)
    assert_raises(C::FirstByteTimeout) { client.get("http://a.example/slow") }
    assert_raises(C::ConnectError) { client.get("http://a.example/broken") }
    assert_equal 404, assert_raises(C::StatusError) { client.get("http://a.example/missing") }.status
  end

  def test_fetch_all
    stub_request(:get, %r{\Ahttp://a.example/}).to_return { |request| { body: request.uri.path } }
    stub_request(:get, "http://a.example/broken").to_timeout
    urls = %w[1 broken 2].map { |path| "http://a.example/#{path}" }
    assert_equal [C::Response, C::FirstByteTimeout, C::Response], client.fetch_all(urls).map(&:class)
    seen = []
    assert_equal 3, client.fetch_all(urls) { |result, url| seen << [result.failed?, url] }
    assert_equal urls.zip([false, true, false]).map(&:reverse), seen
  end

  def test_real_requests_where_they_are_allowed
    server = server()
    assert_raises(WebMock::NetConnectNotAllowedError) { client.get(server.url) }
    WebMock.disable_net_connect!(allow_localhost: true)
    told = []
    WebMock.after_request { |signature, response| told << [signature.uri.path, response.body] }
    assert_equal "/real", client.get(server.url("/real")).body
    assert_equal [["/real", "/real"]], told
    echo = server { |request| request.answer(request.body, status: 418) }
    assert_equal "text", client.post(echo.url, body: StringIO.new("text")).body
    assert_match(/file's/, client.post(echo.url, form: { f: StringIO.new("file's") }).body)
    assert_raises(C::StatusError) { client.post(echo.url, body: "x", raise_for_status: true) }
    assert_equal "x", told.last.last
    body = +""
    client.post(echo.url, body: "pieces") { |piece| body << piece }
    assert_equal %w[pieces pieces], [body, told.last.last]
    WebMock.disable!
    assert_equal "text", client.post(echo.url, body: StringIO.new("text")).body
    assert_equal "/off", client.get(server.url("/off")).body
  end

  def test_unix_sockets_are_none_of_its_business
    path = File.join(@dir, "app.sock")
    server(UNIXServer.new(path))
    assert_equal "/x", client.get("unix:#{path}:/x").body
  end
end
