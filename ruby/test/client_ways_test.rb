# frozen_string_literal: true

require_relative "client_support"
require "uri"

# Where requests go, and what becomes of their answers: base_url, proxies, retries, raise_for_status.
class ClientWaysTest < ClientSupport::Test
  C = Oroshi::Client

  def test_base_url
    server = server()
    { server.url("/v1") => { "users?page=2" => "/v1/users?page=2", "/users" => "/users", "" => "/v1/", "../x" => "/x" },
      server.url("/v1/") => { "users" => "/v1/users", "?a" => "/v1/?a", "//127.0.0.1:1/x" => nil, "/\\127.0.0.1:1/x" => nil },
      URI(server.url) => { "a:b" => nil, "a/b" => "/a/b", server.url("/whole") => "/whole" } }.each do |base, cases|
      client = client(base_url: base)
      cases.each do |url, target|
        next assert_raises(C::RequestError, url) { client.get(url) } unless target

        assert_equal target, client.get(url).body
        assert_equal [target], client.fetch_all([url]).map(&:body)
      end
    end
    assert_equal "/v1/a?b=1", client(base_url: server.url("/v1")).get("a", query: { b: 1 }).body
  end

  def test_base_url_at_a_unix_socket
    path = File.join(@dir, "app.sock")
    server(UNIXServer.new(path))
    client = client(base_url: "unix:#{path}:/api")
    assert_equal %w[/api/users /other], [client.get("users").body, client.get("/other").body]
  end

  def test_mistakes_of_base_url
    [1, "example.org/", "/path", ["http://h/"], "", "http://h/?key=secret", "http://h/#x"].each do |wrong|
      error = assert_raises(ArgumentError, wrong.inspect) { client(base_url: wrong) }
      assert_match(/\Abase_url: expected a URL with a scheme/, error.message)
    end
    error = assert_raises(ArgumentError) { client(base_url: "ftp://me:secret@h/") }
    assert_match(/\Abase_url: /, error.message)
    refute_match(/secret/, error.message)
  end

  def test_raise_for_status
    server = server { |request| request.answer("why", status: request.target[1..].to_i) }
    client = client(raise_for_status: true)
    assert_equal [200, 304], [200, 304].map { |status| client.get(server.url("/#{status}")).status }
    [404, 503].each do |status|
      error = assert_raises(C::StatusError) { client.get(server.url("/#{status}?key=hidden")) }
      assert_equal [status, "why", :status, "status-#{status}"], [error.status, error.response.body, error.phase, error.name]
      assert_equal "#{server.url("/#{status}")}: status #{status} Whatever", error.message
      assert_kind_of C::Error, error
      assert error.failed? && !error.retry_safe? && !error.timeout?
      assert_equal status, client.get(server.url("/#{status}"), raise_for_status: false).status
    end
    plain = self.client
    assert_raises(C::StatusError) { plain.get(server.url("/500"), raise_for_status: true) }
    assert_raises(C::StatusError) { plain.get(server.url("/500")).raise_for_status }
    assert_equal 200, plain.get(server.url("/200")).raise_for_status.status
  end

  def test_raise_for_status_in_fetch_all
    server = server { |request| request.answer("", status: request.target[1..].to_i) }
    urls = [200, 404].map { |status| server.url("/#{status}") }
    assert_equal [C::Response, C::StatusError], client(raise_for_status: true).fetch_all(urls).map(&:class)
    assert_equal [C::Response, C::Response], client.fetch_all(urls).map(&:class)
    assert_equal [C::Response, C::StatusError], client.fetch_all(urls, raise_for_status: true).map(&:class)
    own = { url: urls.last, raise_for_status: true }
    assert_equal [C::StatusError, C::Response], client.fetch_all([own, urls.last]).map(&:class)
    other = { url: urls.last, raise_for_status: false }
    assert_equal [C::Response], client(raise_for_status: true).fetch_all([other]).map(&:class)
  end

  # Whatever way it takes.
  def test_retries_are_counted_over_redirects
    count = 0
    server = server do |request|
      (count += 1) % 3 == 0 ? request.answer("", status: 302, Location: "/#{count}") : request.answer("", status: 503)
    end
    assert_equal 503, client(retries: 3, retry_wait: 0).get(server.url).status
    assert_equal 5, count
  end

  def test_a_refused_password_is_not_tried_again
    proxy = server { |request| request.answer("", status: 407) }
    client = client(proxy: URI("http://me:secret@127.0.0.1:#{proxy.port}"), retries: 3, retry_wait: 0)
    assert_equal "proxy-auth", assert_raises(C::ConnectError) { client.get("https://server.invalid/") }.name
    assert_equal 1, proxy.requests.size
  end

  def test_retries
    lock = Mutex.new
    left = 2
    server = server do |request|
      is_busy = lock.synchronize { (left -= 1) >= 0 }
      is_busy ? request.answer("", status: 503) : request.answer("done")
    end
    client = client(retries: 2, retry_wait: 0.001)
    assert_equal "done", client.get(server.url).body
    assert_equal 2, client.counts[:retries]
    left = 2
    assert_equal 503, client.post(server.url, body: "x").status
    left = 1
    assert_equal "done", client.post(server.url, body: "x", idempotent: true).body
    left = 1
    assert_equal 503, client.get(server.url, retries: 0).status
    left = 2
    assert_equal ["done"] * 3, client.fetch_all([server.url] * 3).map(&:body)
    assert_raises(C::ConnectError) { client.get("http://127.0.0.1:#{closed_port}/") }
  end

  # A proxy that answers itself, and says what it was asked for.
  def proxy
    server { |request| request.answer("#{request.method} #{request.target} #{request.headers["proxy-authorization"]}") }
  end

  def test_a_proxy_gets_plain_requests_whole
    proxy = proxy()
    at = "127.0.0.1:#{proxy.port}"
    client = client(proxy: "http://me:p%40ss@#{at}", no_proxy: "127.0.0.0/8, .inner")
    assert_equal "GET http://server.invalid/a?b Basic #{["me:p@ss"].pack("m0")}", client.get("http://server.invalid/a?b").body
    assert_equal "GET / ", client.get(proxy.url).body
    assert_raises(C::DnsError) { client.get("http://x.inner/") }
    assert_raises(C::DnsError) { client(proxy: false).get("http://server.invalid/") }
  end

  def test_the_environment_names_a_proxy
    proxy = proxy()
    ask = 'require "oroshi/client"; print Oroshi::Client.new(**eval(ARGV[0])).get("http://server.invalid/").body rescue print $!.class'
    run = lambda do |variables, options = "{}"|
      clean = %w[http_proxy https_proxy all_proxy no_proxy ALL_PROXY NO_PROXY].to_h { |name| [name, nil] }
      start(*Support::RUBY, "-e", ask, options, env: clean.merge(variables)).tap(&:wait).said
    end
    url = "http://127.0.0.1:#{proxy.port}"
    assert_equal "GET http://server.invalid/ ", run.call({ "http_proxy" => url })
    assert_equal "GET http://server.invalid/ ", run.call({ "ALL_PROXY" => url })
    assert_equal "Oroshi::Client::DnsError", run.call({ "http_proxy" => url, "no_proxy" => "invalid" })
    assert_equal "Oroshi::Client::DnsError", run.call({ "http_proxy" => url }, "{ proxy: false }")
    assert_equal "Oroshi::Client::DnsError", run.call({ "HTTP_PROXY" => url })
    # Only requests that would go through it fail.
    assert_equal "Oroshi::Client::ConnectError", run.call({ "http_proxy" => "socks4://me:secret@h" })
    assert_equal "Oroshi::Client::DnsError", run.call({ "https_proxy" => "socks4://me:secret@h" })
  end

  def test_a_proxy_that_refuses
    proxy = server { |request| request.answer("", status: 407) }
    error = assert_raises(C::ConnectError) { client(proxy: "http://me:secret@127.0.0.1:#{proxy.port}").get("https://server.invalid/") }
    assert_equal ["proxy-auth", true], [error.name, error.retry_safe?]
    assert_match(/the proxy http:\/\/127\.0\.0\.1:#{proxy.port}/, error.message)
    refute_match(/secret/, error.message)
    assert_equal "CONNECT server.invalid:443", proxy.requests.pop
  end

  def test_mistakes_of_proxies
    { "socks4://me:secret@h" => /no proxy that this client uses/, "https://me:secret@" => /host and port/, "socks5://:secret@h" => /user and password/, "http://me:secret@" => /host and port/, "me:secret" => /host and port/,
      7 => /expected the URL of a proxy/, "" => /expected the URL of a proxy/ }.each do |wrong, why|
      error = assert_raises(ArgumentError, wrong.inspect) { client(proxy: wrong) }
      assert_match(/\Aproxy: /, error.message)
      assert_match(why, error.message)
      refute_match(/secret/, error.message)
    end
  end
end
