# frozen_string_literal: true

require_relative "support"
require "oroshi/settings"
require "oroshi/listeners"

# Sockets that are opened here, and inherited ones (in a separate process, because descriptor numbers matter there).
class ListenersTest < Support::Test
  def open(env = {}, **options)
    Oroshi::Listeners.open(Oroshi::Settings.build(options, env: {}), env: env).tap { |all| (@opened ||= []) << all }
  end

  def teardown
    @opened&.each(&:close)
    super
  end

  def refused(**options)
    assert_raises(Oroshi::Listeners::Error) { open(**options) }.message
  end

  def option(fd, level, name)
    Socket.for_fd(fd).tap { |socket| socket.autoclose = false }.getsockopt(level, name)
  end

  def test_tcp
    all = open(Host: "127.0.0.1", Port: 0)
    host, port = all.names.first.split(":")
    assert_equal "127.0.0.1", host
    Socket.tcp(host, port.to_i).close
    all.close
    assert_raises(Errno::ECONNREFUSED) { Socket.tcp(host, port.to_i) }
  end

  def test_tcp_of_ipv6_alone
    name = open(Listen: "[::1]:0").names.first
    assert_match(/\A\[::1\]:\d+\z/, name)
    Socket.tcp("::1", name[/\d+\z/].to_i).close
  rescue Errno::EADDRNOTAVAIL, Oroshi::Listeners::Error => e
    leave_out("TCP over IPv6", e.message)
  end

  def test_localhost_is_every_address_of_it_at_one_port
    names = open(Host: "localhost", Port: 0).names
    addresses = Addrinfo.getaddrinfo("localhost", nil, nil, :STREAM).map(&:ip_address).uniq
    assert_operator names.size, :<=, addresses.size
    assert_equal 1, names.map { |name| name[/\d+\z/] }.uniq.size
    assert_includes names.map { |name| name[/\A\[?(.*?)\]?:\d+\z/, 1] }, "127.0.0.1"
  end

  def test_port_that_is_taken
    taken = open(Host: "127.0.0.1", Port: 0).names.first
    message = refused(Listen: taken)
    assert_match(/\Acannot listen at #{taken}: Address already in use/, message)
    assert_match(/another process listens there: stop it, choose another port, or let both set ReusePort\z/, message)
  end

  def test_reuseport
    first = open(Host: "127.0.0.1", Port: 0, ReusePort: true).names.first
    assert_equal [first], open(Listen: first, ReusePort: true).names
  end

  def test_backlog
    all = open(Path: socket_path, BackLog: 3)
    waiting = Array.new(10) { Socket.new(:UNIX, :STREAM) }
    results = waiting.map do |socket|
      socket.connect_nonblock(Addrinfo.unix(socket_path), exception: false)
    rescue Errno::EAGAIN
      :full
    end
    assert_equal 4, results.count(0), "the kernel lets one more than the backlog wait"
    assert_equal ["unix:#{socket_path}"], all.names
  ensure
    waiting.each(&:close)
  end

  def test_several_at_once
    names = open(Path: socket_path, Listen: ["127.0.0.1:0", "@oroshi-test-#{Process.pid}"]).names
    assert_equal ["unix:#{socket_path}", "unix:@oroshi-test-#{Process.pid}"], [names[0], names[2]]
    assert_match(/\A127\.0\.0\.1:\d+\z/, names[1])
    Socket.unix("\0oroshi-test-#{Process.pid}").close
  end

  def test_addresses_as_they_are_written
    { "8080" => "0.0.0.0:8080", ":8080" => "0.0.0.0:8080", "localhost:80" => "localhost:80", "[::1]:80" => "[::1]:80",
      "tcp://127.0.0.1:80" => "127.0.0.1:80", "/run/a" => "unix:/run/a", "./a" => "unix:./a", "../a" => "unix:../a",
      "unix:a" => "unix:a", "unix:///run/a" => "unix:/run/a", "unix://a" => "unix:a", "@a" => "unix:@a",
      "unix:@a" => "unix:@a" }
      .each { |text, name| assert_equal name, Oroshi::Listeners::Address.parse(text)&.to_s, text }
    ["", "a", "a/b", "80a", "::1:80", "1.2.3.4", "65536", "@", "unix:", "http://a:80", "a:b:1"]
      .each { |text| assert_nil Oroshi::Listeners::Address.parse(text), text }
  end

  def test_socket_file_and_its_mode
    all = open(Path: socket_path)
    assert_equal 0o777, File.stat(socket_path).mode & 0o777
    all.close
    refute File.exist?(socket_path)
    open(Path: socket_path, PathMode: "0600")
    assert_equal 0o600, File.stat(socket_path).mode & 0o777
  end

  def test_stale_socket_file_is_replaced
    UNIXServer.new(socket_path).close
    assert File.socket?(socket_path)
    open(Path: socket_path)
    Socket.unix(socket_path).close
  end

  def test_live_socket_file_stays
    owner = UNIXServer.new(socket_path)
    assert_match(/a process listens there already/, refused(Path: socket_path))
    owner.listen(0) # and the same when nobody can get in
    clients = Array.new(3) { Socket.new(:UNIX, :STREAM) }
    clients.each { |one| one.connect_nonblock(Addrinfo.unix(socket_path), exception: false) rescue Errno::EAGAIN }
    assert_match(/a process listens there already/, refused(Path: socket_path))
    assert File.socket?(socket_path)
  ensure
    [owner, *clients].each { |io| io&.close }
  end

  def test_other_files_stay
    path = file("s", "precious")
    assert_match(/there is a file that is no socket/, refused(Path: path))
    assert_equal "precious", File.read(path)
    link = File.join(@dir, "link")
    File.symlink("nowhere", link)
    assert_match(/no socket/, refused(Path: link))
  end

  def test_file_of_a_successor_stays
    all = open(Path: socket_path)
    File.unlink(socket_path)
    successor = UNIXServer.new(socket_path)
    all.close
    assert File.socket?(socket_path)
  ensure
    successor&.close
  end

  def test_nothing_stays_open_after_an_error
    assert_match(/its folder must exist/, refused(Path: socket_path, Listen: "/nonexistent/s"))
    refute File.exist?(socket_path)
  end

  def test_names_that_mean_nothing
    assert_match(/cannot listen at nowhere.invalid:0.*; give a name that/, refused(Host: "nowhere.invalid", Port: 0))
    assert_match(/cannot listen at 192.0.2.1:0.*; this machine has no such address/, refused(Host: "192.0.2.1", Port: 0))
    assert_match(/cannot listen at unix:#{"a" * 200}.*too long.*; choose a shorter path/, refused(Listen: "unix:#{"a" * 200}"))
  end

  # --- inherited ---

  # Runs `Listeners.open` in a process that inherits `sockets` as descriptors from 3 on. `variables` is a lambda from
  # that process's pid to its variables. Returns its output: names, the variable, and the remaining variables.
  def inherit(sockets, pid_known: true, **variables)
    script = <<~'RUBY'
      require "oroshi/settings"
      require "oroshi/listeners"
      ENV["LISTEN_PID"] = Process.pid.to_s if ENV.delete("OWN_PID")
      begin
        all = Oroshi::Listeners.open(Oroshi::Settings.build({ Path: "unused" }, env: {}))
        p all.names, all.inherited, ENV.keys.grep(/LISTEN|STARTER_PORT/),
          all.fds.map { |fd| IO.for_fd(fd, autoclose: false).then { |io| io.nonblock? && io.close_on_exec? } }.uniq
      rescue Oroshi::Listeners::Error => e
        puts e.message
      end
    RUBY
    variables = variables.transform_keys(&:to_s).merge(pid_known ? { "OWN_PID" => "1" } : {})
    fds = sockets.each_with_index.to_h { |socket, index| [3 + index, socket] }
    server = start(*Support::RUBY, "-e", script, env: variables, **fds)
    server.wait
    server.said
  end

  def sockets
    @tcp = tcp_listener
    @unix = UNIXServer.new(socket_path)
    @port = @tcp.local_address.ip_port
    [@tcp, @unix]
  end

  def both
    ["127.0.0.1:#{@port}", "unix:#{socket_path}"]
  end

  def test_all_sockets_of_server_starter
    given = sockets
    assert_equal [both, "SERVER_STARTER_PORT", [], [true]].map { |one| "#{one.inspect}\n" }.join,
                 inherit(given, SERVER_STARTER_PORT: "127.0.0.1:#{@port}=3;#{socket_path}=4")
  end

  # The part before the last `=` is a name, and means nothing.
  def test_names_of_server_starter_do_not_count
    given = sockets
    assert_includes inherit(given, SERVER_STARTER_PORT: "a=b:1=2=4;[::1]:80=3"), both.reverse.inspect
  end

  def test_sockets_of_systemd
    assert_includes inherit(sockets, LISTEN_FDS: "2"), "#{both.inspect}\n\"LISTEN_FDS\"\n[]\n"
  end

  def test_the_same_sockets_from_both
    assert_includes inherit(sockets, SERVER_STARTER_PORT: "x=4", LISTEN_FDS: "2"),
                    "#{both.reverse.inspect}\n\"SERVER_STARTER_PORT\"\n[]\n"
  end

  def test_sockets_meant_for_another_process
    said = inherit(sockets, pid_known: false, LISTEN_FDS: "2", LISTEN_PID: "1")
    assert_includes said, '["unix:unused"]'
    assert_includes said, "\nnil\n[]\n", "the variables go all the same"
  end

  def test_datagram_sockets_are_left_alone
    given = [*sockets, UDPSocket.new]
    assert_includes inherit(given, SERVER_STARTER_PORT: "u53=5;80=3"), ["127.0.0.1:#{@port}"].inspect
    assert_includes inherit(given, SERVER_STARTER_PORT: "u53=5"), "names no socket for connections"
  end

  def test_what_is_wrong_with_handed_down_sockets
    client = Socket.new(:INET, :STREAM)
    assert_includes inherit([client], SERVER_STARTER_PORT: "80=3"), "SERVER_STARTER_PORT: descriptor 3 does not listen"
    assert_includes inherit([File.open(File::NULL)], LISTEN_FDS: "1"), "LISTEN_FDS: descriptor 3 is no socket"
    assert_includes inherit([], SERVER_STARTER_PORT: "80=77"), "descriptor 77 is no socket"
    assert_includes inherit([], SERVER_STARTER_PORT: "80"), "`80` is not name=descriptor"
    assert_includes inherit([], LISTEN_FDS: "many"), "LISTEN_FDS=many: must be a number"
  end
end
