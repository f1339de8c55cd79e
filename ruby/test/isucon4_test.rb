# frozen_string_literal: true

require_relative "database"
require "cgi"
require "csv"
require "digest"
require "json"
require "open3"
require "time"
require "uri"

# The application of examples/isucon4 with a real MariaDB: every rule, over plain HTTP.
class Isucon4Test < Support::Test
  EXAMPLE = File.expand_path("../examples/isucon4", Support::ROOT)
  WRONG = "Wrong username or password"
  LOCKED = "This account is locked."
  BANNED = "You're banned."
  REQUIRED = "You must be logged in"

  Database = Support::Database

  # A browser at one address: cookies, and a connection for each request.
  class Browser
    attr_reader :cookies

    def initialize(socket, address)
      @socket = socket
      @address = address
      @cookies = {}
    end

    def get(path) = request { |client| client.get(path, **fields) }

    def post(path, form = {})
      type = { "Content-Type": "application/x-www-form-urlencoded" }
      request { |client| client.post(path, URI.encode_www_form(form), **fields, **type) }
    end

    # Returns the notice of a login that was refused; nil after a login.
    def login(login, password)
      answer = post("/login", login:, password:)
      raise "#{answer.status} #{answer.body}" unless answer.status == 302

      return if answer.headers["location"] == "/mypage"

      raise "to #{answer.headers["location"]}" unless answer.headers["location"] == "/"

      notice
    end

    def notice = CGI.unescapeHTML(get("/").body[%r{<p id="notice" role="alert">(.*?)</p>}, 1].to_s)

    # Returns the login, the time and the address of the login before.
    def account
      answer = get("/mypage")
      raise "#{answer.status} to #{answer.headers["location"]}" unless answer.status == 200

      %w[login last-at last-address].map { |id| answer.body[/id="#{id}">(.*?)</, 1] }
    end

    private

    def fields
      cookie = @cookies.map { |name, value| "#{name}=#{value}" }.join("; ") unless @cookies.empty?
      { "X-Forwarded-For": @address, Cookie: cookie }.compact
    end

    def request(&)
      answer = Support::Client.unix(@socket, &)
      if (field = answer.headers["set-cookie"])
        name, value = field[/\A[^;]+/].split("=", 2)
        field.include?("Max-Age=0") ? @cookies.delete(name) : @cookies[name] = value
      end
      answer
    end
  end

  def setup
    super
    { "mariadbd" => "mariadb-server", "mariadb" => "mariadb-client" }.each do |program, package|
      leave_out("examples/isucon4", "#{program} is not installed (Debian: #{package})") unless found?(program)
    end
    need_library("mysql2", "ruby-mysql2")
    @database = Database.start
  end

  def found?(program)
    [*ENV["PATH"].split(":"), "/usr/sbin"].any? { |folder| File.executable?("#{folder}/#{program}") }
  end

  def need_library(name, package)
    require name
  rescue LoadError
    leave_out("examples/isucon4", "#{name} is not installed (Debian: #{package})")
  end

  # Starts the application with the gem, and puts the data back.
  def start_app(workers: 2)
    server = start(*Support::COMMAND, "-E", "none", "-c", "#{EXAMPLE}/config/oroshi.rb", "#{EXAMPLE}/config.ru", env: {
      "ISUCON4_DATABASE" => "#{@database}/mariadb.sock",
      "ISUCON4_LISTEN" => socket_path,
      "ISUCON4_WORKERS" => workers.to_s
    })
    server.wait_for(/worker \d+ .*: ready/, count: workers)
    initialize_data
    server
  end

  def initialize_data
    assert_equal 200, browser.post("/initialize").status
  end

  def browser(address = "192.0.2.1") = Browser.new(socket_path, address)

  # Accounts of the seed without a failure.
  def accounts
    @accounts ||= CSV.read("#{EXAMPLE}/data/users.csv", headers: true).select { |row| row["failures"] == "0" }
  end

  def report(socket = socket_path) = JSON.parse(Browser.new(socket, "192.0.2.1").get("/report").body)

  def seeded(file, column, limit)
    CSV.read("#{EXAMPLE}/data/#{file}.csv", headers: true).select { |row| row["failures"].to_i >= limit }
       .map { |row| row[column] }.sort
  end

  def test_front_page_and_its_files
    start_app
    page = browser.get("/")
    assert_equal [200, "text/html; charset=utf-8"], [page.status, page.headers["content-type"]]
    assert_match(%r{<form id="login-form" action="/login" method="post">}, page.body)
    refute_match(/id="notice"/, page.body)
    user, = accounts
    visitor = browser
    visitor.login(user["login"], user["password"])
    files = (page.body + visitor.get("/mypage").body).scan(%r{(?:href|src)="(/assets/[^"]+)"}).flatten.uniq.sort
    known = CSV.read("#{EXAMPLE}/data/assets.csv", headers: true)
    assert_equal known.map { |row| row["path"] }.sort, files
    known.each do |row|
      answer = browser.get(row["path"])
      assert_equal [200, row["md5"]], [answer.status, Digest::MD5.hexdigest(answer.body)], row["path"]
    end
  end

  def test_a_login_shows_the_one_before
    start_app
    user = accounts.find { |row| row["login_address"].nil? }
    first = browser("192.0.2.1")
    assert_nil first.login(user["login"], user["password"])
    assert_equal [user["login"], "-", "-"], first.account
    answer = browser.post("/login", login: user["login"], password: user["password"])
    assert_match(/\Asession=.*; HttpOnly/, answer.headers["set-cookie"])
    second = browser("2001:db8::2")
    assert_nil second.login(user["login"], user["password"])
    login, at, address = second.account
    assert_equal [user["login"], "192.0.2.1"], [login, address]
    assert_in_delta Time.now, Time.parse(at), Support::PATIENCE_S
    assert_nil browser.login(user["login"], user["password"])
    assert_equal "2001:db8::2", second.account.last
    before = accounts.find { |row| row["login_address"] }
    known = browser
    assert_nil known.login(before["login"], before["password"])
    assert_equal before["login_address"], known.account.last
  end

  def test_an_account_is_locked_after_three_failures_in_a_row
    start_app
    user, other = accounts
    2.times { |n| assert_equal WRONG, browser("192.0.2.#{n}").login(user["login"], "no") }
    assert_nil browser.login(user["login"], user["password"]), "two failures do not lock"
    2.times { assert_equal WRONG, browser.login(user["login"], "no") }
    assert_nil browser.login(user["login"], user["password"]), "a login forgets the failures before it"
    3.times { assert_equal WRONG, browser("192.0.2.2").login(user["login"], "no") }
    refused = browser
    assert_equal LOCKED, refused.login(user["login"], user["password"])
    assert_equal LOCKED, browser("192.0.2.3").login(user["login"], "no")
    assert_empty refused.cookies
    assert_nil browser.login(other["login"], other["password"])
    assert_equal (seeded("users", "login", 3) + [user["login"]]).sort, report["locked_users"]
  end

  def test_an_address_is_banned_after_ten_failures_in_a_row
    start_app
    guesser = browser("192.0.2.9")
    9.times { |n| assert_equal WRONG, guesser.login(accounts[n]["login"], "no") }
    assert_nil guesser.login(accounts[20]["login"], accounts[20]["password"]), "a login forgets the failures before it"
    10.times { |n| assert_equal WRONG, guesser.login("nobody#{n}", "no") }
    assert_equal BANNED, guesser.login(accounts[21]["login"], accounts[21]["password"])
    assert_equal BANNED, guesser.login("nobody", "no")
    assert_nil browser("192.0.2.10").login(accounts[21]["login"], accounts[21]["password"])
    assert_equal (seeded("addresses", "address", 10) + ["192.0.2.9"]).sort, report["banned_ips"]
    # A refused login counts for the account too, and a banned address learns nothing about it.
    4.times { assert_equal BANNED, guesser.login(accounts[22]["login"], accounts[22]["password"]) }
    assert_equal LOCKED, browser("192.0.2.10").login(accounts[22]["login"], accounts[22]["password"])
  end

  def test_a_notice_is_shown_once
    start_app
    visitor = browser
    assert_equal WRONG, visitor.login("nobody", "no")
    assert_equal "", visitor.notice
    visitor.cookies["notice"] = "<script>"
    assert_equal "", visitor.notice
  end

  def test_the_account_page_needs_a_login
    start_app
    stranger = browser
    answer = stranger.get("/mypage")
    assert_equal [302, "/"], [answer.status, answer.headers["location"]]
    assert_equal REQUIRED, stranger.notice
    assert_nil stranger.login(accounts[0]["login"], accounts[0]["password"])
    session = stranger.cookies["session"]
    ["", ".", "1", "1.", "1.#{"0" * 64}", session.sub(/\A\d+/, &:succ), session.sub(".", ".x")].each do |forged|
      stranger.cookies["session"] = forged
      assert_equal 302, stranger.get("/mypage").status, forged
    end
    stranger.cookies["session"] = session
    assert_equal accounts[0]["login"], stranger.account.first
  end

  def test_initialize_restores_the_seed
    start_app
    user = accounts.find { |row| row["login_address"].nil? }
    assert_nil browser.login(user["login"], user["password"])
    11.times { browser("192.0.2.9").login(accounts[9]["login"], "no") }
    assert_includes report["locked_users"], accounts[9]["login"]
    initialize_data
    banned, locked = seeded("addresses", "address", 10), seeded("users", "login", 3)
    assert_equal({ "banned_ips" => banned, "locked_users" => locked }, report)
    visitor = browser("192.0.2.9")
    assert_nil visitor.login(user["login"], user["password"])
    assert_equal [user["login"], "-", "-"], visitor.account
    refute_empty banned
    refute_empty locked
  end

  # Many at once lose no failure: the tenth from an address bans it, and not the ninth.
  def test_failures_at_the_same_moment_all_count
    start_app(workers: 4)
    fail_at_once = lambda do |address, count|
      Array.new(count) { |n| Thread.new { browser(address).login("nobody#{n}", "no") } }.each(&:join)
    end
    fail_at_once.call("192.0.2.50", 9)
    fail_at_once.call("192.0.2.51", 10)
    login = accounts[0]["login"]
    Array.new(3) { |n| Thread.new { browser("192.0.2.#{60 + n}").login(login, "no") } }.each(&:join)
    found = report
    assert_includes found["banned_ips"], "192.0.2.51"
    refute_includes found["banned_ips"], "192.0.2.50"
    assert_includes found["locked_users"], login
  end

  def test_logins_are_compared_byte_by_byte
    start_app
    user = accounts[0]
    name = user["login"]
    ["#{name} ", "#{name}\0", name.upcase, "' OR '1'='1", "\u{1f512}", "", "x" * 5_000].each do |login|
      assert_equal WRONG, browser("192.0.2.#{login.bytesize % 200}").login(login, user["password"]), login.inspect
    end
    assert_equal WRONG, browser.login(user["login"], "#{user["password"]} ")
  end

  def test_bad_requests
    start_app
    assert_equal 404, browser.get("/nowhere").status
    assert_equal [405, "POST"], browser.get("/login").then { |answer| [answer.status, answer.headers["allow"]] }
    assert_equal 405, browser.post("/report").status
    assert_equal 400, browser.post("/login", login: "x").status
    assert_equal 413, browser.post("/login", login: "x" * 20_000, password: "x").status
    assert_equal 400, post("/login", "login=\xff&password=x".b).status
    ["login=%ff&password=%00", "login=%zz&password=%", "login=a&login=b&password"].each do |form|
      assert_equal 302, post("/login", form, "X-Forwarded-For": "192.0.2.7").status, form
    end
    ["x", "1" * 50, "' OR 1"].each do |address|
      assert_equal 400, browser(address).post("/login", login: "x", password: "x").status, address
    end
    assert_equal 302, browser("192.0.2.8, 10.0.0.1").post("/login", login: "x", password: "x").status
    assert_equal "1\n", Database.execute("SELECT failures FROM addresses WHERE address = '192.0.2.8'")
  end

  # One connection for each worker, statements prepared once, two for a login and one for the account page.
  def test_what_it_asks_the_database
    start_app(workers: 1)
    user, = accounts
    visitor = browser
    requests = -> { [visitor.login(user["login"], user["password"]), visitor.account] }
    requests.call
    names = %w[Connections Com_stmt_prepare Com_stmt_execute]
    counts = names.to_h { |name| [name, Database.count(name)] }
    5.times { requests.call }
    after = names.to_h { |name| [name, Database.count(name)] }
    # Each look at the counters is a connection of its own.
    assert_equal counts.size, after["Connections"] - counts["Connections"]
    assert_equal 0, after["Com_stmt_prepare"] - counts["Com_stmt_prepare"]
    assert_equal 15, after["Com_stmt_execute"] - counts["Com_stmt_execute"]
  end

  def test_it_outlives_its_connection
    start_app(workers: 1)
    user, = accounts
    assert_nil browser.login(user["login"], user["password"])
    Database.execute("SELECT GROUP_CONCAT('KILL ', id SEPARATOR ';') FROM information_schema.processlist " \
                     "WHERE user = 'root' AND db = 'isucon4' AND id <> CONNECTION_ID()").strip.split(";")
            .each { |kill| Database.execute(kill) }
    assert_nil browser.login(user["login"], user["password"])
  end

  # `serve`, as the experiment starts it: with nginx and a database of its own.
  def test_every_server_behind_nginx
    leave_out("examples/isucon4 behind nginx", "nginx is not installed (Debian: nginx-light)") unless found?("nginx")
    folder = File.join(@dir, "isucon4")
    said, status = Open3.capture2e("#{EXAMPLE}/setup", folder) # `serve` takes it over
    assert status.success?, said
    %w[oroshi unicorn puma].each do |name|
      if name == "oroshi" || found?(name)
        serve_and_log_in(name, folder)
      else
        skipped("examples/isucon4 with #{name}", "it is not installed")
      end
    end
  end

  def listens?(socket)
    UNIXSocket.open(socket) { true }
  rescue SystemCallError
    false
  end

  def serve_and_log_in(name, folder)
    front = File.join(@dir, "#{name}.sock")
    server = start("#{EXAMPLE}/serve", name, folder, "unix:#{front}", env: {
      "PATH" => "#{Support::ROOT}/exe:#{ENV.fetch("PATH")}",
      "RUBYLIB" => "#{Support::ROOT}/lib:#{ENV.fetch("RUBYLIB", "")}"
    })
    Common.wait_until("#{name} behind nginx") { listens?(front) }
    visitor = Browser.new(front, "192.0.2.1")
    page = visitor.get("/")
    assert_equal 200, page.status, name
    assert_equal 200, visitor.get("/assets/style.css").status
    assert_nil visitor.login(accounts[0]["login"], accounts[0]["password"])
    assert_equal accounts[0]["login"], visitor.account.first
    11.times { |n| Browser.new(front, "192.0.2.3").login("nobody#{n}", "no") }
    assert_includes report(front)["banned_ips"], "192.0.2.3", "nginx hands the address on"
    server.stop
    refute File.exist?("#{folder}/mariadb.pid"), "the database of #{name} has ended"
  end
end
