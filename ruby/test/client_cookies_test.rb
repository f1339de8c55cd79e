# frozen_string_literal: true

require_relative "client_support"

# Oroshi::Client with the option `cookies`.
class ClientCookiesTest < ClientSupport::Test
  C = Oroshi::Client

  # /login sets a cookie and leads on; other paths show the request's cookies.
  def shop
    server do |request|
      case request.target
      when "/login" then request.answer("", status: 303, Location: "/", Set_Cookie: "id=secret; Path=/")
      else request.answer(request.headers["cookie"].to_s)
      end
    end
  end

  def test_cookies_of_responses_go_with_later_requests
    shop = shop()
    client = client(cookies: true, base_url: shop.url)
    assert_equal ["", "id=secret", "id=secret"], ["/", "/login", "/a"].map { |path| client.get(path).body }
    assert_equal ["id=secret"] * 3, client.fetch_all([shop.url] * 3).map(&:body)
    assert_equal "own=1", client.get("/", headers: { "Cookie" => "own=1" }).body
    assert_equal "", client().get(shop.url("/login")).body, "off by default"
  end

  def test_cookies_can_be_read_and_set
    shop = shop()
    client = client(cookies: true, base_url: shop.url)
    client.get("/login")
    assert_equal ["secret", nil], [client.cookies.get("/", "id"), client.cookies.get(shop.url, :other)]
    assert_equal 5, client.cookies.set("/", "n", 5)
    assert_equal "id=secret; n=5", client.get("/").body
    client.cookies.clear
    assert_equal "", client.get("/").body
    [["a;b", "1"], ["a", "1;2"], ["", "1"]].each { |name, value| assert_raises(ArgumentError) { client.cookies.set("/", name, value) } }
    assert_raises(ArgumentError) { client(cookies: true).cookies.get("nonsense", "a") }
    refute_match(/secret/, client.cookies.inspect)
    assert_nil client().cookies
    assert_raises(ArgumentError) { client(cookies: 1) }
  end

  # The parent's lock may be held by a thread that the child does not have.
  def test_a_forked_process_begins_without_cookies
    shop = shop()
    client = client(cookies: true)
    client.get(shop.url("/login"))
    reader, writer = IO.pipe
    pid = fork do
      writer.write([client.get(shop.url).body, client.get(shop.url("/login")).body].inspect)
    ensure
      exit!(0)
    end
    writer.close
    assert_equal ["", "id=secret"].inspect, within("the child's answers") { reader.read }
    Process.wait(pid)
    assert_equal "id=secret", client.get(shop.url).body
  end
end
